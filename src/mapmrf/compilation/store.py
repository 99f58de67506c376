"""The user's cache of compiled kernels: a folder per CPU, with a file per kernel and signature."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import mmap
import os
import platform
import re
import stat
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1]

KEEP_DAYS = 30  # code that has not been used for this many days is removed


class Store:
    """A folder of compiled kernels."""

    # Code is found by kernel, signature and a stamp of the kernel's sources, so that stale code is never loaded. The
    # folder need not exist or be writable; nothing is stored then.

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, key: Key, made_from: str) -> bytes | None:
        try:
            with open(self._path(key, made_from), "rb") as file:
                if hasattr(os, "getuid"):  # only this user and root could have put code into it
                    found = os.fstat(file.fileno())
                    if found.st_uid not in (os.getuid(), 0) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                        return None
                data = file.read()
        except OSError:
            return None
        head, code = _unpacked(data)
        return code if head == _head(key, made_from) else None

    def put(self, key: Key, made_from: str, code: bytes) -> None:
        body = _head(key, made_from) + b"\n" + code
        with contextlib.suppress(OSError):
            first = not self.folder.exists()
            write_atomically(self._path(key, made_from), digest(body).encode() + b"\n" + body)
            if first:
                # Remove code that has not been used for long, for all CPUs.
                oldest = time.time() - KEEP_DAYS * 86400
                for path in self.folder.parent.glob("*/*.kernel"):
                    with contextlib.suppress(OSError):
                        if max(path.stat().st_atime, path.stat().st_mtime) < oldest:
                            path.unlink()

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
    return Store(cache_folder() / target())


def cache_folder() -> Path:
    """Return the folder of cached kernels: in NUMBA_CACHE_DIR if that is set, else in the user's cache folder."""
    if os.environ.get("NUMBA_CACHE_DIR"):
        return Path(os.environ["NUMBA_CACHE_DIR"], "mapmrf")
    return user_folder() / "kernels"


def user_folder() -> Path:
    """Return our folder where the platform keeps the user's caches."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local", "mapmrf")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "mapmrf"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "mapmrf")


@cache
def own_stamps() -> dict[str, str]:
    """Return the stamps of all kernels of the package, which are kept for as long as no file of it changes."""
    found = _kept_stamps()
    if not found:
        found = kernel_stamps()
        user_store().put(Key("stamps", ""), stamp(), json.dumps(found).encode())
    return found


@cache
def _kept_stamps() -> dict[str, str]:
    found: dict[str, str] = json.loads(user_store().get(Key("stamps", ""), stamp()) or b"{}")
    return found


def current_stamp(name: str, file: Path) -> str:
    """Return the stamp of a kernel, in this package or not; empty if its file cannot be read."""
    return _kept_stamps().get(name) or stamp_of(name, file)


SETTINGS = ("OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "BOUNDSCHECK", "DEBUGINFO_DEFAULT", "DEBUG_NRT")
"""numba settings that affect the generated code."""


def changed_settings() -> list[str]:
    """Return the numba settings that differ from the defaults and affect the generated code."""
    from mapmrf.compilation.jit import config

    usual = {"OPT": 3, "LOOP_VECTORIZE": 1}
    return [name for name in SETTINGS if int(getattr(config, name, 0) or 0) != usual.get(name, 0)]


@cache
def target() -> str:
    """Return a name for the CPU that numba compiles for, and for its settings."""
    from mapmrf.compilation.jit import config, registry

    triple, name, features = registry.cpu_target.target_context.codegen().magic_tuple()
    words = [triple, name, features, *(f"{setting}={getattr(config, setting, None)}" for setting in SETTINGS)]
    return f"{name}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:12]}"


# -- The sources of machine code on this machine: the archive shipped with the package, and the user's cache ----------


SHIPPED = PACKAGE / "compiled" / "kernels.bin"  # the archive shipped in the wheel

NATIVE = "native"
"""File in the user's cache that holds the stamp of the kernels if all of them were compiled for this CPU."""


class Baseline(NamedTuple):
    """A CPU for which code is shipped: its name in LLVM, and the features that a machine needs to run it."""

    cpu: str
    features: tuple[str, ...] = ()


