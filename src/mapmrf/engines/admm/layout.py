"""How ADMM lays a problem out for its kernels, and the scale it measures penalties in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints, offsets, ranges
from mapmrf.engines.admm.structs import BATCH, Batches, BatchRow, FactorKind, PairArrays, TableArrays, VariableArrays
from mapmrf.engines.admm.variable_steps import by_variable
from mapmrf.pair_forms import PairForms, find_forms
from mapmrf.problem import Batch, Problem

CHUNK = 1 << 18
"""Factors, or table entries, that are laid out together: bounds the memory on the way."""

BLAS_PIECE = 10_000
"""Length up to which BLAS takes an inner product in one thread."""

NO_FORMS = find_forms(0, (), np.zeros(0, dtype=np.int64), np.zeros(0))
"""What a model without structured pairs has."""

ROUND_OFF = 1e-12
"""What is left of a table, relative to its entries, that still counts as no interaction at all."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A problem as the kernels want it; `mapmrf.engines.admm.structs` has the meaning of the arrays.

    Compact: binary variables are one number each, unary potentials are centred, and the linear parts of 2x2 tables
    are moved into them. That changes no labelling's value and is exact as long as epsilon is 0.
    """

    problem: Problem
    compact: bool
    constant: float
    rows: list[BatchRow]
    variables: VariableArrays
    pairs: PairArrays
    tables: TableArrays
    edge_var: NDArray[np.uint32]
    q_size: int
    slot_size: int

    @classmethod
    def build(cls, problem: Problem, compact: bool, ridge: bool = False) -> Layout:
        """Lay a problem out; `ridge` for a sphere on the factors, whose step is a dense active set for all of them."""
        graph = problem.graph
        width = np.where(compact & (graph.card == 2), 1, graph.card)
        var_at = offsets(width)
        rows, shape, config = _describe(problem, width, compact, ridge)
        theta_v, alone = _without_isolated(problem)
        strength, constant = np.zeros(0), graph.constant + alone
        if compact:
            strength, theta_v, moved = _split_pairs(problem, theta_v, rows)
            theta_v, mean = _centre(theta_v, problem)
            constant += moved + mean
        theta = theta_v
        if compact and np.any(graph.card == 2):
            theta = _differences(theta_v, problem, width)
        edge_var, edge_q = _edges(problem, rows, shape)
        edge_mu = edge_var if bool(np.all(width == 1)) else var_at[edge_var].astype(np.uint32)
        nbr_q = by_variable(problem.scope, problem.nbr_ptr, edge_q)
        return cls(
            problem=problem,
            compact=compact,
            constant=constant,
            rows=rows,
            variables=VariableArrays(var_at, problem.nbr_ptr, nbr_q, theta),
            pairs=PairArrays(edge_mu, strength),
            tables=TableArrays(
                edge_mu, graph.theta_t, problem.table_at, problem.weight, shape, config, _forms(problem, rows)
            ),
            edge_var=edge_var,
            q_size=sum(row.n * row.q_width for row in rows),
            slot_size=sum(row.n * row.slot_width for row in rows),
        )

    @property
    def width(self) -> Ints:
        """Numbers that each variable has in mu."""
        return np.diff(self.variables.var_at)

    @cached_property
    def only_binary(self) -> bool:
        """Whether every variable is a compact one of two states."""
        return self.compact and self.problem.only_binary

    @cached_property
    def batch(self) -> Batches:
        """The rows as an array of records."""
        return np.array(self.rows, dtype=BATCH)

    def row_of(self, batch: Batch) -> BatchRow:
        """The row of a batch of the problem."""
        return self.rows[self.problem.batches.index(batch)]

    def expand(self, values: Floats) -> Floats:
        """Marginals in the problem's layout, from that of mu."""
        graph = self.problem.graph
        if self.only_binary:
            mu_v = np.empty(2 * len(values))
            mu_v[::2] = values * -0.5 + 0.5
            mu_v[1::2] = values * 0.5 + 0.5
            return mu_v
        var_at, width = self.variables.var_at, self.width
        compact = (width == 1) & (graph.card == 2)
        if not compact.any():
            return values.copy()
        out = np.empty(len(graph.theta_v))
        two = np.flatnonzero(compact)
        diff = values[var_at[two]]
        out[graph.var_ptr[two]] = 0.5 - 0.5 * diff
        out[graph.var_ptr[two] + 1] = 0.5 + 0.5 * diff
        rest = np.flatnonzero(~compact)
        out[ranges(graph.var_ptr[rest], graph.card[rest])] = values[ranges(var_at[rest], width[rest])]
        return out

    def compress(self, mu_v: Floats) -> Floats:
        """The inverse of `expand`."""
        graph = self.problem.graph
        if self.only_binary:
            return np.asarray(mu_v[1::2] - mu_v[::2])
        var_at, width = self.variables.var_at, self.width
        compact = (width == 1) & (graph.card == 2)
        if not compact.any():
            return mu_v.copy()
        out = np.empty(len(self.variables.theta))
        two = np.flatnonzero(compact)
        out[var_at[two]] = mu_v[graph.var_ptr[two] + 1] - mu_v[graph.var_ptr[two]]
        rest = np.flatnonzero(~compact)
        out[ranges(var_at[rest], width[rest])] = mu_v[ranges(graph.var_ptr[rest], graph.card[rest])]
        return out


