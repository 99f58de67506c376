"""Moving costs out of and through factors of more than two variables: by looking at all configurations left."""

from __future__ import annotations

from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    SoftNetwork,
    raise_bound,
    raise_state,
    remove,
    wait_changed,
    write,
)
from mapmrf.kernels.jit import bare

MOST_CONFIGURATIONS = 1 << 16
"""Configurations left up to which a factor's costs are moved to its variables."""

MOST_GATHERED = 1 << 10
"""Configurations left up to which costs of variables are moved through a factor."""


@bare
def configurations_left(soft: SoftNetwork, a: int) -> int:
    """Number of configurations of a factor that its variables still allow, up to a limit."""
    net, now = soft.net, soft.now
    n = 1
    for e in range(net.scope_ptr[a], net.scope_ptr[a + 1]):
        n *= now.cell[net.scope[e]]
        if n > MOST_CONFIGURATIONS:
            break
    return int(n)


@bare
def is_support(soft: SoftNetwork, target: int, config: int, unary: int) -> bool:
    """Whether a configuration is allowed and costs 0; with `unary` 1 also the states of the other variables."""
    net, now = soft.net, soft.now
    a = net.factor_of[target]
    cost = net.costs[net.table_at[a] + config]
    for e in range(net.scope_ptr[a], net.scope_ptr[a + 1]):
        i = net.scope[e]
        u = config // net.stride[e] % net.card[i]
        if now.where[net.var_at[i] + u] >= now.cell[i]:
            return False
        cost -= now.cell[net.edge_at[e] + u]
        if unary == 1 and e != target and now.cell[net.var_at[i] + u] > 0:
            return False
    return bool(cost == 0)


@bare
def cheapest_configuration(soft: SoftNetwork, target: int, u: int, unary: int) -> tuple[int, int]:
    """The least cost of a state over the configurations that contain it, and one of these that attains it.

    With `unary` 1 the costs of the other variables' states are added; with 2 only of those not seen in this visit.
    """
    net, now, todo = soft.net, soft.now, soft.todo
    a = net.factor_of[target]
    config, shift, n_free = u * net.stride[target], now.cell[net.edge_at[target] + u], 0
    last, n_last = -1, 0
    for e in range(net.scope_ptr[a], net.scope_ptr[a + 1]):
        if e == target:
            continue
        j = net.scope[e]
        if now.cell[j] == 1:
            config, shift = _with_state(soft, e, 0, unary, config, shift)
            continue
        if now.cell[j] > n_last:
            if last >= 0:
                todo.free[n_free] = last
                n_free += 1
            last, n_last = e, now.cell[j]
        else:
            todo.free[n_free] = e
            n_free += 1
    if last < 0:
        return int(net.costs[net.table_at[a] + config] - shift), int(config)
    return _odometer(soft, last, n_free, unary, config, shift)


@bare
def _with_state(soft: SoftNetwork, e: int, k: int, unary: int, config: int, shift: int) -> tuple[int, int]:
    """Place and shifts of a configuration with the k-th state left of an edge added."""
    net, now = soft.net, soft.now
    j = net.scope[e]
    begin = net.var_at[j]
    v = now.domain[begin + k]
    shift += now.cell[net.edge_at[e] + v]
    if unary == 1 or (unary == 2 and soft.todo.seen[j] != soft.tally.visit):
        shift -= now.cell[begin + v]
    return int(config + v * net.stride[e]), int(shift)


@bare
def _odometer(soft: SoftNetwork, last: int, n_free: int, unary: int, config: int, shift: int) -> tuple[int, int]:
    """The cheapest of the configurations that complete one: the free places count up, the last one runs fastest."""
    net, now, todo = soft.net, soft.now, soft.todo
    table = net.table_at[net.factor_of[last]]
    j = net.scope[last]
    begin, n_last, step, shifts = net.var_at[j], now.cell[j], net.stride[last], net.edge_at[last]
    counted = 1 if unary == 1 or (unary == 2 and todo.seen[j] != soft.tally.visit) else 0
    least, best = 2 * FORBIDDEN, config
    depth = 0
    while True:
        while depth < n_free:
            todo.base[depth], todo.shift[depth], todo.digit[depth] = config, shift, 0
            config, shift = _with_state(soft, todo.free[depth], 0, unary, config, shift)
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
        while depth >= 0 and todo.digit[depth] + 1 == now.cell[net.scope[todo.free[depth]]]:
            depth -= 1
        if depth < 0:
            break
        todo.digit[depth] += 1
        config, shift = _with_state(
            soft, todo.free[depth], todo.digit[depth], unary, todo.base[depth], todo.shift[depth]
        )
        depth += 1
    return int(least), int(best)


@bare
def project_table(soft: SoftNetwork, target: int) -> None:
    """Move to every state what all its configurations cost at least; forbidden states go."""
    net, now, tally = soft.net, soft.now, soft.tally
    i = net.scope[target]
    begin, shifts = net.var_at[i], net.edge_at[target]
    n_before, moved = now.cell[i], False
    tally.work += 2 * n_before
    for k in range(n_before - 1, -1, -1):
        u = now.domain[begin + k]
        if is_support(soft, target, now.support[shifts + u], 0):
            continue
        least, config = cheapest_configuration(soft, target, u, 0)
        now.support[shifts + u] = config
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
    """Move to every state what its configurations cost at least together with the other variables' states.

    The other variables put all their costs into the factor, and take back what is not needed.
    """
    net, now, tally = soft.net, soft.now, soft.tally
    i, a = net.scope[target], net.factor_of[target]
    begin, shifts = net.var_at[i], net.edge_at[target]
    needed = False
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        needed |= not is_support(soft, target, now.support[shifts + u], 1)
    tally.work += 2 * now.cell[i]
    if not needed:
        return
    for e in range(net.scope_ptr[a], net.scope_ptr[a + 1]):
        if e != target:
            _extend_all(soft, e)
    project_table(soft, target)
    for e in range(net.scope_ptr[a], net.scope_ptr[a + 1]):
        if e != target and tally.failed == 0:
            _give_back(soft, e)


@bare
def _extend_all(soft: SoftNetwork, e: int) -> None:
    """Move all costs of a variable's states into a factor."""
    net, now = soft.net, soft.now
    j = net.scope[e]
    begin, shifts = net.var_at[j], net.edge_at[e]
    for k in range(now.cell[j]):
        v = now.domain[begin + k]
        cost = now.cell[begin + v]
        if cost > 0:
            write(soft, begin + v, 0)
            write(soft, shifts + v, now.cell[shifts + v] - cost)
            wait_changed(soft, j)


@bare
def _give_back(soft: SoftNetwork, e: int) -> None:
    """Move what a factor does not need back to the states that it came from; nobody need wait for that."""
    net, now = soft.net, soft.now
    j = net.scope[e]
    begin, shifts = net.var_at[j], net.edge_at[e]
    for k in range(now.cell[j] - 1, -1, -1):
        v = now.domain[begin + k]
        if is_support(soft, e, now.support[shifts + v], 0):
            continue
        least, config = cheapest_configuration(soft, e, v, 0)
        now.support[shifts + v] = config
        if least >= FORBIDDEN:
            remove(soft, j, v)
        elif least > 0:
            write(soft, shifts + v, now.cell[shifts + v] + least)
            write(soft, begin + v, now.cell[begin + v] + least)
    raise_bound(soft, j)
