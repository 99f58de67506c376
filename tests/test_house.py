"""The shape of the source: sizes of kernels, names used once, and a method per file."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

import mapmrf
from mapmrf.registry import method_names
from syntax import statements

SOURCE = Path(mapmrf.__file__).parent
DECORATORS = {"compiled", "bare", "inlined"}
BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try)


Defined = tuple[str, ast.FunctionDef | ast.ClassDef]
"""A function or a class with its place."""


@pytest.fixture(scope="module")
def definitions() -> list[Defined]:
    found: list[Defined] = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node))
    return found


@pytest.fixture(scope="module")
def kernels(definitions: list[Defined]) -> list[tuple[str, ast.FunctionDef]]:
    return [(place, node) for place, node in definitions if isinstance(node, ast.FunctionDef) and is_kernel(node)]


def is_kernel(node: ast.FunctionDef) -> bool:
    return any(isinstance(mark, ast.Name) and mark.id in DECORATORS for mark in node.decorator_list)


def depth(node: ast.AST) -> int:
    """How deep blocks are nested; `elif` is no deeper than its `if`."""
    deepest = 0
    for name, child in ((name, child) for name, value in ast.iter_fields(node) for child in _list(value)):
        chained = name == "orelse" and isinstance(child, ast.If) and isinstance(node, ast.If)
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not chained))
    return deepest


def _list(value: object) -> list[ast.AST]:
    return [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]


def test_kernels_take_structs_and_stay_small(kernels: list[tuple[str, ast.FunctionDef]]) -> None:
    assert len(kernels) > 300
    wide = [place for place, node in kernels if len(node.args.args) > 8]
    long = [place for place, node in kernels if (node.end_lineno or 0) - node.lineno + 1 > 80]
    deep = [place for place, node in kernels if depth(node) > 5]
    assert (wide, long, deep) == ([], [], [])


def test_kernels_are_annotated(kernels: list[tuple[str, ast.FunctionDef]]) -> None:
    bare = [
        place
        for place, node in kernels
        if node.returns is None or any(argument.annotation is None for argument in node.args.args)
    ]
    assert bare == []


def test_a_class_name_is_used_once(definitions: list[Defined]) -> None:
    names = Counter(node.name for _, node in definitions if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_folder_of_methods_holds_methods_only() -> None:
    entries = {
        path.stem for path in (SOURCE / "methods").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert entries - {"__init__"} == set(method_names())


def test_every_engine_has_tests_beside_it() -> None:
    engines = {path.parent.name for path in (SOURCE / "engines").glob("*/__init__.py")}
    tests = {path.parent.name for path in (Path(__file__).parent / "engines").glob("*/test_*.py")}
    assert engines == tests
