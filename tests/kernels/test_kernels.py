"""The loops of ADMM: their small parts one by one, as plain Python, and with every index checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from admm_reference import marginal_matrix
from mapmrf.engines.admm import dense_qp, factor_qp, factor_steps, forest_qp, triple_qp, variable_steps
from mapmrf.engines.admm import measurement as looks
from mapmrf.engines.admm import penalty as K

TESTS = Path(__file__).parents[1]


def modes(kernel):
    """A kernel compiled and as plain Python."""
    return [kernel, kernel.py_func]


# -- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [0.0, 1.0])
@pytest.mark.parametrize("sphere", [K.SPHERE_OFF, K.SPHERE_VARIABLES])
def test_the_scalars_of_an_iteration_follow_from_rho(free: float, sphere: int) -> None:
    """Denominators of mu_i: epsilon (d + 2) + c^2 rho (d + 1) if tied, epsilon + kappa (d + 1) if free."""
    epsilon, rho, weight, degree = 0.2, 3.0, 2.0, 4
    for set_rho in modes(K.set_rho):
        par = np.zeros(K.PAR_SIZE)
        par[[K.EPSILON, K.WEIGHT, K.FREE, K.SPHERE]] = epsilon, weight, free, sphere
        set_rho(par, rho)
        below = par[K.DEN0] + par[K.DEN1] * degree
        on = sphere > 0
        if free:
            kappa, kappa_v = rho / (1 + epsilon * rho), weight * rho / (1 + epsilon * weight * rho)
            assert below == pytest.approx(epsilon + kappa * degree + kappa_v * on)
            assert (par[K.C], par[K.B]) == pytest.approx((1.0, 1 / rho - epsilon))
        else:
            c = 1 + epsilon
            assert below == pytest.approx(epsilon * (degree + 1 + on) + c * c * rho * (degree + weight * on))
            assert (par[K.C], par[K.B]) == pytest.approx((c, 1 / rho))
        assert par[K.RHO_V] == weight * rho


def test_rho_grows_to_its_limit_and_is_never_pulled_back() -> None:
    for advance, set_rho in zip(modes(K.advance_rho), modes(K.set_rho), strict=True):
        par = np.zeros(K.PAR_SIZE)
        par[[K.WEIGHT, K.ETA, K.RHO_UPPER]] = 1.0, 2.0, 10.0
        set_rho(par, 3.0)
        seen = []
        for k in range(5):
            advance(par, k, 2)
            seen.append(par[K.RHO])
        assert seen == [3.0, 6.0, 6.0, 10.0, 10.0]
        assert par[K.LAST_RC] == 10.0
        set_rho(par, 50.0)  # a start above the limit, as a warm one may be
        advance(par, 1, 1)
        assert par[K.RHO] == 50.0


def test_the_next_projections_scalar_is_found_without_moving_rho() -> None:
    par = np.zeros(K.PAR_SIZE)
    par[[K.WEIGHT, K.ETA, K.RHO_UPPER]] = 2.0, 1.5, 100.0
    K.set_rho(par, 4.0)
    before = par.copy()
    for next_b in modes(K.next_sphere_b):
        assert next_b(par, 0, 1) == pytest.approx(1 / 12.0)
        assert next_b(par, 0, 2) == pytest.approx(1 / 8.0)
    assert np.array_equal(par, before)


# -- looks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (2, 3, 2), (2, 1, 3, 2)], ids=str)
def test_the_largest_price_is_the_maximum_over_all_configurations(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    m = marginal_matrix(shape)
    for _ in range(10):
        table, lam = random.normal(size=m.shape[1]), random.normal(size=len(m))
        table[random.random(len(table)) < 0.3] = -np.inf
        table[-1] = -1.0
        stored = np.concatenate([[99.0], table, [99.0]])
        for kernel in modes(looks.largest_price):
            found = kernel(stored, 1, np.array(shape), lam, np.empty(len(shape), dtype=np.int64), m.shape[1])
            assert found == pytest.approx((table + m.T @ lam).max())


def test_labels_are_the_first_largest_allowed_state() -> None:
    """Two compact variables, one of three states, one of a single state; forbidden states are passed over."""
    var_at = np.array([0, 1, 2, 5, 6])
    card = np.array([2, 2, 3, 1])
    allowed_at = np.array([0, 2, 4, 7, 8])
    mu = np.array([0.0, 0.4, 0.2, 0.7, 0.7, 1.0])
    for decode in modes(looks.decode):
        labels = np.array([0, 0, 0, 0])
        assert decode(0, 4, var_at, card, mu, allowed_at, np.ones(8, dtype=bool), labels) == 2
        assert labels.tolist() == [0, 1, 1, 0], "ties go to the smaller state"
        allowed = np.array([True, True, True, False, True, False, True, True])
        assert decode(0, 4, var_at, card, mu, allowed_at, allowed, labels) == 2
        assert labels.tolist() == [0, 0, 2, 0]


def test_the_value_of_a_2x2_factor_is_the_best_with_its_marginals() -> None:
    """mass goes where the coupling wants it: against a search over the one free entry."""
    random = np.random.default_rng(1)
    for _ in range(30):
        table, (p1, p2) = random.normal(size=4), random.random(2)
        both = np.linspace(max(0.0, p1 + p2 - 1), min(p1, p2), 101)
        values = (1 - p1 - p2 + both) * table[0] + (p2 - both) * table[1] + (p1 - both) * table[2] + both * table[3]
        for kernel in modes(looks._pair2_value):
            assert kernel(table, 0, p1, p2) == pytest.approx(values.max())


# -- sphere -----------------------------------------------------------------------------------------------------------


def test_the_projections_factor_is_common_or_one_per_block_and_1_at_the_centre() -> None:
    norm2, target2 = np.array([1.0, 0.0, 3.0]), np.array([4.0, 5.0, 7.0])
    for kernel in modes(variable_steps.sphere_scales):
        scale = np.zeros(3)
        kernel(norm2, target2, False, scale)
        assert scale == pytest.approx(np.full(3, 2.0))
        kernel(norm2, target2, True, scale)
        assert scale == pytest.approx([2.0, 1.0, np.sqrt(7 / 3)])
        kernel(np.zeros(3), target2, False, scale)
        assert scale.tolist() == [1.0, 1.0, 1.0]


def test_edges_are_gathered_by_variable_in_order() -> None:
    scope = np.array([2, 0, 0, 1, 2, 0])
    ptr = np.array([0, 3, 4, 6])
    for kernel in modes(variable_steps.by_variable):
        assert kernel(scope, ptr, np.arange(6) * 10).tolist() == [10, 20, 50, 30, 0, 40]


# -- the code itself --------------------------------------------------------------------------------------------------

MODULES = (factor_qp, forest_qp, dense_qp, factor_steps, triple_qp, looks, variable_steps, K)


def test_every_kernel_is_compiled_cached_and_releases_the_gil() -> None:
    kernels = {value for module in MODULES for value in vars(module).values() if hasattr(value, "py_func")}
    assert len(kernels) > 30
    for kernel in kernels:
        assert kernel.targetoptions["nogil"], kernel.__name__
        assert kernel.targetoptions["error_model"] == "numpy", kernel.__name__
        assert not kernel.targetoptions.get("fastmath"), "inf and nan must mean what they say"
        assert type(kernel._cache).__name__ != "NullCache", kernel.__name__


def test_division_by_zero_is_ieee_in_compiled_code() -> None:
    """1/0 is inf and no exception: a loop without branches relies on it."""
    par = np.zeros(K.PAR_SIZE)
    K.set_rho(par, 2.0)  # a sphere of weight 0
    assert par[K.B_V] == np.inf
    assert par[K.B] == 0.5


CHECKED = """
import sys
import numpy as np
import mapmrf
from mapmrf.engines.admm import engine as _admm
from strategies import random_recipe, plant, brute_force

