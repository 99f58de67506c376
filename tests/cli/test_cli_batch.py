"""`mapmrf solve` with many files, and with a table of evidence."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mapmrf
from command_line import opened, refused, run, started
from mapmrf.datasets import grid
from mapmrf.formats.solution import read_solution

INFEASIBLE = "MARKOV 2  2 2  1  2 0 1  4  0 0 0 0"


@pytest.fixture
def models(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"grid{k}.uai" for k in range(3)]
    for k, path in enumerate(paths):
        mapmrf.write(grid(3, 4, coupling=2.0, seed=k), path)
    return paths


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    (tmp_path / "bad.uai").write_text("MARKOV 2")
    return tmp_path / "bad.uai"


# -- many files -------------------------------------------------------------------------------------------------------


def test_a_line_for_every_file_in_order(models: list[Path]) -> None:
    result = run("solve", *models, "-m", "exhaustive", "--jobs", 2)
    assert result.exit_code == 0
    assert re.fullmatch(r"mapmrf: 3 models in \d+\.\d s: 3 optimal\n", result.stderr)
    head, *lines = [line.split() for line in result.stdout.splitlines()]
    assert head == ["model", "value", "bound", "gap", "status", "seconds"]
    for path, line in zip(models, lines, strict=True):
        best = mapmrf.solve(mapmrf.read(path), "exhaustive")
        assert [line[0], line[1], line[4]] == [str(path), f"{best.value:.6f}", "optimal"]


@pytest.mark.parametrize("backend", [[], ["--backend", "processes"]])
def test_json_lines_are_the_results(models: list[Path], backend: list[str]) -> None:
    result = run("solve", *models, "-m", "icm", "--json", "--seed", 3, "--set", "starts=2", "-j", 2, *backend)
    assert (result.exit_code, result.stderr) == (0, "")
    for path, line in zip(models, result.stdout.splitlines(), strict=True):
        data = json.loads(line)
        again = mapmrf.solve(mapmrf.read(path), "icm", seed=3, starts=2)
        assert (data["model"], data["value"], data["labels"]) == (str(path), again.value, again.labels.tolist())
        assert {"bound", "gap", "status", "runtime", "options"} <= set(data)


def test_one_bad_file_is_one_line_and_the_rest_is_done(models: list[Path], bad: Path, tmp_path: Path) -> None:
    files = [models[0], bad, tmp_path / "absent.uai", models[1]]
    result = run("solve", *files, "-m", "icm", "--output", tmp_path / "out/")
    assert result.exit_code == 2
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["model", str(models[0]), str(models[1])]
    first, second, *summary = result.stderr.splitlines()
    assert first.startswith(f"mapmrf: error: {bad}") and "absent.uai" in second
    assert summary[0].endswith(": 2 converged, 2 failed") and summary[1] == f"mapmrf: failed: {bad}, {files[2]}"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "grid0.uai.MPE", "grid1.uai.MPE", "results.csv"
    ]  # fmt: skip
    rows = list(csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines()))
    assert [(row["model"], row["status"], bool(row["error"])) for row in rows] == [
        (str(path), status, not status) for path, status in zip(files, ("converged", "", "", "converged"), strict=True)
    ]
    told = [json.loads(line) for line in run("solve", *files, "-m", "icm", "--json").stdout.splitlines()]
    assert [data["model"] for data in told] == [str(path) for path in files]
    assert ["error" in data for data in told] == [False, True, True, False]


def test_solutions_go_to_a_folder_also_of_one_file(models: list[Path], tmp_path: Path) -> None:
    mapmrf.write(mapmrf.read(models[0]), tmp_path / "packed.uai.gz")
    (tmp_path / "out").mkdir()
    result = run("solve", *models, tmp_path / "packed.uai.gz", "-m", "exhaustive", "-q", "-o", tmp_path / "out")
    assert (result.exit_code, result.output) == (0, "")
    for path in models:
        graph = mapmrf.read(path)
        labels = read_solution(tmp_path / "out" / f"{path.name}.MPE", graph)
        assert graph.value(labels) == mapmrf.solve(graph, "exhaustive").value
    assert (tmp_path / "out" / "packed.uai.MPE").exists()
    result = run("solve", models[0], "-m", "icm", "-o", f"{tmp_path}/new/")
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 2
    assert (tmp_path / "new" / "grid0.uai.MPE").exists()


def test_infeasible_models_have_no_solution_and_their_own_code(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "none.uai").write_text(INFEASIBLE)
    result = run("solve", tmp_path / "none.uai", models[0], "-m", "exhaustive", "-o", f"{tmp_path}/out/")
    assert result.exit_code == 3
    assert "none.uai.MPE not written" in result.stderr
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["grid0.uai.MPE", "results.csv"]


def test_evidence_is_that_of_every_file(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "seen.evid").write_text("2 0 1 5 0")
    result = run("solve", *models, "-m", "icm", "--json", "--evidence", tmp_path / "seen.evid")
    assert all(json.loads(line)["labels"][0::5][:2] == [1, 0] for line in result.stdout.splitlines())


def test_a_full_disk_does_not_end_the_batch(models, tmp_path, monkeypatch) -> None:
    def full(path: str, labels: object) -> None:
        raise mapmrf.FormatError(f"{path}: cannot write: No space left on device")

    monkeypatch.setattr("mapmrf.formats.solution.write_solution", full)
    result = run("solve", *models, "-m", "icm", "-o", f"{tmp_path}/out/")
    assert result.exit_code == 2
    assert len(result.stdout.splitlines()) == 4
    assert result.stderr.count("No space left") == 3


def test_a_folder_and_a_pattern_stand_for_their_models(models: list[Path], bad: Path, tmp_path: Path) -> None:
    bad.rename(tmp_path / "notes.txt")
    mapmrf.write(grid(2, 2), tmp_path / "last.uai.gz")
    inside = [*map(str, models), str(tmp_path / "last.uai.gz")]
    for given in (tmp_path, tmp_path / "*.uai*"):
        said = run("solve", given, "-m", "icm", "--json").stdout.splitlines()
        assert [json.loads(line)["model"] for line in said] == inside
    only = run("solve", tmp_path / "last*", "-m", "icm", "-o", tmp_path / "results.tsv")
    assert only.exit_code == 0 and only.stdout.splitlines()[0].split()[0] == "model"
    (row,) = csv.DictReader((tmp_path / "results.tsv").read_text().splitlines(), delimiter="\t")
    assert (row["model"], row["method"], row["status"]) == (inside[-1], "icm", "converged")
    assert f"{tmp_path}/x*.uai: no file matches" in refused("solve", tmp_path / "x*.uai")
    (tmp_path / "empty").mkdir()
    assert "empty: no model file in this folder" in refused("solve", tmp_path / "empty")


def test_resume_solves_what_is_not_yet_there(models: list[Path], tmp_path: Path) -> None:
    command = ["solve", *models, "-m", "icm", "-o", f"{tmp_path}/out/"]
    assert run(*command).exit_code == 0
    table, first = tmp_path / "out" / "results.csv", tmp_path / "out" / "grid0.uai.MPE"
    whole = table.read_text()
    table.write_text(whole[: whole.index("grid2") + 10])  # killed while it wrote the third line
    first.unlink()
    result = run(*command, "--resume")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["model", str(models[0]), str(models[2])]
    assert "mapmrf: 3 models" in result.stderr and "1 done before, 2 converged" in result.stderr and first.exists()
    assert len(table.read_text().splitlines()) == 4
    assert "3 done before" in run(*command, "--resume").stderr
    assert "done before" not in run(*command, "--resume", "--method", "bp").stderr  # another method, other answers
    assert "needs --output DIR/" in refused("solve", *models, "--resume")
    assert "expected a folder" in refused("solve", *models, "--resume", "-o", tmp_path / "r.csv")


def test_usage_of_many_files_is_checked_first(models: list[Path], tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    twin = tmp_path / "sub" / models[0].name
    twin.write_bytes(models[0].read_bytes())
    assert "would both be written to" in refused("solve", models[0], twin, "-o", f"{tmp_path}/out/")
    assert "expected a folder" in refused("solve", *models, "-o", models[0])
    assert "--trace is for a single run, found several models" in refused(
        "solve", *models, "--trace", tmp_path / "t.csv"
    )
    assert "--initial is for a single run" in refused("solve", *models, "--initial", tmp_path / "t.MPE")
    assert "did you mean 'starts'" in refused("solve", *models, "-m", "icm", "--set", "stars=2")
    assert "--jobs" in refused("solve", *models, "--jobs", 0)
    assert not (tmp_path / "out").exists()


# -- a table of evidence ----------------------------------------------------------------------------------------------


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    (tmp_path / "rows.csv").write_text("rain\nno\nyes\n")
    return tmp_path / "rows.csv"


def numbered(tmp_path: Path) -> Path:
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[[0.0, 1.0], [3.0, 2.0]]])
    mapmrf.write(graph, tmp_path / "net.LG")
    return tmp_path / "net.LG"


@pytest.mark.parametrize("name", ["out.csv", "out.tsv", "out.csv.gz"])
def test_answers_are_a_table(rows: Path, tmp_path: Path, name: str) -> None:
    rows.write_text('0\n0\n2\n""\n1\n')
    result = run("solve", numbered(tmp_path), "--evidence-table", rows, "-m", "exhaustive", "-q", "-o", tmp_path / name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"mapmrf: error: {rows}: line 3: found state '2' of variable 0, expected 0 to 1\n"
    data = (tmp_path / name).read_bytes()
    text = (gzip.decompress(data) if name.endswith(".gz") else data).decode()
    found = list(csv.DictReader(io.StringIO(text), delimiter="\t" if name.endswith(".tsv") else ","))
    assert [row["row"] for row in found] == ["0", "1", "2", "3"]
    assert [(row["0"], row["1"], row["value"]) for row in found if not row["error"]] == [
        ("0", "1", "1.0"),
        ("1", "0", "3.0"),
        ("1", "0", "3.0"),
    ]
    assert "line 3" in found[1]["error"] and found[1]["0"] == ""
    assert found[0]["status"] == "optimal" and float(found[0]["seconds"]) > 0


def test_answers_are_json_lines_with_names(tmp_path: Path) -> None:
    bif = tmp_path / "net.bif"
    names = mapmrf.Names(("rain", "value"), (("no", "yes"), ("low", "high")))
    tables = [[-1.2, -0.35], [[-0.1, -2.3], [-1.6, -0.22]]]
    mapmrf.write(mapmrf.FactorGraph.from_tables([2, 2], [(0,), (0, 1)], tables, names=names), bif)
    (tmp_path / "rows.csv").write_text("value\nlow\nhigh\n")
    options = ["--evidence-table", tmp_path / "rows.csv", "-m", "exhaustive"]
    result = run("solve", bif, *options, "--json", "-o", tmp_path / "out.jsonl")
    assert result.exit_code == 0, result.stderr
    assert result.stdout == (tmp_path / "out.jsonl").read_text()
    graph = mapmrf.read(bif)
    for k, line in enumerate(result.stdout.splitlines()):
        data = json.loads(line)
        best = mapmrf.solve(graph.condition({"value": k}), "exhaustive")
        assert (data["row"], data["value"], data["labels"]) == (k, best.value, best.labels.tolist())
        assert data["assignment"] == best.assignment
        assert data["assignment"]["value"] == ["low", "high"][k]
    assert run("solve", bif, *options, "-q", "-o", tmp_path / "out.csv").exit_code == 0
    head = (tmp_path / "out.csv").read_text().splitlines()[0]
    assert head == "row,value,bound,gap,status,seconds,error,rain,variable value"


def test_a_row_that_contradicts_the_model_has_no_states(tmp_path: Path) -> None:
    (tmp_path / "hard.uai").write_text("MARKOV 2  2 2  1  2 0 1  4  1 0 0 0")
    (tmp_path / "rows.csv").write_text("0,1\n1,1\n0,\n")
    options = ["--evidence-table", tmp_path / "rows.csv", "-m", "exhaustive", "--jobs", 2]
    result = run("solve", tmp_path / "hard.uai", *options, "-o", tmp_path / "out.csv")
    assert result.exit_code == 3
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["row", "0", "1"]
    first, second = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    assert (first["status"], first["value"], first["0"]) == ("infeasible", "-inf", "")
    assert (second["0"], second["1"]) == ("0", "0")


def test_evidence_and_a_table_of_it_add_up(tmp_path: Path) -> None:
    (tmp_path / "seen.evid").write_text("1 1 1")
    (tmp_path / "rows.csv").write_text("0\n0\n1\n")
    options = ["--evidence", tmp_path / "seen.evid", "--evidence-table", tmp_path / "rows.csv", "-m", "exhaustive"]
    told = run("solve", numbered(tmp_path), *options, "--json").stdout.splitlines()
    assert [json.loads(line)["labels"] for line in told] == [[0, 1], [1, 1]]


def test_usage_of_tables_is_checked_first(models: list[Path], rows: Path, tmp_path: Path) -> None:
    table = ["--evidence-table", rows]
    assert "found 3 models, expected one" in refused("solve", *models, *table)
    assert "expected .csv, .tsv or .jsonl" in refused("solve", models[0], *table, "-o", tmp_path / "out.MPE")
    assert "there is no folder" in refused("solve", models[0], *table, "-o", tmp_path / "absent" / "out.csv")
    assert "found an evidence table" in refused("solve", models[0], *table, "--trace", tmp_path / "t.csv")
    assert "'rain' is not a variable" in refused("solve", models[0], *table, "-m", "icm", "-o", tmp_path / "o.csv")
    assert not (tmp_path / "o.csv").exists()


# -- as a process -----------------------------------------------------------------------------------------------------


SLOW = """
import time
import mapmrf.cli.solving as solving
import mapmrf.methods.icm as icm
solving.HINT_AFTER = 0.1
step = icm.ICM.step
def slow(self, problem, state):
    time.sleep(1.0)
    return step(self, problem, state)
