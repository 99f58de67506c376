"""Real signals to `mapmrf solve` at random moments: it ends with its exit code, its answer and no traceback.

    pytest -m signals -s -n 0 tests/run/test_signals.py        # 1000 of them over all methods, with a line for each
    python tests/run/test_signals.py --shots 200 --seed 7      # the same, as many as you like

A moment is drawn in seconds of processor time, so that a busy machine does not move it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, constraints, datasets
from mapmrf.model.problem import Problem

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")

PATIENCE = 300.0
"""Seconds after which a process that does not end counts as hung; a kernel may have to be compiled."""

LONGEST = 15.0
"""Seconds after which the moment has come in any case."""

FINE = ("clean", "unread", "finished")

JOBS = 3
"""Processes at a time."""

TICK = 1.0 / os.sysconf("SC_CLK_TCK")


# -- models -----------------------------------------------------------------------------------------------------------


def selection(n: int) -> FactorGraph:
    """At most a tenth of n items, which gain alone and in pairs."""
    rng = np.random.default_rng(1)
    pairs = np.unique(np.sort(np.stack([rng.permutation(n), rng.permutation(n)], axis=1), axis=1), axis=0)
    pairs = pairs[pairs[:, 0] < pairs[:, 1]]
    tables = np.zeros((len(pairs), 2, 2))
    tables[:, 1, 1] = rng.integers(-8, 9, len(pairs)) / 4
    unary = np.stack([np.zeros(n), rng.integers(-8, 9, n) / 4], axis=1)
    return FactorGraph.from_pairwise(unary, pairs, tables).with_constraints([constraints.at_most_k(range(n), n // 10)])


MODELS: dict[str, Callable[[], FactorGraph]] = {
    "grid.uai": lambda: datasets.grid(80, 80, 2.0),
    "dense.uai": lambda: datasets.random_graph(150, 3000, 2, 2),
    "arity5.uai": lambda: datasets.random_graph(300, 400, 3, 5),
    "potts.uai": lambda: datasets.potts_image(60, 60, 4).graph,
    "hard.uai": lambda: datasets.random_graph(1000, 1700, (2, 4), (2, 3), hard=0.15),
    "counted.wcsp": lambda: selection(300),
}
IMAGES: dict[str, Callable[[], FactorGraph]] = {"image.lg": lambda: datasets.potts_image(500, 500, 2).graph}
"""A file, and the model in it; images only where there is time for them."""

FOR_IMAGES = ("ad3", "auto", "blocks", "bp", "chains", "dd_sg", "expansion", "flips", "fusion", "icm", "lp", "lslp",
              "maxflow", "mplp", "qpbo", "restarts", "trbp", "trws")  # fmt: skip

NOT_FOR_COUNTED = ("expansion", "l2box", "maxflow", "qpbo", "sdp", "tabu")


@cache
def pairs(folder: Path, images: bool) -> list[tuple[str, str]]:
    """Write the models; the methods and files that go together."""
    found = []
    for file, make in {**MODELS, **(IMAGES if images else {})}.items():
        graph = make()
        mapmrf.write(graph, folder / file)
        problem = None if file in IMAGES else Problem.compile(graph)
        for name, cls in mapmrf.methods().items():
            if problem is None:
                fits = name in FOR_IMAGES
            else:
                fits = name != "exhaustive" and (graph.constraints is not None or cls().supports(problem) is None)
            if fits and not (graph.constraints is not None and name in NOT_FOR_COUNTED):
                found.append((name, file))
    return found


# -- one signal -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shot:
    """A run of `mapmrf solve` and what is sent to it."""

    method: str
    model: Path
    moment: float  # seconds of processor time after the program has its handlers
    signals: tuple[int, ...] = (signal.SIGINT,)
    apart: float = 0.0  # seconds between two signals
    options: tuple[str, ...] = ()  # more words of the command

    def __str__(self) -> str:
        names = "+".join(signal.Signals(number).name for number in self.signals)
        limited = " limited" if "--time-limit" in self.options else ""
        return f"{self.method:10} {self.model.name:12} {names:13} at {self.moment:.2f} s{limited}"


@dataclass(frozen=True)
class Ended:
    """How a process ended that got a signal; `reaction` is processor time since then."""

    code: int
    said: str
    heard: str
    labels: list[int] | None
    trace: list[str] | None
    leftovers: list[str]
    reaction: float

    def verdict(self, number: int) -> str:
        """What is wrong, or "clean"; "finished" if the signal came after the end, "unread" if before the model."""
        if "Traceback" in self.heard or not all(line.startswith("mapmrf: ") for line in self.heard.splitlines()):
            return "traceback"
        if self.leftovers:
            return f"leftovers {self.leftovers}"
        if self.code not in (0, 3, 128 + number):
            return f"exit code {self.code}"
        if not self.said:
            told = self.heard == "mapmrf: interrupted\n" and self.labels is None and self.trace is None
            return "unread" if told and self.code == 128 + number else "no answer"
        return self._verdict_on_answer(json.loads(self.said), number)

    def _verdict_on_answer(self, answer: dict[str, object], number: int) -> str:
        if self.labels != answer["labels"] and answer["status"] != "infeasible":
            return "other labels in the file"
        if not self.trace or len({line.count(",") for line in self.trace}) != 1:
            return "trace not complete"
        if self.code == 128 + number:
            return "clean"
        return "finished" if answer["status"] != "interrupted" else f"exit code {self.code}"


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


def processor_time(pid: int) -> float:
    """Seconds that a process has used; inf if it has ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return float("inf") if fields[0] == "Z" else (int(fields[11]) + int(fields[12])) * TICK


