"""PSDD: projected subgradient dual decomposition with one subproblem per factor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mapmrf.engines.decomposition import subgradient as kernels
from mapmrf.engines.decomposition.subgradient import DescentOptions, SubgradientDescent
from mapmrf.engines.decomposition.subproblems import Decomposition
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveFloat, PositiveInt, Progress, Start

RULES = {"sqrt": kernels.SQRT, "level": kernels.LEVEL}


@dataclass(frozen=True)
class PSDD(Method):
    """Maximise every factor separately, and shift potentials between the factors until they agree (PSDD).

    The unary potentials of a variable are distributed evenly over its factors. In each round, every factor chooses its
    best configuration, each variable averages the choices of its factors, and its potentials in every factor move by
    the step length times the difference. The factors' maxima sum to an upper bound; their choices, averaged over the
    rounds, converge to a solution of the linear relaxation.

    Attributes
    ----------
    max_iterations
        Maximum number of rounds.
    rule
        Step length. ``sqrt``: step_size / sqrt(t) in round t, in units of the typical size of a potential; step_size is
        halved when the bound has not improved for `patience` rounds. ``level``: step_size times the step that would
        reach a level below the best bound, which moves closer when it is missed for `patience` rounds.
    step_size
        Factor on the step length.
    patience
        Rounds without progress after which the step rule adapts.
    primal
        Relaxed solution. ``average``: the choices averaged over at least the later half of the rounds, for ``sqrt``
        weighted by the step lengths. ``last``: the choices of the last round.
    tolerance
        Relative gap between bound and value at which to stop.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.solve(mapmrf.datasets.potts_image(12, 16, labels=3).graph, "psdd").status.value
    'optimal'
    """

    name: ClassVar[str] = "psdd"
    title: ClassVar[str] = "projected subgradient dual decomposition into factors (PSDD)"
    family: ClassVar[str] = "LP and decomposition"
    gives_bound: ClassVar[bool] = True

    max_iterations: PositiveInt = 2000
    rule: Literal["sqrt", "level"] = "sqrt"
    step_size: PositiveFloat = 0.3
    patience: PositiveInt = 20
    primal: Literal["average", "last"] = "average"
    tolerance: NonNegativeFloat = 1e-6

    def start(self, problem: Problem, seed: int, initial: Start) -> SubgradientDescent:
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
        return state.step(self.max_iterations)

    def answer(self, problem: Problem, state: SubgradientDescent) -> Answer:
        return state.answer(problem, last=self.primal == "last")
