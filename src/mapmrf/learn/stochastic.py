"""Stochastic subgradient training, for the hinge loss and for the perturb-and-MAP likelihood."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.errors import OptionError
from mapmrf.learn.examples import Example, check_examples
from mapmrf.learn.hinge import hinge_loss
from mapmrf.learn.inference import QUICK, Inference
from mapmrf.learn.likelihood import log_likelihood
from mapmrf.learn.training import Trained, TrainingCallback, TrainingLog, TrainingPoint
from mapmrf.run import interrupts
from mapmrf.run.result import Result, Status

Target = Literal["hinge", "likelihood"]


@dataclass(frozen=True)
class StochasticDescent:
    """Minimise ``regularisation / 2 |w|^2`` plus the mean hinge loss, or minus the mean log likelihood.

    Steps use one example at a time, in random order, and decrease in length; the weights returned are averaged over the
    steps, late ones counting more. Ctrl-C ends training with the weights so far.

    Attributes
    ----------
    target
        ``"hinge"``, the structured SVM, or ``"likelihood"``, that of perturb-and-MAP.
    regularisation
        Weight of the squared norm; above 0.
    epochs
        Passes over the examples.
    samples
        Perturbed models per example and step, for the likelihood; redrawn in each step.
    step
        Length of the steps: ``step / sqrt(t)`` in step t; None for ``1 / (regularisation t)``.
    inference
        How labellings are found: see `hinge_loss`.
    seed
        Seed of the order, of the noise and of inference.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf import learn
    >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> training = learn.StochasticDescent("likelihood", regularisation=0.1)
    >>> training.fit([learn.Example.of(model, [1, 0])]).predict(model).labels.tolist()
    [1, 0]
    """

    target: Target = "hinge"
    regularisation: float = 0.01
    epochs: int = 20
    samples: int = 1
    step: float | None = None
    inference: Inference = QUICK
    seed: int = 0

    def __post_init__(self) -> None:
        if self.target not in get_args(Target):
            raise OptionError(f"target is {self.target!r}, expected one of {', '.join(get_args(Target))}")
        if not self.regularisation > 0 or (self.step is not None and not self.step > 0):
            raise OptionError(f"regularisation is {self.regularisation}, step {self.step}, expected numbers above 0")
        if self.epochs < 1 or self.samples < 1:
            raise OptionError(f"epochs is {self.epochs} and samples {self.samples}, expected at least 1")

    def fit(self, examples: Sequence[Example], callback: TrainingCallback | None = None) -> Trained:
        """Learn from examples; `callback` gets a `TrainingPoint` per epoch, and ends training by returning true.

        Examples
        --------
        >>> from mapmrf import learn
        >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
        >>> examples = [learn.Example.of(model, [1, 0])]
        >>> learn.StochasticDescent("hinge").fit(examples, lambda point: point.epoch >= 2).status
        'interrupted'
        """
        path = DescentPath(self, examples, check_examples(examples))
        log, random = TrainingLog(callback), np.random.default_rng(self.seed)
        with interrupts.Interrupts():
            for epoch in range(1, self.epochs + 1):
                losses = []
                for i in random.permutation(len(examples)).tolist():
                    if log.stopped:
                        break
                    losses.append(path.step(i, int(random.integers(2**31))))
                if not log.stopped:
                    value, exact = float(np.mean([loss.value for loss in losses])), all(loss.exact for loss in losses)
                    log.add(TrainingPoint(epoch, value, -np.inf, exact, path.mean.copy()))
                if log.stopped:
                    break
        status = "interrupted" if log.cancelled else "epoch_limit"
        return Trained(path.mean, status, tuple(log.points), self.inference)


class LossAt(NamedTuple):
    """A loss with its gradient, and whether inference was exact."""

    value: float
    gradient: Floats
    exact: bool


class DescentPath:
    """The weights, their average, and the last result of inference on each example, from which the next starts."""

    def __init__(self, options: StochasticDescent, examples: Sequence[Example], n_weights: int) -> None:
        self.options, self.examples = options, examples
        self.weights, self.mean, self.t = np.zeros(n_weights), np.zeros(n_weights), 0
        self.known: list[Result | None] = [None] * len(examples)

    def step(self, i: int, seed: int) -> LossAt:
        """Move along the gradient of one example; return its regularised loss before."""
        found, lam = self.look(i, seed), self.options.regularisation
        value = found.value + lam / 2 * float(self.weights @ self.weights)
        self.t += 1
        length = 1.0 / (lam * self.t) if self.options.step is None else self.options.step / np.sqrt(self.t)
        self.weights = self.weights - length * (lam * self.weights + found.gradient)
        self.mean = self.mean + 2.0 / (self.t + 1) * (self.weights - self.mean)
        return found._replace(value=value)

    def look(self, i: int, seed: int) -> LossAt:
        """The loss of an example."""
        how, example, start = self.options, self.examples[i], self.known[i]
        if how.target == "hinge":
            hinge = hinge_loss(example, self.weights, how.inference, initial=start, seed=seed)
            self.known[i] = hinge.result
            return LossAt(hinge.value, hinge.gradient, hinge.exact)
        found = log_likelihood(example, self.weights, how.inference, samples=how.samples, initial=start, seed=seed)
        self.known[i] = found.result
        return LossAt(-found.value, -found.gradient, found.result.status is Status.OPTIMAL)
