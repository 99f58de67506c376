"""Real signals to `mapmrf solve` at random moments: it ends with its exit code, its answer and no traceback."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

import mapmrf
from mapmrf.datasets import random_graph
from mapmrf.formats.solution import read_solution

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")

PATIENCE = 300.0
"""Seconds after which a process that does not end counts as hung; a kernel may have to be compiled."""

ENDLESS = {
    "auto": (),
    "icm": ("starts=1000000000", "max_iterations=1e12"),
    "lslp": ("starts=1000", "max_iterations=1e12"),
    "restarts": ("patience=1000000000", "max_iterations=1e12"),
    "annealing": ("max_iterations=1e12",),
    "bp": ("max_iterations=1e12",),
    "branch": (),
    "cuts": (),
    "toulbar2": (),
    "mplp_c": ("max_iterations=1e12",),
}
"""Methods that do not come to an end on a dense random model, with the options that this takes."""

N_VARS = 500


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("signals") / "hard.uai"
    mapmrf.write(random_graph(N_VARS, 1500, states=(3, 3), arity=(2, 2), seed=1), path)
    return path


@dataclass(frozen=True)
class Ended:
    """How a process ended that got a signal."""

    code: int
    said: str
    heard: str
    labels: list[int] | None
    seconds: float

    def verdict(self, number: int) -> str:
        """What is wrong, or "clean"; "early" if it ended before the signal, "unread" if that came before the model."""
        if "Traceback" in self.heard or "ignored" in self.heard:
            return "traceback"
        if self.code == 0 and self.said and json.loads(self.said)["status"] != "interrupted":
            return "early"
        if self.code != 128 + number:
            return f"exit code {self.code}"
        if not self.said:
            told = self.heard.strip() == "mapmrf: interrupted" and self.labels is None
            return "unread" if told else "no answer"
        return "clean" if json.loads(self.said)["labels"] == self.labels else "other labels in the file"


def defaults() -> None:
    """A shell may have started the suite with signals ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def shoot(
    model: Path, method: str, delay: float, number: int = signal.SIGINT, cache: Path | None = None, times: int = 1
) -> Ended:
    """Start a run that does not end by itself, and send it signals some time after its own handlers are there."""
    output = model.parent / f"{method}-{os.getpid()}.MPE"
    output.unlink(missing_ok=True)
    settings = [text for setting in ENDLESS[method] for text in ("--set", setting)]
    command = [sys.executable, "-m", "mapmrf", "solve", model, "-m", method, "--json", "-o", output, *settings]
    environment = {**os.environ, **({} if cache is None else {"NUMBA_CACHE_DIR": str(cache), "MAPMRF_KERNELS": "own"})}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        [str(word) for word in command], stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=defaults
    )
    while not catches(process.pid, signal.SIGTERM) and process.poll() is None:
        time.sleep(0.002)
    time.sleep(delay)
    began = time.monotonic()
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.05 if times > 1 else 0.0)
    try:
        said, heard = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    labels = read_solution(output, N_VARS).tolist() if output.exists() else None
    return Ended(process.returncode, said, heard, labels, time.monotonic() - began)


@pytest.mark.parametrize("delay", [0.0, 0.05, 0.2, 0.4, 0.8, 1.6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_any_moment_ends_in_its_exit_code(model: Path, delay: float, number: int) -> None:
    ended = shoot(model, "icm", delay, number)
    assert ended.verdict(number) in ("clean", "unread"), ended
    if ended.labels is not None:
        assert json.loads(ended.said)["value"] == pytest.approx(mapmrf.read(model).value(ended.labels))


@pytest.mark.parametrize("method", ["cuts", "toulbar2"])
def test_runs_that_wait_for_another_solver_end_as_well(model: Path, method: str) -> None:
    if method == "toulbar2":
        pytest.importorskip("pytoulbar2")
    ended = shoot(model, method, 2.0)
    assert ended.verdict(signal.SIGINT) in ("clean", "unread"), ended


def test_three_signals_end_like_one(model: Path) -> None:
    ended = shoot(model, "icm", 1.5, times=3)
    assert ended.verdict(signal.SIGINT) in ("clean", "unread"), ended


BREAKING = """
import os, signal
import mapmrf.formats
def read(*args, **options):
    exec("os.kill(os.getpid(), signal.SIGTERM); list(map(str, range(1000)))", globals())
mapmrf.formats.read = read
"""


def test_python_does_not_kill_itself_for_an_interrupt_that_came_through_exec(tmp_path: Path, model: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(BREAKING)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "mapmrf", "solve", str(model), "-m", "icm"]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, preexec_fn=defaults
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (143, "", "mapmrf: interrupted")


def count(model: Path, tries: int, seed: int, longest: float, cold: Path | None = None) -> Counter[str]:
    """Verdicts over random methods and moments; a cold run begins with an empty cache of kernels."""
    draw = random.Random(seed)
    verdicts: Counter[str] = Counter()
    for k in range(tries):
        method = list(ENDLESS)[k % len(ENDLESS)]
        number = signal.SIGTERM if k % 4 == 3 else signal.SIGINT
        ended = shoot(model, method, draw.uniform(0.0, longest), number, None if cold is None else cold / str(k))
        verdict = ended.verdict(number)
        verdicts[verdict] += 1
        print(f"{k:4} {method:10} {verdict} after {ended.seconds:.2f} s")
        if verdict not in ("clean", "unread", "early"):
            print(ended.code, ended.said[:200], ended.heard)
    return verdicts


@pytest.mark.slow
def test_a_hundred_signals_at_random_moments(model: Path) -> None:
    verdicts = count(model, 100, seed=1, longest=4.0)
    assert set(verdicts) <= {"clean", "unread", "early"} and verdicts["clean"] > 30, verdicts


@pytest.mark.slow
def test_signals_while_kernels_are_compiled(model: Path, tmp_path: Path) -> None:
    verdicts = count(model, 100, seed=2, longest=8.0, cold=tmp_path)
    assert set(verdicts) <= {"clean", "unread", "early"} and verdicts["clean"] > 50, verdicts
