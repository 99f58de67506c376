"""Tuning as the paper did: run LS-LP on a grid of its parameters and keep the best labelling."""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from mapmrf.arrays import Ints
from mapmrf.errors import OptionError
from mapmrf.graph import FactorGraph
from mapmrf.registry import make_method
from mapmrf.result import Result, Status, TracePoint
from mapmrf.solver import solve

PAPER_RHO = (0.05, 0.1, 1.0, 5.0, 10.0, 1e2, 1e3, 1e4)
PAPER_ETA = (1.01, 1.03, 1.05, 1.1, 1.2)
PAPER_RHO_UPPER = (1e6, 1e8)


@dataclass(frozen=True, eq=False)
class Tuning:
    """Outcome of a search.

    Attributes
    ----------
    best
        The options (and the seed) of the best run.
    result
        The Result of the best run.
    table
        A row for every run: its parameters, seed, value, relaxed value, kind, iterations, runtime, status.

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
    rho: Sequence[float] = PAPER_RHO,
    eta: Sequence[float] = PAPER_ETA,
    rho_upper: Sequence[float] = PAPER_RHO_UPPER,
    seeds: Sequence[int] = (0,),
    preset: str = "paper",
    time_limit: float | None = None,
    jobs: int | None = None,
    progress: bool = False,
    **options: Any,
) -> Tuning:
    """Run a method on every combination of parameters and return the best, with the whole table.

    The defaults are the paper's grid and its algorithm: its LS-LP figures are the best of these 80 runs. Combinations
    are run on `jobs` threads (all cores by default) and reported in the order of the grid, whatever order they end in.
    A combination whose rho never reached a smaller `rho_upper` would repeat that run exactly, so its row is copied.

    Parameters
    ----------
    graph
        The model.
    method
        Name of a method with these parameters.
    rho, eta, rho_upper, seeds
        Values to try.
    preset
        Where all other options come from.
    time_limit
        Seconds for the whole search; the best so far is returned.
    jobs
        Runs at a time.
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
    """
    cells = [{"rho": float(r), "eta": float(e), "seed": int(s)} for r, e, s in itertools.product(rho, eta, seeds)]
    uppers = sorted(float(upper) for upper in rho_upper)
    if not cells or not uppers:
        raise OptionError("nothing to tune: every parameter needs at least one value")
    fixed = {"preset": preset, **options}
    for cell in cells:  # bad options are the caller's error, found before anything runs
        make_method(method, {**fixed, "rho": cell["rho"], "eta": cell["eta"], "rho_upper": uppers[0]})
    return _Search(graph, method, fixed, uppers, time_limit).run(cells, jobs or os.cpu_count() or 1, progress)


class _Search:
    """A search under way: what all runs share."""

    def __init__(
        self, graph: FactorGraph, method: str, fixed: dict[str, Any], uppers: list[float], time_limit: float | None
    ) -> None:
        self.graph, self.method, self.fixed, self.uppers = graph, method, fixed, uppers
        self.deadline = None if time_limit is None else time.perf_counter() + time_limit
        self.stopped = threading.Event()

    def run(self, cells: list[dict[str, Any]], jobs: int, progress: bool) -> Tuning:
        """Run all cells and gather rows and the best result in the grid's order."""
        with ThreadPoolExecutor(max_workers=jobs) as pool:
            futures = [pool.submit(self._cell, cell) for cell in cells]
            try:
                for future in _shown(futures, progress):
                    future.result()
            except KeyboardInterrupt:
                self.stopped.set()
            done = [pair for future in futures for pair in future.result()]
        table = [row for row, _ in done]
        best = max(range(len(done)), key=lambda index: (table[index]["value"], -index))
        keys = ("rho", "eta", "rho_upper", "seed")
        return Tuning({key: table[best][key] for key in keys}, done[best][1], table)

    def _cell(self, cell: dict[str, Any]) -> list[tuple[dict[str, Any], Result]]:
        """All values of rho_upper for one combination of the others, from the smallest up."""
        done: list[tuple[dict[str, Any], Result]] = []
        for upper in self.uppers:
            if done and done[-1][1].details.get("rho", upper) < done[-1][0]["rho_upper"]:
                done.append(({**done[-1][0], "rho_upper": upper}, done[-1][1]))
                continue
            left = None if self.deadline is None else max(0.0, self.deadline - time.perf_counter())
            result = solve(
                self.graph, self.method, seed=cell["seed"], time_limit=left, callback=self._stop,
                rho=cell["rho"], eta=cell["eta"], rho_upper=upper, **self.fixed,
            )  # fmt: skip
            done.append((_row(cell, upper, result), result))
        return done

    def _stop(self, point: TracePoint, labels: Ints) -> bool:
        return self.stopped.is_set()


def _row(cell: dict[str, Any], upper: float, result: Result) -> dict[str, Any]:
    return {
        "rho": cell["rho"],
        "eta": cell["eta"],
        "rho_upper": upper,
        "seed": cell["seed"],
        "value": result.value,
        "relaxed_value": result.relaxed_value,
        "kind": None if result.kind is None else result.kind.value,
        "iterations": result.iterations,
        "runtime": result.runtime,
        "status": Status(result.status).value,
    }


def _shown(futures: list[Any], progress: bool) -> Iterator[Any]:
    """The futures one by one, with a progress bar where that is wanted and standard error is a terminal."""
    if not (progress and sys.stderr.isatty()):
        yield from futures
        return
    from rich.console import Console
    from rich.progress import track

    yield from track(futures, "tuning", console=Console(stderr=True), transient=True)
