"""What the threads of ADMM work on: pieces of batches, and room for each thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mapmrf.engines.admm.structs import BATCH, Batches, BatchRow, FactorKind, Scratch
from mapmrf.kernels.jit import settled
from mapmrf.workers import Workers


class KernelCalls:
    """Calls of a kernel that are made again and again: planned once, for on a small model an iteration takes no longer.

    Attributes
    ----------
    kernel
        The kernel.
    arguments
        The arguments of every call; the types are the same in all.
    """

    def __init__(self, kernel: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self._call = settled(kernel)

    def run(self, workers: Workers) -> None:
        """Make all calls, shared out among the threads."""
        workers.run(self._call, self.arguments)


def new_scratch(batch: Batches) -> Scratch:
    """Room for one thread's factor steps."""
    widest = max((int(batch[name].max(initial=0)) for name in ("n_states", "slot_width", "arity")), default=0)
    dense_ones = batch[np.isin(batch["kind"], (FactorKind.DENSE, FactorKind.RIDGE))]
    width = int(dense_ones["slot_width"].max(initial=0))
    return Scratch(np.zeros((9, widest + 9)), np.zeros((4, widest + 9), dtype=np.int64), np.zeros((width, width)))


def cut_tasks(rows: list[BatchRow], size: int) -> dict[int, Batches]:
    """The pieces of work of so many factors, by kind of factor; they are fixed, so sums over them are too."""
    tasks: dict[int, list[BatchRow]] = {}
    for row in rows:
        pieces = [row._replace(begin=at, end=min(at + size, row.end)) for at in range(row.begin, row.end, size)]
        if pieces:
            tasks.setdefault(row.kind, []).extend(pieces)
    return {kind: np.array(pieces, dtype=BATCH) for kind, pieces in tasks.items()}
