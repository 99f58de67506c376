"""Models on lattices, built part by part: slabs of rows, each from its own rows of the data and adjacent ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.datasets.generate import check_potts, grid_edges, lay_out_pairs, potts_unary, shapes
from mapmrf.distributed.cutting import check_parts, place_part
from mapmrf.distributed.parts import ModelCounts, Part, PartFolder, write_manifest, write_part
from mapmrf.errors import GraphError
from mapmrf.images.grids import Weight, grid_model
from mapmrf.model.graph import FactorGraph

ROWS = 64  # rows of random numbers drawn together
SPINS = np.array([1.0, -1.0, -1.0, 1.0])  # the table of a coupling: spins agree or differ


class Slab(NamedTuple):
    """Rows of a lattice: those of part `number` are begin:end, and with their neighbours low:high."""

    number: int
    begin: int
    end: int
    low: int
    high: int


def slabs_of(rows: int, parts: int, reach: int = 1) -> list[Slab]:
    """Slabs of nearly equal height, with the rows within reach."""
    check_parts(parts, rows)
    starts = [rows * part // parts for part in range(parts + 1)]
    return [
        Slab(part, starts[part], starts[part + 1], max(0, starts[part] - reach), min(rows, starts[part + 1] + reach))
        for part in range(parts)
    ]


def write_slabs(
    folder: str | os.PathLike[str], slabs: list[Slab], row: int, model: Callable[[Slab], FactorGraph]
) -> PartFolder:
    """Write the part of every slab, one after another; a row has `row` variables."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    ends, checksums, n_factors = np.array([slab.end for slab in slabs]), [], 0
    for slab in slabs:
        part = _slab_part(slab, row, ends, model(slab))
        checksums.append(write_part(place, part))
        n_factors += part.n_constrained
    return write_manifest(place, ModelCounts(int(ends[-1]) * row, n_factors, len(slabs)), checksums)


