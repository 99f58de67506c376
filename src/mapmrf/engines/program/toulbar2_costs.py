"""Integer costs of a problem for toulbar2, and the possible effect of their rounding."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.program.program import block_losses
from mapmrf.model.problem import Batch, Problem

COST_BITS = 50
"""The sum of the largest costs is below 2 to this power: a double represents it, and toulbar2's limit is 2^58."""


@dataclass(frozen=True)
class WholeCosts:
    """cost = rint(scale (best - theta)) in every block, inf where theta is -inf; offset is the sum of the bests.

    The scale is a power of two, so that only the rounding to integers loses precision: half a unit per variable and
    factor, `error` for a whole labelling. Factor `a` of the problem has its costs at ``table_at[a]`` of `tables`: there
    is a table for every distinct pair of a weight and a table. Constraints cost `penalties`.
    """

    unary: Floats
    tables: Floats
    table_at: Ints
    offset: float
    scale: float
    error: float
    penalties: Floats

    @classmethod
    def of(cls, problem: Problem, bits: int = COST_BITS) -> WholeCosts:
        """Return the finest costs whose sum is below 2^bits."""
        graph = problem.graph.expanded()
        uses = np.bincount(graph.table_of, minlength=graph.n_tables)
        unary, best_v, range_v = block_losses(graph.theta_v, graph.var_ptr)
        tables, best_t, range_t = block_losses(graph.theta_t, graph.table_ptr)
        used = uses > 0
        offset = graph.constant + float(best_v.sum() + best_t[used] @ uses[used])
        prices = np.zeros(0) if graph.constraints is None else graph.constraints.penalty
        finite = prices[np.isfinite(prices)]
        total = float(range_v.sum() + range_t @ uses + finite.sum())
        scale = math.ldexp(1.0, min(1000, bits - math.frexp(total)[1])) if total else 1.0
        n_rounded = np.count_nonzero(range_v) + uses[range_t > 0].sum() + np.count_nonzero(finite)
        size = float(np.abs(best_v).sum() + np.abs(best_t[used]) @ uses[used] + total)
        # Half a unit per non-constant block, and the round-off of sums over all of them.
        error = 0.5 * n_rounded / scale + 32 * np.finfo(float).eps * size if math.isfinite(offset) else 0.0
        table_at = problem.table_at if graph is problem.graph else graph.table_ptr[graph.table_of[problem.order]]
        costs_v, costs_t, penalties = (np.rint(block * scale) for block in (unary, tables, prices))
        return cls(costs_v, costs_t, table_at, offset, scale, float(error), penalties)

    def bound(self, lower: int) -> float:
        """Return the upper bound on the value of all labellings, given a lower bound on their costs."""
        return self.offset - lower / self.scale + self.error

    def cost(self, problem: Problem, labels: Ints) -> float:
        """Return the cost of a labelling."""
        graph = problem.graph
        total = float(self.unary[graph.var_ptr[:-1] + labels].sum())
        for batch in problem.batches:
            places = np.ravel_multi_index(tuple(labels[batch.scope].T), batch.shape)
            total += float(self.tables[self.table_at[batch.factors] + places].sum())
        return total

    def network(self, problem: Problem) -> dict[str, Any]:
        """Return the input of the worker: runs of variables of equal cardinality, and functions grouped by shape."""
        return {
            "variables": list(self._variables(problem)),
            "functions": [item for batch in problem.batches for item in self._functions(batch)],
        }

    def _variables(self, problem: Problem) -> Iterator[tuple[int, int, int, bytes]]:
        """Yield (first variable, count, cardinality, unary costs)."""
        card, ptr = problem.graph.card, problem.graph.var_ptr
        cuts = [0, *(np.flatnonzero(np.diff(card)) + 1).tolist(), len(card)]
        for first, end in itertools.pairwise(cuts):
            yield first, end - first, int(card[first]), self.unary[ptr[first] : ptr[end]].tobytes()

    def _functions(self, batch: Batch) -> Iterator[tuple[tuple[int, ...], int, bytes, bytes]]:
        """Yield (shape, count, scopes, costs): a table for each, or one table for all if factors share it."""
        entries, scope = np.arange(batch.n_configs), batch.scope.astype(np.int64)
        table_at = self.table_at[batch.factors]
        starts, of, counts = np.unique(table_at, return_inverse=True, return_counts=True)
        single = counts[of] == 1
        if single.any():
            tables = self.tables[table_at[single, None] + entries]
            yield batch.shape, len(tables), scope[single].tobytes(), tables.tobytes()
        members, ends = np.argsort(of, kind="stable"), np.cumsum(counts)
        for k in np.flatnonzero(counts > 1).tolist():
            mine = scope[members[ends[k] - counts[k] : ends[k]]]
            yield batch.shape, len(mine), mine.tobytes(), self.tables[starts[k] + entries].tobytes()
