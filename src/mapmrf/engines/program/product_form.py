"""A binary model as a polynomial in spins, with a column for every product of spins that share a factor.

Factors that share two or more variables agree on their product, which the local polytope does not enforce.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.program.odd_cycle_separation import OddCycles, round_by_tree
from mapmrf.engines.program.program import Program, Rows
from mapmrf.engines.program.spin_form import FactorBlocks, SpinCuts
from mapmrf.model.problem import Batch, Problem

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MAX_ARITY = 6
"""Maximum number of variables of a factor, which has a row for each of its 64 configurations, and 63 columns."""

MAX_PLACES = 4_000_000
"""Maximum number of configurations over all factors for which a model is written in products."""


def has_products(problem: Problem) -> bool:
    """Return whether all variables are binary, and all factors small enough for a column per product."""
    sizes = [(batch.arity, batch.n * batch.n_configs) for batch in problem.batches]
    small = all(arity <= MAX_ARITY for arity, _ in sizes) and sum(places for _, places in sizes) <= MAX_PLACES
    return small and len(sizes) > 0 and problem.only_binary


class Splits(NamedTuple):
    """Columns that are products of two others: along a cycle of splits, an even number of them is -1."""

    column: Ints
    one: Ints
    other: Ints


@dataclass(frozen=True)
class ProductForm:
    """Maximise constant + scale cost z; z are the n spins s = 2 x - 1, followed by products of two or more spins."""

    # constant, scale: Conversion from an objective to a log potential
    constant: float
    scale: float
    cost: Floats  # Costs of the columns; a typical one is 1
    n_spins: int
    member: Ints  # (n_columns, largest arity): The spins of every column, ascending, padded with n
    blocks: FactorBlocks  # The rows of every factor
    round_off: float  # Possible error of sums over the program, in log potentials

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
        member, column = _numbered(members, n)
        cost = np.bincount(column, np.concatenate([part[:, 1:].ravel() for part in parts]), len(member))
        constant = problem.graph.constant + sum(float(part[:, 0].sum()) for part in parts)
        size = abs(constant) + sum(float(np.abs(part).sum()) for part in parts)
        blocks = _blocks(batches, column[n:], [of for _, of in tables])
        typical = np.abs(cost[n:])
        typical = typical[typical > 1e-12 * size / len(cost)]
        scale = float(np.median(typical)) if len(typical) else 1.0
        form = cls(constant, scale, cost / scale, n, member, blocks, 64 * float(np.finfo(float).eps) * size)
        return form.without(barred)

    def without(self, barred: Bools) -> ProductForm:
        """Return the same with some states forbidden: their spins become blocks of one variable."""
        spins = np.flatnonzero(barred.any(axis=1))
        ptr, column, forbidden = self.blocks
        more = np.stack([np.zeros(len(spins), dtype=np.int64), spins], axis=1).ravel()
        blocks = FactorBlocks(
            np.concatenate([ptr, ptr[-1] + 2 * np.arange(1, len(spins) + 1)]),
            np.concatenate([column, more]),
            np.concatenate([forbidden, barred[spins].ravel()]),
        )
        return ProductForm(self.constant, self.scale, self.cost, self.n_spins, self.member, blocks, self.round_off)

    # -- interface of the first-order solver --------------------------------------------------------------------------

    @property
    def n_columns(self) -> int:
        """Number of spins and products."""
        return len(self.cost)

    @property
    def n_before(self) -> int:
        """Number of columns before those of pairs with separate rows: all of them."""
        return len(self.cost)

    @property
    def first(self) -> Ints:
        """Empty: there are no pairs with separate rows."""
        return np.zeros(0, dtype=np.int64)

    @property
    def second(self) -> Ints:
        """Empty: there are no pairs with separate rows."""
        return np.zeros(0, dtype=np.int64)

    def value(self, objective: float) -> float:
        """Convert an objective, without the constant, to a log potential."""
        return self.constant + self.scale * objective

    def objective(self, value: float) -> float:
        """Convert a log potential to an objective, without the constant."""
        return (value - self.constant) / self.scale

    # -- cycles -------------------------------------------------------------------------------------------------------

    @cached_property
    def degree(self) -> Ints:
        """Number of spins of every column, ascending."""
        return np.asarray(np.count_nonzero(self.member < self.n_spins, axis=1), dtype=np.int64)

    @cached_property
    def pairs(self) -> Ints:
        """The columns that are products of two spins; these are ``member[pairs, :2]``."""
        return np.flatnonzero(self.degree == 2)

    @cached_property
    def splits(self) -> Splits:
        """Every product of two to four spins as a product of two columns, of one or two spins each."""
        parts = [self._split(2, [0], [1])]
        parts += [self._split(3, [k], [j for j in range(3) if j != k]) for k in range(3)]
        parts += [self._split(4, [0, k], [j for j in range(1, 4) if j != k]) for k in range(1, 4)]
        return Splits(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    def _split(self, degree: int, one: list[int], other: list[int]) -> Splits:
        """Split the products of `degree` spins into these two parts."""
        column = np.flatnonzero(self.degree == degree)
        if len(column) == 0:
            return Splits(column, column, column)
        member = self.member[column]
        return Splits(column, self._columns_of(member[:, one]), self._columns_of(member[:, other]))

    def _columns_of(self, spins: Ints) -> Ints:
        """Return the columns of spins, (n, 1), or of pairs, (n, 2)."""
        if spins.shape[1] == 1:
            return spins[:, 0].copy()
        radix = self.n_spins + 1
        known = self.member[self.pairs, 0] * radix + self.member[self.pairs, 1]
        return self.n_spins + np.searchsorted(known, spins[:, 0] * radix + spins[:, 1])

    def cut(self, z: Floats) -> Floats:
        """Return the cut value of each split: the probability that its parts differ."""
        return np.clip((1.0 - z[self.splits.column]) / 2, 0.0, 1.0)

    def cycles(self, found: OddCycles, code: Floats) -> SpinCuts:
        """Return odd-cycle inequalities: the sum of the even splits minus that of the odd ones is at most |C| - 2."""
        upper = (np.diff(found.ptr) - 2).astype(np.float64)
        return SpinCuts.of_entries(found.ptr, self.splits.column[found.edge], found.odd == 0, upper, code)

    def rounded(self, z: Floats) -> Ints:
        """Round a point to a labelling, along a tree of the pairs whose cut values are closest to 0 or 1."""
        n = self.n_spins
        cut = np.clip(np.concatenate([(1.0 + z[:n]) / 2, (1.0 - z[self.pairs]) / 2]), 0.0, 1.0)
        node1 = np.concatenate([np.arange(n), self.member[self.pairs, 0]])
        node2 = np.concatenate([np.full(n, n), self.member[self.pairs, 1]])
        order = np.argsort(-np.round(np.abs(cut - 0.5), 9), kind="stable")
        labels, nodes = np.zeros(n, dtype=np.int64), np.zeros(n + 1, dtype=np.int64)
        round_by_tree(order, node1, node2, cut, nodes, nodes.copy(), labels)
        return labels


@dataclass(frozen=True)
class Products:
    """A product form as a 0/1 program: a column u = (1 + z) / 2 for each of z, with integer spins."""

    form: ProductForm  # The product form
    program: Program  # The program, with the rows of the factors and the cuts

    @classmethod
    def of(cls, form: ProductForm, cuts: SpinCuts, lower: Floats, upper: Floats) -> Products:
        """Build the program with some cuts, over columns z within bounds."""
        n, matrix = form.n_columns, block_matrix(form.blocks, form.n_columns)
        in_spins = cuts.matrix(n)
        # a z <= b with z = 2 u - 1 is a u <= (b + a 1) / 2.
        rows = Rows(matrix, np.full(matrix.shape[0], -np.inf), (1.0 + matrix.sum(axis=1)) / 2)
        held = np.flatnonzero(form.blocks.forbidden)
        rows.lower[held] = rows.upper[held]
        more = Rows(in_spins, np.full(cuts.n, -np.inf), (cuts.upper + in_spins.sum(axis=1)) / 2)
        offset, scale = form.constant - form.scale * float(form.cost.sum()), 2 * form.scale
        u = (1 + lower) / 2, (1 + upper) / 2
        return cls(form, Program(form.cost, *u, form.n_spins, rows.plus(more), offset, scale, mass=float(n)))

    def columns(self, labels: Ints) -> Floats:
        """Return the point that represents a labelling."""
        spins = np.append(2.0 * labels - 1.0, 1.0)
        return np.asarray((1.0 + spins[self.form.member].prod(axis=1)) / 2)

    def labels(self, columns: Floats) -> Ints:
        """Return the labelling of an integer point; the spins are sufficient."""
        return (columns[: self.form.n_spins] > 0.5).astype(np.int64)


def block_matrix(blocks: FactorBlocks, n_columns: int) -> csr_array:
    """Return the rows of all factors, one per configuration: -sigma z <= 1, with sigma the signs of its products."""
    from scipy import sparse

    row, column, sign = [], [], []
    for size in np.unique(np.diff(blocks.ptr)):
        at = blocks.ptr[:-1][np.diff(blocks.ptr) == size]
        n_products = int(size) - 1
        t, m = np.arange(size)[:, None], np.arange(1, size)
        parity = np.bitwise_count(m & ~t) & 1  # number of spins in the product that are -1
        row.append(np.repeat(at[:, None] + np.arange(size), n_products))
        column.append(np.tile(blocks.column[at[:, None] + m][:, None, :], (1, int(size), 1)).ravel())
        sign.append(np.tile((2.0 * parity - 1.0).ravel(), len(at)))
    entries = np.concatenate(sign), (np.concatenate(row), np.concatenate(column))
    return sparse.csr_array(entries, shape=(int(blocks.ptr[-1]), n_columns))


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


def _numbered(members: Ints, n: int) -> tuple[Ints, Ints]:
    """Return the distinct products, those of fewer spins first, and the index of each of the given ones."""
    different, number = np.unique(members, axis=0, return_inverse=True)
    order = np.argsort(np.count_nonzero(different < n, axis=1), kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return different[order], rank[number.ravel()]


def _blocks(batches: tuple[Batch, ...] | list[Batch], column: Ints, forbidden: list[Bools]) -> FactorBlocks:
    """Build the blocks of all factors; `column` holds the columns of their products."""
    ptr = offsets(np.concatenate([np.full(batch.n, batch.n_configs) for batch in batches])).astype(np.int64)
    inside = np.ones(int(ptr[-1]), dtype=bool)
    inside[ptr[:-1]] = False
    places = np.zeros(len(inside), dtype=np.int64)
    places[inside] = column
    return FactorBlocks(ptr, places, np.concatenate([part.ravel() for part in forbidden]))
