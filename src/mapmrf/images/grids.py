"""Models with one variable per pixel of an image or volume."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.errors import GraphError, OptionError, UnknownName
from mapmrf.images.neighbours import (
    ContrastRule,
    Lattice,
    Offset,
    base_table,
    channels_for,
    check_entries,
    check_weight,
    checked_mask,
    checked_offsets,
    checked_spacing,
    distance,
    neighbour_offsets,
    numbers,
    pairs_at,
    split_pairs,
)
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import PROGRAM, RATES, Sizes, check_bytes, footprint_of, shown_bytes
from mapmrf.run.result import Result

Weight = float | Mapping[Offset, ArrayLike]
"""One weight for all pairs of neighbours, or for every offset (rows, columns) a number or an array of one per pair."""


def grid_model(
    unary: ArrayLike,
    smoothness: str | ArrayLike = "potts",
    *,
    weight: Weight = 1.0,
    truncation: float | None = None,
    values: ArrayLike | None = None,
    neighbours: int | None = None,
    guide: ArrayLike | None = None,
    sigma: float | None = None,
    mask: ArrayLike | None = None,
    spacing: ArrayLike | None = None,
    channel_axis: int = -1,
    label_costs: ArrayLike | None = None,
    costs: bool = False,
    memory_limit: float | None = None,
) -> FactorGraph:
    """Build the model of an image: a label per pixel that fits the data, and neighbours that tend to agree.

    The log potential of a labelling `x`, to be maximised, is the sum of ``unary[p, x_p]`` over all pixels plus the sum
    of ``weight_pq * smoothness[x_p, x_q]`` over all pairs of neighbours, where smoothness is 0 for equal labels and
    negative for others, less the costs of the labels in use, if there are any. A unit of weight is thus a unit of log
    potential: with unaries that are log probabilities, weight 2 means that a border between two pixels is ``exp(2)``
    times less likely than none. All pairs share one table of smoothness; pairs have individual weights where weights
    differ.

    Parameters
    ----------
    unary : (H, W, L)
        Log potential of each of the `L` labels at each pixel; `-inf` forbids a label. A signal is (N, L), a volume
        (D, H, W, L).
    smoothness
        ``potts``, ``linear`` or ``quadratic`` (see `smoothness_table`), or a table (L, L) of log potentials: rows are
        the labels of the earlier pixel, which is the left or upper one.
    weight
        Factor of the smoothness, at least 0: a number, divided by the distance of the two pixels (the square root of 2
        for diagonal neighbours); or a dict with a number or an array for each offset, used as they are:
        (H, W - 1) at the offset (0, 1) for pairs side by side, (H - 1, W) at (1, 0) for pairs one above the other, and
        with 8 neighbours (H - 1, W - 1) at (1, -1) and (1, 1). `contrast_weights` returns such a dict. It may have any
        offsets of which the first number that is not 0 is positive, (0, 2) for instance.
    truncation, values
        Limit of ``linear`` and ``quadratic``, and the values of the labels, (L,); see `smoothness_table`.
    neighbours
        4 or 8; 6, 18 or 26 in a volume. If not given, two for each axis, or the offsets of `weight`.
    guide : (H, W) or (H, W, C)
        An image at whose edges labels may change: a number `weight` is scaled by its contrast.
    sigma
        Difference that counts as contrast in the guide; see `contrast_weights`.
    mask : (H, W)
        True for pixels that are variables; all pixels if not given. The others are not read, and have no label and no
        pairs.
    spacing : (n_axes,)
        Distance of neighbours along each axis, such as ``(3, 1, 1)`` for a volume of thick slices; 1 if not given. A
        number `weight` is divided by the distance of the two pixels.
    channel_axis
        Axis of the channels of a guide that has one more axis than the image.
    label_costs : (L,)
        Cost of each label, at least 0, if any pixel has it, or one number for all labels. The model then has `L` more
        variables of two states at its end, state 1 for labels in use, each in a pair with every pixel, and needs `L`
        times 16 more bytes per pixel.
    costs
        Unary, and smoothness if it is a table, are costs to be minimised: log potential = -cost, and `inf` forbids.
    memory_limit
        Limit on the size of the model in bytes; by default the memory of the machine, ``math.inf`` for no limit.

    Returns
    -------
    FactorGraph
        The pixel in row `r` and column `c` is variable ``r * W + c``; with a mask its true pixels are numbered in this
        order. `to_image` turns a result into an image.

    Raises
    ------
    GraphError, OptionError
        If shapes do not match or a number is out of range.
    MapMRFError
        If the model would exceed the memory limit.

    Examples
    --------
    >>> import mapmrf
    >>> noisy = np.array([[0.1, 0.2, 0.9], [0.0, 0.7, 1.0]])
    >>> graph = grid_model(np.stack([noisy, 1 - noisy], axis=-1), weight=0.3, costs=True)
    >>> to_image(mapmrf.solve(graph), noisy.shape).tolist()
    [[0, 0, 1], [0, 1, 1]]
    """
    given = as_given(unary, "unary")
    if given.ndim < 2 or given.size == 0:
        raise GraphError(f"unary has shape {given.shape}, expected (H, W, L), (D, H, W, L) or (N, L)")
    shape, n_labels = given.shape[:-1], given.shape[-1]
    lattice = Lattice(shape, checked_mask(mask, shape))
    unaries = UnaryTerms(given, costs, "pixel", lattice.mask, checked_prices(label_costs, n_labels))
    table = base_table(smoothness, n_labels, truncation, values, costs)
    neighbourhood = Neighbourhood(lattice, _offsets(weight, len(shape), neighbours))
    unaries.check_size(neighbourhood.n_pairs, guide is not None or isinstance(weight, Mapping), memory_limit)
    if isinstance(weight, Mapping):
        if not (guide is None and sigma is None and spacing is None):
            raise OptionError("guide, sigma and spacing need weight to be a number, found one for every offset")
        return neighbourhood.given(weight, table).model(unaries)
    if guide is None and sigma is not None:
        raise OptionError("sigma is given without a guide")
    rule = ContrastRule(weight, sigma, 0.0, checked_spacing(spacing, len(shape)))
    if guide is None:
        return neighbourhood.even(rule, table).model(unaries)
    return neighbourhood.contrasted(rule, channels_for(guide, lattice, channel_axis), table).model(unaries)


def to_image(
    result: Result | ArrayLike,
    shape: tuple[int, ...] | None = None,
    *,
    mask: ArrayLike | None = None,
    fill: int = -1,
    label_costs: bool = False,
) -> Ints:
    """Turn a Result, or a labelling itself, into an image of labels.

    Parameters
    ----------
    result : Result or (n_vars,)
        The answer of `solve` on a `grid_model`, or its labels.
    shape
        Shape of the image: (H, W), or (D, H, W). Not needed with a mask.
    mask : (H, W)
        The mask of the model, if it has one.
    fill
        Value of pixels outside the mask.
    label_costs
        Whether the model has label costs: its last variables, which are not pixels, are left out.

    Examples
    --------
    >>> to_image([0, 1, 1, 0, 2, 2], (2, 3)).tolist()
    [[0, 1, 1], [0, 2, 2]]
    >>> to_image([5, 6, 7], mask=[[True, False], [True, True]]).tolist()
    [[5, -1], [6, 7]]
    """
    labels = np.asarray(result.labels if isinstance(result, Result) else result)
    if shape is None and mask is None:
        raise OptionError("shape is missing, expected that of the image, or a mask")
    size = tuple(shape) if shape is not None else np.shape(mask)  # type: ignore[arg-type]
    lattice = Lattice(size, checked_mask(mask, size))
    found, expected = labels.size, lattice.n_pixels
    if found != expected and not (label_costs and found > expected):
        what = f"an image of shape {size}" if lattice.mask is None else f"the {expected} pixels of a mask"
        raise GraphError(f"{found} labels for {what}, expected {expected}{' and more' if label_costs else ''}")
    if labels.ndim != 1 and labels.shape != size:
        raise GraphError(f"labels have shape {labels.shape}, expected one axis, or {size}")
    labels = labels.reshape(-1)[:expected]
    if lattice.mask is None:
        return labels.reshape(size)
    image = np.full(size, fill, dtype=np.result_type(labels.dtype, np.min_scalar_type(fill)))
    image[lattice.mask] = labels
    return image


class Neighbourhood(NamedTuple):
    """The pairs of a lattice at some offsets, and the three ways to weight them."""

    lattice: Lattice
    offsets: tuple[Offset, ...]

    @property
    def n_pairs(self) -> int:
        return sum(self.lattice.n_pairs(offset) for offset in self.offsets)

    def even(self, rule: ContrastRule, table: Floats) -> PairTerms:
        """One weight, divided by distance."""
        check_weight(rule.weight)
        return self._by_offset([rule.weight / distance(offset, rule.spacing) for offset in self.offsets], table)

    def contrasted(self, rule: ContrastRule, image: Floats, table: Floats) -> PairTerms:
        """One weight, divided by distance and scaled by the contrast of an image (..., C)."""
        flat = rule.weights(image, self.lattice, self.offsets)
        if self.lattice.mask is not None:
            flat = self._inside(split_pairs(flat, self.lattice.shape, self.offsets))
        return PairTerms(self.lattice.scope(self.offsets), table, flat)

    def given(self, weight: Mapping[Offset, ArrayLike], table: Floats) -> PairTerms:
        """A number or an array for every offset; an offset of weight 0 is left out."""
        arrays = [_checked_weights(weight[offset], offset, self.lattice.shape) for offset in self.offsets]
        if all(array.ndim == 0 for array in arrays):
            return self._by_offset([float(array) for array in arrays], table)
        used = [k for k, array in enumerate(arrays) if array.any()]
        kept = self._replace(offsets=tuple(self.offsets[k] for k in used))
        return PairTerms(self.lattice.scope(kept.offsets), table, kept._inside([arrays[k] for k in used]))

    def _by_offset(self, weights: Sequence[float], table: Floats) -> PairTerms:
        """A weight for all pairs at an offset, which is left out if that is 0."""
        used = {offset: weight for offset, weight in zip(self.offsets, weights, strict=True) if weight > 0}
        runs = np.array([self.lattice.n_pairs(offset) for offset in used], dtype=np.int64)
        return PairTerms(self.lattice.scope(tuple(used)), table, np.array(list(used.values())), runs)

    def _inside(self, arrays: Sequence[Floats]) -> Floats:
        """Weights of the pairs whose pixels are both in the mask, flat."""
        parts = [np.zeros(0)]
        for offset, array in zip(self.offsets, arrays, strict=True):
            full = np.broadcast_to(array, pairs_at(self.lattice.shape, offset))
            inside = self.lattice.inside(offset)
            parts.append(full.ravel() if inside is None else full[inside])
        return np.concatenate(parts)


def _offsets(weight: Weight, n_dims: int, neighbours: int | None) -> tuple[Offset, ...]:
    """Offsets of all pairs: those of the weights, or of a number of neighbours."""
    if not isinstance(weight, Mapping):
        return neighbour_offsets(n_dims, neighbours)
    own = checked_offsets(tuple(weight), n_dims)
    if neighbours is not None and set(own) != set(expected := neighbour_offsets(n_dims, neighbours)):
        raise GraphError(f"weight has the offsets {', '.join(map(str, own))}, expected {', '.join(map(str, expected))}")
    return own


def _checked_weights(weight: ArrayLike, offset: Offset, shape: tuple[int, ...]) -> Floats:
    """The user's weights of the pairs at an offset, checked: a number, or one for every pair."""
    array = numbers(weight, f"weight at {offset}")
    expected = pairs_at(shape, offset)
    if array.shape not in ((), expected):
        raise GraphError(f"weight at {offset} has shape {array.shape}, expected {expected}, or a number")
    if not (array.min(initial=0.0) >= 0 and array.max(initial=0.0) < np.inf):
        found = array[~((array >= 0) & (array < np.inf))].flat[0]
        raise GraphError(f"weight at {offset} holds {found}, expected finite numbers of at least 0")
    return array


