"""A long factor step in rounds: between two of them it looks whether anybody still waits for it."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.admm.structs import BATCH, Batches, FactorKind

ROUND_WORK = 100_000_000
"""Operations of a round at most, on each thread: a tenth of a second, where all supports are found anew."""


def work_of(tasks: Batches) -> Ints:
    """Operations that a factor of each task may take: a support grows by one entry after another, up to its states.

    For each of them the whole table is looked at, and a dense sub-problem factorises its matrix.
    """
    states = tasks["n_states"]
    dense = np.isin(tasks["kind"], (FactorKind.DENSE, FactorKind.RIDGE))
    found: Ints = states * (tasks["n_configs"] * tasks["arity"] + np.where(dense, states**3 // 6, states))
    return found


def rounds_of(tasks: Batches, threads: int) -> list[Batches]:
    """The tasks of one kind in rounds of bounded work; those that take more are cut. A round is for all threads."""
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
