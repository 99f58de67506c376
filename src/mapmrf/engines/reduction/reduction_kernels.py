"""Reduce a draft until nothing gives: drop states, fix variables, and eliminate those whose message is small."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.reduction.dominance_kernels import drop_dominated
from mapmrf.engines.reduction.draft_kernels import (
    BUDGET,
    CHOICES,
    FEASIBLE,
    LOG_SCOPE,
    LOGGED,
    ONE,
    POOL,
    QUEUED,
    WORK,
    Draft,
    Log,
    attach,
    detach,
    drop_impossible,
    fix,
    pop,
    push,
    push_neighbours,
)
from mapmrf.kernels.jit import bare, compiled, inlined


class Scratch(NamedTuple):
    """Room for one variable at a time.

    Attributes
    ----------
    rows, row_at, width, best, score, verdict, chosen
        For dominated states.
    digit : (largest arity,)
        A configuration.
    around, marked, step : (largest arity,), (n_vars,), (largest arity,)
        The variables of a message, which they are, and their strides in it.
    member, base, own, jump : (largest degree + 1,), ..., (largest degree + 1, largest arity)
        The factors that a message replaces: where their tables stand, and their strides along the eliminated variable
        and along the message's variables.
    """

    rows: Floats
    row_at: Ints
    width: Ints
    best: Floats
    score: Floats
    verdict: Ints
    chosen: Ints
    digit: Ints
    around: Ints
    marked: Bools
    step: Ints
    member: Ints
    base: Ints
    own: Ints
    jump: Ints


@compiled
def reduce_draft(draft: Draft, log: Log, scratch: Scratch) -> None:
    """Look at all variables in the queue, and at those that a change concerns, until the queue is empty.

    Once the budget is spent it only follows up what has been decided.
    """
    s = scratch
    while draft.tally[QUEUED] > 0 and draft.tally[FEASIBLE] == 1:
        i = pop(draft)
        if draft.gone[i]:
            continue
        changed = drop_impossible(draft, i)
        if draft.n_alive[i] > 1:
            n = surroundings(draft, i, s.around, s.marked)
            if n >= 0 and eliminate_variable(draft, log, scratch, i, n):
                continue
            if drop_dominated(draft, i, s.rows, s.row_at, s.width, s.best, s.digit, s.score, s.verdict, s.chosen):
                changed = True
        if changed:
            push_neighbours(draft, i)
        if draft.n_alive[i] == 1:
            fix(draft, i)


@inlined
def surroundings(draft, i, around, marked):
    """The variables that share a factor with `i`; -1 if they are more than any of these factors has."""
    most = 1
    for at in range(draft.nbr_ptr[i], draft.nbr_ptr[i] + draft.degree[i]):
        most = max(most, draft.arity[draft.factor_of[draft.nbr[at]]])
    n = 0
    for at in range(draft.nbr_ptr[i], draft.nbr_ptr[i] + draft.degree[i]):
        a = draft.factor_of[draft.nbr[at]]
        for e in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
            j = draft.scope[e]
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
def same_scope(draft, around, n, marked):
    """A factor on just these variables; -1 if there is none."""
    rare = around[0]
    for d in range(n):
        marked[around[d]] = True
        if draft.degree[around[d]] < draft.degree[rare]:
            rare = around[d]
    found = -1
    at = draft.nbr_ptr[rare] + draft.degree[rare]
    while found < 0 and at > draft.nbr_ptr[rare]:  # a message that is to be merged with the next one stands last
        at -= 1
        a = draft.factor_of[draft.nbr[at]]
        inside = draft.arity[a] == n
        for e in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
            inside = inside and marked[draft.scope[e]]
        found = a if inside else -1
        draft.tally[WORK] += 1
    for d in range(n):
        marked[around[d]] = False
    return found


@inlined
def n_entries(draft, a):
    """Entries of factor `a`'s table that are alive."""
    n = 1
    for e in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
        n *= draft.n_alive[draft.scope[e]]
    return n


