"""Generated models follow their recipes; look-alikes have the size, structure and hardness of the paper's sets."""

from __future__ import annotations

import dataclasses
import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, OptionError, Status, UnknownName
from mapmrf.datasets import entries, grid, lookalike, lookalike_name, n_lookalikes, potts_image, random_graph, sets
from mapmrf.datasets.catalogue import mean_statistics, model_statistics, paper_statistics
from mapmrf.model.problem import Problem
from mapmrf.model.summary import summarise
from mapmrf.run.repair import find_feasible
from refusals import refuses

every_set = pytest.mark.parametrize("which", list(sets()))


def rebuilt(graph: FactorGraph) -> FactorGraph:
    """The same model through the constructor that checks everything."""
    arrays = (graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    singles = FactorGraph.from_tables(
        graph.card,
        [(i,) for i in range(graph.n_vars)],
        [graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in range(graph.n_vars)],
    )
    return dataclasses.replace(FactorGraph.from_arrays(graph.card, *arrays), theta_v=singles.theta_v)


def assert_same(first: FactorGraph, second: FactorGraph) -> None:
    for name in ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))


@given(st.integers(1, 5), st.integers(1, 5), st.booleans(), st.integers(0, 9))
def test_grid_is_the_recipe_and_pairs_all_neighbours_once(rows, cols, wrap, seed):
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
    assert not np.any(grid(rows, cols, coupling=0.0).theta_t) and not np.any(grid(rows, cols, field=0.0).theta_v)
    pairs = np.sort(graph.scope.reshape(-1, 2), axis=1)
    assert len(np.unique(pairs, axis=0)) == len(pairs)
    ring_cols = cols if wrap and cols > 2 else cols - 1
    ring_rows = rows if wrap and rows > 2 else rows - 1
    assert len(pairs) == rows * ring_cols + cols * ring_rows


@given(
    n_vars=st.integers(1, 6),
    n_factors=st.integers(0, 8),
    hard=st.sampled_from([0.0, 0.4, 1.0]),
    seed=st.integers(0, 99),
)
def test_random_graph_has_a_solution(n_vars, n_factors, hard, seed):
    if n_vars < 2:
        n_factors = 0
    graph, again = (
        random_graph(n_vars, n_factors, states=(1, 4), arity=(2, min(3, max(2, n_vars))), hard=hard, seed=seed)
        for _ in range(2)
    )
    assert_same(graph, rebuilt(graph))
    assert_same(graph, again)
    labels = np.zeros(n_vars, dtype=np.int64)
    found = find_feasible(Problem.compile(graph), labels)
    assert found.labels is not None
    assert np.isfinite(graph.value(found.labels))


def test_random_graph_keeps_to_its_ranges():
    graph = random_graph(30, 60, states=(3, 5), arity=(2, 4), hard=0.3, seed=1)
    assert set(graph.card.tolist()) == {3, 4, 5}
    assert set(graph.arity.tolist()) == {2, 3, 4}
    assert 0.25 < np.isneginf(graph.theta_t).mean() < 0.35
    assert not np.array_equal(grid(4, 4, seed=7).theta_t, grid(4, 4, seed=8).theta_t)
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
    assert potts_image(1, 1).graph.n_factors == 0
    assert potts_image(1, 2, labels=1).graph.card.tolist() == [1, 1]


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


# -- look-alikes ------------------------------------------------------------------------------------------------------


def structure(graph: FactorGraph) -> str:
    """Checksum of all that is whole numbers in a model."""
    text = hashlib.sha256()
    for name in ("card", "scope_ptr", "scope", "table_of", "table_ptr"):
        text.update(np.asarray(getattr(graph, name), dtype="<i8").tobytes())
    return text.hexdigest()[:12]


