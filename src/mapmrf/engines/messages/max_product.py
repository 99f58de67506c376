"""Belief propagation as a method: the options shared by its variants, a run, and its messages."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax, segment_max, short
from mapmrf.compilation.jit import bare, inlined, predispatched
from mapmrf.engines.messages.factor_messages import FactorMessages
from mapmrf.engines.messages.max_product_kernels import (
    MessageSchedule,
    bound_of_tables,
    decode_in_order,
    gather_beliefs,
    pass_messages,
    send_messages,
    value_of_tables,
    walk,
)
from mapmrf.engines.messages.visit_order import Neighbours
from mapmrf.kernels.max_marginals import FactorScratch
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Range, Start
from mapmrf.run.pool import Workers
from mapmrf.run.result import Status

MEASURE_EVERY = 10  # iterations between measurements; more if an iteration takes longer than a step
# Enough for a model without cycles: from the leaves to the roots and back.
TWO_SWEEPS = MessageSchedule(flooding=False, damping=0.0, tol=-1.0)


@dataclass(frozen=True)
class MessagePassing(Method):
    """Pass messages between factors and variables; concrete methods define the weights of the factors."""

    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    damping: Annotated[float, Range(0.0, 0.999)] = 0.5
    tol: NonNegativeFloat = 1e-8
    schedule: Literal["parallel", "sequential"] = "parallel"
    decode: Literal["sequential", "argmax"] = "sequential"

    @abstractmethod
    def weigh(self, problem: Problem, seed: int) -> ForestWeights:
        """Return the weights of the factors of a model with a cycle."""

    def start(self, problem: Problem, seed: int, initial: Start) -> MessageRun:
        tour = Tour.of(problem)
        forest = problem.n_edges == problem.n_vars + problem.n_factors - tour.n_parts
        weights = tour.weights(problem.n_edges) if forest else self.weigh(problem, seed)
        tol = self.tol * potential_scale(problem.graph)
        return MessageRun(
            problem,
            make_messages(problem, tour, weights),
            TWO_SWEEPS if forest else MessageSchedule(self.schedule == "parallel", self.damping, tol),
            in_order=forest or self.decode == "sequential",
            bounded=forest or self.gives_bound,
            end=min(2, self.max_iterations) if forest else self.max_iterations,
        )

    def step(self, problem: Problem, state: MessageRun) -> Progress:
        if state.messages.is_infeasible():
            return Progress(state.iterations, bound=-math.inf, finished=Status.INFEASIBLE)
        known = state.value
        # Maximum number of measurements per step
        state.advance(min(5 * MEASURE_EVERY, max(1, pace.MESSAGES // (1 + problem.n_configs))))
        finished = Status.CONVERGED if state.is_done() else None
        progress = Progress(state.iterations, bound=state.bound, finished=finished)
        if state.best is not None and state.value > known:
            progress.labels, progress.value = state.best.labels, state.value
        return progress

    def answer(self, problem: Problem, state: MessageRun) -> Answer:
        """The best labelling so far, or the last one if none has a finite value."""
        if state.messages.is_infeasible():
            return Answer(bound=-math.inf)
        labels, value, bound = state.measure()
        if state.best is not None and state.claim > -math.inf and state.claim >= value:
            labels = state.best.labels
        details = {"change": state.change} if state.change < math.inf else {}
        return Answer(labels=labels, bound=_least(state.bound, bound), details=details)

    def close(self, problem: Problem, state: MessageRun) -> None:
        state.messages.close()


@dataclass
class MessageRun:
    problem: Problem
    messages: Messages
    schedule: MessageSchedule
    in_order: bool  # whether labels are decoded sequentially
    bounded: bool
    end: int  # the last iteration
    iterations: int = 0
    change: float = math.inf  # largest undamped change of a message in the last iteration
    # best, bound: the best labelling so far, None before the first measurement, and the best bound so far
    best: Incumbent | None = None
    bound: float | None = None
    # value of the best labelling according to the messages; only labellings with a higher one are evaluated
    claim: float = -math.inf

    @property
    def value(self) -> float:
        return -math.inf if self.best is None else self.best.value

    def advance(self, budget: int) -> None:
        every = MEASURE_EVERY * (1 + self.problem.n_configs // pace.MESSAGES)
        end = min(self.end, self.iterations + budget)
        while self.iterations < end and not self.is_done():
            pause = every - self.iterations % every
            done, self.change = self.messages.iterate(self.schedule, self.iterations, min(end, self.iterations + pause))
            self.iterations += done
            if self.is_done() or self.iterations % every == 0:
                labels, value, bound = self.measure()
                if self.best is None:
                    self.best = Incumbent(self.problem.graph, labels)
                elif value > self.claim:
                    self.best.offer(labels)
                self.claim, self.bound = max(self.claim, value), _least(self.bound, bound)

    def is_done(self) -> bool:
        """Return whether the messages have converged; without cycles they have after two sweeps."""
        return self.iterations == 2 if self.schedule is TWO_SWEEPS else self.change <= self.schedule.tol

    def measure(self) -> tuple[Ints, float, float | None]:
        """Decode labels from the messages; return them, their value, and the bound, or None if there is none."""
        labels = self.messages.decode(self.in_order)
        return labels, self.messages.value(labels), self.messages.bound() if self.bounded else None


def _least(old: float | None, new: float | None) -> float | None:
    """Return the smaller of two bounds, either of which may be missing."""
    return new if old is None else old if new is None else min(old, new)


# -- Messages: traversal of the model, weights of its factors, and their values ----------------------------------------


@dataclass(frozen=True)
class ForestWeights:
    """Appearance of the factors in a set of spanning forests."""

    rho: Floats  # (n_factors,): share of the forests that contain a factor, above 0
    parent: Floats  # (n_edges,): share of the forests in which an edge leads from the factor towards the root


@dataclass(frozen=True)
class Tour:
    """A breadth-first traversal of some of the factors; see the kernel `walk`."""

    n_parts: int
    var_order: Ints
    factor_order: Ints
    parent_edge: Ints

    @classmethod
    def of(cls, problem: Problem, taken: Bools | None = None) -> Tour:
        if taken is None:
            taken = np.ones(problem.n_factors, dtype=bool)
        seen, var_order = np.empty(problem.n_vars, dtype=bool), np.empty(problem.n_vars, dtype=np.int64)
        factor_order, parent_edge = np.empty((2, problem.n_factors), dtype=np.int64)
        n_parts, n_factors = walk(
            Neighbours.of(problem), problem.scope_ptr, problem.scope, taken, seen, var_order, factor_order, parent_edge
        )
        return cls(n_parts, var_order, factor_order[:n_factors], parent_edge)

    def weights(self, n_edges: int) -> ForestWeights:
        """Return the weights of a single forest that contains all factors."""
        parent = np.zeros(n_edges)
        parent[self.parent_edge] = 1.0
        return ForestWeights(np.ones(len(self.parent_edge)), parent)


def make_messages(problem: Problem, tour: Tour, weights: ForestWeights) -> Messages:
    """Create zero messages, in the most compact representation that the model allows."""
    graph = problem.graph
    tables = len(problem.batches) == 1 and problem.batches[0].arity == 2 and not problem.batches[0].hard
    if tables and np.all(graph.card == 2) and np.all(graph.theta_v.reshape(-1, 2).max(axis=1) > -np.inf):
        return PairMessages(problem, tour, weights)
    return TableMessages(problem, tour, weights)


class Messages(ABC):
    """Messages and beliefs of a model, and the loops that update them.

    They can be flooded on several threads: each sends those of some factors, then sums some beliefs. A variable sums
    its messages in the order of its factors, as with a single thread, so the result is the same.
    """

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        self.problem, self.tour, self.weights = problem, tour, weights
        # Number of factors from which several threads are worth their synchronisation
        self.workers = Workers(problem.threads if problem.n_factors >= 100_000 else 1)
        self.neighbours = Neighbours.of(problem)
        if self.workers.n > 1:  # all of them are read in every iteration
            self.neighbours = Neighbours(*map(short, self.neighbours))

    @abstractmethod
    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Run iterations `begin` to `end`, or to convergence; return how many, and the largest undamped change."""

    @abstractmethod
    def decode(self, in_order: bool) -> Ints:
        """Decode a labelling: from each belief independently, or one variable after another given those before."""

    @abstractmethod
    def value(self, labels: Ints) -> float:
        """Return the value of labels obtained from `decode`."""

    @abstractmethod
    def bound(self) -> float:
        """Return an upper bound on all labellings."""

    def is_infeasible(self) -> bool:
        """Return whether the messages have proven that no labelling is feasible."""
        return False

    def flood(self, send: Callable[..., float], gather: Callable[..., None], tol: float, n: int) -> tuple[int, float]:
        # `send` is called with a range of factors and the number of a thread, `gather` with a range of variables; both
        # wrap the kernels.
        factors, variables = self.workers.spans(self.problem.n_factors), self.workers.spans(self.problem.n_vars)
        done, worst = 0, math.inf
        while done < n and worst > tol:
            worst = max(self.workers.run(send, [(*span, t) for t, span in enumerate(factors)]))
            self.workers.run(gather, list(variables))
            done += 1
        return done, worst

    def close(self) -> None:
        self.workers.close()


