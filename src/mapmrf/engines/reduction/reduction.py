"""Set up a draft of a model, let the kernels reduce it, and write down what is left of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.engines.reduction.dominance_kernels import CANDIDATES
from mapmrf.engines.reduction.draft_kernels import (
    BUDGET,
    CHOICES,
    FEASIBLE,
    LOG_SCOPE,
    LOGGED,
    N_TALLY,
    QUEUED,
    Draft,
    Log,
    set_up,
)
from mapmrf.engines.reduction.reduction_kernels import Scratch, reduce_draft
from mapmrf.engines.reduction.rewriting_kernels import find_places, measure, replay, share_equal, write_tables
from mapmrf.graph import FactorGraph
from mapmrf.problem import Problem

PASSES = 10
"""Table entries that may be looked at, in passes over the model's tables from all of their variables."""

LEAST_WORK, MOST_WORK = 1_000_000, 200_000_000
"""Limits of that number: some milliseconds, and some tenths of a second."""

MOST_ROWS = 1 << 22
"""Table entries around one variable up to which its states are compared."""

TIMES_MADE, LEAST_MADE, MOST_MADE = 4, 1 << 16, 1 << 25
"""Entries of tables that elimination may make: so many times those of the model, and the limits of that number."""

LEAST_SHARE = 1e-3
"""Share of the states that must have gone: for less a model is not written anew."""


@dataclass(frozen=True, eq=False)
class Step:
    """How the labellings of a model and of a smaller one with the same optimum belong together.

    Attributes
    ----------
    kept : (n_vars of the smaller,)
        The variables of the larger model that are left.
    state, state_ptr
        The state in the larger model that each state of each of them is.
    place
        Where among the states left to its variable the one is that stands for a state of a variable kept.
    var_ptr
        Offsets of the larger model's states.
    labels : (n_vars of the larger,)
        The labels of variables that have been fixed.
    eliminated
        The variables that have been maximised out.
    """

    kept: Ints
    state: Ints
    state_ptr: Ints
    place: Ints
    var_ptr: Ints
    labels: Ints
    eliminated: Log | None = None

    def whole(self, labels: Ints) -> Ints:
        """A labelling of the smaller model as one of the larger."""
        result = self.labels.copy()
        result[self.kept] = self.state[self.state_ptr[:-1] + labels]
        if self.eliminated is not None:
            replay(self.eliminated, result)
        return result

    def part(self, labels: Ints) -> Ints:
        """A labelling of the larger model as one of the smaller."""
        return np.asarray(self.place[self.var_ptr[self.kept] + labels[self.kept]])


