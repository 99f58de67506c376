"""ICM: iterated conditional modes, coordinate ascent over single variables."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import segment_argmax
from mapmrf.engines.moves.constrained_search import ConstrainedAscent
from mapmrf.engines.moves.local_search import Ascent
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class ICM(Method):
    """Set one variable after another to its best state given all others, until no single change helps (ogm-ICM).

    Variables are visited cyclically in their order, but revisited only after a neighbour has changed. This is the order
    of OpenGM's ICM, whose figures in the paper correspond to ``init="zeros"``. A labelling that violates fewer hard
    constraints (-inf entries) is better than any that violates more; ties are decided by the finite entries. In a model
    with constraints in addition to tables, the best of all single changes is made each time.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations over all starts. An iteration is the work of one sweep: n variables visited.
    starts
        Number of starts. The first is from the initial labelling, or else from `init`; all others are random.
    init
        ``unary``: the best unary state of every variable; ``zeros``: state 0.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, mapmrf.ICM(starts=20)).value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "icm"
    title: ClassVar[str] = "iterated conditional modes: single-variable ascent (ogm-ICM)"
    family: ClassVar[str] = "local search"
    native_constraints: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    starts: PositiveInt = 1
    init: Literal["unary", "zeros"] = "unary"

    def start(self, problem: Problem, seed: int, initial: Start) -> ICMRun:
        graph = problem.graph
        labels = initial.labels
        if labels is None and self.init == "zeros":
            labels = np.zeros(problem.n_vars, dtype=np.int64)
        elif labels is None:
            labels = segment_argmax(graph.theta_v, graph.var_ptr)
        ascent = Ascent(problem) if graph.constraints is None else ConstrainedAscent(problem)
        ascent.restart(labels)
        return ICMRun(ascent, seed)

    def step(self, problem: Problem, state: ICMRun) -> Progress:
        n = problem.n_vars
        ascent = state.ascent
        if ascent.at_optimum and n > 0:
            ascent.restart(state.random.integers(0, problem.graph.card))
        ascent.run(self.max_iterations * n - ascent.visits)
        state.ended += int(ascent.at_optimum)
        finished = Status.CONVERGED if state.ended >= self.starts or n == 0 else None
        begun = n - 1 if finished else 0  # an incomplete sweep at the end also counts
        return Progress((ascent.visits + begun) // max(1, n), labels=ascent.labels.copy(), finished=finished)

    def answer(self, problem: Problem, state: ICMRun) -> Answer:
        return Answer(labels=state.ascent.labels, details={"starts": float(state.ended)})


@dataclass
class ICMRun:
    ascent: Ascent | ConstrainedAscent
    seed: int
    ended: int = 0

    @cached_property
    def random(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)  # takes as long as an ascent on a few variables, which needs none
