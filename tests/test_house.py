"""The budget of the source, as a ledger that only goes down, and a few rules on its shape.

`house.csv` has a row for each figure, with its present size and its goal. A figure that rises fails; one that falls is
written back, to be committed with the change.
"""

from __future__ import annotations

import ast
import csv
import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import mapmrf
from mapmrf.run.registry import method_names

SOURCE = Path(mapmrf.__file__).parent
ROOT = Path(__file__).parents[1]
LEDGER = Path(__file__).with_name("house.csv")
ONE_FILE_EACH = {"methods", "formats", "bridges"}
"""Folders in which a file may be as short as its subject."""
FRONTS = {"__init__.py", "__main__.py", "_version.py"}

PATHS = sorted(SOURCE.rglob("*.py"))
LINES = {path: path.read_text(encoding="utf-8").count("\n") for path in PATHS}


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in PATHS}


def classes() -> Iterator[ast.ClassDef]:
    for tree in trees().values():
        yield from (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


# -- the ledger -------------------------------------------------------------------------------------------------------


def scripts(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def lines_of(folder: str) -> int:
    return sum(path.read_text(encoding="utf-8").count("\n") for path in scripts(folder))


def naming_a_kind() -> int:
    name = re.compile(r"\b(ConstraintKind|CountingKind|CounterKind)\b")
    return sum(bool(name.search(path.read_text(encoding="utf-8"))) for path in PATHS)


def functions_of_method() -> int:
    (method,) = (node for node in classes() if node.name == "Method")
    return sum(isinstance(item, ast.FunctionDef) and not item.name.startswith("_") for item in method.body)


def numeric_constants() -> int:
    return sum(_names_in_capitals(node) for tree in trees().values() for node in tree.body if _is_numeric(node))


def _names_in_capitals(node: ast.stmt) -> int:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    names = [leaf.id for leaf in ast.walk(target) if isinstance(leaf, ast.Name)] if target is not None else []
    return sum(bool(re.fullmatch(r"_?[A-Z][A-Z0-9_]+", name)) for name in names)


def _is_numeric(node: ast.stmt) -> bool:
    value = getattr(node, "value", None)
    leaves = [] if value is None else [leaf.value for leaf in ast.walk(value) if isinstance(leaf, ast.Constant)]
    return any(isinstance(leaf, int | float) and not isinstance(leaf, bool) for leaf in leaves)


def named_tuples() -> int:
    return sum(any("NamedTuple" in ast.unparse(base) for base in node.bases) for node in classes())


def small_files() -> int:
    return sum(
        lines < 80 and path.name not in FRONTS and path.parent.name not in ONE_FILE_EACH
        for path, lines in LINES.items()
    )


def modules_of_a_run() -> int:
    """Own modules that are imported between a .uai file and the printed result of `trws`."""
    program = (
        "import sys, tempfile, pathlib, mapmrf\n"
        "folder = tempfile.TemporaryDirectory()\n"
        "path = str(pathlib.Path(folder.name, 'model.uai'))\n"
        "text = 'MARKOV 3  2 3 2  2  2 0 1  3 2 1 0  6 1 0 3 4 5 6  12 1 2 3 4 5 6 7 8 9 10 11 12'\n"
        "pathlib.Path(path).write_text(text)\n"
        "from mapmrf.cli import main\n"
        "try: main(['solve', path, '-m', 'trws'])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "own = [name for name in sys.modules if name.split('.')[0] == 'mapmrf']\n"
        "print(sum(hasattr(sys.modules[name], '__file__') for name in own))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return int(done.stdout.split()[-1])


FIGURES: dict[str, Callable[[], int]] = {
    "lines in src": lambda: sum(LINES.values()),
    "files in src": lambda: len(LINES),
    "lines in tests": lambda: lines_of("tests"),
    "files in tests": lambda: len(scripts("tests")),
    "lines in benches": lambda: lines_of("benches"),
    "scripts in benches": lambda: len(scripts("benches")),
    "modules at the top of the package": lambda: len(list(SOURCE.glob("*.py"))),
    "modules that name a kind of constraint": naming_a_kind,
    "public functions of Method": functions_of_method,
    "modules from a .uai file to the printed result with trws": modules_of_a_run,
    "numeric constants at module level": numeric_constants,
    "NamedTuples": named_tuples,
    "files below 80 lines": small_files,
    "files above 700 lines": lambda: sum(lines > 700 for lines in LINES.values()),
}


def ledger() -> dict[str, tuple[int, int]]:
    """The figures that were reached, and their goals."""
    with open(LEDGER, encoding="utf-8", newline="") as file:
        return {row["figure"]: (int(row["now"]), int(row["goal"])) for row in csv.DictReader(file)}


def test_the_budget_only_goes_down() -> None:
    before = ledger()
    assert set(before) == set(FIGURES)
    now = {name: figure() for name, figure in FIGURES.items()}
    risen = {name: n for name, n in now.items() if n > max(before[name])}
    assert not risen, f"{risen}, and it was {[before[name][0] for name in risen]}: unify or delete something"
    if any(n < before[name][0] for name, n in now.items()):
        with open(LEDGER, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["figure", "now", "goal"])
            writer.writerows([name, min(n, before[name][0]), before[name][1]] for name, n in now.items())


# -- shape ------------------------------------------------------------------------------------------------------------


def test_a_class_name_is_used_once() -> None:
    names = Counter(node.name for node in classes())
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