@every_set
def test_every_look_alike_can_be_made(which: str) -> None:
    seen = set()
    for number in range(1, n_lookalikes(which) + 1):
        graph = lookalike(which, number, scale=0.05)
        assert graph.n_factors > 0
        assert_same(graph, rebuilt(graph))
        seen.add((structure(graph), graph.theta_v.tobytes()))
    assert len(seen) == n_lookalikes(which)


@pytest.mark.parametrize(
    ("which", "shape", "singles", "tables"),
    [
        ("seg-2", "cfe94a08e40a", -115.93169840, -296.93519463),
        ("seg-21", "7f4c75dc7dba", -5544.29581955, -64546.02935028),
        ("scene", "8d34f0f3cc75", 217.58707894, -2.03860199),
        ("grids", "77bddf66b4c3", 0.00000000, 0.00000000),
        ("protein", "0ba4bf913df6", -2195.82728665, -126.18837952),
    ],
)
def test_models_stay_what_they_are(which: str, shape: str, singles: float, tables: float) -> None:
    """Figures measured on look-alikes are only worth something as long as these are the same."""
    graph = lookalike(which, 1, scale=0.2)
    assert structure(graph) == shape
    assert graph.theta_v.sum() == pytest.approx(singles, rel=1e-8)
    assert graph.theta_t.sum() == pytest.approx(tables, rel=1e-8)


@every_set
def test_statistics_are_near_those_of_the_paper(which: str) -> None:
    numbers = range(1, n_lookalikes(which) + 1) if which == "grids" else range(1, 8)
    mean = mean_statistics(model_statistics(lookalike(which, number)) for number in numbers)
    assert mean is not None
    for name, value in list(vars(paper_statistics(which)).items())[1:]:
        assert getattr(mean, name) == pytest.approx(value, rel=1e-5 if which == "grids" else 0.03), name


@every_set
def test_size_goes_with_scale_and_tiny_models_are_models(which: str) -> None:
    for scale in (0.1, 2.0):
        assert lookalike(which, 3, scale=scale).n_vars == pytest.approx(scale * lookalike(which, 3).n_vars, rel=0.15)
    graph = lookalike(which, 1, scale=1e-6)
    assert 1 < graph.n_vars < 120
    assert np.isfinite(mapmrf.solve(graph, "icm").value)


# -- look-alikes: superpixels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("which", "states", "lone"), [("seg-2", 2, 1), ("seg-21", 21, 1), ("scene", 8, 0)])
def test_superpixels_make_a_planar_graph_of_pairs_that_attract(which: str, states: int, lone: int) -> None:
    graph = lookalike(which, 4)
    assert set(graph.card.tolist()) == {states}
    assert set(graph.arity.tolist()) == {2}
    pairs = graph.scope.reshape(-1, 2)
    assert len(np.unique(np.sort(pairs, axis=1), axis=0)) == len(pairs)
    n = graph.n_vars - lone
    assert n - 1 <= len(pairs) <= 3 * n - 6
    assert summarise(graph).n_components == 1 + lone
    degree = np.bincount(graph.scope, minlength=graph.n_vars)
    assert np.flatnonzero(degree == 0).tolist() == [0] * lone
    assert degree.max() <= 12
    tables = graph.theta_t.reshape(-1, states, states)
    same = np.trace(tables, axis1=1, axis2=2) / states
    attraction = same - (tables.sum(axis=(1, 2)) - states * same) / (states * (states - 1))
    assert attraction.min() > 0 and np.ptp(attraction) > 0.1


@pytest.mark.parametrize(("which", "least"), [("seg-2", 6), ("seg-21", 5), ("scene", 5)])
def test_the_relaxation_is_mostly_tight(which: str, least: int) -> None:
    """As on the models of the paper; and the best labels are not just those of the single variables."""
    results = []
    for number in range(1, 7):
        graph = lookalike(which, number, scale=0.3)
        results.append(mapmrf.solve(graph, "lp"))
        alone = graph.theta_v.reshape(graph.n_vars, -1).argmax(axis=1)
        assert 0 < np.mean(results[-1].labels != alone) < 0.6
    assert sum(result.status is Status.OPTIMAL for result in results) >= least


