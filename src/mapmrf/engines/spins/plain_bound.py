"""The semidefinite bound of models that are too large for inequalities."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from mapmrf.engines.spins.couplings import CoupledSpins
from mapmrf.engines.spins.relaxation import PlainRelaxation
from mapmrf.engines.spins.search import SpinSearch

SWEEPS = 30
"""Sweeps before the first bound; each further one comes after twice as many as the one before."""

STALLED = 1e-6
"""Relative gain of a bound over the one before that ends the run."""

ROUNDINGS = 5
"""Random planes after every bound."""


class PlainBound:
    """Sweeps over the vectors of sparse spins, bounds on the way, and labellings.

    Attributes
    ----------
    search
        Keeps the best labelling, and improves what the vectors are rounded to.
    bound
        No labelling's couplings are worth more.
    """

    n_nodes = 1
    n_cuts = 0
    closed = False

    def __init__(self, model: CoupledSpins, search: SpinSearch, seed: int) -> None:
        self.model, self.search = model, search
        self.random = np.random.default_rng(seed)
        self.relaxation = PlainRelaxation(model, seed)
        self.bound = math.inf

    def run(self) -> Generator[None, None, None]:
        """Bounds until they stall; yields after every step."""
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
        """Cut the vectors by a random plane, and improve the labelling that this gives."""
        vectors = self.relaxation.vectors
        spin = np.where(vectors @ self.random.normal(size=vectors.shape[1]) >= 0, 1.0, -1.0)
        if self.model.has_fields:
            spin *= spin[-1]
        self.search.improve(spin)
