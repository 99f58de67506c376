"""How far runs overrun their time limit: every method on models of up to 10^6 variables, as a Markdown table.

    python benches/limits.py                                     # all methods and models, limits of 0.2, 1 and 3 s
    python benches/limits.py --models image8 dense --methods lp cuts --limits 1
    python benches/limits.py --json records.jsonl                # every run as a line of JSON as well
    python benches/limits.py --table records.jsonl               # the table of such records again, nothing is run

Every model has its own process, in which the methods run one after another, each first on a small model of the
same kind, so that no kernel is compiled later. The overrun is the time from the call of `solve` to its return, less the
limit. On a busy machine that depends on others, so a second figure is measured: the processor time that the process
used after the limit, read from outside. The smaller of the two counts; the table shows the largest of every
method. A dash means that the method supports none of the models. The last column has the longest time for which an
abandoned call continued. Needs Linux.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mapmrf
from mapmrf import FactorGraph
from mapmrf.errors import MapMRFError
from mapmrf.run.calls import wait_for_all
from models import GENERATED

GIGABYTES = 12
"""Address space of a process; a run that needs more is recorded as such."""

ALLOWED, SHARE = 0.2, 0.02
"""Seconds, and share of the limit, that a run may overrun it."""

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


MODELS: dict[str, tuple[str, float]] = {
    "image2": ("1000 x 1000 pixels, 2 labels", 0.0004),
    "image8": ("1000 x 1000 pixels, 8 labels", 0.0004),
    "glass": ("500 x 500 spins", 0.0025),
    "dense": ("400 binary variables, 40,000 pairs", 0.05),
    "arity5": ("5,000 variables, 10,000 factors of 5", 0.01),
    "hard": ("20,000 variables, 40,000 factors, a tenth of the entries -inf", 0.005),
    "counted": ("at most 60 of 600 items, 3,000 pairs", 0.1),
    "rewritten": ("the same as tables", 0.1),
    "priced": ("500 x 500 pixels, 4 labels with costs", 0.0004),
    "small": ("200 binary variables, 6,000 pairs", 0.05),
    "small5": ("120 variables, 150 factors of 5", 0.1),
    "wide": ("30 variables of 40 states, 25 pairs", 0.2),
}
"""By a short name: the model of `models.toml`, and the share of its size at which kernels are tried before."""


# -- one process ------------------------------------------------------------------------------------------------------


def run_all(name: str, methods: Sequence[str], limits: Sequence[float]) -> None:
    """Run methods on a model and print a line of JSON for every run."""
    resource.setrlimit(resource.RLIMIT_AS, (GIGABYTES << 30, GIGABYTES << 30))
    title, share = MODELS[name]
    small, graph = (GENERATED[title](0, scale) for scale in (share, 1.0))
    for method in methods:
        say(method=method)
        try:
            mapmrf.solve(small, method, time_limit=20.0, max_iterations=200)
            for limit in limits:
                say(method=method, limit=limit, **run(graph, method, limit))
        except MapMRFError as error:
            say(method=method, refused=str(error))
        except MemoryError:
            say(method=method, failed="memory")


def run(graph: FactorGraph, method: str, limit: float) -> dict[str, Any]:
    """One run, and the seconds for which a call that it has given up goes on."""
    began = time.monotonic()
    result = mapmrf.solve(graph, method, time_limit=limit)
    ended, processor = time.monotonic(), time.process_time()
    wait_for_all()
    return {"began": began, "ended": ended, "processor": processor, "went_on": round(time.monotonic() - ended, 3),
            "status": result.status.value, "value": str(result.value), "bound": str(result.bound),
            "iterations": result.iterations}  # fmt: skip


def say(**record: Any) -> None:
    print(json.dumps(record), flush=True)


# -- all processes ----------------------------------------------------------------------------------------------------


class Sampler(threading.Thread):
    """Reads the processor time of a process every few milliseconds."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.path = Path(f"/proc/{pid}/stat")
        self.times: list[float] = []
        self.seconds: list[float] = []

    def run(self) -> None:
        """Read until the process has ended."""
        while True:
            try:
                fields = self.path.read_text().rpartition(")")[2].split()
            except OSError:
                return
            self.times.append(time.monotonic())
            self.seconds.append((int(fields[11]) + int(fields[12])) * TICK)
            time.sleep(0.004)

    def at(self, moment: float) -> float:
        """Processor seconds at a moment."""
        return self.seconds[min(bisect.bisect_left(self.times, moment), len(self.seconds) - 1)]


