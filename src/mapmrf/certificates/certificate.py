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
from mapmrf.errors import FormatError, MapMRFError
from mapmrf.formats.files import AnyPath, charge, read_bytes, write_bytes
from mapmrf.model.graph import FactorGraph

VERSION = 2  # version of the file. Version 1 had neither cases nor variables to eliminate first.

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

TREE_ARRAYS = {
    "node_parent": "i",
    "node_variable": "i",
    "node_state_ptr": "i",
    "node_state": "i",
    "node_lam_ptr": "i",
    "node_lam_at": "i",
    "node_lam": "f",
    "node_order_ptr": "i",
    "node_order": "i",
}
"""The arrays of a tree in a file, in the order of the fields of `CaseTree`, and their types."""

LATER_ARRAYS = TREE_ARRAYS | {"first": "i"}  # arrays added in version 2
MOST_BYTES = 1 << 30  # limit on the bytes of the arrays of a file: a small archive can unpack to a very large one


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _one_zero() -> Ints:
    return np.zeros(1, dtype=np.int64)


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

    ptr: Ints = field(default_factory=_one_zero)
    factor: Ints = field(default_factory=_no_ints)
    odd: Ints = field(default_factory=_no_ints)
    weight: Floats = field(default_factory=lambda: np.zeros(0))

    @property
    def n(self) -> int:
        """Number of cycles."""
        return len(self.weight)


