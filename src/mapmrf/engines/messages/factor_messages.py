"""The factors of a problem with the messages from them to their variables, as kernels see them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.compilation.jit import inlined
from mapmrf.kernels.max_marginals import FactorScratch, form_top, table_top, weight_of
from mapmrf.kernels.pair_transforms import form_of
from mapmrf.model.problem import Problem


def edges_by_variable(scope: Ints, n_vars: int) -> tuple[Ints, Ints]:
    return offsets(np.bincount(scope, minlength=n_vars)), short(np.argsort(scope, kind="stable"))


class FactorMessages(NamedTuple):
    var_ptr: Ints  # (n_vars + 1,): offsets of the variables' blocks in `belief`
    # scope_ptr, scope: edges of every factor, and the variable of every edge
    scope_ptr: Ints
    scope: Ints
    # state_at, card_e, edge_ptr: per edge: where its variable's block starts in `belief`, the number of its states, and
    # where its own block starts in `lam`
    state_at: Ints
    card_e: Ints
    edge_ptr: Ints
    # table_at, theta_t: where each factor's table starts, and the tables; factors may share one
    table_at: Ints
    theta_t: Floats
    weight: Floats  # what the factors' tables are multiplied by; empty if all weights are 1
    # lam, belief: the messages, initially 0, and the beliefs, initially the unary potentials
    lam: Floats
    belief: Floats

    @classmethod
    def of(cls, problem: Problem) -> FactorMessages:
        graph = problem.graph
        return cls(
            var_ptr=short(graph.var_ptr),
            scope_ptr=short(problem.scope_ptr),
            scope=short(problem.scope),
            state_at=short(graph.var_ptr[problem.scope]),
            card_e=short(graph.card[problem.scope]),
            edge_ptr=short(problem.edge_ptr),
            table_at=short(problem.table_at),
            theta_t=graph.theta_t,
            weight=problem.weight,
            lam=np.zeros(problem.n_edge_states),
            belief=graph.theta_v.copy(),
        )


@inlined
def factor_top(a: int, first: int, arity: int, model: FactorMessages, scratch: FactorScratch) -> float:
    """Return the largest entry of a factor's table plus `given`; its edges are those from `first` on."""
    weight, form = weight_of(model.weight, a), form_of(scratch.pairs.forms, a)
    if form < 0:
        return table_top(model.theta_t, model.table_at[a], model.card_e, first, arity, weight, scratch)
    return form_top(form, weight, model.card_e[first], scratch)
