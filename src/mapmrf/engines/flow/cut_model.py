"""A binary pairwise model as a minimum cut."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import numpy as np

from mapmrf.arrays import Ints, frozen, short
from mapmrf.engines.flow.cut_model_kernels import NONE, BinaryPairs, find_flips, lay_out_cut, set_excess
from mapmrf.engines.flow.maximum_flow import MaximumFlow
from mapmrf.engines.flow.network import MAX_ARCS, wire
from mapmrf.engines.flow.plain_cut_kernels import TableParts, all_favour_equal, lay_out_plain, split_tables
from mapmrf.model.problem import Problem


class CutModel:
    """A model whose pairs are submodular, possibly after flipping variables, and the flow that solves it.

    A variable on the source's side of the cut has state 0, or 1 if it is flipped.

    Attributes
    ----------
    flip : (n_vars,)
        1 for variables whose states are swapped.
    constant
        The value of the best labelling is this minus the maximum flow.
    flow
        The flow, initially zero.
    """

    def __init__(self, problem: Problem) -> None:
        pairs, parts = binary_pairs(problem), table_parts(problem)
        # If nothing is feasible, a variable with a single state may be on the wrong side of the cut.
        self._most = None if problem.only_binary else problem.graph.card - 1
        self.flip = flips_of(problem)[0]
        wiring, excess = wire(problem.n_vars, problem.scope), np.empty(problem.n_vars)
        if parts is not None and all_favour_equal(pairs, parts):
            best = float(lay_out_plain(pairs, parts, wiring, excess))
        else:
            unary = np.empty((problem.n_vars, 2))
            lay_out_cut(pairs, self.flip, unary, wiring)
            best = float(set_excess(unary, excess))
        self.constant = problem.graph.constant + best
        self.flow = MaximumFlow(wiring, excess)

    @property
    def bound(self) -> float:
        """Upper bound on all labellings; at the end it equals the optimum, up to round-off."""
        return self.constant - self.flow.value if self.constant > -math.inf else -math.inf

    @property
    def labels(self) -> Ints:
        """The labelling given by the cut, optimal at the end."""
        labels = np.asarray(self.flow.on_sink_side ^ (self.flip == 1), dtype=np.int64)
        return labels if self._most is None else np.minimum(labels, self._most)


def why_not_binary_pairs(problem: Problem) -> str | None:
    """Return why a model is not a pairwise model of variables with at most two states, or None if it is."""
    graph = problem.graph
    if np.any(graph.card > 2):
        i = int(np.argmax(graph.card > 2))
        return f"variable {i} has {graph.card[i]} states, expected at most 2"
    large = np.flatnonzero(graph.arity != 2)
    if len(large):
        return f"factor {large[0]} has {graph.arity[large[0]]} variables, expected 2"
    return None


def why_no_cut(problem: Problem) -> str | None:
    """Return why a model cannot be solved by a minimum cut, or None if it can."""
    graph, reason = problem.graph, why_not_binary_pairs(problem)
    if reason is not None:
        return reason
    if 2 * graph.n_factors > MAX_ARCS:
        return f"it has {graph.n_factors} factors, more than {MAX_ARCS // 2}"
    _, a = flips_of(problem)
    if a == NONE:
        return None
    i, j = problem.scope[2 * a : 2 * a + 2].tolist()
    return f"factor {problem.order[a]} on variables {i} and {j} is not submodular, whichever variables are flipped"


def binary_pairs(problem: Problem) -> BinaryPairs:
    """Return the pairs of a model whose variables have at most two states."""
    graph = problem.graph
    if problem.only_binary:
        theta_v = graph.theta_v.reshape(-1, 2)
    else:
        theta_v = np.full((problem.n_vars, 2), -np.inf)
        theta_v[np.arange(2) < graph.card[:, None]] = graph.theta_v
        frozen(theta_v)
    return BinaryPairs(
        packed(problem.scope), packed(problem.table_at), graph.theta_t, problem.weight, graph.card, theta_v
    )


def table_parts(problem: Problem) -> TableParts | None:
    """Return the parts of all tables, if all variables have two states and nothing is forbidden."""
    graph = problem.graph
    if not (problem.only_binary and np.isfinite(graph.theta_v.min(initial=0.0)) and np.isfinite(graph.theta_t).all()):
        return None
    parts = TableParts(*np.empty((4, graph.n_tables)))
    split_tables(graph.theta_t, parts)
    return parts


def packed(values: Ints) -> Ints:
    """Return a read-only array, in 32 bits where values fit, so that kernels need only one specialisation."""
    return frozen(np.ascontiguousarray(short(values)))


_flips: WeakKeyDictionary[Problem, tuple[Ints, int]] = WeakKeyDictionary()


def flips_of(problem: Problem) -> tuple[Ints, int]:
    """Return which variables to flip (1 for those), and a pair that is still not submodular, or NONE.

    The result is cached with the problem: it decides both whether it is supported and how it is solved.
    """
    if problem not in _flips:
        pairs, parts = binary_pairs(problem), table_parts(problem)
        flip, spoils = np.zeros(problem.n_vars, dtype=np.int32), NONE
        if parts is None or not all_favour_equal(pairs, parts):
            spoils = int(find_flips(pairs, np.zeros_like(flip), flip))
        _flips[problem] = frozen(flip), spoils
    return _flips[problem]
