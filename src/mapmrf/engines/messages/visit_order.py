"""The order in which sequential passes visit the variables, and how a belief is shared among factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.messages.neighbours import Neighbours
from mapmrf.engines.messages.srmp_kernels import BETWEEN, FIRST, LAST
from mapmrf.engines.messages.visit_order_kernels import breadth_first, peel_variables
from mapmrf.problem import Problem

VariableOrder = Literal["given", "trees_last", "breadth_first"]


@dataclass(frozen=True)
class VisitOrder:
    """The order in which variables are visited, and how a belief is shared.

    Attributes
    ----------
    seq, rank : (n_vars,)
        The variables in order, and the place of each variable in it.
    omega, keep : (n_vars,)
        Share of its belief that a variable gives to each factor that comes next, and what it keeps for itself in a
        backward pass; in the order of the visits.
    role : (n_edges,)
        Whether the edge's variable is the first, the last or another one of its factor.
    """

    seq: Ints
    rank: Ints
    omega: Floats
    keep: Floats
    role: Ints

    @classmethod
    def build(cls, problem: Problem, order: VariableOrder) -> VisitOrder:
        """Put the variables of a problem in order and weigh them.

        A belief is shared by n_between + max(n_first, n_last) factors: Kolmogorov's weights. Variables that hang on
        trees, put last, give all they have towards the core; factors that hang on a variable do not count.
        """
        seq, peeled, hanging = _order(problem, order)
        rank = np.empty_like(seq)
        rank[seq] = np.arange(problem.n_vars)
        role = _roles(problem, rank)
        first = np.bincount(problem.scope[role == FIRST], minlength=problem.n_vars)
        if all(batch.arity == 2 for batch in problem.batches):
            last = problem.degree - first
        else:
            last = np.bincount(problem.scope[role == LAST], minlength=problem.n_vars)
        n_back = problem.degree - first
        if hanging.any():
            loose = (role == FIRST) & np.repeat(hanging, np.diff(problem.scope_ptr))
            first -= np.bincount(problem.scope[loose], minlength=problem.n_vars)
        n_shares = np.where(peeled, 1, np.maximum(1, n_back - last + np.maximum(first, last)))
        return cls(seq, rank, (1.0 / n_shares)[seq], ((n_shares - n_back) / n_shares)[seq], role)


def _order(problem: Problem, order: VariableOrder) -> tuple[Ints, Bools, Bools]:
    """The variables in order, which of them hang on trees, and which factors hang on a variable."""
    seq = np.arange(problem.n_vars)
    peeled = np.zeros(problem.n_vars, dtype=bool)
    hanging = np.zeros(problem.n_factors, dtype=bool)
    if order == "given" or (order == "trees_last" and not np.any(problem.degree == 1)):
        return seq, peeled, hanging
    scope_ptr, scope, neighbours = problem.scope_ptr, problem.scope, Neighbours.of(problem)
    removed = np.empty(problem.n_vars, dtype=np.int64)
    n_removed = peel_variables(scope_ptr, scope, neighbours, removed, peeled, hanging)
    if order == "breadth_first":
        breadth_first(scope_ptr, scope, neighbours, seq)
    core = seq[~peeled[seq]]
    return np.concatenate([core, removed[:n_removed][::-1]]), peeled, hanging


def _roles(problem: Problem, rank: Ints) -> Ints:
    """Role of every edge's variable in its factor."""
    role = np.full(problem.n_edges, BETWEEN, dtype=np.int8)
    for batch in problem.batches:
        places = rank[batch.scope]
        mine = role[batch.edges].reshape(batch.n, batch.arity)
        if batch.arity == 2:
            mine[:, 0] = np.where(places[:, 0] < places[:, 1], FIRST, LAST)
            mine[:, 1] = FIRST + LAST - mine[:, 0]
            continue
        rows = np.arange(batch.n)
        mine[rows, places.argmin(axis=1)] = FIRST
        mine[rows, places.argmax(axis=1)] = LAST
    return role
