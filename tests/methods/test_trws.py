"""TRW-S as a method: bounds in any order, the shortest way for a model, ties, and stopping."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.engines.messages.trws_binary import SpinPasses
from mapmrf.engines.messages.trws_pairwise import LabelPasses
from mapmrf.methods.trws import TRWS
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import attractive
from strategies import brute_force, random_recipe


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
    assert isinstance(engine(attractive(3, 3)), LabelPasses)
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
