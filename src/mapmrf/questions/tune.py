"""Parameter tuning: run a method on a grid of its options, by default the paper's grid for LS-LP; keep the best run."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mapmrf.errors import OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.run.pool import run_in_order
from mapmrf.run.progress import TerminalBar
from mapmrf.run.registry import make_method, method_class
from mapmrf.run.result import Result
from mapmrf.run.solve import solve

PAPER_AXES = ("rho", "eta", "rho_upper")  # options that the paper tunes
GridRun = tuple[dict[str, Any], Result]  # a row of the table, and its result


@dataclass(frozen=True, eq=False)
class Tuning:
    """The outcome of a parameter search.

    Attributes
    ----------
    best
        The options (and the seed) of the best run.
    result
        The Result of the best run.
    table
        One row per run: its parameters, seed, value, relaxed value, kind, iterations, runtime, status.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> tuning = mapmrf.tune(graph, rho=[0.1, 1.0], eta=[1.03], rho_upper=[1e6], jobs=1)
    >>> len(tuning.table), tuning.result.value
    (2, 2.0)
    """

    best: dict[str, Any]
    result: Result
    table: list[dict[str, Any]]


def tune(
    graph: FactorGraph,
    method: str = "lslp",
    *,
    rho: Sequence[float] = (0.05, 0.1, 1.0, 5.0, 10.0, 1e2, 1e3, 1e4),
    eta: Sequence[float] = (1.01, 1.03, 1.05, 1.1, 1.2),
    rho_upper: Sequence[float] = (1e6, 1e8),
    seeds: Sequence[int] = (0,),
    preset: str = "paper",
    grid: Mapping[str, Sequence[Any]] | None = None,
    time_limit: float | None = None,
    jobs: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Tuning:
    """Run a method on every combination of parameters and return the best run, with a table of all.

    The defaults are the paper's grid and its algorithm: its LS-LP figures are the best of these 80 runs. Combinations
    run on `jobs` threads (all cores by default); the table keeps the order of the grid. A combination whose rho never
    reached a smaller `rho_upper` would repeat that run exactly, so its row is copied.

    Parameters
    ----------
    graph
        The model.
    method
        Name of the method; ``my_file.py:Greedy`` is a class in a file.
    rho, eta, rho_upper, seeds
        Values to try.
    preset
        Preset of the method for all other options, if it has presets.
    grid
        Values to try for any options of the method, by name, instead of `rho`, `eta` and `rho_upper`.
    time_limit
        Seconds for the whole search, after which the best run so far is returned.
    jobs
        Number of runs in parallel.
    progress
        Show a progress bar, if standard error is a terminal.
    **options
        Other options, the same for every run.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> tuning = mapmrf.tune(graph, rho=[0.1, 1], eta=[1.03], rho_upper=[1e6], jobs=1)
    >>> tuning.result.value, len(tuning.table)
    (2.0, 2)
    >>> mapmrf.tune(graph, "icm", grid={"starts": [1, 5]}, seeds=[0, 1], jobs=1).best
    {'starts': 1, 'seed': 0}
    """
    known = [item.name for item in dataclasses.fields(method_class(method))]  # type: ignore[arg-type]
    if "preset" in known:
        options = {"preset": preset, **options}
    if grid is None:
        absent = [name for name in PAPER_AXES if name not in known]
        if absent:
            found = f"{method} has no option {absent[0]!r}"
            raise OptionError(f"{found}, expected a grid of its own options; known: {', '.join(known)}")
        axes: dict[str, Sequence[Any]] = {"rho": [float(r) for r in rho], "eta": [float(e) for e in eta]}
        uppers: list[float] = sorted(float(upper) for upper in rho_upper)
    else:
        axes, uppers = {key: list(values) for key, values in grid.items()}, []
    axes["seed"] = [int(seed) for seed in seeds]
    cells = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    if not cells or (grid is None and not uppers):
        raise OptionError("nothing to tune: every parameter needs at least one value")
    for cell in cells:  # bad options are the caller's error, found before anything runs
        asked = {key: value for key, value in cell.items() if key != "seed"}
        make_method(method, {**options, **asked, **({"rho_upper": uppers[0]} if uppers else {})})
    deadline = None if time_limit is None else time.perf_counter() + time_limit
    tasks = (CellTask(graph, method, options, uppers, deadline, cell) for cell in cells)
    with TerminalBar("tuning", "bar", "count", "elapsed", total=len(cells), wanted=progress) as bar:
        counter = itertools.count(1)
        done = list(
            run_in_order(tasks, jobs=jobs or os.cpu_count() or 1, done=lambda rows: bar.draw(completed=next(counter)))
        )
    done += [task.unsolved() for task in tasks]  # empty unless the search was interrupted
    runs = list(itertools.chain.from_iterable(done))
    table = [row for row, _ in runs]
    best = max(range(len(runs)), key=lambda index: (table[index]["value"], -index))  # the first one wins ties
    chosen = {key: value for key, value in table[best].items() if key not in FIGURES}
    return Tuning(chosen, runs[best][1], table)


GridCell = dict[str, Any]  # a combination of options and a seed, without the `rho_upper` of the paper's grid


@dataclass(frozen=True, eq=False)
class CellTask:
    """All values of `rho_upper` for one combination of the other parameters, as a task for the pool."""

    graph: FactorGraph
    method: str
    fixed: dict[str, Any]
    uppers: list[float]
    deadline: float | None  # by `time.perf_counter`
    cell: GridCell

    def solve(self, cell: GridCell, stopped: Callable[[], bool]) -> GridRun:
        """Do one run; return its row of the table and its result."""
        left = None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())
        limits: dict[str, Any] = {"time_limit": left, "callback": lambda point, labels: stopped()}
        result = solve(self.graph, self.method, **cell, **limits, **self.fixed)
        kind = None if result.kind is None else result.kind.value
        figures = (result.value, result.relaxed_value, kind, result.iterations, result.runtime, result.status.value)
        return {**cell, **dict(zip(FIGURES, figures, strict=True))}, result

    def run(self, stopped: Callable[[], bool]) -> list[GridRun]:
        """Run from the smallest value up; copy the row where rho never reached the previous value."""
        if not self.uppers:
            return [self.solve(self.cell, stopped)]
        runs: list[GridRun] = []
        for upper in self.uppers:
            if runs and runs[-1][1].details.get("rho", upper) < runs[-1][0]["rho_upper"]:
                runs.append(({**runs[-1][0], "rho_upper": upper}, runs[-1][1]))
            else:
                options = {key: value for key, value in self.cell.items() if key != "seed"}
                cell = options | {"rho_upper": upper, "seed": self.cell["seed"]}  # in the order of the table
                runs.append(self.solve(cell, stopped))
        return runs

    def unsolved(self) -> list[GridRun]:
        """Rows of runs that were stopped immediately."""
        return self.run(lambda: True)

    def lost(self, error: Exception) -> list[GridRun]:
        """Threads do not lose tasks."""
        raise error


FIGURES = ("value", "relaxed_value", "kind", "iterations", "runtime", "status")
"""Columns of the table that are outcomes."""
