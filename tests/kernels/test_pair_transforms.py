"""Messages through structured pairs are those of their tables."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled
from mapmrf.engines.messages.sweeps import observe, publish
from mapmrf.kernels.max_marginals import (
    FactorScratch,
    form_max_marginals,
    form_messages,
    form_top,
    max_marginals,
    table_max_marginals,
    table_top,
)
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM, worthwhile
from pairwise_models import KINDS, loss
from plain_python import plain

entries = st.floats(-9, 9) | st.just(-np.inf) | st.integers(-3, 3).map(float)


@given(
    kind=st.sampled_from(KINDS),
    values=st.lists(entries, min_size=8, max_size=18),
    limit=st.sampled_from([2.5, np.inf]),
    with_parts=st.booleans(),
    weight=st.sampled_from([0.0, 1.0, 0.3, 2.0, -1.5]),
    seed=st.integers(0, 99),
)
def test_messages_and_max_marginals_are_those_of_the_table(kind, values, limit, with_parts, weight, seed) -> None:
    n, random = len(values) // 2, np.random.default_rng(seed)
    weight = weight if kind == "potts" else abs(weight)
    table = 0.5 - loss(kind, n, 1.1, limit)
    if with_parts:
        table = table + random.normal(size=(n, 1)) + random.normal(size=n)
    forms = Problem.compile(FactorGraph.from_pairwise(np.zeros((2, n)), [[0, 1]], table, weight=[1.0])).forms
    assert forms.of.tolist() == [0]
    scratch = FactorScratch.allocate(2 * n, 2, forms, n)
    one, two = np.array(values[:n]), np.array(values[n : 2 * n])
    scratch.given[:] = [*one, *two]
    total = weight * table + one[:, None] + two
    plain(form_messages)(0, weight, n, scratch)
    sent = [(weight * table + two).max(axis=1), (weight * table + one[:, None]).max(axis=0)]
    np.testing.assert_allclose(scratch.out, np.concatenate(sent), atol=1e-12)
    assert plain(form_top)(0, weight, n, scratch) == pytest.approx(total.max(), abs=1e-12)
    plain(form_max_marginals)(0, weight, n, scratch)
    np.testing.assert_allclose(scratch.out, np.concatenate([total.max(axis=1), total.max(axis=0)]), atol=1e-12)


def test_forms_are_used_where_they_are_quicker() -> None:
    tables = [-loss("linear", 8, 1.0, 3.0), -loss("quadratic", 8, 1.0, 9.0)]
    graph = FactorGraph.from_tables([8] * 3, [(0, 1), (1, 2)], tables)
    problem = Problem.compile(graph)
    assert problem.forms.of.tolist() == [0, 1]
    assert problem.quick_forms.of.tolist() == [0, NO_FORM]
    assert worthwhile(problem.forms, np.array([8, 8]), (4, 9, 8)).of.tolist() == [NO_FORM, 1]
    assert worthwhile(problem.forms, np.array([8, 8]), (9, 9, 9)).of.tolist() == []


# -- max-marginals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(3,), (2, 2), (4, 1), (2, 5), (2, 3, 2), (1, 1, 1), (2, 3, 1, 2)])
@pytest.mark.parametrize("hard", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize("weight", [1.0, 0.7])
def test_max_marginals_are_those_of_numpy(shape: tuple[int, ...], hard: float, general: bool, weight: float) -> None:
    random = np.random.default_rng(sum(shape))
    table = random.normal(size=shape)
    table[random.random(shape) < hard] = -np.inf
    given = random.normal(size=sum(shape))
    given[0] = -np.inf if hard == 0.5 else given[0]
    total = weight * table
    place = 0
    for k, size in enumerate(shape):
        total += given[place : place + size].reshape([-1 if j == k else 1 for j in range(len(shape))])
        place += size
    expected = [total.max(axis=tuple(j for j in range(len(shape)) if j != k)) for k in range(len(shape))]
    no_forms = Problem.compile(FactorGraph.from_tables([2], [], [])).forms
    scratch = FactorScratch.allocate(sum(shape) + 3, len(shape), no_forms, max(shape))
    scratch.given[: sum(shape)] = given
    scratch.out[:] = 7.0
    theta_t = np.concatenate([[0.0, 0.0], table.ravel()])
    arguments = (theta_t, 2, np.array((9, *shape)), 1, len(shape), weight, scratch)
    top = plain(table_max_marginals)(*arguments) if general else plain(max_marginals)(*arguments)
    assert scratch.out[sum(shape) :].tolist() == [7.0] * 3
    np.testing.assert_allclose(scratch.out[: sum(shape)], np.concatenate(expected), rtol=1e-13)
    assert top == pytest.approx(total.max(), rel=1e-13)
    assert plain(table_top)(*arguments) == pytest.approx(total.max(), rel=1e-13)


# -- numbers that threads share ---------------------------------------------------------------------------------------


@compiled
def relay(mine: int, n: int, turns: Ints, total: Floats) -> None:
    """Add numbers to a sum in turns with another thread: each waits until the other has published its turn."""
    for i in range(mine, n, 2):
        while observe(turns, 0) < i:
            pass
        total[0] = total[0] * 1.5 % 7.0 + i
        publish(turns, 0, i + 1)


def test_what_was_written_before_a_number_was_published_is_seen_by_who_reads_it() -> None:
    n = 5_000
    turns, total = np.zeros(1, dtype=np.int64), np.zeros(1)
    with ThreadPoolExecutor(2) as pool:
        for future in [pool.submit(relay, mine, n, turns, total) for mine in (0, 1)]:
            future.result()
    expected = 0.0
    for i in range(n):
        expected = expected * 1.5 % 7.0 + i
    assert turns[0] == n
    assert total[0] == expected


def test_plain_python_has_the_same_numbers() -> None:
    numbers = np.array([3, 4])
    publish(numbers, 1, 7)
    assert observe(numbers, 1) == 7
