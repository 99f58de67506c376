"""The incumbent: the best labelling and bound, evaluated by nobody else, to the last bit."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import itertools
import logging
import math
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, GraphError, Method, Status, constraints
from mapmrf.datasets import grid
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import Cuts
from mapmrf.methods.maxflow import MaxFlow
from mapmrf.methods.sdp import SDP
from mapmrf.methods.trws import TRWS
from mapmrf.methods.wcsp import WCSP
from mapmrf.run import incumbent
from mapmrf.run.incumbent import KERNEL_FACTORS, STRICT, CheckedIncumbent, Contradiction, Evaluator, Incumbent
from mapmrf.run.method import Answer, Progress
from refusals import refuses
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


def test_infeasible_labellings_close_no_gap_and_illegal_ones_are_refused() -> None:
    incumbent = Incumbent(FactorGraph.from_tables([2], [(0,)], [[-math.inf, -math.inf]]), np.array([0]))
    incumbent.tighten(-math.inf)
    assert incumbent.gap == 0.0 and not incumbent.closed(1e-6)
    for graph in (grid(3, 3, seed=0), grid(120, 120, seed=0)):
        incumbent = Incumbent(graph, np.zeros(graph.n_vars, dtype=np.int64))
        refuses(GraphError, "label of variable 0 is 2", incumbent.offer, np.full(graph.n_vars, 2))


# -- bounds that contradict a labelling -------------------------------------------------------------------------------


GRAPH = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
OPTIMUM = 2.0


@dataclasses.dataclass(frozen=True)
class Liar(Method):
    """Reports the bounds it is given, one per step, and the optimal labelling in its last step."""

    name = "liar"
    bounds: tuple[float, ...] = (2.5, 1.5)
    finished: Status = Status.OPTIMAL
    max_iterations: int = 100

    def start(self, problem: Any, seed: int, initial: Any) -> list[int]:
        return [0]

    def step(self, problem: Any, state: list[int]) -> Progress:
        state[0] += 1
        last = state[0] == len(self.bounds)
        labels = np.array([1, 1]) if last else np.array([0, 1])
        return Progress(state[0], labels, bound=self.bounds[state[0] - 1], finished=self.finished if last else None)

    def answer(self, problem: Any, state: list[int]) -> Answer:
        return Answer(bound=self.bounds[state[0] - 1])


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contradictions are reported as to a user, not raised."""
    monkeypatch.delenv(STRICT)


def test_in_the_tests_a_contradiction_is_an_error_but_round_off_is_none() -> None:
    with pytest.raises(Contradiction, match=r"value 2\.0, above the bounds {'liar': 1\.5}"):
        mapmrf.solve(GRAPH, Liar())
    result = mapmrf.solve(GRAPH, Liar((2.0 - 1e-14,)))
    assert result.value == result.bound == OPTIMUM and result.status is Status.OPTIMAL


@pytest.mark.parametrize("finished", [Status.OPTIMAL, Status.INFEASIBLE, Status.CONVERGED])
@pytest.mark.parametrize("false", [1.5, -math.inf])
def test_a_false_bound_is_dropped_with_all_others_of_its_source(lenient, caplog, finished, false) -> None:
    result = mapmrf.solve(GRAPH, Liar((2.5, false), finished))
    assert result.value == OPTIMUM and result.bound is None and result.gap is None
    assert result.status is Status.CONVERGED
    assert result.details == {"refuted_liar": false}
    assert all(point.bound is None or point.bound >= OPTIMUM for point in result.trace)
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert record.getMessage() == f"liar: the bound {false} is below the value 2.0 of a labelling: ignored"


def test_the_allowance_grows_with_the_numbers_that_are_added_up() -> None:
    for scale in (1e-12, 1.0, 1e12):
        graph = FactorGraph.from_tables([2], [(0,)], [[scale, 0.0]])
        for missing, refuted in ((1e-13, False), (1e-9, True)):
            incumbent = CheckedIncumbent(graph, np.array([0]))
            with pytest.raises(Contradiction) if refuted else contextlib.nullcontext():
                incumbent.tighten((1.0 - missing) * scale, "one")


