"""Kicks with three kinds of repair, for the method `restarts`."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints, blank
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.chains import Chain, ChainSearch, FlipSearch, SetSearch, improve
from mapmrf.engines.moves.crossover import Crossover, PartScratch, forget_parts, gather_part, new_part_scratch
from mapmrf.engines.moves.flip_state import Agenda, FlipState, commit, set_state
from mapmrf.kernels.random_numbers import UNIT, Bits, draw, seeded
from mapmrf.model.problem import Problem

PER_KICK = 30_000  # cost of a kick without its repair, in table entries


def largest_kick(n_vars: int) -> int:
    """Variables of the largest kick of a whole model: a quarter of all, within limits."""
    return min(100, max(10, n_vars // 4), max(1, n_vars))


class SearchKicks:
    """Kicks repaired by flips of small sets or by chains of flips, on the table of gains."""

    def __init__(self, problem: Problem, search: FlipSearch | ChainSearch, largest: int, seed: int) -> None:
        self.search = search  # runs first and then repairs
        largest = min(largest, max(1, problem.n_vars))
        self.kicks = Kicks(largest, seeded(seed), new_part_scratch(problem), blank(KickCounts))

    def restart(self, labels: Ints) -> None:
        self.kicks.counts.pending = 0
        self.search.restart(labels)

    @property
    def done(self) -> int:
        """Kicks evaluated so far."""
        return int(self.kicks.counts.judged)

    @property
    def taken(self) -> int:
        """Kicks of which something was kept."""
        return int(self.kicks.counts.kept)

    def run(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Search, then kick and repair, for about `entries` table entries and up to `max_kicks` kicks in total."""
        search = self.search
        if search.at_rest:
            kick_and_repair(search.flips, search.agenda, *search.moves, self.kicks, temperature, entries, max_kicks)
        else:
            search.run(entries)

    def labels(self) -> Ints:
        """Return the labelling, as it was before a kick that has not been evaluated."""
        return self.search.agenda.origin.copy() if self.kicks.counts.pending else self.search.labels()


class BlockKicks:
    """Kicks repaired by exact optimisation of their surroundings, after passes over the whole model."""

    def __init__(self, problem: Problem, labels: Ints, largest: int, width: float, seed: int) -> None:
        self.problem, self.width = problem, width
        self.largest = min(largest, max(1, problem.n_vars))
        self.blocks, self.crossover = BlockMoves(problem, seed), Crossover(problem)
        self.now = labels
        self.calm = self.done = self.taken = 0

    def run(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Pass over the model, then kick and repair, for about `entries` table entries and up to `max_kicks` kicks."""
        blocks = self.blocks
        end = blocks.work + PER_KICK * self.done + entries
        # Passes over the whole model without a change before the kicks begin
        while blocks.work < end and self.calm < 3:
            self.calm = self.calm + 1 if blocks.optimise(self.now, self.width) == 0 else 0
        while blocks.work + PER_KICK * self.done < end and self.done < max_kicks:
            self.taken += self.attempt(temperature)
            self.done += 1

    def attempt(self, temperature: float) -> bool:
        """Kick once; return whether something was kept."""
        random, graph = self.blocks.random, self.problem.graph
        size = int(random.integers(1, self.largest + 1))
        region = self.blocks.neighbourhood(4 * size)  # variables of a repair block, per kicked variable
        trial = self.now.copy()
        trial[region[:size]] = random.integers(0, graph.card[region[:size]])
        self.blocks.optimise(trial, self.width, region)
        if temperature == 0.0:
            return self.crossover.fuse(self.now, trial, region) > 0.0
        gain = graph.value(trial) - graph.value(self.now)
        good = bool(gain >= temperature * np.log(1.0 - random.random()))
        if good:
            self.now = trial
        return good

    def labels(self) -> Ints:
        return self.now.copy()


# -- Kicks: randomise a small region, repair it, and keep the changed parts that are worth it -------------------------

ANY_NUMBER = 1 << 60  # no limit on visits


class KickCounts:
    pending: int  # 1 if a kick awaits its evaluation
    judged: int  # kicks evaluated so far
    kept: int  # kicks of which something was kept


class Kicks(NamedTuple):
    largest: int  # variables of the largest kick
    random: Bits
    parts: PartScratch  # scratch
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


@bare
def undo_worse_parts(flips: FlipState, agenda: Agenda, kicks: Kicks, temperature: float) -> int:
    """Undo every part of the change that is worse, unless accepted with the Metropolis probability."""
    # Returns the entries read. If nothing is kept, no variable needs to be visited again.
    labels, origin, members = flips.labels, agenda.origin, kicks.parts.members
    kept = work = end = 0
    for t in range(agenda.counts.n_changed):
        first = agenda.changed[t]
        if kicks.parts.seen[first] or labels[first] == origin[first]:
            continue
        begin = end
        end, mended, gain = gather_part(flips.model, origin, labels, kicks.parts, first, begin)
        level = (draw(kicks.random, 1 << 53) + 1.0) / UNIT
        not_worse = gain >= 0.0 or gain > temperature * np.log(level)
        good = mended > 0 or (mended == 0 and not_worse)
        kept += int(good)
        for at in range(begin, end):
            i = members[at]
            work += flips.model.card[i]
            if not good:
                work += 2 * set_state(flips, i, origin[i], 0) + commit(flips, agenda, i)
    forget_parts(flips.model, kicks.parts, end)
    if kept == 0:
        count, queue = agenda.counts, agenda.queue
        for t in range(count.queue_length):
            agenda.queued[queue[(count.queue_begin + t) % len(queue)]] = False
        count.queue_length = 0
    kicks.counts.kept += int(kept > 0)
    return work


@compiled
def kick_and_repair(
    flips: FlipState, agenda: Agenda, chain: Chain | None, sets: SetSearch | None, kicks: Kicks, temperature: float,
    budget: int, max_kicks: int,
) -> int:  # fmt: skip
    """Kick and repair, by chains or else by flips of sets, until a budget is spent or all kicks are done."""
    # Returns the entries read.
    work, count = 0, kicks.counts
    while work < budget:
        entries, _ = improve(flips, agenda, chain, sets, budget - work, ANY_NUMBER)
        work += entries
        searching = (chain is not None and chain.cursor.place >= 0) or (sets is not None and sets.cursor.place >= 0)
        if searching or agenda.counts.heap_length > 0 or agenda.counts.queue_length > 0:
            continue
        if count.pending == 1:
            count.pending = 0
            count.judged += 1
            work += undo_worse_parts(flips, agenda, kicks, temperature)
        elif count.judged >= max_kicks:
            break
        else:
            count.pending = 1
            work += kick(flips, agenda, kicks)
    return work
