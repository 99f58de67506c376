"""Names of variables and states, and the lookup of evidence by name."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.errors import GraphError, UnknownName, suggestion


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
