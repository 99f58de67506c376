"""Forced states: every gain is that of a labelling with this state, and nothing is left changed."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from mapmrf.datasets import grid
from mapmrf.engines.moves.local_search import ForcedStates
from mapmrf.model.problem import Problem
from strategies import hard_recipes, soft_recipes, with_weights


@given(with_weights(soft_recipes() | hard_recipes()))
def test_labellings_with_forced_states_are_worth_what_is_said(recipe) -> None:
    graph = recipe.graph()
    labels = np.array(graph.unary_labels)
    if graph.value(labels) == -np.inf:
        return
    forced = ForcedStates(Problem.compile(graph), labels)
    while not forced.finished:
        forced.advance(1)
    for i in range(graph.n_vars):
        for k in range(graph.card[i]):
            if k == labels[i]:
                continue
            found = forced.labels_with(i, k)
            assert found[i] == k
            gain = graph.value(found) - graph.value(labels)
            assert forced.gain[graph.var_ptr[i] + k] >= gain - 1e-9


def test_neighbours_follow_a_forced_state() -> None:
    graph = grid(20, 20, coupling=3.0, seed=0)
    labels = np.array(graph.unary_labels)
    forced = ForcedStates(Problem.compile(graph), labels)
    while not forced.finished:
        forced.advance()
    alone = labels.copy()
    alone[210] = 1 - alone[210]
    assert forced.gain[420 + alone[210]] > graph.value(alone) - graph.value(labels)
