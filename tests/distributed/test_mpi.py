"""Real MPI: the same answer on any number of ranks, signals, failures, checkpoints."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from benchmark_models import benchmark
from clocks import PATIENCE, wait_until
from command_line import done
from mapmrf import distributed
from mapmrf.datasets import grid, random_graph

BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")
HAS_MPI = MPIEXEC is not None and importlib.util.find_spec("mpi4py") is not None
pytestmark = pytest.mark.skipif(not HAS_MPI, reason="needs mpi4py and mpiexec: pip install 'mapmrf[mpi]'")
NO_MPI = 0
"""In place of a number of ranks: one process that is not started by MPI."""


def start_mpi(n: int, *arguments: object) -> subprocess.Popen[str]:
    command = [str(MPIEXEC), "-n", str(n), sys.executable, "-m", "mapmrf", *map(str, arguments)]
    environment = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, start_new_session=True, **pipes)


def ended(process: subprocess.Popen[str], seconds: float) -> tuple[str, str]:
    """What a command printed, which must end by then."""
    try:
        return process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.communicate()


def run_mpi(n: int, *arguments: object, code: int = 0) -> str:
    """Run a command of mapmrf on n ranks; returns its standard output, or standard error if it is to fail."""
    process = start_mpi(n, *arguments)
    out, err = ended(process, 300)
    assert process.returncode == code, err
    return err if code else out


def solved(n: int, *arguments: object) -> dict[str, Any]:
    """What `solve --json` prints, on ranks or here, but for times."""
    command = ("solve", *arguments, "--json", "-q")
    found: dict[str, Any] = json.loads(run_mpi(n, *command) if n else done(*command))
    for name in ("runtime", "compile_time", "ranks"):
        del found[name]
    return found


def hard_grid() -> mapmrf.FactorGraph:
    """Rows that are long enough for tiles."""
    return grid(30, 60, 3.0, seed=1)


@pytest.fixture(scope="module")
def hard_parts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A grid in four parts that keeps LS-LP busy."""
    folder = tmp_path_factory.mktemp("hard") / "parts"
    distributed.partition(hard_grid(), folder, 4)
    return folder


def answer(folder: Path, n: int, *arguments: object, out: Path) -> tuple[dict[str, Any], np.ndarray]:
    return solved(n, folder, *arguments, "-o", out), distributed.join_labels(out)


@pytest.mark.parametrize("model", ["grid", "mixed"])
def test_one_two_three_and_four_ranks_give_the_same_bits(model: str, tmp_path: Path) -> None:
    graph = grid(60, 60, 3.0, seed=1) if model == "grid" else random_graph(30, 45, hard=0.05, seed=3)
    distributed.partition(graph, tmp_path / "parts", 4)
    arguments = ("--set", "max_iterations=60", "--set", "lp_iterations=20", "--seed", 2)
    ranks = 1 if model == "grid" else NO_MPI
    one, labels = answer(tmp_path / "parts", ranks, *arguments, out=tmp_path / "1")
    assert graph.value(labels) == pytest.approx(one["value"], rel=1e-12)
    for n in (3,) if model == "grid" else (2, 4):
        found, other = answer(tmp_path / "parts", n, *arguments, out=tmp_path / str(n))
        assert found == one
        assert np.array_equal(labels, other)


def test_more_ranks_than_parts_are_refused_in_one_line(tmp_path: Path) -> None:
    distributed.partition(grid(4, 4), tmp_path, 1)
    assert run_mpi(2, "solve", tmp_path, code=2).splitlines()[0] == (
        "mapmrf: error: 2 ranks but 1 parts: expected at least one part for every rank"
    )


def test_a_damaged_part_ends_all_ranks_with_one_line(tmp_path: Path) -> None:
    distributed.partition(grid(6, 6), tmp_path, 2)
    path = tmp_path / "part-00001.mrf"
    path.write_bytes(path.read_bytes()[:-100])
    lines = [line for line in run_mpi(2, "solve", tmp_path, code=2).splitlines() if line.startswith("mapmrf")]
    assert len(lines) == 1 and lines[0].startswith(f"mapmrf: error: rank 1: {path}: damaged")


