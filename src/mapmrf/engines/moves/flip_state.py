"""The table of single-flip gains and the agenda of a search, shared by flips, chains and restarts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank, block_sizes, frozen, segment_ends, short
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.kernels.heaps_and_forests import sift
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.problem import Problem


def new_flip_state(problem: Problem, longest: int) -> FlipState:
    """Create a state with labels zero and room for moves of at most `longest` flips; scores are not computed yet."""
    owner = problem.edge_factor
    states = problem.graph.card[problem.scope].astype(np.int64)
    beside = np.bincount(owner, states, problem.n_factors)[owner] - states
    logged = np.bincount(problem.scope, beside, problem.n_vars)
    room = int(min(logged.sum(), longest * logged.max(initial=0)))
    return FlipState(
        model=lay_out(problem),
        floor=floor_of(problem, longest),
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        score=np.zeros(problem.n_states),
        age=np.zeros(problem.n_vars, dtype=np.int32),
        log_at=np.zeros(room, dtype=np.int64),
        log_score=np.zeros(room),
    )


def floor_of(problem: Problem, longest: int) -> float:
    """Return a number below any finite loss of `longest` flips; -inf if nothing is forbidden."""
    graph = problem.graph
    if problem.feasible_v.all() and not any(batch.hard for batch in problem.batches):
        return -np.inf
    size = block_sizes(graph.theta_v, graph.var_ptr)
    of_table = block_sizes(graph.theta_t, graph.table_ptr)
    of_factor = _weighted(problem, of_table[graph.table_of[problem.order]])
    size += np.bincount(problem.scope, of_factor[problem.edge_factor], problem.n_vars)
    return -float(1.0 + 2 * (longest + 1)) * max(float(size.max(initial=0.0)), np.finfo(np.float64).tiny)


def local_scale(problem: Problem) -> float:
    """Return a variable's mean stake: the sum of the ranges of its factors' tables, averaged over all variables."""
    graph = problem.graph
    if problem.n_factors == 0:
        return 0.0
    low, high = segment_ends(graph.theta_t, graph.table_ptr)
    span = _weighted(problem, (high - low)[graph.table_of[problem.order]])
    return float(span @ np.diff(problem.scope_ptr)) / problem.n_vars


def _weighted(problem: Problem, sizes: Floats) -> Floats:
    return sizes * np.abs(problem.weight) if len(problem.weight) else sizes


def set_labels(problem: Problem, now: Ints, place: Ints, labels: Ints) -> None:
    """Set the labels of a search, and the table entries that the factors take; scores are not updated."""
    now[:] = labels
    place[:] = table_places(problem, now)


def new_agenda(n: int) -> Agenda:
    return Agenda(
        heap=np.zeros(n, dtype=np.int32),
        where=np.full(n, -1, dtype=np.int32),
        loss=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        queue=np.zeros(n, dtype=np.int32),
        queued=np.zeros(n, dtype=bool),
        changed=np.zeros(n, dtype=np.int32),
        is_changed=np.zeros(n, dtype=bool),
        origin=np.zeros(n, dtype=np.int64),
        counts=blank(AgendaCounts),
    )


def enqueue_all(agenda: Agenda, random: np.random.Generator | None = None) -> None:
    """Queue every variable, in the order of the variables or in random order."""
    n = len(agenda.queue)
    agenda.queue[:] = np.arange(n) if random is None else random.permutation(n)
    agenda.queued[:] = True
    agenda.counts.queue_begin, agenda.counts.queue_length = 0, n


def is_empty(agenda: Agenda) -> bool:
    """Return whether no flip gains and no variable is queued."""
    return agenda.counts.heap_length == 0 and agenda.counts.queue_length == 0


# -- Gains of all single flips, kept up to date: shared by flips, chains and restarts ---------------------------------
# The table of scores holds, for every state of every variable, the sum of all potentials around that variable if it
# took that state and all others stayed. A flip only changes the scores of neighbours. Trial flips are logged and
# undone exactly; committed ones accumulate round-off, so that a row is recomputed after as many commits as it has
# factors.
#
# Forbidden entries (-inf) count as `floor`, which is lower than any finite sum of one move. It is used to find moves; a
# move is made only if its exact gain confirms it: fewer forbidden entries first, then the finite sum.

HINT = 1e-12  # likewise for gains read from the table of scores


class FlipState(NamedTuple):
    """A labelling, and what each flip would gain."""

    model: MoveModel
    floor: float  # what a forbidden entry counts as; -inf if there is none
    labels: Ints  # (n_vars,): the labelling
    place: Ints  # (n_factors,): the entry of `theta_t` that each factor takes under it
    score: Floats  # (n_states,): the table of scores
    age: Ints  # (n_vars,): commits since a variable's row was summed
    # log_at, log_score: entries of `score` before trial flips, for taking them back
    log_at: Ints
    log_score: Floats


class AgendaCounts:
    queue_begin: int
    queue_length: int
    heap_length: int
    n_changed: int  # number of changed variables


class Agenda(NamedTuple):
    """Work list: a heap of variables whose flip gains, and a queue of those whose surroundings have changed."""

    # heap, where, loss, flip: variables in a binary heap, their places in it (-1 if not there), and the loss and the
    # state of each one's best flip
    heap: Ints
    where: Ints
    loss: Floats
    flip: Ints
    # queue, queued: a ring of variables, and who is in it
    queue: Ints
    queued: Bools
    # changed, is_changed, origin: variables that were flipped since the last kick, who is among them, and the labelling
    # before
    changed: Ints
    is_changed: Bools
    origin: Ints
    counts: AgendaCounts  # lengths of these lists


# -- scores -----------------------------------------------------------------------------------------------------------


@inlined
def sum_row(flips: FlipState, i: int) -> int:
    """Sum the scores of a variable afresh; returns the number of entries."""
    model, score, floor = flips.model, flips.score, flips.floor
    row: int = model.var_ptr[i]
    n_k: int = model.card[i]
    for k in range(n_k):
        score[row + k] = max(model.theta_v[row + k], floor)
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a, stride = model.factor_of[e], model.stride_of[e]
        at = flips.place[a] - stride * flips.labels[i]
        weight = weight_of(model.weight, a)
        if weight == 1.0:  # as in `set_state`
            for k in range(n_k):
                score[row + k] += max(model.theta_t[at + k * stride], floor)
        else:
            for k in range(n_k):
                score[row + k] += max(weight * model.theta_t[at + k * stride], floor)
    flips.age[i] = 0
    return int(n_k * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i]))


@inlined
def set_state(flips: FlipState, i: int, k: int, top: int) -> int:
    """Set a variable and the scores of its neighbours, logging old scores from `top` on; return the end of the log."""
    model, floor, theta_t = flips.model, flips.floor, flips.model.theta_t
    score, log_at, log_score = flips.score, flips.log_at, flips.log_score
    old = flips.labels[i]
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        here = flips.place[a]
        shift = model.stride_of[e] * (k - old)
        flips.place[a] = here + shift
        weight = weight_of(model.weight, a)
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if j == i:
                continue
            stride = model.scope_stride[p]
            at = here - stride * flips.labels[j]
            row, end = model.var_ptr[j], model.var_ptr[j] + model.card[j]
            if weight == 1.0:  # a loop of its own: the products would make it slower
                for s in range(row, end):
                    log_at[top], log_score[top] = s, score[s]
                    top += 1
                    score[s] += max(theta_t[at + shift], floor) - max(theta_t[at], floor)
                    at += stride
            else:
                for s in range(row, end):
                    log_at[top], log_score[top] = s, score[s]
                    top += 1
                    score[s] += max(weight * theta_t[at + shift], floor) - max(weight * theta_t[at], floor)
                    at += stride
    flips.labels[i] = k
    return top


@inlined
def take_back(flips: FlipState, i: int, old: int, begin: int, top: int) -> None:
    """Undo the last `set_state`, whose log began at `begin` and ended at `top`."""
    model = flips.model
    for t in range(top - 1, begin - 1, -1):
        flips.score[flips.log_at[t]] = flips.log_score[t]
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        flips.place[model.factor_of[e]] += model.stride_of[e] * (old - flips.labels[i])
    flips.labels[i] = old


@inlined
def exact_gain(flips: FlipState, i: int, k: int) -> tuple[int, float, float]:
    """Sum a flip's gain afresh: decrease of forbidden entries, the finite sum, and its possible round-off."""
    model = flips.model
    row, old = model.var_ptr[i], flips.labels[i]
    mended, gain, size = 0, 0.0, 0.0
    was, new = model.theta_v[row + old], model.theta_v[row + k]
    for e in range(model.nbr_ptr[i] - 1, model.nbr_ptr[i + 1]):
        if e >= model.nbr_ptr[i]:
            a = model.factor_of[e]
            at, weight = flips.place[a], weight_of(model.weight, a)
            was, new = weight * model.theta_t[at], weight * model.theta_t[at + model.stride_of[e] * (k - old)]
        if was == -np.inf:
            mended += 1
            was = 0.0
        if new == -np.inf:
            mended -= 1
            new = 0.0
        gain += new - was
        size += abs(new) + abs(was)
    # Gains below this fraction of the entries that they are a difference of count as round-off
    return mended, gain, 1e-13 * size


