"""Parts of a model: each is a file with everything that a rank needs.

A part owns some of the variables. It has every factor that touches one of them, and copies of the other variables of
these factors, its *halo*. A factor across the cut is in several parts; the one that owns its first variable counts it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints, frozen, short
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph
from mapmrf.run.array_files import ArrayFile, checksum_of, read_arrays, write_arrays
from mapmrf.run.atomic_files import whole_file

MANIFEST = "parts.json"
VERSION = 1
GRAPH_ARRAYS = ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t")
COUNTS = ("number", "n_parts", "n_own", "n_inside", "n_counted")
LIST_ARRAYS = ("var", "state_at", "factor", "halo_part", "neighbours", "send_ptr", "send")


@dataclass(frozen=True, eq=False)
class Part:
    """One part of a model.

    Attributes
    ----------
    number, n_parts
        Which part this is, and of how many.
    graph
        The part as a separate model: its variables, then those of the halo; factors inside, then across the cut and
        counted here, then across the cut and counted elsewhere. The constant of the model is in part 0.
    n_own, n_inside, n_counted
        Variables that the part owns, factors inside, and factors that it counts.
    var, factor : (n_vars,), (n_factors,)
        Indices of the variables and factors in the whole model.
    state_at : (n_vars,)
        Offsets of the variables' states in the whole model.
    halo_part : (n_vars - n_own,)
        The parts that own the variables of the halo.
    neighbours, send_ptr, send : (n_neighbours,), (n_neighbours + 1,), (n_sent,)
        The parts that have copies of own variables, and which: ``send[send_ptr[k]:send_ptr[k + 1]]`` for the k-th.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> from mapmrf.distributed.cutting import slabs, split
    >>> first, second = split(grid(4, 3), slabs(12, 2), 2)
    >>> first.n_own, first.var.tolist(), first.n_inside, first.n_counted
    (6, [0, 1, 2, 3, 4, 5, 6, 7, 8], 7, 10)
    >>> second.var.tolist()  # its own ones first
    [6, 7, 8, 9, 10, 11, 3, 4, 5]
    """

    number: int
    n_parts: int
    graph: FactorGraph
    n_own: int
    n_inside: int
    n_counted: int
    var: Ints
    state_at: Ints
    factor: Ints
    halo_part: Ints
    neighbours: Ints
    send_ptr: Ints
    send: Ints

    def sent_to(self, part: int) -> Ints:
        """Own variables of which another part has copies, in its order, (n_sent,).

        Examples
        --------
        >>> from mapmrf.datasets import grid
        >>> from mapmrf.distributed.cutting import slabs, split
        >>> first, second = split(grid(4, 3), slabs(12, 2), 2)
        >>> first.sent_to(1).tolist()
        [3, 4, 5]
        """
        k = int(np.searchsorted(self.neighbours, part))
        if k == len(self.neighbours) or self.neighbours[k] != part:
            return self.send[:0]
        return self.send[self.send_ptr[k] : self.send_ptr[k + 1]]

    def copied_from(self, part: int) -> Ints:
        """Variables of the halo that another part owns, (n_copied,).

        Examples
        --------
        >>> from mapmrf.datasets import grid
        >>> from mapmrf.distributed.cutting import slabs, split
        >>> first, second = split(grid(4, 3), slabs(12, 2), 2)
        >>> first.copied_from(1).tolist()
        [6, 7, 8]
        """
        return self.n_own + np.flatnonzero(self.halo_part == part)


class ModelCounts(NamedTuple):
    """Sizes of the whole model."""

    n_vars: int
    n_factors: int
    n_parts: int


def write_part(folder: Path, part: Part) -> int:
    """Write the file of a part; return its checksum."""
    graph = part.graph
    arrays = {name: getattr(graph, name) for name in GRAPH_ARRAYS} | {name: getattr(part, name) for name in LIST_ARRAYS}
    if graph.weight is not None:
        arrays["weight"] = graph.weight
    figures = {"version": VERSION, "constant": graph.constant.hex(), **{name: getattr(part, name) for name in COUNTS}}
    return write_arrays(part_path(folder, part.number), ArrayFile("part", figures, arrays))


def part_path(folder: Path, number: int) -> Path:
    """The file of a part."""
    return folder / f"part-{number:05d}.mrf"


def read_part(path: str | os.PathLike[str]) -> Part:
    """Read one part; its arrays stay on disk until they are accessed.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(grid(4, 3), folder, 2)
    ...     part = mapmrf.distributed.read_part(pathlib.Path(folder, "part-00001.mrf"))
    >>> part.number, part.n_own, part.graph.n_vars
    (1, 6, 9)
    """
    path = Path(path)
    from mapmrf.distributed.part_checks import check_kinds, check_part

    _, figures, arrays = read_arrays(path, "part")
    try:
        if figures["version"] != VERSION:
            raise FormatError(f"a part of version {figures['version']}, expected {VERSION}")
        check_kinds(arrays)
        graph_arrays: dict[str, Any] = {name: arrays[name] for name in GRAPH_ARRAYS}
        rest: dict[str, Any] = {name: int(figures[name]) for name in COUNTS}
        rest |= {name: frozen(arrays[name]) for name in LIST_ARRAYS}
        constant = float.fromhex(figures["constant"])
        part = Part(graph=FactorGraph(**graph_arrays, weight=arrays.get("weight"), constant=constant), **rest)
        check_part(part)
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        what = str(error) if isinstance(error, FormatError) else f"damaged: {type(error).__name__}: {error}"
        raise FormatError(f"{path}: {' '.join(what.split())}") from None
    return part


class PartFolder:
    """A folder of parts with its manifest.

    Attributes
    ----------
    folder
        Its path.
    counts
        Sizes of the whole model.

    Examples
    --------
    >>> import tempfile
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parts = mapmrf.distributed.partition(grid(4, 3), folder, 2)
    ...     parts.counts, [part.n_own for part in parts.read(range(2))]
    (ModelCounts(n_vars=12, n_factors=17, n_parts=2), [6, 6])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            raise FormatError(f"{self.folder}: not a folder of parts: it has no {MANIFEST}")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            self.counts = ModelCounts(*(int(data[name]) for name in ModelCounts._fields))
            self.checksums = [int(crc) for crc in data["checksums"]]
            if min(self.counts) < 0 or len(self.checksums) != self.counts.n_parts:
                raise ValueError(f"{len(self.checksums)} checksums of {self.counts.n_parts} parts")
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
            raise FormatError(f"{path}: damaged: {' '.join(str(error).split())}") from None

    def read(self, numbers: range) -> Iterator[Part]:
        """Read some parts, one after another.

        Examples
        --------
        >>> import tempfile
        >>> import mapmrf
        >>> from mapmrf.datasets import grid
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = mapmrf.distributed.partition(grid(4, 3), folder, 2, "slabs")
        ...     [part.var.tolist()[:2] for part in PartFolder(folder).read(range(2))]
        [[0, 1], [6, 7]]
        """
        for number in numbers:
            path = part_path(self.folder, number)
            part = read_part(path)
            if checksum_of(path) != self.checksums[number]:
                raise FormatError(
                    f"{path}: part {part.number} of {part.n_parts}, but not the one that {MANIFEST} names"
                )
            yield part


def write_manifest(folder: Path, counts: ModelCounts, checksums: list[int]) -> PartFolder:
    """Write the manifest, which makes the folder complete."""
    write_json(folder / MANIFEST, {"version": VERSION, **counts._asdict(), "checksums": checksums})
    return PartFolder(folder)


def write_json(path: Path, data: dict[str, Any]) -> None:
    """Write a small file atomically."""
    with whole_file(path, keep=False) as file:
        file.write(json.dumps(data).encode())


def lean(values: Ints) -> Ints:
    """Integers in as few bytes as kernels support: 32 bits where they fit."""
    return short(np.asarray(values))


def is_parts(path: str | os.PathLike[str]) -> bool:
    """Return whether this is a folder of parts.

    Examples
    --------
    >>> is_parts("model.uai")
    False
    """
    return Path(path, MANIFEST).is_file()
