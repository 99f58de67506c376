"""The paper's figures are found by our names."""

import pytest

from mapmrf.datasets.catalogue import COLUMNS, SETS, model_figure, model_kind, rows, set_figure, set_kinds


def test_figures_of_models() -> None:
    assert model_figure("grids", "grid20x20.f10", "lp") == 3736.7
    assert model_figure("grids", "grid80x80.f5", "lslp") == 24834.5
    assert model_figure("grids", "grid20x20.f10", "trws", "iters") == 14
    assert model_figure("grids", "grid20x20.f10", "trws", "runtime") == 0.13
    assert model_figure("protein", "didNotconverge5", "ad3") == -115562


def test_figures_of_sets() -> None:
    assert set_figure("seg-21", "lslp") == -324.89
    assert set_figure("scene", "ad3", "iters") == 71.59
    assert set_figure("scene", "ad3", "runtime", "std") == 0.024


def test_types_of_solutions() -> None:
    assert model_kind("grids", "grid20x20.f10", "psdd") == "U"
    assert model_kind("grids", "grid80x80.f10", "branch") is None
    assert model_kind("protein", "didNotconverge4", "ad3") == "0.17%U"
    assert model_kind("protein", "didNotconverge8", "psdd") == "A+0.68%U+1.89%F"
    assert model_kind("protein", "didNotconverge1", "trws") is None
    assert model_kind("seg-2", "10_14_s.binary", "lp") is None
    assert set_kinds("scene", "psdd") == "549 V, 166 A"


def test_the_paper_gives_a_type_wherever_it_prints_a_value() -> None:
    for which in ("grids", "protein"):
        for row in rows(f"{which}_logpot"):
            for method, name in COLUMNS.items():
                printed = bool(row.get(name))
                uniform = which == "grids" and method in ("psdd", "ad3")
                assert (model_kind(which, row["model"], method) is not None) == (printed or uniform)


def test_what_the_paper_does_not_print_is_none() -> None:
    assert model_figure("grids", "grid80x80.f10", "branch") is None
    assert model_figure("grids", "grid20x20.f10", "psdd") is None
    assert model_figure("grids", "nothing", "lp") is None
    assert model_figure("grids", "grid20x20.f10", "exhaustive") is None
    assert model_figure("seg-2", "10_14_s.binary", "lp") is None
    assert set_figure("seg-2", "dd_sg") is None


@pytest.mark.parametrize("table", ["grids_logpot", "protein_logpot", "segmentation_scene_logpot", "solution_types"])
def test_every_column_is_a_method(table: str) -> None:
    columns = set(rows(table)[0]) - {"index", "model", "dataset", "stat"}
    assert columns <= set(COLUMNS.values())


def test_the_statistics_are_those_of_the_five_sets() -> None:
    assert [row["dataset"] for row in rows("dataset_statistics")] == list(SETS.values())
