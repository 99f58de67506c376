"""Exhaustive search: every labelling of a small model."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

BLOCK = 2**14
"""Labellings that are evaluated at once, at most (or one variable's states, if those are more)."""

STEP_SECONDS = 0.03
"""Time after which a step lets the loop look at its limits."""


@dataclass(frozen=True)
class Exhaustive(Method):
    """Evaluate every labelling; of several best ones take the first in lexicographic order.

    Attributes
    ----------
    max_iterations
        An iteration evaluates a block of up to 2^14 labellings; the bound is only known after all of them.
    max_labellings
        Models with more labellings than this are refused.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(3, 4, coupling=2.0), "exhaustive")
    >>> result.status.value, result.bound == result.value
    ('optimal', True)
    >>> mapmrf.solve(grid(6, 6), "exhaustive")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    mapmrf.errors.UnsupportedModel: exhaustive cannot solve this model: it has 68719476736 labellings, more than ...
    """

    name: ClassVar[str] = "exhaustive"
    title: ClassVar[str] = "exhaustive search over all labellings of a small model"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    max_labellings: int = 2**24

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "max_labellings")

    def supports(self, problem: Problem) -> str | None:
        """Refuse a model with too many labellings."""
        log10 = float(np.log10(problem.graph.card).sum())  # the number itself may have a million digits
        size = f"{math.prod(problem.graph.card.tolist())}" if log10 < 15 else f"about 10^{log10:.0f}"
        if log10 < 15 and int(size) <= self.max_labellings:
            return None
        return f"it has {size} labellings, more than max_labellings = {self.max_labellings}"

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Choose the variables at the end that are enumerated at once."""
        free = np.flatnonzero(problem.graph.card > 1)
        card = problem.graph.card[free]
        size, n_inner = 1, 0
        while n_inner < len(free) and (n_inner == 0 or size * card[-1 - n_inner] <= BLOCK):
            size *= int(card[-1 - n_inner])
            n_inner += 1
        n_outer = len(free) - n_inner
        return _State(
            inner=free[n_outer:],
            outer=free[:n_outer],
            n_blocks=math.prod(card[:n_outer].tolist()),
            terms=[(problem.graph.scope_of(a), problem.graph.table(a)) for a in range(problem.n_factors)],
            labels=np.zeros(problem.n_vars, dtype=np.int64),
            best=np.zeros(problem.n_vars, dtype=np.int64),
        )

    def step(self, problem: Problem, state: _State) -> Progress:
        """Evaluate blocks of labellings for a few hundredths of a second."""
        end = time.perf_counter() + STEP_SECONDS
        while state.done < min(state.n_blocks, self.max_iterations) and time.perf_counter() < end:
            state.search_block(problem)
        if state.done < state.n_blocks:
            return Progress(state.done, labels=state.best.copy(), value=state.value)
        finished = Status.INFEASIBLE if state.value == -math.inf else Status.OPTIMAL
        bound = problem.graph.value(state.best)  # the same sum, in the order of the value it is compared with
        return Progress(state.done, labels=state.best.copy(), bound=bound, finished=finished)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling so far."""
        return Answer(labels=state.best)


@dataclass
class _State:
    """A run: which variables are enumerated at once (`inner`), and how many blocks of them are done."""

    inner: Ints
    outer: Ints
    n_blocks: int
    terms: list[tuple[Ints, Floats]]
    labels: Ints
    best: Ints
    value: float = -math.inf
    done: int = 0

    def search_block(self, problem: Problem) -> None:
        """Evaluate all labellings of the inner variables under the next labelling of the outer ones."""
        graph = problem.graph
        self.labels[self.outer] = _digits(self.done, graph.card[self.outer])
        values = np.full(tuple(graph.card[self.inner]), graph.constant)
        for i in range(graph.n_vars):
            values += self.slice_of(np.array([i]), graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
        for scope, table in self.terms:
            values += self.slice_of(scope, table)
        place = int(values.argmax())
        if values.flat[place] > self.value:
            self.value = float(values.flat[place])
            self.best[self.outer] = self.labels[self.outer]
            self.best[self.inner] = _digits(place, graph.card[self.inner])
        self.done += 1

    def slice_of(self, scope: Ints, table: Floats) -> Floats:
        """A table at the outer labels, with an axis for every inner variable (of length 1 outside the scope)."""
        axis = np.searchsorted(self.inner, scope)
        is_inner = np.isin(scope, self.inner)
        at = tuple(slice(None) if free else int(self.labels[i]) for i, free in zip(scope, is_inner, strict=True))
        part = np.asarray(table[at])
        order = np.argsort(axis[is_inner])
        shape = np.ones(len(self.inner), dtype=np.int64)
        shape[axis[is_inner]] = part.shape
        return part.transpose(order).reshape(shape)


def _digits(number: int, card: Ints) -> Ints:
    """The labels of a variable list in the labelling of a given rank, last variable fastest."""
    labels = np.zeros(len(card), dtype=np.int64)
    for k in range(len(card) - 1, -1, -1):
        number, labels[k] = divmod(number, int(card[k]))
    return labels
