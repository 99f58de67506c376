"""TRW-S as a method: certificates, bounds near the relaxation, orders, stopping, and the paper's figures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.datasets import grid
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.engines.messages.trws_binary import SpinPasses
from mapmrf.engines.messages.trws_pairwise import LabelPasses
from mapmrf.methods.trws import TRWS
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, brute_force, hard_recipes, random_recipe, soft_recipes, tree_recipes

data = pytest.mark.data


def attractive(seed: int, side: int, states: int) -> FactorGraph:
    """A grid whose neighbours like to be equal; binary ones have a tight relaxation."""
    random = np.random.default_rng(seed)
    place = np.arange(side * side).reshape(side, side)
    across = np.stack([place[:, :-1].ravel(), place[:, 1:].ravel()], axis=1)
    down = np.stack([place[:-1].ravel(), place[1:].ravel()], axis=1)
    edges = np.concatenate([across, down])
    tables = random.random((len(edges), 1, 1)) * np.eye(states)
    return FactorGraph.from_pairwise(random.normal(size=(side * side, states)), edges, tables)


@pytest.mark.parametrize("seed", range(4))
def test_binary_attractive_models_are_certified(seed: int) -> None:
    graph = attractive(seed, 12, 2)
    result = mapmrf.solve(graph, "trws")
    assert result.status is Status.OPTIMAL
    assert result.bound == pytest.approx(result.value, rel=1e-6)
    assert result.value == pytest.approx(mapmrf.solve(graph, "lp").value, rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_comes_near_the_relaxation_of_frustrated_grids(seed: int) -> None:
    graph = grid(8, 8, coupling=2.0, seed=seed)
    relaxation = mapmrf.solve(graph, "lp").bound
    bound = mapmrf.solve(graph, "trws").bound
    assert relaxation is not None and bound is not None
    assert relaxation - 1e-6 <= bound <= relaxation * 1.01


@given(recipe=soft_recipes() | hard_recipes())
def test_the_bound_is_never_below_that_of_the_relaxation(recipe: Recipe) -> None:
    graph = recipe.graph()
    relaxation, bound = mapmrf.solve(graph, "lp").bound, mapmrf.solve(graph, "trws").bound
    assert relaxation is not None and bound is not None
    assert bound >= relaxation - 1e-6 * max(1.0, abs(relaxation))


@given(recipe=tree_recipes())
def test_trees_take_two_iterations(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "trws")
    assert result.value == pytest.approx(brute_force(graph)[0])
    assert result.status is Status.OPTIMAL
    assert result.iterations <= 2 or result.value == 0.0


@given(seed=st.integers(0, 2**16), order=st.sampled_from(["given", "trees_last", "breadth_first"]))
def test_bounds_hold_and_do_not_rise_in_any_order(seed: int, order: str) -> None:
    graph = random_recipe(seed, 7, 12).graph()
    result = mapmrf.solve(graph, "trws", order=order)
    found = [point.bound_now for point in result.trace]
    assert all(bound is not None and bound >= brute_force(graph)[0] - 1e-9 for bound in found)
    assert found == sorted(found, reverse=True)


def engine(graph: FactorGraph, **options: Any) -> SequentialPasses:
    return TRWS(**options).start(Problem.compile(graph), 0, Start()).passes


def test_every_model_takes_the_shortest_way_that_it_fits() -> None:
    assert isinstance(engine(grid(3, 3)), SpinPasses)
    flat = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.zeros((2, 2)))
    assert isinstance(engine(flat), SpinPasses)
    assert isinstance(engine(attractive(0, 3, 3)), LabelPasses)
    pinned = FactorGraph.from_pairwise([[0.0, -np.inf], [0.0, 0.0]], [[0, 1]], [[0.0, 1.0], [1.0, 0.0]])
    assert isinstance(engine(pinned), LabelPasses)
    steep = FactorGraph.from_pairwise(
        np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], [np.eye(2), -np.eye(2) * 1e9, np.eye(2)]
    )
    assert isinstance(engine(steep), LabelPasses)
    heavy = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2], [0, 2]], np.eye(2), weight=[1.0, -1e9, 1.0])
    assert isinstance(engine(heavy), LabelPasses)
    assert isinstance(engine(random_recipe(1, 5, 8).graph()), TablePasses)
    hard = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], [[0.0, -np.inf], [0.0, 0.0]])
    assert isinstance(engine(hard), TablePasses)


def test_ties_go_to_the_smallest_state() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], np.eye(2))
    assert mapmrf.solve(graph, "trws").labels.tolist() == [0, 0, 0]
    wide = FactorGraph.from_pairwise(np.zeros((3, 5)), [[0, 1], [1, 2]], np.eye(5))
    assert mapmrf.solve(wide, "trws").labels.tolist() == [0, 0, 0]


def test_an_impossible_state_is_found_and_avoided_down_a_chain() -> None:
    """Only one way through: every step up must be taken, and the last state is forced."""
    n, step = 6, np.full((6, 6), -np.inf)
    step[np.arange(5), np.arange(1, 6)] = 0.0
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    graph = FactorGraph.from_pairwise(np.tile(np.linspace(1.0, 0.0, n), (n, 1)), edges, step)
    result = mapmrf.solve(graph, "trws")
    assert result.labels.tolist() == list(range(n))
    assert result.status is Status.OPTIMAL
    longer = FactorGraph.from_pairwise(np.zeros((7, 6)), [[i, i + 1] for i in range(6)], step)
    assert mapmrf.solve(longer, "trws").status is Status.INFEASIBLE


def test_a_looser_tolerance_stops_earlier_and_a_shuffled_grid_gains_from_its_layers() -> None:
    graph = grid(20, 20, coupling=2.0, seed=3)
    loose, tight = mapmrf.solve(graph, "trws", tol=1e-3), mapmrf.solve(graph, "trws", tol=1e-12)
    assert loose.iterations < tight.iterations
    assert loose.status is Status.CONVERGED and tight.status is Status.CONVERGED
    assert loose.bound is not None and tight.bound is not None and tight.bound <= loose.bound
    new = np.random.default_rng(0).permutation(graph.n_vars)
    unary = np.zeros((graph.n_vars, 2))
    unary[new] = graph.theta_v.reshape(-1, 2)
    tables = [graph.table(a) for a in range(graph.n_factors)]
    shuffled = FactorGraph.from_pairwise(unary, new[graph.scope.reshape(-1, 2)], tables)
    one = [mapmrf.solve(shuffled, "trws", order=order, max_iterations=2).bound for order in ("given", "breadth_first")]
    assert one[0] is not None and one[1] is not None and one[1] < one[0]


def test_labels_are_decoded_as_often_as_asked() -> None:
    graph = grid(10, 10, coupling=2.0, seed=1)
    seldom = engine(graph, decode_every=3)
    assert isinstance(seldom, SpinPasses)
    seldom.iterate(1, 2, 3)
    assert seldom.figures.value == -np.inf  # iteration 1 of 3 decodes nothing
    seldom.iterate(3, 4, 3)
    assert seldom.figures.value == pytest.approx(graph.value(seldom.best))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random"}, "order is 'random', expected one of given, trees_last, breadth_first"),
        ({"decode_every": 0}, "decode_every is 0"),
        ({"max_iterations": 0}, "max_iterations is 0"),
        ({"tol": -1e-9}, "tol is -1e-09"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        TRWS(**options)


# -- benchmark models -------------------------------------------------------------------------------------------------


@data
@pytest.mark.parametrize(
    "name",
    [
        "segmentation2/10_14_s.binary.uai.gz",
        "segmentation2/9_24_s.binary.uai.gz",
        "segmentation21/4_30_s.21.uai.gz",
        "scene/0000952.uai.gz",
        "scene/0002395.uai.gz",
    ],
)
def test_segmentation_and_scene_models_are_certified(name: str) -> None:
    graph = benchmark(name)
    result = mapmrf.solve(graph, "trws")
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(references()[name], abs=1e-3, rel=1e-6)


@data
@pytest.mark.parametrize(
    ("name", "figure", "relaxation"),
    [
        ("grid20x20.f10", 2524.9, 3736.7),
        ("grid20x20.f5.wrap", 1325.5, 1915.2),
        ("grid40x40.f2", 2215.7, 3121.2),
        ("grid80x80.f10", 42274.2, 62943.0),
    ],
)
def test_grids_reach_the_papers_figures(name: str, figure: float, relaxation: float) -> None:
    result = mapmrf.solve(benchmark(f"grids/{name}.uai.gz"), "trws")
    assert result.value >= figure - 0.1
    assert result.bound == pytest.approx(relaxation, rel=1e-4)
