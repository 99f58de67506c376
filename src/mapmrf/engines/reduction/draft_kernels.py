"""A model under reduction: it loses states, variables and factors in place, and nothing in it ever grows.

A factor keeps its slot of edges and a variable its slot in `nbr`; what is alive stands at the front of a slot. A
message takes the slot of a factor that it replaces, and every variable of it has lost an edge before it gets one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.kernels.jit import bare, compiled, inlined

HEAD, QUEUED, POOL, CHOICES, LOGGED, LOG_SCOPE, WORK, BUDGET, FEASIBLE = range(9)
"""Places in `tally`: the queue's first place and its length; what is used of pool, choices, log and its scopes; table
entries looked at and how many may be; whether every variable has a state."""

N_TALLY = 9

NOTHING = np.int64(-1)
"""Not a plain -1, for which numba would compile functions twice."""

ONE = np.int64(1)
"""A 1 to begin a product with, for the same reason."""


class Draft(NamedTuple):
    """The arrays of a model under reduction.

    Attributes
    ----------
    var_ptr, theta_v : (n_vars + 1,), (n_states,)
        Unary potentials; those of a state that is alive may have become -inf while its variable is in the queue.
    n_alive, alive : (n_vars,), (n_states,)
        Number of states left to each variable, and these states, ascending, from ``var_ptr[i]`` on.
    stand_in : (n_states,)
        For a state that is gone the state of its variable that is at least as good, or -1 if it was impossible.
    gone : (n_vars,)
        Whether a variable has been fixed or eliminated.
    scope_ptr, arity : (n_factors + 1,), (n_factors,)
        The slots of the factors' edges, and how many of them are alive; a factor without any is gone.
    table_at : (n_factors,)
        Where a factor's table starts in `theta_t`, or the complement (``~``) of where it starts in `pool`.
    scope, stride, factor_of, where : (n_edges,)
        Variable, stride in the table, factor of every edge, and its place in `nbr`.
    nbr_ptr, degree, nbr
        The edges of variable `i` are ``nbr[nbr_ptr[i]:][:degree[i]]``.
    queue, queued : (n_vars,)
        Variables to look at again, in a ring.
    theta_t, pool
        The tables given, and those made.
    constant : (1,)
        What is decided is worth this much.
    tally
        Counters: see above.
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
    constant: Floats
    tally: Ints


class Log(NamedTuple):
    """The variables that have been eliminated, in order.

    Attributes
    ----------
    var : (n_vars,)
        The variables.
    ptr, scope, stride
        Variable ``var[t]`` depends on ``scope[ptr[t]:ptr[t + 1]]``, which are eliminated later, if at all.
    at, choice
        Its best states, in a table with these strides, stand in `choice` from ``at[t]`` on.
    """

    var: Ints
    ptr: Ints
    scope: Ints
    stride: Ints
    at: Ints
    choice: Ints


@compiled
def set_up(draft: Draft) -> None:
    """Fill in what follows from var_ptr, theta_v, scope_ptr, scope and nbr_ptr: all states and edges are alive."""
    var_ptr, scope_ptr = draft.var_ptr, draft.scope_ptr
    for i in range(len(draft.n_alive)):
        for s in range(var_ptr[i + 1] - var_ptr[i]):
            draft.alive[var_ptr[i] + s] = s
            draft.stand_in[var_ptr[i] + s] = -1
        draft.n_alive[i] = var_ptr[i + 1] - var_ptr[i]
        draft.degree[i] = 0
        draft.queue[i] = i
    for a in range(len(draft.arity)):
        draft.arity[a] = scope_ptr[a + 1] - scope_ptr[a]
        stride = 1
        for e in range(scope_ptr[a + 1] - 1, scope_ptr[a] - 1, -1):
            i = draft.scope[e]
            draft.stride[e] = stride
            stride *= var_ptr[i + 1] - var_ptr[i]
    for a in range(len(draft.arity)):
        for e in range(scope_ptr[a], scope_ptr[a + 1]):
            i = draft.scope[e]
            draft.factor_of[e] = a
            at = draft.nbr_ptr[i] + draft.degree[i]
            draft.nbr[at] = e
            draft.where[e] = at
            draft.degree[i] += 1


