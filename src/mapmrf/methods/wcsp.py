"""WCSP: branch and bound with soft arc consistency."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.as_tables import why_too_wide
from mapmrf.engines.moves.constrained_search import ConstrainedLocalSearch
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.reduction.simplify import BoundedElimination, Simplified, simplify, solve_small, split
from mapmrf.engines.soft_consistency.cliques import join_exclusions
from mapmrf.engines.soft_consistency.network import ModelNetwork
from mapmrf.engines.soft_consistency.search import SoftSearch
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, NonNegativeInt, PhasedRun, Phases, PositiveInt, Progress, Start
from mapmrf.run.result import Status

MOST_ENTRIES = 2.0**22
"""Maximum number of table entries for which components are eliminated instead of searched: some tens of
milliseconds."""

STEP_VARIABLES = 200  # variables eliminated per step: some 30 ms
BESIDE = 100_000  # table entries that local search examines after a step of the search: a tenth of the time

FEWER_STATES = 0.9  # share of the remaining states that a reduced model may have for the search to begin again on it
FIRST_SWEEPS = 5
"""Pairs of sweeps before variables are eliminated: they solve easy models, and exclude states in others."""


@dataclass(frozen=True)
class WCSP(Phases):
    """Solve exactly by branch and bound that maintains soft arc consistency (EDAC), with best-first dives.

    Attributes
    ----------
    max_iterations
        Maximum number of nodes.
    eliminate
        Maximum size of the tables created when variables are eliminated before the search.
    sweeps
        Pairs of sweeps over the variables that raise the lower bound before the search; they end early if it stalls.
    local_search
        Perturbations per variable by local search before the search, and their number after each of its steps.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), "wcsp")
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "wcsp"
    title: ClassVar[str] = "exact: branch and bound with soft arc consistency"
    family: ClassVar[str] = "exact"
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True
    # the run ends with its own proof, as the loop's tolerance may be too wide for small potentials
    stops_at_gap = False

    max_iterations: PositiveInt = sys.maxsize
    eliminate: NonNegativeInt = 256
    sweeps: NonNegativeInt = 100
    local_search: NonNegativeInt = 10

    def supports(self, problem: Problem) -> str | None:
        return why_too_wide(problem.graph.constraints, problem.graph.card)

    def start(self, problem: Problem, seed: int, initial: Start) -> WCSPRun:
        if problem.graph.constraints is not None:
            return WCSPRun(self, Simplified(problem, ()), seed, initial)
        return WCSPRun(self, solve_small(simplify(problem), MOST_ENTRIES), seed, initial)


