"""All benchmark models in the UAI format can be read, and survive being written."""

from __future__ import annotations

import numpy as np
import pytest

from benchmark_models import FOLDER
from mapmrf import formats

FILES = sorted(FOLDER.glob("**/*.uai.gz"))

pytestmark = pytest.mark.data


def test_all_can_be_read() -> None:
    for path in FILES:
        graph = formats.read(path)
        assert graph.n_factors > 0
        assert graph.value(np.zeros(graph.n_vars)) < np.inf


def test_protein_models_share_their_tables() -> None:
    for path in (FOLDER / "protein").glob("*.uai.gz"):
        graph = formats.read(path)
        assert graph.n_factors > 1000 * graph.n_tables


def test_round_trip(tmp_path) -> None:
    for folder in ("grids-small", "scene"):
        for path in sorted(FOLDER.glob(f"{folder}/*.uai.gz"))[:2]:
            graph = formats.read(path)
            formats.write(graph, tmp_path / "m.LG.gz")
            again = formats.read(tmp_path / "m.LG.gz")
            assert np.array_equal(again.theta_v, graph.theta_v)
            assert np.array_equal(again.theta_t, graph.theta_t)
            assert np.array_equal(again.table_of, graph.table_of)
