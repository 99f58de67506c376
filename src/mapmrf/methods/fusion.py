"""Fusion: many local optima, recombined by partition crossover."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.blocks import Moves
from mapmrf.engines.moves.flips import ChainSearch, Descent
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status

Optimum = Literal["flips", "chains", "blocks"]

STEP_ENTRIES = 4_000_000
"""Table entries that one step looks at, at most: some 20 ms."""
PER_STATE = 8
"""Table entries that a crossing reads for every state of a variable, about."""
CALM = 2
"""Block passes without a change after which a labelling counts as a local optimum."""


@dataclass(frozen=True)
class Fusion(Method):
    """Descend from many random labellings, and let the best one take whatever any of them has better.

    The variables in which two labellings differ fall into connected parts that share no factor. The better choice for
    each part gives the best of all combinations of the two, in linear time (partition crossover). The best labelling is
    crossed with every local optimum, then improved by a descent of its own, and crossed again with a pool of earlier
    optima until that helps no more.

    Attributes
    ----------
    max_iterations
        Starts, at most; there are as many as the smaller of this and `starts`.
    starts
        Local optima. The first is from the labelling given to `solve`, or else from the best state of every variable
        alone; all others are from random labellings.
    descent
        What kind of local optimum: ``flips``, ``chains`` or ``blocks``.
    depth
        Of ``flips``: largest number of variables in a set.
    length
        Of ``chains``: flips of a chain.
    width
        Of ``blocks``: logarithm to base 2 of the entries of the largest table.
    pool
        Local optima that are kept for crossing again, the best ones seen.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), mapmrf.Fusion(starts=50))
    >>> round(result.value, 6)
    55.647253
    """

    name: ClassVar[str] = "fusion"
    title: ClassVar[str] = "local optima from many starts, recombined by partition crossover"

    max_iterations: int = 1000
    starts: int = 100
    descent: Optimum = "chains"
    depth: int = 3
    length: int = 20
    width: float = 6.0
    pool: int = 20

    def __post_init__(self) -> None:
        check_choice(self, "descent", get_args(Optimum))
        check_at_least(self, 1, "max_iterations", "starts", "depth", "length")
        check_at_least(self, 0, "width", "pool")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Begin with the labelling given, or with the best state of every variable alone."""
        labels = initial.first_labels(problem.graph)
        state = _State(problem, Moves(problem, seed), self._climb(problem, seed), labels, problem.graph.value(labels))
        state.climb.restart(labels)
        return state

    def _climb(self, problem: Problem, seed: int) -> Climb:
        """The descent that was asked for."""
        if self.descent == "flips":
            return Descent(problem, self.depth)
        if self.descent == "chains":
            return ChainSearch(problem, self.length, 1, seed)
        return _Passes(problem, self.width, seed)

    def step(self, problem: Problem, state: _State) -> Progress:
        """Descend for some milliseconds; at the end of a descent, cross."""
        work = 0
        while work < STEP_ENTRIES:
            work += state.climb.run(STEP_ENTRIES - work)
            if not state.climb.at_rest:
                break
            work += state.arrive(self.pool)
            if state.starts >= min(self.starts, self.max_iterations):
                break
        finished = Status.CONVERGED if state.starts >= self.starts else None
        return Progress(state.starts, labels=state.best.copy(), value=state.value, finished=finished)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling."""
        return Answer(labels=state.best, details={"starts": float(state.starts)})


@dataclass
class _State:
    """A run.

    Attributes
    ----------
    climb
        The descent under way: from a random labelling, or of the best one if `mending`.
    pool
        Values and labellings of local optima, the best first.
    starts
        Local optima that have been crossed.
    """

    problem: Problem
    moves: Moves
    climb: Climb
    best: Ints
    value: float
    pool: list[tuple[float, Ints]] = field(default_factory=list)
    mending: bool = False
    starts: int = 0

    def arrive(self, room: int) -> int:
        """Cross at the end of a descent and begin the next one; returns the entries read, about."""
        found, before = self.climb.labels(), self.value
        self.cross(found)
        if not self.mending:
            self.keep(found, room)
        crossed = self.value > before
        for _, other in self.pool if self.mending or crossed else []:
            self.cross(other)
        if self.value > before:
            self.mending = True
            self.climb.restart(self.best)
        else:
            self.mending = False
            self.starts += 1
            self.climb.restart(self.moves.random.integers(0, self.problem.graph.card))
        return PER_STATE * len(self.problem.graph.theta_v) * (1 + len(self.pool))

    def cross(self, other: Ints) -> None:
        """Let the best labelling take all parts of another that are better."""
        mixed = self.best.copy()
        if self.moves.fuse(mixed, other) == 0.0 and self.value > -math.inf:
            return
        value = self.problem.graph.value(mixed)
        if value > self.value or self.value == -math.inf:
            self.best, self.value = mixed, value

    def keep(self, labels: Ints, room: int) -> None:
        """Put a local optimum into the pool, and let the worst go."""
        self.pool.append((self.problem.graph.value(labels), labels))
        self.pool.sort(key=lambda item: -item[0])
        del self.pool[room:]


class _Passes:
    """Block passes until some bring no change."""

    def __init__(self, problem: Problem, width: float, seed: int) -> None:
        self.moves, self.width = Moves(problem, seed), width
        self.now = np.zeros(problem.n_vars, dtype=np.int64)
        self.calm = 0

    @property
    def at_rest(self) -> bool:
        """Whether the last passes changed nothing."""
        return self.calm >= CALM

    def restart(self, labels: Ints) -> None:
        """Begin anew at a labelling."""
        self.now, self.calm = labels.astype(np.int64), 0

    def run(self, entries: int) -> int:
        """Make passes for about so many table entries; returns the entries."""
        began = self.moves.work
        while self.calm < CALM and self.moves.work < began + entries:
            self.calm = self.calm + 1 if self.moves.block_pass(self.now, self.width) == 0 else 0
        return self.moves.work - began

    def labels(self) -> Ints:
        """The labelling."""
        return self.now.copy()


Climb = Descent | ChainSearch | _Passes
