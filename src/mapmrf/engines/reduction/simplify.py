"""Simplification: a smaller model with the same optimum, without decided, dominated and easily eliminated parts."""

from __future__ import annotations

import heapq
import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, largest_size, offsets, ranges, segment_argmax, segment_max, short
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.elimination.elimination import BucketTree, Elimination, Functions
from mapmrf.engines.elimination.orders import Order, PrimalGraph, min_fill_order
from mapmrf.engines.reduction.reducible_kernels import EliminationLog
from mapmrf.engines.reduction.reduction import LabelMap, Reduction, ReductionCounts
from mapmrf.kernels.heaps_and_forests import part_of
from mapmrf.model.factor_pool import FactorPool
from mapmrf.model.graph import ROUND_OFF, FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.clock import check_awaited


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum."""

    problem: Problem  # the smaller model
    maps: tuple[LabelMap, ...]  # mappings of labellings, one per step of the reduction, in order
    feasible: bool = True  # false if every labelling is known to have value -inf
    counts: ReductionCounts = field(default_factory=ReductionCounts)  # what has been removed, by reason

    def lift(self, labels: Ints) -> Ints:
        """Lift a labelling of the reduced model to the original one; removed variables take their best states."""
        for one in reversed(self.maps):
            labels = one.lift(labels)
        return labels

    def project(self, labels: Ints) -> Ints:
        """Project a labelling of the original model to the reduced one; removed states are replaced by ones as good.

        The value of ``lift(project(labels))`` is at least that of `labels`, unless these have a state that was excluded
        by a bound.
        """
        for one in self.maps:
            labels = one.project(labels)
        return labels

    @cached_property
    def labels(self) -> Ints:
        """A labelling of the original model that is correct for all decided variables."""
        graph = self.problem.graph
        return self.lift(segment_argmax(graph.theta_v, graph.var_ptr))


def simplify(problem: Problem, excluded: Bools | None = None) -> Simplified:
    """Simplify a model without changing its optimum, with limited work.

    Repeatedly, states are removed that hard constraints exclude or that another state of the variable dominates
    whatever its neighbours are (Goldstein's criterion of dead-end elimination); variables with one state left are
    fixed; variables are maximised out if their factors become one with no more variables than one of them and no more
    entries than all of them: isolated variables, pendant trees, inner variables of chains. In models of moderate size,
    factors of the same variables are joined, and variables that hard pairs make functions of others are replaced.
    """
    steps = simplify_in_steps(problem, excluded)
    while True:
        check_awaited()
        try:
            next(steps)
        except StopIteration as end:
            simplified: Simplified = end.value
            return simplified


def simplify_in_steps(problem: Problem, excluded: Bools | None = None) -> Generator[None, None, Simplified]:
    """Simplify in steps of some hundredths of a second each, as a generator."""
    if problem.graph.constant == -np.inf:
        return Simplified(problem, (), feasible=False)
    if excluded is not None and not excluded.any():
        excluded = None
    if excluded is None and _is_stiff(problem):
        return Simplified(problem, ())
    yield
    reduction = Reduction(problem, excluded)
    while not reduction.advance(pace.REDUCTION):
        yield
    if not reduction.feasible:
        return Simplified(problem, (), feasible=False)
    small = Simplified(problem, ())
    if reduction.worthwhile:
        yield
        smaller = reduction.smaller()
        yield
        small = Simplified(smaller, (reduction.label_map(),), counts=reduction.counts())
    functions = _functions(small.problem) if _is_light(small.problem) else []
    if not functions and not (_is_light(small.problem) and _has_twins(small.problem)):
        return small
    yield
    elimination = BoundedElimination(small)
    elimination.join_twins()
    elimination.substitute(functions)
    return elimination.result()


def _has_twins(problem: Problem) -> bool:
    """Return whether several factors may have the same variables."""
    keys: dict[int, list[Ints]] = {}
    for batch in problem.batches:
        key = np.zeros(batch.n, dtype=np.int64)
        for k, column in enumerate(np.sort(batch.scope, axis=1).T):
            key = (key * problem.n_vars + column) if k < 2 else (key * 0x9E3779B97F4A7C1 + column)
        keys.setdefault(batch.arity, []).append(key)
    return any(len(np.unique(np.concatenate(each))) < sum(map(len, each)) for each in keys.values())


def _functions(problem: Problem) -> list[tuple[int, int, Ints]]:
    """Return pairs of variables, the second a function of the first, with its state for each state of the first."""
    found = []
    for batch in problem.batches:
        if batch.arity != 2 or not batch.hard:
            continue
        starts, of = np.unique(batch.table_at, return_inverse=True)
        tables = problem.graph.theta_t[starts[:, None] + np.arange(batch.n_configs)]
        allowed = tables.reshape(-1, *batch.shape) > -np.inf
        for axis in (1, 0):
            for t in np.flatnonzero((allowed.sum(1 + axis) <= 1).all(1)).tolist():
                states = allowed[t].argmax(axis)
                found += [(scope[1 - axis], scope[axis], states) for scope in batch.scope[of == t].tolist()]
    return found


def _is_stiff(problem: Problem) -> bool:
    """Return whether all variables are binary, and few are in fewer than three factors or decided by unary potentials.

    This is visible from the tables, so that such models need not wait for kernels to be compiled.
    """
    graph = problem.graph
    if problem.n_vars == 0 or np.any(graph.card != 2) or not problem.feasible_v.all():
        return False
    if any(batch.hard for batch in problem.batches):
        return False
    least = np.diff(graph.theta_v.reshape(-1, 2), axis=1)[:, 0]
    most = least.copy()
    for batch in problem.batches:
        starts, of = np.unique(batch.table_at, return_inverse=True)
        tables = graph.theta_t[starts[:, None] + np.arange(batch.n_configs)].reshape(-1, *batch.shape)
        for k in range(batch.arity):
            gain = np.diff(tables, axis=1 + k).reshape(len(starts), -1)
            low, high = gain.min(axis=1)[of], gain.max(axis=1)[of]
            if len(batch.weight):
                ends = batch.weight * low, batch.weight * high
                low, high = np.minimum(*ends), np.maximum(*ends)
            least += np.bincount(batch.scope[:, k], low, problem.n_vars)
            most += np.bincount(batch.scope[:, k], high, problem.n_vars)
    easy = (problem.degree < 3) | (least >= 0.0) | (most <= 0.0)
    # minimum share of easily removed variables for a binary model to be simplified
    return bool(np.mean(easy) < 0.05)


# -- Dual persistency: states that a dual bound excludes from all labellings as good as the incumbent -----------------


def excluded_states(problem: Problem, bounds: Floats, value: float) -> Bools:
    """Return the states that are in no labelling of at least `value`: their bound is lower by more than round-off.

    All optimal labellings remain if some labelling attains `value`. The state with the largest bound always stays, so
    that every variable keeps one.
    """
    graph = problem.graph
    size = largest_size(bounds[np.isfinite(bounds)]) + (abs(value) if np.isfinite(value) else 0.0)
    margin = 2 * graph.round_off(0.0) + ROUND_OFF * size * (1 + problem.n_vars.bit_length())
    best = np.repeat(segment_max(bounds, graph.var_ptr), graph.card)
    return np.asarray((bounds < value - margin) & (bounds < best))


def belief_bounds(problem: Problem, beliefs: Floats, bound: float) -> Floats:
    """Compute upper bounds on the labellings with each state, (n_states,), from beliefs of a reparametrisation.

    They are ``bound - (max_k' m_i(k') - m_i(k))``, where `m_i` are the reparametrised unary potentials of a variable,
    or its max-marginals in the reparametrised model, and `bound` is the bound of the reparametrisation.
    """
    graph = problem.graph
    best = segment_max(beliefs, graph.var_ptr)
    if not np.all(best > -np.inf):  # a variable without a possible state
        return np.full(problem.n_states, -np.inf)
    return np.asarray(bound - (np.repeat(best, graph.card) - beliefs))


def dual_bounds(problem: Problem, lam_e: Floats) -> Floats:
    """Compute upper bounds on the labellings with each state, (n_states,), from the messages of `polytope.dual_bound`.

    A state lowers the bound by its loss at its variable and at each of its factors; impossible states are followed.
    """
    drops = StateDrops.of(problem)
    bound = drop_states(drops, lam_e, np.ones(problem.n_states, dtype=np.bool_), -np.inf)
    return drops.reach if bound > -np.inf else np.full(problem.n_states, -np.inf)


# -- Connected components, and the exact solution of those that are cheap to eliminate --------------------------------


def components(problem: Problem) -> Ints:
    """Return the number of every variable's connected component, (n_vars,), ordered by first variable."""
    component = np.empty(problem.n_vars, dtype=np.int64)
    find_components(problem.scope_ptr, problem.scope, component)
    return component


