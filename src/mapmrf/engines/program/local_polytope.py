"""The local polytope L_G as a program: a relaxation (lp), or the whole model with 0/1 variables (cuts)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_argmax
from mapmrf.engines.program.program import Program, Rows, block_losses, cost_scale
from mapmrf.model.polytope import configuration, dual_bound
from mapmrf.model.problem import Batch, Problem

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True)
class LocalPolytope:
    """Columns: the entries of mu_v, 0 or 1, and of mu_f that may be positive.

    Rows: total mass 1 of every variable, then mu_i - M_ia mu_a = 0, laid out like `lam_e`. Entries of -inf potential
    have no column, nor do variables without factors and constraints, which take their best state. Costs are relative to
    the best entry of their block. Constraints are not included, see `ConstrainedPolytope`.

    Attributes
    ----------
    program
        The program.
    problem
        The underlying problem.
    entries
        The index of every column in (mu_v, mu_f), ascending.
    n_mass
        Number of mass rows.
    """

    program: Program
    problem: Problem
    entries: Ints
    n_mass: int

    @classmethod
    def build(cls, problem: Problem) -> LocalPolytope:
        """Build the program of a problem."""
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
        matrix = _constraints(problem)
        program = Program(
            cost / scale,
            lower=np.zeros(len(cost)),
            upper=np.ones(len(cost)),
            n_integer=int(np.count_nonzero(allowed[: problem.n_states])),
            rows=Rows(matrix if allowed.all() else matrix[:, entries], rhs, rhs),
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
        """Return the vertex of a labelling."""
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
        """Return (mu_v, mu_f) of a point."""
        problem = self.problem
        mu = np.zeros(problem.n_states + problem.n_configs)
        mu[self.entries] = columns
        mu[self._alone()] = 1.0
        return mu[: problem.n_states], mu[problem.n_states :]

    def multipliers(self, weights: Floats) -> Floats:
        """Return `lam_e` from the rows' multipliers."""
        return weights[self.n_mass :] * self.program.scale

    def bound(self, weights: Floats) -> float:
        """Return the upper bound given by any multipliers of the rows."""
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


def _constraints(problem: Problem) -> csr_array:
    """Return the constraint matrix over all entries of (mu_v, mu_f)."""
    from scipy import sparse  # not imported for models that need no program

    linked, card = linked_variables(problem), problem.graph.card
    states = np.flatnonzero(np.repeat(linked, card)).astype(np.int32)
    margins = [_marginal_rows(problem, batch) for batch in problem.batches]
    counts, columns, entries = zip((card[linked], states, np.ones(len(states))), *margins, strict=True)
    parts = (np.concatenate(entries), np.concatenate(columns), offsets(np.concatenate(counts)))
    shape = (len(parts[2]) - 1, problem.n_states + problem.n_configs)
    return sparse.csr_array(parts, shape=shape)


def _marginal_rows(problem: Problem, batch: Batch) -> tuple[Ints, Ints, Floats]:
    """Build mu_i - M_ia mu_a for the factors of a batch, laid out like `lam_e`: entries per row, columns and values.

    Built directly: all factors have the same pattern, and products of sparse matrices take ten times as long.
    """
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
