"""The conflict-driven search on the benchmark models with forbidden entries."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import mapmrf
from benchmark_models import FOLDER
from mapmrf.engines.feasibility.conflict_search import FEASIBLE, OPEN, ConflictSearch
from mapmrf.model.problem import Problem

FILES = sorted((FOLDER / "families").glob("*.uai.gz"))

pytestmark = pytest.mark.data


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
