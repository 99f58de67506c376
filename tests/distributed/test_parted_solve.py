"""LS-LP on parts against LS-LP on the whole model: the same numbers, or the same but for round-off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import command_line
import mapmrf
from mapmrf import FactorGraph, distributed
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.distributed.cutting import slabs, split
from mapmrf.distributed.engine import part_layout
from mapmrf.distributed.evaluation import PartedIncumbent
from mapmrf.distributed.parts import Ranks
from mapmrf.distributed.run import PartedModel, bound_of_parts, colour_parts, part_model, polished, start_run
from mapmrf.formats.solution import read_solution
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from strategies import brute_force

MIXED = random_graph(24, 40, states=(1, 4), arity=(2, 3), hard=0.08, seed=5)


GRID = grid(9, 9, 2.0, seed=1)
WAYS = [
    (GRID, {}),
    (grid(60, 60, 2.0, seed=1), {}),
    (grid(150, 90, 2.0, seed=1), {"sphere": "off"}),
    (GRID, {"preset": "paper", "epsilon": 0.01}),
    (GRID, {"preset": "paper", "variant": "free", "epsilon": 0.01}),
    (potts_image(8, 8, 3, noise=1.5, seed=3).graph, {"sphere": "affine", "lp_phase": False}),
    (MIXED, {}),
    (MIXED, {"sphere": "off"}),
    (MIXED, {"sphere": "factors", "lp_phase": False}),
]
"""Models, small and with rows long enough for tiles, and what changes the iterations."""


@pytest.mark.parametrize(("graph", "options"), [*WAYS, (GRID, {"sphere_block": 16})])
def test_one_part_is_the_whole_model_to_the_last_bit(graph, options, tmp_path) -> None:
    distributed.partition(graph, tmp_path, 1)
    options = {"max_iterations": 120, "seed": 3, "beliefs": 0, "climb": False, **options}
    whole, found = mapmrf.solve(graph, "lslp", **options), distributed.solve(tmp_path, **options)
    assert np.array_equal(found.gather(), whole.labels)
    assert (found.value, found.bound, found.iterations, found.kind) == (
        whole.value, whole.bound, whole.iterations, whole.kind,
    )  # fmt: skip
    assert [point.bound_now for point in found.trace] == [point.bound_now for point in whole.trace]


@pytest.mark.parametrize(("graph", "options"), WAYS)
@pytest.mark.parametrize("cut", ["slabs", "scattered"])
def test_several_parts_follow_the_whole_model(graph, options, cut, tmp_path, monkeypatch) -> None:
    """While round-off has not grown: bounds and relaxed values of the first iterations agree."""
    if cut == "scattered":
        owner = np.random.default_rng(1).integers(0, 4, graph.n_vars)
        monkeypatch.setattr("mapmrf.distributed.cutting.owners", lambda *_: owner)
    distributed.partition(graph, tmp_path, 4)
    options = {"max_iterations": 30, "check_every": 5, "beliefs": 0, "climb": False, "starts": 1, **options}
    options.setdefault("lp_phase", options.get("sphere") == "off")
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
    best, _ = brute_force(graph)
    assert found.value == pytest.approx(graph.value(found.gather()))
    assert found.value <= best + 1e-9
    assert found.bound is not None and found.bound >= best - 1e-9


def test_an_easy_image_is_certified_and_an_infeasible_model_known_to_be(tmp_path: Path) -> None:
    graph = potts_image(12, 12, 3, seed=0).graph
    distributed.partition(graph, tmp_path, 3)
    found = distributed.solve(tmp_path)
    assert found.status.closes_gap and found.kind == "valid"
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


# -- polishing and bounds ---------------------------------------------------------------------------------------------


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
    return PartedModel(Ranks(), parts, graph.n_vars, graph.n_factors, 1)


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


def test_polishing_and_the_bound_of_parts_help(tmp_path: Path) -> None:
    graph = grid(12, 12, 3.0, seed=2)
    distributed.partition(graph, tmp_path, 3)
    options: dict[str, Any] = {"lp_iterations": 20, "max_iterations": 40}
    plain = distributed.solve(tmp_path, **options)
    tight = distributed.solve(tmp_path, part_bound=50, **options)
    better = distributed.solve(tmp_path, polish="chains", **options)
    assert plain.bound is not None and tight.bound is not None
    assert mapmrf.solve(graph, "branch").value - 1e-9 <= tight.bound < plain.bound
    assert np.array_equal(tight.gather(), plain.gather())
    assert better.value > plain.value
    assert better.value == pytest.approx(graph.value(better.gather()), rel=1e-12)


# -- the command line -------------------------------------------------------------------------------------------------


GRAPH = grid(8, 8, 2.0, seed=1)


def run(*arguments: object, code: int = 0) -> Result:
    found = command_line.run(*arguments)
    assert found.exit_code == code, found.output
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    mapmrf.write(GRAPH, tmp_path / "grid.uai")
    return tmp_path / "grid.uai"


@pytest.mark.parametrize("stream", [(), ("--stream",)])
def test_from_a_file_to_a_solution_file(stream: tuple[str, ...], model: Path, tmp_path: Path) -> None:
    parts, labels = tmp_path / "parts", tmp_path / "labels"
    assert run("partition", model, parts, "--parts", 3, *stream).stdout == f"{parts}: 3 parts of 64 variables\n"
    found = json.loads(run("solve", parts, "-m", "lslp", "--json", "-o", labels, "--trace", tmp_path / "t.csv").stdout)
    run("join", labels, "-o", tmp_path / "grid.MPE")
    assert GRAPH.value(read_solution(tmp_path / "grid.MPE", GRAPH)) == pytest.approx(found["value"], rel=1e-9)
    assert found["ranks"] == 1 and found["n_vars"] == 64 and "labels" not in found
    assert len(mapmrf.result.read_trace(tmp_path / "t.csv")) > 1


def test_a_generated_model_by_parts_is_the_whole_one(tmp_path: Path) -> None:
    run("generate", "grid", 8, 8, "--coupling", 2, "--seed", 1, "--parts", 4, "-o", tmp_path / "parts")
    result = mapmrf.distributed.solve(tmp_path / "parts", max_iterations=100)
    assert GRAPH.value(result.gather()) == pytest.approx(result.value, rel=1e-12)
    assert "combined with --parts" in run("generate", "grid", 8, 8, "--wrap", "--parts", 2, "-o", "x", code=2).stderr


def test_a_run_is_saved_and_resumed(model: Path, tmp_path: Path) -> None:
    run("partition", model, tmp_path / "parts", "--parts", 2)
    options = ("--set", "max_iterations=200", "--json")
    for name in (model, tmp_path / "parts"):
        whole = json.loads(run("solve", name, "-m", "lslp", *options).stdout)
        saving = (*options, "--checkpoint", tmp_path / f"state-{name.name}", "--every", 0)
        run("solve", name, "-m", "lslp", *saving, "--time-limit", 0)
        found = json.loads(run("solve", name, "-m", "lslp", *saving, "--resume").stdout)
        assert [found[key] for key in ("value", "bound", "iterations")] == [
            whole[key] for key in ("value", "bound", "iterations")
        ]


def test_a_start_a_polish_and_a_bound(model: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    run("partition", model, parts, "--parts", 2)
    best = mapmrf.solve(GRAPH)
    mapmrf.formats.solution.write_solution(tmp_path / "best.MPE", best.labels)
    few = ("--set", "max_iterations=20", "--set", "lp_iterations=10", "--json")
    found = json.loads(run("solve", parts, *few, "--initial", tmp_path / "best.MPE").stdout)
    assert found["value"] == pytest.approx(best.value)
    plain = json.loads(run("solve", parts, *few).stdout)
    better = json.loads(run("solve", parts, *few, "--polish", "chains", "--part-bound", 30).stdout)
    assert better["value"] >= plain["value"] and best.value - 1e-9 <= better["bound"] < plain["bound"]


def test_what_does_not_go_with_parts_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    run("partition", model, parts, "--parts", 2)
    for arguments, message in (
        (("--margins",), "--margins does not apply to a model in parts"),
        (("--threads", 2), "--threads does not apply to a model in parts"),
        (("-m", "trws"), "trws does not run on a model in parts, expected lslp"),
    ):
        (line,) = run("solve", parts, *arguments, code=2).stderr.splitlines()
        assert line.startswith("mapmrf: error: ") and message in line
    assert "--evidence cannot be combined with --stream" in (
        run("partition", model, parts, "--parts", 2, "--stream", "--evidence", "x", code=2).stderr
    )
    (parts / "part-00001.mrf").unlink()
    assert "part-00001.mrf: No such file" in run("solve", parts, code=2).stderr


def test_progress_and_summary(model: Path, tmp_path: Path) -> None:
    run("partition", model, tmp_path / "parts", "--parts", 2)
    found = run("solve", tmp_path / "parts", "--progress", "--set", "max_iterations=50")
    assert "64 variables, 112 factors, 2 parts on 1 rank" in found.stdout
    assert np.any(["lp" in line for line in found.stderr.splitlines()])
