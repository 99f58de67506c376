"""Compare two source trees of mapmrf in one run: same answers, same speed, same time to compile.

    python benches/before_after.py BEFORE_SRC AFTER_SRC [--methods lslp trws] [--models grid80] [--answers-only]

Each tree runs in its own worker process, with the same interpreter; the workers take turns, so that other work on
the machine hits both. Every case is a method on a model with a fixed number of iterations and no time limit. An answer
is the digest of the labels, value, bound, relaxed value, iterations and status. A field that already varies from run to
run in the tree before (HiGHS and SCIP use their own threads, and steps of `auto` wait for them) is not compared.

Times are processor times, the smallest of several repeats. Where a method iterates, a short run is subtracted from a
long one, so that reading and starting do not count. With `--kernels` only the time within compiled kernels counts, as
their Python callers see it. Kernels are timed as a user has them, loaded and not compiled in the same process, where
calls between kernels may go to other copies of the code. The exit status is 1 if an answer differs.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

FIELDS = ("model", "error", "labels", "value", "bound", "relaxed", "iterations", "status")
LEAST_SECONDS = 0.1
"""Processor time that a measurement should take at least: short solves are repeated within it."""
CLOSE, MOST_ROUNDS = 0.03, 3
"""A case whose times differ by more than this share is repeated so many times as often as asked for."""
RETRIES = 3
"""Further runs of a case whose answers differ, to see whether they vary within the tree before."""

# -- cases ----------------------------------------------------------------------------------------------------------


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
        """The method with its options."""
        return " ".join([self.method, *(f"{key}={value}" for key, value in self.options.items())])


def table() -> dict[str, Any]:
    """All cases, as `before_after.toml` has them."""
    with Path(__file__).with_suffix(".toml").open("rb") as file:
        return tomllib.load(file)


CASES = table()
OPEN: dict[str, dict[str, Any]] = CASES["open"]
VARIANTS = [Case(*row) for row in CASES["variants"]]


def build(name: str, data: str) -> Any:
    """A generated model, or the one in a file below the folder `data`."""
    if name in CASES["files"]:
        import mapmrf

        return mapmrf.read(min(Path(data).glob(CASES["files"][name])))
    import models

    return models.GENERATED[name](0, 1.0)


def timed_cases(data: str) -> list[Case]:
    """All cases whose time is compared."""
    loops = [
        Case(method, model, high, low, OPEN[method])
        for method, budgets in CASES["loops"].items()
        for model, (high, low) in budgets.items()
    ]
    return [*loops, *(Case(*row) for row in [*CASES["whole"], *(CASES["real"] if data else ())])]


def chosen(cases: Iterable[Case], args: argparse.Namespace) -> list[Case]:
    """The cases of the methods and models that were asked for."""
    return [
        case
        for case in cases
        if (not args.methods or case.method in args.methods) and (not args.models or case.model in args.models)
    ]


# -- the worker -----------------------------------------------------------------------------------------------------


def answer(graph: Any, case: Case, iterations: int) -> dict[str, Any]:
    """What a run found, or why it failed."""
    import mapmrf

    try:
        result = mapmrf.solve(graph, case.method, max_iterations=iterations, seed=1, **case.options)
    except Exception as error:  # the two trees may well fail alike
        return {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    return {
        "labels": hashlib.sha256(np.ascontiguousarray(result.labels, dtype=np.int64).tobytes()).hexdigest()[:16],
        "value": result.value,
        "bound": result.bound,
        "relaxed": result.relaxed_value,
        "iterations": result.iterations,
        "status": result.status.value,
    }


def digest(graph: Any) -> str:
    """Digest of the model itself: the trees must generate, or read, the same one."""
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, potentials(graph))
    return hashlib.sha256(b"".join(np.asarray(x, dtype=np.float64).tobytes() for x in arrays)).hexdigest()[:16]


def potentials(graph: Any) -> np.ndarray:
    """All entries of all factors: one tree may store a table and weights where the other stores tables."""
    sizes = np.diff(graph.table_ptr)[graph.table_of].astype(np.int64)
    shift = np.repeat(graph.table_ptr[graph.table_of] - np.append(0, np.cumsum(sizes))[:-1], sizes)
    entries = graph.theta_t[np.arange(sizes.sum()) + shift]
    weight = getattr(graph, "weight", None)
    return (entries if weight is None else entries * np.repeat(weight, sizes)) + 0.0


class Compilations:
    """Counts numba's compilations of our kernels, and the processor time of all compilations that are not nested."""

    def __init__(self) -> None:
        from numba.core import event

        self.count, self.seconds, self.depth, self.began = 0, 0.0, 0, 0.0
        outer = self

        class Listener(event.Listener):
            def on_start(self, event: Any) -> None:
                outer.begin(event.data["dispatcher"].py_func.__module__)

            def on_end(self, event: Any) -> None:
                outer.end()

        event.register("numba:compile", Listener())

    def begin(self, module: str) -> None:
        """Count a compilation of a kernel in `module`."""
        self.count += module.startswith("mapmrf")
        if self.depth == 0:
            self.began = time.process_time()
        self.depth += 1

    def end(self) -> None:
        """Add the time of an outermost compilation."""
        self.depth -= 1
        if self.depth == 0:
            self.seconds += time.process_time() - self.began


