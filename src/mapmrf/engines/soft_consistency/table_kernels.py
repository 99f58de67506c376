"""Cost shifting for factors of more than two variables, by enumerating the remaining configurations."""

from __future__ import annotations

from mapmrf.compilation.jit import bare
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    SoftNetwork,
    raise_bound,
    raise_state,
    remove,
    wait_changed,
    write,
)

MOST_CONFIGURATIONS = 1 << 16
"""Maximum number of remaining configurations for which costs are projected to variables."""

MOST_GATHERED = 1 << 10
"""Maximum number of remaining configurations for which unary costs are moved through a factor."""


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
def project_table(soft: SoftNetwork, target: int) -> None:
    """Project: move the minimum cost over each state's configurations to the state; forbidden states are removed."""
    net, now, tally = soft.net, soft.now, soft.tally
    i = net.edges[target].variable
    begin, shifts = net.variables[i].at, net.edges[target].at
    n_before, moved = now.cell[i], False
    tally.work += 2 * n_before
    for k in range(n_before - 1, -1, -1):
        u = now.domain[begin + k]
        if is_support(soft, target, now.place[shifts + u], 0):
            continue
        least, config = cheapest_configuration(soft, target, u, 0)
        now.place[shifts + u] = config
        if least >= FORBIDDEN:
            remove(soft, i, u)
        elif least > 0:
            write(soft, shifts + u, now.cell[shifts + u] + least)
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
        if e != target:
            _extend_all(soft, e)
    project_table(soft, target)
    for e in range(net.factors[a].first, net.factors[a].end):
        if e != target and tally.failed == 0:
            _give_back(soft, e)


@bare
def _extend_all(soft: SoftNetwork, e: int) -> None:
    """Extend all unary costs of a variable into a factor."""
    net, now = soft.net, soft.now
    j = net.edges[e].variable
    begin, shifts = net.variables[j].at, net.edges[e].at
    for k in range(now.cell[j]):
        v = now.domain[begin + k]
        cost = now.cell[begin + v]
        if cost > 0:
            write(soft, begin + v, 0)
            write(soft, shifts + v, now.cell[shifts + v] - cost)
            wait_changed(soft, j)


@bare
def _give_back(soft: SoftNetwork, e: int) -> None:
    """Return the unary costs that a factor does not need to their states; nothing is queued for that."""
    net, now = soft.net, soft.now
    j = net.edges[e].variable
    begin, shifts = net.variables[j].at, net.edges[e].at
    for k in range(now.cell[j] - 1, -1, -1):
        v = now.domain[begin + k]
        if is_support(soft, e, now.place[shifts + v], 0):
            continue
        least, config = cheapest_configuration(soft, e, v, 0)
        now.place[shifts + v] = config
        if least >= FORBIDDEN:
            remove(soft, j, v)
        elif least > 0:
            write(soft, shifts + v, now.cell[shifts + v] + least)
            write(soft, begin + v, now.cell[begin + v] + least)
    raise_bound(soft, j)
