"""Decomposition of a model into forests or single factors, with copies of the variables that they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Ints, offsets, segment_max
from mapmrf.engines.decomposition.subgradient_kernels import Subproblems
from mapmrf.engines.decomposition.tree_kernels import Copies, CopyGraph, Legs, number_copies, orient
from mapmrf.kernels.forests import grow_forest
from mapmrf.model.problem import Problem


@dataclass(frozen=True)
class Decomposition:
    """Acyclic subgraphs of a factor graph, or its single factors, and their copies of variables.

    Attributes
    ----------
    copies, legs
        The layout used by the kernels.
    visit : (n_factors,)
        The factors in the order of `legs`.
    roots
        Copies at the roots of all trees; none for single factors.
    n_forests
        Number of forests; 0 for single factors.
    """

    copies: Copies
    legs: Legs
    visit: Ints
    roots: Ints
    n_forests: int

    @classmethod
    def into_factors(cls, problem: Problem) -> Decomposition:
        """Create a subproblem per factor, with a copy of a variable on each edge."""
        copy_of = _zeros(problem.n_edges)
        copy_of[problem.nbr] = np.arange(problem.n_edges)
        copies = _copies(problem, problem.nbr_ptr, problem.edge_factor[problem.nbr].astype(np.int64))
        visit = np.arange(problem.n_factors)
        legs = _legs(problem, visit, np.arange(problem.n_edges), copies, copy_of)
        return cls(copies, legs, visit, _zeros(0), 0)

    @classmethod
    def into_trees(cls, problem: Problem) -> Decomposition:
        """Create successive maximal forests until every factor is in one."""
        factor_of = problem.edge_factor
        forest_of, n_forests = _pick_forests(problem)
        copy_ptr, copy_of = _zeros(problem.n_vars + 1), _zeros(problem.n_edges)
        last_copy = _zeros(n_forests) - 1
        number_copies(problem.nbr_ptr, problem.nbr, factor_of, forest_of, last_copy, copy_ptr, copy_of)
        n_copies = int(copy_ptr[-1])
        forest = _zeros(n_copies)
        forest[copy_of] = forest_of[factor_of]
        edge_ptr = offsets(np.bincount(copy_of, minlength=n_copies)).astype(np.int64)
        graph = CopyGraph(factor_of, copy_of, edge_ptr, np.argsort(copy_of, kind="stable"))
        visit, leg_edge, roots = _zeros(problem.n_factors), _zeros(problem.n_edges), _zeros(n_copies)
        n_roots = orient(problem.scope_ptr, graph, visit, leg_edge, roots)
        copies = _copies(problem, copy_ptr, forest)
        return cls(copies, _legs(problem, visit, leg_edge, copies, copy_of), visit, roots[:n_roots], n_forests)

    def subproblems(self, problem: Problem, averaging: bool = True) -> Subproblems:
        """Return the subproblems with their potentials, for the kernels.

        `averaging` enables averages of the factors' choices.
        """
        graph = problem.graph
        config_at = problem.config_ptr[:-1][self.visit].astype(np.int64) if averaging else _zeros(0)
        best = segment_max(graph.theta_v, graph.var_ptr)
        return Subproblems(
            theta_v=graph.theta_v,
            theta_t=graph.theta_t,
            var_ptr=graph.var_ptr.astype(np.int64),
            constant=graph.constant,
            alone=graph.constant + float(best[problem.degree == 0].sum()),
            copies=self.copies,
            legs=self.legs,
            roots=self.roots,
            n_forests=max(1, self.n_forests),
            config_at=config_at,
        )


def _zeros(n: int) -> Ints:
    return np.zeros(n, dtype=np.int64)


def _pick_forests(problem: Problem) -> tuple[Ints, int]:
    """Assign factors to successive maximal forests; return the forest of every factor and the number of forests."""
    forest_of, left, n_forests = _zeros(problem.n_factors), np.arange(problem.n_factors), 0
    root, taken = _zeros(problem.n_vars), np.zeros(problem.n_factors, dtype=bool)
    while len(left):
        grow_forest(left, problem.scope_ptr, problem.scope, root, taken)
        forest_of[left[taken[left]]] = n_forests
        left = left[~taken[left]]
        n_forests += 1
    return forest_of, n_forests


def _copies(problem: Problem, ptr: Ints, forest: Ints) -> Copies:
    """Build the copies of every variable from their offsets and forests."""
    card = np.repeat(problem.graph.card, np.diff(ptr)).astype(np.int32)
    return Copies(ptr.astype(np.int64), offsets(card)[:-1].astype(np.int64), forest.astype(np.int32), card)


def _legs(problem: Problem, visit: Ints, leg_edge: Ints, copies: Copies, copy_of: Ints) -> Legs:
    """Build the legs of the factors in visiting order."""
    copy, forms = copy_of[leg_edge], problem.quick_forms.of
    return Legs(
        ptr=offsets(np.diff(problem.scope_ptr)[visit]).astype(np.int64),
        table_at=problem.table_at[visit].astype(np.int64),
        weight=problem.weight[visit] if len(problem.weight) else np.zeros(0),
        form=forms[visit] if len(forms) else np.zeros(0, dtype=np.int32),
        at=copies.at[copy],
        copy=copy.astype(np.int32),
        var=problem.scope[leg_edge].astype(np.int32),
        card=copies.card[copy],
        stride=problem.edge_stride[leg_edge].astype(np.int32),
    )
