"""Sequential passes against a slow reference, the dual bound, each other, brute force and models without weights."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.datasets import grid
from mapmrf.engines.messages import trws_pairwise
from mapmrf.engines.messages.factor_messages import FactorMessages
from mapmrf.engines.messages.smoothing import SoftPoint, best_pair, extend_marginals, soft_iterate
from mapmrf.engines.messages.srmp import TablePasses
from mapmrf.engines.messages.sweeps import INFEASIBLE, PassStopping, SequentialPasses
from mapmrf.engines.messages.trws_binary import SpinPasses, fits_spins
from mapmrf.engines.messages.trws_pairwise import LabelPasses
from mapmrf.engines.messages.visit_order import Neighbours, VisitOrder, breadth_first
from mapmrf.methods.trws import TRWS, fitting_passes
from mapmrf.model.polytope import dual_bound
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from plain_python import plain
from strategies import Recipe, any_recipes, best_with_each_state, brute_force, random_recipe, soft_recipes, tree_recipes

ORDERS = st.sampled_from(["given", "trees_last", "breadth_first"])
SEEDS = st.integers(0, 2**16)

ENDLESS = PassStopping(-1.0, -1.0)
"""A run that never stops by itself."""


def engines(graph: FactorGraph, order: str, *kinds: type[SequentialPasses]) -> list[SequentialPasses]:
    problem = Problem.compile(graph)
    visits = VisitOrder.build(problem, order)  # type: ignore[arg-type]
    return [kind(problem, visits, ENDLESS) for kind in kinds]  # type: ignore[call-arg]


def passes(graph: FactorGraph, order: str = "trees_last") -> TablePasses:
    (engine,) = engines(graph, order, TablePasses)
    assert isinstance(engine, TablePasses)
    return engine


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


def reference(graph: FactorGraph, n: int) -> list[float]:
    """Kolmogorov's TRW-S as in his paper: a message each way on every edge; bounds by the dual function."""
    problem = Problem.compile(graph)
    n_vars = graph.n_vars
    edges = [tuple(scope) for scope in problem.scope.reshape(-1, 2).tolist()]
    tables = [graph.table(int(a)) for a in problem.order]
    theta = [graph.theta_v[b:e] for b, e in itertools.pairwise(graph.var_ptr.tolist())]
    message = {(a, i): np.zeros(graph.card[i]) for a, edge in enumerate(edges) for i in edge}
    found = []
    for _ in range(n):
        for ranks in (range(n_vars), range(n_vars - 1, -1, -1)):
            for i in ranks:
                mine = [a for a, edge in enumerate(edges) if i in edge]
                later = [a for a in mine if max(edges[a]) > i]
                weight = 1.0 / max(1, len(later), len(mine) - len(later))
                belief = theta[i] + sum((message[a, i] for a in mine), np.zeros(graph.card[i]))
                ahead = later if ranks.step > 0 else [a for a in mine if a not in later]
                for a in ahead:
                    j = edges[a][0] + edges[a][1] - i
                    table = tables[a] if edges[a][0] == i else tables[a].T
                    given = weight * belief - message[a, i]
                    message[a, j] = (table + given[:, None]).max(axis=0)
                    if ranks.step < 0:
                        message[a, -1 - i] = given  # what the reparametrised table holds of i
        lam_e = np.zeros(problem.n_edge_states)
        for a, edge in enumerate(edges):
            for k, i in enumerate(edge):
                at = problem.edge_ptr[2 * a + k]
                lam_e[at : at + graph.card[i]] = message[a, -1 - i] if i == max(edge) else -message[a, i]
        found.append(dual_bound(problem, lam_e))
    return found


@given(seed=SEEDS, n_factors=st.integers(1, 14), max_card=st.sampled_from([2, 3, 6]))
def test_pairs_are_passed_as_in_kolmogorovs_paper(seed: int, n_factors: int, max_card: int) -> None:
    graph = model(seed, ["any"], 6, n_factors, (2, max_card), weighted=False)
    np.testing.assert_allclose(bounds(passes(graph, "given"), 6), reference(graph, 6), rtol=1e-10, atol=1e-10)


@given(recipe=soft_recipes(), order=ORDERS)
def test_the_bound_is_the_dual_function_at_the_multipliers(recipe: Recipe, order: str) -> None:
    engine = passes(recipe.graph(), order)
    for _ in range(5):
        (bound,) = bounds(engine, 1)
        assert bound == pytest.approx(dual_bound(engine.problem, engine.messages.lam), rel=1e-11, abs=1e-11)


@given(recipe=any_recipes() | soft_recipes(), order=ORDERS)
def test_the_bound_of_tables_never_rises_and_always_holds(recipe: Recipe, order: str) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    if graph.constant == -math.inf:
        return
    assert_falling(bounds(passes(graph, order), 30), optimum)


