"""Tabu: one-flip tabu search for binary pairwise models, with rank-2 restarts and path relinking."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.flow.cut_model import why_not_binary_pairs
from mapmrf.engines.moves.constrained_search import ConstrainedSearch
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.engines.spins.search import CoupledSpins, SpinSearch
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, PhasedRun, Phases, PositiveInt, Progress, Start
from mapmrf.run.result import Status


@dataclass(frozen=True)
class Tabu(Phases):
    """Repeatedly make the best flip among variables not flipped recently, from many starts.

    The model is written in spins of -1 and 1. A trajectory starts from a random unit vector in the plane per spin,
    which coordinate ascent aligns with the couplings; the best cut through the circle is a labelling (Burer, Monteiro
    and Zhang). Tabu search improves it: the best flip is made even if it loses, and a flipped spin stays fixed for a
    while. Rounds then perturb the angles of the trajectory's best labelling and continue from there. Every other
    trajectory starts on the path between two of the best labellings so far (path relinking).

    A model with constraints may have any factors. Its variables change state subject to prices on violated constraints,
    which rise while these are violated and fall while they hold; a round starts with a few random changes of the best
    labelling.

    Attributes
    ----------
    max_iterations
        Maximum number of rounds of tabu search.
    patience
        A round ends after this many flips per variable without improvement.
    elite
        Number of labellings kept for path relinking.
    trajectories
        Number of trajectories after which the run has converged.

    Examples
    --------
    >>> import numpy as np, mapmrf
    >>> pairs = [(i, j) for j in range(40) for i in range(j)]
    >>> weight = np.random.default_rng(0).normal(size=len(pairs))
    >>> graph = mapmrf.FactorGraph.from_pairwise(np.zeros((40, 2)), pairs, [[0, 1], [1, 0]], weight=weight)
    >>> round(mapmrf.solve(graph, "tabu", max_iterations=20).value, 6)
    82.313484
    """

    name: ClassVar[str] = "tabu"
    title: ClassVar[str] = "one-flip tabu search with rank-2 restarts and path relinking, binary pairwise models"
    family: ClassVar[str] = "dense binary"
    recommended: ClassVar[bool] = True

    native_constraints: ClassVar[bool] = True

    max_iterations: PositiveInt = sys.maxsize
    patience: PositiveInt = 5
    elite: PositiveInt = 8
    trajectories: PositiveInt = 200

    def supports(self, problem: Problem) -> str | None:
        return None if problem.graph.constraints is not None else why_not_binary_pairs(problem)

    def start(self, problem: Problem, seed: int, initial: Start) -> TabuRun | ConstrainedTabuRun:
        if problem.graph.constraints is not None:
            return ConstrainedTabuRun(self, ConstrainedSearch(problem, initial.first_labels(problem.graph), seed))
        return TabuRun(self, simplify(problem), seed, initial)


class TabuRun(PhasedRun):
    best: Incumbent
    search: SpinSearch

    def __init__(self, method: Tabu, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__()
        self.method, self.small = method, small
        if not small.feasible:
            return
        graph = small.problem.graph
        warm = initial if initial.labels is None else Start(small.project(initial.labels))
        self.best = Incumbent(graph, warm.first_labels(graph))
        self.search = SpinSearch(CoupledSpins.of(small.problem), seed, method.elite, method.patience)
        self.search.learn(self.best.labels)

    def run(self) -> Generator[Progress, None, None]:
        if not self.small.feasible:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
            return
        search, value = self.search, self.search.value
        if self.small.problem.n_vars == 0:
            yield Progress(0, self.small.lift(self.best.labels), finished=Status.CONVERGED)
            return
        for _ in search.run():
            if search.value > value:
                value = search.value
                self.best.offer(search.labels())
            over = search.n_trajectories >= self.method.trajectories
            labels = self.small.lift(self.best.labels)
            yield Progress(search.n_rounds, labels, finished=Status.CONVERGED if over else None)

    def answer(self) -> Answer:
        if not self.small.feasible:
            return Answer(bound=-math.inf)
        details = {"rounds": float(self.search.n_rounds), "trajectories": float(self.search.n_trajectories)}
        return Answer(labels=self.small.lift(self.best.labels), details=details)


class ConstrainedTabuRun(PhasedRun):
    def __init__(self, method: Tabu, search: ConstrainedSearch) -> None:
        super().__init__()
        self.method, self.search, self.n_rounds = method, search, 0

    def run(self) -> Generator[Progress, None, None]:
        """Run rounds that end when they bring no improvement, with kicks in between."""
        search = self.search
        # Minimum number of variables assumed for models with constraints, whose prices take time to adapt
        patience = self.method.patience * max(100, search.problem.n_vars)
        step = max(1, 1_000_000 // max(1, search.problem.n_states))  # states examined per step: some 20 ms
        while search.problem.n_vars and self.n_rounds < self.method.trajectories:
            search.run(min(step, patience))
            if search.idle >= patience:
                self.n_rounds += 1
                search.kick()
            yield Progress(self.n_rounds, search.incumbent.labels)
        yield Progress(self.n_rounds, search.incumbent.labels, finished=Status.CONVERGED)

    def answer(self) -> Answer:
        return Answer(labels=self.search.incumbent.labels, details={"rounds": float(self.n_rounds)})
