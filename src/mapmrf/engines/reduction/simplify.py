"""Simplification: a smaller model with the same optimum, without decided, dominated and easily eliminated parts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mapmrf.arrays import Bools, Ints, segment_argmax
from mapmrf.engines.reduction.reduction import LabelMap, Reduction, ReductionCounts
from mapmrf.model.problem import Problem
from mapmrf.run.calls import check_awaited

STEP_WORK = 3_000_000
"""Table entries read per step: some hundredths of a second."""
FEW = 0.05
"""Minimum share of easily removed variables for a binary model to be simplified."""


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum.

    Attributes
    ----------
    problem
        The smaller model.
    maps
        Mappings of labellings, one per step of the reduction, in order.
    feasible
        False if every labelling is known to have value -inf.
    counts
        What has been removed, by reason.
    """

    problem: Problem
    maps: tuple[LabelMap, ...]
    feasible: bool = True
    counts: ReductionCounts = field(default_factory=ReductionCounts)

    def lift(self, labels: Ints) -> Ints:
        """Lift a labelling of the reduced model to the original one; removed variables take their best states."""
        for one in reversed(self.maps):
            labels = one.lift(labels)
        return labels

    def project(self, labels: Ints) -> Ints:
        """Project a labelling of the original model to the reduced one; removed states are replaced by ones as good.

        The value of ``lift(project(labels))`` is at least that of `labels`, unless these have a state that was excluded
        by a bound.
        """
        for one in self.maps:
            labels = one.project(labels)
        return labels

    @cached_property
    def labels(self) -> Ints:
        """A labelling of the original model that is correct for all decided variables."""
        graph = self.problem.graph
        return self.lift(segment_argmax(graph.theta_v, graph.var_ptr))


def simplify(problem: Problem, excluded: Bools | None = None) -> Simplified:
    """Simplify a model without changing its optimum, with limited work.

    Repeatedly, states are removed that hard constraints exclude or that another state of the variable dominates
    whatever its neighbours are (Goldstein's criterion of dead-end elimination); variables with one state left are
    fixed; variables are maximised out if their factors become one with no more variables than one of them and no more
    entries than all of them: isolated variables, pendant trees, inner variables of chains.

    Parameters
    ----------
    problem
        The model.
    excluded : (n_states,)
        States that no labelling of interest has, which are removed first: those of `persistency.excluded_states`.
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
    """Simplify in steps of some hundredths of a second each, as a generator."""
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
    """Return whether all variables are binary, and few are in fewer than three factors or decided by unary potentials.

    This is visible from the tables, so that such models need not wait for kernels to be compiled.
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
