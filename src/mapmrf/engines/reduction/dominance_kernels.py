"""Removal of impossible states, and of states dominated by another whatever the neighbours are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.reduction.reducible_kernels import NOTHING, ReducibleModel, drop_state
from mapmrf.kernels.factor_tables import weight_of

CANDIDATES = 8
"""Number of states, those with the highest scores, that every other state is compared with."""


class ComparisonScratch(NamedTuple):
    """Scratch to compare the states of one variable.

    Attributes
    ----------
    rows, row_at, width
        The tables around the variable, a row for each of its states: factor `f` has ``width[f]`` entries in each of its
        rows, starting at ``rows[row_at[f]]``.
    best
        The maximum of every row: ``best[f * n_alive + k]``.
    score, verdict : (most states,)
        Upper bound on labellings with a state, and the state that replaces it: itself, or -1 if it is impossible.
    chosen : (CANDIDATES,)
        The states that others are compared with.
    digit : (largest arity,)
        A configuration.
    """

    rows: Floats
    row_at: Ints
    width: Ints
    best: Floats
    score: Floats
    verdict: Ints
    chosen: Ints
    digit: Ints


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
def gather(model: ReducibleModel, i: int, scratch: ComparisonScratch) -> bool:
    """Copy the tables of variable `i`, one row per state, and compute the maxima of the rows.

    False if the tables do not fit into the scratch.
    """
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
    model.counters[0].work += used
    return True


@inlined
def is_dominated(model: ReducibleModel, i: int, k: int, by: int, scratch: ComparisonScratch) -> bool:
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
    model.counters[0].work += work
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
def drop_dominated(model: ReducibleModel, i: int, scratch: ComparisonScratch) -> bool:
    """Remove the impossible and the dominated states of variable `i`; True if there were any."""
    score, verdict, chosen = scratch.score, scratch.verdict, scratch.chosen
    n, first = model.n_alive[i], model.var_ptr[i]
    if model.counters[0].work > model.counters[0].budget or not gather(model, i, scratch):
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
    if found:
        remove(model, i, n, verdict)
    return found


@inlined
def remove(model: ReducibleModel, i: int, n: int, verdict: Ints) -> None:
    """Remove the states that are replaced by another one, or impossible."""
    first = model.var_ptr[i]
    for k in range(n):
        if verdict[k] >= 0 and verdict[k] != k:
            verdict[k] = -2 - model.alive[first + verdict[k]]
    for k in range(n - 1, -1, -1):
        if verdict[k] != k:
            drop_state(model, i, k, NOTHING if verdict[k] == -1 else -2 - verdict[k])
