"""Bucket messages: in small steps, both ways, within the memory given; the best labellings by repeated passes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from elimination_models import frustrated, prepared
from exhaustive_truth import all_labellings, varied_recipe
from mapmrf.engines.elimination.bucket_messages import (
    BucketMessages,
    RankedLabellings,
    fitting_tree,
    narrow_tree,
    repeated_passes,
)
from mapmrf.engines.elimination.elimination import Elimination
from mapmrf.methods.branch import Branch
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.questions.ranked import SolveCalls, rank_by_elimination, rank_by_passes


def collected(graph: FactorGraph, additions: int) -> BucketMessages:
    _, tree, functions = prepared(graph)
    messages = BucketMessages(tree, functions)
    while not messages.collected:
        messages.collect(additions)
    return messages


def test_small_steps_give_the_same_messages() -> None:
    graph = frustrated(5, 6, 3, seed=1)
    at_once, slowly = collected(graph, 2**40), collected(graph, 1)
    assert at_once.value == slowly.value
    while not slowly.distributed:
        slowly.distribute(1)
    at_once.distribute(2**40)
    assert at_once.distributed
    assert np.array_equal(at_once.marginals(), slowly.marginals())


def test_a_hub_with_many_leaves_and_parts_that_share_nothing() -> None:
    random = np.random.default_rng(0)
    hub = [(0, i) for i in range(1, 400)]
    scopes = [*hub, (400, 401), (402,)]
    tables = [random.normal(size=(3,) * len(scope)) for scope in scopes]
    messages = collected(FactorGraph.from_tables([3] * 403, scopes, tables), 10_000)
    while not messages.distributed:
        messages.distribute(10_000)
    found = messages.marginals().reshape(-1, 3)
    rest = sum(table.max() for table in tables[399:])
    assert found[0] == pytest.approx(sum(table.max(axis=1) for table in tables[:399]) + rest)
    assert found[402] == pytest.approx(messages.value - tables[-1].max() + tables[-1])


def test_candidates_that_are_not_asked_for_are_dropped() -> None:
    messages = collected(frustrated(5, 5, 2, seed=3), 2**40)
    few, many = (RankedLabellings(messages, m, messages.scores) for m in (5, 500))
    for n in range(5):
        few.advance()
        many.advance()
        assert np.array_equal(few.labels(n), many.labels(n))
    assert few.next_value == many.next_value


def test_a_tree_that_fits_takes_no_more_memory_than_allowed() -> None:
    problem = Problem.compile(frustrated(9, 9, 2, seed=0))
    tree = fitting_tree(problem, 2**30)
    assert tree is not None
    needed = BucketMessages.bytes_needed(tree)
    assert fitting_tree(problem, needed) is not None
    assert fitting_tree(problem, needed / 100) is None
    assert narrow_tree(problem, 1000.0) is None


# -- repeated passes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", range(5))
def test_they_find_what_exhaustive_search_finds(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        recipe, m = varied_recipe(seed), 1 + seed % 30
        graph, ranked = recipe.graph(), all_labellings(recipe)
        found = rank_by_passes(graph, m, SolveCalls(Branch(), seed=0, threads=1))
        if found is None:
            assert graph.constant == -math.inf
            continue
        values = [graph.value(labels) for labels in found.labels]
        assert values == pytest.approx([value for value, _ in ranked[:m]], abs=1e-9)
        assert len({tuple(labels) for labels in found.labels}) == len(values)
        following = ranked[m][0] if len(ranked) > m else -math.inf
        assert found.others == pytest.approx(following, abs=1e-9)


def test_they_agree_with_kept_messages_and_need_fewer_passes_than_labellings(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = frustrated(7, 7, 2, seed=5)
    calls = SolveCalls(Branch(), seed=0, threads=1)
    kept = rank_by_elimination(graph, 40, calls)
    passes, begin = [], Elimination.__init__
    monkeypatch.setattr(Elimination, "__init__", lambda *run: passes.append(run) or begin(*run))
    repeated = rank_by_passes(graph, 40, calls)
    assert len(passes) < 20
    assert kept is not None
    assert repeated is not None
    assert [labels.tolist() for labels in kept.labels] == [labels.tolist() for labels in repeated.labels]
    assert kept.others == pytest.approx(repeated.others)


def test_a_model_whose_messages_do_not_fit_is_ranked_by_passes() -> None:
    graph = frustrated(9, 9, 2, seed=1)
    small = SolveCalls(Branch(memory=0.1), seed=0, threads=1)
    found = rank_by_elimination(graph, 5, small)
    best = rank_by_elimination(graph, 5, SolveCalls(Branch(), seed=0, threads=1))
    assert found is not None
    assert best is not None
    assert np.array_equal(found.labels, best.labels)
    assert rank_by_elimination(graph, 5, SolveCalls(Branch(memory=0.001), seed=0, threads=1)) is None


def test_what_is_known_when_a_pass_is_stopped_is_true() -> None:
    graph = frustrated(6, 6, 2, seed=2)
    _, tree, functions = prepared(graph)
    best = rank_by_elimination(graph, 30, SolveCalls(Branch(), seed=0, threads=1))
    assert best is not None
    asked = itertools.count()
    passes = repeated_passes(tree, functions, 30, lambda: next(asked) > 60)
    assert passes is not None
    while len(passes.found) < 30 and passes.advance():
        pass
    n = len(passes.found)
    assert 1 <= n < 30
    assert [graph.value(passes.labels(k)) for k in range(n)] == pytest.approx(
        [graph.value(labels) for labels in best.labels[:n]]
    )
    assert passes.next_value >= graph.value(best.labels[n]) - graph.constant - 1e-9