def split(problem: Problem) -> list[tuple[Problem, Ints]]:
    """Return the connected components as separate models with their variables; the first one has the constant."""
    component = components(problem)
    n = int(component.max(initial=-1)) + 1
    if n <= 1:
        return [(problem, np.arange(problem.n_vars))]
    members = [np.flatnonzero(component == number) for number in range(n)]
    constants = [problem.graph.constant] + [0.0] * (n - 1)
    return [(_restricted(problem, kept, constant), kept) for kept, constant in zip(members, constants, strict=True)]


def solve_small(small: Simplified, entries: float = 2.0**20, one_by_one: int = 256) -> Simplified:
    """Solve components by bucket elimination, with at most `entries` table entries in total.

    They are removed from the model: their optimum is added to the constant, and `lift` restores their labels. The
    `one_by_one` largest components are tried individually, all smaller ones together.
    """
    problem = small.problem
    if not small.feasible or problem.n_vars == 0:
        return small
    part, variables, order = _affordable(problem, entries, one_by_one)
    if len(variables) == 0:
        return small
    tree = BucketTree.build(PrimalGraph.of(part), part.graph.card, order)
    elimination = Elimination(tree, Functions.of_model(part, tree))
    while not elimination.finished:
        elimination.advance(2**40, tree.n)
    if elimination.value == -math.inf:
        return replace(small, feasible=False)
    labels = np.zeros(problem.n_vars, dtype=np.int64)
    labels[variables] = elimination.labels()
    left = np.ones(problem.n_vars, dtype=np.bool_)
    left[variables] = False
    kept = np.flatnonzero(left)
    rest = _restricted(problem, kept, problem.graph.constant + elimination.value)
    counts = replace(small.counts, variables_solved=small.counts.variables_solved + len(variables))
    maps = (*small.maps, LabelMap.keeping(problem, kept, labels))
    return replace(small, problem=rest, maps=maps, counts=counts)


