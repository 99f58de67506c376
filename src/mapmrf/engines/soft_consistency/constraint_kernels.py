"""Propagation of rules: states without support are removed, and violated rules incur their penalty."""

from __future__ import annotations

from mapmrf.arrays import Ints
from mapmrf.compilation.jit import bare, inlined
from mapmrf.constraints.flat import ConstraintKind
from mapmrf.engines.soft_consistency.network_kernels import (
    FORBIDDEN,
    RAISED,
    SoftNetwork,
    raise_lower,
    remove,
    wait_changed,
    wait_raised,
    wait_unsettled,
    write,
)

OPEN, HOLDS, FAILS = 0, 1, 2
"""Status of a rule: undetermined, satisfied, or violated."""


@bare
def apply_constraint(soft: SoftNetwork, c: int) -> None:
    """Propagate a rule, and decide it if its outcome is final."""
    now, tally, rule = soft.now, soft.tally, soft.rules.rules[c]
    if now.cell[rule.at] == 1:
        return
    tally.culprit = -1 - c
    tally.work += rule.end - rule.first
    binding = now.cell[tally.n_vars] + rule.penalty >= tally.upper
    if rule.kind == ConstraintKind.LINEAR:
        known = _apply_sum(soft, c)
    elif rule.kind == ConstraintKind.XOR:
        known = _apply_parity(soft, c, binding)
    elif rule.kind == ConstraintKind.OR:
        known = _apply_output(soft, c, binding)
    else:
        known = _apply_difference(soft, c, binding)
    if tally.failed == 1 or known == OPEN:
        return
    if known == FAILS and rule.penalty >= FORBIDDEN:
        tally.failed = 1
        return
    _decide(soft, c, rule.penalty if known == FAILS else 0)


@bare
def _decide(soft: SoftNetwork, c: int, paid: int) -> None:
    """Pay the cost of a decided rule, and take its prices back: it has no further effect."""
    rule = soft.rules.rules[c]
    write(soft, rule.at, 1)
    if rule.kind == ConstraintKind.LINEAR and soft.now.cell[rule.at + 1] != 0:
        change_price(soft, c, 0, paid)
    else:
        raise_lower(soft, paid + unused_prices(soft, c))


@bare
def _apply_sum(soft: SoftNetwork, c: int) -> int:
    """Propagate LINEAR: the sum lies between its minimum and maximum."""
    net, now, rules, rule = soft.net, soft.now, soft.rules, soft.rules.rules[c]
    low, high, total, fixed = 0, 0, 0.0, True
    for m in range(rule.first, rule.end):
        i = rules.links[m].variable
        least, most = gain_range(soft, m)
        low, high = low + least, high + most
        fixed = fixed and now.cell[i] == 1
        total += rules.weights[rules.links[m].gains + now.domain[net.variables[i].at]]
    if fixed:
        return HOLDS if rule.smallest <= total <= rule.largest else FAILS
    if low > rule.most or high < rule.least:
        return FAILS
    if low >= rule.least + rule.slack and high <= rule.most - rule.slack:
        return HOLDS
    price = now.cell[rule.at + 1]  # has paid for part of the violation
    paid = max(0, price * (high - rule.most if price > 0 else low - rule.least)) if price != 0 else 0
    if now.cell[soft.tally.n_vars] + rule.penalty - paid >= soft.tally.upper or rule.penalty >= FORBIDDEN:
        for m in range(rule.first, rule.end):
            if soft.tally.failed == 0 and now.cell[rules.links[m].variable] > 1:
                least, most = gain_range(soft, m)
                _keep_between(soft, m, rule.least - high + most, rule.most - low + least)
    return OPEN


@bare
def gain_range(soft: SoftNetwork, m: int) -> tuple[int, int]:
    """Return the minimum and maximum gain of a link."""
    net, now, rules = soft.net, soft.now, soft.rules
    i, at = rules.links[m].variable, rules.links[m].gains
    begin = net.variables[i].at
    least = most = rules.gains[at + now.domain[begin]]
    for k in range(1, now.cell[i]):
        gain = rules.gains[at + now.domain[begin + k]]
        least, most = min(least, gain), max(most, gain)
    return least, most


