"""The constraints of a problem along the paths of a bucket tree."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, Records, blank, blanks, offsets, ranges
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.constraints.as_tables import gains_of
from mapmrf.constraints.flat import ConstraintKind, Constraints
from mapmrf.engines.elimination.elimination import BucketTree, inverse
from mapmrf.engines.elimination.mini_buckets import CostShifting
from mapmrf.model.problem import Problem

N_BITS = 4  # number of values of the bits of LOGIC


@dataclass(eq=False)
class ConstraintForm:
    """A constraint, independent of the order of its variables."""

    kind: int  # SUM, LOGIC or DIFFERENT
    variables: Ints  # the distinct variables
    gain: list[Floats]  # contribution of every variable's states to the sum, or their effect on the bits
    penalty: float  # cost of a violation
    least: float = -math.inf  # limits of the sum
    most: float = math.inf
    final: Floats = field(default_factory=lambda: np.zeros(N_BITS))  # (4,): for LOGIC: value of the final bits
    toggles: bool = False  # for LOGIC: whether states flip bits or set them
    price: float = 0.0  # price per unit of the sum
    bonus: list[Floats] = field(default_factory=list)  # for LOGIC: price of every variable's states
    state_price: Floats = field(default_factory=lambda: np.zeros(0))  # for DIFFERENT: price of each state

    def __post_init__(self) -> None:
        self.bonus = [np.zeros(len(gain)) for gain in self.gain]
        if self.kind == DIFFERENT:
            self.state_price = np.zeros(max(len(gain) for gain in self.gain))

    @cached_property
    def extremes(self) -> tuple[float, float]:
        return float(sum(gain.min() for gain in self.gain)), float(sum(gain.max() for gain in self.gain))

    @property
    def guards(self) -> bool:
        return self.kind == DIFFERENT and math.isinf(self.penalty)

    @property
    def scale(self) -> float:
        sums = abs(self.price) * max(map(abs, self.extremes), default=0.0)
        paid = sum(float(np.abs(bonus).max()) for bonus in self.bonus)
        return sums + paid + float(np.abs(self.state_price).sum()) + (0.0 if math.isinf(self.penalty) else self.penalty)

    @property
    def record(self) -> PathConstraint:
        found = blank(PathConstraint)
        found.kind, found.toggles, found.guards = self.kind, int(self.toggles), int(self.guards)
        found.least, found.most, found.penalty, found.price = self.least, self.most, self.penalty, self.price
        found.n_states, found.n_links = len(self.state_price), len(self.variables)
        return found

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
class ConstraintForms:
    problem: Problem
    forms: list[ConstraintForm]  # those that depend on the labels
    constant: float  # unavoidable penalties: -inf if some hard constraint cannot be satisfied

    @classmethod
    def of(cls, problem: Problem) -> ConstraintForms:
        found = cls(problem, [], 0.0)
        constraints = problem.graph.constraints
        for c in range(0 if constraints is None else len(constraints)):
            assert constraints is not None
            if constraints.penalty[c] > 0:
                found.add(constraints, c)
        return found

    def add(self, constraints: Constraints, c: int) -> None:
        card, penalty = self.problem.graph.card, float(constraints.penalty[c])
        if constraints.kind[c] == ConstraintKind.ALL_DIFFERENT:
            variables = constraints.variables(c)
            if len(variables) > int(card[variables].max()):
                self.constant -= penalty
            elif len(variables) > 1:
                self.forms.append(ConstraintForm(DIFFERENT, variables, [np.zeros(r) for r in card[variables]], penalty))
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
        return [form.variables for form in self.forms]

    @property
    def root(self) -> float:
        """Sum of their best values, at their prices."""
        return self.constant + sum(form.root for form in self.forms)


def _sum_form(variables: Ints, gains: list[Floats], limits: tuple[float, float], penalty: float) -> ConstraintForm:
    """Convert LINEAR to a sum, or to LOGIC if it is a cost for any of some states."""
    positive = np.concatenate(gains)
    positive = positive[positive != 0.0]
    any_violates = len(positive) == 0 or float(positive.min()) > max(0.0, limits[1])
    if limits[0] <= 0.0 <= limits[1] and any_violates and math.isfinite(penalty):
        final = np.array([0.0, -penalty, 0.0, -penalty])
        return ConstraintForm(
            LOGIC, variables, [(gain > 0.0).astype(np.float64) for gain in gains], penalty, final=final
        )
    return ConstraintForm(SUM, variables, gains, penalty, *limits)


def _logic_form(constraints: Constraints, c: int, card: Ints) -> ConstraintForm:
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
    return ConstraintForm(
        LOGIC, np.array(list(effects)), gains, float(constraints.penalty[c]), final=final, toggles=parity
    )


def lay_out_paths(tree: BucketTree, forms: Sequence[ConstraintForm]) -> PathConstraints:
    """Lay out constraints, their links from the root down, along a tree with the variables of each on one path."""
    position, n_nodes, prices = inverse(tree.var_of), tree.n + 1, [form.state_price for form in forms]
    listed: list[tuple[float, ...]] = []
    nodes, gain, bonus = [], [], []
    worth: list[Floats] = []
    n_gains, state_ptr = 0, offsets(np.append(tree.card, 1)).astype(np.int64)
    records, guarded, at = blanks(PathConstraint, len(forms)), np.zeros(n_nodes, dtype=np.bool_), 0
    for c, form in enumerate(forms):
        order = np.argsort(position[form.variables])
        low = np.cumsum([0.0, *(form.gain[v].min() for v in order[::-1])])[::-1]
        high = np.cumsum([0.0, *(form.gain[v].max() for v in order[::-1])])[::-1]
        first_worth = N_BITS * len(worth)
        for place, v in enumerate(order.tolist()):
            before, worth_at = len(listed) - 1 if place else -1, first_worth + N_BITS * place
            listed.append((c, place, before, n_gains, worth_at, low[place + 1], high[place + 1]))
            gain.append(form.gain[v])
            bonus.append(form.bonus[v])
            n_gains += len(form.gain[v])
        if form.kind == LOGIC:
            worth += form.worths(order)[1:]
        nodes.append(position[form.variables][order])
        guarded[nodes[-1]] |= form.guards
        records[c] = form.record
        records[c].root, records[c].at = form.root, at
        at += len(form.state_price)
    node = _joined(nodes, np.int64)
    by = np.argsort(node, kind="stable")
    links = blanks(PathLink, len(listed))
    for m, link in enumerate(listed):
        links[m] = link
    links.before[:] = np.where(links.before >= 0, inverse(by)[links.before], -1)
    return PathConstraints(
        records=np.asarray(records),
        links=links[by],
        link_ptr=offsets(np.bincount(node, minlength=n_nodes)).astype(np.int64),
        gain=_joined(gain, np.float64),
        bonus=_joined(bonus, np.float64),
        worth=_joined(worth, np.float64),
        member_ptr=offsets(np.array([len(form.variables) for form in forms], dtype=np.int64)).astype(np.int64),
        member=node,
        state_price=_joined(prices, np.float64),
        ranked=_joined([np.argsort(-price, kind="stable") for price in prices], np.int64),
        constraint_of=np.repeat(np.arange(len(forms)), [len(price) for price in prices]),
        guarded=guarded,
        state_ptr=state_ptr,
        node_of=np.repeat(np.arange(n_nodes), np.diff(state_ptr)),
    )


def _joined(parts: Sequence[Ints | Floats], kind: type) -> Any:
    return np.concatenate([np.zeros(0, dtype=kind), *parts]).astype(kind)


def new_marks(paths: PathConstraints, alive: Bools) -> PathMarks:
    """Allocate marks without labels; `alive` are the possible states by node. Single choices are queued."""
    n_nodes, n_links = len(paths.guarded), len(paths.links)
    left = np.add.reduceat(alive, paths.state_ptr[:-1], dtype=np.int64)
    used = np.zeros(len(paths.state_price), dtype=np.int64)
    holders = np.zeros(len(used), dtype=np.int64)
    for c, constraint in enumerate(paths.records):
        for p in paths.member[paths.member_ptr[c] : paths.member_ptr[c + 1]] if constraint["guards"] else ():
            mine = alive[paths.state_ptr[p] : paths.state_ptr[p + 1]]
            holders[constraint["at"] : constraint["at"] + len(mine)] += mine
    records = paths.records
    every = (records["guards"] == 1) & (records["n_links"] == records["n_states"])  # all states are used
    single = np.flatnonzero(every[paths.constraint_of] & (holders == 1))
    first = np.concatenate([np.flatnonzero((left == 1) & paths.guarded), n_nodes + single])
    queue = np.zeros(2 * n_nodes + 2 * len(used) + 4, dtype=np.int64)
    queue[: len(first)] = first
    tally = blank(PathTally)
    tally.queued = len(first)
    tally.failed = int(np.any(left == 0) or np.any(every[paths.constraint_of] & (holders == 0)))
    return PathMarks(
        total=np.zeros(n_links),
        bits=np.zeros(n_links, dtype=np.int64),
        used=used,
        holders=holders,
        repeats=np.zeros(len(paths.records), dtype=np.int64),
        alive=alive,
        left=left,
        trail=np.zeros(len(alive), dtype=np.int64),
        trail_at=np.zeros(n_nodes, dtype=np.int64),
        held=np.full(n_nodes, -1, dtype=np.int64),
        queue=queue,
        tally=tally,
    )


# -- Constraints in a depth-first search: counters along the paths of a bucket tree, and excluded states --------------
# The variables of a constraint lie on one path from a root down, and are labelled in this order. Its state after each
# of them is stored per variable, its *link*, so that most of it need not be undone; used and excluded states have a
# trail. A constraint changes the bound of a label by the decrease of its best outcome: the sum along a path is its
# value.

SUM, LOGIC, DIFFERENT = 0, 1, 2
"""Kinds of constraints: a sum between limits; two bits that the states change; variables whose states differ."""


class PathConstraint:
    kind: int  # SUM, LOGIC or DIFFERENT
    toggles: int  # whether a state flips the bits of LOGIC (1), or sets them (0)
    least: float  # limits of the sum
    most: float
    penalty: float  # what a violation costs; inf if it is forbidden
    price: float  # what a unit of the sum has been taken from the unary potentials for
    root: float  # what the constraint is worth at best
    at: int  # of DIFFERENT: where its states begin in `used`
    n_states: int  # of DIFFERENT
    n_links: int  # of DIFFERENT: number of its variables
    guards: int  # whether states that are taken are excluded elsewhere: a hard DIFFERENT


class PathLink:
    constraint: int
    place: int  # the variable's place on the path
    before: int  # the link before it; -1 if it is the first
    gains: int  # where its gains begin
    worth: int  # of LOGIC: where the worth of the bits after it begins
    low: float  # of SUM: the least sum of the links to come
    high: float  # of SUM: their largest sum


class PathConstraints(NamedTuple):
    records: Records  # a `PathConstraint` each
    links: Records  # a `PathLink` each
    link_ptr: Ints  # (n + 2,): the links of every node
    gain: Floats  # by link and state: what the state adds to the sum, or does to the bits
    bonus: Floats  # by link and state: what it has been paid for by LOGIC
    worth: Floats  # by link of LOGIC and bits: what is to be had at best from there on
    member_ptr: Ints
    member: Ints  # the nodes of every constraint, in the order of the path
    state_price: Floats  # by DIFFERENT and state: what the state has been paid for
    ranked: Ints  # by DIFFERENT: its states by falling price
    constraint_of: Ints  # by DIFFERENT and state: the constraint
    guarded: Bools  # (n + 1,): which nodes are in a hard DIFFERENT
    state_ptr: Ints
    node_of: Ints  # where the states of every node begin, and the node of every state


class PathTally:
    """Heights of the trail and of the queue, and whether a constraint cannot be satisfied any more."""

    height: int
    queued: int
    failed: int


class PathMarks(NamedTuple):
    total: Floats  # (n_links,): sum after each link
    bits: Ints  # (n_links,): bits after each link
    used: Ints  # by DIFFERENT and state: the variables that have it
    holders: Ints  # by DIFFERENT and state: the variables that may have it
    repeats: Ints  # (n_constraints,): variables with a state that another one has
    alive: Bools  # which states are not excluded
    left: Ints  # how many of each node
    trail: Ints  # the states excluded
    trail_at: Ints  # the height of the trail before the label of each node
    held: Ints  # (n + 1,): the label that a node has, -1 if none
    queue: Ints  # what is to be looked at: nodes with one state left, and states (after all nodes) with one holder left
    tally: PathTally


@inlined
def best_sum(low: float, high: float, constraint: PathConstraint) -> tuple[float, float]:
    """Return the best value of a sum in [low, high], at the constraint's price and with its penalty, and that sum."""
    price, value, at = constraint.price, -np.inf, low
    first, last = max(low, constraint.least), min(high, constraint.most)
    if first <= last:
        at = last if price > 0.0 else first
        value = price * at
    if constraint.penalty < np.inf:
        if low < constraint.least:
            other = min(high, constraint.least) if price > 0.0 else low
            if price * other - constraint.penalty > value:
                value, at = price * other - constraint.penalty, other
        if high > constraint.most:
            other = high if price > 0.0 else max(low, constraint.most)
            if price * other - constraint.penalty > value:
                value, at = price * other - constraint.penalty, other
    return value, at


