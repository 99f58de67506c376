"""Cost shifting between variables and factors: a reparametrisation with a smaller bound."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mapmrf.arrays import Ints, segment_max
from mapmrf.engines.elimination.bucket_tree import inverse
from mapmrf.engines.elimination.cost_shifting_kernels import ShiftedModel, collect_marginals, shift_costs
from mapmrf.model.problem import Problem

STEP_ENTRIES = 2_000_000
"""Table entries per step, each of which is read several times: some hundredths of a second."""


class CostShifting:
    """Sequential cost shifting: reparametrises a problem to lower its bound, the sum of all maxima.

    Attributes
    ----------
    theta_v, theta_f, table_ptr
        The reparametrised potentials: the table of factor `a` is ``theta_f[table_ptr[a]:table_ptr[a + 1]]``.
    labels
        The best state of every variable by its max-marginals in the last pass.
    """

    def __init__(self, problem: Problem, order: Ints) -> None:
        graph = problem.graph
        self.problem = problem
        self.theta_v = graph.theta_v.copy()
        self.theta_f = problem.theta_f.copy()
        self.table_ptr = problem.config_ptr.astype(np.int64)
        self.labels = np.zeros(problem.n_vars, dtype=np.int64)
        self._model = ShiftedModel(
            card=graph.card,
            var_ptr=graph.var_ptr,
            nbr_ptr=problem.nbr_ptr,
            factor_of=problem.edge_factor[problem.nbr],
            stride_of=problem.edge_stride[problem.nbr],
            scope_ptr=problem.scope_ptr,
            scope=problem.scope,
            table_ptr=self.table_ptr,
        )
        self._gathered = np.zeros(int(graph.card.max(initial=1)))
        self._order, self._rank, self._back = order, inverse(order), False

    def sweep(self) -> Iterator[None]:
        """Shift costs along the order and back, in steps of some table entries."""
        for order, rank in ((self._order, self._rank), (self._order[::-1].copy(), -self._rank)):
            for some in np.split(order, self._ends(order)):
                shift_costs(some, rank, self._model, self.theta_v, self.theta_f, self._gathered, self.labels)
                yield

    def _ends(self, order: Ints) -> Ints:
        """Return the ends of the steps along an order, except for the last."""
        sizes = np.diff(self.table_ptr)[self._model.factor_of]
        total = np.concatenate([[0], np.cumsum(sizes)])
        work = np.cumsum((total[self._model.nbr_ptr[1:]] - total[self._model.nbr_ptr[:-1]])[order])
        return np.flatnonzero(np.diff(work // STEP_ENTRIES)) + 1

    def collect(self) -> None:
        """Move the max-marginals of all factors to their variables, in either order alternately."""
        self._back = not self._back
        order = self._order[::-1].copy() if self._back else self._order
        collect_marginals(order, self._model, self.theta_v, self.theta_f, self._gathered)

    def bound(self) -> float:
        """The sum of the largest entries of all potentials."""
        total = self.problem.graph.constant
        for values, ptr in ((self.theta_v, self.problem.graph.var_ptr), (self.theta_f, self.table_ptr)):
            total += float(segment_max(values, ptr).sum())
        return total
