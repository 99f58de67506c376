"""Records by set, model and run, and the figures that tables and charts show."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from mapmrf.bench.records import Record
from mapmrf.datasets.catalogue import COLUMNS, SETS

RELAXED = ("lp", "psdd", "ad3")
"""Methods whose ``<theta, mu>`` before rounding the paper reports."""
PROVEN = ("optimal", "within_tolerance")
"""Statuses of runs whose value and bound meet."""

TIE = 1e-6
"""Relative difference below which two values have the same rank."""
DIFFERS = " (not the catalogue's)"
"""Appended to the name of a model whose file differs from the catalogue: the paper's figures do not apply to it."""

Figure = Callable[[Record], float | None]


@dataclass
class Group:
    """The records of one set: its models and runs in order, and the records by both."""

    name: str
    models: list[tuple[str, str]] = field(default_factory=list)
    runs: list[tuple[str, str]] = field(default_factory=list)
    cells: dict[tuple[str, str], list[Record]] = field(default_factory=dict)
    best: dict[str, float] = field(default_factory=dict)
    model_records: dict[str, Record] = field(default_factory=dict)

    def mean(self, model: str, run: str, what: Figure) -> float | None:
        """Mean of a figure over the seeds, None if no run has it."""
        found = [x for x in map(what, self.cells.get((model, run), [])) if x is not None]
        return statistics.fmean(found) if found else None

    def column(self, run: str, what: Figure) -> list[float]:
        """A figure of a run on all models that have it."""
        found = (self.mean(model, run, what) for _, model in self.models)
        return [x for x in found if x is not None]

    def kind(self, model: str, run: str) -> str:
        """Kind of a run's solution in the paper's notation; methods that return only labellings are valid."""
        records = self.cells.get((model, run), [])
        return str(records[0].get("kind_text") or "V") if records else ""

    def add(self, record: Record, run: str) -> None:
        """Add a record, under the name of its run in the tables."""
        model = record["model"] + (DIFFERS if record.get("checksum") == "differs" else "")
        if (index := record.get("index") or "", model) not in self.models:
            self.models.append((index, model))
        if (record["method"], run) not in self.runs:
            self.runs.append((record["method"], run))
        if record["outcome"] == "done":
            self.cells.setdefault((model, run), []).append(record)
        if record.get("n_vars") is not None:
            self.model_records.setdefault(model, record)
        for value in (record.get("best"), record.get("value")):  # a record may be better than the best known value
            if value is not None and math.isfinite(value):
                self.best[model] = max(value, self.best.get(model, -math.inf))


def group(records: Iterable[Record]) -> list[Group]:
    """The records by set: the paper's sets first, models by number, methods in the order of the paper."""
    groups: dict[str, Group] = {}
    records = list(records)
    name = run_namer(records)
    for record in records:
        groups.setdefault(record["set"], Group(record["set"])).add(record, name(record))
    for mine in groups.values():
        mine.models.sort(key=lambda model: (number_in(model[0]), model))
        mine.runs.sort(key=_order)
    return sorted(groups.values(), key=lambda mine: (_place(mine.name), mine.name))


def run_namer(records: Sequence[Record]) -> Callable[[Record], str]:
    """Names of runs that distinguish time limits, and versions of code that has changed."""
    limits = {record["time_limit"] for record in records}
    sources: dict[str, set[str]] = {}
    for record in records:
        sources.setdefault(record["run"], set()).add(record.get("source") or "")

    def name(record: Record) -> str:
        source = f" @{record.get('source', '')[:6]}" if len(sources[record["run"]]) > 1 else ""
        limit = f" {record['time_limit']:g} s" if len(limits) > 1 else ""
        return f"{record['run']}{source}{limit}"

    return name


def _order(run: tuple[str, str]) -> tuple[int, str, str]:
    """The paper's methods in its order, then other methods, then other packages."""
    method, name = run
    known = list(COLUMNS)
    place = known.index(method) if method in known else len(known) + method.startswith("peer:")
    return place, method, name


def number_in(index: str) -> int:
    """The number of an index such as M7; a large one for a model without index."""
    return int(index[1:]) if index[1:].isdigit() else 10**9


def _place(which: str) -> int:
    order = list(SETS)
    name = family(which)
    return order.index(name) + (len(order) if which != name else 0) if name in order else 99


def family(which: str) -> str:
    """The paper's set to which a set belongs, or which it resembles."""
    return which.removesuffix("-like")


def title(which: str) -> str:
    """The display name of a set."""
    name = SETS.get(family(which), "Own models" if which == "own" else family(which))
    return name if which == family(which) else f"{name} look-alikes"


# -- figures of a record ----------------------------------------------------------------------------------------------


def log_potential(record: Record) -> float | None:
    """The paper's logPot of this method: the value of the labelling, or of the relaxed solution."""
    stopped = record["method"] == "lp" and record.get("kind") == "approximate"  # the simplex method did not finish
    if record["method"] in RELAXED and record.get("relaxed_value") is not None and not stopped:
        return float(record["relaxed_value"])
    return record.get("value")


def seconds(record: Record) -> float | None:
    """Runtime in seconds without compilation."""
    return None if record.get("runtime") is None else record["runtime"] - record.get("compile_time", 0.0)


def figure(name: str) -> Figure:
    """A field of a record as a figure."""
    return lambda record: record.get(name)


# -- comparisons ------------------------------------------------------------------------------------------------------


def loss(mine: Group, model: str, run: str) -> float:
    """Relative distance to the best known value; infinite without a finite value."""
    value = mine.mean(model, run, figure("value"))
    best = mine.best.get(model)
    if value is None or best is None or not math.isfinite(value):
        return math.inf
    return max(0.0, best - value) / max(1.0, abs(best))


def ranks(mine: Group, model: str) -> dict[str, int]:
    """Rank of every run on a model by the value of its labelling: 1 for the best; ties share the better rank."""
    values = {run: mine.mean(model, run, figure("value")) for _, run in mine.runs}
    return rank({run: value for run, value in values.items() if value is not None}, TIE)


def rank(values: dict[str, float], tie: float = 0.0) -> dict[str, int]:
    """Ranks from the largest value down; values within a relative distance of `tie` share the better rank.

    Examples
    --------
    >>> rank({"a": 2.0, "b": 3.0, "c": 2.0})
    {'a': 2, 'b': 1, 'c': 2}
    """
    return {name: 1 + sum(_above(other, value, tie) for other in values.values()) for name, value in values.items()}


def _above(x: float, y: float, tie: float) -> bool:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x > y
    return x > y + tie * max(1.0, abs(y))
