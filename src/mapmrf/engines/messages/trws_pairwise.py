"""Pairwise models with any number of states, with one message per pair."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints, frozen, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.messages.pair_messages import (
    PairScratch,
    PairTables,
    Place,
    add_row,
    entry,
    largest,
    pass_message,
    reward,
    turn_tables,
)
from mapmrf.engines.messages.parallel_sweep import Crew
from mapmrf.engines.messages.parallel_sweep_kernels import (
    Board,
    Shares,
    begin_pass,
    chunk_at,
    next_chunk,
    report_chunk,
)
from mapmrf.engines.messages.sweeps import SequentialPasses
from mapmrf.engines.messages.sweeps_kernels import LIMIT, PassFigures, PassSpan, PassStopping, end_pass
from mapmrf.engines.messages.visit_order import PairLinks, Turns, VisitOrder, sort_links
from mapmrf.engines.reduction.simplify import belief_bounds
from mapmrf.model.problem import Problem
from mapmrf.model.structured_pairs import NO_FORM

WIDE = 4  # number of states from which tables are also stored transposed, so that both directions read them row by row
MAX_TRANSPOSED = 1 << 22  # number of table entries above which no transposed copies are made


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


# -- Sequential tree-reweighted passes over pairs of variables with any number of states ------------------------------
# A pair holds one message: after a visit to one of its ends the message to the other end, which is visited next. Tables
# are finite, so messages are, too; states with a unary potential of -inf never have anything to give.

ONE = np.uintp(1)


class LabelModel(NamedTuple):
    """A model of pairs, laid out along the visits."""

    theta_v: Floats  # the unary potentials, as in the graph
    # theta_at, card: (n_vars,): where the block of each visited variable starts in it, and its states
    theta_at: Ints
    card: Ints
    omega: Floats  # (n_vars,): share of its belief that a variable gives to each pair that comes next
    links: PairLinks  # the pairs, in both directions
    width: int  # room for every message; 0 if they differ
    block: Ints  # where the message of every edge starts, if they differ
    tables: PairTables  # the potentials of pairs
    constant: float  # the constant of the model


class LabelMessages(NamedTuple):
    """State of the passes: the message of every pair; the last decoded labelling and the best one, by visit."""

    d: Floats
    labels: Ints
    best: Ints


@inlined
def block_of(model: LabelModel, e: Place) -> Place:
    """Return the offset of an edge's message."""
    return e * np.uintp(model.width) if model.width > 0 else np.uintp(model.block[e])


@inlined
def add_message(at: Place, d: Floats, belief: Floats, n: Place) -> None:
    """Add a message to a belief."""
    for k in range(n):
        belief[k] += d[at + k]


@inlined
def first_largest(score: Floats, n: Place) -> Place:
    """The first of the states with the largest score."""
    top = largest(score, np.uintp(0), n)
    own = np.uintp(0)
    for k in range(n):
        back = n - k - ONE
        own = back if score[back] == top else own
    return own


@inlined
def choose_label(forward: bool, s: Place, model: LabelModel, labels: Ints, score: Floats) -> None:
    """Fix a label given those of the variables before.

    `score` has the unary potentials and the messages of the variables to come. Rewards for a label come last: all else
    is known before the label of the variable visited last.
    """
    links, tables, n = model.links, model.tables, np.uintp(model.card[s])
    begins = links.back_ptr if forward else links.ptr
    others = links.down if forward else links.up
    flip = np.uintp(0) if forward else ONE
    first, last = np.uintp(begins[s]), np.uintp(begins[s + ONE])
    for i in range(first, last):
        code = np.uintp(links.factor[links.id[i] if forward else i]) ^ flip
        if reward(code, tables) <= 0.0:
            u = np.uintp(others[i])
            add_row(code, np.uintp(labels[u]), tables, n, np.uintp(model.card[u]), score)
    own = first_largest(score, n)
    top = score[own]
    for i in range(first, last):
        more = reward(np.uintp(links.factor[links.id[i] if forward else i]) ^ flip, tables)
        if more > 0.0:
            label = np.uintp(labels[np.uintp(others[i])])
            now = score[label] + more
            score[label] = now
            own = label if now > top or (now == top and label < own) else own
            top = now if now > top else top
    labels[s] = own


@bare
def add_values(forward: bool, begin: int, end: int, value: float, model: LabelModel, labels: Ints) -> float:
    """Add what the labels of some variables are worth, by themselves and together with those fixed before."""
    links, tables = model.links, model.tables
    begins = links.back_ptr if forward else links.ptr
    others = links.down if forward else links.up
    flip = np.uintp(0) if forward else ONE
    for v in range(np.uintp(begin), np.uintp(end)):
        s = v if forward else np.uintp(begin) + np.uintp(end) - ONE - v
        own, n_own = np.uintp(labels[s]), np.uintp(model.card[s])
        value += model.theta_v[np.uintp(model.theta_at[s]) + own]
        for i in range(np.uintp(begins[s]), np.uintp(begins[s + ONE])):
            code, u = np.uintp(links.factor[links.id[i] if forward else i]) ^ flip, np.uintp(others[i])
            value += entry(code, np.uintp(labels[u]), own, tables, n_own, np.uintp(model.card[u]))
    return value


