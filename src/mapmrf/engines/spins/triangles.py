"""The active triangle inequalities of a relaxation, with their multipliers."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, inlined

VIOLATION = 0.02  # minimum violation of an inequality to be added
STEP_TRIPLES = 10_000_000  # triples examined per step: some 30 ms


@dataclass(eq=False)
class TriangleSet:
    """Inequalities ``1 + x_jk a + x_ik b + x_ij ab >= 0`` over the products x of spins, with signs a and b."""

    # Two of any three spins are equal, which bounds signed sums of their products by -1.
    corners: Ints  # (n, 3): the spins i < j < k
    kind: Ints  # (n,): 0 to 3: a is -1 for 1 and 3, b is -1 for 2 and 3
    multiplier: Floats  # (n,)

    @classmethod
    def empty(cls) -> TriangleSet:
        return cls(np.zeros((0, 3), dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))

    def __len__(self) -> int:
        return len(self.multiplier)

    def drop_slack(self, slack: Floats) -> None:
        """Drop slack inequalities with zero multiplier."""
        # Slack beyond which an inequality with zero multiplier is dropped
        kept = (self.multiplier > 0) | (slack < 0.05)
        self.corners, self.kind, self.multiplier = self.corners[kept], self.kind[kept], self.multiplier[kept]

    def add_violated(self, gram: Floats, most: int) -> Generator[None, None, int]:
        corners, kind = yield from most_violated(gram, most)
        n = len(gram)
        new = ~np.isin(_keys(corners, kind, n), _keys(self.corners, self.kind, n))
        self.corners = np.concatenate([self.corners, corners[new]])
        self.kind = np.concatenate([self.kind, kind[new]])
        self.multiplier = np.concatenate([self.multiplier, np.zeros(int(new.sum()))])
        return int(new.sum())

    def merged(self, i: int, j: int, sign: float, n: int) -> TriangleSet:
        """Return the inequalities after spin j became spin i times a sign; those that contain both are dropped."""
        corners, kind = self.corners.copy(), self.kind
        turn = np.stack([1 - 2 * (kind >> 1), 1 - 2 * (kind & 1), np.ones_like(kind)], axis=1)
        gone = corners == j
        both = gone.any(axis=1) & (corners == i).any(axis=1)
        turn[gone] *= int(sign)
        corners[gone] = i
        corners[corners > j] -= 1
        order = np.argsort(corners, axis=1, kind="stable")
        corners, turn = np.take_along_axis(corners, order, 1)[~both], np.take_along_axis(turn, order, 1)[~both]
        turn = turn * turn[:, 2:]
        kind = (turn[:, 1] < 0) + 2 * (turn[:, 0] < 0).astype(np.int64)
        _, first, place = np.unique(_keys(corners, kind, n - 1), return_index=True, return_inverse=True)
        multiplier = np.bincount(place.ravel(), self.multiplier[~both], len(first)).astype(np.float64)
        return TriangleSet(corners[first], kind[first], multiplier)


def most_violated(gram: Floats, most: int) -> Generator[None, None, tuple[Ints, Ints]]:
    """Find the corners and kinds of the most violated inequalities, in steps."""
    bins, violation = np.zeros(N_BINS, dtype=np.int64), np.zeros(0)
    spans, begin, triples, n = [], 0, 0, len(gram)
    for i in range(n):  # ranges of first corners, each with a limited number of triples
        triples += (n - i) ** 2 // 2
        if triples >= STEP_TRIPLES or i == n - 1:
            spans.append((begin, i + 1))
            begin, triples = i + 1, 0
    for begin, end in spans:
        find_violated(gram, VIOLATION, begin, end, bins, None, None, violation, 0)
        if len(spans) > 1:
            yield
    above = np.cumsum(bins[::-1])[::-1]
    # Size of the list from which the most violated inequalities are chosen, as a multiple of those wanted
    room = 20 * most
    few = np.flatnonzero(above <= room)
    least = max(VIOLATION, 2.0 * (int(few[0]) if len(few) else N_BINS - 1) / N_BINS)
    room = min(room, int(bins.sum()))
    corners, kind, violation = np.zeros((room, 3), dtype=np.int64), np.zeros(room, dtype=np.int64), np.zeros(room)
    count = 0
    for begin, end in spans:
        count = int(find_violated(gram, least, begin, end, None, corners, kind, violation, count))
        if len(spans) > 1:
            yield
    chosen = np.argsort(-violation[:count], kind="stable")[:most]
    return corners[chosen], kind[chosen]


def _keys(corners: Ints, kind: Ints, n: int) -> Ints:
    i, j, k = corners.T
    return np.asarray(((i * n + j) * n + k) * 4 + kind)


N_BINS = 64  # histogram bins by which the most violated inequalities are selected


@inlined
def signs(kind: int) -> tuple[float, float]:
    return 1.0 - 2.0 * (kind & 1), 1.0 - 2.0 * (kind >> 1)


@bare
def set_slack(corners: Ints, kind: Ints, gram: Floats, slack: Floats) -> None:
    """Compute the slack of every inequality, negative if it is violated."""
    for t in range(len(slack)):
        i, j, k = corners[t, 0], corners[t, 1], corners[t, 2]
        a, b = signs(kind[t])
        slack[t] = 1.0 + a * gram[j, k] + b * gram[i, k] + a * b * gram[i, j]


@bare
def add_triangles(corners: Ints, kind: Ints, multiplier: Floats, matrix: Floats, load: Floats) -> None:
    """Add the inequalities times their multipliers to a coupling matrix, and count them at their corners in `load`."""
    for t in range(len(multiplier)):
        m = multiplier[t]
        if m != 0.0:
            i, j, k = corners[t, 0], corners[t, 1], corners[t, 2]
            a, b = signs(kind[t])
            matrix[j, k] += m * a
            matrix[k, j] += m * a
            matrix[i, k] += m * b
            matrix[k, i] += m * b
            matrix[i, j] += m * a * b
            matrix[j, i] += m * a * b
            load[i] += 1.0
            load[j] += 1.0
            load[k] += 1.0


@bare
def find_violated(
    gram: Floats, least: float, begin: int, end: int, bins: Ints | None, corners: Ints | None, kinds: Ints | None,
    violation: Floats, count: int,
) -> int:  # fmt: skip
    """Find the inequalities violated by more than `least` for a range of first corners."""
    # They are counted in `bins` from 0 to 2, or else appended to the `count` found while there is room. Returns the
    # number found.
    n = len(gram)
    for i in range(begin, end):
        for j in range(i + 1, n):
            x = gram[i, j]
            for k in range(j + 1, n):
                y, z = gram[j, k], gram[i, k]
                for kind, slack in enumerate((1.0 + x + y + z, 1.0 - x - y + z, 1.0 - x + y - z, 1.0 + x - y - z)):
                    if slack < -least:
                        if bins is not None:
                            bins[min(int(-slack * N_BINS / 2), N_BINS - 1)] += 1
                        elif corners is not None and kinds is not None and count < len(violation):
                            corners[count, 0], corners[count, 1], corners[count, 2] = i, j, k
                            kinds[count] = kind
                            violation[count] = -slack
                            count += 1
    return count
