"""WCSP: branch and bound with soft arc consistency."""

from __future__ import annotations

import math
import sys
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.arrays import Ints
from mapmrf.engines.moves.local_search import LocalSearch
from mapmrf.engines.reduction.bounded_elimination import eliminate_bounded
from mapmrf.engines.reduction.components import solve_small
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.engines.soft_consistency.network import ModelNetwork
from mapmrf.engines.soft_consistency.search import SoftSearch
from mapmrf.incumbent import Incumbent
from mapmrf.method import Answer, PhasedRun, Phases, Progress, Start
from mapmrf.options import check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

MOST_ENTRIES = 2.0**22
"""Table entries up to which components are eliminated instead of searched: some tens of milliseconds."""

STEP_ENTRIES = 2_000_000
"""Table entries that a step of local search looks at: some 20 ms."""


@dataclass(frozen=True)
class WCSP(Phases):
    """Solve exactly by branch and bound that keeps the costs arc consistent (EDAC), with best-first dives.

    Attributes
    ----------
    max_iterations
        Nodes of the search.
    eliminate
        Variables are maximised out before the search while that makes tables of at most so many entries.
    sweeps
        Pairs of sweeps over the variables that raise the bound before the search; they end early when it stalls.
    local_search
        Perturbations per variable that local search tries before the search.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "wcsp")
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "wcsp"
    title: ClassVar[str] = "exact: branch and bound with soft arc consistency"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    eliminate: int = 256
    sweeps: int = 100
    local_search: int = 10

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations")
        check_at_least(self, 0, "eliminate", "sweeps", "local_search")

    @property
    def stops_at_gap(self) -> bool:
        """It ends with its own proof: a gap that the loop takes for closed may be open in a model of small unit."""
        return False

    def start(self, problem: Problem, seed: int, initial: Start) -> WCSPRun:
        """Simplify the model, eliminate components of small tables; the run starts with local search."""
        small = solve_small(simplify(problem), MOST_ENTRIES)
        if self.eliminate > 0:
            small = solve_small(eliminate_bounded(small, self.eliminate), MOST_ENTRIES)
        return WCSPRun(self, small, seed, initial)


class WCSPRun(PhasedRun):
    """A run of `wcsp`.

    Attributes
    ----------
    small, problem
        The simplification, and the model that it leaves.
    incumbent
        The best labelling and bound of that model.
    search
        The search; None before it begins.
    details
        Figures for the result.
    """

    def __init__(self, method: WCSP, small: Simplified, seed: int, initial: Start) -> None:
        super().__init__()
        self.method, self.small, self.problem, self.seed = method, small, small.problem, seed
        warm = initial if initial.labels is None else Start(small.project(initial.labels))
        self.incumbent = Incumbent(self.problem.graph, warm.first_labels(self.problem.graph))
        self.search: SoftSearch | None = None
        self.details = small.counts.details()

    def answer(self) -> Answer:
        """The best labelling, and figures of the search."""
        labels = self.small.lift(self.incumbent.labels) if self.small.feasible else None
        return Answer(labels=labels, details=dict(self.details))

    def inform(self, labels: Ints) -> None:
        """Take over a labelling of the whole model that was found elsewhere, if it is better."""
        mine = self.small.project(labels)
        if self.search is not None and self.incumbent.evaluate(mine) > self.incumbent.value:
            self.search.offer(mine)
        self.incumbent.offer(mine)

    def run(self) -> Generator[Progress, None, None]:
        """All phases, one after another."""
        if not self.small.feasible:
            yield Progress(0, labels=self.small.labels, bound=-math.inf, finished=Status.INFEASIBLE)
            return
        yield from self.search_locally()
        network = ModelNetwork.of(self.problem)
        if network.costs.offset == -math.inf:  # a table that allows nothing
            self.incumbent.bound = -math.inf
            yield self.progress("search", Status.INFEASIBLE)
            return
        self.search = SoftSearch(network, self.method.max_iterations)
        self.search.offer(self.incumbent.labels)
        for phase in self.search.steps(self.method.sweeps):
            self.take_over(self.search)
            yield self.progress(phase)
        self.take_over(self.search)
        yield self.conclusion(self.search)

    def search_locally(self) -> Iterator[Progress]:
        """Single-variable ascent, then perturbations of small neighbourhoods."""
        local = LocalSearch(self.problem, self.incumbent.labels, self.seed)
        trials = self.method.local_search * self.problem.n_vars
        while local.descending or local.trials < trials:
            local.run(STEP_ENTRIES, trials - local.trials)
            self.incumbent.offer(local.labels, local.value)
            yield self.progress("local search")

    def take_over(self, search: SoftSearch) -> None:
        """Keep the best labelling and bound of the search."""
        if search.labels is not None:
            self.incumbent.offer(search.labels)
        self.incumbent.tighten(search.network.costs.bound(search.lower))
        self.details |= {"nodes": float(search.nodes), "open_nodes": float(len(search.open))}

    def conclusion(self, search: SoftSearch) -> Progress:
        """The last progress: all labellings are ruled out but the best, up to the rounding of costs."""
        if search.labels is None:
            self.incumbent.bound = -math.inf
            return self.progress("search", Status.INFEASIBLE)
        self.incumbent.bound = max(self.incumbent.bound, self.incumbent.value)
        return self.progress("search", Status.OPTIMAL)

    def progress(self, phase: str, finished: Status | None = None) -> Progress:
        """The best labelling and the best bound, for the loop."""
        bound = self.incumbent.bound if self.incumbent.bound < math.inf else None
        nodes = 0 if self.search is None else self.search.nodes
        labels = self.small.lift(self.incumbent.labels)
        return Progress(nodes, labels=labels, bound=bound, finished=finished, phase=phase)
