"""DD-SG: dual decomposition into trees, the dual minimised by subgradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mapmrf.dual_state import DualState
from mapmrf.engines.decomposition import subgradient_kernels as kernels
from mapmrf.engines.decomposition.subgradient import DescentOptions, SubgradientDescent
from mapmrf.engines.decomposition.subproblems import Decomposition
from mapmrf.errors import OptionError
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.problem import Problem

Parts = Literal["trees", "factors"]
StepRule = Literal["level", "polyak", "diminishing"]
LabelSource = Literal["all", "majority", "average", "subproblems"]

RULES = {"level": kernels.LEVEL, "polyak": kernels.POLYAK, "diminishing": kernels.DIMINISHING}
WAYS = {"majority": kernels.MAJORITY, "average": kernels.AVERAGE, "subproblems": kernels.SUBPROBLEM}


@dataclass(frozen=True)
class DDSG(Method):
    """Cut the factor graph into trees, solve each exactly, and move potential until they agree (ogm-DD-SG).

    Every tree has its own copy of the variables that it touches, and the unary potentials are spread over the copies.
    The trees' maxima sum to an upper bound. Where copies disagree, a subgradient step takes potential from what each
    chose and gives it to what the others chose; the sum over the copies never changes.

    Attributes
    ----------
    max_iterations
        Limit on the rounds: each solves all subproblems and takes one step.
    decomposition
        ``trees``, forests that are maximal one after another and hold every factor once, or ``factors``, one
        subproblem for each factor.
    rule
        Length of the steps. ``level``: towards a level below the best bound, which comes nearer when it is missed.
        ``polyak``: towards the value of the best labelling. ``diminishing``: step_size / (1 + (decay t)^exponent) in
        round t, in units of the typical size of a potential.
    step_size
        Factor of the steps' length.
    patience
        Rounds without the progress aimed at, after which the level rule aims at half of it.
    decay, exponent
        How the steps of the diminishing rule shrink.
    decode
        Where labellings come from. ``majority``: the votes of a variable's copies. ``average``: the average of the
        copies' choices over the rounds. ``subproblems``: one tree after another, completed by the majority. ``all``:
        these in turn.
    tolerance
        Relative gap between bound and labelling at which to stop.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import potts_image
    >>> graph = potts_image(12, 16, labels=3).graph
    >>> mapmrf.solve(graph, mapmrf.DDSG(decomposition="trees")).status.value
    'optimal'
    """

    name: ClassVar[str] = "dd_sg"
    title: ClassVar[str] = "dual decomposition into trees, by subgradients (ogm-DD-SG)"
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
            raise OptionError("dd_sg: decode is 'subproblems', but a single factor has no labelling of its own")

    def start(self, problem: Problem, seed: int, initial: Start) -> SubgradientDescent:
        """Cut the problem and spread the unary potentials."""
        cut = Decomposition.into_trees if self.decomposition == "trees" else Decomposition.into_factors
        options = DescentOptions(
            rule=RULES[self.rule],
            step_size=self.step_size,
            patience=self.patience,
            tolerance=self.tolerance,
            ways=self._ways(),
            decay=self.decay,
            exponent=self.exponent,
        )
        run = SubgradientDescent(problem, cut(problem), options, initial.labels)
        if initial.dual is not None:
            run.resume(problem, initial.dual)
        return run

    def step(self, problem: Problem, state: SubgradientDescent) -> Progress:
        """Some rounds."""
        return state.step(self.max_iterations)

    def dual(self, problem: Problem, state: SubgradientDescent) -> DualState | None:
        """What the copies have gained and lost."""
        return state.moved(problem)

    def answer(self, problem: Problem, state: SubgradientDescent) -> Answer:
        """The best labelling, and the average of the trees' choices as the relaxed solution."""
        return state.answer(problem)

    def _ways(self) -> tuple[int, ...]:
        """The kernels' names of the ways to a labelling."""
        if self.decode != "all":
            return (WAYS[self.decode],)
        return tuple(WAYS.values()) if self.decomposition == "trees" else (WAYS["majority"], WAYS["average"])