class KernelClock:
    """Processor time in the kernels that Python calls while the clock is entered; all must have been compiled before.

    Compiled code has its callees inside, so the names of kernels in our modules can stand for something else meanwhile.
    Kernels that evaluate labellings are left out: older trees do that in numpy, which does not count either.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.places: list[tuple[dict[Any, Any], Any, Any]] = []

    def __enter__(self) -> KernelClock:
        from numba.core.dispatcher import Dispatcher

        spaces = [vars(module) for name, module in sys.modules.items() if name.startswith("mapmrf.")]
        spaces += [table for space in spaces for table in space.values() if isinstance(table, dict)]
        for space in spaces:
            for name, kernel in list(space.items()):
                if isinstance(kernel, Dispatcher) and kernel.py_func.__module__ != "mapmrf.kernels.evaluation":
                    self.places.append((space, name, kernel))
                    space[name] = self.timed(kernel)
        return self

    def __exit__(self, *_: object) -> None:
        for space, name, kernel in self.places:
            space[name] = kernel

    def timed(self, kernel: Any) -> Any:
        """The kernel, its calls timed, also those without a look at the types."""

        def call(*args: Any) -> Any:
            began = time.thread_time()
            found = kernel(*args)
            self.seconds += time.thread_time() - began
            return found

        if hasattr(kernel, "entry"):
            call.entry = lambda args: self.timed(kernel.entry(args))  # type: ignore[attr-defined]
        return call


def work(data: str) -> None:
    """Serve requests, one JSON object per line, until standard input ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what solvers print goes elsewhere
    compilations = Compilations()
    graphs: dict[str, Any] = {}
    digests: dict[str, str] = {}
    for line in sys.stdin:
        request = json.loads(line)
        case = Case(**request["case"])
        if case.model not in graphs:
            graphs[case.model] = build(case.model, data)
            digests[case.model] = digest(graphs[case.model])
        gc.collect()
        clock = KernelClock()
        with clock if request["kernels"] else nullcontext():
            began = time.process_time()
            for _ in range(request["runs"]):
                found = answer(graphs[case.model], case, request["iterations"])
            seconds = (clock.seconds if request["kernels"] else time.process_time() - began) / request["runs"]
        reply = {"answer": {"model": digests[case.model], **found}, "seconds": seconds}
        reply |= {"compiled": compilations.count, "compile_seconds": compilations.seconds}
        print(json.dumps(reply), file=channel, flush=True)


