"""Make a certificate for a labelling: the dual point of the whole model that proves the best bound."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable
from fractions import Fraction

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.certificates.certificate import Certificate, Cycles
from mapmrf.certificates.check import MOST_ENTRIES, DualCheck, TreeCheck
from mapmrf.certificates.exact_model import IntegerModel, exact_value, without
from mapmrf.certificates.make.growing import (
    MOST_BYTES,
    MOST_NODES,
    CaseGrower,
    TreeLimits,
    greedy_order,
    greedy_start,
    in_graph_order,
)
from mapmrf.compilation.stopping import CompilingStopped
from mapmrf.constraints.as_tables import rewrite
from mapmrf.engines.elimination.numpy_elimination import small_order
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import LIMIT, PassStopping
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.engines.program.compact import is_compact
from mapmrf.engines.program.cutting_planes import cycle_dual
from mapmrf.engines.program.program import highs_failure
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts
from mapmrf.run.result import Result
from mapmrf.run.solve import as_graph

log = logging.getLogger("mapmrf")

ITERATIONS, STEP_WORK = 2000, 3_000_000
"""Maximum number of iterations of message passing, and the work between two checks of the clock: about 20 ms."""

TIGHT = 1e-12  # relative gap at which message passing and cutting planes end: the checker does the rest

EXACT_ENTRIES, MOST_MODEL_ENTRIES = 500_000, 1 << 25
"""Table entries up to which the bound is computed in fractions, while that of larger models is rounded up; and up to
which there are certificates at all: the checker needs some hundred bytes for each."""

MOST_PAIRS = 50_000  # number of pairs of binary variables up to which odd cycles are searched for
FIRST_ENTRIES = 1 << 10  # maximum table entries of variables that are maximised out before a tree of cases is grown

CYCLES, GROWING = 0.4, 0.3
"""Shares of the remaining time for finding cycles and for growing a tree of cases: the rest is for checking."""

UNLIMITED = 60.0  # seconds for growing a tree of cases if there is no time limit


def certify(
    graph: FactorGraph,
    labels: ArrayLike | Result,
    *,
    time_limit: float | None = None,
    threads: int = 1,
    max_nodes: int = MOST_NODES,
    max_bytes: int = MOST_BYTES,
) -> Certificate:
    """Find a dual point of the model that proves how good a labelling is, and cases if one point is not enough.

    The point is computed for the whole model, whatever method found the labelling, so that the certificate does not
    depend on any simplification of it: first by message passing, which is enough if the relaxation over the local
    polytope is tight, then with odd cycles if all variables are binary and all factors pairs. Variables that the point
    leaves undecided are maximised out by the checker, if small tables are enough. If a gap remains, a tree of cases is
    grown until the gap is closed or the tree reaches its limits.

    Parameters
    ----------
    graph
        The model.
    labels : (n_vars,)
        The labelling, or a Result.
    time_limit
        Seconds after which the best point so far is used. By default, a tree of cases grows for at most a minute.
    threads
        Threads for message passing.
    max_nodes, max_bytes
        Limits of a tree of cases, in bytes before compression. With `max_nodes=0` there are no cases.

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
    labels = graph.check_labels(labels.labels if isinstance(labels, Result) else labels)
    if graph.constraints is not None:
        rewriting = rewrite(graph)
        graph, labels = rewriting.graph, rewriting.lift(labels)
    if _n_entries(graph) > MOST_MODEL_ENTRIES:
        found = f"{_n_entries(graph)} table entries"
        raise UnsupportedModel(f"no certificate: the model has {found}, expected at most {MOST_MODEL_ENTRIES}")
    end = math.inf if time_limit is None else time.perf_counter() + time_limit
    return _Maker(graph, labels, end, TreeLimits(max_nodes, max_bytes), threads).make()


