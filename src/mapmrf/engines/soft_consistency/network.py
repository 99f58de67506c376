"""The cost network of a problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, Records, blank, blanks, offsets, segment_max
from mapmrf.compilation.jit import bare, inlined
from mapmrf.constraints.flat import DIFFERENT, EVERY_STATE, OUTPUT, PARITY, WITHIN, Constraints
from mapmrf.engines.program.toulbar2_process import WholeCosts
from mapmrf.kernels.heaps_and_forests import pop, push
from mapmrf.model.problem import Problem

LARGEST_SUM = 1 << 31  # sums of weights are integers up to this; others are scaled to it
LARGEST_COST = 1 << 60  # maximum of a price times a sum
MOST_ASSIGNED = 1_000_000
"""Maximum number of variables squared times states for which DIFFERENT has prices: a millisecond."""
LEAST_UNIT = 1 << 10  # common divisors of all costs below this are not used


@dataclass
class ModelNetwork:
    """A problem in integer costs, and the network on which soft consistency works."""

    problem: Problem  # the model
    costs: WholeCosts  # conversion between costs and log potentials
    soft: SoftNetwork  # the arrays of the kernels
    unit: int  # the cost of every labelling is a multiple of this; 1 if there is no large common divisor

    @classmethod
    def of(cls, problem: Problem) -> ModelNetwork:
        costs = WholeCosts.of(problem)
        first_cell = problem.n_vars + 1 + problem.n_states + problem.n_edge_states
        constraints, constraint_ptr, n_cells = _constraint_network(problem, costs, first_cell)
        net, now = _network(problem, costs, constraint_ptr), _state(problem, costs, n_cells)
        widest, most = int(np.diff(problem.scope_ptr).max(initial=1)), int(problem.graph.card.max(initial=1))
        queue = np.zeros((6, max(problem.n_vars, len(constraints.records))), dtype=np.int64)
        amount, odometer = np.zeros(most, dtype=np.int64), blanks(OdometerRecord, widest)
        todo = PendingWork(queue, np.zeros(6, dtype=np.int64), amount, odometer)
        tally = blank(ConsistencyTally)
        tally.n_vars, tally.serial, tally.pruned_at, tally.least_gain = problem.n_vars, 1, -1, 1
        tally.upper, unit = _largest_cost(problem, costs) + 1, _unit(costs)
        tally.slack = 7 * unit // 8
        return cls(problem, costs, SoftNetwork(net, constraints, now, todo, tally), unit)

    def removed_states(self) -> Bools:
        now, n, card = self.soft.now, self.problem.n_vars, self.problem.graph.card
        place = now.place[n + 1 : n + 1 + self.problem.n_states]
        return np.asarray(place >= np.repeat(now.cell[:n], card))

    @property
    def lower(self) -> int:
        """Lower bound on the cost of all relevant labellings below the current node."""
        return int(self.soft.now.cell[self.problem.n_vars])


def _whole(costs: Floats) -> Ints:
    return np.where(np.isfinite(costs), costs, float(HARD)).astype(np.int64)


def _largest_cost(problem: Problem, costs: WholeCosts) -> int:
    """Return an upper limit on the cost of any labelling that is not forbidden."""
    unary = np.where(np.isfinite(costs.unary), costs.unary, 0.0)
    total = float(segment_max(unary, problem.graph.var_ptr).sum())
    for batch in problem.batches:
        starts, of = np.unique(costs.table_at[batch.factors], return_inverse=True)
        tables = costs.tables[starts[:, None] + np.arange(batch.n_configs)]
        total += float(np.where(np.isfinite(tables), tables, 0.0).max(axis=1)[of].sum())
    return int(total + costs.penalties[np.isfinite(costs.penalties)].sum())


def _unit(costs: WholeCosts) -> int:
    """Return the greatest common divisor of all costs, if it is well above the round-off of their sums."""
    finite = [block[np.isfinite(block)].astype(np.int64) for block in (costs.unary, costs.tables, costs.penalties)]
    unit = int(np.gcd.reduce(np.concatenate(finite))) if sum(map(len, finite)) else 1
    return unit if unit >= LEAST_UNIT and unit > 16 * costs.error * costs.scale else 1


def _network(problem: Problem, costs: WholeCosts, constraint_ptr: Ints) -> CostNetwork:
    n, graph = problem.n_vars, problem.graph
    variables = blanks(VariableRecord, n)
    variables.at, variables.card = graph.var_ptr[:-1] + (n + 1), graph.card
    variables.first, variables.end = problem.nbr_ptr[:-1], problem.nbr_ptr[1:]
    variables.first_constraint, variables.end_constraint = constraint_ptr[:-1], constraint_ptr[1:]
    variables.burden = 1.0 + problem.degree + np.diff(constraint_ptr)
    edges = blanks(EdgeRecord, problem.n_edges)
    edges.variable, edges.factor, edges.stride = problem.scope, problem.edge_factor, problem.edge_stride
    edges.at = problem.edge_ptr[:-1] + (n + 1 + problem.n_states)
    factors = blanks(FactorRecord, problem.n_factors)
    factors.first, factors.end = problem.scope_ptr[:-1], problem.scope_ptr[1:]
    factors.table = costs.table_at
    return CostNetwork(variables, edges, factors, problem.nbr.astype(np.int64), _whole(costs.tables))


def _state(problem: Problem, costs: WholeCosts, n_constraint_cells: int) -> NetworkState:
    n, n_states, n_edge_states = problem.n_vars, problem.n_states, problem.n_edge_states
    n_cells, begin = n + 1 + n_states + n_edge_states + n_constraint_cells, n + 1
    end = begin + n_states
    cell, domain = np.zeros(n_cells, dtype=np.int64), np.zeros(n_cells, dtype=np.int64)
    card = problem.graph.card
    cell[:n], cell[begin:end] = card, _whole(costs.unary)
    domain[begin:end] = np.arange(n_states) - np.repeat(problem.graph.var_ptr[:-1], card)
    place = domain.copy()
    card_e = card[problem.scope]
    state = np.arange(n_edge_states) - np.repeat(problem.edge_ptr[:-1], card_e)
    pair = np.diff(problem.scope_ptr)[problem.edge_factor] == 2
    place[end : end + n_edge_states] = state * np.repeat(np.where(pair, 0, problem.edge_stride), card_e)
    return NetworkState(cell, np.zeros(n_cells, dtype=np.int64), blanks(TrailRecord, 2 * n_cells + 1024), domain, place)


def _constraint_network(problem: Problem, costs: WholeCosts, first_cell: int) -> tuple[ConstraintNetwork, Ints, int]:
    """Return the constraints whose violation costs something, the offsets of `of_variable`, and the cells they need."""
    constraints, card = problem.graph.constraints, problem.graph.card
    records, variables, owners, n_cells = list[tuple[float, ...]](), list[int](), list[int](), 0
    gains: list[Ints] = [np.zeros(0, dtype=np.int64)]
    weights: list[Floats] = [np.zeros(0)]
    for c in np.flatnonzero(costs.penalties).tolist():
        assert constraints is not None
        condition, smallest, largest = constraints.kind_of(c).limits(constraints, c)
        of_link = _link_weights(constraints, c, condition, card)
        sums = sum(float(np.abs(weight).max()) for weight in of_link.values())
        scale = 1.0 if constraints.whole[c] and sums <= LARGEST_SUM else LARGEST_SUM / max(sums, 1e-300)
        mine: list[Ints] = [np.rint(weight * scale).astype(np.int64) for weight in of_link.values()]
        cost = HARD if np.isinf(costs.penalties[c]) else int(costs.penalties[c])
        slack = 0 if scale == 1.0 else len(mine) + 2
        far = 2 * LARGEST_SUM
        least, most = int(smallest) if condition == PARITY else 0, far
        lowest, highest, n_prices = 0, 0, 0
        if condition == WITHIN:  # wide enough for every labelling that satisfies the constraint
            least = max(-far, int(np.floor(max(-far, smallest * scale))) - slack // 2)
            most = min(far, int(np.ceil(min(far, largest * scale))) + slack // 2)
            lowest, highest = _price_limits(mine, least, most, cost)
            n_prices = 1
        elif condition == DIFFERENT:
            most = max(map(len, mine))
            n_prices = most if cost == HARD and len(mine) ** 2 * most <= MOST_ASSIGNED else 0
        begin, end = len(variables), len(variables) + len(mine)
        owners += [len(records)] * len(mine)
        records.append((condition, begin, end, least, most, slack, smallest, largest, cost, lowest, highest,
                        first_cell + n_cells, n_prices, 0))  # fmt: skip
        variables += of_link
        gains += mine
        weights += of_link.values()
        n_cells += 1 + n_prices
    links, of_variable = blanks(LinkRecord, len(variables)), np.array(variables, dtype=np.int64)
    links.variable, links.gains = variables, offsets(np.array([len(each) for each in gains[1:]], dtype=np.int64))[:-1]
    network = ConstraintNetwork(
        records=blanks(ConstraintRecord, len(records)),
        links=links,
        gains=np.concatenate(gains),
        weights=np.concatenate(weights),
        of_variable=np.array(owners, dtype=np.int64)[np.argsort(of_variable, kind="stable")],
        matching=blanks(MatchingRecord, 1 + int(card.max(initial=0))),
    )
    network.records[:] = records
    return network, offsets(np.bincount(of_variable, minlength=problem.n_vars)), n_cells


def _link_weights(constraints: Constraints, c: int, condition: int, card: Ints) -> dict[int, Floats]:
    """Return what every state adds to the sum; an output adds 2, and its variable comes last."""
    output = int(constraints.ptr[c + 1]) - 1 if condition == OUTPUT else -1
    found: dict[int, Floats] = {}
    for at in range(constraints.ptr[c], constraints.ptr[c + 1]):
        i, k = int(constraints.var[at]), int(constraints.state[at])
        weight = found.setdefault(i, np.zeros(card[i]))
        if k != EVERY_STATE:
            weight[k] = 2.0 if at == output else constraints.weight[at]
    if output >= 0:
        last = int(constraints.var[output])
        found[last] = found.pop(last)
    return found


def _price_limits(gains: list[Ints], least: int, most: int, penalty: int) -> tuple[int, int]:
    """Return the minimum and maximum price: no excess times its price may exceed the cost of a violation."""
    low, high = sum(int(gain.min()) for gain in gains), sum(int(gain.max()) for gain in gains)
    below, above = least - low, high - most
    size = max(abs(low) + abs(high), abs(least) * (below > 0), abs(most) * (above > 0), 1)
    dearest = LARGEST_COST // (4 * size)
    lowest = -min(dearest, penalty // below) if below > 0 else 0
    return lowest, min(dearest, penalty // above) if above > 0 else 0


# -- A cost network and the cost-shifting operations on it, with a trail for backtracking -----------------------------
# Costs are integers to be minimised. Tables never change: the cost moved out of the table of factor `a` to state `u` of
# a variable of its scope is one number per edge and state, its *shift*; the current cost of a configuration is its
# table entry minus the shifts of its states. All costs stay non-negative, and so does the lower bound.
#
# Everything that the search restores lives in one array `cell`: first the number of remaining states of every variable,
# then the lower bound, the cost of every state, the shifts, and the state of the constraints. The records of a network
# point into it.

HARD = 1 << 60  # cost of a forbidden configuration; it stays above `FORBIDDEN` whatever is shifted
FORBIDDEN = 1 << 59  # costs from here on denote forbidden configurations
REMOVED, RAISED, CHANGED, UNSETTLED = 0, 1, 2, 3
"""Reasons why a variable is queued: it lost states; the cost of a state increased; either, and its neighbours have not
been notified; its favourite state may have lost its support."""
WAITING, STALE = 4, 5  # reasons why a constraint is queued: a variable lost states; costs of a variable changed


class VariableRecord:
    at: int  # where the costs of its states start in `cell`
    card: int
    first: int  # its edges are ``nbr[first:end]``
    end: int
    first_constraint: int  # its constraints are ``of_variable[first_constraint:end_constraint]``
    end_constraint: int
    favourite: int  # the state expected to be the best
    reasons: int  # reasons why it is queued: a bit for each of `REMOVED`, `RAISED`, `CHANGED` and `UNSETTLED`
    seen: int  # the number of the last visit that reached it
    burden: float  # failure weight: its number of factors, plus the number of failures that these caused


class EdgeRecord:
    variable: int
    factor: int
    stride: int  # stride of the variable in the table
    at: int  # where the shifts start in `cell`
    # full support of the variable's favourite state, if still valid: a configuration of cost 0 including the unary
    # costs of the other states; for a pair the other state, else the table entry
    full: int


class FactorRecord:
    """The edges of a factor, ``first`` to ``end``, and where its table starts in `costs`."""

    first: int
    end: int
    table: int


class CostNetwork(NamedTuple):
    """A network: records of variables, edges and factors."""

    variables: Records  # a `VariableRecord` each
    edges: Records  # an `EdgeRecord` each
    factors: Records  # a `FactorRecord` each
    nbr: Ints  # the edges of every variable
    costs: Ints  # the tables, with `HARD` for forbidden configurations


class TrailRecord:
    at: int
    was: int


class NetworkState(NamedTuple):
    """The part of the network that the search changes."""

    cell: Ints  # the values restored by the trail
    stamp: Ints  # as `cell`: the level that saved a cell last
    trail: Records  # the changes, one `TrailRecord` each
    domain: Ints  # as `cell`: the states of every variable, remaining ones first
    # as `cell`: for every state, its position in `domain`. For every edge and state, a support (a configuration of cost
    # 0), if still valid: for a pair the other state, else the table entry.
    place: Ints


class OdometerRecord:
    """An undecided position of a scope, its current state, and table entry and shifts of the positions before it."""

    free: int
    digit: int
    base: int
    shift: int


class PendingWork(NamedTuple):
    # (6, most): variables or constraints queued for each reason, a stack; for RAISED a heap of negative variables
    queue: Ints
    n_queued: Ints  # (6,): their numbers
    amount: Ints  # (most states,): costs to be moved
    odometer: Records  # (most variables of a factor,): an `OdometerRecord` per position


class ConsistencyTally:
    n_vars: int  # number of variables; also the cell of the lower bound
    # only labellings with a cost below `upper` are of interest; it is the cost of the best labelling minus `slack`, as
    # costs are multiples of a larger number
    upper: int
    slack: int
    failed: int  # 1 once no such labelling exists
    culprit: int  # the factor processed last; -1 - c for constraint c
    top: int  # length of the trail
    serial: int  # the number of the current level
    pruned_at: int  # the lower bound when all states were last compared with `upper`
    least_gain: int  # minimum increase of the lower bound that is worth the work
    visit: int  # number of visits so far
    work: int  # table entries and states visited
    pause_at: int  # work at which propagation must pause


class SoftNetwork(NamedTuple):
    """A network with its constraints, state, pending work, and scalars."""

    net: CostNetwork
    constraints: ConstraintNetwork
    now: NetworkState
    todo: PendingWork
    tally: ConsistencyTally


@inlined
def write(soft: SoftNetwork, at: int, value: int) -> None:
    """Change a cell, and save its old value unless this level has done so."""
    now, tally = soft.now, soft.tally
    if now.stamp[at] != tally.serial:
        now.stamp[at] = tally.serial
        now.trail[tally.top].at = at
        now.trail[tally.top].was = now.cell[at]
        tally.top += 1
    now.cell[at] = value


@bare
def undo(soft: SoftNetwork, mark: int) -> None:
    """Undo all changes back to a length of the trail, and begin a new level."""
    now, tally = soft.now, soft.tally
    for k in range(tally.top - 1, mark - 1, -1):
        now.cell[now.trail[k].at] = now.trail[k].was
    tally.top = mark
    tally.serial += 1


@bare
def wait_raised(soft: SoftNetwork, i: int) -> None:
    """Add a variable to the heap of those with increased costs, unless it is there."""
    variable, n_queued = soft.net.variables[i], soft.todo.n_queued
    if variable.reasons & (1 << RAISED) == 0:
        variable.reasons |= 1 << RAISED
        n_queued[RAISED] = push(n_queued[RAISED], -i, 0, soft.todo.queue[RAISED], None)


@bare
def next_raised(soft: SoftNetwork) -> int:
    """Remove and return the largest variable of the heap."""
    first, n_queued = -soft.todo.queue[RAISED, 0], soft.todo.n_queued
    n_queued[RAISED] = pop(n_queued[RAISED], soft.todo.queue[RAISED], None)
    soft.net.variables[first].reasons &= ~(1 << RAISED)
    return int(first)


@inlined
def wait(soft: SoftNetwork, i: int, reason: int) -> None:
    """Queue a variable on the stack of a reason, unless it is there."""
    variable, todo = soft.net.variables[i], soft.todo
    if variable.reasons & (1 << reason) == 0:
        variable.reasons |= 1 << reason
        todo.queue[reason, todo.n_queued[reason]] = i
        todo.n_queued[reason] += 1


@inlined
def next_waiting(soft: SoftNetwork, reason: int) -> int:
    """Remove a variable from the stack of a reason."""
    todo = soft.todo
    todo.n_queued[reason] -= 1
    i = todo.queue[reason, todo.n_queued[reason]]
    soft.net.variables[i].reasons &= ~(1 << reason)
    return int(i)


@bare
def wait_costs(soft: SoftNetwork, i: int) -> None:
    wait_raised(soft, i)
    wait(soft, i, CHANGED)
    wait(soft, i, UNSETTLED)


@bare
def wait_constraints(soft: SoftNetwork, i: int, reason: int) -> None:
    variable, constraints, todo = soft.net.variables[i], soft.constraints, soft.todo
    for h in range(variable.first_constraint, variable.end_constraint):
        c = constraints.of_variable[h]
        if constraints.records[c].reasons & (1 << reason) == 0:
            constraints.records[c].reasons |= 1 << reason
            todo.queue[reason, todo.n_queued[reason]] = c
            todo.n_queued[reason] += 1


@bare
def next_constraint(soft: SoftNetwork, reason: int) -> int:
    """Remove a queued constraint from its stack."""
    todo = soft.todo
    todo.n_queued[reason] -= 1
    c = todo.queue[reason, todo.n_queued[reason]]
    soft.constraints.records[c].reasons &= ~(1 << reason)
    return int(c)


@bare
def remove(soft: SoftNetwork, i: int, u: int) -> None:
    net, now = soft.net, soft.now
    begin, n_left = net.variables[i].at, now.cell[i] - 1
    k, last = now.place[begin + u], now.domain[begin + n_left]
    now.domain[begin + k], now.domain[begin + n_left] = last, u
    now.place[begin + last], now.place[begin + u] = k, n_left
    write(soft, i, n_left)
    if n_left == 0:
        soft.tally.failed = 1
        return
    wait(soft, i, REMOVED)
    wait(soft, i, CHANGED)
    if net.variables[i].favourite == u:
        wait(soft, i, UNSETTLED)


@bare
def assign(soft: SoftNetwork, i: int, u: int) -> None:
    """Assign one of its remaining states to a variable."""
    net, now = soft.net, soft.now
    begin = net.variables[i].at
    k, first = now.place[begin + u], now.domain[begin]
    now.domain[begin], now.domain[begin + k] = u, first
    now.place[begin + u], now.place[begin + first] = 0, k
    write(soft, i, 1)
    wait(soft, i, REMOVED)
    wait(soft, i, CHANGED)
    if net.variables[i].favourite != u:
        wait(soft, i, UNSETTLED)


@bare
def raise_state(soft: SoftNetwork, i: int, u: int, amount: int) -> None:
    """Increase the cost of a state, and remove it if it becomes too high."""
    net, now, tally = soft.net, soft.now, soft.tally
    at = net.variables[i].at + u
    cost = now.cell[at] + amount
    if now.cell[tally.n_vars] + cost >= tally.upper:
        remove(soft, i, u)
        return
    write(soft, at, cost)
    wait_raised(soft, i)
    wait(soft, i, CHANGED)
    if net.variables[i].favourite == u:
        wait(soft, i, UNSETTLED)


@bare
def raise_lower(soft: SoftNetwork, amount: int) -> None:
    tally = soft.tally
    lower = soft.now.cell[tally.n_vars] + amount
    write(soft, tally.n_vars, lower)
    if lower >= tally.upper:
        tally.failed = 1


@bare
def raise_bound(soft: SoftNetwork, i: int) -> None:
    """Move the minimum cost of a variable's states into the lower bound."""
    net, now, tally = soft.net, soft.now, soft.tally
    begin, n = net.variables[i].at, now.cell[i]
    if n == 0:
        return
    least = now.cell[begin + now.domain[begin]]
    for k in range(1, n):
        least = min(least, now.cell[begin + now.domain[begin + k]])
    tally.work += n
    if least == 0:
        return
    for k in range(n):
        at = begin + now.domain[begin + k]
        write(soft, at, now.cell[at] - least)
    raise_lower(soft, least)


