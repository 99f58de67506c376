"""Max-product messages of a model: the walk through it, the weights of its factors, and the messages themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax, segment_max, short
from mapmrf.engines.messages.max_product_kernels import (
    Beliefs,
    BeliefScratch,
    FactorTables,
    MessageSchedule,
    bound_of_tables,
    decode_in_order,
    gather_beliefs,
    pass_messages,
    send_messages,
    value_of_tables,
    walk,
)
from mapmrf.engines.messages.max_product_pairs_kernels import (
    PairBeliefs,
    bound_of_pairs,
    decode_pairs,
    flood_pairs,
    gather_pairs,
    send_pairs,
    sweep_pairs,
    value_of_pairs,
)
from mapmrf.engines.messages.neighbours import Neighbours
from mapmrf.graph import FactorGraph
from mapmrf.kernels.jit import settled
from mapmrf.kernels.max_marginals import FactorScratch
from mapmrf.kernels.structured_pairs import StructuredPairs
from mapmrf.problem import Problem
from mapmrf.workers import Workers

PARALLEL_FROM = 100_000
"""Factors from which several threads are worth their meetings."""

# -- the walk and the weights -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForestWeights:
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

    @classmethod
    def of(cls, problem: Problem, taken: Bools | None = None) -> Tour:
        """Walk through the taken factors, all of them by default."""
        if taken is None:
            taken = np.ones(problem.n_factors, dtype=bool)
        seen, var_order = np.empty(problem.n_vars, dtype=bool), np.empty(problem.n_vars, dtype=np.int64)
        factor_order, parent_edge = np.empty((2, problem.n_factors), dtype=np.int64)
        n_parts, n_factors = walk(
            Neighbours.of(problem), problem.scope_ptr, problem.scope, taken, seen, var_order, factor_order, parent_edge
        )
        return cls(n_parts, var_order, factor_order[:n_factors], parent_edge)

    def weights(self, n_edges: int) -> ForestWeights:
        """The weights of a single forest that holds all factors."""
        parent = np.zeros(n_edges)
        parent[self.parent_edge] = 1.0
        return ForestWeights(np.ones(len(self.parent_edge)), parent)


# -- messages ---------------------------------------------------------------------------------------------------------


class Messages(Protocol):
    """Messages and beliefs of a model, and the loops that work on them."""

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Iterations `begin` to `end`, or to convergence: how many, and the largest change that the last asked for."""

    def decode(self, in_order: bool) -> Ints:
        """A labelling: the best state of each belief alone, or of one variable after another given those before."""

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""

    def bound(self) -> float:
        """Upper bound on every labelling."""

    def is_infeasible(self) -> bool:
        """Whether the messages have shown that there is no feasible labelling."""

    def close(self) -> None:
        """End the threads."""


def make_messages(problem: Problem, tour: Tour, weights: ForestWeights) -> Messages:
    """Messages of 0, kept in the shortest way that the model allows."""
    graph = problem.graph
    tables = len(problem.batches) == 1 and problem.batches[0].arity == 2 and not problem.batches[0].hard
    if tables and np.all(graph.card == 2) and np.all(graph.theta_v.reshape(-1, 2).max(axis=1) > -np.inf):
        return PairMessages(problem, tour, weights)
    return TableMessages(problem, tour, weights)


class FloodingThreads:
    """Iterations of flooding on several threads: messages of some factors each, then beliefs of some variables each.

    A variable adds its messages up in the order of its factors, as one thread does, so the answer is the same.
    """

    def __init__(self, problem: Problem) -> None:
        self.workers = Workers(problem.threads if problem.n_factors >= PARALLEL_FROM else 1)
        self.factors = self.workers.spans(problem.n_factors)
        self.variables = self.workers.spans(problem.n_vars)
        self.neighbours = Neighbours.of(problem)
        if self.workers.n > 1:  # all of them are read in every iteration
            self.neighbours = Neighbours(*map(short, self.neighbours))

    def iterate(self, send: Callable[..., float], gather: Callable[..., None], tol: float, n: int) -> tuple[int, float]:
        """At most `n` iterations.

        `send` is called with two factors and the number of a thread, `gather` with two variables; both say how they
        are to be called by the kernels.
        """
        done, worst = 0, math.inf
        while done < n and worst > tol:
            worst = max(self.workers.run(send, [(*span, t) for t, span in enumerate(self.factors)]))
            self.workers.run(gather, list(self.variables))
            done += 1
        return done, worst


