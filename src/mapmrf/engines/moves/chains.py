"""Search on the table of gains: by chains of flips, or by flips of small connected sets of variables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank
from mapmrf.compilation.jit import compiled, inlined, predispatched
from mapmrf.engines.moves.flip_state import (
    HINT,
    Agenda,
    FlipState,
    dequeue,
    enqueue_all,
    flip_best,
    is_empty,
    make_change,
    new_agenda,
    new_flip_state,
    refresh,
    set_labels,
    set_state,
    take_back,
)
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.method import Progress
from mapmrf.run.result import Status


class GainSearch(ABC):
    """A labelling that improves by flips, until none of a kind helps."""

    moves: tuple[Chain | None, SetSearch | None]  # one of them
    cursor: Any  # where it stands: a `ChainCursor` or `SetCursor`

    def __init__(self, problem: Problem, longest: int) -> None:
        self.problem = problem
        self.flips = new_flip_state(problem, longest)  # the table of gains
        self.agenda = new_agenda(problem.n_vars)
        self.visits = 0  # flips made and variables visited since the start
        self.at_rest = True  # whether nothing helps
        self._improve, self._refresh = predispatched(improve), predispatched(refresh)

    def _begin_at(self, labels: Ints) -> None:
        agenda, counts = self.agenda, self.agenda.counts
        set_labels(self.problem, self.flips.labels, self.flips.place, labels)
        agenda.origin[:] = labels
        counts.queue_begin = counts.queue_length = counts.heap_length = counts.n_changed = 0
        agenda.where[:] = -1
        agenda.queued[:] = agenda.is_changed[:] = False
        self._refresh(self.flips, agenda, 0)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Read about `entries` table entries, visiting at most `max_visits` variables; return the entries read."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = self._improve(self.flips, self.agenda, *self.moves, entries - work, max_visits)
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.cursor.place < 0 and is_empty(self.agenda):
                work += self._refresh(self.flips, self.agenda, 1)
                self._continue()
        return work

    def step(self, max_iterations: int) -> Progress:
        """Run for some 20 ms, within iterations of as many visits as there are variables."""
        n = max(1, self.problem.n_vars)
        self.run(pace.MOVES, max_iterations * n - self.visits)
        finished = Status.CONVERGED if self.at_rest else None
        begun = n - 1 if finished else 0  # an incomplete sweep at the end also counts
        return Progress((self.visits + begun) // n, labels=self.labels(), finished=finished)

    @abstractmethod
    def labels(self) -> Ints:
        """Return the labelling, without trial flips."""

    @abstractmethod
    def _continue(self) -> None:
        """Queue variables for what has not been tried yet, or come to rest."""


class ChainSearch(GainSearch):
    """A labelling that improves by best flips and chains of flips, until no chain helps."""

    def __init__(self, problem: Problem, length: int, breadth: int, seed: int) -> None:
        n, length = problem.n_vars, min(length, max(1, problem.n_vars))
        super().__init__(problem, length)
        chain = Chain(
            cand=np.zeros(n, dtype=np.int32),
            kind=np.zeros(n, dtype=np.int8),
            gain=np.zeros(n),
            flip=np.zeros(n, dtype=np.int64),
            who=np.zeros(length, dtype=np.int64),
            state=np.zeros(length, dtype=np.int64),
            old=np.zeros(length, dtype=np.int64),
            top=np.zeros(length + 1, dtype=np.int64),
            breadth=breadth,
            cursor=blank(ChainCursor),
        )
        self.moves, self.cursor = (chain, None), chain.cursor
        self.random = np.random.default_rng(seed)

    def restart(self, labels: Ints) -> None:
        self.cursor.place = -1
        self.cursor.state = self.cursor.second = self.cursor.improved = 0
        self._begin_at(labels)
        enqueue_all(self.agenda, self.random)

    def _continue(self) -> None:
        """Start from every variable again, in a new order, unless the last round improved nothing."""
        self.at_rest = self.cursor.improved == 0 and is_empty(self.agenda)
        self.cursor.improved = 0
        if not self.at_rest:
            enqueue_all(self.agenda, self.random)

    def labels(self) -> Ints:
        return self.flips.labels.copy()


# -- Chains of flips: one is forced, the best flips of its neighbours follow, and the best prefix is kept -------------

FREE, LISTED, USED = 0, 1, 2  # status of a variable in the current chain


class ChainCursor:
    place: int  # the variable that chains start from; -1: no search is under way
    state: int  # the state that it is forced to
    second: int  # how many second flips have been tried
    improved: int  # 1 if a chain has helped since the round began, else 0


class Chain(NamedTuple):
    # cand, kind: variables beside the chain, and what every variable is to it
    cand: Ints
    kind: Ints
    # gain, flip: gain and state of the best flip of every listed variable
    gain: Floats
    flip: Ints
    # who, state, old, top: the flips of a chain: variables, new states, labels before, and where the log of each begins
    who: Ints
    state: Ints
    old: Ints
    top: Ints
    breadth: int  # chains from each start
    cursor: ChainCursor  # where the search stands


@inlined
def list_beside(flips: FlipState, chain: Chain, i: int, n_cand: int) -> int:
    """Update the best flips of the neighbours of `i`, and list new ones; return the number listed."""
    model, score, kind = flips.model, flips.score, chain.kind
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if kind[j] == USED or model.card[j] == 1:
                continue
            if kind[j] == FREE:
                kind[j] = LISTED
                chain.cand[n_cand] = j
                n_cand += 1
            row, old = model.var_ptr[j], flips.labels[j]
            best, top = -1, -np.inf
            for k in range(model.card[j]):
                if k != old and score[row + k] > top:
                    best, top = k, score[row + k]
            chain.gain[j], chain.flip[j] = top - score[row + old], best
    return n_cand


@inlined
def choose(chain: Chain, n_cand: int, skipped: int) -> int:
    """Return the listed variable with the highest gain after skipping `skipped`; -1 if there is none."""
    last_gain, last_at, best_at = np.inf, -1, -1
    for _ in range(skipped + 1):
        best_at = -1
        best = -np.inf
        for at in range(n_cand):
            j = chain.cand[at]
            gain = chain.gain[j]
            after = gain < last_gain or (gain == last_gain and at > last_at)
            if chain.kind[j] == LISTED and after and gain > best:
                best_at, best = at, gain
        last_gain, last_at = best, best_at
    return int(chain.cand[best_at]) if best_at >= 0 else -1


@inlined
def try_chain(flips: FlipState, chain: Chain, v: int, k: int, second: int) -> tuple[int, int]:
    """Flip `v` to `k`, then the best neighbours one by one, and undo all flips."""
    # Returns the length of the best prefix, 0 if none gains, and the entries read. The flips remain in `chain`.
    who, state, old, top = chain.who, chain.state, chain.old, chain.top
    i = v
    n = n_cand = best_n = work = 0
    total = size = best = 0.0
    top[0] = 0
    while i >= 0 and n < len(who):
        row, x = flips.model.var_ptr[i], flips.labels[i]
        new, now = flips.score[row + k], flips.score[row + x]
        total += new - now
        size += abs(new) + abs(now)
        who[n], state[n], old[n] = i, k, x
        chain.kind[i] = USED
        top[n + 1] = set_state(flips, i, k, top[n])
        n += 1
        if total > best and total > HINT * size:
            best, best_n = total, n
        n_cand = list_beside(flips, chain, i, n_cand)
        i = choose(chain, n_cand, second if n == 1 else 0)
        k = chain.flip[i] if i >= 0 else 0
        work += n_cand
    work += 3 * top[n]
    for at in range(n - 1, -1, -1):
        take_back(flips, who[at], old[at], top[at], top[at + 1])
        chain.kind[who[at]] = FREE
    for at in range(n_cand):
        chain.kind[chain.cand[at]] = FREE
    if n == 1 and second > 0:  # no second flip is left to be tried
        chain.cursor.second = 1 << 30
    return best_n, work


@inlined
def next_chain(flips: FlipState, agenda: Agenda, chain: Chain) -> int:
    """Try the next chain from a variable, or go on to its next state; return the entries read."""
    cursor = chain.cursor
    v, k = cursor.place, cursor.state
    if k >= flips.model.card[v]:
        cursor.place = -1
        return 0
    if k == flips.labels[v] or cursor.second >= chain.breadth:
        cursor.state += 1
        cursor.second = 0
        return 0
    cursor.second += 1
    n, work = try_chain(flips, chain, v, k, cursor.second - 1)
    if n > 0:
        work += make_change(flips, agenda, chain.who, chain.state, chain.old, chain.top, n)
        cursor.improved = 1
        cursor.place = -1
    return work


# -- Search by flips of small connected sets of variables -------------------------------------------------------------


class FlipSearch(GainSearch):
    """A labelling that improves by flips of connected sets until none of up to `depth` variables helps."""

    def __init__(self, problem: Problem, depth: int) -> None:
        self.depth = min(depth, max(1, problem.n_vars))
        super().__init__(problem, self.depth)
        room = self.depth + 1
        spot, end, state, old, top, best_var, best_state = (np.zeros(room, dtype=np.int64) for _ in range(7))
        cand, listed = np.zeros(max(problem.n_vars, 1), dtype=np.int32), np.zeros(problem.n_vars, dtype=bool)
        self._sets = SetSearch(
            cand, listed, spot, end, state, old, top, np.zeros(room), np.zeros(room), best_var, best_state,
            cursor=blank(SetCursor),
        )  # fmt: skip
        self.moves, self.cursor = (None, self._sets), self._sets.cursor

    def restart(self, labels: Ints) -> None:
        self._sets.listed[:] = False
        self.cursor.place, self.cursor.reach, self.cursor.n_best = -1, 1, 0
        self._begin_at(labels)

    def _continue(self) -> None:
        """Go on with larger sets, up to `depth` variables."""
        if is_empty(self.agenda) and self.cursor.reach < self.depth:
            self.cursor.reach += 1
            enqueue_all(self.agenda)
        else:
            self.at_rest = is_empty(self.agenda)

    def labels(self) -> Ints:
        found = self.flips.labels.copy()
        for level in range(self.cursor.place):
            found[self._sets.cand[self._sets.spot[level]]] = self._sets.old[level]
        return found


# The lazy flipper: the best change of every small connected set of variables, each set searched once per change.
# A variable whose surroundings have changed is queued. When its turn comes, all connected sets that contain it and no
# queued variable are searched: a set is searched when the last of its members leaves the queue, and no list of sets is
# ever stored. The search over one variable's sets can be interrupted after any of them and resumed.


class SetCursor:
    place: int  # level of the search: variables of the present set that are flipped; -1: no search is under way
    reach: int  # size up to which sets are searched
    # n_best, best_gain: size and gain of the best change found
    n_best: int
    best_gain: float


class SetSearch(NamedTuple):
    # cand, listed: variables that may join the set, in the order of the search, and who is among them
    cand: Ints
    listed: Bools
    # spot, end, state, old, top: (depth + 1,): for every level: the candidate that is tried, where its successors end,
    # its trial state, its label before, and where its log begins
    spot: Ints
    end: Ints
    state: Ints
    old: Ints
    top: Ints
    # total, size: (depth + 1,): gain of all flips below a level, and the size of what it is a difference of
    total: Floats
    size: Floats
    # best_var, best_state: (depth,): the best change so far
    best_var: Ints
    best_state: Ints
    cursor: SetCursor  # where the search stands


@inlined
def weigh(flips: FlipState, sets: SetSearch, level: int, u: int, k: int) -> tuple[float, float]:
    """Return the gain of the current set with `u` in state `k`, and the size of the scores; the best is stored."""
    cursor = sets.cursor
    row = flips.model.var_ptr[u]
    new, now = flips.score[row + k], flips.score[row + flips.labels[u]]
    gain = sets.total[level] + (new - now)
    size = sets.size[level] + abs(new) + abs(now)
    if gain > cursor.best_gain and gain > HINT * size:
        cursor.best_gain = gain
        cursor.n_best = level + 1
        for at in range(level):
            sets.best_var[at] = sets.cand[sets.spot[at]]
            sets.best_state[at] = sets.state[at]
        sets.best_var[level], sets.best_state[level] = u, k
    return gain, size


@inlined
def search_next(flips: FlipState, agenda: Agenda, sets: SetSearch) -> int:
    """Evaluate the next set, or the next state of its last member; returns the number of entries."""
    spot, end, state, top, cursor = sets.spot, sets.end, sets.state, sets.top, sets.cursor
    level = cursor.place
    u = sets.cand[spot[level]]
    n_k, x = flips.model.card[u], flips.labels[u]
    deepest = level == cursor.reach - 1
    if state[level] < 0 and not deepest:
        last = end[level]  # neighbours that are neither listed nor queued may join after it
        model = flips.model
        for e in range(model.nbr_ptr[u], model.nbr_ptr[u + 1]):
            a = model.factor_of[e]
            for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
                j = model.scope[p]
                if not sets.listed[j] and not agenda.queued[j] and model.card[j] > 1:
                    sets.listed[j] = True
                    sets.cand[last] = j
                    last += 1
        end[level + 1] = last
    k = state[level] + 1
    gain = size = 0.0
    while k < n_k:
        if k != x:
            gain, size = weigh(flips, sets, level, u, k)
            if not deepest:
                break
        k += 1
    state[level] = k
    if k < n_k and spot[level] + 1 < end[level + 1]:
        sets.old[level] = x
        top[level + 1] = set_state(flips, u, k, top[level])
        sets.total[level + 1], sets.size[level + 1] = gain, size
        spot[level + 1], state[level + 1] = spot[level] + 1, -1
        cursor.place = level + 1
        return 2 * int(top[level + 1] - top[level])
    if k >= n_k:
        if not deepest:
            for at in range(end[level], end[level + 1]):
                sets.listed[sets.cand[at]] = False
        spot[level] += 1
        state[level] = -1
        if spot[level] == end[level]:
            level -= 1
            cursor.place = level
            if level >= 0:
                take_back(flips, sets.cand[spot[level]], sets.old[level], top[level], top[level + 1])
    return int(n_k)


@compiled
def improve(
    flips: FlipState, agenda: Agenda, chain: Chain | None, sets: SetSearch | None, budget: int, max_visits: int
) -> tuple[int, int]:
    """Make best flips, and improving chains or changes of sets, until there are none or a budget is spent."""
    # Returns entries and variables visited.
    work, visits = 0, 0
    while work < budget:
        if sets is not None and sets.cursor.place >= 0:
            work += search_next(flips, agenda, sets)
            if sets.cursor.place < 0:
                sets.listed[sets.cand[0]] = False
                if sets.cursor.n_best > 0:
                    best = sets.best_var, sets.best_state, sets.old, sets.top, sets.cursor.n_best
                    work += make_change(flips, agenda, *best)
        elif chain is not None and chain.cursor.place >= 0:
            work += next_chain(flips, agenda, chain)
        elif visits >= max_visits:
            break
        elif agenda.counts.heap_length > 0:
            work += flip_best(flips, agenda)
            visits += 1
        elif agenda.counts.queue_length > 0:
            v = dequeue(agenda)
            visits += 1
            if chain is not None:
                chain.cursor.place = v
                chain.cursor.state = chain.cursor.second = 0
            if sets is not None:
                sets.cand[0] = v
                sets.listed[v] = True
                sets.spot[0], sets.end[0], sets.state[0], sets.top[0] = 0, 1, -1, 0
                sets.total[0], sets.size[0] = 0.0, 0.0
                sets.cursor.best_gain = 0.0
                sets.cursor.place, sets.cursor.n_best = 0, 0
        else:
            break
    return work, visits
