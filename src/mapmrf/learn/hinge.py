"""The structured hinge loss, its subgradient, and loss-augmented inference."""

from __future__ import annotations

from typing import NamedTuple

from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.learn.examples import Example
from mapmrf.learn.inference import QUICK, Inference, infer
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import Initial


class Hinge(NamedTuple):
    """The hinge loss of an example.

    Attributes
    ----------
    value
        The loss, at least 0; a lower bound unless `exact`.
    gradient : (n_weights,)
        A subgradient at the weights.
    labels : (n_vars,)
        The most violated labelling found.
    exact
        Whether it is proven to be the most violated one.
    result
        The Result of inference, for a warm start of the next call.

    Examples
    --------
    >>> from mapmrf.learn import Example, LinearModel, hinge_loss
    >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> hinge_loss(Example.of(model, [1, 0]), [0.0] * 6).value
    2.0
    """

    value: float
    gradient: Floats
    labels: Ints
    exact: bool
    result: Result


def hinge_loss(
    example: Example, weights: ArrayLike, inference: Inference = QUICK, *, initial: Initial = None, seed: int = 0
) -> Hinge:
    """Max over labellings y of ``loss(y) + score(y) - score(truth)``, with a subgradient in the weights.

    Parameters
    ----------
    example
        Model, true labels and loss.
    weights : (n_weights,)
        Where to evaluate.
    inference
        How the most violated labelling is found: ``"quick"`` (`mapmrf.learn.inference.solve_quickly`), a
        method, a name with options, or a method object.
    initial : (n_vars,) or Result
        A labelling, or the `result` of an earlier call, to start from.
    seed
        Seed of inference.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.learn import Example, LinearModel, hinge_loss
    >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2, tables=np.eye(2)[None])
    >>> found = hinge_loss(Example.of(model, [1, 0]), [0.0, 0.5, 0.0])
    >>> found.value, found.labels.tolist(), found.gradient.tolist(), found.exact
    (1.0, [0, 1], [2.0, -2.0, 0.0], True)
    """
    found = example.model.check_weights(weights)
    augmented = example.augmented(found)
    result = infer(augmented, inference, initial=initial, seed=seed)
    at_truth = augmented.value(example.truth)  # the truth itself may have a loss
    labels = result.labels if result.value >= at_truth else example.truth  # inference may miss it
    value = max(result.value, at_truth) - example.model.at(found).value(example.truth)
    gradient = example.model.features(labels) - example.model.features(example.truth)
    return Hinge(value, gradient, labels, result.status is Status.OPTIMAL, result)
