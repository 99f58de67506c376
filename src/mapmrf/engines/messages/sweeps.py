"""Sequential passes over the variables of a model, forward and backward, shared by TRW-S and SRMP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.parallel_sweep import Chunks, FactorTurns, SweepWorkers, add_up, begin_pass, divide_sweep
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem

LARGE = 4_000_000  # work of an iteration from which passes are divided into chunks


class SequentialPasses(ABC):
    """Passes in an order of the variables; they keep the best bound and the best decoded labelling."""

    layout: ClassVar[str]  # layout of the messages, for `DualState`
    constant: float  # constant added to bound and value after a pass
    start: float  # initial value of their sums

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping, work: int, kind: type) -> None:
        begin, strand_ptr = np.array([0, problem.n_vars]), np.array([0, 1])
        if work >= LARGE:
            order, begin, strand_ptr = divide_sweep(problem, order)
        # order, seq: (n_vars,): the order of the visits, and the variables in it
        # stopping: stopping rule of the passes
        # work: approximate number of table entries processed per iteration
        self.order, self.seq, self.stopping, self.work = order, order.seq, stopping, work
        # labels, in_order: (n_vars,): the last decoded labelling and the best one so far, in visiting order
        self.labels: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.in_order: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.figures = PassFigures()  # the best bound and value so far
        factors = FactorTurns(problem.scope_ptr, problem.scope, order.rank)
        # the workers that share passes, None for a single one
        self.workers = SweepWorkers.of(factors, begin, strand_ptr, problem.threads)
        self.chunks = Chunks.allocate(begin[:-1], begin[1:], self.n_workers)  # progress of a pass

    @property
    def n_workers(self) -> int:
        return 1 if self.workers is None else self.workers.n_workers

    @property
    def best(self) -> Ints:
        best = np.empty_like(self.in_order)
        best[self.seq] = self.in_order
        return best

    def iterate(self, begin: int, end: int, decode_every: int) -> tuple[int, int]:
        """Run the iterations from `begin` to `end` unless they stop earlier; return how many, and why they ended."""
        span = PassSpan(begin, end, decode_every)
        if self.workers is None:
            n, why, self.figures = self.run(span)
            return n, why
        for n in range(begin, end):
            for forward in (True, False):
                why = self.sweep_parallel(self.workers, forward, n % decode_every == 0)
            if why != LIMIT:
                return n + 1 - begin, why
        return end - begin, LIMIT

    def sweep_parallel(self, workers: SweepWorkers, forward: bool, decode: bool) -> int:
        """Make a pass with all workers; return why to stop."""
        begin_pass(forward, self.chunks, self.start)
        workers.run(lambda w: self.sweep_worker(forward, decode, workers, w))
        why, self.figures = end_pass(
            forward, decode, self.constant, self.figures, self.stopping, self.chunks, self.labels, self.in_order
        )
        return why

    @property
    @abstractmethod
    def n_messages(self) -> int:
        """Number of entries of the messages."""

    @abstractmethod
    def message_values(self) -> Floats:
        """Return the messages between two iterations, in the order of the problem's factors."""

    @abstractmethod
    def load_messages(self, numbers: Floats) -> None:
        """Set the messages to what `message_values` returned."""

    @abstractmethod
    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state, (n_states,); takes an iteration."""

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()

    @abstractmethod
    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel, single-threaded."""

    @abstractmethod
    def sweep_worker(self, forward: bool, decode: bool, workers: SweepWorkers, w: int) -> bool:
        """Make the visits of worker `w` in the kernel; False if it has to wait for others."""


# -- Shared by the kernels of sequential passes: iteration ranges, figures, and the stopping rule ---------------------


# Why a kernel stopped.
LIMIT, CLOSED, AT_REST, INFEASIBLE = range(4)

PATIENCE = 5  # consecutive iterations that improve the bound by less than the tolerance before a run has converged


class PassSpan(NamedTuple):
    """Iterations `begin` to `end`; two labellings are decoded in every `decode_every`-th, one in each pass."""

    begin: int
    end: int
    decode_every: int


class PassStopping(NamedTuple):
    """Relative improvement of the bound that counts as converged, and relative gap that counts as closed."""

    tol: float
    gap_tol: float


class PassFigures(NamedTuple):
    """Best bound and value so far, and the number of consecutive iterations that have not improved the bound."""

    bound: float = np.inf
    value: float = -np.inf
    calm: int = 0


@inlined
def keep_best(figures: PassFigures, value: float, labels: Ints, best: Ints) -> PassFigures:
    """Copy a labelling if its value is the best so far; return the updated figures."""
    if not value > figures.value:
        return figures
    for s in range(len(best)):
        best[s] = labels[s]
    return PassFigures(figures.bound, value, figures.calm)


@inlined
def at_rest(figures: PassFigures, bound: float, stopping: PassStopping) -> tuple[int, PassFigures]:
    """Record an iteration's bound; return CLOSED, AT_REST, or LIMIT when there is more to do, and the figures."""
    value = figures.value
    best = min(figures.bound, bound)
    if value > -np.inf and bound - value <= stopping.gap_tol * abs(value):
        return CLOSED, PassFigures(best, value, figures.calm)
    calm = figures.calm + 1 if figures.bound - bound <= stopping.tol * abs(bound) else 0
    return AT_REST if calm >= PATIENCE else LIMIT, PassFigures(best, value, calm)


@compiled
def end_pass(
    forward: bool, decode: bool, constant: float, figures: PassFigures, stopping: PassStopping, chunks: Chunks,
    labels: Ints, best: Ints,
) -> tuple[int, PassFigures]:  # fmt: skip
    """Add up what the chunks of a pass have given, and keep its labels if they are the best so far.

    Returns why to stop after a backward pass, LIMIT if there is no reason, and the figures.
    """
    bound, value = add_up(forward, chunks)
    if decode:
        figures = keep_best(figures, value + constant, labels, best)
    if forward:
        return LIMIT, figures
    why, figures = at_rest(figures, bound + constant, stopping)
    return INFEASIBLE if bound == -np.inf else why, figures
