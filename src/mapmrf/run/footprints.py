"""Estimate the memory of a run from the sizes of a model, before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools
from mapmrf.model.graph import FactorGraph


class Sizes(NamedTuple):
    """The sizes of a model that memory grows with."""

    # variables, factors, edges: their numbers
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
            hard_configs=int(users @ np.where(_hard_tables(graph), size, 0)),
        )


def _hard_tables(graph: FactorGraph) -> Bools:
    """Which tables hold -inf; none is empty."""
    if graph.n_tables == 0:
        return np.zeros(0, dtype=bool)
    least = np.minimum.reduceat(graph.theta_t, graph.table_ptr[:-1])
    return np.asarray(least == -np.inf)


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

    def bytes_for(self, sizes: Sizes) -> float:
        return float(sum(rate * size for rate, size in zip(self[:-1], sizes, strict=True)) + self.fixed)


RATES = {
    "ad3": Rates(state=34.1, edge_state=42.9, entry=1.52, config=0.13, large_config=30.3, hard_config=54.4),
    "adsal": Rates(variable=43.3, factor=92.4, state=39.6, edge_state=21.5, entry=19.9, hard_config=33.5),
    "annealing": Rates(
        variable=36.5,
        factor=8.97,
        edge=56.9,
        state=8.9,
        edge_state=0.964,
        entry=16.7,
        large_config=1.52,
        hard_config=28,
    ),
    "blocks": Rates(variable=209, factor=55.5, edge=59.3, large_config=10.5, hard_config=30.6, fixed=1.5e06),
    "bp": Rates(edge=55.9, state=27.8, edge_state=8.8, entry=0.781, hard_config=39.5, fixed=1.3e06),
    "branch": Rates(factor=88.2, config=7.58, large_config=18, hard_config=92.2, fixed=1.3e07),
    "chains": Rates(
        variable=88.9,
        factor=18.3,
        edge=53.2,
        state=0.672,
        edge_state=1.9,
        entry=0.636,
        large_config=0.792,
        hard_config=45,
        fixed=810000,
    ),
    "cuts": Rates(variable=178, factor=59.9, entry=5.47, config=2.37, large_config=2.82, fixed=2.3e07),
    "dd_sg": Rates(
        factor=36.4, edge=48.9, state=85, edge_state=38, entry=36.7, config=0.0333, large_config=12, hard_config=8.38
    ),
    "expansion": Rates(variable=13, edge=38, state=3.1, entry=1.57),
    "flips": Rates(
        variable=81.7,
        factor=121,
        edge=0.282,
        state=7.27,
        config=0.032,
        large_config=3.05,
        hard_config=41.8,
        fixed=1.5e06,
    ),
    "fusion": Rates(
        variable=85.9,
        factor=55.3,
        edge=40.4,
        state=1.18,
        entry=0.793,
        config=0.123,
        large_config=1.26,
        hard_config=43.3,
        fixed=450000,
    ),
    "icm": Rates(
        variable=51.3,
        factor=48,
        edge=32.5,
        entry=0.679,
        config=0.111,
        large_config=1.51,
        hard_config=43.9,
        fixed=160000,
    ),
    "l2box": Rates(edge=51.3, state=80.4, entry=14, fixed=200000),
    "lslp": Rates(
        factor=28.7, edge_state=45.1, entry=6.42, config=0.567, large_config=27.1, hard_config=56.2, fixed=830000
    ),
    "maxflow": Rates(edge_state=13.3),
    "mplp": Rates(
        variable=71.9,
        factor=101,
        edge=54.6,
        state=7.11,
        edge_state=8.52,
        entry=9.58,
        large_config=1.14,
        hard_config=33.8,
    ),
    "mplp_c": Rates(variable=275, factor=219, edge_state=6.28, entry=10.1, config=0.148, hard_config=30.2),
    "psdd": Rates(
        variable=74.5,
        factor=206,
        state=79,
        edge_state=32.3,
        entry=38.5,
        config=0.9,
        large_config=13.8,
        hard_config=3.57,
    ),
    "qpbo": Rates(state=55, entry=57.6, fixed=550000),
    "restarts": Rates(variable=140, factor=84.4, state=2.45, edge_state=3.34, entry=14.9, large_config=1.82),
    "tabu": Rates(state=71.8, edge_state=39.5),
    "trbp": Rates(edge=72, state=29.3, edge_state=8.97, entry=0.754, large_config=0.169, hard_config=37.8),
    "trws": Rates(
        variable=22.8, state=40.8, edge_state=4.56, entry=8.75, config=0.939, large_config=7.96, hard_config=30.6
    ),
    "wcsp": Rates(variable=12.6, config=5.95, large_config=17.2, fixed=3.9e07),
}
"""Measured by `python benches/footprints.py --fit`. Methods that are not listed have no estimate."""


def model_bytes(graph: FactorGraph) -> int:
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    return sum(array.nbytes for array in arrays) + (0 if graph.weight is None else graph.weight.nbytes)


def footprint_of(method: str, graph: FactorGraph) -> float | None:
    """Bytes that a run of a method needs besides the model, by the measured rates; None if there are none."""
    rates = RATES.get(method)
    return None if rates is None else rates.bytes_for(Sizes.of(graph))
