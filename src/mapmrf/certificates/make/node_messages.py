"""Messages for some of the states of a model: sequential passes that start from given ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.certificates.certificate import Cycles
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps_kernels import LIMIT, PassFigures, PassStopping
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem

CHUNK, WORTHWHILE = 5, 0.04
"""Iterations after which passes continue only if they have lowered the bound by this fraction of the gap."""


class NodePasses:
    """Passes over a problem, one after another on different states.

    Attributes
    ----------
    state : (n_edge_states,)
        The state of the model to which each message belongs.
    first : (n_edge_states,)
        Offset of the messages of its edge.
    """

    def __init__(self, problem: Problem) -> None:
        self.passes = TablePasses(problem, VisitOrder.build(problem, "trees_last"), PassStopping(0.0, 0.0))
        self.theta = self.passes.messages.theta.copy()
        self.state = problem.edge_state_at
        self.first = np.repeat(problem.edge_ptr[:-1], np.diff(problem.edge_ptr))

    def improved(
        self, lam_e: Floats, left: Bools, goal: float, most: int, stop: Callable[[], bool]
    ) -> tuple[Floats, float]:
        """Messages that lower the bound of the remaining states towards a goal, from those given, and their bound.

        Messages of other states are unchanged, and so is one of every edge.
        """
        messages, alive = self.passes.messages, left[self.state]
        messages.theta[:] = np.where(left, self.theta, -np.inf)
        messages.lam[:] = np.where(alive, lam_e, -np.inf)
        bound = self.iterate(goal, most, stop)
        change = np.where(alive & np.isfinite(messages.lam), messages.lam - lam_e, 0.0)
        # Adding a constant to all messages of an edge changes nothing.
        return lam_e + np.where(alive, change - self.common(change, alive), 0.0), bound

    def common(self, change: Floats, alive: Bools) -> Floats:
        """The change of the first state of every edge that is left, for each of its states."""
        where = np.flatnonzero(alive)
        reference = np.zeros(len(change))
        reference[self.first[where[::-1]]] = change[where[::-1]]  # the first one is written last
        return reference[self.first]

    def iterate(self, goal: float, most: int, stop: Callable[[], bool]) -> float:
        """Run passes until the goal is reached, too little is gained, or the limit is hit; return the bound."""
        self.passes.figures = PassFigures()
        done, why, last = 0, LIMIT, np.inf
        while done < most and why == LIMIT and not stop():
            n, why = self.passes.iterate(done, min(done + CHUNK, most), most + 1)
            done += n
            bound = self.passes.figures.bound
            if bound <= goal or last - bound < WORTHWHILE * (bound - goal):
                break
            last = bound
        return self.passes.figures.bound

    def close(self) -> None:
        self.passes.close()


def with_cycles(graph: FactorGraph, cycles: Cycles) -> FactorGraph:
    """The graph with the amounts that cycles add to pairs of different labels, without those for all labellings."""
    if cycles.n == 0:
        return graph
    cut = np.zeros(graph.n_factors)
    np.add.at(cut, cycles.factor, np.repeat(cycles.weight, np.diff(cycles.ptr)) * np.where(cycles.odd == 1, -1.0, 1.0))
    tables = graph.theta_t[graph.table_ptr[graph.table_of][:, None] + np.arange(4)]
    if graph.weight is not None:
        tables = tables * graph.weight[:, None]
    tables = tables + cut[:, None] * np.array([0.0, 1.0, 1.0, 0.0])
    n = graph.n_factors
    return dataclasses.replace(
        graph, table_of=np.arange(n), weight=None, table_ptr=4 * np.arange(n + 1), theta_t=tables.ravel()
    )


def graph_places(problem: Problem) -> Ints:
    """Position of each of the problem's messages among those by the edges of the original graph."""
    graph = problem.graph
    sizes = np.diff(problem.edge_ptr[problem.scope_ptr])
    edge_ptr = offsets(graph.card[graph.scope])
    return ranges(edge_ptr[graph.scope_ptr[:-1]][problem.order], sizes)


def in_graph_order(problem: Problem, lam_e: Floats) -> Floats:
    """Messages by the edges of the original graph, from those by the edges of the problem."""
    result = np.zeros_like(lam_e)
    result[graph_places(problem)] = lam_e
    return result
