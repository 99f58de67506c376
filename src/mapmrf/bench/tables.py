"""The paper's tables from records: log potentials with ranks, iterations, seconds and kinds, beside its own figures."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from mapmrf.bench.records import Record
from mapmrf.datasets.figures import COLUMNS, SETS, model_figure, set_figure

RELAXED = ("lp", "psdd", "ad3")
"""Methods of which the paper prints ``<theta, mu>`` before rounding."""
TIE = 1e-6
"""Relative difference below which two values rank alike."""
SUMMARISED = ("seg-2", "seg-21", "scene")
"""Sets of which the paper prints mean and standard deviation instead of single models."""


@dataclass(frozen=True)
class Cell:
    """What stands in a table, and the number behind it, by which the table is sorted."""

    text: str = ""
    value: float | None = None
    best: bool = False


@dataclass(frozen=True)
class Table:
    """A table, ready to be written in any form."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass
class Group:
    """The records of one set: its models and runs in their order, and the records by both."""

    name: str
    models: list[tuple[str, str]] = field(default_factory=list)
    runs: list[tuple[str, str]] = field(default_factory=list)
    cells: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)

    def mean(self, model: str, run: str, what: Callable[[Record], float | None]) -> float | None:
        """Mean of a figure over the seeds, None where no run has it."""
        found = [x for x in map(what, self.cells.get((model, run), [])) if x is not None]
        return statistics.fmean(found) if found else None

    def column(self, run: str, what: Callable[[Record], float | None]) -> list[float]:
        """A figure of a run on all models that have it."""
        found = (self.mean(model, run, what) for _, model in self.models)
        return [x for x in found if x is not None]


def group(records: Iterable[Record]) -> list[Group]:
    """The records by set, the paper's sets first and in its order, models by their number, methods as in the paper."""
    groups: dict[str, Group] = {}
    records = list(records)
    limits = {record["time_limit"] for record in records}
    for record in records:
        mine = groups.setdefault(record["set"], Group(record["set"]))
        name = record["run"] if len(limits) == 1 else f"{record['run']} {record['time_limit']:g} s"
        model, run = (record.get("index") or "", record["model"]), (record["method"], name)
        if model not in mine.models:
            mine.models.append(model)
        if run not in mine.runs:
            mine.runs.append(run)
        if record["outcome"] == "done":
            mine.cells.setdefault((record["model"], name), []).append(record)
        _note_best(mine, record)
    for mine in groups.values():
        mine.models.sort(key=lambda model: (_number_in(model[0]), model))
        mine.runs.sort(key=lambda run: (list(COLUMNS).index(run[0]) if run[0] in COLUMNS else len(COLUMNS), run))
    return sorted(groups.values(), key=lambda mine: (_place(mine.name), mine.name))


def _note_best(mine: Group, record: Record) -> None:
    """Best known value of a model: the catalogue's, or a better one among the records."""
    for value in (record.get("best"), record.get("value")):
        if value is not None and math.isfinite(value):
            mine.best[record["model"]] = max(value, mine.best.get(record["model"], -math.inf))


def _number_in(index: str) -> int:
    return int(index[1:]) if index[1:].isdigit() else 10**9


def _place(which: str) -> int:
    order = list(SETS)
    family = which.removesuffix("-like")
    return order.index(family) + (len(order) if which != family else 0) if family in order else 99


# -- figures of a record ----------------------------------------------------------------------------------------------


def log_potential(record: Record) -> float | None:
    """What the paper prints as logPot of this method: the labelling's value, or before rounding where it does so."""
    stopped = record["method"] == "lp" and record.get("kind") == "approximate"  # a simplex that did not come to its end
    if record["method"] in RELAXED and record.get("relaxed_value") is not None and not stopped:
        return float(record["relaxed_value"])
    return record.get("value")


def seconds(record: Record) -> float | None:
    """Seconds without those of compilation."""
    return None if record.get("runtime") is None else record["runtime"] - record.get("compile_time", 0.0)


def figure(name: str) -> Callable[[Record], float | None]:
    """A field of a record as a figure."""
    return lambda record: record.get(name)


MEASURES: dict[str, tuple[str, Callable[[Record], float | None]]] = {
    "logpot": ("log potential", log_potential),
    "iters": ("iterations", figure("iterations")),
    "runtime": ("seconds", seconds),
}


