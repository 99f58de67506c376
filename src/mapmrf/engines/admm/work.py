"""Work of the ADMM threads: pieces of batches, and scratch for each thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mapmrf.compilation.jit import predispatched
from mapmrf.engines.admm.structs import BATCH, Batches, BatchRow, FactorKind, Scratch
from mapmrf.run.pool import Workers


class KernelCalls:
    """Repeated calls of a kernel, planned once, since planning takes as long as an iteration on a small model.

    Attributes
    ----------
    kernel
        The kernel.
    arguments
        The arguments of every call, all of the same types.
    """

    def __init__(self, kernel: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self._call = predispatched(kernel)

    def run(self, workers: Workers) -> None:
        """Make all calls, distributed over the threads."""
        workers.run(self._call, self.arguments)


def new_scratch(batch: Batches) -> Scratch:
    """Allocate scratch for one thread's factor steps."""
    widest = max((int(batch[name].max(initial=0)) for name in ("n_states", "slot_width", "arity")), default=0)
    dense_ones = batch[np.isin(batch["kind"], (FactorKind.DENSE, FactorKind.RIDGE))]
    width = int(dense_ones["slot_width"].max(initial=0))
    return Scratch(np.zeros((9, widest + 9)), np.zeros((4, widest + 9), dtype=np.int64), np.zeros((width, width)))


def cut_tasks(rows: list[BatchRow], size: int) -> dict[int, Batches]:
    """Divide batches into tasks of `size` factors, by kind of factor; they are fixed, so sums over them are too."""
    tasks: dict[int, list[BatchRow]] = {}
    for row in rows:
        pieces = [row._replace(begin=at, end=min(at + size, row.end)) for at in range(row.begin, row.end, size)]
        if pieces:
            tasks.setdefault(row.kind, []).extend(pieces)
    return {kind: np.array(pieces, dtype=BATCH) for kind, pieces in tasks.items()}
