"""Maximum flow: binary submodular models solved exactly by a minimum cut."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.flow.cut_model import CutModel, why_no_cut
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class MaxFlow(Method):
    """Solve a binary submodular model exactly by a minimum cut; the maximum flow is the proof.

    All factors must be pairs of variables with at most two states, and favour equal states: ``t00 + t11 >= t01 + t10``.
    Pairs that favour different states are supported if swapping the states of some variables makes all pairs favour
    equal ones. Hard constraints (-inf entries) become arcs of infinite capacity. Several factors on the same two
    variables are checked individually.

    Attributes
    ----------
    max_iterations
        Maximum number of augmenting paths.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0.5, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> result = mapmrf.solve(graph, "maxflow")
    >>> result.labels.tolist(), result.value, result.bound
    ([1, 1], 3.0, 3.0)
    """

    name: ClassVar[str] = "maxflow"
    title: ClassVar[str] = "minimum cut: binary submodular models (Boykov-Kolmogorov)"
    family: ClassVar[str] = "graph cuts"
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    stops_at_gap = False  # the run ends with the exact optimum, not within a tolerance of it

    max_iterations: PositiveInt = sys.maxsize

    def supports(self, problem: Problem) -> str | None:
        return why_no_cut(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> CutModel:
        return CutModel(problem)

    def step(self, problem: Problem, state: CutModel) -> Progress:
        flow = state.flow
        ended = flow.run(pace.ARCS, self.max_iterations - flow.paths)
        progress = Progress(flow.paths, bound=state.bound)
        if state.bound == -math.inf:
            progress.finished = Status.INFEASIBLE
        elif ended:
            progress.labels, progress.finished = state.labels, Status.OPTIMAL
        return progress

    def answer(self, problem: Problem, state: CutModel) -> Answer:
        """The labelling given by the current search trees, which is a minimum cut at the end."""
        return Answer(labels=state.labels, bound=state.bound, details={"flipped": float(state.flip.sum())})
