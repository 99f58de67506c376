"""Constraints as statements and as arrays of a graph: values, evidence, names, mistakes."""

from __future__ import annotations

import itertools
import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment

import command_line
import mapmrf
from constrained_recipes import KINDS, random_constrained
from mapmrf import FactorGraph, GraphError, Names, Result, Status, UnknownName, constraints, images
from mapmrf.model.summary import summarise
from mapmrf.run.incumbent import Evaluator, shortfall
from mapmrf.run.repair import penalised
from test_docs import DOCS, blocks

SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_values_are_those_of_plain_python(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=4, n_constraints=4)
    graph = recipe.graph()
    evaluator = Evaluator(graph)
    for labels, value in recipe.values():
        assert graph.value(labels) == pytest.approx(value)
        assert evaluator.value(np.array(labels)) == pytest.approx(value)


@pytest.mark.parametrize("seed", SEEDS)
def test_evidence_leaves_the_values_as_they_are(seed: int) -> None:
    recipe = random_constrained(seed, n_vars=4, n_constraints=4)
    graph, random = recipe.graph(), np.random.default_rng(seed)
    seen = random.permutation(graph.n_vars)[: 1 + seed % graph.n_vars].tolist()
    evidence = {i: int(random.integers(graph.card[i])) for i in seen}
    smaller = graph.condition(evidence)
    for labels, value in recipe.values():
        expected = value if all(labels[i] == k for i, k in evidence.items()) else -math.inf
        assert smaller.value(labels) == pytest.approx(expected)
    if smaller.constraints is not None:
        counted = smaller.constraints.state[smaller.constraints.ptr[:-1]] >= 0
        used = smaller.constraints.var[counted[smaller.constraints.owner]]
        assert not set(used.tolist()) & set(evidence)


def test_all_kinds_are_drawn() -> None:
    names = {name for seed in SEEDS for name in random_constrained(seed).graph().constraints.made_by}
    assert names == set(KINDS) - {"real"}


def test_constraints_that_evidence_decides_are_dropped() -> None:
    graph = FactorGraph.from_tables([2, 2, 2], [], [])
    one = graph.with_constraints([constraints.at_most_one([0, 1, 2], penalty=3.0)])
    assert one.condition({0: 0, 1: 0}).constraints is None
    decided = one.condition({0: 1, 1: 1})
    assert decided.constraints is None
    assert decided.constant == -3.0
    either = graph.with_constraints([constraints.or_with_output([0, 1], 2)])
    assert either.condition({2: 1}).constraints.lower.tolist() == [1.0]
    assert either.condition({0: 1}).constraints.var.tolist() == [2]
    assert either.condition({0: 1, 2: 0}).value([1, 0, 0]) == -math.inf


def test_constraints_are_located_by_name_and_added_to_those_there_are() -> None:
    names = Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = FactorGraph.from_tables([2, 2], [], [], names=names)
    stated = graph.with_constraints([constraints.at_most_one([("Rain", "yes"), "Grass"])])
    assert stated.constraints.var.tolist() == [0, 1]
    assert stated.constraints.state.tolist() == [1, 1]
    assert graph.with_constraints([constraints.label_cost("wet", 2.0)]).value([0, 1]) == -2.0
    graph = FactorGraph.from_tables([2, 2], [], [])
    both = graph.with_constraints([constraints.xor([0, 1])]).with_constraints([constraints.at_least_one([0])])
    assert both.n_constraints == 2
    assert both.constraints.made_by == ("xor", "at_least_one")
    assert repr(both) == "FactorGraph(n_vars=2, n_factors=0, n_tables=0, n_constraints=2)"
    assert graph.with_constraints([]).constraints is None


def test_arrays_are_read_only_also_after_pickling() -> None:
    graph = FactorGraph.from_tables([2, 2], [], []).with_constraints([constraints.xor([0, 1])])
    again = pickle.loads(pickle.dumps(graph))
    for each in (graph, again):
        with pytest.raises(ValueError, match="read-only"):
            each.constraints.lower[0] = 3.0
    assert again.value([1, 1]) == -math.inf


