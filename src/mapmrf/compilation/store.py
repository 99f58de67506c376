"""The user's cache of compiled kernels: a folder per CPU, with a file per kernel and signature."""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import platform
import stat
import struct
import sys
import time
import zlib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

from mapmrf.compilation.machine_code import numba_folder

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

    def entries(self) -> Iterator[tuple[Key, str, bytes]]:
        """Return all entries that are not damaged: keys, stamps and code."""
        for path in sorted(self.folder.glob("*.kernel")):
            head, code = _unpacked(path.read_bytes())
            if head:
                name, signature, made_from = json.loads(head)
                yield Key(name, signature), made_from, code

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


SETTINGS = {"OPT": 3, "LOOP_VECTORIZE": 1, "SLP_VECTORIZE": 0, "BOUNDSCHECK": 0, "DEBUGINFO_DEFAULT": 0, "DEBUG_NRT": 0}
"""numba's settings that affect the generated code, and their defaults."""


def changed_settings() -> list[str]:
    """Return the numba settings that differ from the defaults and affect the generated code."""
    if os.path.exists(".numba_config.yaml"):
        from mapmrf.compilation.compiler import numba  # noqa: F401  # which reads it
    config = sys.modules.get("numba.core.config")
    found = []
    for name, usual in SETTINGS.items():
        given = os.environ.get(f"NUMBA_{name}") if config is None else getattr(config, name)
        value = str(given or usual) if given is None or isinstance(given, str) else str(int(given))
        if value != str(usual) or getattr(given, "is_opt_max", False):
            found.append(f"{name}={'max' if getattr(given, 'is_opt_max', False) else value}")
    return found


@cache
def target() -> str:
    """Return a name for the CPU that numba compiles for, and for its settings."""
    from llvmlite import binding

    name = os.environ.get("NUMBA_CPU_NAME") or binding.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES", binding.get_host_cpu_features().flatten())
    words = [binding.get_process_triple(), name, features, *changed_settings()]
    return f"{name}-{hashlib.sha256(' '.join(words).encode()).hexdigest()[:12]}"


# -- The sources of machine code on this machine: the archive shipped with the package, and the user's cache ----------


SHIPPED = PACKAGE / "compiled" / "kernels.bin"  # the archive shipped in the wheel

NATIVE = "native"
"""File in the user's cache that holds the versions of all compilers if all kernels were compiled for this CPU."""


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
        return (user_store().folder / NATIVE).read_text() == versions()
    except OSError:
        return False


def mark_native() -> None:
    write_atomically(user_store().folder / NATIVE, versions().encode())
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
    if archive.versions != versions():
        return Origin(what, None, "it was compiled with another Python, numba or llvmlite")
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
# An archive is for certain versions of Python, numba and llvmlite, and for a CPU; entries have the stamps of their
# kernels. They are pickles, so archives are loaded only from the package's own folder.

FORMAT = 2  # of machine code and archives

MAGIC = b"mapmrf kernels %d\n" % FORMAT
"""First bytes of an archive; the length of the index follows, then the index as JSON, then the entries."""


class Key(NamedTuple):
    """Identifies a piece of machine code: a kernel's dotted name, and the types of its arguments as text."""

    name: str
    signature: str


class ArchiveError(Exception):
    """A file is not an archive, or is damaged."""


