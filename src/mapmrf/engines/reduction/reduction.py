"""Reduction of a copy of a model by the kernels, and construction of the reduced model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.engines.reduction.dominance_kernels import CANDIDATES, ComparisonScratch
from mapmrf.engines.reduction.reducible_kernels import COUNTERS, EliminationLog, ReducibleModel, set_up
from mapmrf.engines.reduction.reduction_kernels import MessageScratch, reduce_model
from mapmrf.engines.reduction.rewriting_kernels import find_places, measure, replay, share_equal, write_tables
from mapmrf.model.builders import FactorLists, one_shape_each
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

PASSES = 10
"""Work limit, in passes over the model's tables from all of their variables."""

LEAST_WORK, MOST_WORK = 1_000_000, 200_000_000
"""Limits on that work in table entries: some milliseconds, and some tenths of a second."""

MOST_ROWS = 1 << 22
"""Maximum number of table entries around one variable for which its states are compared."""

TIMES_MADE, LEAST_MADE, MOST_MADE = 4, 1 << 16, 1 << 25
"""Table entries that elimination may create: this multiple of those of the model, and limits on that."""

LEAST_SHARE = 1e-3
"""Minimum share of the states that must be removed for the reduced model to be built."""


@dataclass(frozen=True)
class ReductionCounts:
    """What has been removed from a model, by reason.

    Attributes
    ----------
    states_forbidden
        States excluded by hard constraints.
    states_dominated
        States dominated by another one.
    states_persistent
        States excluded by a bound, see `mapmrf.engines.reduction.persistency`.
    variables_fixed
        Variables with one state left.
    variables_eliminated
        Variables that were maximised out individually.
    variables_solved
        Variables of components that were solved separately.
    """

    states_forbidden: int = 0
    states_dominated: int = 0
    states_persistent: int = 0
    variables_fixed: int = 0
    variables_eliminated: int = 0
    variables_solved: int = 0

    def details(self) -> dict[str, float]:
        """The non-zero counts, for the details of a result."""
        return {name: float(count) for name, count in asdict(self).items() if count}


@dataclass(frozen=True, eq=False)
class LabelMap:
    """Mapping between labellings of a model and of a reduced one with the same optimum.

    Attributes
    ----------
    kept : (n_vars of the smaller,)
        The remaining variables of the larger model.
    state, state_ptr
        The state in the larger model of each state of the smaller one.
    place
        For each state of a remaining variable, the index of its replacement among the remaining states.
    var_ptr
        Offsets of the larger model's states.
    labels : (n_vars of the larger,)
        The labels of fixed variables.
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
        """Map a labelling of the smaller model to the larger one."""
        result = self.labels.copy()
        result[self.kept] = self.state[self.state_ptr[:-1] + labels]
        if self.eliminated is not None:
            replay(self.eliminated, result)
        return result

    def project(self, labels: Ints) -> Ints:
        """Map a labelling of the larger model to the smaller one."""
        return np.asarray(self.place[self.var_ptr[self.kept] + labels[self.kept]])


class Reduction:
    """A model under reduction, over any number of calls of `advance`.

    Parameters
    ----------
    problem
        The model.
    excluded : (n_states,)
        States known to be in no labelling of interest, which are removed first.

    Attributes
    ----------
    feasible
        At the end: False if some variable has no state left.
    worthwhile
        At the end: whether enough was removed for the reduced model to be built.
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
        """Reduce for about this much work, in table entries; return whether the reduction is complete."""
        ended = reduce_model(self._model, self._log, *self._rooms, max_work)
        if ended:
            self._measure(self._problem)
        return bool(ended)

    def _measure(self, problem: Problem) -> None:
        """Evaluate what is left at the end."""
        self._kept = np.flatnonzero(~self._model.gone)
        self.feasible = bool(self._model.counters[0].feasible)
        n_gone = problem.n_states - int(self._model.n_alive[self._kept].sum())
        self.worthwhile = n_gone > LEAST_SHARE * problem.n_states

    def counts(self) -> ReductionCounts:
        """What has been removed, by reason."""
        counters = self._model.counters[0]
        return ReductionCounts(
            states_forbidden=int(counters.n_impossible) - self._n_excluded,
            states_dominated=int(counters.n_dominated),
            states_persistent=self._n_excluded,
            variables_fixed=int(counters.n_fixed),
            variables_eliminated=int(counters.n_logged),
        )

    def smaller(self) -> Problem:
        """Build the reduced model."""
        problem = self._problem
        return Problem.compile(_written(problem, self._model, self._kept), problem.threads, problem.memory)

    def label_map(self) -> LabelMap:
        """Return the mapping between labellings of the two models."""
        return _label_map(self._model, self._log, self._kept)