def test_penalties_count_in_the_size_of_a_model() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0,)], [[0.0, 0.25]])
    soft = graph.with_constraints([constraints.xor([0, 1], penalty=5.0), constraints.exactly_one([0])])
    assert soft.size == 5.25
    assert soft.unit == 1.0
    assert penalised(soft).value([0, 0]) == pytest.approx(-5.0 - (1 + 2 * 5.25))


def test_results_tell_the_constraints_that_are_violated() -> None:
    graph = FactorGraph.from_tables([2, 2], [], [])
    graph = graph.with_constraints([constraints.at_most_k([0, 1], 2), constraints.all_different([0, 1])])
    result = Result.of_labels(graph, graph.check_labels([1, 1]), Status.CONVERGED, "by hand")
    assert [violation.constraint for violation in result.violated] == [1]
    assert str(result.violated[0]) == "constraint 1 (0=1, 1=1)"
    again = Result.from_json(result.to_json())
    assert again.violated == result.violated
    assert json.loads(result.to_json())["violated"][0]["constraint"] == 1
    assert shortfall(graph, result.labels).n_violated == 1


def test_the_summary_counts_constraints() -> None:
    graph = FactorGraph.from_tables([2, 2, 2], [(0, 1)], [np.zeros(4)])
    stated = graph.with_constraints([constraints.xor([0, 1, 2]), constraints.label_cost(1, 2.0)])
    found = summarise(stated)
    assert found.constraints == {"xor": 1, "label_cost": 1}
    assert not found.tree
    assert not found.pairwise
    assert found.n_components == 1
    assert "constraints  2  (1 xor, 1 label_cost)" in found.text()
    assert "constraints" not in summarise(graph).text()


def test_real_weights_are_compared_up_to_round_off() -> None:
    graph = FactorGraph.from_tables([2] * 10, [], [])
    tenth = graph.with_constraints([constraints.linear(range(10), [0.1] * 10, upper=1.0, lower=1.0)])
    assert tenth.value([1] * 10) == 0.0
    assert tenth.value([1] * 9 + [0]) == -math.inf
    half = graph.with_constraints([constraints.linear(range(10), [1.0] * 10, upper=2.5)])
    assert half.value([1, 1] + [0] * 8) == 0.0
    assert half.value([1, 1, 1] + [0] * 7) == -math.inf