def _affordable(problem: Problem, entries: float, one_by_one: int) -> tuple[Problem, Ints, Order]:
    """Return the components that fit, as a separate model with its variables and elimination order."""
    component = components(problem)
    size = np.bincount(component, weights=problem.graph.card)[component]
    variables = np.lexsort((component, size))  # smallest components first
    # A lower bound on the total entries of the tables: every factor joins a variable with one that is eliminated later.
    # The tables are smallest in total if all of them have the same number of such variables.
    n_vars = np.bincount(component)
    n_pairs = np.bincount(component[problem.scope[problem.scope_ptr[:-1]]], minlength=len(n_vars))
    smallest = float(problem.graph.card.min(initial=2))
    fits = n_vars * smallest ** np.minimum(500.0, n_pairs / np.maximum(1, n_vars)) <= entries
    # every table also has the states of a neighbour
    variables = variables[(2.0 * size[variables] <= entries) & fits[component[variables]]]
    ends = np.flatnonzero(np.diff(component[variables], append=-1)) + 1
    part = problem if len(ends) == 1 and len(variables) == problem.n_vars else _restricted(problem, variables)
    graph = PrimalGraph.of(part)
    n_known, width, total = 0, 0, 0.0
    places: list[Ints] = [np.zeros(0, dtype=np.int64)]
    chosen: list[Ints] = [np.zeros(0, dtype=np.int64)]
    # the largest components separately, all others together; no variable has a neighbour in another piece
    for begin, end in pairwise([0, *ends[max(0, len(ends) - one_by_one - 1) :].tolist()]):
        edges = slice(int(graph.ptr[begin]), int(graph.ptr[end]))
        piece = PrimalGraph(graph.ptr[begin : end + 1] - graph.ptr[begin], graph.nbr[edges] - np.int32(begin))
        order = min_fill_order(piece, part.graph.card[begin:end], np.zeros(piece.n), entries)
        if order.n_known == end - begin:
            entries -= order.entries
            places.append(n_known + order.order)
            chosen.append(variables[begin:end])
            n_known, width, total = n_known + order.n_known, max(width, order.width), total + order.entries
    if n_known < len(variables):
        variables = np.concatenate(chosen)
        part = _restricted(problem, variables)
    return part, variables, Order(np.concatenate(places), n_known, width, total)


