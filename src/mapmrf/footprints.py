"""What a run will take in memory, estimated from the sizes of a model before anything is allocated."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools
from mapmrf.graph import FactorGraph


class Sizes(NamedTuple):
    """The sizes of a model that memory grows with.

    Attributes
    ----------
    variables, factors, edges
        How many there are.
    states, edge_states
        States of all variables, and of the variables of all factors.
    entries, configs
        Entries of all tables, each once, and of the tables of all factors.
    large_configs, hard_configs
        Entries of the tables of factors of three and more variables, and of factors with a forbidden entry.

    Examples
    --------
    >>> from mapmrf.datasets import potts_image
    >>> sizes = Sizes.of(potts_image(10, 10, labels=3).graph)
    >>> sizes.variables, sizes.factors, sizes.states, sizes.edge_states, sizes.entries, sizes.configs
    (100, 180, 300, 1080, 9, 1620)
    """

    variables: int
    factors: int
    edges: int
    states: int
    edge_states: int
    entries: int
    configs: int
    large_configs: int
    hard_configs: int

    @classmethod
    def of(cls, graph: FactorGraph) -> Sizes:
        """The sizes of a graph."""
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
    """Bytes of a method for each of the `Sizes`, and for any model at all."""

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
        """Bytes of a run on a model of these sizes.

        Examples
        --------
        >>> from mapmrf.datasets import grid
        >>> Rates(variable=100, edge=10, fixed=1000).bytes_for(Sizes.of(grid(2, 2)))
        1480.0
        """
        return float(sum(rate * size for rate, size in zip(self[:-1], sizes, strict=True)) + self.fixed)


RATES = {
    "ad3": Rates(state=14.8, edge_state=44.7, entry=1.06, config=0.229, large_config=28, hard_config=58.1),
    "adsal": Rates(variable=119, factor=55, state=114, entry=20.3, hard_config=31.1),
    "annealing": Rates(edge=64.2, edge_state=4.12, entry=15.9, large_config=2.57, hard_config=28.8),
    "blocks": Rates(
        variable=326, factor=139, edge=13.2, edge_state=0.339, entry=1.02, large_config=10.4, hard_config=29.5
    ),
    "bp": Rates(factor=24.1, edge=46.4, state=51.6, entry=0.458, hard_config=38.1, fixed=2.6e06),
    "branch": Rates(factor=101, entry=8.67, config=6.1, large_config=18.3, hard_config=93.8, fixed=7e06),
    "chains": Rates(variable=50.4, edge=66.9, edge_state=3.62, entry=0.953, large_config=1.02, hard_config=45.9),
    "cuts": Rates(edge=55, state=102, entry=32.8, config=2.61),
    "dd_sg": Rates(
        factor=25.9,
        edge=56.9,
        state=71.9,
        edge_state=38.5,
        entry=34.3,
        config=0.13,
        large_config=14.5,
        hard_config=9.66,
    ),
    "expansion": Rates(edge=32.8, state=4.43, entry=1.46),
    "flips": Rates(
        variable=41.6, factor=55.4, edge=34.5, edge_state=4.98, entry=0.549, large_config=3.17, hard_config=43.2
    ),
    "fusion": Rates(
        variable=35.1, factor=4.08, edge=65.7, edge_state=3.57, entry=0.843, large_config=1.39, hard_config=44.1
    ),
    "icm": Rates(
        variable=6.56, factor=14.2, edge=50.1, edge_state=2.61, entry=0.647, large_config=1.59, hard_config=44.4
    ),
    "l2box": Rates(variable=98.1, edge=4.19, edge_state=11.7, entry=4.09, fixed=1.7e07),
    "lslp": Rates(
        factor=33.2, state=11.8, edge_state=42.1, entry=7.79, config=0.669, large_config=25, hard_config=57.2
    ),
    "maxflow": Rates(edge_state=13.3),
    "mplp": Rates(variable=28.2, factor=93.8, edge=68.6, state=41.1, entry=10.2, large_config=0.442, hard_config=33.1),
    "mplp_c": Rates(variable=126, factor=230, state=37.5, entry=11.2, hard_config=31.4),
    "psdd": Rates(
        factor=252, state=113, edge_state=21.1, entry=37.3, config=0.966, large_config=15.9, hard_config=3.56
    ),
    "qpbo": Rates(state=55, entry=57.5, fixed=570000),
    "restarts": Rates(variable=123, factor=91, state=6.92, edge_state=2.21, entry=14.3, large_config=2.43),
    "tabu": Rates(state=71.8, edge_state=39.5),
    "trbp": Rates(edge=67.9, state=20.8, edge_state=9.13, large_config=0.325, hard_config=37.8, fixed=1.2e06),
    "trws": Rates(
        state=67.3, edge_state=0.112, entry=8.6, config=0.0909, large_config=5.74, hard_config=30.8, fixed=1.2e06
    ),
    "wcsp": Rates(variable=138, entry=30.8, config=5.62, large_config=16.9, fixed=1.3e07),
}
"""Measured: `python benches/footprints.py --fit`. Methods that are not named here have no estimate."""


def model_bytes(graph: FactorGraph) -> int:
    """Bytes of the arrays of a model.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> model_bytes(grid(100, 100)) > 8 * 4 * 2 * 100 * 99
    True
    """
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    return sum(array.nbytes for array in arrays) + (0 if graph.weight is None else graph.weight.nbytes)


def footprint_of(method: str, graph: FactorGraph) -> float | None:
    """Bytes that a run of a method takes beside the model, by the measured rates; None if there are none.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> footprint_of("trws", grid(100, 100)) < footprint_of("blocks", grid(100, 100))
    True
    >>> footprint_of("mine", grid(100, 100)) is None
    True
    """
    rates = RATES.get(method)
    return None if rates is None else rates.bytes_for(Sizes.of(graph))
