"""The cost network of a problem."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_max
from mapmrf.engines.program.toulbar2_costs import WholeCosts
from mapmrf.engines.soft_consistency.network_kernels import (
    HARD,
    ConsistencyTally,
    CostNetwork,
    NetworkState,
    PendingWork,
    SoftNetwork,
)
from mapmrf.kernels.records import blank
from mapmrf.problem import Problem


@dataclass
class ModelNetwork:
    """A problem in whole costs, and what soft consistency has made of it.

    Attributes
    ----------
    problem
        The model.
    costs
        How costs and log potentials correspond.
    soft
        What the kernels work on.
    """

    problem: Problem
    costs: WholeCosts
    soft: SoftNetwork

    @classmethod
    def of(cls, problem: Problem) -> ModelNetwork:
        """The network before any propagation, all states left."""
        costs = WholeCosts.of(problem)
        net = _network(problem, costs)
        now = _state(problem, net, costs)
        todo = _pending(problem)
        tally = blank(ConsistencyTally)
        tally.n_vars, tally.serial, tally.pruned_at, tally.least_gain = problem.n_vars, 1, -1, 1
        tally.upper = _largest_cost(problem, costs) + 1
        return cls(problem, costs, SoftNetwork(net, now, todo, tally))

    def cost_of(self, labels: Ints) -> float:
        """Cost of a labelling, inf if it is forbidden."""
        return self.costs.cost(self.problem, labels)

    @property
    def lower(self) -> int:
        """The lower bound on the cost of all labellings of interest below the current node."""
        return int(self.soft.now.cell[self.problem.n_vars])

    def grow_trail(self) -> None:
        """Make the trail twice as long."""
        now = self.soft.now
        twice = {name: np.concatenate([getattr(now, name)] * 2) for name in ("trail_at", "trail_was")}
        self.soft = self.soft._replace(now=now._replace(**twice))


def _whole(costs: Floats) -> Ints:
    return np.where(np.isfinite(costs), costs, float(HARD)).astype(np.int64)


def _largest_cost(problem: Problem, costs: WholeCosts) -> int:
    """More than any labelling can cost, unless it is forbidden."""
    total = float(_largest(costs.unary, problem.graph.var_ptr).sum())
    for batch in problem.batches:
        starts, of = np.unique(costs.table_at[batch.factors], return_inverse=True)
        tables = costs.tables[starts[:, None] + np.arange(batch.n_configs)]
        total += float(np.where(np.isfinite(tables), tables, 0.0).max(axis=1)[of].sum())
    return int(total)


def _largest(costs: Floats, ptr: Ints) -> Floats:
    return segment_max(np.where(np.isfinite(costs), costs, 0.0), ptr)


def _network(problem: Problem, costs: WholeCosts) -> CostNetwork:
    n, n_states = problem.n_vars, problem.n_states
    wide = np.int64
    return CostNetwork(
        var_at=problem.graph.var_ptr[:-1].astype(wide) + (n + 1),
        card=problem.graph.card.astype(wide),
        scope_ptr=problem.scope_ptr.astype(wide),
        scope=problem.scope.astype(wide),
        stride=problem.edge_stride.astype(wide),
        edge_at=problem.edge_ptr[:-1].astype(wide) + (n + 1 + n_states),
        factor_of=problem.edge_factor.astype(wide),
        nbr_ptr=problem.nbr_ptr.astype(wide),
        nbr=problem.nbr.astype(wide),
        table_at=costs.table_at.astype(wide),
        costs=_whole(costs.tables),
    )


def _state(problem: Problem, net: CostNetwork, costs: WholeCosts) -> NetworkState:
    n, n_states, n_edge_states = problem.n_vars, problem.n_states, problem.n_edge_states
    n_cells = n + 1 + n_states + n_edge_states
    begin = n + 1
    cell = np.zeros(n_cells, dtype=np.int64)
    cell[:n] = net.card
    cell[begin : begin + n_states] = _whole(costs.unary)
    own = np.zeros(n_cells, dtype=np.int64)
    own[begin : begin + n_states] = np.arange(n_states) - np.repeat(problem.graph.var_ptr[:-1], net.card)
    card_e = net.card[net.scope]
    state = np.arange(n_edge_states) - np.repeat(problem.edge_ptr[:-1], card_e)
    pair = np.diff(net.scope_ptr)[net.factor_of] == 2
    support = np.zeros(n_cells, dtype=np.int64)
    support[begin + n_states :] = state * np.repeat(np.where(pair, 0, net.stride), card_e)
    room = 2 * n_cells + 1024
    return NetworkState(
        cell=cell,
        stamp=np.zeros(n_cells, dtype=np.int64),
        trail_at=np.empty(room, dtype=np.int64),
        trail_was=np.empty(room, dtype=np.int64),
        domain=own,
        where=own.copy(),
        support=support,
        full=np.zeros(len(net.scope), dtype=np.int64),
        favourite=np.zeros(n, dtype=np.int64),
    )


def _pending(problem: Problem) -> PendingWork:
    n, widest = problem.n_vars, int(np.diff(problem.scope_ptr).max(initial=1))
    most = int(problem.graph.card.max(initial=1))
    ints = np.int64
    return PendingWork(
        reasons=np.zeros(n, dtype=ints),
        removed=np.zeros(n, dtype=ints),
        raised=np.zeros(n, dtype=ints),
        changed=np.zeros(n, dtype=ints),
        unsettled=np.zeros(n, dtype=ints),
        amount=np.zeros(most, dtype=ints),
        free=np.zeros(widest, dtype=ints),
        digit=np.zeros(widest, dtype=ints),
        base=np.zeros(widest, dtype=ints),
        shift=np.zeros(widest, dtype=ints),
        seen=np.zeros(n, dtype=ints),
        burden=1.0 + problem.degree.astype(np.float64),
    )