class Archive:
    """An archive opened for reading: the `versions` it was made with, and LLVM's name of the `cpu` it is for."""

    def __init__(self, path: Path) -> None:
        try:
            with open(path, "rb") as file:
                head = file.read(len(MAGIC) + 8)
                if head[: len(MAGIC)] != MAGIC or len(head) < len(MAGIC) + 8:
                    raise ArchiveError(f"{path}: not an archive of kernels")
                (size,) = struct.unpack("<Q", head[len(MAGIC) :])
                index = json.loads(file.read(size))
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.path, self.versions, self.cpu = path, str(index["versions"]), str(index["cpu"])
            self._base = len(MAGIC) + 8 + size
            self._places: dict[tuple[str, str], tuple[str, int, int, str]] = {  # stamp, position, size and checksum
                (name, text): (made_from, at, size, checksum)
                for name, text, made_from, at, size, checksum in index["entries"]
            }
        except (OSError, ValueError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ArchiveError(f"{path}: {error}") from None

    def __len__(self) -> int:
        return len(self._places)

    def get(self, key: Key, made_from: str) -> bytes | None:
        stamp, at, size, checksum = self._places.get(key, ("", 0, 0, ""))
        if stamp != made_from or not size:
            return None
        packed = self._data[self._base + at : self._base + at + size]
        return zlib.decompress(packed) if digest(packed) == checksum else None


def write_archive(path: Path, cpu: str, entries: Iterable[tuple[Key, str, bytes]]) -> int:
    """Write an archive atomically, from keys, stamps and code; return the number of entries."""
    places: list[list[object]] = []
    blocks: list[bytes] = []
    at = 0
    for key, made_from, data in sorted(entries):
        packed = zlib.compress(data, 9)
        places.append([*key, made_from, at, len(packed), digest(packed)])
        blocks.append(packed)
        at += len(packed)
    index = json.dumps({"versions": versions(), "cpu": cpu, "entries": places}).encode()
    write_atomically(path, b"".join([MAGIC, struct.pack("<Q", len(index)), index, *blocks]))
    return len(places)


def write_atomically(path: Path, data: bytes) -> None:
    import tempfile  # only to write

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


# -- Stamps of kernels, which show whether machine code is up to date --------------------------------------------------
# numba stamps a kernel by the age of its file, which ignores the kernels in other files that it calls. Here, the stamp
# of a kernel is a hash of its code and of all that this refers to, directly or indirectly, in whatever file. Comments,
# docstrings and the drivers beside a kernel are no part of it.


@cache
def versions() -> str:
    """What else machine code depends on: how it is stored, Python, and the compiler, which need not be imported."""
    import llvmlite

    folder = numba_folder()
    compiler = "" if folder is None else digest((folder / "_version.py").read_bytes())[:16]
    return f"{FORMAT} {sys.implementation.cache_tag} {llvmlite.__version__} {compiler}"


def stamp_of(kernel: Any, when_compiling: Iterable[Any] = ()) -> str:
    """Return the stamp of a kernel; `when_compiling` are the functions that say what others mean to the compiler."""
    waiting, texts = [kernel.py_func], [versions(), repr(sorted(kernel.targetoptions.items()))]
    seen = set(waiting)
    while waiting:
        function = waiting.pop()
        text, used = _described(function)
        texts.append(text)
        if used:
            modules = {each.__module__ for each in used}
            used += tuple(each for each in when_compiling if each.__module__ in modules)
        new = [each for each in used if each not in seen]
        seen.update(new)
        waiting += new
    return digest("\n".join(texts).encode())


@cache
def _described(function: FunctionType) -> tuple[str, tuple[FunctionType, ...]]:
    """Return a function's code as text, with the values that it refers to, and the functions among these."""
    code, used = function.__code__, []
    texts = [function.__qualname__, repr(function.__defaults__), *_of_code(code, function.__doc__)]
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    values += [function.__globals__[name] for name in _names_in(code) if name in function.__globals__]
    while values:
        value = values.pop()
        value_text, each = _of_value(value)
        texts.append(value_text)
        if each is not None:
            used.append(each)
        elif isinstance(value, ModuleType) and value.__name__.partition(".")[0] == PACKAGE.name:
            values += [vars(value)[name] for name in _names_in(code) if name in vars(value)]
    return "\n".join(texts), tuple(used)


def _of_code(code: CodeType, doc: str | None = None) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_argcount, code.co_flags))
    for number, each in enumerate(code.co_consts):
        if isinstance(each, CodeType):
            yield from _of_code(each)
        elif number > 0 or doc is None or each != doc:
            yield repr(sorted(map(repr, each))) if isinstance(each, frozenset) else repr(each)


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names_in(each)


def _of_value(value: Any) -> tuple[str, FunctionType | None]:
    """Return what a function refers to as text, or the function that it is."""
    if isinstance(made_from := getattr(value, "py_func", value), FunctionType):
        if made_from.__module__.partition(".")[0] in ("numpy", "numba"):
            return made_from.__qualname__, None
        return repr(sorted(getattr(value, "targetoptions", {}).items())), made_from
    if isinstance(value, type):
        kinds = (int, float, str, tuple, dict)
        own = [(name, repr(each)) for name, each in vars(value).items() if isinstance(each, kinds)]
        return f"{value.__qualname__} {sorted(pair for pair in own if not pair[0].startswith('__'))}", None
    if isinstance(value, ModuleType):
        return value.__name__, None
    text = repr(value)
    return type(value).__qualname__ if " at 0x" in text else text, None
