"""Binary pairwise models as cuts: every kind of table, flips, the reasons against, and roof duality."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from binary_models import binary_graphs, spins, submodular_recipes
from mapmrf import FactorGraph
from mapmrf.engines.flow import cut_model
from mapmrf.engines.flow.cut_model import (
    UNDECIDED,
    CutModel,
    Improvement,
    RoofDual,
    binary_pairs,
    persistent_states,
    why_no_cut,
)
from mapmrf.model.problem import Problem
from pairwise_models import DIFFER
from strategies import Recipe, brute_force, labellings, with_weights


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


def test_flips_are_found_that_make_a_ring_submodular() -> None:
    """Four variables in a ring, neighbours want to differ: possible, since the ring is even."""
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0)]
    recipe = Recipe([2] * 4, [(0,), *pairs], [np.array([0.0, 0.5]), *[DIFFER] * 4])
    cut = solved(recipe.graph())
    assert cut.labels.tolist() == [1, 0, 1, 0]
    assert cut.bound == 4.5
    assert cut.flip[0] == cut.flip[2] != cut.flip[1] == cut.flip[3]


def reason(recipe: Recipe) -> str | None:
    return why_no_cut(Problem.compile(recipe.graph()))


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
def test_bound_and_labelling_meet_at_the_optimum_with_and_without_weights(recipe: Recipe, seed: int) -> None:
    assert_solved(recipe.graph())
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


@given(graph=plain_graphs())
def test_pairs_that_favour_equal_states_are_split_once_for_every_table_as_if_pair_by_pair(graph: FactorGraph) -> None:
    assert_solved(graph)
    assert not solved(graph).flip.any()
    by_tables = CutModel(Problem.compile(graph))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cut_model, "table_parts", lambda problem: None)
        by_pairs = CutModel(Problem.compile(graph))
    for cut in (by_tables, by_pairs):
        assert cut.flow.run()
    assert by_tables.constant == pytest.approx(by_pairs.constant, rel=1e-12, abs=1e-12)
    assert by_tables.bound == pytest.approx(by_pairs.bound, rel=1e-12, abs=1e-12)


# -- roof duality -----------------------------------------------------------------------------------------------------


@st.composite
def frustrated_recipes(draw: st.DrawFn) -> Recipe:
    """Small binary models: whole numbers, which tie, or not; some entries forbidden; some variables of one state."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, hard, whole = draw(st.integers(2, 8)), draw(st.sampled_from([0.0, 0.0, 0.1, 0.3])), draw(st.booleans())
    recipe = Recipe([2 if random.random() < 0.9 else 1 for _ in range(n)], [()], [np.array(random.normal())])

    def potentials(*shape: int) -> np.ndarray:
        return random.integers(-2, 3, shape).astype(float) if whole else random.normal(size=shape)

    for i in range(n):
        unary = potentials(recipe.card[i]) * draw(st.sampled_from([0.0, 0.3, 2.0]))
        recipe.add((i,), np.where(random.random(len(unary)) < hard / 3, -np.inf, unary))
    for i, j in itertools.permutations(range(n), 2):
        if random.random() < 0.3:
            table = np.where(random.random((2, 2)) < hard, -np.inf, potentials(2, 2))
            recipe.add((i, j), table[: recipe.card[i], : recipe.card[j]].copy())
    return recipe


def roof_of(graph: FactorGraph) -> RoofDual:
    """The dual with two nodes per variable, even where a cut would do."""
    roof = RoofDual(binary_pairs(Problem.compile(graph)), graph.constant)
    assert roof.flow.run()
    return roof


@given(recipe=with_weights(frustrated_recipes()))
def test_some_optimum_has_all_persistent_states_and_none_is_above_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum = brute_force(graph)[0]
    states, bound = persistent_states(Problem.compile(graph))
    assert bound >= optimum - 1e-9
    assert np.all((states >= UNDECIDED) & (states < graph.card))
    if optimum > -math.inf:
        left = [x for x in labellings(graph) if np.all((states == UNDECIDED) | (x == states))]
        assert max(graph.value(x) for x in left) == pytest.approx(optimum, rel=1e-9, abs=1e-9)


