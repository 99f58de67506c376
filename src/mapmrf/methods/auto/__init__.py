"""Auto: the best labelling that the time allows, and how far it can be from the optimum."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, get_args

from mapmrf.arrays import Ints
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.methods.auto.standing import Standing
from mapmrf.methods.trws import TRWS
from mapmrf.options import check_above, check_at_least, check_choice
from mapmrf.problem import Problem
from mapmrf.result import Status

if TYPE_CHECKING:
    from mapmrf.methods.auto.policy import Portfolio

Solver = Literal["auto", "highs", "scip"]

WINDOW, STALLED, WIDE_GAP = 30, 0.9, 1e-3
"""The relaxation is left when a relative gap this wide keeps more than this share over so many iterations."""


@dataclass(frozen=True)
class Auto(Method):
    """Relax, simplify, eliminate, search and prove: stop as soon as the labelling is proven optimal.

    The parts come in this order, each only if those before have left a gap: the dual bound of TRW-S with the labellings
    read off it; exact simplification; elimination, if the induced width is small. Then the search and the provers take
    turns. The search takes starting points from belief propagation and LS-LP, improves them by exact blocks and
    crossover, and goes on with restarts of regions. Provers are cutting planes on sparse binary pairwise models, and
    cluster tightening and AND/OR branch and bound on others.

    Attributes
    ----------
    max_iterations
        Steps of all parts together, each of some hundredths of a second.
    starts
        Starts of LS-LP.
    pool
        Labellings that the search keeps and improves in turn.
    width
        Logarithm to base 2 of the entries of the largest table when a region is set to its optimum.
    prove
        Whether time is spent on bounds beyond that of the relaxation.
    solver
        Solver for the branch and bound after the cutting planes: ``highs``, ``scip`` (an optional extra), or ``auto``,
        which is SCIP if it is installed.
    memory
        Megabytes for the tables of elimination and of AND/OR search, and for SCIP.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> result = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1))  # auto is the default
    >>> round(result.value, 6), result.status.value
    (55.647253, 'optimal')
    """

    name: ClassVar[str] = "auto"
    title: ClassVar[str] = "all that helps: relaxation, LS-LP, exact blocks, restarts, proofs"
    gives_bound: ClassVar[bool] = True
    exact_on_trees: ClassVar[bool] = True

    max_iterations: int = 3000
    starts: int = 5
    pool: int = 3
    width: float = 13.0
    prove: bool = True
    solver: Solver = "auto"
    memory: float = 1024.0

    def __post_init__(self) -> None:
        check_choice(self, "solver", get_args(Solver))
        check_at_least(self, 1, "max_iterations", "starts", "pool")
        check_at_least(self, 0, "width")
        check_above(self, 0, "memory")

    def start(self, problem: Problem, seed: int, initial: Start) -> _State:
        """Begin with the labelling given, or with the best state of every variable alone."""
        return _State(self, problem, seed, initial.first_labels(problem.graph))

    def step(self, problem: Problem, state: _State) -> Progress:
        """Go on with the part whose turn it is."""
        return next(state.parts)

    def answer(self, problem: Problem, state: _State) -> Answer:
        """The best labelling; ends all parts."""
        state.parts.close()  # or else the run would be in memory until Python looks for cycles
        if state.portfolio is not None:
            state.portfolio.halt()
        standing = state.standing
        return Answer(labels=standing.labels if standing.value > -math.inf else None, details=standing.details)


class _State:
    """A run: all parts as one generator, and where they stand."""

    def __init__(self, method: Auto, problem: Problem, seed: int, labels: Ints) -> None:
        self.method, self.problem, self.seed = method, problem, seed
        self.standing = Standing(problem, labels)
        self.portfolio: Portfolio | None = None
        self.parts = self.run()

    def run(self) -> Generator[Progress, None, None]:
        """The relaxation, and the rest if that leaves a gap; the loop ends the run when there is none."""
        yield from self.relax()
        from mapmrf.methods.auto.policy import Portfolio  # easy models are spared the import of all that follows

        self.portfolio = Portfolio(self.method, self.standing, self.seed)
        yield from self.portfolio.run()

    def relax(self) -> Iterator[Progress]:
        """TRW-S, as long as it closes the gap: it proves what is easy."""
        standing, inner = self.standing, TRWS()
        state = inner.start(self.problem, self.seed, Start())
        gap, looked_at, step = math.inf, 0, Progress(0)
        while step.finished is None and step.iterations < inner.max_iterations:
            step = inner.step(self.problem, state)
            if step.labels is not None:
                standing.offer(step.labels)
            standing.note(step.bound)
            yield standing.worked("relax", Status.INFEASIBLE if step.finished is Status.INFEASIBLE else None)
            if step.iterations - looked_at >= WINDOW:
                if standing.gap > max(WIDE_GAP, STALLED * gap) or standing.gap == math.inf:
                    return
                gap, looked_at = standing.gap, step.iterations