def _slab_part(slab: Slab, row: int, ends: Ints, graph: FactorGraph) -> Part:
    """Keep the factors that touch own rows, and the variables that these touch."""
    # Factors come offset by offset, each from the first row to the last: numbers that have the order of the whole model
    begin = graph.scope[graph.scope_ptr[:-1]].astype(np.int64)
    kind = np.cumsum(np.concatenate([[0], np.diff(begin) < 0])) if len(begin) else begin  # a new offset begins
    factor = (kind * int(ends[-1]) + slab.low) * row + begin
    first, last = (slab.begin - slab.low) * row, (slab.end - slab.low) * row
    inside = (graph.scope >= first) & (graph.scope < last)
    chosen = np.flatnonzero(np.logical_or.reduceat(inside, graph.scope_ptr[:-1])) if graph.n_factors else factor
    arity = graph.arity[chosen]
    scope = graph.scope[ranges(graph.scope_ptr[chosen], arity)]
    touched = np.zeros(graph.n_vars, dtype=bool)
    touched[scope] = True
    touched[first:last] = False
    local = np.concatenate([np.arange(first, last), np.flatnonzero(touched)])
    place = np.full(graph.n_vars, -1, dtype=np.int32)
    place[local] = np.arange(len(local), dtype=np.int32)
    var = local + slab.low * row
    k = int(graph.card[0])
    mine = FactorGraph(
        card=graph.card[local],
        theta_v=graph.theta_v.reshape(-1, k)[local].ravel(),
        scope_ptr=offsets(arity),
        scope=place[scope],
        table_of=graph.table_of[chosen],
        table_ptr=graph.table_ptr,
        theta_t=graph.theta_t,
        weight=None if graph.weight is None else graph.weight[chosen],
    )
    part_of = np.searchsorted(ends, var // row, side="right")
    return place_part(slab.number, len(ends), mine, var, last - first, (part_of, k * var, factor[chosen]))


# -- spin glasses -----------------------------------------------------------------------------------------------------


class SpinGrid(NamedTuple):
    """A spin glass with the arguments, and the numbers, of `mapmrf.datasets.grid`."""

    rows: int
    cols: int
    coupling: float = 1.0
    field: float = 1.0
    seed: int = 0


def grid_parts(spins: SpinGrid, folder: str | os.PathLike[str], parts: int) -> PartFolder:
    """Write the parts of a spin glass without ever holding the whole of it.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = grid_parts(SpinGrid(6, 5, coupling=2.0, seed=1), folder, 3)
    ...     result = mapmrf.distributed.solve(folder, max_iterations=50)
    >>> abs(mapmrf.datasets.grid(6, 5, 2.0, seed=1).value(result.gather()) - result.value) < 1e-9
    True
    """
    return write_slabs(folder, slabs_of(spins.rows, parts), spins.cols, lambda slab: _spin_model(spins, slab))


def _spin_model(spins: SpinGrid, slab: Slab) -> FactorGraph:
    rows, cols, n_vars = slab.high - slab.low, spins.cols, spins.rows * spins.cols
    h = _uniform(spins.seed, slab.low * cols, rows * cols, spins.field)
    across = slab.low * (cols - 1), rows * (cols - 1)
    down = spins.rows * (cols - 1) + slab.low * cols, (rows - 1) * cols
    weight = [_uniform(spins.seed, n_vars + at, n, spins.coupling) for at, n in (across, down)]
    unary = h[:, None] * np.array([-1.0, 1.0])
    return lay_out_pairs(2, unary.ravel(), grid_edges(rows, cols, wrap=False), SPINS.copy(), np.concatenate(weight))


def _uniform(seed: int, begin: int, n: int, size: float) -> Floats:
    """Numbers begin : begin + n of the stream ``default_rng(seed).uniform(-size, size)``."""
    rng = np.random.default_rng(seed)
    rng.bit_generator.advance(begin)  # type: ignore[attr-defined]
    return rng.uniform(-size, size, n)


class PottsPicture(NamedTuple):
    """A noisy image with the arguments, and the numbers, of `mapmrf.datasets.potts_image`."""

    height: int
    width: int
    labels: int = 4
    noise: float = 0.8
    smoothness: float = 1.2
    seed: int = 0


def potts_parts(picture: PottsPicture, folder: str | os.PathLike[str], parts: int) -> PartFolder:
    """Write the parts of the model of a noisy image without ever holding the whole of it.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = potts_parts(PottsPicture(20, 30, labels=3), folder, 2)
    ...     result = mapmrf.distributed.solve(folder)
    >>> abs(mapmrf.datasets.potts_image(20, 30, labels=3).graph.value(result.gather()) - result.value) < 1e-9
    True
    """
    check_potts(*picture[:5])
    slabs = slabs_of(picture.height, parts)
    return write_slabs(folder, slabs, picture.width, lambda slab: _potts_model(picture, slab))


def _potts_model(picture: PottsPicture, slab: Slab) -> FactorGraph:
    height, width, labels, noise, smoothness, seed = picture
    rng = np.random.default_rng(seed)
    truth = shapes(range(slab.low, slab.high), height, width, labels, rng)
    for row in range(0, slab.low, ROWS):  # normal numbers cannot be skipped
        rng.normal(0.0, noise, (min(ROWS, slab.low - row), width))
    observed = truth + rng.normal(0.0, noise, truth.shape)
    unary, table = potts_unary(observed, labels, noise), smoothness * (np.eye(labels) - 1.0)
    return lay_out_pairs(labels, unary.ravel(), grid_edges(slab.high - slab.low, width, wrap=False), table.ravel())


# -- pictures and volumes ---------------------------------------------------------------------------------------------


def image_parts(
    unary: NDArray[np.floating],
    folder: str | os.PathLike[str],
    parts: int,
    smoothness: str | ArrayLike = "potts",
    *,
    weight: Weight = 1.0,
    truncation: float | None = None,
    values: ArrayLike | None = None,
    neighbours: int | None = None,
    costs: bool = False,
) -> PartFolder:
    """Write the parts of the model that `mapmrf.images.grid_model` builds from the same arguments, slab by slab.

    `unary` (H, W, L) and arrays in `weight` may be memory-mapped, as by ``np.load("unary.npy", mmap_mode="r")``:
    only the rows of one slab are read at a time.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> unary = np.random.default_rng(0).normal(size=(8, 6, 3))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = image_parts(unary, folder, 2, weight=0.5)
    ...     result = mapmrf.distributed.solve(folder)
    >>> abs(mapmrf.images.grid_model(unary, weight=0.5).value(result.gather()) - result.value) < 1e-9
    True
    """
    if unary.ndim < 3 or unary.size == 0:
        raise GraphError(f"unary has shape {unary.shape}, expected (H, W, L) or (D, H, W, L)")
    shape = unary.shape[:-1]
    row = int(np.prod(shape[1:]))
    reach = max((offset[0] for offset in weight), default=1) if isinstance(weight, Mapping) else 1
    slabs = slabs_of(shape[0], parts, max(1, reach))

    def model(slab: Slab) -> FactorGraph:
        rows = slice(slab.low, slab.high)
        return grid_model(
            np.asarray(unary[rows]), smoothness, weight=_rows_of(weight, slab), truncation=truncation, values=values,
            neighbours=neighbours, costs=costs, memory_limit=np.inf,
        )  # fmt: skip

    return write_slabs(folder, slabs, row, model)


def _rows_of(weight: Weight, slab: Slab) -> Weight:
    if not isinstance(weight, Mapping):
        return weight
    found: dict[tuple[int, ...], ArrayLike] = {}
    for offset, given in weight.items():
        array = np.asarray(given) if np.ndim(given) == 0 else given
        found[offset] = array if np.ndim(array) == 0 else array[slab.low : slab.high - offset[0]]  # type: ignore[index]
    return found
