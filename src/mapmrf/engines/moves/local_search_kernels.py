"""Iterated local search: perturb a neighbourhood, ascend again, and keep what is not worse."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Bools, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.moves.ascent_kernels import MARGIN, Climber, best_state, move_to, score_states
from mapmrf.engines.moves.move_model import MoveModel
from mapmrf.engines.moves.random_kernels import Bits, draw


class WaitingEnds:
    """Start and length of a ring buffer of queued variables."""

    begin: int
    length: int


class Waiting(NamedTuple):
    """Queue of variables to visit: a ring buffer, membership flags, and its ends."""

    ring: Ints
    queued: Bools
    ends: WaitingEnds


class UndoLog(NamedTuple):
    """Changes of a trial: variables and their previous labels."""

    variable: Ints
    label: Ints


class TrialChange(NamedTuple):
    """Effect of a trial so far.

    Attributes
    ----------
    mended, gain
        Forbidden entries mended, and the finite gain.
    size
        Size of the sums that the gain of the ascent is a difference of.
    n_log
        Changes in the log.
    entries
        Table entries read.
    """

    mended: int
    gain: float
    size: float
    n_log: int
    entries: int


@inlined
def queue_neighbours(model: MoveModel, waiting: Waiting, i: int) -> None:
    """Queue the neighbours of a variable that has changed."""
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
    """Visit the queued variables until none is left or a budget is spent, as part of a trial.

    A log of length zero means that nothing will be undone; a full log ends the changes of its trial.
    """
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
    """Perturb neighbourhoods of up to `largest` variables, one after another, and climb again each time.

    A trial that breaks more constraints, or as many at a lower sum, is undone. At most `max_trials`, and about `budget`
    table entries; returns the number of trials. `log` has room for the changes of one trial.
    """
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