def test_the_time_limit_is_that_of_rank_0(hard_parts: Path, tmp_path: Path) -> None:
    """The clock of rank 1 is past the limit from the start, that of rank 0 from the third point."""
    process = start_script(
        f"""
import itertools, time
from mpi4py import MPI
import mapmrf.distributed.loop as loop
real, added, limit, points = time.perf_counter, [0.0], 1e6, itertools.count(1)
time.perf_counter = lambda: real() + added[0]
def look(point, labels):
    added[0] += limit * (next(points) == 3)
class Late(loop.PartedLoop):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        added[0] += limit * self.ranks.rank
loop.PartedLoop = Late
endless = dict(max_iterations=10**6, starts=10**5)
found = loop.solve({str(hard_parts)!r}, MPI.COMM_WORLD, time_limit=limit, callback=look, **endless)
both = MPI.COMM_WORLD.gather((found.status.value, len(found.trace)))
if both:
    print(both)
""",
        tmp_path,
    )
    output, error = ended(process, PATIENCE)
    assert (process.returncode, output) == (0, f"{[('time_limit', 3)] * 2}\n"), error


def test_the_trace_is_written_once(hard_parts: Path, tmp_path: Path) -> None:
    found = solved(2, hard_parts, "--trace", tmp_path / "t.csv", "--set", "max_iterations=20")
    trace = mapmrf.run.result.read_trace(tmp_path / "t.csv")
    assert trace[-1].value <= found["value"] and trace[-1].iterations == found["iterations"] == 20


def start_script(text: str, folder: Path) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(text)
    command = [str(MPIEXEC), "-n", "2", sys.executable, str(script)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ranks_of(launcher: int) -> list[int]:
    """Processes of the ranks below a launcher, in the order of their ranks."""
    parent, rank = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                variables = (entry / "environ").read_bytes().split(b"\0")
                named = (b"PMI_RANK=", b"OMPI_COMM_WORLD_RANK=")
                rank |= {int(entry.name): int(one.split(b"=")[1]) for one in variables if one.startswith(named)}

    def below(pid: int) -> bool:
        while pid > 1 and pid != launcher:
            pid = parent.get(pid, 0)
        return pid == launcher

    return sorted((pid for pid in rank if below(pid)), key=rank.__getitem__)


linux = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds the ranks in /proc")


@linux
def test_a_signal_to_one_rank_ends_all_with_the_best_labelling(hard_parts: Path, tmp_path: Path) -> None:
    endless = ("--set", "max_iterations=1000000", "--set", "starts=100000")
    saving = ("--json", "-o", tmp_path / "out", "--checkpoint", tmp_path / "state", "--every", 0.2)
    process = start_mpi(2, "solve", hard_parts, *endless, *saving)
    wait_until((tmp_path / "state" / "checkpoint.json").exists)
    os.kill(ranks_of(process.pid)[1], signal.SIGTERM)
    out, _ = ended(process, PATIENCE)
    found = json.loads(out.splitlines()[0])
    assert found["status"] == "interrupted"
    value = hard_grid().value(distributed.join_labels(tmp_path / "out"))
    assert value == pytest.approx(found["value"], rel=1e-12)


UNTIL_THE_END = ("--set", "max_iterations=200", "--set", "lp_iterations=60", "--set", "starts=2")


@pytest.fixture(scope="module")
def whole(hard_parts: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], np.ndarray]:
    """Figures and labels of a run that nobody disturbs."""
    return answer(hard_parts, NO_MPI, *UNTIL_THE_END, out=tmp_path_factory.mktemp("whole") / "labels")