# -- the heap and the queue -------------------------------------------------------------------------------------------


@inlined
def rank(flips: FlipState, agenda: Agenda, i: int, stay: bool) -> None:
    """Find a variable's best flip, and insert it into the heap if that gains and it may `stay`; else remove it."""
    score, count = flips.score, agenda.counts
    row, old = flips.model.var_ptr[i], flips.labels[i]
    best, top = -1, -np.inf
    for k in range(flips.model.card[i]):
        if k != old and score[row + k] > top:
            best, top = k, score[row + k]
    now = score[row + old]
    at, who = agenda.where[i], i
    agenda.flip[i] = best
    agenda.loss[i] = now - top
    if stay and best >= 0 and top - now > HINT * (abs(top) + abs(now)):
        if at < 0:
            at = count.heap_length
            count.heap_length += 1
    elif at >= 0:
        agenda.where[i] = -1
        count.heap_length -= 1
        who = agenda.heap[count.heap_length]
        at = at if who != i else -1
    if at >= 0:
        sift(who, at, agenda.heap, agenda.where, count.heap_length, agenda.loss, None)


@inlined
def enqueue(agenda: Agenda, i: int) -> None:
    """Put a variable at the end of the queue, unless it is in it."""
    queue, count = agenda.queue, agenda.counts
    if not agenda.queued[i]:
        agenda.queued[i] = True
        queue[(count.queue_begin + count.queue_length) % len(queue)] = i
        count.queue_length += 1


