"""Iterated local search: the first labelling of an exact method, and improvements during its run."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank
from mapmrf.compilation.jit import compiled, inlined, predispatched
from mapmrf.engines.moves.flip_state import MoveModel, lay_out, table_places
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.random_numbers import Bits, draw, seeded
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent

LARGEST = 12  # maximum number of variables in a perturbation


class LocalSearch:
    """Single-variable ascent with random perturbations of small neighbourhoods."""

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        n = problem.n_vars
        room = 16 * LARGEST + n
        # trials: perturbations tried
        self.problem, self.trials = problem, 0
        self.incumbent = Incumbent(problem.graph, labels)  # the best labelling found or offered
        self._model = lay_out(problem)
        self._climber = new_climber(problem)
        self._random = seeded(seed)
        self._waiting = Waiting(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), blank(WaitingEnds))
        self._log = UndoLog(np.zeros(room, dtype=np.int64), np.zeros(room, dtype=np.int64))
        self.restart(labels)

    @property
    def labels(self) -> Ints:
        return self.incumbent.labels

    @property
    def value(self) -> float:
        return self.incumbent.value

    @property
    def descending(self) -> bool:
        """Whether the ascent from the last restart is unfinished."""
        return self._waiting.ends.length > 0

    def restart(self, labels: Ints) -> None:
        climber, waiting = self._climber, self._waiting
        climber.labels[:] = labels
        climber.place[:] = table_places(self.problem, climber.labels)
        waiting.ring[:] = np.arange(len(labels))
        waiting.queued[:] = True
        waiting.ends.begin, waiting.ends.length = 0, len(labels)

    def run(self, entries: int, max_trials: int) -> bool:
        """Read about `entries` table entries; return whether that gave a new best labelling."""
        if self.problem.n_vars == 0:
            return False
        if self.descending:
            entries -= climb_from_queue(self._model, self._climber, self._waiting, entries)
        self.trials += perturb_and_climb(
            self._model, self._climber, self._waiting, self._log, self._random, LARGEST, entries, max_trials
        )
        return self.offer(self._climber.labels)

    def offer(self, labels: Ints) -> bool:
        """Keep a labelling if it is the best so far."""
        before = self.incumbent.value
        self.incumbent.offer(labels)
        return self.incumbent.value > before


# -- Iterated local search: perturb a neighbourhood, ascend again, and keep what is not worse -------------------------


class WaitingEnds:
    begin: int  # where the queue begins in its ring
    length: int


class Waiting(NamedTuple):
    ring: Ints  # ring buffer of the variables to visit
    queued: Bools  # who is in it
    ends: WaitingEnds


class UndoLog(NamedTuple):
    variable: Ints  # variables that a trial changed
    label: Ints  # their labels before


class TrialChange(NamedTuple):
    # mended, gain: forbidden entries mended, and the finite gain
    mended: int
    gain: float
    size: float  # size of the sums that the gain of the ascent is a difference of
    n_log: int  # changes in the log
    entries: int  # table entries read


@inlined
def queue_neighbours(model: MoveModel, waiting: Waiting, i: int) -> None:
    ring, queued, ends = waiting.ring, waiting.queued, waiting.ends
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if j != i and not queued[j]:
                queued[j] = True
                ring[(ends.begin + ends.length) % len(ring)] = j
                ends.length += 1


@inlined
def perturb(
    model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, random: Bits, largest: int
) -> TrialChange:
    """Randomise labels along a random walk of up to `largest` variables."""
    labels, broken, score = climber.labels, climber.broken, climber.score
    mended, gain, n_log, entries = 0, 0.0, 0, 0
    n_steps = 1 + draw(random, largest)
    i = draw(random, len(labels))
    for _ in range(n_steps):
        score_states(model, climber, i)
        k = draw(random, model.card[i])
        gain += score[k] - score[labels[i]]
        mended -= broken[k] - broken[labels[i]]
        log.variable[n_log], log.label[n_log] = i, labels[i]
        n_log += 1
        move_to(model, climber, i, k)
        queue_neighbours(model, waiting, i)
        degree = model.nbr_ptr[i + 1] - model.nbr_ptr[i]
        entries += model.card[i] * degree
        if degree == 0:
            break
        a = model.factor_of[model.nbr_ptr[i] + draw(random, degree)]
        i = model.scope[model.scope_ptr[a] + draw(random, model.scope_ptr[a + 1] - model.scope_ptr[a])]
    return TrialChange(mended, gain, 0.0, n_log, entries)


@inlined
def climb(
    model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, change: TrialChange, budget: int
) -> TrialChange:
    """Visit the queued variables until none is left or a budget is spent, as part of a trial."""
    # A log of length zero means that nothing will be undone; a full log ends the changes of its trial.
    labels, ring, ends = climber.labels, waiting.ring, waiting.ends
    broken, score = climber.broken, climber.score
    room = len(log.variable)
    mended, gain, size, n_log, entries = change.mended, change.gain, change.size, change.n_log, change.entries
    while ends.length > 0 and entries < budget:
        i = ring[ends.begin]
        ends.begin = (ends.begin + 1) % len(ring)
        ends.length -= 1
        waiting.queued[i] = False
        old = labels[i]
        score_states(model, climber, i)
        entries += model.card[i] * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        k = best_state(climber, old, model.card[i])
        if k == old or (room > 0 and n_log == room):
            continue
        gain += score[k] - score[old]
        mended -= broken[k] - broken[old]
        size += abs(score[k]) + abs(score[old])
        if room > 0:
            log.variable[n_log], log.label[n_log] = i, old
            n_log += 1
        move_to(model, climber, i, k)
        queue_neighbours(model, waiting, i)
    return TrialChange(mended, gain, size, n_log, entries)


@compiled
def climb_from_queue(model: MoveModel, climber: Climber, waiting: Waiting, budget: int) -> int:
    """Climb until no variable waits or about `budget` table entries are read; returns the entries."""
    nothing = UndoLog(waiting.ring[:0], waiting.ring[:0])
    return climb(model, climber, waiting, nothing, TrialChange(0, 0.0, 0.0, 0, 0), budget).entries


@compiled
def perturb_and_climb(
    model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, random: Bits, largest: int, budget: int,
    max_trials: int,
) -> int:  # fmt: skip
    """Perturb neighbourhoods of up to `largest` variables, one after another, and climb again each time."""
    # A trial that breaks more constraints, or as many at a lower sum, is undone. At most `max_trials`, and about
    # `budget` table entries; returns the number of trials. `log` has room for the changes of one trial.
    trials = 0
    while budget > 0 and trials < max_trials:
        trials += 1
        change = perturb(model, climber, waiting, log, random, largest)
        change = climb(model, climber, waiting, log, change, 1 << 60)
        budget -= change.entries
        if change.mended < 0 or (change.mended == 0 and change.gain < -MARGIN * change.size):
            for at in range(change.n_log - 1, -1, -1):
                move_to(model, climber, log.variable[at], log.label[at])
    return trials


# -- Single-variable ascent in the order of the variables -------------------------------------------------------------


class Ascent:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.visits = 0  # variables visited so far, over all restarts
        self._model = lay_out(problem)
        self._climber = new_climber(problem)
        stretch = 1 + math.isqrt(problem.n_vars)
        marked, marks_in = np.zeros(problem.n_vars, dtype=bool), np.zeros(stretch, dtype=np.int64)
        self._marks = Round(marked, marks_in, stretch, blank(RoundCursor))
        self._ascend = predispatched(ascend)

    @property
    def labels(self) -> Ints:
        return self._climber.labels

    @property
    def at_optimum(self) -> bool:
        """Whether no single change helps."""
        return self._marks.cursor.n_marked == 0

    def restart(self, labels: Ints) -> None:
        """Restart from a labelling, with every variable marked."""
        n, marks = self.problem.n_vars, self._marks
        self._climber.labels[:] = labels
        self._climber.place[:] = table_places(self.problem, self._climber.labels)
        marks.marked[:] = True
        marks.marks_in[:] = np.bincount(np.arange(n) // marks.stretch, minlength=len(marks.marks_in))
        marks.cursor.n_marked, marks.cursor.variable = n, 0

    def run(self, max_visits: int, entries: int = pace.ASCENT) -> None:
        """Visit marked variables until none is left, or a limit on visits or table entries is reached."""
        self.visits += self._ascend(self._model, self._climber, self._marks, max_visits, entries)


def new_climber(problem: Problem) -> Climber:
    widest = int(problem.graph.card.max(initial=1))
    return Climber(
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        broken=np.zeros(widest, dtype=np.int64),
        score=np.zeros(widest),
    )


# Single-variable ascent: a variable takes its best state, and its neighbours are marked again if that is a change.
# `score_states`, `best_state` and `move_to` are shared by all ascents, which differ in the order of visits: `ascend`
# cycles through the variables in their order, which is OpenGM's and gives the paper's figures for ICM; the local search
# of the exact methods uses a queue, which only touches the surroundings of a perturbation, however large the model.

MARGIN = 1e-13  # gains below this fraction of the sums that they are a difference of count as round-off


class Climber(NamedTuple):
    labels: Ints  # (n_vars,): where it stands
    place: Ints  # (n_factors,): entry of `theta_t` that every factor takes there
    # broken, score: (largest cardinality,): forbidden entries and finite sum of each state of the variable looked at
    broken: Ints
    score: Floats


class RoundCursor:
    n_marked: int  # number of marked variables
    variable: int  # the next variable


class Round(NamedTuple):
    """The variables due, visited in their order, round and round."""

    marked: Bools  # (n_vars,): which variables are due
    marks_in: Ints  # how many of them are in every stretch of `stretch` variables: stretches without any are skipped
    stretch: int
    cursor: RoundCursor  # how far the round has come


@inlined
def score_states(model: MoveModel, climber: Climber, i: int) -> None:
    """Compute the forbidden entries and the finite sum of every state of variable `i`, with all others fixed."""
    broken, score, n_k, label = climber.broken, climber.score, model.card[i], climber.labels[i]
    for k in range(n_k):
        theta = model.theta_v[model.var_ptr[i] + k]
        hard = theta == -np.inf
        broken[k] = 1 if hard else 0
        score[k] = 0.0 if hard else theta
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a, stride = model.factor_of[e], model.stride_of[e]
        at = climber.place[a] - stride * label
        weight = weight_of(model.weight, a)
        for k in range(n_k):
            theta = weight * model.theta_t[at + k * stride]
            if theta == -np.inf:
                broken[k] += 1
            else:
                score[k] += theta


@inlined
def best_state(climber: Climber, label: int, n_states: int) -> int:
    """Return the best state: the current one unless another violates less, or as much with a higher score."""
    broken, score = climber.broken, climber.score
    best = label
    for k in range(n_states):
        if broken[k] < broken[best]:
            best = k
        elif broken[k] == broken[best]:
            # a margin above round-off, so that equal states do not alternate forever
            margin = MARGIN * (abs(score[k]) + abs(score[best]))
            if score[k] > score[best] + margin:
                best = k
    return best


@inlined
def move_to(model: MoveModel, climber: Climber, i: int, k: int) -> None:
    shift = k - climber.labels[i]
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        climber.place[model.factor_of[e]] += model.stride_of[e] * shift
    climber.labels[i] = k


@inlined
def next_marked(marks: Round, i: int) -> int:
    """Return the first marked variable from `i` on, cyclically; there must be one."""
    n = len(marks.marked)
    i = i if i < n else 0
    while not marks.marked[i]:
        b = i // marks.stretch
        i = i + 1 if marks.marks_in[b] > 0 else (b + 1) * marks.stretch
        i = i if i < n else 0
    return i


@inlined
def mark_neighbours(model: MoveModel, marks: Round, i: int) -> int:
    """Mark the neighbours of a variable; returns how many were not marked before."""
    n_new = 0
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if j != i and not marks.marked[j]:
                marks.marked[j] = True
                marks.marks_in[j // marks.stretch] += 1
                n_new += 1
    return n_new


@compiled
def ascend(model: MoveModel, climber: Climber, marks: Round, max_visits: int, max_entries: int) -> int:
    """Visit marked variables until none is left or a budget is spent; return how many were visited."""
    n_marked, i = marks.cursor.n_marked, marks.cursor.variable
    visits = entries = 0
    while n_marked > 0 and visits < max_visits and entries < max_entries:
        i = next_marked(marks, i)
        marks.marked[i] = False
        marks.marks_in[i // marks.stretch] -= 1
        n_marked -= 1
        visits += 1
        entries += model.card[i] * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        score_states(model, climber, i)
        new = best_state(climber, climber.labels[i], model.card[i])
        if new != climber.labels[i]:
            move_to(model, climber, i, new)
            n_marked += mark_neighbours(model, marks, i)
        i += 1
    marks.cursor.n_marked, marks.cursor.variable = n_marked, i
    return visits


# -- Labellings with each state: a variable is forced into a state, its surroundings ascend, and all is undone --------

ROOM = 256  # maximum number of changes around one forced state


@compiled
def force(
    model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, i: int, k: int
) -> tuple[int, float, int, int]:
    """Set variable `i` to state `k` and let variables around it ascend, in queue order; `i` stays fixed."""
    # Returns the new forbidden entries, the finite gain, the changes in the log, and the entries read.
    ring, queued, ends = waiting.ring, waiting.queued, waiting.ends
    labels, broken, score = climber.labels, climber.broken, climber.score
    score_states(model, climber, i)
    new_broken, gain = broken[k] - broken[labels[i]], 0.0 + score[k] - score[labels[i]]
    log.variable[0], log.label[0] = i, labels[i]
    move_to(model, climber, i, k)
    queue_neighbours(model, waiting, i)
    visits, entries, n_log = 0, 0, 1
    while ends.length > 0:
        j = ring[ends.begin]
        ends.begin = (ends.begin + 1) % len(ring)
        ends.length -= 1
        queued[j] = False
        # Maximum number of variables visited after one is forced into a state
        if j == i or visits >= 200 or n_log >= len(log.variable):
            continue
        visits += 1
        entries += model.card[j] * (1 + model.nbr_ptr[j + 1] - model.nbr_ptr[j])
        score_states(model, climber, j)
        old = labels[j]
        new = best_state(climber, old, model.card[j])
        if new != old:
            new_broken = new_broken + broken[new] - broken[old]
            gain = gain + score[new] - score[old]
            log.variable[n_log], log.label[n_log] = j, old
            n_log += 1
            move_to(model, climber, j, new)
            queue_neighbours(model, waiting, j)
    return new_broken, gain, n_log, entries


@compiled
def force_states(
    begin: int, max_entries: int, model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, gain: Floats
) -> int:
    """Force every other state of the variables from `begin` on, until a budget is spent; return the next variable."""
    # The gain over the current labelling is recorded for every state of each feasible labelling on the way.
    labels, var_ptr = climber.labels, model.var_ptr
    i, entries = begin, 0
    while i < len(labels) and entries < max_entries:
        home = labels[i]
        for k in range(model.card[i]):
            if k == home:
                continue
            broken, found, n_log, read = force(model, climber, waiting, log, i, k)
            entries += read + 100
            for n in range(n_log - 1, -1, -1):
                j = log.variable[n]
                if broken <= 0:
                    gain[var_ptr[j] + labels[j]] = max(gain[var_ptr[j] + labels[j]], found)
            for n in range(n_log - 1, -1, -1):
                move_to(model, climber, log.variable[n], log.label[n])
        i += 1
    return i


class ForcedStates:
    """The best gain found for every state, starting from a labelling of finite value."""

    def __init__(self, problem: Problem, labels: Ints) -> None:
        n = problem.n_vars
        self.problem = problem
        self._model, self._climber = lay_out(problem), new_climber(problem)
        self._climber.labels[:] = labels
        self._climber.place[:] = table_places(problem, labels)
        self._waiting = Waiting(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool), blank(WaitingEnds))
        self._log = UndoLog(np.zeros(ROOM, dtype=np.int64), np.zeros(ROOM, dtype=np.int64))
        self._next = 0
        # (n_states,): gain of the best labelling found with each state over the given one; -inf if none was found
        self.gain: Floats = np.full(problem.n_states, -np.inf)
        self.gain[problem.graph.var_ptr[:-1] + labels] = 0.0

    @property
    def finished(self) -> bool:
        return self._next >= self.problem.n_vars

    def advance(self, entries: int = pace.ASCENT) -> None:
        self._next = force_states(self._next, entries, self._model, self._climber, self._waiting, self._log, self.gain)

    def labels_with(self, i: int, k: int) -> Ints:
        before: Ints = self._climber.labels.copy()
        force(self._model, self._climber, self._waiting, self._log, i, k)
        found: Ints = self._climber.labels.copy()
        self._climber.labels[:] = before
        self._climber.place[:] = table_places(self.problem, before)
        return found
