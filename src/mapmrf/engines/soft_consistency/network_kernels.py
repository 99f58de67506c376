"""A cost network and the changes that soft consistency makes to it, with a trail that takes them back.

Costs are whole numbers to be minimised. Tables never change: what has moved out of the table of factor `a` to the state
`u` of a variable of its scope is one number per edge and state, its *shift*; the cost of a configuration now is its
table entry minus the shifts of its states. All costs stay at least 0, and so does the lower bound that they add up to.

Everything that the search takes back lives in one array `cell`: first the number of states left to every variable, then
the lower bound, then the cost of every state, then the shifts. The index arrays of a network point into it.
"""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats, Ints
from mapmrf.kernels.jit import bare, inlined

HARD = 1 << 60
"""Cost of a forbidden configuration; whatever is shifted, it stays above `FORBIDDEN`."""

FORBIDDEN = 1 << 59
"""Costs from here on are those of forbidden configurations."""

REMOVED, RAISED, CHANGED, UNSETTLED = 1, 2, 4, 8
"""Why a variable waits: it lost states; a state became dearer; either, and its neighbours have not been told; its
favourite state may have lost its support."""


class CostNetwork(NamedTuple):
    """What does not change.

    Attributes
    ----------
    var_at : (n_vars,)
        Where the costs of a variable's states begin in `cell`.
    card : (n_vars,)
        Number of states.
    scope_ptr, scope
        The variables of every factor; a place in `scope` is an edge.
    stride, edge_at : (n_edges,)
        What one state more adds to the place in the table, and where the edge's shifts begin in `cell`.
    factor_of : (n_edges,)
        The factor of every edge.
    nbr_ptr, nbr
        The edges of every variable.
    table_at : (n_factors,)
        Where the table of a factor begins in `costs`.
    costs
        The tables, `HARD` where a configuration is forbidden.
    """

    var_at: Ints
    card: Ints
    scope_ptr: Ints
    scope: Ints
    stride: Ints
    edge_at: Ints
    factor_of: Ints
    nbr_ptr: Ints
    nbr: Ints
    table_at: Ints
    costs: Ints


class NetworkState(NamedTuple):
    """What the search changes.

    Attributes
    ----------
    cell
        The numbers that the trail restores.
    stamp : as `cell`
        The number of the level that saved a cell last.
    trail_at, trail_was
        The cells that have been changed, and what they held.
    domain, where : as `cell`
        The states of every variable, those left first, and the place of every state in that list.
    support : as `cell`
        For every edge and state a configuration of cost 0, if it still is: the other state of a pair, else its place in
        the table.
    full : (n_edges,)
        The same for the favourite state of the edge's variable, with the costs of the other states 0 as well.
    favourite : (n_vars,)
        The state that is expected to be the best.
    """

    cell: Ints
    stamp: Ints
    trail_at: Ints
    trail_was: Ints
    domain: Ints
    where: Ints
    support: Ints
    full: Ints
    favourite: Ints


class PendingWork(NamedTuple):
    """Variables that wait, and scratch.

    Attributes
    ----------
    reasons : (n_vars,)
        Why a variable waits, a sum of `REMOVED`, `RAISED`, `CHANGED` and `UNSETTLED`.
    removed, raised, changed, unsettled : (n_vars,)
        The variables that wait for each reason: stacks, but for `raised`, which is a heap with the largest first.
    amount : (most states,)
        Costs to be moved.
    free, digit, base, shift : (most variables of a factor,)
        The places of a scope that are not decided, and sums over the first of them.
    seen : (n_vars,)
        The number of the visit that met a variable last.
    burden : (n_vars,)
        The factors of a variable, and how often these caused a failure.
    """

    reasons: Ints
    removed: Ints
    raised: Ints
    changed: Ints
    unsettled: Ints
    amount: Ints
    free: Ints
    digit: Ints
    base: Ints
    shift: Ints
    seen: Ints
    burden: Floats


class ConsistencyTally:
    """Numbers that the kernels change in place.

    Attributes
    ----------
    n_vars
        Number of variables; also the cell of the lower bound.
    upper
        Only labellings of a smaller cost are of interest.
    failed
        1 as soon as there is no such labelling.
    culprit
        The factor that was looked at last.
    top, serial
        Entries of the trail, and the number of the current level.
    n_removed, n_raised, n_changed, n_unsettled
        Variables that wait.
    pruned_at
        The lower bound when all states were last compared with `upper`.
    least_gain
        Rises of the lower bound that are worth the work.
    visit
        Number of visits so far.
    work, pause_at
        Table entries and states looked at, and when propagation is to pause.
    """

    n_vars: int
    upper: int
    failed: int
    culprit: int
    top: int
    serial: int
    n_removed: int
    n_raised: int
    n_changed: int
    n_unsettled: int
    pruned_at: int
    least_gain: int
    visit: int
    work: int
    pause_at: int


class SoftNetwork(NamedTuple):
    """A network with its state, what is pending, and the tally."""

    net: CostNetwork
    now: NetworkState
    todo: PendingWork
    tally: ConsistencyTally


@inlined
def write(soft: SoftNetwork, at: int, value: int) -> None:
    """Change a cell, and save what it held unless this level has done so."""
    now, tally = soft.now, soft.tally
    if now.stamp[at] != tally.serial:
        now.stamp[at] = tally.serial
        now.trail_at[tally.top] = at
        now.trail_was[tally.top] = now.cell[at]
        tally.top += 1
    now.cell[at] = value


