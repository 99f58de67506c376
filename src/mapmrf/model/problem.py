"""Problem: a factor graph with its factors sorted by shape, so that equal factors are plain slices of every array."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, distinct, frozen, offsets, ranges, short
from mapmrf.model.graph import FEW, FactorGraph
from mapmrf.model.memory import NO_LIMIT, MemoryBudget
from mapmrf.model.structured_pairs import LEAST_STATES, PairForms, find_forms, worthwhile


@dataclass(frozen=True, eq=False)
class Batch:
    """Neighbouring factors of one shape."""

    shape: tuple[int, ...]  # number of states of each variable of the scope
    hard: bool  # whether some table of the batch holds `-inf`
    # factors, edges, edge_states, configs: slices of the batch in arrays per factor, per edge, per edge state (`lam_e`)
    # and per configuration (`mu_f`)
    factors: slice
    edges: slice
    edge_states: slice
    configs: slice
    scope: Ints  # (n, arity) the variables of every factor
    var_ptr: Ints  # where the variables' blocks start in `mu_v`
    table_at: Ints  # (n,) where the factors' tables start in `theta_t`
    weight: Floats  # (n,) multipliers of the tables; empty if all weights of the model are 1

    @property
    def arity(self) -> int:
        return len(self.shape)

    @property
    def n(self) -> int:
        return int(self.factors.stop - self.factors.start)

    @property
    def n_configs(self) -> int:
        return int(np.prod(self.shape))

    @property
    def var_at(self) -> Ints:
        """Where the blocks of every factor's variables start in `mu_v`, (n, arity)."""
        return self.var_ptr[self.scope]

    @cached_property
    def consecutive(self) -> bool:
        """Whether the factors' tables are contiguous in `theta_t`."""
        return bool(np.all(np.diff(self.table_at) == self.n_configs))

    def tables(self, theta_t: Floats, rows: slice) -> Floats:
        """The potentials of some factors, (n_rows, n_configs): tables times weights."""
        # Without weights, this is a read-only view where the tables are contiguous.
        at = self.table_at[rows]
        if len(at) and self.consecutive:
            tables = theta_t[at[0] : at[-1] + self.n_configs].reshape(len(at), self.n_configs)
        else:
            tables = np.asarray(theta_t[at[:, None] + np.arange(self.n_configs)])
        return self.weight[rows, None] * tables if len(self.weight) else tables

    @cached_property
    def config(self) -> Ints:
        """State of every variable in every configuration, (n_configs, arity): the paper's M_ia without a matrix."""
        return frozen(np.indices(self.shape).reshape(self.arity, -1).T.copy())

    @cached_property
    def state_at(self) -> Ints:
        """Where the states of each variable start inside a factor's block of edge states, (arity + 1,)."""
        return frozen(offsets(self.shape))


