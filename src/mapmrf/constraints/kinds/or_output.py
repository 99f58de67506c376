"""The last indicator, the output, is 1 if and only if one of the others, its inputs, is."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints.as_tables import Automaton, bit_automaton
from mapmrf.constraints.flat import LINEAR, OR, OUTPUT, Constraints, KindInterface


class OrOutput(KindInterface):
    number = OR

    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        last = constraints.ptr[1:] - 1
        output = np.asarray(labels)[constraints.var[last]] == constraints.state[last]
        return np.asarray((counts > output) != output)

    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        """Return itself, or a count of its inputs or its output."""
        if seen[-1]:
            limits = (-math.inf, 0.0)
            if true[-1]:
                limits = (-math.inf, math.inf) if true[:-1].any() else (1.0, math.inf)
            elif true[:-1].any():
                limits = (1.0, 0.0)  # an input is 1 and the output is not
            return one.rest(~seen, LINEAR, limits)
        last = np.arange(len(seen)) == len(seen) - 1
        if true[:-1].any():
            return one.rest(last, LINEAR, (1.0, math.inf))
        if seen[:-1].all():
            return one.rest(last, LINEAR, (-math.inf, 0.0))
        return one.rest(~seen, int(one.kind[0]), (-math.inf, math.inf))

    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        effects: dict[int, Ints] = {}
        pairs = constraints.indicators(c)
        for place, (i, k) in enumerate(pairs):
            effects.setdefault(i, np.zeros(card[i], dtype=np.int64))[k] |= 2 if place == len(pairs) - 1 else 1
        return bit_automaton(constraints, c, effects, False, np.array([0, 3]))

    def limits(self, constraints: Constraints, c: int) -> tuple[int, float, float]:
        return OUTPUT, float(constraints.lower[c]), math.inf
