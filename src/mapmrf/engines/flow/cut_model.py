"""A binary pairwise model as a minimum cut."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.flow.cut_model_kernels import NONE, BinaryPairs, CutArcs, find_flips, lay_out_cut
from mapmrf.engines.flow.maximum_flow import MAX_ARCS, MaximumFlow, link
from mapmrf.problem import Problem


class CutModel:
    """A model whose pairs are submodular, perhaps after flips of variables, and the flow that solves it.

    A variable on the source's side of the cut has state 0, or 1 if it is flipped.

    Attributes
    ----------
    flip : (n_vars,)
        1 for the variables whose states have swapped names.
    constant
        The value of the best labelling is this minus the maximum flow.
    flow
        The flow, at its beginning.
    """

    def __init__(self, problem: Problem) -> None:
        pairs = binary_pairs(problem)
        self.flip, _ = flips_of(pairs)
        arcs = _lay_out(pairs, self.flip)
        best = np.maximum(arcs.unary[:, 0], arcs.unary[:, 1])
        self.constant = float(problem.graph.constant + best.sum())
        source, sink = _capacities(arcs.unary, best)
        self.flow = MaximumFlow(
            link(problem.n_vars, arcs.first, arcs.second, arcs.forward, arcs.backward), source, sink
        )

    @property
    def bound(self) -> float:
        """No labelling is better than this; at the end the best one is as good, up to round-off."""
        return self.constant - self.flow.value if self.constant > -math.inf else -math.inf

    @property
    def labels(self) -> Ints:
        """The labelling of the cut, an optimal one at the end."""
        return np.asarray(self.flow.on_sink_side ^ (self.flip == 1), dtype=np.int64)


def why_no_cut(problem: Problem) -> str | None:
    """Why a model is not solved by a minimum cut, or None if it is."""
    graph = problem.graph
    if np.any(graph.card > 2):
        i = int(np.argmax(graph.card > 2))
        return f"variable {i} has {graph.card[i]} states, expected at most 2"
    large = np.flatnonzero(graph.arity != 2)
    if len(large):
        return f"factor {large[0]} has {graph.arity[large[0]]} variables, expected 2"
    if 2 * graph.n_factors > MAX_ARCS:
        return f"it has {graph.n_factors} factors, more than {MAX_ARCS // 2}"
    _, a = flips_of(binary_pairs(problem))
    if a == NONE:
        return None
    i, j = problem.scope[2 * a : 2 * a + 2].tolist()
    return f"factor {problem.order[a]} on variables {i} and {j} is not submodular, whichever variables are flipped"


def binary_pairs(problem: Problem) -> BinaryPairs:
    """The pairs of a model whose variables have at most two states."""
    graph = problem.graph
    theta_v = np.full((problem.n_vars, 2), -np.inf)
    if problem.only_binary:
        theta_v[:] = graph.theta_v.reshape(-1, 2)
    else:
        theta_v[np.arange(2) < graph.card[:, None]] = graph.theta_v
    return BinaryPairs(problem.scope, problem.table_at, graph.theta_t, graph.card, theta_v)


def flips_of(pairs: BinaryPairs) -> tuple[Ints, int]:
    """Which variables to flip (1 for those), and a pair that is not submodular all the same, or NONE."""
    parent, flip = np.zeros((2, len(pairs.theta_v)), dtype=np.int32)
    return flip, int(find_flips(pairs, parent, flip))


def _lay_out(pairs: BinaryPairs, flip: Ints) -> CutArcs:
    """Unary potentials and arcs, cut to their number."""
    n, m = len(flip), len(pairs.table_at)
    first, second = np.empty((2, m), dtype=np.int32)
    forward, backward = np.empty((2, m))
    arcs = CutArcs(np.empty((n, 2)), first, second, forward, backward)
    n_arcs = lay_out_cut(pairs, flip, arcs)
    return CutArcs(arcs.unary, first[:n_arcs], second[:n_arcs], forward[:n_arcs], backward[:n_arcs])


def _capacities(unary: Floats, best: Floats) -> tuple[Floats, Floats]:
    """What state 1 costs and what state 0 costs, over the best; where no state is possible, neither costs anything."""
    top = np.where(best > -np.inf, best, 0.0)
    low, high = np.where(best > -np.inf, unary.T, 0.0)
    return top - high, top - low
