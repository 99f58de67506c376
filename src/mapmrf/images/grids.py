"""Models with one variable per pixel of a picture or volume."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, short
from mapmrf.errors import GraphError, OptionError
from mapmrf.graph import FactorGraph
from mapmrf.images.lattice import (
    Offset,
    contrast_weights,
    distance,
    guide_for,
    lattice_pairs,
    neighbour_offsets,
    numbers,
    pairs_at,
)
from mapmrf.images.memory import check_limit, model_bytes
from mapmrf.images.smoothness import LEVELS, base_table, checked_potentials, shared
from mapmrf.result import Result

Weight = float | Mapping[Offset, ArrayLike]
"""One weight for all pairs of neighbours, or for every offset (rows, columns) an array with one for each pair."""


def grid_model(
    unary: ArrayLike,
    smoothness: str | ArrayLike = "potts",
    *,
    weight: Weight = 1.0,
    truncation: float | None = None,
    values: ArrayLike | None = None,
    neighbours: int = 4,
    guide: ArrayLike | None = None,
    sigma: float | None = None,
    levels: int | None = LEVELS,
    costs: bool = False,
    memory_limit: float | None = None,
) -> FactorGraph:
    """Build the model of a picture: a label per pixel that fits the data, and neighbours that tend to agree.

    The log potential of a labelling `x`, to be maximised, is the sum of ``unary[p, x_p]`` over all pixels plus the sum
    of ``weight_pq * smoothness[x_p, x_q]`` over all pairs of neighbours, where smoothness is 0 for equal labels and
    negative for others. A unit of weight is thus a unit of log potential: with unaries that are log probabilities,
    weight 2 means that a border between two pixels is ``exp(2)`` times less likely than none.

    Parameters
    ----------
    unary : (H, W, L)
        Log potential of each of the `L` labels at each pixel; `-inf` forbids a label. A volume is (D, H, W, L).
    smoothness
        ``potts``, ``linear`` or ``quadratic`` (see `smoothness_table`), or a table (L, L) of log potentials: rows are
        the labels of the earlier pixel, which is the left or upper one.
    weight
        Factor of the smoothness, at least 0: a number, divided by the distance of the two pixels (the square root of 2
        for diagonal neighbours); or a dict of arrays as returned by `contrast_weights`, used as they are:
        (H, W - 1) at the offset (0, 1) for pairs side by side, (H - 1, W) at (1, 0) for pairs one above the other, and
        with 8 neighbours (H - 1, W - 1) at (1, -1) and (1, 1). Pairs of weight 0 are left out of the model.
    truncation, values
        Limit of ``linear`` and ``quadratic``, and the values of the labels, (L,); see `smoothness_table`.
    neighbours
        4 or 8; 6 or 26 in a volume.
    guide : (H, W) or (H, W, C)
        A picture whose edges are where labels may change: a number `weight` is scaled by its contrast.
    sigma
        Difference that counts as contrast in the guide; see `contrast_weights`.
    levels
        Pairs of equal weight share a table of L x L. If there are more than `levels` different weights, they are
        rounded to that many evenly spaced ones, none by more than ``(largest - smallest) / (2 * (levels - 1))``. None
        keeps every weight, at 8 * L * L bytes per different one.
    costs
        Unary, and smoothness if it is a table, are costs to be minimised: log potential = -cost, and `inf` forbids.
    memory_limit
        Limit on the size of the model in bytes; by default the memory of the machine, ``math.inf`` for no limit.

    Returns
    -------
    FactorGraph
        The pixel in row `r` and column `c` is variable ``r * W + c``; `to_image` turns a result into a picture.

    Raises
    ------
    GraphError, OptionError
        If shapes do not match or a number is out of range.
    MapMRFError
        If the model would exceed the memory limit.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> noisy = np.array([[0.1, 0.2, 0.9], [0.0, 0.7, 1.0]])
    >>> graph = grid_model(np.stack([noisy, 1 - noisy], axis=-1), weight=0.3, costs=True)
    >>> to_image(mapmrf.solve(graph), noisy.shape).tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    theta, shape = _pixels(unary)
    table = base_table(smoothness, theta.shape[-1], truncation, values, costs)
    by_offset = _pair_weights(shape, weight, neighbours, guide, sigma)
    weights = np.concatenate([np.zeros(0), *(np.ravel(of_pairs) for of_pairs in by_offset.values())])
    terms = PairTerms(weights, lambda: np.concatenate([lattice_pairs(shape, offset) for offset in by_offset]), table)
    return terms.model(UnaryTerms(theta, costs, "pixel"), levels, memory_limit)


class UnaryTerms(NamedTuple):
    """Unaries (..., L) as the user gave them, whether they are costs, and what a variable is called in an error."""

    theta: Floats
    costs: bool
    variable: str


