"""Find a labelling of finite log potential near a given one, or prove that there is none."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation import CompilingStopped
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts, pace

FEW_STATES = 300  # states up to which a model is first searched without kernels

MOST_WORK = 200_000_000  # clauses that a search visits before it gives up: some seconds

MOST_CLAUSES, MOST_STATES = 3_000_000, 5_000_000
"""Forbidden entries, and states of all variables, up to which a model is turned into clauses."""


@dataclass(frozen=True)
class FeasibleSearch:
    """Outcome of a search: labels, or None; with `complete`, None means that there are none."""

    labels: Ints | None
    complete: bool


def find_feasible(problem: Problem, labels: Ints, seconds: float = math.inf, work: int = MOST_WORK) -> FeasibleSearch:
    """Search over the hard constraints alone, trying the states of `labels` first, for at most `seconds` and `work`."""
    # A small model is searched without kernels; larger models, and small ones that turn out to be hard, are searched by
    # the conflict-driven search of `engines.feasibility`.
    if problem.graph.constant == -math.inf:
        return FeasibleSearch(None, complete=True)
    if problem.n_states <= FEW_STATES:
        found = find_by_branching(problem, labels, 50, seconds)
        if found.complete:
            return found
    if fits_clauses(problem):
        with suppress(CompilingStopped):  # no time to wait for kernels
            return _find_by_conflicts(problem, labels, seconds, work)
    return find_by_branching(problem, labels, 20_000, seconds)


def climb(problem: Problem, labels: Ints, seconds: float = math.inf) -> Ints:
    """Single-variable ascent from a feasible labelling, which stays feasible, for at most `seconds`."""
    from mapmrf.engines.moves.local_search import Ascent

    clock = _Clock(seconds)
    with suppress(CompilingStopped):  # no time to wait for kernels
        ascent = Ascent(problem)
        ascent.restart(labels)
        while not ascent.at_optimum and not clock.over():
            ascent.run(problem.n_vars)
        return ascent.labels
    return labels


def fits_clauses(problem: Problem) -> bool:
    """Return whether a model is small enough for its forbidden entries to be turned into clauses."""
    graph = problem.graph
    if problem.n_states > MOST_STATES or not any(batch.hard for batch in problem.batches):
        return problem.n_states <= MOST_STATES
    of_table = np.add.reduceat(np.isneginf(graph.theta_t), graph.table_ptr[:-1], dtype=np.int64)
    return int(of_table[graph.table_of].sum()) <= MOST_CLAUSES


def find_by_branching(problem: Problem, labels: Ints, max_nodes: int, seconds: float = math.inf) -> FeasibleSearch:
    """Depth-first search without kernels, trying the states of `labels` first."""
    # Domains are kept consistent with every hard factor on which they change; the variable with the fewest states left
    # is branched on next.
    search = _Search(problem, labels, max_nodes, seconds)
    found = search.run()
    return FeasibleSearch(found, complete=found is not None or not search.gave_up)


def _find_by_conflicts(problem: Problem, labels: Ints, seconds: float, work: int) -> FeasibleSearch:
    from mapmrf.engines.feasibility.conflict_search import FEASIBLE, OPEN, ConflictSearch

    clock = _Clock(seconds)
    if clock.over():
        return FeasibleSearch(None, complete=False)
    search = ConflictSearch.of(problem, labels)
    while search.run(pace.CLAUSES) == OPEN and search.work < work and not clock.over():
        pass
    found = search.labels() if search.outcome == FEASIBLE else None
    return FeasibleSearch(found, complete=search.outcome != OPEN)


def fewest_violated(problem: Problem, labels: Ints, least: int = 0, seconds: float = math.inf) -> Ints:
    """A labelling near `labels` that violates few factors, by local search; `least` are few enough."""
    from mapmrf.engines.feasibility.repair import Repair

    search = Repair(problem, labels)  # compile time does not count
    before = search.n_violated
    clock, work, success = _Clock(seconds), 0, 0
    while True:
        search.run(pace.CLAUSES)
        work += pace.CLAUSES
        success = work if search.n_violated < before else success
        before = search.n_violated
        most = min(10_000_000, success + 3_000_000)  # entries to read, in all and since the last success
        if before <= least or work >= most or clock.over():
            return search.labels


class _Clock:
    """Tells a search when to end: its time is up, or Ctrl-C was pressed since it started."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.perf_counter() + seconds
        self.interrupted = interrupts.requested()  # an interrupted run still gets its seconds

    def over(self) -> bool:
        return time.perf_counter() >= self.deadline or (interrupts.requested() and not self.interrupted)


