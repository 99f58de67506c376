"""Soft arc consistency to a fixed point: supports, full supports in one direction, and existential support.

Existential directional arc consistency (de Givry, Heras, Zytnicki, Larrosa 2005), for factors of any arity: every state
has a support (a configuration of cost 0) in each of its factors; in the factors of which a variable is the first
undecided one, a full support, whose other states also have unary cost 0; and every variable has a state of cost 0 with
full supports in all of its factors. A state whose cost reaches the upper bound is removed.
"""

from __future__ import annotations

from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.soft_consistency.constraints import apply_constraint, price_constraint
from mapmrf.engines.soft_consistency.network import (
    CHANGED,
    FORBIDDEN,
    RAISED,
    REMOVED,
    STALE,
    UNSETTLED,
    WAITING,
    SoftNetwork,
    next_constraint,
    next_raised,
    next_waiting,
    raise_bound,
    raise_state,
    remove,
    wait,
    wait_constraints,
    write,
)


@bare
def propagate(soft: SoftNetwork) -> None:
    """Process all pending work, or fail; pause after too much work."""
    tally, waiting = soft.tally, soft.todo.n_queued
    while tally.failed == 0 and tally.work < tally.pause_at:
        if waiting[REMOVED] > 0:
            _find_supports(soft, next_waiting(soft, REMOVED))
        elif waiting[WAITING] > 0:
            apply_constraint(soft, next_constraint(soft, WAITING))
        elif waiting[RAISED] > 0:
            _move_costs_back(soft, next_raised(soft))
        elif waiting[CHANGED] > 0:
            _ask_neighbours(soft, next_waiting(soft, CHANGED))
        elif waiting[UNSETTLED] > 0:
            _find_favourite(soft, next_waiting(soft, UNSETTLED))
        elif waiting[STALE] > 0:
            price_constraint(soft, next_constraint(soft, STALE))
        elif soft.now.cell[tally.n_vars] != tally.pruned_at:
            prune(soft)
        else:
            return


@bare
def project(soft: SoftNetwork, target: int, gathering: bool) -> None:
    """Move costs of a factor to one of its variables; if `gathering`, unary costs of its other variables as well."""
    net = soft.net
    a = net.edges[target].factor
    soft.tally.culprit = a
    other = 2 * net.factors[a].first + 1 - target
    if net.factors[a].end - net.factors[a].first == 2 and gathering:
        gather_pair(soft, target, other)
    elif net.factors[a].end - net.factors[a].first == 2:
        project_pair(soft, target, other)
    elif gathering and configurations_left(soft, a) <= MOST_GATHERED:
        gather_table(soft, target)
    elif not gathering and configurations_left(soft, a) <= MOST_CONFIGURATIONS:
        project_table(soft, target, False)


@bare
def prune(soft: SoftNetwork) -> None:
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
def _find_supports(soft: SoftNetwork, i: int) -> None:
    """Find new supports for the neighbours of a variable that lost states."""
    net, now, tally = soft.net, soft.now, soft.tally
    raise_bound(soft, i)
    wait_constraints(soft, i, WAITING)
    for h in range(net.variables[i].first, net.variables[i].end):
        e = net.nbr[h]
        a = net.edges[e].factor
        pair = net.factors[a].end - net.factors[a].first == 2
        for target in range(net.factors[a].first, net.factors[a].end):
            if target != e and (pair or now.cell[net.edges[target].variable] > 1) and tally.failed == 0:
                project(soft, target, False)
        if not pair and tally.failed == 0:
            decided = True
            for target in range(net.factors[a].first, net.factors[a].end):
                decided = decided and now.cell[net.edges[target].variable] <= 1
            if decided:  # the cost of the factor moves into the lower bound
                project_table(soft, net.factors[a].first, False)


@bare
def _move_costs_back(soft: SoftNetwork, j: int) -> None:
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
            project(soft, first, True)


@bare
def _ask_neighbours(soft: SoftNetwork, i: int) -> None:
    """Queue the neighbours whose favourite may have lost its support by removed states or increased costs."""
    net, now, tally = soft.net, soft.now, soft.tally
    wait_constraints(soft, i, STALE)
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
                wait(soft, j, UNSETTLED)
    tally.work += net.variables[i].end - net.variables[i].first


