"""The incumbent of MPLP: crossover takes the better of each independent group, and candidates climb."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import Recipe, recipes

EQUAL = [[1.0, 0.0], [0.0, 1.0]]


@given(recipe=recipes(), data=st.data())
def test_crossing_two_labellings_is_at_least_as_good_as_either(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    first, second = (
        np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64) for _ in range(2)
    )
    given = first.copy()
    crossed = ClimbingIncumbent(Problem.compile(graph), Start()).cross(first, second)
    assert np.all((crossed == first) | (crossed == second))
    assert graph.value(crossed) >= max(graph.value(first), graph.value(second)) - 1e-9
    assert first.tolist() == given.tolist()


def test_crossing_takes_each_independent_group_from_the_better_parent() -> None:
    graph = FactorGraph.from_pairwise([[0, 3], [0, 0], [0, 0], [3, 0], [0, 0]], [[0, 1], [1, 2], [2, 3], [3, 4]], EQUAL)
    climbing = ClimbingIncumbent(Problem.compile(graph), Start())
    assert climbing.cross(np.zeros(5, dtype=np.int64), np.array([1, 1, 0, 1, 1])).tolist() == [1, 1, 0, 0, 0]


def test_a_warm_start_counts_and_the_first_candidate_is_taken_without_one() -> None:
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], 5 * np.array(EQUAL))
    problem = Problem.compile(graph)
    fresh, warm = ClimbingIncumbent(problem, Start()), ClimbingIncumbent(problem, Start(np.array([1, 1])))
    assert (fresh.labels, fresh.value, warm.value) == (None, -np.inf, 6.0)
    for climbing in (fresh, warm):
        climbing.offer(np.array([0, 0]))  # a local optimum of single changes
    assert fresh.labels is not None and fresh.labels.tolist() == [0, 0]
    assert warm.labels is not None and warm.labels.tolist() == [1, 1]
    fresh.offer(np.array([0, 1]))
    assert fresh.labels.tolist() == [1, 1] and fresh.value == 6.0


def test_an_incumbent_that_no_variable_improves_is_not_climbed_again() -> None:
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0], [0, 0]], [[0, 1], [1, 2]], 5 * np.array(EQUAL))
    climbing = ClimbingIncumbent(Problem.compile(graph), Start())
    visits = []
    for _ in range(3):
        climbing.offer(np.array([0, 0, 0]))
        visits.append(climbing.ascent.visits)
    assert np.diff(visits).tolist() == [visits[0]] * 2
    warm = ClimbingIncumbent(Problem.compile(graph), Start(np.array([1, 1, 0])))
    warm.offer(np.array([1, 1, 0]))  # a warm start may be no optimum
    assert warm.labels is not None and warm.labels.tolist() == [1, 1, 1]
