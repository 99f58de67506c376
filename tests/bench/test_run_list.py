"""Plans, which runs there are and when two are the same; and records, which survive kills and are never doubled."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from mapmrf import FormatError, MapMRFError, OptionError
from mapmrf.bench.records import TRACE_COLUMNS, RecordFile, pack_labels, read_records, thin, unpack_labels
from mapmrf.bench.run_list import MethodConfig, ModelRef, RunList, from_files, of_set, read_plan
from mapmrf.datasets import entries, grid
from mapmrf.run.result import TracePoint
from refusals import refuses

MODELS = [ModelRef("own", "a", "/x/a.uai"), ModelRef("own", "b", "/x/b.uai")]


def test_every_run_on_every_model_with_every_seed_once() -> None:
    plan = RunList([MethodConfig("icm"), MethodConfig("icm", {"starts": 3}), MethodConfig("icm")], MODELS, seeds=(0, 1))
    tasks = plan.tasks()
    assert len(tasks) == 2 * 2 * 2 == len({task.key for task in tasks})
    assert [task.model.name for task in tasks] == ["a"] * 4 + ["b"] * 4
    assert {task.run.name for task in tasks} == {"icm", "icm starts=3"}


def test_the_key_depends_on_the_run_and_not_on_the_folder() -> None:
    def key(path: str = "/x/a.uai", seed: int = 0, limit: float = 1.0, digest: str = "", **options: object) -> str:
        model = ModelRef("own", "a", path, digest=digest)
        return RunList([MethodConfig("icm", options)], [model], [seed], limit).tasks()[0].key

    assert key() == key(path="/elsewhere/a.uai")
    assert key(digest="12") == key(path="/elsewhere/a.uai.gz", digest="12")
    others = [key(seed=1), key(limit=2.0), key(starts=2), key(digest="12"), key(path="/x/a.uai.gz")]
    assert len({key(), *others}) == 6


def test_a_plan_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(
        'sets = ["grids"]\nseeds = [0, 1]\ntime_limit = 5\nmethods = ["icm"]\n'
        '[[run]]\nmethod = "lslp"\nname = "as printed"\noptions = { preset = "paper", rho = 0.5 }\n'
    )
    plan = read_plan(path)
    assert plan["run"] == [MethodConfig("lslp", {"preset": "paper", "rho": 0.5}, "as printed")]
    assert (plan["sets"], plan["seeds"], plan["time_limit"], plan["methods"]) == (["grids"], [0, 1], 5, ["icm"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sets = [", "plan.toml: "),
        ("set = []", "found 'set', expected one of .*, did you mean 'sets'"),
        ("sets = 'grids'", "sets is 'grids', expected a list of str"),
        ("seeds = [0.5]", r"seeds is \[0.5\], expected a list of int"),
        ("time_limit = 'long'", "time_limit is 'long'"),
        ("[[run]]\nmethods = 'icm'", "a run is .*, expected method"),
        ("[[run]]\nmethod = 'icm'\noptions = { start = 1 }", "did you mean 'starts'"),
    ],
)
def test_a_bad_plan_is_refused_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(text)
    with pytest.raises(OptionError, match=message) as error:
        read_plan(path)
    assert "\n" not in str(error.value)


def test_own_files_are_known_by_their_content_and_clashing_names_get_their_folder(tmp_path: Path) -> None:
    paths = [tmp_path / "a" / "m.uai", tmp_path / "b" / "m.uai", tmp_path / "a" / "some.f10.uai.gz"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
    models = from_files(paths)
    assert [model.name for model in models] == ["a/m.uai", "b/m.uai", "some.f10"]
    assert len({model.identity for model in models}) == 3
    paths[2].write_text("changed")
    assert from_files(paths)[2].identity != models[2].identity
    refuses(OptionError, r"none\.uai: no such file", from_files, [tmp_path / "none.uai"])


PLAN = {"runs": [MethodConfig("icm")], "models": MODELS}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RunList(**PLAN | {"seeds": (-1,)}), "a seed is -1"),
        (lambda: RunList(**PLAN | {"seeds": (True,)}), "a seed is True"),
        (lambda: RunList(**PLAN | {"time_limit": float("nan")}), "time_limit is nan"),
        (lambda: RunList(**PLAN | {"time_limit": -1.0}), "time_limit is -1"),
        (
            lambda: RunList(**PLAN | {"runs": [MethodConfig("icm", {}, "x"), MethodConfig("lp", {}, "x")]}),
            "two different runs are named 'x'",
        ),
        (lambda: MethodConfig(*("lslp", {"rho": "a"})), "lslp: rho is .a., expected a number"),
        (lambda: MethodConfig(*("icm", {"start": 3})), "did you mean 'starts'"),
        (lambda: MethodConfig(*("peer:nobody",)), "no peer is named 'nobody'"),
        (lambda: MethodConfig(*("peer:cpsat", {"x": 1})), "has no options"),
    ],
)
def test_an_impossible_plan_or_run_is_refused(make: Callable[[], object], message: str) -> None:
    refuses(OptionError, message, make)


def test_a_file_that_is_not_the_catalogues_is_a_model_of_its_own(tmp_path, caplog) -> None:
    folder = tmp_path / "grids"
    folder.mkdir()
    mapmrf.write(grid(2, 2), folder / "grid20x20.f10.uai")
    mapmrf.write(grid(2, 3), folder / "grid80x80.f5.uai")  # the catalogue has no checksum of this one
    wrong, unknown = of_set("grids", tmp_path)
    assert (wrong.checksum, wrong.best, wrong.index) == ("differs", None, "M1")
    assert "grid20x20.f10.uai: differs from the catalogue" in caplog.text
    assert (unknown.checksum, unknown.digest) == ("unknown", "")
    right = entries("grids")[0].sha256
    assert right is not None and right not in wrong.identity
    assert RunList([MethodConfig("icm")], [wrong]).tasks()[0].fields()["checksum"] == "differs"


# -- records ----------------------------------------------------------------------------------------------------------


def record(key: str, **more: object) -> dict[str, object]:
    base = {"key": key, "set": "own", "model": "m", "run": "icm", "method": "icm", "time_limit": 1.0, "message": ""}
    return {**base, "outcome": "done", "value": 0.0, "status": "converged", "runtime": 0.1, "trace": [], **more}


def test_records_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as file:
        file.append(record("a", value=-math.inf, trace=[[0.5, 1, -math.inf, None]], options={"tol": np.float64(0.1)}))
        file.append(record("b", value=2))
    first, second = read_records(path)
    assert first["value"] == -math.inf and first["trace"] == [[0.5, 1, -math.inf, None]]
    assert first["options"] == {"tol": 0.1}
    assert second == record("b", value=2)
    assert all(json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines())


@pytest.mark.parametrize(
    "torn", [b'{"key": "c", "mod', b"{", b'{"key": "c", "model": "m", "run": "r", "outcome": "done"}']
)
def test_a_torn_last_line_is_cut_off_and_written_anew(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r.jsonl"
    with RecordFile(path) as file:
        file.append(record("a"))
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert [r["key"] for r in read_records(path)] == ["a"]
    with RecordFile(path) as file:
        assert file.keys == {"a"}
        file.append(record("c"))
    assert [r["key"] for r in read_records(path)] == ["a", "c"]


def test_a_second_record_or_a_second_benchmark_is_refused(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "r.jsonl") as file:
        file.append(record("a"))
        refuses(MapMRFError, "already", file.append, record("a"))
    assert len(read_records(tmp_path / "r.jsonl")) == 1
    pytest.importorskip("fcntl")
    with RecordFile(tmp_path / "r.jsonl"), pytest.raises(MapMRFError, match="another benchmark"):
        RecordFile(tmp_path / "r.jsonl")
    RecordFile(tmp_path / "r.jsonl").close()


GOOD = json.dumps(record("a")) + "\n"
BAD = [{"value": "much"}, {"value": None}, {"trace": 3}, {"model": 3}, {"time_limit": "long"}]


@pytest.mark.parametrize(
    "content",
    [
        *(f"{GOOD}{line}\n" for line in ("nonsense", "[1]", '{"key": "a"}')),
        *(GOOD + json.dumps(record("b", **more)) + "\n" for more in BAD),
        *("my precious notes", "line one\nline two", "MARKOV\n1\n2\n0"),
    ],
)
def test_a_file_of_something_else_is_refused_and_never_touched(tmp_path: Path, content: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(content)
    if content.startswith(GOOD):
        refuses(FormatError, r"r\.jsonl: line 2: found .*, expected a record", read_records, path)
    refuses(FormatError, "expected", RecordFile, path)
    assert path.read_text() == content


@pytest.mark.parametrize("labels", [[], [0, 1, 2], [0, 255, 3], [0, 70000]])
def test_labels_are_packed_and_unpacked(labels: list[int]) -> None:
    text = pack_labels(np.array(labels, dtype=np.int64))
    assert text is not None and unpack_labels(text).tolist() == labels


def test_huge_labellings_are_left_out_and_nonsense_is_refused() -> None:
    assert pack_labels(np.zeros(100_001, dtype=np.int64)) is None
    refuses(FormatError, "packed labels", unpack_labels, "u1:!!")


def test_a_long_trace_keeps_its_ends_its_order_and_the_beginnings_of_its_phases() -> None:
    phases = ["relax"] * 2000 + ["search"] * 2500 + ["prove"] * 500
    points = [TracePoint(0.01 * k, k, float(k // 100), 100.0 - k // 50, phase=one) for k, one in enumerate(phases)]
    rows = thin(points, 60)
    assert 30 <= len(rows) <= 60 and len(thin(points[:50], 60)) == 50
    times = [row[0] for row in rows]
    assert times == sorted(set(times))
    assert (rows[0][1], rows[-1][1], rows[-1][2]) == (0, 4999, 49.0)
    place = TRACE_COLUMNS.index("phase")
    first = {phase: next(row[1] for row in rows if row[place] == phase) for phase in ("relax", "search", "prove")}
    assert first == {"relax": 0, "search": 2000, "prove": 4500}


def test_of_two_records_of_a_run_the_last_one_counts(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lost = record("a", outcome="crash")
    path.write_text(json.dumps(lost) + "\n")
    with RecordFile(path, retry=True) as file:
        file.append(record("a", value=3.0))
    assert [r["value"] for r in read_records(path, path)] == [3.0]


def test_a_model_may_be_called_inf(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "r.jsonl") as file:
        file.append(record("a", model="inf", run="nan", value=-math.inf))
    (only,) = read_records(tmp_path / "r.jsonl")
    assert (only["model"], only["run"], only["value"]) == ("inf", "nan", -math.inf)
