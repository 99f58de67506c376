"""Methods by name: from the folder `methods`, from other packages, and from files."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import logging
import pkgutil
import sys
from collections.abc import Iterable
from typing import Any

from mapmrf.errors import MapMRFError, OptionError, UnknownName
from mapmrf.run.method import Method
from mapmrf.run.options import check_types
from mapmrf.run.plugins import classes_in_file, declared, is_file_name, load

DEFAULT_METHOD = "auto"

_log = logging.getLogger("mapmrf")


GROUP = "mapmrf.methods"  # entry points of other packages


def method_names() -> list[str]:
    """Names of all methods, without importing them: our own and those that other packages declare."""
    return sorted({*_own_names(), *declared(GROUP)})


def _own_names() -> list[str]:
    import mapmrf.methods as package

    return [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]


def method_class(name: str) -> type[Method]:
    if is_file_name(name):
        return _class_in_file(name)
    # listing the folder takes longer than solving a small model
    known = f"{GROUP}.{name}" in sys.modules and not name.startswith("_")
    if not known and name not in _own_names():
        return _declared_class(name)
    module = importlib.import_module(f"{GROUP}.{name}")  # waits if another thread is importing it
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Method) and getattr(value, "name", None) == name:
            return value
    raise UnknownName(f"{GROUP}.{name} defines no method named {name!r}")


def _declared_class(name: str) -> type[Method]:
    if name not in declared(GROUP):
        known = method_names()
        raise UnknownName(f"no method is named {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
    found = load(declared(GROUP)[name])
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UnknownName(f"{declared(GROUP)[name].value} is {found!r}, expected a class derived from mapmrf.Method")
    return checked_class(found, declared(GROUP)[name].value)


def _class_in_file(name: str) -> type[Method]:
    found = classes_in_file(name, Method)
    if len(found) != 1:
        which = ", ".join(found) or "none"
        raise UnknownName(f"{name}: found {len(found)} methods ({which}), expected one: use {name}:CLASS")
    return checked_class(next(iter(found.values())), name)


def checked_class(cls: type[Method], place: str) -> type[Method]:
    """Return a foreign class if it has everything that `solve` relies on; otherwise raise OptionError."""
    missing = sorted(getattr(cls, "__abstractmethods__", ()))
    if missing:
        raise OptionError(f"{place}: {cls.__name__} has no {', '.join(missing)}, expected start, step and answer")
    if not isinstance(getattr(cls, "name", None), str):
        raise OptionError(f"{place}: {cls.__name__} has no name, expected for instance name: ClassVar[str] = 'greedy'")
    if "__dataclass_fields__" not in vars(cls):
        raise OptionError(f"{place}: {cls.__name__} is not a dataclass, expected @dataclass(frozen=True) above it")
    return cls


def methods() -> dict[str, type[Method]]:
    """All methods by name.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.methods()["icm"].title
    'iterated conditional modes: single-variable ascent (ogm-ICM)'
    """
    found = {}
    for name in method_names():
        try:
            found[name] = method_class(name)
        except MapMRFError as error:
            if name in _own_names():
                raise
            _log.warning("%s", error)  # a broken plugin must not hide the others
    return found


def make_method(method: str | Method, options: dict[str, Any], also: Iterable[str] = ()) -> Method:
    """Build a method from its name and options, or change options of a given one; raise OptionError if misspelt."""
    # `also` are further names to suggest for a misspelt one.
    if not isinstance(method, str | Method):
        raise OptionError(f"method is {method!r}, expected the name of a method or a method such as mapmrf.LSLP()")
    cls = method_class(method) if isinstance(method, str) else type(method)
    known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            nearest = _nearest(key, [*known, *also])
            raise OptionError(f"{cls.name} has no option {key!r}{nearest}; known: {', '.join(known)}")
    made = dataclasses.replace(method, **options) if isinstance(method, Method) else cls(**options)  # type: ignore[type-var]
    check_types(made, options)
    return made


def _nearest(name: str, known: Iterable[str]) -> str:
    lowered = {each.lower(): each for each in known}
    close = difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f", did you mean {lowered[close[0]]!r}?" if close else ""
