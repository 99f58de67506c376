"""Models in spins: tabu search, semidefinite bounds that hold at any vectors and multipliers, proofs by branching."""

from __future__ import annotations

import itertools
from collections.abc import Generator
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from binary_models import binary_graphs, complete
from mapmrf import FactorGraph
from mapmrf.arrays import blank
from mapmrf.engines.spins import triangles
from mapmrf.engines.spins.relaxation import (
    TightRelaxation,
    certified_bound,
    factorise,
    random_vectors,
    smallest_eigenvalue,
)
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
from mapmrf.engines.spins.tree import PlainBound, SpinNode, SpinTree
from mapmrf.engines.spins.triangles import TriangleSet, most_violated, set_slack
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


# -- semidefinite bounds ----------------------------------------------------------------------------------------------


T = TypeVar("T")


def symmetric(n: int, seed: int, scale: float = 1.0) -> np.ndarray:
    half = np.triu(scale * np.random.default_rng(seed).normal(size=(n, n)), 1)
    return half + half.T


def finish(steps: Generator[None, None, T]) -> T:
    """Take all steps of a computation; returns its result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def optimum(matrix: np.ndarray) -> float:
    spins = np.array(list(itertools.product([-1.0, 1.0], repeat=len(matrix))))
    return float(0.5 * np.einsum("ti,ij,tj->t", spins, matrix, spins).max())


# -- certificates -----------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 10), seed=st.integers(0, 10**6), y=st.floats(-3, 3), scale=st.sampled_from([1e-9, 1.0, 1e9]))
def test_a_certified_bound_holds_for_any_diagonal(n: int, seed: int, y: float, scale: float) -> None:
    matrix = symmetric(n, seed, scale)
    diagonal = scale * (y + np.random.default_rng(seed).normal(size=n))
    assert certified_bound(matrix, diagonal) >= optimum(matrix)


@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 100, 150])
def test_factors_and_eigenvalues_are_those_of_lapack(n: int) -> None:
    matrix = symmetric(n, 0)
    diagonal = np.random.default_rng(1).random(n)
    least = np.linalg.eigvalsh(np.diag(diagonal) - matrix)[0]
    found = smallest_eigenvalue(matrix, diagonal)
    assert least - 0.05 * abs(least) <= found <= least + 1e-3 * abs(least)
    gap = np.diag(diagonal - least + 0.01) - matrix
    factor = gap.copy()
    assert factorise(factor, 0, n)
    assert np.triu(factor) == pytest.approx(np.linalg.cholesky(gap).T)
    assert not factorise(np.diag(diagonal - least - 0.01) - matrix, 0, n)


def test_factors_in_steps_are_those_at_once() -> None:
    gap = np.eye(100) * 30 - symmetric(100, 3)
    once, steps = gap.copy(), gap.copy()
    assert factorise(once, 0, 4)
    for first in (0, 32, 64, 96):
        assert factorise(steps, first, 1)
    assert np.array_equal(np.triu(once), np.triu(steps))


# -- triangle inequalities --------------------------------------------------------------------------------------------


def all_triangles(n: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [(*corners, kind) for corners in itertools.combinations(range(n), 3) for kind in range(4)]
    table = np.array(rows, dtype=np.int64)
    return table[:, :3].copy(), table[:, 3].copy()


def slack_at(corners: np.ndarray, kind: np.ndarray, gram: np.ndarray) -> np.ndarray:
    slack = np.zeros(len(kind))
    set_slack(corners, kind, gram, slack)
    return slack


def test_inequalities_hold_for_spins_and_some_are_tight() -> None:
    for spin in itertools.product([-1.0, 1.0], repeat=3):
        slack = slack_at(*all_triangles(3), np.outer(spin, spin))
        assert sorted(slack) == [0.0, 0.0, 0.0, 4.0]


@pytest.mark.parametrize("most", [3, 50, 10000])
@pytest.mark.parametrize("step", [1, 10**7])
def test_the_most_violated_are_found(most: int, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triangles, "STEP_TRIPLES", step)
    vectors = random_vectors(12, 5)[:, :3].copy()
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    gram = vectors @ vectors.T
    every = slack_at(*all_triangles(12), gram)
    wanted = np.sort(every[every < -0.02])[:most]
    found = finish(most_violated(gram, most))
    assert np.sort(slack_at(*found, gram)) == pytest.approx(wanted)


@given(i=st.integers(0, 5), j=st.integers(0, 5), sign=st.sampled_from([-1.0, 1.0]), seed=st.integers(0, 10**6))
def test_merged_inequalities_are_those_of_merged_spins(i: int, j: int, sign: float, seed: int) -> None:
    if i == j:
        return
    random = np.random.default_rng(seed)
    cuts = TriangleSet(*all_triangles(6), random.random(80))
    gram = symmetric(5, seed)
    np.fill_diagonal(gram, 1.0)
    of = np.arange(6)
    of[of > j] -= 1
    of[j] = i - (i > j)
    signs = np.ones(6)
    signs[j] = sign
    merged = cuts.merged(i, j, sign, 6)
    whole = gram[np.ix_(of, of)] * np.outer(signs, signs)
    both = (cuts.corners == i).any(axis=1) & (cuts.corners == j).any(axis=1)
    expected = (cuts.multiplier * slack_at(cuts.corners, cuts.kind, whole))[~both].sum()
    found = (merged.multiplier * slack_at(merged.corners, merged.kind, gram)).sum()
    assert found == pytest.approx(expected)


# -- relaxations ------------------------------------------------------------------------------------------------------


@given(n=st.integers(3, 10), seed=st.integers(0, 10**6))
@settings(max_examples=20)
def test_bounds_hold_at_every_step(n: int, seed: int) -> None:
    matrix = symmetric(n, seed)
    best = optimum(matrix)
    relaxation = TightRelaxation(matrix, random_vectors(n, seed), TriangleSet.empty())
    finish(relaxation.ascend(2))
    for _ in range(5):
        assert finish(relaxation.bound()) >= best
        finish(relaxation.separate())
        finish(relaxation.tighten(20))
    assert finish(relaxation.bound()) >= best


def test_without_inequalities_it_is_the_semidefinite_bound() -> None:
    """The pentagon: 5 (5 + sqrt(5)) / 8 edges can be cut by vectors (Goemans and Williamson)."""
    matrix = np.zeros((5, 5))
    for i in range(5):
        matrix[i, (i + 1) % 5] = matrix[(i + 1) % 5, i] = -0.5
    relaxation = TightRelaxation(matrix, random_vectors(5, 0), TriangleSet.empty())
    finish(relaxation.ascend(500))
    assert finish(relaxation.bound()) + 2.5 == pytest.approx(5 * (5 + np.sqrt(5)) / 8, rel=1e-6)
    bounds = []
    for _ in range(20):
        finish(relaxation.separate())
        finish(relaxation.tighten(100))
        bounds.append(finish(relaxation.bound()) + 2.5)
    assert 4.0 <= min(bounds) <= 4.02


def test_the_plain_bound_is_that_of_the_dense_one() -> None:
    model = CoupledSpins.of(Problem.compile(complete(30, seed=3)))
    search = SpinSearch(model, 0, 1, 1)
    plain = PlainBound(model, search, 0)
    for _ in plain.run():
        pass
    dense = TightRelaxation(model.matrix(), random_vectors(model.n, 1), TriangleSet.empty())
    finish(dense.ascend(2000))
    assert plain.bound == pytest.approx(finish(dense.bound()), rel=1e-4)
    assert plain.bound >= search.value


# -- branch and bound -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize(("i", "j"), [(0, 3), (4, 1), (5, 0), (2, 5)])
def test_a_child_is_the_model_with_two_spins_tied(i: int, j: int, sign: float) -> None:
    matrix = symmetric(6, 7)
    root = SpinNode(np.arange(6), np.ones(6), random_vectors(6, 0), TriangleSet.empty(), np.inf)
    child = root.child(i, j, sign).child(0, 2, -1.0)
    merged, constant = child.couplings(matrix)
    assert merged.shape == (4, 4) and np.array_equal(merged, merged.T)
    for few in np.array(list(itertools.product([-1.0, 1.0], repeat=4))):
        spin = child.sign * few[child.of]
        assert spin[j] == sign * spin[i]
        assert 0.5 * few @ merged @ few + constant == pytest.approx(0.5 * spin @ matrix @ spin)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("whole", [True, False])
def test_trees_close_at_the_optimum(seed: int, whole: bool) -> None:
    """Of models that a relaxation with few sweeps does not close, so that they are branched."""
    graph = complete(15, seed=seed)
    if whole:
        graph = type(graph).from_pairwise(np.round(graph.theta_v.reshape(-1, 2) * 3), graph.scope.reshape(-1, 2),
                                          np.round(graph.theta_t.reshape(-1, 2, 2) * 3))  # fmt: skip
    model = CoupledSpins.of(Problem.compile(graph))
    tree = SpinTree(model, SpinSearch(model, seed, 1, 1), seed, 100)
    bounds = []
    for _ in tree.run():
        bounds.append(tree.bound)
    assert tree.closed
    assert bounds == sorted(bounds, reverse=True)
    assert tree.search.value == pytest.approx(optimum(model.matrix()))
    assert tree.bound >= optimum(model.matrix()) - 1e-9
    assert tree.bound == pytest.approx(tree.search.value)


def test_models_with_too_many_spins_are_not_branched() -> None:
    model = CoupledSpins.of(Problem.compile(complete(20, seed=1)))
    tree = SpinTree(model, SpinSearch(model, 0, 1, 1), 0, 5)
    for _ in tree.run():
        pass
    assert tree.n_nodes == 1
    assert tree.bound >= tree.search.value
