"""Times to a target, performance profiles and anytime curves: the data of charts, figures and tables of runs.

Nothing here draws. A curve is a list of corners of a step function that grows from left to right.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.bench.groups import TIE, Group
from mapmrf.bench.records import TRACE_COLUMNS, Record

TARGETS = {"best known": TIE, "0.1 %": 1e-3, "1 %": 1e-2}
"""Targets by name: relative distances to the best known value that a run must reach."""
TICK = 1e-3
"""Seconds below which times are considered equal."""
INTERVAL = (0.1, 0.9)
"""Quantiles over the seeds between which the band of an anytime curve lies."""
TIMES = 60
"""Points of an anytime curve."""

Curve = list[tuple[float, float]]
"""Corners of a step function: from each time on, the value is the second number."""


# -- time to a target -------------------------------------------------------------------------------------------------


def steps(record: Record) -> Curve:
    """Best value so far over the seconds of a run, from its trace and its end.

    Examples
    --------
    >>> steps({"trace": [[0.5, 1, 2.0], [1.0, 2, 2.0], [2.0, 3, 5.0]], "value": 6.0, "runtime": 4.0})
    [(0.5, 2.0), (2.0, 5.0), (4.0, 6.0)]
    """
    time, value = TRACE_COLUMNS.index("time"), TRACE_COLUMNS.index("value")
    seen = [(row[time], row[value]) for row in record.get("trace") or [] if row[value] is not None]
    corners: Curve = []
    for when, reached in [*seen, (record["runtime"], record["value"])]:
        if math.isfinite(reached) and (not corners or reached > corners[-1][1]):
            corners.append((float(when), float(reached)))
    return corners


def time_to(record: Record, target: float) -> float:
    """Seconds until a run had a labelling of at least this value; infinite if it never did.

    Examples
    --------
    >>> run = {"trace": [[0.5, 1, 2.0], [2.0, 3, 5.0]], "value": 6.0, "runtime": 4.0}
    >>> [time_to(run, target) for target in (1.0, 5.0, 6.0, 7.0)]
    [0.5, 2.0, 4.0, inf]
    """
    return next((when for when, value in steps(record) if value >= target), math.inf)


def target_of(best: float, distance: float) -> float:
    """The value at a relative distance from the best known one.

    Examples
    --------
    >>> target_of(-200.0, 0.01)
    -202.0
    """
    return best - distance * max(1.0, abs(best))


def target_times(groups: Sequence[Group], distance: float) -> dict[str, list[list[float]]]:
    """Seconds to a target: run -> model (of all that have a best known value) -> seed; no seeds where it was not run.

    A run that failed, or that does not support the model, has no times for it.
    """
    runs = dict.fromkeys(run for mine in groups for _, run in mine.runs)
    problems = [(mine, model) for mine in groups for _, model in mine.models if model in mine.best]
    return {
        run: [
            [time_to(record, target_of(mine.best[model], distance)) for record in mine.cells.get((model, run), [])]
            for mine, model in problems
        ]
        for run in runs
    }


def median_time(times: Sequence[float]) -> float:
    """Median of the seeds; infinite if half of them or more did not get there, or there are none.

    Examples
    --------
    >>> median_time([1.0, 5.0, math.inf]), median_time([1.0, math.inf]), median_time([])
    (5.0, inf, inf)
    """
    return statistics.median(times) if times else math.inf


# -- profiles ---------------------------------------------------------------------------------------------------------


def performance_profile(times: Mapping[str, Sequence[float]]) -> dict[str, Curve]:
    r"""Performance profiles of Dolan and Moré (2002).

    The profile of a solver at :math:`\tau` is the share of the problems on which it takes at most :math:`\tau` times
    as long as the fastest solver there. Problems that no solver solves count. Times below `TICK` are considered equal.

    Parameters
    ----------
    times
        Seconds by solver, a number for every problem, infinite where the problem was not solved.

    Examples
    --------
    >>> performance_profile({"a": [1.0, 2.0], "b": [2.0, math.inf]})
    {'a': [(1.0, 1.0)], 'b': [(1.0, 0.0), (2.0, 0.5)]}
    """
    table = np.maximum(np.array([list(some) for some in times.values()], dtype=np.float64), TICK)
    least = table.min(axis=0, initial=math.inf)
    with np.errstate(invalid="ignore"):
        ratios = np.where(np.isfinite(table), table / least, math.inf)
    return {run: _from_one(distribution(list(row))) for run, row in zip(times, ratios, strict=True)}


def _from_one(curve: Curve) -> Curve:
    """A curve of ratios, with its value at 1."""
    return curve if curve and curve[0][0] == 1.0 else [(1.0, 0.0), *curve]


def distribution(values: Sequence[float]) -> Curve:
    """Empirical distribution: the share of all values, the infinite ones included, that are at most x.

    Examples
    --------
    >>> distribution([2.0, 1.0, 2.0, math.inf])
    [(1.0, 0.25), (2.0, 0.75)]
    """
    finite, counts = np.unique([value for value in values if math.isfinite(value)], return_counts=True)
    shares = np.cumsum(counts) / max(1, len(values))
    return list(zip(finite.tolist(), shares.tolist(), strict=True))


def profiles(groups: Sequence[Group], distance: float) -> dict[str, Curve]:
    """Performance profiles of all runs of some sets by median seconds to a target; none for a single run."""
    found = target_times(groups, distance)
    times = {run: [median_time(some) for some in models] for run, models in found.items() if any(models)}
    return performance_profile(times) if len(times) > 1 else {}


def time_distributions(groups: Sequence[Group], distance: float) -> dict[str, Curve]:
    """Share of a run's models and seeds on which a target is reached within a time; models it was not run on count."""
    found = target_times(groups, distance)
    flat = {run: [time for some in models for time in (some or [math.inf])] for run, models in found.items()}
    return {run: distribution(times) for run, times in flat.items() if any(map(math.isfinite, times))}


