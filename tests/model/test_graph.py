"""FactorGraph: constructors, checks that name the culprit, values and evidence."""

import dataclasses
import itertools
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, GraphError, MapMRFError, Names, UnknownName
from refusals import refuses
from strategies import Recipe, any_recipes, naive_value, with_weights


@given(recipe=with_weights(any_recipes()), data=st.data())
def test_value_is_the_sum_over_all_factors(recipe: Recipe, data: st.DataObject) -> None:
    labels = tuple(data.draw(st.integers(0, r - 1)) for r in recipe.card)
    assert recipe.graph().value(labels) == pytest.approx(naive_value(recipe, labels))


@given(recipe=with_weights(any_recipes()))
def test_from_tables_folds_what_has_fewer_than_two_variables(recipe: Recipe) -> None:
    graph = recipe.graph()
    assert graph.n_factors == sum(len(scope) >= 2 for scope in recipe.scopes)
    weights = [1.0] * len(recipe.scopes) if recipe.weights is None else recipe.weights
    factors = [(scope, w * table) for scope, table, w in zip(recipe.scopes, recipe.tables, weights, strict=True)]
    assert graph.constant == pytest.approx(sum(table.item() for scope, table in factors if not scope))
    large = [(scope, table) for scope, table in factors if len(scope) >= 2]
    for a, (scope, table) in enumerate(large):
        assert tuple(graph.scope_of(a)) == scope
        assert np.array_equal(graph.table(a), table)


def test_a_table_is_stored_once_by_its_object_and_not_by_its_id() -> None:
    table = np.zeros((2, 2))
    graph = FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [table, table, np.zeros((2, 2))])
    assert graph.n_tables == 2
    assert graph.table_of.tolist() == [0, 0, 1]
    # A generator drops each table after use, so that the next may get the same id.
    graph = FactorGraph.from_tables([2, 2], [(0, 1)] * 50, (np.full((2, 2), float(a)) for a in range(50)))
    assert [graph.table(a)[0, 0] for a in range(50)] == list(range(50))


def test_a_table_in_two_shapes_is_stored_once_for_each(tmp_path: Path) -> None:
    flat = np.arange(6.0)
    card, scopes = [2, 3, 6, 1], [(0, 1), (1, 0), (2, 3), (0, 1), (2,)]
    graph = FactorGraph.from_tables(card, scopes, [flat] * 5)
    assert graph.n_tables == 3 and graph.table_of[0] == graph.table_of[3]
    arrays = graph.card, graph.scope_ptr, graph.scope, [0, 0, 0, 0], [0, 6], flat
    mapmrf.write(graph, tmp_path / "model.uai")
    for other in (FactorGraph.from_arrays(*arrays), mapmrf.read(tmp_path / "model.uai")):
        assert other.n_tables == 3
        for labels in itertools.product(*map(range, card)):
            unary = flat[labels[2]] if other.theta_v.any() else 0.0
            pairs = 2 * flat[3 * labels[0] + labels[1]] + flat[2 * labels[1] + labels[0]] + flat[labels[2]]
            assert other.value(labels) == pytest.approx(pairs + unary)


def test_no_graph_is_made_whose_table_has_two_shapes() -> None:
    graph = FactorGraph.from_tables([2, 3], [(0, 1), (1, 0)], [np.arange(6.0)] * 2)
    said = "table 0 has two shapes: 2 x 3 in factor 0, 3 x 2 in factor 1"
    shared = {"table_of": np.array([0, 0]), "table_ptr": np.array([0, 6]), "theta_t": np.arange(6.0)}
    refuses(GraphError, said, dataclasses.replace, graph, **shared)
    broken = pickle.loads(pickle.dumps(graph))
    vars(broken).update(shared)
    refuses(GraphError, said, pickle.loads, pickle.dumps(broken))


