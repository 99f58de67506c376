"""The dual point of the program with odd cycles: its bound as messages and cycles is that of the program."""

from __future__ import annotations

import numpy as np
import pytest

import mapmrf
from mapmrf.datasets import grid
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.cutting_planes import CuttingPlanes, CycleDual, cycle_dual
from mapmrf.model.problem import Problem


def bound_of(problem: Problem, dual: CycleDual) -> float:
    """The best entry of every variable and every pair, in plain loops."""
    graph = problem.graph
    cut = np.zeros(problem.n_factors)
    offset = 0.0
    for c, weight in enumerate(dual.weight):
        places = range(dual.ptr[c], dual.ptr[c + 1])
        offset += weight * (sum(int(dual.odd[p]) for p in places) - 1)
        for p in places:
            cut[dual.pair[p]] += -weight if dual.odd[p] else weight
    lam = dual.lam_e.reshape(-1, 2, 2)
    belief = graph.theta_v.reshape(-1, 2).copy()
    total = graph.constant + offset
    for a in range(problem.n_factors):
        i, j = problem.scope[2 * a], problem.scope[2 * a + 1]
        belief[i] -= lam[a, 0]
        belief[j] -= lam[a, 1]
        at = problem.table_at[a]
        table = graph.theta_t[at : at + 4].reshape(2, 2) + lam[a, 0][:, None] + lam[a, 1] + cut[a] * (1 - np.eye(2))
        total += table.max()
    return float(total + belief.max(axis=1).sum())


@pytest.mark.parametrize("seed", range(5))
def test_without_rounds_the_point_proves_the_relaxation(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.engines.program.cutting_planes.MOST_ROUNDS", 1)
    problem = Problem.compile(grid(8, 8, coupling=2.0, seed=seed))
    dual = cycle_dual(problem, -np.inf, 0.0, lambda: False)
    planes = CuttingPlanes(Compact.build(problem), 0)
    planes.relaxation.start()
    assert planes.relaxation.wait(60.0)
    planes.read()
    planes.relaxation.close(1.0)
    assert dual is not None and len(dual.weight) == 0
    # The program begins without the rows that are not tight for the sign of a coupling, so it is no better.
    assert bound_of(problem, dual) <= planes.bound + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_with_cycles_the_point_proves_the_optimum_of_a_planar_grid(seed: int) -> None:
    graph = grid(9, 9, coupling=2.0, seed=seed)
    result = mapmrf.solve(graph)
    dual = cycle_dual(Problem.compile(graph), result.value, 1e-9, lambda: False)
    assert dual is not None
    assert bound_of(Problem.compile(graph), dual) == pytest.approx(result.value, rel=1e-9)


def test_a_point_that_is_given_up_at_once_is_none() -> None:
    assert cycle_dual(Problem.compile(grid(30, 30, coupling=2.0)), 0.0, 0.0, lambda: True) is None
