"""What the theory of LS-LP says, and where it stops: the sphere, the augmented Lagrangian, the undefined centre."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from admm_reference import DenseADMM, Knobs, ring
from mapmrf import LSLP, FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.measurement import edge_states_of
from mapmrf.model.polytope import Kind, dense, integral, residuals
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe


def begun(recipe: Recipe, mu_v: np.ndarray | None = None, **options) -> Engine:
    """A run that has just begun, at mu_v where it is given."""
    problem = Problem.compile(recipe.graph())
    start = Start() if mu_v is None else Start(np.zeros(problem.n_vars, dtype=np.int64), mu_v)
    options = {"rho": 1.0, "rho_unit": "absolute", "eta": 1.0, "lp_phase": False, "warm_rho": 1.0} | options
    return LSLP(**options).start(problem, 0, start).the_engine


# -- the sphere leaves the integer points of L_G, and only them -------------------------------------------------------


@given(
    seed=st.integers(0, 2**16),
    n=st.integers(1, 4),
    sphere=st.sampled_from(["variables", "affine"]),
    epsilon=st.sampled_from([0.0, 1e-300]),
)
@settings(max_examples=60)
def test_a_point_of_the_polytope_lies_on_the_sphere_exactly_if_it_is_integer(seed, n, sphere, epsilon) -> None:
    """Convex combinations of n labellings; the projection's factor is 1 on the sphere and above 1 inside."""
    random = np.random.default_rng(seed)
    recipe = ring(seed)
    problem = Problem.compile(recipe.graph())
    weights = random.dirichlet(np.ones(n))
    vertices = [integral(problem, random.integers(0, recipe.card)) for _ in range(n)]
    mu_v = sum(w * v for w, (v, _) in zip(weights, vertices, strict=True))
    mu_f = sum(w * dense(problem, f) for w, (_, f) in zip(weights, vertices, strict=True))
    assert residuals(problem, mu_v, mu_f).largest < 1e-12, "a point of L_G"
    integer = float(np.minimum(mu_v, 1 - mu_v).max()) < 1e-9
    engine = begun(recipe, mu_v, sphere=sphere, epsilon=epsilon)
    engine.update_upsilon()
    scale = engine.sphere.scale[0]
    assert scale == pytest.approx(1.0, abs=1e-9) if integer else scale > 1.0 + 1e-9


# -- the centre, where the projection is undefined --------------------------------------------------------------------


def odd_rings(*fields: float) -> FactorGraph:
    """Rings of seven spins that want to differ from their neighbours: without a field uniform is where it all rests."""
    unary = np.zeros((7 * len(fields), 2))
    unary[:, 1] = np.repeat(fields, 7)
    edges = [[7 * r + i, 7 * r + (i + 1) % 7] for r in range(len(fields)) for i in range(7)]
    return FactorGraph.from_pairwise(unary, edges, [[[0.0, 1.0], [1.0, 0.0]]] * len(edges))


@pytest.mark.parametrize("stop", ["plain", "paper"])
def test_no_convergence_is_declared_at_the_centre(stop: str) -> None:
    """No field and no noise: nothing can break the tie, and that is not called a solution."""
    result = mapmrf.solve(
        odd_rings(0.0), "lslp", noise=0.0, lp_phase=False, climb=False, starts=1, stop=stop, tol=1e-3, max_iterations=60
    )
    assert result.status is Status.ITERATION_LIMIT
    assert result.mu_v.tolist() == [0.5] * 14, "the point is kept where it is"
    assert result.details["sphere"] == result.details["primal"] == 0.0, "though all residuals are 0"


def test_no_convergence_is_declared_while_one_block_is_at_its_centre() -> None:
    """Two rings, only one of them with a field, and a sphere for each."""
    options = {"noise": 0.0, "lp_phase": False, "starts": 1, "stop": "paper", "tol": 1e-3, "max_iterations": 3000}
    apart = mapmrf.solve(odd_rings(5.0, 0.0), "lslp", sphere_block=7, **options)
    assert apart.status is Status.ITERATION_LIMIT
    assert apart.mu_v[:14] == pytest.approx([0.0, 1.0] * 7, abs=1e-3)
    assert apart.mu_v[14:].tolist() == [0.5] * 14
    noisy = mapmrf.solve(odd_rings(5.0, 0.0), "lslp", sphere_block=7, **(options | {"noise": 1e-3}))
    assert noisy.status is Status.CONVERGED
    assert noisy.kind is Kind.VALID


