"""Many models and many rows of evidence: order, errors in place, interrupts, and the same answers wherever they run."""

from __future__ import annotations

import gc
import gzip
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from clocks import LIMIT, Clock, wait_until
from command_line import opened
from mapmrf import FactorGraph, FormatError, MapMRFError, Method, Names, OptionError, Result, Status, UnknownName
from mapmrf.batch import NotSolved, read_rows, solve_rows, solve_stream
from mapmrf.batch.many import PackedModel
from mapmrf.model.problem import Problem
from mapmrf.run.clock import wait_for_all
from mapmrf.run.method import Answer, Progress, Start
from refusals import refuses
from strategies import any_recipes, brute_force, random_recipe, with_weights


@dataclass(frozen=True)
class Odd(Method):
    """A method that does what its mode says to models of three variables, and is done at once with all others."""

    name: ClassVar[str] = "odd"
    title: ClassVar[str] = "misbehaves"

    max_iterations: int = 10**9
    mode: str = "endless"
    mark: str = ""
    """A file that is made when a run is under way."""

    def start(self, problem: Problem, seed: int, initial: Start) -> list[int]:
        return [0]

    def step(self, problem: Problem, state: list[int]) -> Progress:
        if problem.graph.n_vars != 3:
            return Progress(1, finished=Status.CONVERGED)
        if self.mode == "dies":
            os._exit(7)
        if self.mode == "fails":
            raise ZeroDivisionError("a bug")
        if self.mode == "swallows":
            raise MemoryError
        state[0] += 1
        if self.mark and (state[0] == 2 or self.mode == "stuck"):
            Path(self.mark).touch()
        time.sleep(1000 if self.mode == "stuck" else 0.01)
        return Progress(1)

    def answer(self, problem: Problem, state: list[int]) -> Answer:
        return Answer()


def small(n: int, seed: int = 5) -> list[FactorGraph]:
    return [random_recipe(seed + k, 5, 6).graph() for k in range(n)]


def blank(n_vars: int) -> FactorGraph:
    return FactorGraph.from_tables([2] * n_vars, [], [])


def same(one: Any, other: Any) -> bool:
    """Whether two outcomes agree in all but the time they took."""
    if isinstance(one, MapMRFError):
        return type(one) is type(other) and str(one) == str(other)
    figures = [(r.value, r.bound, r.status, r.iterations, r.seed, r.method) for r in (one, other)]
    return figures[0] == figures[1] and np.array_equal(one.labels, other.labels)


