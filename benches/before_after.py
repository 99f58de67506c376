"""Compare two source trees of mapmrf in one run: same answers, same speed, same time to compile.

    python benches/before_after.py BEFORE_SRC AFTER_SRC [--methods lslp trws] [--models grid80] [--answers-only]

Each tree runs in its own worker process; the workers take turns, so that other work on the machine hits both. A case is
a method on a model with a fixed number of iterations and no time limit. An answer is the digest of the labels, value,
bound, relaxed value, iterations and status. A field that already varies from run to run in the tree before (HiGHS and
SCIP use their own threads, and steps of `auto` wait for them) is not compared. The exit status is 1 if one differs.

Times are processor times, the smallest of several repeats. Where a method iterates, a short run is subtracted from a
long one, so that reading and starting do not count. Kernels are timed as a user has them, loaded and not compiled in
the same process. With `--compile` the time to compile them from an empty cache is compared instead.
"""

from __future__ import annotations

import argparse
import functools
import gc
import hashlib
import json
import math
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FIELDS = ("model", "error", "labels", "value", "bound", "relaxed", "iterations", "status")
LEAST_SECONDS = 0.1
"""Processor time that a measurement should take at least: short solves are repeated within it."""
LOADING = 0.05
"""Seconds for kernels above which some were compiled, and not only loaded."""
CLOSE, MOST_ROUNDS = 0.03, 3
"""A case whose times differ by more than this share is repeated so many times as often as asked for."""
TIMED = ("loops", "whole", "real")
"""Kinds of cases of `before_after.toml` whose times are compared."""
RETRIES = 3
"""Further runs of a case whose answers differ, to see whether they vary within the tree before."""


@dataclass(frozen=True)
class Case:
    """A method on a model: iterations of the long run, and of the short one that is taken off it (0: none)."""

    method: str
    model: str
    iterations: int
    short: int = 0
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """The method with its options, unless they only keep it from ending early."""
        options = {} if self.options == CASES["open"].get(self.method) else self.options
        return " ".join([self.method, *(f"{key}={value}" for key, value in options.items())])


with Path(__file__).with_suffix(".toml").open("rb") as file:
    CASES = tomllib.load(file)


def chosen(args: argparse.Namespace, kinds: Sequence[str]) -> list[Case]:
    loops = [
        (method, model, *lengths, CASES["open"][method])
        for method, budgets in CASES["loops"].items()
        for model, lengths in budgets.items()
    ]
    rows = {**CASES, "loops": loops, "real": CASES["real"] if args.data else []}
    cases = [Case(*row) for kind in kinds for row in rows[kind]]
    asked = [case for case in cases if not args.methods or case.method in args.methods]
    return [case for case in asked if not args.models or case.model in args.models]


def prepare(source: str, cache: str) -> None:
    """Let this process use a tree; what solvers print goes elsewhere."""
    sys.path.insert(0, source)
    os.environ |= {"PYTHONPATH": source, "NUMBA_CACHE_DIR": cache, "MAPMRF_KERNELS": "compile"}
    for stream in (1, 2):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


@functools.cache
def build(name: str, data: str) -> tuple[Any, str]:
    """A model, and its digest: the trees must generate, or read, the same one."""
    import mapmrf
    import models

    files = CASES["files"]
    graph = mapmrf.read(min(Path(data).glob(files[name]))) if name in files else models.GENERATED[name](0, 1.0)
    weight = np.ones(0) if graph.weight is None else graph.weight
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.theta_t, weight)
    return graph, digest(b"".join(np.asarray(x, dtype=np.float64).tobytes() for x in arrays))


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def work(case: Case, data: str, iterations: int, runs: int) -> tuple[dict[str, Any], float, float]:
    """The answer, or why there is none, the processor time of a run, and the seconds for loading kernels."""
    import mapmrf

    graph, model = build(case.model, data)
    gc.collect()
    loading, began = 0.0, time.process_time()
    try:
        for _ in range(runs):
            result = mapmrf.solve(graph, case.method, max_iterations=iterations, seed=1, **case.options)
            loading += result.compile_time
    except Exception as error:  # the two trees may well fail alike
        return {"model": model, "error": f"{type(error).__name__}: {error}".splitlines()[0]}, 0.0, 0.0
    seconds, labels = (time.process_time() - began) / runs, digest(result.labels.astype(np.int64).tobytes())
    found = (labels, result.value, result.bound, result.relaxed_value, result.iterations, result.status.value)
    return {"model": model, **dict(zip(FIELDS[2:], found, strict=True))}, seconds, loading


