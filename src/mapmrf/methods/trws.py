"""TRW-S: sequential tree-reweighted message passing, and its generalisation to factors of any arity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np

from mapmrf.engines.messages.sequential import Order, Passes, Visits
from mapmrf.engines.messages.spins import Spins, takes
from mapmrf.engines.messages.spins_kernels import AT_REST, BOUND, CONSTANT, GAP_TOL, INFEASIBLE, PAR_SIZE, TOL, VALUE
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import GAP_TOLERANCE, Status

STEP_WORK = 4_000_000
"""Table entries that a step looks at, roughly: some milliseconds."""


@dataclass(frozen=True)
class TRWS(Method):
    """Pass messages along the order of the variables and back, which lowers the bound step by step (ogm-TRWS).

    Kolmogorov's TRW-S on pairwise models, and SRMP with single variables as separators on all others. The bound never
    rises, and comes to rest at weak tree agreement: at the value of the linear relaxation, or above it.

    Attributes
    ----------
    max_iterations
        Limit. An iteration is a forward and a backward pass.
    tol
        The run has converged when several iterations in a row have lowered the bound by less than this, relatively.
    order
        The order of the variables. ``trees_last``: as they are, but what hangs on trees comes last, so that trees are
        solved exactly; ``given``: as they are; ``breadth_first``: in layers from an outermost variable, trees last.
    decode_every
        Two labellings are read off in every so many iterations, one in each pass: each variable takes its best state
        given the labels of those visited before it and the messages of the others.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import potts_image
    >>> result = mapmrf.solve(potts_image(60, 80, labels=3).graph, "trws", max_iterations=100)
    >>> result.status.value
    'optimal'
    """

    name: ClassVar[str] = "trws"
    title: ClassVar[str] = "sequential tree-reweighted message passing, any arity by SRMP (ogm-TRWS)"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = 1000
    tol: float = 1e-9
    order: Order = "trees_last"
    decode_every: int = 1

    def __post_init__(self) -> None:
        check_choice(self, "order", get_args(Order))
        check_at_least(self, 1, "max_iterations", "decode_every")
        check_at_least(self, 0, "tol")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Order the variables and lay the factors out along them, all messages zero."""
        par = np.zeros(PAR_SIZE)
        par[BOUND], par[VALUE], par[CONSTANT] = math.inf, -math.inf, problem.graph.constant
        par[TOL], par[GAP_TOL] = self.tol, GAP_TOLERANCE
        visits = Visits.build(problem, self.order)
        engine = Spins if takes(problem) else Passes
        return _State(engine.build(problem, visits, par))

    def step(self, problem: Problem, state: _State) -> Progress:
        """Iterate for some milliseconds, or until the gap is closed or the bound at rest."""
        engine = state.engine
        limit = min(max(1, STEP_WORK // (engine.work + 1)), self.max_iterations - state.done)
        n, why = engine.iterate(limit, state.done, self.decode_every)
        state.done += n
        value = float(engine.par[VALUE])
        progress = Progress(state.done, bound=float(engine.par[BOUND]))
        if value > state.value:
            state.value = progress.value = value
            progress.labels = engine.best
        if why == AT_REST:
            progress.finished = Status.CONVERGED
        elif why == INFEASIBLE or progress.bound == -math.inf:
            progress.finished = Status.INFEASIBLE
        return progress

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling that was read off."""
        return Answer(labels=state.engine.best if state.value > -math.inf else None)


@dataclass
class _State:
    """A run: the passes, iterations done and the best value so far."""

    engine: Spins | Passes
    done: int = 0
    value: float = -math.inf
