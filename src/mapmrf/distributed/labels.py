"""Labellings by parts: written by the ranks, and joined on demand."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Ints, compact
from mapmrf.distributed.parts import Part
from mapmrf.errors import FormatError
from mapmrf.run.array_files import Array, ArrayFile, read_arrays, write_arrays


def label_path(folder: Path, number: int) -> Path:
    """The file of a part's labels."""
    return folder / f"labels-{number:05d}.mrf"


def write_labels(folder: str | os.PathLike[str], parts: Sequence[Part], labels: Ints, slices: Sequence[slice]) -> None:
    """Write the labels of every part's own variables to a separate file."""
    place = Path(folder)
    place.mkdir(parents=True, exist_ok=True)
    for part, where in zip(parts, slices, strict=True):
        arrays = {"var": part.var[: part.n_own], "labels": compact(labels[where][: part.n_own])}
        figures = {"number": part.number, "n_parts": part.n_parts}
        write_arrays(label_path(place, part.number), ArrayFile("labels", figures, arrays), keep=None)


def join_labels(folder: str | os.PathLike[str]) -> Ints:
    """Join labels written by parts into a labelling of the whole model.

    Raises
    ------
    FormatError
        If a file is missing or damaged, or a variable has no label.

    Examples
    --------
    >>> import tempfile
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(grid(4, 4, seed=1), folder, 2)
    ...     result = mapmrf.distributed.solve(folder, max_iterations=50)
    ...     result.write_labels(folder)
    ...     labels = mapmrf.distributed.join_labels(folder)
    >>> grid(4, 4, seed=1).value(labels) == result.value
    True
    """
    place = Path(folder)
    number, n_parts = 0, 1
    var, labels = [], []
    while number < n_parts:
        path = label_path(place, number)
        if not path.is_file():
            raise FormatError(f"{path}: no such file: the labels of part {number} are missing")
        _, figures, arrays = read_arrays(path, "labels")
        n_parts = _n_parts(path, figures, arrays)
        var.append(arrays["var"])
        labels.append(arrays["labels"])
        number += 1
    places, found = np.concatenate(var), np.concatenate(labels)
    if not np.array_equal(np.sort(places), np.arange(len(places))):
        raise FormatError(f"{place}: the labels of {n_parts} parts do not belong together")
    whole = np.empty(len(places), dtype=np.int64)
    whole[places] = found
    return whole


def _n_parts(path: Path, figures: dict[str, Any], arrays: dict[str, Array]) -> int:
    """The number of parts given in a file of labels, after checking that it has labels."""
    n_parts, kinds = figures.get("n_parts"), [arrays.get(name) for name in ("var", "labels")]
    rows = all(array is not None and array.ndim == 1 and array.dtype.kind in "iu" for array in kinds)
    if not rows or not isinstance(n_parts, int) or len(arrays["var"]) != len(arrays["labels"]):
        raise FormatError(f"{path}: damaged: it does not have a label for every variable")
    if len(arrays["labels"]) and int(arrays["labels"].min()) < 0:
        raise FormatError(f"{path}: damaged: a label is negative")
    return n_parts
