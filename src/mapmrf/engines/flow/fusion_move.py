"""The best combination of two labellings, by a minimum cut or roof duality."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Ints, frozen
from mapmrf.engines.flow.cut_model import packed
from mapmrf.engines.flow.cut_model_kernels import BinaryPairs
from mapmrf.engines.flow.fusion_move_kernels import (
    MovePairs,
    TwoLabellings,
    gain_of,
    gather_active,
    lay_out_move,
    list_active,
    take_new,
)
from mapmrf.engines.flow.maximum_flow import MaximumFlow
from mapmrf.engines.flow.maximum_flow_kernels import NO_LIMIT
from mapmrf.engines.flow.network import MAX_ARCS, wire
from mapmrf.engines.flow.roof_duality import RoofDual
from mapmrf.model.problem import Problem

TOLERANCE = 1e-12
"""Minimum gain of a move relative to the costs in its cut; less counts as round-off."""


class FusionMove:
    """Fusion of labellings of one pairwise problem: every variable keeps its state or takes that of another labelling.

    If all pairs are submodular in these two states, the result is the best of all combinations, by a minimum cut.
    Otherwise roof duality fixes the states of some variables, and undecided ones keep theirs. The value never
    decreases. One network is reused for all moves.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.datasets import potts_image
    >>> from mapmrf.engines.flow.fusion_move import FusionMove
    >>> from mapmrf.model.problem import Problem
    >>> problem = Problem.compile(potts_image(9, 9, labels=3, seed=0).graph)
    >>> labels = np.zeros(81, dtype=np.int64)
    >>> before = problem.graph.value(labels)
    >>> gain = FusionMove(problem).fuse(labels, np.ones(81, dtype=np.int64))
    >>> bool(np.isclose(problem.graph.value(labels), before + gain)), sorted(set(labels.tolist()))
    (True, [0, 1])
    """

    def __init__(self, problem: Problem) -> None:
        graph = self.graph = problem.graph
        self.model = MovePairs(
            packed(graph.card), packed(graph.var_ptr), graph.theta_v,
            packed(problem.scope), packed(problem.table_at), problem.weight, graph.theta_t,
        )  # fmt: skip
        self.flow = MaximumFlow(wire(problem.n_vars, problem.scope), np.zeros(problem.n_vars))
        self.hard = not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all())
        self.roof: RoofDual | None = None
        self.move = TwoLabellings(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), -math.inf)
        self.cost = 0.0

    def fuse(self, labels: Ints, other: Ints) -> float:
        """Take the states of another labelling where that is best, in place; return the gain."""
        self.begin(labels, other)
        self.run()
        return self.end(labels)

    def begin(self, labels: Ints, other: Ints, feasible: bool = False) -> None:
        """Set up the network of a move; the labels, possibly known to be feasible, must not change until it ends."""
        feasible = feasible or self.is_feasible(labels)
        self.move = TwoLabellings(labels, other, -math.inf if feasible else self.penalty)
        self.flow.network.residual[:] = 0.0
        self.cost, n_apart = lay_out_move(self.model, self.move, self.flow.wiring, self.flow.excess)
        self.roof = RoofDual(self.active_pairs()) if n_apart else None
        self.flow.begin()

    def is_feasible(self, labels: Ints) -> bool:
        """Return whether a labelling violates no hard constraint."""
        return not self.hard or self.graph.value(labels) > -math.inf

    @property
    def penalty(self) -> float:
        """A potential too low for others to compensate, in place of -inf while the labelling is infeasible."""
        return -2.0 * self.graph.size - 1.0

    def active_pairs(self) -> BinaryPairs:
        """Return the binary model of the variables whose two states differ."""
        self.number = np.empty(len(self.move.old), dtype=np.int32)
        n, m = list_active(self.model, self.move, self.number)
        binary = BinaryPairs(
            np.empty(2 * m, dtype=np.int32), np.arange(0, 4 * m, 4, dtype=np.int32), np.empty(4 * m),
            np.zeros(0), np.full(n, 2), np.empty((n, 2)),
        )  # fmt: skip
        gather_active(self.model, self.move, self.number, binary)
        for array in binary:
            frozen(array)
        return binary

    def run(self, max_work: int = NO_LIMIT) -> bool:
        """Augment the flow for at most this much work; return whether the move has ended."""
        return (self.flow if self.roof is None else self.roof.flow).run(max_work)

    @property
    def work(self) -> int:
        """Arcs visited by the flow of this move."""
        return int((self.flow if self.roof is None else self.roof.flow).trees.cursor.work)

    def end(self, labels: Ints) -> float:
        """Apply the result of the move if it is a gain; return the gain."""
        if self.roof is not None:
            return self._end_roof(self.roof, labels)
        gain = self.cost - self.flow.value
        if not gain > TOLERANCE * self.cost:
            return 0.0
        take_new(labels, self.move.new, self.flow.on_sink_side)
        return gain

    def _end_roof(self, roof: RoofDual, labels: Ints) -> float:
        """Do the same after roof duality: undecided variables keep their states."""
        taken = np.append(roof.states == 1, False)[self.number]  # variables outside have the last number
        mixed = np.where(taken, self.move.new, labels)
        gain = float(gain_of(self.model, TwoLabellings(labels, mixed, self.move.floor)))
        if not gain > TOLERANCE * abs(roof.constant):
            return 0.0
        labels[:] = mixed
        return gain


def why_no_fusion(problem: Problem) -> str | None:
    """Return why labellings of a model cannot be fused, or None if they can."""
    large = np.flatnonzero(problem.graph.arity != 2)
    if len(large):
        return f"factor {large[0]} has {problem.graph.arity[large[0]]} variables, expected 2"
    if 4 * problem.n_factors > MAX_ARCS:
        return f"it has {problem.n_factors} factors, more than {MAX_ARCS // 4}"
    return None
