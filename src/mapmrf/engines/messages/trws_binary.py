"""Binary pairwise models in spins, for the fastest of the sequential passes."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.sweeps import (
    Chunks,
    PassFigures,
    PassMessages,
    PassStopping,
    SequentialPasses,
    chunk_at,
    run_iterations,
    run_worker,
)
from mapmrf.engines.messages.visit_order import PairLinks, VisitOrder, sort_links
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem

Values = TypeVar("Values", Floats, Ints)


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
    # Largest entry over the typical one beyond which a model is kept in tables, to avoid cancellation
    return usual == 0.0 or largest <= 1e6 * usual


def _sizes(values: Floats) -> tuple[float, float]:
    """Return the largest absolute value of some numbers, and the typical one of those that are not 0."""
    # Approximate number of entries from which the typical size is estimated
    some = np.abs(values[:: 1 + len(values) // 10_000])
    usual = np.median(some[some > 0]) if np.any(some) else 0.0
    return float(max(values.max(), -values.min())), float(usual)


class SpinPasses(SequentialPasses):
    layout = "spins"
    model: SpinModel
    messages: PassMessages

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping) -> None:
        super().__init__(problem, order, stopping, 6 * problem.n_factors + problem.n_vars, np.int8)
        order, graph, n, m = self.order, problem.graph, problem.n_vars, problem.n_factors
        at, place = self.seq[:0], order.rank  # positions of the visits in the model; empty if they are 0, 1, 2, ...
        if self.workers is not None:
            begin, at = self.chunks.own_places()
            self.chunks = self.chunks._replace(begin=begin, end=begin + self.chunks.end - self.chunks.begin)
            self.seq, place = _placed(self.seq, at), at[order.rank]
        links = PairLinks.allocate(n, m, max(n, 2 * m + 1))
        sort_links(problem.scope, order.rank, place, at, links)
        low, high = graph.theta_v.reshape(-1, 2)[order.seq].T / 2
        fields, omega, keep = (_placed(values, at) for values in (high - low, order.omega, order.keep))
        self.model, unary = SpinModel(omega, keep, np.empty(m), links), float((low + high).sum())
        tables = lay_out_spins(
            problem.scope, place, graph.theta_t, problem.table_at, problem.weight, self.model, fields
        )
        self.start, self.constant = graph.constant + unary + tables, 0.0
        self.messages = PassMessages(np.zeros(problem.n_factors), fields, self.labels, self.in_order)
        self.kernels, self.scratches = (iterate_spins, spin_worker), [None] * self.n_workers

    @property
    def n_messages(self) -> int:
        return len(self.messages.lam)

    def message_values(self) -> Floats:
        numbers = np.empty_like(self.messages.lam)
        numbers[self.model.links.factor >> 1] = self.messages.lam
        return numbers

    def load_messages(self, numbers: Floats) -> None:
        self.messages.lam[:] = numbers[self.model.links.factor >> 1]

    def state_bounds(self) -> Floats:
        from mapmrf.engines.reduction.simplify import belief_bounds  # not loaded for a run of messages alone

        in_order, beliefs = np.empty(self.problem.n_vars), np.zeros((self.problem.n_vars, 2))
        spin_beliefs(self.model, self.messages, self.chunks, in_order)
        beliefs[self.seq, 0], beliefs[self.seq, 1] = -in_order, in_order
        return belief_bounds(self.problem, beliefs.ravel(), self.figures.bound)


def _placed(values: Values, at: Ints) -> Values:
    """Rearrange values given by visit to their positions."""
    if len(at) == 0:
        return values
    placed = np.empty_like(values)
    placed[at] = values
    return placed


# -- Sequential tree-reweighted passes over binary pairwise models, in spins ------------------------------------------
# A table of two binary variables is ``c + a s + b t + J s t`` with spins s, t = -1 (state 0) or +1 (state 1). The
# linear parts are moved into the fields `h` of the variables, so a factor is its coupling `J` alone and a message
# is one number: half the difference between its two entries. Variables are numbered in the order in which they are
# visited.

ONE = np.uintp(1)
TINY = 1e-300  # taken off a sum before its sign is read, so that 0 counts as negative: ties go to the state 0


class SpinModel(NamedTuple):
    """The couplings of a binary pairwise model, laid out along the visits."""

    # omega, keep: (n_vars,): share of its belief that a variable gives to each later one, and what it keeps in a
    # backward pass
    omega: Floats
    keep: Floats
    coupling: Floats  # (n_edges,)
    links: PairLinks  # the edges, in both directions


@compiled
def lay_out_spins(
    scope: Ints, place: Ints, theta_t: Floats, table_at: Ints, weight: Floats, model: SpinModel, h: Floats
) -> float:
    """Turn 2x2 tables into couplings and fields (added to `h`); return the constant."""
    constant = 0.0
    for a in range(len(table_at)):
        s, t, at, w = place[scope[2 * a]], place[scope[2 * a + 1]], table_at[a], weight_of(weight, a)
        t00, t01, t10, t11 = w * theta_t[at], w * theta_t[at + 1], w * theta_t[at + 2], w * theta_t[at + 3]
        constant += (t00 + t01 + t10 + t11) / 4.0
        h[s] += (t10 + t11 - t00 - t01) / 4.0
        h[t] += (t01 + t11 - t00 - t10) / 4.0
    for e in range(len(model.coupling)):
        b = int(model.links.factor[e] >> 1)
        at, w = table_at[b], weight_of(weight, b)
        t00, t01, t10, t11 = w * theta_t[at], w * theta_t[at + 1], w * theta_t[at + 2], w * theta_t[at + 3]
        model.coupling[e] = (t00 + t11 - t01 - t10) / 4.0
    return constant


@inlined
def pass_forward(begin: int, end: int, decode: bool, value: float, model: SpinModel, messages: PassMessages) -> float:
    """Pass messages to later variables; return the value of the labelling that is fixed on the way, if any."""
    # Each label is the best given those that are fixed already and the messages of the others.
    h, omega, coupling = messages.theta, model.omega, model.coupling
    ptr, back_ptr, down, id = model.links.ptr, model.links.back_ptr, model.links.down, model.links.id
    d, labels = messages.lam, messages.labels
    for s in range(np.uintp(begin), np.uintp(end)):
        field = h[s]
        first, last = np.uintp(ptr[s]), np.uintp(ptr[s + ONE])
        late, early, fixed = 0.0, 0.0, 0.0
        for i in range(last - first):
            late += d[last - ONE - i]
        for k in range(np.uintp(back_ptr[s]), np.uintp(back_ptr[s + ONE])):
            e = np.uintp(id[k])
            early += d[e]
            if decode:
                j = coupling[e]
                fixed += j if labels[np.uintp(down[k])] > 0 else -j
        if decode:
            known = field + fixed
            spin = np.copysign(1.0, known + late - TINY)
            labels[s] = spin > 0.0
            value += known * spin
        share = omega[s] * (field + early + late)
        for i in range(last - first):
            e = first + i
            j = coupling[e]
            most = abs(j)
            d[e] = min(max(np.copysign(1.0, j) * (share - d[e]), -most), most)
    return value


@inlined
def pass_backward(
    begin: int, end: int, decode: bool, bound: float, value: float, model: SpinModel, messages: PassMessages
) -> tuple[float, float]:
    """Pass messages to earlier variables; return the upper bound that they prove, and the value as `pass_forward`."""
    h, keep, coupling = messages.theta, model.keep, model.coupling
    ptr, up, back_ptr, id = model.links.ptr, model.links.up, model.links.back_ptr, model.links.id
    d, labels = messages.lam, messages.labels
    for v in range(np.uintp(end - begin)):
        s = np.uintp(end) - ONE - v
        field = h[s]
        first, last = np.uintp(ptr[s]), np.uintp(ptr[s + ONE])
        back_first, back_last = np.uintp(back_ptr[s]), np.uintp(back_ptr[s + ONE])
        late, early, fixed = 0.0, 0.0, 0.0
        for i in range(last - first):
            e = last - ONE - i
            late += d[e]
            if decode:
                j = coupling[e]
                fixed += j if labels[np.uintp(up[e])] > 0 else -j
        for k in range(back_first, back_last):
            early += d[np.uintp(id[k])]
        if decode:
            known = field + fixed
            spin = np.copysign(1.0, known + early - TINY)
            labels[s] = spin > 0.0
            value += known * spin
        belief = field + early + late
        bound += keep[s] * abs(belief)
        share = model.omega[s] * belief
        for k in range(back_first, back_last):
            e = np.uintp(id[k])
            j = coupling[e]
            most = abs(j)
            rest = share - d[e]
            bound += max(abs(rest), most)
            d[e] = min(max(np.copysign(1.0, j) * rest, -most), most)
    return bound, value


@inlined
def visit_spins(
    forward: bool, decode: bool, c: int, model: SpinModel, messages: PassMessages, scratch: None, chunks: Chunks
) -> None:
    begin, end, bound, value = chunks.begin[c], chunks.end[c], chunks.bound[c], chunks.value[c]
    if forward:
        chunks.value[c] = pass_forward(begin, end, decode, value, model, messages)
    else:
        chunks.bound[c], chunks.value[c] = pass_backward(begin, end, decode, bound, value, model, messages)


@compiled
def iterate_spins(*arguments: Any) -> tuple[int, int, PassFigures]:
    return run_iterations(visit_spins, arguments)


@compiled
def spin_worker(*arguments: Any) -> bool:
    return run_worker(visit_spins, arguments)


@compiled
def spin_beliefs(model: SpinModel, messages: PassMessages, chunks: Chunks, beliefs: Floats) -> None:
    """Make an iteration, and keep half the difference between the two beliefs of every variable on the way back."""
    links, d, n_chunks = model.links, messages.lam, len(chunks.bound)
    for place in range(n_chunks):
        c = chunk_at(True, place, chunks)
        pass_forward(chunks.begin[c], chunks.end[c], False, 0.0, model, messages)
    for place in range(n_chunks):
        c = chunk_at(False, place, chunks)
        for s in range(chunks.end[c] - 1, chunks.begin[c] - 1, -1):
            belief = messages.theta[s]
            for e in range(links.ptr[s], links.ptr[s + 1]):
                belief += d[e]
            for k in range(links.back_ptr[s], links.back_ptr[s + 1]):
                belief += d[links.id[k]]
            beliefs[s] = belief
            pass_backward(s, s + 1, False, 0.0, 0.0, model, messages)
