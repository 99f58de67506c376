"""Tables from records: figures, ranks, times to a target and curves by hand, the paper's columns, and all forms."""

from __future__ import annotations

import csv
import io
import math
import re
from typing import Any

import numpy as np
import pytest
from scipy.stats import wilcoxon

from mapmrf.bench.groups import (
    TARGETS,
    accuracy_profile,
    anytime,
    group,
    performance_profile,
    profiles,
    rank,
    ranks,
    steps,
    time_distributions,
)
from mapmrf.bench.render import Cell, Column, Table, number, rendered, to_csv, to_latex, to_markdown, to_text
from mapmrf.bench.tables import signed_rank, significance, tables, targets


def record(model: str, run: str, value: float | None, *, which: str = "grids", **more: Any) -> dict[str, Any]:
    base = {
        "key": f"{which}{model}{run}{more.get('seed', 0)}",
        "set": which,
        "index": {"grid20x20.f10": "M1", "grid40x40.f10": "M6", "grid80x80.f10": "M14"}.get(model, ""),
        "model": model,
        "run": run,
        "method": run.split()[0],
        "outcome": "done" if value is not None else "crash",
        "best": None,
        "time_limit": 60.0,
    }
    if value is not None:
        base |= {"value": value, "status": "converged", "iterations": 10, "runtime": 1.5, "compile_time": 0.5}
    return base | more


def named(records: list[dict[str, Any]], name: str) -> Table:
    return next(table for table in tables(records) if table.name == name)


def column(table: Table, name: str) -> list[str]:
    (place,) = [k for k, column in enumerate(table.columns) if column.full == name]
    return [line[place].shown for line in table.lines]


RECORDS = [
    record("grid80x80.f10", "lslp", 48800.0, best=50494.0752, bound=62950.0),
    record("grid20x20.f10", "lslp", 3000.0, best=3015.7447, bound=3740.0, kind_text="V"),
    record("grid20x20.f10", "icm", 2708.93, best=3015.7447),
    record("grid20x20.f10", "lp", 100.0, relaxed_value=3736.73, bound=3736.73, best=3015.7447, kind_text="U"),
    record("grid20x20.f10", "bp", None, best=3015.7447),
]


def test_the_papers_column_stands_beside_ours_in_its_order() -> None:
    table = named(RECORDS, "grids-logpot")
    assert column(table, "no.") == ["M1", "M14", ""]
    assert column(table, "lslp") == ["3000.00 (1)", "48800.00 (1)", "1.00"]
    assert column(table, "lslp paper") == ["2931.80 (3)", "48766.10 (1)", "2.00"]
    assert column(table, "lslp difference") == ["+68.20", "+33.90", ""]
    assert column(table, "best known") == ["3015.74", "50494.08", ""]
    others = [record("grid20x20.f10", run, 1.0) for run in ("peer:qpbo", "auto")]
    table = named([*RECORDS, *others], "grids-logpot")
    runs = ["lp", "icm", "bp", "lslp", "auto", "peer:qpbo"]
    assert [column.full for column in table.columns if column.full in runs] == runs
    assert column(table, "bp") == ["", "", ""]
    table = named(RECORDS, "grids-logpot")
    assert column(table, "lp")[0] == "3736.73 (3)"
    assert column(table, "lp paper")[0] == "3736.70"
    assert column(table, "lp difference")[0] == "+0.03"


def test_equal_values_share_the_better_rank() -> None:
    mine = group(
        [record("a", "icm", 2.0), record("a", "bp", 2.0 + 1e-9), record("a", "lp", 1.0), record("a", "x", -math.inf)]
    )[0]
    assert ranks(mine, "a") == {"icm": 1, "bp": 1, "lp": 3, "x": 4}
    assert rank({"a": 2.0, "b": 3.0, "c": 2.0}) == {"a": 2, "b": 1, "c": 2}


def test_the_overview_counts_hits_and_proofs_and_is_ordered_by_rank() -> None:
    table = named([*RECORDS, record("grid20x20.f10", "auto", 3016.0, status="optimal")], "grids-overview")
    rows = {row[0].text: [cell.text for cell in row[2:5]] for row in table.rows}
    assert rows["auto"] == ["1", "1", "1"]
    assert rows["lslp"] == ["2", "0", "0"]
    assert "bp" not in rows
    assert column(named(RECORDS, "grids-overview"), "run") == ["lslp", "icm", "lp"]
    assert not any(table.name == "all-overview" for table in tables(RECORDS))
    both = [*RECORDS, record("a", "icm", 5.0, which="own"), record("a", "lslp", 4.0, which="own")]
    every = named(both, "all-overview")
    assert column(every, "run") == ["lslp", "icm", "lp"]
    assert column(every, "models") == ["3", "2", "1"]
    assert column(every, "mean rank") == ["1.33", "1.50", "3.00"]
    assert [row[5].best for row in every.rows] == [True, False, False]