class PairMessages(Messages):
    # Every variable has a state left, and all tables are finite: no such model is infeasible.
    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        """Split the tables into their constant, linear and quadratic parts."""
        super().__init__(problem, tour, weights)
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
        np.negative(linear, out=linear)  # zero messages, relative to the linear parts
        self.pairs = PairBeliefs(problem.scope, c, weights.rho, h, b, linear)  # fields, couplings, beliefs and messages

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        if schedule.flooding and self.workers.n > 1:

            def send(first: int, last: int, _: int) -> float:
                return send_pairs(self.pairs, schedule, first, last)

            def gather(first: int, last: int) -> None:
                gather_pairs(self.pairs, self.neighbours, first, last)

            return self.flood(send, gather, schedule.tol, end - begin)
        if schedule.flooding:
            return flood_pairs(self.pairs, np.empty_like(self.pairs.b), schedule, end - begin)
        return sweep_pairs(self.pairs, self.tour.factor_order, schedule, begin, end)

    def decode(self, in_order: bool) -> Ints:
        if not in_order:
            return (self.pairs.b > 0).astype(np.int64)
        labels = np.empty(self.problem.n_vars, dtype=np.int64)
        decode_pairs(self.pairs, Neighbours.of(self.problem), self.tour.var_order, labels)
        return labels

    def value(self, labels: Ints) -> float:
        return self.constant + value_of_pairs(self.pairs, labels)

    def bound(self) -> float:
        return self.constant + bound_of_pairs(self.pairs, self.weights.parent, np.empty_like(self.pairs.b))


