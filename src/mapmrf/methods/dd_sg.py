"""DD-SG: dual decomposition into trees, with the dual minimised by subgradient steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mapmrf.engines.decomposition import subgradient as kernels
from mapmrf.engines.decomposition.subgradient import DescentOptions, SubgradientDescent
from mapmrf.engines.decomposition.subproblems import Decomposition
from mapmrf.errors import OptionError
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, Progress, Start
from mapmrf.run.options import check_above, check_at_least, check_choice

Parts = Literal["trees", "factors"]
StepRule = Literal["level", "polyak", "diminishing"]
LabelSource = Literal["all", "majority", "average", "subproblems"]

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

    max_iterations: int = 1000
    decomposition: Parts = "trees"
    rule: StepRule = "level"
    step_size: float = 1.0
    patience: int = 40
    decay: float = 1.0
    exponent: float = 0.5
    decode: LabelSource = "all"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        check_choice(self, "decomposition", get_args(Parts))
        check_choice(self, "rule", get_args(StepRule))
        check_choice(self, "decode", get_args(LabelSource))
        check_at_least(self, 1, "max_iterations", "patience")
        check_above(self, 0, "step_size")
        check_at_least(self, 0, "decay", "exponent", "tolerance")
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
