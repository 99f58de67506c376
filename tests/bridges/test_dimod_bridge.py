"""dimod: quadratic models and polynomials in and out, and the sampler, against dimod's own exact solvers."""

from __future__ import annotations

import itertools
import subprocess
import sys
import unittest
from typing import Any

import dimod
import dimod.testing
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

import mapmrf
from mapmrf import FactorGraph, GraphError, OptionError, UnsupportedModel
from mapmrf.bridges import (
    MapMRFSampler,
    from_bqm,
    from_cqm,
    from_dimod,
    from_dqm,
    from_polynomial,
    from_qubo,
    to_bqm,
    to_dqm,
)  # fmt: skip
from refusals import refuses

SEEDS = st.integers(0, 2**32 - 1)
VARTYPES = st.sampled_from(["BINARY", "SPIN"])
LABELS: list[Any] = ["a", 1, ("b", 2), "1", 7.5, "c", -3]


def random_bqm(seed: int, vartype: str) -> Any:
    """A model with labels of many types, among them 1 and "1"."""
    random = np.random.default_rng(seed)
    labels = LABELS[: random.integers(1, len(LABELS) + 1)]
    linear = {label: random.normal() for label in labels}
    pairs = [pair for pair in itertools.combinations(labels, 2) if random.random() < 0.6]
    return dimod.BinaryQuadraticModel(linear, {pair: random.normal() for pair in pairs}, random.normal(), vartype)


def random_dqm(seed: int) -> Any:
    random = np.random.default_rng(seed)
    dqm = dimod.DiscreteQuadraticModel()
    for label in LABELS[: random.integers(1, 5)]:
        cases = int(random.integers(1, 4))
        dqm.add_variable(cases, label=label)
        dqm.set_linear(label, random.normal(size=cases))
    for u, v in itertools.combinations(dqm.variables, 2):
        if random.random() < 0.7:
            dqm.set_quadratic(v, u, random.normal(size=(dqm.num_cases(v), dqm.num_cases(u))))
    dqm.offset = random.normal()
    return dqm


def labellings(graph: FactorGraph) -> Any:
    return itertools.product(*(range(k) for k in graph.card.tolist()))


# -- models in --------------------------------------------------------------------------------------------------------


def sampled(model: Any, labels: tuple[int, ...]) -> dict[Any, int]:
    """What dimod calls a labelling."""
    variables = "abcde" if isinstance(model, dimod.BinaryPolynomial) else model.variables
    values = sorted(model.vartype.value) if hasattr(model, "vartype") else range(9)
    return {variable: values[k] for variable, k in zip(variables, labels, strict=False)}


KINDS: dict[str, tuple[Any, Any]] = {
    "binary": (random_bqm, from_bqm),
    "discrete": (lambda seed, vartype: random_dqm(seed), from_dqm),
    "polynomial": (lambda seed, vartype: random_polynomial(seed, vartype), from_polynomial),
}


@pytest.mark.parametrize("kind", KINDS)
@given(seed=SEEDS, vartype=VARTYPES)
def test_values_are_minus_the_energies_of_all_samples(kind: str, seed: int, vartype: str) -> None:
    make, read = KINDS[kind]
    model = make(seed, vartype)
    graph = read(model)
    for labels in labellings(graph):
        assert graph.value(labels) == pytest.approx(-model.energy(sampled(model, labels)), abs=1e-12)


def test_labels_and_values_become_names() -> None:
    graph = from_bqm(dimod.BinaryQuadraticModel({"a": 1, ("b", 2): 0, 3: 0}, {}, "SPIN"))
    assert graph.names == mapmrf.Names(("a", "('b', 2)", "3"), (("-1", "1"),) * 3)
    graph = from_bqm(dimod.BinaryQuadraticModel({1: 1, "1": 0}, {}, "BINARY"))
    assert graph.names == mapmrf.Names(("1", "'1'"), (("0", "1"),) * 2)


def random_polynomial(seed: int, vartype: str) -> Any:
    """All of a to e occur, in terms of 0 to 4 variables."""
    random = np.random.default_rng(seed)
    terms: dict[tuple[str, ...], float] = {(v,): random.normal() for v in "abcde"}
    terms[()] = random.normal()
    for _ in range(4):
        terms[tuple(random.permutation(list("abcde"))[: random.integers(2, 5)])] = random.normal()
    return dimod.BinaryPolynomial(terms, vartype)


