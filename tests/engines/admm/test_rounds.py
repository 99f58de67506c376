"""A factor step in rounds: the same step, which ends between two rounds if nobody waits for it."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import mapmrf
from mapmrf import datasets
from mapmrf.engines.admm import steps as module
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.steps import rounds_of, work_of
from mapmrf.engines.admm.structs import BATCH, BatchRow, FactorKind
from mapmrf.model.problem import Problem
from mapmrf.run import calls as supervision
from mapmrf.run.calls import CallAbandoned, Supervisor

ROW = BatchRow(
    kind=FactorKind.DENSE, n=50, begin=0, end=50, arity=3, q_at=0, q_width=9, factor_at=0, edge_at=0, slot_at=0,
    slot_width=7, shape_at=0, config_at=0, n_configs=27, n_states=9, pull_at=0,
)  # fmt: skip
MIXED = datasets.random_graph(40, 60, (2, 4), (2, 4), hard=0.1, seed=3)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("affordable", [1, 7, 50, 1000])
def test_every_factor_is_in_one_round_and_no_round_is_too_long(
    monkeypatch: pytest.MonkeyPatch, threads: int, affordable: int
) -> None:
    tasks = np.array([ROW._replace(end=20), ROW._replace(begin=20), ROW._replace(kind=FactorKind.RIDGE)], dtype=BATCH)
    (each,) = set(work_of(tasks).tolist())
    monkeypatch.setattr(module, "ROUND_WORK", affordable * each)
    found = rounds_of(tasks, threads)
    covered = [(task.kind, f) for part in found for task in part for f in range(task.begin, task.end)]
    assert covered == [(FactorKind.DENSE, f) for f in range(50)] + [(FactorKind.RIDGE, f) for f in range(50)]
    assert all(sum(part["end"] - part["begin"]) <= affordable * threads for part in found)
    assert len(found) >= 100 // (affordable * threads)


@pytest.mark.parametrize("method", ["ad3", "lslp"])
def test_rounds_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    whole = mapmrf.solve(MIXED, method, max_iterations=40)
    monkeypatch.setattr(module, "ROUND_WORK", 1)
    cut = mapmrf.solve(MIXED, method, max_iterations=40)
    assert np.array_equal(whole.labels, cut.labels)
    assert (whole.value, whole.bound, whole.relaxed_value) == (cut.value, cut.bound, cut.relaxed_value)


def test_an_iteration_that_nobody_waits_for_ends_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUND_WORK", 1)
    engine = Engine(Layout.build(Problem.compile(datasets.random_graph(20, 30, 3, 3)), compact=True))
    gave_up, done = threading.Event(), []

    def work() -> None:
        assert gave_up.wait(60)
        try:
            engine.run(1)
        except CallAbandoned:
            done.append("given up")

    with pytest.raises(CallAbandoned):
        Supervisor().call(lambda: 0.0, work)
    gave_up.set()
    supervision.wait_for_all()
    assert done == ["given up"]
