"""Estimates of the memory for an image model and for solving it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mapmrf.errors import GraphError, UnknownName
from mapmrf.images.lattice import neighbour_offsets, pairs_at
from mapmrf.model.memory import PROGRAM, RATES, Sizes, check_bytes, footprint_of, shown_bytes


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
