"""SparseMAP: a quadratic program over the marginal polytope, solved by few labellings (Niculae et al., ICML 2018)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.torch.models import StructureSolver

RIDGE = 1e-12
"""Regularisation of the squared lengths of labellings, so that linear systems have a solution."""
GONE = 1e-12
"""Shares up to this are dropped."""


class SparsePoint(NamedTuple):
    """A convex combination of labellings.

    Attributes
    ----------
    mu : (n_potentials,)
        Counts of the potentials that were given, averaged.
    corners : (n_labellings, n_potentials)
        Counts of each labelling, including those of tables.
    share : (n_labellings,)
        Share of each labelling.
    """

    mu: Floats
    corners: Floats
    share: Floats

    def pull(self, gradient: Floats, n_states: int) -> Floats:
        """The gradient in theta of a loss whose gradient in mu is given: (n_potentials,).

        With the labellings fixed, their shares are an affine function of the scores ``corners @ theta``.
        """
        corners = self.corners[:, : len(gradient)]
        gram = _gram(corners, n_states)
        inverse = np.linalg.inv(gram)
        sums = inverse.sum(axis=1)
        of_scores = inverse - np.outer(sums, sums) / sums.sum()
        return np.asarray(corners.T @ (of_scores @ (corners @ gradient)))


def sparse_map(
    solver: StructureSolver, theta: Floats, row: int = 0, *, steps: int = 100, tol: float = 1e-6
) -> SparsePoint:
    """Maximise ``<theta, mu> - |mu_v|^2 / 2`` over the convex hull of all labellings; the square is of the unary part.

    An active-set method: each step adds the best labelling for the gradient, found by MAP inference, and solves for the
    shares. The point is exact if inference is.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> solver = StructureSolver(mapmrf.FactorGraph.from_tables([3], [], []))
    >>> sparse_map(solver, np.array([0.6, 0.4, -1.0])).mu.round(6).tolist()  # the projection onto the simplex
    [0.6, 0.4, 0.0]
    """
    n = len(solver.graph.theta_v)
    rows, given = np.array([row]), len(theta)
    theta = solver.whole(theta[None])[0]
    corners = solver.solve(theta[None], rows)
    share = np.ones(1)
    for _ in range(steps):
        mu = share @ corners
        slope = theta.copy()
        slope[:n] -= mu[:n]
        best = solver.solve(slope[None], rows)[0]
        if (best - mu) @ slope <= tol or np.any(np.all(corners == best, axis=1)):
            break
        corners, share = _settle(np.vstack([corners, best]), np.append(share, 0.0), theta, n)
    return SparsePoint((share @ corners)[:given], corners, share)


def _gram(corners: Floats, n_states: int) -> Floats:
    """Inner products of the unary parts of labellings."""
    unary = corners[:, :n_states]
    return np.asarray(unary @ unary.T + RIDGE * np.eye(len(corners)))


def _settle(corners: Floats, share: Floats, theta: Floats, n_states: int) -> tuple[Floats, Floats]:
    """The best shares of labellings; those that get none are dropped."""
    while True:
        best = _affine(_gram(corners, n_states), corners @ theta)
        if best.min() >= 0:
            return corners, best
        falling = best < share
        ratio = np.where(falling, share / np.where(falling, share - best, 1.0), np.inf)
        share = share + min(1.0, float(ratio.min())) * (best - share)
        share[int(ratio.argmin())] = 0.0  # it is, up to round-off
        keep = share > GONE
        corners, share = corners[keep], share[keep] / share[keep].sum()


def _affine(gram: Floats, scores: Floats) -> Floats:
    """Shares that sum to 1 and maximise ``scores . p - p . gram . p / 2``, of any sign."""
    both = np.linalg.solve(gram, np.stack([scores, np.ones(len(scores))], axis=1))
    price = (both[:, 0].sum() - 1.0) / both[:, 1].sum()
    return np.asarray(both[:, 0] - price * both[:, 1])
