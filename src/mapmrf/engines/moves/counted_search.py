"""Local search on models with constraints, whose sums are kept up to date."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.compilation.records import blank
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.engines.moves.counted_rules_kernels import OUTPUT, PARITY, SUM, CountedRules
from mapmrf.engines.moves.counted_search_kernels import (
    CountedPlan,
    CountedState,
    CountedTally,
    run_counted,
    sum_scores,
)
from mapmrf.engines.moves.flip_state import new_flip_state, set_labels
from mapmrf.engines.moves.random_kernels import seeded
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent

SCAN = 1500
"""Maximum number of variables examined for a change."""

TENURE, SPREAD = 4, 8
"""Tabu tenure of a changed variable: minimum, and maximum addition."""

ASCENT_VISITS = 1_000_000
"""Variables examined per step of an ascent: some 20 ms."""

KICK = 0.1
"""Maximum share of the variables changed by a kick."""


class CountedSearch:
    """Tabu search, with kicks from the best labelling when it stalls.

    Attributes
    ----------
    incumbent
        The best labelling.
    changes
        Number of changes so far.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> from mapmrf.model.problem import Problem
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 4, [(i,) for i in range(4)], [[0, i] for i in range(4)])
    >>> graph = graph.with_constraints([constraints.at_most_k(range(4), 2)])
    >>> search = CountedSearch(Problem.compile(graph), graph.check_labels([1, 1, 0, 0]), seed=0)
    >>> search.run(100)
    >>> search.incumbent.labels.tolist()
    [0, 0, 1, 1]
    """

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        graph = problem.graph
        self.problem, self.changes = problem, 0
        self.incumbent = Incumbent(graph, labels)
        self._numbers = np.random.default_rng(seed)
        scale = _scale(graph)
        self._state = CountedState(
            flips=new_flip_state(problem, 1),
            rules=_rules(graph, scale),
            until=np.zeros(graph.n_vars, dtype=np.int64),
            best=np.array(labels, dtype=np.int64),
            tally=blank(CountedTally),
            random=seeded(seed),
            lowest=1e-3 * scale,
            highest=max(1e3 * scale, 10 * graph.size),
        )
        tenure = min(TENURE, max(0, graph.n_vars // 4))
        self._plan = CountedPlan(min(graph.n_vars, SCAN), tenure, min(SPREAD, max(1, graph.n_vars // 3)))
        self.restart(labels)

    def restart(self, labels: Ints) -> None:
        """Continue from another labelling."""
        flips, rules, tally = self._state.flips, self._state.rules, self._state.tally
        set_labels(self.problem, flips, labels)
        sum_scores(flips)
        states = self.problem.graph.var_ptr[:-1] + labels
        touched = np.concatenate([np.arange(rules.touch_ptr[s], rules.touch_ptr[s + 1]) for s in states.tolist()])
        touched = touched.astype(np.int64)
        adds, outputs = touched[~rules.is_output[touched]], touched[rules.is_output[touched]]
        rules.total[:] = np.bincount(rules.rule[adds], rules.weight[adds], len(rules.kind))
        rules.output[:] = np.bincount(rules.rule[outputs], minlength=len(rules.kind))
        self._start = self._value(labels)
        tally.value = 0.0
        tally.best = self.incumbent.value - self._start if np.isfinite(self.incumbent.value) else -np.inf
        tally.vain = 0
        self._state.until[:] = 0

    def _value(self, labels: Ints) -> float:
        """Return the value of the tables, with forbidden entries at their floor."""
        flips, graph = self._state.flips, self.problem.graph
        total = graph.constant + float(np.maximum(graph.theta_v[graph.var_ptr[:-1] + labels], flips.floor).sum())
        terms = graph.theta_t[flips.place]
        if len(self.problem.weight):
            terms = terms * self.problem.weight
        return total + float(np.maximum(terms, flips.floor).sum())

    @property
    def labels(self) -> Ints:
        """Return the current labelling."""
        return self._state.flips.labels

    def run(self, n_changes: int) -> None:
        """Continue the search, and update the incumbent."""
        if self.problem.n_vars:
            self.changes += run_counted(self._state, self._plan, n_changes, False)
            self.incumbent.offer(self._state.best)

    def climb(self, n_changes: int) -> int:
        """Make the best change as long as one gains; return the number of changes."""
        if self.problem.n_vars == 0:
            return 0
        self._state.rules.price[self._state.rules.hard] = self._state.highest
        done = run_counted(self._state, CountedPlan(self.problem.n_vars, 0, 1), n_changes, True)
        self.changes += done
        self.incumbent.offer(self.labels)
        return done

    @property
    def vain(self) -> int:
        """Changes since the last improvement."""
        return int(self._state.tally.vain)

    def kick(self) -> None:
        """Change some variables of the best labelling at random, and continue from there."""
        card, random = self.problem.graph.card, self._numbers
        labels = self.incumbent.labels.copy()
        size = 1 + int(random.integers(max(1, int(KICK * len(labels)))))
        some = random.permutation(len(labels))[:size]
        labels[some] = random.integers(0, card[some])
        self.restart(labels)


class CountedLocalSearch:
    """The same search with the interface of `LocalSearch`: in steps of table entries."""

    descending = False

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        self.problem, self._search = problem, CountedSearch(problem, labels, seed)
        self._work = max(1, problem.n_states * min(problem.n_vars, SCAN) // max(1, problem.n_vars))

    @property
    def labels(self) -> Ints:
        """The best labelling so far."""
        return self._search.incumbent.labels

    @property
    def value(self) -> float:
        """Its value."""
        return self._search.incumbent.value

    @property
    def trials(self) -> int:
        """Number of changes so far."""
        return self._search.changes

    def restart(self, labels: Ints) -> None:
        """Continue from another labelling."""
        self._search.restart(labels)

    def run(self, entries: int, max_trials: int) -> bool:
        """Examine about `entries` states; return whether that gave a new best labelling."""
        before = self.value
        if max_trials > 0:
            self._search.run(max(1, entries // self._work))
        return self.value > before


class CountedAscent:
    """Best-improvement changes of single variables until none gains: `icm` with constraints.

    Attributes
    ----------
    visits
        Variables examined so far.
    at_optimum
        Whether no change gains.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem, self.visits, self.at_optimum = problem, 0, False
        self._search = CountedSearch(problem, problem.graph.unary_labels, 0)

    @property
    def labels(self) -> Ints:
        """The labelling."""
        return self._search.labels

    def restart(self, labels: Ints) -> None:
        """Start from a labelling."""
        self._search.restart(labels)
        self.at_optimum = False

    def run(self, max_visits: int) -> None:
        """Change variables for some milliseconds at most."""
        n = max(1, self.problem.n_vars)
        asked = max(1, min(ASCENT_VISITS, max_visits) // n)
        done = self._search.climb(asked)
        self.visits += n * max(1, done)
        self.at_optimum = done < asked


def _scale(graph: FactorGraph) -> float:
    """Return the typical gain of changing a variable."""
    return max(graph.size / max(1, graph.n_vars), 1e-6)


def _rules(graph: FactorGraph, scale: float) -> CountedRules:
    """Convert the constraints to rules; ALL_DIFFERENT becomes one rule per state."""
    lists = _RuleLists(graph)
    for c in range(graph.n_constraints):
        lists.add(c)
    n_rules = len(lists.kind)
    state = np.array(lists.state, dtype=np.int64)
    order = np.argsort(state, kind="stable")
    hard = np.isinf(np.array(lists.price, dtype=np.float64))
    return CountedRules(
        kind=np.array(lists.kind, dtype=np.int64),
        least=np.array(lists.least, dtype=np.float64),
        most=np.array(lists.most, dtype=np.float64),
        hard=hard,
        price=np.where(hard, scale, np.array(lists.price, dtype=np.float64)),
        unit=np.array(lists.unit, dtype=np.float64),
        touch_ptr=offsets(np.bincount(state, minlength=len(graph.theta_v))).astype(np.int64),
        rule=np.array(lists.rule, dtype=np.int64)[order],
        weight=np.array(lists.weight, dtype=np.float64)[order],
        is_output=np.array(lists.is_output, dtype=bool)[order],
        total=np.zeros(n_rules),
        output=np.zeros(n_rules),
    )


class _RuleLists:
    def __init__(self, graph: FactorGraph) -> None:
        self.graph = graph
        self.kind: list[int] = []
        self.least: list[float] = []
        self.most: list[float] = []
        self.price: list[float] = []
        self.unit: list[float] = []
        self.state: list[int] = []
        self.rule: list[int] = []
        self.weight: list[float] = []
        self.is_output: list[bool] = []

    def add(self, c: int) -> None:
        """Add the rules of a constraint."""
        constraints = self.graph.constraints
        assert constraints is not None
        kind, mine = constraints.kind[c], constraints.span(c)
        if kind == ConstraintKind.ALL_DIFFERENT:
            self.add_states(constraints, c)
            return
        places = (self.graph.var_ptr[constraints.var[mine]] + constraints.state[mine]).tolist()
        weights = constraints.weight[mine]
        if kind == ConstraintKind.LINEAR:
            limits = float(constraints.least[c]), float(constraints.most[c])
            self.add_rule(SUM, limits, float(constraints.penalty[c]), weights)
        else:
            looks_at = PARITY if kind == ConstraintKind.XOR else OUTPUT
            self.add_rule(looks_at, (float(constraints.lower[c]), np.inf), float(constraints.penalty[c]), weights)
        self.touch(places, weights.tolist())
        if kind == ConstraintKind.OR:
            self.is_output[-1] = True

    def add_states(self, constraints: Constraints, c: int) -> None:
        scope = constraints.var[constraints.span(c)]
        for k in range(int(self.graph.card[scope].max())):
            self.add_rule(SUM, (-np.inf, 1.0), float(constraints.penalty[c]), np.ones(1))
            places = (self.graph.var_ptr[scope] + k)[self.graph.card[scope] > k].tolist()
            self.touch(places, [1.0] * len(places))

    def add_rule(self, kind: int, limits: tuple[float, float], price: float, weights: Floats) -> None:
        self.kind.append(kind)
        self.least.append(limits[0])
        self.most.append(limits[1])
        self.price.append(price)
        self.unit.append(max(float(np.abs(weights).mean()), 1e-300))

    def touch(self, places: list[int], weights: list[float]) -> None:
        """Record the contributions of the states at these indices to the last rule."""
        n = len(places)
        self.state.extend(places)
        self.rule.extend([len(self.kind) - 1] * n)
        self.weight.extend(weights)
        self.is_output.extend([False] * n)
