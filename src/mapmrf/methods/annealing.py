"""Simulated annealing over the states of single variables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.engines.moves.annealing import AnnealingSweeps, new_sweeps
from mapmrf.engines.moves.flip_state import local_scale
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, PositiveFloat, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class Annealing(Method):
    """Anneal single variables: accept gains always, and losses less and less often as the temperature falls.

    The temperature decreases geometrically from sweep to sweep, from `hot` to `cold` times a variable's mean stake,
    which is the sum of the ranges of its factors' tables. Each read ends with sweeps at temperature 0 until nothing
    changes, and the best read counts. Forbidden states (-inf) count as a loss larger than any finite loss of a single
    change.

    Attributes
    ----------
    max_iterations
        Maximum number of sweeps over all variables, over all reads.
    reads
        Independent runs from hot to cold, which share the sweeps equally. The first starts from the initial labelling,
        or else from the best unary state of every variable; all others start from random labellings.
    hot, cold
        Initial and final temperature, in units of a variable's mean stake.
    rule
        ``metropolis`` proposes one other state and accepts or rejects it; ``heat_bath`` samples from all states of a
        variable. Models of binary variables and pairs always use Metropolis.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> result = mapmrf.solve(graph, mapmrf.Annealing(reads=20), seed=3)
    >>> result.value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "annealing"
    title: ClassVar[str] = "simulated annealing with single-variable moves"
    family: ClassVar[str] = "local search"

    max_iterations: PositiveInt = 10_000
    reads: PositiveInt = 10
    hot: PositiveFloat = 0.3
    cold: PositiveFloat = 0.02
    rule: Literal["metropolis", "heat_bath"] = "metropolis"

    def start(self, problem: Problem, seed: int, initial: Start) -> AnnealingRun:
        labels = initial.first_labels(problem.graph)
        reads = min(self.reads, self.max_iterations)
        ends = offsets(np.full(reads, self.max_iterations // reads) + (np.arange(reads) < self.max_iterations % reads))
        sweeps = new_sweeps(problem, self.rule == "heat_bath", seed)
        sweeps.restart(labels)
        best = Incumbent(problem.graph, labels)
        return AnnealingRun(sweeps, ends, local_scale(problem), np.random.default_rng(seed), best)

    def step(self, problem: Problem, state: AnnealingRun) -> Progress:
        end = int(state.ends[state.read + 1])
        n = max(1, min(end - state.sweeps_done, pace.MOVES // state.sweeps.work))
        state.sweeps.run(self.temperatures(state, n))
        state.sweeps_done += n
        if state.sweeps_done == end:
            # Maximum number of sweeps at temperature 0 after a read; they end early when nothing changes
            state.best.offer(state.quench(100))
            state.read += 1
            if state.read + 1 < len(state.ends):
                state.sweeps.restart(state.random.integers(0, problem.graph.card))
        finished = Status.CONVERGED if state.read + 1 == len(state.ends) else None
        return Progress(state.sweeps_done, labels=state.best.labels, value=state.best.value, finished=finished)

    def temperatures(self, state: AnnealingRun, n: int) -> Floats:
        begin, end = int(state.ends[state.read]), int(state.ends[state.read + 1])
        passed = (state.sweeps_done - begin + np.arange(n)) / max(1, end - begin - 1)
        result: Floats = state.unit * self.hot * (self.cold / self.hot) ** passed
        return result

    def answer(self, problem: Problem, state: AnnealingRun) -> Answer:
        """The best read; an unfinished read also counts, after a quench."""
        labels = state.best.labels
        if state.read + 1 < len(state.ends) and state.sweeps_done > state.ends[state.read]:
            present = state.sweeps.labels()
            quenched = state.quench(10)  # maximum number of them for a read that was cut short
            state.sweeps.restart(present)  # the read goes on undisturbed
            labels = quenched if state.best.evaluate(quenched) > state.best.value else labels
        return Answer(labels=labels, details={"reads": float(state.read)})


@dataclass
class AnnealingRun:
    sweeps: AnnealingSweeps  # the annealed labelling
    ends: Ints  # number of sweeps before every read, and in total
    unit: float
    random: np.random.Generator
    best: Incumbent
    read: int = 0
    sweeps_done: int = 0

    def quench(self, most: int) -> Ints:
        """Sweep at temperature 0 until nothing changes, at most `most` times; return the labelling."""
        for _ in range(most):
            if self.sweeps.run(np.zeros(1)) == 0:
                break
        return self.sweeps.labels()
