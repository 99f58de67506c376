"""A certificate: the dual point behind a bound, and its file."""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.certificates.cases import TREE_ARRAYS, CaseTree
from mapmrf.certificates.invalid import InvalidCertificate
from mapmrf.errors import FormatError
from mapmrf.formats.files import AnyPath, charge, read_bytes, write_bytes
from mapmrf.graph import FactorGraph

VERSION = 2
"""Version of the file. Version 1 had neither cases nor variables to eliminate first."""

ARRAYS = {
    "version": "i",
    "bound": "f",
    "lam": "f",
    "cycle_ptr": "i",
    "cycle_factor": "i",
    "cycle_odd": "i",
    "cycle_weight": "f",
    "order": "i",
}
"""The arrays of a file, and whether they hold integers or floating-point numbers."""

LATER_ARRAYS = TREE_ARRAYS | {"first": "i"}
"""Arrays added in version 2."""

MOST_BYTES = 1 << 30
"""Limit on the bytes of the arrays of a file: a small archive can unpack to a very large one."""


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Cycles:
    """Odd-cycle inequalities with their multipliers.

    For pairs C of binary variables, where every variable is in an even number of pairs, and an odd subset F:
    ``sum_F d - sum_{C without F} d <= |F| - 1``, where d is 1 for a pair whose labels differ and 0 for others.

    Attributes
    ----------
    ptr : (n_cycles + 1,)
        Offsets of the pairs of each cycle.
    factor : (n_pairs,)
        The pairs, by their factors.
    odd : (n_pairs,)
        1 for those in F, 0 for others.
    weight : (n_cycles,)
        The multipliers, none of them negative.

    Examples
    --------
    >>> Cycles().n
    0
    """

    ptr: Ints = field(default_factory=lambda: np.zeros(1, dtype=np.int64))
    factor: Ints = field(default_factory=_no_ints)
    odd: Ints = field(default_factory=_no_ints)
    weight: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def n(self) -> int:
        """Number of cycles."""
        return len(self.weight)


@dataclass(frozen=True, eq=False)
class Certificate:
    """A dual point of a model, which proves a bound on the log potential of all labellings.

    Attributes
    ----------
    bound
        The claimed bound.
    lam : (n_edge_states,)
        Messages: the amounts that every factor takes from each state of its variables, a block of ``card[scope[e]]``
        per edge e of the graph's `scope`. Empty if all are 0.
    cycles
        Odd-cycle inequalities with multipliers.
    order : (n_ordered,)
        Elimination order in which the checker may maximise out the variables that the bound leaves open.
    first : (n_first,)
        Variables that are maximised out before anything else, in this order. Everything else refers to the remaining
        model: see `without`.
    tree
        Cases, with their own messages; no nodes if there are no cases.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> certificate = mapmrf.solve(graph, certificate=True).certificate
    >>> certificate.bound, certificate.order.tolist()
    (2.0, [0, 1])
    """

    bound: float = math.inf
    lam: Floats = field(default_factory=lambda: np.zeros(0))
    cycles: Cycles = field(default_factory=Cycles)
    order: Ints = field(default_factory=_no_ints)
    tree: CaseTree = field(default_factory=CaseTree)
    first: Ints = field(default_factory=_no_ints)

    def write(self, path: AnyPath) -> None:
        """Write the certificate as a compressed ``.npz`` file, in one piece.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Certificate(bound=2.0).write(pathlib.Path(folder, "proof.npz"))
        ...     Certificate.read(pathlib.Path(folder, "proof.npz")).bound
        2.0
        """
        cycles = self.cycles
        room = io.BytesIO()
        numbers = np.int64(VERSION), np.float64(self.bound)
        arrays = (self.lam, cycles.ptr, cycles.factor, cycles.odd, cycles.weight, self.order)
        contents: dict[str, Any] = dict(zip(ARRAYS, (*numbers, *arrays), strict=True))
        np.savez_compressed(room, **contents, **self.tree.arrays(), first=self.first)
        write_bytes(path, room.getvalue())

    @classmethod
    def read(cls, path: AnyPath) -> Certificate:
        """Read a certificate written by `write`; nothing in the file is executed or trusted.

        Raises
        ------
        FormatError
            If there is no such file.
        InvalidCertificate
            If it is not a certificate.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Certificate(bound=3.5).write(pathlib.Path(folder, "proof.npz"))
        ...     Certificate.read(pathlib.Path(folder, "proof.npz")).bound
        3.5
        """
        arrays = _arrays(path, read_bytes(path))
        old = arrays["version"] == 1
        tree = CaseTree() if old else CaseTree(*(arrays[name] for name in TREE_ARRAYS))
        first = _no_ints() if old else arrays["first"]
        cycles = Cycles(
            arrays["cycle_ptr"], arrays["cycle_factor"], arrays["cycle_odd"], arrays["cycle_weight"]
        )  # fmt: skip
        return cls(float(arrays["bound"]), arrays["lam"], cycles, arrays["order"], tree, first)

    def check_first(self, graph: FactorGraph) -> None:
        """Raise InvalidCertificate unless `first` are different variables of the model.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> Certificate(first=np.array([2])).check_first(graph)
        Traceback (most recent call last):
            ...
        mapmrf.certificates.invalid.InvalidCertificate: first names a variable that is not one of 0 ... 1
        """
        _check_variables("first", self.first, graph.n_vars)

    def check(self, graph: FactorGraph) -> None:
        """Raise InvalidCertificate unless the arrays fit the model and every inequality holds for all labellings.

        The model is the one without the variables `first`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> Certificate(lam=np.zeros(4)).check(graph)
        >>> Certificate(lam=np.zeros(5)).check(graph)
        Traceback (most recent call last):
            ...
        mapmrf.certificates.invalid.InvalidCertificate: lam has 5 entries, expected 4 for this model
        """
        n_edge_states = int(graph.card[graph.scope].sum(dtype=np.int64))
        if len(self.lam) not in (0, n_edge_states):
            raise InvalidCertificate(f"lam has {len(self.lam)} entries, expected {n_edge_states} for this model")
        if not np.isfinite(self.lam).all():
            raise InvalidCertificate("lam has an entry that is not finite")
        if math.isnan(self.bound):
            raise InvalidCertificate("bound is nan")
        _check_variables("order", self.order, graph.n_vars)
        _check_cycles(self.cycles, graph)
        self.tree.check(graph, n_edge_states)


