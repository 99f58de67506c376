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
then a benchmark in worker processes. After every round `soak_samples.py` counts what the process holds. What has grown
over the second half of the time is a leak: a cache that fills has filled by then. One arena serves all threads, unless
the environment says otherwise, or what glibc keeps of freed memory would hide what is lost. Needs Linux with glibc.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import mapmrf
import random_models
import soak_samples
from mapmrf.errors import MapMRFError, UnsupportedModel
from mapmrf.run import calls as supervision

ITERATIONS, SECONDS = 10, 0.3
"""Limits of a single solve."""

SOLVES, MANY = 25, 6
"""Single solves in a round, and models of a batch."""

PROCESSES_EVERY, BENCH_EVERY = 10, 20
"""Rounds after which a batch runs in processes, and a benchmark."""

WARM, MOST_WARM = 10, 100
"""The warm-up ends after so many rounds without a new kernel, and at the latest after so many."""


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

    @property
    def solves(self) -> int:
        """Solves so far, all in all."""
        return sum(self.done[kind] for kind in ("solves", "solves in batches", "benchmark runs"))

    def warm_up(self) -> int:
        """Load all kernels and start all pools; returns how many rounds it took after the single solves."""
        for scale, shape, method in itertools.product((1.0, 10.0), random_models.SHAPES, self.methods):
            graph = random_models.model(shape, 0, scale)
            for threads in (1, 2) if scale == 1.0 else (2,):
                self.solve(method, graph, threads=threads, time_limit=None if scale == 1.0 else SECONDS)
        soak_samples.fill_caches()
        quiet = known = 0
        for number in range(MOST_WARM):
            self.round(number)
            before, known = known, soak_samples.take_sample(0.0, number, 0).kernels
            quiet = quiet + 1 if known == before else 0
            if quiet == WARM:
                break
        return number + 1

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
        self.give_up(number)
        self.batch("processes" if number % PROCESSES_EVERY == 0 else "threads")
        if number % BENCH_EVERY == 0:
            models = {f"{shape} {n}": graph for n, (shape, graph) in enumerate(self.models(2))}
            records = mapmrf.bench.run([mapmrf.ICM(), mapmrf.TRWS(max_iterations=5)], models, time_limit=1.0, jobs=2)
            self.done["benchmark runs"] += len(records)

    def give_up(self, number: int) -> None:
        """A run on a large model that ends within a call of its method; that goes on, on a thread of its own."""
        graph = mapmrf.datasets.grid(80, 80, seed=number)
        self.solve(self.methods[number % len(self.methods)], graph, threads=2, time_limit=0.02)
        self.done["calls given up"] += supervision.n_abandoned()
        supervision.wait_for_all()

    def batch(self, backend: str) -> None:
        """A batch of models and a file that is not there."""
        graphs, method = [graph for _, graph in self.models(MANY)], str(self.random.choice(self.methods))
        found = mapmrf.solve_many([*graphs, "absent.uai"], method, jobs=2, backend=backend, time_limit=SECONDS)
        self.done["solves in batches"] += sum(isinstance(one, mapmrf.Result) for one in found)
        for one in found[:-1]:
            if isinstance(one, MapMRFError) and not isinstance(one, UnsupportedModel):
                self.failures.append(f"{method}, in {backend}: {one}")


def soak_for(soak: Soak, minutes: float, path: Path | None) -> list[soak_samples.Sample]:
    """Rounds until the time is up; returns what was counted after each."""
    reading = soak_samples.Reading(60 * minutes)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(path.open("w", newline="", buffering=1)) if path else None
        out = csv.writer(lines) if lines else None
        if out is not None:
            out.writerow(soak_samples.Sample._fields)
        while not reading.samples or reading.samples[-1].seconds < 60 * minutes:
            soak.round(len(reading.samples) + 1)
            sample = reading.take(soak.solves)
            if out is not None:
                out.writerow(sample)
    return reading.samples


def count_everything() -> None:
    """Begin again in the environment in which everything is counted, if this is another one."""
    wanted = {**soak_samples.ONE_ARENA, **os.environ, **soak_samples.SETTINGS}
    if wanted != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.argv], wanted)


def report(samples: list[soak_samples.Sample]) -> bool:
    """Print the figures of a run; whether something grows."""
    last = samples[-1]
    print(f"\n{last.seconds / 60:.0f} minutes, {last.round} rounds, {last.solves} solves\n")
    print(soak_samples.by_quarters(samples))
    grown = soak_samples.what_grows(samples)
    print(f"grows: {', '.join(grown) or 'nothing'}")
    return bool(grown)


def run(soak: Soak, minutes: float, path: Path | None) -> bool:
    """Warm up, soak and report; whether something grows or failed."""
    warnings.simplefilter("ignore")
    rounds = soak.warm_up()
    print(f"warm after {rounds} rounds: {dict(soak.done)}\n", flush=True)
    soak.done.clear()
    samples = soak_for(soak, minutes, path)
    print(f"\n{dict(soak.done)}")
    for failure in sorted(set(soak.failures)):
        print(f"failed: {failure}")
    return report(samples) or bool(soak.failures)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120.0, help="minutes after the warm-up")
    parser.add_argument("--methods", nargs="+", default=sorted(mapmrf.methods()))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="write every sample")
    parser.add_argument("--read", type=Path, help="do not run; judge samples written by --csv")
    given = parser.parse_args()
    if given.read:
        samples = soak_samples.stored(given.read)
        print("\n".join([soak_samples.HEAD, *map(soak_samples.row, soak_samples.spread(samples))]))
        return int(report(samples))
    count_everything()
    return int(run(Soak(given.methods, given.seed), given.minutes, given.csv))


if __name__ == "__main__":
    sys.exit(main())
