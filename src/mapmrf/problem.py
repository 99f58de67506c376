"""Problem: a factor graph with its factors sorted by shape, so that equal factors are plain slices of every array."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, frozen, offsets, ranges
from mapmrf.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Batch:
    """Neighbouring factors of one shape.

    Attributes
    ----------
    shape
        Number of states of each variable of the scope.
    hard
        Whether some table of the batch holds `-inf`.
    factors, edges, edge_states, configs
        Slices of the batch in arrays per factor, per edge, per edge state (`lam_e`) and per configuration (`mu_f`).
    var_at : (n, arity)
        Where the variables' blocks start in `mu_v`.
    table_at : (n,)
        Where the factors' tables start in `theta_t`.
    """

    shape: tuple[int, ...]
    hard: bool
    factors: slice
    edges: slice
    edge_states: slice
    configs: slice
    var_at: Ints
    table_at: Ints

    @property
    def arity(self) -> int:
        """Number of variables of each factor."""
        return len(self.shape)

    @property
    def n(self) -> int:
        """Number of factors."""
        return int(self.factors.stop - self.factors.start)

    @property
    def n_configs(self) -> int:
        """Number of configurations of each factor."""
        return int(np.prod(self.shape))

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
    """A compiled factor graph: what a method works on.

    Attributes
    ----------
    graph
        The model as it was given; factor `order[a]` of it is factor `a` here.
    batches
        The factors, grouped by shape.
    order, scope, scope_ptr, table_at
        As in the graph, in the new order of the factors.
    edge_ptr : (n_edges + 1,)
        Offsets of the edges' blocks in arrays per edge state.
    config_ptr : (n_factors + 1,)
        Offsets of the factors' blocks in arrays per configuration.
    nbr_ptr, nbr
        The edges of variable `i` are ``nbr[nbr_ptr[i]:nbr_ptr[i + 1]]``.
    threads
        How many threads a method may use; results do not depend on it.
    """

    graph: FactorGraph
    batches: tuple[Batch, ...]
    order: Ints
    scope_ptr: Ints
    scope: Ints
    table_at: Ints
    edge_ptr: Ints
    config_ptr: Ints
    nbr_ptr: Ints
    nbr: Ints
    threads: int = 1

    @classmethod
    def compile(cls, graph: FactorGraph, threads: int = 1) -> Problem:
        """Sort the factors by shape and lay out every flat array."""
        hard = _hard_tables(graph)[graph.table_of]
        group = _shape_groups(graph) * 2 + hard
        order = np.arange(graph.n_factors)
        if np.any(np.diff(group) < 0):
            order = np.argsort(group, kind="stable")
        arity = graph.arity[order]
        scope = graph.scope[ranges(graph.scope_ptr[order], arity)]
        table_at = graph.table_ptr[graph.table_of[order]]
        n_configs = np.diff(graph.table_ptr)[graph.table_of[order]]
        arrays = {
            "order": order,
            "scope_ptr": offsets(arity),
            "scope": scope,
            "table_at": table_at,
            "edge_ptr": offsets(graph.card[scope]),
            "config_ptr": offsets(n_configs),
            "nbr_ptr": offsets(np.bincount(scope, minlength=graph.n_vars)),
            "nbr": np.argsort(scope, kind="stable"),
        }
        for array in arrays.values():
            frozen(array)
        batches = _batches(graph, group[order], arrays)
        return cls(graph=graph, batches=batches, threads=threads, **arrays)

    @property
    def n_vars(self) -> int:
        """Number of variables."""
        return self.graph.n_vars

    @property
    def n_factors(self) -> int:
        """Number of factors."""
        return self.graph.n_factors

    @property
    def n_edges(self) -> int:
        """Number of edges."""
        return self.graph.n_edges

    @property
    def n_states(self) -> int:
        """Length of arrays per variable state, such as `mu_v`."""
        return len(self.graph.theta_v)

    @property
    def n_edge_states(self) -> int:
        """Length of arrays per edge state, such as `lam_e`."""
        return int(self.edge_ptr[-1])

    @property
    def n_configs(self) -> int:
        """Length of arrays per configuration, such as `mu_f`."""
        return int(self.config_ptr[-1])

    @cached_property
    def degree(self) -> Ints:
        """Number of factors of every variable, the paper's |N_i|."""
        return frozen(np.diff(self.nbr_ptr))

    @cached_property
    def theta_f(self) -> Floats:
        """Log potentials of every configuration, laid out like `mu_f`: tables that factors share are repeated."""
        return frozen(self.graph.theta_t[ranges(self.table_at, np.diff(self.config_ptr))])

    @cached_property
    def feasible_v(self) -> Bools:
        """Whether a variable's state has a finite unary potential."""
        return frozen(self.graph.theta_v > -np.inf)


def _hard_tables(graph: FactorGraph) -> Bools:
    """Which tables hold -inf."""
    if graph.n_tables == 0 or np.isfinite(graph.theta_t).all():
        return np.zeros(graph.n_tables, dtype=bool)
    return np.logical_or.reduceat(np.isneginf(graph.theta_t), graph.table_ptr[:-1])


def _shape_groups(graph: FactorGraph) -> Ints:
    """Number the factors' shapes, those of smaller arity first."""
    group = np.zeros(graph.n_factors, dtype=np.int64)
    n_groups = 0
    for arity in np.unique(graph.arity):
        members = np.flatnonzero(graph.arity == arity)
        shapes = graph.card[graph.scope[graph.scope_ptr[members][:, None] + np.arange(arity)]]
        _, of = np.unique(_shape_codes(shapes), return_inverse=True)
        group[members] = n_groups + of
        n_groups += int(of.max()) + 1
    return group


def _shape_codes(shapes: Ints) -> Ints:
    """One number for every row, equal exactly for equal rows."""
    base = int(shapes.max()) + 1
    if base ** shapes.shape[1] >= 2**62:
        return np.unique(shapes, axis=0, return_inverse=True)[1].ravel()
    code = np.zeros(len(shapes), dtype=np.int64)
    for column in shapes.T:
        code = code * base + column
    return code


def _batches(graph: FactorGraph, group: Ints, arrays: dict[str, Ints]) -> tuple[Batch, ...]:
    """Cut the sorted factors where the group changes."""
    scope_ptr, edge_ptr, config_ptr = arrays["scope_ptr"], arrays["edge_ptr"], arrays["config_ptr"]
    cuts = [0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(group)] if len(group) else []
    batches = []
    for begin, end in pairwise(cuts):
        edges = slice(int(scope_ptr[begin]), int(scope_ptr[end]))
        scope = arrays["scope"][edges].reshape(end - begin, -1)
        batches.append(
            Batch(
                shape=tuple(graph.card[scope[0]].tolist()),
                hard=bool(group[begin] & 1),
                factors=slice(begin, end),
                edges=edges,
                edge_states=slice(int(edge_ptr[edges.start]), int(edge_ptr[edges.stop])),
                configs=slice(int(config_ptr[begin]), int(config_ptr[end])),
                var_at=frozen(graph.var_ptr[scope]),
                table_at=arrays["table_at"][begin:end],
            )
        )
    return tuple(batches)
