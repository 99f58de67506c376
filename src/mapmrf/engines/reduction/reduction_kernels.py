"""Reduction of a model to a fixed point: remove states, fix variables, and eliminate those with a small message."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.reduction.dominance_kernels import ComparisonScratch, drop_dominated
from mapmrf.engines.reduction.reducible_kernels import (
    ONE,
    EliminationLog,
    ReducibleModel,
    attach,
    detach,
    drop_impossible,
    fix,
    pop,
    push,
    push_neighbours,
)
from mapmrf.kernels.factor_tables import weight_of

WORK_PER_VARIABLE, WORK_PER_FACTOR = 20, 8
"""Cost of processing a variable, in table entries, if no table is read."""


class MessageScratch(NamedTuple):
    """Scratch to eliminate one variable.

    Attributes
    ----------
    digit : (largest arity,)
        A configuration.
    around, marked, step : (largest arity,), (n_vars,), (largest arity,)
        The variables of the message, as a list and as marks, and their strides in it.
    member, base, own, jump : (largest degree + 1,), ..., (largest degree + 1, largest arity)
        The factors that the message replaces: their position in the tables, and their strides along the eliminated
        variable and along the message's variables.
    """

    digit: Ints
    around: Ints
    marked: Bools
    step: Ints
    member: Ints
    base: Ints
    own: Ints
    jump: Ints


@compiled
def reduce_model(
    model: ReducibleModel, log: EliminationLog, comparison: ComparisonScratch, scratch: MessageScratch, max_work: int
) -> bool:
    """Process all queued variables, and those affected by a change; return whether the queue is empty.

    Once the budget is spent, only consequences of earlier decisions are processed. It stops after about `max_work`
    table entries, and the next call continues.
    """
    counters = model.counters[0]
    end, looked_at = counters.work + max_work, 0
    while counters.n_queued > 0 and counters.feasible:
        if counters.work + looked_at >= end:
            return False
        i = pop(model)
        looked_at += WORK_PER_VARIABLE + WORK_PER_FACTOR * model.degree[i]
        if model.gone[i]:
            continue
        changed = drop_impossible(model, i)
        if model.n_alive[i] > 1:
            n = surroundings(model, i, scratch.around, scratch.marked)
            if n >= 0 and eliminate_variable(model, log, scratch, i, n):
                continue
            if drop_dominated(model, i, comparison):
                changed = True
        if changed:
            push_neighbours(model, i)
        if model.n_alive[i] == 1:
            fix(model, i)
    return True


@inlined
def surroundings(model: ReducibleModel, i: int, around: Ints, marked: Bools) -> int:
    """List the variables that share a factor with `i`; -1 if there are more than in any single one of these factors."""
    most = 1
    for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
        most = max(most, model.arity[model.factor_of[model.nbr[at]]])
    n = 0
    for at in range(model.nbr_ptr[i], model.nbr_ptr[i] + model.degree[i]):
        a = model.factor_of[model.nbr[at]]
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            j = model.scope[e]
            if j == i or marked[j]:
                continue
            if n == most:
                for d in range(n):
                    marked[around[d]] = False
                return -1
            marked[j] = True
            around[n] = j
            n += 1
    for d in range(n):
        marked[around[d]] = False
    return n


@bare
def same_scope(model: ReducibleModel, around: Ints, n: int, marked: Bools) -> int:
    """Return a factor on exactly these variables; -1 if there is none."""
    rare = around[0]
    for d in range(n):
        marked[around[d]] = True
        if model.degree[around[d]] < model.degree[rare]:
            rare = around[d]
    found = -1
    at = model.nbr_ptr[rare] + model.degree[rare]
    while found < 0 and at > model.nbr_ptr[rare]:  # a message that is to be merged with the next one comes last
        at -= 1
        a = model.factor_of[model.nbr[at]]
        inside = model.arity[a] == n
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            inside = inside and marked[model.scope[e]]
        found = a if inside else -1
        model.counters[0].work += 1
    for d in range(n):
        marked[around[d]] = False
    return found


@inlined
def n_entries(model: ReducibleModel, a: int) -> int:
    """Return the number of live entries of factor `a`'s table."""
    n = 1
    for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
        n *= model.n_alive[model.scope[e]]
    return n


