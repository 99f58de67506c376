"""QPBO: roof duality for binary models, with improvement of labellings."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mapmrf.engines.flow.cut_model import UNDECIDED, CutModel, Improvement, RoofDual, relax, why_no_roof
from mapmrf.engines.moves.local_search import Ascent
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, NonNegativeInt, PhasedRun, Phases, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class QPBO(Phases):
    """Bound a binary pairwise model by roof duality, fix the persistent variables, and improve a labelling of the rest.

    The model becomes a flow network with two nodes per variable. Half of the maximum flow gives the bound, which equals
    that of the local polytope, and variables whose two nodes are separated by the minimum cut are *persistent*: some
    optimal labelling has their states. The others start from the initial labelling, or from single-variable ascent
    (ICM). Rounds of improvement (QPBO-I) then fix them at their states in random orders and let roof duality decide the
    rest, which never makes the labelling worse. If flipping variables makes the model submodular, one flow decides all
    variables, as in `maxflow`.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations. The first is the flow, each further one a round of improvement.
    rounds
        Number of rounds of improvement.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=0.6, seed=1), "qpbo")
    >>> result.status.value, result.details["fixed_by_roof_duality"]
    ('optimal', 36.0)
    """

    name: ClassVar[str] = "qpbo"
    title: ClassVar[str] = "roof duality for binary models, with improvement (QPBO-I)"
    family: ClassVar[str] = "graph cuts"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = sys.maxsize
    rounds: NonNegativeInt = 5

    def supports(self, problem: Problem) -> str | None:
        return why_no_roof(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> QPBORun:
        return QPBORun(self, problem, seed, initial)


class QPBORun(PhasedRun):
    def __init__(self, method: QPBO, problem: Problem, seed: int, initial: Start) -> None:
        super().__init__()
        self.problem, self.rounds, self.initial = problem, method.rounds, initial
        self.random = np.random.default_rng(seed)
        self.model = relax(problem)  # the flow network: of a cut, or of the roof dual
        self.best = Incumbent(problem.graph, initial.first_labels(problem.graph))  # the best labelling and the bound
        self.fixed = self.done = 0

    def run(self) -> Generator[Progress, None, None]:
        ended = False
        while not ended:
            ended = self.model.flow.run(pace.ARCS)
            yield Progress(0, bound=self.model.bound, phase="flow")
        self.best.tighten(self.model.bound)
        if self.model.bound == -math.inf:
            yield Progress(1, bound=-math.inf, finished=Status.INFEASIBLE, phase="flow")
            return
        if isinstance(self.model, CutModel):
            self.fixed = self.problem.n_vars
            self.best.prefer(self.model.labels)
            yield self.progress(1, "flow", Status.OPTIMAL)
            return
        yield from self.improve(self.model)

    def improve(self, roof: RoofDual) -> Generator[Progress, None, None]:
        """Build a labelling with the persistent states, and improve it in rounds from the best so far."""
        states = roof.states
        self.fixed = int(np.count_nonzero(states != UNDECIDED))
        first = self.initial.first_labels(self.problem.graph)
        ascent = Ascent(self.problem)
        ascent.restart(first)
        ascent.run(sys.maxsize)  # cut short if it has not finished after some milliseconds
        for labels in (first, ascent.labels):
            self.best.offer(np.where(states == UNDECIDED, labels, states))
        last = self.rounds == 0 or self.fixed == self.problem.n_vars
        yield self.progress(1, "flow", Status.CONVERGED if last else None)
        rounds = Improvement(roof, self.random)
        while self.done < self.rounds:
            rounds.begin(self.best.labels)
            while not rounds.run(pace.ARCS):
                yield self.progress(1 + self.done, "improvement")
            self.best.offer(rounds.improved())
            self.done += 1
            yield self.progress(1 + self.done, "improvement", Status.CONVERGED if self.done == self.rounds else None)

    def progress(self, iterations: int, phase: str, finished: Status | None = None) -> Progress:
        best = self.best
        return Progress(iterations, best.labels, best.value, best.bound, finished=finished, phase=phase)

    def answer(self) -> Answer:
        by = "cut" if isinstance(self.model, CutModel) else "roof_duality"
        details = {f"fixed_by_{by}": float(self.fixed), "rounds": float(self.done)}
        bound = self.model.bound if self.best.bound == math.inf else self.best.bound  # rounds change the flow
        return Answer(labels=self.best.labels, bound=bound, details=details)
