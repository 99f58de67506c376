"""LS-LP on benchmark models: certified optima where the LP is tight, good integer points where it is not."""

from __future__ import annotations

import pytest

import mapmrf
from benchmark_models import benchmark, references
from mapmrf import Status
from mapmrf.model.polytope import Kind

pytestmark = pytest.mark.data


@pytest.mark.parametrize(
    "name",
    [
        "segmentation2/10_14_s.binary.uai.gz",
        "segmentation2/12_20_s.binary.uai.gz",
        "segmentation2/18_1_s.binary.uai.gz",
        "segmentation2/2_2_s.binary.uai.gz",
        "segmentation2/9_24_s.binary.uai.gz",
        "segmentation21/2_2_s.21.uai.gz",
        "scene/0000047.uai.gz",
        "scene/0002395.uai.gz",
    ],
)
def test_segmentation_and_scene_models_are_certified(name: str) -> None:
    graph, optimum = benchmark(name), references()[name]
    result = mapmrf.solve(graph, "lslp")
    assert result.status is Status.OPTIMAL
    assert result.kind is Kind.VALID
    assert result.value == pytest.approx(optimum, abs=1e-3 + 1e-6 * abs(optimum))
    assert {point.phase for point in result.trace} == {"lp"}


GRIDS = [
    "grids-small/grid20x20.f2.uai.gz",
    "grids-small/grid20x20.f5.uai.gz",
    "grids/grid20x20.f10.uai.gz",
    "grids/grid20x20.f15.uai.gz",
    "grids/grid20x20.f5.wrap.uai.gz",
    "grids/grid20x20.f10.wrap.uai.gz",
    "grids/grid20x20.f15.wrap.uai.gz",
]


@pytest.mark.parametrize("name", GRIDS)
def test_grids_reach_97_percent_at_an_integer_point(name: str) -> None:
    """Frustrated grids, whose LP bound is far too high: the sphere alone finds the labelling."""
    graph, optimum = benchmark(name), references()[name]
    result = mapmrf.solve(graph, "lslp", seed=0)
    assert 0.97 * optimum <= result.value <= optimum + 1e-3
    assert result.kind is Kind.VALID
    assert result.bound >= optimum - 1e-3
    assert result.status in (Status.CONVERGED, Status.ITERATION_LIMIT)
