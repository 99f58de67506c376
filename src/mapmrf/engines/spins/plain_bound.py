"""The semidefinite bound without triangle inequalities, for large models."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from mapmrf.engines.spins.couplings import CoupledSpins
from mapmrf.engines.spins.relaxation import PlainRelaxation
from mapmrf.engines.spins.search import SpinSearch

SWEEPS = 30
"""Sweeps before the first bound; doubled before each further one."""

STALLED = 1e-6
"""Relative improvement of the bound below which the run ends."""

ROUNDINGS = 5
"""Random hyperplane roundings after every bound."""


class PlainBound:
    """Mixing method on sparse spins, with bounds and roundings in between."""

    n_nodes = 1
    n_cuts = 0
    closed = False

    def __init__(self, model: CoupledSpins, search: SpinSearch, seed: int) -> None:
        # search: keeps the best labelling, and improves roundings of the vectors
        self.model, self.search = model, search
        self.random = np.random.default_rng(seed)
        self.relaxation = PlainRelaxation(model, seed)
        self.bound = math.inf  # upper bound on the couplings of every labelling

    def run(self) -> Generator[None, None, None]:
        """Compute bounds until they stall; yields after every step."""
        sweeps = SWEEPS
        while True:
            yield from self.relaxation.settle(sweeps)
            before = self.bound
            found = yield from self.relaxation.bound()
            self.bound = min(before, found)
            yield
            for _ in range(ROUNDINGS):
                self._round()
                yield
            if before - self.bound < STALLED * abs(self.bound):
                return
            sweeps *= 2

    def _round(self) -> None:
        """Round the vectors by a random hyperplane, and improve the labelling."""
        vectors = self.relaxation.vectors
        spin = np.where(vectors @ self.random.normal(size=vectors.shape[1]) >= 0, 1.0, -1.0)
        if self.model.has_fields:
            spin *= spin[-1]
        self.search.improve(spin)
