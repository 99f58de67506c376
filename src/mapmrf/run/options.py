"""Options of a method: their types say what is legal, and errors what was found and what was expected."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Hashable
from functools import lru_cache
from numbers import Integral, Real
from typing import Annotated, Any, Literal, NamedTuple, Protocol, Union, cast, get_args, get_origin, get_type_hints

from mapmrf.errors import OptionError

_WANTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The legal values of a number, as a part of its type: from `low`, or `above` it, to `high`."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:  # nan is in no range
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"a number from {self.low} to {self.high}"
        return f"a number above {self.low}" if self.above else f"at least {self.low}"


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0, above=True)]
NonNegativeFloat = Annotated[float, Range(0)]


def check_options(method: Any) -> None:
    """Raise OptionError for the first option whose value its annotation does not allow."""
    for name, kinds in kinds_of(cast(Hashable, type(method))).items():
        value = getattr(method, name)
        expected = [_expected(value, *kind) for kind in kinds]
        if all(expected):
            raise OptionError(f"{method.name}: {name} is {value!r}, expected {' or '.join(expected)}")


def check_number(name: str, value: object, kind: type = float) -> None:
    if not _is_a(value, kind):
        raise OptionError(f"{name} is {value!r}, expected {_WANTED[kind]}")


@lru_cache(maxsize=256)
def kinds_of(cls: Hashable) -> dict[str, list[tuple[Any, Any]]]:
    """The alternatives of every option of a method, each a type and the words or the range that limit it.

    Cached, since this takes longer than a small model.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a class of a notebook or a script may name what only type checkers see
        return {}
    return {item.name: _alternatives(hints[item.name]) for item in dataclasses.fields(cast(Any, cls))}


def _alternatives(hint: Any) -> list[tuple[Any, Any]]:
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for part in get_args(hint) for kind in _alternatives(part)]
    if get_origin(hint) is Annotated:
        return [get_args(hint)]
    return [(Literal, get_args(hint)) if get_origin(hint) is Literal else (hint, None)]


def _expected(value: Any, kind: Any, limits: Any) -> str:
    """What was expected instead of a value that is no such alternative; nothing if it is one."""
    if not _is_a(value, kind):
        return _WANTED[kind]
    if limits is None or value in limits:
        return ""
    return f"one of {', '.join(limits)}" if kind is Literal else str(limits)


def _is_a(value: object, kind: Any) -> bool:
    if type(value) is kind or kind not in _WANTED:  # other types are not checked
        return True
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


# -- The relative gap between a bound and a value, and when it is small enough ----------------------------------------


GAP_TOLERANCE = 1e-6  # default relative gap at which a run may end


def relative_gap(value: float, bound: float | None, unit: float = 1.0) -> float | None:
    """(bound - value) / max(unit, |value|), never negative; None without a bound, inf while no finite value is known.

    `unit` is `FactorGraph.unit`: 1, or less in a model whose potentials are all small.
    """
    if bound is None:
        return None
    if bound == value:
        return 0.0
    if not math.isfinite(value):
        return math.inf
    return max(0.0, (bound - value) / max(unit, abs(value)))


def is_closed(value: float, bound: float, unit: float, tolerance: float) -> bool:
    """Return whether a labelling is feasible and the relative gap between its value and a bound within a tolerance."""
    gap = relative_gap(value, bound, unit)
    return gap is not None and gap <= tolerance and value > -math.inf


class Closable(Protocol):
    """Anything with a gap: an incumbent of a model or of its parts."""

    def closed(self, tolerance: float, absolute: float = 0.0) -> bool:
        """Return whether the gap is within one of the tolerances."""


class GapTolerance(NamedTuple):
    """When a gap is small enough to end a run."""

    # relative, absolute: the relative gap, and the difference of bound and value, either of which is small enough
    relative: float
    absolute: float
    patient: bool  # whether a run that gets there continues for a while in order to close the gap exactly

    @classmethod
    def of(cls, relative: float | None, absolute: float) -> GapTolerance:
        for name, found in (("gap_tolerance", relative), ("abs_gap_tolerance", absolute)):
            if found is not None:
                check_number(name, found)
            if found is not None and math.isnan(found):
                raise OptionError(f"{name} is nan, expected a number")
        if relative is None:
            return cls(GAP_TOLERANCE, absolute, patient=absolute == 0)
        return cls(relative, absolute, patient=False)

    @property
    def of_proofs(self) -> float:
        """The relative gap that methods regard as closed: a wider tolerance ends runs, but proves nothing."""
        return min(self.relative, GAP_TOLERANCE)

    def met_by(self, incumbent: Closable) -> bool:
        return incumbent.closed(self.relative, self.absolute)

    def more_iterations(self, done: int) -> int:
        """Iterations in which a run within the default tolerance may still close the gap exactly."""
        return 10 + done // 4 if self.patient else 0
