"""Semidefinite relaxations: dense with triangle inequalities, and plain for sparse spins."""

from __future__ import annotations

import math
from collections.abc import Generator

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.spins.certificate import BoundSteps, bound_in_steps, certified_bound
from mapmrf.engines.spins.couplings import CoupledSpins
from mapmrf.engines.spins.mixing_kernels import mix_dense, mix_sparse, set_gram
from mapmrf.engines.spins.relaxation_kernels import Prices, RelaxedSpins, press, set_matrix
from mapmrf.engines.spins.triangle_kernels import set_slack
from mapmrf.engines.spins.triangles import TriangleSet

STEP_WORK = 150_000_000
"""Multiplications per step: up to some 50 ms."""

LEAST_PENALTY, MOST_PENALTY, PENALTY_SPINS = 0.003, 0.01, 0.36
"""Penalty of the inequalities relative to the mean gradient norm: the last over the number of spins, within limits."""

UPDATE_EVERY = 10
"""Sweeps between updates of the multipliers."""

SETTLE = 40
"""Sweeps at fixed multipliers before a bound is computed."""

ONE_STEP = 400
"""Maximum number of spins for which a bound is certified in one step."""

Steps = Generator[None, None, None]

CUTS_PER_SPIN = 5
"""Inequalities per spin that are added at a time."""


def random_vectors(n: int, seed: int) -> Floats:
    """Return random unit vectors, (n, rank), of a rank at which the relaxation has no spurious local optima."""
    vectors = np.random.default_rng(seed).normal(size=(n, math.ceil(math.sqrt(2 * n)) + 1))
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


class TightRelaxation:
    """Semidefinite relaxation tightened by triangle inequalities.

    Attributes
    ----------
    spins
        The couplings and the vectors.
    cuts
        The inequalities.
    """

    def __init__(self, matrix: Floats, vectors: Floats, cuts: TriangleSet) -> None:
        n = len(matrix)
        square = [np.empty((n, n)) for _ in range(2)]
        row = [np.zeros(n) for _ in range(2)]
        self.spins = RelaxedSpins(matrix, square[0], vectors, square[1], row[0], row[1], np.zeros(vectors.shape[1]))
        self.cuts = cuts
        self.penalty = 0.0

    @property
    def work(self) -> int:
        """Multiplications per sweep."""
        n, rank = map(int, self.spins.vectors.shape)
        return 2 * n * n * rank + 20 * len(self.cuts)

    @property
    def step_sweeps(self) -> int:
        """Sweeps per step."""
        return max(1, STEP_WORK // self.work)

    def settle(self, sweeps: int) -> Steps:
        """Run coordinate ascent at fixed multipliers, in steps."""
        spins, some = self.spins, self.step_sweeps
        set_matrix(spins, self.cuts.triangles, self.cuts.multiplier)
        spins.inertia[:] = 0.0
        for done in range(0, sweeps, some):
            if done:
                yield
            n = min(some, sweeps - done)
            mix_dense(spins.matrix, spins.vectors, spins.inertia, spins.strength, spins.pull, n)
        if self.penalty == 0.0:
            share = min(max(PENALTY_SPINS / max(1, len(spins.strength)), LEAST_PENALTY), MOST_PENALTY)
            self.penalty = share * float(spins.strength.mean())

    def tighten(self, sweeps: int) -> Steps:
        """Improve vectors and multipliers, in steps."""
        n_cuts = len(self.cuts)
        prices = Prices(self.cuts.multiplier, np.zeros(n_cuts), np.zeros(n_cuts))
        some, spent = min(UPDATE_EVERY, self.step_sweeps), 0
        for done in range(some, sweeps + 1, some):
            press(self.spins, self.cuts.triangles, prices, self.penalty, some)
            if done % UPDATE_EVERY < some:
                prices.multiplier[:] = prices.price
            spent += some * self.work
            if spent >= STEP_WORK:
                spent = 0
                yield
        prices.multiplier[:] = prices.price

    def separate(self) -> Generator[None, None, int]:
        """Replace slack inequalities by violated ones, in steps; return how many are new."""
        gram = self.gram()
        slack = np.zeros(len(self.cuts))
        set_slack(self.cuts.triangles, gram, slack)
        self.cuts.drop_slack(slack)
        return (yield from self.cuts.add_violated(gram, CUTS_PER_SPIN * len(gram)))

    def gram(self) -> Floats:
        """Gram matrix of the vectors, (n, n)."""
        set_gram(self.spins.vectors, self.spins.gram)
        return self.spins.gram

    def bound(self) -> BoundSteps:
        """Compute an upper bound on the couplings of all labellings, in steps, after ascent at fixed multipliers.

        The vectors are restored afterwards: those under the penalty are closer to satisfying the inequalities.
        """
        vectors, spins = self.spins.vectors.copy(), self.spins
        yield from self.settle(SETTLE)
        total = math.fsum(self.cuts.multiplier) * (1.0 + 1e-15)
        if len(vectors) <= ONE_STEP:
            bound = certified_bound(spins.matrix, spins.strength)
        else:
            bound = yield from bound_in_steps(spins.matrix, spins.strength)
        spins.vectors[:] = vectors
        return total + bound


class PlainRelaxation:
    """Semidefinite relaxation of a sparse model, without inequalities.

    Attributes
    ----------
    vectors : (n, rank)
        A unit vector for every spin.
    """

    def __init__(self, model: CoupledSpins, seed: int) -> None:
        self.model = model
        self.vectors = random_vectors(model.n, seed)
        self.strength = np.zeros(model.n)
        self._pull = np.zeros(self.vectors.shape[1])

    def settle(self, sweeps: int) -> Steps:
        """Run coordinate ascent; yields after every step."""
        some = max(1, STEP_WORK // (self.model.work * self.vectors.shape[1]))
        for _ in range(0, sweeps, some):
            mix_sparse(self.model.couplings, self.vectors, self.strength, self._pull, min(some, sweeps))
            yield

    def bound(self) -> BoundSteps:
        """Compute an upper bound on the couplings of all labellings, in steps."""
        return bound_in_steps(self.model.couplings, self.strength)
