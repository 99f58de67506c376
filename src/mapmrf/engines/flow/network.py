"""Networks for the pairs of a model: a lattice if the pairs are regular, a sparse network otherwise."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints, frozen
from mapmrf.engines.flow.network_kernels import (
    LATTICE,
    MAX_DIRECTIONS,
    NOT_A_LATTICE,
    SPARSE,
    Network,
    Wiring,
    find_offsets,
    link_pairs,
)

MAX_ARCS = 2**31 - 1
"""Maximum number of arcs of a sparse network, which are numbered in 32 bits."""
LEAST_FILL = 0.5
"""Minimum share of a lattice's arcs that must exist; others waste memory."""
LARGEST_MARGIN = 0.25
"""Maximum length of a lattice's margin, as a share of its nodes."""


def wire(n: int, scope: Ints) -> Wiring:
    """Build the network of `n` nodes and pairs of them, (2 n_pairs,), without capacities.

    If the pairs lie in a few directions, like those of the pixels of an image, it is a lattice: there are no arc lists,
    and neighbours are found by arithmetic. The order of the pairs does not matter, and pairs may be missing or
    repeated.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.engines.flow.network import wire
    >>> place = np.arange(400).reshape(20, 20)
    >>> across, down = (place[:, :-1], place[:, 1:]), (place[:-1], place[1:])
    >>> pairs = np.concatenate([np.stack(ends, axis=-1).reshape(-1, 2) for ends in (across, down)])
    >>> wire(400, pairs.ravel()).network.offset.tolist()
    [-20, -1, 1, 20]
    >>> wire(3, np.array([0, 1, 1, 2])).network.head.tolist()
    [1, 0, 2, 1]
    """
    scope = _readable(scope)
    offset = lattice_offsets(n, scope)
    return sparse_wiring(n, scope) if offset is None else lattice_wiring(n, scope, offset)


def lattice_offsets(n: int, scope: Ints) -> Ints | None:
    """Return the offsets from a node to its neighbours, ascending, or None if the pairs form no lattice."""
    apart = np.zeros(MAX_DIRECTIONS // 2, dtype=np.int64)
    n_apart = int(find_offsets(scope, apart))
    if n_apart == NOT_A_LATTICE:
        return None
    apart = np.sort(apart[:n_apart])
    dense = len(scope) // 2 >= LEAST_FILL * n_apart * n
    if n_apart == 0 or not dense or apart[-1] > LARGEST_MARGIN * n:
        return None
    return np.concatenate([-apart[::-1], apart])


def lattice_wiring(n: int, scope: Ints, offset: Ints) -> Wiring:
    """Build a lattice with these offsets."""
    margin, none = int(offset[-1]), np.zeros(0, dtype=np.int32)
    residual = np.zeros((n + 2 * margin) * len(offset))
    return Wiring(Network(LATTICE, none, none, none, offset, residual), scope, none, margin)


def sparse_wiring(n: int, scope: Ints) -> Wiring:
    """Build a sparse network."""
    scope, m = _readable(scope), len(scope)
    head, sister = np.empty((2, m), dtype=np.int32)
    place = np.empty(m // 2, dtype=np.int32)
    offset = np.zeros(0, dtype=np.int64)
    network = Network(SPARSE, np.zeros(n + 1, dtype=np.int32), head, sister, offset, np.zeros(m))
    link_pairs(scope, network, place)
    return Wiring(network, scope, place, 0)


def _readable(scope: Ints) -> Ints:
    """Return a read-only view in 32 bits, so that kernels need only one specialisation."""
    return frozen(np.ascontiguousarray(scope, dtype=np.int32).view())