def test_the_paper_is_mentioned_only_beside_its_own_models() -> None:
    odd = record("grid20x20.f10", "lslp", 7.0, checksum="differs")
    table = named([odd], "grids-logpot")
    assert column(table, "model")[0] == "grid20x20.f10 (not the catalogue's)"
    assert not any(column.name == "paper" for column in table.columns)
    facts = {**STATISTICS, "factor_states": 4.0}
    for which in ("own", "grids-like", "seg-2-like"):
        both = [record(model, run, 1.0, which=which, kind_text="V", **facts) for model in "ab" for run in ("lp", "icm")]
        for table in tables(both):
            heads = [column.full for column in table.columns]
            assert not any("paper" in head or head == "of" for head in heads), table.name
            assert "paper" not in table.note
    both = [record(model, run, 1.0, **facts) for model in ("grid20x20.f10", "b") for run in ("lp", "icm")]
    assert "paper's name" in [column.full for column in named(both, "grids-overview").columns]


STATISTICS = {"n_vars": 400, "n_factors": 780, "n_edges": 1560, "factor_size": 2.0, "variable_states": 2.0}


def test_the_statistics_of_the_sets_stand_beside_the_papers() -> None:
    facts = {**STATISTICS, "factor_states": 4.0}
    records = [
        record("grid20x20.f10", "icm", 1.0, **facts),
        record("grid20x20.f10", "lp", 1.0, **facts),
        record("grid40x40.f10", "icm", 1.0, **{**facts, "n_vars": 1600}),
        record("grids-like-01", "icm", None, which="grids-like", **facts),
        record("mine", "icm", 1.0, which="own", **facts),
        record("old", "icm", 1.0, which="own", n_vars=3, n_factors=2),
    ]
    table = named(records, "datasets")
    assert column(table, "set") == ["Grids"] * 3 + ["Grids look-alikes", "Own models"]
    assert column(table, "of") == ["ours", "paper", "difference", "ours", "ours"]
    assert column(table, "models") == ["2", "21", "-19", "1", "1"]
    assert column(table, "variables") == ["1000", "3142.86", "-2142.86", "400", "400"]
    assert column(table, "factor states")[:3] == ["4", "4", "0"]


def test_means_over_a_set_stand_beside_the_papers() -> None:
    records = [record(model, "icm", value, which="seg-2") for model, value in (("a", -100.0), ("b", -140.0))]
    table = named(records, "seg-2-logpot-mean")
    assert [cell.text for cell in table.rows[0]] == [
        "icm",
        "2",
        "-120.000",
        "-137.10",
        "+17.10",
        "28.284",
        "70.10",
        "-41.82",
    ]
    assert column(named(records, "seg-2-runtime-mean"), "mean") == ["1.0000"]
    like = [{**one, "set": "seg-2-like"} for one in records]
    assert [column.full for column in named(like, "seg-2-like-logpot-mean").columns] == ["run", "models", "mean", "std"]


def test_means_are_over_seeds_and_finite_values() -> None:
    records = [record("a", "icm", value, which="own", seed=seed) for seed, value in enumerate((1.0, 2.0))]
    assert column(named(records, "own-logpot"), "icm")[0] == "1.50 (1)"
    records = [record(model, "icm", value, which="seg-2") for model, value in (("a", -math.inf), ("b", -140.0))]
    assert [cell.text for cell in named(records, "seg-2-logpot-mean").rows[0]][:3] == ["icm", "1", "-140.000"]


def test_types_stand_beside_those_that_the_paper_gives() -> None:
    table = named(RECORDS, "grids-kinds")
    assert (column(table, "lp"), column(table, "lp paper")) == (["U", ""], ["U", "U"])
    assert (column(table, "icm"), column(table, "icm paper")) == (["V", ""], ["V", "V"])
    assert "without shares" in table.note and "DAOOPT has no result on M14" in table.note
    protein = [
        record("didNotconverge1", "ad3", 1.0, which="protein", kind_text="A+1.8%U+21.73%F"),
        record("didNotconverge1", "trws", 1.0, which="protein", kind_text="0.01%U"),
    ]
    table = named(protein, "protein-kinds")
    assert column(table, "ad3 paper") == ["A+2.01%U+21.52%F"]
    assert "trws paper" not in [column.full for column in table.columns]