@given(seed=st.integers(0, 10**6))
def test_every_way_to_share_tables_keeps_the_model(seed: int) -> None:
    random = np.random.default_rng(seed)
    card = random.integers(1, 5, size=6).tolist()
    scopes = [tuple(random.permutation(6)[: random.integers(2, 4)].tolist()) for _ in range(9)]
    flat = {size: random.normal(size=size) for size in {math.prod(card[i] for i in scope) for scope in scopes}}
    tables = [flat[math.prod(card[i] for i in scope)] for scope in scopes]
    shared = FactorGraph.from_tables(card, scopes, tables)
    apart = FactorGraph.from_tables(card, scopes, [table.copy() for table in tables])
    assert apart.n_tables == 9 and shared.n_tables == len({(*(card[i] for i in scope),) for scope in scopes})
    for _ in range(10):
        labels = random.integers(0, card)
        assert shared.value(labels) == apart.value(labels)
    assert shared == apart == pickle.loads(pickle.dumps(shared)) and hash(shared) == hash(apart)
    weight = random.random(9) + 0.5
    heavy = FactorGraph.from_tables(card, scopes, tables, weight=weight)
    assert heavy == heavy.expanded() and heavy != shared and shared != "a graph"
    tables[3] = tables[3] + 1.0
    assert FactorGraph.from_tables(card, scopes, tables) != shared
    assert len({shared, apart, dataclasses.replace(shared, names=list("abcdef")), shared.condition({0: 0})}) == 3


def test_the_graph_is_read_only_and_independent_of_its_source() -> None:
    card, table = np.array([2, 2]), np.zeros((2, 2))
    graph = FactorGraph.from_tables(card, [(0, 1)], [table])
    table[:] = 7.0
    card[:] = 1
    assert graph.value([1, 1]) == 0.0
    with pytest.raises(ValueError, match="read-only"):
        graph.theta_t[0] = 1.0


def test_energies_are_negated_and_infinite_ones_forbid() -> None:
    energy = np.array([[1.0, np.inf], [0.0, 2.0]])
    graph = FactorGraph.from_energies([2, 2, 2], [(0, 1), (1, 2)], [energy, energy])
    assert graph.value([0, 0, 0]) == -2.0
    assert graph.value([0, 1, 1]) == -np.inf
    assert graph.n_tables == 1


def test_pairwise_models_with_a_table_each_a_shared_one_or_no_edges() -> None:
    unary, edges = [[0.0, 1.0], [2.0, 0.0], [0.0, 0.0]], [[0, 1], [1, 2]]
    tables = np.arange(8.0).reshape(2, 2, 2)
    each = FactorGraph.from_pairwise(unary, edges, tables)
    shared = FactorGraph.from_pairwise(unary, edges, tables[1])
    assert (each.n_tables, shared.n_tables) == (2, 1)
    assert each.value([1, 0, 1]) == 1 + 2 + tables[0, 1, 0] + tables[1, 0, 1]
    assert shared.value([1, 0, 1]) == 1 + 2 + tables[1, 1, 0] + tables[1, 0, 1]
    graph = FactorGraph.from_pairwise([[0.0, 1.0]], [], np.zeros((2, 2)))
    assert (graph.n_factors, graph.value([1])) == (0, 1.0)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("hard", [False, True])
def test_from_pairwise_gives_the_arrays_that_from_tables_gives(shared: bool, weighted: bool, hard: bool) -> None:
    random = np.random.default_rng(0)
    unary, edges = random.normal(size=(4, 3)), [(0, 1), (3, 2), (1, 3)]
    tables = [random.normal(size=(3, 3))] * 3 if shared else list(random.normal(size=(3, 3, 3)))
    tables[0][0, 1] = -np.inf if hard else 0.0
    weight = random.random(3) + 0.5 if weighted else None
    quick = FactorGraph.from_pairwise(unary, edges, tables[0] if shared else np.array(tables), weight=weight)
    every = None if weight is None else np.concatenate([np.ones(4), weight])
    slow = FactorGraph.from_tables([3] * 4, [(0,), (1,), (2,), (3,), *edges], [*unary, *tables], weight=every)
    for name in ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t", "weight"):
        one, other = getattr(quick, name), getattr(slow, name)
        assert (one is None) == (other is None), name
        assert one is None or (one.dtype == other.dtype and one.tolist() == other.tolist()), name


# -- checks -----------------------------------------------------------------------------------------------------------

