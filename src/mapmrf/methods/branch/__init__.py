"""Branch: exact maximisation by bucket elimination, or by AND/OR branch and bound with mini-bucket bounds."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import ClassVar

from mapmrf.constraints.as_tables import why_too_wide
from mapmrf.engines.reduction.simplify import Simplified, simplify
from mapmrf.methods.branch.phases import BranchRun, ConstrainedBranchRun
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import Phases, Start
from mapmrf.run.options import check_above, check_at_least


@dataclass(frozen=True)
class Branch(Phases):
    """Solve exactly by bucket elimination where the tables fit into memory, else by AND/OR branch and bound (DAOOPT).

    Attributes
    ----------
    max_iterations
        Maximum number of buckets eliminated and nodes expanded, in total.
    memory
        Memory in megabytes for tables and cache. A model whose tables fit is eliminated; otherwise this limits the
        mini-buckets.
    i_bound
        Largest number of variables in the message of a mini-bucket; 0 for as many as the memory allows. Above 0, the
        model is searched even if it could be eliminated.
    restarts
        Number of elimination orders to try: min-fill with random ties, unweighted and weighted. Fewer on large models.
    sweeps
        Passes of cost shifting, forward and backward, before the mini-buckets are built; they end early if the bound
        stalls.
    join_sweeps
        Passes of cost shifting on the join graph of small mini-buckets, from which larger ones are then built (JGLP).
    caching
        Cache solved subproblems by their context.
    local_search
        Effort of local search before branch and bound: perturbations per variable, and how often, on average, a
        variable is in a block that is optimised given its surroundings.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), mapmrf.Branch(memory=64))
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "branch"
    title: ClassVar[str] = "exact: elimination or AND/OR branch and bound with mini-buckets (DAOOPT)"
    family: ClassVar[str] = "exact"
    gives_bound: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True
    native_constraints: ClassVar[bool] = True

    max_iterations: int = sys.maxsize
    memory: float = 1024.0
    i_bound: int = 0
    restarts: int = 10
    sweeps: int = 50
    join_sweeps: int = 20
    caching: bool = True
    local_search: int = 20

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_iterations", "restarts")
        check_at_least(self, 0, "i_bound", "sweeps", "join_sweeps", "local_search")
        check_above(self, 0, "memory")

    def supports(self, problem: Problem) -> str | None:
        """Refuse constraints with too many states."""
        return why_too_wide(problem.graph.constraints, problem.graph.card)

    def within(self, graph: FactorGraph, left: float) -> Branch:
        """Limit tables and cache to the remaining memory."""
        rest = left - (self.footprint(graph) or 0.0)
        return replace(self, memory=min(self.memory, max(1.0, rest / 2**20)))

    def start(self, problem: Problem, seed: int, initial: Start) -> BranchRun:
        if problem.graph.constraints is not None:
            return ConstrainedBranchRun(self, Simplified(problem, ()), seed, initial)
        return BranchRun(self, simplify(problem), seed, initial)
