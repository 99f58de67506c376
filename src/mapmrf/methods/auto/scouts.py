"""Methods that `auto` runs by themselves on the original model where the gap is wide, to be behind none of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from mapmrf.methods.auto.shared import Phase, SharedState, Steps
from mapmrf.methods.bp import BP
from mapmrf.methods.chains import Chains
from mapmrf.run.method import Method, Progress, Start, running

VAIN, VAIN_SHARE = 30, 2.0
"""A scout with a feasible labelling rests after this many iterations without improvement, if they are also so many
times those that it took to its best labelling."""

LOST_STEPS = 20
"""Steps per turn, some hundredths of a second or less each, of a scout without a feasible labelling."""


class Scout:
    """A method on the original model, from its own start. It offers all its labellings to the incumbent."""

    def __init__(self, method: Method, shared: SharedState, seed: int) -> None:
        self.method, self.shared, self.seed = method, shared, seed
        self.steps: Steps = self._steps()  # its steps, to its end
        self._phase = Phase(self.steps, 1)
        self.over = False  # whether it has ended
        self._value, self._iterations, self._useful = -math.inf, 0, 0

    def turn(self) -> Iterator[Progress]:
        """Take steps until it ends, or has gone long without improvement."""
        begun, n_steps = self._iterations, 0
        while self._is_hopeful(begun, n_steps) and (step := self._phase.next_step()) is not None:
            n_steps += 1
            yield step

    def _is_hopeful(self, begun: int, n_steps: int) -> bool:
        if self._value == -math.inf:
            return n_steps < LOST_STEPS
        return self._iterations - max(begun, self._useful) < max(VAIN, VAIN_SHARE * self._useful)

    def _steps(self) -> Steps:
        method, shared = self.method, self.shared
        if shared.admits(method, shared.problem):
            with running(method, shared.problem, self.seed, Start()) as state:
                step = Progress(0)
                while step.finished is None and step.iterations < method.max_iterations:
                    step = method.step(shared.problem, state)
                    self._note(step)
                    yield shared.take(step, method.name, method.name)
        self.over = True

    def _note(self, step: Progress) -> None:
        self._iterations = step.iterations
        if step.labels is not None:
            value = self.shared.problem.graph.value(step.labels) if step.value is None else step.value
            if value > self._value:
                self._value, self._useful = value, step.iterations


class Scouts:
    """Chains of flips and belief propagation: where the relaxation is loose, one of them is often hard to beat."""

    def __init__(self, shared: SharedState, seed: int) -> None:
        self.beliefs, self.chains = Scout(BP(), shared, seed), Scout(Chains(), shared, seed)

    def run(self) -> Iterator[Progress]:
        """A turn of each."""
        yield from self.chains.turn()
        yield from self.beliefs.turn()

    def close(self) -> None:
        """End both."""
        self.beliefs.steps.close()
        self.chains.steps.close()
