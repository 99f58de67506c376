"""The layout of a problem for the kernels of ADMM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, frozen, offsets, ranges
from mapmrf.engines.admm.structs import (
    BATCH,
    SAME,
    Batches,
    BatchRow,
    FactorKind,
    ItemArrays,
    PairArrays,
    Share,
    TableArrays,
    VariableArrays,
)
from mapmrf.engines.admm.tiled import Runs, break_runs, find_runs
from mapmrf.engines.admm.variable_steps import by_variable
from mapmrf.engines.constraint_factors.model import CountingModel
from mapmrf.model.problem import Batch, Problem
from mapmrf.model.structured_pairs import find_forms

NO_FORMS = find_forms(0, (), np.zeros(0, dtype=np.int64), np.zeros(0))  # the forms of a model without structured pairs

_NONE, _NO_SLOTS = np.zeros(0), np.zeros(0, dtype=np.int32)
NO_STATE = (_NONE, _NO_SLOTS, _NONE, _NO_SLOTS, _NONE)  # of the factors: an engine allocates it


@dataclass(frozen=True, eq=False)
class Layout:
    """A problem laid out for the kernels; `mapmrf.engines.admm.structs` defines the arrays.

    Compact: binary variables are one number each, unary potentials are centred, and the linear parts of 2x2 tables are
    moved into them. That changes no labelling's value and is exact if epsilon is 0.

    Constraints are `counting` factors with `items`; `q_size` does not include these, which follow all edges.

    If there are only such pairs and they form long runs, as on images, `runs` has them in the order of q, which is
    `order` unless it is that of the problem. The index arrays, `edge_var` and those of edges in `variables`, `pairs`
    and `tables`, are then empty.

    A part of a larger model has a `share` of its problem; `constant` is that of the part's own terms.
    """

    problem: Problem
    share: Share
    compact: bool
    constant: float
    rows: list[BatchRow]
    variables: VariableArrays
    pairs: PairArrays
    tables: TableArrays
    runs: Runs | None
    order: Ints | None
    edge_var: NDArray[np.uint32]
    q_size: int
    slot_size: int
    counting: CountingModel | None
    items: ItemArrays | None

    @classmethod
    def build(cls, problem: Problem, compact: bool, ridge: bool = False, share: Share | None = None) -> Layout:
        """Lay out a problem; `ridge` for a sphere on the factors, whose step is a dense active set for all of them.

        A part of a larger model passes its `share`.
        """
        graph = problem.graph
        whole = share is None
        if share is None:  # the model is not divided into parts
            counts = tuple(batch.n for batch in problem.batches)
            share = Share(problem.n_vars, counts, counts)
        width = np.where(compact & (graph.card == 2), 1, graph.card)
        var_at = offsets(width)
        rows, shape, config = _describe(problem, width, compact, ridge)
        theta, pairs, constant = _potentials(problem, rows, share, compact, width)
        counting, items = counting_model(problem), None
        q_size = sum(row.n * row.q_width for row in rows)
        if counting is not None:
            items = _items(counting, q_size, var_at, width < graph.card)
        runs, order = (None, None) if counting is not None else _runs(problem, rows, width, None if whole else share)
        if order is not None and not pairs.shared:
            pairs = pairs._replace(strength=frozen(pairs.strength[order]))
        edge_var, nbr_q = np.zeros((2, 0), dtype=np.uint32)
        if runs is None:
            edge_var, edge_q = _edges(problem, rows, shape)
            nbr_q = by_variable(problem.scope, problem.nbr_ptr, edge_q)
        edge_mu = edge_var if bool(np.all(width == 1)) else var_at[edge_var].astype(np.uint32)
        return cls(
            problem=problem,
            share=share,
            compact=compact,
            constant=constant if counting is None else constant + counting.constant,
            rows=rows,
            variables=VariableArrays(var_at, problem.nbr_ptr, nbr_q, theta),
            pairs=pairs._replace(edge_mu=edge_mu),
            runs=runs,
            order=order,
            tables=TableArrays(
                edge_mu,
                graph.theta_t,
                problem.table_at,
                problem.weight,
                shape,
                config,
                problem.forms if any(row.kind == FactorKind.FOREST for row in rows) else NO_FORMS,
                *NO_STATE,
            ),
            edge_var=edge_var,
            q_size=q_size,
            slot_size=sum(row.n * row.slot_width for row in rows),
            counting=counting,
            items=items,
        )

    @property
    def width(self) -> Ints:
        """Number of entries of each variable in mu."""
        return np.diff(self.variables.var_at)

    @cached_property
    def own_variables(self) -> VariableArrays:
        """The variables without copies of other parts' variables."""
        n = self.share.n_vars + 1
        return self.variables._replace(var_at=self.variables.var_at[:n], nbr_ptr=self.variables.nbr_ptr[:n])

    @property
    def n_items(self) -> int:
        """Number of items of constraints."""
        return 0 if self.items is None else len(self.items.at)

    @cached_property
    def only_binary(self) -> bool:
        """Whether every variable is a compact binary one."""
        return self.compact and self.problem.only_binary

    @cached_property
    def batch(self) -> Batches:
        """The rows as an array of records."""
        return np.array(self.rows, dtype=BATCH)

    def row_of(self, batch: Batch) -> BatchRow:
        """Return the row of a batch of the problem."""
        return self.rows[self.problem.batches.index(batch)]

    @cached_property
    def place(self) -> Ints | None:
        """Position of every factor of the problem in the order of q; None if both are the same."""
        if self.order is None:
            return None
        place = np.empty_like(self.order)
        place[self.order] = np.arange(len(place))
        return place

    @cached_property
    def nbr_q(self) -> NDArray[np.uint32]:
        """Positions in q of the blocks of every variable's edges, also for models in runs."""
        if self.runs is None:
            return self.variables.nbr_q
        n = self.problem.n_factors
        first = np.arange(n, dtype=np.uint32) if self.place is None else self.place.astype(np.uint32)
        edge_q = np.stack([first, first + np.uint32(n)], axis=1).ravel()
        return by_variable(self.problem.scope, self.problem.nbr_ptr, edge_q)

    def pair_places(self, batch: Batch, rows: slice) -> Ints:
        """Return the positions in q of the two ends of some compact 2x2 factors, (2, n)."""
        at = np.arange(rows.start, rows.stop) if self.place is None else self.place[rows].astype(np.int64)
        return self.row_of(batch).q_at + np.stack([at, at + batch.n])

    def couplings(self, batch: Batch, rows: slice) -> Floats:
        """Return the couplings of some compact 2x2 factors."""
        pairs = self.pairs
        if pairs.shared:
            return np.full(rows.stop - rows.start, pairs.unit)
        strength = pairs.strength[batch.factors]
        return np.asarray(pairs.unit * strength[rows if self.place is None else self.place[rows]])

    def expand(self, values: Floats) -> Floats:
        """Convert marginals from the layout of mu to that of the problem."""
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
    """Return the row of every batch, its shape (sizes, widths, starts) and, where needed, its configurations."""
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


