"""What the lines of toulbar2 and its worker say, and what rounding to whole costs may amount to."""

from __future__ import annotations

import io
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.program import toulbar2_worker
from mapmrf.engines.program.toulbar2_process import WholeCosts, packed, parse
from mapmrf.model.problem import Problem
from mapmrf.run.result import Status
from strategies import Recipe, brute_force, recipes, with_weights


@pytest.mark.parametrize(
    ("line", "ready", "lower", "backtracks", "finished"),
    [
        ("mapmrf ready\n", True, 0, 0, None),
        ("mapmrf end optimal 12 34\n", True, 12, 34, Status.OPTIMAL),
        ("mapmrf end infeasible 0 0\n", True, 0, 0, Status.INFEASIBLE),
        ("mapmrf end limit 5 6\n", True, 5, 6, Status.ITERATION_LIMIT),
        ("Initial lower and upper bounds: [42, 99] 57.576%\n", True, 42, 0, None),
        ("Optimality gap: [17, 20] 15 % (8 backtracks, 9 nodes, 0.1 seconds)\n", True, 17, 8, None),
        ("New solution: 5 (7 backtracks, 9 nodes, depth 3, 0.1 seconds)\n", True, 0, 7, None),
        ("Dual bound: 31\n", True, 31, 0, None),
    ],
)
def test_bounds_backtracks_and_ends_are_read(
    line: str, ready: bool, lower: int, backtracks: int, finished: Status | None
) -> None:
    message = parse(line)
    assert message is not None
    assert (message.ready, message.lower, message.backtracks, message.finished) == (ready, lower, backtracks, finished)
    assert message.labels is None


@pytest.mark.parametrize("line", [" 0 2 1\n", "mapmrf labels 0 2 1\n"])
def test_labellings_are_read(line: str) -> None:
    message = parse(line)
    assert message is not None and message.labels is not None
    assert message.labels.tolist() == [0, 2, 1]


@pytest.mark.parametrize("line", ["\n", "Node redundancy during HBFS: 9.375\n", "0 2 1 apples\n"])
def test_other_lines_say_nothing(line: str) -> None:
    assert parse(line) is None


def test_networks_travel_as_json_and_bytes() -> None:
    network = {
        "variables": [(0, 2, 3, b"\x00\n\xff")],
        "functions": [((2, 3), 1, b"", b"abc")],
        "upper": None,
        "seed": 3,
    }
    pipe = io.BytesIO(packed(network))
    again = toulbar2_worker._unpacked(json.loads(pipe.readline()), pipe)
    assert again == {
        "variables": [[0, 2, 3, b"\x00\n\xff"]],
        "functions": [[[2, 3], 1, b"", b"abc"]],
        "upper": None,
        "seed": 3,
    }
    assert pipe.read() == b""


# -- whole costs ------------------------------------------------------------------------------------------------------


@given(recipe=with_weights(recipes()), bits=st.sampled_from([6, 12, 50]), seed=st.integers(0, 2**16))
def test_the_stated_error_covers_every_labelling(recipe: Recipe, bits: int, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    costs = WholeCosts.of(problem, bits)
    random = np.random.default_rng(seed)
    for _ in range(10):
        labels = random.integers(0, problem.graph.card)
        value, cost = problem.graph.value(labels), costs.cost(problem, labels)
        assert (cost == math.inf) == (value == -math.inf)
        if cost < math.inf:
            assert cost == round(cost) < 2**bits + problem.n_vars + problem.n_factors
            assert abs(costs.offset - cost / costs.scale - value) <= costs.error


@pytest.mark.parametrize("bits", [8, 16])
def test_a_coarse_cost_unit_widens_the_bound_but_never_breaks_it(bits: int) -> None:
    random = np.random.default_rng(1)
    edges = [[0, 1], [1, 2], [2, 3], [3, 4], [0, 4], [1, 3]]
    graph = FactorGraph.from_pairwise(random.normal(size=(5, 3)), edges, random.normal(size=(len(edges), 3, 3)))
    problem = Problem.compile(graph)
    costs = WholeCosts.of(problem, bits)
    optimum, _ = brute_force(graph)
    cheapest = min(costs.cost(problem, np.array(labels)) for labels in np.ndindex(3, 3, 3, 3, 3))
    assert optimum <= costs.bound(int(cheapest)) <= optimum + 2 * costs.error
    assert costs.error == pytest.approx(0.5 * (graph.n_vars + graph.n_factors) / costs.scale, rel=1e-3)
