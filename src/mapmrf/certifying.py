"""Make a certificate for a labelling: the dual point of the whole model that proves the best bound."""

from __future__ import annotations

import dataclasses
import heapq
import logging
import math
import time
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from mapmrf import interrupts
from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.certificates.certificate import Certificate, Cycles
from mapmrf.certificates.checking import MOST_ENTRIES, DualCheck
from mapmrf.certificates.whole import WholeModel
from mapmrf.compilation.stopping import CompilingStopped
from mapmrf.engines.elimination.small import small_order
from mapmrf.engines.messages.passes_kernels import LIMIT, PassStopping
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.engines.program.compact import is_compact
from mapmrf.engines.program.cycle_duals import cycle_dual
from mapmrf.engines.program.loading import highs_failure
from mapmrf.errors import UnsupportedModel
from mapmrf.graph import FactorGraph
from mapmrf.problem import Problem
from mapmrf.result import Result
from mapmrf.solver import as_graph

log = logging.getLogger("mapmrf")

ITERATIONS, STEP_WORK = 2000, 3_000_000
"""Iterations of message passing at most, and the work between two looks at the clock: some 20 ms."""

TIGHT = 1e-12
"""Relative gap at which message passing and cutting planes end: the checker does the rest."""

EXACT_ENTRIES, MOST_MODEL_ENTRIES = 500_000, 1 << 25
"""Table entries up to which the bound is computed in fractions, that of larger models being rounded up; and up to which
there are certificates at all: the checker takes some hundred bytes for each."""

MOST_PAIRS = 50_000
"""Pairs of binary variables up to which odd cycles are looked for."""

Stop = Callable[[], bool]


def certify(
    graph: FactorGraph, labels: ArrayLike | Result, *, time_limit: float | None = None, threads: int = 1
) -> Certificate:
    """Find a dual point of the model that proves how good a labelling is.

    The point is found anew for the whole model, whatever method has found the labelling, so that the certificate does
    not depend on any simplification of it: first by message passing, which is enough where the relaxation over the
    local polytope is tight, then with odd cycles if all variables are binary and all factors pairs. Variables that the
    point leaves undecided are left to the checker to maximise out, if that takes small tables.

    Parameters
    ----------
    graph
        The model.
    labels : (n_vars,)
        The labelling, or a Result.
    time_limit
        Seconds after which the best point so far is taken.
    threads
        Threads for message passing.

    Raises
    ------
    UnsupportedModel
        If the model is too large to be checked.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> model = grid(25, 25, coupling=2.0, seed=1)
    >>> result = mapmrf.solve(model)
    >>> certificate = mapmrf.certify(model, result)
    >>> mapmrf.verify(model, result.labels, certificate).relative_gap() < 1e-12, certificate.cycles.n > 0
    (True, True)
    """
    graph = as_graph(graph)
    if graph.constraints is not None:
        raise UnsupportedModel("no certificate: certificates are for models without constraints")
    if _n_entries(graph) > MOST_MODEL_ENTRIES:
        found = f"{_n_entries(graph)} table entries"
        raise UnsupportedModel(f"no certificate: the model has {found}, expected at most {MOST_MODEL_ENTRIES}")
    labels = graph.check_labels(labels.labels if isinstance(labels, Result) else labels)
    end = math.inf if time_limit is None else time.perf_counter() + time_limit
    return _Maker(graph, labels, lambda: time.perf_counter() >= end or interrupts.requested(), threads).make()