class WCSPRun(PhasedRun):
    def __init__(self, method: WCSP, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__()
        self.method, self.small, self.problem, self.seed = method, small, small.problem, seed
        warm = initial if initial.labels is None else Start(small.project(initial.labels))
        self.incumbent = Incumbent(self.problem.graph, warm.first_labels(self.problem.graph))
        constrained = self.problem.graph.constraints is not None
        self.local = (ConstrainedLocalSearch if constrained else LocalSearch)(self.problem, self.incumbent.labels, seed)
        # inner, search: a further reduction of that model, and the search on the result; None before it begins
        self.inner = Simplified(self.problem, ())
        self.search: SoftSearch | None = None
        # runs on the components of the reduced model, with their variables, if there are several
        self.parts: list[tuple[WCSPRun, Ints]] = []
        self.details = small.counts.details()

    def answer(self) -> Answer:
        labels = self.small.lift(self.incumbent.labels) if self.small.feasible else None
        return Answer(labels=labels, details=dict(self.details))

    def inform(self, labels: Ints) -> None:
        self.incumbent.offer(self.small.project(labels))
        if self.search is not None:
            self.search.limit(self.incumbent.value)
        inner = self.inner.project(self.small.project(labels))
        for run, variables in self.parts:
            run.inform(inner[variables])

    @property
    def nodes(self) -> int:
        return sum(run.nodes for run, _ in self.parts) + (0 if self.search is None else self.search.nodes)

    def run(self) -> Generator[Progress, None, None]:
        if not self.small.feasible:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
            return
        yield from self.search_locally()
        search = self.new_search(self.inner)
        yield from self.prepare(search, min(FIRST_SWEEPS, self.method.sweeps))
        if search is not None and not search.finished:
            plain = search.network.problem.graph.constraints is None  # elimination would break up cliques, too
            if plain:
                yield from self.reduce(search)
            again = self.search is not search
            search = self.search
            components = split(self.inner.problem) if plain and search is not None else []
            if len(components) > 1:
                yield from self.solve_parts(components)
                return
            if again:
                yield from self.prepare(search, self.method.sweeps)
        if search is not None and not search.finished:
            for _ in search.explore(self.method.sweeps - FIRST_SWEEPS):
                self.take_over(search)
                self.try_candidate(search)
                yield self.progress("search")
        yield self.conclusion(search)

    def search_locally(self) -> Iterator[Progress]:
        while self.local.descending:
            self.local.run(pace.SHORT_SEARCH, 0)
            self.incumbent.offer(self.local.incumbent.labels, self.local.incumbent.value)
            yield self.progress("local search")
        self.local.run(pace.SHORT_SEARCH, self.method.local_search * self.problem.n_vars)
        self.incumbent.offer(self.local.incumbent.labels, self.local.incumbent.value)
        yield self.progress("local search")

    def try_candidate(self, search: SoftSearch) -> None:
        if self.method.local_search > 0:
            self.local.restart(self.inner.lift(search.candidate))
            self.local.run(BESIDE, self.method.local_search)
            self.incumbent.offer(self.local.incumbent.labels, self.local.incumbent.value)
            search.limit(self.incumbent.value)

    def new_search(self, inner: Simplified) -> SoftSearch | None:
        """Start a search on a reduced model; None if it has no better labelling."""
        self.inner, self.search = inner, None
        if inner.feasible:
            network = ModelNetwork.of(join_exclusions(inner.problem))
            if network.costs.offset > -math.inf:
                self.search = SoftSearch(network, self.method.max_iterations)
                self.search.limit(self.incumbent.value)
        return self.search

    def prepare(self, search: SoftSearch | None, sweeps: int) -> Iterator[Progress]:
        if search is not None:
            for _ in search.prepare(sweeps):
                self.take_over(search)
                yield self.progress("sweeps")
            self.take_over(search)
            if not search.finished:
                self.try_candidate(search)

    def reduce(self, search: SoftSearch) -> Iterator[Progress]:
        """Remove the states excluded at the root of a search, eliminate variables, and start a new search."""
        inner = simplify(self.problem, search.network.removed_states())
        if self.method.eliminate > 0:
            elimination = BoundedElimination(inner, self.method.eliminate)
            while not elimination.advance(STEP_VARIABLES):
                yield self.progress("reduction")
            inner = solve_small(elimination.result(), MOST_ENTRIES)
        left = search.network.soft.now.cell[: self.problem.n_vars]
        smaller = inner.problem.n_vars < np.count_nonzero(left > 1)
        if smaller or inner.problem.n_states < FEWER_STATES * left.sum() or not inner.feasible:
            self.take_over(search)
            self.new_search(inner)
            yield self.progress("reduction")

    def solve_parts(self, components: list[tuple[Problem, Ints]]) -> Iterator[Progress]:
        self.search, known = None, self.inner.project(self.incumbent.labels)
        for part, variables in components:
            run = WCSPRun(self.method, Simplified(part, ()), self.seed, Start(known[variables]))
            self.parts.append((run, variables))
        for run, _ in self.parts:
            run.method = replace(self.method, max_iterations=max(1, self.method.max_iterations - self.nodes))
            for step in run.steps:
                labels = np.zeros(self.inner.problem.n_vars, dtype=np.int64)
                for each, variables in self.parts:
                    labels[variables] = each.incumbent.labels
                self.incumbent.offer(self.inner.lift(labels))
                self.incumbent.tighten(max(self.incumbent.value, sum(each.incumbent.bound for each, _ in self.parts)))
                self.details["nodes"] = float(self.nodes)
                if step.finished is None:
                    yield self.progress(step.phase)
            if run.incumbent.value == -math.inf:
                break
        yield self.conclusion(None)

    def take_over(self, search: SoftSearch) -> None:
        labels = search.labels
        if labels is not None:
            self.incumbent.offer(self.inner.lift(labels))
        self.incumbent.tighten(max(self.incumbent.value, search.network.costs.bound(search.lower)))
        self.details |= {"nodes": float(search.nodes), "open_nodes": float(len(search.open))}

    def conclusion(self, search: SoftSearch | None) -> Progress:
        """Return the final progress: no labelling is better than the incumbent, up to the rounding of costs."""
        if search is not None:
            self.take_over(search)
        elif not self.parts:
            self.incumbent.bound = self.incumbent.value
        if self.incumbent.value == -math.inf:
            self.incumbent.bound = -math.inf
            return self.progress("search", Status.INFEASIBLE)
        return self.progress("search", Status.OPTIMAL)

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        bound = self.incumbent.bound if self.incumbent.bound < math.inf else None
        labels = self.small.lift(self.incumbent.labels)
        return Progress(self.nodes, labels=labels, bound=bound, finished=finished, phase=phase)
