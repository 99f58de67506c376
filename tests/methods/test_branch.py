"""Branch: the optimum by elimination and by search, limits, and the life of a run."""

from __future__ import annotations

import gc
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from benchmark_models import benchmark, references
from clocks import LIMIT, Clock
from elimination_models import frustrated
from mapmrf import FactorGraph, OptionError, Result, Status
from mapmrf.datasets import grid
from mapmrf.engines.elimination.and_or import AndOrSearch
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.methods.branch import Branch
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress, Start
from mapmrf.run.result import TracePoint
from strategies import Recipe, any_recipes, brute_force, plant, random_recipe, recipes, with_weights

ONLY_SEARCH: dict[str, Any] = {"i_bound": 1, "sweeps": 0, "join_sweeps": 0, "local_search": 0}
"""Nothing but the search: weak bounds and a poor first labelling."""


def phases(result: Result) -> set[str]:
    return {point.phase for point in result.trace}


def assert_exact(graph: FactorGraph, result: Result) -> None:
    optimum, _ = brute_force(graph)
    if optimum == -math.inf:
        assert result.status is Status.INFEASIBLE
        return
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(optimum, abs=1e-7)
    assert result.bound is not None and result.bound >= optimum - 1e-9


@given(recipe=with_weights(recipes() | any_recipes()))
def test_elimination_alone_is_exact(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "branch", sweeps=0)
    assert_exact(graph, result)
    assert not phases(result) & {"search", "mini-buckets", "cost shifting"}


@given(recipe=with_weights(recipes() | any_recipes()), i_bound=st.integers(1, 3), caching=st.booleans())
def test_search_alone_is_exact(recipe: Recipe, i_bound: int, caching: bool) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": i_bound}), caching=caching)
    assert_exact(graph, result)
    assert "elimination" not in phases(result)


@pytest.mark.parametrize("graph", [frustrated(6, 6), frustrated(5, 4, states=3), frustrated(5, 5, wrap=True)])
def test_search_with_any_i_bound_and_with_and_without_cache_agrees_with_elimination(graph: FactorGraph) -> None:
    truth = mapmrf.solve(graph, "branch", sweeps=0)
    assert phases(truth) >= {"elimination"}
    nodes = {}
    roots = []
    for i_bound in (1, 2, 3, 4):
        for caching in (True, False):
            options = ONLY_SEARCH | {"i_bound": i_bound, "caching": caching}
            result = mapmrf.solve(graph, "branch", **options)
            assert result.status is Status.OPTIMAL
            assert result.value == pytest.approx(truth.value, abs=1e-9)
            assert result.details["i_bound"] <= i_bound
            nodes[i_bound, caching] = result.details["nodes"]
            roots.append(result.details["root_bound"])
    assert min(roots) >= truth.value - 1e-9
    assert roots[-1] < roots[0], "larger mini-buckets should bound better on these models"
    assert nodes[1, True] < nodes[1, False], "the cache should have been of use"


def test_search_handles_factors_of_higher_order_with_hard_entries() -> None:
    """Too many variables for brute force: elimination is the truth."""
    random = np.random.default_rng(5)
    recipe = Recipe(random.integers(2, 4, 24).tolist())
    for i in range(22):
        scope = (i, i + 1, int(random.integers(24))) if i % 2 else (i, i + 2)
        scope = tuple(dict.fromkeys(scope))
        table = random.normal(size=[recipe.card[j] for j in scope])
        table[random.random(table.shape) < 0.25] = -np.inf
        recipe.add(scope, table)
    plant(recipe, 1)
    graph = recipe.graph()
    truth = mapmrf.solve(graph, "branch", sweeps=0)
    for i_bound in (1, 3):
        result = mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": i_bound}))
        assert result.value == pytest.approx(truth.value, abs=1e-9)
        assert result.status is Status.OPTIMAL


def test_a_small_memory_means_search_and_a_large_one_elimination() -> None:
    graph = frustrated(8, 8)
    small = mapmrf.solve(graph, "branch", memory=0.002, sweeps=0)
    large = mapmrf.solve(graph, "branch", sweeps=0)
    assert "search" in phases(small) and "elimination" not in phases(small)
    assert "elimination" in phases(large) and "search" not in phases(large)
    assert small.value == pytest.approx(large.value, abs=1e-9)
    assert small.status is large.status is Status.OPTIMAL


