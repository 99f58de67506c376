"""PSDD: projected subgradient dual decomposition, one subproblem for each factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from mapmrf.dual_state import DualState
from mapmrf.engines.decomposition import subgradient_kernels as kernels
from mapmrf.engines.decomposition.subgradient import DescentOptions, SubgradientDescent
from mapmrf.engines.decomposition.subproblems import Decomposition
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.problem import Problem

PSDDRule = Literal["sqrt", "level"]
PrimalSolution = Literal["average", "last"]

RULES = {"sqrt": kernels.SQRT, "level": kernels.LEVEL}


@dataclass(frozen=True)
class PSDD(Method):
    """Let every factor choose its best entry, and move potential between the factors until they agree (PSDD).

    The unary potentials of a variable are spread evenly over its factors. In each round every factor chooses, each
    variable averages what its factors chose for it, and its potentials in every factor move by the step's length
    times the difference. The factors' maxima sum to an upper bound; their choices, averaged over the rounds, tend to
    a solution of the linear relaxation.

    Attributes
    ----------
    max_iterations
        Limit on the rounds.
    rule
        Length of the steps. ``sqrt``: step_size / sqrt(t) in round t, in units of the typical size of a potential;
        step_size is halved whenever the bound has not come down for some rounds. ``level``: step_size times what would
        reach a level below the best bound, which comes nearer when it is missed for some rounds.
    step_size
        Factor of the steps' length.
    patience
        How many rounds that is.
    primal
        The relaxed solution. ``average``: the choices averaged over the later half of the rounds or more, for ``sqrt``
        weighted by the lengths of the steps. ``last``: the choices of the last round.
    tolerance
        Relative gap between bound and labelling at which to stop.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import potts_image
    >>> mapmrf.solve(potts_image(12, 16, labels=3).graph, "psdd").status.value
    'optimal'
    """

    name: ClassVar[str] = "psdd"
    title: ClassVar[str] = "projected subgradient dual decomposition into factors (PSDD)"
    family: ClassVar[str] = "LP and decomposition"
    gives_bound: ClassVar[bool] = True

    max_iterations: int = 2000
    rule: PSDDRule = "sqrt"
    step_size: float = 0.3
    patience: int = 20
    primal: PrimalSolution = "average"
    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        check_choice(self, "rule", get_args(PSDDRule))
        check_choice(self, "primal", get_args(PrimalSolution))
        check_at_least(self, 1, "max_iterations", "patience")
        check_above(self, 0, "step_size")
        check_at_least(self, 0, "tolerance")

    def start(self, problem: Problem, seed: int, initial: Start) -> SubgradientDescent:
        """Spread the unary potentials over the factors."""
        options = DescentOptions(
            rule=RULES[self.rule],
            step_size=self.step_size,
            patience=self.patience,
            tolerance=self.tolerance,
            ways=(kernels.MAJORITY, kernels.AVERAGE),
        )
        run = SubgradientDescent(problem, Decomposition.into_factors(problem), options, initial.labels)
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
        """The best labelling and the relaxed solution."""
        return state.answer(problem, last=self.primal == "last")
