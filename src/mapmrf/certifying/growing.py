"""Grow a tree of cases for a labelling, by the node with the largest bound first, until the bound is its value."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.certificates.cases import CaseTree
from mapmrf.certificates.certificate import Certificate
from mapmrf.certificates.dual_check import MOST_ENTRIES, DualCheck
from mapmrf.certificates.tree_check import QUICK
from mapmrf.certificates.whole import WholeModel
from mapmrf.certifying.branching import Branching
from mapmrf.certifying.node_messages import NodePasses
from mapmrf.certifying.orders import greedy_order
from mapmrf.graph import FactorGraph

MOST_NODES, MOST_BYTES = 10_000, 1 << 26
"""Nodes of a tree, and bytes of all its arrays."""

LEAF_ENTRIES, ROOT_ENTRIES = 1 << 20, QUICK * MOST_ENTRIES
"""Entries that the tables of elimination may have together in a leaf; and in the root, which is the only leaf then."""

FEWER = 0.9
"""Elimination is tried again when this part of the open variables is left."""

PASSES = 60
"""Iterations of message passing in a node, at most."""

COARSE, FINER, TRIES, KEPT = 0.5, 0.125, 3, 0.8
"""Messages are rounded to multiples of this part of what they gain per edge, then of finer ones for a few times, until
so much of the gain is kept."""


class TreeLimits(NamedTuple):
    """What a tree of cases may take: nodes, and bytes of messages and states."""

    nodes: int = MOST_NODES
    bytes: int = MOST_BYTES


@dataclass(eq=False)
class GrownNode:
    """A node of a tree that is being grown.

    Attributes
    ----------
    parent, states
        Its parent, -1 for the root, and the states of that one's variable.
    left : packed bits
        The states that are left.
    bound
        The bound, in the model's multiples; `tried` is the number of open variables when elimination failed.
    at, lam
        Messages that differ from the parent's.
    variable, order
        The variable of its cases, -1 for none, and the order of elimination of a leaf.
    """

    parent: int
    states: Ints
    left: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    bound: int = 0
    tried: float = math.inf
    at: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    lam: Floats = field(default_factory=lambda: np.zeros(0))
    variable: int = -1
    order: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def n_bytes(self) -> int:
        """Bytes in the file, before compression."""
        return 8 * (5 + len(self.states) + 2 * len(self.at) + len(self.order))


class CaseGrower:
    """A tree of cases below a dual point.

    Attributes
    ----------
    target
        Labellings worth no more than this need not be looked at; None if there is no feasible one.
    heap
        Nodes that are open, by their bounds; by depth, if there is no target.
    closed
        Whether no node is open.
    """

    def __init__(
        self, graph: FactorGraph, point: Certificate, worth: Fraction | None, limits: TreeLimits,
        stop: Callable[[], bool],
    ) -> None:  # fmt: skip
        self.graph, self.limits, self.stop = graph, limits, stop
        root = CaseTree(*(np.array([-1]),) * 2, np.zeros(2, dtype=int), lam_ptr=np.zeros(2, dtype=int))
        self.model = WholeModel.build(graph, Certificate(lam=point.lam, cycles=point.cycles, tree=root), False)
        self.lam = point.lam if len(point.lam) else np.zeros(len(self.model.lam))
        self.target = self.model.target(worth)
        self.nodes: list[GrownNode] = []
        self.heap: list[tuple[int, int]] = []
        self.n_bytes = 0
        self.passes = NodePasses(graph, point.cycles)
        offset = math.ldexp(float(self.model.offset), -self.model.shift)
        self.goal = -math.inf if self.target is None else math.ldexp(self.target, -self.model.shift) - offset
        self.branching = Branching(graph, self.model, self.passes, stop)

    @property
    def closed(self) -> bool:
        """Whether nothing is open."""
        return not self.heap

    def grow(self) -> CaseTree:
        """Grow until nothing is open, or a limit is reached."""
        try:
            self.add(GrownNode(-1, np.zeros(0, dtype=np.int64)), self.model.allowed, self.lam)
            while self.heap and not self.stop():
                if len(self.nodes) >= self.limits.nodes or self.n_bytes >= self.limits.bytes:
                    break
                self.branch(heapq.heappop(self.heap)[1])
        finally:
            self.passes.close()
        return self.tree()

    def branch(self, number: int) -> None:
        """Share out the states of a variable of a node among cases."""
        node = self.nodes[number]
        left, lam = np.unpackbits(node.left, count=len(self.model.allowed)).astype(bool), self.messages(number)
        check = DualCheck(self.model.with_messages(lam), self.target, left=left)
        if check.settle() is None:
            return
        i, parts = self.branching.choose(check, lam, self.goal)
        node.variable = i
        begin, end = self.graph.var_ptr[i], self.graph.var_ptr[i + 1]
        gone = np.setdiff1d(self.domain(number, i), np.concatenate(parts))
        for k, part in enumerate(parts):
            kept = check.left.copy()
            kept[begin:end] = False
            kept[begin + part] = True
            # Dropped states must be in some case, and cost nothing there.
            states = np.sort(np.concatenate([part, gone])) if k == 0 else part
            self.add(GrownNode(number, states, tried=node.tried), kept, lam, node.bound)

    def add(self, node: GrownNode, left: Bools, lam: Floats, above: int | None = None) -> None:
        """Add a node, and close it if that is possible: by what is known above, by elimination, or by new messages."""
        check = DualCheck(self.model.with_messages(lam), self.target, left=left)
        bound = check.settle()
        if bound is not None and not self.eliminate(node, check):
            check, bound = self.improve(node, check, lam, bound)
            if bound is not None and not self.eliminate(node, check):
                bound = bound if above is None else min(bound, above)
                node.bound, node.left = bound, np.packbits(check.left)
                depth = 0 if node.parent < 0 else self.depth(node.parent) + 1
                heapq.heappush(self.heap, (-bound if self.target is not None else -depth, len(self.nodes)))
        self.nodes.append(node)
        self.n_bytes += node.n_bytes

    def eliminate(self, node: GrownNode, check: DualCheck) -> bool:
        """Give a node an order of elimination if the tables are small enough; it is a leaf then."""
        n_left = check.n_left()
        n_open = int(np.count_nonzero(n_left > 1))
        if n_open > FEWER * node.tried:
            return False
        most = LEAF_ENTRIES if self.nodes else ROOT_ENTRIES
        order = greedy_order(self.graph, n_left, most)
        if n_open and not len(order):
            node.tried = n_open
            return False
        node.order = order
        return True

    def improve(self, node: GrownNode, check: DualCheck, lam: Floats, bound: int) -> tuple[DualCheck, int | None]:
        """Look for messages of a node that lower its bound; keep them, rounded, if they do."""
        better, _ = self.passes.improved(lam, check.left, self.goal, PASSES, self.stop)
        change = better - lam
        exact = DualCheck(self.model.with_messages(better), self.target, left=check.left)
        reached = exact.settle()
        gain = bound - (reached if reached is not None else self.target if self.target is not None else bound)
        if reached is not None and gain <= 0:
            return check, bound
        unit = math.ldexp(max(gain, 1), -self.model.shift) / (1 + math.sqrt(np.count_nonzero(change)))
        quantum = 2.0 ** math.floor(math.log2(max(COARSE * unit, 1e-300)))
        for _ in range(TRIES):
            moved = np.abs(change) >= quantum
            rounded = np.where(moved, np.rint(better / quantum) * quantum, lam)
            tried = DualCheck(self.model.with_messages(rounded), self.target, left=check.left)
            found = tried.settle()
            if found is None or (reached is not None and bound - found >= KEPT * gain):
                break
            quantum *= FINER
        else:
            moved, rounded, tried, found = change != 0, better, exact, reached
        node.at = np.flatnonzero(rounded != lam)
        node.lam = rounded[node.at]
        return tried, found

    def messages(self, number: int) -> Floats:
        """The messages of a node."""
        lam, path = self.lam.copy(), []
        while number >= 0:
            path.append(number)
            number = self.nodes[number].parent
        for above in reversed(path):
            lam[self.nodes[above].at] = self.nodes[above].lam
        return lam

    def depth(self, number: int) -> int:
        """Nodes above a node."""
        n = 0
        while self.nodes[number].parent >= 0:
            number, n = self.nodes[number].parent, n + 1
        return n

    def domain(self, number: int, i: int) -> Ints:
        """The states of a variable that the cases above leave to a node."""
        while self.nodes[number].parent >= 0:
            parent = self.nodes[number].parent
            if self.nodes[parent].variable == i:
                return self.nodes[number].states
            number = parent
        return np.arange(self.graph.card[i])

    def tree(self) -> CaseTree:
        """The tree as it is now; open nodes are leaves."""
        nodes = self.nodes

        def ptr(sizes: list[int]) -> Ints:
            return offsets(np.array(sizes, dtype=np.int64)).astype(np.int64)

        return CaseTree(
            parent=np.array([node.parent for node in nodes], dtype=np.int64),
            variable=np.array([node.variable for node in nodes], dtype=np.int64),
            state_ptr=ptr([len(node.states) for node in nodes]),
            state=np.concatenate([node.states for node in nodes]).astype(np.int64),
            lam_ptr=ptr([len(node.at) for node in nodes]),
            lam_at=np.concatenate([node.at for node in nodes]).astype(np.int64),
            lam=np.concatenate([node.lam for node in nodes]),
            order_ptr=ptr([len(node.order) for node in nodes]),
            order=np.concatenate([node.order for node in nodes]).astype(np.int64),
        )
