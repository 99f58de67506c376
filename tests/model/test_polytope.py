"""The local polytope: marginals, violations, and the paper's four kinds."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.model import polytope
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, recipes, soft_recipes, with_weights


def pair() -> Problem:
    """The paper's toy model: two connected binary variables."""
    return Problem.compile(Recipe([2, 2], [(0, 1)], [np.zeros((2, 2))]).graph())


@pytest.mark.parametrize(
    ("first", "second", "factor", "kind"),
    [
        ((1, 0), (0, 1), (0, 1, 0, 0), polytope.Kind.VALID),
        ((0.5, 0.5), (0.5, 0.5), (0.25, 0.25, 0.25, 0.25), polytope.Kind.UNIFORM),
        ((0.2, 0.8), (0.4, 0.6), (0.08, 0.12, 0.32, 0.48), polytope.Kind.FRACTIONAL),
        ((0.2, 0.8), (0.4, 0.6), (0.16, 0.3, 0.4, 0.14), polytope.Kind.APPROXIMATE),
    ],
)
def test_the_four_rows_of_the_papers_table(first: tuple, second: tuple, factor: tuple, kind: polytope.Kind) -> None:
    found, fractions, _ = polytope.classify(
        pair(), np.array([*first, *second], dtype=float), np.array(factor, dtype=float)
    )
    assert found is kind
    assert fractions.valid + fractions.uniform + fractions.fractional == pytest.approx(1)


@pytest.mark.parametrize(
    ("card", "mu_v", "kind", "fractions"),
    [
        ([1, 2], [1, 0.5, 0.5], polytope.Kind.UNIFORM, (0.5, 0.5, 0.0)),  # one state does not spoil uniformity
        ([2, 2], [1, 0, 0.5, 0.5], polytope.Kind.FRACTIONAL, (0.5, 0.5, 0.0)),
        ([2, 2, 2, 4], [1, 0, 0.5, 0.5, 0.3, 0.7, *[0.25] * 4], polytope.Kind.FRACTIONAL, (0.25, 0.5, 0.25)),
    ],
)
def test_partly_uniform_is_fractional_and_the_fractions_say_how_much(card, mu_v, kind, fractions) -> None:
    found = polytope.classify(Problem.compile(Recipe(card).graph()), np.array(mu_v), np.zeros(0))
    assert found[:2] == (kind, polytope.KindFractions(*fractions))


@pytest.mark.parametrize("off", [0.5 * polytope.TOLERANCE, 2 * polytope.TOLERANCE])
def test_the_tolerance_decides(off: float) -> None:
    within = off < polytope.TOLERANCE
    kind, _, found = polytope.classify(pair(), np.array([1 - off, off, 0, 1]), np.array([0, 1 - off, 0, off]))
    assert kind is (polytope.Kind.VALID if within else polytope.Kind.FRACTIONAL)
    assert found.largest == pytest.approx(0)
    kind, _, found = polytope.classify(pair(), np.array([1.0, 0, 0, 1]), np.array([0, 1 - off, 0, off]))
    assert kind is (polytope.Kind.VALID if within else polytope.Kind.APPROXIMATE)
    assert found.consistency == pytest.approx(off)


def test_each_violation_is_measured_by_its_own_residual() -> None:
    problem = pair()
    found = polytope.residuals(problem, np.array([1.2, 0.0, -0.3, 1.3]), np.array([0.0, 1.0, 0.0, 0.0]))
    assert found.negativity == pytest.approx(0.3)
    assert found.simplex == pytest.approx(0.2)
    assert found.consistency == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("kind", "fractions", "text"),
    [
        (polytope.Kind.VALID, polytope.KindFractions(1, 0, 0), "V"),
        (polytope.Kind.UNIFORM, polytope.KindFractions(0, 1, 0), "U"),
        (polytope.Kind.APPROXIMATE, polytope.KindFractions(0.7647, 0.0201, 0.2152), "A+2.01%U+21.52%F"),
        (polytope.Kind.APPROXIMATE, polytope.KindFractions(0.8775, 0.0435, 0.079), "A+4.35%U+7.9%F"),
        (polytope.Kind.APPROXIMATE, polytope.KindFractions(1, 0, 0), "A"),
        (polytope.Kind.FRACTIONAL, polytope.KindFractions(0.99826, 0.00174, 0), "0.17%U"),
        (polytope.Kind.FRACTIONAL, polytope.KindFractions(0, 0, 1), "100%F"),
        (polytope.Kind.FRACTIONAL, polytope.KindFractions(1 - 1e-6, 1e-6, 0), "<0.01%U"),
    ],
)
def test_kinds_are_printed_as_in_the_paper(kind: polytope.Kind, fractions: polytope.KindFractions, text: str) -> None:
    assert polytope.describe(kind, fractions) == text


@given(recipe=with_weights(any_recipes()), seed=st.integers(0, 2**16))
def test_marginals_sum_over_all_other_variables(recipe: Recipe, seed: int) -> None:
    problem = Problem.compile(recipe.graph())
    mu_f = np.random.default_rng(seed).random(problem.n_configs)
    m_mu = polytope.marginals(problem, mu_f)
    for a, original in enumerate(problem.order.tolist()):
        table = mu_f[problem.config_ptr[a] : problem.config_ptr[a + 1]].reshape(problem.graph.table(original).shape)
        for k, e in enumerate(range(problem.scope_ptr[a], problem.scope_ptr[a + 1])):
            expected = np.moveaxis(table, k, 0).reshape(table.shape[k], -1).sum(axis=1)
            assert m_mu[problem.edge_ptr[e] : problem.edge_ptr[e + 1]] == pytest.approx(expected)


@given(recipe=with_weights(recipes()), data=st.data())
def test_a_labelling_is_a_valid_point_of_the_same_value(recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    labels = np.array([data.draw(st.integers(0, r - 1)) for r in recipe.card], dtype=np.int64)
    mu_v, mu_f = polytope.integral(problem, labels)
    kind, fractions, found = polytope.classify(problem, mu_v, mu_f)
    assert (kind, fractions, found.largest) == (polytope.Kind.VALID, polytope.KindFractions(1, 0, 0), 0.0)
    assert polytope.classify_vertex(problem) == (kind, fractions, found)
    assert polytope.relaxed_value(problem, mu_v, mu_f) == pytest.approx(graph.value(labels))
    assert np.array_equal(mu_v[problem.edge_state_at], polytope.marginals(problem, mu_f))


@given(recipe=with_weights(soft_recipes()))
def test_the_uniform_point_is_uniform(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    sizes = np.diff(problem.config_ptr)
    mu_v = np.repeat(1 / problem.graph.card, problem.graph.card)
    kind, _, found = polytope.classify(problem, mu_v, np.repeat(1 / sizes, sizes))
    assert kind is (polytope.Kind.UNIFORM if max(recipe.card) > 1 else polytope.Kind.VALID)
    assert found.largest < 1e-12


def test_no_mass_on_a_forbidden_entry_counts_as_nothing() -> None:
    problem = Problem.compile(Recipe([2], [(0,)], [np.array([3.0, -np.inf])]).graph())
    assert polytope.relaxed_value(problem, np.array([1.0, 0.0]), np.zeros(0)) == 3.0
    assert polytope.relaxed_value(problem, np.array([0.5, 0.5]), np.zeros(0)) == -math.inf
