"""Cutting planes: valid rows, cuts, bounds and fixings, a tree that ends with the optimum, and dual points."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from binary_models import binary_graphs, complete, spins
from mapmrf import FactorGraph
from mapmrf.arrays import Floats
from mapmrf.datasets import grid, random_graph
from mapmrf.engines.program.binary_program import Compact, ProductForm, block_matrix, has_products
from mapmrf.engines.program.cutting_planes import (
    CuttingPlanes,
    CycleDual,
    PlaneTree,
    ProductPlanes,
    SpinPlanes,
    cycle_dual,
)
from mapmrf.engines.program.primal_dual import PrimalDual
from mapmrf.engines.program.solvers import SolverOutcome
from mapmrf.methods import cuts
from mapmrf.model.problem import Problem
from strategies import brute_force, labellings


def triples(n: int, n_factors: int, seed: int, arity: int = 3, hard: float = 0.0) -> FactorGraph:
    return random_graph(n, n_factors, 2, (2, arity), hard=hard, seed=seed)


@st.composite
def product_graphs(draw: st.DrawFn) -> FactorGraph:
    hard = draw(st.sampled_from([0.0, 0.2]))
    return triples(draw(st.integers(4, 8)), draw(st.integers(1, 14)), draw(st.integers(0, 10**6)), 4, hard)


def point_of(form: ProductForm, labels: np.ndarray) -> Floats:
    """The columns of a labelling: products of spins."""
    point: Floats = np.append(2.0 * labels - 1.0, 1.0)[form.member].prod(axis=1)
    return point


def planes_of(graph: FactorGraph, spins: bool) -> ProductPlanes | SpinPlanes:
    problem = Problem.compile(graph)
    return SpinPlanes(Compact.build(problem)) if spins else ProductPlanes(ProductForm.of(problem))


def run_rounds(graph: FactorGraph, n: int, value: float = -np.inf, *, spins: bool = False) -> Any:
    planes = planes_of(graph, spins)
    for _ in range(n):
        for _ in planes.solve(value):
            pass
        for _ in planes.separate():
            pass
    return planes


@pytest.mark.parametrize("spins", [False, True])
@given(data=st.data())
@settings(max_examples=30)
def test_bounds_hold_and_fixed_columns_leave_an_optimum(spins: bool, data: st.DataObject) -> None:
    graph = data.draw(binary_graphs() if spins else product_graphs())
    optimum, _ = brute_force(graph)
    planes = run_rounds(graph, 3 if spins else 4, optimum, spins=spins)
    assert planes.bound >= optimum - 1e-9
    lower, upper = planes.solver.lower, planes.solver.upper
    points = [(labels, point_of(planes.form, labels)) for labels in labellings(graph)]
    inside = [graph.value(labels) for labels, point in points if np.all((lower <= point) & (point <= upper))]
    assert max(inside) == pytest.approx(optimum, abs=1e-9)
    decided = planes.decided()
    assert decided is None or graph.value(decided) == pytest.approx(optimum, abs=1e-9)
    if not spins:
        states = np.flatnonzero(planes.excluded())
        for labels in labellings(graph):
            if np.isin(2 * np.arange(graph.n_vars) + labels, states).any():
                assert graph.value(labels) < optimum


@pytest.mark.parametrize("spins", [False, True])
def test_the_program_of_what_is_left_has_the_same_optimum(spins: bool) -> None:
    graph = complete(9, seed=1) if spins else triples(8, 20, 5, 4, 0.1)
    optimum, labels = brute_force(graph)
    planes = run_rounds(graph, 4, optimum, spins=spins)
    left = planes.strengthened()
    program, form = (left, planes.compact) if spins else (left.program, left)
    columns = form.columns(np.asarray(labels))
    rows = program.rows.matrix @ columns
    assert np.all((rows <= program.rows.upper + 1e-9) & (rows >= program.rows.lower - 1e-9))
    assert np.all((program.lower <= columns) & (columns <= program.upper))
    assert program.value(float(program.cost @ columns)) == pytest.approx(optimum, abs=1e-9)
    assert np.array_equal(form.labels(columns), labels)


@given(graph=product_graphs())
@settings(max_examples=30)
def test_the_form_has_the_values_of_the_model_and_its_rows_those_that_are_allowed(graph: FactorGraph) -> None:
    form = ProductForm.of(Problem.compile(graph))
    rows, held = block_matrix(form.blocks, len(form.cost)), np.flatnonzero(form.blocks.forbidden)
    for labels in labellings(graph):
        point, value = point_of(form, labels), graph.value(labels)
        slack = 1.0 - rows @ point
        assert slack.min() >= 0
        assert (slack[held].max(initial=0.0) == 0) == (value > -np.inf)
        if value > -np.inf:
            assert form.value(float(form.cost @ point)) == pytest.approx(value, abs=1e-9)
            assert form.objective(value) == pytest.approx(float(form.cost @ point), abs=1e-9)


def parities(n: int, n_factors: int, seed: int) -> FactorGraph:
    """Products of three spins with random couplings."""
    random = np.random.default_rng(seed)
    scopes = [tuple(random.choice(n, 3, replace=False).tolist()) for _ in range(n_factors)]
    parity = np.prod(np.meshgrid([-1, 1], [-1, 1], [-1, 1], indexing="ij"), axis=0)
    return FactorGraph.from_tables([2] * n, scopes, [random.normal() * parity for _ in scopes])


def test_no_labelling_violates_a_cut() -> None:
    graph = parities(8, 60, 0)
    planes = run_rounds(graph, 8)
    solver, form = planes.solver, planes.form
    assert solver.cuts.n > 0
    of_triples = np.flatnonzero(form.degree == 3)
    assert np.isin(of_triples, solver.cuts.column).any()  # not only cycles of pairs
    matrix = solver.cuts.matrix(len(form.cost))
    for labels in labellings(graph):
        assert np.all(matrix @ point_of(form, labels) <= solver.cuts.upper)


def test_the_bound_is_better_than_that_of_the_local_polytope() -> None:
    graph = triples(10, 30, 1)
    form = ProductForm.of(Problem.compile(graph))
    solver = PrimalDual(form)
    for _ in solver.run(3000, 3000, 0.0):
        pass
    relaxed, optimum = mapmrf.solve(graph, "lp").bound, brute_force(graph)[0]
    assert relaxed is not None
    assert optimum - 1e-9 <= form.value(solver.bound) < relaxed - 0.01 * (relaxed - optimum)


def test_the_nodes_of_a_tree_share_all_labellings() -> None:
    graph = triples(8, 30, 2)
    planes = run_rounds(graph, 2)
    tree = PlaneTree(planes, planes.weight)
    assert tree.split()
    boxes = []
    while tree.open:
        tree.enter()
        boxes.append((planes.solver.lower.copy(), planes.solver.upper.copy()))
        tree.leave()
    for labels in labellings(graph):
        point = point_of(planes.form, labels)
        assert sum(bool(np.all((lower <= point) & (point <= upper))) for lower, upper in boxes) == 1
    assert tree.bound(-1e9) == -1e9


@given(graph=product_graphs())
@settings(max_examples=40, deadline=None)
def test_cuts_is_exact_with_its_own_tree(graph: FactorGraph) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "TREE_PLACES", 0)
        result = mapmrf.solve(graph, "cuts", solver="highs", lp_iterations=0, local_search=0)
    assert result.status.closes_gap
    assert result.value == pytest.approx(brute_force(graph)[0], abs=1e-6)


def test_a_frustrated_model_needs_the_tree_and_is_solved() -> None:
    graph = parities(16, 60, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuts, "TREE_PLACES", 0)
        result = mapmrf.solve(graph, "cuts", solver="highs")
        short = mapmrf.solve(graph, "cuts", solver="highs", max_iterations=1)
    assert result.status.closes_gap and result.iterations > 1
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value, abs=1e-6)
    assert short.iterations <= 1 and short.bound is not None and short.bound >= result.value - 1e-9


def test_large_factors_have_no_product_form() -> None:
    graph = FactorGraph.from_tables([2] * 7, [tuple(range(7))], [np.zeros((2,) * 7)])
    assert not has_products(Problem.compile(graph))
    assert has_products(Problem.compile(triples(5, 4, 0)))


# -- quick cutting planes ---------------------------------------------------------------------------------------------


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_the_spin_form_has_the_values_of_the_model(graph: FactorGraph) -> None:
    compact = Compact.build(Problem.compile(graph))
    form = ProductForm.of_pairs(compact)
    for labels in itertools.islice(itertools.product([0, 1], repeat=graph.n_vars), 16):
        point = point_of(form, np.array(labels))
        assert form.value(float(form.cost @ point)) == pytest.approx(graph.value(labels), abs=1e-9)
        assert form.value(form.objective(graph.value(labels))) == pytest.approx(graph.value(labels), abs=1e-9)
        assert compact.of_spins(point) == pytest.approx(compact.columns(np.array(labels)))


def test_no_labelling_violates_a_cut_in_either_form() -> None:
    planes = run_rounds(spins(3, extra=6), 5, spins=True)
    form, cuts = planes.form, planes.solver.cuts
    assert np.any(cuts.code > 0)
    missing = form.missing(np.where(np.arange(len(form.cost)) < 9, 1.0, -1.0), 0.1)  # products that fit no spins
    cuts = cuts.plus(missing.new(cuts))
    assert np.any(cuts.code < 0)
    in_spins, rows = cuts.matrix(len(form.cost)), planes.compact.rows_of_spins(cuts)
    for labels in map(np.array, itertools.product([0, 1], repeat=9)):
        slack = cuts.upper - in_spins @ point_of(form, labels)
        assert slack.min() >= 0
        assert rows.upper - rows.matrix @ planes.compact.columns(labels) == pytest.approx(slack / 4)


def test_without_cuts_the_bound_becomes_that_of_the_local_polytope() -> None:
    graph = spins(8)
    form = ProductForm.of_pairs(Compact.build(Problem.compile(graph)))
    solver = PrimalDual(form)
    for _ in solver.run(3000, 3000, 0.0):
        pass
    relaxed = mapmrf.solve(graph, "lp").bound
    assert relaxed is not None and relaxed - 1e-9 <= form.value(solver.bound) <= relaxed + 1e-3 * abs(relaxed)


def test_no_cut_is_there_twice() -> None:
    cuts = run_rounds(complete(12), 6, spins=True).solver.cuts
    assert len(np.unique(cuts.code)) == cuts.n
    rows = {(tuple(sorted(cuts.column[a:b])), tuple(sorted(cuts.column[b:c])))
            for a, b, c in zip(cuts.ptr, cuts.middle, cuts.ptr[1:], strict=False)}  # fmt: skip
    assert len(rows) == cuts.n


# -- cutting planes on the linear relaxation of the compact program ---------------------------------------------------


def simplex_rounds(graph: FactorGraph, n: int) -> tuple[Compact, CuttingPlanes]:
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


def test_no_labelling_violates_a_cut_of_the_compact_program() -> None:
    graph = spins(3, extra=6)
    compact, planes = simplex_rounds(graph, 4)
    assert planes.n_cuts > 0
    cuts_alone = planes.rows.only(np.arange(planes.rows.n) >= compact.program.rows.n)
    assert cuts_alone.n > 0
    for labels in itertools.product([0, 1], repeat=9):
        assert np.all(cuts_alone.matrix @ compact.columns(np.array(labels)) <= cuts_alone.upper)


def test_every_round_cuts_its_point_off_and_lowers_the_bound() -> None:
    compact, planes = simplex_rounds(spins(8), 1)
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
    lam_e, ptr, pair, odd, weights = dual
    for c, weight in enumerate(weights):
        places = range(ptr[c], ptr[c + 1])
        offset += weight * (sum(int(odd[p]) for p in places) - 1)
        for p in places:
            cut[pair[p]] += -weight if odd[p] else weight
    lam = lam_e.reshape(-1, 2, 2)
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
    assert dual is not None and len(dual[-1]) == 0
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
