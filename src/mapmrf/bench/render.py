"""Tables, and their forms: text for the terminal, Markdown, LaTeX, HTML and CSV, written by the suffix of a file."""

from __future__ import annotations

import csv
import html
import io
import math
import os
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import Any

from mapmrf.errors import OptionError, needed
from mapmrf.formats.files import write_bytes

TEXT_WIDTH = 120  # characters per line if there is no terminal
WIDE = 12  # columns beyond which a table on a page is set more tightly
PAGES = (".html", ".htm")


@dataclass(frozen=True)
class Cell:
    """The text of a cell, the number to sort by, and its rank if it has one."""

    text: str = ""
    value: float | None = None
    best: bool = False
    rank: int | None = None

    @property
    def shown(self) -> str:
        """The text, with the rank in parentheses."""
        return self.text if self.rank is None else f"{self.text} ({self.rank})"

    @property
    def is_figure(self) -> bool:
        """Whether the text is a number, rather than something sorted by one, such as M1."""
        return self.value is not None and self.text[:1] in tuple("+-.0123456789in")


@dataclass(frozen=True)
class Column:
    """A heading: its name, its run, and whether it is repeated in every piece of a split table."""

    name: str
    of: str = ""
    key: bool = False

    @property
    def full(self) -> str:
        """A name that is unique in the table: ``lslp paper``, and ``lslp`` for ours."""
        return self.of if self.name == "ours" and self.of else f"{self.of} {self.name}".strip()


@dataclass(frozen=True)
class Table:
    """A table, ready to be written in any form; `of` is its set, empty for all."""

    # Printed, it is text in aligned columns; a notebook shows it as a table.

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""
    summary: Sequence[Cell] | None = None
    of: str = ""

    @property
    def lines(self) -> list[Sequence[Cell]]:
        """The rows, and the summary below them."""
        return [*self.rows, *([self.summary] if self.summary is not None else [])]

    @property
    def grouped(self) -> bool:
        """Whether several columns belong to one run, so that the head has two lines."""
        return any(column.of for column in self.columns)

    def numeric(self) -> list[bool]:
        return [any(line[k].is_figure for line in self.lines) for k in range(len(self.columns))]

    def blocks(self) -> list[tuple[str, list[int]]]:
        """Groups of adjacent columns of one run; every other column separately."""
        places = groupby(range(len(self.columns)), key=lambda k: self.columns[k].of or k)
        return [(key if isinstance(key, str) else "", list(some)) for key, some in places]

    def only(self, places: Sequence[int]) -> Table:
        pick: Callable[[Sequence[Any]], list[Any]] = lambda items: [items[k] for k in places]  # noqa: E731
        below = None if self.summary is None else pick(self.summary)
        return replace(self, columns=pick(self.columns), rows=[pick(row) for row in self.rows], summary=below)

    def split(self, width: float, measure: Callable[[Cell], float], gap: float) -> list[Table]:
        """Pieces of at most `width`; key columns are repeated, columns of one run stay together."""
        # A piece with a single run may be wider. `measure` is the width of a cell, `gap` the space between two columns.
        sizes = [
            gap + max(measure(cell) for cell in (Cell(column.name), *(line[k] for line in self.lines)))
            for k, column in enumerate(self.columns)
        ]
        keys = [k for k, column in enumerate(self.columns) if column.key]
        pieces: list[list[int]] = []
        room = 0.0
        for _, places in self.blocks():
            block = [k for k in places if k not in keys]
            taken = sum(sizes[k] for k in block)
            if block and (not pieces or taken > room):
                pieces.append([*keys])
                room = width + gap - sum(sizes[k] for k in keys)
            if block:
                pieces[-1] += block
                room -= taken
        if len(pieces) < 2:
            return [self]
        named = f"{self.title} ({{}} of {len(pieces)})"
        return [replace(self.only(piece), title=named.format(n)) for n, piece in enumerate(pieces, start=1)]

    def __str__(self) -> str:
        return to_text(self)

    def _repr_html_(self) -> str:
        return to_html(self)

    def to_pandas(self) -> Any:
        """The table as a `pandas.DataFrame`: figures as numbers, without the ranks and the row below."""
        return needed("pandas", "frames").DataFrame(
            [[cell.value if cell.is_figure else cell.text for cell in row] for row in self.rows],
            columns=[column.full for column in self.columns],
        )


def number(x: Any, digits: int, *, sign: bool = False) -> Cell:
    if x is None:
        return Cell()
    value = float(x)
    if not math.isfinite(value):
        return Cell(str(value), value)
    rounded = round(value, digits) + 0.0  # no negative zero
    return Cell(f"{rounded:{'+' if sign and rounded else ''}.{digits}f}", value)


def count(n: int) -> Cell:
    return Cell(str(n), float(n))


# -- text and Markdown ------------------------------------------------------------------------------------------------


