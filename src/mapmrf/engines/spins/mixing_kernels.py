"""The mixing method: coordinate ascent over unit vectors on the semidefinite relaxation."""

from __future__ import annotations

import math

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.spins.couplings_kernels import SpinCouplings


@inlined
def settle(vectors: Floats, pull: Floats, i: int, inertia: float) -> float:
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
def mix_dense(matrix: Floats, vectors: Floats, inertia: Floats, strength: Floats, pull: Floats, sweeps: int) -> None:
    """Run sweeps of coordinate ascent; `strength` receives the norms of the gradients in the last one."""
    n, rank = vectors.shape
    for _ in range(sweeps):
        for i in range(n):
            for d in range(rank):
                pull[d] = 0.0
            for j in range(n):
                w = matrix[i, j]
                if w != 0.0:
                    for d in range(rank):
                        pull[d] += w * vectors[j, d]
            strength[i] = settle(vectors, pull, i, inertia[i])


@bare
def mix_sparse(couplings: SpinCouplings, vectors: Floats, strength: Floats, pull: Floats, sweeps: int) -> None:
    """Run the same sweeps over sparse couplings, without inertia."""
    n, rank = vectors.shape
    for _ in range(sweeps):
        for i in range(n):
            for d in range(rank):
                pull[d] = 0.0
            for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
                j, w = couplings.nbr[e], couplings.strength[e]
                for d in range(rank):
                    pull[d] += w * vectors[j, d]
            strength[i] = settle(vectors, pull, i, 0.0)


@bare
def set_gram(vectors: Floats, gram: Floats) -> None:
    """Compute the Gram matrix of the vectors, (n, n)."""
    n, rank = vectors.shape
    for i in range(n):
        for j in range(i + 1):
            total = 0.0
            for d in range(rank):
                total += vectors[i, d] * vectors[j, d]
            gram[i, j] = total
            gram[j, i] = total
