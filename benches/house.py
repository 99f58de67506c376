"""The shape of the source in figures: files, functions, parameters, kernels; with `--compare`, next to another tree.

    python benches/house.py src --compare /path/to/other/src

`--compare` is the old tree. A kernel is a function whose decorator is one of those of `kernels/jit.py`.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KERNEL_MARKS = {"compiled", "bare", "inlined", "kernel", "njit", "jit"}
BLOCKS = (ast.For, ast.While, ast.If, ast.With, ast.Try)
MOST_PARAMETERS, MOST_KERNEL_PARAMETERS = 6, 8
MOST_LINES, MOST_KERNEL_LINES, MOST_KERNEL_NESTING = 40, 80, 5


@dataclass(frozen=True)
class Function:
    """A function or method: where it is, and its size."""

    place: str
    lines: int
    parameters: int
    nesting: int
    is_kernel: bool


@dataclass(frozen=True)
class Tree:
    """All files of a package, with their lines, and all functions in them."""

    files: dict[str, int]
    functions: list[Function]

    @property
    def kernels(self) -> list[Function]:
        """The compiled functions."""
        return [function for function in self.functions if function.is_kernel]

    @property
    def plain(self) -> list[Function]:
        """All other functions."""
        return [function for function in self.functions if not function.is_kernel]


def read_tree(source: Path) -> Tree:
    """Parse every Python file of the package below `source`."""
    package = source / "mapmrf"
    files, functions = {}, []
    for path in sorted(package.rglob("*.py")):
        name, text = str(path.relative_to(package)), path.read_text(encoding="utf-8")
        files[name] = text.count("\n")
        functions += [
            describe(node, name)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]
    return Tree(files, functions)


def describe(node: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> Function:
    """The size of a function; `self` and `cls` are no parameters."""
    args = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    parameters = sum(arg not in ("self", "cls") for arg in args) + sum(x is not None for x in extra(node.args))
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    marks = {mark_name(mark) for mark in node.decorator_list}
    return Function(f"{name}:{node.name}", lines, parameters, nesting(node.body), bool(marks & KERNEL_MARKS))


def extra(args: ast.arguments) -> tuple[ast.arg | None, ast.arg | None]:
    return args.vararg, args.kwarg


def mark_name(mark: ast.expr) -> str:
    """The last part of a decorator's name: `numba.njit(cache=True)` is `njit`."""
    if isinstance(mark, ast.Call):
        mark = mark.func
    return mark.attr if isinstance(mark, ast.Attribute) else getattr(mark, "id", "")


def nesting(body: Iterable[ast.stmt]) -> int:
    """Depth of blocks within blocks; an `elif` is as deep as its `if`."""
    return max((depth(statement) for statement in body), default=0)


def depth(statement: ast.stmt) -> int:
    if not isinstance(statement, BLOCKS):
        return 0
    inner = 1 + nesting(statement.body)
    other = getattr(statement, "orelse", [])
    if isinstance(statement, ast.If) and len(other) == 1 and isinstance(other[0], ast.If):
        return max(inner, depth(other[0]))
    rest = [*other, *getattr(statement, "finalbody", [])]
    rest += [inside for handler in getattr(statement, "handlers", []) for inside in handler.body]
    return max(inner, 1 + nesting(rest))


def spread(values: Sequence[int]) -> str:
    """Median, 90 % quantile and maximum."""
    if not values:
        return "-"
    ordered = sorted(values)
    return f"{statistics.median(ordered):g} / {ordered[int(0.9 * (len(ordered) - 1))]} / {ordered[-1]}"


def is_private(name: str) -> bool:
    return Path(name).name.startswith("_") and not Path(name).name.startswith("__")


def figures(tree: Tree) -> Iterator[tuple[str, str]]:
    """The rows of the table."""
    plain, kernels = tree.plain, tree.kernels
    methods = [name for name in tree.files if name.startswith("methods/") and not name.endswith("__init__.py")]
    yield "files", str(len(tree.files))
    yield "lines", str(sum(tree.files.values()))
    yield "lines of a file: median / 90 % / most", spread(list(tree.files.values()))
    yield "private modules", str(sum(is_private(name) for name in tree.files))
    yield (
        "modules in `methods/`: public, private",
        (f"{sum(not is_private(name) for name in methods)}, {sum(is_private(name) for name in methods)}"),
    )
    yield "functions that are no kernels", str(len(plain))
    yield "their lines: median / 90 % / most", spread([f.lines for f in plain])
    yield f"with more than {MOST_LINES} lines", str(sum(f.lines > MOST_LINES for f in plain))
    yield "their parameters: median / 90 % / most", spread([f.parameters for f in plain])
    yield f"with more than {MOST_PARAMETERS} parameters", str(sum(f.parameters > MOST_PARAMETERS for f in plain))
    yield "kernels", str(len(kernels))
    yield "lines of a kernel: median / 90 % / most", spread([f.lines for f in kernels])
    yield f"kernels of more than {MOST_KERNEL_LINES} lines", str(sum(f.lines > MOST_KERNEL_LINES for f in kernels))
    yield "parameters of a kernel: median / 90 % / most", spread([f.parameters for f in kernels])
    too_wide = sum(f.parameters > MOST_KERNEL_PARAMETERS for f in kernels)
    yield f"kernels with more than {MOST_KERNEL_PARAMETERS} parameters", str(too_wide)
    yield "nesting of a kernel: median / 90 % / most", spread([f.nesting for f in kernels])
    too_deep = sum(f.nesting > MOST_KERNEL_NESTING for f in kernels)
    yield f"kernels nested deeper than {MOST_KERNEL_NESTING}", str(too_deep)


def offenders(tree: Tree) -> Iterator[str]:
    """The largest functions of each kind."""

    def names(functions: list[Function], size: str) -> str:
        chosen = sorted(functions, key=lambda f: -getattr(f, size))[:5]
        return ", ".join(f"`{f.place}` {getattr(f, size)}" for f in chosen)

    yield "widest kernels: " + names(tree.kernels, "parameters")
    yield "longest kernels: " + names(tree.kernels, "lines")
    yield "deepest kernels: " + names(tree.kernels, "nesting")
    yield "longest other functions: " + names(tree.plain, "lines")
    yield "widest other functions: " + names(tree.plain, "parameters")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = Path(__file__).resolve().parent.parent / "src"
    options.add_argument("source", type=Path, nargs="?", default=here, help="folder with the package")
    options.add_argument("--compare", type=Path, metavar="BEFORE", help="folder with the old package")
    args = options.parse_args()
    tree = read_tree(args.source)
    if args.compare:
        print("| | before | after |\n|---|---:|---:|")
        for (title, old), (_, new) in zip(figures(read_tree(args.compare)), figures(tree), strict=True):
            print(f"| {title} | {old} | {new} |")
    else:
        print("| | |\n|---|---:|")
        for title, value in figures(tree):
            print(f"| {title} | {value} |")
    print()
    for line in offenders(tree):
        print(line)


if __name__ == "__main__":
    main()
