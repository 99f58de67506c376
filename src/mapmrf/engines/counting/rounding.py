"""Rounding of relaxed solutions to labellings that satisfy the hard constraints of a model."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, segment_max
from mapmrf.engines.counting.marginal_kernels import GroupScores
from mapmrf.engines.counting.model import CountingModel
from mapmrf.engines.counting.rounding_kernels import FactorReach, GroupPlaces, round_in_order
from mapmrf.model.graph import FactorGraph

MOST_RESTARTS = 30
"""Maximum number of restarts in which a variable that had no state left is moved to the front."""


class LegalRounding:
    """Heuristic rounding of preferences for states to labels that satisfy all hard constraints.

    Variables are decided in order of how clear their preference is. A variable without a feasible state is moved to the
    front, and the rounding restarts.
    """

    def __init__(self, graph: FactorGraph, model: CountingModel) -> None:
        self.graph, self.model = graph, model
        factors = model.factors
        of_group = model.group_var
        self.places = GroupPlaces(
            var_ptr=offsets(np.bincount(of_group, minlength=graph.n_vars)).astype(np.int64),
            group=np.argsort(of_group, kind="stable").astype(np.int64),
            factor=np.repeat(np.arange(model.n_factors), np.diff(factors.group_ptr)),
            state=model.state,
            at=graph.var_ptr.astype(np.int64),
        )
        self.possible = GroupScores(np.zeros(model.n_items), np.where(factors.complete, -np.inf, 0.0))
        zeros = np.zeros((2, model.n_factors))
        self.reach = FactorReach(zeros[0], zeros[1], np.zeros(model.n_factors, dtype=np.int64))
        self.tried = np.zeros(len(graph.theta_v), dtype=bool)
        self.allowed = graph.theta_v > -np.inf

    def round(self, prefer: Floats) -> Ints | None:
        """Return labels, or None if none are found; `prefer` has a number for every state, the larger the better."""
        prefer = np.where(self.allowed, prefer, -np.inf)
        labels = np.zeros(self.graph.n_vars, dtype=np.int64)
        order = np.argsort(-segment_max(prefer, self.graph.var_ptr), kind="stable").astype(np.int64)
        for _ in range(MOST_RESTARTS):
            at = round_in_order(
                order, prefer, self.model.factors, self.places, self.possible, self.reach, self.tried, labels
            )
            if at < 0:
                return labels if self._legal(labels) else None
            order[: at + 1] = np.roll(order[: at + 1], 1)
        return None

    def _legal(self, labels: Ints) -> bool:
        """Return whether all hard constraints hold; rounding treats a fan that shares a variable in parts."""
        constraints = self.graph.constraints
        return constraints is None or not bool(np.any(constraints.violated(labels) & constraints.hard))


def preferences(belief: Floats, var_ptr: Ints) -> Floats:
    """Normalise beliefs to sum to 1 for every variable, in units of the mean distance from the best state."""
    alive, card = belief > -np.inf, np.diff(var_ptr)
    behind = np.where(alive, np.repeat(segment_max(belief, var_ptr), card) - np.where(alive, belief, 0.0), 0.0)
    unit = max(float(behind.mean()) if len(behind) else 1.0, 1e-300)
    weight = np.where(alive, np.exp(-behind / unit), 0.0)
    total = np.maximum(np.add.reduceat(weight, var_ptr[:-1]), 1e-300) if len(card) else np.zeros(0)
    return np.asarray(weight / np.repeat(total, card))
