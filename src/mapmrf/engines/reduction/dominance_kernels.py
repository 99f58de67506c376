"""States that are impossible, or for which another state is at least as good whatever the neighbours do."""

from __future__ import annotations

import numpy as np

from mapmrf.engines.reduction.draft_kernels import BUDGET, NOTHING, WORK, drop_state
from mapmrf.kernels.jit import bare, inlined

CANDIDATES = 8
"""States, those with the best prospects, that every other state is compared with."""


@inlined
def gather_pair(draft, a, i, i_stride, other, rows, at):
    """`gather` for a factor of two variables."""
    table, base = (draft.theta_t, draft.table_at[a]) if draft.table_at[a] >= 0 else (draft.pool, ~draft.table_at[a])
    j, stride = draft.scope[other], draft.stride[other]
    first, first_j, n_j = draft.var_ptr[i], draft.var_ptr[j], draft.n_alive[j]
    for k in range(draft.n_alive[i]):
        row = base + i_stride * draft.alive[first + k]
        for c in range(first_j, first_j + n_j):
            rows[at] = table[row + stride * draft.alive[c]]
            at += 1


@bare
def gather_table(draft, a, i, i_edge, rows, at, digit):
    """`gather` for a factor of any arity."""
    table, base = (draft.theta_t, draft.table_at[a]) if draft.table_at[a] >= 0 else (draft.pool, ~draft.table_at[a])
    begin, n = draft.scope_ptr[a], draft.arity[a]
    for k in range(draft.n_alive[i]):
        place = base + draft.stride[i_edge] * draft.alive[draft.var_ptr[i] + k]
        for d in range(n):
            digit[d] = 0
            if begin + d != i_edge:
                place += draft.stride[begin + d] * draft.alive[draft.var_ptr[draft.scope[begin + d]]]
        d = n - 1
        while d >= 0:
            rows[at] = table[place]
            at += 1
            d = n - 1
            while d >= 0:
                if begin + d != i_edge:
                    j, stride = draft.scope[begin + d], draft.stride[begin + d]
                    state = draft.var_ptr[j] + digit[d]
                    place -= stride * draft.alive[state]
                    digit[d] += 1
                    if digit[d] < draft.n_alive[j]:
                        place += stride * draft.alive[state + 1]
                        break
                    place += stride * draft.alive[draft.var_ptr[j]]
                    digit[d] = 0
                d -= 1


@inlined
def gather(draft, i, rows, row_at, width, best, digit):
    """Copy the tables of variable `i`, a row for each state of it, and find the maxima of the rows.

    Factor `f` of `i` has ``width[f]`` entries in each of its rows, from ``row_at[f]`` on; ``best[f * n_alive + k]`` is
    the maximum over them. False if the tables do not fit into `rows`.
    """
    n = draft.n_alive[i]
    used = 0
    for f in range(draft.degree[i]):
        e = draft.nbr[draft.nbr_ptr[i] + f]
        a = draft.factor_of[e]
        begin = draft.scope_ptr[a]
        width[f] = 1
        for other in range(begin, begin + draft.arity[a]):
            if other != e:
                width[f] *= draft.n_alive[draft.scope[other]]
        row_at[f] = used
        used += n * width[f]
        if used > len(rows):
            return False
        if draft.arity[a] == 2:
            gather_pair(draft, a, i, draft.stride[e], begin + 1 if e == begin else begin, rows, row_at[f])
        else:
            gather_table(draft, a, i, e, rows, row_at[f], digit)
        for k in range(n):
            top = -np.inf
            for at in range(row_at[f] + k * width[f], row_at[f] + (k + 1) * width[f]):
                top = max(top, rows[at])
            best[f * n + k] = top
    draft.tally[WORK] += used
    return True


@inlined
def is_dominated(draft, i, k, by, rows, row_at, width, best, score):
    """Goldstein's criterion: whether the k-th state is nowhere better than another.

    sum_f max_x (theta_f(k, x) - theta_f(by, x)) + theta_k - theta_by <= 0. Each maximum is at least the difference of
    the rows' maxima, which are known: `ahead` is the sum if the rest were no larger.
    """
    n, first = draft.n_alive[i], draft.var_ptr[i]
    total = draft.theta_v[first + draft.alive[first + k]] - draft.theta_v[first + draft.alive[first + by]]
    ahead = score[k] - score[by]
    work = 0
    for f in range(draft.degree[i]):
        if ahead > 0.0:
            break
        one, two = row_at[f] + k * width[f], row_at[f] + by * width[f]
        most = -np.inf
        for x in range(width[f]):
            difference = rows[one + x] - rows[two + x]  # nan where both are -inf: that decides nothing
            if difference > most:
                most = difference
        work += width[f]
        total += most
        ahead += most - (best[f * n + k] - best[f * n + by])
    draft.tally[WORK] += work
    return ahead <= 0.0 and total <= 0.0


@inlined
def choose(n, score, chosen):
    """The states of the largest scores, the best first; return how many."""
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
def drop_dominated(draft, i, rows, row_at, width, best, digit, score, verdict, chosen):
    """Take from variable `i` the states without support and the dominated ones; True if there were any."""
    n, first = draft.n_alive[i], draft.var_ptr[i]
    if draft.tally[WORK] > draft.tally[BUDGET] or not gather(draft, i, rows, row_at, width, best, digit):
        return False
    found = False
    for k in range(n):
        score[k] = draft.theta_v[first + draft.alive[first + k]]
        for f in range(draft.degree[i]):
            score[k] += best[f * n + k]
        verdict[k] = k if score[k] > -np.inf else -1
        found = found or verdict[k] < 0
    n_chosen = choose(n, score, chosen)
    for k in range(n):
        for c in range(n_chosen):
            by = chosen[c]
            if verdict[k] != k or score[by] < score[k]:
                break
            if by != k and verdict[by] == by and is_dominated(
                draft, i, k, by, rows, row_at, width, best, score
            ):  # fmt: skip
                verdict[k] = by
                found = True
    if found:
        remove(draft, i, n, verdict)
    return found


@inlined
def remove(draft, i, n, verdict):
    """Drop the states whose verdict is not to stay as they are."""
    first = draft.var_ptr[i]
    for k in range(n):
        if verdict[k] >= 0 and verdict[k] != k:
            verdict[k] = -2 - draft.alive[first + verdict[k]]
    for k in range(n - 1, -1, -1):
        if verdict[k] != k:
            drop_state(draft, i, k, NOTHING if verdict[k] == -1 else -2 - verdict[k])