def _kind(batch: Batch, compact: bool) -> FactorKind:
    if batch.shape == (2, 2) and not batch.hard:
        return FactorKind.PAIR2_COMPACT if compact else FactorKind.PAIR2
    if batch.shape == (2, 2, 2):
        return FactorKind.TRIPLE2
    return FactorKind.FOREST if batch.arity == 2 else FactorKind.DENSE


def _describe(problem: Problem, width: Ints, compact: bool, ridge: bool) -> tuple[list[BatchRow], Ints, Ints]:
    """The row of every batch, its shape (sizes, widths, starts) and, where needed, its configurations."""
    rows: list[BatchRow] = []
    shapes: list[Ints] = []
    configs: list[Ints] = []
    q_at = slot_at = shape_at = config_at = 0
    for batch in problem.batches:
        kind = FactorKind.RIDGE if ridge else _kind(batch, compact)
        widths = width[problem.scope[batch.edges][: batch.arity]]
        row = BatchRow(
            kind=int(kind), n=batch.n, begin=0, end=batch.n, arity=batch.arity,
            q_at=q_at, q_width=int(widths.sum()),
            factor_at=batch.factors.start, edge_at=batch.edges.start,
            slot_at=slot_at, slot_width=_slot_width(kind, batch),
            shape_at=shape_at, config_at=config_at,
            n_configs=batch.n_configs, n_states=sum(batch.shape), pull_at=batch.configs.start,
        )  # fmt: skip
        rows.append(row)
        shapes.append(np.concatenate([batch.shape, widths, batch.state_at[:-1]]))
        if kind in (FactorKind.DENSE, FactorKind.RIDGE):
            configs.append(batch.config.ravel())
            config_at += configs[-1].size
        shape_at += shapes[-1].size
        q_at += row.n * row.q_width
        slot_at += row.n * row.slot_width
    none = [np.zeros(0, dtype=np.int64)]
    return rows, np.concatenate(none + shapes), np.concatenate(none + configs)


def _without_isolated(problem: Problem) -> tuple[Floats, float]:
    """Unary potentials with those of variables without factors at 0, and the sum of what these are worth at best."""
    graph = problem.graph
    theta_v = graph.theta_v.copy()
    alone = np.flatnonzero(problem.degree == 0)
    if len(alone) == 0:
        return theta_v, 0.0
    best = np.maximum.reduceat(theta_v, graph.var_ptr[:-1])[alone].sum()
    theta_v[ranges(graph.var_ptr[alone], graph.card[alone])] = 0.0
    return theta_v, float(best)


def _forms(problem: Problem, rows: list[BatchRow]) -> PairForms:
    """The structured pairs, where the factor step prices pairs; nothing is looked for where it does not."""
    if any(row.kind == FactorKind.FOREST for row in rows):
        return problem.forms
    return NO_FORMS


def _slot_width(kind: int, batch: Batch) -> int:
    """Room for a support: closed forms need none, independent columns of M are at most 1 + sum(K - 1)."""
    if kind in (FactorKind.PAIR2_COMPACT, FactorKind.PAIR2):
        return 0
    if kind == FactorKind.RIDGE:
        return batch.n_configs
    return min(batch.n_configs, sum(batch.shape) - batch.arity + 1) + 1


def _split_pairs(problem: Problem, theta_v: Floats, rows: list[BatchRow]) -> tuple[Floats, Floats, float]:
    """Couplings of the 2x2 tables; their linear parts go to the variables, their means to the constant."""
    graph = problem.graph
    strength = np.zeros(problem.n_factors)
    constant = 0.0
    for row, batch in zip(rows, problem.batches, strict=True):
        if row.kind != FactorKind.PAIR2_COMPACT:
            continue
        linear = np.zeros(graph.n_vars)
        for begin in range(0, batch.n, CHUNK):
            part = slice(begin, min(begin + CHUNK, batch.n))
            t00, t01, t10, t11 = batch.tables(graph.theta_t, part).T
            strength[batch.factors][part] = (t00 + t11 - t01 - t10) / 4
            first, second = batch.scope[part].T
            _add_sums(linear, first, (t10 + t11 - t00 - t01) / 4)
            _add_sums(linear, second, (t01 + t11 - t00 - t10) / 4)
            constant += float((t00 + t01 + t10 + t11).sum()) / 4
        if problem.only_binary:
            theta_v[::2] -= linear
            theta_v[1::2] += linear
        else:
            touched = np.flatnonzero(graph.card == 2)
            theta_v[graph.var_ptr[touched]] -= linear[touched]
            theta_v[graph.var_ptr[touched] + 1] += linear[touched]
    return strength, theta_v, constant


