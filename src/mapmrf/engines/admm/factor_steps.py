"""The factor step of ADMM, a kernel per kind of factor: update mu_a and leave q.

Each kernel processes pieces of batches (`tasks`) and solves, factor by factor and exactly,

    mu_a = argmin over the simplex of  -theta_a . mu_a + rho/2 sum_i || t_ia - M_ia mu_a ||^2

with the targets t_ia = c mu_i + lam_ia / rho (the free variant weights lam differently). With s = M_ia mu_a it leaves q
= rho s - lam_ia, where over-relaxation replaces s by ``relaxation s + (1 - relaxation) c mu_i``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, compiled, inlined
from mapmrf.engines.admm.factor_qp import (
    DenseFactor,
    DenseScratch,
    Support,
    TripleScratch,
    TripleTable,
    dense_qp,
    pair2_step,
    triple_qp,
)
from mapmrf.engines.admm.forest_qp import (
    STEP_STATES,
    PairTable,
    forest_qp,
    forest_scratch,
    form_of,
    slot_col,
    slot_row,
)
from mapmrf.engines.admm.penalty import Penalty
from mapmrf.engines.admm.structs import (
    Batches,
    FactorKind,
    FactorPlace,
    Iterates,
    PairArrays,
    Scratch,
    TableArrays,
)
from mapmrf.kernels.max_marginals import weight_of
from mapmrf.model.polytope import dense
from mapmrf.model.structured_pairs import NO_FORM, PairForms

if TYPE_CHECKING:
    from mapmrf.engines.admm.engine import Engine


@compiled
def update_compact_pairs(tasks: Batches, pairs: PairArrays, iterates: Iterates) -> None:
    """Update 2x2 factors of compact variables in blocks: gather, then a branch-free loop that vectorises."""
    for number in range(len(tasks)):
        task = tasks[number]
        n, at, e_at, begin, end = task.n, task.q_at, task.edge_at, task.begin, task.end
        mu, q, edge_mu = iterates.mu, iterates.q, pairs.edge_mu
        q1, q2 = q[at : at + n], q[at + n : at + 2 * n]
        v1, v2 = edge_mu[e_at : e_at + n], edge_mu[e_at + n : e_at + 2 * n]
        size = 512
        m1, m2 = np.empty(size), np.empty(size)
        for base in range(begin, end, size):
            count = min(size, end - base)
            for f in range(count):
                m1[f] = mu[v1[base + f]]
            for f in range(count):
                m2[f] = mu[v2[base + f]]
            j_at = 0 if pairs.shared else task.factor_at + base
            here1, here2 = q1[base : base + count], q2[base : base + count]
            step_pairs(m1, m2, here1, here2, pairs.strength[j_at : j_at + count], pairs.unit, iterates.penalty)


@inlined
def step_pairs(m1: Floats, m2: Floats, q1: Floats, q2: Floats, strength: Floats, unit: float, penalty: Penalty) -> None:
    """Take the factor step of consecutive compact pairs, given mu at both ends: no indices and no branches."""
    rho, last_rho_c = penalty[0].rho, penalty[0].last_rho_c
    b = 1.0 / rho
    per_r = 2.0 / rho * unit
    mix = rho * (1.0 - penalty[0].relaxation)
    for f in range(len(q1)):
        lam1 = last_rho_c * m1[f] - q1[f]
        lam2 = last_rho_c * m2[f] - q2[f]
        r1, r2 = pair2_step(m1[f] + b * lam1, m2[f] + b * lam2, per_r * strength[f])
        q1[f] = rho * r1 - lam1 + mix * (m1[f] - r1)
        q2[f] = rho * r2 - lam2 + mix * (m2[f] - r2)


@compiled
def update_pairs(tasks: Batches, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    """Update 2x2 factors of variables with both states stored, by differences; stores s, which no support has."""
    s, lam = tables.s, scratch.numbers[0]
    for number in range(len(tasks)):
        task = tasks[number]
        p = iterates.penalty[0]
        rho, c, target_lam, relax = p.rho, p.c, p.target_lam, p.relaxation
        last_leak, last_rho_c = p.last_leak, p.last_rho_c
        mu, q, edge_mu, theta = iterates.mu, iterates.q, tables.edge_mu, tables.theta
        q_at, factor_at, edge_at = task.q_at, task.factor_at, task.edge_at
        for f in range(task.begin, task.end):
            at = q_at + 4 * f
            t, weight = tables.table_at[factor_at + f], weight_of(tables.weight, factor_at + f)
            t00, t01, t10, t11 = weight * theta[t], weight * theta[t + 1], weight * theta[t + 2], weight * theta[t + 3]
            v1, v2 = edge_mu[edge_at + 2 * f], edge_mu[edge_at + 2 * f + 1]
            for k in range(2):
                lam[k] = last_leak * (last_rho_c * mu[v1 + k] - q[at + k])
                lam[2 + k] = last_leak * (last_rho_c * mu[v2 + k] - q[at + 2 + k])
            d1 = c * (mu[v1 + 1] - mu[v1]) + target_lam * (lam[1] - lam[0]) + 0.5 * (t10 + t11 - t00 - t01) / rho
            d2 = c * (mu[v2 + 1] - mu[v2]) + target_lam * (lam[3] - lam[2]) + 0.5 * (t01 + t11 - t00 - t10) / rho
            r1, r2 = pair2_step(d1, d2, 0.5 * (t00 + t11 - t01 - t10) / rho)
            for k in range(2):
                p1, p2 = 0.5 + (k - 0.5) * r1, 0.5 + (k - 0.5) * r2
                q[at + k] = rho * (relax * p1 + (1.0 - relax) * c * mu[v1 + k]) - lam[k]
                q[at + 2 + k] = rho * (relax * p2 + (1.0 - relax) * c * mu[v2 + k]) - lam[2 + k]
                s[at + k], s[at + 2 + k] = p1, p2


@bare
def update_triples(tasks: Batches, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    """Update 2x2x2 tables, of compact variables or not, by an active set in differences."""
    for task in range(len(tasks)):
        _triples(tasks[task], tables, iterates, scratch)


# A task of its own function, compiled into the loop over tasks: written in that loop, triples took 3 % longer and dense
# factors 40 %, as the compiler keeps fewer of a task's numbers in registers.


@inlined
def _triples(task: np.record, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    p = iterates.penalty[0]
    rho, c, target_lam, relax = p.rho, p.c, p.target_lam, p.relaxation
    last_leak, last_rho_c = p.last_leak, p.last_rho_c
    mu, q, edge_mu, x, count = iterates.mu, iterates.q, tables.edge_mu, tables.x, tables.n_slots
    q_at, edge_at, factor_at, slots_at, capacity = (
        task.q_at, task.edge_at, task.factor_at, task.slot_at, task.slot_width,
    )  # fmt: skip
    width = task.q_width // 3
    lam, d = scratch.numbers[0], scratch.numbers[1]
    room = TripleScratch(scratch.numbers[2], scratch.numbers[3], scratch.numbers[4])
    for f in range(task.begin, task.end):
        at, e_at, a, slot_at = q_at + f * 3 * width, edge_at + 3 * f, factor_at + f, slots_at + f * capacity
        for k in range(3):
            v = edge_mu[e_at + k]
            for w in range(width):
                lam[k * width + w] = last_leak * (last_rho_c * mu[v + w] - q[at + k * width + w])
            if width == 1:
                d[k] = rho * (c * mu[v] + target_lam * lam[k])
            else:
                d[k] = rho * (c * (mu[v + 1] - mu[v]) + target_lam * (lam[2 * k + 1] - lam[2 * k]))
        n = count[a]
        for e in range(n):
            x[slot_at + e] *= rho
        table = TripleTable(tables.theta, tables.table_at[a], weight_of(tables.weight, a))
        n = triple_qp(d, table, rho, Support(tables.slots, x, slot_at), n, room)
        count[a] = n
        for e in range(n):
            x[slot_at + e] /= rho
        for k in range(3):
            v = edge_mu[e_at + k]
            for w in range(width):
                here = d[k] / rho if width == 1 else 0.5 + (w - 0.5) * d[k] / rho
                q[at + k * width + w] = rho * (relax * here + (1.0 - relax) * c * mu[v + w]) - lam[k * width + w]


@bare
def update_forests(tasks: Batches, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    """Update K1 x K2 factors without structured ones."""
    for task in range(len(tasks)):
        _forests(tasks[task], tables, None, iterates, scratch)


@bare
def update_structured(tasks: Batches, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    """Update K1 x K2 tables, some of them structured; with few states that only matters at the start of a run."""
    for number in range(len(tasks)):
        task = tasks[number]
        cold = tables.n_slots[task.factor_at + task.begin] == 0
        if cold or tables.shape[task.shape_at] >= STEP_STATES:
            _forests(task, tables, tables.forms, iterates, scratch)
        else:
            _forests(task, tables, None, iterates, scratch)


@bare
def _forests(
    task: np.record, tables: TableArrays, forms: PairForms | None, iterates: Iterates, scratch: Scratch
) -> None:
    """Expand the targets, solve the QP from its last support, and compress the marginals."""
    width, n_states, capacity = task.q_width, task.n_states, task.slot_width
    q_at, edge_at, factor_at, slots_at = task.q_at, task.edge_at, task.factor_at, task.slot_at
    rho = iterates.penalty[0].rho
    sizes = tables.shape[task.shape_at : task.shape_at + 2]
    widths = tables.shape[task.shape_at + 2 : task.shape_at + 4]
    k1, k2 = sizes[0], sizes[1]
    slots, x, count, table_at = tables.slots, tables.x, tables.n_slots, tables.table_at
    lam, u, marginal = scratch.numbers[0], scratch.numbers[1], scratch.numbers[2]
    room = forest_scratch(scratch.numbers[3:], scratch.integers)
    for f in range(task.begin, task.end):
        a, slot_at = factor_at + f, slots_at + f * capacity
        place = FactorPlace(edge_at + 2 * f, q_at + f * width, sizes, widths)
        load_targets(place, tables.edge_mu, iterates, lam, u)
        for e in range(slot_at, slot_at + count[a]):
            x[e] *= rho
        table = tables.theta[table_at[a] : table_at[a] + k1 * k2].reshape(k1, k2)
        weight, support = weight_of(tables.weight, a), Support(slots, x, slot_at)
        if forms is None and weight == 1.0:  # the usual case, compiled without the products
            n = forest_qp(u, PairTable(table, 1.0, NO_FORM), None, rho, support, count[a], room)
        else:
            n = forest_qp(u, PairTable(table, weight, form_of(forms, a)), forms, rho, support, count[a], room)
        count[a] = n
        for v in range(n_states):
            marginal[v] = 0.0
        for e in range(slot_at, slot_at + n):
            x[e] /= rho
            marginal[slot_row(slots[e])] += x[e]
            marginal[k1 + slot_col(slots[e])] += x[e]
        store_marginals(place, tables.edge_mu, iterates, lam, marginal)


@bare
def update_dense(tasks: Batches, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    """Update tables of any arity like `_forests`, with a ridge and a pull if there is a sphere on the tables."""
    for task in range(len(tasks)):
        _dense(tasks[task], tables, iterates, scratch)


@inlined
def _dense(task: np.record, tables: TableArrays, iterates: Iterates, scratch: Scratch) -> None:
    arity, width, n_states, capacity, n_configs = (
        task.arity, task.q_width, task.n_states, task.slot_width, task.n_configs,
    )  # fmt: skip
    rho, shape, shape_at = iterates.penalty[0].rho, tables.shape, task.shape_at
    sizes, widths = shape[shape_at : shape_at + arity], shape[shape_at + arity : shape_at + 2 * arity]
    starts = shape[shape_at + 2 * arity : shape_at + 3 * arity]
    config = tables.config[task.config_at : task.config_at + n_configs * arity].reshape(n_configs, arity)
    numbers = scratch.numbers
    lam, u, marginal = numbers[0], numbers[1, :n_states], numbers[2]
    room = DenseScratch(numbers[3], numbers[4], numbers[5], numbers[6], scratch.square)
    slots, x, count = tables.slots, tables.x, tables.n_slots
    on = task.kind == FactorKind.RIDGE and len(tables.pull) > 0
    ridge = iterates.penalty[0].sphere_weight if on else 0.0
    size = n_configs if on else 0
    for f in range(task.begin, task.end):
        a, slot_at = task.factor_at + f, task.slot_at + f * capacity
        place = FactorPlace(task.edge_at + f * arity, task.q_at + f * width, sizes, widths)
        load_targets(place, tables.edge_mu, iterates, lam, u)
        for e in range(slot_at, slot_at + count[a]):
            x[e] *= rho
        pull = tables.pull[task.pull_at + f * size : task.pull_at + (f + 1) * size]
        weight = weight_of(tables.weight, a)
        factor = DenseFactor(tables.theta, tables.table_at[a], weight, config, starts, ridge, pull)
        n = dense_qp(u, factor, rho, Support(slots, x, slot_at), count[a], room)
        count[a] = n
        for v in range(n_states):
            marginal[v] = 0.0
        for e in range(slot_at, slot_at + n):
            x[e] /= rho
            for k in range(arity):
                marginal[starts[k] + config[slots[e], k]] += x[e]
        store_marginals(place, tables.edge_mu, iterates, lam, marginal)


@inlined
def load_targets(place: FactorPlace, edge_mu: Ints, iterates: Iterates, lam: Floats, u: Floats) -> None:
    """Load multipliers and scaled targets u = rho t of one factor; compact variables are expanded."""
    p = iterates.penalty[0]
    rho, c, target_lam, last_leak, last_rho_c = p.rho, p.c, p.target_lam, p.last_leak, p.last_rho_c
    mu, q, at, sizes, widths = iterates.mu, iterates.q, place.at, place.sizes, place.widths
    i = o = 0
    for k in range(len(sizes)):
        v = edge_mu[place.e_at + k]
        for w in range(widths[k]):
            lam[i + w] = last_leak * (last_rho_c * mu[v + w] - q[at + i + w])
            u[o + w] = rho * (c * mu[v + w] + target_lam * lam[i + w])
        if widths[k] < sizes[k]:
            u[o + 1] = 0.5 * u[o]
            u[o] = -u[o + 1]
        i += widths[k]
        o += sizes[k]


@inlined
def store_marginals(place: FactorPlace, edge_mu: Ints, iterates: Iterates, lam: Floats, marginal: Floats) -> None:
    """Write q = rho s - lam of one factor; for compact variables, differences of the marginals are taken."""
    rho, c, relax = iterates.penalty[0].rho, iterates.penalty[0].c, iterates.penalty[0].relaxation
    mu, q, at, sizes, widths = iterates.mu, iterates.q, place.at, place.sizes, place.widths
    i = o = 0
    for k in range(len(sizes)):
        v = edge_mu[place.e_at + k]
        if widths[k] < sizes[k]:
            marginal[o] = marginal[o + 1] - marginal[o]
        for w in range(widths[k]):
            q[at + i + w] = rho * (relax * marginal[o + w] + (1.0 - relax) * c * mu[v + w]) - lam[i + w]
        i += widths[k]
        o += sizes[k]


# -- A sphere on the factors instead of the variables, as in the published code of the paper's authors ----------------


class FactorSphere:
    """A copy upsilon of mu_F on the sphere ||x - 1/2||^2 = n/4 and its multiplier: `sphere="factors"`.

    The factor step sees it as a ridge of weight `sphere_weight` and a pull on every configuration. In a part of a
    larger model, norms are those of the factors that it counts, and the sphere is that of all parts: see `project`.
    """

    def __init__(self, engine: Engine) -> None:
        n = engine.problem.n_configs
        size = np.diff(engine.problem.config_ptr)
        self.counted = _counted_configs(engine)
        self.radius2 = sum(part.stop - part.start for part in self.counted) / 4
        self.lam = np.zeros(n)
        self.upsilon = np.full(n, 0.5)
        self.off2 = 0.0
        engine.tables.n_slots[:] = 0
        self.mu_f: Floats = np.repeat(1.0 / size, size)

    def _point(self, engine: Engine) -> Floats:
        """Return the point to be projected, relative to the centre of the sphere."""
        rho = float(engine.penalty[0].rho * engine.penalty[0].sphere_weight)
        return self.mu_f + self.lam / rho - 0.5

    def at_centre(self, engine: Engine) -> bool:
        """Return whether the point to project is the centre, where the projection is undefined."""
        return not self._point(engine).any()

    def update_upsilon(self, engine: Engine) -> None:
        """Project: upsilon = P_S(mu_F + lam / rho), and compute its pull."""
        norm = float(np.linalg.norm(self._point(engine)))
        self.project(engine, math.sqrt(self.radius2) / norm if norm > 0 else 1.0)

    def norm2(self, engine: Engine) -> float:
        """Return the squared distance from the centre of the point to be projected, over the counted factors."""
        return self._square(self._point(engine))

    def _square(self, values: Floats) -> float:
        return sum(float(values[part] @ values[part]) for part in self.counted)

    def project(self, engine: Engine, scale: float) -> None:
        """Project by a given scale."""
        self.upsilon = 0.5 + self._point(engine) * scale
        engine.tables.pull[:] = engine.penalty[0].rho * engine.penalty[0].sphere_weight * self.upsilon - self.lam

    def update_lam(self, engine: Engine) -> None:
        """Update the multiplier: lam += rho (mu_F - upsilon)."""
        self.mu_f = dense(engine.problem, engine.factor_marginals)
        rest = self.mu_f - self.upsilon
        self.off2 = self._square(rest)
        if engine.penalty[0].k < engine.penalty[0].freeze_after:
            self.lam += engine.last_rho * engine.penalty[0].sphere_weight * rest


def _counted_configs(engine: Engine) -> list[slice]:
    """Return the slices of mu_F for the factors that an engine counts: all, except in a part of a larger model."""
    problem, counts = engine.problem, engine.layout.share.owned
    if sum(counts) == problem.n_factors:
        return [slice(0, problem.n_configs)]
    pairs = zip(problem.batches, counts, strict=True)
    return [slice(batch.configs.start, batch.configs.start + n * batch.n_configs) for batch, n in pairs]
