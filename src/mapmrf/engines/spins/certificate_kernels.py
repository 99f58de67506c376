"""Eigenvalues and Cholesky factorisations, single-threaded and with sums in a fixed order on all machines."""

from __future__ import annotations

import math

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare
from mapmrf.engines.spins.couplings_kernels import SpinCouplings

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
