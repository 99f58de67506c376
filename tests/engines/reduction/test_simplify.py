"""The reduction: the optimum stays, labellings go to and fro, what can go is gone, and states are excluded."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import datasets
from mapmrf.engines.reduction import simplify as driver
from mapmrf.engines.reduction.reduction import Reduction
from mapmrf.engines.reduction.simplify import (
    BoundedElimination,
    Simplified,
    belief_bounds,
    components,
    dual_bounds,
    excluded_states,
    simplify,
    simplify_in_steps,
    solve_small,
)
from mapmrf.model.graph import FactorGraph
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from strategies import (
    Recipe,
    any_recipes,
    assert_reduced,
    best_with_each_state,
    brute_force,
    hard_recipes,
    random_recipe,
    recipes,
    soft_recipes,
    tree_recipes,
    with_weights,
)


def simplified(graph: FactorGraph) -> Simplified:
    return simplify(Problem.compile(graph))


def untouched(graph: FactorGraph) -> Simplified:
    return Simplified(Problem.compile(graph), ())


def eliminate_bounded(small: Simplified, largest: int) -> Simplified:
    elimination = BoundedElimination(small, largest)
    while not elimination.advance(1000):
        pass
    return elimination.result()


REDUCTIONS: dict[str, Callable[[FactorGraph, int], Simplified]] = {
    "simplification": lambda graph, size: simplified(graph),
    "components": lambda graph, size: solve_small(untouched(graph), 2.0 ** (size % 13)),
    "components of what is simplified": lambda graph, size: solve_small(simplified(graph), 2.0 ** (size % 13)),
    "bounded elimination": lambda graph, size: eliminate_bounded(untouched(graph), size),
    "bounded elimination of what is simplified": lambda graph, size: eliminate_bounded(simplified(graph), size),
}
every_reduction = pytest.mark.parametrize("reduce", REDUCTIONS.values(), ids=REDUCTIONS)
SIZES = st.integers(1, 64)


@every_reduction
@given(recipe=with_weights(any_recipes() | recipes()), size=SIZES)
def test_the_optimum_stays(reduce: Callable[[FactorGraph, int], Simplified], recipe: Recipe, size: int) -> None:
    graph = recipe.graph()
    small, again = reduce(graph, size), reduce(recipe.graph(), size)
    assert_reduced(graph, small)
    assert small.feasible == again.feasible and np.array_equal(small.labels, again.labels)
    assert np.array_equal(small.problem.graph.theta_v, again.problem.graph.theta_v)
    assert np.array_equal(small.problem.graph.theta_t, again.problem.graph.theta_t)


@given(recipe=with_weights(any_recipes() | recipes()))
def test_what_is_left_of_a_feasible_model_has_a_choice_and_factors(recipe: Recipe) -> None:
    small = simplified(recipe.graph())
    if small.feasible:
        assert np.all(small.problem.graph.card > 1)
        assert np.all(small.problem.degree > 0)
        assert np.all(small.problem.graph.theta_v > -math.inf)


@every_reduction
@given(recipe=with_weights(soft_recipes(max_vars=6) | hard_recipes(max_vars=6)), size=SIZES)
def test_to_and_fro_makes_no_labelling_worse(
    reduce: Callable[[FactorGraph, int], Simplified], recipe: Recipe, size: int
) -> None:
    assert_no_worse(recipe.graph(), reduce(recipe.graph(), size), 10)


def assert_no_worse(graph: FactorGraph, small: Simplified, n: int) -> None:
    """Random labellings of both models, there and back."""
    random = np.random.default_rng(0)
    for _ in range(n):
        labels = random.integers(0, graph.card)
        back = small.project(labels)
        small.problem.graph.check_labels(back)
        value = graph.value(labels)
        if value > -math.inf:
            assert graph.value(small.lift(back)) >= value - 1e-9
            assert small.problem.graph.value(back) == pytest.approx(graph.value(small.lift(back)), abs=1e-9)
        inner = random.integers(0, small.problem.graph.card)
        assert graph.value(small.lift(inner)) == pytest.approx(small.problem.graph.value(inner), abs=1e-9)
        assert np.array_equal(small.project(small.lift(inner)), inner)


@given(recipe=with_weights(tree_recipes()))
def test_nothing_is_left_of_a_tree(recipe: Recipe) -> None:
    graph = recipe.graph()
    small = simplified(graph)
    assert small.problem.n_vars == 0
    assert small.problem.graph.constant == pytest.approx(brute_force(graph)[0], abs=1e-9)
    assert_reduced(graph, small)


# -- what goes, and what stays ----------------------------------------------------------------------------------------


def grid(n: int, seed: int, *, n_states: int = 2) -> Recipe:
    """A torus whose pairs prefer some permutation of the states: four factors each, and no state is dominated."""
    random = np.random.default_rng(seed)
    recipe = Recipe([n_states] * n**2)
    for row in range(n):
        for column in range(n):
            for other in ((row + 1) % n * n + column, row * n + (column + 1) % n):
                prefers = np.eye(n_states)[random.permutation(n_states)]
                recipe.add((row * n + column, other), random.uniform(0.8, 1.2) * prefers)
    return recipe


def test_a_model_without_weak_spots_is_left_as_it_is() -> None:
    problem = Problem.compile(grid(4, 1).graph())
    small = simplify(problem)
    assert small.problem is problem
    assert small.maps == ()
    labels = np.arange(16) % 2
    assert np.array_equal(small.lift(small.project(labels)), labels)


def test_implications_are_followed_around_a_torus() -> None:
    """Hard constraints decide a model that has no variable to eliminate."""
    equal = np.where(np.eye(3, dtype=bool), 0.0, -np.inf)
    recipe = grid(4, 2, n_states=3)
    for scope in list(recipe.scopes):
        recipe.add(scope, equal)
    recipe.add((5,), np.array([-np.inf, -np.inf, 0.25]))
    small = simplified(recipe.graph())
    assert small.problem.n_vars == 0
    assert small.labels.tolist() == [2] * 16
    assert small.problem.graph.constant == pytest.approx(recipe.graph().value([2] * 16))


@pytest.mark.parametrize("n_states", [2, 3])
def test_hanging_trees_and_chains_go_and_the_core_stays(n_states: int) -> None:
    random = np.random.default_rng(5)
    core = grid(4, 4, n_states=n_states)
    recipe = Recipe([*core.card, *[n_states] * 40], list(core.scopes), list(core.tables))
    for i in range(16, 46):  # trees
        recipe.add((int(random.integers(i)), i), 0.1 * random.normal(size=(n_states, n_states)))
    for i in range(46, 56):  # chains between neighbours in the core
        recipe.add((0, i), 0.1 * random.normal(size=(n_states, n_states)))
        recipe.add((i, 1), 0.1 * random.normal(size=(n_states, n_states)))
    small = simplified(recipe.graph())
    assert small.problem.n_vars == 16
    assert small.problem.n_factors == 32
    assert np.array_equal(small.maps[0].kept, np.arange(16))
    assert_no_worse(recipe.graph(), small, 20)


def test_a_leaf_of_a_factor_of_three_leaves_a_pair() -> None:
    """Two triples that share two variables and have one each to themselves, in a core that stays."""
    random = np.random.default_rng(6)
    recipe = grid(4, 6)
    recipe.card += [3, 3]
    recipe.add((0, 16, 1), 0.3 * random.normal(size=(2, 3, 2)))
    recipe.add((17, 0, 1), 0.3 * random.normal(size=(3, 2, 2)))
    small = simplified(recipe.graph())
    assert small.problem.n_vars == 16
    assert set(small.problem.graph.arity.tolist()) == {2}
    assert small.problem.n_factors == 32  # merged with the pair that was there


def test_no_variable_goes_whose_message_would_be_larger() -> None:
    """Two states between neighbours of ten, which share no factor: 100 entries for 40."""
    random = np.random.default_rng(7)
    recipe = Recipe([10, 2, 10, 2])
    for scope in ((0, 1), (1, 2), (2, 3), (3, 0)):
        recipe.add(scope, 10 * random.normal(size=[recipe.card[i] for i in scope]))
    recipe.add((1, 3), np.array([[100.0, 0.0], [0.0, 100.0]]))
    small = simplified(recipe.graph())
    assert_reduced(recipe.graph(), small)
    assert small.problem.n_configs <= Problem.compile(recipe.graph()).n_configs


def test_dominated_states_go() -> None:
    """A state that is worse by more than all neighbours can make up for."""
    recipe = grid(4, 8, n_states=4)
    for i in range(1, 16, 2):
        recipe.add((i,), np.array([0.0, -5.0, 0.0, -5.0]))
    small = simplified(recipe.graph())
    assert small.problem.n_vars == 16
    for i in range(16):
        states = small.maps[0].state[small.maps[0].state_ptr[i] : small.maps[0].state_ptr[i + 1]].tolist()
        assert states == [0, 2] if i % 2 else len(states) >= 2


def test_of_two_equal_states_one_stays() -> None:
    recipe = grid(4, 9)
    recipe.card = [4] * 16
    recipe.tables = [np.kron(table, np.ones((2, 2))) for table in recipe.tables]
    small = simplified(recipe.graph())
    assert small.problem.graph.card.tolist() == [2] * 16
    assert all(states in ([0, 2], [0, 3], [1, 2], [1, 3]) for states in small.maps[0].state.reshape(16, 2).tolist())


@pytest.mark.parametrize("seed", range(8))
def test_dominated_states_of_large_models_make_no_labelling_worse(seed: int) -> None:
    random = np.random.default_rng(seed)
    recipe = grid(4, seed, n_states=3)
    for i in range(16):
        recipe.add((i,), 2 * random.normal(size=3))
    for _ in range(6):
        recipe.add(tuple(random.permutation(16)[:3].tolist()), 0.2 * random.normal(size=(3, 3, 3)))
    assert_no_worse(recipe.graph(), simplified(recipe.graph()), 2000)


ODD = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2), (2, 0)], [np.where(np.eye(2, dtype=bool), -np.inf, 0.0)] * 3)
IMPOSSIBLE = [
    ODD,
    FactorGraph.from_tables([2], [(), (0,)], [np.array(-np.inf), np.zeros(2)]),
    FactorGraph.from_tables([2], [(0,)], [np.full(2, -np.inf)]),
]


@pytest.mark.parametrize("graph", IMPOSSIBLE)
def test_infeasible_models_are_recognised_and_have_legal_labels(graph: FactorGraph) -> None:
    for small in (simplified(graph), solve_small(simplified(graph)), solve_small(untouched(ODD))):
        assert not small.feasible and solve_small(small) is small
        small.problem.graph.check_labels(small.project(small.labels))
    graph.check_labels(simplified(graph).labels)


def test_tables_stay_shared_where_they_are_untouched_and_equal_new_ones_become_shared() -> None:
    random = np.random.default_rng(11)
    shared, hung = np.array([[0.0, 1.0], [1.0, 0.0]]), 0.1 * random.normal(size=(2, 2, 2))
    recipe = grid(4, 0)
    recipe.tables = [shared] * len(recipe.tables)
    for scope in list(recipe.scopes):
        recipe.card.append(2)
        recipe.add((*scope, len(recipe.card) - 1), hung)
    small = simplified(recipe.graph())
    assert small.problem.n_factors == 32
    assert small.problem.graph.n_tables <= 2


@pytest.mark.parametrize(("n", "worthwhile"), [(18, True), (27, False)])
def test_one_variable_of_a_large_model_is_not_worth_a_rewriting(n: int, worthwhile: bool) -> None:
    recipe = grid(n, 12, n_states=3)
    recipe.card.append(2)
    recipe.add((0, n**2), 0.1 * np.random.default_rng(0).normal(size=(3, 2)))
    problem = Problem.compile(recipe.graph(), threads=2)
    small = simplify(problem)
    assert small.feasible and small.problem.threads == 2
    assert (small.problem is not problem) == worthwhile
    assert small.problem.n_vars == n**2 + (not worthwhile)


def test_nothing_is_left_of_a_large_tree_of_factors_of_mixed_arity() -> None:
    random = np.random.default_rng(14)
    recipe = Recipe(random.integers(2, 5, 3000).tolist())
    grown = 1
    while grown < 3000:
        fresh = min(int(random.integers(1, 4)), 3000 - grown)
        scope = (int(random.integers(max(0, grown - 20), grown)), *range(grown, grown + fresh))
        recipe.add(scope, random.normal(size=[recipe.card[i] for i in scope]))
        grown += fresh
    graph = recipe.graph()
    small = simplified(graph)
    assert small.problem.n_vars == 0
    assert graph.value(small.labels) == pytest.approx(small.problem.graph.constant)
    assert small.problem.graph.constant == pytest.approx(mapmrf.solve(graph, "bp").value)


def test_a_binary_model_with_nothing_easy_in_it_is_left_alone_and_one_with_strong_wishes_is_not() -> None:
    graph = datasets.grid(20, 20, coupling=3.0, wrap=True, seed=0)
    assert simplify(Problem.compile(graph)).problem.graph is graph
    theta_v = graph.theta_v.reshape(-1, 2).copy()
    theta_v[::10, 1] += 100.0  # these variables are decided, whatever their neighbours do
    edges = graph.scope.reshape(-1, 2)
    tables = np.stack([graph.table(a) for a in range(graph.n_factors)])
    strong = mapmrf.FactorGraph.from_pairwise(theta_v, edges, tables)
    small = simplify(Problem.compile(strong))
    assert small.problem.n_vars <= 0.9 * graph.n_vars
    assert small.labels[::10].tolist() == [1] * 40


def test_what_is_left_of_a_model_with_weights_shares_its_tables() -> None:
    """A torus of one table and a weight per pair; two variables lose states, and a tree that hangs on it goes."""
    random = np.random.default_rng(0)
    place = np.arange(36).reshape(6, 6)
    edges = np.concatenate([np.stack([place, np.roll(place, 1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)])
    edges = np.concatenate([edges, [[35, 36], [36, 37]]])
    unary = np.zeros((38, 3))
    unary[[4, 9], 2] = -math.inf
    prefers = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    graph = FactorGraph.from_pairwise(unary, edges, prefers, weight=random.uniform(0.8, 1.2, len(edges)))
    small = simplified(graph)
    left = small.problem.graph
    assert (left.n_vars, small.counts.variables_eliminated, small.counts.states_forbidden) == (36, 2, 2)
    assert left.weight is not None and len(np.unique(left.weight)) == 72
    assert left.n_tables == 3  # whole, without a row, and without a column
    labels = random.integers(0, left.card)
    assert graph.value(small.lift(labels)) == pytest.approx(left.value(labels))


def test_a_reduction_in_small_steps_is_the_reduction_at_once() -> None:
    for seed in range(5):
        problem = Problem.compile(random_recipe(seed, 40, 55).graph())
        pieces, whole = Reduction(problem), Reduction(problem)
        n = 1
        while not pieces.advance(1):
            n += 1
        assert whole.advance() and n > 10
        assert pieces.counts() == whole.counts()
        if whole.worthwhile:
            assert np.array_equal(pieces.smaller().graph.theta_t, whole.smaller().graph.theta_t)
        assert sum(1 for _ in simplify_in_steps(problem)) >= 2


# -- dual persistency -------------------------------------------------------------------------------------------------


SEEDS = st.integers(0, 2**32 - 1)


def messages(problem: Problem, seed: int) -> np.ndarray:
    """Messages of any size, 0 among them."""
    random = np.random.default_rng(seed)
    return random.choice([0.0, 0.3, 3.0]) * random.normal(size=problem.n_edge_states)


@given(recipe=with_weights(recipes() | any_recipes(max_vars=6)), seed=SEEDS)
def test_no_labelling_is_above_the_bound_of_one_of_its_states(recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    lam_e, exact = messages(problem, seed), best_with_each_state(problem.graph)
    bounds = dual_bounds(problem, lam_e)
    assert np.all(bounds >= exact - 1e-9)
    assert np.all(bounds <= dual_bound(problem, lam_e) + 1e-9)


@given(recipe=with_weights(soft_recipes()), seed=SEEDS)
def test_reparametrised_unary_potentials_are_beliefs(recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    lam_e = messages(problem, seed)
    beliefs = problem.graph.theta_v - np.bincount(problem.edge_state_at, lam_e, problem.n_states)
    bounds = belief_bounds(problem, beliefs, dual_bound(problem, lam_e))
    assert np.all(bounds >= best_with_each_state(problem.graph) - 1e-9)
    assert np.all(dual_bounds(problem, lam_e) <= bounds + 1e-9)


@given(recipe=with_weights(recipes()), seed=SEEDS, back=st.integers(0, 3))
def test_excluded_states_are_in_no_labelling_as_good_as_the_incumbent_and_the_optimum_stays(
    recipe: Recipe, seed: int, back: int
) -> None:
    problem = Problem.compile(recipe.graph())
    exact = best_with_each_state(problem.graph)
    value = float(np.unique(exact[exact > -math.inf])[-1 - back :][0])
    excluded = excluded_states(problem, dual_bounds(problem, messages(problem, seed)), value)
    assert np.all(exact[excluded] < value)
    counts = np.add.reduceat(~excluded, problem.graph.var_ptr[:-1])
    assert np.all(counts >= 1)
    small = simplify(problem, excluded)
    assert small.feasible
    assert_reduced(problem.graph, small)


@given(recipe=with_weights(soft_recipes()))
def test_exact_bounds_per_state_leave_the_optimal_states_only(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem, exact = Problem.compile(graph), best_with_each_state(graph)
    excluded = excluded_states(problem, exact, graph.value(brute_force(graph)[1]))
    assert np.array_equal(excluded, exact < exact.max() - 1e-9)


def frustrated(n: int) -> FactorGraph:
    """Pairs on a torus that like to differ: nothing of it can be simplified."""
    place = np.arange(n * n).reshape(n, n)
    edges = np.concatenate([np.stack([place, np.roll(place, 1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)])
    return FactorGraph.from_pairwise(np.zeros((n * n, 3)), edges, 1.0 - np.eye(3))


def test_counts_say_why_states_and_variables_have_gone() -> None:
    problem = Problem.compile(frustrated(4))
    assert simplify(problem).counts.details() == {}
    excluded = np.zeros(problem.n_states, dtype=bool)
    excluded[[1, 2, 3]] = True  # variable 0 is in state 0, and variable 1 is not
    small = simplify(problem, excluded)
    assert small.counts.states_persistent == 3
    assert small.counts.variables_fixed >= 1
    assert small.counts.states_forbidden == 0
    assert small.problem.n_vars == 16 - small.counts.variables_fixed - small.counts.variables_eliminated


def test_nothing_is_excluded_without_an_incumbent_and_hard_states_are_not_counted_as_persistent() -> None:
    graph = FactorGraph.from_tables([3, 2], [(0,), (0, 1)], [[0.0, -math.inf, 1.0], np.zeros((3, 2))])
    problem = Problem.compile(graph)
    bounds = dual_bounds(problem, np.zeros(problem.n_edge_states))
    assert not excluded_states(problem, bounds, -math.inf).any()
    excluded = excluded_states(problem, bounds, 1.0)
    assert excluded.tolist() == [True, True, False, False, False]
    counts = simplify(problem, excluded).counts
    assert (counts.states_persistent, counts.states_forbidden) == (1, 1)


# -- benchmark models -------------------------------------------------------------------------------------------------


SOLVED = (
    "other/1aie", "other/1bv1", "other/pdb1b7d", "other/smokers_10", "segmentation21/2_28_s.21", "scene/0000072",
    "scene/0001677",
)  # fmt: skip
SOLVED_BY_ELIMINATION = (
    "other/deer_rescaled_0034.K10.F1.25.model", "other/pdb1neu", "other/GEOM30a_3", "scene/0000047",
)  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("name", [*SOLVED, *SOLVED_BY_ELIMINATION])
def test_nothing_is_left_of_some_models(name: str) -> None:
    graph = benchmark(f"{name}.uai.gz")
    small = simplify(Problem.compile(graph))
    if name in SOLVED_BY_ELIMINATION:
        small = solve_small(small)
    assert small.problem.n_vars == 0
    assert small.problem.graph.constant == pytest.approx(references()[f"{name}.uai.gz"], abs=1e-3)
    assert graph.value(small.labels) == pytest.approx(small.problem.graph.constant, abs=1e-6)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("protein/didNotconverge1.uai.gz", 0.45),
        ("segmentation21/1_28_s.21.uai.gz", 0.1),
        ("other/pedigree34.uai.gz", 0.4),
        ("other/triplepoint4-plain-ring.h5", 0.55),
    ],
)
def test_a_share_of_the_states_is_left_and_labellings_are_worth_the_same(name: str, share: float) -> None:
    graph = benchmark(name)
    small = simplify(Problem.compile(graph))
    inner = small.problem.graph
    assert len(inner.theta_v) <= share * len(graph.theta_v)
    assert len(inner.theta_t) <= len(graph.theta_t) + 2000, "shared tables should be shared still"
    labels = np.random.default_rng(0).integers(0, inner.card)
    assert graph.value(small.lift(labels)) == pytest.approx(inner.value(labels), rel=1e-9)


# -- components: found as they are, and solved exactly where they are small -------------------------------------------


def flooded(graph: FactorGraph) -> list[int]:
    """Components by repeated flooding, in plain Python."""
    number = list(range(graph.n_vars))
    for _ in range(graph.n_vars):
        for a in range(graph.n_factors):
            scope = graph.scope_of(a).tolist()
            least = min(number[i] for i in scope)
            for i in scope:
                number[i] = least
    names = sorted(set(number))
    return [names.index(i) for i in number]


@given(recipe=with_weights(any_recipes() | recipes()))
def test_components_are_those_of_flooding(recipe: Recipe) -> None:
    graph = recipe.graph()
    assert components(Problem.compile(graph)).tolist() == flooded(graph)


def cliques(sizes: list[int], seed: int) -> FactorGraph:
    """Complete graphs of binary variables, their variables dealt out in turn."""
    random = np.random.default_rng(seed)
    names = random.permutation(sum(sizes))
    recipe = Recipe([2] * sum(sizes))
    for begin, size in zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True):
        mine = names[begin : begin + size]
        for i in range(size):
            for j in range(i):
                recipe.add((int(mine[i]), int(mine[j])), 3 * random.normal(size=(2, 2)))
    return recipe.graph()


def test_small_components_go_and_large_ones_stay() -> None:
    graph = cliques([4, 11, 5, 12, 3], 0)
    small = solve_small(untouched(graph), 1000.0)
    assert small.problem.n_vars == 23
    assert len(np.unique(components(small.problem))) == 2
    assert np.array_equal(np.sort(small.problem.graph.arity), [2] * (55 + 66))
    assert_no_worse(graph, small, 200)


def test_all_eliminations_together_keep_to_the_budget() -> None:
    """Each clique of five has tables of 2 + 4 + ... + 32 = 62 entries."""
    graph = cliques([5] * 10, 2)
    assert solve_small(untouched(graph), 61.0).problem.n_vars == 50
    assert solve_small(untouched(graph), 62.0 * 7 + 1).problem.n_vars == 15
    assert solve_small(untouched(graph), 620.0).problem.n_vars == 0


def test_many_components_are_taken_together() -> None:
    graph = cliques([3] * 40 + [6, 14], 3)
    one_by_one = solve_small(untouched(graph), 5000.0)
    together = solve_small(untouched(graph), 5000.0, one_by_one=3)
    assert one_by_one.problem.n_vars == together.problem.n_vars == 14
    assert one_by_one.problem.graph.constant == pytest.approx(together.problem.graph.constant)
    assert np.array_equal(one_by_one.labels, together.labels)


def test_what_is_too_dense_to_be_eliminated_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    place = np.arange(400).reshape(20, 20)
    edges = [np.stack([place[: 20 - r, : 20 - c].ravel(), place[r:, c:].ravel()], axis=1)
             for r in range(4) for c in range(4) if r + c]  # fmt: skip
    dense = FactorGraph.from_pairwise(np.zeros((400, 2)), np.concatenate(edges), np.eye(2))
    monkeypatch.setattr(driver, "min_fill_order", None)
    assert solve_small(untouched(dense)).problem.n_vars == 400


# -- bounded elimination: tables stay small ---------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_functions_of_other_variables_go_and_the_optimum_stays(seed: int) -> None:
    """Variable k + 4 is a permutation of k; variable 8 has fewer states and is a function of 0, not conversely."""
    rng = np.random.default_rng(seed)
    card, scopes, tables = [*[5] * 8, 3], [], []
    for k in range(4):
        table = np.full((5, 5), -np.inf)
        table[np.arange(5), rng.permutation(5)] = rng.normal(size=5)
        scopes.append((k, k + 4))
        tables.append(table)
    scopes.append((8, 0))
    tables.append(np.where(np.arange(5) % 3 == np.arange(3)[:, None], rng.normal(size=(3, 5)), -np.inf))
    for scope in ((0, 5), (1, 6), (4, 6), (2, 3), (7, 8), (0, 2, 5), (4, 8, 1), (0, 8, 4), (1, 3)):
        scopes.append(scope)
        tables.append(rng.normal(size=[card[i] for i in scope]))
    graph = FactorGraph.from_tables(card, scopes, tables)
    small = simplified(graph)
    left = [tuple(scope) for batch in small.problem.batches for scope in np.sort(batch.scope, axis=1).tolist()]
    assert small.problem.n_vars <= 4 and len(set(left)) == len(left)
    best, reduced = mapmrf.solve(graph, "branch"), mapmrf.solve(small.problem.graph, "branch")
    assert reduced.value == pytest.approx(best.value) == pytest.approx(graph.value(small.lift(reduced.labels)))
    assert graph.value(small.lift(small.project(best.labels))) == pytest.approx(best.value)


def test_tables_stay_within_the_limit_and_more_goes_than_by_simplification() -> None:
    problem = Problem.compile(datasets.grid(8, 8, coupling=2.0, seed=0))
    first = simplify(problem)
    small = eliminate_bounded(first, 16)
    assert 0 < small.problem.n_vars < first.problem.n_vars
    assert all(batch.n_configs <= 16 or batch.arity <= 7 for batch in small.problem.batches)
    assert max(batch.n_configs for batch in small.problem.batches) <= 64
    assert small.counts.variables_eliminated > first.counts.variables_eliminated
    assert mapmrf.solve(small.problem.graph, "branch").value == pytest.approx(
        mapmrf.solve(problem.graph, "branch").value
    )
