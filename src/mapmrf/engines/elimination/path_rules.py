"""The constraints of a problem as rules along the paths of a bucket tree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, ranges
from mapmrf.compilation.records import Records, blank, blanks
from mapmrf.constraints.counters import gains_of
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.engines.elimination.bucket_tree import BucketTree, inverse
from mapmrf.engines.elimination.path_rules_kernels import (
    DIFFERENT,
    LOGIC,
    SUM,
    PathLink,
    PathMarks,
    PathRule,
    PathRules,
    PathTally,
    best_sum,
)
from mapmrf.model.problem import Problem

N_BITS = 4
"""Number of values of the bits of LOGIC."""


@dataclass(eq=False)
class RuleForm:
    """A constraint, independent of the order of its variables.

    Attributes
    ----------
    kind
        SUM, LOGIC or DIFFERENT.
    variables
        The distinct variables.
    gain
        Contribution of every variable's states to the sum, or their effect on the bits.
    least, most, penalty
        Limits of the sum, and the cost of a violation.
    final : (4,)
        For LOGIC: value of the final bits.
    toggles
        For LOGIC: whether states flip bits or set them.
    price
        Price per unit of the sum.
    bonus
        For LOGIC: price of every variable's states.
    state_price
        For DIFFERENT: price of each state.
    """

    kind: int
    variables: Ints
    gain: list[Floats]
    penalty: float
    least: float = -math.inf
    most: float = math.inf
    final: Floats = field(default_factory=lambda: np.zeros(N_BITS))
    toggles: bool = False
    price: float = 0.0
    bonus: list[Floats] = field(default_factory=list)
    state_price: Floats = field(default_factory=lambda: np.zeros(0))

    def __post_init__(self) -> None:
        self.bonus = [np.zeros(len(gain)) for gain in self.gain]
        if self.kind == DIFFERENT:
            self.state_price = np.zeros(max(len(gain) for gain in self.gain))

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """Minimum and maximum of the sum."""
        return float(sum(gain.min() for gain in self.gain)), float(sum(gain.max() for gain in self.gain))

    @property
    def guards(self) -> bool:
        """Whether it excludes states: a hard DIFFERENT."""
        return self.kind == DIFFERENT and math.isinf(self.penalty)

    @property
    def is_cost(self) -> bool:
        """Whether it is a cost for the use of any of some states."""
        return self.kind == LOGIC and not self.toggles and self.final[2] == self.final[0] == 0.0 > self.final[1]

    @property
    def scale(self) -> float:
        """Magnitude of its possible values."""
        sums = abs(self.price) * max(map(abs, self.extremes), default=0.0)
        paid = sum(float(np.abs(bonus).max()) for bonus in self.bonus)
        return sums + paid + float(np.abs(self.state_price).sum()) + (0.0 if math.isinf(self.penalty) else self.penalty)

    @property
    def record(self) -> PathRule:
        """Return its record for the kernels."""
        rule = blank(PathRule)
        rule.kind, rule.toggles, rule.guards = self.kind, int(self.toggles), int(self.guards)
        rule.least, rule.most, rule.penalty, rule.price = self.least, self.most, self.penalty, self.price
        rule.n_states, rule.n_links = len(self.state_price), len(self.variables)
        return rule

    @property
    def root(self) -> float:
        """Its best value, at its prices."""
        if self.kind == SUM:
            return float(best_sum(*self.extremes, self.record)[0])
        if self.kind == LOGIC:
            return float(self.worths(range(len(self.variables)))[0][0])
        return float(np.sort(self.state_price)[::-1][: len(self.variables)].sum())

    def worths(self, order: Iterable[int]) -> list[Floats]:
        """For LOGIC: the best remaining value by bits, before the first and after each of the variables in an order."""
        found, bits = [self.final], np.arange(N_BITS)[:, None]
        for at in reversed(list(order)):
            effect = self.gain[at].astype(np.int64)
            after = bits ^ effect if self.toggles else bits | effect
            found.append(np.asarray((self.bonus[at] + found[-1][after]).max(axis=1)))
        return found[::-1]


@dataclass(eq=False)
class RuleForms:
    """All constraints of a problem.

    Attributes
    ----------
    forms
        Those that depend on the labels.
    constant
        Unavoidable penalties: -inf if some hard constraint cannot be satisfied.
    """

    problem: Problem
    forms: list[RuleForm]
    constant: float

    @classmethod
    def of(cls, problem: Problem) -> RuleForms:
        """Convert the constraints of a problem."""
        found = cls(problem, [], 0.0)
        constraints = problem.graph.constraints
        for c in range(0 if constraints is None else len(constraints)):
            assert constraints is not None
            if constraints.penalty[c] > 0:
                found.add(constraints, c)
        return found

    def add(self, constraints: Constraints, c: int) -> None:
        """Add a constraint."""
        card, penalty = self.problem.graph.card, float(constraints.penalty[c])
        if constraints.kind[c] == ConstraintKind.ALL_DIFFERENT:
            variables = constraints.variables(c)
            if len(variables) > int(card[variables].max()):
                self.constant -= penalty
            elif len(variables) > 1:
                self.forms.append(RuleForm(DIFFERENT, variables, [np.zeros(r) for r in card[variables]], penalty))
        elif constraints.kind[c] == ConstraintKind.LINEAR:
            listed, gains = gains_of(constraints, c, card)
            limits = float(constraints.least[c]), float(constraints.most[c])
            self.forms.append(_sum_form(np.array(listed), gains, limits, penalty))
        else:
            self.forms.append(_logic_form(constraints, c, card))

    def possible(self, tree: BucketTree) -> Bools:
        """Return which states have a finite unary potential, by node of a search."""
        graph = self.problem.graph
        places = ranges(graph.var_ptr[tree.var_of], tree.card)
        return np.append(graph.theta_v[places] > -math.inf, True)

    @property
    def scopes(self) -> list[Ints]:
        """The variables of each constraint."""
        return [form.variables for form in self.forms]

    @property
    def root(self) -> float:
        """Sum of their best values, at their prices."""
        return self.constant + sum(form.root for form in self.forms)


def _sum_form(variables: Ints, gains: list[Floats], limits: tuple[float, float], penalty: float) -> RuleForm:
    """Convert LINEAR to a sum, or to LOGIC if it is a cost for any of some states."""
    positive = np.concatenate(gains)
    positive = positive[positive != 0.0]
    any_violates = len(positive) == 0 or float(positive.min()) > max(0.0, limits[1])
    if limits[0] <= 0.0 <= limits[1] and any_violates and math.isfinite(penalty):
        final = np.array([0.0, -penalty, 0.0, -penalty])
        return RuleForm(LOGIC, variables, [(gain > 0.0).astype(np.float64) for gain in gains], penalty, final=final)
    return RuleForm(SUM, variables, gains, penalty, *limits)


def _logic_form(constraints: Constraints, c: int, card: Ints) -> RuleForm:
    """Convert XOR and OR: the bits are the parity, or 'an input is 1', and 'the output is 1'."""
    mine, parity = constraints.span(c), constraints.kind[c] == ConstraintKind.XOR
    effects: dict[int, Ints] = {}
    for at in range(mine.start, mine.stop):
        effect = effects.setdefault(int(constraints.var[at]), np.zeros(card[constraints.var[at]], dtype=np.int64))
        effect[constraints.state[at]] |= 2 if not parity and at == mine.stop - 1 else 1
    good = [int(constraints.lower[c])] if parity else [0, 3]
    final = np.full(N_BITS, -float(constraints.penalty[c]))
    final[good] = 0.0
    gains = [effect.astype(np.float64) for effect in effects.values()]
    return RuleForm(LOGIC, np.array(list(effects)), gains, float(constraints.penalty[c]), final=final, toggles=parity)


def lay_out_paths(tree: BucketTree, forms: Sequence[RuleForm]) -> PathRules:
    """Lay out the rules along a tree that has the variables of each of them on one path."""
    builder = _PathBuilder(tree)
    for form in forms:
        builder.add(form)
    return builder.layout()


class _PathBuilder:
    def __init__(self, tree: BucketTree) -> None:
        self.tree, self.position = tree, inverse(tree.var_of)
        self.forms: list[RuleForm] = []
        self.nodes: list[Ints] = []
        self.links: list[tuple[float, ...]] = []
        self.gain: list[Floats] = []
        self.bonus: list[Floats] = []
        self.worth: list[Floats] = []
        self.n_gains = 0

    def add(self, form: RuleForm) -> None:
        """Add a rule, with its links from the root down."""
        places = self.position[form.variables]
        order = np.argsort(places)
        low = np.cumsum([0.0, *(form.gain[v].min() for v in order[::-1])])[::-1]
        high = np.cumsum([0.0, *(form.gain[v].max() for v in order[::-1])])[::-1]
        first, first_worth = len(self.links), N_BITS * len(self.worth)
        for place, v in enumerate(order.tolist()):
            before = first + place - 1 if place else -1
            worth = first_worth + N_BITS * place
            self.links.append((len(self.forms), place, before, self.n_gains, worth, low[place + 1], high[place + 1]))
            self.gain.append(form.gain[v])
            self.bonus.append(form.bonus[v])
            self.n_gains += len(form.gain[v])
        if form.kind == LOGIC:
            self.worth += form.worths(order)[1:]
        self.nodes.append(places[order])
        self.forms.append(form)

    def layout(self) -> PathRules:
        """Assemble all rules, with the links sorted by node."""
        n_nodes, prices = self.tree.n + 1, [form.state_price for form in self.forms]
        node = _joined(self.nodes, np.int64)
        by = np.argsort(node, kind="stable")
        links = blanks(PathLink, len(self.links))
        for m, link in enumerate(self.links):
            links[m] = link
        links.before[:] = np.where(links.before >= 0, inverse(by)[links.before], -1)
        state_ptr = offsets(np.append(self.tree.card, 1)).astype(np.int64)
        guarded = np.zeros(n_nodes, dtype=np.bool_)
        for form, nodes in zip(self.forms, self.nodes, strict=True):
            guarded[nodes] |= form.guards
        return PathRules(
            rules=self.rules(),
            links=links[by],
            link_ptr=offsets(np.bincount(node, minlength=n_nodes)).astype(np.int64),
            gain=_joined(self.gain, np.float64),
            bonus=_joined(self.bonus, np.float64),
            worth=_joined(self.worth, np.float64),
            member_ptr=offsets(np.array([len(nodes) for nodes in self.nodes], dtype=np.int64)).astype(np.int64),
            member=node,
            state_price=_joined(prices, np.float64),
            ranked=_joined([np.argsort(-price, kind="stable") for price in prices], np.int64),
            rule_of=np.repeat(np.arange(len(self.forms)), [len(price) for price in prices]),
            guarded=guarded,
            state_ptr=state_ptr,
            node_of=np.repeat(np.arange(n_nodes), np.diff(state_ptr)),
        )

    def rules(self) -> Records:
        """Return the records of all rules."""
        rules, at = blanks(PathRule, len(self.forms)), 0
        for c, form in enumerate(self.forms):
            rules[c] = form.record
            rules[c].root, rules[c].at = form.root, at
            at += len(form.state_price)
        return np.asarray(rules)


def _joined(parts: Sequence[Ints | Floats], kind: type) -> Any:
    return np.concatenate([np.zeros(0, dtype=kind), *parts]).astype(kind)


def new_marks(rules: PathRules, alive: Bools) -> PathMarks:
    """Allocate marks without labels; `alive` are the possible states by node. Single choices are queued."""
    n_nodes, n_links = len(rules.guarded), len(rules.links)
    left = np.add.reduceat(alive, rules.state_ptr[:-1], dtype=np.int64)
    used = np.zeros(len(rules.state_price), dtype=np.int64)
    holders = np.zeros(len(used), dtype=np.int64)
    for c, rule in enumerate(rules.rules):
        for p in rules.member[rules.member_ptr[c] : rules.member_ptr[c + 1]] if rule["guards"] else ():
            mine = alive[rules.state_ptr[p] : rules.state_ptr[p + 1]]
            holders[rule["at"] : rule["at"] + len(mine)] += mine
    every = (rules.rules["guards"] == 1) & (rules.rules["n_links"] == rules.rules["n_states"])  # all states are used
    single = np.flatnonzero(every[rules.rule_of] & (holders == 1))
    first = np.concatenate([np.flatnonzero((left == 1) & rules.guarded), n_nodes + single])
    queue = np.zeros(2 * n_nodes + 2 * len(used) + 4, dtype=np.int64)
    queue[: len(first)] = first
    tally = blank(PathTally)
    tally.queued = len(first)
    tally.failed = int(np.any(left == 0) or np.any(every[rules.rule_of] & (holders == 0)))
    return PathMarks(
        total=np.zeros(n_links),
        bits=np.zeros(n_links, dtype=np.int64),
        used=used,
        holders=holders,
        repeats=np.zeros(len(rules.rules), dtype=np.int64),
        alive=alive,
        left=left,
        trail=np.zeros(len(alive), dtype=np.int64),
        trail_at=np.zeros(n_nodes, dtype=np.int64),
        held=np.full(n_nodes, -1, dtype=np.int64),
        queue=queue,
        tally=tally,
    )
