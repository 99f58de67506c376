"""DD-SG: exact on trees, bounds that come down to the LP's, and each of its options."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.engines.decomposition.subgradient import unit_of
from mapmrf.methods.dd_sg import DDSG
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, plant, random_recipe, recipes, tree_recipes

DIFFER = np.array([[0.0, 1.0], [1.0, 0.0]])


def triangle() -> FactorGraph:
    """Each pair wants to differ: the LP is worth 3, every labelling at most 2."""
    return FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], DIFFER)


def random_model(seed: int) -> FactorGraph:
    recipe = random_recipe(seed, 6 + seed % 4, 10 + seed % 7, hard=0.25 if seed % 3 == 0 else 0.0)
    plant(recipe, seed)
    return recipe.graph()


@given(recipe=tree_recipes())
@settings(max_examples=25)
def test_a_tree_is_solved_in_one_round(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "dd_sg", max_iterations=1)
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-9)
    assert result.bound == pytest.approx(result.value, abs=1e-9)
    assert result.status is Status.OPTIMAL
    assert result.kind is Kind.VALID


@pytest.mark.parametrize("decomposition", ["trees", "factors"])
def test_the_bound_comes_down_to_the_value_of_the_lp(decomposition: str) -> None:
    """Any arity, a third of the models with -inf: within 5e-4 of HiGHS, and never below it."""
    for seed in range(24):
        graph = random_model(seed)
        relaxed = mapmrf.solve(graph, "lp").bound
        assert relaxed is not None
        result = mapmrf.solve(graph, "dd_sg", decomposition=decomposition, max_iterations=6000, patience=200)
        assert result.bound is not None
        scale = max(1.0, abs(relaxed))
        assert relaxed - 1e-6 * scale <= result.bound <= relaxed + 5e-4 * scale, seed


@given(recipe=recipes())
@settings(max_examples=25)
def test_every_round_gives_a_valid_bound_whatever_the_rule(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    for rule in ("level", "polyak", "diminishing"):
        for decomposition in ("trees", "factors"):
            state = DDSG(rule=rule, decomposition=decomposition).start(Problem.compile(graph), 0, Start())  # type: ignore[arg-type]
            for rounds in range(1, 40):
                progress = state.step(rounds)
                assert progress.bound is not None and progress.bound >= optimum - 1e-9 * max(1.0, abs(optimum))
                if progress.finished is not None:
                    break
                assert progress.iterations == rounds


def test_the_copies_of_a_variable_always_sum_to_its_potentials() -> None:
    graph = random_model(1)
    problem, method = Problem.compile(graph), DDSG()
    state = method.start(problem, 0, Start())
    method.step(problem, state)
    copies = state.parts.copies
    assert state.rounds > 10
    for i in np.flatnonzero(problem.degree):
        blocks = [state.state.theta_c[copies.at[c] :][: graph.card[i]] for c in range(copies.ptr[i], copies.ptr[i + 1])]
        unary = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        assert np.sum(blocks, axis=0) == pytest.approx(unary, abs=1e-10)


def test_a_fractional_lp_ends_at_its_value_with_a_point_near_it() -> None:
    result = mapmrf.solve(triangle(), "dd_sg")
    assert result.bound == pytest.approx(3.0, abs=1e-5)
    assert result.value == 2.0
    assert result.status in (Status.CONVERGED, Status.ITERATION_LIMIT)
    assert result.mu_v == pytest.approx(np.full(6, 0.5), abs=0.05)
    assert result.relaxed_value == pytest.approx(3.0, abs=0.15)
    assert result.residuals is not None and result.residuals.simplex < 1e-9 and result.residuals.consistency < 0.05


def test_potentials_in_another_unit_take_the_same_way() -> None:
    """Every rule: the same rounds and labels, and bounds in proportion, exactly, as the factor is a power of two."""
    recipe = random_recipe(17, 8, 16)
    unit = 2.0**21
    larger = Recipe(recipe.card, recipe.scopes, [unit * table for table in recipe.tables]).graph()
    for rule in ("level", "polyak", "diminishing"):
        options: dict[str, Any] = {"rule": rule, "max_iterations": 50, "tolerance": 0.0}
        once = mapmrf.solve(recipe.graph(), "dd_sg", gap_tolerance=0, **options)
        again = mapmrf.solve(larger, "dd_sg", gap_tolerance=0, **options)
        assert again.labels.tolist() == once.labels.tolist()
        assert (again.bound, again.iterations) == (unit * once.bound, once.iterations)  # type: ignore[operator]


def test_the_unit_does_not_depend_on_which_factors_share_a_table() -> None:
    table = np.array([[0.0, -3.0], [-1.0, -7.0]])
    scopes = [(0, 1), (1, 2), (0, 2)]
    shared = Recipe([2, 2, 2], [*scopes, (0,)], [table, table, table, np.array([0.0, 0.5])]).graph()
    apart = Recipe([2, 2, 2], [*scopes, (0,)], [table, table.copy(), table.copy(), np.array([0.0, 0.5])]).graph()
    assert (shared.n_tables, apart.n_tables) == (1, 3)
    assert unit_of(Problem.compile(shared)) == unit_of(Problem.compile(apart)) == 3.0


def test_the_diminishing_steps_follow_their_formula() -> None:
    graph = triangle()
    problem = Problem.compile(graph)
    method = DDSG(rule="diminishing", step_size=0.4, decay=2.0, exponent=0.5)
    state = method.start(problem, 0, Start())
    for t in range(5):
        state.step(t + 1)
        assert method.answer(problem, state).details["step_length"] == pytest.approx(0.4 / (1 + (2.0 * t) ** 0.5))


def test_polyak_steps_aim_at_the_labelling_given() -> None:
    """With a good labelling known the first step is shorter: it goes to that value, not below."""
    graph = random_model(4)
    problem, method = Problem.compile(graph), DDSG(rule="polyak", decode="majority")
    _, best = brute_force(graph)
    lengths = []
    for labels in (None, np.array(best)):
        state = method.start(problem, 0, Start(labels))
        state.step(1)
        lengths.append(method.answer(problem, state).details["step_length"])
    assert 0 < lengths[1] < lengths[0]


@pytest.mark.parametrize("decode", ["all", "majority", "average", "subproblems"])
def test_each_way_to_a_labelling_solves_a_model_whose_lp_is_tight(decode: str) -> None:
    """An attractive grid with random unary potentials: the LP has no fractional vertex."""
    random = np.random.default_rng(4)
    place = np.arange(36).reshape(6, 6)
    edges = np.concatenate([np.stack([place[:, :-1], place[:, 1:]], -1), np.stack([place[:-1].T, place[1:].T], -1)])
    graph = FactorGraph.from_pairwise(random.normal(size=(36, 2)), edges.reshape(-1, 2), -0.7 * DIFFER)
    result = mapmrf.solve(graph, "dd_sg", decode=decode)
    assert result.status.closes_gap
    assert result.value == pytest.approx(mapmrf.solve(graph, "lp").value, abs=1e-6)


def test_subproblems_alone_offer_the_labelling_of_one_tree_after_another() -> None:
    problem, method = Problem.compile(triangle()), DDSG(decode="subproblems", rule="diminishing", step_size=1e-6)
    state = method.start(problem, 0, Start())
    copies = state.parts.copies
    assert state.parts.n_forests == 2
    for t in range(4):
        state.step(t + 1)
        for i in range(3):
            for c in range(copies.ptr[i], copies.ptr[i + 1]):
                if t > 0 and copies.forest[c] == t % 2:
                    assert state.state.candidate[i] == state.state.choices.label_c[c]


def test_a_model_that_no_tree_can_satisfy_is_infeasible() -> None:
    """The chain 0-1-2 forces its ends apart, both unary tables force them to be equal."""
    hard = np.where(DIFFER > 0, 0.0, -np.inf)
    force = np.array([0.0, -np.inf])
    graph = Recipe([2, 2, 2], [(0, 1), (1, 2), (0,), (1,)], [hard, hard, force, force]).graph()
    result = mapmrf.solve(graph, "dd_sg")
    assert result.status is Status.INFEASIBLE
    assert result.bound == -np.inf
    assert result.iterations == 1


def test_subproblems_are_counted_in_the_details() -> None:
    assert mapmrf.solve(triangle(), "dd_sg").details["subproblems"] == 2
    assert mapmrf.solve(triangle(), "dd_sg", decomposition="factors").details["subproblems"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decomposition": "blocks"}, "decomposition is 'blocks', expected one of trees, factors"),
        ({"rule": "constant"}, "rule is 'constant', expected one of level, polyak, diminishing"),
        ({"decode": "vote"}, "decode is 'vote', expected one of all, majority, average, subproblems"),
        ({"max_iterations": 0}, "max_iterations is 0, expected at least 1"),
        ({"patience": 0}, "patience is 0, expected at least 1"),
        ({"step_size": 0.0}, "step_size is 0.0, expected a number above 0"),
        ({"decay": -1.0}, "decay is -1.0, expected at least 0"),
        ({"exponent": float("nan")}, "exponent is nan, expected at least 0"),
        ({"tolerance": -1e-9}, "tolerance is -1e-09, expected at least 0"),
        ({"decomposition": "factors", "decode": "subproblems"}, "a single factor gives no labelling"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        DDSG(**options)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "relaxed"),
    [("grids/grid20x20.f10.uai.gz", 3736.7258), ("grids/grid40x40.f2.wrap.uai.gz", 3231.5753)],
)
def test_on_grids_the_bound_is_that_of_the_lp(name: str, relaxed: float) -> None:
    """The values of LP-LP, which the paper prints to one decimal."""
    result = mapmrf.solve(benchmark(name), "dd_sg")
    assert result.bound == pytest.approx(relaxed, abs=1e-3)


@pytest.mark.data
@pytest.mark.parametrize(
    "name", ["segmentation2/10_14_s.binary.uai.gz", "segmentation21/2_2_s.21.uai.gz", "scene/0000047.uai.gz"]
)
def test_segmentation_and_scene_models_are_certified(name: str) -> None:
    result = mapmrf.solve(benchmark(name), "dd_sg")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(references()[name], abs=2e-3)
