"""Models in spins, and tabu search over them: gains stay true, paths lead where they should, optima are found."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from binary_models import binary_graphs, complete
from mapmrf import FactorGraph
from mapmrf.arrays import blank
from mapmrf.engines.spins.search import (
    CoupledSpins,
    SpinSearch,
    TabuState,
    TabuTally,
    best_cut,
    disturb_angles,
    relink,
    run_tabu,
    set_gains,
    turn_vectors,
)
from mapmrf.kernels.random_numbers import seeded
from mapmrf.model.problem import Problem
from strategies import all_values


def model_of(graph: FactorGraph) -> CoupledSpins:
    return CoupledSpins.of(Problem.compile(graph))


def state_of(model: CoupledSpins, spin: np.ndarray, seed: int = 0) -> TabuState:
    gain = np.zeros(model.n)
    tally = blank(TabuTally)
    tally.value = tally.best = set_gains(model.couplings, spin, gain)
    return TabuState(spin.copy(), gain, np.zeros(model.n, dtype=np.int64), spin.copy(), tally, seeded(seed))


def test_value_and_gains_stay_true() -> None:
    model = model_of(complete(12))
    state = state_of(model, np.ones(model.n))
    assert run_tabu(model.couplings, state, model.n_vars, 3, 40, 1000) == 40
    gain = np.zeros(model.n)
    assert set_gains(model.couplings, state.spin, gain) == pytest.approx(state.tally.value)
    assert state.gain[: model.n_vars] == pytest.approx(gain[: model.n_vars])
    assert set_gains(model.couplings, state.best, gain) == pytest.approx(state.tally.best)
    assert state.spin[-1] == 1.0, "the spin of the fields is never flipped"


def test_a_spin_that_was_flipped_stays() -> None:
    model = model_of(complete(10, seed=2))
    state = state_of(model, np.ones(model.n))
    for _ in range(30):
        spin, best = state.spin.copy(), state.tally.best
        before = state.until.copy()
        run_tabu(model.couplings, state, model.n_vars, 4, 1, 10**6)
        (flipped,) = np.flatnonzero(spin != state.spin)
        assert before[flipped] <= state.tally.clock or state.tally.best > best


def test_the_search_ends_when_flips_bring_nothing() -> None:
    model = model_of(complete(8))
    state = state_of(model, np.ones(model.n))
    flips = run_tabu(model.couplings, state, model.n_vars, 2, 10**6, 50)
    assert flips < 10**6 and state.tally.idle == 50


def test_a_path_stops_at_its_best_place() -> None:
    model = model_of(complete(14, seed=1))
    random = np.random.default_rng(0)
    one, other = (np.append(random.choice([-1.0, 1.0], 14), 1.0) for _ in range(2))
    distance = int((one != other).sum())
    state = state_of(model, one)
    start = float(state.tally.value)
    gained = relink(model.couplings, state, other, 2, distance - 1)
    away = int((state.best != one).sum())
    assert 2 <= away <= distance - 1
    assert (state.best[one == other] == one[one == other]).all()
    assert start + gained == pytest.approx(set_gains(model.couplings, state.best, np.zeros(model.n)))


def test_the_best_cut_through_the_circle() -> None:
    model = model_of(complete(9, seed=4))
    vectors = np.zeros((model.n, 2))
    disturb_angles(np.ones(model.n), 1.0, vectors, seeded(3))
    assert np.allclose((vectors**2).sum(axis=1), 1.0)
    turn_vectors(model.couplings, vectors, 5, 0.0)
    angles = np.linspace(0, np.pi, 20001)
    values = set()
    for angle in angles:
        side = vectors @ [-np.sin(angle), np.cos(angle)]
        values.add(round(set_gains(model.couplings, np.where(side > 0, 1.0, -1.0), np.zeros(model.n)), 9))
    spin, gain = np.where(vectors[:, 1] > 0, 1.0, -1.0), np.zeros(model.n)
    first = set_gains(model.couplings, spin, gain)
    gained = best_cut(model.couplings, vectors, spin, gain)
    assert first + gained == pytest.approx(max(values))
    assert set_gains(model.couplings, spin, np.zeros(model.n)) == pytest.approx(max(values))


def test_good_labellings_are_kept_once_and_the_worst_goes() -> None:
    model = model_of(complete(8))
    search = SpinSearch(model, 0, 2, 5)
    for labels in ([0] * 8, [0] * 8, [1] * 8, [0, 1] * 4):
        search.learn(np.array(labels))
    assert len(search.elite) == 2
    values = sorted((complete(8).value(x) for x in ([0] * 8, [1] * 8, [0, 1] * 4)), reverse=True)
    assert sorted(search.values, reverse=True) == pytest.approx([v - model.constant for v in values[:2]])


# -- binary pairwise models in spins ----------------------------------------------------------------------------------


@given(graph=binary_graphs())
def test_spins_are_worth_what_labels_are(graph: FactorGraph) -> None:
    model = model_of(graph)
    gain = np.zeros(model.n)
    values = all_values(graph)
    for labels in itertools.product(range(2), repeat=graph.n_vars):
        spin = model.spins(np.array(labels))
        value = set_gains(model.couplings, spin, gain) + model.constant
        assert value == pytest.approx(values[labels], abs=1e-9)
        assert model.labels(spin).tolist() == list(labels)
        assert model.labels(-spin).tolist() == ([1 - x for x in labels] if not model.has_fields else list(labels))
        for i in range(graph.n_vars):
            flipped = tuple(x ^ (k == i) for k, x in enumerate(labels))
            assert value + gain[i] == pytest.approx(values[flipped], abs=1e-9)


def test_only_fields_need_one_more_spin() -> None:
    cut = FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, 1.0, 1.0, 0.0]])
    assert model_of(cut).n == 2
    assert model_of(FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, 1.0, 2.0, 0.0]])).n == 3
    assert np.array_equal(model_of(cut).matrix(), [[0.0, -0.5], [-0.5, 0.0]])


def test_a_forbidden_entry_is_worse_than_anything_else() -> None:
    tables = [[0.0, 0.0, 0.0, -np.inf], [0.0, -5.0, -5.0, 0.0], [0.0, 7.0]]
    graph = FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0,)], tables)
    model = model_of(graph)
    values = {
        labels: set_gains(model.couplings, model.spins(np.array(labels)), np.zeros(model.n)) + model.constant
        for labels in itertools.product(range(2), repeat=3)
    }
    feasible = [labels for labels in values if graph.value(labels) > -np.inf]
    assert all(values[labels] == pytest.approx(graph.value(labels)) for labels in feasible)
    assert max(values[x] for x in values if x not in feasible) < min(values[x] for x in feasible)


@pytest.mark.parametrize(
    ("weights", "unit"), [([1, 2, 3], 1.0), ([4, 6, -8], 2.0), ([0.25, 0.5, 1.0], 0.25), ([1.0, np.pi, 2.0], 0.0)]
)
def test_the_unit_of_values(weights: list[float], unit: float) -> None:
    cut = [[0.0, 1.0], [1.0, 0.0]]
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [(0, 1), (1, 2), (0, 2)], cut, weight=weights)
    assert model_of(graph).unit() == pytest.approx(unit)