@bare
def eliminate_variable(draft, log, scratch, i, n):
    """Maximise variable `i` out if that takes no more room: its factors become one on their `n` other variables.

    The message has no more variables than one of the factors and no more entries than all of them; a factor on the
    same variables is merged into it. False if the variable has to stay.
    """
    around, member, tally = scratch.around, scratch.member, draft.tally
    n_members, replaced = draft.degree[i], 0
    for f in range(n_members):
        member[f] = draft.factor_of[draft.nbr[draft.nbr_ptr[i] + f]]
        replaced += n_entries(draft, member[f])
    merged = same_scope(draft, around, n, scratch.marked) if n >= 2 else -1
    if merged >= 0:
        member[n_members] = merged
        n_members += 1
    entries, size = ONE, ONE
    for d in range(n - 1, -1, -1):
        scratch.step[d] = size
        entries *= draft.n_alive[around[d]]
        size *= draft.var_ptr[around[d] + 1] - draft.var_ptr[around[d]]
        if size > len(log.choice):
            return False
    work = entries * draft.n_alive[i] * (n_members + 1)
    if n >= 2 and merged < 0 and entries > replaced:
        return False
    if n >= 2 and (tally[POOL] + size > len(draft.pool) or tally[WORK] + work > tally[BUDGET]):
        return False
    if tally[CHOICES] + size > len(log.choice):
        return False
    tally[WORK] += work
    lay_out(draft, scratch, i, n, n_members)
    maximise(draft, log.choice, scratch, i, n, n_members, entries)
    note(draft.tally, log, scratch, i, n, size)
    replace(draft, scratch, i, n, n_members, size)
    return True


@bare
def lay_out(draft, scratch, i, n, n_members):
    """Find where the members' tables start for the first configuration, and their strides."""
    for f in range(n_members):
        a = scratch.member[f]
        scratch.base[f] = draft.table_at[a] if draft.table_at[a] >= 0 else ~draft.table_at[a]
        scratch.own[f] = 0
        for d in range(n):
            scratch.jump[f, d] = 0
        for e in range(draft.scope_ptr[a], draft.scope_ptr[a] + draft.arity[a]):
            if draft.scope[e] == i:
                scratch.own[f] = draft.stride[e]
                continue
            for d in range(n):
                if scratch.around[d] == draft.scope[e]:
                    scratch.jump[f, d] = draft.stride[e]
        for d in range(n):
            scratch.base[f] += scratch.jump[f, d] * draft.alive[draft.var_ptr[scratch.around[d]]]


@bare
def maximise(draft, choice, scratch, i, n, n_members, entries):
    """Write the message: of two or more variables to the pool, of one to its potentials, else to the constant."""
    around, digit, step, base = scratch.around, scratch.digit, scratch.step, scratch.base
    place = 0
    for d in range(n):
        digit[d] = 0
        place += step[d] * draft.alive[draft.var_ptr[around[d]]]
    first, count = draft.var_ptr[i], draft.n_alive[i]
    for _ in range(entries):
        best, best_state = -np.inf, draft.alive[first]
        for k in range(first, first + count):
            state = draft.alive[k]
            total = draft.theta_v[first + state]
            for f in range(n_members):
                if draft.table_at[scratch.member[f]] >= 0:
                    total += draft.theta_t[base[f] + scratch.own[f] * state]
                else:
                    total += draft.pool[base[f] + scratch.own[f] * state]
            if total > best:
                best, best_state = total, state
        choice[draft.tally[CHOICES] + place] = best_state
        if n >= 2:
            draft.pool[draft.tally[POOL] + place] = best
        elif n == 1:
            draft.theta_v[draft.var_ptr[around[0]] + place] += best
        else:
            draft.constant[0] += best
        d = n - 1
        while d >= 0:
            at = draft.var_ptr[around[d]] + digit[d]
            digit[d] += 1
            over = digit[d] == draft.n_alive[around[d]]
            if over:
                digit[d] = 0
            move = draft.alive[draft.var_ptr[around[d]] + digit[d]] - draft.alive[at]
            place += step[d] * move
            for f in range(n_members):
                base[f] += scratch.jump[f, d] * move
            if not over:
                break
            d -= 1


@bare
def note(tally, log, scratch, i, n, size):
    """Log which variables the choice of `i` depends on."""
    t, at = tally[LOGGED], tally[LOG_SCOPE]
    log.var[t], log.at[t] = i, tally[CHOICES]
    for d in range(n):
        log.scope[at + d], log.stride[at + d] = scratch.around[d], scratch.step[d]
    log.ptr[t + 1] = at + n
    tally[LOGGED], tally[LOG_SCOPE] = t + 1, at + n
    tally[CHOICES] += size


@bare
def replace(draft, scratch, i, n, n_members, size):
    """Take out variable `i` and its factors; a message of two or more variables takes the slot of one of them."""
    widest = scratch.member[0]
    for f in range(1, n_members):
        a = scratch.member[f]
        if draft.arity[a] > draft.arity[widest]:
            widest = a
    for f in range(n_members):
        a = scratch.member[f]
        while draft.arity[a] > 0:
            detach(draft, draft.scope_ptr[a] + draft.arity[a] - 1)
    draft.gone[i] = True
    if n >= 2:
        draft.table_at[widest] = ~draft.tally[POOL]
        draft.tally[POOL] += size
        for d in range(n):
            attach(draft, widest, scratch.around[d], scratch.step[d])
    for d in range(n):
        push(draft, scratch.around[d])
