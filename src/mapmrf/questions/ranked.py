"""The m best labellings of a model: from the tables of elimination where these fit, or by Lawler's partition."""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import dataclass, field, replace
from itertools import count

import numpy as np

from mapmrf.arrays import Bools, Ints, ranges, segment_max
from mapmrf.engines.elimination.bucket_messages import (
    BucketMessages,
    RankedLabellings,
    bytes_of_passes,
    fitting_tree,
    narrow_tree,
    repeated_passes,
)
from mapmrf.engines.elimination.elimination import Functions
from mapmrf.methods.auto import Auto
from mapmrf.methods.branch import Branch
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.questions.max_marginals import state_bounds
from mapmrf.run import interrupts, pace
from mapmrf.run.method import Method
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import solve


@dataclass
class SolveCalls:
    """How to solve the models of one task, and the deadline."""

    # method, seed, threads: as for `solve`
    method: Method
    seed: int
    threads: int | None
    deadline: float = math.inf  # deadline of the whole task, by `time.perf_counter`; inf without a time limit
    began: float = field(default_factory=time.perf_counter)  # start of the task
    count: int = 0  # number of calls

    @property
    def left(self) -> float:
        return max(0.0, self.deadline - time.perf_counter())

    @property
    def stopped(self) -> Status | None:
        """The reason why the task must end now, or None."""
        if interrupts.requested():
            interrupts.notice()
            return Status.INTERRUPTED
        return Status.TIME_LIMIT if time.perf_counter() >= self.deadline else None

    def solve(self, graph: FactorGraph, share: float = 1.0, initial: Ints | None = None) -> Result:
        self.count += 1
        limit = None if self.deadline == math.inf else share * self.left
        return solve(graph, self.method, time_limit=limit, seed=self.seed, threads=self.threads, initial=initial)


@dataclass
class Ranked:
    labels: list[Ints] = field(default_factory=list)  # in descending order of value
    others: float = math.inf  # a bound on the value of all others
    stopped: Status | None = None


def memory_of(calls: SolveCalls) -> float:
    """Bytes that the method allows for elimination; 0 if it does not eliminate."""
    method = calls.method
    if isinstance(method, Auto):
        return method.memory * 2**20 if method.elimination_entries > 0 else 0.0
    return method.memory * 2**20 if isinstance(method, Branch) and method.i_bound == 0 else 0.0


def collected_messages(graph: FactorGraph, calls: SolveCalls) -> BucketMessages | None:
    """The messages to the roots; None if they do not fit into memory. Not `collected` if the time was up."""
    memory = memory_of(calls)
    if memory == 0:
        return None
    problem = Problem.compile(graph)
    tree = fitting_tree(problem, memory, calls.seed)
    if tree is None:
        return None
    messages = BucketMessages(tree, Functions.of_model(problem, tree))
    while not messages.collected and calls.stopped is None:
        messages.collect(pace.ADDITIONS)
    return messages


