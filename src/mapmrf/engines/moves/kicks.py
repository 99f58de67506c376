"""Kicks with three kinds of repair, for the method `restarts`."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.blocks import BlockMoves
from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.engines.moves.crossover import Crossover, new_part_scratch
from mapmrf.engines.moves.flips import FlipSearch
from mapmrf.engines.moves.kick_kernels import KickCounts, Kicks, kick_and_chain, kick_and_flip
from mapmrf.engines.moves.random_kernels import seeded
from mapmrf.model.problem import Problem

AROUND = 4
"""Variables of a repair block, per kicked variable."""
PER_KICK = 30_000
"""Cost of a kick without its repair, in table entries."""
CALM = 3
"""Passes over the whole model without a change before the kicks begin."""


class SearchKicks(ABC):
    """Kicks repaired by a search on the table of gains.

    Attributes
    ----------
    search
        The search, which runs first and then repairs.
    """

    def __init__(self, problem: Problem, search: FlipSearch | ChainSearch, largest: int, seed: int) -> None:
        self.search = search
        largest = min(largest, max(1, problem.n_vars))
        self.kicks = Kicks(largest, seeded(seed), new_part_scratch(problem), blank(KickCounts))

    def restart(self, labels: Ints) -> None:
        """Continue from another labelling."""
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
        if self.search.at_rest:
            self.repair(entries, max_kicks, temperature)
        else:
            self.search.run(entries)

    @abstractmethod
    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""

    def labels(self) -> Ints:
        """Return the labelling, as it was before a kick that has not been evaluated."""
        return self.search.agenda.origin.copy() if self.kicks.counts.pending else self.search.labels()


class FlipKicks(SearchKicks):
    """Kicks repaired by flips of small sets."""

    search: FlipSearch

    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""
        search = self.search
        kick_and_flip(search.flips, search.agenda, search.sets, self.kicks, temperature, entries, max_kicks)


class ChainKicks(SearchKicks):
    """Kicks repaired by chains of flips."""

    search: ChainSearch

    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""
        search = self.search
        kick_and_chain(search.flips, search.agenda, search.chain, self.kicks, temperature, entries, max_kicks)


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
        while blocks.work < end and self.calm < CALM:
            self.calm = self.calm + 1 if blocks.optimise(self.now, self.width) == 0 else 0
        while blocks.work + PER_KICK * self.done < end and self.done < max_kicks:
            self.taken += self.attempt(temperature)
            self.done += 1

    def attempt(self, temperature: float) -> bool:
        """Kick once; return whether something was kept."""
        random, graph = self.blocks.random, self.problem.graph
        size = int(random.integers(1, self.largest + 1))
        region = self.blocks.neighbourhood(AROUND * size)
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
        """Return the labelling."""
        return self.now.copy()
