"""Real models, real MPI: the same bits on 1, 2 and 4 ranks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mpi_runs import needs_mpi, solved

from benchmark_models import benchmark
from mapmrf import distributed

MODELS = ("grids/grid80x80.f10.uai.gz", "segmentation21/1_28_s.21.uai.gz", "protein/didNotconverge1.uai.gz")


@needs_mpi
@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_ranks_do_not_change_the_answer(name: str, tmp_path: Path) -> None:
    graph = benchmark(name)
    distributed.partition(graph, tmp_path / "parts", 4)
    found = []
    for n in (1, 2, 4):
        figures = solved(n, tmp_path / "parts", "--set", "max_iterations=60", "-o", tmp_path / str(n))
        found.append((figures, distributed.join_labels(tmp_path / str(n))))
    for figures, labels in found[1:]:
        assert figures == found[0][0] and np.array_equal(labels, found[0][1])
    assert graph.value(found[0][1]) == pytest.approx(found[0][0]["value"], rel=1e-12)