class Worker:
    """A process that solves with the package of one tree.

    Kernels are cached by the tree's contents: numba itself does not notice when a kernel in another file has changed.
    """

    def __init__(self, source: Path, data: str, cache: str | None = None) -> None:
        cache = cache or str(Path(tempfile.gettempdir()) / f"mapmrf-kernels-{os.getuid()}" / tree_digest(source))
        environment = {**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": cache, "MAPMRF_KERNELS": "compile"}
        command = [sys.executable, __file__, "--worker", str(source), str(source), "--data", data]
        pipe, void = subprocess.PIPE, subprocess.DEVNULL
        self.start = lambda: subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=void, text=True, env=environment)
        self.process, self.compiled = self.start(), 0

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let the process end."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()

    def renew(self) -> None:
        """Go on in another process, which loads what this one has compiled."""
        if self.compiled:
            self.end()
            self.process, self.compiled = self.start(), 0

    def run(self, case: Case, iterations: int, runs: int = 1, kernels: bool = False) -> dict[str, Any]:
        """Solve, `runs` times: the answer and the processor time of one, or the time of its kernels."""
        assert self.process.stdin and self.process.stdout
        request = {"case": asdict(case), "iterations": iterations, "runs": runs, "kernels": kernels}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the worker died in {case.title} on {case.model}")
        reply: dict[str, Any] = json.loads(line)
        self.compiled = reply["compiled"]
        return reply


def tree_digest(source: Path) -> str:
    """Digest of all Python files of a tree."""
    files = sorted((source / "mapmrf").rglob("*.py"))
    total = hashlib.sha256(str(source).encode())
    for path in files:
        total.update(str(path.relative_to(source)).encode() + path.read_bytes())
    return total.hexdigest()[:16]


# -- comparing ------------------------------------------------------------------------------------------------------


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
                found.append(name + apart(json.loads(min(old)), json.loads(min(new - old))))
        return found

    def varying(self) -> list[str]:
        """Fields that vary within the tree before."""
        return [name for name in FIELDS if len({json.dumps(run.get(name)) for run in self.before}) > 1]

    @property
    def ratio(self) -> float | None:
        """Time after over time before."""
        return None if self.times is None or min(self.times) <= 0 else self.times[1] / self.times[0]


def apart(old: Any, new: Any) -> str:
    """What to say of two values that are not the same."""
    numbers = all(isinstance(x, int | float) and math.isfinite(x) for x in (old, new))
    if numbers:
        return f" {abs(new - old) / max(abs(old), abs(new)):.1e}"
    return f" {old} -> {new}" if len(f"{old}{new}") < 60 else f" -> {new}" if isinstance(new, str) else ""


def compare_answers(case: Case, workers: tuple[Worker, Worker]) -> Comparison:
    """Run a case once in each tree, and again where the answers differ."""
    found = Comparison(case)
    for _ in range(1 + RETRIES):
        for runs, worker in zip((found.before, found.after), workers, strict=True):
            runs.append(worker.run(case, case.iterations)["answer"])
        if found.before[-1] == found.after[-1] and len(found.before) == 1:
            break
    return found


def measure(found: Comparison, workers: tuple[Worker, Worker], repeats: int, kernels: bool) -> None:
    """Time a case: the smallest time of the long run less that of the short one, in each tree."""
    case = found.case
    lengths = [n for n in (case.short, case.iterations) if n]
    for worker in workers:
        for n in lengths:
            worker.run(case, n)  # compiles what is still to be compiled
        worker.renew()
    runs = []
    for n in lengths:
        once = max(min(worker.run(case, n)["seconds"] for _ in range(2)) for worker in workers)
        runs.append(min(200, max(1, math.ceil(LEAST_SECONDS / len(lengths) / max(once, 1e-4)))))
    least = np.full((2, len(lengths)), np.inf)
    for repeat in range(MOST_ROUNDS * repeats):
        for k, n in enumerate(lengths):
            for w in (0, 1) if (repeat + k) % 2 else (1, 0):
                reply = workers[w].run(case, n, runs[k], kernels)
                least[w, k] = min(least[w, k], reply["seconds"])
        times = least[:, -1] - (least[:, 0] if len(lengths) > 1 else 0.0)
        found.times = (float(times[0]), float(times[1]))
        if repeat + 1 == repeats and found.ratio is not None and abs(found.ratio - 1) <= CLOSE:
            break  # else all further rounds are made: stopping at the first ratio that pleases would bias it


def table_row(found: Comparison) -> str:
    """One case as a line of the table."""
    differences, varying = found.differences(), found.varying()
    verdict = "**differs**: " + ", ".join(differences) if differences else "same"
    if varying:
        verdict += f" (varies before: {', '.join(varying)})"
    error = found.before[0].get("error")
    if error and not differences:
        verdict += f" ({error.split(':')[0]})"
    cells = [found.case.method if found.case.options == OPEN.get(found.case.method) else found.case.title]
    cells += [found.case.model, verdict]
    if found.times is not None:
        ratio = found.ratio
        cells += [*(f"{1e3 * t:.1f}" for t in found.times), "" if ratio is None else f"{ratio:.3f}"]
    return "| " + " | ".join(cells) + " |"


