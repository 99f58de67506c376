"""Search over spins: tabu search from rank-2 relaxations and from paths between good labellings."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.random_kernels import seeded
from mapmrf.engines.spins.couplings import CoupledSpins
from mapmrf.engines.spins.couplings_kernels import set_gains
from mapmrf.engines.spins.rank_two_kernels import best_cut, disturb_angles, turn_vectors
from mapmrf.engines.spins.tabu_kernels import TabuState, TabuTally, Tenure, relink, run_tabu

STEP_WORK = 10_000_000
"""Spins and couplings visited per step: some 20 ms."""

PIECE_WORK = 50_000
"""Fixed cost of a kernel call, in spins visited."""

LEAST_TENURE, SPINS_PER_TENURE = 10, 25
"""Minimum tabu tenure in flips, or one flip per 25 spins if that is longer; up to half as many are added at random."""

SWEEPS, FLAT = 200, 1e-4
"""Maximum number of sweeps over the angles, and the relative gain below which they end."""

LEAST_NOISE, MOST_NOISE = 0.1, 0.35
"""Range of the perturbation of the current labelling's angles, as a share of pi."""

VAIN_ROUNDS = 10
"""Rounds without improvement after which a trajectory ends."""

ROUND_OFF = 1e-13
"""Relative difference of values that counts as round-off."""

IMPROVE_FLIPS = 20
"""Maximum number of flips per spin in a short search."""


