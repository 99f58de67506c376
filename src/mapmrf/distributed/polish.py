"""Improve labels part by part: each in turn improves its own variables, with those across the cut fixed.

Parts that share a factor have different colours, and all parts of a colour are improved at once. So a gain of a part is
a gain of the whole, and the value never decreases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges
from mapmrf.distributed.engine import Halo, Local, PartedEngine
from mapmrf.distributed.parts import Part
from mapmrf.distributed.run import PartedModel
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.structs import BatchRow, FactorKind
from mapmrf.methods.trws import TRWS
from mapmrf.model.graph import FactorGraph
from mapmrf.model.problem import Batch
from mapmrf.run.method import Method
from mapmrf.run.solve import solve

ROUNDS = 10  # maximum number of rounds over all colours; it ends earlier if no part gains


def polished(
    model: PartedModel, labels: Ints, method: Method, seconds: Callable[[], float | None], stop: Callable[[], bool]
) -> Ints:
    """Labels of the parts of this rank, improved until no part gains or `stop()`; all ranks call this.

    `seconds` is the remaining time; `stop` must return the same on all ranks.
    """
    labels = labels.astype(np.int64)
    colours = colour_parts(model)
    exchange = _label_halo(model)
    for _ in range(ROUNDS):
        gained = False
        for colour in range(max(colours) + 1):
            for part, where in zip(model.parts, model.slices, strict=True):
                if colours[part.number] == colour:
                    gained |= _improve(part, labels[where], method, seconds())
            values = labels.astype(np.float64)
            exchange.exchange(values)
            labels[:] = values
            if stop():
                return labels
        if not any(model.ranks.allgather(gained)):
            break
    return labels


def _improve(part: Part, labels: Ints, method: Method, seconds: float | None) -> bool:
    """Improve the own variables of a part in place; return whether that gained anything."""
    graph = with_fixed_halo(part, labels)
    found = solve(graph, method, initial=labels, time_limit=seconds)
    if not found.value > graph.value(labels):
        return False
    labels[: part.n_own] = found.labels[: part.n_own]
    return True


def with_fixed_halo(part: Part, labels: Ints) -> FactorGraph:
    """The part as a model in which the variables of the halo are fixed to their labels."""
    graph, own = part.graph, part.n_own
    theta_v = graph.theta_v.copy()
    at = graph.var_ptr[own:-1]
    theta_v[ranges(at, graph.card[own:])] = -np.inf
    theta_v[at + labels[own:]] = 0.0
    return replace(graph, theta_v=theta_v, constant=0.0)


def colour_parts(model: PartedModel) -> list[int]:
    """A colour for every part, different from its neighbours'."""
    mine = [part.neighbours.tolist() for part in model.parts]
    neighbours = [one for some in model.ranks.allgather(mine) for one in some]
    colours: list[int] = []
    for part, others in enumerate(neighbours):
        taken = {colours[other] for other in others if other < part}
        colours.append(next(colour for colour in range(len(neighbours)) if colour not in taken))
    return colours


def _label_halo(model: PartedModel) -> Halo:
    """An exchange of labels: one number for every variable."""
    pairs = zip(model.parts, model.slices, strict=True)
    return Halo(model.ranks, [Local(part, where.start, np.arange(part.graph.n_vars + 1)) for part, where in pairs])


# An upper bound by dual decomposition over the parts: each has its factors, and multipliers where the model is cut.
# With LS-LP's multipliers at the cut, the parts are separate models whose values add up to that of the whole for any
# labelling. So bounds on the parts add up to a bound on the whole. TRW-S computes them, and is tighter than LS-LP's own
# multipliers where these have not converged.


def bound_of_parts(model: PartedModel, engine: PartedEngine, iterations: int) -> float:
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