def random_cqm(seed: int) -> Any:
    """A few variables of all kinds, hard and soft constraints, linear and quadratic, with and without whole numbers."""
    random = np.random.default_rng(seed)
    low = int(random.integers(-1, 3))
    made = [dimod.Binary, dimod.Spin, lambda name: dimod.Integer(name, lower_bound=low, upper_bound=3)]
    variables = [made[random.integers(3)](name) for name in "abcd"[: random.integers(1, 5)]]

    def terms(whole: bool, quadratic: bool) -> Any:
        found = dimod.QuadraticModel()
        found.offset = int(random.integers(-3, 4))
        for scope in [[v] for v in variables] + list(itertools.combinations_with_replacement(variables, 2)):
            if len(scope) == 1 or (quadratic and random.random() < 0.4):
                factor = int(random.integers(-3, 4)) if whole else random.normal()
                found.update(factor * (scope[0] * scope[-1] if len(scope) == 2 else scope[0]))
        return found

    cqm = dimod.ConstrainedQuadraticModel()
    cqm.set_objective(terms(False, True))
    for c in range(random.integers(4)):
        whole, quadratic, soft = random.random(3) < [0.8, 0.4, 0.4]
        lhs, sense = terms(bool(whole), bool(quadratic)), ["<=", ">=", "=="][random.integers(3)]
        binary = all(lhs.vartype(v) is dimod.BINARY for v in lhs.variables)
        how = {"weight": 1.5, "penalty": "quadratic" if binary and c % 2 else "linear"} if soft else {}
        cqm.add_constraint(lhs, sense, int(random.integers(-4, 5)), label=f"c{c}", **how)
    return cqm


