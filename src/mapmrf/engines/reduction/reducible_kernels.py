"""A model under reduction: it loses states, variables and factors in place, and never grows.

A factor keeps its slot of edges and a variable its slot in `nbr`, with live entries first. A message takes the slot of
a factor that it replaces, and each of its variables loses an edge before it gets one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.kernels.factor_tables import weight_of

NOTHING: Any = np.int64(-1)
"""Not a plain -1, for which numba would compile functions twice."""

ONE: Any = np.int64(1)
"""A 1 to begin a product with, for the same reason."""

COUNTERS = np.dtype(
    [
        ("queue_head", np.int64),
        ("n_queued", np.int64),
        ("pool_used", np.int64),
        ("n_choices", np.int64),
        ("n_logged", np.int64),
        ("log_scope", np.int64),
        ("work", np.int64),
        ("budget", np.int64),
        ("n_impossible", np.int64),
        ("n_dominated", np.int64),
        ("n_fixed", np.int64),
        ("constant", np.float64),
        ("feasible", np.bool_),
    ],
    align=True,
)
"""The scalars of a model under reduction: start and length of the queue; used lengths of the pool, the choices, the log
and its scopes; table entries read, and their limit; states removed as impossible and as dominated, and variables
fixed; the constant accumulated; whether every variable has a state."""


class ReducibleModel(NamedTuple):
    """The arrays of a model under reduction.

    Attributes
    ----------
    var_ptr, theta_v : (n_vars + 1,), (n_states,)
        Unary potentials; those of a live state may have become -inf while its variable is in the queue.
    n_alive, alive : (n_vars,), (n_states,)
        Number of remaining states of each variable, and these states, ascending, from ``var_ptr[i]`` on.
    stand_in : (n_states,)
        For a removed state, the state of its variable that is at least as good, or -1 if it was impossible.
    gone : (n_vars,)
        Whether a variable has been fixed or eliminated.
    scope_ptr, arity : (n_factors + 1,), (n_factors,)
        The slots of the factors' edges, and the number of live edges; a factor without any is removed.
    table_at : (n_factors,)
        Where a factor's table starts in `theta_t`, or the complement (``~``) of where it starts in `pool`.
    weight : (n_factors,)
        Weights of the factors' tables; empty if all weights are 1.
    scope, stride, factor_of, where : (n_edges,)
        Variable, stride in the table and factor of every edge, and its position in `nbr`.
    nbr_ptr, degree, nbr
        The edges of variable `i` are ``nbr[nbr_ptr[i]:][:degree[i]]``.
    queue, queued : (n_vars,)
        Ring buffer of variables to be processed.
    theta_t, pool
        The original tables, and new ones.
    counters : (1,)
        One record of the scalars: see `COUNTERS`.
    """

    var_ptr: Ints
    theta_v: Floats
    n_alive: Ints
    alive: Ints
    stand_in: Ints
    gone: Bools
    scope_ptr: Ints
    arity: Ints
    table_at: Ints
    weight: Floats
    scope: Ints
    stride: Ints
    factor_of: Ints
    where: Ints
    nbr_ptr: Ints
    degree: Ints
    nbr: Ints
    queue: Ints
    queued: Bools
    theta_t: Floats
    pool: Floats
    counters: NDArray[np.void]


class EliminationLog(NamedTuple):
    """The variables that have been eliminated, in order.

    Attributes
    ----------
    var : (n_vars,)
        The variables.
    ptr, scope, stride
        Variable ``var[t]`` depends on ``scope[ptr[t]:ptr[t + 1]]``, which are eliminated later, if at all.
    at, choice
        Its best states are stored in `choice` from ``at[t]`` on, in a table with these strides.
    """

    var: Ints
    ptr: Ints
    scope: Ints
    stride: Ints
    at: Ints
    choice: Ints


@compiled
def set_up(model: ReducibleModel) -> None:
    """Initialise arrays from var_ptr, theta_v, scope_ptr, scope and nbr_ptr: all states and edges are live."""
    var_ptr, scope_ptr = model.var_ptr, model.scope_ptr
    for i in range(len(model.n_alive)):
        for s in range(var_ptr[i + 1] - var_ptr[i]):
            model.alive[var_ptr[i] + s] = s
            model.stand_in[var_ptr[i] + s] = -1
        model.n_alive[i] = var_ptr[i + 1] - var_ptr[i]
        model.degree[i] = 0
        model.queue[i] = i
    for a in range(len(model.arity)):
        model.arity[a] = scope_ptr[a + 1] - scope_ptr[a]
        stride = 1
        for e in range(scope_ptr[a + 1] - 1, scope_ptr[a] - 1, -1):
            i = model.scope[e]
            model.stride[e] = stride
            stride *= var_ptr[i + 1] - var_ptr[i]
    for a in range(len(model.arity)):
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            i = model.scope[e]
            model.factor_of[e] = a
            at = model.nbr_ptr[i] + model.degree[i]
            model.nbr[at] = e
            model.where[e] = at
            model.degree[i] += 1


@inlined
def push(model: ReducibleModel, i: int) -> None:
    """Queue variable `i`, unless it is queued."""
    if not model.queued[i] and not model.gone[i]:
        model.queued[i] = True
        counters = model.counters[0]
        at = counters.queue_head + counters.n_queued
        model.queue[at if at < len(model.queue) else at - len(model.queue)] = i
        counters.n_queued += 1


@inlined
def pop(model: ReducibleModel) -> int:
    """Remove and return the next variable of the queue."""
    counters = model.counters[0]
    at = counters.queue_head
    i = model.queue[at]
    counters.queue_head = at + 1 if at + 1 < len(model.queue) else 0
    counters.n_queued -= 1
    model.queued[i] = False
    return int(i)


@bare
def push_neighbours(model: ReducibleModel, i: int) -> None:
    """Queue all variables that share a factor with `i`."""
    for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
        a = model.factor_of[model.nbr[at]]
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            if model.scope[e] != i:
                push(model, model.scope[e])


@bare
def detach(model: ReducibleModel, e: int) -> None:
    """Remove an edge from its variable and its factor; the last of each takes its position."""
    i, a = model.scope[e], model.factor_of[e]
    last = model.nbr[model.nbr_ptr[i] + model.degree[i] - 1]
    model.nbr[model.where[e]] = last
    model.where[last] = model.where[e]
    model.degree[i] -= 1
    model.arity[a] -= 1
    last = model.scope_ptr[a] + model.arity[a]
    if last != e:
        model.scope[e], model.stride[e], model.where[e] = model.scope[last], model.stride[last], model.where[last]
        model.nbr[model.where[e]] = e


@bare
def attach(model: ReducibleModel, a: int, i: int, stride: int) -> None:
    """Add variable `i` to factor `a`, in whose slot there is room."""
    e = model.scope_ptr[a] + model.arity[a]
    at = model.nbr_ptr[i] + model.degree[i]
    model.scope[e], model.stride[e], model.where[e] = i, stride, at
    model.nbr[at] = e
    model.arity[a] += 1
    model.degree[i] += 1


@bare
def drop_state(model: ReducibleModel, i: int, place: int, stand_in: int) -> None:
    """Remove the state at this position of `alive` from variable `i`."""
    first = model.var_ptr[i]
    model.stand_in[first + model.alive[first + place]] = stand_in
    if stand_in < 0:
        model.counters[0].n_impossible += 1
    else:
        model.counters[0].n_dominated += 1
    model.n_alive[i] -= 1
    for k in range(place, model.n_alive[i]):
        model.alive[first + k] = model.alive[first + k + 1]
    if model.n_alive[i] == 0:
        model.counters[0].feasible = False


@inlined
def drop_impossible(model: ReducibleModel, i: int) -> bool:
    """Remove the states of variable `i` whose unary potential is -inf; True if there were any."""
    before = model.n_alive[i]
    for place in range(before - 1, -1, -1):
        if model.theta_v[model.var_ptr[i] + model.alive[model.var_ptr[i] + place]] == -np.inf:
            drop_state(model, i, place, NOTHING)
    return bool(model.n_alive[i] < before)


@bare
def fix(model: ReducibleModel, i: int) -> None:
    """Remove a variable with one state left: its factors shrink, and those that become unary are absorbed."""
    state = model.alive[model.var_ptr[i]]
    model.counters[0].constant += model.theta_v[model.var_ptr[i] + state]
    model.counters[0].n_fixed += 1
    model.gone[i] = True
    while model.degree[i] > 0:
        e = model.nbr[model.nbr_ptr[i] + model.degree[i] - 1]
        a, shift = model.factor_of[e], model.stride[e] * state
        at = model.table_at[a]
        model.table_at[a] = at + shift if at >= 0 else ~(~at + shift)
        detach(model, e)
        for other in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            push(model, model.scope[other])
        if model.arity[a] == 1:
            absorb(model, a)


@bare
def absorb(model: ReducibleModel, a: int) -> None:
    """Add a unary factor to the unary potentials of its variable."""
    e = model.scope_ptr[a]
    j, stride = model.scope[e], model.stride[e]
    table, at = (model.theta_t, model.table_at[a]) if model.table_at[a] >= 0 else (model.pool, ~model.table_at[a])
    first, weight = model.var_ptr[j], weight_of(model.weight, a)
    for place in range(first, first + model.n_alive[j]):
        state = model.alive[place]
        model.theta_v[first + state] += weight * table[at + stride * state]
    detach(model, e)
