"""The provers of `auto`: which of them suit a model, and how they take turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mapmrf.engines.program.binary_program import has_products, is_compact
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Informed, Phase, Steps, log
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import EXACT_PAIRS, Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.methods.wcsp import WCSP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Method, Progress, Start, running

if TYPE_CHECKING:
    from mapmrf.methods.auto.portfolio import Portfolio
    from mapmrf.methods.sdp import SDP


class Provers:
    def __init__(self, portfolio: Portfolio) -> None:
        self.portfolio, self.options, self.seed = portfolio, portfolio.options, portfolio.seed
        self.problem = portfolio.problem
        self.runs: dict[str, object] = {}

    def phases(self) -> list[Phase]:
        """The phases of all provers, the most promising first."""
        sdp = semidefinite(self.problem)
        if sdp is not None and not self.portfolio.shared.is_refuted("sdp"):
            steps, first = self.prove("sdp", sdp), SETTINGS.sdp_first
            phases = [Phase(steps, SETTINGS.sdp_turn, SETTINGS.sdp_turns, first=first, name="sdp")]
            # With triangle inequalities, the semidefinite bound is eventually at least as good as that of cutting
            # planes, and on small models soon; with many pairs, their programs take too long.
            many_pairs = 2 * self.problem.n_factors > SETTINGS.sdp_cuts_degree * self.problem.n_vars
            return phases if self.problem.n_vars <= sdp.branch_spins or many_pairs else [*phases, *self.by_program()]
        phases = []
        # Not on sparse binary models: cutting planes have far better bounds.
        if self.problem.n_vars <= SETTINGS.branch_variables and not self.is_sparse():
            trial = self.portfolio.trial
            if trial is not None and trial.is_open:
                phases = [trial.prover(self.portfolio)]
            elif trial is None or not trial.finished:
                steps = self.prove("wcsp", WCSP(local_search=0))
                phases = [Phase(steps, SETTINGS.prover_turn, first=SETTINGS.wcsp_first, name="wcsp")]
        return [*phases, *self.by_program(), *self.general()]

    def by_program(self) -> Iterator[Phase]:
        """Cutting planes for sparse binary models, the 0/1 program over the local polytope for others."""
        problem, options = self.problem, self.options
        compact = self.is_sparse()
        entries = sum(batch.n * batch.n_configs * batch.arity for batch in problem.batches)
        if not compact and (is_compact(problem) or (entries > SETTINGS.program_entries and not has_products(problem))):
            return
        method = Cuts(solver=options.solver, persistency=False, local_search=0, lp_iterations=0, memory=options.memory)
        reason = method.supports(problem)
        if reason is not None:
            log.warning("auto continues without cutting planes: %s", reason)
        if reason is not None or not self.portfolio.shared.admits(method, problem):
            return
        turn = max(1, SETTINGS.cuts_turn // problem.n_factors) if compact else SETTINGS.program_turn
        yield Phase(self.add_planes(method, compact), turn, first=turn, name="cuts")

    def is_sparse(self) -> bool:
        """Return whether the model suits cutting planes: binary, pairwise, finite, and not dense."""
        most_pairs = min(SETTINGS.cuts_pairs, self.options.cuts_degree * self.problem.n_vars)
        return is_compact(self.problem) and self.problem.n_factors <= most_pairs

    def general(self) -> Iterator[Phase]:
        if self.problem.n_vars <= SETTINGS.branch_variables:
            steps = self.prove("branch", Branch(memory=self.options.memory))
            yield Phase(steps, SETTINGS.branch_turn, least=self.least_of_branch, name="branch")
        steps = self.prove("clusters", MPLPC(max_iterations=sys.maxsize))
        yield Phase(steps, SETTINGS.prover_turn, SETTINGS.clusters_weight, name="clusters")

    def least_of_branch(self) -> float:
        """Least weight of AND/OR search: full where it is likely to finish, as it shows no progress before."""
        details = getattr(self.runs.get("branch"), "details", {})
        left = details["width"] - details["i_bound"] if "i_bound" in details else 0.0
        return 1.0 if left <= SETTINGS.branch_width_left else SETTINGS.weight_least

    def add_planes(self, method: Cuts, compact: bool) -> Steps:
        """Run cutting planes and branch and cut. A round, or some reports of the branching solver, is one iteration."""
        # Steps that only wait for a solver are not counted: how many there are depends on timing.
        race, too_large = self.portfolio.race, self.problem.n_factors > EXACT_PAIRS
        with running(method, self.problem, self.seed, Start(race.known.labels)) as state:
            state.reports = SETTINGS.program_reports
            step = Progress(0)
            while step.finished is None:
                if compact and step.phase == "branch" and (too_large or race.known.gap > self.options.branch_gap):
                    return
                state.inform(race.known.labels)
                n_turns = state.n_turns
                step = method.step(self.problem, state)
                phase = "branch and cut" if step.phase == "branch" else "cuts"
                yield replace(step, iterations=state.n_turns - n_turns, phase=phase)

    def prove(self, phase: str, method: Method) -> Steps:
        """Run a method that lowers the bound, to its end."""
        # It reserves its memory now rather than at its first step, which may run on another thread.
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


# -- The phases of `auto` for binary pairwise models that are not sparse: tabu search, and semidefinite bounds --------


def is_dense(problem: Problem) -> bool:
    """Return whether a model is binary, pairwise, finite and not sparse."""
    n, m = problem.n_vars, problem.n_factors
    return 0 < n <= SETTINGS.tabu_variables and 2 * m > SETTINGS.sparse_degree * n and is_compact(problem)


def semidefinite(problem: Problem) -> SDP | None:
    """Return the semidefinite method if it is the best prover for a model."""
    if not is_dense(problem):
        return None
    from mapmrf.methods.sdp import SDP  # sparse models skip the import

    method = SDP()
    return method if method.supports(problem) is None else None


def dense_searchers(portfolio: Portfolio, others: list[Phase]) -> list[Phase]:
    """Put tabu search first, and run the other searchers only in some cycles."""
    for phase in others:
        phase.weight = phase.prior = SETTINGS.dense_others * phase.prior
        phase.skipped = SETTINGS.dense_waits
    weight = min(max(portfolio.problem.n_vars / SETTINGS.tabu_spins, SETTINGS.tabu_least), SETTINGS.tabu_most)
    return [Phase(tabu_search(portfolio), SETTINGS.tabu_turn, weight, first=SETTINGS.tabu_turn), *others]


def tabu_search(portfolio: Portfolio) -> Steps:
    """Run tabu search without end, and add what it finds to the pool."""
    from mapmrf.engines.spins.search import CoupledSpins, SpinSearch
    from mapmrf.methods.tabu import Tabu

    defaults = Tabu()
    search = SpinSearch(CoupledSpins.of(portfolio.problem), portfolio.seed, defaults.elite, defaults.patience)
    search.learn(portfolio.search.best)
    known = search.value
    for _ in search.run():
        if search.value > known:
            known = search.value
            portfolio.search.learn(search.labels())
        yield portfolio.searched("tabu")
