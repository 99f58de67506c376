"""The factors of a problem with the messages from them to their variables, as kernels see them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.compilation.jit import inlined
from mapmrf.kernels.max_marginals import FactorScratch, table_top, weight_of
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
def factor_top(a: int, model: FactorMessages, scratch: FactorScratch) -> float:
    """Return the largest entry of a factor's table plus `given`."""
    first = model.scope_ptr[a]
    form, weight, arity = form_of(scratch.pairs.forms, a), weight_of(model.weight, a), model.scope_ptr[a + 1] - first
    return table_top(form, model.theta_t, model.table_at[a], model.card_e, first, arity, weight, scratch)


@inlined
def best_completions(a: int, own: int, model: FactorMessages, labels: Ints, scratch: FactorScratch) -> None:
    """Fill `out` with the best entry of a factor's table plus `given` for every state of the variable at edge `own`.

    Variables that have a label are fixed at it; labels of others are negative.
    """
    scope, card_e, given, out = model.scope, model.card_e, scratch.given, scratch.out
    state, start, weight = scratch.state, scratch.start, weight_of(model.weight, a)
    first, last = model.scope_ptr[a], model.scope_ptr[a + 1]
    place, n_free, step = 0, 1, 1
    for e in range(first, last):
        start[e - first] = place
        place += card_e[e]
        state[e - first] = max(0, labels[scope[e]])
        if labels[scope[e]] < 0 and e != own:
            n_free *= card_e[e]
    for e in range(last - 1, own, -1):
        step *= card_e[e]
    for s in range(card_e[own]):
        out[s] = -np.inf
    state[own - first] = 0
    for _ in range(n_free):
        at, stride, before = model.table_at[a], 1, 0.0
        for e in range(last - 1, first - 1, -1):
            at += stride * state[e - first]
            stride *= card_e[e]
        for k in range(own - first):
            before += given[start[k] + state[k]]
        for s in range(card_e[own]):
            total = before + given[start[own - first] + s]
            for k in range(own - first + 1, last - first):
                total += given[start[k] + state[k]]
            out[s] = max(out[s], weight * model.theta_t[at + s * step] + total)
        for e in range(last - 1, first - 1, -1):  # the next configuration of the free variables
            if e != own and labels[scope[e]] < 0:
                state[e - first] += 1
                if state[e - first] < card_e[e]:
                    break
                state[e - first] = 0
