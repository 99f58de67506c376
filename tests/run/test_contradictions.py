"""A bound below the value of a labelling is never believed, whoever states it."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Method, Status, constraints
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import Cuts
from mapmrf.methods.maxflow import MaxFlow
from mapmrf.methods.sdp import SDP
from mapmrf.methods.trws import TRWS
from mapmrf.methods.wcsp import WCSP
from mapmrf.run.incumbent import STRICT, CheckedIncumbent, Contradiction
from mapmrf.run.method import Answer, Progress
from strategies import random_recipe

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


def test_in_the_tests_a_contradiction_is_an_error() -> None:
    with pytest.raises(Contradiction, match=r"value 2\.0, above the bounds {'liar': 1\.5}"):
        mapmrf.solve(GRAPH, Liar())


@pytest.mark.parametrize("finished", [Status.OPTIMAL, Status.INFEASIBLE, Status.CONVERGED])
@pytest.mark.parametrize("false", [1.5, -math.inf])
def test_a_false_bound_is_dropped_with_all_others_of_its_source(
    lenient: None, caplog: pytest.LogCaptureFixture, finished: Status, false: float
) -> None:
    result = mapmrf.solve(GRAPH, Liar((2.5, false), finished))
    assert result.value == OPTIMUM and result.bound is None and result.gap is None
    assert result.status is Status.CONVERGED
    assert result.details == {"refuted_liar": false}
    assert all(point.bound is None or point.bound >= OPTIMUM for point in result.trace)
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert record.getMessage() == f"liar: the bound {false} is below the value 2.0 of a labelling: ignored"


def test_a_bound_that_is_too_low_by_round_off_meets_the_value() -> None:
    result = mapmrf.solve(GRAPH, Liar((2.0 - 1e-14,)))
    assert result.value == result.bound == OPTIMUM and result.status is Status.OPTIMAL


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
def test_auto_goes_on_without_methods_that_state_false_bounds(
    lenient: None, monkeypatch: pytest.MonkeyPatch, liars: list[type[Method]], sources: list[str], graph: FactorGraph
) -> None:
    optimum = mapmrf.solve(graph, "branch").value
    for liar in liars:
        monkeypatch.setattr(liar, "step", lowered(liar.step, 20.0))
    result = mapmrf.solve(graph, "auto", elimination_entries=0, simplify=False)
    assert all(f"refuted_{source}" in result.details for source in sources)
    assert result.value == pytest.approx(optimum)
    assert result.status is Status.OPTIMAL and result.bound == pytest.approx(optimum)
    assert all(point.bound is None or point.bound >= optimum - 1e-9 for point in result.trace)


def test_auto_with_constraints_goes_on_without_a_method_that_states_false_bounds(
    lenient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
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
