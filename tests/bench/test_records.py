"""Records survive kills, are never doubled, and come back as they were."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mapmrf import FormatError, MapMRFError
from mapmrf.bench.records import TRACE_COLUMNS, RecordFile, pack_labels, read_records, thin, unpack_labels
from mapmrf.run.result import TracePoint
from refusals import refuses


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


@pytest.mark.parametrize(
    "line",
    [
        "nonsense",
        "[1]",
        '{"key": "a"}',
        json.dumps(record("b", value="much")),
        json.dumps(record("b", value=None)),
        json.dumps(record("b", trace=3)),
        json.dumps(record("b", model=3)),
        json.dumps(record("b", time_limit="long")),
    ],
)
def test_a_file_of_something_else_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps(record("a")) + "\n" + line + "\n")
    refuses(FormatError, r"r\.jsonl: line 2: found .*, expected a record", read_records, path)
    before = path.read_bytes()
    with pytest.raises(FormatError):
        RecordFile(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("labels", [[], [0, 1, 2], [0, 255, 3], [0, 70000]])
def test_labels_are_packed_and_unpacked(labels: list[int]) -> None:
    text = pack_labels(np.array(labels, dtype=np.int64))
    assert text is not None and unpack_labels(text).tolist() == labels


def test_huge_labellings_are_left_out_and_nonsense_is_refused() -> None:
    assert pack_labels(np.zeros(100_001, dtype=np.int64)) is None
    refuses(FormatError, "packed labels", unpack_labels, "u1:!!")


def test_a_long_trace_keeps_its_ends_and_its_order() -> None:
    points = [
        TracePoint(time=0.01 * k, iterations=k, value=float(k // 100), bound=100.0 - k // 50) for k in range(5000)
    ]
    rows = thin(points, 60)
    assert 30 <= len(rows) <= 60
    times = [row[0] for row in rows]
    assert times == sorted(set(times))
    assert (rows[0][1], rows[-1][1]) == (0, 4999)
    assert rows[-1][TRACE_COLUMNS.index("phase")] == ""
    assert rows[-1][2] == 49.0
    assert len(thin(points[:50], 60)) == 50


def test_a_long_trace_keeps_the_beginnings_of_its_phases() -> None:
    phases = ["relax"] * 2000 + ["search"] * 2500 + ["prove"] * 500
    points = [TracePoint(0.01 * k, k, float(k), phase=phase) for k, phase in enumerate(phases)]
    rows = thin(points, 40)
    place = TRACE_COLUMNS.index("phase")
    first = {phase: next(row[1] for row in rows if row[place] == phase) for phase in ("relax", "search", "prove")}
    assert first == {"relax": 0, "search": 2000, "prove": 4500}


@pytest.mark.parametrize("content", ["my precious notes", "line one\nline two", "MARKOV\n1\n2\n0"])
def test_a_file_of_something_else_is_never_touched(tmp_path: Path, content: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(content)
    refuses(FormatError, "expected", RecordFile, path)
    assert path.read_text() == content


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