def _reducible(problem: Problem) -> ReducibleModel:
    """Return a copy of the model with every variable queued; arrays that are not copied are filled later."""
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
    """Allocate a log for the elimination of all variables; unused parts are never touched and take no memory."""
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
    """Return the number of table entries that elimination may create."""
    return min(max(TIMES_MADE * problem.n_configs, LEAST_MADE), MOST_MADE)


def _budget(problem: Problem) -> int:
    """Return the work limit, in table entries."""
    once = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
    return min(max(PASSES * once, LEAST_WORK), MOST_WORK)


def _comparison_scratch(problem: Problem) -> ComparisonScratch:
    """Allocate scratch for the tables around any variable."""
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
    """Allocate scratch for the message of any variable."""
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
    """Return the maximum number of table entries around one variable."""
    total = np.zeros(problem.n_vars)
    for batch in problem.batches:
        total += batch.n_configs * np.bincount(batch.scope.ravel(), minlength=problem.n_vars)
    return int(min(total.max(initial=0), MOST_ROWS))


def _label_map(model: ReducibleModel, log: EliminationLog, kept: Ints) -> LabelMap:
    """Return the mapping between labellings of a model and of its reduction."""
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
    """Build the reduced model; unchanged tables stay shared, and equal new ones become shared.

    Factors keep their weights; tables that have lost states are written without the weights.
    """
    size, changed = np.empty(problem.n_factors, dtype=np.int64), np.empty(problem.n_factors, dtype=np.bool_)
    measure(model, problem.table_at, size, changed)
    live = np.flatnonzero(size > 0)
    number = np.full(problem.n_vars, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    count, arity = model.n_alive[kept], model.arity[live]
    states = model.alive[ranges(model.var_ptr[kept], count)] + np.repeat(model.var_ptr[kept], count)
    scope = short(number[model.scope[ranges(model.scope_ptr[live], arity)]])
    table_of, table_ptr, theta_t = _tables(problem, model, live, size[live], changed[live])
    lists = one_shape_each(FactorLists(count, offsets(arity), scope, short(table_of), table_ptr, theta_t))
    weight = model.weight[live] if len(model.weight) else None
    return FactorGraph(
        card=count,
        theta_v=model.theta_v[states],
        scope_ptr=lists.scope_ptr,
        scope=lists.scope,
        table_of=lists.table_of,
        table_ptr=lists.table_ptr,
        theta_t=lists.theta_t,
        constant=float(model.counters[0].constant),
        weight=None if weight is None or np.all(weight == 1.0) else weight,
    )


def _tables(
    problem: Problem, model: ReducibleModel, live: Ints, size: Ints, changed: Bools
) -> tuple[Ints, Ints, Floats]:
    """Return the tables of the live factors: the index of each factor's table, the offsets, and all entries."""
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
    """Return the index of the distinct block for every block, and the first occurrence of each."""
    n = len(ptr) - 1
    slot = np.full(1 << (2 * n).bit_length(), -1, dtype=np.int64)
    of, first = np.empty(n, dtype=np.int64), np.empty(n, dtype=np.int64)
    n_distinct = share_equal(ptr, entries.view(np.int64), slot, of, first)
    return of, first[:n_distinct]