def await_moment(pid: int, moment: float) -> None:
    """Wait until a process has its handlers, and then for so many seconds of its processor time."""
    while not catches(pid, signal.SIGTERM) and processor_time(pid) < float("inf"):
        time.sleep(0.002)
    end, deadline = processor_time(pid) + moment, time.monotonic() + LONGEST  # it may wait for another process
    while processor_time(pid) < end and time.monotonic() < deadline:
        time.sleep(0.002)


def shoot(shot: Shot, environment: dict[str, str] | None = None) -> Ended:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        output, trace, said, heard = (folder / name for name in ("labels.MPE", "trace.csv", "said", "heard"))
        command = ["solve", str(shot.model), "-m", shot.method, "--json", "-o", str(output), "--trace", str(trace)]
        with said.open("w") as out, heard.open("w") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "mapmrf", *command, *shot.options],
                stdout=out, stderr=errors, env={**os.environ, **(environment or {})}, preexec_fn=defaults,
            )  # fmt: skip
        pid = process.pid
        killer = threading.Timer(PATIENCE, os.kill, (pid, signal.SIGKILL))
        killer.start()
        await_moment(pid, shot.moment)
        before = processor_time(pid)
        for number in shot.signals:
            os.kill(pid, number)  # even if it is a zombie
            time.sleep(shot.apart)
        _, status, usage = os.wait4(pid, 0)
        killer.cancel()
        left = sorted(path.name for path in folder.iterdir() if path not in (output, trace, said, heard))
        labels = list(map(int, output.read_text().split()[2:])) if output.exists() else None
        lines = trace.read_text().splitlines() if trace.exists() else None
        process.returncode = code = os.waitstatus_to_exitcode(status)
        used = usage.ru_utime + usage.ru_stime
        return Ended(code, said.read_text(), heard.read_text(), labels, lines, left, used - before)


# -- many -------------------------------------------------------------------------------------------------------------

SIGNALS = ((signal.SIGINT,), (signal.SIGINT, signal.SIGINT), (signal.SIGTERM,))


def draw(n: int, seed: int, folder: Path, images: bool) -> list[Shot]:
    rng = random.Random(seed)
    chosen = pairs(folder, images)
    by_method = {method: [file for name, file in chosen if name == method] for method, _ in chosen}
    shots = []
    for k in range(n):
        method = sorted(by_method)[k % len(by_method)]
        file = rng.choice(by_method[method])
        options = ("--time-limit", "0.1") if rng.random() < 0.15 else ()  # it ends by itself, and then reports
        longest = (0.8 if options else 1.8) + 2.2 * (file in IMAGES)  # it reads the model after most of a second
        moment = rng.uniform(0.2, longest)
        shots.append(Shot(method, folder / file, moment, SIGNALS[k % 3], rng.uniform(0.0, 0.2), options))
    return shots


