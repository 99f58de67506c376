"""Binary models as programs: compact (x_i, and y_ij = x_i x_j for interacting pairs), in spins, and in products."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges, short
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.program.odd_cycle_separation import OddCycles, rounded
from mapmrf.engines.program.program import Program, Rows, SparseMatrix, cost_scale, summed
from mapmrf.model.problem import Batch, Problem


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
        """Write theta as constant + sum_i linear_i x_i + sum coupling_ij x_i x_j, over interacting pairs i < j."""
        graph, n = problem.graph, problem.n_vars
        linear = graph.theta_v[1::2] - graph.theta_v[::2]
        constant = graph.constant + float(graph.theta_v[::2].sum())
        numbers: list[Ints] = [np.zeros(0, dtype=np.int64)]
        couplings, sizes = [np.zeros(0)], [np.zeros(0)]
        for batch in problem.batches:
            table = batch.tables(graph.theta_t, slice(0, batch.n))
            i, j = batch.scope.T.astype(np.int64)
            linear += summed(i, table[:, 2] - table[:, 0], n) + summed(j, table[:, 1] - table[:, 0], n)
            constant += float(table[:, 0].sum())
            numbers.append(np.minimum(i, j) * n + np.maximum(i, j))
            couplings.append(table[:, 0] + table[:, 3] - table[:, 1] - table[:, 2])
            sizes.append(np.abs(table).sum(axis=1))
        pairs, of = np.unique(np.concatenate(numbers), return_inverse=True)
        coupling = summed(of.ravel(), np.concatenate(couplings), len(pairs))
        # couplings below this share of their tables' entries count as 0
        real = np.abs(coupling) > (4 * float(np.finfo(float).eps)) * summed(
            of.ravel(), np.concatenate(sizes), len(pairs)
        )
        pairs, coupling = pairs[real], coupling[real]
        cost = np.concatenate([linear, coupling])
        scale = cost_scale(coupling if len(coupling) else linear, cost)
        cost /= scale
        first, second = pairs // n, pairs % n
        rows = _rows(n, first, second, coupling > 0, coupling < 0)
        zeros, ones = np.zeros(len(cost)), np.ones(len(cost))
        program = Program(cost, zeros, ones, n, rows, constant, scale, mass=float(len(cost)))
        return cls(program, first, second)

    @property
    def n(self) -> int:
        return self.program.n_integer

    def columns(self, labels: Ints) -> Floats:
        return np.concatenate([labels, labels[self.first] * labels[self.second]]).astype(np.float64)

    def indicator(self, i: int, k: int) -> tuple[int, float, float]:
        """Express a state by a column, its coefficient and a constant: x_i, or 1 - x_i."""
        return (i, 1.0, 0.0) if k == 1 else (i, -1.0, 1.0)

    def labels(self, columns: Floats) -> Ints:
        """Return the labelling of an integer point; x is sufficient."""
        return (columns[: self.n] > 0.5).astype(np.int64)

    def rounded(self, columns: Floats) -> Ints:
        return rounded(np.concatenate([columns[: self.n], self.cut_values(columns)]), self.first, self.second, self.n)

    def cut_values(self, columns: Floats) -> Floats:
        """Return the cut value of each pair: x_i + x_j - 2 y_ij, the probability that its labels differ."""
        x, y = columns[: self.n], columns[self.n :]
        return np.clip(x[self.first] + x[self.second] - 2 * y, 0.0, 1.0)

    def of_spins(self, z: Floats) -> Floats:
        """Convert a point in spins and products of pairs: x = (1 + s) / 2 and y = (1 + s_i + s_j + d) / 4."""
        spin, product = z[: self.n], z[self.n :]
        return np.concatenate([(1 + spin) / 2, (1 + spin[self.first] + spin[self.second] + product) / 4])

    def rows_of_spins(self, cuts: SpinCuts) -> Rows:
        """Convert rows by s = 2 x - 1 and d = 1 - 2 x_i - 2 x_j + 4 y, both divided by 4."""
        n, width = self.n, len(self.program.cost)
        in_spins = cuts.matrix(width)
        columns = np.repeat(in_spins.indices[:, None].astype(np.int64), 3, axis=1)
        entries = in_spins.data[:, None] * [-0.5, -0.5, 1.0]
        of_pair = in_spins.indices >= n
        pair = in_spins.indices[of_pair] - n
        columns[of_pair, 0], columns[of_pair, 1] = self.first[pair], self.second[pair]
        entries[~of_pair] = in_spins.data[~of_pair, None] * [0.5, 0.0, 0.0]
        places = in_spins.rows[:, None] * width + columns
        different, at, number = np.unique(places, return_index=True, return_inverse=True)
        merged = summed(number.ravel(), entries.ravel(), len(different))
        kept = np.flatnonzero(merged)
        kept = kept[np.lexsort((-at[kept], different[kept] // width))]
        ptr = offsets(np.bincount(different[kept] // width, minlength=cuts.n))
        matrix = SparseMatrix(merged[kept], short(different[kept] % width), ptr, width)
        at_zero = np.repeat([-1.0, 1.0], [n, width - n])
        return Rows(matrix, np.full(cuts.n, -np.inf), (cuts.upper - in_spins @ at_zero) / 4)

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
        matrix = SparseMatrix(entries[order], short(columns[order]), ptr, len(self.program.cost))
        upper = (np.add.reduceat(found.odd, found.ptr[:-1]) - 1) / 2 if len(counts) else np.zeros(0)
        return Rows(matrix, np.full(len(counts), -np.inf), upper.astype(np.float64))


def _rows(n: int, first: Ints, second: Ints, above: Bools, below: Bools) -> Rows:
    """Return rows y <= x_i and y <= x_j for the pairs `above`, and x_i + x_j - y <= 1 for the pairs `below`."""
    up, down = np.flatnonzero(above), np.flatnonzero(below)
    twice, ends = np.concatenate([up, up]), np.concatenate([first[up], second[up]])
    columns = [np.stack([n + twice, ends], axis=1).ravel(), np.stack([first[down], second[down], n + down], 1).ravel()]
    entries = [np.tile([1.0, -1.0], len(twice)), np.tile([1.0, 1.0, -1.0], len(down))]
    ptr = offsets(np.repeat([2, 3], [len(twice), len(down)]))
    upper = np.repeat([0.0, 1.0], [len(twice), len(down)])
    matrix = SparseMatrix(np.concatenate(entries), short(np.concatenate(columns)), ptr, n + len(first))
    return Rows(matrix, np.full(len(upper), -np.inf), upper)


# -- Cuts in spins ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SpinCuts:
    """Rows with entries 1 and -1: the sum over some columns minus that over others is at most `upper`."""

    # ptr, middle, column: row r has 1 in ``column[ptr[r]:middle[r]]`` and -1 in ``column[middle[r]:ptr[r + 1]]``
    ptr: Ints
    middle: Ints
    column: Ints
    upper: Floats  # its right-hand side
    code: Floats  # a number that identifies rows

    @classmethod
    def none(cls) -> SpinCuts:
        ints = np.zeros(0, dtype=np.int64)
        return cls(np.zeros(1, dtype=np.int64), ints, ints, np.zeros(0), np.zeros(0))

    @classmethod
    def of_entries(cls, ptr: Ints, column: Ints, positive: Bools, upper: Floats, code: Floats) -> SpinCuts:
        """Build rows from their columns and signs in any order."""
        owner = np.repeat(np.arange(len(upper)), np.diff(ptr))
        order = np.lexsort((~positive, owner))
        middle = ptr[:-1] + np.bincount(owner[positive], minlength=len(upper))
        return cls(ptr, middle, column[order], upper, code)

    @property
    def n(self) -> int:
        return len(self.upper)

    @property
    def size(self) -> Ints:
        return np.diff(self.ptr)

    def plus(self, other: SpinCuts) -> SpinCuts:
        shift = self.ptr[-1]
        return SpinCuts(
            np.concatenate([self.ptr, other.ptr[1:] + shift]),
            np.concatenate([self.middle, other.middle + shift]),
            np.concatenate([self.column, other.column]),
            np.concatenate([self.upper, other.upper]),
            np.concatenate([self.code, other.code]),
        )

    def only(self, kept: Bools) -> SpinCuts:
        size, start = self.size[kept], self.ptr[:-1][kept]
        ptr = offsets(size)
        middle = ptr[:-1] + self.middle[kept] - start
        return SpinCuts(ptr, middle, self.column[ranges(start, size)], self.upper[kept], self.code[kept])

    def new(self, known: SpinCuts) -> SpinCuts:
        return self.only(~np.isin(self.code, known.code))

    def matrix(self, n_columns: int) -> SparseMatrix:
        owner = np.repeat(np.arange(self.n), self.size)
        entries = np.where(np.arange(len(self.column)) < self.middle[owner], 1.0, -1.0)
        return SparseMatrix(entries, short(self.column), short(self.ptr), n_columns)


# -- Rows of whole factors in products of spins: no configuration of a factor has a negative weight -------------------
# A block is a factor of k binary variables. Its entries 1 to 2^k - 1 are the columns of the products of subsets of
# its spins, encoded by one bit per variable; entry 0 is the constant 1. The Walsh transform of these values is 2^k
# times the weight of every configuration, and all rows of a block together have the norm of that transform,
# 2^(k/2).


MOST_CONFIGS = 64  # configurations of the largest factor, which has as many rows and 63 columns


class FactorBlocks(NamedTuple):
    ptr: Ints  # offsets of the concatenated blocks
    column: Ints
    forbidden: Bools  # configurations of weight 0, whose multipliers may have any sign


@bare
def to_weights(values: Floats, size: int) -> None:
    """Transform products of spins to 2^k times the weights of configurations, in place."""
    half = 1
    while half < size:
        for start in range(0, size, 2 * half):
            for q in range(start, start + half):
                low, high = values[q], values[q + half]
                values[q], values[q + half] = low - high, low + high
        half *= 2


@bare
def to_products(values: Floats, size: int) -> None:
    """Transform values per configuration to sums per product, the transpose of `to_weights`, in place."""
    half = 1
    while half < size:
        for start in range(0, size, 2 * half):
            for q in range(start, start + half):
                low, high = values[q], values[q + half]
                values[q], values[q + half] = low + high, high - low
        half *= 2


@compiled
def move_blocks(
    share: float, weight: float, blocks: FactorBlocks, y: Floats, y_anchor: Floats, ahead: Floats, push: Floats
) -> float:
    """Take the dual half of an iteration for the rows of factors; return the squared length of the step."""
    ptr, column, forbidden = blocks
    total, values = 0.0, np.empty(MOST_CONFIGS)
    for b in range(len(ptr) - 1):
        at, size = ptr[b], ptr[b + 1] - ptr[b]
        step = 1.0 / (size * weight)
        values[0] = 1.0
        for m in range(1, size):
            values[m] = ahead[column[at + m]]
        to_weights(values, size)
        moved = 0.0
        for t in range(size):
            q = at + t
            after = y[q] - step * values[t]
            if after < 0.0 and not forbidden[q]:
                after = 0.0
            change = after - y[q]
            y[q] = share * (y[q] + 2.0 * change) + (1.0 - share) * y_anchor[q]
            values[t] = change
            moved += change * change
        if moved > 0.0:
            total += moved / step
            to_products(values, size)
            for m in range(1, size):
                push[column[at + m]] -= values[m]
    return total


@compiled
def project_blocks(blocks: FactorBlocks, y: Floats, pushed: Floats) -> float:
    """Project multipliers onto their bounds, add A' y to `pushed`, and return their contribution to the bound."""
    ptr, column, forbidden = blocks
    bound, values = 0.0, np.empty(MOST_CONFIGS)
    for b in range(len(ptr) - 1):
        at, size = ptr[b], ptr[b + 1] - ptr[b]
        for t in range(size):
            if y[at + t] < 0.0 and not forbidden[at + t]:
                y[at + t] = 0.0
            values[t] = y[at + t]
            bound += y[at + t]
        to_products(values, size)
        for m in range(1, size):
            pushed[column[at + m]] -= values[m]
    return bound


