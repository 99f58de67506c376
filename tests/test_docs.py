"""The documentation: what it shows runs, what it links to exists, and everything public is in the reference.

What is public has an example that runs, and says the shapes of the arrays it takes.
"""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import itertools
import re
import shlex
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import command_line
import mapmrf
from mapmrf.bench import report
from mapmrf.run.method import PhasedRun

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SOURCE = Path(mapmrf.__file__).parent
PAGES = [*(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "CHANGELOG")), *sorted(DOCS.rglob("*.md"))]

FENCED = re.compile(r"^( *)```(\w*)([^\n]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


class Block(NamedTuple):
    language: str
    title: str
    code: str
    line: int


def blocks(page: Path, language: str | None = None) -> list[Block]:
    """The fenced blocks of a page, of a language or all."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCED.finditer(text):
        if language in (None, match[2]):
            title = re.search(r'title="([^"]*)"', match[3])
            code = "".join(line.removeprefix(match[1]) for line in match[4].splitlines(keepends=True))
            found.append(Block(match[2], title[1] if title else "", code, text.count("\n", 0, match.start()) + 2))
    return found


def put_files(page: Path, folder: Path) -> None:
    """Write the blocks that have the name of a file as their title; sources of the package have their own way."""
    for block in blocks(page):
        if block.title and not block.title.startswith("src/"):
            (folder / block.title).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.title).write_text(block.code, encoding="utf-8")


def with_blocks(language: str) -> list[Path]:
    return [page for page in PAGES if blocks(page, language)]


# -- what runs --------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def _few_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first figures of a benchmark are enough here: tests/bench draws all of them."""
    every = report.figures
    monkeypatch.setattr(report, "figures", lambda records: itertools.islice(every(records), 2))


MODULES = {
    ".".join(("mapmrf", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in sorted(SOURCE.rglob("*.py"))
}


def test_every_module_can_be_imported() -> None:
    for name in MODULES:
        if importlib.util.find_spec("torch") or name != "mapmrf.torch.layers":
            importlib.import_module(name)


@pytest.mark.parametrize("name", [name for name, path in MODULES.items() if ">>> " in path.read_text(encoding="utf-8")])
def test_doctests_of_the_package(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "mapmrf.torch.layers":
        pytest.importorskip("torch", reason="PyTorch is an extra: pip install 'mapmrf[torch]'")
    failures, _ = doctest.testmod(importlib.import_module(name))
    assert failures == 0


@pytest.fixture
def placed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """A function that puts a module into a sub-package of mapmrf, as its title says, for the time of a test."""
    from mapmrf.constraints.kinds import kinds
    from mapmrf.formats import _register

    placed: list[tuple[Any, str]] = []

    def place(title: str, code: str) -> None:
        path = tmp_path / "placed" / title
        path.parent.mkdir(parents=True)
        path.write_text(code, encoding="utf-8")
        _, *folders, name = Path(title).with_suffix("").parts
        package = importlib.import_module(".".join(folders))
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(path.parent)])
        placed.append((package, name))
        importlib.invalidate_caches()
        _register.cache_clear()
        kinds.cache_clear()

    yield place
    for package, name in placed:
        sys.modules.pop(f"{package.__name__}.{name}", None)
        vars(package).pop(name, None)
    _register.cache_clear()
    kinds.cache_clear()


@pytest.fixture
def forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Modules that a page has put into its folder, and what it has added to the register, are gone afterwards."""
    package = importlib.import_module("mapmrf.methods")
    monkeypatch.setattr(package, "__path__", list(package.__path__))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if Path(getattr(sys.modules[name], "__file__", None) or "/").resolve().is_relative_to(tmp_path):
            sys.modules.pop(name)
            vars(package).pop(name.rpartition(".")[2], None)


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("page", with_blocks("python"), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_blocks_run_one_after_another(page, placed, tmp_path, monkeypatch) -> None:
    """A block with a title becomes the file of that name; the others are one script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    put_files(page, tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        if block.title.startswith("src/"):
            placed(block.title, block.code)
        elif not block.title:
            # Line numbers of a failure are those of the page.
            exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec"), names)


def test_a_method_a_format_and_a_constraint_are_one_file_each(placed: Callable[[str, str], None]) -> None:
    files = [block for block in blocks(DOCS / "extend.md", "python") if block.title.startswith("src/")]
    folders = [Path(block.title).parent.name for block in files]
    assert folders == ["methods", "formats", "kinds"]
    for block in files:
        placed(block.title, block.code)
    assert "sampling" in mapmrf.methods()
    assert "sampling" in command_line.done("methods")
    with pytest.raises(mapmrf.OptionError, match="did you mean 'temperature'"):
        mapmrf.solve(mapmrf.FactorGraph.from_tables([2], [], []), "sampling", temprature=2)
    assert ".couplings" in mapmrf.formats.suffixes()
    rng = np.random.default_rng(0)
    for penalty in (None, 0.7):
        graph = mapmrf.FactorGraph.from_tables([3, 2, 4], [(0,), (1,), (2,)], [rng.normal(size=r) for r in (3, 2, 4)])
        rising = graph.with_constraints([mapmrf.constraints.increasing([2, 0, 1], penalty)])
        values = [graph.value(x) - (0 if x[2] <= x[0] <= x[1] else penalty or np.inf) for x in np.ndindex(3, 2, 4)]
        for method in ("exhaustive", "wcsp", "bp", "auto", "icm"):
            result = mapmrf.solve(rising, method)
            assert rising.value(result.labels) == result.value <= max(values) + 1e-9
            assert not result.status.closes_gap or result.value == pytest.approx(max(values))


@pytest.mark.parametrize("page", with_blocks("console"), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_run_and_print_what_the_page_shows(page, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    put_files(page, tmp_path)
    for block in blocks(page, "console"):
        joined = re.sub(r" \\\n +", " ", block.code)  # a backslash continues a command
        for command in re.split(r"^\$ ", joined, flags=re.MULTILINE)[1:]:
            line, *shown = command.splitlines()
            program, *arguments = shlex.split(line)
            assert program == "mapmrf"
            done = command_line.run(*arguments)
            assert done.exit_code == 0, f"{line}: {done.output}"
            if shown:
                assert_same_text(shown, done.stdout.splitlines())


def assert_same_text(shown: list[str], printed: list[str]) -> None:
    """Equal words and, to six digits, equal numbers; iterations and times may differ."""
    for expected, found in itertools.zip_longest(shown, printed, fillvalue=""):
        if not expected.startswith("method "):
            for one, other in itertools.zip_longest(expected.split(), found.split(), fillvalue=""):
                assert one == other or near(one, other), f"shown {expected!r}, printed {found!r}"


def near(one: str, other: str) -> bool:
    try:
        return float(one.strip("()")) == pytest.approx(float(other.strip("()")), rel=1e-6, abs=1e-6)
    except ValueError:
        return False


def test_a_newcomers_twelve_tasks_take_fifteen_lines_each() -> None:
    lines = [block.code.count("\n") for block in blocks(DOCS / "tasks.md", "python")]
    assert len(lines) == 1 + 12 and max(lines) <= 15


# -- what exists ------------------------------------------------------------------------------------------------------


def test_the_readme_has_the_two_commands_and_every_page_is_in_the_navigation() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert "pip install . && mapmrf demo" in lines
    assert "pip install '.[test]' && pytest" in lines
    listed = re.findall(r"\S+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}
    assert sorted(listed) == sorted(pages)


@every_page
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} links to {target}"


def prose(page: Path) -> str:
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors that mkdocs gives to the headings of a page."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
        found.add(re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower()))
    return found


CODE_WIDTH = 80


@every_page
def test_code_is_narrow_enough_to_be_read_without_scrolling(page: Path) -> None:
    """Code and commands; texts such as the listing of a folder, and what a command prints, may be wider."""
    wide = []
    for block in blocks(page):
        lines = enumerate(block.code.splitlines(), start=block.line)
        if block.language == "console":  # commands, with the lines that continue them
            lines = iter([(at, line) for at, line in lines if line.startswith(("$ ", "    "))])
        if block.language not in ("", "text"):
            wide += [f"{page.name}:{at}: {line}" for at, line in lines if len(line) > CODE_WIDTH]
    assert wide == []


def test_what_the_architecture_page_names_exists() -> None:
    """Modules and tests in the table "Where do I change X"; a package may still be a module."""
    table = (DOCS / "architecture.md").read_text(encoding="utf-8").split("## Where do I change X")[1]
    named = [name for name in re.findall(r"`([\w/]+(?:\.py|/))`", table) if not name.startswith("docs/")]
    assert len(named) > 20
    for name in named:
        path = ROOT / name if name.startswith("tests/") else SOURCE / name
        assert path.exists() or path.with_suffix(".py").exists(), name


def test_the_version_is_in_the_changelog_and_the_citation() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "## [Unreleased]" in changes or f"## [{mapmrf.__version__}]" in changes
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {mapmrf.__version__}\n" in citation
    assert f"{{{mapmrf.__version__}}}" in (DOCS / "citing.md").read_text(encoding="utf-8")


# -- the reference ----------------------------------------------------------------------------------------------------


PACKAGES = (
    "batch", "bench", "bridges", "certificates", "constraints", "datasets", "distributed", "errors", "formats", "graph",
    "images", "learn", "method", "plots", "result",
)  # fmt: skip
ARRAYS = re.compile(r"\b(ArrayLike|Floats|Ints|Bools)\b")
SHAPE = re.compile(r"\([\w. +*-]+,[\w ,.+*-]*\)")
"""A tuple in brackets: (n_vars,) or (H, W, L)."""

WITHOUT_RUNNING = {
    "mapmrf.bridges.pgmpy.to_pgmpy": "makes a model of pgmpy, which is too large to be asked for by the tests",
}
"""Public names whose example is shown, but not run."""
SHAPELESS = {
    "FactorGraph.from_tables.tables": "one array for each factor, with an entry for each of its configurations",
    "FactorGraph.from_energies.energies": "the same",
}
"""Arrays that have no single shape."""


def exported(package: str) -> list[Any]:
    """Public functions and classes of a package, which `__all__` lists."""
    module = importlib.import_module(package)
    return [
        thing for name in module.__all__ if callable(thing := getattr(module, name)) and not inspect.ismodule(thing)
    ]


def referenced() -> dict[str, Any]:
    """Functions and classes of the reference by full name; the module of errors is one entry for all of them."""
    texts = [page.read_text(encoding="utf-8") for page in sorted((DOCS / "api").glob("*.md"))]
    names = [name for text in texts for name in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
    if importlib.util.find_spec("torch") is None:  # an extra; its layers cannot be imported then
        names = [name for name in names if not name.startswith("mapmrf.torch.layers.")]
    found = {name: thing_of(name) for name in names if name != "mapmrf.errors"}
    return found | {f"mapmrf.errors.{thing.__name__}": thing for thing in exported("mapmrf.errors")}


def thing_of(name: str) -> Any:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def with_methods(things: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Functions, classes and the public methods of the latter.

    Those of a method and its run are left out: `solve` alone calls them, and the class shows how it is used.
    """
    for name, thing in things.items():
        yield name, thing
        if isinstance(thing, type) and not issubclass(thing, mapmrf.Method | PhasedRun):
            for key, member in vars(thing).items():
                function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if not key.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{key}", function


PUBLIC = dict(with_methods(referenced()))


@pytest.mark.parametrize("package", ["mapmrf", *(f"mapmrf.{name}" for name in PACKAGES)])
def test_what_can_be_imported_is_in_the_reference(package: str) -> None:
    listed = {id(thing) for thing in PUBLIC.values()}
    assert exported(package)
    assert [thing.__qualname__ for thing in exported(package) if id(thing) not in listed] == []


@functools.cache
def examples(module: str) -> dict[str, list[doctest.Example]]:
    """Names in a module that `doctest` finds -> their examples."""
    return {test.name: test.examples for test in doctest.DocTestFinder().find(importlib.import_module(module))}


def test_every_public_name_has_an_example_that_runs() -> None:
    for name, thing in referenced().items():
        shown = examples(thing.__module__).get(f"{thing.__module__}.{thing.__qualname__}", [])
        skipped = [example for example in shown if example.options.get(doctest.SKIP)]
        called = any(f"{thing.__name__}(" in example.source for example in skipped)
        assert (name in WITHOUT_RUNNING) == called, name
        assert len(skipped) < len(shown), name


def entry_of(doc: str, name: str, section: str) -> str:
    """What a docstring says of a parameter: its entry in the list, or the whole text where there is no list."""
    if f"{section}\n" not in doc:
        return doc.partition("Examples\n")[0]
    entry = re.compile(rf"^(?:\w+, )*{name}\b[^\n]*(?:\n(?: [^\n]*)?)*", re.MULTILINE)
    found = entry.search(doc.partition(f"{section}\n")[2])
    return found[0] if found else ""


def arrays_of(thing: Any) -> tuple[str, list[str]]:
    """Parameters of a function or fields of a dataclass that are arrays, and the section that describes them."""
    if isinstance(thing, type):
        hints = inspect.get_annotations(thing)
        return "Attributes", [name for name, hint in hints.items() if ARRAYS.search(str(hint))]
    given = inspect.signature(thing).parameters.values()
    return "Parameters", [parameter.name for parameter in given if ARRAYS.search(str(parameter.annotation))]


def test_arrays_have_their_shapes_in_the_docstring() -> None:
    for name, thing in PUBLIC.items():
        section, arrays = arrays_of(thing)
        for array in arrays:
            if f"{thing.__qualname__}.{array}" not in SHAPELESS:
                said = entry_of(inspect.getdoc(thing) or "", array, section)
                assert SHAPE.search(said), f"{name}: what shape has {array}? {said!r}"
