"""The results of training, and its log with callbacks and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.elimination.numpy_elimination import small_order
from mapmrf.errors import OptionError
from mapmrf.learn.features import Example, LinearModel
from mapmrf.model.graph import FactorGraph
from mapmrf.run import interrupts
from mapmrf.run.method import Method
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import Initial, solve

QUICK = "quick"  # the name of `solve_quickly` among methods


class TrainingPoint(NamedTuple):
    """Training after an epoch.

    Attributes
    ----------
    objective
        Regularised loss of the weights; a lower bound unless `exact`. In stochastic training, an average over the
        epoch.
    dual
        Lower bound on the optimum, if all inference was exact; -inf if there is none.
    exact
        Whether all inference for these figures was proven optimal.
    weights : (n_weights,)
        The weights that would be returned now.

    Examples
    --------
    >>> TrainingPoint(1, 3.0, 2.5, True, np.zeros(2)).gap
    0.5
    """

    epoch: int
    objective: float
    dual: float
    exact: bool
    weights: Floats

    @property
    def gap(self) -> float:
        """Objective minus dual."""
        return self.objective - self.dual


TrainingCallback = Callable[[TrainingPoint], bool | None]


@dataclass(frozen=True, eq=False)
class Trained:
    """Learned weights.

    Attributes
    ----------
    weights : (n_weights,)
        The weights.
    status
        ``"converged"`` (the gap is within the tolerance), ``"epoch_limit"`` or ``"interrupted"``.
    history
        A point for each measured epoch.
    inference
        How `predict` finds labels.

    Examples
    --------
    >>> from mapmrf import learn
    >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> trained = learn.StructuredSVM(regularisation=0.1).fit([learn.Example.of(model, [1, 0])])
    >>> trained.predict(model).labels.tolist()
    [1, 0]
    """

    weights: Floats
    status: str
    history: tuple[TrainingPoint, ...]
    inference: Inference = QUICK

    def __repr__(self) -> str:
        last = f", objective={self.history[-1].objective:.6g}" if self.history else ""
        return f"Trained({self.status}, {len(self.weights)} weights{last})"

    def predict(self, model: LinearModel | FactorGraph, inference: Inference | None = None) -> Result:
        """Predict the labels of a model, by the inference of training or another.

        Examples
        --------
        >>> from mapmrf import learn
        >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
        >>> learn.Trained(np.array([0.0, 1, 0, 0, 0, 0]), "by hand", ()).predict(model).labels.tolist()
        [1, 0]
        """
        graph = model.at(self.weights) if isinstance(model, LinearModel) else model
        return infer(graph, self.inference if inference is None else inference)


class TrainingLog:
    """The points so far, and whether training must end."""

    def __init__(self, callback: TrainingCallback | None) -> None:
        self.callback = callback
        self.points: list[TrainingPoint] = []
        self.cancelled = False

    @property
    def stopped(self) -> bool:
        """Whether the callback or Ctrl-C ends training."""
        if interrupts.requested():
            interrupts.notice()
            self.cancelled = True
        return self.cancelled

    def add(self, point: TrainingPoint) -> None:
        self.points.append(point)
        if self.callback is not None and self.callback(point):
            self.cancelled = True


# -- The structured hinge loss, its subgradient, and loss-augmented inference -----------------------------------------


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
    weights : (n_weights,)
        Where to evaluate.
    inference
        How the most violated labelling is found: ``"quick"`` (`mapmrf.learn.training.solve_quickly`), a
        method, a name with options, or a method object.
    initial : (n_vars,) or Result
        A labelling, or the `result` of an earlier call, to start from.

    Examples
    --------
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


# Perturb-and-MAP: a bound on the log likelihood from the maxima of perturbed models (Hazan, Jaakkola, ICML 2012).


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
    initial : (n_vars,) or Result
        A labelling, or the `result` of an earlier call, to start from.

    Examples
    --------
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
    """Gumbel noise of mean 0."""
    return np.asarray(random.gumbel(-np.euler_gamma, 1.0, size))


def perturbed(graph: FactorGraph, noise: Floats) -> FactorGraph:
    return replace(graph, theta_v=graph.theta_v + noise)


# -- Inference inside a training loop: a method by name, or relaxation and local search within milliseconds -----------


Inference = str | tuple[str, Mapping[str, Any]] | Method
"""``"quick"``, the name of a method, a name and its options, or a method object."""

ITERATIONS, DEPTH = 15, 2  # iterations of TRW-S, and number of variables that are flipped together


def solve_quickly(
    graph: FactorGraph, *, initial: Initial = None, time_limit: float | None = None, seed: int = 0
) -> Result:
    """Find a good labelling in milliseconds, for loops that solve thousands of models.

    Tiny models are solved exactly, by elimination. All others get a few iterations of TRW-S, which end early if
    the optimum is proven, and then the best flips of single variables and pairs.

    Parameters
    ----------
    initial : (n_vars,) or Result
        A labelling or an earlier Result to start from; the messages of a Result are used as well if its model has the
        same structure.

    Examples
    --------
    >>> from mapmrf.datasets import potts_image
    >>> solve_quickly(potts_image(40, 40, labels=5).graph).status.value
    'optimal'
    """
    if small_order(graph) is not None:
        return solve(graph, DEFAULT_METHOD, initial=initial, time_limit=time_limit, seed=seed)
    from mapmrf.methods.flips import Flips
    from mapmrf.methods.trws import TRWS

    method, polish = TRWS(max_iterations=ITERATIONS), Flips(depth=DEPTH)
    return solve(graph, method, polish=polish, initial=initial, time_limit=time_limit, seed=seed)


def infer(
    graph: FactorGraph,
    inference: Inference = QUICK,
    *,
    initial: Initial = None,
    time_limit: float | None = None,
    seed: int = 0,
) -> Result:
    """Solve a model by `solve_quickly` or by a method.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> [infer(graph, each).value for each in ("quick", "exhaustive", ("icm", {"starts": 2}), mapmrf.TRWS())]
    [2.0, 2.0, 2.0, 2.0]
    """
    if inference == QUICK:
        return solve_quickly(graph, initial=initial, time_limit=time_limit, seed=seed)
    name, options = inference if isinstance(inference, tuple) else (inference, {})
    return solve(graph, make_method(name, dict(options)), initial=initial, time_limit=time_limit, seed=seed)
