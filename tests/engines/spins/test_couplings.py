"""Binary pairwise models in spins: values, fields, forbidden entries, and the unit of values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given

from binary_models import binary_graphs, complete
from mapmrf import FactorGraph
from mapmrf.engines.spins.search import CoupledSpins, set_gains
from mapmrf.model.problem import Problem


def model_of(graph: FactorGraph) -> CoupledSpins:
    return CoupledSpins.of(Problem.compile(graph))


@given(graph=binary_graphs())
def test_spins_are_worth_what_labels_are(graph: FactorGraph) -> None:
    model = model_of(graph)
    gain = np.zeros(model.n)
    for labels in itertools.product(range(2), repeat=graph.n_vars):
        spin = model.spins(np.array(labels))
        value = set_gains(model.couplings, spin, gain) + model.constant
        assert value == pytest.approx(graph.value(labels), abs=1e-9)
        assert model.labels(spin).tolist() == list(labels)
        assert model.labels(-spin).tolist() == ([1 - x for x in labels] if not model.has_fields else list(labels))
        for i in range(graph.n_vars):
            flipped = [x ^ (k == i) for k, x in enumerate(labels)]
            assert value + gain[i] == pytest.approx(graph.value(flipped), abs=1e-9)


def test_only_fields_need_one_more_spin() -> None:
    cut = FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, 1.0, 1.0, 0.0]])
    assert model_of(cut).n == 2
    assert model_of(FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, 1.0, 2.0, 0.0]])).n == 3
    assert np.array_equal(model_of(cut).matrix(), [[0.0, -0.5], [-0.5, 0.0]])


def test_a_forbidden_entry_is_worse_than_anything_else() -> None:
    tables = [[0.0, 0.0, 0.0, -np.inf], [0.0, -5.0, -5.0, 0.0], [0.0, 7.0]]
    graph = FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (0,)], tables)
    model = model_of(graph)
    values = {
        labels: set_gains(model.couplings, model.spins(np.array(labels)), np.zeros(model.n)) + model.constant
        for labels in itertools.product(range(2), repeat=3)
    }
    feasible = [labels for labels in values if graph.value(labels) > -np.inf]
    assert all(values[labels] == pytest.approx(graph.value(labels)) for labels in feasible)
    assert max(values[x] for x in values if x not in feasible) < min(values[x] for x in feasible)


@pytest.mark.parametrize(
    ("weights", "unit"), [([1, 2, 3], 1.0), ([4, 6, -8], 2.0), ([0.25, 0.5, 1.0], 0.25), ([1.0, np.pi, 2.0], 0.0)]
)
def test_the_unit_of_values(weights: list[float], unit: float) -> None:
    cut = [[0.0, 1.0], [1.0, 0.0]]
    graph = FactorGraph.from_pairwise(np.zeros((3, 2)), [(0, 1), (1, 2), (0, 2)], cut, weight=weights)
    assert model_of(graph).unit() == pytest.approx(unit)


def test_couplings_are_listed_at_both_ends() -> None:
    couplings = model_of(complete(6)).couplings
    assert couplings.ptr.tolist() == [0, 6, 12, 18, 24, 30, 36, 42]
    assert couplings.nbr[:6].tolist() == [1, 2, 3, 4, 5, 6]
