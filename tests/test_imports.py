"""Dependencies point one way, and importing the package is cheap."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mapmrf
from syntax import statements

SOURCE = Path(mapmrf.__file__).parent

FLOORS = (
    ("_version", "errors", "arrays", "compilation", "interrupts", "workers", "outputs"),
    ("pair_forms", "granularity", "plugins", "memory", "arrayfile", "supervision"),
    ("graph_checks", "names", "options", "kernels"),
    ("graph_builders", "constraints", "gap"),
    ("graph",),
    ("footprints",),
    ("rewriting",),
    ("problem", "formats", "trace", "violations"),
    ("polytope", "dual_state", "engines.feasibility", "checkpoints", "certificates"),
    ("result", "feasible"),
    ("evaluator",),
    ("incumbent", "progress"),
    ("method",),
    ("registry", "saved_run", "model_forms"),
    ("run_calls",),
    ("run",),
    ("solver",),
    ("engines.elimination", "engines.flow", "engines.counting"),
    ("engines.reduction", "engines.moves"),
    ("engines.admm", "engines.messages", "engines.decomposition", "engines.program", "engines.spins"),
    ("engines.soft_consistency",),
    ("methods",),
    ("quick",),
    ("model_summary", "datasets", "images", "bridges", "pictures", "batch", "curves", "duals"),
    ("best", "certainty", "summing", "certifying", "learn", "distributed"),
    ("plots", "tuning", "precompile", "torch"),
    ("display", "frames"),
    ("bench",),
    ("cli",),
    ("__init__", "__main__"),
)
"""A module imports from lower floors, and from its own package. The order is that of docs/architecture.md."""

LAZY = {
    ("registry", "methods"),  # lists the folder
    ("graph", "display"),  # how a thing shows itself
    ("result", "display"),
    ("result", "frames"),  # on request
    ("feasible", "engines.moves"),  # where a search has found something
    ("solver", "certainty"),  # on request
    ("solver", "certifying"),
}
"""Imports inside functions that may point upwards."""


def floor_of(module: str) -> int:
    """The floor of a dotted name below `mapmrf`; every module has one."""
    for number, names in enumerate(FLOORS):
        if any(module == name or module.startswith(f"{name}.") for name in names):
            return number
    raise AssertionError(f"{module} has no floor: add it to FLOORS")


def package_of(module: str) -> str:
    """The package that shares a floor: `engines.admm`, `formats`, or the module itself."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" else parts[0]


def module_of(path: Path) -> str:
    """Dotted name of a source file."""
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path, nested: bool = True) -> set[str]:
    """Dotted names below `mapmrf` that a file imports, but for type checking alone; `nested`: in functions, too."""
    nodes = imports_of(path)[1 if nested else 2]
    return {name.removeprefix("mapmrf.") for node in nodes for name in _names(node)}


Imports = list[ast.Import | ast.ImportFrom]


@functools.cache
def imports_of(path: Path) -> tuple[Imports, Imports, Imports]:
    """The imports of a file: all, without those for type checking alone, and of these the ones outside of functions."""

    def for_running(node: ast.stmt) -> bool:
        return not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")

    def on_loading(node: ast.stmt) -> bool:
        return for_running(node) and not isinstance(node, ast.FunctionDef)

    def found(*enter: Callable[[ast.stmt], bool]) -> Imports:
        return [node for node in statements(tree, *enter) if isinstance(node, ast.Import | ast.ImportFrom)]

    tree = ast.parse(path.read_text(encoding="utf-8"))
    return found(), found(for_running), found(on_loading)


def _names(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("mapmrf."))
    elif (node.module or "").startswith("mapmrf"):
        assert node.level == 0
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole.removeprefix("mapmrf.") in MODULES or node.module == "mapmrf" else str(node.module)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


def test_imports_point_downwards() -> None:
    for module, path in MODULES.items():
        for target in imported(path):
            own, other = package_of(module), package_of(target)
            if own == other or (own, other) in LAZY:
                continue
            assert floor_of(target) < floor_of(module), f"{module} imports {target}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("kernels.")])
def test_kernels_that_engines_share_import_only_arrays(module: str) -> None:
    for target in imported(MODULES[module]):
        assert target in ("arrays", "pair_forms") or target.startswith(("kernels.", "compilation.")), (
            f"{module} imports {target}"
        )


