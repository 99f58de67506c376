"""Rigorous bounds from the semidefinite relaxation, valid in spite of round-off."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from scipy.linalg import eigh_tridiagonal

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare
from mapmrf.engines.spins.couplings import SpinCouplings

ULP = 2.0**-52
"""Twice the unit of round-off."""

GRID, MORE = 1e-9, 1.5
"""Diagonal shifts are multiples of this fraction of the mean, and each further shift is larger by this factor."""

LANCZOS_STEPS, LANCZOS_TOLERANCE = 80, 1e-6
"""Lanczos steps towards the smallest eigenvalue, and the error relative to the largest entry at which they stop."""

STEP_WORK = 300_000_000
"""Multiplications per step: some 40 ms."""

BoundSteps = Generator[None, None, float]
"""The steps of a computation that returns a bound."""


def certified_bound(matrix: Floats | SpinCouplings, strength: Floats) -> float:
    """Compute an upper bound on ``s' matrix s / 2`` over all spins s, for a symmetric matrix with zero diagonal.

    For any y, ``s' matrix s <= sum(y)`` if ``Diag(y) - matrix`` is positive semidefinite. `strength` is close to such a
    y. It is raised by the deficit of the smallest eigenvalue, and a successful Cholesky factorisation proves the
    result: such a matrix is positive semidefinite up to the round-off, which is added.
    """
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
    dense = matrix if isinstance(matrix, np.ndarray) else _dense(matrix)
    size = float(np.abs(dense).sum())
    mean = (size + float(strength.sum())) / n
    if mean == 0.0:
        return 0.0
    grid = GRID * mean
    shift = grid * (1.0 + math.ceil(max(0.0, -smallest_eigenvalue(matrix, strength)) / grid))
    yield
    while not (yield from _is_definite(dense, strength + shift)):
        shift = MORE * shift + grid
    total = math.fsum(strength + shift)
    residue = 2.0 * (n + 4) * ULP * total  # Rump, Verification of positive definiteness, BIT 46 (2006)
    return 0.5 * (total + n * residue) + (n + 4) * ULP * (size + total)


def smallest_eigenvalue(matrix: Floats | SpinCouplings, strength: Floats) -> float:
    """Estimate the smallest eigenvalue of ``Diag(strength) - matrix``, less its likely error, by Lanczos iterations."""
    n = len(strength)
    steps = min(LANCZOS_STEPS, n)
    basis, image = np.zeros((steps + 1, n)), np.zeros(n)
    first = np.random.default_rng(0).normal(size=n)
    basis[0] = first / np.linalg.norm(first)
    alpha, beta = np.zeros(steps), np.zeros(steps)
    tolerance = LANCZOS_TOLERANCE * float(np.abs(strength).max(initial=1e-300))
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


def _dense(couplings: SpinCouplings) -> Floats:
    """Return all couplings as a matrix."""
    n = len(couplings.ptr) - 1
    matrix = np.zeros((n, n))
    matrix[np.repeat(np.arange(n), np.diff(couplings.ptr)), couplings.nbr] = couplings.strength
    return matrix


def _is_definite(matrix: Floats, diagonal: Floats) -> Generator[None, None, bool]:
    """Return whether ``Diag(diagonal) - matrix`` has a Cholesky factorisation in floating-point arithmetic."""
    n = len(diagonal)
    gap = np.negative(matrix)
    gap[np.diag_indices(n)] += diagonal
    n_panels = max(1, STEP_WORK // (PANEL * n * n))
    for first in range(0, n, n_panels * PANEL):
        if not factorise(gap, first, n_panels):
            return False
        yield
    return True


# -- Eigenvalues and Cholesky factorisations, single-threaded and with sums in a fixed order on all machines ----------


PANEL = 32
"""Rows per panel, which are subtracted from all others together."""


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
    """Compute the same for sparse couplings."""
    for i in range(len(vector)):
        total = diagonal[i] * vector[i]
        for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
            total -= couplings.strength[e] * vector[couplings.nbr[e]]
        image[i] = total


@bare
def extend_basis(basis: Floats, k: int, image: Floats) -> float:
    """Orthogonalise an image against the first `k + 1` rows of a basis, twice, and normalise it as the next row.

    Returns the norm before normalisation, 0 if nothing is left.
    """
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
    """Cholesky-factorise the upper half of a symmetric matrix in place, for some panels of rows.

    Returns False if the matrix is not positive definite.
    """
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
