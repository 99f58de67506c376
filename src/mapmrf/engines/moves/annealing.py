"""Sweeps of simulated annealing over a labelling."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.compilation.jit import settled
from mapmrf.engines.moves.annealing_kernels import BinaryForm, sweep_pairs, sweep_states
from mapmrf.engines.moves.flip_state import floor_of, new_flip_state, set_labels
from mapmrf.engines.moves.random_kernels import seeded
from mapmrf.model.problem import Problem


class AnnealingSweeps(Protocol):
    """Sweeps over the variables of a model."""

    work: int
    """Approximate number of table entries read per sweep."""

    def labels(self) -> Ints:
        """Return the labelling."""

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; return the number of changes in the last sweep."""


def new_sweeps(problem: Problem, heat_bath: bool, seed: int) -> AnnealingSweeps:
    """Create sweeps over a model; models of binary variables and pairs always use Metropolis."""
    if all(batch.shape == (2, 2) for batch in problem.batches) and np.all(problem.graph.card == 2):
        return PairSweeps(problem, seed)
    return StateSweeps(problem, heat_bath, seed)


class PairSweeps:
    """Sweeps over a binary pairwise model, as a quadratic form in 0 and 1.

    Attributes
    ----------
    gain : (n_vars,)
        Gain of every flip, after a run.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self._form = quadratic_form(problem)
        self._random = seeded(seed)
        self._labels = np.zeros(problem.n_vars, dtype=np.int8)
        self.gain = np.zeros(problem.n_vars)
        self.work = max(1, problem.n_vars + 2 * problem.n_factors)

    def labels(self) -> Ints:
        """Return the labelling."""
        return self._labels.astype(np.int64)

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""
        self._labels[:] = labels

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; return the number of flips in the last sweep."""
        return int(sweep_pairs(self._form, temperatures, self._labels, self.gain, self._random))


class StateSweeps:
    """Sweeps over any model."""

    def __init__(self, problem: Problem, heat_bath: bool, seed: int) -> None:
        self.problem, self._heat_bath = problem, heat_bath
        self._random = seeded(seed)
        self._state = new_flip_state(problem, 1)
        self._weight = np.zeros(int(problem.graph.card.max(initial=1)))
        self._sweep = settled(sweep_states)
        self.work = max(1, problem.n_states + problem.n_edge_states)

    def labels(self) -> Ints:
        """Return the labelling."""
        return self._state.labels.copy()

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""
        set_labels(self.problem, self._state, labels)

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; return the number of changes in the last sweep."""
        return int(self._sweep(self._state, temperatures, self._heat_bath, self._weight, self._random))


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
