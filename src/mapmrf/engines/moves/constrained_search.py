"""Local search on models with constraints, whose sums are kept up to date."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, offsets
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.constraints.flat import OUTPUT, PARITY, WITHIN, sum_rows
from mapmrf.engines.moves.flip_state import FlipState, new_flip_state, set_labels, set_state, sum_row
from mapmrf.kernels.random_numbers import Bits, draw, seeded
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
        scale = max(graph.size / max(1, graph.n_vars), 1e-6)  # typical gain of changing a variable
        self._state = ConstrainedState(
            flips=new_flip_state(problem, 1),
            rows=_rows(graph, scale),
            until=np.zeros(graph.n_vars, dtype=np.int64),
            best=np.array(labels, dtype=np.int64),
            tally=blank(ConstrainedTally),
            random=seeded(seed),
            lowest=1e-3 * scale,
            highest=max(1e3 * scale, 10 * graph.size),
            scan=min(graph.n_vars, SCAN),
            tenure=min(TENURE, max(0, graph.n_vars // 4)),
            spread=min(SPREAD, max(1, graph.n_vars // 3)),
        )
        self.restart(labels)

    def restart(self, labels: Ints) -> None:
        flips, rows, tally = self._state.flips, self._state.rows, self._state.tally
        set_labels(self.problem, flips.labels, flips.place, labels)
        sum_scores(flips)
        graph = self.problem.graph
        states = graph.var_ptr[:-1] + labels
        touched = np.concatenate([np.arange(rows.touch_ptr[s], rows.touch_ptr[s + 1]) for s in states.tolist()])
        touched = touched.astype(np.int64)
        adds, outputs = touched[~rows.is_output[touched]], touched[rows.is_output[touched]]
        rows.total[:] = np.bincount(rows.row[adds], rows.weight[adds], len(rows.condition))
        rows.output[:] = np.bincount(rows.row[outputs], minlength=len(rows.condition))
        # the value of the tables, with forbidden entries at their floor
        self._start = graph.constant + float(np.maximum(graph.theta_v[states], flips.floor).sum())
        terms = graph.theta_t[flips.place] * (self.problem.weight if len(self.problem.weight) else 1.0)
        self._start += float(np.maximum(terms, flips.floor).sum())
        tally.value = 0.0
        tally.best = self.incumbent.value - self._start if np.isfinite(self.incumbent.value) else -np.inf
        tally.idle = 0
        self._state.until[:] = 0

    @property
    def labels(self) -> Ints:
        return self._state.flips.labels

    def run(self, n_changes: int) -> None:
        if self.problem.n_vars:
            self.changes += run_constrained(self._state, n_changes, False)
            self.incumbent.offer(self._state.best)

    def climb(self, n_changes: int) -> int:
        """Make the best change as long as one gains; return the number of changes."""
        if self.problem.n_vars == 0:
            return 0
        self._state.rows.price[self._state.rows.hard] = self._state.highest
        done = run_constrained(self._state, n_changes, True)
        self.changes += done
        self.incumbent.offer(self.labels)
        return done

    @property
    def idle(self) -> int:
        """Changes since the last improvement."""
        return int(self._state.tally.idle)

    def kick(self) -> None:
        """Change some variables of the best labelling at random, and continue from there."""
        card, random = self.problem.graph.card, self._numbers
        labels = self.incumbent.labels.copy()
        size = 1 + int(random.integers(max(1, int(KICK * len(labels)))))
        some = random.permutation(len(labels))[:size]
        labels[some] = random.integers(0, card[some])
        self.restart(labels)


class ConstrainedLocalSearch:
    """A `ConstrainedSearch` in steps of table entries, as `LocalSearch` takes them."""

    descending = False

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        self._search = ConstrainedSearch(problem, labels, seed)
        self.incumbent, self.restart = self._search.incumbent, self._search.restart
        self._work = max(1, problem.n_states * min(problem.n_vars, SCAN) // max(1, problem.n_vars))

    def run(self, entries: int, max_trials: int) -> None:
        """Examine about `entries` states."""
        if max_trials > 0:
            self._search.run(max(1, entries // self._work))


class ConstrainedAscent:
    """Best-improvement changes of single variables until none gains: `icm` with constraints."""

    def __init__(self, problem: Problem) -> None:
        # visits: variables examined so far
        # at_optimum: whether no change gains
        self.problem, self.visits, self.at_optimum = problem, 0, False
        self._search = ConstrainedSearch(problem, problem.graph.unary_labels, 0)
        self.labels = self._search.labels

    def restart(self, labels: Ints) -> None:
        self._search.restart(labels)
        self.at_optimum = False

    def run(self, max_visits: int) -> None:
        n = max(1, self.problem.n_vars)
        asked = max(1, min(ASCENT_VISITS, max_visits) // n)
        done = self._search.climb(asked)
        self.visits += n * max(1, done)
        self.at_optimum = done < asked


def _rows(graph: FactorGraph, scale: float) -> ConstraintRows:
    constraints, rows = graph.constraints, sum_rows(graph.constraints, graph.card)
    prices = np.zeros(0) if constraints is None else constraints.penalty[rows.constraint]
    n_rows = len(prices)
    state = graph.var_ptr[rows.var] + rows.state
    order = np.argsort(state, kind="stable")
    size = np.bincount(rows.row, minlength=n_rows)
    is_output = np.zeros(len(state), dtype=bool)
    is_output[(np.cumsum(size) - 1)[rows.condition == OUTPUT]] = True
    hard = np.isinf(prices)
    return ConstraintRows(
        condition=rows.condition,
        least=rows.least,
        most=rows.most,
        hard=hard,
        price=np.where(hard, scale, prices),
        unit=np.maximum(np.bincount(rows.row, np.abs(rows.weight), n_rows) / size, 1e-300),
        touch_ptr=offsets(np.bincount(state, minlength=len(graph.theta_v))).astype(np.int64),
        row=rows.row[order],
        weight=rows.weight[order],
        is_output=is_output[order],
        total=np.zeros(n_rows),
        output=np.zeros(n_rows),
    )


# -- Tabu search over labellings with constraints: the prices of hard ones rise while they are violated ---------------

ADAPT = 8  # changes between updates of the prices
DEARER, CHEAPER = 1.3, 0.87  # factors on the price of a violated row, and of a satisfied one
NEGLIGIBLE = 1e-6  # fraction of the lowest price below which a gain counts as round-off
NOTHING = -1e300  # less than any gain


class ConstrainedTally:
    clock: int  # changes so far
    idle: int  # changes since the last improvement
    value: float  # current value, relative to the start
    best: float  # best value, likewise
    chosen: int  # variable to change, -1: none
    state: int  # its new state


class ConstrainedState(NamedTuple):
    flips: FlipState  # the labelling, and what each change of a variable gains in the tables
    rows: ConstraintRows
    until: Ints  # (n_vars,): the change from which a variable may change again
    best: Ints  # (n_vars,): the best labelling without a violation
    tally: ConstrainedTally
    random: Bits
    # lowest, highest: limits of the prices
    lowest: float
    highest: float
    scan: int  # variables examined for a change
    tenure: int  # minimum tabu tenure
    spread: int  # maximum addition to it


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
        if gain <= most and len(search.rows.condition) == 0:
            continue
        gain -= change_of_constraints(search.rows, old, s)
        if gain > most and (free or tally.value + gain > tally.best):
            most = gain
            tally.chosen = i
            tally.state = s - row
    return most


@inlined
def soft_cost(rows: ConstraintRows) -> float:
    """Return the cost of the violated soft rows; inf if a hard one is violated."""
    total = 0.0
    for c in range(len(rows.condition)):
        if excess(rows, c, rows.total[c], rows.output[c]) > 0.0:
            total += np.inf if rows.hard[c] else rows.price[c]
    return total


@compiled
def run_constrained(search: ConstrainedState, n_changes: int, greedy: bool) -> int:
    """Repeatedly make the best change that is not tabu; return the number of changes."""
    # A greedy search has no tabus, and ends where no change of a variable gains.
    flips, tally, rows = search.flips, search.tally, search.rows
    n = len(flips.labels)
    scan, tenure, spread = (n, 0, 1) if greedy else (search.scan, search.tenure, search.spread)
    for done in range(n_changes):
        tally.clock += 1
        tally.idle += 1
        tally.chosen = -1
        first, most = draw(search.random, n), NEGLIGIBLE * search.lowest if greedy else NOTHING
        for v in range(scan):
            most = choose(search, (first + v) % n, most)
        i = tally.chosen
        if i < 0:
            if greedy:
                return done
            continue
        row = flips.model.var_ptr[i]
        old, new = row + flips.labels[i], row + tally.state
        tally.value += flips.score[new] - flips.score[old]
        add_touches(rows, old, -1.0)
        add_touches(rows, new, 1.0)
        set_state(flips, i, tally.state, 0)
        search.until[i] = tally.clock + tenure + draw(search.random, spread)
        if not greedy and tally.clock % ADAPT == 0:  # raise the prices of violated hard rows, lower those of others
            for c in range(len(rows.condition)):
                if rows.hard[c]:
                    factor = DEARER if excess(rows, c, rows.total[c], rows.output[c]) > 0.0 else CHEAPER
                    rows.price[c] = min(max(rows.price[c] * factor, search.lowest), search.highest)
        least = tally.best + NEGLIGIBLE * search.lowest  # accumulated gains drift
        if tally.value > least:
            value = tally.value - soft_cost(rows)
            if value > least:
                tally.best = value
                tally.idle = 0
                for j in range(n):
                    search.best[j] = flips.labels[j]
    return n_changes


# -- Cost of changing one variable under the constraints of a model, by counters that are kept up to date -------------

CLOSE = 1e-9  # excesses up to this count as round-off


class ConstraintRows(NamedTuple):
    """Constraints as rows on sums."""

    # condition, least, most: (n_rows,): condition of each row (`constraints.kind`), and its limits
    condition: Ints
    least: Floats
    most: Floats
    hard: Bools  # (n_rows,): whether a row must hold
    price: Floats  # (n_rows,): cost per unit of excess of a violated hard row, and penalty of a soft one
    unit: Floats  # (n_rows,): unit of the excess
    # (n_states + 1,): The rows that a state contributes to: those from ``touch_ptr[s]`` to ``touch_ptr[s + 1]``
    touch_ptr: Ints
    # row, weight, is_output: the row of each contribution, its amount, and whether it goes to the output
    row: Ints
    weight: Floats
    is_output: Bools
    # total, output: (n_rows,): the current sums and outputs
    total: Floats
    output: Floats


@inlined
def excess(rows: ConstraintRows, c: int, total: float, output: float) -> float:
    condition = rows.condition[c]
    if condition == WITHIN:
        over: float = max(rows.least[c] - total, total - rows.most[c])
        return over / rows.unit[c] if over > CLOSE * rows.unit[c] else 0.0
    if condition == PARITY:
        return float(abs(total % 2.0 - rows.least[c]))
    return abs(min(total, 1.0) - output)


@inlined
def cost(rows: ConstraintRows, c: int, total: float, output: float) -> float:
    over = excess(rows, c, total, output)
    if over == 0.0:
        return 0.0
    return float(rows.price[c] * over if rows.hard[c] else rows.price[c])


@inlined
def constraint_change(rows: ConstraintRows, old: int, new: int, t: int) -> float:
    """Return the cost change of the row of contribution `t` if state `old` becomes `new`, as indices of `theta_v`."""
    c = rows.row[t]
    total, output = rows.total[c], rows.output[c]
    for u in range(rows.touch_ptr[old], rows.touch_ptr[old + 1]):
        if rows.row[u] == c:
            if rows.is_output[u]:
                output -= 1.0
            else:
                total -= rows.weight[u]
    for u in range(rows.touch_ptr[new], rows.touch_ptr[new + 1]):
        if rows.row[u] == c:
            if rows.is_output[u]:
                output += 1.0
            else:
                total += rows.weight[u]
    return cost(rows, c, total, output) - cost(rows, c, rows.total[c], rows.output[c])


@inlined
def change_of_constraints(rows: ConstraintRows, old: int, new: int) -> float:
    total = 0.0
    begin, end = rows.touch_ptr[old], rows.touch_ptr[old + 1]
    for t in range(begin, end):
        seen = False
        for u in range(begin, t):
            seen = seen or rows.row[u] == rows.row[t]
        if not seen:
            total += constraint_change(rows, old, new, t)
    first = rows.touch_ptr[new]
    for t in range(first, rows.touch_ptr[new + 1]):
        seen = False
        for u in range(begin, end):
            seen = seen or rows.row[u] == rows.row[t]
        for u in range(first, t):
            seen = seen or rows.row[u] == rows.row[t]
        if not seen:
            total += constraint_change(rows, old, new, t)
    return total


@inlined
def add_touches(rows: ConstraintRows, state: int, sign: float) -> None:
    for t in range(rows.touch_ptr[state], rows.touch_ptr[state + 1]):
        if rows.is_output[t]:
            rows.output[rows.row[t]] += sign
        else:
            rows.total[rows.row[t]] += sign * rows.weight[t]
