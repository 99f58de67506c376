"""The race of `auto`: searchers and provers of the reduced model take turns, and what helps gets longer ones."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, NamedTuple

from mapmrf.arrays import Ints
from mapmrf.method import Progress
from mapmrf.methods.auto.shared import Phase
from mapmrf.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio

WAIT = 0.02
"""Seconds between two looks whether provers that run beside the search have had their turns."""

PROGRESS = 1e-3
"""Share of the gap that a turn must close to count, unless it raises the value."""

RAISE, LOWER = 1.5, 0.7
"""What the weight of a phase is multiplied by after a turn that counted, and after one that did not."""

MOST = 2.0
"""Largest weight of a phase, relative to the one that it begins with."""


class Known(NamedTuple):
    """What provers may use in a turn: the best labelling of the reduced model, and the gap."""

    labels: Ints
    gap: float


class Turn(NamedTuple):
    """A turn of a prover: how many iterations it has, and its steps once it has had them."""

    phase: Phase
    iterations: int
    steps: Future[list[Progress | None]]


class Race:
    """Searchers and provers in cycles.

    In every cycle a phase gets its weight in turns. The searchers share a pool of labellings and go one after another;
    provers are independent. All of them work with what was known when the cycle began, and what provers find is taken
    over when the search has had its turns, in a fixed order: whether they ran at the same time or one after another
    makes no difference.

    Attributes
    ----------
    searchers, provers
        The phases; those that have ended are taken out.
    known
        What was known when the present cycle began.
    """

    def __init__(self, portfolio: Portfolio, searchers: list[Phase], provers: list[Phase]) -> None:
        self.portfolio, self.shared = portfolio, portfolio.shared
        self.searchers, self.provers = searchers, provers
        self.known = Known(portfolio.search.best, math.inf)
        self._stop = threading.Event()
        threads = self.shared.problem.threads
        self._beside = ThreadPoolExecutor(threads - 1, "mapmrf-proofs") if threads > 1 else None

    def run(self) -> Iterator[Progress]:
        """Cycles without end."""
        while True:
            yield from self.cycle()

    def cycle(self) -> Iterator[Progress]:
        """One cycle: the turns of all phases that have one."""
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
            yield from self.watched(turn.phase, self.take(turn.phase, steps))

    def watched(self, phase: Phase, turn: Iterator[Progress]) -> Iterator[Progress]:
        """A turn, after which a phase that helped gets longer turns, and another one shorter or fewer."""
        best = self.shared.incumbent
        value, bound = best.value, best.bound
        yield from turn
        helped = best.value > value or bound - best.bound > PROGRESS * (bound - best.value)
        factor = RAISE if helped else LOWER
        phase.weight = min(max(phase.weight * factor, phase.least() * phase.prior), MOST * phase.prior)

    # -- search -------------------------------------------------------------------------------------------------------

    def search(self, phase: Phase, iterations: int) -> Iterator[Progress]:
        """Some iterations of a searching phase; once it has ended it is left out."""
        end = self.shared.iterations + iterations
        while self.shared.iterations < end:
            step = phase.next_step()
            if step is None:
                self.searchers.remove(phase)
                return
            yield step

    # -- provers ------------------------------------------------------------------------------------------------------

    def steps(self, turn: Turn) -> Iterator[Progress | None]:
        """The steps of a prover's turn, None at the end if it has ended. Each tells its own iterations."""
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
        """Take the turn that has waited longest; on a thread beside the search."""
        try:
            turn = waiting.popleft()
        except IndexError:  # the search has had its turns and took this one, too
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
        while wait(beside, WAIT).not_done:
            yield self.shared.report("proofs")

    def take(self, phase: Phase, steps: Iterable[Progress | None]) -> Iterator[Progress]:
        """Report the steps of a prover; the search gets its labellings, too."""
        for step in steps:
            if step is None:
                self.provers.remove(phase)
                return
            self.shared.iterations += step.iterations
            if step.labels is not None:
                self.portfolio.search.learn(step.labels)
                self.portfolio.offer_pool()
            self.shared.incumbent.tighten(step.bound)
            proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE)
            yield self.shared.report(step.phase, step.finished if proven else None)
            if step.finished is not None:
                self.provers.remove(phase)

    def close(self) -> None:
        """End all phases, those that are under way first: solvers stop, and the memory of all is free."""
        self._stop.set()
        if self._beside is not None:
            self._beside.shutdown(wait=True)
        for phase in (*self.searchers, *self.provers):
            phase.steps.close()
