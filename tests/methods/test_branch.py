"""Branch: elimination and search agree, limits, memory, and the life of a run."""

from __future__ import annotations

import gc
from typing import Any

import pytest

import mapmrf
from elimination_models import frustrated
from mapmrf import FactorGraph, Result, Status
from mapmrf.datasets import grid
from mapmrf.engines.elimination.and_or import AndOrSearch
from mapmrf.engines.elimination.mini_buckets import MiniBuckets
from mapmrf.methods.branch import Branch
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start

ONLY_SEARCH: dict[str, Any] = {"i_bound": 1, "sweeps": 0, "join_sweeps": 0, "local_search": 0}
"""Nothing but the search: weak bounds and a poor first labelling."""


def phases(result: Result) -> set[str]:
    return {point.phase for point in result.trace}


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


def test_a_small_memory_means_search_and_a_large_one_elimination() -> None:
    graph = frustrated(8, 8)
    small = mapmrf.solve(graph, "branch", memory=0.002, sweeps=0)
    large = mapmrf.solve(graph, "branch", sweeps=0)
    assert "search" in phases(small) and "elimination" not in phases(small)
    assert "elimination" in phases(large) and "search" not in phases(large)
    assert small.value == pytest.approx(large.value, abs=1e-9)
    assert small.status is large.status is Status.OPTIMAL


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


def test_join_graph_shifting_tightens_mini_buckets() -> None:
    graph = frustrated(5, 5, states=3, seed=1)
    plain, shifted = (
        mapmrf.solve(graph, "branch", **(ONLY_SEARCH | {"i_bound": 2, "join_sweeps": sweeps})) for sweeps in (0, 20)
    )
    assert shifted.value == pytest.approx(plain.value, abs=1e-9)
    assert shifted.details["root_bound"] < plain.details["root_bound"]
    assert shifted.details["nodes"] < plain.details["nodes"]
