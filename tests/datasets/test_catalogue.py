"""The catalogue names the paper's models, finds their files, and knows the right ones."""

from __future__ import annotations

import bz2
import csv
import gzip
import hashlib
import lzma
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import mapmrf
from benchmark_models import FOLDER
from mapmrf import UnknownName
from mapmrf.datasets import catalogue, data_folders, entries, grid, locate, sets, verify
from refusals import refuses

data = pytest.mark.data
every_set = pytest.mark.parametrize("which", list(sets()))

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
CONTENT = b"MARKOV 1  2  0\n"
ENTRY = replace(entries("grids")[0], sha256=hashlib.sha256(CONTENT).hexdigest())


# -- what it says ----------------------------------------------------------------------------------------------------


def test_the_sets_and_models_are_those_of_the_paper() -> None:
    assert list(sets()) == list(catalogue.SETS)
    assert [of.n_models for of in sets().values()] == [
        int(row["models"]) for row in catalogue.rows("dataset_statistics")
    ]
    assert [row["dataset"] for row in catalogue.rows("dataset_statistics")] == list(catalogue.SETS.values())
    for which in ("grids", "protein"):
        named = [(row["index"], row["model"]) for row in catalogue.rows(f"{which}_logpot")]
        assert [(entry.index, entry.name) for entry in entries(which)] == named
    for two, many in zip(entries("seg-2"), entries("seg-21"), strict=True):
        assert (two.index, two.name.removesuffix(".binary")) == (many.index, many.name.removesuffix(".21"))
    refuses(UnknownName, r"'seg2', expected one of seg-2, seg-21, scene, grids, protein", entries, "seg2")


@every_set
def test_entries_are_well_formed(which: str) -> None:
    of = sets()[which]
    found = entries(which)
    assert 0 < len(found) <= of.n_models
    assert len({entry.index for entry in found}) == len({entry.file for entry in found}) == len(found)
    for entry in found:
        assert entry.set == which
        assert re.fullmatch(rf"{of.folder}/[\w.]+\.uai\.gz", entry.file)
        assert (entry.best is None) == (entry.best_status == "")
        assert entry.url == "" or entry.url.startswith("https://")
        assert entry.source


def test_the_known_checksums_are_distinct() -> None:
    known = [entry.sha256 for which in sets() for entry in entries(which) if entry.sha256 is not None]
    assert len(known) == len(set(known)) == 102
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in known)


# -- where files are -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_file_is_found_and_verified_however_compressed(suffix: str, tmp_path: Path) -> None:
    assert locate(ENTRY, tmp_path) is None
    path = tmp_path / "grids" / f"grid20x20.f10.uai{suffix}"
    path.parent.mkdir()
    path.write_bytes(COMPRESS[suffix](CONTENT))
    assert locate(ENTRY, tmp_path) == path
    assert verify(ENTRY, path) is True
    path.write_bytes(COMPRESS[suffix](CONTENT + b"1"))
    assert verify(ENTRY, path) is False


def test_a_damaged_file_is_not_the_right_one(tmp_path: Path) -> None:
    (tmp_path / "cut.uai.gz").write_bytes(gzip.compress(CONTENT)[:-3])
    assert verify(ENTRY, tmp_path / "cut.uai.gz") is False
    assert verify(ENTRY, tmp_path / "absent.uai") is False
    assert verify(replace(ENTRY, sha256=None), tmp_path / "cut.uai.gz") is None


def test_a_file_published_under_another_name_is_found_under_both(tmp_path: Path) -> None:
    entry = next(entry for entry in entries("seg-21") if entry.name == "11_17_s.21")
    assert entry.file != "segmentation21/11_17_s.21.uai.gz"
    path = tmp_path / "segmentation21" / "11_17_s.21.uai"
    path.parent.mkdir()
    path.write_bytes(CONTENT)
    assert locate(entry, tmp_path) == path
    (tmp_path / entry.file).write_bytes(gzip.compress(CONTENT))
    assert locate(entry, tmp_path) == tmp_path / entry.file


def test_a_folder_given_comes_before_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAPMRF_DATA", "one")
    assert data_folders("two") == (Path("two"),)
    assert data_folders() == (Path("one"),)
    monkeypatch.setenv("MAPMRF_DATA", f"one{os.pathsep}{tmp_path}")
    assert data_folders() == (Path("one"), tmp_path)
    (tmp_path / "grids").mkdir()
    (tmp_path / ENTRY.file).write_bytes(gzip.compress(CONTENT))
    assert locate(ENTRY) == tmp_path / ENTRY.file