@bare
def _find_favourite(soft: SoftNetwork, i: int) -> None:
    """Find a state of a variable with (almost) no cost over all its factors; if there is none, raise the bound."""
    net, now, tally = soft.net, soft.now, soft.tally
    begin, u = net.variables[i].at, net.variables[i].favourite
    if now.cell[i] == 1:
        net.variables[i].favourite = now.domain[begin]
        return
    if now.place[begin + u] < now.cell[i] and _has_no_cost(soft, i, u):
        return
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        if _has_no_cost(soft, i, u):
            net.variables[i].favourite = u
            return
    for h in range(net.variables[i].first, net.variables[i].end):
        if tally.failed == 0:
            project(soft, net.nbr[h], True)
    raise_bound(soft, i)


@bare
def _has_no_cost(soft: SoftNetwork, i: int, u: int) -> bool:
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
        if end - first == 2:  # the unary costs of a neighbour count unless already counted
            other = first + end - 1 - target
            j, v = net.edges[other].variable, net.edges[target].full
            begin, unary = net.variables[j].at, 0 if net.variables[j].seen == tally.visit else 1
            tally.work += 1
            net.variables[j].seen = tally.visit
            free = now.place[begin + v] < now.cell[j] and now.cell[begin + v] == 0
            if not (free and pair_cost(soft, target, other, u, v) == 0):
                least, net.edges[target].full = cheapest_partner(soft, target, other, u, unary)
                total += least
        elif configurations_left(soft, a) <= MOST_GATHERED:
            mine = net.edges[target].full // net.edges[target].stride % net.variables[i].card == u
            if not (mine and is_support(soft, target, net.edges[target].full, 1)):
                least, net.edges[target].full = cheapest_configuration(soft, target, u, 2)
                total += least
            for e in range(first, end):
                net.variables[net.edges[e].variable].seen = tally.visit
    return bool(total < tally.least_gain)


# -- Cost shifting for pairwise factors -------------------------------------------------------------------------------
# `target` is the edge of the variable that receives costs, `other` that of the other variable.


@inlined
def pair_cost(soft: SoftNetwork, target: int, other: int, u: int, v: int) -> int:
    net, cell = soft.net, soft.now.cell
    at = net.factors[net.edges[target].factor].table + u * net.edges[target].stride + v * net.edges[other].stride
    return int(net.costs[at] - cell[net.edges[target].at + u] - cell[net.edges[other].at + v])


@bare
def cheapest_partner(soft: SoftNetwork, target: int, other: int, u: int, unary: int) -> tuple[int, int]:
    """Return the minimum cost of a state with the other variable, with its unary costs if `unary` is 1, and where."""
    net, cell, domain = soft.net, soft.now.cell, soft.now.domain
    j = net.edges[other].variable
    begin, shifts = net.variables[j].at, net.edges[other].at
    at, step = net.factors[net.edges[target].factor].table + u * net.edges[target].stride, net.edges[other].stride
    shift = cell[net.edges[target].at + u]
    least, best = 2 * FORBIDDEN, domain[begin]
    n = cell[j]
    for k in range(n):
        v = domain[begin + k]
        cost = net.costs[at + v * step] - cell[shifts + v] + unary * cell[begin + v]
        if cost - shift < least:
            least, best = cost - shift, v
            if least == 0:
                break
    soft.tally.work += n
    return int(least), int(best)


@bare
def project_pair(soft: SoftNetwork, target: int, other: int) -> None:
    """Project: move the minimum cost over each state's configurations to the state; forbidden states are removed."""
    net, now, tally = soft.net, soft.now, soft.tally
    i, j = net.edges[target].variable, net.edges[other].variable
    begin, begin_j, shifts = net.variables[i].at, net.variables[j].at, net.edges[target].at
    n_before, moved = now.cell[i], False
    tally.work += n_before
    for k in range(n_before - 1, -1, -1):
        u = now.domain[begin + k]
        v = now.place[shifts + u]
        if now.place[begin_j + v] < now.cell[j] and pair_cost(soft, target, other, u, v) == 0:
            continue
        least, now.place[shifts + u] = cheapest_partner(soft, target, other, u, 0)
        if least >= FORBIDDEN:
            remove(soft, i, u)
        elif least > 0:
            write(soft, shifts + u, now.cell[shifts + u] + least)
            raise_state(soft, i, u, least)
            moved = True
    if moved or now.cell[i] < n_before:
        raise_bound(soft, i)


