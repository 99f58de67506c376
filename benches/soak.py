"""A soak: `solve`, `solve_many` and `bench` on random models in one process, for hours; what grows is reported.

    python benches/soak.py --minutes 120                       # figures at the end; exit code 1 if something grows
    python benches/soak.py --minutes 5 --csv soak.csv          # also every sample as a line
    python benches/soak.py --minutes 10 --methods trws lslp

First every method is run on every shape of `random_models.py`, which loads all kernels; that is the warm-up. Then
rounds follow until the time is over: single solves by all methods in turn on models that were never seen before, with
one thread or two, some of them ended by a time limit or a callback; batches in threads, and from time to time in
processes; now and then a benchmark in worker processes. After every round the resident memory, the threads, the open
files and the child processes are counted. Growth is the difference of the medians of the first and of the last quarter
of the rounds; a kernel that is loaded on the way may take its megabyte. Needs Linux.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import gc
import io
import itertools
import math
import os
import resource
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba.core.dispatcher import Dispatcher

import mapmrf
import random_models
from mapmrf.errors import MapMRFError, UnsupportedModel

MOST_BYTES, MOST_SHARE = 8e6, 0.03
"""Growth of memory that counts as none: bytes, and share of the memory at the beginning."""

KERNEL_BYTES = 1e6
"""Bytes that a kernel takes at most."""

ITERATIONS, SECONDS = 10, 0.3
"""Limits of a single solve."""

SOLVES, MANY = 25, 6
"""Single solves in a round, and models of a batch."""

PROCESSES_EVERY, BENCH_EVERY = 10, 20
"""Rounds after which a batch runs in processes, and a benchmark."""


class Sample(NamedTuple):
    """What the process holds after a round.

    Attributes
    ----------
    resident, held
        Bytes of resident memory, and of those what stays when the allocator has given back all that is free: glibc
        keeps freed memory of every thread for a while.
    kernels
        Machine code that is loaded: kernels, by signature. There is an end of them, but some are only for large models.
    """

    seconds: float
    round: int
    resident: int
    held: int
    threads: int
    files: int
    children: int
    kernels: int


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _children() -> int:
    """Child processes of all threads; a thread may end while it is looked at."""
    count = 0
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            count += len((task / "children").read_text().split())
    return count


def take_sample(began: float, number: int) -> Sample:
    """Count, after the garbage is gone."""
    gc.collect()
    size = resident()
    ctypes.CDLL(None).malloc_trim(0)
    return Sample(
        seconds=time.monotonic() - began,
        round=number,
        resident=size,
        held=resident(),
        threads=len(list(Path("/proc/self/task").iterdir())),
        files=len(os.listdir("/proc/self/fd")),
        children=_children(),
        kernels=sum(len(one.overloads) for one in gc.get_objects() if isinstance(one, Dispatcher)),
    )


class Soak:
    """The work, and what went wrong on the way.

    Attributes
    ----------
    done
        How many solves, batches, benchmarks, and models that a method does not take.
    failures
        Errors that are not an answer to bad input.
    """

    def __init__(self, methods: list[str], seed: int) -> None:
        self.methods, self.random = methods, np.random.default_rng(seed)
        self.turns = itertools.cycle(methods)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.number = 1000  # beyond the models of the warm-up

    def models(self, n: int) -> Iterator[tuple[str, mapmrf.FactorGraph]]:
        """New models, each of another shape."""
        for shape in self.random.permutation(list(random_models.SHAPES))[:n]:
            self.number += 1
            scale = float(self.random.choice([1.0, 1.0, 3.0, 10.0]))
            yield str(shape), random_models.model(str(shape), self.number, scale)

    def solve(self, method: str, graph: mapmrf.FactorGraph, **limits: object) -> None:
        """One solve; a method may decline."""
        options = {"max_iterations": ITERATIONS, "time_limit": SECONDS, **limits}
        try:
            mapmrf.solve(graph, method, **options)
            self.done["solves"] += 1
        except UnsupportedModel:
            self.done["declined"] += 1
        except MapMRFError as error:
            self.failures.append(f"{method}: {error}")

    def warm_up(self) -> None:
        """Every method on every shape, with one thread and with two."""
        for shape, method in itertools.product(random_models.SHAPES, self.methods):
            graph = random_models.model(shape, 0)
            for threads in (1, 2):
                self.solve(method, graph, threads=threads, time_limit=None)
        self.round(0)

    def round(self, number: int) -> None:
        """Some solves and a batch, at times more."""
        for _ in range(SOLVES):
            for _, graph in self.models(1):
                limits: dict[str, object] = {"threads": int(self.random.integers(1, 3)), "seed": number}
                kind = int(self.random.integers(4))
                if kind == 0:
                    limits["callback"] = lambda point, labels: True
                if kind == 1:
                    limits["time_limit"] = 0.005
                self.solve(next(self.turns), graph, **limits)
        self.batch("processes" if number % PROCESSES_EVERY == 0 else "threads")
        if number % BENCH_EVERY == 0:
            models = {f"{shape} {n}": graph for n, (shape, graph) in enumerate(self.models(2))}
            records = mapmrf.bench.run([mapmrf.ICM(), mapmrf.TRWS(max_iterations=5)], models, time_limit=1.0, jobs=2)
            self.done["benchmark runs"] += len(records)

    def batch(self, backend: str) -> None:
        """A batch of models and a file that is not there."""
        graphs, method = [graph for _, graph in self.models(MANY)], str(self.random.choice(self.methods))
        found = mapmrf.solve_many([*graphs, "absent.uai"], method, jobs=2, backend=backend, time_limit=SECONDS)
        self.done["solves in batches"] += sum(isinstance(one, mapmrf.Result) for one in found)
        for one in found[:-1]:
            if isinstance(one, MapMRFError) and not isinstance(one, UnsupportedModel):
                self.failures.append(f"{method}, in {backend}: {one}")


def growth(samples: list[Sample], what: str) -> tuple[float, float]:
    """Medians of the first and of the last quarter."""
    quarter = max(1, len(samples) // 4)
    first, last = samples[:quarter], samples[-quarter:]
    return tuple(statistics.median(getattr(one, what) for one in part) for part in (first, last))  # type: ignore[return-value]


def per_hour(samples: list[Sample]) -> float:
    """Slope of the memory held by least squares, bytes per hour."""
    if len(samples) < 3:
        return 0.0
    hours = np.array([one.seconds for one in samples]) / 3600
    return float(np.polyfit(hours, [one.held for one in samples], 1)[0])


def verdict(samples: list[Sample]) -> list[str]:
    """Print the figures; return what grows."""
    grown = []
    print("| | first quarter | last quarter | most |\n|---|---|---|---|")
    for what in ("resident", "held", "kernels", "threads", "files", "children"):
        first, last = growth(samples, what)
        most = max(getattr(one, what) for one in samples)
        if what in ("resident", "held"):
            print(f"| memory {what}, MB | {first / 1e6:.1f} | {last / 1e6:.1f} | {most / 1e6:.1f} |")
            code = KERNEL_BYTES * float(np.diff(growth(samples, "kernels"))[0])
            allowed = code + max(MOST_BYTES, MOST_SHARE * first) if what == "held" else math.inf
        else:
            print(f"| {what} | {first:.0f} | {last:.0f} | {most} |")
            allowed = math.inf if what == "kernels" else 0.0
        if last - first > allowed:
            grown.append(what)
    print(f"\nmemory held, by least squares: {per_hour(samples) / 1e6:+.1f} MB per hour")
    return grown


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="after the warm-up")
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write every sample")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    soak, began = Soak(given.methods, given.seed), time.monotonic()
    soak.warm_up()
    warm = time.monotonic()
    print(f"warm after {warm - began:.0f} s: {dict(soak.done)}", flush=True)
    samples: list[Sample] = []
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(given.csv.open("w", newline="")) if given.csv else io.StringIO()
        out = csv.writer(lines) if given.csv else None
        if out is not None:
            out.writerow(Sample._fields)
        while time.monotonic() < warm + 60 * given.minutes:
            soak.round(len(samples) + 1)
            samples.append(take_sample(warm, len(samples) + 1))
            if out is not None:
                out.writerow(samples[-1])
                lines.flush()
    print(f"{samples[-1].seconds / 60:.0f} minutes, {len(samples)} rounds: {dict(soak.done)}\n")
    grown = verdict(samples)
    for failure in sorted(set(soak.failures)):
        print(f"failed: {failure}")
    if grown:
        print(f"grows: {', '.join(grown)}")
    return int(bool(grown or soak.failures))


if __name__ == "__main__":
    sys.exit(main())
