"""Constraints in a cost network: rules over the states of variables, without a table.

A rule refers to its variables by *links*; a link has a number for every state of its variable, its gain. The condition
on the gains depends on the kind of the rule. A violated rule has a cost, and a rule may have *prices*: multiples of a
gain that were moved from the rule to the unary costs. A sum of at most `most`, with a non-negative price, costs ``price
* (most - sum)`` instead of nothing. That is never negative unless the rule is violated, and a price is never high
enough to compensate for the violation. All prices live in `cell`, so that the trail restores them.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.records import Records

WAITING, STALE = 1, 2
"""Reasons why a rule is queued: a variable lost states; costs of a variable changed."""


class ConstraintRecord:
    """Record of a rule."""

    kind: int  # a `ConstraintKind`
    # its links
    first: int
    end: int
    # limits on the sum of gains; the rule is certainly satisfied at this distance from both. The parity of XOR is
    # `least`.
    least: int
    most: int
    slack: int
    # the limits as real numbers, for the original weights
    smallest: float
    largest: float
    penalty: int  # the cost of a violation, `HARD` if it is forbidden
    # limits on its price
    lowest: int
    highest: int
    # the cell that is 1 once the rule is decided, and the number of prices, in the cells after it
    at: int
    n_prices: int
    reasons: int  # reasons why it is queued: a sum of `WAITING` and `STALE`


class LinkRecord:
    """The variable of a link, and where its gains and weights start."""

    variable: int
    gains: int


class ConstraintRoom(NamedTuple):
    """Queues and scratch."""

    # (n_rules,): rules queued for either reason, as stacks
    waiting: Ints
    stale: Ints
    # (most states + 1,): number of variables that may take a state, or whether a search has reached it; the link
    # assigned to it
    takers: Ints
    owner: Ints
    # (most states + 1,): prices, minimum reduced costs and predecessors of an assignment
    price: Ints
    least: Ints
    back: Ints


class ConstraintNetwork(NamedTuple):
    """All rules."""

    # a `ConstraintRecord`, `LinkRecord` of each
    rules: Records
    links: Records
    # for every link and state, its contribution to the sum: an integer, and the original weight. Bit 1 of a gain means
    # that an input of OR is 1, bit 2 that the output is.
    gains: Ints
    weights: Floats
    of_variable: Ints  # the rules of every variable
    room: ConstraintRoom  # queues and scratch
