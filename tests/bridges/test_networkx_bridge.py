"""networkx: factor graphs out and annotated graphs in."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given

import mapmrf
from mapmrf import FactorGraph, GraphError, Names
from mapmrf.bridges import from_networkx, to_networkx
from refusals import refuses
from strategies import Recipe, recipes, with_weights


def two_by_three() -> FactorGraph:
    names = Names(("wind", "sea"), (("calm", "gale"), ("flat", "choppy", "rough")))
    return FactorGraph.from_tables([2, 3], [(0,), (1, 0)], [[1, 2], np.arange(6).reshape(3, 2)], names=names)


@given(with_weights(recipes()))
def test_the_factor_graph_comes_back(recipe: Recipe) -> None:
    graph = recipe.graph()
    again = from_networkx(to_networkx(graph))
    assert again.card.tolist() == graph.card.tolist()
    assert again.theta_v.tolist() == graph.theta_v.tolist()
    assert again.constant == graph.constant
    assert again.n_factors == graph.n_factors
    for a in range(graph.n_factors):
        assert again.scope_of(a).tolist() == graph.scope_of(a).tolist()
        assert again.table(a).tolist() == graph.table(a).tolist()


def test_the_factor_graph_is_bipartite_and_annotated() -> None:
    found = to_networkx(two_by_three())
    assert nx.bipartite.is_bipartite_node_set(found, {node for node, side in found.nodes("bipartite") if side == 0})
    assert found.nodes["wind"]["card"] == 2
    assert found.nodes["wind"]["unary"].tolist() == [1, 2]
    assert found.nodes["sea"]["states"] == ("flat", "choppy", "rough")
    factor = found.nodes["factor", 0]
    assert factor["scope"] == ("sea", "wind")
    assert factor["table"].shape == (3, 2)
    assert found.edges["wind", ("factor", 0)]["axis"] == 1


def test_names_and_pairwise_models_come_back() -> None:
    assert from_networkx(to_networkx(two_by_three())).names == two_by_three().names
    graph = two_by_three()
    again = from_networkx(to_networkx(graph, primal=True))
    for labels in np.ndindex(2, 3):
        assert again.value(labels) == graph.value(labels)


def test_the_primal_graph_joins_variables_that_share_a_factor() -> None:
    scopes = [(0, 1, 2), (2, 3), (3, 2), (2, 3), (4,)]
    random = np.random.default_rng(0)
    tables = [random.normal(size=(2,) * len(scope)) for scope in scopes]
    found = to_networkx(FactorGraph.from_tables([2] * 5, scopes, tables), primal=True)
    assert sorted(found.edges) == [(0, 1), (0, 2), (1, 2), (2, 3)]
    assert "pairwise" not in found.edges[0, 1]
    assert found.edges[0, 1]["factors"] == [0]
    edge = found.edges[2, 3]
    assert edge["factors"] == [1, 2, 3]
    assert edge["scope"] == (2, 3)
    assert edge["pairwise"] == pytest.approx(tables[1] + tables[2].T + tables[3])
    assert nx.number_connected_components(found) == 2


def annotated(kind: Any, edge: tuple[str, str]) -> Any:
    graph = kind()
    graph.add_node("first", unary=[0.0, 0.25])
    graph.add_node("second", card=3)
    graph.add_edge(*edge)
    return graph


TABLE = np.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize("edge", [("first", "second"), ("second", "first")])
def test_rows_belong_to_the_node_that_comes_first(edge: tuple[str, str]) -> None:
    graph = annotated(nx.Graph, edge)
    graph.edges[edge]["pairwise"] = TABLE
    assert from_networkx(graph).value([1, 2]) == 5.25


def test_the_orientation_is_that_of_a_directed_edge_or_of_a_scope() -> None:
    graph = annotated(nx.DiGraph, ("second", "first"))
    graph.edges["second", "first"]["pairwise"] = TABLE.T
    assert from_networkx(graph).value([1, 2]) == 5.25
    graph.edges["second", "first"]["pairwise"] = TABLE
    refuses(GraphError, r"table of \('second', 'first'\) has shape \(2, 3\), expected \(3, 2\)", from_networkx, graph)
    graph = annotated(nx.Graph, ("first", "second"))
    graph.edges["first", "second"].update(pairwise=TABLE.T, scope=("second", "first"))
    assert from_networkx(graph).value([1, 2]) == 5.25
    graph.edges["first", "second"]["scope"] = ("second", "third")
    refuses(GraphError, "'scope' of edge", from_networkx, graph)


def test_parallel_edges_are_factors_of_their_own() -> None:
    graph = annotated(nx.MultiGraph, ("first", "second"))
    graph.add_edge("second", "first", pairwise=10 * TABLE)
    model = from_networkx(graph, default=TABLE)
    assert model.n_factors == 2
    assert model.value([1, 1]) == 44.25


def test_other_attribute_names_and_one_table_for_all() -> None:
    grid = nx.grid_2d_graph(4, 4)
    nx.set_node_attributes(grid, {node: [0.0, float(sum(node) % 3)] for node in grid}, "theta")
    model = from_networkx(grid, unary="theta", default=np.eye(2))
    assert model.n_factors == 24
    assert model.n_tables == 1
    assert model.names is not None
    assert model.names.variables[1] == "(0, 1)"
    expected = FactorGraph.from_pairwise(
        [[0, sum(node) % 3] for node in grid], [[4 * a + b, 4 * c + d] for (a, b), (c, d) in grid.edges], np.eye(2)
    )
    assert mapmrf.solve(model, "branch").value == mapmrf.solve(expected, "branch").value


def test_states_of_some_nodes_are_enough() -> None:
    graph = annotated(nx.Graph, ("first", "second"))
    graph.nodes["second"].update(states=["low", "mid", "high"])
    names = from_networkx(graph, default=TABLE).names
    assert names == Names(("first", "second"), (("0", "1"), ("low", "mid", "high")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda graph: graph.add_node("third"), "node 'third' has no attribute 'unary', 'card' or 'states'"),
        (lambda graph: graph.edges["first", "second"].clear(), "edge ('first', 'second') has no attribute 'pairwise'"),
        (lambda graph: graph.nodes["first"].update(unary=[[0, 1]]), "'unary' of node 'first' has shape (1, 2)"),
        (lambda graph: graph.nodes["first"].update(states="abc"), "expected one number for each of 3 states"),
        (lambda graph: graph.nodes["first"].update(unary=["a"]), "'unary' of node 'first' is not an array of numbers"),
        (lambda graph: graph.edges["first", "second"].update(pairwise=[[1], [2, 3]]), "is ragged, expected 2 x 3"),
        (lambda graph: graph.add_node("f", table=[0, 0], scope=["fourth"]), "'fourth' of its scope is not a variable"),
    ],
)
def test_what_is_missing_is_named(change: Any, said: str) -> None:
    graph = annotated(nx.Graph, ("first", "second"))
    graph.edges["first", "second"]["pairwise"] = TABLE
    change(graph)
    with pytest.raises(GraphError) as caught:
        from_networkx(graph)
    assert said in str(caught.value)
