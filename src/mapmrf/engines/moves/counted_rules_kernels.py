"""Cost of changing one variable under the constraints of a model, by counters that are kept up to date."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import inlined

SUM, PARITY, OUTPUT = 0, 1, 2
"""Condition of a rule: its sum is within limits, odd, or positive iff its output is 1."""

CLOSE = 1e-9
"""Excesses up to this count as round-off."""


class CountedRules(NamedTuple):
    """Constraints as rules on sums.

    Attributes
    ----------
    kind, least, most : (n_rules,)
        Condition of each rule, and its limits; `least` is the parity.
    hard : (n_rules,)
        Whether a rule must hold.
    price : (n_rules,)
        Cost per unit of excess of a violated hard rule, and penalty of a soft one.
    unit : (n_rules,)
        Unit of the excess.
    touch_ptr : (n_states + 1,)
        The rules that a state contributes to: those from ``touch_ptr[s]`` to ``touch_ptr[s + 1]``.
    rule, weight, is_output
        The rule of each contribution, its amount, and whether it goes to the output.
    total, output : (n_rules,)
        The current sums and outputs.
    """

    kind: Ints
    least: Floats
    most: Floats
    hard: Bools
    price: Floats
    unit: Floats
    touch_ptr: Ints
    rule: Ints
    weight: Floats
    is_output: Bools
    total: Floats
    output: Floats


@inlined
def excess(rules: CountedRules, c: int, total: float, output: float) -> float:
    """Return the violation of a rule."""
    kind = rules.kind[c]
    if kind == SUM:
        over: float = max(rules.least[c] - total, total - rules.most[c])
        return over / rules.unit[c] if over > CLOSE * rules.unit[c] else 0.0
    if kind == PARITY:
        return float(abs(total % 2.0 - rules.least[c]))
    return abs(min(total, 1.0) - output)


@inlined
def cost(rules: CountedRules, c: int, total: float, output: float) -> float:
    """Return the cost of a rule."""
    over = excess(rules, c, total, output)
    if over == 0.0:
        return 0.0
    return float(rules.price[c] * over if rules.hard[c] else rules.price[c])


@inlined
def rule_change(rules: CountedRules, old: int, new: int, t: int) -> float:
    """Return the cost change of the rule of contribution `t` if state `old` becomes `new`, as indices of `theta_v`."""
    c = rules.rule[t]
    total, output = rules.total[c], rules.output[c]
    for u in range(rules.touch_ptr[old], rules.touch_ptr[old + 1]):
        if rules.rule[u] == c:
            if rules.is_output[u]:
                output -= 1.0
            else:
                total -= rules.weight[u]
    for u in range(rules.touch_ptr[new], rules.touch_ptr[new + 1]):
        if rules.rule[u] == c:
            if rules.is_output[u]:
                output += 1.0
            else:
                total += rules.weight[u]
    return cost(rules, c, total, output) - cost(rules, c, rules.total[c], rules.output[c])


@inlined
def change_of_rules(rules: CountedRules, old: int, new: int) -> float:
    """Return the cost change of all rules if a variable changes from one state to another."""
    total = 0.0
    begin, end = rules.touch_ptr[old], rules.touch_ptr[old + 1]
    for t in range(begin, end):
        seen = False
        for u in range(begin, t):
            seen = seen or rules.rule[u] == rules.rule[t]
        if not seen:
            total += rule_change(rules, old, new, t)
    first = rules.touch_ptr[new]
    for t in range(first, rules.touch_ptr[new + 1]):
        seen = False
        for u in range(begin, end):
            seen = seen or rules.rule[u] == rules.rule[t]
        for u in range(first, t):
            seen = seen or rules.rule[u] == rules.rule[t]
        if not seen:
            total += rule_change(rules, old, new, t)
    return total


@inlined
def add_touches(rules: CountedRules, state: int, sign: float) -> None:
    """Add or subtract the contributions of a state to sums and outputs."""
    for t in range(rules.touch_ptr[state], rules.touch_ptr[state + 1]):
        if rules.is_output[t]:
            rules.output[rules.rule[t]] += sign
        else:
            rules.total[rules.rule[t]] += sign * rules.weight[t]


@inlined
def broken_rules(rules: CountedRules) -> int:
    """Return the number of violated hard rules."""
    broken = 0
    for c in range(len(rules.kind)):
        if rules.hard[c] and excess(rules, c, rules.total[c], rules.output[c]) > 0.0:
            broken += 1
    return broken
