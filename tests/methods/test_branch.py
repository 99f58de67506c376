"""Branch: the optimum by elimination and by search, bounds that hold at any time, and its parts one by one."""

from __future__ import annotations

import csv
import itertools
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, OptionError, Result, Status
from mapmrf.datasets import grid
from mapmrf.engines.elimination.and_or import AndOr
from mapmrf.engines.elimination.elimination import BucketTree, Functions, PrimalGraph, find_order
from mapmrf.engines.elimination.join_graph import JoinGraph
from mapmrf.engines.elimination.mini_buckets import MiniBuckets, Plan, Shifting
from mapmrf.methods import branch
from mapmrf.methods.branch import Branch
from mapmrf.problem import Problem
from strategies import Recipe, any_recipes, brute_force, plant, random_recipe, recipes

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


@given(recipe=recipes() | any_recipes())
def test_elimination_alone_is_exact(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "branch", sweeps=0)
    assert_exact(graph, result)
    assert not phases(result) & {"search", "mini-buckets", "cost shifting"}


@given(recipe=recipes() | any_recipes(), i_bound=st.integers(1, 3), caching=st.booleans())
def test_search_alone_is_exact(recipe: Recipe, i_bound: int, caching: bool) -> None:
    graph = recipe.graph()
    result = mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": i_bound}), caching=caching)
    assert_exact(graph, result)
    assert "elimination" not in phases(result)


def frustrated(rows: int, columns: int, states: int = 2, seed: int = 0, wrap: bool = False) -> FactorGraph:
    """A grid of pairs that prefer no state of either variable by itself: simplifying finds little in it."""
    random = np.random.default_rng(seed)
    place = np.arange(rows * columns).reshape(rows, columns)
    across = np.stack([place, np.roll(place, -1, axis=1)], axis=-1)[:, : columns if wrap else columns - 1]
    down = np.stack([place, np.roll(place, -1, axis=0)], axis=-1)[: rows if wrap else rows - 1]
    edges = np.concatenate([across.reshape(-1, 2), down.reshape(-1, 2)])
    tables = random.normal(size=(len(edges), states, states))
    tables -= tables.mean(axis=1, keepdims=True)
    tables -= tables.mean(axis=2, keepdims=True)
    return FactorGraph.from_pairwise(0.1 * random.normal(size=(rows * columns, states)), edges, tables)


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


def test_the_bound_never_rises_and_always_holds_while_the_search_goes_on() -> None:
    graph = frustrated(7, 7, seed=3)
    optimum = mapmrf.solve(graph, "branch").value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "STEP_LOOK_UPS", 200)
        patch.setattr(branch, "MOVES_BESIDE", 0)
        patch.setattr(branch, "TRIALS_BESIDE", 0)
        result = mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": 2}))
    searched = [point for point in result.trace if point.phase == "search"]
    bounds = [point.bound for point in searched]
    assert len(searched) > 20
    assert bounds == sorted(bounds, reverse=True)
    assert all(point.bound_now >= optimum - 1e-9 for point in searched)
    assert bounds[-2] < bounds[0], "completed subtrees should have lowered the bound"
    assert result.value == pytest.approx(optimum, abs=1e-9)


def test_cutting_the_search_into_short_steps_changes_only_when_labellings_are_offered() -> None:
    graph = frustrated(5, 5, seed=4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "STEP_LOOK_UPS", 1)
        patch.setattr(branch, "STEP_ADDITIONS", 1)
        result = mapmrf.solve(graph, "branch", **ONLY_SEARCH)
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value, abs=1e-9)
    assert result.status is Status.OPTIMAL


def test_an_iteration_limit_leaves_a_labelling_and_a_bound_that_holds() -> None:
    graph = frustrated(7, 7, seed=6)
    optimum = mapmrf.solve(graph, "branch").value
    for limit in (1, 30, 49, 50, 60):
        result = mapmrf.solve(graph, "branch", i_bound=2, max_iterations=limit)
        assert result.iterations <= limit
        assert result.value <= optimum + 1e-9
        assert result.bound is not None and result.bound >= optimum - 1e-9
        assert result.status in (Status.ITERATION_LIMIT, Status.OPTIMAL)


def test_a_time_limit_leaves_a_labelling_and_a_bound() -> None:
    graph = grid(40, 40, coupling=10.0)
    result = mapmrf.solve(graph, "branch", memory=1, local_search=1, time_limit=2.0)
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


def test_a_search_tree_too_deep_for_the_memory_is_not_begun() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AndOr, "bytes_needed", staticmethod(lambda tree: 2**60))
        result = mapmrf.solve(frustrated(6, 6), "branch", **ONLY_SEARCH)
    assert result.status is Status.CONVERGED
    assert result.bound == pytest.approx(result.details["root_bound"])


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


# -- the parts --------------------------------------------------------------------------------------------------------


def buckets_of(graph: FactorGraph, max_vars: int, sweeps: int = 0) -> MiniBuckets:
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card))
    shifting = Shifting(problem, np.arange(problem.n_vars))
    for _ in range(sweeps):
        shifting.sweep()
    given = Functions.of(problem, tree, shifting.theta_v, shifting.theta_f, shifting.table_ptr[:-1])
    plan = Plan.find(tree, given, max_vars, math.inf)
    assert plan is not None
    buckets = MiniBuckets(tree, given, plan)
    while not buckets.finished:
        buckets.advance(1000, tree.n)
    return buckets