@inlined
def give(
    code: Place, s: Place, n_other: Place, at: Place, best: float, model: LabelModel, d: Floats, room: PairScratch
) -> float:
    """Send a share of a belief through a pair; return the largest entry of the message."""
    n, to = np.uintp(model.card[s]), np.uintp(len(room.belief))
    omega, belief, h = model.omega[s], room.belief, room.h
    for k in range(n):
        h[to + k] = omega * (belief[k] - best) - d[at + k]
    return pass_message(code, model.tables, d, at, n, n_other, room)


@bare
def visit_labels(
    forward: bool, decode: bool, begin: int, end: int, bound: float, model: LabelModel, messages: LabelMessages,
    room: PairScratch,
) -> float:  # fmt: skip
    """Visit some variables one after another and fix their labels; return the bound with what they add to it.

    It is -inf if a variable has no possible state.
    """
    links, d, belief, score = model.links, messages.d, room.belief, room.score
    ptr, back_ptr, id = links.ptr, links.back_ptr, links.id
    flip = np.uintp(0) if forward else ONE
    for v in range(np.uintp(begin), np.uintp(end)):
        s = v if forward else np.uintp(begin) + np.uintp(end) - ONE - v
        n, at = np.uintp(model.card[s]), np.uintp(model.theta_at[s])
        for k in range(n):
            belief[k] = model.theta_v[at + k]
        low, high = np.uintp(ptr[s]), np.uintp(ptr[s + ONE])
        back_low, back_high = np.uintp(back_ptr[s]), np.uintp(back_ptr[s + ONE])
        first, last = (low, high) if forward else (back_low, back_high)
        for i in range(first, last):
            add_message(block_of(model, i if forward else np.uintp(id[i])), d, belief, n)
        if decode:
            for k in range(n):
                score[k] = belief[k]
            choose_label(forward, s, model, messages.labels, score)
        behind, ahead = (back_low, back_high) if forward else (low, high)
        for i in range(behind, ahead):
            add_message(block_of(model, np.uintp(id[i]) if forward else i), d, belief, n)
        best = largest(belief, np.uintp(0), n)
        if best == -np.inf:
            return -np.inf
        bound += best
        for i in range(first, last):
            e = i if forward else np.uintp(id[i])
            n_other = np.uintp(model.card[links.up[i] if forward else links.down[i]])
            code = np.uintp(links.factor[e]) ^ flip
            bound += give(code, s, n_other, block_of(model, e), best, model, d, room)
    return bound


@inlined
def visit_chunk(
    forward: bool, decode: bool, c: int, model: LabelModel, messages: LabelMessages, room: PairScratch, board: Board
) -> None:
    """Make the visits of a chunk, and add what they give to its sums."""
    begin, end = board.begin[c], board.end[c]
    board.bound[c] = visit_labels(forward, decode, begin, end, board.bound[c], model, messages, room)
    if decode:
        board.value[c] = add_values(forward, begin, end, board.value[c], model, messages.labels)


@compiled
def iterate_labels(
    span: PassSpan, stopping: PassStopping, figures: PassFigures, model: LabelModel, messages: LabelMessages,
    room: PairScratch, board: Board,
) -> tuple[int, int, PassFigures]:  # fmt: skip
    """Run iterations until a limit, a closed gap or rest; return how many, why they ended, and the figures."""
    for n in range(span.begin, span.end):
        decode = n % span.decode_every == 0
        for half in range(2):
            forward = half == 0
            begin_pass(forward, board, 0.0)
            for place in range(len(board.bound)):
                visit_chunk(forward, decode, chunk_at(forward, place, board), model, messages, room, board)
            why, figures = end_pass(
                forward, decode, model.constant, figures, stopping, board, messages.labels, messages.best
            )
        if why != LIMIT:
            return n + 1 - span.begin, why, figures
    return span.end - span.begin, LIMIT, figures


@compiled
def help_labels(
    forward: bool, decode: bool, model: LabelModel, messages: LabelMessages, room: PairScratch, shares: Shares,
    board: Board, w: int,
) -> bool:  # fmt: skip
    """Visit the chunks of worker `w`; return False if one has to wait for long, to be called again."""
    while True:
        c = next_chunk(forward, w, shares, board)
        if c < 0:
            return c == -1
        visit_chunk(forward, decode, c, model, messages, room, board)
        report_chunk(forward, c, w, shares, board)


@compiled
def label_beliefs(model: LabelModel, messages: LabelMessages, room: PairScratch, beliefs: Floats) -> None:
    """Make an iteration, and keep the beliefs of every variable on the way back, laid out like `theta_v`.

    Visits are called in one place, as every call takes the compiler seconds.
    """
    n = len(model.card)
    for visit in range(2 * n):
        forward = visit < n
        s = visit if forward else 2 * n - 1 - visit
        visit_labels(forward, False, s, s + 1, 0.0, model, messages, room)
        for k in range(model.card[s]):
            beliefs[model.theta_at[s] + k] = room.belief[k]
