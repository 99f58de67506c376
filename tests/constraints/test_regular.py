"""Automata over sequences of variables: what users state, and every method against exhaustive search."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from constrained_recipes import one_kind
from mapmrf import FactorGraph, FormatError, GraphError, Names, Status, UnknownName, UnsupportedModel, constraints
from mapmrf.constraints import Constraint
from mapmrf.constraints.as_tables import rewrite
from mapmrf.run.registry import method_class, method_names
from refusals import refuses

TWO_IN_A_ROW = [(0, 0, 0), (1, 0, 0), (2, 0, 0), (0, 1, 1), (1, 1, 2)]
"""At most two ones in a row."""


def free(n: int, card: int = 2) -> FactorGraph:
    return FactorGraph.from_tables([card] * n, [], [])


def words(constraint: Constraint, n: int, card: int = 2) -> list[str]:
    """All words that a constraint accepts."""
    graph = free(n, card).with_constraints([constraint])
    every = itertools.product(range(card), repeat=n)
    return ["".join(map(str, labels)) for labels in every if graph.value(labels) > -math.inf]


@pytest.mark.parametrize("name", method_names())
def test_every_method_is_honest_on_automata_alone(name: str) -> None:
    limits = {} if method_class(name).exact else {"max_iterations": 100}
    for seed in range(6):
        recipe = one_kind("regular", seed, soft=seed % 3 == 0, n=1 + seed % 2, n_vars=1 + seed % 5)
        graph, optimum = recipe.graph(), recipe.optimum()
        try:
            result = mapmrf.solve(graph, name, **limits)
        except UnsupportedModel:
            continue
        assert result.value == graph.value(result.labels) == pytest.approx(recipe.value(tuple(result.labels)))
        assert result.value <= optimum + 1e-6
        assert result.bound is None or result.bound >= optimum - 1e-6
        assert (result.status is Status.INFEASIBLE) == (optimum == -math.inf)
        if method_class(name).exact or result.status is Status.OPTIMAL:
            assert result.value == pytest.approx(optimum)


def test_other_questions_about_automata() -> None:
    for seed in range(8):
        recipe = one_kind("regular", seed, soft=seed % 3 == 0, n_vars=2 + seed % 3)
        graph = recipe.graph()
        values = sorted((value for _, value in recipe.values() if value > -math.inf), reverse=True)
        assert [each.value for each in mapmrf.solve_best(graph, 4)] == pytest.approx(values[:4])
        found = mapmrf.max_marginals(graph)
        assert found.exact and found.lower.max(initial=-np.inf) == pytest.approx(recipe.optimum())
        if values:
            best = mapmrf.solve(graph)
            proof = mapmrf.verify(graph, best.labels, mapmrf.certify(graph, best))
            assert float(proof.bound) == pytest.approx(values[0]) == float(proof.value)
        for again in (copy.copy(graph), copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
            assert [again.value(labels) for labels, _ in recipe.values()] == pytest.approx(
                [value for _, value in recipe.values()]
            )


def test_words() -> None:
    assert words(constraints.regular(range(3), TWO_IN_A_ROW), 3) == [f"{n:03b}" for n in range(7)]
    # one state, and letters of which some are forbidden
    assert words(constraints.regular([0, 1], [("q", 0, "q"), ("q", 2, "q")], initial="q"), 2, 3) == [
        "00", "02", "20", "22",
    ]  # fmt: skip
    # not deterministic: the last letter but one is 1
    guess = [(0, 0, 0), (0, 1, 0), (0, 1, 1), (1, 0, 2), (1, 1, 2)]
    assert words(constraints.regular(range(3), guess, accepting=[2]), 3) == ["010", "011", "110", "111"]
    # a state that nothing reaches, and one from which nothing is accepted
    apart = [(0, 0, 0), (0, 1, "lost"), ("lost", 0, "lost"), ("lost", 1, "lost"), ("new", 1, 0)]
    assert words(constraints.regular(range(2), apart, accepting=[0, "new"]), 2) == ["00"]
    # the same variable twice: a roster that is repeated
    assert words(constraints.regular([0, 1, 0, 1], TWO_IN_A_ROW), 2) == ["00", "01", "10"]
    assert words(constraints.regular([0, 0], [(0, 1, 1), (1, 1, 2)], accepting=[2]), 1) == ["1"]


@pytest.mark.parametrize("method", ["auto", "wcsp", "cuts", "lslp", "icm", "trws", "exhaustive"])
def test_no_word_at_all(method: str) -> None:
    for stated in (
        constraints.regular(range(3), [(0, 1, 1), (1, 1, 2)]),  # too short
        constraints.regular(range(3), TWO_IN_A_ROW, accepting=[]),
        constraints.regular(range(3), [(*arc, -math.inf) for arc in TWO_IN_A_ROW]),
    ):
        result = mapmrf.solve(free(3).with_constraints([stated]), method)
        assert result.status is Status.INFEASIBLE and [each.constraint for each in result.violated] == [0]


def test_weights_are_those_of_the_best_run() -> None:
    moves = [(0, 0, 0, 1.0), (0, 0, 1, 3.0), (0, 1, 1, np.float32(0.5)), (1, 1, 1), (1, 1, 1, -2.0)]
    graph = free(2).with_constraints([constraints.regular([0, 1], moves, accepting={0: 0.25, 1: -4.0}, penalty=7.0)])
    values = [graph.value(labels) for labels in itertools.product(range(2), repeat=2)]
    assert values == [2.25, -1.0, -7.0, -3.5]
    assert graph.size == 7.0 + 3.0 + 3.0 + 4.0
    assert graph.constraints.violated(np.array([1, 0])).tolist() == [True]
    unpaid = free(2).with_constraints([constraints.regular([0, 1], moves, accepting=[0], penalty=0.0)])
    assert mapmrf.solve(unpaid, "trws").value == mapmrf.solve(unpaid, "wcsp").value == unpaid.value([0, 0]) == 2.0


def test_states_of_variables_have_names_and_may_differ_in_number() -> None:
    names = Names(("Mon", "Tue", "Wed"), (("off", "day"), ("night", "off", "day"), ("off", "night")))
    graph = FactorGraph.from_tables([2, 3, 2], [], [], names=names)
    rest = [("any", "off", "any"), ("any", "day", "any"), ("any", "night", "tired"), ("tired", "off", "any")]
    stated = graph.with_constraints([constraints.regular(["Mon", "Tue", "Wed"], rest, initial="any")])
    allowed = [labels for labels in itertools.product(range(2), range(3), range(2)) if stated.value(labels) == 0.0]
    assert len(allowed) == 10 and (0, 0, 1) not in allowed and (0, 0, 0) in allowed


def test_long_sequences_are_chains_that_are_solved_at_once() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_tables([2] * 400, [(i,) for i in range(400)], list(random.normal(size=(400, 2))))
    graph = graph.with_constraints([constraints.regular(range(400), TWO_IN_A_ROW, accepting=[0])])
    found = rewrite(graph).graph
    assert found.n_vars == 400 + 398 and found.card.max() == 3 and found.n_tables <= 6
    result = mapmrf.solve(graph)
    assert result.status is Status.OPTIMAL and "111" not in "".join(map(str, result.labels))


def test_beliefs_that_are_too_many_for_tables_are_refused() -> None:
    """Somewhere there are two ones at a distance of 25: almost every set of states is met."""
    n = 26
    moves = [*((q, k, q + 1) for q in range(1, n - 1) for k in (0, 1)), (n - 1, 1, n)]
    moves += [(0, 0, 0), (0, 1, 0), (0, 1, 1), (n, 0, n), (n, 1, n)]
    graph = free(60).with_constraints([constraints.regular(range(60), moves, accepting=[n])])
    assert graph.value([0] * 60) == -math.inf and graph.value([1] * 60) == 0.0
    refuses(
        UnsupportedModel, r"constraint 0 \(regular\): more than 67108864 ways to count", mapmrf.solve, graph, "trws"
    )


def test_files_without_automata_say_so(tmp_path: Path) -> None:
    graph = free(3).with_constraints([constraints.regular(range(3), TWO_IN_A_ROW)])
    refuses(
        FormatError,
        "has no constraints, and the model has 1, the first: regular",
        mapmrf.write,
        graph,
        tmp_path / "a.uai",
    )


MISTAKES = {
    "regular: no transitions, expected at least one": lambda: constraints.regular([0], []),
    "regular: the transitions are 3, expected a list of them": lambda: constraints.regular([0], 3),
    "regular: transition 1 is (0, 1), expected (state, symbol, next state) and maybe a weight": lambda: (
        constraints.regular([0], [(0, 0, 0), (0, 1)])
    ),
    "regular: the symbol of transition 0 is -1, expected a state of a variable": lambda: constraints.regular(
        [0], [(0, -1, 0)]
    ),
    "regular: the weight of transition 0 is nan, expected a finite number or -inf": lambda: constraints.regular(
        [0], [(0, 0, 0, math.nan)]
    ),
    "regular: the weight of 0 is inf, expected a finite number or -inf": lambda: constraints.regular(
        [0], [(0, 0, 0)], accepting={0: math.inf}
    ),
    "regular: 'q' is initial, expected a state of a transition": lambda: constraints.regular(
        [0], [(0, 0, 0)], initial="q"
    ),
    "regular: 2 is accepting, expected a state of a transition": lambda: constraints.regular(
        [0], [(0, 0, 0)], accepting=[0, 2]
    ),
    "regular: the accepting states are 0, expected a list of them": lambda: constraints.regular(
        [0], [(0, 0, 0)], accepting=0
    ),
    "regular: found a pair, expected variables without states": lambda: constraints.regular([(0, 1)], [(0, 0, 0)]),
    "regular: no indicators, expected at least one": lambda: constraints.regular([], [(0, 0, 0)]),
    "constraint 0 (regular): no variable of the sequence has a state 2": lambda: constraints.regular(
        [0, 1], [(0, 0, 0), (0, 2, 0)]
    ),
    "constraint 0 (regular): variable 9 does not exist, expected 0 to 1": lambda: constraints.regular([9], [(0, 0, 0)]),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_in_one_line(text: str) -> None:
    with pytest.raises(GraphError) as error:
        free(2).with_constraints([MISTAKES[text]()])
    assert str(error.value) == text


def test_unknown_names_are_told() -> None:
    with pytest.raises(UnknownName, match=r"^constraint 0 \(regular\): no variable of the sequence has a state 'off'$"):
        free(2).with_constraints([constraints.regular([0], [(0, "off", 0)])])
