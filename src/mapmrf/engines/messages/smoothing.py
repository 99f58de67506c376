"""A run of plain and smoothed passes, and the best point of the local polytope found."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.engines.messages.passes_kernels import PassStopping
from mapmrf.engines.messages.smoothing_kernels import (
    Extension,
    JointScratch,
    Smoothing,
    SoftFactors,
    SoftPoint,
    extend_marginals,
    soft_iterate,
)
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.polytope import FactorMarginals
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.incumbent import Incumbent

ROUND_OFF = 1e-12
"""Gaps below this, relative to that between the bound and the labels, count as zero."""
MAX_RAISES, MAX_RAISE = 20, 16.0
"""Maximum number of increases of an initial temperature that is too low, and the maximum factor of each."""


class SmoothedRun:
    """Plain passes, smoothed multipliers and marginals, and the best results so far.

    Attributes
    ----------
    plain
        The plain passes, with the best bound.
    temperature
        0 while iterations are plain.
    lam, mu
        Multipliers of the smoothed problem, and its variable marginals.
    best
        The best labelling so far, None while none is feasible.
    relaxed, point
        Value of the best extended marginals so far, and the marginals.
    done, inner
        Iterations so far, and those since the last measurement of the gaps.
    """

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        self.problem = problem
        self.plain = TablePasses(problem, order, stopping)
        self.keep = order.keep
        self.lam: Floats = np.zeros(0)
        self.mu: Floats = np.zeros(problem.n_states)
        self.factors = SoftFactors(
            problem.graph.theta_t, problem.table_at, problem.weight, problem.scope_ptr, problem.edge_ptr,
            self.plain.model.turn, problem.graph.var_ptr[problem.scope],
        )  # fmt: skip
        self.temperature = 0.0
        self.done = self.inner = 0
        self.best: Incumbent | None = None
        self.relaxed = -math.inf
        self.point: SoftPoint | None = None

    @property
    def bound(self) -> float:
        """The best upper bound."""
        return self.plain.figures.bound

    @bound.setter
    def bound(self, bound: float) -> None:
        self.plain.figures = self.plain.figures._replace(bound=bound)

    @property
    def value(self) -> float:
        """Value of the best labelling, -inf while there is none."""
        return -math.inf if self.best is None else self.best.value

    @property
    def gap(self) -> float:
        """Gap between the bound and the best point of L_G."""
        return self.bound - max(self.value, self.relaxed)

    def closed_gap(self, tol: float) -> float:
        """Return the gap that counts as closed: relative to the bound, or round-off if the bound is close to 0."""
        spread = self.bound - self.value
        return max(tol * abs(self.bound), ROUND_OFF * spread if math.isfinite(spread) else 0.0)

    def offer(self, labels: Ints, claim: float | None = None) -> None:
        """Keep a labelling if it is feasible and the best so far."""
        if self.best is not None:
            self.best.offer(labels, claim)
            return
        first = Incumbent(self.problem.graph, labels)
        self.best = first if first.value > -math.inf else None

    # -- passes -------------------------------------------------------------------------------------------------------

    def iterate_plain(self, n: int) -> int:
        """Run some plain iterations; return why they ended."""
        known = self.plain.figures.value
        n, why = self.plain.iterate(self.done, self.done + n, 1)
        self.done += n
        self._offer_plain(known)
        return why

    def _offer_plain(self, known: float) -> None:
        """Take over the best labelling of the plain passes, if it is better than `known`."""
        claim = self.plain.figures.value
        if claim > known:
            self.offer(self.plain.best, claim)

    def begin(self, gap_ratio: float) -> None:
        """Set the initial temperature: raised from a safe one until smoothing costs its share of the gap."""
        size = sum(batch.n * math.log(max(2, batch.n_configs)) for batch in self.problem.batches)
        share = (self.gap if math.isfinite(self.gap) else max(1.0, abs(self.bound))) / gap_ratio
        self.lam = self.plain.messages.lam.copy()
        self.temperature = share / max(1.0, size)
        for _ in range(MAX_RAISES):
            cost = self.soft_iterate(1, self.lam.copy()) - self.bound
            if not cost <= share:
                break
            self.temperature *= min(max(2.0, share / cost), MAX_RAISE) if cost > 0.0 else MAX_RAISE

    def soft_iterate(self, n: int, lam: Floats) -> float:
        """Run smoothed iterations on some multipliers; return the smoothed bound."""
        plain, smoothing = self.plain, Smoothing(self.temperature, self.keep, self.mu)
        bound = soft_iterate(n, plain.model, plain.messages._replace(lam=lam), smoothing, plain.scratch)
        return bound + self.problem.graph.constant

    # -- measurements -------------------------------------------------------------------------------------------------

    def measure_plain(self) -> float:
        """Compute bound and labelling by a plain iteration from the smoothed multipliers; return that bound."""
        best, known = self.bound, self.plain.figures.value
        self.plain.messages.lam[:] = self.lam
        self.bound = math.inf
        self.plain.iterate(0, 1, 1)
        found = self.bound
        self.bound = min(found, best)
        self._offer_plain(known)
        return found

    def measure_relaxed(self) -> tuple[float, float]:
        """Extend the smoothed marginals to a point of L_G, and round them; return smoothed value and entropy."""
        problem, graph = self.problem, self.problem.graph
        point = SoftPoint(self.mu, self.lam, self.temperature)
        value, soft, entropy = self.extend(point, slice(0, problem.n_factors), np.zeros(0))
        possible = self.mu > 0
        mu = self.mu[possible]
        unary = graph.constant + float(mu @ graph.theta_v[possible])
        if unary + value > self.relaxed:
            self.relaxed = unary + value
            self.point = SoftPoint(self.mu.copy(), self.lam.copy(), self.temperature)
        self.offer(segment_argmax(self.mu, graph.var_ptr))
        counted = np.empty(problem.n_vars)  # by how much the factors' entropies overcount that of a variable
        counted[self.plain.seq] = problem.degree[self.plain.seq] - 1.0 / self.plain.model.omega
        return unary + soft, entropy + float((np.repeat(counted, graph.card)[possible] * mu) @ np.log(mu))

    def extend(self, point: SoftPoint, factors: slice, out: Floats) -> Extension:
        """Extend marginals to some factors in the kernel."""
        largest = max((batch.n_configs for batch in self.problem.batches), default=1)
        scratch = JointScratch.allocate(max(largest, int(self.problem.graph.card.max(initial=1))))
        return extend_marginals(factors.start, factors.stop, self.factors, point, scratch, out)

    def factor_marginals(self, point: SoftPoint) -> FactorMarginals:
        """Return the extension of marginals to the factors, block by block."""

        def mu_f(batch: Batch, rows: slice) -> Floats:
            out = np.zeros((rows.stop - rows.start, batch.n_configs))
            begin = batch.factors.start
            self.extend(point, slice(begin + rows.start, begin + rows.stop), out.reshape(-1))
            return out

        return mu_f