icm.ICM.step = slow
main()
"""


def on_a_terminal(*args: object) -> tuple[str, str]:
    """Standard output of `solve` with a slow method, and what a terminal for standard error shows."""
    ours, theirs = pty.openpty()
    process = started(SLOW, "solve", *args, "-m", "icm", env={"TERM": "xterm", "COLUMNS": "200"}, stderr=theirs)
    os.close(theirs)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    shown = b""
    while select.select([ours], [], [], 0)[0]:
        try:
            shown += os.read(ours, 4096)
        except OSError:
            break
    os.close(ours)
    return said, shown.decode()


def test_the_bar_is_for_the_terminal_and_the_lines_for_the_pipe(models: list[Path]) -> None:
    said, shown = on_a_terminal(*models, "--json")
    assert len([json.loads(line) for line in said.splitlines()]) == 3
    assert "3/3" in shown and "--time-limit" in shown


def test_a_long_run_without_a_limit_is_told_about_it_on_a_terminal_only(models: list[Path]) -> None:
    assert "--time-limit" in on_a_terminal(models[0])[1]
    assert "--time-limit" not in on_a_terminal(models[0], "-t", 100)[1]
    said, heard = started(SLOW, "solve", models[0], "-m", "icm").communicate(timeout=120)
    assert heard == "" and said.startswith("log potential")


ENDLESS = """
import signal, sys
import mapmrf.methods.icm as icm
from mapmrf.cli import main
signal.signal(signal.SIGINT, signal.default_int_handler)
step = icm.ICM.step
def telling(self, problem, state):
    progress = step(self, problem, state)
    if problem.graph.n_vars == 9:
        print("stepping", file=sys.stderr, flush=True)
        progress.finished = None
    return progress
