"""Parameter search: the table keeps the order of the grid, and the best run is returned, however many run at a time."""

import itertools
import os
import signal

import numpy as np
import pytest

import mapmrf
from mapmrf.datasets import grid
from mapmrf.methods.lslp import LSLP
from refusals import refuses

GRAPH = grid(4, 4, coupling=2.0, seed=1)
AXES = {"rho": [0.05, 0.5], "eta": [1.03, 1.1], "rho_upper": [1e8, 1e2], "seeds": [0, 3]}


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_table_has_every_combination_in_the_order_of_the_grid(jobs):
    tuning = mapmrf.tune(GRAPH, jobs=jobs, **AXES)
    expected = [(r, e, u, s) for r in (0.05, 0.5) for e in (1.03, 1.1) for s in (0, 3) for u in (1e2, 1e8)]
    assert [(row["rho"], row["eta"], row["rho_upper"], row["seed"]) for row in tuning.table] == expected
    best = max(tuning.table, key=lambda row: row["value"])  # the first of equals
    assert tuning.best == {key: best[key] for key in ("rho", "eta", "rho_upper", "seed")}
    assert tuning.result.value == best["value"] == GRAPH.value(tuning.result.labels)


def test_a_row_is_that_of_a_single_run():
    tuning = mapmrf.tune(GRAPH, jobs=2, **AXES)
    row = tuning.table[5]
    options = {key: row[key] for key in ("rho", "eta", "rho_upper", "seed")}
    alone = mapmrf.solve(GRAPH, "lslp", preset="paper", **options)
    assert (row["value"], row["iterations"], row["status"]) == (alone.value, alone.iterations, alone.status.value)


def test_the_time_limit_is_that_of_the_search():
    tuning = mapmrf.tune(GRAPH, jobs=1, time_limit=0.0, **AXES)
    assert len(tuning.table) == 16
    assert {row["status"] for row in tuning.table} == {"time_limit"}


def test_ctrl_c_fills_the_table(monkeypatch):
    """The run under way ends, and the rows that were waiting are those of runs stopped at once."""
    large = grid(60, 60, coupling=4.0, seed=1)
    steps, step = itertools.count(), LSLP.step

    def press(*arguments):
        if next(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(*arguments)

    monkeypatch.setattr(LSLP, "step", press)
    tuning = mapmrf.tune(large, jobs=1, rho=[0.05] * 50, eta=[1.0001], rho_upper=[1e6], max_iterations=10**8)
    assert len(tuning.table) == 50
    assert {row["status"] for row in tuning.table} == {"interrupted"}
    assert np.isfinite(tuning.result.value)


def test_impossible_searches_are_refused() -> None:
    odd = mapmrf.FactorGraph.from_tables([3], [], [])
    refuses(mapmrf.OptionError, "did you mean", mapmrf.tune, odd, rhoo=1.0, jobs=1)
    refuses(mapmrf.OptionError, "nothing to tune", mapmrf.tune, odd, rho=[], jobs=1)
    with pytest.raises(mapmrf.OptionError, match=r"icm has no option 'rho', expected a grid .* max_iterations, starts"):
        mapmrf.tune(GRAPH, "icm", jobs=1)
    refuses(mapmrf.OptionError, "did you mean 'starts'", mapmrf.tune, GRAPH, "icm", grid={"start": [1]}, jobs=1)
    refuses(mapmrf.OptionError, "nothing to tune", mapmrf.tune, GRAPH, "icm", grid={"starts": []}, jobs=1)


def test_a_grid_of_any_options_replaces_the_papers():
    tuning = mapmrf.tune(GRAPH, "icm", grid={"starts": [1, 4], "max_iterations": [50]}, seeds=[0, 1], jobs=2)
    expected = [(starts, 50, seed) for starts in (1, 4) for seed in (0, 1)]
    assert [(row["starts"], row["max_iterations"], row["seed"]) for row in tuning.table] == expected
    assert set(tuning.best) == {"starts", "max_iterations", "seed"}
    alone = mapmrf.solve(GRAPH, "icm", starts=4, max_iterations=50, seed=1)
    assert tuning.table[3]["value"] == alone.value
    assert tuning.result.value == max(row["value"] for row in tuning.table)
