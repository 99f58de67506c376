"""MPLP on a model with constraints: the dual of its tables and constraints together."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, segment_max
from mapmrf.compilation.jit import bare
from mapmrf.engines.constraint_factors.marginal_kernels import (
    GroupScores,
    activity_limits,
    best_value,
    find_prices,
    max_marginals,
    weight_limits,
    within,
)
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind, CountingModel
from mapmrf.engines.constraint_factors.rounding import LegalRounding, preferences
from mapmrf.engines.messages.max_product import ForestWeights, TableMessages, Tour
from mapmrf.engines.messages.max_product_kernels import Beliefs, MessageSchedule
from mapmrf.engines.messages.mplp import Dual
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent
from mapmrf.model.graph import ROUND_OFF, FactorGraph
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start

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


class ConstrainedDual:
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

    def __init__(self, problem: Problem, start: Start, counted: ConstrainedDual) -> None:
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


# -- Passes of MPLP over constraints: each takes back its prices and finds new ones -----------------------------------


class PricedItems(NamedTuple):
    """Positions of items, and their prices.

    Attributes
    ----------
    at : (n_items,)
        Index of the item in the arrays per state.
    begin, end : (n_groups,)
        The states of the group's variable in these arrays.
    share : (n_groups,)
        Share of the variable's scores in the group: 1, or less if a factor has several groups of a variable.
    price : (n_items,)
        Price of the item, subtracted from its score by a factor.
    listed : (n_states,)
        Scratch: which states are items of the current group.
    """

    at: Ints
    begin: Ints
    end: Ints
    share: Floats
    price: Floats
    listed: Bools


@bare
def load_scores(
    g: int, own: bool, factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores
) -> None:
    """Load the scores of a group: its variable's beliefs, or only prices and feasibility (`own` prices)."""
    first, last, listed, share = factors.item_ptr[g], factors.item_ptr[g + 1], items.listed, items.share[g]
    for j in range(first, last):
        listed[items.at[j]] = True
        score = share * belief[items.at[j]]
        scores.on[j] = items.price[j] if own and score > -np.inf else score
    top = -np.inf
    for s in range(items.begin[g], items.end[g]):
        if not listed[s]:
            top = max(top, belief[s])
    scores.off[g] = 0.0 if own and top > -np.inf else share * top
    for j in range(first, last):
        listed[items.at[j]] = False


@bare
def forbid_others(g: int, factors: CountingFactors, items: PricedItems, belief: Floats) -> None:
    """Forbid all states of a group's variable that are no items."""
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        items.listed[items.at[j]] = True
    for s in range(items.begin[g], items.end[g]):
        if not items.listed[s]:
            belief[s] = -np.inf
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        items.listed[items.at[j]] = False


