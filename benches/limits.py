"""How far runs overrun their time limit: every method on models of up to 10^6 variables, as a Markdown table.

    python benches/limits.py                                     # all methods and models, limits of 0.2, 1 and 3 s
    python benches/limits.py --models "8 labels" spins --methods lp cuts --limits 1
    python benches/limits.py 2> records.jsonl                    # every run as a line of JSON as well

Every model has its own process, in which the methods run one after another, each first on a small model of the same
kind, so that no kernel is compiled later; after a method that brings it down there is a new one. The overrun is the
time from the call of `solve` to its return, less the limit. On a busy machine that depends on others, so a second
figure is measured: the processor time that the process used after the limit, read from outside. The smaller of the two
counts; the table shows the largest of every method. A dash means that the method supports none of the models. The last
column has the longest time for which an abandoned call continued. Needs Linux.
"""

from __future__ import annotations

import argparse
import bisect
import functools
import json
import multiprocessing
import os
import resource
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import mapmrf
from mapmrf import FactorGraph
from mapmrf.errors import MapMRFError
from mapmrf.run.clock import wait_for_all
from models import GENERATED, GROUPS

Record = dict[str, Any]
GIGABYTES = 12
"""Address space of a process; a run that needs more is recorded as such."""
ALLOWED, SHARE = 0.2, 0.02
"""Seconds, and share of the limit, that a run may overrun it."""
TICK = 1.0 / os.sysconf("SC_CLK_TCK")
SMALL = 0.002
"""Share of a model's size at which kernels are tried before."""


@functools.cache
def build(name: str, scale: float = 1.0) -> FactorGraph:
    return GENERATED[name](0, scale)


def run(name: str, method: str, limit: float) -> Record:
    """One run, and the seconds for which a call that it has given up goes on."""
    mapmrf.solve(build(name, SMALL), method, time_limit=20.0, max_iterations=200)
    graph, began = build(name), time.monotonic()
    result = mapmrf.solve(graph, method, time_limit=limit)
    ended, processor = time.monotonic(), time.process_time()
    wait_for_all()
    return {"limit": limit, "began": began, "ended": ended, "processor": processor,
            "went_on": round(time.monotonic() - ended, 3), "status": result.status.value, "value": str(result.value),
            "bound": str(result.bound), "iterations": result.iterations}  # fmt: skip


class Sampler(threading.Thread):
    """Reads the processor time of a process every few milliseconds, until it ends."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.path = Path(f"/proc/{pid}/stat")
        self.times: list[float] = []
        self.seconds: list[float] = []
        self.start()

    def run(self) -> None:
        while True:
            try:
                fields = self.path.read_text().rpartition(")")[2].split()
            except OSError:
                return
            self.times.append(time.monotonic())
            self.seconds.append((int(fields[11]) + int(fields[12])) * TICK)
            time.sleep(0.004)

    def at(self, moment: float) -> float:
        return self.seconds[min(bisect.bisect_left(self.times, moment), len(self.seconds) - 1)]


def measured(name: str, methods: Sequence[str], limits: Sequence[float]) -> Iterator[Record]:
    left, memory = list(methods), (resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    while left:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), resource.setrlimit, memory) as process:
            sampler = Sampler(process.submit(os.getpid).result())
            while left:
                told: Record = {"model": name, "method": left.pop(0)}
                try:
                    for limit in limits:
                        record = process.submit(run, name, told["method"], limit).result()
                        wall = record["ended"] - record["began"] - limit
                        after = record["processor"] - sampler.at(record["began"] + limit)
                        yield {**told, **record, "wall": wall, "overrun": min(wall, after) if wall > 0 else wall}
                except MapMRFError as error:
                    yield {**told, "refused": str(error)}
                except MemoryError:
                    yield {**told, "failed": "memory"}
                except BrokenProcessPool:
                    yield {**told, "failed": "its process died"}
                    break


def table(records: Sequence[Record], limits: Sequence[float]) -> Iterator[str]:
    """The largest overrun of every method and limit, and where that was, the worst method first."""
    yield "| method | " + " | ".join(f"limit {limit:g} s" for limit in limits) + " | went on | failed |"
    yield "|---" * (len(limits) + 3) + "|"
    rows = []
    for method in dict.fromkeys(record["method"] for record in records):
        mine = [record for record in records if record["method"] == method]
        cells, worst = [], 0.0
        for limit in limits:
            runs = [record for record in mine if record.get("limit") == limit]
            most = max(runs, key=lambda record: record["overrun"], default=None)
            cells.append("-" if most is None else f"{max(0.0, most['overrun']):.2f} ({most['model']})")
            worst = max([worst, *(record["overrun"] - SHARE * limit for record in runs)])
        longest = max(mine, key=lambda record: record.get("went_on", 0.0))
        cells.append(f"{longest['went_on']:.1f} ({longest['model']})" if longest.get("went_on", 0.0) >= 0.05 else "")
        failed = ", ".join(f"{record['model']}: {record['failed']}" for record in mine if "failed" in record)
        rows.append((worst, f"| `{method}` | {' | '.join(cells)} | {failed} |"))
    yield from (line for _, line in sorted(rows, reverse=True))


def totals(records: Sequence[Record]) -> Iterator[str]:
    """How many runs were too long, by the smaller figure and by the clock, and the longest on every model."""
    figures = ("overrun", "wall")

    def late(runs: list[Record]) -> list[int]:
        return [sum(one[figure] > ALLOWED + SHARE * one["limit"] for one in runs) for figure in figures]

    runs = [record for record in records if "overrun" in record]
    by_processor, by_clock = late(runs)
    yield f"\n{len(runs)} runs, {by_processor} of them more than {ALLOWED:g} s + {SHARE:.0%} beyond the limit"
    yield f"by the clock alone {by_clock}"
    yield "\n| model | runs | most seconds that count | most by the clock | more than allowed | by the clock |"
    yield "|---" * 6 + "|"
    for name in dict.fromkeys(record["model"] for record in runs):
        mine = [record for record in runs if record["model"] == name]
        most = [f"{max(record[figure] for record in mine):.2f}" for figure in figures]
        yield f"| {name} | {len(mine)} | {' | '.join([*most, *map(str, late(mine))])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[""], help="models whose names contain one of these words")
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--limits", nargs="+", type=float, default=[0.2, 1.0, 3.0])
    given = parser.parse_args()
    records: list[Record] = []
    for name in (name for name in GROUPS["limits"] if any(word in name for word in given.models)):
        for record in measured(name, given.methods, given.limits):
            records.append(record)
            print(json.dumps(record), file=sys.stderr, flush=True)
    print("\n".join([*table(records, given.limits), *totals(records)]))


if __name__ == "__main__":
    main()
