"""The reduction on benchmark models: what vanishes is worth the known optimum, and what is left is smaller."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_models import benchmark, references
from mapmrf.engines.reduction.simplify import simplify, solve_small
from mapmrf.model.problem import Problem

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    "name",
    [
        "other/1aie.uai.gz",
        "other/1bv1.uai.gz",
        "other/pdb1b7d.uai.gz",
        "other/smokers_10.uai.gz",
        "segmentation21/2_28_s.21.uai.gz",
        "scene/0000072.uai.gz",
        "scene/0001677.uai.gz",
    ],
)
def test_nothing_is_left_of_some_models(name: str) -> None:
    graph = benchmark(name)
    small = simplify(Problem.compile(graph))
    assert small.problem.n_vars == 0
    assert small.problem.graph.constant == pytest.approx(references()[name], abs=1e-3)
    assert graph.value(small.labels) == pytest.approx(small.problem.graph.constant, abs=1e-6)


@pytest.mark.parametrize(
    "name",
    [
        "other/deer_rescaled_0034.K10.F1.25.model.uai.gz",
        "other/pdb1neu.uai.gz",
        "other/GEOM30a_3.uai.gz",
        "scene/0000047.uai.gz",
    ],
)
def test_others_are_solved_by_a_little_elimination(name: str) -> None:
    graph = benchmark(name)
    small = solve_small(simplify(Problem.compile(graph)))
    assert small.problem.n_vars == 0
    assert small.problem.graph.constant == pytest.approx(references()[name], abs=1e-3)
    assert graph.value(small.labels) == pytest.approx(small.problem.graph.constant, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("protein/didNotconverge1.uai.gz", 0.45),
        ("segmentation21/1_28_s.21.uai.gz", 0.1),
        ("other/pedigree34.uai.gz", 0.4),
        ("other/triplepoint4-plain-ring.h5", 0.55),
    ],
)
def test_a_share_of_the_states_is_left_and_labellings_are_worth_the_same(name: str, share: float) -> None:
    graph = benchmark(name)
    small = simplify(Problem.compile(graph))
    inner = small.problem.graph
    assert len(inner.theta_v) <= share * len(graph.theta_v)
    assert len(inner.theta_t) <= len(graph.theta_t) + 2000, "shared tables should be shared still"
    labels = np.random.default_rng(0).integers(0, inner.card)
    assert graph.value(small.lift(labels)) == pytest.approx(inner.value(labels), rel=1e-9)