class PairMessages:
    """Messages of finite 2x2 tables between binary variables: see `mapmrf.engines.messages.max_product_pairs_kernels`.

    Attributes
    ----------
    pairs
        Fields, couplings, beliefs and messages.
    constant
        What the tables hold besides.
    """

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        """Split the tables into their constant, linear and quadratic parts."""
        graph = problem.graph
        table_of = graph.table_of if problem.sorted_by is None else graph.table_of[problem.sorted_by]
        starts, last = graph.table_ptr[:-1], len(graph.theta_t) - 1  # a table that no factor uses may be smaller
        t00, t01, t10, t11 = (graph.theta_t[np.minimum(starts + k, last)] for k in range(4))
        c = _weighted((0.5 * (t00 + t11 - t01 - t10))[table_of], problem)
        linear = np.empty(problem.n_edges)
        linear[::2] = _weighted((0.5 * (t10 + t11 - t00 - t01))[table_of], problem)
        linear[1::2] = _weighted((0.5 * (t01 + t11 - t00 - t10))[table_of], problem)
        theta = _finite_fields(problem, np.abs(linear) + np.repeat(np.abs(c), 2))
        b = theta[:, 1] - theta[:, 0]
        h = b + np.bincount(problem.scope, weights=linear, minlength=problem.n_vars)
        mean = _weighted((t00 + t01 + t10 + t11)[table_of], problem)
        self.constant = graph.constant + 0.5 * float(theta.sum()) + 0.25 * float(mean.sum())
        self.problem, self.tour, self.weights = problem, tour, weights
        self.threads = FloodingThreads(problem)
        np.negative(linear, out=linear)  # messages of 0 beside the linear parts
        self.pairs = PairBeliefs(problem.scope, c, weights.rho, h, b, linear)

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Run the kernel of the schedule."""
        if schedule.flooding and self.threads.workers.n > 1:
            pairs, neighbours = self.pairs, self.threads.neighbours

            def send(first: int, last: int, _: int) -> float:
                return send_pairs(pairs, schedule, first, last)

            def gather(first: int, last: int) -> None:
                gather_pairs(pairs, neighbours, first, last)

            return self.threads.iterate(send, gather, schedule.tol, end - begin)
        if schedule.flooding:
            return flood_pairs(self.pairs, np.empty_like(self.pairs.b), schedule, end - begin)
        return sweep_pairs(self.pairs, self.tour.factor_order, schedule, begin, end)

    def decode(self, in_order: bool) -> Ints:
        """A labelling."""
        if not in_order:
            return (self.pairs.b > 0).astype(np.int64)
        labels = np.empty(self.problem.n_vars, dtype=np.int64)
        decode_pairs(self.pairs, Neighbours.of(self.problem), self.tour.var_order, labels)
        return labels

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""
        return self.constant + value_of_pairs(self.pairs, labels)

    def bound(self) -> float:
        """Upper bound on every labelling."""
        return self.constant + bound_of_pairs(self.pairs, self.weights.parent, np.empty_like(self.pairs.b))

    def is_infeasible(self) -> bool:
        """Never: every variable has a state left, and all tables are finite."""
        return False

    def close(self) -> None:
        """End the threads."""
        self.threads.workers.close()


def _weighted(values: Floats, problem: Problem) -> Floats:
    """Numbers of the factors, each times the factor's weight."""
    if len(problem.weight):
        values *= problem.weight
    return values


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


