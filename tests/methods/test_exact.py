"""Methods that prove optima, in every way that their options offer; the first of the best by exhaustive search."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import mapmrf
from binary_models import binary_graphs, submodular_recipes
from mapmrf import FactorGraph, Status
from mapmrf.engines.program.solvers import scip_failure
from mapmrf.methods.exhaustive import Enumeration
from mapmrf.run.incumbent import Incumbent
from strategies import Recipe, any_recipes, brute_force, random_recipe, recipes, soft_recipes, with_weights

needs_scip = pytest.mark.skipif(scip_failure() is not None, reason=str(scip_failure()))
solvers = ("highs", pytest.param("scip", marks=needs_scip))
ONLY_SEARCH: dict[str, Any] = {"sweeps": 0, "join_sweeps": 0, "local_search": 0}
TURNS_ALONE: dict[str, Any] = {"relax_iterations": 1, "simplify": False, "elimination_entries": 0}
"""Neither the relaxation nor simplification nor elimination may close a gap: the turns of auto have to."""


def check(graph: FactorGraph, method: str, options: dict[str, Any]) -> mapmrf.Result:
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, method, **options)
    if optimum == -math.inf:
        assert (result.status, result.bound) == (Status.INFEASIBLE, -math.inf)
        return result
    assert result.status is Status.OPTIMAL or (method == "cuts" and result.status.closes_gap)
    assert result.value == pytest.approx(optimum, abs=1e-6 if method in ("ad3", "cuts") else 1e-9, rel=1e-12)
    assert all(point.bound is None or point.bound >= optimum - 1e-9 for point in result.trace)
    assert result.bound is not None and optimum - 1e-9 <= result.bound
    return result


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("ad3", {"branch_and_bound": True, "node_order": "best"}),
        ("ad3", {"branch_and_bound": True, "node_order": "depth"}),
        ("auto", {"max_iterations": 200, **TURNS_ALONE}),
        ("branch", {"sweeps": 0}),
        ("branch", {"i_bound": 2}),
        ("branch", {"i_bound": 2, "sweeps": 0}),  # simplifying may leave nothing
        *(("branch", {"i_bound": n, "caching": n % 2 == 0, **ONLY_SEARCH}) for n in (1, 2, 3)),
        *(("wcsp", {"sweeps": n, "local_search": n}) for n in (0, 1, 3)),
        ("toulbar2", {"search": "hbfs", "eliminate": 0}),
        ("toulbar2", {"search": "dfs"}),
        ("toulbar2", {"search": "vns"}),
        ("toulbar2", {"vac": 1}),
        ("toulbar2", {"vac": 3, "eliminate": 4}),
    ],
)
@given(recipe=with_weights(recipes() | any_recipes()))
@example(recipe=random_recipe(60, 2, 8, hard=0.1))  # a node of AD3's tree that has no state left
@settings(max_examples=10)
def test_any_model_is_solved_and_proven_in_every_way(method: str, options: dict[str, Any], recipe: Recipe) -> None:
    if method == "toulbar2":
        pytest.importorskip("pytoulbar2", reason="needs the optional extra: pip install 'mapmrf[exact]'")
    result = check(recipe.graph(), method, options)
    if method == "branch":
        avoided = {"elimination"} if "i_bound" in options else {"search", "mini-buckets", "cost shifting"}
        assert not {point.phase for point in result.trace} & avoided


@pytest.mark.parametrize("solver", solvers)
@given(
    graph=binary_graphs() | with_weights(recipes() | any_recipes()).map(Recipe.graph),
    rounds=st.sampled_from([0, 1, 2, 100]),
    persistency=st.booleans(),
    lp_iterations=st.sampled_from([0, 300]),
)
@settings(max_examples=60)
def test_a_solver_proves_any_model_after_any_rounds(solver: str, graph: FactorGraph, **options: Any) -> None:
    check(graph, "cuts", {"solver": solver, "local_search": 0, **options})


@given(recipe=submodular_recipes())
def test_a_cut_proves_submodular_models_whose_relaxation_is_tight(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = check(graph, "maxflow", {})
    if result.status is Status.OPTIMAL:
        assert result.bound == pytest.approx(result.value, rel=1e-12, abs=1e-12)
        assert mapmrf.solve(graph, "lp").bound == pytest.approx(result.value, rel=1e-7, abs=1e-7)


# -- exhaustive search ------------------------------------------------------------------------------------------------


def enumerated(graph: FactorGraph, block: int) -> Incumbent:
    """The best labelling after all blocks of so many labellings."""
    search = Enumeration(graph, block)
    while search.done < search.n_blocks:
        search.search_block()
    return search.best


@given(recipe=with_weights(any_recipes() | soft_recipes()), block=st.sampled_from([1, 7, 2**14]), whole=st.booleans())
def test_any_block_size_gives_the_first_optimum_of_all(recipe: Recipe, block: int, whole: bool) -> None:
    """Whole numbers have many exact ties."""
    if whole:
        recipe = Recipe(recipe.card, recipe.scopes, [np.round(table) for table in recipe.tables])
    graph = recipe.graph()
    (value, labels), found = brute_force(graph), enumerated(graph, block)
    assert found.value == pytest.approx(value, abs=1e-9)
    assert not whole or value == -math.inf or tuple(found.labels) == labels


def test_a_tie_is_not_decided_by_the_start() -> None:
    graph = Recipe([2, 2], [(0, 1)], [np.zeros((2, 2))]).graph()
    assert mapmrf.solve(graph, "exhaustive", initial=[1, 1]).labels.tolist() == [0, 0]


def test_variables_of_one_state_do_not_count() -> None:
    """More of them than numpy has axes."""
    recipe = Recipe([1] * 100 + [2], [(0, 50, 100)], [np.array([[[1.0, 2.0]]])])
    result = mapmrf.solve(recipe.graph(), "exhaustive")
    assert (result.value, result.labels[-1]) == (2.0, 1)