# -- A binary model as a polynomial in spins, with a column for every product of spins that share a factor ------------
# Factors that share two or more variables agree on their product, which the local polytope does not enforce.


def has_products(problem: Problem) -> bool:
    """Return whether all variables are binary, and all factors small enough for a column per product."""
    # maximum number of configurations over all factors for which a model is written in products
    few = sum(batch.n * batch.n_configs for batch in problem.batches) <= 4_000_000
    small = few and all(batch.n_configs <= MOST_CONFIGS for batch in problem.batches)
    return small and len(problem.batches) > 0 and problem.only_binary


@dataclass(frozen=True)
class ProductForm:
    """Maximise constant + scale cost z; z are the n spins s = 2 x - 1, followed by products of two or more spins.

    The rows are those of whole factors, or those of pairs that a compact program has.
    """

    # constant, scale: conversion from an objective to a log potential
    constant: float
    scale: float
    cost: Floats  # costs of the columns; a typical one is 1
    n_spins: int
    member: Ints  # (n_columns, largest arity): the spins of every column, ascending, padded with n
    blocks: FactorBlocks  # the rows of every factor
    round_off: float  # possible error of sums over the program, in log potentials
    # first, second: the spins of the pairs with separate rows, which are the last columns
    first: Ints
    second: Ints

    @classmethod
    def of_pairs(cls, compact: Compact) -> ProductForm:
        """Substitute x = (1 + s) / 2 and y = (1 + s_i + s_j + d) / 4, where d = s_i s_j."""
        n, program, first, second = compact.n, compact.program, compact.first, compact.second
        linear, coupling = program.cost[:n], program.cost[n:]
        around = np.bincount(first, coupling, n) + np.bincount(second, coupling, n)
        constant = program.value(float(linear.sum() / 2 + coupling.sum() / 4))
        cost = np.concatenate([linear / 2 + around / 4, coupling / 4])
        alone = np.stack([np.arange(n), np.full(n, n)], axis=1)
        member = np.concatenate([alone, np.stack([first, second], axis=1)])
        blocks = FactorBlocks(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))
        return cls(constant, program.scale, cost, n, member, blocks, 4 * program.round_off, first, second)

    @classmethod
    def of(cls, problem: Problem) -> ProductForm:
        """Sum the Walsh transforms of all tables by product; forbidden entries count as the smallest allowed one."""
        n, batches = problem.n_vars, problem.batches
        unary, barred = _allowed(problem.graph.theta_v.reshape(-1, 2))
        tables = [_allowed(batch.tables(problem.graph.theta_t, slice(0, batch.n))) for batch in batches]
        parts = [_transformed(unary, 1)]
        parts += [_transformed(table, batch.arity) for (table, _), batch in zip(tables, batches, strict=True)]
        width = max(batch.arity for batch in batches)
        alone = np.full((n, width), n)
        alone[:, 0] = np.arange(n)
        members = np.concatenate([alone, *(_members(batch, width, n) for batch in batches)])
        different, number = np.unique(members, axis=0, return_inverse=True)
        order = np.argsort(np.count_nonzero(different < n, axis=1), kind="stable")  # those of fewer spins first
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        member, column = different[order], rank[number.ravel()]
        cost = np.bincount(column, np.concatenate([part[:, 1:].ravel() for part in parts]), len(member))
        constant = problem.graph.constant + sum(float(part[:, 0].sum()) for part in parts)
        size = abs(constant) + sum(float(np.abs(part).sum()) for part in parts)
        ptr = offsets(np.concatenate([np.full(batch.n, batch.n_configs) for batch in batches])).astype(np.int64)
        inside = np.ones(int(ptr[-1]), dtype=bool)
        inside[ptr[:-1]] = False
        places = np.zeros(len(inside), dtype=np.int64)
        places[inside] = column[n:]
        blocks = FactorBlocks(ptr, places, np.concatenate([forbidden.ravel() for _, forbidden in tables]))
        typical = np.abs(cost[n:])
        typical = typical[typical > 1e-12 * size / len(cost)]
        scale = float(np.median(typical)) if len(typical) else 1.0
        round_off, none = 64 * float(np.finfo(float).eps) * size, np.zeros(0, dtype=np.int64)
        return cls(constant, scale, cost / scale, n, member, blocks, round_off, none, none).without(barred)

    def without(self, barred: Bools) -> ProductForm:
        """Forbid some states: their spins become blocks of one variable."""
        spins = np.flatnonzero(barred.any(axis=1))
        ptr, column, forbidden = self.blocks
        more = np.stack([np.zeros(len(spins), dtype=np.int64), spins], axis=1).ravel()
        blocks = FactorBlocks(
            np.concatenate([ptr, ptr[-1] + 2 * np.arange(1, len(spins) + 1)]),
            np.concatenate([column, more]),
            np.concatenate([forbidden, barred[spins].ravel()]),
        )
        return dataclasses.replace(self, blocks=blocks)

    def value(self, objective: float) -> float:
        return self.constant + self.scale * objective

    def objective(self, value: float) -> float:
        return (value - self.constant) / self.scale

    @cached_property
    def degree(self) -> Ints:
        """Number of spins of every column, ascending."""
        return np.asarray(np.count_nonzero(self.member < self.n_spins, axis=1), dtype=np.int64)

    @cached_property
    def pairs(self) -> Ints:
        """The columns that are products of two spins; these are ``member[pairs, :2]``."""
        return np.flatnonzero(self.degree == 2)

    @cached_property
    def splits(self) -> Ints:
        """Every product of two to four spins, and two columns, of one or two spins each, of which it is the product."""
        # (3, n): along a cycle of splits, an even number of products is -1.
        parts = [self._split(2, [0], [1])]
        parts += [self._split(3, [k], [j for j in range(3) if j != k]) for k in range(3)]
        parts += [self._split(4, [0, k], [j for j in range(1, 4) if j != k]) for k in range(1, 4)]
        return np.concatenate(parts, axis=1)

    def _split(self, degree: int, one: list[int], other: list[int]) -> Ints:
        column = np.flatnonzero(self.degree == degree)
        if len(column) == 0:
            return np.zeros((3, 0), dtype=np.int64)
        member = self.member[column]
        return np.stack([column, self._columns_of(member[:, one]), self._columns_of(member[:, other])])

    def _columns_of(self, spins: Ints) -> Ints:
        """Return the columns of spins, (n, 1), or of pairs, (n, 2)."""
        if spins.shape[1] == 1:
            return spins[:, 0].copy()
        radix = self.n_spins + 1
        known = self.member[self.pairs, 0] * radix + self.member[self.pairs, 1]
        return self.n_spins + np.searchsorted(known, spins[:, 0] * radix + spins[:, 1])

    def cut_values(self, z: Floats) -> Floats:
        """Return the cut value of each split: the probability that its parts differ."""
        return np.asarray(np.clip((1.0 - z[self.splits[0]]) / 2, 0.0, 1.0))

    def cycles(self, found: OddCycles, code: Floats) -> SpinCuts:
        """Return odd-cycle inequalities: the sum of the even splits minus that of the odd ones is at most |C| - 2."""
        upper = (np.diff(found.ptr) - 2).astype(np.float64)
        return SpinCuts.of_entries(found.ptr, self.splits[0][found.edge], found.odd == 0, upper, code)

    def missing(self, z: Floats, violation: float) -> SpinCuts:
        """Return the rows of pairs that are not in the program and are violated by a point."""
        # The program lacks lower limits on the product of a pair of positive cost, and upper limits if the cost is
        # negative.
        n, first, second = len(self.cost) - len(self.first), self.first, self.second
        up = self.cost[n:] <= 0
        sign = np.where(up, 1.0, -1.0)
        level, tilt = sign * z[n:] - 1.0, z[first] - sign * z[second]
        found = []
        for side in (1.0, -1.0):
            pairs = np.flatnonzero(level + side * tilt > violation)
            column = np.stack([n + pairs, first[pairs], second[pairs]], axis=1).ravel()
            positive = np.stack([up[pairs], np.full(len(pairs), side > 0), (side > 0) != up[pairs]], axis=1).ravel()
            # Codes of cycles are positive.
            code = -1.0 - 2.0 * pairs.astype(np.float64) - (side > 0)
            ones = np.ones(len(pairs))
            found.append(SpinCuts.of_entries(offsets(np.full(len(pairs), 3)), column, positive, ones, code))
        return found[0].plus(found[1])

    def rounded(self, z: Floats) -> Ints:
        n, (first, second) = self.n_spins, self.member[self.pairs, :2].T
        return rounded(
            np.clip(np.concatenate([(1.0 + z[:n]) / 2, (1.0 - z[self.pairs]) / 2]), 0.0, 1.0), first, second, n
        )


