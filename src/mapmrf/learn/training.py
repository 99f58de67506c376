"""The results of training, and its log with callbacks and Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.learn.features import LinearModel
from mapmrf.learn.inference import QUICK, Inference, infer
from mapmrf.model.graph import FactorGraph
from mapmrf.run import interrupts
from mapmrf.run.result import Result


class TrainingPoint(NamedTuple):
    """Training after an epoch.

    Attributes
    ----------
    epoch
        Passes over the examples so far.
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
    >>> import numpy as np
    >>> from mapmrf.learn import TrainingPoint
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
    >>> import numpy as np
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
        >>> import numpy as np
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
        """Record a point and call the callback."""
        self.points.append(point)
        if self.callback is not None and self.callback(point):
            self.cancelled = True
