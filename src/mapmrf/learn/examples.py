"""Training examples: a model, its true labels, and the loss of other labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import GraphError, OptionError
from mapmrf.learn.features import LinearModel
from mapmrf.model.checks import as_array
from mapmrf.model.graph import FactorGraph


@dataclass(frozen=True, eq=False)
class Example:
    """A model with its true labels.

    Attributes
    ----------
    model
        The model.
    truth : (n_vars,)
        The true labels.
    loss_v : (n_states,)
        Loss of each state of each variable, laid out like ``theta_v``.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.learn import Example, LinearModel
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
        model
            The model.
        truth : (n_vars,)
            The true labels, which the model must allow.
        loss : (n_vars,), (n_vars, n_states) or n_vars arrays of (card,)
            As in `mapmrf.bridges.loss_augmented`: 1 for each wrong label, or a loss per variable or per state.

        Examples
        --------
        >>> from mapmrf.learn import Example, LinearModel
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> example = Example.of(model, [1, 0])
        >>> example.loss_v.tolist()
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
        >>> from mapmrf.learn import Example, LinearModel
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> example = Example.of(model, [1, 0])
        >>> example.loss([0, 0])
        1.0
        """
        graph = self.model.graph
        return float(self.loss_v[graph.var_ptr[:-1] + graph.check_labels(labels)].sum())

    def augmented(self, weights: ArrayLike) -> FactorGraph:
        """The model with these weights (n_weights,) and the loss added: its MAP is the most violated constraint.

        Examples
        --------
        >>> from mapmrf.learn import Example, LinearModel
        >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=[[[1, 0], [0, 1]]])
        >>> example = Example.of(model, [1, 0])
        >>> example.augmented([0.0, 2.0, 0.5]).theta_v.tolist()
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
    """The loss of every state of every variable, laid out like `theta_v`; `loss` as in `loss_augmented`.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> state_losses(mapmrf.FactorGraph.from_tables([2, 3], [], []), np.array([1, 0]), None).tolist()
    [1.0, 0.0, 0.0, 1.0, 1.0]
    """
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
