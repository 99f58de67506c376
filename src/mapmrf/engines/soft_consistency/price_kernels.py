"""Prices of rules: unary costs move into the lower bound by what every labelling that satisfies a rule must pay.

The price of a sum is the Lagrange multiplier of its limit, found by bisection, as the bound is concave in it. The
prices of ALL_DIFFERENT are the duals of an assignment problem, by shortest augmenting paths.
"""

from __future__ import annotations

from mapmrf.compilation.jit import bare, inlined
from mapmrf.constraints.flat import ConstraintKind
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    RAISED,
    SoftNetwork,
    raise_lower,
    wait_changed,
    wait_raised,
    wait_unsettled,
    write,
)

ASKS = 64
"""Maximum number of bisection and doubling steps for a price."""


@bare
def price_rule(soft: SoftNetwork, c: int) -> None:
    """Change the prices of a rule if that raises the lower bound."""
    now, tally, rule = soft.now, soft.tally, soft.rules.rules[c]
    if now.cell[rule.at] == 1 or rule.n_prices == 0:
        return
    tally.culprit = -1 - c
    if rule.kind == ConstraintKind.LINEAR:
        price = now.cell[rule.at + 1]
        for direction in (1, -1):
            better = _better_price(soft, c, direction)
            if better != price:
                change_price(soft, c, better, 0)
                return
    else:
        _assign_states(soft, c)


@inlined
def limit_at(soft: SoftNetwork, c: int, price: int) -> int:
    """Return the limit to which a price belongs."""
    rule = soft.rules.rules[c]
    return int(rule.most) if price > 0 else (int(rule.least) if price < 0 else 0)


@bare
def change_price(soft: SoftNetwork, c: int, price: int, paid: int) -> None:
    """Set the price of a sum, and move the difference between unary costs and lower bound."""
    net, now, rules, rule = soft.net, soft.now, soft.rules, soft.rules.rules[c]
    before = now.cell[rule.at + 1]
    rise = paid + before * limit_at(soft, c, before) - price * limit_at(soft, c, price)
    write(soft, rule.at + 1, price)
    for m in range(rule.first, rule.end):
        i, at = rules.links[m].variable, rules.links[m].gains
        begin, n = net.variables[i].at, now.cell[i]
        least = now.cell[begin + now.domain[begin]] + (price - before) * rules.gains[at + now.domain[begin]]
        for k in range(1, n):
            u = now.domain[begin + k]
            least = min(least, now.cell[begin + u] + (price - before) * rules.gains[at + u])
        rise += least
        changed = False
        for k in range(n):
            u = now.domain[begin + k]
            cost = now.cell[begin + u] + (price - before) * rules.gains[at + u] - least
            if cost != now.cell[begin + u]:
                write(soft, begin + u, cost)
                changed = True
        if changed:
            _wait(soft, i)
    raise_lower(soft, rise)


@bare
def _wait(soft: SoftNetwork, i: int) -> None:
    """Queue a variable whose costs have changed."""
    if soft.net.variables[i].reasons & RAISED == 0:
        soft.net.variables[i].reasons |= RAISED
        wait_raised(soft, i)
    wait_changed(soft, i)
    wait_unsettled(soft, i)


@bare
def _better_price(soft: SoftNetwork, c: int, direction: int) -> int:
    """Return a price in a direction that raises the lower bound by enough, or the current price."""
    tally, rule = soft.tally, soft.rules.rules[c]
    price = soft.now.cell[rule.at + 1]
    room = rule.highest - price if direction > 0 else price - rule.lowest
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
    net, now, rules, rule = soft.net, soft.now, soft.rules, soft.rules.rules[c]
    change = price - now.cell[rule.at + 1]
    value, total = -price * limit_at(soft, c, price), 0
    for m in range(rule.first, rule.end):
        i, at = rules.links[m].variable, rules.links[m].gains
        begin = net.variables[i].at
        least, gain_there = FORBIDDEN, 0
        for k in range(now.cell[i]):
            u = now.domain[begin + k]
            gain = direction * rules.gains[at + u]
            cost = now.cell[begin + u] + change * rules.gains[at + u]
            if k == 0 or cost < least or (cost == least and gain < gain_there):
                least, gain_there = cost, gain
        value += least
        total += gain_there
        soft.tally.work += now.cell[i]
    side = rule.most if price > 0 or (price == 0 and direction > 0) else rule.least
    return value, total - direction * side


