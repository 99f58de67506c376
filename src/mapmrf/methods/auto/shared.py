"""What the phases of `auto` share: the incumbent, the count of iterations, and how progress is reported."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.stopping import CompilingPostponed, patience
from mapmrf.footprints import footprint_of
from mapmrf.incumbent import Incumbent
from mapmrf.method import Method, Progress
from mapmrf.problem import Problem
from mapmrf.result import Status

log = logging.getLogger("mapmrf")

Steps = Generator[Progress, None, None]

LEAST = 0.15
"""Least weight of most phases, relative to the one that they begin with."""

PATIENCE = 0.5
"""Share of the time left that a phase waits for a kernel, if one must be compiled; then `auto` goes on without it."""


@dataclass
class Phase:
    """A searcher or a prover that takes turns with others.

    Attributes
    ----------
    steps, turn
        Its steps, and how many iterations a turn has.
    weight
        Turns in a cycle; below 1 it has a turn in some cycles only. It begins with the prior and changes with what the
        turns bring.
    first
        Iterations of its first turn.
    least
        The least weight, relative to the prior; a function, as it may become known on the way.
    """

    steps: Steps
    turn: int
    weight: float = 1.0
    first: int = 2
    least: Callable[[], float] = lambda: LEAST

    def __post_init__(self) -> None:
        self.prior = self.weight
        self._due = 0.0
        self._new = True

    def earn(self) -> int:
        """Iterations that the phase may take in the cycle that begins."""
        if self._new:
            self._new = False
            return self.first
        self._due += self.weight
        n = int(self._due)
        self._due -= n
        return n * self.turn

    def next_step(self) -> Progress | None:
        """A step; None if the phase has ended, or would wait too long for its kernels to be compiled."""
        try:
            with patience(PATIENCE):
                return next(self.steps, None)
        except CompilingPostponed as kernel:
            log.info("a phase is left out: %s is not compiled yet", kernel)
            return None


class SharedState:
    """Where a run of `auto` stands.

    Attributes
    ----------
    problem
        The whole model.
    incumbent
        The best labelling of it, and the best bound.
    iterations
        Iterations of all phases.
    details
        Figures for the result.
    state_bounds : (n_states,) or None
        Upper bounds on the labellings with each state, from the relaxation.
    """

    def __init__(self, problem: Problem, labels: Ints) -> None:
        self.problem = problem
        self.incumbent = Incumbent(problem.graph, labels)
        self.iterations = 0
        self.details: dict[str, float] = {}
        self.state_bounds: Floats | None = None
        self._reported = -math.inf
        self._held: dict[str, float] = {}

    def admits(self, method: Method, problem: Problem) -> bool:
        """Whether a method takes a model, and fits into memory beside what other phases hold; if so, it holds its own.

        Phases that take turns are all in memory at the same time.
        """
        reason = method.supports(problem)
        if reason is not None:
            log.debug("auto goes on without %s: %s", method.name, reason)
            return False
        return self.has_room(method.name, method.footprint(problem.graph))

    def has_room(self, name: str, needed: float | None) -> bool:
        """The same for something that is no method, by the bytes that it needs."""
        budget = self.problem.memory
        held = sum(size for holder, size in self._held.items() if holder != name)
        reason = budget._replace(besides=budget.besides + held).refusal(needed)
        if reason is not None:
            log.info("auto goes on without %s: %s", name, reason)
            return False
        self._held[name] = needed or 0.0
        return True

    def has_room_for(self, names: tuple[str, ...], problem: Problem) -> bool:
        """Whether parts that methods of these names share fit into memory; they hold it from now on."""
        return all(self.has_room(name, footprint_of(name, problem.graph)) for name in names)

    def release(self, name: str) -> None:
        """Give back what a phase that has ended held."""
        self._held.pop(name, None)

    def report(self, phase: str, finished: Status | None = None) -> Progress:
        """A `Progress` with the best bound, and the labels if they are better than those reported before."""
        best = self.incumbent
        labels = best.labels if best.value > self._reported else None
        self._reported = best.value
        bound = best.bound if best.bound < math.inf else None
        return Progress(self.iterations, labels=labels, bound=bound, finished=finished, phase=phase)

    def step(self, phase: str, finished: Status | None = None) -> Progress:
        """Report after a step that counts as an iteration."""
        self.iterations += 1
        return self.report(phase, finished)

    def prove(self, phase: str, optimum: float) -> Progress:
        """Report at the end: the optimum is known, -inf if the model is infeasible."""
        best = self.incumbent
        best.bound = max(optimum, best.value)
        return self.step(phase, Status.OPTIMAL if best.bound > -math.inf else Status.INFEASIBLE)
