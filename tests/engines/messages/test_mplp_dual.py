"""The dual of MPLP: passes in tiles on any number of threads, its incumbent, weights and structured pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.engines.messages.cluster_search import ClusterSearch
from mapmrf.engines.messages.clusters import Clusters
from mapmrf.engines.messages.mplp import Dual, FactorOrder, tiles_of
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from mapmrf.run.pool import Workers
from pairwise_models import grid_edges, image, structured_graph, with_forms, without_forms
from strategies import Recipe, brute_force, recipes, some_labels, weighted


def scope_of_pairs(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(0, 2 * len(edges) + 1, 2), edges.ravel()


def visits_of(edges: np.ndarray, order: str) -> np.ndarray:
    if order == "given":
        return np.arange(len(edges))
    return np.lexsort(edges.T) if order == "variables" else np.random.default_rng(0).permutation(len(edges))


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("order", ["variables", "given", "random"])
@pytest.mark.parametrize("backward", [False, True])
def test_every_variable_sees_its_factors_in_their_order(threads: int, order: str, backward: bool) -> None:
    edges = grid_edges(60)
    visit = visits_of(edges, order)
    tiles = tiles_of(visit, *scope_of_pairs(edges), threads, entries=1e4)
    assert tiles is not None
    turn: list[list[int]] = [[] for _ in range(3600)]
    busy, taken_by = np.zeros(3600, dtype=int), set()

    def call(factors: np.ndarray, thread: int) -> None:
        mine = np.unique(edges[factors])
        busy[mine] += 1
        for a in factors[::-1] if backward else factors:
            for i in edges[a]:
                turn[i].append(a)
        assert (busy[mine] == 1).all()  # nobody else has a factor of these variables
        busy[mine] -= 1
        taken_by.add(thread)

    workers = Workers(threads)
    tiles.run(workers, call, backward)
    workers.close()
    expected: list[list[int]] = [[] for _ in range(3600)]
    for a in visit[::-1] if backward else visit:
        for i in edges[a]:
            expected[i].append(a)
    assert turn == expected
    assert taken_by == set(range(threads))


@pytest.mark.parametrize("bad", [0, 7, 1000])
def test_an_error_in_one_thread_lets_nobody_wait(bad: int) -> None:
    edges = grid_edges(60)
    tiles = tiles_of(np.lexsort(edges.T), *scope_of_pairs(edges), 3, entries=1e4)
    assert tiles is not None
    wrong = np.lexsort(edges.T)[bad]

    def call(factors: np.ndarray, thread: int) -> None:
        if wrong in factors:
            raise ValueError(thread)

    workers = Workers(3)
    with pytest.raises(ValueError, match=r"[012]"):
        tiles.run(workers, call, False)
    workers.close()


def test_one_thread_does_it_all_where_others_would_wait() -> None:
    chain = np.stack([np.arange(5000), np.arange(1, 5001)], axis=1)
    assert tiles_of(np.arange(5000), *scope_of_pairs(chain), 2, entries=1e4) is None
    assert tiles_of(np.arange(0), *scope_of_pairs(chain), 2, entries=1e4) is None
    few = grid_edges(20)
    assert tiles_of(np.arange(len(few)), *scope_of_pairs(few), 2, entries=4.0) is None


@pytest.mark.parametrize(("states", "side"), [(2, 500), (9, 230)])
@pytest.mark.parametrize("order", ["variables", "model", "random"])
def test_threads_change_no_bit_of_the_messages_or_the_bound(states: int, side: int, order: FactorOrder) -> None:
    duals = [Dual.build(image(side, states), order, "alternate", 0, threads) for threads in (1, 2)]
    assert duals[0].tiles is None and duals[1].tiles is not None
    assert duals[0].decode_tiles is None and duals[1].decode_tiles is not None
    bounds, labels = [], []
    for dual in duals:
        dual.passes(0, 3)
        bounds.append(dual.bound())
        labels.append(np.stack([dual.decode(False), dual.decode(True)]))
        dual.close()
    assert bounds[0] == bounds[1]
    assert np.array_equal(*labels) and not np.array_equal(*labels[0])
    assert np.array_equal(duals[0].regions.belief, duals[1].regions.belief)
    assert np.array_equal(duals[0].regions.lam, duals[1].regions.lam)
    assert bounds[0] == pytest.approx(plain_bound(duals[0]), rel=1e-12)


def plain_bound(dual: Dual) -> float:
    """The bound of a model of pairs, in numpy."""
    regions = dual.regions
    k = len(regions.belief) // dual.n_vars
    lam = regions.lam.reshape(-1, 2, k)
    table = regions.theta.reshape(k, k)
    total = dual.constant + regions.belief.reshape(-1, k).max(axis=1).sum()
    for begin in range(0, len(lam), 10_000):
        some = slice(begin, begin + 10_000)
        entries = regions.weight[some, None, None] * table - lam[some, 0, :, None] - lam[some, 1, None, :]
        total += entries.max(axis=(1, 2)).sum()
    return float(total)


# -- the incumbent ----------------------------------------------------------------------------------------------------


EQUAL = [[1.0, 0.0], [0.0, 1.0]]


@given(recipe=recipes(), data=st.data())
def test_crossing_two_labellings_is_at_least_as_good_as_either(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    first, second = some_labels(recipe, data), some_labels(recipe, data)
    given = first.copy()
    crossed = ClimbingIncumbent(Problem.compile(graph), Start()).cross(first, second)
    assert np.all((crossed == first) | (crossed == second))
    assert graph.value(crossed) >= max(graph.value(first), graph.value(second)) - 1e-9
    assert first.tolist() == given.tolist()


def test_crossing_takes_each_independent_group_from_the_better_parent() -> None:
    graph = FactorGraph.from_pairwise([[0, 3], [0, 0], [0, 0], [3, 0], [0, 0]], [[0, 1], [1, 2], [2, 3], [3, 4]], EQUAL)
    climbing = ClimbingIncumbent(Problem.compile(graph), Start())
    assert climbing.cross(np.zeros(5, dtype=np.int64), np.array([1, 1, 0, 1, 1])).tolist() == [1, 1, 0, 0, 0]


def test_a_warm_start_counts_and_the_first_candidate_is_taken_without_one() -> None:
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], 5 * np.array(EQUAL))
    problem = Problem.compile(graph)
    fresh, warm = ClimbingIncumbent(problem, Start()), ClimbingIncumbent(problem, Start(np.array([1, 1])))
    assert (fresh.labels, fresh.value, warm.value) == (None, -np.inf, 6.0)
    for climbing in (fresh, warm):
        climbing.offer(np.array([0, 0]))  # a local optimum of single changes
    assert fresh.labels is not None and fresh.labels.tolist() == [0, 0]
    assert warm.labels is not None and warm.labels.tolist() == [1, 1]
    fresh.offer(np.array([0, 1]))
    assert fresh.labels.tolist() == [1, 1] and fresh.value == 6.0


def test_an_incumbent_that_no_variable_improves_is_not_climbed_again() -> None:
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0], [0, 0]], [[0, 1], [1, 2]], 5 * np.array(EQUAL))
    climbing = ClimbingIncumbent(Problem.compile(graph), Start())
    visits = []
    for _ in range(3):
        climbing.offer(np.array([0, 0, 0]))
        visits.append(climbing.ascent.visits)
    assert np.diff(visits).tolist() == [visits[0]] * 2
    warm = ClimbingIncumbent(Problem.compile(graph), Start(np.array([1, 1, 0])))
    warm.offer(np.array([1, 1, 0]))  # a warm start may be no optimum
    assert warm.labels is not None and warm.labels.tolist() == [1, 1, 1]


# -- weights and structured pairs -------------------------------------------------------------------------------------


def assert_same(*problems: Problem) -> None:
    one, two = (Dual.build(problem, "model", "alternate", 0) for problem in problems)
    for dual in (one, two):
        dual.passes(0, 5)
    np.testing.assert_allclose(one.regions.belief, two.regions.belief, atol=1e-9)
    assert one.bound() == pytest.approx(two.bound(), abs=1e-9)
    value = problems[0].graph.value
    assert value(one.decode(False)) == pytest.approx(value(two.decode(False)), abs=1e-9)


def clustered(problem: Problem, optimum: float) -> float:
    """The bound after some rounds of clusters."""
    clusters = Clusters(Dual.build(problem, "model", "alternate", 0), 10**7)
    for k in range(3):
        search = ClusterSearch(clusters, triplets=True, cycles=True, projections=2, max_length=6)
        list(search.run(20, -1.0, 10**6))
        clusters.add(search.found)
        clusters.passes(k, k + 1)
        assert clusters.bound() >= optimum - 1e-8
    return clusters.bound()


@given(recipe=recipes(), seed=st.integers(0, 99))
def test_weights_are_part_of_the_tables_in_passes_and_in_clusters(recipe: Recipe, seed: int) -> None:
    graph = weighted(recipe, seed).graph()
    problems, optimum = (Problem.compile(graph), Problem.compile(graph.expanded())), brute_force(graph)[0]
    assert_same(*problems)
    one, two = (clustered(problem, optimum) for problem in problems)
    assert one == pytest.approx(two, abs=1e-7)


@given(seed=st.integers(0, 999), states=st.integers(4, 9), hard=st.booleans())
def test_mplp_on_structured_pairs_is_mplp_on_tables(seed: int, states: int, hard: bool) -> None:
    graph = structured_graph(seed, states=states, hard=hard)
    assert_same(with_forms(graph), without_forms(graph))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_with_clusters_are_tables_from_then_on(seed: int) -> None:
    graph = structured_graph(seed, n_vars=8)
    one, two = with_forms(graph), without_forms(graph)
    before = one.forms.of.copy()
    assert clustered(one, -np.inf) == pytest.approx(clustered(two, -np.inf), abs=1e-8)
    assert np.array_equal(one.forms.of, before)


@pytest.mark.parametrize("seed", range(3))
def test_hanging_trees_of_structured_pairs_are_solved_at_once(seed: int) -> None:
    random = np.random.default_rng(seed)
    apart = np.abs(np.arange(9)[:, None] - np.arange(9))
    edges = [[random.integers(i), i] for i in range(1, 12)]
    graph = FactorGraph.from_pairwise(
        random.normal(size=(12, 9)), edges, -np.minimum(apart, 3.0), weight=random.exponential(size=11)
    )
    dual = Dual.build(Problem.compile(graph), "variables", "alternate", 0)
    assert len(dual.pairs.forms.of) and len(dual.visit) == 0
    assert graph.value(dual.decode(False)) == pytest.approx(dual.bound(), abs=1e-9)
    assert dual.bound() == pytest.approx(mapmrf.solve(graph.expanded(), "branch").value, abs=1e-9)
