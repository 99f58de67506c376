"""An upper bound by dual decomposition over the parts: each has its factors, and multipliers where the model is cut.

With LS-LP's multipliers at the cut, the parts are separate models whose values add up to that of the whole for any
labelling. So bounds on the parts add up to a bound on the whole. TRW-S computes them, and is tighter than LS-LP's own
multipliers where these have not converged.
"""

from __future__ import annotations

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.distributed.engine import PartedEngine
from mapmrf.distributed.parts import Part
from mapmrf.distributed.run import PartedModel
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.structs import BatchRow, FactorKind
from mapmrf.methods.trws import TRWS
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Batch
from mapmrf.run.solve import solve


def part_bound(model: PartedModel, engine: PartedEngine, iterations: int) -> float:
    """The bound at the current multipliers, by iterations of TRW-S in every part; all ranks call this."""
    engine.settle()
    method = TRWS(max_iterations=iterations)
    mine = []
    for part, each in zip(model.parts, engine.engines, strict=True):
        found = solve(part_model(part, each), method, gap_tolerance=-1.0, abs_gap_tolerance=-1.0)
        mine.append(np.inf if found.bound is None else found.bound)
    total = 0.0
    for some in model.ranks.allgather(mine):
        for bound in some:
            total += bound
    return total


def part_model(part: Part, engine: Engine) -> FactorGraph:
    """The factors that a part counts, with multipliers in place of those that it does not count.

    An own variable has its potential less the multipliers of factors that others count; a copy has the multipliers of
    the factors that are counted here. Over all parts, that adds up to the potential of the variable.
    """
    graph, n = part.graph, part.n_constrained
    problem = engine.problem
    theta_v = graph.theta_v.copy()
    copies = theta_v[graph.var_ptr[part.n_own] :]
    copies[copies > -np.inf] = 0.0  # what is forbidden is forbidden everywhere
    lam = engine.multipliers()
    for row, batch in zip(engine.layout.rows, problem.batches, strict=True):
        number = problem.order[batch.factors]
        for k in range(batch.arity):
            at_cut = np.flatnonzero(number >= part.n_inside)
            given = _multipliers(engine, batch, row, at_cut, k, lam)
            variable, counted = batch.scope[at_cut, k], number[at_cut] < n
            own = variable < part.n_own
            sign = np.where(own & ~counted, -1.0, np.where(~own & counted, 1.0, 0.0))
            places = graph.var_ptr[variable][:, None] + np.arange(batch.shape[k])
            np.add.at(theta_v, places, sign[:, None] * given)
    return FactorGraph(
        card=graph.card,
        theta_v=theta_v,
        scope_ptr=graph.scope_ptr[: n + 1],
        scope=graph.scope[: graph.scope_ptr[n]],
        table_of=graph.table_of[:n],
        table_ptr=graph.table_ptr,
        theta_t=graph.theta_t,
        weight=None if graph.weight is None else graph.weight[:n],
        constant=graph.constant,
    )


def _multipliers(engine: Engine, batch: Batch, row: BatchRow, rows: Ints, k: int, lam: Floats) -> Floats:
    """Multipliers of the k-th variable of some factors of a batch, a column per state.

    Those of compact variables are differences, and compact tables have lost their linear parts to the variables.
    """
    layout = engine.layout
    if row.kind == FactorKind.PAIR2_COMPACT:
        tables = batch.tables(layout.problem.graph.theta_t, slice(0, batch.n))[rows].reshape(-1, 2, 2)
        low, high = tables.take(0, axis=1 + k).sum(axis=1), tables.take(1, axis=1 + k).sum(axis=1)
        half = 0.5 * lam[row.q_at + k * batch.n + rows] - (high - low) / 4
        return np.stack([-half, half], axis=1)
    widths = layout.tables.shape[row.shape_at + batch.arity : row.shape_at + 2 * batch.arity]
    start = row.q_at + rows * row.q_width + int(widths[:k].sum())
    if widths[k] < batch.shape[k]:
        half = 0.5 * lam[start]
        return np.stack([-half, half], axis=1)
    return np.asarray(lam[start[:, None] + np.arange(batch.shape[k])])