def count(shots: Sequence[Shot], jobs: int = JOBS) -> Counter[str]:
    """Verdicts on all shots, each printed."""
    verdicts: Counter[str] = Counter()
    reactions = []
    with ThreadPoolExecutor(jobs) as pool:
        for shot, ended in zip(shots, pool.map(shoot, shots), strict=True):
            verdict = ended.verdict(shot.signals[0])
            verdicts[verdict] += 1
            reactions.append(ended.reaction if verdict in ("clean", "unread") else 0.0)
            print(f"{shot}: {verdict}, {reactions[-1]:.2f} s later", flush=True)
            if verdict not in FINE:
                print(ended.code, ended.said[:200], ended.heard, flush=True)
    slowest = sorted(zip(reactions, map(str, shots), strict=True), reverse=True)[:5]
    print(dict(verdicts), *(f"{seconds:.2f} s: {shot}" for seconds, shot in slowest), sep="\n", flush=True)
    return verdicts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("signals")


def test_signals_at_random_moments(folder: Path) -> None:
    verdicts = count(draw(6, 1, folder, images=False), jobs=1)
    assert set(verdicts) <= set(FINE) and verdicts["clean"] > 0, verdicts


@pytest.mark.signals
def test_a_thousand_signals_at_random_moments(folder: Path) -> None:
    verdicts = count(draw(1000, 2, folder, images=True))
    assert set(verdicts) <= set(FINE) and verdicts["clean"] >= 300, verdicts


@pytest.mark.signals
def test_signals_while_kernels_are_compiled(folder: Path, tmp_path: Path) -> None:
    chosen = draw(30, 3, folder, images=False)
    for k, shot in enumerate(chosen):
        own = {"NUMBA_CACHE_DIR": str(tmp_path / str(k)), "MAPMRF_KERNELS": "own"}
        ended = shoot(shot, own)
        assert ended.verdict(shot.signals[0]) in FINE, (shot, ended)


BREAKING = """
import os, signal
import mapmrf.formats
def read(*args, **options):
    exec("os.kill(os.getpid(), signal.SIGTERM); list(map(str, range(1000)))", globals())
mapmrf.formats.read = read
"""


def run_with(code: str, folder: Path, script: str, **environment: str) -> tuple[int, str, str]:
    """Solve a model in a process that runs some code before anything else."""
    (folder / "sitecustomize.py").write_text(code)
    (folder / "model.uai").write_text("MARKOV 1 2 0")
    path = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", script, "solve", str(folder / "model.uai"), "-m", "icm"]
    env = {**os.environ, "PYTHONPATH": path, **environment}
    done = subprocess.run(command, env=env, capture_output=True, text=True, preexec_fn=defaults)
    return done.returncode, done.stdout, done.stderr.strip()


def test_a_signal_while_a_model_is_read_ends_the_program(tmp_path: Path) -> None:
    script = "import sys, mapmrf.__main__; mapmrf.__main__.main()"
    assert run_with(BREAKING, tmp_path, script) == (143, "", "mapmrf: interrupted")


EARLY = """
import os, signal, sys
class Breaking:
    def find_spec(self, name, *rest):
        if name == os.environ["BREAK_AT"]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Breaking())
"""


@pytest.mark.parametrize("module", ["mapmrf", "mapmrf.errors", "mapmrf.run.interrupts", "mapmrf.cli", "click", "numpy"])
def test_ctrl_c_while_the_program_is_imported_shows_no_traceback(module: str, tmp_path: Path) -> None:
    script = "from _mapmrf import main; main()"  # that of the command
    assert run_with(EARLY, tmp_path, script, BREAK_AT=module) == (130, "", "mapmrf: interrupted")


def main() -> None:
    parser = argparse.ArgumentParser(description="Signals to mapmrf solve at random moments.")
    parser.add_argument("--shots", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--no-images", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        count(draw(given.shots, given.seed, Path(name), not given.no_images))


if __name__ == "__main__":
    main()
