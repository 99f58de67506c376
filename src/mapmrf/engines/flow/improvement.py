"""Improvement of labellings by roof duality (QPBO-I; Rother, Kolmogorov, Lempitsky and Szummer, 2007)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.flow.roof_duality import RoofDual
from mapmrf.engines.flow.roof_duality_kernels import UNDECIDED, Hold, hold_in_turn


class Improvement:
    """Rounds in which undecided variables are fixed at their states in random order until all others are decided.

    Decisions of roof duality while some variables are fixed at the states of a labelling never make that labelling
    worse. So the labelling at the end of a round is at least as good as the one at its start, up to round-off.

    Parameters
    ----------
    roof
        A model with maximum flow. Every round starts from this flow.
    random
        Generator of the random orders.
    """

    def __init__(self, roof: RoofDual, random: np.random.Generator) -> None:
        self.roof, self.random = roof, random
        self.undecided = np.flatnonzero(roof.states == UNDECIDED)
        trees = roof.flow.trees
        arrays: list[Any] = [roof.flow.network.residual, *trees[:-1]]
        self._kept = [(array, array.copy()) for array in arrays]
        self._cursor = {name: getattr(trees.cursor, name) for name in trees.cursor.dtype.names}  # type: ignore[attr-defined]
        self._hold = Hold(np.zeros(2, dtype=np.int64), np.zeros(2), np.zeros(2))
        self.order = np.zeros(0, dtype=np.int64)
        self.at = 0

    def begin(self, labels: Ints) -> None:
        """Start a round from a labelling in which all decided variables have their states."""
        for array, kept in self._kept:
            array[:] = kept
        for name, value in self._cursor.items():
            setattr(self.roof.flow.trees.cursor, name, value)
        self.labels = np.array(labels, dtype=np.int64)
        self.order, self.at = self.random.permutation(self.undecided), 0

    def run(self, max_work: int) -> bool:
        """Continue for about this much work; return whether the round has ended."""
        flow = self.roof.flow
        self.at = hold_in_turn(flow.network, flow.trees, self.labels, self.order, self.at, max_work, self._hold)
        return self.at == len(self.order)

    def improved(self) -> Ints:
        """The labelling at the end of a round."""
        states = self.roof.states
        return np.asarray(np.where(states == UNDECIDED, self.labels, states))
