"""Constraints rewritten as tables with auxiliary variables: exact, for methods that only support tables.

A constraint reads its variables one after another and keeps a count; an auxiliary variable holds the count after each
step. The auxiliary variables are functions of the others: every labelling has exactly one extension of finite value,
so maxima, sums and the m best labellings of both models are the same. Many constraints on the same two variables, and
two variables that must differ, become a table on these.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, short
from mapmrf.constraints.counters import Counter, counter_of, worth_of
from mapmrf.constraints.flat import ConstraintKind
from mapmrf.constraints.pairs import crowded_pairs, pair_table
from mapmrf.errors import UnsupportedModel
from mapmrf.graph import FactorGraph
from mapmrf.graph_builders import FactorLists, one_shape_each
from mapmrf.supervision import check_awaited

MOST_ENTRIES = 1 << 26
"""Maximum number of table entries that a rewriting adds."""


@dataclass(eq=False)
class Rewriting:
    """A model with constraints, and the same model with tables in their place.

    Attributes
    ----------
    original
        The model with constraints.
    graph
        The model without constraints: the original variables come first, then the auxiliary ones.
    counters
        For every constraint that is counted: its counter, and the index of its first auxiliary variable.

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
    counters: list[tuple[Counter, int]] = field(default_factory=list)

    def lift(self, labels: Ints) -> Ints:
        """Lift labels (n_vars,): append those of the auxiliary variables, which are functions of them.

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf import constraints
        >>> graph = mapmrf.FactorGraph.from_tables([2] * 3, [], [])
        >>> graph = graph.with_constraints([constraints.exactly_one(range(3))])
        >>> rewrite(graph).lift(graph.check_labels([0, 1, 0])).tolist()
        [0, 1, 0, 1]
        """
        lifted = np.zeros(self.graph.n_vars, dtype=np.int64)
        lifted[: self.original.n_vars] = labels
        for counter, first in self.counters:
            counts = counter.read(lifted)[counter.first_step : len(counter.variables) - 1]
            lifted[first : first + len(counts)] = counts
        return lifted

    def project(self, labels: Ints) -> Ints:
        """Project labels: drop those of the auxiliary variables, leaving (n_vars,).

        Examples
        --------
        >>> import mapmrf
        >>> from mapmrf import constraints
        >>> graph = mapmrf.FactorGraph.from_tables([2] * 3, [], [])
        >>> graph = graph.with_constraints([constraints.exactly_one(range(3))])
        >>> rewriting = rewrite(graph)
        >>> rewriting.project(mapmrf.solve(rewriting.graph).labels).sum()
        np.int64(1)
        """
        return labels[: self.original.n_vars]


