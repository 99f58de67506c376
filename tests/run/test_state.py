"""Saved state: a run starts from the messages of an earlier one, or resumes one that was cut short."""

from __future__ import annotations

import dataclasses
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, FormatError, OptionError, Result
from mapmrf.datasets import grid, random_graph
from mapmrf.run import pace
from mapmrf.run.state import ArrayFile, SavedRun, read_arrays, write_arrays
from refusals import refuses
from strategies import Recipe, any_recipes, brute_force, random_recipe, with_weights

METHODS = ("trws", "mplp", "ad3", "lslp", "dd_sg", "psdd")
every_method = pytest.mark.parametrize("method", METHODS)
MODELS = {
    "spins": lambda: grid(7, 7, coupling=2.0, seed=1),
    "labels": lambda: random_recipe(3, 12, 24, max_arity=2, max_card=4).graph(),
    "any arity": lambda: random_recipe(5, 12, 60, max_arity=3, max_card=3).graph(),
}


def changed(graph: FactorGraph, size: float, seed: int = 0) -> FactorGraph:
    """The model with noise on all of its potentials."""
    random = np.random.default_rng(seed)
    theta_v, theta_t = (each + size * random.normal(size=len(each)) for each in (graph.theta_v, graph.theta_t))
    return dataclasses.replace(graph, theta_v=theta_v, theta_t=theta_t)


def few(graph: FactorGraph, method: str, initial: Any = None) -> Any:
    """The bound after ten iterations."""
    options = {"starts": 1} if method == "lslp" else {}
    return mapmrf.solve(graph, method, initial=initial, max_iterations=10, gap_tolerance=-1.0, **options).bound


# -- warm starts ------------------------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("name", MODELS)
def test_the_bound_begins_where_the_earlier_run_left_it_also_after_a_small_change(method: str, name: str) -> None:
    graph = MODELS[name]()
    first = mapmrf.solve(graph, method, gap_tolerance=-1.0, **({"sphere": "off"} if method == "lslp" else {}))
    assert first.dual is not None and first.bound is not None
    again, cold = few(graph, method, first), few(graph, method)
    slack = 1e-3 * abs(first.bound)  # ADMM's bound is not monotone
    assert again <= first.bound + slack
    assert cold > again + slack or cold <= first.bound + slack
    after = changed(graph, 1e-3)
    assert few(after, method, first) <= few(after, method, first.labels) + 1e-9
    assert few(after, method, first) <= first.bound + 0.05 * abs(first.bound)


