"""The exceptions of mapmrf: one family, so that `except MapMRFError` catches every user error."""

from collections.abc import Iterable
from typing import Any

__all__ = [
    "FormatError", "GraphError", "MapMRFError", "OptionError", "OutOfMemory", "UnknownName", "UnsupportedModel",
]  # fmt: skip


class MapMRFError(Exception):
    """Base class of every error that a user can cause; its message is one clear line.

    Examples
    --------
    >>> import mapmrf
    >>> try:
    ...     mapmrf.read("absent.uai")
    ... except mapmrf.MapMRFError as error:
    ...     print(error)
    absent.uai: cannot read: No such file or directory
    """


class GraphError(MapMRFError, ValueError):
    """The given arrays do not describe a factor graph.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[1.0, 2.0]])
    Traceback (most recent call last):
        ...
    mapmrf.errors.GraphError: factor 0 (variables 0, 1): the table has 2 entries, expected 4 = 2 x 2
    """


class FormatError(MapMRFError, ValueError):
    """A file cannot be read in the expected format.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.read("model.bmp")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    mapmrf.errors.FormatError: model.bmp: ...
    """


class OptionError(MapMRFError, ValueError):
    """An option does not exist or has an impossible value.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.ICM(starts=0)
    Traceback (most recent call last):
        ...
    mapmrf.errors.OptionError: icm: starts is 0, expected at least 1
    """


class UnsupportedModel(MapMRFError, ValueError):
    """The chosen method cannot solve this model.

    Examples
    --------
    >>> import mapmrf
    >>> triple = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1, 2)], [[0, 1, 0, 0, 0, 0, 0, 2]])
    >>> mapmrf.solve(triple, "l2box")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    mapmrf.errors.UnsupportedModel: l2box cannot solve this model: it takes factors of at most two variables, ...
    """


class OutOfMemory(MapMRFError, MemoryError):
    """There was not enough memory, and there is no labelling to return.

    Examples
    --------
    >>> import mapmrf
    >>> issubclass(mapmrf.errors.OutOfMemory, MemoryError)
    True
    """


class UnknownName(MapMRFError, LookupError):
    """No method, format, variable or state has this name.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.FactorGraph.from_tables([2], [], []).condition({"Rain": 1})
    Traceback (most recent call last):
        ...
    mapmrf.errors.UnknownName: no variable is named 'Rain'
    """


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of an error message that names the closest of the known names; empty if none is close.

    Examples
    --------
    >>> suggestion("trsw", ["auto", "bp", "trws"])
    ", did you mean 'trws'?"
    """
    import difflib

    lowered = {each.lower(): each for each in known}
    begun = [each for each in lowered if len(name) > 2 and each.startswith(name.lower())]
    close = begun or difflib.get_close_matches(name.lower(), list(lowered), n=1, cutoff=0.5)
    return f", did you mean {lowered[close[0]]!r}?" if close else ""


def needed(module: str, extra: str = "") -> Any:
    """Import a module of an optional package, without the warnings of its imports; say how to install it."""
    import importlib
    import warnings

    package = module.partition(".")[0]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != package:
            raise
        raise ImportError(
            f"this needs {package}: pip install 'mapmrf[{extra or package}]' ('.[{extra or package}]' in a checkout)"
        ) from None