@bare
def unused_prices(soft: SoftNetwork, c: int) -> int:
    """Return the leftover of the prices of ALL_DIFFERENT once its variables are decided: those of unused states."""
    net, now, rules, rule = soft.net, soft.now, soft.rules, soft.rules.rules[c]
    if rule.kind != ConstraintKind.ALL_DIFFERENT or rule.n_prices == 0:
        return 0
    left = 0
    for k in range(rule.n_prices):
        left += now.cell[rule.at + 1 + k]
    for m in range(rule.first, rule.end):
        left -= now.cell[rule.at + 1 + now.domain[net.variables[rules.links[m].variable].at]]
    return int(left)


@bare
def _assign_states(soft: SoftNetwork, c: int) -> None:
    """Price hard ALL_DIFFERENT by the minimum-cost assignment; fail if there is none."""
    now, tally, rule, room = soft.now, soft.tally, soft.rules.rules[c], soft.rules.room
    n_states = rule.n_prices
    for u in range(n_states + 1):
        room.owner[u], room.price[u] = -1, 0
    for m in range(rule.first, rule.end):
        if not _augment(soft, c, m):
            tally.failed = 1
            return
    rise = 0
    for u in range(n_states):
        rise += now.cell[rule.at + 1 + u] - room.price[u]
    for m in range(rule.first, rule.end):
        rise += _least_reduced(soft, c, m)
    if rise < tally.least_gain:
        return
    for m in range(rule.first, rule.end):
        _reduce(soft, c, m)
    for u in range(n_states):
        write(soft, rule.at + 1 + u, room.price[u])
    raise_lower(soft, rise)


@bare
def _augment(soft: SoftNetwork, c: int, m: int) -> bool:
    """Assign one more variable at minimum cost by a shortest augmenting path; False if that is impossible.

    `price` is non-negative, and 0 for unassigned states. `takers` marks the states reached; the position after the last
    state stands for the new variable.
    """
    net, now, rules, rule, room = soft.net, soft.now, soft.rules, soft.rules.rules[c], soft.rules.room
    end = rule.n_prices
    for u in range(end + 1):
        room.least[u], room.takers[u] = FORBIDDEN, 0
    room.owner[end], reached, far = m, end, 0
    while room.owner[reached] >= 0:
        room.takers[reached] = 1
        i = rules.links[room.owner[reached]].variable
        begin = net.variables[i].at
        base = 0
        if reached != end:
            base = now.cell[begin + reached] - now.cell[rule.at + 1 + reached] + room.price[reached]
        for k in range(now.cell[i]):
            u = now.domain[begin + k]
            if room.takers[u] == 0:
                cost = far + now.cell[begin + u] - now.cell[rule.at + 1 + u] + room.price[u] - base
                if cost < room.least[u]:
                    room.least[u], room.back[u] = cost, reached
        soft.tally.work += end
        reached, far = -1, FORBIDDEN
        for u in range(end):
            if room.takers[u] == 0 and room.least[u] < far:
                reached, far = u, room.least[u]
        if reached < 0:
            return False
    for u in range(end):
        if room.takers[u] == 1:
            room.price[u] += far - room.least[u]
    while reached != end:
        before = room.back[reached]
        room.owner[reached] = room.owner[before]
        reached = before
    return True


@bare
def _least_reduced(soft: SoftNetwork, c: int, m: int) -> int:
    """Return the minimum cost of a variable's states at the new prices."""
    now, rule, price = soft.now, soft.rules.rules[c], soft.rules.room.price
    i = soft.rules.links[m].variable
    begin = soft.net.variables[i].at
    least = FORBIDDEN
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        least = min(least, now.cell[begin + u] + price[u] - now.cell[rule.at + 1 + u])
    return int(least)


@bare
def _reduce(soft: SoftNetwork, c: int, m: int) -> None:
    """Apply the new prices to the costs of a variable's states."""
    now, rule, price = soft.now, soft.rules.rules[c], soft.rules.room.price
    i = soft.rules.links[m].variable
    begin, least, changed = soft.net.variables[i].at, _least_reduced(soft, c, m), False
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        cost = now.cell[begin + u] + price[u] - now.cell[rule.at + 1 + u] - least
        if cost != now.cell[begin + u]:
            write(soft, begin + u, cost)
            changed = True
    if changed:
        _wait(soft, i)
