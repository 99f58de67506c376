"""How far a benchmark is and how long it may still take, on standard error where that is a terminal."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from mapmrf.bench.plan import Task
from mapmrf.bench.records import Record


class BenchBar:
    """A bar of finished runs with an estimate of the time left; silent in a pipe.

    The estimate takes for every run that is left what its method took so far on that set, or else what all runs took.
    """

    def __init__(self, tasks: Sequence[Task], jobs: int) -> None:
        self.shown = sys.stderr.isatty()
        self.jobs = jobs
        self.troubles: Counter[str] = Counter()
        self._left = {task.key: (task.run.name, task.model.set) for task in tasks}
        self._seconds: dict[tuple[str, str], list[float]] = {}
        if self.shown:
            from rich.console import Console
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            self.bar = Progress(
                TextColumn("[bold]bench"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                TextColumn("{task.fields[state]}"),
                console=Console(stderr=True),
                transient=True,
            )
            self.task = self.bar.add_task("bench", total=len(tasks), state="")

    def __enter__(self) -> BenchBar:
        if self.shown:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.shown:
            self.bar.stop()

    def update(self, record: Record) -> None:
        """Count a record."""
        self._left.pop(record["key"], None)
        spent = float(record.get("runtime") or record["time_limit"])  # what was killed took at least its limit
        self._seconds.setdefault((record["run"], record["set"]), []).append(spent)
        if record["outcome"] not in ("done", "unsupported"):
            self.troubles[record["outcome"]] += 1
        if self.shown:
            state = f"about {_duration(self.seconds_left())} left, last: {record['run']} on {record['model']}"
            self.bar.update(self.task, advance=1, state=state)

    def seconds_left(self) -> float:
        """Estimate of the time that the runs left will take."""
        every = [seconds for some in self._seconds.values() for seconds in some]
        mean = sum(every) / len(every) if every else 0.0
        total = 0.0
        for kind in self._left.values():
            seen = self._seconds.get(kind)
            total += sum(seen) / len(seen) if seen else mean
        return total / self.jobs


def _duration(seconds: float) -> str:
    """A time for people.

    >>> _duration(3), _duration(200), _duration(8000)
    ('3 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