@given(recipe=frustrated_recipes())
@settings(max_examples=30)
def test_persistent_states_make_no_labelling_worse(recipe: Recipe) -> None:
    graph = recipe.graph()
    states = roof_of(graph).states
    for labels in labellings(graph):
        fixed = np.where(states == UNDECIDED, labels, states)
        assert graph.value(fixed) >= graph.value(labels) - 1e-9


@given(graph=binary_graphs())
@settings(max_examples=25)
def test_the_bound_is_that_of_the_local_polytope(graph: FactorGraph) -> None:
    relaxed = mapmrf.solve(graph, "lp").relaxed_value
    assert roof_of(graph).bound == pytest.approx(relaxed, rel=1e-6, abs=1e-6)


@given(recipe=submodular_recipes())
def test_all_variables_of_a_model_that_is_a_cut_are_fixed_at_the_optimum(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum = brute_force(graph)[0]
    states, bound = persistent_states(Problem.compile(graph))
    if optimum > -math.inf:
        assert graph.value(states) == pytest.approx(optimum, rel=1e-12, abs=1e-12)
    assert bound == pytest.approx(optimum, rel=1e-12, abs=1e-12)


def test_nothing_is_fixed_in_an_infeasible_model() -> None:
    """0 is fixed, 1 must be equal to it, 2 different, and 1 and 2 equal; 3, 4 and 5 are frustrated, so it is no cut."""
    equal = np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    differ = equal[::-1].copy()
    scopes = [(0,), (0, 1), (0, 2), (1, 2), (3, 4), (4, 5), (5, 3)]
    tables = [np.array([0.0, -np.inf]), equal, differ, equal, *[1.0 - np.eye(2)] * 3]
    states, bound = persistent_states(Problem.compile(Recipe([2] * 6, scopes, tables).graph()))
    assert bound == -math.inf and states.tolist() == [UNDECIDED] * 6


@pytest.mark.parametrize("field", [0.3, 1.0, 3.0])
def test_bound_and_number_of_fixed_variables_are_those_of_thinqpbo(field: float) -> None:
    thinqpbo = pytest.importorskip("thinqpbo")
    graph = spins(20, seed=4, field=field)
    peer = thinqpbo.QPBODouble(graph.n_vars, graph.n_factors)
    peer.add_node(graph.n_vars)
    for i, (low, high) in enumerate((-graph.theta_v.reshape(-1, 2)).tolist()):
        peer.add_unary_term(i, low, high)
    for a in range(graph.n_factors):
        peer.add_pairwise_term(*graph.scope_of(a).tolist(), *(-graph.table(a)).ravel().tolist())
    peer.solve()
    labels = [peer.get_label(i) for i in range(graph.n_vars)]
    states, bound = persistent_states(Problem.compile(graph))
    assert bound == pytest.approx(-peer.compute_twice_lower_bound() / 2, rel=1e-9)
    assert states.tolist() == [max(label, UNDECIDED) for label in labels]


@given(graph=binary_graphs(), seed=st.integers(0, 100), work=st.sampled_from([1, 50, 10**9]))
def test_a_round_of_improvement_never_makes_a_labelling_worse(graph: FactorGraph, seed: int, work: int) -> None:
    random = np.random.default_rng(seed)
    roof = roof_of(graph)
    states = roof.states
    rounds = Improvement(roof, random)
    labels = np.where(states == UNDECIDED, random.integers(0, 2, graph.n_vars), states)
    for _ in range(3):
        rounds.begin(labels)
        while not rounds.run(work):
            pass
        improved = rounds.improved()
        assert graph.value(improved) >= graph.value(labels) - 1e-9
        assert np.all(improved[states != UNDECIDED] == states[states != UNDECIDED])
        labels = improved
