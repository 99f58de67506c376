"""Constraints as flat, read-only arrays: the form in which a graph holds them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, frozen, offsets, ranges

ROUNDING = 1e-9  # tolerance of sums of real weights, relative to the sum of their magnitudes: round-off
EVERY_STATE = -1  # used as the state if a constraint refers to all states of a variable


class ConstraintKind(IntEnum):
    """The kind of a constraint on its indicators.

    Attributes
    ----------
    LINEAR
        The sum of weights of the indicators that are 1 lies between `lower` and `upper`.
    XOR
        The parity of the number of indicators that are 1 is `lower`.
    OR
        The last indicator is 1 if and only if one of the others is.
    ALL_DIFFERENT
        No two of the variables have the same state; the states of the indicators have no meaning.

    Examples
    --------
    >>> ConstraintKind.XOR.value
    1
    """

    LINEAR = 0
    XOR = 1
    OR = 2
    ALL_DIFFERENT = 3


@dataclass(frozen=True, eq=False)
class Constraints:
    """The constraints of a graph. Build them with `FactorGraph.with_constraints`.

    Attributes
    ----------
    kind : (n,)
        A `ConstraintKind` for every constraint.
    ptr : (n + 1,)
        The indicators of constraint `c` are those from ``ptr[c]`` to ``ptr[c + 1]``.
    var, state : (n_indicators,)
        Variable and state of every indicator. A variable may occur several times in a constraint, with different
        states. In ALL_DIFFERENT the state is -1.
    weight : (n_indicators,)
        Coefficients of LINEAR constraints, 1 in all others.
    lower, upper : (n,)
        Limits of the sum, infinite where there is none; `lower` is the parity of XOR. Compare sums with `least` and
        `most`, which allow for round-off.
    penalty : (n,)
        Penalty subtracted from the value of a labelling that violates the constraint; inf if it is hard.
    names : tuple of str
        Names of the functions that made them, such as ``at_most_k``.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [], [])
    >>> found = graph.with_constraints([constraints.at_most_one([0, 1])]).constraints
    >>> found.var.tolist(), found.state.tolist(), found.upper.tolist(), found.penalty.tolist()
    ([0, 1], [1, 1], [1.0], [inf])
    >>> found.value([1, 1]), found.value([1, 0])
    (-inf, 0.0)
    """

    kind: Ints
    ptr: Ints
    var: Ints
    state: Ints
    weight: Floats
    lower: Floats
    upper: Floats
    penalty: Floats
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        for array in self._arrays:
            frozen(array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle; arrays come back writable, so make them read-only again."""
        self.__dict__.update(state)
        self.__post_init__()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def _arrays(self) -> tuple[Ints | Floats, ...]:
        return (self.kind, self.ptr, self.var, self.state, self.weight, self.lower, self.upper, self.penalty)

    @property
    def nbytes(self) -> int:
        """Memory of the arrays."""
        return sum(array.nbytes for array in self._arrays)

    @cached_property
    def owner(self) -> Ints:
        """The constraint of every indicator, (n_indicators,)."""
        return frozen(np.repeat(np.arange(len(self)), np.diff(self.ptr)))

    @cached_property
    def hard(self) -> Bools:
        """Which constraints are hard, (n,)."""
        return frozen(np.isinf(self.penalty))

    @cached_property
    def whole(self) -> Bools:
        """Which constraints have integer weights, (n,)."""
        return frozen(np.bincount(self.owner, self.weight % 1 != 0, len(self)) == 0)

    @cached_property
    def _slack(self) -> Floats:
        sizes = np.bincount(self.owner, np.abs(self.weight), len(self))
        return np.where(self.whole, 0.0, ROUNDING * np.maximum(1.0, sizes))

    @cached_property
    def least(self) -> Floats:
        """The smallest sum that satisfies each LINEAR constraint: `lower`, rounded up or less round-off."""
        return frozen(np.where(self.whole, np.ceil(self.lower), self.lower - self._slack))

    @cached_property
    def most(self) -> Floats:
        """The largest sum that satisfies each LINEAR constraint: `upper`, rounded down or plus round-off."""
        return frozen(np.where(self.whole, np.floor(self.upper), self.upper + self._slack))

    @property
    def size(self) -> float:
        """The sum of the finite penalties."""
        return float(self.penalty[~self.hard].sum())

    def span(self, c: int) -> slice:
        """Slice of the indicators of constraint `c`."""
        return slice(int(self.ptr[c]), int(self.ptr[c + 1]))

    def variables(self, c: int) -> Ints:
        """The variables of constraint `c`, each once, in the order of their first indicators."""
        found, first = np.unique(self.var[self.span(c)], return_index=True)
        return found[np.argsort(first)]

    def counts(self, labels: Ints) -> Floats:
        """The sum of weights of the indicators that are 1, (n,); of ALL_DIFFERENT, the number of repeated states."""
        labels = np.asarray(labels)
        on = labels[self.var] == self.state
        sums: Floats = np.bincount(self.owner[on], self.weight[on], len(self)).astype(np.float64)
        different = self.kind == ConstraintKind.ALL_DIFFERENT
        if different.any():
            mine = different[self.owner]
            owner, taken = self.owner[mine], labels[self.var[mine]]
            by = np.lexsort((taken, owner))
            twice = (np.diff(owner[by]) == 0) & (np.diff(taken[by]) == 0)
            sums += np.bincount(owner[by][1:][twice], minlength=len(self))
        return sums

    def violated(self, labels: Ints) -> Bools:
        """Which constraints a labelling (n_vars,) violates, (n,)."""
        sums, kind = self.counts(labels), self.kind
        bad = np.asarray((sums < self.least) | (sums > self.most))
        if np.any(kind != ConstraintKind.LINEAR):
            bad = np.where(kind == ConstraintKind.XOR, sums % 2 != self.lower, bad)
            bad = np.where(kind == ConstraintKind.ALL_DIFFERENT, sums > 0, bad)
            last = self.ptr[1:] - 1
            output = np.asarray(labels)[self.var[last]] == self.state[last]
            bad = np.where(kind == ConstraintKind.OR, (sums > output) != output, bad)
        return bad

    def value(self, labels: Ints) -> float:
        """Minus the penalties of the constraints that a labelling (n_vars,) violates."""
        bad = self.violated(labels)
        return 0.0 - float(self.penalty[bad].sum()) if bad.any() else 0.0

    def take(self, some: Sequence[int] | Ints) -> Constraints:
        """Some of the constraints, by index (n_some,)."""
        some = np.asarray(some, dtype=np.int64)
        sizes = np.diff(self.ptr)[some]
        at = ranges(self.ptr[some], sizes)
        return Constraints(
            self.kind[some], offsets(sizes), self.var[at], self.state[at], self.weight[at],
            self.lower[some], self.upper[some], self.penalty[some], tuple(self.names[c] for c in some.tolist()),
        )  # fmt: skip

    @staticmethod
    def join(parts: Sequence[Constraints]) -> Constraints | None:
        """All constraints of several lists; None if there are none."""
        parts = [part for part in parts if len(part)]
        if not parts:
            return None
        return Constraints(
            kind=np.concatenate([part.kind for part in parts]),
            ptr=offsets(np.concatenate([np.diff(part.ptr) for part in parts])),
            var=np.concatenate([part.var for part in parts]),
            state=np.concatenate([part.state for part in parts]),
            weight=np.concatenate([part.weight for part in parts]),
            lower=np.concatenate([part.lower for part in parts]),
            upper=np.concatenate([part.upper for part in parts]),
            penalty=np.concatenate([part.penalty for part in parts]),
            names=tuple(name for part in parts for name in part.names),
        )


def one_constraint(
    kind: ConstraintKind, indicators: Sequence[tuple[int, int]], weights: Sequence[float], limits: tuple[float, float],
    penalty: float = math.inf, name: str = "",
) -> Constraints:  # fmt: skip
    """A single constraint as arrays; nothing is checked."""
    pairs = np.array(indicators, dtype=np.int64).reshape(-1, 2)
    return Constraints(
        np.array([int(kind)]), np.array([0, len(pairs)]), pairs[:, 0].copy(), pairs[:, 1].copy(),
        np.array(weights, dtype=np.float64), np.array([limits[0]]), np.array([limits[1]]), np.array([penalty]),
        (name or kind.name.lower(),),
    )  # fmt: skip
