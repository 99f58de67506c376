"""The conflict-driven search on the benchmark models with forbidden entries."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest

import mapmrf
from mapmrf.engines.feasibility.conflict_kernels import FEASIBLE, OPEN
from mapmrf.engines.feasibility.conflict_search import ConflictSearch
from mapmrf.problem import Problem

FOLDER = Path(os.environ.get("MAPMRF_DATA") or Path(__file__).parents[4] / "shared" / "data") / "families"
FILES = sorted(FOLDER.glob("*.uai.gz"))

pytestmark = [pytest.mark.data, pytest.mark.skipif(not FILES, reason=f"no benchmark models in {FOLDER}")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_model_has_a_feasible_labelling(path: Path) -> None:
    evidence = path.with_suffix(".evid")
    graph = mapmrf.read(path, evidence=evidence if evidence.exists() else None)
    search = ConflictSearch.of(Problem.compile(graph), graph.unary_labels)
    while search.run(1_000_000) == OPEN:
        assert search.n_conflicts < 100_000
    assert search.outcome == FEASIBLE
    assert graph.value(search.labels()) > -math.inf
