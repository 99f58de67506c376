"""Structured SVM by block-coordinate Frank-Wolfe (Lacoste-Julien, Jaggi, Schmidt, Pletscher, ICML 2013)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, segment_max
from mapmrf.errors import OptionError
from mapmrf.learn.features import Example, LinearModel, check_examples
from mapmrf.learn.training import (
    QUICK,
    Hinge,
    Inference,
    Trained,
    TrainingCallback,
    TrainingLog,
    TrainingPoint,
    hinge_loss,
    log_likelihood,
)
from mapmrf.run import interrupts
from mapmrf.run.result import Result, Status


@dataclass(frozen=True)
class StructuredSVM:
    """Minimise ``regularisation / 2 |w|^2`` plus the mean hinge loss of examples.

    Each step takes one example, finds its most violated labelling, and then moves the example's part of the dual from
    the worst of the labellings found so far to the best, a few times, each time by the best length (pairwise steps;
    Osokin et al., ICML 2016). Training ends when the duality gap is within the tolerance. Ctrl-C also ends it, with
    the weights so far.

    Attributes
    ----------
    regularisation
        Weight of the squared norm; above 0.
    epochs
        Passes over the examples, in a random order each.
    tol
        Gap between objective and dual at which to stop, relative to the examples' mean largest loss.
    averaging
        Whether the weights are averaged over the steps, late ones counting more: better at first, slower in the end.
    check_every
        Epochs between measurements of the gap, which cost as much as an epoch.
    inference
        How labellings are found: see `hinge_loss`. Objective and dual hold if it is exact.

    Examples
    --------
    >>> from mapmrf import learn
    >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
    >>> trained = learn.StructuredSVM(regularisation=0.1, tol=1e-6).fit([learn.Example.of(model, [1, 0])])
    >>> trained.status, bool(trained.history[-1].gap < 1e-5)
    ('converged', True)
    """

    regularisation: float = 0.01
    epochs: int = 100
    tol: float = 1e-3
    averaging: bool = False
    check_every: int = 5
    inference: Inference = QUICK
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.regularisation > 0:
            raise OptionError(f"regularisation is {self.regularisation}, expected a number above 0")
        if self.epochs < 1 or self.check_every < 1:
            raise OptionError(f"epochs is {self.epochs} and check_every {self.check_every}, expected at least 1")

    def fit(self, examples: Sequence[Example], callback: TrainingCallback | None = None) -> Trained:
        """Learn from examples; `callback` gets every `TrainingPoint`, and ends training by returning true.

        Examples
        --------
        >>> from mapmrf import learn
        >>> model = learn.LinearModel.pairwise([[1.0], [-1.0]], [[0, 1]], n_states=2)
        >>> examples = [learn.Example.of(model, [1, 0])]
        >>> learn.StructuredSVM(check_every=1, tol=-1).fit(examples, lambda point: point.epoch >= 2).status
        'interrupted'
        """
        descent = BlockDual(self, examples, check_examples(examples))
        largest = [float(segment_max(each.loss_v, each.model.graph.var_ptr).sum()) for each in examples]
        close = self.tol * float(np.mean(largest))
        log, random, status = TrainingLog(callback), np.random.default_rng(self.seed), "epoch_limit"
        with interrupts.Interrupts():
            for epoch in range(1, self.epochs + 1):
                for i in random.permutation(len(examples)).tolist():
                    if log.stopped:
                        break
                    descent.step(i)
                if not log.stopped and (epoch % self.check_every == 0 or epoch == self.epochs):
                    log.add(descent.measure(epoch))
                    status = "converged" if log.points[-1].gap <= close else status
                if log.stopped or status == "converged":
                    break
        status = "interrupted" if log.cancelled and status != "converged" else status
        return Trained(descent.chosen()[0], status, tuple(log.points), self.inference)


class Corners:
    """The labellings of one example in its part of the dual, and their shares."""

    def __init__(self, w: Floats, loss: float) -> None:
        # w: (n_corners, n_weights), loss: (n_corners,), contributions of each corner to the weights and to the linear
        # part of the dual
        # share: (n_corners,), the convex combination: non-negative, with sum 1
        self.w, self.loss, self.share = w[None], np.array([loss]), np.ones(1)

    def add(self, w: Floats, loss: float) -> None:
        """Add a corner unless it is already present, and drop those that are not used."""
        if np.any((self.loss == loss) & np.all(self.w == w, axis=1)):
            return
        used = self.share > 0
        self.w, self.loss = np.vstack([self.w[used], w]), np.append(self.loss[used], loss)
        self.share = np.append(self.share[used], 0.0)

    def move(self, weights: Floats, regularisation: float) -> tuple[Floats, float]:
        """Move share from the worst corner in use to the best, as far as the dual increases; return the changes."""
        rise = self.loss - regularisation * (self.w @ weights)
        best, worst = int(rise.argmax()), int(np.where(self.share > 0, rise, np.inf).argmin())
        along = self.w[best] - self.w[worst]
        curvature, gain = regularisation * float(along @ along), float(rise[best] - rise[worst])
        most = float(self.share[worst])
        length = min(gain / curvature, most) if curvature > 0 else most * (gain > 0)
        self.share[best] += length
        self.share[worst] = 0.0 if length == most and best != worst else self.share[worst] - length
        return length * along, length * float(self.loss[best] - self.loss[worst])


class BlockDual:
    """The dual of a structured SVM: a convex combination of labellings for each example."""

    def __init__(self, options: StructuredSVM, examples: Sequence[Example], n_weights: int) -> None:
        self.options, self.examples = options, examples
        n = len(examples)
        at_truth = [example.loss(example.truth) / n for example in examples]
        # contributions of each example; initially the true labelling
        self.corners = [Corners(np.zeros(n_weights), loss) for loss in at_truth]
        # weights: (n_weights,), linear: the linear part of the dual
        self.weights, self.linear = np.zeros(n_weights), float(sum(at_truth))
        # mean_weights, mean_linear: their averages over the steps
        self.mean_weights, self.mean_linear, self.steps = np.zeros(n_weights), self.linear, 0
        # the last result of inference on each example, from which the next starts
        self.known: list[Result | None] = [None] * n

    def look(self, i: int, weights: Floats) -> Hinge:
        how, start = self.options, self.known[i]
        found = hinge_loss(self.examples[i], weights, how.inference, initial=start, seed=how.seed)
        self.known[i] = found.result
        return found

    def step(self, i: int) -> None:
        """Add the most violated labelling of an example to its corners, and improve their combination."""
        found, n, lam = self.look(i, self.weights), len(self.examples), self.options.regularisation
        example, fixed = self.examples[i], self.examples[i].model.graph
        loss = example.loss(found.labels) + fixed.value(found.labels) - fixed.value(example.truth)
        self.corners[i].add(-found.gradient / (lam * n), loss / n)
        for _ in range(10):  # moves, which take much less time than inference
            along, more = self.corners[i].move(self.weights, lam)
            self.weights = self.weights + along
            self.linear += more
        share = 2.0 / (self.steps + 2)
        self.mean_weights = (1 - share) * self.mean_weights + share * self.weights
        self.mean_linear = (1 - share) * self.mean_linear + share * self.linear
        self.steps += 1

    def chosen(self) -> tuple[Floats, float]:
        """The weights to return, and the linear part of their dual."""
        return (self.mean_weights, self.mean_linear) if self.options.averaging else (self.weights, self.linear)

    def measure(self, epoch: int) -> TrainingPoint:
        """Objective and dual at the weights to return."""
        weights, linear = self.chosen()
        found = [self.look(i, weights) for i in range(len(self.examples))]
        norm = self.options.regularisation / 2 * float(weights @ weights)
        objective = norm + float(np.mean([each.value for each in found]))
        return TrainingPoint(epoch, objective, linear - norm, all(each.exact for each in found), weights.copy())


@dataclass(eq=False)
class StructuredClassifier:
    """`StructuredSVM` with the interface of scikit-learn, for `clone`, `cross_val_score`, `GridSearchCV` and the like.

    Samples are models, targets their true labels. scikit-learn itself is not required.

    Attributes
    ----------
    regularisation, epochs, tol, averaging, check_every, inference, seed
        As for `StructuredSVM`.
    trained_
        The weights and the course of training, after `fit`.

    Examples
    --------
    >>> from mapmrf import learn
    >>> models = [learn.LinearModel.pairwise([[x], [-x]], [[0, 1]], n_states=2) for x in (1.0, -2.0)]
    >>> learned = StructuredClassifier(regularisation=0.1).fit(models, [[1, 0], [0, 1]])
    >>> [labels.tolist() for labels in learned.predict(models)], learned.score(models, [[1, 0], [0, 0]])
    ([[1, 0], [0, 1]], 0.75)
    >>> learned.set_params(epochs=5).get_params()["epochs"]
    5
    """

    regularisation: float = 0.01
    epochs: int = 100
    tol: float = 1e-3
    averaging: bool = False
    check_every: int = 5
    inference: Inference = QUICK
    seed: int = 0
    trained_: Trained = field(init=False, repr=False)

    def fit(self, models: Sequence[LinearModel], truths: Sequence[ArrayLike]) -> StructuredClassifier:
        """Learn the weights from models and their true labels, (n_vars,) each."""
        examples = [Example.of(model, truth) for model, truth in _pairs(models, truths)]
        self.trained_ = StructuredSVM(**self.get_params()).fit(examples)
        return self

    def predict(self, models: Sequence[LinearModel]) -> list[Ints]:
        """The best labels of models, (n_vars,) each."""
        if not hasattr(self, "trained_"):
            raise OptionError("the classifier is not fitted, expected a call of `fit` before")
        return [self.trained_.predict(model).labels for model in models]

    def score(self, models: Sequence[LinearModel], truths: Sequence[ArrayLike]) -> float:
        """The share of the variables of all models that get their true label, in `truths`: (n_vars,) for each."""
        pairs = _pairs(self.predict(models), truths)
        return float(np.mean(np.concatenate([np.asarray(labels) == truth for labels, truth in pairs])))

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The options by name; `deep` has no meaning here."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.init}

    def set_params(self, **options: Any) -> StructuredClassifier:
        """Change options by name."""
        for name, value in options.items():
            if name not in self.get_params():
                raise OptionError(f"there is no option {name!r}, expected one of {', '.join(self.get_params())}")
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags  # only scikit-learn asks for them

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))


def _pairs(ones: Sequence[Any], others: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    if len(ones) != len(others):
        raise OptionError(f"{len(ones)} models and the labels of {len(others)}, expected as many")
    return zip(ones, others, strict=True)


# -- Stochastic subgradient training, for the hinge loss and for the perturb-and-MAP likelihood -----------------------


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
    samples
        Perturbed models per example and step, for the likelihood; redrawn in each step.
    step
        Length of the steps: ``step / sqrt(t)`` in step t; None for ``1 / (regularisation t)``.
    inference
        How labellings are found: see `hinge_loss`.

    Examples
    --------
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
                    value, exact = float(np.mean([loss for loss, _ in losses])), all(exact for _, exact in losses)
                    log.add(TrainingPoint(epoch, value, -np.inf, exact, path.mean.copy()))
                if log.stopped:
                    break
        status = "interrupted" if log.cancelled else "epoch_limit"
        return Trained(path.mean, status, tuple(log.points), self.inference)


class DescentPath:
    """The weights, their average, and the last result of inference on each example, from which the next starts."""

    def __init__(self, options: StochasticDescent, examples: Sequence[Example], n_weights: int) -> None:
        self.options, self.examples = options, examples
        self.weights, self.mean, self.t = np.zeros(n_weights), np.zeros(n_weights), 0
        self.known: list[Result | None] = [None] * len(examples)

    def step(self, i: int, seed: int) -> tuple[float, bool]:
        """Move along the gradient of one example; return its regularised loss before, and whether it is exact."""
        how, example, start, lam = self.options, self.examples[i], self.known[i], self.options.regularisation
        if how.target == "hinge":
            hinge = hinge_loss(example, self.weights, how.inference, initial=start, seed=seed)
            value, gradient, result = hinge.value, hinge.gradient, hinge.result
        else:
            found = log_likelihood(example, self.weights, how.inference, samples=how.samples, initial=start, seed=seed)
            value, gradient, result = -found.value, -found.gradient, found.result
        self.known[i] = result
        value += lam / 2 * float(self.weights @ self.weights)
        self.t += 1
        length = 1.0 / (lam * self.t) if how.step is None else how.step / np.sqrt(self.t)
        self.weights = self.weights - length * (lam * self.weights + gradient)
        self.mean = self.mean + 2.0 / (self.t + 1) * (self.weights - self.mean)
        return value, result.status is Status.OPTIMAL
