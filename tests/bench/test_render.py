"""Tables in their forms: aligned, escaped, marked, and split where they are too wide."""

from __future__ import annotations

import csv
import io
import re

import pytest

from mapmrf.bench.render import (
    TEX_ROWS,
    Cell,
    Column,
    Table,
    all_tables,
    number,
    to_csv,
    to_latex,
    to_markdown,
    to_text,
)

TABLE = Table(
    "t", "A & B", [Column("no.", key=True), Column("na|me_x"), Column("value")],
    [[Cell("M1", 1.0), Cell("a|b"), Cell("-1.50", -1.5, best=True, rank=1)], [Cell(), Cell("50%"), Cell()]],
    "A note.",
)  # fmt: skip


def wide(runs: int, rows: int = 3) -> Table:
    """A table as of log potentials: for every run ours, the paper's and the difference."""
    columns = [Column("no.", key=True), Column("model", key=True), Column("best known")]
    columns += [Column(part, f"run{k}") for k in range(runs) for part in ("ours", "paper", "difference")]
    figures = [number(1000.0 + k, 2) for k in range(3 * runs)]
    body = [[Cell(f"M{n}", float(n)), Cell(f"model{n}"), number(2000, 2), *figures] for n in range(rows)]
    below = [Cell(), Cell("mean rank"), Cell(), *([number(1, 2), Cell(), Cell()] * runs)]
    return Table("w", "Wide", columns, body, "Said once.", below)


# -- splitting --------------------------------------------------------------------------------------------------------


def test_parts_repeat_the_keys_keep_runs_together_and_lose_nothing() -> None:
    table = wide(7)
    parts = table.split(80, lambda cell: len(cell.shown), 2)
    assert len(parts) > 1
    seen = []
    for part in parts:
        names = [column.full for column in part.columns]
        assert names[:2] == ["no.", "model"]
        assert [row[1].text for row in part.rows] == ["model0", "model1", "model2"]
        assert part.summary is not None and len(part.summary) == len(part.columns)
        assert len(to_text(part, 1000).splitlines()[2]) <= 80
        for of in {column.of for column in part.columns if column.of}:
            assert [column.name for column in part.columns if column.of == of] == ["ours", "paper", "difference"]
        seen += names[2:]
    assert seen == [column.full for column in table.columns][2:]
    assert [part.title for part in parts] == [f"Wide ({n} of {len(parts)})" for n in range(1, len(parts) + 1)]


def test_a_table_that_fits_is_left_alone_and_a_run_is_never_cut() -> None:
    assert wide(2).split(1000, lambda cell: len(cell.shown), 2) == [wide(2)]
    parts = wide(3).split(5, lambda cell: len(cell.shown), 2)
    assert [sum(column.name == "ours" for column in part.columns) for part in parts] == [0, 1, 1, 1]


# -- forms ------------------------------------------------------------------------------------------------------------


def test_text_is_aligned() -> None:
    lines = to_text(TABLE).splitlines()
    assert lines[0] == "A & B"
    assert lines[2:4] == ["no.  na|me_x       value", "---  -------  ----------"]
    assert lines[4:6] == ["M1   a|b      -1.50 (1)*", "     50%"]
    assert lines[-1] == "A note."


def test_wide_text_comes_in_parts_that_fit_with_the_runs_above_their_columns() -> None:
    lines = to_text(wide(9), 100).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line == "Said once." for line in lines) == 1
    above = next(line for line in lines if "run0" in line)
    below = lines[lines.index(above) + 1]
    assert below.index("ours") < above.index("run0") < below.index("difference")


def test_special_characters_are_escaped_in_markdown_and_latex() -> None:
    text = to_markdown(TABLE)
    assert "| M1 | a\\|b | **-1.50 (1)** |" in text
    assert "| no. | na\\|me_x | value |" in text
    assert "| --- | --- | ---: |" in text
    text = to_latex(TABLE)
    assert r"\caption{A \& B. A note.}" in text
    assert r"M1 & a\textbar{}b & \textbf{$-$1.50}\textsuperscript{1} \\" in text
    assert r" & 50\% &  \\" in text
    assert r"na\textbar{}me\_x" in text


def test_latex_is_split_by_width_and_by_page_and_every_line_has_its_cells() -> None:
    text = to_latex(wide(9, rows=2 * TEX_ROWS))
    tabulars = re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, re.DOTALL)
    assert len(tabulars) > 6 and len(tabulars) % 3 == 0
    for align, body in tabulars:
        lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) <= TEX_ROWS + 2
        for line in lines:
            spans = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", line))
            assert line.count("&") + spans == len(align) - 1
    assert text.count("Said once.") == 1
    assert text.count("mean rank") == len(tabulars) // 3
    assert all_tables([TABLE], ".tex").startswith("% \\usepackage{booktabs}")


def test_csv_has_figures_in_full_ranks_apart_and_names_that_differ() -> None:
    assert list(csv.reader(io.StringIO(to_csv(TABLE)))) == [
        ["no.", "na|me_x", "value", "value rank"], ["M1", "a|b", "-1.5", "1"], ["", "50%", "", ""],
    ]  # fmt: skip
    head, *rows = csv.reader(io.StringIO(to_csv(wide(2))))
    assert head[3:6] == ["run0", "run0 paper", "run0 difference"] and len(set(head)) == len(head)
    assert len(rows) == 3  # no line of means among the models


@pytest.mark.parametrize("suffix", [".txt", ".md", ".tex"])
def test_several_tables_make_one_text(suffix: str) -> None:
    text = all_tables([TABLE, wide(2)], suffix)
    assert text.count("Wide") == 1 and "note" in text


def test_numbers_are_rounded_without_a_negative_zero() -> None:
    texts = [number(1.25, 1, sign=True).text, number(-0.001, 2, sign=True).text, number(None, 2).text]
    assert texts == ["+1.2", "0.00", ""]
