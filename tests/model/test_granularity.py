"""Steps of values: bounds are rounded down to what a labelling can be worth, and never below."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from strategies import brute_force


def integers(n: int, seed: int, step: float, offset: float = 0.0) -> FactorGraph:
    random = np.random.default_rng(seed)
    pairs = list(itertools.combinations(range(n), 2))
    tables = step * random.integers(-5, 6, size=(len(pairs), 2, 2))
    graph = FactorGraph.from_pairwise(step * random.integers(-3, 4, size=(n, 2)), pairs, tables)
    return FactorGraph.from_tables(
        graph.card,
        [(), *((i,) for i in range(n)), *pairs],
        [np.array(offset), *graph.theta_v.reshape(-1, 2), *tables],
    )


@given(seed=st.integers(0, 10**6), step=st.sampled_from([1.0, 2.0, 0.5, 0.1, 0.25]), above=st.floats(0.0, 3.0))
def test_no_value_is_between_a_bound_and_the_rounded_one(seed: int, step: float, above: float) -> None:
    graph = integers(5, seed, step, 0.123)
    grain, optimum = graph.granularity, brute_force(graph)[0]
    assert grain.step >= step * (1 - 1e-12)
    rounded = grain.down(optimum + above)
    assert optimum - 1e-9 <= rounded <= optimum + above + 1e-12
    if above < 0.9 * grain.step:
        assert rounded == pytest.approx(optimum, abs=1e-9)


def test_other_potentials_have_no_step() -> None:
    random = np.random.default_rng(0)
    graph = FactorGraph.from_pairwise(random.normal(size=(3, 2)), [(0, 1)], random.normal(size=(2, 2)))
    grain = graph.granularity
    assert grain.step == 0 and grain.slack == 0 and grain.down(1.25) == 1.25


@pytest.mark.parametrize("seed", range(5))
def test_cuts_is_exact_on_whole_numbers(seed: int) -> None:
    graph = integers(9, seed, 1.0)
    result = mapmrf.solve(graph, "cuts", solver="highs", local_search=0, persistency=False)
    optimum = brute_force(graph)[0]
    assert result.status.closes_gap and result.value == pytest.approx(optimum, abs=1e-9)
    assert result.bound is not None and optimum - 1e-9 <= result.bound <= optimum + 1e-6
