"""The incumbent of MPLP and LS-LP: candidates ascend before they are compared, and are crossed with the best."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.constrained_search import ConstrainedAscent
from mapmrf.engines.moves.crossover import Crossover
from mapmrf.engines.moves.local_search import Ascent
from mapmrf.model.problem import Problem
from mapmrf.run.clock import check_awaited
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Start


class ClimbingIncumbent:
    """The best labelling so far, improved by single-variable ascent and by crossover with every candidate."""

    most_rounds = math.inf

    def __init__(self, problem: Problem, start: Start, to_optimum: bool = False) -> None:
        # to_optimum: whether an ascent goes on to a local optimum, however many table entries that reads
        self.problem, self.to_optimum = problem, to_optimum
        self.ascent: Ascent | ConstrainedAscent = Ascent(problem)
        self.crossover = Crossover(problem, tol=0.0)
        self.best = None if start.labels is None else Incumbent(problem.graph, start.labels)
        self.at_optimum = False  # whether the incumbent is known to be a local optimum of single-variable ascent

    @property
    def labels(self) -> Ints | None:
        return None if self.best is None else self.best.labels

    @property
    def value(self) -> float:
        """Its value, -inf before the first candidate."""
        return -math.inf if self.best is None else self.best.value

    def offer(self, labels: Ints) -> Ints:
        """Ascend from a labelling, merge its better parts into the incumbent, and return where it led."""
        climbed = self.climb(labels)
        if self.best is None:
            self.best = Incumbent(self.problem.graph, climbed)
            self.at_optimum = self.ascent.at_optimum
            return climbed
        known = self.best.labels
        crossed = self.cross(known, climbed)
        if self.at_optimum and np.array_equal(crossed, known):
            return climbed  # no alternative states
        self.best.prefer(self.climb(crossed))
        if self.best.labels is not known:
            self.at_optimum = self.ascent.at_optimum
        return climbed

    def compare(self, labels: Ints) -> None:
        """Keep a labelling if none is better."""
        if self.best is None:
            self.best = Incumbent(self.problem.graph, labels)
        else:
            self.best.prefer(labels)

    def climb(self, labels: Ints) -> Ints:
        """Run single-variable ascent from a labelling, to a local optimum unless it reads too many entries."""
        self.ascent.restart(labels)
        self.ascent.run(1 << 60)
        rounds = 1
        while self.to_optimum and not self.ascent.at_optimum and rounds < self.most_rounds:
            check_awaited()
            self.ascent.run(1 << 60)
            rounds += 1
        return self.ascent.labels.copy()

    def cross(self, labels: Ints, other: Ints) -> Ints:
        """Return the labelling with every independent group of variables replaced where another labelling is better."""
        crossed = labels.copy()
        self.crossover.fuse(crossed, other)
        return crossed


class ConstrainedIncumbent(ClimbingIncumbent):
    """The best labelling under constraints, which the ascent respects; parts of two labellings depend on each other."""

    most_rounds = 100  # some 20 ms each: the ascent of a large model would take many minutes

    def __init__(self, problem: Problem, start: Start) -> None:
        super().__init__(problem, start, to_optimum=True)
        self.ascent = ConstrainedAscent(problem)

    def offer(self, labels: Ints) -> Ints:
        """Evaluate a labelling and its ascent, and return the latter."""
        climbed = self.climb(labels)
        for candidate in (labels, climbed):
            self.compare(candidate)
        return climbed
