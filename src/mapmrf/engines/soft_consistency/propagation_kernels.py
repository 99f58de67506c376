"""Soft arc consistency to a fixed point: supports, full supports in one direction, and existential support.

Existential directional arc consistency (de Givry, Heras, Zytnicki, Larrosa 2005), for factors of any arity: every state
has a support (a configuration of cost 0) in each of its factors; in the factors of which a variable is the first
undecided one, a full support, whose other states also have unary cost 0; and every variable has a state of cost 0 with
full supports in all of its factors. A state whose cost reaches the upper bound is removed.
"""

from __future__ import annotations

from mapmrf.compilation.jit import bare
from mapmrf.engines.soft_consistency.network_kernels import (
    CHANGED,
    REMOVED,
    UNSETTLED,
    SoftNetwork,
    next_raised,
    next_rule,
    raise_bound,
    remove,
    wait_rules,
    wait_unsettled,
)
from mapmrf.engines.soft_consistency.pair_kernels import cheapest_partner, gather_pair, pair_cost, project_pair
from mapmrf.engines.soft_consistency.price_kernels import price_rule
from mapmrf.engines.soft_consistency.rule_kernels import apply_rule
from mapmrf.engines.soft_consistency.rule_structs import STALE, WAITING
from mapmrf.engines.soft_consistency.table_kernels import (
    MOST_CONFIGURATIONS,
    MOST_GATHERED,
    cheapest_configuration,
    configurations_left,
    gather_table,
    is_support,
    project_table,
)


@bare
def propagate(soft: SoftNetwork) -> None:
    """Process all pending work, or fail; pause after too much work."""
    now, tally = soft.now, soft.tally
    while tally.failed == 0 and tally.work < tally.pause_at:
        if tally.n_removed > 0:
            _spread_removal(soft)
        elif tally.n_waiting > 0:
            apply_rule(soft, next_rule(soft, WAITING))
        elif tally.n_raised > 0:
            _spread_costs(soft, next_raised(soft))
        elif tally.n_changed > 0:
            _ask_neighbours(soft)
        elif tally.n_unsettled > 0:
            _settle(soft)
        elif tally.n_stale > 0:
            price_rule(soft, next_rule(soft, STALE))
        elif now.cell[tally.n_vars] != tally.pruned_at:
            prune(soft)
        else:
            return


@bare
def project(soft: SoftNetwork, target: int) -> None:
    """Project costs from a factor to one of its variables."""
    net = soft.net
    a = net.edges[target].factor
    soft.tally.culprit = a
    begin = net.factors[a].first
    if net.factors[a].end - begin == 2:
        project_pair(soft, target, 2 * begin + 1 - target)
    elif configurations_left(soft, a) <= MOST_CONFIGURATIONS:
        project_table(soft, target)


@bare
def gather(soft: SoftNetwork, target: int) -> None:
    """Move costs through a factor to one of its variables."""
    net = soft.net
    a = net.edges[target].factor
    soft.tally.culprit = a
    begin = net.factors[a].first
    if net.factors[a].end - begin == 2:
        gather_pair(soft, target, 2 * begin + 1 - target)
    elif configurations_left(soft, a) <= MOST_GATHERED:
        gather_table(soft, target)


@bare
def prune(soft: SoftNetwork) -> None:
    """Remove every state whose cost is too high."""
    net, now, tally = soft.net, soft.now, soft.tally
    tally.pruned_at = now.cell[tally.n_vars]
    room = tally.upper - tally.pruned_at
    for i in range(tally.n_vars):
        if now.cell[i] > 1:
            begin = net.variables[i].at
            for k in range(now.cell[i] - 1, -1, -1):
                u = now.domain[begin + k]
                if now.cell[begin + u] >= room:
                    remove(soft, i, u)
            tally.work += now.cell[i]


