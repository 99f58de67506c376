"""Block moves: exact joint optimisation of many variables given the labels of all others."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.order_kernels import ball
from mapmrf.engines.elimination.primal_graph import PrimalGraph
from mapmrf.engines.moves.block_kernels import PER_BIT, Block, BlockWorkspace, plan_block, solve_block
from mapmrf.engines.moves.move_model import lay_out
from mapmrf.model.problem import Problem

PER_VARIABLE = 2000
"""Cost of planning per variable of a block pass, in table entries."""

BALL_WIDTH = 18.0
"""Base-2 logarithm of the largest table of a ball: a move takes some milliseconds."""

SMALL = 16
"""Minimum number of variables counted per ball, for the overhead of a move."""


class BlockMoves:
    """Block moves on the labellings of one problem; every move keeps or raises the value.

    Attributes
    ----------
    random
        Source of all randomness.
    work
        Approximate number of table entries read so far.
    ball_size
        Maximum number of variables of the next balls.
    effort
        Total number of variables over all balls so far, with repetitions; a small ball counts as 16 variables.
    """

    def __init__(self, problem: Problem, seed: int, graph: PrimalGraph | None = None) -> None:
        n = problem.n_vars
        self.problem = problem
        self.random = np.random.default_rng(seed)
        self.graph = PrimalGraph.of(problem) if graph is None else graph
        self.work = self.effort = 0
        self.ball_size = 32.0
        self._model = lay_out(problem)
        self._bits = np.floor(PER_BIT * np.log2(problem.graph.card)).astype(np.int64)
        self._local = np.full(n, -1, dtype=np.int32)
        self._scratch = BlockWorkspace(np.full(n, -1, dtype=np.int32), np.zeros(n, dtype=np.int64))
        self._bit_state = np.array([0x9E3779B97F4A7C15 ^ (2 * seed + 1)], dtype=np.uint64)

    def optimise(self, labels: Ints, width: float, region: Ints | None = None) -> int:
        """Optimise a large part of a region (all variables if None) exactly, with tables of up to ``2**width`` entries.

        Changes the labels in place; returns how many changed.
        """
        if region is None:
            region = self.random.permutation(self.problem.n_vars)
        return self._solve(self._plan(region, width), labels)

    def optimise_ball(self, labels: Ints) -> int:
        """Optimise a ball around a random variable exactly, in place; return how many labels changed.

        Balls grow as long as all their variables can be optimised at once. Ties in the elimination order are resolved
        from the centre outwards.
        """
        largest = int(self.ball_size)
        size = int(self.random.integers(max(2, largest // 2), largest + 2))
        region = self.neighbourhood(size)
        self.effort += max(len(region), SMALL)
        block = self._plan(region, BALL_WIDTH)
        if len(block.order) < len(region):
            self.ball_size = max(2.0, 0.8 * self.ball_size)
        else:
            self.ball_size = min(1.05 * self.ball_size + 0.1, float(self.problem.n_vars))
        return self._solve(block, labels)

    def _plan(self, region: Ints, width: float) -> Block:
        """Choose the variables of a region to optimise."""
        return plan_block(
            self.graph.ptr, self.graph.nbr, self._bits, region, int(PER_BIT * width), self._local, self._bit_state
        )

    def _solve(self, block: Block, labels: Ints) -> int:
        """Optimise a block; return how many labels changed."""
        self.work += self._cost(block)
        return int(solve_block(self._model, block, labels, self._scratch))

    def _cost(self, block: Block) -> int:
        """Return the table entries of an elimination, counted once per function that is read."""
        below = np.concatenate([[0], np.cumsum(self._bits[block.scope[: block.scope_ptr[-1]]])])
        sizes = np.exp2((self._bits[block.order] + np.diff(below[block.scope_ptr])) / PER_BIT)
        return int(sizes @ (self.problem.degree[block.order] + 1.0)) + PER_VARIABLE * len(block.order)

    def neighbourhood(self, size: int, centre: int | None = None) -> Ints:
        """Return up to `size` variables nearest to `centre`, by default a random one, nearest first."""
        if centre is None:
            centre = int(self.random.integers(self.problem.n_vars))
        return np.asarray(ball(self.graph.ptr, self.graph.nbr, centre, size))
