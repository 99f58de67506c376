"""Labels improved part by part, and bounds of parts that add up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, distributed
from mapmrf.datasets import grid, random_graph
from mapmrf.distributed.cutting import slabs, split
from mapmrf.distributed.evaluation import PartedIncumbent
from mapmrf.distributed.parts import OneProcess
from mapmrf.distributed.run import PartedModel, bound_of_parts, colour_parts, part_model, polished, start_run
from mapmrf.run.method import Start

MODELS = {
    "grid": grid(9, 9, 2.0, seed=1),
    "mixed": random_graph(24, 40, states=(1, 4), arity=(2, 3), hard=0.05, seed=4),
    "weighted": FactorGraph.from_pairwise(
        np.random.default_rng(0).normal(size=(40, 2)), [(i, i + 1) for i in range(39)], [[0.3, 0.1], [0.0, 0.5]],
        weight=np.linspace(-1, 2, 39),
    ),
}  # fmt: skip


def in_parts(graph: FactorGraph, n: int) -> PartedModel:
    parts = list(split(graph, slabs(graph.n_vars, n), n))
    return PartedModel(OneProcess(), parts, graph.n_vars, graph.n_factors, 1)


def whole(model: PartedModel, labels: np.ndarray) -> np.ndarray:
    found = np.zeros(model.n_vars, dtype=np.int64)
    for part, where in zip(model.parts, model.slices, strict=True):
        found[part.var[: part.n_own]] = labels[where][: part.n_own]
        assert np.array_equal(found[part.var[: part.n_own]], labels[where][: part.n_own])
    for part, where in zip(model.parts, model.slices, strict=True):
        assert np.array_equal(found[part.var], labels[where])  # copies are what they are copies of
    return found


@pytest.mark.parametrize("name", MODELS)
def test_polishing_never_lowers_the_value_and_ends_where_no_part_gains(name: str) -> None:
    graph, rng = MODELS[name], np.random.default_rng(3)
    model = in_parts(graph, 4)
    colours = colour_parts(model)
    assert all(colours[part.number] != colours[other] for part in model.parts for other in part.neighbours.tolist())
    for _ in range(3):
        labels = mapmrf.solve(graph, "icm", initial=rng.integers(0, graph.card)).labels
        found = whole(model, polished(model, model.pick(labels), mapmrf.Chains(), lambda: None, lambda: False))
        assert graph.value(found) >= graph.value(labels)
        again = whole(model, polished(model, model.pick(found), mapmrf.Chains(), lambda: None, lambda: False))
        assert graph.value(again) == graph.value(found)


def test_polishing_after_a_run_helps(tmp_path: Path) -> None:
    graph = grid(20, 20, 3.0, seed=2)
    distributed.partition(graph, tmp_path, 4)
    options: dict[str, Any] = {"max_iterations": 20, "lp_phase": False}
    plain, better = distributed.solve(tmp_path, **options), distributed.solve(tmp_path, polish="chains", **options)
    assert better.value > plain.value
    assert better.value == pytest.approx(graph.value(better.gather()), rel=1e-12)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("compact", [True, False])
def test_models_of_parts_add_up_to_the_whole_for_any_labelling(name: str, compact: bool) -> None:
    graph, rng = MODELS[name], np.random.default_rng(5)
    model = in_parts(graph, 4)
    best = PartedIncumbent(model.ranks, model.parts, model.unary_labels(), model.slices)
    run = start_run(mapmrf.LSLP(epsilon=0.0 if compact else 1e-3), model, 0, Start(), best)
    run.parted.run(30)
    found = run.parted.measure()
    pairs = zip(model.parts, run.parted.engines, strict=True)
    models = [part_model(part, engine) for part, engine in pairs]
    for _ in range(10):
        labels = rng.integers(0, graph.card)
        value = sum(each.value(labels[part.var]) for part, each in zip(model.parts, models, strict=True))
        assert value == pytest.approx(graph.value(labels), rel=1e-9)
    bound = bound_of_parts(model, run.parted, 100)
    assert bound <= found.bound + 1e-6 * abs(found.bound)
    assert bound >= mapmrf.solve(graph, "branch").value - 1e-9


def test_the_bound_of_a_run_gets_tighter(tmp_path: Path) -> None:
    graph = grid(12, 12, 2.0, seed=1)
    distributed.partition(graph, tmp_path, 3)
    options: dict[str, Any] = {"lp_iterations": 20, "max_iterations": 40}
    plain, tight = distributed.solve(tmp_path, **options), distributed.solve(tmp_path, part_bound=50, **options)
    assert plain.bound is not None and tight.bound is not None
    assert mapmrf.solve(graph, "branch").value - 1e-9 <= tight.bound < plain.bound
    assert np.array_equal(tight.gather(), plain.gather())
