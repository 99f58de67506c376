"""Assemble pairwise models without copies: unaries, one table for all pairs, weights, and label costs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mapmrf.arrays import Bools, Floats, Ints, offsets, short
from mapmrf.errors import GraphError, OptionError
from mapmrf.images.lattice import numbers
from mapmrf.images.memory import model_bytes
from mapmrf.images.smoothness import check_entries
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import check_bytes

CHUNK = 1 << 14
"""Variables whose unaries are gathered together."""


@dataclass(frozen=True, eq=False)
class UnaryTerms:
    """Unaries (..., L) as given by the user: their variables, whether they are costs, and the label costs.

    `variable` is the name of a variable in error messages.
    """

    given: NDArray[Any]
    costs: bool
    variable: str
    mask: Bools | None = None
    prices: Floats | None = None

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return int(self.given.shape[-1])

    @property
    def n_vars(self) -> int:
        """Number of variables without those of label costs."""
        return self.given.size // self.n_labels if self.mask is None else int(np.count_nonzero(self.mask))

    @property
    def priced(self) -> list[int]:
        """The labels with a cost."""
        return [] if self.prices is None else np.flatnonzero(self.prices).tolist()

    def check_size(self, n_pairs: int, weighted: bool, memory_limit: float | None) -> None:
        """Raise MapMRFError if a model with this many pairs exceeds the limit."""
        n_pairs += self.n_vars * len(self.priced)
        check_bytes(model_bytes(self.n_vars, n_pairs, self.n_labels, weighted), memory_limit, "this model")

    def theta_v(self) -> Floats:
        """Log potentials of all variables, flat; the variable of a label has its cost in state 1."""
        n, n_labels = self.n_vars * self.n_labels, self.n_labels
        prices = np.zeros(0) if self.prices is None else self.prices
        theta = np.empty(n + 2 * len(prices))
        self._gather(theta[:n].reshape(-1, n_labels))
        if not theta[:n].max() < np.inf:  # nan as well
            check_entries(self.given, self.costs, "unary", f"{self.variable} and label", self.mask)
        theta[n::2], theta[n + 1 :: 2] = 0.0, 0.0 - prices
        return theta

    def _gather(self, theta: Floats) -> None:
        """Copy the unaries of the variables, as log potentials."""
        rows = self.given.reshape(-1, self.n_labels)
        where = None if self.mask is None else np.flatnonzero(self.mask)
        for at in range(0, len(theta), CHUNK):
            some = rows[at : at + CHUNK] if where is None else rows[where[at : at + CHUNK]]
            if self.costs:
                np.subtract(0.0, some, out=theta[at : at + CHUNK], dtype=np.float64)  # no -0.0
            else:
                theta[at : at + CHUNK] = some


@dataclass(frozen=True, eq=False)
class PairTerms:
    """The pairs of a model: their variables, two for each, the table for weight 1, and weights.

    There is a weight for every pair, or one for each run of pairs, whose lengths are in `runs`.
    """

    scope: Ints
    table: Floats
    weights: Floats
    runs: Ints | None = None

    def model(self, unaries: UnaryTerms) -> FactorGraph:
        """The model of these pairs and of unaries."""
        n, n_labels, priced = unaries.n_vars, unaries.n_labels, unaries.priced
        tables, table_of, weight, kept = self._shared()
        n_pairs = len(table_of) + n * len(priced)
        scope = self.scope if kept is None else self.scope.reshape(-1, 2)[kept].reshape(-1)
        card = np.full(n, n_labels)
        theta_t, table_sizes = tables.reshape(-1), np.full(len(tables), n_labels**2)
        if unaries.prices is not None:
            card = np.concatenate([card, np.full(n_labels, 2)])
            scope = np.concatenate([scope, *(_price_scope(n, k) for k in priced)])
            table_of = np.concatenate([table_of, np.repeat(len(tables) + np.arange(len(priced)), n)])
            theta_t = np.concatenate([theta_t, *(_price_table(n_labels, k) for k in priced)])
            table_sizes = np.concatenate([table_sizes, np.full(len(priced), 2 * n_labels)])
            weight = None if weight is None else np.concatenate([weight, np.ones(n * len(priced))])
        return FactorGraph(
            card=card,
            theta_v=unaries.theta_v(),
            scope_ptr=np.arange(0, 2 * n_pairs + 1, 2, dtype=np.int32 if n_pairs < 2**30 else np.int64),
            scope=scope,
            table_of=short(table_of),
            table_ptr=offsets(table_sizes),
            theta_t=theta_t,
            weight=weight,
        )

    def _shared(self) -> tuple[Floats, Ints, Floats | None, Bools | None]:
        """Tables, the table of every pair, the weights of pairs (None: all 1), and which pairs are kept (None: all).

        A single weight is multiplied into the table. Pairs of weight 0 are kept, so that a lattice stays one, unless
        the table forbids something, which a weight of 0 cannot scale.
        """
        if self.runs is not None:
            distinct, of = np.unique(self.weights, return_inverse=True)
            tables = distinct[:, None, None] * self.table
            table_of: Ints = np.zeros(len(self.scope) // 2, dtype=np.int32)
            if len(distinct) > 1:
                table_of[:] = np.repeat(of, self.runs)
            return tables, table_of, None, None
        weight, kept = self.weights, None
        if np.isneginf(self.table).any() and not weight.min(initial=np.inf) > 0:
            kept = weight > 0
            weight = weight[kept]
        table_of = np.zeros(len(weight), dtype=np.int32)
        if len(weight) == 0 or weight.min() == weight.max():
            return (weight[0] if len(weight) else 1.0) * self.table[None], table_of, None, kept
        return self.table[None], table_of, weight, kept


def checked_prices(label_costs: ArrayLike | None, n_labels: int) -> Floats | None:
    """The cost of using each label; a single number applies to all of them."""
    if label_costs is None:
        return None
    prices = numbers(label_costs, "label_costs")
    if prices.shape not in ((), (n_labels,)):
        raise GraphError(
            f"label_costs have shape {prices.shape}, expected a number or ({n_labels},), one for each label"
        )
    prices = np.broadcast_to(prices, (n_labels,))
    for k, price in enumerate(prices.tolist()):
        if not 0 <= price < math.inf:
            raise OptionError(f"label_costs of label {k} is {price}, expected a finite number of at least 0")
    return prices


def as_given(values: ArrayLike, what: str) -> NDArray[Any]:
    """Numbers of any type as an array, without a copy if possible."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as error:
        raise GraphError(f"{what} is not an array of numbers ({error})") from None
    return array if array.dtype.kind in "biuf" else numbers(array, what)


def _price_scope(n: int, k: int) -> Ints:
    """Pairs of every variable with that of label k."""
    scope = np.empty((n, 2), dtype=np.int32 if n + k < 2**31 else np.int64)
    scope[:, 0], scope[:, 1] = np.arange(n), n + k
    return scope.reshape(-1)


def _price_table(n_labels: int, k: int) -> Floats:
    """A variable may have label k only if the variable of that label is in state 1."""
    table = np.zeros((n_labels, 2))
    table[k, 0] = -np.inf
    return table.reshape(-1)