@bare
def take_back(soft: SoftNetwork, mark: int) -> None:
    """Undo all changes after the trail had so many entries, and begin a new level."""
    now, tally = soft.now, soft.tally
    for k in range(tally.top - 1, mark - 1, -1):
        now.cell[now.trail_at[k]] = now.trail_was[k]
    tally.top = mark
    tally.serial += 1


@bare
def wait_raised(soft: SoftNetwork, i: int) -> None:
    """Put a variable into the heap of those with dearer states."""
    heap, tally = soft.todo.raised, soft.tally
    k = tally.n_raised
    tally.n_raised += 1
    while k > 0 and heap[(k - 1) // 2] < i:
        heap[k] = heap[(k - 1) // 2]
        k = (k - 1) // 2
    heap[k] = i


@bare
def next_raised(soft: SoftNetwork) -> int:
    """Take the last variable out of the heap."""
    heap, tally = soft.todo.raised, soft.tally
    first = heap[0]
    tally.n_raised -= 1
    n = tally.n_raised
    moved, k = heap[n], 0
    while 2 * k + 1 < n:
        child = 2 * k + 1
        if child + 1 < n and heap[child + 1] > heap[child]:
            child += 1
        if heap[child] <= moved:
            break
        heap[k] = heap[child]
        k = child
    heap[k] = moved
    soft.todo.reasons[first] &= ~RAISED
    return int(first)


@inlined
def wait_changed(soft: SoftNetwork, i: int) -> None:
    """Note that the neighbours of a variable may lose the support of their favourites."""
    todo, tally = soft.todo, soft.tally
    if todo.reasons[i] & CHANGED == 0:
        todo.reasons[i] |= CHANGED
        todo.changed[tally.n_changed] = i
        tally.n_changed += 1


@inlined
def wait_unsettled(soft: SoftNetwork, i: int) -> None:
    """Note that the favourite of a variable must be checked."""
    todo, tally = soft.todo, soft.tally
    if todo.reasons[i] & UNSETTLED == 0:
        todo.reasons[i] |= UNSETTLED
        todo.unsettled[tally.n_unsettled] = i
        tally.n_unsettled += 1


@bare
def remove(soft: SoftNetwork, i: int, u: int) -> None:
    """Take a state away from a variable."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    begin, n_left = net.var_at[i], now.cell[i] - 1
    k, last = now.where[begin + u], now.domain[begin + n_left]
    now.domain[begin + k], now.domain[begin + n_left] = last, u
    now.where[begin + last], now.where[begin + u] = k, n_left
    write(soft, i, n_left)
    if n_left == 0:
        tally.failed = 1
        return
    if todo.reasons[i] & REMOVED == 0:
        todo.reasons[i] |= REMOVED
        todo.removed[tally.n_removed] = i
        tally.n_removed += 1
    wait_changed(soft, i)
    if now.favourite[i] == u:
        wait_unsettled(soft, i)


@bare
def assign(soft: SoftNetwork, i: int, u: int) -> None:
    """Leave a variable one state, which it has."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    begin = net.var_at[i]
    k, first = now.where[begin + u], now.domain[begin]
    now.domain[begin], now.domain[begin + k] = u, first
    now.where[begin + u], now.where[begin + first] = 0, k
    write(soft, i, 1)
    if todo.reasons[i] & REMOVED == 0:
        todo.reasons[i] |= REMOVED
        todo.removed[tally.n_removed] = i
        tally.n_removed += 1
    wait_changed(soft, i)
    if now.favourite[i] != u:
        wait_unsettled(soft, i)


@bare
def raise_state(soft: SoftNetwork, i: int, u: int, amount: int) -> None:
    """Add to the cost of a state; it goes if it becomes too dear."""
    net, now, todo, tally = soft.net, soft.now, soft.todo, soft.tally
    at = net.var_at[i] + u
    cost = now.cell[at] + amount
    if now.cell[tally.n_vars] + cost >= tally.upper:
        remove(soft, i, u)
        return
    write(soft, at, cost)
    if todo.reasons[i] & RAISED == 0:
        todo.reasons[i] |= RAISED
        wait_raised(soft, i)
    wait_changed(soft, i)
    if now.favourite[i] == u:
        wait_unsettled(soft, i)


@bare
def raise_bound(soft: SoftNetwork, i: int) -> None:
    """Move what all states of a variable cost at least into the lower bound."""
    net, now, tally = soft.net, soft.now, soft.tally
    begin, n = net.var_at[i], now.cell[i]
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
    lower = now.cell[tally.n_vars] + least
    write(soft, tally.n_vars, lower)
    if lower >= tally.upper:
        tally.failed = 1


@inlined
def is_pending(soft: SoftNetwork) -> bool:
    """Whether there is work for propagation left."""
    tally = soft.tally
    return bool(tally.n_removed + tally.n_raised + tally.n_changed + tally.n_unsettled > 0)


@bare
def forget_pending(soft: SoftNetwork) -> None:
    """Empty all queues, after a failure."""
    todo, tally = soft.todo, soft.tally
    for k in range(tally.n_removed):
        todo.reasons[todo.removed[k]] = 0
    for k in range(tally.n_raised):
        todo.reasons[todo.raised[k]] = 0
    for k in range(tally.n_changed):
        todo.reasons[todo.changed[k]] = 0
    for k in range(tally.n_unsettled):
        todo.reasons[todo.unsettled[k]] = 0
    tally.n_removed = tally.n_raised = tally.n_changed = tally.n_unsettled = 0
