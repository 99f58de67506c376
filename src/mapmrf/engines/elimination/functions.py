"""Tables over the positions of a bucket tree."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.elimination.bucket_tree import BucketTree, inverse
from mapmrf.model.problem import Problem


@dataclass(frozen=True, eq=False)
class Functions:
    """Tables over positions of a bucket tree: first the unary potentials, by position, then the factors.

    Attributes
    ----------
    ptr, var, stride
        The variables of every function, ascending, with their strides in its table.
    at
        Where the tables start in `theta`.
    theta
        All tables.
    """

    ptr: Ints
    var: Ints
    stride: Ints
    at: Ints
    theta: Floats

    @property
    def n(self) -> int:
        """Number of functions."""
        return len(self.at)

    @property
    def bucket(self) -> Ints:
        """The bucket of every function: its last position, which is the first to be eliminated."""
        return self.var[self.ptr[1:] - 1]

    @classmethod
    def of_model(cls, problem: Problem, tree: BucketTree) -> Functions:
        """Return the potentials of a problem; a table for every distinct pair of a weight and a table."""
        graph = problem.graph.expanded()
        table_at = problem.table_at if graph is problem.graph else graph.table_ptr[graph.table_of[problem.order]]
        return cls.of(problem, tree, graph.theta_v, graph.theta_t, table_at)

    @classmethod
    def of(cls, problem: Problem, tree: BucketTree, theta_v: Floats, tables: Floats, table_at: Ints) -> Functions:
        """Use other potentials on the scopes of a problem; the table of factor `a` starts at ``table_at[a]``."""
        return cls.arranged(
            tree,
            np.concatenate([theta_v, tables]),
            problem.graph.var_ptr[:-1],
            len(theta_v) + table_at.astype(np.int64),
            (problem.scope_ptr, problem.scope, problem.edge_stride),
        )

    @classmethod
    def arranged(
        cls, tree: BucketTree, theta: Floats, unary_at: Ints, table_at: Ints, scopes: tuple[Ints, Ints, Ints]
    ) -> Functions:
        """Convert functions by variable to functions by position; `scopes` are offsets, variables and strides."""
        n = tree.n
        ptr, scope, stride = scopes
        places = inverse(tree.var_of)[scope]
        by = np.lexsort((places, np.repeat(np.arange(len(table_at)), np.diff(ptr))))
        return cls(
            ptr=np.concatenate([np.arange(n), n + ptr.astype(np.int64)]),
            var=np.concatenate([np.arange(n), places[by]]),
            stride=np.concatenate([np.ones(n, dtype=np.int64), stride[by]]),
            at=np.concatenate([unary_at[tree.var_of], table_at]).astype(np.int64),
            theta=theta,
        )
