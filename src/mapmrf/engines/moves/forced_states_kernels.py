"""Labellings with each state: a variable is forced into a state, its surroundings ascend, and all is undone."""

from __future__ import annotations

from typing import NamedTuple

from mapmrf.arrays import Floats
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.moves.ascent_kernels import Climber, best_state, move_to, score_states
from mapmrf.engines.moves.local_search_kernels import UndoLog, Waiting, queue_neighbours
from mapmrf.engines.moves.move_model import MoveModel

MOST_VISITS = 200
"""Maximum number of variables visited after one is forced into a state."""


class ForcedChange(NamedTuple):
    """Effect of forcing a state: new forbidden entries, the finite gain, changes, and entries read."""

    broken: int
    gain: float
    n_log: int
    entries: int


@inlined
def set_state(model: MoveModel, climber: Climber, log: UndoLog, i: int, k: int, change: ForcedChange) -> ForcedChange:
    """Give a variable a state, with its states' scores at hand, and note the change."""
    old = climber.labels[i]
    broken = change.broken + climber.broken[k] - climber.broken[old]
    gain = change.gain + climber.score[k] - climber.score[old]
    log.variable[change.n_log], log.label[change.n_log] = i, old
    move_to(model, climber, i, k)
    return ForcedChange(broken, gain, change.n_log + 1, change.entries)


@compiled
def force(model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, i: int, k: int) -> ForcedChange:
    """Set variable `i` to state `k` and let variables around it ascend, in queue order; `i` stays fixed."""
    ring, queued, ends = waiting.ring, waiting.queued, waiting.ends
    score_states(model, climber, i)
    change = set_state(model, climber, log, i, k, ForcedChange(0, 0.0, 0, 0))
    queue_neighbours(model, waiting, i)
    visits, entries = 0, 0
    while ends.length > 0:
        j = ring[ends.begin]
        ends.begin = (ends.begin + 1) % len(ring)
        ends.length -= 1
        queued[j] = False
        if j == i or visits >= MOST_VISITS or change.n_log >= len(log.variable):
            continue
        visits += 1
        entries += model.card[j] * (1 + model.nbr_ptr[j + 1] - model.nbr_ptr[j])
        score_states(model, climber, j)
        new = best_state(climber, climber.labels[j], model.card[j])
        if new != climber.labels[j]:
            change = set_state(model, climber, log, j, new, change)
            queue_neighbours(model, waiting, j)
    return ForcedChange(change.broken, change.gain, change.n_log, entries)


@compiled
def force_states(
    begin: int, max_entries: int, model: MoveModel, climber: Climber, waiting: Waiting, log: UndoLog, gain: Floats
) -> int:
    """Force every other state of the variables from `begin` on, until a budget is spent; return the next variable.

    The gain over the current labelling is recorded for every state of each feasible labelling on the way.
    """
    labels, var_ptr = climber.labels, model.var_ptr
    i, entries = begin, 0
    while i < len(labels) and entries < max_entries:
        home = labels[i]
        for k in range(model.card[i]):
            if k == home:
                continue
            change = force(model, climber, waiting, log, i, k)
            entries += change.entries + 100
            for n in range(change.n_log - 1, -1, -1):
                j = log.variable[n]
                if change.broken <= 0:
                    gain[var_ptr[j] + labels[j]] = max(gain[var_ptr[j] + labels[j]], change.gain)
            for n in range(change.n_log - 1, -1, -1):
                move_to(model, climber, log.variable[n], log.label[n])
        i += 1
    return i