@dataclass(frozen=True, eq=False)
class CaseTree:
    """A tree of cases. Node 0 is the whole model, and the cases of a node divide the states of a variable.

    Attributes
    ----------
    parent : (n_nodes,)
        The parent of each node, which comes before it; -1 for node 0.
    variable : (n_nodes,)
        The variable whose states the cases of each node divide; -1 for a leaf, which has none.
    state_ptr : (n_nodes + 1,)
        Offsets of the states of each case.
    state : (n_case_states,)
        States of the parent's variable.
    lam_ptr : (n_nodes + 1,)
        Offsets of the messages of each node in the next two.
    lam_at, lam : (n_changes,)
        Positions in the certificate's `lam`, and the messages that replace the parent's there.
    order_ptr : (n_nodes + 1,)
        Offsets of the order of each node.
    order : (n_ordered,)
        Elimination order in which the checker may maximise out the variables that the bound of a leaf leaves open.

    Examples
    --------
    Two cases by the states of variable 0:

    >>> import numpy as np
    >>> tree = CaseTree(
    ...     np.array([-1, 0, 0]), np.array([0, -1, -1]), state_ptr=np.array([0, 0, 1, 2]), state=np.array([0, 1]),
    ...     lam_ptr=np.zeros(4, dtype=int), order_ptr=np.zeros(4, dtype=int),
    ... )
    >>> tree.n, tree.cases()
    (3, [[1, 2], [], []])
    """

    parent: Ints = field(default_factory=_no_ints)
    variable: Ints = field(default_factory=_no_ints)
    state_ptr: Ints = field(default_factory=_one_zero)
    state: Ints = field(default_factory=_no_ints)
    lam_ptr: Ints = field(default_factory=_one_zero)
    lam_at: Ints = field(default_factory=_no_ints)
    lam: Floats = field(default_factory=lambda: np.zeros(0))
    order_ptr: Ints = field(default_factory=_one_zero)
    order: Ints = field(default_factory=_no_ints)

    @property
    def n(self) -> int:
        """Number of nodes."""
        return len(self.parent)

    def arrays(self) -> dict[str, Any]:
        """The arrays of the file."""
        return dict(zip(TREE_ARRAYS, vars(self).values(), strict=True))

    def cases(self) -> list[list[int]]:
        """The cases of every node."""
        found: list[list[int]] = [[] for _ in range(self.n)]
        for node, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                found[parent].append(node)
        return found

    def states_of(self, node: int) -> Ints:
        """The states of its parent's variable in a case."""
        return self.state[self.state_ptr[node] : self.state_ptr[node + 1]]

    def order_of(self, node: int) -> Ints:
        """The order of elimination of a node."""
        return self.order[self.order_ptr[node] : self.order_ptr[node + 1]]

    def messages_of(self, node: int, lam: Floats) -> Floats:
        """The messages of a node, (n_edge_states,), from those of its parent."""
        mine = slice(self.lam_ptr[node], self.lam_ptr[node + 1])
        if mine.start == mine.stop:
            return lam
        changed = lam.copy()
        changed[self.lam_at[mine]] = self.lam[mine]
        return changed

    def check(self, graph: FactorGraph, n_edge_states: int) -> None:
        """Raise InvalidCertificate unless the arrays fit the model and the cases of every node cover all of it."""
        n = self.n
        if len(self.variable) != n or len(self.lam_at) != len(self.lam):
            raise InvalidCertificate("the arrays of the nodes differ in length")
        for ptr, values in ((self.state_ptr, self.state), (self.lam_ptr, self.lam), (self.order_ptr, self.order)):
            if len(ptr) != n + 1 or ptr[0] != 0 or ptr[-1] != len(values) or np.any(np.diff(ptr) < 0):
                raise InvalidCertificate("the arrays of the nodes differ in length")
        if n and (self.parent[0] != -1 or np.any(self.parent[1:] < 0) or np.any(self.parent >= np.arange(n))):
            raise InvalidCertificate("the parent of a node is not one of those before it")
        if n == 0:
            return
        self._check_numbers(graph, n_edge_states)
        card, cases, parents = graph.card.tolist(), self.cases(), self.parent.tolist()
        for node, variable in enumerate(self.variable.tolist()):
            if variable >= 0:
                self._check_cover(node, variable, self._domain(node, variable, card[variable], parents), cases[node])
            elif cases[node]:
                raise InvalidCertificate(f"node {node} has cases, but no variable")

    def _check_numbers(self, graph: FactorGraph, n_edge_states: int) -> None:
        if self.variable.min() < -1 or self.variable.max() >= graph.n_vars:
            raise InvalidCertificate(f"a node names a variable that is not one of 0 ... {graph.n_vars - 1}")
        if len(self.order) and (self.order.min() < 0 or self.order.max() >= graph.n_vars):
            raise InvalidCertificate(
                f"the order of a node names a variable that is not one of 0 ... {graph.n_vars - 1}"
            )
        owner = np.repeat(np.arange(self.n), np.diff(self.order_ptr))
        if len(np.unique(owner * graph.n_vars + self.order)) < len(self.order):
            raise InvalidCertificate("the order of a node names a variable twice")
        if len(self.lam_at) and (self.lam_at.min() < 0 or self.lam_at.max() >= n_edge_states):
            raise InvalidCertificate(f"a message of a node is not at one of 0 ... {n_edge_states - 1}")
        if not np.isfinite(self.lam).all():
            raise InvalidCertificate("a message of a node is not finite")
        if self.state_ptr[1] > 0:
            raise InvalidCertificate("node 0 has states, although it is the whole model")

    def _domain(self, node: int, variable: int, size: int, parents: list[int]) -> list[int]:
        """The states of a variable that the cases above leave to a node."""
        while node > 0:
            if self.variable[parents[node]] == variable:
                return sorted(self.states_of(node).tolist())
            node = parents[node]
        return list(range(size))

    def _check_cover(self, node: int, variable: int, domain: list[int], cases: list[int]) -> None:
        """Check that the cases divide the states of a node: each is in exactly one case, and there are no others."""
        found = sorted(state for case in cases for state in self.states_of(case).tolist())
        if found == domain:
            return
        missing, others = set(domain) - set(found), set(found) - set(domain)
        twice = [state for k, state in enumerate(found[1:]) if found[k] == state]
        at, of = f"node {node}: state", f"of variable {variable}"
        if missing:
            raise InvalidCertificate(f"{at} {min(missing)} {of} is in no case")
        if others:
            raise InvalidCertificate(f"{at} {min(others)} {of} is not one that the cases above leave")
        raise InvalidCertificate(f"{at} {twice[0]} {of} is in two cases")


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
        """Write the certificate as a compressed ``.npz`` file, in one piece."""
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
        cycles = Cycles(*(arrays[f"cycle_{name}"] for name in ("ptr", "factor", "odd", "weight")))
        return cls(float(arrays["bound"]), arrays["lam"], cycles, arrays["order"], tree, first)

    def check_first(self, graph: FactorGraph) -> None:
        """Raise InvalidCertificate unless `first` are different variables of the model."""
        _check_variables("first", self.first, graph.n_vars)

    def check(self, graph: FactorGraph) -> None:
        """Raise InvalidCertificate unless the arrays fit the model and every inequality holds for all labellings.

        The model is the one without the variables `first`.
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
    if len(variables) and (variables.min() < 0 or variables.max() >= n):
        raise InvalidCertificate(f"{name} names a variable that is not one of 0 ... {n - 1}")
    if len(np.unique(variables)) < len(variables):
        raise InvalidCertificate(f"{name} names a variable twice")


def _arrays(path: AnyPath, data: bytes) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            size = sum(member.file_size for member in archive.infolist())
        if size > MOST_BYTES:
            raise InvalidCertificate(f"{path}: its arrays need {size} bytes, expected at most {MOST_BYTES}")
        charge(path, float(size), "its arrays")
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            version = _checked(path, file, "version", "i").tolist()
            if version not in range(1, VERSION + 1):
                raise InvalidCertificate(f"{path}: version {version}, expected 1 to {VERSION}")
            expected = ARRAYS | LATER_ARRAYS if version > 1 else ARRAYS
            return {name: _checked(path, file, name, kind) for name, kind in expected.items()}
    except (InvalidCertificate, FormatError):
        raise
    except Exception as error:  # a damaged archive raises one of a dozen errors
        raise InvalidCertificate(f"{path}: not a certificate: {type(error).__name__}") from None


def _checked(path: AnyPath, arrays: Mapping[str, np.ndarray], name: str, kind: str) -> np.ndarray:
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


class InvalidCertificate(MapMRFError, ValueError):
    """A certificate is not a proof: it is malformed, belongs to another model, or does not prove its claim.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.certificates import Certificate, verify
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> verify(graph, [1, 1], Certificate(bound=1.5))
    Traceback (most recent call last):
        ...
    mapmrf.certificates.certificate.InvalidCertificate: the claimed bound is 1.5, but the certificate proves 2.0
    """