def isolated(problem: Problem) -> Ints:
    """Return the variables without factors and constraints."""
    alone = problem.nbr_ptr[1:] == problem.nbr_ptr[:-1]
    if problem.graph.constraints is not None:
        alone[problem.graph.constraints.var] = False
    return np.flatnonzero(alone)


def counting_model(problem: Problem) -> CountingModel | None:
    """Return the constraints of a model, and a simplex for every variable without tables; None without constraints."""
    constraints = problem.graph.constraints
    if constraints is None:
        return None
    return CountingModel.of(problem.graph, np.unique(constraints.var[problem.degree[constraints.var] == 0]))


def _items(model: CountingModel, q_at: int, var_at: Ints, compact: Bools) -> ItemArrays:
    """Map every item to its position in mu."""
    at = var_at[model.var] + np.where(compact[model.var], 0, model.state)
    sign = np.where(compact[model.var], 2.0 * model.state - 1.0, 0.0)
    ptr = offsets(np.bincount(at, minlength=int(var_at[-1])))
    places: list[Ints] = [frozen(array.astype(np.int64)) for array in (at, ptr, np.argsort(at, kind="stable"))]
    return ItemArrays(q_at, places[0], frozen(sign), places[1], places[2])


def _without_isolated(problem: Problem) -> tuple[Floats, float]:
    """Set the unary potentials of variables without factors to 0; return all, and the sum of their best values.

    Remaining forbidden states, of variables with constraints only, get the variable's lowest potential: their simplex
    excludes them.
    """
    graph = problem.graph
    theta_v = graph.theta_v.copy()
    alone = isolated(problem)
    if graph.constraints is not None and not problem.feasible_v.all():
        low = lowest_potentials(problem)
        mine = np.repeat(problem.degree == 0, graph.card)
        mine[ranges(graph.var_ptr[alone], graph.card[alone])] = False
        theta_v = np.where(mine & ~problem.feasible_v, low, theta_v)
    if len(alone) == 0:
        return theta_v, 0.0
    best = np.maximum.reduceat(theta_v, graph.var_ptr[:-1])[alone].sum()
    theta_v[ranges(graph.var_ptr[alone], graph.card[alone])] = 0.0
    return theta_v, float(best)


