"""What belief propagation and its tree-reweighted form share: the options, the state and the steps of a run."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, get_args

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.messages.max_product import Messages, Schedule, Weights, Wiring, make_messages, potential_scale
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_at_least, check_choice, check_within
from mapmrf.problem import Problem
from mapmrf.result import Status

ScheduleName = Literal["parallel", "sequential"]
Decode = Literal["sequential", "argmax"]

STEP_ENTRIES = 3_000_000
"""Table entries that one step looks at, at most: some 30 ms."""
STEP_LOOKS = 5
"""Looks at the labels in one step, at most."""
LOOK_EVERY = 10
"""Iterations from one look at the labels and the bound to the next; more if an iteration takes more than a step."""
MOST_DAMPING = 0.999
TWO_SWEEPS = Schedule(flooding=False, damping=0.0, tol=-1.0)
"""What a model without cycles takes: from the leaves to the roots and back."""


class MessagePassing(Method):
    """Pass messages between factors and variables; the concrete methods say how much every factor weighs."""

    exact_on_trees: ClassVar[bool] = True

    damping: float
    tol: float
    schedule: ScheduleName
    decode: Decode

    def __post_init__(self) -> None:
        check_choice(self, "schedule", get_args(ScheduleName))
        check_choice(self, "decode", get_args(Decode))
        check_within(self, 0.0, MOST_DAMPING, "damping")
        check_at_least(self, 0.0, "tol")
        check_at_least(self, 1, "max_iterations")

    @abstractmethod
    def weigh(self, wiring: Wiring, seed: int) -> Weights:
        """The weights of the factors of a model with a cycle."""

    def start(self, problem: Problem, seed: int, initial: Start) -> State:
        """Walk through the model and set all messages to 0."""
        wiring = Wiring.of(problem)
        tour = wiring.tour(np.ones(problem.n_factors, dtype=bool))
        forest = problem.n_edges == problem.n_vars + problem.n_factors - tour.n_parts
        weights = tour.weights(problem.n_edges) if forest else self.weigh(wiring, seed)
        how = Schedule(self.schedule == "parallel", self.damping, self.tol * potential_scale(problem.graph))
        return State(
            make_messages(wiring, tour, weights),
            TWO_SWEEPS if forest else how,
            in_order=forest or self.decode == "sequential",
            bounded=forest or self.gives_bound,
            end=min(2, self.max_iterations) if forest else self.max_iterations,
            every=LOOK_EVERY * (1 + problem.n_configs // STEP_ENTRIES),
            labels=np.zeros(problem.n_vars, dtype=np.int64),
        )

    def step(self, problem: Problem, state: State) -> Progress:
        """Some iterations, and a look at the labels after every few."""
        if state.messages.is_infeasible():
            return Progress(state.iterations, bound=-math.inf, finished=Status.INFEASIBLE)
        known = state.value
        state.advance(min(STEP_LOOKS * LOOK_EVERY, max(1, STEP_ENTRIES // (1 + problem.n_configs))))
        labels = state.best.copy() if state.value > known else None
        finished = Status.CONVERGED if state.is_done() else None
        return Progress(state.iterations, labels=labels, bound=state.bound, finished=finished)

    def answer(self, problem: Problem, state: State) -> Answer:
        """The best labelling so far, or the last one if none has a finite value."""
        if state.messages.is_infeasible():
            return Answer(bound=-math.inf)
        state.look()
        labels = state.best if state.value > -math.inf else state.labels
        details = {"change": state.change} if state.change < math.inf else {}
        return Answer(labels=labels, bound=state.bound, details=details)


@dataclass
class State:
    """A run.

    Attributes
    ----------
    messages, how
        The messages, and how they are updated.
    in_order
        Whether labels are decoded in order.
    bounded
        Whether there is a bound.
    end, every
        Last iteration, and iterations from one look at the labels to the next.
    labels
        Those decoded last.
    change
        Largest change of a message that the last iteration asked for.
    best, value, bound
        The best labelling so far, its log potential, and the best bound so far.
    """

    messages: Messages
    how: Schedule
    in_order: bool
    bounded: bool
    end: int
    every: int
    labels: Ints
    iterations: int = 0
    change: float = math.inf
    best: Ints = field(init=False)
    value: float = -math.inf
    bound: float | None = None

    def __post_init__(self) -> None:
        self.best = self.labels.copy()

    def advance(self, budget: int) -> None:
        """Some iterations, at most up to the last."""
        end = min(self.end, self.iterations + budget)
        while self.iterations < end and not self.is_done():
            pause = self.every - self.iterations % self.every
            done, self.change = self.messages.iterate(self.how, self.iterations, min(end, self.iterations + pause))
            self.iterations += done
            if self.is_done() or self.iterations % self.every == 0:
                self.look()

    def is_done(self) -> bool:
        """Whether the messages have settled; after two sweeps they have, if those are what it takes."""
        return self.iterations == 2 if self.how is TWO_SWEEPS else self.change <= self.how.tol

    def look(self) -> None:
        """Decode the labels, and evaluate them and the bound."""
        self.messages.decode(self.in_order, self.labels)
        value = self.messages.value(self.labels)
        if value > self.value:
            self.value = value
            self.best[:] = self.labels
        if self.bounded:
            bound = self.messages.bound()
            self.bound = bound if self.bound is None else min(bound, self.bound)
