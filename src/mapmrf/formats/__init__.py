"""Model files: `read` and `write` choose the format by the suffix of the file.

A format is one module of this package. It declares `SUFFIXES` and two functions, ``read(path, *, values)`` and
``write(graph, path, *, values)``. Two more are optional: ``sniff(data)`` recognises files with an unknown suffix, and
``losses(graph)`` describes what a file cannot represent; without it, names are lost. A format that stores the weights
of factors declares ``WEIGHTS = True``; for all others, weighted tables are written out.
Nothing else has to be registered. A file such as ``model.uai`` imports the module of that name alone; all modules are
imported when another suffix is looked up. Modules of other packages are added by entry points of the group
``mapmrf.formats``.
"""

from __future__ import annotations

import functools
import importlib
import logging
import pkgutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from mapmrf.errors import FormatError, GraphError, MapMRFError, OptionError
from mapmrf.formats import files as _files
from mapmrf.formats.files import AnyPath, beside, names_lost, plain_name, read_bytes
from mapmrf.model.graph import FactorGraph

if TYPE_CHECKING:
    from mapmrf.model.model import Model

__all__ = ["read", "suffixes", "write"]

_VALUES = ("potential", "log", "cost")
_log = logging.getLogger("mapmrf")


class Format(Protocol):
    """The interface of a format module."""

    SUFFIXES: tuple[str, ...]

    def read(self, path: Path, *, values: str | None) -> FactorGraph:
        """Read a model; `values` is the meaning of the numbers, None for the format's default."""

    def write(self, graph: FactorGraph, path: Path, *, values: str | None) -> None:
        """Write a model."""


def read(
    path: AnyPath,
    *,
    evidence: AnyPath | Mapping[int | str, int | str] | None = None,
    values: str | None = None,
    memory_limit: float | str | None = None,
) -> FactorGraph:
    """Read a model file in any known format, compressed (``.gz``, ``.bz2``, ``.xz``) or not.

    Parameters
    ----------
    path
        The file, or ``"-"`` for standard input; its suffix determines the format. With an unknown suffix, and for
        pipes, it is recognised by its content if possible.
    evidence
        Observed variables: an evidence file, of which the first sample is used, a mapping variable -> state, a text
        such as ``"rain=yes,wet=no"``, or ``"auto"`` for the file beside the model, ``model.uai.evid``, if there is one.
    values
        Meaning of the numbers in the file, where the format leaves it open: ``"potential"``, ``"log"`` (natural logs)
        or ``"cost"`` (to be minimised). By default as given by the suffix.
    memory_limit
        Memory for reading in bytes or as a string such as ``"2G"``, including the file and all arrays made from it; by
        default the memory of the machine. A small file may describe large tables: if it needs more, it is rejected
        before that is allocated.

    Raises
    ------
    FormatError
        If the file cannot be read, or needs more than `memory_limit`; the message is one line with the file, the place,
        and what was found and expected.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "pair.uai")
    ...     _ = path.write_text("MARKOV 2  2 2  1  2 0 1  4  1 2 3 4")
    ...     graph = mapmrf.read(path, evidence={0: 0})
    >>> graph
    FactorGraph(n_vars=2, n_factors=0, n_tables=0)
    >>> round(graph.value([0, 1]), 6)
    0.693147
    """
    _check_values(values)
    path = Path(path)
    with _files.spending(memory_limit), np.errstate(over="ignore"):
        graph = _format_to_read(path).read(path, values=values)
        if evidence is None:
            return graph
        from mapmrf.formats.evidence import observed

        found = beside(path) if evidence == "auto" else evidence
        return graph if found is None else observed(graph, found)


