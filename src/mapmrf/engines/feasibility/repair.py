"""A labelling that violates few factors, by local search."""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Ints, offsets, ranges
from mapmrf.compilation.records import blank
from mapmrf.engines.feasibility.repair_kernels import HardFactors, RepairCounts, RepairState, begin_repair, repair
from mapmrf.kernels.random_numbers import seeded
from mapmrf.model.problem import Problem


class Repair:
    """Local search for a labelling with few violated factors, near a given one.

    Attributes
    ----------
    model, state
        The hard factors, and the state of the search.
    """

    def __init__(self, problem: Problem, labels: Ints, seed: int = 0) -> None:
        self.model, begin = _hard_factors(problem)
        labels = np.array(labels, dtype=np.int64)
        n = len(begin)
        moved = labels[self.model.scope] * self.model.stride
        place = begin + np.bincount(self.model.factor_of, moved, n).astype(np.int64)
        self.state = RepairState(
            labels=labels,
            best=labels.copy(),
            place=place,
            weight=np.ones(n, dtype=np.int64),
            violated=np.zeros(n, dtype=np.int64),
            position=np.full(n, -1, dtype=np.int64),
            score=np.zeros(int(problem.graph.card.max(initial=1)), dtype=np.int64),
            random=seeded(seed),
            counts=blank(RepairCounts),
        )
        begin_repair(self.model, self.state)

    @property
    def n_violated(self) -> int:
        """Fewest violated factors so far."""
        return int(self.state.counts.fewest)

    @property
    def labels(self) -> Ints:
        """The labelling with the fewest violated factors."""
        return self.state.best.copy()

    def run(self, work: int) -> int:
        """Read about this many table entries; return the fewest violated factors so far."""
        repair(self.model, self.state, work)
        return self.n_violated


def _hard_factors(problem: Problem) -> tuple[HardFactors, Ints]:
    """Return the factors with forbidden entries, and the offsets of their tables."""
    graph = problem.graph
    chosen = [problem.order[batch.factors] for batch in problem.batches if batch.hard]
    factors = np.concatenate([*chosen, np.zeros(0, dtype=np.int64)])
    arity = graph.arity[factors]
    edges = ranges(graph.scope_ptr[factors], arity)
    unary = np.flatnonzero(np.logical_or.reduceat(~problem.feasible_v, graph.var_ptr[:-1]) if graph.n_vars else [])
    scope = np.concatenate([graph.scope[edges], unary]).astype(np.int64)
    scope_ptr = offsets(np.concatenate([arity, np.ones(len(unary), dtype=np.int64)])).astype(np.int64)
    model = HardFactors(
        card=graph.card.astype(np.int64),
        scope_ptr=scope_ptr,
        scope=scope,
        stride=np.concatenate([graph.stride[edges], np.ones(len(unary))]).astype(np.int64),
        theta=np.concatenate([graph.theta_t, graph.theta_v]),
        nbr_ptr=offsets(np.bincount(scope, minlength=graph.n_vars)).astype(np.int64),
        nbr=np.argsort(scope, kind="stable"),
        factor_of=np.repeat(np.arange(len(scope_ptr) - 1), np.diff(scope_ptr)),
    )
    tables = graph.table_ptr[graph.table_of[factors]]
    return model, np.concatenate([tables, len(graph.theta_t) + graph.var_ptr[unary]]).astype(np.int64)
