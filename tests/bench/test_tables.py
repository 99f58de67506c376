"""Tables from records: figures, ranks, the paper's columns, and the forms they are written in."""

from __future__ import annotations

import csv
import io
import math
from typing import Any

import pytest

from mapmrf.bench.forms import to_csv, to_latex, to_markdown, to_text
from mapmrf.bench.tables import Cell, Table, group, ranks, tables


def record(model: str, run: str, value: float | None, *, which: str = "grids", **more: Any) -> dict[str, Any]:
    base = {
        "key": f"{which}{model}{run}{more.get('seed', 0)}",
        "set": which,
        "index": {"grid20x20.f10": "M1", "grid40x40.f10": "M6", "grid80x80.f10": "M14"}.get(model, ""),
        "model": model,
        "run": run,
        "method": run.split()[0],
        "outcome": "done" if value is not None else "crash",
        "best": None,
        "time_limit": 60.0,
    }
    if value is not None:
        base |= {"value": value, "status": "converged", "iterations": 10, "runtime": 1.5, "compile_time": 0.5}
    return base | more


def named(records: list[dict[str, Any]], name: str) -> Table:
    return next(table for table in tables(records) if table.name == name)


def column(table: Table, name: str, nth: int = 0) -> list[str]:
    places = [k for k, text in enumerate(table.columns) if text == name]
    return [row[places[nth]].text for row in table.rows]


RECORDS = [
    record("grid80x80.f10", "lslp", 48800.0, best=50494.0752, bound=62950.0),
    record("grid20x20.f10", "lslp", 3000.0, best=3015.7447, bound=3740.0, kind_text="V"),
    record("grid20x20.f10", "icm", 2708.93, best=3015.7447),
    record("grid20x20.f10", "lp", 100.0, relaxed_value=3736.73, bound=3736.73, best=3015.7447, kind_text="U"),
    record("grid20x20.f10", "bp", None, best=3015.7447),
]


def test_the_papers_column_stands_beside_ours() -> None:
    table = named(RECORDS, "grids-logpot")
    assert column(table, "") == ["M1", "M14", ""]
    assert column(table, "lslp") == ["3000.00 (1)", "48800.00 (1)", "1.00"]
    assert column(table, "paper", 3) == ["2931.80", "48766.10", ""]
    assert column(table, "difference", 3) == ["+68.20", "+33.90", ""]
    assert column(table, "best known") == ["3015.74", "50494.08", ""]


def test_methods_stand_in_the_papers_order_and_a_crash_leaves_its_cell_empty() -> None:
    table = named(RECORDS, "grids-logpot")
    assert [name for name in table.columns if name in ("lp", "icm", "bp", "lslp")] == ["lp", "icm", "bp", "lslp"]
    assert column(table, "bp") == ["", "", ""]


def test_unrounded_values_are_compared_where_the_paper_prints_them_but_ranks_go_by_labellings() -> None:
    table = named(RECORDS, "grids-logpot")
    assert column(table, "lp")[0] == "3736.73 (3)"
    assert column(table, "difference", 0)[0] == "+0.03"


def test_equal_values_share_a_rank() -> None:
    mine = group(
        [record("a", "icm", 2.0), record("a", "bp", 2.0 + 1e-9), record("a", "lp", 1.0), record("a", "x", -math.inf)]
    )[0]
    assert ranks(mine, "a") == {"icm": 1.0, "bp": 1.0, "lp": 3.0, "x": 4.0}


def test_the_overview_counts_hits_and_proofs_and_a_better_value_than_known_becomes_the_best() -> None:
    table = named([*RECORDS, record("grid20x20.f10", "auto", 3016.0, status="optimal")], "grids-overview")
    rows = {row[0].text: [cell.text for cell in row[2:5]] for row in table.rows}
    assert rows["auto"] == ["1", "1", "1"]
    assert rows["lslp"] == ["2", "0", "0"]
    assert "bp" not in rows