def to_text(table: Table, width: int = TEXT_WIDTH) -> str:
    """Aligned columns, numbers to the right; the best of a row has a star. Wide tables are split."""
    pieces = table.split(width, lambda cell: _length(_starred(cell)), 2)
    return "\n\n".join([*map(_aligned, pieces), *([table.note] if table.note else [])])


def _aligned(table: Table) -> str:
    names = [column.name for column in table.columns]
    cells = [names, *([_starred(cell) for cell in line] for line in table.lines)]
    widths = [max(map(_length, column)) for column in zip(*cells, strict=True)]
    above = []
    for of, places in table.blocks():
        room = sum(widths[k] for k in places) + 2 * (len(places) - 1)
        widths[places[-1]] += max(0, _length(of) - room)  # a run's name may be wider than its columns
        above.append(of.center(max(room, _length(of))))
    lines = []
    for line in cells:
        spaces = [" " * (width - _length(text)) for text, width in zip(line, widths, strict=True)]
        padded = zip(line, spaces, table.numeric(), strict=True)
        lines.append("  ".join(space + text if right else text + space for text, space, right in padded))
    rule = "  ".join("-" * width for width in widths)
    head = [table.title, "", *(["  ".join(above)] if table.grouped else []), lines[0], rule]
    return "\n".join(line.rstrip() for line in [*head, *lines[1:]])


def _starred(cell: Cell) -> str:
    return cell.shown + ("*" if cell.best else "")


def _length(text: str) -> int:
    return sum(not unicodedata.combining(c) for c in text)


def to_markdown(table: Table) -> str:
    """A pipe table under a heading; the best of a row is bold."""
    rows = [[column.full for column in table.columns], ["---:" if right else "---" for right in table.numeric()]]
    rows += [[f"**{cell.shown}**" if cell.best else cell.shown for cell in line] for line in table.lines]
    lines = ["| " + " | ".join(text.replace("|", r"\|") for text in row) + " |" for row in rows]
    return "\n".join([f"### {table.title}", "", *lines, *(["", table.note] if table.note else [])])


# -- LaTeX ------------------------------------------------------------------------------------------------------------

TEX_HEAD = """% \\usepackage{booktabs,longtable} in the preamble; every table fits a text width of 16 cm."""
_TEX = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def to_latex(table: Table) -> str:
    """One or several `longtable` environments with booktabs rules; the best of a row is bold, ranks are raised."""
    # 16 cm hold 114 digits of ``\scriptsize``, and a gap of 5 pt is 1.3 of them.
    pieces = table.split(114.0, _tex_width, 1.3)
    return "\n\n".join(_longtable(piece, note=table.note if piece is pieces[-1] else "") for piece in pieces)


def _longtable(table: Table, note: str) -> str:
    align = "".join("r" if right else "l" for right in table.numeric())
    head = [r"\toprule"]
    if table.grouped:
        spans = [rf"\multicolumn{{{len(places)}}}{{c}}{{{_tex(of)}}}" if of else "" for of, places in table.blocks()]
        rules = [rf"\cmidrule(lr){{{places[0] + 1}-{places[-1] + 1}}}" for of, places in table.blocks() if of]
        head += [_tex_row(spans), "".join(rules)]
    head += [_tex_row([_tex(column.name) for column in table.columns]), r"\midrule"]
    body = [_tex_row(map(_tex_cell, row)) for row in table.rows]
    body += [] if table.summary is None else [r"\midrule", _tex_row(map(_tex_cell, table.summary))]
    caption = _tex(f"{table.title}. {note}".strip())
    lines = [r"{\scriptsize\setlength{\tabcolsep}{2.5pt}", rf"\begin{{longtable}}{{{align}}}"]
    lines.append(rf"\caption{{{caption}}} \\")
    return "\n".join([*lines, *head, r"\endfirsthead", *head, r"\endhead", *body, r"\bottomrule", r"\end{longtable}}"])


def _tex_row(texts: Any) -> str:
    return " & ".join(texts) + r" \\"


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
    plain = sum(0.6 if c in ".,:;()|!'il +-" else 1.0 for c in cell.text)
    return plain * (1.1 if cell.best else 1.0) + (0.7 * len(str(cell.rank)) if cell.rank is not None else 0.0)


# -- HTML -------------------------------------------------------------------------------------------------------------


