"""AD3: the LP relaxation by ADMM, its bound, the balance of rho, and branch and bound on top."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.datasets import grid
from mapmrf.engines.admm.branching import Tree
from mapmrf.engines.admm.penalty import interaction_scale
from mapmrf.engines.admm.relaxation import ADMMRelaxation
from mapmrf.methods.ad3 import AD3
from mapmrf.model.polytope import Kind, dense, dual_bound
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Start
from strategies import (
    Recipe,
    any_recipes,
    brute_force,
    hard_recipes,
    recipes,
    soft_recipes,
    tree_recipes,
)

DIFFER = np.array([[0.0, 1.0], [1.0, 0.0]])


def triangle() -> FactorGraph:
    """Three binary variables that all want to differ: the relaxation takes 1/2 everywhere."""
    return FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], DIFFER)


def frustrated(seed: int = 0, side: int = 6, states: int = 2) -> FactorGraph:
    """A grid whose relaxation is fractional."""
    random = np.random.default_rng(seed)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    tables = 2 * random.normal(size=(len(edges), states, states))
    tables -= tables.mean(axis=1, keepdims=True)
    tables -= tables.mean(axis=2, keepdims=True)  # no linear part, which would make the choice easy
    return FactorGraph.from_pairwise(0.1 * random.normal(size=(side * side, states)), edges, tables)


# -- the relaxation ---------------------------------------------------------------------------------------------------


@given(recipe=soft_recipes() | hard_recipes())
@settings(max_examples=40)
def test_bound_and_relaxed_value_are_those_of_the_linear_program(recipe: Recipe) -> None:
    graph = recipe.graph()
    result, exact = mapmrf.solve(graph, "ad3"), mapmrf.solve(graph, "lp")
    assert exact.bound is not None and exact.relaxed_value is not None
    close = 1e-4 * max(1.0, abs(exact.bound))
    assert result.bound == pytest.approx(exact.bound, abs=close)
    assert result.relaxed_value == pytest.approx(exact.relaxed_value, abs=close)


@given(recipe=recipes(), n=st.sampled_from([1, 2, 7, 30]))
@settings(max_examples=25)
def test_the_bound_holds_wherever_the_run_stops(recipe: Recipe, n: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "ad3", max_iterations=n)
    assert result.bound is not None and result.bound >= optimum - 1e-6 * max(1.0, abs(optimum))


@given(recipe=tree_recipes())
@settings(max_examples=20)
def test_on_trees_the_bound_closes_on_the_optimum(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "ad3", max_iterations=20_000)
    assert result.bound == pytest.approx(optimum, abs=1e-4 * max(1.0, abs(optimum)))


def test_the_relaxed_solution_of_a_frustrated_triangle_is_uniform_and_reported_as_it_is() -> None:
    result = mapmrf.solve(triangle(), "ad3")
    assert result.status is Status.CONVERGED
    assert result.kind is Kind.UNIFORM
    assert result.relaxed_value == pytest.approx(3.0, abs=1e-4)
    assert result.value <= 2.0


def test_both_residuals_are_below_their_tolerances_at_the_end_and_looser_ones_end_sooner() -> None:
    graph = frustrated(1, 8)
    tight = mapmrf.solve(graph, "ad3")
    assert tight.status is Status.CONVERGED
    assert max(tight.details["primal"], tight.details["dual"]) < 1e-6
    loose = mapmrf.solve(graph, "ad3", primal_tol=1e-3, dual_tol=1e-3)
    assert loose.iterations < tight.iterations
    only_one = mapmrf.solve(graph, "ad3", primal_tol=1e-3, dual_tol=1e-9, max_iterations=loose.iterations)
    assert only_one.status is Status.ITERATION_LIMIT


def test_a_closed_gap_reports_the_vertex_of_the_labelling() -> None:
    graph = grid(8, 8, coupling=0.2, seed=1)
    result = mapmrf.solve(graph, "ad3")
    assert result.status is Status.OPTIMAL
    assert result.kind is Kind.VALID
    assert result.relaxed_value == pytest.approx(result.value)


def test_forbidden_states_have_no_mass_and_factors_keep_their_order() -> None:
    """Hardening sorts the factors anew; the answer is in the order of the problem that was given."""
    random = np.random.default_rng(4)
    unary = random.normal(size=(6, 3))
    unary[2, 1] = -np.inf
    edges = [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 0], [0, 2], [1, 4]]
    graph = FactorGraph.from_pairwise(unary, edges, 3 * random.normal(size=(8, 3, 3)))
    problem, method = Problem.compile(graph), AD3()
    state = method.start(problem, 0, Start())
    while method.step(problem, state).finished is None:
        pass
    admm = state.admm
    assert admm is not None and admm.engine.problem is not problem
    mu_f = dense(problem, admm.engine.marginals_of(problem))
    mu_v = admm.engine.variables()
    assert abs(mu_v[graph.var_ptr[2] + 1]) < 1e-4
    for a in range(problem.n_factors):
        block = mu_f[problem.config_ptr[a] : problem.config_ptr[a + 1]].reshape(3, 3)
        i, j = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]]
        assert block.sum(axis=1) == pytest.approx(mu_v[3 * i : 3 * i + 3], abs=1e-4)
        assert block.sum(axis=0) == pytest.approx(mu_v[3 * j : 3 * j + 3], abs=1e-4)


def test_infeasible_tables_are_told_at_once() -> None:
    graph = Recipe([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]).graph()
    result = mapmrf.solve(graph, "ad3")
    assert result.status is Status.INFEASIBLE and result.iterations == 0


def test_a_warm_start_begins_at_the_given_marginals() -> None:
    graph = frustrated(2, 8)
    first = mapmrf.solve(graph, "ad3")
    again = mapmrf.solve(graph, "ad3", initial=first)
    problem = Problem.compile(graph)
    state = AD3().start(problem, 0, Start(first.labels, first.mu_v))
    assert state.admm is not None
    assert state.admm.engine.variables() == pytest.approx(first.mu_v)
    assert again.relaxed_value == pytest.approx(first.relaxed_value, rel=1e-4)


# -- rho --------------------------------------------------------------------------------------------------------------


def relaxation(**options: Any) -> ADMMRelaxation:
    problem = Problem.compile(frustrated(3, 8))
    admm = ADMMRelaxation(AD3(**options).relaxation_options, problem)
    admm.engine.begin(admm.engine.layout.compress(np.full(problem.n_states, 0.5)), admm.first_rho)
    return admm


@pytest.mark.parametrize(("primal", "dual", "way"), [(1.0, 0.05, 1), (0.05, 1.0, -1), (1.0, 0.5, 0)])
def test_rho_follows_the_larger_residual(primal: float, dual: float, way: int) -> None:
    admm = relaxation()
    rho = admm.rho
    admm.primal, admm.dual = primal, dual
    admm.rebalance()
    assert admm.rho == pytest.approx(rho * 2.0**way)


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


def test_changing_rho_keeps_the_multipliers_and_so_the_bound() -> None:
    admm = relaxation()
    found = admm.advance(10)
    lam = admm.engine.multipliers()
    admm.engine.change_rho(3 * admm.rho)
    assert np.array_equal(admm.engine.multipliers(), lam)
    assert admm.engine.measure().bound == found.bound


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
    graph = frustrated(5, 8)
    adapted = mapmrf.solve(graph, "ad3", rho=rho)
    fixed = mapmrf.solve(graph, "ad3", rho=rho, adapt_every=0)
    assert adapted.iterations < fixed.iterations
    assert adapted.status is Status.CONVERGED


def test_rho_is_measured_in_units_of_the_interaction() -> None:
    graph = frustrated(6, 6)
    scaled = FactorGraph.from_tables(
        graph.card,
        [(i,) for i in range(graph.n_vars)] + [tuple(graph.scope_of(a)) for a in range(graph.n_factors)],
        [1e4 * block for block in np.split(graph.theta_v, graph.var_ptr[1:-1])]
        + [1e4 * graph.table(a) for a in range(graph.n_factors)],
    )
    small, large = mapmrf.solve(graph, "ad3"), mapmrf.solve(scaled, "ad3")
    assert small.iterations == large.iterations
    assert large.bound == pytest.approx(1e4 * small.bound)
    unit = interaction_scale(Problem.compile(graph))
    absolute = mapmrf.solve(graph, "ad3", rho=0.4 * unit, rho_unit="absolute", adapt_every=0)
    assert absolute.iterations == mapmrf.solve(graph, "ad3", adapt_every=0).iterations


@pytest.mark.parametrize("relaxation", [0.8, 1.6])
def test_over_relaxation_leads_to_the_same_relaxed_value(relaxation: float) -> None:
    graph = frustrated(7, 8, states=3)
    plain, relaxed = mapmrf.solve(graph, "ad3"), mapmrf.solve(graph, "ad3", relaxation=relaxation)
    assert relaxed.iterations != plain.iterations
    assert relaxed.bound == pytest.approx(plain.bound, rel=1e-4)


# -- branch and bound -------------------------------------------------------------------------------------------------


@given(recipe=recipes(), order=st.sampled_from(["best", "depth"]))
@settings(max_examples=40)
def test_branch_and_bound_proves_the_optimum(recipe: Recipe, order: str) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "ad3", branch_and_bound=True, node_order=order)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-6 * max(1.0, abs(optimum)))


@given(recipe=any_recipes())
@settings(max_examples=30)
def test_branch_and_bound_tells_the_infeasible_models(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, "ad3", branch_and_bound=True)
    assert (result.status is Status.INFEASIBLE) == (optimum == -math.inf)


@pytest.mark.parametrize("states", [2, 3])
@pytest.mark.parametrize("order", ["best", "depth"])
def test_frustrated_grids_are_proven_by_branching(states: int, order: str) -> None:
    graph = frustrated(8, 5 if states == 2 else 4, states)
    plain = mapmrf.solve(graph, "ad3")
    assert plain.gap is not None and plain.gap > 1e-3, "the relaxation alone must not do"
    result = mapmrf.solve(graph, "ad3", branch_and_bound=True, node_order=order)
    assert result.status is Status.OPTIMAL
    assert result.details["nodes"] > 0
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)


def test_the_bound_of_the_tree_holds_when_the_run_is_cut_short() -> None:
    graph = frustrated(9, 8)
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
    graph = frustrated(9, 8)
    plain = mapmrf.solve(graph, "ad3")
    cut = mapmrf.solve(graph, "ad3", branch_and_bound=True, max_iterations=plain.iterations + 20)
    assert cut.trace[-1].phase == "branch"
    assert cut.relaxed_value == pytest.approx(plain.relaxed_value)


def test_what_a_state_loses_is_a_bound_on_the_labellings_that_take_it() -> None:
    graph = frustrated(10, 3, 3)
    problem = Problem.compile(graph)
    admm = ADMMRelaxation(AD3().relaxation_options, problem)
    admm.engine.begin(admm.engine.layout.compress(np.full(problem.n_states, 1 / 3)), admm.first_rho)
    found = admm.advance(30)
    best = Incumbent(graph, np.zeros(9, dtype=np.int64), found.bound)
    tree = Tree(admm, AD3(branch_and_bound=True).branching_options, best, problem, 1e-6)
    limits = found.bound - tree.losses()
    for i in range(graph.n_vars):
        for k in range(3):
            optimum = mapmrf.solve(graph.condition({i: k}), "branch").value
            assert limits[graph.var_ptr[i] + k] >= optimum - 1e-9


@pytest.mark.parametrize(("states", "side"), [(2, 3), (3, 4)])
def test_decisions_bind_and_their_bonus_is_taken_off_the_bound(states: int, side: int) -> None:
    """A node's bound is that of the conditioned model, whether a variable is one number or a block."""
    graph = frustrated(0, side, states)
    problem = Problem.compile(graph)
    admm = ADMMRelaxation(AD3().relaxation_options, problem)
    admm.engine.begin(admm.engine.layout.compress(np.full(problem.n_states, 1 / states)), admm.first_rho)
    found = admm.advance(200)
    best = Incumbent(graph, np.zeros(problem.n_vars, dtype=np.int64), found.bound)
    tree = Tree(admm, AD3(branch_and_bound=True).branching_options, best, problem, 1e-6)
    assert tree.node is not None
    tree.branch(tree.node, found.bound)
    tree.node = None
    assert tree.activate()
    left = tree.states_left(tree.node)
    assert not left.all()
    bound = admm.advance(3000).bound - tree.bonus
    conditioned = dataclasses.replace(graph, theta_v=np.where(left, graph.theta_v, -np.inf))
    assert bound == pytest.approx(mapmrf.solve(conditioned, "lp").bound, rel=1e-4)


