"""Restarts: iterated local search, kicks of random regions and their repair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mapmrf.arrays import Ints
from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.engines.moves.flip_state import local_scale
from mapmrf.engines.moves.flips import FlipSearch
from mapmrf.engines.moves.kicks import BlockKicks, ChainKicks, FlipKicks
from mapmrf.incumbent import Incumbent
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status

Move = Literal["flips", "chains", "blocks"]

STEP_ENTRIES = 4_000_000
"""Table entries that one step reads, at most: some 20 ms."""


@dataclass(frozen=True)
class Restarts(Method):
    """Draw the labels of a small region at random, repair what that has broken, and keep the parts that are better.

    A kick draws the labels of a random variable and of those nearest to it. A local search repairs it, looking only
    where something has changed. What differs in the end falls into connected parts that share no factor: each is kept
    or taken back on its own (partition crossover with the labelling before the kick).

    Attributes
    ----------
    max_iterations
        Rounds. In a round every variable is kicked once, on average.
    patience
        Rounds without a better value after which the run has converged.
    move
        What comes before the first kick and repairs all others: ``flips``, ``chains`` or ``blocks``.
    kick
        Variables of the largest kick; sizes are drawn from 1 to this.
    temperature
        0 keeps what is not worse. Above 0, what is worse is kept as well with the Metropolis probability at a
        temperature that falls from this part of a variable's mean stake to 0 over all rounds, and patience is infinite.
    depth
        Of the move ``flips``: largest number of variables in a set.
    length
        Of the move ``chains``: flips of a chain.
    width
        Of the move ``blocks``: logarithm to base 2 of the entries of the largest table.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.Restarts(kick=10))
    >>> round(result.value, 6)
    55.647253
    """

    name: ClassVar[str] = "restarts"
    title: ClassVar[str] = "kicks of random regions and their repair (iterated local search)"
    family: ClassVar[str] = "local search"

    max_iterations: int = 1000
    patience: int = 50
    move: Move = "chains"
    kick: int = 100
    temperature: float = 0.0
    depth: int = 2
    length: int = 20
    width: float = 8.0

    def __post_init__(self) -> None:
        check_choice(self, "move", get_args(Move))
        check_at_least(self, 1, "max_iterations", "patience", "kick", "depth", "length")
        check_at_least(self, 0, "temperature", "width")

    def start(self, problem: Problem, seed: int, initial: Start) -> RestartsRun:
        """Begin with the labelling given, or with the best state of every variable alone."""
        labels = initial.first_labels(problem.graph)
        per_round = max(1, math.ceil(2 * problem.n_vars / (1 + min(self.kick, max(1, problem.n_vars)))))
        heat = self.temperature * local_scale(problem)
        crossover = Crossover(problem) if self.temperature > 0 else None
        best = Incumbent(problem.graph, labels)
        return RestartsRun(self._kicks(problem, labels, seed), per_round, heat, crossover, best)

    def _kicks(self, problem: Problem, labels: Ints, seed: int) -> FlipKicks | ChainKicks | BlockKicks:
        """The kicks with the repair that was asked for."""
        if self.move == "blocks":
            return BlockKicks(problem, labels.copy(), self.kick, self.width, seed)
        if self.move == "chains":
            chains = ChainSearch(problem, self.length, 1, seed)
            chains.restart(labels)
            return ChainKicks(problem, chains, self.kick, seed)
        flips = FlipSearch(problem, self.depth)
        flips.restart(labels)
        return FlipKicks(problem, flips, self.kick, seed)

    def step(self, problem: Problem, state: RestartsRun) -> Progress:
        """Kick for some milliseconds, at most to the end of a round."""
        kicks = state.kicks
        end = (state.rounds + 1) * state.per_round
        if problem.n_vars > 0:
            kicks.run(STEP_ENTRIES, end, state.heat * (1.0 - state.rounds / self.max_iterations))
        value = state.update_best()
        if kicks.done >= end or problem.n_vars == 0:
            state.rounds += 1
            state.calm = 0 if value > state.value_before else state.calm + 1
            state.value_before = value
        patient = state.calm < self.patience or self.temperature > 0
        over = state.rounds >= self.max_iterations and self.temperature > 0
        finished = Status.CONVERGED if over or not patient else None
        return Progress(state.rounds, labels=state.best.labels, value=value, finished=finished)

    def answer(self, problem: Problem, state: RestartsRun) -> Answer:
        """The best labelling."""
        details = {"kicks": float(state.kicks.done), "kicks_taken": float(state.kicks.taken)}
        return Answer(labels=state.best.labels, details=details)


@dataclass
class RestartsRun:
    """A run.

    Attributes
    ----------
    per_round
        Kicks of a round.
    heat
        The first temperature.
    crossover
        For crossing the best labelling with the present one, where that can be worse.
    best
        The best labelling.
    """

    kicks: FlipKicks | ChainKicks | BlockKicks
    per_round: int
    heat: float
    crossover: Crossover | None
    best: Incumbent
    value_before: float = -math.inf
    rounds: int = 0
    calm: int = 0

    def update_best(self) -> float:
        """Let the best labelling take over all that the present one has better; returns its value."""
        now = self.kicks.labels()
        if self.crossover is not None:
            mixed = self.best.labels.copy()
            self.crossover.fuse(mixed, now)
            now = mixed
        self.best.prefer(now)
        return self.best.value