@bare
def eliminate_variable(model: ReducibleModel, log: EliminationLog, scratch: MessageScratch, i: int, n: int) -> bool:
    """Maximise out variable `i` if that needs no more room: its factors become one on their `n` other variables.

    The message has no more variables than one of the factors and no more entries than all of them; a factor on the same
    variables is merged into it. False if the variable must stay.
    """
    around, member, counters = scratch.around, scratch.member, model.counters[0]
    n_members, replaced = model.degree[i], 0
    for f in range(n_members):
        member[f] = model.factor_of[model.nbr[model.nbr_ptr[i] + f]]
        replaced += n_entries(model, member[f])
    merged = same_scope(model, around, n, scratch.marked) if n >= 2 else -1
    if merged >= 0:
        member[n_members] = merged
        n_members += 1
    entries, size = ONE, ONE
    for d in range(n - 1, -1, -1):
        scratch.step[d] = size
        entries *= model.n_alive[around[d]]
        size *= model.var_ptr[around[d] + 1] - model.var_ptr[around[d]]
        if size > len(log.choice):
            return False
    work = entries * model.n_alive[i] * (n_members + 1)
    if n >= 2 and merged < 0 and entries > replaced:
        return False
    if n >= 2 and (counters.pool_used + size > len(model.pool) or counters.work + work > counters.budget):
        return False
    if counters.n_choices + size > len(log.choice):
        return False
    counters.work += work
    lay_out(model, scratch, i, n, n_members)
    maximise(model, log.choice, scratch, i, n, n_members, entries)
    record_choices(model, log, scratch, i, n, size)
    replace(model, scratch, i, n, n_members, size)
    return True


@inlined
def lay_out(model: ReducibleModel, scratch: MessageScratch, i: int, n: int, n_members: int) -> None:
    """Compute table offsets for the first configuration, and strides, of the factors to be merged."""
    for f in range(n_members):
        a = scratch.member[f]
        scratch.base[f] = model.table_at[a] if model.table_at[a] >= 0 else ~model.table_at[a]
        scratch.own[f] = 0
        for d in range(n):
            scratch.jump[f, d] = 0
        for e in range(model.scope_ptr[a], model.scope_ptr[a] + model.arity[a]):
            if model.scope[e] == i:
                scratch.own[f] = model.stride[e]
                continue
            for d in range(n):
                if scratch.around[d] == model.scope[e]:
                    scratch.jump[f, d] = model.stride[e]
        for d in range(n):
            scratch.base[f] += scratch.jump[f, d] * model.alive[model.var_ptr[scratch.around[d]]]


@inlined
def maximise(
    model: ReducibleModel, choice: Ints, scratch: MessageScratch, i: int, n: int, n_members: int, entries: int
) -> None:
    """Write the message: of two or more variables to the pool, of one to its potentials, else to the constant."""
    around, digit, step, base = scratch.around, scratch.digit, scratch.step, scratch.base
    counters = model.counters[0]
    place = 0
    for d in range(n):
        digit[d] = 0
        place += step[d] * model.alive[model.var_ptr[around[d]]]
    first, count = model.var_ptr[i], model.n_alive[i]
    for _ in range(entries):
        best, best_state = -np.inf, model.alive[first]
        for k in range(first, first + count):
            state = model.alive[k]
            total = model.theta_v[first + state]
            for f in range(n_members):
                a = scratch.member[f]
                if model.table_at[a] >= 0:
                    total += weight_of(model.weight, a) * model.theta_t[base[f] + scratch.own[f] * state]
                else:
                    total += model.pool[base[f] + scratch.own[f] * state]
            if total > best:
                best, best_state = total, state
        choice[counters.n_choices + place] = best_state
        if n >= 2:
            model.pool[counters.pool_used + place] = best
        elif n == 1:
            model.theta_v[model.var_ptr[around[0]] + place] += best
        else:
            counters.constant += best
        d = n - 1
        while d >= 0:
            at = model.var_ptr[around[d]] + digit[d]
            digit[d] += 1
            over = digit[d] == model.n_alive[around[d]]
            if over:
                digit[d] = 0
            move = model.alive[model.var_ptr[around[d]] + digit[d]] - model.alive[at]
            place += step[d] * move
            for f in range(n_members):
                base[f] += scratch.jump[f, d] * move
            if not over:
                break
            d -= 1


@inlined
def record_choices(
    model: ReducibleModel, log: EliminationLog, scratch: MessageScratch, i: int, n: int, size: int
) -> None:
    """Log the variables on which the choice of `i` depends."""
    counters = model.counters[0]
    t, at = counters.n_logged, counters.log_scope
    log.var[t], log.at[t] = i, counters.n_choices
    for d in range(n):
        log.scope[at + d], log.stride[at + d] = scratch.around[d], scratch.step[d]
    log.ptr[t + 1] = at + n
    counters.n_logged, counters.log_scope = t + 1, at + n
    counters.n_choices += size


@inlined
def replace(model: ReducibleModel, scratch: MessageScratch, i: int, n: int, n_members: int, size: int) -> None:
    """Remove variable `i` and its factors; a message of two or more variables takes the slot of one of them."""
    widest = scratch.member[0]
    for f in range(1, n_members):
        a = scratch.member[f]
        if model.arity[a] > model.arity[widest]:
            widest = a
    for f in range(n_members):
        a = scratch.member[f]
        while model.arity[a] > 0:
            detach(model, model.scope_ptr[a] + model.arity[a] - 1)
    model.gone[i] = True
    if n >= 2:
        model.table_at[widest] = ~model.counters[0].pool_used
        if len(model.weight) > 0:
            model.weight[widest] = 1.0
        model.counters[0].pool_used += size
        for d in range(n):
            attach(model, widest, scratch.around[d], scratch.step[d])
    for d in range(n):
        push(model, scratch.around[d])