# -- options ----------------------------------------------------------------------------------------------------------


def test_branch_and_bound_has_its_own_default_of_iterations() -> None:
    assert AD3().max_iterations == 2000
    assert AD3(branch_and_bound=True).max_iterations == 10_000_000
    assert AD3(branch_and_bound=True, max_iterations=7).max_iterations == 7


@pytest.mark.parametrize(
    "options",
    [
        {"rho": 0.0},
        {"rho_unit": "metric"},
        {"adapt_every": -1},
        {"balance": 0.5},
        {"rho_factor": 0.9},
        {"rho_lower": 0.0},
        {"rho_upper": math.nan},
        {"relaxation": 2.0},
        {"primal_tol": 0.0},
        {"dual_tol": -1.0},
        {"check_every": 0},
        {"node_order": "random"},
        {"node_iterations": 0},
    ],
    ids=lambda options: next(iter(options)),
)
def test_impossible_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=f"ad3: {next(iter(options))}"):
        AD3(**options)


def test_the_bound_is_the_dual_of_the_polytope_at_the_multipliers() -> None:
    """On variables of three states the layout keeps every multiplier as it is."""
    wide = FactorGraph.from_pairwise(
        np.random.default_rng(0).normal(size=(5, 3)),
        [[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]],
        np.random.default_rng(1).normal(size=(5, 3, 3)),
    )
    problem = Problem.compile(wide)
    admm = ADMMRelaxation(AD3().relaxation_options, problem)
    admm.engine.begin(admm.engine.layout.compress(np.full(problem.n_states, 1 / 3)), admm.first_rho)
    found = admm.advance(17)
    assert found.bound == pytest.approx(dual_bound(problem, admm.engine.multipliers()))


