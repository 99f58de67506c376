"""Mistakes that people make: each gets one line that says what was found, what was expected, or what to call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf import FactorGraph, FormatError, GraphError, OptionError
from refusals import refuses

GRAPH = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
TYPES: list[tuple[dict[str, Any], str]] = [
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
    ({"method": "toulbar2", "eliminate": "2"}, "toulbar2: eliminate is '2', expected a whole number or None"),
    ({"margins": "no"}, "margins is 'no', expected true or false"),
    ({"certificate": "no"}, "certificate is 'no', expected true or false"),
    ({"progress": "no"}, "progress is 'no', expected true or false"),
    ({"timelimit": 5}, "no option 'timelimit', did you mean 'time_limit'"),
    ({"gaptolerance": 5}, "no option 'gaptolerance', did you mean 'gap_tolerance'"),
    ({"max_iter": 5}, "no option 'max_iter', did you mean 'max_iterations'"),
]


@pytest.mark.parametrize(("arguments", "message"), TYPES)
def test_a_wrong_type_is_named_and_a_misspelt_argument_gets_a_suggestion(arguments: Any, message: str) -> None:
    refuses(OptionError, message, mapmrf.solve, GRAPH, **arguments)


NO_MODELS: list[tuple[Any, str]] = [
    (np.zeros((3, 2)), r"a ndarray, .* see FactorGraph\.from_pairwise .* mapmrf\.images\.grid_model"),
    ({"x": [0, 1]}, r"a dict, expected a Model, a FactorGraph or a file: see mapmrf\.Model\.from_qubo"),
    (7, "an int, expected a Model, a FactorGraph or a file"),
    ([GRAPH, GRAPH], r"a list, .* see solve_many"),
]


@pytest.mark.parametrize(("model", "advice"), NO_MODELS)
def test_what_is_no_model_gets_the_name_of_a_constructor(model: Any, advice: str) -> None:
    refuses(GraphError, advice, mapmrf.solve, model)


def test_a_graph_of_networkx_is_for_its_bridge() -> None:
    networkx = pytest.importorskip("networkx")
    refuses(GraphError, r"a Graph, .* see mapmrf\.Model\.from_networkx", mapmrf.solve, networkx.Graph())


THREE, EDGES = np.zeros((3, 2)), [[0, 1], [1, 2]]
PAIRWISE: list[tuple[Any, Any, Any, str]] = [
    (THREE, [[0, 1], [1, 3]], np.eye(2), r"edge 1 is \(1, 3\): variable 3 does not exist, expected 0 to 2"),
    (THREE, [[-1, 1]], np.eye(2), r"edge 0 is \(-1, 1\): variable -1 does not exist"),
    (THREE, [[0, 1], [2, 2]], np.eye(2), r"edge 1 is \(2, 2\), expected two different variables"),
    ([[0, 0], [0, np.nan], [0, 0]], EDGES, np.eye(2), r"^variable 1: entry 1 is nan, expected a finite number"),
    (THREE, EDGES, [np.eye(2), [[0, 1], [np.inf, 0]]], r"^edge 1 \(1, 2\): entry 1, 0 is inf, expected"),
    (THREE, EDGES, [[np.nan, 0], [0, 0]], r"^pairwise: entry 0, 0 is nan, expected a finite number or -inf$"),
]


@pytest.mark.parametrize(("unary", "edges", "pairs", "message"), PAIRWISE)
def test_what_cannot_be_is_named_by_variable_or_edge(unary: Any, edges: Any, pairs: Any, message: str) -> None:
    refuses(GraphError, message, FactorGraph.from_pairwise, unary, edges, pairs)


def test_what_was_meant_is_said(tmp_path: Path) -> None:
    refuses(mapmrf.UnknownName, "no method is named 'TRWS', did you mean 'trws'", mapmrf.solve, GRAPH, "TRWS")
    refuses(GraphError, "the evidence is [0, 1], expected a mapping from variables to states", GRAPH.condition, [0, 1])
    said = "found a str to write, expected a FactorGraph and then the file"
    refuses(GraphError, said, mapmrf.write, str(tmp_path / "model.uai"), GRAPH)
    said = "example 0 is a FactorGraph, expected an Example: see Example.of"
    refuses(OptionError, said, mapmrf.learn.StructuredSVM().fit, [GRAPH])


def test_a_file_is_solved_like_the_model_in_it(tmp_path: Path) -> None:
    path = tmp_path / "model.uai"
    mapmrf.write(GRAPH, path)
    for given in (path, str(path)):
        assert mapmrf.solve(given).value == pytest.approx(mapmrf.solve(GRAPH).value)
    refuses(FormatError, r"absent\.uai: cannot read", mapmrf.solve, tmp_path / "absent.uai")


def test_numbers_of_numpy_are_numbers_and_one_iteration_is_singular() -> None:
    options = {"rho": np.float64(0.1), "max_iterations": np.int64(50)}
    assert mapmrf.solve(GRAPH, "lslp", time_limit=np.float32(500), seed=np.int32(3), **options).value == 2.0
    assert "auto, 1 iteration, " in mapmrf.solve(GRAPH).summary()


def test_one_model_is_for_solve_and_a_bad_one_does_not_stop_the_rest() -> None:
    refuses(OptionError, r"graphs is FactorGraph\(.*, expected a list of models or files", mapmrf.solve_many, GRAPH)
    good, bad = mapmrf.solve_many([GRAPH, 3])
    assert good.value == mapmrf.solve(GRAPH).value
    assert str(bad) == "the model is an int, expected a Model, a FactorGraph or a file: see FactorGraph.from_tables"
