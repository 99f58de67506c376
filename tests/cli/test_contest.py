"""Competition mode: the calls, variables, files and limits of the rules, and a file that is whole at every moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

import command_line
import mapmrf
from benchmark_models import FOLDER
from mapmrf import FactorGraph, OptionError, Status
from mapmrf.cli.contest import Contest, ContestClock, ContestRun, contest_from, process_age
from mapmrf.datasets import grid
from mapmrf.formats.solution import read_solution
from refusals import refuses
from strategies import brute_force

EXAMPLES = FOLDER.parent / "examples"

T3 = "MARKOV 3  2 3 2  3  1 0  2 0 1  2 2 1  2 1 1.6487  6 1 2.1 3 4 5 6.2  6 1 0 2.3 1.1 3 1.7"
"""No two labellings are worth the same but those that are forbidden."""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules put the result into the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "t3.uai").write_text(T3)


def run(*args: object, **environ: str) -> Result:
    return command_line.run("uai", *args, env=environ)


def started(*args: object, code: str = "main()", environ: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """A process, as only there limits and signals are real."""
    return command_line.started(code, "uai", *args, env=environ)


def blocks(path: Path | str) -> list[str]:
    """The blocks of a result file, which must begin with the task."""
    task, _, rest = Path(path).read_text().partition("\n")
    assert task in ("MPE", "MAP")
    return rest.split("-BEGIN-\n")


# -- what is asked for ------------------------------------------------------------------------------------------------


def test_the_calls_of_2014_2010_and_2011() -> None:
    contest = contest_from(["nets/t3.uai", "t3.evid", "t3.query", "mpe"], {"INF_TIME": "60", "INF_MEMORY": "2.5"})
    assert contest == Contest("nets/t3.uai", "t3.evid", "t3.uai.MPE", seconds=60.0, memory=2.5e9)
    contest = contest_from(["t3.uai", "", "", "MPE"], {"INF_TIME": "inf", "INF_MEMORY": "inf"})
    assert (contest.seconds, contest.memory) == (None, None)
    contest = contest_from(["t3.uai", "t3.evid", "12", "MPE"], {"UAI_TIME": "20", "UAI_MEMORY": "4"})
    assert contest == Contest("t3.uai", "t3.evid", "t3.uai.MPE", style="2010", seed=12, seconds=20.0, memory=4e9)
    Path("12").touch()  # a query may have any name
    assert contest_from(["t3.uai", "t3.evid", "12", "MPE"], {}).style == "2014"


def test_the_variables_of_2022() -> None:
    environ = {"MODEL": "/x/t3.uai", "EVID": "/x/t3.evid", "QUERY": "", "TIMESEC": "20", "MEMKB": "8000000"}
    contest = contest_from([], {**environ, "RESULT": "/y/out.uai.MPE"})
    assert contest == Contest("/x/t3.uai", "/x/t3.evid", "/y/out.uai.MPE", seconds=20.0, memory=8e9)
    assert contest_from([], environ).result == "t3.uai.MPE"
    assert contest_from([], {**environ, "RESULT": "answer.MAP"}).task == "MAP"
    assert contest_from([], {**environ, "RESULT": "answer.txt"}).task == "MPE"


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        ([], {}, "neither arguments nor the variable MODEL"),
        ([], {"MODEL": "t3.uai", "RESULT": "t3.uai.MMAP"}, "task MMAP is not supported"),
        (["t3.uai", "", ""], {}, "found 3 arguments"),
        (["t3.uai", "", "", "PR"], {}, "task PR is not supported by mapmrf, expected MPE or MAP"),
        (["t3.uai", "", "", "mar"], {}, "task MAR is not supported"),
        (["t3.uai", "", "", "MMAP"], {}, "task MMAP is not supported"),
        (["t3.uai", "", "", "MPEG"], {}, "found task 'MPEG', expected MPE or MAP"),
        (["t3.uai", "", "", "MPE"], {"INF_TIME": "soon"}, "INF_TIME: found 'soon', expected a number above 0"),
        (["t3.uai", "", "", "MPE"], {"INF_MEMORY": "-1"}, "INF_MEMORY: found '-1'"),
        (["t3.uai", "", "", "MPE"], {"TIMESEC": "nan"}, "TIMESEC: found 'nan'"),
    ],
)
def test_what_makes_no_sense_is_one_line(arguments: list[str], environ: dict[str, str], says: str) -> None:
    refuses(OptionError, says, contest_from, arguments, environ)
    result = run(*arguments, **environ)
    assert (result.exit_code, result.stdout) == (2, "")
    assert len(result.stderr.splitlines()) == 1 and says in result.stderr
    assert os.listdir() == ["nets"]


# -- files ------------------------------------------------------------------------------------------------------------


def best_of_t3(**evidence: int) -> tuple[float, list[int]]:
    graph = mapmrf.read("nets/t3.uai", evidence={int(name[1:]): state for name, state in evidence.items()})
    value, labels = brute_force(graph)
    return value, list(labels)


def test_the_result_is_where_and_what_the_rules_say() -> None:
    Path("t3.evid").write_text("1 0 0")
    result = run("nets/t3.uai", "t3.evid", "t3.query", "MPE", "-m", "exhaustive")
    assert (result.exit_code, result.stderr) == (0, "")
    value, labels = best_of_t3(x0=0)
    assert result.stdout == f"t3.uai.MPE: log potential {value:.6f}, bound {value:.6f}, optimal\n"
    assert blocks("t3.uai.MPE")[-1].split() == ["3", *map(str, labels)]
    assert read_solution("t3.uai.MPE", 3).tolist() == labels


def test_layouts_tasks_and_variables_of_all_years() -> None:
    assert run("nets/t3.uai", "", "0", "MPE", "-m", "exhaustive").exit_code == 0
    labels = best_of_t3()[1]
    assert blocks("t3.uai.MPE")[-1].split() == ["1", "3", *map(str, labels)]
    assert read_solution("t3.uai.MPE", 3).tolist() == labels
    assert run("nets/t3.uai", "", "", "MAP", "-m", "exhaustive").exit_code == 0
    assert Path("t3.uai.MAP").read_text().startswith("MAP\n3 ")
    assert read_solution("t3.uai.MAP", 3).tolist() == best_of_t3()[1]
    Path("out").mkdir()
    result = run("-m", "exhaustive", MODEL="nets/t3.uai", RESULT="out/t3.uai.MPE")
    assert result.exit_code == 0
    assert read_solution("out/t3.uai.MPE", 3).tolist() == best_of_t3()[1]


def test_samples_of_evidence_in_2010_and_since_2014() -> None:
    Path("t3.evid").write_text("3\n1 0 0\n1 0 1\n2 1 2 2 1\n")
    assert run("nets/t3.uai", "t3.evid", "7", "MPE", "-m", "exhaustive").exit_code == 0
    lines = Path("t3.uai.MPE").read_text().splitlines()
    samples: list[dict[str, int]] = [{"x0": 0}, {"x0": 1}, {"x1": 2, "x2": 1}]
    assert lines[:2] == ["MPE", "3"]
    assert [line.split()[1:] for line in lines[2:]] == [[str(k) for k in best_of_t3(**one)[1]] for one in samples]
    Path("t3.evid").write_text("2\n1 0 0\n1 0 1\n")
    result = run("nets/t3.uai", "t3.evid", "t3.query", "MPE", "-m", "exhaustive")
    assert result.exit_code == 0 and "2 samples of evidence, only the first is used" in result.stderr
    assert read_solution("t3.uai.MPE", 3).tolist() == best_of_t3(x0=0)[1]


@pytest.mark.parametrize("text", [None, "", "0", " 0\n"])
def test_no_evidence_is_no_evidence(text: str | None) -> None:
    if text is not None:
        Path("t3.evid").write_text(text)
    result = run("nets/t3.uai", "t3.evid", "absent.query", "MPE", "-m", "exhaustive")
    assert result.exit_code == 0
    assert ("t3.evid: no such file" in result.stderr) == (text is None)
    assert read_solution("t3.uai.MPE", 3).tolist() == best_of_t3()[1]


def test_options_stand_in_for_rules() -> None:
    options = ["-m", "icm", "--set", "starts=3", "--seed", 4, "-o", "other.MPE"]
    assert run("nets/t3.uai", "", "9", "MPE", *options).exit_code == 0
    expected = mapmrf.solve(mapmrf.read("nets/t3.uai"), "icm", seed=4, starts=3)
    assert read_solution("other.MPE", 3).tolist() == expected.labels.tolist()
    assert "did you mean 'starts'" in run("nets/t3.uai", "", "", "MPE", "-m", "icm", "--set", "stars=3").stderr


def test_bad_files_are_one_line_and_leave_no_result() -> None:
    Path("bad.uai").write_text("MARKOV 2")
    Path("bad.evid").write_text("1 7 0")
    for arguments in (["bad.uai", ""], ["absent.uai", ""], ["nets/t3.uai", "bad.evid"]):
        result = run(*arguments, "", "MPE")
        assert (result.exit_code, result.stdout) == (2, "")
        assert len(result.stderr.splitlines()) == 1
    assert "absent" in run("nets/t3.uai", "", "", "MPE", "-o", "absent/t3.MPE").stderr
    assert not list(Path().glob("*.MPE"))


def test_an_infeasible_model_has_its_own_code() -> None:
    Path("none.uai").write_text("MARKOV 2  2 2  1  2 0 1  4  0 0 0 0")
    result = run("none.uai", "", "", "MPE", "-m", "exhaustive")
    assert result.exit_code == 3 and result.stdout.endswith("infeasible\n")


@pytest.mark.data
@pytest.mark.skipif(not EXAMPLES.is_dir(), reason=f"no example files in {EXAMPLES}")
@pytest.mark.parametrize(("evidence", "third"), [("t3.uai.evid", "q"), ("t3.2010.evid", "0"), ("", "q")])
def test_the_example_files(evidence: str, third: str) -> None:
    model, path = EXAMPLES / "t3.uai", EXAMPLES / evidence if evidence else ""
    assert run(model, path, third, "MPE").exit_code == 0
    graph = mapmrf.read(model, evidence=path or None)
    assert graph.value(read_solution("t3.uai.MPE", graph)) == pytest.approx(brute_force(graph)[0])
    if not evidence:
        assert read_solution("t3.uai.MPE", 3).tolist() == read_solution(EXAMPLES / "t3.uai.MPE", 3).tolist()


# -- better and better ------------------------------------------------------------------------------------------------


def entry(graph: FactorGraph, writing_share: float = 0.1, **fields: object) -> ContestRun:
    mapmrf.write(graph, "model.LG")
    contest = Contest("model.LG", None, "model.MPE", **fields)  # type: ignore[arg-type]
    made = ContestRun(contest, ContestClock(None, 0.0), writing_share)
    made.read()
    return made


def test_every_block_is_better_than_the_one_before() -> None:
    graph = grid(8, 8, coupling=2.0, seed=3)
    made = entry(graph)
    (result,) = made.run(mapmrf.ICM(starts=30))
    made.close()
    values = [graph.value([int(k) for k in block.split()[1:]]) for block in blocks("model.MPE")]
    assert len(values) > 2
    assert values == sorted(set(values))
    assert values[-1] == pytest.approx(result.value) == pytest.approx(made.values[0])


def test_solutions_that_wait_are_written_in_the_end() -> None:
    """When writing takes too much of the time, only some solutions are written, but the last always is."""
    made = entry(grid(8, 8, coupling=2.0, seed=3), writing_share=-1.0)
    made.offer(0, np.zeros(64, dtype=np.int64), made.values[0] - 1.0)
    assert len(blocks("model.MPE")) == 1
    made.run(mapmrf.ICM(starts=30))
    assert len(blocks("model.MPE")) == 2
    assert read_solution("model.MPE", 64).tolist() == made.labels[0].tolist()


def test_claims_are_checked() -> None:
    made = entry(grid(3, 3, seed=1))
    before = made.labels[0].tolist()
    worse = np.array([1 - k for k in before])
    assert made.graphs[0].value(worse) < made.values[0]
    made.offer(0, worse, 1e9)
    assert made.labels[0].tolist() == before


def test_with_time_left_a_method_starts_again_with_another_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    seeds, starts = [], []
    solve = mapmrf.run.solve.solve

    def told(graph, method, *, seed, initial, **options):  # type: ignore[no-untyped-def]
        seeds.append(seed)
        starts.append(initial is not None)
        if len(seeds) == 4:
            made.clock.seconds = 0.0
        return solve(graph, method, seed=seed, initial=initial, **options)

    monkeypatch.setattr("mapmrf.run.solve.solve", told)
    made = entry(grid(4, 4, coupling=3.0, seed=2), seed=5)
    made.contest = Contest("model.LG", None, "model.MPE", seed=5, seconds=1e6)
    made.clock = ContestClock(1e6, 0.0)
    (result,) = made.run(mapmrf.ICM(starts=2))
    assert seeds == [5, 6, 7, 8]
    assert starts == [False, True, False, True]
    assert result.options["max_iterations"] >= 10**9
    del seeds[:]
    (result,) = made.run(mapmrf.methods()["exhaustive"]())
    assert (len(seeds), result.status) == (1, Status.OPTIMAL)


def test_the_limits_reach_the_method_unless_it_has_its_own() -> None:
    def options(method: str, **given: object) -> Mapping[str, object]:
        made = entry(grid(2, 2), seconds=1e-3, memory=1e8)
        (result,) = made.run(mapmrf.methods()[method](**given), given)
        return result.options

    assert options("branch")["memory"] == 50.0
    assert options("branch", memory=7.0)["memory"] == 7.0
    assert options("icm", max_iterations=3)["max_iterations"] == 3
    assert options("icm")["max_iterations"] == 10**9  # the time limit ends it


# -- limits -----------------------------------------------------------------------------------------------------------


def test_the_clock_keeps_a_margin() -> None:
    clock = ContestClock(1e6, 100.0)
    left, last = clock.left(), clock.last()
    assert left is not None and last is not None
    assert 1e6 - 200 - process_age() < left < last < 1e6 - 100
    assert not clock.over()
    assert ContestClock(10.0, 9.5).over() and ContestClock(10.0, 1e6).last() == 0.0
    assert ContestClock(None, 1e9).left() is None and not ContestClock(None, 1e9).over()
    assert ContestClock(0.5, 0.0).margin == 0.25
    assert (ContestClock(60.0, 0.0).margin, ContestClock(1e6, 0.0).margin) == (3.0, 10.0)


def test_the_age_of_a_process_counts_from_its_start() -> None:
    code = "import time; time.sleep(0.5); from mapmrf.cli.contest import process_age; print(process_age())"
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert 0.5 <= float(done.stdout) <= time.monotonic() - began + 0.02  # ticks of the system's clock


DEED = """
import time
import mapmrf.cli.contest as contest
import mapmrf.methods.icm as icm
class Noted(contest.ContestRun):
    def __init__(self, *args):
        super().__init__(*args)
        contest.clock = self.clock
