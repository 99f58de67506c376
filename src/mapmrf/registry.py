"""Methods by name: the folder `methods` is the register."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable
from typing import Any

from mapmrf.errors import OptionError, UnknownName
from mapmrf.method import Method

DEFAULT_METHOD = "auto"


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    import mapmrf.methods as package

    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def method_class(name: str) -> type[Method]:
    """The class of a method by its name."""
    module = None if name.startswith("_") else sys.modules.get(f"mapmrf.methods.{name}")
    if module is None:  # looking through the folder takes longer than solving a small model: once is enough
        known = method_names()
        if name not in known:
            raise UnknownName(f"no method is named {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
        module = importlib.import_module(f"mapmrf.methods.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Method) and getattr(value, "name", None) == name:
            return value
    raise UnknownName(f"mapmrf.methods.{name} defines no method named {name!r}")


def methods() -> dict[str, type[Method]]:
    """All methods by name.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.methods()["icm"].title
    'iterated conditional modes: single-variable ascent (ogm-ICM)'
    """
    return {name: method_class(name) for name in method_names()}


def make_method(method: str | Method, options: dict[str, Any]) -> Method:
    """Build a method from its name and options, or change options of a given one; misspelt options raise."""
    cls = method_class(method) if isinstance(method, str) else type(method)
    known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            raise OptionError(f"{cls.name} has no option {key!r}{_nearest(key, known)}; known: {', '.join(known)}")
    if isinstance(method, Method):
        return dataclasses.replace(method, **options)  # type: ignore[type-var]
    return cls(**options)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""
