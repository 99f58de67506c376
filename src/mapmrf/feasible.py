"""Find a labelling of finite log potential near a given one, or prove that there is none."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np

from mapmrf import interrupts
from mapmrf.arrays import Bools, Ints
from mapmrf.problem import Problem

MAX_NODES = 20_000
"""Search nodes after which the search gives up."""


REPAIR_SECONDS = 1.0
"""How long a run whose time is over may still look for a labelling of finite value, if it has none."""


@dataclass(frozen=True)
class FeasibleSearch:
    """Outcome: labels, or None; `complete` says that None means "there is none"."""

    labels: Ints | None
    complete: bool


def find_feasible(
    problem: Problem, labels: Ints, max_nodes: int = MAX_NODES, seconds: float = math.inf
) -> FeasibleSearch:
    """Depth-first search over the hard constraints alone, states of `labels` first.

    Domains are kept consistent with every hard factor on which they change; the variable with the fewest states left
    is branched on next. Exact on small models, bounded by `max_nodes` and `seconds` on large ones.
    """
    if problem.graph.constant == -math.inf:
        return FeasibleSearch(None, complete=True)
    search = _Search(problem, labels, max_nodes, seconds)
    found = search.run()
    if found is None:
        return FeasibleSearch(None, complete=not search.gave_up)
    return FeasibleSearch(found, complete=True)


class _Search:
    def __init__(self, problem: Problem, labels: Ints, max_nodes: int, seconds: float) -> None:
        self.problem, self.labels, self.max_nodes = problem, labels, max_nodes
        self.deadline = time.perf_counter() + seconds
        self.interrupted = interrupts.requested()  # a run that was interrupted still gets its seconds
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
            if self.nodes >= self.max_nodes or time.perf_counter() >= self.deadline or self.stopped():
                self.gave_up = True
                return None
            i = int(np.argmin(np.where(counts > 1, counts, np.iinfo(np.int64).max)))
            stack.extend(reversed(self.children(domain, i)))
        return None

    def stopped(self) -> bool:
        """Whether Ctrl-C was pressed during the search."""
        return interrupts.requested() and not self.interrupted

    def children(self, domain: Bools, i: int) -> list[Bools]:
        """The domains left after each choice for variable `i` that propagates, the preferred state first."""
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
                blocks[k][states[~keep]] = False  # a view: changes the domain itself
                queue.extend(b for b in self.factors_of[i] if b != a)
        return True

    def table(self, a: int) -> Bools:
        if a not in self.allowed:
            self.allowed[a] = self.problem.graph.table(int(self.problem.order[a])) > -np.inf
        return self.allowed[a]

    def read(self, domain: Bools) -> Ints:
        """Take the one state left to every variable."""
        return np.flatnonzero(domain) - self.ptr[:-1]