@pytest.mark.parametrize("most", [1 << 16, 1], ids=["tables", "constraints"])
@given(seed=SEEDS)
def test_every_constraint_of_a_model_is_honoured(seed: int, most: int) -> None:
    cqm = random_cqm(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mapmrf.bridges.dimod.MOST_ENTRIES", most)
        try:
            graph = from_cqm(cqm)
        except UnsupportedModel as error:
            assert most == 1 and "is soft" in str(error)
            return
    exact = dimod.ExactCQMSolver().sample_cqm(cqm)
    feasible = {tuple(row.sample[v] for v in cqm.variables): row.energy for row in exact.data() if row.is_feasible}
    names, n = graph.names, len(cqm.variables)
    found = {}
    for labels in itertools.islice(labellings(graph), 30_000):
        if (value := graph.value(labels)) > -np.inf:
            found[tuple(int(names.states[i][k]) for i, k in enumerate(labels[:n]))] = -value
    if np.prod(graph.card, dtype=float) <= 30_000:
        assert found == pytest.approx(feasible, abs=1e-6)
    if seed % 8 == 0:
        best = MapMRFSampler().sample_cqm(cqm)
        assert best.info["status"] == ("optimal" if feasible else "infeasible")
        assert not feasible or best.first.energy == pytest.approx(min(feasible.values()), abs=1e-6)


def test_what_cannot_be_honoured_is_refused_and_names_stay() -> None:
    i, r = dimod.Integer("i"), dimod.Real("r")
    for variable, said in ((i, "variable 'i' is an integer from 0 to 9007199254740991"), (r, "variable 'r' is real")):
        cqm = dimod.ConstrainedQuadraticModel()
        cqm.set_objective(variable)
        refuses(UnsupportedModel, said, from_cqm, cqm)
    refuses(UnsupportedModel, "found a str, expected a model of dimod", from_dimod, "bqm")
    cqm = dimod.ConstrainedQuadraticModel()
    cqm.add_constraint(sum(dimod.Binaries([f"x{k}" for k in range(30)])) >= 31, label="too many")
    result = mapmrf.Model.from_dimod(cqm).solve()
    assert result.status == "infeasible" and result.violated[0].name == "too many"
    assert "constraint 'too many' (x0=" in str(result.violated[0])


@given(seed=SEEDS, offset=st.sampled_from([0.0, 1.5]))
def test_a_qubo_is_the_same_as_a_dict_an_array_and_a_sparse_array(seed: int, offset: float) -> None:
    random = np.random.default_rng(seed)
    square = random.normal(size=(4, 4)) * (random.random((4, 4)) < 0.6)
    terms = {(i, j): square[i, j] for i, j in itertools.product(range(4), repeat=2)}
    bqm = dimod.BinaryQuadraticModel.from_qubo(terms, offset)
    for given_as in (terms, square, sparse.coo_array(square), sparse.csr_matrix(square)):
        model = mapmrf.Model.from_qubo(given_as, offset=offset)
        for labels in labellings(model.graph()):
            assert model.value(labels) == pytest.approx(-bqm.energy(dict(enumerate(labels))), abs=1e-12)
    for wrong, said in (
        ({"ab": 1.0}, "'ab' is no pair of labels"),
        (square[:2], "the coefficients have shape (2, 4), expected (n, n)"),
        ({("a", "b"): np.inf}, "coefficient 'a', 'b' is inf, expected a finite number"),
    ):
        refuses(GraphError, said, from_qubo, wrong)


# -- models out -------------------------------------------------------------------------------------------------------


@given(SEEDS, VARTYPES)
def test_a_round_trip_brings_the_coefficients_back(seed: int, vartype: str) -> None:
    bqm = random_bqm(seed, vartype)
    again = to_bqm(from_bqm(bqm), vartype)
    again.relabel_variables(dict(zip(again.variables, bqm.variables, strict=True)))
    assert again.is_almost_equal(bqm, places=10)
    if vartype == "SPIN":
        assert again.quadratic == bqm.quadratic  # to the last digit


@pytest.mark.parametrize(
    ("card", "scopes", "tables", "said"),
    [
        ([2, 3], [], [], "variable 1 has 3 states, expected 2 of every variable"),
        ([2] * 3, [(0, 1, 2)], [np.zeros(8)], "factor 0 has 3 variables, expected at most 2"),
        ([2], [(0,)], [[0, -np.inf]], "state 1 of variable 0 is forbidden"),
        ([2, 2], [(0, 1)], [[0, 0, 0, -np.inf]], "factor 0 forbids a configuration"),
    ],
)
def test_what_no_quadratic_model_can_hold_is_named(card: Any, scopes: Any, tables: Any, said: str) -> None:
    graph = FactorGraph.from_tables(card, scopes, tables)
    refuses(UnsupportedModel, said, to_bqm, graph)
    if card != [2, 3]:
        with pytest.raises(UnsupportedModel):
            to_dqm(graph)


def test_names_become_labels_and_what_dimod_cannot_hold_is_refused() -> None:
    graph = FactorGraph.from_tables([2, 2], [], [], names=mapmrf.Names(("x", "y")))
    assert list(to_bqm(graph).variables) == ["x", "y"]
    with pytest.raises(GraphError, match="two variables are both named 'x'"):
        to_bqm(FactorGraph.from_tables([2, 2], [], [], names=mapmrf.Names(("x", "x"))))
    refuses(OptionError, "vartype='TERNARY'", to_bqm, graph, "TERNARY")
    with pytest.raises(UnsupportedModel, match="a term has 21 variables, expected at most 20"):
        from_polynomial(dimod.BinaryPolynomial({tuple(range(21)): 1.0}, "BINARY"))


# -- the sampler ------------------------------------------------------------------------------------------------------


def test_dimod_accepts_the_sampler() -> None:
    dimod.testing.assert_sampler_api(MapMRFSampler())
    assert isinstance(MapMRFSampler(), dimod.PolySampler)
    assert MapMRFSampler("branch").properties["exact"]


@given(SEEDS, VARTYPES)
def test_samples_are_optimal_and_have_the_right_energies(seed: int, vartype: str) -> None:
    bqm = random_bqm(seed, vartype)
    found = MapMRFSampler("branch").sample(bqm)
    dimod.testing.assert_response_energies(found, bqm)
    assert found.vartype is bqm.vartype
    assert found.first.energy == pytest.approx(dimod.ExactSolver().sample(bqm).first.energy, abs=1e-9)
    assert found.info["bound"] <= found.first.energy + 1e-9
    assert found.info["status"] == "optimal"
    assert found.info["gap"] <= 1e-6


@dimod.testing.load_sampler_bqm_tests(MapMRFSampler)
class TestDimodsOwnChecks(unittest.TestCase):
    """dimod adds a test for every kind of model that a sampler has to take."""


@given(SEEDS, VARTYPES)
def test_discrete_models_and_polynomials_are_solved(seed: int, vartype: str) -> None:
    dqm, polynomial = random_dqm(seed), random_polynomial(seed, vartype)
    found = MapMRFSampler("branch").sample_dqm(dqm)
    dimod.testing.assert_sampleset_energies_dqm(found, dqm)
    assert found.first.energy == pytest.approx(dimod.ExactDQMSolver().sample_dqm(dqm).first.energy, abs=1e-9)
    found = MapMRFSampler("branch").sample_poly(polynomial)
    dimod.testing.assert_response_energies(found, polynomial)
    assert found.first.energy == pytest.approx(dimod.ExactPolySolver().sample_poly(polynomial).first.energy, abs=1e-9)


def test_higher_order_models_and_empty_ones_are_sampled() -> None:
    assert MapMRFSampler().sample_hising({"a": 1}, {("a", "b", "c"): -2}).first.energy == -3
    assert MapMRFSampler().sample_hubo({("a", "b", "c"): -2, ("a",): 1}).first.energy == -1
    found = MapMRFSampler().sample(dimod.BinaryQuadraticModel({}, {}, 1.5, "SPIN"))
    assert found.first.energy == 1.5
    assert found.first.sample == {}


def test_reads_have_seeds_of_their_own_and_the_best_bound_counts() -> None:
    bqm = dimod.generators.ran_r(1, 120, seed=3)
    found = MapMRFSampler(mapmrf.ICM(starts=3)).sample(bqm, num_reads=4, seed=5)
    assert len(found) == 4
    assert found.info["seeds"] == [5, 6, 7, 8]
    assert found.info["bound"] is None
    assert found.info["gap"] is None
    assert len({tuple(row) for row in found.record.sample.tolist()}) > 1
    again = MapMRFSampler(mapmrf.ICM(starts=3)).sample(bqm, num_reads=4, seed=5)
    assert again.record.sample.tolist() == found.record.sample.tolist()
    proven = MapMRFSampler("branch").sample(dimod.generators.ran_r(1, 12, seed=3), num_reads=2)
    assert proven.info["bound"] == pytest.approx(proven.first.energy)


def test_an_initial_state_is_where_the_search_begins() -> None:
    bqm = dimod.BinaryQuadraticModel({}, {"ab": -1, "bc": -1}, "SPIN")
    start = {"c": 1, "a": 1, "b": 1}
    found = MapMRFSampler("icm").sample(bqm, initial_state=start)
    assert found.first.sample == start
    with pytest.raises(GraphError, match="initial_state has no value for variable 'b'"):
        MapMRFSampler().sample(bqm, initial_state={"a": 1, "c": 1})
    with pytest.raises(GraphError, match="initial_state of 'b' is 0, expected -1 or 1"):
        MapMRFSampler().sample(bqm, initial_state={"a": 1, "b": 0, "c": 1})


def test_unknown_parameters_warn_as_dimod_demands_and_none_is_not_set() -> None:
    bqm = dimod.BinaryQuadraticModel({"a": 1}, {}, "SPIN")
    with pytest.warns(dimod.exceptions.SamplerUnknownArgWarning, match="beta_range"):
        MapMRFSampler().sample(bqm, beta_range=[0, 1])
    assert MapMRFSampler().sample(bqm, num_reads=None, time_limit=None, seed=None).first.energy == -1
    refuses(OptionError, "num_reads is 0, expected at least 1", MapMRFSampler().sample, bqm, num_reads=0)


def test_without_dimod_one_line_says_what_to_install() -> None:
    code = "import sys; sys.modules['dimod'] = None\nfrom mapmrf.bridges import MapMRFSampler"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    how = "pip install 'mapmrf[dimod]' ('.[dimod]' in a checkout)"
    assert done.stderr.splitlines()[-1] == f"ImportError: this needs dimod: {how}"