def test_types_are_counted_where_the_paper_counts_them() -> None:
    kinds = {"a": "V", "b": "A+1%U", "c": "2%F", "d": "A"}
    records = [record(model, "psdd", 1.0, which="seg-2", kind_text=kind) for model, kind in kinds.items()]
    table = named([*records, record("a", "dd_sg", 1.0, which="seg-2")], "seg-2-kinds-count")
    assert column(table, "ours") == ["1 V", "1 V, 1 F, 2 A"]
    assert column(table, "paper") == ["", "45 V, 5 A"]
    like = [{**one, "set": "seg-2-like"} for one in records]
    assert [column.full for column in named(like, "seg-2-like-kinds-count").columns] == ["run", "ours"]


def test_bounds_have_a_table_of_their_own() -> None:
    bounds = named(RECORDS, "grids-bounds")
    assert column(bounds, "lp") == ["3736.73", ""]
    assert [row[3].best for row in bounds.rows] == [True, False]
    assert {table.name for table in tables(RECORDS[2:3])} == {
        "grids-overview", "grids-logpot", "grids-iters", "grids-runtime", "grids-kinds", "grids-target",
    }  # fmt: skip


def test_every_row_has_a_cell_for_every_column_and_no_two_columns_a_name() -> None:
    for table in tables([*RECORDS, record("a", "icm", 1.0, which="seg-2")]):
        assert all(len(line) == len(table.columns) for line in table.lines)
        assert len({column.full for column in table.columns}) == len(table.columns)


def test_runs_of_different_time_limits_are_told_apart() -> None:
    records = [record("a", "icm", value, which="own", time_limit=limit) for limit, value in ((1.0, 1.0), (2.0, 3.0))]
    table = named(records, "own-logpot")
    assert column(table, "icm 1 s")[0] == "1.00 (2)" and column(table, "icm 2 s")[0] == "3.00 (1)"


# -- significance -----------------------------------------------------------------------------------------------------


def solved(model: int, run: str, value: float, **more: Any) -> dict[str, Any]:
    return record(f"m{model}", run, value, which="own", best=100.0, **more)


def test_p_leaves_out_zeros_and_takes_the_infinite_for_the_largest() -> None:
    some = [1.0, -2.0, 3.0, 4.0, 5.0, 6.0]
    assert signed_rank([*some, 0.0, 0.0]) == signed_rank(some) == wilcoxon(some).pvalue
    assert signed_rank([]) == signed_rank([0.0] * 9) == 1.0
    assert signed_rank([*some, math.inf]) == signed_rank([*some, 7.0])
    assert signed_rank([-math.inf, *some]) == signed_rank([-7.0, *some])


def test_pairs_are_the_models_that_both_have_solved() -> None:
    """b loses 1, 2, ..., 7 % on seven models, ties on two, and crashes on one; both fail on one; c has too few."""
    records = [solved(k, "a", 100.0) for k in range(10)]
    records += [solved(k, "b", 100.0 - (k + 1 if k < 7 else 1e-7)) for k in range(9)]
    records += [solved(10, run, -math.inf) for run in "ab"]
    records += [{**solved(9, "b", 0.0), "outcome": "crash"}, *(solved(k, "c", 1.0) for k in range(5))]
    for some in (records, records[::-1]):  # the better one first, in any order
        (only,) = significance("own", "Own", group(some)).rows
        assert [cell.text for cell in only[:5]] == ["a", "b", "7", "3", "0"]
        assert only[5].value == only[6].value == 2 / 2**7
    # Seeds are averaged before models are compared.
    records = [solved(k, "a", 100.0 - 2 * seed, seed=seed) for k in range(6) for seed in (0, 1)]
    records += [solved(k, "b", 99.0, seed=0) for k in range(6)]
    (only,) = significance("own", "Own", group(records)).rows
    assert [cell.text for cell in only] == ["a", "b", "0", "6", "0", "1.0000", "1.0000"]


