"""Rigorous bounds from the semidefinite relaxation, valid in spite of round-off."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np
from scipy.linalg import eigh_tridiagonal

from mapmrf.arrays import Floats
from mapmrf.engines.spins.certificate_kernels import PANEL, apply_dense, apply_sparse, extend_basis, factorise
from mapmrf.engines.spins.couplings_kernels import SpinCouplings

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

    Parameters
    ----------
    matrix : (n, n) or SpinCouplings
        The couplings.
    strength : (n,)
        Norms of the gradients at the solution of the relaxation.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.engines.spins.certificate import certified_bound
    >>> triangle = np.eye(3) - np.ones((3, 3))
    >>> round(certified_bound(triangle, np.ones(3)), 6)  # at most two of three pairs can differ
    1.5
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
