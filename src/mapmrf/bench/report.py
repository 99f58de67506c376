"""A self-contained HTML page from records: tables, curves, profiles and label maps."""

from __future__ import annotations

import html
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from itertools import groupby
from typing import Any

from mapmrf.bench.cells import Cell, Column, Table
from mapmrf.bench.groups import DIFFERS, PROVEN, TIE, Group, figure, group, loss, seconds, title
from mapmrf.bench.maps import maps_of
from mapmrf.bench.records import TRACE_COLUMNS, Record
from mapmrf.bench.tables import tables

CURVES_PER_SET = 24
"""Number of models per set with curves on the page; the tables have all."""


def build_report(records: Sequence[Record], heading: str = "mapmrf benchmark") -> str:
    """The page as HTML."""
    groups, made = group(records), tables(records)
    data = {
        "runs": _runs(groups),
        "sets": [_set(mine) for mine in groups],
        "columns": TRACE_COLUMNS,
    }
    parts = {
        "heading": html.escape(heading),
        "lead": _lead(records, groups),
        "warnings": _warnings(groups),
        "overviews": "\n".join(_table(table) for table in made if _is_overview(table)),
        "tables": "\n".join(_section(which, made) for which in ("", *(mine.name for mine in groups))),
        "maps": "\n".join(maps_of(mine) for mine in groups),
        "troubles": _troubles(records),
        "machine": _machine(records),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        # a "<" in a name could end the script element, or begin a comment, in the middle of the data
        "data": json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    page = _asset("report.html")
    for key, text in parts.items():
        page = page.replace(f"<!--{key}-->", text)
    return page


def _asset(name: str) -> str:
    return files("mapmrf.bench").joinpath("page", name).read_text(encoding="utf-8")


def _rounded(value: Any) -> Any:
    """Round to seven digits, enough for a chart; non-finite values become None."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


# -- data of the charts -----------------------------------------------------------------------------------------------


def _runs(groups: Sequence[Group]) -> list[str]:
    """All runs in the order of the tables, which determines their colours."""
    return list(dict.fromkeys(run for mine in groups for _, run in mine.runs))


def _set(mine: Group) -> dict[str, Any]:
    models = [_model(mine, index, name, curves=k < CURVES_PER_SET) for k, (index, name) in enumerate(mine.models)]
    return {"name": title(mine.name), "models": models}


def _model(mine: Group, index: str, name: str, curves: bool) -> dict[str, Any]:
    best = mine.best.get(name)
    runs = {}
    for _, run in mine.runs:
        value = mine.mean(name, run, figure("value"))
        if value is None:
            continue
        first = mine.cells[name, run][0]
        runs[run] = {
            "value": value,
            "loss": _shown(loss(mine, name, run)),
            "bound": mine.mean(name, run, figure("bound")),
            "seconds": mine.mean(name, run, seconds),
            "status": first["status"],
            "trace": first["trace"] if curves else [],
        }
    return {"name": f"{index} {name}".strip(), "best": best, "runs": runs}


def _shown(distance: float) -> float | None:
    """A distance for a chart: 0 for ties, None if infinite."""
    return None if math.isinf(distance) else 0.0 if distance <= TIE else distance


# -- the top of the page ----------------------------------------------------------------------------------------------


def _lead(records: Sequence[Record], groups: Sequence[Group]) -> str:
    """The figures at the top."""
    done = [record for record in records if record["outcome"] == "done"]
    proven = {(r["set"], r["model"]) for r in done if r["status"] in PROVEN}
    n_models = sum(len(mine.models) for mine in groups)
    spent = sum(record.get("runtime", 0.0) for record in done)
    tiles = [
        (f"{len(done)}", "runs"),
        (f"{n_models}", "models"),
        (f"{len(_runs(groups))}", "methods"),
        (f"{100 * len(proven) / max(1, n_models):.0f} %", "of the models proven optimal by some run"),
        (f"{spent / 60:.0f} min" if spent >= 120 else f"{spent:.0f} s", "of solving"),
    ]
    return "".join(f"<div class=tile><b>{html.escape(big)}</b><span>{small}</span></div>" for big, small in tiles)


def _warnings(groups: Sequence[Group]) -> str:
    """A warning of models whose files differ from the catalogue."""
    wrong = [model.removesuffix(DIFFERS) for mine in groups for _, model in mine.models if model.endswith(DIFFERS)]
    if not wrong:
        return ""
    named = html.escape(", ".join(wrong))
    return f"<p class=warning>These files differ from the catalogue and are not compared with the paper: {named}.</p>"


# -- tables -----------------------------------------------------------------------------------------------------------


def _is_overview(table: Table) -> bool:
    return table.name.endswith("-overview")


def _section(which: str, made: Sequence[Table]) -> str:
    """All tables of a set, or of all sets, except the overview; collapsed."""
    parts = [_details(table) for table in made if table.of == which and not _is_overview(table)]
    heading = f"<h3>{html.escape(title(which))}</h3>\n" if which else ""
    return heading + "\n".join(parts)


def _details(table: Table) -> str:
    return f"<details><summary>{html.escape(table.title)}</summary>{_table(table, heading=False)}</details>"


def _table(table: Table, *, heading: bool = True) -> str:
    """A table that can be sorted by its columns, by the values of the cells."""
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
    about_paper = column.of and column.name != "ours"
    names = [name for name, has in (("t", not right), ("p", about_paper), ("best", best)) if has]
    return f" class='{' '.join(names)}'" if names else ""


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    columns = [Column(name) for name in heads]
    return _table(Table("troubles", "", columns, rows), heading=False)


def _troubles(records: Sequence[Record]) -> str:
    """Runs that failed, and methods that do not support a model."""
    lost = [record for record in records if record["outcome"] != "done"]
    if not lost:
        return "<p>Every run came to its end.</p>"
    kinds = Counter((r["run"], r["outcome"], r["message"]) for r in lost)
    rows = [
        [Cell(run), Cell(outcome), Cell(str(count), float(count)), Cell(message)]
        for (run, outcome, message), count in kinds.most_common()
    ]
    return _plain_table(("run", "outcome", "runs", "message"), rows)


def _machine(records: Sequence[Record]) -> str:
    """Processor and versions in the records."""
    names = {"version": "mapmrf", "cpu": "processor", "cores": "cores", "system": "system", "python": "Python"}
    names |= {name: name for name in ("numpy", "numba", "highspy")}
    found = {name: sorted({str(r[key]) for r in records if r.get(key)}) for key, name in names.items()}
    found["other packages"] = sorted({str(r["package"]) for r in records if r.get("package")})
    found["seconds per run"] = [f"{limit:g}" for limit in sorted({record["time_limit"] for record in records})]
    found["page made"] = [time.strftime("%Y-%m-%d %H:%M")]
    lines = [
        f"<tr><th scope=row>{name}</th><td>{html.escape(', '.join(texts))}</td></tr>"
        for name, texts in found.items()
        if texts
    ]
    return f"<table class=plain>{''.join(lines)}</table>"