# -- look-alikes: grids -----------------------------------------------------------------------------------------------


def test_grids_follow_the_models_of_the_same_number() -> None:
    for number, entry in enumerate(entries("grids"), start=1):
        graph = lookalike("grids", number)
        side, strength = int(entry.name[4:6]), float(entry.name.split(".f")[1].split(".")[0])
        assert graph.n_vars == side * side
        assert graph.n_factors == 2 * side * (side if "wrap" in entry.name else side - 1)
        assert 0.97 * strength < np.abs(graph.theta_t).max() <= strength
    np.testing.assert_array_equal(lookalike("grids", 1).theta_t, grid(20, 20, coupling=10.0, seed=1).theta_t)


# -- look-alikes: proteins --------------------------------------------------------------------------------------------


def test_proteins_have_the_structure_of_the_real_ones() -> None:
    graph = lookalike("protein", 2)
    assert graph.n_tables == 12
    assert set(graph.card.tolist()) == {2}
    uses = np.bincount(graph.table_of)
    arity = np.array([len(graph.scope_of(int(a))) for a in np.unique(graph.table_of, return_index=True)[1]])
    triples = uses[arity == 3]
    assert len(triples) == 5
    assert len(set(triples[:4].tolist())) == 1, "a factor for each of four compartments and every pair"
    assert 1300 < triples[4] < 2700, "triangles"
    assert 7000 < np.count_nonzero(np.bincount(graph.scope) == 1) < 8700, "experiments are leaves"
    assert 20 < np.bincount(graph.scope).max() < 60


def test_triples_are_all_the_triangles() -> None:
    graph = lookalike("protein", 1, scale=0.03)
    scopes = [tuple(graph.scope_of(a).tolist()) for a in range(graph.n_factors)]
    inside = [scope for scope in scopes if len(scope) == 3]
    kinds = [graph.table_of[a] for a, scope in enumerate(scopes) if len(scope) == 3]
    pairs = {scope[2]: frozenset(scope[:2]) for scope, kind in zip(inside, kinds, strict=True) if kind == kinds[0]}
    triangles = {frozenset(scope) for scope, kind in zip(inside, kinds, strict=True) if kind == kinds[-1]}
    names = sorted(pairs)
    expected = {
        frozenset((a, b, c))
        for a in names
        for b in names
        for c in names
        if a < b < c and len(pairs[a] | pairs[b] | pairs[c]) == 3 and len({pairs[a], pairs[b], pairs[c]}) == 3
    }
    assert triangles == expected
    assert expected


def test_one_protein_model_is_extreme_and_yet_has_solutions() -> None:
    usual, extreme = lookalike("protein", 3, scale=0.1), lookalike("protein", 4, scale=0.1)
    assert np.all(np.isfinite(usual.theta_t))
    assert np.isneginf(extreme.theta_t).sum() == 1
    finite = extreme.theta_t[np.isfinite(extreme.theta_t)]
    assert np.ptp(finite) > 10 * np.ptp(usual.theta_t)
    assert np.isfinite(mapmrf.solve(extreme, "icm").value)


# -- look-alikes: names and errors ------------------------------------------------------------------------------------


def test_names_are_stable_and_what_does_not_exist_is_refused() -> None:
    assert lookalike_name("grids", 3) == "grids-like-03"
    assert lookalike_name("seg-21", 50) == "seg-21-like-50"
    for number in (0, 22, -1):
        refuses(OptionError, "expected 1 to 21 for grids", lookalike, "grids", number)
    for scale in (0.0, -1.0, float("inf"), float("nan")):
        refuses(OptionError, "scale", lookalike, "grids", 1, scale=scale)
    refuses(UnknownName, "'grid'", lookalike, "grid", 1)
