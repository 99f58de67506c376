"""Times to target, profiles and curves, against cases computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from mapmrf.bench.groups import (
    TARGETS,
    accuracy_profile,
    anytime,
    distribution,
    group,
    median_time,
    performance_profile,
    profiles,
    steps,
    target_of,
    time_distributions,
    time_to,
)
from mapmrf.bench.tables import targets


def record(model: str, run: str, points: list[tuple[float, float]], seed: int = 0, **more: Any) -> dict[str, Any]:
    """A run that reaches these values after these seconds, and ends a second later."""
    about = {"key": f"{model}{run}{seed}", "set": "own", "model": model, "run": run, "method": run, "seed": seed}
    trace = [[time, k, value, *[None] * 6] for k, (time, value) in enumerate(points)]
    done = {"outcome": "done", "message": "", "time_limit": 60.0, "status": "converged", "iterations": 1}
    return {**about, **done, "value": points[-1][1], "runtime": points[-1][0] + 1.0, "trace": trace, **more}


def at(curve: list[tuple[float, float]], x: float) -> float:
    """A step function at a place."""
    return max((value for corner, value in curve if corner <= x), default=0.0)


def test_the_profile_of_dolan_and_more() -> None:
    """Three solvers on four problems; ratios a: 1 1 2 inf, b: 2 4 1 inf, c: inf 1 4 inf."""
    times = {
        "a": [1.0, 3.0, 4.0, math.inf],
        "b": [2.0, 12.0, 2.0, math.inf],
        "c": [math.inf, 3.0, 8.0, math.inf],
    }
    found = performance_profile(times)
    assert found == {
        "a": [(1.0, 0.5), (2.0, 0.75)],
        "b": [(1.0, 0.25), (2.0, 0.5), (4.0, 0.75)],
        "c": [(1.0, 0.25), (4.0, 0.5)],
    }
    assert [at(found["b"], tau) for tau in (1, 1.99, 2, 100)] == [0.25, 0.25, 0.5, 0.75]


def test_a_profile_is_the_definition_on_random_times() -> None:
    random = np.random.default_rng(3)
    table = np.where(random.random((4, 30)) < 0.2, math.inf, random.lognormal(size=(4, 30)))
    found = performance_profile({str(k): list(row) for k, row in enumerate(table)})
    best = table.min(axis=0)
    for k, row in enumerate(table):
        for tau in (1.0, 1.3, 2.0, 7.0, 1e6):
            share = np.mean([math.isfinite(t) and t <= tau * b for t, b in zip(row, best, strict=True)])
            assert at(found[str(k)], tau) == pytest.approx(share)


def test_times_below_a_tick_are_not_told_apart_and_nobody_divides_by_nothing() -> None:
    assert performance_profile({"a": [0.0], "b": [0.0005]}) == {"a": [(1.0, 1.0)], "b": [(1.0, 1.0)]}
    assert performance_profile({"a": [math.inf], "b": [math.inf]}) == {"a": [(1.0, 0.0)], "b": [(1.0, 0.0)]}
    assert performance_profile({"a": [], "b": []}) == {"a": [(1.0, 0.0)], "b": [(1.0, 0.0)]}


def test_the_time_to_a_target_is_that_of_the_first_point_or_of_the_end() -> None:
    run = record("m", "r", [(0.5, -10.0), (1.0, -10.0), (2.0, -4.0)], value=-3.0)
    assert steps(run) == [(0.5, -10.0), (2.0, -4.0), (3.0, -3.0)]
    assert [time_to(run, target) for target in (-20.0, -10.0, -9.9, -4.0, -3.0, -2.0)] == [
        0.5, 0.5, 2.0, 2.0, 3.0, math.inf
    ]  # fmt: skip
    nothing = record("m", "r", [(1.0, -math.inf)])
    assert steps(nothing) == [] and time_to(nothing, -1e9) == math.inf
    assert steps({"runtime": 2.0, "value": 1.0}) == [(2.0, 1.0)]  # no trace at all


def test_targets_are_below_the_best_for_either_sign() -> None:
    assert target_of(200.0, 0.01) == 198.0 and target_of(-200.0, 0.01) == -202.0
    assert target_of(0.5, 0.01) == 0.49  # relative to at least one
    assert TARGETS["1 %"] == 0.01


RECORDS = [
    record("a", "fast", [(1.0, 90.0), (2.0, 100.0)]),
    record("a", "slow", [(4.0, 99.5), (8.0, 100.0)]),
    record("b", "fast", [(1.0, 50.0)]),
    record("b", "slow", [(6.0, 50.0)]),
    record("b", "fast", [(3.0, 50.0)], seed=1),
    record("b", "slow", [(6.0, 40.0)], seed=1),
    record("c", "fast", [(1.0, 10.0)]),
    {**record("c", "slow", [(1.0, 0.0)]), "outcome": "crash"},
]


def test_profiles_of_records_use_medians_over_seeds_and_count_what_failed() -> None:
    """To the best: fast 2, (1, 3) -> 2, 1; slow 8, (6, inf) -> inf, crashed. Within 1 %: slow 4 on a."""
    groups = group(RECORDS)
    assert profiles(groups, TARGETS["best known"]) == {
        "fast": [(1.0, 1.0)],
        "slow": [(1.0, 0.0), (4.0, pytest.approx(1 / 3))],
    }
    assert profiles(groups, 0.01)["slow"] == [(1.0, 0.0), (2.0, pytest.approx(1 / 3))]
    assert profiles(group(RECORDS[:1]), 0.01) == {}  # nobody to compare with


def test_times_to_target_are_a_distribution_over_models_and_seeds() -> None:
    groups = group(RECORDS)
    found = time_distributions(groups, TARGETS["best known"])
    assert found["fast"] == [(1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]
    assert found["slow"] == [(6.0, 0.25), (8.0, 0.5)]  # of a, twice b, and c, on which it crashed


def test_the_table_of_targets_is_by_hand() -> None:
    table = targets("own", "Own models", group(RECORDS))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    # fast: a in 2 s, b in 1 s and 3 s, c in 1 s; slow: a in 8 s (4 s within 1 %), b in 6 s and never
    assert rows == {
        "fast": ["100.0", "1.500", "100.0", "1.500", "100.0", "1.500"],
        "slow": ["66.7", "8.000", "66.7", "8.000", "66.7", "6.000"],
    }
    assert [column.full for column in table.columns][:3] == ["run", "best known reached %", "best known median s"]


def test_medians_and_distributions_count_the_infinite() -> None:
    assert median_time([3.0, 1.0]) == 2.0
    assert median_time([3.0, 1.0, math.inf, math.inf]) == math.inf
    assert distribution([]) == []
    assert distribution([math.inf, math.inf]) == []
    assert distribution([3.0, 1.0, math.inf, 3.0]) == [(1.0, 0.25), (3.0, 0.75)]


def test_the_accuracy_profile_begins_at_a_tie_and_ends_at_all_of_the_value() -> None:
    assert accuracy_profile([0.0, 1e-7, 0.2, 3.0]) == [(1e-6, 0.5), (0.2, 0.75)]
    assert accuracy_profile([0.2, math.inf]) == [(1e-6, 0.0), (0.2, 0.5)]


# -- anytime curves ---------------------------------------------------------------------------------------------------


def test_bands_are_quantiles_of_the_values_at_a_time() -> None:
    runs = [record("m", "r", [(1.0, 10.0 * k), (4.0, 100.0)], seed=k) for k in range(1, 6)]
    band = anytime(runs, n=3)
    assert band is not None and band.seeds == 5
    np.testing.assert_allclose(band.times, [1.0, math.sqrt(5.0), 5.0])
    np.testing.assert_allclose(band.middle, [30.0, 30.0, 100.0])
    np.testing.assert_allclose(band.low, [14.0, 14.0, 100.0])  # linear between 10 and 20
    np.testing.assert_allclose(band.high, [46.0, 46.0, 100.0])


def test_a_band_begins_when_every_seed_has_a_labelling_and_ended_runs_keep_their_value() -> None:
    late = record("m", "r", [(2.0, 1.0), (9.0, 7.0)])
    early = record("m", "r", [(0.5, 3.0)], seed=1)
    band = anytime([late, early], n=2)
    assert band is not None
    assert band.times.tolist() == [2.0, 10.0]
    np.testing.assert_allclose(band.middle, [2.0, 5.0])
    assert (np.diff(band.low) >= 0).all() and (band.low <= band.middle).all() and (band.middle <= band.high).all()


def test_no_band_without_a_finite_value() -> None:
    assert anytime([]) is None
    assert anytime([record("m", "r", [(1.0, 2.0)]), record("m", "r", [(1.0, -math.inf)], seed=1)]) is None
