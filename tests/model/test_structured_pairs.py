"""Potts, linear and quadratic tables are recognised, whatever is added to rows and columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.kernels.pair_transforms import Envelope, pair_form, trace_transform, transform
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import LINEAR, NO_FORM, POTTS, QUADRATIC, forms_of_tables
from pairwise_models import KINDS, loss

FORM = dict(zip(KINDS, (POTTS, LINEAR, QUADRATIC), strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("limit", [7.3, np.inf])
@pytest.mark.parametrize("parts", [False, True])
def test_a_form_gives_its_table_back(kind, limit, parts):
    rng = np.random.default_rng(0)
    table = -loss(kind, 9, 1.3, limit) + 5.0
    if parts:
        table += rng.normal(size=(9, 1)) + rng.normal(size=9)
    form = forms_of_tables(table[None])
    assert form.kind.tolist() == [FORM[kind]]
    np.testing.assert_allclose(form.slope, 1.3)
    np.testing.assert_allclose(form.limit, 1.3 if kind == "potts" else limit)
    np.testing.assert_allclose(form.row[0][:, None] + form.column[0] - loss(kind, 9, 1.3, limit), table)


def test_a_truncation_below_the_first_step_is_potts():
    assert forms_of_tables(-loss("linear", 6, 2.0, 1.5)[None]).kind.tolist() == [POTTS]


@pytest.mark.parametrize("table", [np.random.default_rng(1).normal(size=(5, 5)), np.triu(np.ones((5, 5)))])
def test_other_tables_have_no_form(table):
    assert len(forms_of_tables(table[None]).places) == 0


def test_one_entry_off_is_no_form():
    table = -loss("linear", 6, 1.0, 3.0)
    table[2, 4] -= 1e-9
    assert len(forms_of_tables(table[None]).places) == 0


def test_forms_of_a_problem_follow_its_factors():
    k, rng = 5, np.random.default_rng(2)
    tables = [-loss("linear", k, 1.0, 2.0), rng.normal(size=(k, k)), -loss("potts", k, 0.5, 0.5)]
    tables.append(np.where(np.eye(k) > 0, 0.0, -np.inf))
    scopes = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    tables = [*tables, tables[0], tables[2]]
    problem = Problem.compile(FactorGraph.from_tables([k] * 4, scopes, tables, weight=[1, 2, -1, 1, -1, 3]))
    forms = problem.forms
    kinds = [NO_FORM if f < 0 else int(forms.kind[f]) for f in forms.of[np.argsort(problem.order)]]
    # A reward for differing is still Potts, but no linear form; what forbids has none.
    assert kinds == [LINEAR, NO_FORM, POTTS, NO_FORM, NO_FORM, POTTS]


def test_a_model_without_forms_has_empty_arrays():
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], np.eye(2))
    assert len(Problem.compile(graph).forms.of) == 0


entries = st.one_of(st.floats(-9, 9), st.just(-np.inf), st.integers(-3, 3).map(float))


@given(
    st.sampled_from(KINDS), st.lists(entries, min_size=4, max_size=12), st.floats(0.01, 5), st.floats(0.1, 20),
    st.booleans(), st.floats(-2, 2),
)  # fmt: skip
def test_transforms_equal_tables(kind, values, slope, limit, limited, weight):
    h, n = np.array(values), len(values)
    limit = limit if limited else np.inf
    weight = weight if kind == "potts" else abs(weight) + 1e-3
    table = -loss(kind, n, slope, limit)
    graph = FactorGraph.from_pairwise(np.zeros((2, n)), [[0, 1]], table, weight=[weight])
    problem = Problem.compile(graph)
    form = pair_form(problem.forms, problem.forms.of[0], weight)
    sums = h[:, None] + weight * table
    expected = sums.max(axis=0)
    out, origin, envelope = np.full(n + 2, np.nan), np.zeros(n, dtype=np.int64), Envelope.allocate(n)
    padded = np.concatenate([[np.nan], h])
    assert transform(form, padded, 1, out, 2, n, envelope) == h.max()
    np.testing.assert_allclose(out[2:], expected, rtol=1e-12, atol=1e-12)
    traced = np.full(n, np.nan)
    trace_transform(form, padded, 1, traced, origin, n, envelope)
    np.testing.assert_allclose(traced, expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(sums[origin, np.arange(n)], expected, rtol=1e-12, atol=1e-12)
