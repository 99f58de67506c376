"""Models that are built part by part are those that are built whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mapmrf import FactorGraph, images
from mapmrf.datasets import grid, potts_image
from mapmrf.distributed.cutting import split
from mapmrf.distributed.lattices import PottsPicture, SpinGrid, grid_parts, image_parts, potts_parts, slabs_of
from mapmrf.distributed.parts import PartFolder
from mapmrf.errors import GraphError, OptionError


def same_parts(folder: PartFolder, graph: FactorGraph, row: int) -> None:
    """The parts in a folder are what cutting the whole model by rows gives, but for sharing of tables."""
    n = folder.counts.n_parts
    starts = [slab.begin for slab in slabs_of(graph.n_vars // row, n)]
    owner = np.searchsorted(starts, np.arange(graph.n_vars) // row, side="right") - 1
    assert (folder.counts.n_vars, folder.counts.n_factors) == (graph.n_vars, graph.n_factors)
    for part, other in zip(folder.read(range(n)), split(graph, owner, n), strict=True):
        for name in ("n_own", "n_inside", "n_constrained"):
            assert getattr(part, name) == getattr(other, name)
        for name in ("var", "state_at", "halo_part", "neighbours", "send_ptr", "send"):
            assert np.array_equal(getattr(part, name), getattr(other, name)), name
        assert np.array_equal(np.argsort(part.factor), np.argsort(other.factor))
        assert np.array_equal(part.graph.scope, other.graph.scope)
        assert np.array_equal(part.graph.theta_v, other.graph.theta_v)
        for a in range(part.graph.n_factors):
            assert np.array_equal(part.graph.table(a), other.graph.table(a))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_a_spin_glass_by_parts_is_the_whole_one(parts: int, tmp_path: Path) -> None:
    folder = grid_parts(SpinGrid(11, 7, 2.5, 0.5, 3), tmp_path, parts)
    same_parts(folder, grid(11, 7, 2.5, field=0.5, seed=3), 7)


@pytest.mark.parametrize("parts", [1, 3])
def test_a_noisy_picture_by_parts_is_the_whole_one(parts: int, tmp_path: Path) -> None:
    folder = potts_parts(PottsPicture(150, 9, 3, 0.7, 1.1, 5), tmp_path, parts)
    same_parts(folder, potts_image(150, 9, 3, 0.7, 1.1, seed=5).graph, 9)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((9, 6, 2), {"weight": 0.7}),
        ((9, 6, 3), {"neighbours": 8, "smoothness": "linear", "truncation": 1.5}),
        ((6, 4, 3, 3), {"costs": True}),
        ((9, 6, 2), {"weight": {(0, 1): np.linspace(0, 1, 45).reshape(9, 5), (1, 0): 2.0, (2, 1): 0.5}}),
    ],
)
def test_an_image_by_parts_is_the_whole_one(shape: tuple[int, ...], options: dict[str, Any], tmp_path: Path) -> None:
    np.save(tmp_path / "unary.npy", np.random.default_rng(1).normal(size=shape))
    unary = np.load(tmp_path / "unary.npy", mmap_mode="r")
    folder = image_parts(unary, tmp_path / "parts", 3, **options)
    graph = images.grid_model(unary, **options)
    far = isinstance(options.get("weight"), Mapping)
    assert max(part.graph.n_vars - part.n_own for part in folder.read(range(3))) > 2 * 6 * far
    same_parts(folder, graph, int(np.prod(shape[1:-1])))


def test_impossible_lattices_are_refused(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="4 parts of 3 variables"):
        grid_parts(SpinGrid(3, 5), tmp_path, 4)
    with pytest.raises(GraphError, match=r"unary has shape \(3, 4\)"):
        image_parts(np.zeros((3, 4)), tmp_path, 2)
