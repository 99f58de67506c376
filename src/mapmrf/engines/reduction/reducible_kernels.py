"""A model under reduction: it loses states, variables and factors in place, and never grows.

A factor keeps its slot of edges and a variable its slot in `nbr`, with live entries first. A message takes the slot of
a factor that it replaces, and each of its variables loses an edge before it gets one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.kernels.max_marginals import weight_of

NOTHING: Any = np.int64(-1)  # not a plain -1, for which numba would compile functions twice
ONE: Any = np.int64(1)  # a 1 to begin a product with, for the same reason


class ReductionTally:
    queue_head: int
    n_queued: int
    pool_used: int  # used lengths of the pool, of the choices, of the log and of its scopes
    n_choices: int
    n_logged: int
    log_scope: int
    work: int  # table entries read
    budget: int  # their limit
    n_impossible: int  # states removed
    n_dominated: int
    n_fixed: int  # variables
    constant: float
    infeasible: int  # 1 if a variable has no state


class ReducibleModel(NamedTuple):
    var_ptr: Ints
    theta_v: Floats  # (n_states,): those of a live state may have become -inf while its variable is queued
    n_alive: Ints  # (n_vars,): number of remaining states of each variable
    alive: Ints  # (n_states,): these states, ascending, from ``var_ptr[i]`` on
    stand_in: Ints  # (n_states,): for a removed state, one at least as good, or -1 if it was impossible
    gone: Bools  # (n_vars,): whether a variable has been fixed or eliminated
    scope_ptr: Ints  # (n_factors + 1,): the slots of the factors' edges
    arity: Ints  # (n_factors,): the number of live edges; a factor without any is removed
    table_at: Ints  # (n_factors,): where a table starts in `theta_t`, or the complement (``~``) of where in `pool`
    weight: Floats  # (n_factors,): weights of the factors' tables; empty if all weights are 1
    scope: Ints  # (n_edges,): variable of every edge
    stride: Ints  # (n_edges,): its stride in the table
    factor_of: Ints  # (n_edges,)
    where: Ints  # (n_edges,): the edge's position in `nbr`
    nbr_ptr: Ints
    degree: Ints
    nbr: Ints  # the edges of variable `i` are ``nbr[nbr_ptr[i]:][:degree[i]]``
    queue: Ints  # (n_vars,): ring buffer of variables to be processed
    queued: Bools  # (n_vars,)
    theta_t: Floats  # the original tables
    pool: Floats  # new tables
    counters: ReductionTally


class EliminationLog(NamedTuple):
    """The variables that have been eliminated, in order."""

    var: Ints  # (n_vars,): the variables
    ptr: Ints
    scope: Ints  # variable ``var[t]`` depends on ``scope[ptr[t]:ptr[t + 1]]``, eliminated later, if at all
    stride: Ints
    at: Ints
    choice: Ints  # its best states are stored in `choice` from ``at[t]`` on, in a table with these strides


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
        counters = model.counters
        at = counters.queue_head + counters.n_queued
        model.queue[at if at < len(model.queue) else at - len(model.queue)] = i
        counters.n_queued += 1


@inlined
def pop(model: ReducibleModel) -> int:
    counters = model.counters
    i, after = model.queue[counters.queue_head], counters.queue_head + 1
    counters.queue_head = after if after < len(model.queue) else 0
    counters.n_queued -= 1
    model.queued[i] = False
    return int(i)


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
        model.counters.n_impossible += 1
    else:
        model.counters.n_dominated += 1
    model.n_alive[i] -= 1
    for k in range(place, model.n_alive[i]):
        model.alive[first + k] = model.alive[first + k + 1]
    if model.n_alive[i] == 0:
        model.counters.infeasible = 1


@bare
def fix(model: ReducibleModel, i: int) -> None:
    """Remove a variable with one state left: its factors shrink, and those that become unary are absorbed."""
    state = model.alive[model.var_ptr[i]]
    model.counters.constant += model.theta_v[model.var_ptr[i] + state]
    model.counters.n_fixed += 1
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
            e = model.scope_ptr[a]
            j, stride, at = model.scope[e], model.stride[e], model.table_at[a]
            table, at = (model.theta_t, at) if at >= 0 else (model.pool, ~at)
            first, weight = model.var_ptr[j], weight_of(model.weight, a)
            for place in range(first, first + model.n_alive[j]):
                other_state = model.alive[place]
                model.theta_v[first + other_state] += weight * table[at + stride * other_state]
            detach(model, e)


# -- Removal of impossible states, and of states dominated by another whatever the neighbours are ---------------------

CANDIDATES = 8  # number of states, those with the highest scores, that every other state is compared with


class ReductionScratch(NamedTuple):
    """Room for the comparison of a variable's states, and for the message of a variable that is eliminated."""

    rows: Floats  # the tables around the variable, a row for each of its states
    row_at: Ints  # where the rows of each factor start
    width: Ints  # number of entries in each of its rows
    best: Floats  # the maximum of every row: ``best[f * n_alive + k]``
    score: Floats  # (most states,): upper bound on labellings with a state
    verdict: Ints  # (most states,): the state that replaces it: itself, or -1 if it is impossible
    chosen: Ints  # (CANDIDATES,): the states that others are compared with
    digit: Ints  # (largest arity,): a configuration
    around: Ints  # (largest arity,): the variables of the message
    marked: Bools  # (n_vars,): the same variables as marks
    step: Ints  # (largest arity,): their strides in it
    member: Ints  # (largest degree + 1,): the factors that the message replaces
    base: Ints  # (largest degree + 1,): their position in the tables
    own: Ints  # (largest degree + 1,): their strides along the eliminated variable
    jump: Ints  # (largest degree + 1, largest arity): their strides along the message's variables


