"""Estimate the memory of a run from the sizes of a model, before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import hard_tables

REPORTED = 4_000_000  # number of edge states up to which a run of lslp or ad3 ends with the epsilon-KKT report


class Sizes(NamedTuple):
    """The sizes of a model that memory grows with."""

    variables: int
    factors: int
    edges: int
    # states: total number of states of the variables; edge_states: of the edges, except those of pairs of binary
    # variables, of which there are binary_edges: some methods have one number for such an edge
    states: int
    edge_states: int
    binary_edges: int
    # entries, configs: entries of all distinct tables, and configurations of all factors
    entries: int
    configs: int
    # large_configs, hard_configs: configurations of factors of three or more variables, and of factors with a forbidden
    # entry
    large_configs: int
    hard_configs: int
    # few_edge_states: all states of the edges, if these are so few that lslp and ad3 report how optimal they are
    few_edge_states: int

    @classmethod
    def of(cls, graph: FactorGraph) -> Sizes:
        size = np.diff(graph.table_ptr)
        users = np.bincount(graph.table_of, minlength=graph.n_tables)
        large = np.bincount(graph.table_of[graph.arity > 2], minlength=graph.n_tables)
        first = graph.card[graph.scope[graph.scope_ptr[:-1]]]
        binary_edges = 2 * int(np.count_nonzero((graph.arity == 2) & (size[graph.table_of] == 4) & (first == 2)))
        edge_states = int(np.bincount(graph.scope, minlength=graph.n_vars) @ graph.card)
        return cls(
            variables=graph.n_vars,
            factors=graph.n_factors,
            edges=graph.n_edges,
            states=len(graph.theta_v),
            edge_states=edge_states - 2 * binary_edges,
            binary_edges=binary_edges,
            entries=len(graph.theta_t),
            configs=int(users @ size),
            large_configs=int(large @ size),
            hard_configs=int(users @ np.where(hard_tables(graph), size, 0)),
            few_edge_states=edge_states if edge_states <= REPORTED else 0,
        )

    @classmethod
    def of_equal_pairs(cls, variables: int, pairs: int, n_states: int) -> Sizes:
        """Those of a model of pairs that share a table, such as one of an image, which need not be there yet."""
        edge_states, binary = 2 * pairs * n_states, n_states == 2
        return cls(
            variables=variables,
            factors=pairs,
            edges=2 * pairs,
            states=variables * n_states,
            edge_states=0 if binary else edge_states,
            binary_edges=2 * pairs if binary else 0,
            entries=n_states**2,
            configs=pairs * n_states**2,
            large_configs=0,
            hard_configs=0,
            few_edge_states=edge_states if edge_states <= REPORTED else 0,
        )


class Rates(NamedTuple):
    """Bytes that a method needs for each of the `Sizes`, and for any model at all."""

    variable: float = 0
    factor: float = 0
    edge: float = 0
    state: float = 0
    edge_state: float = 0
    binary_edge: float = 0
    entry: float = 0
    config: float = 0
    large_config: float = 0
    hard_config: float = 0
    few_edge_state: float = 0
    fixed: float = 0


# fmt: off
RATES = {
    # bytes per: variable, factor, edge, state, edge state, binary edge, entry, configuration, large and hard one, edge
    # state of those that are few; fixed
    "ad3":       Rates(   0,    0,     0,     0,  28.5, 55.6,     0, 0.281,  31.1, 53.3, 7.38,  1.4e6),
    "adsal":     Rates(43.3, 92.4,     0,  39.6,  21.5,   43,  19.9,     0,     0, 33.5,    0,      0),
    "annealing": Rates(36.5, 8.97,  56.9,   8.9, 0.964, 1.93,  16.7,     0,  1.52,   28,    0,      0),
    "blocks":    Rates( 209, 55.5,  59.3,     0,     0,    0,     0,     0,  10.5, 30.6,    0,  1.5e6),
    "bp":        Rates(   0,    0,  55.9,  27.8,   8.8, 17.6, 0.781,     0,     0, 39.5,    0,  1.3e6),
    "branch":    Rates(   0, 88.2,     0,     0,     0,    0,     0,  7.58,    18, 92.2,    0,  1.3e7),
    "chains":    Rates(88.9, 18.3,  53.2, 0.672,   1.9,  3.8, 0.636,     0, 0.792,   45,    0, 810000),
    "cuts":      Rates( 178, 59.9,     0,     0,     0,    0,  5.47,  2.37,  2.82,    0,    0,  2.3e7),
    "dd_sg":     Rates( 356,    0,     0,  41.5,  10.7, 35.8,  39.1,     0,  1.61, 10.5,   28,      0),
    "expansion": Rates(  13,    0,    38,   3.1,     0,    0,  1.57,     0,     0,    0,    0,      0),
    "flips":     Rates(81.7,  121, 0.282,  7.27,     0,    0,     0, 0.032,  3.05, 41.8,    0,  1.5e6),
    "fusion":    Rates(85.9, 55.3,  40.4,  1.18,     0,    0, 0.793, 0.123,  1.26, 43.3,    0, 450000),
    "icm":       Rates(51.3,   48,  32.5,     0,     0,    0, 0.679, 0.111,  1.51, 43.9,    0, 160000),
    "l2box":     Rates(   0,    0,  51.3,  80.4,     0,    0,    14,     0,     0,    0,    0, 200000),
    "lslp":      Rates(   0, 37.1,     0,     0,  28.2, 23.4,     0,     0,  26.5, 48.8, 34.5,  7.8e6),
    "maxflow":   Rates(   0,    0,     0,     0,  13.3, 26.6,     0,     0,     0,    0,    0,      0),
    "mplp":      Rates(71.9,  101,  54.6,  7.11,  8.52,   17,  9.58,     0,  1.14, 33.8,    0,      0),
    "mplp_c":    Rates( 275,  219,     0,     0,  6.28, 12.6,  10.1, 0.148,     0, 30.2,    0,      0),
    "psdd":      Rates(74.5,  206,     0,    79,  32.3, 64.6,  38.5,   0.9,  13.8, 3.57,    0,      0),
    "qpbo":      Rates(   0,    0,     0,    55,     0,    0,  57.6,     0,     0,    0,    0, 550000),
    "restarts":  Rates( 140, 84.4,     0,  2.45,  3.34, 6.68,  14.9,     0,  1.82,    0,    0,      0),
    "tabu":      Rates(   0,    0,     0,  71.8,  39.5,   79,     0,     0,     0,    0,    0,      0),
    "trbp":      Rates(   0,    0,    72,  29.3,  8.97, 17.9, 0.754,     0, 0.169, 37.8,    0,      0),
    "trws":      Rates(86.1,    0,     0,     0,  6.31,    0,  5.47,     0,  5.45, 38.4, 4.19,  2.2e6),
    "wcsp":      Rates(12.6,    0,     0,     0,     0,    0,     0,  5.95,  17.2,    0,    0,  3.9e7),
}
"""Measured by `python benches/footprints.py --fit`. Methods that are not listed have no estimate."""
# fmt: on


def footprint_of(method: str, model: FactorGraph | Sizes) -> float | None:
    """Bytes that a run of a method needs besides the model, by the measured rates; None if there are none."""
    rates = RATES.get(method)
    if rates is None:
        return None
    sizes = model if isinstance(model, Sizes) else Sizes.of(model)
    return float(sum(rate * size for rate, size in zip(rates[:-1], sizes, strict=True)) + rates.fixed)
