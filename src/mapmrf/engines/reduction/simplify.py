"""A smaller model with the same optimum: what is decided, dominated or easily maximised out is taken away."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mapmrf.arrays import Bools, Ints, segment_argmax
from mapmrf.engines.reduction.reduction import LabelMap, Reduction, ReductionCounts
from mapmrf.problem import Problem
from mapmrf.supervision import check_awaited

STEP_WORK = 3_000_000
"""Table entries that a step looks at: some hundredths of a second."""
FEW = 0.05
"""Share of the variables that must be easy to take away, or else a model of binary variables is left as it is."""


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum.

    Attributes
    ----------
    problem
        The smaller model.
    maps
        How labellings correspond, for each step of the reduction, the first first.
    feasible
        False if it is known that every labelling is worth -inf.
    counts
        What has been taken away, by reason.
    """

    problem: Problem
    maps: tuple[LabelMap, ...]
    feasible: bool = True
    counts: ReductionCounts = field(default_factory=ReductionCounts)

    def lift(self, labels: Ints) -> Ints:
        """A labelling of the small model as one of the whole model; what it says nothing about becomes the best."""
        for one in reversed(self.maps):
            labels = one.lift(labels)
        return labels

    def project(self, labels: Ints) -> Ints:
        """A labelling of the whole model as one of the small model; a state that is gone becomes one as good.

        ``lift(project(labels))`` is worth at least as much as `labels`, unless these have a state that was excluded by
        a bound.
        """
        for one in self.maps:
            labels = one.project(labels)
        return labels

    @cached_property
    def labels(self) -> Ints:
        """A labelling of the whole model, right for all variables that are decided."""
        graph = self.problem.graph
        return self.lift(segment_argmax(graph.theta_v, graph.var_ptr))


def simplify(problem: Problem, excluded: Bools | None = None) -> Simplified:
    """Take away whatever can be without a change of the optimum, by a limited amount of work.

    Again and again: states are dropped that hard constraints exclude or that another state of the variable is at least
    as good as whatever its neighbours do (Goldstein's criterion of dead-end elimination); variables with one state
    left are fixed; variables are maximised out if their factors become one with no more variables than one of them and
    no more entries than all of them: lone variables, hanging trees, variables in the middle of chains.

    Parameters
    ----------
    problem
        The model.
    excluded : (n_states,)
        States that no labelling of interest has, which go first: those of `persistency.excluded_states`.
    """
    steps = simplify_in_steps(problem, excluded)
    while True:
        check_awaited()
        try:
            next(steps)
        except StopIteration as end:
            simplified: Simplified = end.value
            return simplified


def simplify_in_steps(problem: Problem, excluded: Bools | None = None) -> Generator[None, None, Simplified]:
    """The same as a generator, which yields after some hundredths of a second each."""
    if problem.graph.constant == -np.inf:
        return Simplified(problem, (), feasible=False)
    if excluded is not None and not excluded.any():
        excluded = None
    if excluded is None and _is_stiff(problem):
        return Simplified(problem, ())
    yield
    reduction = Reduction(problem, excluded)
    while not reduction.advance(STEP_WORK):
        yield
    if not reduction.feasible or not reduction.worthwhile:
        return Simplified(problem, (), reduction.feasible)
    yield
    smaller = reduction.smaller()
    yield
    return Simplified(smaller, (reduction.label_map(),), counts=reduction.counts())


def _is_stiff(problem: Problem) -> bool:
    """Whether all variables are binary, and few in less than three factors or decided by their own potentials.

    A look at the tables is enough to see that; such models need not wait for the kernels to be compiled.
    """
    graph = problem.graph
    if problem.n_vars == 0 or np.any(graph.card != 2) or not problem.feasible_v.all():
        return False
    if any(batch.hard for batch in problem.batches):
        return False
    least = np.diff(graph.theta_v.reshape(-1, 2), axis=1)[:, 0]
    most = least.copy()
    for batch in problem.batches:
        starts, of = np.unique(batch.table_at, return_inverse=True)
        tables = graph.theta_t[starts[:, None] + np.arange(batch.n_configs)].reshape(-1, *batch.shape)
        for k in range(batch.arity):
            gain = np.diff(tables, axis=1 + k).reshape(len(starts), -1)
            low, high = gain.min(axis=1)[of], gain.max(axis=1)[of]
            if len(batch.weight):
                ends = batch.weight * low, batch.weight * high
                low, high = np.minimum(*ends), np.maximum(*ends)
            least += np.bincount(batch.scope[:, k], low, problem.n_vars)
            most += np.bincount(batch.scope[:, k], high, problem.n_vars)
    easy = (problem.degree < 3) | (least >= 0.0) | (most <= 0.0)
    return bool(np.mean(easy) < FEW)
