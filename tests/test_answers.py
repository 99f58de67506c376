"""The stored digests of answers: a small share of them here, all of them with `python benches/answers.py`."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest

import mapmrf
from mapmrf import Result, Status
from mapmrf.run.registry import method_names

SHARE = ("trws", "lslp", "bp", "icm", "chains", "qpbo", "branch", "maxflow", "mplp", "tabu")
"""Methods of the share: of every family some, each quick."""


@pytest.fixture(scope="module")
def answers(benches: Callable[[str], ModuleType]) -> ModuleType:
    return benches("answers")


@pytest.fixture(scope="module")
def models(answers: ModuleType) -> ModuleType:
    return importlib.import_module("random_models")


def assert_unchanged(answers: ModuleType, found: dict[str, str]) -> None:
    about, stored = answers.stored()
    changed = list(answers.changes(found, stored[found["name"]], values_only=about != answers.features()))
    assert not changed, f"{found['name']}: {changed}; if that was meant, python benches/answers.py --update"


@pytest.mark.parametrize("way", [(1, False), (2, False), (1, True)], ids=["one thread", "two threads", "batch"])
def test_a_share_of_the_stored_answers_is_still_given(answers: ModuleType, models: ModuleType, way: tuple) -> None:
    for row in answers.found(list(SHARE), models.names(1), *way):
        assert_unchanged(answers, row)


@pytest.mark.slow
def test_all_stored_answers_are_still_given(answers: ModuleType, models: ModuleType) -> None:
    methods = [name for name in method_names() if name not in answers.LEFT_OUT]
    for row in answers.found(methods, models.names()):
        assert_unchanged(answers, row)


def test_the_file_holds_315_models_and_all_methods_and_is_small(answers: ModuleType, models: ModuleType) -> None:
    _, stored = answers.stored()
    assert set(stored) == {f"{shape} {number}" for shape, number in models.names()}
    assert len(stored) == 315
    expected = {"name", "model", *method_names()} - set(answers.LEFT_OUT)
    assert all(set(row) == expected and all(row.values()) for row in stored.values())
    assert answers.FILE.stat().st_size < 300_000


def test_models_are_the_same_every_time_and_no_two_are_equal(answers: ModuleType, models: ModuleType) -> None:
    _, stored = answers.stored()
    digests = {name: answers.model_digest(models.model(*name)) for name in models.names(3)}
    assert all(digests[shape, n] == stored[f"{shape} {n}"]["model"] for shape, n in digests)
    large = [digest for (shape, _), digest in digests.items() if shape != "tiny"]
    assert len(set(large)) == len(large)


def result(labels: list[int], value: float, bound: float | None) -> Result:
    return Result(np.array(labels), value, Status.CONVERGED, "trws", bound=bound)


def test_what_changed_is_named(answers: ModuleType) -> None:
    row = {"name": "a 0", "model": "m"}
    before = row | {"trws": answers.digest_of(result([0, 1], 1.0, 2.0)), "icm": answers.DECLINED}
    for labels, value, bound, expected in (
        ([1, 1], 1.0, 2.0, [("trws", "labels")]),
        ([0, 1], 1.1, 2.0, [("trws", "value")]),
        ([0, 1], 1.0, 1.9, [("trws", "bound")]),
        ([0, 1], 1.0, None, [("trws", "bound")]),
        ([0, 1], 1.0 + 1e-12, 2.0 - 1e-12, []),  # round-off
    ):
        now = row | {"trws": answers.digest_of(result(labels, value, bound)), "icm": answers.DECLINED}
        assert list(answers.changes(now, before)) == expected
    other = row | {"trws": answers.digest_of(result([1, 1], 1.0, 2.0)), "icm": before["trws"]}
    changed = dict(answers.changes(other, before, values_only=True))
    assert list(changed) == ["icm"] and changed["icm"].startswith("- before")
    assert "the model" in dict(answers.changes({**before, "model": "n"}, before))


def test_tabu_search_with_constraints_comes_to_an_end(models: ModuleType) -> None:
    """Sums of gains drift: the same labelling must not look better time after time."""
    for number in range(6):
        found = mapmrf.solve(models.model("constrained", number), "tabu", trajectories=2, time_limit=60)
        assert found.status is not Status.TIME_LIMIT
