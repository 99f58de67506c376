"""The search for a labelling of finite value, against brute force, and what labellings violate."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import command_line
import mapmrf
from constraint_models import colouring, differ, pigeons, sudoku
from mapmrf import FactorGraph, Names, Result, Status, constraints
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent, Violation, shortfall, violations
from mapmrf.run.repair import FeasibleSearch, climb, fewest_violated, find_by_branching, find_feasible, fits_clauses
from strategies import Recipe, any_recipes, brute_force, hard_recipes, plant, with_weights


@given(recipe=with_weights(any_recipes()), data=st.data())
def test_a_feasible_labelling_is_found_exactly_if_there_is_one(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    labels = np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)
    search = find_feasible(Problem.compile(graph), labels)
    assert search.complete
    assert (search.labels is None) == (brute_force(graph)[0] == -math.inf)
    assert search.labels is None or graph.value(search.labels) > -math.inf


@given(recipe=with_weights(hard_recipes()), seed=st.integers(0, 2**16))
def test_a_labelling_that_is_feasible_already_is_kept(recipe: Recipe, seed: int) -> None:
    labels = plant(recipe, seed)
    search = find_feasible(Problem.compile(recipe.graph()), labels)
    assert search.labels is not None
    assert search.labels.tolist() == labels.tolist()


@given(recipe=with_weights(hard_recipes()), seed=st.integers(0, 2**16))
def test_from_a_feasible_labelling_no_single_change_helps_in_the_end(recipe: Recipe, seed: int) -> None:
    labels = plant(recipe, seed)
    graph = recipe.graph()
    found = climb(Problem.compile(graph), labels)
    best = graph.value(found)
    assert best >= graph.value(labels) > -math.inf
    for i, n_states in enumerate(recipe.card):
        for k in range(n_states):
            changed = found.copy()
            changed[i] = k
            assert graph.value(changed) <= best + 1e-9


def test_what_a_run_finds_at_its_end_has_been_climbed_from() -> None:
    """Three states in a row of which neighbours differ: after one iteration of `lp` there is only what repairs it."""
    n = 20
    differ = np.where(np.eye(3) > 0, -np.inf, 0.0)
    unary = np.random.default_rng(0).normal(size=(n, 3))
    graph = FactorGraph.from_pairwise(unary, [[i, i + 1] for i in range(n - 1)], differ)
    result = mapmrf.solve(graph, "lp", max_iterations=1)
    assert result.value > -math.inf
    assert graph.value(climb(Problem.compile(graph), result.labels)) == pytest.approx(result.value)


def test_giving_up_is_not_taken_for_a_proof() -> None:
    problem = Problem.compile(pigeons(6, 5))
    start = np.zeros(6, dtype=np.int64)
    assert find_feasible(problem, start).complete
    assert not find_by_branching(problem, start, max_nodes=3).complete
    assert not find_feasible(problem, start, seconds=0.0).complete


def test_a_model_too_large_for_clauses_is_still_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.compile(pigeons(5, 4))
    for most, fits in ((40, True), (39, False)):
        monkeypatch.setattr("mapmrf.run.repair.MOST_CLAUSES", most)
        assert fits_clauses(problem) == fits
    monkeypatch.setattr("mapmrf.run.repair.FEW_STATES", 0)
    assert find_feasible(problem, np.zeros(5, dtype=np.int64)) == FeasibleSearch(None, complete=True)
    monkeypatch.setattr("mapmrf.run.repair.MOST_STATES", 19)
    assert not fits_clauses(problem)


def test_what_violates_least_is_found_near_any_labelling() -> None:
    problem = Problem.compile(pigeons(8, 7))
    labels = fewest_violated(problem, np.zeros(8, dtype=np.int64), least=1)
    assert len(violations(problem.graph, labels)) == 1


# -- violations --------------------------------------------------------------------------------------------------------


NAMES = Names(("Anna", "Ben", "Carl"), (("red", "blue"),) * 3)


def triangle() -> FactorGraph:
    """Three variables of two states that must all differ; blue is worth more, and Ben must not have it."""
    unary = [[0.0, 1.0], [0.0, -np.inf], [0.0, 1.0]]
    return FactorGraph.from_pairwise(unary, [[0, 1], [0, 2], [1, 2]], differ(2), names=NAMES)


def test_violations_are_named_variables_first_whatever_the_weights() -> None:
    found = violations(triangle(), np.array([1, 1, 0]))
    assert found == (Violation(None, ("Ben",), ("blue",)), Violation(0, ("Anna", "Ben"), ("blue", "blue")))
    assert [str(each) for each in found] == ["Ben=blue", "factor 0 (Anna=blue, Ben=blue)"]
    graph = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1], [0, 1]], differ(2), weight=[0.5, 2.0])
    assert [each.factor for each in violations(graph, np.array([1, 1]))] == [0, 1]
    assert shortfall(graph, np.array([0, 1])) == (0, 0.0)


def test_a_constant_of_minus_infinity_is_a_violation_of_its_own() -> None:
    graph = FactorGraph.from_tables([2], [()], [np.array(-np.inf)])
    assert find_feasible(Problem.compile(graph), np.zeros(1, dtype=np.int64)) == FeasibleSearch(None, complete=True)
    result = mapmrf.solve(graph)
    assert (result.status, result.violated) == (Status.INFEASIBLE, (Violation(None, (), ()),))
    assert "violated       1: the constant" in result.summary()


def test_the_incumbent_prefers_fewer_violations_and_then_what_the_rest_is_worth() -> None:
    best = Incumbent(triangle(), np.array([1, 1, 1]))
    for labels, kept in (
        ([1, 1, 0], True),
        ([0, 0, 0], False),
        ([0, 0, 1], True),
        ([1, 0, 1], True),
        ([0, 0, 1], False),
    ):
        assert best.offer(np.array(labels)) == -math.inf
        assert (best.labels.tolist() == labels) == kept
    assert best.offer(np.array([0, 0, 1]), claim=-math.inf) == -math.inf


METHODS = ("auto", "icm", "trws", "bp", "lslp", "branch", "exhaustive", "flips", "mplp", "annealing")


@pytest.mark.parametrize("method", METHODS)
def test_an_infeasible_model_gets_the_labelling_that_violates_least(method: str) -> None:
    result = mapmrf.solve(triangle(), method)
    assert (result.status, result.value, result.bound) == (Status.INFEASIBLE, -math.inf, -math.inf)
    assert len(result.violated) == 1
    assert result.violated == violations(triangle(), result.labels)


@pytest.mark.parametrize("method", ["auto", "icm", "trws"])
def test_infeasible_colourings_are_recognised_and_nearly_satisfied(method: str) -> None:
    graph = colouring(100, 487, 4, 0)
    result = mapmrf.solve(graph, method, **({} if method == "auto" else {"max_iterations": 20}))
    assert result.status is Status.INFEASIBLE
    assert 0 < len(result.violated) < 20


def test_auto_proves_pigeons_and_sudokus() -> None:
    assert mapmrf.solve(pigeons(10, 9)).status is Status.INFEASIBLE
    clues = "800000000003600000070090200050007000000045700000100030001000068008500010090000400"
    solved = mapmrf.solve(sudoku(clues))
    assert (solved.status, solved.value, solved.violated) == (Status.OPTIMAL, 0.0, ())
    broken = mapmrf.solve(sudoku(clues[:1] + "9" + clues[2:]))
    assert (solved.labels[1] != 8, broken.status, len(broken.violated) >= 1) == (True, Status.INFEASIBLE, True)


def test_a_run_that_finds_nothing_says_what_it_violates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.repair.find_feasible", lambda *_, **__: FeasibleSearch(None, complete=False))
    result = mapmrf.solve(colouring(100, 487, 4, 0), "icm")
    assert (result.status, result.value, result.bound) == (Status.CONVERGED, -math.inf, None)
    assert 0 < len(result.violated) < 20
    assert result.violated == violations(colouring(100, 487, 4, 0), result.labels)


def test_summary_json_and_repr_tell_the_violations() -> None:
    result = mapmrf.solve(triangle())
    assert repr(result).endswith("status=infeasible, violated=1)")
    assert f"violated       1: {result.violated[0]}" in result.summary()
    data = json.loads(result.to_json())
    each = result.violated[0]
    assert data["violated"] == [{"factor": each.factor, "variables": list(each.variables), "states": list(each.states)}]
    assert Result.from_json(result.to_json()).violated == result.violated
    assert Result.from_json(mapmrf.solve(pigeons(3, 3)).to_json()).violated == ()


def test_the_command_line_lists_violations_and_ends_with_3(tmp_path: Path) -> None:
    mapmrf.write(pigeons(10, 9), tmp_path / "pigeons.uai")
    result = command_line.run("solve", str(tmp_path / "pigeons.uai"))
    assert result.exit_code == 3
    assert "violated       1: factor" in result.stdout


def test_repr_and_str_name_the_constraint() -> None:
    graph = mapmrf.FactorGraph.from_tables([2, 2], [], [])
    never = [constraints.at_most_one([0, 1]), constraints.exactly_k([0], 1), constraints.exactly_k([0], 0)]
    found = mapmrf.solve(graph.with_constraints(never)).violated[0]
    assert found.constraint in (1, 2)
    assert (
        repr(found) == f"Violation(factor=None, variables=(0,), states={found.states}, constraint={found.constraint})"
    )
    assert eval(repr(found)) == found
    assert str(found) == f"constraint {found.constraint} (0={found.states[0]})"
    assert repr(Violation(3, ("a",), ("x",))) == "Violation(factor=3, variables=('a',), states=('x',))"
