"""DD-SG: exact on trees, bounds that come down to the LP's, and each of its options."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

import mapmrf
from mapmrf.engines.decomposition.subgradient import unit_of
from mapmrf.methods.dd_sg import DDSG
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import triangle
from strategies import Recipe, brute_force, planted_graph, recipes


@given(recipe=recipes())
@settings(max_examples=25)
def test_every_round_gives_a_valid_bound_whatever_the_rule(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    for rule in ("level", "polyak", "diminishing"):
        for decomposition in ("trees", "factors"):
            state = DDSG(rule=rule, decomposition=decomposition).start(Problem.compile(graph), 0, Start())  # type: ignore[arg-type]
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
                    assert state.state.candidate[i] == state.state.choices.label_c[c]


def test_subproblems_are_counted_in_the_details() -> None:
    assert mapmrf.solve(triangle(), "dd_sg").details["subproblems"] == 2
    assert mapmrf.solve(triangle(), "dd_sg", decomposition="factors").details["subproblems"] == 3