def interrupt_when(condition: Callable[[], bool]) -> None:
    """Press Ctrl-C as soon as something holds, and the batch, not the test, is waiting."""

    def press() -> None:
        wait_until(lambda: condition() and signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()


# -- files and graphs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 3])
def test_files_and_graphs_come_back_in_order(jobs: int, tmp_path: Path) -> None:
    graphs = small(6)
    models: list[Any] = list(graphs)
    for k in (1, 4):
        models[k] = tmp_path / f"{k}.LG"
        mapmrf.write(graphs[k], models[k])
    models[4] = str(models[4])
    results = mapmrf.solve_many(iter(models), "exhaustive", jobs=jobs)
    assert mapmrf.solve_many([], "icm", jobs=jobs) == []
    assert [result.value for result in results] == pytest.approx([brute_force(graph)[0] for graph in graphs])


def test_errors_stand_in_their_place_and_name_the_file(tmp_path: Path) -> None:
    (tmp_path / "bad.uai").write_text("MARKOV 2")
    mapmrf.write(random_recipe(1, 5, 5).graph(), tmp_path / "large.LG")
    models = [blank(1), tmp_path / "bad.uai", tmp_path / "absent.uai", tmp_path / "large.LG", blank(2)]
    first, bad, absent, large, last = mapmrf.solve_many(models, "exhaustive", jobs=2, max_labellings=4)
    assert isinstance(first, Result) and isinstance(last, Result)
    assert isinstance(bad, FormatError) and "bad.uai" in str(bad)
    assert isinstance(absent, FormatError) and "absent.uai" in str(absent)
    assert isinstance(large, mapmrf.UnsupportedModel)
    assert str(large).startswith(f"{tmp_path / 'large.LG'}: exhaustive cannot solve")


@pytest.mark.parametrize(("mode", "says"), [("fails", "ZeroDivisionError: a bug"), ("swallows", "not enough memory")])
def test_what_nobody_expects_does_not_stop_the_rest(mode: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    first, odd, last = mapmrf.solve_many([blank(2), blank(3), blank(2)], Odd(mode=mode))
    assert isinstance(first, Result) and isinstance(last, Result)
    assert isinstance(odd, MapMRFError) and says in str(odd)
    assert mode != "fails" or isinstance(odd.__cause__, ZeroDivisionError)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_models_are_taken_one_by_one() -> None:
    """A model lives only as long as it is being solved."""
    alive: list[int] = []

    def models() -> Iterator[FactorGraph]:
        seen: list[weakref.ref[FactorGraph]] = []
        for k in range(4):
            gc.collect()
            alive.append(sum(ref() is not None for ref in seen))
            graph = random_recipe(k, 5, 6).graph()
            seen.append(weakref.ref(graph))
            yield graph
            del graph

    assert len(mapmrf.solve_many(models(), "exhaustive")) == 4
    assert max(alive) <= 2


def test_what_the_source_raises_reaches_the_caller() -> None:
    def models() -> Iterator[FactorGraph]:
        yield blank(1)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        mapmrf.solve_many(models(), "icm", jobs=2)


def test_results_come_while_later_models_wait() -> None:
    asked: list[int] = []
    gate = threading.Event()

    def models() -> Iterator[FactorGraph]:
        for k in range(3):
            if k == 2:
                gate.wait(60)
            asked.append(k)
            yield blank(1)

    stream = solve_stream(models(), "icm")
    next(stream)
    next(stream)
    assert asked == [0, 1]
    gate.set()
    assert len(list(stream)) == 1


def test_a_stream_that_is_left_ends_its_runs() -> None:
    before = threading.active_count()
    stream = solve_stream([blank(1), blank(3), blank(3)], Odd(), jobs=2)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    wait_until(lambda: threading.active_count() <= before)


def test_seeds_belong_to_their_models() -> None:
    graph = random_recipe(3, 6, 12).graph()
    results = mapmrf.solve_many([graph] * 3, "icm", seeds=[4, 5, 6], starts=3, jobs=2)
    assert all(same(result, mapmrf.solve(graph, "icm", seed=4 + k, starts=3)) for k, result in enumerate(results))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jobs": 0}, "jobs is 0"),
        ({"stars": 3}, "did you mean 'starts'"),
        ({"time_limit": -1.0}, "time_limit is -1"),
        ({"threads": 0}, "threads is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seeds": [1]}, "1 seeds, expected one for each of the 2 models"),
        ({"seeds": [1, -2]}, "seed is -2"),
        ({"seeds": [1, 2], "seed": 3}, "seed and seeds"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(options: dict[str, Any], says: str) -> None:
    refuses(OptionError, says, solve_stream, [blank(1), blank(1)], "icm", **options)


def test_what_turns_out_later_is_refused_then() -> None:
    source = iter([blank(1), blank(1)])
    refuses(OptionError, "1 seeds, expected one for each model", mapmrf.solve_many, source, "icm", seeds=[1])
    said = "backend='nonsense', expected threads, processes or a joblib backend"
    refuses(OptionError, said, mapmrf.solve_many, [blank(1)], "icm", backend="nonsense")


def test_evidence_holds_for_every_model(tmp_path: Path) -> None:
    (tmp_path / "seen.evid").write_text("1 0 0")
    mapmrf.write(blank(2), tmp_path / "two.uai")
    graph = FactorGraph.from_tables([2, 2], [(0,)], [[0.0, 1.0]])
    for evidence in ({0: 0}, tmp_path / "seen.evid"):
        found = mapmrf.solve_many([graph, tmp_path / "two.uai"], "exhaustive", evidence=evidence)
        assert [result.labels[0] for result in found] == [0, 0]


def test_the_time_limit_is_that_of_each_model(clock: Clock) -> None:
    results = mapmrf.solve_many([blank(3)] * 3, Odd(), time_limit=LIMIT, callback=clock.pass_limit)
    assert [(result.status, result.iterations) for result in results] == [(Status.TIME_LIMIT, 1)] * 3


def test_progress_is_silent_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    mapmrf.solve_many(small(2), "icm", progress=True)
    assert capfd.readouterr() == ("", "")


# -- where it runs ----------------------------------------------------------------------------------------------------


def test_what_is_sent_survives_it() -> None:
    graph = random_recipe(2, 5, 6, hard=0.2).graph()
    labels = np.zeros(5, dtype=np.int64)
    _ = graph.stride, graph.var_ptr
    packed = PackedModel.pack(graph)
    assert packed.data.nbytes < len(pickle.dumps(graph))
    back = pickle.loads(pickle.dumps(packed)).unpack()
    assert isinstance(back, FactorGraph)
    assert back.value(labels) == graph.value(labels)
    assert not any(array.flags.writeable for array in (back.card, back.theta_v, back.scope, back.theta_t))
    assert pickle.loads(pickle.dumps(mapmrf.ICM(starts=3))) == mapmrf.ICM(starts=3)
    result = mapmrf.solve(graph, "trws")
    assert same(pickle.loads(pickle.dumps(result)), result)


def assert_same_as_threads(backend: str, tmp_path: Path, jobs: int = 2) -> None:
    models: list[Any] = small(5)
    models.insert(2, tmp_path / "absent.uai")
    mapmrf.write(models[0], tmp_path / "first.LG")
    models.append(tmp_path / "first.LG")
    here = mapmrf.solve_many(models, "trws", seed=3)
    there = mapmrf.solve_many(models, "trws", seed=3, jobs=jobs, backend=backend)
    assert [isinstance(outcome, Result) for outcome in here] == [True, True, False, True, True, True, True]
    assert all(same(one, other) for one, other in zip(here, there, strict=True))
    rows = [{0: 0}, {1: 0}, {}]
    here, there = solve_rows(models[0], rows, "trws"), solve_rows(models[0], rows, "trws", backend=backend)
    assert all(same(one, other) for one, other in zip(here, there, strict=True))


@pytest.mark.parametrize(
    ("backend", "jobs"), [("processes", 2), ("loky", 2), ("loky", 1), ("threading", 2), ("sequential", 1)]
)
def test_every_backend_gives_the_same_answers(backend: str, jobs: int, tmp_path: Path) -> None:
    assert_same_as_threads(backend, tmp_path, jobs)


@pytest.mark.parametrize("processes", [False, True])
def test_a_dask_cluster_gives_the_same_answers(processes: bool, tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=1 + (not processes), threads_per_worker=1, processes=processes, dashboard_address=None
    )
    with cluster, distributed.Client(cluster):
        assert_same_as_threads("dask", tmp_path)


@pytest.mark.parametrize(("backend", "jobs"), [("processes", 1), ("loky", 2)])
def test_a_process_that_dies_takes_one_model_along(backend: str, jobs: int) -> None:
    models = [blank(2), blank(3), blank(2), blank(4), blank(2)]
    first, odd, *rest = mapmrf.solve_many(models, Odd(mode="dies"), jobs=jobs, backend=backend)
    assert isinstance(first, Result) and len(rest) == 3 and all(isinstance(result, Result) for result in rest)
    assert isinstance(odd, MapMRFError) and "the process that solved this model died with EXIT(7)" in str(odd)


def test_what_cannot_be_sent_is_said_in_its_place() -> None:
    lock = threading.Lock()
    (outcome,) = mapmrf.solve_many([blank(2)], "icm", backend="processes", callback=lambda *_: lock.locked())
    assert isinstance(outcome, OptionError)
    assert "cannot be sent to a process: " in str(outcome) and "lock" in str(outcome)


# -- interrupts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["threads", "processes"])
def test_ctrl_c_keeps_what_is_there(backend: str, tmp_path: Path) -> None:
    """Done, running, waiting as a graph, waiting as a file."""
    mapmrf.write(blank(3), tmp_path / "later.uai")
    mark = tmp_path / "mark"
    stream = solve_stream([blank(2), blank(3), blank(3), tmp_path / "later.uai"], Odd(mark=str(mark)), backend=backend)
    done = next(stream)
    interrupt_when(mark.exists)
    running, waiting, unread = stream
    assert done.status is Status.CONVERGED
    assert (running.status, waiting.status) == (Status.INTERRUPTED, Status.INTERRUPTED)
    assert (running.iterations, waiting.iterations) == (1, 0)
    assert isinstance(unread, NotSolved) and "later.uai" in str(unread)


def test_ctrl_c_ends_a_process_that_does_not_come_back(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    interrupt_when(mark.exists)
    (result,) = mapmrf.solve_many([blank(3)], Odd(mode="stuck", mark=str(mark)), backend="processes")
    assert (result.status, result.iterations) == (Status.INTERRUPTED, 0)


@pytest.mark.parametrize(("backend", "jobs"), [("threading", 2), ("sequential", 1)])
def test_ctrl_c_ends_a_batch_of_joblib(backend: str, jobs: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    stream = solve_stream([blank(2), *[blank(3)] * 4], Odd(mark=str(mark)), backend=backend, jobs=jobs)
    done = next(stream)
    interrupt_when(mark.exists)
    rest = list(stream)
    assert done.status is Status.CONVERGED
    assert [result.status for result in rest] == [Status.INTERRUPTED] * 4


@pytest.mark.parametrize("jobs", [1, 2])
def test_ctrl_c_gives_up_what_does_not_return(jobs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a task waits for: here, that somebody writes the file that it reads."""
    monkeypatch.setattr("mapmrf.run.pool.PATIENCE", 0.5)
    pipes = [tmp_path / f"{k}.uai" for k in range(jobs)]
    for pipe in pipes:
        os.mkfifo(pipe)
    writers: list[int] = []

    def interrupt() -> None:
        writers.extend(map(opened, pipes))
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    outcomes = mapmrf.solve_many([*pipes, blank(2)], "icm", jobs=jobs)
    thread.join()
    for writer in writers:  # the readers find an empty file, and end
        os.close(writer)
    wait_for_all()
    assert all(isinstance(outcome, NotSolved) for outcome in outcomes[:-1])
    assert outcomes[-1].status is Status.INTERRUPTED


ORPHANING = """
import os, signal
import mapmrf
def killed(point, labels):
    os.kill(os.getppid(), signal.SIGKILL)
graphs = [mapmrf.datasets.grid(5, 5, seed=k) for k in range(8)]
mapmrf.solve_many(graphs, "icm", jobs=2, backend="processes", callback=killed)
"""


def test_processes_end_with_a_program_that_is_killed() -> None:
    """They would keep its standard output open."""
    process = subprocess.run([sys.executable, "-c", ORPHANING], stdout=subprocess.PIPE, timeout=200)
    assert process.returncode == -signal.SIGKILL


def test_after_ctrl_c_a_source_without_length_is_asked_no_more(tmp_path: Path) -> None:
    asked: list[int] = []

    def models() -> Iterator[FactorGraph]:
        for k in range(1000):
            asked.append(k)
            yield blank(3)

    mark = tmp_path / "mark"
    interrupt_when(lambda: len(asked) == 2 and mark.exists())
    results = mapmrf.solve_many(models(), Odd(mark=str(mark)), jobs=2)
    assert [result.status for result in results] == [Status.INTERRUPTED] * 2
    assert asked == [0, 1]


# -- rows of evidence -------------------------------------------------------------------------------------------------

NAMES = Names(("rain", "grass", "2"), (("no", "yes"), ("dry", "wet", "1"), ("a", "b")))


@pytest.fixture
def named() -> FactorGraph:
    recipe = random_recipe(11, 3, 0)
    rng = np.random.default_rng(2)
    recipe.card = [2, 3, 2]
    recipe.add((0, 1), rng.normal(size=(2, 3)))
    recipe.add((1, 2), rng.normal(size=(3, 2)))
    return FactorGraph.from_tables(recipe.card, recipe.scopes, recipe.tables, names=NAMES)


@given(with_weights(any_recipes()), st.integers(0, 2**32 - 1))
def test_rows_are_conditioned_models(recipe: Any, seed: int) -> None:
    graph, rng = recipe.graph(), np.random.default_rng(seed)
    rows = [{i: int(rng.integers(graph.card[i])) for i in range(graph.n_vars) if rng.random() < 0.4} for _ in range(3)]
    for row, result in zip(rows, solve_rows(graph, rows, "exhaustive"), strict=True):
        best, _ = brute_force(graph.condition(row))  # type: ignore[arg-type]
        assert isinstance(result, Result)
        assert result.value == (pytest.approx(best) if best > -math.inf else -math.inf)
        assert best == -math.inf or all(result.labels[i] == k for i, k in row.items())


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".csv.gz", ".txt"])
def test_tables_are_read_from_files(named: FactorGraph, suffix: str, tmp_path: Path) -> None:
    text = "\ufeffgrass,rain,2\r\nwet,1,\r\n\r\n ,, b\r\n1,no,0\r\n"
    text = {".tsv": text.replace(",", "\t"), ".txt": text.replace(",", ";")}.get(suffix, text)
    data = text.encode()
    (tmp_path / f"rows{suffix}").write_bytes(gzip.compress(data) if suffix.endswith("gz") else data)
    # The third state of grass is named "1"; a name counts before an index.
    assert read_rows(tmp_path / f"rows{suffix}", named) == [{1: 1, 0: 1}, {2: 1}, {1: 2, 0: 0, 2: 0}]


def test_tables_are_lists_of_dicts_or_columns(named: FactorGraph) -> None:
    expected = [{1: 1, 0: 1}, {2: 1}, {1: 2}]
    assert read_rows([{"grass": "wet", 0: 1}, {2: "b"}, {1: 2, "rain": None}], named) == expected
    columns = {"grass": ["wet", float("nan"), 2.0], 0: [np.int64(1), None, ""], "2": [None, 1.0, np.nan]}
    assert read_rows(columns, named) == expected
    assert read_rows([], named) == []
    assert read_rows({}, named) == []


def test_a_data_frame_is_a_mapping_of_columns(named: FactorGraph) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"grass": ["wet", None], "rain": pandas.array([1, None], dtype="Int64")})
    assert read_rows(frame, named) == [{1: 1, 0: 1}, {}]


def test_bad_rows_stand_in_their_place(named: FactorGraph, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("rain,grass\nyes,wet\nmaybe,wet\nyes\nno,3\n,-1\n,1.5\n")
    good, *bad = solve_rows(named, tmp_path / "rows.csv", "exhaustive")
    assert isinstance(good, Result)
    says = [
        "rows.csv: line 3: found state 'maybe' of variable rain, expected 0 to 1 or one of no, yes",
        "rows.csv: line 4: found 1 cells, expected 2",
        "rows.csv: line 5: found state '3' of variable grass, expected 0 to 2 or one of dry, wet, 1",
        "line 6: found state '-1'",
        "line 7: found state '1.5'",
    ]
    assert all(isinstance(error, FormatError) and text in str(error) for error, text in zip(bad, says, strict=True))
    (error,) = solve_rows(named, [{"rain": "maybe"}], "exhaustive")
    assert "evidence: row 0: found state 'maybe'" in str(error)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rian\n1\n", r"column 'rian' is not a variable, expected a name or 0 to 2, did you mean 'rain'\?"),
        ("7\n1\n", "column '7' is not a variable"),
        ("rain,0\n1,1\n", "columns 'rain' and '0' are the same variable"),
        ("", "found no columns"),
        ("rain\n\x00", "rows.csv"),
    ],
)
def test_bad_tables_are_refused_at_once(named: FactorGraph, text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(text)
    outcome: Any = None
    try:
        outcome = solve_rows(named, tmp_path / "rows.csv", "exhaustive")[0]
    except (FormatError, UnknownName) as error:
        outcome = error
    with pytest.raises((FormatError, UnknownName), match=says):
        raise outcome


def test_bad_columns_are_refused_at_once(named: FactorGraph, tmp_path: Path) -> None:
    refuses(FormatError, "columns of 1 to 2 values", read_rows, {"rain": [0], "grass": [0, 1]}, named)
    refuses(UnknownName, r"expected 0 to 1$", read_rows, [{"x": 0}], blank(2))
    (tmp_path / "latin.csv").write_bytes(b"rain\n\xe9\n")
    refuses(FormatError, "not UTF-8", read_rows, tmp_path / "latin.csv", named)
    refuses(FormatError, r"absent\.csv", read_rows, tmp_path / "absent.csv", named)


def test_rows_take_seeds_and_jobs(named: FactorGraph) -> None:
    rows = [{"rain": 0}, {}, {"grass": "wet", "rain": "yes"}]
    results = solve_rows(named, rows, "icm", seeds=[3, 4, 5], jobs=2, starts=4)
    assert [result.seed for result in results] == [3, 4, 5]
    assert results[2].assignment["grass"] == "wet"
    refuses(OptionError, "2 seeds, expected one for each of the 3", solve_rows, named, rows, "icm", seeds=[3, 4])