# -- tables -----------------------------------------------------------------------------------------------------------


def tables(records: Iterable[Record]) -> list[Table]:
    """All tables that the records give."""
    made: list[Table] = []
    for mine in group(records):
        made.append(overview(mine))
        made += [by_model(mine, measure) for measure in MEASURES]
        if mine.name in SUMMARISED:
            made += [by_set(mine, measure) for measure in MEASURES]
        made.append(kinds(mine))
        made.append(bounds(mine))
    return [table for table in made if table.rows]


def overview(mine: Group) -> Table:
    """A line per run: how many models, at the best known value, proven, mean rank, gap to the best and time."""
    ranked = {name: ranks(mine, name) for _, name in mine.models}
    rows = []
    for method, run in mine.runs:
        done = [model for _, model in mine.models if (model, run) in mine.cells]
        if not done:
            continue
        hit = sum(_at_best(mine, model, run) for model in done)
        proven = sum(all(r["status"] == "optimal" for r in mine.cells[model, run]) for model in done)
        rank = statistics.fmean(ranked[model][run] for model in done if run in ranked[model])
        losses = [loss(mine, model, run) for model in done]
        times = mine.column(run, seconds)
        rows.append(
            [
                Cell(run), Cell(COLUMNS.get(method, "")), count(len(done)), count(hit), count(proven), number(rank, 2),
                number(100 * statistics.fmean(losses), 3), number(statistics.median(times), 4),
            ]
        )  # fmt: skip
    columns = ["run", "paper's name", "models", "at best known", "proven", "mean rank", "mean loss %", "median s"]
    note = "Loss: best known value minus the labelling's, relative to the best known value."
    return Table(f"{mine.name}-overview", f"{title(mine.name)}: overview", columns, rows, note)


def _at_best(mine: Group, model: str, run: str) -> bool:
    return loss(mine, model, run) <= TIE


def loss(mine: Group, model: str, run: str) -> float:
    """Distance to the best known value, relative to it; infinite without a finite value."""
    value = mine.mean(model, run, figure("value"))
    best = mine.best.get(model)
    if value is None or best is None or not math.isfinite(value):
        return math.inf
    return max(0.0, best - value) / max(1.0, abs(best))


def ranks(mine: Group, model: str) -> dict[str, float]:
    """Rank of every run on a model by the value of its labelling: 1 for the best; equals share the better rank."""
    values = {run: mine.mean(model, run, figure("value")) for _, run in mine.runs}
    known = {run: value for run, value in values.items() if value is not None}
    return {run: 1.0 + sum(_above(other, value) for other in known.values()) for run, value in known.items()}


def _above(x: float, y: float) -> bool:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x > y
    return x > y + TIE * max(1.0, abs(y))


def by_model(mine: Group, measure: str) -> Table:
    """A line per model: for every run our figure (with its rank), the paper's and the difference."""
    name, what = MEASURES[measure]
    figures = {
        (model, run): model_figure(mine.name, model, method, measure)
        for method, run in mine.runs
        for _, model in mine.models
    }
    printed = {run for (_, run), paper in figures.items() if paper is not None}
    columns = ["", "model", *(["best known"] if measure == "logpot" else [])]
    for _, run in mine.runs:
        columns += [run, *(["paper", "difference"] if run in printed else [])]
    rows = []
    for index, model in mine.models:
        row = [Cell(index, float(_number_in(index))), Cell(model)]
        row += [number(mine.best.get(model), 2)] if measure == "logpot" else []
        ranked = ranks(mine, model) if measure == "logpot" else {}
        for _, run in mine.runs:
            ours = mine.mean(model, run, what)
            row.append(_ranked(ours, ranked.get(run), measure))
            if run in printed:
                row += _beside(ours, figures[model, run], measure)
        rows.append(row)
    if measure == "logpot":
        rows.append(_mean_ranks(mine, columns, printed))
    note = "In brackets the rank among our runs by the labelling's value." if measure == "logpot" else ""
    return Table(f"{mine.name}-{measure}", f"{title(mine.name)}: {name}", columns, rows, note)


def _ranked(ours: float | None, rank: float | None, measure: str) -> Cell:
    cell = number(ours, _digits(measure))
    if rank is None or ours is None:
        return cell
    return Cell(f"{cell.text} ({rank:.0f})", ours, best=rank == 1.0)


