"""The search for labellings beside LS-LP: chains from what phases offer, kicks, constraints, checkpoints."""

from __future__ import annotations

import math

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, constraints
from mapmrf.datasets import grid
from mapmrf.engines.admm import lslp_run
from mapmrf.engines.moves import constrained_search
from mapmrf.engines.moves.ascending_incumbent import ConstrainedIncumbent
from mapmrf.engines.moves.labelling_search import LabellingSearch
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start


def counted() -> FactorGraph:
    """A frustrated grid of which exactly half the variables are in state 1."""
    return grid(4, 5, coupling=2.0, seed=3).with_constraints([constraints.exactly_k(range(20), 10)])


MODELS = {"plain": grid(8, 8, coupling=2.0, seed=3), "constrained": counted()}
every_model = pytest.mark.parametrize("graph", MODELS.values(), ids=MODELS.keys())


def searching(graph: FactorGraph) -> LabellingSearch:
    search = LabellingSearch(Problem.compile(graph), Start(), seed=0)
    search.offer(graph.unary_labels)
    search.offer(np.random.default_rng(0).integers(0, graph.card))
    return search


def steps(search: LabellingSearch, most: int) -> int:
    """Follow chains for some steps, or until nothing is left to try; return how many these were."""
    for done in range(most):
        if not search.choose():
            return done
        search.step()
    return most


@every_model
def test_chains_improve_what_ascents_have_found_and_come_to_an_end(graph: FactorGraph) -> None:
    search = searching(graph)
    assert search.best is not None
    ascended = search.best.value
    assert steps(search, 100_000) < 100_000 and not search.has_work
    assert search.best.value > ascended
    assert search.best.value == pytest.approx(graph.value(search.best.labels)) and search.best.value > -math.inf


@every_model
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_search_goes_on_where_it_was_saved(graph: FactorGraph, done: int) -> None:
    search, other = searching(graph), LabellingSearch(Problem.compile(graph), Start(), seed=0)
    steps(search, done)
    other.load(*search.save())
    assert steps(search, 20) == steps(other, 20)
    assert search.best is not None and other.best is not None
    np.testing.assert_array_equal(search.best.labels, other.best.labels)


def test_phases_take_turns_on_a_slow_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lslp_run, "SLICE", 1e4)  # every start is slow
    result = mapmrf.solve(grid(7, 7, coupling=2.0, seed=0), "lslp")
    phases = [point.phase for point in result.trace]
    last_of_lp = max(k for k, phase in enumerate(phases) if phase == "lp")
    assert {"beliefs", "chains"} <= set(phases[:last_of_lp])
    assert result.status.value == "converged" and result.kind is mapmrf.Kind.VALID


@pytest.mark.parametrize("most", [63, 86, 178])
def test_beliefs_and_chains_keep_the_limit_on_iterations(most: int) -> None:
    result = mapmrf.solve(grid(12, 12, coupling=2.0, seed=0), "lslp", max_iterations=most)
    assert result.iterations <= most


def test_an_ascent_under_constraints_ends_after_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constrained_search, "ASCENT_VISITS", 1)  # one change per round
    graph = FactorGraph.from_tables([2] * 9, [(i,) for i in range(9)], [[0.0, 1.0]] * 9)
    incumbent = ConstrainedIncumbent(
        Problem.compile(graph.with_constraints([constraints.at_most_k(range(9), 8)])), Start()
    )
    monkeypatch.setattr(incumbent, "most_rounds", 3)
    assert incumbent.offer(np.zeros(9, dtype=np.int64)).sum() == 3
