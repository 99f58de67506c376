"""Forests of factors: what they cover, how they are walked, and that max-product on them is exact."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.decomposition.subproblems import Decomposition, DescentState, solve_factors, solve_forests
from mapmrf.model.problem import Problem
from plain_python import plain
from strategies import Recipe, hard_recipes, is_acyclic, random_tree, soft_recipes, with_weights

MODELS = soft_recipes() | hard_recipes()
CUTS = [Decomposition.into_trees, Decomposition.into_factors]
Cut = Callable[[Problem], Decomposition]


def scopes_of(problem: Problem) -> list[list[int]]:
    return [problem.scope[b:e].tolist() for b, e in itertools.pairwise(problem.scope_ptr.tolist())]


def forests_of(problem: Problem, parts: Decomposition) -> list[list[int]]:
    """The factors of every forest, by the copies that they have."""
    forests: list[list[int]] = [[] for _ in range(parts.n_forests)]
    for v, a in enumerate(parts.visit.tolist()):
        mine = {int(parts.copies.forest[c]) for c in parts.legs.copy[parts.legs.ptr[v] : parts.legs.ptr[v + 1]]}
        assert len(mine) == 1
        forests[mine.pop()].append(a)
    return forests


@given(recipe=MODELS)
def test_forests_hold_every_factor_once_are_maximal_and_are_walked_from_their_roots(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    parts, scopes = Decomposition.into_trees(problem), scopes_of(problem)
    assert sorted(parts.visit.tolist()) == list(range(problem.n_factors))
    forests = forests_of(problem, parts)
    for s, forest in enumerate(forests):
        mine = [scopes[a] for a in forest]
        assert forest and is_acyclic(mine)
        for later in itertools.chain(*forests[s + 1 :]):
            assert not is_acyclic([*mine, scopes[later]])
    reached = set(parts.roots.tolist())
    for v, a in enumerate(parts.visit.tolist()):
        legs = slice(parts.legs.ptr[v], parts.legs.ptr[v + 1])
        near, *far = parts.legs.copy[legs].tolist()
        assert sorted(parts.legs.var[legs].tolist()) == sorted(scopes[a])
        assert near in reached and not reached & set(far)
        reached |= set(far)
    assert reached == set(range(len(parts.copies.at)))
    for i in range(problem.n_vars):  # a copy in every forest that touches it
        touching = {s for s, forest in enumerate(forests) if any(i in scopes[a] for a in forest)}
        copies = parts.copies.forest[parts.copies.ptr[i] : parts.copies.ptr[i + 1]].tolist()
        assert len(copies) == len(touching) and set(copies) == touching


def test_a_model_without_cycles_is_one_forest() -> None:
    parts = Decomposition.into_trees(Problem.compile(random_tree(3, 12).graph()))
    assert parts.n_forests == 1
    assert len(parts.roots) == 1


def choose(problem: Problem, parts: Decomposition, theta_c: np.ndarray, slack: float) -> tuple[float, DescentState]:
    """Solve all subproblems: the sum of the maxima, and the choices, all 1 before."""
    state = DescentState.allocate(problem, parts, theta_c, np.zeros(problem.n_vars, dtype=np.int64), (), 0)
    state.figures.slack = slack
    state.label_c[:], state.config[:] = 1, 1
    if parts.n_forests:
        return plain(solve_forests)(parts.subproblems(problem), parts.roots, state), state
    return plain(solve_factors)(parts.subproblems(problem), state), state


def solved(problem: Problem, parts: Decomposition, theta_c: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Sum of the maxima, labels of the copies, and the entry that every factor takes, in the order of the problem."""
    total, choices = choose(problem, parts, theta_c, 0.0)
    chosen = np.zeros(problem.n_factors, dtype=np.int64)
    chosen[parts.visit] = choices.config
    return total, choices.label_c, chosen


