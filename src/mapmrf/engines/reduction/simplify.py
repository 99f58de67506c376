"""Simplification: a smaller model with the same optimum, without decided, dominated and easily eliminated parts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, largest_size, segment_argmax, segment_max
from mapmrf.engines.reduction.reduction import LabelMap, Reduction, ReductionCounts
from mapmrf.model.graph import ROUND_OFF
from mapmrf.model.problem import Batch, Problem
from mapmrf.run import pace
from mapmrf.run.calls import check_awaited

FEW = 0.05  # minimum share of easily removed variables for a binary model to be simplified


@dataclass(frozen=True, eq=False)
class Simplified:
    """A smaller model with the same optimum."""

    problem: Problem  # the smaller model
    maps: tuple[LabelMap, ...]  # mappings of labellings, one per step of the reduction, in order
    feasible: bool = True  # false if every labelling is known to have value -inf
    counts: ReductionCounts = field(default_factory=ReductionCounts)  # what has been removed, by reason

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
    while not reduction.advance(pace.REDUCTION):
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


# -- Dual persistency: states that a dual bound excludes from all labellings as good as the incumbent -----------------

BLOCK_ENTRIES = 1 << 20  # table entries processed at a time


def excluded_states(problem: Problem, bounds: Floats, value: float) -> Bools:
    """Return the states that are in no labelling of at least `value`: their bound is lower by more than round-off.

    All optimal labellings remain if some labelling attains `value`. The state with the largest bound always stays, so
    that every variable keeps one.
    """
    graph = problem.graph
    size = largest_size(bounds[np.isfinite(bounds)]) + (abs(value) if np.isfinite(value) else 0.0)
    margin = 2 * graph.round_off(0.0) + ROUND_OFF * size * (1 + problem.n_vars.bit_length())
    best = np.repeat(segment_max(bounds, graph.var_ptr), graph.card)
    return np.asarray((bounds < value - margin) & (bounds < best))


def belief_bounds(problem: Problem, beliefs: Floats, bound: float) -> Floats:
    """Compute upper bounds on the labellings with each state, (n_states,), from beliefs of a reparametrisation.

    They are ``bound - (max_k' m_i(k') - m_i(k))``, where `m_i` are the reparametrised unary potentials of a variable,
    or its max-marginals in the reparametrised model, and `bound` is the bound of the reparametrisation.
    """
    graph = problem.graph
    best = segment_max(beliefs, graph.var_ptr)
    if not np.all(best > -np.inf):  # a variable without a possible state
        return np.full(problem.n_states, -np.inf)
    return np.asarray(bound - (np.repeat(best, graph.card) - beliefs))


def dual_bounds(problem: Problem, lam_e: Floats) -> Floats:
    """Compute upper bounds on the labellings with each state, (n_states,), from the messages of `polytope.dual_bound`.

    A state lowers the bound by its loss at its variable and at each of its factors.
    """
    graph = problem.graph
    lost_e = np.empty(problem.n_edge_states)
    total = graph.constant
    for batch in problem.batches:
        step = max(1, BLOCK_ENTRIES // batch.n_configs)
        for begin in range(0, batch.n, step):
            total += _factor_losses(problem, batch, slice(begin, min(begin + step, batch.n)), lam_e, lost_e)
    theta = graph.theta_v - np.bincount(problem.edge_state_at, weights=lam_e, minlength=problem.n_states)
    best = segment_max(theta, graph.var_ptr)
    total += float(best.sum())
    if total == -np.inf:
        return np.full(problem.n_states, -np.inf)
    lost = np.bincount(problem.edge_state_at, weights=lost_e, minlength=problem.n_states)
    return np.asarray(total - (np.repeat(best, graph.card) - theta) - lost)


def _factor_losses(problem: Problem, batch: Batch, rows: slice, lam_e: Floats, lost_e: Floats) -> float:
    """Return the sum of the best entries of some factors, and write each state's loss in its factor to `lost_e`."""
    n = rows.stop - rows.start
    table = batch.tables(problem.graph.theta_t, rows)
    given = lam_e[batch.edge_states].reshape(batch.n, -1)[rows]
    out = lost_e[batch.edge_states].reshape(batch.n, -1)[rows]
    for k in range(batch.arity):
        table = table + given[:, batch.state_at[k] + batch.config[:, k]]
    best = table.max(axis=1)
    table = table.reshape(n, *batch.shape)
    finite = np.where(best > -np.inf, best, 0.0)[:, None]
    for k in range(batch.arity):
        others = tuple(1 + j for j in range(batch.arity) if j != k)
        out[:, batch.state_at[k] : batch.state_at[k + 1]] = finite - table.max(axis=others)
    return float(best.sum())
