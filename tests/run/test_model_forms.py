"""What remains of a model for labellings above a value: these keep their value, others never gain."""

from __future__ import annotations

import math

import numpy as np
import pytest

from constrained_recipes import random_constrained
from mapmrf.run.loop import relevant_part
from strategies import weighted


@pytest.mark.parametrize("with_weights", [False, True])
def test_labellings_above_the_value_keep_theirs(with_weights: bool) -> None:
    reduced = 0
    for seed in range(40):
        random, recipe = np.random.default_rng([seed, 7]), random_constrained(seed, n_vars=4)
        if with_weights:
            recipe.recipe = weighted(recipe.recipe, seed)
            assert recipe.recipe.weights is not None
            recipe.recipe.weights = [abs(weight) for weight in recipe.recipe.weights]
        recipe.recipe.tables = [table * 10.0 ** random.uniform(-2, 2) for table in recipe.recipe.tables]
        graph, values = recipe.graph(), [value for _, value in recipe.values() if value > -math.inf]
        known = sorted(values)[len(values) // 2] if values else 0.0
        part = relevant_part(graph, known)
        if part is None:
            continue
        reduced += 1
        for labels, value in recipe.values():
            if value >= known:
                assert part.value(labels) == graph.value(labels)
            assert part.value(labels) in (graph.value(labels), -math.inf)
    assert reduced >= 5


def test_negative_weights_leave_a_model_as_it_is() -> None:
    recipe = random_constrained(3, n_vars=4)
    recipe.recipe.weights = [-1.0] * len(recipe.recipe.tables)
    assert relevant_part(recipe.graph(), -1e9) is None