class _Search:
    def __init__(self, problem: Problem, labels: Ints, max_nodes: int, seconds: float) -> None:
        self.problem, self.labels, self.max_nodes = problem, labels, max_nodes
        self.clock = _Clock(seconds)
        self.nodes = 0
        self.gave_up = False
        self.ptr = problem.graph.var_ptr
        self.allowed: dict[int, Bools] = {}
        hard = np.zeros(problem.n_factors, dtype=bool)
        for batch in problem.batches:
            hard[batch.factors] = batch.hard
        self.hard = hard
        owner = problem.edge_factor
        edges = problem.nbr
        of_edge = owner[edges]
        self.factors_of = [
            of_edge[begin:end][hard[of_edge[begin:end]]]
            for begin, end in zip(problem.nbr_ptr[:-1], problem.nbr_ptr[1:], strict=True)
        ]

    def run(self) -> Ints | None:
        domain = self.problem.feasible_v.copy()
        if not self.propagate(domain, list(np.flatnonzero(self.hard))):
            return None
        stack = [domain]
        while stack:
            domain = stack.pop()
            counts = np.add.reduceat(domain.astype(np.int64), self.ptr[:-1]) if len(self.ptr) > 1 else np.zeros(0)
            if not np.any(counts > 1):
                return self.read(domain)
            self.nodes += 1
            if self.nodes >= self.max_nodes or self.clock.over():
                self.gave_up = True
                return None
            i = int(np.argmin(np.where(counts > 1, counts, np.iinfo(np.int64).max)))
            stack.extend(reversed(self.children(domain, i)))
        return None

    def children(self, domain: Bools, i: int) -> list[Bools]:
        """The remaining domains after each consistent choice for variable `i`, the preferred state first."""
        block = slice(self.ptr[i], self.ptr[i + 1])
        states = sorted(np.flatnonzero(domain[block]).tolist(), key=lambda k: k != self.labels[i])
        result = []
        for k in states:
            child = domain.copy()
            child[block] = False
            child[self.ptr[i] + k] = True
            if self.propagate(child, list(self.factors_of[i])):
                result.append(child)
        return result

    def propagate(self, domain: Bools, queue: list[int]) -> bool:
        """Remove states without support in some hard factor; False when a variable has none left."""
        counts = np.add.reduceat(domain.astype(np.int64), self.ptr[:-1]) if len(self.ptr) > 1 else np.zeros(0)
        if np.any(counts == 0):
            return False
        while queue:
            a = queue.pop()
            scope = self.problem.scope[self.problem.scope_ptr[a] : self.problem.scope_ptr[a + 1]]
            blocks = [domain[self.ptr[i] : self.ptr[i + 1]] for i in scope]
            table = self.table(a)
            support = table[np.ix_(*[np.flatnonzero(block) for block in blocks])]
            for k, i in enumerate(scope):
                others = tuple(j for j in range(len(scope)) if j != k)
                keep = support.any(axis=others)
                if keep.all():
                    continue
                if not keep.any():
                    return False
                states = np.flatnonzero(blocks[k])
                support = support[tuple(keep if j == k else slice(None) for j in range(len(scope)))]
                blocks[k][states[~keep]] = False  # a view: modifies the domain itself
                queue.extend(b for b in self.factors_of[i] if b != a)
        return True

    def table(self, a: int) -> Bools:
        if a not in self.allowed:
            self.allowed[a] = self.problem.graph.table(int(self.problem.order[a])) > -np.inf
        return self.allowed[a]

    def read(self, domain: Bools) -> Ints:
        return np.flatnonzero(domain) - self.ptr[:-1]


def penalised(graph: FactorGraph) -> FactorGraph:
    """Return the model with a loss in place of every -inf, larger than everything else together."""
    # Its best labellings have the fewest violations, and the largest value among those.
    graph = graph.expanded()
    loss = 1.0 + 2.0 * graph.size
    theta_v, theta_t = (np.where(np.isneginf(theta), -loss, theta) for theta in (graph.theta_v, graph.theta_t))
    limits = graph.constraints
    if limits is not None:
        limits = replace(limits, penalty=np.minimum(limits.penalty, loss))
    return replace(graph, theta_v=theta_v, theta_t=theta_t, constant=max(graph.constant, -loss), constraints=limits)
