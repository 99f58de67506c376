"""Descents on the table of single-flip gains: what flips, chains, fusion and restarts share."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, short
from mapmrf.engines.moves.chain_kernels import IMPROVED, VARIABLE, Chain, follow_chains
from mapmrf.engines.moves.flip_kernels import LEVEL, REACH, Sets, flip_sets
from mapmrf.engines.moves.gain_kernels import HEAD, HEAP, LENGTH, Field, Front, freshen
from mapmrf.problem import Problem


def make_field(problem: Problem, longest: int) -> Field:
    """The model laid out for moves of at most `longest` flips, at the labels zero."""
    graph = problem.graph
    owner = problem.edge_factor
    states = graph.card[problem.scope].astype(np.int64)
    beside = np.bincount(owner, states, problem.n_factors)[owner] - states
    logged = np.bincount(problem.scope, beside, problem.n_vars)
    room = int(min(logged.sum(), longest * logged.max(initial=0)))
    return Field(
        card=short(graph.card).copy(),
        var_ptr=short(graph.var_ptr).copy(),
        theta_v=graph.theta_v,
        theta_t=graph.theta_t,
        nbr_ptr=short(problem.nbr_ptr).copy(),
        factor_of=short(owner[problem.nbr]),
        stride_of=short(problem.edge_stride[problem.nbr]),
        scope_ptr=short(problem.scope_ptr).copy(),
        scope=short(problem.scope).copy(),
        scope_stride=short(problem.edge_stride).copy(),
        floor=_floor(problem, longest),
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        score=np.zeros(problem.n_states),
        age=np.zeros(problem.n_vars, dtype=np.int32),
        log_at=np.zeros(room, dtype=np.int64),
        log_score=np.zeros(room),
    )


def _floor(problem: Problem, longest: int) -> float:
    """A number below everything finite that `longest` flips can lose; -inf if nothing is forbidden."""
    graph = problem.graph
    if problem.feasible_v.all() and not any(batch.hard for batch in problem.batches):
        return -np.inf
    size = _sizes(graph.theta_v, graph.var_ptr)
    of_table = _sizes(graph.theta_t, graph.table_ptr)
    of_factor = of_table[graph.table_of[problem.order]]
    size += np.bincount(problem.scope, of_factor[problem.edge_factor], problem.n_vars)
    return -float(1.0 + 2 * (longest + 1)) * max(float(size.max(initial=0.0)), np.finfo(np.float64).tiny)


def local_scale(problem: Problem) -> float:
    """What a variable has at stake: the ranges of its factors' tables together, averaged over all variables."""
    graph = problem.graph
    if problem.n_factors == 0:
        return 0.0
    finite = np.isfinite(graph.theta_t)
    high = np.maximum.reduceat(np.where(finite, graph.theta_t, -np.inf), graph.table_ptr[:-1])
    low = np.minimum.reduceat(np.where(finite, graph.theta_t, np.inf), graph.table_ptr[:-1])
    span = np.where(high > low, high, 0.0) - np.where(high > low, low, 0.0)
    arity = np.diff(problem.scope_ptr)
    return float(span[graph.table_of[problem.order]] @ arity) / problem.n_vars


def _sizes(values: Floats, ptr: Ints) -> Floats:
    """Largest absolute value of every block, among the finite."""
    if len(ptr) <= 1:
        return np.zeros(0)
    finite = np.where(np.isfinite(values), np.abs(values), 0.0)
    return np.asarray(np.maximum.reduceat(finite, ptr[:-1]))


def make_front(n: int) -> Front:
    """Room for all variables in heap, queue and notes."""
    return Front(
        heap=np.zeros(n, dtype=np.int32),
        where=np.full(n, -1, dtype=np.int32),
        key=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        queue=np.zeros(n, dtype=np.int32),
        queued=np.zeros(n, dtype=bool),
        noted=np.zeros(n, dtype=np.int32),
        origin=np.zeros(n, dtype=np.int64),
        is_noted=np.zeros(n, dtype=bool),
        count=np.zeros(4, dtype=np.int64),
    )


def make_sets(n: int, depth: int) -> Sets:
    """Room for the search of sets of up to `depth` of `n` variables."""
    levels = [np.zeros(depth + 1, dtype=np.int64) for _ in range(7)]
    return Sets(
        cand=np.zeros(max(n, 1), dtype=np.int32),
        listed=np.zeros(n, dtype=bool),
        spot=levels[0],
        end=levels[1],
        state=levels[2],
        old=levels[3],
        top=levels[4],
        total=np.zeros(depth + 1),
        size=np.zeros(depth + 1),
        best_var=levels[5],
        best_state=levels[6],
        best=np.zeros(1),
        count=np.zeros(3, dtype=np.int64),
    )


def place_at(problem: Problem, field: Field, labels: Ints) -> None:
    """Set the labels of a field and the places of its factors."""
    field.labels[:] = labels
    moved = problem.edge_stride * field.labels[problem.scope]
    field.place[:] = problem.table_at
    field.place[:] += np.bincount(problem.edge_factor, moved, problem.n_factors).astype(np.int64)


