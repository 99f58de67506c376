"""Cutting planes over products of spins: valid rows, bounds and fixings, and a tree that ends with the optimum."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.arrays import Floats
from mapmrf.engines.program.plane_rounds import PlaneTree, ProductPlanes
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.engines.program.product_form import ProductForm, block_matrix, has_products
from mapmrf.methods import cuts
from mapmrf.model.problem import Problem
from strategies import brute_force


def triples(n: int, n_factors: int, seed: int, arity: int = 3, hard: float = 0.0) -> FactorGraph:
    """Random tables on two to `arity` variables, with weights; some entries of a planted feasible model are -inf."""
    random = np.random.default_rng(seed)
    planted = random.integers(0, 2, n)
    scopes, tables = [(i,) for i in range(n)], [random.normal(size=2) for _ in range(n)]
    for _ in range(n_factors):
        scope = tuple(random.choice(n, random.integers(2, arity + 1), replace=False).tolist())
        table = random.normal(size=(2,) * len(scope))
        barred = random.random(table.shape) < hard
        barred[tuple(planted[list(scope)])] = False
        scopes.append(scope)
        tables.append(np.where(barred, -np.inf, table))
    return FactorGraph.from_tables([2] * n, scopes, tables)


@st.composite
def product_graphs(draw: st.DrawFn) -> FactorGraph:
    hard = draw(st.sampled_from([0.0, 0.2]))
    return triples(draw(st.integers(4, 8)), draw(st.integers(1, 14)), draw(st.integers(0, 10**6)), 4, hard)


def labellings(n: int) -> list[np.ndarray]:
    return [np.array(labels) for labels in itertools.product([0, 1], repeat=n)]


def point_of(form: ProductForm, labels: np.ndarray) -> Floats:
    spins = np.append(2.0 * labels - 1.0, 1.0)
    point: Floats = spins[form.member].prod(axis=1)
    return point


def run_rounds(graph: FactorGraph, n: int, value: float = -np.inf) -> ProductPlanes:
    planes = ProductPlanes(ProductForm.of(Problem.compile(graph)))
    for _ in range(n):
        for _ in planes.solve(value):
            pass
        for _ in planes.separate():
            pass
    return planes


@given(graph=product_graphs())
@settings(max_examples=30)
def test_the_form_has_the_values_of_the_model_and_its_rows_those_that_are_allowed(graph: FactorGraph) -> None:
    form = ProductForm.of(Problem.compile(graph))
    rows, held = block_matrix(form.blocks, form.n_columns), np.flatnonzero(form.blocks.forbidden)
    for labels in labellings(graph.n_vars):
        point, value = point_of(form, labels), graph.value(labels)
        slack = 1.0 - rows @ point
        assert slack.min() >= 0
        assert (slack[held].max(initial=0.0) == 0) == (value > -np.inf)
        if value > -np.inf:
            assert form.value(float(form.cost @ point)) == pytest.approx(value, abs=1e-9)
            assert form.objective(value) == pytest.approx(float(form.cost @ point), abs=1e-9)


@given(graph=product_graphs())
@settings(max_examples=30)
def test_every_split_is_a_product_of_its_parts(graph: FactorGraph) -> None:
    form = ProductForm.of(Problem.compile(graph))
    column, one, other = form.splits
    assert set(column) == set(np.flatnonzero(form.degree >= 2))
    for labels in labellings(graph.n_vars)[::7]:
        point = point_of(form, labels)
        assert np.array_equal(point[column], point[one] * point[other])


@given(graph=product_graphs())
@settings(max_examples=30)
def test_bounds_hold_and_fixed_columns_leave_an_optimum(graph: FactorGraph) -> None:
    optimum, _ = brute_force(graph)
    planes = run_rounds(graph, 4, optimum)
    assert planes.bound >= optimum - 1e-9
    lower, upper = planes.solver.lower, planes.solver.upper
    inside = [
        graph.value(labels)
        for labels in labellings(graph.n_vars)
        if np.all((lower <= (point := point_of(planes.form, labels))) & (point <= upper))
    ]
    assert max(inside) == pytest.approx(optimum, abs=1e-9)
    states = np.flatnonzero(planes.excluded())
    for labels in labellings(graph.n_vars):
        if np.isin(2 * np.arange(graph.n_vars) + labels, states).any():
            assert graph.value(labels) < optimum
    decided = planes.decided()
    assert decided is None or graph.value(decided) == pytest.approx(optimum, abs=1e-9)


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
    matrix = solver.cuts.matrix(form.n_columns)
    for labels in labellings(8):
        assert np.all(matrix @ point_of(form, labels) <= solver.cuts.upper)


def test_the_bound_is_better_than_that_of_the_local_polytope() -> None:
    graph = triples(10, 30, 1)
    form = ProductForm.of(Problem.compile(graph))
    solver = PrimalDual(form)
    for _ in solver.run(IterationLimits(3000, 3000, 0.0)):
        pass
    relaxed, optimum = mapmrf.solve(graph, "lp").bound, brute_force(graph)[0]
    assert relaxed is not None
    assert optimum - 1e-9 <= form.value(solver.bound) < relaxed - 0.01 * (relaxed - optimum)


def test_the_program_of_what_is_left_has_the_same_optimum() -> None:
    graph = triples(8, 20, 5, 4, 0.1)
    optimum, labels = brute_force(graph)
    planes = run_rounds(graph, 4, optimum)
    products = planes.strengthened()
    program, columns = products.program, products.columns(np.asarray(labels))
    left = program.rows.matrix @ columns
    assert np.all((left <= program.rows.upper + 1e-9) & (left >= program.rows.lower - 1e-9))
    assert np.all((program.lower <= columns) & (columns <= program.upper))
    assert program.value(float(program.cost @ columns)) == pytest.approx(optimum, abs=1e-9)
    assert np.array_equal(products.labels(columns), labels)


def test_the_nodes_of_a_tree_share_all_labellings() -> None:
    planes = run_rounds(triples(8, 30, 2), 2)
    tree = PlaneTree(planes, planes.weight)
    assert tree.split()
    boxes = []
    while tree.open:
        tree.enter()
        boxes.append((planes.solver.lower.copy(), planes.solver.upper.copy()))
        tree.leave()
    for labels in labellings(8):
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
