"""AD3: the LP relaxation by ADMM, its bound, the balance of rho, and branch and bound on top."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import mapmrf
from elimination_models import frustrated
from mapmrf import FactorGraph, Status
from mapmrf.methods.ad3 import AD3, ADMMRelaxation, Tree
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Start
from strategies import best_with_each_state

# -- the relaxation ---------------------------------------------------------------------------------------------------


def test_both_residuals_are_below_their_tolerances_at_the_end_and_looser_ones_end_sooner() -> None:
    graph = frustrated(8, 8, seed=1)
    tight = mapmrf.solve(graph, "ad3")
    assert tight.status is Status.CONVERGED
    assert max(tight.details["primal"], tight.details["dual"]) < 1e-6
    loose = mapmrf.solve(graph, "ad3", primal_tol=1e-3, dual_tol=1e-3)
    assert loose.iterations < tight.iterations
    only_one = mapmrf.solve(graph, "ad3", primal_tol=1e-3, dual_tol=1e-9, max_iterations=loose.iterations)
    assert only_one.status is Status.ITERATION_LIMIT


def test_a_warm_start_begins_at_the_given_marginals() -> None:
    graph = frustrated(8, 8, seed=2)
    first = mapmrf.solve(graph, "ad3")
    again = mapmrf.solve(graph, "ad3", initial=first)
    problem = Problem.compile(graph)
    state = AD3().start(problem, 0, Start(first.labels, first.mu_v))
    assert state.admm is not None
    assert state.admm.engine.variables() == pytest.approx(first.mu_v)
    assert again.relaxed_value == pytest.approx(first.relaxed_value, rel=1e-4)


# -- rho --------------------------------------------------------------------------------------------------------------


def relaxation(graph: FactorGraph | None = None, **options: Any) -> ADMMRelaxation:
    """ADMM on a model, from uniform marginals."""
    problem = Problem.compile(frustrated(8, 8, seed=3) if graph is None else graph)
    admm = ADMMRelaxation(AD3(**options), problem)
    admm.engine.begin(
        admm.engine.layout.compress(np.repeat(1.0 / problem.graph.card, problem.graph.card)), admm.first_rho
    )
    return admm


def test_rho_settles_when_the_residuals_take_turns_and_keeps_its_limits() -> None:
    admm = relaxation()
    steps = []
    for turn in range(12):
        before = admm.rho
        admm.primal, admm.dual = (1.0, 1e-3) if turn % 2 else (1e-3, 1.0)
        admm.rebalance()
        steps.append(abs(math.log(admm.rho / before)))
    assert steps[-1] < 1e-3 < steps[0]
    capped = relaxation(rho_lower=0.3, rho_upper=0.5)
    for _ in range(5):
        capped.primal, capped.dual = 1.0, 1e-3
        capped.rebalance()
    assert capped.rho == pytest.approx(0.5 * capped.unit)


def test_resuming_restores_mu_and_multipliers() -> None:
    admm = relaxation()
    bound = admm.advance(25).bound
    mu, lam = admm.engine.mu.copy(), admm.engine.multipliers()
    after = admm.advance(25).bound
    assert after != bound
    admm.engine.resume(mu, lam, admm.rho)
    assert admm.engine.measure().bound == pytest.approx(bound, rel=1e-12)
    assert admm.advance(25).bound == pytest.approx(after, rel=1e-9)


@pytest.mark.parametrize("rho", [0.003, 300.0])
def test_a_badly_chosen_rho_is_mended(rho: float) -> None:
    graph = frustrated(8, 8, seed=5)
    adapted = mapmrf.solve(graph, "ad3", rho=rho)
    fixed = mapmrf.solve(graph, "ad3", rho=rho, adapt_every=0)
    assert adapted.iterations < fixed.iterations
    assert adapted.status is Status.CONVERGED


# -- branch and bound -------------------------------------------------------------------------------------------------


def test_the_bound_of_the_tree_holds_when_the_run_is_cut_short() -> None:
    graph = frustrated(8, 8, seed=3)
    proven = mapmrf.solve(graph, "ad3", branch_and_bound=True)
    assert proven.status is Status.OPTIMAL
    assert any(point.phase == "branch" for point in proven.trace)
    root = mapmrf.solve(graph, "ad3").bound
    for limit in (proven.iterations // 3, proven.iterations // 2, proven.iterations - 1):
        cut = mapmrf.solve(graph, "ad3", branch_and_bound=True, max_iterations=limit)
        assert cut.iterations <= limit
        assert cut.value <= proven.value + 1e-9
        assert proven.value - 1e-6 * abs(proven.value) <= cut.bound <= root + 1e-6


def test_a_run_that_is_stopped_in_the_tree_gives_the_relaxed_solution_of_the_whole_model() -> None:
    graph = frustrated(8, 8, seed=3)
    plain = mapmrf.solve(graph, "ad3")
    cut = mapmrf.solve(graph, "ad3", branch_and_bound=True, max_iterations=plain.iterations + 20)
    assert cut.trace[-1].phase == "branch"
    assert cut.relaxed_value == pytest.approx(plain.relaxed_value)


def tree_of(admm: ADMMRelaxation, graph: FactorGraph, n: int) -> tuple[Tree, float]:
    """The tree that begins after some iterations, and the bound there."""
    bound = admm.advance(n).bound
    best = Incumbent(graph, np.zeros(graph.n_vars, dtype=np.int64), bound)
    return Tree(admm, best, Problem.compile(graph), 1e-6), bound


def test_what_a_state_loses_is_a_bound_on_the_labellings_that_take_it() -> None:
    graph = frustrated(3, 3, 3, seed=10)
    tree, bound = tree_of(relaxation(graph), graph, 30)
    assert np.all(bound - tree.losses() >= best_with_each_state(graph) - 1e-9)


@pytest.mark.parametrize(("states", "side"), [(2, 3), (3, 4)])
def test_decisions_bind_and_their_bonus_is_taken_off_the_bound(states: int, side: int) -> None:
    """A node's bound is that of the conditioned model, whether a variable is one number or a block."""
    graph = frustrated(side, side, states)
    admm = relaxation(graph)
    tree, bound = tree_of(admm, graph, 200)
    assert tree.node is not None
    tree.branch(tree.node, bound)
    tree.node = None
    assert tree.activate()
    left = tree.states_left(tree.node)
    assert not left.all()
    conditioned = dataclasses.replace(graph, theta_v=np.where(left, graph.theta_v, -np.inf))
    assert admm.advance(3000).bound - tree.bonus == pytest.approx(mapmrf.solve(conditioned, "lp").bound, rel=1e-4)


def test_branch_and_bound_has_its_own_default_of_iterations() -> None:
    assert AD3().max_iterations == 2000
    assert AD3(branch_and_bound=True).max_iterations == 10_000_000
    assert AD3(branch_and_bound=True, max_iterations=7).max_iterations == 7