PAIR = np.zeros((2, 2))
BAD_MODELS: list[tuple[Any, Any, Any, str]] = [
    ([2, 3], [(0,), (0, 1)], [np.zeros(2), np.zeros(4)], r"factor 1 \(variables 0, 1\).*4 entries.*6 = 2 x 3"),
    ([2, 2], [(0, 1), (0, 2)], [PAIR, PAIR], "factor 1: variable 2 does not exist, expected 0 to 1"),
    ([2, 2], [(-1, 0)], [PAIR], "factor 0: variable -1 does not exist"),
    ([2, 2], [(0, 1), (1, 1)], [PAIR, PAIR], "factor 1: variable 1 occurs twice"),
    ([2, 2], [(0, 1)], [[0, 0, np.nan, 0]], "factor 0: entry 2 is nan"),
    ([2, 2], [(0,), (0, 1)], [[0, 0], [0, np.inf, 0, 0]], "factor 1: entry 1 is inf"),
    ([2, 2], [(0, 1)], [["a", "b", "c", "d"]], "factor 0: the table is not an array of numbers"),
    ([2, 2], [(0, 1)], [[[0.0], [0.0, 1.0]]], "factor 0: the table is not an array of numbers"),
    ([2, 0], [], [], "variable 1 has 0 states"),
    ([2, 1.5], [], [], "card must be whole numbers"),
    (2, [], [], r"card has shape \(\)"),
    ([[2, 2]], [], [], r"card has shape \(1, 2\)"),
    ([2], [(0,)], [[0, 0], [0, 0]], "1 scopes but 2 tables"),
    ([2**16] * 4, [(0, 1, 2, 3)], [[0.0]], "1 entries, expected 18446744073709551616"),
    ([2**40, 2], [(1,)], [[0, 1]], "variable 0 has 1099511627776 states"),
    ([2**70, 2], [(1,)], [[0, 1]], "card must be whole numbers below 2^63"),
    (np.array([2**63, 2], dtype=np.uint64), [(1,)], [[0, 1]], "card must be whole numbers below 2^63"),
    ([1e30, 2], [(1,)], [[0, 1]], "card must be whole numbers"),
    ([2], [(10**30,)], [[0, 1]], "scopes must be whole numbers below 2^63"),
    ([2], [(0,)], [[0, 10**400]], "factor 0: the table is not an array of numbers (int too large"),
    ([1] * 70 + [2], [range(71)], [[0, 1]], "factor 0 has 71 variables, expected at most"),
]


@pytest.mark.parametrize(("card", "scopes", "tables", "message"), BAD_MODELS)
def test_a_bad_model_is_refused_and_the_culprit_named(card: Any, scopes: Any, tables: Any, message: str) -> None:
    refuses(GraphError, message, FactorGraph.from_tables, card, scopes, tables)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"table_of": [1]}, "factor 0: table 1 does not exist, expected 0 to 0"),
        ({"table_of": [0, 0]}, "scope_ptr must be the 3 offsets of 2 blocks, from 0 to 2"),
        ({"scope_ptr": [0, 1]}, "scope_ptr must be"),
        ({"scope_ptr": [1, 2]}, "scope_ptr must be"),
        ({"table_ptr": [0, 3]}, "table_ptr must be"),
    ],
)
def test_flat_arrays_that_do_not_fit_together_are_refused(change: dict[str, list[int]], message: str) -> None:
    arrays = {"card": [2, 2], "scope_ptr": [0, 2], "scope": [0, 1], "table_of": [0], "table_ptr": [0, 4]}
    ints = {key: np.array(value) for key, value in (arrays | change).items()}
    refuses(GraphError, message, FactorGraph.from_arrays, **ints, theta_t=np.zeros(4))


@pytest.mark.parametrize(
    ("build", "arguments", "message"),
    [
        (FactorGraph.from_pairwise, ([[0, 0]], [[0, 0, 0]], PAIR), r"edges has shape \(1, 3\)"),
        (FactorGraph.from_pairwise, ([[0, 0]], [], np.zeros((2, 3))), "expected (2, 2) or (0, 2, 2)"),
        (FactorGraph.from_pairwise, ([[[0, 0]]], [], PAIR), r"unary has shape \(1, 1, 2\)"),
        (FactorGraph.from_pairwise, ([[0, 0], [0]], [], PAIR), "unary is not an array of numbers"),
        (Recipe([2, 2]).graph().value, ([0],), "1 labels, expected one for each of the 2 variables"),
        (Recipe([2, 2]).graph().value, ([0, 2],), "label of variable 1 is 2, expected 0 to 1"),
        (Recipe([2, 2]).graph().value, ([-1, 0],), "label of variable 0 is -1"),
        (Recipe([2, 2]).graph().value, ([0.5, 0],), "labels must be whole numbers"),
        (Recipe([2, 2]).graph().value, (["a", "b"],), "labels must be whole numbers"),
    ],
)
def test_bad_arrays_and_labels_are_refused(build: Any, arguments: tuple[Any, ...], message: str) -> None:
    refuses(GraphError, message, build, *arguments)


def test_every_error_of_a_user_belongs_to_one_family() -> None:
    names = ("GraphError", "FormatError", "OptionError", "UnsupportedModel", "UnknownName")
    assert all(issubclass(getattr(mapmrf, name), MapMRFError) for name in names)
    assert issubclass(GraphError, ValueError) and issubclass(UnknownName, LookupError)


