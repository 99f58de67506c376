"""Sweeps of simulated annealing over a labelling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.compilation.jit import compiled, inlined, predispatched
from mapmrf.engines.moves.flip_state import FlipState, floor_of, new_flip_state, set_labels, set_state, sum_row
from mapmrf.kernels.random_numbers import UNIT, Bits, draw, seeded
from mapmrf.model.problem import Problem
from mapmrf.run import pace

NEVER = -44.0  # exponents below this are rejected without a random number: exp(-44) is less than 2**-63
SIGNIFICANT = 1e-12  # at temperature 0, a gain must exceed this fraction of the terms that it is a difference of


class BinaryForm(NamedTuple):
    """A model of binary variables and pairs: ``sum_i slope_i x_i + sum_ij coupling_ij x_i x_j`` and a constant.

    Every coupling stands in the rows of both its variables: those of `i` are at ``ptr[i]:ptr[i + 1]``.
    """

    ptr: Ints
    nbr: Ints
    slope: Floats
    coupling: Floats


def new_sweeps(problem: Problem, heat_bath: bool, seed: int) -> AnnealingSweeps:
    """Create sweeps over a model; models of binary variables and pairs always use Metropolis."""
    if all(batch.shape == (2, 2) for batch in problem.batches) and np.all(problem.graph.card == 2):
        return PairSweeps(problem, seed)
    return StateSweeps(problem, heat_bath, seed)


class PairSweeps:
    """Sweeps over a binary pairwise model, as a quadratic form in 0 and 1."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self._form = quadratic_form(problem)
        self._random = seeded(seed)
        self._labels = np.zeros(problem.n_vars, dtype=np.int8)
        self.field = np.zeros(problem.n_vars)  # (n_vars,): gain of state 1 over state 0, after a run
        self.work = max(1, problem.n_vars + 2 * problem.n_factors)  # approximate number of table entries read per sweep

    def labels(self) -> Ints:
        return self._labels.astype(np.int64)

    def restart(self, labels: Ints) -> None:
        self._labels[:] = labels

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; return the number of flips in the last sweep."""
        return int(sweep_pairs(self._form, temperatures, self._labels, self.field, self._random))

    def spread(self) -> float:
        """Mean over the variables of the root of their summed squared couplings: the scale of useful temperatures."""
        form = self._form
        ends = np.repeat(np.arange(len(self._labels)), np.diff(form.ptr))
        return float(np.sqrt(np.bincount(ends, form.coupling**2, len(self._labels))).mean())


class StateSweeps:
    def __init__(self, problem: Problem, heat_bath: bool, seed: int) -> None:
        self.problem, self._heat_bath = problem, heat_bath
        self._random = seeded(seed)
        self._state = new_flip_state(problem, 1)
        self._weight = np.zeros(int(problem.graph.card.max(initial=1)))
        self._sweep = predispatched(sweep_states)
        self.work = max(1, problem.n_states + problem.n_edge_states)

    def labels(self) -> Ints:
        return self._state.labels.copy()

    def restart(self, labels: Ints) -> None:
        set_labels(self.problem, self._state.labels, self._state.place, labels)

    def run(self, temperatures: Floats) -> int:
        return int(self._sweep(self._state, temperatures, self._heat_bath, self._weight, self._random))


AnnealingSweeps = PairSweeps | StateSweeps


class AnnealingReads:
    """Reads of growing length over a binary pairwise model, without end.

    Some start from random labellings, the others from the best one known, less hot.
    """

    # in units of the spread of the couplings: temperatures of a random labelling, of the best one, and of the end
    hot, warm, cold = 0.4, 0.16, 0.035
    first, growth = 64, 1.3  # sweeps of the first read, and by how many times later ones are longer
    every = 4  # one read of so many starts from a random labelling

    def __init__(self, problem: Problem, seed: int) -> None:
        self._sweeps, self._random = PairSweeps(problem, seed), np.random.default_rng(seed)
        self._spread = self._sweeps.spread()

    def run(self, best: Callable[[], Ints]) -> Iterator[list[Ints]]:
        """Yield the labellings of reads that ended in a step; `best` gives the best labelling known."""
        sweeps, work = self._sweeps, 0
        found: list[Ints] = []
        some = max(1, pace.MOVES // sweeps.work)
        length = float(self.first)
        for read in count():
            at_random = read % self.every == 0
            start = best()
            sweeps.restart(self._random.integers(0, 2, len(start)) if at_random else start)
            begin = self.hot if at_random else self.warm
            temperatures = self._spread * np.geomspace(begin, self.cold, int(length))
            at = 0
            while at < len(temperatures):
                part = temperatures[at : at + max(1, some - work)]
                sweeps.run(part)
                at, work = at + len(part), work + len(part)
                if work >= some:
                    yield found
                    found, work = [], 0
            for _ in range(100):
                work += 1
                if sweeps.run(np.zeros(1)) == 0:
                    break
            found.append(sweeps.labels())
            length *= self.growth


def quadratic_form(problem: Problem) -> BinaryForm:
    """Write a binary pairwise model as a quadratic form; forbidden entries count as a large loss."""
    floor = floor_of(problem, 1)
    graph, scope = problem.graph, problem.scope.reshape(-1, 2).astype(np.int64)
    theta = np.maximum(graph.theta_v, floor).reshape(-1, 2)
    weight = problem.weight if len(problem.weight) else 1.0
    entries = [np.maximum(weight * graph.theta_t[problem.table_at + c], floor) for c in range(4)]
    ends = np.concatenate([scope[:, 0], scope[:, 1]])
    slope = np.concatenate([entries[2] - entries[0], entries[1] - entries[0]])
    order = np.argsort(ends, kind="stable")
    coupling = entries[0] + entries[3] - entries[1] - entries[2]
    return BinaryForm(
        ptr=offsets(np.bincount(ends, minlength=problem.n_vars)),
        nbr=short(np.concatenate([scope[:, 1], scope[:, 0]])[order]),
        slope=theta[:, 1] - theta[:, 0] + np.bincount(ends, slope, problem.n_vars),
        coupling=np.concatenate([coupling, coupling])[order],
    )


@compiled
def sweep_pairs(form: BinaryForm, temperatures: Floats, labels: Ints, field: Floats, random: Bits) -> int:
    """Metropolis sweeps over binary variables, one per temperature; flips of the last sweep. `field` is scratch."""
    for i in range(len(labels)):
        slope = form.slope[i]
        for e in range(form.ptr[i], form.ptr[i + 1]):
            slope += form.coupling[e] * labels[form.nbr[e]]
        field[i] = slope
    flips = 0
    x = random[0]  # the generator's state stays in a register: this loop does little else
    for temperature in temperatures:
        beta = 1.0 / temperature if temperature > 0.0 else np.inf
        flips = 0
        for i in range(len(labels)):
            shift = 1.0 - 2.0 * labels[i]
            g = shift * field[i]
            if g <= 0.0:
                if temperature == 0.0 or g * beta < NEVER:
                    continue
                x ^= x << np.uint64(13)
                x ^= x >> np.uint64(7)
                x ^= x << np.uint64(17)
                if np.exp(g * beta) * UNIT <= np.float64(x >> np.uint64(11)):
                    continue
            elif temperature == 0.0 and g <= SIGNIFICANT * abs(form.slope[i]):
                continue
            flips += 1
            labels[i] = 1 - labels[i]
            for e in range(form.ptr[i], form.ptr[i + 1]):
                field[form.nbr[e]] += shift * form.coupling[e]
    random[0] = x
    return flips


@inlined
def best_label(score: Floats, row: int, n_k: int, old: int) -> int:
    """Return the state with the highest score, the current one unless another is significantly better."""
    new = old
    for k in range(n_k):
        least = SIGNIFICANT * (abs(score[row + k]) + abs(score[row + new]))
        if score[row + k] > score[row + new] + least:
            new = k
    return new


@inlined
def heat_bath_label(score: Floats, row: int, n_k: int, temperature: float, weight: Floats, random: Bits) -> int:
    """Draw a state from the Boltzmann distribution of the scores; `weight` is scratch."""
    top = -np.inf
    for k in range(n_k):
        top = max(top, score[row + k])
    total = 0.0
    for k in range(n_k):
        total += np.exp((score[row + k] - top) / temperature)
        weight[k] = total
    level = total * (draw(random, 1 << 53) / UNIT)
    new = 0
    while new < n_k - 1 and weight[new] <= level:
        new += 1
    return new


@inlined
def metropolis_label(score: Floats, row: int, n_k: int, old: int, temperature: float, random: Bits) -> int:
    """Draw another state uniformly; return it if the Metropolis rule accepts it, else the current one."""
    new: int = draw(random, n_k - 1)
    new += 1 if new >= old else 0
    power = (score[row + new] - score[row + old]) / temperature
    if power < 0.0 and (power < NEVER or np.exp(power) <= draw(random, 1 << 53) / UNIT):
        new = old
    return new


@compiled
def sweep_states(state: FlipState, temperatures: Floats, heat_bath: bool, weight: Floats, random: Bits) -> int:
    """Sweeps over the variables of any model, by Metropolis or heat bath, one per temperature; changes of the last."""
    # The scores are summed afresh first; `weight` is scratch.
    score = state.score
    for i in range(len(state.labels)):
        sum_row(state, i)
    changes = 0
    for temperature in temperatures:
        changes = 0
        for i in range(len(state.labels)):
            n_k, row, old = state.model.card[i], state.model.var_ptr[i], state.labels[i]
            if n_k == 1:
                continue
            if temperature == 0.0:
                new = best_label(score, row, n_k, old)
            elif heat_bath:
                new = heat_bath_label(score, row, n_k, temperature, weight, random)
            else:
                new = metropolis_label(score, row, n_k, old, temperature, random)
            if new != old:
                changes += 1
                set_state(state, i, new, 0)
    return changes
