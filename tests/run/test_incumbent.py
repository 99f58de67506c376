"""The incumbent: the best labelling and bound, evaluated by nobody else, to the last bit."""

from __future__ import annotations

import functools
import gc
import math
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph, GraphError
from mapmrf.datasets import grid
from mapmrf.run import incumbent
from mapmrf.run.incumbent import KERNEL_FACTORS, Evaluator, Incumbent
from strategies import random_recipe


@functools.cache
def large() -> FactorGraph:
    """A model of mixed arities, states and hard entries that is evaluated by the kernel."""
    random = np.random.default_rng(0)
    n = 9000
    card = random.integers(2, 5, size=n)
    scopes = [
        tuple(random.choice(n, size=random.integers(2, 4), replace=False).tolist()) for _ in range(KERNEL_FACTORS)
    ]
    tables = [random.normal(size=card[list(scope)]) * 10.0 ** random.integers(-8, 8) for scope in scopes]
    tables[7][(0,) * len(scopes[7])] = -np.inf
    unary = [((i,), random.normal(size=card[i])) for i in range(n)]
    return FactorGraph.from_tables(card, [*(s for s, _ in unary), *scopes], [*(t for _, t in unary), *tables])


@given(seed=st.integers(0, 10**6), n_changes=st.sampled_from([0, 1, 5, 3000]))
def test_the_kernel_gives_the_value_of_the_graph_to_the_last_bit(seed: int, n_changes: int) -> None:
    random = np.random.default_rng(seed)
    labels = random.integers(0, large().card)
    incumbent = Incumbent(large(), labels)
    assert incumbent.value == large().value(labels)
    for _ in range(3):
        changed = random.integers(0, large().n_vars, size=n_changes)
        labels[changed] = random.integers(0, large().card[changed])
        assert incumbent.evaluate(labels) == large().value(labels)


def test_threads_do_not_change_a_bit_of_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incumbent, "VALUE_CHUNK", 1000)
    random = np.random.default_rng(0)
    for _ in range(5):
        labels = random.integers(0, large().card)
        values = {Evaluator(large(), threads).value(labels) for threads in (1, 2, 3)}
        assert len(values) == 1
    assert next(iter(values)) == pytest.approx(large().value(labels))


def test_those_who_evaluate_the_same_model_share_an_evaluator() -> None:
    one, other = Evaluator.of(large()), Evaluator.of(large())
    assert one is other
    kept = weakref.ref(one)
    del one, other
    gc.collect()
    assert kept() is None


def test_labels_are_checked_whatever_they_come_as() -> None:
    incumbent = Incumbent(large(), np.zeros(large().n_vars, dtype=np.int64))
    for bad in (np.zeros(3, dtype=np.int64), np.full(large().n_vars, 9), np.full(large().n_vars, -1, dtype=np.int32)):
        with pytest.raises(GraphError):
            incumbent.evaluate(bad)
    assert incumbent.evaluate(np.zeros(large().n_vars, dtype=np.int16)) == incumbent.value
    assert incumbent.evaluate(np.zeros((large().n_vars, 2), dtype=np.int64)[:, 0]) == incumbent.value


def test_the_incumbent_keeps_the_best_and_a_copy_of_it() -> None:
    graph = random_recipe(3, 6, 9).graph()
    incumbent = Incumbent(graph, np.zeros(6, dtype=np.int64))
    best = incumbent.value
    for labels in np.random.default_rng(0).integers(0, graph.card, size=(50, 6)):
        assert incumbent.offer(labels) == graph.value(labels)
        best = max(best, graph.value(labels))
        labels[:] = 0
        assert incumbent.value == best == graph.value(incumbent.labels)


@pytest.mark.parametrize("graph", [grid(3, 3, seed=1), grid(120, 120, seed=1)], ids=["small", "large"])
def test_a_claim_is_never_believed(graph: FactorGraph) -> None:
    good = (graph.theta_v.reshape(-1, 2)[:, 1] > graph.theta_v.reshape(-1, 2)[:, 0]).astype(np.int64)
    incumbent = Incumbent(graph, good)
    worse = 1 - good
    assert graph.value(worse) < incumbent.value
    assert incumbent.offer(worse, claim=1e9) == graph.value(worse)
    assert incumbent.labels.tolist() == good.tolist()
    assert incumbent.offer(worse, claim=-1e9) == -1e9  # no improvement by its own account: not worth evaluating


def test_of_equals_the_first_stays_unless_the_other_is_preferred() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [[[1.0, 0.0], [0.0, 1.0]]])
    incumbent = Incumbent(graph, np.array([0, 0]))
    incumbent.offer(np.array([1, 1]))
    assert incumbent.labels.tolist() == [0, 0]
    incumbent.prefer(np.array([1, 1]))
    assert incumbent.labels.tolist() == [1, 1]
    incumbent.prefer(np.array([0, 1]))
    assert incumbent.labels.tolist() == [1, 1]


def test_the_bound_only_falls_and_the_gap_follows() -> None:
    incumbent = Incumbent(FactorGraph.from_tables([2], [(0,)], [[4.0, 2.0]]), np.array([0]))
    assert incumbent.gap == math.inf and not incumbent.closed(1.0)
    for bound, best in ((8.0, 8.0), (None, 8.0), (9.0, 8.0), (5.0, 5.0)):
        incumbent.tighten(bound)
        assert incumbent.bound == best
    assert incumbent.gap == 0.25
    assert incumbent.closed(0.25) and not incumbent.closed(0.2)


def test_an_infeasible_labelling_closes_no_gap() -> None:
    incumbent = Incumbent(FactorGraph.from_tables([2], [(0,)], [[-math.inf, -math.inf]]), np.array([0]))
    incumbent.tighten(-math.inf)
    assert incumbent.gap == 0.0 and not incumbent.closed(1e-6)


def test_illegal_labels_are_refused() -> None:
    for graph in (grid(3, 3, seed=0), grid(120, 120, seed=0)):
        incumbent = Incumbent(graph, np.zeros(graph.n_vars, dtype=np.int64))
        with pytest.raises(GraphError, match="label of variable 0 is 2"):
            incumbent.offer(np.full(graph.n_vars, 2))
