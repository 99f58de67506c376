"""Values of labellings in parts, and the scale of a model in parts: sums over the parts in order."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Ints, compact, finite_range, frozen, largest_size
from mapmrf.distributed.parts import Part, Ranks, first_factors
from mapmrf.errors import FormatError
from mapmrf.kernels.evaluation import factor_terms, unary_terms
from mapmrf.model.graph import EXACT, ROUND_OFF
from mapmrf.run.incumbent import Bounds, CheckedIncumbent, Shortfall, chunks_of_terms, tables_of
from mapmrf.run.method import Array
from mapmrf.run.state import ArrayFile, read_arrays, write_arrays

Slices = Sequence[slice]


def part_sums(part: Part, labels: Ints) -> list[list[tuple[int, float]]]:
    """Sums over the own variables of a part, and over the factors that it counts, in chunks."""
    # `labels` are those of the own variables and of the halo. A sum is the number of terms that are -inf, and the sum
    # of the others.
    labels = frozen(np.array(labels, dtype=np.int64))
    tables, found = tables_of(part.graph), []
    for terms, n in ((unary_terms, part.n_own), (factor_terms, part.n_constrained)):
        sums = []
        for some in chunks_of_terms(terms, tables, labels, 0, n):
            n_violated, total = 0, float(some.sum())
            if total == -math.inf:
                forbidden = np.isneginf(some)
                n_violated, total = int(np.count_nonzero(forbidden)), float(some[~forbidden].sum())
            sums.append((n_violated, total))
        found.append(sums)
    return found


def evaluate(ranks: Ranks, parts: Sequence[Part], labels: Ints, slices: Slices) -> Shortfall:
    """Violations of a labelling, and the value of the rest: its value if there are none."""
    mine = [part_sums(part, labels[where]) for part, where in zip(parts, slices, strict=True)]
    constant = parts[0].graph.constant if ranks.rank == 0 else 0.0
    everyones = ranks.allgather((constant, mine))
    violated, total = 0, everyones[0][0]
    for kind in (0, 1):
        for _, found in everyones:
            for sums in found:
                for n_violated, rest in sums[kind]:
                    violated, total = violated + n_violated, total + rest
    return Shortfall(violated, total)


class ModelScale(NamedTuple):
    """Scale of a whole model's potentials: as `unit` and `size` of `FactorGraph`."""

    unit: float
    size: float

    @property
    def allowance(self) -> float:
        return EXACT * self.size

    def round_off(self, least: float) -> float:
        """Floating-point error of sums; 0 if it is at most `least`."""
        return 0.0 if ROUND_OFF * self.size <= least else ROUND_OFF * self.size


def model_scale(ranks: Ranks, parts: Sequence[Part]) -> ModelScale:
    found = [one for some in ranks.allgather([_part_scale(part) for part in parts]) for one in some]
    spread = max(one[0] for one in found) + max(one[1] for one in found) * max(one[2] for one in found)
    size = 0.0
    for one in found:
        size += one[3]
    return ModelScale(min(1.0, spread) if spread > 0 else 1.0, size)


def _part_scale(part: Part) -> tuple[float, float, float, float]:
    graph = part.graph
    most = 1.0 if graph.weight is None else largest_size(graph.weight)
    own = graph.theta_v.copy()
    own[graph.var_ptr[part.n_own] :] = 0.0
    size = first_factors(graph, part.n_constrained, own).size
    return finite_range(graph.theta_v), most, finite_range(graph.theta_t), size


class PartedIncumbent(CheckedIncumbent):
    """The best labelling of a model in parts: every rank keeps the labels of its parts; value and bound are common."""

    def __init__(self, ranks: Ranks, parts: Sequence[Part], labels: Ints, slices: Slices) -> None:
        self.ranks, self.parts, self.slices = ranks, parts, slices
        self.scale = model_scale(ranks, parts)
        self.bounds, self.bound = Bounds(), math.inf
        self._set(labels, evaluate(ranks, parts, labels, slices))

    def _set(self, labels: Ints, found: Shortfall) -> None:
        self.labels = compact(labels).copy()  # labels of the parts of this rank, including copies, concatenated
        self.value, self._shortfall = found.value, found

    def offer(self, labels: Ints, claim: float | None = None) -> float:
        if claim is not None and claim <= self.value and self.value > -math.inf:
            return claim
        return self._compared(labels, equal=False)

    def prefer(self, labels: Ints) -> None:
        self._compared(labels, equal=True)

    def _compared(self, labels: Ints, equal: bool) -> float:
        found = evaluate(self.ranks, self.parts, labels, self.slices)
        if found.better_than(self.shortfall) or (equal and found == self.shortfall):
            self._set(labels, found)
            self._compare()
        return found.value

    @property
    def optimal(self) -> bool:
        return self.meets_bound


# -- Labellings by parts: written by the ranks, and joined on demand --------------------------------------------------


def label_path(folder: Path, number: int) -> Path:
    return folder / f"labels-{number:05d}.mrf"


def write_labels(folder: str | os.PathLike[str], parts: Sequence[Part], labels: Ints, slices: Sequence[slice]) -> None:
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
    >>> import tempfile, mapmrf
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = mapmrf.distributed.partition(mapmrf.datasets.grid(4, 4, seed=1), folder, 2)
    ...     result = mapmrf.distributed.solve(folder, max_iterations=50)
    ...     result.write_labels(folder)
    ...     labels = mapmrf.distributed.join_labels(folder)
    >>> mapmrf.datasets.grid(4, 4, seed=1).value(labels) == result.value
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