_V3 = (
    "avx", "avx2", "bmi", "bmi2", "cx16", "f16c", "fma", "fxsr", "lzcnt", "mmx", "movbe", "popcnt", "sahf",
    "sse", "sse2", "sse3", "sse4.1", "sse4.2", "ssse3", "xsave",
)  # fmt: skip

BASELINES = {
    "x86_64": Baseline("x86-64-v3", _V3),
    "amd64": Baseline("x86-64-v3", _V3),
    "aarch64": Baseline("generic"),
    "arm64": Baseline("generic"),
}
"""Baselines by machine architecture."""


class Origin(NamedTuple):
    """A source of code; `code` is None if it cannot be used, and `reason` says why, or describes it."""

    what: str
    code: Archive | Store | None
    reason: str


def baseline() -> Baseline | None:
    return BASELINES.get(platform.machine().lower())


@cache
def origins() -> tuple[Origin, ...]:
    """Return the sources of code in the order in which they are tried."""
    shipped, store, native = _shipped(), user_store(), is_native()
    what = "compiled for this CPU" if native else "compiled on this machine"
    own = Origin("cache", store, f"{what}, in {store.folder}")
    return (own, shipped) if native else (shipped, own)


def is_native() -> bool:
    """Return whether all kernels have been compiled for this CPU."""
    try:
        return (user_store().folder / NATIVE).read_text() == stamp()
    except OSError:
        return False


def mark_native() -> None:
    write_atomically(user_store().folder / NATIVE, stamp().encode())
    origins.cache_clear()


def _shipped() -> Origin:
    what = "shipped"
    if os.environ.get("MAPMRF_KERNELS") in ("own", "compile"):
        return Origin(what, None, f"MAPMRF_KERNELS={os.environ['MAPMRF_KERNELS']} requests locally compiled code")
    if changed_settings():
        return Origin(what, None, f"NUMBA_{changed_settings()[0]} requires different code")
    if not SHIPPED.exists():
        return Origin(what, None, "not part of this installation")
    try:
        archive = Archive(SHIPPED)
    except ArchiveError as error:
        return Origin(what, None, str(error))
    if archive.stamp != stamp():
        return Origin(what, None, "it was compiled from other sources, or with another Python, numba or llvmlite")
    reason = lacks(archive.cpu)
    return Origin(what, None if reason else archive, reason or f"{len(archive)} kernels for {archive.cpu}")


def lacks(cpu: str) -> str:
    """Return why this machine cannot run code for a baseline CPU, or an empty string."""
    from llvmlite import binding

    base = baseline()
    if base is None or base.cpu != cpu:
        return f"it is for {cpu}, and this machine is {platform.machine()}"
    if not base.features:
        return ""
    have = binding.get_host_cpu_features()
    missing = [name for name in base.features if not have.get(name, False)]
    return f"this CPU lacks {', '.join(missing)}" if missing else ""


# -- Archives of compiled kernels: machine code in one file, indexed by kernel and signature --------------------------
# An archive is only used as a whole: its stamp covers the sources of all kernels and the versions of Python, numba and
# llvmlite, so that no entry can be stale, and it names the CPU it was compiled for. Entries are pickles, so archives
# are loaded only from the package's own folder.

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


# -- Stamps of the sources that machine code is compiled from, which show whether it is up to date --------------------
# numba stamps a kernel by the age of its file, which ignores the kernels in other files that it calls. Here, the stamp
# of a kernel is a hash of its definition and of every definition that it refers to, directly or indirectly, in whatever
# file. Comments, docstrings and the drivers beside a kernel are no part of it. The archive in the wheel has a single
# stamp, a hash of all files of the package, which is faster to compute.

_USES_JIT = re.compile(rb"^from mapmrf\.compilation\.jit import", re.MULTILINE)

Place = tuple[Path, str]  # a file, and a name defined at its top level