def test_the_table_marks_what_is_significant_after_the_correction_of_holm() -> None:
    gaps = {"a": 0, "b": 1, "c": 2}
    records = [solved(k, run, 100.0 - gap * (1 + k / 10)) for k in range(8) for run, gap in gaps.items()]
    records += [solved(k, "d", 100.0 - (k % 2)) for k in range(8)]
    table = significance("own", "Own", group(records))
    ps, corrected = ([row[place].value for row in table.rows] for place in (5, 6))
    assert len(ps) == 6 and ps == sorted(ps)
    products = [(6 - k) * p for k, p in enumerate(ps)]
    assert corrected == pytest.approx([min(1.0, max(products[: k + 1])) for k in range(6)])
    assert [row[6].best for row in table.rows] == [p < 0.05 for p in corrected]
    rows = {(row[0].text, row[1].text): row for row in table.rows}
    assert rows["a", "b"][5].value == pytest.approx(2 / 2**8) and rows["a", "b"][6].best
    assert not rows["a", "d"][6].best
    assert significance("x", "x", group(records[:9])).rows == []


# -- times to a target, and profiles ----------------------------------------------------------------------------------


def traced(model: str, run: str, points: list[tuple[float, float]], seed: int = 0, **more: Any) -> dict[str, Any]:
    """A run that reaches these values after these seconds, and ends a second later."""
    trace = [[time, k, value, *[None] * 6] for k, (time, value) in enumerate(points)]
    done = {"compile_time": 0.0, "runtime": points[-1][0] + 1.0, "trace": trace, "seed": seed}
    return {**record(model, run, points[-1][1], which="own", **done), **more}


def test_the_profile_of_dolan_and_more() -> None:
    """Three solvers on four problems; ratios a: 1 1 2 inf, b: 2 4 1 inf, c: inf 1 4 inf."""
    times = {
        "a": [1.0, 3.0, 4.0, math.inf],
        "b": [2.0, 12.0, 2.0, math.inf],
        "c": [math.inf, 3.0, 8.0, math.inf],
    }
    assert performance_profile(times) == {
        "a": [(1.0, 0.5), (2.0, 0.75)],
        "b": [(1.0, 0.25), (2.0, 0.5), (4.0, 0.75)],
        "c": [(1.0, 0.25), (4.0, 0.5)],
    }


def test_times_below_a_tick_are_not_told_apart_and_nobody_divides_by_nothing() -> None:
    assert performance_profile({"a": [0.0], "b": [0.0005]}) == {"a": [(1.0, 1.0)], "b": [(1.0, 1.0)]}
    assert performance_profile({"a": [math.inf], "b": [math.inf]}) == {"a": [(1.0, 0.0)], "b": [(1.0, 0.0)]}
    assert performance_profile({"a": [], "b": []}) == {"a": [(1.0, 0.0)], "b": [(1.0, 0.0)]}


def test_the_steps_of_a_run_are_its_improvements_and_its_end() -> None:
    run = traced("m", "r", [(0.5, -10.0), (1.0, -10.0), (2.0, -4.0)], value=-3.0)
    assert steps(run) == [(0.5, -10.0), (2.0, -4.0), (3.0, -3.0)]
    assert steps(traced("m", "r", [(1.0, -math.inf)])) == []
    assert steps({"runtime": 2.0, "value": 1.0}) == [(2.0, 1.0)]  # no trace at all


@pytest.mark.parametrize(("best", "within"), [(200.0, 198.0), (-200.0, -202.0), (0.5, 0.49)])
def test_targets_are_below_the_best_for_either_sign(best: float, within: float) -> None:
    records = [traced("m", "r", [(1.0, within - 1e-6), (2.0, within), (3.0, best)])]
    assert time_distributions(group(records), TARGETS["1 %"]) == {"r": [(2.0, 1.0)]}


TRACED = [
    traced("a", "fast", [(1.0, 90.0), (2.0, 100.0)]),
    traced("a", "slow", [(4.0, 99.5), (8.0, 100.0)]),
    traced("b", "fast", [(1.0, 50.0)]),
    traced("b", "slow", [(6.0, 50.0)]),
    traced("b", "fast", [(3.0, 50.0)], seed=1),
    traced("b", "slow", [(6.0, 40.0)], seed=1),
    traced("c", "fast", [(1.0, 10.0)]),
    {**traced("c", "slow", [(1.0, 0.0)]), "outcome": "crash"},
]


def test_profiles_of_records_use_medians_over_seeds_and_count_what_failed() -> None:
    """To the best: fast 2, (1, 3) -> 2, 1; slow 8, (6, inf) -> inf, crashed. Within 1 %: slow 4 on a."""
    groups = group(TRACED)
    assert profiles(groups, TARGETS["best known"]) == {
        "fast": [(1.0, 1.0)],
        "slow": [(1.0, 0.0), (4.0, pytest.approx(1 / 3))],
    }
    assert profiles(groups, 0.01)["slow"] == [(1.0, 0.0), (2.0, pytest.approx(1 / 3))]
    assert profiles(group(TRACED[:1]), 0.01) == {}  # nobody to compare with