def _potentials(
    problem: Problem, rows: list[BatchRow], share: Share, compact: bool, width: Ints
) -> tuple[Floats, PairArrays, float]:
    """Return the unary potentials for the kernels, the couplings without their places, and the constant."""
    theta_v, alone = _without_isolated(problem)
    pairs, of_pairs, constant = NO_PAIRS, 0.0, problem.graph.constant + alone
    if not compact:
        return theta_v, pairs, constant
    for row, batch, owned in zip(rows, problem.batches, share.owned, strict=True):
        if row.kind == FactorKind.PAIR2_COMPACT:  # there is at most one such batch
            pairs, of_pairs = split_pairs(problem, batch, theta_v, owned)
    theta_v, mean = _centre(theta_v, problem, share.n_vars)
    theta = _differences(theta_v, problem, width) if np.any(problem.graph.card == 2) else theta_v
    return theta, pairs, constant + (of_pairs + mean)


def _runs(problem: Problem, rows: list[BatchRow], width: Ints, share: Share | None) -> tuple[Runs | None, Ints | None]:
    """Return the runs of a model that consists of compact pairs, if they are long, and the order of its factors.

    Those of a part are broken where factors stop being inside, or counted; the order must be unchanged.
    """
    if len(rows) != 1 or rows[0].kind != FactorKind.PAIR2_COMPACT or not np.all(width == 1):
        return None, None
    found = find_runs(problem.batches[0].scope)
    if found is None or share is None:
        return found or (None, None)
    runs, order = found
    if order is not None:
        return None, None
    return break_runs(runs, problem.batches[0].scope, (share.inside[0], share.owned[0])), None


def _slot_width(kind: int, batch: Batch) -> int:
    """Return the room for a support: closed forms need none, independent columns of M are at most 1 + sum(K - 1)."""
    if kind in (FactorKind.PAIR2_COMPACT, FactorKind.PAIR2):
        return 0
    if kind == FactorKind.RIDGE:
        return batch.n_configs
    return min(batch.n_configs, sum(batch.shape) - batch.arity + 1) + 1


def _centre(theta_v: Floats, problem: Problem, n_own: int) -> tuple[Floats, float]:
    """Subtract the mean from every variable's potentials, possibly in place; return them and the sum of own means."""
    graph = problem.graph
    if problem.n_vars == 0:
        return theta_v, 0.0
    if problem.only_binary:
        mean = (theta_v[::2] + theta_v[1::2]) / 2
        theta_v[::2] -= mean
        theta_v[1::2] -= mean
        return theta_v, float(mean[:n_own].sum())
    mean = np.add.reduceat(theta_v, graph.var_ptr[:-1]) / graph.card
    return theta_v - np.repeat(mean, graph.card), float(mean[:n_own].sum())