def _weighted(values: Floats, problem: Problem) -> Floats:
    if len(problem.weight):
        values *= problem.weight
    return values


def _finite_fields(problem: Problem, reach_e: Floats) -> Floats:
    """Return unary potentials as (n_vars, 2), with a penalty in place of -inf."""
    # It exceeds what all factors of the variable together can compensate, so that neither the best labelling nor the
    # optimum of the relaxation ever takes such a state.
    theta = problem.graph.theta_v.reshape(-1, 2)
    if np.isfinite(theta).all():
        return theta
    reach = np.bincount(problem.scope, weights=reach_e, minlength=problem.n_vars)
    penalty = 2.0 * reach + potential_scale(problem.graph)
    return np.where(np.isfinite(theta), theta, (theta.max(axis=1) - penalty)[:, None])


class TableMessages(Messages):
    """Messages of tables of any shape: see `mapmrf.engines.messages.max_product_kernels`."""

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        super().__init__(problem, tour, weights)
        graph = problem.graph
        self.theta_v = graph.theta_v.copy()  # the unary potentials; -inf for states that are dead
        self.tables = FactorMessages.of(problem)
        most, arity = int(graph.card.max(initial=1)), int(np.diff(problem.scope_ptr).max(initial=1))
        self.spare = np.empty_like(graph.theta_v)
        forms, n = problem.quick_forms, self.workers.n
        self.scratch = [FactorScratch.allocate(most * arity, arity, forms, most) for _ in range(n)]
        self._pass_messages, self._decode_in_order = predispatched(pass_messages), predispatched(decode_in_order)
        self._value_of_tables, self._bound_of_tables = predispatched(value_of_tables), predispatched(bound_of_tables)

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        tables, theta_v, rho = self.tables, self.theta_v, self.weights.rho
        if not schedule.flooding or self.workers.n == 1:
            how = (self.tour.factor_order, schedule, begin, end)
            return self._pass_messages(tables, theta_v, rho, *how, self.spare, self.scratch[0])

        def send(first: int, last: int, thread: int) -> float:
            return send_messages(tables, theta_v, rho, schedule, first, last, self.scratch[thread])

        def gather(first: int, last: int) -> None:
            gather_beliefs(tables, theta_v, self.neighbours, first, last)

        return self.flood(send, gather, schedule.tol, end - begin)

    def decode(self, in_order: bool) -> Ints:
        if not in_order:
            return segment_argmax(self.tables.belief, self.problem.graph.var_ptr)
        labels = np.empty(self.problem.n_vars, dtype=np.int64)
        where = (Neighbours.of(self.problem), self.tour.var_order)
        self._decode_in_order(self.tables, self.theta_v, self.weights.rho, *where, labels, self.scratch[0])
        return labels

    def value(self, labels: Ints) -> float:
        return self.problem.graph.constant + self._value_of_tables(self.tables, self.theta_v, labels)

    def bound(self) -> float:
        rho, parent = self.weights.rho, self.weights.parent
        bound = self._bound_of_tables(self.tables, self.theta_v, rho, parent, self.spare, self.scratch[0])
        return self.problem.graph.constant + bound

    def is_infeasible(self) -> bool:
        best = segment_max(self.theta_v, self.problem.graph.var_ptr)
        return bool(best.min(initial=0.0) == -math.inf)


