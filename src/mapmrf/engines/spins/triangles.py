"""Triangle inequalities that a relaxation has found, with their multipliers."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.spins.triangle_kernels import N_BINS, Triangles, count_violated, list_violated

VIOLATION = 0.02
"""An inequality is violated if it lacks at least this."""

SLACK = 0.05
"""An inequality without a multiplier is dropped if it holds by more than this."""

STEP_TRIPLES = 10_000_000
"""Triples that a step looks at: some 30 ms."""

CANDIDATES = 20
"""Inequalities, as a multiple of those wanted, among which the most violated are chosen."""


class TriangleSet:
    """Some triangle inequalities and a multiplier for each.

    Attributes
    ----------
    triangles
        The inequalities.
    multiplier : (n,)
        Their multipliers, at least 0.
    """

    def __init__(self, triangles: Triangles, multiplier: Floats) -> None:
        self.triangles, self.multiplier = triangles, multiplier

    @classmethod
    def empty(cls) -> TriangleSet:
        """No inequality."""
        return cls(Triangles(np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)), np.zeros(0))

    def __len__(self) -> int:
        return len(self.multiplier)

    def _only(self, kept: Bools) -> None:
        corners, kind = self.triangles
        self.triangles, self.multiplier = Triangles(corners[kept], kind[kept]), self.multiplier[kept]

    def drop_slack(self, slack: Floats) -> None:
        """Leave out inequalities that do not matter."""
        self._only((self.multiplier > 0) | (slack < SLACK))

    def add_violated(self, gram: Floats, most: int) -> Generator[None, None, int]:
        """Add the most violated inequalities, in steps; returns how many."""
        found = yield from most_violated(gram, most)
        n = len(gram)
        new = ~np.isin(_keys(found, n), _keys(self.triangles, n))
        corners, kind = self.triangles
        self.triangles = Triangles(
            np.concatenate([corners, found.corners[new]]), np.concatenate([kind, found.kind[new]])
        )
        self.multiplier = np.concatenate([self.multiplier, np.zeros(int(new.sum()))])
        return int(new.sum())

    def merged(self, i: int, j: int, sign: float, n: int) -> TriangleSet:
        """The inequalities after spin j has become spin i times a sign; those that have both are left out."""
        corners, kind = self.triangles.corners.copy(), self.triangles.kind
        turn = np.stack([1 - 2 * (kind >> 1), 1 - 2 * (kind & 1), np.ones_like(kind)], axis=1)
        gone = corners == j
        both = gone.any(axis=1) & (corners == i).any(axis=1)
        turn[gone] *= int(sign)
        corners[gone] = i
        corners[corners > j] -= 1
        order = np.argsort(corners, axis=1, kind="stable")
        corners, turn = np.take_along_axis(corners, order, 1)[~both], np.take_along_axis(turn, order, 1)[~both]
        turn = turn * turn[:, 2:]
        moved = Triangles(corners, (turn[:, 1] < 0) + 2 * (turn[:, 0] < 0).astype(np.int64))
        _, first, place = np.unique(_keys(moved, n - 1), return_index=True, return_inverse=True)
        multiplier = np.bincount(place.ravel(), self.multiplier[~both], len(first)).astype(np.float64)
        return TriangleSet(Triangles(moved.corners[first], moved.kind[first]), multiplier)


def most_violated(gram: Floats, most: int) -> Generator[None, None, Triangles]:
    """The most violated triangle inequalities at a matrix of inner products, in steps."""
    bins = np.zeros(N_BINS, dtype=np.int64)
    spans = list(_spans(len(gram)))
    for begin, end in spans:
        count_violated(gram, VIOLATION, begin, end, bins)
        if len(spans) > 1:
            yield
    above = np.cumsum(bins[::-1])[::-1]
    room = CANDIDATES * most
    few = np.flatnonzero(above <= room)
    least = max(VIOLATION, 2.0 * (int(few[0]) if len(few) else N_BINS - 1) / N_BINS)
    room = min(room, int(bins.sum()))
    found = Triangles(np.zeros((room, 3), dtype=np.int64), np.zeros(room, dtype=np.int64))
    violation = np.zeros(room)
    count = 0
    for begin, end in spans:
        count = int(list_violated(gram, least, begin, end, found, violation, count))
        if len(spans) > 1:
            yield
    chosen = np.argsort(-violation[:count], kind="stable")[:most]
    return Triangles(found.corners[chosen], found.kind[chosen])


def _spans(n: int) -> Iterator[tuple[int, int]]:
    """Ranges of first corners, each with not too many triples."""
    begin, triples = 0, 0
    for i in range(n):
        triples += (n - i) ** 2 // 2
        if triples >= STEP_TRIPLES or i == n - 1:
            yield begin, i + 1
            begin, triples = i + 1, 0


def _keys(triangles: Triangles, n: int) -> Ints:
    """A number for every inequality."""
    i, j, k = triangles.corners.T
    return np.asarray(((i * n + j) * n + k) * 4 + triangles.kind)
