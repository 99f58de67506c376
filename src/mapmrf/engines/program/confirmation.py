"""A proof of optimality without the tolerances of a solver: a small tree of relaxations with rigorous bounds."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.program.highs import LPRelaxation
from mapmrf.engines.program.program import DUAL_TOL, Program, lagrangian
from mapmrf.engines.program.solver_run import SolverOutcome

POLL = 0.05
"""Seconds between checks of the loop while HiGHS works."""

WORK = 2_000_000
"""Maximum number of nodes times matrix entries: some seconds."""

INTEGRAL = 1e-6
"""Distance from an integer below which a column is not branched on."""


class Confirmation:
    """Branch and bound over linear relaxations, each bounded by `lagrangian` at the multipliers that HiGHS finds.

    Attributes
    ----------
    bound
        Upper bound on all points of the program, once every node is pruned; inf until then.
    """

    def __init__(self, program: Program, seed: int) -> None:
        settings = {"dual_feasibility_tolerance": DUAL_TOL, "presolve": "off", "solver": "simplex", "parallel": "off"}
        self.program, self.bound = program, math.inf
        self._relaxation = LPRelaxation(dataclasses.replace(program, n_integer=0), seed, settings)
        self._columns = np.arange(len(program.cost))

    def run(self, goal: Callable[[], float], offer: Callable[[Floats], object]) -> Iterator[None]:
        """Prune all nodes whose bound is at most the goal; give up if there are too many. Yields while HiGHS works.

        Integer points on the way are offered, which may raise the goal.
        """
        open_nodes, highest = [(self.program.lower.copy(), self.program.upper.copy())], -math.inf
        for _ in range(WORK // max(1, self.program.rows.matrix.nnz)):
            lower, upper = open_nodes.pop()
            node = dataclasses.replace(self.program, lower=lower, upper=upper)
            self._relaxation.change_bounds(self._columns, node.lower, node.upper)
            self._relaxation.start()
            while not self._relaxation.wait(POLL):
                yield
            bound, point = self._bound(node), self._relaxation.point()
            if bound > goal():
                children = [] if point is None else self._split(node, point)
                if point is not None and not children:
                    offer(point)
                if not children and bound > goal():  # no proof within round-off
                    return
                open_nodes += children
            else:
                highest = max(highest, bound)
            if not open_nodes:
                self.bound = highest
                return

    def close(self, seconds: float) -> None:
        """Stop HiGHS."""
        self._relaxation.close(seconds)

    def _bound(self, node: Program) -> float:
        """Return an upper bound on a node, -inf if it has no point; inf if HiGHS gives no proof."""
        if self._relaxation.outcome is SolverOutcome.INFEASIBLE:
            ray, nothing = self._relaxation.ray(), dataclasses.replace(node, cost=0.0 * node.cost, offset=0.0)
            rays = [] if ray is None else [ray, -ray]
            return -math.inf if any(lagrangian(nothing, node.rows, each)[0] < 0.0 for each in rays) else math.inf
        weights = self._relaxation.weights()
        return math.inf if weights is None else lagrangian(node, node.rows, weights)[0]

    def _split(self, node: Program, point: Floats) -> list[tuple[Floats, Floats]]:
        """Split at the most fractional column, the side to which it rounds last; nothing if all are integral."""
        whole = np.round(point[: node.n_integer])
        distance = np.abs(point[: node.n_integer] - whole)
        distance[node.lower[: node.n_integer] == node.upper[: node.n_integer]] = 0.0
        if distance.max(initial=0.0) <= INTEGRAL:
            return []
        at, sides = int(distance.argmax()), []
        for side in (1.0 - whole[at], whole[at]):
            lower, upper = node.lower.copy(), node.upper.copy()
            lower[at] = upper[at] = side
            sides.append((lower, upper))
        return sides
