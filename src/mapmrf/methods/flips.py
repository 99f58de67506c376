"""Flips: the best changes of single variables, of pairs, and of small connected sets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.moves.flips import FlipSearch
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

STEP_ENTRIES = 4_000_000
"""Table entries that one step reads, at most: some 20 ms."""


@dataclass(frozen=True)
class Flips(Method):
    """Make the best flip of a single variable, and where none helps, of connected sets of variables (lazy flipper).

    The gain of every flip is kept in a table; a flip changes the rows of its neighbours alone. Single flips are made
    best first. Where none is left, connected sets of two variables are searched, then of three, up to `depth`; a set
    is searched again only when a member or a neighbour has changed. At the end no change of any connected set of at
    most `depth` variables raises the value. Hard constraints (-inf) count before everything finite.

    Attributes
    ----------
    max_iterations
        An iteration is the work of one sweep: as many flips made or variables visited as there are variables.
    depth
        Largest number of variables in a set: 1 for single flips, 2 for pairs as well, and so on.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, mapmrf.Flips(depth=4)).value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "flips"
    title: ClassVar[str] = "best flips of single variables, pairs and small connected sets (lazy flipper)"
    family: ClassVar[str] = "local search"

    max_iterations: int = 1000
    depth: int = 3

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "depth")

    def start(self, problem: Problem, seed: int, initial: Start) -> FlipSearch:
        """Begin with the labelling given, or with the best state of every variable alone."""
        search = FlipSearch(problem, self.depth)
        search.restart(initial.first_labels(problem.graph))
        return search

    def step(self, problem: Problem, state: FlipSearch) -> Progress:
        """Flip for some milliseconds."""
        n = max(1, problem.n_vars)
        state.run(STEP_ENTRIES, self.max_iterations * n - state.visits)
        finished = Status.CONVERGED if state.at_rest else None
        begun = n - 1 if finished else 0  # a sweep that ended early counts as well
        return Progress((state.visits + begun) // n, labels=state.labels(), finished=finished)

    def answer(self, problem: Problem, state: FlipSearch) -> Answer:
        """The labelling where the run stands."""
        return Answer(labels=state.labels())
