"""Measurements of ADMM: labels, their value, the dual bound, <theta, mu> and residuals; and the epsilon-KKT report."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.admm.factor_qp import pair2_step
from mapmrf.engines.admm.forest_qp import (
    BOUND_STATES,
    PairTable,
    forest_scratch,
    largest_of_form,
    pays,
    slot_col,
    slot_row,
)
from mapmrf.engines.admm.penalty import SphereKind
from mapmrf.engines.admm.structs import (
    Batches,
    BatchRow,
    FactorKind,
    FactorPlace,
    Iterates,
    PairArrays,
    Rounding,
    Scratch,
    TableArrays,
    VariableArrays,
)
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.polytope import blocks, dense
from mapmrf.model.problem import Batch

if TYPE_CHECKING:
    from mapmrf.engines.admm.engine import Engine


@dataclass(frozen=True, slots=True)
class Measurement:
    """A measurement of the iterates."""

    # bound, value, relaxed: The dual bound at the multipliers, the value of the labels, ``<theta, mu>``
    bound: float
    value: float
    relaxed: float
    # primal2, primal_max: Squared norm and largest entry of ``c mu_i - M_ia mu_a``
    primal2: float
    primal_max: float
    sphere2: float  # Squared norm of ``c mu - upsilon``; 0 without a sphere
    integrality: float  # Largest distance of an entry of mu_v from 0 and 1
    changed: int  # Number of labels that differ from the last measurement's


_SUMS = ("bound", "value", "relaxed", "primal2", "primal_max", "integrality")
SUMS = np.dtype((np.record, [(name, np.float64) for name in _SUMS]))
"""Sums over some factors and variables, as in `Measurement`, and the largest residual and distance from 0 and 1."""

Sums = NDArray[np.record]  # a structured array of type `SUMS`


def new_sums(n: int = 1) -> Sums:
    """Allocate sums for n tasks."""
    found: Sums = np.zeros(n, dtype=SUMS)
    return found


def total(constant: float, of_variables: Sums, of_factors: Sums) -> Floats:
    """Add up sums over variables and factors, and the constant; the last two are maxima. In the order of `SUMS`."""
    first, found = (sums.view((np.float64, len(_SUMS))) for sums in (of_variables, of_factors))  # a column per field
    out = np.empty(len(_SUMS))
    out[:3] = constant + first[0, :3] + found[:, :3].sum(axis=0)
    out[3] = found[:, 3].sum()
    out[4:] = np.maximum(first[0, 4:], found[:, 4:].max(axis=0, initial=0.0))
    return out


@compiled
def measure_compact_pairs(
    tasks: Batches, pairs: PairArrays, iterates: Iterates, rounding: Rounding, found: Sums
) -> None:
    """Measure 2x2 factors of compact variables, a record of `found` per task."""
    rho, last_rho_c = iterates.penalty[0].rho, iterates.penalty[0].last_rho_c
    mu, q, edge_mu = iterates.mu, iterates.q, pairs.edge_mu
    edge_var, labels = rounding.edge_var, rounding.labels
    for number in range(len(tasks)):
        task = tasks[number]
        n, at, e_at, factor_at = task.n, task.q_at, task.edge_at, task.factor_at
        bound = value = relaxed = primal2 = primal_max = 0.0
        for f in range(task.begin, task.end):
            m1, m2 = mu[edge_mu[e_at + f]], mu[edge_mu[e_at + n + f]]
            lam1 = last_rho_c * m1 - q[at + f]
            lam2 = last_rho_c * m2 - q[at + n + f]
            j = pairs.unit * pairs.strength[0 if pairs.shared else factor_at + f]
            bound += max(j + 0.5 * abs(lam1 + lam2), -j + 0.5 * abs(lam1 - lam2))
            value += j if labels[edge_var[e_at + f]] == labels[edge_var[e_at + n + f]] else -j
            r1, r2 = pair2_step(m1 + lam1 / rho, m2 + lam2 / rho, 2.0 * j / rho)
            relaxed += j * (1.0 - abs(r1 - r2)) if j >= 0.0 else j * (abs(r1 + r2) - 1.0)
            off1, off2 = m1 - r1, m2 - r2
            primal2 += 0.5 * (off1 * off1 + off2 * off2)
            primal_max = max(primal_max, 0.5 * abs(off1), 0.5 * abs(off2))
        sums = found[number]
        sums.bound, sums.value, sums.relaxed, sums.primal2, sums.primal_max = bound, value, relaxed, primal2, primal_max


@bare
def measure_tables(
    tasks: Batches, tables: TableArrays, iterates: Iterates, rounding: Rounding, scratch: Scratch, found: Sums
) -> None:
    """Measure factors of all other kinds, a record of `found` per task."""
    for number in range(len(tasks)):
        task = tasks[number]
        arity, kind, n_states = task.arity, task.kind, task.n_states
        theta, c, shape_at = tables.theta, iterates.penalty[0].c, task.shape_at
        sizes, widths = tables.shape[shape_at : shape_at + arity], tables.shape[shape_at + arity : shape_at + 2 * arity]
        lam, copies, digits = scratch.numbers[0, :n_states], scratch.numbers[1], scratch.integers[0]
        structured = kind == FactorKind.FOREST and len(tables.forms.of) > 0 and sizes[0] >= BOUND_STATES
        bound = value = relaxed = primal2 = primal_max = 0.0
        for f in range(task.begin, task.end):
            a = task.factor_at + f
            place = FactorPlace(task.edge_at + f * arity, task.q_at + f * task.q_width, sizes, widths)
            table_at, weight = tables.table_at[a], weight_of(tables.weight, a)
            _load_multipliers(place, tables.edge_mu, iterates, lam)
            if structured and tables.forms.of[a] >= 0:
                bound += _form_bound(a, weight, tables, sizes, lam, scratch)
            else:
                bound += largest_price(theta, table_at, weight, sizes, lam, digits, task.n_configs)
            value += weight * theta[table_at + _configuration(place, rounding)]
            if kind == FactorKind.PAIR2:
                for v in range(4):
                    copies[v] = tables.s[place.at + v]
                relaxed += pair2_value(theta, table_at, weight, copies[1], copies[3])
            else:
                slot_at = task.slot_at + f * task.slot_width
                for e in range(slot_at, slot_at + tables.n_slots[a]):
                    slot = tables.slots[e]
                    t = slot_row(slot) * sizes[1] + slot_col(slot) if kind == FactorKind.FOREST else slot
                    relaxed += weight * theta[table_at + t] * tables.x[e]
                config = tables.config[task.config_at :]
                _support_marginals(kind, slot_at, tables.n_slots[a], tables, sizes, config, copies)
            o = 0
            for k in range(arity):
                compact = widths[k] < sizes[k]
                half = 0.5 if compact else 1.0  # a difference of two entries: its square counts half
                v = tables.edge_mu[place.e_at + k]
                for w in range(widths[k]):
                    copy = copies[o + 1] - copies[o] if compact else copies[o + w]
                    off = c * iterates.mu[v + w] - copy
                    primal2 += half * off * off
                    primal_max = max(primal_max, half * abs(off))
                o += sizes[k]
        sums = found[number]
        sums.bound, sums.value, sums.relaxed, sums.primal2, sums.primal_max = bound, value, relaxed, primal2, primal_max


@bare
def _form_bound(a: int, weight: float, tables: TableArrays, sizes: Ints, lam: Floats, scratch: Scratch) -> float:
    """Compute `largest_price` of a structured pair, by its form if that is faster."""
    k, at, numbers, integers = sizes[0], tables.table_at[a], scratch.numbers, scratch.integers
    pair = PairTable(tables.theta[at : at + k * k].reshape(k, k), weight, tables.forms.of[a])
    if not pays(pair, tables.forms, BOUND_STATES):
        return largest_price(tables.theta, at, weight, sizes, lam, integers[0], k * k)
    return largest_of_form(lam, pair, tables.forms, forest_scratch(numbers[2:], integers))


@inlined
def _support_marginals(
    kind: int, at: int, n: int, tables: TableArrays, sizes: Ints, config: Ints, copies: Floats
) -> None:
    """Compute M mu_a of one factor from its support of n slots; `config` has the states of its configurations."""
    slots, x, arity = tables.slots, tables.x, len(sizes)
    n_states = 0
    for k in range(arity):
        n_states += sizes[k]
    for v in range(n_states):
        copies[v] = 0.0
    for e in range(at, at + n):
        t = slots[e]
        if kind == FactorKind.FOREST:
            copies[slot_row(t)] += x[e]
            copies[sizes[0] + slot_col(t)] += x[e]
        elif kind == FactorKind.TRIPLE2:
            copies[t >> 2] += x[e]
            copies[2 + ((t >> 1) & 1)] += x[e]
            copies[4 + (t & 1)] += x[e]
        else:
            o = 0
            for k in range(arity):
                copies[o + config[t * arity + k]] += x[e]
                o += sizes[k]


@inlined
def _load_multipliers(place: FactorPlace, edge_mu: Ints, iterates: Iterates, lam: Floats) -> None:
    """Load the multipliers of one factor's edges; compact variables are expanded."""
    last_leak, last_rho_c = iterates.penalty[0].last_leak, iterates.penalty[0].last_rho_c
    i = o = 0
    for k in range(len(place.sizes)):
        v = edge_mu[place.e_at + k]
        for w in range(place.widths[k]):
            lam[o + w] = last_leak * (last_rho_c * iterates.mu[v + w] - iterates.q[place.at + i + w])
        if place.widths[k] < place.sizes[k]:
            lam[o + 1] = 0.5 * lam[o]
            lam[o] = -lam[o + 1]
        i += place.widths[k]
        o += place.sizes[k]


