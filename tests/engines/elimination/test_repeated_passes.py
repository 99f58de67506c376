"""Repeated passes: the labellings of exhaustive search, with few passes, and what is known when stopped."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from elimination_models import frustrated, prepared
from exhaustive_truth import all_labellings, varied_recipe
from mapmrf.engines.elimination.bucket_messages import RepeatedPasses
from mapmrf.methods.branch import Branch
from mapmrf.questions.ranked import SolveCalls, rank_by_elimination, rank_by_passes


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


def test_they_agree_with_kept_messages_and_need_fewer_passes_than_labellings() -> None:
    graph = frustrated(7, 7, 2, seed=5)
    calls = SolveCalls(Branch(), seed=0, threads=1)
    kept, repeated = rank_by_elimination(graph, 40, calls), rank_by_passes(graph, 40, calls)
    assert kept is not None
    assert repeated is not None
    assert [labels.tolist() for labels in kept.labels] == [labels.tolist() for labels in repeated.labels]
    assert kept.others == pytest.approx(repeated.others)
    _, tree, functions = prepared(graph)
    passes = RepeatedPasses(tree, functions, 40, lambda: False)
    assert passes.start()
    while len(passes.found) < 40:
        passes.advance()
    assert passes.n_passes < 20


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
    passes = RepeatedPasses(tree, functions, 30, lambda: next(asked) > 60)
    assert passes.start()
    while len(passes.found) < 30 and passes.advance():
        pass
    n = len(passes.found)
    assert 1 <= n < 30
    assert [graph.value(passes.labels(k)) for k in range(n)] == pytest.approx(
        [graph.value(labels) for labels in best.labels[:n]]
    )
    assert passes.next_value >= graph.value(best.labels[n]) - graph.constant - 1e-9
