"""toulbar2's cost functions without tables: what they count, in both dialects, and toulbar2 itself."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from format_models import labellings, read_text

import mapmrf
from benchmark_models import FOLDER, references
from mapmrf import FactorGraph, FormatError
from refusals import refuses
from toulbar2_runs import toulbar2

UPPER = 60
Word = tuple[int, ...]


def wcsp(function: str, card: tuple[int, ...] = (3, 3, 3, 3), unary: str = "") -> str:
    scope = " ".join(map(str, range(len(card))))
    head = f"m {len(card)} {max(card)} {1 + unary.count(chr(10))} {UPPER}\n{' '.join(map(str, card))}\n"
    return f"{head}{unary}{len(card)} {scope} -1 {function}\n"


def beyond(n: int, low: int, high: int) -> int:
    return max(0, low - n, n - high)


def by_metric(metric: str, cost: int, gap: int) -> int:
    return cost * {"hard": min(gap, 1), "lin": gap, "quad": gap * gap}[metric]


def of_values(x: Word, price: Callable[[int, int], int]) -> int:
    return sum(price(k, x.count(k)) for k in range(3))


GAPS = {
    "==": lambda n, to: abs(n - to),
    "!=": lambda n, to: int(n == to),
    "<=": lambda n, to: max(0, n - to),
    "<": lambda n, to: max(0, n - to + 1),
    ">=": lambda n, to: max(0, to - n),
    ">": lambda n, to: max(0, to - n + 1),
}
LIMITS = {0: (0, 1), 1: (1, 1), 2: (0, 2)}


def limited(x: Word, metric: str) -> int:
    return of_values(x, lambda k, n: by_metric(metric, 7, beyond(n, *LIMITS[k])))


def same(x: Word, metric: str) -> int:
    return sum(by_metric(metric, 7, abs(x[:2].count(k) - x[2:].count(k))) for k in range(3))


def derived(x: Word, rules: dict[int, list[tuple[int, ...]]], letters: dict[tuple[int, int], int]) -> dict[int, float]:
    """The cheapest derivation of a word from each symbol."""
    if len(x) == 1:
        return {symbol: letters.get((symbol, x[0]), math.inf) for symbol in rules}
    best: dict[int, float] = dict.fromkeys(rules, math.inf)
    for cut in range(1, len(x)):
        left, right = derived(x[:cut], rules, letters), derived(x[cut:], rules, letters)
        for symbol, mine in rules.items():
            best[symbol] = min([best[symbol], *(left[b] + right[c] + cost for b, c, cost in mine)])
    return best


RULES = {0: [(0, 0, 0), (1, 2, 0), (1, 3, 0)], 1: [], 2: [(0, 3, 0)], 3: []}
WEIGHED = {0: [(0, 0, 0), (1, 2, 2), (1, 3, 4)], 1: [], 2: [(0, 3, 1)], 3: []}
READ = {(1, 0): 0, (1, 1): 5, (1, 2): 5, (3, 1): 0, (3, 0): 5, (3, 2): 5}


def accepted(x: Word) -> bool:
    """Zeros, then ones, then twos, at least one of these."""
    return list(x) == sorted(x) and x[-1] == 2


def distance(x: Word, y: Word) -> int:
    row = list(range(len(y) + 1))
    for i, a in enumerate(x, 1):
        before, row[0] = row[0], i
        for j, b in enumerate(y, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (a != b))
    return row[-1]


WORDS = [word for n in range(9) for word in itertools.product(range(3), repeat=n) if word and accepted(word)]
SORTED = "3 1 0 1 2 6 0 0 0 0 1 1 1 1 1 1 2 2 0 2 2 2 2 2"


def tree(x: Word) -> bool:
    paths = [[i] for i in range(len(x))]
    for _ in x:
        paths = [[*path, x[path[-1]]] for path in paths]
    return sum(i == k for i, k in enumerate(x)) == 1 and len({path[-1] for path in paths}) == 1


def knapsack(total: int) -> float:
    return 0 if total >= 3 else math.inf


def inner(x: Word) -> int:
    """The cost of the network in the test of networks."""
    return 2 * (x[0] == x[1] == 1) + 3 * (x[1] == 2) + (x[2] == 1) + 5 * (x[3] == 0)


INNER = "inner 4 3 4 1000 3 3 3 3 2 0 1 0 1 1 1 2 1 1 0 1 2 3 1 2 0 1 1 1 1 3 0 1 0 5"


def functions() -> Iterator[tuple[str, Callable[[Word], float]]]:
    for metric, form in itertools.product(("hard", "lin", "quad"), GAPS):
        gap = GAPS[form]
        yield f"wsum {metric} 7 {form} 4", lambda x, m=metric, g=gap: by_metric(m, 7, g(sum(x), 4))
        yield f"wvarsum {metric} 7 {form}", lambda x, m=metric, g=gap: by_metric(m, 7, g(sum(x[:-1]), x[-1]))
        yield (
            f"woverlap {metric} 7 {form} 1",
            lambda x, m=metric, g=gap: by_metric(m, 7, g((x[0] == x[2] > 0) + (x[1] == x[3] > 0), 1)),
        )
    for metric in ("hard", "lin", "quad"):
        yield (
            f"wamong {metric} 7 2 1 2 1 2",
            lambda x, m=metric: by_metric(m, 7, beyond(x.count(1) + x.count(2), 1, 2)),
        )
        yield f"wvaramong {metric} 7 1 1", lambda x: 7 * (x[:-1].count(1) != x[-1])
        yield (
            f"walldiff {metric} 7",
            lambda x, m=metric: of_values(x, lambda k, n: by_metric(m, 7, beyond(n, 0, 1))),
        )
        yield f"wgcc {metric} 7 3 0 0 1 1 1 1 2 0 2", lambda x, m=metric: limited(x, m)
        yield f"wsame {metric} 7", lambda x, m=metric: same(x, m)
        yield (
            f"wsamegcc {metric} 7 3 0 0 1 1 1 1 2 0 2",
            lambda x, m=metric: same(x, m) + limited(x[:2], m) + limited(x[2:], m),
        )
    for keyword in ("salldiff", "salldiffdp"):
        yield f"{keyword} var 2", lambda x: 2 * (4 - len(set(x)))
    yield "salldiff dec 2", lambda x: 2 * of_values(x, lambda k, n: n * (n - 1) // 2)
    yield "salldiff decbi 2", lambda x: 2 * of_values(x, lambda k, n: n * (n - 1) // 2)
    yield "alldiff 1 0 0", lambda x: 0 if max(x.count(1), x.count(2)) < 2 else math.inf
    for keyword in ("samong", "samongdp"):
        yield f"{keyword} var 3 1 2 2 0 1", lambda x: 3 * beyond(x.count(0) + x.count(1), 1, 2)
        yield f"{keyword} var 99 1 2 1 2", lambda x: 0 if 1 <= x.count(2) <= 2 else math.inf
    yield "sgcc var 99 2 0 0 1 1 1 4", lambda x: 0 if x.count(0) <= 1 <= x.count(1) else math.inf
    yield (
        "sgcc var 7 2 0 2 2 1 1 1",
        lambda x: 7 * max(sum(max(0, x.count(k) - n) for k, n in ((0, 2), (1, 1))),
                          sum(max(0, n - x.count(k)) for k, n in ((0, 2), (1, 1)))),
    )  # fmt: skip
    for keyword in ("sgcc dec", "sgccdp dec", "sgccdp var"):
        yield (
            f"{keyword} 7 3 0 0 1 1 1 1 2 0 2",
            lambda x: of_values(x, lambda k, n: 7 * beyond(n, *LIMITS[k])),
        )
    yield (
        "sgcc wdec 7 3 0 0 1 5 2 1 1 1 4 3 2 0 2 1 1",
        lambda x: 2 * beyond(x.count(0), 0, 1) + (3 if x.count(1) else 4) * beyond(x.count(1), 1, 1)
        + beyond(x.count(2), 0, 2),
    )  # fmt: skip
    yield "sgcckp hard 60 2 0 1 2 1 0 2", lambda x: 0 if 1 <= x.count(0) <= 2 >= x.count(1) else math.inf
    yield "gcc 3 0 1 2 1 0 1 2 0 4 0", lambda x: 0 if 1 <= x.count(0) <= 2 and x.count(1) <= 1 else math.inf
    yield "ssame 7 2 2 0 3 1 2", lambda x: 7 * sum(max(0, (x[0], x[3]).count(k) - x[1:3].count(k)) for k in range(3))
    for keyword in ("wdiverse", "whdiverse", "wtdiverse"):
        yield (
            f"{keyword} 3 0 1 2 0",
            lambda x: 0 if sum(a != b for a, b in zip(x, (0, 1, 2, 0), strict=True)) >= 3 else math.inf,
        )
    for keyword in ("sregular", "sregulardp"):
        yield (
            f"{keyword} var 4 {SORTED}",
            lambda x: 4 * min(sum(a != b for a, b in zip(x, word, strict=True)) for word in WORDS if len(word) == 4),
        )
        yield f"{keyword} edit 4 {SORTED}", lambda x: 4 * min(distance(x, word) for word in WORDS)
    yield (
        "wregular 2 2 0 0 1 4 2 0 0 1 1 5 0 0 0 0 0 1 1 0 1 0 0 0 1 1 1 9 1 2 1 2",
        lambda x: min(
            start + end + sum({(0, 0, 0): 0, (0, 1, 1): 0, (1, 0, 0): 0, (1, 1, 1): 9, (1, 2, 1): 2}.get(arc, 99)
                              for arc in zip(states[:-1], x, states[1:], strict=True))
            for states in itertools.product((0, 1), repeat=5)
            for start, end in [((0, 4)[states[0]], (0, 1)[states[-1]])]
        ),
    )  # fmt: skip
    for keyword in ("sgrammar", "sgrammardp"):
        yield (
            f"{keyword} var 5 4 3 0 6 0 1 0 0 3 1 1 0 0 0 1 0 1 2 1 0 1 3 1 2 0 3",
            lambda x: derived(x, RULES, READ)[0],
        )
        yield (
            f"{keyword} weight 5 4 3 0 7 2 1 0 2 2 3 1 3 2 3 2 1 3 0 0 0 0 3 0 1 2 2 3 0 1 3 4 3 2 0 3 1",
            lambda x: derived(x, WEIGHED, {(1, 0): 2, (3, 1): 3, (3, 2): 1})[0],
        )
    for keyword in ("max", "smaxdp"):
        yield (
            f"{keyword} 3 4 0 0 4 1 1 1 2 1 2 3 2 1",
            lambda x: max({(0, 0): 4, (1, 1): 1, (2, 1): 2, (3, 2): 1}.get(each, 3) for each in enumerate(x)),
        )
    yield (
        "knapsackp 3 1 1 2 2 1 1 2 2 0 1 2 1",
        lambda x: knapsack(2 * (x[0] == 1) + (x[1] == 1) + 2 * (x[1] == 2) + (x[3] == 2)),
    )
    yield (
        "knapsackv 3 4 0 1 2 1 1 1 1 2 2 3 2 1",
        lambda x: knapsack(2 * (x[0] == 1) + (x[1] == 1) + 2 * (x[1] == 2) + (x[3] == 2)),
    )
    yield "clique 1 1 0 2 0 1 0 1 2", lambda x: 0 if (x[0] == 0) + (x[1] in (0, 1)) + (x[3] == 2) <= 1 else math.inf
    yield f"wcsp 3 6 0 0 {INNER}", lambda x: 0 if 3 <= inner(x) < 6 else math.inf


FUNCTIONS = dict(functions())
OTHERS = {
    (4, 4, 4, 4): {
        "salldiffkp hard 60": lambda x: 0 if len(set(x)) == 4 else math.inf,
        "alldiff 0 0": lambda x: 0 if len(set(x)) == 4 else math.inf,
        "MST": lambda x: 0 if tree(x) else math.inf,
        "smstdp": lambda x: 0 if tree(x) else math.inf,
    },
    (2, 2, 2, 2): {
        "knapsack 3 1 1 -1 2": lambda x: knapsack(x[0] + x[1] - x[2] + 2 * x[3]),
        "knapsackc 3 1 1 1 1 1 2 1 1 1 1 1 3 1 2 0 1 1 1": lambda x: (
            knapsack(x[0] + 2 * x[1] + x[2] + 3 * x[3] if x[0] + x[1] < 2 else 0)
        ),
    },
    (4, 5): {
        ">= 1 2": lambda x: [0, 1, 2, *[math.inf] * 9][max(0, x[1] + 1 - x[0])],
        "> 1 2": lambda x: [0, 1, 2, *[math.inf] * 9][max(0, x[1] + 2 - x[0])],
        "<= 1 2": lambda x: [0, 1, 2, *[math.inf] * 9][max(0, x[0] - x[1] - 1)],
        "< 1 2": lambda x: [0, 1, 2, *[math.inf] * 9][max(0, x[0] - x[1])],
        "= 1 2": lambda x: [0, 1, 2, *[math.inf] * 9][abs(x[1] + 1 - x[0])],
        "disj 1 2 7": lambda x: 0 if x[0] >= x[1] + 2 or x[1] >= x[0] + 1 else 7,
        "sdisj 2 1 3 4 6 5": lambda x: (
            6 * (x[0] == 3) + 5 * (x[1] == 4) if x[0] == 3 or x[1] == 4 or x[0] >= x[1] + 1 or x[1] >= x[0] + 2
            else math.inf
        ),
    },
}  # fmt: skip
CASES = [((3,) * 4, *case) for case in FUNCTIONS.items()]
CASES += [(card, *case) for card, mine in OTHERS.items() for case in mine.items()]


def assert_costs(graph: FactorGraph, labels: Word, cost: float) -> None:
    """Whatever reaches the upper bound is as good as forbidden."""
    value = graph.value(labels)
    assert value == pytest.approx(-cost) if cost < UPPER else value <= -UPPER, labels


@pytest.mark.parametrize(("card", "function", "cost"), CASES, ids=[case[1] for case in CASES])
def test_functions_mean_what_they_count(
    tmp_path: Path, card: tuple[int, ...], function: str, cost: Callable[[Word], float]
) -> None:
    graph = read_text(tmp_path, wcsp(function, card), "model.wcsp")
    assert graph.n_vars == len(card)
    for labels in labellings(graph):
        assert_costs(graph, labels, cost(labels))


def test_toulbar2_finds_the_best_of_every_function(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    paths = [tmp_path / f"{k}.wcsp" for k in range(len(CASES))]
    for path, (card, function, _) in zip(paths, CASES, strict=True):
        rows = (f"{k} {random.integers(0, 12)}" for r in card for k in range(r))
        unary = "".join(f"1 {i} 0 {r} {' '.join(next(rows) for _ in range(r))}\n" for i, r in enumerate(card))
        path.write_text(wcsp(function, card, unary))
    found = toulbar2(paths)
    assert sum(answer != "" and answer is not None for answer in found) > len(paths) - 5
    for path, answer in zip(paths, found, strict=True):
        graph = mapmrf.read(path)
        optimum = max(graph.value(labels) for labels in labellings(graph))
        if answer != "":
            assert -optimum == (math.inf if answer is None else answer[1]), path.read_text()
        assert mapmrf.solve(graph).value == pytest.approx(optimum)


CFN = """{{ problem: {{name: m, mustbe: "<60.000"}},
 variables: {{a: [x y z], b: 3, c: 3, d: -3}},
 functions: {{ g: {{scope: [a b c d], type: {} }} }} }}