def accuracy_profile(losses: Sequence[float], most: float = 1.0) -> Curve:
    """Share of the models within a relative distance of the best known value; ties count as no distance.

    Examples
    --------
    >>> accuracy_profile([0.0, 0.5, math.inf, 1e-9])
    [(1e-06, 0.5), (0.5, 0.75)]
    """
    corners = distribution([max(TIE, x) if x <= most else math.inf for x in losses])
    return corners if corners and corners[0][0] == TIE else [(TIE, 0.0), *corners]


# -- anytime curves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Band:
    """Best value so far over several seeds.

    Attributes
    ----------
    times : (n,)
        Seconds.
    low, middle, high : (n,)
        Quantiles of the values at that time: the lower end of the interval, the median, the upper end.
    seeds
        Their number.
    """

    times: Floats
    low: Floats
    middle: Floats
    high: Floats
    seeds: int


def anytime(records: Sequence[Record], n: int = TIMES) -> Band | None:
    """Median and interval over the seeds of the best value so far; it begins when every seed has a labelling.

    A run that has ended keeps its value. None if a run has no labelling of finite value.

    Parameters
    ----------
    records
        Records of one method on one model, one for each seed.
    n
        Points in time, from the first to the last, evenly spaced on a logarithmic scale.

    Examples
    --------
    >>> one = {"trace": [[1.0, 1, 0.0]], "value": 4.0, "runtime": 10.0}
    >>> other = {"trace": [[1.0, 1, 2.0]], "value": 2.0, "runtime": 5.0}
    >>> band = anytime([one, other], n=2)
    >>> band.times.tolist(), band.middle.tolist(), band.low.round(9).tolist(), band.high.round(9).tolist()
    ([1.0, 10.0], [1.0, 3.0], [0.2, 2.2], [1.8, 3.8])
    """
    curves = [steps(record) for record in records]
    if not curves or not all(curves):
        return None
    begin = max(curve[0][0] for curve in curves)
    end = max(begin, *(float(record["runtime"]) for record in records))
    times = np.geomspace(max(begin, TICK), max(end, TICK), n)
    times[0], times[-1] = max(begin, TICK), max(end, TICK)  # exactly
    values = np.array([_at(curve, times) for curve in curves])
    low, middle, high = np.quantile(values, [INTERVAL[0], 0.5, INTERVAL[1]], axis=0)
    return Band(times, low, middle, high, len(curves))


def _at(curve: Curve, times: Floats) -> Floats:
    """The values of a step function at some times, none of which is before its first corner by more than a tick."""
    corners, values = np.array(curve).T
    return np.asarray(values[np.maximum(np.searchsorted(corners, times, side="right") - 1, 0)])