def assert_falling(found: list[float], optimum: float, tol: float = 1e-12) -> None:
    """Bounds never rise, and hold, up to round-off."""
    size = max([1.0, *(abs(bound) for bound in found if math.isfinite(bound))])
    assert all(after <= before + 1e-12 * size for before, after in itertools.pairwise(found))
    assert found[-1] >= optimum - tol * size
    assert not np.isnan(found).any()


def test_trees_are_peeled_down_to_the_cycles() -> None:
    """A triangle 0 1 2 with a path 2 3 4 and a factor of three 4 5 6 on it, and a star 7 8 9 apart."""
    table = np.zeros((2, 2))
    scopes = [(0, 1), (1, 2), (0, 2), (2, 3), (3, 4), (4, 5, 6), (7, 8), (7, 9)]
    tables = [table if len(scope) == 2 else np.zeros((2, 2, 2)) for scope in scopes]
    problem = Problem.compile(Recipe([2] * 10, scopes, tables).graph())
    visits = VisitOrder.build(problem, "trees_last")
    core = visits.seq[:4].tolist()
    assert core[:3] == [0, 1, 2]
    hung = visits.seq[4:].tolist()
    assert hung.index(3) < hung.index(4) < min(hung.index(5), hung.index(6))
    assert visits.omega[visits.rank[[0, 1, 2]]].tolist() == [1 / 2, 1, 1 / 2]
    assert np.all(visits.omega[4:] == 1)
    assert np.all(visits.keep[4:] == 0)


def test_breadth_first_recovers_the_layers_of_a_shuffled_path() -> None:
    names = np.random.default_rng(1).permutation(30)
    scopes = [(int(names[i]), int(names[i + 1])) for i in range(29)]
    problem = Problem.compile(Recipe([2] * 30, scopes, [np.zeros((2, 2))] * 29).graph())
    seq = np.zeros(30, dtype=np.int64)
    breadth_first(problem.scope_ptr, problem.scope, Neighbours.of(problem), seq)
    assert seq.tolist() in (names.tolist(), names[::-1].tolist())


# -- smoothing --------------------------------------------------------------------------------------------------------


def soften(engine: TablePasses, order: VisitOrder, n: int, rho: float) -> tuple[float, np.ndarray]:
    mu = np.zeros(engine.problem.n_states)
    bound = soft_iterate(n, engine.model, engine.messages, rho, order.keep, mu, engine.scratches[0])
    return bound + engine.problem.graph.constant, mu


@given(recipe=tree_recipes(max_vars=6), rho=st.sampled_from([0.1, 1.0, 10.0]))
def test_on_trees_the_smoothed_bound_is_the_log_partition_function_and_the_marginals_are_exact(
    recipe: Recipe, rho: float
) -> None:
    graph = recipe.graph()
    labellings = list(itertools.product(*(range(r) for r in recipe.card)))
    values = np.array([graph.value(np.array(labels)) for labels in labellings]) / rho
    weights = np.exp(values - values.max())
    mu = np.zeros(len(graph.theta_v))
    for labels, weight in zip(labellings, weights / weights.sum(), strict=True):
        mu[graph.var_ptr[:-1] + labels] += weight
    engine = passes(graph)
    bound, found = soften(engine, VisitOrder.build(engine.problem, "trees_last"), 2, rho)
    expected = rho * (values.max() + math.log(weights.sum()))
    assert bound == pytest.approx(expected, rel=1e-9, abs=1e-9)
    np.testing.assert_allclose(found, mu, atol=1e-9)


@given(seed=SEEDS, rho=st.sampled_from([0.05, 0.5, 5.0]), order=ORDERS)
def test_the_smoothed_bound_falls_and_stays_above_the_plain_dual(seed: int, rho: float, order: str) -> None:
    graph = random_recipe(seed, 6, 10).graph()
    engine = passes(graph, order)
    visits = VisitOrder.build(engine.problem, order)  # type: ignore[arg-type]
    last = math.inf
    for _ in range(20):
        bound, mu = soften(engine, visits, 1, rho)
        assert bound <= last + 1e-10 * max(1.0, abs(bound))
        assert bound >= brute_force(graph)[0] - 1e-10
        np.testing.assert_allclose(np.add.reduceat(mu, graph.var_ptr[:-1]), 1.0, rtol=1e-12)
        last = bound


