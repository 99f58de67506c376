"""Infeasibility by counting: disjoint clauses that outnumber the at-most-one groups of their literals.

The pigeonhole principle is the standard example, on which resolution takes exponential time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints, offsets, ranges
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.feasibility.clauses import Atoms, Clauses, HardClauses, Signs
from mapmrf.model.problem import Problem


class Groups:
    """At-most-one groups of literals, found greedily."""

    def __init__(self, clauses: Clauses) -> None:
        n = len(clauses.head)
        self.pairs = clauses  # their binary implications: mutually exclusive literals
        common, order, members = np.zeros((3, n), dtype=np.int64)
        self.room = GroupRoom(common, order, members, np.ones(n, dtype=bool))
        self.sizes: Ints = np.zeros(n, dtype=np.int64)
        group_sizes(self.pairs, self.room, self.sizes)

    @staticmethod
    def worthwhile(clauses: Clauses) -> bool:
        """Return whether the literals exclude few enough others for a search of groups."""
        degree = np.diff(clauses.pair_ptr).astype(np.float64)
        # Maximum number of steps to find groups, some hundredths of a second; models that need more are skipped
        return bool(len(clauses.pair_to)) and float(4 * degree @ degree) <= 10_000_000

    def largest(self) -> Ints:
        return self.room.members[: grow(self.pairs, self.room, int(np.argmax(self.sizes)))].copy()


def is_overfull(groups: Groups, clauses: HardClauses, truth: Signs) -> bool:
    """Return whether disjoint clauses outnumber the groups of their literals, so that not all can be satisfied."""
    if groups.sizes.max(initial=0) < 3:  # minimum size of a group for counting to find more than propagation
        return False
    owner, now = np.repeat(np.arange(len(clauses.lengths)), clauses.lengths), truth[clauses.literals]
    holds = np.bincount(owner, now > 0, len(clauses.lengths)) > 0
    keep = (now == 0) & ~holds[owner]  # clauses that are not satisfied yet, without false literals
    counts = np.bincount(owner[keep], minlength=len(clauses.lengths))[~holds]
    left = HardClauses(clauses.literals[keep], offsets(counts).astype(np.int64))
    chosen = np.zeros(len(left.lengths), dtype=bool)
    choose_disjoint(left.ptr, left.literals, np.zeros(len(truth), dtype=bool), chosen)
    lengths = left.lengths[chosen]
    literals = left.literals[ranges(left.ptr[:-1][chosen], lengths)]
    group: Ints = np.zeros(len(truth), dtype=np.int64)  # of every literal, large groups first
    partition(groups.pairs, groups.room, np.argsort(-groups.sizes, kind="stable"), group)
    groups.room.free[:] = True
    return not all_matched(offsets(lengths).astype(np.int64), group[literals], len(truth))


# -- At-most-one groups of literals, and their matching with disjoint clauses -----------------------------------------


class GroupRoom(NamedTuple):
    common: Ints  # (n_literals,): group members, or neighbours of its first member, that each literal excludes
    order: Ints  # (n_literals,): candidates in the order in which they are tried
    members: Ints  # (n_literals,)
    free: Bools  # (n_literals,): literals that may join


@inlined
def count_neighbours(pairs: Clauses, common: Ints, literal: int, change: int) -> None:
    for at in range(pairs.pair_ptr[literal], pairs.pair_ptr[literal + 1]):
        common[pairs.pair_to[at] ^ 1] += change


@bare
def grow(pairs: Clauses, room: GroupRoom, first: int) -> int:
    """Grow a maximal group of free literals around the first one; return its size.

    The free literals that exclude the first one are tried in turn, those with most common neighbours first.
    """
    common, order, members = room.common, room.order, room.members
    begin, end, n_candidates = pairs.pair_ptr[first], pairs.pair_ptr[first + 1], 0
    for at in range(begin, end):
        count_neighbours(pairs, common, pairs.pair_to[at] ^ 1, 1)
    for at in range(begin, end):
        literal = pairs.pair_to[at] ^ 1
        if not room.free[literal]:
            continue
        to = n_candidates
        while to > 0 and common[order[to - 1]] < common[literal]:
            order[to] = order[to - 1]
            to -= 1
        order[to] = literal
        n_candidates += 1
    for at in range(begin, end):
        count_neighbours(pairs, common, pairs.pair_to[at] ^ 1, -1)
    members[0], n = first, 1
    count_neighbours(pairs, common, first, 1)
    for k in range(n_candidates):
        literal = order[k]
        if common[literal] >= n and (k == 0 or literal != order[k - 1]):
            members[n] = literal
            n += 1
            count_neighbours(pairs, common, literal, 1)
    for k in range(n):
        count_neighbours(pairs, common, members[k], -1)
    return n


@bare
def group_sizes(pairs: Clauses, room: GroupRoom, sizes: Ints) -> None:
    for literal in range(len(sizes)):
        sizes[literal] = grow(pairs, room, literal)


@bare
def partition(pairs: Clauses, room: GroupRoom, order: Ints, group: Ints) -> None:
    """Assign a group to every literal, in the given order."""
    n_groups = 0
    for first in order:
        if not room.free[first]:
            continue
        n = grow(pairs, room, first)
        for k in range(n):
            group[room.members[k]] = n_groups
            room.free[room.members[k]] = False
        n_groups += 1


@bare
def choose_disjoint(ptr: Ints, literals: Ints, taken: Bools, chosen: Bools) -> None:
    for c in range(len(ptr) - 1):
        chosen[c] = True
        for at in range(ptr[c], ptr[c + 1]):
            if taken[literals[at]]:
                chosen[c] = False
        if chosen[c]:
            for at in range(ptr[c], ptr[c + 1]):
                taken[literals[at]] = True


@compiled
def all_matched(ptr: Ints, group: Ints, n_groups: int) -> bool:
    """Match every clause with a group of its own, by alternating paths; False if that is impossible."""
    clause_of = np.full(n_groups, -1, np.int64)  # the clause matched with each group
    source, seen = np.empty(n_groups, np.int64), np.full(n_groups, -1, np.int64)  # the last clauses that reached it
    queue = np.empty(len(ptr), np.int64)
    for clause in range(len(ptr) - 1):
        queue[0], n, k, found = clause, 1, 0, -1
        while k < n and found < 0:
            now = queue[k]
            k += 1
            for at in range(ptr[now], ptr[now + 1]):
                if seen[group[at]] != clause:
                    seen[group[at]], source[group[at]] = clause, now
                    if clause_of[group[at]] < 0:
                        found = group[at]
                        break
                    queue[n] = clause_of[group[at]]
                    n += 1
        if found < 0:
            return False
        while found >= 0:
            giver, before = source[found], -1
            for at in range(ptr[giver], ptr[giver + 1]):
                if clause_of[group[at]] == giver:
                    before = group[at]
            clause_of[found] = giver
            found = before
    return True


# -- Cliques of variables that must all differ: with as many variables as states, every state is used -----------------
# Pairwise inequalities do not propagate this. The clauses of this module do: a state that only one variable of a clique
# can still take is assigned to it.


def clique_clauses(problem: Problem, atoms: Atoms) -> HardClauses:
    """Return a clause for every state of each clique that needs all states."""
    card, var_ptr = problem.graph.card, problem.graph.var_ptr
    width = int(card.max(initial=0))
    may = np.zeros((problem.n_vars, width), dtype=bool)
    state = np.arange(problem.n_states) - np.repeat(var_ptr[:-1], card)
    may[np.repeat(np.arange(problem.n_vars), card), state] = problem.feasible_v
    literals, lengths = [np.zeros(0, dtype=np.int64)], []
    for clique in cliques(different_pairs(problem), problem.n_vars, int(may.sum(axis=1).min(initial=width))):
        states = np.flatnonzero(may[clique].any(axis=0))
        if len(states) > len(clique):
            continue
        for k in states:
            holders = clique[may[clique, k]]
            literals.append(atoms.literal_of[var_ptr[holders] + k])
            lengths.append(len(holders))
    return HardClauses(np.concatenate(literals), offsets(np.array(lengths, dtype=np.int64)))


def different_pairs(problem: Problem) -> Ints:
    """Return the pairs of variables that must differ, (n, 2): their tables forbid all equal states."""
    theta_t, found = problem.graph.theta_t, [np.zeros((0, 2), dtype=np.int64)]
    for batch in problem.batches:
        if batch.arity == 2 and batch.hard:
            table_at, of = np.unique(batch.table_at, return_inverse=True)
            equal = np.arange(min(batch.shape)) * (batch.shape[1] + 1)
            differ = np.isneginf(theta_t[table_at[:, None] + equal]).all(axis=1)
            found.append(batch.scope[differ[of.ravel()]].astype(np.int64))
    return np.concatenate(found)


def cliques(pairs: Ints, n: int, least: int) -> Iterator[Ints]:
    """Yield maximal cliques of at least `least` variables that cover most pairs of a graph, with limited work."""
    near = [0] * n  # the neighbours of every variable as bit sets
    for i, j in pairs.tolist():
        near[i] |= 1 << j
        near[j] |= 1 << i
    left = near.copy()
    looks = 0
    for i in range(n):
        while left[i] and looks < 300_000:  # maximum number of neighbourhoods compared, in a tenth of a second or so
            j = left[i].bit_length() - 1
            clique, some = [i, j], near[i] & near[j]
            while some and len(clique) + some.bit_count() >= least:
                choice = list(_bits(some))
                looks += len(choice)
                best = max(choice, key=lambda v: (near[v] & some).bit_count())
                clique.append(best)
                some &= near[best]
            looks += 1
            members = sum(1 << v for v in clique)
            for v in clique:
                left[v] &= ~members
            if len(clique) >= least and not some:
                yield np.array(sorted(clique), dtype=np.int64)


def _bits(number: int) -> Iterator[int]:
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low


# -- Interchangeable states: if constraints only require variables to differ, states can be renamed -------------------


def interchangeable(problem: Problem) -> Ints:
    """Return the largest set of states that are interchangeable under the hard constraints, possibly empty.

    All hard factors must be inequalities between two variables with the same number of states. States are
    interchangeable if they are forbidden for the same variables.
    """
    none: Ints = np.zeros(0, dtype=np.int64)
    hard = [batch for batch in problem.batches if batch.hard]
    if not hard or any(batch.shape != hard[0].shape or batch.arity != 2 for batch in hard):
        return none
    n = hard[0].shape[0]
    if n < 3 or hard[0].shape[1] != n:
        return none
    for batch in hard:
        tables = np.unique(batch.table_at)[:, None] + np.arange(n * n)
        forbidden = np.isneginf(problem.graph.theta_t[tables])
        if np.any(forbidden != np.eye(n, dtype=bool).ravel()):
            return none
    involved = np.unique(np.concatenate([batch.scope.ravel() for batch in hard]))
    allowed: Bools = problem.feasible_v[problem.graph.var_ptr[involved][:, None] + np.arange(n)]
    _, kind = np.unique(allowed, axis=1, return_inverse=True)
    kind = kind.ravel()
    return np.flatnonzero(kind == np.argmax(np.bincount(kind)))


def renamed_away(problem: Problem, states: Ints, variables: Ints, labels: Ints) -> Ints:
    """Return what may be forbidden to break the symmetry of interchangeable `states`: entries of arrays per state.

    Along any list of variables, the states can be renamed in the order of their first occurrence. So the first variable
    has the first of them, or another state, the second has one of the first two, and so on. The order of the states
    follows `labels`, where these differ.
    """
    order: list[int] = []
    for wanted in [*labels[variables].tolist(), *states.tolist()]:
        if wanted in states and wanted not in order:
            order.append(wanted)
    ranked = np.array(order, dtype=np.int64)
    first = problem.graph.var_ptr[variables[: len(ranked)]]
    out = [at + ranked[k + 1 :] for k, at in enumerate(first.tolist())]
    return np.concatenate([*out, np.zeros(0, dtype=np.int64)])
