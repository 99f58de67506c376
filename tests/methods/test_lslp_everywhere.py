"""LS-LP arrives on every structure: small models of the structures of `benches/models.toml`."""

from __future__ import annotations

import functools
import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

import mapmrf
from mapmrf import LSLP, FactorGraph, Result, Status, constraints
from mapmrf.engines.admm.penalty import interaction_scale, vertex_penalty
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start


def factors(n: int, degree: float, arity: int, states: int, seed: int = 0) -> FactorGraph:
    """Different random scopes with normal potentials."""
    random = np.random.default_rng(seed)
    every = np.array(list(combinations(range(n), arity)))
    scopes = every[random.choice(len(every), round(n * degree / arity), replace=False)]
    unary = [(i,) for i in range(n)]
    tables = [random.normal(size=states) for _ in unary] + [random.normal(size=(states,) * arity) for _ in scopes]
    return FactorGraph.from_tables([states] * n, unary + [tuple(scope.tolist()) for scope in scopes], tables)


def distances(n: int = 14, states: int = 6, seed: int = 0) -> FactorGraph:
    """Hard and soft distances of states, with prices: constraints with soft costs."""
    random = np.random.default_rng(seed)
    pairs = random.permutation(np.array(list(combinations(range(n), 2))))[: 3 * n // 2]
    apart = np.abs(np.arange(states)[:, None] - np.arange(states))
    tables = [np.where(apart < 1, -np.inf, np.where(apart < random.integers(2, 4), -10.0, 0.0)) for _ in pairs]
    return FactorGraph.from_pairwise(-random.integers(0, 9, (n, states)).astype(float), pairs, np.array(tables))


def layers(seed: int = 0) -> FactorGraph:
    """Two layers and all pairs between them, as in dynamic networks."""
    random = np.random.default_rng(seed)
    pairs = np.array([(i, j) for i in range(10) for j in range(10, 28)])
    return FactorGraph.from_pairwise(random.normal(size=(28, 2)), pairs, random.normal(size=(len(pairs), 2, 2)))


def bayesian_grid(side: int = 6, seed: int = 0) -> FactorGraph:
    """Nodes that depend on the upper and the left one, half of them deterministically; the last one is observed."""
    random = np.random.default_rng(seed)
    scopes, tables = [], []
    for i in range(side * side):
        parents = [i - side] * (i >= side) + [i - 1] * (i % side > 0)
        chance = random.dirichlet([1, 1], 2 ** len(parents))
        if parents and random.random() < 0.5:
            chance = np.eye(2)[random.integers(0, 2, len(chance))]
        scopes.append((*parents, i))
        with np.errstate(divide="ignore"):
            tables.append(np.log(chance).reshape((2,) * (len(parents) + 1)))
    return FactorGraph.from_tables([2] * side**2, scopes, tables)


def counted(seed: int = 0) -> FactorGraph:
    """Dense pairs with constraints beside them."""
    graph = factors(20, 12, 2, 2, seed)
    return graph.with_constraints([constraints.exactly_k(range(20), 7), constraints.at_most_one(range(4))])


FAMILIES = {
    "pairs, 2 states, degree 20": factors(60, 20, 2, 2),
    "all pairs": factors(40, 39, 2, 2),
    "pairs, 5 states, degree 10": factors(40, 10, 2, 5),
    "pairs, 5 states, degree 30": factors(40, 30, 2, 5),
    "triples, degree 6": factors(60, 6, 3, 2),
    "triples, degree 20": factors(40, 20, 3, 2),
    "quadruples, degree 12": factors(30, 12, 4, 2),
    "two layers": layers(),
    "soft constraints": distances(),
    "Bayesian grid": bayesian_grid(),
    "counts": counted(),
}
every_family = pytest.mark.parametrize("family", FAMILIES)


@functools.cache
def solved(family: str) -> Result:
    return mapmrf.solve(FAMILIES[family], "lslp")


@every_family
def test_it_arrives_at_the_labelling_that_it_returns(family: str) -> None:
    graph, result = FAMILIES[family], solved(family)
    assert result.kind is Kind.VALID
    assert result.status in (Status.CONVERGED, Status.WITHIN_TOLERANCE, Status.OPTIMAL)
    assert result.iterations < LSLP().max_iterations
    at = graph.var_ptr[:-1] + result.labels
    assert result.mu_v is not None
    np.testing.assert_allclose(result.mu_v[at], 1.0, atol=1e-4)
    assert result.relaxed_value == pytest.approx(result.value, abs=1e-6)


@every_family
@pytest.mark.parametrize("other", ["icm", "trws", "ad3", "bp"])
def test_it_is_not_behind_simpler_methods(family: str, other: str) -> None:
    reference = mapmrf.solve(FAMILIES[family], other).value
    slack = 0.01 * abs(reference) if other == "bp" and reference > -math.inf else 1e-9
    assert solved(family).value >= reference - slack


def test_without_climbing_dense_graphs_stay_at_the_centre() -> None:
    graph = FAMILIES["all pairs"]
    result = mapmrf.solve(graph, LSLP(beliefs=0, climb=False, starts=2, max_iterations=2500))
    assert result.kind is not Kind.VALID
    assert result.details["sphere"] == pytest.approx(math.sqrt(graph.card.sum()) / 2, rel=0.1)


def test_the_copy_on_the_sphere_flips_on_dense_graphs_only() -> None:
    """The mechanism that docs/methods/lslp.md describes: the directions of successive copies."""
    for degree, least, most in ((3, 0.9, 1.0), (39, -1.0, -0.9)):
        method = LSLP(lp_phase=False, beliefs=0, climb=False, starts=1)
        problem = Problem.compile(factors(40, degree, 2, 2))
        engine = method.start(problem, 0, Start()).the_engine
        copies = []
        for _ in range(100):
            copies.append(engine.mu + engine.lam_v / engine.rho)
            engine.run(1)
        first, second = (copy / np.linalg.norm(copy) for copy in copies[-2:])
        assert least <= first @ second <= most + 1e-12


def test_every_labelling_is_stable_at_the_penalty_of_its_vertex() -> None:
    for name, graph in FAMILIES.items():
        if name in ("soft constraints", "Bayesian grid", "counts"):  # a random labelling is not feasible
            continue
        labels = np.random.default_rng(1).integers(0, graph.card)
        rho = vertex_penalty(Problem.compile(graph))
        method = LSLP(
            lp_phase=False, beliefs=0, climb=False, starts=1, warm_rho=1.0, sphere_block=1, eta=1.0,
            rho=rho, rho_unit="absolute", rho_upper=rho, max_iterations=200,
        )  # fmt: skip
        result = mapmrf.solve(graph, method, initial=labels)
        assert (result.status, result.kind) == (Status.CONVERGED, Kind.VALID)
        assert result.mu_v is not None
        assert np.all(result.mu_v[graph.var_ptr[:-1] + labels] > 0.99)


def test_the_penalty_of_a_vertex_counts_ranges() -> None:
    graph = FactorGraph.from_tables([2, 2], [(0,), (0, 1)], [[0.0, 3.0], [[1.0, -np.inf], [0.0, 5.0]]])
    assert vertex_penalty(Problem.compile(graph)) == 2 * (3 + 5)
    dense, sparse = Problem.compile(factors(40, 39, 2, 2)), Problem.compile(factors(40, 3, 2, 2))
    assert vertex_penalty(dense) / interaction_scale(dense) > LSLP().rho_upper
    assert vertex_penalty(sparse) / interaction_scale(sparse) < LSLP().rho_upper


@pytest.mark.parametrize("option", [{"beliefs": 0}, {"climb": False}, {"lp_phase": False}, {"starts": 1}])
def test_each_part_can_be_left_out(option: dict[str, int]) -> None:
    result = mapmrf.solve(FAMILIES["triples, degree 6"], LSLP(**option))
    phases = {point.phase for point in result.trace}
    assert ("beliefs" in phases) == (option.keys().isdisjoint({"beliefs", "lp_phase"}))
    assert ("vertex" in phases) == ("climb" not in option)
    assert result.value > mapmrf.solve(FAMILIES["triples, degree 6"], "icm").value


@pytest.mark.parametrize("family", ["triples, degree 20", "soft constraints"])
def test_an_interrupted_run_resumes_to_the_same_answer(family: str, tmp_path: Path) -> None:
    graph = FAMILIES[family]
    whole = mapmrf.solve(graph, "lslp")
    phases = list(dict.fromkeys(point.phase for point in whole.trace))
    assert {"lp", "beliefs", "sphere 0", "vertex"} <= set(phases)
    for phase in phases:
        folder = tmp_path / phase
        mapmrf.solve(graph, "lslp", checkpoint=folder, callback=lambda point, _, phase=phase: point.phase == phase)
        resumed = mapmrf.solve(graph, "lslp", checkpoint=folder, resume=True)
        assert (resumed.value, resumed.kind, resumed.status) == (whole.value, whole.kind, whole.status)
        np.testing.assert_array_equal(resumed.labels, whole.labels)