"""
NESTED = """{problem: {name: n, mustbe: "<1000"} variables: {a: 3 b: 3 c: 3 d: 3} functions: {
 {scope: [a b] defaultcost: 0 costs: [1 1 2]} {scope: [b] costs: [0 0 3]} {scope: [c] costs: [0 1 0]}
 {scope: [d] costs: [5 0 0]} }}"""
CFN_FUNCTIONS = {
    "salldiff, params: {metric: var, cost: 2.0}": "salldiff var 2",
    "salldiff params {metric dec cost 2.0}": "salldiff dec 2",
    "samong, params: {metric: var, cost: 3, min: 1, max: 2, values: [x 1]}": "samong var 3 1 2 2 0 1",
    "sgcc, params: {metric: var, cost: 99, bounds: [[0 0 1] [y 1 4]]}": "sgcc var 99 2 0 0 1 1 1 4",
    "sgcc params: {metric: wdec cost: 7 bounds: [[0 0 1 5 2] [1 1 1 4 3] [2 0 2 1 1]]}": (
        "sgcc wdec 7 3 0 0 1 5 2 1 1 1 4 3 2 0 2 1 1"
    ),
    "knapsackp, params: {capacity: 3, weightedvalues: [[[y 2]] [[1 1] [2 2]] [] [[2 1]]]}": (
        "knapsackp 3 1 1 2 2 1 1 2 2 0 1 2 1"
    ),
    "knapsackv, params: {capacity: 3, weightedvalues: [[a 1 2] [b 1 1] [1 2 2] [d 2 1]]}": (
        "knapsackv 3 4 0 1 2 1 1 1 1 2 2 3 2 1"
    ),
    "clique, params: {rhs: 1, values: [[x] [0 1] [] [2]]}": "clique 1 1 0 2 0 1 0 1 2",
    "wamong params: {metric: quad cost: 7 values: [1 2] min: 1 max: 2}": "wamong quad 7 2 1 2 1 2",
    "wvaramong params: {metric: hard cost: 7 values: [1]}": "wvaramong hard 7 1 1",
    "walldiff params: {metric: lin cost: 7}": "walldiff lin 7",
    "wgcc params: {metric: lin cost: 7 bounds: [[0 0 1] [1 1 1] [2 0 2]]}": "wgcc lin 7 3 0 0 1 1 1 1 2 0 2",
    "wsamegcc params: {metric: lin cost: 7.0009 bounds: [[0 0 1] [1 1 1] [2 0 2]]}": (
        "wsamegcc lin 7 3 0 0 1 1 1 1 2 0 2"
    ),
    "wsamegcc params: {metric: quad cost: 7 bounds: [[x 0 1] [y 1 1] [z 0 2]]}": "wsamegcc quad 7 3 0 0 1 1 1 1 2 0 2",
    "ssame params: {cost: 7 vars1: [a d] vars2: [1 c]}": "ssame 7 2 2 0 3 1 2",
    'wsum params: {metric: lin cost: 7 comparator: "<" to: 4}': "wsum lin 7 < 4",
    'wvarsum params: {metric: quad cost: 7 comparator: "!="}': "wvarsum quad 7 !=",
    "woverlap params: {metric: hard cost: 7 comparator: > to: 1 // the number of pairs\n}": "woverlap hard 7 > 1",
    "wdiverse params: {distance: 3 values: [0 1 2 0]}": "wdiverse 3 0 1 2 0",
    "sregular params: {metric: edit cost: 4 nb_states: 3 starts: [0] ends: [2] "
    "transitions: [[0 x 0][0 1 1][1 1 1][1 2 2][0 2 2][2 2 2]]}": f"sregular edit 4 {SORTED}",
    "wregular params: {nb_states: 2 starts: [[0 0][1 4]] ends: [[0 0][1 1]] "
    "transitions: [[0 0 0 0][0 1 1 0][1 0 0 0][1 1 1 9][1 2 1 2]]}": (
        "wregular 2 2 0 0 1 4 2 0 0 1 1 5 0 0 0 0 0 1 1 0 1 0 0 0 1 1 1 9 1 2 1 2"
    ),
    "sgrammardp params: {metric: var cost: 5 nb_symbols: 4 nb_values: 3 start: 0 "
    "terminals: [[1 0][3 1]] non_terminals: [[0 0 0][0 1 2][0 1 3][2 0 3]]}": (
        "sgrammar var 5 4 3 0 6 0 1 0 0 3 1 1 0 0 0 1 0 1 2 1 0 1 3 1 2 0 3"
    ),
    "max params: {defaultcost: 3 tuples: [[a x 4] [b 1 1] [2 1 2] [d 2 1]]}": "max 3 4 0 0 4 1 1 1 2 1 2 3 2 1",
    f"cfnconstraint params: {{cfn: {NESTED} lb: 3 ub: 6 duplicatehard: 0 strongduality: 0}}": f"wcsp 3 6 0 0 {INNER}",
}


@pytest.mark.parametrize("function", CFN_FUNCTIONS, ids=list(CFN_FUNCTIONS.values()))
def test_functions_of_a_cfn_are_those_of_a_wcsp(tmp_path: Path, function: str) -> None:
    graph = read_text(tmp_path, CFN.format(function), "model.cfn")
    assert graph.names.variables == ("a", "b", "c", "d")
    for labels in labellings(graph):
        assert_costs(graph, labels, FUNCTIONS[CFN_FUNCTIONS[function]](labels))


def test_functions_of_pairs_and_trees_in_a_cfn(tmp_path: Path) -> None:
    text = CFN.replace("a b c d", "{}").replace("{} }} }}", "{} }} }}")
    graph = read_text(tmp_path, text.format("a b", ">= params: [1 2]"), "model.cfn")
    assert graph.value([0, 2, 0, 0]) == -math.inf and graph.value([1, 2, 0, 0]) == -2
    graph = read_text(tmp_path, text.format("a b c", "MST params: {}"), "model.cfn")
    assert graph.value([0, 0, 1, 0]) == 0 and graph.value([1, 2, 0, 0]) == -math.inf


def test_costs_keep_the_decimals_of_the_bound_and_names_may_be_equal(tmp_path: Path, caplog) -> None:
    caplog.set_level("INFO", logger="mapmrf")
    text = '{problem: {name: m, mustbe: "<%s"} variables: {a: 2} functions: {u: {scope: [a] costs: [0.19 -0.55]} %s}}'
    graph = read_text(tmp_path, text % ("9.0", "u: {scope: [a] defaultcost: 0.99 costs: []}"), "m.cfn")
    assert [graph.value([k]) for k in range(2)] == pytest.approx([-0.1 - 0.9, 0.5 - 0.9])
    assert "costs keep 1 decimals" in caplog.text and "several functions are called 'u'" in caplog.text
    graph = read_text(tmp_path, text % ("inf", ""), "m.cfn")
    assert [graph.value([k]) for k in range(2)] == [-0.19, 0.55]


def test_interval_variables_are_domains(tmp_path: Path) -> None:
    graph = read_text(tmp_path, "m 2 4 2 9\n-4 -3\n2 0 1 -1 >= 1 0\n1 0 0 1 3 5\n", "m.wcsp")
    assert graph.card.tolist() == [4, 3]
    assert max((graph.value(x), x) for x in labellings(graph)) == (0, (2, 1))


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("sgcc var 7 12 " + " ".join(f"{k} 0 30" for k in range(12)), "takes more than"),
        ("wsum lin 7 == 3000", ""),
        ("sregular edit 3 9999 1 0 1 0 1 0 0 0", "found 9999 states"),
        ("sregular var 3 99999 1 0 1 0 1 0 0 0", ""),
        ("sgrammar var 3 99999999 12 0 1 0 0 1", "found 99999999 symbols"),
        ("wcsp 0 9 0 0 m 1 2 1 9 2 1 0 -1 " * 2000, "at most 8 inside each other"),
        ("sgrammar var 5 2 12 0 2 0 0 1 1 0 0 1", "takes more than"),
    ],
)
def test_functions_that_keep_too_much_are_told(tmp_path: Path, function: str, said: str) -> None:
    path = tmp_path / "m.wcsp"
    path.write_text(wcsp(function, (12,) * 40))
    if said:
        refuses(FormatError, said, mapmrf.read, path)
    else:
        assert mapmrf.read(path).value([11] * 40) < 0.0


@pytest.mark.data
@pytest.mark.parametrize("name", sorted(path.name for path in (FOLDER / "globals").glob("*")))
def test_development_files_of_toulbar2(name: str) -> None:
    graph = mapmrf.read(FOLDER / "globals" / name)
    known = references().get(f"globals/{name}")
    assert isinstance(graph, FactorGraph)
    result = mapmrf.solve(graph, time_limit=600)
    if known is not None:
        assert result.value == pytest.approx(known, abs=1e-6)