@inlined
def _configuration(place: FactorPlace, rounding: Rounding) -> int:
    """Return the configuration of one factor under the labels."""
    t = 0
    for k in range(len(place.sizes)):
        t = t * place.sizes[k] + rounding.labels[rounding.edge_var[place.e_at + k]]
    return t


@inlined
def pair2_value(theta: Floats, t: int, weight: float, p1: float, p2: float) -> float:
    """Return <theta_a, mu_a> of a 2x2 factor with given marginals: the coupling determines the joint mass."""
    t00, t01, t10, t11 = weight * theta[t], weight * theta[t + 1], weight * theta[t + 2], weight * theta[t + 3]
    both = min(p1, p2) if t00 + t11 - t01 - t10 >= 0.0 else max(0.0, p1 + p2 - 1.0)
    value: float = (1.0 - p1 - p2 + both) * t00 + (p2 - both) * t01 + (p1 - both) * t10 + both * t11
    return value


@inlined
def largest_price(
    theta: Floats, table_at: int, weight: float, sizes: Ints, lam: Floats, digits: Ints, n_configs: int
) -> float:
    """Return the maximum over all configurations of theta + sum of lam: the factor's term of the dual bound."""
    arity = len(sizes)
    last = sizes[arity - 1]
    tail = len(lam) - last
    best = -np.inf
    for k in range(arity):
        digits[k] = 0
    for base in range(table_at, table_at + n_configs, last):
        head, o = 0.0, 0
        for k in range(arity - 1):
            head += lam[o + digits[k]]
            o += sizes[k]
        best = max(best, head + _row_maximum(theta, base, weight, lam, tail, last))
        k = arity - 2
        while k >= 0:
            digits[k] += 1
            if digits[k] < sizes[k]:
                break
            digits[k] = 0
            k -= 1
    return best


