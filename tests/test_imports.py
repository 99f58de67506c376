"""Dependencies point one way, and importing the package is cheap."""

import ast
import functools
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import mapmrf

SOURCE = Path(mapmrf.__file__).parent

FLOORS = (
    ("_version", "errors", "arrays"),
    ("model", "constraints"),
    ("kernels", "compilation"),
    ("run",),
    ("engines", "formats"),
    ("methods",),
    ("questions", "certificates"),
    ("batch", "bench", "bridges", "datasets", "distributed", "images", "learn", "plots", "torch"),
    ("cli", "__init__", "__main__", "graph", "method", "result"),
)
"""Packages by floor. A module imports from lower floors, and from packages of its own floor, without circles."""

ENGINES = (
    ("feasibility", "elimination", "flow", "counting"),
    ("reduction", "moves"),
    ("admm", "messages", "decomposition", "program", "spins"),
    ("soft_consistency",),
)
"""Engines by floor."""

LAZY = {
    ("compilation.precompile", "*"): "runs every method on generated models",
    ("constraints.as_tables", "run.clock"): "a long rewriting asks whether anybody still waits for it",
    ("model.graph", "plots.display"): "how a thing shows itself",
    ("run.result", "plots.display"): "the same",
    ("questions.best", "plots.display"): "the same",
    ("questions.max_marginals", "plots.display"): "the same",
    ("model.graph", "bridges.frames"): "shows its factors as a table",
    ("model.model", "plots.display"): "how a thing shows itself",
    ("model.model", "run.solve"): "a model solves itself",
    ("model.model", "bridges"): "a model of another library, on request",
    ("run.registry", "methods"): "lists the folder",
    ("run.repair", "engines.feasibility"): "where a run has found no feasible labelling",
    ("run.repair", "engines.moves"): "the same",
    ("run.solve", "formats"): "the model is a file",
    ("formats.mps", "engines.program"): "where a model is written as a program",
    ("run.solve", "questions.max_marginals"): "on request",
    ("run.solve", "certificates.make"): "on request",
}
"""Imports inside functions that may point upwards, and why."""


def floor_of(module: str) -> tuple[int, int]:
    """The floor of a dotted name below `mapmrf`, and that among the engines; every module has one."""
    package, *rest = module.split(".")
    for number, names in enumerate(FLOORS):
        if package in names:
            return number, next((t for t, engines in enumerate(ENGINES) if rest and rest[0] in engines), 0)
    raise AssertionError(f"{module} has no floor: add it to FLOORS")