@bare
def add_worths(a: int, paths: PathConstraints, marks: PathMarks, own: Floats) -> None:
    """Subtract the loss of the constraints for each label of node `a`."""
    at_v = paths.state_ptr[a]
    n_k = paths.state_ptr[a + 1] - at_v
    for m in range(paths.link_ptr[a], paths.link_ptr[a + 1]):
        link = paths.links[m]
        constraint = paths.records[link.constraint]
        if constraint.kind == SUM:  # the interval of sums that are left shrinks
            total, root = 0.0, constraint.root
            if link.before >= 0:
                before = paths.links[link.before]
                total = marks.total[link.before]
                root = best_sum(total + before.low, total + before.high, constraint)[0]
            for k in range(n_k):
                sum_after = total + paths.gain[link.gains + k]
                own[at_v + k] += best_sum(sum_after + link.low, sum_after + link.high, constraint)[0] - root
        elif constraint.kind == LOGIC:
            bits = marks.bits[link.before] if link.before >= 0 else 0
            now = paths.worth[paths.links[link.before].worth + bits] if link.before >= 0 else constraint.root
            for k in range(n_k):
                after = _bits_after(m, k, bits, paths)
                own[at_v + k] += paths.bonus[link.gains + k] + paths.worth[link.worth + after] - now
        elif constraint.guards == 1:
            dear = _dearest(m, paths, marks)
            for k in range(n_k):
                own[at_v + k] += min(0.0, paths.state_price[constraint.at + k] - dear)
        elif marks.repeats[link.constraint] == 0:
            for k in range(n_k):
                if marks.used[constraint.at + k] > 0:
                    own[at_v + k] -= constraint.penalty
    if paths.guarded[a]:
        for k in range(n_k):
            if not marks.alive[at_v + k]:
                own[at_v + k] = -np.inf