@inlined
def push(draft, i):
    """Look at variable `i` (again)."""
    if not draft.queued[i] and not draft.gone[i]:
        draft.queued[i] = True
        at = draft.tally[HEAD] + draft.tally[QUEUED]
        draft.queue[at if at < len(draft.queue) else at - len(draft.queue)] = i
        draft.tally[QUEUED] += 1


@inlined
def pop(draft):
    """The next variable to look at."""
    at = draft.tally[HEAD]
    i = draft.queue[at]
    draft.tally[HEAD] = at + 1 if at + 1 < len(draft.queue) else 0
    draft.tally[QUEUED] -= 1
    draft.queued[i] = False
    return i


@bare
def push_neighbours(draft, i):
    """Look at all variables that share a factor with `i`."""
    for at in range(draft.nbr_ptr[i], draft.nbr_ptr[i] + draft.degree[i]):
        a = draft.factor_of[draft.nbr[at]]
        for e in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
            if draft.scope[e] != i:
                push(draft, draft.scope[e])


@bare
def detach(draft, e):
    """Take an edge away from its variable and from its factor; the last of each takes its place."""
    i, a = draft.scope[e], draft.factor_of[e]
    last = draft.nbr[draft.nbr_ptr[i] + draft.degree[i] - 1]
    draft.nbr[draft.where[e]] = last
    draft.where[last] = draft.where[e]
    draft.degree[i] -= 1
    draft.arity[a] -= 1
    last = draft.scope_ptr[a] + draft.arity[a]
    if last != e:
        draft.scope[e], draft.stride[e], draft.where[e] = draft.scope[last], draft.stride[last], draft.where[last]
        draft.nbr[draft.where[e]] = e


@bare
def attach(draft, a, i, stride):
    """Give factor `a`, in whose slot there is room, variable `i`."""
    e = draft.scope_ptr[a] + draft.arity[a]
    at = draft.nbr_ptr[i] + draft.degree[i]
    draft.scope[e], draft.stride[e], draft.where[e] = i, stride, at
    draft.nbr[at] = e
    draft.arity[a] += 1
    draft.degree[i] += 1


@bare
def drop_state(draft, i, place, stand_in):
    """Take the state at this place of `alive` from variable `i`."""
    first = draft.var_ptr[i]
    draft.stand_in[first + draft.alive[first + place]] = stand_in
    draft.n_alive[i] -= 1
    for k in range(place, draft.n_alive[i]):
        draft.alive[first + k] = draft.alive[first + k + 1]
    if draft.n_alive[i] == 0:
        draft.tally[FEASIBLE] = 0


@inlined
def drop_impossible(draft, i):
    """Take from variable `i` the states whose unary potential is -inf; True if there were any."""
    before = draft.n_alive[i]
    for place in range(before - 1, -1, -1):
        if draft.theta_v[draft.var_ptr[i] + draft.alive[draft.var_ptr[i] + place]] == -np.inf:
            drop_state(draft, i, place, NOTHING)
    return draft.n_alive[i] < before


@bare
def fix(draft, i):
    """Take out a variable that has one state left: its factors shrink, and those that become unary are folded."""
    state = draft.alive[draft.var_ptr[i]]
    draft.constant[0] += draft.theta_v[draft.var_ptr[i] + state]
    draft.gone[i] = True
    while draft.degree[i] > 0:
        e = draft.nbr[draft.nbr_ptr[i] + draft.degree[i] - 1]
        a, shift = draft.factor_of[e], draft.stride[e] * state
        at = draft.table_at[a]
        draft.table_at[a] = at + shift if at >= 0 else ~(~at + shift)
        detach(draft, e)
        for other in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
            push(draft, draft.scope[other])
        if draft.arity[a] == 1:
            fold(draft, a)


@bare
def fold(draft, a):
    """Add a factor of one variable to that variable's unary potentials."""
    e = draft.scope_ptr[a]
    j, stride = draft.scope[e], draft.stride[e]
    table, at = (draft.theta_t, draft.table_at[a]) if draft.table_at[a] >= 0 else (draft.pool, ~draft.table_at[a])
    first = draft.var_ptr[j]
    for place in range(first, first + draft.n_alive[j]):
        state = draft.alive[place]
        draft.theta_v[first + state] += table[at + stride * state]
    detach(draft, e)