@inlined
def dequeue(agenda: Agenda) -> int:
    count = agenda.counts
    i: int = agenda.queue[count.queue_begin]
    agenda.queued[i] = False
    count.queue_begin = (count.queue_begin + 1) % len(agenda.queue)
    count.queue_length -= 1
    return i


@inlined
def commit(flips: FlipState, agenda: Agenda, i: int) -> int:
    """Make a flip final: list it, and rank and queue the variable and its neighbours. Returns the entries read."""
    model, age = flips.model, flips.age
    if not agenda.is_changed[i]:
        agenda.is_changed[i] = True
        agenda.changed[agenda.counts.n_changed] = i
        agenda.counts.n_changed += 1
    work = 0
    a = -1  # the variable itself comes first, in the same loop as its neighbours: two loops would compile twice as long
    p, end = 0, 1
    e = model.nbr_ptr[i] - 1
    while True:
        j = i if a < 0 else model.scope[p]
        if a < 0 or j != i:
            age[j] += 0 if a < 0 else 1
            # what came and went by the floor leaves more round-off than a few sums
            # Minimum number of commits after which a row is recomputed
            if age[j] > 0 and (flips.floor > -np.inf or age[j] > max(16, model.nbr_ptr[j + 1] - model.nbr_ptr[j])):
                work += sum_row(flips, j)
            rank(flips, agenda, j, True)
            enqueue(agenda, j)
            work += model.card[j] + 16  # cost of updating a variable in heap and queue, in table entries
        p += 1
        if p == end:
            e += 1
            if e == model.nbr_ptr[i + 1]:
                break
            a = model.factor_of[e]
            p, end = model.scope_ptr[a], model.scope_ptr[a + 1]
    return work