def package_of(module: str) -> str:
    """The package of a module: `engines.admm`, `formats`, or the module itself."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] == "engines" else parts[0]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imported(module: str, nested: bool = True) -> set[str]:
    """Dotted names below `mapmrf` that a module imports, but for type checking alone; `nested`: in functions, too."""
    return {name.removeprefix("mapmrf.") for name in _names(tree_of(module), nested) if name != "mapmrf"}


def _names(node: ast.AST, nested: bool) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
        return
    if isinstance(node, ast.FunctionDef) and not nested:
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name.startswith("mapmrf"))
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mapmrf"):
        assert node.level == 0
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            yield whole if whole.removeprefix("mapmrf.") in MODULES or node.module == "mapmrf" else str(node.module)
    for child in ast.iter_child_nodes(node):
        yield from _names(child, nested)


MODULES = {module_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@functools.cache
def import_nodes() -> dict[str, list[ast.Import | ast.ImportFrom]]:
    """All imports of every module."""
    return {
        module: [node for node in ast.walk(tree_of(module)) if isinstance(node, ast.Import | ast.ImportFrom)]
        for module in MODULES
    }


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def test_imports_point_downwards() -> None:
    beside = defaultdict(set)
    for module in MODULES:
        for target in imported(module):
            own, other = package_of(module), package_of(target)
            if own == other or is_lazy(module, target, imported(module, nested=False)):
                continue
            assert floor_of(target) <= floor_of(module), f"{module} imports {target}"
            if floor_of(target) == floor_of(module) and {own, other} != {"model", "constraints"}:
                beside[own].add(other)
    TopologicalSorter(beside).prepare()  # raises CycleError, which names packages that import each other


def is_lazy(module: str, target: str, at_once: set[str]) -> bool:
    """Whether an import stands in a function and may point upwards."""
    allowed = (target.startswith(other) or other == "*" for name, other in LAZY if name == module)
    return target not in at_once and any(allowed)


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("kernels.")])
def test_kernels_that_engines_share_import_only_arrays(module: str) -> None:
    for target in imported(module):
        assert target in ("arrays", "model.structured_pairs") or target.startswith(("kernels.", "compilation.")), (
            f"{module} imports {target}"
        )


def test_no_two_modules_import_each_other_and_none_by_relative_names() -> None:
    # Cycles of imports at the top of modules; those inside functions and for types alone do not count.
    graph = {module: {t for t in imported(module, nested=False) if t in MODULES} for module in MODULES}
    order = TopologicalSorter({module: targets - {module} for module, targets in graph.items()})
    order.prepare()  # raises CycleError, which names the cycle
    for module, nodes in import_nodes().items():
        for node in nodes:
            assert not (isinstance(node, ast.ImportFrom) and node.level), f"{module}:{node.lineno}"


def test_numba_is_imported_in_one_place() -> None:
    """Threads that import it from several places at the same time would wait for each other; see that module."""
    importing = set()
    for module, nodes in import_nodes().items():
        for node in nodes:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
            importing |= {module for name in names if name.split(".")[0] in ("numba", "llvmlite")}
    assert importing == {"compilation.compiler", "compilation.machine_code", "compilation.store"}  # two of them: LLVM


def loaded_after(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


HEAVY = {"numba", "scipy", "highspy", "joblib", "matplotlib", "networkx", "PIL", "pooch", "rich"}


@pytest.mark.parametrize(
    "code",
    [
        "import mapmrf; mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 1, 2, 3]]).value([1, 1])",
        "from mapmrf.run.registry import method_names; method_names()",
        "import mapmrf; mapmrf.solve(mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0, 1, 2, 3]]), time_limit=9)",
        "import mapmrf.formats as formats, mapmrf.datasets as datasets; formats.suffixes(); datasets.entries('seg-2')",
    ],
)
def test_importing_the_package_loads_nothing_heavy(code: str) -> None:
    assert not loaded_after(code) & HEAVY


@pytest.mark.parametrize("method", ["lp", "cuts"])
def test_programs_are_solved_without_scipy(method: str) -> None:
    code = "import mapmrf; mapmrf.solve(mapmrf.FactorGraph.from_tables([3, 2], [(0, 1)], [[0, 1, 2, 5, 4, 3]]), {!r})"
    assert "scipy" not in loaded_after(code.format(method))


COMMANDS = (
    ("generate", "grid", "3", "4", "-o", "model.uai"),
    ("check", "model.uai"),
    ("convert", "model.uai", "other.uai"),
    ("score", "model.uai", "zero.MPE"),
    ("datasets",),
    ("datasets", "--json"),
    ("datasets", "generate", "seg-2", "1", "-o", "like.uai"),
    ("datasets", "download", "scene"),
)


def test_light_commands_load_nothing_heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPMRF_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zero.MPE").write_text("MPE\n12 " + "0 " * 12)
    assert not loaded_after("\n".join(command(*words) for words in COMMANDS)) & HEAVY


def command(*arguments: str) -> str:
    """The code that runs a command, which must end well."""
    return f"from mapmrf.cli import main\ntry: main({list(arguments)})\nexcept SystemExit as end: assert end.code == 0"


def test_the_help_and_a_tiny_model_load_nothing_heavy(tmp_path: Path) -> None:
    assert not loaded_after(command("--help")) & {"numpy", *HEAVY}
    model, output, trace = (str(tmp_path / name) for name in ("model.uai", "result.json", "trace.csv"))
    Path(model).write_text("MARKOV 3  2 3 2  2  2 0 1  3 2 1 0  6 1 0 3 4 5 6  12 1 2 3 4 5 6 7 8 9 10 11 12")
    assert not loaded_after(command("solve", model, "-o", output, "--trace", trace)) & HEAVY
    assert mapmrf.Result.from_json(Path(output).read_text()).status == "optimal"


def test_the_method_table_and_the_folder_of_methods_go_by_one_name() -> None:
    """`mapmrf.methods()` must work before and after the folder of the same name has been imported."""
    code = "import mapmrf\nfor _ in range(2): assert 'icm' in mapmrf.methods()\nimport mapmrf.methods.icm as m; m.ICM"
    assert "numba" not in loaded_after(code)


def test_every_method_is_a_name_of_the_package() -> None:
    """For programs and for `dir`; type checkers see what docs/tables.py writes."""
    own = {name: cls for name, cls in mapmrf.methods().items() if cls.__module__.startswith("mapmrf.methods.")}
    assert len(own) >= 30
    for cls in own.values():
        assert getattr(mapmrf, cls.__name__) is cls
        assert cls.__name__ in dir(mapmrf)
    assert {"solve", "read", "FactorGraph"} <= set(dir(mapmrf))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        mapmrf.nothing  # noqa: B018


def test_names_are_found_without_imports() -> None:
    program = (
        "import sys, mapmrf\n"
        "assert 'WCSP' in dir(mapmrf) and not hasattr(mapmrf, 'lslp') and not hasattr(mapmrf, 'Nothing')\n"
        "print([name for name in ('numpy', 'numba', 'mapmrf.run.method') if name in sys.modules])\n"
        "from mapmrf import LSLP, WCSP\n"
        "print(LSLP.name, WCSP.name)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "[]\nlslp wcsp\n"


WINGS = ("batch", "bench", "bridges", "cli", "datasets", "formats", "images", "plots")


def test_a_private_name_is_imported_by_its_own_package_only() -> None:
    for module, nodes in import_nodes().items():
        for node in nodes:
            inside = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                top, *rest = f"{inside}{alias.name}".removeprefix("mapmrf.").split(".")
                if top in WINGS and top != module.split(".")[0]:
                    assert not any(part.startswith("_") for part in rest), f"{module} imports {inside}{alias.name}"
