"""The HDF5 format of OpenGM 2, ``.h5`` and ``.hdf5``: energies of functions of several types. Needs h5py."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats import opengm_functions as functions
from mapmrf.formats.files import charge, read_bytes, write_bytes
from mapmrf.formats.tables import (
    Factors,
    build,
    charge_tables,
    check_allowed,
    check_states,
    expected,
    factors_to_write,
    first_bad,
    last_fastest,
    to_log,
)
from mapmrf.model.builders import blocks
from mapmrf.model.graph import FactorGraph

SUFFIXES = (".h5", ".hdf5")

_GROUP = "gm"
_VERSION = (2, 0)


def sniff(data: bytes) -> bool:
    return data.startswith(b"\x89HDF\r\n\x1a\n")


def _h5py(path: Path) -> Any:
    try:
        return importlib.import_module("h5py")
    except ImportError:
        raise FormatError(
            f"{path}: HDF5 files need h5py: pip install 'mapmrf[hdf5]' ('.[hdf5]' in a checkout)"
        ) from None


# -- reading ----------------------------------------------------------------------------------------------------------


def read(path: Path, *, values: str | None = None, hard_threshold: float | None = None) -> FactorGraph:
    """Read an OpenGM model; functions that factors share are shared.

    Parameters
    ----------
    path
        The file. The model is the group ``gm``, or the only group there is.
    values
        Meaning of the numbers, which the file does not state: energies (``"cost"``, the default) in all benchmarks.
    hard_threshold
        Energies from here on are forbidden. OpenGM has no infinite energies: its converter from UAI writes 1e7 instead.
    """
    h5py = _h5py(path)
    try:
        with h5py.File(io.BytesIO(read_bytes(path)), "r") as file:
            return _read(_Group(path, file), values or "cost", hard_threshold)
    except FormatError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise FormatError(f"{path}: damaged or truncated HDF5 file: {' '.join(str(error).split())[:200]}") from None


class _Group:
    """The group of a file with the model, and its arrays."""

    def __init__(self, path: Path, file: Any) -> None:
        self.path, self._n_numbers = path, 0
        groups = [file] if self._member(file, "header") is not None else []
        groups = groups or [self._member(file, name) for name in file if name == _GROUP]
        if not groups:
            items = [self._member(file, name) for name in file]
            groups = [item for item in items if self._member(item, "header") is not None]
        if len(groups) != 1:
            raise FormatError(f"{path}: found {len(groups)} models, expected the group {_GROUP!r} or just one group")
        self._group = groups[0]

    def array(self, name: str, *, kinds: str = "ui") -> Any:
        """A dataset, flat; without `kinds` "f", integers of at least 0."""
        found = self._member(self._group, name)
        if found is None or not hasattr(found, "dtype"):
            raise FormatError(f"{self.path}: found no dataset {name!r}, expected one")
        if found.dtype.kind not in kinds or len(found.shape) != 1:
            what = f"{found.dtype} of shape {found.shape}"
            raise FormatError(f"{self.path}: dataset {name!r}: found {what}, expected one row of numbers")
        # Reject datasets that are stored in other files, or need a plugin to be decoded.
        if found.external is not None or found.is_virtual:
            raise FormatError(f"{self.path}: dataset {name!r} is stored in another file, expected all in this one")
        layout = found.id.get_create_plist()
        filters = [layout.get_filter(k)[0] for k in range(layout.get_nfilters())]
        # Those from 1 to 6 are part of HDF5: deflate, shuffle, fletcher32, szip, nbit, scaleoffset.
        if any(not 1 <= number <= 6 for number in filters):
            raise FormatError(f"{self.path}: dataset {name!r} needs the filter {max(filters)}, expected HDF5's own")
        # A dataset may be larger than the file: parts never written are filled in.
        self._n_numbers += int(found.shape[0])
        charge(self.path, 24.0 * self._n_numbers, "its datasets", f"{name} has {found.shape[0]} numbers")
        array = found[:]
        if "f" in kinds:
            return array.astype(np.float64)
        wrong = np.flatnonzero((array < 0) | (array > 2**62))
        if len(wrong):
            self.fail(name, int(wrong[0]), array, "a whole number of at least 0, and not too large")
        return array.astype(np.int64)

    def _member(self, group: Any, name: str) -> Any:
        """A member of a group, None if there is none; links, which may lead out of the file, are rejected."""
        found = group
        for step in name.split("/"):
            links = getattr(found.id, "links", None)  # a dataset has none
            if links is None or not links.exists(step.encode()):
                return None
            if links.get_info(step.encode()).type != 0:  # neither soft nor external
                raise FormatError(f"{self.path}: {step!r} is a link, expected a group or a dataset")
            found = found[step]
        return found

    def fail(self, name: str, at: int, array: Ints, expected: str) -> NoReturn:
        if at >= len(array):
            raise FormatError(f"{self.path}: dataset {name!r}: it ends after {len(array)} numbers, expected {expected}")
        raise FormatError(f"{self.path}: dataset {name!r}, entry {at}: found {array[at]}, expected {expected}")


def _read(group: _Group, values: str, hard_threshold: float | None) -> FactorGraph:
    n_vars, n_factors, types = _header(group)
    card = group.array("numbers-of-states") if n_vars else np.zeros(0, dtype=np.int64)
    if len(card) != n_vars or (len(card) and card.min() < 1):
        at = min(len(card), n_vars) if len(card) != n_vars else int(card.argmin())
        group.fail("numbers-of-states", at, card, f"{n_vars} numbers of at least 1")
    check_states(group.path, card)
    tables = _functions(group, types, values, values != "potential" and hard_threshold is None)
    function, scope_ptr, scope = _factors(group, n_vars, n_factors, types[:, 1])
    _check_shapes(group, tables, function, (scope_ptr, card[scope]))
    theta_t = tables.theta_t + 0.0  # no "-0"
    if hard_threshold is not None:
        theta_t[theta_t <= -hard_threshold] = -np.inf
    weight = None if tables.weight is None or (tables.weight == 1.0).all() else tables.weight[function]
    factors = Factors(scope_ptr, scope, tables.table_of[function], tables.table_ptr, theta_t, weight, tables.lists)
    return build(group.path, card, factors)


def _header(group: _Group) -> tuple[int, int, Ints]:
    """Numbers of variables and factors, and rows of the id of a type of functions and how many there are."""
    header = group.array("header")
    if len(header) < 5:
        group.fail("header", len(header), header, "5 numbers or more")
    if tuple(header[:2]) != _VERSION:
        raise FormatError(f"{group.path}: found version {header[0]}.{header[1]}, expected 2.0")
    n_types = int(header[4])
    # The number type comes last and is missing in old files; the dataset states it as well.
    if len(header) not in (5 + 2 * n_types, 6 + 2 * n_types):
        group.fail("header", len(header), header, f"{6 + 2 * n_types} for {n_types} types of functions")
    return int(header[2]), int(header[3]), header[5 : 5 + 2 * n_types].reshape(-1, 2)


def _functions(group: _Group, types: Ints, values: str, linear: bool) -> Factors:
    """All functions as tables, type after type; `linear`: weights may be used."""
    parts = []
    for kind, count in types.tolist():
        if count == 0:
            continue
        reader = functions.TYPES.get(kind, "unknown")
        if isinstance(reader, str):
            raise FormatError(f"{group.path}: found {count} functions of type {kind} ({reader}), which cannot be read")
        where = f"function-id-{kind}"
        indices = group.array(f"{where}/indices")
        numbers = group.array(f"{where}/values", kinds="uif")
        bad = first_bad(numbers, values if reader.gives_energies else "cost")
        if bad is not None:
            group.fail(f"{where}/values", bad, numbers, expected(values))
        source = functions.Source(str(group.path), where, indices, numbers, count, linear)
        parts.append(reader.read(source))
    charge_tables(group.path, np.concatenate([np.zeros(0), *(np.diff(part.table_ptr) for part in parts)]))
    tables = Factors.join(parts)
    if first_bad(tables.theta_t, values) is not None:
        raise FormatError(f"{group.path}: found a function with impossible values, expected {expected(values)}")
    to_log(tables.theta_t, values)
    return tables


def _factors(group: _Group, n_vars: int, n_factors: int, counts: Ints) -> tuple[Ints, Ints, Ints]:
    """The function of every factor, and the scopes; there are `counts` functions of every type."""
    numbers = group.array("factors") if n_factors else np.zeros(0, dtype=np.int64)
    if 3 * n_factors > len(numbers):
        group.fail("factors", len(numbers), numbers, f"at least {3 * n_factors}")
    at = functions.walk(numbers, n_factors, 2)
    if len(at) < n_factors + 1 or at[-1] != len(numbers):
        group.fail("factors", int(at[-1]), numbers, f"the end after {n_factors} factors")
    start = at[:-1]
    kind, order = numbers[start + 1], numbers[start + 2]
    bad = np.flatnonzero(kind >= len(counts))
    if len(bad):
        group.fail("factors", int(start[bad[0]]) + 1, numbers, f"a type of function from 0 to {len(counts) - 1}")
    bad = np.flatnonzero(numbers[start] >= counts[kind])
    if len(bad):
        most = counts[kind[bad[0]]] - 1
        group.fail("factors", int(start[bad[0]]), numbers, f"a function from 0 to {most} for factor {bad[0]}")
    scope = numbers[ranges(start + 3, order)]
    bad = np.flatnonzero(scope >= n_vars)
    if len(bad):
        a = int(np.searchsorted(np.cumsum(order), bad[0], side="right"))
        found = f"found variable {scope[bad[0]]}, expected 0 to {n_vars - 1}"
        raise FormatError(f"{group.path}: dataset 'factors', factor {a}: {found}")
    return offsets(counts)[kind] + numbers[start], np.append(0, np.cumsum(order)), scope


def _check_shapes(group: _Group, tables: Factors, function: Ints, scopes: tuple[Ints, Ints]) -> None:
    scope_ptr, states = scopes
    order = np.diff(tables.scope_ptr)[function]
    wrong = np.flatnonzero(order != np.diff(scope_ptr))
    if not len(wrong):
        differs: Bools = tables.scope[ranges(tables.scope_ptr[function], order)] != states
        wrong = np.searchsorted(scope_ptr, np.flatnonzero(differs)[:1], side="right") - 1
    if len(wrong):
        a = int(wrong[0])
        mine = tables.scope[tables.scope_ptr[function[a]] : tables.scope_ptr[function[a] + 1]].tolist()
        want = states[scope_ptr[a] : scope_ptr[a + 1]].tolist()
        raise FormatError(f"{group.path}: factor {a}: found a function on {mine} states, expected one on {want}")


# -- writing ----------------------------------------------------------------------------------------------------------


def write(graph: FactorGraph, path: Path, *, values: str | None = None) -> None:
    """Write an OpenGM model with explicit functions, each of them once; variables of a factor in increasing order."""
    # Forbidden entries are infinite energies.
    h5py = _h5py(path)
    if values == "potential":
        raise FormatError(f"{path}: values='potential', but this format is written with costs or logs")
    sign = 1.0 if values == "log" else -1.0
    numbers = graph.constant, graph.theta_v, graph.theta_t
    factors = _in_order(graph.card, factors_to_write(graph, numbers, 0.0, alone=False))
    check_allowed(path, factors.theta_t)
    arity, n_functions = np.diff(factors.scope_ptr), len(factors.table_ptr) - 1
    records = offsets(arity + 3)  # the function, its type, the order and the variables
    written = np.zeros(int(records[-1]), dtype=np.uint64)
    written[records[:-1]], written[records[:-1] + 2] = factors.table_of, arity
    written[ranges(records[:-1] + 3, arity)] = factors.scope
    _, user = np.unique(factors.table_of, return_index=True)
    order, shape_ptr = arity[user], offsets(arity[user])
    shape = graph.card[factors.scope[ranges(factors.scope_ptr[user], order)]]
    # The first variable runs fastest in the file: as if the tables had their axes backwards.
    backwards = shape[np.repeat(shape_ptr[:-1] + shape_ptr[1:] - 1, order) - np.arange(len(shape))]
    theta = last_fastest(factors.theta_t, factors.table_ptr, backwards, shape_ptr)
    header = [*_VERSION, graph.n_vars, len(arity), 1, functions.EXPLICIT, n_functions, 1]  # 1: doubles
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        group = file.create_group(_GROUP)
        group["header"] = np.array(header, dtype=np.uint64)
        group["numbers-of-states"] = graph.card.astype(np.uint64)
        if n_functions:
            where = group.create_group(f"function-id-{functions.EXPLICIT}")
            where["indices"] = np.insert(shape, shape_ptr[:-1], order).astype(np.uint64)
            where["values"] = sign * theta + 0.0  # no "-0"
            group["factors"] = written
    write_bytes(path, memory.getvalue())


def _in_order(card: Ints, factors: Factors) -> Factors:
    """The factors with increasing variables, as OpenGM requires; tables that are turned for it come last."""
    arity, ptr = np.diff(factors.scope_ptr), factors.table_ptr
    owner = np.repeat(np.arange(len(arity)), arity)
    order = np.lexsort((factors.scope, owner))
    table_of, tables, known = factors.table_of.copy(), [factors.theta_t], dict[tuple[int, ...], int]()
    for a in np.unique(owner[order != np.arange(len(order))]).tolist():
        t, axes = (
            int(factors.table_of[a]),
            order[factors.scope_ptr[a] : factors.scope_ptr[a + 1]] - factors.scope_ptr[a],
        )
        table = known.setdefault((t, *axes.tolist()), len(ptr) - 1 + len(known))
        if table == len(ptr) - 2 + len(tables):
            shape = card[factors.scope_of(a)]
            tables.append(factors.theta_t[ptr[t] : ptr[t + 1]].reshape(shape).transpose(axes).ravel())
        table_of[a] = table
    sizes = np.concatenate([np.diff(ptr), [len(table) for table in tables[1:]]]).astype(np.int64)
    used, table_of = np.unique(table_of, return_inverse=True)
    theta_t = blocks(np.concatenate(tables), offsets(sizes)[used], sizes[used])
    return Factors(factors.scope_ptr, factors.scope[order], table_of, offsets(sizes[used]), theta_t)