icm.ICM.step = telling
main()
"""


def test_ctrl_c_keeps_what_is_done_and_the_best_of_what_runs(models: list[Path], tmp_path: Path) -> None:
    mapmrf.write(grid(3, 3), tmp_path / "long.uai")
    files = [models[0], tmp_path / "long.uai", models[1]]
    options = ["-m", "icm", "--json", "-o", f"{tmp_path}/out/", "--set", "max_iterations=1e12"]
    command = [sys.executable, "-c", ENDLESS, "solve", *map(str, files), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "stepping\n"
    process.send_signal(signal.SIGINT)
    said, heard = process.communicate(timeout=120)
    assert process.returncode == 130
    assert [json.loads(line)["model"] for line in said.splitlines()] == [str(path) for path in files[:2]]
    assert json.loads(said.splitlines()[1])["status"] == "interrupted"
    assert heard.splitlines()[-1] == "mapmrf: interrupted: 1 of 3 not solved"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"grid0.uai.MPE", "long.uai.MPE", "results.csv"}
    again = run("solve", *files, "-m", "icm", "-o", f"{tmp_path}/out/", "--resume")
    assert [line.split()[0] for line in again.stdout.splitlines()] == ["model", *map(str, files[1:])]
    assert again.exit_code == 0 and ": 1 done before, 2 converged" in again.stderr


def test_sigterm_ends_a_batch_that_waits_for_its_files(tmp_path: Path) -> None:
    pipes = [tmp_path / f"{k}.uai" for k in range(3)]
    for pipe in pipes:
        os.mkfifo(pipe)
    command = [sys.executable, "-m", "mapmrf", "solve", *map(str, pipes), "-j", "2", "-q", "-o", f"{tmp_path}/out/"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    writers = [opened(pipe) for pipe in pipes[:2]]
    process.terminate()
    _, heard = process.communicate(timeout=120)
    for writer in writers:
        os.close(writer)
    assert process.returncode == 143
    # On a busy machine the command is left before the batch has reported what is not solved.
    assert heard in ("mapmrf: interrupted: 3 of 3 not solved\n", "mapmrf: interrupted\n")


def test_processes_end_with_the_program(models: list[Path]) -> None:
    """They would keep its output open for five minutes; semaphores that it leaves behind are reported there."""
    command = [sys.executable, "-m", "mapmrf", "solve", *map(str, models), "-m", "icm", "-j", "2"]
    done = subprocess.run([*command, "--backend", "processes"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0 and re.fullmatch("mapmrf: 3 models in .*: 3 converged\n", done.stderr)
    assert len(done.stdout.splitlines()) == 4
