"""The factor subproblem: every solver returns the exact minimiser, from any warm start.

The problem is convex, so the optimality conditions alone prove an answer.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admm_reference import kkt_violation, marginal_matrix, simplex_qp
from mapmrf.engines.admm import factor_qp, forest_qp
from mapmrf.engines.admm.forest_qp import PairTable
from mapmrf.model.structured_pairs import NO_FORM
from plain_python import plain

EXACT = 1e-9
NONE = np.zeros(0)


class Solver:
    """A kernel with the warm start that a run keeps for one factor: its support and masses summing to 1."""

    def __init__(self, shape: tuple[int, ...], *, ridge: float = 0.0) -> None:
        self.shape, self.ridge = shape, ridge
        self.m = marginal_matrix(shape)
        room = self.m.shape[1] if ridge else min(self.m.shape[1], sum(shape) - len(shape) + 1) + 1
        self.slots = np.zeros(room, dtype=np.int32)
        self.x = np.zeros(room)
        self.support = factor_qp.Support(self.slots, self.x, 0)
        self.n = 0

    def __call__(self, u: np.ndarray, theta: np.ndarray, rho: float, pull: np.ndarray = NONE) -> np.ndarray:
        """Solve from where the last call ended; returns y over all configurations."""
        self.x[: self.n] *= rho
        table = np.concatenate([[np.nan, np.nan], theta, [np.nan]])  # a table sits among others
        self.n = self.run(u.copy(), table, 2, rho, pull)
        y = np.zeros(self.m.shape[1])
        np.add.at(y, self.places(), self.x[: self.n])
        self.x[: self.n] /= rho
        return y

    def run(self, u: np.ndarray, theta: np.ndarray, at: int, rho: float, pull: np.ndarray) -> int:
        raise NotImplementedError

    def places(self) -> np.ndarray:
        return self.slots[: self.n]


class Forest(Solver):
    def run(self, u, theta, at, rho, pull):
        k1, k2 = self.shape
        width = max(k1 + k2, len(self.slots)) + 1
        scratch = forest_qp.ForestScratch(*np.full((6, width), np.nan), *np.full((4, width), -7))
        factor = PairTable(theta[at : at + k1 * k2].reshape(k1, k2), 1.0, NO_FORM)
        return plain(forest_qp.forest_qp)(u, factor, None, rho, self.support, self.n, scratch)

    def places(self):
        rows = [plain(forest_qp.slot_row)(int(slot)) for slot in self.slots[: self.n]]
        cols = [plain(forest_qp.slot_col)(int(slot)) for slot in self.slots[: self.n]]
        return np.array([row * self.shape[1] + col for row, col in zip(rows, cols, strict=True)], dtype=int)


class Dense(Solver):
    def run(self, u, theta, at, rho, pull):
        config = np.array(list(itertools.product(*(range(r) for r in self.shape))))
        starts = np.concatenate([[0], np.cumsum(self.shape)])[:-1]
        width = max(sum(self.shape), len(self.slots)) + 1
        scratch = factor_qp.DenseScratch(*np.full((4, width), np.nan), np.full((len(self.slots),) * 2, np.nan))
        factor = factor_qp.DenseFactor(theta, at, 1.0, config, starts, self.ridge, pull)
        return plain(factor_qp.dense_qp)(u, factor, rho, self.support, self.n, scratch)


class Triple(Solver):
    def run(self, u, theta, at, rho, pull):
        d = u[1::2] - u[::2]
        scratch = factor_qp.TripleScratch(*(np.full(size, np.nan) for size in (8, 4, 4)))
        table = factor_qp.TripleTable(theta, at, 1.0)
        return plain(factor_qp.triple_qp)(d, table, rho, self.support, self.n, scratch)


def solvers(shape: tuple[int, ...]) -> list[Solver]:
    kinds: list[type[Solver]] = [Dense]
    if len(shape) == 2:
        kinds.append(Forest)
    if shape == (2, 2, 2):
        kinds.append(Triple)
    return [kind(shape) for kind in kinds]


SHAPES = [(1, 1), (1, 4), (2, 2), (2, 3), (3, 3), (5, 2), (4, 6)]
SHAPES += [(2, 2, 2), (3, 2, 2), (2, 3, 4), (2, 2, 2, 2), (3, 1, 2, 2)]
TABLES = ["normal", "integer", "flat", "hard", "hard integer", "large"]


def random_table(random: np.random.Generator, size: int, kind: str) -> np.ndarray:
    """A table of potentials; `hard` ones always leave one configuration."""
    table = random.normal(size=size) if "integer" not in kind else random.integers(-2, 3, size).astype(float)
    if kind == "flat":
        table = np.zeros(size)
    if kind == "large":
        table = 1e3 * table
    if "hard" in kind:
        table[random.random(size) < 0.5] = -np.inf
        table[random.integers(size)] = 0.5
    return table


def random_target(random: np.random.Generator, size: int, kind: str, rho: float) -> np.ndarray:
    """Scaled targets: whole multiples of rho/2 for integer tables, so that ties are exact."""
    if "integer" in kind or kind == "flat":
        return rho * random.integers(-2, 3, size) / 2
    return rho * random.normal(0.4, 1.0, size)


def independent(m: np.ndarray, y: np.ndarray, places: np.ndarray) -> bool:
    return len(places) == 0 or np.linalg.matrix_rank(m[:, places]) == len(places)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_answer_is_optimal_along_a_run_of_changing_targets(shape: tuple[int, ...], kind: str) -> None:
    """Cold at first, then warm: prices equal on the support and nowhere larger, total mass rho, columns independent."""
    random = np.random.default_rng([sum(shape), len(shape), TABLES.index(kind)])
    for solver in solvers(shape):
        theta = random_table(random, solver.m.shape[1], kind)
        u = random_target(random, sum(shape), kind, 1.0)
        for turn in range(12):
            rho = float(random.choice([0.125, 0.5, 1.0, 4.0, 32.0]))
            if turn % 3 == 0:
                u = random_target(random, sum(shape), kind, rho)
            else:
                u = u + 0.1 * random_target(random, sum(shape), kind, rho)
            y = solver(u, theta, rho)
            assert kkt_violation(solver.m, u, theta, rho, y) < EXACT, type(solver).__name__
            assert np.all(np.isfinite(theta[y > 0])), "a forbidden configuration has no mass"
            assert independent(solver.m, y, solver.places()), type(solver).__name__
            assert len(set(solver.places().tolist())) == solver.n


@pytest.mark.parametrize("ridge", [0.3, 1.0, 3.0])
@pytest.mark.parametrize("shape", [(2, 2), (3, 3), (2, 2, 2), (2, 3, 2)], ids=str)
def test_ridge_and_pull_of_a_sphere_on_the_factors(shape: tuple[int, ...], ridge: float) -> None:
    """With a ridge the minimiser is unique, so y itself is compared, also where the support is all of the table."""
    random = np.random.default_rng([len(shape), int(10 * ridge)])
    solver = Dense(shape, ridge=ridge)
    sizes = set()
    theta = 0.1 * random_table(random, solver.m.shape[1], "normal")
    for turn in range(25):
        rho = float(random.choice([0.5, 2.0, 20.0])) if turn else 100.0
        u = random.normal(size=len(solver.m))
        pull = rho * random.normal(0, 0.3, solver.m.shape[1]) * (turn > 0)
        y = solver(u, theta, rho, pull)
        sizes.add(solver.n)
        assert kkt_violation(solver.m, u, theta, rho, y, ridge, pull) < EXACT
        assert y == pytest.approx(simplex_qp(solver.m, u, theta, rho, ridge, pull), abs=1e-8 * rho)
    assert max(sizes) == solver.m.shape[1], "the first support is all of the table"


# -- the forest's own bookkeeping -------------------------------------------------------------------------------------


@given(st.integers(0, forest_qp.MAX_STATES - 1), st.integers(0, forest_qp.MAX_STATES - 1), st.integers(0, 1))
def test_a_slot_holds_any_row_column_and_side(row: int, col: int, side: int) -> None:
    slot = int(np.int32(plain(forest_qp.pack)(row, col, side)))  # they are stored as 32-bit numbers
    assert (plain(forest_qp.slot_row)(slot), plain(forest_qp.slot_col)(slot), slot & 1) == (row, col, side)


def test_warm_starts_save_work() -> None:
    """A target that hardly moves needs one pass: the support of the last call is kept as it is."""
    random = np.random.default_rng(0)
    solver = Forest((8, 8))
    theta, u = random.normal(size=64), random.normal(size=16)
    solver(u, theta, 1.0)
    before = sorted(solver.places().tolist())
    solver(u + 1e-9, theta, 1.0)
    assert sorted(solver.places().tolist()) == before
