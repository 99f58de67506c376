"""The layout of a model for moves, and records for kernels."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.arrays import blank
from mapmrf.compilation.jit import compiled
from mapmrf.engines.moves.flip_state import lay_out, table_places
from mapmrf.engines.reduction.reduction import _reducible
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Evaluator
from strategies import Recipe, random_recipe, recipes, some_labels, with_weights


@given(recipe=with_weights(recipes()), data=st.data())
def test_the_places_of_a_labelling_hold_its_potentials(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    problem, labels = Problem.compile(graph), some_labels(recipe, data)
    model, places = lay_out(problem), table_places(problem, labels)
    weight = model.weight if graph.weight is not None else 1.0
    value = graph.constant + model.theta_v[model.var_ptr[:-1] + labels].sum() + (weight * model.theta_t[places]).sum()
    assert value == pytest.approx(graph.value(labels))


@given(recipe=with_weights(recipes()))
def test_both_lists_of_the_layout_hold_the_same_edges(recipe: Recipe) -> None:
    model = lay_out(Problem.compile(recipe.graph()))
    owner = np.repeat(np.arange(len(model.table_at)), np.diff(model.scope_ptr))
    by_factor = sorted(zip(model.scope.tolist(), owner.tolist(), model.scope_stride.tolist(), strict=True))
    variable = np.repeat(np.arange(len(model.card)), np.diff(model.nbr_ptr))
    by_variable = zip(variable.tolist(), model.factor_of.tolist(), model.stride_of.tolist(), strict=True)
    assert sorted(by_variable) == by_factor


def test_a_problem_is_laid_out_once_and_let_go() -> None:
    problem = Problem.compile(random_recipe(1, 6, 8).graph())
    assert lay_out(problem) is lay_out(problem)
    assert not lay_out(problem).scope.flags.writeable
    gone = weakref.ref(lay_out(problem).factor_of)
    del problem
    gc.collect()
    assert gone() is None


class Tally:
    tried: int
    gain: float


@compiled
def add(tally: Tally, gain: float) -> None:
    tally.tried += 1
    tally.gain += gain


@pytest.mark.parametrize("python", [False, True])
def test_kernels_write_to_records(python: bool) -> None:
    tally = blank(Tally)
    kernel = add.py_func if python else add  # type: ignore[attr-defined]
    kernel(tally, 0.5)
    kernel(tally, 1.5)
    assert (tally.tried, tally.gain) == (2, 2.0)


def test_kernels_are_compiled_once_for_models_with_and_without_weights() -> None:
    numba = pytest.importorskip("numba")
    plain = Recipe([2, 3], [(0, 1)], [np.zeros((2, 3))])
    heavy = Recipe([2, 3], [(0, 1)], [np.ones((2, 3))], [0.5])
    problems = [Problem.compile(recipe.graph()) for recipe in (plain, heavy)]
    assert [len(problem.weight) for problem in problems] == [0, 1]
    for seen in (lay_out, lambda problem: _reducible(problem), lambda problem: Evaluator(problem.graph).tables):
        types = [numba.typeof(seen(problem)) for problem in problems]
        assert types[0] == types[1]
