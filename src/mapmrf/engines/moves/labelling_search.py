"""The search for labellings beside a relaxation: ascent and crossover at once, chains of flips when there is time."""

from __future__ import annotations

import zlib
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from mapmrf.arrayfile import Array
from mapmrf.arrays import Ints
from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.engines.moves.climbing import ClimbingIncumbent, CountedIncumbent
from mapmrf.engines.moves.counted_search import CountedSearch
from mapmrf.errors import UnsupportedModel
from mapmrf.incumbent import Incumbent
from mapmrf.method import Start
from mapmrf.problem import Problem
from mapmrf.rewriting import Rewriting, rewrite

CHAIN_LENGTH, COUNTED_LENGTH, CHAIN_ENTRIES = 20, 30, 4_000_000
"""Maximum number of flips of a chain, and the same where counts of constraints flip too; table entries that chains read
per step: some 20 ms."""
MOST_STEPS, MOST_WAITING = 100, 6
"""Steps after which chains from a labelling give up, and how many labellings, the best ones, wait for them."""
MOST_ITEMS, MOST_ENTRIES = 20_000, 1 << 20
"""Sizes of constraints, and of tables in their place, up to which chains work on these."""
TABU_STATES, TABU_PATIENCE, LEAST_CHANGES = 1_000_000, 5, 100
"""States that a tabu search examines per step: some 20 ms; it ends after so many changes per variable in vain, and at
least this many variables are assumed."""


class LabellingSearch:
    """The best labelling of all that were offered, and those from which chains of flips still have to start.

    With constraints, ascents keep them, and a tabu search takes the place of chains and crossover.

    Attributes
    ----------
    climbing
        The incumbent.
    waiting
        Labellings that chains have not started from or not finished with, the best first unless it was begun.
    steps
        Steps of chains from the first of these.
    """

    def __init__(self, problem: Problem, start: Start, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.constrained = problem.graph.constraints is not None
        self.climbing = (
            CountedIncumbent(problem, start) if self.constrained else ClimbingIncumbent(problem, start, entries=1 << 60)
        )
        self.waiting: list[Ints] = []
        self.steps = self.steps_of_last = self.total = 0
        self._seen: set[int] = set()
        self._chains: ChainSearch | None = None
        self._tabu: CountedSearch | None = None

    @property
    def best(self) -> Incumbent | None:
        """The incumbent, None before the first candidate."""
        return self.climbing.best

    def offer(self, labels: Ints) -> None:
        """Ascend from a labelling and cross it with the best one; chains will start from where it led."""
        self.enqueue(self.climbing.offer(labels))

    def enqueue(self, labels: Ints) -> None:
        """Let chains start from a labelling, unless they did or will."""
        if self.is_new(labels):
            value = self.problem.graph.value
            first, rest = self.waiting[: self.steps > 0], [*self.waiting[self.steps > 0 :], labels.copy()]
            self.waiting = (first + sorted(rest, key=value, reverse=True))[:MOST_WAITING]

    def is_new(self, labels: Ints) -> bool:
        """Return whether a labelling is asked for the first time."""
        mark = zlib.crc32(labels.astype(np.int64).tobytes())
        new = mark not in self._seen
        self._seen.add(mark)
        return new

    def finish(self, alone: bool = False) -> None:
        """Let chains start from the best labelling next, which may be a crossover of others; `alone`: from it only."""
        if alone:
            del self.waiting[:]
        if self.best is not None and self.is_new(self.best.labels):
            self.waiting.insert(self.steps > 0, self.best.labels.copy())

    def step(self) -> Ints | None:
        """Follow chains for some milliseconds; return where they are, None if there is nothing to do."""
        if not self.waiting:
            return None
        labels, at_rest = self.improve()
        self.steps, self.total = self.steps + 1, self.total + 1
        if at_rest or self.steps >= MOST_STEPS:
            self.is_new(labels)
            self.climbing.offer(labels)
            del self.waiting[0]
            self.steps, self.steps_of_last = 0, self.steps
        return labels

    def improve(self) -> tuple[Ints, bool]:
        """Continue from the first labelling that waits; return what it has become, and whether that is the end."""
        if self.steps == 0:
            self.begin(self.waiting[0])
        chains = self._chains
        if chains is not None and not chains.at_rest:
            chains.run(CHAIN_ENTRIES)
            return self._project(chains.labels()), chains.at_rest and not self.constrained
        if self._tabu is None:
            labels = self.waiting[0] if chains is None else self._project(chains.labels())
            self._tabu = CountedSearch(self.problem, labels, self.seed)
        self._tabu.run(max(1, TABU_STATES // max(1, self.problem.n_states)))
        at_rest = self._tabu.vain >= TABU_PATIENCE * max(self.problem.n_vars, LEAST_CHANGES)
        return self._tabu.incumbent.labels, at_rest

    def begin(self, labels: Ints) -> None:
        """Start chains from a labelling, on tables in place of constraints if these are few enough."""
        self._tabu = None
        if self._chains is None and not self.constrained:
            self._chains = ChainSearch(self.problem, CHAIN_LENGTH, 1, self.seed)
        elif self._chains is None and self.tables is not None:
            self._chains = ChainSearch(Problem.compile(self.tables.graph), COUNTED_LENGTH, 1, self.seed)
        if self._chains is not None:
            self._chains.random = np.random.default_rng(self.seed)
            self._chains.restart(labels if self.tables is None else self.tables.lift(labels))

    def _project(self, labels: Ints) -> Ints:
        return labels if self.tables is None else self.tables.project(labels)

    @cached_property
    def tables(self) -> Rewriting | None:
        """The model with tables in place of its constraints, if these are few."""
        constraints = self.problem.graph.constraints
        if constraints is None or len(constraints.var) > MOST_ITEMS:
            return None
        with suppress(UnsupportedModel):
            return rewrite(self.problem.graph, MOST_ENTRIES)
        return None

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what `load` needs."""
        arrays: dict[str, Array] = {} if self.best is None else {"found": self.best.labels}
        if self.waiting:
            arrays["waiting"] = np.array(self.waiting)
        counts = {"steps": self.steps, "last": self.steps_of_last, "total": self.total}
        return counts | {"seen": sorted(self._seen)}, arrays

    def load(self, figures: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Continue where another search was saved; the steps from the first labelling are repeated."""
        self.climbing.best = Incumbent(self.problem.graph, arrays["found"]) if "found" in arrays else None
        self.waiting = list(arrays["waiting"]) if "waiting" in arrays else []
        self._seen, self.steps = set(figures["seen"]), 0
        self.steps_of_last, self.total = figures["last"], figures["total"]
        while self.waiting and self.steps < figures["steps"]:
            self.improve()
            self.steps += 1
