"""Stamps of the sources that machine code is compiled from, which show whether it is up to date.

numba stamps a kernel by the age of its file, which ignores the kernels in other files that it calls. Our stamps are
hashes of all files that a kernel's module imports, directly or indirectly, except for this package, which decides
where code is stored but not what it is.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

FOLDERS = ("kernels", "engines")
"""Folders of the package that hold kernels."""

_IMPORT = re.compile(rb"^\s*(?:from|import) mapmrf\.?([\w.]*)", re.MULTILINE)
_USES_JIT = re.compile(rb"^from mapmrf\.kernels\.jit import", re.MULTILINE)


@cache
def stamp() -> str:
    """Hash the sources of all kernels and the versions of Python, numba and llvmlite."""
    return _hash(kernel_files())


@cache
def stamp_of(path: Path) -> str:
    """Hash the sources of the kernels of one file, in this package or not; empty if it cannot be read."""
    try:
        return _hash((path,))
    except OSError:
        return ""


def _hash(files: tuple[Path, ...]) -> str:
    """Hash files, all files of the package that they import, and versions."""
    from mapmrf.compilation.toolchain import llvmlite, numba

    found = hashlib.sha256()
    for word in (sys.implementation.cache_tag or "", numba.__version__, llvmlite.__version__):
        found.update(word.encode() + b"\0")
    for path in sorted(_reachable(frozenset(files))):
        found.update(os.path.relpath(path, PACKAGE).encode() + b"\0" + _read(path) + b"\0")
    return found.hexdigest()


@cache
def kernel_files() -> tuple[Path, ...]:
    """Return all files that contain kernels."""
    files = (path for folder in FOLDERS for path in (PACKAGE / folder).rglob("*.py"))
    return tuple(path for path in files if _USES_JIT.search(_read(path)))


def _reachable(roots: frozenset[Path]) -> set[Path]:
    """Return the files and all files of the package that they import, directly or indirectly."""
    found, waiting = set(roots), list(roots)
    while waiting:
        for path in _imports(waiting.pop()) - found:
            found.add(path)
            waiting.append(path)
    return found


@cache
def _imports(path: Path) -> frozenset[Path]:
    """Return the files of the package that a file imports; all files of a subpackage if it imports one."""
    found: set[Path] = set()
    for name in {match.decode() for match in _IMPORT.findall(_read(path))} - {""}:
        file = file_of(name)
        if file is not None and not name.startswith("compilation"):
            found.add(file)
            found.update(file.parent.glob("*.py") if file.name == "__init__.py" else ())
    return frozenset(found)


def file_of(name: str) -> Path | None:
    """Return the file of a module by its dotted name within the package."""
    path = PACKAGE.joinpath(*name.split("."))
    for file in (path.with_suffix(".py"), path / "__init__.py"):
        if file.is_file():
            return file
    return None


@cache
def _read(path: Path) -> bytes:
    return path.read_bytes()
