"""What changes no method's answer: short steps, another unit, weights or forms of pairs written out as tables.

With the options that lead to code of their own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import mapmrf
from binary_models import spins, submodular_recipe
from elimination_models import frustrated
from mapmrf import FactorGraph, Result, UnsupportedModel
from mapmrf.datasets import potts_image
from mapmrf.model import problem
from mapmrf.model.structured_pairs import find_forms
from mapmrf.run import pace
from mapmrf.run.registry import method_names
from pairwise_models import attractive, image, loss, scaled, structured_graph
from strategies import random_recipe, submodular, weighted

ONLY_SEARCH = {"i_bound": 1, "sweeps": 0, "join_sweeps": 0, "local_search": 0}
ONE_START: dict[str, Any] = {"lp_phase": False, "climb": False, "beliefs": 0, "starts": 1}
VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("ad3", {"branch_and_bound": True}),
    ("branch", {"sweeps": 0}),
    ("branch", {"i_bound": 2, "sweeps": 3}),
    ("branch", ONLY_SEARCH),
    ("cuts", {"solver": "highs", "rounds": 1, "local_search": 0, "lp_iterations": 0}),
    ("dd_sg", {"decomposition": "factors"}),
    *(("dd_sg", {"rule": rule}) for rule in ("polyak", "diminishing")),
    *(("fusion", {"descent": descent}) for descent in ("chains", "blocks")),
    ("lslp", ONE_START | {"epsilon": 0.05}),
    ("lslp", ONE_START | {"sphere": "affine", "relaxation": 1.4}),
    ("lslp", ONE_START | {"sphere": "factors"}),
    ("lslp", ONE_START | {"sphere": "off"}),
    ("mplp_c", {"first_iterations": 5, "patience": 0.0}),
    *(("restarts", {"move": move}) for move in ("chains", "blocks")),
]
WAYS = [(name, {}) for name in method_names() if name != "toulbar2"] + VARIANTS  # toulbar2 counts whole costs
every_way = pytest.mark.parametrize(("name", "options"), WAYS, ids=str)


def run(graph: FactorGraph, name: str, **options: Any) -> Result:
    try:
        return mapmrf.solve(graph, name, **options)
    except UnsupportedModel as reason:
        pytest.skip(str(reason))


# -- steps ------------------------------------------------------------------------------------------------------------

TAKES_TURNS = ("ad3", "branch", "cuts", "sdp", "tabu", "trbp")
"""How often their parts take turns depends on the length of a turn, but not what they find."""
STEPPED = {
    "binary": frustrated(7, 7, seed=2),
    "states": frustrated(4, 5, 3, seed=1),
    "any": random_recipe(4, 9, 14, hard=0.1).graph(),
    "image": potts_image(8, 8, labels=4, seed=0).graph,
    "cut": submodular_recipe(np.random.default_rng(0), 12, 0.5, 0.1).graph(),
    "wide": frustrated(13, 13),
}


@pytest.mark.parametrize("model", STEPPED)
@every_way
def test_short_steps_end_where_long_ones_do(
    name: str, options: dict[str, Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if name == "auto" or (model == "wide" and options != {"sweeps": 0}):  # whose iterations are steps
        pytest.skip("counts steps, or has no larger tables on a larger model")
    limits = {"annealing": 40, "fusion": 5, "l2box": 40, "lslp": 40, "restarts": 10}
    limit = {"max_iterations": limits[name]} if name in limits else {}
    at_once = run(STEPPED[model], name, **options, **limit)
    share = {"bp": 1000, "tabu": 100, "trbp": 1000}.get(name, 100_000)
    for kind, work in vars(pace).items():
        if kind.isupper():
            monkeypatch.setattr(pace, kind, max(1, work // share))
    result = run(STEPPED[model], name, **options, **limit)
    assert result.labels.tolist() == at_once.labels.tolist()
    close = 1e-6 if name in TAKES_TURNS else 1e-8
    assert result.bound is at_once.bound is None or result.bound == pytest.approx(at_once.bound, rel=close)
    assert result.details.get("root_bound") == pytest.approx(at_once.details.get("root_bound"))
    if name not in TAKES_TURNS:
        assert (result.iterations, result.status) == (at_once.iterations, at_once.status)
    values, bounds = ([getattr(point, key) for point in result.trace] for key in ("value", "bound"))
    assert values == sorted(values)
    bounds = [bound for bound in bounds if bound is not None]
    assert bounds == sorted(bounds, reverse=True)


# -- units ------------------------------------------------------------------------------------------------------------

MEASURED = {
    "any": weighted(random_recipe(4, 9, 14, hard=0.1), 1).graph(),
    "soft": random_recipe(17, 8, 16).graph(),
    "attractive": attractive(8, 3, coupling=0.3, seed=3),
    "binary": spins(6, extra=6),
    "cut": submodular(weighted(random_recipe(7, 9, 14, max_arity=2), 3)).graph(),
}


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("model", MEASURED)
@every_way
def test_a_power_of_two_in_the_potentials_changes_no_digit(
    name: str, options: dict[str, Any], model: str, factor: float
) -> None:
    if "epsilon" in options or (name in ("dd_sg", "psdd") and factor < 1.0):
        pytest.skip("epsilon is in units of its own, and the tolerance of subgradients is relative to 1 below 1")
    graph = MEASURED[model]
    one, other = (run(each, name, max_iterations=60, **options) for each in (graph, scaled(graph, factor)))
    assert other.labels.tolist() == one.labels.tolist()
    assert (other.iterations, other.status) == (one.iterations, one.status)
    assert one.bound is None or other.bound == pytest.approx(factor * one.bound, rel=1e-9)
    assert one.mu_v is None or other.mu_v == pytest.approx(one.mu_v, abs=1e-9)


# -- weights and structured pairs -------------------------------------------------------------------------------------


def weighted_pairs(seed: int) -> FactorGraph:
    """One table for pairs of binary variables, some of them twice, with weights of both signs."""
    random = np.random.default_rng(seed)
    edges = np.array([random.permutation(9)[:2] for _ in range(16)])
    unary, table = random.normal(size=(9, 2)), random.normal(size=(2, 2))
    return FactorGraph.from_pairwise(unary, edges, table, weight=random.normal(size=16))


def structured_ring(kind: str, states: int) -> FactorGraph:
    random = np.random.default_rng(states)
    unary, edges = np.cumsum(random.normal(size=(5, states)), axis=1), [[i, (i + 1) % 5] for i in range(5)]
    return FactorGraph.from_pairwise(unary, edges, -loss(kind, states, 0.3, 4.0), weight=random.random(5) + 0.1)


def structured_tree() -> FactorGraph:
    random = np.random.default_rng(0)
    edges = [[random.integers(i), i] for i in range(1, 12)]
    table = -loss("linear", 9, 1.0, 3.0)
    return FactorGraph.from_pairwise(random.normal(size=(12, 9)), edges, table, weight=random.exponential(size=11))


WEIGHTED = {
    "any": weighted(random_recipe(4, 9, 14, hard=0.1), 1).graph(),
    "pairs": weighted_pairs(1),
    "cut": submodular(weighted(random_recipe(7, 9, 14, max_arity=2), 3)).graph(),
    "binary image": image(30, 2).graph,
    "image": image(8, 9).graph,
    "forms": structured_graph(3, n_vars=8, states=9),
    "forbidden states": structured_graph(5, n_vars=8, states=5, hard=True),
    "tree": structured_tree(),
    **{kind: structured_ring(kind, 130 if kind == "quadratic" else 40) for kind in ("potts", "linear", "quadratic")},
}


@pytest.mark.parametrize("model", WEIGHTED)
@every_way
def test_weights_and_forms_of_pairs_are_as_good_as_tables(
    name: str, options: dict[str, Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every form, even where a table is quicker, and with a table for every factor and no form."""
    graph, limit = WEIGHTED[model], {"max_iterations": 10 if name in ("fusion", "restarts") else 60}
    monkeypatch.setattr(problem, "worthwhile", lambda forms, card: forms)
    short = run(graph, name, **options, **limit)
    monkeypatch.setattr(problem, "find_forms", lambda n, blocks, of, weight: find_forms(n, (), of, weight))
    assert not len(problem.Problem.compile(graph).forms.of)
    full = run(dataclasses.replace(graph.expanded(), weight=None), name, **options, **limit)
    assert short.value == pytest.approx(full.value, abs=1e-9)
    assert short.bound is full.bound is None or short.bound == pytest.approx(full.bound, abs=1e-7)
    assert short.mu_v is None or short.mu_v == pytest.approx(full.mu_v, abs=1e-6)
    assert short.labels.tolist() == full.labels.tolist()
