from __future__ import annotations

import csv
import dataclasses
import gzip
import inspect
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import mapmrf.cli.demo
from command_line import done, refused, run, started
from mapmrf import OptionError
from mapmrf.cli import COMMANDS, main
from mapmrf.cli.methods import parse_grid, parse_settings
from mapmrf.cli.solving import HELP, parse_query
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.formats.solution import read_solution, read_solutions, write_solution
from mapmrf.plots import style
from mapmrf.run.method import Method
from mapmrf.run.registry import method_names
from refusals import refuses

INFEASIBLE = "MARKOV 2  2 2  1  2 0 1  4  0 0 0 0"


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "grid.uai"
    mapmrf.write(grid(3, 4, coupling=2.0, seed=1), path)
    return path


# -- solving ---------------------------------------------------------------------------------------------------------


def test_solve_prints_a_report_of_the_default_method_or_nothing(model) -> None:
    text = done("solve", model, "--method", "exhaustive")
    assert "status         optimal" in text
    assert len(text.split("labels")[1].partition("\n")[0].split()) == 12
    pytest.importorskip("mapmrf.methods.lslp")
    assert json.loads(done("solve", model, "--json"))["method"] == mapmrf.run.solve.DEFAULT_METHOD
    assert done("solve", model, "-m", "icm", "--quiet") == ""
    assert json.loads(done("solve", model, "-m", "icm", "--quiet", "--json"))["method"] == "icm"


def test_solve_json_is_the_result(model):
    data = json.loads(done("solve", model, "-m", "icm", "--json", "--seed", 5, "--set", "starts=3"))
    again = mapmrf.solve(mapmrf.read(model), "icm", seed=5, starts=3)
    assert data["value"] == again.value
    assert data["labels"] == again.labels.tolist()
    assert (data["seed"], data["options"]["starts"], data["status"]) == (5, 3, again.status.value)
    assert {"bound", "gap", "kind", "iterations", "runtime", "method"} <= set(data)


def test_a_polish_is_named_and_a_misspelt_one_does_not_wait_for_the_model(model):
    data = json.loads(done("solve", model, "-m", "icm", "--polish", "blocks", "--json"))
    assert data["options"]["polish"] == "blocks"
    assert data["value"] == mapmrf.solve(mapmrf.read(model), "icm", polish="blocks").value
    assert "no method is named 'block'" in refused("solve", "missing.uai", "--polish", "block")
    assert "no method is named 'block'" in refused("solve", "missing.uai", model, "--polish", "block")


def test_progress_tells_every_improvement_on_standard_error(model):
    result = run("solve", model, "--progress", "--json")
    head, *lines = result.stderr.splitlines()
    assert head.split() == ["seconds", "phase", "value", "bound", "gap"]
    values = [float(line.split()[2]) for line in lines]
    assert values == sorted(values) and values[-1] == pytest.approx(json.loads(result.stdout)["value"], abs=1e-4)
    assert lines[0].split()[1] == "eliminate"


def test_a_log_says_who_found_and_who_proved(model: str) -> None:
    result = run("solve", model, "--log", "--json")
    lines = result.stderr.splitlines()
    answer = json.loads(result.stdout)
    assert lines[0].startswith("mapmrf ") and f"auto on {model}" in lines[0] and "variables" in lines[0]
    assert lines[1].split() == ["seconds", "phase", "value", "bound", "gap"]
    found, proven, status = (line.split() for line in lines[-3:])
    assert found[0] == "found" and float(found[1]) == pytest.approx(answer["value"])
    assert proven[0] == "proven" and float(proven[1]) == pytest.approx(answer["bound"])
    assert status[:2] == ["status", "optimal:"]


def test_output_and_score_agree(model, tmp_path):
    for name in ("out.MPE", "out.json", "out.MPE.gz"):
        data = json.loads(done("solve", model, "-m", "icm", "--json", "--output", tmp_path / name))
        assert float(done("score", model, tmp_path / name)) == data["value"]
        assert json.loads(done("score", model, tmp_path / name, "--json")) == {"value": data["value"]}
    assert (tmp_path / "out.MPE").read_text().startswith("MPE\n12 ")
    assert gzip.decompress((tmp_path / "out.MPE.gz").read_bytes()).startswith(b"MPE\n12 ")
    saved = mapmrf.Result.from_json((tmp_path / "out.json").read_text())
    assert saved.method == "icm"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["grid.uai", "out.MPE", "out.MPE.gz", "out.json"]


