"""Names of variables and states, and the lookup of evidence by name."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.errors import GraphError, UnknownName, suggestion

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True)
class Names:
    """Names of the variables and, where known, of their states.

    Examples
    --------
    >>> names = Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    >>> names.place["Grass"]
    1
    """

    variables: tuple[str, ...]
    states: tuple[tuple[str, ...], ...] | None = None

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.variables[:6])) + (", ..." if len(self.variables) > 6 else "")
        return f"Names({len(self.variables)}: {shown}{'' if self.states is None else ', with states'})"

    @cached_property
    def place(self) -> dict[str, int]:
        """Variable name -> index."""
        return {name: i for i, name in enumerate(self.variables)}


NamesLike = Names | Sequence[str] | Mapping[str, Sequence[str]]
"""Names, the names of the variables alone, or a mapping from them to the names of their states."""


def checked_names(names: NamesLike | None, card: Ints) -> Names | None:
    if names is None:
        return None
    if isinstance(names, Mapping):
        names = Names(tuple(map(str, names)), tuple(tuple(map(str, states)) for states in names.values()))
    elif not isinstance(names, Names):
        names = Names(tuple(map(str, names)))
    if len(names.variables) != len(card):
        raise GraphError(f"{len(names.variables)} variable names for {len(card)} variables")
    if names.states is not None:
        if len(names.states) != len(card):
            raise GraphError(f"state names of {len(names.states)} variables for {len(card)} variables")
        for i, states in enumerate(names.states):
            if len(states) != card[i]:
                raise GraphError(f"variable {names.variables[i]!r}: {len(states)} state names for {card[i]} states")
    return names


def locate_variable(names: Names | None, card: Ints, variable: object) -> int:
    if isinstance(variable, str):
        if names is None or variable not in names.place:
            known = () if names is None else names.variables
            raise UnknownName(f"no variable is named {variable!r}{suggestion(variable, known)}")
        return names.place[variable]
    i = index_of(variable)
    if i is None:
        raise GraphError(f"{variable!r} is not a variable, expected an index or a name")
    if not 0 <= i < len(card):
        raise GraphError(f"variable {i} does not exist, expected 0 to {len(card) - 1}")
    return i


def locate_state(names: Names | None, card: Ints, i: int, state: object) -> int:
    variable = i if names is None else names.variables[i]
    if isinstance(state, str | bool | np.bool_):
        known = names.states[i] if names is not None and names.states else ()
        named = find_state(known, state)
        if named is None:
            raise UnknownName(f"variable {variable!r} has no state named {state!r}{suggestion(str(state), known)}")
        return named
    k = index_of(state)
    if k is None:
        raise GraphError(f"state {state!r} of variable {variable!r}: expected an index or a name")
    if not 0 <= k < card[i]:
        raise GraphError(f"variable {variable!r} has no state {k}, expected 0 to {card[i] - 1}")
    return k


def find_state(states: Sequence[str], state: str | bool | np.bool_) -> int | None:
    """Place of a state among the names; a bool is no number, but the one state called "true", "False" and so on."""
    if isinstance(state, str):
        return states.index(state) if state in states else None
    same = [k for k, name in enumerate(states) if name.lower() == str(state).lower()]
    return same[0] if len(same) == 1 else None


def index_of(value: object) -> int | None:
    """An integer of any library as int; None for all else: bools and floats are no indices."""
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


# -- Labels of other libraries as names, and names as labels -----------------------------------------------------------


def texts(labels: Sequence[Hashable], what: str) -> tuple[str, ...]:
    """Labels of any type as distinct strings: ``str``, or ``repr`` where that distinguishes 1 from "1"."""
    for text in (str, repr):
        found = tuple(text(label) for label in labels)
        if len(set(found)) == len(found):
            return found
    raise GraphError(f"two {what} are both written {_repeated(found)}, expected labels with different text")


def names_of(variables: Sequence[Hashable], states: Sequence[Sequence[Hashable]] | None) -> Names:
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
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return repr(name)
        seen.add(name)
    return ""
