"""Roof duality: a bound for any binary pairwise model, and persistent states."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.engines.flow.cut_model import CutModel, binary_pairs, flips_of, why_not_binary_pairs
from mapmrf.engines.flow.cut_model_kernels import NONE, BinaryPairs, set_excess
from mapmrf.engines.flow.maximum_flow import MaximumFlow
from mapmrf.engines.flow.maximum_flow_kernels import NO_LIMIT
from mapmrf.engines.flow.network import MAX_ARCS, sparse_wiring
from mapmrf.engines.flow.roof_duality_kernels import (
    UNDECIDED,
    join_complements,
    lay_out_roof,
    read_persistent,
)
from mapmrf.model.problem import Problem


class RoofDual:
    """A binary model as a flow network with two nodes per variable.

    Attributes
    ----------
    constant
        The upper bound is this minus half the flow.
    flow
        The flow, initially zero.
    """

    def __init__(self, pairs: BinaryPairs, constant: float = 0.0) -> None:
        n = self.n_vars = len(pairs.theta_v)
        scope = np.empty(4 * len(pairs.table_at), dtype=np.int32)
        join_complements(pairs, scope)
        wiring = sparse_wiring(2 * n, scope)
        unary, excess = pairs.theta_v.copy(), np.zeros(2 * n)
        lay_out_roof(pairs, unary, wiring)
        self.constant = constant + float(set_excess(unary, excess[:n]))
        excess[n:] = -excess[:n]
        self.flow = MaximumFlow(wiring, excess)

    @property
    def bound(self) -> float:
        """Upper bound on all labellings."""
        return self.constant - self.flow.value / 2 if self.constant > -math.inf else -math.inf

    @property
    def states(self) -> Ints:
        """After a maximum flow, the persistent states of variables, or UNDECIDED, (n_vars,).

        No labelling gets worse when all decided variables take these states.
        """
        states = np.full(self.n_vars, UNDECIDED, dtype=np.int64)
        if self.bound > -math.inf:
            read_persistent(self.flow.on_sink_side, states)
        return states


class Persistency(NamedTuple):
    """Persistent states of variables, UNDECIDED (-1) for others, and an upper bound."""

    states: Ints
    bound: float


def why_no_roof(problem: Problem) -> str | None:
    """Return why roof duality cannot be applied to a model, or None if it can."""
    reason = why_not_binary_pairs(problem)
    if reason is None and 4 * problem.n_factors > MAX_ARCS:
        return f"it has {problem.n_factors} factors, more than {MAX_ARCS // 4}"
    return reason


def relax(problem: Problem) -> CutModel | RoofDual:
    """Return the flow of a binary pairwise model: a minimum cut if flips make it submodular, else the roof dual."""
    if flips_of(problem)[1] == NONE:
        return CutModel(problem)
    return RoofDual(binary_pairs(problem), problem.graph.constant)


def persistent_states(problem: Problem) -> Persistency:
    """Compute persistent states and an upper bound by roof duality.

    If flips make the model submodular, all variables are fixed at the optimum. In an infeasible model none are, and the
    bound is -inf.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.engines.flow.roof_duality import persistent_states
    >>> from mapmrf.model.problem import Problem
    >>> differ, unary = [[0.0, 1.0], [1.0, 0.0]], [[0.0, 0.0]] * 3 + [[0.0, 5.0]]
    >>> graph = mapmrf.FactorGraph.from_pairwise(unary, [[0, 1], [1, 2], [2, 0], [2, 3]], differ)
    >>> persistent_states(Problem.compile(graph))  # a frustrated triangle, and one decided variable
    Persistency(states=array([-1, -1, -1,  1]), bound=8.5)
    """
    model = relax(problem)
    model.flow.run(NO_LIMIT)
    if model.bound == -math.inf:
        return Persistency(np.full(problem.n_vars, UNDECIDED), -math.inf)
    return Persistency(model.labels if isinstance(model, CutModel) else model.states, model.bound)


def excluded_by_roof(problem: Problem) -> Bools:
    """Return the states that are not needed for optimality, (n_states,), by roof duality; none if infeasible."""
    states = persistent_states(problem).states
    excluded: Bools = np.zeros(problem.n_states, dtype=bool)
    decided = np.flatnonzero(states != UNDECIDED)
    excluded[2 * decided + 1 - states[decided]] = True
    return excluded
