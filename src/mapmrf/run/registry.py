"""Methods by name, from the folder `methods`, from other packages and from files; and other plugins.

A package declares methods, formats and bridges as entry points of the groups ``mapmrf.methods``, ``mapmrf.formats`` and
``mapmrf.bridges``; a method may also be named by its file, as in ``my_file.py:Greedy``.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
import logging
import pkgutil
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mapmrf.errors import MapMRFError, OptionError, UnknownName, suggestion

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from mapmrf.run.method import Method

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
    from mapmrf.run.method import Method  # formats of other packages need this module, but no method

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
        raise UnknownName(f"no method is named {name!r}{suggestion(name, known)}; known: {', '.join(known)}")
    from mapmrf.run.method import Method

    found = load(declared(GROUP)[name])
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise UnknownName(f"{declared(GROUP)[name].value} is {found!r}, expected a class derived from mapmrf.Method")
    return checked_class(found, declared(GROUP)[name].value)


def _class_in_file(name: str) -> type[Method]:
    from mapmrf.run.method import Method

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


def described_options(cls: type[Method]) -> dict[tuple[str, ...], str]:
    """What the section `Attributes` of a method's docstring says of its options; some are described together."""
    doc = inspect.getdoc(cls) or ""
    section = re.search(r"^Attributes\n-+\n(.*?)(?=^\S[^\n]*\n-+\n|\Z)", doc, re.MULTILINE | re.DOTALL)
    entries = re.finditer(r"^(\S[^\n]*)\n((?: +[^\n]*\n?|\n)*)", section[1] if section else "", re.MULTILINE)
    return {tuple(entry[1].split(" : ")[0].split(", ")): " ".join(entry[2].split()) for entry in entries}


def make_method(method: str | Method, options: dict[str, Any], also: Iterable[str] = ()) -> Method:
    """Build a method from its name and options, or change options of a given one; raise OptionError if misspelt."""
    # `also` are further names to suggest for a misspelt one.
    from mapmrf.run.method import Method, check_options

    if not isinstance(method, str | Method):
        raise OptionError(f"method is {method!r}, expected the name of a method or a method such as mapmrf.LSLP()")
    cls = method_class(method) if isinstance(method, str) else type(method)
    for key in options:
        known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
        if key not in known:
            nearest = suggestion(key, [*known, *also])
            raise OptionError(f"{cls.name} has no option {key!r}{nearest}; known: {', '.join(known)}")
    made = dataclasses.replace(method, **options) if isinstance(method, Method) else cls(**options)  # type: ignore[type-var]
    if "__post_init__" in vars(cls):  # a user's class need not call that of Method
        check_options(made)
    return made


# -- Plugins: entry points of other packages, and files as modules ----------------------------------------------------


@cache
def declared(group: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # takes longer to import than a small model to solve

    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=group):
        if entry.name in found and entry.value != found[entry.name].value:
            _log.warning(
                "%s: %s is declared by %s and by %s, the first is used",
                group, entry.name, _owner(found[entry.name]), _owner(entry),
            )  # fmt: skip
        found.setdefault(entry.name, entry)
    return found


def load(entry: EntryPoint) -> Any:
    """Import the object of an entry point; raise MapMRFError that names the package if that fails."""
    try:
        return entry.load()
    except Exception as error:  # foreign code may raise anything while it is imported
        place = f"{entry.name} of {_owner(entry)} ({entry.value})"
        raise MapMRFError(f"{place} cannot be loaded: {_reason(error)}") from error


def _owner(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name


def is_file_name(name: str) -> bool:
    """Return whether a name is a class in a file: ``my_file.py:Greedy``, or ``my_file.py`` with a single one."""
    return name.partition(".py:")[1] != "" or name.endswith(".py")


def classes_in_file(name: str, base: type) -> dict[str, type]:
    """Classes derived from `base` that the file of ``my_file.py:Greedy`` defines; only the named one if given."""
    path, _, wanted = name.partition(".py:")
    path = path.removesuffix(".py") + ".py"
    module = _module_of(path)
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    if wanted and wanted not in found:
        thing, known = vars(module).get(wanted), ", ".join(found) or "none"
        if thing is None:
            raise OptionError(f"{path}: found no {base.__name__} named {wanted!r}; the file defines: {known}")
        if isinstance(thing, type) and issubclass(thing, base):
            what = f"{wanted} is imported from {thing.__module__}"
            raise OptionError(f"{path}: {what}, expected one of those the file defines: {known}")
        what = f"a class that is not derived from mapmrf.{base.__name__}" if isinstance(thing, type) else f"{thing!r}"
        raise OptionError(f"{path}: {wanted} is {what}, expected a {base.__name__}; the file defines: {known}")
    return {wanted: found[wanted]} if wanted else found


_PREFIX = "mapmrf_plugin_"


def source_of(cls: type) -> str | None:
    """The file in which `classes_in_file` found a class, None for any other class."""
    if not cls.__module__.startswith(_PREFIX) or "<locals>" in cls.__qualname__:
        return None
    return getattr(sys.modules.get(cls.__module__), "__file__", None)


def revive(path: str, name: str, state: dict[str, Any]) -> Any:
    """Unpickle an object of a class in a file, which is imported if necessary."""
    found: Any = _module_of(path)
    for part in name.split("."):
        found = getattr(found, part)
    made = object.__new__(found)
    vars(made).update(state)
    return made


def _module_of(path: str) -> ModuleType:
    """The module of a file; it is run again only if the file has changed."""
    whole = Path(path).resolve()
    try:
        about = whole.stat()
    except OSError:
        raise OptionError(f"{path}: no such file") from None
    return _run_file(str(whole), about.st_mtime_ns, about.st_size)


@cache
def _run_file(path: str, changed: int, size: int) -> ModuleType:
    """Import a file, as of a modification time, as a separate module."""
    import hashlib  # most runs have no method from a file
    import traceback

    name = f"{_PREFIX}{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise OptionError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look up their module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        del sys.modules[name]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
        if isinstance(error, SyntaxError) and error.filename == path:
            lines = [error.lineno]
        place = f"{path}: line {lines[-1]}" if lines and lines[-1] else path
        raise OptionError(f"{place}: cannot be run: {_reason(error)}") from error
    return module


def _reason(error: Exception) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"{type(error).__name__}: {said}".splitlines()[0]
