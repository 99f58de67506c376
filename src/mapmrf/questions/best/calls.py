"""Calls of `solve` that share one time limit."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field

from mapmrf.arrays import Ints
from mapmrf.model.graph import FactorGraph
from mapmrf.run import interrupts
from mapmrf.run.method import Method
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import solve


@dataclass
class SolveCalls:
    """How to solve the models of one task, and the deadline.

    Attributes
    ----------
    method, seed, threads
        As for `solve`.
    deadline
        Deadline of the whole task, by `time.perf_counter`; inf without a time limit.
    began
        Start of the task.
    count
        Number of calls.
    """

    method: Method
    seed: int
    threads: int | None
    deadline: float = math.inf
    began: float = field(default_factory=time.perf_counter)
    count: int = 0

    @property
    def left(self) -> float:
        """Seconds left."""
        return max(0.0, self.deadline - time.perf_counter())

    @property
    def stopped(self) -> Status | None:
        """The reason why the task must end now, or None."""
        if interrupts.requested():
            interrupts.notice()
            return Status.INTERRUPTED
        return Status.TIME_LIMIT if time.perf_counter() >= self.deadline else None

    def solve(self, graph: FactorGraph, share: float = 1.0, initial: Ints | None = None) -> Result:
        """Solve a model within a share of the remaining time."""
        self.count += 1
        limit = None if self.deadline == math.inf else share * self.left
        return solve(graph, self.method, time_limit=limit, seed=self.seed, threads=self.threads, initial=initial)
