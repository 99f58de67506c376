"""Results as pandas tables and xarray datasets; needs ``pip install 'mapmrf[frames]'``."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from mapmrf.errors import OptionError

if TYPE_CHECKING:
    from mapmrf.run.result import Result

Rows = Literal["labels", "trace"]  # meaning of the rows of a table: variables, or points of the trace

POINT = ("time", "iterations", "value", "bound", "gap", "relaxed_value", "phase")
"""Columns of every trace; a method may add its own."""


def needed(package: str) -> Any:
    """Import a package that is not installed with mapmrf."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise ImportError(f"this needs {package}: pip install 'mapmrf[frames]'") from None


def check_rows(of: str, choices: Sequence[str]) -> None:
    """Raise OptionError unless the requested rows are among the choices."""
    if of not in choices:
        raise OptionError(f"of is {of!r}, expected one of {', '.join(choices)}")


def result_frame(result: Result, of: Rows) -> Any:
    """A result as a `pandas.DataFrame`: a row per variable or per point of the trace, and the figures in `attrs`."""
    check_rows(of, ("labels", "trace"))
    pandas = needed("pandas")
    if of == "trace":
        frame = pandas.DataFrame(_trace_columns(result))
    else:
        frame = pandas.DataFrame(_label_columns(result), index=pandas.Index(_variables(result), name="variable"))
    frame.attrs = _figures(result)
    return frame


def result_dataset(result: Result) -> Any:
    """A result as an `xarray.Dataset`: labels by `variable`, the trace by `point`, and the figures in `attrs`."""
    xarray = needed("xarray")
    data: dict[str, Any] = {name: ("variable", column) for name, column in _label_columns(result).items()}
    data |= {name: ("point", np.asarray(column)) for name, column in _trace_columns(result).items()}
    return xarray.Dataset(data, coords={"variable": _variables(result)}, attrs=_figures(result))


def _variables(result: Result) -> list[Any]:
    return list(range(len(result.labels))) if result.names is None else list(result.names.variables)


def _label_columns(result: Result) -> dict[str, Any]:
    columns: dict[str, Any] = {"label": result.labels}
    if result.names is not None and result.names.states is not None:
        columns["state"] = [some[k] for some, k in zip(result.names.states, result.labels.tolist(), strict=True)]
    if result.margins is not None:
        columns |= {"margin_low": result.margins[:, 0], "margin_high": result.margins[:, 1]}
    return columns


def _trace_columns(result: Result) -> dict[str, list[Any]]:
    """Columns of the trace; missing figures are nan, missing phases empty."""
    extra = dict.fromkeys(name for point in result.trace for name in point.extra)
    return {
        name: [_number(getattr(point, name)) if name != "phase" else point.phase for point in result.trace]
        for name in POINT
    } | {name: [_number(point.figure(name)) for point in result.trace] for name in extra}


def _number(x: float | None) -> float:
    return math.nan if x is None else x


def _figures(result: Result) -> dict[str, Any]:
    """The scalars of a result, as numbers and strings only, so that xarray can write them to a file."""
    numbers = ("value", "bound", "gap", "relaxed_value", "iterations", "compile_time", "runtime", "seed")
    found: dict[str, Any] = {name: _number(getattr(result, name)) for name in numbers}
    found |= {"method": result.method, "status": result.status.value, "version": result.version}
    return found | {"options": json.dumps(dict(result.options), default=str)}
