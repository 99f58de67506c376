"""Constraints in a run of ADMM: counting factors beside the tables."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.measurement import Sums, new_sums
from mapmrf.engines.admm.penalty import Penalty
from mapmrf.engines.admm.steps import IndexedSteps
from mapmrf.engines.admm.structs import ItemArrays, Iterates
from mapmrf.engines.admm.variable_steps import item_multiplier, item_value
from mapmrf.engines.constraint_factors.model import CountingFactors
from mapmrf.engines.constraint_factors.projection_kernels import project
from mapmrf.engines.constraint_factors.values import GroupScores, LegalRounding, best_value
from mapmrf.model.graph import ROUND_OFF


class ConstrainedSteps(IndexedSteps):
    """The steps of an engine on a model with constraints."""

    def __init__(self, layout: Layout, *state: Any) -> None:
        super().__init__(layout, *state)
        assert layout.counting is not None
        assert layout.items is not None
        model = layout.counting
        self.counting, self.items = model.factors, layout.items
        self.state = CountingState(
            scores=np.zeros(model.n_items),
            z=np.zeros(model.n_items),
            violation=np.zeros(model.n_factors),
            off=np.where(model.factors.complete, -np.inf, 0.0),
        )
        self.legal = LegalRounding(layout.problem.graph, model)

    def update_mu_f(self) -> None:
        super().update_mu_f()
        update_counting(self.penalty, self.counting, self.items, self.iterates, self.state)

    def measure(self, labels: Ints) -> Floats:
        """Return the sums; `labels` become the rounded ones, or other ones that satisfy all constraints."""
        theta, own = self.layout.own_variables.theta.copy(), new_sums()
        measure_counting(self.penalty, self.counting, self.items, self.iterates, self.state, theta, own)
        sums, counted = self.measured(theta), own[0]
        graph = self.layout.problem.graph
        labels[:] = self.rounding.labels
        value = graph.value(labels)
        legal = self.legal.round(self.layout.expand(self.iterates.mu)) if value == -np.inf else None
        if legal is not None:
            labels[:] = legal
            value = graph.value(labels)
        bound, _, relaxed, primal2, primal_max, integrality = sums.tolist()
        return np.array(
            [
                bound + counted.bound,
                value,
                relaxed + counted.relaxed,
                primal2 + counted.primal2,
                max(primal_max, counted.primal_max),
                max(integrality, counted.integrality),
            ]
        )


class CountingState(NamedTuple):
    """State of counting factors: targets, copies, violations, and zero scores."""

    scores: Floats
    z: Floats
    violation: Floats
    off: Floats


@bare
def update_counting(
    penalty: Penalty, factors: CountingFactors, items: ItemArrays, iterates: Iterates, state: CountingState
) -> None:
    """Take the factor step: z = argmin over the hull of penalty v + rho/2 |t - z|^2, t = c mu + lam / rho."""
    p = penalty[0]
    rho, c, target_lam, relax = p.rho, p.c, p.target_lam, p.relaxation
    q, scores, z = iterates.q[items.q_at :], state.scores, state.z
    for f in range(len(factors.kind)):
        begin, end = factors.item_ptr[factors.group_ptr[f]], factors.item_ptr[factors.group_ptr[f + 1]]
        for j in range(begin, end):
            lam = item_multiplier(j, penalty, items, iterates)
            scores[j] = c * item_value(j, items, iterates.mu) + target_lam * lam
        state.violation[f] = project(f, factors, scores, factors.penalty[f] / rho, z)
        for j in range(begin, end):
            lam = item_multiplier(j, penalty, items, iterates)
            q[j] = rho * (relax * z[j] + (1.0 - relax) * c * item_value(j, items, iterates.mu)) - lam


@bare
def measure_counting(
    penalty: Penalty,
    factors: CountingFactors,
    items: ItemArrays,
    iterates: Iterates,
    state: CountingState,
    theta: Floats,
    found: Sums,
) -> None:
    """Compute sums over the counting factors; subtract their multipliers from theta, which the variables' sums use.

    This is compensated in `relaxed` of these sums.
    """
    bound = relaxed = primal2 = primal_max = integrality = size = 0.0
    c, scores = penalty[0].c, state.scores
    for j in range(len(items.at)):
        here, lam = item_value(j, items, iterates.mu), item_multiplier(j, penalty, items, iterates)
        scores[j] = lam
        size += abs(lam)
        if items.sign[j] == 0.0:
            theta[items.at[j]] -= lam
            relaxed += lam * here
        else:
            theta[items.at[j]] -= items.sign[j] * lam
            relaxed += lam * (here - 0.5)
            bound -= 0.5 * lam
        off = c * here - state.z[j]
        primal2 += off * off
        primal_max = max(primal_max, abs(off))
        integrality = max(integrality, min(abs(here), abs(1.0 - here)))
    values = GroupScores(scores, state.off)
    for f in range(len(factors.kind)):
        bound += best_value(f, factors, values)
        if state.violation[f] > 0.0:
            relaxed -= factors.penalty[f] * state.violation[f]
    sums = found[0]
    sums.bound, sums.relaxed, sums.primal2 = bound + ROUND_OFF * size, relaxed, primal2
    sums.primal_max, sums.integrality = primal_max, integrality