@dataclass(frozen=True)
class Products:
    """A product form as a 0/1 program: a column u = (1 + z) / 2 for each of z, with integer spins."""

    form: ProductForm
    program: Program  # the program, with the rows of the factors and the cuts

    @classmethod
    def of(cls, form: ProductForm, cuts: SpinCuts, lower: Floats, upper: Floats) -> Products:
        n, matrix = len(form.cost), block_matrix(form.blocks, len(form.cost))
        in_spins = cuts.matrix(n)
        # a z <= b with z = 2 u - 1 is a u <= (b + a 1) / 2.
        rows = Rows(matrix, np.full(matrix.n_rows, -np.inf), (1.0 + matrix.row_sums()) / 2)
        held = np.flatnonzero(form.blocks.forbidden)
        rows.lower[held] = rows.upper[held]
        more = Rows(in_spins, np.full(cuts.n, -np.inf), (cuts.upper + in_spins.row_sums()) / 2)
        offset, scale = form.constant - form.scale * float(form.cost.sum()), 2 * form.scale
        u = (1 + lower) / 2, (1 + upper) / 2
        return cls(form, Program(form.cost, *u, form.n_spins, rows.plus(more), offset, scale, mass=float(n)))

    def columns(self, labels: Ints) -> Floats:
        spins = np.append(2.0 * labels - 1.0, 1.0)
        return np.asarray((1.0 + spins[self.form.member].prod(axis=1)) / 2)

    def labels(self, columns: Floats) -> Ints:
        """Return the labelling of an integer point; the spins are sufficient."""
        return (columns[: self.form.n_spins] > 0.5).astype(np.int64)