MISTAKES = {
    "constraint 0 (at_most_one): variable 7 does not exist, expected 0 to 2": lambda: constraints.at_most_one([0, 7]),
    "constraint 0 (at_most_k): variable 2 has 3 states: specify one as (2, state)": lambda: constraints.at_most_k(
        [2], 1
    ),
    "constraint 0 (xor): variable 0 occurs twice with state 1": lambda: constraints.xor([0, (0, 1)]),
    "constraint 0 (all_different): variable 1 occurs twice": lambda: constraints.all_different([1, 0, 1]),
    "constraint 0 (exactly_one): variable 1 has no state 2, expected 0 to 1": lambda: constraints.exactly_one([(1, 2)]),
    "constraint 0 (label_cost): no variable has a state 5": lambda: constraints.label_cost(5, 1.0),
    "constraint 0 (xor): (0, 1, 2) is not an indicator, expected a pair (variable, state)": lambda: constraints.xor(
        [(0, 1, 2)]
    ),
    "constraint 0 (xor): 1.5 is not a variable, expected an index or a name": lambda: constraints.xor([1.5]),
    "constraint 0 is 3, expected one made by a function of mapmrf.constraints": lambda: 3,
    "at_most_one: no indicators, expected at least one": lambda: constraints.at_most_one([]),
    "xor: the parity is 2, expected 0 or 1": lambda: constraints.xor([0], 2),
    "xor: the penalty is -1.0, expected a number of at least 0": lambda: constraints.xor([0], penalty=-1),
    "linear: 1 weights for 2 indicators": lambda: constraints.linear([0, 1], [1.0], upper=1),
    "linear: weight 1 is nan, expected a finite number": lambda: constraints.linear([0, 1], [1, math.nan], upper=1),
    "linear: weight 0 is 'a', expected a number": lambda: constraints.linear([0], ["a"], upper=1),
    "linear: the weights are 2, expected a list with one for each of 2 indicators": lambda: constraints.linear(
        [0, 1], 2, upper=1
    ),
    "linear: the upper limit is '3', expected a number": lambda: constraints.linear([0], [1.0], upper="3"),
    "linear: the lower limit is None, expected a number": lambda: constraints.linear([0], [1.0], lower=None),
    "linear: the lower limit, 3, is above the upper one, 1": lambda: constraints.linear([0], [1], lower=3, upper=1),
    "at_most_k: k is None, expected a whole number of at least 0": lambda: constraints.at_most_k([0, 1], None),
    "at_most_k: k is [0, 1], expected a whole number of at least 0": lambda: constraints.at_most_k(2, [0, 1]),
    "xor: the penalty is '1', expected a number": lambda: constraints.xor([0], penalty="1"),
    "label_cost: the price is '1', expected a number": lambda: constraints.label_cost(0, "1"),
    "label_cost: found a pair, expected variables without states": lambda: constraints.label_cost(0, 1.0, [(0, 1)]),
    "constraint 0 (label_cost): the label is 1.5, expected an index or a name": lambda: constraints.label_cost(1.5, 1),
    "linear: found neither a lower nor an upper limit, expected one of them": lambda: constraints.linear([0], [1.0]),
    "at_most_k: k is 1.5, expected a whole number of at least 0": lambda: constraints.at_most_k([0, 1], 1.5),
    "exactly_k: k is -1, expected a whole number of at least 0": lambda: constraints.exactly_k([0, 1], -1),
    "or_with_output: no inputs, expected at least one": lambda: constraints.or_with_output([], 0),
    "all_different: found a pair, expected variables without states": lambda: constraints.all_different([(0, 1)]),
    "label_cost: the price is inf, expected a finite number of at least 0": lambda: constraints.label_cost(0, math.inf),
    "label_cost: the price is -1, expected a finite number of at least 0": lambda: constraints.label_cost(0, -1),
    "xor: the indicators are 3, expected a list of (variable, state) pairs": lambda: constraints.xor(3),
    "linear: the limits are nan and inf, expected numbers": lambda: constraints.linear([0], [1.0], lower=math.nan),
}
MISTAKES |= {
    f"{said} is too large, expected a number that a float can hold": state
    for said, state in {
        "at_most_one: the penalty": lambda: constraints.at_most_one([0, 1], penalty=10**400),
        "linear: weight 0": lambda: constraints.linear([0, 1], [10**400, 1], upper=1),
        "linear: the upper limit": lambda: constraints.linear([0, 1], [1, 1], upper=10**400),
        "at_most_k: k": lambda: constraints.at_most_k([0, 1], 10**400),
        "label_cost: the price": lambda: constraints.label_cost(1, 10**400),
    }.items()
}


def test_a_single_constraint_is_no_list_and_unknown_names_are_told() -> None:
    with pytest.raises(GraphError, match=r"the constraints are Constraint.*, expected a list of them"):
        FactorGraph.from_tables([2, 2], [], []).with_constraints(constraints.xor([0, 1]))
    graph = mapmrf.FactorGraph.from_tables([2], [], [])
    with pytest.raises(UnknownName, match=r"^constraint 0 \(xor\): no variable is named 'Rain'$"):
        graph.with_constraints([constraints.xor(["Rain"])])


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_told_in_one_line(text: str) -> None:
    graph = FactorGraph.from_tables([2, 2, 3], [], [])
    with pytest.raises(GraphError) as error:
        graph.with_constraints([MISTAKES[text]()])
    assert str(error.value) == text


def test_numbers_and_pairs_of_numpy_are_taken() -> None:
    graph = FactorGraph.from_tables([2, 3], [], [])
    pairs = np.array([[0, 1], [1, 2]])
    counted = graph.with_constraints([constraints.at_most_k(pairs, np.int64(1), penalty=np.float32(0.5))])
    assert counted.value([1, 2]) == -0.5
    weighed = graph.with_constraints([constraints.linear(pairs, np.array([2, 3]), upper=np.int64(4))])
    assert weighed.value([1, 2]) == -math.inf


# -- label costs of images --------------------------------------------------------------------------------------------


PRICES = [0.5, 2.0, 1.25]