@bare
def gather_pair(soft: SoftNetwork, target: int, other: int) -> None:
    """Move the minimum cost over each state's configurations, including the other unary costs, to the state."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    i, j = net.edges[target].variable, net.edges[other].variable
    begin, begin_j, shifts = net.variables[i].at, net.variables[j].at, net.edges[target].at
    moved = False
    tally.work += now.cell[i]
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[begin + k]
        todo.amount[u] = 0
        v = now.place[shifts + u]
        free = now.place[begin_j + v] < now.cell[j] and now.cell[begin_j + v] == 0
        if free and pair_cost(soft, target, other, u, v) == 0:
            continue
        least, now.place[shifts + u] = cheapest_partner(soft, target, other, u, 1)
        if least >= FORBIDDEN:
            remove(soft, i, u)
        elif least > 0:
            todo.amount[u] = least
            moved = True
    if moved:
        _extend_pair(soft, target, other)
        for k in range(now.cell[i] - 1, -1, -1):
            u = now.domain[begin + k]
            if todo.amount[u] > 0:
                write(soft, shifts + u, now.cell[shifts + u] + todo.amount[u])
                raise_state(soft, i, u, todo.amount[u])
    raise_bound(soft, i)


@bare
def _extend_pair(soft: SoftNetwork, target: int, other: int) -> None:
    """Extend enough of the other variable's unary costs into the factor for the amounts to be projected."""
    net, now, todo = soft.net, soft.now, soft.todo
    i, j = net.edges[target].variable, net.edges[other].variable
    begin, begin_j, shifts = net.variables[i].at, net.variables[j].at, net.edges[other].at
    for k in range(now.cell[j]):
        v = now.domain[begin_j + k]
        if now.cell[begin_j + v] == 0:
            continue
        need, support = 0, -1
        for h in range(now.cell[i]):
            u = now.domain[begin + h]
            lack = todo.amount[u] - pair_cost(soft, target, other, u, v)
            if lack > need:
                need, support = lack, u
        soft.tally.work += now.cell[i]
        if need > 0:
            write(soft, begin_j + v, now.cell[begin_j + v] - need)
            write(soft, shifts + v, now.cell[shifts + v] - need)
            now.place[shifts + v] = support
            wait(soft, j, CHANGED)


# -- Cost shifting for factors of more than two variables, by enumerating the remaining configurations ----------------

MOST_CONFIGURATIONS = 1 << 16  # maximum number of remaining configurations for which costs are projected to variables
MOST_GATHERED = 1 << 10  # maximum number of remaining configurations for which unary costs are moved through a factor


@bare
def configurations_left(soft: SoftNetwork, a: int) -> int:
    """Count the remaining configurations of a factor, up to a limit."""
    net, now = soft.net, soft.now
    n = 1
    for e in range(net.factors[a].first, net.factors[a].end):
        n *= now.cell[net.edges[e].variable]
        if n > MOST_CONFIGURATIONS:
            break
    return int(n)


@bare
def is_support(soft: SoftNetwork, target: int, config: int, unary: int) -> bool:
    """Return whether a configuration is a support; with `unary` 1, a full support."""
    net, now = soft.net, soft.now
    a = net.edges[target].factor
    cost = net.costs[net.factors[a].table + config]
    for e in range(net.factors[a].first, net.factors[a].end):
        i = net.edges[e].variable
        u = config // net.edges[e].stride % net.variables[i].card
        if now.place[net.variables[i].at + u] >= now.cell[i]:
            return False
        cost -= now.cell[net.edges[e].at + u]
        if unary == 1 and e != target and now.cell[net.variables[i].at + u] > 0:
            return False
    return bool(cost == 0)


@bare
def cheapest_configuration(soft: SoftNetwork, target: int, u: int, unary: int) -> tuple[int, int]:
    """Return the minimum cost of a state over its configurations, and a minimiser.

    With `unary` 1, the unary costs of the other variables are included; with 2, only of those not seen in this visit.
    """
    net, now, todo = soft.net, soft.now, soft.todo
    a = net.edges[target].factor
    config, shift, n_free = u * net.edges[target].stride, now.cell[net.edges[target].at + u], 0
    last, n_last = -1, 0
    for e in range(net.factors[a].first, net.factors[a].end):
        if e == target:
            continue
        j = net.edges[e].variable
        if now.cell[j] == 1:
            config, shift = _with_state(soft, e, 0, unary, config, shift)
            continue
        if now.cell[j] > n_last:
            if last >= 0:
                todo.odometer[n_free].free = last
                n_free += 1
            last, n_last = e, now.cell[j]
        else:
            todo.odometer[n_free].free = e
            n_free += 1
    if last < 0:
        return int(net.costs[net.factors[a].table + config] - shift), int(config)
    return _odometer(soft, last, n_free, unary, config, shift)


