"""The conflict-driven search, and labellings that violate few factors, against exhaustive search and known answers."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from benchmark_models import FOLDER
from constraint_models import colouring, differ, holes, ksat, pigeons, random_constraints, sudoku
from mapmrf import FactorGraph
from mapmrf.engines.feasibility.clauses import propagate
from mapmrf.engines.feasibility.conflict_search import FEASIBLE, INFEASIBLE, OPEN, ConflictSearch
from mapmrf.engines.feasibility.repair import Repair
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import shortfall
from plain_python import plain
from strategies import Recipe, any_recipes, best_with_each_state, brute_force, labellings, with_weights

STEP = 20_000


def searched(graph: FactorGraph, labels: np.ndarray | None = None) -> ConflictSearch:
    search = ConflictSearch.of(Problem.compile(graph), graph.unary_labels if labels is None else labels)
    while search.run(STEP) == OPEN:
        pass
    return search


def check(graph: FactorGraph, feasible: bool) -> None:
    search = searched(graph)
    assert search.outcome == (FEASIBLE if feasible else INFEASIBLE)
    if feasible:
        assert graph.value(search.labels()) > -math.inf


def test_small_constraint_models_are_decided_as_by_exhaustive_search() -> None:
    for seed in range(300):
        graph = random_constraints(seed)
        check(graph, brute_force(graph)[0] > -math.inf)


@given(recipe=with_weights(any_recipes()))
def test_any_model_is_decided_as_by_exhaustive_search(recipe: Recipe) -> None:
    graph = recipe.graph()
    if graph.constant > -math.inf:
        check(graph, brute_force(graph)[0] > -math.inf)


def test_excluded_states_are_in_no_feasible_labelling() -> None:
    for seed in range(60):
        graph = random_constraints(seed)
        search = searched(graph)
        if search.outcome == FEASIBLE:
            assert not np.any(search.excluded() & (best_with_each_state(graph) > -math.inf))


@pytest.mark.parametrize("n", range(3, 13))
def test_pigeons_need_as_many_holes(n: int) -> None:
    for feasible in (True, False):
        check(pigeons(n + 1 - feasible, n), feasible)
        if n <= 9:
            check(holes(n + 1 - feasible, n), feasible)


def test_pigeons_are_counted_not_tried() -> None:
    assert searched(pigeons(21, 20)).n_conflicts == 0
    assert searched(holes(10, 9)).n_conflicts == 0


def test_counting_finds_pigeons_among_other_variables() -> None:
    graph = pigeons(10, 9)
    others = colouring(20, 40, 9, 0)
    edges = np.concatenate([graph.scope.reshape(-1, 2), others.scope.reshape(-1, 2) + 10, [[0, 12], [3, 15]]])
    both = FactorGraph.from_pairwise(np.zeros((30, 9)), edges, differ(9))
    assert searched(both).outcome == INFEASIBLE


SUDOKUS = (
    "000000010400000000020000000000050407008000300001090000300400200050100000000806000",
    "800000000003600000070090200050007000000045700000100030001000068008500010090000400",
)


@pytest.mark.parametrize("clues", SUDOKUS)
def test_sudokus_have_one_solution(clues: str) -> None:
    search = searched(sudoku(clues))
    assert search.outcome == FEASIBLE and np.count_nonzero(search.excluded()) > 17 * 8
    rows = search.labels().reshape(9, 9)
    for unit in (rows, rows.T, rows.reshape(3, 3, 3, 3).swapaxes(1, 2).reshape(9, 9)):
        assert np.all(np.sort(unit, axis=1) == np.arange(9))
    assert all(int(clue) in (0, k + 1) for clue, k in zip(clues, search.labels(), strict=True))
    at = clues.index("0")
    other = str((int(search.labels()[at]) + 1) % 9 + 1)
    check(sudoku(clues[:at] + other + clues[at + 1 :]), feasible=False)


@pytest.mark.parametrize("seed", range(4))
def test_interchangeable_states_do_not_make_a_colourable_graph_infeasible(seed: int) -> None:
    """Graphs with a planted colouring that is hard to find: names are given to the states on the way."""
    rng = np.random.default_rng(seed)
    planted = rng.integers(0, 4, 100)
    edges = [edge for edge in itertools.combinations(range(100), 2) if planted[edge[0]] != planted[edge[1]]]
    chosen = np.array(edges)[rng.permutation(len(edges))[:450]]
    graph = FactorGraph.from_pairwise(np.zeros((100, 4)), chosen, differ(4))
    check(graph, feasible=True)


def test_names_are_given_only_to_states_that_are_forbidden_for_the_same_variables() -> None:
    graph = colouring(60, 390, 5, 0)
    free = searched(graph)
    assert (free.outcome, free.has_renamed) == (INFEASIBLE, True)
    unary = np.zeros((60, 5))
    unary[np.arange(5), np.arange(5)] = -np.inf
    bound = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), differ(5))
    assert not searched(bound).has_renamed


@pytest.mark.parametrize("seed", range(6))
def test_a_planted_assignment_satisfies_and_more_clauses_do_not(seed: int) -> None:
    check(ksat(120, 500, 3, seed, planted=True), feasible=True)
    check(ksat(60, 500, 3, seed), feasible=False)


def test_the_size_of_the_pieces_does_not_matter() -> None:
    graph = ksat(100, 426, 3, 2)
    pieces = ConflictSearch.of(Problem.compile(graph), graph.unary_labels)
    while pieces.run(50) == OPEN:
        pass
    whole = searched(graph)
    assert (pieces.outcome, pieces.n_conflicts) == (whole.outcome, whole.n_conflicts)


def test_learnt_clauses_get_more_room_when_they_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.engines.feasibility.conflict_search.ROOM", 64)
    check(ksat(100, 560, 3, 0), feasible=False)
    check(ksat(100, 400, 3, 0, planted=True), feasible=True)


def test_preferred_labels_are_kept_if_they_are_feasible() -> None:
    graph = colouring(80, 150, 4, 0)
    labels = searched(graph).labels()
    renamed = (labels + 1) % 4
    assert searched(graph, renamed).labels().tolist() == renamed.tolist()


def test_unit_propagation_does_the_same_as_plain_python() -> None:
    compiled, other = (ConflictSearch.of(Problem.compile(sudoku(SUDOKUS[0])), np.zeros(81, np.int64)) for _ in range(2))
    for search, kernel in ((compiled, propagate), (other, plain(propagate))):
        kernel(search.state.trail, search.state.clauses, search.state.counts)
    assert compiled.state.trail.truth.tolist() == other.state.trail.truth.tolist()


# -- repair -----------------------------------------------------------------------------------------------------------


def repaired(graph: FactorGraph, work: int = 300_000) -> Repair:
    search = Repair(Problem.compile(graph), np.zeros(graph.n_vars, dtype=np.int64))
    search.run(work)
    return search


@pytest.mark.parametrize("seed", range(30))
def test_as_few_factors_are_violated_as_by_exhaustive_search(seed: int) -> None:
    graph = random_constraints(seed, 6, 16, 3)
    fewest = min(shortfall(graph, labels).n_violated for labels in labellings(graph))
    search = repaired(graph)
    assert search.n_violated == fewest == shortfall(graph, search.labels).n_violated


def test_one_pigeon_too_many_shares_one_hole() -> None:
    assert repaired(pigeons(10, 9)).n_violated == 1


def test_a_sparse_colouring_and_loose_clauses_are_solved() -> None:
    assert repaired(colouring(200, 500, 4, 0), 3_000_000).n_violated == 0
    assert repaired(ksat(200, 700, 3, 0), 3_000_000).n_violated == 0


def test_a_labelling_that_violates_nothing_stays() -> None:
    graph = pigeons(5, 5)
    search = Repair(Problem.compile(graph), np.arange(5))
    search.run(1000)
    assert search.labels.tolist() == [0, 1, 2, 3, 4] and search.n_violated == 0


# -- benchmark models -------------------------------------------------------------------------------------------------


FILES = sorted((FOLDER / "families").glob("*.uai.gz"))


@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_model_has_a_feasible_labelling(path: Path) -> None:
    evidence = path.with_suffix(".evid")
    graph = mapmrf.read(path, evidence=evidence if evidence.exists() else None)
    search = ConflictSearch.of(Problem.compile(graph), graph.unary_labels)
    while search.run(1_000_000) == OPEN:
        assert search.n_conflicts < 100_000
    assert search.outcome == FEASIBLE
    assert graph.value(search.labels()) > -math.inf
