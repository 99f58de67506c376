"""Cost of different labels for two neighbours of weight 1."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Bools, Floats
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.lattice import numbers

KINDS = ("potts", "linear", "quadratic")


def smoothness_table(
    smoothness: str, n_labels: int, *, truncation: float | None = None, values: ArrayLike | None = None
) -> Floats:
    """Log potentials of a pair of weight 1: 0 for equal labels, below 0 for labels that differ.

    With `v` the values of the labels, the entry for labels `k` and `l` is -1 unless ``k == l`` (``potts``),
    ``-min(|v_k - v_l|, truncation)`` (``linear``) or ``-min(|v_k - v_l|^2, truncation)`` (``quadratic``).

    Parameters
    ----------
    smoothness
        ``potts``, ``linear`` or ``quadratic``.
    n_labels
        Number of labels `L`.
    truncation
        Maximum cost of a pair of weight 1, for ``linear`` and ``quadratic``; no limit if not given. For
        ``quadratic`` it is the limit of the squared distance.
    values : (L,) or (L, C)
        Grey level, disparity or colour of a label, for ``linear`` and ``quadratic``; 0, 1, 2, ... if not
        given.

    Returns
    -------
    (L, L)
        The table, to be maximised.

    Examples
    --------
    >>> smoothness_table("quadratic", 3, truncation=2).tolist()
    [[0.0, -1.0, -2.0], [-1.0, 0.0, -1.0], [-2.0, -1.0, 0.0]]
    """
    if smoothness not in KINDS:
        raise OptionError(f"smoothness is {smoothness!r}, expected one of {', '.join(KINDS)} or an (L, L) table")
    if smoothness == "potts":
        if truncation is not None or values is not None:
            what = "truncation" if truncation is not None else "values"
            raise OptionError(f"{what} has no meaning for potts, where all labels are equally far apart")
        return np.eye(n_labels) - 1.0
    if truncation is not None and not truncation >= 0:
        raise OptionError(f"truncation is {truncation}, expected a number of at least 0")
    place = _label_values(values, n_labels)
    apart = ((place[:, None] - place) ** 2).sum(axis=-1)
    if smoothness == "linear":
        apart = np.sqrt(apart)
    apart = np.minimum(apart, math.inf if truncation is None else truncation)
    return np.asarray(0.0 - apart)


def base_table(
    smoothness: str | ArrayLike, n_labels: int, truncation: float | None, values: ArrayLike | None, costs: bool
) -> Floats:
    """The table of weight 1 from a name or from the table itself, as log potentials."""
    if isinstance(smoothness, str):
        return smoothness_table(smoothness, n_labels, truncation=truncation, values=values)
    if truncation is not None or values is not None:
        raise OptionError("truncation and values apply to linear and quadratic, not to a custom table")
    table = numbers(smoothness, "smoothness")
    if table.shape != (n_labels, n_labels):
        raise GraphError(f"smoothness has shape {table.shape}, expected {(n_labels, n_labels)} = (L, L)")
    return checked_potentials(table.copy(), costs, "smoothness", "labels")


def checked_potentials(array: Floats, costs: bool, what: str, place: str) -> Floats:
    """Log potentials from log potentials or costs; raise GraphError naming an invalid entry."""
    check_entries(array, costs, what, place)
    return np.asarray(0.0 - array if costs else array)  # no -0.0


def check_entries(array: NDArray[Any], costs: bool, what: str, place: str, mask: Bools | None = None) -> None:
    """Raise GraphError naming the first invalid entry, if there is one."""
    wrong = np.isnan(array) | (array == (-np.inf if costs else np.inf))
    if mask is not None:
        wrong &= mask[..., None]
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        meant = (
            "costs, of which inf forbids" if costs else "log potentials, of which -inf forbids; for costs costs=True"
        )
        raise GraphError(
            f"{what} at {place} {at} is {array[at]}, expected a finite number or {_forbids(costs)} ({meant})"
        )


def _label_values(values: ArrayLike | None, n_labels: int) -> Floats:
    """Values of the labels, (L, C)."""
    if values is None:
        return np.arange(float(n_labels))[:, None]
    array = numbers(values, "values")
    if array.ndim not in (1, 2) or len(array) != n_labels or not np.isfinite(array).all():
        raise GraphError(f"values have shape {array.shape}, expected finite numbers for each of the {n_labels} labels")
    return array.reshape(n_labels, -1)


def _forbids(costs: bool) -> str:
    return "inf" if costs else "-inf"