# -- benchmark models -------------------------------------------------------------------------------------------------


data = pytest.mark.data


@data
@pytest.mark.parametrize(
    "name",
    [
        "segmentation2/10_14_s.binary.uai.gz",
        "segmentation2/18_1_s.binary.uai.gz",
        "segmentation2/9_24_s.binary.uai.gz",
        "segmentation21/2_2_s.21.uai.gz",
        "scene/0000047.uai.gz",
        "scene/0002395.uai.gz",
    ],
)
def test_segmentation_and_scene_models_are_certified(name: str) -> None:
    result = mapmrf.solve(benchmark(name), "ad3")
    optimum = references()[name]
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-3 + 1e-6 * abs(optimum))


@data
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("grids/grid20x20.f10.uai.gz", 3736.7),
        ("grids/grid20x20.f15.wrap.uai.gz", 5745.5),
        ("grids/grid40x40.f2.uai.gz", 3121.2),
        ("grids/grid80x80.f15.uai.gz", 94414.5),
    ],
)
def test_on_frustrated_grids_the_bound_is_the_value_of_the_relaxation(name: str, value: float) -> None:
    result = mapmrf.solve(benchmark(name), "ad3")
    assert result.bound == pytest.approx(value, rel=1e-4)
    assert result.relaxed_value == pytest.approx(value, rel=1e-4)
    assert result.kind is not Kind.VALID


@data
def test_a_small_frustrated_grid_is_proven() -> None:
    name = "grids-small/grid10x10.f2.wrap.uai.gz"
    result = mapmrf.solve(benchmark(name), "ad3", branch_and_bound=True)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(references()[name], abs=1e-3)
