"""A pairwise model as the binary quadratic program of l2-Box."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Bools, Floats, Ints, segment_argmax, segment_ends
from mapmrf.engines.admm.box_form import BinaryTerms, BoxForm, TableTerms, largest_curvature
from mapmrf.engines.admm.scale import interaction_scale
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.calls import check_awaited

POWER_STEPS, POWER_WORK = 100, 200_000_000
"""Maximum number of power iterations for the form's largest eigenvalue, and of entries touched by all of them."""
CALL_WORK = 20_000_000
"""Entries touched per kernel call: some hundredths of a second."""
CHUNK = 1 << 18
"""Table entries processed at a time, which limits temporary memory."""


@dataclass(frozen=True, eq=False)
class BoxProgram:
    """The quadratic program in units of the interaction, for the kernels.

    Tables are centred: their row and column means are moved to `theta`, which changes nothing for one-hot vectors and
    leaves the quadratic form no more curvature than the interactions have. Equal tables are stored once.
    """

    unit: float
    constant: float
    hard: bool
    form: BoxForm
    theta: Floats
    allowed: Bools
    reach: Floats

    @classmethod
    def build(cls, problem: Problem, forbidden: float) -> BoxProgram:
        """Build the program."""
        soft = softened(problem, forbidden)
        unit = interaction_scale(soft)
        parts = _Parts(soft, unit)
        for batch in soft.batches:
            parts.add(batch)
        graph = problem.graph
        allowed = problem.feasible_v & np.repeat(problem.degree > 0, graph.card)
        alone = np.flatnonzero(problem.degree == 0)
        best = segment_argmax(graph.theta_v, graph.var_ptr)[alone]
        allowed[graph.var_ptr[alone] + best] = True
        return cls(
            unit=unit,
            constant=graph.constant,
            hard=soft is not problem,
            form=BoxForm(graph.var_ptr.astype(np.int64), parts.pairs(), parts.tables()),
            theta=parts.theta,
            allowed=allowed,
            reach=parts.reach,
        )

    def bend(self, v: Floats) -> Floats:
        """Return a diagonal that (almost) dominates the quadratic form: scaled square roots of the variables' reach."""
        shape = np.sqrt(self.reach)
        size = self.form.tables.size
        entries = 4 * self.form.pairs.strength.size + int((size[0] * size[1]).sum())
        steps = int(np.clip(POWER_WORK // max(1, entries), POWER_STEPS // 5, POWER_STEPS))
        each, found, room = max(1, CALL_WORK // max(1, entries)), 0.0, np.empty_like(v)
        for done in range(0, steps, each):  # v carries over to the next call
            check_awaited()
            found = largest_curvature(min(each, steps - done), self.form, shape, v, room)
        return np.asarray(shape * found)


def softened(problem: Problem, forbidden: float) -> Problem:
    """Replace every -inf by a finite penalty; return the problem itself if there is none.

    Weights are multiplied out first, as the penalty must not depend on them.
    """
    if np.isfinite(problem.graph.theta_v).all() and np.isfinite(problem.graph.theta_t).all():
        return problem
    if len(problem.weight):
        problem = Problem.compile(problem.graph.expanded(), problem.threads)
    graph = problem.graph
    unary, tables = segment_ends(graph.theta_v, graph.var_ptr), segment_ends(graph.theta_t, graph.table_ptr)
    spreads = np.concatenate([unary[1] - unary[0], tables[1] - tables[0]])
    fine = forbidden * (float(spreads.max(initial=0.0)) or 1.0)
    theta_v = np.where(problem.feasible_v, graph.theta_v, np.repeat(unary[0], graph.card) - fine)
    low = np.repeat(tables[0], np.diff(graph.table_ptr))
    theta_t = np.where(np.isfinite(graph.theta_t), graph.theta_t, low - fine)
    return replace(problem, graph=replace(graph, theta_v=theta_v, theta_t=theta_t))


class _Parts:
    """The arrays of a program under construction, batch by batch."""

    def __init__(self, problem: Problem, unit: float) -> None:
        self.problem, self.unit = problem, unit
        self.theta = problem.graph.theta_v / unit
        self.reach = np.zeros(problem.n_vars)
        self.pair_scope: list[Ints] = []
        self.strength: list[Floats] = []
        self.scope: list[Ints] = []
        self.table_at: list[Ints] = []
        self.weight: list[Floats] = []
        self.entries: list[Floats] = []
        self.n_entries = 0

    def add(self, batch: Batch) -> None:
        """Centre a batch's tables, each distinct one once, and add their linear parts to theta."""
        starts, which = np.unique(batch.table_at, return_inverse=True)
        n_distinct, n_configs = len(starts), batch.n_configs
        centred = np.empty((n_distinct, *batch.shape))
        rows, cols = np.empty((n_distinct, batch.shape[0])), np.empty((n_distinct, batch.shape[1]))
        size = np.empty(n_distinct)
        chunk = max(1, CHUNK // n_configs)
        for begin in range(0, n_distinct, chunk):
            part = slice(begin, min(begin + chunk, n_distinct))
            places = starts[part, None] + np.arange(n_configs)
            tables = self.problem.graph.theta_t[places].reshape(-1, *batch.shape) / self.unit
            rows[part], cols[part] = tables.mean(axis=2), tables.mean(axis=1)
            cols[part] -= rows[part].mean(axis=1, keepdims=True)
            centred[part] = tables - rows[part][:, :, None] - cols[part][:, None, :]
            size[part] = np.sqrt((centred[part] ** 2).sum(axis=(1, 2)))
        weight: Floats | float = batch.weight if len(batch.weight) else 1.0
        for k, linear in enumerate((rows, cols)):
            self.reach += np.bincount(batch.scope[:, k], np.abs(weight) * size[which], self.problem.n_vars)
            for s in range(batch.shape[k]):
                self.theta += np.bincount(batch.var_at[:, k] + s, weight * linear[which, s], len(self.theta))
        if batch.shape == (2, 2):
            self.pair_scope.append(batch.scope)
            self.strength.append(weight * centred[which, 0, 0])
            return
        self.weight.append(batch.weight)
        self.scope.append(batch.scope)
        self.table_at.append(self.n_entries + which * n_configs)
        self.entries.append(centred.ravel())
        self.n_entries += centred.size

    def _sides(self, scopes: list[Ints]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the variables of all factors, (2, n), and the offsets of their blocks."""
        var = np.concatenate([np.zeros((0, 2), dtype=np.int64), *scopes]).T.astype(np.int64, order="C")
        return var, self.problem.graph.var_ptr.astype(np.int64)[var]

    def pairs(self) -> BinaryTerms:
        """Return the factors of two binary variables."""
        n = self.problem.n_vars if self.strength else 0
        strength = np.concatenate([np.zeros(0), *self.strength])
        return BinaryTerms(self._sides(self.pair_scope)[0], strength, np.zeros(n), np.zeros(n))

    def tables(self) -> TableTerms:
        """Return all other factors."""
        var, at = self._sides(self.scope)
        table_at = np.concatenate([np.zeros(0, dtype=np.int64), *self.table_at]).astype(np.int64)
        size = np.asarray(self.problem.graph.card, dtype=np.int64)[var]
        weight, entries = (np.concatenate([np.zeros(0), *parts]) for parts in (self.weight, self.entries))
        return TableTerms(var, at, size, table_at, weight, entries)
