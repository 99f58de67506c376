"""Binary pairwise models in spins, for the quickest of the sequential passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.messages import spins_kernels as kernel
from mapmrf.engines.messages.sequential import Visits
from mapmrf.problem import Problem

MAX_SPREAD = 1e6
"""With entries so much larger than the usual ones a model is better kept in tables, where nothing cancels."""
SAMPLE = 10_000
"""Entries, roughly, from which the usual ones are known."""


def takes(problem: Problem) -> bool:
    """Whether all factors are finite tables of two binary variables, of comparable size."""
    graph = problem.graph
    if [batch.shape for batch in problem.batches] != [(2, 2)] or problem.batches[0].hard:
        return False
    if not np.all(graph.card == 2) or not np.isfinite(graph.theta_v).all():
        return False
    largest = max(graph.theta_t.max(), -graph.theta_t.min())
    some = np.abs(graph.theta_t[:: 1 + len(graph.theta_t) // SAMPLE])
    return not np.any(some) or bool(largest <= MAX_SPREAD * np.median(some[some > 0]))


@dataclass
class Spins:
    """A run on a binary pairwise model: the arrays of `kernels.trws_pairs`, and a way to iterate."""

    seq: Ints
    par: Floats
    model: tuple[Floats | Ints, ...]
    messages: tuple[Floats, Floats, Floats, Floats]
    labels: Ints
    in_order: Ints

    @classmethod
    def build(cls, problem: Problem, visits: Visits, par: Floats) -> Spins:
        """Turn the tables into couplings and fields, and sort the edges in both directions."""
        n, m = problem.n_vars, problem.n_factors
        dtype: type[np.integer[Any]] = np.int32 if m < 2**31 else np.int64
        up, down, id = (np.empty(m, dtype=dtype) for _ in range(3))
        ptr, back_ptr = (np.zeros(n + 1, dtype=dtype) for _ in range(2))
        low, high = problem.graph.theta_v.reshape(-1, 2)[visits.seq].T / 2
        field, coupling = high - low, np.empty(m)
        tables = problem.graph.theta_t, problem.table_at
        constant = kernel.lay_out(problem.scope, visits.rank, *tables, field, up, ptr, down, id, back_ptr, coupling)
        par[kernel.CONSTANT] = problem.graph.constant + float((low + high).sum()) + constant
        return cls(
            seq=visits.seq,
            par=par,
            model=(field, visits.omega, visits.keep, up, ptr, down, id, back_ptr, coupling),
            messages=(np.zeros(m), np.zeros(n), np.zeros(n), np.zeros(n)),
            labels=np.zeros(n, dtype=np.int8),
            in_order=np.zeros(n, dtype=np.int8),
        )

    @property
    def work(self) -> int:
        """What an iteration costs, in table entries of `Passes`."""
        return 6 * len(self.messages[0]) + len(self.seq)

    @property
    def best(self) -> Ints:
        """The best labelling so far."""
        best = np.empty(len(self.seq), dtype=np.int64)
        best[self.seq] = self.in_order
        return best

    def iterate(self, n_iterations: int, done: int, decode_every: int) -> tuple[int, int]:
        """Run iterations in the kernel; return how many and why it ended."""
        arrays = self.par, *self.model, *self.messages, self.labels, self.in_order
        n, why = kernel.iterate_binary(n_iterations, done, decode_every, *arrays)
        return n, why
