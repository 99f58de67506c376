"""Perturb-and-MAP: a bound on the log likelihood from the maxima of perturbed models (Hazan, Jaakkola, ICML 2012)."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats
from mapmrf.errors import OptionError
from mapmrf.learn.examples import Example
from mapmrf.learn.inference import QUICK, Inference, infer
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import Result
from mapmrf.run.solve import Initial


class Likelihood(NamedTuple):
    """An estimate of an example's log likelihood.

    Attributes
    ----------
    value
        The estimate: on average at most the log likelihood, if inference is exact.
    gradient : (n_weights,)
        Its gradient in the weights.
    error
        Standard error of the value.
    result
        The last Result of inference, for a warm start of the next call.

    Examples
    --------
    >>> from mapmrf.learn import Example, LinearModel, log_likelihood
    >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> found = log_likelihood(Example.of(model, [1, 0]), [0.0] * 6, samples=100)  # four labellings, equally likely
    >>> bool(abs(found.value + 2 * np.log(2)) < 5 * found.error)
    True
    """

    value: float
    gradient: Floats
    error: float
    result: Result


def log_likelihood(
    example: Example,
    weights: ArrayLike,
    inference: Inference = QUICK,
    *,
    samples: int = 10,
    initial: Initial = None,
    seed: int = 0,
) -> Likelihood:
    """Estimate ``score(truth) - log Z``, Z by the mean maximum of models with Gumbel noise on all unary potentials.

    That mean is at least log Z, and equal to it where there are no factors. For a fixed seed, the estimate is a concave
    function of the weights, and the gradient is exact.

    Parameters
    ----------
    example
        Model and true labels; its loss is not used.
    weights : (n_weights,)
        Where to evaluate.
    inference
        How maxima are found: see `hinge_loss`.
    samples
        Number of perturbed models.
    initial : (n_vars,) or Result
        A labelling, or the `result` of an earlier call, to start from.
    seed
        Seed of the noise.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.learn import Example, LinearModel, log_likelihood
    >>> model = LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> example = Example.of(model, [1, 0])
    >>> values = [log_likelihood(example, [0, scale, 0, 0, 0, 0], samples=200).value for scale in (0.0, 1.0, 3.0)]
    >>> values[0] < values[1] < values[2]
    True
    """
    if samples < 1:
        raise OptionError(f"samples is {samples}, expected at least 1")
    model = example.model
    found = model.check_weights(weights)
    graph, random = model.at(found), np.random.default_rng(seed)
    maxima, features, last = np.zeros(samples), np.zeros(model.n_weights), initial
    for s in range(samples):
        noisy = perturbed(graph, gumbel(random, len(graph.theta_v)))
        last = result = infer(noisy, inference, initial=last, seed=seed)
        maxima[s] = result.value
        features += model.features(result.labels) / samples
    error = float(maxima.std(ddof=1) / np.sqrt(samples)) if samples > 1 else np.inf
    value = graph.value(example.truth) - float(maxima.mean())
    return Likelihood(value, model.features(example.truth) - features, error, result)


def gumbel(random: np.random.Generator, size: int) -> Floats:
    """Gumbel noise of mean 0.

    Examples
    --------
    >>> import numpy as np
    >>> bool(abs(gumbel(np.random.default_rng(0), 100_000).mean()) < 0.01)
    True
    """
    return np.asarray(random.gumbel(-np.euler_gamma, 1.0, size))


def perturbed(graph: FactorGraph, noise: Floats) -> FactorGraph:
    """The model with noise on its unary potentials."""
    return replace(graph, theta_v=graph.theta_v + noise)
