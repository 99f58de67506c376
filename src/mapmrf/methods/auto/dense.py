"""The phases of `auto` for binary pairwise models that are not sparse: tabu search, and semidefinite bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapmrf.engines.program.compact import is_compact
from mapmrf.methods.auto.shared import Phase, Steps
from mapmrf.model.problem import Problem

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio
    from mapmrf.methods.sdp import SDP

SPARSE_DEGREE = 6.0
"""Average number of pairs per variable up to which a model is sparse, so that cutting planes and blocks work better."""

MOST_VARIABLES = 20_000
"""Maximum number of variables for tabu search, in which every flip examines all of them."""

TABU_TURN, TABU_SPINS = 10, 250
"""Iterations per turn of tabu search, and variables per initial turn in a cycle."""

LEAST_TURNS, MOST_TURNS = 0.5, 4.0
"""Limits on these turns: small models are soon searched."""

PROOF_FIRST, PROOF_TURN, PROOF_TURNS = 20, 5, 2.0
"""Iterations of the first turn of the semidefinite bound, enough to reach a bound; of later turns; and the initial
number of turns per cycle, as it stalls at times."""

CUTS_DEGREE = 12.0
"""Maximum average number of pairs per variable for which cutting planes may run alongside."""

OTHERS_WEIGHT = 0.25
"""Initial number of turns per cycle of the other searchers, which find little in dense models."""


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


def beats_cuts(method: SDP, problem: Problem) -> bool:
    """Return whether the semidefinite bound makes cutting planes useless.

    With triangle inequalities, it is eventually at least as good as theirs, and on small models soon; with many pairs,
    their programs take too long.
    """
    return problem.n_vars <= method.branch_spins or 2 * problem.n_factors > CUTS_DEGREE * problem.n_vars


def dense_searchers(portfolio: Portfolio, others: list[Phase]) -> list[Phase]:
    """Put tabu search first, and run the other searchers only in some cycles."""
    for phase in others:
        phase.weight = phase.prior = OTHERS_WEIGHT * phase.prior
    weight = min(max(portfolio.problem.n_vars / TABU_SPINS, LEAST_TURNS), MOST_TURNS)
    return [Phase(tabu_search(portfolio), TABU_TURN, weight, first=TABU_TURN), *others]


def sdp_prover(steps: Steps) -> Phase:
    """Return the phase of the semidefinite bound."""
    return Phase(steps, PROOF_TURN, PROOF_TURNS, first=PROOF_FIRST, name="sdp")


def tabu_search(portfolio: Portfolio) -> Steps:
    """Run tabu search without end, and add what it finds to the pool."""
    from mapmrf.engines.spins.couplings import CoupledSpins
    from mapmrf.engines.spins.search import SpinSearch
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
