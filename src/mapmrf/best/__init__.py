"""The m best labellings of a model, plain or diverse."""

from mapmrf.best.answers import BestLabellings
from mapmrf.best.solving import Diversity, solve_best

__all__ = ["BestLabellings", "Diversity", "solve_best"]
