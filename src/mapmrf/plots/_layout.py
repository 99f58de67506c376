"""Where to draw the nodes of a graph: distances on paper follow those in the graph (stress majorisation)."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints

ROUNDS = 300
RESTED = 1e-5
"""Relative change of the stress at which a layout is done."""
APART = 1.5
"""Space between parts that are not connected."""


def stress_layout(edges: Ints, radius: Floats, length: float) -> Floats:
    """Places of the nodes, (n, 2): each connected part on its own, the parts in rows, largest first.

    Parameters
    ----------
    edges : (n_edges, 2)
        Pairs of nodes.
    radius : (n,)
        Space that each node needs around it.
    length
        How long an edge should be.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components, shortest_path

    n = len(radius)
    graph = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n)).tocsr()
    _, part = connected_components(graph, directed=False)
    blocks: list[tuple[Ints, Floats]] = []
    for members in sorted((np.flatnonzero(part == p) for p in np.unique(part)), key=len, reverse=True):
        apart = length * shortest_path(graph[members][:, members], directed=False, unweighted=True)
        blocks.append((members, _turned(_parted(_majorised(apart), radius[members]))))
    return _packed(n, blocks)


def _majorised(apart: Floats) -> Floats:
    """Places whose distances come close to those given, near pairs counting most (SMACOF)."""
    n = len(apart)
    places = _scaled(apart)
    if n < 3:
        return places
    weight = 1 / np.square(apart + np.eye(n))
    np.fill_diagonal(weight, 0.0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.inv(laplacian + 1 / n) - 1 / n
    stress = np.inf
    for _ in range(ROUNDS):
        found = _distances(places)
        before, stress = stress, float((weight * np.square(found - apart)).sum())
        if before - stress <= RESTED * stress:
            break
        pull = -weight * apart / np.maximum(found, 1e-9)
        np.fill_diagonal(pull, 0.0)
        np.fill_diagonal(pull, -pull.sum(axis=1))
        places = inverse @ (pull @ places)
    return places


def _distances(places: Floats) -> Floats:
    x, y = places.T
    return np.asarray(np.hypot(x[:, None] - x, y[:, None] - y))


def _scaled(apart: Floats) -> Floats:
    """Classical scaling: the plane that holds most of the squared distances. A little noise parts twins."""
    n = len(apart)
    centred = np.square(apart)
    centred = -0.5 * (centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean())
    values, vectors = np.linalg.eigh(centred)
    places = np.zeros((n, 2))
    kept = min(2, n)
    places[:, :kept] = vectors[:, ::-1][:, :kept] * np.sqrt(np.maximum(values[::-1][:kept], 0.0))
    # The sign of an eigenvector is a matter of the linear algebra library.
    lead = places[np.abs(places).argmax(axis=0), [0, 1]]
    noise = np.random.default_rng(0).normal(scale=0.05, size=(n, 2))
    return np.asarray(places * np.where(lead < 0, -1.0, 1.0) + noise)


def _parted(places: Floats, radius: Floats) -> Floats:
    """Push nodes that lie upon each other apart, a little at a time."""
    need = radius[:, None] + radius
    np.fill_diagonal(need, 0.0)
    for _ in range(ROUNDS):
        found = _distances(places)
        lack = np.maximum(need - found, 0.0)
        if lack.max(initial=0.0) <= 0.05 * need.max(initial=0.0):
            break
        # Each of the two goes a quarter of the way: several pushes may come together.
        share = 0.25 * lack / np.maximum(found, 1e-9)
        places = places + places * share.sum(axis=1)[:, None] - share @ places
    return places


def _turned(places: Floats) -> Floats:
    """Wider than high, and centred: paper is."""
    centred = places - places.mean(axis=0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    return np.asarray(centred @ axes.T) if len(places) > 1 else centred


def _packed(n: int, blocks: list[tuple[Ints, Floats]]) -> Floats:
    """Parts side by side in rows that are about as long as all of them together are high."""
    places = np.zeros((n, 2))
    sizes = [np.ptp(part, axis=0) + APART for _, part in blocks]
    width = max([1.3 * np.sqrt(sum(float(s.prod()) for s in sizes)), *(float(s[0]) for s in sizes)], default=0.0)
    x = y = tallest = 0.0
    for (members, part), size in zip(blocks, sizes, strict=True):
        if x > 0 and x + size[0] > width:
            x, y, tallest = 0.0, y - tallest, 0.0
        corner = np.array([part[:, 0].min(), part[:, 1].max()])
        places[members] = part - corner + [x, y]
        x, tallest = x + float(size[0]), max(tallest, float(size[1]))
    return places
