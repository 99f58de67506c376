"""A self-contained HTML page from records: tables, curves, profiles and label maps."""

from __future__ import annotations

import base64
import html
import io
import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mapmrf.bench.groups import (
    DIFFERS,
    PROVEN,
    TARGETS,
    TICK,
    TIE,
    Band,
    Curve,
    Group,
    accuracy_profile,
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
from mapmrf.errors import OptionError
from mapmrf.formats.files import write_bytes
from mapmrf.plots.style import CYCLE, MUTED, colours, encode, heading, literal, new_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OVERVIEW = "-overview"  # how the names of the tables end that are shown first
_SUPERPIXELS = "superpixels: the files say which ones touch, not where their pixels are"
_WHY = dict.fromkeys(("seg-2", "seg-21", "scene"), _SUPERPIXELS)
_WHY["protein"] = "interactions of proteins, which have no position in an image"


def build_report(records: Sequence[Record], heading: str = "mapmrf benchmark") -> str:
    groups, made = group(records), tables(records)
    data = {
        "runs": _runs(groups),
        "sets": [
            # The tables have all models, the charts curves of the first ones of a set.
            {"name": title(mine.name), "models": [_model(mine, *m, curves=k < 24) for k, m in enumerate(mine.models)]}
            for mine in groups
        ],
        "columns": TRACE_COLUMNS,
        "targets": list(TARGETS),
        "curves": [
            [{"profile": profiles(some, x), "target": time_distributions(some, x)} for x in TARGETS.values()]
            for some in ([groups] if len(groups) > 1 else []) + [[mine] for mine in groups]
        ],
    }
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
    wrong = [model.removesuffix(DIFFERS) for mine in groups for _, model in mine.models if model.endswith(DIFFERS)]
    differ = f"These files differ from the catalogue and are not compared with the paper: {', '.join(wrong)}"
    parts = {
        "heading": html.escape(heading),
        "lead": "".join(f"<div class=tile><b>{html.escape(big)}</b><span>{small}</span></div>" for big, small in tiles),
        "warnings": f"<p class=warning>{html.escape(differ)}.</p>" if wrong else "",
        "overviews": "\n".join(to_html(table) for table in made if table.name.endswith(OVERVIEW)),
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


def _model(mine: Group, index: str, name: str, curves: bool) -> dict[str, Any]:
    best = mine.best.get(name)
    runs = {}
    for _, run in mine.runs:
        value = mine.mean(name, run, figure("value"))
        if value is None:
            continue
        first, distance = mine.cells[name, run][0], loss(mine, name, run)
        runs[run] = {
            "value": value,
            "loss": None if math.isinf(distance) else 0.0 if distance <= TIE else distance,
            "bound": mine.mean(name, run, figure("bound")),
            "seconds": mine.mean(name, run, seconds),
            "status": first["status"],
            "trace": first["trace"] if curves else [],
            "band": _band(mine.cells[name, run]) if curves else None,
        }
    return {"name": f"{index} {name}".strip(), "best": best, "runs": runs}


def _band(records: Sequence[Record]) -> list[list[float]] | None:
    """Times, and median and interval of the values over several seeds; None for a single one."""
    band = anytime(records, 40) if len(records) > 1 else None
    if band is None:
        return None
    return [list(row) for row in np.column_stack([band.times, band.low, band.middle, band.high]).tolist()]


# -- tables -----------------------------------------------------------------------------------------------------------


def _section(which: str, made: Sequence[Table]) -> str:
    """All tables of a set, or of all sets, except the overview; collapsed."""
    parts = [
        f"<details><summary>{html.escape(table.title)}</summary>{to_html(table, heading=False)}</details>"
        for table in made
        if table.of == which and not table.name.endswith(OVERVIEW)
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
    drawable = []
    for _, model in mine.models:
        found = []  # the first record of every run that has a shape and labels
        for method, run in mine.runs:
            for record in mine.cells.get((model, run), [])[:1]:
                if record.get("shape") and record.get("labels"):
                    name = run if method == run or method not in COLUMNS else f"{run} ({COLUMNS[method]})"
                    found.append((name, record))
        if found:
            drawable.append((model, found))
    shown = [_model_maps(model, found) for model, found in drawable[:8]]
    name = html.escape(title(mine.name))
    if not shown:
        return f"<p class=note>{name}: no map, {html.escape(_reason(mine))}.</p>"
    more = len(drawable) - len(shown)
    left_out = f"<p class=note>The first {len(shown)}; {more} more have no map here.</p>" if more else ""
    return f"<h3>{name}</h3>\n" + "\n".join(shown) + left_out


def _reason(mine: Group) -> str:
    records = [record for some in mine.cells.values() for record in some]
    if not records:
        return "no run has a labelling"
    if any(record.get("shape") for record in records):
        return f"a record keeps the labels of models of up to {MAX_LABELS} variables only"
    about = _WHY.get(family(mine.name))
    return f"its variables are {about}" if about else "no model is a grid in reading order"


def _model_maps(model: str, found: Sequence[tuple[str, Record]]) -> str:
    labels = [unpack_labels(record["labels"]) for _, record in found]
    best = max(zip(found, labels, strict=True), key=lambda item: item[0][1]["value"])[1]
    pictures = []
    for (name, record), mine in zip(found, labels, strict=True):
        differs = mine != best
        shares = f"{100 * differs.mean():.1f} % different from the best" if differs.any() else "the best here"
        count = int(max(mine.max(), best.max())) + 1
        tags = ""
        for kind, levels, n_levels in (("labels", mine, count), ("differences", differs, 2)):
            data = base64.b64encode(encode(colours(levels.reshape(record["shape"]), n_levels))).decode("ascii")
            tags += f"<img class={kind} alt='{kind} of {html.escape(name)}' src='data:image/png;base64,{data}'>"
        text = f"<b>{html.escape(name)}</b> {record['value']:.2f}<br>{shares}"
        pictures.append(f"<figure>{tags}<figcaption>{text}</figcaption></figure>")
    inside = f"<div class=pictures>{''.join(pictures)}</div>"
    return f"<details class=maps><summary>{html.escape(model)}</summary>{inside}</details>"


# -- Figures of a benchmark for papers: those of the page, drawn with matplotlib as vector graphics -------------------


FORMATS = ("svg", "pdf", "png", "eps")
UNDATED = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}  # no date: the same records give the same file
PARTS = {"primal": "consistency", "sphere": "sphere", "rho": "penalty"}  # columns of a trace in a figure of convergence
Style = Mapping[str, Mapping[str, Any]]  # line style of each run, the same in all figures


def write_figures(records: Sequence[Record], folder: str | Any, formats: Sequence[str] = ("svg", "pdf")) -> list[Path]:
    """Write every figure to a folder, which is created if necessary, and return the files."""
    for form in formats:
        if form not in FORMATS:
            raise OptionError(f"formats: found {form!r}, expected some of {', '.join(FORMATS)}")
    where = Path(folder)
    where.mkdir(parents=True, exist_ok=True)
    written = []
    new_figure(1, 1)  # a one-line error if matplotlib is missing
    from matplotlib import rc_context

    # Fixed ids, so that the same records give the same file, and fonts that publishers accept.
    with rc_context({"svg.hashsalt": "mapmrf", "pdf.fonttype": 42, "ps.fonttype": 42}):
        for name, figure in figures(records):
            for form in formats:
                path = where / f"{name}.{form}"
                data = io.BytesIO()
                figure.savefig(data, format=form, metadata=UNDATED.get(form))
                write_bytes(path, data.getvalue())
                written.append(path)
    return written


def figures(records: Sequence[Record]) -> Iterator[tuple[str, Figure]]:
    groups = group(records)
    looks = cycle({"color": tone, "linestyle": dash} for dash in ("-", "--", "-.", ":") for tone in CYCLE)
    style = dict(zip(_runs(groups), looks, strict=False))
    pools = [("all", "All sets", groups)] if len(groups) > 1 else []
    pools += [(mine.name, title(mine.name), [mine]) for mine in groups]
    for name, what, some in pools:
        yield from _of_pool(name, what, some, style)
    for mine in groups:
        for _, model in mine.models:
            yield from _of_model(mine, model, style)


def _of_pool(name: str, what: str, groups: Sequence[Group], style: Style) -> Iterator[tuple[str, Figure]]:
    for target, distance in TARGETS.items():
        suffix = "" if distance == TIE else f"-within-{distance:g}"
        text = "the best known value" if distance == TIE else f"within {target} of the best known value"
        if curves := profiles(groups, distance):
            head = f"{what}: performance profile, {text}"
            yield f"profile-{_slug(name)}{suffix}", _curves(curves, style, head, "times the fastest run", least=1.0)
        if curves := time_distributions(groups, distance):
            head = f"{what}: time to {text}"
            yield f"target-{_slug(name)}{suffix}", _curves(curves, style, head, "seconds", least=TICK)
    # Losses on all models that have a best known value; infinite where a run has no labelling.
    problems = [(mine, model) for mine in groups for _, model in mine.models if model in mine.best]
    losses = {run: [loss(mine, model, run) for mine, model in problems] for run in _runs(groups)}
    losses = {run: some for run, some in losses.items() if any(map(math.isfinite, some))}
    if losses:
        curves = {run: accuracy_profile(some) for run, some in losses.items()}
        head = f"{what}: accuracy profile"
        axis = "relative distance to the best known value"
        yield f"accuracy-{_slug(name)}", _curves(curves, style, head, axis, least=TIE, most=1.0)
        # A row of dots per run, one for each model, and a marker at the median.
        figure, axes = _empty(f"{what}: distance to the best known value", 1.2 + 0.28 * len(losses))
        for row, (run, some) in enumerate(losses.items()):
            xs = sorted(max(TIE, x) for x in some if math.isfinite(x))
            axes.plot(xs, [row] * len(xs), "o", color=style[run]["color"], alpha=0.5, markersize=4)
            axes.plot(xs[len(xs) // 2], row, "|", color="black", markersize=12)
        axes.set(xscale="log", xlim=(0.7 * TIE, 1.5), ylim=(len(losses) - 0.5, -0.5))
        axes.set_yticks(range(len(losses)), [literal(run) for run in losses])
        axes.set_xlabel("relative distance to the best known value")
        yield f"loss-{_slug(name)}", figure


def _of_model(mine: Group, model: str, style: Style) -> Iterator[tuple[str, Figure]]:
    name = _slug(f"{mine.name}-{model}")
    bands = {run: anytime(mine.cells.get((model, run), [])) for _, run in mine.runs}
    drawn = {run: band for run, band in bands.items() if band is not None}
    if drawn:
        yield f"anytime-{name}", _anytime(drawn, style, f"{title(mine.name)}: {model}", mine.best.get(model))
    for _, run in mine.runs:
        for record in mine.cells.get((model, run), [])[:1]:
            if lines := residuals(record):
                figure, axes = _empty(f"{model}: convergence of {run}")
                for (text, points), tone in zip(lines.items(), CYCLE, strict=False):
                    axes.plot([x for x, _ in points], [y for _, y in points], label=text, color=tone)
                axes.set(yscale="log", xlabel="iterations")
                _legend(axes)
                yield f"convergence-{name}-{_slug(run)}", figure


def residuals(record: Record) -> dict[str, Curve]:
    """Residuals and penalty over the iterations, for methods that have all of them."""
    rows = [dict(zip(TRACE_COLUMNS, row, strict=False)) for row in record.get("trace") or []]
    if not any(all(row.get(part) is not None for part in PARTS) for row in rows):
        return {}
    return {
        text: [(row["iterations"], row[part]) for row in rows if row.get(part) is not None and row[part] > 0]
        for part, text in PARTS.items()
    }


def _slug(name: str) -> str:
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "unnamed"


# -- drawing ----------------------------------------------------------------------------------------------------------


def _empty(text: str, height: float = 3.6) -> tuple[Figure, Any]:
    figure = new_figure(6.3, height)  # the text width of a page, in inches
    axes = figure.add_subplot()
    plain_axes(axes)
    heading(axes, literal(text))
    return figure, axes


def _curves(
    curves: Mapping[str, Curve], style: Style, head: str, axis: str, *, least: float, most: float | None = None
) -> Figure:
    """Step functions of shares over a logarithmic axis, all as long as the longest."""
    figure, axes = _empty(head)
    ends = [x for curve in curves.values() for x, _ in curve]
    end = most if most is not None else max([2 * least, *(1.05 * x for x in ends)])
    for run, curve in curves.items():
        xs, ys = [max(x, least) for x, _ in curve], [y for _, y in curve]
        axes.step([*xs, end], [*ys, ys[-1]], where="post", label=literal(run), **style[run])
    axes.set(xscale="log", xlim=(least, end), ylim=(-0.02, 1.02), xlabel=axis, ylabel="share of the models")
    _legend(axes)
    return figure


def _anytime(bands: Mapping[str, Band], style: Style, head: str, best: float | None) -> Figure:
    """Medians over the seeds, and the interval around each."""
    figure, axes = _empty(head)
    for run, band in bands.items():
        axes.step(band.times, band.middle, where="post", label=literal(run), **style[run])
        if band.seeds > 1:
            tone = style[run]["color"]
            axes.fill_between(band.times, band.low, band.high, step="post", alpha=0.2, linewidth=0, color=tone)
    if best is not None:
        axes.axhline(best, color=MUTED, linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="seconds", ylabel="log potential")
    _legend(axes)
    return figure


def _legend(axes: Any) -> None:
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