@bare
def _with_state(soft: SoftNetwork, e: int, k: int, unary: int, config: int, shift: int) -> tuple[int, int]:
    """Extend a partial configuration by the k-th remaining state of an edge; return table entry and shifts."""
    net, now = soft.net, soft.now
    j = net.edges[e].variable
    begin = net.variables[j].at
    v = now.domain[begin + k]
    shift += now.cell[net.edges[e].at + v]
    if unary == 1 or (unary == 2 and net.variables[j].seen != soft.tally.visit):
        shift -= now.cell[begin + v]
    return int(config + v * net.edges[e].stride), int(shift)


@bare
def _odometer(soft: SoftNetwork, last: int, n_free: int, unary: int, config: int, shift: int) -> tuple[int, int]:
    """Return the cheapest completion of a partial configuration, enumerated with the last position fastest."""
    net, now, todo = soft.net, soft.now, soft.todo
    table = net.factors[net.edges[last].factor].table
    j = net.edges[last].variable
    begin, n_last, step, shifts = net.variables[j].at, now.cell[j], net.edges[last].stride, net.edges[last].at
    counted = 1 if unary == 1 or (unary == 2 and net.variables[j].seen != soft.tally.visit) else 0
    least, best = 2 * FORBIDDEN, config
    depth = 0
    while True:
        while depth < n_free:
            todo.odometer[depth].base, todo.odometer[depth].shift, todo.odometer[depth].digit = config, shift, 0
            config, shift = _with_state(soft, todo.odometer[depth].free, 0, unary, config, shift)
            depth += 1
        for k in range(n_last):
            v = now.domain[begin + k]
            cost = net.costs[table + config + v * step] - shift - now.cell[shifts + v] + counted * now.cell[begin + v]
            if cost < least:
                least, best = cost, config + v * step
        soft.tally.work += n_last
        if least == 0:
            break
        depth -= 1
        while depth >= 0 and todo.odometer[depth].digit + 1 == now.cell[net.edges[todo.odometer[depth].free].variable]:
            depth -= 1
        if depth < 0:
            break
        wheel = todo.odometer[depth]
        wheel.digit += 1
        config, shift = _with_state(soft, wheel.free, wheel.digit, unary, wheel.base, wheel.shift)
        depth += 1
    return int(least), int(best)


@bare
def project_table(soft: SoftNetwork, target: int, giving_back: bool) -> None:
    """Project: move the minimum cost over each state's configurations to the state; forbidden states are removed.

    Unary costs that a factor did not need go back to their states: nothing is queued for that.
    """
    net, now, tally = soft.net, soft.now, soft.tally
    i = net.edges[target].variable
    begin, shifts = net.variables[i].at, net.edges[target].at
    n_before, moved = now.cell[i], giving_back
    tally.work += 0 if giving_back else 2 * n_before
    for k in range(n_before - 1, -1, -1):
        u = now.domain[begin + k]
        if is_support(soft, target, now.place[shifts + u], 0):
            continue
        least, now.place[shifts + u] = cheapest_configuration(soft, target, u, 0)
        if least >= FORBIDDEN:
            remove(soft, i, u)
        elif least > 0:
            write(soft, shifts + u, now.cell[shifts + u] + least)
            if giving_back:
                write(soft, begin + u, now.cell[begin + u] + least)
            else:
                raise_state(soft, i, u, least)
            moved = True
    if moved or now.cell[i] < n_before:
        raise_bound(soft, i)


@bare
def gather_table(soft: SoftNetwork, target: int) -> None:
    """Move the minimum cost over each state's configurations, including the other unary costs, to the state.

    The other variables extend all their costs into the factor, and take back what is not needed.
    """
    net, now, tally = soft.net, soft.now, soft.tally
    i, a = net.edges[target].variable, net.edges[target].factor
    begin, shifts = net.variables[i].at, net.edges[target].at
    needed = False
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        needed |= not is_support(soft, target, now.place[shifts + u], 1)
    tally.work += 2 * now.cell[i]
    if not needed:
        return
    for e in range(net.factors[a].first, net.factors[a].end):
        if e == target:
            continue
        j = net.edges[e].variable
        begin_j, shifts_j = net.variables[j].at, net.edges[e].at
        for k in range(now.cell[j]):
            v = now.domain[begin_j + k]
            cost = now.cell[begin_j + v]
            if cost > 0:
                write(soft, begin_j + v, 0)
                write(soft, shifts_j + v, now.cell[shifts_j + v] - cost)
                wait(soft, j, CHANGED)
    project_table(soft, target, False)
    for e in range(net.factors[a].first, net.factors[a].end):
        if e != target and tally.failed == 0:
            project_table(soft, e, True)
