"""SDP: semidefinite bounds for binary pairwise models, with triangle inequalities and branch and bound."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.arrays import Ints
from mapmrf.engines.spins.couplings import SpinModel, why_not_spins
from mapmrf.engines.spins.plain_bound import PlainBound
from mapmrf.engines.spins.search import SpinSearch
from mapmrf.engines.spins.tree import SpinTree
from mapmrf.incumbent import Incumbent
from mapmrf.method import Answer, PhasedRun, Phases, Progress, Start
from mapmrf.options import check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

MOST_SPINS = 5000
"""Variables up to which a bound is certified: its matrix has 200 MB then."""


@dataclass(frozen=True)
class SDP(Phases):
    """Bound a binary pairwise model by unit vectors in the place of spins, and prove the optimum where that is close.

    The vectors are found by coordinate ascent (the mixing method). Their dual bound is made rigorous by a Cholesky
    factorisation with its round-off added. Triangle inequalities, the most violated first, tighten it: their
    multipliers come from an augmented Lagrangian, and the bound holds at any of them. Random planes through the vectors
    give labellings, which short tabu searches improve. Where a gap is left, branch and bound ties spins to each other,
    and begins in every node with the vectors and inequalities of the one above it.

    Attributes
    ----------
    max_iterations
        Steps of some hundredths of a second.
    cut_spins
        Variables up to which triangle inequalities are used.
    branch_spins
        Variables up to which branch and bound follows.

    Examples
    --------
    >>> import numpy as np
    >>> import mapmrf
    >>> pairs = [(i, j) for j in range(40) for i in range(j)]
    >>> weight = np.random.default_rng(0).normal(size=len(pairs))
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((40, 2)), pairs, [[0, 1], [1, 0]], weight=weight)
    >>> result = mapmrf.solve(graph, "sdp")
    >>> round(result.value, 6), result.status.value
    (103.911405, 'optimal')
    """

    name: ClassVar[str] = "sdp"
    title: ClassVar[str] = "semidefinite bound with triangle inequalities and branch and bound, binary pairwise models"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    cut_spins: int = 1000
    branch_spins: int = 250

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations")
        check_at_least(self, 0, "cut_spins", "branch_spins")

    def supports(self, problem: Problem) -> str | None:
        """Refuse all but pairs of binary variables without forbidden entries, and models that are too large."""
        if problem.n_vars > MOST_SPINS:
            return f"it has {problem.n_vars} variables, expected at most {MOST_SPINS}"
        return why_not_spins(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> SDPRun:
        """Write the model in spins."""
        return SDPRun(self, problem, seed, initial)


class SDPRun(PhasedRun):
    """A run.

    Attributes
    ----------
    model
        The spins.
    proof
        The bound of a large model, or the branch and bound.
    best
        The best labelling and the bound.
    """

    def __init__(self, method: SDP, problem: Problem, seed: int, initial: Start) -> None:
        super().__init__()
        self.best = Incumbent(problem.graph, initial.first_labels(problem.graph))
        self.model = model = SpinModel.of(problem)
        self.search = SpinSearch(model, seed, 1, 1)
        self.search.learn(self.best.labels)
        dense = model.n <= method.cut_spins
        self.proof = SpinTree(model, self.search, seed, method.branch_spins) if dense else PlainBound(model, self.search, seed)
        self.iterations = 0

    def inform(self, labels: Ints) -> None:
        """Take over a labelling that was found elsewhere, if it is better."""
        if self.best.offer(labels) >= self.best.value:
            self.search.learn(labels)

    def run(self) -> Generator[Progress, None, None]:
        """Steps of the proof."""
        value = self.search.value
        for _ in self.proof.run():
            self.iterations += 1
            if self.search.value > value:
                value = self.search.value
                self.best.offer(self.search.labels())
            self.tighten()
            yield self.progress(Status.OPTIMAL if self.proof.closed else None)
        if not self.proof.closed:
            yield self.progress(Status.CONVERGED)

    def tighten(self) -> None:
        """Take over the bound; what is proven optimal in spins is so in the model, up to the round-off of both."""
        bound = self.proof.bound
        if bound == math.inf:
            return
        if bound <= self.search.value:
            self.best.tighten(self.best.value)
        else:
            self.best.tighten(max(bound + self.model.constant, self.best.value))

    def progress(self, finished: Status | None) -> Progress:
        """Where the run stands."""
        best = self.best
        bound = best.bound if best.bound < math.inf else None
        return Progress(self.iterations, best.labels, best.value, bound, finished=finished)

    def answer(self) -> Answer:
        """The best labelling, the bound, and figures of the proof."""
        bound = self.best.bound if self.best.bound < math.inf else None
        details = {"nodes": float(self.proof.n_nodes), "inequalities": float(self.proof.n_cuts)}
        return Answer(labels=self.best.labels, bound=bound, details=details)