@inlined
def _row_maximum(theta: Floats, at: int, weight: float, lam: Floats, tail: int, n: int) -> float:
    """Return the maximum of n entries of theta + lam, with four independent accumulators."""
    top0 = top1 = top2 = top3 = -np.inf
    whole = n - n % 4
    for c in range(0, whole, 4):
        top0 = max(top0, weight * theta[at + c] + lam[tail + c])
        top1 = max(top1, weight * theta[at + c + 1] + lam[tail + c + 1])
        top2 = max(top2, weight * theta[at + c + 2] + lam[tail + c + 2])
        top3 = max(top3, weight * theta[at + c + 3] + lam[tail + c + 3])
    for c in range(whole, n):
        top0 = max(top0, weight * theta[at + c] + lam[tail + c])
    return max(max(top0, top1), max(top2, top3))


@compiled
def pair_marginals(place: Ints, at: Ints, coupling: Floats, iterates: Iterates, out: Floats) -> None:
    """Compute M mu_a of compact 2x2 factors, with ends at `place` in q and `at` in mu, by the next factor step."""
    rho, last_rho_c = iterates.penalty[0].rho, iterates.penalty[0].last_rho_c
    mu, q = iterates.mu, iterates.q
    for f in range(len(coupling)):
        m1, m2 = mu[at[0, f]], mu[at[1, f]]
        lam1 = last_rho_c * m1 - q[place[0, f]]
        lam2 = last_rho_c * m2 - q[place[1, f]]
        out[0, f], out[1, f] = pair2_step(m1 + lam1 / rho, m2 + lam2 / rho, 2.0 * coupling[f] / rho)


