"""Packages of others: what they find is evaluated here, limits hold, and what is missing is said."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, Status, UnknownName, UnsupportedModel
from mapmrf.bench import peers
from mapmrf.bench.peers import Found, Ready, installed, missing, prepare, solve_with
from mapmrf.bench.run_list import MethodConfig, RunList, from_files
from mapmrf.bench.worker import Runner
from mapmrf.datasets import grid, random_graph
from refusals import refuses
from strategies import brute_force

GRAPH = grid(3, 3, 2.0, seed=4)


@pytest.fixture
def peer(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made_up = SimpleNamespace(package="mapmrf", module="mapmrf")
    monkeypatch.setattr(peers, "PEERS", {"made_up": made_up})
    return made_up


def says(peer: SimpleNamespace, *found: Found | Ready) -> None:
    def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
        yield from found
        while True:
            yield found[-1]

    peer.run = run


def test_values_are_evaluated_and_the_best_is_kept(peer: SimpleNamespace) -> None:
    labels = brute_force(GRAPH)[1]
    best = GRAPH.value(labels)
    says(peer, Found(np.array(labels), iterations=1), Found(np.zeros(9, dtype=int), 100.0, 2, finished=True))
    result = solve_with("made_up", GRAPH, 5.0, 0)
    assert result.value == best == GRAPH.value(result.labels)
    assert (result.bound, result.iterations, result.status) == (100.0, 2, Status.CONVERGED)
    assert [point.value for point in result.trace] == [best, best]


def test_bounds_that_meet_values_prove_them_and_endless_peers_are_stopped(peer: SimpleNamespace) -> None:
    best, labels = brute_force(GRAPH)
    for bound, status in ((best + 1e-14, Status.OPTIMAL), (best + 1e-9, Status.WITHIN_TOLERANCE)):
        says(peer, Found(np.array(labels), bound))
        assert solve_with("made_up", GRAPH, 5.0, 0).status is status
    says(peer, Found(np.zeros(9, dtype=int)))
    assert solve_with("made_up", GRAPH, 0.1, 0).status is Status.TIME_LIMIT


def test_a_missing_package_is_said(peer: SimpleNamespace) -> None:
    peer.module, peer.package = "no_such_package.part", "no-such-package"
    assert installed() == [] and missing() == ["made_up"]
    with pytest.raises(UnsupportedModel, match=r"made_up; pip install 'mapmrf\[peers\]' .*, or only no-such-package"):
        solve_with("made_up", GRAPH, 1.0, 0)


def test_what_comes_before_ready_is_set_up_and_not_solving(
    peer: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(peers.time, "perf_counter", lambda: clock[0])

    def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
        clock[0] += 50.0  # imports and compiles, far beyond the limit
        yield Ready(start_up=0.5)
        clock[0] += 0.75
        yield Found(np.zeros(9, dtype=int), iterations=1)
        clock[0] += 0.5
        yield Found(iterations=2)
        clock[0] += 5.0
        yield Found(iterations=3)

    peer.run = run
    result = solve_with("made_up", GRAPH, 1.0, 0)
    assert (result.compile_time, result.runtime) == (50.5, 50.5 + 5.75)
    assert [point.time for point in result.trace] == [0.25, 0.75, 5.75]
    assert result.status is Status.TIME_LIMIT


def test_the_version_of_a_package_is_told(peer: SimpleNamespace) -> None:
    assert prepare("made_up") == f"mapmrf {mapmrf.__version__}"
    peer.package = "not-by-pip"
    assert prepare("made_up") == "not-by-pip"


def test_an_unknown_peer_is_named() -> None:
    refuses(UnknownName, "no peer is named 'nobody'; known: cpsat, dwave", solve_with, "nobody", GRAPH, 1.0, 0)


def test_a_benchmark_can_run_a_peer(tmp_path: Path, peer: SimpleNamespace) -> None:
    mapmrf.write(GRAPH, tmp_path / "m.uai")
    says(peer, Found(np.zeros(9, dtype=int), finished=True))
    task = RunList([MethodConfig("peer:made_up")], from_files([tmp_path / "m.uai"])).tasks()[0]
    record = Runner().record(task)
    assert (record["outcome"], record["run"], record["status"]) == ("done", "peer:made_up", "converged")
    assert record["package"] == f"mapmrf {mapmrf.__version__}"
    assert record["setup_time"] >= record["compile_time"] >= 0.0


WITH_BOUND = ("cpsat", "qpbo", "toulbar2")


@pytest.mark.parametrize("name", peers.PEERS)
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
        assert 0 < result.compile_time <= result.runtime, "building the model is set-up"
        assert result.value == graph.value(result.labels) <= optimum + 1e-9
        assert (result.bound is not None) == (name in WITH_BOUND)
        assert result.bound is None or result.bound >= optimum - 1e-6 * abs(optimum)
        assert math.isfinite(result.value) or graph is not GRAPH


def test_what_a_peer_tells_afterwards_is_heard_to_its_end(peer: SimpleNamespace) -> None:
    """A peer that tells its course when its time is over must not lose all but the first of it."""
    best, labels = brute_force(GRAPH)

    def run(graph: FactorGraph, seconds: float, seed: int) -> Iterator[Found | Ready]:
        yield Ready()
        time.sleep(2 * seconds)
        yield Found(np.zeros(9, dtype=int), iterations=1, seconds=0.0)
        yield Found(np.array(labels), iterations=2, seconds=seconds)

    peer.run = run
    result = solve_with("made_up", GRAPH, 0.02, 0)
    assert result.value == pytest.approx(best)
    assert [point.time for point in result.trace] == [0.0, 0.02]
