"""How a run is followed: a progress bar where standard error is a terminal, or a line for every improvement."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import TracebackType

from mapmrf.arrays import Ints
from mapmrf.result import TracePoint

WORTH_A_LINE = 0.01
"""Share of the gap that a better bound must close to be told."""


class ProgressBar:
    """Shows value, bound and gap of a run as they improve; silent in a pipe."""

    def __init__(self, name: str, max_iterations: int, time_limit: float | None) -> None:
        self.shown = sys.stderr.isatty()
        self.max_iterations, self.time_limit = max_iterations, time_limit
        self._drawn = 0.0
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.bar.add_task(name, total=1.0, state="starting")

    def __enter__(self) -> ProgressBar:
        if self.shown:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self.bar.stop()

    def compiling(self) -> None:
        """Say that kernels are being compiled."""
        if self.shown:
            self.bar.update(self.task, state="compiling kernels (once after installation)")
            self.bar.refresh()

    def update(self, point: TracePoint, labels: Ints) -> bool:
        """Draw a trace point, at most ten times a second; never stops the run."""
        now = time.perf_counter()
        if self.shown and now - self._drawn > 0.1:
            self._drawn = now
            done = point.iterations / self.max_iterations
            if self.time_limit:
                done = max(done, point.time / self.time_limit)
            state = f"{point.phase or 'iteration'} {point.iterations}  value {point.value:.4f}"
            if point.bound is not None:
                state += f"  bound {point.bound:.4f}  gap {point.gap:.2g}"
            self.bar.update(self.task, completed=min(1.0, done), state=state)
        return False


class ImprovementLines:
    """Tells every improvement in a line of its own: when, by which part, value, bound and gap.

    A better bound is told when it has closed a hundredth of the gap since the last line.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self.tell = tell
        self.value, self.bound = -math.inf, math.inf
        tell(f"{'seconds':>9}  {'part':<14}  {'value':>16}  {'bound':>16}  {'gap':>8}")

    def update(self, point: TracePoint, labels: Ints) -> bool:
        """Tell a trace point if it is an improvement; never stops the run."""
        bound = math.inf if point.bound is None else point.bound
        closed = bound < math.inf and (
            self.bound == math.inf or self.bound - bound >= WORTH_A_LINE * (self.bound - point.value)
        )
        if point.value > self.value or (closed and bound < self.bound):
            self.value, self.bound = point.value, bound
            shown = "-" if point.bound is None else f"{point.bound:.4f}"
            gap = "-" if point.gap is None else f"{point.gap:.2g}"
            self.tell(f"{point.time:>9.3f}  {point.phase:<14}  {point.value:>16.4f}  {shown:>16}  {gap:>8}")
        return False