def _differences(theta_v: Floats, problem: Problem, width: Ints) -> Floats:
    """Return theta(1) - theta(0) for compact variables, the block itself for the others."""
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
    """Return the variable of every edge in the kernels' order, and the position of every edge's block in q.

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


# -- 2x2 tables as couplings J [[1, -1], [-1, 1]], linear parts for the variables, and a constant ---------------------


CHUNK = 1 << 18  # factors processed at a time, which limits temporary memory


NO_PAIRS = PairArrays(np.zeros(0, dtype=np.uint32), frozen(np.zeros(0)), 1.0, False)


def split_pairs(problem: Problem, batch: Batch, theta_v: Floats, owned: int) -> tuple[PairArrays, float]:
    """Split a batch of 2x2 factors into couplings and linear parts, which are added to `theta_v`, and a constant.

    The constant is that of the first `owned` ones. Factors that share one table need no separate strengths: these are
    their weights, or 1 for all.
    """
    one = bool(np.all(batch.table_at == batch.table_at[0]))
    strength = np.zeros(0 if one else problem.n_factors)
    linear, constant = np.zeros(problem.n_vars), 0.0
    for begin in range(0, batch.n, CHUNK):
        part = slice(begin, min(begin + CHUNK, batch.n))
        t00, t01, t10, t11 = batch.tables(problem.graph.theta_t, part).T
        if not one:
            strength[batch.factors][part] = (t00 + t11 - t01 - t10) / 4
        first, second = batch.scope[part].T
        _add_sums(linear, first, (t10 + t11 - t00 - t01) / 4)
        _add_sums(linear, second, (t01 + t11 - t00 - t10) / 4)
        constant += float((t00 + t01 + t10 + t11)[: max(0, owned - begin)].sum()) / 4
    _add_linear(problem, linear, theta_v)
    if not one:
        return NO_PAIRS._replace(strength=frozen(strength)), constant
    t00, t01, t10, t11 = problem.graph.theta_t[int(batch.table_at[0]) :][:4].tolist()
    shared = len(batch.weight) == 0
    strength = frozen(np.ones(SAME)) if shared else problem.weight
    return NO_PAIRS._replace(strength=strength, unit=(t00 + t11 - t01 - t10) / 4, shared=shared), constant


def _add_linear(problem: Problem, linear: Floats, theta_v: Floats) -> None:
    """Add coefficients of ``mu(1) - mu(0)`` to the binary variables' potentials."""
    if problem.only_binary:
        theta_v[::2] -= linear
        theta_v[1::2] += linear
        return
    graph = problem.graph
    touched = np.flatnonzero(graph.card == 2)
    theta_v[graph.var_ptr[touched]] -= linear[touched]
    theta_v[graph.var_ptr[touched] + 1] += linear[touched]


def _add_sums(total: Floats, places: Ints, terms: Floats) -> None:
    """Add the terms to the entries of `total` at their places; only touches the range of places."""
    low, high = int(places.min()), int(places.max()) + 1
    total[low:high] += np.bincount(places - low, terms, high - low)


# -- Forbidden states moved into the factors' tables, as ADMM requires ------------------------------------------------


NO_VARIABLES = np.zeros(0, dtype=np.int64)


def harden(problem: Problem) -> Problem:
    """Move forbidden states of connected variables from the unary potentials into the factors' tables.

    A quadratic method cannot start from a potential of -inf, but its exact factor steps never touch a forbidden
    configuration. The potential of such a state becomes the variable's lowest finite one. Nothing is copied if nothing
    is forbidden; shared tables stay shared by factors that forbid the same states. A weight that -inf cannot be
    multiplied by becomes part of its new table.
    """
    graph = problem.graph
    if problem.feasible_v.all():
        return problem
    forbidden = ~problem.feasible_v & np.repeat(problem.degree > 0, graph.card)
    if not forbidden.any():
        return problem
    low = lowest_potentials(problem)
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
            tables.append(np.where(reduce(np.logical_and.outer, masks).ravel(), moved * table, -np.inf))
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


def lowest_potentials(problem: Problem) -> Floats:
    """Return the lowest finite potential of its variable for every state; 0 if there is none."""
    graph = problem.graph
    low = np.minimum.reduceat(np.where(problem.feasible_v, graph.theta_v, np.inf), graph.var_ptr[:-1])
    return np.repeat(np.where(np.isfinite(low), low, 0.0), graph.card)


def impossible(problem: Problem) -> bool:
    """Return whether some table or unary potentials are all -inf, or a single constraint cannot be satisfied."""
    graph = problem.graph
    if graph.constraints is not None and CountingModel.of(graph, NO_VARIABLES).constant == -np.inf:
        return True
    if graph.theta_v.min(initial=0.0) > -np.inf and graph.theta_t.min(initial=0.0) > -np.inf:
        return False
    if problem.n_vars and np.maximum.reduceat(graph.theta_v, graph.var_ptr[:-1]).min() == -np.inf:
        return True
    return bool(graph.n_tables and np.maximum.reduceat(graph.theta_t, graph.table_ptr[:-1]).min() == -np.inf)
