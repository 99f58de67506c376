"""Constraints in the AND/OR search: counters along paths and their prices, against exhaustive search."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import mapmrf
from constrained_recipes import KINDS, one_kind, random_constrained
from mapmrf import FactorGraph, constraints
from mapmrf.engines.elimination.and_or import AndOrSearch
from mapmrf.engines.elimination.elimination import Functions, tree_with_paths, with_cliques
from mapmrf.engines.elimination.mini_buckets import CostShifting, MiniBuckets, find_partition
from mapmrf.engines.elimination.orders import PrimalGraph, find_order
from mapmrf.engines.elimination.path_constraints import ConstraintForms, ConstraintPrices, assignment_prices
from mapmrf.model.problem import Problem


def tree_of(problem: Problem, forms: ConstraintForms):
    graph = PrimalGraph.of(problem)
    order = find_order(with_cliques(graph, forms.scopes), problem.graph.card)
    return tree_with_paths(graph, problem.graph.card, order, forms.scopes)


def search_of(problem: Problem, forms: ConstraintForms, shifting: CostShifting | None = None) -> AndOrSearch:
    """A search with messages of one variable."""
    tree = tree_of(problem, forms)
    given = Functions.of_model(problem, tree)
    if shifting is not None:
        given = Functions.of(problem, tree, shifting.theta_v, shifting.theta_f, shifting.table_ptr[:-1])
    partition = find_partition(tree, given, 1, math.inf)
    assert partition is not None
    buckets = MiniBuckets(tree, given, partition)
    while not buckets.finished:
        buckets.advance(10**6, 10**6)
    return AndOrSearch(buckets, 1e6, forms)


def best_of(search: AndOrSearch) -> np.ndarray | None:
    while not search.finished:
        search.advance(10**6, 10**9)
    found = search.best_labels()
    return None if found is None else search.tree.by_variable(found)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("priced", [False, True])
def test_the_search_finds_the_optimum(kind: str, soft: bool, priced: bool) -> None:
    for seed in range(6):
        recipe = one_kind(kind, seed, soft, n_vars=5, hard=0.1 * (seed % 2))
        graph, optimum = recipe.graph(), recipe.optimum()
        problem = Problem.compile(graph)
        forms, shifting = ConstraintForms.of(problem), CostShifting(problem, np.arange(graph.n_vars))
        if forms.root == -math.inf:
            assert optimum == -math.inf
            continue
        prices = ConstraintPrices(forms, shifting)
        for _ in range(3 if priced else 0):
            list(shifting.sweep())
            prices.update()
            assert prices.bound() >= optimum - 1e-9
        labels = best_of(search_of(problem, forms, shifting))
        assert (-math.inf if labels is None else graph.value(labels)) == pytest.approx(optimum)


def test_labels_taken_back_leave_no_marks() -> None:
    for seed in range(20):
        problem = Problem.compile(random_constrained(seed, n_vars=6, n_constraints=4).graph())
        forms = ConstraintForms.of(problem)
        if forms.root == -math.inf:
            continue
        search = search_of(problem, forms)
        marks = search._state.marks
        before = [marks.used.copy(), marks.holders.copy(), marks.repeats.copy(), marks.alive.copy(), marks.left.copy()]
        height = int(marks.tally.height)
        best_of(search)
        after = [marks.used, marks.holders, marks.repeats, marks.alive, marks.left]
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))
        assert int(marks.tally.height) == height
        assert np.all(marks.held == -1)


def test_variables_of_a_constraint_are_on_one_path() -> None:
    for seed in range(20):
        problem = Problem.compile(random_constrained(seed, n_vars=7, n_constraints=4).graph())
        forms = ConstraintForms.of(problem)
        tree = tree_of(problem, forms)
        position = np.argsort(tree.var_of)
        scopes = [*forms.scopes, *(problem.graph.scope_of(a) for a in range(problem.n_factors))]
        for scope in scopes:
            places = np.sort(position[scope])
            for above, below in itertools.pairwise(places):
                assert above < below < tree.end[above]
        for p in range(tree.n):
            context = tree.context[tree.context_ptr[p] : tree.context_ptr[p + 1]]
            inside = set(tree.var_of[p : tree.end[p]].tolist())
            reached = {
                i for scope in scopes[len(forms.scopes) :] if inside & set(scope.tolist()) for i in scope.tolist()
            }
            assert set(tree.var_of[context].tolist()) == reached - inside


def test_prices_of_an_assignment_make_the_bound_its_optimum() -> None:
    from scipy.optimize import linear_sum_assignment

    for seed, shape in enumerate([(6, 6), (4, 7), (1, 3), (9, 9)]):
        gains = np.random.default_rng(seed).normal(size=shape)
        price = assignment_prices(gains)
        assert price is not None
        best = gains[linear_sum_assignment(gains, maximize=True)].sum()
        bound = (gains - price).max(axis=1).sum() + np.sort(price)[::-1][: shape[0]].sum()
        assert bound == pytest.approx(best)
    assert assignment_prices(np.array([[0.0, -np.inf], [0.0, -np.inf]])) is None


@pytest.mark.parametrize("seed", range(6))
def test_the_price_of_a_sum_gives_the_bound_of_the_relaxation(seed: int) -> None:
    random = np.random.default_rng(seed)
    n = 12
    graph = FactorGraph.from_tables([2] * n, [(i,) for i in range(n)], [[0.0, g] for g in random.normal(size=n)])
    weights = random.integers(1, 9, n).astype(float)
    limit = constraints.linear(range(n), weights.tolist(), upper=float(weights.sum() // 3), lower=2.0 * (seed % 3))
    graph = graph.with_constraints([limit])
    problem = Problem.compile(graph)
    prices = ConstraintPrices(ConstraintForms.of(problem), CostShifting(problem, np.arange(n)))
    prices.update()
    assert prices.bound() == pytest.approx(mapmrf.solve(graph, "lp").bound, abs=1e-6)


def test_a_label_cost_pays_for_what_its_label_gains() -> None:
    """Four variables gain 1 each by a label of price 3: the bound is 1, that of a price for each of them would be 4."""
    graph = FactorGraph.from_tables([2] * 4, [(i,) for i in range(4)], [[0.0, 1.0]] * 4)
    problem = Problem.compile(graph.with_constraints([constraints.label_cost(1, 3.0)]))
    forms = ConstraintForms.of(problem)
    prices = ConstraintPrices(forms, CostShifting(problem, np.arange(4)))
    assert prices.bound() == 4.0
    prices.update()
    assert prices.bound() == pytest.approx(1.0)


def test_single_choices_decide_a_small_sudoku_without_a_search() -> None:
    cell = np.arange(16).reshape(4, 4)
    boxes = cell.reshape(2, 2, 2, 2).swapaxes(1, 2).reshape(4, 4)
    groups = [*cell.tolist(), *cell.T.tolist(), *boxes.tolist()]
    clues = {0: 0, 1: 1, 3: 3, 4: 2, 9: 0, 10: 3, 15: 0}
    theta = np.zeros((16, 4))
    for i, k in clues.items():
        theta[i, np.arange(4) != k] = -np.inf
    graph = FactorGraph.from_tables([4] * 16, [(i,) for i in range(16)], list(theta)).with_constraints(
        [constraints.all_different(group) for group in groups]
    )
    problem = Problem.compile(graph)
    forms = ConstraintForms.of(problem)
    search = search_of(problem, forms)
    assert int(search._state.marks.alive[:-1].sum()) == 16
    labels = best_of(search)
    assert labels is not None
    assert graph.value(labels) == 0.0
    assert search.n_expanded == 17
