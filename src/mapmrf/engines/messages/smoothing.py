"""A run of plain and smoothed passes, and the best point of the local polytope found."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.factor_messages import FactorMessages
from mapmrf.engines.messages.srmp import (
    SrmpModel,
    SrmpScratch,
    TablePasses,
    collect,
    distribute,
    drop_impossible,
    joint_sums,
)
from mapmrf.engines.messages.sweeps import PassMessages, PassStopping
from mapmrf.engines.messages.visit_order import FIRST, LAST, VisitOrder
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.polytope import FactorMarginals
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.incumbent import Incumbent


class SmoothedRun:
    """Plain passes, smoothed multipliers and marginals, and the best results so far."""

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        self.problem = problem
        self.plain = TablePasses(problem, order, stopping)  # the plain passes, with the best bound
        self.keep = order.keep
        # lam, mu: multipliers of the smoothed problem, and its variable marginals
        self.lam: Floats = np.zeros(0)
        self.mu: Floats = np.zeros(problem.n_states)
        self.factors = FactorMessages.of(problem)
        self.temperature = 0.0  # 0 while iterations are plain
        # done, inner: iterations so far, and those since the last measurement of the gaps
        self.done = self.inner = 0
        self.best: Incumbent | None = None  # the best labelling so far, None while none is feasible
        # relaxed, point: value of the best extended marginals so far, and the marginals
        self.relaxed = -math.inf
        self.point: SoftPoint | None = None

    @property
    def bound(self) -> float:
        return self.plain.figures.bound

    @bound.setter
    def bound(self, bound: float) -> None:
        self.plain.figures = self.plain.figures._replace(bound=bound)

    @property
    def value(self) -> float:
        return -math.inf if self.best is None else self.best.value

    @property
    def gap(self) -> float:
        """Gap between the bound and the best point of L_G."""
        return self.bound - max(self.value, self.relaxed)

    def closed_gap(self, tol: float) -> float:
        """Return the gap that counts as closed: relative to the bound, or round-off if the bound is close to 0."""
        spread = self.bound - self.value
        # Gaps below this, relative to that between the bound and the labels, count as zero
        return max(tol * abs(self.bound), 1e-12 * spread if math.isfinite(spread) else 0.0)

    def offer(self, labels: Ints, claim: float | None = None) -> None:
        if self.best is not None:
            self.best.offer(labels, claim)
            return
        first = Incumbent(self.problem.graph, labels)
        self.best = first if first.value > -math.inf else None

    def iterate_plain(self, n: int) -> int:
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
        for _ in range(20):  # increases of an initial temperature that is too low, each by a factor of at most 16
            cost = self.soft_iterate(1, self.lam.copy()) - self.bound
            if not cost <= share:
                break
            self.temperature *= min(max(2.0, share / cost), 16.0) if cost > 0.0 else 16.0

    def soft_iterate(self, n: int, lam: Floats) -> float:
        """Run smoothed iterations on some multipliers; return the smoothed bound."""
        plain, messages = self.plain, self.plain.messages._replace(lam=lam)
        bound = soft_iterate(n, plain.model, messages, self.temperature, self.keep, self.mu, plain.scratches[0])
        return bound + self.problem.graph.constant

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

    def extend(self, point: SoftPoint, factors: slice, out: Floats) -> tuple[float, float, float]:
        largest = max((batch.n_configs for batch in self.problem.batches), default=1)
        scratch = np.zeros((3, max(largest, int(self.problem.graph.card.max(initial=1)))))
        turn = self.plain.model.turn
        return extend_marginals(factors.start, factors.stop, self.factors, turn, point, scratch, out)

    def factor_marginals(self, point: SoftPoint) -> FactorMarginals:
        def mu_f(batch: Batch, rows: slice) -> Floats:
            out = np.zeros((rows.stop - rows.start, batch.n_configs))
            begin = batch.factors.start
            self.extend(point, slice(begin + rows.start, begin + rows.stop), out.reshape(-1))
            return out

        return mu_f


# -- The smoothed counterpart of `srmp`, and points of the local polytope read from its multipliers -----------
# Maxima are replaced by ``rho log sum exp(. / rho)``, always with the maximum taken out. The passes minimise the
# dual of
#
#     <theta, mu> + rho (sum_a H(mu_a) - sum_i (n_i - 1 / omega_i) H(mu_i)),   mu in L_G,
#
# which is smooth, so that they do not stall before its minimum. n_i is the number of factors of a variable.

NOTHING = 40.0  # a term this many temperatures below the largest is below floating-point precision


@inlined
def soften(
    rho: float, row: int, model: SrmpModel, edge_ptr: Ints | None, lam: Floats, n_own: int, scratch: SrmpScratch
) -> None:
    """Close the log-sum-exp over the entries of which `collect` has put the best into `work`."""
    # A state without any possible entry stays at -inf. `sums` are as `collect` left them.
    out, mass, sums, tables = scratch.work, scratch.score, scratch.sums, model.tables
    link, weight = model.links[row], weight_of(model.weight, row)
    if link.n_other > 0:
        # Unsigned places need no check for negative ones.
        first_at, n, step = np.uintp(link.other), np.uintp(link.n_other), np.uintp(link.step_other)
        entries, step_own = np.uintp(link.table), np.uintp(link.step_own)
        for k in range(np.uintp(n_own)):
            top, total, at = out[k], 0.0, entries
            for j in range(n):
                below = (weight * tables[at] + lam[first_at + j] - top) / rho
                if below > -NOTHING:
                    total += math.exp(below)
                at += step
            mass[k] = total
            entries += step_own
    elif edge_ptr is not None:
        at, first, one = np.uintp(link.table), link.other, np.uintp(1)
        own = first + link.step_own
        size = edge_ptr[own + 1] - edge_ptr[own]
        n_outer, n_inner = 1, 1
        for e in range(first, first + link.step_other):
            if e < own:
                n_outer *= edge_ptr[e + 1] - edge_ptr[e]
            elif e > own:
                n_inner *= edge_ptr[e + 1] - edge_ptr[e]
        for k in range(size):
            mass[k] = 0.0
        inner, begin = np.uintp(n_inner), np.uintp(n_outer)
        for o in range(n_outer):
            outer = sums[o]
            for k in range(size):
                top, total = out[k], mass[k]
                for i in range(inner):
                    below = (weight * tables[at] + (outer + sums[begin + i]) - top) / rho
                    if below > -NOTHING:
                        total += math.exp(below)
                    at += one
                mass[k] = total
    for k in range(n_own):
        if mass[k] > 0.0:
            out[k] += rho * math.log(mass[k])


@bare
def soft_sweep(
    forward: bool, model: SrmpModel, messages: PassMessages, rho: float, keep: Floats, mu: Floats, scratch: SrmpScratch
) -> float:
    """Visit all variables in one direction; return the smoothed bound (backward) and fill in the marginals `mu`."""
    # `keep` is what a variable keeps of its belief in a backward pass.
    links, lam = model.links, messages.lam
    belief, work, n_vars = scratch.belief, scratch.work, len(model.visits)
    total = 0.0
    skip, end = (FIRST, LAST) if forward else (LAST, FIRST)
    for v in range(n_vars):
        p = v if forward else n_vars - 1 - v
        visit, omega = model.visits[p], model.omega[p]
        theta_at, n_own = visit.theta_at, visit.n_own
        for k in range(n_own):
            belief[k] = messages.theta[theta_at + k]
        for row in range(visit.begin, visit.end):
            link = links[row]
            mine = link.lam
            if link.role == skip:
                for k in range(n_own):
                    belief[k] -= lam[mine + k]
                continue
            collect(row, model, model.edge_ptr, lam, n_own, scratch)
            soften(rho, row, model, model.edge_ptr, lam, n_own, scratch)
            top = work[0]
            for k in range(1, n_own):
                top = max(top, work[k])
            if not forward and link.role == FIRST:
                total += top
            for k in range(n_own):
                belief[k] += work[k] - top
                lam[mine + k] = top - work[k]
        best = drop_impossible(visit, links, messages, belief)
        if best == -np.inf:
            return -np.inf
        partition = 0.0
        for k in range(n_own):
            mu[theta_at + k] = math.exp(omega * (belief[k] - best) / rho)
            partition += mu[theta_at + k]
        for k in range(n_own):
            mu[theta_at + k] /= partition
        total += best + keep[p] / omega * rho * math.log(partition)
        distribute(visit, links, end, omega, best, lam, belief)
    return total


@compiled
def soft_iterate(
    n: int, model: SrmpModel, messages: PassMessages, rho: float, keep: Floats, mu: Floats, scratch: SrmpScratch
) -> float:
    """Run smoothed iterations; return the smoothed bound, without the constant, that the last one proves."""
    total = 0.0
    for half in range(2 * n):
        total = soft_sweep(half % 2 == 0, model, messages, rho, keep, mu, scratch)
    return total


class SoftPoint(NamedTuple):
    """Marginals of the variables, and the multipliers and the temperature by which they extend to the factors."""

    mu: Floats
    lam: Floats
    rho: float


@inlined
def scale_axis(w: Floats, n: int, inner: int, size: int, by: Floats) -> None:
    """Multiply a table by ``by[s]`` for every state s of one of its variables."""
    t = 0
    while t < n:
        for s in range(size):
            factor = by[s]
            for _ in range(inner):
                w[t] *= factor
                t += 1


@inlined
def sum_axis(w: Floats, n: int, inner: int, size: int, out: Floats) -> None:
    """Marginal of a table over one of its variables."""
    for s in range(size):
        out[s] = 0.0
    t = 0
    while t < n:
        for s in range(size):
            total = out[s]
            for _ in range(inner):
                total += w[t]
                t += 1
            out[s] = total


@bare
def soft_table(a: int, factors: FactorMessages, turn: Ints, point: SoftPoint, w: Floats) -> int:
    """A factor's smoothed distribution: a softmax of its table, given the marginal of its first variable."""
    # `turn` is the place of the edge's variable in the order.
    edge_ptr = factors.edge_ptr
    at, first, last = factors.table_at[a], factors.scope_ptr[a], factors.scope_ptr[a + 1]
    n = joint_sums(first, last, edge_ptr, point.lam, w, 0)
    top, weight = -np.inf, weight_of(factors.weight, a)
    for t in range(n):
        w[t] += weight * factors.theta_t[at + t]
        top = max(top, w[t])
    root = first
    for e in range(first, last):
        root = e if turn[e] < turn[root] else root
    inner = 1
    for e in range(root + 1, last):
        inner *= edge_ptr[e + 1] - edge_ptr[e]
    size = edge_ptr[root + 1] - edge_ptr[root]
    total, t, mu_at = 0.0, 0, factors.state_at[root]
    while t < n:
        for s in range(size):
            mu = point.mu[mu_at + s]
            for _ in range(inner):
                w[t] = mu * math.exp((w[t] - top) / point.rho)
                total += w[t]
                t += 1
    for t in range(n):
        w[t] = w[t] / total if total > 0.0 else 0.0
    return n


