"""Pairwise models with any number of states, with one message per pair."""

from __future__ import annotations

from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets, ranges, short
from mapmrf.engines.messages.passes import SequentialPasses
from mapmrf.engines.messages.passes_kernels import PassFigures, PassSpan, PassStopping
from mapmrf.engines.messages.strands import Crew
from mapmrf.engines.messages.trws_labels_kernels import (
    LabelMessages,
    LabelModel,
    help_labels,
    iterate_labels,
    label_beliefs,
)
from mapmrf.engines.messages.trws_links_kernels import PairLinks, Turns, sort_links
from mapmrf.engines.messages.trws_tables_kernels import PairScratch, PairTables, turn_tables
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.engines.reduction.persistency import belief_bounds
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM

WIDE = 4
"""Number of states from which tables are also stored transposed, so that both directions read them row by row."""
MAX_TRANSPOSED = 1 << 22
"""Number of table entries above which no transposed copies are made."""


def fits_pairs(problem: Problem) -> bool:
    """Return whether all factors are finite pairwise tables."""
    return all(batch.arity == 2 and not batch.hard for batch in problem.batches)


class LabelPasses(SequentialPasses):
    """Passes over a pairwise model, by the kernels of `trws_labels_kernels`."""

    layout = "labels"

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        super().__init__(problem, order, stopping, label_work(problem), _label_type(problem))
        self.constant, self.start = problem.graph.constant, 0.0
        self.problem = problem
        self.model = label_model(problem, self.order)
        size = int(self.model.block[-1]) if len(self.model.block) else self.model.width * problem.n_factors
        self.messages = LabelMessages(np.zeros(size), self.labels, self.in_order)
        n_states = int(problem.graph.card.max(initial=1))
        self.rooms = [PairScratch.allocate(n_states) for _ in range(self.n_workers)]

    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel, single-threaded."""
        return iterate_labels(span, self.stopping, self.figures, self.model, self.messages, self.rooms[0], self.board)

    def help(self, forward: bool, decode: bool, crew: Crew, w: int) -> bool:
        """Make the visits of worker `w` in the kernel; False if it has to wait for others."""
        room = self.rooms[w]
        return help_labels(forward, decode, self.model, self.messages, room, crew.shares, self.board, w)

    @property
    def n_numbers(self) -> int:
        """For every pair, as many as its larger variable has states."""
        return len(self.messages.d)

    def numbers(self) -> Floats:
        """Return the messages, in the order of the problem's factors."""
        numbers = np.zeros_like(self.messages.d)
        numbers[self._places()] = self.messages.d
        return numbers

    def resume(self, numbers: Floats) -> None:
        """Set the messages to what `numbers` returned."""
        self.messages.d[:] = numbers[self._places()]

    def _places(self) -> Ints:
        """Return the permutation of the messages' entries to the order of the factors."""
        widths = [np.full(batch.n, max(batch.shape)) for batch in self.problem.batches]
        width = np.concatenate([np.zeros(0, dtype=np.int64), *widths])
        factor = self.model.links.factor >> 1
        return ranges(offsets(width)[factor], width[factor])

    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state by the beliefs of one more iteration."""
        beliefs = np.empty(self.problem.n_states)
        label_beliefs(self.model, self.messages, self.rooms[0], beliefs)
        return belief_bounds(self.problem, beliefs, self.figures.bound)


def _label_type(problem: Problem) -> type[np.integer[Any]]:
    """Return the type of labels: 16 bits, unless there are very many."""
    return np.int16 if problem.graph.card.max(initial=1) < 2**15 else np.int32


def label_work(problem: Problem) -> int:
    """Return the cost of an iteration, in table entries of `TablePasses`."""
    forms, work = problem.forms, 2 * problem.n_states
    for batch in problem.batches:
        n_plain = int(np.count_nonzero(forms.of[batch.factors] == NO_FORM)) if len(forms.of) else batch.n
        work += n_plain * batch.n_configs // 2 + batch.n * (8 + 3 * sum(batch.shape))
    return work


def label_model(problem: Problem, order: VisitOrder) -> LabelModel:
    """Sort the pairs in visiting order; the potentials are not copied."""
    graph, n, m = problem.graph, problem.n_vars, problem.n_factors
    links = PairLinks.allocate(n, m, max(n, 2 * m + 1, len(graph.theta_v)))
    sort_links(problem.scope, Turns(order.rank, order.rank, order.seq[:0]), links)
    dtype, widths = links.ptr.dtype, sorted({max(batch.shape) for batch in problem.batches})
    return LabelModel(
        theta_v=graph.theta_v,
        theta_at=graph.var_ptr[order.seq].astype(dtype),
        card=graph.card[order.seq].astype(dtype),
        omega=order.omega,
        links=links,
        width=widths[0] if len(widths) == 1 else 0,
        block=_blocks(problem, links) if len(widths) > 1 else np.zeros(0, dtype=np.int64),
        tables=pair_tables(problem),
        constant=graph.constant,
    )


def _blocks(problem: Problem, links: PairLinks) -> Ints:
    """Return the offsets of the messages of edges, with room for either end's states."""
    width = np.concatenate([np.full(batch.n, max(batch.shape)) for batch in problem.batches])
    return offsets(width[links.factor // 2])


def pair_tables(problem: Problem) -> PairTables:
    """Return the tables of a problem's pairs, also transposed if that helps and they are not symmetric."""
    graph, forms = problem.graph, problem.forms
    turned: Floats = np.zeros(0)
    wide = max((max(batch.shape) for batch in problem.batches), default=0) >= WIDE
    plain = len(forms.of) == 0 or bool(np.any(forms.of == NO_FORM) or np.any(forms.part_at >= 0))
    if wide and plain and len(graph.theta_t) <= MAX_TRANSPOSED:
        turned = np.zeros_like(graph.theta_t)
        turn_tables(graph.table_of, graph.table_ptr, graph.card[graph.scope[1::2]], graph.theta_t, turned)
        turned = graph.theta_t if np.array_equal(turned, graph.theta_t) else turned
    return PairTables(graph.theta_t, frozen(short(problem.table_at)), problem.weight, frozen(turned), forms)