def potential_scale(graph: FactorGraph) -> float:
    """Return the mean range of the finite entries of tables and unary potentials, ignoring zero ranges; else 1."""
    # Every factor counts with its weight times its table.
    of_tables = _spreads(graph.theta_t, graph.table_ptr)
    if graph.weight is not None:
        of_tables = np.abs(graph.weight) * of_tables[graph.table_of]
    spreads = np.concatenate([_spreads(graph.theta_v, graph.var_ptr), of_tables])
    positive = spreads[spreads > 0]
    return float(positive.mean()) if len(positive) else 1.0


def _spreads(theta: Floats, ptr: Ints) -> Floats:
    """Return the range of the finite entries of every block; not positive if there are fewer than two."""
    if len(ptr) < 2:
        return np.zeros(0)
    low = theta if np.isfinite(theta).all() else np.where(theta > -np.inf, theta, np.inf)
    return np.asarray(np.maximum.reduceat(theta, ptr[:-1]) - np.minimum.reduceat(low, ptr[:-1]))


# Message passing where all variables are binary and all factors are finite 2x2 tables: one number per message.
# With x = -1 or +1 for the two states a table is ``const + a1 x1 + a2 x2 + (c / 2) x1 x2``. The linear parts belong to
# the fields `h` of the variables, and a message `d` is its entry for state 1 minus that for state 0. The equations of
# `mapmrf.engines.messages.max_product_kernels` become
#
# b_i = h_i + sum_a d_ai,   n_ia = rho_a b_i - d_ai,   d_ai = sign(c_a) clip(n_ja, -|c_a|, |c_a|)
#
# for the two variables i and j of a. Factor `f` has the edges 2 f and 2 f + 1: the other end of an edge is ``e ^ 1``.


class PairBeliefs(NamedTuple):
    """A binary pairwise model in fields and couplings, with its messages."""

    scope: Ints  # (n_edges,): the variable of every edge
    # c, rho: (n_factors,): couplings and weights of the factors
    c: Floats
    rho: Floats
    # h, b: (n_vars,): fields and beliefs
    h: Floats
    b: Floats
    d: Floats  # (n_edges,): messages to the variables


@inlined
def send_pair(
    f: int, i1: int, i2: int, pairs: PairBeliefs, now: Floats, damping: float
) -> tuple[float, float, float, float, float]:
    """Send new messages from factor `f`, given beliefs; return the change before damping, the new messages, the old."""
    # `i1` and `i2` are its variables, read once by the caller: what is written to `d` might be `scope` to the compiler.
    d, c, rho = pairs.d, pairs.c[f], pairs.rho[f]
    e1, e2, width, sign = 2 * f, 2 * f + 1, abs(c), math.copysign(1.0, c)
    old1, old2 = d[e1], d[e2]
    new1 = max(-width, min(width, sign * (rho * now[i2] - old2)))
    new2 = max(-width, min(width, sign * (rho * now[i1] - old1)))
    change = max(abs(new1 - old1), abs(new2 - old2))
    new1 += damping * (old1 - new1)
    new2 += damping * (old2 - new2)
    d[e1] = new1
    d[e2] = new2
    return change, new1, new2, old1, old2


