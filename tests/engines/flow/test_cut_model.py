"""Binary pairwise models as cuts: every kind of table, flips, and the reasons against."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from binary_models import submodular_recipes
from mapmrf import FactorGraph
from mapmrf.engines.flow import cut_model
from mapmrf.engines.flow.cut_model import CutModel, why_no_cut
from mapmrf.model.problem import Problem
from plain_python import plain_kernels
from strategies import Recipe, brute_force


def solved(graph: FactorGraph) -> CutModel:
    cut = CutModel(Problem.compile(graph))
    assert cut.flow.run()
    return cut


def assert_solved(graph: FactorGraph) -> None:
    """Bound and labelling meet at the optimum."""
    assert why_no_cut(Problem.compile(graph)) is None
    cut, optimum = solved(graph), brute_force(graph)[0]
    if optimum == -math.inf:
        assert cut.bound == -math.inf
    else:
        assert graph.value(cut.labels) == pytest.approx(optimum, rel=1e-12, abs=1e-12)
        assert cut.bound == pytest.approx(optimum, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("hard", list(itertools.product([False, True], repeat=4)))
@pytest.mark.parametrize("seed", range(4))
def test_a_single_pair_may_have_any_forbidden_entries(hard: tuple[bool, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    table = np.where(hard, -np.inf, random.normal(size=4)).reshape(2, 2)
    assert_solved(Recipe([2, 2], [(0,), (1,), (0, 1)], [*random.normal(size=(2, 2)), table]).graph())


@given(recipe=submodular_recipes())
def test_bound_and_labelling_meet_at_the_optimum(recipe: Recipe) -> None:
    assert_solved(recipe.graph())


def test_flips_are_found_that_make_a_ring_submodular() -> None:
    """Four variables in a ring, neighbours want to differ: possible, since the ring is even."""
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    recipe = Recipe([2] * 4, [(0,), *pairs], [np.array([0.0, 0.5]), *[np.array([[0.0, 1.0], [1.0, 0.0]])] * 4])
    cut = solved(recipe.graph())
    assert cut.labels.tolist() == [1, 0, 1, 0]
    assert cut.bound == 4.5
    assert cut.flip[0] == cut.flip[2] != cut.flip[1] == cut.flip[3]


def reason(recipe: Recipe) -> str | None:
    return why_no_cut(Problem.compile(recipe.graph()))


DIFFER = np.array([[0.0, 1.0], [1.0, 0.0]])


def test_the_factor_is_named_by_its_number_in_the_graph() -> None:
    """Compiling puts tables with -inf last."""
    equal = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    found = reason(Recipe([2] * 3, [(0, 1), (1, 2), (2, 0)], [equal, DIFFER, np.eye(2)]))
    assert found is not None and found.startswith("factor 0 on variables 0 and 1 is not submodular")


def test_a_variable_with_one_possible_state_frees_its_pairs() -> None:
    """An odd ring that wants to differ, one variable of which is fixed by its unary potential, or has one state."""
    ring = [(0, 1), (1, 2), (2, 0)]
    assert_solved(Recipe([2] * 3, [*ring, (1,)], [DIFFER] * 3 + [np.array([-np.inf, 0.3])]).graph())
    assert_solved(Recipe([2, 1, 2], ring, [DIFFER[:, :1], DIFFER[:1], DIFFER]).graph())


def test_couplings_of_the_size_of_round_off_count_as_none() -> None:
    """Sums of unary potentials, which are not submodular to the last bit."""
    random = np.random.default_rng(0)
    n = 8
    pairs = list(itertools.combinations(range(n), 2))
    tables = [random.normal(size=2)[:, None] + random.normal(size=2) for _ in pairs]
    couplings = [t[0, 0] + t[1, 1] - t[0, 1] - t[1, 0] for t in tables]
    assert min(couplings) < 0 < max(couplings)
    assert_solved(Recipe([2] * n, pairs, tables).graph())


@given(recipe=submodular_recipes(), seed=st.integers(0, 1000))
def test_weights_are_those_of_the_expanded_model(recipe: Recipe, seed: int) -> None:
    weight = 2.0 * np.random.default_rng(seed).random(len(recipe.scopes)) + 0.01
    graph = FactorGraph.from_tables(recipe.card, recipe.scopes, recipe.tables, weight=weight)
    assert_solved(graph)
    assert solved(graph).labels.tolist() == solved(graph.expanded()).labels.tolist()


def test_a_negative_weight_turns_what_a_pair_favours() -> None:
    """One table for pairs that want to be equal and pairs that want to differ."""
    edges, weight = [(0, 1), (1, 2), (2, 3), (3, 0)], [1.0, -2.0, 0.5, -0.7]
    unary = np.random.default_rng(0).normal(size=(4, 2))
    graph = FactorGraph.from_pairwise(unary, edges, np.eye(2), weight=weight)
    assert_solved(graph)
    assert solved(graph).flip.any()


@st.composite
def plain_graphs(draw: st.DrawFn) -> FactorGraph:
    """Finite pairs that favour equal states: shared tables, and weights of either sign, some of them 0."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n = draw(st.integers(2, 7))
    pairs = [pair for pair in itertools.combinations(range(n), 2) if random.random() < 0.6]
    tables = []
    for _ in range(3):
        table = np.add.outer(*random.normal(size=(2, 2))) + random.choice([0.0, 1.0]) * random.random() * np.eye(2)
        tables.append((table, -table))
    scopes: list[tuple[int, ...]] = [(i,) for i in range(n)]
    used: list[np.ndarray] = list(random.normal(size=(n, 2)))
    weight = [1.0] * n
    for pair in pairs:
        sign = random.choice([1, -1])
        scopes.append(pair if random.random() < 0.5 else pair[::-1])
        used.append(tables[random.integers(3)][0 if sign > 0 else 1])
        weight.append(float(sign * random.choice([0.0, random.random()])))
    return FactorGraph.from_tables([2] * n, scopes, used, weight=weight)


@given(graph=plain_graphs(), recipe=submodular_recipes())
def test_the_kernels_run_as_plain_python(graph: FactorGraph, recipe: Recipe) -> None:
    with plain_kernels(cut_model):
        assert_solved(graph)
        assert_solved(recipe.graph())


@given(graph=plain_graphs())
def test_pairs_that_favour_equal_states_are_split_once_for_every_table(graph: FactorGraph) -> None:
    assert_solved(graph)
    assert not solved(graph).flip.any()


@given(graph=plain_graphs())
def test_a_split_model_is_the_model_that_is_laid_out_pair_by_pair(graph: FactorGraph) -> None:
    by_tables = CutModel(Problem.compile(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_model, "table_parts", lambda problem: None)
        by_pairs = CutModel(Problem.compile(graph))
    for cut in (by_tables, by_pairs):
        assert cut.flow.run()
    assert by_tables.constant == pytest.approx(by_pairs.constant, rel=1e-12, abs=1e-12)
    assert by_tables.bound == pytest.approx(by_pairs.bound, rel=1e-12, abs=1e-12)
