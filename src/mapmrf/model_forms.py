"""A model as methods see it: as it is, or with its constraints written as tables."""

from __future__ import annotations

from functools import cached_property

from mapmrf.arrays import Ints
from mapmrf.graph import FactorGraph
from mapmrf.memory import NO_LIMIT, MemoryBudget
from mapmrf.method import Method, Start
from mapmrf.problem import Problem
from mapmrf.rewriting import Rewriting, rewrite


class ModelForms:
    """A model as methods see it: as it is, or with its constraints written as tables.

    Attributes
    ----------
    graph
        The original model.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 3, [], []).with_constraints([constraints.xor(range(3))])
    >>> ModelForms(graph, threads=1).graph_for(mapmrf.TRBP())
    FactorGraph(n_vars=4, n_factors=2, n_tables=2)
    """

    def __init__(self, graph: FactorGraph, threads: int, memory: MemoryBudget = NO_LIMIT) -> None:
        self.graph, self.threads, self.memory = graph, threads, memory
        self._problems: dict[bool, Problem] = {}

    @cached_property
    def rewriting(self) -> Rewriting:
        """The model with tables in place of its constraints."""
        return rewrite(self.graph)

    def is_rewritten(self, method: Method | None) -> bool:
        """Return whether a method, or the library itself (None), gets tables in place of constraints."""
        return self.graph.constraints is not None and (method is None or not method.native_constraints)

    def graph_for(self, method: Method | None) -> FactorGraph:
        """The model that a method gets."""
        return self.rewriting.graph if self.is_rewritten(method) else self.graph

    def problem_for(self, method: Method | None) -> Problem:
        """The model that a method gets, compiled."""
        rewritten = self.is_rewritten(method)
        if rewritten not in self._problems:
            self._problems[rewritten] = Problem.compile(self.graph_for(method), self.threads, self.memory)
        return self._problems[rewritten]

    def lift(self, method: Method | None, labels: Ints) -> Ints:
        """Lift labels to the model that a method gets."""
        return self.rewriting.lift(labels) if self.is_rewritten(method) else labels

    def start_for(self, method: Method, start: Start) -> Start:
        """A warm start on the model that a method gets."""
        if start.labels is None or not self.is_rewritten(method):
            return start
        return Start(self.rewriting.lift(start.labels))

    def project(self, labels: Ints) -> Ints:
        """Project labels to the original model."""
        return labels[: self.graph.n_vars]
