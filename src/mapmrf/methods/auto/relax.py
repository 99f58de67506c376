"""When the relaxation of `auto` makes way for expansions and when it ends; methods that run by themselves."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.methods.auto.state import Phase, SharedState, Steps
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Method, Progress, Start, running

if TYPE_CHECKING:
    from mapmrf.engines.messages.sweeps import SequentialPasses


LARGE = 20_000  # number of factors from which a model is large: it gets a first labelling at once, and alpha-expansions

EXPAND_LABELS, EXPAND_AGAIN, EXPAND_GAP = 4, 16, 1e-6
"""Expansions begin after one iteration of the relaxation per four labels, if the relative gap is at least this wide,
and again after sixteen times as many. Starting from the relaxation's labelling, they get further; with many labels
they take as long as many iterations."""

DECIDED, CHECKED, CHECKED_AGAIN = 0.95, 15, 5
"""Share of decided variables that ends the relaxation of a large model, as the rest is solved exactly; iterations
before they are first counted, and between counts once some are decided."""

WINDOW, STALLED, WIDE_GAP = 30, 0.9, 1e-3
"""The relaxation ends when a relative gap this wide keeps more than this share over this many iterations. Large models
do not wait for a narrow gap to close."""

SLOW_STEPS, LOOSE_GAP = 3, 0.1
"""Steps of the relaxation, some hundredths of a second together, after which belief propagation gets a turn if the
relative gap is still this wide."""


class ExpansionTurns:
    """Decides when expansions are due: early, and again until the relaxation overtakes them."""

    def __init__(self, problem: Problem, allowed: bool) -> None:
        n_labels = int(problem.graph.card.max(initial=0))
        # whether there will be any
        self.planned = allowed and problem.n_factors >= LARGE and all(batch.arity <= 2 for batch in problem.batches)
        self._next = n_labels // EXPAND_LABELS if self.planned else math.inf
        self._reached = math.inf

    def due(self, iterations: int, gap: float, relaxed: float) -> bool:
        """Return whether expansions are due, given the gap and the value of the relaxation's labelling."""
        if iterations < self._next or gap <= EXPAND_GAP:
            return False
        self._next = EXPAND_AGAIN * max(1, self._next)
        return relaxed < self._reached

    def end(self, value: float) -> None:
        self._reached = value


class RelaxationEnd:
    """Decides when the relaxation ends: the gap stalls, or nearly all of a large model is decided."""

    def __init__(self, problem: Problem, best: Incumbent) -> None:
        self._problem, self._best = problem, best
        self._large = problem.n_factors >= LARGE
        self._gap, self._measured_at, self._count_at = math.inf, 0, CHECKED

    def at(self, iterations: int, passes: SequentialPasses) -> bool:
        if iterations - self._measured_at >= WINDOW:
            wide = 0.0 if self._large else WIDE_GAP
            stalled = self._best.gap > max(wide, STALLED * self._gap) or self._best.gap == math.inf
            self._gap, self._measured_at = self._best.gap, iterations
            if stalled:
                return True
        if not self._large or iterations < self._count_at:
            return False
        from mapmrf.engines.reduction.simplify import excluded_states  # small models skip the import

        out = excluded_states(self._problem, passes.state_bounds(), self._best.value)
        left = np.add.reduceat(~out, self._problem.graph.var_ptr[:-1], dtype=np.int64)
        decided = float(np.mean(left == 1))
        self._count_at = iterations + (CHECKED_AGAIN if decided > 1 - DECIDED else CHECKED)
        return decided >= DECIDED


# Methods that `auto` runs by themselves on the original model where the gap is wide, to be behind none of them.


IDLE, IDLE_SHARE = 30, 2.0
"""A scout rests after this many iterations without improvement, if they are also this many times those that it took to
its best labelling."""

LOST_STEPS = 20  # steps per turn, some hundredths of a second or less each, of a scout behind the best labelling known


class Scout:
    """A method on the original model, from its own start. It offers all its labellings to the incumbent."""

    def __init__(self, method: Method, shared: SharedState, seed: int) -> None:
        self.method, self.shared, self.seed = method, shared, seed
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

    def _is_hopeful(self, begun: int, n_steps: int) -> bool:
        none = self.value == -math.inf
        behind = none or self.value < self.shared.incumbent.value - self.shared.problem.graph.allowance
        if none or (behind and n_steps >= LOST_STEPS):
            return n_steps < LOST_STEPS
        return self._iterations - max(begun, self._useful) < max(IDLE, IDLE_SHARE * self._useful)

    def _steps(self) -> Steps:
        method, shared = self.method, self.shared
        if shared.admits(method, shared.problem):
            with running(method, shared.problem, self.seed, Start()) as state:
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

    def run(self) -> Iterator[Progress]:
        """A turn of each, first of the one that is ahead."""
        for scout in sorted((self.chains, self.beliefs), key=lambda scout: scout.value, reverse=True):
            yield from scout.turn()

    def close(self) -> None:
        self.beliefs.steps.close()
        self.chains.steps.close()
