"""A factor graph as the explicit functions and the factors of an OpenGM file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.formats._tables import numbered, same_rows, transposed
from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Explicit:
    """The content of the datasets: records ``d, s_1 ... s_d``, tables, and records ``function, 0, d, v_1 ... v_d``."""

    n_functions: int
    n_factors: int
    indices: Ints
    theta: Floats
    factors: Ints


@dataclass(frozen=True, eq=False)
class _Part:
    """Factors of one arity: their positions in the file, the function and the variables of each, and the functions."""

    place: Ints
    function: Ints
    scope: Ints
    shape: Ints
    tables: list[tuple[Ints, Floats]]


def explicit_model(graph: FactorGraph) -> Explicit:
    """Constant, unary factors and factors, in this order; OpenGM requires increasing variables within a factor."""
    n_constants = int(graph.constant != 0)
    loud = np.unique(np.repeat(np.arange(graph.n_vars), graph.card)[graph.theta_v != 0])
    first = n_constants + len(loud)
    parts = [_constant(graph)] * n_constants + [_unary(graph, loud, n_constants)] * (len(loud) > 0)
    parts += [_factors(graph, k, first) for k in np.unique(graph.arity).tolist()]
    return _assembled(parts, first + graph.n_factors)


def _constant(graph: FactorGraph) -> _Part:
    none = np.zeros((1, 0), dtype=np.int64)
    zero = np.zeros(1, dtype=np.int64)
    return _Part(zero, zero, none, none, [(zero, np.array([[graph.constant]]))])


def _unary(graph: FactorGraph, loud: Ints, first: int) -> _Part:
    """A function for every variable that has potentials."""
    number = np.arange(len(loud))
    tables = []
    for some in same_rows([graph.card[loud]]):
        size = int(graph.card[loud[some[0]]])
        tables.append((some, graph.theta_v[graph.var_ptr[loud[some]][:, None].astype(np.int64) + np.arange(size)]))
    return _Part(first + number, number, loud[:, None], graph.card[loud][:, None], tables)


def _factors(graph: FactorGraph, k: int, first: int) -> _Part:
    """A function for every distinct (table, order of the variables) of the factors of one arity."""
    members = np.flatnonzero(graph.arity == k)
    scope = graph.scope[graph.scope_ptr[members][:, None] + np.arange(k)]
    order = np.argsort(scope, axis=1, kind="stable")
    shape = graph.card[scope]
    function = numbered([graph.table_of[members], *order.T])
    one = np.unique(function, return_index=True)[1]
    tables = []
    for some in same_rows([*shape[one].T, *order[one].T]):
        example = one[some[0]]
        start = graph.table_ptr[graph.table_of[members[one[some]]]]
        # The first variable runs fastest in the file, so its axis must be the last one here.
        axes = tuple(order[example][::-1].tolist())
        tables.append((some, transposed(graph.theta_t, start, tuple(shape[example].tolist()), axes)))
    sorted_shape = np.take_along_axis(shape, order, axis=1)[one]
    return _Part(first + members, function, np.take_along_axis(scope, order, axis=1), sorted_shape, tables)


def _assembled(parts: list[_Part], n_factors: int) -> Explicit:
    """Put the records of all arities into the order of the file."""
    order = np.zeros(n_factors, dtype=np.int64)
    for part in parts:
        order[part.place] = part.scope.shape[1]
    start = np.append(0, np.cumsum(order + 3))
    factors = np.zeros(int(start[-1]), dtype=np.int64)
    indices, theta = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
    n_functions = 0
    for part in parts:
        k = part.scope.shape[1]
        at = start[part.place]
        factors[at] = n_functions + part.function
        factors[at + 2] = k
        factors[at[:, None] + 3 + np.arange(k)] = part.scope
        n_functions += len(part.shape)
        indices.append(np.concatenate([np.full((len(part.shape), 1), k), part.shape], axis=1).ravel())
        theta.append(_in_order(part))
    return Explicit(n_functions, n_factors, np.concatenate(indices), np.concatenate(theta), factors)


def _in_order(part: _Part) -> Floats:
    """The tables of a part one after another."""
    sizes = np.prod(part.shape, axis=1, dtype=np.int64)
    start = np.append(0, np.cumsum(sizes))
    theta = np.empty(int(start[-1]))
    for some, rows in part.tables:
        theta[ranges(start[some], sizes[some])] = rows.ravel()
    return theta
