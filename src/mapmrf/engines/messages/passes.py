"""Sequential passes over the variables of a model, forward and backward: what TRW-S and SRMP share."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np

from mapmrf.arrays import Ints
from mapmrf.engines.messages.passes_kernels import PassFigures, PassSpan, PassStopping


class SequentialPasses(ABC):
    """Passes in an order of the variables; they keep the best bound and the best labelling decoded on the way.

    Attributes
    ----------
    seq : (n_vars,)
        The variables in the order of the visits.
    stopping
        When passes stop.
    figures
        The best bound and value so far.
    in_order : (n_vars,)
        The best labelling so far, in the order of the visits.
    """

    def __init__(self, seq: Ints, stopping: PassStopping, in_order: Ints) -> None:
        self.seq, self.stopping, self.in_order = seq, stopping, in_order
        self.figures = PassFigures()

    @property
    @abstractmethod
    def work(self) -> int:
        """Table entries that an iteration goes through, roughly."""

    @property
    def best(self) -> Ints:
        """The best labelling so far."""
        best = np.empty(len(self.seq), dtype=np.int64)
        best[self.seq] = self.in_order
        return best

    def iterate(self, begin: int, end: int, decode_every: int) -> tuple[int, int]:
        """Do the iterations from `begin` to `end` unless they stop before; return how many, and why they ended."""
        n, why, self.figures = self.run(PassSpan(begin, end, decode_every))
        return n, why

    @abstractmethod
    def run(self, span: PassSpan) -> tuple[int, int, PassFigures]:
        """Run iterations in the kernel."""
