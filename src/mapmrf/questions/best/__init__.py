"""The m best labellings of a model, plain or diverse."""

from mapmrf.questions.best.solving import BestLabellings, Diversity, solve_best

__all__ = ["BestLabellings", "Diversity", "solve_best"]