@dataclass(frozen=True, eq=False)
class Problem:
    """A compiled factor graph: the input of a method.

    Attributes
    ----------
    graph
        The original model; its factor `order[a]` is factor `a` here.
    batches
        The factors, grouped by shape.
    sorted_by
        The new order of the factors (n_factors,), or None if they were already sorted; see `order`.
    scope_ptr, scope, table_at
        As in the graph, in the new order of the factors: (n_factors + 1,), (n_edges,) and (n_factors,).
    weight
        Multipliers of the factors' tables (n_factors,), in the new order; empty if all weights are 1.
    threads
        Number of threads that a method may use; results do not depend on it.
    memory
        How much memory a method may use.
    shared
        What methods have laid out for all models of this structure, by name: see `Problem.compile`.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> from mapmrf.method import Problem
    >>> problem = Problem.compile(grid(3, 3, seed=1))
    >>> problem.graph.n_vars, len(problem.batches)
    (9, 1)
    """

    graph: FactorGraph
    batches: tuple[Batch, ...]
    sorted_by: Ints | None
    scope_ptr: Ints
    scope: Ints
    table_at: Ints
    weight: Floats
    threads: int = 1
    memory: MemoryBudget = NO_LIMIT
    shared: dict[str, Any] = field(default_factory=dict, repr=False)

    @classmethod
    def compile(cls, graph: FactorGraph, threads: int = 1, memory: MemoryBudget = NO_LIMIT) -> Problem:
        """Sort the factors by shape; if they are already sorted, the graph's arrays are used as they are.

        Of small models in succession that differ in nothing but their potentials, only the first is compiled.
        """
        global _latest
        graph.check_sums()
        hard = hard_tables(graph)
        small = len(graph.theta_t) <= FEW and len(graph.scope) <= FEW and graph.n_vars <= FEW and not hard.any()
        latest = _latest  # another thread may replace it
        if small and latest is not None and _same_structure(graph, latest.graph):
            made = replace(latest, graph=graph, threads=threads, memory=memory)
            vars(made).update({key: vars(latest)[key] for key in _STRUCTURAL if key in vars(latest)})
        else:
            made = cls._compiled(graph, hard, threads, memory)
        _latest = made if small else _latest
        return made

    @classmethod
    def _compiled(cls, graph: FactorGraph, hard: Bools, threads: int, memory: MemoryBudget) -> Problem:
        group = _shape_groups(graph)
        if hard.any():
            group = group + hard[graph.table_of]
        order, scope_ptr, scope = None, graph.scope_ptr, graph.scope
        if np.any(group[1:] < group[:-1]):
            order = np.argsort(group, kind="stable")
            arity = graph.arity[order]
            scope_ptr = offsets(arity)
            scope = graph.scope[ranges(graph.scope_ptr[order], arity)]
            group = group[order]
        one_each = graph.n_tables == graph.n_factors and bool(np.all(np.diff(graph.table_of) == 1))
        if one_each and order is None:
            table_at = graph.table_ptr[:-1]
        elif graph.n_tables == 1:
            table_at = np.zeros(graph.n_factors, dtype=graph.table_ptr.dtype)
        else:
            table_at = graph.table_ptr[graph.table_of if order is None else graph.table_of[order]]
        weight = np.zeros(0) if graph.weight is None else graph.weight if order is None else graph.weight[order]
        for array in (scope_ptr, scope, table_at, weight):
            frozen(array)
        batches = tuple(_batches(graph, group, scope_ptr, scope, table_at, weight))
        return cls(graph, batches, order, scope_ptr, scope, table_at, weight, threads, memory)

    @property
    def n_vars(self) -> int:
        return self.graph.n_vars

    @property
    def n_factors(self) -> int:
        return self.graph.n_factors

    @property
    def n_edges(self) -> int:
        return self.graph.n_edges

    @property
    def n_states(self) -> int:
        """Length of arrays per variable state, such as `mu_v`."""
        return len(self.graph.theta_v)

    @property
    def n_edge_states(self) -> int:
        """Length of arrays per edge state, such as `lam_e`."""
        return self.batches[-1].edge_states.stop if self.batches else 0

    @property
    def n_configs(self) -> int:
        """Length of arrays per configuration, such as `mu_f`."""
        return self.batches[-1].configs.stop if self.batches else 0

    @cached_property
    def only_binary(self) -> bool:
        return bool(np.all(self.graph.card == 2))

    @cached_property
    def order(self) -> Ints:
        """Number in the graph of every factor, (n_factors,)."""
        return frozen(np.arange(self.n_factors) if self.sorted_by is None else self.sorted_by)

    @cached_property
    def edge_ptr(self) -> Ints:
        """Offsets of the edges' blocks in arrays per edge state, (n_edges + 1,)."""
        return frozen(offsets(self.graph.card[self.scope]))

    @cached_property
    def edge_factor(self) -> Ints:
        """The factor of every edge, (n_edges,)."""
        arity = self.batches[0].arity if len(self.batches) == 1 else np.diff(self.scope_ptr)
        return frozen(np.repeat(short(np.arange(self.n_factors)), arity))

    @cached_property
    def edge_stride(self) -> Ints:
        """Stride of every edge's variable in its factor's table, (n_edges,)."""
        if self.sorted_by is None:
            return self.graph.stride
        return frozen(self.graph.stride[ranges(self.graph.scope_ptr[self.order], np.diff(self.scope_ptr))])

    @cached_property
    def edge_state_at(self) -> Ints:
        """Position in `mu_v` of every edge state, (n_edge_states,)."""
        graph = self.graph
        return frozen(ranges(graph.var_ptr[self.scope], graph.card[self.scope]))

    @cached_property
    def config_ptr(self) -> Ints:
        """Offsets of the factors' blocks in arrays per configuration, (n_factors + 1,)."""
        return frozen(offsets(np.diff(self.graph.table_ptr)[self.graph.table_of[self.order]]))

    @cached_property
    def nbr_ptr(self) -> Ints:
        """Offsets of the variables' lists of edges in `nbr`, (n_vars + 1,)."""
        return frozen(offsets(np.bincount(self.scope, minlength=self.n_vars)))

    @cached_property
    def nbr(self) -> Ints:
        """The edges of all variables: those of `i` are ``nbr[nbr_ptr[i]:nbr_ptr[i + 1]]``."""
        return frozen(np.argsort(self.scope, kind="stable"))

    @cached_property
    def degree(self) -> Ints:
        """Number of factors of every variable, the paper's |N_i|."""
        return frozen(np.diff(self.nbr_ptr))

    @cached_property
    def theta_f(self) -> Floats:
        """Log potentials of every configuration, laid out like `mu_f`: tables that factors share are repeated."""
        sizes = np.diff(self.config_ptr)
        theta_f = self.graph.theta_t[ranges(self.table_at, sizes)]
        if len(self.weight):
            theta_f *= np.repeat(self.weight, sizes)
        return frozen(theta_f)

    @cached_property
    def forms(self) -> PairForms:
        """Which pairs are Potts, linear or quadratic, see `mapmrf.model.structured_pairs`."""
        graph = self.graph
        table_of = graph.table_of if self.sorted_by is None else graph.table_of[self.sorted_by]
        return find_forms(graph.n_tables, _square_tables(graph), table_of, self.weight)

    @cached_property
    def quick_forms(self) -> PairForms:
        """The forms of those pairs for which messages are faster than by their tables."""
        return worthwhile(self.forms, self.graph.card[self.scope[self.scope_ptr[:-1]]])

    @cached_property
    def feasible_v(self) -> Bools:
        """Whether a variable's state has a finite unary potential."""
        return frozen(self.graph.theta_v > -np.inf)


