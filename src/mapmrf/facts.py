"""What a model looks like: its size, shape and memory, found without any solver."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.graph import FactorGraph


@dataclass(frozen=True)
class ModelFacts:
    """Figures of a model.

    Attributes
    ----------
    n_vars, n_factors, n_edges, n_tables
        Variables, factors on two or more of them, (variable, factor) pairs, and distinct tables.
    card_min, card_max
        Smallest and largest number of states.
    arities
        Number of variables of a factor -> how many factors have so many.
    n_states, n_configs
        All states of all variables, all configurations of all factors.
    forbidden
        How many of the states and configurations have probability zero (log potential `-inf`).
    log10_labellings
        Decimal logarithm of the number of labellings.
    degree_mean, degree_max
        Factors of a variable.
    density
        Fraction of all pairs of variables that share a factor.
    n_components
        Parts that are not connected to each other.
    pairwise, binary, tree
        Whether all factors have two variables, all variables two states, and the factor graph no cycle.
    model_bytes, compiled_bytes
        Memory of the model, and of the model compiled for solving (an estimate, without a method's own arrays).
    """

    n_vars: int
    n_factors: int
    n_edges: int
    n_tables: int
    card_min: int
    card_max: int
    arities: dict[int, int]
    n_states: int
    n_configs: int
    forbidden: int
    log10_labellings: float
    degree_mean: float
    degree_max: int
    density: float
    n_components: int
    pairwise: bool
    binary: bool
    tree: bool
    model_bytes: int
    compiled_bytes: int

    def summary(self) -> str:
        """Return a few lines for people."""
        rows = {
            "variables": f"{self.n_vars}  ({_span(self.card_min, self.card_max)} states)",
            "factors": f"{self.n_factors}  ({_listed(self.arities)})",
            "tables": f"{self.n_tables} distinct",
            "entries": f"{self.n_states} states, {self.n_configs} configurations, {self.forbidden} of them forbidden",
            "labellings": f"10^{self.log10_labellings:.1f}",
            "degree": f"{self.degree_mean:.2f} factors per variable, at most {self.degree_max}",
            "density": f"{self.density:.2g} of all pairs of variables share a factor",
            "structure": self._structure(),
            "memory": f"{_bytes(self.model_bytes)}, compiled {_bytes(self.compiled_bytes)}",
        }
        return "\n".join(f"{key:<13}{text}" for key, text in rows.items())

    def _structure(self) -> str:
        words = [
            "pairwise" if self.pairwise else "higher order",
            "binary" if self.binary else "multi-label",
            "tree" if self.tree and self.n_components <= 1 else "forest" if self.tree else "with cycles",
            "connected" if self.n_components <= 1 else f"{self.n_components} parts",
        ]
        return ", ".join(words)


def model_facts(graph: FactorGraph) -> ModelFacts:
    """Gather the figures of a model.

    Examples
    --------
    >>> from mapmrf.datasets import grid
    >>> facts = model_facts(grid(4, 5))
    >>> facts.n_vars, facts.arities, facts.binary, facts.tree, facts.n_components
    (20, {2: 31}, True, False, 1)
    """
    degree = np.bincount(graph.scope, minlength=graph.n_vars)
    sizes = np.diff(graph.table_ptr)
    components = _n_components(graph)
    kinds, counts = np.unique(graph.arity, return_counts=True)
    return ModelFacts(
        n_vars=graph.n_vars,
        n_factors=graph.n_factors,
        n_edges=graph.n_edges,
        n_tables=graph.n_tables,
        card_min=int(graph.card.min(initial=graph.card.max(initial=0))),
        card_max=int(graph.card.max(initial=0)),
        arities=dict(zip(kinds.tolist(), counts.tolist(), strict=True)),
        n_states=len(graph.theta_v),
        n_configs=int(sizes[graph.table_of].sum()),
        forbidden=_forbidden(graph),
        log10_labellings=math.fsum(np.log10(graph.card).tolist()),
        degree_mean=float(degree.mean()) if graph.n_vars else 0.0,
        degree_max=int(degree.max(initial=0)),
        density=_density(graph),
        n_components=components,
        pairwise=bool(np.all(graph.arity == 2)),
        binary=bool(np.all(graph.card == 2)),
        tree=graph.n_edges - graph.n_factors == graph.n_vars - components,
        model_bytes=_model_bytes(graph),
        compiled_bytes=_model_bytes(graph) + _problem_bytes(graph),
    )


def _forbidden(graph: FactorGraph) -> int:
    """Count -inf in the states and, once for every factor that uses a table, in the tables."""
    before = np.concatenate([[0], np.cumsum(np.isneginf(graph.theta_t))])
    per_table = np.diff(before[graph.table_ptr])
    return int(np.isneginf(graph.theta_v).sum()) + int(per_table[graph.table_of].sum())


def _density(graph: FactorGraph) -> float:
    n = graph.n_vars
    if n < 2:
        return 0.0
    found = [np.zeros(0, dtype=np.int64)]
    for arity in np.unique(graph.arity):
        at = graph.scope_ptr[:-1][graph.arity == arity]
        scopes = np.sort(graph.scope[at[:, None] + np.arange(arity)], axis=1)
        first, second = np.triu_indices(arity, 1)
        found.append((scopes[:, first] * n + scopes[:, second]).ravel())
    pairs = np.sort(np.concatenate(found))
    distinct = np.count_nonzero(np.diff(pairs)) + (len(pairs) > 0)
    return float(distinct / (n * (n - 1) / 2))


def _n_components(graph: FactorGraph) -> int:
    """Count connected parts: join every variable with the first one of its factors, halving paths as they grow."""
    root: Ints = np.arange(graph.n_vars)
    a = graph.scope
    b = np.repeat(graph.scope[graph.scope_ptr[:-1]], graph.arity)
    while True:
        high, low = np.maximum(root[a], root[b]), np.minimum(root[a], root[b])
        apart = high != low
        if not np.any(apart):
            return int(np.count_nonzero(root == np.arange(graph.n_vars)))
        a, b = a[apart], b[apart]
        np.minimum.at(root, high[apart], low[apart])
        root = _flattened(root)


def _flattened(root: Ints) -> Ints:
    """Let every variable point to the very end of its chain."""
    while True:
        further = root[root]
        if np.array_equal(further, root):
            return root
        root = further


def _model_bytes(graph: FactorGraph) -> int:
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    return sum(array.nbytes for array in arrays)


def _problem_bytes(graph: FactorGraph) -> int:
    """Bytes of the arrays that Problem adds, at most: three per factor, one per variable and the scopes."""
    return 8 * (3 * graph.n_factors + graph.n_vars + 2) + graph.scope.nbytes


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low} to {high}"


def _listed(arities: dict[int, int]) -> str:
    return ", ".join(f"{count} on {arity} variables" for arity, count in arities.items()) or "none"


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"
