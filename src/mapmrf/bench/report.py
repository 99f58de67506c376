"""A self-contained HTML page from records: tables, curves, profiles and label maps."""

from __future__ import annotations

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

from mapmrf.bench.cells import Cell, Column, Table
from mapmrf.bench.groups import DIFFERS, PROVEN, TIE, Group, figure, group, loss, seconds, title
from mapmrf.bench.maps import maps_of
from mapmrf.bench.page_tables import table_html
from mapmrf.bench.profiles import TARGETS, anytime, profiles, time_distributions
from mapmrf.bench.records import TRACE_COLUMNS, Record
from mapmrf.bench.tables import tables

CURVES_PER_SET = 24
"""Number of models per set with curves on the page; the tables have all."""
BAND_POINTS = 40
"""Points of the band over the seeds around an anytime curve."""


def build_report(records: Sequence[Record], heading: str = "mapmrf benchmark") -> str:
    """The page as HTML."""
    groups, made = group(records), tables(records)
    data = {
        "runs": _runs(groups),
        "sets": [_set(mine) for mine in groups],
        "columns": TRACE_COLUMNS,
        "targets": list(TARGETS),
        "curves": [_shares(some) for some in _pools(groups)],
    }
    parts = {
        "heading": html.escape(heading),
        "lead": _lead(records, groups),
        "warnings": _warnings(groups),
        "overviews": "\n".join(table_html(table) for table in made if _is_overview(table)),
        "tables": "\n".join(_section(which, made) for which in ("", *(mine.name for mine in groups))),
        "maps": "\n".join(maps_of(mine) for mine in groups),
        "troubles": _troubles(records),
        "machine": _machine(records),
        "style": _asset("report.css"),
        "script": _asset("report.js"),
        # a "<" in a name could end the script element, or begin a comment, in the middle of the data
        "data": json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
    }
    page = _without(_asset("report.html"), _empty_sections(data, parts))
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


def _without(page: str, sections: Sequence[str]) -> str:
    """Remove some sections from the page, with the links to them."""
    for name in sections:
        page = re.sub(rf' *<a href="#{name}">.*?</a>\n', "", page)
        page = re.sub(rf'<section id="{name}">.*?</section>\n', "", page, flags=re.DOTALL)
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


def _pools(groups: Sequence[Group]) -> list[Sequence[Group]]:
    """All sets together if there are several, then each."""
    return [*([groups] if len(groups) > 1 else []), *([mine] for mine in groups)]


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
    parts = [_details(table) for table in made if table.of == which and not _is_overview(table)]
    heading = f"<h3>{html.escape(title(which))}</h3>\n" if which else ""
    return heading + "\n".join(parts)


def _details(table: Table) -> str:
    return f"<details><summary>{html.escape(table.title)}</summary>{table_html(table, heading=False)}</details>"


def _plain_table(heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    columns = [Column(name) for name in heads]
    return table_html(Table("troubles", "", columns, rows), heading=False)


def _troubles(records: Sequence[Record]) -> str:
    """Runs that failed, and methods that do not support a model."""
    lost = [record for record in records if record["outcome"] != "done"]
    if not lost:
        return ""
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
    found["page created"] = [time.strftime("%Y-%m-%d %H:%M")]
    lines = [
        f"<tr><th scope=row>{name}</th><td>{html.escape(', '.join(texts))}</td></tr>"
        for name, texts in found.items()
        if texts
    ]
    return f"<table class=plain>{''.join(lines)}</table>"