_latest: Problem | None = None  # of the small models without forbidden entries in tables

_STRUCTURAL = (
    "only_binary", "order", "edge_ptr", "edge_factor", "edge_stride", "edge_state_at", "config_ptr", "nbr_ptr", "nbr",
    "degree",
)  # fmt: skip
"""Cached arrays of a problem that do not depend on the potentials."""


def _same_structure(graph: FactorGraph, other: FactorGraph) -> bool:
    for name in ("card", "scope_ptr", "scope", "table_of", "table_ptr", "weight"):
        one, two = getattr(graph, name), getattr(other, name)
        if one is not two and (one is None or two is None or one.dtype != two.dtype or not np.array_equal(one, two)):
            return False
    return True


def hard_tables(graph: FactorGraph) -> Bools:
    """Which tables hold -inf, (n_tables,)."""
    if graph.n_tables == 0 or np.isfinite(graph.theta_t).all():
        return np.zeros(graph.n_tables, dtype=bool)
    return np.logical_or.reduceat(np.isneginf(graph.theta_t), graph.table_ptr[:-1])


def _shape_groups(graph: FactorGraph) -> Ints:
    """Number the factors' shapes by even numbers, those of smaller arity first."""
    every = graph.arity
    if len(every) == 0 or (np.all(every == every[0]) and np.all(graph.card == graph.card[0])):
        return np.broadcast_to(np.int64(0), graph.n_factors)
    group = np.zeros(graph.n_factors, dtype=np.int64)
    n_groups = 0
    for arity in distinct(every):
        members = np.flatnonzero(every == arity)
        shapes = graph.card[graph.scope[graph.scope_ptr[members][:, None] + np.arange(arity)]]
        base = int(shapes.max()) + 1
        if base ** shapes.shape[1] < 2**62:  # one number per shape: much faster to sort
            codes = np.zeros(len(shapes), dtype=np.int64)
            for column in shapes.T:
                codes = codes * base + column
        else:
            codes = np.unique(shapes, axis=0, return_inverse=True)[1].ravel()
        _, of = np.unique(codes, return_inverse=True)
        group[members] = 2 * (n_groups + of)
        n_groups += int(of.max()) + 1
    return group


def _batches(
    graph: FactorGraph, group: Ints, scope_ptr: Ints, scope: Ints, table_at: Ints, weight: Floats
) -> Iterator[Batch]:
    """Cut the sorted factors where the group changes."""
    cuts = [0, *(np.flatnonzero(group[1:] != group[:-1]) + 1).tolist(), len(group)] if len(group) else []
    state_at = config_at = 0
    for begin, end in pairwise(cuts):
        edges = slice(int(scope_ptr[begin]), int(scope_ptr[end]))
        mine = scope[edges].reshape(end - begin, -1)
        shape = tuple(graph.card[mine[0]].tolist())
        n_states, n_configs = (end - begin) * sum(shape), (end - begin) * math.prod(shape)
        yield Batch(
            shape=shape,
            hard=bool(group[begin] & 1),
            factors=slice(begin, end),
            edges=edges,
            edge_states=slice(state_at, state_at + n_states),
            configs=slice(config_at, config_at + n_configs),
            scope=mine,
            var_ptr=graph.var_ptr,
            table_at=table_at[begin:end],
            weight=weight[begin:end],
        )
        state_at, config_at = state_at + n_states, config_at + n_configs


def _square_tables(graph: FactorGraph) -> Iterator[tuple[Ints, Floats]]:
    """Tables of pairs of variables with equally many states, if these are enough for a form; and their numbers."""
    some = np.full(graph.n_tables, -1)  # a pair with this table
    pairs = graph.arity == 2
    some[graph.table_of if pairs.all() else graph.table_of[pairs]] = np.flatnonzero(pairs)
    tables = np.flatnonzero(some >= 0)
    ends = graph.scope_ptr[some[tables]]
    size = graph.card[graph.scope[ends]]
    square = (size == graph.card[graph.scope[ends + 1]]) & (size >= LEAST_STATES)
    tables, size = tables[square], size[square]
    for n in np.unique(size).tolist():
        members = tables[size == n]
        # table entries that are processed together
        step = max(1, (1 << 18) // n**2)
        for begin in range(0, len(members), step):
            some = members[begin : begin + step]
            places = graph.table_ptr[some][:, None].astype(np.int64) + np.arange(n * n)
            yield some, graph.theta_t[places].reshape(-1, n, n)
