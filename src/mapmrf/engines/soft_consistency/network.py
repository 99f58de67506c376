"""The cost network of a problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, blanks, segment_max
from mapmrf.engines.program.toulbar2_process import WholeCosts
from mapmrf.engines.soft_consistency.constraints import ConstraintBuilder
from mapmrf.engines.soft_consistency.network_kernels import (
    HARD,
    ConsistencyTally,
    CostNetwork,
    EdgeRecord,
    FactorRecord,
    NetworkState,
    OdometerRecord,
    PendingWork,
    QueueRecord,
    SoftNetwork,
    TrailRecord,
    VariableRecord,
)
from mapmrf.model.problem import Problem

LEAST_UNIT = 1 << 10  # common divisors of all costs below this are not used


@dataclass
class ModelNetwork:
    """A problem in integer costs, and the network on which soft consistency works."""

    problem: Problem  # the model
    costs: WholeCosts  # conversion between costs and log potentials
    soft: SoftNetwork  # the arrays of the kernels
    unit: int  # the cost of every labelling is a multiple of this; 1 if there is no large common divisor

    @classmethod
    def of(cls, problem: Problem) -> ModelNetwork:
        costs = WholeCosts.of(problem)
        first_cell = problem.n_vars + 1 + problem.n_states + problem.n_edge_states
        laid_out = ConstraintBuilder(problem, costs, first_cell).layout()
        net = _network(problem, costs, laid_out.constraint_ptr)
        now = _state(problem, costs, laid_out.n_cells)
        widest, most = int(np.diff(problem.scope_ptr).max(initial=1)), int(problem.graph.card.max(initial=1))
        todo = PendingWork(
            blanks(QueueRecord, problem.n_vars), np.zeros(most, dtype=np.int64), blanks(OdometerRecord, widest)
        )
        tally = blank(ConsistencyTally)
        tally.n_vars, tally.serial, tally.pruned_at, tally.least_gain = problem.n_vars, 1, -1, 1
        tally.upper, unit = _largest_cost(problem, costs) + 1, _unit(costs)
        tally.slack = 7 * unit // 8
        return cls(problem, costs, SoftNetwork(net, laid_out.network, now, todo, tally), unit)

    def removed_states(self) -> Bools:
        now, n, card = self.soft.now, self.problem.n_vars, self.problem.graph.card
        place = now.place[n + 1 : n + 1 + self.problem.n_states]
        return np.asarray(place >= np.repeat(now.cell[:n], card))

    @property
    def lower(self) -> int:
        """Lower bound on the cost of all relevant labellings below the current node."""
        return int(self.soft.now.cell[self.problem.n_vars])

    def grow_trail(self) -> None:
        trail = blanks(TrailRecord, 2 * len(self.soft.now.trail))
        trail[: len(self.soft.now.trail)] = self.soft.now.trail
        self.soft = self.soft._replace(now=self.soft.now._replace(trail=trail))


def _whole(costs: Floats) -> Ints:
    return np.where(np.isfinite(costs), costs, float(HARD)).astype(np.int64)


def _largest_cost(problem: Problem, costs: WholeCosts) -> int:
    """Return an upper limit on the cost of any labelling that is not forbidden."""
    unary = np.where(np.isfinite(costs.unary), costs.unary, 0.0)
    total = float(segment_max(unary, problem.graph.var_ptr).sum())
    for batch in problem.batches:
        starts, of = np.unique(costs.table_at[batch.factors], return_inverse=True)
        tables = costs.tables[starts[:, None] + np.arange(batch.n_configs)]
        total += float(np.where(np.isfinite(tables), tables, 0.0).max(axis=1)[of].sum())
    return int(total + costs.penalties[np.isfinite(costs.penalties)].sum())


def _unit(costs: WholeCosts) -> int:
    """Return the greatest common divisor of all costs, if it is well above the round-off of their sums."""
    finite = [block[np.isfinite(block)].astype(np.int64) for block in (costs.unary, costs.tables, costs.penalties)]
    unit = int(np.gcd.reduce(np.concatenate(finite))) if sum(map(len, finite)) else 1
    return unit if unit >= LEAST_UNIT and unit > 16 * costs.error * costs.scale else 1


def _network(problem: Problem, costs: WholeCosts, constraint_ptr: Ints) -> CostNetwork:
    n, graph = problem.n_vars, problem.graph
    variables = blanks(VariableRecord, n)
    variables.at, variables.card = graph.var_ptr[:-1] + (n + 1), graph.card
    variables.first, variables.end = problem.nbr_ptr[:-1], problem.nbr_ptr[1:]
    variables.first_constraint, variables.end_constraint = constraint_ptr[:-1], constraint_ptr[1:]
    variables.burden = 1.0 + problem.degree + np.diff(constraint_ptr)
    edges = blanks(EdgeRecord, problem.n_edges)
    edges.variable, edges.factor, edges.stride = problem.scope, problem.edge_factor, problem.edge_stride
    edges.at = problem.edge_ptr[:-1] + (n + 1 + problem.n_states)
    factors = blanks(FactorRecord, problem.n_factors)
    factors.first, factors.end = problem.scope_ptr[:-1], problem.scope_ptr[1:]
    factors.table = costs.table_at
    return CostNetwork(variables, edges, factors, problem.nbr.astype(np.int64), _whole(costs.tables))


def _state(problem: Problem, costs: WholeCosts, n_constraint_cells: int) -> NetworkState:
    n, n_states, n_edge_states = problem.n_vars, problem.n_states, problem.n_edge_states
    n_cells, begin = n + 1 + n_states + n_edge_states + n_constraint_cells, n + 1
    end = begin + n_states
    cell, domain = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
    card = problem.graph.card
    cell[:n], cell[begin:end] = card, _whole(costs.unary)
    domain[begin:end] = np.arange(n_states) - np.repeat(problem.graph.var_ptr[:-1], card)
    place = domain.copy()
    card_e = card[problem.scope]
    state = np.arange(n_edge_states) - np.repeat(problem.edge_ptr[:-1], card_e)
    pair = np.diff(problem.scope_ptr)[problem.edge_factor] == 2
    place[end : end + n_edge_states] = state * np.repeat(np.where(pair, 0, problem.edge_stride), card_e)
    return NetworkState(cell, np.zeros(n_cells, dtype=np.int64), blanks(TrailRecord, 2 * n_cells + 1024), domain, place)
