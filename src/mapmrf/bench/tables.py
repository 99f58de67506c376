"""The tables of the paper from records, with its figures: sets, log potentials and ranks, iterations, times, kinds."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from mapmrf.bench.groups import (
    PROVEN,
    RELAXED,
    TARGETS,
    TIE,
    Figure,
    Group,
    family,
    figure,
    group,
    log_potential,
    loss,
    number_in,
    rank,
    ranks,
    seconds,
    target_times,
    title,
)
from mapmrf.bench.records import Record
from mapmrf.bench.render import Cell, Column, Table, count, number
from mapmrf.datasets.catalogue import (
    COLUMNS,
    SETS,
    Statistics,
    mean_statistics,
    model_figure,
    model_kind,
    paper_statistics,
    set_figure,
    set_kinds,
)

FEWEST = 6
"""Number of models from which a difference can be significant at the 5 % level: with five, the smallest p is 1/16."""

SUMMARISED = ("seg-2", "seg-21", "scene")
"""Sets for which the paper reports mean and standard deviation instead of single models."""

MEASURES: dict[str, tuple[str, Figure, int]] = {
    "logpot": ("log potential", log_potential, 2),
    "iters": ("iterations", figure("iterations"), 0),
    "runtime": ("seconds", seconds, 3),
}
"""The measures of the paper's tables: name, value of a record, and decimals."""

STATISTICS = ("n_vars", "n_factors", "n_edges", "factor_size", "variable_states", "factor_states")
"""Fields of a record in the table of the sets."""

MODEL = (Column("no.", key=True), Column("model", key=True))


def tables(records: Iterable[Record]) -> list[Table]:
    groups = group(records)
    made = [datasets(groups)]
    if len(groups) > 1:
        made += [make("all", "All sets", groups) for make in (overview, targets, significance)]
    for mine in groups:
        name = title(mine.name)
        own = [overview(mine.name, name, [mine])]
        if family(mine.name) in SUMMARISED:
            own += [*(by_set(mine, measure) for measure in MEASURES), kind_counts(mine)]
        own += [*(by_model(mine, measure) for measure in MEASURES), kinds(mine), bounds(mine)]
        own += [targets(mine.name, name, [mine]), significance(mine.name, name, [mine])]
        made += [replace(table, of=mine.name) for table in own]
    return [table for table in made if table.rows]


# -- the sets ---------------------------------------------------------------------------------------------------------


def datasets(groups: Sequence[Group]) -> Table:
    """The paper's statistics of the sets (C1 to C7), recomputed from the models of the records."""
    names = list(Statistics.__dataclass_fields__)
    rows: list[list[Cell]] = []
    for mine in groups:
        figures = [[record.get(place) for place in STATISTICS] for record in mine.model_records.values()]
        # records of older versions lack some
        ours = mean_statistics(Statistics(1, *map(float, some)) for some in figures if None not in some)  # type: ignore[arg-type]
        if ours is not None:
            rows += _beside_the_paper(mine, [getattr(ours, name) for name in names])
    heads = [Column("set", key=True), Column("of", key=True), *(Column(name.replace("_", " ")) for name in names)]
    note = "Means over the models. Factors and edges without those on a single variable."
    table = Table("datasets", "Statistics of the sets", heads, rows, note)
    if any(mine.name in SETS for mine in groups):
        about = "The paper's figures are over its whole sets, ours over the models that were run."
        return replace(table, note=f"{note} {about}")
    return table.only([k for k, column in enumerate(heads) if column.name != "of"])


def _beside_the_paper(mine: Group, ours: Sequence[float]) -> list[list[Cell]]:
    """Our row and, for a set of the paper, the paper's row and the difference."""
    lines = {"ours": ours}
    if mine.name in SETS:  # the paper's models, to be compared with its figures
        lines["paper"] = list(vars(paper_statistics(mine.name)).values())
        lines["difference"] = [a - b for a, b in zip(ours, lines["paper"], strict=True)]
    return [
        # means with two decimals as in the paper, integers without any
        [Cell(title(mine.name)), Cell(of)]
        + [number(x, 0 if round(x, 2) == round(x) else 2, sign=of == "difference") for x in figures]
        for of, figures in lines.items()
    ]


# -- summaries --------------------------------------------------------------------------------------------------------

_SUMMARY = ["models", "at best known", "proven", "mean rank", "mean loss %", "median s"]
_LOSS = "Loss: best known value minus the labelling's, relative to the best known value. Ordered by mean rank."


