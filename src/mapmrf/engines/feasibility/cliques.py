"""Cliques of variables that must all differ: with as many variables as states, every state is used.

Pairwise inequalities do not propagate this. The clauses of this module do: a state that only one variable of a clique
can still take is assigned to it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Ints, offsets
from mapmrf.engines.feasibility.clauses import Atoms, HardClauses
from mapmrf.model.problem import Problem

MOST_LOOKS = 300_000
"""Maximum number of neighbourhoods compared, in a tenth of a second or so."""


def clique_clauses(problem: Problem, atoms: Atoms) -> HardClauses:
    """Return a clause for every state of each clique that needs all states."""
    card, var_ptr, allowed = problem.graph.card, problem.graph.var_ptr, problem.feasible_v
    width = int(card.max(initial=0))
    may = np.zeros((problem.n_vars, width), dtype=bool)
    may[np.repeat(np.arange(problem.n_vars), card), np.arange(problem.n_states) - np.repeat(var_ptr[:-1], card)] = (
        allowed
    )
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
    near = _neighbours(pairs, n)
    left = near.copy()
    looks = 0
    for i in range(n):
        while left[i] and looks < MOST_LOOKS:
            j = left[i].bit_length() - 1
            clique, some = [i, j], near[i] & near[j]
            while some and len(clique) + some.bit_count() >= least:
                choice = list(_bits(some))
                looks += len(choice)
                best = max(choice, key=lambda v: (near[v] & some).bit_count())
                clique.append(best)
                some &= near[best]
            looks += 1
            whole = sum(1 << v for v in clique)
            for v in clique:
                left[v] &= ~whole
            if len(clique) >= least and not some:
                yield np.array(sorted(clique), dtype=np.int64)


def _neighbours(pairs: Ints, n: int) -> list[int]:
    """Return the neighbours of every variable as bit sets."""
    near = [0] * n
    for i, j in pairs.tolist():
        near[i] |= 1 << j
        near[j] |= 1 << i
    return near


def _bits(number: int) -> Iterator[int]:
    """Yield the positions of the set bits of a number."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
