"""Soak test: `solve`, `solve_many` and `bench` on random models in one process, for hours; growth is reported.

    python benches/soak.py --minutes 120                       # a table over time; exit code 1 if something grows
    python benches/soak.py --minutes 5 --csv soak.csv          # also every sample as a line
    python benches/soak.py --minutes 10 --methods trws lslp
    MALLOC_ARENA_MAX=16 python benches/soak.py                 # as many arenas as glibc has by default on two cores
    python benches/soak.py --read soak.csv                     # the verdict on stored samples, of a run that was ended

First every method is run on every shape of `random_models.py`, small and large; then rounds follow until ten in a row
have loaded no kernel: that is the warm-up. The rounds after it are like these, until the time is up: single solves by
all methods in turn on models that were never seen before, with one thread or two, some of them ended by a time limit or
a callback; a large model whose calls are abandoned; batches in threads, and from time to time in processes; now and
then a benchmark in worker processes. After every round it is counted what the process holds, which is not its resident
memory: glibc keeps freed memory. What has grown over the second half of the time is a leak: a cache that fills has
filled by then. See docs/reliability.md. Needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import ctypes
import gc
import itertools
import os
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba.core.runtime.nrt import rtsys

import mapmrf
import random_models
from mapmrf.compilation.jit import Kernel
from mapmrf.errors import MapMRFError, UnsupportedModel
from mapmrf.model.memory import resident_bytes
from mapmrf.run import clock

ITERATIONS, SECONDS = 10, 0.3
"""Limits of a single solve."""
SOLVES, MANY = 25, 6
"""Single solves in a round, and models of a batch."""
PROCESSES_EVERY, BENCH_EVERY = 10, 20
"""Rounds after which a batch runs in processes, and a benchmark."""
WARM, MOST_WARM = 10, 100
"""The warm-up ends after so many rounds without a new kernel, and at the latest after so many."""
SETTINGS, ONE_ARENA = {"PYTHONMALLOC": "malloc", "NUMBA_NRT_STATS": "1"}, {"MALLOC_ARENA_MAX": "1"}
"""The environment in which everything is counted, and threads share an arena unless the user says otherwise."""
ALLOWED = {"used": (2e6, 50.0), "objects": (200.0, 0.02), "arrays": (0.0, 0.0)}
"""Growth over the second half of a run that counts as none, and so much for every solve; when Python rebuilds its table
of interned strings, once in thousands of solves, memory grows by a megabyte or two."""
RESIDENT_SHARE = 0.05
"""Growth of the resident memory from the third quarter to the last that counts as none."""


class Sample(NamedTuple):
    seconds: float
    round: int
    solves: int  # those of batches and benchmarks with them
    kernels: int  # that are loaded, by signature: there is an end of them, but some are only for rare models
    used: int  # bytes that malloc has given out
    resident: int
    objects: int
    arrays: int  # of kernels, that are alive
    threads: int
    files: int
    children: int


def take_sample(seconds: float, number: int, solves: int) -> Sample:
    gc.collect()
    known = gc.get_objects()
    objects = len(known) - number  # the samples of the rounds before are no leak
    kernels = sum(len(one._entries) for one in known if isinstance(one, Kernel))
    del known
    threads = list(Path("/proc/self/task").iterdir())
    children = 0
    for thread in threads:
        with contextlib.suppress(OSError):  # it may have ended
            children += len((thread / "children").read_text().split())
    memory = (kernels, given_out(), int(resident_bytes()), objects, arrays_alive())
    return Sample(seconds, number, solves, *memory, len(threads), len(os.listdir("/proc/self/fd")), children)


class Mallinfo(ctypes.Structure):
    _fields_ = [("sizes", ctypes.c_size_t * 10)]  # the fifth: of blocks of their own, the eighth: of those in heaps


def given_out() -> int:
    """Bytes that malloc has given out and not got back, in heaps and in blocks of their own."""
    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo
    sizes = libc.mallinfo2().sizes
    return int(sizes[4] + sizes[7])


def arrays_alive() -> int:
    """Arrays that kernels have made and nobody has freed, if numba counts them and was needed so far."""
    try:
        counts = rtsys.get_allocation_stats()
    except RuntimeError:
        return 0
    return int(counts.mi_alloc - counts.mi_free)


def what_grows(samples: list[Sample]) -> list[str]:
    """What has grown over the second half of a run, when caches have filled; what is lost in every solve goes on.

    Of the resident memory, some of which glibc keeps, the medians of the last two quarters are compared.
    """
    names = {"used": "memory in use", "objects": "objects", "arrays": "arrays of kernels"}
    grown = [names[what] for what, (by, most) in growth(samples).items() if by > most]
    for what in ("threads", "files", "children"):
        _, second, _, last = quarters(samples, what)
        if last > second:
            grown.append(what)
    *_, third, last = quarters(samples, "resident")
    if last - third > RESIDENT_SHARE * third:
        grown.append("resident memory")
    return grown


def growth(samples: list[Sample]) -> dict[str, tuple[float, float]]:
    """Growth per solve over the second half, without rounds in which kernels were loaded, and what counts as none."""
    half = samples[len(samples) // 2 :]
    solves = max(1, half[-1].solves - half[0].solves)
    steps = [(old, new) for old, new in itertools.pairwise(half) if old.kernels == new.kernels]
    return {
        what: (sum(getattr(new, what) - getattr(old, what) for old, new in steps) / solves, once / solves + each)
        for what, (once, each) in ALLOWED.items()
    }


def quarters(samples: list[Sample], what: str) -> list[float]:
    ends = [len(samples) * part // 4 for part in range(5)]
    return [
        statistics.median(getattr(one, what) for one in samples[begin : max(end, begin + 1)])
        for begin, end in itertools.pairwise(ends)
    ]


COLUMNS = ("minutes", "rounds", "solves", "kernels", "in use, MB", "resident, MB", *Sample._fields[6:])
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|"


def row(one: Sample) -> str:
    cells = (f"{one.seconds / 60:.1f}", *one[1:4], f"{one.used / 1e6:.1f}", f"{one.resident / 1e6:.1f}", *one[6:])
    return f"| {' | '.join(map(str, cells))} |"


def report(samples: list[Sample]) -> bool:
    """Print a table of medians and the growth that the verdict is about; whether something grows."""
    last = samples[-1]
    print(f"\n{last.seconds / 60:.0f} minutes, {last.round} rounds, {last.solves} solves\n")
    print("| median of | first quarter | second | third | last | most |\n|---|---|---|---|---|---|")
    megabytes = {"used": "memory in use, MB", "resident": "resident memory, MB"}
    for what in (*megabytes, "objects", "arrays", "kernels", "threads", "files", "children"):
        figures = [*quarters(samples, what), max(getattr(one, what) for one in samples)]
        cells = [f"{figure / 1e6:.1f}" if what in megabytes else f"{figure:.0f}" for figure in figures]
        print(f"| {megabytes.get(what, what)} | {' | '.join(cells)} |")
    (used, most_used), (objects, most_objects), _ = growth(samples).values()
    print("\nGrowth per solve in the second half, without rounds that loaded kernels:")
    print(f"{used:+.0f} bytes and {objects:+.3f} objects; a leak is what exceeds {most_used:.0f} bytes")
    print(f"or {most_objects:.2f} objects.")
    grown = what_grows(samples)
    print(f"grows: {', '.join(grown) or 'nothing'}")
    return bool(grown)


def stored(path: Path) -> list[Sample]:
    """Samples from a file; the last line of a run that was killed may not be whole."""
    with path.open(newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if None not in row.values()]
    kinds = {**dict.fromkeys(Sample._fields, int), "seconds": float}
    return [Sample(**{name: kind(row[name]) for name, kind in kinds.items()}) for row in rows]


class Soak:
    """The work; `done` counts solves and more, `failures` are errors that are not an answer to bad input."""

    def __init__(self, methods: list[str], seed: int) -> None:
        self.methods, self.random = methods, np.random.default_rng(seed)
        self.turns = itertools.cycle(methods)
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.number = 1000  # beyond the models of the warm-up

    def models(self, n: int) -> Iterator[mapmrf.FactorGraph]:
        """New models, each of another shape."""
        for shape in self.random.permutation(list(random_models.SHAPES))[:n]:
            self.number += 1
            scale = float(self.random.choice([1.0, 1.0, 3.0, 10.0]))
            yield random_models.model(str(shape), self.number, scale)

    def solve(self, method: str, graph: mapmrf.FactorGraph, **limits: object) -> None:
        options = {"max_iterations": ITERATIONS, "time_limit": SECONDS, **limits}
        try:
            mapmrf.solve(graph, method, **options)
            self.done["solves"] += 1
        except UnsupportedModel:
            self.done["declined"] += 1
        except MapMRFError as error:
            self.failures.append(f"{method}: {error}")

    def warm_up(self) -> int:
        """Load all kernels and start all pools; returns how many rounds it took after the single solves."""
        for scale, shape, method in itertools.product((1.0, 10.0), random_models.SHAPES, self.methods):
            graph = random_models.model(shape, 0, scale)
            for threads in (1, 2) if scale == 1.0 else (2,):
                self.solve(method, graph, threads=threads, time_limit=None if scale == 1.0 else SECONDS)
        known: list[int] = []
        while len(known) < MOST_WARM and (len(known) <= WARM or known[-WARM - 1] < known[-1]):
            self.round(len(known))
            known.append(take_sample(0.0, 0, 0).kernels)
        return len(known)

    def round(self, number: int) -> None:
        ends: list[dict[str, object]] = [{"callback": lambda point, labels: True}, {"time_limit": 0.005}, {}, {}]
        for _ in range(SOLVES):
            (graph,) = self.models(1)
            threads, kind = int(self.random.integers(1, 3)), int(self.random.integers(4))
            self.solve(next(self.turns), graph, threads=threads, seed=number, **ends[kind])
        self.give_up(number)
        self.batch("processes" if number % PROCESSES_EVERY == 0 else "threads")
        if number % BENCH_EVERY == 0:
            models = {f"model {n}": graph for n, graph in enumerate(self.models(2))}
            records = mapmrf.bench.run([mapmrf.ICM(), mapmrf.TRWS(max_iterations=5)], models, time_limit=1.0, jobs=2)
            self.done["benchmark runs"] += len(records)

    def give_up(self, number: int) -> None:
        """A run on a large model that ends within a call of its method; that goes on, on a thread of its own."""
        graph = mapmrf.datasets.grid(80, 80, seed=number)
        self.solve(self.methods[number % len(self.methods)], graph, threads=2, time_limit=0.02)
        self.done["calls given up"] += clock.n_abandoned()
        clock.wait_for_all()

    def batch(self, backend: str) -> None:
        """A batch of models and a file that is not there."""
        graphs, method = list(self.models(MANY)), str(self.random.choice(self.methods))
        found = mapmrf.solve_many([*graphs, "absent.uai"], method, jobs=2, backend=backend, time_limit=SECONDS)
        self.done["solves in batches"] += sum(isinstance(one, mapmrf.Result) for one in found)
        for one in found[:-1]:
            if isinstance(one, MapMRFError) and not isinstance(one, UnsupportedModel):
                self.failures.append(f"{method}, in {backend}: {one}")

    def run(self, minutes: float, path: Path | None, lines: int = 12) -> list[Sample]:
        """Rounds until the time is up; returns what was counted after each, and prints about so many lines of it."""
        samples: list[Sample] = []
        began, seconds, shown = time.monotonic(), 60 * minutes, 0
        print(HEAD, flush=True)
        with path.open("w", newline="", buffering=1) if path else open(os.devnull, "w") as file:
            out = csv.writer(file)
            out.writerow(Sample._fields)
            while not samples or samples[-1].seconds < seconds:
                number = len(samples) + 1
                self.round(number)
                solves = sum(self.done[kind] for kind in ("solves", "solves in batches", "benchmark runs"))
                samples.append(take_sample(time.monotonic() - began, number, solves))
                out.writerow(samples[-1])
                if samples[-1].seconds >= shown * seconds / lines:
                    shown = int(samples[-1].seconds * lines / seconds) + 1
                    print(row(samples[-1]), flush=True)
        return samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="minutes after the warm-up")
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write every sample")
    parser.add_argument("--read", type=Path, help="do not run; judge samples written by --csv")
    given = parser.parse_args()
    if given.read:
        return int(report(stored(given.read)))
    wanted = {**ONE_ARENA, **os.environ, **SETTINGS}
    if wanted != dict(os.environ):  # begin again where everything is counted
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)
    warnings.simplefilter("ignore")
    soak = Soak(given.methods, given.seed)
    print(f"warm after {soak.warm_up()} rounds: {dict(soak.done)}\n", flush=True)
    soak.done.clear()
    samples = soak.run(given.minutes, given.csv)
    print(f"\n{dict(soak.done)}")
    for failure in sorted(set(soak.failures)):
        print(f"failed: {failure}")
    return int(report(samples) or bool(soak.failures))


if __name__ == "__main__":
    sys.exit(main())
