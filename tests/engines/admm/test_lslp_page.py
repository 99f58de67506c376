"""The lines of numpy on the page of LS-LP and the kernels: the same iterates."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest

from admm_reference import ON_PAGE
from mapmrf import FactorGraph
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.kkt import edge_states_of
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.penalty import PenaltyOptions, SphereKind
from mapmrf.model.problem import Problem

ITERATIONS = 40
CLOSE = 1e-9


def ring(card: list[int], seed: int, arity: int = 2) -> FactorGraph:
    random = np.random.default_rng(seed)
    n = len(card)
    scopes = [(i,) for i in range(n)] + [tuple((i + k) % n for k in range(arity)) for i in range(n)]
    return FactorGraph.from_tables(card, scopes, [random.normal(size=[card[i] for i in scope]) for scope in scopes])


def spins(n: int, seed: int) -> FactorGraph:
    """A ring of spins whose tables have no linear parts: the compact layout has nothing to move."""
    random = np.random.default_rng(seed)
    field = random.normal(size=n)
    couplings = random.normal(size=n)[:, None, None] * np.array([[1.0, -1.0], [-1.0, 1.0]])
    pairs = [[i, (i + 1) % n] for i in range(n)]
    return FactorGraph.from_pairwise(np.stack([-field, field], axis=1), pairs, couplings)


CASES = {
    "binary pairs": (ring([2] * 7, 0), False, 0.0),
    "pairs": (ring([2, 3, 4, 3, 2], 1), False, 0.0),
    "pairs, perturbed": (ring([3, 2, 2, 4], 2), False, 0.05),
    "triples": (ring([2] * 6, 3, arity=3), False, 0.01),
    "any arity": (ring([2, 3, 2, 2], 4, arity=3), False, 0.0),
    "compact pairs": (spins(8, 5), True, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_the_code_on_the_page_has_the_iterates_of_the_kernels(name: str) -> None:
    graph, compact, epsilon = CASES[name]
    problem = Problem.compile(graph)
    rho, eta, rho_upper = 0.3, 1.05, 1.5
    start = np.repeat(1.0 / graph.card, graph.card)
    noise = np.random.default_rng(6).uniform(-0.1, 0.1, graph.n_vars)
    start[graph.var_ptr[:-1]] += noise
    start[graph.var_ptr[:-1] + 1] -= noise
    layout = Layout.build(problem, compact)
    engine = Engine(layout, PenaltyOptions(SphereKind.VARIABLES, epsilon=epsilon, eta=eta, rho_upper=rho_upper))
    engine.begin(layout.compress(start), rho)
    iterates = ON_PAGE["lslp"](graph, start, rho, eta=eta, rho_upper=rho_upper, epsilon=epsilon)
    for mu_v, lam_v, lam, rho_now in islice(iterates, ITERATIONS):
        engine.run(1)
        assert engine.last_rho == pytest.approx(rho_now)
        assert engine.variables() == pytest.approx(mu_v, abs=CLOSE)
        lam_e = edge_states_of(engine, engine.multipliers())
        assert lam_e == pytest.approx(np.concatenate([lam[a] for a in problem.order]), abs=CLOSE)
        mine = layout.expand(engine.lam_v) - (0.5 if compact else 0.0)
        assert mine == pytest.approx(lam_v, abs=CLOSE)
    assert rho_now == rho_upper
    assert np.ptp(engine.variables() - start) > 0.1, "the iterates have moved"


def test_the_engine_does_the_five_updates_of_algorithm_1_in_its_order() -> None:
    graph = ring([3, 2, 4, 2], 7)
    layout = Layout.build(Problem.compile(graph), compact=True)
    one, other = (Engine(layout, PenaltyOptions(SphereKind.VARIABLES, eta=1.1)) for _ in range(2))
    for engine in (one, other):
        engine.begin(layout.compress(np.linspace(0.1, 0.9, len(graph.theta_v))), 0.5)
    one.run(5)
    for _ in range(5):
        other.update_upsilon()
        other.update_mu_f()
        other.update_mu_v()
        other.update_lam()
        other.update_rho()
    assert np.array_equal(one.mu, other.mu)
    assert np.array_equal(one.q, other.q)
    assert one.rho == other.rho == pytest.approx(0.5 * 1.1**5)
    assert one.measure() == other.measure()
