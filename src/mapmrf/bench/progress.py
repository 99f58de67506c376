"""Progress of a benchmark and an estimate of the time left, on standard error if that is a terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from mapmrf.bench.records import Record
from mapmrf.bench.run_list import BenchTask
from mapmrf.run.progress import TerminalBar


class BenchBar(TerminalBar):
    """A progress bar of finished runs with an estimate of the time left; silent in a pipe.

    The estimate assumes that a run takes the mean time of its method on that set so far, or else of all runs.
    """

    def __init__(self, tasks: Sequence[BenchTask], jobs: int) -> None:
        super().__init__("[bold]bench", "bar", "count", "elapsed", "{task.fields[state]}", total=len(tasks))
        self.jobs = jobs
        self.done = 0
        self.troubles: Counter[str] = Counter()
        self._left = {task.key: (task.run.name, task.model.set) for task in tasks}
        self._seconds: dict[tuple[str, str], list[float]] = {}

    def update(self, record: Record) -> None:
        """Count a record."""
        self._left.pop(record["key"], None)
        spent = float(record.get("runtime") or record["time_limit"])  # a killed run took at least its limit
        self._seconds.setdefault((record["run"], record["set"]), []).append(spent)
        if record["outcome"] not in ("done", "unsupported"):
            self.troubles[record["outcome"]] += 1
        self.done += 1
        left = _duration(self.seconds_left())
        self.draw(completed=self.done, state=f"about {left} left, last: {record['run']} on {record['model']}")

    def seconds_left(self) -> float:
        """Estimated time of the remaining runs."""
        every = [seconds for some in self._seconds.values() for seconds in some]
        mean = sum(every) / len(every) if every else 0.0
        total = 0.0
        for kind in self._left.values():
            seen = self._seconds.get(kind)
            total += sum(seen) / len(seen) if seen else mean
        return total / self.jobs


def _duration(seconds: float) -> str:
    """A duration, rounded to read well.

    >>> _duration(3), _duration(200), _duration(8000)
    ('3 s', '3 min', '2.2 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
