"""MPLP on a model with constraints: the dual of its tables and constraints together."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, segment_max
from mapmrf.engines.counting.marginal_kernels import GroupScores
from mapmrf.engines.counting.model import CountingModel
from mapmrf.engines.counting.rounding import LegalRounding, preferences
from mapmrf.engines.messages.counted_dual_kernels import PricedItems, counting_bound, pass_counting
from mapmrf.engines.messages.mplp import Dual
from mapmrf.engines.moves.climbing import ClimbingIncumbent
from mapmrf.graph import ROUND_OFF, FactorGraph
from mapmrf.method import Start
from mapmrf.problem import Problem

NO_VARIABLES = np.zeros(0, dtype=np.int64)


def priced_items(graph: FactorGraph, model: CountingModel) -> PricedItems:
    """Lay out the items of constraints, with zero prices."""
    var = model.group_var
    group_factor = np.repeat(np.arange(model.n_factors), np.diff(model.factors.group_ptr))
    _, which, count = np.unique(group_factor * max(1, graph.n_vars) + var, return_inverse=True, return_counts=True)
    return PricedItems(
        at=(graph.var_ptr[model.var] + model.state).astype(np.int64),
        begin=graph.var_ptr[var].astype(np.int64),
        end=graph.var_ptr[var + 1].astype(np.int64),
        share=1.0 / count[which],
        price=np.zeros(model.n_items),
        listed=np.zeros(len(graph.theta_v), dtype=bool),
    )


def new_scores(model: CountingModel) -> GroupScores:
    """Allocate scores of all items and groups."""
    return GroupScores(np.zeros(model.n_items), np.zeros(len(model.factors.complete)))


class CountedDual:
    """Messages of tables and prices of constraints.

    A constraint takes back its prices and finds those at which the free choice of its variables satisfies it: a step of
    block coordinate descent, like those of the tables.
    """

    def __init__(self, dual: Dual, problem: Problem) -> None:
        self.dual, self.problem = dual, problem
        self.model = CountingModel.of(problem.graph, NO_VARIABLES)
        self.items, self.scores = priced_items(problem.graph, self.model), new_scores(self.model)

    def passes(self, begin: int, end: int) -> None:
        """Run the iterations from `begin` to `end`, each a pass over all tables and one over all constraints."""
        for iteration in range(begin, end):
            self.dual.passes(iteration, iteration + 1)
            pass_counting(self.model.factors, self.items, self.dual.regions.belief, self.scores)

    def bound(self) -> float:
        """The value of the dual, with what round-off may have taken from it."""
        self._add_up_beliefs()
        mine = counting_bound(self.model.factors, self.items, self.dual.regions.belief, self.scores)
        return self.dual.bound() + mine + self.model.constant + ROUND_OFF * self._size()

    def _add_up_beliefs(self) -> None:
        """Compute the beliefs anew from messages and prices: the errors of many updates would add up."""
        problem, belief = self.problem, self.dual.regions.belief
        sent = np.bincount(problem.edge_state_at, self.dual.regions.lam, problem.n_states)
        paid = np.bincount(self.items.at, self.items.price, problem.n_states)
        np.copyto(belief, problem.graph.theta_v + (sent - paid), where=belief > -np.inf)

    def _size(self) -> float:
        """Sum of the magnitudes of potentials, messages and prices, which cancel in beliefs and tables."""
        sent = float(segment_max(np.abs(self.dual.regions.lam), self.problem.edge_ptr).sum())
        return self.problem.graph.size + 2.0 * sent + float(np.abs(self.items.price).sum())

    def work_per_pass(self) -> int:
        """Return the table entries processed per iteration; an item counts as many."""
        return self.dual.work_per_pass() + ITEM_WORK * self.model.n_items


ITEM_WORK = 100
"""Cost of finding the price of an item, in table entries."""


class LegalIncumbent(ClimbingIncumbent):
    """The best labelling that satisfies the constraints, obtained by rounding beliefs if a candidate does not."""

    def __init__(self, problem: Problem, start: Start, counted: CountedDual) -> None:
        super().__init__(problem, start)
        self.belief: Floats = counted.dual.regions.belief
        self.rounding = LegalRounding(problem.graph, counted.model)

    def offer(self, labels: Ints) -> Ints:
        """Evaluate a labelling and its ascent; if both violate constraints, also a rounding of the beliefs.

        Single-variable ascent only considers the tables.
        """
        climbed = self.climb(labels)
        for candidate in (labels, climbed):
            self.compare(candidate)
        if self.problem.graph.value(labels) == -np.inf:
            legal = self.rounding.round(preferences(self.belief, self.problem.graph.var_ptr))
            if legal is not None:
                self.compare(legal)
        return climbed