def test_evidence_is_kept(model, tmp_path):
    (tmp_path / "grid.evid").write_text("2 0 1 5 0")
    labels = json.loads(done("solve", model, "-m", "icm", "--json", "--evidence", tmp_path / "grid.evid"))["labels"]
    assert (labels[0], labels[5]) == (1, 0)
    write_solution(tmp_path / "other.MPE", [0] * 12)
    assert float(done("score", model, tmp_path / "other.MPE", "--evidence", tmp_path / "grid.evid")) == -np.inf
    assert json.loads(done("score", model, tmp_path / "other.MPE", "--json", "--evidence", tmp_path / "grid.evid")) == {
        "value": "-inf"
    }


def test_initial_labels_and_a_trace_are_files(model, tmp_path) -> None:
    best = json.loads(done("solve", model, "-m", "exhaustive", "--json", "-o", tmp_path / "best.MPE"))
    data = json.loads(done("solve", model, "-m", "icm", "--json", "--initial", tmp_path / "best.MPE"))
    assert data["value"] == best["value"]
    done("solve", model, "-m", "icm", "-q", "--trace", tmp_path / "trace.csv")
    rows = list(csv.DictReader((tmp_path / "trace.csv").read_text().splitlines()))
    assert rows
    assert {"time", "iterations", "value", "bound", "gap"} <= set(rows[0])


def test_infeasible_models_have_their_own_code(tmp_path):
    (tmp_path / "none.uai").write_text(INFEASIBLE)
    result = run("solve", tmp_path / "none.uai", "-m", "icm", "-o", tmp_path / "none.MPE")
    assert result.exit_code == 3
    assert "infeasible" in result.stdout
    assert "none.MPE not written" in result.stderr
    assert not (tmp_path / "none.MPE").exists()
    result = run("solve", tmp_path / "none.uai", "-m", "icm", "-q", "-o", tmp_path / "none.json")
    assert (result.exit_code, result.output) == (3, "")
    assert json.loads((tmp_path / "none.json").read_text())["status"] == "infeasible"
    result = run("solve", tmp_path / "none.uai", "--best", 2, "-o", tmp_path / "none.MPE")
    assert result.exit_code == 3 and "no labelling" in result.stdout and "not written" in result.stderr
    assert run("solve", tmp_path / "none.uai", "--query", "0", "-o", tmp_path / "none.MPE").exit_code == 3
    assert not (tmp_path / "none.MPE").exists()


def test_a_time_limit_ends_a_run(model):
    endless = ["--set", "starts=1e9", "--set", "max_iterations=1e12"]
    data = json.loads(done("solve", model, "-m", "icm", "--json", "--time-limit", 0.2, *endless))
    assert data["status"] == "time_limit"


def test_options_that_are_arguments_of_solve_have_their_names_and_defaults():
    options = main.get_command(click.Context(main), "solve").make_context("solve", ["model.uai"]).params
    arguments = {name: one.default for name, one in inspect.signature(mapmrf.solve).parameters.items()}
    assert arguments.keys() - options.keys() == {"graph", "callback", "options"}  # of programs alone
    shared = arguments.keys() & options.keys() - {"method", "certificate"}  # None; a file
    assert {name: options[name] for name in shared} == {name: arguments[name] for name in shared}


