"""The paper's figures are found by our names."""

import pytest

from mapmrf.datasets.figures import COLUMNS, SETS, model_figure, rows, set_figure


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


def test_what_the_paper_does_not_print_is_none() -> None:
    assert model_figure("grids", "grid80x80.f10", "branch") is None
    assert model_figure("grids", "grid20x20.f10", "psdd") is None
    assert model_figure("grids", "nothing", "lp") is None
    assert model_figure("grids", "grid20x20.f10", "exhaustive") is None
    assert model_figure("seg-2", "10_14_s.binary", "lp") is None
    assert set_figure("seg-2", "dd_sg") is None


@pytest.mark.parametrize("table", ["grids_logpot", "protein_logpot", "segmentation_scene_logpot"])
def test_every_column_is_a_method(table: str) -> None:
    columns = set(rows(table)[0]) - {"index", "model", "dataset", "stat"}
    assert columns <= set(COLUMNS.values())


def test_the_statistics_are_those_of_the_five_sets() -> None:
    assert [row["dataset"] for row in rows("dataset_statistics")] == list(SETS.values())
