"""Solvers that cannot be loaded: methods say so before they start, or go on without.

A module that raises stands before the real one on the path of a process of its own, as a library would that breaks it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from mapmrf.engines.program.solvers import highs_failure, scip_failure

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


REFUSAL = """
try:
    mapmrf.solve(graph, method)
except mapmrf.UnsupportedModel as error:
    print(error)
"""


def test_here_they_can_be_loaded() -> None:
    assert highs_failure() is None


def test_lp_says_in_one_line_that_it_needs_highs(tmp_path: Path) -> None:
    lines = run_without(["highspy"], "method = 'lp'" + REFUSAL, tmp_path)
    assert lines == ["lp cannot solve this model: HiGHS cannot be loaded: undefined symbol: solve"]


@pytest.mark.parametrize("solver", ["highs", "auto"])
def test_cuts_says_in_one_line_that_it_has_no_solver(solver: str, tmp_path: Path) -> None:
    lines = run_without(["highspy", "pyscipopt"], f"method = mapmrf.Cuts(solver={solver!r})" + REFUSAL, tmp_path)
    assert len(lines) == 1
    assert lines[0].startswith("cuts cannot solve this model: HiGHS cannot be loaded: undefined symbol: solve")
    assert ("SCIP cannot be loaded" in lines[0]) == (solver == "auto")


@needs_scip
def test_cuts_without_highs_goes_on_with_scip_alone(tmp_path: Path) -> None:
    code = """
    pairs = [[i, j] for i in range(7) for j in range(i)]
    largest_cut = mapmrf.FactorGraph.from_pairwise([[0, 0]] * 7, pairs, [[0, 1], [1, 0]])
    result = mapmrf.solve(largest_cut, "cuts")
    print(result.status.closes_gap, result.trace[-1].phase)
    """
    lines = run_without(["highspy"], code, tmp_path)
    assert lines[-1] == "True branch"
    warning = "cuts continues without exact relaxations: HiGHS cannot be loaded: undefined symbol: solve"
    assert lines[:-1] == [warning]


def test_cuts_without_scip_goes_on_with_highs_alone(tmp_path: Path) -> None:
    code = """
    result = mapmrf.solve(graph, "cuts", rounds=0)
    print(result.status.closes_gap, result.trace[-1].phase)
    """
    assert run_without(["pyscipopt"], code, tmp_path) == ["True branch"]


def test_auto_keeps_its_labelling_without_any_solver(tmp_path: Path) -> None:
    code = """
    result = mapmrf.solve(graph, "auto", max_iterations=200)
    print(result.value == graph.value(result.labels))
    """
    assert run_without(["highspy", "pyscipopt"], code, tmp_path)[-1] == "True"


def test_no_solver_is_loaded_before_it_is_needed(tmp_path: Path) -> None:
    code = """
    import mapmrf.methods.auto, mapmrf.methods.cuts, mapmrf.methods.lp
    print({"highspy", "pyscipopt", "scipy.sparse"} & set(sys.modules))
    """
    assert run_without(["highspy", "pyscipopt"], code, tmp_path) == ["set()"]
