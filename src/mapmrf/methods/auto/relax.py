"""When the relaxation of `auto` makes way for expansions or a proof, and ends; methods that run by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase, SharedState, Steps
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Method, Progress, Start, running

if TYPE_CHECKING:
    from mapmrf.engines.messages.sweeps import SequentialPasses
    from mapmrf.methods.auto.portfolio import Portfolio


class ExpansionTurns:
    """Decides when expansions are due: early, and again until the relaxation overtakes them."""

    def __init__(self, problem: Problem, allowed: bool) -> None:
        n_labels = int(problem.graph.card.max(initial=0))
        # whether there will be any
        pairwise = all(batch.arity <= 2 for batch in problem.batches)
        self.planned = allowed and problem.n_factors >= SETTINGS.large and pairwise
        self._next = n_labels // SETTINGS.expand_labels if self.planned else math.inf
        self._reached = math.inf

    def due(self, iterations: int, gap: float, relaxed: float) -> bool:
        """Return whether expansions are due, given the gap and the value of the relaxation's labelling."""
        if iterations < self._next or gap <= SETTINGS.expand_gap:
            return False
        self._next = SETTINGS.expand_again * max(1, self._next)
        return relaxed < self._reached

    def end(self, value: float) -> None:
        self._reached = value


class RelaxationEnd:
    """Decides when the relaxation ends: the gap stalls, or nearly all of a large model is decided."""

    def __init__(self, problem: Problem, best: Incumbent) -> None:
        self._problem, self._best = problem, best
        self._large = problem.n_factors >= SETTINGS.large
        self._gap, self._measured_at, self._count_at = math.inf, 0, SETTINGS.decided_first

    def at(self, iterations: int, passes: SequentialPasses) -> bool:
        if iterations - self._measured_at >= SETTINGS.stall_window:
            wide = 0.0 if self._large else SETTINGS.stall_gap
            stalled = self._best.gap > max(wide, SETTINGS.stalled * self._gap) or self._best.gap == math.inf
            self._gap, self._measured_at = self._best.gap, iterations
            if stalled:
                return True
        if not self._large or iterations < self._count_at:
            return False
        from mapmrf.engines.reduction.simplify import excluded_states  # small models skip the import

        out = excluded_states(self._problem, passes.state_bounds(), self._best.value)
        left = np.add.reduceat(~out, self._problem.graph.var_ptr[:-1], dtype=np.int64)
        decided = float(np.mean(left == 1))
        few = decided <= 1 - SETTINGS.decided
        self._count_at = iterations + (SETTINGS.decided_first if few else SETTINGS.decided_again)
        return decided >= SETTINGS.decided


# Methods that `auto` runs by themselves on the original model where the gap is wide, to be behind none of them.


class Scout:
    """A method on the original model, from its own start or a labelling. It offers all it finds to the incumbent."""

    def __init__(self, method: Method, shared: SharedState, seed: int, labels: Ints | None = None) -> None:
        self.method, self.shared, self.seed, self._start = method, shared, seed, Start(labels)
        self.steps: Steps = self._steps()  # its steps, to its end
        self._phase = Phase(self.steps, 1)
        self.over = False  # whether it has ended
        # labels, value: its best labelling
        self.labels: Ints | None = None
        self.value, self._iterations, self._useful = -math.inf, 0, 0

    def turn(self) -> Iterator[Progress]:
        """Take steps until it ends, or has gone long without improvement."""
        begun, n_steps = self._iterations, 0
        while self._is_hopeful(begun, n_steps) and (step := self._phase.next_step()) is not None:
            n_steps += 1
            yield step

    def burst(self, n_idle: int, n_most: int) -> Iterator[Progress]:
        """Take steps until so many in a row have not improved its labelling, and at most so many."""
        idle, value = 0, self.value
        for _ in range(n_most):
            if idle == n_idle or (step := self._phase.next_step()) is None:
                return
            idle = 0 if self.value > value else idle + 1
            value = self.value
            yield step

    def _is_hopeful(self, begun: int, n_steps: int) -> bool:
        if self.value == -math.inf:
            return n_steps < SETTINGS.lost_steps
        behind = self.value < self.shared.incumbent.value - self.shared.problem.graph.allowance
        if behind and n_steps >= SETTINGS.behind_steps:
            return False
        patience = max(SETTINGS.scout_idle, SETTINGS.scout_idle_share * self._useful)
        return self._iterations - max(begun, self._useful) < patience

    def _steps(self) -> Steps:
        method, shared = self.method, self.shared
        if shared.admits(method, shared.problem):
            with running(method, shared.problem, self.seed, self._start) as state:
                step = Progress(0)
                while step.finished is None and step.iterations < method.max_iterations:
                    step = method.step(shared.problem, state)
                    self._iterations = step.iterations
                    if step.labels is not None:
                        value = shared.problem.graph.value(step.labels) if step.value is None else step.value
                        if value > self.value:
                            self.labels, self.value, self._useful = step.labels.copy(), value, step.iterations
                    yield shared.take_over(step, method.name, method.name)
        self.over = True


