"""The HDF5 format of OpenGM 2, ``.h5`` and ``.hdf5``: energies of functions of several types. Needs h5py."""

from __future__ import annotations

import importlib
import io
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.errors import FormatError
from mapmrf.formats import opengm_functions as functions
from mapmrf.formats import scales
from mapmrf.formats.files import charge, read_bytes, write_bytes
from mapmrf.formats.tables import Factors, build, check_states, numbered, same_rows, transposed, variables_with
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
        raise FormatError(f"{path}: HDF5 files need h5py, which is not installed: pip install 'mapmrf[hdf5]'") from None


# -- reading ----------------------------------------------------------------------------------------------------------


class _Header(NamedTuple):
    """Numbers of variables and factors, and the ids of the types of functions with how many there are."""

    n_vars: int
    n_factors: int
    types: Ints
    counts: Ints


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
    header = _header(group)
    card = group.array("numbers-of-states") if header.n_vars else np.zeros(0, dtype=np.int64)
    if len(card) != header.n_vars or (len(card) and card.min() < 1):
        at = min(len(card), header.n_vars) if len(card) != header.n_vars else int(card.argmin())
        group.fail("numbers-of-states", at, card, f"{header.n_vars} numbers of at least 1")
    check_states(group.path, card)
    tables, first_of_type = _functions(group, header, values, values != "potential" and hard_threshold is None)
    function, scope_ptr, scope = _factors(group, header, first_of_type)
    _check_shapes(group, tables, function, (scope_ptr, card[scope]))
    theta_t = tables.theta_t + 0.0  # no "-0"
    if hard_threshold is not None:
        theta_t[theta_t <= -hard_threshold] = -np.inf
    weight = None if (tables.weight == 1.0).all() else tables.weight[function]
    factors = Factors(scope_ptr, scope, tables.table_of[function], tables.table_ptr, theta_t, weight, tables.lists)
    return build(group.path, card, factors)


def _header(group: _Group) -> _Header:
    header = group.array("header")
    if len(header) < 5:
        group.fail("header", len(header), header, "5 numbers or more")
    if tuple(header[:2]) != _VERSION:
        raise FormatError(f"{group.path}: found version {header[0]}.{header[1]}, expected 2.0")
    n_types = int(header[4])
    # The number type comes last and is missing in old files; the dataset states it as well.
    if len(header) not in (5 + 2 * n_types, 6 + 2 * n_types):
        group.fail("header", len(header), header, f"{6 + 2 * n_types} for {n_types} types of functions")
    types = header[5 : 5 + 2 * n_types].reshape(-1, 2)
    return _Header(int(header[2]), int(header[3]), types[:, 0], types[:, 1])


def _functions(group: _Group, header: _Header, values: str, linear: bool) -> tuple[functions.OpenGMTables, Ints]:
    """All functions as tables, type after type, and where every type starts; `linear`: weights may be used."""
    parts = []
    for kind, count in zip(header.types.tolist(), header.counts.tolist(), strict=True):
        if count == 0:
            continue
        reader = functions.TYPES.get(kind, "unknown")
        if isinstance(reader, str):
            raise FormatError(f"{group.path}: found {count} functions of type {kind} ({reader}), which cannot be read")
        where = f"function-id-{kind}"
        indices = group.array(f"{where}/indices")
        numbers = group.array(f"{where}/values", kinds="uif")
        bad = scales.first_bad(numbers, values if reader.gives_energies else "cost")
        if bad is not None:
            group.fail(f"{where}/values", bad, numbers, scales.expected(values))
        source = functions.Source(str(group.path), where, indices, numbers, count, linear, header.n_factors)
        parts.append(reader.read(source))
    tables = functions.joined(group.path, parts)
    if scales.first_bad(tables.theta_t, values) is not None:
        raise FormatError(f"{group.path}: found a function with impossible values, expected {scales.expected(values)}")
    scales.to_log(tables.theta_t, values)
    return tables, np.append(0, np.cumsum(header.counts))


