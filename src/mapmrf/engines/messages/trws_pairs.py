"""Binary pairwise models in spins, for the quickest of the sequential passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.engines.messages.passes import SequentialPasses
from mapmrf.engines.messages.passes_kernels import PassFigures, PassSpan, PassStopping
from mapmrf.engines.messages.trws_pairs_kernels import SpinMessages, SpinModel, iterate_spins, lay_out_spins
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.problem import Problem

MAX_SPREAD = 1e6
"""With entries so much larger than the usual ones a model is better kept in tables, where nothing cancels."""
SAMPLE = 10_000
"""Entries, roughly, from which the usual size is estimated."""


def fits_spins(problem: Problem) -> bool:
    """Whether all factors are finite tables of two binary variables, of comparable size."""
    graph = problem.graph
    if [batch.shape for batch in problem.batches] != [(2, 2)] or problem.batches[0].hard:
        return False
    if not np.all(graph.card == 2) or not np.isfinite(graph.theta_v).all():
        return False
    largest = max(graph.theta_t.max(), -graph.theta_t.min())
    some = np.abs(graph.theta_t[:: 1 + len(graph.theta_t) // SAMPLE])
    return not np.any(some) or bool(largest <= MAX_SPREAD * np.median(some[some > 0]))


class SpinPasses(SequentialPasses):
    """Passes over a binary pairwise model, as the kernels of `trws_pairs_kernels` see it."""

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        in_order, labels = np.zeros((2, problem.n_vars), dtype=np.int8)
        super().__init__(order.seq, stopping, in_order)
        self.model = spin_model(problem, order)
        from_low, from_up, fixed = (np.zeros(problem.n_vars) for _ in range(3))  # rows of one array may alias in cache
        self.messages = SpinMessages(np.zeros(problem.n_factors), from_low, from_up, fixed, labels, in_order)

    @property
    def work(self) -> int:
        """What an iteration costs, in table entries of `TablePasses`."""
        return 6 * len(self.messages.d) + len(self.seq)

    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel."""
        return iterate_spins(span, self.stopping, self.figures, self.model, self.messages)


def spin_model(problem: Problem, order: VisitOrder) -> SpinModel:
    """Turn the tables into couplings and fields, and sort the edges in both directions."""
    n, m, graph = problem.n_vars, problem.n_factors, problem.graph
    dtype: type[np.integer[Any]] = np.int32 if m < 2**31 else np.int64
    up, down, id = np.empty((3, m), dtype=dtype)
    ptr, back_ptr = np.zeros((2, n + 1), dtype=dtype)
    low, high = graph.theta_v.reshape(-1, 2)[order.seq].T / 2
    model = SpinModel(
        high - low, order.omega, order.keep, up, ptr, np.empty(m), down, id, back_ptr, float((low + high).sum())
    )
    tables = lay_out_spins(problem.scope, order.rank, graph.theta_t, problem.table_at, model)
    return model._replace(constant=graph.constant + model.constant + tables)
