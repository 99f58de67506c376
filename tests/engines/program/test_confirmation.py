"""Proofs without a solver's tolerances: bounds that meet the optimum, and nodes without any point."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("highspy")

from constrained_recipes import ConstrainedRecipe, random_constrained
from mapmrf.arrays import Floats
from mapmrf.engines.program import solvers
from mapmrf.engines.program.local_polytope import ConstrainedPolytope
from mapmrf.engines.program.solvers import Confirmation
from mapmrf.model.problem import Problem


def search(recipe: ConstrainedRecipe, known: float) -> tuple[float, float]:
    """Bound of a model, and best value found on the way, given the value of a known labelling."""
    graph, values = recipe.graph(), [known]
    polytope = ConstrainedPolytope.build(Problem.compile(graph))

    def offer(point: Floats) -> None:
        values.append(graph.value(polytope.labels(point)))

    tree = Confirmation(polytope.program, 0)
    list(tree.run(lambda: max(values) + graph.allowance, offer))
    tree.close(1.0)
    return tree.bound, max(values)


@pytest.mark.parametrize("below", [0.0, 0.5, math.inf])
def test_the_bound_meets_the_optimum(below: float) -> None:
    proven = 0
    for seed in range(30):
        recipe = random_constrained(seed, n_vars=4)
        optimum = recipe.optimum()
        bound, value = search(recipe, optimum - below if optimum > -math.inf else -math.inf)
        assert value <= optimum + 1e-12
        assert max(bound, value) >= optimum - 1e-12
        proven += bound <= optimum + 1e-12
    assert proven >= 20


def test_too_many_nodes_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solvers, "WORK", 0)
    assert search(random_constrained(2, n_vars=4), 0.0)[0] == math.inf
