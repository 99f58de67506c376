"""Interchangeable states: if constraints only require variables to differ, states can be renamed."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.model.problem import Problem


def interchangeable(problem: Problem) -> Ints:
    """Return the largest set of states that are interchangeable under the hard constraints, possibly empty.

    All hard factors must be inequalities between two variables with the same number of states. States are
    interchangeable if they are forbidden for the same variables.
    """
    none: Ints = np.zeros(0, dtype=np.int64)
    hard = [batch for batch in problem.batches if batch.hard]
    if not hard or any(batch.shape != hard[0].shape or batch.arity != 2 for batch in hard):
        return none
    n = hard[0].shape[0]
    if n < 3 or hard[0].shape[1] != n:
        return none
    for batch in hard:
        tables = np.unique(batch.table_at)[:, None] + np.arange(n * n)
        forbidden = np.isneginf(problem.graph.theta_t[tables])
        if np.any(forbidden != np.eye(n, dtype=bool).ravel()):
            return none
    involved = np.unique(np.concatenate([batch.scope.ravel() for batch in hard]))
    allowed: Bools = problem.feasible_v[problem.graph.var_ptr[involved][:, None] + np.arange(n)]
    _, kind = np.unique(allowed, axis=1, return_inverse=True)
    kind = kind.ravel()
    return np.flatnonzero(kind == np.argmax(np.bincount(kind)))


def renamed_away(problem: Problem, states: Ints, variables: Ints, labels: Ints) -> Ints:
    """Return what may be forbidden to break the symmetry of interchangeable `states`: entries of arrays per state.

    Along any list of variables, the states can be renamed in the order of their first occurrence. So the first variable
    has the first of them, or another state, the second has one of the first two, and so on. The order of the states
    follows `labels`, where these differ.
    """
    order: list[int] = []
    for wanted in [*labels[variables].tolist(), *states.tolist()]:
        if wanted in states and wanted not in order:
            order.append(wanted)
    ranked = np.array(order, dtype=np.int64)
    first = problem.graph.var_ptr[variables[: len(ranked)]]
    out = [at + ranked[k + 1 :] for k, at in enumerate(first.tolist())]
    return np.concatenate([*out, np.zeros(0, dtype=np.int64)])
