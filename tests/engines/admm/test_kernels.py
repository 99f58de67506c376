"""The loops of ADMM: their small parts one by one as plain Python, and with every index checked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from admm_reference import marginal_matrix
from mapmrf.engines.admm import (
    box,
    factor_qp,
    factor_steps,
    forest_qp,
    measurement,
    penalty,
    variable_steps,
)
from mapmrf.engines.admm.penalty import PenaltyOptions, SphereKind, new_penalty
from mapmrf.engines.admm.structs import Rounding
from plain_python import plain

TESTS = Path(__file__).parents[2]


# -- scalars ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("sphere", [SphereKind.OFF, SphereKind.VARIABLES])
def test_the_scalars_of_an_iteration_follow_from_rho(free: bool, sphere: SphereKind) -> None:
    """Denominators of mu_i: epsilon (d + 2) + c^2 rho (d + 1) if tied, epsilon + kappa (d + 1) if free."""
    epsilon, rho, weight, degree = 0.2, 3.0, 2.0, 4
    set_rho = plain(penalty.set_rho)
    record = new_penalty(PenaltyOptions(sphere=sphere, sphere_weight=weight, epsilon=epsilon, free=free))
    set_rho(record, rho)
    p = record[0]
    below = p.denominator + p.denominator_edge * degree
    on = sphere != SphereKind.OFF
    if free:
        kappa, kappa_v = rho / (1 + epsilon * rho), weight * rho / (1 + epsilon * weight * rho)
        assert below == pytest.approx(epsilon + kappa * degree + kappa_v * on)
        assert (p.c, p.target_lam) == pytest.approx((1.0, 1 / rho - epsilon))
    else:
        c = 1 + epsilon
        assert below == pytest.approx(epsilon * (degree + 1 + on) + c * c * rho * (degree + weight * on))
        assert (p.c, p.target_lam) == pytest.approx((c, 1 / rho))
    assert p.rho_v == weight * rho


def test_rho_grows_to_its_limit_and_is_never_pulled_back() -> None:
    update_rho, update_lam, set_rho = map(plain, (penalty.update_rho, penalty.update_lam, penalty.set_rho))
    record = new_penalty(PenaltyOptions(eta=2.0, rho_upper=10.0, update_every=2))
    set_rho(record, 3.0)
    seen = []
    for _ in range(5):
        update_lam(record)
        update_rho(record)
        seen.append(record[0].rho)
    assert seen == [3.0, 6.0, 6.0, 10.0, 10.0]
    assert record[0].k == 5
    assert record[0].last_rho_c == 10.0
    set_rho(record, 50.0)  # a start above the limit, as a warm one may be
    update_rho(record)
    assert record[0].rho == 50.0


def test_the_next_rho_is_found_without_moving_it() -> None:
    for every, expected in ((1, 6.0), (2, 4.0)):
        record = new_penalty(PenaltyOptions(eta=1.5, rho_upper=100.0, update_every=every))
        penalty.set_rho(record, 4.0)
        before = record.copy()
        next_rho = plain(penalty.next_rho)
        assert next_rho(record) == pytest.approx(expected)
        assert np.array_equal(record, before)
    free = new_penalty(PenaltyOptions(epsilon=0.1, free=True))
    target_weight = plain(penalty.target_weight)
    assert target_weight(record, 8.0) == 0.125
    assert target_weight(free, 8.0) == pytest.approx(0.025)


# -- measurement ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(2, 2), (3, 4), (2, 3, 2), (2, 1, 3, 2)], ids=str)
def test_the_largest_price_is_the_maximum_over_all_configurations(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    m = marginal_matrix(shape)
    for _ in range(10):
        table, lam = random.normal(size=m.shape[1]), random.normal(size=len(m))
        table[random.random(len(table)) < 0.3] = -np.inf
        table[-1] = -1.0
        stored = np.concatenate([[99.0], table, [99.0]])
        kernel = plain(measurement.largest_price)
        for weight in (1.0, 0.3):
            digits = np.empty(len(shape), dtype=np.int64)
            found = kernel(stored, 1, weight, np.array(shape), lam, digits, m.shape[1])
            assert found == pytest.approx((weight * table + m.T @ lam).max())


def test_labels_are_the_first_largest_allowed_state() -> None:
    """Two compact variables, one of three states, one of a single state; forbidden states are passed over."""
    var_at = np.array([0, 1, 2, 5, 6])
    card = np.array([2, 2, 3, 1])
    allowed_at = np.array([0, 2, 4, 7, 8])
    mu = np.array([0.0, 0.4, 0.2, 0.7, 0.7, 1.0])
    none = np.zeros(0, dtype=np.uint32)
    decode = plain(measurement.decode)
    labels = np.array([0, 0, 0, 0])
    assert decode(4, var_at, mu, Rounding(card, allowed_at, np.ones(8, dtype=bool), none, labels)) == 2
    assert labels.tolist() == [0, 1, 1, 0], "ties go to the smaller state"
    allowed = np.array([True, True, True, False, True, False, True, True])
    assert decode(2, var_at, mu, Rounding(card, allowed_at, allowed, none, labels)) == 1, "of the first two"
    assert labels.tolist() == [0, 0, 2, 0]


def test_the_value_of_a_2x2_factor_is_the_best_with_its_marginals() -> None:
    """mass goes where the coupling wants it: against a search over the one free entry."""
    random = np.random.default_rng(1)
    for _ in range(30):
        table, (p1, p2) = random.normal(size=4), random.random(2)
        both = np.linspace(max(0.0, p1 + p2 - 1), min(p1, p2), 101)
        values = (1 - p1 - p2 + both) * table[0] + (p2 - both) * table[1] + (p1 - both) * table[2] + both * table[3]
        kernel = plain(measurement.pair2_value)
        assert kernel(table, 0, 1.0, p1, p2) == pytest.approx(values.max())
        assert kernel(-table, 0, -2.0, p1, p2) == pytest.approx(2.0 * values.max())


# -- sphere -----------------------------------------------------------------------------------------------------------


def test_the_projections_factor_is_common_or_one_per_block_and_1_at_the_centre() -> None:
    norm2, target2 = np.array([1.0, 0.0, 3.0]), np.array([4.0, 5.0, 7.0])
    kernel = plain(variable_steps.update_upsilon)
    scale = np.zeros(3)
    kernel(norm2, target2, scale, False)
    assert scale == pytest.approx(np.full(3, 2.0))
    kernel(norm2, target2, scale, True)
    assert scale == pytest.approx([2.0, 1.0, np.sqrt(7 / 3)])
    kernel(np.zeros(3), target2, scale, False)
    assert scale.tolist() == [1.0, 1.0, 1.0]


def test_edges_are_gathered_by_variable_in_order() -> None:
    scope = np.array([2, 0, 0, 1, 2, 0])
    ptr = np.array([0, 3, 4, 6])
    kernel = plain(variable_steps.by_variable)
    assert kernel(scope, ptr, np.arange(6, dtype=np.uint32) * 10).tolist() == [10, 20, 50, 30, 0, 40]


# -- the code itself --------------------------------------------------------------------------------------------------

MODULES = (
    box,
    factor_qp,
    factor_steps,
    forest_qp,
    measurement,
    penalty,
    variable_steps,
)


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
    record = new_penalty(PenaltyOptions(sphere_weight=0.0))
    penalty.set_rho(record, 2.0)
    assert record[0].target_lam_v == np.inf
    assert record[0].target_lam == 0.5


CHECKED = """
import sys
import numpy as np
import mapmrf
from mapmrf.datasets import grid
from mapmrf.engines.admm import engine as _admm, steps as _steps, tiled as _tiled
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
_admm.PARALLEL_FROM, _steps.CHUNK, _steps.VAR_CHUNK = 1, 5, 4
for threads in (1, 2):
    print(mapmrf.solve(pairs, "lslp", max_iterations=100, threads=threads).value)