assert __import__("numba").config.BOUNDSCHECK == 1
options = [
    {}, {"sphere": "affine"}, {"sphere": "factors"}, {"epsilon": 1e-3}, {"epsilon": 1e-3, "variant": "free"},
    {"sphere_block": 2}, {"sphere": "off"},
]
for seed in range(14):
    recipe = random_recipe(seed, 6, 12, hard=0.2 * (seed % 2), max_card=3, max_arity=3)
    plant(recipe, seed)
    graph = recipe.graph()
    result = mapmrf.solve(graph, "lslp", max_iterations=60, **options[seed % len(options)])
    best = brute_force(graph)[0]
    assert result.value <= best + 1e-9 and result.bound >= best - 1e-6, (seed, result, best)
pairs = mapmrf.FactorGraph.from_pairwise(
    np.random.default_rng(0).normal(size=(9, 2)), [[i, j] for i in range(9) for j in range(i)],
    np.random.default_rng(1).normal(size=(36, 2, 2)),
)
_admm.PARALLEL_FROM, _admm.CHUNK, _admm.VAR_CHUNK = 1, 5, 4
for threads in (1, 2):
    print(mapmrf.solve(pairs, "lslp", max_iterations=100, threads=threads).value)
"""


@pytest.mark.slow
def test_no_kernel_reads_or_writes_out_of_bounds(tmp_path: Path) -> None:
    """Small models of all kinds with bounds checking compiled in, in a process and a cache of their own."""
    env = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(TESTS)}
    run = subprocess.run([sys.executable, "-c", CHECKED], env=env, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-2000:]
    one, two = run.stdout.split()
    assert one == two
