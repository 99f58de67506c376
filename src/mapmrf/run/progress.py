"""Progress of a run: a bar where standard error is a terminal, or a line per improvement."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from mapmrf.arrays import Ints
from mapmrf.run.result import Result, TracePoint


class TerminalBar:
    """A transient progress bar on standard error where that is a terminal; nothing in a pipe."""

    # Columns are ``bar``, ``count``, ``bytes`` and ``elapsed``; everything else is text, which may contain
    # ``{task.description}`` and ``{task.fields[state]}``.

    def __init__(
        self, *columns: str, total: float | None, description: str = "", state: str = "", wanted: bool = True
    ) -> None:
        self.shown = wanted and sys.stderr.isatty()
        if self.shown:
            from rich import progress
            from rich.console import Console

            known = {
                "bar": progress.BarColumn,
                "count": progress.MofNCompleteColumn,
                "bytes": progress.DownloadColumn,
                "elapsed": progress.TimeElapsedColumn,
            }
            self._bar = progress.Progress(
                *(known[column]() if column in known else progress.TextColumn(column) for column in columns),
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=sys.stdout.isatty(),  # leave output to a file or a pipe alone
            )
            self._task = self._bar.add_task(description, total=total, state=state)

    def __enter__(self) -> Self:
        if self.shown:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self._bar.stop()

    def draw(
        self, *, completed: float, state: str = "", description: str | None = None, total: float | None = None
    ) -> None:
        """Show the progress; None leaves description and total as they are."""
        if self.shown:
            self._bar.update(self._task, completed=completed, state=state, description=description, total=total)


class ProgressBar(TerminalBar):
    """Shows value, bound and gap of a run; silent in a pipe."""

    def __init__(self, name: str, max_iterations: int, time_limit: float | None) -> None:
        text, state = "[bold]{task.description}", "{task.fields[state]}"
        super().__init__(text, "bar", state, "elapsed", total=1.0, description=name, state="starting")
        self.max_iterations, self.time_limit = max_iterations, time_limit
        self._drawn = 0.0

    def compiling(self) -> None:
        if self.shown:
            self._bar.update(self._task, state="compiling kernels (only once)")
            self._bar.refresh()

    def update(self, point: TracePoint, labels: Ints) -> bool:
        """Show a trace point, at most ten times per second; never stops the run."""
        now = time.perf_counter()
        if self.shown and now - self._drawn > 0.1:
            self._drawn = now
            done = point.iterations / self.max_iterations
            if self.time_limit:
                done = max(done, point.time / self.time_limit)
            state = f"{point.phase or 'iteration'} {point.iterations}  value {point.value:.4f}"
            if point.bound is not None:
                state += f"  bound {point.bound:.4f}  gap {point.gap:.2g}"
            self.draw(completed=min(1.0, done), state=state)
        return False


class ImprovementLines:
    """Prints a line per improvement: time, phase, value, bound and gap."""

    # A better bound is printed when it has closed a hundredth of the gap since the last line. With `regularly`, lines
    # are also printed without an improvement, once 5 seconds and a tenth of the time so far have passed since the last
    # one.

    def __init__(self, write_line: Callable[[str], None], *, regularly: bool = False) -> None:
        self.write_line, self.regularly = write_line, regularly
        self.value, self.bound, self.time = -math.inf, math.inf, 0.0
        write_line(f"{'seconds':>9}  {'phase':<14}  {'value':>16}  {'bound':>16}  {'gap':>8}")

    def update(self, point: TracePoint, labels: Ints) -> bool:
        """Print a trace point if it is an improvement, or if a line is due; never stops the run."""
        bound = math.inf if point.bound is None else point.bound
        closed = bound < math.inf and (
            self.bound == math.inf or self.bound - bound >= 0.01 * (self.bound - point.value)
        )
        due = self.regularly and point.time - self.time >= max(5.0, 0.1 * point.time)
        if point.value > self.value or (closed and bound < self.bound) or due:
            self.value, self.bound, self.time = point.value, bound, point.time
            shown = "-" if point.bound is None else f"{point.bound:.4f}"
            gap = "-" if point.gap is None else f"{point.gap:.2g}"
            self.write_line(f"{point.time:>9.3f}  {point.phase:<14}  {point.value:>16.4f}  {shown:>16}  {gap:>8}")
        return False


def closing_lines(result: Result) -> list[str]:
    """The end of a log: which phases found the labelling and proved the bound, and how the run ended."""
    lines = []
    if result.found is not None:
        lines.append(f"found   {result.value:.6f} by {_credit(result.found)}")
    if result.bounded is not None and result.bound is not None:
        word = "proven" if result.status.closes_gap else "bound "
        lines.append(f"{word}  {result.bound:.6f} by {_credit(result.bounded)}")
    return [*lines, f"status  {result.status.value}: {result.status.meaning}"]


def _credit(point: TracePoint) -> str:
    return f"{point.phase or 'the method'} after {point.time:.3f} s, iteration {point.iterations}"