class TableMessages:
    """Messages of tables of any shape: see `mapmrf.engines.messages.max_product_kernels`."""

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        graph = problem.graph
        self.problem, self.tour, self.weights = problem, tour, weights
        self.beliefs = Beliefs(weights.rho, graph.theta_v.copy(), graph.theta_v.copy(), np.zeros(problem.n_edge_states))
        self.tables = FactorTables(
            problem.scope_ptr, problem.scope, short(graph.card[problem.scope]), short(problem.edge_stride),
            graph.var_ptr, problem.edge_ptr, problem.table_at, graph.theta_t, problem.weight,
        )  # fmt: skip
        most, arity = int(graph.card.max(initial=1)), int(np.diff(problem.scope_ptr).max(initial=1))
        self.threads = FloodingThreads(problem)
        spare = np.empty_like(graph.theta_v)
        self.scratch = [
            BeliefScratch(
                spare,
                FactorScratch.allocate(most * arity, most * arity),
                StructuredPairs.allocate(problem.quick_forms, most),
            )
            for _ in range(self.threads.workers.n)
        ]
        self._pass_messages, self._decode_in_order = settled(pass_messages), settled(decode_in_order)
        self._value_of_tables, self._bound_of_tables = settled(value_of_tables), settled(bound_of_tables)

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Run the kernel of both schedules."""
        tables, beliefs = self.tables, self.beliefs
        if not schedule.flooding or self.threads.workers.n == 1:
            order = self.tour.factor_order
            return self._pass_messages(tables, beliefs, order, schedule, begin, end, self.scratch[0])
        neighbours = self.threads.neighbours

        def send(first: int, last: int, thread: int) -> float:
            return send_messages(tables, beliefs, schedule, first, last, self.scratch[thread])

        def gather(first: int, last: int) -> None:
            gather_beliefs(tables, neighbours, beliefs, first, last)

        return self.threads.iterate(send, gather, schedule.tol, end - begin)

    def decode(self, in_order: bool) -> Ints:
        """A labelling."""
        if not in_order:
            return segment_argmax(self.beliefs.b, self.problem.graph.var_ptr)
        labels = np.empty(self.problem.n_vars, dtype=np.int64)
        neighbours, order = Neighbours.of(self.problem), self.tour.var_order
        self._decode_in_order(self.tables, neighbours, self.beliefs, order, labels, self.scratch[0].factor)
        return labels

    def value(self, labels: Ints) -> float:
        """Log potential of labels that come from `decode`."""
        return self.problem.graph.constant + self._value_of_tables(self.tables, self.beliefs.theta_v, labels)

    def bound(self) -> float:
        """Upper bound on every labelling."""
        bound = self._bound_of_tables(self.tables, self.beliefs, self.weights.parent, self.scratch[0])
        return self.problem.graph.constant + bound

    def is_infeasible(self) -> bool:
        """Whether all states of some variable are dead."""
        best = segment_max(self.beliefs.theta_v, self.problem.graph.var_ptr)
        return bool(best.min(initial=0.0) == -math.inf)

    def close(self) -> None:
        """End the threads."""
        self.threads.workers.close()


def potential_scale(graph: FactorGraph) -> float:
    """Mean spread of the finite entries of a table or a unary potential, over those that have one; else 1.

    With weights, every factor counts with its weight times its table.
    """
    of_tables = _spreads(graph.theta_t, graph.table_ptr)
    if graph.weight is not None:
        of_tables = np.abs(graph.weight) * of_tables[graph.table_of]
    spreads = np.concatenate([_spreads(graph.theta_v, graph.var_ptr), of_tables])
    positive = spreads[spreads > 0]
    return float(positive.mean()) if len(positive) else 1.0


def _spreads(theta: Floats, ptr: Ints) -> Floats:
    """Largest minus smallest finite entry of every block; not positive if there are fewer than two."""
    if len(ptr) < 2:
        return np.zeros(0)
    low = theta if np.isfinite(theta).all() else np.where(theta > -np.inf, theta, np.inf)
    return np.asarray(np.maximum.reduceat(theta, ptr[:-1]) - np.minimum.reduceat(low, ptr[:-1]))