class Reduction:
    """A model after the kernels have reduced it.

    Attributes
    ----------
    feasible
        False if some variable has no state left.
    worthwhile
        Whether so much has gone that the smaller model should be written down.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem, self._draft = problem, _draft(problem)
        self._log = _log(problem)
        set_up(self._draft)
        reduce_draft(self._draft, self._log, _scratch(problem))
        self._kept = np.flatnonzero(~self._draft.gone)
        self.feasible = bool(self._draft.tally[FEASIBLE] == 1)
        n_gone = problem.n_states - int(self._draft.n_alive[self._kept].sum())
        self.worthwhile = n_gone > LEAST_SHARE * problem.n_states

    def smaller(self) -> Problem:
        """What is left, as a model of its own."""
        return Problem.compile(_written(self._problem, self._draft, self._kept), threads=self._problem.threads)

    def step(self) -> Step:
        """The way between the two models."""
        return _step(self._draft, self._log, self._kept)


def _draft(problem: Problem) -> Draft:
    """The whole model as a draft, every variable in the queue; arrays that are not copied are filled later."""
    graph = problem.graph
    n, n_factors, n_edges = problem.n_vars, problem.n_factors, problem.n_edges
    tally = np.zeros(N_TALLY, dtype=np.int64)
    tally[QUEUED], tally[FEASIBLE], tally[BUDGET] = n, 1, _budget(problem)
    return Draft(
        var_ptr=graph.var_ptr.astype(np.int64),
        theta_v=graph.theta_v.copy(),
        n_alive=np.empty(n, dtype=np.int64),
        alive=np.empty(problem.n_states, dtype=np.int32),
        stand_in=np.empty(problem.n_states, dtype=np.int32),
        gone=np.zeros(n, dtype=np.bool_),
        scope_ptr=problem.scope_ptr.astype(np.int64),
        arity=np.empty(n_factors, dtype=np.int64),
        table_at=problem.table_at.astype(np.int64),
        scope=problem.scope.astype(np.int64),
        stride=np.empty(n_edges, dtype=np.int64),
        factor_of=np.empty(n_edges, dtype=np.int64),
        where=np.empty(n_edges, dtype=np.int64),
        nbr_ptr=problem.nbr_ptr.astype(np.int64),
        degree=np.empty(n, dtype=np.int64),
        nbr=np.empty(n_edges, dtype=np.int64),
        queue=np.empty(n, dtype=np.int64),
        queued=np.ones(n, dtype=np.bool_),
        theta_t=graph.theta_t,
        pool=np.empty(_room(problem)),
        constant=np.array([graph.constant]),
        tally=tally,
    )


def _log(problem: Problem) -> Log:
    """Room for the elimination of all variables; what is not used is never touched and takes no memory."""
    n, widest = problem.n_vars, int(np.diff(problem.scope_ptr).max(initial=1))
    return Log(
        var=np.empty(n, dtype=np.int64),
        ptr=np.zeros(n + 1, dtype=np.int64),
        scope=np.empty(n * widest, dtype=np.int64),
        stride=np.empty(n * widest, dtype=np.int64),
        at=np.empty(n, dtype=np.int64),
        choice=np.empty(problem.n_edge_states + n + _room(problem), dtype=np.int32),
    )


def _room(problem: Problem) -> int:
    """Entries of tables that elimination may make."""
    return min(max(TIMES_MADE * problem.n_configs, LEAST_MADE), MOST_MADE)


def _budget(problem: Problem) -> int:
    """Table entries that may be looked at."""
    once = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
    return min(max(PASSES * once, LEAST_WORK), MOST_WORK)


def _scratch(problem: Problem) -> Scratch:
    """Room for the largest surroundings of a variable."""
    card = problem.graph.card
    arity = int(np.diff(problem.scope_ptr).max(initial=1))
    degree = int(problem.degree.max(initial=0)) + 1
    n_states = int(card.max(initial=1))
    return Scratch(
        rows=np.empty(_most_rows(problem)),
        row_at=np.empty(degree, dtype=np.int64),
        width=np.empty(degree, dtype=np.int64),
        best=np.empty(int((problem.degree * card).max(initial=1))),
        score=np.empty(n_states),
        verdict=np.empty(n_states, dtype=np.int64),
        chosen=np.empty(CANDIDATES, dtype=np.int64),
        digit=np.empty(arity, dtype=np.int64),
        around=np.empty(arity, dtype=np.int64),
        marked=np.zeros(problem.n_vars, dtype=np.bool_),
        step=np.empty(arity, dtype=np.int64),
        member=np.empty(degree, dtype=np.int64),
        base=np.empty(degree, dtype=np.int64),
        own=np.empty(degree, dtype=np.int64),
        jump=np.empty((degree, arity), dtype=np.int64),
    )


def _most_rows(problem: Problem) -> int:
    """Entries of all tables around one variable, at most."""
    total = np.zeros(problem.n_vars)
    for batch in problem.batches:
        total += batch.n_configs * np.bincount(batch.scope.ravel(), minlength=problem.n_vars)
    return int(min(total.max(initial=0), MOST_ROWS))


def _step(draft: Draft, log: Log, kept: Ints) -> Step:
    """The way between a model and what is left of it in a draft."""
    count = draft.n_alive[kept]
    place = np.empty(len(draft.alive), dtype=np.int64)
    find_places(draft, place)
    n, n_scope = int(draft.tally[LOGGED]), int(draft.tally[LOG_SCOPE])
    eliminated = Log(
        var=log.var[:n].copy(),
        ptr=log.ptr[: n + 1].copy(),
        scope=log.scope[:n_scope].copy(),
        stride=log.stride[:n_scope].copy(),
        at=log.at[:n].copy(),
        choice=log.choice[: draft.tally[CHOICES]].copy(),
    )
    return Step(
        kept=kept,
        state=draft.alive[ranges(draft.var_ptr[kept], count)].astype(np.int64),
        state_ptr=offsets(count),
        place=place,
        var_ptr=draft.var_ptr,
        labels=draft.alive[draft.var_ptr[:-1]].astype(np.int64),
        eliminated=eliminated if n else None,
    )


def _written(problem: Problem, draft: Draft, kept: Ints) -> FactorGraph:
    """What is left of a draft as a model; tables that are as they were stay shared, and equal new ones become so."""
    size, changed = np.empty(problem.n_factors, dtype=np.int64), np.empty(problem.n_factors, dtype=np.bool_)
    measure(draft, problem.table_at, size, changed)
    live = np.flatnonzero(size > 0)
    number = np.full(problem.n_vars, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    count, arity = draft.n_alive[kept], draft.arity[live]
    states = draft.alive[ranges(draft.var_ptr[kept], count)] + np.repeat(draft.var_ptr[kept], count)
    table_of, table_ptr, theta_t = _tables(problem, draft, live, size[live], changed[live])
    return FactorGraph(
        card=count,
        theta_v=draft.theta_v[states],
        scope_ptr=offsets(arity),
        scope=short(number[draft.scope[ranges(draft.scope_ptr[live], arity)]]),
        table_of=short(table_of),
        table_ptr=table_ptr,
        theta_t=theta_t,
        constant=float(draft.constant[0]),
    )


def _tables(problem: Problem, draft: Draft, live: Ints, size: Ints, changed: Bools) -> tuple[Ints, Ints, Floats]:
    """The tables of the live factors: which each has, their offsets, and all entries."""
    graph = problem.graph
    given = (graph.table_of if problem.sorted_by is None else graph.table_of[problem.sorted_by])[live[~changed]]
    used = np.zeros(graph.n_tables, dtype=np.bool_)
    used[given] = True
    name = np.cumsum(used) - 1
    old = np.flatnonzero(used)
    sizes = np.diff(graph.table_ptr)[old]
    ptr = offsets(size[changed])
    entries = np.empty(int(ptr[-1]))
    digit = np.empty(int(draft.arity.max(initial=1)), dtype=np.int64)
    write_tables(draft, live[changed], ptr.astype(np.int64), digit, entries)
    of, first = _distinct(ptr.astype(np.int64), entries)
    table_of = np.empty(len(live), dtype=np.int64)
    table_of[~changed] = name[given]
    table_of[changed] = len(old) + of
    made = size[changed][first]
    theta_t = np.concatenate([graph.theta_t[ranges(graph.table_ptr[old], sizes)], entries[ranges(ptr[first], made)]])
    return table_of, offsets(np.concatenate([sizes, made])), theta_t


def _distinct(ptr: Ints, entries: Floats) -> tuple[Ints, Ints]:
    """Which of the distinct blocks every block is, and where each of those comes first."""
    n = len(ptr) - 1
    slot = np.full(1 << (2 * n).bit_length(), -1, dtype=np.int64)
    of, first = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    n_distinct = share_equal(ptr, entries.view(np.int64), slot, of, first)
    return of, first[:n_distinct]
