"""Names of variables and states in formats that cannot represent all of them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mapmrf.model.graph import FactorGraph, Names


def names_lost(graph: FactorGraph) -> list[str]:
    """Describe the names that a format without names drops."""
    if graph.names is None or graph.n_vars == 0:
        return []
    what = "variables" if graph.names.states is None else "variables and their states"
    return [f"the names of {graph.n_vars} {what} are dropped"]


@dataclass(frozen=True)
class Allowed:
    """Which names a format can represent, and whether it needs names for states.

    A variable without a name, or with one that is not allowed or not unique, is called ``x`` and its index; likewise,
    with ``s``, the states of a variable if one of them has such a name. If state names are optional, they are omitted.
    """

    pattern: re.Pattern[str]
    states_required: bool = False

    def fits(self, name: str) -> bool:
        """Return whether a name can be written; names that are not printable never can."""
        return name.isprintable() and self.pattern.fullmatch(name) is not None


def fitting_names(graph: FactorGraph, allowed: Allowed) -> Names:
    """Names that a format can represent; a variable without state names has none in `states`."""
    taken = _usable(graph.names.variables, allowed) if graph.names else {}
    variables = []
    for i in range(graph.n_vars):
        name = graph.names.variables[i] if graph.names else ""
        if taken.get(name) != i:
            name = _free(f"x{i}", taken)
            taken[name] = i
        variables.append(name)
    return Names(tuple(variables), tuple(_states(graph, i, allowed) for i in range(graph.n_vars)))


def names_replaced(graph: FactorGraph, allowed: Allowed) -> list[str]:
    """Describe how many names `fitting_names` changes."""
    if graph.names is None:
        return []
    fitting = fitting_names(graph, allowed)
    lost = []
    n = sum(a != b for a, b in zip(graph.names.variables, fitting.variables, strict=True))
    if n:
        lost.append(f"the names of {n} variables are replaced")
    states = zip(graph.names.states or (), fitting.states or (), strict=False)
    n = sum(a != (b or _numbers(len(a))) for a, b in states)
    if n:
        lost.append(f"the names of the states of {n} variables are replaced")
    return lost


def _usable(names: tuple[str, ...], allowed: Allowed) -> dict[str, int]:
    """Name -> first variable that has it, for names that are allowed."""
    usable: dict[str, int] = {}
    for i, name in enumerate(names):
        if allowed.fits(name):
            usable.setdefault(name, i)
    return usable


def _free(name: str, taken: dict[str, int]) -> str:
    while name in taken:
        name += "_"
    return name


def _states(graph: FactorGraph, i: int, allowed: Allowed) -> tuple[str, ...]:
    """Names of the states of a variable, empty if it has none."""
    known = graph.names.states[i] if graph.names and graph.names.states else ()
    if known and len(set(known)) == len(known) and all(map(allowed.fits, known)):
        return known
    if not allowed.states_required:
        return ()
    return tuple(f"s{k}" for k in range(int(graph.card[i])))


def _numbers(n: int) -> tuple[str, ...]:
    return tuple(map(str, range(n)))
