"""What message passing works on: the walk through a model, the weights of its factors, and the messages themselves."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax, short
from mapmrf.engines.messages.max_product_kernels import (
    bound_of_tables,
    decode_in_order,
    pass_messages,
    value_of_tables,
    walk,
)
from mapmrf.engines.messages.pair_kernels import bound_of_pairs, decode_pairs, flood_pairs, sweep_pairs, value_of_pairs
from mapmrf.graph import FactorGraph
from mapmrf.problem import Problem

# -- the walk and the weights -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weights:
    """How often the factors are in a set of spanning forests.

    Attributes
    ----------
    rho : (n_factors,)
        The share of forests that hold a factor, above 0.
    parent : (n_edges,)
        The share of forests in which an edge leads from the factor towards the root.
    """

    rho: Floats
    parent: Floats


@dataclass(frozen=True)
class Tour:
    """A breadth-first walk through some of the factors; see the kernel `walk`."""

    n_parts: int
    var_order: Ints
    factor_order: Ints
    parent_edge: Ints

    def weights(self, n_edges: int) -> Weights:
        """The weights of a single forest that holds all factors."""
        parent = np.zeros(n_edges)
        parent[self.parent_edge] = 1.0
        return Weights(np.ones(len(self.parent_edge)), parent)


@dataclass(frozen=True)
class Wiring:
    """Who is linked to whom: a problem's arrays, and the factor of every edge."""

    problem: Problem
    owner: Ints

    @classmethod
    def of(cls, problem: Problem) -> Wiring:
        """The wiring of a problem."""
        return cls(problem, short(problem.edge_factor))

    def tour(self, taken: Bools) -> Tour:
        """Walk through the taken factors."""
        problem = self.problem
        seen = np.empty(problem.n_vars, dtype=bool)
        var_order = np.empty(problem.n_vars, dtype=np.int64)
        factor_order = np.empty(problem.n_factors, dtype=np.int64)
        parent_edge = np.empty(problem.n_factors, dtype=np.int64)
        n_parts, n_factors = walk(
            problem.nbr_ptr,
            problem.nbr,
            self.owner,
            problem.scope_ptr,
            problem.scope,
            taken,
            seen,
            var_order,
            factor_order,
            parent_edge,
        )
        return Tour(n_parts, var_order, factor_order[:n_factors], parent_edge)


# -- messages ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Schedule:
    """How messages are updated: all at once (flooding) or factor by factor in an order; damped, until they settle."""

    flooding: bool
    damping: float
    tol: float


class Messages(Protocol):
    """Messages and beliefs of a model, and the loops that work on them."""

    def iterate(self, how: Schedule, begin: int, end: int) -> tuple[int, float]:
        """Iterations `begin` to `end`, or to convergence: how many, and the largest change that the last asked for."""

    def decode(self, in_order: bool, labels: Ints) -> None:
        """Fill in the labels: of each belief alone, or of one variable after another given those before."""

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""

    def bound(self) -> float:
        """Upper bound on every labelling."""

    def is_infeasible(self) -> bool:
        """Whether the messages have shown that there is no feasible labelling."""


def make_messages(wiring: Wiring, tour: Tour, weights: Weights) -> Messages:
    """Messages of 0, kept in the shortest way that the model allows."""
    problem = wiring.problem
    graph = problem.graph
    tables = len(problem.batches) == 1 and problem.batches[0].arity == 2 and not problem.batches[0].hard
    if tables and np.all(graph.card == 2) and np.all(graph.theta_v.reshape(-1, 2).max(axis=1) > -np.inf):
        return PairMessages.build(problem, tour, weights)
    return TableMessages(wiring, tour, weights)


@dataclass(frozen=True)
class PairMessages:
    """Messages of finite 2x2 tables between binary variables: see `mapmrf.engines.messages.pair_kernels`."""

    problem: Problem
    tour: Tour
    weights: Weights
    c: Floats
    h: Floats
    b: Floats
    d: Floats
    constant: float

    @classmethod
    def build(cls, problem: Problem, tour: Tour, weights: Weights) -> PairMessages:
        """Split the tables into their constant, linear and quadratic parts."""
        theta_t, at = problem.graph.theta_t, problem.table_at
        t00, t01, t10, t11 = (theta_t[at + k] for k in range(4))
        c = 0.5 * (t00 + t11 - t01 - t10)
        linear = 0.5 * np.stack([t10 + t11 - t00 - t01, t01 + t11 - t00 - t10], axis=1).ravel()
        theta = _finite_fields(problem, np.abs(linear) + np.repeat(np.abs(c), 2))
        b = theta[:, 1] - theta[:, 0]
        h = b + np.bincount(problem.scope, weights=linear, minlength=problem.n_vars)
        constant = problem.graph.constant + 0.5 * float(theta.sum()) + 0.25 * float((t00 + t01 + t10 + t11).sum())
        return cls(problem, tour, weights, c, h, b, -linear, constant)  # messages of 0 beside the linear parts

    def iterate(self, how: Schedule, begin: int, end: int) -> tuple[int, float]:
        """Run the kernel of the schedule."""
        shared = self.problem.scope, self.c, self.weights.rho, self.h, self.b
        if how.flooding:
            return flood_pairs(*shared, np.empty_like(self.b), self.d, how.damping, how.tol, end - begin)
        return sweep_pairs(*shared, self.d, self.tour.factor_order, how.damping, how.tol, begin, end)

    def decode(self, in_order: bool, labels: Ints) -> None:
        """Fill in the labels."""
        if not in_order:
            labels[:] = self.b > 0
            return
        problem = self.problem
        order = self.tour.var_order
        decode_pairs(problem.scope, self.c, self.h, self.d, order, problem.nbr_ptr, problem.nbr, labels)

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""
        return self.constant + value_of_pairs(self.problem.scope, self.c, self.h, labels)

    def bound(self) -> float:
        """Upper bound on every labelling."""
        rho, parent = self.weights.rho, self.weights.parent
        scratch = np.empty_like(self.b)
        return self.constant + bound_of_pairs(self.problem.scope, self.c, rho, parent, self.h, self.b, self.d, scratch)

    def is_infeasible(self) -> bool:
        """Never: every variable has a state left, and all tables are finite."""
        return False


