"""Repeated removal of states that a dual solution excludes."""

from __future__ import annotations

import heapq
import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.elimination.numpy_elimination import aligned
from mapmrf.engines.reduction.reducible_kernels import EliminationLog
from mapmrf.engines.reduction.reduction import LabelMap, ReductionCounts
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem


class StateDrops:
    """Rounds of state removal on one problem, with any messages."""

    def __init__(self, problem: Problem) -> None:
        graph = problem.graph
        n, largest = problem.n_states, int(np.diff(problem.scope_ptr).max(initial=1))
        self.reach = np.zeros(n)  # bounds on the labellings with each state after a removal; -inf for removed states
        self.model = DropModel(
            var_ptr=graph.var_ptr.astype(np.int64),
            theta_v=graph.theta_v,
            scope_ptr=problem.scope_ptr.astype(np.int64),
            edge_ptr=problem.edge_ptr.astype(np.int64),
            state_at=graph.var_ptr[problem.scope].astype(np.int64),
            table_at=graph.table_ptr[graph.table_of[problem.order]].astype(np.int64),
            weight=problem.weight if len(problem.weight) else np.ones(problem.n_factors),
            tables=graph.theta_t,
            constant=float(graph.constant),
            belief=np.zeros(n),
            lost=np.zeros(n),
            reach=self.reach,
            best=np.zeros(problem.n_edge_states),
            digit=np.zeros(largest, dtype=np.int64),
        )

    def remove_states(self, lam_e: Floats, left: Bools, target: float) -> float:
        """Remove states from `left` that no labelling above `target` has; return the bound, -inf if nothing is left."""
        return drop_states(self.model, lam_e, left, target)


# -- Rounds of removing states that a dual solution excludes ----------------------------------------------------------


class DropModel(NamedTuple):
    """The arrays of a model for these rounds."""

    var_ptr: Ints
    theta_v: Floats  # states of the variables, and their potentials
    scope_ptr: Ints  # edges of the factors
    edge_ptr: Ints  # offsets of the edges in the messages
    state_at: Ints  # the first state of each edge's variable
    table_at: Ints  # offset of a factor's table
    weight: Floats
    tables: Floats
    constant: float
    belief: Floats  # scratch: beliefs, losses and bounds of states
    lost: Floats
    reach: Floats
    best: Floats  # scratch: max-marginals of edge states
    digit: Ints  # scratch: a configuration


@inlined
def factor_best(a: int, model: DropModel, lam: Floats, left: Bools) -> float:
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
def begin_round(model: DropModel, lam: Floats, left: Bools) -> float:
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
def end_round(model: DropModel, left: Bools, bound: float, target: float) -> tuple[float, bool]:
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
def drop_states(model: DropModel, lam: Floats, left: Bools, target: float) -> float:
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


MOST_FACTORS = 20_000  # maximum number of variables and factors: numpy takes some microseconds for each
MOST_CONFIGS = 2_000_000  # maximum number of table entries over all factors: each factor gets its own table
LARGEST = 256  # maximum number of entries of a message
FEW, TIMES = 7, 4  # a message of at most `FEW` variables may have `TIMES` times as many entries