class Worker:
    """A process that solves with the package of one tree; kernels are cached by the contents of the tree."""

    def __init__(self, source: Path, data: str, cache: str | None = None) -> None:
        files = sorted((source / "mapmrf").rglob("*.py"))
        content = (str(path.relative_to(source)).encode() + path.read_bytes() for path in files)
        tree = digest(b"".join([str(source).encode(), *content]))
        kept = Path(tempfile.gettempdir(), f"mapmrf-kernels-{os.getuid()}", tree)
        self.data, self.settings = data, (str(source), cache or str(kept))
        self.start()

    def start(self) -> None:
        self.compiled = 0.0
        self.process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), prepare, self.settings)

    def close(self) -> None:
        self.process.shutdown()

    def renew(self) -> None:
        """Go on in another process, which loads what this one has compiled."""
        if self.compiled > LOADING:
            self.close()
            self.start()

    def run(self, case: Case, iterations: int, runs: int = 1) -> tuple[dict[str, Any], float]:
        """Solve, `runs` times: the answer and the processor time of one."""
        try:
            found, seconds, compiled = self.process.submit(work, case, self.data, iterations, runs).result()
        except BrokenProcessPool as error:
            raise SystemExit(f"the worker died in {case.title} on {case.model}") from error
        self.compiled += compiled
        return found, seconds


@dataclass
class Comparison:
    """The answers of both trees to a case, and its processor times per run."""

    case: Case
    before: list[dict[str, Any]] = field(default_factory=list)
    after: list[dict[str, Any]] = field(default_factory=list)
    times: tuple[float, float] | None = None

    def differences(self) -> list[str]:
        """Fields in which the trees differ, with the relative difference of numbers."""
        found = []
        for name in FIELDS:
            old, new = ({json.dumps(run.get(name)) for run in runs} for runs in (self.before, self.after))
            if len(old) == 1 and new != old:
                a, b = json.loads(min(old)), json.loads(min(new - old))
                if all(isinstance(x, int | float) and math.isfinite(x) for x in (a, b)):
                    found.append(f"{name} {abs(b - a) / max(abs(a), abs(b)):.1e}")
                else:
                    found.append(f"{name} {a} -> {b}")
        return found

    @property
    def ratio(self) -> float | None:
        return None if self.times is None or min(self.times) <= 0 else self.times[1] / self.times[0]

    def row(self) -> str:
        differences, error = self.differences(), self.before[0].get("error")
        varying = [name for name in FIELDS if len({json.dumps(run.get(name)) for run in self.before}) > 1]
        verdict = "**differs**: " + ", ".join(differences) if differences else "same"
        if varying:
            verdict += f" (varies before: {', '.join(varying)})"
        if error and not differences:
            verdict += f" ({error.split(':')[0]})"
        cells = [self.case.title, self.case.model, verdict]
        if self.times is not None:
            cells += [*(f"{1e3 * t:.1f}" for t in self.times), "" if self.ratio is None else f"{self.ratio:.3f}"]
        return "| " + " | ".join(cells) + " |"


def compare_answers(case: Case, workers: tuple[Worker, Worker]) -> Comparison:
    """Run a case once in each tree, and again where the answers differ."""
    found = Comparison(case)
    for _ in range(1 + RETRIES):
        for runs, worker in zip((found.before, found.after), workers, strict=True):
            runs.append(worker.run(case, case.iterations)[0])
        if found.before[-1] == found.after[-1] and len(found.before) == 1:
            break
    return found


