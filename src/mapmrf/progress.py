"""A progress bar on standard error, shown only where that is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from mapmrf.arrays import Ints
from mapmrf.result import TracePoint


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
            state = f"iteration {point.iterations}  value {point.value:.4f}"
            if point.bound is not None:
                state += f"  bound {point.bound:.4f}  gap {point.gap:.2g}"
            self.bar.update(self.task, completed=min(1.0, done), state=state)
        return False
