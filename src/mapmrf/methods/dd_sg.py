"""DD-SG: dual decomposition into trees, with the dual minimised by subgradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mapmrf.engines.decomposition import subgradient as kernels
from mapmrf.engines.decomposition.subgradient import DescentOptions, SubgradientDescent
from mapmrf.engines.decomposition.subproblems import Decomposition
from mapmrf.errors import OptionError
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveFloat, PositiveInt, Progress, Start

RULES = {"level": kernels.LEVEL, "polyak": kernels.POLYAK, "diminishing": kernels.DIMINISHING}
WAYS = {"majority": kernels.MAJORITY, "average": kernels.AVERAGE, "subproblems": kernels.SUBPROBLEM}


@dataclass(frozen=True)
class DDSG(Method):
    """Decompose the factor graph into trees, solve each exactly, and shift potentials until they agree (ogm-DD-SG).

    Every tree has its own copy of its variables, and the unary potentials are distributed over the copies. The trees'
    maxima sum to an upper bound. Where copies disagree, a subgradient step moves potential from the states that each
    copy chose to those that the others chose; the sum over the copies never changes.

    Attributes
    ----------
    max_iterations
        Maximum number of rounds; each solves all subproblems and takes one subgradient step.
    decomposition
        ``trees``: successive maximal forests that cover every factor once; ``factors``: one subproblem per factor.
    rule
        Step length. ``level``: towards a level below the best bound, which moves closer when it is missed. ``polyak``:
        towards the value of the best labelling. ``diminishing``: step_size / (1 + (decay t)^exponent) in round t, in
        units of the typical size of a potential.
    step_size
        Factor on the step length.
    patience
        Rounds without the targeted progress after which the level rule halves its target.
    decay, exponent
        Decay of the step length in the diminishing rule.
    decode
        Source of labellings. ``majority``: the votes of a variable's copies. ``average``: the average of the copies'
        choices over the rounds. ``subproblems``: one tree after another, completed by majority. ``all``: these in turn.
    tolerance
        Relative gap between bound and value at which to stop.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.potts_image(12, 16, labels=3).graph
    >>> mapmrf.solve(graph, mapmrf.DDSG(decomposition="trees")).status.value
    'optimal'
    """

    name: ClassVar[str] = "dd_sg"
    title: ClassVar[str] = "subgradient dual decomposition into trees (ogm-DD-SG)"
    family: ClassVar[str] = "LP and decomposition"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    decomposition: Literal["trees", "factors"] = "trees"
    rule: Literal["level", "polyak", "diminishing"] = "level"
    step_size: PositiveFloat = 1.0
    patience: PositiveInt = 40
    decay: NonNegativeFloat = 1.0
    exponent: NonNegativeFloat = 0.5
    decode: Literal["all", "majority", "average", "subproblems"] = "all"
    tolerance: NonNegativeFloat = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decode == "subproblems" and self.decomposition == "factors":
            raise OptionError("dd_sg: decode is 'subproblems', but a single factor gives no labelling")

    def start(self, problem: Problem, seed: int, initial: Start) -> SubgradientDescent:
        cut = Decomposition.into_trees if self.decomposition == "trees" else Decomposition.into_factors
        ways = tuple(WAYS.values()) if self.decomposition == "trees" else (WAYS["majority"], WAYS["average"])
        if self.decode != "all":
            ways = (WAYS[self.decode],)
        options = DescentOptions(
            rule=RULES[self.rule],
            step_size=self.step_size,
            patience=self.patience,
            tolerance=self.tolerance,
            ways=ways,
            decay=self.decay,
            exponent=self.exponent,
        )
        run = SubgradientDescent(problem, cut(problem), options, initial.labels)
        if initial.dual is not None:
            run.resume(problem, initial.dual)
        return run

    def step(self, problem: Problem, state: SubgradientDescent) -> Progress:
        return state.step(self.max_iterations)

    def answer(self, problem: Problem, state: SubgradientDescent) -> Answer:
        """The best labelling, and the average of the trees' choices as the relaxed solution."""
        return state.answer(problem)
