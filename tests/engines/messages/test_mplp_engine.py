"""MPLP's dual: passes shared by threads, its incumbent, structured pairs; clusters of MPLP-C and their search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.messages.cluster_search import (
    ClusterSearch,
    ProjectedGraph,
    list_short,
)
from mapmrf.engines.messages.clusters import Clusters, CycleList, triangulate
from mapmrf.engines.messages.mplp import Dual, FactorOrder
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import image
from strategies import Recipe, brute_force, recipes, some_labels


@pytest.mark.parametrize(("states", "side"), [(2, 500), (9, 300)])
@pytest.mark.parametrize("order", ["variables", "model", "random"])
def test_threads_change_no_bit_of_the_messages_or_the_bound(states: int, side: int, order: FactorOrder) -> None:
    duals = [Dual.build(image(side, states), order, "alternate", 0, threads) for threads in (1, 2)]
    assert duals[0].pass_chunks is None and duals[1].pass_chunks is not None
    assert duals[0].decode_chunks is None and duals[1].decode_chunks is not None
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


# -- clusters ---------------------------------------------------------------------------------------------------------


def clusters_of(graph: FactorGraph) -> Clusters:
    dual = Dual.build(Problem.compile(graph), "variables", "alternate", 0)
    return Clusters(dual, 10**7)


def value_of(graph: FactorGraph, model: Dual | Clusters, labels: np.ndarray) -> float:
    """Value of a labelling, summed over beliefs, reparametrised tables and clusters."""
    dual = (model.dual if isinstance(model, Clusters) else model).regions
    total = graph.constant + sum(dual.belief[dual.var_ptr[i] + k] for i, k in enumerate(labels))
    for a in range(len(dual.table_at)):
        edges = np.arange(dual.scope_ptr[a], dual.scope_ptr[a + 1])
        states = labels[dual.scope[edges]]
        place = np.ravel_multi_index(tuple(states), tuple(dual.card_e[edges]))
        total += dual.theta_t[dual.table_at[a] + place] - dual.lam[dual.edge_ptr[edges] + states].sum()
    for at, pair in zip(model.tables.own_at, model.cycles.pair, strict=True) if isinstance(model, Clusters) else ():
        first = dual.scope_ptr[pair]
        k1, k2 = labels[dual.scope[first]], labels[dual.scope[first + 1]]
        total += model.tables.own[at + k1 * dual.card_e[first + 1] + k2]
    return float(total)


def random_cycles(clusters: Clusters, random: np.random.Generator, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """CycleList over any variables, cut into triangles with new pairs."""
    short = list_short(clusters)
    found = short.take(random.permutation(short.n)[:n])
    return found[: n // 2] + clusters.triangles([cycle for cycle in found if len(cycle[0]) == 4])


@given(recipe=recipes(), seed=st.integers(0, 99), data=st.data())
def test_messages_leave_values_as_they_are_and_the_bound_never_rises(
    recipe: Recipe, seed: int, data: st.DataObject
) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    labels = some_labels(recipe, data)
    dual, clusters = clusters_of(graph).dual, clusters_of(graph)
    bounds = [dual.bound()]
    for iteration in range(6):
        dual.passes(iteration, iteration + 1)
        assert value_of(graph, dual, labels) == pytest.approx(graph.value(labels), abs=1e-9)
        bounds.append(dual.bound())
        assert optimum - 1e-9 <= bounds[-1] <= bounds[-2] + 1e-9
    bound = clusters.bound()
    for iteration in range(4):
        if iteration in (1, 3):
            clusters.add(random_cycles(clusters, np.random.default_rng(seed + iteration), 6))
        if iteration == 2 and clusters.cycles.n:
            clusters.share_unequally(np.random.default_rng(seed))
        clusters.passes(iteration, iteration + 1)
        assert value_of(graph, clusters, labels) == pytest.approx(graph.value(labels), abs=1e-8)
        after = clusters.bound()
        assert optimum - 1e-8 <= after <= bound + 1e-8
        bound = after


@pytest.mark.parametrize("seed", range(3))
def test_binary_cycles_have_a_way_of_their_own_with_the_same_result(seed: int) -> None:
    graph = grid(4, 4, coupling=3.0, seed=seed)
    quick, general = clusters_of(graph), clusters_of(graph)
    general.dual.quick = False
    for clusters in (quick, general):
        clusters.add(random_cycles(clusters, np.random.default_rng(seed), 8))
        clusters.passes(0, 5)
    np.testing.assert_allclose(quick.tables.own, general.tables.own, atol=1e-12)
    np.testing.assert_allclose(quick.dual.regions.belief, general.dual.regions.belief, atol=1e-12)
    assert quick.bound() == pytest.approx(general.bound())


@pytest.mark.parametrize("length", [3, 4, 5, 7])
@pytest.mark.parametrize("states", [2, 3])
def test_a_cycle_as_one_cluster_is_solved_exactly(length: int, states: int) -> None:
    random = np.random.default_rng(length)
    edges = [[i, (i + 1) % length] for i in range(length)]
    unary, tables = random.normal(size=(length, states)), 3 * random.normal(size=(length, states, states))
    graph = FactorGraph.from_pairwise(unary, edges, tables)
    clusters = clusters_of(graph)
    pairs = np.arange(length)
    clusters.add([(pairs, np.zeros(length, dtype=np.int64))])
    clusters.passes(0, 300)
    assert clusters.bound() == pytest.approx(brute_force(graph)[0], abs=1e-3)


@given(recipe=recipes())
@settings(max_examples=30)
def test_a_cluster_gains_at_once_what_was_promised(recipe: Recipe) -> None:
    clusters = clusters_of(recipe.graph())
    clusters.passes(0, 5)
    search = ClusterSearch(clusters, triplets=True, cycles=True, projections=3, max_length=8)
    ranked: list[tuple[float, tuple[np.ndarray, np.ndarray]]] = []
    list(search.rank(list_short(clusters), 1, 1e-9, ranked))
    if not ranked or not np.isfinite(ranked[0][0]):
        return
    gain, cycle = ranked[0]
    before = clusters.bound()
    clusters.add([cycle])
    assert clusters.bound() == pytest.approx(before)
    clusters.passes(5, 6)
    # Idle pairs show nothing here, so that the promise is about the model's own pairs.
    assert clusters.bound() <= before - gain + 1e-8


def test_shared_pairs_tighten_the_bound_without_any_cycle() -> None:
    """Two factors over the same three variables agree on single variables in the relaxation, on pairs with lifts."""
    random = np.random.default_rng(0)
    tables = [4 * random.normal(size=(2, 2, 2)) for _ in range(2)]
    graph = Recipe([2, 2, 2], [(0, 1, 2), (0, 1, 2)], tables).graph()
    clusters = clusters_of(graph)
    loose = Dual.build(Problem.compile(graph), "variables", "alternate", 0)
    loose.passes(0, 200)
    clusters.passes(0, 200)
    assert brute_force(graph)[0] - 1e-9 <= clusters.bound() < loose.bound() - 0.1


def short_by_hand(edges: list[tuple[int, int]], n: int) -> set[frozenset[int]]:
    """Triangles and chordless cycles of four as sets of edges."""
    number = {frozenset(edge): e for e, edge in enumerate(edges)}
    found = set()
    for size in (3, 4):
        for walk in itertools.permutations(range(n), size):
            steps = [frozenset((walk[t], walk[(t + 1) % size])) for t in range(size)]
            chords = [frozenset((walk[0], walk[2])), frozenset((walk[1], walk[3]))] if size == 4 else []
            if all(step in number for step in steps) and not any(chord in number for chord in chords):
                found.add(frozenset(number[step] for step in steps))
    return found


@pytest.mark.parametrize("seed", range(8))
def test_short_cycles_are_all_found_once_and_walked_correctly(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 7
    edges = [edge for edge in itertools.combinations(range(n), 2) if random.random() < 0.5]
    graph = FactorGraph.from_pairwise(np.zeros((n, 2)), edges, np.eye(2))
    clusters = clusters_of(graph)
    short = list_short(clusters)
    found = short.take(np.arange(short.n))
    assert {frozenset(pairs.tolist()) for pairs, _ in found} == short_by_hand(edges, n)
    assert len(found) == len(short_by_hand(edges, n))
    for pairs, flips in found:
        assert_closed(clusters, pairs, flips)


def assert_closed(clusters: Clusters, pairs: np.ndarray, flips: np.ndarray) -> None:
    dual = clusters.dual.regions
    begins = dual.scope[dual.scope_ptr[pairs] + flips]
    ends = dual.scope[dual.scope_ptr[pairs] + 1 - flips]
    assert ends.tolist() == np.roll(begins, -1).tolist()
    assert len(set(begins.tolist())) == len(begins) >= 3


def strongest_frustrated_cycle(edges: list[tuple[int, int]], weight: np.ndarray, n: int) -> float:
    """The largest smallest weight of a simple cycle with an odd number of negative edges."""
    number = {edge: e for e, edge in enumerate(edges)} | {edge[::-1]: e for e, edge in enumerate(edges)}
    best = 0.0
    for size in range(3, n + 1):
        for walk in itertools.permutations(range(n), size):
            steps = [(walk[t], walk[(t + 1) % size]) for t in range(size)]
            if all(step in number for step in steps):
                mine = weight[[number[step] for step in steps]]
                if np.count_nonzero(mine < 0) % 2:
                    best = max(best, float(np.abs(mine).min()))
    return best


@pytest.mark.parametrize("seed", range(8))
def test_the_bottleneck_and_the_cycles_at_it_are_right(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 6
    edges = [edge for edge in itertools.combinations(range(n), 2) if random.random() < 0.7]
    j = random.normal(size=len(edges))
    tables = j[:, None, None] * np.array([[0.5, -0.5], [-0.5, 0.5]])
    clusters = clusters_of(FactorGraph.from_pairwise(np.zeros((n, 2)), edges, tables))
    core = np.sort(clusters.pairs)
    graph = ProjectedGraph(clusters, 4)
    graph.weigh()
    np.testing.assert_allclose(graph.projection.weight, j[core])
    best = strongest_frustrated_cycle([edges[p] for p in core], j[core], n)
    assert graph.bottleneck() == pytest.approx(best)
    if best > 0:
        found = [cycle for cycles in graph.cycles(best * (1 - 1e-9), n, 100) for cycle in cycles]
        assert found
        for pairs, flips in found:
            assert_closed(clusters, pairs, flips)
            assert np.count_nonzero(j[pairs] < 0) % 2 == 1
            assert np.abs(j[pairs]).min() >= best * (1 - 1e-9)


def test_the_projected_graph_tells_states_from_their_rest() -> None:
    tables = np.zeros((3, 3, 3))
    tables[0] = [[5.0, 1.0, 0.0], [2.0, 3.0, 0.0], [0.0, 0.0, 0.0]]
    model = FactorGraph.from_pairwise([[9, 8, 0], [0, 7, 8], [1, 0, 0]], [[0, 1], [1, 2], [0, 2]], tables)
    clusters = clusters_of(model)
    graph = ProjectedGraph(clusters, 2)
    graph.weigh()
    projection = graph.projection
    assert projection.node_state.tolist() == [0, 1, 2, 1, 0, 1]
    # state 0 of the first variable against state 2 of the second: alike at best 3 at (1, 1), unlike 5 at (0, 0)
    assert projection.weight[:4].tolist() == [-2.0, -3.0, 2.0, 3.0]


@pytest.mark.parametrize("n", [3, 4, 5, 9])
def test_a_triangulation_covers_the_cycle_and_uses_the_chords_there_are(n: int) -> None:
    known = np.full((n, n), -1, dtype=np.int64)
    chords = [(1, j) for j in range(3, n)]
    for i, j in chords:
        known[i, j] = 0
    triangles = np.zeros((n - 2, 3), dtype=np.int64)
    triangulate(known, np.zeros((n, n)), np.zeros((n, n), dtype=np.int64), triangles)
    sides = [tuple(side) for triangle in triangles.tolist() for side in itertools.combinations(sorted(triangle), 2)]
    rim = [(i, i + 1) for i in range(n - 1)] + [(0, n - 1)]
    assert all(sides.count(side) == 1 for side in rim)
    assert sorted(set(sides) - set(rim)) == chords
    assert all(sides.count(chord) == 2 for chord in chords)


def test_cut_cycles_share_their_chords() -> None:
    graph = grid(3, 3, seed=0)
    clusters = clusters_of(graph)
    short = list_short(clusters)
    squares = short.take(np.arange(4))
    assert clusters.add(clusters.triangles(squares)) == 8
    assert clusters.n_added == 4
    assert clusters.add(clusters.triangles(squares)) == 0
    assert CycleList.of([]).n == 0
