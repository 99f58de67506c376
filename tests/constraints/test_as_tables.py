"""Constraints written as tables: the same values, and one continuation of every labelling."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

import mapmrf
from constrained_recipes import random_constrained
from mapmrf import FactorGraph, UnsupportedModel, constraints
from mapmrf.constraints import Constraint, as_tables
from mapmrf.constraints import as_tables as rewriting
from mapmrf.constraints.as_tables import rewrite, without_constraints
from refusals import refuses


@pytest.mark.parametrize("seed", range(80))
def test_lifted_labels_have_the_value_of_the_original(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=1 + seed % 4, n_constraints=1 + seed % 3)
    graph = recipe.graph()
    rewriting = rewrite(graph)
    assert rewriting.graph.constraints is None
    for labels, value in recipe.values():
        lifted = rewriting.lift(np.array(labels))
        assert rewriting.graph.value(lifted) == pytest.approx(value)
        assert rewriting.project(lifted).tolist() == list(labels)


@pytest.mark.parametrize("seed", range(25))
def test_no_other_continuation_is_allowed(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=3, n_constraints=1)
    rewriting = rewrite(recipe.graph())
    extra = rewriting.graph.card[rewriting.original.n_vars :].tolist()
    if math.prod(extra) > 3000:
        pytest.skip("too many continuations to list")
    for labels, value in recipe.values():
        rest = itertools.product(*(range(r) for r in extra))
        finite = [found for more in rest if (found := rewriting.graph.value([*labels, *more])) > -math.inf]
        assert finite == ([] if value == -math.inf else [pytest.approx(value)])


def test_counters_hold_no_more_than_they_need() -> None:
    graph = FactorGraph.from_tables([2] * 300, [], []).with_constraints([constraints.at_most_k(range(300), 12)])
    found = rewrite(graph).graph
    assert found.n_vars == 300 + 298
    assert found.card.max() == 13
    assert found.n_tables <= 30


def test_pairs_of_several_all_different_are_written_once() -> None:
    graph = FactorGraph.from_tables([4] * 4, [], [])
    found = rewrite(
        graph.with_constraints([constraints.all_different([0, 1, 2]), constraints.all_different([3, 2, 1])])
    )
    assert (found.graph.n_vars, found.graph.n_factors, found.graph.n_tables) == (4, 5, 1)


def test_more_variables_than_states_cannot_all_differ() -> None:
    graph = FactorGraph.from_tables([3] * 4, [], []).with_constraints([constraints.all_different(range(4))])
    assert rewrite(graph).graph.constant == -math.inf


def test_sums_of_too_many_values_are_refused() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_tables([2] * 40, [], [])
    stated = graph.with_constraints([constraints.linear(range(40), random.random(40), upper=10.0)])
    refuses(UnsupportedModel, r"constraint 0 \(linear\): its sum has more than 20000 values", rewrite, stated)


def test_a_model_without_constraints_stays_itself() -> None:
    graph = FactorGraph.from_tables([2], [], [])
    assert without_constraints(graph) is graph


# -- constraints on the same two variables ----------------------------------------------------------------------------


def some_constraint(rng: random.Random, card: tuple[int, int]) -> Constraint:
    named = [(i, k) for i in (0, 1) for k in range(card[i]) if rng.random() < 0.5] or [(0, 0)]
    weights = [rng.choice((-2.0, -1.0, 1.0, 0.5)) for _ in named]
    lower = rng.choice((-1.0, 0.0, 1.0))
    upper = lower + rng.choice((0.0, 1.0))
    return constraints.linear(named, weights, lower=lower, upper=upper, penalty=rng.choice((1.5, 4.0, None)))


def test_a_table_has_the_value_of_all_constraints_of_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(2)
    for few in (-1, 2):
        monkeypatch.setattr(as_tables, "FEW_ON_A_PAIR", few)
        for _ in range(60):
            card = rng.randrange(2, 5), rng.randrange(2, 5)
            stated = [some_constraint(rng, card) for _ in range(rng.randrange(1, 7))]
            graph = FactorGraph.from_tables([*card, 2], [(1, 2)], [np.eye(card[1], 2)]).with_constraints(stated)
            found = rewrite(graph)
            for labels in itertools.product(*map(range, graph.card.tolist())):
                lifted = found.lift(np.array(labels))
                assert found.graph.value(lifted) == pytest.approx(graph.value(labels), abs=1e-9)


def test_many_constraints_on_a_pair_take_no_auxiliary_variables() -> None:
    graph = FactorGraph.from_tables([40, 40], [], [])
    graph = graph.with_constraints([constraints.at_most_one([(0, k), (1, k)], penalty=1.0) for k in range(40)])
    assert rewrite(graph).graph.n_vars == 2


@pytest.mark.parametrize("penalty", [2.0, None])
def test_two_different_variables_are_one_table(penalty: float | None) -> None:
    graph = FactorGraph.from_tables([3, 4], [], []).with_constraints([constraints.all_different([0, 1], penalty)])
    found = rewrite(graph).graph
    assert found.n_vars == 2
    for labels in itertools.product(range(3), range(4)):
        assert found.value(labels) == graph.value(labels)


def wide(*stated: Constraint) -> FactorGraph:
    return FactorGraph.from_tables([16384, 16384], [], []).with_constraints(stated)


@pytest.mark.parametrize(
    "stated",
    [
        lambda: [constraints.all_different([0, 1])],
        lambda: [constraints.all_different([0, 1], penalty=2.0)],
        lambda: [constraints.linear([(i, k) for i in (0, 1) for k in range(2**14)], [*range(2**14)] * 2, upper=9000)],
        lambda: [constraints.at_most_one([(0, k), (1, k)], penalty=1.0) for k in range(8000)],
    ],
)
def test_tables_that_are_too_large_are_refused_before_they_are_made(stated, monkeypatch) -> None:
    graph = wide(*stated())
    monkeypatch.setattr(rewriting._Rewriter, "add_table", lambda *_: pytest.fail("a table was made"))
    refuses(UnsupportedModel, "more than 67108864", rewrite, graph)


def test_a_repeated_state_of_many_variables_is_not_counted_with_too_many_states() -> None:
    graph = FactorGraph.from_tables([8000] * 3, [], [])
    graph = graph.with_constraints([constraints.all_different(range(3), penalty=1.0)])
    refuses(UnsupportedModel, r"constraint 0 \(all_different\): more than 67108864 ways to count", rewrite, graph)


def test_methods_with_a_number_for_every_state_of_a_constraint_say_what_does_not_fit() -> None:
    graph = wide(*(constraints.at_most_one([(0, k), (1, k)], penalty=1.0) for k in range(8000)))
    with pytest.raises(UnsupportedModel, match="the variables of its 8000 constraints have 262144000 states"):
        mapmrf.solve(graph, "wcsp")
