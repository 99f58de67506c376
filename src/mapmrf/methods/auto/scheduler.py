"""The race of `auto`: searchers and provers of the reduced model take turns, and successful ones get more."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from mapmrf.arrays import Ints
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase
from mapmrf.run.method import Progress
from mapmrf.run.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto.portfolio import Portfolio


class Known(NamedTuple):
    labels: Ints  # the best labelling of the reduced model, which provers may use in a turn
    gap: float


class Turn(NamedTuple):
    phase: Phase
    iterations: int  # of the turn
    steps: Future[list[Progress | None]]  # once they have been taken


class Race:
    """Cycles in which searchers and provers take turns.

    In every cycle, a phase gets as many turns as its weight. The searchers share a pool of labellings and run one after
    another; provers are independent. All phases work with what was known when the cycle began. The provers' results are
    taken over after the turns of the search, in a fixed order, so that the outcome is the same whether they ran
    concurrently or one after another.
    """

    def __init__(self, portfolio: Portfolio, searchers: list[Phase], provers: list[Phase]) -> None:
        self.portfolio, self.shared = portfolio, portfolio.shared
        # searchers, provers: the phases; those that have ended are removed
        self.searchers, self.provers = searchers, provers
        self.known = Known(portfolio.search.best, math.inf)  # what was known when the current cycle began
        self._stop = threading.Event()
        threads = self.shared.problem.threads
        self._beside = ThreadPoolExecutor(threads - 1, "mapmrf-proofs") if threads > 1 else None

    def run(self) -> Iterator[Progress]:
        while True:
            yield from self.cycle()

    def cycle(self) -> Iterator[Progress]:
        """Run one cycle: the turns of all phases that are due."""
        self.known = Known(self.portfolio.search.best.copy(), self.shared.incumbent.gap)
        turns = [Turn(phase, n, Future()) for phase in self.provers if (n := phase.earn()) > 0]
        waiting = deque(turns)
        beside: list[Future[None]] = []
        if self._beside is not None and self.searchers:
            beside = [self._beside.submit(self._work, waiting) for _ in turns]
        for phase in self.searchers.copy():
            if (n := phase.earn()) > 0:
                yield from self.watched(phase, self.search(phase, n))
        if beside:
            yield from self._wait_for(waiting, beside)
        for turn in turns:
            steps = turn.steps.result() if beside else self.steps(turn)
            yield from self.watched(turn.phase, self.reported(turn.phase, steps))

    def watched(self, phase: Phase, turn: Iterator[Progress]) -> Iterator[Progress]:
        """Run a turn, and adjust the weight of its phase by whether it made progress."""
        best = self.shared.incumbent
        value, bound = best.value, best.bound
        yield from turn
        helped = best.value > value or bound - best.bound > SETTINGS.progress * (bound - best.value)
        factor = SETTINGS.raised if helped else SETTINGS.lowered
        phase.weight = min(max(phase.weight * factor, phase.least() * phase.prior), SETTINGS.weight_most * phase.prior)

    def search(self, phase: Phase, iterations: int) -> Iterator[Progress]:
        """Run some iterations of a search phase, and drop it once it has ended."""
        end = self.shared.iterations + iterations
        while self.shared.iterations < end:
            step = phase.next_step()
            if step is None:
                self.searchers.remove(phase)
                return
            yield step

    def steps(self, turn: Turn) -> Iterator[Progress | None]:
        """The steps of a prover's turn, followed by None if the prover has ended."""
        done = 0
        while done < turn.iterations and not self._stop.is_set():
            step = turn.phase.next_step()
            if step is not None and step.labels is not None:
                step.labels = step.labels.copy()
            yield step
            if step is None or step.finished is not None:
                return
            done += step.iterations

    def _work(self, waiting: deque[Turn]) -> None:
        """Take the turn that has waited longest, on a thread alongside the search."""
        try:
            turn = waiting.popleft()
        except IndexError:  # the thread of the search has taken this turn, too
            return
        try:
            turn.steps.set_result(list(self.steps(turn)))
        except BaseException as error:
            turn.steps.set_exception(error)

    def _wait_for(self, waiting: deque[Turn], beside: list[Future[None]]) -> Iterator[Progress]:
        """Take turns that no other thread has begun, and wait for the others."""
        while waiting:
            try:
                turn = waiting.popleft()
            except IndexError:
                break
            found = []
            for step in self.steps(turn):
                found.append(step)
                yield self.shared.report("proofs")
            turn.steps.set_result(found)
        while wait(beside, SETTINGS.wait).not_done:
            yield self.shared.report("proofs")

    def reported(self, phase: Phase, steps: Iterable[Progress | None]) -> Iterator[Progress]:
        """Report the steps of a prover, and pass its labellings on to the search."""
        for step in steps:
            if step is None:
                self.provers.remove(phase)
                return
            self.shared.iterations += step.iterations
            if step.labels is not None:
                self.portfolio.search.learn(step.labels)
                self.portfolio.offer_pool()
            self.shared.incumbent.tighten(step.bound, phase.name)
            proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE) and not self.shared.is_refuted(phase.name)
            yield self.shared.report(step.phase, step.finished if proven else None)
            if step.finished is not None:
                self.provers.remove(phase)

    def close(self) -> None:
        """End all phases, those under way first: solvers stop, and all memory is freed."""
        self._stop.set()
        if self._beside is not None:
            self._beside.shutdown(wait=True)
        for phase in (*self.searchers, *self.provers):
            phase.steps.close()