def _add_sums(total: Floats, places: Ints, terms: Floats) -> None:
    """Add to every entry of `total` the sum of the terms of its place; only between the first and the last place."""
    low, high = int(places.min()), int(places.max()) + 1
    total[low:high] += np.bincount(places - low, terms, high - low)


def _centre(theta_v: Floats, problem: Problem) -> tuple[Floats, float]:
    """Take the mean out of every variable's potentials; returns them and the sum of the means."""
    graph = problem.graph
    if problem.n_vars == 0:
        return theta_v, 0.0
    if problem.only_binary:
        both = theta_v.reshape(-1, 2)
        mean = (both[:, 0] + both[:, 1]) / 2
        return (both - mean[:, None]).ravel(), float(mean.sum())
    mean = np.add.reduceat(theta_v, graph.var_ptr[:-1]) / graph.card
    return theta_v - np.repeat(mean, graph.card), float(mean.sum())


def _differences(theta_v: Floats, problem: Problem, width: Ints) -> Floats:
    """theta(1) - theta(0) for compact variables, the block itself for the others."""
    graph = problem.graph
    if problem.only_binary:
        return np.asarray(theta_v[1::2] - theta_v[::2])
    theta = np.empty(int(width.sum()))
    var_at = offsets(width)
    two = np.flatnonzero((graph.card == 2) & (width == 1))
    at = graph.var_ptr[two]
    theta[var_at[two]] = theta_v[at + 1] - theta_v[at]
    rest = np.flatnonzero((graph.card != 2) | (width != 1))
    theta[ranges(var_at[rest], width[rest])] = theta_v[ranges(graph.var_ptr[rest], graph.card[rest])]
    return theta


