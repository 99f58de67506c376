"""Local search on models with constraints, whose sums are kept up to date."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.compilation.records import blank
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.engines.moves.flip_state import (
    Bits,
    FlipState,
    draw,
    new_flip_state,
    seeded,
    set_labels,
    set_state,
    sum_row,
)
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent

SCAN = 1500  # maximum number of variables examined for a change
TENURE, SPREAD = 4, 8  # tabu tenure of a changed variable: minimum, and maximum addition
ASCENT_VISITS = 1_000_000  # variables examined per step of an ascent: some 20 ms
KICK = 0.1  # maximum share of the variables changed by a kick


class ConstrainedSearch:
    """Tabu search, with kicks from the best labelling when it stalls."""

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        graph = problem.graph
        # changes: number of changes so far
        self.problem, self.changes = problem, 0
        self.incumbent = Incumbent(graph, labels)  # the best labelling
        self._numbers = np.random.default_rng(seed)
        scale = _scale(graph)
        self._state = ConstrainedState(
            flips=new_flip_state(problem, 1),
            rules=_rules(graph, scale),
            until=np.zeros(graph.n_vars, dtype=np.int64),
            best=np.array(labels, dtype=np.int64),
            tally=blank(ConstrainedTally),
            random=seeded(seed),
            lowest=1e-3 * scale,
            highest=max(1e3 * scale, 10 * graph.size),
        )
        tenure = min(TENURE, max(0, graph.n_vars // 4))
        self._plan = ConstrainedPlan(min(graph.n_vars, SCAN), tenure, min(SPREAD, max(1, graph.n_vars // 3)))
        self.restart(labels)

    def restart(self, labels: Ints) -> None:
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
        return self._state.flips.labels

    def run(self, n_changes: int) -> None:
        """Continue the search, and update the incumbent."""
        if self.problem.n_vars:
            self.changes += run_constrained(self._state, self._plan, n_changes, False)
            self.incumbent.offer(self._state.best)

    def climb(self, n_changes: int) -> int:
        """Make the best change as long as one gains; return the number of changes."""
        if self.problem.n_vars == 0:
            return 0
        self._state.rules.price[self._state.rules.hard] = self._state.highest
        done = run_constrained(self._state, ConstrainedPlan(self.problem.n_vars, 0, 1), n_changes, True)
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


class ConstrainedLocalSearch:
    """The same search with the interface of `LocalSearch`: in steps of table entries."""

    descending = False

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        self.problem, self._search = problem, ConstrainedSearch(problem, labels, seed)
        self._work = max(1, problem.n_states * min(problem.n_vars, SCAN) // max(1, problem.n_vars))

    @property
    def labels(self) -> Ints:
        return self._search.incumbent.labels

    @property
    def value(self) -> float:
        return self._search.incumbent.value

    @property
    def trials(self) -> int:
        return self._search.changes

    def restart(self, labels: Ints) -> None:
        self._search.restart(labels)

    def run(self, entries: int, max_trials: int) -> bool:
        """Examine about `entries` states; return whether that gave a new best labelling."""
        before = self.value
        if max_trials > 0:
            self._search.run(max(1, entries // self._work))
        return self.value > before


class ConstrainedAscent:
    """Best-improvement changes of single variables until none gains: `icm` with constraints."""

    def __init__(self, problem: Problem) -> None:
        # visits: variables examined so far
        # at_optimum: whether no change gains
        self.problem, self.visits, self.at_optimum = problem, 0, False
        self._search = ConstrainedSearch(problem, problem.graph.unary_labels, 0)

    @property
    def labels(self) -> Ints:
        return self._search.labels

    def restart(self, labels: Ints) -> None:
        self._search.restart(labels)
        self.at_optimum = False

    def run(self, max_visits: int) -> None:
        n = max(1, self.problem.n_vars)
        asked = max(1, min(ASCENT_VISITS, max_visits) // n)
        done = self._search.climb(asked)
        self.visits += n * max(1, done)
        self.at_optimum = done < asked


def _scale(graph: FactorGraph) -> float:
    """Return the typical gain of changing a variable."""
    return max(graph.size / max(1, graph.n_vars), 1e-6)


def _rules(graph: FactorGraph, scale: float) -> ConstraintRows:
    """Convert the constraints to rules; ALL_DIFFERENT becomes one rule per state."""
    lists = _RuleLists(graph)
    for c in range(graph.n_constraints):
        lists.add(c)
    n_rules = len(lists.kind)
    state = np.array(lists.state, dtype=np.int64)
    order = np.argsort(state, kind="stable")
    hard = np.isinf(np.array(lists.price, dtype=np.float64))
    return ConstraintRows(
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
            self.add_constraint(SUM, limits, float(constraints.penalty[c]), weights)
        else:
            looks_at = PARITY if kind == ConstraintKind.XOR else OUTPUT
            self.add_constraint(looks_at, (float(constraints.lower[c]), np.inf), float(constraints.penalty[c]), weights)
        self.touch(places, weights.tolist())
        if kind == ConstraintKind.OR:
            self.is_output[-1] = True

    def add_states(self, constraints: Constraints, c: int) -> None:
        scope = constraints.var[constraints.span(c)]
        for k in range(int(self.graph.card[scope].max())):
            self.add_constraint(SUM, (-np.inf, 1.0), float(constraints.penalty[c]), np.ones(1))
            places = (self.graph.var_ptr[scope] + k)[self.graph.card[scope] > k].tolist()
            self.touch(places, [1.0] * len(places))

    def add_constraint(self, kind: int, limits: tuple[float, float], price: float, weights: Floats) -> None:
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


# -- Tabu search over labellings with constraints: the prices of hard ones rise while they are violated ---------------


ADAPT = 8  # changes between updates of the prices
DEARER, CHEAPER = 1.3, 0.87  # factors on the price of a violated rule, and of a satisfied one
NEGLIGIBLE = 1e-6  # fraction of the lowest price below which a gain counts as round-off
NOTHING = -1e300  # less than any gain


class ConstrainedTally:
    """Changes so far and since the last improvement; current and best value, relative to the start."""

    clock: int
    vain: int
    value: float
    best: float
    chosen: int
    state: int


class ConstrainedState(NamedTuple):
    flips: FlipState  # The labelling, and what each change of a variable gains in the tables
    rules: ConstraintRows  # The constraints
    until: Ints  # (n_vars,): The change from which a variable may change again
    best: Ints  # (n_vars,): The best labelling without a violation
    tally: ConstrainedTally
    random: Bits
    # lowest, highest: Limits of the prices
    lowest: float
    highest: float


class ConstrainedPlan(NamedTuple):
    """Number of variables examined for a change, and the tabu tenure: minimum and maximum addition."""

    scan: int
    least: int
    spread: int


@compiled
def sum_scores(flips: FlipState) -> int:
    """Sum the scores of all variables afresh; returns the number of entries."""
    entries = 0
    for i in range(len(flips.labels)):
        entries += sum_row(flips, i)
    return entries


@inlined
def choose(search: ConstrainedState, i: int, most: float) -> float:
    """Find the best change of a variable, store it in the tally if it beats `most`; return its gain, or `most`."""
    flips, tally = search.flips, search.tally
    row = flips.model.var_ptr[i]
    old = row + flips.labels[i]
    free = search.until[i] <= tally.clock
    for s in range(row, row + flips.model.card[i]):
        if s == old:
            continue
        gain = flips.score[s] - flips.score[old]
        if gain <= most and len(search.rules.kind) == 0:
            continue
        gain -= change_of_constraints(search.rules, old, s)
        if gain > most and (free or tally.value + gain > tally.best):
            most = gain
            tally.chosen = i
            tally.state = s - row
    return most


@inlined
def adapt(search: ConstrainedState) -> None:
    """Raise the prices of violated hard rules, and lower those of others."""
    rules = search.rules
    for c in range(len(rules.kind)):
        if rules.hard[c]:
            factor = DEARER if excess(rules, c, rules.total[c], rules.output[c]) > 0.0 else CHEAPER
            rules.price[c] = min(max(rules.price[c] * factor, search.lowest), search.highest)


@inlined
def change(search: ConstrainedState, i: int, k: int) -> None:
    flips, tally = search.flips, search.tally
    row = flips.model.var_ptr[i]
    old, new = row + flips.labels[i], row + k
    tally.value += flips.score[new] - flips.score[old]
    add_touches(search.rules, old, -1.0)
    add_touches(search.rules, new, 1.0)
    set_state(flips, i, k, 0)


@inlined
def soft_cost(rules: ConstraintRows) -> float:
    total = 0.0
    for c in range(len(rules.kind)):
        if not rules.hard[c] and excess(rules, c, rules.total[c], rules.output[c]) > 0.0:
            total += rules.price[c]
    return total


@compiled
def run_constrained(search: ConstrainedState, plan: ConstrainedPlan, n_changes: int, greedy: bool) -> int:
    """Repeatedly make the best change that is not tabu; return the number of changes.

    A greedy search ends where no change of a variable gains.
    """
    flips, tally = search.flips, search.tally
    n = len(flips.labels)
    for done in range(n_changes):
        tally.clock += 1
        tally.vain += 1
        tally.chosen = -1
        first, most = draw(search.random, n), NEGLIGIBLE * search.lowest if greedy else NOTHING
        for v in range(n if greedy else plan.scan):
            most = choose(search, (first + v) % n, most)
        i = tally.chosen
        if i < 0:
            if greedy:
                return done
            continue
        change(search, i, tally.state)
        search.until[i] = tally.clock + plan.least + draw(search.random, plan.spread)
        if not greedy and tally.clock % ADAPT == 0:
            adapt(search)
        least = tally.best + NEGLIGIBLE * search.lowest  # accumulated gains drift
        if tally.value > least and broken_constraints(search.rules) == 0:
            value = tally.value - soft_cost(search.rules)
            if value > least:
                tally.best = value
                tally.vain = 0
                for j in range(n):
                    search.best[j] = flips.labels[j]
    return n_changes


# -- Cost of changing one variable under the constraints of a model, by counters that are kept up to date -------------


SUM, PARITY, OUTPUT = 0, 1, 2  # condition of a rule: its sum is within limits, odd, or positive iff its output is 1
CLOSE = 1e-9  # excesses up to this count as round-off


class ConstraintRows(NamedTuple):
    """Constraints as rules on sums."""

    # kind, least, most: (n_rules,): Condition of each rule, and its limits; `least` is the parity
    kind: Ints
    least: Floats
    most: Floats
    hard: Bools  # (n_rules,): Whether a rule must hold
    price: Floats  # (n_rules,): Cost per unit of excess of a violated hard rule, and penalty of a soft one
    unit: Floats  # (n_rules,): Unit of the excess
    # (n_states + 1,): The rules that a state contributes to: those from ``touch_ptr[s]`` to ``touch_ptr[s + 1]``
    touch_ptr: Ints
    # rule, weight, is_output: The rule of each contribution, its amount, and whether it goes to the output
    rule: Ints
    weight: Floats
    is_output: Bools
    # total, output: (n_rules,): The current sums and outputs
    total: Floats
    output: Floats


@inlined
def excess(rules: ConstraintRows, c: int, total: float, output: float) -> float:
    kind = rules.kind[c]
    if kind == SUM:
        over: float = max(rules.least[c] - total, total - rules.most[c])
        return over / rules.unit[c] if over > CLOSE * rules.unit[c] else 0.0
    if kind == PARITY:
        return float(abs(total % 2.0 - rules.least[c]))
    return abs(min(total, 1.0) - output)


@inlined
def cost(rules: ConstraintRows, c: int, total: float, output: float) -> float:
    over = excess(rules, c, total, output)
    if over == 0.0:
        return 0.0
    return float(rules.price[c] * over if rules.hard[c] else rules.price[c])


@inlined
def constraint_change(rules: ConstraintRows, old: int, new: int, t: int) -> float:
    """Return the cost change of the rule of contribution `t` if state `old` becomes `new`, as indices of `theta_v`."""
    c = rules.rule[t]
    total, output = rules.total[c], rules.output[c]
    for u in range(rules.touch_ptr[old], rules.touch_ptr[old + 1]):
        if rules.rule[u] == c:
            if rules.is_output[u]:
                output -= 1.0
            else:
                total -= rules.weight[u]
    for u in range(rules.touch_ptr[new], rules.touch_ptr[new + 1]):
        if rules.rule[u] == c:
            if rules.is_output[u]:
                output += 1.0
            else:
                total += rules.weight[u]
    return cost(rules, c, total, output) - cost(rules, c, rules.total[c], rules.output[c])


@inlined
def change_of_constraints(rules: ConstraintRows, old: int, new: int) -> float:
    """Return the cost change of all rules if a variable changes from one state to another."""
    total = 0.0
    begin, end = rules.touch_ptr[old], rules.touch_ptr[old + 1]
    for t in range(begin, end):
        seen = False
        for u in range(begin, t):
            seen = seen or rules.rule[u] == rules.rule[t]
        if not seen:
            total += constraint_change(rules, old, new, t)
    first = rules.touch_ptr[new]
    for t in range(first, rules.touch_ptr[new + 1]):
        seen = False
        for u in range(begin, end):
            seen = seen or rules.rule[u] == rules.rule[t]
        for u in range(first, t):
            seen = seen or rules.rule[u] == rules.rule[t]
        if not seen:
            total += constraint_change(rules, old, new, t)
    return total


@inlined
def add_touches(rules: ConstraintRows, state: int, sign: float) -> None:
    """Add or subtract the contributions of a state to sums and outputs."""
    for t in range(rules.touch_ptr[state], rules.touch_ptr[state + 1]):
        if rules.is_output[t]:
            rules.output[rules.rule[t]] += sign
        else:
            rules.total[rules.rule[t]] += sign * rules.weight[t]


@inlined
def broken_constraints(rules: ConstraintRows) -> int:
    broken = 0
    for c in range(len(rules.kind)):
        if rules.hard[c] and excess(rules, c, rules.total[c], rules.output[c]) > 0.0:
            broken += 1
    return broken