@bare
def _keep_between(soft: SoftNetwork, m: int, least: int, most: int) -> None:
    """Remove the states of a link whose gain is out of bounds."""
    net, now, rules = soft.net, soft.now, soft.rules
    i, at = rules.links[m].variable, rules.links[m].gains
    begin = net.variables[i].at
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[begin + k]
        if soft.tally.failed == 0 and not least <= rules.gains[at + u] <= most:
            remove(soft, i, u)


@bare
def _apply_parity(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate XOR: all but one variable determine the parity of the last."""
    rule = soft.rules.rules[c]
    parity, n_free, last = 0, 0, -1
    for m in range(rule.first, rule.end):
        least, most = gain_range(soft, m)
        if least != most:
            n_free, last = n_free + 1, m
        else:
            parity ^= least
    if n_free == 0:
        return HOLDS if parity == rule.least else FAILS
    if n_free == 1 and binding:
        wanted = parity ^ rule.least
        _keep_between(soft, last, wanted, wanted)
    return OPEN


@bare
def _apply_output(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate OR: the output is 1 iff an input is; the last link has the output, and may have inputs as well."""
    rule = soft.rules.rules[c]
    can, must = 0, 0
    for m in range(rule.first, rule.end - 1):
        least, most = gain_range(soft, m)
        can, must = can + (most == 1), must + (least == 1)
    last = rule.end - 1
    on, off, wrong = _outputs(soft, last)
    possible = (on and can > 0) or (off and must == 0)
    if not possible:
        return FAILS
    if not (on and must == 0) and not (off and can > 0) and not wrong:
        return HOLDS
    if not binding:
        return OPEN
    _keep_output(soft, last, can > 0, must == 0)
    for m in range(rule.first, last):
        least, most = gain_range(soft, m)
        others = can - (most == 1) > 0
        free = must - (least == 1) == 0
        if not on:
            _keep_between(soft, m, 0, 0)
        if not ((on and others) or (off and free)):
            _keep_between(soft, m, 1, 1)
    return OPEN


@bare
def _outputs(soft: SoftNetwork, m: int) -> tuple[bool, bool, bool]:
    """Return whether the output may be 1, may be 0, and may be 0 although an input of the same variable is 1."""
    net, now, rules = soft.net, soft.now, soft.rules
    i, at = rules.links[m].variable, rules.links[m].gains
    on = off = wrong = False
    for k in range(now.cell[i]):
        gain = rules.gains[at + now.domain[net.variables[i].at + k]]
        on, off, wrong = on or gain == 2, off or gain == 0, wrong or gain == 1
    return on, off, wrong


@bare
def _keep_output(soft: SoftNetwork, m: int, on: bool, off: bool) -> None:
    """Remove the states of the output that are inconsistent with the inputs."""
    net, now, rules = soft.net, soft.now, soft.rules
    i, at = rules.links[m].variable, rules.links[m].gains
    begin = net.variables[i].at
    for k in range(now.cell[i] - 1, -1, -1):
        u = now.domain[begin + k]
        gain = rules.gains[at + u]
        if soft.tally.failed == 0 and not ((gain == 2 and on) or (gain == 0 and off)):
            remove(soft, i, u)


@bare
def _apply_difference(soft: SoftNetwork, c: int, binding: bool) -> int:
    """Propagate ALL_DIFFERENT: assigned states are taken; too few states are a violation."""
    net, now, rules, rule, room = soft.net, soft.now, soft.rules, soft.rules.rules[c], soft.rules.room
    n_states = net_states(soft, c)
    n_links, fixed = rule.end - rule.first, True
    for u in range(n_states):
        room.takers[u], room.owner[u] = 0, -1
    for m in range(rule.first, rule.end):
        i = rules.links[m].variable
        begin = net.variables[i].at
        for k in range(now.cell[i]):
            room.takers[now.domain[begin + k]] += 1
        fixed = fixed and now.cell[i] == 1
        if now.cell[i] == 1:
            if room.owner[now.domain[begin]] >= 0:
                return FAILS
            room.owner[now.domain[begin]] = m
    if fixed:
        return HOLDS
    n_used = 0
    for u in range(n_states):
        n_used += room.takers[u] > 0
    if n_used < n_links:
        return FAILS
    if binding:
        _take_away(soft, c, room.owner)
        if n_used == n_links:
            _give_last(soft, c)
    return OPEN


@bare
def net_states(soft: SoftNetwork, c: int) -> int:
    """Return the maximum number of states over the variables of a rule."""
    most, rule = 0, soft.rules.rules[c]
    for m in range(rule.first, rule.end):
        most = max(most, soft.net.variables[soft.rules.links[m].variable].card)
    return most


@bare
def _take_away(soft: SoftNetwork, c: int, owner: Ints) -> None:
    """Remove states that are assigned to another variable."""
    net, now, rules, rule = soft.net, soft.now, soft.rules, soft.rules.rules[c]
    for m in range(rule.first, rule.end):
        i = rules.links[m].variable
        begin = net.variables[i].at
        for k in range(now.cell[i] - 1, -1, -1):
            u = now.domain[begin + k]
            if soft.tally.failed == 0 and owner[u] >= 0 and owner[u] != m:
                remove(soft, i, u)


@bare
def _give_last(soft: SoftNetwork, c: int) -> None:
    """With as many states as variables, assign a state that only one variable can take."""
    net, now, rules, rule, count = soft.net, soft.now, soft.rules, soft.rules.rules[c], soft.rules.room.takers
    for m in range(rule.first, rule.end):
        i = rules.links[m].variable
        begin, single = net.variables[i].at, -1
        for k in range(now.cell[i]):
            if count[now.domain[begin + k]] == 1:
                single = now.domain[begin + k]
        if single < 0:
            continue
        for k in range(now.cell[i] - 1, -1, -1):
            u = now.domain[begin + k]
            if soft.tally.failed == 0 and u != single:
                remove(soft, i, u)


@bare
def constraint_cost(soft: SoftNetwork, c: int, labels: Ints) -> int:
    """Return the current cost of labels in a rule: the penalty if violated, and the leftover of its prices."""
    rules, rule = soft.rules, soft.rules.rules[c]
    total, weighted = 0, 0.0
    for m in range(rule.first, rule.end):
        at = rules.links[m].gains + labels[rules.links[m].variable]
        total, weighted = total + rules.gains[at], weighted + rules.weights[at]
    price = soft.now.cell[rule.at + 1] if rule.kind == ConstraintKind.LINEAR else 0
    if rule.kind == ConstraintKind.LINEAR:
        holds = rule.smallest <= weighted <= rule.largest
    elif rule.kind == ConstraintKind.XOR:
        holds = total % 2 == rule.least
    elif rule.kind == ConstraintKind.OR:
        last = rules.links[rule.end - 1]
        output = rules.gains[last.gains + labels[last.variable]] == 2
        holds = (total - 2 * output > 0) == output
    else:
        return _difference_cost(soft, c, labels)
    left = price * limit_at(soft, c, price) - price * total
    if holds:
        return int(left)
    return int(rule.penalty) if rule.penalty >= FORBIDDEN else int(rule.penalty + left)


@bare
def _difference_cost(soft: SoftNetwork, c: int, labels: Ints) -> int:
    """Return the same for ALL_DIFFERENT."""
    rules, rule, room = soft.rules, soft.rules.rules[c], soft.rules.room
    left, count = 0, room.takers
    for u in range(net_states(soft, c)):
        count[u] = 0
    for k in range(rule.n_prices):
        left += soft.now.cell[rule.at + 1 + k]
    for m in range(rule.first, rule.end):
        u = labels[rules.links[m].variable]
        if count[u] > 0:
            return int(rule.penalty)
        count[u] = 1
        if u < rule.n_prices:
            left -= soft.now.cell[rule.at + 1 + u]
    return int(left)


# Prices of rules: unary costs move into the lower bound by what every labelling that satisfies a rule must pay.
# The price of a sum is the Lagrange multiplier of its limit, found by bisection, as the bound is concave in it. The
# prices of ALL_DIFFERENT are the duals of an assignment problem, by shortest augmenting paths.

ASKS = 64
"""Maximum number of bisection and doubling steps for a price."""


@bare
def price_constraint(soft: SoftNetwork, c: int) -> None:
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