@given(seed=SEEDS, rho=st.sampled_from([1e-3, 0.3, 3.0]))
def test_extended_marginals_have_exactly_the_marginals_that_they_extend(seed: int, rho: float) -> None:
    graph = random_recipe(seed, 6, 8).graph()
    problem = Problem.compile(graph)
    random = np.random.default_rng(seed)
    mu = random.random(problem.n_states)
    mu /= np.repeat(np.add.reduceat(mu, graph.var_ptr[:-1]), graph.card)
    lam = random.normal(size=problem.n_edge_states)
    out = np.zeros(problem.n_configs)
    factors, point = FactorMessages.of(problem), SoftPoint(mu, lam, rho)
    scratch = np.zeros((3, max([4, *(batch.n_configs for batch in problem.batches)])))
    value = extend_marginals(0, problem.n_factors, factors, problem.scope.copy(), point, scratch, out)[0]
    assert value == pytest.approx(float(problem.theta_f @ out), rel=1e-9, abs=1e-9)
    for batch in problem.batches:
        blocks = out[batch.configs].reshape(batch.n, *batch.shape)
        assert blocks.min() >= 0
        for k in range(batch.arity):
            marginal = blocks.sum(axis=tuple(j + 1 for j in range(batch.arity) if j != k))
            expected = mu[graph.var_ptr[batch.scope[:, k]][:, None] + np.arange(batch.shape[k])]
            np.testing.assert_allclose(marginal, expected, atol=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.2, 0.7, 1.0])
@pytest.mark.parametrize("q", [0.0, 0.4, 0.9])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_two_binary_variables_are_joined_in_the_best_way(p: float, q: float, sign: float) -> None:
    table = np.array([0.3, -1.0, 0.2, 0.9]) * sign
    w = np.zeros(4)
    plain(best_pair)(1.0, table, 0, p, q, w)
    assert w.min() >= 0
    assert w[2] + w[3] == pytest.approx(p)
    assert w[1] + w[3] == pytest.approx(q)
    low, high = max(0.0, p + q - 1), min(p, q)
    joints = [np.array([1 - p - q + both, q - both, p - both, both]) for both in np.linspace(low, high, 11)]
    assert table @ w == pytest.approx(max(float(table @ joint) for joint in joints))


# -- one message per pair ---------------------------------------------------------------------------------------------


def table(random: np.random.Generator, kind: str, n_rows: int, n_columns: int) -> np.ndarray:
    """A table of one of the kinds that pairs are told apart by; forms need as many rows as columns."""
    k = np.arange(n_rows, dtype=float)
    apart = np.abs(k[:, None] - np.arange(n_columns))
    slope, limit = random.uniform(0.1, 1.0), random.choice([1.5, 3.2, 40.0])
    if kind == "spins":
        return 2 * random.normal() * (1 - 2 * apart)
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


@given(
    seed=SEEDS,
    kinds=KINDS | st.just(["spins"]),
    sizes=st.sampled_from([(2, 3), (4, 4), (5, 7), (1, 9)]),
    weighted=st.booleans(),
    order=ORDERS,
)
def test_every_iteration_agrees_with_srmp(
    seed: int, kinds: list[str], sizes: tuple[int, int], weighted: bool, order: str
) -> None:
    """With spins, if there are no linear parts in the tables that start out elsewhere."""
    short = SpinPasses if kinds == ["spins"] else LabelPasses
    graph = model(seed, kinds, 6, 12, (2, 2) if kinds == ["spins"] else sizes, weighted)
    labels, tables = engines(graph, order, short, TablePasses)
    first = bounds(labels, 1), bounds(tables, 1)
    assert labels.figures.value == pytest.approx(graph.value(labels.best), rel=1e-11, abs=1e-11)
    assert graph.value(labels.best) == pytest.approx(graph.value(tables.best), rel=1e-11, abs=1e-11)
    np.testing.assert_allclose(first[0] + bounds(labels, 7), first[1] + bounds(tables, 7), rtol=1e-10, atol=1e-10)


@given(
    seed=SEEDS,
    kinds=KINDS,
    sizes=st.sampled_from([(2, 2), (2, 3), (4, 4), (2, 5)]),
    weighted=st.booleans(),
    order=ORDERS,
)
def test_the_bound_never_rises_and_always_holds(
    seed: int, kinds: list[str], sizes: tuple[int, int], weighted: bool, order: str
) -> None:
    graph = model(seed, kinds, 5, 9, sizes, weighted)
    spins = [SpinPasses] if fits_spins(Problem.compile(graph)) else []
    for engine in engines(graph, order, LabelPasses, *spins):
        assert_falling(bounds(engine, 30), brute_force(graph)[0], tol=1e-10)
        assert engine.figures.value == pytest.approx(graph.value(engine.best), rel=1e-11, abs=1e-11)


