"""Files of named arrays: a header that describes them, a checksum for each, written atomically.

The file begins with eight bytes that name the format, the length of the header and its checksum. The header is JSON:
what the file is, figures, and for every array its name, type, shape, place and CRC-32. Arrays start at multiples of 64
bytes, so that they can be mapped into memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.errors import FormatError

MAGIC = b"mapmrf-1"
PREFIX = struct.Struct("<8sQI")
ALIGNMENT = 64
PIECE = 1 << 24
"""Bytes that are read and checked together."""

Array = NDArray[Any]


class ArrayFile(NamedTuple):
    """What a file holds: its kind, figures by name, and arrays by name."""

    kind: str
    figures: dict[str, Any]
    arrays: dict[str, Array]


def write_arrays(path: Path, content: ArrayFile) -> int:
    """Write a file, or leave what was there as it is; returns the checksum of its header.

    The file is complete and on the disk before it takes its name.
    """
    arrays = {name: np.ascontiguousarray(array) for name, array in content.arrays.items()}
    head = _header(content, arrays)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(PREFIX.pack(MAGIC, len(head), zlib.crc32(head)))
            file.write(head)
            for array in arrays.values():
                file.write(b"\0" * (-file.tell() % ALIGNMENT))
                file.write(_bytes(array))
            file.flush()
            os.fsync(file.fileno())
        put_in_place(temporary, path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    return zlib.crc32(head)


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete file its name, and bring the folder to the disk, too, where the system can do that."""
    os.replace(temporary, path)
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _header(content: ArrayFile, arrays: Mapping[str, Array]) -> bytes:
    """The header; places count from the end of it, rounded up."""
    entries, at = [], 0
    for name, array in arrays.items():
        at += -at % ALIGNMENT
        entry = {"name": name, "type": array.dtype.str, "shape": array.shape, "at": at, "crc": _crc(array)}
        if array.dtype.fields is not None:
            raise TypeError(f"{name}: arrays of records are not written")
        entries.append(entry)
        at += array.nbytes
    text = json.dumps({"kind": content.kind, "figures": content.figures, "arrays": entries})
    return text.encode() + b" " * (-(PREFIX.size + len(text.encode())) % ALIGNMENT)


def _bytes(array: Array) -> memoryview:
    return memoryview(array.reshape(-1).view(np.uint8).data)


def _crc(array: Array) -> int:
    data, crc = _bytes(array), 0
    for begin in range(0, len(data), PIECE):
        crc = zlib.crc32(data[begin : begin + PIECE], crc)
    return crc


def read_arrays(path: Path, kind: str, *, mapped: bool = True) -> ArrayFile:
    """Read a file and check it whole; `mapped` leaves the arrays on the disk, read-only, until they are looked at."""
    with path.open("rb") as file:
        head, begin = _read_header(file, path)
        if head.get("kind") != kind:
            raise FormatError(f"{path}: found {_article(head.get('kind'))}, expected {_article(kind)}")
        for entry in head["arrays"]:
            _check(file, begin, entry, path)
        arrays = {entry["name"]: _array(file, path, begin, entry, mapped) for entry in head["arrays"]}
    return ArrayFile(kind, head["figures"], arrays)


def checksum_of(path: Path) -> int:
    """The checksum of a file's header, which has those of its arrays: 0 if it is no such file."""
    with path.open("rb") as file:
        prefix = file.read(PREFIX.size)
    return int(PREFIX.unpack(prefix)[2]) if len(prefix) == PREFIX.size else 0


def _article(kind: object) -> str:
    return f"a file of kind {kind!r}"


def _read_header(file: BinaryIO, path: Path) -> tuple[dict[str, Any], int]:
    prefix = file.read(PREFIX.size)
    if len(prefix) < PREFIX.size or prefix[:8] != MAGIC:
        raise FormatError(f"{path}: not a file of arrays written by mapmrf")
    _, length, crc = PREFIX.unpack(prefix)
    text = file.read(length)
    if len(text) < length or zlib.crc32(text) != crc:
        raise FormatError(f"{path}: damaged: the header does not have its checksum")
    head: dict[str, Any] = json.loads(text)
    return head, PREFIX.size + length


def _size(entry: Mapping[str, Any]) -> int:
    """Bytes of an array."""
    return int(math.prod(entry["shape"])) * int(np.dtype(entry["type"]).itemsize)


def _check(file: BinaryIO, begin: int, entry: Mapping[str, Any], path: Path) -> None:
    """Raise FormatError unless an array has its checksum."""
    file.seek(begin + entry["at"])
    left, crc = _size(entry), 0
    while left:
        data = file.read(min(PIECE, left))
        if not data:
            raise FormatError(f"{path}: damaged: it ends within the array {entry['name']!r}")
        crc, left = zlib.crc32(data, crc), left - len(data)
    if crc != entry["crc"]:
        raise FormatError(f"{path}: damaged: the array {entry['name']!r} does not have its checksum")


def _array(file: BinaryIO, path: Path, begin: int, entry: Mapping[str, Any], mapped: bool) -> Array:
    dtype, shape, at = np.dtype(entry["type"]), tuple(entry["shape"]), begin + entry["at"]
    if _size(entry) == 0:
        return np.zeros(shape, dtype)
    if mapped:
        return np.asarray(np.memmap(path, dtype, "r", at, shape))
    file.seek(at)
    return np.fromfile(file, dtype, int(np.prod(shape))).reshape(shape)
