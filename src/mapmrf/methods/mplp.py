"""MPLP: block coordinate descent on the dual of the linear relaxation, one factor at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.messages.mplp import Dual, DualDescent, FactorOrder, PassDirection
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class MPLP(Method):
    """Lower the dual bound of the linear relaxation over L_G by max-product messages (the core of the paper's MPLP-C).

    Each factor in turn takes back its messages, adds the beliefs of its variables to its table, and sends every
    variable an equal share of the max-marginals. The bound never rises. Pendant trees are eliminated once, at the
    start: their max-marginals go to their roots, which solves models without cycles. Labels are decoded one variable
    after another, improved by single-variable ascent, and crossed with the best labelling so far.

    Attributes
    ----------
    max_iterations
        Maximum number of passes over all factors of the cyclic part.
    tol
        The run has converged when an iteration closes less than this share of the gap between bound and value.
    order
        Order of the factors in a pass: ``variables`` (by the last, then the first variable of the scope), ``model`` (as
        given), or ``random`` (seeded).
    schedule
        ``alternate`` visits the factors alternately forward and backward, ``forward`` always forward.
    decode_every
        Iterations between evaluations of the bound and decodings of labels.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.MPLP(tol=1e-4))
    >>> result.status.value, result.bound > result.value
    ('converged', True)
    """

    name: ClassVar[str] = "mplp"
    title: ClassVar[str] = "block coordinate descent on the dual of the linear relaxation (MPLP-C without clusters)"
    family: ClassVar[str] = "message passing"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    tol: NonNegativeFloat = 1e-7
    order: FactorOrder = "variables"
    schedule: PassDirection = "alternate"
    decode_every: PositiveInt = 10

    def start(self, problem: Problem, seed: int, initial: Start) -> DualDescent:
        """Start with zero messages or those of an earlier run, and eliminate pendant trees."""
        dual = Dual.build(problem, self.order, self.schedule, seed, problem.threads)
        if initial.dual is not None:
            dual.resume(problem, initial.dual)
        return DualDescent(dual, ClimbingIncumbent(problem, initial))

    def step(self, problem: Problem, state: DualDescent) -> Progress:
        """Pass messages for some milliseconds; evaluate and decode when due."""
        if not state.advance(self.max_iterations):
            return Progress(state.iterations)
        decrease = state.measure(self.decode_every)
        progress = state.progress()
        if state.bound == -math.inf:
            progress.finished = Status.INFEASIBLE
        elif state.trivial or state.has_converged(decrease, self.tol):
            progress.finished = Status.CONVERGED
        return progress

    def answer(self, problem: Problem, state: DualDescent) -> Answer:
        """The best labelling; the loop keeps the bound."""
        return Answer(labels=state.labelling.labels, dual=state.dual.state(problem))

    def close(self, problem: Problem, state: DualDescent) -> None:
        state.dual.close()