@pytest.mark.parametrize("seed", range(3))
def test_both_forms_have_the_same_values_and_optimum(seed: int) -> None:
    random = np.random.default_rng(seed)
    unary = random.normal(size=(3, 3, 3))
    tables = images.grid_model(unary, weight=0.5, label_costs=PRICES)
    plain = images.grid_model(unary, weight=0.5)
    stated = plain.with_constraints([constraints.label_cost(k, price) for k, price in enumerate(PRICES)])
    for _ in range(50):
        labels = random.integers(0, 3, 9)
        used = np.bincount(labels, minlength=3) > 0
        assert tables.value(np.concatenate([labels, used])) == pytest.approx(stated.value(labels))
    found = mapmrf.solve(tables, "exhaustive")
    assert mapmrf.solve(stated, "exhaustive").value == pytest.approx(found.value)


# -- the command line -------------------------------------------------------------------------------------------------


LATIN = """latin 4 4 2 50
4 4 4 4
1 0 0 1
0 3
4 0 1 2 3 -1 salldiff var 50
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "latin.wcsp"
    path.write_text(LATIN)
    return path


def test_the_command_line_takes_a_file_with_a_global_function(model: Path) -> None:
    found = json.loads(command_line.done("solve", model, "--json"))
    assert found["value"] == 0.0
    assert sorted(found["labels"]) == [0, 1, 2, 3]
    assert found["status"] == "optimal"
    assert "constraints  1  (1 all_different)" in command_line.done("info", model)
    assert json.loads(command_line.done("info", model, "--json"))["constraints"] == {"all_different": 1}
    assert "1 constraints" in command_line.done("check", model)
    found = json.loads(command_line.done("solve", model, "--best", 3, "--json"))
    assert [each["value"] for each in found] == [0.0, 0.0, 0.0]


def test_convert_writes_tables_on_request(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "latin.uai"
    done = command_line.run("convert", model, target)
    assert done.exit_code == 2
    assert "the format has no constraints" in done.output
    command_line.done("convert", model, target, "--tables")
    graph = mapmrf.read(target)
    assert graph.constraints is None
    assert graph.n_factors == 6


# -- the examples of the how-to ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page() -> dict[str, object]:
    """The names that the page's code leaves behind."""
    names: dict[str, object] = {}
    for block in blocks(Path(DOCS, "how-to", "constraints.md"), "python"):
        exec(block.code, names)
    return names


def test_the_sudoku_is_solved(page: dict[str, object]) -> None:
    result = page["sudoku"].solve(evidence=page["given"])
    assert result.status is Status.OPTIMAL
    for groups in (page["square"], page["square"].T, page["boxes"]):
        for group in groups.tolist():
            assert sorted(result[name] for name in group) == list("123456789")
    assert all(result[name] == clue for name, clue in page["given"].items())
    assert len(mapmrf.solve_best(page["sudoku"], 2, evidence=page["given"])) == 1


def test_the_examples_of_the_page_are_optimal(page: dict[str, object]) -> None:
    tasks = mapmrf.solve(page["tasks"])
    gain = page["tasks"].theta_v.reshape(20, 20)
    assert tasks.status is Status.OPTIMAL and round(tasks.value, 6) == 31.342691
    assert tasks.value == pytest.approx(gain[linear_sum_assignment(gain, maximize=True)].sum())
    bag = page["bag"].graph()
    assert max(bag.value(labels) for labels in itertools.product(range(2), repeat=5)) == mapmrf.solve(bag).value == 13.5
    roster = page["roster"].solve()
    assert roster.status is Status.OPTIMAL and "".join("-DN"[k] for k in roster.labels) == "-DDD-DN-NNN-DN"
    assert page["result"].labels.sum() == 81
    assert page["result"].value > -math.inf


@pytest.mark.parametrize("seed", range(4))
def test_assignments_with_forbidden_pairs(seed: int) -> None:
    random = np.random.default_rng(seed)
    gain = random.normal(size=(6, 8))
    gain[random.random(gain.shape) < 0.5] = -np.inf
    graph = mapmrf.FactorGraph.from_tables([8] * 6, [(i,) for i in range(6)], list(gain))
    result = mapmrf.solve(graph.with_constraints([constraints.all_different(range(6))]))
    try:
        expected = gain[linear_sum_assignment(gain, maximize=True)].sum()
    except ValueError:
        expected = -math.inf
    assert result.value == pytest.approx(expected)
    assert result.status is (Status.OPTIMAL if expected > -math.inf else Status.INFEASIBLE)