def test_means_over_a_set_stand_beside_the_papers() -> None:
    records = [record(model, "icm", value, which="seg-2") for model, value in (("a", -100.0), ("b", -140.0))]
    table = named(records, "seg-2-logpot-mean")
    assert [cell.text for cell in table.rows[0]] == [
        "icm",
        "2",
        "-120.000",
        "-137.10",
        "+17.10",
        "28.284",
        "70.10",
        "-41.82",
    ]
    assert column(named(records, "seg-2-runtime-mean"), "mean") == ["1.0000"]


def test_seeds_are_averaged() -> None:
    records = [record("a", "icm", value, which="own", seed=seed) for seed, value in enumerate((1.0, 2.0))]
    assert column(named(records, "own-logpot"), "icm")[0] == "1.50 (1)"


def test_kinds_and_bounds_have_tables_of_their_own() -> None:
    assert column(named(RECORDS, "grids-kinds"), "lp") == ["U", ""]
    bounds = named(RECORDS, "grids-bounds")
    assert column(bounds, "lp") == ["3736.73", ""]
    assert [row[3].best for row in bounds.rows] == [True, False]
    assert {table.name for table in tables(RECORDS[2:3])} == {
        "grids-overview", "grids-logpot", "grids-iters", "grids-runtime",
    }  # fmt: skip


def test_every_row_has_a_cell_for_every_column() -> None:
    for table in tables([*RECORDS, record("a", "icm", 1.0, which="seg-2")]):
        assert all(len(row) == len(table.columns) for row in table.rows)


TABLE = Table(
    "t", "A & B", ["", "na|me_x", "value"],
    [[Cell("M1", 1.0), Cell("a|b", None), Cell("-1.50 (1)", -1.5, best=True)], [Cell(), Cell("50%"), Cell()]],
    "A note.",
)  # fmt: skip


def test_text_is_aligned() -> None:
    lines = to_text(TABLE).splitlines()
    assert lines[0] == "A & B"
    assert lines[2:6] == ["    na|me_x       value", "--  -------  ----------", "M1  a|b      -1.50 (1)*", "    50%"]
    assert lines[-1] == "A note."


def test_markdown_escapes_bars_and_marks_the_best() -> None:
    text = to_markdown(TABLE)
    assert "| M1 | a\\|b | **-1.50 (1)** |" in text
    assert "| --- | --- | ---: |" in text


def test_latex_escapes_what_is_special() -> None:
    text = to_latex(TABLE)
    assert r"\caption{A \& B. A note.}" in text
    assert r"M1 & a|b & \textbf{$-$1.50 (1)} \\" in text
    assert r" & 50\% &  \\" in text
    assert r"na|me\_x" in text


def test_csv_has_figures_in_full() -> None:
    rows = list(csv.reader(io.StringIO(to_csv(TABLE))))
    assert rows == [["", "na|me_x", "value"], ["M1", "a|b", "-1.5"], ["", "50%", ""]]


@pytest.mark.parametrize("form", [to_text, to_markdown, to_latex, to_csv])
def test_every_table_can_be_written(form: Any) -> None:
    for table in tables(RECORDS):
        assert form(table)


def test_a_run_without_a_finite_value_is_left_out_of_means() -> None:
    records = [record(model, "icm", value, which="seg-2") for model, value in (("a", -math.inf), ("b", -140.0))]
    assert [cell.text for cell in named(records, "seg-2-logpot-mean").rows[0]][:3] == ["icm", "1", "-140.000"]


def test_runs_of_different_time_limits_are_told_apart() -> None:
    records = [record("a", "icm", value, which="own", time_limit=limit) for limit, value in ((1.0, 1.0), (2.0, 3.0))]
    table = named(records, "own-logpot")
    assert column(table, "icm 1 s")[0] == "1.00 (2)" and column(table, "icm 2 s")[0] == "3.00 (1)"
