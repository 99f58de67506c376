"""The maximum flow through a network and its minimum cut."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.flow.maximum_flow_kernels import (
    MAXIMAL,
    NO_LIMIT,
    PAUSED,
    UNBOUNDED,
    change_terminals,
    plant,
    send_flow,
    send_to_neighbours,
)
from mapmrf.engines.flow.network import sparse_wiring, wire
from mapmrf.engines.flow.network_kernels import Wiring, add_capacities
from mapmrf.engines.flow.search_tree_kernels import FREE, FlowCursor, SearchTrees
from mapmrf.kernels.records import blank


class MaximumFlow:
    """A flow that is augmented until it is maximal, over any number of calls of `run`.

    Capacities are floating-point numbers from 0 to inf. An arc counts as saturated when its residual capacity is
    exactly 0; the value of the flow and the capacity of the cut agree up to the round-off of sums.

    Parameters
    ----------
    wiring
        A network with its capacities, which become residual capacities; see `link`.
    excess : (n,)
        Capacity from the source to every node if positive, or from the node to the sink if negative.

    Attributes
    ----------
    excess : (n,)
        Residual terminal capacities.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.engines.flow.maximum_flow import MaximumFlow, link
    >>> wiring = link(3, np.array([[0, 1], [1, 2]]), np.array([2.0, 5.0]), np.zeros(2))
    >>> flow = MaximumFlow(wiring, np.array([9.0, 1.0, -4.0]))
    >>> flow.run(), flow.value, flow.on_sink_side.tolist()
    (True, 3.0, [False, True, True])
    """

    def __init__(self, wiring: Wiring, excess: Floats) -> None:
        n = len(excess) + 2 * wiring.margin
        stamp, dist, next_active, next_orphan = (np.zeros(n, dtype=np.int32) for _ in range(4))
        in_sink = np.zeros(n, dtype=bool)
        parent: Ints = np.zeros(n, dtype=np.int32)
        if len(wiring.network.kind):  # a lattice has few directions
            parent = np.zeros(n, dtype=np.int8)
        self.wiring, self.network = wiring, wiring.network
        self.trees = SearchTrees(np.zeros(n), parent, in_sink, stamp, dist, next_active, next_orphan, blank(FlowCursor))
        self._inner = slice(wiring.margin, n - wiring.margin)
        self.excess = self.trees.excess[self._inner]
        self.excess[:] = excess
        self.begin()

    def begin(self) -> None:
        """Restart with zero flow from the capacities now in the network and in `excess`."""
        self.state = PAUSED
        send_to_neighbours(self.network, self.trees)
        plant(self.trees)

    def run(self, max_work: int = NO_LIMIT, max_paths: int = NO_LIMIT) -> bool:
        """Continue until the flow is maximal, or a number of arcs visited or paths; return whether it has ended."""
        if self.state == PAUSED:
            self.state = send_flow(self.network, self.trees, max_work, max_paths)
        return self.state != PAUSED

    def change(self, nodes: Ints, source: Floats, sink: Floats) -> None:
        """Add finite amounts to the terminal capacities of some nodes; flow and search trees are kept.

        Amounts may be negative. If a capacity falls below 0, the value of the flow still equals that of the cut: a
        negative capacity is a reward for cutting the arc.

        Parameters
        ----------
        nodes
            Distinct nodes.
        source, sink
            Amounts to be added for each of them.
        """
        if self.state != UNBOUNDED:
            nodes = np.asarray(nodes, dtype=np.int64) + self.wiring.margin
            change_terminals(self.network, self.trees, nodes, source, sink)
            self.state = PAUSED

    @property
    def value(self) -> float:
        """The flow so far, never more than the minimum cut."""
        cursor = self.trees.cursor
        return math.inf if self.state == UNBOUNDED else float(cursor.lost + cursor.sent)

    @property
    def is_maximal(self) -> bool:
        """Whether the flow is maximal and finite."""
        return bool(self.state == MAXIMAL)

    @property
    def paths(self) -> int:
        """Number of augmenting paths so far."""
        return int(self.trees.cursor.paths)

    @property
    def on_sink_side(self) -> Bools:
        """The nodes on the sink's side of the cut, which is a minimum cut if the flow is maximal."""
        trees = self.trees
        return np.asarray(trees.in_sink[self._inner] & (trees.parent[self._inner] != FREE))


def link(n: int, pairs: Ints, forward: Floats, backward: Floats, lattice: bool = True) -> Wiring:
    """Build a network of `n` nodes from pairs (n_pairs, 2) of distinct nodes, and arc capacities in both directions.

    With `lattice`, it is stored without arc lists where the pairs allow that.
    """
    scope = np.ascontiguousarray(pairs, dtype=np.int32).reshape(-1)
    wiring = wire(n, scope) if lattice else sparse_wiring(n, scope)
    add_capacities(wiring, np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64))
    return wiring
