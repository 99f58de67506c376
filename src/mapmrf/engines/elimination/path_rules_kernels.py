"""Constraints in a depth-first search: counters along the paths of a bucket tree, and excluded states.

The variables of a rule lie on one path from a root down, and are labelled in this order. The state of a rule after each
of them is stored per variable, its *link*, so that most of it need not be undone; used and excluded states have a
trail. A rule changes the bound of a label by the decrease of its best outcome: the sum along a path is the value of the
rule.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.compilation.records import Records

SUM, LOGIC, DIFFERENT = 0, 1, 2
"""Kinds of rules: a sum between limits; two bits that the states change; variables whose states differ."""


class PathRule:
    """Record of a rule.

    Attributes
    ----------
    kind
        SUM, LOGIC or DIFFERENT.
    toggles
        Whether a state flips the bits of LOGIC (1), or sets them (0).
    least, most, penalty
        Limits of the sum, and what a violation costs; inf if it is forbidden.
    price
        What a unit of the sum has been taken from the unary potentials for.
    root
        What the rule is worth at best.
    at, n_states, n_links
        Of DIFFERENT: where its states begin in `used`, their number, and the number of its variables.
    guards
        Whether states that are taken are excluded elsewhere: a hard DIFFERENT.
    """

    kind: int
    toggles: int
    least: float
    most: float
    penalty: float
    price: float
    root: float
    at: int
    n_states: int
    n_links: int
    guards: int


class PathLink:
    """A variable of a rule.

    Attributes
    ----------
    rule, place
        The rule, and the variable's place on the path.
    before
        The link before it; -1 if it is the first.
    gains
        Where its gains begin.
    worth
        Of LOGIC: where the worth of the bits after it begins.
    low, high
        Of SUM: the least and the largest sum of the links to come.
    """

    rule: int
    place: int
    before: int
    gains: int
    worth: int
    low: float
    high: float


class PathRules(NamedTuple):
    """The rules of a search.

    Attributes
    ----------
    rules, links
        A `PathRule` and `PathLink` of each.
    link_ptr : (n + 2,)
        The links of every node.
    gain, bonus
        By link and state: what the state adds to the sum, or does to the bits; what it has been paid for by LOGIC.
    worth
        By link of LOGIC and bits: what is to be had at best from there on.
    member_ptr, member
        The nodes of every rule, in the order of the path.
    state_price, ranked
        By DIFFERENT and state: what the state has been paid for, and its states by falling price.
    rule_of
        By DIFFERENT and state: the rule.
    guarded : (n + 1,)
        Which nodes are in a hard DIFFERENT.
    state_ptr, node_of
        Where the states of every node begin, and the node of every state.
    """

    rules: Records
    links: Records
    link_ptr: Ints
    gain: Floats
    bonus: Floats
    worth: Floats
    member_ptr: Ints
    member: Ints
    state_price: Floats
    ranked: Ints
    rule_of: Ints
    guarded: Bools
    state_ptr: Ints
    node_of: Ints


class PathTally:
    """Heights of the trail and of the queue, and whether a rule cannot be satisfied any more."""

    height: int
    queued: int
    failed: int


class PathMarks(NamedTuple):
    """State of the rules at a point of the search.

    Attributes
    ----------
    total, bits : (n_links,)
        Sum and bits after each link.
    used, holders
        By DIFFERENT and state: the variables that have it, and those that may have it.
    repeats : (n_rules,)
        Variables with a state that another one has.
    alive, left
        Which states are not excluded, and how many of each node.
    trail, trail_at
        The states excluded, and the height of the trail before the label of each node.
    held : (n + 1,)
        The label that a node has, -1 if none.
    queue
        What is to be looked at: nodes with one state left, and states (after all nodes) with one holder left.
    tally
        Heights.
    """

    total: Floats
    bits: Ints
    used: Ints
    holders: Ints
    repeats: Ints
    alive: Bools
    left: Ints
    trail: Ints
    trail_at: Ints
    held: Ints
    queue: Ints
    tally: PathTally


@inlined
def best_sum(low: float, high: float, rule: PathRule) -> tuple[float, float]:
    """Return the best value of a sum in [low, high], at the rule's price and with its penalty, and that sum."""
    price, value, at = rule.price, -np.inf, low
    first, last = max(low, rule.least), min(high, rule.most)
    if first <= last:
        at = last if price > 0.0 else first
        value = price * at
    if rule.penalty < np.inf:
        if low < rule.least:
            other = min(high, rule.least) if price > 0.0 else low
            if price * other - rule.penalty > value:
                value, at = price * other - rule.penalty, other
        if high > rule.most:
            other = high if price > 0.0 else max(low, rule.most)
            if price * other - rule.penalty > value:
                value, at = price * other - rule.penalty, other
    return value, at


