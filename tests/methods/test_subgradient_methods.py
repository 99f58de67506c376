"""DD-SG and PSDD: bounds that come down, the relaxed solution that is averaged, and each of their options."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.engines.decomposition.subgradient import (
    MAJORITY,
    SQRT,
    Decomposition,
    DescentOptions,
    SubgradientDescent,
    unit_of,
)
from mapmrf.methods.dd_sg import DDSG
from mapmrf.methods.psdd import PSDD
from mapmrf.model.polytope import Kind, dense, marginals
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import triangle
from strategies import Recipe, brute_force, planted_graph, recipes


@given(recipe=recipes())
@settings(max_examples=25)
def test_every_round_gives_a_valid_bound_whatever_the_rule(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    rules = itertools.product(("level", "polyak", "diminishing"), ("trees", "factors"))
    for method in (PSDD(), *(DDSG(rule=rule, decomposition=parts) for rule, parts in rules)):  # type: ignore[arg-type]
        state = method.start(Problem.compile(graph), 0, Start())
        for rounds in range(1, 40):
            progress = state.step(rounds)
            assert progress.bound is not None and progress.bound >= optimum - 1e-9 * max(1.0, abs(optimum))
            if progress.finished is not None:
                break
            assert progress.iterations == rounds


def test_the_copies_of_a_variable_always_sum_to_its_potentials() -> None:
    graph = planted_graph(1)
    problem, method = Problem.compile(graph), DDSG()
    state = method.start(problem, 0, Start())
    method.step(problem, state)
    copies = state.parts.copies
    assert state.rounds > 10
    for i in np.flatnonzero(problem.degree):
        blocks = [state.state.theta_c[copies.at[c] :][: graph.card[i]] for c in range(copies.ptr[i], copies.ptr[i + 1])]
        unary = graph.theta_v[graph.var_ptr[i] : graph.var_ptr[i + 1]]
        assert np.sum(blocks, axis=0) == pytest.approx(unary, abs=1e-10)


def test_the_unit_does_not_depend_on_which_factors_share_a_table() -> None:
    table = np.array([[0.0, -3.0], [-1.0, -7.0]])
    scopes = [(0, 1), (1, 2), (0, 2)]
    shared = Recipe([2, 2, 2], [*scopes, (0,)], [table, table, table, np.array([0.0, 0.5])]).graph()
    apart = Recipe([2, 2, 2], [*scopes, (0,)], [table, table.copy(), table.copy(), np.array([0.0, 0.5])]).graph()
    assert (shared.n_tables, apart.n_tables) == (1, 3)
    assert unit_of(Problem.compile(shared)) == unit_of(Problem.compile(apart)) == 3.0


def test_the_diminishing_steps_follow_their_formula() -> None:
    graph = triangle()
    problem = Problem.compile(graph)
    method = DDSG(rule="diminishing", step_size=0.4, decay=2.0, exponent=0.5)
    state = method.start(problem, 0, Start())
    for t in range(5):
        state.step(t + 1)
        assert method.answer(problem, state).details["step_length"] == pytest.approx(0.4 / (1 + (2.0 * t) ** 0.5))


def test_polyak_steps_aim_at_the_labelling_given() -> None:
    """With a good labelling known the first step is shorter: it goes to that value, not below."""
    graph = planted_graph(4)
    problem, method = Problem.compile(graph), DDSG(rule="polyak", decode="majority")
    _, best = brute_force(graph)
    lengths = []
    for labels in (None, np.array(best)):
        state = method.start(problem, 0, Start(labels))
        state.step(1)
        lengths.append(method.answer(problem, state).details["step_length"])
    assert 0 < lengths[1] < lengths[0]


def test_subproblems_alone_offer_the_labelling_of_one_tree_after_another() -> None:
    problem, method = Problem.compile(triangle()), DDSG(decode="subproblems", rule="diminishing", step_size=1e-6)
    state = method.start(problem, 0, Start())
    copies = state.parts.copies
    assert state.parts.n_forests == 2
    for t in range(4):
        state.step(t + 1)
        for i in range(3):
            for c in range(copies.ptr[i], copies.ptr[i + 1]):
                if t > 0 and copies.forest[c] == t % 2:
                    assert state.state.candidate[i] == state.state.label_c[c]


def test_subproblems_are_counted_in_the_details() -> None:
    assert mapmrf.solve(triangle(), "dd_sg").details["subproblems"] == 2
    assert mapmrf.solve(triangle(), "dd_sg", decomposition="factors").details["subproblems"] == 3


# -- psdd -------------------------------------------------------------------------------------------------------------


def naive_bounds(graph: FactorGraph, step_size: float, rounds: int) -> list[float]:
    """PSDD as anybody would write it: dense tables, no memory of what has not changed."""
    unit = unit_of(Problem.compile(graph))
    degree = np.bincount(graph.scope, minlength=graph.n_vars)
    unary = [graph.theta_v[b:e] for b, e in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True)]
    shares = [[unary[i] / degree[i] for i in graph.scope_of(a)] for a in range(graph.n_factors)]
    bounds = []
    for t in range(rounds):
        bound = graph.constant + sum(float(unary[i].max()) for i in np.flatnonzero(degree == 0))
        mean = [np.zeros(len(block)) for block in unary]
        chosen = []
        for a in range(graph.n_factors):
            table = graph.table(a).copy()
            for k, share in enumerate(shares[a]):
                table += share.reshape([-1 if j == k else 1 for j in range(table.ndim)])
            bound += float(table.max())
            chosen.append(np.unravel_index(int(table.argmax()), table.shape))
            for i, s in zip(graph.scope_of(a), chosen[a], strict=True):
                mean[i][s] += 1 / degree[i]
        bounds.append(bound)
        length = unit * step_size / np.sqrt(t + 1)
        for a in range(graph.n_factors):
            for k, i in enumerate(graph.scope_of(a)):
                choice = np.zeros(len(mean[i]))
                choice[chosen[a][k]] = 1.0
                shares[a][k] = shares[a][k] - length * (choice - mean[i])
    return bounds


@pytest.mark.parametrize("seed", [1, 2, 4, 14])
def test_round_after_round_is_that_of_a_plain_implementation(seed: int) -> None:
    graph = planted_graph(seed)
    state = PSDD(step_size=0.2, patience=10**6, tolerance=0.0).start(Problem.compile(graph), 0, Start())
    best = np.inf
    for t, bound in enumerate(naive_bounds(graph, 0.2, 30)):
        best = min(best, bound)
        progress = state.step(t + 1)
        assert progress.bound == pytest.approx(best, abs=1e-9)
        if progress.finished is not None:
            break


def test_agreement_of_all_factors_ends_the_run_with_an_optimum() -> None:
    """Unary potentials that nothing can outweigh, shared by no tie."""
    random = np.random.default_rng(3)
    recipe = Recipe([3] * 5)
    for i in range(5):
        recipe.add((i,), 10.0 * random.permutation(3))
    for i in range(5):
        recipe.add((i, (i + 1) % 5), random.normal(size=(3, 3)))
    graph = recipe.graph()
    result = mapmrf.solve(graph, "psdd")
    assert result.status is Status.OPTIMAL
    assert result.kind is Kind.VALID
    assert result.value == pytest.approx(brute_force(graph)[0])
    assert result.relaxed_value == pytest.approx(result.value)
    assert result.iterations < 10


def test_averages_are_those_of_the_choices_made() -> None:
    """Rounds one by one, by hand: the last two windows, 3 to 6 and 7 to 9, weighted by the steps."""
    problem = Problem.compile(planted_graph(4))
    method = PSDD(tolerance=0.0)
    state = method.start(problem, 0, Start())
    copies, weights, sum_v, sum_f = state.parts.copies, 0.0, np.zeros(problem.n_states), np.zeros(problem.n_configs)
    owner = np.repeat(np.arange(problem.n_vars), np.diff(copies.ptr))
    for t in range(10):
        assert state.step(t + 1).finished is None
        if t >= 3:
            weight = method.answer(problem, state).details["step_length"]
            weights += weight
            np.add.at(sum_v, problem.graph.var_ptr[owner] + state.state.label_c, weight / np.diff(copies.ptr)[owner])
            sum_f[problem.config_ptr[:-1] + state.state.config] += weight
    answer = method.answer(problem, state)
    assert answer.mu_v is not None and answer.mu_f is not None
    linked = np.repeat(problem.degree > 0, problem.graph.card)
    assert answer.mu_v[linked] == pytest.approx((sum_v / weights)[linked])
    assert dense(problem, answer.mu_f) == pytest.approx(sum_f / weights)


def test_the_last_choices_can_be_the_relaxed_solution() -> None:
    problem, method = Problem.compile(planted_graph(4)), PSDD(primal="last", max_iterations=25)
    state = method.start(problem, 0, Start())
    assert method.step(problem, state).finished is None
    answer = method.answer(problem, state)
    assert answer.mu_v is not None and answer.mu_f is not None
    table = dense(problem, answer.mu_f)
    assert set(np.unique(table)) == {0.0, 1.0} and table.sum() == problem.n_factors
    copies = marginals(problem, answer.mu_f)
    for i in np.flatnonzero(problem.degree):
        block = slice(problem.graph.var_ptr[i], problem.graph.var_ptr[i + 1])
        edges = problem.nbr[problem.nbr_ptr[i] : problem.nbr_ptr[i + 1]]
        mine = [copies[problem.edge_ptr[e] : problem.edge_ptr[e + 1]] for e in edges]
        assert answer.mu_v[block] == pytest.approx(np.mean(mine, axis=0))


def test_too_many_configurations_leave_the_last_choices() -> None:
    problem = Problem.compile(triangle())
    parts = Decomposition.into_factors(problem)
    answers = []
    for most_configs in (11, 12):
        options = DescentOptions(SQRT, 0.3, 20, 1e-6, (MAJORITY,), most_configs=most_configs)
        state = SubgradientDescent(problem, parts, options)
        state.advance(40)
        answers.append((state.answer(problem), state.answer(problem, last=True)))
    (without, last), (averaged, _) = answers
    assert without.mu_v is not None and last.mu_v is not None and averaged.mu_v is not None
    assert without.mu_v.tolist() == last.mu_v.tolist()
    assert averaged.mu_v.tolist() != last.mu_v.tolist()
    for answer in (without, averaged):
        assert dense(problem, answer.mu_f).reshape(3, -1).sum(axis=1) == pytest.approx(1.0)


def test_steps_are_halved_when_the_bound_does_not_come_down() -> None:
    """Steps far too long to make any progress: each time patience runs out they are halved."""
    problem = Problem.compile(planted_graph(4))
    first = {}
    for patience in (5, 10**6):
        method = PSDD(step_size=1e4, patience=patience)
        state = method.start(problem, 0, Start())
        state.step(400)
        first[patience] = (float(state.figures.bound), method.answer(problem, state))
    assert first[5][0] < first[10**6][0]
    assert first[5][1].details["step_length"] < 1e-3 * first[10**6][1].details["step_length"]