@inlined
def gather_pair(model: ReducibleModel, a: int, i: int, i_stride: int, other: int, rows: Floats, at: int) -> None:
    """`gather` for a pairwise factor."""
    table, base = (model.theta_t, model.table_at[a]) if model.table_at[a] >= 0 else (model.pool, ~model.table_at[a])
    j, stride, weight = model.scope[other], model.stride[other], weight_of(model.weight, a)
    first, first_j, n_j = model.var_ptr[i], model.var_ptr[j], model.n_alive[j]
    for k in range(model.n_alive[i]):
        row = base + i_stride * model.alive[first + k]
        for c in range(first_j, first_j + n_j):
            rows[at] = weight * table[row + stride * model.alive[c]]
            at += 1


@bare
def gather_table(model: ReducibleModel, a: int, i: int, i_edge: int, rows: Floats, at: int, digit: Ints) -> None:
    """`gather` for a factor of any arity."""
    table, base = (model.theta_t, model.table_at[a]) if model.table_at[a] >= 0 else (model.pool, ~model.table_at[a])
    begin, n, weight = model.scope_ptr[a], model.arity[a], weight_of(model.weight, a)
    for k in range(model.n_alive[i]):
        place = base + model.stride[i_edge] * model.alive[model.var_ptr[i] + k]
        for d in range(n):
            digit[d] = 0
            if begin + d != i_edge:
                place += model.stride[begin + d] * model.alive[model.var_ptr[model.scope[begin + d]]]
        d = n - 1
        while d >= 0:
            rows[at] = weight * table[place]
            at += 1
            d = n - 1
            while d >= 0:
                if begin + d != i_edge:
                    j, stride = model.scope[begin + d], model.stride[begin + d]
                    state = model.var_ptr[j] + digit[d]
                    place -= stride * model.alive[state]
                    digit[d] += 1
                    if digit[d] < model.n_alive[j]:
                        place += stride * model.alive[state + 1]
                        break
                    place += stride * model.alive[model.var_ptr[j]]
                    digit[d] = 0
                d -= 1