def test_an_iteration_limit_leaves_a_labelling_and_a_bound_that_holds() -> None:
    graph = frustrated(7, 7, seed=6)
    optimum = mapmrf.solve(graph, "branch").value
    for limit in (1, 30, 49, 50, 60):
        result = mapmrf.solve(graph, "branch", i_bound=2, max_iterations=limit)
        assert result.iterations <= limit
        assert result.value <= optimum + 1e-9
        assert result.bound is not None and result.bound >= optimum - 1e-9
        assert result.status in (Status.ITERATION_LIMIT, Status.OPTIMAL)


def test_a_time_limit_leaves_a_labelling_and_a_bound(clock: Clock) -> None:
    graph = grid(40, 40, coupling=10.0)

    def look(point: TracePoint, labels: np.ndarray) -> None:
        if point.phase == "search":
            clock.pass_limit()

    result = mapmrf.solve(graph, "branch", memory=1, local_search=1, time_limit=LIMIT, callback=look)
    assert result.status is Status.TIME_LIMIT
    assert result.bound is not None and math.isfinite(result.bound)
    assert result.value <= result.bound
    assert result.value > mapmrf.solve(graph, "icm").value


def test_same_seed_same_run() -> None:
    graph = frustrated(8, 8, seed=1)
    first, again = (mapmrf.solve(graph, "branch", i_bound=3, seed=7) for _ in range(2))
    assert first.labels.tolist() == again.labels.tolist()
    assert (first.iterations, first.details) == (again.iterations, again.details)
    assert [point.value for point in first.trace] == [point.value for point in again.trace]


def test_a_tight_relaxation_is_certified_by_cost_shifting() -> None:
    graph = grid(12, 12, coupling=0.2)
    result = mapmrf.solve(graph, "branch")
    assert result.status is Status.OPTIMAL
    assert result.iterations == 0 and phases(result) <= {"local search", "cost shifting"}


def test_a_search_tree_too_deep_for_the_memory_is_not_searched() -> None:
    """The labels that open nodes keep need more than the kilobyte given."""
    result = mapmrf.solve(frustrated(10, 10), "branch", memory=0.001, **ONLY_SEARCH)
    assert "search" not in phases(result)
    assert result.status is Status.CONVERGED
    assert result.bound == pytest.approx(result.details["root_bound"])


def test_a_labelling_from_elsewhere_is_taken_over_if_it_is_better() -> None:
    graph = frustrated(6, 6, seed=3)
    problem, method = Problem.compile(graph), Branch(**ONLY_SEARCH)
    optimal, poor = mapmrf.solve(graph, "branch").labels, np.zeros(36, dtype=np.int64)
    run = method.start(problem, 0, Start(poor))
    run.inform(optimal)
    assert method.answer(problem, run).labels is not None
    assert graph.value(method.answer(problem, run).labels) == pytest.approx(graph.value(optimal))
    run.inform(poor)
    assert graph.value(method.answer(problem, run).labels) == pytest.approx(graph.value(optimal))
    method.close(problem, run)


def test_answers_between_steps_change_nothing() -> None:
    graph = frustrated(7, 7, seed=2)
    problem, method = Problem.compile(graph), Branch(i_bound=2)
    asked, unasked = (method.start(problem, 0, Start()) for _ in range(2))
    progress = Progress(0)
    while progress.finished is None:
        first, second = method.answer(problem, asked), method.answer(problem, asked)
        assert np.array_equal(first.labels, second.labels) and first.details == second.details
        progress, other = method.step(problem, asked), method.step(problem, unasked)
        assert np.array_equal(progress.labels, other.labels)
        assert (progress.iterations, progress.bound, progress.phase) == (other.iterations, other.bound, other.phase)
    assert progress.finished is Status.OPTIMAL
    for run in (asked, unasked):
        method.close(problem, run)


