"""Programs: rows, bounds for any multipliers, the compact form of binary models, and solvers that are missing."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

from binary_models import binary_graphs
from mapmrf import FactorGraph
from mapmrf.engines.program.binary_program import Compact, is_compact
from mapmrf.engines.program.program import value_range
from mapmrf.engines.program.solvers import highs_failure, scip_failure
from mapmrf.model.problem import Problem


def test_spread_is_the_largest_difference_of_values() -> None:
    table = np.array([[0.0, 5.0], [-np.inf, 1.0]])
    graph = FactorGraph.from_pairwise([[0, 2], [0, 0]], [[0, 1]], [table])
    assert value_range(Problem.compile(graph)) == 7.0


# -- the compact program of a binary pairwise model -------------------------------------------------------------------


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_the_compact_program_is_the_model(graph: FactorGraph) -> None:
    problem = Problem.compile(graph)
    assert is_compact(problem)
    compact = Compact.build(problem)
    program = compact.program
    assert len(np.unique(compact.first * graph.n_vars + compact.second)) == len(compact.first)
    for labels in itertools.product([0, 1], repeat=graph.n_vars):
        x = np.array(labels)
        columns = compact.columns(x)
        assert program.value(float(program.cost @ columns)) == pytest.approx(graph.value(x))
        assert np.all(program.rows.matrix @ columns <= program.rows.upper)
        assert compact.labels(columns).tolist() == compact.rounded(columns).tolist() == x.tolist()
        assert compact.missing(columns, 1e-9).n == 0


def test_only_the_rows_that_the_sign_needs_are_in_the_program() -> None:
    like, unlike = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], [like, unlike])
    rows = Compact.build(Problem.compile(graph)).program.rows
    dense = np.stack([rows.matrix @ unit for unit in np.eye(5)], axis=1)
    assert dense.tolist() == [[-1, 0, 0, 1, 0], [0, -1, 0, 1, 0], [0, 1, 1, 0, -1]]
    assert rows.upper.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("unary", "table", "compact"),
    [
        (np.zeros((2, 2)), np.zeros((2, 2)), True),
        (np.zeros((2, 3)), np.zeros((3, 3)), False),
        (np.zeros((2, 2)), np.array([[0.0, -np.inf], [0.0, 0.0]]), False),
        (np.array([[0.0, -np.inf], [0.0, 0.0]]), np.zeros((2, 2)), False),
    ],
    ids=["binary", "three states", "hard pair", "hard state"],
)
def test_only_binary_finite_pairs_are_compact(unary: np.ndarray, table: np.ndarray, compact: bool) -> None:
    assert is_compact(Problem.compile(FactorGraph.from_pairwise(unary, [[0, 1]], [table]))) == compact


# -- solvers that cannot be loaded ------------------------------------------------------------------------------------


MODEL = """
import logging, sys
logging.basicConfig(format="%(message)s", stream=sys.stdout)
import mapmrf
from mapmrf.datasets import grid
graph = grid(8, 8, coupling=2.0, seed=1)
"""

BROKEN = "raise ImportError('undefined symbol: solve\\nand a second line')"

needs_scip = pytest.mark.skipif(scip_failure() is not None, reason=str(scip_failure()))


def run_without(modules: list[str], code: str, folder: Path) -> list[str]:
    """The lines that a process prints in which some modules cannot be loaded."""
    for module in modules:
        (folder / f"{module}.py").write_text(BROKEN)
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", MODEL + textwrap.dedent(code)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_without_any_solver_methods_say_so_in_one_line_or_go_on(tmp_path: Path) -> None:
    code = """
    import mapmrf.methods.auto, mapmrf.methods.cuts, mapmrf.methods.lp
    print({"highspy", "pyscipopt", "scipy.sparse"} & set(sys.modules))  # nothing is loaded before it is needed
    for method in (mapmrf.LP(), mapmrf.Cuts(solver="highs"), mapmrf.Cuts(solver="auto")):
        try:
            mapmrf.solve(graph, method)
        except mapmrf.UnsupportedModel as error:
            print(error)
    result = mapmrf.solve(graph, "auto", max_iterations=200)
    print(result.value == graph.value(result.labels))
    """
    assert highs_failure() is None
    before, lp, highs, auto, *_, last = run_without(["highspy", "pyscipopt"], code, tmp_path)
    assert (before, last) == ("set()", "True")
    assert lp == "lp cannot solve this model: HiGHS cannot be loaded: undefined symbol: solve"
    for line in (highs, auto):
        assert line.startswith("cuts cannot solve this model: HiGHS cannot be loaded: undefined symbol: solve")
    assert "SCIP cannot be loaded" in auto and "SCIP cannot be loaded" not in highs


@pytest.mark.parametrize("missing", [pytest.param("highspy", marks=needs_scip), "pyscipopt"])
def test_cuts_goes_on_with_the_other_solver(missing: str, tmp_path: Path) -> None:
    code = """
    pairs = [[i, j] for i in range(7) for j in range(i)]
    largest_cut = mapmrf.FactorGraph.from_pairwise([[0, 0]] * 7, pairs, [[0, 1], [1, 0]])
    result = mapmrf.solve(largest_cut, "cuts")
    print(result.status.closes_gap, result.trace[-1].phase)
    """
    *warnings, last = run_without([missing], code, tmp_path)
    assert last == "True branch"
    without = "cuts continues without exact relaxations: HiGHS cannot be loaded: undefined symbol: solve"
    assert warnings == ([without] if missing == "highspy" else [])
