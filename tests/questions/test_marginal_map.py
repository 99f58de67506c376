"""Marginal MAP: that of exhaustive search, or a refusal that says what it would take."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mapmrf
from exhaustive_truth import all_labellings, small_model, summed_out
from mapmrf import FactorGraph, Status, marginal_map
from mapmrf.engines.elimination.numpy_elimination import find_sum_order
from refusals import refuses

CLOSE = 1e-9


@pytest.mark.parametrize("constrained", [False, True], ids=["tables", "constraints"])
@pytest.mark.parametrize("block", range(4))
def test_it_finds_what_exhaustive_search_finds(block: int, constrained: bool) -> None:
    for seed in range(50 * block, 50 * block + 50):
        recipe, random = small_model(seed, constrained), np.random.default_rng(seed)
        asked = random.permutation(len(recipe.card))[: random.integers(0, len(recipe.card) + 1)].tolist()
        sums = summed_out(all_labellings(recipe), asked)
        result = marginal_map(recipe.graph(), asked)
        assert len(result.labels) == len(asked)
        if not sums:
            assert result.status is Status.INFEASIBLE
            continue
        assert result.status is Status.OPTIMAL
        assert result.value == pytest.approx(max(sums.values()), abs=CLOSE)
        assert sums[tuple(result.labels.tolist())] == pytest.approx(max(sums.values()), abs=CLOSE)


def test_all_variables_are_plain_map_and_none_the_partition_function() -> None:
    graph = mapmrf.datasets.grid(4, 4, coupling=2.0, seed=1)
    result = marginal_map(graph, range(16), "branch")
    assert result.value == pytest.approx(mapmrf.solve(graph).value)
    assert result.method == "branch"
    graph = FactorGraph.from_tables([2, 3], [(0, 1)], [np.zeros((2, 3))])
    assert marginal_map(graph, []).value == pytest.approx(math.log(6))


def test_names_order_and_evidence() -> None:
    names = mapmrf.Names(("Rain", "Sprinkler", "Grass"), (("no", "yes"), ("off", "on"), ("dry", "wet")))
    tables = [np.log([0.8, 0.2]), np.log([0.7, 0.3]), np.log([[[0.95, 0.05], [0.2, 0.8]], [[0.3, 0.7], [0.1, 0.9]]])]
    graph = FactorGraph.from_tables([2, 2, 2], [(0,), (1,), (0, 1, 2)], tables, names=names)
    result = marginal_map(graph.condition({"Grass": "wet"}), ["Sprinkler", "Rain"])
    assert result.assignment == {"Sprinkler": "on", "Rain": "no"}
    assert result.value == pytest.approx(math.log(0.8 * 0.3 * 0.8))


def test_a_refusal_names_the_width_and_the_bytes() -> None:
    pairs = list(itertools.combinations(range(40), 2))
    graph = FactorGraph.from_tables([2] * 40, pairs, [np.eye(2)] * len(pairs))
    refuses(mapmrf.UnsupportedModel, r"induced width 39 and needs .* bytes, .* 1.07e\+09", marginal_map, graph, [0])
    small = FactorGraph.from_tables([2] * 12, pairs[:11], [np.eye(2)] * 11)
    refuses(mapmrf.UnsupportedModel, "bytes", marginal_map, small, [3], memory=1e-6)


def test_the_order_of_the_sums_is_narrow_where_the_model_is() -> None:
    graph = mapmrf.datasets.grid(5, 30)
    assert find_sum_order(graph, range(150)).width <= 6
    chain = FactorGraph.from_tables([2] * 50, [(i, i + 1) for i in range(49)], [np.eye(2)] * 49)
    assert find_sum_order(chain, range(1, 49)).width == 2


def test_impossible_queries_are_refused() -> None:
    graph = mapmrf.datasets.grid(2, 2)
    refuses(mapmrf.OptionError, "asked for twice", marginal_map, graph, [0, 0])
    refuses(mapmrf.OptionError, "variable 9 is asked for, expected 0 to 3", marginal_map, graph, [9])
    refuses(mapmrf.OptionError, "a list of indices", marginal_map, graph, "01")
    refuses(mapmrf.UnknownName, "Snow", marginal_map, graph, ["Snow"])
