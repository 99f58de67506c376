"""The sum of weights of the indicators that are 1 lies between limits: counts, budgets and label costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints.as_tables import Automaton, check_moves
from mapmrf.constraints.flat import LINEAR, WITHIN, Constraints, KindInterface
from mapmrf.errors import UnsupportedModel

MOST_COUNTS = 20_000  # maximum number of distinct sums of an automaton after a step


class Linear(KindInterface):
    number = LINEAR

    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        return np.asarray((counts < constraints.least) | (counts > constraints.most))

    def interval(self, constraints: Constraints, c: int, card: Ints) -> tuple[float, float]:
        mine = constraints.span(c)
        low, high = extreme_sums(constraints.var[mine], constraints.weight[mine], card)
        least, most, worst = float(constraints.least[c]), float(constraints.most[c]), -float(constraints.penalty[c])
        if low >= least and high <= most:
            return 0.0, 0.0
        return worst, worst if high < least or low > most or least > most else 0.0

    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        fixed = float(one.weight[true].sum())
        return one.rest(~seen, LINEAR, (float(one.lower[0]) - fixed, float(one.upper[0]) - fixed))

    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        """Count sums; all that satisfy the constraint whatever follows are one count, as are all that violate it."""
        variables, gains = gains_of(constraints, c, card)
        low = np.cumsum([0.0, *(gain.min() for gain in gains[::-1])])[::-1]
        high = np.cumsum([0.0, *(gain.max() for gain in gains[::-1])])[::-1]
        least, most, hard = float(constraints.least[c]), float(constraints.most[c]), bool(constraints.hard[c])
        # sums of real weights that differ by at most this are merged
        tolerance = 0.0 if constraints.whole[c] else 1e-11 * sum(float(np.abs(gain).max()) for gain in gains)
        merge = _Merge(least, most, tolerance)
        sums, moves, sizes, n_moves = np.zeros(1), [], [], 0
        known: dict[tuple[bytes, bytes, float, float], tuple[Floats, Ints]] = {}  # long chains repeat their steps
        for step, gain in enumerate(gains):
            rest = merge.relevant(sums, gain, float(low[step + 1]), float(high[step + 1]))
            key = (sums.tobytes(), gain.tobytes(), *rest)
            if key not in known:
                n_moves += len(sums) * len(gain)
                check_moves(constraints, c, n_moves)
                known[key] = merge.distinct(merge.sums(sums[:, None] + gain, *rest), hard)
            sums, move = known[key]
            if len(sums) > MOST_COUNTS:
                many = f"its sum has more than {MOST_COUNTS} values, too many for tables"
                raise UnsupportedModel(f"constraint {constraints.called(c)}: {many}")
            moves.append(move)
            sizes.append(len(sums))
        final = np.where(sums == merge.broken, -float(constraints.penalty[c]), 0.0)
        return Automaton(variables, moves, sizes, final)

    def limits(self, constraints: Constraints, c: int) -> tuple[int, float, float]:
        return WITHIN, float(constraints.least[c]), float(constraints.most[c])


def extreme_sums(var: Ints, weight: Floats, card: Ints) -> tuple[float, float]:
    """The smallest and the largest sum of weights that labellings can give."""
    low = high = 0.0
    of_variable: dict[int, list[float]] = {}
    for i, one in zip(var.tolist(), weight.tolist(), strict=True):
        of_variable.setdefault(i, []).append(one)
    for i, weights in of_variable.items():
        rest = [] if len(weights) == card[i] else [0.0]
        low += min(weights + rest)
        high += max(weights + rest)
    return low, high


def gains_of(constraints: Constraints, c: int, card: Ints) -> tuple[list[int], list[Floats]]:
    """The variables of a LINEAR constraint, and what each of their states adds to the sum."""
    mine = constraints.span(c)
    gains: dict[int, Floats] = {}
    each = (constraints.var[mine].tolist(), constraints.state[mine].tolist(), constraints.weight[mine].tolist())
    for i, k, weight in zip(*each, strict=True):
        gains.setdefault(i, np.zeros(card[i]))[k] += weight
    return list(gains), list(gains.values())


@dataclass(frozen=True)
class _Merge:
    """Sums that need not be distinguished: infinite ones mean constraints that hold (-inf) or fail (inf)."""

    least: float
    most: float
    tolerance: float
    broken = np.inf
    kept = -np.inf

    def relevant(self, sums: Floats, gain: Floats, low: float, high: float) -> tuple[float, float]:
        """The remaining sum, clipped to the range that matters: beyond it, any sum can be satisfied or violated."""
        limits = [limit for limit in (self.least, self.most) if np.isfinite(limit)]
        finite = sums[np.isfinite(sums)]
        if not limits or len(finite) == 0:
            return min(low, 0.0), max(high, 0.0)
        lowest, highest = float(finite[0] + gain.min()), float(finite[-1] + gain.max())  # sums are in order
        return max(low, min(limits) - highest - 1.0), min(high, max(limits) - lowest + 1.0)

    def sums(self, sums: Floats, low: float, high: float) -> Floats:
        """The sums, with decided ones as infinite; the remaining sum is between `low` and `high`."""
        fails = (sums + high < self.least) | (sums + low > self.most)
        holds = (sums + low >= self.least) & (sums + high <= self.most)
        decided = np.where(fails, self.broken, np.where(holds, self.kept, sums))
        return np.where(np.isinf(sums), sums, decided)

    def distinct(self, sums: Floats, hard: bool) -> tuple[Floats, Ints]:
        """The distinct sums in order, and the index of each among them; -1 if it is not allowed."""
        values, place = np.unique(sums, return_inverse=True)
        if self.tolerance and len(values) > 1:
            with np.errstate(invalid="ignore"):
                new = np.concatenate([[True], ~(np.diff(values) <= self.tolerance)])
            values, place = values[new], (np.cumsum(new) - 1)[place]
        place = place.reshape(sums.shape).astype(np.int64)
        if hard and len(values) > 1 and values[-1] == self.broken:
            place = np.where(place == len(values) - 1, -1, place)
            values = values[:-1]
        elif hard and values[-1] == self.broken:
            place = np.full_like(place, -1)
        return values, place