@inlined
def _bits_after(m: int, k: int, bits: int, paths: PathConstraints) -> int:
    link = paths.links[m]
    effect = int(paths.gain[link.gains + k])
    return bits ^ effect if paths.records[link.constraint].toggles == 1 else bits | effect


@inlined
def _dearest(m: int, paths: PathConstraints, marks: PathMarks) -> float:
    """DIFFERENT: the lowest of the highest prices of unused states, one for each variable that is left."""
    link = paths.links[m]
    constraint = paths.records[link.constraint]
    wanted = constraint.n_links - link.place
    for r in range(constraint.n_states):
        k = paths.ranked[constraint.at + r]
        wanted -= marks.used[constraint.at + k] == 0
        if wanted == 0:
            return float(paths.state_price[constraint.at + k])
    return np.inf


@bare
def take_label(a: int, k: int, paths: PathConstraints, marks: PathMarks) -> bool:
    """Give node `a` the label `k`: constraints count, and exclude states. False if one cannot be satisfied any more."""
    tally = marks.tally
    marks.held[a], marks.trail_at[a] = k, tally.height
    for m in range(paths.link_ptr[a], paths.link_ptr[a + 1]):
        link = paths.links[m]
        constraint = paths.records[link.constraint]
        if constraint.kind == SUM:
            before = marks.total[link.before] if link.before >= 0 else 0.0
            marks.total[m] = before + paths.gain[link.gains + k]
        elif constraint.kind == LOGIC:
            marks.bits[m] = _bits_after(m, k, marks.bits[link.before] if link.before >= 0 else 0, paths)
        else:
            marks.repeats[link.constraint] += marks.used[constraint.at + k] > 0
            marks.used[constraint.at + k] += 1
    if not paths.guarded[a]:
        return True
    _keep_only(a, k, paths, marks)
    return exclude_forced(paths, marks)


