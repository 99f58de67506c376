"""The constraints of a cost network: propagation, costs and prices."""

from __future__ import annotations

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.constraints.flat import DIFFERENT, OUTPUT, PARITY, WITHIN
from mapmrf.engines.soft_consistency.network import (
    FORBIDDEN,
    SoftNetwork,
    raise_lower,
    remove,
    wait_costs,
    write,
)

# Propagation of constraints: states without support are removed, and violated constraints incur their penalty.


OPEN, HOLDS, FAILS = 0, 1, 2  # status of a constraint: undetermined, satisfied, or violated


@bare
def apply_constraint(soft: SoftNetwork, c: int) -> None:
    """Propagate a constraint, and decide it if its outcome is final."""
    now, tally, constraint = soft.now, soft.tally, soft.constraints.records[c]
    if now.cell[constraint.at] == 1:
        return
    tally.culprit = -1 - c
    tally.work += constraint.end - constraint.first
    binding = now.cell[tally.n_vars] + constraint.penalty >= tally.upper
    if constraint.condition == WITHIN:
        known = _apply_sum(soft, c)
    elif constraint.condition == PARITY:
        known = _apply_parity(soft, c, binding)
    elif constraint.condition == OUTPUT:
        known = _apply_output(soft, c, binding)
    else:
        known = _apply_difference(soft, c, binding)
    if tally.failed == 1 or known == OPEN:
        return
    if known == FAILS and constraint.penalty >= FORBIDDEN:
        tally.failed = 1
        return
    paid = constraint.penalty if known == FAILS else 0
    write(soft, constraint.at, 1)  # it has no further effect: its prices are taken back
    if constraint.condition == WITHIN and now.cell[constraint.at + 1] != 0:
        change_price(soft, c, 0, paid)
    else:
        if constraint.condition == DIFFERENT and constraint.n_prices > 0:  # those of unused states
            for k in range(constraint.n_prices):
                paid += now.cell[constraint.at + 1 + k]
            for m in range(constraint.first, constraint.end):
                i = soft.constraints.links[m].variable
                paid -= now.cell[constraint.at + 1 + now.domain[soft.net.variables[i].at]]
        raise_lower(soft, paid)


@bare
def _apply_sum(soft: SoftNetwork, c: int) -> int:
    """Propagate WITHIN: the sum lies between its minimum and maximum."""
    net, now, constraints = soft.net, soft.now, soft.constraints
    constraint = constraints.records[c]
    low, high, total, fixed = 0, 0, 0.0, True
    for m in range(constraint.first, constraint.end):
        i = constraints.links[m].variable
        least, most = gain_range(soft, m)
        low, high = low + least, high + most
        fixed = fixed and now.cell[i] == 1
        total += constraints.weights[constraints.links[m].gains + now.domain[net.variables[i].at]]
    if fixed:
        return HOLDS if constraint.smallest <= total <= constraint.largest else FAILS
    if low > constraint.most or high < constraint.least:
        return FAILS
    if low >= constraint.least + constraint.slack and high <= constraint.most - constraint.slack:
        return HOLDS
    price = now.cell[constraint.at + 1]  # has paid for part of the violation
    paid = max(0, price * (high - constraint.most if price > 0 else low - constraint.least)) if price != 0 else 0
    if now.cell[soft.tally.n_vars] + constraint.penalty - paid >= soft.tally.upper or constraint.penalty >= FORBIDDEN:
        for m in range(constraint.first, constraint.end):
            if soft.tally.failed == 0 and now.cell[constraints.links[m].variable] > 1:
                least, most = gain_range(soft, m)
                _keep_between(soft, m, constraint.least - high + most, constraint.most - low + least)
    return OPEN


@bare
def gain_range(soft: SoftNetwork, m: int) -> tuple[int, int]:
    net, now, constraints = soft.net, soft.now, soft.constraints
    i, at = constraints.links[m].variable, constraints.links[m].gains
    begin = net.variables[i].at
    least = most = constraints.gains[at + now.domain[begin]]
    for k in range(1, now.cell[i]):
        gain = constraints.gains[at + now.domain[begin + k]]
        least, most = min(least, gain), max(most, gain)
    return least, most


@bare
def _keep_between(soft: SoftNetwork, m: int, least: int, most: int) -> None:
    """Remove the states of a link whose gain is out of bounds."""
    net, now, constraints = soft.net, soft.now, soft.constraints
    i, at = constraints.links[m].variable, constraints.links[m].gains
    begin = net.variables[i].at
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[begin + k]
        if soft.tally.failed == 0 and not least <= constraints.gains[at + u] <= most:
            remove(soft, i, u)


