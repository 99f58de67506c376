"""Constraints rewritten as tables with auxiliary variables: exact, for methods that only support tables.

A constraint reads its variables one after another and keeps a count; an auxiliary variable holds the count after each
step. The auxiliary variables are functions of the others: every labelling has exactly one extension of finite value,
so maxima, sums and the m best labellings of both models are the same. If the tables of the counts would be large, and
few words are allowed, the states of a single auxiliary variable are these words. Many constraints on the same two
variables, and two variables that must differ, become a table on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.constraints.flat import LINEAR, Constraints
from mapmrf.errors import UnsupportedModel
from mapmrf.model.builders import FactorLists, one_shape_each
from mapmrf.model.graph import FactorGraph

MOST_MOVES = 1 << 26  # moves of all steps together
MOST_ENTRIES = 1 << 26  # maximum number of table entries that a rewriting adds
LARGE = 1 << 20  # number of table entries from which a constraint may become a variable whose states are its words
MOST_WORDS = 1 << 16


@dataclass(eq=False)
class Rewriting:
    """A model with constraints, and the same model with tables in their place.

    Attributes
    ----------
    original
        The model with constraints.
    graph
        The model without these constraints: the original variables come first, then the auxiliary ones.
    automata
        For every constraint that is counted: its automaton, and the index of its first auxiliary variable.
    words
        For every constraint that allows few words: its variables, the words (n_words, arity), and the index of the
        auxiliary variable whose states they are.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 4, [], []).with_constraints([constraints.exactly_k(range(4), 2)])
    >>> rewriting = rewrite(graph)
    >>> rewriting.graph
    FactorGraph(n_vars=6, n_factors=3, n_tables=3)
    >>> lifted = rewriting.lift(graph.check_labels([1, 0, 1, 0]))
    >>> lifted.tolist(), rewriting.graph.value(lifted), rewriting.project(lifted).tolist()
    ([1, 0, 1, 0, 1, 1], 0.0, [1, 0, 1, 0])
    """

    original: FactorGraph
    graph: FactorGraph
    automata: list[tuple[Automaton, int]] = field(default_factory=list)
    words: list[tuple[list[int], Ints, int]] = field(default_factory=list)

    def lift(self, labels: Ints) -> Ints:
        """Lift labels (n_vars,): append those of the auxiliary variables, which are functions of them."""
        lifted = np.zeros(self.graph.n_vars, dtype=np.int64)
        lifted[: self.original.n_vars] = labels
        for counter, first in self.automata:
            counts = counter.read(lifted)[counter.first_step : len(counter.variables) - 1]
            lifted[first : first + len(counts)] = counts
        for variables, words, i in self.words:
            lifted[i] = int((words == lifted[variables]).all(axis=1).argmax())
        return lifted

    def project(self, labels: Ints) -> Ints:
        """Project labels: drop those of the auxiliary variables, leaving (n_vars,)."""
        return labels[: self.original.n_vars]


def rewrite(graph: FactorGraph, most: int = MOST_ENTRIES, some: Bools | None = None) -> Rewriting:
    """Write the constraints of a model, or `some` of them (n_constraints,), as tables of at most so many entries.

    Raises
    ------
    UnsupportedModel
        If that needs too many entries: a sum of real weights may have very many values.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 4, [], []).with_constraints([constraints.xor(range(4), 1)])
    >>> rewrite(graph).graph
    FactorGraph(n_vars=6, n_factors=3, n_tables=2)
    """
    return _Rewriter(graph, most, np.ones(graph.n_constraints, dtype=bool) if some is None else some).run()


def without_constraints(graph: FactorGraph) -> FactorGraph:
    """Return the model with its constraints written as tables, or the model itself if it has none.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2], [], [])
    >>> without_constraints(graph) is graph
    True
    """
    return graph if graph.constraints is None else rewrite(graph).graph


def refuse_constraints(graph: FactorGraph, what: str) -> None:
    """Raise UnsupportedModel if a model has constraints, for targets that do not support them."""
    if graph.constraints is not None:
        raise UnsupportedModel(
            f"{what} has no constraints, and the model has {graph.n_constraints}; "
            "mapmrf.constraints.as_tables.without_constraints(graph) has tables in their place"
        )


class _Rewriter:
    def __init__(self, graph: FactorGraph, most: int, some: Bools) -> None:
        assert graph.constraints is not None
        self.most, self.some = most, some
        self.original, self.constraints = graph, graph.constraints
        self.card: list[int] = graph.card.tolist()
        self.theta_v = [graph.theta_v.copy()]
        self.constant = graph.constant
        self.scopes: list[tuple[int, ...]] = []
        self.table_of: list[int] = []
        self.tables: list[Floats] = []
        self.known: dict[tuple[object, ...], int] = {}  # tables by their content
        self.entries = 0
        self.automata: list[tuple[Automaton, int]] = []
        self.words: list[tuple[list[int], Ints, int]] = []

    def run(self) -> Rewriting:
        constraints = self.constraints
        hard_pairs: dict[tuple[int, int], None] = {}
        pairs = crowded_pairs(constraints, self.original.card, self.some)
        for (i, j), members in pairs.items():
            self.spend(self.card[i] * self.card[j])
            table = pair_table(constraints, members, (i, j), (self.card[i], self.card[j]))
            self.add_factor((i, j), self.add_table(table))
        done = {c for members in pairs.values() for c in members}
        for c in np.flatnonzero(self.some & ((constraints.penalty > 0) | constraints.by_automaton)).tolist():
            kind, n, hard = constraints.kind_of(c), len(constraints.var[constraints.span(c)]), bool(constraints.hard[c])
            unequal = kind.unequal_pairs(constraints, c)
            if c in done:
                continue
            if unequal is None or not (hard or n <= 2):
                self.count(c)
            elif hard:
                self.constant += min(0.0, kind.interval(constraints, c, self.original.card)[1])
                hard_pairs.update(dict.fromkeys(unequal))
            else:
                for i, j in unequal:
                    self.add_difference(i, j, float(constraints.penalty[c]))
        for i, j in hard_pairs:
            _check_awaited()
            self.add_difference(i, j)
        return Rewriting(self.original, self.graph(), self.automata, self.words)

    def add_difference(self, i: int, j: int, penalty: float = np.inf) -> None:
        key = self.card[i], self.card[j], penalty
        if key not in self.known:
            self.spend(self.card[i] * self.card[j])
            table = np.zeros((self.card[i], self.card[j]))
            np.fill_diagonal(table, -penalty)
            self.known[key] = self.add_table(table)
        self.add_factor((i, j), self.known[key])

    def count(self, c: int) -> None:
        """Write a constraint as a chain of counts, or, if that is large, as a variable whose states are its words."""
        counter = self.constraints.kind_of(c).automaton(self.constraints, c, self.original.card)
        variables, n_steps = counter.variables, len(counter.variables)
        entries = sum(move.size * size for move, size in zip(counter.moves[:-1], counter.sizes, strict=False))
        found = counter.words(MOST_WORDS) if entries > LARGE else None
        if found is not None and found.default == -np.inf:
            states = self.original.card[variables]
            if 0 < len(found.theta) * int(states.sum()) < entries:
                self.choose(variables, found)
                return
        at = int(self.original.var_ptr[variables[0]])
        first_theta = self.theta_v[0][at : at + self.card[variables[0]]]
        gains: Sequence[Floats | None] = counter.gains or (None,) * n_steps
        if counter.first_step == 1 or n_steps == 1:  # there is no table for the first step
            first_theta += 0.0 if gains[0] is None else gains[0][0]
        if n_steps == 1:
            first_theta += worth_of(counter.moves[0][0], counter.final)
            return
        carrier, first = variables[0], len(self.card)
        self.automata.append((counter, first))
        for step in range(n_steps):
            _check_awaited()
            last = step == n_steps - 1
            if step == 0 and counter.first_step == 1:
                continue
            move, gain = counter.moves[step], gains[step]
            if step == counter.first_step == 1:  # the first variable itself in place of the count after it
                first_move = counter.moves[0][0]
                move, gain = move[first_move], None if gain is None else gain[first_move]
            table = self.move_table(move, gain, counter.sizes[step], counter.final if last else None)
            scope = (variables[step],) if step == 0 else (carrier, variables[step])
            if not last:
                carrier = len(self.card)
                self.card.append(counter.sizes[step])
                self.theta_v.append(np.zeros(counter.sizes[step]))
                scope = (*scope, carrier)
            self.add_factor(scope, table)

    def choose(self, variables: list[int], found: Words) -> None:
        """Add a variable for the words of a constraint, each of which has its value, and a table with every letter."""
        n, chosen = len(found.theta), len(self.card)
        self.words.append((variables, found.words, chosen))
        self.card.append(n)
        self.theta_v.append(found.theta)
        for i, column in zip(variables, found.words.T, strict=True):
            _check_awaited()
            self.spend(n * self.card[i])
            table = np.where(np.arange(self.card[i])[:, None] == column, 0.0, -np.inf)
            self.add_factor((i, chosen), self.add_table(table))

    def move_table(self, move: Ints, gain: Floats | None, size: int, final: Floats | None) -> int:
        """The table of a step: by count before, state of the variable, and count after or value at the end."""
        gained, ending = (b"" if each is None else each.tobytes() for each in (gain, final))
        key = (move.shape, move.tobytes(), gained, size, ending)
        if key not in self.known:
            if final is not None:
                self.spend(move.size)
                table = worth_of(move, final)
            else:
                self.spend(move.size * size)
                table = np.where(move[..., None] == np.arange(size), 0.0, -np.inf)
            if gain is not None:
                table += gain if final is not None else gain[..., None]
            self.known[key] = self.add_table(table)
        return self.known[key]

    def spend(self, entries: int) -> None:
        """Count entries of tables that are to come."""
        self.entries += entries
        if self.entries > self.most:
            raise UnsupportedModel(
                f"the constraints need more than {self.most} table entries; a method that handles them as they "
                "are, such as auto, lp or icm, needs none"
            )

    def add_table(self, table: Floats) -> int:
        self.tables.append(table.ravel())
        return len(self.tables) - 1

    def add_factor(self, scope: tuple[int, ...], table: int) -> None:
        if len(scope) == 1:
            i = scope[0]
            at = int(self.original.var_ptr[i])
            self.theta_v[0][at : at + self.card[i]] += self.tables[table]
            return
        self.scopes.append(scope)
        self.table_of.append(table)

    def graph(self) -> FactorGraph:
        graph, rest = self.original, self.constraints.take(np.flatnonzero(~self.some))
        sizes = [len(scope) for scope in self.scopes]
        flat = np.array([i for scope in self.scopes for i in scope], dtype=np.int64)
        lists = one_shape_each(
            FactorLists(
                np.array(self.card, dtype=np.int64),
                offsets(np.concatenate([graph.arity, np.array(sizes, dtype=np.int64)])),
                short(np.concatenate([graph.scope, flat])),
                short(np.concatenate([graph.table_of, graph.n_tables + np.array(self.table_of, dtype=np.int64)])),
                offsets(np.concatenate([np.diff(graph.table_ptr), [len(table) for table in self.tables]])),
                np.concatenate([graph.theta_t, *self.tables]),
                None if graph.weight is None else np.concatenate([graph.weight, np.ones(len(sizes))]),
                np.concatenate(self.theta_v),
                self.constant,
            )
        )
        return replace(graph, **lists._asdict(), names=None, constraints=rest if len(rest) else None)


def _check_awaited() -> None:
    """Raise an exception if the run has abandoned this call: a rewriting can take long."""
    from mapmrf.run.clock import check_awaited

    check_awaited()


def why_too_wide(constraints: Constraints | None, card: Ints) -> str | None:
    """Why constraints are too many for methods that keep a number for all states of all variables of each."""
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


# -- Constraints as automata: they read variables one after another and keep the necessary information ----------------


@dataclass(frozen=True, eq=False)
class Automaton:
    """A finite automaton that reads labels and ends with their value."""

    variables: list[int]  # the variable that each step reads
    # for each step the count after it, by the count before and the state of the variable: (counts, card). -1 if no
    # continuation is allowed. There is one count before the first step.
    moves: list[Ints]
    sizes: list[int]  # number of counts after each step
    final: Floats  # (counts,) value of each count after the last step, such as 0 or minus the penalty
    gains: list[Floats] | None = None  # what each move adds to the value, finite, in the shape of `moves`; or nothing

    @cached_property
    def first_step(self) -> int:
        """The first step whose count is not a copy of the variable itself: 0 or 1."""
        first = self.moves[0][0]
        if len(self.moves) == 1 or self.variables[0] == self.variables[1]:
            return 0
        return int(np.unique(first[first >= 0]).size == len(first))

    def read(self, labels: Ints) -> Ints:
        """The count after each step; 0 where no continuation is allowed."""
        counts = np.zeros(len(self.variables), dtype=np.int64)
        count = 0
        for step, (i, move) in enumerate(zip(self.variables, self.moves, strict=True)):
            count = max(0, int(move[count, labels[i]]))
            counts[step] = count
        return counts

    def words(self, most: int) -> Words | None:
        """What it says of every word; None if there would be too many words, or if moves have values."""
        if self.gains is not None or len(set(self.variables)) < len(self.variables):
            return None
        # A further count after every step, the last, stands for what is forbidden.
        moves = [
            np.vstack([np.where(move < 0, size, move), np.full((1, move.shape[1]), size)])
            for move, size in zip(self.moves, self.sizes, strict=True)
        ]
        worth, of = np.unique(np.append(self.final, -np.inf), return_inverse=True)
        n_words = np.array([1.0, 0.0])
        for move, size in zip(moves, self.sizes, strict=True):
            n_words = np.bincount(move.ravel(), np.repeat(n_words, move.shape[1]), size + 1)
        n_words = np.bincount(of, n_words)
        default = int(n_words.argmax())
        if np.delete(n_words, default).sum() > most:
            return None
        wanted = [of != default]  # counts after which there is a word
        for move in moves[:0:-1]:
            wanted.append(wanted[-1][move].any(axis=1))
        words, at = np.zeros((1, 0), dtype=np.int64), np.zeros(1, dtype=np.int64)
        for move, some in zip(moves, wanted[::-1], strict=True):
            before, states = np.nonzero(some[move[at]])
            words, at = np.column_stack([words[before], states]), move[at[before], states]
        return Words(float(worth[default]), words, worth[of[at]])


class Words(NamedTuple):
    """A value of most words, and the words (n_words, n_steps) that have others."""

    default: float
    words: Ints
    theta: Floats


def worth_of(counts: Ints, final: Floats) -> Floats:
    """Values of counts at the end; -inf if a count is -1."""
    return np.where(counts >= 0, final[np.maximum(counts, 0)], -np.inf)


def check_moves(constraints: Constraints, c: int, n_moves: int) -> None:
    if n_moves > MOST_MOVES:
        many = f"more than {MOST_MOVES} ways to count, too many for tables"
        raise UnsupportedModel(f"constraint {constraints.called(c)}: {many}")


def bit_automaton(constraints: Constraints, c: int, effects: dict[int, Ints], flips: bool, good: Ints) -> Automaton:
    """Return an automaton whose counts are two bits, which states flip or set; `good` are those that it accepts."""
    moves: list[Ints] = []
    counts, sizes = np.zeros(1, dtype=np.int64), []
    for effect in effects.values():
        after = counts[:, None] ^ effect if flips else counts[:, None] | effect
        counts, move = np.unique(after, return_inverse=True)
        moves.append(move.reshape(after.shape).astype(np.int64))
        sizes.append(len(counts))
    final = np.where(np.isin(counts, good), 0.0, -float(constraints.penalty[c]))
    return Automaton(list(effects), moves, sizes, final)


# -- Many linear constraints on the same two variables, as one table on these -----------------------------------------


FEW_ON_A_PAIR = 2  # constraints on the same two variables that are always counted one by one


def crowded_pairs(constraints: Constraints, card: Ints, some: Bools) -> dict[tuple[int, int], list[int]]:
    """Pairs of variables with so many of some LINEAR constraints that a table takes less than counting each of them."""
    var, owner = constraints.var, constraints.owner
    low = np.minimum.reduceat(var, constraints.ptr[:-1])
    high = np.maximum.reduceat(var, constraints.ptr[:-1])
    others = np.bincount(owner, (var != low[owner]) & (var != high[owner]), len(constraints))
    linear = some & (constraints.kind == LINEAR) & (constraints.penalty > 0)
    two = np.flatnonzero(linear & (others == 0) & (low < high))
    found: dict[tuple[int, int], list[int]] = {}
    for c, i, j in zip(two.tolist(), low[two].tolist(), high[two].tolist(), strict=True):
        found.setdefault((i, j), []).append(c)
    return {
        (i, j): members
        for (i, j), members in found.items()
        if len(members) > max(FEW_ON_A_PAIR, int(card[i] * card[j]) // (2 * int(card[i] + card[j])))
    }


def pair_table(constraints: Constraints, members: list[int], pair: tuple[int, int], shape: tuple[int, int]) -> Floats:
    """What some LINEAR constraints on two variables are worth, as a table."""
    soft = [c for c in members if not constraints.hard[c]]
    hard = [c for c in members if constraints.hard[c]]
    table = _summed(constraints, soft, pair, shape, -constraints.penalty)
    if hard:
        n_broken = _summed(constraints, hard, pair, shape, np.ones(len(constraints)))
        table[n_broken > 0.5] = -np.inf
    return table


def _summed(
    constraints: Constraints, members: list[int], pair: tuple[int, int], shape: tuple[int, int], worth: Floats
) -> Floats:
    """The sum of what violations of some constraints are worth."""
    # Each is worth the same at all states of which it does not speak, so that it changes a few rows and columns only.
    table, everywhere = np.zeros(shape), 0.0
    for c in members:
        _check_awaited()
        mine, least, most = constraints.span(c), float(constraints.least[c]), float(constraints.most[c])
        first, second = (constraints.var[mine] == i for i in pair)
        rows, columns = constraints.state[mine][first], constraints.state[mine][second]
        a, b = constraints.weight[mine][first], constraints.weight[mine][second]
        # 1 where it is violated: at states that it does not name, at named ones of one variable alone, and of both
        sums = np.zeros(1), a, b, a[:, None] + b
        base, by_row, by_column, both = (((each < least) | (each > most)).astype(np.float64) for each in sums)
        table[rows] += worth[c] * (by_row - base)[:, None]
        table[:, columns] += worth[c] * (by_column - base)
        table[np.ix_(rows, columns)] += worth[c] * (both - by_row[:, None] - by_column + base)
        everywhere += float(worth[c]) * float(base[0])
    table += everywhere
    return table