def test_a_little_noise_breaks_the_tie() -> None:
    result = mapmrf.solve(odd_rings(0.0), "lslp", lp_phase=False, starts=1)
    assert result.value == pytest.approx(6.0)
    assert result.kind is Kind.VALID


# -- the augmented Lagrangian -----------------------------------------------------------------------------------------


def lagrangian_along(recipe: Recipe, knobs: Knobs, n: int) -> np.ndarray:
    """The augmented Lagrangian after each of n iterations of the engine."""
    engine = begun(recipe, rho=knobs.rho, epsilon=knobs.epsilon, variant=knobs.variant, sphere=knobs.sphere, noise=0.2)
    seen = DenseADMM(engine.problem, knobs, engine.variables())
    values = []
    for _ in range(n):
        old = engine.lam_v.copy()
        engine.run(1)
        seen.mu, seen.lam_v = engine.variables(), engine.lam_v.copy()
        if knobs.variant == "free":
            seen.upsilon = seen.mu - ((1 + knobs.epsilon * knobs.rho) * seen.lam_v - old) / knobs.rho
        else:
            seen.upsilon = seen.c * seen.mu - (seen.lam_v - old) / knobs.rho
        parts = np.cumsum([len(m) for m in seen.m])[:-1]
        seen.lam = np.split(edge_states_of(engine, engine.multipliers()), parts)
        seen.mu_f = np.split(dense(engine.problem, engine.factor_marginals), engine.problem.config_ptr[1:-1])
        seen.s = [m @ mu_f for m, mu_f in zip(seen.m, seen.mu_f, strict=True)]
        values.append(seen.lagrangian())
    return np.array(values)


@pytest.mark.parametrize("sphere", ["variables", "affine"])
@pytest.mark.parametrize("product", [1.01, 2.0])
def test_the_free_variant_never_raises_the_augmented_lagrangian(product: float, sphere: str) -> None:
    """Fixed rho with rho epsilon > 1: what the paper's proof claims holds for this variant, in every run."""
    for seed in range(8):
        epsilon = [1e-3, 1e-2, 0.1, 1.0][seed % 4]
        knobs = Knobs(product / epsilon, variant="free", epsilon=epsilon, sphere=sphere)
        values = lagrangian_along(ring(seed, cards=(2, 3)), knobs, 60)
        rises = np.diff(values) / np.maximum(1.0, np.abs(values[:-1]))
        assert rises.max() < 1e-10
        assert values[0] - values[-1] > 1e-6, "it does fall"


@pytest.mark.parametrize("epsilon", [1e-2, 0.1])
def test_the_tied_variant_does_raise_the_augmented_lagrangian(epsilon: float) -> None:
    """The paper's own algorithm is not monotone, even where rho epsilon > 1."""
    for seed in range(3):
        values = lagrangian_along(ring(seed, cards=(2, 3)), Knobs(2.0 / epsilon, epsilon=epsilon), 60)
        assert np.diff(values).max() > 1e-4


def test_below_the_theorems_penalty_the_free_variant_rises_too() -> None:
    values = lagrangian_along(ring(0, cards=(2, 3)), Knobs(0.5, variant="free", epsilon=0.01), 60)
    assert np.diff(values).max() > 1e-4


def test_in_the_theorems_regime_quality_is_not_promised() -> None:
    """A fixed large penalty freezes the first labelling; sweeping rho through the model's scale finds a better one."""
    graph = grid(10, 10, coupling=5.0, seed=0)
    fixed = mapmrf.solve(graph, "lslp", preset="paper", variant="free", rho=2e5, eta=1.0, read_out="last")
    swept = mapmrf.solve(graph, "lslp", lp_phase=False, starts=1)
    assert swept.kind is Kind.VALID
    assert fixed.value < 0.7 * swept.value
