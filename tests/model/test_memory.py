"""Memory limits: what is refused beforehand, what `auto` leaves out, and what happens when memory is short."""

from __future__ import annotations

import logging
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import mapmrf
from mapmrf import Method, Status, datasets, images
from mapmrf.errors import OptionError, OutOfMemory, UnsupportedModel
from mapmrf.model.memory import (
    PROGRAM,
    RATES,
    MemoryBudget,
    MemoryWatch,
    Sizes,
    byte_count,
    footprint_of,
    is_lack_of_memory,
    model_bytes,
    resident_bytes,
)
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Progress
from mapmrf.run.registry import method_names
from refusals import refuses

LINUX = sys.platform == "linux"
GRID = datasets.grid(30, 30, 2.0)


# -- limits as they are written ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2G", 2e9),
        ("2g", 2e9),
        ("1.5 MB", 1.5e6),
        ("4KiB", 4096.0),
        (".5T", 5e11),
        ("700", 700.0),
        ("1e9", 1e9),
        (3, 3.0),
    ],
)
def test_limits_are_numbers_or_texts_with_units(text: str | float, size: float) -> None:
    assert byte_count(text) == size


@pytest.mark.parametrize("text", ["", "G", "-2G", "2X", "2 G B", 0, -1, math.nan, True, [2], "nan", "1e", "1e-9"])
def test_other_limits_are_refused_in_one_line(text: Any) -> None:
    refuses(OptionError, "expected a number of bytes above 0", mapmrf.solve, GRID, "icm", memory_limit=text)


def test_batches_refuse_a_bad_limit_before_anything_runs() -> None:
    refuses(OptionError, "memory_limit", mapmrf.solve_many, [GRID], "icm", memory_limit="much")


# -- estimates --------------------------------------------------------------------------------------------------------


def test_sizes_are_those_of_the_problem() -> None:
    graph = datasets.random_graph(40, 60, states=(1, 4), arity=(2, 4), hard=0.2, seed=3)
    problem, sizes = Problem.compile(graph), Sizes.of(graph)
    assert sizes.edge_states + 2 * sizes.binary_edges == problem.n_edge_states == sizes.few_edge_states
    assert sizes.binary_edges == sum(2 * batch.n for batch in problem.batches if batch.shape == (2, 2))
    assert sizes.configs == problem.n_configs
    assert sizes.large_configs == sum(batch.n * batch.n_configs for batch in problem.batches if batch.arity > 2)
    assert sizes.hard_configs == sum(batch.n * batch.n_configs for batch in problem.batches if batch.hard)


def test_every_method_of_the_package_has_an_estimate() -> None:
    others = {"exhaustive", "toulbar2"}  # some blocks of labellings; another process
    missing = [name for name in method_names() if mapmrf.methods()[name]().footprint(GRID) is None]
    assert set(missing) <= others
    assert set(RATES) <= set(method_names())


@pytest.mark.parametrize("name", method_names())
def test_estimates_grow_with_the_model(name: str) -> None:
    method = mapmrf.methods()[name]()
    small, large = (method.footprint(datasets.grid(side, side)) for side in (50, 200))
    if small is None or large is None:
        pytest.skip("no estimate")
    assert 0 < small < large < 300 * small


MEASURED = """
import sys
sys.path.insert(0, sys.argv[1])
import mapmrf, footprints, models as generated, numpy as np
from mapmrf import datasets
models = (
    lambda f: datasets.grid(int(270 * f), int(270 * f), 1.0, seed=5),
    lambda f: generated.noise(int(130 * f), 12, random=np.random.default_rng(5)),
    lambda f: generated.noise(int(350 * f), 20, "linear", random=np.random.default_rng(5)),
    lambda f: datasets.random_graph(int(20000 * f), int(40000 * f), (2, 3), (2, 4), seed=5),
    lambda f: datasets.random_graph(int(3000 * f), int(15000 * f), (8, 12), 2, seed=5),
)
for method in sys.argv[2:]:
    for make in models:
        graph = make(1.0)
        print(method, footprints.peak_of_solve(graph, method, 60.0), mapmrf.methods()[method]().footprint(graph))
"""