@bare
def forbid_choices(f: int, factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> None:
    """Forbid the choices with which no choice of the other groups satisfies a hard row.

    Prices would only discourage them, more and more in every pass, until round-off swamps the potentials.
    """
    low, high = activity_limits(f, factors, scores)
    if not within(low, high, f, factors):
        return
    for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
        least, most = weight_limits(g, factors, scores)
        if scores.off[g] > -np.inf and not within(low - least, high - most, f, factors):
            scores.off[g] = -np.inf
            forbid_others(g, factors, items, belief)
        for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
            weight = factors.weight[j]
            if scores.on[j] > -np.inf and not within(low - least + weight, high - most + weight, f, factors):
                scores.on[j] = belief[items.at[j]] = -np.inf


@bare
def pass_counting(factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> None:
    """One pass over all constraints."""
    for f in range(len(factors.kind)):
        first, last = factors.group_ptr[f], factors.group_ptr[f + 1]
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            belief[items.at[j]] += items.price[j]
        for g in range(first, last):
            load_scores(g, False, factors, items, belief, scores)
        if factors.kind[f] == CountingKind.ROW and factors.penalty[f] == np.inf:
            forbid_choices(f, factors, items, belief, scores)
        find_prices(f, factors, scores, items.price)
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            belief[items.at[j]] -= items.price[j]


@bare
def counting_bound(factors: CountingFactors, items: PricedItems, belief: Floats, scores: GroupScores) -> float:
    """Return the constraints' part of the dual."""
    total = 0.0
    for f in range(len(factors.kind)):
        for g in range(factors.group_ptr[f], factors.group_ptr[f + 1]):
            load_scores(g, True, factors, items, belief, scores)
        total += best_value(f, factors, scores)
    return total


# -- Belief propagation on models with constraints: messages of tables and of constraints -----------------------------


class ConstrainedMessages:
    """Messages of the tables, of any shape, followed in every iteration by those of the constraints."""

    def __init__(self, problem: Problem, tour: Tour, weights: ForestWeights) -> None:
        graph = problem.graph
        self.graph, self.tables = graph, TableMessages(problem, tour, weights)
        self.model = CountingModel.of(graph, NO_VARIABLES)
        self.items = priced_items(graph, self.model)
        self.scores, self.out = new_scores(self.model), new_scores(self.model)
        self.rounding = LegalRounding(graph, self.model)

    def iterate(self, schedule: MessageSchedule, begin: int, end: int) -> tuple[int, float]:
        """Run iterations `begin` to `end`, or to convergence; return how many, and the largest undamped change."""
        done, worst = 0, math.inf
        while begin + done < end and worst > schedule.tol:
            _, worst = self.tables.iterate(schedule, begin + done, begin + done + 1)
            worst = max(worst, self._send(schedule.damping))
            done += 1
        return done, worst

    def _send(self, damping: float) -> float:
        return send_constrained(self.model.factors, self.items, self.tables.beliefs, damping, self.scores, self.out)

    def decode(self, in_order: bool) -> Ints:
        """Decode a labelling; if it violates a constraint, round the beliefs to one that does not."""
        labels = self.tables.decode(in_order)
        if self.graph.value(labels) > -math.inf:
            return labels
        legal = self.rounding.round(preferences(self.tables.beliefs.b, self.graph.var_ptr))
        return labels if legal is None else legal

    def value(self, labels: Ints) -> float:
        """Return the value of labels."""
        return self.graph.value(labels)

    def bound(self) -> float:
        """Return infinity: there is no bound."""
        return math.inf

    def is_infeasible(self) -> bool:
        """Return whether a variable has no possible state left, or a constraint cannot be satisfied."""
        return self.model.constant == -math.inf or self.tables.is_infeasible()

    def close(self) -> None:
        """Stop the threads."""
        self.tables.close()


# -- Messages of belief propagation from constraints to their indicators, by max-marginals ----------------------------


@bare
def send_constrained(
    factors: CountingFactors,
    items: PricedItems,
    beliefs: Beliefs,
    damping: float,
    scores: GroupScores,
    out: GroupScores,
) -> float:
    """Send new messages from every constraint; returns the largest change asked for, inf if a state dies.

    A message to an item is relative to the states of its variable that are no items. Messages are kept as negative
    prices, and are part of the unary potentials that tables see.
    """
    worst = 0.0
    for f in range(len(factors.kind)):
        first, last = factors.group_ptr[f], factors.group_ptr[f + 1]
        for j in range(factors.item_ptr[first], factors.item_ptr[last]):
            beliefs.b[items.at[j]] += items.price[j]
        for g in range(first, last):
            load_scores(g, False, factors, items, beliefs.b, scores)
        max_marginals(f, factors, scores, out)
        for g in range(first, last):
            base = _message_off(g, factors, scores, out)
            if out.off[g] == -np.inf and scores.off[g] > -np.inf:
                forbid_others(g, factors, items, beliefs.theta_v)
                forbid_others(g, factors, items, beliefs.b)
                worst = np.inf
            for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
                s, old = items.at[j], -items.price[j]
                if out.on[j] == -np.inf:
                    worst = np.inf if beliefs.theta_v[s] > -np.inf else worst
                    beliefs.theta_v[s] = beliefs.b[s] = -np.inf
                    continue
                new = out.on[j] - scores.on[j] - base
                worst = max(worst, abs(new - old))
                new += damping * (old - new)
                items.price[j] = -new
                beliefs.theta_v[s] += new - old
                beliefs.b[s] += new
    return worst


@bare
def _message_off(g: int, factors: CountingFactors, scores: GroupScores, out: GroupScores) -> float:
    """The message to being off; where that cannot be, the largest one to an item."""
    if out.off[g] > -np.inf:
        here: float = out.off[g] - scores.off[g]
        return here
    base = -np.inf
    for j in range(factors.item_ptr[g], factors.item_ptr[g + 1]):
        if out.on[j] > -np.inf:
            base = max(base, out.on[j] - scores.on[j])
    return base
