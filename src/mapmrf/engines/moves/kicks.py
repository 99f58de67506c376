"""Kicks with three kinds of repair: what the method `restarts` is made of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.moves.blocks import Moves
from mapmrf.engines.moves.flips import ChainSearch, Descent
from mapmrf.engines.moves.gain_kernels import NOTED
from mapmrf.engines.moves.kick_kernels import KICKED, KICKS, TAKEN, Kick, kick_and_chain, kick_and_flip
from mapmrf.problem import Problem

AROUND = 4
"""Variables that a block repairs, for each that was kicked."""
PER_KICK = 30_000
"""Table entries that take as long as all of a kick but its repair."""
CALM = 3
"""Passes over the whole model without a change, before the kicks begin."""


class SearchKicks(ABC):
    """Kicks that a search on the table of gains repairs.

    Attributes
    ----------
    search
        The search: it comes first, and it repairs.
    """

    def __init__(self, problem: Problem, search: Descent | ChainSearch, largest: int, seed: int) -> None:
        self.search = search
        self.largest = min(largest, max(1, problem.n_vars))
        self.kick: Any = make_kick(problem, seed)

    def restart(self, labels: Ints) -> None:
        """Go on from another labelling."""
        self.kick.count[KICKED] = 0
        self.search.restart(labels)

    @property
    def done(self) -> int:
        """Kicks that have been judged."""
        return int(self.kick.count[KICKS])

    @property
    def taken(self) -> int:
        """Kicks of which something was kept."""
        return int(self.kick.count[TAKEN])

    def run(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Descend, then kick and repair, for about so many table entries and up to so many kicks in all."""
        if self.search.at_rest:
            self.repair(entries, max_kicks, temperature)
        else:
            self.search.run(entries)

    @abstractmethod
    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""

    def labels(self) -> Ints:
        """The labelling, as it was before a kick that has not been judged."""
        labels = self.search.labels()
        if self.kick.count[KICKED]:
            front = self.search.front
            noted = front.noted[: front.count[NOTED]]
            labels[noted] = front.origin[noted]
        return labels


class FlipKicks(SearchKicks):
    """Kicks that flips of small sets repair."""

    search: Descent

    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""
        search = self.search
        kick_and_flip(
            search.field, search.front, search.sets, self.kick, self.largest, temperature, entries, max_kicks
        )  # fmt: skip


class ChainKicks(SearchKicks):
    """Kicks that chains of flips repair."""

    search: ChainSearch

    def repair(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Kick and repair."""
        search = self.search
        kick_and_chain(
            search.field, search.front, search.chain, self.kick, self.largest, temperature, search.breadth, entries,
            max_kicks,
        )  # fmt: skip


def make_kick(problem: Problem, seed: int) -> Kick:
    """Room for kicks, and where their random numbers come from."""
    return Kick(
        random=np.array([np.random.default_rng(seed).integers(1, 2**63)], dtype=np.uint64),
        part=np.zeros(problem.n_vars, dtype=np.int64),
        seen=np.zeros(problem.n_vars, dtype=bool),
        looked=np.zeros(problem.n_factors, dtype=bool),
        count=np.zeros(3, dtype=np.int64),
    )


class BlockKicks:
    """Kicks that an exact optimisation of their surroundings repairs; before the first, passes over the whole model."""

    def __init__(self, problem: Problem, labels: Ints, largest: int, width: float, seed: int) -> None:
        self.problem, self.width = problem, width
        self.largest = min(largest, max(1, problem.n_vars))
        self.moves = Moves(problem, seed)
        self.now = labels
        self.calm = self.done = self.taken = 0

    def run(self, entries: int, max_kicks: int, temperature: float) -> None:
        """Pass over the model, then kick and repair, for about so many table entries and up to so many kicks in all."""
        end = self.moves.work + PER_KICK * self.done + entries
        while self.moves.work < end and self.calm < CALM:
            self.calm = self.calm + 1 if self.moves.block_pass(self.now, self.width) == 0 else 0
        while self.moves.work + PER_KICK * self.done < end and self.done < max_kicks:
            self.taken += self.attempt(temperature)
            self.done += 1

    def attempt(self, temperature: float) -> bool:
        """Kick once; returns whether something was kept."""
        random, graph = self.moves.random, self.problem.graph
        size = int(random.integers(1, self.largest + 1))
        region = self.moves.neighbourhood(AROUND * size)
        trial = self.now.copy()
        trial[region[:size]] = random.integers(0, graph.card[region[:size]])
        self.moves.block_pass(trial, self.width, region)
        if temperature == 0.0:
            return self.moves.fuse(self.now, trial, region) > 0.0
        gain = graph.value(trial) - graph.value(self.now)
        good = bool(gain >= temperature * np.log(1.0 - random.random()))
        if good:
            self.now = trial
        return good

    def labels(self) -> Ints:
        """The labelling."""
        return self.now.copy()
