"""ADSal: adaptive diminishing smoothing of the dual, with sequential passes at every temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.engines.messages.sequential import Order, Passes, Visits
from mapmrf.engines.messages.smooth_kernels import project, soft_iterate
from mapmrf.engines.messages.spins_kernels import AT_REST, BOUND, CONSTANT, GAP_TOL, INFEASIBLE, PAR_SIZE, TOL, VALUE
from mapmrf.feasible import REPAIR_SECONDS, find_feasible
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.polytope import FactorMarginals, integral
from mapmrf.problem import Batch, Problem
from mapmrf.result import GAP_TOLERANCE, Status

STEP_WORK = 4_000_000
"""Table entries that a step looks at, roughly: some milliseconds."""
SOFT_COST = 10
"""How much longer a smoothed iteration takes."""
LEAST = 1e-8
"""The lowest temperature, relative to the gap at which a run has converged."""
ROUND_OFF = 1e-12
"""Gaps below this, relative to that between the bound and the labels, are none."""
MAX_RAISES, MAX_RAISE = 20, 16.0
"""How often, and by how much at once, a first temperature that turns out too low is raised."""

Point = tuple[Floats, Floats, float]
"""Marginals of the variables, and the multipliers and the temperature by which they extend to the factors."""


@dataclass(frozen=True)
class ADSal(Method):
    """Minimise a smoothed dual by sequential passes, at a temperature that falls with the gap (ogm-ADSal).

    Plain passes come first (as in `trws`, which they equal); where those come to rest above the linear relaxation, the
    smoothed ones go on to its value. Smoothed marginals, extended to the factors, give points of L_G: bound and
    relaxed value close in on the value of the relaxation from both sides.

    Attributes
    ----------
    max_iterations
        Limit. An iteration is a forward and a backward pass, plain or smoothed.
    tol
        The run has converged when the relative gap between the bound and the best point of L_G is at most this.
    presolve_iterations
        Most plain iterations before the first smoothed one.
    presolve_tol
        Smoothing begins when several plain iterations in a row have lowered the bound by less than this, relatively.
    inner_iterations
        Smoothed iterations between two looks at the gaps.
    gap_ratio
        The temperature falls when the duality gap of the smoothed problem is below the true one divided by this.
    decay
        What the temperature is divided by when it falls.
    order
        The order of the variables, as in `trws`.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.ADSal(tol=1e-5))
    >>> round(result.bound, 2), round(result.relaxed_value, 2)  # the linear relaxation, from above and from below
    (62.74, 62.74)
    """

    name: ClassVar[str] = "adsal"
    title: ClassVar[str] = "adaptive diminishing smoothing of the dual, sequential passes (ogm-ADSal)"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = 1000
    tol: float = 1e-6
    presolve_iterations: int = 100
    presolve_tol: float = 1e-4
    inner_iterations: int = 3
    gap_ratio: float = 4.0
    decay: float = 2.0
    order: Order = "trees_last"

    def __post_init__(self) -> None:
        check_choice(self, "order", get_args(Order))
        check_at_least(self, 1, "max_iterations", "presolve_iterations", "inner_iterations")
        check_at_least(self, 0, "tol", "presolve_tol")
        check_above(self, 1, "gap_ratio", "decay")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Order the variables and lay the factors out along them, all messages zero."""
        par = np.zeros(PAR_SIZE)
        par[BOUND], par[VALUE], par[CONSTANT] = math.inf, -math.inf, problem.graph.constant
        par[TOL], par[GAP_TOL] = self.presolve_tol, GAP_TOLERANCE
        visits = Visits.build(problem, self.order)
        plain = Passes.build(problem, visits, par)
        state = _State.build(problem, plain, visits.keep)
        if initial.labels is not None:
            state.offer(problem.graph.value(initial.labels), initial.labels)
        return state

    def step(self, problem: Problem, state: _State) -> Progress:
        """Some plain iterations, or smoothed ones and a look at the gaps."""
        left = self.max_iterations - state.done
        if state.temperature == 0.0:
            finished = self.presolve(state, min(left, self.presolve_iterations - state.done))
        else:
            finished = self.smooth(state, min(left, self.inner_iterations))
        plain = state.plain
        progress = Progress(state.done, bound=float(plain.par[BOUND]), finished=finished)
        progress.phase = "plain" if state.temperature == 0.0 else "smooth"
        if state.temperature > 0.0:
            progress.extra["temperature"] = state.temperature
        progress.relaxed_value = state.relaxed if math.isfinite(state.relaxed) else None
        if state.improved:
            progress.labels, progress.value = state.labels, state.value
            state.improved = False
        return progress

    def presolve(self, state: _State, left: int) -> Status | None:
        """Plain iterations; when they come to rest, set the first temperature."""
        n, why = state.plain.iterate(min(left, max(1, STEP_WORK // (state.plain.work + 1))), state.done, 1)
        state.done += n
        state.take_plain()
        if why == INFEASIBLE or state.bound == -math.inf:
            return Status.INFEASIBLE
        if why == AT_REST or state.done >= self.presolve_iterations:
            if state.gap <= state.small(self.tol):
                return Status.CONVERGED
            state.begin(self.gap_ratio)
        return None

    def smooth(self, state: _State, left: int) -> Status | None:
        """Smoothed iterations; after enough of them compare the gaps and perhaps lower the temperature."""
        n = min(left, self.inner_iterations - state.inner, max(1, STEP_WORK // (SOFT_COST * state.plain.work + 1)))
        smoothed = state.soft_iterate(n, state.lam)
        state.done += n
        state.inner += n
        if smoothed == -math.inf:
            state.plain.par[BOUND] = -math.inf
            return Status.INFEASIBLE
        if state.inner < self.inner_iterations and state.done < self.max_iterations:
            return None
        state.inner = 0
        cost = smoothed - state.look_plain()
        soft, entropy = state.look_relaxed()
        small = state.small(self.tol)
        if state.gap <= small or smoothed - soft <= small:
            return Status.CONVERGED
        # With hard constraints the soft value may be all that is known of the relaxation from below.
        share = max(min(state.gap, state.bound - soft), small) / self.gap_ratio
        if cost > share or smoothed - (soft + state.temperature * entropy) <= share:
            state.temperature = max(state.temperature / self.decay, LEAST * small, np.finfo(float).tiny)
        return None

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best point of L_G: the smoothed marginals and their extension, or the labelling if it is worth more."""
        if state.labels is None and state.relaxed == -math.inf:  # then at least some labelling, if there is one
            found = find_feasible(problem, state.plain.best, seconds=REPAIR_SECONDS).labels
            if found is not None:
                state.offer(problem.graph.value(found), found)
        labels = state.labels
        details = {"temperature": state.temperature}
        if state.point is not None and state.relaxed > state.value:
            mu_v, mu_f = state.point[0], state.extend(state.point)
        elif labels is not None:
            mu_v, mu_f = integral(problem, labels)
        else:
            return Answer(details=details)
        return Answer(labels=labels, mu_v=mu_v, mu_f=mu_f, details=details)


@dataclass
class _State:
    """A run: plain passes, the smoothed multipliers and marginals, and the best of everything so far.

    Attributes
    ----------
    temperature
        0 as long as iterations are plain.
    lam, mu
        Multipliers of the smoothed problem, and its marginals of the variables.
    value, labels
        The best labelling so far.
    relaxed, point
        The best extended marginals so far: their value, and themselves.
    mu_at
        Where the block of every edge's variable starts in `mu`.
    """

    problem: Problem
    plain: Passes
    keep: Floats
    lam: Floats
    mu: Floats
    mu_at: Ints
    temperature: float = 0.0
    done: int = 0
    inner: int = 0
    value: float = -math.inf
    labels: Ints | None = None
    improved: bool = False
    relaxed: float = -math.inf
    point: Point | None = None

    @classmethod
    def build(cls, problem: Problem, plain: Passes, keep: Floats) -> _State:
        """A run that has not begun."""
        mu_at = problem.graph.var_ptr[problem.scope]
        return cls(problem, plain, keep, np.zeros(0), np.zeros(problem.n_states), mu_at)

    @property
    def bound(self) -> float:
        """The best upper bound."""
        return float(self.plain.par[BOUND])

    @property
    def gap(self) -> float:
        """How far the bound is above the best point of L_G."""
        return self.bound - max(self.value, self.relaxed)

    def small(self, tol: float) -> float:
        """A gap that counts as closed: relative to the bound, or round-off where the bound is next to 0."""
        spread = self.bound - self.value
        return max(tol * abs(self.bound), ROUND_OFF * spread if math.isfinite(spread) else 0.0)

    def offer(self, value: float, labels: Ints) -> None:
        """Keep a labelling if it is the best so far."""
        if value > self.value:
            self.value, self.labels, self.improved = value, labels, True

    def begin(self, gap_ratio: float) -> None:
        """Set the first temperature: raised from a safe one until smoothing costs its share of the gap."""
        size = sum(batch.n * math.log(max(2, batch.n_configs)) for batch in self.problem.batches)
        share = (self.gap if math.isfinite(self.gap) else max(1.0, abs(self.bound))) / gap_ratio
        self.lam = self.plain.lam.copy()
        self.temperature = share / max(1.0, size)
        for _ in range(MAX_RAISES):
            cost = self.soft_iterate(1, self.lam.copy()) - self.bound
            if not cost <= share:
                break
            self.temperature *= min(max(2.0, share / cost), MAX_RAISE) if cost > 0.0 else MAX_RAISE

    def soft_iterate(self, n: int, lam: Floats) -> float:
        """Run smoothed iterations on some multipliers; return the smoothed bound."""
        plain = self.plain
        rows, links, tables, edge_ptr, _ = plain.model
        work = plain.scratch, (len(plain.scratch) - len(plain.places)) // 4
        arrays = rows, links, tables, edge_ptr, plain.theta, plain.omega, self.keep, lam, self.mu
        return float(soft_iterate(n, self.temperature, *arrays, *work)) + self.problem.graph.constant

    def take_plain(self) -> None:
        """Take a labelling over from the plain passes."""
        value = float(self.plain.par[VALUE])
        if value > self.value:
            self.offer(value, self.plain.best)

    def look_plain(self) -> float:
        """Bound and labelling of a plain iteration from the smoothed multipliers; returns that bound."""
        best = self.bound
        self.plain.lam[:] = self.lam
        self.plain.par[BOUND] = math.inf
        self.plain.iterate(1, 0, 1)
        found = self.bound
        self.plain.par[BOUND] = min(found, best)
        self.take_plain()
        return found

    def look_relaxed(self) -> tuple[float, float]:
        """Extend the smoothed marginals to a point of L_G, and round them; return smoothed value and entropy."""
        problem, graph = self.problem, self.problem.graph
        value, soft, entropy = self.project(
            (self.mu, self.lam, self.temperature), slice(0, problem.n_factors), np.zeros(0)
        )
        possible = self.mu > 0
        mu = self.mu[possible]
        unary = graph.constant + float(mu @ graph.theta_v[possible])
        if unary + value > self.relaxed:
            self.relaxed, self.point = unary + value, (self.mu.copy(), self.lam.copy(), self.temperature)
        labels = segment_argmax(self.mu, graph.var_ptr)
        self.offer(graph.value(labels), labels)
        counted = np.empty(problem.n_vars)  # how often the factors' entropies count a variable's too much
        counted[self.plain.seq] = problem.degree[self.plain.seq] - 1.0 / self.plain.omega
        return unary + soft, entropy + float((np.repeat(counted, graph.card)[possible] * mu) @ np.log(mu))

    def project(self, point: Point, factors: slice, out: Floats) -> tuple[float, float, float]:
        """Extend marginals to some factors in the kernel."""
        mu, lam, temperature = point
        problem = self.problem
        largest = max((batch.n_configs for batch in problem.batches), default=1)
        width = max(largest, int(problem.graph.card.max(initial=1)))
        value, soft, entropy = project(
            factors.start,
            factors.stop,
            temperature,
            problem.graph.theta_t,
            problem.table_at,
            problem.scope_ptr,
            problem.edge_ptr,
            self.plain.model[4],
            self.mu_at,
            lam,
            mu,
            np.zeros(3 * width),
            out,
        )
        return value, soft, entropy

    def extend(self, point: Point) -> FactorMarginals:
        """The extension of marginals to the factors, block by block."""

        def mu_f(batch: Batch, rows: slice) -> Floats:
            out = np.zeros((rows.stop - rows.start, batch.n_configs))
            begin = batch.factors.start
            self.project(point, slice(begin + rows.start, begin + rows.stop), out.reshape(-1))
            return out

        return mu_f
