"""What the author of a method imports, under the path that programs import it from."""

from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, PhasedRun, Phases, Progress, Start

__all__ = ["Answer", "Method", "PhasedRun", "Phases", "Problem", "Progress", "Start"]