# -- what can go wrong -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["solve"], "MODEL"),
        (["slove"], "no command is named 'slove', did you mean 'solve'?"),
        (["solve", "MODEL", "--tim", "3"], "no option is named '--tim', did you mean '--time-limit'?"),
        (["solve", "MODEL", "--metod=icm"], "no option is named '--metod', did you mean '--method'?"),
        (["--nonsense"], "--nonsense"),
        (["solve", "MODEL", "--nonsense"], "--nonsense"),
        (["solve", "MODEL", "--method", "imc"], "did you mean 'icm'"),
        (["solve", "MODEL", "-m", "icm", "--set", "stars=2"], "did you mean 'starts'"),
        (["solve", "MODEL", "-m", "icm", "--set", "starts=two"], "found 'two', expected a whole number"),
        (["solve", "MODEL", "-m", "icm", "--set", "starts=0"], "starts"),
        (["solve", "MODEL", "-m", "icm", "--set", "starts"], "expected key=value"),
        (["solve", "MODEL", "-t", "-1"], "'--time-limit' / '-t': found '-1', expected a number of at least 0"),
        (["solve", "MODEL", "--seed", "x"], "--seed': found 'x', expected a whole number of at least 0"),
        (["solve", "MODEL", "--threads", "-1"], "--threads"),
        (["solve", "MODEL", "-m", "icm", "--initial", "absent.MPE"], "absent.MPE"),
        (["solve", "MODEL", "-m", "icm", "--evidence", "absent.evid"], "absent.evid"),
        (["solve", "MODEL", "-m", "icm", "--output", "absent/out.MPE"], "there is no folder absent"),
        (["solve", "MODEL", "-m", "icm", "--trace", "."], "is a folder"),
        (["score", "MODEL", "MODEL"], "expected the labels of 12 variables"),
        (["convert", "MODEL", "out.nonsense"], ".nonsense"),
        (["convert", "absent.uai", "out.uai"], "absent.uai"),
        (["convert", "MODEL", "absent/out.uai"], "there is no folder absent"),
        (["demo", "absent.uai"], "absent.uai"),
        (["demo", "--output", "absent/demo.png"], "there is no folder absent"),
        (["generate", "grid", "0", "2", "-o", "out.uai"], "0 x 2"),
        (["generate", "grid", "2", "-o", "out.uai"], "COLS"),
        (["generate", "random", "5", "5", "--arity", "2-x", "-o", "out.uai"], "found '2-x'"),
        (["generate", "potts", "5", "5", "--noise", "0", "-o", "out.uai"], "noise"),
        (["solve", "MODEL", "--distance", "2"], "--distance needs --best M"),
        (["solve", "MODEL", "--best", "2", "--query", "1"], "found --best and --query"),
        (["solve", "MODEL", "--best", "2", "--trace", "run.csv"], "--trace cannot be combined with --best"),
        (["solve", "MODEL", "MODEL", "--best", "2"], "--best is for a single run"),
        (["solve", "MODEL", "--query", "1,,2"], "separated by commas"),
        (["solve", "MODEL", "--query", "99"], "variable 99 is asked for, expected 0 to 11"),
        (["solve", "MODEL", "--query", "Rain"], "no variable is named 'Rain'"),
        (["solve", "MODEL", "--best", "2", "--memory-limit", "1G"], "--memory-limit cannot be combined with --best"),
        (["solve", "MODEL", "--resume"], "resume needs a checkpoint"),
        (["bench", "-o", "r.jsonl", "--sets", "grid"], "sets: found 'grid', expected some of seg-2"),
        (["bench", "-o", "r.jsonl", "--data", "nowhere"], "--data: nowhere is not a folder"),
        (["bench", "-o", "r.jsonl", "nowhere.uai"], "nowhere.uai: no such file"),
        (["bench", "-o", "r.jsonl", "--methods", "lslpp"], "no method is named 'lslpp'"),
        (["bench", "-o", "r.jsonl", "--seeds", "a"], "--seeds: found 'a', expected whole numbers"),
        (["bench", "-o", "r.jsonl", "--plan", "none.toml"], "none.toml"),
        (["datasets", "generate", "grids", "22", "-o", "x.uai"], "number is 22, expected 1 to 21"),
        (["datasets", "generate", "grid", "1", "-o", "x.uai"], "'grid'"),
        (["datasets", "generate", "grids", "1", "--scale", "0", "-o", "x.uai"], "scale is 0.0"),
        (["datasets", "generate", "grids", "1", "-o", "absent/x.uai"], "there is no folder absent"),
        (["datasets", "generate", "grids", "1"], "--output"),
        (["completion", "tcsh"], "bash"),
        (["tune", "MODEL", "--grid", "roh=1"], "did you mean 'rho'"),
        (["tune", "MODEL", "--grid", "rho=1;2"], "found '1;2', expected a number"),
    ],
)
def test_bad_usage_is_one_line(args, says, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert says in refused(*[str(model) if arg == "MODEL" else arg for arg in args])
    assert [path.name for path in tmp_path.iterdir()] == ["grid.uai"]


@pytest.mark.parametrize("command", [("check",), ("info",), ("solve", "-m", "icm")])
def test_bad_files_and_paths_are_one_line_that_names_the_file(command, tmp_path):
    (tmp_path / "folder.uai").mkdir()
    (tmp_path / "binary.uai").write_bytes(bytes(range(256)) * 4)
    (tmp_path / "broken.uai.gz").write_bytes(b"\x1f\x8bnot really")
    for name in ("absent.uai", "folder.uai", "binary.uai", "broken.uai.gz"):
        assert name in refused(*command, tmp_path / name)


def test_an_answer_survives_a_failing_disk(model, tmp_path, monkeypatch):
    def full(path, labels):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("mapmrf.formats.solution.write_solution", full)
    result = run("solve", model, "-m", "icm", "--json", "-o", tmp_path / "out.MPE")
    assert result.exit_code == 2
    assert len(json.loads(result.stdout)["labels"]) == 12
    assert result.stderr.endswith("out.MPE: No space left on device\n")


def test_too_little_memory_is_one_line(model, monkeypatch):
    def exhausted(path, **options):
        raise MemoryError

    monkeypatch.setattr("mapmrf.formats.read", exhausted)
    assert "memory" in refused("check", model)


def test_warnings_of_the_library_are_told(model, tmp_path):
    (tmp_path / "two.evid").write_text("2\n1 0 0\n1 0 1\n")
    result = run("check", model, "--evidence", tmp_path / "two.evid")
    assert result.exit_code == 0
    assert result.stderr.startswith("mapmrf: warning: ")


# -- the other commands ----------------------------------------------------------------------------------------------


def test_help_and_version_also_as_a_module() -> None:
    assert "solve" in done("--help")
    assert done() == done("--help")
    assert mapmrf.__version__ in done("--version")
    for name in COMMANDS:
        assert "Usage" in done(name, "--help")
    process = subprocess.run([sys.executable, "-m", "mapmrf", "--version"], capture_output=True, text=True, check=True)
    assert process.stdout == f"mapmrf, version {mapmrf.__version__}\n"


def test_info_check_and_convert(model, tmp_path) -> None:
    text = done("info", model)
    assert "variables    12  (2 states)" in text
    facts = json.loads(done("info", model, "--json"))
    assert (facts["n_vars"], facts["n_factors"], facts["arities"], facts["binary"]) == (12, 17, {"2": 17}, True)
    assert done("check", model) == f"{model}: ok, 12 variables, 17 factors\n"
    assert done("convert", model, tmp_path / "other.uai.gz") == ""
    labels = np.arange(12) % 2
    assert mapmrf.read(tmp_path / "other.uai.gz").value(labels) == pytest.approx(mapmrf.read(model).value(labels))


def test_methods():
    text = done("methods")
    known = json.loads(done("methods", "--json"))
    assert set(known) == set(mapmrf.methods())
    assert all(name in text for name in known)
    assert known["exhaustive"]["exact"] is True
    assert known["icm"]["gives_bound"] is False
    assert known["icm"]["options"]["starts"] == 1
    assert 6 <= sum(about["recommended"] for about in known.values()) <= 10 and known["auto"]["recommended"]
    assert set(json.loads(done("methods", "icm", "--json"))) == {"icm"}
    assert re.search(r"starts=1\n +Number of ", done("methods", "icm"))


@pytest.mark.parametrize(
    ("args", "made"),
    [
        (["grid", 4, 4, "--coupling", 3, "--field", 0.5, "--wrap"], grid(4, 4, 3.0, field=0.5, wrap=True, seed=3)),
        (["random", 9, 12, "--states", "3", "--arity", "2-4"], random_graph(9, 12, states=3, arity=(2, 4), seed=3)),
        (["potts", 4, 5, "--labels", 3, "--noise", 0.4], potts_image(4, 5, 3, noise=0.4, seed=3).graph),
    ],
)
def test_generate_makes_what_the_library_makes_and_score_knows_its_value(args, made, tmp_path):
    model, solution = tmp_path / "model.uai", tmp_path / "model.MPE"
    assert done("generate", *args, "--seed", 3, "--output", model) == ""
    data = json.loads(done("solve", model, "-m", "icm", "--json", "-o", solution))
    assert float(done("score", model, solution)) == data["value"] == pytest.approx(made.value(data["labels"]))


def test_demo_explains_and_draws(model, tmp_path, monkeypatch):
    monkeypatch.setattr("mapmrf.run.registry.DEFAULT_METHOD", "icm")
    monkeypatch.chdir(tmp_path)
    text = done("demo", model)
    assert "spin glass" in text
    assert "wrong pixels" in text
    assert f"3. {model}: 12 variables, 17 factors." in text
    picture = np.asarray(Image.open(tmp_path / "mapmrf-demo.png"))
    truth = potts_image(72, 96, 5, noise=0.9, seed=3).truth
    assert picture.shape[1] == 16 + 3 * (4 * 96 + 16)  # noisy, icm, truth
    panel = picture[-16 - 4 * 72 : -16 : 4, -16 - 4 * 96 : -16 : 4]  # the last one
    np.testing.assert_array_equal(panel, style.colours(truth, 5))


def test_demo_explains_every_end(tmp_path):
    graph = grid(3, 3)
    assert "proven optimal" in mapmrf.cli.demo.explain(mapmrf.solve(graph, "exhaustive"))
    (tmp_path / "none.uai").write_text(INFEASIBLE)
    assert "no solution" in mapmrf.cli.demo.explain(mapmrf.solve(mapmrf.read(tmp_path / "none.uai"), "exhaustive"))
    limited = mapmrf.solve(graph, "icm", time_limit=0, starts=10**9, max_iterations=10**12)
    assert "stopped at the time limit" in mapmrf.cli.demo.explain(limited)


def test_tune_tries_a_grid_and_reports(model, tmp_path) -> None:
    axes = [word for axis in ("rho=0.1,0.7", "eta=1.03", "rho_upper=inf", "seeds=0,1") for word in ("--grid", axis)]
    given = [*axes, "--set", "max_iterations=20", "--jobs", 1, "--time-limit", 30]
    text = done("tune", model, "-m", "lslp", *given, "--output", tmp_path / "table.csv")
    rows = list(csv.DictReader((tmp_path / "table.csv").read_text().splitlines()))
    assert [(row["rho"], row["seed"]) for row in rows] == [("0.1", "0"), ("0.1", "1"), ("0.7", "0"), ("0.7", "1")]
    assert max(int(row["iterations"]) for row in rows) <= 20
    best = max(rows, key=lambda row: float(row["value"]))
    assert "\nbest           --set rho=" in text and f"log potential  {float(best['value']):.6f}" in text
    assert float(text.splitlines()[1].split()[text.split().index("value")]) == pytest.approx(float(best["value"]))
    data = json.loads(done("tune", model, *given, "--json", "-o", tmp_path / "tuning.json"))
    assert json.loads((tmp_path / "tuning.json").read_text()) == data
    assert data["table"][0]["rho_upper"] == "inf" and data["result"]["method"] == "lslp" and len(data["table"]) == 4
    data = json.loads(done("tune", model, "-m", "icm", "--grid", "starts=1,5", "--grid", "seeds=3", "--json"))
    assert [(row["starts"], row["seed"]) for row in data["table"]] == [(1, 3), (5, 3)] and "starts" in data["best"]


# -- the best labellings, labels of some variables, margins -----------------------------------------------------------


def test_the_best_are_printed_and_written_from_the_best_downwards(model, tmp_path) -> None:
    output = tmp_path / "best.MPE"
    printed = done("solve", model, "--best", 3, "-o", output)
    best = mapmrf.solve_best(model, 3)
    assert printed == best.summary() + "\n"
    assert [labels.tolist() for labels in read_solutions(output, 12)] == [r.labels.tolist() for r in best]
    assert read_solution(output, 12).tolist() == best[0].labels.tolist()


def test_json_is_a_list_of_results(model, tmp_path) -> None:
    output = tmp_path / "best.json"
    rows = json.loads(done("solve", model, "--best", 3, "--distance", 4, "--json", "-o", output))
    assert len(rows) == len(json.loads(output.read_text())) == 3
    for n, row in enumerate(rows):
        assert all(np.count_nonzero(np.not_equal(row["labels"], other["labels"])) >= 4 for other in rows[:n])
    assert read_solution(output, 12).tolist() == rows[0]["labels"]


def test_a_query_is_answered_in_the_layout_of_the_competitions(model, tmp_path) -> None:
    output = tmp_path / "grid.MMAP"
    printed = done("solve", model, "--query", "5, 0", "-o", output)
    result = mapmrf.marginal_map(model, [5, 0])
    assert f"log potential  {result.value:.6f}" in printed
    assert output.read_text() == f"MMAP\n2 5 {result.labels[0]} 0 {result.labels[1]}\n"


def test_a_query_by_name(tmp_path) -> None:
    names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [np.log([[0.4, 0.1], [0.1, 0.4]])], names=names)
    path = tmp_path / "rain.cfn"
    mapmrf.write(graph, path)
    assert list(json.loads(done("solve", path, "--query", "Grass", "--json"))["assignment"]) == ["Grass"]
    assert parse_query("7,Rain,3", {"7": 1, "Rain": 0}) == ["7", "Rain", 3]


