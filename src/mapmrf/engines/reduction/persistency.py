"""Dual persistency: states that a dual bound excludes from all labellings as good as the incumbent."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Floats, largest_size, segment_max
from mapmrf.model.graph import ROUND_OFF
from mapmrf.model.problem import Batch, Problem

BLOCK_ENTRIES = 1 << 20
"""Table entries processed at a time."""


def excluded_states(problem: Problem, bounds: Floats, value: float) -> Bools:
    """Return the states that are in no labelling of at least `value`: their bound is lower by more than round-off.

    All optimal labellings remain if some labelling attains `value`. The state with the largest bound always stays, so
    that every variable keeps one.

    Parameters
    ----------
    problem
        The problem.
    bounds : (n_states,)
        Upper bounds on the labellings with each state: see `belief_bounds` and `dual_bounds`.
    value
        Value of the incumbent.

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 3], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> problem = Problem.compile(graph)
    >>> excluded_states(problem, dual_bounds(problem, np.zeros(4)), graph.value([1, 1])).tolist()
    [True, False, False, False]
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

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 3], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> belief_bounds(Problem.compile(graph), graph.theta_v, 4.0).tolist()
    [1.0, 4.0, 4.0, 4.0]
    """
    graph = problem.graph
    best = segment_max(beliefs, graph.var_ptr)
    if not np.all(best > -np.inf):  # a variable without a possible state
        return np.full(problem.n_states, -np.inf)
    return np.asarray(bound - (np.repeat(best, graph.card) - beliefs))


def dual_bounds(problem: Problem, lam_e: Floats) -> Floats:
    """Compute upper bounds on the labellings with each state, (n_states,), from the messages of `polytope.dual_bound`.

    A state lowers the bound by its loss at its variable and at each of its factors.

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 3], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> dual_bounds(Problem.compile(graph), np.zeros(4)).tolist()
    [1.0, 4.0, 4.0, 4.0]
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
