"""Stamps of the sources that machine code is compiled from, which show whether it is up to date.

numba stamps a kernel by the age of its file, which ignores the kernels in other files that it calls. Here, the stamp of
a kernel is a hash of its definition and of every definition that it refers to, directly or indirectly, in whatever
file. Comments, docstrings and the drivers beside a kernel are no part of it. The archive in the wheel has a single
stamp, a hash of all files of the package, which is faster to compute.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]

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
    from mapmrf.compilation.toolchain import llvmlite, numba

    return " ".join((sys.implementation.cache_tag or "", numba.__version__, llvmlite.__version__)).encode()


def _hash(place: Place) -> str:
    """Hash the definitions that a name refers to, directly or indirectly."""
    found, waiting = {place}, [place]
    while waiting:
        path, name = waiting.pop()
        new = _parse(path).references(name) - found
        found |= new
        waiting += new
    lines = sorted(_parse(path).text(name) for path, name in found)
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
