"""The local polytope L_G as a program: a relaxation (lp), or the whole model with 0/1 variables (cuts)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_argmax
from mapmrf.constraints.flat import PARITY, WITHIN, Constraints
from mapmrf.constraints.kinds.linear import extreme_sums
from mapmrf.engines.program.binary_program import Compact, is_compact
from mapmrf.engines.program.program import Program, Rows, SparseMatrix, block_losses, cost_scale, lagrangian
from mapmrf.model.polytope import configuration, dual_bound
from mapmrf.model.problem import Batch, Problem


@dataclass(frozen=True)
class LocalPolytope:
    """Columns: the entries of mu_v, 0 or 1, and of mu_f that may be positive.

    Rows: total mass 1 of every variable, then mu_i - M_ia mu_a = 0, laid out like `lam_e`. Entries of -inf potential
    have no column, nor do variables without factors and constraints, which take their best state. Costs are relative to
    the best entry of their block. Constraints are not included, see `ConstrainedPolytope`.
    """

    program: Program
    problem: Problem
    entries: Ints  # the index of every column in (mu_v, mu_f), ascending
    n_mass: int  # number of mass rows

    @classmethod
    def build(cls, problem: Problem) -> LocalPolytope:
        graph = problem.graph
        allowed = np.concatenate([graph.theta_v, problem.theta_f]) > -np.inf
        linked = linked_variables(problem)
        allowed[: problem.n_states] &= np.repeat(linked, graph.card)
        entries = np.flatnonzero(allowed)
        loss_v, best_v, _ = block_losses(graph.theta_v, graph.var_ptr)
        loss_f, best_f, _ = block_losses(problem.theta_f, problem.config_ptr)
        cost = -np.concatenate([loss_v, loss_f])[entries]
        scale = cost_scale(cost, cost)
        n_mass = int(np.count_nonzero(linked))
        rhs = np.repeat([1.0, 0.0], [n_mass, problem.n_edge_states])
        states = np.flatnonzero(np.repeat(linked, graph.card)).astype(np.int32)
        margins = [_marginal_rows(problem, batch) for batch in problem.batches]
        counts, columns, values = zip((graph.card[linked], states, np.ones(len(states))), *margins, strict=True)
        parts = (np.concatenate(values), np.concatenate(columns), offsets(np.concatenate(counts)))
        matrix = SparseMatrix(*parts, n_columns=problem.n_states + problem.n_configs)
        program = Program(
            cost / scale,
            lower=np.zeros(len(cost)),
            upper=np.ones(len(cost)),
            n_integer=int(np.count_nonzero(allowed[: problem.n_states])),
            rows=Rows(matrix if allowed.all() else matrix.only_columns(entries), rhs, rhs),
            offset=graph.constant + float(np.concatenate([best_v, best_f]).sum()),
            scale=scale,
            mass=float(n_mass + problem.n_factors),  # every variable and every factor has mass 1
        )
        return cls(program, problem, entries, n_mass)

    @property
    def relaxation(self) -> Program:
        """The program without integrality, and without column upper bounds, which its rows imply."""
        program = self.program
        return dataclasses.replace(program, n_integer=0, upper=np.full(len(program.upper), np.inf))

    def columns(self, labels: Ints) -> Floats:
        problem = self.problem
        taken = [(problem.graph.var_ptr[:-1] + labels)[linked_variables(problem)]]
        for batch in problem.batches:
            place = configuration(batch, slice(0, batch.n), labels)
            taken.append(problem.n_states + batch.configs.start + batch.n_configs * np.arange(batch.n) + place)
        columns = np.zeros(len(self.entries))
        columns[np.searchsorted(self.entries, np.concatenate(taken))] = 1.0
        return columns

    def labels(self, columns: Floats) -> Ints:
        """Return the labelling of an integer point; mu_v is sufficient."""
        n = self.program.n_integer
        mu_v = np.full(self.problem.n_states, -1.0)
        mu_v[self.entries[:n]] = columns[:n]
        mu_v[self._alone()] = 1.0
        return segment_argmax(mu_v, self.problem.graph.var_ptr)

    def marginals(self, columns: Floats) -> tuple[Floats, Floats]:
        problem = self.problem
        mu = np.zeros(problem.n_states + problem.n_configs)
        mu[self.entries] = columns
        mu[self._alone()] = 1.0
        return mu[: problem.n_states], mu[problem.n_states :]

    def multipliers(self, weights: Floats) -> Floats:
        return weights[self.n_mass :] * self.program.scale

    def bound(self, weights: Floats) -> float:
        return dual_bound(self.problem, self.multipliers(weights))

    def indicator(self, i: int, k: int) -> tuple[int, float, float]:
        """Express a state by a column, its coefficient and a constant; column -1 if the state is forbidden."""
        place = int(self.problem.graph.var_ptr[i]) + k
        column = int(np.searchsorted(self.entries, place))
        known = column < len(self.entries) and self.entries[column] == place
        return (column, 1.0, 0.0) if known else (-1, 0.0, 0.0)

    def _alone(self) -> Ints:
        """Indices in mu_v of the best states of the variables without factors."""
        graph = self.problem.graph
        best = graph.var_ptr[:-1] + segment_argmax(graph.theta_v, graph.var_ptr)
        return np.asarray(best[~linked_variables(self.problem)])


def linked_variables(problem: Problem) -> Bools:
    """Return which variables have a factor or a constraint, (n_vars,)."""
    linked = problem.degree > 0
    if problem.graph.constraints is not None:
        linked[problem.graph.constraints.var] = True
    return linked


def _marginal_rows(problem: Problem, batch: Batch) -> tuple[Ints, Ints, Floats]:
    """Build mu_i - M_ia mu_a for the factors of a batch, laid out like `lam_e`: entries per row, columns and values."""
    # Built directly: all factors have the same pattern, and products of sparse matrices take ten times as long.
    n_configs, arity = batch.config.shape
    states = (batch.config + batch.state_at[:-1]).ravel()
    members = np.argsort(states, kind="stable") // arity  # the configurations of every state
    counts = 1 + np.bincount(states)  # mu_i itself comes first
    is_copy = np.zeros(counts.sum(), dtype=bool)
    is_copy[offsets(counts)[:-1]] = True
    column = np.empty((batch.n, len(is_copy)), dtype=np.int32)
    column[:, is_copy] = problem.edge_state_at[batch.edge_states].reshape(batch.n, -1)
    first = problem.n_states + batch.configs.start + n_configs * np.arange(batch.n)
    column[:, ~is_copy] = first[:, None] + members
    return np.tile(counts, batch.n), column.ravel(), np.tile(np.where(is_copy, 1.0, -1.0), batch.n)


# -- A program with rows for the constraints of a model: linear ones directly, all others linearised ------------------

Term = tuple[int, float]  # a column of the base program, or -1 - k for additional column k, and its coefficient


@dataclass(frozen=True)
class ConstrainedPolytope:
    """The columns of a base formulation, preceded by 0/1 columns for violations and for binary digits of sums."""

    program: Program  # the program; its first `n_extra` columns are the additional ones
    base: LocalPolytope | Compact  # the formulation without constraints
    problem: Problem
    # For every additional column, its constraint and the power of 2 that it represents in half of the sum; -1 if it
    # indicates that the constraint is violated
    extras: list[tuple[int, int]]

    @classmethod
    def build(cls, problem: Problem, compact: bool = True) -> ConstrainedPolytope:
        """Build the program of a problem, over the compact formulation if that applies and is wanted."""
        base = Compact.build(problem) if compact and is_compact(problem) else LocalPolytope.build(problem)
        builder, constraints = _RowBuilder(problem, base), problem.graph.constraints
        assert constraints is not None
        for c in np.flatnonzero(constraints.penalty > 0).tolist():
            builder.add(constraints, c)
        return cls(builder.program(constraints), base, problem, builder.extras)

    @property
    def n_extra(self) -> int:
        return len(self.extras)

    @property
    def entries(self) -> Ints:
        return self.base.entries if isinstance(self.base, LocalPolytope) else np.arange(len(self.base.program.cost))

    @property
    def relaxation(self) -> Program:
        return dataclasses.replace(self.program, n_integer=0)

    def columns(self, labels: Ints) -> Floats:
        constraints = self.problem.graph.constraints
        assert constraints is not None
        violated, sums = constraints.violated(labels), constraints.counts(labels)
        above = sums - constraints.lower + 2.0 * (violated & (constraints.lower == 1))
        extra = [
            float(violated[c]) if power < 0 else float((int(above[c] // 2) >> power) & 1) for c, power in self.extras
        ]
        return np.concatenate([extra, self.base.columns(labels)])

    def labels(self, columns: Floats) -> Ints:
        return self.base.labels(columns[self.n_extra :])

    def marginals(self, columns: Floats) -> tuple[Floats, Floats]:
        """Return (mu_v, mu_f) of a point, over the local polytope."""
        assert isinstance(self.base, LocalPolytope)
        return self.base.marginals(columns[self.n_extra :])

    def bound(self, weights: Floats) -> float:
        return lagrangian(self.program, self.program.rows, weights)[0]


@dataclass
class _RowBuilder:
    problem: Problem
    base: LocalPolytope | Compact
    extras: list[tuple[int, int]] = field(default_factory=list)
    rows: list[list[Term]] = field(default_factory=list)
    lower: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)

    def add(self, constraints: Constraints, c: int) -> None:
        violated = None if constraints.hard[c] else self.column(c, -1)
        card = self.problem.graph.card
        for each in constraints.kind_of(c).sums(constraints, c, card):
            pairs, weights = list(zip(each.var.tolist(), each.state.tolist(), strict=True)), each.weight.tolist()
            if each.condition == WITHIN:
                least = each.least if violated is not None else max(each.least, each.implied)
                extremes = extreme_sums(each.var, each.weight, card)
                self.add_row(pairs, weights, (least, each.most), violated, extremes)
            elif each.condition == PARITY:  # the sum equals the parity plus an even number, up to a violation
                terms, constant = self.terms(pairs, weights)
                for power in range(max(1, (len(pairs) // 2 + 1).bit_length())):
                    terms.append((self.column(c, power), -(2.0 ** (power + 1))))
                if violated is not None:
                    terms.append((violated, 1.0 if each.least else -1.0))
                self.push(terms, each.least - constant, each.least - constant)
            else:  # no input without the output, and no output without an input
                for one in pairs[:-1]:
                    self.add_row([one, pairs[-1]], [1.0, -1.0], (-np.inf, 0.0), violated, (-1.0, 1.0))
                signs = [-1.0] * (len(pairs) - 1) + [1.0]
                self.add_row(pairs, signs, (-np.inf, 0.0), violated, (-np.inf, 1.0))

    def column(self, c: int, power: int) -> int:
        self.extras.append((c, power))
        return -len(self.extras)

    def terms(self, pairs: list[tuple[int, int]], weights: list[float]) -> tuple[list[Term], float]:
        terms, constant = [], 0.0
        for (i, k), weight in zip(pairs, weights, strict=True):
            column, factor, added = self.base.indicator(i, k)
            constant += weight * added
            if column >= 0:
                terms.append((column, weight * factor))
        return terms, constant

    def add_row(
        self, pairs: list[tuple[int, int]], weights: list[float], limits: tuple[float, float], violated: int | None,
        extremes: tuple[float, float],
    ) -> None:  # fmt: skip
        """Add a row for a sum within limits, relaxed to its extremes if it is violated."""
        terms, constant = self.terms(pairs, weights)
        low, high = limits[0] - constant, limits[1] - constant
        if violated is None:
            self.push(terms, low, high)
            return
        if np.isfinite(high) and extremes[1] > limits[1]:
            self.push([*terms, (violated, limits[1] - extremes[1])], -np.inf, high)
        if np.isfinite(low) and extremes[0] < limits[0]:
            self.push([*terms, (violated, limits[0] - extremes[0])], low, np.inf)

    def push(self, terms: list[Term], lower: float, upper: float) -> None:
        merged: dict[int, float] = {}
        for column, factor in terms:
            merged[column] = merged.get(column, 0.0) + factor
        self.rows.append(list(merged.items()))
        self.lower.append(lower)
        self.upper.append(upper)

    def program(self, constraints: Constraints) -> Program:
        base, n_extra = self.base.program, len(self.extras)
        places = [[n_extra + column if column >= 0 else -1 - column for column, _ in row] for row in self.rows]
        data = np.array([factor for row in self.rows for _, factor in row])
        ptr = offsets([len(row) for row in self.rows])
        indices = np.array([place for row in places for place in row], dtype=np.int32)
        matrix = SparseMatrix(data, indices, ptr, n_extra + len(base.cost))
        more = Rows(matrix, np.array(self.lower), np.array(self.upper))
        wide = base.rows.matrix.shifted(n_extra)
        price = [-float(constraints.penalty[c]) if power < 0 else 0.0 for c, power in self.extras]
        return Program(
            cost=np.concatenate([np.array(price) / base.scale, base.cost]),
            lower=np.concatenate([np.zeros(n_extra), base.lower]),
            upper=np.concatenate([np.ones(n_extra), base.upper]),
            n_integer=n_extra + base.n_integer,
            rows=Rows(wide, base.rows.lower, base.rows.upper).plus(more),
            offset=base.offset,
            scale=base.scale,
            mass=base.mass + n_extra,
        )
