"""The provers of `auto`: which of them suit a model, and how they take turns."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from mapmrf.arrays import Ints
from mapmrf.engines.program.compact import is_compact
from mapmrf.engines.program.product_form import has_products
from mapmrf.methods.auto.dense import beats_cuts, sdp_prover, semidefinite
from mapmrf.methods.auto.shared import LEAST, Phase, Steps
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import EXACT_PAIRS, Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.methods.wcsp import WCSP
from mapmrf.run.method import Method, Progress, Start, running

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio

log = logging.getLogger("mapmrf")

MAX_PAIRS = 300_000
"""Maximum number of pairs for which cutting planes are used on a binary model."""

PROGRAM_ENTRIES = 300_000
"""Maximum number of matrix entries for which the local polytope is solved as a 0/1 program: its first relaxation takes
some seconds then."""

BRANCH_VARIABLES = 20_000
"""Maximum number of variables for AND/OR search and soft arc consistency."""

TURN, BRANCH_TURN, PROGRAM_TURN = 5, 10, 1
"""Iterations per turn. AND/OR search improves its bound only at the end, so it has fewer but longer turns; iterations
of the 0/1 program take longer than others."""

WIDTH_LEFT = 8
"""Maximum difference in variables between the largest bucket and the largest mini-bucket for which AND/OR search keeps
its turns: in the worst case its tree is exponential in that difference."""

WCSP_FIRST = 16
"""Iterations of the first turn of soft arc consistency, which reduces the model further and solves many at once."""

CUTS_TURN = 60_000
"""Pairs processed by the rounds of cutting planes in one turn, which has at least one round. On two threads, such a
turn and those of the search take about the same time."""

REPORTS = 3
"""Reports of HiGHS or SCIP per iteration of branch and bound, each some hundredths of a second apart."""


@runtime_checkable
class Informed(Protocol):
    """A run that can use better labellings found by other phases."""

    def inform(self, labels: Ints) -> None:
        """Take over a labelling if it is better."""


class Provers:
    """The provers that suit a portfolio's reduced model."""

    def __init__(self, portfolio: Portfolio) -> None:
        self.portfolio, self.options, self.seed = portfolio, portfolio.options, portfolio.seed
        self.problem = portfolio.problem
        self.runs: dict[str, object] = {}

    def phases(self) -> list[Phase]:
        """The phases of all provers, the most promising first."""
        sdp = semidefinite(self.problem)
        if sdp is not None and not self.portfolio.shared.is_refuted("sdp"):
            by_program = () if beats_cuts(sdp, self.problem) else self.by_program()
            return [sdp_prover(self.prove("sdp", sdp)), *by_program]
        return [*self.by_consistency(), *self.by_program(), *self.general()]

    def by_consistency(self) -> Iterator[Phase]:
        """Soft arc consistency, unless cutting planes apply, whose bounds are far better."""
        if self.problem.n_vars <= BRANCH_VARIABLES and not self.is_sparse():
            yield Phase(self.prove("wcsp", WCSP(local_search=0)), TURN, first=WCSP_FIRST, name="wcsp")

    def by_program(self) -> Iterator[Phase]:
        """Cutting planes for sparse binary models, the 0/1 program over the local polytope for others."""
        problem, options = self.problem, self.options
        compact = self.is_sparse()
        places = sum(batch.n * batch.n_configs for batch in problem.batches)
        entries = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
        if not compact and (is_compact(problem) or (entries > PROGRAM_ENTRIES and not has_products(problem))):
            return
        method = Cuts(solver=options.solver, persistency=False, local_search=0, lp_iterations=0, memory=options.memory)
        reason = method.supports(problem)
        if reason is not None:
            log.warning("auto continues without cutting planes: %s", reason)
        if reason is not None or not self.portfolio.shared.admits(method, problem):
            return
        turn = max(1, CUTS_TURN // problem.n_factors) if compact else min(PROGRAM_TURN, max(1, CUTS_TURN // places))
        yield Phase(self.cut(method, compact), turn, first=turn, name="cuts")

    def is_sparse(self) -> bool:
        """Return whether the model suits cutting planes: binary, pairwise, finite, and not dense."""
        n_pairs = self.problem.n_factors
        return is_compact(self.problem) and n_pairs <= min(MAX_PAIRS, self.options.cuts_degree * self.problem.n_vars)

    def general(self) -> Iterator[Phase]:
        """The provers for any model."""
        if self.problem.n_vars <= BRANCH_VARIABLES:
            steps = self.prove("branch", Branch(memory=self.options.memory))
            yield Phase(steps, BRANCH_TURN, least=self.least_of_branch, name="branch")
        yield Phase(self.prove("clusters", MPLPC(max_iterations=sys.maxsize)), TURN, weight=0.5, name="clusters")

    def least_of_branch(self) -> float:
        """Least weight of AND/OR search: full where it is likely to finish, as it shows no progress before."""
        details = getattr(self.runs.get("branch"), "details", {})
        left = details["width"] - details["i_bound"] if "i_bound" in details else 0.0
        return 1.0 if left <= WIDTH_LEFT else LEAST

    def cut(self, method: Cuts, compact: bool) -> Steps:
        """Run cutting planes and branch and cut. A round, or some reports of the branching solver, is one iteration.

        Steps that only wait for a solver are not counted: how many there are depends on timing.
        """
        race, too_large = self.portfolio.race, self.problem.n_factors > EXACT_PAIRS
        with running(method, self.problem, self.seed, Start(race.known.labels)) as state:
            state.reports = REPORTS
            step = Progress(0)
            while step.finished is None:
                if compact and step.phase == "branch" and (too_large or race.known.gap > self.options.branch_gap):
                    return
                state.inform(race.known.labels)
                n_turns = state.n_turns
                step = method.step(self.problem, state)
                yield replace(
                    step,
                    iterations=state.n_turns - n_turns,
                    phase="branch and cut" if step.phase == "branch" else "cuts",
                )

    def prove(self, phase: str, method: Method) -> Steps:
        """Run a method that lowers the bound, to its end.

        It reserves its memory now rather than at its first step, which may run on another thread.
        """
        return self._steps(phase, method, self.portfolio.shared.admits(method, self.problem))

    def _steps(self, phase: str, method: Method, admitted: bool) -> Steps:
        if not admitted:
            return
        race = self.portfolio.race
        with running(method, self.problem, self.seed, Start(race.known.labels)) as state:
            self.runs[phase] = state
            step = Progress(0)
            while step.finished is None and step.iterations < method.max_iterations:
                if isinstance(state, Informed):
                    state.inform(race.known.labels)
                step = method.step(self.problem, state)
                yield replace(step, iterations=1, phase=phase)
