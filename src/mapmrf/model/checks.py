"""Checks of the arrays that describe a factor graph: errors are one clear line that names the first offender."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, block_sizes
from mapmrf.errors import GraphError
from mapmrf.model.memory import check_bytes

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


def check_labels(labels: ArrayLike, card: Ints) -> Ints:
    """Return the labels, (n_vars,), as integers; raise GraphError unless there is a legal one for every variable."""
    found = as_ints(labels, "labels")
    if found.shape != card.shape:
        shape = "" if found.ndim == 1 else f" of shape {found.shape}"
        raise GraphError(f"{found.size} labels{shape}, expected one for each of the {len(card)} variables")
    bad = np.flatnonzero((found < 0) | (found >= card))
    if len(bad):
        i = bad[0]
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
