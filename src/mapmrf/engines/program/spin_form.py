"""The compact program in spins: s = 2 x - 1 by variable, and d = s_i s_j by pair."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.engines.program.compact import Compact
from mapmrf.engines.program.odd_cycle_separation import OddCycles
from mapmrf.engines.program.program import Rows

if TYPE_CHECKING:
    from scipy.sparse import csr_array
from typing import NamedTuple

from mapmrf.compilation.jit import bare


@dataclass(frozen=True)
class SpinCuts:
    """Rows with entries 1 and -1: the sum over some columns minus that over others is at most `upper`."""

    # ptr, middle, column: Row r has 1 in ``column[ptr[r]:middle[r]]`` and -1 in ``column[middle[r]:ptr[r + 1]]``
    ptr: Ints
    middle: Ints
    column: Ints
    upper: Floats  # Its right-hand side
    code: Floats  # A number that identifies rows

    @classmethod
    def none(cls) -> SpinCuts:
        """No rows."""
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
        """Number of rows."""
        return len(self.upper)

    @property
    def size(self) -> Ints:
        """Number of entries of every row."""
        return np.diff(self.ptr)

    def plus(self, other: SpinCuts) -> SpinCuts:
        """Append other rows."""
        shift = self.ptr[-1]
        return SpinCuts(
            np.concatenate([self.ptr, other.ptr[1:] + shift]),
            np.concatenate([self.middle, other.middle + shift]),
            np.concatenate([self.column, other.column]),
            np.concatenate([self.upper, other.upper]),
            np.concatenate([self.code, other.code]),
        )

    def only(self, kept: Bools) -> SpinCuts:
        """Return a subset of the rows."""
        size, start = self.size[kept], self.ptr[:-1][kept]
        ptr = offsets(size)
        middle = ptr[:-1] + self.middle[kept] - start
        return SpinCuts(ptr, middle, self.column[ranges(start, size)], self.upper[kept], self.code[kept])

    def new(self, known: SpinCuts) -> SpinCuts:
        """Return the rows that are not among the known ones."""
        return self.only(~np.isin(self.code, known.code))

    def matrix(self, n_columns: int) -> csr_array:
        """Return the rows as a matrix."""
        from scipy import sparse

        owner = np.repeat(np.arange(self.n), self.size)
        entries = np.where(np.arange(len(self.column)) < self.middle[owner], 1.0, -1.0)
        return sparse.csr_array((entries, self.column, self.ptr), shape=(self.n, n_columns))


@dataclass(frozen=True)
class SpinForm:
    """Maximise constant + cost z, in the unit of the compact program; z are the n spins and m products of pairs."""

    compact: Compact
    constant: float
    cost: Floats

    @classmethod
    def of(cls, compact: Compact) -> SpinForm:
        """Substitute x = (1 + s) / 2 and y = (1 + s_i + s_j + d) / 4."""
        n, cost = compact.n, compact.program.cost
        linear, coupling = cost[:n], cost[n:]
        around = np.bincount(compact.first, coupling, n) + np.bincount(compact.second, coupling, n)
        constant = float(linear.sum() / 2 + coupling.sum() / 4)
        return cls(compact, constant, np.concatenate([linear / 2 + around / 4, coupling / 4]))

    @property
    def n_columns(self) -> int:
        """Number of spins and products."""
        return len(self.cost)

    @property
    def scale(self) -> float:
        """The unit of the objective, as a log potential."""
        return self.compact.program.scale

    @property
    def n_spins(self) -> int:
        """Number of spins, which are the first columns."""
        return self.compact.n

    @property
    def n_before(self) -> int:
        """Number of columns before those of the pairs."""
        return self.compact.n

    @property
    def first(self) -> Ints:
        """The first variable of every pair."""
        return self.compact.first

    @property
    def second(self) -> Ints:
        """The second variable of every pair."""
        return self.compact.second

    @property
    def blocks(self) -> FactorBlocks:
        """Empty: there are no factors of more than two variables."""
        return FactorBlocks(np.zeros(1, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=bool))

    def value(self, objective: float) -> float:
        """Convert an objective, without the constant, to a log potential."""
        return self.compact.program.value(self.constant + objective)

    def objective(self, value: float) -> float:
        """Convert a log potential to an objective, without the constant."""
        program = self.compact.program
        return (value - program.offset) / program.scale - self.constant

    def columns(self, z: Floats) -> Floats:
        """Convert a point in spins to one of the compact program."""
        n, first, second = self.compact.n, self.compact.first, self.compact.second
        spin, product = z[:n], z[n:]
        return np.concatenate([(1 + spin) / 2, (1 + spin[first] + spin[second] + product) / 4])

    def rows(self, cuts: SpinCuts) -> Rows:
        """Convert cuts to rows of the compact program."""
        from scipy import sparse

        n, m = self.compact.n, len(self.compact.first)
        pairs = np.arange(m)
        # s = 2 x - 1 and d = 1 - 2 x_i - 2 x_j + 4 y, both divided by 4.
        row = np.concatenate([np.arange(n), n + pairs, n + pairs, n + pairs])
        column = np.concatenate([np.arange(n), self.compact.first, self.compact.second, n + pairs])
        entries = np.repeat([0.5, -0.5, -0.5, 1.0], [n, m, m, m])
        by_columns = sparse.csr_array((entries, (row, column)), shape=(n + m, n + m))
        at_zero = np.repeat([-1.0, 1.0], [n, m])
        in_spins = cuts.matrix(n + m)
        matrix = (in_spins @ by_columns).tocsr()
        matrix.eliminate_zeros()
        return Rows(matrix, np.full(cuts.n, -np.inf), (cuts.upper - in_spins @ at_zero) / 4)

    def cycles(self, found: OddCycles, code: Floats) -> SpinCuts:
        """Return odd-cycle inequalities: the sum of the even pairs minus that of the odd ones is at most |C| - 2."""
        size = np.diff(found.ptr)
        column = self.compact.n + found.edge.astype(np.int64)
        return SpinCuts.of_entries(found.ptr, column, found.odd == 0, (size - 2).astype(np.float64), code)

    def missing(self, z: Floats, violation: float) -> SpinCuts:
        """Return the rows of pairs that are not in the program and are violated by a point.

        The program lacks lower limits on the product of a pair of positive cost, and upper limits if the cost is
        negative.
        """
        n, first, second = self.compact.n, self.compact.first, self.compact.second
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


# -- Rows of whole factors in products of spins: no configuration of a factor has a negative weight -------------------
# A block is a factor of k binary variables. Its entries 1 to 2^k - 1 are the columns of the products of subsets of
# its spins, encoded by one bit per variable; entry 0 is the constant 1. The Walsh transform of these values is 2^k
# times the weight of every configuration, and all rows of a block together have the norm of that transform,
# 2^(k/2).


class FactorBlocks(NamedTuple):
    """Concatenated blocks: their offsets, their columns, and which configurations are forbidden.

    The weight of a forbidden configuration is 0, so that its multiplier may have any sign.
    """

    ptr: Ints
    column: Ints
    forbidden: Bools


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


@bare
def move_blocks(
    share: float,
    weight: float,
    blocks: FactorBlocks,
    y: Floats,
    y_anchor: Floats,
    ahead: Floats,
    push: Floats,
    values: Floats,
) -> float:
    """Take the dual half of an iteration for the rows of factors; return the squared length of the step."""
    ptr, column, forbidden = blocks
    total = 0.0
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


@bare
def settle_blocks(blocks: FactorBlocks, y: Floats, pushed: Floats, values: Floats) -> float:
    """Project multipliers onto their bounds, add A' y to `pushed`, and return their contribution to the bound."""
    ptr, column, forbidden = blocks
    bound = 0.0
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