def rewrite(graph: FactorGraph, most: int = MOST_ENTRIES) -> Rewriting:
    """Write the constraints of a model as tables, of at most so many entries.

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
    return _Rewriter(graph, most).run()


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
    """Raise UnsupportedModel if a model has constraints, for targets that do not support them.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2], [], []).with_constraints([constraints.exactly_one([0])])
    >>> refuse_constraints(graph, "a BQM")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    mapmrf.errors.UnsupportedModel: a BQM has no constraints, and the model has 1; ...
    """
    if graph.constraints is not None:
        raise UnsupportedModel(
            f"{what} has no constraints, and the model has {graph.n_constraints}; "
            "mapmrf.rewriting.without_constraints(graph) has tables in their place"
        )


class _Rewriter:
    def __init__(self, graph: FactorGraph, most: int) -> None:
        assert graph.constraints is not None
        self.most = most
        self.original, self.constraints = graph, graph.constraints
        self.card: list[int] = graph.card.tolist()
        self.theta_v = [graph.theta_v.copy()]
        self.constant = graph.constant
        self.scopes: list[tuple[int, ...]] = []
        self.table_of: list[int] = []
        self.tables: list[Floats] = []
        self.known: dict[tuple[object, ...], int] = {}  # tables by their content
        self.entries = 0
        self.counters: list[tuple[Counter, int]] = []

    def run(self) -> Rewriting:
        constraints = self.constraints
        hard_pairs: dict[tuple[int, int], None] = {}
        pairs = crowded_pairs(constraints, self.original.card)
        for (i, j), members in pairs.items():
            self.add_pair_table(i, j, members)
        done = {c for members in pairs.values() for c in members}
        for c in range(len(constraints)):
            n = int(constraints.ptr[c + 1] - constraints.ptr[c])
            different = constraints.kind[c] == ConstraintKind.ALL_DIFFERENT
            if c in done or constraints.penalty[c] == 0 or (different and n == 1):
                continue
            if different and constraints.hard[c]:
                hard_pairs.update(dict.fromkeys(self.different_pairs(c)))
            elif different and n == 2:
                self.add_difference(*next(self.different_pairs(c)), float(constraints.penalty[c]))
            else:
                self.count(c)
        for i, j in hard_pairs:
            check_awaited()
            self.add_difference(i, j)
        return Rewriting(self.original, self.graph(), self.counters)

    def add_pair_table(self, i: int, j: int, members: list[int]) -> None:
        """A table for constraints on two variables."""
        self.spend(self.card[i] * self.card[j])
        table = pair_table(self.constraints, members, (i, j), (self.card[i], self.card[j]))
        self.add_factor((i, j), self.add_table(table))

    def different_pairs(self, c: int) -> Iterator[tuple[int, int]]:
        """Pairs of variables that must differ."""
        scope = sorted(self.constraints.var[self.constraints.span(c)].tolist())
        if self.constraints.hard[c] and len(scope) > max(self.card[i] for i in scope):
            self.constant = -np.inf  # more variables than states
        for at, i in enumerate(scope):
            for j in scope[at + 1 :]:
                yield i, j

    def add_difference(self, i: int, j: int, penalty: float = np.inf) -> None:
        key = self.card[i], self.card[j], penalty
        if key not in self.known:
            self.spend(self.card[i] * self.card[j])
            table = np.zeros((self.card[i], self.card[j]))
            np.fill_diagonal(table, -penalty)
            self.known[key] = self.add_table(table)
        self.add_factor((i, j), self.known[key])

    def count(self, c: int) -> None:
        """Write a constraint as a chain of counts."""
        counter = counter_of(self.constraints, c, self.original.card)
        variables, n_steps = counter.variables, len(counter.variables)
        if n_steps == 1:
            at = int(self.original.var_ptr[variables[0]])
            self.theta_v[0][at : at + self.card[variables[0]]] += worth_of(counter.moves[0][0], counter.final)
            return
        carrier, first = variables[0], len(self.card)
        self.counters.append((counter, first))
        for step in range(n_steps):
            check_awaited()
            last = step == n_steps - 1
            if step == 0 and counter.first_step == 1:
                continue
            move = counter.through_first(step) if step <= counter.first_step else counter.moves[step]
            table = self.move_table(move, counter.sizes[step], counter.final if last else None)
            scope = (variables[step],) if step == 0 else (carrier, variables[step])
            if not last:
                carrier = len(self.card)
                self.card.append(counter.sizes[step])
                self.theta_v.append(np.zeros(counter.sizes[step]))
                scope = (*scope, carrier)
            self.add_factor(scope, table)

    def move_table(self, move: Ints, size: int, final: Floats | None) -> int:
        """The table of a step: by count before, state of the variable, and count after or value at the end."""
        ending = b"" if final is None else final.tobytes()
        key = (move.shape, move.tobytes(), size, ending)
        if key not in self.known:
            if final is not None:
                self.spend(move.size)
                table = worth_of(move, final)
            else:
                self.spend(move.size * size)
                table = np.where(move[..., None] == np.arange(size), 0.0, -np.inf)
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
        """The model with the tables added so far."""
        graph = self.original
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
            )
        )
        return replace(
            graph,
            **lists._asdict(),
            theta_v=np.concatenate(self.theta_v),
            constant=self.constant,
            names=None,
            constraints=None,
        )
