"""What the parts of `auto` have found together: the best labelling, the best bound, and how many iterations it took."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mapmrf.arrays import Ints
from mapmrf.method import Progress
from mapmrf.problem import Problem
from mapmrf.result import Status, relative_gap


@dataclass
class Standing:
    """Where a run stands.

    Attributes
    ----------
    problem
        The whole model.
    labels, value
        The best labelling of it and what that is worth.
    bound
        The best upper bound.
    iterations
        Iterations done.
    details
        Figures for the result.
    """

    problem: Problem
    labels: Ints
    value: float = field(init=False)
    bound: float = math.inf
    iterations: int = 0
    details: dict[str, float] = field(default_factory=dict)
    _told: float = -math.inf

    def __post_init__(self) -> None:
        self.value = self.problem.graph.value(self.labels)

    @property
    def gap(self) -> float:
        """Relative gap between bound and value."""
        gap = relative_gap(self.value, self.bound, self.problem.graph.unit)
        return math.inf if gap is None else gap

    def offer(self, labels: Ints) -> None:
        """Keep a labelling if it is the best so far."""
        value = self.problem.graph.value(labels)
        if value > self.value:
            self.labels, self.value = labels.copy(), value

    def note(self, bound: float | None) -> None:
        """Keep a bound if it is the best so far."""
        if bound is not None:
            self.bound = min(self.bound, bound)

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        """What the loop is told: the bound, and the labelling if it is better than the last one told."""
        labels = self.labels if self.value > self._told else None
        self._told = self.value
        bound = self.bound if self.bound < math.inf else None
        return Progress(self.iterations, labels=labels, bound=bound, finished=finished, phase=phase)

    def worked(self, phase: str, finished: Status | None = None) -> Progress:
        """The same after a step that counts as an iteration."""
        self.iterations += 1
        return self.progress(phase, finished)

    def proven(self, phase: str, bound: float) -> Progress:
        """The same at the end: the optimum is known to be `bound`, or -inf if there is no solution."""
        self.bound = max(bound, self.value)
        return self.worked(phase, Status.OPTIMAL if self.bound > -math.inf else Status.INFEASIBLE)
