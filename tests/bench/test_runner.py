"""The runner: isolation, limits, resuming after kills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numba
import numpy as np
import pytest

import mapmrf
from clocks import LIMIT, PATIENCE, wait_until
from mapmrf.bench.records import read_records, unpack_labels
from mapmrf.bench.run_list import BenchTask, MethodConfig, ModelRef, RunList, from_files
from mapmrf.bench.runner import RunLimits, run_all
from mapmrf.bench.worker import ATTEMPTS, Callback, Compilations, Runner, time_run
from mapmrf.datasets import grid
from mapmrf.errors import MapMRFError
from mapmrf.run.result import Result, Status, TracePoint
from refusals import refuses


@pytest.fixture
def models(tmp_path: Path) -> list[ModelRef]:
    found = []
    for number in range(3):
        path = tmp_path / f"small{number}.uai"
        mapmrf.write(grid(3, 3, seed=number), path)
        found += from_files([path])
    return found


def tasks(models: list[ModelRef], *runs: MethodConfig, limit: float = 5.0) -> list[BenchTask]:
    return RunList(runs, models, (0,), limit).tasks()


def test_every_run_is_recorded_and_a_second_call_has_nothing_to_do(tmp_path: Path, models: list[ModelRef]) -> None:
    path = tmp_path / "records.jsonl"
    todo = tasks(models, MethodConfig("exhaustive"), MethodConfig("icm"))
    summary = run_all(todo, path, jobs=2)
    assert (summary.planned, summary.before, summary.done, summary.interrupted) == (6, 0, 6, False)
    records = read_records(path)
    assert sorted(record["key"] for record in records) == sorted(task.key for task in todo)
    for record in records:
        graph = mapmrf.read(next(model.path for model in models if model.name == record["model"]))
        assert record["outcome"] == "done"
        assert record["value"] == graph.value(unpack_labels(record["labels"]))
        assert record["shape"] == [3, 3]
        assert [record[name] for name in ("n_vars", "n_factors", "n_edges", "factor_size")] == [9, 12, 24, 2.0]
        assert (record["variable_states"], record["factor_states"], record["checksum"]) == (2.0, 4.0, "")
        assert record["setup_time"] > 0.0
        assert record["trace"][-1][2] <= record["value"]
        assert record["version"] == mapmrf.__version__ and record["cpu"]
        if Path("/proc/self/status").exists():
            assert 2**24 < record["peak_memory"] < 2**32  # an interpreter with numpy and numba, and a tiny model
    best = {r["model"]: r for r in records if r["run"] == "exhaustive"}
    assert all(r["status"] == "optimal" for r in best.values())
    before = path.read_bytes()
    assert run_all(todo, path).done == 0
    assert path.read_bytes() == before
    more = run_all([*todo, *tasks(models, MethodConfig("icm", {"starts": 2}))], path)
    assert (more.before, more.done) == (6, 3)


def test_methods_and_peers_do_not_share_a_process(tmp_path: Path, models: list[ModelRef]) -> None:
    pytest.importorskip("ortools")  # its library of HiGHS and that of highspy cannot be loaded side by side
    todo = tasks(models[:2], MethodConfig("lp"), MethodConfig("peer:cpsat"))
    run_all(todo, tmp_path / "r.jsonl")
    records = read_records(tmp_path / "r.jsonl")
    assert [(r["run"], r["outcome"], r["message"]) for r in records] == [(t.run.name, "done", "") for t in todo]


def test_what_goes_wrong_is_a_record_too(tmp_path: Path, models: list[ModelRef]) -> None:
    bad = tmp_path / "bad.uai"
    bad.write_text("MARKOV\n2\n2 2\n1\n2 0 1\n4\n1 2 3\n")
    large = tmp_path / "large.uai"
    mapmrf.write(grid(9, 9), large)
    todo = tasks(from_files([bad, large]), MethodConfig("exhaustive"))
    run_all([*todo, *tasks(models[:1], MethodConfig("exhaustive"))], tmp_path / "r.jsonl")
    outcomes = {
        record["model"]: (record["outcome"], record["message"]) for record in read_records(tmp_path / "r.jsonl")
    }
    assert outcomes["bad"][0] == "error" and "bad.uai" in outcomes["bad"][1]
    assert outcomes["large"][0] == "unsupported" and "labellings" in outcomes["large"][1]
    assert outcomes["small0"] == ("done", "")


SABOTAGE = """
import os, time
import mapmrf.methods.exhaustive as exhaustive
step, steps = exhaustive.Exhaustive.step, []
def hang():
    while True:
        with open({log!r}, "a") as file:
            file.write("x")
        time.sleep(0.05)
