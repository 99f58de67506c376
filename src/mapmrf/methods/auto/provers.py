"""The provers of `auto`: which of them suit a model, and how they take turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from mapmrf.engines.program.binary_program import has_products, is_compact
from mapmrf.methods.auto.state import LEAST, PROGRAM_ENTRIES, REPORTS, Informed, Phase, Steps, log
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import EXACT_PAIRS, Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.methods.wcsp import WCSP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Method, Progress, Start, running

if TYPE_CHECKING:
    from mapmrf.methods.auto.portfolio import Portfolio
    from mapmrf.methods.sdp import SDP


MAX_PAIRS = 300_000  # maximum number of pairs for which cutting planes are used on a binary model

BRANCH_VARIABLES = 20_000  # maximum number of variables for AND/OR search and soft arc consistency

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


class Provers:
    def __init__(self, portfolio: Portfolio) -> None:
        self.portfolio, self.options, self.seed = portfolio, portfolio.options, portfolio.seed
        self.problem = portfolio.problem
        self.runs: dict[str, object] = {}

    def phases(self) -> list[Phase]:
        """The phases of all provers, the most promising first."""
        sdp = semidefinite(self.problem)
        if sdp is not None and not self.portfolio.shared.is_refuted("sdp"):
            phases = [Phase(self.prove("sdp", sdp), PROOF_TURN, PROOF_TURNS, first=PROOF_FIRST, name="sdp")]
            # With triangle inequalities, the semidefinite bound is eventually at least as good as that of cutting
            # planes, and on small models soon; with many pairs, their programs take too long.
            many_pairs = 2 * self.problem.n_factors > CUTS_DEGREE * self.problem.n_vars
            return phases if self.problem.n_vars <= sdp.branch_spins or many_pairs else [*phases, *self.by_program()]
        phases = []
        if self.problem.n_vars <= BRANCH_VARIABLES and not self.is_sparse():  # cutting planes have far better bounds
            phases = [Phase(self.prove("wcsp", WCSP(local_search=0)), TURN, first=WCSP_FIRST, name="wcsp")]
        return [*phases, *self.by_program(), *self.general()]

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
        yield Phase(self.add_planes(method, compact), turn, first=turn, name="cuts")

    def is_sparse(self) -> bool:
        """Return whether the model suits cutting planes: binary, pairwise, finite, and not dense."""
        n_pairs = self.problem.n_factors
        return is_compact(self.problem) and n_pairs <= min(MAX_PAIRS, self.options.cuts_degree * self.problem.n_vars)

    def general(self) -> Iterator[Phase]:
        if self.problem.n_vars <= BRANCH_VARIABLES:
            steps = self.prove("branch", Branch(memory=self.options.memory))
            yield Phase(steps, BRANCH_TURN, least=self.least_of_branch, name="branch")
        yield Phase(self.prove("clusters", MPLPC(max_iterations=sys.maxsize)), TURN, weight=0.5, name="clusters")

    def least_of_branch(self) -> float:
        """Least weight of AND/OR search: full where it is likely to finish, as it shows no progress before."""
        details = getattr(self.runs.get("branch"), "details", {})
        left = details["width"] - details["i_bound"] if "i_bound" in details else 0.0
        return 1.0 if left <= WIDTH_LEFT else LEAST

    def add_planes(self, method: Cuts, compact: bool) -> Steps:
        """Run cutting planes and branch and cut. A round, or some reports of the branching solver, is one iteration."""
        # Steps that only wait for a solver are not counted: how many there are depends on timing.
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

SPARSE_DEGREE = 6.0
"""Average number of pairs per variable up to which a model is sparse, so that cutting planes and blocks work better."""

MOST_VARIABLES = 20_000  # maximum number of variables for tabu search, in which every flip examines all of them
TABU_TURN, TABU_SPINS = 10, 250  # iterations per turn of tabu search, and variables per initial turn in a cycle
LEAST_TURNS, MOST_TURNS = 0.5, 4.0  # limits on these turns: small models are soon searched

PROOF_FIRST, PROOF_TURN, PROOF_TURNS = 20, 5, 2.0
"""Iterations of the first turn of the semidefinite bound, enough to reach a bound; of later turns; and the initial
number of turns per cycle, as it stalls at times."""

CUTS_DEGREE = 12.0  # maximum average number of pairs per variable for which cutting planes may run alongside
OTHERS_WEIGHT = 0.25  # initial number of turns per cycle of the other searchers, which find little in dense models


def is_dense(problem: Problem) -> bool:
    """Return whether a model is binary, pairwise, finite and not sparse."""
    n, m = problem.n_vars, problem.n_factors
    return 0 < n <= MOST_VARIABLES and 2 * m > SPARSE_DEGREE * n and is_compact(problem)


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
        phase.weight = phase.prior = OTHERS_WEIGHT * phase.prior
    weight = min(max(portfolio.problem.n_vars / TABU_SPINS, LEAST_TURNS), MOST_TURNS)
    return [Phase(tabu_search(portfolio), TABU_TURN, weight, first=TABU_TURN), *others]


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
