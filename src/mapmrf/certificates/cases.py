"""Trees of cases: the states of a variable divided among cases, and messages for each of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.certificates.invalid import InvalidCertificate
from mapmrf.model.graph import FactorGraph

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


def _no_ints() -> Ints:
    return np.zeros(0, dtype=np.int64)


def _one_zero() -> Ints:
    return np.zeros(1, dtype=np.int64)


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
        """The arrays of the file.

        Examples
        --------
        >>> len(CaseTree().arrays())
        9
        """
        fields = (self.parent, self.variable, self.state_ptr, self.state, self.lam_ptr, self.lam_at, self.lam,
                  self.order_ptr, self.order)  # fmt: skip
        return dict(zip(TREE_ARRAYS, fields, strict=True))

    def cases(self) -> list[list[int]]:
        """The cases of every node.

        Examples
        --------
        >>> CaseTree().cases()
        []
        """
        found: list[list[int]] = [[] for _ in range(self.n)]
        for node, parent in enumerate(self.parent.tolist()):
            if parent >= 0:
                found[parent].append(node)
        return found

    def states_of(self, node: int) -> Ints:
        """The states of its parent's variable in a case.

        Examples
        --------
        >>> import numpy as np
        >>> none = np.zeros(4, dtype=int)
        >>> tree = CaseTree(
        ...     np.array([-1, 0, 0]), np.array([0, -1, -1]), np.array([0, 0, 1, 2]), np.array([0, 1]),
        ...     lam_ptr=none, order_ptr=none,
        ... )
        >>> tree.states_of(2).tolist()
        [1]
        """
        return self.state[self.state_ptr[node] : self.state_ptr[node + 1]]

    def order_of(self, node: int) -> Ints:
        """The order of elimination of a node.

        Examples
        --------
        >>> import numpy as np
        >>> none = np.zeros(4, dtype=int)
        >>> tree = CaseTree(
        ...     np.array([-1, 0, 0]), np.array([0, -1, -1]), np.array([0, 0, 1, 2]), np.array([0, 1]),
        ...     lam_ptr=none, order_ptr=none,
        ... )
        >>> tree.order_of(2).tolist()
        []
        """
        return self.order[self.order_ptr[node] : self.order_ptr[node + 1]]

    def messages_of(self, node: int, lam: Floats) -> Floats:
        """The messages of a node, (n_edge_states,), from those of its parent.

        Examples
        --------
        >>> import numpy as np
        >>> none = np.zeros(4, dtype=int)
        >>> tree = CaseTree(
        ...     np.array([-1, 0, 0]), np.array([0, -1, -1]), np.array([0, 0, 1, 2]), np.array([0, 1]),
        ...     lam_ptr=none, order_ptr=none,
        ... )
        >>> tree.messages_of(2, np.zeros(4)).tolist()
        [0.0, 0.0, 0.0, 0.0]
        """
        mine = slice(self.lam_ptr[node], self.lam_ptr[node + 1])
        if mine.start == mine.stop:
            return lam
        changed = lam.copy()
        changed[self.lam_at[mine]] = self.lam[mine]
        return changed

    def check(self, graph: FactorGraph, n_edge_states: int) -> None:
        """Raise InvalidCertificate unless the arrays fit the model and the cases of every node cover all of it.

        Examples
        --------
        >>> import numpy as np, mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> none = np.zeros(3, dtype=int)
        >>> half = CaseTree(np.array([-1, 0]), np.array([0, -1]), np.array([0, 0, 1]), np.array([1]), none,
        ...                 order_ptr=none)
        >>> half.check(graph, 4)
        Traceback (most recent call last):
            ...
        mapmrf.certificates.invalid.InvalidCertificate: node 0: state 0 of variable 0 is in no case
        """
        self._check_arrays()
        if self.n == 0:
            return
        self._check_numbers(graph, n_edge_states)
        card, cases, parents = graph.card.tolist(), self.cases(), self.parent.tolist()
        for node, variable in enumerate(self.variable.tolist()):
            if variable >= 0:
                self._check_cover(node, variable, self._domain(node, variable, card[variable], parents), cases[node])
            elif cases[node]:
                raise InvalidCertificate(f"node {node} has cases, but no variable")

    def _check_arrays(self) -> None:
        """Check the lengths of all arrays, and that parents come first."""
        n = self.n
        if len(self.variable) != n or len(self.lam_at) != len(self.lam):
            raise InvalidCertificate("the arrays of the nodes differ in length")
        for ptr, values in ((self.state_ptr, self.state), (self.lam_ptr, self.lam), (self.order_ptr, self.order)):
            if len(ptr) != n + 1 or ptr[0] != 0 or ptr[-1] != len(values) or np.any(np.diff(ptr) < 0):
                raise InvalidCertificate("the arrays of the nodes differ in length")
        if n and (self.parent[0] != -1 or np.any(self.parent[1:] < 0) or np.any(self.parent >= np.arange(n))):
            raise InvalidCertificate("the parent of a node is not one of those before it")

    def _check_numbers(self, graph: FactorGraph, n_edge_states: int) -> None:
        """Check that variables, positions and messages are valid."""
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
