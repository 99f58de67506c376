"""Sweeps over all variables that raise the lower bound before the search: TRW-S on integer costs, for any arity."""

from __future__ import annotations

from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.soft_consistency.network_kernels import (
    RAISED,
    SoftNetwork,
    raise_bound,
    wait_changed,
    wait_raised,
    wait_rules,
    wait_unsettled,
    write,
)
from mapmrf.engines.soft_consistency.price_kernels import price_rule
from mapmrf.engines.soft_consistency.propagation_kernels import project, propagate, prune
from mapmrf.engines.soft_consistency.rule_structs import WAITING


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
    if parts > 0:  # costs from rules stay with the states
        parts += net.variables[i].end_rule - net.variables[i].first_rule
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
def price_rules(soft: SoftNetwork, first: int) -> int:
    """Compute prices of all rules, starting with rule `first`.

    Returns the next rule if the work limit is reached, else 0.
    """
    tally = soft.tally
    for c in range(first, len(soft.rules.rules)):
        if c > first and tally.work >= tally.pause_at:
            return c
        if tally.failed == 0:
            price_rule(soft, c)
    return 0


@compiled
def collect(soft: SoftNetwork, first: int) -> int:
    """Project the costs of all factors to their variables, starting with edge `first`; then queue everything.

    Returns the next edge if the work limit is reached, else 0.
    """
    net, tally = soft.net, soft.tally
    for e in range(first, len(net.edges)):
        if e > first and tally.work >= tally.pause_at:
            return e
        if tally.failed == 0:
            project(soft, e)
    for i in range(tally.n_vars):
        if tally.failed == 0:
            raise_bound(soft, i)
        _wait_for_all(soft, i)
        wait_rules(soft, i, WAITING)
    if tally.failed == 0:
        prune(soft)
    return 0


@compiled
def settle(soft: SoftNetwork) -> bool:
    """Continue propagation at the root; True when it is complete. It is never undone."""
    tally = soft.tally
    propagate(soft)
    tally.top = 0
    tally.serial += 1
    return bool(tally.failed == 1 or tally.work < tally.pause_at)


@bare
def _wait_for_all(soft: SoftNetwork, i: int) -> None:
    """Queue a variable for all reasons."""
    wait_changed(soft, i)
    wait_unsettled(soft, i)
    if soft.net.variables[i].reasons & RAISED == 0:
        soft.net.variables[i].reasons |= RAISED
        wait_raised(soft, i)