def measured(name: str, methods: Sequence[str], limits: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Records of all runs on a model; a method that brings its process down is left out of the next one."""
    left = list(methods)
    while left:
        command = [sys.executable, __file__, "--one", name, "--methods", *left, "--limits", *map(str, limits)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        sampler = Sampler(process.pid)
        sampler.start()
        assert process.stdout
        for line in process.stdout:
            record = json.loads(line)
            if "ended" in record:
                record |= overruns(record, sampler)
            if len(record) > 1:
                yield {"model": name, **record}
            left = left[left.index(record["method"]) + 1 :] if record["method"] in left else left
            last = record["method"]
        if process.wait() == 0:
            return
        yield {"model": name, "method": last, "failed": f"exit status {process.returncode}"}


def overruns(record: dict[str, Any], sampler: Sampler) -> dict[str, float]:
    """Seconds after the limit, by the clock and of the processor, and the smaller one."""
    over = record["began"] + record["limit"]
    wall = record["ended"] - over
    used = record["processor"] - sampler.at(over) if wall > 0 else wall
    return {"wall": round(wall, 3), "used": round(used, 3), "overrun": round(min(wall, used), 3)}


def table(records: Sequence[dict[str, Any]], limits: Sequence[float]) -> str:
    """The largest overrun of every method and limit, and where that was, the worst method first."""
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
    head = ["| method | " + " | ".join(f"limit {limit:g} s" for limit in limits) + " | went on | failed |"]
    lines = [line for _, line in sorted(rows, reverse=True)]
    return "\n".join([*head, "|---" * (len(limits) + 3) + "|", *lines, "", *totals(records)])


def totals(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """How many runs were too long, by the smaller figure and by the clock, and the longest on every model."""
    runs = [record for record in records if "overrun" in record]
    by_processor, by_clock = (
        sum(record[figure] > ALLOWED + SHARE * record["limit"] for record in runs) for figure in ("overrun", "wall")
    )
    yield f"{len(runs)} runs, {by_processor} of them more than {ALLOWED:g} s + {SHARE:.0%} beyond the limit"
    yield f"by the clock alone {by_clock}"
    yield "\n| model | runs | most seconds that count | most by the clock | more than allowed | by the clock |"
    yield "|---" * 6 + "|"
    for name in dict.fromkeys(record["model"] for record in runs):
        mine = [record for record in runs if record["model"] == name]
        late = [sum(r[figure] > ALLOWED + SHARE * r["limit"] for r in mine) for figure in ("overrun", "wall")]
        most = [max(record[figure] for record in mine) for figure in ("overrun", "wall")]
        yield f"| {MODELS[name][0]} | {len(mine)} | {most[0]:.2f} | {most[1]:.2f} | {late[0]} | {late[1]} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--limits", nargs="+", type=float, default=[0.2, 1.0, 3.0])
    parser.add_argument("--json", type=Path, help="File to which every run is appended.")
    parser.add_argument("--table", type=Path, nargs="+", metavar="JSON", help="Print the table of stored records only.")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        run_all(given.one, given.methods, given.limits)
        return
    records: list[dict[str, Any]] = []
    if given.table:
        records = [json.loads(line) for path in given.table for line in path.read_text().splitlines()]
        print(table(records, sorted({record["limit"] for record in records if "limit" in record})))
        return
    for name in given.models:
        for record in measured(name, given.methods, given.limits):
            records.append(record)
            print(json.dumps(record), file=sys.stderr)
            if given.json:
                with given.json.open("a") as file:
                    file.write(json.dumps(record) + "\n")
    print(table(records, given.limits))


if __name__ == "__main__":
    main()