@bare
def drop_label(a: int, paths: PathConstraints, marks: PathMarks) -> None:
    k = marks.held[a]
    if k < 0:
        return
    marks.held[a] = -1
    for m in range(paths.link_ptr[a], paths.link_ptr[a + 1]):
        c = paths.links[m].constraint
        if paths.records[c].kind == DIFFERENT:
            marks.used[paths.records[c].at + k] -= 1
            marks.repeats[c] -= marks.used[paths.records[c].at + k] > 0
    while marks.tally.height > marks.trail_at[a]:
        marks.tally.height -= 1
        s = marks.trail[marks.tally.height]
        i = paths.node_of[s]
        marks.alive[s] = True
        marks.left[i] += 1
        for m in range(paths.link_ptr[i], paths.link_ptr[i + 1]):
            constraint = paths.records[paths.links[m].constraint]
            if constraint.guards == 1:
                marks.holders[constraint.at + s - paths.state_ptr[i]] += 1


@bare
def _exclude(i: int, k: int, paths: PathConstraints, marks: PathMarks) -> None:
    """Exclude a state of a node; what this leaves a single choice for is queued."""
    tally, n_nodes = marks.tally, len(marks.left)
    s = paths.state_ptr[i] + k
    marks.alive[s] = False
    marks.trail[tally.height] = s
    tally.height += 1
    marks.left[i] -= 1
    if marks.left[i] == 0:
        tally.failed = 1
    elif marks.left[i] == 1:
        marks.queue[tally.queued] = i
        tally.queued += 1
    for m in range(paths.link_ptr[i], paths.link_ptr[i + 1]):
        constraint = paths.records[paths.links[m].constraint]
        if constraint.guards == 0:
            continue
        marks.holders[constraint.at + k] -= 1
        if constraint.n_links == constraint.n_states and marks.holders[constraint.at + k] <= 1:
            if marks.holders[constraint.at + k] == 0:
                tally.failed = 1
            marks.queue[tally.queued] = n_nodes + constraint.at + k
            tally.queued += 1


