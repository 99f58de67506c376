"""Constraints as counters: they read variables one after another and keep the necessary information."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.errors import UnsupportedModel

MOST_COUNTS = 20_000
"""Maximum number of distinct sums of a counter after a step."""

MOST_MOVES = 1 << 26
"""Moves of all steps together."""

SAME = 1e-11
"""Sums of real weights that differ by at most this, relative to all weights, are merged."""


@dataclass(frozen=True, eq=False)
class Counter:
    """A finite automaton that reads labels and ends with their value.

    Attributes
    ----------
    variables
        The variable that each step reads.
    moves
        For each step the count after it, by the count before and the state of the variable: (counts, card). -1 if
        no continuation is allowed. There is one count before the first step.
    sizes
        Number of counts after each step.
    final : (counts,)
        Value of each count after the last step: 0, or minus the penalty.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.constraints import at_most_one
    >>> from mapmrf.constraints.attaching import attach
    >>> card = np.array([2, 2, 2])
    >>> counter = counter_of(attach([at_most_one([0, 1, 2])], None, card), 0, card)
    >>> [move.tolist() for move in counter.moves]
    [[[0, 1]], [[0, 1], [1, -1]], [[0, 0], [0, -1]]]
    """

    variables: list[int]
    moves: list[Ints]
    sizes: list[int]
    final: Floats

    @cached_property
    def first_step(self) -> int:
        """The first step whose count is not a copy of the variable itself: 0 or 1."""
        first = self.moves[0][0]
        return int(len(self.moves) > 1 and np.unique(first[first >= 0]).size == len(first))

    def through_first(self, step: int) -> Ints:
        """The move of a step, with the state of the first variable in place of the count after it."""
        return self.moves[step] if step == 0 or self.first_step == 0 else self.moves[step][self.moves[0][0]]

    def read(self, labels: Ints) -> Ints:
        """The count after each step; 0 where no continuation is allowed."""
        counts = np.zeros(len(self.variables), dtype=np.int64)
        count = 0
        for step, (i, move) in enumerate(zip(self.variables, self.moves, strict=True)):
            count = max(0, int(move[count, labels[i]]))
            counts[step] = count
        return counts


def worth_of(counts: Ints, final: Floats) -> Floats:
    """Values of counts at the end; -inf if a count is -1.

    Examples
    --------
    >>> worth_of(np.array([1, -1, 0]), np.array([0.0, -2.0])).tolist()
    [-2.0, -inf, 0.0]
    """
    return np.where(counts >= 0, final[np.maximum(counts, 0)], -np.inf)


def counter_of(constraints: Constraints, c: int, card: Ints) -> Counter:
    """The counter of a constraint."""
    kind = constraints.kind[c]
    if kind == ConstraintKind.ALL_DIFFERENT:
        return _repetition_counter(constraints, c, card)
    if kind == ConstraintKind.LINEAR:
        return _sum_counter(constraints, c, card)
    return _logic_counter(constraints, c, card)


def why_too_wide(constraints: Constraints | None, card: Ints) -> str | None:
    """Why constraints are too many for methods that keep a number for all states of all variables of each.

    Examples
    --------
    >>> why_too_wide(None, np.array([2, 2])) is None
    True
    """
    if constraints is None:
        return None
    links = np.unique(constraints.owner * len(card) + constraints.var)
    total = int(card[links % len(card)].sum(dtype=np.int64))
    if total <= MOST_MOVES:
        return None
    return (
        f"the variables of its {len(constraints)} constraints have {total} states, counted for each of them, expected "
        f"at most {MOST_MOVES}"
    )


def gains_of(constraints: Constraints, c: int, card: Ints) -> tuple[list[int], list[Floats]]:
    """The variables of a LINEAR constraint, and what each of their states adds to the sum.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.constraints import linear
    >>> from mapmrf.constraints.attaching import attach
    >>> card = np.array([2, 3])
    >>> variables, gains = gains_of(attach([linear([(1, 2), 0], [4, 5], upper=6)], None, card), 0, card)
    >>> variables, [gain.tolist() for gain in gains]
    ([1, 0], [[0.0, 0.0, 4.0], [0.0, 5.0]])
    """
    mine = constraints.span(c)
    gains: dict[int, Floats] = {}
    each = (constraints.var[mine].tolist(), constraints.state[mine].tolist(), constraints.weight[mine].tolist())
    for i, k, weight in zip(*each, strict=True):
        gains.setdefault(i, np.zeros(card[i]))[k] += weight
    return list(gains), list(gains.values())


def _sum_counter(constraints: Constraints, c: int, card: Ints) -> Counter:
    """Count sums; all that satisfy the constraint whatever follows are one count, as are all that violate it."""
    variables, gains = gains_of(constraints, c, card)
    low = np.cumsum([0.0, *(gain.min() for gain in gains[::-1])])[::-1]
    high = np.cumsum([0.0, *(gain.max() for gain in gains[::-1])])[::-1]
    least, most, hard = float(constraints.least[c]), float(constraints.most[c]), bool(constraints.hard[c])
    tolerance = 0.0 if constraints.whole[c] else SAME * sum(float(np.abs(gain).max()) for gain in gains)
    merge = _Merge(least, most, tolerance)
    sums, moves, sizes, n_moves = np.zeros(1), [], [], 0
    known: dict[tuple[bytes, bytes, float, float], tuple[Floats, Ints]] = {}  # long chains repeat their steps
    for step, gain in enumerate(gains):
        rest = merge.relevant(sums, gain, float(low[step + 1]), float(high[step + 1]))
        key = (sums.tobytes(), gain.tobytes(), *rest)
        if key not in known:
            n_moves += len(sums) * len(gain)
            _check_moves(constraints, c, n_moves)
            known[key] = merge.distinct(merge.sums(sums[:, None] + gain, *rest), hard)
        sums, move = known[key]
        if len(sums) > MOST_COUNTS:
            name = constraints.names[c]
            raise UnsupportedModel(
                f"constraint {c} ({name}): its sum has more than {MOST_COUNTS} values, too many for tables"
            )
        moves.append(move)
        sizes.append(len(sums))
    final = np.where(sums == merge.broken, -float(constraints.penalty[c]), 0.0)
    return Counter(variables, moves, sizes, final)


def _check_moves(constraints: Constraints, c: int, n_moves: int) -> None:
    if n_moves > MOST_MOVES:
        name = constraints.names[c]
        raise UnsupportedModel(f"constraint {c} ({name}): more than {MOST_MOVES} ways to count, too many for tables")


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


def _logic_counter(constraints: Constraints, c: int, card: Ints) -> Counter:
    """XOR and OR: counts 0 to 3 are two bits, the parity or 'an input is 1', and 'the output is 1'."""
    mine = constraints.span(c)
    var, state = constraints.var[mine].tolist(), constraints.state[mine].tolist()
    parity = constraints.kind[c] == ConstraintKind.XOR
    effects: dict[int, Ints] = {}
    for place, (i, k) in enumerate(zip(var, state, strict=True)):
        effect = effects.setdefault(i, np.zeros(card[i], dtype=np.int64))
        effect[k] |= 2 if not parity and place == len(var) - 1 else 1
    join: Callable[[Ints, Ints], Ints] = np.bitwise_xor if parity else np.bitwise_or
    good = np.array([0, 3]) if not parity else np.array([int(constraints.lower[c])])
    moves: list[Ints] = []
    counts, sizes = np.zeros(1, dtype=np.int64), []
    for effect in effects.values():
        after = join(counts[:, None], effect)
        counts, move = np.unique(after, return_inverse=True)
        moves.append(move.reshape(after.shape).astype(np.int64))
        sizes.append(len(counts))
    final = np.where(np.isin(counts, good), 0.0, -float(constraints.penalty[c]))
    return Counter(list(effects), moves, sizes, final)


def _repetition_counter(constraints: Constraints, c: int, card: Ints) -> Counter:
    """ALL_DIFFERENT: for each state, whether it has occurred (1), and whether any has occurred twice (2)."""
    scope = constraints.var[constraints.span(c)].tolist()
    _check_moves(constraints, c, 3 * int((card[scope] ** 2).sum()))
    steps = [(k, i) for k in range(int(card[scope].max())) for i in scope if card[i] > k]
    variables, moves = [], []
    n_before = 1
    for step, (k, i) in enumerate(steps):
        move = np.repeat(np.array([[0], [1], [2]]), card[i], axis=1)
        if step and steps[step - 1][0] != k:
            move[1] = 0
        met = move[:2, k].copy()
        move[:2, k] = met + 1
        variables.append(i)
        moves.append(move[:n_before])
        n_before = 3
    return Counter(variables, moves, [3] * len(steps), np.array([0.0, 0.0, -float(constraints.penalty[c])]))
