"""Sequential tree-reweighted passes over binary pairwise models, in spins.

A table of two binary variables is ``c + a s + b t + J s t`` with spins s, t = -1 (state 0) or +1 (state 1). The linear
parts are moved into the fields `h` of the variables, so a factor is its coupling `J` alone and a message is one
number: half the difference between its two entries. Variables are numbered in the order in which they are visited.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.passes_kernels import LIMIT, PassFigures, PassSpan, PassStopping, end_pass
from mapmrf.engines.messages.strands_kernels import (
    Board,
    Shares,
    begin_pass,
    chunk_at,
    next_chunk,
    report_chunk,
)
from mapmrf.engines.messages.trws_links_kernels import PairLinks
from mapmrf.kernels.factor_tables import weight_of

ONE = np.uintp(1)
TINY = 1e-300
"""Taken off a sum before its sign is read, so that 0 counts as negative: ties go to the state 0."""


class SpinModel(NamedTuple):
    """A binary pairwise model in fields and couplings, laid out along the visits.

    Attributes
    ----------
    h, omega, keep : (n_vars,)
        Fields; share of its belief that a variable gives to each later one, and what it keeps in a backward pass.
    coupling : (n_edges,)
        The couplings.
    links
        The edges, in both directions.
    constant
        What the tables hold besides.
    """

    h: Floats
    omega: Floats
    keep: Floats
    coupling: Floats
    links: PairLinks
    constant: float


class SpinMessages(NamedTuple):
    """State of the passes.

    Attributes
    ----------
    d : (n_edges,)
        The message on every edge: to its earlier end after a backward pass, to its later end after a forward one.
    labels, best : (n_vars,)
        The labelling decoded last, and the best one.
    """

    d: Floats
    labels: Ints
    best: Ints


@compiled
def lay_out_spins(scope: Ints, place: Ints, theta_t: Floats, table_at: Ints, weight: Floats, model: SpinModel) -> float:
    """Turn 2x2 tables into couplings and fields (added to `h`); return the constant."""
    h, constant = model.h, 0.0
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
def pass_forward(begin: int, end: int, decode: bool, value: float, model: SpinModel, messages: SpinMessages) -> float:
    """Pass messages to later variables; return the value of the labelling that is fixed on the way, if any.

    Each label is the best given those that are fixed already and the messages of the others.
    """
    h, omega, coupling = model.h, model.omega, model.coupling
    ptr, back_ptr, down, id = model.links.ptr, model.links.back_ptr, model.links.down, model.links.id
    d, labels = messages.d, messages.labels
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
    begin: int, end: int, decode: bool, bound: float, value: float, model: SpinModel, messages: SpinMessages
) -> tuple[float, float]:
    """Pass messages to earlier variables; return the upper bound that they prove, and the value as `pass_forward`."""
    h, keep, coupling = model.h, model.keep, model.coupling
    ptr, up, back_ptr, id = model.links.ptr, model.links.up, model.links.back_ptr, model.links.id
    d, labels = messages.d, messages.labels
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
def visit_spins(forward: bool, decode: bool, c: int, model: SpinModel, messages: SpinMessages, board: Board) -> None:
    """Make the visits of a chunk, and add what they give to its sums."""
    begin, end, bound, value = board.begin[c], board.end[c], board.bound[c], board.value[c]
    if forward:
        board.value[c] = pass_forward(begin, end, decode, value, model, messages)
    else:
        board.bound[c], board.value[c] = pass_backward(begin, end, decode, bound, value, model, messages)


@compiled
def iterate_spins(
    span: PassSpan, stopping: PassStopping, figures: PassFigures, model: SpinModel, messages: SpinMessages,
    board: Board,
) -> tuple[int, int, PassFigures]:  # fmt: skip
    """Run iterations until a limit, a closed gap or rest; return how many, why they ended, and the figures."""
    for n in range(span.begin, span.end):
        decode = n % span.decode_every == 0
        for half in range(2):
            forward = half == 0
            begin_pass(forward, board, model.constant)
            for place in range(len(board.bound)):
                visit_spins(forward, decode, chunk_at(forward, place, board), model, messages, board)
            why, figures = end_pass(forward, decode, 0.0, figures, stopping, board, messages.labels, messages.best)
        if why != LIMIT:
            return n + 1 - span.begin, why, figures
    return span.end - span.begin, LIMIT, figures


@compiled
def help_spins(
    forward: bool, decode: bool, model: SpinModel, messages: SpinMessages, shares: Shares, board: Board, w: int
) -> bool:
    """Visit the chunks of worker `w`; return False if one has to wait for long, to be called again."""
    while True:
        c = next_chunk(forward, w, shares, board)
        if c < 0:
            return c == -1
        visit_spins(forward, decode, c, model, messages, board)
        report_chunk(forward, c, w, shares, board)


@compiled
def spin_beliefs(model: SpinModel, messages: SpinMessages, board: Board, beliefs: Floats) -> None:
    """Make an iteration, and keep half the difference between the two beliefs of every variable on the way back."""
    links, d, n_chunks = model.links, messages.d, len(board.bound)
    for place in range(n_chunks):
        c = chunk_at(True, place, board)
        pass_forward(board.begin[c], board.end[c], False, 0.0, model, messages)
    for place in range(n_chunks):
        c = chunk_at(False, place, board)
        for s in range(board.end[c] - 1, board.begin[c] - 1, -1):
            belief = model.h[s]
            for e in range(links.ptr[s], links.ptr[s + 1]):
                belief += d[e]
            for k in range(links.back_ptr[s], links.back_ptr[s + 1]):
                belief += d[links.id[k]]
            beliefs[s] = belief
            pass_backward(s, s + 1, False, 0.0, 0.0, model, messages)