def _factors(group: _Group, header: _Header, first_of_type: Ints) -> tuple[Ints, Ints, Ints]:
    numbers = group.array("factors") if header.n_factors else np.zeros(0, dtype=np.int64)
    if 3 * header.n_factors > len(numbers):
        group.fail("factors", len(numbers), numbers, f"at least {3 * header.n_factors}")
    at = functions.walk(numbers, header.n_factors, 2)
    if len(at) < header.n_factors + 1 or at[-1] != len(numbers):
        group.fail("factors", int(at[-1]), numbers, f"the end after {header.n_factors} factors")
    start = at[:-1]
    kind, order = numbers[start + 1], numbers[start + 2]
    bad = np.flatnonzero(kind >= len(header.types))
    if len(bad):
        group.fail("factors", int(start[bad[0]]) + 1, numbers, f"a type of function from 0 to {len(header.types) - 1}")
    bad = np.flatnonzero(numbers[start] >= header.counts[kind])
    if len(bad):
        most = header.counts[kind[bad[0]]] - 1
        group.fail("factors", int(start[bad[0]]), numbers, f"a function from 0 to {most} for factor {bad[0]}")
    scope = numbers[ranges(start + 3, order)]
    bad = np.flatnonzero(scope >= header.n_vars)
    if len(bad):
        a = int(np.searchsorted(np.cumsum(order), bad[0], side="right"))
        found = f"found variable {scope[bad[0]]}, expected 0 to {header.n_vars - 1}"
        raise FormatError(f"{group.path}: dataset 'factors', factor {a}: {found}")
    return first_of_type[kind] + numbers[start], np.append(0, np.cumsum(order)), scope


def _check_shapes(group: _Group, tables: functions.OpenGMTables, function: Ints, scopes: tuple[Ints, Ints]) -> None:
    scope_ptr, states = scopes
    order = np.diff(tables.shape_ptr)[function]
    wrong = np.flatnonzero(order != np.diff(scope_ptr))
    if not len(wrong):
        differs: Bools = tables.shape[ranges(tables.shape_ptr[function], order)] != states
        wrong = np.searchsorted(scope_ptr, np.flatnonzero(differs)[:1], side="right") - 1
    if len(wrong):
        a = int(wrong[0])
        mine = tables.shape[tables.shape_ptr[function[a]] : tables.shape_ptr[function[a] + 1]].tolist()
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
    # Constant, unary factors and factors, in this order; OpenGM requires increasing variables within a factor.
    n_constants = int(graph.constant != 0)
    loud = variables_with(graph, graph.theta_v != 0)
    first = n_constants + len(loud)
    none, zero = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
    parts = [_Part(zero, zero, none, none, [(zero, np.array([[graph.constant]]))])] * n_constants
    number = np.arange(len(loud))
    tables = []
    for some in same_rows([graph.card[loud]]):
        size = int(graph.card[loud[some[0]]])
        tables.append((some, graph.theta_v[graph.var_ptr[loud[some]][:, None].astype(np.int64) + np.arange(size)]))
    parts += [_Part(n_constants + number, number, loud[:, None], graph.card[loud][:, None], tables)] * (len(loud) > 0)
    parts += [_factor_part(graph, k, first) for k in np.unique(graph.arity).tolist()]
    model = _assembled(parts, first + graph.n_factors)
    scales.check_allowed(path, model.theta)
    header = [*_VERSION, graph.n_vars, model.n_factors, 1, functions.EXPLICIT, model.n_functions, 1]  # 1: doubles
    memory = io.BytesIO()
    with h5py.File(memory, "w") as file:
        group = file.create_group(_GROUP)
        group["header"] = np.array(header, dtype=np.uint64)
        group["numbers-of-states"] = graph.card.astype(np.uint64)
        if model.n_functions:
            where = group.create_group(f"function-id-{functions.EXPLICIT}")
            where["indices"] = model.indices.astype(np.uint64)
            where["values"] = sign * model.theta + 0.0  # no "-0"
            group["factors"] = model.factors.astype(np.uint64)
    write_bytes(path, memory.getvalue())


class _Explicit(NamedTuple):
    """The content of the datasets: records ``d, s_1 ... s_d``, tables, and records ``function, 0, d, v_1 ... v_d``."""

    n_functions: int
    n_factors: int
    indices: Ints
    theta: Floats
    factors: Ints


class _Part(NamedTuple):
    """Factors of one arity: their positions in the file, the function and the variables of each, and the functions."""

    place: Ints
    function: Ints
    scope: Ints
    shape: Ints
    tables: list[tuple[Ints, Floats]]


def _factor_part(graph: FactorGraph, k: int, first: int) -> _Part:
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


def _assembled(parts: list[_Part], n_factors: int) -> _Explicit:
    """Put the records of all arities into the order of the file, and the tables of a part one after another."""
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
        sizes = np.prod(part.shape, axis=1, dtype=np.int64)
        begin = offsets(sizes)
        mine = np.empty(int(begin[-1]))
        for some, rows in part.tables:
            mine[ranges(begin[some], sizes[some])] = rows.ravel()
        theta.append(mine)
    return _Explicit(n_functions, n_factors, np.concatenate(indices), np.concatenate(theta), factors)