@cache
def stamp() -> str:
    """Hash all sources of the package and the versions of Python, numba and llvmlite."""
    found = hashlib.sha256(_versions())
    for path in sorted(PACKAGE.rglob("*.py")):
        found.update(os.path.relpath(path, PACKAGE).encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()


def stamp_of(name: str, path: Path) -> str:
    """Return the stamp of a kernel by its dotted name and its file; empty if the file cannot be read."""
    try:
        return _hash((path, name.rpartition(".")[2]))
    except (OSError, SyntaxError):
        return ""


def kernel_stamps() -> dict[str, str]:
    """Return the stamps of all kernels of the package by dotted name, which takes a second."""
    found: dict[str, str] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if not _USES_JIT.search(path.read_bytes()):
            continue
        module = ".".join(("mapmrf", *path.relative_to(PACKAGE).with_suffix("").parts))
        found |= {f"{module}.{name}": _hash((path, name)) for name in _parse(path).kernels}
    return found


def _versions() -> bytes:
    from mapmrf.compilation.jit import llvmlite, numba

    return " ".join((sys.implementation.cache_tag or "", numba.__version__, llvmlite.__version__)).encode()


def _hash(place: Place) -> str:
    """Hash a definition, then all that it refers to, which are the same for two that refer to each other."""
    found, waiting = {place}, [place]
    while waiting:
        path, name = waiting.pop()
        new = _parse(path).references(name) - found
        found |= new
        waiting += new
    lines = [_parse(path).text(name) for path, name in (place, *sorted(found))]
    return hashlib.sha256(_versions() + "\n".join(lines).encode()).hexdigest()


class _Source:
    """The definitions at the top level of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nodes: dict[str, list[ast.AST]] = {"": []}  # the empty name: calls that stand by themselves
        self.imports: dict[str, tuple[str, Place | None]] = {}
        self.kernels: list[str] = []
        for node in ast.parse(path.read_bytes()).body:
            self._enter(node)

    def _enter(self, node: ast.stmt) -> None:
        if isinstance(node, ast.ImportFrom | ast.Import):
            for alias in node.names:
                name = alias.asname or alias.name.partition(".")[0]
                module, part = (node.module, alias.name) if isinstance(node, ast.ImportFrom) else (alias.name, "")
                self.imports[name] = f"{module} {part}", _imported(str(module), part)
        elif isinstance(node, ast.Expr):
            if not isinstance(node.value, ast.Constant):
                self.nodes[""].append(node)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            self.nodes.setdefault(node.name, []).append(node)
            if isinstance(node, ast.FunctionDef) and node.decorator_list:
                self.kernels.append(node.name)
        else:
            names = [each for each in ast.walk(node) if isinstance(each, ast.Name)]
            for name in {each.id for each in names if isinstance(each.ctx, ast.Store)} or {""}:
                self.nodes.setdefault(name, []).append(node)

    @cache  # noqa: B019
    def references(self, name: str) -> frozenset[Place]:
        """Return the definitions that a name's definition mentions; all of the file for the name `*`."""
        return frozenset(self._references(name))

    def _references(self, name: str) -> Iterator[Place]:
        if name == "*":
            yield from ((self.path, each) for each in self.nodes)
            return
        if name in self.imports:
            _, imported = self.imports[name]
            if imported is not None:
                yield imported
            return
        yield self.path, ""
        for node in self.nodes.get(name, ()):
            for each in ast.walk(node):
                if isinstance(each, ast.Name) and (each.id in self.nodes or each.id in self.imports):
                    yield self.path, each.id

    @cache  # noqa: B019
    def text(self, name: str) -> str:
        """Return the definition of a name without docstrings and places."""
        origin, _ = self.imports.get(name, ("", None))
        place = f"{os.path.relpath(self.path, PACKAGE)}:{name}: {origin}"
        return place + " ".join(ast.dump(_without_docstrings(node)) for node in self.nodes.get(name, ()))


_parse = cache(_Source)


def _imported(module: str, name: str) -> Place | None:
    """Return the place of an imported name, `*` for a whole module; None outside of this package."""
    if module != "mapmrf" and not module.startswith("mapmrf."):
        return None
    if module.startswith("mapmrf.compilation") and module != "mapmrf.compilation.store":
        return None  # it decides where code is stored, not what it is
    whole = _file_of(f"{module}.{name}") if name else _file_of(module)
    if whole is not None:
        return whole, "*"
    path = _file_of(module)
    return None if path is None else (path, name)


@cache
def _file_of(name: str) -> Path | None:
    path = PACKAGE.parent.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _without_docstrings(node: ast.AST) -> ast.AST:
    for each in ast.walk(node):
        if isinstance(each, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(each, clean=False) is not None:
            each.body = each.body[1:] or [ast.Pass()]
    return node
