"""Structured pairs: what is priced in linear time is what the table says, and LS-LP and AD3 do not notice."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from admm_reference import kkt_violation, marginal_matrix
from mapmrf import FactorGraph
from mapmrf.engines.admm import factor_qp, forest_qp, layout
from mapmrf.engines.admm.forest_qp import (
    BOUND_STATES,
    STEP_STATES,
    FormScratch,
    PairTable,
    best_of_form,
    largest_of_form,
    pays,
)
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from plain_python import plain

SHAPES = ("potts", "linear", "truncated linear", "quadratic", "truncated quadratic")


def loss(shape: str, n: int) -> np.ndarray:
    d = np.abs(np.arange(n)[:, None] - np.arange(n)).astype(float)
    return {
        "potts": 1.0 * (d > 0),
        "linear": 0.7 * d,
        "truncated linear": np.minimum(0.7 * d, 2.0),
        "quadratic": 0.1 * d**2,
        "truncated quadratic": np.minimum(0.1 * d**2, 2.0),
    }[shape]


def model(shape: str, n: int, seed: int, *, parts: bool = False, n_vars: int = 6) -> FactorGraph:
    """A few variables in a ring with chords, one structured table, random weights; Potts takes negative ones, too."""
    random = np.random.default_rng(seed)
    table = -loss(shape, n)
    if parts:
        table = table + random.normal(size=(n, 1)) + random.normal(size=n)
    edges = [(i, (i + 1) % n_vars) for i in range(n_vars)] + [(i, i + 2) for i in range(n_vars - 2)]
    weight = random.normal(size=len(edges)) if shape == "potts" else random.random(len(edges)) + 0.1
    unary = np.cumsum(random.normal(size=(n_vars, n)), axis=1) * 0.5
    return FactorGraph.from_pairwise(unary, edges, table, weight=weight)


def pair_of(problem: Problem, a: int) -> PairTable:
    (batch,) = problem.batches
    at, n = int(batch.table_at[a]), batch.shape[0]
    table = problem.graph.theta_t[at : at + n * n].reshape(n, n)
    return PairTable(table, float(problem.weight[a]), int(problem.forms.of[a]))


def room(n: int) -> FormScratch:
    numbers, integers = np.full((3, n + 1), np.nan), np.full((2, n + 1), -7)
    return FormScratch(numbers[0], numbers[1], integers[0], integers[1], numbers[2])


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 10**6), n=st.integers(4, 12))
@settings(max_examples=5)
def test_the_largest_price_and_its_place_are_the_tables(shape: str, parts: bool, seed: int, n: int) -> None:
    problem = Problem.compile(model(shape, n, seed, parts=parts))
    price = np.random.default_rng(seed).normal(size=2 * n)
    for a in range(problem.n_factors):
        pair = pair_of(problem, a)
        assert pair.form >= 0
        whole = pair.weight * pair.table + price[:n, None] + price[n:]
        assert plain(largest_of_form)(price, pair, problem.forms, room(n)) == pytest.approx(whole.max(), abs=1e-9)
        row, col = plain(best_of_form)(price, pair, problem.forms, room(n))
        assert whole[row, col] == pytest.approx(whole.max(), abs=1e-9)


def test_small_tables_are_read() -> None:
    for n, step, bound in ((4, False, False), (BOUND_STATES, False, True), (STEP_STATES, True, True)):
        problem = Problem.compile(model("linear", n, 0))
        found = [plain(pays)(pair_of(problem, 0), problem.forms, least) for least in (STEP_STATES, BOUND_STATES)]
        assert found == [step, bound]
    problem = Problem.compile(model("quadratic", STEP_STATES, 0))
    assert not plain(pays)(pair_of(problem, 0), problem.forms, STEP_STATES)
    assert not plain(pays)(pair_of(problem, 0)._replace(form=-1), problem.forms, 0)


@pytest.mark.parametrize(("shape", "n"), [*((shape, STEP_STATES) for shape in SHAPES), ("quadratic", 4 * STEP_STATES)])
def test_the_factor_step_is_optimal_from_any_start(shape: str, n: int) -> None:
    """Cold it begins on the diagonal, then warm: prices equal on the support and nowhere larger."""
    random = np.random.default_rng(n)
    problem = Problem.compile(model(shape, n, 1))
    m = marginal_matrix((n, n))
    for a in range(3):
        pair = pair_of(problem, a)
        theta = pair.weight * pair.table.ravel()
        slots, y, count = np.zeros(2 * n, dtype=np.int32), np.zeros(2 * n), 0
        u = random.normal(size=2 * n)
        for rho in (1.0, 0.2, 5.0):
            u = u + 0.3 * random.normal(size=2 * n)
            y[:count] *= rho / max(y[:count].sum(), 1e-300)
            scratch = forest_qp.ForestScratch(*np.full((6, 2 * n + 1), np.nan), *np.full((4, 2 * n + 1), -7))
            count = plain(forest_qp.forest_qp)(
                u, pair, problem.forms, rho, factor_qp.Support(slots, y, 0), count, scratch
            )
            mass = np.zeros(n * n)
            for slot, part in zip(slots[:count].tolist(), y[:count], strict=True):
                mass[plain(forest_qp.slot_row)(slot) * n + plain(forest_qp.slot_col)(slot)] += part
            assert kkt_violation(m, u, theta, rho, mass) < 1e-9


@pytest.mark.parametrize("n", [6, STEP_STATES + 1])
@pytest.mark.parametrize("shape", SHAPES)
def test_structured_and_disguised_tables_give_the_same_iterates(
    shape: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = model(shape, n, 3, parts=True)
    method = mapmrf.LSLP(lp_phase=False, noise=0.1)
    found = method.start(Problem.compile(graph), 0, Start()).the_engine
    monkeypatch.setattr(layout, "_forms", lambda problem, rows: layout.NO_FORMS)
    hidden = method.start(Problem.compile(graph), 0, Start()).the_engine
    assert len(found.layout.tables.forms.of) and not len(hidden.layout.tables.forms.of)
    for _ in range(10):
        found.run(1)
        hidden.run(1)
        assert found.variables() == pytest.approx(hidden.variables(), abs=1e-8)
    a, b = found.measure(), hidden.measure()
    for name in ("bound", "value", "relaxed", "primal2", "primal_max"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-7, abs=1e-7), name


@pytest.mark.parametrize("shape", SHAPES)
def test_ad3_solves_the_relaxation_of_structured_pairs(shape: str) -> None:
    graph = model(shape, STEP_STATES, 5, n_vars=4)
    found = mapmrf.solve(graph, "ad3", max_iterations=4000)
    assert found.bound == pytest.approx(mapmrf.solve(graph.expanded(), "lp").bound, rel=1e-5)
