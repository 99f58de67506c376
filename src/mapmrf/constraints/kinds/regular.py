"""The states of variables, one after another, are a word that a finite automaton accepts; its moves have potentials.

The automaton may be non-deterministic: the value of a word is that of its best accepting run. What is kept after some
variables is a belief, the value of the best run to each state less the largest of these. Where the automaton is
deterministic, a belief is one of its states.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints.as_tables import Automaton, check_moves
from mapmrf.constraints.flat import REGULAR, Constraints, KindInterface
from mapmrf.constraints.statements import Constraint, price_of, real_number, variables_of
from mapmrf.errors import GraphError, UnknownName, UnsupportedModel
from mapmrf.model.names import Names, find_state, index_of

Letter = int | str
"""A state of a variable, by index or name."""
Arc = tuple[Hashable, Letter, Hashable] | tuple[Hashable, Letter, Hashable, float]


def regular(
    variables: Iterable[int | str],
    transitions: Iterable[Arc],
    *,
    initial: Hashable = 0,
    accepting: Iterable[Hashable] | Mapping[Hashable, float] | None = None,
    penalty: float | None = None,
    name: str = "",
) -> Constraint:
    """The states of the variables, in this order, are a word that a finite automaton accepts.

    Parameters
    ----------
    variables
        The sequence, by index or name. Numbers of states may differ, and a variable may occur more than once.
    transitions
        Tuples (state, symbol, next state) or (state, symbol, next state, weight). States of the automaton are integers
        or names of any kind; a symbol is a state of a variable, by index or name. The weight is a log potential that is
        added to the value, 0 by default. What is not listed is forbidden, as is a weight of -inf. Several transitions
        may have the same state and symbol: the best run counts.
    initial
        The state before the first variable.
    accepting
        The states that are allowed after the last variable, all by default; a dictionary adds a log potential for each.
    penalty
        Penalty of a word that is not accepted; by default it is not allowed.

    Examples
    --------
    No more than two days of work (1) in a row:

    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> gains = [[0, 1], [0, 2], [0, 4], [0, 3], [0, 1]]
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 5, [(i,) for i in range(5)], gains)
    >>> moves = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 1), (1, 1, 2)]
    >>> mapmrf.solve(graph.with_constraints([constraints.regular(range(5), moves)])).labels.tolist()
    [1, 0, 1, 1, 0]
    """
    listed, price = variables_of("regular", variables), price_of("regular", penalty)
    if isinstance(transitions, str) or not isinstance(transitions, Iterable):
        raise GraphError(f"regular: the transitions are {transitions!r}, expected a list of them")
    place: dict[Hashable, int] = {}
    arcs = [_arc(n, arc, place) for n, arc in enumerate(transitions)]
    if not arcs:
        raise GraphError("regular: no transitions, expected at least one")
    final: Mapping[Hashable, float]
    if accepting is None:
        final = dict.fromkeys(place, 0.0)
    elif isinstance(accepting, str) or not isinstance(accepting, Iterable):
        raise GraphError(f"regular: the accepting states are {accepting!r}, expected a list of them")
    else:
        final = accepting if isinstance(accepting, Mapping) else dict.fromkeys(accepting, 0.0)
    for what, each in (("initial", initial), *(("accepting", each) for each in final)):
        if not isinstance(each, Hashable) or each not in place:
            raise GraphError(f"regular: {each!r} is {what}, expected a state of a transition")
    ends = tuple((place[each], _weight(f"the weight of {each!r}", weight)) for each, weight in final.items())
    kept = tuple(arc for arc in arcs if arc[3] > -math.inf)
    data = (len(place), kept, place[initial], tuple(end for end in ends if end[1] > -math.inf))
    return Constraint("regular", REGULAR, listed, penalty=price, data=data, name=name)


def _arc(n: int, arc: object, place: dict[Hashable, int]) -> tuple[int, Letter, int, float]:
    """A transition with its states by number; those that are new get the next ones."""
    parts = tuple(arc) if isinstance(arc, Sequence | np.ndarray) and not isinstance(arc, str) else ()
    if len(parts) not in (3, 4) or not all(isinstance(each, Hashable) for each in parts):
        raise GraphError(f"regular: transition {n} is {arc!r}, expected (state, symbol, next state) and maybe a weight")
    begin, letter, end, weight = (*parts, 0.0)[:4]
    if not isinstance(letter, str):
        index = index_of(letter)
        if index is None or index < 0:
            raise GraphError(f"regular: the symbol of transition {n} is {letter!r}, expected a state of a variable")
        letter = index
    for state in (begin, end):
        place.setdefault(state, len(place))
    return place[begin], letter, place[end], _weight(f"the weight of transition {n}", weight)


def _weight(what: str, weight: object) -> float:
    found = real_number("regular", what, weight)
    if math.isnan(found) or found == math.inf:
        raise GraphError(f"regular: {what} is {found}, expected a finite number or -inf")
    return found


@dataclass(frozen=True, eq=False)
class _Arcs:
    """The transitions that read a variable."""

    begin: Ints
    letter: Ints
    end: Ints
    weight: Floats

    def after(self, beliefs: Floats, card: int, allowed: Bools) -> Floats:
        """Values of the best runs by belief before, state of the variable and state after: (n, card, n_states)."""
        values = np.full((card * len(allowed), len(beliefs)), -np.inf)
        mine = (self.letter < card) & allowed[self.end]
        to = self.letter[mine] * len(allowed) + self.end[mine]
        np.maximum.at(values, to, beliefs.T[self.begin[mine]] + self.weight[mine][:, None])
        return np.ascontiguousarray(values.T).reshape(len(beliefs), card, len(allowed))


@dataclass(frozen=True, eq=False)
class _Machine:
    """The automaton of a sequence: transitions for each of its variables, which share them if letters are the same."""

    initial: int
    steps: tuple[_Arcs, ...]
    final: Floats  # (n_states,): potentials of the states at the end, -inf where these are not accepting

    @cached_property
    def deterministic(self) -> bool:
        """Whether a state and a letter have at most one transition."""
        known = {id(arcs): arcs for arcs in self.steps}.values()
        pairs = (arcs.letter * len(self.final) + arcs.begin for arcs in known)
        return all(len(np.unique(each)) == len(each) for each in pairs)

    def start(self) -> Floats:
        return np.where(np.arange(len(self.final)) == self.initial, 0.0, -np.inf)

    def value(self, labels: Ints) -> float:
        """The value of the best accepting run on a word, -inf if there is none."""
        runs = self.start()
        for arcs, k in zip(self.steps, labels.tolist(), strict=True):
            mine, after = arcs.letter == k, np.full(len(runs), -np.inf)
            np.maximum.at(after, arcs.end[mine], runs[arcs.begin[mine]] + arcs.weight[mine])
            runs = after
        return float((runs + self.final).max())

    def open_states(self, card: Ints) -> list[Bools]:
        """States from which the rest of the sequence can be accepted: before each variable, and at the end."""
        found = [self.final > -np.inf]
        for arcs, r in zip(self.steps[::-1], card[::-1].tolist(), strict=True):
            before, useful = np.zeros(len(self.final), dtype=bool), found[-1][arcs.end] & (arcs.letter < r)
            before[arcs.begin[useful]] = True
            found.append(before)
        return found[::-1]


class Regular(KindInterface):
    number = REGULAR
    by_automaton = True
    whole_variables = True
    repeats = True

    def locate(self, data: Any, variables: Sequence[int], names: Names | None, card: Ints) -> _Machine:
        """Number the letters by the states of each variable; raise an error if none of them has one."""
        if isinstance(data, _Machine):
            return data
        n_states, arcs, initial, ends = data
        letters, largest = [letter for _, letter, _, _ in arcs], int(card[variables].max())
        known: dict[tuple[str, ...], _Arcs] = {}
        unknown, steps = dict.fromkeys(letters), []
        for i in variables:
            states = names.states[i] if names is not None and names.states is not None else ()
            if states not in known:
                named = {each: find_state(states, each) for each in letters if isinstance(each, str)}
                found = [named.get(letter, letter) for letter in letters]
                some = [(*arc, k) for arc, k in zip(arcs, found, strict=True) if k is not None and k < largest]
                for _, letter, _, _, _ in some:
                    unknown.pop(letter, None)
                begin, _, end, weight, letter = zip(*some, strict=True) if some else ((),) * 5
                begins, letters_read, ends_at = (np.array(each, dtype=np.int64) for each in (begin, letter, end))
                known[states] = _Arcs(begins, letters_read, ends_at, np.array(weight, dtype=np.float64))
            steps.append(known[states])
        for letter in unknown:
            error = UnknownName if isinstance(letter, str) else GraphError
            raise error(f"no variable of the sequence has a state {letter!r}")
        final = np.full(n_states, -np.inf)
        for state, weight in ends:
            final[state] = weight
        return _Machine(initial, tuple(steps), final)

    def values(self, constraints: Constraints, labels: Ints, worth: Floats, satisfied: Bools) -> Floats:
        worth = worth.copy()
        for c in np.flatnonzero(satisfied).tolist():
            worth[c] = constraints.data[c].value(labels[constraints.var[constraints.span(c)]])
        return worth

    def potentials(self, constraints: Constraints, c: int) -> list[Floats]:
        machine = constraints.data[c]
        return [*(arcs.weight for arcs in machine.steps), machine.final[machine.final > -np.inf]]

    def violated(self, constraints: Constraints, labels: Ints, counts: Floats) -> Bools:
        labels, bad = np.asarray(labels), np.zeros(len(constraints), dtype=bool)
        for c, machine in enumerate(constraints.data):
            if isinstance(machine, _Machine):
                bad[c] = machine.value(labels[constraints.var[constraints.span(c)]]) == -np.inf
        return bad

    def interval(self, constraints: Constraints, c: int, card: Ints) -> tuple[float, float]:
        machine, worst = constraints.data[c], -float(constraints.penalty[c])
        scope = card[constraints.var[constraints.span(c)]]
        runs = machine.start()
        for arcs, r in zip(machine.steps, scope.tolist(), strict=True):
            runs = arcs.after(runs[None], r, np.ones(len(runs), dtype=bool))[0].max(axis=0)
        best = float((runs + machine.final).max())
        if best == -np.inf:
            return worst, worst
        least = sum(float(each.min(initial=0.0)) for each in self.potentials(constraints, c))
        return min(worst, least), max(worst, best)

    def condition(self, one: Constraints, seen: Bools, true: Bools) -> Constraints:
        """Return itself: it keeps its observed variables as long as there is an unobserved one."""
        return one

    def automaton(self, constraints: Constraints, c: int, card: Ints) -> Automaton:
        """Count beliefs, without the states from which nothing is accepted; one of -inf alone is a violation."""
        machine, hard = constraints.data[c], bool(constraints.hard[c])
        scope = constraints.var[constraints.span(c)]
        allowed = machine.open_states(card[scope])
        penalty = float(constraints.penalty[c])
        if machine.deterministic:
            return _states_as_counts(machine, scope.tolist(), card, allowed, penalty)
        # beliefs that differ by round-off are merged
        unit = max(float(np.abs(each).max(initial=0.0)) for each in self.potentials(constraints, c)) or 1.0
        beliefs = np.where(allowed[0], machine.start(), -np.inf)[None]
        moves, gains, sizes, n_moves = list[Ints](), list[Floats](), list[int](), 0
        for step, (arcs, i) in enumerate(zip(machine.steps, scope.tolist(), strict=True)):
            # about as many as there are entries in the table of the step
            n_moves += len(beliefs) * int(card[i]) * max(len(machine.final), len(beliefs))
            check_moves(constraints, c, n_moves)
            values = arcs.after(beliefs, int(card[i]), allowed[step + 1])
            best = values.max(axis=2)
            gain = np.where(best == -np.inf, 0.0, best)
            values = (values - gain[..., None]).reshape(-1, len(machine.final))
            _, first, move = np.unique(
                np.round(values / unit, 11) + 0.0, axis=0, return_index=True, return_inverse=True
            )
            beliefs, move = values[first], move.reshape(gain.shape).astype(np.int64)
            dead = (beliefs == -np.inf).all(axis=1)
            if hard and dead.any():
                number = np.where(dead, -1, np.cumsum(~dead) - 1)
                beliefs, move = beliefs[dead if dead.all() else ~dead], number[move]
            moves.append(move)
            gains.append(gain)
            sizes.append(len(beliefs))
        ends = (beliefs + machine.final).max(axis=1)
        final = np.where(ends == -np.inf, -penalty, ends)
        weighted = any(gain.any() for gain in gains)
        return Automaton(scope.tolist(), moves, sizes, final, gains if weighted else None)


def _states_as_counts(
    machine: _Machine, scope: list[int], card: Ints, allowed: list[Bools], penalty: float
) -> Automaton:
    """The automaton of a deterministic machine, whose beliefs are its states, in their order."""
    # A count is n_states less the state; 0 means that nothing can be accepted any more.
    n = len(machine.final)
    moves, gains, sizes = list[Ints](), list[Floats](), list[int]()
    counts = np.array([n - machine.initial if allowed[0][machine.initial] else 0])
    for step, (arcs, i) in enumerate(zip(machine.steps, scope, strict=True)):
        after, gain = np.zeros((n + 1, int(card[i])), dtype=np.int64), np.zeros((n + 1, int(card[i])))
        mine = (arcs.letter < card[i]) & allowed[step + 1][arcs.end]
        at = n - arcs.begin[mine], arcs.letter[mine]
        after[at], gain[at] = n - arcs.end[mine], arcs.weight[mine]
        next_counts, found = np.unique(after[counts], return_inverse=True)
        move = found.reshape(len(counts), -1).astype(np.int64)
        gains.append(gain[counts])
        if penalty == math.inf and next_counts[0] == 0:
            move = move - 1 if len(next_counts) > 1 else np.full_like(move, -1)
            next_counts = next_counts[1:] if len(next_counts) > 1 else next_counts
        counts = next_counts
        moves.append(move)
        sizes.append(len(counts))
    ends = np.append(-np.inf, machine.final[::-1])[counts]
    final = np.where(ends == -np.inf, -penalty, ends)
    return Automaton(scope, moves, sizes, final, gains if any(gain.any() for gain in gains) else None)


# -- Functions of variables by what they keep of those that they have read --------------------------------------------

MOST_KEPT = 1 << 24
"""Maximum number of numbers that are kept after a variable, over all states of it."""

Step = Callable[[int, Floats], tuple[Floats, Floats | float]]
"""Rows (n, card, size) kept after each state of a variable, by its place and the rows before it, and the costs."""


def constraint_bytes(constraint: Constraint) -> float:
    """Memory of the transitions of an automaton, 0 for other constraints."""
    machine = constraint.data
    known = {id(arcs): len(arcs.begin) for arcs in machine.steps} if isinstance(machine, _Machine) else {}
    return 32.0 * sum(known.values())


def kept_in_rows(
    name: str, variables: Sequence[int], card: Ints, start: Sequence[float], step: Step, end: Callable[[Floats], Floats]
) -> Constraint:
    """A function with costs, inf for what is forbidden, as an automaton with as few states as possible.

    It reads its variables one after another and keeps a row of numbers, from `start` on; `end` is the cost of the last.
    """
    rows, layers = np.array([start], dtype=np.float64), list[tuple[Ints, Floats]]()
    for place, r in enumerate(card[list(variables)].tolist()):
        if rows.size * r > MOST_KEPT:
            raise UnsupportedModel(f"{name}: it takes more than {MOST_KEPT} numbers, expected a smaller function")
        after, cost = step(place, rows)
        n = len(rows)
        if after.shape[2] == 1:
            flat, found = np.unique(after.ravel(), return_inverse=True)
            rows = flat[:, None]
        else:
            rows, found = np.unique(after.reshape(n * r, -1), axis=0, return_inverse=True)
        layers.append((found.reshape(n, r).astype(np.int64), np.broadcast_to(cost, (n, r))))
    ends, number = np.unique(end(rows), return_inverse=True)
    ends, dead = -ends, ends == np.inf
    steps, widest = list[_Arcs](), len(ends)
    for move, cost in layers[::-1]:  # rows from which all that follows costs the same are one state
        following = number[move].astype(np.float64)
        forbidden = np.isinf(cost) | dead[number[move]]
        following[forbidden] = -1.0
        futures, number = np.unique(np.hstack([following, np.where(forbidden, 0.0, cost)]), axis=0, return_inverse=True)
        number, r = number.ravel(), move.shape[1]
        dead = (futures[:, :r] == -1.0).all(axis=1)
        begin, letter = np.nonzero(futures[:, :r] >= 0.0)
        steps.append(_Arcs(begin, letter, futures[begin, letter].astype(np.int64), 0.0 - futures[begin, r + letter]))
        widest = max(widest, len(futures))
    final = np.full(widest, -np.inf)
    final[: len(ends)] = ends
    machine = _Machine(int(number[0]), tuple(steps[::-1]), final)
    return Constraint(name, REGULAR, tuple(variables), data=machine)
