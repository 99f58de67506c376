"""Improvement moves on any factor graph: exact blocks, crossover, and the neighbourhoods that they work on."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.elimination.order_kernels import ball
from mapmrf.engines.elimination.primal_graph import PrimalGraph
from mapmrf.engines.moves.block_kernels import PER_BIT, plan_pass, solve_pass
from mapmrf.engines.moves.fusion_kernels import fuse
from mapmrf.problem import Problem

FUSION_TOLERANCE = 1e-12
"""What a part must gain, relative to the size of the potentials, to count as better than round-off."""

PER_VARIABLE = 2000
"""Table entries that take as long as planning for one variable of a block pass."""


class Moves:
    """Moves on the labellings of one problem; every move keeps or raises the value.

    Attributes
    ----------
    random
        Where everything random comes from.
    work
        Table entries that the block passes have looked at so far, roughly.
    """

    def __init__(self, problem: Problem, seed: int, graph: PrimalGraph | None = None) -> None:
        self.problem = problem
        self.random = np.random.default_rng(seed)
        self.graph = PrimalGraph.of(problem) if graph is None else graph
        model = problem.graph
        stride = problem.edge_stride.astype(np.int64)
        factor_of = problem.edge_factor[problem.nbr].astype(np.int32)
        self._tables = (model.var_ptr, model.theta_v, model.theta_t, problem.nbr_ptr, factor_of)
        self._factors = (problem.scope_ptr, problem.scope, stride, problem.table_at)
        self.work = 0
        self._bits = np.floor(PER_BIT * np.log2(model.card)).astype(np.int64)
        self._local = np.full(problem.n_vars, -1, dtype=np.int32)
        self._place = np.full(problem.n_vars, -1, dtype=np.int32)
        self._step = np.zeros(problem.n_vars, dtype=np.int64)
        self._all = np.arange(problem.n_vars)
        self._seen = np.zeros(problem.n_vars, dtype=bool)
        self._looked = np.zeros(problem.n_factors, dtype=bool)
        self._seed = np.array([0x9E3779B97F4A7C15 ^ (2 * seed + 1)], dtype=np.uint64)
        finite = np.abs(model.theta_t[np.isfinite(model.theta_t)])
        self._tol = FUSION_TOLERANCE * float(finite.max(initial=0.0))

    def block_pass(self, labels: Ints, width: float, region: Ints | None = None) -> int:
        """Optimise a large part of a region (all variables if None) exactly, tables up to ``2**width`` entries.

        Returns how many labels changed, in place.
        """
        if region is None:
            region = self.random.permutation(self.problem.n_vars)
        limit = int(PER_BIT * width)
        done, scope_ptr, scope = plan_pass(
            self.graph.ptr, self.graph.nbr, self._bits, region, limit, self._local, self._seed
        )
        self.work += self._cost(done, scope_ptr, scope)
        card = self.problem.graph.card
        scratch = (self._place, self._step)
        changed = solve_pass(done, scope_ptr, scope, card, *self._tables, *self._factors, labels, *scratch)
        return int(changed)

    def _cost(self, done: Ints, scope_ptr: Ints, scope: Ints) -> int:
        """Table entries of an elimination, each counted for every function that is read for it."""
        below = np.concatenate([[0], np.cumsum(self._bits[scope[: scope_ptr[-1]]])])
        sizes = np.exp2((self._bits[done] + np.diff(below[scope_ptr])) / PER_BIT)
        return int(sizes @ (self.problem.degree[done] + 1.0)) + PER_VARIABLE * len(done)

    def fuse(self, labels: Ints, other: Ints, region: Ints | None = None) -> float:
        """Take all parts of another labelling that are better, in place; returns the gain.

        Where all variables that differ lie in a region, that saves a look at all others.
        """
        among = self._all if region is None else region
        scratch = (self._seen, self._looked)
        gain, _ = fuse(labels, other, among, *scratch, *self._tables, *self._factors, self._tol)
        return float(gain)

    def neighbourhood(self, size: int) -> Ints:
        """The variables nearest to a random one, at most `size` of them, nearest first."""
        centre = int(self.random.integers(self.problem.n_vars))
        return np.asarray(ball(self.graph.ptr, self.graph.nbr, centre, size))
