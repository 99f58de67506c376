"""Build the arrays of a factor graph from tables, pairs and evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, largest_size, offsets, ranges, short
from mapmrf.errors import GraphError
from mapmrf.model.checks import as_array, as_floats, as_ints, check_arrays, check_shape, first_reshaped


class FactorLists(NamedTuple):
    """Factors of any arity as flat arrays, named as in `FactorGraph`."""

    card: Ints
    scope_ptr: Ints
    scope: Ints
    table_of: Ints
    table_ptr: Ints
    theta_t: Floats
    weight: Floats | None = None
    # once folded, all factors have two or more variables; unary ones are in `theta_v`, the others in `constant`
    theta_v: Floats | None = None
    constant: float = 0.0


def list_tables(
    card: ArrayLike, scopes: Iterable[Sequence[int]], tables: Iterable[ArrayLike], weight: ArrayLike | None = None
) -> FactorLists:
    """List a scope and a table for every factor; the same object given for several factors is stored once."""
    scope_list = [tuple(scope) for scope in scopes]
    states = as_ints(card, "card")
    place: dict[int, int] = {}
    kept: list[ArrayLike] = []
    shapes: list[tuple[int, ...]] = []
    flat: list[Floats] = []
    table_of: list[int] = []
    for table in tables:
        if id(table) not in place:
            place[id(table)] = len(kept)
            kept.append(table)  # keep the object alive, so that its id stays unique
            values = as_floats(table, len(table_of))
            shapes.append(values.shape)
            flat.append(values.ravel())
        table_of.append(place[id(table)])
    if len(table_of) != len(scope_list):
        raise GraphError(f"{len(scope_list)} scopes but {len(table_of)} tables: expected one table per scope")
    scope_ptr = offsets([len(scope) for scope in scope_list])
    scope = as_ints([i for scope in scope_list for i in scope], "scopes")
    for a, t in enumerate(table_of):
        check_shape(shapes[t], states, scope[scope_ptr[a] : scope_ptr[a + 1]], a)
    return FactorLists(
        states,
        scope_ptr,
        scope,
        np.array(table_of, dtype=np.int64),
        offsets([len(table) for table in flat]),
        np.concatenate([np.zeros(0), *flat]),
        None if weight is None else as_array(weight, "weight"),
    )


def negate_tables(energies: Iterable[ArrayLike]) -> list[Floats]:
    """Convert energies to tables of log potentials; an object that is shared stays shared."""
    negated: dict[int, tuple[ArrayLike, Floats]] = {}
    tables = []
    for a, energy in enumerate(energies):
        if id(energy) not in negated:
            negated[id(energy)] = (energy, -as_floats(energy, a))
        tables.append(negated[id(energy)][1])
    return tables


def fold_pairs(unary: ArrayLike, edges: ArrayLike, pairwise: ArrayLike, weight: ArrayLike | None) -> FactorLists:
    """List a pair for every edge, with one table for all or one each; plain numbers need no more checks."""
    theta_v, tables, pairs = _checked_pairs(unary, edges, pairwise)
    weights = None if weight is None else as_array(weight, "weight")
    n, m, k = len(theta_v), len(pairs), theta_v.shape[1]
    if weights is not None and weights.shape != (m,):
        raise GraphError(f"weight has shape {weights.shape}, expected ({m},), one for every pair")
    with np.errstate(over="ignore", invalid="ignore"):
        plain = np.isfinite(theta_v.sum()) and np.isfinite(tables.sum())  # nothing is nan or infinite
        if weights is not None:  # finite, also times the largest entry of a table, and not all 1
            largest = largest_size(weights) * largest_size(tables)
            plain = plain and np.isfinite(largest + weights.sum()) and not np.all(weights == 1.0)
    shared = tables.ndim == 2
    lists = FactorLists(
        np.full(n, k),
        short(np.arange(0, 2 * m + 1, 2)),
        short(pairs.reshape(-1)),
        np.zeros(m, dtype=np.int32) if shared else short(np.arange(m)),
        short(np.arange(0, tables.size + 1, k * k)),
        tables.reshape(-1),
        weights,
    )
    lists = lists if plain and m and k else fold(lists)
    return lists._replace(theta_v=theta_v.reshape(-1) + 0.0)  # no -0.0


def _checked_pairs(unary: ArrayLike, edges: ArrayLike, pairwise: ArrayLike) -> tuple[Floats, Floats, Ints]:
    unary = as_array(unary, "unary")
    pairwise = as_array(pairwise, "pairwise")
    edges = checked_edges(edges)
    if unary.ndim != 2:
        raise GraphError(f"unary has shape {unary.shape}, expected (n_vars, n_states)")
    k = unary.shape[1]
    if pairwise.shape not in ((k, k), (len(edges), k, k)):
        raise GraphError(f"pairwise has shape {pairwise.shape}, expected {(k, k)} or {(len(edges), k, k)}")
    _check_edges(edges, len(unary))
    _check_entries(unary, "variable {}".format)
    shared = pairwise.ndim == 2
    _check_entries(
        pairwise[None] if shared else pairwise,
        lambda at: "pairwise" if shared else f"edge {at} ({edges[at, 0]}, {edges[at, 1]})",
    )
    return unary, pairwise, edges


def checked_edges(edges: ArrayLike) -> Ints:
    """Return the pairs of variables, (n_edges, 2)."""
    pairs = as_ints(edges, "edges")
    if pairs.size and (pairs.ndim != 2 or pairs.shape[1] != 2):
        raise GraphError(f"edges has shape {pairs.shape}, expected (n_edges, 2)")
    return pairs.reshape(-1, 2)


def _check_entries(tables: Floats, name: Callable[[int], str]) -> None:
    if tables.size == 0 or tables.max() < np.inf:
        return
    place = np.argwhere(~(tables < np.inf))[0].tolist()
    found = f"{name(place[0])}: entry {', '.join(map(str, place[1:]))} is {tables[tuple(place)]}"
    raise GraphError(f"{found}, expected a finite number or -inf")


def _check_edges(edges: Ints, n: int) -> None:
    if len(edges) == 0:
        return
    first, second = edges.T
    if edges.min() >= 0 and edges.max() < n and np.all(first != second):
        return
    outside = np.any((edges < 0) | (edges >= n), axis=1)
    at = int(np.flatnonzero(outside | (first == second))[0])
    i, j = edges[at].tolist()
    if outside[at]:
        missing = i if not 0 <= i < n else j
        raise GraphError(f"edge {at} is ({i}, {j}): variable {missing} does not exist, expected 0 to {n - 1}")
    raise GraphError(f"edge {at} is ({i}, {j}), expected two different variables")


def blocks(values: Floats, starts: Ints, sizes: Ints) -> Floats:
    """Concatenate the blocks ``values[starts[k] : starts[k] + sizes[k]]``, without an index array for a few runs."""
    breaks = np.flatnonzero(starts[1:] != (starts + sizes)[:-1]) + 1
    # number of runs of blocks up to which they are copied one by one
    if len(starts) == 0 or len(breaks) > 1000:
        return values[ranges(starts, sizes)]
    first, last = np.append(0, breaks), np.append(breaks, len(starts)) - 1
    return np.concatenate([values[starts[a] : starts[b] + sizes[b]] for a, b in zip(first, last, strict=True)])


def fold(given: FactorLists) -> FactorLists:
    """Check everything, then sum unary factors per variable and factors without variables into a constant."""
    card, scope_ptr, scope, table_of, table_ptr, theta_t, weight, _, _ = given
    check_arrays(card, scope_ptr, scope, table_of, table_ptr, theta_t, weight)
    arity = np.diff(scope_ptr)
    first = table_ptr[table_of]
    theta_v = np.zeros(int(card.sum()))
    var_ptr = offsets(card)
    ones = np.flatnonzero(arity == 1)
    of = scope[scope_ptr[ones]]
    unary, constants = theta_t[ranges(first[ones], card[of])], theta_t[first[arity == 0]]
    if weight is not None:
        unary, constants = unary * np.repeat(weight[ones], card[of]), constants * weight[arity == 0]
    np.add.at(theta_v, ranges(var_ptr[of], card[of]), unary)
    constant = float(constants.sum())
    keep = np.flatnonzero(arity >= 2)
    if weight is not None:
        weight = None if np.all(weight[keep] == 1.0) else weight[keep]
    used, table_of = np.unique(table_of[keep], return_inverse=True)
    sizes = np.diff(table_ptr)[used]
    if len(used) < len(table_ptr) - 1:
        theta_t = blocks(theta_t, table_ptr[used], sizes)
    kept_scope = short(scope[ranges(scope_ptr[keep], arity[keep])])
    scope_ptr, table_ptr = offsets(arity[keep]), offsets(sizes)
    return one_shape_each(
        FactorLists(card, scope_ptr, kept_scope, short(table_of), table_ptr, theta_t, weight, theta_v, constant)
    )


def one_shape_each(given: FactorLists) -> FactorLists:
    """Store a table that factors use in several shapes once for each shape."""
    n_tables = len(given.table_ptr) - 1
    if first_reshaped(given.card, given.scope_ptr, given.scope, given.table_of, n_tables) is None:
        return given
    arity = np.diff(given.scope_ptr)
    used = np.zeros((len(arity), 2 + int(arity.max())), dtype=np.int64)  # table, arity and shape of every factor
    used[:, 0], used[:, 1] = given.table_of, arity
    for k in range(int(arity.max())):
        some = np.flatnonzero(arity > k)
        used[some, 2 + k] = given.card[given.scope[given.scope_ptr[some] + k]]
    distinct, table_of = np.unique(used, axis=0, return_inverse=True)
    old = distinct[:, 0]
    sizes = np.diff(given.table_ptr)[old]
    theta_t = blocks(given.theta_t, given.table_ptr[old], sizes)
    return given._replace(table_of=short(table_of.ravel()), table_ptr=offsets(sizes), theta_t=theta_t)


def slice_tables(given: FactorLists, observed: Ints) -> FactorLists:
    """Slice the tables of factors with observed variables (`observed` >= 0); the others keep their sharing."""
    card, scope_ptr, scope, table_of, table_ptr, theta_t, weight, _, _ = given
    arity = np.diff(scope_ptr)
    seen = observed[scope] >= 0
    touched = np.zeros(len(table_of), dtype=bool)
    touched[np.repeat(np.arange(len(table_of)), arity)[seen]] = True
    keep = np.flatnonzero(~touched)
    scopes, arities, of = [scope[ranges(scope_ptr[keep], arity[keep])]], [arity[keep]], [table_of[keep]]
    tables, sizes = [theta_t], [np.diff(table_ptr)]
    sliced: dict[tuple[int, ...], int] = {}
    cut = np.flatnonzero(touched)
    for a in cut.tolist():
        mine, t = scope[scope_ptr[a] : scope_ptr[a + 1]], int(table_of[a])
        at = observed[mine]
        key = (t, *at.tolist())
        if key not in sliced:
            sliced[key] = len(table_ptr) - 1 + len(sliced)
            table = theta_t[table_ptr[t] : table_ptr[t + 1]].reshape(card[mine])
            tables.append(np.ascontiguousarray(table[tuple(slice(None) if k < 0 else int(k) for k in at)]).ravel())
            sizes.append(np.array([len(tables[-1])]))
        scopes.append(mine[at < 0])
        arities.append(np.array([int(np.count_nonzero(at < 0))]))
        of.append(np.array([sliced[key]]))
    ptr = offsets(np.concatenate(arities)), offsets(np.concatenate(sizes))
    weight = None if weight is None else weight[np.concatenate([keep, cut])]
    return FactorLists(card, ptr[0], np.concatenate(scopes), np.concatenate(of), ptr[1], np.concatenate(tables), weight)


def expand(given: FactorLists) -> FactorLists:
    """Return the factors without weights: a table for every distinct pair of weight and table."""
    weight = given.weight
    if weight is None:
        return given
    distinct, level = np.unique(weight, return_inverse=True)
    pair, table_of = np.unique(given.table_of.astype(np.int64) * len(distinct) + level, return_inverse=True)
    old, factor = pair // max(1, len(distinct)), distinct[pair % max(1, len(distinct))]
    sizes = np.diff(given.table_ptr)[old]
    theta_t = given.theta_t[ranges(given.table_ptr[old], sizes)] * np.repeat(factor, sizes)
    theta_t += 0.0  # no -0.0
    return given._replace(table_of=short(table_of), table_ptr=offsets(sizes), theta_t=theta_t, weight=None)
