"""Tables as HTML, for the page and for notebooks."""

from __future__ import annotations

import html
from collections.abc import Sequence
from itertools import groupby

from mapmrf.bench.cells import Cell, Column, Table


def table_html(table: Table, *, heading: bool = True) -> str:
    """A table that can be sorted by the values in its columns."""
    right = table.numeric()
    body = "\n".join(_line(table.columns, row, right) for row in table.rows)
    foot = "" if table.summary is None else f"<tfoot>{_line(table.columns, table.summary, right)}</tfoot>"
    note = f"<p class=note>{html.escape(table.note)}</p>" if table.note else ""
    caption = f"<h3>{html.escape(table.title)}</h3>" if heading else ""
    frame = f"<div class=scroll tabindex=0><table id='{html.escape(table.name)}'>"
    return (
        f"{caption}{frame}<thead>{_head(table.columns, right)}</thead><tbody>{body}</tbody>{foot}</table></div>{note}"
    )


def _head(columns: Sequence[Column], right: Sequence[bool]) -> str:
    """One line of headings, or two if several columns belong to one run."""
    grouped = any(column.of for column in columns)
    above, below = [], []
    for of, places in groupby(range(len(columns)), key=lambda k: columns[k].of or k):
        some = list(places)
        if isinstance(of, str):
            above.append(f"<th scope=colgroup class=group colspan={len(some)}>{html.escape(of)}</th>")
            below += [_heading(columns[k], k, right[k]) for k in some]
        else:
            above.append(_heading(columns[some[0]], some[0], right[some[0]], rows=2 if grouped else 1))
    return f"<tr>{''.join(above)}</tr>" + (f"<tr>{''.join(below)}</tr>" if grouped else "")


def _heading(column: Column, place: int, right: bool, rows: int = 1) -> str:
    """A heading to sort by, with the index of its column."""
    span = f" rowspan={rows}" if rows > 1 else ""
    of = f" data-of='{html.escape(column.of)}'" if column.of else ""
    key = " data-key" if column.key else ""
    name = html.escape(column.name)
    about = f"{_class(column, right)}{span}{of}{key} data-name='{name}' data-place={place}"
    return f"<th scope=col{about}><button>{name}</button></th>"


def _line(columns: Sequence[Column], cells: Sequence[Cell], right: Sequence[bool]) -> str:
    made = (_cell(cell, column, to) for cell, column, to in zip(cells, columns, right, strict=True))
    return f"<tr>{''.join(made)}</tr>"


def _cell(cell: Cell, column: Column, right: bool) -> str:
    value = "" if cell.value is None else f" data-value={cell.value!r}"
    rank = "" if cell.rank is None else f"<sup>{cell.rank}</sup>"
    return f"<td{_class(column, right, cell.best)}{value}>{html.escape(cell.text)}{rank}</td>"


def _class(column: Column, right: bool, best: bool = False) -> str:
    """CSS classes of a cell: `t` for text, `p` for the paper's figures, `best` for the best of a row."""
    about_paper = column.of and column.name in ("paper", "difference")
    names = [name for name, has in (("t", not right), ("p", about_paper), ("best", best)) if has]
    return f" class='{' '.join(names)}'" if names else ""
