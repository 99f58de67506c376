"""Write the tables of methods, options and formats into the pages: ``python docs/tables.py [--check]``.

The public names with their types, `__init__.pyi`, are written from the registry as well.

A page asks for a table by two marks, ``<!-- table: NAME -->`` and ``<!-- end -->``; the text between them is replaced.
The tables are made from the public classes and modules: titles and promises from the class attributes of a method,
options from its fields and the `Attributes` section of its docstring, formats from `SUFFIXES` and the first line of the
module's docstring.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import mapmrf
import mapmrf.formats
from mapmrf.methods.auto.settings import Settings
from mapmrf.run.registry import described_options

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
STUBS = ROOT / "src" / "mapmrf" / "__init__.pyi"
MARKED = re.compile(r"(?<=^<!-- table: )(\w+)( -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
NO_LIMIT = 2**31 - 1
"""Limits from here on are shown as none."""

Rows = list[list[str]]


def main() -> int:
    """Rewrite the pages that are out of date, or only name them; return the exit code."""
    check = sys.argv[1:] == ["--check"]
    texts = {page: updated(page) for page in PAGES} | {STUBS: stubs()}
    stale = [page for page, text in texts.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    for page in stale:
        print(f"{page.relative_to(ROOT)}: {'out of date, run python docs/tables.py' if check else 'rewritten'}")
        if not check:
            page.write_text(texts[page], encoding="utf-8")
    return int(check and bool(stale))


def updated(page: Path) -> str:
    """The text of a page with all its tables as the code has them."""
    text = page.read_text(encoding="utf-8")
    return MARKED.sub(lambda match: f"{match[1]}{match[2]}\n{TABLES[match[1]](page)}\n\n", text)


def markdown(header: list[str], rows: Rows) -> str:
    """A table in Markdown."""
    lines = [header, ["---"] * len(header), *([cell.replace("|", r"\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" if line[0] != "---" else "|---" * len(line) + "|" for line in lines)


def stubs() -> str:
    """The public names as type checkers see them, of which the package imports most on first use only."""
    names = {"mapmrf._version": ["__version__"], "mapmrf": list(mapmrf._MODULES), **mapmrf._NAMES}
    names["mapmrf.errors"] = [name for name, value in vars(mapmrf).items() if is_error(value)]
    names |= {f"mapmrf.methods.{name}": [cls.__name__] for name, cls in ordered_methods()}
    lines = [f"from {module} import {name} as {name}" for module, found in names.items() for name in found]
    return "# Written by docs/tables.py.\n" + "\n".join(sorted(lines)) + "\n"


def is_error(value: object) -> bool:
    return isinstance(value, type) and value.__module__ == "mapmrf.errors"


# -- methods ----------------------------------------------------------------------------------------------------------


def method_table(page: Path) -> str:
    """The methods that most users need."""
    return promises(page, lambda cls: cls.recommended)


def all_methods(page: Path) -> str:
    """The recommended methods, then the others."""
    others = promises(page, lambda cls: not cls.recommended)
    return f"{method_table(page)}\n\nMethods of the paper, and building blocks:\n\n{others}"


def promises(page: Path, chosen: Callable[[type[mapmrf.Method]], bool]) -> str:
    """Some methods with their titles, and whether they give a bound and are exact."""
    folder = Path(os.path.relpath(DOCS / "methods", page.parent)).as_posix()
    rows = []
    for name, cls in ordered_methods():
        link = f"[`{name}`]({folder}/{name}.md)" + (" (default)" if name == default_method() else "")
        rows += [[link, cls.title, bound_promise(cls), exact_promise(cls)]] if chosen(cls) else []
    return markdown(["name", "what it is", "upper bound", "exact"], rows)


FAMILIES = {
    "portfolio": "The default of `solve`: simplify the model, then let the methods below take turns.",
    "message passing": "Messages along the edges of the factor graph. `trws`, `mplp` and relatives descend on the "
    "dual of the linear relaxation and give a bound; `bp` passes beliefs.",
    "ADMM": "The relaxation as a consensus problem, split into factors and variables. `ad3` solves the linear "
    "relaxation; `lslp` and `l2box` add a sphere, so that the limit is a labelling.",
    "LP and decomposition": "The linear relaxation by a general solver, or its dual over trees and factors by "
    "subgradients.",
    "exact": "Searches that end with a proof of optimality, if they are given the time and the memory.",
    "graph cuts": "Minimum cuts: exact for submodular binary models, persistent states for all binary ones, and large "
    "moves for many labels.",
    "dense binary": "For binary pairwise models in which most variables interact, such as Max-Cut and QUBO.",
    "local search": "Labellings that improve by moves, without a bound. Fast, and a good last step (`polish`) after "
    "others.",
}
"""Groups of methods in the order of the overview, each with what its methods have in common."""


def overview(page: Path) -> str:
    """All methods by family: what they have in common, then a table of each."""
    parts = []
    for family, about in FAMILIES.items():
        table = promises(page, lambda cls, family=family: cls.family == family)  # type: ignore[misc]
        parts.append(f"## {family[0].upper()}{family[1:]}\n\n{about}\n\n{table}")
    return "\n\n".join(parts)


def constraint_table(page: Path) -> str:
    """Which methods support constraints natively, and which get tables in their place."""
    folder = Path(os.path.relpath(DOCS / "methods", page.parent)).as_posix()
    rows = []
    for native, what in ((True, "natively"), (False, "rewritten as tables with auxiliary variables")):
        names = [name for name, cls in ordered_methods() if cls.native_constraints == native]
        rows.append([what, ", ".join(f"[`{name}`]({folder}/{name}.md)" for name in names)])
    return markdown(["constraints are handled", "by"], rows)


def class_list(page: Path) -> str:
    """The classes of all methods as mkdocstrings wants them."""
    return "\n\n".join(
        f"::: {cls.__module__}.{cls.__qualname__}\n    options:\n      members: false" for _, cls in ordered_methods()
    )


def ordered_methods() -> list[tuple[str, type[mapmrf.Method]]]:
    """The default, exact methods, those with a bound, and all others; each kind by name."""

    def key(item: tuple[str, type[mapmrf.Method]]) -> tuple[bool, bool, bool, str]:
        name, cls = item
        return name != default_method(), not cls.exact, not cls.gives_bound, name

    return sorted(mapmrf.methods().items(), key=key)


def default_method() -> str:
    """The name of the default method of `solve`."""
    return str(inspect.signature(mapmrf.solve).parameters["method"].default)


def bound_promise(cls: type[mapmrf.Method]) -> str:
    """Whether a method gives an upper bound."""
    if cls.gives_bound:
        return "yes"
    return "on trees" if cls.exact_on_trees else "no"


def exact_promise(cls: type[mapmrf.Method]) -> str:
    """When the labelling of a method is optimal for certain."""
    if cls.exact:
        return "yes"
    promises = ["on trees"] * cls.exact_on_trees + ["if the gap closes"] * cls.gives_bound
    return ", or ".join(promises) or "no"


# -- options ----------------------------------------------------------------------------------------------------------


def option_table(page: Path) -> str:
    """The options of the method that the page is about; options that are documented together share a row."""
    cls = mapmrf.methods()[page.stem]
    documented = {names: plain(text) for names, text in described_options(cls).items()}
    options = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
    listed = [name for names in documented for name in names]
    if sorted(listed) != sorted(options):
        raise ValueError(f"{cls.__name__}: the docstring describes {listed}, expected {options}")
    columns = {"default": cls()} | {f"preset `{name}`": cls(preset=name) for name in presets(documented)}  # type: ignore[call-arg]
    rows = []
    for names, meaning in documented.items():
        values = ["<br>".join(shown(getattr(method, name)) for name in names) for method in columns.values()]
        rows.append(["<br>".join(f"`{name}`" for name in names), *values, meaning])
    return markdown(["option", *columns, "meaning"], rows)


def presets(documented: dict[tuple[str, ...], str]) -> list[str]:
    """Presets beside the default one, as the option `preset` lists them."""
    return [name for name in re.findall(r'"(\w+)"', documented.get(("preset",), "")) if name != "default"]


def plain(text: str) -> str:
    """A paragraph of reStructuredText in one line of Markdown."""
    return re.sub(r"``(.*?)``", r"`\1`", " ".join(text.split()))


def shown(value: Any) -> str:
    """A default in a table."""
    if isinstance(value, int) and value >= NO_LIMIT:
        return "no limit"
    return f"`{value}`"


def setting_table(page: Path) -> str:
    """The numbers of `auto` with their comments, by the headings that stand above them."""
    rows, heading = [], ""
    for line in inspect.getsource(Settings).splitlines():
        if found := re.fullmatch(r"    # (.+)", line):
            heading = f"**{found[1]}**"
        elif found := re.fullmatch(r"    (\w+): \w+ = (\S+)  # (.+)", line):
            rows.append([heading, f"`{found[1]}`", found[2].replace("_", " "), found[3]])
            heading = ""
    return markdown(["", "setting", "value", "meaning"], rows)


# -- formats ----------------------------------------------------------------------------------------------------------


def format_table(page: Path) -> str:
    """All formats with their suffixes."""
    return markdown(["suffix", "format"], sorted(format_row(module) for module in format_modules()))


def format_modules() -> Iterator[ModuleType]:
    """The modules of `mapmrf.formats` that are formats."""
    for info in pkgutil.iter_modules(mapmrf.formats.__path__, "mapmrf.formats."):
        module = importlib.import_module(info.name)
        if hasattr(module, "SUFFIXES"):
            yield module


def format_row(module: ModuleType) -> list[str]:
    """Suffixes and the first line of the docstring, in which they need not be repeated."""
    first = (inspect.getdoc(module) or "").partition("\n\n")[0]
    suffix = r"``\.[\w.]+``"
    text = re.sub(rf",? {suffix}(?:(?:,| and|, and) {suffix})*(?=[:,])", "", " ".join(first.split()), count=1)
    return [", ".join(f"`{suffix}`" for suffix in module.SUFFIXES), plain(text)]


# -- the reference ----------------------------------------------------------------------------------------------------


def reference(page: Path) -> str:
    """The pages of the reference in the order of the navigation, each with the names on it."""
    rows = []
    for name in re.findall(r"api/(\w+)\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")):
        text = (DOCS / "api" / f"{name}.md").read_text(encoding="utf-8")
        names = [path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)$", text, re.MULTILINE)]
        rows.append([f"[{text.splitlines()[0].removeprefix('# ')}](api/{name}.md)", ", ".join(f"`{n}`" for n in names)])
    return markdown(["page", "names"], rows)


TABLES: dict[str, Callable[[Path], str]] = {
    "methods": method_table,
    "all_methods": all_methods,
    "overview": overview,
    "classes": class_list,
    "constraints": constraint_table,
    "options": option_table,
    "settings": setting_table,
    "formats": format_table,
    "reference": reference,
}

if __name__ == "__main__":
    sys.exit(main())