@inlined
def gather(model: ReducibleModel, i: int, scratch: ReductionScratch) -> bool:
    """Copy the tables of variable `i`, one row per state, with the maxima of the rows; False if they do not fit."""
    rows, row_at, width, best = scratch.rows, scratch.row_at, scratch.width, scratch.best
    n = model.n_alive[i]
    used = 0
    for f in range(model.degree[i]):
        e = model.nbr[model.nbr_ptr[i] + f]
        a = model.factor_of[e]
        begin = model.scope_ptr[a]
        width[f] = 1
        for other in range(begin, begin + model.arity[a]):
            if other != e:
                width[f] *= model.n_alive[model.scope[other]]
        row_at[f] = used
        used += n * width[f]
        if used > len(rows):
            return False
        if model.arity[a] == 2:
            gather_pair(model, a, i, model.stride[e], begin + 1 if e == begin else begin, rows, row_at[f])
        else:
            gather_table(model, a, i, e, rows, row_at[f], scratch.digit)
        for k in range(n):
            top = -np.inf
            for at in range(row_at[f] + k * width[f], row_at[f] + (k + 1) * width[f]):
                top = max(top, rows[at])
            best[f * n + k] = top
    model.counters.work += used
    return True


@inlined
def is_dominated(model: ReducibleModel, i: int, k: int, by: int, scratch: ReductionScratch) -> bool:
    """Check Goldstein's criterion: whether the k-th state is never better than another.

    sum_f max_x (theta_f(k, x) - theta_f(by, x)) + theta_k - theta_by <= 0. Each maximum is at least the difference of
    the rows' maxima, which are known: `ahead` is a lower bound on the sum.
    """
    rows, row_at, width, best = scratch.rows, scratch.row_at, scratch.width, scratch.best
    n, first = model.n_alive[i], model.var_ptr[i]
    total = model.theta_v[first + model.alive[first + k]] - model.theta_v[first + model.alive[first + by]]
    ahead = scratch.score[k] - scratch.score[by]
    work = 0
    for f in range(model.degree[i]):
        if ahead > 0.0:
            break
        one, two = row_at[f] + k * width[f], row_at[f] + by * width[f]
        most = -np.inf
        for x in range(width[f]):
            difference = rows[one + x] - rows[two + x]  # nan if both are -inf, which decides nothing
            if difference > most:
                most = difference
        work += width[f]
        total += most
        ahead += most - (best[f * n + k] - best[f * n + by])
    model.counters.work += work
    return bool(ahead <= 0.0 and total <= 0.0)


@inlined
def choose(n: int, score: Floats, chosen: Ints) -> int:
    """Select the states with the highest scores, best first; return their number."""
    n_chosen = 0
    for k in range(n):
        place = n_chosen
        while place > 0 and score[chosen[place - 1]] < score[k]:
            place -= 1
        if place >= CANDIDATES:
            continue
        n_chosen = min(n_chosen + 1, CANDIDATES)
        for p in range(n_chosen - 1, place, -1):
            chosen[p] = chosen[p - 1]
        chosen[place] = k
    return n_chosen


@inlined
def drop_dominated(model: ReducibleModel, i: int, scratch: ReductionScratch) -> bool:
    """Remove the impossible and the dominated states of variable `i`; True if there were any."""
    score, verdict, chosen = scratch.score, scratch.verdict, scratch.chosen
    n, first = model.n_alive[i], model.var_ptr[i]
    if model.counters.work > model.counters.budget or not gather(model, i, scratch):
        return False
    found = False
    for k in range(n):
        score[k] = model.theta_v[first + model.alive[first + k]]
        for f in range(model.degree[i]):
            score[k] += scratch.best[f * n + k]
        verdict[k] = k if score[k] > -np.inf else -1
        found = found or verdict[k] < 0
    n_chosen = choose(n, score, chosen)
    for k in range(n):
        for c in range(n_chosen):
            by = chosen[c]
            if verdict[k] != k or score[by] < score[k]:
                break
            if by != k and verdict[by] == by and is_dominated(model, i, k, by, scratch):
                verdict[k] = by
                found = True
    if not found:
        return False
    for k in range(n):
        if verdict[k] >= 0 and verdict[k] != k:
            verdict[k] = -2 - model.alive[first + verdict[k]]
    for k in range(n - 1, -1, -1):
        if verdict[k] != k:
            drop_state(model, i, k, NOTHING if verdict[k] == -1 else -2 - verdict[k])
    return True


