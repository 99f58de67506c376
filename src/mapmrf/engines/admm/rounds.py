"""Long factor steps in rounds, between which the run can be stopped."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.admm.structs import BATCH, Batches, FactorKind

ROUND_WORK = 100_000_000
"""Maximum number of operations per round and thread: a tenth of a second when all supports are computed afresh."""


def work_of(tasks: Batches) -> Ints:
    """Return the operations that a factor of each task may take: its support may grow entry by entry up to its states.

    For each entry the whole table is scanned, and a dense subproblem factorises its matrix.
    """
    states = tasks["n_states"]
    dense = np.isin(tasks["kind"], (FactorKind.DENSE, FactorKind.RIDGE))
    found: Ints = states * (tasks["n_configs"] * tasks["arity"] + np.where(dense, states**3 // 6, states))
    return found


def rounds_of(tasks: Batches, threads: int) -> list[Batches]:
    """Divide the tasks of one kind into rounds of bounded work for all threads, splitting large tasks."""
    work = work_of(tasks)
    if np.sum(work * (tasks["end"] - tasks["begin"])) <= ROUND_WORK * threads:
        return [tasks]
    rounds: list[list[np.record]] = [[]]
    left = ROUND_WORK * threads
    for task, each in zip(tasks, work.tolist(), strict=True):
        size = max(1, ROUND_WORK // each)
        for begin in range(task.begin, task.end, size):
            piece = task.copy()
            piece.begin, piece.end = begin, min(begin + size, task.end)
            done = each * (piece.end - piece.begin)
            if rounds[-1] and done > left:
                rounds.append([])
                left = ROUND_WORK * threads
            rounds[-1].append(piece)
            left -= done
    return [np.array(pieces, dtype=BATCH) for pieces in rounds]
