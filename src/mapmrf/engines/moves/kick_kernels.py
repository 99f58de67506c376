"""Kicks: randomise a small region, repair it, and keep the changed parts that are worth it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.moves.chain_kernels import Chain, follow_chains
from mapmrf.engines.moves.crossover_kernels import PartScratch, forget_parts, gather_part
from mapmrf.engines.moves.flip_kernels import SetSearch, flip_sets
from mapmrf.engines.moves.flip_state_kernels import Agenda, FlipState, commit, set_state
from mapmrf.engines.moves.random_kernels import UNIT, Bits, draw

ANY_NUMBER = 1 << 60
"""No limit on visits."""


class KickCounts:
    """1 if a kick awaits its evaluation; kicks evaluated so far; kicks of which something was kept."""

    pending: int
    judged: int
    kept: int


class Kicks(NamedTuple):
    """Size and count of kicks, the state of their random number generator, and scratch.

    Attributes
    ----------
    largest
        Variables of the largest kick.
    """

    largest: int
    random: Bits
    parts: PartScratch
    counts: KickCounts


@bare
def kick(flips: FlipState, agenda: Agenda, kicks: Kicks) -> int:
    """Randomise the labels of a random variable and those nearest to it; return the entries read."""
    model, region, seen = flips.model, kicks.parts.members, kicks.parts.seen
    for t in range(agenda.counts.n_changed):
        i = agenda.changed[t]
        agenda.is_changed[i] = False
        agenda.origin[i] = flips.labels[i]
    agenda.counts.n_changed = 0
    n_wanted = 1 + draw(kicks.random, kicks.largest)
    region[0] = draw(kicks.random, len(flips.labels))
    seen[region[0]] = True
    at, end, work = 0, 1, 0
    while at < end:
        i = region[at]
        at += 1
        for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
            a = model.factor_of[e]
            for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
                j = model.scope[p]
                if not seen[j] and end < n_wanted:
                    seen[j] = True
                    region[end] = j
                    end += 1
        k = draw(kicks.random, model.card[i])
        if k != flips.labels[i]:
            work += 2 * set_state(flips, i, k, 0) + commit(flips, agenda, i)
    for at in range(end):
        seen[region[at]] = False
    return work + end


@inlined
def clear_queue(agenda: Agenda) -> None:
    """Empty the queue."""
    count, queue = agenda.counts, agenda.queue
    for t in range(count.queue_length):
        agenda.queued[queue[(count.queue_begin + t) % len(queue)]] = False
    count.queue_length = 0


@bare
def settle(flips: FlipState, agenda: Agenda, kicks: Kicks, temperature: float) -> int:
    """Undo every part of the change that is worse, unless accepted with the Metropolis probability.

    Returns the entries read. If nothing is kept, no variable needs to be visited again.
    """
    labels, origin, members = flips.labels, agenda.origin, kicks.parts.members
    kept = work = end = 0
    for t in range(agenda.counts.n_changed):
        first = agenda.changed[t]
        if kicks.parts.seen[first] or labels[first] == origin[first]:
            continue
        begin = end
        part = gather_part(flips.model, origin, labels, kicks.parts, first, begin)
        end = part.end
        level = (draw(kicks.random, 1 << 53) + 1.0) / UNIT
        not_worse = part.gain >= 0.0 or part.gain > temperature * np.log(level)
        good = part.mended > 0 or (part.mended == 0 and not_worse)
        kept += int(good)
        for at in range(begin, end):
            i = members[at]
            work += flips.model.card[i]
            if not good:
                work += 2 * set_state(flips, i, origin[i], 0) + commit(flips, agenda, i)
    forget_parts(flips.model, kicks.parts, end)
    if kept == 0:
        clear_queue(agenda)
    kicks.counts.kept += int(kept > 0)
    return work


@bare
def next_kick(flips: FlipState, agenda: Agenda, kicks: Kicks, temperature: float, max_kicks: int) -> int:
    """Evaluate the last kick if that is due, else kick again; return the entries read, -1 if no kick is left."""
    count = kicks.counts
    if count.pending == 1:
        count.pending = 0
        count.judged += 1
        return settle(flips, agenda, kicks, temperature)
    if count.judged >= max_kicks:
        return -1
    count.pending = 1
    return kick(flips, agenda, kicks)


@compiled
def kick_and_flip(
    flips: FlipState, agenda: Agenda, sets: SetSearch, kicks: Kicks, temperature: float, budget: int, max_kicks: int
) -> int:
    """Kick and repair by flips of sets, until a budget is spent or all kicks are done; returns the entries."""
    work = 0
    while work < budget:
        entries, _ = flip_sets(flips, agenda, sets, budget - work, ANY_NUMBER)
        work += entries
        if sets.cursor.level < 0 and agenda.counts.heap_length == 0 and agenda.counts.queue_length == 0:
            entries = next_kick(flips, agenda, kicks, temperature, max_kicks)
            if entries < 0:
                break
            work += entries
    return work


@compiled
def kick_and_chain(
    flips: FlipState, agenda: Agenda, chain: Chain, kicks: Kicks, temperature: float, budget: int, max_kicks: int
) -> int:
    """Kick and repair by chains, until a budget is spent or all kicks are done; returns the entries."""
    work = 0
    while work < budget:
        entries, _ = follow_chains(flips, agenda, chain, budget - work, ANY_NUMBER)
        work += entries
        if chain.cursor.variable < 0 and agenda.counts.heap_length == 0 and agenda.counts.queue_length == 0:
            entries = next_kick(flips, agenda, kicks, temperature, max_kicks)
            if entries < 0:
                break
            work += entries
    return work
