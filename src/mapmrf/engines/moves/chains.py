"""Search by chains of flips."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import compiled, inlined, predispatched
from mapmrf.compilation.records import blank
from mapmrf.engines.moves.flip_state import (
    HINT,
    Agenda,
    FlipList,
    FlipState,
    begin_at,
    dequeue,
    enqueue_all,
    flip_best,
    is_empty,
    make_change,
    new_agenda,
    new_flip_state,
    refresh,
    set_state,
    take_back,
)
from mapmrf.model.problem import Problem


class ChainSearch:
    """A labelling that improves by best flips and chains of flips, until no chain helps."""

    def __init__(self, problem: Problem, length: int, breadth: int, seed: int) -> None:
        length = min(length, max(1, problem.n_vars))
        self.problem = problem
        # flips, agenda, visits, at_rest: as in `FlipSearch`
        self.flips = new_flip_state(problem, length)
        self.agenda = new_agenda(problem.n_vars)
        self.chain = new_chain(problem.n_vars, length, breadth)
        self.random = np.random.default_rng(seed)
        self.visits = 0
        self.at_rest = True
        self._follow_chains, self._refresh = predispatched(follow_chains), predispatched(refresh)

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling."""
        cursor = self.chain.cursor
        cursor.variable = -1
        cursor.state = cursor.second = cursor.improved = 0
        begin_at(self.problem, self.flips, self.agenda, labels)
        self._refresh(self.flips, self.agenda, 0)
        enqueue_all(self.agenda, self.random)
        self.at_rest = False

    def run(self, entries: int, max_visits: int = 1 << 60) -> int:
        """Read about `entries` table entries, visiting at most `max_visits` variables; return the entries read."""
        work = 0
        while work < entries and max_visits > 0 and not self.at_rest:
            done, visits = self._follow_chains(self.flips, self.agenda, self.chain, entries - work, max_visits)
            work, max_visits = work + done, max_visits - visits
            self.visits += visits
            if self.chain.cursor.variable < 0 and is_empty(self.agenda):
                work += self._go_round()
        return work

    def _go_round(self) -> int:
        """Start from every variable again, in a new order, unless the last round was in vain; return entries read."""
        work = self._refresh(self.flips, self.agenda, 1)
        self.at_rest = self.chain.cursor.improved == 0 and is_empty(self.agenda)
        self.chain.cursor.improved = 0
        if not self.at_rest:
            enqueue_all(self.agenda, self.random)
        return work

    def labels(self) -> Ints:
        """Return the labelling."""
        return self.flips.labels.copy()


def new_chain(n: int, length: int, breadth: int) -> Chain:
    """Allocate a chain of up to `length` flips of `n` variables."""
    return Chain(
        cand=np.zeros(n, dtype=np.int32),
        kind=np.zeros(n, dtype=np.int8),
        gain=np.zeros(n),
        flip=np.zeros(n, dtype=np.int64),
        flips=FlipList(*(np.zeros(length + extra, dtype=np.int64) for extra in (0, 0, 0, 1))),
        breadth=breadth,
        cursor=blank(ChainCursor),
    )


# -- Chains of flips: one is forced, the best flips of its neighbours follow, and the best prefix is kept -------------


FREE, LISTED, USED = 0, 1, 2
"""Status of a variable in the current chain."""


class ChainCursor:
    """Progress of the search for chains."""

    # variable, state: The variable that chains start from (-1: none), and the state that it is forced to
    variable: int
    state: int
    second: int  # How many second flips have been tried
    improved: int  # 1 if a chain has helped since the round began, else 0


class Chain(NamedTuple):
    """A chain under way."""

    # cand, kind: Variables beside the chain, and what every variable is to it
    cand: Ints
    kind: Ints
    # gain, flip: Gain and state of the best flip of every listed variable
    gain: Floats
    flip: Ints
    flips: FlipList  # The flips of the chain, as many as it may have
    breadth: int  # Chains from each start
    cursor: ChainCursor  # Where the search stands


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
    """Flip `v` to `k`, then the best neighbours one by one, and undo all flips.

    Returns the length of the best prefix, 0 if none gains, and the entries read. The flips remain in `chain`.
    """
    who, state, old, top = chain.flips.who, chain.flips.state, chain.flips.old, chain.flips.top
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


@compiled
def follow_chains(
    flips: FlipState, agenda: Agenda, chain: Chain, budget: int, max_visits: int
) -> tuple[int, int]:  # fmt: skip
    """Make best flips and improving chains until there is none or a budget is spent.

    Returns entries and variables visited.
    """
    cursor = chain.cursor
    work, visits = 0, 0
    while work < budget:
        if cursor.variable >= 0:
            v, k = cursor.variable, cursor.state
            if k >= flips.model.card[v]:
                cursor.variable = -1
                continue
            if k == flips.labels[v] or cursor.second >= chain.breadth:
                cursor.state += 1
                cursor.second = 0
                continue
            cursor.second += 1
            n, entries = try_chain(flips, chain, v, k, cursor.second - 1)
            work += entries
            if n > 0:
                work += make_change(flips, agenda, chain.flips, n)
                cursor.improved = 1
                cursor.variable = -1
        elif visits >= max_visits:
            break
        elif agenda.counts.heap_length > 0:
            work += flip_best(flips, agenda)
            visits += 1
        elif agenda.counts.queue_length > 0:
            cursor.variable = dequeue(agenda)
            cursor.state = cursor.second = 0
            visits += 1
        else:
            break
    return work, visits