contest.ContestRun = Noted
step = icm.ICM.step
def other(self, problem, state):
    progress = step(self, problem, state)
    progress.finished = None
    {deed}
    return progress
icm.ICM.step = other
main()
"""
LATE = "contest.clock.began, contest.clock.margin = time.monotonic() - {seconds}, 1e5"  # so long took the first step
ENDLESS = ["-m", "icm", "--set", "starts=1000000", "--set", "max_iterations=1e12"]


def started_with(deed: str, **environ: str) -> subprocess.Popen[str]:
    """A run that does something in every step and does not end by itself."""
    mapmrf.write(grid(6, 6, coupling=2.0, seed=1), "grid.LG")
    return started("grid.LG", "", "", "MPE", *ENDLESS, code=DEED.format(deed=deed), environ=environ)


def check_solution(said: str) -> None:
    """The file must hold a solution of the value that is said."""
    graph = mapmrf.read("grid.LG")
    shown = float(said.split("log potential ")[1].split(",")[0])
    assert graph.value(read_solution("grid.LG.MPE", graph)) == pytest.approx(shown, abs=1e-5)


@pytest.mark.parametrize(
    ("seconds", "more", "end"), [(925_000, "pass", "time_limit"), (1_000_000, "time.sleep(1000)", "cut off")]
)
def test_the_end_of_the_time_ends_the_process_whatever_the_method_does(seconds: int, more: str, end: str) -> None:
    process = started_with(f"{LATE.format(seconds=seconds)}; {more}", INF_TIME="1000000", INF_MEMORY="4")
    said, heard = process.communicate(timeout=120)
    assert (process.returncode, heard) == (0, "") and said.endswith(f", {end}\n")
    check_solution(said)


def test_time_that_is_over_before_there_is_a_model_is_said() -> None:
    code = "import time, mapmrf.formats\nmapmrf.formats.read = lambda path, **options: time.sleep(1000)\nmain()"
    process = started("nets/t3.uai", "", "", "MPE", "-m", "icm", code=code, environ={"INF_TIME": "2"})
    said, heard = process.communicate(timeout=120)
    assert (process.returncode, said) == (2, "")
    assert "before the model was read" in heard and not list(Path().glob("*.MPE"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the figures of Linux")
def test_memory_beyond_the_limit_is_refused_and_the_best_is_kept() -> None:
    code = "import numpy, mapmrf.run.solve as run\nrun.solve = lambda *args, **options: numpy.zeros(10**9)\nmain()"
    process = started("nets/t3.uai", "", "", "MPE", "-m", "icm", code=code, environ={"INF_MEMORY": "1"})
    _, heard = process.communicate(timeout=120)
    assert process.returncode == 0 and "out of memory" in heard
    assert len(read_solution("t3.uai.MPE", 3)) == 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@pytest.mark.parametrize("more", ["pass", "time.sleep(1000)"])
def test_a_signal_ends_the_run_with_the_best_in_the_file(number: int, code: int, more: str) -> None:
    process = started_with(f"print('stepping', file=sys.stderr, flush=True); {more}")
    assert process.stderr is not None
    assert process.stderr.readline() == "stepping\n"
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == code
    check_solution(said)
