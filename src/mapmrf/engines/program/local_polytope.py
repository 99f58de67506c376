"""The program of a general model: the local polytope L_G with 0/1 variables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets, segment_argmax
from mapmrf.engines.program.program import Program, Rows
from mapmrf.polytope import configuration
from mapmrf.problem import Batch, Problem


@dataclass(frozen=True)
class Polytope:
    """Columns: the entries of mu_v, 0 or 1, and of mu_f that are not forbidden; `column` is their number, or -1.

    Rows: total mass 1 of every variable, and mu_i = M_ia mu_a for every edge.
    """

    program: Program
    problem: Problem
    column: Ints

    @classmethod
    def build(cls, problem: Problem) -> Polytope:
        """Write the program down for a problem."""
        graph = problem.graph
        theta = np.concatenate([graph.theta_v, problem.theta_f])
        ptr = np.concatenate([graph.var_ptr, len(graph.theta_v) + problem.config_ptr[1:]])
        allowed = theta > -np.inf
        column = np.where(allowed, np.cumsum(allowed) - 1, -1)
        best = np.maximum.reduceat(theta, ptr[:-1])
        cost = (theta - np.repeat(best, np.diff(ptr)))[allowed]
        lost = -cost[cost < 0]
        scale = float(np.median(lost)) if len(lost) else 1.0
        marginals = [
            _marginal_rows(problem.n_states, batch, k) for batch in problem.batches for k in range(batch.arity)
        ]
        offset = graph.constant + float(best.sum())
        n_integer = int(np.count_nonzero(allowed[: problem.n_states]))
        zeros, ones = np.zeros(len(cost)), np.ones(len(cost))
        rows = _allowed_only(Rows.joined([_mass_rows(problem), *marginals]), allowed, column)
        # Every variable and every factor has mass 1.
        program = Program(cost / scale, zeros, ones, n_integer, rows, offset, scale, mass=float(len(best)))
        return cls(program, problem, column)

    def columns(self, labels: Ints) -> Floats:
        """The vertex of a labelling."""
        graph, problem = self.problem.graph, self.problem
        taken = [graph.var_ptr[:-1] + labels]
        for batch in problem.batches:
            place = configuration(batch, slice(0, batch.n), labels)
            taken.append(problem.n_states + batch.configs.start + batch.n_configs * np.arange(batch.n) + place)
        columns = np.zeros(len(self.program.cost))
        columns[self.column[np.concatenate(taken)]] = 1.0
        return columns

    def labels(self, columns: Floats) -> Ints:
        """The labelling of an integer point, of which mu_v is enough."""
        graph = self.problem.graph
        column = self.column[: self.problem.n_states]
        mu_v: Floats = np.where(column >= 0, columns[column], -1.0)
        return segment_argmax(mu_v, graph.var_ptr)


def _mass_rows(problem: Problem) -> Rows:
    graph = problem.graph
    ones = np.ones(problem.n_vars)
    column = np.arange(problem.n_states, dtype=np.int32)
    return Rows(offsets(graph.card), column, np.ones(problem.n_states), ones, ones)


def _marginal_rows(n_states: int, batch: Batch, k: int) -> Rows:
    """mu_i(s) - sum of mu_a over the configurations with t_i = s, for the k-th variable of every factor of a batch."""
    r, size = batch.shape[k], batch.n_configs // batch.shape[k]
    members = np.argsort(batch.config[:, k], kind="stable").reshape(r, size)
    column = np.empty((batch.n, r, 1 + size), dtype=np.int32)
    column[:, :, 0] = batch.var_at[:, k, None] + np.arange(r)
    starts = n_states + batch.configs.start + batch.n_configs * np.arange(batch.n)
    column[:, :, 1:] = starts[:, None, None] + members
    entry = np.full(column.shape, -1.0)
    entry[:, :, 0] = 1.0
    zeros = np.zeros(batch.n * r)
    return Rows(offsets(np.full(batch.n * r, 1 + size)), column.ravel(), entry.ravel(), zeros, zeros)


def _allowed_only(rows: Rows, allowed: Bools, column: Ints) -> Rows:
    """The rows without the entries of forbidden columns."""
    used = allowed[rows.column]
    owner = np.repeat(np.arange(rows.n), np.diff(rows.ptr))
    ptr = offsets(np.bincount(owner[used], minlength=rows.n))
    return Rows(ptr, column[rows.column[used]].astype(np.int32), rows.entry[used], rows.lower, rows.upper)