@dataclass(frozen=True)
class PairTerms:
    """The pairs of a model: a weight for each, the table that it multiplies, and how to list them.

    They are listed only once the model is known to fit into memory.
    """

    weights: Floats
    list_pairs: Callable[[], Ints]
    table: Floats

    def model(self, unaries: UnaryTerms, levels: int | None, memory_limit: float | None) -> FactorGraph:
        """The model of these pairs, without those of weight 0, and of unaries."""
        theta, n_labels = unaries.theta, unaries.theta.shape[-1]
        used = self.weights > 0
        table_of, table_weights = shared(self.weights[used], levels)
        needed = model_bytes(theta.size // n_labels, len(table_of), n_labels, len(table_weights))
        check_limit(needed, memory_limit, "this model")
        pairs = self.list_pairs()
        return pair_model(
            checked_potentials(np.array(theta), unaries.costs, "unary", f"{unaries.variable} and label"),
            pairs if used.all() else pairs[used],
            table_of,
            table_weights[:, None, None] * self.table,
        )


def pair_model(theta: Floats, pairs: Ints, table_of: Ints, tables: Floats) -> FactorGraph:
    """Build a pairwise model from unaries (..., L), which it keeps, pairs (n, 2), and tables (n_tables, L, L).

    The arrays are valid by construction, and the checks of the public constructors would take several times the memory.
    """
    n_labels = theta.shape[-1]
    return FactorGraph(
        card=np.full(theta.size // n_labels, n_labels),
        theta_v=theta.reshape(-1),
        scope_ptr=short(np.arange(len(pairs) + 1) * 2),
        scope=short(pairs.reshape(-1)),
        table_of=short(table_of),
        table_ptr=short(np.arange(len(tables) + 1) * n_labels**2),
        theta_t=tables.reshape(-1),
    )


def to_image(result: Result | ArrayLike, shape: tuple[int, ...]) -> Ints:
    """The labels of a Result, or a labelling itself, as a picture.

    Parameters
    ----------
    result : Result or (n_pixels,)
        The answer of `solve` on a `grid_model`, or its labels.
    shape
        Shape of the picture: (H, W), or (D, H, W).

    Examples
    --------
    >>> to_image([0, 1, 1, 0, 2, 2], (2, 3)).tolist()
    [[0, 1, 1], [0, 2, 2]]
    """
    labels = np.asarray(result.labels if isinstance(result, Result) else result)
    if labels.size != math.prod(shape):
        raise GraphError(f"{labels.size} labels for a picture of shape {tuple(shape)}, expected {math.prod(shape)}")
    return labels.reshape(shape)


def _pixels(unary: ArrayLike) -> tuple[Floats, tuple[int, ...]]:
    """The unaries as they are, and the shape of the picture."""
    theta = numbers(unary, "unary")
    if theta.ndim not in (3, 4) or theta.size == 0:
        raise GraphError(f"unary has shape {theta.shape}, expected (H, W, L) or (D, H, W, L)")
    return theta, theta.shape[:-1]


def _pair_weights(
    shape: tuple[int, ...], weight: Weight, neighbours: int, guide: ArrayLike | None, sigma: float | None
) -> Mapping[Offset, Floats]:
    """The weights of all pairs, one array per offset."""
    offsets = neighbour_offsets(len(shape), neighbours)
    if isinstance(weight, Mapping):
        if guide is not None or sigma is not None:
            raise OptionError("guide and sigma need weight to be a number, found a weight for every pair")
        return _given_weights(shape, weight, offsets)
    if guide is not None:
        return contrast_weights(guide_for(guide, shape), weight, neighbours=neighbours, sigma=sigma)
    if sigma is not None:
        raise OptionError("sigma is given without a guide")
    if not 0 <= weight < math.inf:
        raise OptionError(f"weight is {weight}, expected a finite number of at least 0")
    return {offset: np.full(pairs_at(shape, offset), weight / distance(offset)) for offset in offsets}


def _given_weights(
    shape: tuple[int, ...], weight: Mapping[Offset, ArrayLike], offsets: tuple[Offset, ...]
) -> dict[Offset, Floats]:
    """Weights of every pair as the user gave them, checked."""
    if set(weight) != set(offsets):
        found = ", ".join(map(str, sorted(weight)))
        raise GraphError(f"weight has the offsets {found}, expected {', '.join(map(str, offsets))}")
    result = {}
    for offset in offsets:
        array = numbers(weight[offset], f"weight at {offset}")
        expected = pairs_at(shape, offset)
        if array.shape != expected:
            raise GraphError(f"weight at {offset} has shape {array.shape}, expected {expected}")
        wrong = ~((array >= 0) & (array < np.inf))
        if wrong.any():
            found = array[wrong][0]
            raise GraphError(f"weight at {offset} holds {found}, expected finite numbers of at least 0")
        result[offset] = array
    return result
