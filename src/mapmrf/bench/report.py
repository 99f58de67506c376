"""One self-contained HTML page from records: tables, curves, profiles and label maps; opens without a network."""

from __future__ import annotations

import base64
import html
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.bench.records import TRACE_COLUMNS, Record, unpack_labels
from mapmrf.bench.tables import TIE, Group, Table, figure, group, loss, overview, seconds, tables, title
from mapmrf.datasets.figures import COLUMNS
from mapmrf.png import colours, encode

CURVES_PER_SET = 24
"""Models of a set whose curves and label maps the page holds; tables hold all."""
MAPS_PER_SET = 8


def build_report(records: Sequence[Record], heading: str = "mapmrf benchmark") -> str:
    """The page as text."""
    groups = group(records)
    data = {
        "runs": _runs(groups),
        "sets": [_set(mine) for mine in groups],
        "columns": TRACE_COLUMNS,
    }
    parts = {
        "heading": html.escape(heading),
        "lead": _lead(records, groups),
        "overviews": "\n".join(_table(overview(mine)) for mine in groups),
        "tables": "\n".join(_section(mine, records) for mine in groups),
        "maps": "\n".join(_maps(mine) for mine in groups),
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
    """Six digits are enough for a picture; what is not finite is missing there."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


# -- data of the charts -----------------------------------------------------------------------------------------------


def _runs(groups: Sequence[Group]) -> list[str]:
    """All runs in the order of the tables; their place decides their colour."""
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
    """A distance for a chart: 0 for what counts as equal, None for what is infinite."""
    return None if math.isinf(distance) else 0.0 if distance <= TIE else distance


# -- parts of the page ------------------------------------------------------------------------------------------------


def _lead(records: Sequence[Record], groups: Sequence[Group]) -> str:
    """The figures at the top."""
    done = [record for record in records if record["outcome"] == "done"]
    proven = {(r["set"], r["model"]) for r in done if r["status"] == "optimal"}
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


def _section(mine: Group, records: Sequence[Record]) -> str:
    """All tables of a set but the overview, each to be opened."""
    made = tables([record for record in records if record["set"] == mine.name])
    parts = [_details(table) for table in made if not table.name.endswith("-overview")]
    return f"<h3>{html.escape(title(mine.name))}</h3>\n" + "\n".join(parts)


def _details(table: Table) -> str:
    return f"<details><summary>{html.escape(table.title)}</summary>{_table(table, heading=False)}</details>"


def _table(table: Table, *, heading: bool = True) -> str:
    """A table whose columns can be sorted by; the number behind a cell is what counts."""
    head = "".join(f"<th scope=col><button>{html.escape(name) or 'no.'}</button></th>" for name in table.columns)
    lines = [f"<tr>{''.join(map(_cell, row))}</tr>" for row in table.rows]
    last = len(lines) - 1 if table.rows and table.rows[-1][1].text == "mean rank" else len(lines)
    body, foot = "\n".join(lines[:last]), "\n".join(lines[last:])
    note = f"<p class=note>{html.escape(table.note)}</p>" if table.note else ""
    caption = f"<h3>{html.escape(table.title)}</h3>" if heading else ""
    frame = f"<div class=scroll tabindex=0><table id='{html.escape(table.name)}'>"
    foot = f"<tfoot>{foot}</tfoot>" if foot else ""
    return f"{caption}{frame}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>{foot}</table></div>{note}"


def _cell(cell: Any) -> str:
    kind = " class=best" if cell.best else ""
    value = "" if cell.value is None else f" data-value={cell.value!r}"
    return f"<td{kind}{value}>{html.escape(cell.text)}</td>"


def _troubles(records: Sequence[Record]) -> str:
    """Runs that did not come to an end, and methods that do not take a model."""
    lost = [record for record in records if record["outcome"] != "done"]
    if not lost:
        return "<p>Every run came to its end.</p>"
    kinds = Counter((r["run"], r["outcome"], r["message"]) for r in lost)
    items = [
        f"<tr><td>{html.escape(run)}</td><td>{html.escape(outcome)}</td><td data-value={count}>{count}</td>"
        f"<td>{html.escape(message)}</td></tr>"
        for (run, outcome, message), count in kinds.most_common()
    ]
    head = "".join(f"<th scope=col><button>{name}</button></th>" for name in ("run", "outcome", "models", "message"))
    body = f"<thead><tr>{head}</tr></thead><tbody>{''.join(items)}</tbody>"
    return f"<div class=scroll tabindex=0><table>{body}</table></div>"


def _machine(records: Sequence[Record]) -> str:
    """Processor and versions that the records name."""
    names = {"version": "mapmrf", "cpu": "processor", "cores": "cores", "system": "system", "python": "Python"}
    names |= {name: name for name in ("numpy", "numba", "highspy")}
    lines = []
    for key, name in names.items():
        found = sorted({str(record[key]) for record in records if record.get(key)})
        if found:
            lines.append(f"<tr><th scope=row>{name}</th><td>{html.escape(', '.join(found))}</td></tr>")
    limits = sorted({record["time_limit"] for record in records})
    lines.append(f"<tr><th scope=row>seconds per run</th><td>{', '.join(f'{limit:g}' for limit in limits)}</td></tr>")
    lines.append(f"<tr><th scope=row>page made</th><td>{time.strftime('%Y-%m-%d %H:%M')}</td></tr>")
    return f"<table class=plain>{''.join(lines)}</table>"


# -- label maps -------------------------------------------------------------------------------------------------------


def _maps(mine: Group) -> str:
    """Label maps of the first grid-shaped models of a set, run beside run, and where each differs from the best."""
    shown = [part for _, model in mine.models if (part := _maps_of(mine, model))][:MAPS_PER_SET]
    if not shown:
        return ""
    return f"<h3>{html.escape(title(mine.name))}</h3>\n" + "\n".join(shown)


def _maps_of(mine: Group, model: str) -> str:
    found: list[tuple[float, str, Ints]] = []
    shape: list[int] | None = None
    for method, run in mine.runs:
        for record in mine.cells.get((model, run), [])[:1]:
            if record.get("shape") and record.get("labels"):
                shape = record["shape"]
                name = run if method == run else f"{run} ({COLUMNS.get(method, method)})"
                found.append((record["value"], name, unpack_labels(record["labels"])))
    if shape is None or not found:
        return ""
    best = max(found, key=lambda item: item[0])[2]
    pictures = "".join(_picture(value, name, labels, best, shape) for value, name, labels in found)
    return f"<details class=maps><summary>{html.escape(model)}</summary><div class=pictures>{pictures}</div></details>"


def _picture(value: float, name: str, labels: Ints, best: Ints, shape: Sequence[int]) -> str:
    count = int(max(labels.max(), best.max())) + 1
    differs = labels != best
    shares = f"{100 * differs.mean():.1f} % unlike the best" if differs.any() else "the best here"
    images = (("labels", _image(labels, count, shape)), ("differences", _image(differs.astype(np.int64), 2, shape)))
    tags = "".join(f"<img class={kind} alt='{kind} of {html.escape(name)}' src='{uri}'>" for kind, uri in images)
    text = f"<b>{html.escape(name)}</b> {value:.2f}<br>{shares}"
    return f"<figure>{tags}<figcaption>{text}</figcaption></figure>"


def _image(labels: Ints, count: int, shape: Sequence[int]) -> str:
    pixels = colours(labels.reshape(shape), count)
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode("ascii")
