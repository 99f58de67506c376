"""Label maps: the labellings of grid models as pictures, run by run."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.bench.groups import Group, family, title
from mapmrf.bench.records import MAX_LABELS, Record, unpack_labels
from mapmrf.datasets.catalogue import COLUMNS
from mapmrf.plots.pictures import colours, encode

MAPS_PER_SET = 8
"""Number of models per set that are drawn."""

_WHY = {
    "seg-2": "superpixels: the files say which ones touch, not where their pixels are",
    "seg-21": "superpixels: the files say which ones touch, not where their pixels are",
    "scene": "superpixels: the files say which ones touch, not where their pixels are",
    "protein": "interactions of proteins, which have no position in an image",
}


def maps_of(mine: Group) -> str:
    """Maps of the first grid models of a set, or a line that says why there are none."""
    drawable = [model for _, model in mine.models if _drawable(mine, model)]
    shown = [_model(mine, model) for model in drawable[:MAPS_PER_SET]]
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


def _model(mine: Group, model: str) -> str:
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
