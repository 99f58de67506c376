"""The paper's statistics of a set of models (its C1 to C7), recomputed from files.

The paper counts only factors on two or more variables: unary potentials are neither factors nor edges there.
Every column is the mean over the models of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from mapmrf.datasets.figures import SETS, rows
from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True)
class Statistics:
    """A row of the paper's table.

    Attributes
    ----------
    models
        Number of models (C1).
    variables, factors, edges
        Variables, factors on two or more of them, and (variable, factor) pairs (C2 to C4).
    factor_size
        Variables of a factor (C5).
    variable_states, factor_states
        States of a variable, and configurations of a factor (C6, C7).
    """

    models: int
    variables: float
    factors: float
    edges: float
    factor_size: float
    variable_states: float
    factor_states: float


def model_statistics(graph: FactorGraph) -> Statistics:
    """The statistics of one model.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> model_statistics(grid(3, 4))
    Statistics(models=1, variables=12, factors=17, edges=34, factor_size=2.0, variable_states=2.0, factor_states=4.0)
    """
    sizes = np.diff(graph.table_ptr)[graph.table_of]
    return Statistics(
        models=1,
        variables=graph.n_vars,
        factors=graph.n_factors,
        edges=graph.n_edges,
        factor_size=_mean(graph.arity),
        variable_states=_mean(graph.card),
        factor_states=_mean(sizes),
    )


def mean_statistics(models: Iterable[Statistics]) -> Statistics | None:
    """The row of a set: the mean over its models; None if there are none."""
    found = [list(vars(model).values())[1:] for model in models]
    if not found:
        return None
    return Statistics(len(found), *(_mean(column) for column in zip(*found, strict=True)))


def paper_statistics(which: str) -> Statistics:
    """The paper's row for a set.

    Examples
    --------
    >>> paper_statistics("protein").edges
    57680.4
    """
    row = next(row for row in rows("dataset_statistics") if row["dataset"] == SETS[which])
    models, *means = (row[name] for name in Statistics.__dataclass_fields__)
    return Statistics(int(models), *map(float, means))


def _mean(values: Sequence[float] | np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else 0.0
