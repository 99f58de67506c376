"""How ADMM lays a problem out: the same model, whatever is moved, centred, compressed or folded."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.admm import layout, penalty
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout, harden, impossible
from mapmrf.engines.admm.penalty import interaction_scale, vertex_penalty
from mapmrf.engines.admm.structs import FactorKind
from mapmrf.engines.admm.tiled import LEAST_LENGTH, find_runs
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from pairwise_models import grid_edges
from strategies import Recipe, any_recipes, hard_recipes, random_recipe, recipes, soft_recipes, with_weights


def labellings(recipe: Recipe, most: int = 200) -> list[tuple[int, ...]]:
    return list(itertools.islice(itertools.product(*(range(r) for r in recipe.card)), most))


# -- compact and full layouts -----------------------------------------------------------------------------------------


@given(recipe=soft_recipes() | hard_recipes(), compact=st.booleans())
def test_a_measurement_gives_every_labelling_the_value_that_the_graph_gives_it(recipe: Recipe, compact: bool) -> None:
    """Moving linear parts, centring and compressing change no value."""
    problem = harden(Problem.compile(recipe.graph()))
    assume(not impossible(problem))
    engine = Engine(Layout.build(problem, compact))
    best = engine_labels_of_isolated(problem)
    for labels in labellings(recipe, 50):
        labels = np.where(problem.degree > 0, labels, best)
        engine.begin(engine.layout.compress(integral(problem, labels)[0]), 1.0)
        found = engine.measure()
        allowed = problem.graph.theta_v[problem.graph.var_ptr[:-1] + labels] > -math.inf
        if allowed.all():
            assert engine.labels.tolist() == labels.tolist()
            assert found.value == pytest.approx(problem.graph.value(labels), abs=1e-9)
            assert found.integrality == 0.0


def engine_labels_of_isolated(problem: Problem) -> np.ndarray:
    blocks = np.split(problem.graph.theta_v, problem.graph.var_ptr[1:-1])
    return np.array([int(np.argmax(block)) for block in blocks if len(block)], dtype=int)


def test_every_shape_has_its_solver() -> None:
    tables = {
        (2, 2): (FactorKind.PAIR2_COMPACT, FactorKind.PAIR2),
        (3, 2): (FactorKind.FOREST, FactorKind.FOREST),
        (2, 2, 2): (FactorKind.TRIPLE2, FactorKind.TRIPLE2),
        (2, 3, 2): (FactorKind.DENSE, FactorKind.DENSE),
        (2, 2, 2, 2): (FactorKind.DENSE, FactorKind.DENSE),
    }
    for shape, kinds in tables.items():
        graph = FactorGraph.from_tables(shape, [tuple(range(len(shape)))], [np.ones(shape)])
        for compact, kind in zip((True, False), kinds, strict=True):
            assert Layout.build(Problem.compile(graph), compact).batch[0].kind == kind
        assert Layout.build(Problem.compile(graph), compact=True, ridge=True).batch[0].kind == FactorKind.RIDGE
    hard = FactorGraph.from_tables([2, 2], [(0, 1)], [[[0.0, -np.inf], [0.0, 0.0]]])
    assert Layout.build(Problem.compile(hard), compact=True).batch[0].kind == FactorKind.FOREST


def test_large_models_are_laid_out_in_pieces_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_recipe(4, 7, 30, max_card=2, max_arity=2).graph()
    whole = Layout.build(Problem.compile(graph), compact=True)
    scale = interaction_scale(Problem.compile(graph))
    monkeypatch.setattr(layout, "CHUNK", 3)
    monkeypatch.setattr(penalty, "CHUNK", 3)
    parts = Layout.build(Problem.compile(graph), compact=True)
    assert parts.variables.theta == pytest.approx(whole.variables.theta, abs=1e-12)
    assert np.array_equal(parts.pairs.strength, whole.pairs.strength)
    assert parts.constant == pytest.approx(whole.constant)
    assert interaction_scale(Problem.compile(graph)) == pytest.approx(scale)


# -- the unit of rho --------------------------------------------------------------------------------------------------


CUBE = np.random.default_rng(0).normal(size=(3, 2, 4))
EFFECTS = np.add.outer(np.add.outer([1.0, -2.0, 0.5], [0.3, 4.0]), [1.0, 2.0, -3.0, 7.0])
CENTRED = CUBE - CUBE.mean()
for axis in range(3):
    CENTRED = CENTRED - CENTRED.mean(axis=tuple({0, 1, 2} - {axis}), keepdims=True)
UNITS = {
    "a coupling": ([2, 2], [(0, 1)], [[[1.0, 2.0], [4.0, 9.0]]], 1.0),
    "no unary parts": ([3, 2, 4], [(0, 1, 2)], [CUBE + EFFECTS], math.sqrt((CENTRED**2).mean())),
    "unary only": ([2, 2], [(0,), (1,)], [[0.0, 3.0], [-np.inf, -1.0]], 4.0 / 3.0),
    "nothing": ([2, 2], [(0, 1)], [[[5.0, 5.0], [5.0, 5.0]]], 1.0),
    "no round-off": ([1, 3], [(0, 1), (1,)], [[[0.1, 0.7, 0.3]], [0.5, -0.2, 0.9]], 0.4),
    "tables that are shared": ([2] * 4, [(0, 1), (1, 2), (2, 3), (0, 3)], [np.eye(2)] * 3 + [4 * np.eye(2)], 3.5 / 4),
    "forbidden at the lowest": ([2, 2], [(0, 1)], [[[1.0, -np.inf], [0.0, 1.0]]], 0.5),
}


@pytest.mark.parametrize("name", UNITS)
def test_the_unit_is_the_mean_interaction(name: str) -> None:
    """What rows and columns leave of a table; without any, the mean size of the unary potentials, or 1."""
    *model, expected = UNITS[name]
    assert interaction_scale(Problem.compile(FactorGraph.from_tables(*model))) == pytest.approx(expected)


@pytest.mark.parametrize("unit", [interaction_scale, vertex_penalty])
@given(recipe=with_weights(recipes()), factor=st.sampled_from([0.001, 8.0, 1e4]))
@settings(max_examples=15)
def test_the_unit_grows_with_the_potentials_and_counts_weights(
    unit: Callable[[Problem], float], recipe: Recipe, factor: float
) -> None:
    graph = recipe.graph()
    found, expanded, scaled = (
        unit(Problem.compile(each)) for each in (graph, graph.expanded(), recipe.scaled(factor).graph())
    )
    assert 0 <= found < math.inf and found == pytest.approx(expanded)
    assert found > 0 or unit is vertex_penalty
    assert scaled == pytest.approx(factor * found) or found == scaled == 1.0


# -- forbidden states -------------------------------------------------------------------------------------------------


@given(recipe=with_weights(soft_recipes() | any_recipes()), seed=st.integers(0, 99), share=st.sampled_from([0.1, 0.3]))
@settings(max_examples=50)
def test_hardening_keeps_every_labellings_value(recipe: Recipe, seed: int, share: float) -> None:
    """Forbidden states of connected variables move into the tables: -inf stays -inf, all else keeps its value."""
    graph = recipe.graph()
    struck = np.random.default_rng(seed).random(len(graph.theta_v)) < share
    graph = replace(graph, theta_v=np.where(struck, -np.inf, graph.theta_v))
    hard = harden(Problem.compile(graph))
    for labels in labellings(recipe, 300):
        before, after = graph.value(labels), hard.graph.value(labels)
        assert before == after == -math.inf or after == pytest.approx(before, abs=1e-9)
    connected = np.repeat(hard.degree > 0, graph.card)
    fully = np.repeat(np.maximum.reduceat(graph.theta_v, graph.var_ptr[:-1]), graph.card) if len(graph.card) else []
    assert np.all(np.isfinite(hard.graph.theta_v[connected & (np.asarray(fully) > -np.inf)]))


def test_hardening_copies_nothing_where_nothing_is_forbidden() -> None:
    problem = Problem.compile(random_recipe(1, 6, 9).graph())
    assert harden(problem) is problem
    alone = Problem.compile(FactorGraph.from_tables([2, 2, 2], [(0, 1), (2,)], [np.eye(2), [0.0, -np.inf]]))
    assert harden(alone) is alone


def test_hardened_tables_stay_shared_where_the_same_states_are_forbidden() -> None:
    """A chain with one table and three struck variables needs a table per pattern, not per factor."""
    n = 40
    struck = [i for i in range(n) if i % 2 == 0]
    table = np.random.default_rng(0).normal(size=(2, 2))
    scopes = [(i,) for i in struck] + [(i, i + 1) for i in range(n - 1)]
    tables = [np.array([0.0, -np.inf])] * len(struck) + [table] * (n - 1)
    hard = harden(Problem.compile(FactorGraph.from_tables([2] * n, scopes, tables)))
    assert hard.n_factors == n - 1
    assert hard.graph.n_tables == 3  # the old one, first variable struck, second variable struck


def test_impossible_models_are_seen_before_any_iteration() -> None:
    for recipe, expected in (
        (Recipe([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]), True),
        (Recipe([2], [(0,)], [np.full(2, -np.inf)]), True),
        (Recipe([2, 2], [(0, 1)], [np.array([[0.0, -np.inf], [-np.inf, -np.inf]])]), False),
        (Recipe([2, 3]), False),
        (Recipe([]), False),
    ):
        assert impossible(Problem.compile(recipe.graph())) == expected


# -- runs of pairs -----------------------------------------------------------------------------------------------------


def test_short_runs_are_left() -> None:
    random = np.random.default_rng(0)
    assert find_runs(random.integers(0, 1000, (5000, 2)).astype(np.int32)) is None
    assert find_runs(grid_edges(10, 10).astype(np.int32)) is None, "on average 14 factors"
    assert LEAST_LENGTH == 40
    assert find_runs(np.zeros((0, 2), dtype=np.int32)) is None


def test_only_binary_pairs_are_laid_out_in_runs() -> None:
    """Long runs of pairs that all variables take part in; otherwise indices."""
    image = grid(50, 50, seed=0)
    assert Layout.build(Problem.compile(image), compact=True).runs is not None
    assert Layout.build(Problem.compile(image), compact=False).runs is None
    edges = grid_edges(50, 50)
    labels = FactorGraph.from_pairwise(np.zeros((2500, 3)), edges, np.eye(3))
    assert Layout.build(Problem.compile(labels), compact=True).runs is None
    random = np.random.default_rng(0).permutation(2500)
    assert Layout.build(Problem.compile(FactorGraph.from_pairwise(np.zeros((2500, 2)), random[edges], np.eye(2))),
                        compact=True).runs is None  # fmt: skip


def test_one_table_needs_no_coupling_per_factor() -> None:
    """Weights of a shared table are used as they are."""
    edges = grid_edges(50, 50)
    table, weight = np.array([[3.0, 1.0], [0.0, 2.0]]), np.random.default_rng(0).normal(size=len(edges))
    shared = Layout.build(Problem.compile(FactorGraph.from_pairwise(np.zeros((2500, 2)), edges, table)), compact=True)
    assert shared.pairs.shared and len(shared.pairs.strength) < len(edges)
    (batch,) = shared.problem.batches
    assert shared.couplings(batch, slice(3, 8)).tolist() == [1.0] * 5
    graph = FactorGraph.from_pairwise(np.zeros((2500, 2)), edges, table, weight=weight)
    weighted = Layout.build(Problem.compile(graph), compact=True)
    assert weighted.pairs.strength is weighted.problem.weight
    (batch,) = weighted.problem.batches
    assert weighted.couplings(batch, slice(0, len(edges))) == pytest.approx(weight)


@pytest.mark.parametrize("method", ["lslp", "ad3"])
def test_the_order_of_the_factors_does_not_change_the_answer(method: str) -> None:
    """A shuffled file is sorted into the same runs, and what comes out is in the order of the file."""
    rng = np.random.default_rng(0)
    edges = grid_edges(40, 45)
    tables, unary = 0.5 * rng.normal(size=(len(edges), 2, 2)), rng.normal(size=(1800, 2))
    order = rng.permutation(len(edges))
    plain = mapmrf.solve(FactorGraph.from_pairwise(unary, edges, tables), method, max_iterations=40)
    mixed = mapmrf.solve(FactorGraph.from_pairwise(unary, edges[order], tables[order]), method, max_iterations=40)
    assert mixed.labels.tolist() == plain.labels.tolist()
    assert mixed.value == pytest.approx(plain.value)
    assert mixed.bound == pytest.approx(plain.bound, rel=1e-9)
    assert mixed.mu_v == pytest.approx(plain.mu_v, abs=1e-9)
    assert asdict(mixed.residuals) == pytest.approx(asdict(plain.residuals), abs=1e-8)
