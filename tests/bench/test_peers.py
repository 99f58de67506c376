"""Packages of others: what they find is evaluated here, limits hold, and what is missing is said."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status, UnknownName, UnsupportedModel
from mapmrf.bench import peers
from mapmrf.bench.models import from_files
from mapmrf.bench.peers import Found, installed, names, solve_with
from mapmrf.bench.plan import Plan, Run
from mapmrf.bench.worker import Runner
from mapmrf.datasets import grid, random_graph
from strategies import brute_force

GRAPH = grid(3, 3, 2.0, seed=4)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A peer that the test writes itself."""
    module = ModuleType("mapmrf.bench.peers.made_up")
    module.MODULE = "mapmrf"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(peers, "names", lambda: ["made_up"])
    return module


def says(module: Any, *found: Found) -> None:
    def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found]:
        yield from found
        while True:
            yield found[-1]

    module.run = run


def test_values_are_evaluated_and_the_best_is_kept(peer: ModuleType) -> None:
    labels = brute_force(GRAPH)[1]
    best = GRAPH.value(labels)
    says(peer, Found(np.array(labels), iterations=1), Found(np.zeros(9, dtype=int), 100.0, 2, finished=True))
    result = solve_with("made_up", GRAPH, 5.0, 0)
    assert result.value == best == GRAPH.value(result.labels)
    assert (result.bound, result.iterations, result.status) == (100.0, 2, Status.CONVERGED)
    assert [point.value for point in result.trace] == [best, best]


def test_a_bound_that_meets_the_value_proves_it(peer: ModuleType) -> None:
    best, labels = brute_force(GRAPH)
    says(peer, Found(np.array(labels), best + 1e-9))
    assert solve_with("made_up", GRAPH, 5.0, 0).status is Status.OPTIMAL


def test_a_peer_that_goes_on_for_ever_is_stopped(peer: ModuleType) -> None:
    says(peer, Found(np.zeros(9, dtype=int)))
    assert solve_with("made_up", GRAPH, 0.1, 0).status is Status.TIME_LIMIT


def test_a_missing_package_is_said(peer: ModuleType) -> None:
    peer.MODULE = "no_such_package.part"  # type: ignore[attr-defined]
    assert installed() == []
    with pytest.raises(UnsupportedModel, match=r"pip install 'mapmrf\[peers\]'"):
        solve_with("made_up", GRAPH, 1.0, 0)


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(UnknownName, match="no peer is named 'nobody'; known: cpsat, dwave"):
        solve_with("nobody", GRAPH, 1.0, 0)


def test_a_benchmark_can_run_a_peer(tmp_path: Path, peer: ModuleType) -> None:
    mapmrf.write(GRAPH, tmp_path / "m.uai")
    says(peer, Found(np.zeros(9, dtype=int), finished=True))
    task = Plan([Run("peer:made_up")], from_files([tmp_path / "m.uai"])).tasks()[0]
    record = Runner().record(task)
    assert (record["outcome"], record["run"], record["status"]) == ("done", "peer:made_up", "converged")


@pytest.mark.parametrize("name", ["cpsat", "dwave", "pgmax", "pgmpy", "qpbo", "toulbar2"])
def test_real_peers_are_honest_and_say_what_they_cannot_take(name: str) -> None:
    if name not in installed():
        pytest.skip(f"{name} is not installed: pip install 'mapmrf[peers]'")
    for graph in (GRAPH, random_graph(7, 9, hard=0.1, seed=2)):
        optimum = brute_force(graph)[0]
        try:
            result = solve_with(name, graph, 1.0, 0)
        except UnsupportedModel as reason:
            assert graph is not GRAPH and name in str(reason)
            continue
        assert result.value == graph.value(result.labels) <= optimum + 1e-9
        assert result.bound is None or result.bound >= optimum - 1e-6 * abs(optimum)
        assert math.isfinite(result.value) or graph is not GRAPH


def test_every_peer_names_its_package() -> None:
    for name in names():
        module = peers._module(name)
        assert module.PACKAGE and module.MODULE and callable(module.run)