@inlined
def flip_best(flips: FlipState, agenda: Agenda) -> int:
    """Make the best single flip of the heap if its exact gain confirms it; return the entries read."""
    i = agenda.heap[0]
    k = agenda.flip[i]
    mended, gain, margin = exact_gain(flips, i, k)
    if mended < 0 or (mended == 0 and gain <= margin):
        rank(flips, agenda, i, False)
        return 1
    top = set_state(flips, i, k, 0)
    return 2 * top + commit(flips, agenda, i)


@inlined
def make_change(flips: FlipState, agenda: Agenda, who: Ints, state: Ints, old: Ints, top: Ints, n: int) -> int:
    """Make the first `n` flips of a list if their exact total gain confirms it; return the entries read."""
    # `old` and `top` are scratch: the labels before, and where the log of each flip begins.
    mended, gain, margin = 0, 0.0, 0.0
    top[0] = 0
    for at in range(n):
        here_mended, here_gain, here_margin = exact_gain(flips, who[at], state[at])
        mended, gain, margin = mended + here_mended, gain + here_gain, margin + here_margin
        old[at] = flips.labels[who[at]]
        top[at + 1] = set_state(flips, who[at], state[at], top[at])
    work: int = 2 * top[n]
    good = mended > 0 or (mended == 0 and gain > margin)
    for t in range(n):
        at = t if good else n - 1 - t
        if good:
            work += commit(flips, agenda, who[at])
        else:
            take_back(flips, who[at], old[at], top[at], top[at + 1])
    return work


@compiled
def refresh(flips: FlipState, agenda: Agenda, least: int) -> int:
    """Sum and rank all rows that have aged by `least`; returns the entries."""
    # With `least` 0 every row is summed, and every variable queued.
    work = 0
    for i in range(len(flips.labels)):
        if least == 0:
            enqueue(agenda, i)
        if flips.age[i] >= least:
            work += sum_row(flips, i)
            rank(flips, agenda, i, True)
    return work


# -- A model laid out for moves: the factors of every variable, the variables of every factor -------------------------


class MoveModel(NamedTuple):
    # card, var_ptr, theta_v, theta_t: as in `FactorGraph`
    card: Ints
    var_ptr: Ints
    theta_v: Floats
    theta_t: Floats
    # nbr_ptr, factor_of, stride_of: factors of every variable, and the variable's stride in the table of each
    nbr_ptr: Ints
    factor_of: Ints
    stride_of: Ints
    # scope_ptr, scope, scope_stride: variables of every factor, and their strides
    scope_ptr: Ints
    scope: Ints
    scope_stride: Ints
    table_at: Ints  # (n_factors,): where the factors' tables start in `theta_t`
    weight: Floats  # (n_factors,): weights of the tables; empty if all weights are 1


def lay_out(problem: Problem) -> MoveModel:
    """Lay out a problem for moves; all moves on a problem share one layout."""
    graph, found = problem.graph, problem.shared.get("moves")
    if found is None:
        found = MoveModel(
            card=_packed(graph.card),
            var_ptr=_packed(graph.var_ptr),
            theta_v=graph.theta_v,
            theta_t=graph.theta_t,
            nbr_ptr=_packed(problem.nbr_ptr),
            factor_of=_packed(problem.edge_factor[problem.nbr]),
            stride_of=_packed(problem.edge_stride[problem.nbr]),
            scope_ptr=_packed(problem.scope_ptr),
            scope=_packed(problem.scope),
            scope_stride=_packed(problem.edge_stride),
            table_at=_packed(problem.table_at),
            weight=problem.weight,
        )
        problem.shared["moves"] = found
    return found._replace(theta_v=graph.theta_v, theta_t=graph.theta_t)


def _packed(values: Ints) -> Ints:
    """Return a read-only array, in 32 bits where values fit, so that kernels need only one specialisation."""
    return frozen(np.ascontiguousarray(short(values)))


def table_places(problem: Problem, labels: Ints) -> Ints:
    """Return the table entry of every factor under a labelling, as an index of `theta_t`, (n_factors,)."""
    moved = problem.edge_stride * labels[problem.scope]
    return np.asarray(problem.table_at + np.add.reduceat(moved, problem.scope_ptr[:-1], dtype=np.int64))
