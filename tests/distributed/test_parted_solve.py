"""LS-LP on parts against LS-LP on the whole model: the same numbers, or the same but for round-off."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, distributed
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.distributed.cutting import slabs, split
from mapmrf.distributed.engine import part_layout
from mapmrf.model.problem import Problem


def optimum(graph: FactorGraph) -> float:
    """The largest value of all labellings."""
    return max(graph.value(labels) for labels in itertools.product(*(range(k) for k in graph.card.tolist())))


MIXED = random_graph(24, 40, states=(1, 4), arity=(2, 3), hard=0.08, seed=5)


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (grid(9, 9, 2.0, seed=1), {}),
        (grid(60, 60, 2.0, seed=1), {}),
        (grid(9, 9, 2.0, seed=1), {"sphere_block": 16}),
        (grid(9, 9, 2.0, seed=1), {"preset": "paper"}),
        (grid(9, 9, 2.0, seed=1), {"preset": "paper", "variant": "free", "epsilon": 0.01}),
        (potts_image(8, 8, 3, noise=1.5, seed=3).graph, {"sphere": "affine", "lp_phase": False}),
        (MIXED, {}),
        (MIXED, {"sphere": "off"}),
        (grid(9, 9, 2.0, seed=1), {"sphere": "factors", "lp_phase": False}),
    ],
)
def test_one_part_is_the_whole_model_to_the_last_bit(
    graph: FactorGraph, options: dict[str, Any], tmp_path: Path
) -> None:
    distributed.partition(graph, tmp_path, 1)
    options = {"max_iterations": 120, "seed": 3, "beliefs": 0, "climb": False, **options}
    whole, found = mapmrf.solve(graph, "lslp", **options), distributed.solve(tmp_path, **options)
    assert np.array_equal(found.gather(), whole.labels)
    assert (found.value, found.bound, found.iterations, found.kind) == (
        whole.value, whole.bound, whole.iterations, whole.kind,
    )  # fmt: skip
    assert [point.bound_now for point in found.trace] == [point.bound_now for point in whole.trace]


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (grid(12, 12, 2.0, seed=1), {"lp_phase": False, "starts": 1}),
        (grid(150, 90, 2.0, seed=1), {"lp_phase": False, "starts": 1}),
        (grid(150, 90, 2.0, seed=1), {"sphere": "off"}),
        (grid(12, 12, 2.0, seed=1), {"preset": "paper", "variant": "free", "epsilon": 0.01}),
        (grid(12, 12, 2.0, seed=1), {"preset": "paper", "epsilon": 0.01}),
        (potts_image(8, 8, 3, noise=1.5, seed=3).graph, {"sphere": "affine", "lp_phase": False, "starts": 1}),
        (MIXED, {"lp_phase": False, "starts": 1}),
        (MIXED, {"sphere": "off"}),
        (MIXED, {"sphere": "factors", "lp_phase": False, "starts": 1}),
    ],
)
@pytest.mark.parametrize("cut", ["slabs", "scattered"])
def test_several_parts_follow_the_whole_model(
    graph: FactorGraph, options: dict[str, Any], cut: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While round-off has not grown: bounds and relaxed values of the first iterations agree."""
    if cut == "scattered":
        owner = np.random.default_rng(1).integers(0, 4, graph.n_vars)
        monkeypatch.setattr("mapmrf.distributed.cutting.owners", lambda *_: owner)
    distributed.partition(graph, tmp_path, 4)
    options = {"max_iterations": 30, "check_every": 5, "beliefs": 0, "climb": False, **options}
    whole, found = mapmrf.solve(graph, "lslp", **options), distributed.solve(tmp_path, **options)
    for one, other in zip(found.trace, whole.trace, strict=True):
        assert one.bound_now == pytest.approx(other.bound_now, rel=1e-9)
        assert one.relaxed_value == pytest.approx(other.relaxed_value, rel=1e-9)
        assert one.extra == pytest.approx(other.extra, rel=1e-7, abs=1e-9)
    assert found.kind == whole.kind
    assert found.value == pytest.approx(graph.value(found.gather()), rel=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_and_values_are_honest(seed: int, tmp_path: Path) -> None:
    graph = random_graph(9, 14, states=(1, 3), arity=(2, 3), hard=0.1 * (seed % 2), seed=seed)
    distributed.partition(graph, tmp_path, 3, "slabs")
    found = distributed.solve(tmp_path, max_iterations=400)
    best = optimum(graph)
    assert found.value == pytest.approx(graph.value(found.gather()))
    assert found.value <= best + 1e-9
    assert found.bound is not None and found.bound >= best - 1e-9


def test_an_easy_image_is_certified(tmp_path: Path) -> None:
    graph = potts_image(12, 12, 3, seed=0).graph
    distributed.partition(graph, tmp_path, 3)
    found = distributed.solve(tmp_path)
    assert found.status.closes_gap and found.kind == "valid"


def test_an_infeasible_model_is_known_to_be(tmp_path: Path) -> None:
    forbidden = np.full((2, 2), -np.inf)
    graph = FactorGraph.from_tables([2] * 4, [(0, 1), (1, 2), (2, 3)], [np.zeros((2, 2)), np.zeros((2, 2)), forbidden])
    distributed.partition(graph, tmp_path, 2, "slabs")
    found = distributed.solve(tmp_path)
    assert found.status == "infeasible" and found.value == -np.inf and found.n_violated == 1


def test_variables_without_factors_and_models_without_factors(tmp_path: Path) -> None:
    graph = FactorGraph.from_tables([2, 3, 2, 2], [(0,), (1,), (2, 3)], [[0, 1], [0, 0, 2], [[0, 3], [0, 0]]])
    distributed.partition(graph, tmp_path / "some", 2, "slabs")
    assert distributed.solve(tmp_path / "some").gather().tolist() == [1, 2, 0, 1]
    alone = FactorGraph.from_tables([2, 3], [(0,), (1,)], [[0, 1], [0, 0, 2]])
    distributed.partition(alone, tmp_path / "none", 2)
    found = distributed.solve(tmp_path / "none")
    assert found.gather().tolist() == [1, 2] and found.status == "optimal"


def test_a_given_labelling_is_never_lost(tmp_path: Path) -> None:
    graph = grid(8, 8, 3.0, seed=2)
    best = mapmrf.solve(graph, "restarts", max_iterations=50).labels
    distributed.partition(graph, tmp_path, 4)
    found = distributed.solve(tmp_path, initial=best, max_iterations=20)
    assert found.value >= graph.value(best) - 1e-9
    with pytest.raises(mapmrf.MapMRFError, match="63 labels, expected one for each of the 64 variables"):
        distributed.solve(tmp_path, initial=best[1:])
    with pytest.raises(mapmrf.MapMRFError, match="label of variable 0 is 2, expected 0 to 1"):
        distributed.solve(tmp_path, initial=best + 2)


def test_limits_and_callbacks(tmp_path: Path) -> None:
    graph = grid(10, 10, 3.0, seed=2)
    distributed.partition(graph, tmp_path, 2)
    assert distributed.solve(tmp_path, time_limit=0.0).status == "time_limit"
    seen = []
    found = distributed.solve(tmp_path, callback=lambda point, labels: seen.append(point.iterations) or len(seen) == 3)
    assert found.status == "interrupted" and len(seen) == 3 == len(found.trace)


def test_slabs_of_an_image_run_on_tiles(tmp_path: Path) -> None:
    """In parts as in one process: nothing is looked up through indices; parts at both ends and in between."""
    graph = grid(150, 90, 2.0, seed=1)
    layouts = []
    for part in split(graph, slabs(graph.n_vars, 3), 3):
        whole_rows = part_layout(part, Problem.compile(part.graph), compact=True)
        layouts.append(whole_rows.runs is not None and len(whole_rows.variables.nbr_q) == 0)
    assert layouts == [True, True, True]
