"""Everything public is in the reference, has an example that runs, and says the shapes of the arrays it takes.

The examples themselves are run in `test_docs.py`.
"""

from __future__ import annotations

import doctest
import functools
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mapmrf
from mapmrf.formats import Format
from mapmrf.formats.files import plain_name, read_bytes
from mapmrf.formats.tokens import names_lost
from mapmrf.run.method import PhasedRun

REFERENCE = Path(__file__).parents[1] / "docs" / "api.md"
PACKAGES = ("datasets", "images", "bridges", "plots", "formats", "bench", "learn")
ARRAYS = re.compile(r"\b(ArrayLike|Floats|Ints|Bools)\b")
SHAPE = re.compile(r"\([\w. +*-]+,[\w ,.+*-]*\)")
"""A tuple in brackets: (n_vars,) or (H, W, L)."""

INTERNAL = (Format, names_lost, plain_name, read_bytes)
"""What `mapmrf.formats` is made of, and has no page."""
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
    """Public functions and classes of a package."""
    module = importlib.import_module(package)
    things = [getattr(module, name) for name in dir(module) if not name.startswith("_")]
    own = [thing for thing in things if str(getattr(thing, "__module__", "")).startswith(package)]
    return [thing for thing in own if callable(thing) and not inspect.ismodule(thing) and thing not in INTERNAL]


def referenced() -> dict[str, Any]:
    """Functions and classes of the reference by full name; the module of errors is one entry for all of them."""
    names = re.findall(r"^::: (\S+)$", REFERENCE.read_text(encoding="utf-8"), re.MULTILINE)
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
