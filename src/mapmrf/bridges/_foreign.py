"""Shared by the bridges: importing the other library, and its labels of variables and states as names."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from mapmrf.errors import GraphError
from mapmrf.model.graph import FactorGraph, Names


def need(module: str) -> Any:
    """Import a module of another library, suppressing the warnings of its imports.

    Raises
    ------
    ImportError
        If it is missing; the message has the command that installs the library.
    """
    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(f"this bridge needs {package}: pip install 'mapmrf[{package}]'") from None


def texts(labels: Sequence[Hashable], what: str) -> tuple[str, ...]:
    """Labels of any type as distinct strings: ``str``, or ``repr`` where that distinguishes 1 from "1"."""
    for text in (str, repr):
        found = tuple(text(label) for label in labels)
        if len(set(found)) == len(found):
            return found
    raise GraphError(f"two {what} are both written {_repeated(found)}, expected labels with different text")


def names_of(variables: Sequence[Hashable], states: Sequence[Sequence[Hashable]] | None) -> Names:
    """Names for labels of any type."""
    named = texts(variables, "variables")
    if states is None:
        return Names(named)
    same: dict[tuple[Hashable, ...], tuple[str, ...]] = {}
    found = []
    for name, some in zip(named, states, strict=True):
        key = tuple((type(state), state) for state in some)  # (False, True) == (0, 1)
        if key not in same:
            same[key] = texts(some, f"states of variable {name!r}")
        found.append(same[key])
    return Names(named, tuple(found))


def place_of(label: object, labels: Sequence[Hashable]) -> int | None:
    """Place of a label; None if there is none. True and 1 are different labels, although they are equal."""
    same = (k for k, each in enumerate(labels) if each == label and _is_bool(each) == _is_bool(label))
    return next(same, None)


def _is_bool(label: object) -> bool:
    return isinstance(label, bool | np.bool_)


def labels_of(graph: FactorGraph) -> list[Hashable]:
    """Labels for the variables of a graph: their names, or their indices."""
    if graph.names is None:
        return list(range(graph.n_vars))
    if len(graph.names.place) < graph.n_vars:
        raise GraphError(f"two variables are both named {_repeated(graph.names.variables)}, expected different names")
    return list(graph.names.variables)


def states_of(graph: FactorGraph) -> list[list[Hashable]]:
    """Labels for the states of all variables: their names, or their indices."""
    if graph.names is None or graph.names.states is None:
        return [list(range(k)) for k in graph.card.tolist()]
    for name, some in zip(graph.names.variables, graph.names.states, strict=True):
        if len(set(some)) < len(some):
            raise GraphError(f"variable {name!r}: two states are both named {_repeated(some)}")
    return [list(some) for some in graph.names.states]


def _repeated(names: Sequence[str]) -> str:
    """The first name that is repeated."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return repr(name)
        seen.add(name)
    return ""