def test_no_two_modules_import_each_other_on_loading() -> None:
    """Cycles of imports at the top of modules; those inside functions and for types alone do not count."""
    graph = {module: {t for t in imported(path, nested=False) if t in MODULES} for module, path in MODULES.items()}
    order = TopologicalSorter({module: targets - {module} for module, targets in graph.items()})
    order.prepare()  # raises CycleError, which names the cycle


def test_no_module_uses_relative_imports() -> None:
    for path in SOURCE.rglob("*.py"):
        for node in imports_of(path)[0]:
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path.name}:{node.lineno}"


def test_numba_is_imported_in_one_place() -> None:
    """Threads that import it from several places at the same time would wait for each other; see that module."""
    importing = set()
    for module, path in MODULES.items():
        for node in imports_of(path)[0]:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            importing |= {module for name in names if name.split(".")[0] in ("numba", "llvmlite")}
    assert importing == {
        "compilation.toolchain",
        "compilation.origins",  # llvmlite, where numba must not be loaded yet or has been
    }


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"numba", "scipy", "highspy", "joblib", "matplotlib", "networkx", "PIL", "pooch", "rich"}


@pytest.mark.parametrize(
    "code",
    [
        "import mapmrf",
        "import mapmrf; mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 1, 2, 3]]).value([1, 1])",
        "from mapmrf.registry import method_names; method_names()",
        "import mapmrf; mapmrf.solve(mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 1, 2, 3]]), time_limit=9)",
    ],
)
def test_importing_the_package_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & HEAVY


def command(*arguments: str) -> str:
    """The code that runs a command, which must end well."""
    return f"from mapmrf.cli import main\ntry: main({list(arguments)})\nexcept SystemExit as end: assert end.code == 0"


def test_the_help_does_not_even_load_numpy() -> None:
    assert not loaded_after(command("--help")) & {"numpy", *HEAVY}


def test_the_command_that_solves_a_tiny_model_loads_nothing_heavy(tmp_path: Path) -> None:
    model, output, trace = (str(tmp_path / name) for name in ("model.uai", "result.json", "trace.csv"))
    Path(model).write_text("MARKOV 3  2 3 2  2  2 0 1  3 2 1 0  6 1 0 3 4 5 6  12 1 2 3 4 5 6 7 8 9 10 11 12")
    assert not loaded_after(command("solve", model, "-o", output, "--trace", trace)) & HEAVY
    assert mapmrf.Result.from_json(Path(output).read_text()).status == "optimal"


@pytest.mark.parametrize(("side", "needed"), [(4, False), (20, True)])
def test_auto_imports_its_kernels_before_a_run_that_needs_them(side: int, needed: bool) -> None:
    """The clock of a run counts the time of compiling only if numba is there when it starts."""
    code = f"import mapmrf; mapmrf.Auto().load(mapmrf.datasets.grid({side}, {side}))"
    assert ("numba" in loaded_after(code)) == needed


def test_the_method_table_and_the_folder_of_methods_go_by_one_name() -> None:
    """`mapmrf.methods()` must work before and after the folder of the same name has been imported."""
    code = "import mapmrf\nfor _ in range(2): assert 'icm' in mapmrf.methods()\nimport mapmrf.methods.icm as m; m.ICM"
    assert "numba" in loaded_after(code)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mapmrf.nothing  # noqa: B018
    assert {"solve", "read", "ICM", "FactorGraph"} <= set(dir(mapmrf))


def test_every_method_is_a_name_of_the_package() -> None:
    """For programs, for `dir`, and for type checkers, which see only what stands in the file."""
    own = {name: cls for name, cls in mapmrf.methods().items() if cls.__module__.startswith("mapmrf.methods.")}
    assert len(own) >= 30
    written = (SOURCE / "__init__.py").read_text(encoding="utf-8")
    for name, cls in own.items():
        assert getattr(mapmrf, cls.__name__) is cls
        assert cls.__name__ in dir(mapmrf)
        assert f"    from mapmrf.methods.{name} import {cls.__name__} as {cls.__name__}\n" in written
    assert len(re.findall(r"from mapmrf\.methods\.", written)) == len(own)


def test_names_are_found_without_imports() -> None:
    program = (
        "import sys, mapmrf\n"
        "assert 'WCSP' in dir(mapmrf) and not hasattr(mapmrf, 'lslp') and not hasattr(mapmrf, 'Nothing')\n"
        "print([name for name in ('numpy', 'numba', 'mapmrf.method') if name in sys.modules])\n"
        "from mapmrf import LSLP, WCSP\n"
        "print(LSLP.name, WCSP.name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\nlslp wcsp\n"
