"""Binary models as costs of conjunctions, what clauses and products of literals are: to and from factor graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.constraints.flat import LINEAR, Constraints
from mapmrf.errors import FormatError
from mapmrf.formats.files import charge, names_lost
from mapmrf.formats.tables import Factors, build
from mapmrf.model.graph import FactorGraph, Names

MOST_LITERALS = 4  # of a conjunction that becomes a table


@dataclass(frozen=True, eq=False)
class Conjunctions:
    """Costs that are paid where all literals hold, inf if that is forbidden; negative ones are rewards."""

    n_vars: int
    ptr: Ints
    var: Ints
    state: Ints
    cost: Floats

    @staticmethod
    def of(n_vars: int, literals: Sequence[Sequence[tuple[int, int]]], costs: Sequence[float]) -> Conjunctions:
        flat = np.array([each for some in literals for each in some], dtype=np.int64).reshape(-1, 2)
        sizes = [len(some) for some in literals]
        return Conjunctions(n_vars, offsets(sizes), flat[:, 0], flat[:, 1], np.array(costs, dtype=np.float64))

    def graph(self, path: Path, names: Names | None = None) -> FactorGraph:
        """Tables for short conjunctions, which share them by their signs, and constraints for long ones."""
        charge(
            path, 64.0 * self.n_vars + 100.0 * len(self.var), "its variables and literals", f"{self.n_vars} variables"
        )
        size, hard = np.diff(self.ptr), np.isinf(self.cost)
        short = np.flatnonzero(size <= MOST_LITERALS)
        code = np.zeros(len(size), dtype=np.int64)
        for place in range(MOST_LITERALS):
            mine = size > place
            code[mine] = 2 * code[mine] + self.state[self.ptr[:-1][mine] + place]
        key = (size[short] << MOST_LITERALS | code[short]) * 2 + hard[short]
        known, table_of = np.unique(key, return_inverse=True)
        tables = []
        for each in known.tolist():
            arity, at = each >> MOST_LITERALS + 1, each >> 1 & (1 << MOST_LITERALS) - 1
            table = np.zeros(1 << arity)
            table[at] = -np.inf if each & 1 else 1.0
            tables.append(table)
        long = np.flatnonzero(size > MOST_LITERALS)
        gains = -self.cost[long]
        constant = float(gains[gains > 0].sum())
        factors = Factors(
            offsets(size[short]),
            self.var[ranges(self.ptr[short], size[short])],
            table_of.ravel().astype(np.int64),
            offsets([len(table) for table in tables]),
            np.concatenate([np.zeros(0), *tables]),
            np.where(hard[short], 1.0, -self.cost[short]) + 0.0,
        )
        if constant:
            factors = factors.extended([()], [np.array([constant])])
        graph = build(path, np.full(self.n_vars, 2), factors, names)
        if len(long) == 0:
            return graph
        sizes, at = size[long], ranges(self.ptr[long], size[long])
        limits = np.where(gains > 0, sizes, -np.inf), np.where(gains > 0, np.inf, sizes - 1.0)
        terms = self.var[at], self.state[at], np.ones(len(at))
        kind, names_of = np.full(len(long), LINEAR), ("clause",) * len(long)
        found = Constraints(kind, offsets(sizes), *terms, *limits, np.abs(gains), names_of)
        return replace(graph, constraints=found)


# -- writing ----------------------------------------------------------------------------------------------------------


def check(path: Path, graph: FactorGraph) -> None:
    many = np.flatnonzero(graph.card != 2)
    if len(many):
        raise FormatError(f"{path}: variable {many[0]} has {graph.card[many[0]]} states, expected 2 of every variable")
    graph.check_sums()


def tables_of(graph: FactorGraph) -> Iterator[tuple[list[int], Floats]]:
    """The constant, the unary potentials and the factors, each with its variables."""
    yield [], np.array(graph.constant)
    for i, unary in enumerate(graph.theta_v.reshape(-1, 2)):
        yield [i], unary
    for a in range(graph.n_factors):
        yield graph.scope_of(a).tolist(), graph.table(a)


def losses(graph: FactorGraph, named: bool = False) -> list[str]:
    finite = [part[np.isfinite(part)] for part in (graph.theta_v, graph.theta_t, np.array([graph.constant]))]
    lost = [] if named else names_lost(graph)
    if any((part % 1 != 0).any() for part in finite):
        lost.append("weights are not whole numbers, which other programs may refuse")
    if graph.constant and np.isfinite(graph.constant):
        lost.append(f"the constant {graph.constant:.6g} is written as a comment, which other programs ignore")
    return lost
