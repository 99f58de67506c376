"""Constraints in a cost network: rules over the states of variables, without a table.

A rule speaks of its variables by *links*; a link has a number for every state of its variable, its gain. What a rule
demands of the gains depends on its kind. A rule has a cost if it is violated, and may have *prices*: multiples of a
gain that were moved from the rule to the costs of states. A sum that may be at most `most` with a price of at least 0
costs ``price * (most - sum)`` in place of nothing. That is never negative, unless the rule is violated, and a price is
never so high that it makes up for the violation. All prices live in `cell`, so that the trail restores them.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.records import Records

WAITING, STALE = 1, 2
"""Why a rule waits: a variable lost states; costs of a variable changed."""


class RuleRecord:
    """What is known of a rule.

    Attributes
    ----------
    kind
        A `ConstraintKind`.
    first, end
        Its links.
    least, most, slack
        Limits of the sum of gains; the sum satisfies the rule for certain if it keeps this distance from both. The
        parity of XOR is `least`.
    smallest, largest
        The limits as real numbers, for the weights as they are.
    penalty
        The cost of a violation, `HARD` if it is forbidden.
    lowest, highest
        Limits of its price.
    at, n_prices
        The cell that is 1 once the rule is decided, and the number of prices, in the cells after it.
    reasons
        Why it waits: a sum of `WAITING` and `STALE`.
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
    """The variable of a link, and where its gains and weights begin."""

    variable: int
    gains: int


class RuleRoom(NamedTuple):
    """Queues and scratch.

    Attributes
    ----------
    waiting, stale : (n_rules,)
        Rules that wait for either reason, as stacks.
    takers, owner : (most states + 1,)
        How many variables may have a state, or whether a search has reached it; the link that has it.
    price, least, back : (most states + 1,)
        Prices, least reduced costs and the way back of an assignment.
    """

    waiting: Ints
    stale: Ints
    takers: Ints
    owner: Ints
    price: Ints
    least: Ints
    back: Ints


class RuleNetwork(NamedTuple):
    """All rules.

    Attributes
    ----------
    rules, links
        A `RuleRecord`, `LinkRecord` of each.
    gains, weights
        For every link and state, what the state adds to the sum: a whole number, and the weight itself. Bit 1 of a
        gain says that an input of OR is 1, bit 2 that the output is.
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
    room: RuleRoom