def test_margins_go_into_the_result_and_the_plot(model, tmp_path) -> None:
    output = tmp_path / "grid.json"
    assert done("solve", model, "--margins", "-q", "-o", output) == ""
    assert np.shape(json.loads(output.read_text())["margins"]) == (12, 2)
    for files in ((output,), (output, model)):
        printed = done("plot", *files, "--kind", "margins", "-o", tmp_path / "margins.png")
        assert printed.strip() == str(tmp_path / "margins.png")
    plain = tmp_path / "plain.json"
    run("solve", model, "-q", "-o", plain)
    assert "has no margins" in refused("plot", plain, "--kind", "margins", "-o", tmp_path / "margins.png")


@pytest.fixture
def weather(tmp_path) -> Path:
    names = mapmrf.Names(("rain", "grass"), (("no", "yes"), ("dry", "wet")))
    table = np.log([[0.45, 0.1], [0.1, 0.35]])
    graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [table], names=names)
    mapmrf.write(graph, tmp_path / "weather.cfn")
    return tmp_path / "weather.cfn"


def test_the_summary_says_what_one_wants_first_and_more_if_asked(weather, model, tmp_path) -> None:
    lines = done("solve", weather, "-m", "trws").splitlines()
    words = ["log", "status", "upper", "method", "", "variable", "rain", "grass"]
    assert [line.partition(" ")[0] for line in lines] == words and lines[-2:] == ["rain      no", "grass     dry"]
    more = done("solve", weather, "-m", "trws", "-v").splitlines()
    words[4:4] = ["relaxed", "relaxed", "found", "proven"]
    assert [line.partition(" ")[0] for line in more] == words
    said = done("solve", model, "-m", "icm", "-o", tmp_path / "out.MPE").splitlines()
    assert said[2] == f"labels         {tmp_path / 'out.MPE'}  (12 variables)"


