"""Records of finished runs, one JSON object per line, each written in one piece and flushed to disk immediately."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType, UnionType
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.errors import FormatError, MapMRFError
from mapmrf.run.result import TracePoint, numbers, plain

Record = dict[str, Any]  # a finished run; `docs/benchmark.md` lists the fields
FAILURES = ("error", "memory", "killed", "crash")  # outcomes of runs that failed
BEGINNING = b'{"key"'
_TEXTS = {
    "key", "set", "index", "model", "run", "method", "source", "outcome", "message", "status", "kind", "kind_text",
    "labels",
}  # fmt: skip

TRACE_COLUMNS = ("time", "iterations", "value", "bound", "relaxed_value", "primal", "sphere", "rho", "phase")
MAX_LABELS = 100_000  # number of variables up to which a record keeps the labelling


class RecordFile:
    """A file of records, open for appending by one process at a time."""

    # A process that is killed while writing leaves an incomplete last line, which the next one to open the file cuts
    # off. Every complete line is a finished record. With `retry`, runs that failed count as not done.

    def __init__(self, path: str | Path, *, retry: bool = False) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            self._lock()
            found = read_records(self.path)  # before anything is truncated: it may be some other file
            data = self.path.read_bytes()
            complete = data.rfind(b"\n") + 1
            torn = data[complete:]
            if torn and not (torn.startswith(BEGINNING) or BEGINNING.startswith(torn)):
                raise FormatError(f"{self.path}: found {torn[:40]!r} at the end, expected records of `mapmrf bench`")
            if torn:
                os.ftruncate(self._file, complete)
                os.fsync(self._file)
        except BaseException:
            os.close(self._file)
            raise
        self.keys = {record["key"] for record in found if not (retry and record["outcome"] in FAILURES)}

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:  # no such locks on this system: the user must avoid two benchmarks on one file
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise MapMRFError(f"{self.path}: another benchmark is writing to this file") from None

    def append(self, record: Record) -> None:
        """Write a record and wait until it is on disk; raise if there is already one with the same key."""
        if record["key"] in self.keys:
            raise MapMRFError(f"{self.path}: this run already has a record")
        line = memoryview((json.dumps(plain(record), default=str) + "\n").encode("utf-8"))
        try:
            while line:
                line = line[os.write(self._file, line) :]
            os.fsync(self._file)
        except OSError as error:
            raise OSError(error.errno, error.strerror, os.fspath(self.path)) from None
        self.keys.add(record["key"])

    def close(self) -> None:
        os.close(self._file)

    def __enter__(self) -> RecordFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(*paths: str | Path) -> list[Record]:
    r"""Read the records of some files, the last one of each run; an incomplete last line is skipped.

    Raises
    ------
    FormatError
        If a complete line is not a record.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> run = {"key": "k", "set": "mine", "model": "a", "run": "icm", "method": "icm", "outcome": "error"}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "records.jsonl")
    ...     _ = path.write_text(json.dumps(run | {"message": "no memory", "time_limit": 5}) + "\n")
    ...     [record["message"] for record in read_records(path)]
    ['no memory']
    """
    found = {record["key"]: record for path in paths for record in _lines(Path(path))}
    return list(found.values())


def _lines(path: Path) -> Iterator[Record]:
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict) or not _is_record(record):
            raise FormatError(f"{path}: line {number}: found {line[:40]!r}, expected a record of `mapmrf bench`")
        # A model may be called inf: only figures are converted back.
        yield {key: value if key in _TEXTS else numbers(value) for key, value in record.items()}


def _is_record(record: Record) -> bool:
    """Return whether the fields that tables and charts need are present, and of the right type."""
    needed: dict[str, type | UnionType] = dict.fromkeys(("key", "set", "model", "run", "method", "outcome"), str)
    needed |= {"message": str, "time_limit": int | float}
    if record.get("outcome") == "done":
        needed |= {"value": int | float | str, "status": str, "runtime": int | float, "trace": list}
    right = all(isinstance(record.get(name), kind) for name, kind in needed.items())
    return right and isinstance(numbers(record.get("value", 0.0)), int | float)


def thin(trace: Iterable[TracePoint], most: int = 120) -> list[list[Any]]:
    """A trace as at most `most` rows of `TRACE_COLUMNS`: improvements, starts of phases, and some others."""
    points = list(trace)
    if len(points) > most:
        begun = _spread([b for a, b in pairwise(points) if b.phase != a.phase], most // 4)
        better = _spread([b for a, b in pairwise(points) if b.value > a.value or b.bound != a.bound], most // 2)
        others = _spread(points[1:-1], most - len(begun) - len(better) - 2)
        kept = {id(point) for point in (points[0], *begun, *better, *others, points[-1])}
        points = [point for point in points if id(point) in kept]
    return [[point.figure(column) for column in TRACE_COLUMNS] for point in points]


def _spread(points: list[TracePoint], most: int) -> list[TracePoint]:
    """Some of the points, denser at the beginning, where most happens."""
    if len(points) <= most:
        return points
    places = np.unique(np.geomspace(1, len(points), most).astype(int) - 1)
    return [points[place] for place in places]


def pack_labels(labels: Ints) -> str | None:
    """Labels as a short text, or None for a huge model."""
    if len(labels) > MAX_LABELS:
        return None
    small = labels.astype("<u1" if labels.max(initial=0) < 256 else "<u4")
    return f"{small.dtype.str[1:]}:" + base64.b64encode(zlib.compress(small.tobytes(), 9)).decode("ascii")


def unpack_labels(text: str) -> Ints:
    """Undo `pack_labels`.

    Examples
    --------
    >>> import numpy as np
    >>> unpack_labels(pack_labels(np.array([2, 0, 1]))).tolist()
    [2, 0, 1]
    """
    with contextlib.suppress(ValueError, KeyError, TypeError, zlib.error):
        kind, _, packed = text.partition(":")
        dtype = np.dtype({"u1": "<u1", "u4": "<u4"}[kind])
        # A few bytes may expand to very many: unpack no more than a record can have.
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(packed), MAX_LABELS * dtype.itemsize + 1)
        if unpacker.eof and len(data) <= MAX_LABELS * dtype.itemsize:
            return np.frombuffer(data, dtype=dtype).astype(np.int64)
    raise FormatError(f"found {text[:20]!r}, expected packed labels")
