"""Sequential tree-reweighted passes over binary pairwise models, in spins.

A table of two binary variables is ``c + a s + b t + J s t`` with spins s, t = -1 (state 0) or +1 (state 1). The linear
parts are moved into the fields `h` of the variables, so a factor is its coupling `J` alone and a message is one
number: half the difference between its two entries. Variables are numbered in the order in which they are visited.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.messages.passes_kernels import LIMIT, PassFigures, PassSpan, PassStopping, at_rest, keep_best
from mapmrf.kernels.jit import bare, compiled

TINY = 1e-300
"""Taken off a sum before its sign is read, so that 0 counts as negative: ties go to the state 0."""


class SpinModel(NamedTuple):
    """A binary pairwise model in fields and couplings, laid out along the visits.

    Attributes
    ----------
    h, omega, keep : (n_vars,)
        Fields; share of its belief that a variable gives to each later one, and what it keeps in a backward pass.
    up, ptr, coupling
        The later end of every edge, where the edges of each earlier end start, and the couplings.
    down, id, back_ptr
        The same edges by their later end: the earlier end, the number of the edge, and where those of each later end
        start.
    constant
        What the tables hold besides.
    """

    h: Floats
    omega: Floats
    keep: Floats
    up: Ints
    ptr: Ints
    coupling: Floats
    down: Ints
    id: Ints
    back_ptr: Ints
    constant: float


class SpinMessages(NamedTuple):
    """Where passes stand.

    Attributes
    ----------
    d : (n_edges,)
        The message on every edge: to its earlier end after a backward pass, to its later end after a forward one.
    from_low, from_up : (n_vars,)
        Sums of the messages that a variable has from earlier and from later variables.
    fixed : (n_vars,)
        Couplings to the labels that are fixed already.
    labels, best : (n_vars,)
        The labelling decoded last, and the best one.
    """

    d: Floats
    from_low: Floats
    from_up: Floats
    fixed: Floats
    labels: Ints
    best: Ints


@compiled
def lay_out_spins(scope: Ints, rank: Ints, theta_t: Floats, table_at: Ints, model: SpinModel) -> float:
    """Turn 2x2 tables into couplings and fields (added to `h`) and sort the edges both ways; return the constant."""
    h, up, ptr, down, id, back_ptr = model.h, model.up, model.ptr, model.down, model.id, model.back_ptr
    n_edges = len(table_at)
    for a in range(n_edges):
        s, t = rank[scope[2 * a]], rank[scope[2 * a + 1]]
        ptr[min(s, t) + 1] += 1
        back_ptr[max(s, t) + 1] += 1
    for s in range(len(h)):
        ptr[s + 1] += ptr[s]
        back_ptr[s + 1] += back_ptr[s]
    constant = 0.0
    for a in range(n_edges):
        s, t, at = rank[scope[2 * a]], rank[scope[2 * a + 1]], table_at[a]
        t00, t01, t10, t11 = theta_t[at], theta_t[at + 1], theta_t[at + 2], theta_t[at + 3]
        constant += (t00 + t01 + t10 + t11) / 4.0
        h[s] += (t10 + t11 - t00 - t01) / 4.0
        h[t] += (t01 + t11 - t00 - t10) / 4.0
        e = ptr[min(s, t)]
        ptr[min(s, t)] += 1  # for now where the next edge goes
        up[e] = max(s, t)
        model.coupling[e] = (t00 + t11 - t01 - t10) / 4.0
    for s in range(len(h) - 1, -1, -1):
        ptr[s + 1] = ptr[s]
    ptr[0] = 0
    for s in range(len(h)):
        for e in range(ptr[s], ptr[s + 1]):
            k = back_ptr[up[e]]
            back_ptr[up[e]] += 1
            down[k] = s
            id[k] = e
    for s in range(len(h) - 1, -1, -1):
        back_ptr[s + 1] = back_ptr[s]
    back_ptr[0] = 0
    return constant


@bare
def forward(model: SpinModel, messages: SpinMessages, decode: bool) -> float:
    """Pass messages to later variables; return the value of the labelling that is fixed on the way, if any.

    Each label is the best given those that are fixed already (`fixed`: their couplings) and the messages of the others.
    """
    h, omega, up, ptr, coupling = model.h, model.omega, model.up, model.ptr, model.coupling
    d, from_low, from_up, fixed = messages.d, messages.from_low, messages.from_up, messages.fixed
    value = model.constant
    for s in range(len(h)):
        field = h[s]
        late = from_up[s]
        spin = 0.0
        if decode:
            known = field + fixed[s]
            fixed[s] = 0.0
            spin = np.copysign(1.0, known + late - TINY)
            messages.labels[s] = spin > 0.0
            value += known * spin
        share = omega[s] * (field + from_low[s] + late)
        from_up[s] = 0.0
        for e in range(ptr[s], ptr[s + 1]):
            t = up[e]
            j = coupling[e]
            most = abs(j)
            sent = min(max(np.copysign(1.0, j) * (share - d[e]), -most), most)
            d[e] = sent
            from_low[t] += sent
            if decode:
                fixed[t] += j * spin
    return value


@bare
def backward(model: SpinModel, messages: SpinMessages, decode: bool) -> tuple[float, float]:
    """Pass messages to earlier variables; return the upper bound that they prove, and the value as in `forward`."""
    h, keep, down, id, back_ptr = model.h, model.keep, model.down, model.id, model.back_ptr
    d, from_low, from_up, fixed = messages.d, messages.from_low, messages.from_up, messages.fixed
    bound, value = model.constant, model.constant
    for s in range(len(h) - 1, -1, -1):
        field = h[s]
        early = from_low[s]
        spin = 0.0
        if decode:
            known = field + fixed[s]
            fixed[s] = 0.0
            spin = np.copysign(1.0, known + early - TINY)
            messages.labels[s] = spin > 0.0
            value += known * spin
        belief = field + early + from_up[s]
        from_low[s] = 0.0
        bound += keep[s] * abs(belief)
        share = model.omega[s] * belief
        for k in range(back_ptr[s], back_ptr[s + 1]):
            e = id[k]
            u = down[k]
            j = model.coupling[e]
            most = abs(j)
            rest = share - d[e]
            bound += max(abs(rest), most)
            sent = min(max(np.copysign(1.0, j) * rest, -most), most)
            d[e] = sent
            from_up[u] += sent
            if decode:
                fixed[u] += j * spin
    return bound, value


@compiled
def iterate_spins(
    span: PassSpan, stopping: PassStopping, figures: PassFigures, model: SpinModel, messages: SpinMessages
) -> tuple[int, int, PassFigures]:
    """Run iterations until a limit, a closed gap or rest; return how many, why they ended, and the figures."""
    for n in range(span.begin, span.end):
        decode = n % span.decode_every == 0
        value = forward(model, messages, decode)
        if decode:
            figures = keep_best(figures, value, messages.labels, messages.best)
        bound, value = backward(model, messages, decode)
        if decode:
            figures = keep_best(figures, value, messages.labels, messages.best)
        why, figures = at_rest(figures, bound, stopping)
        if why != LIMIT:
            return n + 1 - span.begin, why, figures
    return span.end - span.begin, LIMIT, figures
