"""One pass of cost shifting between variables and factors."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined


class ShiftedModel(NamedTuple):
    """The structure of a model whose factors have a table each.

    Attributes
    ----------
    card, var_ptr
        Number of states of every variable, and where its unary potentials start.
    nbr_ptr, factor_of, stride_of
        The edges of every variable: their factors, and the strides of the variable in these factors' tables.
    scope_ptr, scope
        The variables of every factor.
    table_ptr
        Where the factors' tables start.
    """

    card: Ints
    var_ptr: Ints
    nbr_ptr: Ints
    factor_of: Ints
    stride_of: Ints
    scope_ptr: Ints
    scope: Ints
    table_ptr: Ints


@inlined
def take_marginals(i: int, e: int, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats) -> None:
    """Move the max-marginals of a factor at its edge `e` into the unary potentials of variable `i`."""
    at_v, n_k, stride = model.var_ptr[i], model.card[i], model.stride_of[e]
    first, last = model.table_ptr[model.factor_of[e]], model.table_ptr[model.factor_of[e] + 1]
    for k in range(n_k):
        gathered[k] = -np.inf
    for t in range(first, last):
        k = (t - first) // stride % n_k
        gathered[k] = max(gathered[k], theta_f[t])
    for k in range(n_k):
        theta_v[at_v + k] += gathered[k]
        if gathered[k] == -np.inf:
            gathered[k] = 0.0
    for t in range(first, last):
        theta_f[t] -= gathered[(t - first) // stride % n_k]


@inlined
def rank_range(a: int, rank: Ints, model: ShiftedModel) -> tuple[int, int]:
    """The smallest and the largest rank of a factor's variables."""
    least = rank[model.scope[model.scope_ptr[a]]]
    most = least
    for at in range(model.scope_ptr[a] + 1, model.scope_ptr[a + 1]):
        least, most = min(least, rank[model.scope[at]]), max(most, rank[model.scope[at]])
    return least, most


@compiled
def shift_costs(
    order: Ints, rank: Ints, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats, labels: Ints
) -> None:
    """Run one sequential pass of cost shifting between variables and factors, in place.

    Each variable takes the max-marginals of all its factors and gives an equal share to those that have a variable
    later in the order. The bound sum_i max theta_i + sum_a max theta_a does not rise in a forward and backward pass.
    `labels` receives the best state of every variable when it holds all the max-marginals.
    """
    factor_of, table_ptr = model.factor_of, model.table_ptr
    for i in order:
        at_v, n_k = model.var_ptr[i], model.card[i]
        n_in, n_out = 0, 0
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            least, most = rank_range(factor_of[e], rank, model)
            n_in += least < rank[i]
            n_out += most > rank[i]
            take_marginals(i, e, model, theta_v, theta_f, gathered)
        labels[i] = 0
        for k in range(1, n_k):
            if theta_v[at_v + k] > theta_v[at_v + labels[i]]:
                labels[i] = k
        if n_out == 0:
            continue
        share = 1.0 / max(n_in, n_out)
        for k in range(n_k):
            gathered[k] = share * theta_v[at_v + k]
            if gathered[k] > -np.inf:
                theta_v[at_v + k] -= n_out * gathered[k]
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            a, stride = factor_of[e], model.stride_of[e]
            if rank_range(a, rank, model)[1] > rank[i]:
                for t in range(table_ptr[a], table_ptr[a + 1]):
                    theta_f[t] += gathered[(t - table_ptr[a]) // stride % n_k]


@compiled
def collect_marginals(
    order: Ints, model: ShiftedModel, theta_v: Floats, theta_f: Floats, gathered: Floats
) -> None:  # fmt: skip
    """Move the max-marginals of its factors to every variable, one after another; the bound does not rise."""
    for i in order:
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            take_marginals(i, e, model, theta_v, theta_f, gathered)