def _restricted(problem: Problem, variables: Ints, constant: float = 0.0) -> Problem:
    graph = problem.graph
    number = np.full(graph.n_vars, -1, dtype=np.int64)
    number[variables] = np.arange(len(variables))
    factors = np.flatnonzero(number[graph.scope[graph.scope_ptr[:-1]]] >= 0)
    arity = graph.arity[factors]
    used = np.zeros(graph.n_tables, dtype=np.bool_)
    used[graph.table_of[factors]] = True
    tables = np.flatnonzero(used)
    sizes = np.diff(graph.table_ptr)[tables]
    restricted = FactorGraph(
        card=graph.card[variables],
        theta_v=graph.theta_v[ranges(graph.var_ptr[variables], graph.card[variables])],
        scope_ptr=offsets(arity),
        scope=short(number[graph.scope[ranges(graph.scope_ptr[factors], arity)]]),
        table_of=short((np.cumsum(used) - 1)[graph.table_of[factors]]),
        table_ptr=offsets(sizes),
        theta_t=graph.theta_t[ranges(graph.table_ptr[tables], sizes)],
        constant=constant,
        weight=None if graph.weight is None else graph.weight[factors],
    )
    return Problem.compile(restricted, problem.threads, problem.memory)


@compiled
def find_components(scope_ptr: Ints, scope: Ints, component: Ints) -> None:
    """Number the components by their first variables.

    Not scipy.sparse.csgraph: on a million variables it takes eight times as long, and its import alone takes a quarter
    of a second, compared to the milliseconds in which `auto` solves small models.
    """
    parent = component
    for i in range(len(parent)):
        parent[i] = i
    for a in range(len(scope_ptr) - 1):
        one = part_of(parent, scope[scope_ptr[a]])
        for e in range(scope_ptr[a] + 1, scope_ptr[a + 1]):
            two = part_of(parent, scope[e])
            one, two = min(one, two), max(one, two)  # the root of a component is its first variable
            parent[two] = one
    n = 0
    for i in range(len(parent)):  # entries before i are already numbered, as -1 - number
        if parent[i] == i:
            parent[i] = -1 - n
            n += 1
        else:
            parent[i] = parent[parent[i]]
    for i in range(len(parent)):
        component[i] = -1 - parent[i]


# -- Repeated removal of states that a dual solution excludes ---------------------------------------------------------


class StateDrops(NamedTuple):
    """Rounds of state removal on one problem, with any messages."""

    var_ptr: Ints
    theta_v: Floats  # states of the variables, and their potentials
    scope_ptr: Ints  # edges of the factors
    edge_ptr: Ints  # offsets of the edges in the messages
    state_at: Ints  # the first state of each edge's variable
    table_at: Ints  # offset of a factor's table
    weight: Floats
    tables: Floats
    constant: float
    belief: Floats  # scratch: beliefs and losses of states
    lost: Floats
    reach: Floats  # bounds on the labellings with each state after a removal; -inf for removed states
    best: Floats  # scratch: max-marginals of edge states
    digit: Ints  # scratch: a configuration

    @classmethod
    def of(cls, problem: Problem) -> StateDrops:
        graph = problem.graph
        belief, lost, reach = np.zeros((3, problem.n_states))
        return cls(
            var_ptr=graph.var_ptr.astype(np.int64),
            theta_v=graph.theta_v,
            scope_ptr=problem.scope_ptr.astype(np.int64),
            edge_ptr=problem.edge_ptr.astype(np.int64),
            state_at=graph.var_ptr[problem.scope].astype(np.int64),
            table_at=problem.table_at.astype(np.int64),
            weight=problem.weight if len(problem.weight) else np.ones(problem.n_factors),
            tables=graph.theta_t,
            constant=float(graph.constant),
            belief=belief,
            lost=lost,
            reach=reach,
            best=np.zeros(problem.n_edge_states),
            digit=np.zeros(int(np.diff(problem.scope_ptr).max(initial=1)), dtype=np.int64),
        )


@inlined
def factor_best(a: int, model: StateDrops, lam: Floats, left: Bools) -> float:
    """Compute the max-marginals of a factor over the remaining states in `best`; return the maximum."""
    edge_ptr, state_at, tables, best, digit = model.edge_ptr, model.state_at, model.tables, model.best, model.digit
    first, end = model.scope_ptr[a], model.scope_ptr[a + 1]
    size = 1
    for e in range(first, end):
        digit[e - first] = 0
        size *= edge_ptr[e + 1] - edge_ptr[e]
        for k in range(edge_ptr[e], edge_ptr[e + 1]):
            best[k] = -np.inf
    top = -np.inf
    at, weight = model.table_at[a], model.weight[a]
    for t in range(size):
        entry = weight * tables[at + t] if weight != 1.0 else tables[at + t]
        for e in range(first, end):
            k = digit[e - first]
            entry = entry + lam[edge_ptr[e] + k] if left[state_at[e] + k] else -np.inf
        if entry > -np.inf:
            top = max(top, entry)
            for e in range(first, end):
                k = edge_ptr[e] + digit[e - first]
                best[k] = max(best[k], entry)
        for e in range(end - 1, first - 1, -1):
            digit[e - first] += 1
            if digit[e - first] < edge_ptr[e + 1] - edge_ptr[e]:
                break
            digit[e - first] = 0
    return top