def test_the_suffix_says_what_is_written(weather, model, tmp_path) -> None:
    def written(name: str, *args: object) -> list[list[str]]:
        run("solve", *args, "-q", "-o", tmp_path / name)
        with open(tmp_path / name, newline="") as file:
            return list(csv.reader(file, delimiter="\t" if name.endswith(".tsv") else ","))

    assert written("one.csv", weather) == [["variable", "state"], ["rain", "no"], ["grass", "dry"]]
    assert written("query.tsv", weather, "--query", "grass") == [["variable", "state"], ["grass", "dry"]]
    head, *rows = written("best.csv", weather, "--best", 2)
    assert head[0] == "value" and head[-2:] == ["rain", "grass"]
    assert [row[-2:] for row in rows] == [["no", "dry"], ["yes", "wet"]]
    assert [row[0] for row in written("query.csv", model, "--query", "7,2")] == ["variable", "7", "2"]
    head, *rows = written("margins.csv", model, "--margins")
    assert head == ["variable", "state", "margin at least", "margin at most"] and len(rows) == 12


def test_margins_are_printed_the_least_certain_first(weather, model) -> None:
    *_, rain, grass = done("solve", weather, "--margins").splitlines()
    margin = f"{np.log(0.45 / 0.35):.6g}"
    assert (rain.split(), grass.split()) == (["rain", "no", margin], ["grass", "dry", margin])
    text = done("solve", model, "--margins")
    assert "margins        12 of 12 labels are certain, 0 have an equally good alternative" in text
    shown = [float(line.split()[2]) for line in text.splitlines()[-12:]]
    assert shown == sorted(shown) == pytest.approx(sorted(mapmrf.solve(model, margins=True).margins[:, 0]), rel=1e-4)


