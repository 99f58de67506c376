"""The text of a UAI model, piece by piece, so that a large model is never in memory as text."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.formats.scales import WRITTEN_FORBIDDEN
from mapmrf.model.graph import FactorGraph

_CHUNK = 1 << 16
# 17 digits would spoil the round number for a forbidden configuration.
_LONG, _SHORT = f"{WRITTEN_FORBIDDEN:.17g}", f"{WRITTEN_FORBIDDEN:g}"


def model_text(graph: FactorGraph, constant: float, unary: Floats, tables: Floats, neutral: float) -> Iterator[str]:
    """Yield the file from the header to the last table.

    The numbers are given in the scale of the file, laid out like `theta_v` and `theta_t`. Unary factors and a constant
    in which everything is `neutral` are omitted.
    """
    loud = (
        np.flatnonzero(np.logical_or.reduceat(unary != neutral, graph.var_ptr[:-1])) if graph.n_vars else np.arange(0)
    )
    n_constants = int(constant != neutral)
    yield f"MARKOV\n{graph.n_vars}\n{' '.join(map(str, graph.card.tolist()))}\n"
    yield f"{n_constants + len(loud) + graph.n_factors}\n" + "0\n" * n_constants
    for some in _chunks(loud):
        yield "1 %d\n" * len(some) % tuple(some.tolist())
    yield from _scope_text(graph)
    yield "\n" + f"1\n {constant:.17g}\n".replace(_LONG, _SHORT) * n_constants
    yield from _table_text(unary, graph.var_ptr, loud)
    yield from _table_text(tables, graph.table_ptr, graph.table_of)


def _chunks(items: Ints, size: int = 1) -> Iterator[Ints]:
    """Divide a list of items that have `size` numbers each."""
    step = max(1, _CHUNK // size)
    for begin in range(0, len(items), step):
        yield items[begin : begin + step]


def _scope_text(graph: FactorGraph) -> Iterator[str]:
    """Arity and variables of every factor."""
    line = {k: f"{k}" + " %d" * k + "\n" for k in np.unique(graph.arity).tolist()}
    for some in _chunks(np.arange(graph.n_factors)):
        arity = graph.arity[some]
        variables = graph.scope[graph.scope_ptr[some[0]] : graph.scope_ptr[some[-1] + 1]]
        yield "".join([line[k] for k in arity.tolist()]) % tuple(variables.tolist())


def _table_text(numbers: Floats, ptr: Ints, table_of: Ints) -> Iterator[str]:
    """Size and entries of the tables in the order of `table_of`; tables shared within a chunk are formatted once."""
    for some in _chunks(table_of, int(np.diff(ptr).max(initial=1))):
        used, place = np.unique(some, return_inverse=True)
        begin, sizes = ptr[used], ptr[used + 1] - ptr[used]
        formats = {size: f"{size}\n" + " %.17g" * size + "\n" for size in np.unique(sizes).tolist()}
        flat = numbers[ranges(begin, sizes)].tolist()
        texts, at = [], 0
        for size in sizes.tolist():
            texts.append(formats[size] % tuple(flat[at : at + size]))
            at += size
        yield "".join([texts[t] for t in place.tolist()]).replace(_LONG, _SHORT)
