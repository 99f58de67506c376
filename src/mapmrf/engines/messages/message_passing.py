"""Belief propagation as a method: the options shared by its variants, and a run."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from mapmrf.arrays import Ints
from mapmrf.engines.messages.max_product import ForestWeights, Messages, Tour, make_messages, potential_scale
from mapmrf.engines.messages.max_product_kernels import MessageSchedule
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent
from mapmrf.run.method import Answer, Method, NonNegativeFloat, PositiveInt, Progress, Range, Start
from mapmrf.run.result import Status

MEASURE_EVERY = 10  # iterations between measurements; more if an iteration takes longer than a step
# Enough for a model without cycles: from the leaves to the roots and back.
TWO_SWEEPS = MessageSchedule(flooding=False, damping=0.0, tol=-1.0)


@dataclass(frozen=True)
class MessagePassing(Method):
    """Pass messages between factors and variables; concrete methods define the weights of the factors."""

    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    damping: Annotated[float, Range(0.0, 0.999)] = 0.5
    tol: NonNegativeFloat = 1e-8
    schedule: Literal["parallel", "sequential"] = "parallel"
    decode: Literal["sequential", "argmax"] = "sequential"

    @abstractmethod
    def weigh(self, problem: Problem, seed: int) -> ForestWeights:
        """Return the weights of the factors of a model with a cycle."""

    def start(self, problem: Problem, seed: int, initial: Start) -> MessageRun:
        tour = Tour.of(problem)
        forest = problem.n_edges == problem.n_vars + problem.n_factors - tour.n_parts
        weights = tour.weights(problem.n_edges) if forest else self.weigh(problem, seed)
        tol = self.tol * potential_scale(problem.graph)
        return MessageRun(
            problem,
            make_messages(problem, tour, weights),
            TWO_SWEEPS if forest else MessageSchedule(self.schedule == "parallel", self.damping, tol),
            in_order=forest or self.decode == "sequential",
            bounded=forest or self.gives_bound,
            end=min(2, self.max_iterations) if forest else self.max_iterations,
        )

    def step(self, problem: Problem, state: MessageRun) -> Progress:
        if state.messages.is_infeasible():
            return Progress(state.iterations, bound=-math.inf, finished=Status.INFEASIBLE)
        known = state.value
        # Maximum number of measurements per step
        state.advance(min(5 * MEASURE_EVERY, max(1, pace.MESSAGES // (1 + problem.n_configs))))
        finished = Status.CONVERGED if state.is_done() else None
        progress = Progress(state.iterations, bound=state.bound, finished=finished)
        if state.best is not None and state.value > known:
            progress.labels, progress.value = state.best.labels, state.value
        return progress

    def answer(self, problem: Problem, state: MessageRun) -> Answer:
        """The best labelling so far, or the last one if none has a finite value."""
        if state.messages.is_infeasible():
            return Answer(bound=-math.inf)
        labels, value, bound = state.measure()
        if state.best is not None and state.claim > -math.inf and state.claim >= value:
            labels = state.best.labels
        details = {"change": state.change} if state.change < math.inf else {}
        return Answer(labels=labels, bound=_least(state.bound, bound), details=details)

    def close(self, problem: Problem, state: MessageRun) -> None:
        state.messages.close()


@dataclass
class MessageRun:
    problem: Problem
    messages: Messages
    schedule: MessageSchedule
    in_order: bool  # whether labels are decoded sequentially
    bounded: bool
    end: int  # the last iteration
    iterations: int = 0
    change: float = math.inf  # largest undamped change of a message in the last iteration
    # best, bound: the best labelling so far, None before the first measurement, and the best bound so far
    best: Incumbent | None = None
    bound: float | None = None
    # value of the best labelling according to the messages; only labellings with a higher one are evaluated
    claim: float = -math.inf

    @property
    def value(self) -> float:
        return -math.inf if self.best is None else self.best.value

    def advance(self, budget: int) -> None:
        every = MEASURE_EVERY * (1 + self.problem.n_configs // pace.MESSAGES)
        end = min(self.end, self.iterations + budget)
        while self.iterations < end and not self.is_done():
            pause = every - self.iterations % every
            done, self.change = self.messages.iterate(self.schedule, self.iterations, min(end, self.iterations + pause))
            self.iterations += done
            if self.is_done() or self.iterations % every == 0:
                labels, value, bound = self.measure()
                if self.best is None:
                    self.best = Incumbent(self.problem.graph, labels)
                elif value > self.claim:
                    self.best.offer(labels)
                self.claim, self.bound = max(self.claim, value), _least(self.bound, bound)

    def is_done(self) -> bool:
        """Return whether the messages have converged; without cycles they have after two sweeps."""
        return self.iterations == 2 if self.schedule is TWO_SWEEPS else self.change <= self.schedule.tol

    def measure(self) -> tuple[Ints, float, float | None]:
        """Decode labels from the messages; return them, their value, and the bound, or None if there is none."""
        labels = self.messages.decode(self.in_order)
        return labels, self.messages.value(labels), self.messages.bound() if self.bounded else None


def _least(old: float | None, new: float | None) -> float | None:
    """Return the smaller of two bounds, either of which may be missing."""
    return new if old is None else old if new is None else min(old, new)
