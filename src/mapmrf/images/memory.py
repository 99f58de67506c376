"""Estimates of the memory for an image model and for solving it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from mapmrf.errors import GraphError, UnknownName
from mapmrf.images.lattice import neighbour_offsets, pairs_at
from mapmrf.model.memory import PROGRAM, check_bytes, shown_bytes

BUILD_PER_PIXEL = 28  # temporary bytes per pixel for building: its index, and its colour as 64-bit floats
SPARE = 8_000_000  # bytes for building any model


class Rate(NamedTuple):
    """Bytes of a method per pixel, pair, label of a pixel, label of a pair and table entry, and a constant."""

    # Computed from the arrays that it allocates, where these grow with the labels; the rest is measured.

    pixel: float
    pair: float
    pixel_label: float
    pair_label: float
    entry: float
    fixed: float


RATES = {
    "trws": Rate(25, 40, 0.5, 8, 9, 4e6),
    "lslp": Rate(60, 28, 32, 47, 9, 20e6),
    "icm": Rate(48, 114, 1, 0, 1, 4e6),
    "blocks": Rate(170, 220, 1, 0, 17, 8e6),
}
BINARY_RATES = {"trws": Rate(62, 40, 0, 0, 9, 4e6), "lslp": Rate(40, 52, 0, 0, 9, 20e6)}
"""For methods that store two labels as one number."""
WIDE_RATES = {"blocks": Rate(40, 170, 1, 0, 17, 8e6)}
"""For `WIDE` labels or more, where a block of the default width is a tree."""
WIDE = 16
KKT_STATES, KKT_RATE = 4_000_000, 28
"""Number of edge states up to which lslp ends with a report on its optimality; bytes of the report per edge state."""


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
        >>> estimate_memory((700, 720), 16, "icm").summary().startswith("470 MB in all")
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
        ``trws``, ``lslp``, ``icm`` or ``blocks``, with its default options.
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
    '509 MB in all: program 170 MB, unaries 64.5 MB, model 84.7 MB, solving it 274 MB'
    >>> estimate_memory((700, 720), 16, "lslp", memory_limit=1e9)
    Traceback (most recent call last):
    mapmrf.errors.GraphError: 700 x 720 pixels with 16 labels by lslp take 1.41 GB, the limit is 1 GB
    """
    if not shape or min(shape) < 1 or n_labels < 1:
        raise GraphError(
            f"shape {tuple(shape)} with {n_labels} labels, expected (H, W), (D, H, W) or (N,) and at least 1 label"
        )
    n = math.prod(shape)
    offsets = neighbour_offsets(len(shape), neighbours)
    pairs = sum(math.prod(pairs_at(shape, offset)) for offset in offsets)
    model = model_bytes(n, pairs, n_labels, weighted)
    # Peak memory of a method in bytes, without the model.
    if method not in RATES:
        raise UnknownName(f"no estimate for the method {method!r}, expected one of {', '.join(RATES)}")
    rate = RATES[method]
    if n_labels == 2:
        rate = BINARY_RATES.get(method, rate)
    elif n_labels >= WIDE:
        rate = WIDE_RATES.get(method, rate)
    own = n * (rate.pixel + n_labels * rate.pixel_label) + pairs * (rate.pair + n_labels * rate.pair_label)
    if method == "lslp" and 2 * pairs * n_labels <= KKT_STATES:
        own += KKT_RATE * pairs * n_labels
    estimate = MemoryEstimate(
        program=PROGRAM,
        unary=8 * n * n_labels,
        model=model,
        build=model + BUILD_PER_PIXEL * n + SPARE,
        solve=model + int(own + rate.entry * n_labels**2 + rate.fixed),
    )
    size = " x ".join(map(str, shape))
    check_bytes(estimate.total, memory_limit, f"{size} pixels with {n_labels} labels by {method}")
    return estimate


def model_bytes(n: int, pairs: int, n_labels: int, weighted: bool) -> int:
    """Bytes of the arrays of a model of pairs that share a table, with indices of 32 bits."""
    return 8 * n + 8 * n * n_labels + (24 if weighted else 16) * pairs + 8 * n_labels**2