class BoundedElimination:
    """Maximises out variables, the smallest message first, while messages have at most `largest` entries.

    Messages of up to seven variables may have four times as many. Factors on subsets of a message's variables are
    merged into it. The model is then simplified again.
    """

    def __init__(self, small: Simplified, largest: int = LARGEST) -> None:
        problem = small.problem
        self._small, self.problem, self.largest = small, problem, largest
        self.heap: list[tuple[int, int]] = []
        self.logged: list[tuple[int, list[int], Ints]] = []
        few = problem.n_vars + problem.n_factors <= MOST_FACTORS and problem.n_configs <= MOST_CONFIGS
        if small.feasible and few:
            self._unpack()

    def _unpack(self) -> None:
        """Make the factors arrays with one axis per variable."""
        graph = self.problem.graph
        self.constant = graph.constant
        self.card = graph.card.tolist()
        self.unary = np.split(graph.theta_v.copy(), graph.var_ptr[1:-1])
        self.scopes: list[list[int]] = []
        self.tables: list[Floats] = []
        self.of: list[set[int]] = [set() for _ in self.card]
        for batch in self.problem.batches:
            tables = batch.tables(graph.theta_t, slice(None)).reshape(-1, *batch.shape)
            for scope, table in zip(batch.scope.tolist(), tables, strict=True):
                self._add(scope, table)
        self.around = [{j for a in mine for j in self.scopes[a]} - {i} for i, mine in enumerate(self.of)]
        self.gone = [False] * len(self.card)
        self.heap = [(self._size(i), i) for i in range(len(self.card))]
        heapq.heapify(self.heap)

    def advance(self, n: int) -> bool:
        """Eliminate some variables, smallest message first; True when no more can be eliminated."""
        heap = self.heap
        while n > 0 and heap and heap[0][0] <= TIMES * self.largest:
            size, i = heapq.heappop(heap)
            if self.gone[i] or (size > self.largest and len(self.around[i]) > FEW):
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
        if not self.logged:
            return small
        again = simplify(Problem.compile(self.graph(), small.problem.threads, small.problem.memory))
        sums = {name: count + getattr(again.counts, name) for name, count in vars(small.counts).items()}
        sums["variables_eliminated"] += len(self.logged)
        maps = (*small.maps, self.label_map(), *again.maps)
        return replace(again, maps=maps, counts=ReductionCounts(**sums))

    def _add(self, scope: list[int], table: Floats) -> None:
        for i in scope:
            self.of[i].add(len(self.scopes))
        self.scopes.append(scope)
        self.tables.append(table)

    def _size(self, i: int) -> int:
        return math.prod([self.card[j] for j in self.around[i]])

    def _maximise_out(self, i: int) -> list[int]:
        """Replace the factors of a variable by its message; return the message's variables."""
        inside = self.around[i]
        around = sorted(inside)
        scope, members = [i, *around], self.of[i]
        total = self.unary[i].reshape(-1, *[1] * len(around))
        for a in sorted(members):
            total = total + aligned(self.scopes[a], self.tables[a], scope)
        total = np.broadcast_to(total, [self.card[j] for j in scope])
        message = total.max(axis=0)
        self.logged.append((i, around, total.argmax(axis=0).ravel()))
        self.gone[i] = True
        if len(around) > 1:
            smaller = {a for j in around for a in self.of[j] if inside.issuperset(self.scopes[a])}
            for a in sorted(smaller):
                message = message + aligned(self.scopes[a], self.tables[a], around)
            members = members | smaller
        for j in around:
            self.of[j] -= members
            self.around[j] |= inside
            self.around[j] -= {i, j}
        self.of[i] = set()
        if len(around) > 1:
            self._add(around, message)
        elif around:
            self.unary[around[0]] = self.unary[around[0]] + message
        else:
            self.constant += float(message)
        return around

    @property
    def kept(self) -> Ints:
        return np.flatnonzero(~np.array(self.gone, dtype=np.bool_))

    def graph(self) -> FactorGraph:
        kept = self.kept
        number = dict(zip(kept.tolist(), range(len(kept)), strict=True))
        live = sorted({a for i in kept.tolist() for a in self.of[i]})
        scopes = [[number[j] for j in self.scopes[a]] for a in live]
        tables = [self.tables[a].ravel() for a in live]
        none = [np.zeros(0)]
        return FactorGraph(
            card=self.problem.graph.card[kept],
            theta_v=np.concatenate([self.unary[i] for i in kept.tolist()] + none),
            scope_ptr=offsets(np.array([len(scope) for scope in scopes], dtype=np.int64)),
            scope=short(np.array([j for scope in scopes for j in scope], dtype=np.int64)),
            table_of=short(np.arange(len(live))),
            table_ptr=offsets(np.array([len(table) for table in tables], dtype=np.int64)),
            theta_t=np.concatenate(tables + none),
            constant=self.constant,
        )

    def label_map(self) -> LabelMap:
        scopes, sizes = [around for _, around, _ in self.logged], [len(choice) for _, _, choice in self.logged]
        strides = [math.prod([self.card[j] for j in around[k + 1 :]]) for around in scopes for k in range(len(around))]
        log = EliminationLog(
            var=np.array([i for i, _, _ in self.logged], dtype=np.int64),
            ptr=offsets(np.array([len(around) for around in scopes], dtype=np.int64)).astype(np.int64),
            scope=np.array([j for around in scopes for j in around], dtype=np.int64),
            stride=np.array(strides, dtype=np.int64),
            at=offsets(np.array(sizes, dtype=np.int64))[:-1].astype(np.int64),
            choice=np.concatenate([choice for _, _, choice in self.logged]).astype(np.int32),
        )
        return LabelMap.keeping(self.problem, self.kept, np.zeros(self.problem.n_vars, dtype=np.int64), log)
