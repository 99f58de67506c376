"""Saved state: files of arrays, and checkpoints of a run from which it resumes."""

from __future__ import annotations

import json
import math
import os
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from mapmrf.arrays import Ints, compact
from mapmrf.errors import FormatError, MapMRFError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.run.atomic_files import whole_file
from mapmrf.run.method import Array, Snapshot, Start
from mapmrf.run.result import TracePoint, checked_numbers

if TYPE_CHECKING:
    from mapmrf.run.loop import Loop

# -- Files of named arrays: a header that describes them, a checksum for each, written atomically ---------------------
# The file begins with eight bytes that name the format, the length of the header and its checksum. The header is
# JSON: the kind of file, figures, and for every array its name, type, shape, offset and CRC-32. Arrays start at
# multiples of 64 bytes, so that they can be mapped into memory.

MAGIC = b"mapmrf-1"

PREFIX = struct.Struct("<8sQI")

ALIGNMENT = 64

TYPES = {np.dtype(name).str: name for name in ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8")}
"""Types that arrays may have in a file: numbers only."""


class ArrayFile(NamedTuple):
    """The content of a file: its kind, figures by name, and arrays by name."""

    kind: str
    figures: dict[str, Any]
    arrays: dict[str, Array]


def write_arrays(path: Path, content: ArrayFile, *, keep: bool | None = False) -> int:
    """Write a file completely, or leave the old one untouched; return the checksum of its header."""
    # The file is complete and on disk before it gets its name; `keep` as in `mapmrf.run.atomic_files.whole_file`.
    arrays = {name: np.ascontiguousarray(array) for name, array in content.arrays.items()}
    head = _header(content, arrays)
    with whole_file(path, keep=keep) as file:
        file.write(PREFIX.pack(MAGIC, len(head), zlib.crc32(head)))
        file.write(head)
        for array in arrays.values():
            file.write(b"\0" * (-file.tell() % ALIGNMENT))
            file.write(_bytes(array))
    return zlib.crc32(head)


def _header(content: ArrayFile, arrays: Mapping[str, Array]) -> bytes:
    """The header; offsets count from its end, rounded up."""
    entries, at = [], 0
    for name, array in arrays.items():
        at += -at % ALIGNMENT
        if array.dtype.fields is not None:
            raise TypeError(f"{name}: arrays of records are not written")
        crc = zlib.crc32(_bytes(array))
        entries.append({"name": name, "type": array.dtype.str, "shape": array.shape, "at": at, "crc": crc})
        at += array.nbytes
    text = json.dumps({"kind": content.kind, "figures": content.figures, "arrays": entries})
    return text.encode() + b" " * (-(PREFIX.size + len(text.encode())) % ALIGNMENT)


def _bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


Place = tuple[str, np.dtype[Any], tuple[int, ...], int, int]
"""Name, type and shape of an array in a file, its offset and its checksum."""


def read_arrays(path: Path, kind: str, *, mapped: bool = True) -> ArrayFile:
    """Read a file and check all of it; `mapped` leaves the arrays on disk, read-only, until they are accessed."""
    try:
        with path.open("rb") as file:
            head, begin = _read_header(file, path)
            if head.get("kind") != kind:
                found = f"found a file of kind {head.get('kind')!r}"
                raise FormatError(f"{path}: {found}, expected a file of kind {kind!r}")
            figures, places = head.get("figures"), _places(head, path)
            if not isinstance(figures, dict):
                raise FormatError(f"{path}: damaged: the header has no figures")
            arrays = {place[0]: _array(file, path, begin, place, mapped) for place in places}
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from None
    return ArrayFile(kind, figures, arrays)


def _places(head: Mapping[str, Any], path: Path) -> list[Place]:
    places = []
    try:
        for entry in head["arrays"]:
            numbers = [*entry["shape"], entry["at"], entry["crc"]]
            dtype = np.dtype(TYPES[entry["type"]])
            if not all(isinstance(n, int) and 0 <= n < 2**62 for n in numbers) or len(entry["shape"]) > 8:
                raise ValueError
            places.append((str(entry["name"]), dtype, tuple(entry["shape"]), entry["at"], entry["crc"]))
    except (KeyError, TypeError, ValueError, SyntaxError, OverflowError, AttributeError):
        raise FormatError(f"{path}: damaged: the header does not describe its arrays") from None
    if len({place[0] for place in places}) < len(places):
        raise FormatError(f"{path}: damaged: the header describes an array twice")
    return places


def checksum_of(path: Path) -> int:
    """Checksum of a file's header, which contains those of its arrays; 0 if it is not such a file."""
    with path.open("rb") as file:
        prefix = file.read(PREFIX.size)
    return int(PREFIX.unpack(prefix)[2]) if len(prefix) == PREFIX.size else 0


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    prefix = file.read(PREFIX.size)
    if len(prefix) < PREFIX.size or prefix[:8] != MAGIC:
        raise FormatError(f"{path}: not a file of arrays written by mapmrf")
    _, length, crc = PREFIX.unpack(prefix)
    text = file.read(length) if length <= path.stat().st_size else b""
    if len(text) < length or zlib.crc32(text) != crc:
        raise FormatError(f"{path}: damaged: wrong checksum of the header")
    try:
        head = json.loads(text)
    except (ValueError, RecursionError):
        head = None
    if not isinstance(head, dict):
        raise FormatError(f"{path}: damaged: the header is not a JSON object")
    return head, PREFIX.size + length


def _array(file: BinaryIO, path: Path, begin: int, place: Place, mapped: bool) -> Array:
    name, dtype, shape, at, expected = place
    file.seek(begin + at)
    left, crc = math.prod(shape) * dtype.itemsize, 0
    while left:
        data = file.read(min(1 << 24, left))
        if not data:
            raise FormatError(f"{path}: damaged: it ends within the array {name!r}")
        crc, left = zlib.crc32(data, crc), left - len(data)
    if crc != expected:
        raise FormatError(f"{path}: damaged: wrong checksum of the array {name!r}")
    if math.prod(shape) == 0:
        return np.zeros(shape, dtype)
    if mapped:
        return np.asarray(np.memmap(path, dtype, "r", begin + at, shape))
    file.seek(begin + at)
    return np.fromfile(file, dtype, math.prod(shape)).reshape(shape)


# -- Checkpoints of a run in one process: one file, written atomically, from which the run can be resumed -------------

FILE = "run.mrf"


@contextmanager
def damaged(path: Path) -> Iterator[None]:
    """Turn errors caused by missing or wrong entries of a checkpoint into one that names the file."""
    try:
        yield
    except FormatError as error:
        raise error if str(path) in str(error) else FormatError(f"{path}: {error}") from None
    except MapMRFError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise FormatError(f"{path}: damaged: {type(error).__name__}: {' '.join(str(error).split())}") from None


def check_options(place: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    wanted = json.loads(json.dumps(wanted))  # with lists in place of tuples
    for name, value in wanted.items():
        if name != "options" and found.get(name) != value:
            raise OptionError(f"{place}: the checkpoint is from another run: its {name} differs")
    options = found["options"]
    for name, value in wanted["options"].items():
        if options.get(name) != value:
            raise OptionError(f"{place}: the checkpoint was written with {name}={options.get(name)}, found {value}")


def origin_of(method: Any, seed: int, threads: int, graph: FactorGraph) -> dict[str, Any]:
    """Identity of a run that a checkpoint must match: method and options, seed, threads and model."""
    plain = (bool, int, float, str, type(None))
    options = {key: value for key, value in asdict(method).items() if isinstance(value, plain)}
    crc = 0
    for array in (graph.card, graph.theta_v, graph.scope, graph.table_of, graph.theta_t, graph.weight):
        if array is not None:
            crc = zlib.crc32(np.ascontiguousarray(array).view(np.uint8).data, crc)
    return {"method": method.name, "options": options, "seed": seed, "threads": threads, "model": crc}


def loop_figures(loop: Loop) -> dict[str, Any]:
    """What a checkpoint has of the loop, besides the labels."""
    figures = {name: getattr(loop, name) for name in ("iterations", "end", "n_steps")}
    trace = [asdict(point) for point in loop.trace]
    return {**figures, "bound": loop.incumbent.bound, "spent": loop.elapsed, "trace": trace}


def checked_figures(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What `loop_figures` has written, with all of its numbers; raises an error that `damaged` handles if some lack."""
    kinds = {"iterations": int, "end": float, "n_steps": int, "bound": float, "spent": float}
    trace = [checked_numbers(TracePoint(**point)) for point in figures["trace"]]
    return {**{name: kind(figures[name]) for name, kind in kinds.items()}, "trace": trace}


def legal(labels: Array, card: Ints) -> Ints:
    if labels.shape != card.shape or np.any((labels < 0) | (labels >= card)):
        raise ValueError("labels that do not fit this model")
    return labels.astype(np.int64)


class SavedRun:
    """A run that is saved at intervals in one file, and may resume one that was cut short."""

    name = FILE

    def __init__(
        self, folder: str | os.PathLike[str], every: float, origin: dict[str, Any], resume: bool = False
    ) -> None:
        if not every >= 0:
            raise OptionError(f"every is {every}, expected a number of seconds of at least 0")
        self.path, self.every, self.origin = Path(folder, self.name), every, origin
        self.written = time.perf_counter()
        self.foreign = True  # whether the file there is of another run
        self.found: ArrayFile | None = None
        if resume and self.path.exists():
            self.found = read_arrays(self.path, "run", mapped=False)
            with damaged(self.path):
                check_options(self.path, self.found.figures["origin"], self.origin)
            self.foreign = False

    def checked(self) -> AbstractContextManager[None]:
        """The context in which a method starts from what was saved."""
        return damaged(self.path)

    @property
    def due(self) -> bool:
        return time.perf_counter() >= self.written + self.every

    def write(self, figures: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Replace the last checkpoint; one of an earlier run that was not resumed is kept as ``run.mrf~``."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = ArrayFile("run", {**figures, "origin": self.origin}, arrays)
        write_arrays(self.path, content, keep=self.foreign)
        self.foreign = False
        self.written = time.perf_counter()

    def begin(self, loop: Loop, start: Start) -> Start:
        """Resume what was saved; return the start of the method, with its own part if it saved one."""
        if self.found is None:
            return start
        figures, arrays = self.found.figures, self.found.arrays
        with damaged(self.path):
            labels: Ints = legal(arrays["incumbent"], loop.incumbent.graph.card)
            found, mine = checked_figures(figures["loop"]), figures.get("method")
        loop.resume(found, labels, continued=mine is not None)
        if mine is None:
            return replace(start, labels=labels, mu_v=None, dual=None)
        own = {name.removeprefix("method."): array for name, array in arrays.items() if name.startswith("method.")}
        return replace(start, saved=Snapshot(mine, own))

    def save(self, loop: Loop, snapshot: Snapshot | None) -> None:
        arrays: dict[str, Any] = {"incumbent": compact(loop.incumbent.labels)}
        if snapshot is not None:
            arrays |= {f"method.{name}": array for name, array in snapshot.arrays.items()}
        self.write({"loop": loop_figures(loop), "method": None if snapshot is None else snapshot.figures}, arrays)
