"""TRBP: tree-reweighted max-product message passing, with an upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from mapmrf.arrays import Floats
from mapmrf.engines.messages.max_product import ForestWeights, MessagePassing, Tour
from mapmrf.kernels.heaps_and_forests import grow_forest
from mapmrf.model.problem import Problem
from mapmrf.run.clock import check_awaited
from mapmrf.run.method import PositiveInt


@dataclass(frozen=True)
class TRBP(MessagePassing):
    """Belief propagation in which factors are weighted by their appearance in spanning forests (ogm-TRBP).

    The model is a convex combination of forests, each of which is solved exactly once the messages have converged;
    their combined values are an upper bound. It is evaluated as a dual of the local polytope, so that it is valid at
    any time.

    Attributes
    ----------
    max_iterations
        Maximum number of iterations; in each, every factor sends one message to each of its variables.
    damping
        Weight of the old message in the new one, from 0 (none) to below 1.
    tol
        The run has converged when no message changes by more than this, relative to the mean range of the potentials.
    schedule
        ``parallel`` computes all messages from those of the previous iteration; ``sequential`` goes factor by factor in
        breadth-first order, alternately forward and backward.
    decode
        ``sequential`` decides one variable after another, each given those decided before; ``argmax`` takes the best
        state of every belief independently.
    weights
        ``forests``: the share of random spanning forests that contain a factor; ``uniform``: the same for all factors,
        (n - 1) / m for m pairs of n variables; ``degree``: small where a variable has many factors.
    forests
        Minimum number of forests; more are grown until every factor is in one.

    Examples
    --------
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.datasets.grid(6, 6, coupling=2.0, seed=1), "trbp")
    >>> round(result.bound, 2), result.value < result.bound
    (62.74, True)
    """

    name: ClassVar[str] = "trbp"
    title: ClassVar[str] = "tree-reweighted max-product belief propagation (ogm-TRBP)"
    family: ClassVar[str] = "message passing"
    gives_bound: ClassVar[bool] = True

    weights: Literal["forests", "uniform", "degree"] = "forests"
    forests: PositiveInt = 10

    def weigh(self, problem: Problem, seed: int) -> ForestWeights:
        """Compute the weights given by the option."""
        if self.weights == "forests":
            return forest_weights(problem, self.forests, seed)
        rho = uniform_weights(problem) if self.weights == "uniform" else degree_weights(problem)
        return ForestWeights(rho, parent_shares(problem, rho))


def forest_weights(problem: Problem, n_least: int, seed: int, max_work: int = 50_000_000) -> ForestWeights:
    """Return the appearance probabilities in random spanning forests that cover every factor at least once."""
    # If that takes more than `max_work`, the weights are derived from the degrees instead.
    random = np.random.default_rng(seed)
    times = np.zeros(problem.n_factors, dtype=np.int64)
    parent = np.zeros(problem.n_edges)
    root = np.empty(problem.n_vars, dtype=np.int64)
    taken = np.zeros(problem.n_factors, dtype=bool)
    # Maximum number of blocks of adjacent factors that are shuffled: within a block, memory access stays local
    n_forests, width = 0, max(1, problem.n_factors // 10_000)
    while n_forests < n_least or times.min() == 0:
        check_awaited()
        if n_forests > n_least and n_forests * problem.n_factors > max_work:
            rho = degree_weights(problem)
            return ForestWeights(rho, parent_shares(problem, rho))
        # the factors in random order, those used least often first
        blocks = random.permutation(-(-len(times) // width))
        order = (blocks[:, None] * width + np.arange(width)).ravel()
        order = order[order < len(times)]
        order = order[np.argsort(times[order], kind="stable")]
        grow_forest(order, problem.scope_ptr, problem.scope, root, taken)
        times += taken
        parent[Tour.of(problem, taken).parent_edge[taken]] += 1.0
        n_forests += 1
    return ForestWeights(times / n_forests, parent / n_forests)


def uniform_weights(problem: Problem) -> Floats:
    """Return one weight for all factors: the size of a spanning tree, shared equally."""
    links = problem.n_edges - problem.n_factors
    return np.full(problem.n_factors, (problem.n_vars - Tour.of(problem).n_parts) / links)


def degree_weights(problem: Problem) -> Floats:
    """Return weights such that the factors of any variable together weigh no more than a forest allows."""
    arity = np.diff(problem.scope_ptr)
    degree = np.maximum.reduceat(problem.degree[problem.scope], problem.scope_ptr[:-1])
    return np.minimum(1.0, arity / ((arity - 1.0) * degree))


def parent_shares(problem: Problem, rho: Floats) -> Floats:
    """Return the shares `parent` for weights that do not come from forests."""
    # For a tight bound, the shares of a factor's variables must sum to rho_a, and the remaining weight of a variable's
    # belief, ``1 - sum_a kept_ia`` with kept_ia = rho_a - parent_ia, must not be negative. The loads ``sum_a kept_ia``
    # are balanced until none exceeds 1; if no forests have such weights, the excess is cut off at the end.
    arity = np.diff(problem.scope_ptr)
    rho_e, total = np.repeat(rho, arity), (arity - 1.0) * rho
    ease = np.ones(problem.n_vars)
    for _ in range(100):  # maximum number of rounds that balance the loads of the variables
        pull = ease[problem.scope]
        kept = np.minimum(rho_e, pull * (total / np.add.reduceat(pull, problem.scope_ptr[:-1]))[problem.edge_factor])
        load = np.bincount(problem.scope, weights=kept, minlength=problem.n_vars)
        if load.max() <= 1.0:
            break
        ease /= np.sqrt(np.maximum(load, 0.1))
    return np.asarray(rho_e - kept / np.maximum(1.0, load)[problem.scope])
