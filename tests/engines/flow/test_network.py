"""Networks of pairs: which are lattices, and that both kinds have the same neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from binary_models import add_capacities, neighbour_pairs
from mapmrf.engines.flow import maximum_flow as kernels
from mapmrf.engines.flow.maximum_flow import Wiring, sparse_wiring, wire


def is_lattice(wiring: Wiring) -> bool:
    return len(wiring.network.kind) > 0


@pytest.mark.parametrize(
    ("shape", "neighbours", "offsets"),
    [
        ((9, 11), 4, [1, 11]),
        ((9, 11), 8, [1, 10, 11, 12]),
        ((6, 7, 8), 6, [1, 8, 56]),
        ((6, 7, 8), 26, [1, 7, 8, 9, 47, 48, 49, 55, 56, 57, 63, 64, 65]),
    ],
)
def test_pictures_and_volumes_are_lattices(shape: tuple[int, ...], neighbours: int, offsets: list[int]) -> None:
    pairs = neighbour_pairs(shape, neighbours)
    wiring = wire(int(np.prod(shape)), pairs.ravel())
    assert is_lattice(wiring)
    assert wiring.network.offset.tolist() == [-o for o in offsets[::-1]] + offsets
    shuffled = np.random.default_rng(0).permutation(pairs)[:, ::-1]
    assert wire(int(np.prod(shape)), shuffled.ravel()).network.offset.tolist() == wiring.network.offset.tolist()


def test_pairs_in_all_directions_are_no_lattice() -> None:
    random = np.random.default_rng(0)
    pairs = np.array([random.permutation(60)[:2] for _ in range(200)])
    assert not is_lattice(wire(60, pairs.ravel()))


def test_a_ring_and_a_few_pairs_are_no_lattice() -> None:
    """A margin as long as the model, or arcs that are mostly missing, would waste memory."""
    ring = np.stack([np.arange(30), (np.arange(30) + 1) % 30], axis=1)
    assert not is_lattice(wire(30, ring.ravel()))
    assert not is_lattice(wire(30, ring[:5].ravel()))
    assert not is_lattice(wire(30, np.zeros(0)))


@pytest.mark.parametrize("lattice", [False, True])
def test_every_link_leads_to_a_neighbour_and_back(lattice: bool) -> None:
    """The accessors as plain Python, against the list of pairs with their capacities."""
    pairs = neighbour_pairs((6, 7), 8)
    n, m = 42, len(pairs)
    wiring = wire(n, pairs.ravel()) if lattice else sparse_wiring(n, pairs.ravel().astype(np.int32))
    assert is_lattice(wiring) == lattice
    add_capacities(wiring, np.arange(1.0, m + 1), np.arange(-1.0, -m - 1, -1))
    network, margin = wiring.network, wiring.margin
    first_link, end_link, neighbour, link_back, arc_out, arc_in = (
        getattr(kernels, name).py_func
        for name in ("first_link", "end_link", "neighbour", "link_back", "arc_out", "arc_in")
    )
    found = {}
    for i in range(margin, margin + n):
        for link in range(first_link(network, i), end_link(network, i)):
            j, back = int(neighbour(network, i, link)), link_back(network, link)
            out = arc_out(network, i, link)
            if network.residual[out] != 0.0:
                found[i - margin, j - margin] = network.residual[out]
                assert neighbour(network, j, back) == i
                assert arc_in(network, j, back) == out and arc_out(network, j, back) == arc_in(network, i, link)
    expected = {(i, j): k + 1.0 for k, (i, j) in enumerate(pairs.tolist())}
    assert found == expected | {(j, i): -capacity for (i, j), capacity in expected.items()}
