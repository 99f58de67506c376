"""`mapmrf bench` and `mapmrf report` from the outside."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

import mapmrf
from command_line import refused
from command_line import run as call
from mapmrf.bench.records import read_records
from mapmrf.datasets import grid
from mapmrf.datasets.catalogue import COLUMNS


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine.uai"
    mapmrf.write(grid(3, 3, 2.0, seed=1), path)
    return path


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a run of one method on one model."""
    folder = tmp_path_factory.mktemp("bench")
    mapmrf.write(grid(3, 3, 2.0, seed=1), folder / "mine.uai")
    call("bench", folder / "mine.uai", "--methods", "exhaustive", "-o", folder / "r.jsonl")
    return folder / "r.jsonl"


def test_own_models_are_run_recorded_and_reported(tmp_path: Path, model: Path) -> None:
    records, page = tmp_path / "r.jsonl", tmp_path / "report.html"
    arguments = ("bench", model, "--methods", "icm,exhaustive", "--seeds", "0,1", "-o", records, "--time-limit", 5)
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert "4 runs recorded, 0 done before, 0 left of 4" in done.stdout
    assert {(r["run"], r["seed"]) for r in read_records(records)} == {
        ("icm", 0), ("icm", 1), ("exhaustive", 0), ("exhaustive", 1),
    }  # fmt: skip
    assert "0 runs recorded, 4 done before" in call(*arguments).stdout
    assert call("report", records, "-o", page).exit_code == 0
    assert "mine" in page.read_text(encoding="utf-8")
    printed = call("report", records)
    assert "Own models: log potential" in printed.stdout


def test_csv_is_a_file_for_each_table(tmp_path: Path, records: Path) -> None:
    assert "tables: " in call("report", records, "-o", tmp_path / "t.csv").stdout
    assert call("report", records, "-o", f"{tmp_path / 'new' / 'tables'}/").exit_code == 0
    beside = {path.name.removeprefix("t-"): path.read_text() for path in tmp_path.glob("t-*.csv")}
    within = {path.name: path.read_text() for path in (tmp_path / "new" / "tables").iterdir()}
    assert beside == within and {"datasets.csv", "own-overview.csv", "own-logpot.csv"} <= set(within)
    assert not (tmp_path / "t.csv").exists()
    assert call("report", records, "--tables", "own-logpot", "-o", tmp_path / "t.csv").stdout == ""
    assert (tmp_path / "t.csv").read_text() == within["own-logpot.csv"]
    (row,) = csv.DictReader(io.StringIO(within["own-logpot.csv"]))
    assert row["model"] == "mine" and float(row["exhaustive"]) == pytest.approx(read_records(records)[0]["value"])
    assert row["exhaustive rank"] == "1"


def test_tables_can_be_chosen(tmp_path: Path, records: Path) -> None:
    assert call("report", records, "--tables", "datasets").stdout.startswith("Statistics of the sets\n")
    text = call("report", records, "--tables", "own-l*,datasets").stdout
    assert "Own models: log potential" in text and "iterations" not in text
    said = "found 'own-logpt', expected one of 8 such as own-logpot"
    assert said in refused("report", records, "--tables", "own-logpt")
    page = ("--tables", "datasets", "-o", tmp_path / "x.html")
    assert "--tables cannot be combined" in refused("report", records, *page)


def test_printed_tables_fit_and_large_ones_come_in_parts(tmp_path: Path, records: Path) -> None:
    (one,) = read_records(records)
    names = [f"a run with a rather long name {number}" for number in range(9)]
    lines = [json.dumps({**one, "key": name, "run": name}) for name in names]
    (tmp_path / "r.jsonl").write_text("\n".join([*lines, ""]))
    text = call("report", tmp_path / "r.jsonl", "--tables", "own-logpot").stdout
    assert "Own models: log potential (1 of " in text and all(name in text for name in names)
    assert max(map(len, text.splitlines())) <= 120


def test_a_plan_names_runs_and_the_command_line_overrides_it(tmp_path: Path, model: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'models = ["{model}"]\nseeds = [0, 1, 2]\ntime_limit = 3\n'
        '[[run]]\nmethod = "exhaustive"\nname = "all"\n'
        '[[run]]\nmethod = "exhaustive"\noptions = { max_labellings = 4 }\n'
    )
    done = call("bench", "--plan", plan, "-o", tmp_path / "r.jsonl", "--seeds", "7")
    assert done.exit_code == 0, done.output
    records = read_records(tmp_path / "r.jsonl")
    assert {(r["run"], r["seed"], r["outcome"]) for r in records} == {
        ("all", 7, "done"), ("exhaustive max_labellings=4", 7, "unsupported"),
    }  # fmt: skip
    assert {r["time_limit"] for r in records} == {3.0}


