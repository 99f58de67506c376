"""Positions of variables, factors and lines in the drawing of a model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.model.graph import FactorGraph
from mapmrf.plots._lattice import neighbours
from mapmrf.plots._layout import node_layout

SPACING = 2.0
"""Distance of two variables that share a factor."""
EDGE = 1.2
"""Length of a line between a variable and its factor, if the model is not a lattice."""
VARIABLE, FACTOR, DOT = 0.75, 0.42, 0.35
"""Space around a variable, a factor, and a variable of the primal graph."""


@dataclass(frozen=True)
class PrimalLayout:
    """Positions of the variables, (n_vars, 2), and the ends of all lines, (n_lines, 2, 2)."""

    variables: Floats
    lines: Floats


@dataclass(frozen=True)
class FactorGraphLayout(PrimalLayout):
    """Also positions of the factors, (n_factors, 2), and of lines that leave a lattice which is a torus."""

    factors: Floats
    stubs: Floats


def primal_layout(graph: FactorGraph, shape: tuple[int, int] | None) -> PrimalLayout:
    """Variables, and a line for every pair that shares a factor."""
    pairs = neighbours(graph)
    if shape is not None:
        places = _rows(shape)
        # Lines around a torus would cover the picture.
        return PrimalLayout(places, places[pairs[~_around(places[pairs])]])
    places = node_layout(pairs, np.full(graph.n_vars, DOT), SPACING)
    return PrimalLayout(places, places[pairs])


def factor_graph_layout(graph: FactorGraph, shape: tuple[int, int] | None, room: float) -> FactorGraphLayout:
    """Variables, factors and all edges of the factor graph; `room` is 1, or more if names are below circles."""
    higher = bool(np.any(graph.arity > 2))
    if shape is not None and not (higher and _around(_rows(shape)[neighbours(graph)]).any()):
        return _lattice_layout(graph, shape)
    radius = np.repeat([room * VARIABLE, FACTOR], [graph.n_vars, graph.n_factors])
    edges = np.stack([graph.scope, graph.n_vars + _owner(graph)], axis=1)
    nodes = node_layout(edges, radius, room * EDGE)
    variables, factors = nodes[: graph.n_vars], nodes[graph.n_vars :]
    return FactorGraphLayout(variables, _lines(graph, variables, factors), factors, np.zeros((0, 2, 2)))


def _lattice_layout(graph: FactorGraph, shape: tuple[int, int]) -> FactorGraphLayout:
    """Place factors between their variables; those around the torus outside, to the right or below."""
    variables, owner = _rows(shape), _owner(graph)
    factors = np.zeros((graph.n_factors, 2))
    np.add.at(factors, owner, variables[graph.scope] / graph.arity[owner, None])
    pairs = np.flatnonzero(graph.arity == 2)
    scopes = graph.scope[graph.scope_ptr[pairs][:, None] + np.arange(2)]
    factors[pairs] = _between(scopes, variables)
    around = _around(variables[scopes])
    last, first, out = _outward(variables[scopes[around]], shape)
    factors[pairs[around]] = last + out
    lines = _lines(graph, variables, factors)[~np.isin(owner, pairs[around])]
    inner = np.stack([last, last + out], axis=1)
    return FactorGraphLayout(variables, np.concatenate([lines, inner]), factors, np.stack([first, first - out], axis=1))


def _outward(ends: Floats, shape: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
    """For pairs joined around the torus: the end further right or down, the other, and the way out at the first."""
    step = ends[:, 1] - ends[:, 0]
    second = np.where(np.abs(step[:, 0]) > SPACING, step[:, 0] > 0, step[:, 1] < 0)[:, None]
    period = SPACING * np.array([shape[1], shape[0]])
    short = (step - period * np.round(step / period)) / 2
    last, first = np.where(second, ends[:, 1], ends[:, 0]), np.where(second, ends[:, 0], ends[:, 1])
    return last, first, np.where(second, -short, short)


def _around(ends: Floats) -> Bools:
    """Which pairs of a lattice are not adjacent in the drawing."""
    return np.asarray(np.abs(ends[:, 1] - ends[:, 0]).max(axis=1, initial=0.0) > SPACING)


def _rows(shape: tuple[int, int]) -> Floats:
    down, right = np.divmod(np.arange(shape[0] * shape[1]), shape[1])
    return SPACING * np.stack([right, -down], axis=1).astype(np.float64)


def _owner(graph: FactorGraph) -> Ints:
    """The factor of every edge."""
    return np.repeat(np.arange(graph.n_factors), graph.arity)


def _lines(graph: FactorGraph, variables: Floats, factors: Floats) -> Floats:
    """From each variable to each of its factors."""
    return np.stack([variables[graph.scope], factors[_owner(graph)]], axis=1)


def _between(pairs: Ints, variables: Floats) -> Floats:
    """Positions on the lines between two variables: in the middle, or spread evenly if several share a line."""
    low, high = np.sort(pairs, axis=1).T
    _, group, size = np.unique(np.stack([low, high], axis=1), axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    rank = np.empty(len(pairs), dtype=np.int64)
    rank[order] = np.arange(len(pairs)) - np.repeat(np.cumsum(size) - size, size)
    # Clear of both circles, which cover a quarter of the line at each end.
    share = 0.3 + 0.4 * (rank + 1) / (size[group] + 1)
    return np.asarray(variables[low] + share[:, None] * (variables[high] - variables[low]))