def with_certificate(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    """The result with a certificate, if one is found in the remaining time."""
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

    def __init__(self, graph: FactorGraph, labels: Ints, end: float, limits: TreeLimits, threads: int) -> None:
        self.graph, self.labels, self.end, self.limits, self.threads = graph, labels, end, limits, threads
        self.value = graph.value(labels)
        self.worth = exact_value(graph, labels)
        self.exact = _n_entries(graph) <= EXACT_ENTRIES
        self.best: Certificate | None = None
        self.closed = False

    def stop(self) -> bool:
        return time.perf_counter() >= self.end or interrupts.requested()

    def within(self, part: float, most: float = math.inf) -> Callable[[], bool]:
        """A stopping rule: a share of the remaining time has passed, or this many seconds if there is no limit."""
        now = time.perf_counter()
        end = now + (part * (self.end - now) if self.end < math.inf else most)
        return lambda: time.perf_counter() >= end or interrupts.requested()

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
            if not self.tight and not self.stop() and self.limits.nodes > 1:
                (self.add_cases if is_compact(problem) else self.add_reduced)()
        assert self.best is not None
        return self.best

    def offer(self, candidate: Certificate) -> None:
        """Keep a certificate, with the bound that it proves, if it is the best so far.

        One without an order gets one for the variables that it leaves open, if their tables are small.
        """
        model = IntegerModel.build(self.graph, candidate, self.exact)
        target = model.target(self.worth, self.labels)
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
    def tight(self) -> bool:
        """Whether there is nothing left to gain but round-off."""
        return self.closed or (self.best is not None and self.best.bound - self.value <= self.tolerance)

    @property
    def tolerance(self) -> float:
        """The gap that counts as closed here."""
        return TIGHT * max(1.0, abs(self.value)) if self.value > -math.inf else 0.0

    def relaxed(self, problem: Problem) -> Floats:
        """Messages of sequential passes, in the order of the problem; 0 for impossible states."""
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
        soon = self.within(CYCLES if self.limits.nodes > 1 else 1.0)
        dual = cycle_dual(problem, self.value, self.tolerance, soon)
        if dual is not None:
            cycles = Cycles(dual.ptr.astype(np.int64), problem.order[dual.pair].astype(np.int64), dual.odd, dual.weight)
            self.offer(Certificate(lam=in_graph_order(problem, dual.lam_e), cycles=cycles))

    def add_reduced(self) -> None:
        """Offer a certificate of the model without variables that can be maximised out within small tables."""
        first = greedy_start(self.graph, FIRST_ENTRIES)
        if not len(first):
            self.add_cases()
            return
        graph, kept = without(self.graph, first)
        if graph.constant == -math.inf:
            self.best = Certificate(bound=-math.inf, first=first)
            return
        maker = _Maker(graph, self.labels[kept], self.end, self.limits, self.threads)
        if graph.n_factors:
            problem = Problem.compile(graph, self.threads)
            maker.offer(Certificate(lam=in_graph_order(problem, maker.relaxed(problem))))
            if not maker.tight and not self.stop():
                maker.add_cases()
        else:
            maker.offer(Certificate())
        if maker.best is not None and (self.best is None or maker.best.bound < self.best.bound):
            self.best = dataclasses.replace(maker.best, first=first)

    def add_cases(self) -> None:
        point = self.best
        if point is None or self.graph.n_factors == 0:
            return
        tree = CaseGrower(self.graph, point, self.worth, self.limits, self.within(GROWING, UNLIMITED)).grow()
        candidate = dataclasses.replace(point, tree=tree, bound=math.inf)
        found = TreeCheck(self.graph, candidate, True, MOST_ENTRIES, self.stop).above(self.worth, None)
        claim = -math.inf if found.bound is None else _not_below(found.bound)
        if claim < point.bound:
            self.best = dataclasses.replace(candidate, bound=claim)


def _n_entries(graph: FactorGraph) -> int:
    """Entries of the tables of all factors, shared ones counted repeatedly, and unary ones."""
    return int(np.diff(graph.table_ptr)[graph.table_of].sum(dtype=np.int64)) + len(graph.theta_v)


def _not_below(bound: Fraction) -> float:
    """The smallest float that is not below a fraction."""
    near = float(bound)
    return near if Fraction(near) >= bound else math.nextafter(near, math.inf)
