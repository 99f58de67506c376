"""Chains: variable-depth search by chains of flips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.model.problem import Problem
from mapmrf.run.method import Answer, Method, PositiveInt, Progress, Start


@dataclass(frozen=True)
class Chains(Method):
    """Flip a variable, let the best flips next to it follow, and keep the best prefix of this chain (Kernighan-Lin).

    Each flip of a chain is the best one, however much it loses, among the variables adjacent to those already flipped
    in this chain; no variable flips twice. The chain is cut where its cumulative gain was highest, and accepted if that
    gain is positive. Single flips that gain are made at once, best first. The run ends when no chain from any state of
    any variable helps. Hard constraints (-inf) take precedence over all finite terms.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations. An iteration is the work of one sweep: n flips made or variables started from.
    length
        Maximum number of flips in a chain.
    breadth
        Number of chains from each start: with the best second flip, the next best, and so on.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1)
    >>> mapmrf.solve(graph, mapmrf.Chains(length=10)).value > mapmrf.solve(graph, "icm").value
    True
    """

    name: ClassVar[str] = "chains"
    title: ClassVar[str] = "chains of flips: variable-depth search (Kernighan-Lin)"
    family: ClassVar[str] = "local search"

    max_iterations: PositiveInt = 1000
    length: PositiveInt = 30
    breadth: PositiveInt = 1

    def start(self, problem: Problem, seed: int, initial: Start) -> ChainSearch:
        search = ChainSearch(problem, self.length, self.breadth, seed)
        search.restart(initial.first_labels(problem.graph))
        return search

    def step(self, problem: Problem, state: ChainSearch) -> Progress:
        return state.step(self.max_iterations)

    def answer(self, problem: Problem, state: ChainSearch) -> Answer:
        return Answer(labels=state.labels())