# -- evidence and names -----------------------------------------------------------------------------------------------


@given(recipe=with_weights(any_recipes(max_vars=5)), data=st.data())
def test_evidence_keeps_the_value_of_labellings_that_agree_and_forbids_the_others(recipe, data) -> None:
    graph = recipe.graph()
    observed = {i: data.draw(st.integers(0, r - 1)) for i, r in enumerate(recipe.card) if data.draw(st.booleans())}
    conditioned = graph.condition(observed)
    for labels in itertools.product(*(range(r) for r in recipe.card)):
        agrees = all(labels[i] == k for i, k in observed.items())
        expected = graph.value(labels) if agrees else -np.inf
        assert conditioned.value(labels) == pytest.approx(expected)
    assert all(not set(conditioned.scope_of(a)) & set(observed) for a in range(conditioned.n_factors))


def test_evidence_is_given_by_name_and_keeps_shared_tables_shared() -> None:
    edges = [[i, i + 1] for i in range(9)]
    graph = FactorGraph.from_pairwise(np.zeros((10, 2)), edges, [[1.0, 0.0], [0.0, 1.0]])
    assert graph.condition({4: 1}).n_tables == 1
    graph = named()
    assert graph.condition({"grass": "dry"}).value([0, 0]) == 3.0
    assert graph.condition({"grass": 0}).value([0, 1]) == -np.inf
    assert graph.condition({"rain": "yes"}).names == graph.names


def named() -> FactorGraph:
    names = Names(("rain", "grass"), (("no", "yes"), ("dry", "wet")))
    return FactorGraph.from_tables([2, 2], [(0, 1)], [[[3.0, 0.0], [0.0, 5.0]]], names=names)


def test_wrong_evidence_and_names_that_do_not_fit_are_refused() -> None:
    refuses(UnknownName, "no variable is named 'snow'", named().condition, {"snow": 0})
    refuses(UnknownName, "variable 'rain' has no state named 'maybe'", named().condition, {"rain": "maybe"})
    refuses(GraphError, "variable 2 does not exist, expected 0 to 1", named().condition, {2: 0})
    refuses(GraphError, "variable 'rain' has no state 2, expected 0 to 1", named().condition, {0: 2})
    for states, message in (
        (None, "1 variable names for 2 variables"),
        ((("x", "y"), ("z",)), "variable 'b': 1 state names for 2 states"),
        ((("x", "y"),), "state names of 1 variables for 2 variables"),
    ):
        names = Names(("a",) if states is None else ("a", "b"), states)
        refuses(GraphError, message, FactorGraph.from_tables, [2, 2], [], [], names=names)


def test_weights_must_be_finite_numbers_that_tables_can_bear() -> None:
    def build(weight: object, table: object = ((1.0, 0.0), (0.0, 1.0))) -> FactorGraph:
        return FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], table, weight=weight)

    refuses(GraphError, "factor 0: the weight is nan, expected a finite number", build, [np.nan])
    refuses(GraphError, "weight has shape (2,), expected (1,)", build, [1.0, 2.0])
    said = "the weight is 0.0, expected a positive number: its table holds -inf"
    refuses(GraphError, said, build, [0.0], ((0.0, -np.inf), (0.0, 0.0)))
    refuses(GraphError, "too large for a float", build, [1e200], ((1e200, 0.0), (0.0, 0.0)))
    assert build([-2.0]).value([1, 1]) == -1.0


@pytest.mark.parametrize("large", [1e308, -1e308, 4e299])
def test_potentials_that_cannot_be_added_up_are_refused(large: float) -> None:
    graph = FactorGraph.from_pairwise([[large, 0], [large, 0]], [[0, 1]], [[large, 0], [0, 0]])
    for method in ("auto", "trws", "lslp"):
        refuses(mapmrf.GraphError, r"add up to .*, expected at most 1e", mapmrf.solve, graph, method)


def test_infinite_constants_and_large_potentials_are_no_overflow() -> None:
    graph = FactorGraph.from_tables([2], [(), (0,)], [-np.inf, [0.0, 1.0]])
    assert mapmrf.solve(graph, "trws").status is mapmrf.Status.INFEASIBLE
    graph = FactorGraph.from_pairwise([[1e299, 0], [0, 1e299]], [[0, 1]], [[0, 0], [0, 1e299]])
    result = mapmrf.solve(graph)
    assert result.labels.tolist() == [0, 1]
    assert result.value == result.bound == 2e299