class Scouts:
    """Chains of flips and belief propagation: where the relaxation is loose, one of them is often hard to beat."""

    def __init__(self, shared: SharedState, seed: int) -> None:
        from mapmrf.methods.bp import BP  # tiny models skip the import of numba
        from mapmrf.methods.chains import Chains

        self.beliefs, self.chains = Scout(BP(), shared, seed), Scout(Chains(), shared, seed)

    @property
    def found(self) -> list[Ints]:
        """The best labelling of each of them from which chains may lead on."""
        scouts = (self.beliefs,) if self.chains.over else (self.beliefs, self.chains)
        return [scout.labels for scout in scouts if scout.labels is not None]

    def first(self) -> Iterator[Progress]:
        """Belief propagation, and chains from the best labelling as soon as it improves no longer with every step."""
        best = self.chains.shared.incumbent
        yield from self.beliefs.burst(SETTINGS.burst_idle, SETTINGS.burst_steps)
        yield from self.climb(best.labels, SETTINGS.climb_steps)
        climbed = best.value
        yield from self.beliefs.turn()
        if best.value > climbed:
            yield from self.climb(best.labels, SETTINGS.climb_steps)

    def climb(self, labels: Ints, n_most: int) -> Iterator[Progress]:
        """Chains from a labelling, as long as they improve it."""
        climb = Scout(self.chains.method, self.chains.shared, self.chains.seed, labels.copy())
        with closing(climb.steps):
            yield from climb.burst(SETTINGS.climb_idle, n_most)

    def run(self) -> Iterator[Progress]:
        yield from self.chains.turn()
        yield from self.beliefs.turn()

    def close(self) -> None:
        self.beliefs.steps.close()
        self.chains.steps.close()


# -- A proof of small models, before what takes longer than that -----------------------------------------------------


class EarlyTrial:
    """`wcsp` on the original model: some steps before other phases, and the same run as a prover beside them."""

    def __init__(self, shared: SharedState, seed: int) -> None:
        from mapmrf.engines.program.binary_program import is_compact  # tiny models skip these imports
        from mapmrf.methods.wcsp import WCSP

        self.shared, self.seed, self.method, self.n_steps = shared, seed, WCSP(), 0
        self.known = shared.incumbent.labels  # the labelling that the run may use
        problem = shared.problem
        few = problem.n_vars <= SETTINGS.trial_variables and problem.n_factors <= SETTINGS.trial_factors
        light = few and problem.n_configs <= SETTINGS.trial_entries
        # whether it has begun and may go on; where the relaxation is loose, only forbidden entries make it short, and
        # binary pairs without these have better provers
        promising = shared.incumbent.gap <= SETTINGS.loose_gap or any(batch.hard for batch in problem.batches)
        self.is_open = light and promising and not is_compact(problem) and shared.admits(self.method, problem)
        self.finished = False  # whether it has ended, which it does with a proof
        self._steps = self._run()
        self.phase = Phase(self._steps, SETTINGS.trial_turn, least=self._least, first=SETTINGS.trial_turn, name="wcsp")

    def begin(self) -> Iterator[Progress]:
        """Take the first steps."""
        while self.is_open and self.n_steps < SETTINGS.trial_steps:
            self.known = self.shared.incumbent.labels
            step = self.phase.next_step()
            if step is None:  # it has ended, or its kernels are not compiled
                self.is_open = False
                return
            yield self.shared.take_over(step, "wcsp", "wcsp")

    def prover(self, portfolio: Portfolio) -> Phase:
        """The rest of the run, with labellings of the reduced model: once only."""
        self.is_open = False
        self.phase.steps = self._translated(portfolio)
        return self.phase

    def _translated(self, portfolio: Portfolio) -> Steps:
        while not self.finished:
            self.known = portfolio.reduced.lift(portfolio.race.known.labels)  # known when the turn began
            step = next(self._steps, None)
            if step is None:
                return
            labels = None if step.labels is None else portfolio.reduced.project(step.labels)
            yield replace(step, iterations=1, labels=labels, value=None, phase="wcsp")

    def _run(self) -> Steps:
        step = Progress(0)
        with running(self.method, self.shared.problem, self.seed, Start(self.known)) as state:
            while step.finished is None:
                state.inform(self.known)
                step = self.method.step(self.shared.problem, state)
                self.n_steps += 1
                self.finished = step.finished is not None
                yield step

    def _least(self) -> float:
        """Least weight: full at first, as its bound improves late."""
        return 1.0 if self.n_steps < SETTINGS.trial_full else SETTINGS.weight_least

    def close(self) -> None:
        self._steps.close()
