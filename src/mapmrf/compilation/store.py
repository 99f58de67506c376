"""The user's cache of compiled kernels: a folder per CPU, with a file per kernel and signature."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from mapmrf.compilation.archive import Key, digest, write_whole
from mapmrf.compilation.sources import kernel_stamps, stamp, stamp_of

KEEP_DAYS = 30
"""Code that has not been used for this many days is removed."""


class Store:
    """A folder of compiled kernels.

    Code is found by kernel, signature and a stamp of the kernel's sources, so that stale code is never loaded.

    Attributes
    ----------
    folder
        Folder of the files. It need not exist or be writable; nothing is stored then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: Key, made_from: str) -> bytes | None:
        """Return the code of a kernel, or None if there is none or it is damaged."""
        try:
            with open(self._path(key, made_from), "rb") as file:
                if not _is_trusted(file.fileno()):
                    return None
                data = file.read()
        except OSError:
            return None
        head, code = _unpacked(data)
        return code if head == _head(key, made_from) else None

    def put(self, key: Key, made_from: str, code: bytes) -> None:
        """Store the code of a kernel, if the folder is writable."""
        body = _head(key, made_from) + b"\n" + code
        with contextlib.suppress(OSError):
            first = not self.folder.exists()
            write_whole(self._path(key, made_from), digest(body).encode() + b"\n" + body)
            if first:
                self._remove_old()

    def entries(self) -> Iterator[tuple[Key, bytes]]:
        """Return all entries for kernels of this package that are neither damaged nor stale."""
        for path in sorted(self.folder.glob("*.kernel")):
            head, code = _unpacked(path.read_bytes())
            if head:
                name, signature, made_from = json.loads(head)
                if made_from == own_stamps().get(name):
                    yield Key(name, signature), code

    def _path(self, key: Key, made_from: str) -> Path:
        name = hashlib.sha256(_head(key, made_from)).hexdigest()[:24]
        return self.folder / f"{key.name.rpartition('.')[2]}-{name}.kernel"

    def _remove_old(self) -> None:
        """Remove code that has not been used for long, for all CPUs."""
        oldest = time.time() - KEEP_DAYS * 86400
        for path in self.folder.parent.glob("*/*.kernel"):
            with contextlib.suppress(OSError):
                if max(path.stat().st_atime, path.stat().st_mtime) < oldest:
                    path.unlink()


def _is_trusted(file: int) -> bool:
    """Return whether only this user and root could have put code into a file."""
    if not hasattr(os, "getuid"):
        return True
    found = os.fstat(file)
    return found.st_uid in (os.getuid(), 0) and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _head(key: Key, made_from: str) -> bytes:
    """Return the line that identifies an entry: kernel, signature, and the stamp of the sources."""
    return json.dumps([*key, made_from]).encode()


def _unpacked(data: bytes) -> tuple[bytes, bytes]:
    """Return the first line of an entry and its code; both empty if it is damaged."""
    check, _, body = data.partition(b"\n")
    head, _, code = body.partition(b"\n")
    return (head, code) if check == digest(body).encode() else (b"", b"")


@cache
def user_store() -> Store:
    """Return the store of this user and CPU."""
    return Store(cache_folder() / target())


def cache_folder() -> Path:
    """Return the folder of cached kernels: in NUMBA_CACHE_DIR if that is set, else in the user's cache folder."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"], "mapmrf")
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "mapmrf", "kernels")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mapmrf" / "kernels"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mapmrf", "kernels")


@cache
def own_stamps() -> dict[str, str]:
    """Return the stamps of all kernels of the package, which are kept for as long as no file of it changes."""
    store, key = user_store(), Key("stamps", "")
    kept = store.get(key, stamp())
    if kept is None:
        kept = json.dumps(kernel_stamps()).encode()
        store.put(key, stamp(), kept)
    found: dict[str, str] = json.loads(kept)
    return found


def current_stamp(name: str, file: Path) -> str:
    """Return the stamp of a kernel, in this package or not; empty if its file cannot be read."""
    return own_stamps().get(name) or stamp_of(name, file)


SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DEBUG_NRT")
"""numba settings that affect the generated code."""


def changed_settings() -> list[str]:
    """Return the numba settings that differ from the defaults and affect the generated code."""
    from mapmrf.compilation.toolchain import config

    usual = {"OPT": 3, "LOOP_VECTORIZE": 1}
    return [name for name in SETTINGS if int(getattr(config, name, 0) or 0) != usual.get(name, 0)]


@cache
def target() -> str:
    """Return a name for the CPU that numba compiles for, and for its settings."""
    from mapmrf.compilation.toolchain import config

    triple, name, features = _cpu()
    words = [triple, name, features, *(f"{setting}={getattr(config, setting, None)}" for setting in SETTINGS)]
    return f"{name}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:12]}"


def _cpu() -> tuple[str, str, str]:
    """Return triple, name and features of the CPU that numba compiles for."""
    from mapmrf.compilation.toolchain import registry

    found: tuple[str, str, str] = registry.cpu_target.target_context.codegen().magic_tuple()
    return found
