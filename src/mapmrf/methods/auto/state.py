"""State shared by the phases of `auto`: the incumbent, the iteration count, and progress reports."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation import CompilingPostponed, patience
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.model.memory import footprint_of
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import CheckedIncumbent
from mapmrf.run.method import Answer, Method, PhasedRun, Progress, Start, running
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto import Auto

log = logging.getLogger("mapmrf")

Steps = Generator[Progress, None, None]


@dataclass
class Phase:
    """A searcher or a prover that takes turns with others."""

    # steps, turn: its steps, and the iterations per turn
    steps: Steps
    turn: int
    # Turns per cycle; below 1, the phase has turns in some cycles only. It starts at the prior and is adjusted by the
    # progress of the turns.
    weight: float = 1.0
    # first, skipped: iterations of its first turn, and cycles before it
    first: int = 2
    skipped: int = 0
    # Least weight relative to the prior; a function, as it may only become known during the run
    least: Callable[[], float] = lambda: SETTINGS.weight_least
    name: str = ""  # source of its bounds, for provers

    def __post_init__(self) -> None:
        self.prior = self.weight
        self._due = 0.0
        self._new = True

    def earn(self) -> int:
        """Return the number of iterations that the phase may take in this cycle."""
        if self.skipped > 0:
            self.skipped -= 1
            return 0
        if self._new:
            self._new = False
            return self.first
        self._due += self.weight
        n = int(self._due)
        self._due -= n
        return n * self.turn

    def next_step(self) -> Progress | None:
        """Take a step; None if the phase has ended, or if compiling its kernels would take too long."""
        try:
            with patience(SETTINGS.patience):
                return next(self.steps, None)
        except CompilingPostponed as kernel:
            log.info("skipping a phase: %s is not compiled yet", kernel)
            return None


class SharedState:
    def __init__(self, problem: Problem, labels: Ints) -> None:
        self.problem = problem  # the original model
        self.incumbent = CheckedIncumbent(problem.graph, labels)  # its best labelling and bound
        self.iterations = 0  # iterations of all phases
        self.details: dict[str, float] = {}  # additional figures for the result
        # (n_states,) or None: upper bounds on the labellings with each state, from the relaxation
        self.state_bounds: Floats | None = None
        self._reported, self._n_withdrawn = -math.inf, 0
        self._held: dict[str, float] = {}

    def admits(self, method: Method, problem: Problem) -> bool:
        """Check that a method supports a model and fits into memory alongside other phases; if so, reserve its memory.

        Phases that take turns are all in memory at the same time.
        """
        reason = method.supports(problem)
        if reason is not None:
            log.debug("auto continues without %s: %s", method.name, reason)
            return False
        return self.has_room(method.name, method.footprint(problem.graph))

    def has_room(self, name: str, needed: float | None) -> bool:
        """Check that `needed` bytes are available, and reserve them under a name."""
        budget = self.problem.memory
        held = sum(size for holder, size in self._held.items() if holder != name)
        reason = budget._replace(besides=budget.besides + held).refusal(needed)
        if reason is not None:
            log.info("auto continues without %s: %s", name, reason)
            return False
        self._held[name] = needed or 0.0
        return True

    def has_room_for(self, names: tuple[str, ...], problem: Problem) -> bool:
        """Check that the parts shared by the named methods fit into memory, and reserve it."""
        return all(self.has_room(name, footprint_of(name, problem.graph)) for name in names)

    def release(self, name: str) -> None:
        self._held.pop(name, None)

    def report(self, phase: str, finished: Status | None = None) -> Progress:
        """Return a `Progress` with the best bound, and the labels if they are better than those last reported."""
        best = self.incumbent
        labels = best.labels if best.value > self._reported else None
        refuted = dict(best.bounds.refuted) if best.bounds.n_withdrawn > self._n_withdrawn else None
        self._reported, self._n_withdrawn = best.value, best.bounds.n_withdrawn
        bound = best.bound if best.bound < math.inf else None
        return Progress(self.iterations, labels=labels, bound=bound, finished=finished, phase=phase, refuted=refuted)

    def step(self, phase: str, finished: Status | None = None) -> Progress:
        self.iterations += 1
        return self.report(phase, finished)

    def prove(self, phase: str, optimum: float) -> Progress:
        """Report the end of the run: the optimum is known, and -inf if the model is infeasible."""
        self.incumbent.tighten(optimum, phase)
        if self.is_refuted(phase):
            return self.step(phase)
        return self.step(phase, Status.OPTIMAL if self.incumbent.bound > -math.inf else Status.INFEASIBLE)

    def take_over(self, step: Progress, source: str, phase: str) -> Progress:
        """Take over labels and bound of a method's step on the original model, count an iteration and report."""
        # The report ends the run if the method has proven something that no labelling refutes.
        if step.labels is not None:
            self.incumbent.offer(step.labels, step.value)
        self.incumbent.tighten(step.bound, source)
        proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE) and not self.is_refuted(source)
        return self.step(phase, step.finished if proven else None)

    def is_refuted(self, source: str) -> bool:
        """Return whether a labelling has exceeded a bound of this source."""
        return source in self.incumbent.bounds.refuted


@runtime_checkable
class Informed(Protocol):
    """A run that can use better labellings found by other phases."""

    def inform(self, labels: Ints) -> None:
        """Take over a labelling if it is better."""


class SharedRun(PhasedRun):
    """A run of `auto`, with or without constraints: its options, and the state that its phases share."""

    def __init__(self, options: Auto, problem: Problem, seed: int, labels: Ints) -> None:
        super().__init__()
        self.options, self.problem, self.seed = options, problem, seed
        self.shared = SharedState(problem, labels)

    def follow(self, method: Method, phase: str, start: Start) -> Steps:
        shared, step = self.shared, Progress(0)
        with running(method, self.problem, self.seed, start) as state:
            while step.finished is None and not shared.is_refuted(phase):
                if isinstance(state, Informed):
                    state.inform(shared.incumbent.labels)
                step = method.step(self.problem, state)
                yield shared.take_over(step, phase, phase)
        shared.release(method.name)

    def answer(self) -> Answer:
        return Answer(labels=self.shared.incumbent.labels, details=dict(self.shared.details))
