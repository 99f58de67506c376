"""The shape of the source: sizes of kernels, names used once, and a method per file."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mapmrf
from mapmrf.run.registry import method_names

SOURCE = Path(mapmrf.__file__).parent
DECORATORS = {"compiled", "bare", "inlined"}
BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try)


def functions() -> Iterator[tuple[str, ast.FunctionDef, bool]]:
    """Every function with its place, and whether it is a kernel."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                is_kernel = any(isinstance(mark, ast.Name) and mark.id in DECORATORS for mark in node.decorator_list)
                yield f"{path.relative_to(SOURCE)}:{node.lineno} {node.name}", node, is_kernel


KERNELS = [(place, node) for place, node, is_kernel in functions() if is_kernel]


def depth(node: ast.AST) -> int:
    """How deep blocks are nested; `elif` is no deeper than its `if`."""
    deepest = 0
    for name, child in ((name, child) for name, value in ast.iter_fields(node) for child in _list(value)):
        chained = name == "orelse" and isinstance(child, ast.If) and isinstance(node, ast.If)
        deepest = max(deepest, depth(child) + (isinstance(child, BLOCKS) and not chained))
    return deepest


def _list(value: object) -> list[ast.AST]:
    return [child for child in (value if isinstance(value, list) else [value]) if isinstance(child, ast.AST)]


def test_kernels_take_structs_and_stay_small() -> None:
    assert len(KERNELS) > 300
    wide = [place for place, node in KERNELS if len(node.args.args) > 8]
    long = [place for place, node in KERNELS if (node.end_lineno or 0) - node.lineno + 1 > 80]
    deep = [place for place, node in KERNELS if depth(node) > 5]
    assert (wide, long, deep) == ([], [], [])


def test_kernels_are_annotated() -> None:
    bare = [
        place
        for place, node in KERNELS
        if node.returns is None or any(argument.annotation is None for argument in node.args.args)
    ]
    assert bare == []


def test_a_class_name_is_used_once() -> None:
    names = Counter[str]()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1
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