def _edges(problem: Problem, rows: list[BatchRow], shape: Ints) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Variable of every edge in the kernels' order, and where every edge's block of q starts in the problem's order.

    2x2 batches of compact variables are stored in planes (all first variables, then all second ones), the others factor
    by factor.
    """
    edge_var = problem.scope.astype(np.uint32)
    edge_q = np.empty(problem.n_edges, dtype=np.uint32)
    for row, batch in zip(rows, problem.batches, strict=True):
        n, arity = batch.n, batch.arity
        factor = np.arange(n, dtype=np.uint32)
        if row.kind == FactorKind.PAIR2_COMPACT:
            for k in range(2):
                edge_var[batch.edges].reshape(2, n)[k] = batch.scope[:, k]
                edge_q[batch.edges].reshape(n, 2)[:, k] = factor + np.uint32(row.q_at + k * n)
        else:
            widths = shape[row.shape_at + arity : row.shape_at + 2 * arity]
            start = offsets(widths)[:-1].astype(np.uint32)
            width = np.uint32(row.q_width)
            edge_q[batch.edges] = (np.uint32(row.q_at) + factor[:, None] * width + start).ravel()
    return edge_var, edge_q


def interaction_scale(problem: Problem) -> float:
    """Mean size of the interactions: of each table the root mean square of what its main effects leave.

    Multiplying all potentials by a constant multiplies it, so penalties measured in it are scale-free. Without any
    interaction, the spread of the unary potentials; without that, 1.
    """
    total = 0.0
    for batch in problem.batches:
        shared = problem.graph.n_tables < problem.n_factors
        starts, uses = _uses(batch) if shared else (batch.table_at, np.ones(batch.n))
        size = max(1, CHUNK // batch.n_configs)
        for part in range(0, len(starts), size):
            rows = slice(part, part + size)
            if shared:
                tables = problem.graph.theta_t[starts[rows, None] + np.arange(batch.n_configs)]
            else:
                tables = batch.tables(problem.graph.theta_t, rows)
            total += _inner(_interaction(tables.reshape(-1, *batch.shape)), uses[rows])
    if total > 0:
        return total / problem.n_factors
    spread = np.abs(problem.graph.theta_v[np.isfinite(problem.graph.theta_v)])
    return float(spread.mean()) if spread.sum() > 0 else 1.0


def _uses(batch: Batch) -> tuple[Ints, Floats | Ints]:
    """Where the distinct tables of a batch start, and how often each is used: the sizes of its weights, added up."""
    if len(batch.weight) == 0:
        return np.unique(batch.table_at, return_counts=True)
    starts, which = np.unique(batch.table_at, return_inverse=True)
    return starts, np.bincount(which, np.abs(batch.weight))


def _inner(sizes: Floats, uses: Floats | Ints) -> float:
    """``<sizes, uses>`` in pieces for which BLAS wakes no threads: the sum must not depend on their number."""
    return sum(
        float(sizes[at : at + BLAS_PIECE] @ uses[at : at + BLAS_PIECE]) for at in range(0, len(sizes), BLAS_PIECE)
    )


def _interaction(tables: Floats) -> Floats:
    """Root mean square interaction of each table; forbidden entries stand at the lowest finite one."""
    if tables.shape[1:] == (2, 2) and np.isfinite(tables).all():
        return np.asarray(np.abs(tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]) / 4)
    axes = tuple(range(1, tables.ndim))
    if not np.isfinite(tables).all():
        low = np.where(np.isfinite(tables), tables, np.inf).min(axis=axes, keepdims=True)
        tables = np.where(np.isfinite(tables), tables, low)
    mean = tables.mean(axis=axes, keepdims=True)
    rest = tables - mean
    for k in axes:
        rest = rest - (tables.mean(axis=tuple(j for j in axes if j != k), keepdims=True) - mean)
    size = np.sqrt((rest * rest).mean(axis=axes))
    return np.where(size > ROUND_OFF * np.abs(tables).max(axis=axes), size, 0.0)


def harden(problem: Problem) -> Problem:
    """Move forbidden states of connected variables from the unary potentials into the factors' tables.

    A quadratic method cannot start from a potential of -inf, but its exact factor steps never touch a forbidden
    configuration. The state's own potential becomes the variable's lowest finite one. Nothing is copied where nothing
    is forbidden; tables that several factors share stay shared as far as these forbid the same states. A weight that
    -inf cannot be multiplied by becomes part of its new table.
    """
    graph = problem.graph
    connected = np.repeat(problem.degree > 0, graph.card)
    forbidden = ~problem.feasible_v & connected
    if not forbidden.any():
        return problem
    low = np.minimum.reduceat(np.where(problem.feasible_v, graph.theta_v, np.inf), graph.var_ptr[:-1])
    low = np.repeat(np.where(np.isfinite(low), low, 0.0), graph.card)
    struck = np.logical_or.reduceat(forbidden, graph.var_ptr[:-1])
    tables = [graph.theta_t]
    table_of = graph.table_of.copy()
    weight = None if graph.weight is None else graph.weight.copy()
    made: dict[tuple[int, float, bytes], int] = {}
    owner = np.repeat(np.arange(graph.n_factors), graph.arity)
    for a in np.unique(owner[struck[graph.scope]]):
        scope = graph.scope_of(a)
        masks = [~forbidden[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in scope]
        moved = 1.0
        if weight is not None and weight[a] <= 0.0:
            moved, weight[a] = float(weight[a]), 1.0
        key = (int(graph.table_of[a]), moved, b"|".join(mask.tobytes() for mask in masks))
        if key not in made:
            made[key] = graph.n_tables + len(made)
            table = graph.theta_t[graph.table_ptr[key[0]] : graph.table_ptr[key[0] + 1]]
            tables.append(np.where(_outer_and(masks).ravel(), moved * table, -np.inf))
        table_of[a] = made[key]
    hardened = replace(
        graph,
        theta_v=np.where(forbidden, low, graph.theta_v),
        table_of=table_of,
        table_ptr=offsets(np.concatenate([np.diff(graph.table_ptr), [len(table) for table in tables[1:]]])),
        theta_t=np.concatenate(tables),
        weight=weight,
    )
    return Problem.compile(hardened, problem.threads)


def _outer_and(masks: list[np.ndarray]) -> np.ndarray:
    """Where all masks allow: an axis for each."""
    allowed = np.ones(1, dtype=bool)
    for mask in masks:
        allowed = allowed[..., None] & mask
    return np.asarray(allowed[0])


def impossible(problem: Problem) -> bool:
    """Whether some table, or some variable's potentials, are all -inf."""
    graph = problem.graph
    if graph.theta_v.min(initial=0.0) > -np.inf and graph.theta_t.min(initial=0.0) > -np.inf:
        return False
    if problem.n_vars and np.maximum.reduceat(graph.theta_v, graph.var_ptr[:-1]).min() == -np.inf:
        return True
    return bool(graph.n_tables and np.maximum.reduceat(graph.theta_t, graph.table_ptr[:-1]).min() == -np.inf)