def test_closing_a_run_in_the_midst_of_its_search_frees_the_tables_at_once() -> None:
    problem, method = Problem.compile(frustrated(9, 9, seed=2)), Branch(**(ONLY_SEARCH | {"memory": 1.0}))
    gc.collect()
    gc.disable()  # what only a collection frees stays where it is
    try:
        run = method.start(problem, 0, Start())
        while method.step(problem, run).phase != "search":
            pass
        assert any(type(held) is AndOrSearch for held in gc.get_objects())
        method.close(problem, run)
        assert not any(type(held) in (AndOrSearch, MiniBuckets) for held in gc.get_objects())
        assert method.answer(problem, run).labels is not None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("memory", 0.0),
        ("memory", math.nan),
        ("i_bound", -1),
        ("restarts", 0),
        ("sweeps", -1),
        ("join_sweeps", -1),
        ("local_search", -1),
    ],
)
def test_impossible_options_are_refused(option: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"branch: {option} is"):
        Branch(**{option: value})


def test_join_graph_shifting_tightens_mini_buckets() -> None:
    graph = frustrated(5, 5, states=3, seed=1)
    plain, shifted = (
        mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": 2, "join_sweeps": sweeps})) for sweeps in (0, 20)
    )
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert shifted.details["root_bound"] < plain.details["root_bound"]
    assert shifted.details["nodes"] < plain.details["nodes"]


def test_hard_models_without_a_solution_are_proven_so_by_search() -> None:
    """Four variables that must all differ, with three states: no state can be removed beforehand."""
    differ = np.where(np.eye(3, dtype=bool), -np.inf, 0.0)
    scopes = [(i, j) for i in range(4) for j in range(i)]
    graph = FactorGraph.from_tables([3] * 4, scopes, [differ] * 6)
    for options in ({}, ONLY_SEARCH):
        result = mapmrf.solve(graph, "branch", **options)
        assert result.status is Status.INFEASIBLE
        assert result.bound == -math.inf


def test_random_models_of_mixed_arity_agree_on_all_ways() -> None:
    for seed in range(8):
        graph = random_recipe(seed, 7, 16, hard=0.1 * (seed % 3)).graph()
        results = [mapmrf.solve(graph, "branch", **options) for options in ({}, {"i_bound": 2}, ONLY_SEARCH)]
        assert len({(result.status, round(result.value, 9)) for result in results}) == 1


# -- real models ------------------------------------------------------------------------------------------------------


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("segmentation2/10_14_s.binary.uai.gz", {}),
        ("segmentation2/10_14_s.binary.uai.gz", {"sweeps": 0}),
        ("scene/0000047.uai.gz", {}),
        ("grids-small/grid10x10.f10.wrap.uai.gz", {}),
        ("grids-small/grid10x10.f15.wrap.uai.gz", {"i_bound": 12}),
        ("grids-small/grid20x20.f5.uai.gz", {"i_bound": 14}),
        ("other/Family2Dominant.1.5loci.uai.gz", {}),
        ("other/30markers.uai.gz", {}),
    ],
)
def test_benchmark_models_are_proven(name: str, options: dict[str, Any]) -> None:
    result = mapmrf.solve(benchmark(name), "branch", **options)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(references()[name], abs=1e-3)


def test_a_constraint_whose_sums_have_no_table_is_counted() -> None:
    random = np.random.default_rng(3)
    n = 30
    graph = mapmrf.FactorGraph.from_tables(
        [2] * n, [(i,) for i in range(n)], [[0.0, gain] for gain in random.uniform(1.0, 2.0, n)]
    )
    graph = graph.with_constraints([mapmrf.constraints.linear(range(n), random.uniform(1.0, 2.0, n), upper=11.0)])
    found, other = mapmrf.solve(graph, "branch"), mapmrf.solve(graph, "cuts")
    assert found.status is Status.OPTIMAL
    assert found.value == pytest.approx(other.value)


@pytest.mark.parametrize("options", [{}, {"i_bound": 1}, {"i_bound": 2, "caching": False, "sweeps": 0}])
def test_models_with_constraints_against_exhaustive_search(options: dict[str, int]) -> None:
    from constrained_recipes import random_constrained

    for seed in range(12):
        recipe = random_constrained(seed, n_vars=6, n_constraints=4)
        result, optimum = mapmrf.solve(recipe.graph(), "branch", **options), recipe.optimum()
        assert result.value == pytest.approx(optimum)
        assert result.status is (Status.OPTIMAL if optimum > -math.inf else Status.INFEASIBLE)
