"""Checks of a method's options: one line that names the method, the option, what was found and what was expected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mapmrf.errors import OptionError


def check_choice(method: Any, option: str, choices: Iterable[str]) -> None:
    """Raise OptionError unless the option is one of the choices."""
    if getattr(method, option) not in choices:
        raise _error(method, option, f"one of {', '.join(choices)}")


def check_at_least(method: Any, low: float, *options: str) -> None:
    """Raise OptionError for the first option below `low`; not a number is below everything."""
    for option in options:
        if not getattr(method, option) >= low:
            raise _error(method, option, f"at least {low}")


def check_above(method: Any, low: float, *options: str) -> None:
    """Raise OptionError for the first option that is not above `low`."""
    for option in options:
        if not getattr(method, option) > low:
            raise _error(method, option, f"a number above {low}")


def check_within(method: Any, low: float, high: float, *options: str) -> None:
    """Raise OptionError for the first option outside [low, high]."""
    for option in options:
        if not low <= getattr(method, option) <= high:
            raise _error(method, option, f"a number from {low} to {high}")


def _error(method: Any, option: str, expected: str) -> OptionError:
    return OptionError(f"{method.name}: {option} is {getattr(method, option)!r}, expected {expected}")