def rank_by_elimination(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranked | None:
    """The m best labellings and the value of the next; None if the tables do not fit into memory."""
    messages = collected_messages(graph, calls)
    if messages is None:
        return rank_by_passes(graph, m, calls)
    if not messages.collected:
        return Ranked(stopped=calls.stopped)
    if graph.constant == -np.inf:
        return Ranked(others=-math.inf)
    look = messages.scores
    return _found(
        RankedLabellings(messages, m, lambda some: look(some) if calls.stopped is None else None), graph, calls
    )


def rank_by_passes(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranked | None:
    """Rank with an elimination per batch of labellings, whose messages are not kept; None if not even that fits."""
    memory, problem = memory_of(calls), Problem.compile(graph)
    if memory == 0 or graph.constant == -np.inf:
        return None
    tree = narrow_tree(problem, memory * int(graph.card.max(initial=1)), calls.seed)
    if tree is None or bytes_of_passes(tree) > memory:
        return None
    ranks = repeated_passes(tree, Functions.of_model(problem, tree), m, lambda: calls.stopped is not None)
    return Ranked(stopped=calls.stopped) if ranks is None else _found(ranks, graph, calls)


def _found(ranks: RankedLabellings, graph: FactorGraph, calls: SolveCalls) -> Ranked:
    going = True
    while going and len(ranks.found) < ranks.n_wanted and ranks.next_value > -np.inf:
        going = ranks.advance()
    labels = [ranks.labels(number) for number in range(len(ranks.found))]
    return Ranked(labels, ranks.next_value + graph.constant, None if going else calls.stopped)


# The m best labellings by Lawler's partition: without its best labelling, a part is divided into parts again.
# A part is solved only when its upper bound, initially from the dual of its parent, is the largest.


@dataclass(eq=False)
class SolvedPart:
    """A part with the best labelling that the method found."""

    allowed: Bools  # (n_states,) the states allowed in the part
    # labels, value: the best labelling found
    labels: Ints
    value: float
    bound: float  # upper bound on all labellings of the part


@dataclass(eq=False)
class RestOfPart:
    """The rest of a solved part: labellings that equal its best one on some variables and differ on the next."""

    part: SolvedPart
    order: Ints  # (n,) the variables with a choice, the most certain first: they are fixed in the most important parts
    alternative: Ints  # (n,) the most promising other state of each

    def allowed(self, graph: FactorGraph, number: int) -> Bools:
        """The allowed states of the part that differs on variable ``order[number]``."""
        allowed, labels = self.part.allowed.copy(), self.part.labels
        same = self.order[:number]
        allowed[ranges(graph.var_ptr[same], graph.card[same])] = False
        allowed[graph.var_ptr[same] + labels[same]] = True
        i = self.order[number]
        allowed[graph.var_ptr[i] + labels[i]] = False
        return allowed

    def simplest(self, number: int) -> Ints:
        """The part's best labelling with one variable changed."""
        labels = self.part.labels.copy()
        labels[self.order[number]] = self.alternative[number]
        return labels


class LawlerSearch:
    """Finds the m best labellings by any method."""

    def __init__(self, graph: FactorGraph, m: int, calls: SolveCalls) -> None:
        self.graph, self.m, self.calls = graph, m, calls
        # Labellings with their values, in descending order, each with an upper bound on all but those before it.
        self.answers: list[tuple[Ints, float, float]] = []
        self.template: Result | None = None  # the result of the first call, for the figures shared by all
        self._tolerance = graph.allowance
        self._numbers = count()
        self._solved: list[tuple[float, int, SolvedPart]] = []
        self._open: list[tuple[float, int, RestOfPart, int]] = []
        self._lost = -math.inf  # bound on the parts without a known labelling

    @property
    def others(self) -> float:
        """Upper bound on all labellings but the answers."""
        solved = max((part.bound for _, _, part in self._solved), default=-math.inf)
        return max(solved, -self._open[0][0] if self._open else -math.inf, self._lost)

    def run(self) -> Status | None:
        """Find m labellings, or as many as there are; return the reason if it was cut short."""
        everything = np.ones(len(self.graph.theta_v), dtype=bool)
        self.template = result = self.calls.solve(self.graph, 0.5 if self.m > 1 else 1.0)
        bound = math.inf if result.bound is None else result.bound
        if result.value == -math.inf:
            self._lost = bound
            return self.calls.stopped
        self._keep(SolvedPart(everything, result.labels, result.value, max(bound, result.value)))
        while len(self.answers) < self.m:
            if not self._solve_promising():
                return self._fill()
            if not self._solved:
                break
            limit = self.others
            _, _, part = heapq.heappop(self._solved)
            self.answers.append((part.labels, part.value, limit))
            if self.calls.stopped is not None and len(self.answers) < self.m:
                self._lost = max(self._lost, part.bound)
                return self._fill()
            self._divide(part)
        return None

    def _keep(self, part: SolvedPart) -> None:
        heapq.heappush(self._solved, (-part.value, next(self._numbers), part))

    def _divide(self, part: SolvedPart) -> None:
        """Divide the rest of a part into parts, with upper bounds from its dual."""
        graph, labels = self.graph, part.labels
        dual = state_bounds(Problem.compile(self._graph(part.allowed)), lambda: self.calls.stopped is not None)
        upper = np.where(part.allowed, dual.upper, -np.inf)
        upper[graph.var_ptr[:-1] + labels] = -np.inf
        best = np.minimum(segment_max(upper, graph.var_ptr), part.bound)
        order = np.flatnonzero(best > -np.inf)
        order = order[np.argsort(best[order], kind="stable")]
        others = np.array([np.argmax(upper[graph.var_ptr[i] : graph.var_ptr[i + 1]]) for i in order], dtype=np.int64)
        rest = RestOfPart(part, order, others)
        for number, limit in enumerate(best[order].tolist()):
            heapq.heappush(self._open, (-limit, next(self._numbers), rest, number))

    def _solve_promising(self) -> bool:
        """Solve parts until none may contain a better labelling than those known; return False if the time was up."""
        while self._open:
            best = -self._solved[0][0] if self._solved else -math.inf
            if -self._open[0][0] <= best + self._tolerance:
                break
            if self.calls.stopped is not None:
                return False
            minus, _, rest, number = heapq.heappop(self._open)
            limit = -minus
            share = 0.5 / (self.m - len(self.answers))
            allowed = rest.allowed(self.graph, number)
            result = self.calls.solve(self._graph(allowed), share, rest.simplest(number))
            bound = limit if result.bound is None else min(limit, result.bound)
            if result.value > -math.inf:
                self._keep(SolvedPart(allowed, result.labels, result.value, max(bound, result.value)))
            elif bound > -math.inf:
                self._lost = max(self._lost, bound)
        return True

    def _graph(self, allowed: Bools) -> FactorGraph:
        """The model with these states only; variables with a single one are fixed."""
        graph = self.graph
        n_left = np.add.reduceat(allowed, graph.var_ptr[:-1], dtype=np.int64) if graph.n_vars else graph.card
        fixed = np.flatnonzero((n_left == 1) & (graph.card > 1))
        states = np.flatnonzero(allowed)
        state_of = dict(zip(np.repeat(np.arange(graph.n_vars), n_left).tolist(), states.tolist(), strict=True))
        smaller = graph.condition({i: state_of[i] - int(graph.var_ptr[i]) for i in fixed.tolist()})
        return replace(smaller, theta_v=np.where(allowed, smaller.theta_v, -np.inf))

    def _fill(self) -> Status | None:
        """Fill up when the time is up: with the best labellings of solved parts, and changes of one variable."""
        limit, graph = self.others, self.graph
        known = [(part.value, -number, part.labels) for _, number, part in self._solved]
        missing = self.m - len(self.answers)
        # Parts per missing labelling whose simplest labelling is tried when the time is up
        for _, number, rest, place in heapq.nsmallest(20 * missing, self._open, key=lambda entry: entry[:2]):
            labels = rest.simplest(place)
            known.append((graph.value(labels), -number, labels))
        known = [entry for entry in known if entry[0] > -math.inf]
        for value, _, labels in heapq.nlargest(missing, known, key=lambda entry: entry[:2]):
            self.answers.append((labels, value, limit))
        return self.calls.stopped