@every_method
@given(with_weights(any_recipes()), st.integers(0, 100))
def test_bounds_and_labels_are_honest_after_any_change(method: str, recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    first = mapmrf.solve(graph, method, max_iterations=30)
    after = changed(graph, 1.0, seed)
    result = mapmrf.solve(after, method, initial=first, max_iterations=30)
    best = brute_force(after)[0]
    assert result.value == after.value(result.labels)
    slack = 1e-9 * max(1.0, abs(best)) if np.isfinite(best) else 0.0
    assert result.bound is None or result.bound >= best - slack
    assert result.value <= best + slack


@every_method
def test_other_structures_and_other_methods_use_the_labels_alone(method: str) -> None:
    graph = MODELS["spins"]()
    first = mapmrf.solve(graph, method)
    scope = graph.scope.copy()
    scope[:2] = scope[:2][::-1]
    turned = dataclasses.replace(graph, scope=scope)  # the same size, another structure
    assert first.dual is not None
    assert first.dual.fits(graph) and not first.dual.fits(turned)
    for other in METHODS:
        if {method, other} != {"ad3", "lslp"}:  # these two share a layout
            model = turned if other == method else graph
            assert few(model, other, first) == few(model, other, dataclasses.replace(first, dual=None))


def test_messages_of_another_layout_are_not_used() -> None:
    graph = MODELS["spins"]()
    start = mapmrf.solve(graph, "trws")
    bounds = [mapmrf.solve(graph, "trws", order="given", initial=s, max_iterations=1).bound for s in (start, None)]
    assert bounds[0] == bounds[1]
    graph = MODELS["labels"]()
    first = mapmrf.solve(graph, "ad3")
    theta_t = graph.theta_t.copy()
    theta_t[0] = -np.inf  # a forbidden entry changes the layout
    hard = dataclasses.replace(graph, theta_t=theta_t)
    assert few(hard, "ad3", first) == few(hard, "ad3", dataclasses.replace(first, dual=None))


@every_method
def test_it_is_pickled_but_not_written_as_json_and_warm_starts_leave_it_alone(method: str) -> None:
    graph = MODELS["labels"]()
    result = mapmrf.solve(graph, method)
    assert "dual" not in json.loads(result.to_json(trace=True, mu_v=True))
    assert Result.from_json(result.to_json()).dual is None
    before = result.dual.values.copy()
    after = changed(graph, 0.1)
    one, two = (mapmrf.solve(after, method, initial=each) for each in (result, pickle.loads(pickle.dumps(result))))
    assert (one.labels.tolist(), one.bound) == (two.labels.tolist(), two.bound)
    assert np.array_equal(result.dual.values, before)


@every_method
def test_large_states_are_not_kept(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run.method", "methods.trws", "engines.admm.engine", "engines.decomposition.subgradient"):
        monkeypatch.setattr(f"mapmrf.{name}.MOST_NUMBERS", 10)
    assert mapmrf.solve(MODELS["labels"](), method).dual is None


def test_only_methods_with_messages_keep_them_and_a_polisher_leaves_them() -> None:
    graph = MODELS["labels"]()
    assert mapmrf.solve(graph, "icm").dual is None
    (result,) = mapmrf.solve_many([graph], "trws")
    assert isinstance(result, Result) and result.dual is None
    result = mapmrf.solve(MODELS["spins"](), "trws", polish="icm")
    assert result.dual is not None and result.dual.layout.startswith("trws")


# -- checkpoints ------------------------------------------------------------------------------------------------------


MIXED = random_graph(20, 30, states=(2, 4), arity=(2, 3), hard=0.05, seed=1)


def cut_after(n: int) -> Any:
    seen: list[int] = []

    def callback(point: mapmrf.run.result.TracePoint, labels: np.ndarray) -> bool:
        seen.append(point.iterations)
        return len(seen) >= n

    return callback


@pytest.mark.parametrize(
    ("graph", "method", "options"),
    [
        (grid(14, 14, 3.0, seed=1), "lslp", {"max_iterations": 300, "lp_iterations": 60, "starts": 3}),
        (grid(14, 14, 3.0, seed=1), "lslp", {"preset": "paper", "variant": "free", "max_iterations": 60}),
        (grid(60, 60, 3.0, seed=1), "lslp", {"max_iterations": 160, "lp_iterations": 30}),
        (MIXED, "lslp", {"max_iterations": 200, "lp_iterations": 50, "starts": 2}),
        (MIXED, "lslp", {"max_iterations": 200, "lp_phase": False, "sphere": "factors", "starts": 2}),
        (grid(14, 14, 3.0, seed=1), "trws", {"max_iterations": 60, "tol": 0.0}),
        (MIXED, "trws", {"max_iterations": 60, "tol": 0.0}),
    ],
)
def test_a_run_that_is_cut_short_goes_on_to_the_same_answer(graph, method, options, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(pace, "SWEEPS", 0)  # a step per iteration
    whole = mapmrf.solve(graph, method, seed=2, **options)
    for n in (1, 3, 4):
        part = mapmrf.solve(graph, method, seed=2, callback=cut_after(n), checkpoint=tmp_path, resume=n > 1, **options)
        assert part.status == "interrupted"
    rest = mapmrf.solve(graph, method, seed=2, checkpoint=tmp_path, resume=True, **options)
    assert np.array_equal(rest.labels, whole.labels)
    for name in ("value", "bound", "iterations", "status"):
        assert getattr(rest, name) == getattr(whole, name)
    assert [point.bound_now for point in rest.trace] == [point.bound_now for point in whole.trace]
    assert np.all(np.diff([point.time for point in rest.trace]) >= 0)


@pytest.mark.parametrize("method", ["auto", "icm", "restarts"])
def test_any_method_keeps_the_best_labelling_and_bound(method: str, tmp_path: Path) -> None:
    graph = grid(16, 16, 3.0, seed=3)
    first = mapmrf.solve(graph, method, callback=cut_after(2), checkpoint=tmp_path)
    again = mapmrf.solve(graph, method, callback=cut_after(1), checkpoint=tmp_path, resume=True)
    assert again.value >= first.value
    assert first.bound is None or (again.bound is not None and again.bound <= first.bound)


def test_checkpoints_are_written_from_time_to_time(tmp_path: Path) -> None:
    graph = grid(10, 10, 3.0, seed=1)
    mapmrf.solve(graph, "lslp", checkpoint=tmp_path, every=0, max_iterations=50)
    assert [path.name for path in tmp_path.iterdir()] == ["run.mrf"]
    mapmrf.solve(graph, "lslp", checkpoint=tmp_path / "late", max_iterations=50)
    assert not (tmp_path / "late").exists()


def test_the_checkpoint_of_another_run_is_kept_and_one_that_is_resumed_replaced(tmp_path: Path) -> None:
    for k, resume in ((1, False), (2, False), (3, True)):
        checkpoint = SavedRun(tmp_path, 60.0, {"method": "icm", "options": {}}, resume)
        for step in (1, 2):
            checkpoint.write({"step": step, "run": k}, {"labels": np.zeros(3)})
        assert sorted(path.name for path in tmp_path.iterdir()) == ["run.mrf", "run.mrf~"][:k]
    kept = read_arrays(tmp_path / "run.mrf~", "run")
    assert (kept.figures["run"], kept.figures["step"]) == (1, 2)


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    graph = grid(10, 10, 3.0, seed=1)
    options: dict[str, Any] = {"checkpoint": tmp_path, "resume": True, "callback": cut_after(1)}
    mapmrf.solve(graph, "lslp", **options)
    written = r"run\.mrf: the checkpoint was written with eta=1\.01, found 1\.02"
    refuses(OptionError, written, mapmrf.solve, graph, "lslp", eta=1.02, **options)
    refuses(OptionError, "from another run: its seed differs", mapmrf.solve, graph, "lslp", seed=1, **options)
    other = grid(10, 10, 3.0, seed=2)
    refuses(OptionError, "from another run: its model differs", mapmrf.solve, other, "lslp", **options)
    refuses(OptionError, "every is -1", mapmrf.solve, graph, "lslp", checkpoint=tmp_path, every=-1)
    refuses(OptionError, "resume needs a checkpoint", mapmrf.solve, graph, "lslp", resume=True)
    (tmp_path / "run.mrf").write_bytes(b"nothing")
    refuses(FormatError, r"run\.mrf: not a file of arrays", mapmrf.solve, graph, "lslp", **options)


def test_numbers_survive_to_the_last_bit(tmp_path: Path) -> None:
    data = {"a": [0.1, float("inf"), -float("inf"), 3, None, True, "0.5", 1 / 3], "b": {"c": -1e-300, "d": 5e-324}}
    write_arrays(tmp_path / "run.mrf", ArrayFile("run", data, {}))
    assert read_arrays(tmp_path / "run.mrf", "run").figures == data
