"""Max-marginals, margins and marginal MAP: those of exhaustive search, or intervals that hold them, or a refusal."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from exhaustive_truth import all_labellings, best_with_each_state, small_model, summed_out, varied_recipe
from mapmrf import FactorGraph, Result, Status, marginal_map, max_marginals
from mapmrf.datasets import grid, potts_image
from mapmrf.engines.elimination.numpy_elimination import find_sum_order
from mapmrf.run import interrupts
from refusals import refuses
from strategies import recipes, with_weights

CLOSE = 1e-9
every_kind = pytest.mark.parametrize("constrained", [False, True], ids=["tables", "constraints"])


@every_kind
@pytest.mark.parametrize("block", range(4))
def test_elimination_finds_what_exhaustive_search_finds(block: int, constrained: bool) -> None:
    for seed in range(50 * block, 50 * block + 50):
        recipe = small_model(seed, constrained)
        ranked, found = all_labellings(recipe), max_marginals(recipe.graph())
        truth = pytest.approx(best_with_each_state(recipe, ranked), abs=CLOSE)
        assert found.exact and found.lower == truth and found.upper == truth
        if ranked:
            assert recipe.graph().value(found.labels) == pytest.approx(ranked[0][0], abs=CLOSE)


@given(with_weights(recipes()), st.sampled_from(["auto", "icm", "trws"]))
def test_intervals_hold_the_truth(recipe, method) -> None:
    truth = best_with_each_state(recipe, all_labellings(recipe))
    found = max_marginals(recipe.graph(), method, memory=0)
    assert np.all(found.lower <= truth + CLOSE)
    assert np.all(found.upper >= truth - CLOSE)


@pytest.mark.parametrize("block", range(3))
def test_refined_intervals_close(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        recipe = varied_recipe(seed)
        found = max_marginals(recipe.graph(), memory=0, refine=100)
        truth = best_with_each_state(recipe, all_labellings(recipe))
        assert found.exact
        assert found.lower == pytest.approx(truth, abs=CLOSE)
        assert found.upper == pytest.approx(truth, abs=CLOSE)


def test_a_margin_above_zero_is_a_label_of_every_optimal_labelling() -> None:
    for seed in range(50):
        recipe = varied_recipe(seed)
        ranked = all_labellings(recipe)
        if not ranked:
            continue
        graph = recipe.graph()
        optimal = [labels for value, labels in ranked if value >= ranked[0][0] - CLOSE]
        for found in (max_marginals(graph), max_marginals(graph, memory=0)):
            for i, (low, _) in enumerate(found.margins().tolist()):
                assert low <= CLOSE or {labels[i] for labels in optimal} == {found.labels[i]}


def test_intervals_of_a_grid_hold_what_elimination_finds() -> None:
    graph = grid(9, 9, coupling=1.0, seed=4)
    exact, found = max_marginals(graph), max_marginals(graph, memory=0)
    assert exact.exact
    assert np.all(found.lower <= exact.lower + CLOSE)
    assert np.all(found.upper >= exact.upper - CLOSE)
    known, truth = found.margins(exact.labels), exact.margins()[:, 0]
    assert np.all(known[:, 0] <= truth + CLOSE)
    assert np.all(known[:, 1] >= truth - CLOSE)


def test_margins_of_an_image_are_exact_at_pixels_that_stand_alone() -> None:
    unary = np.array([[0.0, 1.0, 3.0], [2.0, 0.0, -np.inf]])
    graph = FactorGraph.from_tables([3, 3], [(0,), (1,)], unary)
    assert max_marginals(graph, memory=0).margins() == pytest.approx(np.full((2, 2), 2.0))


def test_a_result_has_margins_on_request_and_writes_them() -> None:
    graph = FactorGraph.from_tables([2, 1, 2], [(0, 2)], [[[2.0, 0.0], [0.0, 3.0]]])
    assert mapmrf.solve(graph).margins is None
    for method in ("auto", "trws"):
        result = mapmrf.solve(graph, method, margins=True)
        assert result.margins is not None
        assert result.margins.tolist() == [[1.0, 1.0], [math.inf, math.inf], [1.0, 1.0]]
        assert np.array_equal(Result.from_json(result.to_json()).margins, result.margins)
    assert "margins" not in mapmrf.solve(graph).to_json()


def test_margins_of_a_labelling_that_is_not_optimal_are_below_zero() -> None:
    graph = grid(6, 6, coupling=2.0, seed=1)
    worse = mapmrf.solve(graph, "icm", margins=True)
    assert worse.value < mapmrf.solve(graph).value
    assert worse.margins is not None
    assert worse.margins.min() < 0


def test_threads_change_nothing() -> None:
    graph = potts_image(40, 50, labels=3, seed=1).graph
    one, two = (max_marginals(graph, memory=0, threads=threads) for threads in (1, 2))
    assert np.array_equal(one.lower, two.lower)
    assert np.array_equal(one.upper, two.upper)


def test_time_limits_and_interrupts_leave_valid_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = grid(10, 10, coupling=2.0, seed=1)
    exact, hurried = max_marginals(graph), max_marginals(graph, "icm", time_limit=0.0)
    monkeypatch.setattr(interrupts, "signs", [lambda: True])
    stopped = max_marginals(graph, "icm")
    for found in (hurried, stopped):
        assert not found.exact
        assert np.all(found.lower <= exact.lower + CLOSE)
        assert np.all(found.upper >= exact.upper - CLOSE)


def test_states_are_asked_for_by_name_and_what_does_not_exist_is_named() -> None:
    names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]], names=names)
    assert max_marginals(graph).of("Grass").tolist() == [[2.0, 2.0], [3.0, 3.0]]
    found = max_marginals(FactorGraph.from_tables([2, 2], [], []))
    refuses(mapmrf.GraphError, r"^variable 7 does not exist, expected 0 to 1$", found.of, 7)


def test_impossible_models() -> None:
    impossible = FactorGraph.from_tables([2, 2], [()], [[-np.inf]])
    for memory in (0, 1):
        found = max_marginals(impossible, memory=memory)
        assert np.all(found.upper == -np.inf)
        assert found.margins().tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert len(max_marginals(FactorGraph.from_tables([], [], [])).lower) == 0


@pytest.mark.parametrize(("arguments", "message"), [({"refine": -1}, "refine is -1"), ({"memory": -2}, "memory is -2")])
def test_what_must_not_be_negative_is_named(arguments: dict[str, int], message: str) -> None:
    refuses(mapmrf.OptionError, f"^{message}, expected at least 0$", max_marginals, grid(2, 2), **arguments)


# -- marginal MAP -----------------------------------------------------------------------------------------------------


@every_kind
@pytest.mark.parametrize("block", range(4))
def test_marginal_map_is_that_of_exhaustive_search_finds(block: int, constrained: bool) -> None:
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
    graph = grid(4, 4, coupling=2.0, seed=1)
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
    graph = grid(5, 30)
    assert find_sum_order(graph, range(150)).width <= 6
    chain = FactorGraph.from_tables([2] * 50, [(i, i + 1) for i in range(49)], [np.eye(2)] * 49)
    assert find_sum_order(chain, range(1, 49)).width == 2


def test_impossible_queries_are_refused() -> None:
    graph = grid(2, 2)
    refuses(mapmrf.OptionError, "asked for twice", marginal_map, graph, [0, 0])
    refuses(mapmrf.OptionError, "variable 9 is asked for, expected 0 to 3", marginal_map, graph, [9])
    refuses(mapmrf.OptionError, "a list of indices", marginal_map, graph, "01")
    refuses(mapmrf.OptionError, "variables is 0, expected a list of indices or names", marginal_map, graph, 0)
    refuses(mapmrf.UnknownName, "Snow", marginal_map, graph, ["Snow"])