def overview(name: str, what: str, groups: Sequence[Group]) -> Table:
    """One row per run: number of models, best known values reached, proofs, mean rank, gap to the best and time."""
    runs = dict.fromkeys(run for mine in groups for run in mine.runs)
    places = {(mine.name, model): ranks(mine, model) for mine in groups for _, model in mine.models}
    rows = []
    for method, run in runs:
        done = [(mine, model) for mine in groups for _, model in mine.models if (model, run) in mine.cells]
        if done:
            rank_ = statistics.fmean(places[mine.name, model][run] for mine, model in done)
            rows.append([Cell(run), Cell(COLUMNS.get(method, "")), *_line(done, run, rank_)])
    rows.sort(key=lambda row: (row[5].value, row[6].value, row[7].value))
    for k, sign in ((3, -1), (4, -1), (5, 1), (6, 1), (7, 1)):
        _mark(rows, k, sign)
    heads = [Column("run", key=True), Column("paper's name"), *map(Column, _SUMMARY)]
    table = Table(f"{name}-overview", f"{what}: overview", heads, rows, _LOSS)
    return table if any(mine.name in SETS for mine in groups) else table.only([0, *range(2, len(heads))])


def _line(done: Sequence[tuple[Group, str]], run: str, mean_rank: float) -> list[Cell]:
    losses = [loss(mine, model, run) for mine, model in done]
    proven = sum(all(r["status"] in PROVEN for r in mine.cells[model, run]) for mine, model in done)
    times = [mine.mean(model, run, seconds) for mine, model in done]
    spent = statistics.median(time for time in times if time is not None)
    return [
        count(len(done)), count(sum(x <= TIE for x in losses)), count(proven), number(mean_rank, 2),
        number(100 * statistics.fmean(losses), 3), number(spent, 4),
    ]  # fmt: skip


def _mark(rows: list[list[Cell]], k: int, sign: int) -> None:
    """Mark the best cells of a column, unless all are equal."""
    values = [sign * cell.value for row in rows if (cell := row[k]).value is not None]
    if len(set(values)) > 1:
        for row in rows:
            value = row[k].value
            row[k] = replace(row[k], best=value is not None and sign * value == min(values))


# -- model by model ---------------------------------------------------------------------------------------------------


def by_model(mine: Group, measure: str) -> Table:
    """One row per model: for every run our figure (with its rank), the paper's and the difference."""
    name, what, digits = MEASURES[measure]
    printed = {
        run
        for method, run in mine.runs
        for _, m in mine.models
        if model_figure(mine.name, m, method, measure) is not None
    }
    with_ranks = measure == "logpot"
    heads = [*MODEL, *([Column("best known")] if with_ranks else [])]
    for _, run in mine.runs:
        heads += [Column(part, run) for part in ("ours", "paper", "difference")] if run in printed else [Column(run)]
    rows = []
    for index, model in mine.models:
        row = [*_model_cells(index, model), *([number(mine.best.get(model), 2)] if with_ranks else [])]
        ours_ranks, theirs = (ranks(mine, model), _paper_ranks(mine, model)) if with_ranks else ({}, {})
        for method, run in mine.runs:
            ours, paper = mine.mean(model, run, what), model_figure(mine.name, model, method, measure)
            row.append(_ranked(number(ours, digits), ours_ranks.get(run)))
            if run in printed:
                row += [_ranked(number(paper, digits), theirs.get(method)), _difference(ours, paper, digits)]
        rows.append(row)
    below = None
    if with_ranks:  # mean ranks, the paper's over the same models
        ours_all = [ranks(mine, model) for _, model in mine.models]
        theirs_all = [_paper_ranks(mine, model) for _, model in mine.models]
        below = [Cell(), Cell("mean rank"), Cell()]
        for method, run in mine.runs:
            below.append(_mean_rank(ours_all, run))
            below += [_mean_rank(theirs_all, method), Cell()] if run in printed else []
    note = "Ranks: among the runs by the labelling's value" + ("; the paper's by its own figures." if printed else ".")
    text = f"{title(mine.name)}: {name}"
    return Table(f"{mine.name}-{measure}", text, heads, rows, note if with_ranks else "", below)


def _model_cells(index: str, model: str) -> list[Cell]:
    return [Cell(index, float(number_in(index))), Cell(model)]


def _paper_ranks(mine: Group, model: str) -> dict[str, int]:
    """The paper's ranks on a model, among its methods with valid solutions."""
    printed = {method: model_figure(mine.name, model, method, "logpot") for method in COLUMNS if method not in RELAXED}
    return rank({method: value for method, value in printed.items() if value is not None})


def _ranked(cell: Cell, place: int | None) -> Cell:
    return cell if place is None or cell.value is None else replace(cell, rank=place, best=place == 1)


