"""The compact program of a binary pairwise model: x_i, and y_ij = x_i x_j for every interacting pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.program.odd_cycle_separation import OddCycles, round_by_tree
from mapmrf.engines.program.program import Program, Rows, cost_scale
from mapmrf.model.problem import Problem

ROUND_OFF = 4 * float(np.finfo(float).eps)
"""Couplings below this share of their tables' entries count as 0."""


def is_compact(problem: Problem) -> bool:
    """Return whether all variables are binary, all factors pairwise and all potentials finite."""
    pairs = all(batch.shape == (2, 2) and not batch.hard for batch in problem.batches)
    return pairs and bool(np.all(problem.graph.card == 2)) and bool(np.isfinite(problem.graph.theta_v).all())


@dataclass(frozen=True)
class Compact:
    """Columns: x of the n variables, then y of the m pairs (first, second), whose cost is their coupling.

    A positive coupling pushes y up to min(x_i, x_j), a negative one down to max(0, x_i + x_j - 1): only these rows are
    in the program. The others are added as cuts, like the odd cycles; see `missing`.
    """

    program: Program
    first: Ints
    second: Ints

    @classmethod
    def build(cls, problem: Problem) -> Compact:
        """Sum the tables of every pair, and write theta as a polynomial in x."""
        n = problem.n_vars
        polynomial = _Polynomial.of(problem)
        pairs, coupling = polynomial.pairs, polynomial.coupling
        cost = np.concatenate([polynomial.linear, coupling])
        scale = cost_scale(coupling if len(coupling) else polynomial.linear, cost)
        cost /= scale
        first, second = pairs // n, pairs % n
        rows = _rows(n, first, second, coupling > 0, coupling < 0)
        zeros, ones = np.zeros(len(cost)), np.ones(len(cost))
        program = Program(cost, zeros, ones, n, rows, polynomial.constant, scale, mass=float(len(cost)))
        return cls(program, first, second)

    @property
    def n(self) -> int:
        """Number of variables."""
        return self.program.n_integer

    def columns(self, labels: Ints) -> Floats:
        """Return the point that represents a labelling."""
        return np.concatenate([labels, labels[self.first] * labels[self.second]]).astype(np.float64)

    def indicator(self, i: int, k: int) -> tuple[int, float, float]:
        """Express a state by a column, its coefficient and a constant: x_i, or 1 - x_i."""
        return (i, 1.0, 0.0) if k == 1 else (i, -1.0, 1.0)

    def labels(self, columns: Floats) -> Ints:
        """Return the labelling of an integer point; x is sufficient."""
        return (columns[: self.n] > 0.5).astype(np.int64)

    def rounded(self, columns: Floats) -> Ints:
        """Round a point to a labelling, along a tree of the pairs whose cut values are closest to 0 or 1."""
        x = columns[: self.n]
        cut = np.concatenate([x, self.cut(columns)])
        node1 = np.concatenate([np.arange(self.n), self.first])
        node2 = np.concatenate([np.full(self.n, self.n), self.second])
        # Rounded first, so that the solver's last digits do not decide.
        order = np.argsort(-np.round(np.abs(cut - 0.5), 9), kind="stable")
        labels = np.zeros(self.n, dtype=np.int64)
        nodes = np.zeros(self.n + 1, dtype=np.int64)
        round_by_tree(order, node1, node2, cut, nodes, nodes.copy(), labels)
        return labels

    def cut(self, columns: Floats) -> Floats:
        """Return the cut value of each pair: x_i + x_j - 2 y_ij, the probability that its labels differ."""
        x, y = columns[: self.n], columns[self.n :]
        return np.clip(x[self.first] + x[self.second] - 2 * y, 0.0, 1.0)

    def missing(self, columns: Floats, violation: float) -> Rows:
        """Return the rows of y = x_i x_j that are not in the program and are violated by a point."""
        x, y = columns[: self.n], columns[self.n :]
        xi, xj = x[self.first], x[self.second]
        positive = self.program.cost[self.n :] > 0
        above = ~positive & (y - np.minimum(xi, xj) > violation)
        below = positive & (xi + xj - 1 - y > violation)
        return _rows(self.n, self.first, self.second, above, below)

    def cycles(self, found: OddCycles) -> Rows:
        """Return odd-cycle inequalities sum_F cut - sum_{C without F} cut <= |F| - 1, halved, in x and y."""
        from scipy import sparse

        counts = np.diff(found.ptr)
        sign = 2.0 * found.odd - 1.0
        before = np.arange(len(found.var)) - 1
        before[found.ptr[:-1]] = found.ptr[1:] - 1
        of_x = (sign + sign[before]) / 2
        owner = np.tile(np.repeat(np.arange(len(counts)), counts), 2)
        columns, entries = np.concatenate([found.var, self.n + found.edge]), np.concatenate([of_x, -sign])
        order = np.argsort(owner, kind="stable")
        order = order[entries[order] != 0]
        ptr = offsets(np.bincount(owner[order], minlength=len(counts)))
        shape = (len(counts), len(self.program.cost))
        matrix = sparse.csr_array((entries[order], columns[order], ptr), shape=shape)
        upper = (np.add.reduceat(found.odd, found.ptr[:-1]) - 1) / 2 if len(counts) else np.zeros(0)
        return Rows(matrix, np.full(len(counts), -np.inf), upper.astype(np.float64))


