"""Let the kernels reduce a copy of a model, and write what is left as a model of its own."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.engines.reduction.dominance_kernels import CANDIDATES, ComparisonScratch
from mapmrf.engines.reduction.reducible_kernels import COUNTERS, EliminationLog, ReducibleModel, set_up
from mapmrf.engines.reduction.reduction_kernels import MessageScratch, reduce_model
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
"""Share of the states that must have gone, or the smaller model is not worth writing."""


@dataclass(frozen=True)
class ReductionCounts:
    """What has been taken out of a model, by reason.

    Attributes
    ----------
    states_forbidden
        States that hard constraints exclude.
    states_dominated
        States that another one is at least as good as.
    states_persistent
        States that a bound excludes, see `mapmrf.engines.reduction.persistency`.
    variables_fixed
        Variables with one state left.
    variables_eliminated
        Variables that were maximised out, one by one.
    variables_solved
        Variables of components that were solved by themselves.
    """

    states_forbidden: int = 0
    states_dominated: int = 0
    states_persistent: int = 0
    variables_fixed: int = 0
    variables_eliminated: int = 0
    variables_solved: int = 0

    def details(self) -> dict[str, float]:
        """The numbers that are not 0, for the details of a result."""
        return {name: float(count) for name, count in asdict(self).items() if count}


@dataclass(frozen=True, eq=False)
class LabelMap:
    """How the labellings of a model and of a smaller one with the same optimum correspond.

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
    eliminated: EliminationLog | None = None

    def lift(self, labels: Ints) -> Ints:
        """A labelling of the smaller model as one of the larger."""
        result = self.labels.copy()
        result[self.kept] = self.state[self.state_ptr[:-1] + labels]
        if self.eliminated is not None:
            replay(self.eliminated, result)
        return result

    def project(self, labels: Ints) -> Ints:
        """A labelling of the larger model as one of the smaller."""
        return np.asarray(self.place[self.var_ptr[self.kept] + labels[self.kept]])


class Reduction:
    """A model that the kernels reduce, in as many calls of `advance` as it takes.

    Parameters
    ----------
    problem
        The model.
    excluded : (n_states,)
        States that are known to be in no labelling of interest, and are dropped first.

    Attributes
    ----------
    feasible
        At the end: False if some variable has no state left.
    worthwhile
        At the end: whether enough has gone that the smaller model is worth writing.
    """

    def __init__(self, problem: Problem, excluded: Bools | None = None) -> None:
        self._problem, self._model = problem, _reducible(problem)
        self._n_excluded = 0
        if excluded is not None:
            self._n_excluded = int(np.count_nonzero(excluded & problem.feasible_v))
            self._model.theta_v[excluded] = -np.inf
        self._log = _log(problem)
        set_up(self._model)
        self._rooms = _comparison_scratch(problem), _message_scratch(problem)

    def advance(self, max_work: int = MOST_WORK) -> bool:
        """Reduce by about so much work, in table entries; whether it has ended."""
        ended = reduce_model(self._model, self._log, *self._rooms, max_work)
        if ended:
            self._measure(self._problem)
        return bool(ended)

    def _measure(self, problem: Problem) -> None:
        """See what is left at the end."""
        self._kept = np.flatnonzero(~self._model.gone)
        self.feasible = bool(self._model.counters[0].feasible)
        n_gone = problem.n_states - int(self._model.n_alive[self._kept].sum())
        self.worthwhile = n_gone > LEAST_SHARE * problem.n_states

    def counts(self) -> ReductionCounts:
        """What has gone, by reason."""
        counters = self._model.counters[0]
        return ReductionCounts(
            states_forbidden=int(counters.n_impossible) - self._n_excluded,
            states_dominated=int(counters.n_dominated),
            states_persistent=self._n_excluded,
            variables_fixed=int(counters.n_fixed),
            variables_eliminated=int(counters.n_logged),
        )

    def smaller(self) -> Problem:
        """What is left, as a model of its own."""
        problem = self._problem
        return Problem.compile(_written(problem, self._model, self._kept), problem.threads, problem.memory)

    def label_map(self) -> LabelMap:
        """How the labellings of the two models correspond."""
        return _label_map(self._model, self._log, self._kept)


def _reducible(problem: Problem) -> ReducibleModel:
    """A copy of the model with every variable in the queue; arrays that are not copied are filled later."""
    graph = problem.graph
    n, n_factors, n_edges = problem.n_vars, problem.n_factors, problem.n_edges
    counters = np.zeros(1, dtype=COUNTERS).view(np.recarray)
    counters.n_queued, counters.budget = n, _budget(problem)
    counters.constant, counters.feasible = graph.constant, True
    return ReducibleModel(
        var_ptr=graph.var_ptr.astype(np.int64),
        theta_v=graph.theta_v.copy(),
        n_alive=np.empty(n, dtype=np.int64),
        alive=np.empty(problem.n_states, dtype=np.int32),
        stand_in=np.empty(problem.n_states, dtype=np.int32),
        gone=np.zeros(n, dtype=np.bool_),
        scope_ptr=problem.scope_ptr.astype(np.int64),
        arity=np.empty(n_factors, dtype=np.int64),
        table_at=problem.table_at.astype(np.int64),
        weight=problem.weight.copy(),
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
        counters=counters,
    )


