"""A self-contained HTML page from records: tables, curves, profiles and label maps."""

from __future__ import annotations

import base64
import html
import json
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.bench.groups import (
    DIFFERS,
    PROVEN,
    TARGETS,
    TIE,
    Group,
    anytime,
    family,
    figure,
    group,
    loss,
    profiles,
    seconds,
    time_distributions,
    title,
)
from mapmrf.bench.records import MAX_LABELS, TRACE_COLUMNS, Record, unpack_labels
from mapmrf.bench.render import Cell, Column, Table, count, to_html
from mapmrf.bench.tables import tables
from mapmrf.datasets.catalogue import COLUMNS
from mapmrf.plots.pictures import colours, encode

CURVES_PER_SET = 24
"""Number of models per set with curves on the page; the tables have all."""
BAND_POINTS = 40
"""Points of the band over the seeds around an anytime curve."""
MAPS_PER_SET = 8
"""Number of models per set that are drawn."""

_WHY = {
    "seg-2": "superpixels: the files say which ones touch, not where their pixels are",
    "seg-21": "superpixels: the files say which ones touch, not where their pixels are",
    "scene": "superpixels: the files say which ones touch, not where their pixels are",
    "protein": "interactions of proteins, which have no position in an image",
}


def build_report(records: Sequence[Record], heading: str = "mapmrf benchmark") -> str:
    """The page as HTML."""
    groups, made = group(records), tables(records)
    data = {
        "runs": _runs(groups),
        "sets": [_set(mine) for mine in groups],
        "columns": TRACE_COLUMNS,
        "targets": list(TARGETS),
        "curves": [_shares(some) for some in ([groups] if len(groups) > 1 else []) + [[mine] for mine in groups]],
    }
    parts = {
        "heading": html.escape(heading),
        "lead": _lead(records, groups),
        "warnings": _warnings(groups),
        "overviews": "\n".join(to_html(table) for table in made if _is_overview(table)),
        "tables": "\n".join(_section(which, made) for which in ("", *(mine.name for mine in groups))),
        "maps": "\n".join(_maps(mine) for mine in groups),
        "troubles": _troubles(records),
        "machine": _machine(records),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        # a "<" in a name could end the script element, or begin a comment, in the middle of the data
        "data": json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    page = _asset("report.html")
    for name in _empty_sections(data, parts):  # with the links to them
        page = re.sub(rf' *<a href="#{name}">.*?</a>\n', "", page)
        page = re.sub(rf'<section id="{name}">.*?</section>\n', "", page, flags=re.DOTALL)
    return re.sub(r"<!--(\w+)-->", lambda mark: parts[mark[1]], page)  # in one pass: a name may look like a placeholder


def _empty_sections(data: dict[str, Any], parts: dict[str, str]) -> list[str]:
    """Sections of the page that would be empty."""
    models = [model for some in data["sets"] for model in some["models"]]
    runs = [run for model in models for run in model["runs"].values()]
    places = [TRACE_COLUMNS.index(name) for name in ("primal", "sphere", "rho")]
    traces = [run["trace"] for run in runs]
    filled = {
        "profile": any(target["profile"] for pool in data["curves"] for target in pool),
        "target": any(target["target"] for pool in data["curves"] for target in pool),
        "accuracy": any(model["best"] is not None for model in models) and bool(runs),
        "loss": any(run["loss"] is not None for run in runs),
        "anytime": any(traces),
        "convergence": any(all(row[k] is not None for k in places) for trace in traces for row in trace),
        "maps": "<details class=maps>" in parts["maps"],
        "summary": bool(parts["overviews"]),
        "troubles": bool(parts["troubles"]),
    }
    return [name for name, has in filled.items() if not has]


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


def _shares(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Performance profiles and times to target, for every target."""
    return [
        {"profile": profiles(groups, distance), "target": time_distributions(groups, distance)}
        for distance in TARGETS.values()
    ]


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
            "band": _band(mine.cells[name, run]) if curves else None,
        }
    return {"name": f"{index} {name}".strip(), "best": best, "runs": runs}


def _band(records: Sequence[Record]) -> list[list[float]] | None:
    """Times, and median and interval of the values over several seeds; None for a single one."""
    band = anytime(records, BAND_POINTS) if len(records) > 1 else None
    if band is None:
        return None
    return [list(row) for row in np.column_stack([band.times, band.low, band.middle, band.high]).tolist()]


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
    """A warning about models whose files differ from the catalogue."""
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
    parts = [
        f"<details><summary>{html.escape(table.title)}</summary>{to_html(table, heading=False)}</details>"
        for table in made
        if table.of == which and not _is_overview(table)
    ]
    heading = f"<h3>{html.escape(title(which))}</h3>\n" if which else ""
    return heading + "\n".join(parts)


def _troubles(records: Sequence[Record]) -> str:
    """Runs that failed, and methods that do not support a model."""
    lost = [record for record in records if record["outcome"] != "done"]
    if not lost:
        return ""
    kinds = Counter((r["run"], r["outcome"], r["message"]) for r in lost)
    rows = [[Cell(run), Cell(outcome), count(n), Cell(message)] for (run, outcome, message), n in kinds.most_common()]
    columns = [Column(name) for name in ("run", "outcome", "runs", "message")]
    return to_html(Table("troubles", "", columns, rows), heading=False)


def _machine(records: Sequence[Record]) -> str:
    """Processor and versions in the records."""
    names = {"version": "mapmrf", "cpu": "processor", "cores": "cores", "system": "system", "python": "Python"}
    names |= {name: name for name in ("numpy", "numba", "highspy")}
    found = {name: sorted({str(r[key]) for r in records if r.get(key)}) for key, name in names.items()}
    found["other packages"] = sorted({str(r["package"]) for r in records if r.get("package")})
    found["seconds per run"] = [f"{limit:g}" for limit in sorted({record["time_limit"] for record in records})]
    found["page created"] = [time.strftime("%Y-%m-%d %H:%M")]
    lines = [
        f"<tr><th scope=row>{name}</th><td>{html.escape(', '.join(texts))}</td></tr>"
        for name, texts in found.items()
        if texts
    ]
    return f"<table class=plain>{''.join(lines)}</table>"


# -- label maps -------------------------------------------------------------------------------------------------------


def _maps(mine: Group) -> str:
    """Maps of the first grid models of a set, or a line that says why there are none."""
    drawable = [model for _, model in mine.models if _drawable(mine, model)]
    shown = [_model_maps(mine, model) for model in drawable[:MAPS_PER_SET]]
    name = html.escape(title(mine.name))
    if not shown:
        return f"<p class=note>{name}: no map, {html.escape(_reason(mine))}.</p>"
    more = len(drawable) - len(shown)
    left_out = f"<p class=note>The first {len(shown)}; {more} more have no map here.</p>" if more else ""
    return f"<h3>{name}</h3>\n" + "\n".join(shown) + left_out


def _reason(mine: Group) -> str:
    """The reason why no model of a set is drawn."""
    records = [record for some in mine.cells.values() for record in some]
    if not records:
        return "no run has a labelling"
    if any(record.get("shape") for record in records):
        return f"a record keeps the labels of models of up to {MAX_LABELS} variables only"
    about = _WHY.get(family(mine.name))
    return f"its variables are {about}" if about else "no model is a grid in reading order"


def _drawable(mine: Group, model: str) -> list[tuple[str, Record]]:
    """The first record of every run on a model that has a shape and labels."""
    found = []
    for method, run in mine.runs:
        for record in mine.cells.get((model, run), [])[:1]:
            if record.get("shape") and record.get("labels"):
                name = run if method == run or method not in COLUMNS else f"{run} ({COLUMNS[method]})"
                found.append((name, record))
    return found


def _model_maps(mine: Group, model: str) -> str:
    found = [(name, record["value"], unpack_labels(record["labels"])) for name, record in _drawable(mine, model)]
    shape = _drawable(mine, model)[0][1]["shape"]
    best = max(found, key=lambda item: item[1])[2]
    pictures = "".join(_picture(name, value, labels, best, shape) for name, value, labels in found)
    return f"<details class=maps><summary>{html.escape(model)}</summary><div class=pictures>{pictures}</div></details>"


def _picture(name: str, value: float, labels: Ints, best: Ints, shape: Sequence[int]) -> str:
    count = int(max(labels.max(), best.max())) + 1
    differs = labels != best
    shares = f"{100 * differs.mean():.1f} % different from the best" if differs.any() else "the best here"
    images = (("labels", _image(labels, count, shape)), ("differences", _image(differs.astype(np.int64), 2, shape)))
    tags = "".join(f"<img class={kind} alt='{kind} of {html.escape(name)}' src='{uri}'>" for kind, uri in images)
    text = f"<b>{html.escape(name)}</b> {value:.2f}<br>{shares}"
    return f"<figure>{tags}<figcaption>{text}</figcaption></figure>"


def _image(labels: Ints, count: int, shape: Sequence[int]) -> str:
    pixels = colours(labels.reshape(shape), count)
    return "data:image/png;base64," + base64.b64encode(encode(pixels)).decode("ascii")
