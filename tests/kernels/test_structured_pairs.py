"""Messages through structured pairs are those of their tables."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.kernels.max_marginals import FactorScratch
from mapmrf.kernels.pair_transforms import StructuredPairs, form_max_marginals, form_messages, form_top
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM, worthwhile
from plain_python import plain
from structured_models import KINDS, loss

entries = st.floats(-9, 9) | st.just(-np.inf) | st.integers(-3, 3).map(float)


@given(
    kind=st.sampled_from(KINDS),
    values=st.lists(entries, min_size=8, max_size=18),
    limit=st.sampled_from([2.5, np.inf]),
    with_parts=st.booleans(),
    weight=st.sampled_from([0.0, 1.0, 0.3, 2.0, -1.5]),
    seed=st.integers(0, 99),
)
def test_messages_and_max_marginals_are_those_of_the_table(
    kind: str, values: list[float], limit: float, with_parts: bool, weight: float, seed: int
) -> None:
    n, random = len(values) // 2, np.random.default_rng(seed)
    weight = weight if kind == "potts" else abs(weight)
    table = 0.5 - loss(kind, n, 1.1, limit)
    if with_parts:
        table = table + random.normal(size=(n, 1)) + random.normal(size=n)
    forms = Problem.compile(FactorGraph.from_pairwise(np.zeros((2, n)), [[0, 1]], table, weight=[1.0])).forms
    assert forms.of.tolist() == [0]
    pairs, scratch = StructuredPairs.allocate(forms, n), FactorScratch.allocate(2 * n, 2)
    one, two = np.array(values[:n]), np.array(values[n : 2 * n])
    scratch.given[:] = [*one, *two]
    total = weight * table + one[:, None] + two
    plain(form_messages)(pairs, 0, weight, n, scratch)
    sent = [(weight * table + two).max(axis=1), (weight * table + one[:, None]).max(axis=0)]
    np.testing.assert_allclose(scratch.out, np.concatenate(sent), atol=1e-12)
    assert plain(form_top)(pairs, 0, weight, n, scratch) == pytest.approx(total.max(), abs=1e-12)
    assert plain(form_max_marginals)(pairs, 0, weight, n, scratch) == pytest.approx(total.max(), abs=1e-12)
    np.testing.assert_allclose(scratch.out, np.concatenate([total.max(axis=1), total.max(axis=0)]), atol=1e-12)


def test_forms_are_used_where_they_are_quicker() -> None:
    tables = [-loss("linear", 8, 1.0, 3.0), -loss("quadratic", 8, 1.0, 9.0)]
    graph = FactorGraph.from_tables([8] * 3, [(0, 1), (1, 2)], tables)
    problem = Problem.compile(graph)
    assert problem.forms.of.tolist() == [0, 1]
    assert problem.quick_forms.of.tolist() == [0, NO_FORM]
    assert worthwhile(problem.forms, np.array([8, 8]), (4, 9, 8)).of.tolist() == [NO_FORM, 1]
    assert worthwhile(problem.forms, np.array([8, 8]), (9, 9, 9)).of.tolist() == []