@bare
def _keep_only(i: int, k: int, paths: PathConstraints, marks: PathMarks) -> None:
    for s in range(paths.state_ptr[i], paths.state_ptr[i + 1]):
        if marks.alive[s] and s != paths.state_ptr[i] + k:
            _exclude(i, s - paths.state_ptr[i], paths, marks)
    marks.queue[marks.tally.queued] = i
    marks.tally.queued += 1


@compiled
def exclude_forced(paths: PathConstraints, marks: PathMarks) -> bool:
    """Exclude what single choices exclude, until there are no more; False if a hard DIFFERENT cannot be satisfied."""
    tally, n_nodes = marks.tally, len(marks.left)
    while tally.queued > 0 and tally.failed == 0:
        tally.queued -= 1
        i = marks.queue[tally.queued]
        if i < n_nodes:  # its only state is excluded for the others of its constraints
            k = 0
            while not marks.alive[paths.state_ptr[i] + k]:
                k += 1
            for m in range(paths.link_ptr[i], paths.link_ptr[i + 1]):
                c = paths.links[m].constraint
                if paths.records[c].guards == 1:
                    for at in range(paths.member_ptr[c], paths.member_ptr[c + 1]):
                        p = paths.member[at]
                        has = paths.state_ptr[p] + k < paths.state_ptr[p + 1]
                        if p != i and has and marks.alive[paths.state_ptr[p] + k] and tally.failed == 0:
                            _exclude(p, k, paths, marks)
            continue
        c = paths.constraint_of[i - n_nodes]
        k = i - n_nodes - paths.records[c].at  # every labelling uses this state, and only one node may have it
        for at in range(paths.member_ptr[c], paths.member_ptr[c + 1]):
            p = paths.member[at]
            has = paths.state_ptr[p] + k < paths.state_ptr[p + 1]
            if has and marks.alive[paths.state_ptr[p] + k] and marks.left[p] > 1:
                _keep_only(p, k, paths, marks)
                break
    possible = tally.failed == 0
    tally.failed = tally.queued = 0
    return possible


# -- Prices of constraints, moved between them and the unary potentials to lower their joint bound --------------------


MOST_ASSIGNED = 300  # maximum number of variables for which an ALL_DIFFERENT constraint has prices


