"""The m best labellings: those of exhaustive search, by elimination, by partition, and diverse ones."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from exhaustive_truth import all_labellings, best_at_distance, distance, small_model, varied_recipe
from mapmrf import BestLabellings, Diversity, FactorGraph, Status, solve_best
from mapmrf.datasets import grid
from mapmrf.methods.exhaustive import Exhaustive
from mapmrf.questions.best import DiverseSearch
from mapmrf.questions.ranked import LawlerSearch, SolveCalls
from mapmrf.run import interrupts
from refusals import refuses
from strategies import recipes, with_weights

CLOSE = 1e-9
every_kind = pytest.mark.parametrize("constrained", [False, True], ids=["tables", "constraints"])


def assert_best(found: BestLabellings, ranked: list, m: int) -> None:
    """The labellings are different, worth what exhaustive search says, and the limit of all others is true."""
    assert len(found) == min(m, len(ranked))
    assert [result.value for result in found] == pytest.approx([value for value, _ in ranked[:m]], abs=CLOSE)
    assert len({tuple(result.labels.tolist()) for result in found}) == len(found)
    if len(ranked) <= m:
        assert found.bound == -math.inf
    else:
        assert found.bound >= ranked[m][0] - CLOSE
    assert found.status is (Status.OPTIMAL if ranked else Status.INFEASIBLE)
    assert all(result.bound >= result.value for result in found)


@every_kind
@pytest.mark.parametrize("block", range(4))
def test_elimination_finds_what_exhaustive_search_finds(block: int, constrained: bool) -> None:
    for seed in range(50 * block, 50 * block + 50):
        recipe = small_model(seed, constrained)
        ranked, m = all_labellings(recipe), 1 + seed % 40
        found = solve_best(recipe.graph(), m)
        assert_best(found, ranked, m)
        assert all(result.value == recipe.graph().value(result.labels) for result in found)
        if len(ranked) > m:
            assert found.bound == pytest.approx(ranked[m][0], abs=CLOSE)


@given(with_weights(recipes()), st.integers(1, 30))
def test_elimination_finds_the_best_of_any_model(recipe, m) -> None:
    assert_best(solve_best(recipe.graph(), m, "branch"), all_labellings(recipe), m)


@pytest.mark.parametrize("block", range(3))
def test_the_partition_finds_what_exhaustive_search_finds(block: int) -> None:
    for seed in range(20 * block, 20 * block + 20):
        recipe, m = varied_recipe(seed), 1 + seed % 8
        assert_best(solve_best(recipe.graph(), m, "exhaustive"), all_labellings(recipe), m)


def test_the_partition_solves_few_parts_where_the_dual_is_tight() -> None:
    graph = grid(6, 6, coupling=0.5, seed=3)
    calls = SolveCalls(mapmrf.Branch(), seed=0, threads=1)
    search = LawlerSearch(graph, 5, calls)
    assert search.run() is None
    assert calls.count < 36
    best = solve_best(graph, 5)
    assert [value for _, value, _ in search.answers] == pytest.approx([result.value for result in best])
    assert search.others == pytest.approx(best.bound)


@pytest.mark.parametrize("method", ["auto", "exhaustive", "mplp_c"])
def test_diverse_labellings_keep_their_distance(method: str) -> None:
    """With counters or constraints each is the best that is left; with multipliers what is proven is true."""
    for seed in range(40):
        recipe, m, least = varied_recipe(seed), 1 + seed % 4, 2 + seed % 2
        ranked = all_labellings(recipe)
        found = solve_best(recipe.graph(), m, method, diverse=least)
        earlier: list[tuple[int, ...]] = []
        for result in found:
            labels = tuple(result.labels.tolist())
            assert all(distance(labels, other) >= least for other in earlier)
            best = best_at_distance(ranked, earlier, least)
            assert result.value <= best + CLOSE
            assert result.bound >= best - CLOSE
            if method != "mplp_c" or result.status is Status.OPTIMAL:
                assert result.value == pytest.approx(best, abs=CLOSE)
            earlier.append(labels)
        if len(found) < m:
            assert found.bound >= best_at_distance(ranked, earlier, least) - CLOSE
            if method != "mplp_c":
                assert best_at_distance(ranked, earlier, least) == -math.inf == found.bound


def test_multipliers_prove_what_lies_on_the_hull() -> None:
    """Independent variables of equal stakes: every distance is the optimum for some multiplier."""
    graph = FactorGraph.from_tables([2] * 5, [(i,) for i in range(5)], [[0.0, 1.0 + i] for i in range(5)])
    search = DiverseSearch(graph, 2, SolveCalls(Exhaustive(), seed=0, threads=1))
    assert search.run(3, 0.0) is None
    labels, value, bound = search.answers[1]
    assert labels.tolist() == [0, 0, 0, 1, 1]
    assert value == pytest.approx(bound) == 9.0


def test_a_penalty_buys_different_labels() -> None:
    graph = FactorGraph.from_tables([3, 3], [(0,), (1,)], [[0.0, 1.0, 0.9], [0.0, 2.0, 0.5]])
    labels = [result.labels.tolist() for result in solve_best(graph, 3, diverse=Diversity(penalty=0.3))]
    assert labels == [[1, 1], [2, 1], [0, 1]]  # the second label is worth more than three times the penalty
    labels = [result.labels.tolist() for result in solve_best(graph, 2, diverse=Diversity(penalty=5.0))]
    assert labels == [[1, 1], [2, 2]]


@pytest.mark.parametrize("method", ["auto", "exhaustive", "trws"])
@pytest.mark.parametrize("penalty", [1e-6, 0.3])
def test_a_small_penalty_gives_no_labelling_twice(penalty: float, method: str) -> None:
    graph = grid(2, 3, coupling=1.5, seed=2)
    found = solve_best(graph, 4, method, diverse=Diversity(penalty=penalty))
    earlier: list[np.ndarray] = []
    for result in found:
        net = {
            labels: graph.value(labels) - penalty * sum(int(np.sum(labels == known)) for known in earlier)
            for labels in itertools.product((0, 1), repeat=6)
            if not any(np.array_equal(labels, known) for known in earlier)
        }
        worth = net[tuple(result.labels.tolist())]
        assert worth == pytest.approx(max(net.values())) or method == "trws"  # which proves nothing
        earlier.append(result.labels)
    assert len(found) == 4


def test_threads_change_nothing() -> None:
    graph = grid(7, 7, coupling=2.0, seed=2)
    for method in ("auto", "cuts"):
        one, two = (solve_best(graph, 4, method, threads=threads) for threads in (1, 2))
        assert [r.labels.tolist() for r in one] == [r.labels.tolist() for r in two]
        assert one.bound == two.bound


def test_values_of_a_long_chain_fall_and_no_labelling_comes_twice() -> None:
    random, n = np.random.default_rng(0), 3000
    pairs = np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)
    graph = FactorGraph.from_pairwise(random.normal(size=(n, 3)), pairs, random.normal(size=(n - 1, 3, 3)))
    found = solve_best(graph, 200)
    values = [result.value for result in found]
    assert values == sorted(values, reverse=True)
    assert len({result.labels.tobytes() for result in found}) == 200
    assert values[0] == pytest.approx(mapmrf.solve(graph, "trws").value)
    assert found.bound <= values[-1]


def test_time_is_up_before_anything_is_proven() -> None:
    graph = grid(12, 12, coupling=2.0, seed=1)
    found = solve_best(graph, 5, "icm", time_limit=0.0)
    assert found.status is Status.TIME_LIMIT
    assert len(found) >= 1
    assert all(result.value == graph.value(result.labels) for result in found)
    assert found.bound >= solve_best(graph, 6)[-1].value


def test_an_interrupt_returns_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = grid(8, 8, coupling=2.0, seed=1)
    asked = itertools.count()
    monkeypatch.setattr(interrupts, "signs", [lambda: next(asked) > 30])
    found = solve_best(graph, 50, "icm")
    assert found.status is Status.INTERRUPTED
    assert len({tuple(result.labels) for result in found}) == len(found)


def test_models_without_variables_and_impossible_ones() -> None:
    nothing = FactorGraph.from_tables([], [()], [[2.5]])
    found = solve_best(nothing, 3)
    assert [result.value for result in found] == [2.5]
    assert found.bound == -math.inf
    impossible = FactorGraph.from_tables([2], [()], [[-np.inf]])
    assert len(solve_best(impossible, 3)) == 0
    assert solve_best(impossible, 3).status is Status.INFEASIBLE


def test_json_is_a_list_of_results() -> None:
    found = solve_best(grid(3, 3), 3)
    assert [one["labels"] for one in json.loads(found.to_json())] == [r.labels.tolist() for r in found]
    again = BestLabellings.from_json(found.to_json())
    assert (again.bound, again.status) == (found.bound, found.status)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"m": 0}, "m is 0, expected at least 1"),
        ({"m": 2.5}, "m is 2.5, expected a whole number"),
        ({"m": 2, "diverse": 0}, "distance is 0, expected at least 1"),
        ({"m": 2, "timelimit": 3}, "time_limit"),
    ],
)
def test_impossible_arguments_are_refused(arguments, message) -> None:
    refuses(mapmrf.OptionError, message, solve_best, grid(3, 3), **arguments)


def test_a_distance_and_a_penalty_exclude_each_other() -> None:
    refuses(mapmrf.OptionError, "expected one of them", Diversity, 2, 0.5)