def _log(problem: Problem) -> EliminationLog:
    """Room for the elimination of all variables; what is not used is never touched and takes no memory."""
    n, widest = problem.n_vars, int(np.diff(problem.scope_ptr).max(initial=1))
    return EliminationLog(
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


def _comparison_scratch(problem: Problem) -> ComparisonScratch:
    """Room for the tables around any variable."""
    card, degree = problem.graph.card, int(problem.degree.max(initial=0))
    n_states = int(card.max(initial=1))
    return ComparisonScratch(
        rows=np.empty(_most_rows(problem)),
        row_at=np.empty(degree, dtype=np.int64),
        width=np.empty(degree, dtype=np.int64),
        best=np.empty(int((problem.degree * card).max(initial=1))),
        score=np.empty(n_states),
        verdict=np.empty(n_states, dtype=np.int64),
        chosen=np.empty(CANDIDATES, dtype=np.int64),
        digit=np.empty(int(np.diff(problem.scope_ptr).max(initial=1)), dtype=np.int64),
    )


def _message_scratch(problem: Problem) -> MessageScratch:
    """Room for the message of any variable."""
    arity = int(np.diff(problem.scope_ptr).max(initial=1))
    n_members = int(problem.degree.max(initial=0)) + 1
    return MessageScratch(
        digit=np.empty(arity, dtype=np.int64),
        around=np.empty(arity, dtype=np.int64),
        marked=np.zeros(problem.n_vars, dtype=np.bool_),
        step=np.empty(arity, dtype=np.int64),
        member=np.empty(n_members, dtype=np.int64),
        base=np.empty(n_members, dtype=np.int64),
        own=np.empty(n_members, dtype=np.int64),
        jump=np.empty((n_members, arity), dtype=np.int64),
    )


def _most_rows(problem: Problem) -> int:
    """Entries of all tables around one variable, at most."""
    total = np.zeros(problem.n_vars)
    for batch in problem.batches:
        total += batch.n_configs * np.bincount(batch.scope.ravel(), minlength=problem.n_vars)
    return int(min(total.max(initial=0), MOST_ROWS))


def _label_map(model: ReducibleModel, log: EliminationLog, kept: Ints) -> LabelMap:
    """How the labellings of a model and of what is left of it correspond."""
    count = model.n_alive[kept]
    place = np.empty(len(model.alive), dtype=np.int64)
    find_places(model, place)
    counters = model.counters[0]
    n, n_scope = int(counters.n_logged), int(counters.log_scope)
    eliminated = EliminationLog(
        var=log.var[:n].copy(),
        ptr=log.ptr[: n + 1].copy(),
        scope=log.scope[:n_scope].copy(),
        stride=log.stride[:n_scope].copy(),
        at=log.at[:n].copy(),
        choice=log.choice[: counters.n_choices].copy(),
    )
    return LabelMap(
        kept=kept,
        state=model.alive[ranges(model.var_ptr[kept], count)].astype(np.int64),
        state_ptr=offsets(count),
        place=place,
        var_ptr=model.var_ptr,
        labels=model.alive[model.var_ptr[:-1]].astype(np.int64),
        eliminated=eliminated if n else None,
    )


def _written(problem: Problem, model: ReducibleModel, kept: Ints) -> FactorGraph:
    """What is left, as a model of its own; tables that did not change stay shared, and equal new ones become shared.

    Factors keep their weights: a table that has lost states is written without them.
    """
    size, changed = np.empty(problem.n_factors, dtype=np.int64), np.empty(problem.n_factors, dtype=np.bool_)
    measure(model, problem.table_at, size, changed)
    live = np.flatnonzero(size > 0)
    number = np.full(problem.n_vars, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    count, arity = model.n_alive[kept], model.arity[live]
    states = model.alive[ranges(model.var_ptr[kept], count)] + np.repeat(model.var_ptr[kept], count)
    table_of, table_ptr, theta_t = _tables(problem, model, live, size[live], changed[live])
    return FactorGraph(
        card=count,
        theta_v=model.theta_v[states],
        scope_ptr=offsets(arity),
        scope=short(number[model.scope[ranges(model.scope_ptr[live], arity)]]),
        table_of=short(table_of),
        table_ptr=table_ptr,
        theta_t=theta_t,
        constant=float(model.counters[0].constant),
        weight=_weights(model.weight[live]) if len(model.weight) else None,
    )


def _weights(weight: Floats) -> Floats | None:
    """The weights, or None if all are 1."""
    return None if np.all(weight == 1.0) else weight


def _tables(
    problem: Problem, model: ReducibleModel, live: Ints, size: Ints, changed: Bools
) -> tuple[Ints, Ints, Floats]:
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
    digit = np.empty(int(model.arity.max(initial=1)), dtype=np.int64)
    write_tables(model, live[changed], ptr.astype(np.int64), digit, entries)
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
