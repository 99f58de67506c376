"""Branch and bound with soft arc consistency: dives from the best open node."""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints, Records, blank, blanks
from mapmrf.compilation.jit import bare, compiled
from mapmrf.engines.soft_consistency.constraints import constraint_cost, price_constraint
from mapmrf.engines.soft_consistency.network import (
    CHANGED,
    FORBIDDEN,
    WAITING,
    ModelNetwork,
    SoftNetwork,
    TrailRecord,
    assign,
    forget_pending,
    raise_bound,
    remove,
    undo,
    wait,
    wait_constraints,
    wait_costs,
    write,
)
from mapmrf.engines.soft_consistency.propagation_kernels import project, propagate, prune
from mapmrf.run import pace

SMALL_GAIN, FEW_VARIABLES = 3e-3, 500
"""Share of the gap that a pair of sweeps must close for another one to follow, in a model of that many variables. In
larger ones a node takes longer, so that a smaller gain justifies a sweep."""
FEW_SWEEPS, FIRST_WORK = 5, 3_000_000
"""Pairs of sweeps at the root between two parts of the search; before it, as many as take that much work."""
LEAST_GAIN = 12
"""Increases of the lower bound are worth the work if they close 2 to the power of minus this of the root's gap."""
MOST_BACKTRACKS = 1 << 14  # maximum number of backtracks of a dive
MOST_OPEN = 2_000_000  # number of open nodes from which dives are completed, which opens no more
RARELY, OFTEN = 0.05, 0.1
"""Share of decisions that are replayed to reach open nodes: below the first, dives become shorter, above the second
longer."""


