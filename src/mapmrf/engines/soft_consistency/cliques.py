"""Cliques of exclusions: pairs that forbid two states together become constraints of at most one state of many."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.compilation.jit import compiled
from mapmrf.constraints.flat import LINEAR, Constraints
from mapmrf.model.problem import Problem

MOST_STATES = 4000  # states in exclusions: the search for cliques uses a matrix of all pairs of them
MOST_WORK = 100_000_000  # entries of that matrix read: some tenths of a second


def join_exclusions(problem: Problem) -> Problem:
    """Return the model with constraints of at most one in place of the pairs that exclude two states.

    The pairs of a clique prove far less one by one than together. The model stays as it is unless at least half of its
    factors are such pairs, with fewer indicators in the constraints.
    """
    graph = problem.graph
    factors, ends, gain = _exclusions(problem)
    if 2 * len(factors) < problem.n_factors or len(factors) < 3:
        return problem
    known = _known_cliques(graph.constraints, graph.var_ptr.astype(np.int64))
    states, numbers = np.unique(np.concatenate([ends.ravel(), *known]), return_inverse=True)
    if len(states) > MOST_STATES:
        return problem
    one, two = numbers[: 2 * len(factors)].reshape(-1, 2).T
    open_, adjacent = np.zeros((2, len(states), len(states)), dtype=np.bool_)
    open_[one, two] = open_[two, one] = True
    adjacent |= open_
    at = 2 * len(factors)
    for clique in known:
        mine = numbers[at : at + len(clique)]
        at += len(clique)
        adjacent[np.ix_(mine, mine)] = True
        open_[np.ix_(mine, mine)] = False
    owner = np.searchsorted(graph.var_ptr, states, side="right") - 1
    adjacent |= owner[:, None] == owner  # states of a variable exclude each other
    np.fill_diagonal(adjacent, False)
    members, ptr = np.zeros(len(factors), dtype=np.int64), np.zeros(len(factors) + 1, dtype=np.int64)
    n = cover_by_cliques(adjacent, open_, members, ptr, MOST_WORK)
    members, ptr = states[members[: ptr[n]]], ptr[: n + 1]
    covered = ~open_[one, two]
    n_links = len(members) + sum(map(len, known))
    if 2 * np.count_nonzero(covered) < problem.n_factors or n_links > np.count_nonzero(covered):
        return problem
    var = np.searchsorted(graph.var_ptr, members, side="right") - 1
    fresh = Constraints(
        np.full(n, LINEAR), ptr, var, members - graph.var_ptr[var], np.ones(len(members)),
        np.full(n, -math.inf), np.ones(n), np.full(n, math.inf), ("at_most_one",) * n,
    )  # fmt: skip
    kept = np.ones(graph.n_factors, dtype=np.bool_)
    kept[factors[covered]] = False
    arity = graph.arity[kept]
    joined = replace(
        graph,
        scope_ptr=offsets(arity),
        scope=graph.scope[ranges(graph.scope_ptr[:-1][kept], arity)],
        table_of=graph.table_of[kept],
        constant=graph.constant + math.fsum(gain[covered]),
        weight=None if graph.weight is None else graph.weight[kept],
        constraints=Constraints.join([*([] if graph.constraints is None else [graph.constraints]), fresh]),
    )
    return Problem.compile(joined, problem.threads, problem.memory)


def _exclusions(problem: Problem) -> tuple[Ints, Ints, Floats]:
    """Return factors that forbid a pair of states and do nothing else, those states, and their value otherwise."""
    factors, gains = list[Ints]([np.zeros(0, dtype=np.int64)]), list[Floats]([np.zeros(0)])
    ends = list[Ints]([np.zeros((0, 2), dtype=np.int64)])
    for batch in problem.batches:
        if batch.arity != 2 or not batch.hard:
            continue
        starts, of = np.unique(batch.table_at, return_inverse=True)
        tables = problem.graph.theta_t[starts[:, None] + np.arange(batch.n_configs)]
        forbidden, top = tables == -np.inf, tables.max(axis=1)
        plain = (forbidden.sum(axis=1) == 1) & (top > -np.inf)
        plain &= np.all(forbidden | (tables == top[:, None]), axis=1)
        rows = np.flatnonzero(plain[of])
        states = np.stack(np.unravel_index(forbidden.argmax(axis=1), batch.shape), axis=1)[of[rows]]
        factors.append(problem.order[batch.factors][rows])
        ends.append(problem.graph.var_ptr[batch.scope[rows]] + states)
        gains.append(top[of[rows]] * (batch.weight[rows] if len(batch.weight) else 1.0))
    return np.concatenate(factors), np.concatenate(ends), np.concatenate(gains)


def _known_cliques(constraints: Constraints | None, var_ptr: Ints) -> list[Ints]:
    """Return the states of every hard constraint that forbids any two of them together."""
    found: list[Ints] = []
    if constraints is None:
        return found
    for c in np.flatnonzero(constraints.hard & (constraints.kind == LINEAR)).tolist():
        mine = constraints.span(c)
        weight, most, least = constraints.weight[mine], constraints.most[c], constraints.least[c]
        two_up, two_down = np.sort(weight)[:2].sum(), np.sort(-weight)[:2].sum()
        # a sum of two indicators that are 1 is too large, or too small, and no other indicator can help
        if len(weight) > 1 and ((weight.min() > 0 and two_up > most) or (weight.max() < 0 and two_down > -least)):
            found.append(var_ptr[constraints.var[mine]] + constraints.state[mine])
    return found


@compiled
def cover_by_cliques(adjacent: Bools, open_: Bools, members: Ints, ptr: Ints, most_work: int) -> int:
    """Cover open edges by cliques of at least three, greedily; return how many there are.

    A clique grows from a node by the neighbour with the most open edges to it, then by that with the most candidates
    for further growth. Covered edges are no longer open; edges that only a clique of two would cover stay open.
    """
    n, n_cliques, work = len(adjacent), 0, 0
    degree, links, common = np.zeros((3, n), dtype=np.int64)
    candidates, clique = np.zeros((2, n), dtype=np.int64)
    for i in range(n):
        for j in range(n):
            degree[i] += open_[i, j]
    while work < most_work:
        first = 0
        for i in range(1, n):
            if degree[i] > degree[first]:
                first = i
        if degree[first] <= 0:
            break
        clique[0], size, n_left = first, 1, 0
        for j in range(n):
            links[j] = open_[first, j]
            if adjacent[first, j]:
                candidates[n_left] = j
                n_left += 1
        for a in range(n_left):
            common[candidates[a]] = 0
            for b in range(n_left):
                common[candidates[a]] += adjacent[candidates[a], candidates[b]]
        work += 2 * n + n_left * n_left
        while n_left > 0:
            best = candidates[0]
            for a in range(1, n_left):
                j = candidates[a]
                if links[j] > links[best] or (links[j] == links[best] and common[j] > common[best]):
                    best = j
            clique[size] = best
            size += 1
            n_kept, n_gone = 0, 0
            for a in range(n_left):  # those that remain move to the front, the others to the scratch behind the clique
                j = candidates[a]
                if adjacent[best, j]:
                    candidates[n_kept] = j
                    n_kept += 1
                else:
                    n_gone += 1
                    clique[n - n_gone] = j
            for a in range(n_kept):
                j = candidates[a]
                links[j] += open_[best, j]
                for b in range(1, n_gone + 1):
                    common[j] -= adjacent[clique[n - b], j]
            work += n_left + n_kept * n_gone
            n_left = n_kept
        begin = ptr[n_cliques]
        if size > 2 and begin + size > len(members):
            break
        for a in range(size):
            for b in range(size):
                if a != b and open_[clique[a], clique[b]]:
                    degree[clique[a]] -= 1
                    open_[clique[a], clique[b]] = size == 2
            if size > 2:
                members[begin + a] = clique[a]
        if size > 2:
            n_cliques += 1
            ptr[n_cliques] = begin + size
    return n_cliques