# -- Construction of the reduced model, and lifting of labellings -----------------------------------------------------


@compiled
def measure(model: ReducibleModel, table_at: Ints, size: Ints, changed: Bools) -> None:
    """For every factor, compute its number of entries, 0 if it is removed, and whether its table has changed."""
    for a in range(len(model.arity)):
        begin, n = model.scope_ptr[a], model.arity[a]
        changed[a] = n != model.scope_ptr[a + 1] - begin or model.table_at[a] != table_at[a]
        size[a] = 1 if n > 0 else 0
        for e in range(begin, begin + n):
            i = model.scope[e]
            size[a] *= model.n_alive[i]
            changed[a] = changed[a] or model.n_alive[i] < model.var_ptr[i + 1] - model.var_ptr[i]


@compiled
def write_tables(model: ReducibleModel, factors: Ints, ptr: Ints, digit: Ints, out: Floats) -> None:
    for q in range(len(factors)):
        a = factors[q]
        at = model.table_at[a]
        table, place = (model.theta_t, at) if at >= 0 else (model.pool, ~at)
        begin, n = model.scope_ptr[a], model.arity[a]
        for d in range(n):
            digit[d] = 0
            place += model.stride[begin + d] * model.alive[model.var_ptr[model.scope[begin + d]]]
        for at in range(ptr[q], ptr[q + 1]):
            out[at] = table[place]
            d = n - 1
            while d >= 0:
                i, stride = model.scope[begin + d], model.stride[begin + d]
                first = model.var_ptr[i]
                place -= stride * model.alive[first + digit[d]]
                digit[d] += 1
                over = digit[d] == model.n_alive[i]
                if over:
                    digit[d] = 0
                place += stride * model.alive[first + digit[d]]
                if not over:
                    break
                d -= 1


@compiled
def share_equal(ptr: Ints, bits: Ints, slot: Ints, of: Ints, first: Ints) -> int:
    """Find equal blocks of `bits`: block `q` equals the distinct block ``of[q]``, which is block ``first[of[q]]``.

    `slot`, filled with -1, is a hash table; its length is a power of 2 above the number of blocks. Returns the number
    of distinct blocks.
    """
    n_distinct = 0
    for q in range(len(ptr) - 1):
        begin, n = ptr[q], ptr[q + 1] - ptr[q]
        code = n
        for at in range(begin, begin + n):
            code = (code ^ bits[at]) * 0x5851F42D4C957F2D
            code ^= (code >> 29) & 0x7FFFFFFFF
        at = code & (len(slot) - 1)
        while True:
            t = slot[at]
            if t < 0:
                slot[at], first[n_distinct], of[q] = n_distinct, q, n_distinct
                n_distinct += 1
                break
            other = ptr[first[t]]
            equal = ptr[first[t] + 1] - other == n
            k = 0
            while equal and k < n:
                equal = bits[begin + k] == bits[other + k]
                k += 1
            if equal:
                of[q] = t
                break
            at = (at + 1) & (len(slot) - 1)
    return n_distinct


@compiled
def find_places(model: ReducibleModel, place: Ints) -> None:
    """For every state of a remaining variable, find the index of its replacement among the remaining states."""
    for i in range(len(model.n_alive)):
        first = model.var_ptr[i]
        for s in range(first, model.var_ptr[i + 1]):
            place[s] = -1
        for k in range(model.n_alive[i]):
            place[first + model.alive[first + k]] = k
        for s in range(first, model.var_ptr[i + 1]):
            at = s
            while place[at] < 0 and model.stand_in[at] >= 0:
                at = first + model.stand_in[at]
            place[s] = max(0, place[at])


@compiled
def replay(log: EliminationLog, labels: Ints) -> None:
    """Set the eliminated variables, in reverse order, to their best states."""
    for t in range(len(log.var) - 1, -1, -1):
        place = log.at[t]
        for d in range(log.ptr[t], log.ptr[t + 1]):
            place += log.stride[d] * labels[log.scope[d]]
        labels[log.var[t]] = log.choice[place]