@bare
def _apply_parity(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate PARITY: all but one variable determine the parity of the last."""
    constraint = soft.constraints.records[c]
    parity, n_free, last = 0, 0, -1
    for m in range(constraint.first, constraint.end):
        least, most = gain_range(soft, m)
        if least != most:
            n_free, last = n_free + 1, m
        else:
            parity ^= least
    if n_free == 0:
        return HOLDS if parity == constraint.least else FAILS
    if n_free == 1 and binding:
        wanted = parity ^ constraint.least
        _keep_between(soft, last, wanted, wanted)
    return OPEN


@bare
def _apply_output(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate OUTPUT: the output is 1 iff an input is; the last link has the output, and may have inputs as well."""
    net, now, constraints = soft.net, soft.now, soft.constraints
    constraint = constraints.records[c]
    can, must = 0, 0
    for m in range(constraint.first, constraint.end - 1):
        least, most = gain_range(soft, m)
        can, must = can + (most == 1), must + (least == 1)
    last = constraint.end - 1
    i, at = constraints.links[last].variable, constraints.links[last].gains
    on = off = wrong = False  # the output may be 1, may be 0, and may be 0 although an input of its variable is 1
    for k in range(now.cell[i]):
        gain = constraints.gains[at + now.domain[net.variables[i].at + k]]
        on, off, wrong = on or gain == 2, off or gain == 0, wrong or gain == 1
    possible = (on and can > 0) or (off and must == 0)
    if not possible:
        return FAILS
    if not (on and must == 0) and not (off and can > 0) and not wrong:
        return HOLDS
    if not binding:
        return OPEN
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[net.variables[i].at + k]
        gain = constraints.gains[at + u]
        if soft.tally.failed == 0 and not ((gain == 2 and can > 0) or (gain == 0 and must == 0)):
            remove(soft, i, u)
    for m in range(constraint.first, last):
        least, most = gain_range(soft, m)
        others = can - (most == 1) > 0
        free = must - (least == 1) == 0
        if not on:
            _keep_between(soft, m, 0, 0)
        if not ((on and others) or (off and free)):
            _keep_between(soft, m, 1, 1)
    return OPEN


@bare
def _apply_difference(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate DIFFERENT: assigned states are taken; too few states are a violation."""
    net, now, constraints = soft.net, soft.now, soft.constraints
    constraint, matching = constraints.records[c], constraints.matching
    n_links, fixed = constraint.end - constraint.first, True
    for u in range(constraint.most):
        matching[u].takers, matching[u].owner = 0, -1
    for m in range(constraint.first, constraint.end):
        i = constraints.links[m].variable
        begin = net.variables[i].at
        for k in range(now.cell[i]):
            matching[now.domain[begin + k]].takers += 1
        fixed = fixed and now.cell[i] == 1
        if now.cell[i] == 1:
            if matching[now.domain[begin]].owner >= 0:
                return FAILS
            matching[now.domain[begin]].owner = m
    if fixed:
        return HOLDS
    n_used = 0
    for u in range(constraint.most):
        n_used += matching[u].takers > 0
    if n_used < n_links:
        return FAILS
    if binding:
        for m in range(constraint.first, constraint.end):  # states that are assigned to another variable
            i = constraints.links[m].variable
            begin = net.variables[i].at
            for k in range(now.cell[i] - 1, -1, -1):
                u = now.domain[begin + k]
                if soft.tally.failed == 0 and matching[u].owner >= 0 and matching[u].owner != m:
                    remove(soft, i, u)
        for m in range(constraint.first, constraint.end if n_used == n_links else constraint.first):
            i, single = constraints.links[m].variable, -1  # a state that only one variable can take is assigned to it
            begin = net.variables[i].at
            for k in range(now.cell[i]):
                if matching[now.domain[begin + k]].takers == 1:
                    single = now.domain[begin + k]
            for k in range(now.cell[i] - 1 if single >= 0 else -1, -1, -1):
                u = now.domain[begin + k]
                if soft.tally.failed == 0 and u != single:
                    remove(soft, i, u)
    return OPEN


@bare
def constraint_cost(soft: SoftNetwork, c: int, labels: Ints) -> int:
    """Return the current cost of labels in a constraint: the penalty if violated, and the leftover of its prices."""
    constraints, constraint = soft.constraints, soft.constraints.records[c]
    total, weighted = 0, 0.0
    for m in range(constraint.first, constraint.end):
        at = constraints.links[m].gains + labels[constraints.links[m].variable]
        total, weighted = total + constraints.gains[at], weighted + constraints.weights[at]
    price = soft.now.cell[constraint.at + 1] if constraint.condition == WITHIN else 0
    if constraint.condition == WITHIN:
        holds = constraint.smallest <= weighted <= constraint.largest
    elif constraint.condition == PARITY:
        holds = total % 2 == constraint.least
    elif constraint.condition == OUTPUT:
        last = constraints.links[constraint.end - 1]
        output = constraints.gains[last.gains + labels[last.variable]] == 2
        holds = (total - 2 * output > 0) == output
    else:
        return _difference_cost(soft, c, labels)
    left = price * limit_at(soft, c, price) - price * total
    if holds:
        return int(left)
    return int(constraint.penalty) if constraint.penalty >= FORBIDDEN else int(constraint.penalty + left)


@bare
def _difference_cost(soft: SoftNetwork, c: int, labels: Ints) -> int:
    """Return the current cost of labels in DIFFERENT."""
    constraints, constraint, matching = soft.constraints, soft.constraints.records[c], soft.constraints.matching
    left = 0
    for u in range(constraint.most):
        matching[u].takers = 0
    for k in range(constraint.n_prices):
        left += soft.now.cell[constraint.at + 1 + k]
    for m in range(constraint.first, constraint.end):
        u = labels[constraints.links[m].variable]
        if matching[u].takers > 0:
            return int(constraint.penalty)
        matching[u].takers = 1
        if u < constraint.n_prices:
            left -= soft.now.cell[constraint.at + 1 + u]
    return int(left)


# Prices: unary costs move into the lower bound by what every labelling that satisfies a constraint must pay. The price
# of a sum is the Lagrange multiplier of its limit, found by bisection, as the bound is concave in it. The prices of
# DIFFERENT are the duals of an assignment problem, by shortest augmenting paths.

ASKS = 64  # maximum number of bisection and doubling steps for a price


@bare
def price_constraint(soft: SoftNetwork, c: int) -> None:
    """Change the prices of a constraint if that raises the lower bound."""
    now, tally, constraint = soft.now, soft.tally, soft.constraints.records[c]
    if now.cell[constraint.at] == 1 or constraint.n_prices == 0:
        return
    tally.culprit = -1 - c
    if constraint.condition == WITHIN:
        price = now.cell[constraint.at + 1]
        for direction in (1, -1):
            better = _better_price(soft, c, direction)
            if better != price:
                change_price(soft, c, better, 0)
                return
    else:
        _assign_states(soft, c)


@inlined
def limit_at(soft: SoftNetwork, c: int, price: int) -> int:
    constraint = soft.constraints.records[c]
    return int(constraint.most) if price > 0 else (int(constraint.least) if price < 0 else 0)


@bare
def change_price(soft: SoftNetwork, c: int, price: int, paid: int) -> None:
    """Set the price of a sum, and move the difference between unary costs and lower bound."""
    constraint = soft.constraints.records[c]
    before = soft.now.cell[constraint.at + 1]
    rise = paid + before * limit_at(soft, c, before) - price * limit_at(soft, c, price)
    write(soft, constraint.at + 1, price)
    for m in range(constraint.first, constraint.end):
        rise += _reduce(soft, c, m, price - before, True)
    raise_lower(soft, rise)


@bare
def _better_price(soft: SoftNetwork, c: int, direction: int) -> int:
    """Return a price in a direction that raises the lower bound by enough, or the current price."""
    tally, constraint = soft.tally, soft.constraints.records[c]
    price = soft.now.cell[constraint.at + 1]
    room = constraint.highest - price if direction > 0 else price - constraint.lowest
    value, slope = _bound_at(soft, c, price, direction)
    gap = tally.upper - soft.now.cell[tally.n_vars]
    if room <= 0 or slope <= 0 or (slope < tally.least_gain and slope * room < tally.least_gain):
        return int(price)
    start, near, far = value, 0, min(room, max(1, gap // slope))
    best, best_at = start, 0
    is_bracket = False
    for _ in range(ASKS):
        at = (near + far) // 2 if is_bracket else far
        value, here = _bound_at(soft, c, price + direction * at, direction)
        if value > best:
            best, best_at = value, at
        if here > 0:
            near, slope = at, here
        else:
            far, is_bracket = at, True
        if not is_bracket:
            if far == room:
                break
            far = min(room, 2 * far)
        elif far - near <= 1 or slope * (far - near) < tally.least_gain or best - start >= gap:
            break
    return int(price + direction * best_at if best - start >= tally.least_gain else price)


@bare
def _bound_at(soft: SoftNetwork, c: int, price: int, direction: int) -> tuple[int, int]:
    """Return the lower bound at a price, up to a constant, and its slope in a direction."""
    net, now, constraints = soft.net, soft.now, soft.constraints
    constraint = constraints.records[c]
    change = price - now.cell[constraint.at + 1]
    value, total = -price * limit_at(soft, c, price), 0
    for m in range(constraint.first, constraint.end):
        i, at = constraints.links[m].variable, constraints.links[m].gains
        begin = net.variables[i].at
        least, gain_there = FORBIDDEN, 0
        for k in range(now.cell[i]):
            u = now.domain[begin + k]
            gain = direction * constraints.gains[at + u]
            cost = now.cell[begin + u] + change * constraints.gains[at + u]
            if k == 0 or cost < least or (cost == least and gain < gain_there):
                least, gain_there = cost, gain
        value += least
        total += gain_there
        soft.tally.work += now.cell[i]
    side = constraint.most if price > 0 or (price == 0 and direction > 0) else constraint.least
    return value, total - direction * side


@bare
def _assign_states(soft: SoftNetwork, c: int) -> None:
    """Price a hard DIFFERENT by the minimum-cost assignment; fail if there is none."""
    now, tally, constraint, matching = soft.now, soft.tally, soft.constraints.records[c], soft.constraints.matching
    n_states = constraint.n_prices
    for u in range(n_states + 1):
        matching[u].owner, matching[u].price = -1, 0
    for m in range(constraint.first, constraint.end):
        if not _augment(soft, c, m):
            tally.failed = 1
            return
    rise = 0
    for u in range(n_states):
        rise += now.cell[constraint.at + 1 + u] - matching[u].price
    for m in range(constraint.first, constraint.end):
        rise += _reduce(soft, c, m, 0, False)
    if rise < tally.least_gain:
        return
    for m in range(constraint.first, constraint.end):
        _reduce(soft, c, m, 0, True)
    for u in range(n_states):
        write(soft, constraint.at + 1 + u, matching[u].price)
    raise_lower(soft, rise)


@bare
def _augment(soft: SoftNetwork, c: int, m: int) -> bool:
    """Assign one more variable at minimum cost by a shortest augmenting path; False if that is impossible.

    `price` is non-negative, and 0 for unassigned states. `takers` marks the states reached; the position after the last
    state stands for the new variable.
    """
    net, now, constraints = soft.net, soft.now, soft.constraints
    constraint, matching = constraints.records[c], constraints.matching
    end = constraint.n_prices
    for u in range(end + 1):
        matching[u].least, matching[u].takers = FORBIDDEN, 0
    matching[end].owner, reached, far = m, end, 0
    while matching[reached].owner >= 0:
        matching[reached].takers = 1
        i = constraints.links[matching[reached].owner].variable
        begin = net.variables[i].at
        base = 0
        if reached != end:
            base = now.cell[begin + reached] - now.cell[constraint.at + 1 + reached] + matching[reached].price
        for k in range(now.cell[i]):
            u = now.domain[begin + k]
            if matching[u].takers == 0:
                cost = far + now.cell[begin + u] - now.cell[constraint.at + 1 + u] + matching[u].price - base
                if cost < matching[u].least:
                    matching[u].least, matching[u].back = cost, reached
        soft.tally.work += end
        reached, far = -1, FORBIDDEN
        for u in range(end):
            if matching[u].takers == 0 and matching[u].least < far:
                reached, far = u, matching[u].least
        if reached < 0:
            return False
    for u in range(end):
        if matching[u].takers == 1:
            matching[u].price += far - matching[u].least
    while reached != end:
        before = matching[reached].back
        matching[reached].owner = matching[before].owner
        reached = before
    return True


@inlined
def _priced(soft: SoftNetwork, c: int, m: int, u: int, change: int) -> int:
    """Return the cost of a state of a link at new prices: of a sum changed by `change`, or those of an assignment."""
    constraints, constraint, cell = soft.constraints, soft.constraints.records[c], soft.now.cell
    cost = cell[soft.net.variables[constraints.links[m].variable].at + u]
    if constraint.condition == WITHIN:
        return int(cost + change * constraints.gains[constraints.links[m].gains + u])
    return int(cost + constraints.matching[u].price - cell[constraint.at + 1 + u])


@bare
def _reduce(soft: SoftNetwork, c: int, m: int, change: int, writing: bool) -> int:
    """Return the minimum cost of a variable's states at new prices; if `writing`, all costs are lowered by that."""
    now, i, changed = soft.now, soft.constraints.links[m].variable, False
    begin = soft.net.variables[i].at
    least = _priced(soft, c, m, now.domain[begin], change)
    for k in range(1, now.cell[i]):
        least = min(least, _priced(soft, c, m, now.domain[begin + k], change))
    for k in range(now.cell[i] if writing else 0):
        u = now.domain[begin + k]
        cost = _priced(soft, c, m, u, change) - least
        if cost != now.cell[begin + u]:
            write(soft, begin + u, cost)
            changed = True
    if changed:
        wait_costs(soft, i)
    return least
