"""Constraints as flat, read-only arrays: the form in which a graph holds them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, frozen, offsets, ranges, same_content

if TYPE_CHECKING:
    from mapmrf.constraints.as_tables import Automaton
    from mapmrf.model.names import Names

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
    REGULAR
        The states of the variables, one after another, are a word that an automaton accepts.

    Examples
    --------
    >>> ConstraintKind.XOR.value
    1
    """

    LINEAR = 0
    XOR = 1
    OR = 2
    ALL_DIFFERENT = 3
    REGULAR = 4


LINEAR, XOR, OR, ALL_DIFFERENT, REGULAR = map(int, ConstraintKind)
WITHIN, PARITY, OUTPUT, DIFFERENT = 0, 1, 2, 3
"""Conditions: a sum is within limits, has the parity `least`, or is positive iff the last indicator is 1; or no two
variables have the same state. The engines know no kinds but these."""


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
        states. In ALL_DIFFERENT and REGULAR the state is -1.
    weight : (n_indicators,)
        Coefficients of LINEAR constraints, 1 in all others.
    lower, upper : (n,)
        Limits of the sum, infinite where there is none; `lower` is the parity of XOR. Compare sums with `least` and
        `most`, which allow for round-off.
    penalty : (n,)
        Penalty subtracted from the value of a labelling that violates the constraint; inf if it is hard.
    made_by : tuple of str
        The functions that made them, such as ``at_most_k``.
    data : tuple
        What else the kind of each constraint needs, such as the automaton of REGULAR, or None.
    names : tuple of str
        The names that they were given, or empty text.

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
    made_by: tuple[str, ...]
    data: tuple[Any, ...] = ()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.data:
            object.__setattr__(self, "data", (None,) * len(self.made_by))
        if not self.names:
            object.__setattr__(self, "names", ("",) * len(self.made_by))
        for array in self._arrays:
            frozen(array)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickle; arrays come back writable, so make them read-only again."""
        self.__dict__.update(state)
        self.__post_init__()

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        shown = ", ".join(self.called(c) for c in range(min(3, len(self))))
        return f"Constraints({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Constraints):
            return NotImplemented
        return same_content(self, other)

    def __hash__(self) -> int:
        return hash(self.made_by)

    def called(self, c: int) -> str:
        """How a message names a constraint: by its index and the function that made it, or by its name."""
        return repr(self.names[c]) if self.names[c] else f"{c} ({self.made_by[c]})"

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
        """The sum of the finite penalties, and of the largest magnitudes of other potentials."""
        others = sum(float(np.abs(each).max(initial=0.0)) for each in self.potentials)
        return float(self.penalty[~self.hard].sum()) + others

    @cached_property
    def potentials(self) -> list[Floats]:
        """The finite potentials of constraints that are not penalties: a value has at most one from each array."""
        some = [c for kind, mine in self.kinds if kind.by_automaton for c in np.flatnonzero(mine).tolist()]
        return [each for c in some for each in self.kind_of(c).potentials(self, c)]

    @property
    def highest(self) -> float:
        """An upper bound on the value of all constraints: 0, unless they have potentials above it."""
        return sum(float(each.max(initial=0.0)) for each in self.potentials)

    @cached_property
    def by_automaton(self) -> Bools:
        """Which constraints only an automaton describes, (n,)."""
        found = np.zeros(len(self), dtype=bool)
        for kind, mine in self.kinds:
            found |= mine & kind.by_automaton
        return frozen(found)

    def span(self, c: int) -> slice:
        """Slice of the indicators of constraint `c`."""
        return slice(int(self.ptr[c]), int(self.ptr[c + 1]))

    def indicators(self, c: int) -> list[tuple[int, int]]:
        """Variables and states of the indicators of constraint `c`."""
        mine = self.span(c)
        return list(zip(self.var[mine].tolist(), self.state[mine].tolist(), strict=True))

    def variables(self, c: int) -> Ints:
        """The variables of constraint `c`, each once, in the order of their first indicators."""
        found, first = np.unique(self.var[self.span(c)], return_index=True)
        return found[np.argsort(first)]

    @cached_property
    def kinds(self) -> list[tuple[KindInterface, Bools]]:
        """The kinds that occur, and which constraints are of each."""
        numbers, first = np.unique(self.kind, return_index=True)
        return [(self.kind_of(c), frozen(self.kind == k)) for k, c in zip(numbers, first.tolist(), strict=True)]

    def kind_of(self, c: int) -> KindInterface:
        """What the kind of constraint `c` says of itself."""
        from mapmrf.constraints.kinds import kinds  # they work on these arrays

        return kinds()[int(self.kind[c])]

    def counts(self, labels: Ints) -> Floats:
        """The sum of weights of the indicators that are 1, (n,); of ALL_DIFFERENT, the number of repeated states."""
        labels = np.asarray(labels)
        on = labels[self.var] == self.state
        sums: Floats = np.bincount(self.owner[on], self.weight[on], len(self)).astype(np.float64)
        for kind, mine in self.kinds:
            sums = kind.counts(self, labels, sums, mine)
        return sums

    def violated(self, labels: Ints) -> Bools:
        """Which constraints a labelling (n_vars,) violates, (n,)."""
        counts, bad = self.counts(labels), np.zeros(len(self), dtype=bool)
        for kind, mine in self.kinds:
            bad |= mine & kind.violated(self, labels, counts)
        return bad

    def values(self, labels: Ints) -> Floats:
        """What each constraint adds to the value of a labelling (n_vars,): minus its penalty if violated, (n,)."""
        bad = self.violated(labels)
        worth: Floats = np.where(bad, 0.0 - self.penalty, 0.0)
        for kind, mine in self.kinds:
            worth = kind.values(self, labels, worth, mine & ~bad)
        return worth

    def value(self, labels: Ints) -> float:
        """What all constraints add to the value of a labelling (n_vars,)."""
        worth = self.values(labels)
        return float(worth[worth != 0].sum())

    def take(self, some: Sequence[int] | Ints) -> Constraints:
        """Some of the constraints, by index (n_some,)."""
        some = np.asarray(some, dtype=np.int64)
        sizes = np.diff(self.ptr)[some]
        at = ranges(self.ptr[some], sizes)
        return Constraints(
            self.kind[some], offsets(sizes), self.var[at], self.state[at], self.weight[at],
            self.lower[some], self.upper[some], self.penalty[some],
            *(tuple(each[c] for c in some.tolist()) for each in (self.made_by, self.data, self.names)),
        )  # fmt: skip

    def rest(self, keep: Bools, kind: int, limits: tuple[float, float]) -> Constraints:
        """Some indicators (n_indicators,) of the only constraint, as one of a kind with other limits."""
        pairs = np.stack([self.var[keep], self.state[keep]], axis=1).tolist()
        return one_constraint(kind, pairs, self.weight[keep].tolist(), limits, float(self.penalty[0]), self.made_by[0])

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
            made_by=tuple(each for part in parts for each in part.made_by),
            names=tuple(name for part in parts for name in part.names),
            data=tuple(each for part in parts for each in part.data),
        )


def one_constraint(
    kind: int, indicators: Sequence[tuple[int, int]], weights: Sequence[float], limits: tuple[float, float],
    penalty: float = math.inf, made_by: str = "", data: object = None, name: str = "",
) -> Constraints:  # fmt: skip
    """A single constraint as arrays; nothing is checked."""
    pairs = np.array(indicators, dtype=np.int64).reshape(-1, 2)
    return Constraints(
        np.array([int(kind)]), np.array([0, len(pairs)]), pairs[:, 0].copy(), pairs[:, 1].copy(),
        np.array(weights, dtype=np.float64), np.array([limits[0]]), np.array([limits[1]]), np.array([penalty]),
        (made_by or ConstraintKind(kind).name.lower(),), (data,), (name,),
    )  # fmt: skip


# -- What a kind says of itself: `kinds/` has a file for each, and what uses constraints asks for it ------------------


class Sum(NamedTuple):
    """A condition on the sum of weights of the indicators that are 1; a constraint holds if all of its sums do."""

    condition: int  # WITHIN, PARITY or OUTPUT
    least: float
    most: float
    var: Ints
    state: Ints
    weight: Floats
    implied: float = -np.inf  # a lower limit that holds as well if all sums of a hard constraint do


class KindInterface(ABC):
    """A kind of constraint; `one` is a list with one constraint, `c` the index of one in a list.

    A kind is a condition on its indicators (`limits`), which all engines know: propagation, prices, projections, local
    search and integer programs read it, and `sums`. A kind that is no such condition sets `by_automaton`: all methods
    but those that declare `native_automata` get its constraints as tables. Either way it says what is `violated`, what
    observed variables leave (`condition`), and its `automaton`.
    """

    number: ClassVar[int]  # no two kinds have the same one; those of the package are in `ConstraintKind`
    by_automaton: ClassVar[bool] = False
    whole_variables: ClassVar[bool] = False  # its indicators are variables, without states
    repeats: ClassVar[bool] = False  # an indicator may occur more than once

    def locate(self, data: Any, variables: Sequence[int], names: Names | None, card: Ints) -> object:
        """Return `Constraints.data` from the data of a statement about variables."""
        return data

    def values(self, constraints: Constraints, labels: Ints, worth: Floats, satisfied: Bools) -> Floats:
        """Return the values (n,) of constraints, with those of satisfied ones of this kind, which are 0 by default."""
        return worth

    def potentials(self, constraints: Constraints, c: int) -> Sequence[Floats]:
        """Return the arrays of finite potentials from each of which its value may have one, the penalty aside."""
        return ()

    def counts(self, constraints: Constraints, labels: Ints, sums: Floats, mine: Bools) -> Floats:
        """Return what is counted: the sums of the indicators that are 1, unless constraints of this kind differ."""
        return sums

    @abstractmethod
    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        """Return which constraints a labelling violates, as if all were of this kind."""

    def interval(self, constraints: Constraints, c: int, card: Ints) -> tuple[float, float]:
        """Return bounds on its value over all labellings."""
        return -float(constraints.penalty[c]), 0.0

    def lacks_states(self, constraints: Constraints, c: int, var_ptr: Ints, possible: Bools) -> bool:
        """Return whether the possible states (n_states,) are too few for it, if none of its sums alone shows that."""
        return False

    @abstractmethod
    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        """Return the constraint on the variables that are not observed, given which indicators are seen, and 1."""

    @abstractmethod
    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        """Return the automaton that reads labels and ends with the constraint's value."""

    def unequal_pairs(self, constraints: Constraints, c: int) -> Iterator[tuple[int, int]] | None:
        """Return pairs of variables that differ if and only if it is satisfied; None if that is not what it says."""
        return None

    def sums(self, constraints: Constraints, c: int, card: Ints) -> Iterator[Sum]:
        """Return what it says of sums: that of its `limits`, unless those are no condition on one sum."""
        if self.by_automaton:
            return
        mine = constraints.span(c)
        found = constraints.var[mine], constraints.state[mine], constraints.weight[mine]
        yield Sum(*self.limits(constraints, c), *found)

    def limits(self, constraints: Constraints, c: int) -> tuple[int, float, float]:
        """Return the condition on all indicators, and the limits of their sum."""
        raise NotImplementedError


