"""Check the arrays of a part's file: kernels would read beyond the end of invalid ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.distributed.parts import GRAPH_ARRAYS, LIST_ARRAYS, Part
from mapmrf.errors import FormatError

CHUNK = 1 << 18
"""Factors checked together: a part may be about as large as the memory."""


def check_kinds(arrays: Mapping[str, Any]) -> None:
    """Raise FormatError for an array that is missing, or not one-dimensional of the right type."""
    for name in (*GRAPH_ARRAYS, *LIST_ARRAYS, *(["weight"] if "weight" in arrays else [])):
        kind = "f" if name in ("theta_v", "theta_t", "weight") else "i"
        found = arrays.get(name)
        if found is None or found.ndim != 1 or found.dtype.kind != kind or (kind == "f" and found.dtype.itemsize != 8):
            raise FormatError(f"damaged: no array {name!r} of the right kind")


def check_part(part: Part) -> None:
    """Raise FormatError unless every index is valid."""
    graph = part.graph
    n_vars, n_factors, n_tables = graph.n_vars, graph.n_factors, graph.n_tables
    _need(0 <= part.number < part.n_parts, "its number")
    _need(0 <= part.n_own <= n_vars and 0 <= part.n_inside <= part.n_counted <= n_factors, "its counts")
    _need(_within(graph.card, 1, 2**31) and int(graph.card.sum(dtype=np.int64)) == len(graph.theta_v), "card")
    _need(_offsets(graph.scope_ptr, n_factors, len(graph.scope)), "scope_ptr")
    _need(_within(graph.scope, 0, n_vars), "scope")
    _need(_offsets(graph.table_ptr, n_tables, len(graph.theta_t)) and _within(graph.table_of, 0, n_tables), "table_of")
    _need(all(_sizes_agree(part, begin) for begin in range(0, n_factors, CHUNK)), "the sizes of tables")
    for name in ("theta_v", "theta_t", "weight"):
        values = getattr(graph, name)
        _need(values is None or len(values) == 0 or (values.max() < np.inf and not np.isnan(values.min())), name)
    _need(graph.weight is None or len(graph.weight) == n_factors, "weight")
    _need(len(part.var) == len(part.state_at) == n_vars and _within(part.var, 0, 2**62), "var")
    _need(len(part.factor) == n_factors and _within(part.factor, 0, 2**62), "factor")
    _need(len(part.halo_part) == n_vars - part.n_own and _within(part.halo_part, 0, part.n_parts), "halo_part")
    _need(_within(part.neighbours, 0, part.n_parts) and bool(np.all(np.diff(part.neighbours) > 0)), "neighbours")
    _need(_offsets(part.send_ptr, len(part.neighbours), len(part.send)), "send_ptr")
    _need(_within(part.send, 0, part.n_own), "send")


def _need(right: bool, what: str) -> None:
    if not right:
        raise FormatError(f"damaged: {what}: found invalid numbers")


def _within(numbers: Ints, low: int, high: int) -> bool:
    return len(numbers) == 0 or (int(numbers.min()) >= low and int(numbers.max()) < high)


def _offsets(ptr: Ints, n_blocks: int, size: int) -> bool:
    if len(ptr) != n_blocks + 1 or n_blocks < 0:
        return False
    return int(ptr[0]) == 0 and int(ptr[-1]) == size and bool(np.all(ptr[1:] >= ptr[:-1]))


def _sizes_agree(part: Part, begin: int) -> bool:
    """Return whether the tables of some factors have as many entries as the variables have configurations."""
    graph = part.graph
    ptr = graph.scope_ptr[begin : begin + CHUNK + 1].astype(np.int64)
    if np.any(np.diff(ptr) < 2):
        return False
    table = graph.table_of[begin : begin + CHUNK]
    card = graph.card[graph.scope[ptr[0] : ptr[-1]]].astype(np.float64)
    with np.errstate(over="ignore"):
        expected = np.multiply.reduceat(card, ptr[:-1] - ptr[0])
    return bool(np.array_equal(expected, graph.table_ptr[table + 1].astype(np.float64) - graph.table_ptr[table]))
