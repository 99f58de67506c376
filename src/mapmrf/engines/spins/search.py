"""Search over spins: tabu search from rank-2 relaxations and from paths between good labellings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import sparse

from mapmrf.arrays import Floats, Ints, blank, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.kernels.random_numbers import UNIT, Bits, draw, next_bits, seeded
from mapmrf.model.graph import ROUND_OFF
from mapmrf.model.problem import Problem
from mapmrf.model.summary import Granularity
from mapmrf.run import pace


class SpinSearch:
    """Trajectories of tabu search, and an elite set of the best labellings found.

    A trajectory starts from random angles or, every other time, from a point on the path between two elite labellings.
    Each of its rounds perturbs the angles of its best labelling (Burer, Monteiro and Zhang), takes the best cut, and
    improves it by tabu search. After several rounds without improvement, its best labelling joins the elite set.
    """

    def __init__(self, model: CoupledSpins, seed: int, n_elite: int, patience: int) -> None:
        self.model, self.n_elite, self.patience = model, n_elite, patience * max(model.n_vars, 1)
        n = model.n
        self.random = np.random.default_rng(seed)
        until, tally = np.zeros(n, np.int64), blank(TabuTally)
        self.state = TabuState(np.ones(n), np.zeros(n), until, np.ones(n), tally, seeded(seed))
        # Relative difference of values that counts as round-off
        self.state.tally.round_off = 1e-13 * float(np.abs(model.couplings.strength).sum())
        self.vectors = np.zeros((n, 2))
        self.elite: list[Floats] = []
        self.values: list[float] = []
        # best, value: the best labelling, as spins, and its value
        self.best, self.value = np.ones(n), -math.inf
        # n_rounds, n_trajectories, work: numbers of rounds and trajectories so far, and of spins and couplings visited
        self.n_rounds = self.n_trajectories = self.work = 0
        self.tenure = max(min(10, model.n_vars // 4), model.n_vars // 25)
        self._present, self._present_value = np.ones(n), -math.inf

    def labels(self) -> Ints:
        return self.model.labels(self.best)

    def learn(self, labels: Ints) -> None:
        """Add a labelling found elsewhere to the elite set; not within a step."""
        spin = self.model.spins(labels)
        self._join(spin, float(set_gains(self.model.couplings, spin, np.zeros(self.model.n))))

    def improve(self, spin: Floats) -> None:
        """Run a short tabu search from a labelling, given up to its sign; not within a step."""
        self._restart(spin * spin[-1] if self.model.has_fields else spin)
        # Maximum number of flips per spin in a short search
        some = min(20 * max(self.model.n_vars, 1), pace.SPIN_SEARCH // max(self.model.n, 1))
        if self.model.n_vars:
            run_tabu(self.model.couplings, self.state, self.model.n_vars, self.tenure, some, self.model.n_vars)
        self._join(self.state.best, float(self.state.tally.best))

    def run(self) -> Iterator[None]:
        """Run trajectories without end; yields after every step of some hundredths of a second."""
        end = pace.SPIN_SEARCH
        for _ in self._pieces():
            self.work += 50_000  # fixed cost of a kernel call, in spins visited
            if self.work >= end:
                end = self.work + pace.SPIN_SEARCH
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
            n_idle = 0
            while n_idle < 10:  # rounds without improvement after which a trajectory ends
                before = self._present_value
                yield from self._disturb(self.random.uniform(0.1, 0.35))  # of pi
                yield from self._climb()
                n_idle = 0 if self._present_value > before + self.state.tally.round_off else n_idle + 1
            self._join(self._present, self._present_value)
            self.n_trajectories += 1

    def _restart(self, spin: Floats) -> None:
        state, tally = self.state, self.state.tally
        state.spin[:] = spin
        state.best[:] = spin
        state.until[:] = 0
        tally.clock = tally.idle = 0
        tally.value = tally.best = set_gains(self.model.couplings, state.spin, state.gain)

    def _disturb(self, noise: float) -> Iterator[None]:
        """Start from the best cut of the rank-2 relaxation, started near the current labelling."""
        couplings, state = self.model.couplings, self.state
        disturb_angles(self._present, noise, self.vectors, state.random)
        some = max(1, pace.SPIN_SEARCH // (8 * self.model.work))
        for _ in range(0, 200, some):
            done = turn_vectors(couplings, self.vectors, some, 1e-4)
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

    def _climb(self) -> Iterator[None]:
        """Run tabu search to its end; its result becomes the current labelling unless it is worse."""
        model, state = self.model, self.state
        some = max(1, pace.SPIN_SEARCH // (model.n + model.work // max(1, model.n)))
        done = some if model.n_vars else 0
        while done == some:
            done = run_tabu(model.couplings, state, model.n_vars, self.tenure, some, self.patience)
            self.work += done * pace.SPIN_SEARCH // some
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


# Rank-2 relaxation: coordinate ascent on the circle, and the best cut through it (Burer, Monteiro, Zhang 2002).


@bare
def disturb_angles(spin: Floats, noise: float, vectors: Floats, random: Bits) -> None:
    """Set unit vectors (n, 2) to angle 0 or pi according to the spins, perturbed by up to `noise` times pi."""
    for i in range(len(spin)):
        turn = 2.0 * float(next_bits(random) >> np.uint64(11)) / UNIT - 1.0
        angle = math.pi * noise * turn
        vectors[i, 0] = spin[i] * math.cos(angle)
        vectors[i, 1] = spin[i] * math.sin(angle)


@bare
def turn_vectors(couplings: SpinCouplings, vectors: Floats, sweeps: int, tolerance: float) -> int:
    """Run coordinate ascent over the vectors until a sweep gains little; return the number of sweeps."""
    total = 0.0
    for sweep in range(sweeps):
        gained, pulls = 0.0, 0.0
        for i in range(len(vectors)):
            x, y = 0.0, 0.0
            for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
                j, w = couplings.nbr[e], couplings.strength[e]
                x += w * vectors[j, 0]
                y += w * vectors[j, 1]
            pull = math.sqrt(x * x + y * y)
            if pull > 0.0:
                gained += pull - x * vectors[i, 0] - y * vectors[i, 1]
                pulls += pull
                vectors[i, 0] = x / pull
                vectors[i, 1] = y / pull
        total = pulls
        if gained <= tolerance * total:
            return sweep + 1
    return sweeps


@compiled
def best_cut(couplings: SpinCouplings, vectors: Floats, spin: Floats, gain: Floats) -> float:
    """Rotate a line through the circle and keep the best of all cuts; return its gain over the first one."""
    # `spin` and `gain` hold the first cut, by the sign of the second coordinate, and finally the best one.
    n = len(spin)
    angle = np.empty(n)
    for i in range(n):
        angle[i] = math.atan2(vectors[i, 1], vectors[i, 0])
        if angle[i] < 0.0:
            angle[i] += math.pi
    order = np.argsort(angle)
    total, best, at = 0.0, 0.0, 0
    for step in range(n):  # the line passes one vector after another
        total += gain[order[step]]
        flip(couplings, spin, gain, order[step])
        if total > best:
            best, at = total, step + 1
    for step in range(n - 1, at - 1, -1):
        flip(couplings, spin, gain, order[step])
    return best


# -- One-flip tabu search over spins, and path relinking --------------------------------------------------------------

NONE = -1  # no spin


class TabuTally:
    clock: int  # flips so far
    idle: int  # flips since the last improvement
    value: float  # of the current labelling
    best: float  # value of the best labelling
    round_off: float


class TabuState(NamedTuple):
    # spin, gain: the current labelling, and the gain of every flip
    spin: Floats
    gain: Floats
    until: Ints  # the flip count from which a spin may be flipped again
    best: Floats  # the best labelling since the last start
    tally: TabuTally
    random: Bits  # state of the random number generator


@inlined
def flip(couplings: SpinCouplings, spin: Floats, gain: Floats, i: int) -> None:
    spin[i] = -spin[i]
    gain[i] = -gain[i]
    twice = -4.0 * spin[i]
    for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
        j = couplings.nbr[e]
        gain[j] += twice * couplings.strength[e] * spin[j]


@inlined
def keep(state: TabuState) -> None:
    for i in range(len(state.spin)):
        state.best[i] = state.spin[i]


@inlined
def best_flip(state: TabuState, begin: int, end: int, chosen: int) -> int:
    """Return the best flip among some spins, or `chosen` if that is better."""
    # Tabu spins only count if flipping them gives a new best labelling (aspiration).
    gain, until, tally = state.gain, state.until, state.tally
    threshold = tally.best + tally.round_off
    most = gain[chosen] if chosen != NONE else -1e300
    for i in range(begin, end):
        if gain[i] > most and (until[i] <= tally.clock or tally.value + gain[i] > threshold):
            most = gain[i]
            chosen = i
    return chosen


@bare
def run_tabu(couplings: SpinCouplings, state: TabuState, n_free: int, tenure: int, n_flips: int, patience: int) -> int:
    """Repeatedly make the best flip that is not tabu, until `patience` flips bring no improvement; return the flips."""
    # Only the first `n_free` spins are flipped. They stay so for `tenure` flips, and up to half as many at random.
    # Ties go to the first spin after a random position.
    tally = state.tally
    done = 0
    while done < n_flips and tally.idle < patience:
        done += 1
        tally.clock += 1
        tally.idle += 1
        first = draw(state.random, n_free)
        i = best_flip(state, first, n_free, NONE)
        i = best_flip(state, 0, first, i)
        if i == NONE:
            continue
        tally.value += state.gain[i]
        flip(couplings, state.spin, state.gain, i)
        state.until[i] = tally.clock + tenure + draw(state.random, tenure // 2 + 1)
        if tally.value > tally.best + tally.round_off:
            tally.best = tally.value
            tally.idle = 0
            keep(state)
    return done


@bare
def relink(couplings: SpinCouplings, state: TabuState, target: Floats, least: int, most: int) -> float:
    """Walk towards another labelling, best flip first, and keep the best labelling on the path."""
    # Only labellings between `least` and `most` flips away from the start count. `best` receives the labelling, and its
    # gain over the start is returned.
    spin, gain = state.spin, state.gain
    total, best = 0.0, -1e300
    for step in range(1, most + 1):
        chosen = NONE
        for i in range(len(spin)):
            if spin[i] != target[i] and (chosen == NONE or gain[i] > gain[chosen]):
                chosen = i
        if chosen == NONE:
            break
        total += gain[chosen]
        flip(couplings, spin, gain, chosen)
        if step >= least and total > best:
            best = total
            keep(state)
    return best


# -- A binary pairwise model in spins of -1 (state 0) and 1 (state 1) -------------------------------------------------


@dataclass(frozen=True, eq=False)
class CoupledSpins:
    """Couplings of spins plus a constant, to be maximised; fields couple to an additional last spin fixed at 1."""

    n_vars: int  # variables of the model
    n: int  # number of spins: one more than variables if there are fields
    couplings: SpinCouplings  # the pairs of spins, listed at both ends
    constant: float  # constant part of the value of every labelling

    @classmethod
    def of(cls, problem: Problem) -> CoupledSpins:
        """Convert a pairwise model of binary variables."""
        # Forbidden entries get such a large loss that any labelling with one is worse than all without: if there is a
        # feasible labelling, the optimum is the same, and bounds hold for both.
        graph, n = problem.graph, problem.n_vars
        # Loss of a forbidden entry, relative to the sum of all potentials: above 2, no labelling can compensate it
        floor = -2.5 * max(graph.size, 1.0)
        i, j = problem.scope.reshape(-1, 2).astype(np.int64).T
        weight = problem.weight if len(problem.weight) else 1.0
        t00, t01, t10, t11 = (np.maximum(weight * graph.theta_t[problem.table_at + c], floor) / 4 for c in range(4))
        unary = np.maximum(graph.theta_v.reshape(-1, 2), floor)
        field = (unary[:, 1] - unary[:, 0]) / 2
        field += np.bincount(i, t10 + t11 - t00 - t01, n) + np.bincount(j, t01 + t11 - t00 - t10, n)
        constant = graph.constant + math.fsum(unary.ravel()) / 2 + math.fsum(t00 + t01 + t10 + t11)
        strength = t00 + t11 - t01 - t10
        with_field = np.flatnonzero(field)
        if len(with_field):
            i, j = np.append(i, with_field), np.append(j, np.full(len(with_field), n))
            strength = np.append(strength, field[with_field])
        n_spins = n + int(len(with_field) > 0)
        half = sparse.coo_array((strength, (i, j)), shape=(n_spins, n_spins))
        both = (half + half.T).tocsr()  # each pair at both ends, in ascending order
        both.sum_duplicates()
        both.eliminate_zeros()
        couplings = SpinCouplings(both.indptr.astype(np.int64), short(both.indices), both.data.astype(np.float64))
        return cls(n, n_spins, couplings, constant)

    @property
    def has_fields(self) -> bool:
        """Whether the last spin represents the fields."""
        return self.n > self.n_vars

    @property
    def work(self) -> int:
        """Number of couplings and spins visited by a sweep, at least 1."""
        return max(1, self.n + len(self.couplings.nbr))

    def labels(self, spin: Floats) -> Ints:
        sign = spin[self.n_vars] if self.has_fields else 1.0
        return np.asarray(spin[: self.n_vars] * sign > 0, dtype=np.int64)

    def spins(self, labels: Ints) -> Floats:
        spin = np.ones(self.n)
        spin[: self.n_vars] = 2.0 * labels - 1.0
        return spin

    def matrix(self) -> Floats:
        return dense_matrix(self.couplings)

    def unit(self) -> float:
        """Values of labellings differ by multiples of this; 0 if no such number was found."""
        strength = self.couplings.strength
        size = float(np.abs(strength).sum())
        return Granularity.of(2.0 * strength, len(strength), ROUND_OFF * size, 0.0).step


def dense_matrix(couplings: SpinCouplings) -> Floats:
    n = len(couplings.ptr) - 1
    matrix = np.zeros((n, n))
    matrix[np.repeat(np.arange(n), np.diff(couplings.ptr)), couplings.nbr] = couplings.strength
    return matrix


class SpinCouplings(NamedTuple):
    """Couplings in CSR form: those of spin i are in ``ptr[i] : ptr[i + 1]``."""

    # ptr, nbr: offsets of the spins' lists, and the neighbouring spins
    ptr: Ints
    nbr: Ints
    strength: Floats  # value of a pair if its spins are equal; the negative if they are not


@bare
def set_gains(couplings: SpinCouplings, spin: Floats, gain: Floats) -> float:
    """Compute the gain of every flip, and return the sum of all couplings."""
    total = 0.0
    for i in range(len(spin)):
        pull = 0.0
        for e in range(couplings.ptr[i], couplings.ptr[i + 1]):
            pull += couplings.strength[e] * spin[couplings.nbr[e]]
        gain[i] = -2.0 * spin[i] * pull
        total += spin[i] * pull
    return 0.5 * total