def test_the_help_of_solve_has_every_option_once_in_its_groups() -> None:
    text = done("solve", "--help")
    groups = {part.split("\n")[0]: re.findall(r"^  (-.*?)(?:  |$)", part, re.M) for part in text.split("\n\n")}
    assert [name for name in groups if name.endswith(":") and groups[name]] == [f"{name}:" for name in HELP]
    assert len(groups["Usual options:"]) == 10
    shown = [re.search("--[a-z-]+", flag)[0] for flags in groups.values() for flag in flags]
    command = main.get_command(click.Context(main), "solve")
    known = [max(one.opts, key=len) for one in command.get_params(click.Context(command)) if one.opts[0][0] == "-"]
    assert sorted(shown) == sorted(known)
    for name in COMMANDS:
        assert "RANGE" not in done(name, "--help") and ">=" not in done(name, "--help")


def test_a_sum_that_does_not_fit_is_one_line_with_width_and_bytes(tmp_path) -> None:
    path = tmp_path / "dense.uai"
    pairs = [(i, j) for i in range(40) for j in range(i)]
    mapmrf.write(mapmrf.FactorGraph.from_tables([2] * 40, pairs, [np.eye(2)] * len(pairs)), path)
    said = refused("solve", path, "--query", "0")
    assert "induced width 39" in said and "bytes" in said