def _check_variables(name: str, variables: Ints, n: int) -> None:
    """Raise InvalidCertificate unless these are different variables."""
    if len(variables) and (variables.min() < 0 or variables.max() >= n):
        raise InvalidCertificate(f"{name} names a variable that is not one of 0 ... {n - 1}")
    if len(np.unique(variables)) < len(variables):
        raise InvalidCertificate(f"{name} names a variable twice")


def _arrays(path: AnyPath, data: bytes) -> dict[str, np.ndarray]:
    """The arrays of a file, checked for type and number of dimensions."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise InvalidCertificate(f"{path}: its arrays need {size} bytes, expected at most {MOST_BYTES}")
        charge(path, float(size), "its arrays")
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            expected = _expected(path, file)
            return {name: _checked(path, file, name, kind) for name, kind in expected.items()}
    except (InvalidCertificate, FormatError):
        raise
    except Exception as error:  # a damaged archive raises one of a dozen errors
        raise InvalidCertificate(f"{path}: not a certificate: {type(error).__name__}") from None


def _expected(path: AnyPath, file: Mapping[str, np.ndarray]) -> dict[str, str]:
    """The arrays that a file of its version must have, and their kinds."""
    version = _checked(path, file, "version", "i").tolist()
    if version not in range(1, VERSION + 1):
        raise InvalidCertificate(f"{path}: version {version}, expected 1 to {VERSION}")
    expected = ARRAYS | LATER_ARRAYS if version > 1 else ARRAYS
    for name in expected:
        if name not in file:
            raise InvalidCertificate(f"{path}: the array {name} is missing")
    return expected


def _checked(path: AnyPath, arrays: Mapping[str, np.ndarray], name: str, kind: str) -> np.ndarray:
    """An array of a file, of 64-bit numbers."""
    if name not in arrays:
        raise InvalidCertificate(f"{path}: the array {name} is missing")
    found, scalar = arrays[name], name in ("version", "bound")
    if not isinstance(found, np.ndarray):
        raise InvalidCertificate(f"{path}: {name} is not an array")
    if found.dtype.kind != kind or found.dtype.itemsize > 8 or found.ndim != (0 if scalar else 1):
        raise InvalidCertificate(f"{path}: {name} is of type {found.dtype} with {found.ndim} dimensions")
    return found.astype(np.int64 if kind == "i" else np.float64, copy=False)


def _check_cycles(cycles: Cycles, graph: FactorGraph) -> None:
    """Raise InvalidCertificate for an invalid cycle, and for a multiplier below 0."""
    ptr, factor, odd, weight = cycles.ptr, cycles.factor, cycles.odd, cycles.weight
    sizes = np.diff(ptr)
    if len(ptr) != len(weight) + 1 or ptr[0] != 0 or ptr[-1] != len(factor) or len(odd) != len(factor):
        raise InvalidCertificate("the arrays of the cycles differ in length")
    if np.any(sizes <= 0) or np.any((odd != 0) & (odd != 1)):
        raise InvalidCertificate("a cycle is empty, or marks a pair by a number other than 0 or 1")
    if len(factor) == 0:
        return
    if not np.isfinite(weight).all() or weight.min() < 0:
        raise InvalidCertificate("a multiplier of a cycle is not a number of at least 0")
    if factor.min() < 0 or factor.max() >= graph.n_factors:
        raise InvalidCertificate(f"a cycle names a factor that is not one of 0 ... {graph.n_factors - 1}")
    owner = np.repeat(np.arange(len(weight)), sizes)
    if np.any(np.bincount(owner, weights=odd) % 2 != 1):
        raise InvalidCertificate("a cycle marks an even number of pairs, expected an odd one")
    if len(np.unique(np.stack([owner, factor]), axis=1).T) < len(factor):
        raise InvalidCertificate("a cycle names a pair twice")
    if np.any(graph.arity[factor] != 2):
        raise InvalidCertificate("a cycle names a factor that is not a pair")
    ends = graph.scope[graph.scope_ptr[factor][:, None] + np.arange(2)].astype(np.int64)
    if np.any(graph.card[ends] != 2):
        raise InvalidCertificate("a cycle names a variable that is not binary")
    _, times = np.unique(np.stack([np.repeat(owner, 2), ends.ravel()]), axis=1, return_counts=True)
    if np.any(times % 2):
        raise InvalidCertificate("a cycle is not closed: some variable is in an odd number of its pairs")