def clear(front: Front) -> None:
    """Empty heap, queue and notes."""
    front.count[:] = 0
    front.where[:] = -1
    front.queued[:] = False
    front.is_noted[:] = False


def enqueue_all(front: Front, random: np.random.Generator | None = None) -> None:
    """Let everybody wait, in the order of the variables or in a random one."""
    n = len(front.queue)
    front.queue[:] = np.arange(n) if random is None else random.permutation(n)
    front.queued[:] = True
    front.count[HEAD], front.count[LENGTH] = 0, n


def make_chain(n: int, length: int) -> Chain:
    """Room for a chain of `length` flips."""
    return Chain(
        cand=np.zeros(n, dtype=np.int32),
        kind=np.zeros(n, dtype=np.int8),
        gain=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        who=np.zeros(length, dtype=np.int64),
        state=np.zeros(length, dtype=np.int64),
        old=np.zeros(length, dtype=np.int64),
        top=np.zeros(length + 1, dtype=np.int64),
        count=np.zeros(4, dtype=np.int64),
    )


class Descent:
    """A labelling that rises by flips of connected sets until none of up to `depth` variables helps.

    Attributes
    ----------
    visits
        Flips made and variables looked at since the start.
    at_rest
        Whether no change of a connected set helps.
    """

    def __init__(self, problem: Problem, depth: int) -> None:
        self.problem, self.depth = problem, min(depth, max(1, problem.n_vars))
        self.field: Any = make_field(problem, self.depth)
        self.front: Any = make_front(problem.n_vars)
        self.sets: Any = make_sets(problem.n_vars, self.depth)
        self.visits = 0
        self.at_rest = True

    def restart(self, labels: Ints) -> None:
        """Begin anew at a labelling."""
        place_at(self.problem, self.field, labels)
        clear(self.front)
        self.sets.listed[:] = False
        self.sets.count[:] = -1, 1, 0
        freshen(self.field, self.front, 0)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Look at about so many table entries, at most so many variables; returns the entries."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = flip_sets(self.field, self.front, self.sets, entries - work, max_visits)
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.idle:
                work += self.go_deeper()
        return work

    @property
    def idle(self) -> bool:
        """Whether no flip and no set of the present size is left to look at."""
        return not (self.sets.count[LEVEL] >= 0 or self.front.count[HEAP] or self.front.count[LENGTH])

    def go_deeper(self) -> int:
        """Look at larger sets from here on; those of `depth` variables are the last. Returns the entries read."""
        work = int(freshen(self.field, self.front, 1))
        if self.front.count[HEAP] == 0 and self.sets.count[REACH] < self.depth:
            self.sets.count[REACH] += 1
            enqueue_all(self.front)
        else:
            self.at_rest = not self.front.count[HEAP]
        return work

    def labels(self) -> Ints:
        """The labelling, without the trial flips of a search under way."""
        found: Ints = self.field.labels.copy()
        for level in range(int(self.sets.count[LEVEL])):
            found[self.sets.cand[self.sets.spot[level]]] = self.sets.old[level]
        return found


class ChainSearch:
    """A labelling that rises by best flips and by chains of flips, until no chain helps.

    Attributes
    ----------
    visits, at_rest
        As those of `Descent`.
    """

    def __init__(self, problem: Problem, length: int, breadth: int, seed: int) -> None:
        length = min(length, max(1, problem.n_vars))
        self.problem, self.breadth = problem, breadth
        self.field: Any = make_field(problem, length)
        self.front: Any = make_front(problem.n_vars)
        self.chain: Any = make_chain(problem.n_vars, length)
        self.random = np.random.default_rng(seed)
        self.visits = 0
        self.at_rest = True

    def restart(self, labels: Ints) -> None:
        """Begin anew at a labelling."""
        place_at(self.problem, self.field, labels)
        clear(self.front)
        freshen(self.field, self.front, 0)
        self.chain.count[:] = -1, 0, 0, 0
        enqueue_all(self.front, self.random)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Look at about so many table entries, at most so many variables; returns the entries."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = follow_chains(
                self.field, self.front, self.chain, self.breadth, entries - work, max_visits
            )  # fmt: skip
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.idle:
                work += self.go_round()
        return work

    @property
    def idle(self) -> bool:
        """Whether there is nobody left to start from."""
        return not (self.chain.count[VARIABLE] >= 0 or self.front.count[HEAP] or self.front.count[LENGTH])

    def go_round(self) -> int:
        """Start from everybody again, in another order, unless the last round helped nothing; returns the entries."""
        work = int(freshen(self.field, self.front, 1))
        self.at_rest = not (self.chain.count[IMPROVED] or self.front.count[HEAP])
        self.chain.count[IMPROVED] = 0
        if not self.at_rest:
            enqueue_all(self.front, self.random)
        return work

    def labels(self) -> Ints:
        """The labelling."""
        found: Ints = self.field.labels.copy()
        return found
