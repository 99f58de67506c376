import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph, OptionError
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.model.problem import Problem
from mapmrf.run.repair import find_feasible
from refusals import refuses


def rebuilt(graph: FactorGraph) -> FactorGraph:
    """The same model through the constructor that checks everything."""
    n = graph.n_vars
    scopes = [(i,) for i in range(n)] + [graph.scope_of(a).tolist() for a in range(graph.n_factors)]
    unary = [graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in range(n)]
    return FactorGraph.from_tables(graph.card, scopes, unary + [graph.table(a) for a in range(graph.n_factors)])


def assert_same(first: FactorGraph, second: FactorGraph) -> None:
    for name in ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@given(st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 9))
def test_grid_is_the_recipe(rows, cols, wrap, seed):
    graph = grid(rows, cols, coupling=2.0, wrap=wrap, seed=seed)
    assert_same(graph, rebuilt(graph))
    unary = graph.theta_v.reshape(-1, 2)
    np.testing.assert_array_equal(unary[:, 0], -unary[:, 1])
    assert np.all(np.abs(unary) <= 1)
    tables = graph.theta_t.reshape(-1, 2, 2)
    np.testing.assert_array_equal(tables[:, 0, 0], tables[:, 1, 1])
    np.testing.assert_array_equal(tables[:, 0, 0], -tables[:, 0, 1])
    np.testing.assert_array_equal(tables[:, 0, 1], tables[:, 1, 0])
    assert np.all(np.abs(tables) <= 2)


def test_value_of_a_grid_is_that_of_its_spins():
    graph = grid(2, 2, coupling=3.0, seed=4)
    labels = np.array([0, 1, 1, 0])
    s = 2 * labels - 1
    h = graph.theta_v[1::2]
    j = graph.theta_t[::4]
    pairs = graph.scope.reshape(-1, 2)
    assert graph.value(labels) == pytest.approx(h @ s + j @ (s[pairs[:, 0]] * s[pairs[:, 1]]))


@given(st.integers(1, 6), st.integers(1, 6), st.booleans())
def test_neighbours_of_a_grid_are_paired_once(rows, cols, wrap):
    pairs = np.sort(grid(rows, cols, wrap=wrap).scope.reshape(-1, 2), axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    ring_cols = cols if wrap and cols > 2 else cols - 1
    ring_rows = rows if wrap and rows > 2 else rows - 1
    assert len(pairs) == rows * ring_cols + cols * ring_rows


def test_strengths_scale_a_grid():
    assert not np.any(grid(3, 3, coupling=0.0).theta_t)
    assert not np.any(grid(3, 3, field=0.0).theta_v)
    assert np.abs(grid(20, 20, field=5.0).theta_v).max() > 4


@given(
    n_vars=st.integers(1, 6),
    n_factors=st.integers(0, 8),
    hard=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 99),
)
def test_random_graph_has_a_solution(n_vars, n_factors, hard, seed):
    if n_vars < 2:
        n_factors = 0
    graph = random_graph(n_vars, n_factors, states=(1, 4), arity=(2, min(3, max(2, n_vars))), hard=hard, seed=seed)
    assert_same(graph, rebuilt(graph))
    labels = np.zeros(n_vars, dtype=np.int64)
    found = find_feasible(Problem.compile(graph), labels)
    assert found.labels is not None
    assert np.isfinite(graph.value(found.labels))


def test_random_graph_keeps_to_its_ranges():
    graph = random_graph(30, 60, states=(3, 5), arity=(2, 4), hard=0.3, seed=1)
    assert set(graph.card.tolist()) == {3, 4, 5}
    assert set(graph.arity.tolist()) == {2, 3, 4}
    assert 0.25 < np.isneginf(graph.theta_t).mean() < 0.35
    fixed = random_graph(5, 4, states=2, arity=3)
    assert set(fixed.card.tolist()) == {2}
    assert set(fixed.arity.tolist()) == {3}


def test_potts_image_is_one_shared_table():
    image = potts_image(20, 30, labels=4, noise=0.5, smoothness=0.7, seed=2)
    graph = image.graph
    parts = graph.theta_v.reshape(-1, 4), graph.scope.reshape(-1, 2), graph.theta_t.reshape(4, 4)
    assert_same(graph, FactorGraph.from_pairwise(*parts))
    assert graph.n_tables == 1
    np.testing.assert_array_equal(graph.table(0), 0.7 * (np.eye(4) - 1))
    assert image.observed.shape == image.truth.shape == (20, 30)
    assert set(np.unique(image.truth)) <= {0, 1, 2, 3}
    nearest = np.clip(np.round(image.observed), 0, 3).ravel()
    np.testing.assert_array_equal(graph.theta_v.reshape(-1, 4).argmax(axis=1), nearest)


def test_small_pictures():
    assert potts_image(1, 1).graph.n_factors == 0
    assert potts_image(1, 2, labels=1).graph.card.tolist() == [1, 1]


@pytest.mark.parametrize(
    "make",
    [lambda seed: grid(4, 4, seed=seed), lambda seed: random_graph(6, 6, seed=seed)],
)
def test_same_seed_same_model(make):
    assert_same(make(7), make(7))
    assert not np.array_equal(make(7).theta_t, make(8).theta_t)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: grid(0, 3), "0 x 3"),
        (lambda: grid(2, 2, coupling=-1), "coupling"),
        (lambda: grid(2, 2, field=float("nan")), "field"),
        (lambda: random_graph(0, 1), "0 variables"),
        (lambda: random_graph(3, -1), "-1 factors"),
        (lambda: random_graph(3, 1, arity=4), "arity is 4"),
        (lambda: random_graph(3, 1, arity=(3, 2)), "arity is 3 to 2"),
        (lambda: random_graph(3, 1, states=0), "states is 0"),
        (lambda: random_graph(3, 1, hard=1.5), "hard is 1.5"),
        (lambda: random_graph(40, 1, states=3, arity=40), "entries"),
        (lambda: potts_image(0, 1), "0 x 1"),
        (lambda: potts_image(2, 2, labels=0), "0 labels"),
        (lambda: potts_image(2, 2, noise=0.0), "noise"),
        (lambda: potts_image(2, 2, smoothness=-1.0), "smoothness"),
    ],
)
def test_impossible_arguments(make, says):
    refuses(OptionError, says, make)