_tiled.LEAST_LENGTH, _tiled.TILE = 1, 5
for block in (0, 3, 20):
    for threads in (1, 2):
        mapmrf.solve(grid(5, 4, seed=block), "lslp", max_iterations=60, threads=threads, sphere_block=block)
for kind in (lambda d: 1.0 * (d > 0), lambda d: np.minimum(d, 5.0), lambda d: 0.1 * d**2):
    for states in (5, 30, 100):
        table = -kind(np.abs(np.arange(states)[:, None] - np.arange(states)))
        edges = [[0, 1], [1, 2], [0, 2]]
        mapmrf.solve(
            mapmrf.FactorGraph.from_pairwise(np.random.default_rng(2).normal(size=(3, states)), edges, table),
            "lslp", max_iterations=30,
        )
"""


@pytest.mark.slow
def test_no_kernel_reads_or_writes_out_of_bounds(tmp_path: Path) -> None:
    """Small models of all kinds with bounds checking compiled in, in a process and a cache of their own."""
    env = os.environ | {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(TESTS)}
    run = subprocess.run([sys.executable, "-c", CHECKED], env=env, capture_output=True, text=True, timeout=900)
    assert run.returncode == 0, run.stderr[-2000:]
    one, two = run.stdout.split()
    assert one == two