def _beside(ours: float | None, paper: float | None, measure: str) -> list[Cell]:
    difference = None if ours is None or paper is None else ours - paper
    return [number(paper, _digits(measure)), number(difference, _digits(measure), sign=True)]


def _digits(measure: str) -> int:
    return {"logpot": 2, "iters": 0, "runtime": 3}[measure]


def _mean_ranks(mine: Group, columns: Sequence[str], printed: set[str]) -> list[Cell]:
    row = [Cell(), Cell("mean rank"), Cell()]
    for _, run in mine.runs:
        found = [ranked[run] for _, model in mine.models if run in (ranked := ranks(mine, model))]
        row.append(number(statistics.fmean(found), 2) if found else Cell())
        row += [Cell(), Cell()] if run in printed else []
    assert len(row) == len(columns)
    return row


def by_set(mine: Group, measure: str) -> Table:
    """A line per run: mean and standard deviation over the set, the paper's and the differences."""
    name, what = MEASURES[measure]
    rows = []
    for method, run in mine.runs:
        found = [x for x in mine.column(run, what) if math.isfinite(x)]
        if not found:
            continue
        row = [Cell(run), count(len(found))]
        deviation = statistics.stdev(found) if len(found) > 1 else None
        for stat, ours in (("mean", statistics.fmean(found)), ("std", deviation)):
            paper = set_figure(mine.name, method, measure, stat)
            row += [number(ours, _digits(measure) + 1), *_beside(ours, paper, measure)]
        rows.append(row)
    columns = ["run", "models", "mean", "paper", "difference", "std", "paper", "difference"]
    note = "The paper's figures are over its whole set, ours over the models that are there."
    return Table(f"{mine.name}-{measure}-mean", f"{title(mine.name)}: {name}, mean and deviation", columns, rows, note)


def kinds(mine: Group) -> Table:
    """What the relaxed solutions are, as the paper writes it: V, U, or percentages of uniform and fractional ones."""
    runs = [run for _, run in mine.runs if any(r.get("kind_text") for _, m in mine.models for r in _some(mine, m, run))]
    rows = []
    for index, model in mine.models:
        cells = [Cell((_some(mine, model, run) or [{}])[0].get("kind_text") or "") for run in runs]
        rows.append([Cell(index, float(_number_in(index))), Cell(model), *cells])
    note = "V valid, U uniform, F fractional, A approximate (outside the local polytope)."
    return Table(
        f"{mine.name}-kinds", f"{title(mine.name)}: solution types", ["", "model", *runs], rows if runs else [], note
    )


def _some(mine: Group, model: str, run: str) -> list[Record]:
    return mine.cells.get((model, run), [])


def bounds(mine: Group) -> Table:
    """Upper bounds of the runs that give one."""
    runs = [run for _, run in mine.runs if mine.column(run, figure("bound"))]
    rows = []
    for index, model in mine.models:
        found = {run: mine.mean(model, run, figure("bound")) for run in runs}
        least = min((bound for bound in found.values() if bound is not None), default=math.nan)
        cells = [_bound(found[run], least) for run in runs]
        rows.append([Cell(index, float(_number_in(index))), Cell(model), number(mine.best.get(model), 2), *cells])
    columns = ["", "model", "best known", *runs]
    return Table(f"{mine.name}-bounds", f"{title(mine.name)}: upper bounds", columns, rows if runs else [])


def _bound(bound: float | None, least: float) -> Cell:
    cell = number(bound, 2)
    tight = bound is not None and math.isfinite(least) and bound <= least + TIE * max(1.0, abs(least))
    return Cell(cell.text, cell.value, best=tight)


def title(which: str) -> str:
    """A set's name for people."""
    family = which.removesuffix("-like")
    name = SETS.get(family, "Own models" if which == "own" else family)
    return name if which == family else f"{name} look-alikes"


def number(x: Any, digits: int, *, sign: bool = False) -> Cell:
    """A number as a cell; empty for None."""
    if x is None:
        return Cell()
    value = float(x)
    text = f"{value:{'+' if sign else ''}.{digits}f}" if math.isfinite(value) else str(value)
    return Cell(text, value)


def count(n: int) -> Cell:
    """A whole number as a cell."""
    return Cell(str(n), float(n))
