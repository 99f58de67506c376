"""Parts of a model: each is a file with everything that a rank needs.

A part owns some of the variables. It has every factor that touches one of them, and copies of the other variables of
these factors, its *halo*. A factor across the cut is in several parts; the one that owns its first variable counts it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, short
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.run import interrupts
from mapmrf.run.atomic_files import whole_file
from mapmrf.run.state import ArrayFile, checksum_of, damaged, read_arrays, write_arrays

MANIFEST = "parts.json"
VERSION = 1
GRAPH_ARRAYS = ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t")
COUNTS = ("number", "n_parts", "n_own", "n_inside", "n_constrained")
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
    n_own, n_inside, n_constrained
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
    >>> first.n_own, first.var.tolist(), first.n_inside, first.n_constrained
    (6, [0, 1, 2, 3, 4, 5, 6, 7, 8], 7, 10)
    >>> second.var.tolist()  # its own ones first
    [6, 7, 8, 9, 10, 11, 3, 4, 5]
    >>> first.sent_to(1).tolist(), first.copied_from(1).tolist()
    ([3, 4, 5], [6, 7, 8])
    """

    number: int
    n_parts: int
    graph: FactorGraph
    n_own: int
    n_inside: int
    n_constrained: int
    var: Ints
    state_at: Ints
    factor: Ints
    halo_part: Ints
    neighbours: Ints
    send_ptr: Ints
    send: Ints

    def sent_to(self, part: int) -> Ints:
        """Own variables of which another part has copies, in its order, (n_sent,)."""
        k = int(np.searchsorted(self.neighbours, part))
        if k == len(self.neighbours) or self.neighbours[k] != part:
            return self.send[:0]
        return self.send[self.send_ptr[k] : self.send_ptr[k + 1]]

    def copied_from(self, part: int) -> Ints:
        """Variables of the halo that another part owns, (n_copied,)."""
        return self.n_own + np.flatnonzero(self.halo_part == part)


def first_factors(graph: FactorGraph, n: int, theta_v: Floats, constant: float = 0.0) -> FactorGraph:
    """The model of the first n factors, such as those that a part counts, with other potentials of the variables."""
    return FactorGraph(
        graph.card, theta_v, graph.scope_ptr[: n + 1], graph.scope[: graph.scope_ptr[n]], graph.table_of[:n],
        graph.table_ptr, graph.theta_t, constant, weight=None if graph.weight is None else graph.weight[:n],
    )  # fmt: skip


class ModelCounts(NamedTuple):
    """Sizes of the whole model."""

    n_vars: int
    n_factors: int
    n_parts: int


def write_part(folder: Path, part: Part) -> int:
    graph = part.graph
    arrays = {name: getattr(graph, name) for name in GRAPH_ARRAYS} | {name: getattr(part, name) for name in LIST_ARRAYS}
    if graph.weight is not None:
        arrays["weight"] = graph.weight
    figures = {"version": VERSION, "constant": graph.constant.hex(), **{name: getattr(part, name) for name in COUNTS}}
    return write_arrays(part_path(folder, part.number), ArrayFile("part", figures, arrays))


