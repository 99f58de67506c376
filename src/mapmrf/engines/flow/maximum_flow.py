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
    """A flow that grows until it is maximal, in as many calls of `run` as it takes.

    Capacities are floating-point numbers from 0 to inf. An arc counts as saturated when nothing is left of its
    capacity, to the last bit; the value of the flow and the capacity of the cut agree up to the round-off of sums.

    Parameters
    ----------
    wiring
        A network with its capacities, which become residual capacities; see `link`.
    excess : (n,)
        Capacity from the source to every node, or, as a negative number, from there to the sink.

    Attributes
    ----------
    excess : (n,)
        What is left of these capacities.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.engines.flow.maximum_flow import MaximumFlow, link
    >>> wiring = link(3, np.array([[0, 1], [1, 2]]), np.array([2.0, 5.0]), np.zeros(2))
    >>> flow = MaximumFlow(wiring, np.array([9.0, 1.0, -4.0]))
    >>> flow.run(), flow.value, flow.on_sink_side.tolist()
    (True, 3.0, [False, True, True])
    >>> flow.change(np.array([0, 2]), np.array([-8.0, 0.0]), np.array([0.0, 3.0]))
    >>> flow.run(), flow.value
    (True, 2.0)
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
        """Start anew from the capacities that are in the network and in `excess` now, with no flow sent."""
        self.state = PAUSED
        send_to_neighbours(self.network, self.trees)
        plant(self.trees)

    def run(self, max_work: int = NO_LIMIT, max_paths: int = NO_LIMIT) -> bool:
        """Go on until the flow is maximal, or so many arcs were looked at or paths found; whether it has ended."""
        if self.state == PAUSED:
            self.state = send_flow(self.network, self.trees, max_work, max_paths)
        return self.state != PAUSED

    def change(self, nodes: Ints, source: Floats, sink: Floats) -> None:
        """Add finite numbers to the capacities from the source and to the sink; flow and trees are kept.

        A number may be negative. Where a capacity falls below 0, the value of the flow is that of the cut all the same:
        a negative capacity is a reward for cutting the arc.

        Parameters
        ----------
        nodes
            Different nodes.
        source, sink
            What is added for each of them.
        """
        if self.state != UNBOUNDED:
            nodes = np.asarray(nodes, dtype=np.int64) + self.wiring.margin
            change_terminals(self.network, self.trees, nodes, source, sink)
            self.state = PAUSED

    @property
    def value(self) -> float:
        """The flow so far: at any time at most the minimum cut."""
        cursor = self.trees.cursor
        return math.inf if self.state == UNBOUNDED else float(cursor.lost + cursor.sent)

    @property
    def is_maximal(self) -> bool:
        """Whether the flow is a maximum one, and finite."""
        return bool(self.state == MAXIMAL)

    @property
    def paths(self) -> int:
        """Paths along which flow was sent so far."""
        return int(self.trees.cursor.paths)

    @property
    def on_sink_side(self) -> Bools:
        """The nodes on the sink's side of a cut, a minimum one if the flow is maximal: those in the sink's tree."""
        trees = self.trees
        return np.asarray(trees.in_sink[self._inner] & (trees.parent[self._inner] != FREE))


def link(n: int, pairs: Ints, forward: Floats, backward: Floats, lattice: bool = True) -> Wiring:
    """A network of `n` nodes from pairs (n_pairs, 2) of different nodes, and capacities of the arcs in both directions.

    With `lattice` it has no lists of arcs where the pairs allow that.
    """
    scope = np.ascontiguousarray(pairs, dtype=np.int32).reshape(-1)
    wiring = wire(n, scope) if lattice else sparse_wiring(n, scope)
    add_capacities(wiring, np.asarray(forward, dtype=np.float64), np.asarray(backward, dtype=np.float64))
    return wiring
