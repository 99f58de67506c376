"""The epsilon-KKT report of LS-LP: distance from stationarity and feasibility (the paper's Definition 2)."""

from __future__ import annotations

import math

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.penalty import SphereKind
from mapmrf.engines.admm.structs import BatchRow, FactorKind
from mapmrf.model.polytope import blocks, dense
from mapmrf.model.problem import Batch


def kkt_residuals(engine: Engine) -> dict[str, float]:
    """Compute the residuals of the KKT conditions, in the 2-norm.

    kkt_factors
        Distance of the edge multipliers from the subgradients of the factors' terms, given the factors' supports.
    kkt_sphere
        Component of the sphere's multiplier that is not normal to the sphere; 0 without one.
    kkt_variables
        ``|| -theta_i + lam_i + sum_a lam_ia ||``.
    kkt_primal
        ``|| mu_i - M_ia mu_a ||`` and ``|| mu_i - upsilon_i ||`` together.
    """
    lam = engine.multipliers()
    found = engine.inspect()
    return {
        "kkt_factors": math.sqrt(_factor_distance2(engine, lam)),
        "kkt_sphere": _sphere_tangent(engine),
        "kkt_variables": _stationarity(engine, lam),
        "kkt_primal": math.sqrt(found.primal2 + found.sphere2),
    }


