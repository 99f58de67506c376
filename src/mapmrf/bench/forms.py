"""Tables as text for the terminal, Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby

from mapmrf.bench.cells import Cell, Column, Table, split

TEXT_WIDTH = 120
"""Characters per line if there is no terminal."""
TEX_WIDTH, TEX_GAP, TEX_ROWS = 114.0, 1.3, 55
"""Digits of ``\\scriptsize`` in 16 cm of text, a gap of 5 pt in digits, and lines per page."""
NARROW = frozenset(".,:;()|!'il +-")

SUFFIXES = {"text": ".txt", "markdown": ".md", "latex": ".tex", "csv": ".csv"}


def write_tables(tables: Iterable[Table], form: str) -> str:
    """Tables as one text; `form` is ``text``, ``markdown`` or ``latex``."""
    made = {"text": to_text, "markdown": to_markdown, "latex": to_latex}[form]
    head = [TEX_HEAD] if form == "latex" else []
    return "\n\n".join([*head, *(made(table) for table in tables)])


# -- text -------------------------------------------------------------------------------------------------------------


def to_text(table: Table, width: int = TEXT_WIDTH) -> str:
    """Aligned columns, numbers to the right; the best of a row has a star. Wide tables are split."""
    parts = split(table, width, lambda cell: _width(_starred(cell)), 2)
    text = "\n\n".join(_plain(part) for part in parts)
    return f"{text}\n\n{table.note}" if table.note else text


def _plain(table: Table) -> str:
    body = [[_starred(cell) for cell in line] for line in table.lines]
    names = [column.name for column in table.columns]
    widths = [max(_width(line[k]) for line in [names, *body]) for k in range(len(names))]
    blocks = _blocks(table.columns)
    for of, places in blocks:  # a run's name may be wider than its columns
        widths[places[-1]] += max(0, _width(of) - _span(widths, places))
    right = table.numeric()
    shown = [
        "  ".join(_pad(text, width, to) for text, width, to in zip(line, widths, right, strict=True))
        for line in [names, *body]
    ]
    above = "  ".join(of.center(_span(widths, places)) if of else " " * _span(widths, places) for of, places in blocks)
    rule = "  ".join("-" * width for width in widths)
    lines = [table.title, "", *([above] if table.grouped else []), shown[0], rule, *shown[1:]]
    return "\n".join(line.rstrip() for line in lines)


def _starred(cell: Cell) -> str:
    return cell.shown + ("*" if cell.best else "")


def _span(widths: Sequence[int], places: Sequence[int]) -> int:
    return sum(widths[k] for k in places) + 2 * (len(places) - 1)


def _blocks(columns: Sequence[Column]) -> list[tuple[str, list[int]]]:
    """Groups of adjacent columns of one run; every other column separately."""
    places = groupby(range(len(columns)), key=lambda k: columns[k].of or k)
    return [(key if isinstance(key, str) else "", list(some)) for key, some in places]


def _width(text: str) -> int:
    return sum(0 if unicodedata.combining(c) else 1 for c in text)


def _pad(text: str, width: int, right: bool) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


# -- Markdown ---------------------------------------------------------------------------------------------------------


def to_markdown(table: Table) -> str:
    """A pipe table under a heading; the best of a row is bold."""
    marks = ["---:" if to else "---" for to in table.numeric()]
    lines = [_pipes([_bar(column.full) for column in table.columns]), _pipes(marks)]
    lines += [_pipes([f"**{_bar(c.shown)}**" if c.best else _bar(c.shown) for c in line]) for line in table.lines]
    return "\n".join([f"### {table.title}", "", *lines, *(["", table.note] if table.note else [])])


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _bar(text: str) -> str:
    return text.replace("|", r"\|")


# -- LaTeX ------------------------------------------------------------------------------------------------------------

TEX_HEAD = """% \\usepackage{booktabs} in the preamble; every table fits a text width of 16 cm."""


def to_latex(table: Table) -> str:
    """One or several `table` environments with booktabs rules; the best of a row is bold, ranks are superscripts."""
    parts = split(table, TEX_WIDTH, _tex_width, TEX_GAP)
    pages = [page for part in parts for page in _pages(part)]
    return "\n\n".join(_tabular(page, note=table.note if page is pages[-1] else "") for page in pages)


def _pages(table: Table) -> list[Table]:
    """A table in pieces of a page each."""
    if len(table.lines) <= TEX_ROWS:
        return [table]
    starts = range(0, len(table.rows), TEX_ROWS - 1)
    return [
        replace(
            table,
            title=table.title if first == 0 else f"{table.title}, continued",
            rows=table.rows[first : first + TEX_ROWS - 1],
            summary=table.summary if first == starts[-1] else None,
        )
        for first in starts
    ]


def _tabular(table: Table, note: str) -> str:
    align = "".join("r" if to else "l" for to in table.numeric())
    caption = _tex(f"{table.title}. {note}".strip())
    lines = [r"\begin{table}[p]", r"\centering\scriptsize\setlength{\tabcolsep}{2.5pt}", rf"\caption{{{caption}}}"]
    lines += [rf"\begin{{tabular}}{{{align}}}", r"\toprule", *_tex_head(table), r"\midrule"]
    lines += [" & ".join(map(_tex_cell, row)) + r" \\" for row in table.rows]
    lines += [] if table.summary is None else [r"\midrule", " & ".join(map(_tex_cell, table.summary)) + r" \\"]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])


def _tex_head(table: Table) -> list[str]:
    """The names of the columns, below those of the runs if several columns belong to one."""
    names = " & ".join(_tex(column.name) for column in table.columns) + r" \\"
    if not table.grouped:
        return [names]
    blocks = _blocks(table.columns)
    above = [rf"\multicolumn{{{len(places)}}}{{c}}{{{_tex(of)}}}" if of else "" for of, places in blocks]
    rules = "".join(rf"\cmidrule(lr){{{places[0] + 1}-{places[-1] + 1}}}" for of, places in blocks if of)
    return [" & ".join(above) + r" \\", rules, names]


_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def _tex(text: str) -> str:
    return "".join(_TEX.get(c, c) for c in text)


def _tex_cell(cell: Cell) -> str:
    text = _tex(cell.text)
    if cell.is_figure and text[:1] in ("-", "+"):
        text = f"${text[0]}${text[1:]}"
    text = rf"\textbf{{{text}}}" if cell.best else text
    return text if cell.rank is None else rf"{text}\textsuperscript{{{cell.rank}}}"


def _tex_width(cell: Cell) -> float:
    """Approximate width in digits: bold is wider, a superscript narrower."""
    plain = sum(0.6 if c in NARROW else 1.0 for c in cell.text)
    return plain * (1.1 if cell.best else 1.0) + (0.7 * len(str(cell.rank)) if cell.rank is not None else 0.0)


# -- CSV --------------------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Comma-separated values with twelve digits, ranks in separate columns, without the row of mean ranks."""
    ranked = [any(row[k].rank is not None for row in table.rows) for k in range(len(table.columns))]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    heads = [[column.full, f"{column.full} rank"][: 1 + has] for column, has in zip(table.columns, ranked, strict=True)]
    writer.writerow([name for names in heads for name in names])
    for row in table.rows:
        cells = [[_csv(cell), cell.rank][: 1 + has] for cell, has in zip(row, ranked, strict=True)]
        writer.writerow([text for some in cells for text in some])
    return out.getvalue()


def _csv(cell: Cell) -> str:
    return f"{cell.value:.12g}" if cell.is_figure else cell.text