# -- Assemble pairwise models without copies: unaries, one table for all pairs, weights, and label costs --------------


@dataclass(frozen=True, eq=False)
class UnaryTerms:
    """Unaries (..., L) as given by the user: their variables, whether they are costs, and the label costs."""

    # `variable` is the name of a variable in error messages.

    given: NDArray[Any]
    costs: bool
    variable: str
    mask: Bools | None = None
    prices: Floats | None = None

    @property
    def n_labels(self) -> int:
        return int(self.given.shape[-1])

    @property
    def n_vars(self) -> int:
        """Number of variables without those of label costs."""
        return self.given.size // self.n_labels if self.mask is None else int(np.count_nonzero(self.mask))

    @property
    def priced(self) -> list[int]:
        return [] if self.prices is None else np.flatnonzero(self.prices).tolist()

    def check_size(self, n_pairs: int, weighted: bool, memory_limit: float | None) -> None:
        """Raise MapMRFError if a model with this many pairs exceeds the limit."""
        n_pairs += self.n_vars * len(self.priced)
        check_bytes(model_bytes(self.n_vars, n_pairs, self.n_labels, weighted), memory_limit, "this model")

    def theta_v(self) -> Floats:
        """Log potentials of all variables, flat; the variable of a label has its cost in state 1."""
        n, n_labels = self.n_vars * self.n_labels, self.n_labels
        prices = np.zeros(0) if self.prices is None else self.prices
        theta = np.empty(n + 2 * len(prices))
        rows = self.given.reshape(-1, n_labels)
        where = None if self.mask is None else np.flatnonzero(self.mask)
        chunk = 1 << 14  # variables whose unaries are gathered together
        for at in range(0, self.n_vars, chunk):
            some = rows[at : at + chunk] if where is None else rows[where[at : at + chunk]]
            part = theta[at * n_labels : at * n_labels + some.size].reshape(-1, n_labels)
            if self.costs:
                np.subtract(0.0, some, out=part, dtype=np.float64)  # no -0.0
            else:
                part[...] = some
        if not theta[:n].max() < np.inf:  # nan as well
            check_entries(self.given, self.costs, "unary", f"{self.variable} and label", self.mask)
        theta[n::2], theta[n + 1 :: 2] = 0.0, 0.0 - prices
        return theta


