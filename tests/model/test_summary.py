import networkx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mapmrf import FactorGraph
from mapmrf.bridges import to_networkx
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.model.problem import Problem
from mapmrf.model.summary import summarise


@given(st.integers(3, 12), st.integers(0, 10), st.integers(0, 99))
def test_figures_of_random_graphs(n_vars, n_factors, seed):
    graph = random_graph(n_vars, n_factors, hard=0.2, seed=seed)
    found = summarise(graph)
    tables = [graph.table(a) for a in range(graph.n_factors)]
    assert found.n_components == networkx.number_connected_components(to_networkx(graph, primal=True))
    assert found.n_configs == sum(table.size for table in tables)
    assert found.forbidden == sum(np.isneginf(x).sum() for x in [graph.theta_v, *tables])
    assert sum(found.arities.values()) == n_factors
    pairs = {(i, j) for a in range(n_factors) for i in graph.scope_of(a) for j in graph.scope_of(a) if i < j}
    assert found.density == pytest.approx(len(pairs) / (n_vars * (n_vars - 1) / 2))


def test_shared_tables_count_for_every_factor():
    table = np.array([[0.0, -np.inf], [0.0, 0.0]])
    graph = FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2)], [table, table])
    found = summarise(graph)
    assert (found.n_tables, found.forbidden, found.n_configs) == (1, 2, 8)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (grid(1, 5), "pairwise, binary, tree, connected"),
        (grid(2, 2), "pairwise, binary, with cycles, connected"),
        (FactorGraph.from_tables([2, 3], [], []), "pairwise, multi-label, forest, 2 components"),
        (FactorGraph.from_tables([2, 2, 2], [(0, 1, 2)], [np.zeros(8)]), "higher order, binary, tree, connected"),
        (FactorGraph.from_tables([], [], []), "pairwise, binary, tree, connected"),
    ],
)
def test_structure_in_words(graph, words):
    assert f"structure    {words}" in summarise(graph).text()


@pytest.mark.parametrize("graph", [grid(10, 12), random_graph(30, 40), potts_image(10, 10).graph])
def test_memory_is_at_least_that_of_the_arrays(graph):
    problem = Problem.compile(graph)
    arrays = [value for value in vars(problem).values() if isinstance(value, np.ndarray)]
    mine = [value for value in vars(graph).values() if isinstance(value, np.ndarray)]
    held = sum(array.nbytes for array in arrays if not any(np.shares_memory(array, m) for m in mine))
    found = summarise(graph)
    assert held <= found.compiled_bytes - found.model_bytes


def test_weights_are_named_and_counted() -> None:
    edges, table = [[0, 1], [1, 2]], [[1.0, 0.0], [0.0, 1.0]]
    plain = summarise(FactorGraph.from_pairwise([[0.0, 0.0]] * 3, edges, table))
    heavy = summarise(FactorGraph.from_pairwise([[0.0, 0.0]] * 3, edges, table, weight=[1.0, 0.5]))
    assert (plain.weighted, heavy.weighted) == (False, True)
    assert heavy.model_bytes == plain.model_bytes + 2 * 8
    assert "1 distinct, and a weight per factor" in heavy.text()
    assert "weight" not in plain.text()
