"""The search for labellings beside a relaxation: ascent and crossover at once, chains of flips when there is time."""

from __future__ import annotations

import math
import zlib
from contextlib import suppress
from functools import cached_property
from typing import Any

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.constraints.as_tables import Rewriting, rewrite
from mapmrf.engines.moves.ascending_incumbent import ClimbingIncumbent, ConstrainedIncumbent
from mapmrf.engines.moves.chains import ChainSearch
from mapmrf.engines.moves.constrained_search import ConstrainedSearch
from mapmrf.engines.moves.kicks import SearchKicks, largest_kick
from mapmrf.errors import UnsupportedModel
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Array, Start

CHAIN_ENTRIES = 2_000_000  # table entries that chains read per step: some 10 ms
FIGURES = ("kicked", "steps", "last_steps", "total", "_rested_value", "_kicked_value", "_drawn", "_in_vain")
"""What a checkpoint keeps besides labellings."""


class LabellingSearch:
    """The best labelling of all that were offered, and their improvement by chains of flips.

    Chains start from the best labelling and then from kicks of it, and in turn with that from the other labellings that
    were offered. With constraints, ascents keep them, chains work on tables in their place, and a tabu search takes the
    place of kicks and of crossover.

    Attributes
    ----------
    climbing
        The incumbent.
    waiting
        Labellings from which chains have not started, the best first.
    begun, kicked
        The labelling from which chains started, None if they have finished; and whether kicks of it follow.
    steps, last_steps, total
        Steps of chains from this labelling, from the one before, and from all.
    """

    def __init__(self, problem: Problem, start: Start, seed: int) -> None:
        self.problem, self.seed = problem, seed
        self.constrained = problem.graph.constraints is not None
        self.climbing = (
            ConstrainedIncumbent(problem, start) if self.constrained else ClimbingIncumbent(problem, start, True)
        )
        self.waiting: list[Ints] = []
        self.begun: Ints | None = None
        self.kicked = False
        self.steps = self.last_steps = self.total = 0
        self._rested_value = self._kicked_value = -math.inf
        self._drawn = self._in_vain = self._kick_steps = 0
        self._seen: set[int] = set()
        self._chains: ChainSearch | None = None
        self._kicks: SearchKicks | None = None
        self._tabu: ConstrainedSearch | None = None

    @property
    def best(self) -> Incumbent | None:
        """The incumbent, None before the first candidate."""
        return self.climbing.best

    def offer(self, labels: Ints) -> None:
        """Ascend from a labelling and cross it with the best one; chains may start from where it led."""
        labels = self.climbing.offer(labels)
        mark = zlib.crc32(labels.astype(np.int64).tobytes())
        if mark not in self._seen:
            self._seen.add(mark)
            self.waiting = sorted([*self.waiting, labels], key=self.problem.graph.value, reverse=True)[:6]

    # -- chains -------------------------------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether there is something for chains to try."""
        return self.begun is not None or bool(self.waiting) or not self.is_exhausted

    @property
    def is_exhausted(self) -> bool:
        """Whether enough kicks of the best labelling were in vain."""
        return self.best is None or (self._in_vain >= self._most_kicks and self._kicked_value >= self.best.value)

    def choose(self) -> bool:
        """Choose where chains start next, unless they have not finished; return False if nothing is left to try."""
        if self.begun is None and self.best is not None:
            if not self.is_exhausted and not (self.kicked and self.waiting):
                self.begun, self.kicked = self.best.labels.copy(), True
            elif self.waiting:
                self.begun, self.kicked = self.waiting.pop(0), False
        return self.begun is not None

    def choose_best(self) -> bool:
        """Choose the best labelling, a crossover maybe; return False if chains have led there already."""
        if self.begun is None and self.best is not None and self._rested_value < self.best.value:
            self.begun, self.kicked = self.best.labels.copy(), False
        return self.begun is not None

    def step(self, hurry: bool = False) -> Ints | None:
        """Follow chains for some milliseconds; return where they are, None if none was chosen; no kicks in a hurry."""
        if self.begun is None:
            return None
        labels, at_end = self.improve(self.begun)
        self.steps, self.total = self.steps + 1, self.total + 1
        if at_end or self.steps >= 200 or (hurry and self._kicks is not None):
            self._end(labels)
        return labels

    def _end(self, labels: Ints) -> None:
        """Merge the outcome into the best labelling."""
        value = self.problem.graph.value(labels)
        self._rested_value = max(self._rested_value, value)
        self.climbing.offer(labels)
        if self.kicked:
            n_kicks = self._most_kicks if self._kicks is None else self._kicks.done
            self._in_vain = 0 if value > self._kicked_value else self._in_vain + n_kicks
            self._drawn, self._kicked_value = self._drawn + n_kicks, max(self._kicked_value, value)
        self.begun, self.steps, self.last_steps = None, 0, self.steps

    def improve(self, labels: Ints) -> tuple[Ints, bool]:
        """Continue from a labelling; return what it has become, and whether that is the end."""
        if self.steps == 0:
            self._begin(labels)
        if self._chains is not None and not self._chains.at_rest:
            self._chains.run(CHAIN_ENTRIES)
            at_end = self._chains.at_rest and not self.constrained and not self.kicked
            return self._project(self._chains.labels()), at_end
        return self._search(labels) if self.constrained else self._kick()

    def _begin(self, labels: Ints) -> None:
        """Start chains from a labelling, on tables in place of constraints if these are few enough."""
        self._tabu, self._kicks, self._kick_steps = None, None, 0
        if self._chains is None and not self.constrained:
            self._chains = ChainSearch(self.problem, 20, 1, self.seed)  # flips of a chain
        elif self._chains is None and self.tables is not None:
            # More flips of a chain, since counts of constraints flip too
            self._chains = ChainSearch(Problem.compile(self.tables.graph), 30, 1, self.seed)
        if self._chains is not None:
            self._chains.random = np.random.default_rng(self.seed)
            self._chains.restart(labels if self.tables is None else self.tables.lift(labels))

    @property
    def _most_kicks(self) -> int:
        return 20 * math.ceil(2 * self.problem.n_vars / (1 + largest_kick(self.problem.n_vars)))

    def _kick(self) -> tuple[Ints, bool]:
        """Randomise small regions and repair them by chains."""
        assert self._chains is not None
        if self._kicks is None:
            largest = largest_kick(self.problem.n_vars)
            self._kicks = SearchKicks(self.problem, self._chains, largest, self.seed + self._drawn)
        if self.problem.n_vars > 0:
            self._kicks.run(CHAIN_ENTRIES, self._most_kicks, 0.0)
        self._kick_steps += 1
        return self._kicks.labels(), self._kicks.done >= self._most_kicks or self._kick_steps >= 50

    def _search(self, labels: Ints) -> tuple[Ints, bool]:
        """Tabu search that respects the constraints."""
        if self._tabu is None:
            labels = labels if self._chains is None else self._project(self._chains.labels())
            self._tabu = ConstrainedSearch(self.problem, labels, self.seed)
        self._tabu.run(max(1, 500_000 // max(1, self.problem.n_states)))  # some 10 ms
        at_end = self._tabu.idle >= 5 * max(self.problem.n_vars, 100)
        return self._tabu.incumbent.labels, at_end

    def _project(self, labels: Ints) -> Ints:
        return labels if self.tables is None else self.tables.project(labels)

    @cached_property
    def tables(self) -> Rewriting | None:
        """The model with tables in place of its constraints, if these are few."""
        constraints = self.problem.graph.constraints
        if constraints is None or len(constraints.var) > 20_000:
            return None
        with suppress(UnsupportedModel):
            return rewrite(self.problem.graph, 1 << 20)
        return None

    # -- checkpoints --------------------------------------------------------------------------------------------------

    def save(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what `load` needs."""
        arrays: dict[str, Array] = {} if self.best is None else {"found": self.best.labels}
        if self.waiting:
            arrays["waiting"] = np.array(self.waiting)
        if self.begun is not None:
            arrays["begun"] = self.begun
        figures = {name: getattr(self, name) for name in FIGURES}
        return figures | {"seen": sorted(self._seen)}, arrays

    def load(self, figures: dict[str, Any], arrays: dict[str, Array]) -> None:
        """Continue where another search was saved; the steps of the last chains are repeated."""
        self.climbing.best = Incumbent(self.problem.graph, arrays["found"]) if "found" in arrays else None
        self.waiting = list(arrays["waiting"]) if "waiting" in arrays else []
        self.begun = arrays.get("begun")
        for name in FIGURES:
            setattr(self, name, figures[name])
        self._seen, self.steps = set(figures["seen"]), 0
        while self.begun is not None and self.steps < figures["steps"]:
            self.improve(self.begun)
            self.steps += 1
