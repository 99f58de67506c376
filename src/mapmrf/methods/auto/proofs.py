"""The provers of `auto`: cutting planes, cluster tightening, and AND/OR branch and bound."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from mapmrf.arrays import Ints
from mapmrf.engines.program.compact import is_compact
from mapmrf.method import Method, Progress, Start, running
from mapmrf.methods.auto.shared import Phase, Steps
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio

log = logging.getLogger("mapmrf")

MAX_PAIRS = 50_000
"""Pairs up to which a binary model is given to the cutting planes."""

WAIT = 0.02
"""Seconds between two looks whether provers that run beside the search have had their turns."""

BRANCH_NODES = 1000
"""Nodes that branch and cut may take."""

BRANCH_VARIABLES = 20_000
"""Variables up to which AND/OR search is tried."""

PROOF_TURN, CUTS_TURN = 5, 20_000
"""Iterations of a prover before it is the next one's turn. An iteration of the cutting planes is a round, and a turn is
as many as go through so many pairs, at least one."""


@runtime_checkable
class Informed(Protocol):
    """A run that can use better labellings that others find."""

    def inform(self, labels: Ints) -> None:
        """Take a labelling over if it is better."""


class Known(NamedTuple):
    """What provers may use in a turn: the best labelling of the reduced model, and the gap."""

    labels: Ints
    gap: float


class Proofs:
    """The provers of a portfolio's reduced model, and their turns.

    Attributes
    ----------
    phases
        The provers.
    known
        What was known when the present cycle began. Provers may run beside the search, so they look at nothing else.
    """

    def __init__(self, portfolio: Portfolio) -> None:
        self.portfolio = portfolio
        self.options, self.shared, self.seed = portfolio.options, portfolio.shared, portfolio.seed
        self.problem, self.search = portfolio.problem, portfolio.search
        self.known = Known(self.search.best, math.inf)
        self.phases = self.first()
        self._due: list[Phase] = []
        self._stop = threading.Event()
        self._beside = ThreadPoolExecutor(1, "mapmrf-proofs") if self.shared.problem.threads > 1 else None
        self._turns: Future[list[ProofTurn]] | None = None

    # -- turns --------------------------------------------------------------------------------------------------------

    def begin(self, cycle: int) -> None:
        """Begin the turns of the provers that are due."""
        self.known = Known(self.search.best.copy(), self.shared.incumbent.gap)
        self._due = [phase for phase in self.phases if phase.due <= cycle]
        if self._beside is not None and self._due and self.portfolio.phases:
            self._turns = self._beside.submit(self._run, self._due)

    def _run(self, due: list[Phase]) -> list[ProofTurn]:
        return [ProofTurn(phase, list(self._steps(phase))) for phase in due]

    def _steps(self, phase: Phase) -> Iterator[Progress | None]:
        """The steps of one turn, None at the end if the prover has ended. Each tells its own iterations."""
        done = 0
        while done < phase.turn and not self._stop.is_set():
            step = phase.next_step()
            if step is not None and step.labels is not None:
                step.labels = step.labels.copy()
            yield step
            if step is None or step.finished is not None:
                return
            done += step.iterations

    def end(self, cycle: int) -> Iterator[Progress]:
        """Wait for the turns, or take them now, and report what they found."""
        turns: Iterable[ProofTurn] = (ProofTurn(phase, self._steps(phase)) for phase in self._due)
        if self._turns is not None:
            while not wait([self._turns], WAIT).done:
                yield self.shared.report("proofs")
            turns, self._turns = self._turns.result(), None
        for phase, steps in turns:
            yield from self.portfolio.watched(phase, cycle, self._report(phase, steps))

    def _report(self, phase: Phase, steps: Iterable[Progress | None]) -> Iterator[Progress]:
        for step in steps:
            if step is None:
                self.phases.remove(phase)
                self.phases += phase.then()
            else:
                yield self.take(step)

    def take(self, step: Progress) -> Progress:
        """Report a step of a prover; the search gets its labelling, too."""
        self.shared.iterations += step.iterations
        if step.labels is not None:
            self.search.learn(step.labels)
            self.portfolio.offer_pool()
        self.shared.incumbent.tighten(step.bound)
        proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE)
        return self.shared.report(step.phase, step.finished if proven else None)

    def close(self) -> None:
        """End all provers, those that are under way first."""
        self._stop.set()
        if self._beside is not None:
            self._beside.shutdown(wait=True)
        for phase in self.phases:
            phase.steps.close()

    # -- provers ------------------------------------------------------------------------------------------------------

    def first(self) -> list[Phase]:
        """The provers to begin with."""
        cuts = Cuts(BRANCH_NODES, self.options.solver, local_search=0, memory=self.options.memory)
        if not self.is_sparse():
            return self.general()
        reason = cuts.supports(self.problem)
        if reason is not None:
            log.warning("auto goes on without cutting planes: %s", reason)
            return self.general()
        return [Phase(self.cut(cuts), max(1, CUTS_TURN // self.problem.n_factors), then=self.general)]

    def is_sparse(self) -> bool:
        """Whether the model suits cutting planes: binary, pairwise, finite, and not dense."""
        n_pairs = self.problem.n_factors
        return is_compact(self.problem) and n_pairs <= min(MAX_PAIRS, self.options.cuts_degree * self.problem.n_vars)

    def general(self) -> list[Phase]:
        """The provers that lower the bound of any model."""
        found = [Phase(self.prove("clusters", MPLPC(max_iterations=sys.maxsize)), PROOF_TURN)]
        if self.problem.n_vars <= BRANCH_VARIABLES:
            found.append(Phase(self.prove("branch", Branch(memory=self.options.memory)), PROOF_TURN))
        return found

    def cut(self, method: Cuts) -> Steps:
        """Cutting planes, and branching if they leave a small gap; the general provers have to do the rest.

        A round is an iteration. Waiting for a solver counts as none: how often that happens is a matter of time.
        """
        with running(method, self.problem, self.seed, Start(self.known.labels)) as state:
            step = Progress(0)
            while step.finished is None and (step.phase != "branch" or self.known.gap <= self.options.branch_gap):
                state.inform(self.known.labels)
                n_rounds = state.n_rounds
                step = method.step(self.problem, state)
                yield replace(
                    step,
                    iterations=state.n_rounds - n_rounds,
                    phase="branch and cut" if step.phase == "branch" else "cuts",
                )

    def prove(self, phase: str, method: Method) -> Steps:
        """Run a method that lowers the bound, to its end."""
        if method.supports(self.problem) is not None:
            return
        with running(method, self.problem, self.seed, Start(self.known.labels)) as state:
            step = Progress(0)
            while step.finished is None and step.iterations < method.max_iterations:
                if isinstance(state, Informed):
                    state.inform(self.known.labels)
                step = method.step(self.problem, state)
                yield replace(step, iterations=1, phase=phase)


class ProofTurn(NamedTuple):
    """A prover, and the steps of its turn."""

    phase: Phase
    steps: Iterable[Progress | None]