def to_html(table: Table, *, heading: bool = True) -> str:
    """A table that can be sorted by the values in its columns; the last key stays in view beside wide ones."""
    last = max((k for k, column in enumerate(table.columns) if column.key), default=0)
    classes = [
        f"{'' if right else 't '}{'p ' if column.of and column.name in ('paper', 'difference') else ''}"
        f"{'k ' if k == last else ''}{'c ' if max((len(line[k].text) for line in table.lines), default=0) < 24 else ''}"
        for k, (column, right) in enumerate(zip(table.columns, table.numeric(), strict=True))
    ]
    above, below = [], []
    for of, places in table.blocks():
        names = [_html_heading(table, k, classes[k]) for k in places]
        if of:
            above.append(f"<th scope=colgroup class=group colspan={len(places)}>{html.escape(of)}</th>")
            below += names
        else:
            above += names
    head = f"<tr>{''.join(above)}</tr>" + (f"<tr>{''.join(below)}</tr>" if table.grouped else "")
    lines = [f"<tr>{''.join(map(_html_cell, line, classes))}</tr>" for line in table.lines]
    body = "\n".join(lines[: len(table.rows)])
    foot = "".join(f"<tfoot>{line}</tfoot>" for line in lines[len(table.rows) :])
    note = f"<p class=note>{html.escape(table.note)}</p>" if table.note else ""
    caption = f"<h3>{html.escape(table.title)}</h3>" if heading else ""
    wide = " class=wide" if len(table.columns) > WIDE else ""
    frame = f"<div class=scroll tabindex=0><table id='{html.escape(table.name)}'{wide}>"
    return f"{caption}{frame}<thead>{head}</thead><tbody>{body}</tbody>{foot}</table></div>{note}"


def _html_heading(table: Table, place: int, classes: str) -> str:
    column = table.columns[place]
    span = " rowspan=2" if table.grouped and not column.of else ""
    of = f" data-of='{html.escape(column.of)}'" if column.of else ""
    key = " data-key" if column.key else ""
    name = html.escape(column.name)
    about = f"{_class(classes)}{span}{of}{key} data-name='{name}' data-place={place}"
    return f"<th scope=col{about}><button>{name}</button></th>"


def _html_cell(cell: Cell, classes: str) -> str:
    value = "" if cell.value is None else f" data-value={cell.value!r}"
    rank = "" if cell.rank is None else f"<sup>{cell.rank}</sup>"
    return f"<td{_class(classes + 'best' * cell.best)}{value}>{html.escape(cell.text)}{rank}</td>"


def _class(names: str) -> str:
    """CSS classes of a cell: `t` text, `c` short, `k` the key, `p` the paper's figures, `best` the best of a row."""
    return f" class='{names.strip()}'" if names else ""


# -- CSV and files ----------------------------------------------------------------------------------------------------


def to_csv(table: Table) -> str:
    """Comma-separated values with twelve digits, ranks in separate columns, without the row of mean ranks."""
    ranked = [any(row[k].rank is not None for row in table.rows) for k in range(len(table.columns))]
    lines: list[list[Any]] = [[] for _ in range(1 + len(table.rows))]
    for k, column in enumerate(table.columns):
        lines[0] += [column.full, f"{column.full} rank"][: 1 + ranked[k]]
        for line, row in zip(lines[1:], table.rows, strict=True):
            line += [f"{row[k].value:.12g}" if row[k].is_figure else row[k].text, row[k].rank][: 1 + ranked[k]]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


FORMS: dict[str, Callable[[Table], str]] = {".txt": to_text, ".md": to_markdown, ".tex": to_latex, ".csv": to_csv}
"""Forms of tables by the suffix of a file."""


def is_folder(output: str) -> bool:
    """Return whether a name means a folder: it is one, or ends in a slash."""
    return output.endswith(("/", os.sep)) or os.path.isdir(output)


def check_suffix(output: str) -> None:
    if not is_folder(output) and not output.endswith((*PAGES, *FORMS)):
        raise OptionError(f"{output}: expected a name that ends in .html, {', '.join(FORMS)}, or a folder for CSV")


def choose(made: Sequence[Table], wanted: Sequence[str] | None) -> list[Table]:
    """Select tables by name, with wildcards ``*`` and ``?``; all for None."""
    names = [table.name for table in made]
    for pattern in wanted or []:
        if not any(fnmatchcase(name, pattern) for name in names):
            near = get_close_matches(pattern, names) or [*names[:8], "..."]
            raise OptionError(f"tables: found {pattern!r}, expected one of {len(names)} such as {', '.join(near)}")
    return [table for table in made if not wanted or any(fnmatchcase(table.name, pattern) for pattern in wanted)]


def rendered(made: Sequence[Table], output: str) -> dict[str, str]:
    """The files that tables are written to, in the form given by the name: one, or for CSV one per table."""
    check_suffix(output)
    if is_folder(output):
        return {str(Path(output) / f"{table.name}.csv"): to_csv(table) for table in made}
    suffix = next(suffix for suffix in FORMS if output.endswith(suffix))
    if suffix == ".csv" and len(made) > 1:
        return {f"{output.removesuffix('.csv')}-{table.name}.csv": to_csv(table) for table in made}
    head, end = [TEX_HEAD] if suffix == ".tex" else [], "" if suffix == ".csv" else "\n"
    return {output: "\n\n".join([*head, *map(FORMS[suffix], made)]) + end}


def write_tables(made: Sequence[Table], output: str) -> list[str]:
    """Write tables in the form given by the name; return the file names."""
    files = rendered(made, output)
    if is_folder(output):
        Path(output).mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_bytes(path, text.encode())
    return list(files)