def write(graph: FactorGraph | Model, path: AnyPath, *, values: str | None = None) -> None:
    """Write a model in the format and with the compression given by the suffix of the file.

    The file is written completely or not at all. Loss of information, such as names or digits, is logged. If the format
    has no weights of factors, they are multiplied into the tables, exactly, which is logged as well.

    Parameters
    ----------
    graph
        The model, as a graph or built by name.
    path
        The file to write, such as ``"model.uai.gz"``.
    values
        Meaning of the numbers to write, where the format leaves it open; by default as given by the suffix.

    Raises
    ------
    FormatError
        If the suffix is unknown, the format cannot represent the model, or the file cannot be written.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2], [(1, 0)], [[0.5, 0.0, 0.0, 0.25]])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     mapmrf.write(graph, pathlib.Path(folder, "pair.LG.xz"))
    ...     mapmrf.read(pathlib.Path(folder, "pair.LG.xz")).value([1, 1])
    0.25
    """
    _check_values(values)
    if not isinstance(graph, FactorGraph):
        from mapmrf.model.model import Model

        graph = graph.graph() if isinstance(graph, Model) else graph
    if not isinstance(graph, FactorGraph):
        raise GraphError(f"found a {type(graph).__name__} to write, expected a FactorGraph and then the file")
    path = Path(path)
    known = _format_of(path)
    if known is None:
        raise FormatError(_unknown(path))
    if graph.constraints is not None and not getattr(known, "CONSTRAINTS", False):
        first = graph.constraints.made_by[0]
        raise FormatError(
            f"{path}: the format has no constraints, and the model has {graph.n_constraints}, the first: {first}; "
            "convert --tables, or mapmrf.constraints.as_tables.without_constraints(graph), puts tables in their place"
        )
    if graph.weight is not None and not getattr(known, "WEIGHTS", False):
        n_before, graph = graph.n_tables, graph.expanded()
        _log.info("%s: the format has no weights: written as %d tables instead of %d", path, graph.n_tables, n_before)
    with np.errstate(over="ignore"):  # what is too large becomes infinite, for which writers check
        known.write(graph, path, values=values)
        lost = getattr(known, "losses", names_lost)(graph)
    if lost:
        _log.warning("%s: %s", path, "; ".join(lost))


def suffixes() -> tuple[str, ...]:
    """All known suffixes, each of which may be followed by .gz, .bz2 or .xz.

    Examples
    --------
    >>> ".uai" in suffixes()
    True
    """
    return tuple(sorted(_register()))


@functools.cache
def _register() -> dict[str, Format]:
    """Suffix in lower case -> format, from all modules of this package that declare `SUFFIXES`."""
    register = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        for suffix in getattr(module, "SUFFIXES", ()):
            register[suffix.lower()] = cast(Format, module)
    from mapmrf.run.registry import declared, load

    for entry in declared("mapmrf.formats").values():
        try:
            plugin = load(entry)
        except MapMRFError as error:  # files in other formats can still be read
            _log.warning("%s", error)
            continue
        for suffix in getattr(plugin, "SUFFIXES", ()):
            register.setdefault(suffix.lower(), cast(Format, plugin))
    return register


def _format_of(path: Path) -> Format | None:
    """The module that the last suffix names, otherwise the format with the longest suffix that fits."""
    name = plain_name(path)
    only = Path(name).suffix
    if only[1:].isidentifier() and find_spec(f"{__name__}.{only[1:]}") is not None:
        module = importlib.import_module(f"{__name__}.{only[1:]}")
        if only in getattr(module, "SUFFIXES", ()):
            return cast(Format, module)
    fitting = [suffix for suffix in _register() if name.endswith(suffix)]
    return _register()[max(fitting, key=len)] if fitting else None


def _format_to_read(path: Path) -> Format:
    known = _format_of(path)
    if known is not None:
        return known
    data = read_bytes(path)
    for candidate in _register().values():
        sniff = getattr(candidate, "sniff", None)
        if sniff is not None and sniff(data):
            return candidate
    raise FormatError(_unknown(path))


def _unknown(path: Path) -> str:
    found = Path(plain_name(path)).suffix
    what = f"unknown suffix {found!r}" if found else "a name without a suffix"
    return f"{path}: {what}, expected one of {' '.join(suffixes())}, also with .gz, .bz2 or .xz"


def _check_values(values: str | None) -> None:
    if values is not None and values not in _VALUES:
        raise OptionError(f"values={values!r}, expected one of {', '.join(_VALUES)}")
