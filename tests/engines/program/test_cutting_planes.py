"""Cutting planes: valid cuts and fixings, bounds that get better, and dual points that prove them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from binary_models import binary_graphs, complete, spins
from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.program.binary_program import Compact
from mapmrf.engines.program.cutting_planes import CuttingPlanes, CycleDual, SpinPlanes, cycle_dual
from mapmrf.engines.program.solvers import SolverOutcome
from mapmrf.model.problem import Problem
from strategies import brute_force


def run_rounds(graph: FactorGraph, n: int) -> tuple[Compact, CuttingPlanes]:
    """Some rounds without fixing anything."""
    compact = Compact.build(Problem.compile(graph))
    planes = CuttingPlanes(compact, 0)
    for _ in range(n):
        planes.relaxation.start()
        assert planes.relaxation.wait(60) and planes.relaxation.report.outcome is SolverOutcome.OPTIMAL
        planes.read()
        for _ in planes.separate():
            pass
    return compact, planes


def test_no_labelling_violates_a_cut() -> None:
    graph = spins(3, extra=6)
    compact, planes = run_rounds(graph, 4)
    assert planes.n_cuts > 0
    cuts_alone = planes.rows.only(np.arange(planes.rows.n) >= compact.program.rows.n)
    assert cuts_alone.n > 0
    for labels in itertools.product([0, 1], repeat=9):
        assert np.all(cuts_alone.matrix @ compact.columns(np.array(labels)) <= cuts_alone.upper)


def test_every_round_cuts_its_point_off_and_lowers_the_bound() -> None:
    compact, planes = run_rounds(spins(8), 1)
    bounds = [planes.bound]
    for _ in range(4):
        left = (planes.rows.matrix @ planes.point)[compact.program.rows.n :]
        assert np.any(left > planes.rows.upper[compact.program.rows.n :] + 1e-6)
        planes.relaxation.start()
        assert planes.relaxation.wait(60)
        planes.read()
        bounds.append(planes.bound)
        n_before = planes.n_cuts
        for _ in planes.separate():
            pass
        if planes.n_cuts == n_before:
            break
    assert bounds == sorted(bounds, reverse=True) and bounds[-1] < 0.99 * bounds[0]


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_fixed_columns_leave_an_optimum(graph: FactorGraph) -> None:
    optimum, _ = brute_force(graph)
    compact = Compact.build(Problem.compile(graph))
    planes = CuttingPlanes(compact, 0)
    planes.relaxation.start()
    assert planes.relaxation.wait(60)
    planes.read()
    planes.fix_by_cost(optimum)
    low, high = planes.program.lower, planes.program.upper
    best = -math.inf
    for labels in itertools.product([0, 1], repeat=graph.n_vars):
        columns = compact.columns(np.array(labels))
        if np.all((low <= columns) & (columns <= high)):
            best = max(best, graph.value(labels))
    assert best == pytest.approx(optimum, abs=1e-9)
    decided = planes.decided()
    assert decided is None or graph.value(decided) == pytest.approx(optimum, abs=1e-9)


def test_rounds_go_on_from_the_quick_ones() -> None:
    compact = Compact.build(Problem.compile(complete(10)))
    quick = SpinPlanes(compact)
    for _ in range(8):
        for _ in quick.solve(-math.inf):
            pass
        for _ in quick.separate():
            pass
    planes = CuttingPlanes(compact, 0, quick)
    assert (planes.n_rounds, planes.n_cuts, planes.bound) == (quick.n_rounds, quick.n_cuts, quick.bound)
    assert planes.rows.n > planes.program.rows.n == compact.program.rows.n
    planes.relaxation.start()
    assert planes.relaxation.wait(60)
    planes.read()
    assert planes.bound <= quick.bound
    for _ in planes.separate():
        pass
    assert planes.strengthened().rows.n >= compact.program.rows.n


# -- the dual point of the program with odd cycles --------------------------------------------------------------------


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
