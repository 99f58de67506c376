"""Components: found as they are, and solved exactly where they are small."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.engines.reduction import simplify as driver
from mapmrf.engines.reduction.simplify import Simplified, components, simplify, solve_small
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, assert_reduced, brute_force, recipes, with_weights


def untouched(graph: FactorGraph) -> Simplified:
    return Simplified(Problem.compile(graph), ())


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


@given(recipe=with_weights(any_recipes() | recipes()), log_entries=st.integers(0, 12), simplified=st.booleans())
def test_solving_components_keeps_the_optimum(recipe: Recipe, log_entries: int, simplified: bool) -> None:
    graph = recipe.graph()
    small = simplify(Problem.compile(graph)) if simplified else untouched(graph)
    assert_reduced(graph, solve_small(small, 2.0**log_entries))


@given(recipe=with_weights(any_recipes() | recipes()))
def test_nothing_is_left_where_everything_fits(recipe: Recipe) -> None:
    graph = recipe.graph()
    small = solve_small(untouched(graph))
    if graph.constant + small.problem.graph.constant > -math.inf and small.feasible:
        assert small.problem.n_vars == 0
        assert small.problem.graph.constant == pytest.approx(brute_force(graph)[0], abs=1e-9)


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
    random = np.random.default_rng(1)
    for _ in range(200):
        labels = random.integers(0, 2, graph.n_vars)
        there = small.project(labels)
        assert graph.value(small.lift(there)) >= graph.value(labels) - 1e-9
        assert graph.value(small.lift(there)) == pytest.approx(small.problem.graph.value(there), abs=1e-9)


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


def test_an_infeasible_component_makes_the_model_infeasible() -> None:
    odd = np.where(np.eye(2, dtype=bool), -np.inf, 0.0)
    graph = FactorGraph.from_tables([2] * 3, [(0, 1), (1, 2), (2, 0)], [odd] * 3)
    small = solve_small(untouched(graph))
    assert not small.feasible
    graph.check_labels(small.labels)
    assert solve_small(small) is small


def test_what_is_too_dense_to_be_eliminated_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    place = np.arange(400).reshape(20, 20)
    edges = [np.stack([place[: 20 - r, : 20 - c].ravel(), place[r:, c:].ravel()], axis=1)
             for r in range(4) for c in range(4) if r + c]  # fmt: skip
    dense = FactorGraph.from_pairwise(np.zeros((400, 2)), np.concatenate(edges), np.eye(2))
    monkeypatch.setattr(driver, "min_fill_order", None)
    assert solve_small(untouched(dense)).problem.n_vars == 400
