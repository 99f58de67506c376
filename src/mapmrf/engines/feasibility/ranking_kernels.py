"""Decision heuristic: the atom most involved in recent conflicts (VSIDS)."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.feasibility.clause_kernels import Int32s, SearchCounts, Signs

TOO_LARGE, DECAY = 1e100, 0.95
"""Activity at which all are rescaled, and the decay per conflict."""


class Ranking(NamedTuple):
    """The atoms by activity.

    Attributes
    ----------
    activity : (n_atoms,)
        Activity of each atom.
    heap, where
        Heap of possibly undecided atoms, most active first, and the position of each in it; -1 if it is not there.
    phase, best : (n_atoms,)
        Saved phase of each atom, and its value on the longest conflict-free trail.
    """

    activity: Floats
    heap: Int32s
    where: Int32s
    phase: Signs
    best: Signs


@inlined
def sift_up(ranking: Ranking, at: int) -> None:
    """Move an atom of the heap up to its position."""
    heap, where, activity = ranking.heap, ranking.where, ranking.activity
    atom = heap[at]
    while at > 0:
        parent = (at - 1) >> 1
        if activity[heap[parent]] >= activity[atom]:
            break
        heap[at] = heap[parent]
        where[heap[at]] = at
        at = parent
    heap[at] = atom
    where[atom] = at


@inlined
def sift_down(ranking: Ranking, at: int, n: int) -> None:
    """Move an atom of the heap down to its position."""
    heap, where, activity = ranking.heap, ranking.where, ranking.activity
    atom = heap[at]
    child = 2 * at + 1
    while child < n:
        if child + 1 < n and activity[heap[child + 1]] > activity[heap[child]]:
            child += 1
        if activity[heap[child]] <= activity[atom]:
            break
        heap[at] = heap[child]
        where[heap[at]] = at
        at = child
        child = 2 * at + 1
    heap[at] = atom
    where[atom] = at


@inlined
def enter(ranking: Ranking, counts: SearchCounts, atom: int) -> None:
    """Insert an atom into the heap, unless it is there."""
    if ranking.where[atom] < 0:
        ranking.heap[counts.n_heap] = atom
        ranking.where[atom] = counts.n_heap
        counts.n_heap += 1
        sift_up(ranking, counts.n_heap - 1)


@inlined
def leave(ranking: Ranking, counts: SearchCounts) -> int:
    """Remove and return the most active atom of the heap."""
    heap, where = ranking.heap, ranking.where
    atom = heap[0]
    where[atom] = -1
    counts.n_heap -= 1
    if counts.n_heap > 0:
        heap[0] = heap[counts.n_heap]
        where[heap[0]] = 0
        sift_down(ranking, 0, counts.n_heap)
    return int(atom)


@inlined
def bump(ranking: Ranking, counts: SearchCounts, atom: int) -> None:
    """Increase the activity of an atom involved in a conflict."""
    activity = ranking.activity
    activity[atom] += counts.step
    if activity[atom] > TOO_LARGE:
        for other in range(len(activity)):
            activity[other] /= TOO_LARGE
        counts.step /= TOO_LARGE
    if ranking.where[atom] >= 0:
        sift_up(ranking, ranking.where[atom])


@bare
def fill(ranking: Ranking, counts: SearchCounts) -> None:
    """Insert all atoms into the heap."""
    for atom in range(len(ranking.where)):
        enter(ranking, counts, atom)
