"""Checks of a method's options: errors name the method, the option, what was found and what was expected."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Hashable, Iterable
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, NamedTuple, Protocol, cast

from mapmrf.errors import OptionError

_WANTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
}


def check_types(method: Any, names: Iterable[str]) -> None:
    """Raise OptionError for the first option whose value is not of its annotated type."""
    # Types that are neither numbers, bools, text nor None are not checked.
    kinds_of = _kinds_of(cast(Hashable, type(method)))
    for name in names:
        kinds = kinds_of.get(name, (object,))
        if all(kind in _WANTED for kind in kinds) and not any(_is_a(getattr(method, name), kind) for kind in kinds):
            raise _error(method, name, " or ".join(_WANTED[kind] for kind in kinds))


def check_number(name: str, value: object, kind: type = float) -> None:
    if not _is_a(value, kind):
        raise OptionError(f"{name} is {value!r}, expected {_WANTED[kind]}")


@lru_cache(maxsize=256)
def _kinds_of(cls: Hashable) -> dict[str, tuple[Any, ...]]:
    """The alternatives of every option of a method; cached, since this takes longer than a small model."""
    # Literals are left to `check_choice`.
    unions = (typing.Union, types.UnionType)
    hints = typing.get_type_hints(cls).items()
    return {name: typing.get_args(hint) if typing.get_origin(hint) in unions else (hint,) for name, hint in hints}


def _is_a(value: object, kind: Any) -> bool:
    if type(value) is kind:
        return True
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


def check_choice(method: Any, option: str, choices: Iterable[str]) -> None:
    if getattr(method, option) not in choices:
        raise _error(method, option, f"one of {', '.join(choices)}")


def check_at_least(method: Any, low: float, *options: str) -> None:
    """Raise OptionError for the first option below `low`; nan is below everything."""
    _check_range(method, options, lambda value: value >= low, f"at least {low}")


def check_above(method: Any, low: float, *options: str) -> None:
    _check_range(method, options, lambda value: value > low, f"a number above {low}")


def check_within(method: Any, low: float, high: float, *options: str) -> None:
    _check_range(method, options, lambda value: low <= value <= high, f"a number from {low} to {high}")


def _check_range(method: Any, options: Iterable[str], is_legal: Callable[[float], bool], expected: str) -> None:
    for option in options:
        value = getattr(method, option)
        if not _is_a(value, float) or not is_legal(value):
            raise _error(method, option, expected if _is_a(value, float) else "a number")


def _error(method: Any, option: str, expected: str) -> OptionError:
    return OptionError(f"{method.name}: {option} is {getattr(method, option)!r}, expected {expected}")


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