@inlined
def begin_round(model: StateDrops, lam: Floats, left: Bools) -> float:
    """Compute beliefs and the losses of states; return the sum of the maxima, -inf if a variable has no state."""
    belief, lost = model.belief, model.lost
    for s in range(len(belief)):
        belief[s] = model.theta_v[s]
    for e in range(len(model.state_at)):
        for k in range(model.edge_ptr[e + 1] - model.edge_ptr[e]):
            belief[model.state_at[e] + k] -= lam[model.edge_ptr[e] + k]
    total = model.constant
    for i in range(len(model.var_ptr) - 1):
        top = -np.inf
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            if left[s]:
                top = max(top, belief[s])
        if top == -np.inf:
            return -np.inf
        total += top
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            lost[s] = top - belief[s] if left[s] else np.inf
    return total


@inlined
def end_round(model: StateDrops, left: Bools, bound: float, target: float) -> tuple[float, bool]:
    """Remove states below the target; return the bound, -inf if nothing is left, and whether any was removed."""
    lowest, dropped, reach = bound, False, model.reach
    for i in range(len(model.var_ptr) - 1):
        top = -np.inf
        for s in range(model.var_ptr[i], model.var_ptr[i + 1]):
            reach[s] = bound - model.lost[s] if left[s] else -np.inf
            top = max(top, reach[s])
            if left[s] and reach[s] <= target:
                left[s] = False
                dropped = True
        lowest = min(lowest, top)
        if top <= target:
            return -np.inf, True
    return lowest, dropped


@compiled
def drop_states(model: StateDrops, lam: Floats, left: Bools, target: float) -> float:
    """Remove states that are in no labelling above `target`; return the bound, -inf if a variable has none left."""
    while True:
        bound = begin_round(model, lam, left)
        if bound == -np.inf:
            return bound
        dropped = False
        for a in range(len(model.table_at)):
            top = factor_best(a, model, lam, left)
            if top == -np.inf:
                return top
            bound += top
            for e in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
                for k in range(model.edge_ptr[e + 1] - model.edge_ptr[e]):
                    s, best = model.state_at[e] + k, model.best[model.edge_ptr[e] + k]
                    if left[s] and best == -np.inf:
                        left[s] = False
                        dropped = True
                    elif left[s]:
                        model.lost[s] += top - best
        bound, more = end_round(model, left, bound, target)
        if bound == -np.inf or not (more or dropped):
            return bound


# -- Elimination of variables whose message is small, even if it has more variables than any factor before ------------


def _is_light(problem: Problem) -> bool:
    """Return whether there are few factors, each of which takes numpy some microseconds, and few table entries."""
    return problem.n_vars + problem.n_factors <= 20_000 and problem.n_configs <= 2_000_000


