"""The epsilon-KKT report: zero exactly at KKT points, and the stated distance elsewhere."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mapmrf
from admm_reference import DenseADMM, Knobs, compact_shift, ring, seen_by
from mapmrf import LSLP, FactorGraph
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import cone_distance2, edge_states_of, kkt_residuals
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe

SPHERES = {"variables": {}, "affine": {}, "factors": {}, "blocks": {"sphere": "variables", "sphere_block": 2}}


def begun(recipe: Recipe, **options) -> Engine:
    options = {"rho": 1.0, "rho_unit": "absolute", "lp_phase": False, "noise": 0.2, "eta": 1.0} | options
    return LSLP(**options).start(Problem.compile(recipe.graph()), 0, Start()).the_engine


# -- distances --------------------------------------------------------------------------------------------------------


def test_the_distance_from_a_normal_cone_is_the_projection_distance() -> None:
    """Against a dense search over tau: {tau on the support, at most tau elsewhere}."""
    random = np.random.default_rng(1)
    for _ in range(50):
        price = random.normal(size=(1, 6))
        used = random.random((1, 6)) < 0.4
        used[0, random.integers(6)] = True
        price[0, ~used[0] & (random.random(6) < 0.3)] = -np.inf
        taus = np.linspace(-4, 4, 80001)
        off = (price[0, used[0]][:, None] - taus) ** 2
        rest = np.maximum(0.0, price[0, ~used[0]][:, None] - taus) ** 2
        expected = (off.sum(axis=0) + rest.sum(axis=0)).min()
        assert cone_distance2(price, used)[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 0.05])
@pytest.mark.parametrize("cards", [(2, 2), (2, 4)], ids=["binary", "mixed"])
def test_the_report_is_what_the_dense_reference_says(epsilon: float, cards: tuple[int, int]) -> None:
    """In the middle of a run, where nothing is zero; for the compact layout up to the shift of its multipliers."""
    recipe = ring(3, cards=cards)
    knobs = Knobs(1.0, epsilon=epsilon)
    engine = begun(recipe, epsilon=epsilon)
    reference = DenseADMM(engine.problem, knobs, engine.variables())
    reference.lam = [-part for part in compact_shift(engine, reference)]
    for _ in range(7):
        engine.run(1)
        reference.step()
    found = kkt_residuals(engine)
    total = reference.lam_v - reference.theta
    factors2 = primal2 = 0.0
    mu_f = seen_by(engine, reference)
    for a, m in enumerate(reference.m):
        np.add.at(total, reference.places[a], reference.lam[a])
        price = reference.tables[a] + m.T @ reference.lam[a]
        factors2 += float(cone_distance2(price[None], mu_f[a][None] > 1e-9)[0])
        off = reference.c * reference.mu[reference.places[a]] - m @ mu_f[a]
        primal2 += float(off @ off)
    off = reference.c * reference.mu - reference.upsilon
    out = reference.mu - 0.5
    rest = reference.lam_v - out * (out @ reference.lam_v) / (out @ out)
    assert found["kkt_factors"] == pytest.approx(math.sqrt(factors2), abs=1e-7)
    assert found["kkt_factors"] > 1e-3
    assert found["kkt_variables"] == pytest.approx(float(np.linalg.norm(total)), abs=1e-7)
    assert found["kkt_sphere"] == pytest.approx(float(np.linalg.norm(rest)), abs=1e-7)
    assert found["kkt_primal"] == pytest.approx(math.sqrt(primal2 + float(off @ off)), abs=1e-7)


@pytest.mark.parametrize("sphere", SPHERES)
@pytest.mark.parametrize("cards", [(2, 2), (2, 4)], ids=["binary", "mixed"])
def test_at_an_integer_rest_all_kkt_residuals_vanish(sphere: str, cards: tuple[int, int]) -> None:
    """Tables with linear parts, spheres of all kinds, compact and mixed layouts."""
    options = {"sphere": sphere} | SPHERES[sphere]
    for seed in range(3 if sphere == "factors" else 4):
        engine = begun(ring(seed, cards=cards), rho=0.3, eta=1.01, rho_upper=10.0, **options)
        engine.run(3000)
        assert engine.measure().integrality < 1e-9
        found = kkt_residuals(engine)
        assert found == pytest.approx(dict.fromkeys(found, 0.0), abs=1e-6)
        lam = engine.lam_v if engine.factor_sphere is None else engine.factor_sphere.lam
        assert np.linalg.norm(lam) > 0.01, "the sphere is at work"


@pytest.mark.parametrize("epsilon", [0.0, 1e-9])
def test_round_off_in_a_fractional_optimum_is_not_taken_for_support(epsilon: float) -> None:
    """A frustrated triangle: all of mu at 1/2, where a mass of 1e-17 must not demand a price."""
    unary = np.array([[0.0, 0.3], [0.0, 0.1], [0.2, 0.0]])
    graph = FactorGraph.from_pairwise(unary, [[0, 1], [1, 2], [0, 2]], [[[0.0, 1.0], [1.0, 0.0]]] * 3)
    result = mapmrf.solve(graph, "lslp", sphere="off", eta=1.0, epsilon=epsilon, tol=1e-12, max_iterations=2000)
    assert result.mu_v == pytest.approx(0.5, abs=1e-6)
    assert result.details["kkt_factors"] < 1e-6
    assert result.details["kkt_variables"] < 1e-6
    assert result.details["kkt_sphere"] == 0.0


# -- the theorem's promise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [1e-2, 1e-3])
def test_the_free_variant_converges_to_an_epsilon_kkt_point(epsilon: float) -> None:
    """With rho epsilon > 1 fixed all residuals end at O(epsilon), sphere included, and shrink with epsilon."""
    for seed in range(4):
        recipe = ring(seed, cards=(2, 3))
        engine = begun(recipe, variant="free", epsilon=epsilon, rho=2.0 / epsilon)
        engine.run(8000)
        found = kkt_residuals(engine)
        lam = edge_states_of(engine, engine.multipliers())
        size = math.sqrt(float(lam @ lam) + float(engine.lam_v @ engine.lam_v))
        assert found["kkt_variables"] <= 1.1 * epsilon * float(np.linalg.norm(engine.mu)) + 1e-6
        assert found["kkt_primal"] <= 1.1 * epsilon * size + 1e-6
        assert found["kkt_factors"] <= 1e-4 * size
        assert found["kkt_sphere"] <= 10 * epsilon * size