@bare
def flood_pairs(pairs: PairBeliefs, scratch: Floats, schedule: MessageSchedule, n: int) -> tuple[int, float]:
    """Run iterations, all messages of each from the beliefs before it, until the largest change is in the tolerance."""
    # Returns how many, and that change, before damping.
    scope, h, b, damping = pairs.scope, pairs.h, pairs.b, schedule.damping
    worst = np.inf
    done = 0
    while done < n and worst > schedule.tol:
        now, after = (b, scratch) if done % 2 == 0 else (scratch, b)
        for i in range(len(h)):
            after[i] = h[i]
        worst = 0.0
        for f in range(len(pairs.c)):
            i1, i2 = scope[2 * f], scope[2 * f + 1]
            change, new1, new2, _, _ = send_pair(f, i1, i2, pairs, now, damping)
            worst = max(worst, change)
            after[i1] += new1
            after[i2] += new2
        done += 1
    if done % 2 == 1:
        for i in range(len(h)):
            b[i] = scratch[i]
    return done, worst


@bare
def send_pairs(pairs: PairBeliefs, schedule: MessageSchedule, begin: int, end: int) -> float:
    """The messages of factors `begin` to `end` from beliefs that stay as they are; return the largest change."""
    worst = 0.0
    for f in range(begin, end):
        i1, i2 = pairs.scope[2 * f], pairs.scope[2 * f + 1]
        worst = max(worst, send_pair(f, i1, i2, pairs, pairs.b, schedule.damping)[0])
    return worst


@bare
def gather_pairs(pairs: PairBeliefs, neighbours: Neighbours, begin: int, end: int) -> None:
    """The beliefs of variables `begin` to `end` from the messages: the sums of flooding, in the same order."""
    for i in range(begin, end):
        total = pairs.h[i]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            total += pairs.d[neighbours.edge[at]]
        pairs.b[i] = total


@bare
def sweep_pairs(pairs: PairBeliefs, order: Ints, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
    """Run iterations, each message from the current beliefs; even ones take the factors in reverse order."""
    scope, h, b, d, damping = pairs.scope, pairs.h, pairs.b, pairs.d, schedule.damping
    worst = np.inf
    m = len(order)
    k = begin
    while k < end and worst > schedule.tol:
        worst = 0.0
        for place in range(m):
            f = order[m - 1 - place if k % 2 == 0 else place]
            i1, i2 = scope[2 * f], scope[2 * f + 1]
            change, new1, new2, old1, old2 = send_pair(f, i1, i2, pairs, b, damping)
            worst = max(worst, change)
            b[i1] += new1 - old1
            b[i2] += new2 - old2
        k += 1
    for i in range(len(h)):  # without the round-off that many small changes have left
        b[i] = h[i]
    for e in range(len(d)):
        b[scope[e]] += d[e]
    return k - begin, worst


@bare
def decode_pairs(pairs: PairBeliefs, neighbours: Neighbours, var_order: Ints, labels: Ints) -> None:
    """The best state of one variable after another, given those before it; 0 on ties."""
    for i in range(len(labels)):
        labels[i] = -1
    for place in range(len(var_order)):
        i = var_order[place]
        score = pairs.h[i]
        for at in range(neighbours.ptr[i], neighbours.ptr[i + 1]):
            e = neighbours.edge[at]
            label = labels[pairs.scope[e ^ 1]]
            score += pairs.d[e] if label < 0 else pairs.c[e >> 1] * (2 * label - 1)
        labels[i] = 1 if score > 0.0 else 0


@bare
def value_of_pairs(pairs: PairBeliefs, labels: Ints) -> float:
    """Log potential of a labelling, without the constant."""
    scope, c, h = pairs.scope, pairs.c, pairs.h
    total = 0.0
    for i in range(len(h)):
        total += h[i] if labels[i] else -h[i]
    for f in range(len(c)):
        total += c[f] if labels[scope[2 * f]] == labels[scope[2 * f + 1]] else -c[f]
    return 0.5 * total


@bare
def bound_of_pairs(pairs: PairBeliefs, parent: Floats, left: Floats) -> float:
    """Upper bound on every labelling, without the constant; see `max_product_kernels.bound_of_tables`."""
    scope, c, rho, h, b, d = pairs
    for i in range(len(h)):
        left[i] = h[i]
    total = 0.0
    for f in range(len(c)):
        e1, e2 = 2 * f, 2 * f + 1
        i1, i2 = scope[e1], scope[e2]
        lam1 = (rho[f] - parent[e1]) * b[i1] - d[e1]
        lam2 = (rho[f] - parent[e2]) * b[i2] - d[e2]
        left[i1] -= lam1
        left[i2] -= lam2
        total += max(c[f] + abs(lam1 + lam2), abs(lam1 - lam2) - c[f])
    for i in range(len(h)):
        total += abs(left[i])
    return 0.5 * total
