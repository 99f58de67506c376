"""Fusion: many local optima, recombined by partition crossover or minimum cuts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.flow.fusion_move import FusionMove, why_no_fusion
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.chains import ChainSearch, FlipSearch
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, NonNegativeFloat, NonNegativeInt, PositiveInt, Progress, Start
from mapmrf.run.result import Status

CALM = 2  # block passes without a change after which a labelling counts as a local optimum


@dataclass(frozen=True)
class Fusion(Method):
    """Find local optima from many random labellings, and merge the better parts of each into the incumbent.

    The variables in which two labellings differ form connected parts that share no factor. Choosing the better
    labelling for each part gives the best of all combinations, in linear time (partition crossover). The incumbent is
    crossed with every local optimum, then improved by local search, and crossed again with a pool of earlier optima
    until that no longer helps.

    Attributes
    ----------
    max_iterations
        Maximum number of starts; the smaller of this and `starts` applies.
    starts
        Number of local optima. The first is reached from the initial labelling, or else from the best unary state of
        every variable; all others from random labellings.
    descent
        Local search used: ``flips``, ``chains`` or ``blocks``.
    depth
        For ``flips``: largest number of variables in a set.
    length
        For ``chains``: maximum number of flips in a chain.
    width
        For ``blocks``: base-2 logarithm of the largest table.
    pool
        Number of local optima, the best so far, kept for crossing again.
    crossover
        ``partition``, or ``flow``: after the parts, every single variable may take the state of the other labelling. A
        minimum cut finds the best combination, or roof duality as much of it as it can. Pairwise models only.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.Fusion(starts=50))
    >>> round(result.value, 6)
    55.647253
    """

    name: ClassVar[str] = "fusion"
    title: ClassVar[str] = "local optima from many starts, recombined by partition crossover"
    family: ClassVar[str] = "graph cuts"

    max_iterations: PositiveInt = 1000
    starts: PositiveInt = 100
    descent: Literal["flips", "chains", "blocks"] = "chains"
    depth: PositiveInt = 3
    length: PositiveInt = 20
    width: NonNegativeFloat = 6.0
    pool: NonNegativeInt = 20
    crossover: Literal["partition", "flow"] = "partition"

    def supports(self, problem: Problem) -> str | None:
        return why_no_fusion(problem) if self.crossover == "flow" else None

    def start(self, problem: Problem, seed: int, initial: Start) -> FusionRun:
        labels = initial.first_labels(problem.graph)
        climb: Climb = _BlockSearch(problem, self.width, seed)
        if self.descent != "blocks":
            by_chains = self.descent == "chains"
            climb = ChainSearch(problem, self.length, 1, seed) if by_chains else FlipSearch(problem, self.depth)
        climb.restart(labels)
        best = Incumbent(problem.graph, labels)
        crossover = _FlowCrossover(problem) if self.crossover == "flow" else Crossover(problem)
        return FusionRun(problem, crossover, climb, best, np.random.default_rng(seed))

    def step(self, problem: Problem, state: FusionRun) -> Progress:
        work = 0
        while work < pace.MOVES:
            work += state.climb.run(pace.MOVES - work)
            if not state.climb.at_rest:
                break
            work += state.arrive(self.pool)
            if state.starts >= min(self.starts, self.max_iterations):
                break
        finished = Status.CONVERGED if state.starts >= self.starts else None
        return Progress(state.starts, labels=state.best.labels, value=state.best.value, finished=finished)

    def answer(self, problem: Problem, state: FusionRun) -> Answer:
        return Answer(labels=state.best.labels, details={"starts": float(state.starts)})


@dataclass
class FusionRun:
    problem: Problem
    crossover: Crossover | _FlowCrossover
    climb: Climb  # the current local search: from a random labelling, or from the incumbent if `polishing`
    best: Incumbent
    random: np.random.Generator
    # values and labellings of local optima, the best first
    pool: list[tuple[float, Ints]] = field(default_factory=list)
    polishing: bool = False
    starts: int = 0

    def arrive(self, room: int) -> int:
        """Cross a local optimum, start the next search, and return the approximate number of entries read."""
        found, before = self.climb.labels(), self.best.value
        self.cross(found)
        if not self.polishing:
            self.keep(found, room)
        crossed = self.best.value > before
        for _, other in self.pool if self.polishing or crossed else []:
            self.cross(other)
        if self.best.value > before:
            self.polishing = True
            self.climb.restart(self.best.labels)
        else:
            self.polishing = False
            self.starts += 1
            self.climb.restart(self.random.integers(0, self.problem.graph.card))
        # Approximate number of table entries that a crossover reads per state
        return 8 * len(self.problem.graph.theta_v) * (1 + len(self.pool))

    def cross(self, other: Ints) -> None:
        mixed = self.best.labels.copy()
        gain = self.crossover.fuse(mixed, other)
        if self.best.value == -math.inf:  # fewer violated constraints do not show in the value
            self.best.prefer(mixed)
        elif gain != 0.0:
            self.best.offer(mixed)

    def keep(self, labels: Ints, room: int) -> None:
        self.pool.append((self.best.evaluate(labels), labels))
        self.pool.sort(key=lambda item: -item[0])
        del self.pool[room:]


class _FlowCrossover:
    """Crossover by parts, then by a cut: roof duality may leave parts undecided that are better as a whole."""

    def __init__(self, problem: Problem) -> None:
        self.parts, self.cut = Crossover(problem), FusionMove(problem)

    def fuse(self, labels: Ints, other: Ints) -> float:
        gain = self.parts.fuse(labels, other)
        return gain + self.cut.fuse(labels, other)


class _BlockSearch:
    """Block passes until several in a row bring no change."""

    def __init__(self, problem: Problem, width: float, seed: int) -> None:
        self.blocks, self.width = BlockMoves(problem, seed), width
        self.now = np.zeros(problem.n_vars, dtype=np.int64)
        self.calm = 0

    @property
    def at_rest(self) -> bool:
        return self.calm >= CALM

    def restart(self, labels: Ints) -> None:
        self.now, self.calm = labels.astype(np.int64), 0

    def run(self, entries: int) -> int:
        """Make passes for about this many table entries; return the entries processed."""
        began = self.blocks.work
        while self.calm < CALM and self.blocks.work < began + entries:
            self.calm = self.calm + 1 if self.blocks.optimise(self.now, self.width) == 0 else 0
        return self.blocks.work - began

    def labels(self) -> Ints:
        return self.now.copy()


Climb = FlipSearch | ChainSearch | _BlockSearch
