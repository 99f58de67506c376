"""TRW-S: sequential tree-reweighted message passing, and its generalisation to factors of any arity."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from mapmrf.engines.messages.sweeps import AT_REST, INFEASIBLE, PassFigures, PassStopping, SequentialPasses
from mapmrf.engines.messages.visit_order import VariableOrder, VisitOrder
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import (
    MOST_NUMBERS,
    Answer,
    Array,
    DualState,
    Method,
    NonNegativeFloat,
    PositiveInt,
    Progress,
    Snapshot,
    Start,
    put_back,
)
from mapmrf.run.result import Status


@dataclass(frozen=True)
class TRWS(Method):
    """Pass messages along the order of the variables and back, which lowers the bound monotonically (ogm-TRWS).

    This is Kolmogorov's TRW-S on pairwise models, and SRMP with single variables as separators on all others. The bound
    never rises and converges to weak tree agreement: to the optimum of the linear relaxation, or above it.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations. An iteration is a forward and a backward pass.
    tol
        The run has converged when several iterations in a row have lowered the bound by less than this, relatively.
    order
        Order of the variables. ``trees_last``: as given, except that pendant trees come last, so that trees are solved
        exactly; ``given``: as given; ``breadth_first``: in layers from a peripheral variable, trees last.
    decode_every
        Iterations between decodings. Both passes then decode a labelling: each variable takes its best state given the
        labels of those visited before it and the messages of the others.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.potts_image(60, 80, labels=3).graph, "trws", max_iterations=100)
    >>> result.status.value
    'optimal'
    """

    name: ClassVar[str] = "trws"
    title: ClassVar[str] = "sequential tree-reweighted message passing, SRMP for higher-order factors (ogm-TRWS)"
    family: ClassVar[str] = "message passing"
    recommended: ClassVar[bool] = True
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: PositiveInt = 1000
    tol: NonNegativeFloat = 1e-9
    order: VariableOrder = "trees_last"
    decode_every: PositiveInt = 1

    def start(self, problem: Problem, seed: int, initial: Start) -> TRWSRun:
        order, stopping = VisitOrder.build(problem, self.order), PassStopping(self.tol, initial.gap_tolerance)
        passes = fitting_passes(problem)(problem, order, stopping)
        if initial.dual is not None:
            given = initial.dual.values_for(problem, self._layout(passes), passes.n_messages)
            if given is not None:
                passes.load_messages(given)
        run = TRWSRun(passes)
        if initial.saved is not None:
            figures, arrays = initial.saved
            run.done = int(figures["done"])
            bound, value, calm = figures["figures"]
            passes.figures = PassFigures(float(bound), float(value), int(calm))
            for name, array in run.messages.items():
                put_back(array, arrays, name)
        return run

    def _layout(self, passes: SequentialPasses) -> str:
        """Name the layout of the messages, which depends on the order of the variables."""
        return f"trws {self.order} {passes.layout}"

    def step(self, problem: Problem, state: TRWSRun) -> Progress:
        passes, known = state.passes, state.passes.figures.value
        end = min(state.done + max(1, pace.SWEEPS // (passes.work + 1)), self.max_iterations)
        n, why = passes.iterate(state.done, end, self.decode_every)
        state.done += n
        progress = Progress(state.done, bound=passes.figures.bound)
        if passes.figures.value > known:
            progress.labels, progress.value = passes.best, passes.figures.value
        if why == AT_REST:
            progress.finished = Status.CONVERGED
        elif why == INFEASIBLE or progress.bound == -math.inf:
            progress.finished = Status.INFEASIBLE
        return progress

    def close(self, problem: Problem, state: TRWSRun) -> None:
        state.passes.close()

    def answer(self, problem: Problem, state: TRWSRun) -> Answer:
        passes, dual = state.passes, None
        if state.done and passes.n_messages <= MOST_NUMBERS:
            dual = DualState.of(problem, self._layout(passes), passes.message_values())
        return Answer(labels=passes.best if passes.figures.value > -math.inf else None, dual=dual)

    def snapshot(self, problem: Problem, state: TRWSRun) -> Snapshot:
        return Snapshot({"done": state.done, "figures": list(state.passes.figures)}, state.messages)


def fitting_passes(problem: Problem) -> Callable[[Problem, VisitOrder, PassStopping], SequentialPasses]:
    """The fastest passes for a model; the others are not imported."""
    if all(batch.arity == 2 and not batch.hard for batch in problem.batches):
        from mapmrf.engines.messages.trws_binary import SpinPasses, fits_spins

        if fits_spins(problem):
            return SpinPasses
        from mapmrf.engines.messages.trws_pairwise import LabelPasses

        return LabelPasses
    from mapmrf.engines.messages.srmp import TablePasses

    return TablePasses


@dataclass
class TRWSRun:
    passes: SequentialPasses
    done: int = 0

    @property
    def messages(self) -> dict[str, Array]:
        """The arrays that the passes change: messages and labellings, under the kernels' names."""
        messages: dict[str, Array] = vars(self.passes)["messages"]._asdict()
        return messages
