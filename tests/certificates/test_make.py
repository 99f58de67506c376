"""Certificates that are made: they verify, close what the relaxation and odd cycles can close, and obey the clock."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_certificates import exact_values, optimum

import mapmrf
from benchmark_models import FOLDER, benchmark
from exhaustive_truth import varied_recipe
from mapmrf.certificates import Certificate, verify
from mapmrf.certificates.make import certify, greedy_order
from mapmrf.cli import main
from mapmrf.datasets import grid
from mapmrf.engines.elimination.numpy_elimination import small_order
from refusals import refuses


def run(*args: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    return result.exit_code, result.stdout, result.stderr


@given(st.integers(0, 10_000))
def test_a_small_model_is_proven_exactly(seed: int) -> None:
    graph = varied_recipe(seed).graph()
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None
    found = verify(graph, result.labels, result.certificate)
    assert found.bound == optimum(exact_values(graph))


@given(st.integers(0, 10_000))
def test_messages_and_what_they_leave_open_prove_a_small_model(seed: int) -> None:
    graph = varied_recipe(seed).graph()
    best = optimum(exact_values(graph))
    labels = mapmrf.solve(graph).labels
    with pytest.MonkeyPatch.context() as patch:  # no elimination of the whole model at once
        patch.setattr("mapmrf.certificates.make.small_order", lambda graph: None)
        certificate = certify(graph, labels)
    assert verify(graph, labels, certificate).bound == best


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("method", ["auto", "trws", "cuts", "restarts"])
def test_a_frustrated_grid_needs_odd_cycles_whatever_the_method(method: str, exact: bool) -> None:
    graph = grid(15, 15, coupling=2.0, seed=3)
    assert small_order(graph) is None
    best = mapmrf.solve(graph).value
    result = mapmrf.solve(graph, method, certificate=True, **({"time_limit": 20.0} if method == "restarts" else {}))
    assert result.certificate is not None and result.certificate.cycles.n > 0
    found = verify(graph, result.labels, result.certificate, exact=exact)
    assert found.bound is not None and found.bound >= Fraction(best)
    assert float(found.bound) == pytest.approx(best, rel=1e-11)


def test_weighted_pairs_and_several_states() -> None:
    random = np.random.default_rng(5)
    pairs = [(i, j) for i in range(40) for j in (i + 1, i + 7) if j < 40]
    graph = mapmrf.FactorGraph.from_pairwise(
        random.normal(size=(40, 5)), pairs, np.eye(5), weight=random.uniform(0, 0.3, len(pairs))
    )
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None
    assert verify(graph, result.labels, result.certificate).optimal


def test_time_that_is_up_leaves_no_certificate_or_a_valid_one() -> None:
    result = mapmrf.solve(grid(15, 15, coupling=2.0, seed=3), certificate=True, time_limit=0.0)
    assert result.certificate is None
    assert mapmrf.solve(grid(3, 3)).certificate is None
    graph = grid(30, 30, coupling=2.0, seed=3)
    labels = np.zeros(900, dtype=int)
    certificate = certify(graph, labels, time_limit=0.0)
    assert float(verify(graph, labels, certificate).bound or 0) <= certificate.bound


@pytest.mark.parametrize("seed", range(3))
def test_a_bound_that_was_rounded_up_is_proven_in_fractions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.certificates.make.EXACT_ENTRIES", 0)
    graph = grid(15, 15, coupling=2.0, seed=seed)
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None
    for exact in (True, False):
        found = verify(graph, result.labels, result.certificate, exact=exact)
        assert found.relative_gap() <= 1e-9


def test_a_model_that_is_too_large_has_no_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.certificates.make.MOST_MODEL_ENTRIES", 100)
    graph = grid(5, 5)
    assert mapmrf.solve(graph, certificate=True).certificate is None
    refuses(mapmrf.UnsupportedModel, "expected at most 100", certify, graph, np.zeros(25, dtype=int))


def test_greedy_orders_stay_within_their_entries() -> None:
    graph = grid(5, 5)
    order = greedy_order(graph, graph.card, 10_000)
    assert sorted(order.tolist()) == list(range(25))
    assert len(greedy_order(graph, graph.card, 100)) == 0
    labels = mapmrf.solve(graph).labels
    assert verify(graph, labels, Certificate(order=order), max_entries=10_000).eliminated
    assert not verify(graph, labels, Certificate(order=order), max_entries=100).eliminated


def test_the_command_line_writes_and_checks_certificates(tmp_path: Path) -> None:
    model, answer, proof = tmp_path / "grid.uai", tmp_path / "grid.MPE", tmp_path / "proof.npz"
    mapmrf.write(grid(12, 12, coupling=2.0, seed=1), model)
    assert run("solve", model, "-q", "-o", answer, "--certificate", proof)[0] == 0
    code, printed, _ = run("verify", model, answer, proof, "--gap-tolerance", 1e-12)
    assert code == 0 and "valid, proven: no labelling is better" in printed
    code, printed, _ = run("verify", model, answer, proof, "--fast", "--json")
    data = json.loads(printed)
    assert code == 0 and data["fast"] and Fraction(data["bound_exact"]) >= Fraction(data["value_exact"])
    code, _, said = run("verify", model, answer, proof, "--fast", "--gap-tolerance", 0)
    assert code == 4 and "expected at most 0" in said


def test_the_command_line_refuses_what_is_no_proof(tmp_path: Path) -> None:
    model, answer, proof = tmp_path / "grid.uai", tmp_path / "grid.MPE", tmp_path / "proof.npz"
    mapmrf.write(grid(4, 4, coupling=2.0, seed=1), model)
    assert run("solve", model, "-q", "-o", answer)[0] == 0
    Certificate(bound=1.0).write(proof)
    code, printed, said = run("verify", model, answer, proof)
    assert (code, printed) == (4, "") and said.startswith("mapmrf: not valid: the claimed bound is 1.0")
    assert run("verify", model, answer, tmp_path / "absent.npz")[0] == 2
    assert run("solve", model, model, "--certificate", proof)[0] == 2
    assert run("solve", model, "--certificate", tmp_path / "absent" / "proof.npz")[0] == 2


MODELS = [f"{folder}/{path.name}" for folder in ("segmentation2", "segmentation21", "scene", "grids-small")
          for path in sorted((FOLDER / folder).glob("*.uai.gz"))[:3]]  # fmt: skip


@pytest.mark.data
@pytest.mark.parametrize("name", MODELS)
def test_benchmark_models_are_proven(name: str) -> None:
    graph = benchmark(name)
    result = mapmrf.solve(graph, certificate=True)
    assert result.certificate is not None
    found = verify(graph, result.labels, result.certificate)
    assert found.relative_gap() <= 1e-14
