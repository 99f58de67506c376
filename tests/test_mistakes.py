"""Mistakes that people make: each gets one line that says what was found, what was expected, or what to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, FormatError, GraphError, OptionError
from refusals import refuses


@pytest.fixture
def graph() -> FactorGraph:
    return FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])


def test_a_file_is_solved_like_the_model_in_it(graph: FactorGraph, tmp_path: Path) -> None:
    path = tmp_path / "model.uai"
    mapmrf.write(graph, path)
    for given in (path, str(path)):
        assert mapmrf.solve(given).value == pytest.approx(mapmrf.solve(graph).value)
    refuses(FormatError, r"absent\.uai: cannot read", mapmrf.solve, tmp_path / "absent.uai")


@pytest.mark.parametrize(
    ("model", "advice"),
    [
        (np.zeros((3, 2)), r"a ndarray, .* see FactorGraph\.from_pairwise .* mapmrf\.images\.grid_model"),
        ({"x": [0, 1]}, r"a dict, expected a FactorGraph or a file: see FactorGraph\.from_tables"),
        (7, "an int, expected a FactorGraph or a file"),
    ],
)
def test_what_is_no_model_gets_the_name_of_a_constructor(model: Any, advice: str) -> None:
    refuses(GraphError, advice, mapmrf.solve, model)


def test_several_models_are_for_solve_many(graph: FactorGraph) -> None:
    refuses(GraphError, r"a list, .* see solve_many", mapmrf.solve, [graph, graph])


def test_a_graph_of_networkx_is_for_its_bridge() -> None:
    networkx = pytest.importorskip("networkx")
    refuses(GraphError, r"a Graph, .* see mapmrf\.bridges\.from_networkx", mapmrf.solve, networkx.Graph())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time_limit": "5"}, "time_limit is '5', expected a number"),
        ({"time_limit": True}, "time_limit is True, expected a number"),
        ({"seed": "7"}, "seed is '7', expected a whole number"),
        ({"seed": 1.5}, "seed is 1.5, expected a whole number"),
        ({"threads": 1.5}, "threads is 1.5, expected a whole number"),
        ({"gap_tolerance": "small"}, "gap_tolerance is 'small', expected a number"),
        ({"callback": 3}, "callback is 3, expected a function"),
        ({"method": 5}, "method is 5, expected the name of a method"),
        ({"method": "lslp", "rho": "0.1"}, "lslp: rho is '0.1', expected a number"),
        ({"method": "lslp", "max_iterations": 2.5}, "lslp: max_iterations is 2.5, expected a whole number"),
        ({"prove": 3}, "auto: prove is 3, expected true or false"),
        ({"method": "toulbar2", "eliminate": "2"}, "toulbar2: eliminate is '2', expected a number"),
    ],
)
def test_a_wrong_type_is_named(graph: FactorGraph, arguments: dict[str, Any], message: str) -> None:
    refuses(OptionError, message, mapmrf.solve, graph, **arguments)


def test_numbers_of_numpy_are_numbers(graph: FactorGraph) -> None:
    result = mapmrf.solve(
        graph, "lslp", time_limit=np.float32(500), seed=np.int32(3), rho=np.float64(0.1), max_iterations=np.int64(50)
    )
    assert result.value == 2.0


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [("timelimit", "time_limit"), ("gaptolerance", "gap_tolerance"), ("max_iter", "max_iterations")],
)
def test_a_misspelt_argument_gets_a_suggestion(graph: FactorGraph, misspelt: str, meant: str) -> None:
    refuses(OptionError, f"no option '{misspelt}', did you mean '{meant}'", mapmrf.solve, graph, **{misspelt: 5})


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 1], [1, 3]], r"edge 1 is \(1, 3\): variable 3 does not exist, expected 0 to 2"),
        ([[-1, 1]], r"edge 0 is \(-1, 1\): variable -1 does not exist"),
        ([[0, 1], [2, 2]], r"edge 1 is \(2, 2\), expected two different variables"),
    ],
)
def test_a_pair_that_cannot_be_is_named_as_an_edge(edges: list[list[int]], message: str) -> None:
    refuses(GraphError, message, FactorGraph.from_pairwise, np.zeros((3, 2)), edges, np.zeros((2, 2)))


def test_one_iteration_is_singular(graph: FactorGraph) -> None:
    assert "auto, 1 iteration, " in mapmrf.solve(graph).summary()


@pytest.mark.parametrize(
    ("unary", "pairs", "message"),
    [
        ([[0, 0], [0, np.nan], [0, 0]], np.zeros((2, 2, 2)), r"^variable 1: entry 1 is nan, expected a finite number"),
        (np.zeros((3, 2)), [np.eye(2), [[0, 1], [np.inf, 0]]], r"^edge 1 \(1, 2\): entry 1, 0 is inf, expected"),
        (np.zeros((3, 2)), [[np.nan, 0], [0, 0]], r"^pairwise: entry 0, 0 is nan, expected a finite number or -inf$"),
    ],
)
def test_a_number_that_cannot_be_is_named_by_variable_or_edge(unary: Any, pairs: Any, message: str) -> None:
    refuses(GraphError, message, FactorGraph.from_pairwise, unary, [[0, 1], [1, 2]], pairs)


def test_the_case_of_a_name_does_not_hide_what_was_meant(graph: FactorGraph) -> None:
    refuses(mapmrf.UnknownName, "no method is named 'TRWS', did you mean 'trws'", mapmrf.solve, graph, "TRWS")


@pytest.mark.parametrize("name", ["margins", "certificate", "progress"])
def test_text_is_neither_true_nor_false(graph: FactorGraph, name: str) -> None:
    refuses(OptionError, f"{name} is 'no', expected true or false", mapmrf.solve, graph, **{name: "no"})


def test_evidence_is_a_mapping(graph: FactorGraph) -> None:
    with pytest.raises(GraphError, match=r"the evidence is \[0, 1\], expected a mapping from variables to states"):
        graph.condition([0, 1])  # type: ignore[arg-type]


def test_one_model_is_for_solve_and_a_bad_one_does_not_stop_the_rest(graph: FactorGraph) -> None:
    refuses(OptionError, r"graphs is FactorGraph\(.*, expected a list of models or files", mapmrf.solve_many, graph)
    good, bad = mapmrf.solve_many([graph, 3])
    assert good.value == mapmrf.solve(graph).value
    assert str(bad) == "the model is an int, expected a FactorGraph or a file: see FactorGraph.from_tables"


def test_arguments_of_write_in_the_wrong_order(graph: FactorGraph, tmp_path: Path) -> None:
    with pytest.raises(GraphError, match="found a str to write, expected a FactorGraph and then the file"):
        mapmrf.write(str(tmp_path / "model.uai"), graph)  # type: ignore[arg-type]


def test_graphs_are_no_examples(graph: FactorGraph) -> None:
    with pytest.raises(OptionError, match=r"example 0 is a FactorGraph, expected an Example: see Example\.of"):
        mapmrf.learn.StructuredSVM().fit([graph])
