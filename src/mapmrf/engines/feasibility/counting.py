"""Infeasibility by counting: disjoint clauses that outnumber the at-most-one groups of their literals.

The pigeonhole principle is the standard example, on which resolution takes exponential time.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.engines.feasibility.clause_kernels import Clauses, Signs
from mapmrf.engines.feasibility.clauses import HardClauses
from mapmrf.engines.feasibility.counting_kernels import (
    Exclusions,
    GroupRoom,
    MatchingRoom,
    all_matched,
    choose_disjoint,
    group_sizes,
    grow,
    partition,
)

MOST_STEPS = 10_000_000
"""Maximum number of steps to find groups, some hundredths of a second; models that need more are skipped."""

SMALLEST = 3
"""Minimum size of a group for counting to find more than propagation."""


class Groups:
    """At-most-one groups of literals, found greedily.

    Attributes
    ----------
    sizes : (n_literals,)
        Size of the group found around every literal.
    """

    def __init__(self, clauses: Clauses) -> None:
        n = len(clauses.head)
        self.pairs = Exclusions(clauses.pair_ptr, clauses.pair_to)
        common, order, members = np.zeros((3, n), dtype=np.int64)
        self.room = GroupRoom(common, order, members, np.ones(n, dtype=bool))
        self.sizes: Ints = np.zeros(n, dtype=np.int64)
        group_sizes(self.pairs, self.room, self.sizes)

    @staticmethod
    def worthwhile(clauses: Clauses) -> bool:
        """Return whether the literals exclude few enough others for a search of groups."""
        degree = np.diff(clauses.pair_ptr).astype(np.float64)
        return bool(len(clauses.pair_to)) and float(4 * degree @ degree) <= MOST_STEPS

    def largest(self) -> Ints:
        """Return the members of the largest group."""
        return self.room.members[: grow(self.pairs, self.room, int(np.argmax(self.sizes)))].copy()

    def of_literals(self) -> Ints:
        """Assign a group to every literal, (n_literals,), large groups first."""
        group: Ints = np.zeros(len(self.sizes), dtype=np.int64)
        partition(self.pairs, self.room, np.argsort(-self.sizes, kind="stable"), group)
        self.room.free[:] = True
        return group


def is_overfull(groups: Groups, clauses: HardClauses, truth: Signs) -> bool:
    """Return whether disjoint clauses outnumber the groups of their literals, so that not all can be satisfied.

    `truth` holds the known values of literals.
    """
    if groups.sizes.max(initial=0) < SMALLEST:
        return False
    left = _undecided(clauses, truth)
    chosen = np.zeros(len(left.lengths), dtype=bool)
    choose_disjoint(left.ptr, left.literals, np.zeros(len(truth), dtype=bool), chosen)
    lengths = left.lengths[chosen]
    literals = left.literals[ranges(left.ptr[:-1][chosen], lengths)]
    clause_of, source, seen = np.full((3, len(truth)), -1, dtype=np.int64)
    room = MatchingRoom(clause_of, source, seen, np.zeros(len(lengths) + 1, dtype=np.int64))
    return not all_matched(offsets(lengths).astype(np.int64), groups.of_literals()[literals], room)


def _undecided(clauses: HardClauses, truth: Signs) -> HardClauses:
    """Return the clauses that are not satisfied yet, without false literals."""
    owner = np.repeat(np.arange(len(clauses.lengths)), clauses.lengths)
    now = truth[clauses.literals]
    holds = np.bincount(owner, now > 0, len(clauses.lengths)) > 0
    keep = (now == 0) & ~holds[owner]
    counts = np.bincount(owner[keep], minlength=len(clauses.lengths))[~holds]
    return HardClauses(clauses.literals[keep], offsets(counts).astype(np.int64))