@given(seed=SEEDS, size=st.sampled_from([2, 4, 6]), order=ORDERS)
def test_states_without_a_unary_potential_are_never_taken(seed: int, size: int, order: str) -> None:
    random = np.random.default_rng(seed)
    graph = model(seed, ["potts", "linear", "any"], 5, 8, (size, size), weighted=False)
    unary = graph.theta_v.reshape(5, size).copy()
    unary[random.random(unary.shape) < 0.4] = -np.inf
    kept = random.integers(0, size, 5)
    unary[np.arange(5), kept] = 0.3
    unary[0, kept[0] - 1] = -np.inf  # at least one
    tables = [graph.table(a) for a in range(graph.n_factors)]
    pinned = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), tables)
    assert fitting_passes(Problem.compile(pinned)) is LabelPasses
    labels, tables_engine = engines(pinned, order, LabelPasses, TablePasses)
    np.testing.assert_allclose(bounds(labels, 6), bounds(tables_engine, 6), rtol=1e-10, atol=1e-10)
    assert pinned.value(labels.best) > -math.inf
    assert labels.figures.bound >= brute_force(pinned)[0] - 1e-10


@pytest.mark.parametrize("limit", [0, 1 << 22])
def test_tables_that_are_not_transposed_give_the_same_messages(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    graph = model(5, ["any"], 8, 14, (3, 6), weighted=True)
    monkeypatch.setattr(trws_pairwise, "MAX_TRANSPOSED", limit)
    labels, tables = engines(graph, "given", LabelPasses, TablePasses)
    assert isinstance(labels, LabelPasses)
    assert (len(labels.model.turned) > 0) == (limit > 0)
    np.testing.assert_allclose(bounds(labels, 5), bounds(tables, 5), rtol=1e-11)


def test_no_unary_potential_and_no_table_is_copied() -> None:
    k = np.arange(6.0)
    losses = -np.minimum(np.abs(k[:, None] - k), 2.0)
    graph = FactorGraph.from_pairwise(np.zeros((3, 6)), [[0, 1], [1, 2]], losses, weight=[1.0, 2.0])
    (labels,) = engines(graph, "given", LabelPasses)
    assert isinstance(labels, LabelPasses)
    assert labels.messages.theta is graph.theta_v
    assert labels.model.theta_t is graph.theta_t
    assert len(labels.model.turned) == 0
    assert len(labels.messages.lam) == 6 * graph.n_factors


# -- bounds on the labellings with each state -------------------------------------------------------------------------


def passes_after(problem: Problem, iterations: int) -> SequentialPasses:
    method = TRWS(max_iterations=iterations, tol=0.0)
    state = method.start(problem, 0, Start())
    for _ in range(iterations):
        if method.step(problem, state).finished is not None:
            break
    return state.passes


@given(any_recipes(), st.integers(1, 4))
def test_no_labelling_with_a_state_is_better_than_its_bound(recipe, iterations):
    graph = recipe.graph()
    if graph.n_vars == 0:
        return
    bounds = passes_after(Problem.compile(graph), iterations).state_bounds()
    best = best_with_each_state(graph)
    assert np.all(bounds >= best - 1e-9 * (1 + np.abs(np.where(np.isfinite(best), best, 0.0))))


@pytest.mark.parametrize("n_states", [2, 5])
def test_bounds_of_a_tree_are_exact_at_the_optimum_and_exclude_other_states(n_states):
    rng = np.random.default_rng(0)
    edges = [[0, 1], [1, 2], [1, 3], [3, 4]]
    graph = FactorGraph.from_pairwise(rng.normal(size=(5, n_states)), edges, rng.normal(size=(4, n_states, n_states)))
    bounds, best = passes_after(Problem.compile(graph), 5).state_bounds(), best_with_each_state(graph)
    assert bounds.reshape(5, -1).max(axis=1) == pytest.approx(best.max())
    assert np.count_nonzero(bounds < best.max() - 1e-9) >= 5


def test_passes_go_on_after_bounds_were_asked_for():
    rng = np.random.default_rng(1)
    edges = [[i, j] for i in range(6) for j in range(i)]
    for n_states in (2, 4):
        graph = FactorGraph.from_pairwise(
            rng.normal(size=(6, n_states)), edges, rng.normal(size=(len(edges), n_states, n_states))
        )
        asked, plain = (passes_after(Problem.compile(graph), 2) for _ in range(2))
        asked.state_bounds()  # an iteration
        asked.iterate(3, 4, 1)
        plain.iterate(2, 4, 1)
        assert asked.figures.bound == plain.figures.bound


def test_bounds_do_not_depend_on_threads():
    problems = [Problem.compile(grid(620, 620, coupling=0.7, seed=0), threads) for threads in (1, 2)]
    alone, shared = (passes_after(problem, 2) for problem in problems)
    try:
        assert (alone.n_workers, shared.n_workers) == (1, 2)
        assert np.array_equal(alone.state_bounds(), shared.state_bounds())
    finally:
        shared.close()