@bare
def couple(a: int, factors: FactorMessages, turn: Ints, point: SoftPoint, scratch: Floats) -> int:
    """Fill the first row of the scratch with a joint distribution with exactly the marginals of the variables."""
    # The smoothed distribution is scaled down along each variable where it has too much; what is then missing is
    # filled up by the product of the marginals that are missing. Returns the number of configurations.
    w, extra, margin = scratch[0], scratch[1], scratch[2]
    edge_ptr, mu_at, mu = factors.edge_ptr, factors.state_at, point.mu
    first, last = factors.scope_ptr[a], factors.scope_ptr[a + 1]
    n = soft_table(a, factors, turn, point, w)
    inner = n
    for e in range(first, last):
        size = edge_ptr[e + 1] - edge_ptr[e]
        inner //= size
        sum_axis(w, n, inner, size, margin)
        for s in range(size):
            margin[s] = min(1.0, mu[mu_at[e] + s] / margin[s]) if margin[s] > 0.0 else 1.0
        scale_axis(w, n, inner, size, margin)
    missing = 1.0
    for t in range(n):
        missing -= w[t]
    if missing <= 0.0:
        return n
    for t in range(n):
        extra[t] = missing
    inner = n
    for e in range(first, last):
        size = edge_ptr[e + 1] - edge_ptr[e]
        inner //= size
        sum_axis(w, n, inner, size, margin)
        for s in range(size):
            margin[s] = max(0.0, mu[mu_at[e] + s] - margin[s]) / missing
        scale_axis(extra, n, inner, size, margin)
    for t in range(n):
        w[t] += extra[t]
    return n