# -- as a process ----------------------------------------------------------------------------------------------------


STEPPING = """
import signal
import mapmrf.methods.icm as icm
signal.signal(signal.SIGINT, signal.default_int_handler)
step = icm.ICM.step
def telling(self, problem, state):
    print("stepping", file=sys.stderr, flush=True)
    icm.ICM.step = step
    return step(self, problem, state)
icm.ICM.step = telling
main()
"""


def test_ctrl_c_keeps_the_best_labelling(model, tmp_path):
    endless = ["--set", "starts=1e9", "--set", "max_iterations=1e12"]
    process = started(STEPPING, "solve", model, "-m", "icm", "--json", "-o", tmp_path / "out.MPE", *endless)
    assert process.stderr.readline() == "stepping\n"
    process.send_signal(signal.SIGINT)
    said, heard = process.communicate(timeout=120)
    assert (process.returncode, heard) == (130, "")
    data = json.loads(said)
    assert data["status"] == "interrupted"
    assert read_solution(tmp_path / "out.MPE", 12).tolist() == data["labels"]


def test_ctrl_c_after_the_run_gives_its_labelling(model, tmp_path, monkeypatch):
    best = json.loads(done("solve", model, "-m", "exhaustive", "--json"))

    def impatient(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("mapmrf.run.loop.Run.report", impatient)
    result = run("solve", model, "-m", "exhaustive", "--json", "-o", tmp_path / "out.MPE")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["value"] == best["value"]
    assert read_solution(tmp_path / "out.MPE", 12).tolist() == best["labels"]


# -- completion -------------------------------------------------------------------------------------------------------


BASH = shutil.which("bash")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str) -> None:
    done = run("completion", shell)
    assert done.exit_code == 0 and "_MAPMRF_COMPLETE" in done.stdout and "mapmrf" in done.stdout


def asked(*words: str) -> list[tuple[str, str]]:
    """Kinds and texts that a shell gets for the last of some words."""
    typed = {"COMP_WORDS": " ".join(["mapmrf", *words]), "COMP_CWORD": str(len(words))}
    answer = CliRunner().invoke(main, [], prog_name="mapmrf", env={"_MAPMRF_COMPLETE": "bash_complete", **typed})
    return [(kind, text) for kind, _, text in (line.partition(",") for line in answer.stdout.splitlines())]