def test_times_to_target_are_a_distribution_over_models_and_seeds() -> None:
    groups = group(TRACED)
    found = time_distributions(groups, TARGETS["best known"])
    assert found["fast"] == [(1.0, 0.5), (2.0, 0.75), (3.0, 1.0)]
    assert found["slow"] == [(6.0, 0.25), (8.0, 0.5)]  # of a, twice b, and c, on which it crashed


def test_the_table_of_targets_is_by_hand() -> None:
    table = targets("own", "Own models", group(TRACED))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    # fast: a in 2 s, b in 1 s and 3 s, c in 1 s; slow: a in 8 s (4 s within 1 %), b in 6 s and never
    assert rows == {
        "fast": ["100.0", "1.500", "100.0", "1.500", "100.0", "1.500"],
        "slow": ["66.7", "8.000", "66.7", "8.000", "66.7", "6.000"],
    }
    assert [column.full for column in table.columns][:3] == ["run", "best known reached %", "best known median s"]


def test_the_accuracy_profile_begins_at_a_tie_and_ends_at_all_of_the_value() -> None:
    assert accuracy_profile([0.0, 1e-7, 0.2, 3.0]) == [(1e-6, 0.5), (0.2, 0.75)]
    assert accuracy_profile([0.2, math.inf]) == [(1e-6, 0.0), (0.2, 0.5)]


# -- anytime curves ---------------------------------------------------------------------------------------------------


def test_bands_are_quantiles_of_the_values_at_a_time() -> None:
    runs = [traced("m", "r", [(1.0, 10.0 * k), (4.0, 100.0)], seed=k) for k in range(1, 6)]
    band = anytime(runs, n=3)
    assert band is not None and band.seeds == 5
    np.testing.assert_allclose(band.times, [1.0, math.sqrt(5.0), 5.0])
    np.testing.assert_allclose(band.middle, [30.0, 30.0, 100.0])
    np.testing.assert_allclose(band.low, [14.0, 14.0, 100.0])  # linear between 10 and 20
    np.testing.assert_allclose(band.high, [46.0, 46.0, 100.0])


def test_a_band_begins_when_every_seed_has_a_labelling_and_ended_runs_keep_their_value() -> None:
    late = traced("m", "r", [(2.0, 1.0), (9.0, 7.0)])
    early = traced("m", "r", [(0.5, 3.0)], seed=1)
    assert anytime([]) is None and anytime([late, traced("m", "r", [(1.0, -math.inf)], seed=1)]) is None
    band = anytime([late, early], n=2)
    assert band is not None
    assert band.times.tolist() == [2.0, 10.0]
    np.testing.assert_allclose(band.middle, [2.0, 5.0])
    assert (np.diff(band.low) >= 0).all() and (band.low <= band.middle).all() and (band.middle <= band.high).all()


# -- forms: aligned, escaped, marked, and split where they are too wide -----------------------------------------------


TABLE = Table(
    "t", "A & B", [Column("no.", key=True), Column("na|me_x"), Column("value")],
    [[Cell("M1", 1.0), Cell("a|b"), Cell("-1.50", -1.5, best=True, rank=1)], [Cell(), Cell("50%"), Cell()]],
    "A note.",
)  # fmt: skip


def wide(runs: int, rows: int = 3) -> Table:
    """A table as of log potentials: for every run ours, the paper's and the difference."""
    columns = [Column("no.", key=True), Column("model", key=True), Column("best known")]
    columns += [Column(part, f"run{k}") for k in range(runs) for part in ("ours", "paper", "difference")]
    figures = [number(1000.0 + k, 2) for k in range(3 * runs)]
    body = [[Cell(f"M{n}", float(n)), Cell(f"model{n}"), number(2000, 2), *figures] for n in range(rows)]
    below = [Cell(), Cell("mean rank"), Cell(), *([number(1, 2), Cell(), Cell()] * runs)]
    return Table("w", "Wide", columns, body, "Said once.", below)


# -- splitting --------------------------------------------------------------------------------------------------------