def measure(found: Comparison, workers: tuple[Worker, Worker], repeats: int) -> None:
    """Time a case: the smallest time of the long run less that of the short one, in each tree."""
    case = found.case
    lengths = [n for n in (case.short, case.iterations) if n]
    for worker in workers:
        for n in lengths:
            worker.run(case, n)  # compiles what is still to be compiled
        worker.renew()
    runs = []
    for n in lengths:
        once = max(min(worker.run(case, n)[1] for _ in range(2)) for worker in workers)
        runs.append(min(200, max(1, math.ceil(LEAST_SECONDS / len(lengths) / max(once, 1e-4)))))
    least = np.full((2, len(lengths)), np.inf)
    for repeat in range(MOST_ROUNDS * repeats):
        for k, n in enumerate(lengths):
            for w in (0, 1) if (repeat + k) % 2 else (1, 0):
                least[w, k] = min(least[w, k], workers[w].run(case, n, runs[k])[1])
        times = least[:, -1] - (least[:, 0] if len(lengths) > 1 else 0.0)
        found.times = (float(times[0]), float(times[1]))
        if repeat + 1 == repeats and found.ratio is not None and abs(found.ratio - 1) <= CLOSE:
            break  # else all further rounds are made: stopping at the first ratio that pleases would bias it


def compare(args: argparse.Namespace) -> int:
    timed = chosen(args, TIMED)
    head = ["method", "model", "answer"] + ([] if args.answers_only else ["before, ms", "after, ms", "ratio"])
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    rows = []
    with closing(Worker(args.before, args.data)) as old, closing(Worker(args.after, args.data)) as new:
        for case in (*timed, *chosen(args, ["variants"])):
            rows.append(compare_answers(case, (old, new)))
            if not args.answers_only and case in timed and case.method != "toulbar2":
                measure(rows[-1], (old, new), args.repeats)
            print(rows[-1].row(), flush=True)
    differ = sum(bool(row.differences()) for row in rows)
    print(f"\n{len(rows)} cases, {differ} differ.")
    ratios = sorted((row.ratio, f"{row.case.title} on {row.case.model}") for row in rows if row.ratio is not None)
    if ratios:
        mean, (worst, case) = statistics.geometric_mean(ratio for ratio, _ in ratios), ratios[-1]
        print(f"Time after / before: geometric mean {mean:.3f}, largest {worst:.3f} ({case}),")
        print(f"{sum(ratio > 1.03 for ratio, _ in ratios)} of {len(ratios)} above 1.03.")
    return int(differ > 0)


def compare_compiling(args: argparse.Namespace) -> int:
    """Print what the first runs of all cases of a method take longer than the second ones, from an empty cache."""
    print("| method | kernels before | after | compiling before, s | after, s | ratio |\n|---|---|---|---|---|---|")
    cases, figures = chosen(args, [*TIMED, "variants"]), {}
    for method in dict.fromkeys(case.method for case in cases):
        figures[method] = np.zeros((2, 2))
        for w, source in enumerate((args.before, args.after)):
            with tempfile.TemporaryDirectory() as cache, closing(Worker(source, args.data, cache)) as worker:
                for case in (case for case in cases if case.method == method):
                    first, second = (worker.run(case, case.short or case.iterations)[1] for _ in range(2))
                    figures[method][1, w] += first - second
                worker.close()  # which stores all kernels
                figures[method][0, w] = sum(path.is_file() for path in Path(cache).rglob("*"))
    figures["all"] = sum(figures.values())
    for title, ((n_old, n_new), (old, new)) in figures.items():
        print(f"| {title} | {n_old:.0f} | {n_new:.0f} | {old:.1f} | {new:.1f} | {new / old if old else 1:.3f} |")
    return 0


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=lambda text: Path(text).resolve(), help="folder with the old package")
    options.add_argument("after", type=lambda text: Path(text).resolve(), help="folder with the new package")
    options.add_argument("--methods", nargs="+", help="only these methods")
    options.add_argument("--models", nargs="+", help="only these models of before_after.toml")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--answers-only", action="store_true", help="do not measure times")
    options.add_argument("--compile", action="store_true", help="measure compiling from an empty cache instead")
    options.add_argument("--data", default="", help="folder of the benchmark models, to use some of them as well")
    args = options.parse_args()
    for source in (args.before, args.after):
        if not (source / "mapmrf").is_dir():
            options.error(f"{source} has no folder mapmrf")
    return compare_compiling(args) if args.compile else compare(args)


if __name__ == "__main__":
    sys.exit(main())
