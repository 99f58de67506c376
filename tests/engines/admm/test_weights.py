"""Weights of factors: every kernel of ADMM and l2-Box gives what the same model without weights gives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.engines.admm.box import BoxProgram
from mapmrf.engines.admm.layout import harden
from mapmrf.engines.admm.penalty import interaction_scale, vertex_penalty
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import brute_force, plant, random_recipe


def weighted(seed: int, *, max_card: int = 4, max_arity: int = 4, hard: float = 0.0) -> FactorGraph:
    """A random model with weights of both signs, some 0; factors with forbidden entries have positive ones."""
    recipe = random_recipe(seed, 6, 14, hard=hard, max_card=max_card, max_arity=max_arity)
    plant(recipe, seed)
    graph = recipe.graph()
    random = np.random.default_rng(seed)
    weight = random.normal(size=graph.n_factors) * (random.random(graph.n_factors) > 0.1)
    for a in range(graph.n_factors):
        if not np.isfinite(graph.table(a)).all():
            weight[a] = abs(weight[a]) + 0.1
    return replace(graph, weight=weight)


def image(weight: np.ndarray | None, seed: int = 0) -> FactorGraph:
    """30x30 binary variables, one table for all pairs."""
    place = np.arange(900).reshape(30, 30)
    across, down = np.stack([place[:, :-1], place[:, 1:]], axis=-1), np.stack([place[:-1], place[1:]], axis=-1)
    edges = np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)])
    unary = np.random.default_rng(seed).normal(size=(900, 2))
    return FactorGraph.from_pairwise(unary, edges, [[1.0, 0.2], [0.0, 0.7]], weight=weight)


RUNS = {
    "compact": {"max_card": 2, "max_arity": 2},
    "binary": {"max_card": 2},
    "mixed": {},
    "hard": {"hard": 0.2},
}
OPTIONS = {
    "plain": {},
    "epsilon": {"epsilon": 0.05},
    "sphere on factors": {"sphere": "factors"},
    "affine": {"sphere": "affine", "relaxation": 1.4},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", RUNS)
@given(seed=st.integers(0, 10**6))
@settings(max_examples=6)
def test_lslp_iterates_as_on_the_model_without_weights(kind: str, options: str, seed: int) -> None:
    graph = weighted(seed, **RUNS[kind])
    method = mapmrf.LSLP(**OPTIONS[options], lp_phase=False, noise=0.3)
    states = [method.start(Problem.compile(g), 0, Start()) for g in (graph, graph.expanded())]
    if states[0].engine is None:
        assert states[1].engine is None
        return
    one, two = (state.the_engine for state in states)
    for _ in range(5):
        one.run(1)
        two.run(1)
        assert one.variables() == pytest.approx(two.variables(), abs=1e-8)
    a, b = one.measure(), two.measure()
    for name in ("bound", "value", "relaxed", "primal2"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-7, abs=1e-7), name


def test_weights_of_an_image_are_exact() -> None:
    """A lattice with one table: its weights serve as couplings."""
    weight = np.random.default_rng(1).normal(size=1740)
    graph = image(weight)
    for options in ({}, {"sphere": "off"}):
        a, b = (mapmrf.solve(g, "lslp", max_iterations=60, **options) for g in (graph, graph.expanded()))
        assert a.labels.tolist() == b.labels.tolist()
        assert a.bound == pytest.approx(b.bound, rel=1e-9)
        assert a.mu_v == pytest.approx(b.mu_v, abs=1e-7)
    same = [mapmrf.solve(image(w), "lslp", max_iterations=40) for w in (None, np.ones(1740))]
    assert same[0].bound == pytest.approx(same[1].bound, rel=1e-12)


@given(seed=st.integers(0, 10**6), hard=st.sampled_from([0.0, 0.2]), binary=st.booleans())
@settings(max_examples=15)
def test_l2box_writes_down_the_same_program(seed: int, hard: float, binary: bool) -> None:
    """Value of every labelling up to softening, and the first iterations."""
    graph = weighted(seed, max_card=2 if binary else 4, max_arity=2, hard=hard)
    if math.isinf(brute_force(graph)[0]):
        return
    one, two = (BoxProgram.build(Problem.compile(g), 2.0) for g in (graph, graph.expanded()))
    assert one.unit == pytest.approx(two.unit)
    assert one.form.theta == pytest.approx(two.form.theta, abs=1e-9)
    assert one.reach == pytest.approx(two.reach, abs=1e-9)
    a, b = (mapmrf.solve(g, "l2box", max_iterations=10) for g in (graph, graph.expanded()))
    assert a.mu_v == pytest.approx(b.mu_v, abs=1e-6)
    assert a.value == pytest.approx(b.value)


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_the_unit_of_rho_counts_weights(seed: int) -> None:
    graph = weighted(seed, hard=0.1)
    for unit in (interaction_scale, vertex_penalty):
        units = [unit(Problem.compile(g)) for g in (graph, graph.expanded())]
        assert units[0] == pytest.approx(units[1])


@given(seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_hardening_keeps_values_whatever_the_sign_of_a_weight(seed: int) -> None:
    """-inf goes into tables of factors with weights of 0 and below, too."""
    graph = weighted(seed)
    theta_v = graph.theta_v.copy()
    struck = np.random.default_rng(seed).random(len(theta_v)) < 0.3
    struck[graph.var_ptr[:-1]] = False
    theta_v[struck] = -np.inf
    graph = replace(graph, theta_v=theta_v)
    hard = harden(Problem.compile(graph)).graph
    for labels in np.random.default_rng(1).integers(0, graph.card, (50, graph.n_vars)):
        before, after = graph.value(labels), hard.value(labels)
        assert before == after == -math.inf or after == pytest.approx(before, abs=1e-9)
