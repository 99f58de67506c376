"""SDP: semidefinite bounds for binary pairwise models, with triangle inequalities and branch and bound."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.arrays import Ints
from mapmrf.engines.flow.cut_model import why_not_binary_pairs
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.engines.spins.search import CoupledSpins, SpinSearch
from mapmrf.engines.spins.tree import PlainBound, SpinTree
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, NonNegativeInt, PhasedRun, Phases, PositiveInt, Progress, Start
from mapmrf.run.result import Status

MOST_SPINS = 5000  # maximum number of variables for which a bound is certified: its matrix has 200 MB then


@dataclass(frozen=True)
class SDP(Phases):
    """Bound a binary pairwise model by a semidefinite relaxation, and prove optimality by branch and bound.

    The relaxation replaces spins by unit vectors, which are optimised by coordinate ascent (the mixing method). Its
    dual bound is made rigorous by a Cholesky factorisation with a margin for round-off. Triangle inequalities, most
    violated first, tighten it: their multipliers come from an augmented Lagrangian, and the bound is valid for any
    multipliers. Random hyperplanes round the vectors to labellings, which short tabu searches improve. If a gap
    remains, branch and bound fixes pairs of spins as equal or opposite, and warm-starts every node with its parent's
    vectors and inequalities.

    Attributes
    ----------
    max_iterations
        Maximum number of steps, each of some hundredths of a second.
    cut_spins
        Maximum number of variables for which triangle inequalities are used.
    branch_spins
        Maximum number of variables for which branch and bound follows.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> pairs = [(i, j) for j in range(40) for i in range(j)]
    >>> weight = np.random.default_rng(0).normal(size=len(pairs))
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((40, 2)), pairs, [[0, 1], [1, 0]], weight=weight)
    >>> result = mapmrf.solve(graph, "sdp")
    >>> round(result.value, 6), result.status.value
    (82.313484, 'optimal')
    """

    name: ClassVar[str] = "sdp"
    title: ClassVar[str] = "semidefinite bounds and branch and bound, binary pairwise models"
    family: ClassVar[str] = "dense binary"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    # the run ends with its own proof, as the loop's tolerance may be too wide for small potentials
    stops_at_gap = False

    max_iterations: PositiveInt = sys.maxsize
    cut_spins: NonNegativeInt = 1000
    branch_spins: NonNegativeInt = 250

    def footprint(self, graph: FactorGraph) -> float:
        return 20.0 * graph.n_vars**2 + 75.0 * graph.n_edges  # measured by benches/footprints.py

    def supports(self, problem: Problem) -> str | None:
        if problem.n_vars > MOST_SPINS:
            return f"it has {problem.n_vars} variables, expected at most {MOST_SPINS}"
        return why_not_binary_pairs(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> SDPRun:
        return SDPRun(self, simplify(problem), seed, initial)


class SDPRun(PhasedRun):
    best: Incumbent
    model: CoupledSpins
    # search, proof: the search for labellings; and the prover: branch and bound, or a plain bound on large models
    search: SpinSearch
    proof: SpinTree | PlainBound

    def __init__(self, method: SDP, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__()
        self.method, self.small = method, small
        self.iterations = 0
        if not small.feasible:
            return
        graph = small.problem.graph
        warm = initial if initial.labels is None else Start(small.project(initial.labels))
        self.best = Incumbent(graph, warm.first_labels(graph))
        self.model = CoupledSpins.of(small.problem)
        self.search = SpinSearch(self.model, seed, 1, 1)
        self.search.learn(self.best.labels)
        if self.model.n <= method.cut_spins:
            self.proof = SpinTree(self.model, self.search, seed, method.branch_spins)
        else:
            self.proof = PlainBound(self.model, self.search, seed)

    def inform(self, labels: Ints) -> None:
        self.search.learn(self.small.project(labels))

    def run(self) -> Generator[Progress, None, None]:
        if not self.small.feasible:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
            return
        value = -math.inf
        for _ in self.proof.run():
            self.iterations += 1
            if self.search.value > value:
                value = self.search.value
                self.best.offer(self.search.labels())
            if self.proof.closed:
                self.best.bound = self.best.value  # -inf if the best labelling is forbidden
                feasible = self.best.value > -math.inf
                yield self.progress(Status.OPTIMAL if feasible else Status.INFEASIBLE)
                return
            self.best.tighten(max(self.proof.bound + self.model.constant, self.best.value))
            yield self.progress(None)
        yield self.progress(Status.CONVERGED)

    def progress(self, finished: Status | None) -> Progress:
        bound = self.best.bound if self.best.bound < math.inf else None
        return Progress(self.iterations, self.small.lift(self.best.labels), None, bound, finished=finished)

    def answer(self) -> Answer:
        if not self.small.feasible:
            return Answer(bound=-math.inf)
        bound = self.best.bound if self.best.bound < math.inf else None
        details = {"nodes": float(self.proof.n_nodes), "inequalities": float(self.proof.n_cuts)}
        return Answer(labels=self.small.lift(self.best.labels), bound=bound, details=details)
