"""Names of variables and states, and the lookup of evidence by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from mapmrf.arrays import Ints
from mapmrf.errors import GraphError, UnknownName


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


def checked_names(names: Names | None, card: Ints) -> Names | None:
    """Return the names; raise GraphError unless every variable and, where given, every state has one."""
    if names is None:
        return None
    if len(names.variables) != len(card):
        raise GraphError(f"{len(names.variables)} variable names for {len(card)} variables")
    if names.states is not None:
        if len(names.states) != len(card):
            raise GraphError(f"state names of {len(names.states)} variables for {len(card)} variables")
        for i, states in enumerate(names.states):
            if len(states) != card[i]:
                raise GraphError(f"variable {names.variables[i]!r}: {len(states)} state names for {card[i]} states")
    return names


def locate_variable(names: Names | None, card: Ints, variable: int | str) -> int:
    """Index of a variable given by index or name."""
    if isinstance(variable, str):
        if names is None or variable not in names.place:
            raise UnknownName(f"no variable is named {variable!r}")
        variable = names.place[variable]
    i = int(variable)
    if not 0 <= i < len(card):
        raise GraphError(f"variable {i} does not exist, expected 0 to {len(card) - 1}")
    return i


def locate_state(names: Names | None, card: Ints, i: int, state: int | str) -> int:
    """Index of a state of variable `i`, given by index or name."""
    if isinstance(state, str):
        known = names.states[i] if names is not None and names.states else ()
        if state not in known:
            name = i if names is None else names.variables[i]
            raise UnknownName(f"variable {name!r} has no state named {state!r}")
        state = known.index(state)
    k = int(state)
    if not 0 <= k < card[i]:
        raise GraphError(f"evidence {k} on variable {i}, expected 0 to {card[i] - 1}")
    return k