@compiled
def measure_variables(variables: VariableArrays, iterates: Iterates, rounding: Rounding, found: Sums) -> None:
    """Compute the sums over all variables."""
    last_leak, last_rho_c = iterates.penalty[0].last_leak, iterates.penalty[0].last_rho_c
    mu, q, theta, labels = iterates.mu, iterates.q, variables.theta, rounding.labels
    var_at, nbr_ptr, nbr_q = variables.var_at, variables.nbr_ptr, variables.nbr_q
    bound = value = relaxed = integrality = 0.0
    for i in range(len(var_at) - 1):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        if width == 1 and rounding.card[i] == 2:
            rest = theta[at]
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                rest -= last_rho_c * mu[at] - q[nbr_q[e]]
            bound += 0.5 * abs(rest)
            value += 0.5 * theta[at] if labels[i] == 1 else -0.5 * theta[at]
            relaxed += 0.5 * theta[at] * mu[at]
            integrality = max(integrality, 0.5 * abs(1.0 - abs(mu[at])))
            continue
        best = -np.inf
        for w in range(width):
            rest = theta[at + w]
            for e in range(nbr_ptr[i], nbr_ptr[i + 1]):
                rest -= last_leak * (last_rho_c * mu[at + w] - q[nbr_q[e] + w])
            best = max(best, rest)
            if mu[at + w] != 0.0:
                relaxed += theta[at + w] * mu[at + w]
            if nbr_ptr[i + 1] > nbr_ptr[i]:
                integrality = max(integrality, min(abs(mu[at + w]), abs(1.0 - mu[at + w])))
        bound += best
        value += theta[at + labels[i]]
    sums = found[0]
    sums.bound, sums.value, sums.relaxed, sums.integrality = bound, value, relaxed, integrality


@compiled
def decode(n: int, var_at: Ints, mu: Floats, rounding: Rounding) -> int:
    """Set labels to the argmax of mu among the allowed states, ties to the smallest.

    Returns how many of the first n labels changed: the others are copies of other parts' variables.
    """
    labels, allowed, var_ptr = rounding.labels, rounding.allowed, rounding.var_ptr
    changed = 0
    for i in range(len(labels)):
        at, width = var_at[i], var_at[i + 1] - var_at[i]
        if width == 1 and rounding.card[i] == 2:
            label = 1 if mu[at] > 0.0 else 0
            if not allowed[var_ptr[i] + label]:
                label = 1 - label
        else:
            label, best = -1, 0.0
            for k in range(width):
                if allowed[var_ptr[i] + k] and (label < 0 or mu[at + k] > best):
                    label, best = k, mu[at + k]
            label = max(label, 0)
        changed += i < n and labels[i] != label
        labels[i] = label
    return changed


# -- The epsilon-KKT report: distance from stationarity and feasibility (the paper's Definition 2) --------------------


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