@linux
@pytest.mark.parametrize(("victim", "later"), [(0, 3), (1, NO_MPI)])
def test_a_killed_rank_ends_all_and_the_run_resumes_to_the_same_answer(
    victim: int, later: int, whole: tuple[dict[str, Any], np.ndarray], hard_parts: Path, tmp_path: Path
) -> None:
    expected, labels = whole
    saving = ("--checkpoint", tmp_path / "state")
    process = start_mpi(2, "solve", hard_parts, *UNTIL_THE_END, *saving, "--every", 0)  # at every step: it takes time
    wait_until((tmp_path / "state" / "checkpoint.json").exists)
    os.kill(ranks_of(process.pid)[victim], signal.SIGKILL)
    output, error = ended(process, PATIENCE)
    # The launcher may end the others before they have said so; then it names one of the ranks itself, on either stream.
    assert f"mapmrf: error: rank {victim} on " in error or "BAD TERMINATION" in output + error
    assert process.returncode != 0
    found, other = answer(hard_parts, later, *UNTIL_THE_END, *saving, "--resume", out=tmp_path / "resumed")
    assert found == expected
    assert np.array_equal(labels, other)


def test_a_full_disk_leaves_the_last_checkpoint(hard_parts: Path, tmp_path: Path) -> None:
    """A folder stands where the state of part 3 is to be written: rank 1 cannot write it."""
    state = tmp_path / "state"
    arguments = ("--set", "max_iterations=40", "--checkpoint", state, "--every", 0)
    solved(NO_MPI, hard_parts, *arguments, "--time-limit", 0)
    before = {path.name: path.read_bytes() for path in state.iterdir()}
    (state / "state-000000020-00003.mrf").mkdir()
    error = run_mpi(2, "solve", hard_parts, *arguments, "--resume", code=2)
    (line,) = [line for line in error.splitlines() if line.startswith("mapmrf")]
    assert line.startswith("mapmrf: error: rank 1: ")
    assert {name: (state / name).read_bytes() for name in before} == before


def test_an_error_of_one_rank_ends_all(hard_parts: Path, tmp_path: Path) -> None:
    """A callback is called on rank 0 only; the other rank must not wait for it."""
    process = start_script(
        "from mpi4py import MPI\nimport mapmrf\n"
        "def full(point, labels):\n    raise OSError(28, 'No space left on device', 'log.txt')\n"
        f"mapmrf.distributed.solve({str(hard_parts)!r}, MPI.COMM_WORLD, callback=full)\n",
        tmp_path,
    )
    _, error = ended(process, PATIENCE)
    assert process.returncode != 0
    assert "mapmrf: error: rank 0: log.txt: No space left on device" in error.splitlines()


LINGERING = """
import os, threading, time
if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
"""


def test_every_rank_leaves_through_mpi(hard_parts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program with a thread left ends without waiting for it; a rank must not look crashed to the others then."""
    (tmp_path / "sitecustomize.py").write_text(LINGERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    process = start_mpi(2, "solve", hard_parts, "--set", "max_iterations=20", "--json")
    out, err = ended(process, 300)
    assert process.returncode == 0, err
    assert json.loads(out)["ranks"] == 2


# -- real models ------------------------------------------------------------------------------------------------------


MODELS = ("grids/grid80x80.f10.uai.gz", "segmentation21/1_28_s.21.uai.gz", "protein/didNotconverge1.uai.gz")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ranks_do_not_change_the_answer(name: str, tmp_path: Path) -> None:
    graph = benchmark(name)
    distributed.partition(graph, tmp_path / "parts", 4)
    found = []
    for n in (1, 2, 4):
        figures = solved(n, tmp_path / "parts", "--set", "max_iterations=60", "-o", tmp_path / str(n))
        found.append((figures, distributed.join_labels(tmp_path / str(n))))
    for figures, labels in found[1:]:
        assert figures == found[0][0] and np.array_equal(labels, found[0][1])
    assert graph.value(found[0][1]) == pytest.approx(found[0][0]["value"], rel=1e-12)