@bare
def add_worths(a: int, rules: PathRules, marks: PathMarks, own: Floats) -> None:
    """Subtract the loss of the rules for each label of node `a`."""
    at_v = rules.state_ptr[a]
    n_k = rules.state_ptr[a + 1] - at_v
    for m in range(rules.link_ptr[a], rules.link_ptr[a + 1]):
        link = rules.links[m]
        rule = rules.rules[link.rule]
        if rule.kind == SUM:
            _add_sums(m, n_k, rules, marks, own[at_v:])
        elif rule.kind == LOGIC:
            bits = marks.bits[link.before] if link.before >= 0 else 0
            now = rules.worth[rules.links[link.before].worth + bits] if link.before >= 0 else rule.root
            for k in range(n_k):
                after = _bits_after(m, k, bits, rules)
                own[at_v + k] += rules.bonus[link.gains + k] + rules.worth[link.worth + after] - now
        elif rule.guards == 1:
            dear = _dearest(m, rules, marks)
            for k in range(n_k):
                own[at_v + k] += min(0.0, rules.state_price[rule.at + k] - dear)
        elif marks.repeats[link.rule] == 0:
            for k in range(n_k):
                if marks.used[rule.at + k] > 0:
                    own[at_v + k] -= rule.penalty
    if rules.guarded[a]:
        for k in range(n_k):
            if not marks.alive[at_v + k]:
                own[at_v + k] = -np.inf


@inlined
def _add_sums(m: int, n_k: int, rules: PathRules, marks: PathMarks, own: Floats) -> None:
    """SUM: the interval of sums that are left shrinks."""
    link = rules.links[m]
    rule = rules.rules[link.rule]
    total, now = 0.0, rule.root
    if link.before >= 0:
        before = rules.links[link.before]
        total = marks.total[link.before]
        now = best_sum(total + before.low, total + before.high, rule)[0]
    for k in range(n_k):
        after = total + rules.gain[link.gains + k]
        own[k] += best_sum(after + link.low, after + link.high, rule)[0] - now


@inlined
def _bits_after(m: int, k: int, bits: int, rules: PathRules) -> int:
    """LOGIC: the bits after a state."""
    link = rules.links[m]
    effect = int(rules.gain[link.gains + k])
    return bits ^ effect if rules.rules[link.rule].toggles == 1 else bits | effect


@inlined
def _dearest(m: int, rules: PathRules, marks: PathMarks) -> float:
    """DIFFERENT: the lowest of the highest prices of unused states, one for each variable that is left."""
    link = rules.links[m]
    rule = rules.rules[link.rule]
    wanted = rule.n_links - link.place
    for r in range(rule.n_states):
        k = rules.ranked[rule.at + r]
        wanted -= marks.used[rule.at + k] == 0
        if wanted == 0:
            return float(rules.state_price[rule.at + k])
    return np.inf


@bare
def take_label(a: int, k: int, rules: PathRules, marks: PathMarks) -> bool:
    """Give node `a` the label `k`: rules count, and exclude states. False if one cannot be satisfied any more."""
    tally = marks.tally
    marks.held[a], marks.trail_at[a] = k, tally.height
    for m in range(rules.link_ptr[a], rules.link_ptr[a + 1]):
        link = rules.links[m]
        rule = rules.rules[link.rule]
        if rule.kind == SUM:
            before = marks.total[link.before] if link.before >= 0 else 0.0
            marks.total[m] = before + rules.gain[link.gains + k]
        elif rule.kind == LOGIC:
            marks.bits[m] = _bits_after(m, k, marks.bits[link.before] if link.before >= 0 else 0, rules)
        else:
            marks.repeats[link.rule] += marks.used[rule.at + k] > 0
            marks.used[rule.at + k] += 1
    if not rules.guarded[a]:
        return True
    _keep_only(a, k, rules, marks)
    return settle(rules, marks)


