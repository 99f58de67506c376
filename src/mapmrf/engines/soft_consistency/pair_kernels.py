"""Cost shifting for pairwise factors.

`target` is the edge of the variable that receives costs, `other` that of the other variable.
"""

from __future__ import annotations

from mapmrf.compilation.jit import bare, inlined
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    SoftNetwork,
    raise_bound,
    raise_state,
    remove,
    wait_changed,
    write,
)


@inlined
def pair_cost(soft: SoftNetwork, target: int, other: int, u: int, v: int) -> int:
    """Return the current cost of a configuration."""
    net, cell = soft.net, soft.now.cell
    at = net.factors[net.edges[target].factor].table + u * net.edges[target].stride + v * net.edges[other].stride
    return int(net.costs[at] - cell[net.edges[target].at + u] - cell[net.edges[other].at + v])


@bare
def cheapest_partner(soft: SoftNetwork, target: int, other: int, u: int, unary: int) -> tuple[int, int]:
    """Return the minimum cost of a state over the states of the other variable, and a minimiser.

    With `unary` 1, the unary costs of the other variable are included, with 0 they are not.
    """
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
        least, v = cheapest_partner(soft, target, other, u, 0)
        now.place[shifts + u] = v
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
        least, v = cheapest_partner(soft, target, other, u, 1)
        now.place[shifts + u] = v
        if least >= FORBIDDEN:
            remove(soft, i, u)
        elif least > 0:
            todo.amount[u] = least
            moved = True
    if moved:
        _extend_pair(soft, target, other)
        _collect(soft, target)
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
            wait_changed(soft, j)


@bare
def _collect(soft: SoftNetwork, target: int) -> None:
    """Project the amounts from the factor to the states."""
    net, now, todo = soft.net, soft.now, soft.todo
    i = net.edges[target].variable
    begin, shifts = net.variables[i].at, net.edges[target].at
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[begin + k]
        if todo.amount[u] > 0:
            write(soft, shifts + u, now.cell[shifts + u] + todo.amount[u])
            raise_state(soft, i, u, todo.amount[u])