@dataclass(frozen=True)
class _Polynomial:
    """theta = constant + sum_i linear_i x_i + sum coupling_ij x_i x_j over interacting pairs i n + j, i < j."""

    constant: float
    linear: Floats
    pairs: Ints
    coupling: Floats

    @classmethod
    def of(cls, problem: Problem) -> _Polynomial:
        """Sum the tables of every pair."""
        graph, n = problem.graph, problem.n_vars
        linear = graph.theta_v[1::2] - graph.theta_v[::2]
        constant = graph.constant + float(graph.theta_v[::2].sum())
        numbers: list[Ints] = [np.zeros(0, dtype=np.int64)]
        couplings, sizes = [np.zeros(0)], [np.zeros(0)]
        for batch in problem.batches:
            table = batch.tables(graph.theta_t, slice(0, batch.n))
            i, j = batch.scope.T.astype(np.int64)
            linear += _summed(i, table[:, 2] - table[:, 0], n) + _summed(j, table[:, 1] - table[:, 0], n)
            constant += float(table[:, 0].sum())
            numbers.append(np.minimum(i, j) * n + np.maximum(i, j))
            couplings.append(table[:, 0] + table[:, 3] - table[:, 1] - table[:, 2])
            sizes.append(np.abs(table).sum(axis=1))
        pairs, of = np.unique(np.concatenate(numbers), return_inverse=True)
        coupling = _summed(of.ravel(), np.concatenate(couplings), len(pairs))
        real = np.abs(coupling) > ROUND_OFF * _summed(of.ravel(), np.concatenate(sizes), len(pairs))
        return cls(constant, linear, pairs[real], coupling[real])


def _summed(place: Ints, parts: Floats, n: int) -> Floats:
    """Sum the parts at every place below `n`."""
    return np.asarray(np.bincount(place, weights=parts, minlength=n), dtype=np.float64)


def _rows(n: int, first: Ints, second: Ints, above: Bools, below: Bools) -> Rows:
    """Return rows y <= x_i and y <= x_j for the pairs `above`, and x_i + x_j - y <= 1 for the pairs `below`."""
    from scipy import sparse  # not imported for models that need no program

    up, down = np.flatnonzero(above), np.flatnonzero(below)
    twice, ends = np.concatenate([up, up]), np.concatenate([first[up], second[up]])
    columns = [np.stack([n + twice, ends], axis=1).ravel(), np.stack([first[down], second[down], n + down], 1).ravel()]
    entries = [np.tile([1.0, -1.0], len(twice)), np.tile([1.0, 1.0, -1.0], len(down))]
    ptr = offsets(np.repeat([2, 3], [len(twice), len(down)]))
    upper = np.repeat([0.0, 1.0], [len(twice), len(down)])
    shape = (len(upper), n + len(first))
    matrix = sparse.csr_array((np.concatenate(entries), np.concatenate(columns), ptr), shape=shape)
    return Rows(matrix, np.full(len(upper), -np.inf), upper)
