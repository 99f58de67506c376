"""Block moves: repeated exact optimisation over large low-width parts of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.blocks import PER_VARIABLE, BlockMoves
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Start
from mapmrf.run.result import Status

REGION = 50_000  # maximum number of variables from which a block is chosen: planning it takes some tenths of a second


@dataclass(frozen=True)
class Blocks(Method):
    """Optimise most variables jointly and exactly, given the rest; then repeat with another choice of the rest.

    A pass eliminates the variables of the model one after another, cheapest first, and freezes a variable at its
    current label wherever a table would grow too large. The remaining model has a small induced width and is solved by
    dynamic programming. Every pass draws a new random order, so that other variables are frozen.

    Attributes
    ----------
    max_iterations
        Maximum number of passes over the model.
    width
        Base-2 logarithm of the largest table: 2 optimises over trees of a binary model.
    patience
        Passes without a change of value after which the run has converged.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> first = mapmrf.solve(graph, "icm")
    >>> mapmrf.solve(graph, mapmrf.Blocks(width=6), initial=first).value > first.value
    True
    """

    name: ClassVar[str] = "blocks"
    title: ClassVar[str] = "block moves: exact optimisation over low-width parts"
    family: ClassVar[str] = "local search"

    max_iterations: PositiveInt = 1000
    width: NonNegativeFloat = 10.0
    patience: PositiveInt = 20

    def start(self, problem: Problem, seed: int, initial: Start) -> BlocksRun:
        labels = initial.first_labels(problem.graph)
        return BlocksRun(BlockMoves(problem, seed), labels, problem.graph.value(labels))

    def step(self, problem: Problem, state: BlocksRun) -> Progress:
        work = 0
        while True:
            work += self._move(problem, state)
            if len(state.unseen):  # within a pass, the loop evaluates the labelling
                if work >= pace.ADDITIONS:
                    return Progress(state.passes, labels=state.labels.copy())
                continue
            state.passes += 1
            value = problem.graph.value(state.labels)
            state.calm = 0 if value > state.value else state.calm + 1
            state.value = value
            rest = state.calm >= self.patience
            if rest or state.passes >= self.max_iterations or work >= pace.ADDITIONS:
                break
        finished = Status.CONVERGED if rest else None
        return Progress(state.passes, labels=state.labels.copy(), value=value, finished=finished)

    def _move(self, problem: Problem, state: BlocksRun) -> int:
        """Optimise one block, on large models around a variable not yet seen in this pass; return the work."""
        moves, before, region = state.moves, state.moves.work, None
        if problem.n_vars > REGION:
            if len(state.unseen) == 0:
                state.unseen = moves.random.permutation(problem.n_vars)
            region = moves.neighbourhood(REGION, int(state.unseen[0]))
            seen = np.zeros(problem.n_vars, dtype=bool)
            seen[region] = True
            state.unseen = state.unseen[~seen[state.unseen]]
            region = moves.random.permutation(region)
        moves.optimise(state.labels, self.width, region)
        # a pass that freezes every variable still counts as complete
        return max(moves.work - before, PER_VARIABLE * (problem.n_vars if region is None else len(region)))

    def answer(self, problem: Problem, state: BlocksRun) -> Answer:
        return Answer(labels=state.labels, details={"passes": float(state.passes)})


@dataclass
class BlocksRun:
    moves: BlockMoves
    labels: Ints
    value: float
    passes: int = 0
    calm: int = 0
    unseen: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
