"""The size, structure and memory of a model and the granularity of its values, found without a solver."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Floats, ranges
from mapmrf.model.memory import model_bytes, shown_bytes

if TYPE_CHECKING:
    from mapmrf.model.graph import FactorGraph


MOST_EXAMINED = 2_000_000  # maximum number of potentials of a model whose granularity is found


@dataclass(frozen=True)
class ModelSummary:
    # n_vars, n_factors, n_edges, n_tables: numbers of variables, factors on two or more of them, (variable, factor)
    # pairs, and distinct tables
    n_vars: int
    n_factors: int
    n_edges: int
    n_tables: int
    weighted: bool  # whether factors have weights, that is, are multiples of tables
    # card_min, card_max: smallest and largest number of states
    card_min: int
    card_max: int
    arities: dict[int, int]  # number of factors by arity
    # n_states, n_configs: total number of states of the variables, and of configurations of the factors
    n_states: int
    n_configs: int
    forbidden: int  # number of states and configurations with probability zero (log potential `-inf`)
    log10_labellings: float  # decimal logarithm of the number of labellings
    # degree_mean, degree_max: mean and largest number of factors of a variable
    degree_mean: float
    degree_max: int
    density: float  # fraction of all pairs of variables that share a factor
    n_components: int  # number of connected components
    # pairwise, binary, tree: whether all factors have two variables, all variables two states, and the factor graph no
    # cycles; a model with constraints is neither pairwise nor a tree
    pairwise: bool
    binary: bool
    tree: bool
    # model_bytes, compiled_bytes: memory of the model, and of the model compiled for solving (an estimate, without a
    # method's own arrays)
    model_bytes: int
    compiled_bytes: int
    # number of constraints by the function that made them, such as ``at_most_k``
    constraints: dict[str, int] = field(default_factory=dict)

    def text(self) -> str:
        low, high, n_constraints = self.card_min, self.card_max, sum(self.constraints.values())
        states = str(low) if low == high else f"{low} to {high}"
        arities = ", ".join(f"{count} on {arity} variables" for arity, count in self.arities.items()) or "none"
        stated = ", ".join(f"{n} {name}" for name, n in self.constraints.items())
        structure = [
            "pairwise" if self.pairwise else "higher order",
            "binary" if self.binary else "multi-label",
            "tree" if self.tree and self.n_components <= 1 else "forest" if self.tree else "with cycles",
            "connected" if self.n_components <= 1 else f"{self.n_components} components",
        ]
        rows = {
            "variables": f"{self.n_vars}  ({states} states)",
            "factors": f"{self.n_factors}  ({arities})",
            "tables": f"{self.n_tables} distinct" + (", and a weight per factor" if self.weighted else ""),
            **({"constraints": f"{n_constraints}  ({stated})"} if self.constraints else {}),
            "entries": f"{self.n_states} states, {self.n_configs} configurations, {self.forbidden} of them forbidden",
            "labellings": f"10^{self.log10_labellings:.1f}",
            "degree": f"{self.degree_mean:.2f} factors per variable, at most {self.degree_max}",
            "density": f"{self.density:.2g} of all pairs of variables share a factor",
            "structure": ", ".join(structure),
            "memory": f"{shown_bytes(self.model_bytes)}, compiled {shown_bytes(self.compiled_bytes)}",
        }
        return "\n".join(f"{key:<13}{text}" for key, text in rows.items())


def summarise(graph: FactorGraph) -> ModelSummary:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    n, constraints = graph.n_vars, graph.constraints
    degree = np.bincount(graph.scope, minlength=n)
    ones = np.ones(graph.n_edges, dtype=np.int32)
    in_factor = csr_array((ones, graph.scope, graph.scope_ptr), shape=(graph.n_factors, n))
    joined = in_factor.T @ in_factor  # pairs of variables that share a factor
    n_pairs = joined.nnz - np.count_nonzero(joined.diagonal())
    if constraints is not None:  # and those that follow each other in a constraint
        next_to = np.flatnonzero(np.diff(constraints.owner) == 0)
        pairs = (constraints.var[next_to], constraints.var[next_to + 1])
        joined = joined + csr_array((np.ones(len(next_to), dtype=np.int32), pairs), shape=(n, n))
    n_components = int(connected_components(joined, directed=False, return_labels=False)) if n else 0
    before = np.concatenate([[0], np.cumsum(np.isneginf(graph.theta_t))])
    forbidden = np.diff(before[graph.table_ptr])[graph.table_of]  # by factor
    n_bytes = model_bytes(graph) + (0 if constraints is None else constraints.nbytes)
    # Problem adds at most three arrays per factor, one per variable, the scopes and the weights.
    weights = 0 if graph.weight is None else graph.weight.nbytes
    added = 8 * (3 * graph.n_factors + n + 2) + graph.scope.nbytes + weights
    return ModelSummary(
        n_vars=n,
        n_factors=graph.n_factors,
        n_edges=graph.n_edges,
        n_tables=graph.n_tables,
        weighted=graph.weight is not None,
        card_min=int(graph.card.min(initial=graph.card.max(initial=0))),
        card_max=int(graph.card.max(initial=0)),
        arities=dict(zip(*(found.tolist() for found in np.unique(graph.arity, return_counts=True)), strict=True)),
        n_states=len(graph.theta_v),
        n_configs=int(np.diff(graph.table_ptr)[graph.table_of].sum()),
        forbidden=int(np.isneginf(graph.theta_v).sum()) + int(forbidden.sum()),
        log10_labellings=math.fsum(np.log10(graph.card).tolist()),
        degree_mean=float(degree.mean()) if n else 0.0,
        degree_max=int(degree.max(initial=0)),
        density=0.0 if n < 2 else float(n_pairs / (n * (n - 1))),
        n_components=n_components,
        pairwise=constraints is None and bool(np.all(graph.arity == 2)),
        binary=bool(np.all(graph.card == 2)),
        tree=constraints is None and graph.n_edges - graph.n_factors == n - n_components,
        model_bytes=n_bytes,
        compiled_bytes=n_bytes + added,
        constraints={} if constraints is None else dict(Counter(constraints.made_by)),
    )


# -- The granularity of values: if all potentials are multiples of a number, bounds can be rounded down ---------------


@dataclass(frozen=True)
class Granularity:
    """Values are `offset` plus a multiple of `step`, up to `error`; a step of 0 means that none is known."""

    step: float = 0.0
    offset: float = 0.0
    error: float = 0.0

    @classmethod
    def of_graph(cls, graph: FactorGraph) -> Granularity:
        """Find the step of the values of all labellings; not for large models."""
        potentials = [graph.theta_v, graph.theta_t]
        if len(graph.theta_v) > MOST_EXAMINED:
            return cls()
        if graph.weight is not None:
            used = np.unique(graph.table_of + 1j * graph.weight)  # ten times faster than over an axis
            table = used.real.astype(np.int64)
            sizes = np.diff(graph.table_ptr)[table]
            if sizes.sum() > MOST_EXAMINED:
                return cls()
            potentials[1] = graph.theta_t[ranges(graph.table_ptr[table], sizes)] * np.repeat(used.imag, sizes)
        if sum(map(len, potentials)) > MOST_EXAMINED:
            return cls()
        n_terms = graph.n_vars + graph.n_factors + graph.n_constraints
        if graph.constraints is not None:
            potentials += [graph.constraints.penalty, *graph.constraints.potentials]
            n_terms += len(graph.constraints.potentials)
        return cls.of(np.concatenate(potentials), n_terms, graph.round_off(0.0), graph.constant)

    @classmethod
    def of(cls, potentials: Floats, n_terms: int, round_off: float, offset: float) -> Granularity:
        """Find the step of the sums of `n_terms` of these potentials; `round_off` is the error of such a sum."""
        step, deviation = common_step(potentials)
        error = n_terms * deviation + round_off
        # maximum total rounding error, as a share of the step
        return cls(step, offset, error) if error < 1e-4 * step else cls()

    def down(self, bound: float) -> float:
        """Return the largest possible value of a labelling below a bound."""
        if self.step == 0 or not math.isfinite(bound):
            return bound
        steps = math.floor((bound - self.offset + self.error) / self.step)
        return min(bound, self.offset + self.step * steps + self.error)

    @property
    def slack(self) -> float:
        """How far a bound may be above the optimum and still prove it; 0 if no step is known."""
        return 0.98 * self.step


def common_step(numbers: Floats) -> tuple[float, float]:
    """Return the largest step of which all finite numbers are multiples, 0 if none, and their maximum deviation."""
    sizes = np.abs(numbers[np.isfinite(numbers)])
    largest = float(sizes.max(initial=0.0))
    tol = 16 * sys.float_info.epsilon * largest
    if tol == 0.0:
        return 0.0, 0.0
    step, deviation = largest, 0.0
    # potentials examined first: most models without a step show it at once
    for some in (sizes[:64], sizes):
        while (deviation := float(np.abs(some - np.rint(some / step) * step).max())) > tol:
            rest = deviation
            while rest > tol:  # Euclid's algorithm
                step, rest = rest, abs(step - round(step / rest) * rest)
            # minimum step, relative to the round-off of the largest potential
            if step < 1e4 * tol:
                return 0.0, 0.0
            step = largest / round(largest / step)  # as precise as the largest number
    return step, deviation