def _finite_fields(problem: Problem, reach_e: Floats) -> Floats:
    """Unary potentials as (n_vars, 2), with a penalty in place of -inf.

    It is more than all factors of the variable together can make up for, so that neither the best labelling nor the
    optimum of the relaxation ever takes such a state.
    """
    theta = problem.graph.theta_v.reshape(-1, 2)
    if np.isfinite(theta).all():
        return theta
    reach = np.bincount(problem.scope, weights=reach_e, minlength=problem.n_vars)
    penalty = 2.0 * reach + potential_scale(problem.graph)
    return np.where(np.isfinite(theta), theta, (theta.max(axis=1) - penalty)[:, None])


@dataclass
class TableMessages:
    """Messages of tables of any shape: see `mapmrf.engines.messages.max_product_kernels`."""

    wiring: Wiring
    tour: Tour
    weights: Weights
    theta_v: Floats = field(init=False)
    b: Floats = field(init=False)
    u: Floats = field(init=False)

    def __post_init__(self) -> None:
        problem = self.wiring.problem
        graph = problem.graph
        self.theta_v, self.b, self.u = graph.theta_v.copy(), graph.theta_v.copy(), np.zeros(problem.n_edge_states)
        arity = np.diff(problem.scope_ptr)
        self.card_e = short(graph.card[problem.scope])
        self.stride_e = short(problem.edge_stride)
        widest = int(graph.card.max(initial=1)) * int(arity.max(initial=1))
        self.scratch = np.empty_like(self.b)
        self.told, self.out = np.empty((2, widest))
        self.state, self.start = np.empty((2, widest), dtype=np.int64)

    def iterate(self, how: Schedule, begin: int, end: int) -> tuple[int, float]:
        """Run the kernel of both schedules."""
        problem = self.wiring.problem
        return pass_messages(
            problem.scope_ptr,
            problem.scope,
            self.card_e,
            problem.graph.var_ptr,
            problem.edge_ptr,
            problem.table_at,
            problem.graph.theta_t,
            self.weights.rho,
            self.theta_v,
            self.b,
            self.scratch,
            self.u,
            self.told,
            self.out,
            self.state,
            self.start,
            self.tour.factor_order,
            how.flooding,
            how.damping,
            how.tol,
            begin,
            end,
        )

    def decode(self, in_order: bool, labels: Ints) -> None:
        """Fill in the labels."""
        problem = self.wiring.problem
        if not in_order:
            labels[:] = segment_argmax(self.b, problem.graph.var_ptr)
            return
        decode_in_order(
            problem.scope_ptr,
            problem.scope,
            self.card_e,
            self.stride_e,
            self.wiring.owner,
            problem.graph.var_ptr,
            problem.edge_ptr,
            problem.table_at,
            problem.graph.theta_t,
            self.weights.rho,
            self.theta_v,
            self.b,
            self.u,
            self.tour.var_order,
            problem.nbr_ptr,
            problem.nbr,
            labels,
            self.told,
            self.out,
            self.state,
            self.start,
        )

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""
        problem = self.wiring.problem
        return problem.graph.constant + value_of_tables(
            problem.scope_ptr,
            problem.scope,
            self.stride_e,
            problem.graph.var_ptr,
            problem.table_at,
            problem.graph.theta_t,
            self.theta_v,
            labels,
        )

    def bound(self) -> float:
        """Upper bound on every labelling."""
        problem = self.wiring.problem
        return problem.graph.constant + bound_of_tables(
            problem.scope_ptr,
            problem.scope,
            self.card_e,
            problem.graph.var_ptr,
            problem.edge_ptr,
            problem.table_at,
            problem.graph.theta_t,
            self.weights.rho,
            self.weights.parent,
            self.theta_v,
            self.b,
            self.u,
            self.scratch,
            self.told,
            self.out,
            self.state,
            self.start,
        )

    def is_infeasible(self) -> bool:
        """Whether all states of some variable are dead."""
        starts = self.wiring.problem.graph.var_ptr[:-1]
        return len(starts) > 0 and bool(np.maximum.reduceat(self.theta_v, starts).min() == -math.inf)


def potential_scale(graph: FactorGraph) -> float:
    """Mean spread of the finite entries of a table or a unary potential, over those that have one; else 1."""
    spreads = np.concatenate([_spreads(graph.theta_v, graph.var_ptr), _spreads(graph.theta_t, graph.table_ptr)])
    positive = spreads[spreads > 0]
    return float(positive.mean()) if len(positive) else 1.0


def _spreads(theta: Floats, ptr: Ints) -> Floats:
    """Largest minus smallest finite entry of every block; not positive if there are fewer than two."""
    if len(ptr) < 2:
        return np.zeros(0)
    low = theta if np.isfinite(theta).all() else np.where(theta > -np.inf, theta, np.inf)
    return np.asarray(np.maximum.reduceat(theta, ptr[:-1]) - np.minimum.reduceat(low, ptr[:-1]))