@inlined
def best_pair(weight: float, theta_t: Floats, at: int, p: float, q: float, w: Floats) -> None:
    """The best joint distribution of two binary variables that are 1 with probabilities p and q."""
    together = weight * (theta_t[at] + theta_t[at + 3] - theta_t[at + 1] - theta_t[at + 2])
    both = min(p, q) if together >= 0.0 else max(0.0, p + q - 1.0)
    w[0], w[1], w[2], w[3] = max(0.0, 1.0 - p - q + both), q - both, p - both, both


@inlined
def joint_value(weight: float, theta_t: Floats, at: int, w: Floats, n: int) -> tuple[float, float, float]:
    """<theta, w>, -inf with mass on a forbidden entry; that with a finite price of such mass; the entropy of w."""
    value, entropy = 0.0, 0.0
    forbidden, most = 0.0, 0.0
    low, high = np.inf, -np.inf
    for t in range(n):
        theta = weight * theta_t[at + t]
        if theta > -np.inf:
            value += theta * w[t]
            low = min(low, theta)
            high = max(high, theta)
        else:
            forbidden += w[t]
            most = max(most, w[t])
        if w[t] > 0.0:
            entropy -= w[t] * math.log(w[t])
    priced = value + forbidden * (2.0 * low - high) if forbidden > 0.0 else value
    return -np.inf if most > 1e-6 else value, priced, entropy  # mass on a forbidden entry that counts as round-off


