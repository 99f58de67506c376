"""Tables as text for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Sequence

from mapmrf.bench.records import Record
from mapmrf.bench.tables import Cell, Table, tables


def to_text(table: Table) -> str:
    """Columns of equal width, figures to the right; the best of a row has a star."""
    body = [[cell.text + ("*" if cell.best else "") for cell in row] for row in table.rows]
    lines = [list(table.columns), *body]
    widths = [max(_width(line[k]) for line in lines) for k in range(len(table.columns))]
    right = _numeric(table)
    shown = [
        "  ".join(_pad(text, width, to) for text, width, to in zip(line, widths, right, strict=True)) for line in lines
    ]
    rule = "  ".join("-" * width for width in widths)
    parts = [table.title, "", shown[0].rstrip(), rule, *(line.rstrip() for line in shown[1:])]
    return "\n".join(parts + (["", table.note] if table.note else []))


def to_markdown(table: Table) -> str:
    """A pipe table under a heading; the best of a row is bold."""
    marks = ["---:" if to else "---" for to in _numeric(table)]
    lines = [_pipes(table.columns), _pipes(marks)]
    lines += [_pipes([f"**{_bar(c.text)}**" if c.best else _bar(c.text) for c in row]) for row in table.rows]
    return "\n".join([f"### {table.title}", "", *lines, *(["", table.note] if table.note else [])])


def to_latex(table: Table) -> str:
    """A `tabular` with booktabs rules in a `table`; the best of a row is bold."""
    align = "".join("r" if to else "l" for to in _numeric(table))
    head = " & ".join(_tex(name) for name in table.columns) + r" \\"
    body = [" & ".join(_tex_cell(cell) for cell in row) + r" \\" for row in table.rows]
    caption = _tex(f"{table.title}. {table.note}".strip())
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{caption}}}", rf"\begin{{tabular}}{{{align}}}", r"\toprule"]
    lines += [head, r"\midrule", *body, r"\bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join(lines)


def to_csv(table: Table) -> str:
    """Comma-separated; figures in full."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.columns)
    for row in table.rows:
        writer.writerow([cell.text if cell.value is None or not _is_figure(cell) else repr(cell.value) for cell in row])
    return out.getvalue()


def write_tables(records: Sequence[Record], form: str) -> str:
    """All tables of some records in one of the forms."""
    return "\n\n".join(FORMS[form](table) for table in tables(records))


FORMS = {"text": to_text, "markdown": to_markdown, "latex": to_latex, "csv": to_csv}
SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}


def _is_figure(cell: Cell) -> bool:
    """Whether the text is a number, and not only sorted by one, such as M1."""
    return cell.text[:1] in "+-.0123456789in" and cell.text != ""


def _numeric(table: Table) -> list[bool]:
    """Which columns hold figures."""
    return [
        any(row[k].value is not None and _is_figure(row[k]) for row in table.rows) for k in range(len(table.columns))
    ]


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _bar(text: str) -> str:
    return text.replace("|", r"\|")


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    if _is_figure(cell) and text.startswith("-"):
        text = f"$-${text[1:]}"
    return rf"\textbf{{{text}}}" if cell.best else text