def _factor_distance2(engine: Engine, lam: Floats) -> float:
    """Return the squared distance of all factors' prices from the normal cones of their simplices at mu_a."""
    edge_lam = edge_states_of(engine, lam)
    total = 0.0
    for batch, rows, block in blocks(engine.problem, engine.factor_marginals):
        mine = edge_lam[batch.edge_states].reshape(batch.n, -1)
        step = max(1, (1 << 16) // batch.n_configs)  # limits temporary memory
        for begin in range(rows.start, rows.stop, step):
            part = slice(begin, min(begin + step, rows.stop))
            price = tables_of(engine, batch, part)
            for k in range(batch.arity):
                price = price + mine[part, batch.state_at[k] + batch.config[:, k]]
            used = block[part.start - rows.start : part.stop - rows.start] > 1e-9  # less than that is round-off
            total += float(cone_distance2(price, used).sum())
    return total


def tables_of(engine: Engine, batch: Batch, rows: slice) -> Floats:
    """Return the potentials that the multipliers refer to: the compact layout moves the linear parts of 2x2 tables."""
    if engine.layout.row_of(batch).kind == FactorKind.PAIR2_COMPACT:
        return np.asarray(engine.layout.couplings(batch, rows)[:, None] * np.array([1.0, -1.0, -1.0, 1.0]))
    tables = batch.tables(engine.problem.graph.theta_t, rows)
    if engine.factor_sphere is not None:
        return np.asarray(tables - engine.factor_sphere.lam[batch.configs].reshape(batch.n, -1)[rows])
    return tables


def cone_distance2(price: Floats, used: np.ndarray) -> Floats:
    """Return the squared distance of each row from {tau on its support, at most tau elsewhere}, minimised over tau.

    The best tau averages the support's prices and those of the others that exceed it: start with the support and add
    the others from the highest down as long as they exceed the mean.
    """
    others = np.sort(np.where(used, -np.inf, price), axis=1)[:, ::-1]
    inside = np.where(used, price, 0.0)
    count = used.sum(axis=1).astype(np.float64)
    total = inside.sum(axis=1)
    tau = total / np.maximum(count, 1)
    for column in others.T:
        above = column > tau
        if not above.any():
            break
        total = np.where(above, total + np.where(above, column, 0.0), total)
        count = count + above
        tau = total / np.maximum(count, 1)
    off = np.where(used, inside - tau[:, None], np.maximum(0.0, price - tau[:, None]))
    return np.asarray((off * off).sum(axis=1))


def edge_states_of(engine: Engine, values: Floats) -> Floats:
    """Convert values from the layout of q to the problem's edge states; a compact difference d becomes (-d/2, d/2)."""
    if len(values) == engine.problem.n_edge_states:
        return values  # nothing is compact
    out = np.empty(engine.problem.n_edge_states)
    widths = engine.layout.width
    for row, batch in zip(engine.layout.rows, engine.problem.batches, strict=True):
        n, at = batch.n, row.q_at
        mine = values[at : at + n * row.q_width]
        if row.kind == FactorKind.PAIR2_COMPACT:
            mine = values[engine.layout.pair_places(batch, slice(0, n))].T
        mine = mine.reshape(n, -1)
        target = out[batch.edge_states].reshape(n, -1)
        w = widths[engine.problem.scope[batch.edges][: batch.arity]]
        o = 0
        for k in range(batch.arity):
            block = target[:, batch.state_at[k] : batch.state_at[k + 1]]
            block[:] = mine[:, o : o + w[k]]
            if w[k] < batch.shape[k]:
                block[:, 0] *= -0.5
                block[:, 1] *= 0.5
            o += w[k]
    return out


def _stationarity(engine: Engine, lam: Floats) -> float:
    """Return the 2-norm of -theta_i + lam_i + sum_a lam_ia over all connected variables."""
    sums = -engine.layout.variables.theta
    if engine.has_sphere:
        sums = sums + engine.lam_v
    for row, batch in zip(engine.layout.rows, engine.problem.batches, strict=True):
        for k in range(batch.arity):
            _add_ends(engine, row, batch, k, lam, sums)
    widths = engine.layout.width
    half = np.where((widths == 1) & (engine.problem.graph.card == 2), 0.5, 1.0) * (engine.problem.degree > 0)
    return float(np.sqrt((np.repeat(half, widths) * sums * sums).sum()))


def _add_ends(engine: Engine, row: BatchRow, batch: Batch, k: int, lam: Floats, sums: Floats) -> None:
    """Add the multipliers of the k-th edge of every factor of a batch to the sums at its variable."""
    widths = engine.layout.width[batch.scope[0]]
    at = engine.layout.variables.var_at[batch.scope[:, k]]
    if row.kind == FactorKind.PAIR2_COMPACT:
        sums += np.bincount(at, lam[engine.layout.pair_places(batch, slice(0, batch.n))[k]], len(sums))
        return
    mine = lam[row.q_at : row.q_at + batch.n * row.q_width].reshape(batch.n, -1)
    for w in range(widths[k]):
        sums += np.bincount(at + w, mine[:, widths[:k].sum() + w], len(sums))


def _sphere_tangent(engine: Engine) -> float:
    """Return the 2-norm of the tangential component of the sphere's multiplier (or of each block's) at mu."""
    if engine.factor_sphere is not None:
        lam = engine.factor_sphere.lam
        out = dense(engine.problem, engine.factor_marginals) - 0.5
        return _tangent(out, lam, np.ones(len(lam)), np.zeros(len(lam), dtype=np.int64))
    if not engine.has_sphere:
        return 0.0
    widths = engine.layout.width
    owner = np.repeat(np.arange(engine.problem.n_vars), widths)
    narrow = widths == 1  # one number: centre 0, and its square counts half
    centre, mean = np.where(narrow, 0.0, 0.5), np.zeros(engine.problem.n_vars)
    if engine.penalty[0].sphere == SphereKind.AFFINE:
        # Within the hull of the simplices, the normal directions include a constant for every variable.
        centre = np.where(narrow, 0.0, np.bincount(owner, engine.mu) / widths)
        mean = np.where(narrow, 0.0, np.bincount(owner, engine.lam_v) / widths)
    weight = np.where(narrow, 0.5, 1.0) * (engine.problem.degree > 0)
    block = owner // engine.sphere.chunk_size if engine.sphere.blocks else np.zeros_like(owner)
    return _tangent(engine.mu - centre[owner], engine.lam_v - mean[owner], weight[owner], block)


def _tangent(out: Floats, lam: Floats, weight: Floats, block: Ints) -> float:
    """Return the 2-norm of lam without its component along `out`, block by block."""
    along = np.bincount(block, weight * out * lam) / np.maximum(np.bincount(block, weight * out * out), 1e-300)
    rest = lam - along[block] * out
    return float(np.sqrt((weight * rest * rest).sum()))
