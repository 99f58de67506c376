"""Learning the weights of a model: structured hinge loss, structured SVM, perturb-and-MAP likelihood.

Potentials are linear in the weights (`LinearModel`), an `Example` adds the true labels, and training solves MAP
problems by `mapmrf.learn.inference` or any method.

>>> import numpy as np
>>> from mapmrf import learn
>>> model = learn.LinearModel.pairwise(np.array([[1.0], [-1.0]]), [[0, 1]], n_states=2)
>>> learn.StructuredSVM(regularisation=0.1).fit([learn.Example.of(model, [1, 0])]).status
'converged'
"""

from __future__ import annotations

from mapmrf.learn.examples import Example as Example
from mapmrf.learn.features import LinearModel as LinearModel
from mapmrf.learn.frank_wolfe import StructuredSVM as StructuredSVM
from mapmrf.learn.hinge import Hinge as Hinge
from mapmrf.learn.hinge import hinge_loss as hinge_loss
from mapmrf.learn.likelihood import Likelihood as Likelihood
from mapmrf.learn.likelihood import log_likelihood as log_likelihood
from mapmrf.learn.stochastic import StochasticDescent as StochasticDescent
from mapmrf.learn.training import Trained as Trained
from mapmrf.learn.training import TrainingPoint as TrainingPoint
