"""`mapmrf bench` and `mapmrf report` from the outside."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import mapmrf
from mapmrf.bench.records import read_records
from mapmrf.cli import main
from mapmrf.datasets import grid


def call(*arguments: Any) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "mine.uai"
    mapmrf.write(grid(3, 3, 2.0, seed=1), path)
    return path


def test_own_models_are_run_recorded_and_reported(tmp_path: Path, model: Path) -> None:
    records, page = tmp_path / "r.jsonl", tmp_path / "report.html"
    arguments = ("bench", model, "--methods", "icm,exhaustive", "--seeds", "0,1", "-o", records, "--time-limit", 5)
    done = call(*arguments)
    assert done.exit_code == 0, done.output
    assert "4 runs recorded, 0 were there, 0 left of 4" in done.stdout
    assert {(r["run"], r["seed"]) for r in read_records(records)} == {
        ("icm", 0), ("icm", 1), ("exhaustive", 0), ("exhaustive", 1),
    }  # fmt: skip
    assert "0 runs recorded, 4 were there" in call(*arguments).stdout
    assert call("report", records, "-o", page).exit_code == 0
    assert "mine" in page.read_text(encoding="utf-8")
    printed = call("report", records)
    assert "Own models: log potential" in printed.stdout


@pytest.mark.parametrize(
    ("suffix", "sign"), [(".md", "### Own"), (".tex", r"\toprule"), (".csv", "model,"), (".txt", "---")]
)
def test_tables_are_written_in_the_form_of_the_suffix(tmp_path: Path, model: Path, suffix: str, sign: str) -> None:
    records, out = tmp_path / "r.jsonl", tmp_path / f"tables{suffix}"
    call("bench", model, "--methods", "exhaustive", "-o", records)
    assert call("report", records, "-o", out).exit_code == 0
    assert sign in out.read_text(encoding="utf-8")


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


def test_without_data_look_alikes_take_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPMRF_DATA", str(tmp_path / "nothing"))
    import mapmrf.bench.runner as runner

    seen: list[Any] = []
    monkeypatch.setattr(runner, "run_all", lambda tasks, *_, **__: seen.extend(tasks) or runner.Summary(0, 0, 0, False))
    done = call("bench", "--sets", "seg-2,grids", "--methods", "icm", "-o", tmp_path / "r.jsonl")
    assert "look-alikes take their place" in done.stderr
    assert {task.model.set for task in seen} == {"seg-2-like", "grids-like"}
    assert len(seen) == 50 + 21


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sets", "grid"], "sets: found 'grid', expected some of seg-2"),
        (["--data", "nowhere"], "--data: nowhere is no folder"),
        (["nowhere.uai"], "nowhere.uai: there is no such file"),
        (["--methods", "lslpp"], "no method is named 'lslpp'"),
        (["--seeds", "a"], "--seeds: found 'a', expected whole numbers"),
        (["--plan", "none.toml"], "none.toml"),
    ],
)
def test_bad_usage_is_one_line_and_writes_nothing(tmp_path: Path, arguments: list[str], message: str) -> None:
    records = tmp_path / "r.jsonl"
    done = call("bench", "-o", records, *arguments)
    assert done.exit_code == 2
    assert message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not records.exists()


def test_reports_of_nothing_and_of_something_else_are_refused(tmp_path: Path) -> None:
    empty, other = tmp_path / "e.jsonl", tmp_path / "o.jsonl"
    empty.write_text("")
    other.write_text('{"some": "thing"}\n')
    for path, message in ((empty, "no records"), (other, "line 1"), (tmp_path / "none.jsonl", "none.jsonl")):
        done = call("report", path)
        assert done.exit_code == 2 and message in done.stderr
    good = tmp_path / "g.jsonl"
    lost = {"key": "k", "set": "own", "model": "m", "run": "r", "method": "icm", "outcome": "crash", "message": ""}
    good.write_text(json.dumps({**lost, "time_limit": 1.0}) + "\n")
    done = call("report", good, "-o", tmp_path / "page.pdf")
    assert done.exit_code == 2 and ".html" in done.stderr
