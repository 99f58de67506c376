"""The phases of `auto` for binary pairwise models that are not sparse: tabu search, and semidefinite bounds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mapmrf.engines.program.compact import is_compact
from mapmrf.methods.auto.shared import Phase, Steps
from mapmrf.problem import Problem

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio
    from mapmrf.methods.sdp import SDP

SPARSE_DEGREE = 6.0
"""Pairs at a variable, on average, up to which a model is sparse: cutting planes and exact blocks are better there."""

MOST_VARIABLES = 20_000
"""Variables up to which tabu search is used: every flip looks at all of them."""

TABU_TURN, TABU_SPINS = 10, 250
"""Iterations of a turn of tabu search, and variables for each turn in a cycle to begin with."""

LEAST_TURNS, MOST_TURNS = 0.5, 4.0
"""Limits of these turns: small models are soon searched."""

PROOF_FIRST, PROOF_TURN, PROOF_TURNS = 20, 5, 2.0
"""Iterations of the first turn of the semidefinite bound, which reach a bound; of later ones; and turns in a cycle to
begin with: it stalls at times."""

CUTS_DEGREE = 12.0
"""Pairs at a variable, on average, up to which cutting planes may run beside it."""

OTHERS_WEIGHT = 0.25
"""Turns in a cycle of the other searchers to begin with: they find little in dense models."""


def is_dense(problem: Problem) -> bool:
    """Whether a model is binary, pairwise, finite and not sparse."""
    n, m = problem.n_vars, problem.n_factors
    return 0 < n <= MOST_VARIABLES and 2 * m > SPARSE_DEGREE * n and is_compact(problem)


def semidefinite(problem: Problem) -> SDP | None:
    """The semidefinite bound, if it is the best that there is for a model."""
    if not is_dense(problem):
        return None
    from mapmrf.methods.sdp import SDP  # sparse models are spared the import

    method = SDP()
    return method if method.supports(problem) is None else None


def beats_cuts(method: SDP, problem: Problem) -> bool:
    """Whether cutting planes are no use beside the semidefinite bound.

    With triangle inequalities it is at least as good as theirs in the end, and for small models that is soon; and for
    many pairs their programs take too long.
    """
    return problem.n_vars <= method.branch_spins or 2 * problem.n_factors > CUTS_DEGREE * problem.n_vars


def dense_searchers(portfolio: Portfolio, others: list[Phase]) -> list[Phase]:
    """Tabu search first, and other searchers in some cycles only."""
    for phase in others:
        phase.weight = phase.prior = OTHERS_WEIGHT * phase.prior
    weight = min(max(portfolio.problem.n_vars / TABU_SPINS, LEAST_TURNS), MOST_TURNS)
    return [Phase(tabu_search(portfolio), TABU_TURN, weight, first=TABU_TURN), *others]


def sdp_prover(steps: Steps) -> Phase:
    """The turns of the semidefinite bound."""
    return Phase(steps, PROOF_TURN, PROOF_TURNS, first=PROOF_FIRST)


def tabu_search(portfolio: Portfolio) -> Steps:
    """Tabu search, without end; what it finds goes to the pool."""
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