def test_parts_repeat_the_keys_keep_runs_together_and_lose_nothing() -> None:
    table = wide(7)
    parts = table.split(80, lambda cell: len(cell.shown), 2)
    assert len(parts) > 1
    seen = []
    for part in parts:
        names = [column.full for column in part.columns]
        assert names[:2] == ["no.", "model"]
        assert [row[1].text for row in part.rows] == ["model0", "model1", "model2"]
        assert part.summary is not None and len(part.summary) == len(part.columns)
        assert len(to_text(part, 1000).splitlines()[2]) <= 80
        for of in {column.of for column in part.columns if column.of}:
            assert [column.name for column in part.columns if column.of == of] == ["ours", "paper", "difference"]
        seen += names[2:]
    assert seen == [column.full for column in table.columns][2:]
    assert [part.title for part in parts] == [f"Wide ({n} of {len(parts)})" for n in range(1, len(parts) + 1)]


def test_a_table_that_fits_is_left_alone_and_a_run_is_never_cut() -> None:
    assert wide(2).split(1000, lambda cell: len(cell.shown), 2) == [wide(2)]
    parts = wide(3).split(5, lambda cell: len(cell.shown), 2)
    assert [sum(column.name == "ours" for column in part.columns) for part in parts] == [0, 1, 1, 1]


# -- forms ------------------------------------------------------------------------------------------------------------


def test_text_is_aligned() -> None:
    lines = to_text(TABLE).splitlines()
    assert lines[0] == "A & B"
    assert lines[2:4] == ["no.  na|me_x       value", "---  -------  ----------"]
    assert lines[4:6] == ["M1   a|b      -1.50 (1)*", "     50%"]
    assert lines[-1] == "A note."


def test_wide_text_comes_in_parts_that_fit_with_the_runs_above_their_columns() -> None:
    lines = to_text(wide(9), 100).splitlines()
    assert max(map(len, lines)) <= 100
    assert sum(line == "Said once." for line in lines) == 1
    above = next(line for line in lines if "run0" in line)
    below = lines[lines.index(above) + 1]
    assert below.index("ours") < above.index("run0") < below.index("difference")


def test_special_characters_are_escaped_in_markdown_and_latex() -> None:
    text = to_markdown(TABLE)
    assert "| M1 | a\\|b | **-1.50 (1)** |" in text
    assert "| no. | na\\|me_x | value |" in text
    assert "| --- | --- | ---: |" in text
    text = to_latex(TABLE)
    assert r"\caption{A \& B. A note.}" in text
    assert r"M1 & a\textbar{}b & \textbf{$-$1.50}\textsuperscript{1} \\" in text
    assert r" & 50\% &  \\" in text
    assert r"na\textbar{}me\_x" in text


def test_latex_is_split_by_width_and_every_line_has_its_cells() -> None:
    text = to_latex(wide(9))
    parts = re.findall(r"\\begin\{longtable\}\{(\w+)\}(.*?)\\end\{longtable\}", text, re.DOTALL)
    assert len(parts) > 2
    for align, body in parts:
        _, *lines = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert len(lines) == 2 * 2 + 3 + 1  # two lines of heads, on the first page and the others, rows and the mean
        for line in lines:
            spans = sum(int(n) - 1 for n in re.findall(r"multicolumn\{(\d+)\}", line))
            assert line.count("&") + spans == len(align) - 1
    assert text.count("Said once.") == 1
    assert text.count("mean rank") == len(parts)


def test_csv_has_figures_in_full_ranks_apart_and_names_that_differ() -> None:
    assert list(csv.reader(io.StringIO(to_csv(TABLE)))) == [
        ["no.", "na|me_x", "value", "value rank"], ["M1", "a|b", "-1.5", "1"], ["", "50%", "", ""],
    ]  # fmt: skip
    head, *rows = csv.reader(io.StringIO(to_csv(wide(2))))
    assert head[3:6] == ["run0", "run0 paper", "run0 difference"] and len(set(head)) == len(head)
    assert len(rows) == 3  # no line of means among the models


@pytest.mark.parametrize(
    ("suffix", "begin"), [(".txt", "A & B"), (".md", "### A"), (".tex", "% \\usepackage{booktabs,")]
)
def test_several_tables_make_one_text(suffix: str, begin: str) -> None:
    (text,) = rendered([TABLE, wide(2)], f"out{suffix}").values()
    assert text.startswith(begin) and text.count("Wide") == 1 and "note" in text


def test_numbers_are_rounded_without_a_negative_zero() -> None:
    texts = [number(1.25, 1, sign=True).text, number(-0.001, 2, sign=True).text, number(None, 2).text]
    assert texts == ["+1.2", "0.00", ""]
