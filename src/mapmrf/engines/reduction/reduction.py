"""Reduction of a copy of a model by the kernels, and construction of the reduced model."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.reduction.reducible_kernels import (
    CANDIDATES,
    NOTHING,
    ONE,
    EliminationLog,
    ReducibleModel,
    ReductionScratch,
    ReductionTally,
    attach,
    detach,
    drop_dominated,
    drop_state,
    find_places,
    fix,
    measure,
    pop,
    push,
    replay,
    set_up,
    share_equal,
    write_tables,
)
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.builders import FactorLists, one_shape_each
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

LEAST_WORK, MOST_WORK = 1_000_000, 200_000_000
"""Limits on that work in table entries: some milliseconds, and some tenths of a second."""


@dataclass(frozen=True)
class ReductionCounts:
    states_forbidden: int = 0  # states excluded by hard constraints
    states_dominated: int = 0  # states dominated by another one
    states_persistent: int = 0  # states excluded by a bound, see `mapmrf.engines.reduction.simplify`
    variables_fixed: int = 0  # variables with one state left
    variables_eliminated: int = 0  # variables that were maximised out individually
    variables_solved: int = 0  # variables of components that were solved separately

    def details(self) -> dict[str, float]:
        return {name: float(count) for name, count in asdict(self).items() if count}


@dataclass(frozen=True, eq=False)
class LabelMap:
    """Mapping between labellings of a model and of a reduced one with the same optimum."""

    kept: Ints  # (n_vars of the smaller,): the remaining variables of the larger model
    state: Ints  # the state in the larger model of each state of the smaller one
    state_ptr: Ints
    place: Ints  # for each state of a remaining variable, the index of its replacement among the remaining states
    var_ptr: Ints  # offsets of the larger model's states
    labels: Ints  # (n_vars of the larger,): the labels of fixed variables
    eliminated: EliminationLog | None = None  # the variables that have been maximised out

    @classmethod
    def keeping(cls, problem: Problem, kept: Ints, labels: Ints, eliminated: EliminationLog | None = None) -> LabelMap:
        """Return the mapping that keeps all states of some variables."""
        graph = problem.graph
        own = np.arange(problem.n_states) - np.repeat(graph.var_ptr[:-1].astype(np.int64), graph.card)
        state = own[ranges(graph.var_ptr[kept], graph.card[kept])]
        return cls(kept, state, offsets(graph.card[kept]), own, graph.var_ptr, labels, eliminated)

    def lift(self, labels: Ints) -> Ints:
        result = self.labels.copy()
        result[self.kept] = self.state[self.state_ptr[:-1] + labels]
        if self.eliminated is not None:
            replay(self.eliminated, result)
        return result

    def project(self, labels: Ints) -> Ints:
        return np.asarray(self.place[self.var_ptr[self.kept] + labels[self.kept]])


class Reduction:
    """A model under reduction, over any number of calls of `advance`.

    States that are `excluded` are in no labelling of interest, and removed first. At the end, `feasible` is False if
    some variable has no state left, and `worthwhile` says whether enough was removed to build the reduced model.
    """

    def __init__(self, problem: Problem, excluded: Bools | None = None) -> None:
        self._problem, self._model = problem, _reducible(problem)
        self._n_excluded = 0
        if excluded is not None:
            self._n_excluded = int(np.count_nonzero(excluded & problem.feasible_v))
            self._model.theta_v[excluded] = -np.inf
        self._log = _log(problem)
        set_up(self._model)
        self._scratch = _scratch(problem)

    def advance(self, max_work: int = MOST_WORK) -> bool:
        """Reduce for about this much work, in table entries; return whether the reduction is complete."""
        ended = reduce_model(self._model, self._log, self._scratch, max_work)
        if ended:
            self._kept = np.flatnonzero(~self._model.gone)
            self.feasible = not self._model.counters.infeasible
            n_gone = self._problem.n_states - int(self._model.n_alive[self._kept].sum())
            # minimum share of the states that must be removed for the reduced model to be built
            self.worthwhile = n_gone > 1e-3 * self._problem.n_states
        return bool(ended)

    def counts(self) -> ReductionCounts:
        counters = self._model.counters
        return ReductionCounts(
            states_forbidden=int(counters.n_impossible) - self._n_excluded,
            states_dominated=int(counters.n_dominated),
            states_persistent=self._n_excluded,
            variables_fixed=int(counters.n_fixed),
            variables_eliminated=int(counters.n_logged),
        )

    def smaller(self) -> Problem:
        problem = self._problem
        return Problem.compile(_written(problem, self._model, self._kept), problem.threads, problem.memory)

    def label_map(self) -> LabelMap:
        model, log, kept, counters = self._model, self._log, self._kept, self._model.counters
        count = model.n_alive[kept]
        place = np.empty(len(model.alive), dtype=np.int64)
        find_places(model, place)
        n, n_scope = int(counters.n_logged), int(counters.log_scope)
        lengths = n, n + 1, n_scope, n_scope, n, int(counters.n_choices)
        eliminated = EliminationLog(*(array[:size].copy() for array, size in zip(log, lengths, strict=True)))
        return LabelMap(
            kept=kept,
            state=model.alive[ranges(model.var_ptr[kept], count)].astype(np.int64),
            state_ptr=offsets(count),
            place=place,
            var_ptr=model.var_ptr,
            labels=model.alive[model.var_ptr[:-1]].astype(np.int64),
            eliminated=eliminated if n else None,
        )


def _reducible(problem: Problem) -> ReducibleModel:
    """Return a copy of the model with every variable queued; arrays that are not copied are filled later."""
    graph = problem.graph
    n, n_factors, n_edges = problem.n_vars, problem.n_factors, problem.n_edges
    counters = blank(ReductionTally)
    once = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
    # work limit, in passes over the model's tables from all of their variables
    counters.n_queued, counters.budget = n, min(max(10 * once, LEAST_WORK), MOST_WORK)
    counters.constant = graph.constant
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
    var, at = np.empty((2, n), dtype=np.int64)
    scope, stride = np.empty((2, n * widest), dtype=np.int64)
    choice = np.empty(problem.n_edge_states + n + _room(problem), dtype=np.int32)
    return EliminationLog(var, np.zeros(n + 1, dtype=np.int64), scope, stride, at, choice)


def _room(problem: Problem) -> int:
    """Return the number of table entries that elimination may create."""
    return min(max(4 * problem.n_configs, 1 << 16), 1 << 25)


def _scratch(problem: Problem) -> ReductionScratch:
    card, degree = problem.graph.card, int(problem.degree.max(initial=0))
    n_states, arity = int(card.max(initial=1)), int(np.diff(problem.scope_ptr).max(initial=1))
    entries = np.zeros(problem.n_vars)
    for batch in problem.batches:
        entries += batch.n_configs * np.bincount(batch.scope.ravel(), minlength=problem.n_vars)
    # maximum number of table entries around one variable for which its states are compared
    rows, (row_at, width) = np.empty(int(min(entries.max(initial=0), (1 << 22)))), np.empty((2, degree), dtype=np.int64)
    best, score = np.empty(int((problem.degree * card).max(initial=1))), np.empty(n_states)
    verdict, chosen = np.empty(n_states, dtype=np.int64), np.empty(CANDIDATES, dtype=np.int64)
    digit, around, step = np.empty((3, arity), dtype=np.int64)
    member, base, own = np.empty((3, degree + 1), dtype=np.int64)
    marked, jump = np.zeros(problem.n_vars, dtype=np.bool_), np.empty((degree + 1, arity), dtype=np.int64)
    comparison = rows, row_at, width, best, score, verdict, chosen
    return ReductionScratch(*comparison, digit, around, marked, step, member, base, own, jump)


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
    weight = model.weight[live] if len(model.weight) else None
    weight = None if weight is None or np.all(weight == 1.0) else weight
    unary = model.theta_v[states], float(model.counters.constant)
    lists = FactorLists(count, offsets(arity), scope, short(table_of), table_ptr, theta_t, weight, *unary)
    return FactorGraph(**one_shape_each(lists)._asdict())


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
    n = len(ptr) - 1
    slot, (of, first) = np.full(1 << (2 * n).bit_length(), -1, dtype=np.int64), np.empty((2, n), dtype=np.int64)
    first = first[: share_equal(ptr.astype(np.int64), entries.view(np.int64), slot, of, first)]
    table_of = np.empty(len(live), dtype=np.int64)
    table_of[~changed] = name[given]
    table_of[changed] = len(old) + of
    made = size[changed][first]
    theta_t = np.concatenate([graph.theta_t[ranges(graph.table_ptr[old], sizes)], entries[ranges(ptr[first], made)]])
    return table_of, offsets(np.concatenate([sizes, made])), theta_t


# Reduction of a model to a fixed point: remove states, fix variables, and eliminate those with a small message.


@compiled
def reduce_model(model: ReducibleModel, log: EliminationLog, scratch: ReductionScratch, max_work: int) -> bool:
    """Process all queued variables, and those affected by a change; return whether the queue is empty.

    Once the budget is spent, only consequences of earlier decisions are processed. It stops after about `max_work`
    table entries, and the next call continues.
    """
    counters = model.counters
    end, looked_at = counters.work + max_work, 0
    while counters.n_queued > 0 and counters.infeasible == 0:
        if counters.work + looked_at >= end:
            return False
        i = pop(model)
        looked_at += 20 + 8 * model.degree[i]  # the cost of a variable, in table entries, if no table is read
        if model.gone[i]:
            continue
        before, first = model.n_alive[i], model.var_ptr[i]
        for place in range(before - 1, -1, -1):
            if model.theta_v[first + model.alive[first + place]] == -np.inf:
                drop_state(model, i, place, NOTHING)
        changed = model.n_alive[i] < before
        if model.n_alive[i] > 1:
            n = surroundings(model, i, scratch.around, scratch.marked)
            if n >= 0 and eliminate_variable(model, log, scratch, i, n):
                continue
            if drop_dominated(model, i, scratch):
                changed = True
        if changed:
            for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
                a = model.factor_of[model.nbr[at]]
                for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
                    if model.scope[e] != i:
                        push(model, model.scope[e])
        if model.n_alive[i] == 1:
            fix(model, i)
    return True


@inlined
def surroundings(model: ReducibleModel, i: int, around: Ints, marked: Bools) -> int:
    """List the variables that share a factor with `i`; -1 if there are more than in any single one of these factors."""
    most = 1
    for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
        most = max(most, model.arity[model.factor_of[model.nbr[at]]])
    n = 0
    for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
        a = model.factor_of[model.nbr[at]]
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            j = model.scope[e]
            if j == i or marked[j]:
                continue
            if n == most:
                for d in range(n):
                    marked[around[d]] = False
                return -1
            marked[j] = True
            around[n] = j
            n += 1
    for d in range(n):
        marked[around[d]] = False
    return n


@bare
def same_scope(model: ReducibleModel, around: Ints, n: int, marked: Bools) -> int:
    """Return a factor on exactly these variables; -1 if there is none."""
    rare = around[0]
    for d in range(n):
        marked[around[d]] = True
        if model.degree[around[d]] < model.degree[rare]:
            rare = around[d]
    found = -1
    at = model.nbr_ptr[rare] + model.degree[rare]
    while found < 0 and at > model.nbr_ptr[rare]:  # a message that is to be merged with the next one comes last
        at -= 1
        a = model.factor_of[model.nbr[at]]
        inside = model.arity[a] == n
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            inside = inside and marked[model.scope[e]]
        found = a if inside else -1
        model.counters.work += 1
    for d in range(n):
        marked[around[d]] = False
    return found


@bare
def eliminate_variable(model: ReducibleModel, log: EliminationLog, scratch: ReductionScratch, i: int, n: int) -> bool:
    """Maximise out variable `i` if that needs no more room: its factors become one on their `n` other variables.

    The message has no more variables than one of the factors and no more entries than all of them; a factor on the same
    variables is merged into it. False if the variable must stay.
    """
    around, member, counters = scratch.around, scratch.member, model.counters
    n_members, replaced = model.degree[i], 0
    for f in range(n_members):
        a, entries = model.factor_of[model.nbr[model.nbr_ptr[i] + f]], 1
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            entries *= model.n_alive[model.scope[e]]
        member[f] = a
        replaced += entries
    merged = same_scope(model, around, n, scratch.marked) if n >= 2 else -1
    if merged >= 0:
        member[n_members] = merged
        n_members += 1
    entries, size = ONE, ONE
    for d in range(n - 1, -1, -1):
        scratch.step[d] = size
        entries *= model.n_alive[around[d]]
        size *= model.var_ptr[around[d] + 1] - model.var_ptr[around[d]]
        if size > len(log.choice):
            return False
    work = entries * model.n_alive[i] * (n_members + 1)
    if n >= 2 and merged < 0 and entries > replaced:
        return False
    if n >= 2 and (counters.pool_used + size > len(model.pool) or counters.work + work > counters.budget):
        return False
    if counters.n_choices + size > len(log.choice):
        return False
    counters.work += work
    lay_out(model, scratch, i, n, n_members)
    maximise(model, log.choice, scratch, i, n, n_members, entries)
    t, at = counters.n_logged, counters.log_scope
    log.var[t], log.at[t] = i, counters.n_choices
    for d in range(n):
        log.scope[at + d], log.stride[at + d] = around[d], scratch.step[d]
    log.ptr[t + 1] = at + n
    counters.n_logged, counters.log_scope = t + 1, at + n
    counters.n_choices += size
    replace(model, scratch, i, n, n_members, size)
    return True


@inlined
def lay_out(model: ReducibleModel, scratch: ReductionScratch, i: int, n: int, n_members: int) -> None:
    """Compute table offsets for the first configuration, and strides, of the factors to be merged."""
    for f in range(n_members):
        a = scratch.member[f]
        scratch.base[f] = model.table_at[a] if model.table_at[a] >= 0 else ~model.table_at[a]
        scratch.own[f] = 0
        for d in range(n):
            scratch.jump[f, d] = 0
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            if model.scope[e] == i:
                scratch.own[f] = model.stride[e]
                continue
            for d in range(n):
                if scratch.around[d] == model.scope[e]:
                    scratch.jump[f, d] = model.stride[e]
        for d in range(n):
            scratch.base[f] += scratch.jump[f, d] * model.alive[model.var_ptr[scratch.around[d]]]


@inlined
def maximise(
    model: ReducibleModel, choice: Ints, scratch: ReductionScratch, i: int, n: int, n_members: int, entries: int
) -> None:
    """Write the message: of two or more variables to the pool, of one to its potentials, else to the constant."""
    around, digit, step, base = scratch.around, scratch.digit, scratch.step, scratch.base
    counters = model.counters
    place = 0
    for d in range(n):
        digit[d] = 0
        place += step[d] * model.alive[model.var_ptr[around[d]]]
    first, count = model.var_ptr[i], model.n_alive[i]
    for _ in range(entries):
        best, best_state = -np.inf, model.alive[first]
        for k in range(first, first + count):
            state = model.alive[k]
            total = model.theta_v[first + state]
            for f in range(n_members):
                a = scratch.member[f]
                if model.table_at[a] >= 0:
                    total += weight_of(model.weight, a) * model.theta_t[base[f] + scratch.own[f] * state]
                else:
                    total += model.pool[base[f] + scratch.own[f] * state]
            if total > best:
                best, best_state = total, state
        choice[counters.n_choices + place] = best_state
        if n >= 2:
            model.pool[counters.pool_used + place] = best
        elif n == 1:
            model.theta_v[model.var_ptr[around[0]] + place] += best
        else:
            counters.constant += best
        d = n - 1
        while d >= 0:
            at = model.var_ptr[around[d]] + digit[d]
            digit[d] += 1
            over = digit[d] == model.n_alive[around[d]]
            if over:
                digit[d] = 0
            move = model.alive[model.var_ptr[around[d]] + digit[d]] - model.alive[at]
            place += step[d] * move
            for f in range(n_members):
                base[f] += scratch.jump[f, d] * move
            if not over:
                break
            d -= 1


@inlined
def replace(model: ReducibleModel, scratch: ReductionScratch, i: int, n: int, n_members: int, size: int) -> None:
    """Remove variable `i` and its factors; a message of two or more variables takes the slot of one of them."""
    widest = scratch.member[0]
    for f in range(1, n_members):
        a = scratch.member[f]
        if model.arity[a] > model.arity[widest]:
            widest = a
    for f in range(n_members):
        a = scratch.member[f]
        while model.arity[a] > 0:
            detach(model, model.scope_ptr[a] + model.arity[a] - 1)
    model.gone[i] = True
    if n >= 2:
        model.table_at[widest] = ~model.counters.pool_used
        if len(model.weight) > 0:
            model.weight[widest] = 1.0
        model.counters.pool_used += size
        for d in range(n):
            attach(model, widest, scratch.around[d], scratch.step[d])
    for d in range(n):
        push(model, scratch.around[d])
