"""Quick cutting planes: valid cuts, bounds and fixings, and the relaxation's own bound in the end."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from binary_models import binary_graphs, complete, spins
from mapmrf import FactorGraph
from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program.binary_program import Compact, SpinForm
from mapmrf.engines.program.cutting_planes import SpinPlanes
from mapmrf.engines.program.primal_dual import IterationLimits, PrimalDual
from mapmrf.model.problem import Problem
from strategies import brute_force


def compact_of(graph: FactorGraph) -> Compact:
    return Compact.build(Problem.compile(graph))


def run_rounds(graph: FactorGraph, n: int, value: float = -np.inf) -> SpinPlanes:
    planes = SpinPlanes(compact_of(graph))
    for _ in range(n):
        for _ in planes.solve(value):
            pass
        for _ in planes.separate():
            pass
    return planes


def spin_point(compact: Compact, labels: Ints) -> Floats:
    """Spins and products of a labelling."""
    spin = 2.0 * labels - 1.0
    return np.concatenate([spin, spin[compact.first] * spin[compact.second]])


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_the_spin_form_has_the_values_of_the_model(graph: FactorGraph) -> None:
    compact = compact_of(graph)
    form = SpinForm.of(compact)
    for labels in itertools.islice(itertools.product([0, 1], repeat=graph.n_vars), 16):
        point = spin_point(compact, np.array(labels))
        assert form.value(float(form.cost @ point)) == pytest.approx(graph.value(labels), abs=1e-9)
        assert form.value(form.objective(graph.value(labels))) == pytest.approx(graph.value(labels), abs=1e-9)
        assert form.columns(point) == pytest.approx(compact.columns(np.array(labels)))


def test_no_labelling_violates_a_cut_in_either_form() -> None:
    planes = run_rounds(spins(3, extra=6), 5)
    form, cuts = planes.form, planes.solver.cuts
    assert np.any(cuts.code > 0)
    missing = form.missing(np.where(np.arange(len(form.cost)) < 9, 1.0, -1.0), 0.1)  # products that fit no spins
    cuts = cuts.plus(missing.new(cuts))
    assert np.any(cuts.code < 0)
    in_spins, rows = cuts.matrix(len(form.cost)), form.rows(cuts)
    for labels in map(np.array, itertools.product([0, 1], repeat=9)):
        slack = cuts.upper - in_spins @ spin_point(planes.compact, labels)
        assert slack.min() >= 0
        assert rows.upper - rows.matrix @ planes.compact.columns(labels) == pytest.approx(slack / 4)


@given(graph=binary_graphs())
@settings(max_examples=30)
def test_bounds_hold_and_fixed_columns_leave_an_optimum(graph: FactorGraph) -> None:
    optimum, _ = brute_force(graph)
    planes = run_rounds(graph, 3, optimum)
    assert planes.bound >= optimum - 1e-9
    lower, upper = planes.solver.lower, planes.solver.upper
    best = -np.inf
    for labels in itertools.product([0, 1], repeat=graph.n_vars):
        point = spin_point(planes.compact, np.array(labels))
        if np.all((lower <= point) & (point <= upper)):
            best = max(best, graph.value(labels))
    assert best == pytest.approx(optimum, abs=1e-9)
    decided = planes.decided()
    assert decided is None or graph.value(decided) == pytest.approx(optimum, abs=1e-9)


def test_without_cuts_the_bound_becomes_that_of_the_local_polytope() -> None:
    graph = spins(8)
    form = SpinForm.of(compact_of(graph))
    solver = PrimalDual(form)
    for _ in solver.run(IterationLimits(3000, 3000, 0.0)):
        pass
    relaxed = mapmrf.solve(graph, "lp").bound
    assert relaxed is not None and relaxed - 1e-9 <= form.value(solver.bound) <= relaxed + 1e-3 * abs(relaxed)


def test_rounds_decide_a_frustrated_grid() -> None:
    graph = spins(10)
    optimum = mapmrf.solve(graph, "branch").value
    planes = run_rounds(graph, 30, optimum)
    assert planes.bound == pytest.approx(optimum, abs=1e-3)
    assert planes.n_cuts > 0 and planes.n_rounds == 30


def test_no_cut_is_there_twice() -> None:
    cuts = run_rounds(complete(12), 6).solver.cuts
    assert len(np.unique(cuts.code)) == cuts.n
    rows = {(tuple(sorted(cuts.column[a:b])), tuple(sorted(cuts.column[b:c])))
            for a, b, c in zip(cuts.ptr, cuts.middle, cuts.ptr[1:], strict=False)}  # fmt: skip
    assert len(rows) == cuts.n


def test_the_program_of_what_is_left_has_the_same_optimum() -> None:
    graph = complete(9, seed=1)
    optimum, labels = brute_force(graph)
    planes = run_rounds(graph, 4, optimum)
    program = planes.strengthened()
    columns = planes.compact.columns(np.asarray(labels))
    assert np.all(program.rows.matrix @ columns <= program.rows.upper + 1e-9)
    assert np.all((program.lower <= columns) & (columns <= program.upper))
    assert program.rows.n > planes.compact.program.rows.n