@bare
def _spread_removal(soft: SoftNetwork) -> None:
    """Find new supports for the neighbours of a variable that lost states."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    tally.n_removed -= 1
    i = todo.queue[tally.n_removed].removed
    net.variables[i].reasons &= ~REMOVED
    raise_bound(soft, i)
    wait_rules(soft, i, WAITING)
    for h in range(net.variables[i].first, net.variables[i].end):
        e = net.nbr[h]
        a = net.edges[e].factor
        pair = net.factors[a].end - net.factors[a].first == 2
        for target in range(net.factors[a].first, net.factors[a].end):
            if target != e and (pair or now.cell[net.edges[target].variable] > 1) and tally.failed == 0:
                project(soft, target)
        if not pair and tally.failed == 0:
            _close(soft, a)


@bare
def _close(soft: SoftNetwork, a: int) -> None:
    """Move the cost of a factor whose variables are all decided into the lower bound."""
    net, now = soft.net, soft.now
    first = net.factors[a].first
    for e in range(first, net.factors[a].end):
        if now.cell[net.edges[e].variable] > 1:
            return
    project_table(soft, first)


@bare
def _spread_costs(soft: SoftNetwork, j: int) -> None:
    """Move the costs of a variable to those before it."""
    net, now, tally = soft.net, soft.now, soft.tally
    for h in range(net.variables[j].first, net.variables[j].end):
        e = net.nbr[h]
        a = net.edges[e].factor
        first = -1
        for target in range(net.factors[a].first, net.factors[a].end):
            i = net.edges[target].variable
            if now.cell[i] > 1 and (first < 0 or i < net.edges[first].variable):
                first = target
        if first >= 0 and net.edges[first].variable < j and tally.failed == 0:
            gather(soft, first)


@bare
def _ask_neighbours(soft: SoftNetwork) -> None:
    """Queue the neighbours whose favourite may have lost its support by removed states or increased costs."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    tally.n_changed -= 1
    i = todo.queue[tally.n_changed].changed
    net.variables[i].reasons &= ~CHANGED
    wait_rules(soft, i, STALE)
    begin = net.variables[i].at
    for h in range(net.variables[i].first, net.variables[i].end):
        e = net.nbr[h]
        a = net.edges[e].factor
        pair = net.factors[a].end - net.factors[a].first == 2
        for other in range(net.factors[a].first, net.factors[a].end):
            j = net.edges[other].variable
            if other == e or now.cell[j] == 1:
                continue
            u = net.edges[other].full if pair else net.edges[other].full // net.edges[e].stride % net.variables[i].card
            if now.place[begin + u] >= now.cell[i] or now.cell[begin + u] > 0:
                wait_unsettled(soft, j)
    tally.work += net.variables[i].end - net.variables[i].first


@bare
def _settle(soft: SoftNetwork) -> None:
    """Find a state of a variable with (almost) no cost over all its factors; if there is none, raise the bound."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    tally.n_unsettled -= 1
    i = todo.queue[tally.n_unsettled].unsettled
    net.variables[i].reasons &= ~UNSETTLED
    begin, u = net.variables[i].at, net.variables[i].favourite
    if now.cell[i] == 1:
        net.variables[i].favourite = now.domain[begin]
        return
    if now.place[begin + u] < now.cell[i] and _is_settled(soft, i, u):
        return
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        if _is_settled(soft, i, u):
            net.variables[i].favourite = u
            return
    for h in range(net.variables[i].first, net.variables[i].end):
        if tally.failed == 0:
            gather(soft, net.nbr[h])
    raise_bound(soft, i)


@bare
def _is_settled(soft: SoftNetwork, i: int, u: int) -> bool:
    """Return whether the costs around a state sum to (almost) nothing; those of a neighbour count once."""
    net, now, tally = soft.net, soft.now, soft.tally
    total = now.cell[net.variables[i].at + u]
    tally.visit += 1
    for h in range(net.variables[i].first, net.variables[i].end):
        if total >= tally.least_gain:
            return False
        target = net.nbr[h]
        a = net.edges[target].factor
        first, end = net.factors[a].first, net.factors[a].end
        if end - first == 2:
            total += _pair_around(soft, target, first + end - 1 - target, u)
        elif configurations_left(soft, a) <= MOST_GATHERED:
            mine = net.edges[target].full // net.edges[target].stride % net.variables[i].card == u
            if not (mine and is_support(soft, target, net.edges[target].full, 1)):
                least, net.edges[target].full = cheapest_configuration(soft, target, u, 2)
                total += least
            for e in range(first, end):
                net.variables[net.edges[e].variable].seen = tally.visit
    return bool(total < tally.least_gain)


@bare
def _pair_around(soft: SoftNetwork, target: int, other: int, u: int) -> int:
    """Return the minimum cost of a state with a neighbour, including its unary costs unless already counted."""
    net, now, tally = soft.net, soft.now, soft.tally
    j = net.edges[other].variable
    begin, v = net.variables[j].at, net.edges[target].full
    tally.work += 1
    unary = 0 if net.variables[j].seen == tally.visit else 1
    net.variables[j].seen = tally.visit
    if now.place[begin + v] < now.cell[j] and now.cell[begin + v] == 0 and pair_cost(soft, target, other, u, v) == 0:
        return 0
    least, net.edges[target].full = cheapest_partner(soft, target, other, u, unary)
    return least
