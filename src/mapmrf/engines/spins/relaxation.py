"""Semidefinite relaxations: dense with triangle inequalities, and plain for sparse spins."""

from __future__ import annotations

import math
from collections.abc import Generator
from typing import NamedTuple

import numpy as np
from scipy.linalg import eigh_tridiagonal

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.spins.search import SpinCouplings, dense_matrix
from mapmrf.engines.spins.triangles import TriangleSet, add_triangles, set_slack
from mapmrf.run import pace

UPDATE_EVERY = 10  # sweeps between updates of the multipliers

Steps = Generator[None, None, None]


def random_vectors(n: int, seed: int) -> Floats:
    """Return random unit vectors, (n, rank), of a rank at which the relaxation has no spurious local optima."""
    vectors = np.random.default_rng(seed).normal(size=(n, math.ceil(math.sqrt(2 * n)) + 1))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class TightRelaxation:
    def __init__(self, matrix: Floats, vectors: Floats, cuts: TriangleSet) -> None:
        n = len(matrix)
        pull = np.zeros(vectors.shape[1])
        self.spins = RelaxedSpins(
            matrix, np.empty((n, n)), vectors, np.empty((n, n)), strength=np.zeros(n), inertia=np.zeros(n), pull=pull
        )
        self.cuts = cuts
        self.penalty = 0.0

    @property
    def work(self) -> int:
        n, rank = map(int, self.spins.vectors.shape)
        return 2 * n * n * rank + 20 * len(self.cuts)

    @property
    def step_sweeps(self) -> int:
        return max(1, pace.SPIN_RELAXATION // self.work)

    def ascend(self, sweeps: int) -> Steps:
        """Run coordinate ascent at fixed multipliers, in steps."""
        spins, some = self.spins, self.step_sweeps
        set_matrix(spins, self.cuts.corners, self.cuts.kind, self.cuts.multiplier)
        spins.inertia[:] = 0.0
        for done in range(0, sweeps, some):
            if done:
                yield
            n = min(some, sweeps - done)
            mix(spins.matrix, None, spins.vectors, spins.inertia, spins.strength, spins.pull, n)
        if self.penalty == 0.0:
            share = min(max(0.36 / max(1, len(spins.strength)), 0.003), 0.01)  # of the mean gradient norm
            self.penalty = share * float(spins.strength.mean())

    def tighten(self, sweeps: int) -> Steps:
        multiplier, slack, price = self.cuts.multiplier, np.zeros(len(self.cuts)), np.zeros(len(self.cuts))
        some, spent = min(UPDATE_EVERY, self.step_sweeps), 0
        for done in range(some, sweeps + 1, some):
            press(self.spins, self.cuts.corners, self.cuts.kind, multiplier, slack, price, self.penalty, some)
            if done % UPDATE_EVERY < some:
                multiplier[:] = price
            spent += some * self.work
            if spent >= pace.SPIN_RELAXATION:
                spent = 0
                yield
        multiplier[:] = price

    def separate(self) -> Generator[None, None, int]:
        """Replace slack inequalities by violated ones, in steps; return how many are new."""
        gram = self.gram()
        slack = np.zeros(len(self.cuts))
        set_slack(self.cuts.corners, self.cuts.kind, gram, slack)
        self.cuts.drop_slack(slack)
        # Inequalities per spin that are added at a time
        return (yield from self.cuts.add_violated(gram, 5 * len(gram)))

    def gram(self) -> Floats:
        """Gram matrix of the vectors, (n, n)."""
        set_gram(self.spins.vectors, self.spins.gram)
        return self.spins.gram

    def bound(self) -> BoundSteps:
        """Compute an upper bound on the couplings of all labellings, in steps, after ascent at fixed multipliers."""
        # The vectors are restored afterwards: those under the penalty are closer to satisfying the inequalities.
        vectors, spins = self.spins.vectors.copy(), self.spins
        yield from self.ascend(40)  # sweeps at fixed multipliers before a bound is computed
        total = math.fsum(self.cuts.multiplier) * (1.0 + 1e-15)
        if len(vectors) <= 400:  # maximum number of spins for which a bound is certified in one step
            bound = certified_bound(spins.matrix, spins.strength)
        else:
            bound = yield from bound_in_steps(spins.matrix, spins.strength)
        spins.vectors[:] = vectors
        return total + bound


# -- The semidefinite relaxation with triangle inequalities: an augmented Lagrangian over unit vectors ----------------


class RelaxedSpins(NamedTuple):
    # base, matrix: (n, n): couplings of the model, and the same plus the inequalities times their prices
    base: Floats
    matrix: Floats
    vectors: Floats  # (n, rank): a unit vector for every spin
    gram: Floats  # (n, n): their Gram matrix
    # strength, inertia: (n,): norm of the gradient at every vector, and its damping
    strength: Floats
    inertia: Floats
    pull: Floats  # (rank,): scratch


@bare
def set_matrix(spins: RelaxedSpins, corners: Ints, kind: Ints, price: Floats) -> None:
    """Add the inequalities at their prices to the couplings; `inertia` counts the active ones at every spin."""
    n = len(spins.base)
    for i in range(n):
        spins.inertia[i] = 0.0
        for j in range(n):
            spins.matrix[i, j] = spins.base[i, j]
    add_triangles(corners, kind, price, spins.matrix, spins.inertia)


@bare
def press(
    spins: RelaxedSpins, corners: Ints, kind: Ints, multiplier: Floats, slack: Floats, price: Floats,
    penalty: float, sweeps: int,
) -> None:  # fmt: skip
    """Run sweeps of coordinate ascent; before each, prices are the multipliers updated by the penalty."""
    for _ in range(sweeps):
        set_gram(spins.vectors, spins.gram)
        set_slack(corners, kind, spins.gram, slack)
        for t in range(len(price)):
            price[t] = max(0.0, multiplier[t] - penalty * slack[t])
        set_matrix(spins, corners, kind, price)
        for i in range(len(spins.inertia)):
            # Damping of a vector per active inequality at it, relative to the penalty
            spins.inertia[i] *= 0.2 * penalty
        mix(spins.matrix, None, spins.vectors, spins.inertia, spins.strength, spins.pull, 1)


# -- The mixing method: coordinate ascent over unit vectors on the semidefinite relaxation ----------------------------


@inlined
def follow_gradient(vectors: Floats, pull: Floats, i: int, inertia: float) -> float:
    """Set a vector to the direction of its gradient, damped by its inertia; return the norm of the gradient."""
    square, along, total = 0.0, 0.0, 0.0
    for d in range(vectors.shape[1]):
        square += pull[d] * pull[d]
        along += pull[d] * vectors[i, d]
        pull[d] += inertia * vectors[i, d]
        total += pull[d] * pull[d]
    if total > 0.0:
        scale = 1.0 / math.sqrt(total)
        for d in range(vectors.shape[1]):
            vectors[i, d] = scale * pull[d]
    return math.sqrt(square)


@bare
def mix(
    matrix: Floats | None, couplings: SpinCouplings | None, vectors: Floats, inertia: Floats, strength: Floats,
    pull: Floats, sweeps: int,
) -> None:  # fmt: skip
    """Run sweeps of coordinate ascent, over a matrix or sparse couplings."""
    # `strength` receives the norms of the gradients in the last one.
    n, rank = vectors.shape
    for _ in range(sweeps):
        for i in range(n):
            for d in range(rank):
                pull[d] = 0.0
            if matrix is not None:
                for j in range(n):
                    w = matrix[i, j]
                    if w != 0.0:
                        for d in range(rank):
                            pull[d] += w * vectors[j, d]
            else:
                assert couplings is not None
                for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
                    j, w = couplings.nbr[e], couplings.strength[e]
                    for d in range(rank):
                        pull[d] += w * vectors[j, d]
            strength[i] = follow_gradient(vectors, pull, i, inertia[i])


@bare
def set_gram(vectors: Floats, gram: Floats) -> None:
    n, rank = vectors.shape
    for i in range(n):
        for j in range(i + 1):
            total = 0.0
            for d in range(rank):
                total += vectors[i, d] * vectors[j, d]
            gram[i, j] = total
            gram[j, i] = total


# -- Rigorous bounds from the semidefinite relaxation, valid in spite of round-off ------------------------------------

ULP = 2.0**-52  # twice the unit of round-off

BoundSteps = Generator[None, None, float]  # the steps of a computation that returns a bound


def certified_bound(matrix: Floats | SpinCouplings, strength: Floats) -> float:
    """Compute an upper bound on ``s' matrix s / 2`` over all spins s, for a symmetric matrix with zero diagonal."""
    # For any y, ``s' matrix s <= sum(y)`` if ``Diag(y) - matrix`` is positive semidefinite. `strength` is close to such
    # a y. It is raised by the deficit of the smallest eigenvalue, and a successful Cholesky factorisation proves the
    # result: such a matrix is positive semidefinite up to the round-off, which is added.
    steps = bound_in_steps(matrix, strength)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return float(end.value)


def bound_in_steps(matrix: Floats | SpinCouplings, strength: Floats) -> BoundSteps:
    """Compute `certified_bound` in steps of some hundredths of a second."""
    n = len(strength)
    if n == 0:
        return 0.0
    dense = matrix if isinstance(matrix, np.ndarray) else dense_matrix(matrix)
    size = float(np.abs(dense).sum())
    mean = (size + float(strength.sum())) / n
    if mean == 0.0:
        return 0.0
    grid = 1e-9 * mean  # diagonal shifts are multiples of this
    shift = grid * (1.0 + math.ceil(max(0.0, -smallest_eigenvalue(matrix, strength)) / grid))
    yield
    while not (yield from _is_definite(dense, strength + shift)):
        shift = 1.5 * shift + grid
    total = math.fsum(strength + shift)
    residue = 2.0 * (n + 4) * ULP * total  # Rump, Verification of positive definiteness, BIT 46 (2006)
    return 0.5 * (total + n * residue) + (n + 4) * ULP * (size + total)


def smallest_eigenvalue(matrix: Floats | SpinCouplings, strength: Floats) -> float:
    """Estimate the smallest eigenvalue of ``Diag(strength) - matrix``, less its likely error, by Lanczos iterations."""
    n = len(strength)
    steps = min(80, n)
    basis, image = np.zeros((steps + 1, n)), np.zeros(n)
    first = np.random.default_rng(0).normal(size=n)
    basis[0] = first / np.linalg.norm(first)
    alpha, beta = np.zeros(steps), np.zeros(steps)
    tolerance = 1e-6 * float(np.abs(strength).max(initial=1e-300))
    least, error = 0.0, math.inf
    for k in range(steps):
        if isinstance(matrix, np.ndarray):
            apply_dense(matrix, strength, basis[k], image)
        else:
            apply_sparse(matrix, strength, basis[k], image)
        alpha[k] = basis[k] @ image
        beta[k] = extend_basis(basis, k, image)
        if k % 10 == 9 or k == steps - 1 or beta[k] <= tolerance:
            values, vectors = eigh_tridiagonal(alpha[: k + 1], beta[:k], select="i", select_range=(0, 0))
            least, error = float(values[0]), float(beta[k] * abs(vectors[-1, 0]))
            if error <= tolerance:
                break
    return least - error


def _is_definite(matrix: Floats, diagonal: Floats) -> Generator[None, None, bool]:
    """Return whether ``Diag(diagonal) - matrix`` has a Cholesky factorisation in floating-point arithmetic."""
    n = len(diagonal)
    gap = np.negative(matrix)
    gap[np.diag_indices(n)] += diagonal
    n_panels = max(1, pace.SPIN_CERTIFICATE // (PANEL * n * n))
    for first in range(0, n, n_panels * PANEL):
        if not factorise(gap, first, n_panels):
            return False
        yield
    return True


# -- Eigenvalues and Cholesky factorisations, single-threaded and with sums in a fixed order on all machines ----------

PANEL = 32  # rows per panel, which are subtracted from all others together


@bare
def apply_dense(matrix: Floats, diagonal: Floats, vector: Floats, image: Floats) -> None:
    """Compute ``image = (Diag(diagonal) - matrix) vector`` for a symmetric matrix."""
    n = len(vector)
    for i in range(n):
        image[i] = diagonal[i] * vector[i]
    for j in range(n):
        x = vector[j]
        for i in range(n):
            image[i] -= x * matrix[j, i]


@bare
def apply_sparse(couplings: SpinCouplings, diagonal: Floats, vector: Floats, image: Floats) -> None:
    for i in range(len(vector)):
        total = diagonal[i] * vector[i]
        for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
            total -= couplings.strength[e] * vector[couplings.nbr[e]]
        image[i] = total


@bare
def extend_basis(basis: Floats, k: int, image: Floats) -> float:
    """Orthogonalise an image against the first `k + 1` rows of a basis, twice, and normalise it as the next row."""
    # Returns the norm before normalisation, 0 if nothing is left.
    n = len(image)
    size = 0.0
    for _ in range(2):
        for row in range(k, -1, -1):
            along = 0.0
            for i in range(n):
                along += basis[row, i] * image[i]
            for i in range(n):
                image[i] -= along * basis[row, i]
    for i in range(n):
        size += image[i] * image[i]
    size = math.sqrt(size)
    if size > 0.0:
        for i in range(n):
            basis[k + 1, i] = image[i] / size
    return size


@bare
def factorise(matrix: Floats, first: int, n_panels: int) -> bool:
    """Cholesky-factorise the upper half of a symmetric matrix in place, for some panels of rows."""
    # Returns False if the matrix is not positive definite.
    n = len(matrix)
    for begin in range(first, min(n, first + n_panels * PANEL), PANEL):
        end = min(begin + PANEL, n)
        for k in range(begin, end):
            if not matrix[k, k] > 0.0:
                return False
            root = math.sqrt(matrix[k, k])
            for j in range(k, n):
                matrix[k, j] /= root
            for i in range(k + 1, end):
                x = matrix[k, i]
                for j in range(i, n):
                    matrix[i, j] -= x * matrix[k, j]
        if end - begin == PANEL:
            subtract_panel(matrix, begin)
    return True


@bare
def subtract_panel(matrix: Floats, begin: int) -> None:
    """Subtract the products of a panel's rows from all rows after it, four at a time."""
    n = len(matrix)
    for i in range(begin + PANEL, n):
        for k in range(begin, begin + PANEL, 4):
            a, b, c, d = matrix[k, i], matrix[k + 1, i], matrix[k + 2, i], matrix[k + 3, i]
            for j in range(i, n):
                matrix[i, j] -= a * matrix[k, j] + b * matrix[k + 1, j] + (c * matrix[k + 2, j] + d * matrix[k + 3, j])
