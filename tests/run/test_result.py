"""Result: gap, summary, JSON and the trace file."""

import csv
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FormatError, Kind, Result, Status
from mapmrf.model.polytope import KindFractions, Residuals
from mapmrf.run.result import TracePoint, read_trace, relative_gap
from refusals import refuses


def full() -> Result:
    return Result(
        labels=np.array([0, 2, 1]),
        value=-12.5,
        status=Status.TIME_LIMIT,
        method="lslp",
        bound=-11.25,
        relaxed_value=-11.5,
        kind=Kind.APPROXIMATE,
        kind_fractions=KindFractions(0.5, 0.25, 0.25),
        residuals=Residuals(0.01, 0.0, math.inf),
        iterations=17,
        compile_time=0.5,
        runtime=2.5,
        trace=(TracePoint(0.1, 1, -math.inf), TracePoint(0.2, 2, -12.5, bound=-11.25, phase="lp", extra={"rho": 0.5})),
        options={"rho": 0.1, "rho_upper": math.inf, "stop": "paper", "lp_phase": True, "limit": None},
        seed=3,
        version="1.2",
        details={"kkt": 1e-5, "worst": -math.inf},
    )


def test_json_brings_everything_back() -> None:
    result = full()
    again = Result.from_json(result.to_json(trace=True))
    assert again.labels.tolist() == result.labels.tolist()
    for name in set(Result.__dataclass_fields__) - {"labels", "mu_v"}:
        assert getattr(again, name) == getattr(result, name), name


def test_json_is_strict_even_with_infinite_numbers() -> None:
    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is not JSON")

    data = json.loads(full().to_json(trace=True), parse_constant=refuse)
    assert data["options"]["rho_upper"] == "inf"
    assert data["gap"] == pytest.approx(0.1)


def test_json_has_the_promised_fields_as_plain_numbers() -> None:
    data = json.loads(full().to_json())
    promised = {"value", "bound", "gap", "kind", "status", "iterations", "runtime", "method", "options", "labels"}
    assert promised <= set(data)
    assert "trace" not in data
    assert Result.from_json(full().to_json()).trace == ()
    result = Result(np.array([1]), 1.0, Status.CONVERGED, "x", options={"a": np.int64(3), "b": np.float64(0.5)})
    assert json.loads(result.to_json())["options"] == {"a": 3, "b": 0.5}


@given(
    value=st.floats(allow_nan=False, allow_infinity=True),
    bound=st.none() | st.floats(allow_nan=False, allow_infinity=True),
    labels=st.lists(st.integers(0, 9)),
)
def test_any_numbers_survive_json(value: float, bound: float | None, labels: list[int]) -> None:
    result = Result(np.array(labels, dtype=np.int64), value, Status.CONVERGED, "icm", bound=bound)
    again = Result.from_json(result.to_json())
    assert (again.value, again.bound, again.labels.tolist()) == (value, bound, labels)


@pytest.mark.parametrize("text", ["", "[]", "{}", "7", '{"labels": [0], "value": 1, "status": "done", "method": "x"}'])
def test_something_else_is_not_taken_for_a_result(text: str) -> None:
    refuses(FormatError, "not a result written by mapmrf", Result.from_json, text)


@pytest.mark.parametrize(
    ("field", "wrong", "said"),
    [
        ("labels", 3, "labels: expected a list"),
        ("labels", [1e400], "labels must be whole numbers"),
        ("labels", [0.5], "labels must be whole numbers"),
        *(
            (field, 10**400, "int too large to convert to float")
            for field in ("value", "bound", "runtime", "iterations")
        ),
        ("details", {"gap": 10**400}, "int too large to convert to float"),
        ("trace", [{"time": 0.0, "iterations": 1, "value": 10**400}], "int too large to convert to float"),
        (
            "trace",
            [{"time": 0.0, "iterations": 1, "value": 0.0, "extra": {"rho": 10**400}}],
            "int too large to convert to float",
        ),
        ("value", None, "value is None, expected a number"),
        ("bound", "x", "bound is 'x', expected a number"),
        ("iterations", [], "iterations is"),
        ("runtime", "inf", "runtime is inf, expected a finite number"),
        ("unit", True, "unit is True"),
        ("trace", [{"time": 0.0, "iterations": 1, "value": "x"}], "value is 'x'"),
    ],
)
def test_a_result_with_something_else_in_place_of_a_figure_is_refused(field: str, wrong: object, said: str) -> None:
    data = json.loads(full().to_json(trace=True)) | {field: wrong}
    refuses(FormatError, f"not a result written by mapmrf: .*{re.escape(said)}", Result.from_json, json.dumps(data))


def test_the_trace_file_has_a_row_for_every_point_with_finite_times(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    full().write_trace(path)
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["iterations"] for row in rows] == ["1", "2"]
    assert (rows[0]["value"], rows[0]["bound"], rows[0]["gap"]) == ("-inf", "", "")
    assert float(rows[1]["gap"]) == pytest.approx(0.1)
    assert rows[1]["phase"] == "lp"
    path = tmp_path / "trace.csv"
    path.write_text("time,iterations,value\n0.1,1,2.0\ninf,2,-inf\n")
    refuses(FormatError, r"trace\.csv: line 3: time is inf, expected a finite number", read_trace, path)


@pytest.mark.parametrize(
    ("value", "bound", "gap"),
    [
        (10.0, None, None),
        (10.0, 11.0, 0.1),
        (-10.0, -9.0, 0.1),
        (0.1, 0.3, 0.2),
        (10.0, 10.0, 0.0),
        (10.0, 9.999999, 0.0),
        (-math.inf, 3.0, math.inf),
        (-math.inf, -math.inf, 0.0),
        (3.0, math.inf, math.inf),
    ],
)
def test_the_gap_is_relative_and_never_negative(value: float, bound: float | None, gap: float | None) -> None:
    assert relative_gap(value, bound) == (None if gap is None else pytest.approx(gap))
    result = Result(np.zeros(0, dtype=np.int64), value, Status.CONVERGED, "x", bound=bound)
    assert result.gap == relative_gap(value, bound)


def test_the_summary_says_what_matters() -> None:
    text = full().summary()
    for part in ("-12.500000", "time_limit: stopped at the time limit", "-11.250000", "A+25%U+25%F", "17 iterations"):
        assert part in text
    bare = Result(np.zeros(1, dtype=np.int64), 1.0, Status.CONVERGED, "icm")
    assert "bound" not in bare.summary()
    assert repr(bare) == "Result(icm: value=1.000000, status=converged)"
    assert repr(full()) == "Result(lslp: value=-12.500000, gap=0.1, status=time_limit)"


@pytest.mark.parametrize("status", Status)
def test_every_status_has_a_meaning(status: Status) -> None:
    assert status.meaning
