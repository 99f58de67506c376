"""Dependencies point one way, and importing the package is cheap."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import mapmrf

SOURCE = Path(mapmrf.__file__).parent

RANK = {
    "_version": 0,
    "errors": 0,
    "arrays": 0,
    "compiling": 0,
    "checks": 1,
    "options": 1,
    "graph": 2,
    "problem": 3,
    "polytope": 4,
    "feasible": 4,
    "elimination": 4,
    "result": 5,
    "progress": 6,
    "solver": 7,
    "methods": 8,
}
"""A module imports only from lower ranks. `kernels` stand aside: see below."""


def imported(path: Path) -> set[str]:
    """Dotted names below `mapmrf` that a file imports anywhere, but for type checking alone."""
    return {name.removeprefix("mapmrf.") for name in _names(ast.parse(path.read_text(encoding="utf-8")))}


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("mapmrf"))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mapmrf"):
        assert node.level == 0
        if node.module == "mapmrf":
            yield from (f"mapmrf.{alias.name}" for alias in node.names)
        else:
            yield str(node.module)
    for child in ast.iter_child_nodes(node):
        yield from _names(child)


def files(folder: str) -> list[Path]:
    return sorted((SOURCE / folder).glob("*.py"))


@pytest.mark.parametrize("name", [name for name in RANK if name != "methods"])
def test_the_core_imports_only_what_stands_below_it(name: str) -> None:
    for target in imported(SOURCE / f"{name}.py"):
        if (name, target) == ("solver", "methods"):
            continue  # the register lists the folder, inside a function
        if target == "display" and name in ("graph", "result"):
            continue  # how a thing shows itself, inside its methods
        if name == "elimination" and target.startswith("kernels."):
            continue  # the one module of the core with loops of its own; nothing of the core imports it
        assert RANK[target.split(".")[0]] < RANK[name], f"{name} imports {target}"


@pytest.mark.parametrize("path", files("methods"), ids=lambda path: path.stem)
def test_methods_import_the_core_kernels_and_other_methods(path: Path) -> None:
    for target in imported(path):
        assert target.split(".")[0] in {*RANK, "kernels"}, f"{path.name} imports {target}"


@pytest.mark.parametrize("path", files("kernels"), ids=lambda path: path.stem)
def test_kernels_import_only_arrays(path: Path) -> None:
    for target in imported(path):
        assert target == "arrays" or target.startswith("kernels."), f"{path.name} imports {target}"


@pytest.mark.parametrize("path", files("formats"), ids=lambda path: path.stem)
def test_formats_import_nothing_above_the_graph(path: Path) -> None:
    for target in imported(path):
        top = target.split(".")[0]
        assert top == "formats" or RANK.get(top, 99) <= RANK["graph"], f"{path.name} imports {target}"


def test_no_module_uses_relative_imports() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path.name}:{node.lineno}"


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


HEAVY = {"numba", "scipy", "highspy", "joblib", "matplotlib", "networkx", "PIL", "pooch", "rich"}


@pytest.mark.parametrize(
    "code",
    [
        "import mapmrf",
        "import mapmrf; mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 1, 2, 3]]).value([1, 1])",
        "from mapmrf.solver import method_names; method_names()",
    ],
)
def test_importing_the_package_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & HEAVY


def test_the_method_table_and_the_folder_of_methods_go_by_one_name() -> None:
    """`mapmrf.methods()` must work before and after the folder of the same name has been imported."""
    code = "import mapmrf\nfor _ in range(2): assert 'icm' in mapmrf.methods()\nimport mapmrf.methods.icm as m; m.ICM"
    assert "numba" in loaded_after(code)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mapmrf.nothing  # noqa: B018
    assert {"solve", "read", "ICM", "FactorGraph"} <= set(dir(mapmrf))
