"""Simulated annealing over the states of single variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.engines.moves.annealing_kernels import sweep_pairs, sweep_states
from mapmrf.engines.moves.flips import local_scale, make_field, place_at
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status

Rule = Literal["metropolis", "heat_bath"]

STEP_ENTRIES = 4_000_000
"""Table entries that one step looks at, at most: some 20 ms."""
QUENCH = 100
"""Sweeps at temperature 0 after a read, at most: they end when nothing changes."""
SHORT_QUENCH = 10
"""The same for a read that was cut short."""


@dataclass(frozen=True)
class Annealing(Method):
    """Change single variables at random, up always and down the less often the colder it gets; the best read counts.

    The temperature falls by the same factor from sweep to sweep, from `hot` to `cold` times a variable's mean stake,
    the ranges of the tables of all its factors together. Each read ends with sweeps at temperature 0 until nothing
    changes. Forbidden states (-inf) count as a loss larger than any finite one of a single change.

    Attributes
    ----------
    max_iterations
        Sweeps over all variables, of all reads together.
    reads
        Runs from hot to cold that share the sweeps equally. The first begins with the labelling given to `solve`, or
        else with the best state of every variable alone; all others with random labellings.
    hot, cold
        First and last temperature, in units of a variable's mean stake.
    rule
        ``metropolis`` proposes one other state and takes it or not; ``heat_bath`` draws from all states of a variable.
        Models of binary variables and pairs always use Metropolis.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> result = mapmrf.solve(graph, mapmrf.Annealing(reads=20), seed=3)
    >>> result.value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "annealing"
    title: ClassVar[str] = "simulated annealing of single variables"

    max_iterations: int = 10_000
    reads: int = 10
    hot: float = 0.3
    cold: float = 0.02
    rule: Rule = "metropolis"

    def __post_init__(self) -> None:
        check_choice(self, "rule", get_args(Rule))
        check_at_least(self, 1, "max_iterations", "reads")
        check_above(self, 0, "hot", "cold")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Scale the temperatures and lay the model out."""
        labels = initial.first_labels(problem.graph)
        reads = min(self.reads, self.max_iterations)
        ends = offsets(np.full(reads, self.max_iterations // reads) + (np.arange(reads) < self.max_iterations % reads))
        random = np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64)
        sweeps: _Pairs | _States
        if all(batch.shape == (2, 2) for batch in problem.batches) and np.all(problem.graph.card == 2):
            sweeps = _Pairs(problem, random)
        else:
            sweeps = _States(problem, random, self.rule == "heat_bath")
        sweeps.restart(labels)
        best, value = labels.copy(), problem.graph.value(labels)
        return _State(sweeps, ends, local_scale(problem), np.random.default_rng(seed), best, value)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Sweep for some milliseconds, at most to the end of a read."""
        end = int(state.ends[state.read + 1])
        n = max(1, min(end - state.sweeps_done, STEP_ENTRIES // state.sweeps.work))
        state.sweeps.run(self._temperatures(state, n))
        state.sweeps_done += n
        if state.sweeps_done == end:
            state.finish_read(problem)
        finished = Status.CONVERGED if state.read + 1 == len(state.ends) else None
        return Progress(state.sweeps_done, labels=state.best.copy(), value=state.value, finished=finished)

    def _temperatures(self, state: _State, n: int) -> Floats:
        """Temperatures of the next sweeps."""
        begin, end = int(state.ends[state.read]), int(state.ends[state.read + 1])
        passed = (state.sweeps_done - begin + np.arange(n)) / max(1, end - begin - 1)
        result: Floats = state.unit * self.hot * (self.cold / self.hot) ** passed
        return result

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best read; one that was cut short counts too, as it stands after a descent."""
        if state.read + 1 < len(state.ends) and state.sweeps_done > state.ends[state.read]:
            state.try_present(problem)
        return Answer(labels=state.best, details={"reads": float(state.read)})


@dataclass
class _State:
    """A run.

    Attributes
    ----------
    ends
        Sweeps done at the begin of every read, and at the end of the last.
    unit
        The temperatures' unit.
    """

    sweeps: _Pairs | _States
    ends: Ints
    unit: float
    random: np.random.Generator
    best: Ints
    value: float
    read: int = 0
    sweeps_done: int = 0

    def finish_read(self, problem: Problem) -> None:
        """Descend, keep the labelling if it is the best, and begin the next read."""
        self.descend(problem, QUENCH)
        self.read += 1
        if self.read + 1 < len(self.ends):
            self.sweeps.restart(self.random.integers(0, problem.graph.card))

    def descend(self, problem: Problem, most: int) -> None:
        """Sweep at temperature 0, at most so often, and keep the labelling if it is the best."""
        for _ in range(most):
            if self.sweeps.run(np.zeros(1)) == 0:
                break
        labels = self.sweeps.labels.astype(np.int64)
        value = problem.graph.value(labels)
        if value > self.value:
            self.best, self.value = labels, value

    def try_present(self, problem: Problem) -> None:
        """Descend from the present labelling and come back to it."""
        present = self.sweeps.labels.copy()
        self.descend(problem, SHORT_QUENCH)
        self.sweeps.restart(present)


class _Pairs:
    """Sweeps over a binary pairwise model, as a quadratic form in 0 and 1.

    Attributes
    ----------
    work
        Table entries that a sweep looks at, about.
    """

    def __init__(self, problem: Problem, random: Any) -> None:
        floor = make_field(problem, 1).floor
        graph, scope = problem.graph, problem.scope.reshape(-1, 2).astype(np.int64)
        theta = np.maximum(graph.theta_v, floor).reshape(-1, 2)
        entries = [np.maximum(graph.theta_t[problem.table_at + c], floor) for c in range(4)]
        ends = np.concatenate([scope[:, 0], scope[:, 1]])
        slope = np.concatenate([entries[2] - entries[0], entries[1] - entries[0]])
        self._field = theta[:, 1] - theta[:, 0] + np.bincount(ends, slope, problem.n_vars)
        order = np.argsort(ends, kind="stable")
        self._ptr = offsets(np.bincount(ends, minlength=problem.n_vars))
        self._nbr = short(np.concatenate([scope[:, 1], scope[:, 0]])[order])
        coupling = entries[0] + entries[3] - entries[1] - entries[2]
        self._coupling = np.concatenate([coupling, coupling])[order]
        self.labels, self._gain, self._random = (
            np.zeros(problem.n_vars, dtype=np.int8),
            np.zeros(problem.n_vars),
            random,
        )
        self.work = max(1, problem.n_vars + 2 * problem.n_factors)

    def restart(self, labels: Ints) -> None:
        """Begin anew at a labelling."""
        self.labels[:] = labels

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; returns the flips of the last sweep."""
        return int(
            sweep_pairs(
                temperatures, self._ptr, self._nbr, self._field, self._coupling, self.labels, self._gain, self._random
            )
        )


class _States:
    """Sweeps over any model."""

    def __init__(self, problem: Problem, random: Any, heat_bath: bool) -> None:
        self.problem, self._heat_bath, self._random = problem, heat_bath, random
        self._field: Any = make_field(problem, 1)
        self._weight = np.zeros(int(problem.graph.card.max(initial=1)))
        self.work = max(1, problem.n_states + problem.n_edge_states)

    @property
    def labels(self) -> Ints:
        """The labelling."""
        found: Ints = self._field.labels
        return found

    def restart(self, labels: Ints) -> None:
        """Begin anew at a labelling."""
        place_at(self.problem, self._field, labels)

    def run(self, temperatures: Floats) -> int:
        """Sweep once at every temperature; returns the changes of the last sweep."""
        return int(sweep_states(self._field, temperatures, self._heat_bath, self._weight, self._random))