def with_certificate(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    """The result with a certificate, made in the time that is left; without one if there is none."""
    left = deadline - time.perf_counter()
    if left <= 0 or interrupts.requested():
        return result
    try:
        certificate = certify(graph, result.labels, time_limit=None if left == math.inf else left, threads=threads)
    except CompilingStopped:
        return result
    except UnsupportedModel as error:
        log.warning("%s", error)
        return result
    return dataclasses.replace(result, certificate=certificate)


class _Maker:
    """The model, the labelling, and the best certificate so far."""

    def __init__(self, graph: FactorGraph, labels: Ints, stop: Stop, threads: int) -> None:
        self.graph, self.labels, self.stop, self.threads = graph, labels, stop, threads
        self.value = graph.value(labels)
        self.exact = _n_entries(graph) <= EXACT_ENTRIES
        self.best: Certificate | None = None
        self.closed = False

    def make(self) -> Certificate:
        """Try one kind of proof after another until the gap is closed."""
        if self.graph.constant == -math.inf:
            return Certificate(bound=-math.inf)
        small = small_order(self.graph)
        if small is not None:
            self.offer(Certificate(order=np.array([clique[0] for clique in small.cliques], dtype=np.int64)))
        if not self.closed:
            problem = Problem.compile(self.graph, self.threads)
            self.offer(Certificate(lam=in_graph_order(problem, self.relaxed(problem))))
            if not self.closed and not self.stop():
                self.add_cycles(problem)
        assert self.best is not None
        return self.best

    def offer(self, candidate: Certificate) -> None:
        """Keep a certificate, with the bound that it proves, if that is the best so far.

        One that has no order gets one for the variables that it leaves open, if their tables are small.
        """
        model = WholeModel.build(self.graph, candidate, self.exact)
        target = None if self.value == -math.inf else model.value(self.labels) + model.slack
        check = DualCheck(model, target, self.stop)
        found = check.run(candidate.order, MOST_ENTRIES)
        if found.n_open and not found.eliminated and not self.stop():
            candidate = dataclasses.replace(candidate, order=greedy_order(self.graph, check.n_left(), MOST_ENTRIES))
            found = check.run(candidate.order, MOST_ENTRIES) if len(candidate.order) else found
        claim = -math.inf if found.bound is None else _not_below(found.bound)
        if self.best is None or claim < self.best.bound:
            self.best = dataclasses.replace(candidate, bound=claim)
        reached = target is not None and found.bound is not None and found.bound <= model.fraction(target)
        self.closed = self.closed or found.bound is None or reached

    @property
    def tolerance(self) -> float:
        """The gap that counts as closed here."""
        return TIGHT * max(1.0, abs(self.value)) if self.value > -math.inf else 0.0

    def relaxed(self, problem: Problem) -> Floats:
        """Messages of sequential passes, in the order of the problem; 0 where a state has been found impossible."""
        if problem.n_factors == 0:
            return np.zeros(0)
        passes = TablePasses(problem, VisitOrder.build(problem, "trees_last"), PassStopping(1e-13, 0.0))
        try:
            done, why, chunk = 0, LIMIT, max(1, STEP_WORK // (passes.work + 1))
            while why == LIMIT and done < ITERATIONS and not self.stop():
                n, why = passes.iterate(done, min(done + chunk, ITERATIONS), ITERATIONS)
                done += n
                if passes.figures.bound - self.value <= self.tolerance:
                    break
            return np.where(np.isfinite(passes.messages.lam), passes.messages.lam, 0.0)
        finally:
            passes.close()

    def add_cycles(self, problem: Problem) -> None:
        """Offer a dual point with odd cycles, if the model is one of binary pairs."""
        if not is_compact(problem) or problem.n_factors > MOST_PAIRS or highs_failure() is not None:
            return
        dual = cycle_dual(problem, self.value, self.tolerance, self.stop)
        if dual is not None:
            cycles = Cycles(dual.ptr.astype(np.int64), problem.order[dual.pair].astype(np.int64), dual.odd, dual.weight)
            self.offer(Certificate(lam=in_graph_order(problem, dual.lam_e), cycles=cycles))


def greedy_order(graph: FactorGraph, n_states: Ints, max_entries: int) -> Ints:
    """An order of the variables with several states that always takes the one with the smallest table next.

    Empty if the tables would have more than `max_entries` entries together.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.datasets import grid
    >>> greedy_order(grid(2, 2), np.array([2, 2, 1, 2]), 100).tolist()
    [0, 1, 3]
    """
    sizes = n_states.tolist()
    near: dict[int, set[int]] = {i: set() for i, size in enumerate(sizes) if size > 1}
    ptr, scope = graph.scope_ptr.tolist(), graph.scope.tolist()
    for begin, end in pairwise(ptr):
        some = [i for i in scope[begin:end] if i in near]
        for i in some:
            near[i].update(some)
    heap = [(math.prod(sizes[j] for j in near[i] | {i}), i) for i in near]
    heapq.heapify(heap)
    order = []
    while near:
        weight, i = heapq.heappop(heap)
        if i not in near or weight != math.prod(sizes[j] for j in near[i] | {i}):
            continue  # eliminated, or entered again with another weight
        max_entries -= weight
        if max_entries < 0:
            return np.zeros(0, dtype=np.int64)
        order.append(i)
        others = near.pop(i) - {i}
        for j in others:
            near[j] |= others
            near[j].discard(i)
            heapq.heappush(heap, (math.prod(sizes[k] for k in near[j] | {j}), j))
    return np.array(order, dtype=np.int64)


def in_graph_order(problem: Problem, lam_e: Floats) -> Floats:
    """Messages by the edges of the graph as it was given, from those by the edges of the problem."""
    graph = problem.graph
    sizes = np.diff(problem.edge_ptr[problem.scope_ptr])
    edge_ptr = offsets(graph.card[graph.scope])
    starts = edge_ptr[graph.scope_ptr[:-1]][problem.order]
    result = np.zeros_like(lam_e)
    result[ranges(starts, sizes)] = lam_e
    return result


def _n_entries(graph: FactorGraph) -> int:
    """Entries of the tables of all factors, each counted for itself, and unary ones."""
    return int(np.diff(graph.table_ptr)[graph.table_of].sum(dtype=np.int64)) + len(graph.theta_v)


def _not_below(bound: Fraction) -> float:
    """The smallest float that is not below a fraction."""
    near = float(bound)
    return near if Fraction(near) >= bound else math.nextafter(near, math.inf)
