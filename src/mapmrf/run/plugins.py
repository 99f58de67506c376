"""Plugins: methods, formats and bridges of other packages, and methods in files.

A package declares them as entry points of the groups ``mapmrf.methods``, ``mapmrf.formats`` and ``mapmrf.bridges``; a
method may also be named by its file, as in ``my_file.py:Greedy``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
import traceback
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from mapmrf.errors import MapMRFError, OptionError

_log = logging.getLogger("mapmrf")


@cache
def declared(group: str) -> dict[str, EntryPoint]:
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


# -- files as modules --------------------------------------------------------------------------------------------------

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