@compiled
def extend_marginals(
    begin: int, end: int, factors: FactorMessages, turn: Ints, point: SoftPoint, scratch: Floats, out: Floats
) -> tuple[float, float, float]:
    """Extend marginals of variables to factors `begin` to `end`, by `couple` or better."""
    # Returns the value of the extension, and value and entropy of the one that `couple` gives. Two binary variables
    # have a best extension in closed form. Where `out` has room for it, the extension itself is written there. The
    # scratch has three rows, each with room for the configurations of a factor.
    theta_t, edge_ptr, mu, mu_at = factors.theta_t, factors.edge_ptr, point.mu, factors.state_at
    w, extra = scratch[0], scratch[1]
    total, soft, entropy = 0.0, 0.0, 0.0
    place = 0
    for a in range(begin, end):
        at, first, last = factors.table_at[a], factors.scope_ptr[a], factors.scope_ptr[a + 1]
        n, weight = couple(a, factors, turn, point, scratch), weight_of(factors.weight, a)
        value, of_soft, uncertainty = joint_value(weight, theta_t, at, w, n)
        soft += of_soft
        entropy += uncertainty
        if n == 4 and last - first == 2 and edge_ptr[first + 1] - edge_ptr[first] == 2:
            best_pair(weight, theta_t, at, mu[mu_at[first] + 1], mu[mu_at[first + 1] + 1], extra)
            best, _, _ = joint_value(weight, theta_t, at, extra, n)
            if best > value:
                value = best
                w[0], w[1], w[2], w[3] = extra[0], extra[1], extra[2], extra[3]
        total += value
        if len(out) > 0:
            for t in range(n):
                out[place + t] = w[t]
            place += n
    return total, soft, entropy
