"""The paper's figures: log potentials, iterations, seconds and solution types, by method and model or set."""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

COLUMNS = {
    "lp": "LP-LP",
    "branch": "DAOOPT",
    "mplp_c": "MPLP-C",
    "icm": "ICM",
    "bp": "BP",
    "trbp": "TRBP",
    "dd_sg": "DD-SG",
    "trws": "TRWS",
    "adsal": "ADSal",
    "psdd": "PSDD",
    "ad3": "AD3",
    "l2box": "l2-Box",
    "lslp": "LS-LP",
}
"""The paper's names of the methods, in the order of its tables."""

SETS = {"seg-2": "Seg-2", "seg-21": "Seg-21", "scene": "Scene", "grids": "Grids", "protein": "Protein"}
"""The paper's names of the sets of models."""


@cache
def rows(table: str) -> tuple[dict[str, str], ...]:
    """The rows of one of the paper's tables, such as ``grids_logpot``."""
    text = files("mapmrf.datasets").joinpath("paper", f"{table}.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def model_figure(which: str, model: str, method: str, measure: str = "logpot") -> float | None:
    """The paper's figure for a method on one model; None if it reports none."""
    if which not in ("grids", "protein"):
        return None
    table = f"{which}_logpot" if measure == "logpot" else f"{which}_runtime"
    return _find(table, method, {"model": model, "measure": measure})


def set_figure(which: str, method: str, measure: str = "logpot", stat: str = "mean") -> float | None:
    """The paper's figure for a method over a set (Seg-2, Seg-21, Scene): mean or std of a measure."""
    table = f"segmentation_scene_{'logpot' if measure == 'logpot' else 'runtime'}"
    return _find(table, method, {"dataset": SETS[which], "measure": measure, "stat": stat})


def model_kind(which: str, model: str, method: str) -> str | None:
    """Kind of a method's solution of one model, as reported in the paper; None if it reports none."""
    if which not in ("grids", "protein"):
        return None
    return _entry("solution_types", method, {"dataset": SETS[which], "model": model})


def set_kinds(which: str, method: str) -> str | None:
    """Number of solutions of each kind over a set (Seg-2, Seg-21, Scene), as reported in the paper."""
    return _entry("solution_types", method, {"dataset": SETS[which]})


def _find(table: str, method: str, wanted: dict[str, str]) -> float | None:
    text = _entry(table, method, wanted)
    return None if text is None else float(text)


def _entry(table: str, method: str, wanted: dict[str, str]) -> str | None:
    """The entry of a method's column in the row that matches all `wanted` values that the table has."""
    column = COLUMNS.get(method, "")
    for row in rows(table):
        if all(row.get(key, value) == value for key, value in wanted.items()):
            return row.get(column) or None
    return None