class SumRows(NamedTuple):
    """All constraints of a graph as conditions on sums."""

    condition: Ints  # (n_rows,)
    least: Floats
    most: Floats
    constraint: Ints  # (n_rows,): the constraint of every row
    row: Ints  # (n_items,): the row of every item
    var: Ints
    state: Ints
    weight: Floats


def sum_rows(constraints: Constraints | None, card: Ints) -> SumRows:
    owners, found = list[int](), list[Sum]()
    for c in range(0 if constraints is None else len(constraints)):
        assert constraints is not None
        for each in constraints.kind_of(c).sums(constraints, c, card):
            owners.append(c)
            found.append(each)
    none: Ints = np.zeros(0, dtype=np.int64)
    return SumRows(
        condition=np.array([each.condition for each in found], dtype=np.int64),
        least=np.array([each.least for each in found], dtype=np.float64),
        most=np.array([each.most for each in found], dtype=np.float64),
        constraint=np.array(owners, dtype=np.int64),
        row=np.repeat(np.arange(len(found)), np.array([len(each.var) for each in found], dtype=np.int64)),
        var=np.concatenate([none, *(each.var for each in found)]),
        state=np.concatenate([none, *(each.state for each in found)]),
        weight=np.concatenate([np.zeros(0), *(each.weight for each in found)]),
    )
