"""Problem: every batch is a slice of every array, and nothing of the graph is lost."""

import dataclasses

import numpy as np
from hypothesis import given

import mapmrf
from mapmrf import FactorGraph
from mapmrf.engines.moves.flip_state import lay_out
from mapmrf.model.problem import Problem
from strategies import Recipe, any_recipes, random_recipe, with_weights


@given(recipe=with_weights(any_recipes()))
def test_the_new_order_keeps_every_factor_with_its_scope_and_table(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    assert sorted(problem.order.tolist()) == list(range(graph.n_factors))
    for a, original in enumerate(problem.order.tolist()):
        scope = problem.scope[problem.scope_ptr[a] : problem.scope_ptr[a + 1]]
        assert scope.tolist() == graph.scope_of(original).tolist()
        block = problem.theta_f[problem.config_ptr[a] : problem.config_ptr[a + 1]]
        assert np.array_equal(block, graph.table(original).ravel())
        weight = 1.0 if graph.weight is None else problem.weight[a]
        assert np.array_equal(weight * graph.theta_t[problem.table_at[a] :][: len(block)], block)


@given(recipe=with_weights(any_recipes()))
def test_batches_cut_every_array_without_gaps(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    sizes = {
        "factors": problem.n_factors,
        "edges": problem.n_edges,
        "edge_states": problem.n_edge_states,
        "configs": problem.n_configs,
    }
    for kind, size in sizes.items():
        cuts = [getattr(batch, kind) for batch in problem.batches]
        assert [cut.start for cut in cuts] == [0, *(cut.stop for cut in cuts)][: len(cuts)]
        assert (cuts[-1].stop if cuts else 0) == size


@given(recipe=with_weights(any_recipes()))
def test_a_batch_holds_factors_of_one_shape_and_one_hardness(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    for batch in problem.batches:
        for b, a in enumerate(problem.order[batch.factors].tolist()):
            assert graph.table(a).shape == batch.shape
            assert np.any(np.isneginf(graph.table(a))) == batch.hard
            assert batch.var_at[b].tolist() == graph.var_ptr[graph.scope_of(a)].tolist()
        assert (batch.arity, batch.n_configs) == (len(batch.shape), int(np.prod(batch.shape)))
        assert batch.config.tolist() == [list(t) for t in np.ndindex(batch.shape)]
        assert batch.state_at.tolist() == [sum(batch.shape[:k]) for k in range(batch.arity + 1)]
    keys = [(batch.shape, batch.hard) for batch in problem.batches]
    assert len(set(keys)) == len(keys), "equal factors must be in one batch"


@given(recipe=with_weights(any_recipes()))
def test_neighbours_are_the_edges_of_each_variable(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    for i in range(problem.n_vars):
        edges = problem.nbr[problem.nbr_ptr[i] : problem.nbr_ptr[i + 1]].tolist()
        assert edges == np.flatnonzero(problem.scope == i).tolist()
        assert problem.degree[i] == len(edges)


def test_edge_states_come_edge_by_edge_and_feasible_states_are_finite() -> None:
    graph = Recipe([2, 3, 4], [(2, 0), (1, 2)], [np.zeros((4, 2)), np.zeros((3, 4))]).graph()
    problem = Problem.compile(graph)
    assert np.diff(problem.edge_ptr).tolist() == graph.card[problem.scope].tolist()
    assert problem.n_edge_states == 4 + 2 + 3 + 4
    assert problem.n_states == 9
    graph = Recipe([2, 2], [(1,)], [np.array([-np.inf, 0.0])]).graph()
    assert Problem.compile(graph).feasible_v.tolist() == [True, True, False, True]


def test_a_shared_table_is_one_batch_and_long_shapes_are_told_apart() -> None:
    edges = [[i, i + 1] for i in range(99)]
    graph = FactorGraph.from_pairwise(np.zeros((100, 2)), edges, np.eye(2))
    problem = Problem.compile(graph)
    assert set(problem.table_at.tolist()) == {0}
    assert len(problem.batches) == 1
    # Ten variables of many states: the code of a shape would not fit into 64 bits.
    card = [1] * 9 + [100]
    scopes = [tuple(range(10)), tuple(reversed(range(10)))]
    graph = FactorGraph.from_tables(card, scopes, [np.zeros(100), np.ones(100)])
    assert len(Problem.compile(graph).batches) == 2


@given(recipe=with_weights(any_recipes()))
def test_the_tables_of_a_batch_are_those_of_its_factors(recipe: Recipe) -> None:
    problem = Problem.compile(recipe.graph())
    for batch in problem.batches:
        rows = slice(batch.n // 2, batch.n)
        expected = [problem.graph.table(a).ravel() for a in problem.order[batch.factors][rows]]
        assert np.array_equal(batch.tables(problem.graph.theta_t, rows), expected)
        assert len(batch.tables(problem.graph.theta_t, slice(0, 0))) == 0


def test_the_tables_of_a_batch_are_found_where_factors_share_or_swap_them() -> None:
    theta_t = np.arange(12.0)
    pairs, table_ptr = [0, 1, 1, 2, 0, 2], [0, 4, 8, 12]
    for table_of in ([0, 1, 2], [2, 1, 0], [0, 0, 2], [1, 1, 1]):
        graph = FactorGraph.from_arrays([2] * 3, [0, 2, 4, 6], pairs, table_of, table_ptr, theta_t)
        (batch,) = Problem.compile(graph).batches
        found = batch.tables(graph.theta_t, slice(0, 3))
        assert found.tolist() == [graph.table(a).ravel().tolist() for a in range(3)]


def test_compiled_arrays_are_read_only() -> None:
    problem = Problem.compile(random_recipe(1, 5, 10).graph())
    arrays = [problem.order, problem.scope, problem.nbr, problem.edge_ptr, problem.config_ptr, problem.theta_f]
    assert not any(array.flags.writeable for array in arrays)


def test_small_models_that_differ_in_potentials_alone_are_compiled_once():
    graph = mapmrf.datasets.grid(3, 4, coupling=1.0, seed=2)
    first = Problem.compile(graph)
    first_degree = first.degree
    lay_out(first)
    other = dataclasses.replace(graph, theta_v=2.0 * graph.theta_v, theta_t=graph.theta_t + 1.0)
    second = Problem.compile(other, threads=2)
    assert second.batches is first.batches and second.degree is first_degree and second.threads == 2
    assert second.theta_f.tolist() == other.theta_t.tolist()
    assert lay_out(second).theta_v is other.theta_v and lay_out(first).theta_v is graph.theta_v
    hard = dataclasses.replace(graph, theta_t=np.where(np.arange(len(graph.theta_t)) == 5, -np.inf, graph.theta_t))
    assert [batch.hard for batch in Problem.compile(hard).batches].count(True) == 1
    weighted = dataclasses.replace(graph, weight=np.full(graph.n_factors, 2.0))
    assert Problem.compile(weighted).theta_f.tolist() == (2.0 * graph.theta_t).tolist()
