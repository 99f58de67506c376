"""Binary pairwise models as quadratic functions, for annealers and graph cuts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import UnsupportedModel
from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True)
class Pairs:
    """A binary pairwise model: unary potentials (n, 2), pairs (m, 2) and their tables (m, 2, 2)."""

    unary: Floats
    edges: Ints
    tables: Floats


def binary_pairs(graph: FactorGraph, name: str) -> Pairs:
    """The model as pairs; raise UnsupportedModel if it is not a binary pairwise model with finite potentials."""
    if not (np.all(graph.card == 2) and np.all(graph.arity == 2)):
        raise UnsupportedModel(f"{name} supports only binary pairwise models")
    if not (np.isfinite(graph.theta_v).all() and np.isfinite(graph.theta_t).all()):
        raise UnsupportedModel(f"{name} supports only finite potentials")
    tables = graph.theta_t[graph.table_ptr[graph.table_of][:, None] + np.arange(4)]
    if graph.weight is not None:
        tables = graph.weight[:, None] * tables
    return Pairs(graph.theta_v.reshape(-1, 2), graph.scope.reshape(-1, 2), tables.reshape(-1, 2, 2))
