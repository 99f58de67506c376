"""Build the arrays of a factor graph from tables, pairs and evidence, and check what they are built from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, block_sizes, largest_size, offsets, ranges, short
from mapmrf.errors import GraphError
from mapmrf.model.memory import check_bytes
from mapmrf.model.names import Names, locate_state, locate_variable


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


def joined(one: FactorLists, more: FactorLists) -> FactorLists:
    """The factors of two models, both folded; the second may have further variables."""
    weights = [each.weight for each in (one, more)]
    if any(weight is not None for weight in weights):
        sizes = len(one.table_of), len(more.table_of)
        weights = [np.ones(n) if weight is None else weight for n, weight in zip(sizes, weights, strict=True)]
    assert one.theta_v is not None and more.theta_v is not None
    theta_v = more.theta_v.copy()
    theta_v[: len(one.theta_v)] += one.theta_v
    return FactorLists(
        more.card,
        np.concatenate([one.scope_ptr, one.scope_ptr[-1] + more.scope_ptr[1:]]),
        np.concatenate([one.scope, more.scope]),
        np.concatenate([one.table_of, len(one.table_ptr) - 1 + more.table_of]),
        np.concatenate([one.table_ptr, one.table_ptr[-1] + more.table_ptr[1:]]),
        np.concatenate([one.theta_t, more.theta_t]),
        None if weights[0] is None else np.concatenate(weights),  # type: ignore[arg-type]
        theta_v,
        one.constant + more.constant,
    )


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


# -- Checks of what a graph is built from -----------------------------------------------------------------------------


_NO_ARRAY = (TypeError, ValueError, RuntimeError, BufferError, OverflowError)
"""Errors of libraries that cannot hand over their numbers; RuntimeError: a torch tensor that requires a gradient."""
MOST_VARIABLES = 64 if np.lib.NumpyVersion(np.__version__) >= "2.0.0" else 32
"""Largest number of dimensions of an array, and so of variables of a factor."""
CHUNK = 1 << 17  # factors whose shapes are compared together: keeps the intermediate arrays in the cache
MOST = 1e300  # limit on the sum of all potentials of a model: methods add up some of them many times over


def as_array(values: ArrayLike, what: str) -> Floats:
    """Copy the numbers of any array (numpy, torch, jax, ...) or nested list; raise GraphError if that fails."""
    try:
        found = np.asarray(_readable(values))
        if found.dtype.kind == "c":
            raise TypeError(f"its dtype is {found.dtype}")
        return np.array(found, dtype=np.float64)
    except _NO_ARRAY as error:
        raise GraphError(f"{what} is not an array of numbers ({_first_line(error)})") from None


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _readable(values: Any) -> Any:
    """Convert to something that numpy can read: arrays that only support DLPack are imported."""
    if hasattr(values, "__dlpack__") and not hasattr(values, "__array__"):
        return np.from_dlpack(values)
    return values


def as_ints(values: ArrayLike, what: str) -> Ints:
    try:
        array = np.asarray(_readable(values))
    except _NO_ARRAY as error:
        raise GraphError(f"{what} must be whole numbers ({_first_line(error)})") from None
    if array.dtype.kind == "O" or (array.dtype.kind == "u" and array.max(initial=0) >= 2**63):
        raise GraphError(f"{what} must be whole numbers below 2^63")
    if array.dtype.kind not in "iu":
        as_int = array.astype(np.int64) if array.dtype.kind == "f" and np.all(np.abs(array) < 2**63) else None
        if as_int is None or not np.array_equal(as_int, array):
            raise GraphError(f"{what} must be whole numbers, found dtype {array.dtype}")
        array = as_int
    return np.array(array, dtype=np.int64)


def as_floats(table: ArrayLike, a: int) -> Floats:
    return as_array(table, f"factor {a}: the table")


def check_shape(shape: tuple[int, ...], card: Ints, scope: Ints, a: int) -> None:
    """Raise GraphError if factor `a` has a table with axes that are not those of its variables."""
    # The size of a flat table, and whether the variables exist, is left to `check_arrays`.
    if len(shape) < 2 or card.ndim != 1 or np.any((scope < 0) | (scope >= len(card))):
        return
    expected = tuple(card[scope].tolist())
    if shape != expected:
        variables = ", ".join(map(str, scope.tolist())) or "none"
        hint = "" if math.prod(shape) != math.prod(expected) else ", or a flat table"
        raise GraphError(f"factor {a} (variables {variables}): the table has shape {shape}, expected {expected}{hint}")


def check_arrays(
    card: Ints, scope_ptr: Ints, scope: Ints, table_of: Ints, table_ptr: Ints, theta_t: Floats, weight: Floats | None
) -> None:
    if card.ndim != 1:
        raise GraphError(f"card has shape {card.shape}, expected one number of states per variable")
    n = len(card)
    bad = np.flatnonzero(card < 1)
    if len(bad):
        raise GraphError(f"variable {bad[0]} has {card[bad[0]]} states, expected at least 1")
    n_states = float(np.sum(card, dtype=np.float64))
    # number of states that fits into any memory
    if n_states > 1_000_000:
        most = int(card.argmax())
        check_bytes(8.0 * n_states, None, f"unary potentials (variable {most} has {card[most]} states)")
    _check_offsets(scope_ptr, len(table_of), len(scope), "scope")
    _check_offsets(table_ptr, len(table_ptr) - 1, len(theta_t), "table")
    bad = np.flatnonzero((table_of < 0) | (table_of >= len(table_ptr) - 1))
    if len(bad):
        found = table_of[bad[0]]
        raise GraphError(f"factor {bad[0]}: table {found} does not exist, expected 0 to {len(table_ptr) - 2}")
    arity = np.diff(scope_ptr)
    bad = np.flatnonzero(arity > MOST_VARIABLES)
    if len(bad):
        raise GraphError(f"factor {bad[0]} has {arity[bad[0]]} variables, expected at most {MOST_VARIABLES}")
    owner = np.repeat(np.arange(len(arity)), arity)
    bad = np.flatnonzero((scope < 0) | (scope >= n))
    if len(bad):
        raise GraphError(f"factor {owner[bad[0]]}: variable {scope[bad[0]]} does not exist, expected 0 to {n - 1}")
    by_factor = np.lexsort((scope, owner))
    twice = (np.diff(scope[by_factor]) == 0) & (np.diff(owner[by_factor]) == 0)
    if np.any(twice):
        e = by_factor[np.flatnonzero(twice)[0]]
        raise GraphError(f"factor {owner[e]}: variable {scope[e]} occurs twice in its scope")
    found = np.diff(table_ptr)[table_of]
    log_size = np.bincount(owner, weights=np.log2(card[scope]), minlength=len(arity))
    expected = np.ones(len(arity), dtype=np.int64)
    np.multiply.at(expected, owner, card[scope])
    bad = np.flatnonzero((found != expected) | (log_size >= 62))
    if len(bad):
        a = int(bad[0])
        mine = scope[scope_ptr[a] : scope_ptr[a + 1]]
        sizes, variables = card[mine].tolist(), ", ".join(map(str, mine.tolist())) or "none"
        wanted = f"{math.prod(sizes)} = {' x '.join(map(str, sizes)) or '1'}"
        raise GraphError(f"factor {a} (variables {variables}): the table has {found[a]} entries, expected {wanted}")
    wrong = np.flatnonzero(np.isnan(theta_t) | (theta_t == np.inf))
    if len(wrong):
        t = int(np.searchsorted(table_ptr, wrong[0], side="right")) - 1
        users = np.flatnonzero(table_of == t)
        what = f"factor {users[0]}" if len(users) else f"table {t}"
        entry = wrong[0] - table_ptr[t]
        raise GraphError(f"{what}: entry {entry} is {theta_t[wrong[0]]}, expected a finite number or -inf")
    if weight is not None:
        _check_weight(weight, table_of, table_ptr, theta_t)


def first_reshaped(card: Ints, scope_ptr: Ints, scope: Ints, table_of: Ints, n_tables: int) -> int | None:
    """The first factor whose table another factor before it uses in a different shape; None if there is none."""
    n = len(table_of)
    if n == 0 or card.min() == card.max() > 1:  # with equally many states, tables of one size have one shape
        return None
    if n_tables == n and np.all(table_of[1:] > table_of[:-1]):
        return None
    model = np.zeros(n_tables, dtype=np.int64)
    model[table_of[::-1]] = np.arange(n - 1, -1, -1)  # the last assignment wins: the first factor with each table
    for begin in range(0, n, CHUNK):
        ptr = scope_ptr[begin : begin + CHUNK + 1].astype(np.int64)
        arity, other = np.diff(ptr), model[table_of[begin : begin + CHUNK]]
        wrong = scope_ptr[other + 1] - scope_ptr[other] != arity
        same = np.repeat(np.where(wrong, ptr[:-1], scope_ptr[other]) - ptr[:-1], arity) + np.arange(ptr[0], ptr[-1])
        wrong[np.repeat(np.arange(len(arity)), arity)[card[scope[same]] != card[scope[ptr[0] : ptr[-1]]]]] = True
        if wrong.any():
            return begin + int(np.flatnonzero(wrong)[0])
    return None


def check_shapes(card: Ints, scope_ptr: Ints, scope: Ints, table_of: Ints, n_tables: int) -> None:
    a = first_reshaped(card, scope_ptr, scope, table_of, n_tables)
    if a is None:
        return
    b = int(np.flatnonzero(table_of == table_of[a])[0])
    one, other = (" x ".join(map(str, card[scope[scope_ptr[f] : scope_ptr[f + 1]]])) for f in (b, a))
    raise GraphError(f"table {table_of[a]} has two shapes: {one} in factor {b}, {other} in factor {a}")


def check_labels(labels: ArrayLike | Mapping[Any, Any], card: Ints, names: Names | None = None) -> Ints:
    """Return the labels, (n_vars,), as integers; raise GraphError unless there is a legal one for every variable."""
    if isinstance(labels, Mapping):
        named = np.full(len(card), -1, dtype=np.int64)
        for variable, state in labels.items():
            i = locate_variable(names, card, variable)
            named[i] = locate_state(names, card, i, state)
        if len(card) and named.min() < 0:
            missing = int(named.argmin())
            raise GraphError(
                f"no state of variable {missing if names is None else names.variables[missing]!r} is given"
            )
        return named
    found = as_ints(labels, "labels")
    if found.shape != card.shape:
        shape = "" if found.ndim == 1 else f" of shape {found.shape}"
        raise GraphError(f"{found.size} labels{shape}, expected one for each of the {len(card)} variables")
    bad = (found < 0) | (found >= card)
    if bad.any():
        i = int(bad.argmax())
        raise GraphError(f"label of variable {i} is {found[i]}, expected 0 to {card[i] - 1}")
    return found


def check_sums(size: float, constant: float) -> None:
    """Raise GraphError if potentials of this total magnitude cannot be added up safely; a constant of -inf is legal."""
    total = size + (0.0 if constant == -np.inf else abs(constant))
    if not total <= MOST:
        raise GraphError(f"the magnitudes of the potentials add up to {total:.1e}, expected at most {MOST:.0e}")


def _check_weight(weight: Floats, table_of: Ints, table_ptr: Ints, theta_t: Floats) -> None:
    """Raise GraphError unless weights are finite, and positive where the table forbids something."""
    if weight.shape != table_of.shape:
        raise GraphError(f"weight has shape {weight.shape}, expected ({len(table_of)},), one for every factor")
    bad = np.flatnonzero(~np.isfinite(weight))
    if len(bad):
        raise GraphError(f"factor {bad[0]}: the weight is {weight[bad[0]]}, expected a finite number")
    hard = np.zeros(len(table_ptr) - 1, dtype=bool)
    hard[np.searchsorted(table_ptr, np.flatnonzero(np.isneginf(theta_t)), side="right") - 1] = True
    with np.errstate(over="ignore"):
        bad = np.flatnonzero(np.isinf(weight * block_sizes(theta_t, table_ptr)[table_of]) if len(theta_t) else hard[:0])
    if len(bad):
        raise GraphError(f"factor {bad[0]}: the weight {weight[bad[0]]} times the table is too large for a float")
    bad = np.flatnonzero(hard[table_of] & (weight <= 0))
    if len(bad):
        raise GraphError(
            f"factor {bad[0]}: the weight is {weight[bad[0]]}, expected a positive number: its table holds -inf"
        )


def _check_offsets(ptr: Ints, n_blocks: int, size: int, what: str) -> None:
    if len(ptr) != n_blocks + 1 or ptr[0] != 0 or ptr[-1] != size or np.any(np.diff(ptr) < 0):
        raise GraphError(f"{what}_ptr must be the {n_blocks + 1} offsets of {n_blocks} blocks, from 0 to {size}")
