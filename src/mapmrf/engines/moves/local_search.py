"""Iterated local search: the first labelling of an exact method, and improvements during its run."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, blank
from mapmrf.compilation.jit import bare, compiled, inlined, predispatched
from mapmrf.engines.moves.flip_state import MoveModel, lay_out, set_labels
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.kernels.random_numbers import Bits, draw, seeded
from mapmrf.model.problem import Problem
from mapmrf.run import pace
from mapmrf.run.incumbent import Incumbent

LARGEST = 12  # maximum number of variables in a perturbation


class LocalSearch:
    """Single-variable ascent with random perturbations of small neighbourhoods."""

    def __init__(self, problem: Problem, labels: Ints, seed: int) -> None:
        # trials: perturbations tried
        self.problem, self.trials = problem, 0
        self.incumbent = Incumbent(problem.graph, labels)  # the best labelling
        self._climber = new_climber(problem, problem.n_vars, 16 * LARGEST + problem.n_vars)
        self._random = seeded(seed)
        self.restart(labels)

    @property
    def descending(self) -> bool:
        """Whether the ascent from the last restart is unfinished."""
        return self._climber.trial.n_queued > 0

    def restart(self, labels: Ints) -> None:
        climber = self._climber
        set_labels(self.problem, climber.labels, climber.place, labels)
        climber.ring[:] = np.arange(len(labels))
        climber.queued[:] = True
        climber.trial.begin, climber.trial.n_queued = 0, len(labels)

    def run(self, entries: int, max_trials: int) -> None:
        """Read about `entries` table entries."""
        if self.problem.n_vars:
            self.trials += perturb_and_climb(self._climber, self._random, entries, max_trials)
            self.incumbent.offer(self._climber.labels)


# -- Iterated local search: perturb a neighbourhood, ascend again, and keep what is not worse -------------------------

ANY_NUMBER = 1 << 60  # no limit


@inlined
def begin_trial(trial: Trial) -> None:
    trial.n_log = trial.mended = trial.entries = 0
    trial.gain = trial.size = 0.0


@inlined
def change_label(climber: Climber, i: int, k: int, logged: bool) -> None:
    """Move a variable whose states have their scores, as part of a trial, and queue its neighbours."""
    model, trial, ring, queued = climber.model, climber.trial, climber.ring, climber.queued
    old = climber.labels[i]
    trial.gain += climber.score[k] - climber.score[old]
    trial.mended -= climber.broken[k] - climber.broken[old]
    if logged:
        climber.log_variable[trial.n_log], climber.log_label[trial.n_log] = i, old
        trial.n_log += 1
    move_to(climber, i, k)
    for e in range(model.nbr_ptr[i], model.nbr_ptr[i + 1]):
        a = model.factor_of[e]
        for p in range(model.scope_ptr[a], model.scope_ptr[a + 1]):
            j = model.scope[p]
            if j != i and not queued[j]:
                queued[j] = True
                ring[(trial.begin + trial.n_queued) % len(ring)] = j
                trial.n_queued += 1


@bare
def climb(climber: Climber, fixed: int, max_visits: int, budget: int, logged: bool) -> None:
    """Visit the queued variables, as part of a trial, until none is left or a budget is spent."""
    # `fixed` keeps its label; -1 if all may change. What is not logged will not be undone; a full log ends the changes.
    model, trial, labels, score = climber.model, climber.trial, climber.labels, climber.score
    visits, room = 0, len(climber.log_variable)
    while trial.n_queued > 0 and trial.entries < budget:
        i = climber.ring[trial.begin]
        trial.begin = (trial.begin + 1) % len(climber.ring)
        trial.n_queued -= 1
        climber.queued[i] = False
        if i == fixed or visits >= max_visits:
            continue
        visits += 1
        old = labels[i]
        score_states(climber, i)
        trial.entries += model.card[i] * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        k = best_state(climber, old, model.card[i])
        if k != old and not (logged and trial.n_log == room):
            trial.size += abs(score[k]) + abs(score[old])
            change_label(climber, i, k, logged)


@inlined
def take_back_trial(climber: Climber) -> None:
    for at in range(climber.trial.n_log - 1, -1, -1):
        move_to(climber, climber.log_variable[at], climber.log_label[at])


@inlined
def perturb(climber: Climber, random: Bits) -> None:
    """Randomise labels along a random walk of up to `LARGEST` variables."""
    model = climber.model
    n_steps = 1 + draw(random, LARGEST)
    i = draw(random, len(climber.labels))
    for _ in range(n_steps):
        score_states(climber, i)
        change_label(climber, i, draw(random, model.card[i]), True)
        degree = model.nbr_ptr[i + 1] - model.nbr_ptr[i]
        climber.trial.entries += model.card[i] * degree
        if degree == 0:
            break
        a = model.factor_of[model.nbr_ptr[i] + draw(random, degree)]
        i = model.scope[model.scope_ptr[a] + draw(random, model.scope_ptr[a + 1] - model.scope_ptr[a])]


@compiled
def perturb_and_climb(climber: Climber, random: Bits, budget: int, max_trials: int) -> int:
    """Climb, then perturb one neighbourhood after another and climb again each time."""
    # A trial that breaks more constraints, or as many at a lower sum, is undone. At most `max_trials`, and about
    # `budget` table entries; returns the number of trials.
    trials, trial = 0, climber.trial
    begin_trial(trial)
    climb(climber, -1, ANY_NUMBER, budget, False)
    budget -= trial.entries
    while budget > 0 and trials < max_trials:
        trials += 1
        begin_trial(trial)
        perturb(climber, random)
        climb(climber, -1, ANY_NUMBER, ANY_NUMBER, True)
        budget -= trial.entries
        if trial.mended < 0 or (trial.mended == 0 and trial.gain < -MARGIN * trial.size):
            take_back_trial(climber)
    return trials


# -- Single-variable ascent in the order of the variables -------------------------------------------------------------


class Ascent:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.visits = 0  # variables visited so far, over all restarts
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
        n, marks, climber = self.problem.n_vars, self._marks, self._climber
        set_labels(self.problem, climber.labels, climber.place, labels)
        marks.marked[:] = True
        marks.marks_in[:] = np.bincount(np.arange(n) // marks.stretch, minlength=len(marks.marks_in))
        marks.cursor.n_marked, marks.cursor.variable = n, 0

    def run(self, max_visits: int, entries: int = pace.ASCENT) -> None:
        """Visit marked variables until none is left, or a limit on visits or table entries is reached."""
        self.visits += self._ascend(self._climber, self._marks, max_visits, entries)


def new_climber(problem: Problem, room: int = 0, log: int = 0) -> Climber:
    """Create an ascent at labels zero, with room for a queue of variables and a log of changes."""
    widest = int(problem.graph.card.max(initial=1))
    return Climber(
        model=lay_out(problem),
        labels=np.zeros(problem.n_vars, dtype=np.int64),
        place=problem.table_at.astype(np.int64),
        broken=np.zeros(widest, dtype=np.int64),
        score=np.zeros(widest),
        ring=np.zeros(room, dtype=np.int64),
        queued=np.zeros(room, dtype=bool),
        log_variable=np.zeros(log, dtype=np.int64),
        log_label=np.zeros(log, dtype=np.int64),
        trial=blank(Trial),
    )


# Single-variable ascent: a variable takes its best state, and its neighbours are marked again if that is a change.
# `score_states`, `best_state` and `move_to` are shared by all ascents, which differ in the order of visits: `ascend`
# cycles through the variables in their order, which is OpenGM's and gives the paper's figures for ICM; the local search
# of the exact methods uses a queue, which only touches the surroundings of a perturbation, however large the model.

MARGIN = 1e-13  # gains below this fraction of the sums that they are a difference of count as round-off


class Trial:
    begin: int  # where the queue begins in its ring
    n_queued: int
    n_log: int  # changes in the log
    mended: int  # forbidden entries mended
    gain: float  # finite gain
    size: float  # size of the sums that the gain of the ascent is a difference of
    entries: int  # table entries read


class Climber(NamedTuple):
    model: MoveModel
    labels: Ints  # (n_vars,): where it stands
    place: Ints  # (n_factors,): entry of `theta_t` that every factor takes there
    # broken, score: (largest cardinality,): forbidden entries and finite sum of each state of the variable looked at
    broken: Ints
    score: Floats
    # ring, queued: variables to visit, in a ring buffer, and who is in it
    ring: Ints
    queued: Bools
    # log_variable, log_label: variables that a trial changed, and their labels before
    log_variable: Ints
    log_label: Ints
    trial: Trial


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
def score_states(climber: Climber, i: int) -> None:
    """Compute the forbidden entries and the finite sum of every state of variable `i`, with all others fixed."""
    model, broken, score = climber.model, climber.broken, climber.score
    n_k, label = model.card[i], climber.labels[i]
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
def move_to(climber: Climber, i: int, k: int) -> None:
    model, shift = climber.model, k - climber.labels[i]
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
def ascend(climber: Climber, marks: Round, max_visits: int, max_entries: int) -> int:
    """Visit marked variables until none is left or a budget is spent; return how many were visited."""
    model, n_marked, i = climber.model, marks.cursor.n_marked, marks.cursor.variable
    visits = entries = 0
    while n_marked > 0 and visits < max_visits and entries < max_entries:
        i = next_marked(marks, i)
        marks.marked[i] = False
        marks.marks_in[i // marks.stretch] -= 1
        n_marked -= 1
        visits += 1
        entries += model.card[i] * (1 + model.nbr_ptr[i + 1] - model.nbr_ptr[i])
        score_states(climber, i)
        new = best_state(climber, climber.labels[i], model.card[i])
        if new != climber.labels[i]:
            move_to(climber, i, new)
            n_marked += mark_neighbours(model, marks, i)
        i += 1
    marks.cursor.n_marked, marks.cursor.variable = n_marked, i
    return visits


# -- Labellings with each state: a variable is forced into a state, its surroundings ascend, and all is undone --------

ROOM = 256  # maximum number of changes around one forced state


@compiled
def force(climber: Climber, i: int, k: int) -> None:
    """Set variable `i` to state `k` and let variables around it ascend, in queue order; `i` stays fixed."""
    begin_trial(climber.trial)
    score_states(climber, i)
    change_label(climber, i, k, True)
    climb(climber, i, 200, ANY_NUMBER, True)  # maximum number of variables visited


@compiled
def force_states(begin: int, max_entries: int, climber: Climber, gain: Floats) -> int:
    """Force every other state of the variables from `begin` on, until a budget is spent; return the next variable."""
    # The gain over the current labelling is recorded for every state of each feasible labelling on the way.
    labels, trial, var_ptr = climber.labels, climber.trial, climber.model.var_ptr
    i, entries = begin, 0
    while i < len(labels) and entries < max_entries:
        home = labels[i]
        for k in range(climber.model.card[i]):
            if k == home:
                continue
            force(climber, i, k)
            entries += trial.entries + 100
            for n in range(trial.n_log if trial.mended >= 0 else 0):
                at = var_ptr[climber.log_variable[n]] + labels[climber.log_variable[n]]
                gain[at] = max(gain[at], trial.gain)
            take_back_trial(climber)
        i += 1
    return i


class ForcedStates:
    """The best gain found for every state, starting from a labelling of finite value."""

    def __init__(self, problem: Problem, labels: Ints) -> None:
        self.problem = problem
        self._climber = new_climber(problem, problem.n_vars, ROOM)
        set_labels(problem, self._climber.labels, self._climber.place, labels)
        self._next = 0
        # (n_states,): gain of the best labelling found with each state over the given one; -inf if none was found
        self.gain: Floats = np.full(problem.n_states, -np.inf)
        self.gain[problem.graph.var_ptr[:-1] + labels] = 0.0

    @property
    def finished(self) -> bool:
        return self._next >= self.problem.n_vars

    def advance(self, entries: int = pace.ASCENT) -> None:
        self._next = force_states(self._next, entries, self._climber, self.gain)

    def labels_with(self, i: int, k: int) -> Ints:
        before: Ints = self._climber.labels.copy()
        force(self._climber, i, k)
        found: Ints = self._climber.labels.copy()
        set_labels(self.problem, self._climber.labels, self._climber.place, before)
        return found
