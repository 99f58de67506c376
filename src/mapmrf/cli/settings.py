"""Options of a method as text: ``rho=0.5`` is converted to the type of the option."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable
from typing import Any

from mapmrf.errors import OptionError
from mapmrf.run.method import Method

_BOOLS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}


def parse_settings(cls: type[Method], texts: Iterable[str]) -> dict[str, Any]:
    """Parse texts such as ``rho=0.5`` as options of a method; unknown names are left to `make_method`.

    Raises
    ------
    OptionError
        If a text is not ``key=value`` or the value is not of the option's type.
    """
    hints = typing.get_type_hints(cls)
    options = {}
    for text in texts:
        key, value = split_setting(text)
        options[key] = parse_value(key, value, hints.get(key, str))
    return options


def parse_grid(cls: type[Method], texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as ``rho=0.1,0.5`` as lists of values of a method's options; `seeds` are whole numbers.

    Raises
    ------
    OptionError
        If the method has no such option, or a value is not of its type.

    Examples
    --------
    >>> import mapmrf
    >>> parse_grid(mapmrf.LSLP, ["rho=0.1,0.5", "seeds=0,1"])
    {'rho': [0.1, 0.5], 'seeds': [0, 1]}
    """
    known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hints = {name: hint for name, hint in typing.get_type_hints(cls).items() if name in known} | {"seeds": int}
    result: dict[str, list[Any]] = {}
    for text in texts:
        key, values = split_setting(text)
        if key not in hints:
            raise OptionError(f"--grid: found {key!r}, expected seeds or an option of {cls.name}: {', '.join(known)}")
        result[key] = [parse_value(key, value, hints[key]) for value in values.split(",")]
    return result


def split_setting(text: str) -> tuple[str, str]:
    """Split at the first ``=``; dashes in the name become underscores."""
    key, sign, value = text.partition("=")
    if not sign or not key.strip():
        raise OptionError(f"found {text!r}, expected key=value")
    return key.strip().replace("-", "_"), value.strip()


def parse_value(key: str, text: str, hint: Any) -> Any:
    """Convert a value to the first type of the annotation that fits."""
    choices = _choices(hint)
    for choice in choices:
        try:
            return _as(choice, text)
        except ValueError:
            continue
    wanted = " or ".join(_WANTED.get(choice, repr(choice)) for choice in choices)
    raise OptionError(f"option {key}: found {text!r}, expected {wanted}")


def _choices(hint: Any) -> list[Any]:
    """Types and literals of an annotation, None first and str last, since it accepts everything."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        parts = [choice for part in typing.get_args(hint) for choice in _choices(part)]
        return sorted(parts, key=lambda part: (part is str, part is not type(None)))
    return [hint]


def _as(choice: Any, text: str) -> Any:
    """Convert the text to one type or literal; ValueError if it is not."""
    if choice is bool and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if choice is type(None) and text.lower() == "none":
        return None
    if choice is int:
        return _integer(text)
    if choice in (float, str):
        return choice(text)
    if not isinstance(choice, type) and text == str(choice):
        return choice
    raise ValueError


def _integer(text: str) -> int:
    """Convert to an integer, also from 1e5."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
        if not number.is_integer():
            raise
        return int(number)