def test_other_sources_keep_their_bounds(lenient: None) -> None:
    incumbent = CheckedIncumbent(GRAPH, np.array([0, 1]))
    incumbent.tighten(3.0, "honest")
    incumbent.tighten(1.0, "false")
    assert incumbent.bound == 1.0
    incumbent.offer(np.array([1, 1]))
    assert incumbent.bound == 3.0 and incumbent.bounds.refuted == {"false": 1.0}
    incumbent.tighten(2.0, "false")
    assert incumbent.bound == 3.0, "nothing that a refuted source says later is believed"
    incumbent.withdraw()
    assert incumbent.bound == math.inf


def lowered(step: Callable[..., Progress], by: float) -> Callable[..., Progress]:
    """A method's step whose bounds are too low."""

    def lower(self: Method, problem: Any, state: Any) -> Progress:
        progress = step(self, problem, state)
        return progress if progress.bound is None else dataclasses.replace(progress, bound=progress.bound - by)

    return lower


def complete(n_vars: int, n_states: int) -> FactorGraph:
    """A random model in which all pairs of variables interact: no relaxation proves it."""
    random = np.random.default_rng(n_vars)
    pairs = np.array(list(itertools.combinations(range(n_vars), 2)))
    return FactorGraph.from_pairwise(
        random.normal(size=(n_vars, n_states)), pairs, random.normal(size=(len(pairs), n_states, n_states))
    )


SUBMODULAR = FactorGraph.from_pairwise([[0, 1], [1, 0], [0, 0.5]], [[0, 1], [1, 2]], [[1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("liars", "sources", "graph"),
    [
        ([MaxFlow], ["cut"], SUBMODULAR),
        ([TRWS], ["relax"], complete(7, 3)),
        ([TRWS, WCSP, Branch], ["relax", "wcsp", "branch"], complete(7, 3)),
        ([Cuts], ["cuts"], mapmrf.datasets.grid(5, 5, coupling=5.0, seed=3)),
        ([SDP], ["sdp"], complete(10, 2)),
    ],
    ids=["cut", "relax", "wcsp", "cuts", "sdp"],
)
def test_auto_goes_on_without_methods_that_state_false_bounds(lenient, monkeypatch, liars, sources, graph) -> None:
    optimum = mapmrf.solve(graph, "branch").value
    for liar in liars:
        monkeypatch.setattr(liar, "step", lowered(liar.step, 20.0))
    result = mapmrf.solve(graph, "auto", elimination_entries=0, simplify=False)
    assert all(f"refuted_{source}" in result.details for source in sources)
    assert result.value == pytest.approx(optimum)
    assert result.status is Status.OPTIMAL and result.bound == pytest.approx(optimum)
    assert all(point.bound is None or point.bound >= optimum - 1e-9 for point in result.trace)


def test_auto_with_constraints_goes_on_without_a_method_that_states_false_bounds(lenient, monkeypatch) -> None:
    recipe = random_recipe(5, 8, 12, max_card=2, max_arity=2)
    graph = recipe.graph().with_constraints([constraints.at_most_k([i for i in range(8) if recipe.card[i] == 2], 2)])
    optimum = mapmrf.solve(graph, "exhaustive").value
    for liar in (WCSP, TRWS, Cuts):
        monkeypatch.setattr(liar, "step", lowered(liar.step, 5.0))
    result = mapmrf.solve(graph, "auto", elimination_entries=0, max_iterations=300)
    assert result.value == pytest.approx(optimum)
    assert result.bound is None or result.bound >= optimum - 1e-9
    assert any(name.startswith("refuted_") for name in result.details)


def test_shapes_that_share_numbers_do_not_confuse_any_bound(tmp_path: Any) -> None:
    card = [9, 2, 6, 3, 24]
    scopes = [(0, 1), (2, 3), (1, 2), (3, 4), *((i,) for i in range(5))]
    for seed in range(8):
        random = np.random.default_rng(seed)
        flat = random.choice([-3.8, 0.0], size=18)
        tables = [flat.reshape(9, 2), flat.reshape(6, 3), random.normal(size=(2, 6)), random.normal(size=(3, 24))]
        tables += [random.normal(size=c) for c in card]
        mapmrf.write(FactorGraph.from_tables(card, scopes, tables), tmp_path / "model.uai")
        graph = mapmrf.read(tmp_path / "model.uai")
        best = mapmrf.solve(graph, "branch").value  # elimination
        result = mapmrf.solve(graph, "trws")
        assert result.bound is not None and result.bound >= best - 1e-9
