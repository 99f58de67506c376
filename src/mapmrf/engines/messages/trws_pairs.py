"""Binary pairwise models in spins, for the fastest of the sequential passes."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.messages.passes import SequentialPasses
from mapmrf.engines.messages.passes_kernels import PassFigures, PassSpan, PassStopping
from mapmrf.engines.messages.strands import Crew
from mapmrf.engines.messages.trws_links_kernels import PairLinks, Turns, sort_links
from mapmrf.engines.messages.trws_pairs_kernels import (
    SpinMessages,
    SpinModel,
    help_spins,
    iterate_spins,
    lay_out_spins,
    spin_beliefs,
)
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.engines.reduction.persistency import belief_bounds
from mapmrf.model.problem import Problem

Values = TypeVar("Values", Floats, Ints)

MAX_SPREAD = 1e6
"""Ratio of the largest to the typical entry beyond which a model is kept in tables, to avoid cancellation."""
SAMPLE = 10_000
"""Approximate number of entries from which the typical size is estimated."""


def fits_spins(problem: Problem) -> bool:
    """Return whether all factors are finite 2x2 tables, of comparable size."""
    graph = problem.graph
    if [batch.shape for batch in problem.batches] != [(2, 2)] or problem.batches[0].hard:
        return False
    if not np.all(graph.card == 2) or not np.isfinite(graph.theta_v).all():
        return False
    largest, usual = _sizes(graph.theta_t)
    if len(problem.weight):
        most, weight = _sizes(problem.weight)
        largest, usual = largest * most, usual * weight
    return usual == 0.0 or largest <= MAX_SPREAD * usual


def _sizes(values: Floats) -> tuple[float, float]:
    """Return the largest absolute value of some numbers, and the typical one of those that are not 0."""
    some = np.abs(values[:: 1 + len(values) // SAMPLE])
    usual = np.median(some[some > 0]) if np.any(some) else 0.0
    return float(max(values.max(), -values.min())), float(usual)


class SpinPasses(SequentialPasses):
    """Passes over a binary pairwise model, by the kernels of `trws_pairs_kernels`."""

    layout = "spins"

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        super().__init__(problem, order, stopping, 6 * problem.n_factors + problem.n_vars, np.int8)
        self.problem = problem
        at = self.seq[:0]
        if self.crew is not None:
            begin, at = self.crew.own_places(self.board)
            self.board = self.board._replace(begin=begin, end=begin + self.board.end - self.board.begin)
            self.seq = _placed(self.seq, at)
        self.model = spin_model(problem, self.order, at)
        self.constant, self.start = 0.0, self.model.constant
        self.messages = SpinMessages(np.zeros(problem.n_factors), self.labels, self.in_order)

    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel, single-threaded."""
        return iterate_spins(span, self.stopping, self.figures, self.model, self.messages, self.board)

    def help(self, forward: bool, decode: bool, crew: Crew, w: int) -> bool:
        """Make the visits of worker `w` in the kernel; False if it has to wait for others."""
        return help_spins(forward, decode, self.model, self.messages, crew.shares, self.board, w)

    @property
    def n_numbers(self) -> int:
        """One for every pair."""
        return len(self.messages.d)

    def numbers(self) -> Floats:
        """Return the messages, in the order of the problem's factors."""
        numbers = np.empty_like(self.messages.d)
        numbers[self.model.links.factor >> 1] = self.messages.d
        return numbers

    def resume(self, numbers: Floats) -> None:
        """Set the messages to what `numbers` returned."""
        self.messages.d[:] = numbers[self.model.links.factor >> 1]

    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state by the beliefs of one more iteration."""
        in_order, beliefs = np.empty(self.problem.n_vars), np.zeros((self.problem.n_vars, 2))
        spin_beliefs(self.model, self.messages, self.board, in_order)
        beliefs[self.seq, 0], beliefs[self.seq, 1] = -in_order, in_order
        return belief_bounds(self.problem, beliefs.ravel(), self.figures.bound)


def spin_model(problem: Problem, order: VisitOrder, at: Ints) -> SpinModel:
    """Convert the tables to couplings and fields, and sort the edges in both directions.

    `at` are the positions of the visits in the model, in order; empty if they are 0, 1, 2, ...
    """
    n, m, graph = problem.n_vars, problem.n_factors, problem.graph
    turns = Turns(order.rank, at[order.rank] if len(at) else order.rank, at)
    links = PairLinks.allocate(n, m, max(n, 2 * m + 1))
    sort_links(problem.scope, turns, links)
    low, high = graph.theta_v.reshape(-1, 2)[order.seq].T / 2
    h, omega, keep = (_placed(values, at) for values in (high - low, order.omega, order.keep))
    model = SpinModel(h, omega, keep, np.empty(m), links, float((low + high).sum()))
    tables = lay_out_spins(problem.scope, turns.place, graph.theta_t, problem.table_at, problem.weight, model)
    return model._replace(constant=graph.constant + model.constant + tables)


def _placed(values: Values, at: Ints) -> Values:
    """Rearrange values given by visit to their positions."""
    if len(at) == 0:
        return values
    placed = np.empty_like(values)
    placed[at] = values
    return placed
