"""Restarts: iterated local search that kicks and repairs random regions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.engines.moves.flip_state import local_scale
from mapmrf.engines.moves.kicks import BlockKicks, SearchKicks
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class Restarts(Method):
    """Randomise the labels of a small region, repair the damage by local search, and keep the parts that are better.

    A kick randomises the labels of a random variable and those nearest to it. Local search repairs it, visiting only
    what has changed. The variables that differ in the end form connected parts that share no factor, and each part is
    accepted or rejected separately (partition crossover with the labelling before the kick).

    Attributes
    ----------
    max_iterations
        Maximum number of rounds. In a round, every variable is kicked once, on average.
    patience
        Rounds without improvement after which the run has converged.
    move
        Local search before the first kick and after each one: ``flips``, ``chains`` or ``blocks``.
    kick
        Maximum number of variables in a kick; sizes are drawn from 1 to this.
    temperature
        0 accepts only what is not worse. Above 0, worse parts are accepted with the Metropolis probability, at a
        temperature that falls from this multiple of a variable's mean stake to 0 over all rounds, and `patience` is
        ignored.
    depth
        For the move ``flips``: largest number of variables in a set.
    length
        For the move ``chains``: maximum number of flips in a chain.
    width
        For the move ``blocks``: base-2 logarithm of the largest table.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.Restarts(kick=10))
    >>> round(result.value, 6)
    55.647253
    """

    name: ClassVar[str] = "restarts"
    title: ClassVar[str] = "iterated local search: kick and repair random regions"
    family: ClassVar[str] = "local search"

    max_iterations: PositiveInt = 1000
    patience: PositiveInt = 50
    move: Literal["flips", "chains", "blocks"] = "chains"
    kick: PositiveInt = 100
    temperature: NonNegativeFloat = 0.0
    depth: PositiveInt = 2
    length: PositiveInt = 20
    width: NonNegativeFloat = 8.0

    def start(self, problem: Problem, seed: int, initial: Start) -> RestartsRun:
        labels = initial.first_labels(problem.graph)
        per_round = max(1, math.ceil(2 * problem.n_vars / (1 + min(self.kick, max(1, problem.n_vars)))))
        heat = self.temperature * local_scale(problem)
        crossover = Crossover(problem) if self.temperature > 0 else None
        best = Incumbent(problem.graph, labels)
        if self.move == "blocks":
            blocks = BlockKicks(problem, labels.copy(), self.kick, self.width, seed)
            return RestartsRun(blocks, per_round, heat, crossover, best)
        by_chains = self.move == "chains"
        search = ChainSearch(problem, self.length, 1, seed) if by_chains else FlipSearch(problem, self.depth)
        search.restart(labels)
        return RestartsRun(SearchKicks(problem, search, self.kick, seed), per_round, heat, crossover, best)

    def step(self, problem: Problem, state: RestartsRun) -> Progress:
        kicks = state.kicks
        end = (state.rounds + 1) * state.per_round
        if problem.n_vars > 0:
            kicks.run(pace.MOVES, end, state.heat * (1.0 - state.rounds / self.max_iterations))
        now = kicks.labels()
        if state.crossover is not None:
            mixed = state.best.labels.copy()
            state.crossover.fuse(mixed, now)
            now = mixed
        state.best.prefer(now)
        value = state.best.value
        if kicks.done >= end or problem.n_vars == 0:
            state.rounds += 1
            state.calm = 0 if value > state.value_before else state.calm + 1
            state.value_before = value
        patient = state.calm < self.patience or self.temperature > 0
        over = state.rounds >= self.max_iterations and self.temperature > 0
        finished = Status.CONVERGED if over or not patient else None
        return Progress(state.rounds, labels=state.best.labels, value=value, finished=finished)

    def answer(self, problem: Problem, state: RestartsRun) -> Answer:
        details = {"kicks": float(state.kicks.done), "kicks_taken": float(state.kicks.taken)}
        return Answer(labels=state.best.labels, details=details)


@dataclass
class RestartsRun:
    kicks: SearchKicks | BlockKicks
    per_round: int  # kicks per round
    heat: float  # the initial temperature
    crossover: Crossover | None  # merges the current labelling into the best one, where it can be worse
    best: Incumbent
    value_before: float = -math.inf
    rounds: int = 0
    calm: int = 0
