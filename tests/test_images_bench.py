"""The benches of images: the same model for all packages, values of our own, and a table that can be pasted."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf

BENCHES = Path(__file__).parents[1] / "benches"


@pytest.fixture(scope="module")
def bench() -> Any:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("images_bench", BENCHES / "images.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["images_bench"] = module
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: str) -> list[list[str]]:
    """Rows of the table that a bench prints, as cells."""
    command = [sys.executable, str(BENCHES / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize("name", ["binary-1000", "volume-64"])
def test_the_cut_of_pymaxflow_is_the_optimum_of_our_model(bench: Any, name: str) -> None:
    pytest.importorskip("maxflow")
    case = bench.CASES[name](0.0005)
    graph = case.graph()
    best = mapmrf.solve(graph.expanded(), "maxflow")
    assert graph.value(bench.by_maxflow(case).labels) == pytest.approx(best.value)


@pytest.mark.parametrize("name", ["binary-1000", "potts-500x5", "linear-400x32", "volume-64", "photo-400x600x3"])
def test_gco_works_on_our_model_and_never_beats_its_bound(bench: Any, name: str) -> None:
    pytest.importorskip("gco")
    if name.startswith("photo"):
        pytest.importorskip("skimage")
    case = bench.CASES[name](0.0005)
    graph = case.graph()
    ours = mapmrf.solve(graph.expanded(), "trws", max_iterations=200)
    value = graph.value(bench.by_gco(case).labels)
    assert ours.bound is not None
    assert value <= ours.bound + 1e-6 * abs(ours.bound)
    alone = graph.value(case.unary.reshape(-1, case.n_labels).argmax(axis=1))
    assert value - alone > 0.8 * (ours.value - alone)  # the same model: it finds most of what there is to gain


def test_expansions_are_those_of_one_weight_for_all(bench: Any) -> None:
    pytest.importorskip("maxflow")
    case = bench.CASES["potts-500x5"](0.001)
    row = bench.by_maxflow(case)
    assert case.graph().value(row.labels) > case.graph().value(case.unary.reshape(-1, 5).argmax(axis=1))
    assert bench.by_maxflow(bench.CASES["photo-400x600x3"](0.001)) is None


def test_the_time_to_a_value_is_that_of_the_first_point_which_has_it(bench: Any) -> None:
    result = mapmrf.solve(bench.CASES["potts-500x5"](0.001).graph(), "trws", max_iterations=20)
    first, last = result.trace[0], result.trace[-1]
    assert bench.reached(result, first.value) == first.time
    assert bench.reached(result, last.value + 1.0) is None
    assert bench.reached(None, 0.0) is None


def test_the_table_has_a_row_for_each_package_and_method() -> None:
    table = run("images.py", "--scale", "0.001", "--seconds", "5", "--only", "potts-500x5", "--methods", "icm", "trws")
    assert table[0][:4] == ["model", "by", "value", "bound"]
    assert {len(row) for row in table} == {9}
    by = [row[1] for row in table[2:]]
    assert by[-2:] == ["icm", "trws"]
    values = [float(row[2]) for row in table[2:]]
    assert max(values) <= float(table[-1][3]) + 0.01
    assert np.all(np.isfinite(values))


@pytest.mark.skipif(sys.platform != "linux", reason="reads memory as Linux counts it")
def test_the_memory_of_methods_is_measured_in_bytes_per_variable() -> None:
    table = run("memory.py", "--sizes", "2e4", "--labels", "2", "4", "--methods", "icm", "maxflow", "--seconds", "20")
    assert table[0][1:] == ["2 labels, 10^4.3", "4 labels, 10^4.3", "2 labels, estimated", "4 labels, estimated"]
    icm, cut = table[2], table[3]
    assert icm[0] == "`icm`"
    assert 72 < float(icm[1]) < 3000
    assert cut[2] == "–"  # noqa: RUF001