def texts(*words: str) -> list[str]:
    return [text for _, text in asked(*words)]


def test_commands_options_methods_and_files_are_completed() -> None:
    assert texts("so") == ["solve"]
    assert "--time-limit" in texts("solve", "--ti")
    assert texts("solve", "--method", "") == method_names()
    assert texts("solve", "--method", "trw") == ["trws"]
    assert texts("bench", "--methods", "icm,trw") == ["icm,trws"]
    assert asked("solve", "--method", "my_file.py") == [("file", "my_file.py")]
    assert texts("tune", "--method", "icm", "--set", "st") == ["starts="]
    assert texts("solve", "--method", "bp", "--set", "decode=a") == ["decode=argmax"]
    assert texts("solve", "--set", "pro") == ["prove="] and texts("solve", "--set", "prove=t") == ["prove=true"]
    options = [f"{item.name}=" for item in dataclasses.fields(mapmrf.LSLP)]  # and nothing else, such as title=
    assert texts("tune", "--set", "") == texts("tune", "--grid", "") == options
    assert asked("solve", "mod") == [("file", "mod")]
    assert asked("solve", "model.uai", "--output", "x") == asked("info", "x") == [("file", "x")]
    assert asked("report", "records.jsonl", "--figures", "") == [("dir", "")]
    assert texts("completion", "b") == ["bash"]


@pytest.mark.skipif(BASH is None, reason="needs bash")
def test_bash_sources_the_script_and_completes(tmp_path: Path) -> None:
    program = tmp_path / "mapmrf"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mapmrf "$@"\n')
    program.chmod(0o755)
    (tmp_path / "script").write_text(run("completion", "bash").stdout)
    code = """
        source "$1/script" || exit 1
        complete -p mapmrf || exit 2
        COMP_WORDS=(mapmrf solve --method trw); COMP_CWORD=3
        _mapmrf_completion mapmrf
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    command = [str(BASH), "--norc", "-c", code, "bash", str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "-F _mapmrf_completion mapmrf" in done.stdout and done.stdout.splitlines()[-1] == "trws"


# -- settings ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options(Method):
    max_iterations: int = 10
    rho: float = 0.5
    fast: bool = False
    preset: str = "paper"
    limit: float | None = None
    mode: Literal["slow", "quick"] = "slow"
    level: int | str = 1

    def start(self, problem, seed, initial):
        raise NotImplementedError

    step = answer = start


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("max_iterations=20", 20),
        ("max-iterations=1e5", 100_000),
        ("rho=0.25", 0.25),
        ("rho = 3", 3.0),
        ("rho=inf", float("inf")),
        ("fast=yes", True),
        ("fast=False", False),
        ("preset=own=words", "own=words"),
        ("limit=none", None),
        ("limit=2", 2.0),
        ("mode=quick", "quick"),
        ("level=3", 3),
        ("level=high", "high"),
        ("unknown=7", "7"),
    ],
)
def test_values_take_the_type_of_the_option(text, value):
    (found,) = parse_settings(Options, [text]).values()
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rho", "found 'rho', expected key=value"),
        ("=3", "expected key=value"),
        ("rho=much", "option rho: found 'much', expected a number"),
        ("max_iterations=2.5", "expected a whole number"),
        ("max_iterations=inf", "expected a whole number"),
        ("fast=maybe", "expected true or false"),
        ("limit=never", "expected none or a number"),
        ("mode=other", "expected 'slow' or 'quick'"),
    ],
)
def test_other_values_are_refused(text, says):
    refuses(OptionError, says, parse_settings, Options, [text])


def test_grid_of_lists():
    assert parse_grid(mapmrf.LSLP, ["rho=1,2.5", "seeds=3"]) == {"rho": [1.0, 2.5], "seeds": [3]}
    assert parse_grid(mapmrf.BP, ["decode=argmax,sequential"]) == {"decode": ["argmax", "sequential"]}
    refuses(OptionError, "option eta: found '', expected a number", parse_grid, mapmrf.LSLP, ["eta=1,"])
    with pytest.raises(OptionError, match="found 'rho', expected seeds or an option of icm: max_iterations"):
        parse_grid(mapmrf.ICM, ["rho=1"])
