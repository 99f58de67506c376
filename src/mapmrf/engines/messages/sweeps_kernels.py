"""Shared by the kernels of sequential passes: iteration ranges, figures, and the stopping rule."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.messages.parallel_sweep_kernels import Board, add_up

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
    forward: bool, decode: bool, constant: float, figures: PassFigures, stopping: PassStopping, board: Board,
    labels: Ints, best: Ints,
) -> tuple[int, PassFigures]:  # fmt: skip
    """Add up what the chunks of a pass have given, and keep its labels if they are the best so far.

    Returns why to stop after a backward pass, LIMIT if there is no reason, and the figures.
    """
    bound, value = add_up(forward, board)
    if decode:
        figures = keep_best(figures, value + constant, labels, best)
    if forward:
        return LIMIT, figures
    why, figures = at_rest(figures, bound + constant, stopping)
    return INFEASIBLE if bound == -np.inf else why, figures