@bare
def drop_label(a: int, rules: PathRules, marks: PathMarks) -> None:
    """Take the label of node `a` back, if it has one."""
    k = marks.held[a]
    if k < 0:
        return
    marks.held[a] = -1
    for m in range(rules.link_ptr[a], rules.link_ptr[a + 1]):
        c = rules.links[m].rule
        if rules.rules[c].kind == DIFFERENT:
            marks.used[rules.rules[c].at + k] -= 1
            marks.repeats[c] -= marks.used[rules.rules[c].at + k] > 0
    while marks.tally.height > marks.trail_at[a]:
        marks.tally.height -= 1
        s = marks.trail[marks.tally.height]
        i = rules.node_of[s]
        marks.alive[s] = True
        marks.left[i] += 1
        for m in range(rules.link_ptr[i], rules.link_ptr[i + 1]):
            rule = rules.rules[rules.links[m].rule]
            if rule.guards == 1:
                marks.holders[rule.at + s - rules.state_ptr[i]] += 1


@bare
def _exclude(i: int, k: int, rules: PathRules, marks: PathMarks) -> None:
    """Exclude a state of a node; what this leaves a single choice for is queued."""
    tally, n_nodes = marks.tally, len(marks.left)
    s = rules.state_ptr[i] + k
    marks.alive[s] = False
    marks.trail[tally.height] = s
    tally.height += 1
    marks.left[i] -= 1
    if marks.left[i] == 0:
        tally.failed = 1
    elif marks.left[i] == 1:
        marks.queue[tally.queued] = i
        tally.queued += 1
    for m in range(rules.link_ptr[i], rules.link_ptr[i + 1]):
        rule = rules.rules[rules.links[m].rule]
        if rule.guards == 0:
            continue
        marks.holders[rule.at + k] -= 1
        if rule.n_links == rule.n_states and marks.holders[rule.at + k] <= 1:
            if marks.holders[rule.at + k] == 0:
                tally.failed = 1
            marks.queue[tally.queued] = n_nodes + rule.at + k
            tally.queued += 1


@bare
def _keep_only(i: int, k: int, rules: PathRules, marks: PathMarks) -> None:
    """Exclude all other states of a node."""
    for s in range(rules.state_ptr[i], rules.state_ptr[i + 1]):
        if marks.alive[s] and s != rules.state_ptr[i] + k:
            _exclude(i, s - rules.state_ptr[i], rules, marks)
    marks.queue[marks.tally.queued] = i
    marks.tally.queued += 1


@compiled
def settle(rules: PathRules, marks: PathMarks) -> bool:
    """Exclude what single choices exclude, until there are no more; False if a hard DIFFERENT cannot be satisfied."""
    tally, n_nodes = marks.tally, len(marks.left)
    while tally.queued > 0 and tally.failed == 0:
        tally.queued -= 1
        i = marks.queue[tally.queued]
        if i < n_nodes:
            _take_state(i, rules, marks)
        else:
            _give_state(i - n_nodes, rules, marks)
    possible = tally.failed == 0
    tally.failed = tally.queued = 0
    return possible


@bare
def _take_state(i: int, rules: PathRules, marks: PathMarks) -> None:
    """The only state of a node is excluded for the others of its rules."""
    k = 0
    while not marks.alive[rules.state_ptr[i] + k]:
        k += 1
    for m in range(rules.link_ptr[i], rules.link_ptr[i + 1]):
        c = rules.links[m].rule
        if rules.rules[c].guards == 0:
            continue
        for at in range(rules.member_ptr[c], rules.member_ptr[c + 1]):
            p = rules.member[at]
            has = rules.state_ptr[p] + k < rules.state_ptr[p + 1]
            if p != i and has and marks.alive[rules.state_ptr[p] + k] and marks.tally.failed == 0:
                _exclude(p, k, rules, marks)


@bare
def _give_state(place: int, rules: PathRules, marks: PathMarks) -> None:
    """A state that every labelling uses goes to the only node that may have it."""
    c = rules.rule_of[place]
    k = place - rules.rules[c].at
    for at in range(rules.member_ptr[c], rules.member_ptr[c + 1]):
        p = rules.member[at]
        has = rules.state_ptr[p] + k < rules.state_ptr[p + 1]
        if has and marks.alive[rules.state_ptr[p] + k] and marks.left[p] > 1:
            _keep_only(p, k, rules, marks)
            return
