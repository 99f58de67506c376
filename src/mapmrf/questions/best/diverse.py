"""Diverse labellings: each at a distance from all before it, or with a penalty for every label in common."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints import at_most_k
from mapmrf.constraints.as_tables import without_constraints
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.questions.best.calls import SolveCalls
from mapmrf.questions.best.lawler import LawlerSearch
from mapmrf.questions.best.ranked import collected_messages, memory_of
from mapmrf.run.result import Result, Status

MOST_COUNTERS = 20_000
"""Maximum number of variables that counters add to a model."""

MOST_STATED = 5_000
"""Maximum number of indicators of distances as constraints of a model without any: it may be much harder with them."""

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
        """The best new labelling minus a penalty for each label that it shares with one before: unary potentials."""
        earlier = [labels for labels, _, _ in self.answers]
        shared = agreement(self.graph, earlier)
        model = replace(self.graph, theta_v=self.graph.theta_v - penalty * shared)
        labels = self.calls.solve(model, self._share).labels
        if _is_one_of(labels, earlier):
            further = DiverseSearch(model, self.m, self.calls)._new(earlier)
            if further is None:
                return Further(None, -math.inf, self.others)
            labels = further
        value = self.graph.value(labels)
        return Further(None if value == -math.inf else labels, value, self.others)

    def _new(self, earlier: list[Ints]) -> Ints | None:
        """The best labelling but the earlier ones, as well as the method can tell."""
        found = self._by_elimination(earlier, 1)
        if found is None and self.calls.method.native_constraints:
            found = self._by_constraints(earlier, 1)
        if found is not None:
            return found.labels
        search = LawlerSearch(without_constraints(self.graph), len(earlier) + 1, self.calls)
        search.run()
        ranked = (labels[: self.graph.n_vars] for labels, _, _ in search.answers)
        return next((labels for labels in ranked if not _is_one_of(labels, earlier)), None)

    def _at_distance(self, distance: int) -> Further:
        """The best labelling at a distance from all before: exact if counters fit, else as far as solving proves."""
        earlier = [labels for labels, _, _ in self.answers]
        if distance > self.graph.n_vars:
            return Further(None, -math.inf, -math.inf)
        found = self._by_elimination(earlier, distance)
        if found is not None:
            return found
        native, n_stated = self.calls.method.native_constraints, len(earlier) * self.graph.n_vars
        if native and self.graph.constraints is not None:
            return self._by_constraints(earlier, distance)
        if not native or n_stated > MOST_STATED:
            return self._by_multiplier(earlier, distance, 0.0)
        found = self._by_multiplier(earlier, distance, (1 - self._share / 2) * self.calls.left)
        if found.bound - found.value <= self.graph.allowance or self.calls.stopped is not None:
            return found
        other = self._by_constraints(earlier, distance, found.labels)
        if other.labels is not None:
            found.better(other.labels, other.value)
        found.bound = max(found.value, min(found.bound, other.bound))
        return found

    def _by_elimination(self, earlier: list[Ints], distance: int) -> Further | None:
        """With counters of the differences in the tables of elimination; None if these do not fit."""
        if memory_of(self.calls) == 0 or len(earlier) * self.graph.n_vars > MOST_COUNTERS:
            return None
        try:
            tables = without_constraints(self.graph)
        except UnsupportedModel:  # sums of too many values
            return None
        messages = collected_messages(counted(tables, earlier, distance), self.calls)
        if messages is None or not messages.collected:
            return None
        if messages.value + self.graph.constant == -math.inf:
            return Further(None, -math.inf, -math.inf)
        labels = messages.tree.by_variable(messages.best_labels())[: self.graph.n_vars]
        return Further(labels, self.graph.value(labels), self.graph.value(labels))

    def _by_constraints(self, earlier: list[Ints], distance: int, initial: Ints | None = None) -> Further:
        """With the distances stated as constraints: at most so many labels are those of an earlier labelling."""
        same = self.graph.n_vars - distance
        apart = [at_most_k(list(enumerate(labels.tolist())), same) for labels in earlier]
        found = _further(self.calls.solve(self.graph.with_constraints(apart), self._share, initial))
        return Further(found.labels, found.value, max(found.value, min(found.bound, self.others)))

    def _by_multiplier(self, earlier: list[Ints], distance: int, spare: float) -> Further:
        """Find the smallest reward that gives the distance, with `spare` seconds left; each reward yields a bound."""
        graph, found = self.graph, Further(None, -math.inf, self.others)
        away = len(earlier) - agreement(graph, earlier)
        low, high, reward = 0.0, math.inf, max(graph.unit, 1e-3 * abs(self.answers[0][1]) / distance)
        for step in range(DOUBLINGS + HALVINGS):
            if self.calls.stopped is not None or self.calls.left < spare:
                break
            if found.bound - found.value <= graph.allowance:
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


def _is_one_of(labels: Ints, earlier: list[Ints]) -> bool:
    return any(np.array_equal(labels, known) for known in earlier)


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
