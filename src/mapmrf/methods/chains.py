"""Chains: variable-depth search, one forced flip and the best that follow it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least
from mapmrf.problem import Problem
from mapmrf.result import Status

STEP_ENTRIES = 4_000_000
"""Table entries that one step reads, at most: some 20 ms."""


@dataclass(frozen=True)
class Chains(Method):
    """Force a variable to another state, let the best flips beside it follow, and keep the best beginning of the chain.

    Each flip of a chain is the best there is, however much it loses, among the variables beside those that have flipped
    in this chain, and no variable flips twice. Where the sum of the gains was highest the chain is cut; it counts if
    that is a gain (Kernighan and Lin). Single flips that gain are made at once, best first. The run ends when no chain
    from any state of any variable helps. Hard constraints (-inf) count before everything finite.

    Attributes
    ----------
    max_iterations
        An iteration is the work of one sweep: as many flips made or variables started from as there are variables.
    length
        Flips of a chain.
    breadth
        Chains from each start: the best second flip, the next best, and so on.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> graph = grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, mapmrf.Chains(length=10)).value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "chains"
    title: ClassVar[str] = "chains of flips: variable-depth search (Kernighan-Lin)"
    family: ClassVar[str] = "local search"

    max_iterations: int = 1000
    length: int = 30
    breadth: int = 1

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "length", "breadth")

    def start(self, problem: Problem, seed: int, initial: Start) -> ChainSearch:
        """Begin with the labelling given, or with the best state of every variable alone."""
        search = ChainSearch(problem, self.length, self.breadth, seed)
        search.restart(initial.first_labels(problem.graph))
        return search

    def step(self, problem: Problem, state: ChainSearch) -> Progress:
        """Follow chains for some milliseconds."""
        n = max(1, problem.n_vars)
        state.run(STEP_ENTRIES, self.max_iterations * n - state.visits)
        finished = Status.CONVERGED if state.at_rest else None
        begun = n - 1 if finished else 0  # a sweep that ended early counts as well
        return Progress((state.visits + begun) // n, labels=state.labels(), finished=finished)

    def answer(self, problem: Problem, state: ChainSearch) -> Answer:
        """The labelling where the run stands."""
        return Answer(labels=state.labels())
