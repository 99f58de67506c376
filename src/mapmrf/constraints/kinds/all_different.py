"""No two of the variables have the same state; the states of the indicators have no meaning."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, ranges
from mapmrf.constraints.as_tables import Automaton, check_moves
from mapmrf.constraints.flat import ALL_DIFFERENT, DIFFERENT, WITHIN, Constraints, KindInterface, Sum


class AllDifferent(KindInterface):
    number = ALL_DIFFERENT
    whole_variables = True

    def counts(self, constraints: Constraints, labels: Ints, sums: Floats, mine: Bools) -> Floats:
        """Count repeated states."""
        some = mine[constraints.owner]
        owner, taken = constraints.owner[some], labels[constraints.var[some]]
        by = np.lexsort((taken, owner))
        twice = (np.diff(owner[by]) == 0) & (np.diff(taken[by]) == 0)
        return sums + np.bincount(owner[by][1:][twice], minlength=len(constraints))

    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        return np.asarray(counts > 0)

    def interval(self, constraints: Constraints, c: int, card: Ints) -> tuple[float, float]:
        scope, worst = constraints.var[constraints.span(c)], -float(constraints.penalty[c])
        return worst, worst if len(scope) > card[scope].max() else 0.0

    def lacks_states(self, constraints: Constraints, c: int, var_ptr: Ints, possible: Bools) -> bool:
        scope = constraints.var[constraints.span(c)]
        card = var_ptr[scope + 1] - var_ptr[scope]
        at = ranges(var_ptr[scope], card)
        state = at - np.repeat(var_ptr[scope], card)
        return bool(len(scope) > len(np.unique(state[possible[at]])))

    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        """Return itself: it keeps its observed variables as long as there is an unobserved one."""
        return one

    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        """Return for each state whether it has occurred (1), and whether any has occurred twice (2)."""
        scope = constraints.var[constraints.span(c)].tolist()
        check_moves(constraints, c, 3 * int((card[scope] ** 2).sum()))
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
        return Automaton(variables, moves, [3] * len(steps), np.array([0.0, 0.0, -float(constraints.penalty[c])]))

    def unequal_pairs(self, constraints: Constraints, c: int) -> Iterator[tuple[int, int]]:
        scope = sorted(constraints.var[constraints.span(c)].tolist())
        return itertools.combinations(scope, 2)

    def limits(self, constraints: Constraints, c: int) -> tuple[int, float, float]:
        return DIFFERENT, -math.inf, math.inf

    def sums(self, constraints: Constraints, c: int, card: Ints) -> Iterator[Sum]:
        """Count the variables that have each state: at most one."""
        scope = constraints.var[constraints.span(c)]
        n_states = int(card[scope].max())
        implied = 1.0 if len(scope) == n_states else -math.inf
        for k in range(n_states):
            some = scope[card[scope] > k]
            yield Sum(WITHIN, -math.inf, 1.0, some, np.full(len(some), k), np.ones(len(some)), implied)
