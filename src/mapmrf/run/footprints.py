"""Estimate the memory of a run from the sizes of a model, before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import hard_tables


class Sizes(NamedTuple):
    """The sizes of a model that memory grows with."""

    variables: int
    factors: int
    edges: int
    # states, edge_states: total number of states of the variables, and of the edges
    states: int
    edge_states: int
    # entries, configs: entries of all distinct tables, and configurations of all factors
    entries: int
    configs: int
    # large_configs, hard_configs: configurations of factors of three or more variables, and of factors with a forbidden
    # entry
    large_configs: int
    hard_configs: int

    @classmethod
    def of(cls, graph: FactorGraph) -> Sizes:
        size = np.diff(graph.table_ptr)
        users = np.bincount(graph.table_of, minlength=graph.n_tables)
        large = np.bincount(graph.table_of[graph.arity > 2], minlength=graph.n_tables)
        degree = np.bincount(graph.scope, minlength=graph.n_vars)
        return cls(
            variables=graph.n_vars,
            factors=graph.n_factors,
            edges=graph.n_edges,
            states=len(graph.theta_v),
            edge_states=int(degree @ graph.card),
            entries=len(graph.theta_t),
            configs=int(users @ size),
            large_configs=int(large @ size),
            hard_configs=int(users @ np.where(hard_tables(graph), size, 0)),
        )


class Rates(NamedTuple):
    """Bytes that a method needs for each of the `Sizes`, and for any model at all."""

    variable: float = 0
    factor: float = 0
    edge: float = 0
    state: float = 0
    edge_state: float = 0
    entry: float = 0
    config: float = 0
    large_config: float = 0
    hard_config: float = 0
    fixed: float = 0


# fmt: off
RATES = {
    # bytes per: variable, factor, edge, state, edge state, entry, configuration, large and hard one; fixed
    "ad3":       Rates(   0,    0,     0,  34.1,  42.9,  1.52,   0.13,  30.3, 54.4,      0),
    "adsal":     Rates(43.3, 92.4,     0,  39.6,  21.5,  19.9,      0,     0, 33.5,      0),
    "annealing": Rates(36.5, 8.97,  56.9,   8.9, 0.964,  16.7,      0,  1.52,   28,      0),
    "blocks":    Rates( 209, 55.5,  59.3,     0,     0,     0,      0,  10.5, 30.6,  1.5e6),
    "bp":        Rates(   0,    0,  55.9,  27.8,   8.8, 0.781,      0,     0, 39.5,  1.3e6),
    "branch":    Rates(   0, 88.2,     0,     0,     0,     0,   7.58,    18, 92.2,  1.3e7),
    "chains":    Rates(88.9, 18.3,  53.2, 0.672,   1.9, 0.636,      0, 0.792,   45, 810000),
    "cuts":      Rates( 178, 59.9,     0,     0,     0,  5.47,   2.37,  2.82,    0,  2.3e7),
    "dd_sg":     Rates(   0, 36.4,  48.9,    85,    38,  36.7, 0.0333,    12, 8.38,      0),
    "expansion": Rates(  13,    0,    38,   3.1,     0,  1.57,      0,     0,    0,      0),
    "flips":     Rates(81.7,  121, 0.282,  7.27,     0,     0,  0.032,  3.05, 41.8,  1.5e6),
    "fusion":    Rates(85.9, 55.3,  40.4,  1.18,     0, 0.793,  0.123,  1.26, 43.3, 450000),
    "icm":       Rates(51.3,   48,  32.5,     0,     0, 0.679,  0.111,  1.51, 43.9, 160000),
    "l2box":     Rates(   0,    0,  51.3,  80.4,     0,    14,      0,     0,    0, 200000),
    "lslp":      Rates(   0, 28.7,     0,     0,  45.1,  6.42,  0.567,  27.1, 56.2, 830000),
    "maxflow":   Rates(   0,    0,     0,     0,  13.3,     0,      0,     0,    0,      0),
    "mplp":      Rates(71.9,  101,  54.6,  7.11,  8.52,  9.58,      0,  1.14, 33.8,      0),
    "mplp_c":    Rates( 275,  219,     0,     0,  6.28,  10.1,  0.148,     0, 30.2,      0),
    "psdd":      Rates(74.5,  206,     0,    79,  32.3,  38.5,    0.9,  13.8, 3.57,      0),
    "qpbo":      Rates(   0,    0,     0,    55,     0,  57.6,      0,     0,    0, 550000),
    "restarts":  Rates( 140, 84.4,     0,  2.45,  3.34,  14.9,      0,  1.82,    0,      0),
    "tabu":      Rates(   0,    0,     0,  71.8,  39.5,     0,      0,     0,    0,      0),
    "trbp":      Rates(   0,    0,    72,  29.3,  8.97, 0.754,      0, 0.169, 37.8,      0),
    "trws":      Rates(22.8,    0,     0,  40.8,  4.56,  8.75,  0.939,  7.96, 30.6,      0),
    "wcsp":      Rates(12.6,    0,     0,     0,     0,     0,   5.95,  17.2,    0,  3.9e7),
}
"""Measured by `python benches/footprints.py --fit`. Methods that are not listed have no estimate."""
# fmt: on


def footprint_of(method: str, graph: FactorGraph) -> float | None:
    """Bytes that a run of a method needs besides the model, by the measured rates; None if there are none."""
    rates = RATES.get(method)
    if rates is None:
        return None
    return float(sum(rate * size for rate, size in zip(rates[:-1], Sizes.of(graph), strict=True)) + rates.fixed)
