"""Alpha-expansion and alpha-beta swap: large moves by minimum cuts."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import ClassVar, Literal

from mapmrf.engines.flow.fusion_move import LabelMoves, why_no_fusion
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class Expansion(Method):
    """Expand one label after another over all variables that gain by it, each time by a minimum cut.

    In an expansion of label alpha, every variable keeps its state or takes alpha; a minimum cut finds the best of all
    these exponentially many labellings. This requires metric pairs: Potts, linear, truncated linear. For others, roof
    duality decides what it can, and undecided variables keep their states. Labels take turns until no expansion
    improves the labelling. The value never decreases.

    Attributes
    ----------
    max_iterations
        Maximum number of moves: expansions of one label, or swaps of one pair of labels.
    move
        ``expansion``, or ``swap``: variables of two labels may exchange them. Swaps require less of the pairs, but
        there are more of them.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.potts_image(20, 20, labels=4, seed=0).graph
    >>> result = mapmrf.solve(graph, "expansion")
    >>> result.status.value, bool(result.value > mapmrf.solve(graph, "icm").value)
    ('converged', True)
    """

    name: ClassVar[str] = "expansion"
    title: ClassVar[str] = "alpha-expansion and alpha-beta swap by minimum cuts"
    family: ClassVar[str] = "graph cuts"
    recommended: ClassVar[bool] = True

    max_iterations: PositiveInt = sys.maxsize
    move: Literal["expansion", "swap"] = "expansion"

    def supports(self, problem: Problem) -> str | None:
        return why_no_fusion(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> LabelMoves:
        return LabelMoves(problem, initial.first_labels(problem.graph), self.move == "swap")

    def step(self, problem: Problem, state: LabelMoves) -> Progress:
        helped = state.helped
        state.run(pace.EXPANSION_ARCS, self.max_iterations - state.tried)
        labels = state.labels.copy() if state.helped > helped or state.at_rest else None
        return Progress(state.tried, labels=labels, finished=Status.CONVERGED if state.at_rest else None)

    def answer(self, problem: Problem, state: LabelMoves) -> Answer:
        return Answer(labels=state.labels.copy(), details={"helpful_moves": float(state.helped)})

    def close(self, problem: Problem, state: LabelMoves) -> None:
        state.close()