@pytest.mark.skipif(not LINUX, reason="peaks are read from /proc")
@pytest.mark.parametrize("name", ["trws", "lslp"])
def test_estimates_are_within_a_factor_of_three_of_measured_peaks_and_of_two_above_on_pictures(name: str) -> None:
    """On models of other sizes, labels, degrees and arities than those that the rates were fitted to."""
    folder = str(Path(__file__).parents[2] / "benches")
    done = subprocess.run([sys.executable, "-c", MEASURED, folder, name], capture_output=True, text=True, check=True)
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 5
    for k, (_, measured, estimated) in enumerate(lines):
        most = 2 if k in (1, 2) else 3  # the second and third are pictures
        assert float(measured) / 3 <= float(estimated) <= most * float(measured), done.stdout


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_the_figure_also_in_a_batch() -> None:
    large = datasets.grid(300, 300)
    with pytest.raises(
        UnsupportedModel, match=r"lp cannot solve this model: it takes about .* GB.*, the limit is 1 GB"
    ):
        mapmrf.solve(large, "lp", memory_limit="1G")
    with pytest.raises(UnsupportedModel, match="lp cannot solve"):
        mapmrf.solve(datasets.grid(300, 300), "icm", polish="lp", memory_limit="1G")
    small, large = mapmrf.solve_many([GRID, datasets.grid(300, 300)], "lp", memory_limit="1G")
    assert isinstance(small, mapmrf.Result)
    assert isinstance(large, UnsupportedModel)


def test_refused_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> None:
        raise AssertionError("compiled")

    monkeypatch.setattr(Problem, "compile", fail)
    with pytest.raises(UnsupportedModel):
        mapmrf.solve(datasets.grid(300, 300), "lp", memory_limit="1G")


def test_no_limit_where_infinity_is_given() -> None:
    budget = MemoryBudget.of(math.inf, 1e15)
    assert budget.refusal(1e18) is None


def test_by_default_the_limit_is_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.model.memory.machine_bytes", lambda: PROGRAM + 1e7)
    refuses(UnsupportedModel, r"lp .* this machine has 180 MB", mapmrf.solve, GRID, "lp")


def test_options_that_decide_about_memory_are_adapted() -> None:
    limit = PROGRAM + model_bytes(GRID) + (footprint_of("branch", GRID) or 0.0) + 64 * 2**20
    result = mapmrf.solve(GRID, "branch", memory_limit=limit, max_iterations=20)
    assert result.options["memory"] == pytest.approx(64.0)
    assert mapmrf.solve(GRID, "branch", memory_limit="1T", max_iterations=20).options["memory"] == 1024.0


# -- auto -------------------------------------------------------------------------------------------------------------


def test_auto_leaves_out_what_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    graph = datasets.random_graph(300, 700, states=(3, 5), arity=2, seed=1)
    relaxation = footprint_of("trws", graph)
    assert relaxation is not None
    tight = PROGRAM + model_bytes(graph) + 1.05 * relaxation
    with caplog.at_level(logging.INFO, "mapmrf"):
        result = mapmrf.solve(graph, memory_limit=tight, max_iterations=60)
    assert "auto continues without" in caplog.text
    assert result.value > -math.inf
    phases = {point.phase for point in result.trace}
    free = {point.phase for point in mapmrf.solve(graph, max_iterations=60).trace}
    assert phases - {"search"} < free  # the last phase says that nothing else fits


def test_auto_is_the_same_with_a_wide_limit() -> None:
    graph = datasets.random_graph(60, 150, states=(2, 4), arity=(2, 3), seed=2)
    wide, free = (mapmrf.solve(graph, memory_limit=limit, max_iterations=40) for limit in ("1T", math.inf))
    assert np.array_equal(wide.labels, free.labels)
    assert (wide.value, wide.bound) == (free.value, free.bound)