def summary(rows: list[Comparison]) -> Iterator[str]:
    """How many answers differ, and the spread of the ratios."""
    yield f"{len(rows)} cases, {sum(bool(row.differences()) for row in rows)} differ."
    ratios = sorted((row.ratio, row.case.title, row.case.model) for row in rows if row.ratio is not None)
    if ratios:
        mean = math.exp(sum(math.log(ratio) for ratio, *_ in ratios) / len(ratios))
        worst = ratios[-1]
        yield f"Time after / before: geometric mean {mean:.3f}, largest {worst[0]:.3f} ({worst[1]} on {worst[2]}),"
        yield f"{sum(ratio > 1.03 for ratio, *_ in ratios)} of {len(ratios)} above 1.03."


def compare(args: argparse.Namespace) -> int:
    """Print the table; the exit status."""
    timed = chosen(timed_cases(args.data), args)
    untimed = chosen(VARIANTS, args)
    head = ["method", "model", "answer"] + ([] if args.answers_only else ["before, ms", "after, ms", "ratio"])
    print("| " + " | ".join(head) + " |\n" + "|---" * len(head) + "|")
    rows = []
    with Worker(args.before, args.data) as old, Worker(args.after, args.data) as new:
        for case in (*timed, *untimed):
            row = compare_answers(case, (old, new))
            if not args.answers_only and case not in untimed and case.method != "toulbar2":
                measure(row, (old, new), args.repeats, args.kernels)
            rows.append(row)
            print(table_row(row), flush=True)
    print("\n" + "\n".join(summary(rows)))
    return int(any(row.differences() for row in rows))


def compare_compiling(args: argparse.Namespace) -> int:
    """Print the time to compile all kernels that the cases of a method use, from an empty cache."""
    print("| method | kernels before | after | compiling before, s | after, s | ratio |\n|---|---|---|---|---|---|")
    totals = np.zeros((2, 2))
    cases = chosen((*timed_cases(args.data), *VARIANTS), args)
    for method in dict.fromkeys(case.method for case in cases):
        with ExitStack() as stack:
            figures = np.zeros((2, 2))
            for w, source in enumerate((args.before, args.after)):
                cache = stack.enter_context(tempfile.TemporaryDirectory())
                worker = stack.enter_context(Worker(source, args.data, cache))
                for case in cases:
                    if case.method == method:
                        reply = worker.run(case, case.short or case.iterations)
                        figures[w] = reply["compiled"], reply["compile_seconds"]
        totals += figures
        print(compile_row(f"`{method}`", figures), flush=True)
    print(compile_row("all", totals))
    return 0


def compile_row(title: str, figures: np.ndarray) -> str:
    (n_old, old), (n_new, new) = figures
    return f"| {title} | {n_old:.0f} | {n_new:.0f} | {old:.1f} | {new:.1f} | {new / old if old else 1:.3f} |"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("before", type=lambda text: Path(text).resolve(), help="folder with the old package")
    options.add_argument("after", type=lambda text: Path(text).resolve(), help="folder with the new package")
    options.add_argument("--methods", nargs="+", help="only these methods")
    options.add_argument("--models", nargs="+", help="only these models of before_after.toml")
    options.add_argument("--repeats", type=int, default=5)
    options.add_argument("--answers-only", action="store_true", help="do not measure times")
    options.add_argument("--kernels", action="store_true", help="count only the time within kernels")
    options.add_argument("--compile", action="store_true", help="measure compiling from an empty cache instead")
    options.add_argument("--data", default="", help="folder of the benchmark models, to use some of them as well")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = options.parse_args()
    if args.worker:
        work(args.data)
        return 0
    for source in (args.before, args.after):
        if not (source / "mapmrf").is_dir():
            options.error(f"{source} has no folder mapmrf")
    return compare_compiling(args) if args.compile else compare(args)


if __name__ == "__main__":
    sys.exit(main())
