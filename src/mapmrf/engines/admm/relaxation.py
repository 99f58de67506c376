"""The LP relaxation by ADMM without a sphere, with residual balancing of rho: the loop of AD3."""

from __future__ import annotations

import math
from typing import NamedTuple

from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.measurement import Measurement
from mapmrf.engines.admm.penalty import PenaltyOptions, interaction_scale
from mapmrf.engines.admm.variable_steps import squared_change
from mapmrf.model.problem import Problem


class RelaxationOptions(NamedTuple):
    """The options of AD3 that control its iterations, under the same names."""

    rho: float
    rho_unit: str
    rho_lower: float
    rho_upper: float
    rho_factor: float
    balance: float
    relaxation: float


class ADMMRelaxation:
    """ADMM on a model: the engine, the residuals of its last iteration, and the residual balancing of rho."""

    def __init__(self, options: RelaxationOptions, problem: Problem) -> None:
        self.options = options
        self.engine = Engine(Layout.build(problem, compact=True), PenaltyOptions(relaxation=options.relaxation))
        self.unit = interaction_scale(problem)
        scale = self.unit if options.rho_unit == "relative" else 1.0
        self.first_rho = options.rho * scale
        self.limits = options.rho_lower * scale, options.rho_upper * scale
        self.factor, self.direction = options.rho_factor, 0
        self.primal = self.dual = math.inf

    @property
    def rho(self) -> float:
        """The penalty of the next iteration."""
        return self.engine.rho

    def advance(self, n: int) -> Measurement:
        """Run n iterations and measure, including both residuals."""
        engine, layout = self.engine, self.engine.layout
        size = max(1, engine.problem.n_edge_states + layout.n_items)  # rows mu_i(k) = copy
        if engine.idle:
            return engine.measure()
        if n > 1:
            engine.run(n - 1)
        before, rho = engine.mu.copy(), self.rho
        engine.run(1)
        found = engine.measure()
        self.primal = math.sqrt(found.primal2 / size)
        moved = squared_change(layout.variables, layout.items, engine.problem.graph.card, before, engine.mu)
        self.dual = rho / self.unit * math.sqrt(moved / size)
        return found

    def rebalance(self) -> None:
        """Raise rho if the primal residual dominates, lower it if the dual residual does."""
        limit = self.options.balance
        way = int(self.primal > limit * self.dual) - int(self.dual > limit * self.primal)
        if way == 0:
            return
        if way == -self.direction:
            self.factor = math.sqrt(self.factor)
        self.direction = way
        self.engine.change_rho(self.limited(self.rho * self.factor**way))

    def limited(self, rho: float) -> float:
        """Clip a penalty to its limits."""
        low, high = self.limits
        return min(max(rho, low), high)
