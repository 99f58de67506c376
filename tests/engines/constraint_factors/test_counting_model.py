"""Counting factors stand for the constraints of a graph: same value of every labelling."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from constrained_recipes import KINDS, ConstrainedRecipe, random_constraint
from mapmrf import FactorGraph, constraints
from mapmrf.engines.constraint_factors.marginal_kernels import GroupScores, best_value
from mapmrf.engines.constraint_factors.model import CountingModel
from mapmrf.engines.constraint_factors.rounding import LegalRounding
from plain_python import plain
from strategies import random_recipe

NONE = np.zeros(0, dtype=np.int64)


def counted_value(model: CountingModel, labels: tuple[int, ...]) -> float:
    """The value of a labelling under the factors: the best value with all other items and choices forbidden."""
    factors = model.factors
    is_on = np.array(labels, dtype=np.int64)[model.var] == model.state
    on = np.where(is_on, 0.0, -np.inf)
    any_on = np.logical_or.reduceat(is_on, factors.item_ptr[:-1]) if model.n_items else np.zeros(0, dtype=bool)
    scores = GroupScores(on, np.where(any_on, -np.inf, 0.0))
    return model.constant + sum(plain(best_value)(f, factors, scores) for f in range(model.n_factors))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("soft", [False, True])
def test_factors_have_the_value_of_the_constraint(kind: str, soft: bool) -> None:
    for seed in range(25):
        random = np.random.default_rng([seed, KINDS.index(kind)])
        recipe = random_recipe(seed, 4, 0, hard=0.3 * (seed % 2), max_card=3, max_arity=2)
        stated = ConstrainedRecipe(recipe, [random_constraint(random, recipe.card, kind, soft)])
        graph = stated.graph()
        assert graph.constraints is not None
        model = CountingModel.of(graph, NONE)
        for labels in itertools.product(*(range(r) for r in recipe.card)):
            if np.isneginf(graph.theta_v[graph.var_ptr[:-1] + np.array(labels)]).any():
                continue  # such states are left out
            truth, found = graph.constraints.value(np.array(labels)), counted_value(model, labels)
            if kind == "all_different" and soft:
                assert found >= truth - 1e-9
            else:
                assert found == pytest.approx(truth)


def test_simplexes_leave_out_forbidden_states() -> None:
    graph = FactorGraph.from_tables([3, 2], [(0,)], [[0.0, -math.inf, 1.0]])
    model = CountingModel.of(graph, np.array([0]))
    assert model.state.tolist() == [0, 2] and model.factors.complete.tolist() == [True]


def test_rounding_keeps_hard_constraints() -> None:
    found = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        card = [3] * 5
        stated = [random_constraint(random, card, KINDS[k], soft=False) for k in random.permutation(len(KINDS))[:3]]
        graph = FactorGraph.from_tables(card, [], []).with_constraints(stated)
        feasible = any(graph.value(labels) == 0 for labels in itertools.product(range(3), repeat=5))
        model = CountingModel.of(graph, NONE)
        if not feasible or model.constant == -math.inf:
            continue
        labels = LegalRounding(graph, model).round(random.random(15))
        if labels is not None:
            found += 1
            assert graph.value(labels) > -math.inf
    assert found >= 20


def test_rounding_prefers_what_it_is_told() -> None:
    graph = FactorGraph.from_tables([2] * 4, [], []).with_constraints([constraints.exactly_k(range(4), 2)])
    rounding = LegalRounding(graph, CountingModel.of(graph, NONE))
    labels = rounding.round(np.array([0.1, 0.9, 0.4, 0.6, 0.2, 0.8, 0.3, 0.7]))
    assert labels is not None and labels.tolist() == [1, 0, 1, 0]
