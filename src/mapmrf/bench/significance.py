"""Is one run better than another? Wilcoxon's signed-rank test over the models, for every pair of runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from mapmrf.bench.cells import Cell, Column, Table, count, number
from mapmrf.bench.groups import TIE, Group, loss

FEWEST = 6
"""Number of models from which a difference can be significant at the 5 % level: with five, the smallest p is 1/16."""
LEVEL = 0.05
"""Level below which a corrected p is marked."""


@dataclass(frozen=True)
class Comparison:
    """Two runs on the models that both solved.

    Attributes
    ----------
    run, other
        Names of the two runs.
    better, equal, worse
        Models on which the labelling of `run` is better than that of `other`, as good, and worse.
    p
        Two-sided p of the signed-rank test on the differences of their relative losses.
    corrected
        The same after the correction of Holm for all pairs of a table.
    """

    run: str
    other: str
    better: int
    equal: int
    worse: int
    p: float
    corrected: float = 1.0


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; differences of 0 are ignored, and p is 1 if there are no others.

    Examples
    --------
    >>> signed_rank([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])  # the smallest of six: 2 / 2**6
    0.03125
    >>> signed_rank([0.0, 0.0])
    1.0
    """
    from scipy.stats import wilcoxon

    found = np.array([x for x in differences if x != 0], dtype=np.float64)
    if not found.size:
        return 1.0
    finite = np.abs(found[np.isfinite(found)]).max(initial=0.0)
    return float(wilcoxon(np.clip(found, -2 * finite - 1, 2 * finite + 1)).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Correct p-values for multiple tests by the step-down procedure of Holm (1979).

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected = [1.0] * len(ps)
    least = 0.0
    for place, k in enumerate(sorted(range(len(ps)), key=lambda k: ps[k])):
        least = max(least, min(1.0, (len(ps) - place) * ps[k]))
        corrected[k] = least
    return corrected


def comparisons(groups: Sequence[Group]) -> list[Comparison]:
    """All pairs of runs that share at least `FEWEST` models, the first one the better of the two."""
    runs = dict.fromkeys(run for mine in groups for _, run in mine.runs)
    losses = {run: _losses(groups, run) for run in runs}
    found = []
    for first, second in combinations(runs, 2):
        shared = [key for key in losses[first] if key in losses[second]]
        if len(shared) >= FEWEST:
            found.append(_compared(first, second, [_minus(losses[second][k], losses[first][k]) for k in shared]))
    corrected = holm([one.p for one in found])
    return [replace(one, corrected=p) for one, p in zip(found, corrected, strict=True)]


def _losses(groups: Sequence[Group], run: str) -> dict[tuple[str, str], float]:
    """Loss of a run on each model that it has solved, the mean over the seeds."""
    return {
        (mine.name, model): loss(mine, model, run)
        for mine in groups
        for _, model in mine.models
        if (model, run) in mine.cells
    }


def _minus(a: float, b: float) -> float:
    """A difference of losses, 0 for ties."""
    if math.isinf(a) and math.isinf(b):
        return 0.0
    return 0.0 if abs(a - b) <= TIE else a - b


def _compared(first: str, second: str, gains: Sequence[float]) -> Comparison:
    """Gains of the first over the second, reversed if the second is better."""
    better, worse = sum(x > 0 for x in gains), sum(x < 0 for x in gains)
    p = signed_rank(gains)
    if worse > better:
        first, second, better, worse = second, first, worse, better
    return Comparison(first, second, better, len(gains) - better - worse, worse, p)


def wilcoxon_table(name: str, title: str, groups: Sequence[Group]) -> Table:
    """One row per pair of runs; p below 5 % after correction is marked."""
    heads = [Column("run", key=True), Column("against", key=True)]
    heads += [Column(text) for text in ("better", "equal", "worse", "p", "p (Holm)")]
    rows = [
        [
            Cell(one.run), Cell(one.other), count(one.better), count(one.equal), count(one.worse),
            _probability(one.p), replace(_probability(one.corrected), best=one.corrected < LEVEL),
        ]
        for one in sorted(comparisons(groups), key=lambda one: one.p)
    ]  # fmt: skip
    note = (
        "Wilcoxon's signed-rank test, two-sided, on the relative losses of two runs over the models that both have "
        f"solved; ties are left out. Pairs with at least {FEWEST} models. Marked: below {100 * LEVEL:g} % after Holm's "
        "correction."
    )
    return Table(name, title, heads, rows, note)


def _probability(p: float) -> Cell:
    """Format a p-value with two significant digits."""
    return number(p, 4) if p >= 1e-3 else Cell(f"{p:.1e}", p)
