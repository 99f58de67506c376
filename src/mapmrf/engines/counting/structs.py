"""Data structures of the kernels for counting factors."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints


class CountingKind(IntEnum):
    """Kind of a counting factor.

    ROW
        ``lower <= sum of weights of what is on <= upper``; with a finite penalty there is no lower side.
    PARITY
        The number of groups that are on is odd (`lower` 1) or even (`lower` 0).
    FAN
        No group is on unless the last one is.
    COST
        No group is on.
    """

    ROW = 0
    PARITY = 1
    FAN = 2
    COST = 3


class CountingFactors(NamedTuple):
    """Factors over groups of items: an item is a state of a variable, a group has items of one variable.

    Attributes
    ----------
    kind, lower, upper, penalty : (n_factors,)
        A `CountingKind`, its limits, and the cost of a violation; inf if it is forbidden.
    group_ptr : (n_factors + 1,)
        Offsets of the factors' groups.
    item_ptr : (n_groups + 1,)
        Offsets of the groups' items.
    complete : (n_groups,)
        Whether exactly one item of the group is on; at most one otherwise.
    weight : (n_items,)
        Weights of the items of rows; in a row with a penalty those of a group are equal.
    """

    kind: Ints
    lower: Floats
    upper: Floats
    penalty: Floats
    group_ptr: Ints
    item_ptr: Ints
    complete: Bools
    weight: Floats