class SpinSearch:
    """Trajectories of tabu search, and an elite set of the best labellings found.

    A trajectory starts from random angles or, every other time, from a point on the path between two elite labellings.
    Each of its rounds perturbs the angles of its best labelling (Burer, Monteiro and Zhang), takes the best cut, and
    improves it by tabu search. After several rounds without improvement, its best labelling joins the elite set.

    Attributes
    ----------
    model
        The spins.
    best, value
        The best labelling, as spins, and its value.
    n_rounds, n_trajectories, work
        Numbers of rounds and trajectories so far, and of spins and couplings visited.
    """

    def __init__(self, model: CoupledSpins, seed: int, n_elite: int, patience: int) -> None:
        self.model, self.n_elite, self.patience = model, n_elite, patience * max(model.n_vars, 1)
        n = model.n
        self.random = np.random.default_rng(seed)
        spins = [np.ones(n) for _ in range(2)]
        self.state = TabuState(spins[0], np.zeros(n), np.zeros(n, np.int64), spins[1], blank(TabuTally), seeded(seed))
        self.state.tally.round_off = ROUND_OFF * float(np.abs(model.couplings.strength).sum())
        self.vectors = np.zeros((n, 2))
        self.elite: list[Floats] = []
        self.values: list[float] = []
        self.best, self.value = np.ones(n), -math.inf
        self.n_rounds = self.n_trajectories = self.work = 0
        long = max(min(LEAST_TENURE, model.n_vars // 4), model.n_vars // SPINS_PER_TENURE)
        self.tenure = Tenure(long, long // 2 + 1)
        self._present, self._present_value = np.ones(n), -math.inf

    def labels(self) -> Ints:
        """The best labelling."""
        return self.model.labels(self.best)

    def learn(self, labels: Ints) -> None:
        """Add a labelling found elsewhere to the elite set; not within a step."""
        spin = self.model.spins(labels)
        self._join(spin, float(set_gains(self.model.couplings, spin, np.zeros(self.model.n))))

    def improve(self, spin: Floats) -> None:
        """Run a short tabu search from a labelling; not within a step."""
        self._restart(spin)
        some = min(IMPROVE_FLIPS * max(self.model.n_vars, 1), STEP_WORK // max(self.model.n, 1))
        if self.model.n_vars:
            run_tabu(self.model.couplings, self.state, self.model.n_vars, self.tenure, some, self.model.n_vars)
        self._join(self.state.best, float(self.state.tally.best))

    def run(self) -> Iterator[None]:
        """Run trajectories without end; yields after every step of some hundredths of a second."""
        end = STEP_WORK
        for _ in self._pieces():
            self.work += PIECE_WORK
            if self.work >= end:
                end = self.work + STEP_WORK
                yield

    def _pieces(self) -> Iterator[None]:
        """Run trajectories without end; yields after pieces of at most a step, and counts their work."""
        while True:
            self._present_value = -math.inf
            if self.n_trajectories % 2 and len(self.elite) > 1:
                self._relink()
            else:
                yield from self._disturb(1.0)
            yield from self._climb()
            n_vain = 0
            while n_vain < VAIN_ROUNDS:
                before = self._present_value
                yield from self._disturb(self.random.uniform(LEAST_NOISE, MOST_NOISE))
                yield from self._climb()
                n_vain = 0 if self._present_value > before + self.state.tally.round_off else n_vain + 1
            self._join(self._present, self._present_value)
            self.n_trajectories += 1

    # -- starts -------------------------------------------------------------------------------------------------------

    def _restart(self, spin: Floats) -> None:
        """Start tabu search from a labelling."""
        state, tally = self.state, self.state.tally
        state.spin[:] = spin
        state.best[:] = spin
        state.until[:] = 0
        tally.clock = tally.vain = 0
        tally.value = tally.best = set_gains(self.model.couplings, state.spin, state.gain)

    def _disturb(self, noise: float) -> Iterator[None]:
        """Start from the best cut of the rank-2 relaxation, started near the current labelling."""
        couplings, state = self.model.couplings, self.state
        disturb_angles(self._present, noise, self.vectors, state.random)
        some = max(1, STEP_WORK // (8 * self.model.work))
        for _ in range(0, SWEEPS, some):
            done = turn_vectors(couplings, self.vectors, some, FLAT)
            self.work += 4 * done * self.model.work
            if done < some:
                break
            yield
        self._restart(np.where(self.vectors[:, 1] > 0, 1.0, -1.0))
        best_cut(couplings, self.vectors, state.spin, state.gain)
        self._restart(state.spin * (state.spin[-1] if self.model.has_fields else 1.0))

    def _relink(self) -> None:
        """Start from a point between two elite labellings, closer to the middle than to either."""
        one, other = self.random.choice(len(self.elite), 2, replace=False).tolist()
        target = self.elite[other]
        if not self.model.has_fields and np.count_nonzero(target != self.elite[one]) > self.model.n // 2:
            target = -target
        self._restart(self.elite[one])
        distance = int(np.count_nonzero(target != self.elite[one]))
        if distance > 1:
            relink(self.model.couplings, self.state, target, max(1, distance // 3), max(1, 2 * distance // 3))
            self._restart(self.state.best.copy())

    # -- rounds -------------------------------------------------------------------------------------------------------

    def _climb(self) -> Iterator[None]:
        """Run tabu search to its end; its result becomes the current labelling unless it is worse."""
        model, state = self.model, self.state
        some = max(1, STEP_WORK // (model.n + model.work // max(1, model.n)))
        done = some if model.n_vars else 0
        while done == some:
            done = run_tabu(model.couplings, state, model.n_vars, self.tenure, some, self.patience)
            self.work += done * STEP_WORK // some
            yield
        value = float(state.tally.best)
        if value >= self._present_value:
            self._present, self._present_value = state.best.copy(), value
        if value > self.value:
            self.best, self.value = state.best.copy(), value
        self.n_rounds += 1
        yield

    def _join(self, spin: Floats, value: float) -> None:
        """Add a labelling to the elite set, unless it is already there."""
        if value > self.value:
            self.best, self.value = spin.copy(), value
        mirrored = spin if self.model.has_fields else -spin
        if any(np.array_equal(spin, one) or np.array_equal(mirrored, one) for one in self.elite):
            return
        if len(self.elite) < self.n_elite:
            self.elite.append(spin.copy())
            self.values.append(value)
        elif value > min(self.values):
            worst = int(np.argmin(self.values))
            self.elite[worst], self.values[worst] = spin.copy(), value
