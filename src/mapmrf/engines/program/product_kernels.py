"""Rows of whole factors in products of spins: no configuration of a factor has a negative weight.

A block is a factor of k binary variables. Its entries 1 to 2^k - 1 are the columns of the products of subsets of its
spins, encoded by one bit per variable; entry 0 is the constant 1. The Walsh transform of these values is 2^k times the
weight of every configuration, and all rows of a block together have the norm of that transform, 2^(k/2).
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare


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
