"""Depth-first search below a node: decide a variable, propagate, backtrack."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    SoftNetwork,
    assign,
    forget_pending,
    remove,
    take_back,
)
from mapmrf.engines.soft_consistency.propagation_kernels import propagate
from mapmrf.engines.soft_consistency.rule_kernels import rule_cost

CLOSED, LIMITED, PAUSED, FULL = 0, 1, 2, 3
"""Outcomes of a dive: the subtree is closed; enough backtracks; enough work for a step; no room on the trail."""


class DiveStack(NamedTuple):
    """The decisions of a dive.

    Attributes
    ----------
    var, value
        The decided variable and the state that is assigned, or excluded.
    right
        1 on the second branch, which excludes the state.
    mark
        Length of the trail before the decision.
    lower
        The lower bound before the decision.
    """

    var: Ints
    value: Ints
    right: Ints
    mark: Ints
    lower: Ints


class DiveLabels(NamedTuple):
    """The labelling by favourite states, whether a variable contributes to its cost, and the best labelling."""

    labels: Ints
    costly: Bools
    best: Ints


class DiveTally:
    """Counters of a search that the kernels change in place.

    Attributes
    ----------
    depth
        Decisions on the stack.
    nodes, backtracks
        Nodes and backtracks so far.
    most_nodes, limit
        Nodes after which the search pauses, and backtracks after which the dive ends.
    latest
        The variable of the last failed decision.
    found
        How often a better labelling was found.
    """

    depth: int
    nodes: int
    backtracks: int
    most_nodes: int
    limit: int
    latest: int
    found: int


class Dive(NamedTuple):
    """Everything that a dive changes, apart from the network."""

    stack: DiveStack
    goal: DiveLabels
    tally: DiveTally


@compiled
def follow(soft: SoftNetwork, path: DiveStack, n: int) -> None:
    """Go from the root to a node by making its decisions, without propagation."""
    net, now, tally = soft.net, soft.now, soft.tally
    tally.failed = 0
    take_back(soft, 0)
    tally.pruned_at = -1
    for k in range(n):
        i, u = path.var[k], path.value[k]
        is_left = now.place[net.variables[i].at + u] < now.cell[i]
        if path.right[k] == 0 and not is_left:
            tally.failed = 1
        elif path.right[k] == 0:
            assign(soft, i, u)
        elif is_left:
            remove(soft, i, u)
        if tally.failed == 1:
            return


@compiled
def dive(soft: SoftNetwork, way: Dive) -> int:
    """Search below the current node until one of the stopping conditions holds."""
    stack, counts, tally = way.stack, way.tally, soft.tally
    while True:
        if tally.top + 2 * len(soft.now.cell) > len(soft.now.trail):
            return FULL
        if counts.nodes >= counts.most_nodes:
            return PAUSED
        propagate(soft)
        if tally.failed == 0 and tally.work >= tally.pause_at:
            return PAUSED
        var = -1
        if tally.failed == 0:
            var = _examine(soft, way)
        else:
            _blame(soft)
        counts.nodes += 1
        if var >= 0:
            k = counts.depth
            stack.var[k], stack.value[k], stack.right[k] = var, way.goal.labels[var], 0
            stack.mark[k], stack.lower[k] = tally.top, soft.now.cell[tally.n_vars]
            counts.depth += 1
            tally.serial += 1
            assign(soft, var, way.goal.labels[var])
            continue
        forget_pending(soft)
        if not _step_back(soft, way):
            return CLOSED
        if counts.backtracks >= counts.limit:
            return LIMITED


@bare
def _step_back(soft: SoftNetwork, way: Dive) -> bool:
    """Undo the last decision with an open alternative, and take that; False if there is none."""
    stack, counts, tally = way.stack, way.tally, soft.tally
    counts.backtracks += 1
    tally.failed = 0
    k = counts.depth - 1
    while k >= 0 and (stack.right[k] == 1 or stack.lower[k] >= tally.upper):
        k -= 1
    counts.depth = k + 1
    if k < 0:
        return False
    take_back(soft, stack.mark[k])
    tally.pruned_at = -1
    counts.latest = stack.var[k]
    stack.right[k] = 1
    remove(soft, stack.var[k], stack.value[k])
    return True


@bare
def _blame(soft: SoftNetwork) -> None:
    """Increase the weight of the factor or rule that caused a failure."""
    net, rules = soft.net, soft.rules
    a = soft.tally.culprit
    if a < 0:
        for m in range(rules.rules[-1 - a].first, rules.rules[-1 - a].end):
            net.variables[rules.links[m].variable].burden += 1.0
        return
    for e in range(net.factors[a].first, net.factors[a].end):
        net.variables[net.edges[e].variable].burden += 1.0


@bare
def _examine(soft: SoftNetwork, way: Dive) -> int:
    """Return the branching variable, or -1 if the labelling by favourite states attains the lower bound."""
    net, now, tally, goal = soft.net, soft.now, soft.tally, way.goal
    n = tally.n_vars
    for i in range(n):
        begin = net.variables[i].at
        goal.costly[i] = False
        u = net.variables[i].favourite
        if now.place[begin + u] >= now.cell[i] or now.cell[begin + u] > 0:
            u = _free_state(soft, i)
        goal.labels[i] = u
    extra = 0
    for i in range(n):
        if now.cell[i] > 1:
            extra = min(extra + _extra_cost(soft, goal, i), FORBIDDEN)
    for c in range(len(soft.rules.rules)):
        extra = min(extra + _extra_of_rule(soft, goal, c), FORBIDDEN)
    total = now.cell[n] + extra
    tally.work += n
    if total < tally.upper:
        tally.upper = total - tally.slack
        way.tally.found += 1
        for i in range(n):
            goal.best[i] = goal.labels[i]
        tally.pruned_at = -1
    return -1 if extra == 0 else _choose(soft, goal.costly, way.tally.latest)


@bare
def _free_state(soft: SoftNetwork, i: int) -> int:
    """Return a state of a variable with cost 0."""
    net, now = soft.net, soft.now
    begin = net.variables[i].at
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        if now.cell[begin + u] == 0:
            return int(u)
    return int(now.domain[begin])


@bare
def _extra_cost(soft: SoftNetwork, goal: DiveLabels, i: int) -> int:
    """Return the cost of the labels in the factors of which a variable is the first undecided one."""
    net, now = soft.net, soft.now
    extra = 0
    for h in range(net.variables[i].first, net.variables[i].end):
        a = net.edges[net.nbr[h]].factor
        at, shift, first = net.factors[a].table, 0, True
        for e in range(net.factors[a].first, net.factors[a].end):
            j = net.edges[e].variable
            if j < i and now.cell[j] > 1:
                first = False
                break
            at += goal.labels[j] * net.edges[e].stride
            shift += now.cell[net.edges[e].at + goal.labels[j]]
        soft.tally.work += 1
        if first and net.costs[at] > shift:
            extra = min(extra + net.costs[at] - shift, FORBIDDEN)
            for e in range(net.factors[a].first, net.factors[a].end):
                goal.costly[net.edges[e].variable] = now.cell[net.edges[e].variable] > 1
    return int(extra)


@bare
def _extra_of_rule(soft: SoftNetwork, goal: DiveLabels, c: int) -> int:
    """Return the cost of the labels in an undecided rule."""
    now, rules, rule = soft.now, soft.rules, soft.rules.rules[c]
    if now.cell[rule.at] == 1:
        return 0
    soft.tally.work += rule.end - rule.first
    extra = rule_cost(soft, c, goal.labels)
    if extra > 0:
        for m in range(rule.first, rule.end):
            if now.cell[rules.links[m].variable] > 1:
                goal.costly[rules.links[m].variable] = True
    return extra


@bare
def _choose(soft: SoftNetwork, costly: Bools, latest: int) -> int:
    """Return the variable with the smallest ratio of states to failure weight; that of the last failure goes first."""
    if latest >= 0 and costly[latest]:
        return latest
    best, least = -1, 0.0
    for i in range(soft.tally.n_vars):
        if costly[i]:
            score = soft.now.cell[i] / soft.net.variables[i].burden
            if best < 0 or score < least:
                best, least = i, score
    return best