def part_path(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.mrf"


def read_part(path: str | os.PathLike[str]) -> Part:
    """Read one part; its arrays stay on disk until they are accessed.

    Examples
    --------
    >>> import pathlib, tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(mapmrf.datasets.grid(4, 3), folder, 2)
    ...     part = mapmrf.distributed.read_part(pathlib.Path(folder, "part-00001.mrf"))
    >>> part.number, part.n_own, part.graph.n_vars
    (1, 6, 9)
    """
    path = Path(path)
    _, figures, arrays = read_arrays(path, "part")
    with damaged(path):
        if figures["version"] != VERSION:
            raise FormatError(f"a part of version {figures['version']}, expected {VERSION}")
        check_kinds(arrays)
        graph_arrays: dict[str, Any] = {name: arrays[name] for name in GRAPH_ARRAYS}
        rest: dict[str, Any] = {name: int(figures[name]) for name in COUNTS}
        rest |= {name: frozen(arrays[name]) for name in LIST_ARRAYS}
        constant = float.fromhex(figures["constant"])
        part = Part(graph=FactorGraph(**graph_arrays, weight=arrays.get("weight"), constant=constant), **rest)
        check_part(part)
    return part


class PartFolder:
    """A folder of parts with its manifest.

    Attributes
    ----------
    counts
        Sizes of the whole model.

    Examples
    --------
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     parts = mapmrf.distributed.partition(mapmrf.datasets.grid(4, 3), folder, 2)
    ...     parts.counts, [part.n_own for part in parts.read(range(2))]
    (ModelCounts(n_vars=12, n_factors=17, n_parts=2), [6, 6])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        path = self.folder / MANIFEST
        if not path.is_file():
            raise FormatError(f"{self.folder}: not a folder of parts: it has no {MANIFEST}")
        with damaged(path):
            data = json.loads(path.read_text(encoding="utf-8"))
            self.counts = ModelCounts(*(int(data[name]) for name in ModelCounts._fields))
            self.checksums = [int(crc) for crc in data["checksums"]]
            if min(self.counts) < 0 or len(self.checksums) != self.counts.n_parts:
                raise ValueError(f"{len(self.checksums)} checksums of {self.counts.n_parts} parts")

    def read(self, numbers: range) -> Iterator[Part]:
        """Read some parts, one after another."""
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
    with whole_file(path, keep=False) as file:
        file.write(json.dumps(data).encode())


def lean(values: Ints) -> Ints:
    """Integers in as few bytes as kernels support: 32 bits where they fit."""
    return short(np.asarray(values))


# -- Check the arrays of a part's file: kernels would read beyond the end of invalid ones -----------------------------


CHUNK = 1 << 18  # factors checked together: a part may be about as large as the memory


def check_kinds(arrays: Mapping[str, Any]) -> None:
    """Raise FormatError for an array that is missing, or not one-dimensional of the right type."""
    for name in (*GRAPH_ARRAYS, *LIST_ARRAYS, *(["weight"] if "weight" in arrays else [])):
        kind = "f" if name in ("theta_v", "theta_t", "weight") else "i"
        found = arrays.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind != kind or (kind == "f" and found.dtype.itemsize != 8):
            raise FormatError(f"damaged: no array {name!r} of the right kind")


def check_part(part: Part) -> None:
    graph = part.graph
    n_vars, n_factors, n_tables = graph.n_vars, graph.n_factors, graph.n_tables
    _need(0 <= part.number < part.n_parts, "its number")
    _need(0 <= part.n_own <= n_vars and 0 <= part.n_inside <= part.n_constrained <= n_factors, "its counts")
    _need(_within(graph.card, 1, 2**31) and int(graph.card.sum(dtype=np.int64)) == len(graph.theta_v), "card")
    _need(_offsets(graph.scope_ptr, n_factors, len(graph.scope)), "scope_ptr")
    _need(_within(graph.scope, 0, n_vars), "scope")
    _need(_offsets(graph.table_ptr, n_tables, len(graph.theta_t)) and _within(graph.table_of, 0, n_tables), "table_of")
    _need(all(_sizes_agree(part, begin) for begin in range(0, n_factors, CHUNK)), "the sizes of tables")
    for name in ("theta_v", "theta_t", "weight"):
        values = getattr(graph, name)
        _need(values is None or len(values) == 0 or (values.max() < np.inf and not np.isnan(values.min())), name)
    _need(graph.weight is None or len(graph.weight) == n_factors, "weight")
    _need(len(part.var) == len(part.state_at) == n_vars and _within(part.var, 0, 2**62), "var")
    _need(len(part.factor) == n_factors and _within(part.factor, 0, 2**62), "factor")
    _need(len(part.halo_part) == n_vars - part.n_own and _within(part.halo_part, 0, part.n_parts), "halo_part")
    _need(_within(part.neighbours, 0, part.n_parts) and bool(np.all(np.diff(part.neighbours) > 0)), "neighbours")
    _need(_offsets(part.send_ptr, len(part.neighbours), len(part.send)), "send_ptr")
    _need(_within(part.send, 0, part.n_own), "send")


def _need(right: bool, what: str) -> None:
    if not right:
        raise FormatError(f"damaged: {what}: found invalid numbers")


def _within(numbers: Ints, low: int, high: int) -> bool:
    return len(numbers) == 0 or (int(numbers.min()) >= low and int(numbers.max()) < high)


def _offsets(ptr: Ints, n_blocks: int, size: int) -> bool:
    if len(ptr) != n_blocks + 1 or n_blocks < 0:
        return False
    return int(ptr[0]) == 0 and int(ptr[-1]) == size and bool(np.all(ptr[1:] >= ptr[:-1]))


def _sizes_agree(part: Part, begin: int) -> bool:
    """Return whether the tables of some factors have as many entries as the variables have configurations."""
    graph = part.graph
    ptr = graph.scope_ptr[begin : begin + CHUNK + 1].astype(np.int64)
    if np.any(np.diff(ptr) < 2):
        return False
    table = graph.table_of[begin : begin + CHUNK]
    card = graph.card[graph.scope[ptr[0] : ptr[-1]]].astype(np.float64)
    with np.errstate(over="ignore"):
        expected = np.multiply.reduceat(card, ptr[:-1] - ptr[0])
    return bool(np.array_equal(expected, graph.table_ptr[table + 1].astype(np.float64) - graph.table_ptr[table]))


# -- Errors of ranks: an error on one of them ends all, with one line that names the rank -----------------------------


Value = TypeVar("Value")


class RankError(MapMRFError):
    """Something went wrong on one of the ranks; raised on all of them."""


def together(ranks: Ranks, action: Callable[[], Value]) -> Value:
    """Call a function on every rank; if it fails on one, raise the same RankError on all."""
    result: Value
    text = None
    try:
        result = action()
    except (OSError, MemoryError, MapMRFError, ValueError) as error:
        text = describe(error)
    for rank, found in enumerate(ranks.allgather(text)):
        if found is not None:
            raise RankError(found if ranks.size == 1 else f"rank {rank}: {found}")
    return result


def describe(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory"
    return " ".join(str(error).split()) or type(error).__name__


# -- The processes of a run: those of MPI, or this one alone ----------------------------------------------------------


LAUNCHED = ("PMI_SIZE", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Environment variables set by MPI launchers."""


class Ranks:
    """Communication between the processes of a run: here there is one, which never sends anything."""

    # Collective calls are made by all ranks in the same order.
    rank = 0
    size = 1

    def allgather(self, value: Value) -> list[Value]:
        """What every rank gave, in order."""
        return [value]

    def gather_sums(self, mine: Floats, everyones: Floats) -> Any:
        """Begin to gather as many numbers of every rank as `everyones` has rows for; `finish` ends it."""
        everyones[: len(mine)] = mine

    def send(self, data: Floats, rank: int) -> Any:
        """Begin to send; the data must not change until `finish`."""
        raise AssertionError("one process sends nothing")

    def receive(self, data: Floats, rank: int) -> Any:
        """Begin to receive."""
        raise AssertionError("one process receives nothing")

    def finish(self, requests: Sequence[Any]) -> None:
        """Wait for everything that was begun."""

    def abort(self, code: int) -> None:
        """End all ranks immediately; a single one is ended by the exception."""

    def leave(self) -> None:
        """Say that this process communicates no more, before a program ends."""


class MPIRanks(Ranks):
    """The ranks of an mpi4py communicator."""

    def __init__(self, comm: Any) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self.comm = comm.Dup()
        self.rank, self.size = int(comm.rank), int(comm.size)

    def allgather(self, value: Value) -> list[Value]:
        request = self.comm.Ibarrier()
        self.finish([request])  # avoid busy waiting for the last one
        return list(self.comm.allgather(value))

    def gather_sums(self, mine: Floats, everyones: Floats) -> Any:
        return self.comm.Iallgather(mine, everyones)

    def send(self, data: Floats, rank: int) -> Any:
        return self.comm.Isend(data, dest=rank)

    def receive(self, data: Floats, rank: int) -> Any:
        return self.comm.Irecv(data, source=rank)

    def finish(self, requests: Sequence[Any]) -> None:
        """Wait for everything that was begun: busily at first, then leaving the core to others."""
        pending = [request for request in requests if request is not None]
        for _ in range(200):
            if self._mpi.Request.Testall(pending):
                return
        while not self._mpi.Request.Testall(pending):
            time.sleep(2e-5)

    def abort(self, code: int) -> None:
        self.comm.Abort(code)

    def leave(self) -> None:
        """Finalise MPI: a rank that ends without counts as crashed, and its launcher kills the others."""
        self._mpi.Finalize()
        interrupts.process.run_exit_handlers()


def find_ranks(comm: Any = None) -> Ranks:
    """The ranks of a communicator; by default those of the MPI launcher of this process, or this process alone."""
    if isinstance(comm, Ranks):
        return comm
    if comm is not None:
        return MPIRanks(comm)
    if not any(name in os.environ for name in LAUNCHED):
        return Ranks()
    try:
        from mpi4py import MPI
    except ImportError:
        raise OptionError(
            "started by an MPI launcher, but mpi4py is missing: pip install 'mapmrf[mpi]' ('.[mpi]' in a checkout)"
        ) from None
    return MPIRanks(MPI.COMM_WORLD)


def parts_of(rank: int, size: int, n_parts: int) -> range:
    """The parts of a rank: a contiguous range, of nearly equal length on all ranks."""
    if size > n_parts:
        raise OptionError(f"{size} ranks but {n_parts} parts: expected at least one part for every rank")
    return range(n_parts * rank // size, n_parts * (rank + 1) // size)


def rank_of(n_parts: int, size: int) -> list[int]:
    return [rank for rank in range(size) for _ in parts_of(rank, size, n_parts)]
