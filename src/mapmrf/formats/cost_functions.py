"""What toulbar2's cost functions without tables mean: constraints, automata, and small tables for pairs of variables.

Counts and sums that forbid become linear constraints; those that cost, and everything else that can be read variable by
variable, automata, whose states are what has to be kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.constraints import Constraint, all_different, at_most_one, linear, regular
from mapmrf.constraints.kinds.regular import constraint_bytes, kept_in_rows
from mapmrf.errors import FormatError, GraphError, UnsupportedModel
from mapmrf.formats.files import charge, shown
from mapmrf.formats.global_functions import Dialect, GlobalFunction
from mapmrf.formats.tables import COPIES, Factors, build, naming
from mapmrf.model.graph import FactorGraph, Names

COMPARED: dict[str, Callable[[Floats, float], Floats]] = {
    "==": lambda total, to: np.abs(total - to),
    "!=": lambda total, to: (total == to).astype(np.float64),
    "<=": lambda total, to: np.maximum(0.0, total - to),
    "<": lambda total, to: np.maximum(0.0, total - to + 1.0),
    ">=": lambda total, to: np.maximum(0.0, to - total),
    ">": lambda total, to: np.maximum(0.0, to - total + 1.0),
}
"""By how much a sum misses what it is compared with."""
MOST_SUMS = 1_000_000  # values of a sum, and pairs of a variable and a state, of one function
_RULES = {0: (2, False), 1: (3, False), 2: (2, True), 3: (3, True)}


def build_with_functions(
    path: Path, factors: Factors, names: Names | None, functions: list[tuple[str, GlobalFunction]], dialect: Dialect
) -> FactorGraph:
    """A graph with functions, each given with what it is called in messages."""
    constraints, scopes, tables, size, kept = list[Constraint](), list[list[int]](), list[Floats](), 0.0, 0.0
    card = dialect.card
    for what, function in functions:
        scope = function.scope
        bad = [i for i in scope if not 0 <= i < len(card)]
        if bad or not scope:
            found = f"variable {bad[0]}" if bad else "no variables"
            raise FormatError(f"{path}: {what}: found {found} in its scope")
        if is_of_pairs(function.keyword):
            size += float(np.prod(card[scope].astype(np.float64)))
            charge(path, 8.0 * COPIES * size, "its functions of pairs", f"{what} has {card[scope].tolist()} states")
        try:
            if is_of_pairs(function.keyword):
                scopes.append(scope)
                tables.append(0.0 - dialect.forbid(_PAIRS[function.keyword](function, dialect)).ravel())
            else:
                for constraint in _meaning(function, dialect):
                    constraints.append(constraint)
                    kept += constraint_bytes(constraint)
                    charge(path, COPIES * kept, "its automata", what)
        except (FormatError, GraphError, UnsupportedModel) as error:
            raise FormatError(f"{path}: {what}: {error}") from None
        except (ValueError, KeyError, IndexError, TypeError, OverflowError) as error:
            given = b" ".join(_words(list(function.given.values()))[:8])
            missing = f", nothing is called {error}" if isinstance(error, KeyError) else ""
            raise FormatError(f"{path}: {what}: cannot read its parameters {shown(given)}{missing}") from None
    graph = build(path, card, factors.extended(scopes, tables) if scopes else factors, names)
    with naming(path):
        return graph.with_constraints(constraints) if constraints else graph


def _words(nested: list[Any]) -> list[bytes]:
    found = list[bytes]()
    for each in nested:
        found += _words(each) if isinstance(each, list) else [each] if isinstance(each, bytes) else []
    return found


def _meaning(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    # Raises ValueError, KeyError, IndexError, TypeError or OverflowError for parameters that are not as expected.
    for families, content in _FAMILIES.items():
        if function.is_a(*families.split()):
            return content(function, dialect)
    raise ValueError(function.keyword)


# -- pairs of variables ------------------------------------------------------------------------------------------------


def _grid(function: GlobalFunction, dialect: Dialect) -> tuple[Floats, Floats, list[Any]]:
    """The values of two variables, as a column and as a row, and the parameters."""
    i, j = function.scope
    return np.arange(dialect.card[i])[:, None] * 1.0, np.arange(dialect.card[j]) * 1.0, function.several("params")


def _compared(function: GlobalFunction, dialect: Dialect) -> Floats:
    x, y, (shift, largest) = _grid(function, dialect)
    sign = function.keyword.strip("=") or "="
    excess = x - y - float(shift)
    strict = 0.0 if "=" in function.keyword else 1.0
    gap = {">": strict - excess, "<": strict + excess, "=": np.abs(excess)}[sign]
    gap = np.maximum(0.0, gap)
    return np.where(gap <= float(largest), gap, np.inf)


def _disjunction(function: GlobalFunction, dialect: Dialect) -> Floats:
    x, y, (before, after, price) = _grid(function, dialect)
    return np.where((x >= y + float(after)) | (y >= x + float(before)), 0.0, dialect.cost(price))


def _special_disjunction(function: GlobalFunction, dialect: Dialect) -> Floats:
    x, y, (before, after, *rest) = _grid(function, dialect)
    end_x, end_y = (float(each) for each in rest[:2])
    price_x, price_y = (dialect.cost(each) for each in rest[2:])
    costs = np.where(x == end_x, price_x, 0.0) + np.where(y == end_y, price_y, 0.0)
    apart = (x >= y + float(after)) | (y >= x + float(before))
    return np.where((x > end_x) | (y > end_y) | ((x < end_x) & (y < end_y) & ~apart), np.inf, costs)


_PAIRS: dict[str, Callable[[GlobalFunction, Dialect], Floats]] = {
    **dict.fromkeys((">=", ">", "<=", "<", "="), _compared),
    "disj": _disjunction,
    "sdisj": _special_disjunction,
}


def is_of_pairs(keyword: str) -> bool:
    """Whether a function becomes a table of two variables."""
    return keyword in _PAIRS


# -- sums and counts ---------------------------------------------------------------------------------------------------

Gains = dict[int, Floats]
"""What each state of some variables adds to a sum: whole numbers."""
Price = Callable[[Floats], Floats]
"""What sums cost, or what it costs to miss limits by so much."""
_POWERS: dict[str, Price] = {
    "hard": lambda gap: np.minimum(gap, 1.0),
    "lin": lambda gap: gap,
    "quad": lambda gap: gap * gap,
    "pairs": lambda gap: gap * (gap + 1.0) / 2.0,
}


def _sum(name: str, gains: Gains, worth: Price, dialect: Dialect) -> Iterator[Constraint]:
    """A function of a sum: a linear constraint if it only forbids, or costs the same, beyond limits."""
    low, high = (int(sum(f(gain) for gain in gains.values())) for f in (np.min, np.max))
    if high - low > MOST_SUMS:
        raise FormatError(f"found sums from {low} to {high}, expected at most {MOST_SUMS} values")
    costs = dialect.forbid(worth(np.arange(float(low), high + 1.0)))
    if not costs.any():
        return
    free = np.flatnonzero(costs == 0.0)
    first, last = (int(free[0]), int(free[-1])) if len(free) else (0, -1)
    prices = np.unique(costs[costs > 0.0])
    if len(prices) == 1 and len(free) == last - first + 1:
        terms = [(i, k, float(gain[k])) for i, gain in gains.items() for k in np.flatnonzero(gain).tolist()]
        terms = terms or [(next(iter(gains)), 0, 0.0)]
        yield linear(
            [(i, k) for i, k, _ in terms],
            [weight for _, _, weight in terms],
            lower=-math.inf if first == 0 and len(free) else float(low + first) if len(free) else high + 1.0,
            upper=math.inf if last == high - low or not len(free) else float(low + last),
            penalty=None if prices[0] == np.inf else float(prices[0]),
        )
        return
    listed = list(gains.values())

    def add(place: int, rows: Floats) -> tuple[Floats, float]:
        return (rows + listed[place])[:, :, None], 0.0

    yield kept_in_rows(name, list(gains), dialect.card, [0.0], add, lambda rows: costs[rows[:, 0].astype(int) - low])


def _counted(scope: Sequence[int], states: Sequence[int], dialect: Dialect, weight: float = 1.0) -> Gains:
    """Whether each variable has one of some states; a variable that occurs twice counts twice."""
    gains: Gains = {}
    for i in scope:
        known = [k for k in set(states) if 0 <= k < dialect.card[i]]
        gain = gains.setdefault(i, np.zeros(int(dialect.card[i])))
        gain[known] += weight
    return gains


def _added(scope: Sequence[int], weights: Sequence[float], dialect: Dialect) -> Gains:
    gains: Gains = {}
    for i, weight in zip(scope, weights, strict=True):
        gain = gains.setdefault(i, np.zeros(int(dialect.card[i])))
        gain += weight * np.arange(len(gain))
    return gains


def _priced(price: float, metric: str) -> Price:
    """The cost of a gap by the metric."""
    power = _POWERS[metric]
    return lambda gap: np.where(gap > 0.0, price * np.where(gap > 0.0, power(gap), 1.0), 0.0)


def _outside(low: float, high: float, short: Price, excess: Price) -> Price:
    return lambda count: short(np.maximum(0.0, low - count)) + excess(np.maximum(0.0, count - high))


def _metric(function: GlobalFunction, *allowed: str) -> str:
    metric = function.word("metric")
    if metric not in allowed:
        raise ValueError(metric)
    return metric


def _cost(function: GlobalFunction, dialect: Dialect) -> float:
    price = dialect.cost(function.given["cost"])
    if price < 0.0:
        raise ValueError(price)
    return price


def _among(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    metric = _metric(function, *(("var", "hard") if function.is_a("samong") else ("hard", "lin", "quad")))
    priced = _priced(_cost(function, dialect), metric.replace("var", "lin"))
    states = [dialect.state(function.scope[0], k) for k in function.several("values")]
    worth = _outside(function.whole("min"), function.whole("max"), priced, priced)
    yield from _sum(function.keyword, _counted(function.scope, states, dialect), worth, dialect)


def _compared_with_last(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """``wvaramong`` and ``wvarsum``: a count or a sum of all variables but the last, which it is compared with."""
    metric = _metric(function, "hard", "lin", "quad")
    *scope, last = function.scope
    if function.is_a("wvaramong"):
        metric, compare = "hard", COMPARED["=="]  # it costs the same however much it misses
        states = [dialect.state(function.scope[0], k) for k in function.several("values")]
        gains = _counted(scope, states, dialect)
    else:
        compare, gains = COMPARED[function.word("comparator")], _added(scope, [1.0] * len(scope), dialect)
    for i, gain in _added([last], [-1.0], dialect).items():
        gains[i] = gain + gains.get(i, 0.0)
    priced = _priced(_cost(function, dialect), metric)
    yield from _sum(function.keyword, gains, lambda rest: priced(compare(rest, 0.0)), dialect)


def _total(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    priced = _priced(_cost(function, dialect), _metric(function, "hard", "lin", "quad"))
    compare, to = COMPARED[function.word("comparator")], function.whole("to")
    gains = _added(function.scope, [1.0] * len(function.scope), dialect)
    yield from _sum(function.keyword, gains, lambda total: priced(compare(total, to)), dialect)


def _diverse(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """At least so many variables differ from their states."""
    states = zip(function.scope, function.several("values"), strict=True)
    pairs = [(i, k) for i, word in states if 0 <= (k := dialect.state(i, word)) < dialect.card[i]]
    most = len(function.scope) - function.whole("distance")
    if pairs and most < len(pairs):
        yield linear(pairs, [1.0] * len(pairs), upper=float(most))


def _every_state(function: GlobalFunction, dialect: Dialect) -> range:
    found = range(int(dialect.card[function.scope].max()))
    if len(found) * len(function.scope) > MOST_SUMS:
        n = len(function.scope)
        raise FormatError(f"found {len(found)} states of {n} variables, expected at most {MOST_SUMS} pairs")
    return found


def _all_different(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    if function.is_a("alldiff"):
        _check_deltas(function)
        excepted = {dialect.state(function.scope[0], k) for k in function.several("exceptedvalues")}
        if excepted:
            limits = [(k, 0, 1) for k in _every_state(function, dialect) if k not in excepted]
            yield from _limits(function, limits, _priced(math.inf, "hard"), dialect)
        else:
            yield all_different(function.scope)
        return
    price = _cost(function, dialect)
    if function.is_a("walldiff"):
        metric = _metric(function, "hard", "lin", "quad")
    else:
        metric = {"dec": "pairs", "decbi": "pairs", "var": "lin"}.get(
            _metric(function, "hard", "var", "dec", "decbi"), "all"
        )
        if function.keyword == "salldiffdp":  # a ``samong var`` for every state
            metric = "lin"
    if math.isinf(price) or metric == "all":
        yield all_different(function.scope, penalty=None if math.isinf(price) else price)
        return
    yield from _limits(function, [(k, 0, 1) for k in _every_state(function, dialect)], _priced(price, metric), dialect)


def _limits(
    function: GlobalFunction, limits: list[tuple[int, int, int]], priced: Price, dialect: Dialect
) -> Iterator[Constraint]:
    """A cost for each state by how much the number of variables that have it misses its limits."""
    for k, low, high in limits:
        gains = _counted(function.scope, [k], dialect)
        yield from _sum(function.keyword, gains, _outside(low, high, priced, priced), dialect)


def _check_deltas(function: GlobalFunction) -> None:
    """Refuse the costs that toulbar2 adds to a function when it writes a problem that it has changed."""
    if any(float(cost) for _, cost in function.several("deltacosts")):
        raise FormatError("found costs of values that a search has moved into the function, expected none but 0")


def _bounds(function: GlobalFunction, dialect: Dialect) -> list[tuple[int, int, int]]:
    bounds = function.several("bounds")
    return [(dialect.state(function.scope[0], state), int(low), int(high)) for state, low, high, *_ in bounds]


def _cardinalities(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    bounds = _bounds(function, dialect)
    if function.is_a("gcc"):
        _check_deltas(function)
        yield from _limits(function, bounds, _priced(math.inf, "hard"), dialect)
        return
    price = _cost(function, dialect)
    if function.is_a("wgcc"):
        metric = _metric(function, "hard", "lin", "quad")
    elif (metric := _metric(function, "hard", "var", "dec", "wdec")) == "wdec":
        for (k, low, high), (*_, short, excess) in zip(bounds, function.several("bounds"), strict=True):
            prices = (_priced(dialect.cost(word), "lin") for word in (short, excess))
            gains = _counted(function.scope, [k], dialect)
            yield from _sum(function.keyword, gains, _outside(low, high, *prices), dialect)
        return
    elif metric != "dec" and function.keyword != "sgccdp" and not math.isinf(price):
        yield _changes(function, bounds, price, dialect)
        return
    yield from _limits(function, bounds, _priced(price, "lin" if metric in ("var", "dec") else metric), dialect)


def _changes(
    function: GlobalFunction, bounds: list[tuple[int, int, int]], price: float, dialect: Dialect
) -> Constraint:
    """The number of variables to change until all counts are within limits; all of them at once are counted."""
    n = len(function.scope)
    states, low, high = np.array(bounds, dtype=np.int64).reshape(-1, 3).T
    high = np.minimum(high, n)
    once = function.word("metric") == "hard"

    def count(place: int, rows: Floats) -> tuple[Floats, float]:
        """Counts up to what matters, and the excess of all."""
        r = int(dialect.card[function.scope[place]])
        after = rows[:, None, :] + np.append(np.arange(r)[:, None] == states, np.zeros((r, 1)), axis=1)
        over = np.maximum(0.0, after[:, :, :-1] - np.maximum(low, high))
        after[:, :, :-1] -= over
        after[:, :, -1] += np.where(over > 0.0, 1.0, 0.0).sum(axis=2)
        return after, 0.0

    def end(rows: Floats) -> Floats:
        counts = rows[:, :-1]
        excess = rows[:, -1] + np.maximum(0.0, counts - high).sum(axis=1)
        changes = np.maximum(excess, np.maximum(0.0, low - counts).sum(axis=1))
        return dialect.forbid(price * (np.minimum(changes, 1.0) if once else changes))

    return kept_in_rows(function.keyword, function.scope, dialect.card, [0.0] * (len(bounds) + 1), count, end)


def _same(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """One half of the variables has the states of the other, as often."""
    if function.is_a("ssame"):
        halves = [[dialect.variable(i) for i in function.several(name)] for name in ("vars1", "vars2")]
        if len(halves[0]) != len(halves[1]) or not set(halves[0] + halves[1]) <= set(function.scope):
            raise FormatError("found two lists of variables, expected as many in both, all of the scope")
        metric, share = "lin", 0.5  # a variable that changes is one too few in a state and one too many in another
    else:
        middle, share = len(function.scope) // 2, 1.0
        halves = [function.scope[:middle], function.scope[middle:]]
        if len(function.scope) % 2:
            raise FormatError(f"found {len(function.scope)} variables, expected two halves")
        metric = _metric(function, "hard", "lin", "quad")
    priced = _priced(_cost(function, dialect), metric)
    for k in _every_state(function, dialect):
        gains = _counted(halves[0], [k], dialect)
        for i, gain in _counted(halves[1], [k], dialect, -1.0).items():
            gains[i] = gain + gains.get(i, 0.0)
        yield from _sum(function.keyword, gains, lambda excess: share * priced(np.abs(excess)), dialect)
    if function.is_a("wsamegcc"):
        for half in halves:
            yield from _limits(GlobalFunction("wgcc", half), _bounds(function, dialect), priced, dialect)


def _overlap(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """The number of pairs of equal states other than the first."""
    priced = _priced(_cost(function, dialect), _metric(function, "hard", "lin", "quad"))
    compare, to = COMPARED[function.word("comparator")], function.whole("to")
    middle = len(function.scope) // 2
    order = [i for pair in zip(function.scope[:middle], function.scope[middle:], strict=True) for i in pair]

    def count(place: int, rows: Floats) -> tuple[Floats, float]:
        """The count so far, and the state of the first of a pair."""
        states = np.broadcast_to(
            np.arange(int(dialect.card[order[place]])) * 1.0, (len(rows), dialect.card[order[place]])
        )
        counts = np.broadcast_to(rows[:, :1], states.shape)
        if place % 2:
            both = (states == rows[:, 1:]) & (states > 0.0)
            counts, states = counts + both, np.zeros_like(states)
        return np.stack([counts, states], axis=2), 0.0

    def end(rows: Floats) -> Floats:
        return dialect.forbid(priced(compare(rows[:, 0], to)))

    yield kept_in_rows(function.keyword, order, dialect.card, [0.0, 0.0], count, end)


def _largest(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    default = dialect.cost(function.given["defaultcost"])
    costs = {i: np.full(int(dialect.card[i]), default) for i in function.scope}
    for variable, state, cost in function.several("tuples"):
        i = dialect.variable(variable)
        costs[i][dialect.state(i, state)] = dialect.cost(cost)

    def keep(place: int, rows: Floats) -> tuple[Floats, float]:
        return np.maximum(rows, costs[function.scope[place]])[:, :, None], 0.0

    yield kept_in_rows(function.keyword, function.scope, dialect.card, [0.0], keep, lambda rows: rows[:, 0])


def _tree(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """States are parents, by the indices of their variables; one variable, the root, is its own."""
    place_of = {i: at for at, i in enumerate(function.scope)}
    n = len(function.scope)

    def join(place: int, rows: Floats) -> tuple[Floats, Floats]:
        """Where the path from each variable ends, itself if it is still to be read; n is the root."""
        parents = [place_of.get(k, -1) for k in range(int(dialect.card[function.scope[place]]))]
        after, cost = np.repeat(rows[:, None, :], len(parents), axis=1), np.full((len(rows), len(parents)), np.inf)
        rooted = (rows == n).any(axis=1)
        for k, parent in enumerate(parents):
            if parent < 0:
                continue
            end = np.full(len(rows), float(n)) if parent == place else rows[:, parent]
            allowed = ~rooted if parent == place else end != place
            after[:, k] = np.where(rows == place, end[:, None], rows)
            cost[allowed, k] = 0.0
        return after, cost

    def end(rows: Floats) -> Floats:
        return np.where((rows == n).all(axis=1), 0.0, np.inf)

    yield kept_in_rows(function.keyword, function.scope, dialect.card, list(map(float, range(n))), join, end)


# -- knapsacks ---------------------------------------------------------------------------------------------------------


def _knapsack(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    scope, keyword = function.scope, function.keyword
    capacity = float(function.word("rhs" if keyword == "clique" else "capacity"))
    weights = list[tuple[int, int, float]]()
    if keyword == "clique":  # at most so many variables in one of their states
        capacity = -capacity
        values = zip(scope, function.several("values"), strict=True)
        weights = [(i, dialect.state(i, k), -1.0) for i, mine in values for k in mine]
    elif "weights" in function.given:
        pairs = zip(scope, function.several("weights"), strict=True)
        weights = [(i, 1, float(weight)) for i, weight in pairs if dialect.card[i] > 1]
    elif keyword == "knapsackv":
        placed = {i: at for at, i in enumerate(scope)}
        listed = [(dialect.variable(i), k, float(weight)) for i, k, weight in function.several("weightedvalues")]
        listed.sort(key=lambda each: placed[each[0]])
        weights = [(i, dialect.state(i, k), weight) for i, k, weight in listed]
    else:
        by_variable = zip(scope, function.several("weightedvalues"), strict=True)
        weights = [(i, dialect.state(i, k), float(weight)) for i, mine in by_variable for k, weight in mine]
    weights = weights or [(scope[0], 0, 0.0)]
    yield linear([(i, k) for i, k, _ in weights], [weight for _, _, weight in weights], lower=capacity)
    for group in function.several("amo") if keyword == "knapsackc" else ():
        found = [(dialect.variable(i), word) for i, word in group]
        if len(found) > 1:
            yield at_most_one([(i, dialect.state(i, word)) for i, word in found])


# -- words: automata and grammars --------------------------------------------------------------------------------------


def _regular(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    n, scope = function.whole("nb_states"), function.scope
    states = range(int(dialect.card[scope].max()))
    if function.is_a("wregular"):
        starts, ends = (
            {int(q): dialect.cost(cost) for q, cost in function.several(name)} for name in ("starts", "ends")
        )
        arcs = [
            (int(q), dialect.state(scope[0], k), int(to), dialect.cost(cost))
            for q, k, to, cost in function.several("transitions")
        ]
    else:
        starts, ends = (dict.fromkeys(map(int, function.several(name)), 0.0) for name in ("starts", "ends"))
        free = {(int(q), dialect.state(scope[0], k), int(to)) for q, k, to in function.several("transitions")}
        price, metric = dialect.cost(function.given["cost"]), _metric(function, "var", "edit")
        if metric == "var":
            edited = ((q, k, to, 0.0 if k == letter else price) for q, letter, to in sorted(free) for k in states)
            arcs = list(islice(edited, MOST_SUMS + 1))
        else:
            if n * n > MOST_SUMS:
                raise FormatError(f"found {n} states for an edit distance, expected at most {math.isqrt(MOST_SUMS)}")
            steps = np.full((n, n), np.inf)  # the smallest number of transitions from one state to another
            np.fill_diagonal(steps, 0.0)
            for q, _, to in free:
                steps[q, to] = min(steps[q, to], 1.0)
            for q in range(n):
                steps = np.minimum(steps, steps[:, q, None] + steps[q])
            arcs = list(islice(_edits(free, states, price, steps), MOST_SUMS + 1))
            # A letter that is left out, and letters that are added at the end.
            arcs += [(q, k, q, price) for q in range(n) for k in states]
            ends = {q: _priced_steps(price, steps[q, list(ends)].min(initial=np.inf)) for q in range(n)}
    if any(not 0 <= q < n for q in (*starts, *ends, *(q for arc in arcs for q in arc[::2]))):
        raise ValueError(n)
    if len(arcs) > MOST_SUMS:
        raise FormatError(f"found more than {MOST_SUMS} transitions")
    best: dict[tuple[Any, int, int], float] = {}
    for q, k, to, cost in arcs:
        if k in states:
            best[q, k, to] = min(cost, best.get((q, k, to), math.inf))
    for (q, k, to), cost in list(best.items()):
        if q in starts:
            best["start", k, to] = min(cost + starts[q], best.get(("start", k, to), math.inf))
    known = [(q, k, to, -cost) for (q, k, to), cost in best.items() if cost < math.inf]
    reached = {each for q, _, to, _ in known for each in (q, to)}
    accepting = {q: -cost for q, cost in ends.items() if q in reached and cost < math.inf}
    if "start" in reached and accepting:
        yield regular(scope, known, initial="start", accepting=accepting)
    else:  # no word is accepted
        yield linear([(scope[0], 0)], [0.0], lower=1.0)


def _priced_steps(price: float, n: float) -> float:
    return price * n if n > 0.0 else 0.0


def _edits(
    free: set[tuple[int, int, int]], states: range, price: float, steps: Floats
) -> Iterator[tuple[int, int, int, float]]:
    """Transitions that read any letter at a price, after some that read none at a price each."""
    for q, letter, to in sorted(free):
        for begin in np.flatnonzero(steps[:, q] < np.inf).tolist():
            before = _priced_steps(price, float(steps[begin, q]))
            yield from ((begin, k, to, before + (0.0 if k == letter else price)) for k in states)


def _grammar(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    """The costs of the cheapest derivation of the word from the start symbol, in Chomsky normal form."""
    n, scope, metric = function.whole("nb_symbols"), function.scope, _metric(function, "var", "weight")
    states, price = range(int(dialect.card[scope].max())), dialect.cost(function.given["cost"])
    if n * len(states) > MOST_SUMS:
        raise FormatError(f"found {n} symbols and {len(states)} states, expected at most {MOST_SUMS} pairs")
    letters, pairs = np.full((n, len(states)), np.inf), list[tuple[int, int, int, float]]()
    rules = function.given.get("rules")
    if rules is None:
        kinds = (0, 1) if metric == "var" else (2, 3)
        names = zip(kinds, ("terminals", "non_terminals"), strict=True)
        rules = [[b"%d" % kind, *rule] for kind, name in names for rule in function.several(name)]
    for kind, *rule in rules:
        n_symbols, has_cost = _RULES[int(kind)]
        cost = dialect.cost(rule[n_symbols]) if has_cost else 0.0
        symbol, *rest = (int(word) for word in rule[:n_symbols])
        if not all(0 <= each < n for each in (symbol, *(rest if len(rest) > 1 else ()))):
            raise ValueError(n)
        if len(rest) > 1:
            pairs.append((symbol, rest[0], rest[1], cost))
        elif rest[0] in states:
            letters[symbol, rest[0]] = min(letters[symbol, rest[0]], cost)
    if metric == "var":  # another letter in its place
        letters = np.minimum(letters, letters.min(axis=1, keepdims=True) + price)

    def parse(place: int, rows: Floats) -> tuple[Floats, float]:
        """The costs of all symbols for all parts of the word so far, by where they end and where they begin."""
        r = int(dialect.card[scope[place]])
        parts = {(0, 0): rows[:, :0]}
        ends = [(last, first) for last in range(place) for first in range(last + 1)]
        parts = {span: np.repeat(rows[:, at * n : (at + 1) * n], r, axis=0) for at, span in enumerate(ends)}
        parts[place, place] = np.tile(letters[:, :r].T, (len(rows), 1))
        for first in range(place - 1, -1, -1):
            costs = np.full((len(rows) * r, n), np.inf)
            for middle, (symbol, left, right, cost) in product(range(first, place), pairs):
                found = parts[middle, first][:, left] + parts[place, middle + 1][:, right] + cost
                costs[:, symbol] = np.minimum(costs[:, symbol], found)
            parts[place, first] = costs
        after = np.hstack([parts[last, first] for last in range(place + 1) for first in range(last + 1)])
        return after.reshape(len(rows), r, -1), 0.0

    start, whole = function.whole("start"), len(scope) * (len(scope) - 1) // 2
    yield kept_in_rows(
        function.keyword, scope, dialect.card, [0.0], parse, lambda rows: dialect.forbid(rows[:, whole * n + start])
    )


# -- other networks ----------------------------------------------------------------------------------------------------


def _network(function: GlobalFunction, dialect: Dialect) -> Iterator[Constraint]:
    graph, limits = function.given["network"], (float(function.word("lb")), float(function.word("ub")))
    assert isinstance(graph, FactorGraph)
    states = dialect.card[function.scope]
    if graph.n_vars != len(states) or np.any(graph.card != states):
        found = f"{graph.n_vars} variables with {graph.card.tolist()[:8]} states"
        raise FormatError(f"found a network of {found}, expected {states.tolist()[:8]}")
    yield limited(function.keyword, graph, function.scope, limits, dialect.card)


def limited(
    name: str, graph: FactorGraph, scope: list[int], limits: tuple[float, float], card: Ints, price: float = math.inf
) -> Constraint:
    """The cost of another network on some variables is at least the one limit and below the other, or has a price."""
    low, high = limits
    n = len(scope)
    last: Ints = np.arange(n)  # the place from which on the state of a variable matters no more
    due: dict[int, list[int]] = {}
    for a in range(graph.n_factors):
        mine = graph.scope_of(a)
        last[mine] = np.maximum(last[mine], mine.max())
        due.setdefault(int(mine.max()), []).append(a)
    if graph.constraints is not None:
        last[graph.constraints.var] = n

    def add(place: int, rows: Floats) -> tuple[Floats, Floats]:
        """The cost so far, and the states that matter."""
        r = int(graph.card[place])
        after = np.concatenate([np.repeat(rows, r, axis=0), np.tile(np.arange(r), len(rows))[:, None]], axis=1)
        states = after[:, 1:].astype(np.int64)
        at = int(graph.var_ptr[place])
        after[:, 0] -= graph.theta_v[at : at + r][states[:, place]]
        for a in due.get(place, ()):
            after[:, 0] -= graph.table(a)[tuple(states[:, graph.scope_of(a)].T)]
        after[:, 0] = np.round(after[:, 0], 9) + 0.0
        after[:, 1:][:, last[: place + 1] <= place] = 0.0
        forbidden: Bools = np.isinf(after[:, 0])
        after[forbidden, 0] = 0.0
        return after.reshape(len(rows), r, -1), np.where(forbidden, np.inf, 0.0).reshape(-1, r)

    def end(rows: Floats) -> Floats:
        costs = rows[:, 0]
        if graph.constraints is not None:
            costs = costs - [graph.constraints.value(each) for each in rows[:, 1:].astype(np.int64)]
        return np.where((costs >= low - 1e-9) & (costs < high - 1e-9), 0.0, price)

    return kept_in_rows(name, scope, card, [-graph.constant], add, end)


_FAMILIES: dict[str, Callable[[GlobalFunction, Dialect], Iterator[Constraint]]] = {
    "samong wamong": _among,
    "wvaramong wvarsum": _compared_with_last,
    "wsum": _total,
    "wdiverse whdiverse wtdiverse": _diverse,
    "salldiff walldiff alldiff": _all_different,
    "sgcc wgcc gcc": _cardinalities,
    "ssame wsame wsamegcc": _same,
    "woverlap": _overlap,
    "max smax": _largest,
    "MST smst": _tree,
    "clique knapsack knapsackp knapsackv knapsackc": _knapsack,
    "wregular sregular": _regular,
    "sgrammar": _grammar,
    "wcsp cfnconstraint": _network,
}
