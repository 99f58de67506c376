"""Constraints in a run of ADMM: counting factors instead of tables."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets
from mapmrf.engines.admm import counting_kernels as kernels
from mapmrf.engines.admm.counting_kernels import CountingState, CountingSums, ItemLinks
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.penalty import Penalty
from mapmrf.engines.admm.structs import Iterates, SphereState
from mapmrf.engines.constraint_factors.model import CountingModel
from mapmrf.engines.constraint_factors.rounding import LegalRounding

NO_COUNTS = CountingSums(0.0, 0.0, 0.0, 0.0, 0.0)
"""The sums over no factors."""


class CountingSteps:
    """The steps of an engine for constraints, in addition to those on tables."""

    def __init__(self, layout: Layout, model: CountingModel, penalty: Penalty, iterates: Iterates) -> None:
        self.model, self.penalty, self.iterates, self.layout = model, penalty, iterates, layout
        self.links = _links(layout, model)
        self.state = CountingState(
            scores=np.zeros(model.n_items),
            z=np.zeros(model.n_items),
            violation=np.zeros(model.n_factors),
            off=np.where(model.factors.complete, -np.inf, 0.0),
        )
        self.rounding = LegalRounding(layout.problem.graph, model)

    def update_mu_f(self) -> None:
        """Take the factor step."""
        kernels.update_counting(self.penalty, self.model.factors, self.links, self.iterates, self.state)

    def update_mu_v(self, sphere: SphereState) -> None:
        """Take the variable step of the whole model."""
        kernels.update_constrained_variables(self.penalty, sphere, self.layout.variables, self.links, self.iterates)

    def sphere_norms(self, sphere: SphereState) -> None:
        """Compute squared norms of the first projection's points."""
        kernels.constrained_norms(self.penalty, sphere, self.layout.variables, self.links, self.iterates)

    def multipliers(self, lam: Floats) -> None:
        """Write the multipliers of all items."""
        kernels.item_multipliers(self.penalty, self.links, self.iterates, lam)

    def measure(self, theta: Floats) -> CountingSums:
        """Compute sums over the factors, and subtract their multipliers from theta."""
        return kernels.measure_counting(self.penalty, self.model.factors, self.links, self.iterates, self.state, theta)

    def round(self, decoded: Ints, mu_v: Floats, labels: Ints) -> float:
        """Write the decoded labels, or rounded ones that satisfy all constraints; return their value."""
        graph = self.layout.problem.graph
        labels[:] = decoded
        value = graph.value(labels)
        if value == -np.inf:
            legal = self.rounding.round(mu_v)
            if legal is not None:
                labels[:] = legal
                value = graph.value(labels)
        return value

    def squared_change(self, before: Floats) -> float:
        """Return the sum of squared changes of all items since mu was `before`."""
        return kernels.squared_item_change(self.links, before, self.iterates.mu)

    def spread(self, lam: Floats, w: int, push: float) -> None:
        """Distribute a push on a number of mu over the multipliers of its items, in equal shares."""
        items = self.links.item[self.links.ptr[w] : self.links.ptr[w + 1]]
        sign = self.links.sign[items]
        lam[self.links.q_at + items] += np.where(sign == 0.0, 1.0, sign) * push / max(1, len(items))


def _links(layout: Layout, model: CountingModel) -> ItemLinks:
    """Link every item to its position in mu."""
    compact = layout.compact & (layout.problem.graph.card[model.var] == 2)
    at = layout.variables.var_at[model.var] + np.where(compact, 0, model.state)
    sign = np.where(compact, 2.0 * model.state - 1.0, 0.0)
    n = len(layout.variables.theta)
    ptr = offsets(np.bincount(at, minlength=n)).astype(np.int64)
    item = np.argsort(at, kind="stable")
    places: list[Ints] = [frozen(array.astype(np.int64)) for array in (at, ptr, item)]
    return ItemLinks(layout.q_size, places[0], frozen(sign), places[1], places[2])
