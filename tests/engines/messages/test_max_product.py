"""The loops of message passing agree with the equations written down in plain Python, on models of every kind."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf.engines.messages.max_product import (
    ForestWeights,
    Messages,
    PairMessages,
    TableMessages,
    Tour,
    make_messages,
    potential_scale,
)
from mapmrf.engines.messages.max_product_kernels import MessageSchedule
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from pairwise_models import image
from strategies import Recipe, brute_force, graphs, hard_recipes, recipes, soft_recipes

FLOOD = MessageSchedule(flooding=True, damping=0.0, tol=-1.0)


def random_weights(problem: Problem, seed: int) -> ForestWeights:
    random = np.random.default_rng(seed)
    return ForestWeights(random.uniform(0.2, 1.0, problem.n_factors), random.uniform(0.0, 1.0, problem.n_edges))


def tables_of(graph: FactorGraph, seed: int | None = None) -> TableMessages:
    """Messages in the general form, with random weights if there is a seed."""
    problem = Problem.compile(graph)
    weights = ForestWeights(np.ones(problem.n_factors), np.zeros(problem.n_edges))
    return TableMessages(problem, Tour.of(problem), weights if seed is None else random_weights(problem, seed))


def pairs_of(graph: FactorGraph, seed: int | None = None) -> PairMessages:
    general = tables_of(graph, seed)
    found = make_messages(general.problem, general.tour, general.weights)
    assert isinstance(found, PairMessages)
    return found


def binary_pairs(seed: int, n_vars: int = 6, n_pairs: int = 9, hard: bool = False) -> FactorGraph:
    """A binary pairwise model with cycles and pairs that come twice; `hard` forbids states of two variables."""
    random = np.random.default_rng(seed)
    edges = np.array([random.permutation(n_vars)[:2] for _ in range(n_pairs)])
    unary = random.normal(size=(n_vars, 2))
    if hard:
        unary[0, 0] = unary[2, 1] = -np.inf
    return FactorGraph.from_pairwise(unary, edges, random.normal(size=(n_pairs, 2, 2)))


# -- the textbook -----------------------------------------------------------------------------------------------------


class Textbook:
    """Tree-reweighted max-product as it is printed: messages M = u / rho, dictionaries, -inf kept as it comes."""

    def __init__(self, problem: Problem, rho: np.ndarray) -> None:
        graph = problem.graph
        self.rho = rho
        self.theta = [graph.theta_v[b:e].copy() for b, e in itertools.pairwise(graph.var_ptr)]
        self.scopes = [problem.scope[b:e].tolist() for b, e in itertools.pairwise(problem.scope_ptr)]
        self.tables = [graph.table(int(a)) for a in problem.order]
        self.m = {(a, i): np.zeros(graph.card[i]) for a, scope in enumerate(self.scopes) for i in scope}

    def belief(self, i: int, without: int = -1) -> np.ndarray:
        """The belief of a variable, for a factor `without` divided by its message."""
        total = self.theta[i].copy()
        for (a, j), message in self.m.items():
            if j == i:
                power = self.rho[a] - (1.0 if a == without else 0.0)
                total += power * message if power else 0.0
        return total

    def flood(self, damping: float) -> float:
        after, change = {}, 0.0
        for (a, i), old in self.m.items():
            total = self.tables[a] / self.rho[a]
            for axis, j in enumerate(self.scopes[a]):
                if j != i:
                    told = self.belief(j, without=a)
                    total = total + told.reshape([-1 if k == axis else 1 for k in range(total.ndim)])
            axis = self.scopes[a].index(i)
            new = np.atleast_1d(total.max(axis=tuple(k for k in range(total.ndim) if k != axis)))
            new = new - new.max()
            change = max(change, float(np.abs(self.rho[a] * (new - old)).max()))
            after[a, i] = (1 - damping) * new + damping * old
        self.m = after
        return change


@given(recipe=soft_recipes(), damping=st.sampled_from([0.0, 0.4]), seed=st.integers(0, 99))
def test_flooding_is_tree_reweighted_max_product(recipe: Recipe, damping: float, seed: int) -> None:
    messages = tables_of(recipe.graph(), seed)
    problem = messages.problem
    textbook = Textbook(problem, messages.weights.rho)
    for k in range(4):
        done, change = messages.iterate(MessageSchedule(True, damping, -1.0), k, k + 1)
        assert done == 1
        assert change == pytest.approx(textbook.flood(damping), abs=1e-12)
    for i, (begin, end) in enumerate(itertools.pairwise(problem.graph.var_ptr)):
        np.testing.assert_allclose(messages.tables.belief[begin:end], textbook.belief(i), atol=1e-12)


@given(recipe=hard_recipes())
def test_dead_states_have_no_feasible_completion_and_nothing_is_nan(recipe: Recipe) -> None:
    graph = recipe.graph()
    messages = tables_of(graph, 1)
    messages.iterate(FLOOD, 0, 8)
    assert np.isfinite(messages.tables.lam).all()
    assert not np.isnan(messages.tables.belief).any()
    assert not messages.is_infeasible()
    feasible = {
        (i, labels[i])
        for labels in itertools.product(*(range(r) for r in graph.card))
        if graph.value(list(labels)) > -np.inf
        for i in range(graph.n_vars)
    }
    for i in range(graph.n_vars):
        for k in range(graph.card[i]):
            s = graph.var_ptr[i] + k
            assert (messages.tables.belief[s] == -np.inf) == (messages.theta_v[s] == -np.inf)
            assert messages.tables.belief[s] > -np.inf or (i, k) not in feasible


def test_a_model_without_a_consistent_state_is_found_infeasible() -> None:
    differ, equal = np.array([[-np.inf, 0.0], [0.0, -np.inf]]), np.array([[0.0, -np.inf], [-np.inf, 0.0]])
    fixed = np.array([0.0, -np.inf])
    graph = Recipe([2, 2, 2], [(0,), (0, 1), (1, 2), (0, 2)], [fixed, differ, equal, equal]).graph()
    messages = tables_of(graph)
    messages.iterate(FLOOD, 0, 5)
    assert messages.is_infeasible()


# -- two forms, one answer --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("flooding", [True, False])
@pytest.mark.parametrize("damping", [0.0, 0.3])
def test_binary_pairs_in_one_number_are_the_same_messages(seed: int, flooding: bool, damping: float) -> None:
    graph = binary_pairs(seed)
    short, general = pairs_of(graph, seed), tables_of(graph, seed)
    how = MessageSchedule(flooding, damping, -1.0)
    for begin, end in ((0, 1), (1, 4), (4, 6)):
        assert short.iterate(how, begin, end)[0] == general.iterate(how, begin, end)[0] == end - begin
        np.testing.assert_allclose(short.pairs.b, general.tables.belief[1::2] - general.tables.belief[::2], atol=1e-12)
        for in_order in (True, False):
            labels = short.decode(in_order)
            assert labels.tolist() == general.decode(in_order).tolist()
            assert short.value(labels) == pytest.approx(graph.value(labels), abs=1e-12)
        assert short.bound() == pytest.approx(general.bound(), abs=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_forbidden_states_of_binary_pairs_become_penalties_that_nobody_takes(seed: int) -> None:
    graph = binary_pairs(seed, hard=True)
    messages = pairs_of(graph, seed)
    for in_order in (True, False):
        messages.iterate(FLOOD, 0, 7)
        labels = messages.decode(in_order)
        assert labels[0] == 1 and labels[2] == 0
        assert messages.value(labels) == pytest.approx(graph.value(labels), abs=1e-12)
        assert messages.bound() >= brute_force(graph)[0] - 1e-9


@given(recipe=recipes(), seed=st.integers(0, 99))
def test_sweeps_leave_beliefs_that_are_the_sum_of_the_messages(recipe: Recipe, seed: int) -> None:
    messages = tables_of(recipe.graph(), seed)
    messages.iterate(MessageSchedule(False, 0.2, -1.0), 0, 5)
    expected = messages.theta_v.copy()
    np.add.at(expected, messages.problem.edge_state_at, messages.tables.lam)
    np.testing.assert_allclose(messages.tables.belief, expected, atol=1e-12)


# -- labels, values, bounds -------------------------------------------------------------------------------------------


def chosen_in_order(messages: TableMessages) -> list[int]:
    """Every variable in its turn: its best state by tables in which the states decided before are fixed."""
    problem = messages.problem
    graph = problem.graph
    labels: dict[int, int] = {}
    for i in messages.tour.var_order.tolist():
        theta = messages.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        broken, score = np.isneginf(theta).astype(int), np.where(np.isneginf(theta), 0.0, theta)
        for a in range(problem.n_factors):
            scope = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]].tolist()
            if i not in scope:
                continue
            total = graph.table(int(problem.order[a]))
            for axis, j in enumerate(scope):
                if j == i:
                    continue
                told = np.full(graph.card[j], -np.inf)
                if j in labels:
                    told[labels[j]] = 0.0
                else:
                    at = problem.edge_ptr[problem.scope_ptr[a] + axis]
                    b = messages.tables.belief[graph.var_ptr[j] : graph.var_ptr[j + 1]]
                    told = messages.weights.rho[a] * b - messages.tables.lam[at : at + graph.card[j]]
                total = total + told.reshape([-1 if k == axis else 1 for k in range(total.ndim)])
            axis = scope.index(i)
            best = np.atleast_1d(total.max(axis=tuple(k for k in range(total.ndim) if k != axis)))
            if not any(j in labels for j in scope):
                at = problem.edge_ptr[problem.scope_ptr[a] + axis]
                best = messages.tables.lam[at : at + graph.card[i]]
            broken += np.isneginf(best)
            score += np.where(np.isneginf(best), 0.0, best)
        labels[i] = min(range(len(theta)), key=lambda k: (broken[k], -score[k]))
    return [labels[i] for i in range(graph.n_vars)]


@given(recipe=soft_recipes() | hard_recipes(), seed=st.integers(0, 99))
def test_decoding_in_order_takes_the_best_state_given_those_before(recipe: Recipe, seed: int) -> None:
    messages = tables_of(recipe.graph(), seed)
    messages.iterate(FLOOD, 0, 3)
    labels = messages.decode(True)
    assert labels.tolist() == chosen_in_order(messages)
    assert messages.value(labels) == pytest.approx(recipe.graph().value(labels), abs=1e-9)


@given(graph=graphs(), seed=st.integers(0, 99))
def test_the_bound_holds_for_any_weights_at_any_time(graph: FactorGraph, seed: int) -> None:
    optimum = brute_force(graph)[0]
    messages: Messages = tables_of(graph, seed)
    for k in range(6):
        if messages.is_infeasible():
            assert optimum == -np.inf
            break
        assert messages.bound() >= optimum - 1e-9 * max(1.0, abs(optimum) if np.isfinite(optimum) else 1.0)
        messages.iterate(MessageSchedule(k % 2 == 0, 0.1, -1.0), k, k + 1)


# -- the walk and the forests -----------------------------------------------------------------------------------------


@given(graph=graphs())
def test_the_walk_reaches_everything_once_from_what_was_reached_before(graph: FactorGraph) -> None:
    problem = Problem.compile(graph)
    tour = Tour.of(problem)
    assert sorted(tour.var_order.tolist()) == list(range(graph.n_vars))
    assert sorted(tour.factor_order.tolist()) == list(range(graph.n_factors))
    turn = np.empty(graph.n_vars, dtype=int)
    turn[tour.var_order] = np.arange(graph.n_vars)
    for a in range(graph.n_factors):
        edges = range(problem.scope_ptr[a], problem.scope_ptr[a + 1])
        assert tour.parent_edge[a] in edges
        assert turn[problem.scope[tour.parent_edge[a]]] == min(turn[problem.scope[e]] for e in edges)
    linked = {frozenset([i]) for i in range(graph.n_vars)}
    for a in range(graph.n_factors):
        touched = {part for part in linked if part & set(graph.scope_of(a).tolist())}
        linked = (linked - touched) | {frozenset().union(*touched)}
    assert tour.n_parts == len(linked)


# -- the scale --------------------------------------------------------------------------------------------------------


def test_the_scale_is_the_mean_spread_of_what_has_one_with_its_weight() -> None:
    unary = np.array([[0.0, 3.0], [1.0, 1.0], [-np.inf, 2.0]])
    tables = np.array([[[0.0, -np.inf], [-1.0, 0.0]], [[5.0, 5.0], [5.0, 5.0]]])
    graph = FactorGraph.from_pairwise(unary, [[0, 1], [1, 2]], tables)
    assert potential_scale(graph) == 2.0
    flat = FactorGraph.from_pairwise([[1.0, 1.0]], np.zeros((0, 2), dtype=int), np.zeros((2, 2)))
    assert potential_scale(flat) == 1.0
    weighted = FactorGraph.from_pairwise(np.zeros((3, 2)), [[0, 1], [1, 2]], np.eye(2), weight=[2.0, -4.0])
    assert potential_scale(weighted) == 3.0


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bp", "trbp"])
@pytest.mark.parametrize("states", [2, 9])
def test_threads_change_no_bit_of_the_answer(method: str, states: int) -> None:
    graph = image(230, states).graph
    results = [mapmrf.solve(graph, method, threads=threads, max_iterations=3) for threads in (1, 2, 3)]
    for result in results[1:]:
        assert np.array_equal(result.labels, results[0].labels)
        assert (result.bound, result.details) == (results[0].bound, results[0].details)