def best_of_forest(problem: Problem, parts: Decomposition, theta_c: np.ndarray, forest: int) -> float:
    """Maximum of a forest over all labellings of its copies, in plain Python."""
    copies = parts.copies
    mine = np.flatnonzero(copies.forest == forest)
    owner = np.repeat(np.arange(problem.n_vars), np.diff(copies.ptr))[mine].tolist()
    factors = forests_of(problem, parts)[forest] if parts.n_forests else [forest]
    tables = [(scopes_of(problem)[a], problem.graph.table(int(problem.order[a]))) for a in factors]
    best = -math.inf
    for labels in itertools.product(*(range(copies.card[c]) for c in mine)):
        state = dict(zip(owner, labels, strict=True))
        value = sum(float(theta_c[copies.at[c] + k]) for c, k in zip(mine, labels, strict=True))
        value += sum(float(table[tuple(state[i] for i in scope)]) for scope, table in tables)
        best = max(best, value)
    return best


def assert_exact(problem: Problem, parts: Decomposition, theta_c: np.ndarray) -> None:
    """The sum of the maxima is right, labels and entries attain it, and entries are those of the labels."""
    total, label_c, chosen = solved(problem, parts, theta_c)
    best = sum(best_of_forest(problem, parts, theta_c, s) for s in range(parts.n_forests or problem.n_factors))
    assert total == pytest.approx(best, abs=1e-9) or total == best == -math.inf
    if total > -math.inf:
        tables = [problem.graph.table(int(problem.order[a])).ravel() for a in range(problem.n_factors)]
        taken = theta_c[parts.copies.at + label_c].sum() + sum(
            table[k] for table, k in zip(tables, chosen, strict=True)
        )
        assert taken == pytest.approx(best, abs=1e-9)
        for v, a in enumerate(parts.visit.tolist()):
            legs = slice(parts.legs.ptr[v], parts.legs.ptr[v + 1])
            assert chosen[a] == int((parts.legs.stride[legs] * label_c[parts.legs.copy[legs]]).sum())


@pytest.mark.parametrize("cut", CUTS)
@given(recipe=with_weights(soft_recipes(max_vars=5) | hard_recipes(max_vars=5)), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_subproblems_are_solved_exactly(cut: Cut, recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    parts = cut(problem)
    assert_exact(problem, parts, np.random.default_rng(seed).normal(size=int(parts.copies.card.sum())))


@pytest.mark.parametrize("cut", CUTS)
def test_factors_of_one_variable_are_subproblems_like_others(cut: Cut) -> None:
    rng = np.random.default_rng(3)
    graph = FactorGraph(
        card=np.array([3, 2, 4]), theta_v=rng.normal(size=9), scope_ptr=np.array([0, 1, 2, 5, 6]),
        scope=np.array([1, 0, 0, 1, 2, 2]), table_ptr=np.array([0, 2, 5, 29, 33]), theta_t=rng.normal(size=33),
        table_of=np.arange(4),
    )  # fmt: skip
    problem = Problem.compile(graph)
    parts = cut(problem)
    assert_exact(problem, parts, rng.normal(size=int(parts.copies.card.sum())))


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (2, 3, 2)])
def test_a_factor_without_a_finite_entry_makes_the_sum_minus_infinity(shape: tuple[int, ...]) -> None:
    recipe = Recipe(list(shape), [tuple(range(len(shape)))], [np.full(shape, -np.inf)])
    problem = Problem.compile(recipe.graph())
    for parts in (cut(problem) for cut in CUTS):
        assert solved(problem, parts, np.zeros(sum(shape)))[0] == -math.inf


def test_large_forests_lose_no_digits() -> None:
    """A long chain of large potentials that cancel against small ones in the end."""
    n = 20_000
    recipe = Recipe([2] * n)
    for i in range(n - 1):
        recipe.add((i, i + 1), np.array([[1e6, 0.0], [0.0, 1e6 + 1e-5]]))
    problem = Problem.compile(recipe.graph())
    parts = Decomposition.into_trees(problem)
    theta_c = np.zeros(2 * n)
    theta_c[0] = 0.15  # less than what the chain of states 1 is worth
    assert solved(problem, parts, theta_c)[1].tolist() == [1] * n


def test_equal_choices_go_to_the_smallest_state_whatever_round_off_says() -> None:
    table = np.array([[0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2]])
    problem = Problem.compile(Recipe([2, 2], [(0, 1)], [table]).graph())
    for parts in (cut(problem) for cut in CUTS):
        tiny = np.array([0.0, 1e-16, 0.0, 1e-16])
        assert choose(problem, parts, tiny, 1e-12)[1].label_c.tolist() == [0, 0]