def test_a_bad_model_is_a_record_and_is_said(tmp_path: Path, model: Path) -> None:
    bad = tmp_path / "bad.uai"
    bad.write_text("MARKOV\n1\n")
    done = call("bench", model, bad, "--methods", "exhaustive", "-o", tmp_path / "r.jsonl")
    assert done.exit_code == 0
    assert "not done: 1 error" in done.stdout


def test_files_of_the_catalogue_are_found_and_carry_their_index(tmp_path: Path) -> None:
    folder = tmp_path / "data" / "grids"
    folder.mkdir(parents=True)
    mapmrf.write(grid(2, 2), folder / "grid20x20.f10.uai")
    done = call("bench", "--data", tmp_path / "data", "--methods", "exhaustive", "-o", tmp_path / "r.jsonl")
    assert done.exit_code == 0, done.output
    (record,) = read_records(tmp_path / "r.jsonl")
    assert (record["set"], record["index"], record["model"]) == ("grids", "M1", "grid20x20.f10")
    assert (record["checksum"], record["best"]) == ("differs", None)
    assert "grid20x20.f10.uai: differs from the catalogue" in done.stderr
    assert "no model of seg-2, seg-21, scene, protein is present" in done.stderr
    assert "(not the catalogue's)" in call("report", tmp_path / "r.jsonl", "--tables", "grids-logpot").stdout


def planned(monkeypatch: pytest.MonkeyPatch, *arguments: Any) -> tuple[Result, list[Any]]:
    import mapmrf.bench.runner as runner

    seen: list[Any] = []
    nothing = runner.Summary(0, 0, 0, False, {})
    monkeypatch.setattr(runner, "run_all", lambda tasks, *_, **__: seen.extend(tasks) or nothing)
    return call("bench", *arguments), seen


def test_the_default_method_is_among_the_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.registry.DEFAULT_METHOD", "exhaustive")
    done, tasks = planned(monkeypatch, "--quick", "-o", tmp_path / "r.jsonl")
    assert done.exit_code == 0, done.output
    assert {task.run.method for task in tasks} == {*COLUMNS, "exhaustive"}


def absent(monkeypatch: pytest.MonkeyPatch, *there: str) -> None:
    from mapmrf.bench import peers

    monkeypatch.setattr(peers, "installed", lambda: list(there))


def test_missing_peers_are_said_and_how_to_install_them(tmp_path, model, monkeypatch) -> None:
    out = ("-o", tmp_path / "r.jsonl")
    absent(monkeypatch)
    done, tasks = planned(monkeypatch, model, "--methods", "icm", "--peers", *out)
    assert done.exit_code == 0 and {task.run.name for task in tasks} == {"icm"}
    assert "not installed: cpsat, dwave" in done.stderr and "pip install 'mapmrf[peers]'" in done.stderr
    for arguments in (["--methods", "peers"], ["--methods", "peer:cpsat,icm"]):
        done, tasks = planned(monkeypatch, model, *arguments, *out)
        assert done.exit_code == 2 and not tasks
        assert "cpsat" in done.stderr and "ortools" in done.stderr and len(done.stderr.splitlines()) == 1
    absent(monkeypatch, "qpbo")
    done, tasks = planned(monkeypatch, model, "--methods", "peers", *out)
    assert done.exit_code == 0 and {task.run.name for task in tasks} == {"peer:qpbo"}
    assert "not installed: cpsat, dwave, pgmax, pgmpy, toulbar2" in done.stderr


def test_without_data_look_alikes_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPMRF_DATA", str(tmp_path / "nothing"))
    done, seen = planned(monkeypatch, "--sets", "seg-2,grids", "--methods", "icm", "-o", tmp_path / "r.jsonl")
    assert "using look-alikes instead" in done.stderr
    assert {task.model.set for task in seen} == {"seg-2-like", "grids-like"}
    assert len(seen) == 50 + 21


def test_reports_of_nothing_and_of_something_else_are_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "e.jsonl", tmp_path / "o.jsonl"
    empty.write_text("")
    other.write_text('{"some": "thing"}\n')
    for path, message in ((empty, "no records"), (other, "line 1"), (tmp_path / "none.jsonl", "none.jsonl")):
        assert message in refused("report", path)
    good = tmp_path / "g.jsonl"
    lost = {"key": "k", "set": "own", "model": "m", "run": "r", "method": "icm", "outcome": "crash", "message": ""}
    good.write_text(json.dumps({**lost, "time_limit": 1.0}) + "\n")
    for output, message in (("page.pdf", ".html"), ("none/t.md", "there is no folder"), ("none/t.csv", "no folder")):
        assert message in refused("report", good, "-o", tmp_path / output)
    assert not list(tmp_path.glob("page*"))
    assert call("report", good, "-o", tmp_path / "page.html").exit_code == 0  # nothing but a crash is a page too
    assert "crash" in (tmp_path / "page.html").read_text()
