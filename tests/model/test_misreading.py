"""Input that could be mistaken for something else is refused: tables of another shape, bools and floats as indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import constraints
from mapmrf.batch import read_rows
from mapmrf.bridges import inference_dispatch
from mapmrf.errors import FormatError, GraphError, MapMRFError, UnknownName
from mapmrf.formats.evidence import read_evidence, write_evidence
from mapmrf.formats.solution import write_query_solution, write_solution
from mapmrf.images import to_image
from mapmrf.learn import LinearModel
from mapmrf.model.graph import FactorGraph, Names
from refusals import refuses

# -- shapes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [FactorGraph.from_tables, FactorGraph.from_energies])
def test_a_table_has_the_shape_of_its_scope_or_is_flat(build: Any) -> None:
    table = np.arange(6.0).reshape(2, 3)
    assert (
        build([2, 3], [(0, 1)], [table]).table(0).tolist() == build([2, 3], [(0, 1)], [table.ravel()]).table(0).tolist()
    )
    assert build([2, 3], [(1, 0)], [table.T]).n_factors == 1
    said = "factor 0 (variables 0, 1): the table has shape (3, 2), expected (2, 3), or a flat table"
    refuses(GraphError, said, build, [2, 3], [(0, 1)], [table.T])
    refuses(GraphError, said, build, [2, 3], [(0, 1)], [table.T.tolist()])
    refuses(GraphError, "has shape (1, 2, 3), expected (2, 3)", build, [2, 3], [(0, 1)], [table[None]])
    refuses(GraphError, "factor 0 (variables 0): the table has shape (1, 2)", build, [2, 3], [(0,)], [[[1.0, 2.0]]])
    refuses(GraphError, "the table has shape (2, 2), expected (2, 3)", build, [2, 3], [(0, 1)], [np.zeros((2, 2))])
    refuses(GraphError, "(variables none): the table has shape (1, 1), expected ()", build, [2, 3], [()], [[[1.0]]])


def test_one_flat_table_may_serve_factors_of_different_shapes() -> None:
    flat, shaped = np.arange(6.0), np.arange(6.0).reshape(2, 3)
    graph = FactorGraph.from_tables([2, 3, 2], [(0, 1), (1, 2)], [flat, flat])
    assert graph.table(0)[1, 0] == 3.0 and graph.table(1)[1, 0] == 2.0
    said = "factor 1 (variables 1, 2): the table has shape (2, 3), expected (3, 2)"
    refuses(GraphError, said, FactorGraph.from_tables, [2, 3, 2], [(0, 1), (1, 2)], [shaped, shaped])


def test_flat_arrays_have_one_axis() -> None:
    def build(**changed: Any) -> FactorGraph:
        arrays: dict[str, Any] = {
            "card": [2, 2],
            "scope_ptr": [0, 2],
            "scope": [0, 1],
            "table_of": [0],
            "table_ptr": [0, 4],
            "theta_t": np.arange(4.0),
        }
        return FactorGraph.from_arrays(**(arrays | changed))

    assert build().n_factors == 1
    refuses(GraphError, "theta_t has shape (4, 1), expected one axis", build, theta_t=np.arange(4.0)[:, None])
    refuses(GraphError, "scope has shape (1, 2), expected one axis", build, scope=[[0, 1]])
    refuses(GraphError, "card has shape (1, 2), expected one axis", build, card=[[2, 2]])


def test_unaries_labels_and_images_of_another_shape_are_refused() -> None:
    said = "unary has shape (2,), expected (n_vars, n_states)"
    refuses(GraphError, said, FactorGraph.from_pairwise, [0.0, 1.0], [], np.eye(2))
    graph = FactorGraph.from_tables([3] * 6, [], [])
    image = np.arange(6).reshape(2, 3) % 3
    refuses(GraphError, "6 labels of shape (2, 3), expected one for each of the 6 variables", graph.value, image)
    refuses(GraphError, "6 labels of shape (2, 3)", mapmrf.max_marginals(graph).margins, image)
    refuses(GraphError, "label of variable 0 is 3, expected 0 to 2", mapmrf.max_marginals(graph).margins, np.full(6, 3))
    assert to_image(image, (2, 3)).tolist() == image.tolist()
    refuses(GraphError, "labels have shape (2, 3), expected one axis, or (3, 2)", to_image, image, (3, 2))
    unary, edges = np.zeros((2, 3, 2)), [[0, 1]]
    start = np.ones((3, 2), dtype=int)
    said = "initial has shape (3, 2), expected (2, 3)"
    refuses(GraphError, said, inference_dispatch, unary, np.eye(2), edges, initial=start)


def test_features_are_not_reshaped() -> None:
    unary = np.zeros((3, 1))
    said = "edges has shape (2, 3), expected (n_edges, 2)"
    refuses(GraphError, said, LinearModel.pairwise, unary, [[0, 0, 1], [1, 2, 2]], n_states=2)
    for tables in (np.zeros((2, 2)), np.zeros((1, 4)), np.zeros((1, 4, 1))):
        said = f"tables has shape {tables.shape}, expected (n_tables, 2, 2)"
        refuses(GraphError, said, LinearModel.pairwise, unary, [[0, 1]], n_states=2, tables=tables)


def test_the_truth_of_a_batch_is_not_broadcast() -> None:
    torch = pytest.importorskip("torch")
    from mapmrf.torch import MapLayer, PerturbedLoss

    loss = PerturbedLoss(MapLayer(FactorGraph.from_tables([2, 2], [(0, 1)], [[1, 0, 0, 1]])))
    theta = torch.zeros(3, 4)
    for truth in (torch.tensor([[1, 1]]), torch.tensor([1, 1]), torch.zeros(2, 3, dtype=int)):
        said = f"truth has shape {tuple(truth.shape)}, expected (3, 2) = (batch, n_vars)"
        refuses(GraphError, said, loss, theta, truth)


# -- bools and floats -------------------------------------------------------------------------------------------------


def xray(states: tuple[str, ...] = ("yes", "no")) -> FactorGraph:
    names = Names(("xray", "smoke"), (states, ("a", "b", "c")[: len(states)]))
    return FactorGraph.from_tables([len(states)] * 2, [(0, 1)], [np.eye(len(states))], names=names)


@pytest.mark.parametrize("state", [True, False, np.True_, np.False_])
def test_a_bool_is_no_state(tmp_path: Path, state: Any) -> None:
    graph, said = xray(), f"variable 'xray' has no state named {state!r}"
    refuses(UnknownName, said, graph.condition, {"xray": state})
    refuses(UnknownName, said, graph.condition, {0: state})
    refuses(UnknownName, said, graph.with_constraints, [constraints.xor([("xray", state)])])
    said = f"no variable has a state {state!r}"
    refuses(GraphError, said, graph.with_constraints, [constraints.label_cost(state, 1.0)])
    (row,) = read_rows([{"xray": state}], graph)
    assert isinstance(row, FormatError) and f"found state {state!r} of variable xray" in str(row)
    assert isinstance(read_rows([{"smoke": 1}, {0: "no"}], graph)[1], dict)
    nameless = FactorGraph.from_tables([2, 2], [], [])
    refuses(UnknownName, f"variable 1 has no state named {state!r}", nameless.condition, {1: state})
    refuses(GraphError, "labels must be whole numbers, found dtype bool", nameless.value, [state, state])
    refuses(GraphError, "labels must be whole numbers", mapmrf.solve, nameless, initial=np.array([state, state]))
    refuses(GraphError, "evidence has the state", write_evidence, tmp_path / "e", {0: state})


@pytest.mark.parametrize(
    "states", [("True", "False"), ("true", "false"), ("TRUE", "FALSE"), ("false", "maybe", "true")]
)
def test_a_bool_is_the_state_that_is_called_so(tmp_path: Path, states: tuple[str, ...]) -> None:
    graph = xray(states)
    yes = [name.lower() for name in states].index("true")
    for state in (True, np.True_):
        assert graph.locate("xray", state) == (0, yes)
        assert read_rows([{"xray": state}], graph) == [{0: yes}]
    (tmp_path / "seen.json").write_text('{"xray": true}')
    assert read_evidence(tmp_path / "seen.json", graph) == [{0: yes}]
    counted = graph.with_constraints([constraints.label_cost(True, 3.0)])
    assert counted.value([yes, 1 - yes % 2]) - graph.value([yes, 1 - yes % 2]) == -3.0


def test_bools_are_no_structure_and_no_state_that_two_are_called() -> None:
    refuses(UnknownName, "has no state named True", xray(("true", "True")).condition, {"xray": True})
    refuses(GraphError, "card must be whole numbers, found dtype bool", FactorGraph.from_tables, [True, True], [], [])
    refuses(GraphError, "scopes must be whole numbers", FactorGraph.from_tables, [2, 2], [(True, False)], [np.eye(2)])
    unary = np.zeros((2, 2))
    refuses(GraphError, "edges must be whole", FactorGraph.from_pairwise, unary, [[True, False]], np.eye(2))


@pytest.mark.parametrize("index", [True, np.True_, 1.0, 0.7, np.float64(1.0), None])
def test_only_whole_numbers_and_names_are_variables(index: Any) -> None:
    graph = FactorGraph.from_tables([2, 2], [], [])
    said = f"{index!r} is not a variable, expected an index or a name"
    refuses(GraphError, said, graph.condition, {index: 0})
    refuses(GraphError, said, graph.with_constraints, [constraints.xor([index])])
    refuses(GraphError, said, mapmrf.max_marginals(graph).of, index)
    refuses(MapMRFError, said, mapmrf.marginal_map, graph, [index])


@pytest.mark.parametrize("state", [1.0, 0.7, np.float64(1.0), None])
def test_only_whole_numbers_and_names_are_states(state: Any) -> None:
    graph, said = FactorGraph.from_tables([2, 2], [], []), f"state {state!r} of variable 1: expected an index or a name"
    refuses(GraphError, said, graph.condition, {1: state})
    refuses(GraphError, said, graph.with_constraints, [constraints.xor([(1, state)])])


def test_integers_of_all_libraries_are_indices() -> None:
    torch = pytest.importorskip("torch")
    graph = FactorGraph.from_tables([2, 2], [], [])
    for one in (1, np.int8(1), np.uint64(1), np.array(1), torch.tensor(1)):
        assert graph.locate(one, one) == (1, 1)
    refuses(GraphError, "state tensor(True) of variable 1: expected an index", graph.locate, 1, torch.tensor(True))


def test_solutions_are_not_rounded(tmp_path: Path) -> None:
    refuses(GraphError, "labels must be whole numbers", write_solution, tmp_path / "m.MPE", [0.6, 1.0])
    refuses(GraphError, "labels have shape (2, 2)", write_solution, tmp_path / "m.MPE", np.zeros((2, 2), dtype=int))
    refuses(GraphError, "labels must be whole numbers", write_query_solution, tmp_path / "m.MMAP", [0, 1], [0.6, 1.0])


# -- bridges ----------------------------------------------------------------------------------------------------------


class Factor:
    """Looks like a factor of pgmpy."""

    def __init__(self, variable: str, states: list[Any] | None) -> None:
        self.variables, self.values = [variable], [0.2, 0.8]
        self.state_names = None if states is None else {variable: states}


def test_bools_of_pgmpy_are_names_and_not_the_numbers_0_and_1() -> None:
    from mapmrf.bridges import from_pgmpy, map_query

    graph = from_pgmpy([Factor("a", [0, 1]), Factor("b", [False, True]), Factor("c", [True, False])])
    assert graph.names is not None and graph.names.states == (("0", "1"), ("False", "True"), ("True", "False"))
    assert graph.locate("b", True) == (1, 1) and graph.locate("c", True) == (2, 0)
    assert map_query([Factor("c", [True, False]), Factor("a", None)], evidence={"c": True}) == {"a": 1}
    refuses(UnknownName, "has no state named True", map_query, [Factor("a", [0, 1])], evidence={"a": True})
    refuses(UnknownName, "has no state named 1", map_query, [Factor("c", [True, False])], evidence={"c": 1})


@pytest.mark.parametrize("card", [2.7, True, "2"])
def test_the_number_of_states_of_a_node_is_whole(card: Any) -> None:
    networkx = pytest.importorskip("networkx")
    from mapmrf.bridges import from_networkx

    graph = networkx.Graph()
    graph.add_node("a", card=card)
    refuses(GraphError, f"'card' of node 'a' is {card!r}, expected a whole number", from_networkx, graph)


def test_an_initial_state_is_not_rounded() -> None:
    dimod = pytest.importorskip("dimod")
    from mapmrf.bridges import MapMRFSampler

    bqm = dimod.BinaryQuadraticModel({"a": 1.0}, {("a", "b"): -2.0}, 0.0, "BINARY")
    sampler = MapMRFSampler("icm")
    said = "initial_state of 'a' is 0.7, expected 0 or 1"
    refuses(GraphError, said, sampler.sample, bqm, initial_state={"a": 0.7, "b": 1})
    assert sampler.sample(bqm, initial_state={"a": True, "b": True}).first.energy <= 0  # values, not indices
    dqm = dimod.DiscreteQuadraticModel()
    dqm.add_variable(3, label="colour")
    for value in (0.7, True):
        said = f"initial_state of 'colour' is {value}, expected a whole number from 0 to 2"
        refuses(GraphError, said, sampler.sample_dqm, dqm, initial_state={"colour": value})