@given(recipe=recipes(), max_vars=st.integers(0, 7), sweeps=st.integers(0, 2))
def test_mini_buckets_bound_from_above_and_large_ones_are_exact(recipe: Recipe, max_vars: int, sweeps: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    buckets = buckets_of(graph, max_vars, sweeps)
    assert buckets.bound() + graph.constant >= optimum - 1e-9
    assert np.diff(buckets.fn_ptr[buckets.n_given :]).max(initial=0) <= max(max_vars, graph.arity.max(initial=1) - 1)
    if not buckets.split.any():
        assert buckets.bound() + graph.constant == pytest.approx(optimum, abs=1e-9)
        labels = np.zeros(graph.n_vars, dtype=np.int64)
        buckets.complete(labels, np.zeros(graph.n_vars, dtype=bool))
        by_variable = np.empty_like(labels)
        by_variable[buckets.tree.var_of] = labels
        assert graph.value(by_variable) == pytest.approx(optimum, abs=1e-9)
    if max_vars == 7:
        assert not buckets.split.any()


def test_the_plan_takes_the_largest_tables_that_fit() -> None:
    problem = Problem.compile(frustrated(7, 7))
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, problem.graph.card, find_order(beside, problem.graph.card))
    given = Functions.of(problem, tree, problem.graph.theta_v, problem.graph.theta_t, problem.table_at)
    largest = []
    for room in (60.0, 200.0, 2000.0, 1e9):
        buckets = MiniBuckets(tree, given, Plan.within(tree, given, room))
        assert len(buckets.arena) <= max(room, 4 * tree.n)
        largest.append(buckets.largest_scope)
    assert largest == sorted(largest) and largest[0] < largest[-1]
    assert not MiniBuckets(tree, given, Plan.within(tree, given, 1e9)).split.any()


@given(recipe=recipes())
def test_cost_shifting_keeps_every_value_and_never_raises_the_bound(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    shifting = Shifting(problem, np.arange(problem.n_vars))
    bounds = [shifting.bound()]
    for _ in range(4):
        shifting.sweep()
        bounds.append(shifting.bound())
    assert bounds[-1] >= brute_force(graph)[0] - 1e-9
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    random = np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        total = graph.constant + shifting.theta_v[graph.var_ptr[:-1] + labels].sum()
        for a in range(problem.n_factors):
            scope = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]]
            table = shifting.theta_f[shifting.table_ptr[a] : shifting.table_ptr[a + 1]].reshape(graph.card[scope])
            total += table[tuple(labels[scope])]
        assert total == pytest.approx(graph.value(labels), abs=1e-9)


def join_graph_of(graph: FactorGraph, max_vars: int) -> JoinGraph:
    problem = Problem.compile(graph)
    beside = PrimalGraph.of(problem)
    tree = BucketTree.build(beside, graph.card, find_order(beside, graph.card))
    given = Functions.of(problem, tree, graph.theta_v, graph.theta_t, problem.table_at)
    plan = Plan.find(tree, given, max_vars, math.inf)
    assert plan is not None
    return JoinGraph(tree, given, plan)


@given(recipe=recipes(), max_vars=st.integers(0, 7))
def test_join_graph_shifting_keeps_every_value_and_never_raises_the_bound(recipe: Recipe, max_vars: int) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    join = join_graph_of(graph, max_vars)
    bounds = [join.bound() + graph.constant]
    for k in range(3):
        while join.sweeps == k:
            join.advance(1)
        bounds.append(join.bound() + graph.constant)
    assert all(after <= before + 1e-9 for before, after in itertools.pairwise(bounds))
    assert bounds[-1] >= optimum - 1e-9
    if max_vars == 7:
        assert bounds[-1] == pytest.approx(optimum, abs=1e-9), "a sweep over unsplit buckets is exact elimination"
    fns, random = join.functions(), np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        at = labels[join.tree.var_of]
        places = fns.at + np.add.reduceat(fns.stride * at[fns.var], fns.ptr[:-1])
        total = graph.constant + float(fns.theta[places].sum())
        assert total == pytest.approx(graph.value(labels), abs=1e-9)


def test_join_graph_shifting_tightens_mini_buckets() -> None:
    graph = frustrated(5, 5, states=3, seed=1)
    plain, shifted = (
        mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": 2, "join_sweeps": sweeps})) for sweeps in (0, 20)
    )
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert shifted.details["root_bound"] < plain.details["root_bound"]
    assert shifted.details["nodes"] < plain.details["nodes"]


def test_the_search_continues_from_a_better_value_that_it_is_told() -> None:
    """What is known from elsewhere cuts the search short, also in the midst of it."""
    graph = grid(7, 7, coupling=5.0)
    optimum = mapmrf.solve(graph, "branch").value
    counts = []
    for known in (-math.inf, optimum - 1e-6):
        search = AndOr(buckets_of(graph, 1), 2.0**20)
        search.advance(50, 10**9)
        search.know(known - graph.constant)
        while not search.finished:
            search.advance(10**6, 10**9)
        labels = search.best_labels()
        assert labels is not None
        by_variable = np.empty_like(labels)
        by_variable[search.tree.var_of] = labels
        assert graph.value(by_variable) == pytest.approx(optimum, abs=1e-9)
        counts.append(search.n_expanded)
    assert counts[1] < counts[0]


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

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[3] / "shared" / "data")


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
    if not (FOLDER / name).is_file():
        pytest.skip(f"no benchmark models in {FOLDER}")
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        optimum = {row["file"]: row["logpot"] for row in csv.DictReader(file)}[name]
    result = mapmrf.solve(mapmrf.read(FOLDER / name), "branch", **options)
    assert result.status is Status.OPTIMAL
    assert result.value == pytest.approx(float(optimum), abs=1e-3)