def _difference(ours: float | None, paper: float | None, digits: int) -> Cell:
    return number(None if ours is None or paper is None else ours - paper, digits, sign=True)


def _mean_rank(places: Sequence[dict[str, int]], name: str) -> Cell:
    found = [place[name] for place in places if name in place]
    return number(statistics.fmean(found), 2) if found else Cell()


def bounds(mine: Group) -> Table:
    """One row per model: the upper bounds of the runs, the smallest one marked."""
    runs = [run for _, run in mine.runs if mine.column(run, figure("bound"))]
    rows = []
    for index, model in mine.models:
        found = {run: mine.mean(model, run, figure("bound")) for run in runs}
        least = min((bound for bound in found.values() if bound is not None), default=math.nan)
        row = [*_model_cells(index, model), number(mine.best.get(model), 2)]
        for bound in found.values():
            tight = bound is not None and math.isfinite(least) and bound <= least + TIE * max(1.0, abs(least))
            row.append(replace(number(bound, 2), best=tight))
        rows.append(row)
    heads = [*MODEL, Column("best known"), *map(Column, runs)]
    return Table(f"{mine.name}-bounds", f"{title(mine.name)}: upper bounds", heads, rows if runs else [])


# -- time to a target, and significance -------------------------------------------------------------------------------


def targets(name: str, what: str, groups: Sequence[Group]) -> Table:
    """One row per run: for every target the share of models and seeds that reach it, and the median seconds."""
    heads = [Column("run", key=True)]
    rows: dict[str, list[Cell]] = {}
    for target, distance in TARGETS.items():
        heads += [Column("reached %", target), Column("median s", target)]
        for run, models in target_times(groups, distance).items():
            times = [time for some in models for time in some]
            if times:
                share = number(100 * sum(map(math.isfinite, times)) / len(times), 1)
                middle = statistics.median(times)
                rows.setdefault(run, [Cell(run)]).extend([share, number(middle, 3) if middle < math.inf else Cell()])
    made = list(rows.values())
    for k, column in enumerate(heads[1:], start=1):
        _mark(made, k, -1 if column.name == "reached %" else 1)
    note = (
        "Targets are relative distances to the best known value. Share and median are over all models and seeds that "
        "were run; no median where half of them or more do not get there. Times are taken from the trace."
    )
    return Table(f"{name}-target", f"{what}: time to target", heads, made, note)


# -- over a set -------------------------------------------------------------------------------------------------------


def by_set(mine: Group, measure: str) -> Table:
    """One row per run: mean and standard deviation over the set, the paper's, and the difference."""
    name, what, digits = MEASURES[measure]
    printed = mine.name in SUMMARISED
    rows = []
    for method, run in mine.runs:
        found = [x for x in mine.column(run, what) if math.isfinite(x)]
        if not found:
            continue
        row = [Cell(run), count(len(found))]
        deviation = statistics.stdev(found) if len(found) > 1 else None
        for stat, ours in (("mean", statistics.fmean(found)), ("std", deviation)):
            row.append(number(ours, digits + 1))
            if printed:
                paper = set_figure(mine.name, method, measure, stat)
                row += [number(paper, digits), _difference(ours, paper, digits)]
        rows.append(row)
    parts = ("ours", "paper", "difference") if printed else ("ours",)
    stats = [Column(part, stat) if printed else Column(stat) for stat in ("mean", "std") for part in parts]
    heads = [Column("run", key=True), Column("models"), *stats]
    note = "The paper's figures are over its whole set, ours over the models that were run." if printed else ""
    return Table(f"{mine.name}-{measure}-mean", f"{title(mine.name)}: {name}, mean and deviation", heads, rows, note)


# -- types of the solutions -------------------------------------------------------------------------------------------

_TYPES = "V valid, U uniform, F fractional, A approximate (outside the local polytope)."


def kinds(mine: Group) -> Table:
    """One row per model: the kind of every relaxed solution in the paper's notation, and the paper's."""
    printed = {run for method, run in mine.runs for _, m in mine.models if model_kind(mine.name, m, method)}
    relaxed = {run for (_, run), records in mine.cells.items() if any(record.get("kind_text") for record in records)}
    runs = [(method, run) for method, run in mine.runs if run in relaxed | printed]
    heads = [*MODEL]
    for _, run in runs:
        heads += [Column("ours", run), Column("paper", run)] if run in printed else [Column(run)]
    rows = []
    for index, model in mine.models:
        row = _model_cells(index, model)
        for method, run in runs:
            row.append(Cell(mine.kind(model, run)))
            row += [Cell(model_kind(mine.name, model, method) or "")] if run in printed else []
        rows.append(row)
    note = f"{_TYPES} Methods that return only labellings are valid by definition. {_PAPERS_TYPES.get(mine.name, '')}"
    return Table(f"{mine.name}-kinds", f"{title(mine.name)}: solution types", heads, rows if runs else [], note.strip())


