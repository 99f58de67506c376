"""Archives of compiled kernels: machine code in one file, indexed by kernel and signature.

An archive is only used as a whole: its stamp covers the sources of all kernels and the versions of Python, numba and
llvmlite, so that no entry can be stale, and it names the CPU it was compiled for. Entries are pickles, so archives are
loaded only from the package's own folder.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import tempfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from mapmrf.compilation.sources import stamp

MAGIC = b"mapmrf kernels 1\n"
"""First bytes of an archive; the length of the index follows, then the index as JSON, then the entries."""


class Key(NamedTuple):
    """Identifies a piece of machine code: a kernel's dotted name, and the types of its arguments as text."""

    name: str
    signature: str


class ArchiveError(Exception):
    """A file is not an archive, or is damaged."""


class Archive:
    """An archive opened for reading: its `stamp` at the time of writing, and LLVM's name of the `cpu` it is for."""

    def __init__(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                head = file.read(len(MAGIC) + 8)
                if head[: len(MAGIC)] != MAGIC or len(head) < len(MAGIC) + 8:
                    raise ArchiveError(f"{path}: not an archive of kernels")
                (size,) = struct.unpack("<Q", head[len(MAGIC) :])
                index = json.loads(file.read(size))
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.path, self.stamp, self.cpu = path, str(index["stamp"]), str(index["cpu"])
            self._base = len(MAGIC) + 8 + size
            self._places: dict[Key, tuple[int, int, str]] = {  # position, size and checksum of the entries
                Key(name, text): (at, size, checksum) for name, text, at, size, checksum in index["entries"]
            }
        except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ArchiveError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: Key) -> bytes | None:
        """Return the entry of a kernel, or None if there is none or it is damaged."""
        if key not in self._places:
            return None
        at, size, checksum = self._places[key]
        packed = self._data[self._base + at : self._base + at + size]
        return zlib.decompress(packed) if digest(packed) == checksum else None


def write_archive(path: Path, cpu: str, entries: Iterable[tuple[Key, bytes]]) -> int:
    """Write an archive for the current sources, atomically; return the number of entries."""
    places: list[list[object]] = []
    blocks: list[bytes] = []
    at = 0
    for (name, signature), data in sorted(entries):
        packed = zlib.compress(data, 9)
        places.append([name, signature, at, len(packed), digest(packed)])
        blocks.append(packed)
        at += len(packed)
    index = json.dumps({"stamp": stamp(), "cpu": cpu, "entries": places}).encode()
    write_atomically(path, b"".join([MAGIC, struct.pack("<Q", len(index)), index, *blocks]))
    return len(places)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically: other processes see it complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
