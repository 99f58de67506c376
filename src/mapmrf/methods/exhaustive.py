"""Exhaustive search: every labelling of a small model."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints import Constraints
from mapmrf.constraints.as_tables import Automaton, worth_of
from mapmrf.constraints.flat import OUTPUT, PARITY, WITHIN
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start
from mapmrf.run.result import Status

BLOCK = 2**14  # maximum number of labellings evaluated at once
STEP_SECONDS = 0.03  # seconds after which a step returns to the loop


@dataclass(frozen=True)
class Exhaustive(Method):
    """Evaluate every labelling; among several optima, return the first in lexicographic order.

    Attributes
    ----------
    max_iterations
        Maximum number of blocks, each of up to 2^14 labellings; the bound is known only after all of them.
    max_labellings
        Models with more labellings than this are rejected.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(3, 4, coupling=2.0), "exhaustive")
    >>> result.status.value, result.bound == result.value
    ('optimal', True)
    >>> mapmrf.solve(mapmrf.datasets.grid(6, 6), "exhaustive")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    mapmrf.errors.UnsupportedModel: exhaustive cannot solve this model: it has 68719476736 labellings, more than ...
    """

    name: ClassVar[str] = "exhaustive"
    title: ClassVar[str] = "exhaustive search over all labellings, small models"
    family: ClassVar[str] = "exact"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True
    native_automata: ClassVar[bool] = True

    max_iterations: PositiveInt = sys.maxsize
    max_labellings: PositiveInt = 2**24

    def supports(self, problem: Problem) -> str | None:
        log10 = float(np.log10(problem.graph.card).sum())  # the number itself may have a million digits
        size = f"{math.prod(problem.graph.card.tolist())}" if log10 < 15 else f"about 10^{log10:.0f}"
        if log10 < 15 and int(size) <= self.max_labellings:
            return None
        return f"it has {size} labellings, more than max_labellings = {self.max_labellings}"

    def start(self, problem: Problem, seed: int, initial: Start) -> Enumeration:
        return Enumeration(problem.graph)

    def step(self, problem: Problem, state: Enumeration) -> Progress:
        end = time.perf_counter() + STEP_SECONDS
        while state.done < min(state.n_blocks, self.max_iterations) and time.perf_counter() < end:
            state.search_block()
        if state.done < state.n_blocks:
            return Progress(state.done, labels=state.best.labels, value=state.best.value)
        finished = Status.INFEASIBLE if state.best.value == -math.inf else Status.OPTIMAL
        return Progress(state.done, labels=state.best.labels, bound=state.best.value, finished=finished)

    def answer(self, problem: Problem, state: Enumeration) -> Answer:
        return Answer(labels=state.best.labels)


class Enumeration:
    """All labellings of a model in lexicographic order, block by block.

    A block holds all labellings of the inner variables, the last ones, under one labelling of the outer variables.
    """

    def __init__(self, graph: FactorGraph, block: int = BLOCK) -> None:
        free = np.flatnonzero(graph.card > 1)
        card = graph.card[free]
        size, n_inner = 1, 0
        while n_inner < len(free) and (n_inner == 0 or size * card[-1 - n_inner] <= block):
            size *= int(card[-1 - n_inner])
            n_inner += 1
        n_outer = len(free) - n_inner
        # inner, outer: the variables that have more than one state
        self.graph, self.inner, self.outer = graph, free[n_outer:], free[:n_outer]
        # n_blocks, done: number of blocks, and blocks evaluated so far
        self.n_blocks, self.done = math.prod(card[:n_outer].tolist()), 0
        self.labels = np.zeros(graph.n_vars, dtype=np.int64)
        self.best = Incumbent(graph, self.labels)  # the first of the best labellings so far
        self._terms = [(graph.scope_of(a), graph.table(a)) for a in range(graph.n_factors)]
        self._automata: list[Automaton] = []
        if (limits := graph.constraints) is not None:
            some = np.flatnonzero(limits.by_automaton).tolist()
            self._automata = [limits.kind_of(c).automaton(limits, c, graph.card) for c in some]

    def search_block(self) -> None:
        graph = self.graph
        self.labels[self.outer] = _digits(self.done, graph.card[self.outer])
        values = np.full(tuple(graph.card[self.inner]), graph.constant)
        for i in range(graph.n_vars):
            values += self._slice(np.array([i]), graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]])
        for scope, table in self._terms:
            values += self._slice(scope, table)
        if graph.constraints is not None:
            for automaton in self._automata:
                values += self._read(automaton)
            counted = (graph.constraints.penalty > 0) & ~graph.constraints.by_automaton
            for c in np.flatnonzero(counted).tolist():
                values = np.where(self._violated(graph.constraints, c), values - graph.constraints.penalty[c], values)
        place = int(values.argmax())
        self.labels[self.inner] = _digits(place, graph.card[self.inner])
        self.best.offer(self.labels, float(values.flat[place]))
        self.done += 1

    def _read(self, automaton: Automaton) -> Floats:
        """Return what an automaton makes of the labellings of the block."""
        counts = np.zeros(tuple(self.graph.card[self.inner]), dtype=np.int64)
        values = np.zeros(counts.shape)
        for step, (i, move) in enumerate(zip(automaton.variables, automaton.moves, strict=True)):
            labels = self._slice(np.array([i]), np.arange(self.graph.card[i]))
            if automaton.gains is not None:
                values += automaton.gains[step][np.maximum(counts, 0), labels]
            counts = np.where(counts < 0, -1, move[np.maximum(counts, 0), labels])
        return values + worth_of(counts, automaton.final)

    def _violated(self, constraints: Constraints, c: int) -> Bools:
        """Mark the labellings of the block that violate a constraint."""
        shape = tuple(self.graph.card[self.inner])
        bad = np.zeros(shape, dtype=bool)
        for row in constraints.kind_of(c).sums(constraints, c, self.graph.card):
            end = len(row.var) - (row.condition == OUTPUT)
            total = self._sum(row.var[:end], row.state[:end], row.weight[:end])
            if row.condition == WITHIN:
                bad |= (total < row.least) | (total > row.most)
            elif row.condition == PARITY:
                bad |= total % 2 != row.least
            else:
                bad |= (total > 0) != (self._sum(row.var[end:], row.state[end:], row.weight[end:]) > 0)
        return bad

    def _sum(self, var: Ints, state: Ints, weight: Floats) -> Floats:
        """Return the sums of the weights of indicators that are 1, by labelling of the block."""
        sums = np.zeros(tuple(self.graph.card[self.inner]))
        for i in np.unique(var):
            gain = np.bincount(state[var == i], weight[var == i], self.graph.card[i])
            sums += self._slice(np.array([i]), gain)
        return sums

    def _slice(self, scope: Ints, table: NDArray[Any]) -> NDArray[Any]:
        """Return a table at the outer labels, with one axis per inner variable (of length 1 outside the scope)."""
        axis = np.searchsorted(self.inner, scope)
        is_inner = np.isin(scope, self.inner)
        at = tuple(slice(None) if free else int(self.labels[i]) for i, free in zip(scope, is_inner, strict=True))
        part = np.asarray(table[at])
        order = np.argsort(axis[is_inner])
        shape = np.ones(len(self.inner), dtype=np.int64)
        shape[axis[is_inner]] = part.shape
        return part.transpose(order).reshape(shape)


def _digits(number: int, card: Ints) -> Ints:
    """Return the labels of some variables in the labelling of a given rank, last variable fastest."""
    labels = np.zeros(len(card), dtype=np.int64)
    for k in range(len(card) - 1, -1, -1):
        number, labels[k] = divmod(number, int(card[k]))
    return labels
