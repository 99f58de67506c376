"""Depth-first search below a node: decide a variable, propagate, backtrack."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.soft_consistency.constraint_kernels import constraint_cost, price_constraint
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    WAITING,
    SoftNetwork,
    assign,
    forget_pending,
    raise_bound,
    remove,
    undo,
    wait_changed,
    wait_constraints,
    wait_costs,
    write,
)
from mapmrf.engines.soft_consistency.propagation_kernels import project, propagate, prune

CLOSED, LIMITED, PAUSED, FULL = 0, 1, 2, 3
"""Outcomes of a dive: the subtree is closed; enough backtracks; enough work for a step; no room on the trail."""


class DiveStack(NamedTuple):
    """The decisions of a dive."""

    var: Ints  # the decided variable
    value: Ints  # the state that is assigned, or excluded
    right: Ints  # 1 on the second branch, which excludes the state
    mark: Ints  # length of the trail before the decision
    lower: Ints  # the lower bound before the decision


class DiveLabels(NamedTuple):
    """The labelling by favourite states, whether a variable contributes to its cost, and the best labelling."""

    labels: Ints
    costly: Bools
    best: Ints


class DiveTally:
    """Counters of a search that the kernels change in place."""

    depth: int  # decisions on the stack
    nodes: int
    backtracks: int
    most_nodes: int  # nodes after which the search pauses
    limit: int  # backtracks after which the dive ends
    latest: int  # the variable of the last failed decision
    found: int  # how often a better labelling was found


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
    undo(soft, 0)
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
    undo(soft, stack.mark[k])
    tally.pruned_at = -1
    counts.latest = stack.var[k]
    stack.right[k] = 1
    remove(soft, stack.var[k], stack.value[k])
    return True


@bare
def _blame(soft: SoftNetwork) -> None:
    net, constraints = soft.net, soft.constraints
    a = soft.tally.culprit
    if a < 0:
        for m in range(constraints.records[-1 - a].first, constraints.records[-1 - a].end):
            net.variables[constraints.links[m].variable].burden += 1.0
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
            u = now.domain[begin]
            for k in range(now.cell[i]):
                if now.cell[begin + now.domain[begin + k]] == 0:
                    u = now.domain[begin + k]
                    break
        goal.labels[i] = u
    extra = 0
    for i in range(n):
        if now.cell[i] > 1:
            extra = min(extra + _extra_cost(soft, goal, i), FORBIDDEN)
    for c in range(len(soft.constraints.records)):
        constraint = soft.constraints.records[c]
        if now.cell[constraint.at] == 1:
            continue
        tally.work += constraint.end - constraint.first
        more = constraint_cost(soft, c, goal.labels)
        extra = min(extra + more, FORBIDDEN)
        if more > 0:
            for m in range(constraint.first, constraint.end):
                if now.cell[soft.constraints.links[m].variable] > 1:
                    goal.costly[soft.constraints.links[m].variable] = True
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


# Sweeps over all variables that raise the lower bound before the search: TRW-S on integer costs, for any arity.


@compiled
def sweep(soft: SoftNetwork, forward: bool, first: int) -> int:
    """Visit the variables forward or backward: each collects the costs of its factors and passes them on.

    Starts at step `first`; returns the next step if the work limit is reached, else 0.
    """
    net, now, tally = soft.net, soft.now, soft.tally
    n = tally.n_vars
    if first == 0:
        prune(soft)
    for step in range(first, n):
        if step > first and tally.work >= tally.pause_at:
            return step
        i = step if forward else n - 1 - step
        for h in range(net.variables[i].first, net.variables[i].end):
            if tally.failed == 0:
                project(soft, net.nbr[h])
        if tally.failed == 0:
            raise_bound(soft, i)
        if tally.failed == 1:
            return 0
        if now.cell[i] > 1:
            _pass_on(soft, i, forward)
    return 0


@bare
def _pass_on(soft: SoftNetwork, i: int, forward: bool) -> None:
    """Distribute the costs of a variable's states over the factors with variables still to come."""
    net, now = soft.net, soft.now
    n_after = n_before = 0
    for h in range(net.variables[i].first, net.variables[i].end):
        n_after += _continues(soft, net.nbr[h], True)
        n_before += _continues(soft, net.nbr[h], False)
    parts = max(n_after, n_before)
    if parts > 0:  # costs from constraints stay with the states
        parts += net.variables[i].end_constraint - net.variables[i].first_constraint
    if parts == 0:
        return
    begin = net.variables[i].at
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        share = now.cell[begin + u] // parts
        if share == 0:
            continue
        for h in range(net.variables[i].first, net.variables[i].end):
            e = net.nbr[h]
            if _continues(soft, e, forward):
                at = net.edges[e].at + u
                write(soft, at, now.cell[at] - share)
                write(soft, begin + u, now.cell[begin + u] - share)
    wait_changed(soft, i)


@bare
def _continues(soft: SoftNetwork, e: int, forward: bool) -> bool:
    """Return whether the factor of an edge has an undecided variable after (or before) that of the edge."""
    net, now = soft.net, soft.now
    a, i = net.edges[e].factor, net.edges[e].variable
    for other in range(net.factors[a].first, net.factors[a].end):
        j = net.edges[other].variable
        if now.cell[j] > 1 and ((j > i) if forward else (j < i)):
            return True
    return False


@compiled
def price_constraints(soft: SoftNetwork, first: int) -> int:
    """Price all constraints from `first` on; return the next one if the work limit is reached, else 0."""
    tally = soft.tally
    for c in range(first, len(soft.constraints.records)):
        if c > first and tally.work >= tally.pause_at:
            return c
        if tally.failed == 0:
            price_constraint(soft, c)
    return 0


@compiled
def project_all(soft: SoftNetwork, first: int) -> int:
    """Project all factors to their variables from edge `first` on, then queue everything; return the next edge or 0."""
    net, tally = soft.net, soft.tally
    for e in range(first, len(net.edges)):
        if e > first and tally.work >= tally.pause_at:
            return e
        if tally.failed == 0:
            project(soft, e)
    for i in range(tally.n_vars):
        if tally.failed == 0:
            raise_bound(soft, i)
        wait_costs(soft, i)
        wait_constraints(soft, i, WAITING)
    if tally.failed == 0:
        prune(soft)
    return 0


@compiled
def propagate_root(soft: SoftNetwork) -> bool:
    """Continue propagation at the root; True when it is complete. It is never undone."""
    tally = soft.tally
    propagate(soft)
    tally.top = 0
    tally.serial += 1
    return bool(tally.failed == 1 or tally.work < tally.pause_at)
