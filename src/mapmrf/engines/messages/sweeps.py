"""Sequential passes over the variables of a model, forward and backward, shared by TRW-S and SRMP."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled
from mapmrf.engines.messages.parallel_sweep import Chunks, FactorTurns, SweepWorkers, add_up, begin_pass, divide_sweep
from mapmrf.engines.messages.visit_order import VisitOrder
from mapmrf.model.problem import Problem

LARGE = 4_000_000  # work of an iteration from which passes are divided into chunks


class SequentialPasses(ABC):
    """Passes in an order of the variables; they keep the best bound and the best decoded labelling."""

    layout: ClassVar[str]  # layout of the messages, for `DualState`
    # the kernel that runs iterations on one thread, that of a worker in a pass, and their arguments for every worker
    kernels: tuple[Callable[..., tuple[int, int, PassFigures]], Callable[..., bool]]
    arguments: list[tuple[Any, ...]]
    constant: float  # constant added to bound and value after a pass
    start: float  # initial value of their sums

    def __init__(self, problem: Problem, order: VisitOrder, stopping: PassStopping, work: int, kind: type) -> None:
        begin, strand_ptr = np.array([0, problem.n_vars]), np.array([0, 1])
        if work >= LARGE:
            order, begin, strand_ptr = divide_sweep(problem, order)
        self.problem, self.order, self.stopping = problem, order, stopping
        self.seq = order.seq
        self.work = work  # approximate number of table entries processed per iteration
        # labels, in_order: (n_vars,): the last decoded labelling and the best one so far, in visiting order
        self.labels: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.in_order: Ints = np.zeros(problem.n_vars, dtype=kind)
        self.figures = PassFigures()
        factors = FactorTurns(problem.scope_ptr, problem.scope, order.rank)
        # the workers that share passes, None for a single one
        self.workers = SweepWorkers.of(factors, begin, strand_ptr, problem.threads)
        self.n_workers = 1 if self.workers is None else self.workers.n_workers
        self.chunks = Chunks.allocate(begin[:-1], begin[1:], self.n_workers)

    @property
    def best(self) -> Ints:
        best = np.empty_like(self.in_order)
        best[self.seq] = self.in_order
        return best

    def iterate(self, begin: int, end: int, decode_every: int) -> tuple[int, int]:
        """Run the iterations from `begin` to `end` unless they stop earlier; return how many, and why they ended."""
        # Two labellings are decoded in every `decode_every`-th iteration, one in each pass.
        if self.workers is None:
            span = (begin, end, decode_every)
            n, why, self.figures = self.kernels[0](*span, self.stopping, self.figures, *self.arguments[0], self.chunks)
            return n, why
        for n in range(begin, end):
            for forward in (True, False):
                why = self.sweep_parallel(self.workers, forward, n % decode_every == 0)
            if why != LIMIT:
                return n + 1 - begin, why
        return end - begin, LIMIT

    def sweep_parallel(self, workers: SweepWorkers, forward: bool, decode: bool) -> int:
        """Make a pass with all workers; return why to stop."""

        def sweep_worker(w: int) -> bool:
            return self.kernels[1](forward, decode, *self.arguments[w], workers.assigned, self.chunks, w)

        begin_pass(forward, self.chunks, self.start)
        workers.run(sweep_worker)
        why, self.figures = end_pass(
            forward, decode, self.constant, self.figures, self.stopping, self.chunks, self.labels, self.in_order
        )
        return why

    @abstractmethod
    def message_values(self) -> Floats:
        """Return the messages between two iterations, in the order of the problem's factors."""

    @abstractmethod
    def load_messages(self, numbers: Floats) -> None:
        """Set the messages to what `message_values` returned."""

    @property
    @abstractmethod
    def n_messages(self) -> int:
        """Number of entries of the messages."""

    @abstractmethod
    def state_bounds(self) -> Floats:
        """Compute upper bounds on the labellings with each state, (n_states,); takes an iteration."""

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


# -- Shared by the kernels of sequential passes: figures, and the stopping rule ---------------------------------------


LIMIT, CLOSED, AT_REST, INFEASIBLE = range(4)  # why a kernel stopped
PATIENCE = 5  # consecutive iterations that improve the bound by less than the tolerance before a run has converged


class PassStopping(NamedTuple):
    """Relative improvement of the bound that counts as converged, and relative gap that counts as closed."""

    tol: float
    gap_tol: float


class PassFigures(NamedTuple):
    """Best bound and value so far, and the number of consecutive iterations that have not improved the bound."""

    bound: float = np.inf
    value: float = -np.inf
    calm: int = 0


@compiled
def end_pass(
    forward: bool, decode: bool, constant: float, figures: PassFigures, stopping: PassStopping, chunks: Chunks,
    labels: Ints, best: Ints,
) -> tuple[int, PassFigures]:  # fmt: skip
    """Add up what the chunks of a pass have given, and keep its labels if they are the best so far."""
    # Returns why to stop after a backward pass, LIMIT if there is no reason, and the figures.
    total, value = add_up(forward, chunks)
    value += constant
    if decode and value > figures.value:
        for s in range(len(best)):
            best[s] = labels[s]
        figures = PassFigures(figures.bound, value, figures.calm)
    if forward:
        return LIMIT, figures
    bound, value, why = total + constant, figures.value, LIMIT
    calm = figures.calm
    if value > -np.inf and bound - value <= stopping.gap_tol * abs(value):
        why = CLOSED
    else:
        calm = calm + 1 if figures.bound - bound <= stopping.tol * abs(bound) else 0
        why = AT_REST if calm >= PATIENCE else LIMIT
    figures = PassFigures(min(figures.bound, bound), value, calm)
    return INFEASIBLE if total == -np.inf else why, figures
