"""A smaller model with the same optimum: what is decided, dominated or easily maximised out is taken away."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapmrf.arrays import Ints, segment_argmax
from mapmrf.methods._reduction import Reduction, Step
from mapmrf.problem import Problem


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum.

    Attributes
    ----------
    problem
        The smaller model.
    steps
        How it came about, the first step first.
    feasible
        False if it is known that every labelling is worth -inf.
    """

    problem: Problem
    steps: tuple[Step, ...]
    feasible: bool = True

    def whole(self, labels: Ints) -> Ints:
        """A labelling of the small model as one of the whole model; what it says nothing about becomes the best."""
        for step in reversed(self.steps):
            labels = step.whole(labels)
        return labels

    def part(self, labels: Ints) -> Ints:
        """A labelling of the whole model as one of the small model; a state that is gone becomes one as good.

        ``whole(part(labels))`` is worth at least as much as `labels`.
        """
        for step in self.steps:
            labels = step.part(labels)
        return labels

    @cached_property
    def labels(self) -> Ints:
        """A labelling of the whole model, right for all variables that are decided."""
        graph = self.problem.graph
        return self.whole(segment_argmax(graph.theta_v, graph.var_ptr))


def simplify(problem: Problem) -> Simplified:
    """Take away whatever can be without a change of the optimum, by a limited amount of work.

    Again and again: states are dropped that hard constraints exclude or that another state of the variable is at least
    as good as whatever its neighbours do (Goldstein's criterion of dead-end elimination); variables with one state
    left are fixed; variables are maximised out if their factors become one with no more variables than one of them and
    no more entries than all of them: lone variables, hanging trees, variables in the middle of chains.
    """
    if problem.graph.constant == -np.inf:
        return Simplified(problem, (), feasible=False)
    reduction = Reduction(problem)
    if not reduction.feasible or not reduction.worthwhile:
        return Simplified(problem, (), reduction.feasible)
    return Simplified(reduction.smaller(), (reduction.step(),))
