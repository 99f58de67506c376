"""The number of indicators that are 1 is odd, or even: `lower` is its parity."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints.as_tables import Automaton, bit_automaton
from mapmrf.constraints.flat import PARITY, XOR, Constraints, KindInterface


class Parity(KindInterface):
    number = XOR

    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        return np.asarray(counts % 2 != constraints.lower)

    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        return one.rest(~seen, int(one.kind[0]), (float((one.lower[0] + np.count_nonzero(true)) % 2), math.inf))

    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        effects: dict[int, Ints] = {}
        for i, k in constraints.indicators(c):
            effects.setdefault(i, np.zeros(card[i], dtype=np.int64))[k] = 1
        return bit_automaton(constraints, c, effects, True, np.array([int(constraints.lower[c])]))

    def limits(self, constraints: Constraints, c: int) -> tuple[int, float, float]:
        return PARITY, float(constraints.lower[c]), math.inf