@pytest.mark.parametrize(
    ("platform", "variables", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "cache"}, Path("cache")),
        ("linux", {}, Path("home", ".cache")),
        ("darwin", {}, Path("home", "Library", "Caches")),
        ("win32", {"LOCALAPPDATA": "local"}, Path("local")),
        ("win32", {}, Path("home", "AppData", "Local")),
    ],
)
def test_the_cache_is_where_the_platform_keeps_it(platform, variables, folder, monkeypatch) -> None:
    for name in ("MAPMRF_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: Path("home"))
    assert data_folders() == (folder / "mapmrf",)


# -- statistics ------------------------------------------------------------------------------------------------------


def test_statistics_are_means_over_models_without_single_variables() -> None:
    graph = mapmrf.FactorGraph.from_tables([2, 3, 2], [(0,), (0, 1), (0, 1, 2), ()], [[0] * 2, [0] * 6, [0] * 12, [1]])
    found = catalogue.model_statistics(graph)
    assert (found.variables, found.factors, found.edges) == (3, 2, 5)
    assert (found.factor_size, found.variable_states, found.factor_states) == (2.5, pytest.approx(7 / 3), 9)
    mean = catalogue.mean_statistics(
        map(catalogue.model_statistics, [grid(2, 2), grid(4, 4), mapmrf.FactorGraph.from_tables([2], [], [])])
    )
    assert mean is not None
    assert (mean.models, mean.variables, mean.factors, mean.factor_size) == (3, 7, 28 / 3, pytest.approx(4 / 3))
    assert catalogue.mean_statistics([]) is None


def test_the_paper_counts_the_grids_as_we_do() -> None:
    sizes = [(int(row["model"][4:6]), "wrap" in row["model"]) for row in catalogue.rows("grids_logpot")]
    mean = catalogue.mean_statistics(catalogue.model_statistics(grid(side, side, wrap=wrap)) for side, wrap in sizes)
    assert mean is not None
    paper = catalogue.paper_statistics("grids")
    for name, value in vars(paper).items():
        assert getattr(mean, name) == pytest.approx(value, rel=5e-6), name


# -- on the files themselves -----------------------------------------------------------------------------------------


@data
@every_set
def test_the_files_are_those_of_the_catalogue(which: str) -> None:
    there = [(entry, path) for entry in entries(which) if (path := locate(entry, FOLDER)) is not None]
    assert there
    for entry, path in there:
        assert verify(entry, path) is True, path


@data
def test_best_known_values_are_not_below_the_references() -> None:
    with open(FOLDER / "reference_values.csv", newline="", encoding="utf-8") as file:
        references = {row["file"]: float(row["logpot"]) for row in csv.DictReader(file) if row["logpot"]}
    for which in sets():
        for entry in entries(which):
            if entry.file in references:
                assert entry.best is not None
                assert entry.best >= references[entry.file] - 5.1e-5  # these have four decimals
                assert which in ("grids", "protein") or abs(entry.best - references[entry.file]) <= 5.1e-5


@data
@pytest.mark.parametrize("which", ["seg-2", "seg-21", "scene"])
def test_best_values_of_the_easy_sets_are_exact(which: str) -> None:
    there = [(entry, path) for entry in entries(which) if (path := locate(entry, FOLDER)) is not None]
    for entry, path in there[::5]:
        result = mapmrf.solve(mapmrf.read(path), "trws")
        assert result.status is mapmrf.Status.OPTIMAL and entry.best_status.startswith("optimal")
        assert entry.best == pytest.approx(result.value, rel=1e-10)


@data
@pytest.mark.parametrize(("which", "within"), [("seg-2", 1e-9), ("seg-21", 0.01), ("scene", 0.01), ("protein", 0.002)])
def test_the_statistics_of_part_of_a_set_are_near_those_of_the_paper(which: str, within: float) -> None:
    paths = [path for entry in entries(which) if (path := locate(entry, FOLDER)) is not None]
    mean = catalogue.mean_statistics(catalogue.model_statistics(mapmrf.read(path)) for path in paths)
    assert mean is not None
    for name, value in list(vars(catalogue.paper_statistics(which)).items())[1:]:
        assert getattr(mean, name) == pytest.approx(value, rel=within), name


# -- the figures of the paper -----------------------------------------------------------------------------------------


def test_figures_of_the_paper_are_found_by_our_names() -> None:
    figures = {
        ("grids", "grid20x20.f10", "lp"): 3736.7,
        ("grids", "grid80x80.f5", "lslp"): 24834.5,
        ("grids", "grid20x20.f10", "trws", "iters"): 14,
        ("grids", "grid20x20.f10", "trws", "runtime"): 0.13,
        ("protein", "didNotconverge5", "ad3"): -115562,
    }
    absent = [("grids", "grid80x80.f10", "branch"), ("grids", "grid20x20.f10", "psdd"), ("grids", "nothing", "lp")]
    absent += [("grids", "grid20x20.f10", "exhaustive"), ("seg-2", "10_14_s.binary", "lp")]
    for asked, figure in (figures | dict.fromkeys(absent)).items():
        assert catalogue.model_figure(*asked) == figure
    kinds = {("grids", "grid20x20.f10", "psdd"): "U", ("protein", "didNotconverge4", "ad3"): "0.17%U"}
    kinds[("protein", "didNotconverge8", "psdd")] = "A+0.68%U+1.89%F"
    absent = [("grids", "grid80x80.f10", "branch"), ("protein", "didNotconverge1", "trws"), absent[-1]]
    for asked, kind in (kinds | dict.fromkeys(absent)).items():
        assert catalogue.model_kind(*asked) == kind
    assert catalogue.set_figure("seg-21", "lslp") == -324.89 and catalogue.set_figure("seg-2", "dd_sg") is None
    assert catalogue.set_figure("scene", "ad3", "iters") == 71.59
    assert catalogue.set_figure("scene", "ad3", "runtime", "std") == 0.024
    assert catalogue.set_kinds("scene", "psdd") == "549 V, 166 A"


def test_the_paper_gives_a_type_wherever_it_prints_a_value() -> None:
    for which in ("grids", "protein"):
        for row in catalogue.rows(f"{which}_logpot"):
            for method, name in catalogue.COLUMNS.items():
                printed = bool(row.get(name))
                uniform = which == "grids" and method in ("psdd", "ad3")
                assert (catalogue.model_kind(which, row["model"], method) is not None) == (printed or uniform)


@pytest.mark.parametrize("table", ["grids_logpot", "protein_logpot", "segmentation_scene_logpot", "solution_types"])
def test_every_column_is_a_method(table: str) -> None:
    columns = set(catalogue.rows(table)[0]) - {"index", "model", "dataset", "stat"}
    assert columns <= set(catalogue.COLUMNS.values())
