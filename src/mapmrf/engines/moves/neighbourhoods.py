"""Block moves: set a whole neighbourhood to its exact optimum given the labels around it."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.engines.elimination.bucket_tree import BucketTree
from mapmrf.engines.elimination.elimination import Elimination
from mapmrf.engines.elimination.functions import Functions
from mapmrf.engines.elimination.order_kernels import ball, fill_order
from mapmrf.engines.elimination.orders import Order
from mapmrf.engines.elimination.primal_graph import PrimalGraph
from mapmrf.problem import Problem

MAX_ENTRIES = 2.0**18
"""Table entries of a block's elimination: some milliseconds."""


SMALL = 16
"""Variables that a block counts as, at least: the overhead of a move."""


class BlockMoves:
    """Neighbourhoods of random centres, as large as their elimination allows, maximised exactly.

    Attributes
    ----------
    effort
        Variables of all blocks so far, each counted as often as it was in one; a small block counts as 16 variables.
    """

    def __init__(self, problem: Problem, graph: PrimalGraph, seed: int) -> None:
        self.problem, self.graph = problem, graph
        self.effort = 0
        whole = problem.graph
        self._theta = np.concatenate([whole.theta_v, whole.theta_t])
        self._table_at = len(whole.theta_v) + problem.table_at.astype(np.int64)
        self._stride = problem.edge_stride
        self._factor_of = problem.edge_factor[problem.nbr]
        self._local = np.full(problem.n_vars, -1, dtype=np.int64)
        self._random = np.random.default_rng(seed)
        self._size = 32.0

    def move(self, labels: Ints) -> None:
        """Set one block of `labels`, in place, to the best it can be."""
        size = int(self._random.integers(max(2, int(self._size / 2)), int(self._size) + 2))
        block = ball(self.graph.ptr, self.graph.nbr, int(self._random.integers(self.graph.n)), size)
        self.effort += max(len(block), SMALL)
        self._local[block] = np.arange(len(block))
        self._solve(block, labels)
        self._local[block] = -1

    def _solve(self, block: Ints, labels: Ints) -> None:
        """Eliminate the variables of a block; a block that is too large makes the next ones smaller."""
        card = self.problem.graph.card[block]
        inner = self._inner_graph(block)
        log_card = np.log2(card.astype(np.float64))
        noise = self._random.random(len(block))
        weight = np.maximum(log_card, 1.0)
        order = Order(*fill_order(inner.ptr, inner.nbr, weight, log_card, noise, 2**62, 2**62, MAX_ENTRIES))
        if order.n_known < len(block):
            self._size = max(2.0, 0.8 * self._size)
            return
        self._size = min(1.05 * self._size + 0.1, float(self.graph.n))
        tree = BucketTree.build(inner, card, order)
        elimination = Elimination(tree, self._functions(tree, block, labels))
        while not elimination.finished:
            elimination.advance(2**40, tree.n)
        if elimination.value > -math.inf:
            labels[block] = elimination.labels()

    def _inner_graph(self, block: Ints) -> PrimalGraph:
        """The edges among the variables of a block."""
        degree = np.diff(self.graph.ptr)[block]
        to = self._local[self.graph.nbr[ranges(self.graph.ptr[block], degree)]]
        owner = np.repeat(np.arange(len(block)), degree)[to >= 0]
        return PrimalGraph(offsets(np.bincount(owner, minlength=len(block))), to[to >= 0].astype(np.int32))

    def _functions(self, tree: BucketTree, block: Ints, labels: Ints) -> Functions:
        """The factors that touch a block, each at the labels of its variables outside."""
        problem = self.problem
        factors = np.unique(self._factor_of[ranges(problem.nbr_ptr[block], problem.degree[block])])
        arity = np.diff(problem.scope_ptr)[factors]
        edges = ranges(problem.scope_ptr[factors], arity)
        owner = np.repeat(np.arange(len(factors)), arity)
        scope = problem.scope[edges]
        inside = self._local[scope] >= 0
        outside = np.where(inside, 0, self._stride[edges] * labels[scope])
        at = self._table_at[factors]
        np.add.at(at, owner, outside)
        ptr = offsets(np.bincount(owner[inside], minlength=len(factors)))
        scopes = (ptr, self._local[scope[inside]], self._stride[edges][inside])
        return Functions.arranged(tree, self._theta, problem.graph.var_ptr[block], at, scopes)