@bare
def forget_pending(soft: SoftNetwork) -> None:
    todo = soft.todo
    for reason in range(len(todo.n_queued)):
        for k in range(todo.n_queued[reason]):
            if reason < WAITING:
                soft.net.variables[abs(todo.queue[reason, k])].reasons = 0
            else:
                soft.constraints.records[todo.queue[reason, k]].reasons = 0
        todo.n_queued[reason] = 0


# -- Constraints in a cost network: conditions on the states of variables, without a table ----------------------------
# A constraint refers to its variables by *links*; a link has a number for every state of its variable, its gain. The
# condition on the gains depends on the kind. A violated constraint has a cost, and a constraint may have *prices*:
# multiples of a gain that were moved from it to the unary costs. A sum of at most `most`, with a non-negative price,
# costs ``price * (most - sum)`` instead of nothing. That is never negative unless the constraint is violated, and a
# price is never high enough to compensate for the violation. All prices live in `cell`: the trail restores them.


class ConstraintRecord:
    condition: int  # on the gains: `WITHIN`, `PARITY`, `OUTPUT` or `DIFFERENT`
    first: int  # its links
    end: int
    least: int  # limits on the sum of gains, or its parity
    most: int  # also the number of states of variables that are to differ
    slack: int  # the constraint is certainly satisfied at this distance from both limits
    smallest: float  # the limits as real numbers, for the original weights
    largest: float
    penalty: int  # the cost of a violation, `HARD` if it is forbidden
    lowest: int  # limits on its price
    highest: int
    at: int  # the cell that is 1 once the constraint is decided
    n_prices: int  # the number of prices, in the cells after it
    reasons: int  # reasons why it is queued: a bit for `WAITING` and for `STALE`


class LinkRecord:
    """The variable of a link, and where its gains and weights start."""

    variable: int
    gains: int


class MatchingRecord:
    """What is known of a state while states are assigned to variables."""

    takers: int  # variables that may take the state, or whether a search has reached it
    owner: int  # the link assigned to it
    price: int
    least: int  # its minimum reduced cost
    back: int  # its predecessor


class ConstraintNetwork(NamedTuple):
    records: Records  # a `ConstraintRecord` each
    links: Records  # a `LinkRecord` each
    # for every link and state, its contribution to the sum: an integer, and the original weight. Bit 1 of a gain means
    # that an input of OUTPUT is 1, bit 2 that the output is.
    gains: Ints
    weights: Floats
    of_variable: Ints  # the constraints of every variable
    matching: Records  # (most states + 1,): a `MatchingRecord` each, scratch
