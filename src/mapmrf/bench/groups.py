"""Records by set, model and run, and what tables and charts show of them: figures, ranks, times to a target, curves.

Nothing here draws. A curve is a list of corners of a step function that grows from left to right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.bench.records import TRACE_COLUMNS, Record
from mapmrf.datasets.catalogue import COLUMNS, SETS

RELAXED = ("lp", "psdd", "ad3")  # methods whose ``<theta, mu>`` before rounding the paper reports
PROVEN = ("optimal", "within_tolerance")  # statuses of runs whose value and bound meet
TIE = 1e-6  # relative difference below which two values have the same rank
DIFFERS = " (not the catalogue's)"
"""Appended to the name of a model whose file differs from the catalogue: the paper's figures do not apply to it."""

TARGETS = {"best known": TIE, "0.1 %": 1e-3, "1 %": 1e-2}
"""Targets by name: relative distances to the best known value that a run must reach."""
TICK = 1e-3  # seconds below which times are considered equal
Curve = list[tuple[float, float]]  # corners of a step function: from each time on, the value is the second number

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
    methods = {name: place for place, name in enumerate(COLUMNS)}
    for mine in groups.values():
        mine.models.sort(key=lambda model: (number_in(model[0]), model))
        # The paper's methods in its order, then other methods, then other packages.
        mine.runs.sort(key=lambda run: (methods.get(run[0], len(methods) + run[0].startswith("peer:")), run))
    order = list(SETS)
    known = {name: order.index(family(name)) for name in groups if family(name) in order}  # look-alikes come after all
    places = {name: place + len(order) * (name != family(name)) for name, place in known.items()}
    return sorted(groups.values(), key=lambda mine: (places.get(mine.name, 99), mine.name))


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


def number_in(index: str) -> int:
    """The number of an index such as M7; a large one for a model without index."""
    return int(index[1:]) if index[1:].isdigit() else 10**9


def family(which: str) -> str:
    """The paper's set to which a set belongs, or which it resembles."""
    return which.removesuffix("-like")


def title(which: str) -> str:
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
    """Ranks from the largest value down; values within a relative distance of `tie` share the better rank."""

    def is_above(x: float, y: float) -> bool:
        return x > y + tie * max(1.0, abs(y)) if math.isfinite(x) and math.isfinite(y) else x > y

    return {name: 1 + sum(is_above(other, value) for other in values.values()) for name, value in values.items()}


# -- time to a target -------------------------------------------------------------------------------------------------


def steps(record: Record) -> Curve:
    """Best value so far over the seconds of a run, from its trace and its end."""
    time, value = TRACE_COLUMNS.index("time"), TRACE_COLUMNS.index("value")
    seen = [(row[time], row[value]) for row in record.get("trace") or [] if row[value] is not None]
    corners: Curve = []
    for when, reached in [*seen, (record["runtime"], record["value"])]:
        if math.isfinite(reached) and (not corners or reached > corners[-1][1]):
            corners.append((float(when), float(reached)))
    return corners


def target_times(groups: Sequence[Group], distance: float) -> dict[str, list[list[float]]]:
    """Seconds to a target: run -> model (of all that have a best known value) -> seed; no seeds where it was not run.

    They are infinite where the target is never reached. A run that failed, or that does not support the model, has no
    times for it.
    """
    found: dict[str, list[list[float]]] = {run: [] for mine in groups for _, run in mine.runs}
    for mine in groups:
        for model in (model for _, model in mine.models if model in mine.best):
            best = mine.best[model]
            target = best - distance * max(1.0, abs(best))
            for run, models in found.items():
                curves = map(steps, mine.cells.get((model, run), []))
                models.append([next((when for when, x in curve if x >= target), math.inf) for curve in curves])
    return found


# -- profiles ---------------------------------------------------------------------------------------------------------


def performance_profile(times: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    r"""Performance profiles of Dolan and Moré (2002).

    The profile of a solver at :math:`\tau` is the share of the problems on which it takes at most :math:`\tau` times
    as long as the fastest solver there. Problems that no solver solves count. Times below `TICK` are considered equal.
    """
    table = np.maximum(np.array([list(some) for some in times.values()], dtype=np.float64), TICK)
    least = table.min(axis=0, initial=math.inf)
    with np.errstate(invalid="ignore"):
        ratios = np.where(np.isfinite(table), table / least, math.inf)
    return {run: _from(1.0, distribution(list(row))) for run, row in zip(times, ratios, strict=True)}


def _from(first: float, curve: Curve) -> Curve:
    """A curve that begins at the smallest place possible."""
    return curve if curve and curve[0][0] == first else [(first, 0.0), *curve]


def distribution(values: Sequence[float]) -> Curve:
    """Empirical distribution: the share of all values, the infinite ones included, that are at most x."""
    finite, counts = np.unique([value for value in values if math.isfinite(value)], return_counts=True)
    shares = np.cumsum(counts) / max(1, len(values))
    return list(zip(finite.tolist(), shares.tolist(), strict=True))


def profiles(groups: Sequence[Group], distance: float) -> dict[str, Curve]:
    """Performance profiles of all runs of some sets by median seconds to a target; none for a single run."""
    # The median of the seeds is infinite if half of them or more did not get there, or there are none.
    found = target_times(groups, distance)
    times = {
        run: [statistics.median(some) if some else math.inf for some in models]
        for run, models in found.items()
        if any(models)
    }
    return performance_profile(times) if len(times) > 1 else {}


def time_distributions(groups: Sequence[Group], distance: float) -> dict[str, Curve]:
    """Share of a run's models and seeds on which a target is reached within a time; models it was not run on count."""
    found = target_times(groups, distance)
    flat = {run: [time for some in models for time in (some or [math.inf])] for run, models in found.items()}
    return {run: distribution(times) for run, times in flat.items() if any(map(math.isfinite, times))}


def accuracy_profile(losses: Sequence[float], most: float = 1.0) -> Curve:
    """Share of the models within a relative distance of the best known value; ties count as no distance."""
    return _from(TIE, distribution([max(TIE, x) if x <= most else math.inf for x in losses]))


# -- anytime curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Band:
    """Best value so far over several seeds: quantiles of the values at some times, and the number of seeds."""

    times: Floats  # (n,) seconds
    low: Floats  # (n,) lower end of the interval
    middle: Floats  # (n,) median
    high: Floats  # (n,) upper end
    seeds: int


def anytime(records: Sequence[Record], n: int = 60) -> Band | None:
    """Median and interval over the seeds of the best value so far; it begins when every seed has a labelling."""
    # A run that has ended keeps its value. None if a run has no labelling of finite value.
    curves = [steps(record) for record in records]
    if not curves or not all(curves):
        return None
    begin = max(curve[0][0] for curve in curves)
    end = max(begin, *(float(record["runtime"]) for record in records))
    times = np.geomspace(max(begin, TICK), max(end, TICK), n)
    times[0], times[-1] = max(begin, TICK), max(end, TICK)  # exactly
    values = []
    for corners, reached in (np.array(curve).T for curve in curves):
        # No time is before the first corner by more than a tick.
        values.append(reached[np.maximum(np.searchsorted(corners, times, side="right") - 1, 0)])
    low, middle, high = np.quantile(values, [0.1, 0.5, 0.9], axis=0)
    return Band(times, low, middle, high, len(curves))
