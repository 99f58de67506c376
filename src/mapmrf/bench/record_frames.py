"""Records as pandas tables and xarray datasets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mapmrf.bench.groups import run_namer
from mapmrf.bench.records import TRACE_COLUMNS, Record
from mapmrf.plots.display import check_rows, needed

FIGURES = (
    "value", "bound", "gap", "relaxed_value", "best", "iterations", "runtime", "compile_time", "setup_time",
    "peak_memory", "uniform", "fractional",
)  # fmt: skip
"""Numeric fields of a record."""
TEXTS = ("status", "kind", "outcome", "message")
NESTED = ("trace", "labels", "options", "details", "given", "shape")
"""Fields that are not columns of a table of runs; each given option is a column."""


def records_frame(records: Sequence[Record], of: str) -> Any:
    """Records as a `pandas.DataFrame`, a row per run or per point of the traces."""
    check_rows(of, ("runs", "trace"))
    pandas = needed("pandas")
    if of == "trace":
        rows = [row for record in records for row in _points(record)]
        return pandas.DataFrame(rows, columns=["set", "model", "run", "seed", *TRACE_COLUMNS])
    return pandas.DataFrame([_scalars(record) for record in records])


def _points(record: Record) -> list[list[Any]]:
    about = [record["set"], record["model"], record["run"], record.get("seed", 0)]
    return [[*about, *row] for row in record.get("trace") or []]


def _scalars(record: Record) -> dict[str, Any]:
    """The fields of a record, and the options that were given, as ``option rho``."""
    plain = {key: value for key, value in record.items() if key not in NESTED}
    return plain | {f"option {key}": value for key, value in (record.get("given") or {}).items()}


def records_dataset(records: Sequence[Record]) -> Any:
    """Records as an `xarray.Dataset` of figures and texts by model, run and seed."""
    xarray = needed("xarray")
    run_of, model_of = run_namer(records), _model_namer(records)
    axes = {
        "model": list(dict.fromkeys(map(model_of, records))),
        "run": list(dict.fromkeys(map(run_of, records))),
        "seed": sorted({record.get("seed", 0) for record in records}),
    }
    shape = tuple(map(len, axes.values()))
    data: dict[str, Any] = {name: np.full(shape, math.nan) for name in FIGURES}
    data |= {name: np.full(shape, "", dtype=object) for name in TEXTS}
    for record in records:
        key = (model_of(record), run_of(record), record.get("seed", 0))
        place = tuple(axis.index(one) for axis, one in zip(axes.values(), key, strict=True))
        for name, values in data.items():
            if record.get(name) is not None:
                values[place] = record[name]
    sets = {model_of(record): record["set"] for record in records}
    coordinates = {**axes, "set": ("model", [sets[name] for name in axes["model"]])}
    return xarray.Dataset({name: (tuple(axes), values) for name, values in data.items()}, coords=coordinates)


def _model_namer(records: Sequence[Record]) -> Any:
    """Names of models, prefixed by the set if another set has a model of that name."""
    sets: dict[str, set[str]] = {}
    for record in records:
        sets.setdefault(record["model"], set()).add(record["set"])
    return lambda record: record["model"] if len(sets[record["model"]]) == 1 else f"{record['set']}/{record['model']}"
