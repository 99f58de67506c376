"""Upper bounds on the labellings with each state, from the dual of the linear relaxation."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.methods.trws import TRWS
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from mapmrf.run.result import Status

ITERATIONS = 300
"""Maximum number of iterations of TRW-S."""

SECONDS = 20.0
"""Seconds after which no further iterations begin; at least one is done."""


class StateBounds(NamedTuple):
    """Upper bounds on the labellings with each state, and the best labelling found on the way, if any."""

    upper: Floats  # (n_states,) no labelling with this state is worth more
    bound: float  # no labelling is worth more
    labels: Ints | None  # (n_vars,) or None: the best decoded labelling


def state_bounds(problem: Problem, stop: Callable[[], bool], iterations: int = ITERATIONS) -> StateBounds:
    """Lower the dual by TRW-S and read the bound of every state from it."""
    graph = problem.graph
    if graph.n_vars == 0:
        return StateBounds(np.zeros(0), graph.constant, np.zeros(0, dtype=np.int64))
    method = TRWS(max_iterations=iterations)
    run = method.start(problem, 0, Start())
    try:
        end = time.perf_counter() + SECONDS
        step = method.step(problem, run)
        while step.finished is None and run.done < iterations and not stop() and time.perf_counter() < end:
            step = method.step(problem, run)
        if step.finished is Status.INFEASIBLE or graph.constant == -np.inf:
            return StateBounds(np.full(problem.n_states, -np.inf), -np.inf, None)
        slack = 2 * graph.round_off(0.0)
        upper = run.passes.state_bounds() + slack
        bound = float(run.passes.figures.bound) + slack
        labels = run.passes.best if run.passes.figures.value > -np.inf else None
        return StateBounds(np.minimum(upper, bound), bound, labels)
    finally:
        method.close(problem, run)
