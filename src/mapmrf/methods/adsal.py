"""ADSal: adaptive diminishing smoothing of the dual, with sequential passes at every temperature."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from mapmrf.engines.messages.smoothing import SmoothedRun
from mapmrf.engines.messages.sweeps import AT_REST, INFEASIBLE, PassStopping
from mapmrf.engines.messages.visit_order import VariableOrder, VisitOrder
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.clock import REPAIR_SECONDS
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Range, Start
from mapmrf.run.repair import find_feasible
from mapmrf.run.result import Status


@dataclass(frozen=True)
class ADSal(Method):
    """Minimise a smoothed dual by sequential passes, at a temperature that decreases with the gap (ogm-ADSal).

    Plain passes, the same as in `trws`, come first; where they stall above the optimum of the linear relaxation,
    smoothed passes continue towards it. Smoothed marginals, extended to the factors, give points of L_G, so that bound
    and relaxed value enclose the optimum of the relaxation from both sides.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations. An iteration is a forward and a backward pass, plain or smoothed.
    tol
        Relative gap between the bound and the best point of L_G at which the run has converged.
    presolve_iterations
        Maximum number of plain iterations before smoothing begins.
    presolve_tol
        Smoothing begins when several plain iterations in a row have lowered the bound by less than this, relatively.
    inner_iterations
        Smoothed iterations between measurements of the gaps.
    gap_ratio
        The temperature is lowered when the duality gap of the smoothed problem is below the true gap divided by this.
    decay
        Factor by which the temperature is divided each time it is lowered.
    order
        Order of the variables, as in `trws`.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.ADSal(tol=1e-5))
    >>> round(result.bound, 2), round(result.relaxed_value, 2)  # bounds on the linear relaxation from above and below
    (62.74, 62.74)
    """

    name: ClassVar[str] = "adsal"
    title: ClassVar[str] = "adaptive diminishing smoothing of the dual by sequential passes (ogm-ADSal)"
    family: ClassVar[str] = "message passing"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    tol: NonNegativeFloat = 1e-6
    presolve_iterations: PositiveInt = 100
    presolve_tol: NonNegativeFloat = 1e-4
    inner_iterations: PositiveInt = 3
    gap_ratio: Annotated[float, Range(1, above=True)] = 4.0
    decay: Annotated[float, Range(1, above=True)] = 2.0
    order: VariableOrder = "trees_last"

    def start(self, problem: Problem, seed: int, initial: Start) -> SmoothedRun:
        stopping = PassStopping(self.presolve_tol, initial.gap_tolerance)
        state = SmoothedRun(problem, VisitOrder.build(problem, self.order), stopping)
        if initial.labels is not None:
            state.offer(initial.labels)
        return state

    def step(self, problem: Problem, state: SmoothedRun) -> Progress:
        left, known = self.max_iterations - state.done, state.value
        if state.temperature == 0.0:
            finished = self.presolve(state, min(left, self.presolve_iterations - state.done))
        else:
            finished = self.smooth(state, min(left, self.inner_iterations))
        progress = Progress(state.done, bound=state.bound, finished=finished)
        progress.phase = "plain" if state.temperature == 0.0 else "smooth"
        if state.temperature > 0.0:
            progress.extra["temperature"] = state.temperature
        progress.relaxed_value = state.relaxed if math.isfinite(state.relaxed) else None
        if state.best is not None and state.value > known:
            progress.labels, progress.value = state.best.labels, state.value
        return progress

    def presolve(self, state: SmoothedRun, left: int) -> Status | None:
        """Run plain iterations; once they stall, set the initial temperature."""
        why = state.iterate_plain(min(left, max(1, pace.SWEEPS // (state.plain.work + 1))))
        if why == INFEASIBLE or state.bound == -math.inf:
            return Status.INFEASIBLE
        if why == AT_REST or state.done >= self.presolve_iterations:
            if state.gap <= state.closed_gap(self.tol):
                return Status.CONVERGED
            state.begin(self.gap_ratio)
        return None

    def smooth(self, state: SmoothedRun, left: int) -> Status | None:
        """Run smoothed iterations; after enough of them, compare the gaps and lower the temperature if due."""
        affordable = max(1, pace.SWEEPS // (10 * state.plain.work + 1))  # cost of a smoothed iteration, in plain ones
        n = min(left, self.inner_iterations - state.inner, affordable)
        smoothed = state.soft_iterate(n, state.lam)
        state.done += n
        state.inner += n
        if smoothed == -math.inf:
            state.bound = -math.inf
            return Status.INFEASIBLE
        if state.inner < self.inner_iterations and state.done < self.max_iterations:
            return None
        state.inner = 0
        return self.measure(state, smoothed)

    def measure(self, state: SmoothedRun, smoothed: float) -> Status | None:
        """Compare the smoothed gap with the true gap, and lower the temperature if it is small."""
        cost = smoothed - state.measure_plain()
        soft, entropy = state.measure_relaxed()
        closed = state.closed_gap(self.tol)
        if state.gap <= closed or smoothed - soft <= closed:
            return Status.CONVERGED
        # With hard constraints, the smoothed value may be the only lower bound on the relaxation.
        share = max(min(state.gap, state.bound - soft), closed) / self.gap_ratio
        if cost > share or smoothed - (soft + state.temperature * entropy) <= share:
            # The lowest temperature, relative to the gap at which a run has converged
            state.temperature = max(state.temperature / self.decay, 1e-8 * closed, np.finfo(float).tiny)
        return None

    def close(self, problem: Problem, state: SmoothedRun) -> None:
        state.plain.close()

    def answer(self, problem: Problem, state: SmoothedRun) -> Answer:
        """The best point of L_G: the smoothed marginals and their extension, or the labelling if it is better."""
        labels = None if state.best is None else state.best.labels
        if labels is None and state.relaxed == -math.inf:  # fall back to any labelling
            labels = find_feasible(problem, state.plain.best.astype(np.int64), seconds=REPAIR_SECONDS).labels
        details = {"temperature": state.temperature}
        if state.point is not None and state.relaxed > state.value:
            mu_v, mu_f = state.point.mu, state.factor_marginals(state.point)
        elif labels is not None:
            mu_v, mu_f = integral(problem, labels)
        else:
            return Answer(details=details)
        return Answer(labels=labels, mu_v=mu_v, mu_f=mu_f, details=details)
