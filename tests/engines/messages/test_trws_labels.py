"""TRW-S with one message per pair against SRMP, brute force, the linear relaxation and models without weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph
from mapmrf.engines.messages import trws_pairwise
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import INFEASIBLE, PassStopping, SequentialPasses
from mapmrf.engines.messages.trws_binary import SpinPasses, fits_spins
from mapmrf.engines.messages.trws_pairwise import LabelPasses, fits_pairs
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem
from plain_python import plain_kernels
from strategies import brute_force

ENDLESS = PassStopping(-1.0, -1.0)
ORDERS = st.sampled_from(["given", "trees_last", "breadth_first"])
SEEDS = st.integers(0, 2**16)


def table(random: np.random.Generator, kind: str, n_rows: int, n_columns: int) -> np.ndarray:
    """A table of one of the kinds that pairs are told apart by; forms need as many rows as columns."""
    k = np.arange(n_rows, dtype=float)
    apart = np.abs(k[:, None] - np.arange(n_columns))
    slope, limit = random.uniform(0.1, 1.0), random.choice([1.5, 3.2, 40.0])
    if kind == "potts":
        found = -slope * (apart > 0)
    elif kind == "differ":
        found = slope * (apart > 0)
    elif kind == "linear":
        found = -slope * np.minimum(apart, limit)
    elif kind == "quadratic":
        found = -slope * np.minimum(apart**2, limit**2)
    else:
        return random.normal(size=(n_rows, n_columns))
    if random.random() < 0.3:  # parts that belong to the variables
        found = found + random.normal(size=n_rows)[:, None] + random.normal(size=n_columns)
    return found + random.choice([0.0, 1.25])


KINDS = st.lists(
    st.sampled_from(["potts", "differ", "linear", "quadratic", "any"]), min_size=1, max_size=3, unique=True
)


def model(
    seed: int, kinds: list[str], n_vars: int, n_pairs: int, sizes: tuple[int, int], weighted: bool
) -> FactorGraph:
    """Random pairs of some kinds, in both directions, some of them twice, and with or without weights."""
    random = np.random.default_rng(seed)
    card = random.integers(sizes[0], sizes[1] + 1, n_vars)
    scopes: list[tuple[int, ...]] = [(i,) for i in range(n_vars)]
    tables: list[np.ndarray] = [random.normal(size=r) for r in card]
    for _ in range(n_pairs):
        i, j = random.permutation(n_vars)[:2].tolist()
        scopes.append((i, j))
        tables.append(table(random, str(random.choice(kinds)), card[i], card[j]))
    weight = np.ones(len(scopes))
    weight[n_vars:] = random.choice([0.0, 0.5, 1.0, 2.5, -0.7], n_pairs)
    return FactorGraph.from_tables(card, scopes, tables, weight=weight if weighted else None)


def engines(graph: FactorGraph, order: str, *kinds: type[SequentialPasses]) -> list[SequentialPasses]:
    problem = Problem.compile(graph)
    visits = VisitOrder.build(problem, order)  # type: ignore[arg-type]
    return [kind(problem, visits, ENDLESS) for kind in kinds]  # type: ignore[call-arg]


def bounds(engine: SequentialPasses, n: int) -> list[float]:
    """The bound of each of some iterations by itself."""
    found = []
    for _ in range(n):
        engine.figures = engine.figures._replace(bound=math.inf)
        _, why = engine.iterate(0, 1, 1)
        found.append(engine.figures.bound)
        if why == INFEASIBLE:
            break
    return found


@given(
    seed=SEEDS,
    kinds=KINDS,
    sizes=st.sampled_from([(2, 3), (4, 4), (5, 7), (1, 9)]),
    weighted=st.booleans(),
    order=ORDERS,
)
def test_every_iteration_agrees_with_srmp(
    seed: int, kinds: list[str], sizes: tuple[int, int], weighted: bool, order: str
) -> None:
    graph = model(seed, kinds, 6, 12, sizes, weighted)
    labels, tables = engines(graph, order, LabelPasses, TablePasses)
    first = bounds(labels, 1), bounds(tables, 1)
    assert labels.figures.value == pytest.approx(graph.value(labels.best), rel=1e-11, abs=1e-11)
    assert graph.value(labels.best) == pytest.approx(graph.value(tables.best), rel=1e-11, abs=1e-11)
    np.testing.assert_allclose(first[0] + bounds(labels, 7), first[1] + bounds(tables, 7), rtol=1e-10, atol=1e-10)


@given(seed=SEEDS, kinds=KINDS, sizes=st.sampled_from([(2, 3), (4, 4), (2, 5)]), weighted=st.booleans(), order=ORDERS)
def test_the_bound_never_rises_and_always_holds(
    seed: int, kinds: list[str], sizes: tuple[int, int], weighted: bool, order: str
) -> None:
    graph = model(seed, kinds, 5, 9, sizes, weighted)
    (labels,) = engines(graph, order, LabelPasses)
    found = bounds(labels, 30)
    size = max(1.0, *map(abs, found))
    assert all(after <= before + 1e-12 * size for before, after in itertools.pairwise(found))
    assert found[-1] >= brute_force(graph)[0] - 1e-10 * size
    assert labels.figures.value == pytest.approx(graph.value(labels.best), rel=1e-11, abs=1e-11)


@given(seed=SEEDS, kinds=KINDS)
def test_the_bound_is_never_below_that_of_the_relaxation(seed: int, kinds: list[str]) -> None:
    graph = model(seed, kinds, 5, 8, (4, 5), weighted=True)
    relaxation, bound = mapmrf.solve(graph, "lp").bound, mapmrf.solve(graph, "trws").bound
    assert relaxation is not None and bound is not None
    assert bound >= relaxation - 1e-6 * max(1.0, abs(relaxation))


@given(seed=SEEDS, kinds=KINDS, method=st.sampled_from(["trws", "adsal"]), size=st.sampled_from([2, 3, 5]))
def test_weights_are_as_good_as_tables_that_contain_them(seed: int, kinds: list[str], method: str, size: int) -> None:
    graph = model(seed, kinds, 6, 10, (size, size), weighted=True)
    one, other = (mapmrf.solve(g, method, max_iterations=30) for g in (graph, graph.expanded()))
    assert one.value == pytest.approx(other.value, rel=1e-9, abs=1e-9)
    assert one.bound == pytest.approx(other.bound, rel=1e-6, abs=1e-6)


@given(seed=SEEDS, order=ORDERS)
def test_weighted_spins_are_as_good_as_tables_that_contain_them(seed: int, order: str) -> None:
    graph = model(seed, ["any"], 7, 12, (2, 2), weighted=True)
    assert fits_spins(Problem.compile(graph))
    (one,), (other,) = engines(graph, order, SpinPasses), engines(graph.expanded(), order, SpinPasses)
    assert bounds(one, 6) == bounds(other, 6)
    assert one.best.tolist() == other.best.tolist()


@given(seed=SEEDS, size=st.sampled_from([2, 4, 6]), order=ORDERS)
def test_states_without_a_unary_potential_are_never_taken(seed: int, size: int, order: str) -> None:
    random = np.random.default_rng(seed)
    graph = model(seed, ["potts", "linear", "any"], 5, 8, (size, size), weighted=False)
    unary = graph.theta_v.reshape(5, size).copy()
    unary[random.random(unary.shape) < 0.4] = -np.inf
    unary[np.arange(5), random.integers(0, size, 5)] = 0.3
    tables = [graph.table(a) for a in range(graph.n_factors)]
    pinned = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), tables)
    assert fits_pairs(Problem.compile(pinned))
    labels, tables_engine = engines(pinned, order, LabelPasses, TablePasses)
    np.testing.assert_allclose(bounds(labels, 6), bounds(tables_engine, 6), rtol=1e-10, atol=1e-10)
    assert pinned.value(labels.best) > -math.inf
    assert labels.figures.bound >= brute_force(pinned)[0] - 1e-10


def test_a_variable_without_a_possible_state_makes_a_model_infeasible() -> None:
    unary = np.zeros((3, 4))
    unary[1] = -np.inf
    graph = FactorGraph.from_pairwise(unary, [[0, 1], [1, 2]], np.eye(4))
    assert mapmrf.solve(graph, "trws").status is mapmrf.Status.INFEASIBLE


@pytest.mark.parametrize("limit", [0, 1 << 22])
def test_tables_that_are_not_transposed_give_the_same_messages(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    graph = model(5, ["any"], 8, 14, (3, 6), weighted=True)
    monkeypatch.setattr(trws_pairwise, "MAX_TRANSPOSED", limit)
    labels, tables = engines(graph, "given", LabelPasses, TablePasses)
    assert isinstance(labels, LabelPasses)
    assert (len(labels.model.tables.turned) > 0) == (limit > 0)
    np.testing.assert_allclose(bounds(labels, 5), bounds(tables, 5), rtol=1e-11)


def test_no_unary_potential_and_no_table_is_copied() -> None:
    k = np.arange(6.0)
    losses = -np.minimum(np.abs(k[:, None] - k), 2.0)
    graph = FactorGraph.from_pairwise(np.zeros((3, 6)), [[0, 1], [1, 2]], losses, weight=[1.0, 2.0])
    (labels,) = engines(graph, "given", LabelPasses)
    assert isinstance(labels, LabelPasses)
    assert labels.model.theta_v is graph.theta_v
    assert labels.model.tables.theta_t is graph.theta_t
    assert len(labels.model.tables.turned) == 0
    assert len(labels.messages.d) == 6 * graph.n_factors


def test_kernels_run_as_plain_python() -> None:
    graph = model(3, ["potts", "linear", "quadratic", "any"], 5, 9, (5, 5), weighted=True)
    compiled, plain = engines(graph, "trees_last", LabelPasses, LabelPasses)
    compiled.iterate(0, 3, 1)
    with plain_kernels(trws_pairwise):
        plain.iterate(0, 3, 1)
    assert plain.figures == pytest.approx(compiled.figures, rel=1e-12)