class ConstraintPrices:
    """Optimises the prices of constraints, on the unary potentials of cost shifting."""

    def __init__(self, constraints: ConstraintForms, shifting: CostShifting) -> None:
        self.constraints, self.shifting = constraints, shifting
        at = constraints.problem.graph.var_ptr
        self._places = [ranges(at[form.variables], [len(gain) for gain in form.gain]) for form in constraints.forms]

    def update(self) -> None:
        self.shifting.collect()
        for form, places in zip(self.constraints.forms, self._places, strict=True):
            final = form.final
            if form.kind == SUM:
                theta, gain = self.shifting.theta_v, np.concatenate(form.gain)
                score = theta[places] + form.price * gain
                ptr = offsets(np.array([len(each) for each in form.gain])).astype(np.int64)
                form.price = find_price(ptr, gain, score, form.extremes, form.record)
                theta[places] = score - form.price * gain
            elif form.guards and len(form.variables) <= MOST_ASSIGNED:
                self._price_states(form, places)
            elif form.kind == LOGIC and not form.toggles and final[2] == final[0] == 0.0 > final[1]:
                self._price_cost(form, places)

    def bound(self) -> float:
        return self.shifting.bound() + self.constraints.root

    def _price_states(self, form: ConstraintForm, places: Ints) -> None:
        theta = self.shifting.theta_v
        states = np.concatenate([np.arange(len(gain)) for gain in form.gain])
        row = np.repeat(np.arange(len(form.variables)), [len(gain) for gain in form.gain])
        score = np.full((len(form.variables), len(form.state_price)), -np.inf)
        score[row, states] = theta[places] + form.state_price[states]
        price = assignment_prices(score)
        if price is not None:
            form.state_price = price
            theta[places] = score[row, states] - price[states]

    def _price_cost(self, form: ConstraintForm, places: Ints) -> None:
        """Compensate the gains of the states, in equal parts, up to the label's cost."""
        theta, bonus, on = self.shifting.theta_v, np.concatenate(form.bonus), np.concatenate(form.gain) > 0.0
        score, begin = theta[places] + bonus, offsets(np.array([len(gain) for gain in form.gain])).astype(np.int64)[:-1]
        owner = np.repeat(np.arange(len(begin)), [len(gain) for gain in form.gain])
        other = np.maximum.reduceat(np.where(on, -np.inf, score), begin)[owner]
        with np.errstate(invalid="ignore"):
            gains = np.where(on & np.isfinite(score), np.maximum(0.0, score - other), 0.0)
        wanted = float(np.maximum.reduceat(gains, begin).sum())
        if not math.isfinite(wanted):
            return  # some variable has no other state: nothing to decide
        gains *= min(1.0, form.penalty / wanted) if wanted > 0.0 else 1.0
        theta[places] = score - gains
        form.bonus = np.split(gains, begin[1:])


def assignment_prices(score: Floats) -> Floats | None:
    """Return column prices at which the best columns of all rows are distinct; None if there are none."""
    from scipy.optimize import linear_sum_assignment

    n, n_states = score.shape
    square = np.zeros((n_states, n_states))
    square[:n] = score
    try:
        row, column = linear_sum_assignment(square, maximize=True)
    except ValueError:
        return None
    chosen = np.empty(n_states, dtype=np.int64)
    chosen[row] = column
    excess = square - square[np.arange(n_states), chosen][:, None]  # gain of a row from a column over its assigned one
    price = np.zeros(n_states)
    for _ in range(n_states):
        higher = np.maximum(price, (price[chosen][:, None] + excess).max(axis=0))
        if np.array_equal(higher, price):
            break
        price = higher
    return np.asarray(price - price.min())


HALVINGS = 60  # bisection steps


@bare
def _priced_bound(
    ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], constraint: PathConstraint
) -> tuple[float, float]:
    """The bound of all variables and the constraint at its price, and its slope."""
    value, at = best_sum(ends[0], ends[1], constraint)
    for v in range(len(ptr) - 1):
        best, chosen = -np.inf, 0.0
        for s in range(ptr[v], ptr[v + 1]):
            if score[s] - constraint.price * gain[s] > best:
                best, chosen = score[s] - constraint.price * gain[s], gain[s]
        value += best
        at -= chosen
    return value, at


@compiled
def find_price(ptr: Ints, gain: Floats, score: Floats, ends: tuple[float, float], constraint: PathConstraint) -> float:
    """The price at which scores and constraint have the least bound; it is convex in the price."""
    spread, step = 0.0, np.inf
    for v in range(len(ptr) - 1):
        for s in range(ptr[v], ptr[v + 1]):
            for t in range(ptr[v], s):
                if np.isfinite(score[s]) and np.isfinite(score[t]) and gain[s] != gain[t]:
                    spread = max(spread, abs(score[s] - score[t]))
                    step = min(step, abs(gain[s] - gain[t]))
    if step == np.inf:
        return float(constraint.price)
    price = constraint.price
    best = _priced_bound(ptr, gain, score, ends, constraint)[0]
    low, high = -2.0 * spread / step, 2.0 * spread / step  # beyond all kinks, and of the scale of the scores
    for _ in range(HALVINGS):
        constraint.price = 0.5 * (low + high)
        value, slope = _priced_bound(ptr, gain, score, ends, constraint)
        if value < best:
            best, price = value, constraint.price
        if slope > 0.0:
            high = constraint.price
        elif slope < 0.0:
            low = constraint.price
        else:
            break
    return float(price)