class BoundedElimination:
    """Maximises out variables, the smallest message first, while messages have at most `largest` entries.

    Messages of up to seven variables may have four times as many. Factors on subsets of a message's variables are
    merged into it. The model is then simplified again.
    """

    def __init__(self, small: Simplified, largest: int = 256) -> None:
        problem = small.problem
        self._small, self.problem, self.largest = small, problem, largest
        self.heap: list[tuple[int, int]] = []
        self.logged: list[tuple[int, list[int], Ints]] = []
        self.joined = False
        if small.feasible and _is_light(problem):
            self._unpack()

    def _unpack(self) -> None:
        graph = self.problem.graph
        unary = dict(enumerate(np.split(graph.theta_v, graph.var_ptr[1:-1])))
        self.pool = pool = FactorPool(graph.card.tolist(), unary, np.array([graph.constant]))
        for batch in self.problem.batches:
            for scope, table in zip(batch.scope.tolist(), batch.tables(graph.theta_t, slice(None)), strict=True):
                pool.put(scope, table)
        self.gone = [False] * graph.n_vars
        self._rank()

    def _rank(self) -> None:
        """Queue the remaining variables by the sizes of their messages."""
        left = [i for i, gone in enumerate(self.gone) if not gone]
        self.around = [set() if gone else set(self.pool.around(i)) for i, gone in enumerate(self.gone)]
        self.heap = [(self._size(i), i) for i in left]
        heapq.heapify(self.heap)

    def join_twins(self) -> None:
        """Join factors of the same variables."""
        pool, first = self.pool, dict[tuple[int, ...], int]()
        for a, scope in list(pool.scopes.items()):
            one = first.setdefault(scope, a)
            if one != a:
                pool.tables[one] = pool.tables[one] + pool.drop(a)[1]
                self.joined = True

    def substitute(self, functions: list[tuple[int, int, Ints]]) -> None:
        """Replace variables by those of which they are functions, unless their tables would grow."""
        for i, j, states in functions:
            if self.gone[i] or self.gone[j]:
                continue
            pool, card = self.pool, self.pool.card
            tables = [(pool.scopes[a], pool.tables[a].size) for a in sorted(pool.of[j])]
            size = sum(size // card[j] * (1 if i in scope else card[i]) for scope, size in tables)
            if size > sum(size for _, size in tables):
                continue
            self.logged.append((j, [i], states))
            self.gone[j] = True
            pool.unary[i] = pool.unary[i] + pool.unary[j][states]
            for a in sorted(pool.of[j]):
                scope, table = pool.drop(a)
                axis = scope.index(j)
                table = table.take(states, axis)  # this axis now stands for i
                if i in scope:
                    table = np.moveaxis(table.diagonal(0, axis, scope.index(i)), -1, 0)
                else:
                    table = np.moveaxis(table, axis, 0)
                scope = (i, *[k for k in scope if k not in (i, j)])
                order = sorted(range(len(scope)), key=scope.__getitem__)
                pool.merge([scope[k] for k in order], table.transpose(order))
        self._rank()

    def advance(self, n: int) -> bool:
        """Eliminate some variables, smallest message first; True when no more can be eliminated."""
        heap = self.heap
        while n > 0 and heap and heap[0][0] <= 4 * self.largest:
            size, i = heapq.heappop(heap)
            if self.gone[i] or (size > self.largest and len(self.around[i]) > 7):
                continue
            now = self._size(i)
            if now > size:
                heapq.heappush(heap, (now, i))
                continue
            n -= 1
            for j in self._maximise_out(i):
                heapq.heappush(heap, (self._size(j), j))
        return n > 0

    def result(self) -> Simplified:
        small = self._small
        if not self.logged and not self.joined:
            return small
        again = simplify(Problem.compile(self.pool.graph(self.kept), small.problem.threads, small.problem.memory))
        sums = {name: count + getattr(again.counts, name) for name, count in vars(small.counts).items()}
        sums["variables_eliminated"] += len(self.logged)
        maps = (*small.maps, *([self.label_map()] if self.logged else []), *again.maps)
        return replace(again, maps=maps, counts=ReductionCounts(**sums))

    def _size(self, i: int) -> int:
        return math.prod([self.pool.card[j] for j in self.around[i]])

    def _maximise_out(self, i: int) -> list[int]:
        """Replace the factors of a variable by its message; return the message's variables."""
        inside = self.around[i]
        around = sorted(inside)
        total, axis = self.pool.take(i, around)
        self.logged.append((i, around, total.argmax(axis).ravel()))
        self.gone[i] = True
        for j in around:
            self.around[j] |= inside
            self.around[j] -= {i, j}
        self.pool.merge(around, total.max(axis))
        return around

    @property
    def kept(self) -> Ints:
        return np.flatnonzero(~np.array(self.gone, dtype=np.bool_))

    def label_map(self) -> LabelMap:
        scopes, sizes = [around for _, around, _ in self.logged], [len(choice) for _, _, choice in self.logged]
        strides = [
            math.prod([self.pool.card[j] for j in around[k + 1 :]]) for around in scopes for k in range(len(around))
        ]
        log = EliminationLog(
            var=np.array([i for i, _, _ in self.logged], dtype=np.int64),
            ptr=offsets(np.array([len(around) for around in scopes], dtype=np.int64)).astype(np.int64),
            scope=np.array([j for around in scopes for j in around], dtype=np.int64),
            stride=np.array(strides, dtype=np.int64),
            at=offsets(np.array(sizes, dtype=np.int64))[:-1].astype(np.int64),
            choice=np.concatenate([choice for _, _, choice in self.logged]).astype(np.int32),
        )
        return LabelMap.keeping(self.problem, self.kept, np.zeros(self.problem.n_vars, dtype=np.int64), log)
