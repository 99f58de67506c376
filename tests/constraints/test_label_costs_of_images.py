"""Label costs of images, which are tables with a variable for each label, and those of constraints: the same model."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf import constraints, images

PRICES = [0.5, 2.0, 1.25]


@pytest.mark.parametrize("seed", range(3))
def test_both_forms_have_the_same_values_and_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    unary = random.normal(size=(3, 3, 3))
    tables = images.grid_model(unary, weight=0.5, label_costs=PRICES)
    plain = images.grid_model(unary, weight=0.5)
    stated = plain.with_constraints([constraints.label_cost(k, price) for k, price in enumerate(PRICES)])
    for _ in range(50):
        labels = random.integers(0, 3, 9)
        used = np.bincount(labels, minlength=3) > 0
        assert tables.value(np.concatenate([labels, used])) == pytest.approx(stated.value(labels))
    found = mapmrf.solve(tables, "exhaustive")
    assert mapmrf.solve(stated, "exhaustive").value == pytest.approx(found.value)
    assert mapmrf.solve(stated, "branch", i_bound=2).value == pytest.approx(found.value)