def block_matrix(blocks: FactorBlocks, n_columns: int) -> SparseMatrix:
    """Return the rows of all factors, one per configuration: -sigma z <= 1, with sigma the signs of its products."""
    row, column, sign = [], [], []
    for size in np.unique(np.diff(blocks.ptr)):
        at = blocks.ptr[:-1][np.diff(blocks.ptr) == size]
        n_products = int(size) - 1
        t, m = np.arange(size)[:, None], np.arange(1, size)
        parity = np.bitwise_count(m & ~t) & 1  # number of spins in the product that are -1
        row.append(np.repeat(at[:, None] + np.arange(size), n_products))
        column.append(np.tile(blocks.column[at[:, None] + m][:, None, :], (1, int(size), 1)).ravel())
        sign.append(np.tile((2.0 * parity - 1.0).ravel(), len(at)))
    shape = (int(blocks.ptr[-1]), n_columns)
    return SparseMatrix.of_entries(np.concatenate(sign), np.concatenate(row), np.concatenate(column), shape)


def _allowed(tables: Floats) -> tuple[Floats, Bools]:
    """Replace forbidden entries by the smallest allowed one, 0 if there is none; also return the forbidden mask."""
    forbidden = np.isneginf(tables)
    if not forbidden.any():
        return tables, forbidden
    least = np.where(forbidden, np.inf, tables).min(axis=1, keepdims=True)
    return np.where(forbidden, np.where(np.isfinite(least), least, 0.0), tables), forbidden


def _transformed(tables: Floats, arity: int) -> Floats:
    """Return the coefficients of the products of every factor, (factors, 2^arity); bits of a product are its spins."""
    values = tables.reshape((len(tables),) + (2,) * arity)
    for axis in range(1, arity + 1):
        low, high = np.take(values, 0, axis), np.take(values, 1, axis)
        values = np.stack([low + high, high - low], axis) / 2
    return np.asarray(values.reshape(len(tables), 2**arity))


def _members(batch: Batch, width: int, n: int) -> Ints:
    """Return the spins of every product of the factors, ascending, padded with n: a row for each."""
    k = batch.arity
    bits = (np.arange(1, 2**k)[:, None] >> np.arange(k)[::-1]) & 1
    members = np.full((batch.n, 2**k - 1, width), n)
    members[:, :, :k] = np.where(bits == 1, batch.scope[:, None, :], n)
    members.sort(axis=2)
    return members.reshape(-1, width)