class SoftSearch:
    """Hybrid best-first search: depth-first dives of limited length from the open node with the least lower bound."""

    def __init__(self, network: ModelNetwork, most_nodes: int = sys.maxsize) -> None:
        self.network, self.open, self.finished = network, OpenNodes(), False
        n, room = network.problem.n_vars, network.problem.n_states + 1
        labels, best = np.zeros((2, n), dtype=np.int64)
        self.way = Dive(blanks(DiveStep, room), labels, np.zeros(n, dtype=np.bool_), best, blank(DiveTally))
        self.way.tally.latest, self.way.tally.most_nodes = -1, most_nodes
        self._limit, self._replayed, self._root_upper = 1, 0, -1
        self._base: tuple[int, int] | None = None
        self._root_lower = 0

    @property
    def lower(self) -> int:
        """Lower bound on the cost of all labellings; the cost of the best one once the search is closed."""
        best, unit = self.upper + int(self.network.soft.tally.slack), self.network.unit
        if self.finished:
            return best
        lower = max(self._root_lower, self.open.lower(self._base))
        return min(best, -(-lower // unit) * unit)

    @property
    def upper(self) -> int:
        """Only labellings with a smaller cost are of interest."""
        return int(self.network.soft.tally.upper)

    @property
    def labels(self) -> Ints | None:
        return self.way.best.copy() if self.way.tally.found > 0 else None

    @property
    def candidate(self) -> Ints:
        """The candidate labelling of the last node; before the first, the favourite states at the root."""
        if self.nodes > 0:
            return self.way.labels.copy()
        return np.array(self.network.soft.net.variables["favourite"], dtype=np.int64)

    @property
    def nodes(self) -> int:
        return int(self.way.tally.nodes)

    def limit(self, value: float) -> None:
        """Search only for labellings of a larger value."""
        costs = self.network.costs
        if value > -math.inf:
            cost = math.ceil((costs.offset - value) * costs.scale)
            self.network.soft.tally.upper = min(self.upper, max(0, cost - int(self.network.soft.tally.slack)))

    def prepare(self, sweeps: int) -> Iterator[None]:
        """Raise the lower bound at the root and make it consistent; yields after every step."""
        yield from self._raise_root(sweeps)
        self.finished = self._failed

    def explore(self, sweeps: int = 0) -> Iterator[None]:
        """Search from the root; yields after every step until the search has finished.

        The root gets further sweeps whenever as much work as before them has gone into the search, until they stall.
        """
        self.open.push(self.network.lower, -1)
        tally = self.network.soft.tally
        spent = int(tally.work)
        while self._base is not None or self._next_node():
            if self._dive() == PAUSED:
                yield
            due = sweeps > 0 and tally.work >= 2 * spent
            if self._base is None and (due or self.upper < self._root_upper):
                follow(self.network.soft, self.way.stack, 0)  # a better upper bound holds at the root, too
                if due:
                    left = yield from self._raise_root(min(sweeps, FEW_SWEEPS))
                    sweeps = sweeps - FEW_SWEEPS if left == 0 else 0
                    spent = int(tally.work)
                else:
                    yield from self._propagate_root()
                if self._failed:
                    self.open = OpenNodes()
        self.finished = True

    def _raise_root(self, sweeps: int) -> Generator[None, None, int]:
        """Raise the lower bound at the root and make it consistent; return the number of sweeps that were not made."""
        left = yield from self._sweep(sweeps)
        self.network.soft.tally.least_gain = max(1, self._gap >> LEAST_GAIN)
        if not self._failed:
            yield from self._in_steps(project_all)
            yield from self._propagate_root()
        return left

    @property
    def _failed(self) -> bool:
        return bool(self.network.soft.tally.failed)

    def _allow(self) -> None:
        """Set the work limit for one more step."""
        tally = self.network.soft.tally
        tally.pause_at = tally.work + pace.CONSISTENCY

    # -- the root -----------------------------------------------------------------------------------------------------

    def _sweep(self, sweeps: int) -> Generator[None, None, int]:
        """Run pairs of sweeps, forward and backward, as long as they close the gap; return how many were left."""
        before = -self.upper
        self._allow()
        least, tally = SMALL_GAIN / (1 + self.network.problem.n_vars / FEW_VARIABLES), self.network.soft.tally
        end = sweeps - FEW_SWEEPS, int(tally.work) + FIRST_WORK
        while sweeps > 0 and not self._failed and self.network.lower - before > least * self._gap:
            if sweeps <= end[0] and tally.work >= end[1]:
                break
            before, sweeps = self.network.lower, sweeps - 1
            for forward in (True, False):
                yield from self._in_steps(sweep, forward)
            yield from self._in_steps(price_constraints)
            self._keep()
        return sweeps

    def _in_steps(self, kernel: Callable[..., int], *arguments: bool) -> Iterator[None]:
        """Call a kernel, which takes and returns the place to continue at, until it returns 0."""
        place = kernel(self.network.soft, *arguments, 0)
        while place > 0:
            self._keep()
            yield
            self._allow()
            place = kernel(self.network.soft, *arguments, place)

    @property
    def _gap(self) -> int:
        return self.upper - self.network.lower

    def _keep(self) -> None:
        """Make all changes at the root permanent."""
        soft = self.network.soft
        soft.tally.top = 0
        soft.tally.serial += 1
        self._root_lower = self.network.lower

    def _propagate_root(self) -> Iterator[None]:
        soft = self.network.soft
        while not propagate_root(soft):
            self._keep()
            yield
            self._allow()
        self._keep()
        self._root_upper = self.upper

    # -- dives --------------------------------------------------------------------------------------------------------

    def _next_node(self) -> bool:
        """Move to the best open node; False if none is left."""
        node = self.open.pop(self.upper)
        if node is None:
            return False
        stack, counts = self.way.stack, self.way.tally
        path = self.open.path(node[1])
        stack[: len(path)] = [(*decision, 0, 0) for decision in path]
        follow(self.network.soft, stack, len(path))
        self._replayed += len(path)
        if self._replayed > OFTEN * (self.nodes + 1) and self._limit < MOST_BACKTRACKS:
            self._limit *= 2
        elif self._replayed < RARELY * (self.nodes + 1) and self._limit > 1:
            self._limit //= 2
        limit = sys.maxsize // 2 if len(self.open) > MOST_OPEN else self._limit
        counts.depth, counts.limit = 0, int(counts.backtracks) + limit
        self._base = node
        return True

    def _dive(self) -> int:
        """Search below a node, and open what remains there at the end."""
        if self.network.soft.tally.work >= self.network.soft.tally.pause_at:
            self._allow()
        how = dive(self.network.soft, self.way)
        if how == FULL:
            soft = self.network.soft
            trail = blanks(TrailRecord, 2 * len(soft.now.trail))
            trail[: len(soft.now.trail)] = soft.now.trail
            self.network.soft = soft._replace(now=soft.now._replace(trail=trail))
        elif how != PAUSED:
            assert self._base is not None
            forget_pending(self.network.soft)
            if how == LIMITED:
                depth = int(self.way.tally.depth)
                self.open.leave(self._base, self.way.stack[:depth].tolist(), self.upper)
            self._base = None
        return how


# -- The open nodes of a search, by lower bound -----------------------------------------------------------------------

ROOM = 1_000_000  # nodes stored before those that no open node needs are discarded


class OpenNodes:
    """A heap of nodes, each with its decision and its parent."""

    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._heap: list[tuple[int, int, int]] = []
        self._parent: list[int] = []
        self._decision: list[tuple[int, int, int]] = []
        self._depth: list[int] = []

    def __len__(self) -> int:
        return len(self._heap)

    def lower(self, other: tuple[int, int] | None) -> int:
        """Return the least lower bound of the open nodes, and of another node if given."""
        nodes = [*self._heap[:1], *([] if other is None else [other])]
        return min((node[0] for node in nodes), default=0)

    def push(self, lower: int, node: int) -> None:
        """Open a node; -1 is the root."""
        depth = self._depth[node] if node >= 0 else 0
        heapq.heappush(self._heap, (lower, -depth, node))

    def pop(self, upper: int) -> tuple[int, int] | None:
        """Return lower bound and number of the best node; None if there is none with a bound below `upper`."""
        if not self._heap or self._heap[0][0] >= upper:
            self._heap.clear()
            return None
        lower, _, node = heapq.heappop(self._heap)
        return lower, node

    def path(self, node: int) -> list[tuple[int, int, int]]:
        """Return the decisions from the root to a node: variable, state, and 1 if the state is excluded."""
        found = []
        while node >= 0:
            found.append(self._decision[node])
            node = self._parent[node]
        return found[::-1]

    def leave(self, base: tuple[int, int], stack: list[tuple[int, ...]], upper: int) -> None:
        """Open the node that a dive has reached, and all open alternatives on the path from its base."""
        lower, node = base
        for var, value, right, _, here in stack:
            lower = max(base[0], here)
            if right == 0 and lower < upper:
                self.push(lower, self._add(node, (var, value, 1)))
            node = self._add(node, (var, value, right))
        self.push(lower, node)
        if len(self._parent) > self._room:
            self._forget()
            self._room = max(self._room, 2 * len(self._parent))

    def _forget(self) -> None:
        """Discard the nodes that are on the path to no open node."""
        needed = set[int]()
        for _, _, node in self._heap:
            while node >= 0 and node not in needed:
                needed.add(node)
                node = self._parent[node]
        order = sorted(needed)
        number = {node: k for k, node in enumerate(order)} | {-1: -1}
        self._parent = [number[self._parent[node]] for node in order]
        self._decision = [self._decision[node] for node in order]
        self._depth = [self._depth[node] for node in order]
        self._heap = [(lower, depth, number[node]) for lower, depth, node in self._heap]
        heapq.heapify(self._heap)

    def _add(self, parent: int, decision: tuple[int, int, int]) -> int:
        self._parent.append(parent)
        self._decision.append(decision)
        self._depth.append(1 + (self._depth[parent] if parent >= 0 else 0))
        return len(self._parent) - 1


# -- Depth-first search below a node: decide a variable, propagate, backtrack -----------------------------------------


CLOSED, LIMITED, PAUSED, FULL = 0, 1, 2, 3
"""Outcomes of a dive: the subtree is closed; enough backtracks; enough work for a step; no room on the trail."""


class DiveStep:
    var: int  # the decided variable
    value: int  # the state that is assigned, or excluded
    right: int  # 1 on the second branch, which excludes the state
    mark: int  # length of the trail before the decision
    lower: int  # the lower bound before the decision


class DiveTally:
    depth: int  # decisions on the stack
    nodes: int
    backtracks: int
    most_nodes: int  # nodes after which the search pauses
    limit: int  # backtracks after which the dive ends
    latest: int  # the variable of the last failed decision
    found: int  # how often a better labelling was found


class Dive(NamedTuple):
    """Everything that a dive changes, apart from the network."""

    stack: Records  # a `DiveStep` each
    labels: Ints  # (n_vars,): the labelling by favourite states
    costly: Bools  # (n_vars,): whether a variable contributes to its cost
    best: Ints  # (n_vars,): the best labelling
    tally: DiveTally


@compiled
def follow(soft: SoftNetwork, path: Records, n: int) -> None:
    """Go from the root to a node by making its decisions, without propagation."""
    net, now, tally = soft.net, soft.now, soft.tally
    tally.failed = 0
    undo(soft, 0)
    tally.pruned_at = -1
    for k in range(n):
        i, u = path[k].var, path[k].value
        is_left = now.place[net.variables[i].at + u] < now.cell[i]
        if path[k].right == 0 and not is_left:
            tally.failed = 1
        elif path[k].right == 0:
            assign(soft, i, u)
        elif is_left:
            remove(soft, i, u)
        if tally.failed == 1:
            return


@compiled
def dive(soft: SoftNetwork, way: Dive) -> int:
    """Search below the current node until one of the stopping conditions holds."""
    stack, counts, tally, net, constraints = way.stack, way.tally, soft.tally, soft.net, soft.constraints
    while True:
        if tally.top + 2 * len(soft.now.cell) > len(soft.now.trail):
            return FULL
        if counts.nodes >= counts.most_nodes:
            return PAUSED
        propagate(soft)
        if tally.failed == 0 and tally.work >= tally.pause_at:
            return PAUSED
        var, a = -1, tally.culprit
        if tally.failed == 0:
            var = _examine(soft, way)
        elif a >= 0:  # the failure counts for all variables of its factor, or of its constraint
            for e in range(net.factors[a].first, net.factors[a].end):
                net.variables[net.edges[e].variable].burden += 1.0
        else:
            for m in range(constraints.records[-1 - a].first, constraints.records[-1 - a].end):
                net.variables[constraints.links[m].variable].burden += 1.0
        counts.nodes += 1
        if var >= 0:
            k = counts.depth
            stack[k].var, stack[k].value, stack[k].right = var, way.labels[var], 0
            stack[k].mark, stack[k].lower = tally.top, soft.now.cell[tally.n_vars]
            counts.depth += 1
            tally.serial += 1
            assign(soft, var, way.labels[var])
            continue
        forget_pending(soft)
        if not _step_back(soft, way):
            return CLOSED
        if counts.backtracks >= counts.limit:
            return LIMITED


@bare
def _step_back(soft: SoftNetwork, way: Dive) -> bool:
    """Undo the last decision with an open alternative, and take that; False if there is none."""
    stack, counts, tally = way.stack, way.tally, soft.tally
    counts.backtracks += 1
    tally.failed = 0
    k = counts.depth - 1
    while k >= 0 and (stack[k].right == 1 or stack[k].lower >= tally.upper):
        k -= 1
    counts.depth = k + 1
    if k < 0:
        return False
    undo(soft, stack[k].mark)
    tally.pruned_at = -1
    counts.latest = stack[k].var
    stack[k].right = 1
    remove(soft, stack[k].var, stack[k].value)
    return True


@bare
def _examine(soft: SoftNetwork, way: Dive) -> int:
    """Return the branching variable, or -1 if the labelling by favourite states attains the lower bound."""
    net, now, tally = soft.net, soft.now, soft.tally
    n = tally.n_vars
    for i in range(n):
        begin = net.variables[i].at
        way.costly[i] = False
        u = net.variables[i].favourite
        if now.place[begin + u] >= now.cell[i] or now.cell[begin + u] > 0:
            u = now.domain[begin]
            for k in range(now.cell[i]):
                if now.cell[begin + now.domain[begin + k]] == 0:
                    u = now.domain[begin + k]
                    break
        way.labels[i] = u
    extra = 0
    for i in range(n):
        if now.cell[i] > 1:
            extra = min(extra + _extra_cost(soft, way, i), FORBIDDEN)
    for c in range(len(soft.constraints.records)):
        constraint = soft.constraints.records[c]
        if now.cell[constraint.at] == 1:
            continue
        tally.work += constraint.end - constraint.first
        more = constraint_cost(soft, c, way.labels)
        extra = min(extra + more, FORBIDDEN)
        if more > 0:
            for m in range(constraint.first, constraint.end):
                if now.cell[soft.constraints.links[m].variable] > 1:
                    way.costly[soft.constraints.links[m].variable] = True
    total = now.cell[n] + extra
    tally.work += n
    if total < tally.upper:
        tally.upper = total - tally.slack
        way.tally.found += 1
        for i in range(n):
            way.best[i] = way.labels[i]
        tally.pruned_at = -1
    return -1 if extra == 0 else _choose(soft, way.costly, way.tally.latest)


@bare
def _extra_cost(soft: SoftNetwork, way: Dive, i: int) -> int:
    """Return the cost of the labels in the factors of which a variable is the first undecided one."""
    net, now = soft.net, soft.now
    extra = 0
    for h in range(net.variables[i].first, net.variables[i].end):
        a = net.edges[net.nbr[h]].factor
        at, shift, first = net.factors[a].table, 0, True
        for e in range(net.factors[a].first, net.factors[a].end):
            j = net.edges[e].variable
            if j < i and now.cell[j] > 1:
                first = False
                break
            at += way.labels[j] * net.edges[e].stride
            shift += now.cell[net.edges[e].at + way.labels[j]]
        soft.tally.work += 1
        if first and net.costs[at] > shift:
            extra = min(extra + net.costs[at] - shift, FORBIDDEN)
            for e in range(net.factors[a].first, net.factors[a].end):
                way.costly[net.edges[e].variable] = now.cell[net.edges[e].variable] > 1
    return int(extra)


@bare
def _choose(soft: SoftNetwork, costly: Bools, latest: int) -> int:
    """Return the variable with the smallest ratio of states to failure weight; that of the last failure goes first."""
    if latest >= 0 and costly[latest]:
        return latest
    best, least = -1, 0.0
    for i in range(soft.tally.n_vars):
        if costly[i]:
            score = soft.now.cell[i] / soft.net.variables[i].burden
            if best < 0 or score < least:
                best, least = i, score
    return best


# Sweeps over all variables that raise the lower bound before the search: TRW-S on integer costs, for any arity.


@compiled
def sweep(soft: SoftNetwork, forward: bool, first: int) -> int:
    """Visit the variables forward or backward: each collects the costs of its factors and passes them on.

    Starts at step `first`; returns the next step if the work limit is reached, else 0.
    """
    net, now, tally = soft.net, soft.now, soft.tally
    n = tally.n_vars
    if first == 0:
        prune(soft)
    for step in range(first, n):
        if step > first and tally.work >= tally.pause_at:
            return step
        i = step if forward else n - 1 - step
        for h in range(net.variables[i].first, net.variables[i].end):
            if tally.failed == 0:
                project(soft, net.nbr[h], False)
        if tally.failed == 0:
            raise_bound(soft, i)
        if tally.failed == 1:
            return 0
        if now.cell[i] > 1:
            _pass_on(soft, i, forward)
    return 0


@bare
def _pass_on(soft: SoftNetwork, i: int, forward: bool) -> None:
    """Distribute the costs of a variable's states over the factors with variables still to come."""
    net, now = soft.net, soft.now
    n_after = n_before = 0
    for h in range(net.variables[i].first, net.variables[i].end):
        n_after += _continues(soft, net.nbr[h], True)
        n_before += _continues(soft, net.nbr[h], False)
    parts = max(n_after, n_before)
    if parts == 0:
        return
    parts += net.variables[i].end_constraint - net.variables[i].first_constraint  # their costs stay with the states
    begin = net.variables[i].at
    for k in range(now.cell[i]):
        u = now.domain[begin + k]
        share = now.cell[begin + u] // parts
        if share == 0:
            continue
        for h in range(net.variables[i].first, net.variables[i].end):
            e = net.nbr[h]
            if _continues(soft, e, forward):
                at = net.edges[e].at + u
                write(soft, at, now.cell[at] - share)
                write(soft, begin + u, now.cell[begin + u] - share)
    wait(soft, i, CHANGED)


@bare
def _continues(soft: SoftNetwork, e: int, forward: bool) -> bool:
    """Return whether the factor of an edge has an undecided variable after (or before) that of the edge."""
    net, now = soft.net, soft.now
    a, i = net.edges[e].factor, net.edges[e].variable
    for other in range(net.factors[a].first, net.factors[a].end):
        j = net.edges[other].variable
        if now.cell[j] > 1 and ((j > i) if forward else (j < i)):
            return True
    return False


@compiled
def price_constraints(soft: SoftNetwork, first: int) -> int:
    """Price all constraints from `first` on; return the next one if the work limit is reached, else 0."""
    tally = soft.tally
    for c in range(first, len(soft.constraints.records)):
        if c > first and tally.work >= tally.pause_at:
            return c
        if tally.failed == 0:
            price_constraint(soft, c)
    return 0


@compiled
def project_all(soft: SoftNetwork, first: int) -> int:
    """Project all factors to their variables from edge `first` on, then queue everything; return the next edge or 0."""
    net, tally = soft.net, soft.tally
    for e in range(first, len(net.edges)):
        if e > first and tally.work >= tally.pause_at:
            return e
        if tally.failed == 0:
            project(soft, e, False)
    for i in range(tally.n_vars):
        if tally.failed == 0:
            raise_bound(soft, i)
        wait_costs(soft, i)
        wait_constraints(soft, i, WAITING)
    if tally.failed == 0:
        prune(soft)
    return 0


@compiled
def propagate_root(soft: SoftNetwork) -> bool:
    """Continue propagation at the root; True when it is complete. It is never undone."""
    tally = soft.tally
    propagate(soft)
    tally.top = 0
    tally.serial += 1
    return bool(tally.failed == 1 or tally.work < tally.pause_at)
