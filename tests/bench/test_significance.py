"""Wilcoxon's test between runs: scipy's p, Holm's correction by hand, and what counts as a pair."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import rankdata, wilcoxon

from mapmrf.bench.groups import group
from mapmrf.bench.tables import Comparison, comparisons, holm, signed_rank, significance


def record(model: int, run: str, value: float, **more: Any) -> dict[str, Any]:
    about = {"key": f"{model}{run}{more.get('seed')}", "set": "own", "model": f"m{model}", "run": run, "method": run}
    done = {"outcome": "done", "time_limit": 60.0, "value": value, "status": "converged", "runtime": 1.0, "best": 100.0}
    return {**about, **done, **more}


def exact_p(differences: list[float]) -> float:
    """Two-sided p by all signs, for differences without ties."""
    ranks = rankdata(np.abs(differences))
    positive = sum(rank for rank, x in zip(ranks, differences, strict=True) if x > 0)
    sums = [sum(r for r, up in zip(ranks, signs, strict=True) if up) for signs in product((0, 1), repeat=len(ranks))]
    tail = min(np.mean([s <= positive for s in sums]), np.mean([s >= positive for s in sums]))
    return float(min(1.0, 2 * tail))


def test_p_is_that_of_scipy_and_of_all_signs() -> None:
    random = np.random.default_rng(0)
    for n in (6, 8, 11):
        differences = random.normal(0.5, 1.0, size=n).tolist()
        assert signed_rank(differences) == pytest.approx(wilcoxon(differences).pvalue)
        assert signed_rank(differences) == pytest.approx(exact_p(differences))


def test_zeros_are_left_out_and_the_infinite_rank_highest() -> None:
    assert signed_rank([]) == signed_rank([0.0] * 9) == 1.0
    some = [1.0, -2.0, 3.0, 4.0, 5.0, 6.0]
    assert signed_rank([*some, 0.0, 0.0]) == signed_rank(some)
    assert signed_rank([*some, math.inf]) == signed_rank([*some, 7.0])
    assert signed_rank([-math.inf, *some]) == signed_rank([-7.0, *some])


def test_holm_by_hand() -> None:
    """Sorted 0.01, 0.02, 0.03, 0.2 times 4, 3, 2, 1, then made to grow, and never above 1."""
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


def test_pairs_are_the_models_that_both_have_solved() -> None:
    """b loses 1, 2, ..., 7 % on seven models, ties on two, and crashes on one; c has too few models."""
    records = [record(k, "a", 100.0) for k in range(10)]
    records += [record(k, "b", 100.0 - (k + 1 if k < 7 else 0.0)) for k in range(9)]
    records += [{**record(9, "b", 0.0), "outcome": "crash"}, *(record(k, "c", 1.0) for k in range(5))]
    (only,) = comparisons(group(records))
    assert only == Comparison("a", "b", 7, 2, 0, p=2 / 2**7, corrected=2 / 2**7)
    assert comparisons(group(records[::-1])) == [only]  # the better one first, in any order


def test_seeds_are_averaged_before_models_are_compared() -> None:
    records = [record(k, "a", 100.0 - 2 * seed, seed=seed) for k in range(6) for seed in (0, 1)]
    records += [record(k, "b", 99.0, seed=0) for k in range(6)]
    (only,) = comparisons(group(records))
    assert (only.better, only.equal, only.worse, only.p) == (0, 6, 0, 1.0)


def test_the_table_marks_what_is_significant_after_the_correction() -> None:
    gaps = {"a": 0, "b": 1, "c": 2}
    records = [record(k, run, 100.0 - gap * (1 + k / 10)) for k in range(8) for run, gap in gaps.items()]
    records += [record(k, "d", 100.0 - (k % 2)) for k in range(8)]
    table = significance("own", "Own", group(records))
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    found = {(one.run, one.other): one for one in comparisons(group(records))}
    assert len(rows) == 6 and set(rows) == set(found)
    for pair, row in rows.items():
        assert row[-1].best == (found[pair].corrected < 0.05)
    assert found["a", "b"].p == pytest.approx(2 / 2**8) and rows["a", "b"][-1].best
    assert not rows["a", "d"][-1].best
    assert [row[5].value for row in table.rows] == sorted(row[5].value for row in table.rows)
    assert significance("x", "x", group(records[:9])).rows == []
