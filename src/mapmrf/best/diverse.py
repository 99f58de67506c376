"""Diverse labellings: each at a distance from all before it, or with a penalty for every label in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.best.calls import SolveCalls
from mapmrf.best.ranked import collected_messages, memory_of
from mapmrf.graph import EXACT, FactorGraph
from mapmrf.result import Result, Status
from mapmrf.rewriting import without_constraints

MOST_COUNTERS = 20_000
"""Maximum number of variables that counters add to a model."""

DOUBLINGS, HALVINGS = 40, 12
"""Steps of the search for the smallest penalty that gives the distance: doubling, then bisection."""


@dataclass
class Further:
    """One more labelling, if any is known, and an upper bound on all candidates for its place."""

    labels: Ints | None
    value: float
    bound: float

    def better(self, labels: Ints, value: float) -> None:
        """Keep a labelling if it is the best so far."""
        if value > self.value:
            self.labels, self.value = labels, value


class DiverseSearch:
    """Finds labellings one by one, each the best that differs enough from those before.

    Attributes
    ----------
    answers
        Labellings with their values, in the order found, each with an upper bound on all candidates for its place.
    others
        Upper bound on all further labellings.
    template
        The result of the first call, for the figures shared by all.
    """

    def __init__(self, graph: FactorGraph, m: int, calls: SolveCalls) -> None:
        self.graph, self.m, self.calls = graph, m, calls
        self.answers: list[tuple[Ints, float, float]] = []
        self.others = math.inf
        self.template: Result | None = None

    def run(self, distance: int, penalty: float) -> Status | None:
        """Find m labellings, or as many as there are; return the reason if it was cut short."""
        while len(self.answers) < self.m:
            if not self.answers:
                further = self._first()
            elif penalty > 0:
                further = self._penalised(penalty)
            else:
                further = self._at_distance(distance)
            self.others = min(self.others, further.bound)
            if further.labels is None:
                return self.calls.stopped
            self.answers.append((further.labels, further.value, self.others))
            stopped = self.calls.stopped
            if stopped is not None and len(self.answers) < self.m:
                return stopped
        return None

    @property
    def _share(self) -> float:
        """Share of the remaining time for the next labelling."""
        return 1.0 / (self.m - len(self.answers))

    def _first(self) -> Further:
        self.template = result = self.calls.solve(self.graph, self._share)
        return _further(result)

    def _penalised(self, penalty: float) -> Further:
        """The best labelling with a penalty for each label in common with one before, as unary potentials."""
        shared = agreement(self.graph, [labels for labels, _, _ in self.answers])
        result = self.calls.solve(replace(self.graph, theta_v=self.graph.theta_v - penalty * shared), self._share)
        value = self.graph.value(result.labels)
        known = any(np.array_equal(result.labels, labels) for labels, _, _ in self.answers)
        return Further(None if known or value == -math.inf else result.labels, value, self.others)

    def _at_distance(self, distance: int) -> Further:
        """The best labelling at a distance from all before: exact by counters if these fit, else by multipliers."""
        earlier = [labels for labels, _, _ in self.answers]
        if distance > self.graph.n_vars:
            return Further(None, -math.inf, -math.inf)
        if memory_of(self.calls) > 0 and len(earlier) * self.graph.n_vars <= MOST_COUNTERS:
            messages = collected_messages(counted(without_constraints(self.graph), earlier, distance), self.calls)
            if messages is not None and messages.collected:
                if messages.value + self.graph.constant == -math.inf:
                    return Further(None, -math.inf, -math.inf)
                labels = messages.tree.by_variable(messages.best_labels())[: self.graph.n_vars]
                return Further(labels, self.graph.value(labels), self.graph.value(labels))
        return self._by_multiplier(earlier, distance)

    def _by_multiplier(self, earlier: list[Ints], distance: int) -> Further:
        """Find the smallest reward that gives the distance; every reward yields an upper bound."""
        graph, found = self.graph, Further(None, -math.inf, self.others)
        away = len(earlier) - agreement(graph, earlier)
        low, high, reward = 0.0, math.inf, max(graph.unit, 1e-3 * abs(self.answers[0][1]) / distance)
        for step in range(DOUBLINGS + HALVINGS):
            if self.calls.stopped is not None or found.bound - found.value <= EXACT * graph.size:
                break
            constant = graph.constant - reward * distance * len(earlier)
            rewarded = replace(graph, theta_v=graph.theta_v + reward * away, constant=constant)
            result = self.calls.solve(rewarded, self._share / 4)
            if result.bound is not None:
                found.bound = min(found.bound, result.bound)
            if min(int(np.count_nonzero(result.labels != labels)) for labels in earlier) >= distance:
                found.better(result.labels, graph.value(result.labels))
                high = reward
            else:
                low = reward
            if high == math.inf and step >= DOUBLINGS:
                break
            reward = 2 * low if high == math.inf else (low + high) / 2
            if high < math.inf and high - low <= 1e-6 * high:
                break
        found.bound = max(found.bound, found.value)
        return found


def _further(result: Result) -> Further:
    bound = math.inf if result.bound is None else result.bound
    if result.value == -math.inf:
        return Further(None, -math.inf, bound)
    return Further(result.labels, result.value, max(bound, result.value))


def agreement(graph: FactorGraph, earlier: list[Ints]) -> Floats:
    """Number of labellings that have each state, (n_states,)."""
    shared = np.zeros(len(graph.theta_v))
    for labels in earlier:
        shared[graph.var_ptr[:-1] + labels] += 1.0
    return shared


def counted(graph: FactorGraph, earlier: list[Ints], distance: int) -> FactorGraph:
    """Add counters to a model, so that only labellings at a distance from all earlier ones are feasible.

    A counter runs along the variables and counts, up to the distance, the labels that differ from an earlier labelling.
    Labellings may be of the first variables only: the others are then ignored.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0,), (1,), (2,)], [[0, 3], [0, 2], [0, 1]])
    >>> mapmrf.solve(counted(graph, [np.array([1, 1, 1])], 2)).labels[:3].tolist()
    [1, 0, 0]
    """
    n, size = len(earlier[0]), distance + 1
    scopes: list[tuple[int, ...]] = [()]
    tables: list[Floats] = [np.array(graph.constant)]
    tables.extend(graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]] for i in range(graph.n_vars))
    scopes.extend((i,) for i in range(graph.n_vars))
    scopes.extend(tuple(graph.scope_of(a).tolist()) for a in range(graph.n_factors))
    tables.extend(graph.table(a) for a in range(graph.n_factors))
    steps: dict[tuple[int, int], Floats] = {}
    for number, labels in enumerate(earlier):
        first = graph.n_vars + n * number
        for i in range(n):
            key = int(graph.card[i]), int(labels[i])
            step = steps.setdefault(key, _counting(*key, size))
            scopes.append((i, first) if i == 0 else (first + i - 1, i, first + i))
            tables.append(step[0] if i == 0 else step)
        scopes.append((first + n - 1,))
        tables.append(np.where(np.arange(size) == distance, 0.0, -np.inf))
    card = np.concatenate([graph.card, np.full(n * len(earlier), size)])
    return FactorGraph.from_tables(card, scopes, tables)


def _counting(n_states: int, label: int, size: int) -> Floats:
    """Table over count before, state, and count after: one more if the state is not the label, but never `size`."""
    before, state, after = np.ogrid[:size, :n_states, :size]
    return np.where(after == np.minimum(before + (state != label), size - 1), 0.0, -np.inf)
