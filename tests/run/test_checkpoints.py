"""Runs in one process that are cut short, and go on to the same answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf.datasets import grid, random_graph
from mapmrf.run import pace
from mapmrf.run.checkpoints import exact, from_exact
from refusals import refuses

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
    assert (rest.value, rest.bound, rest.iterations, rest.status) == (
        whole.value, whole.bound, whole.iterations, whole.status,
    )  # fmt: skip
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


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    graph = grid(10, 10, 3.0, seed=1)
    options: dict[str, Any] = {"checkpoint": tmp_path, "resume": True, "callback": cut_after(1)}
    mapmrf.solve(graph, "lslp", **options)
    with pytest.raises(mapmrf.OptionError, match=r"run\.mrf: the checkpoint was written with eta=1\.01, found 1\.02"):
        mapmrf.solve(graph, "lslp", eta=1.02, **options)
    refuses(mapmrf.OptionError, "from another run: its seed differs", mapmrf.solve, graph, "lslp", seed=1, **options)
    with pytest.raises(mapmrf.OptionError, match="from another run: its model differs"):
        mapmrf.solve(grid(10, 10, 3.0, seed=2), "lslp", **options)
    refuses(mapmrf.OptionError, "every is -1", mapmrf.solve, graph, "lslp", checkpoint=tmp_path, every=-1)
    (tmp_path / "run.mrf").write_bytes(b"nothing")
    refuses(mapmrf.FormatError, r"run\.mrf: not a file of arrays", mapmrf.solve, graph, "lslp", **options)


def test_numbers_survive_to_the_last_bit() -> None:
    data = {"a": [0.1, float("inf"), -float("inf"), 3, None, True, "0.5"], "b": {"c": -1e-300}}
    assert from_exact(exact(data)) == data


def test_resuming_from_nowhere_is_refused_in_one_line() -> None:
    refuses(mapmrf.OptionError, "resume needs a checkpoint", mapmrf.solve, grid(3, 3), "lslp", resume=True)
