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
    """Record of a rule.

    Attributes
    ----------
    kind
        A `ConstraintKind`.
    first, end
        Its links.
    least, most, slack
        Limits on the sum of gains; the rule is certainly satisfied at this distance from both. The parity of XOR is
        `least`.
    smallest, largest
        The limits as real numbers, for the original weights.
    penalty
        The cost of a violation, `HARD` if it is forbidden.
    lowest, highest
        Limits on its price.
    at, n_prices
        The cell that is 1 once the rule is decided, and the number of prices, in the cells after it.
    reasons
        Reasons why it is queued: a sum of `WAITING` and `STALE`.
    """

    kind: int
    first: int
    end: int
    least: int
    most: int
    slack: int
    smallest: float
    largest: float
    penalty: int
    lowest: int
    highest: int
    at: int
    n_prices: int
    reasons: int


class LinkRecord:
    """The variable of a link, and where its gains and weights start."""

    variable: int
    gains: int


class ConstraintRoom(NamedTuple):
    """Queues and scratch.

    Attributes
    ----------
    waiting, stale : (n_rules,)
        Rules queued for either reason, as stacks.
    takers, owner : (most states + 1,)
        Number of variables that may take a state, or whether a search has reached it; the link assigned to it.
    price, least, back : (most states + 1,)
        Prices, minimum reduced costs and predecessors of an assignment.
    """

    waiting: Ints
    stale: Ints
    takers: Ints
    owner: Ints
    price: Ints
    least: Ints
    back: Ints


class ConstraintNetwork(NamedTuple):
    """All rules.

    Attributes
    ----------
    rules, links
        A `ConstraintRecord`, `LinkRecord` of each.
    gains, weights
        For every link and state, its contribution to the sum: an integer, and the original weight. Bit 1 of a gain
        means that an input of OR is 1, bit 2 that the output is.
    of_variable
        The rules of every variable.
    room
        Queues and scratch.
    """

    rules: Records
    links: Records
    gains: Ints
    weights: Floats
    of_variable: Ints
    room: ConstraintRoom