# -- memory that is short during a run --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hungry(Method):
    """Fails for lack of memory: in the step of this number, or at the start (0)."""

    name: ClassVar[str] = "hungry"
    max_iterations: int = 10
    fails_in: int = 3
    error: type[BaseException] = MemoryError

    def start(self, problem: Problem, seed: int, initial: Any) -> list[int]:
        if self.fails_in == 0:
            raise self.error
        return [0]

    def step(self, problem: Problem, state: list[int]) -> Progress:
        state[0] += 1
        if state[0] == self.fails_in:
            raise self.error
        return Progress(state[0], labels=np.zeros(problem.n_vars, dtype=np.int64))

    def answer(self, problem: Problem, state: list[int]) -> Answer:
        assert state[0] < self.fails_in, "nothing is asked of a run that broke off"
        return Answer()


def test_the_best_labelling_so_far_is_returned_when_memory_runs_out(caplog: pytest.LogCaptureFixture) -> None:
    result = mapmrf.solve(GRID, Hungry())
    assert result.status is Status.MEMORY_LIMIT
    assert result.value == max(GRID.value(np.zeros(GRID.n_vars, dtype=int)), GRID.value(GRID.unary_labels))
    assert caplog.text.count("out of memory") == 1


def test_without_a_labelling_it_is_one_clear_line_unless_one_is_given() -> None:
    refuses(OutOfMemory, r"^not enough memory for hungry on this model$", mapmrf.solve, GRID, Hungry(fails_in=0))
    start = np.ones(GRID.n_vars, dtype=int)
    result = mapmrf.solve(GRID, Hungry(fails_in=0), initial=start)
    assert result.status is Status.MEMORY_LIMIT
    assert result.value >= GRID.value(start)
    (short,) = mapmrf.solve_many([GRID], Hungry(fails_in=0))
    assert isinstance(short, OutOfMemory)


def test_a_kernel_that_cannot_allocate_raises_a_memory_error() -> None:
    """What numba raises is what the loop catches."""
    import numba

    @numba.njit
    def take(n: int) -> float:
        return np.empty(n)[0]

    with pytest.raises(MemoryError):
        take(1 << 50)


@pytest.mark.skipif(not LINUX, reason="resident memory is read from /proc")
def test_a_run_that_outgrows_the_limit_ends_with_its_best_labelling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.clock.MemoryWatch", lambda most: MemoryWatch(-1.0))
    result = mapmrf.solve(GRID, Hungry(fails_in=99))
    assert result.status is Status.MEMORY_LIMIT
    assert result.iterations == 1
    assert result.value == GRID.value(result.labels)


@pytest.mark.skipif(not LINUX, reason="resident memory is read from /proc")
def test_the_watch_reads_the_memory_of_this_process() -> None:
    assert resident_bytes() > 1e7
    watch = MemoryWatch(5e7)
    assert not watch.is_over
    taken = np.ones(10**7)
    watch._next = 0.0
    assert watch.is_over
    del taken


def test_what_counts_as_lack_of_memory() -> None:
    assert is_lack_of_memory(MemoryError())
    assert is_lack_of_memory(OSError(12, "Cannot allocate memory"))
    assert not is_lack_of_memory(OSError(2, "No such file"))
    assert not is_lack_of_memory(ValueError())


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    random, path = np.random.default_rng(0), tmp_path_factory.mktemp("memory") / "grid.uai"
    mapmrf.write(images.grid_model(random.random((70, 70, 4)), weight=0.4), path)
    return path


def run(*words: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mapmrf", *map(str, words)]
    if limit is not None:
        command = ["bash", "-c", f'ulimit -v {limit}; exec "$@"', "bash", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def test_the_command_refuses_in_one_line(model: Path) -> None:
    done = run("solve", model, "-m", "lp", "--memory-limit", "250M")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "the limit is 250 MB" in done.stderr


@pytest.mark.skipif(not LINUX, reason="ulimit")
@pytest.mark.parametrize("limit", [120_000, 420_000, 650_000])
@pytest.mark.parametrize("method", ["lp", "trws"])
def test_under_a_limit_of_address_space_there_is_an_answer_or_one_line(model: Path, limit: int, method: str) -> None:
    """Never a traceback, and never a crash: LLVM and BLAS end the process where they get no memory."""
    done = run("solve", model, "-m", method, "--time-limit", 2, "-q", limit=limit)
    lines = done.stderr.splitlines()
    assert done.returncode in (0, 2), done.stderr
    assert len(lines) <= 1 and all(line.startswith("mapmrf: ") for line in lines), done.stderr