_PAPERS_TYPES = {
    "grids": "The paper says of LP-LP, PSDD and AD3 only that they are uniform, without shares, and of all others that "
    "they are valid; DAOOPT has no result on M14 to M21.",
    "protein": "The paper gives shares for PSDD and AD3 and calls the others valid; it has no result of LP-LP, DAOOPT, "
    "TRWS, ADSal and l2-Box.",
} | dict.fromkeys(SUMMARISED, "The paper gives no type model by model, only how many are approximate: see the counts.")


def kind_counts(mine: Group) -> Table:
    """One row per run: the number of solutions of each kind, and the paper's over its set."""
    rows = []
    for method, run in mine.runs:
        found = [kind for _, model in mine.models if (kind := mine.kind(model, run))]
        # A mixed solution counts as approximate, else as fractional, else as uniform.
        letters = Counter(next(letter for letter in "AFUV" if letter in kind) for kind in found)
        if letters:
            ours = ", ".join(f"{letters[letter]} {letter}" for letter in "VUFA" if letters[letter])
            paper = set_kinds(mine.name, method) if mine.name in SUMMARISED else None
            rows.append([Cell(run), Cell(ours), *([Cell(paper or "")] if mine.name in SUMMARISED else [])])
    heads = [Column("run", key=True), Column("ours"), *([Column("paper")] if mine.name in SUMMARISED else [])]
    about = "The paper's counts are over its whole set; it leaves DD-SG out." if mine.name in SUMMARISED else ""
    text = f"{title(mine.name)}: solution types, counted"
    return Table(f"{mine.name}-kinds-count", text, heads, rows, f"{_TYPES} {about}".strip())


# -- significance of differences --------------------------------------------------------------------------------------


def significance(name: str, what: str, groups: Sequence[Group]) -> Table:
    """One row per pair of runs that share enough models, the better one first: Wilcoxon's signed-rank test."""
    runs = dict.fromkeys(run for mine in groups for _, run in mine.runs)
    losses = {
        run: {(mine.name, m): loss(mine, m, run) for mine in groups for _, m in mine.models if (m, run) in mine.cells}
        for run in runs
    }
    tests = []
    for pair in combinations(runs, 2):
        first, second = (losses[run] for run in pair)
        shared = [key for key in first if key in second]
        if len(shared) >= FEWEST:
            apart = [second[key] - first[key] for key in shared]
            gains = [x if abs(x) > TIE else 0.0 for x in apart]  # also where none has a value, and both are infinite
            better, worse = sum(x > 0 for x in gains), sum(x < 0 for x in gains)
            order = pair[::-1] if worse > better else pair
            counts = (max(better, worse), len(gains) - better - worse, min(better, worse))
            tests.append((signed_rank(gains), order, counts))
    tests.sort(key=lambda test: test[0])
    rows, corrected = [], 0.0
    for place, (p, order, counts) in enumerate(tests):
        corrected = max(corrected, min(1.0, (len(tests) - place) * p))  # the step-down procedure of Holm (1979)
        cells = [*map(Cell, order), *map(count, counts), _probability(p)]
        rows.append([*cells, replace(_probability(corrected), best=corrected < 0.05)])
    heads = [Column("run", key=True), Column("against", key=True)]
    heads += [Column(text) for text in ("better", "equal", "worse", "p", "p (Holm)")]
    note = (
        "Wilcoxon's signed-rank test, two-sided, on the relative losses of two runs over the models that both have "
        f"solved; ties are left out. Pairs with at least {FEWEST} models. Marked: below 5 % after Holm's correction."
    )
    return Table(f"{name}-wilcoxon", f"{what}: significance of differences", heads, rows, note)


def signed_rank(differences: Sequence[float]) -> float:
    """Two-sided p of Wilcoxon's signed-rank test; differences of 0 are ignored, and p is 1 if there are no others."""
    from scipy.stats import wilcoxon

    found = np.array([x for x in differences if x != 0], dtype=np.float64)
    if not found.size:
        return 1.0
    finite = np.abs(found[np.isfinite(found)]).max(initial=0.0)
    return float(wilcoxon(np.clip(found, -2 * finite - 1, 2 * finite + 1)).pvalue)


def _probability(p: float) -> Cell:
    return number(p, 4) if p >= 1e-3 else Cell(f"{p:.1e}", p)
