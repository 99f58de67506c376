"""Constraints written as tables: the same values, and one continuation of every labelling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from constrained_recipes import random_constrained
from mapmrf import FactorGraph, UnsupportedModel, constraints
from mapmrf.constraints.as_tables import rewrite, without_constraints


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
    with pytest.raises(UnsupportedModel, match=r"constraint 0 \(linear\): its sum has more than 20000 values"):
        rewrite(stated)


def test_a_model_without_constraints_stays_itself() -> None:
    graph = FactorGraph.from_tables([2], [], [])
    assert without_constraints(graph) is graph