def sabotaged(self, problem, state):
    if problem.n_vars == 9:
        steps.append(problem)
        {deed}
    return step(self, problem, state)
exhaustive.Exhaustive.step = sabotaged
"""


def load_first(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every worker run this code before anything else."""
    (folder / "sitecustomize.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))


def sabotage(deed: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something in every step on a model of nine variables; while it hangs, the runner's clock jumps ahead."""
    log, real = folder / "log", time.monotonic
    load_first(SABOTAGE.format(deed=deed, log=str(log)), folder, monkeypatch)

    def later() -> float:
        return real() + LIMIT * (log.stat().st_size if log.exists() else 0)

    monkeypatch.setattr("mapmrf.bench.runner.time", SimpleNamespace(**{**vars(time), "monotonic": later}))


@pytest.mark.parametrize(
    ("deed", "outcome", "message"),
    [
        ("os._exit(7)", "crash", "code 7"),
        ("hang()", "killed", "not started after 1000 s"),
        ("raise RuntimeError('oh')", "error", "RuntimeError: oh"),
        ("raise MemoryError", "memory", "needs more than 1.07 GB"),
    ],
)
def test_a_crash_takes_nothing_else_along(tmp_path, models, monkeypatch, deed, outcome, message) -> None:
    sabotage(deed, tmp_path, monkeypatch)
    good = tmp_path / "good.uai"
    mapmrf.write(grid(2, 2), good)
    todo = tasks([models[0], *from_files([good]), models[1]], MethodConfig("exhaustive"), limit=100.0)
    run_all(todo, tmp_path / "r.jsonl", limits=RunLimits(2**30, setup=1000.0))
    records = read_records(tmp_path / "r.jsonl")
    assert [record["outcome"] for record in records] == [outcome, "done", outcome]
    assert message in records[0]["message"]


def test_a_run_that_has_begun_is_killed_after_its_limit(tmp_path, models, monkeypatch) -> None:
    """The first step is that of the set-up."""
    sabotage("len(steps) > 1 and hang()", tmp_path, monkeypatch)
    todo = tasks(models[:1], MethodConfig("exhaustive"), limit=100.0)
    run_all(todo, tmp_path / "r.jsonl", limits=RunLimits(grace=50.0))
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record["outcome"], record["message"]) == ("killed", "still running after 150 s")


def test_the_memory_limit_holds(tmp_path: Path) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("no such limit on this system")
    script = """
        import numpy as np
        from mapmrf.model.memory import limited_memory
        with limited_memory(200 * 2**20):
            np.ones(10 * 2**20)
            try:
                np.ones(50 * 2**20)
            except MemoryError:
                print("refused")
        print(len(np.ones(50 * 2**20)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", str(50 * 2**20)]


def test_peak_memory_is_that_of_the_run(models: list[ModelRef]) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak cannot be forgotten on this system")
    held = np.ones(40 * 2**20)
    del held
    record = Runner().record(tasks(models, MethodConfig("exhaustive"))[0])
    again = Runner().record(tasks(models, MethodConfig("exhaustive"))[0])
    assert record["peak_memory"] < again["peak_memory"] + 300 * 2**20


SCRIPT = """
import sys
from pathlib import Path
import mapmrf

models = sorted(Path(sys.argv[1]).glob("*.uai"))
methods = [mapmrf.methods()["exhaustive"](max_labellings=2**40), "icm"]
records = mapmrf.bench.run(methods, models, seeds=range(4), time_limit=5, jobs=2, output=sys.argv[2])
print(len(records))
"""


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path: Path, models: list[ModelRef]) -> None:
    if os.name != "posix":
        pytest.skip("signals of another kind")
    mapmrf.write(grid(5, 5), tmp_path / "zz.uai")  # 2^25 labellings: some seconds
    path, pipe = tmp_path / "r.jsonl", subprocess.PIPE
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), str(path)]
    process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    wait_until(lambda: path.exists() and len(read_records(path)) >= 3)
    os.killpg(process.pid, signal.SIGINT)
    said, heard = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0 and 3 <= int(said) == len(read_records(path)) and "interrupted" in heard
    wait_until(lambda: not any_left(process.pid))


def any_left(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


LATE = """
import os
from dataclasses import dataclass
from pathlib import Path
import mapmrf
from mapmrf.compilation.jit import compiled
from mapmrf.run.method import Answer, Progress

@compiled
def early(x):
    return x + 1

@compiled
def late(x):
    return x + 2

@dataclass(frozen=True)
class Late(mapmrf.Method):
    name = "late"
    max_iterations: int = 5
    def start(self, problem, seed, initial):
        with open({log!r}, "a") as file:
            print(len(list(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.kernel"))), file=file)
        return [0]
    def step(self, problem, state):
        state[0] += 1
        late(state[0]) if state[0] == 4 else early(state[0])
        return Progress(state[0], labels=0 * problem.graph.card)
    def answer(self, problem, state):
        return Answer()
"""


def test_nothing_is_compiled_in_a_recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an empty cache of kernels: the method compiles its second phase when the warm-up is over."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "late.py").write_text(LATE.format(log=str(tmp_path / "log")))
    mapmrf.write(grid(8, 8, coupling=2.0, seed=1), tmp_path / "glass.uai")
    todo = tasks(from_files([tmp_path / "glass.uai"]), MethodConfig(f"{tmp_path / 'late.py'}:Late"))
    run_all(todo, tmp_path / "r.jsonl")
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record["outcome"], record["message"]) == ("done", "")
    first, *_, recorded = map(int, (tmp_path / "log").read_text().split())
    assert first < recorded == len(list((tmp_path / "cache").rglob("*.kernel")))


# -- timed runs contain no compilation --------------------------------------------------------------------------------


def compile_something() -> None:
    numba.njit(lambda x: x + 1)(1)


class Runs:
    """Runs of a method: in each something is done, and the callback is asked a second and an hour later."""

    def __init__(self, *deeds: Callable[[], None], status: Status = Status.TIME_LIMIT, compile_time: float = 0.0):
        self.deeds, self.status, self.compile_time = list(deeds), status, compile_time
        self.limits: list[float | None] = []
        self.ended: list[float] = []

    def __call__(self, time_limit: float | None, callback: Callback) -> Result:
        self.limits.append(time_limit)
        if self.deeds:
            self.deeds.pop(0)()
        labels = np.zeros(1, dtype=np.int64)
        times = (1.0, 3600.0)
        self.ended.append(next((t for t in times if callback(TracePoint(t, 1, 0.0, None), labels)), 0.0))
        return Result(labels, 0.0, self.status, "icm", compile_time=self.compile_time, runtime=40.0)


def compile_elsewhere() -> None:
    thread = threading.Thread(target=compile_something)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("runs", "limits", "ended", "spent"),
    [
        (Runs(), [5.0], [0.0], 0.0),
        # The second run compiles without a limit, and ends when it has run for longer than that.
        (Runs(compile_something, compile_something), [5.0, None, 5.0], [1.0, 3600.0, 0.0], 80.0),
        (Runs(compile_something, status=Status.OPTIMAL), [5.0, None, 5.0], [1.0, 3600.0, 0.0], 80.0),
        (Runs(compile_elsewhere), [5.0, None, 5.0], [1.0, 3600.0, 0.0], 80.0),
        # Cut short by loading: made again once, since perhaps the model itself takes so long.
        (Runs(compile_time=1.0), [5.0, 5.0], [0.0, 0.0], 40.0),
        (Runs(compile_time=1.0, status=Status.CONVERGED), [5.0], [0.0], 0.0),
        (Runs(compile_time=0.05), [5.0], [0.0], 0.0),
    ],
)
def test_a_recorded_run_compiles_nothing(runs: Runs, limits: list, ended: list, spent: float) -> None:
    told: list[str] = []
    result, seconds = time_run(runs, 5.0, told.append)
    assert (runs.limits, runs.ended, seconds, result.runtime) == (limits, ended, spent, 40.0)
    assert told == [{5.0: "begins", None: "prepares"}[limit] for limit in limits]


def test_a_run_that_always_compiles_is_given_up() -> None:
    runs = Runs(*[compile_something] * 20)
    refuses(MapMRFError, f"compiled in each of {ATTEMPTS} runs", time_run, runs, 5.0, print)
    assert runs.limits == [5.0, None] * ATTEMPTS


def test_compilations_inside_others_count_but_their_seconds_do_not() -> None:
    compiled = Compilations()
    compiled.begin()
    compiled.begin()
    compiled.end()
    inner = compiled.seconds
    compiled.end()
    whole = compiled.seconds
    assert compiled.n == 2
    assert compiled.seconds == whole > inner > 0.0


CACHED = """
import numba
from mapmrf.bench.worker import counting_compilations

@numba.njit(cache=True)
def kernel(x):
    return x + 1

with counting_compilations() as compiled:
    kernel(1)
print(compiled.n)
"""


def test_loading_compiled_code_does_not_count(tmp_path: Path) -> None:
    (tmp_path / "cached.py").write_text(CACHED)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, str(tmp_path / "cached.py")]
    said = [subprocess.run(command, env=environment, capture_output=True, check=True).stdout for _ in range(2)]
    assert said == [b"1\n", b"0\n"]


# -- kills ------------------------------------------------------------------------------------------------------------


posix = pytest.mark.skipif(os.name != "posix", reason="kills a group of processes")
SAME = ("key", "set", "model", "run", "seed", "outcome", "value", "status", "iterations", "labels")
"""What does not depend on the clock."""


def command(folder: Path, output: Path, n_seeds: int) -> list[str]:
    models = []
    for k in range(3):
        path = folder / f"m{k}.uai"
        if not path.exists():
            mapmrf.write(grid(4, 4, 2.0, seed=k), path)
        models.append(str(path))
    seeds = ",".join(map(str, range(n_seeds)))
    options = ["--methods", "exhaustive,icm", "--seeds", seeds, "--time-limit", "60", "--jobs", "2"]
    return [sys.executable, "-m", "mapmrf", "bench", *models, *options, "-o", str(output)]


def kept(path: Path) -> dict[str, dict[str, Any]]:
    return {record["key"]: {name: record.get(name) for name in SAME} for record in read_records(path)}


def n_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed(arguments: list[str], path: Path, n_more: int) -> bool:
    """Start a benchmark and kill it, workers and all, after so many more records; False if it was done before."""
    quiet, before = subprocess.DEVNULL, n_lines(path)
    process = subprocess.Popen(arguments, stdout=quiet, stderr=quiet, start_new_session=True)
    wait_until(lambda: process.poll() is not None or n_lines(path) >= before + n_more)
    if process.poll() is not None:
        return False
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return True


def kill_and_resume(folder: Path, n_kills: int, n_seeds: int) -> int:
    """Kill a benchmark so often, then let it end; the records must be those of an unbroken one.

    One that ends before it is killed is begun again. Returns how often that was.
    """
    whole, broken, draw = folder / "whole.jsonl", folder / "broken.jsonl", random.Random(1)
    subprocess.run(command(folder, whole, n_seeds), check=True, capture_output=True)
    n_killed = n_ended = 0
    while n_killed < n_kills and n_ended < 10 * n_kills:
        if killed(command(folder, broken, n_seeds), broken, draw.randrange(3)):
            n_killed += 1
        else:
            n_ended += 1
            broken.unlink()
    assert n_killed == n_kills
    subprocess.run(command(folder, broken, n_seeds), check=True, capture_output=True)
    assert kept(broken) == kept(whole) and len(kept(whole)) == 6 * n_seeds
    lines = broken.read_text().splitlines()
    assert len(lines) == len(kept(whole))  # no run twice
    return n_ended


@posix
@pytest.mark.parametrize(("n_kills", "n_seeds"), [(2, 2), pytest.param(50, 8, marks=pytest.mark.slow)])
def test_records_survive_kills(tmp_path: Path, n_kills: int, n_seeds: int) -> None:
    n_ended = kill_and_resume(tmp_path, n_kills, n_seeds)
    print(f"{n_kills} were killed, {n_ended} others ended before")
