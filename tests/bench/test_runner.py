"""The runner: isolation, limits, resuming after kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mapmrf
from clocks import LIMIT, PATIENCE, wait_until
from mapmrf.bench.records import read_records, unpack_labels
from mapmrf.bench.run_list import BenchTask, MethodConfig, ModelRef, RunList, from_files
from mapmrf.bench.runner import RunLimits, run_all
from mapmrf.bench.worker import Runner
from mapmrf.datasets import grid


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
    seen = []
    summary = run_all(todo, path, jobs=2, listener=lambda record: seen.append(record["key"]))
    assert (summary.planned, summary.before, summary.done, summary.interrupted) == (6, 0, 6, False)
    records = read_records(path)
    assert sorted(seen) == sorted(record["key"] for record in records) == sorted(task.key for task in todo)
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
        ("raise MemoryError", "memory", "MiB"),
    ],
)
def test_a_crash_takes_nothing_else_along(
    tmp_path: Path, models: list[ModelRef], monkeypatch: pytest.MonkeyPatch, deed: str, outcome: str, message: str
) -> None:
    sabotage(deed, tmp_path, monkeypatch)
    good = tmp_path / "good.uai"
    mapmrf.write(grid(2, 2), good)
    todo = tasks([models[0], *from_files([good]), models[1]], MethodConfig("exhaustive"), limit=100.0)
    run_all(todo, tmp_path / "r.jsonl", limits=RunLimits(2**30, setup=1000.0))
    records = read_records(tmp_path / "r.jsonl")
    assert [record["outcome"] for record in records] == [outcome, "done", outcome]
    assert message in records[0]["message"]


def test_a_run_that_has_begun_is_killed_after_its_limit(
    tmp_path: Path, models: list[ModelRef], monkeypatch: pytest.MonkeyPatch
) -> None:
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
        from mapmrf.bench.worker import _memory_limit
        with _memory_limit(200 * 2**20):
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
from mapmrf.bench.run_list import MethodConfig, RunList, from_files
from mapmrf.bench.runner import RunLimits, run_all

if __name__ == "__main__":
    models = from_files(sorted(Path(sys.argv[1]).glob("*.uai")))
    runs = [MethodConfig("exhaustive"), MethodConfig("exhaustive", {"max_iterations": 5})]
    run_all(RunList(runs, models, range(int(sys.argv[3])), 5.0).tasks(), sys.argv[2], jobs=2)
"""


def test_ctrl_c_keeps_what_is_done_and_leaves_no_process(tmp_path: Path, models: list[ModelRef]) -> None:
    if os.name != "posix":
        pytest.skip("signals of another kind")
    mapmrf.write(grid(5, 5), tmp_path / "zz.uai")  # 2^25 labellings: some seconds
    script, path = tmp_path / "run.py", tmp_path / "r.jsonl"
    script.write_text(
        SCRIPT.replace('MethodConfig("exhaustive"),', 'MethodConfig("exhaustive", {"max_labellings": 2**40}),')
    )
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path), str(path), "4"], start_new_session=True)
    wait_until(lambda: path.exists() and len(read_records(path)) >= 3)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(PATIENCE) == 0
    assert len(read_records(path)) >= 3
    wait_until(lambda: not any_left(process.pid))


def any_left(group: int) -> bool:
    """Whether there is a process in a group."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


NOTING = """
import os
from pathlib import Path
import mapmrf.methods.lslp as lslp
start = lslp.LSLP.start
def noting(self, *arguments):
    with open({log!r}, "a") as file:
        print(len(list(Path(os.environ["NUMBA_CACHE_DIR"]).rglob("*.kernel"))), file=file)
    return start(self, *arguments)
lslp.LSLP.start = noting
"""


def test_nothing_is_compiled_in_a_recorded_run(
    tmp_path: Path, models: list[ModelRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an empty cache of kernels: LS-LP compiles its second phase long after the warm-up is over."""
    load_first(NOTING.format(log=str(tmp_path / "log")), tmp_path, monkeypatch)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("MAPMRF_KERNELS", "own")
    mapmrf.write(grid(8, 8, coupling=2.0, seed=1), tmp_path / "glass.uai")
    todo = tasks(from_files([tmp_path / "glass.uai"]), MethodConfig("lslp"), limit=0.5)
    run_all(todo, tmp_path / "r.jsonl")
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record["outcome"], record["message"]) == ("done", "")
    first, *_, recorded = map(int, (tmp_path / "log").read_text().split())
    assert first < recorded == len(list((tmp_path / "cache").rglob("*.kernel")))
