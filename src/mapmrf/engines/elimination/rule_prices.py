"""Prices of constraints, moved between them and the unary potentials to lower their joint bound."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats, Ints, offsets
from mapmrf.engines.elimination.cost_shifting import CostShifting
from mapmrf.engines.elimination.path_rules import RuleForm, RuleForms
from mapmrf.engines.elimination.path_rules_kernels import SUM
from mapmrf.engines.elimination.rule_prices_kernels import find_price

MOST_ASSIGNED = 300
"""Maximum number of variables for which an ALL_DIFFERENT constraint has prices."""


class RulePrices:
    """Optimises the prices of constraints, on the unary potentials of cost shifting."""

    def __init__(self, rules: RuleForms, shifting: CostShifting) -> None:
        self.rules, self.shifting = rules, shifting
        self._places = [self._places_of(form) for form in rules.forms]

    def _places_of(self, form: RuleForm) -> Ints:
        """Return the indices of the states of a constraint's variables."""
        at = self.rules.problem.graph.var_ptr[form.variables]
        return np.concatenate([np.arange(i, i + len(gain)) for i, gain in zip(at, form.gain, strict=True)])

    def update(self) -> None:
        """Set the best prices of each constraint in turn."""
        self.shifting.collect()
        for form, places in zip(self.rules.forms, self._places, strict=True):
            if form.kind == SUM:
                self._price_sum(form, places)
            elif form.guards and len(form.variables) <= MOST_ASSIGNED:
                self._price_states(form, places)
            elif form.is_cost:
                self._price_cost(form, places)

    def bound(self) -> float:
        """Return the joint bound of cost shifting and the constraints."""
        return self.shifting.bound() + self.rules.root

    def _price_sum(self, form: RuleForm, places: Ints) -> None:
        theta, gain = self.shifting.theta_v, np.concatenate(form.gain)
        score = theta[places] + form.price * gain
        ptr = offsets(np.array([len(each) for each in form.gain])).astype(np.int64)
        form.price = find_price(ptr, gain, score, form.extremes, form.record)
        theta[places] = score - form.price * gain

    def _price_states(self, form: RuleForm, places: Ints) -> None:
        theta = self.shifting.theta_v
        states = np.concatenate([np.arange(len(gain)) for gain in form.gain])
        row = np.repeat(np.arange(len(form.variables)), [len(gain) for gain in form.gain])
        score = np.full((len(form.variables), len(form.state_price)), -np.inf)
        score[row, states] = theta[places] + form.state_price[states]
        price = assignment_prices(score)
        if price is not None:
            form.state_price = price
            theta[places] = score[row, states] - price[states]

    def _price_cost(self, form: RuleForm, places: Ints) -> None:
        """Compensate the gains of the states, in equal parts, up to the label's cost."""
        theta, bonus, on = self.shifting.theta_v, np.concatenate(form.bonus), np.concatenate(form.gain) > 0.0
        score, begin = theta[places] + bonus, offsets(np.array([len(gain) for gain in form.gain])).astype(np.int64)[:-1]
        owner = np.repeat(np.arange(len(begin)), [len(gain) for gain in form.gain])
        other = np.maximum.reduceat(np.where(on, -np.inf, score), begin)[owner]
        with np.errstate(invalid="ignore"):
            gains = np.where(on & np.isfinite(score), np.maximum(0.0, score - other), 0.0)
        wanted = float(np.maximum.reduceat(gains, begin).sum())
        if not math.isfinite(wanted):
            return  # some variable has no other state: nothing to decide
        gains *= min(1.0, form.penalty / wanted) if wanted > 0.0 else 1.0
        theta[places] = score - gains
        form.bonus = np.split(gains, begin[1:])


def assignment_prices(score: Floats) -> Floats | None:
    """Return column prices at which the best columns of all rows are distinct; None if there are none.

    Examples
    --------
    >>> assignment_prices(np.array([[3.0, 0.0], [2.0, 1.0]])).tolist()
    [1.0, 0.0]
    """
    from scipy.optimize import linear_sum_assignment

    n, n_states = score.shape
    square = np.zeros((n_states, n_states))
    square[:n] = score
    try:
        row, column = linear_sum_assignment(square, maximize=True)
    except ValueError:
        return None
    chosen = np.empty(n_states, dtype=np.int64)
    chosen[row] = column
    excess = square - square[np.arange(n_states), chosen][:, None]  # gain of a row from a column over its assigned one
    price = np.zeros(n_states)
    for _ in range(n_states):
        higher = np.maximum(price, (price[chosen][:, None] + excess).max(axis=0))
        if np.array_equal(higher, price):
            break
        price = higher
    return np.asarray(price - price.min())