@dataclass(frozen=True, eq=False)
class PairTerms:
    """The pairs of a model: their variables, two for each, the table for weight 1, and weights."""

    # There is a weight for every pair, or one for each run of pairs, whose lengths are in `runs`.

    scope: Ints
    table: Floats
    weights: Floats
    runs: Ints | None = None

    def model(self, unaries: UnaryTerms) -> FactorGraph:
        n, n_labels, priced = unaries.n_vars, unaries.n_labels, unaries.priced
        tables, table_of, weight, kept = self._shared()
        n_pairs = len(table_of) + n * len(priced)
        scope = self.scope if kept is None else self.scope.reshape(-1, 2)[kept].reshape(-1)
        card = np.full(n, n_labels)
        theta_t, table_sizes = tables.reshape(-1), np.full(len(tables), n_labels**2)
        if unaries.prices is not None:
            card = np.concatenate([card, np.full(n_labels, 2)])
            # A variable may have label k only if the variable of that label, n + k, is in state 1.
            pixels = np.arange(n, dtype=np.int32 if n + n_labels < 2**31 else np.int64)
            ends = [np.stack([pixels, np.full_like(pixels, n + k)], axis=1).ravel() for k in priced]
            scope = np.concatenate([scope, *ends])
            locks = np.zeros((len(priced), n_labels, 2))
            locks[np.arange(len(priced)), priced, 0] = -np.inf
            table_of = np.concatenate([table_of, np.repeat(len(tables) + np.arange(len(priced)), n)])
            theta_t = np.concatenate([theta_t, locks.ravel()])
            table_sizes = np.concatenate([table_sizes, np.full(len(priced), 2 * n_labels)])
            weight = None if weight is None else np.concatenate([weight, np.ones(n * len(priced))])
        return FactorGraph(
            card=card,
            theta_v=unaries.theta_v(),
            scope_ptr=np.arange(0, 2 * n_pairs + 1, 2, dtype=np.int32 if n_pairs < 2**30 else np.int64),
            scope=scope,
            table_of=short(table_of),
            table_ptr=offsets(table_sizes),
            theta_t=theta_t,
            weight=weight,
        )

    def _shared(self) -> tuple[Floats, Ints, Floats | None, Bools | None]:
        """Tables, the table of every pair, the weights of pairs (None: all 1), and which pairs are kept (None: all)."""
        # A single weight is multiplied into the table. Pairs of weight 0 are kept, so that a lattice stays one, unless
        # the table forbids something, which a weight of 0 cannot scale.
        if self.runs is not None:
            distinct, of = np.unique(self.weights, return_inverse=True)
            tables = distinct[:, None, None] * self.table
            table_of: Ints = np.zeros(len(self.scope) // 2, dtype=np.int32)
            if len(distinct) > 1:
                table_of[:] = np.repeat(of, self.runs)
            return tables, table_of, None, None
        weight, kept = self.weights, None
        if np.isneginf(self.table).any() and not weight.min(initial=np.inf) > 0:
            kept = weight > 0
            weight = weight[kept]
        table_of = np.zeros(len(weight), dtype=np.int32)
        if len(weight) == 0 or weight.min() == weight.max():
            return (weight[0] if len(weight) else 1.0) * self.table[None], table_of, None, kept
        return self.table[None], table_of, weight, kept


def checked_prices(label_costs: ArrayLike | None, n_labels: int) -> Floats | None:
    """The cost of using each label; a single number applies to all of them."""
    if label_costs is None:
        return None
    prices = numbers(label_costs, "label_costs")
    if prices.shape not in ((), (n_labels,)):
        raise GraphError(
            f"label_costs have shape {prices.shape}, expected a number or ({n_labels},), one for each label"
        )
    prices = np.broadcast_to(prices, (n_labels,))
    for k, price in enumerate(prices.tolist()):
        if not 0 <= price < math.inf:
            raise OptionError(f"label_costs of label {k} is {price}, expected a finite number of at least 0")
    return prices


def as_given(values: ArrayLike, what: str) -> NDArray[Any]:
    """Numbers of any type as an array, without a copy if possible."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what} is not an array of numbers ({error})") from None
    return array if array.dtype.kind in "biuf" else numbers(array, what)


# -- Estimates of the memory for a model and for solving it -----------------------------------------------------------


@dataclass(frozen=True)
class MemoryEstimate:
    """An estimate in bytes, as returned by `estimate_memory`.

    Attributes
    ----------
    program
        Python, its libraries and the compiled kernels.
    unary
        The array of unaries from which the model is built, as 64-bit floats; the caller may delete it before solving.
    model
        The model that `grid_model` returns.
    build, solve
        Peak memory of building the model, and of solving it; both include the model, but not `program` and `unary`.

    Examples
    --------
    >>> estimate = estimate_memory((700, 720), 16, "trws")
    >>> estimate.unary == 700 * 720 * 16 * 8, estimate.total > estimate.solve > estimate.model
    (True, True)
    """

    program: int
    unary: int
    model: int
    build: int
    solve: int

    @property
    def total(self) -> int:
        """Peak memory of the process."""
        return self.program + self.unary + max(self.build, self.solve)

    def summary(self) -> str:
        """Return the estimate as a line of text.

        Examples
        --------
        >>> estimate_memory((700, 720), 16, "icm").summary().startswith("488 MB in all")
        True
        """
        parts = (
            f"program {shown_bytes(self.program)}, unaries {shown_bytes(self.unary)}, model {shown_bytes(self.model)}"
        )
        return f"{shown_bytes(self.total)} in all: {parts}, solving it {shown_bytes(self.solve)}"


def estimate_memory(
    shape: tuple[int, ...],
    n_labels: int,
    method: str = "trws",
    *,
    neighbours: int | None = None,
    weighted: bool = False,
    memory_limit: float | None = None,
) -> MemoryEstimate:
    """Estimate the memory for building and solving a `grid_model`, without building anything.

    Parameters
    ----------
    shape
        Shape of the image (H, W), volume (D, H, W) or signal (N,).
    method
        A method for images such as ``trws``, ``lslp``, ``icm`` or ``blocks``, with its default options.
    neighbours
        As for `grid_model`.
    weighted
        Whether pairs have individual weights, as with a guide or with `contrast_weights`.
    memory_limit
        Limit in bytes; by default the memory of the machine, ``math.inf`` for no limit.

    Raises
    ------
    GraphError
        If the total is above the limit.

    Examples
    --------
    >>> estimate = estimate_memory((700, 720), 16, "trws")
    >>> estimate.summary()
    '568 MB in all: program 170 MB, unaries 64.5 MB, model 84.7 MB, solving it 333 MB'
    >>> estimate_memory((700, 720), 16, "lslp", memory_limit=1e9)
    Traceback (most recent call last):
    mapmrf.errors.GraphError: 700 x 720 pixels with 16 labels by lslp take 1.27 GB, the limit is 1 GB
    """
    if not shape or min(shape) < 1 or n_labels < 1:
        raise GraphError(
            f"shape {tuple(shape)} with {n_labels} labels, expected (H, W), (D, H, W) or (N,) and at least 1 label"
        )
    n = math.prod(shape)
    offsets = neighbour_offsets(len(shape), neighbours)
    pairs = sum(math.prod(pairs_at(shape, offset)) for offset in offsets)
    model = model_bytes(n, pairs, n_labels, weighted)
    own = footprint_of(method, Sizes.of_equal_pairs(n, pairs, n_labels))
    if own is None:
        raise UnknownName(f"no estimate for the method {method!r}, expected one of {', '.join(RATES)}")
    estimate = MemoryEstimate(
        program=PROGRAM,
        unary=8 * n * n_labels,
        model=model,
        build=model + 28 * n + 8_000_000,  # a pixel's index, its colour as 64-bit floats, and some for any model
        solve=model + int(own),
    )
    size = " x ".join(map(str, shape))
    check_bytes(estimate.total, memory_limit, f"{size} pixels with {n_labels} labels by {method}")
    return estimate


def model_bytes(n: int, pairs: int, n_labels: int, weighted: bool) -> int:
    """Bytes of the arrays of a model of pairs that share a table, with indices of 32 bits."""
    return 8 * n + 8 * n * n_labels + (24 if weighted else 16) * pairs + 8 * n_labels**2
