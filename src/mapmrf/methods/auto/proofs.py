"""The provers of `auto`: cutting planes, cluster tightening, and AND/OR branch and bound."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Protocol, runtime_checkable

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


class Proofs:
    """The provers of a portfolio's reduced model."""

    def __init__(self, portfolio: Portfolio) -> None:
        self.portfolio = portfolio
        self.options, self.shared, self.seed = portfolio.options, portfolio.shared, portfolio.seed
        self.problem, self.search = portfolio.problem, portfolio.search

    def first(self) -> list[Phase]:
        """The provers to begin with."""
        cuts = Cuts(BRANCH_NODES, self.options.solver, local_search=0, memory=self.options.memory)
        if not self.is_sparse():
            return self.general()
        reason = cuts.supports(self.problem)
        if reason is not None:
            log.warning("auto goes on without cutting planes: %s", reason)
            return self.general()
        return [Phase(self.cut(cuts), max(1, CUTS_TURN // self.problem.n_factors))]

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
        best = self.shared.incumbent
        with running(method, self.problem, self.seed, Start(self.search.best)) as state:
            step = Progress(0)
            while step.finished is None and (step.phase != "branch" or best.gap <= self.options.branch_gap):
                state.inform(self.search.best)
                n_rounds = state.n_rounds
                step = method.step(self.problem, state)
                self.shared.iterations += state.n_rounds - n_rounds
                yield self.take("branch and cut" if step.phase == "branch" else "cuts", step)
        self.portfolio.phases += self.general()

    def prove(self, phase: str, method: Method) -> Steps:
        """Run a method that lowers the bound, to its end."""
        if method.supports(self.problem) is not None:
            return
        with running(method, self.problem, self.seed, Start(self.search.best)) as state:
            step = Progress(0)
            while step.finished is None and step.iterations < method.max_iterations:
                if isinstance(state, Informed):
                    state.inform(self.search.best)
                step = method.step(self.problem, state)
                self.shared.iterations += 1
                yield self.take(phase, step)

    def take(self, phase: str, step: Progress) -> Progress:
        """Report what a prover found; the search gets its labelling, too."""
        if step.labels is not None:
            self.search.learn(step.labels)
            self.portfolio.offer_pool()
        self.shared.incumbent.tighten(step.bound)
        proven = step.finished in (Status.OPTIMAL, Status.INFEASIBLE)
        return self.shared.report(phase, step.finished if proven else None)
