"""What other packages and files add: methods, formats and bridges that nobody has to put into this package.

A package declares them as entry points of the groups ``mapmrf.methods``, ``mapmrf.formats`` and ``mapmrf.bridges``; a
method may also be named by its file, as in ``my_file.py:Greedy``.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import sys
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from mapmrf.errors import MapMRFError, OptionError

_log = logging.getLogger("mapmrf")


@cache
def declared(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name, none of them imported yet.

    Examples
    --------
    >>> sorted(declared("mapmrf.no_such_group"))
    []
    """
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
    """Import what an entry point names.

    Raises
    ------
    MapMRFError
        If that fails, in one line that names the package.
    """
    try:
        return entry.load()
    except Exception as error:  # whatever somebody else's code raises while it is imported
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise MapMRFError(f"{entry.name} of {_owner(entry)} ({entry.value}) cannot be loaded: {reason}") from error


def _owner(entry: EntryPoint) -> str:
    return "an unknown package" if entry.dist is None else entry.dist.name


def is_file_name(name: str) -> bool:
    """Whether a name stands for a class in a file: ``my_file.py:Greedy``, or ``my_file.py`` with a single one.

    Examples
    --------
    >>> is_file_name("my_file.py:Greedy"), is_file_name("lslp")
    (True, False)
    """
    return name.partition(".py:")[1] != "" or name.endswith(".py")


def classes_in_file(name: str, base: type) -> dict[str, type]:
    """The classes derived from `base` that the file of ``my_file.py:Greedy`` defines; only that one if it is named.

    Raises
    ------
    OptionError
        If the file cannot be run, or has no such class.
    """
    path, _, wanted = name.partition(".py:")
    module = _run_file(str(Path(path.removesuffix(".py") + ".py").resolve()))
    found = {
        key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    }
    if wanted and wanted not in found:
        known = ", ".join(found) or "none"
        raise OptionError(
            f"{path}.py: found no {base.__name__} named {wanted!r}, expected one of those it has: {known}"
        )
    return {wanted: found[wanted]} if wanted else found


@cache
def _run_file(path: str) -> ModuleType:
    """Import a file as a module of its own, once."""
    name = f"mapmrf_plugin_{Path(path).stem}_{hashlib.sha256(path.encode()).hexdigest()[:8]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not Path(path).is_file():
        raise OptionError(f"{path}: no such file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code
        del sys.modules[name]
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise OptionError(f"{path}: cannot be run: {reason}") from error
    return module
