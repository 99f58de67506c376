"""Learning the weights of a model: structured hinge loss, structured SVM, perturb-and-MAP likelihood.

Potentials are linear in the weights (`LinearModel`), an `Example` adds the true labels, and training solves MAP
problems by `mapmrf.learn.training` or any method.

>>> import numpy as np
>>> from mapmrf import learn
>>> model = learn.LinearModel.pairwise(np.array([[1.0], [-1.0]]), [[0, 1]], n_states=2)
>>> learn.StructuredSVM(regularisation=0.1).fit([learn.Example.of(model, [1, 0])]).status
'converged'
"""

from __future__ import annotations

from mapmrf.learn.features import Example, LinearModel
from mapmrf.learn.frank_wolfe import StochasticDescent, StructuredClassifier, StructuredSVM
from mapmrf.learn.training import Hinge, Likelihood, Trained, TrainingPoint, hinge_loss, log_likelihood

__all__ = [
    "Example",
    "Hinge",
    "Likelihood",
    "LinearModel",
    "StochasticDescent",
    "StructuredClassifier",
    "StructuredSVM",
    "Trained",
    "TrainingPoint",
    "hinge_loss",
    "log_likelihood",
]
