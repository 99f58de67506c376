"""The engine of ADMM on a factor graph: the state of a run, and the loops over it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges, segment_argmax
from mapmrf.kernels import admm as kernel
from mapmrf.methods._layout import Layout
from mapmrf.problem import Batch

VAR_CHUNK = 16384
"""Variables per chunk of a reduction; fixed, so that sums do not depend on the number of threads."""
PARALLEL_FROM = 100_000
"""Number of factors from which threads pay."""


@dataclass(frozen=True, slots=True)
class Look:
    """A look at the state: the dual bound, the labels' value, <theta, mu>, residuals."""

    bound: float
    value: float
    relaxed: float
    primal2: float
    primal_max: float
    sphere2: float
    integrality: float
    changed: int


class Engine:
    """State of an ADMM run and the loops over it; `sphere` says which one is on now."""

    def __init__(self, layout: Layout, sphere: int, sphere_block: int = 0) -> None:
        self.layout, self.problem = layout, layout.problem
        problem = self.problem
        self.par = np.zeros(kernel.PAR_SIZE)
        self.par[[kernel.RELAX, kernel.WEIGHT, kernel.ETA, kernel.SPHERE]] = 1.0, 1.0, 1.0, sphere
        self.mu = np.zeros(len(layout.theta))
        self.lam_v = np.zeros(len(layout.theta))
        self.q = np.zeros(layout.q_size)
        self.s = np.zeros(layout.q_size)
        self.slots = np.zeros(layout.slot_size, dtype=np.int32)
        self.x = np.zeros(layout.slot_size)
        self.pull = np.zeros(0)
        self.factor_sphere: FactorSphere | None = None
        self.count = np.zeros(problem.n_factors if layout.slot_size else 0, dtype=np.int32)
        self.chunk_size = sphere_block if sphere_block else VAR_CHUNK
        self.blocks = sphere_block > 0
        n_chunks = -(-problem.n_vars // self.chunk_size)
        self.norm2, self.off2 = np.zeros(n_chunks), np.zeros(n_chunks)
        self.scale = np.ones(n_chunks)
        self.target2 = self._targets(sphere)
        self.labels = np.zeros(problem.n_vars, dtype=np.int64)
        self.k = 0
        self.update_every = 1
        self.freeze_after = 2**62
        threads = problem.threads if problem.n_factors >= PARALLEL_FROM else 1
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def _targets(self, sphere: int) -> Floats:
        """Squared radius of the sphere that each chunk's variables bring."""
        card = self.problem.graph.card
        share = card / 4.0 if sphere == kernel.SPHERE_VARIABLES else 1.0 - 1.0 / card
        share = np.where((np.diff(self.layout.var_at) == 1), 0.5, share) * (self.problem.degree > 0)
        return np.array([part.sum() for part in _cut(share, self.chunk_size)], dtype=np.float64)

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start from mu (in the layout of theta); without `multipliers` all lam are 0, else they are kept."""
        lam_e = None
        if multipliers:
            lam_e = self.par[kernel.LAST_L] * (self.par[kernel.LAST_RC] * self._edge_copies() - self.q)
        kernel.set_rho(self.par, rho)
        self.mu[:] = mu
        self._settle_isolated()
        self.par[kernel.LAST_L], self.par[kernel.LAST_RC] = 1.0, rho * self.par[kernel.C]
        self.q[:] = self.par[kernel.LAST_RC] * self._edge_copies()
        if lam_e is not None:
            self.q -= lam_e
        self.lam_v[:] = 0.0
        if self.par[kernel.SPHERE] > 0:
            self.target2 = self._targets(int(self.par[kernel.SPHERE]))
            kernel.sphere_norms(
                self.chunk_size, self.par, self.layout.var_at, self.problem.nbr_ptr, self.mu, self.lam_v, self.norm2
            )
            kernel.sphere_scales(self.norm2, self.target2, self.blocks, self.scale)

    def _settle_isolated(self) -> None:
        """Variables without factors take their best state for good."""
        alone = np.flatnonzero(self.problem.degree == 0)
        if len(alone) == 0:
            return
        graph = self.problem.graph
        best = segment_argmax(graph.theta_v, graph.var_ptr)[alone]
        width = np.diff(self.layout.var_at)[alone]
        self.mu[ranges(self.layout.var_at[alone], width)] = 0.0
        wide = (width > 1) | (graph.card[alone] == 1)
        self.mu[self.layout.var_at[alone[wide]] + best[wide]] = 1.0
        self.mu[self.layout.var_at[alone[~wide]]] = 2.0 * best[~wide] - 1.0

    def _edge_copies(self) -> Floats:
        """mu_i on every edge, in the layout of q."""
        layout = self.layout
        copies = np.empty(layout.q_size)
        widths = np.diff(layout.var_at)
        for row, batch in zip(layout.batch, self.problem.batches, strict=True):
            at, n, width = row[kernel.Q_AT], batch.n, row[kernel.Q_WIDTH]
            out = copies[at : at + n * width]
            places = layout.edge_mu[batch.edges].astype(np.int64)
            if row[kernel.KIND] == kernel.PAIR2_COMPACT:
                out[:] = self.mu[places]
                continue
            w = widths[layout.edge_var[batch.edges][: batch.arity]]
            o = 0
            for k in range(batch.arity):
                out.reshape(n, width)[:, o : o + w[k]] = self.mu[places.reshape(n, -1)[:, k, None] + np.arange(w[k])]
                o += w[k]
        return copies

    @property
    def at_centre(self) -> bool:
        """Whether the point to project lies at the sphere's centre, where the projection is undefined."""
        return bool(self.norm2.sum() == 0.0)

    # -- iterations -------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Do n iterations; the last one leaves s for `look`."""
        if self.factor_sphere is not None:
            for _ in range(n):
                self._run_serial(1)
                self.factor_sphere.update(self)
        elif self.pool is not None:
            for last in [False] * (n - 1) + [True]:
                self._parallel_iteration(self.pool, last)
        else:
            self._run_serial(n)

    def _run_serial(self, n: int) -> None:
        lay, problem = self.layout, self.problem
        kernel.iterate(
            n, self.k, False, self.update_every, self.freeze_after, self.par, lay.batch, lay.edge_mu, self.q, self.s,
            lay.strength, problem.graph.theta_t, problem.table_at, lay.shape, lay.config, self.pull, self.slots, self.x,
            self.count, self.chunk_size, self.blocks, self.target2, self.scale, self.norm2, self.off2, lay.var_at,
            problem.graph.card, problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.lam_v,
        )  # fmt: skip
        self.k += n

    def _parallel_iteration(self, pool: ThreadPoolExecutor, keep: bool) -> None:
        lay, problem = self.layout, self.problem
        self._each(pool, lambda row, begin, end: kernel.factor_step(
            row, begin, end, self.par, lay.edge_mu, self.mu, self.q, self.s, keep, lay.strength, problem.graph.theta_t,
            problem.table_at, lay.shape, lay.config, self.pull, self.slots, self.x, self.count,
        ), list(self._factor_chunks()))  # fmt: skip
        next_b = kernel.next_sphere_b(self.par, self.k, self.update_every)
        frozen = self.k >= self.freeze_after
        self._each(pool, lambda chunk: kernel.variable_step(
            chunk, self.chunk_size, self.par, next_b, frozen, self.scale, self.norm2, self.off2, lay.var_at,
            problem.graph.card, problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.lam_v, self.q,
        ), [(chunk,) for chunk in range(len(self.norm2))])  # fmt: skip
        kernel.advance_rho(self.par, self.k, self.update_every)
        if self.par[kernel.SPHERE] > 0:
            kernel.sphere_scales(self.norm2, self.target2, self.blocks, self.scale)
        self.k += 1

    def _each(self, pool: ThreadPoolExecutor, work: Callable[..., Any], parts: list[tuple[Any, ...]]) -> None:
        """Run a kernel on all parts, a fair share of them per thread."""
        threads = self.problem.threads
        for future in [pool.submit(_several, work, parts[t::threads]) for t in range(threads)]:
            future.result()

    def _factor_chunks(self) -> Iterator[tuple[Ints, int, int]]:
        for row in self.layout.batch:
            for begin in range(0, int(row[kernel.N]), kernel.CHUNK):
                yield row, begin, min(begin + kernel.CHUNK, int(row[kernel.N]))

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """Decode labels, and sum up bound, value, relaxed value and residuals."""
        lay, problem, graph = self.layout, self.problem, self.problem.graph
        n = problem.n_vars
        changed = kernel.decode(
            0, n, lay.var_at, graph.card, lay.theta, self.mu, graph.var_ptr, problem.feasible_v, self.labels
        )
        of_vars = np.zeros(4)
        kernel.look_at_variables(
            0, n, self.par, lay.var_at, graph.card, problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.q, self.labels,
            of_vars,
        )  # fmt: skip
        chunks = list(self._factor_chunks())
        found = np.zeros((len(chunks), 5))

        def look_at(c: int) -> None:
            row, begin, end = chunks[c]
            kernel.look_at_factors(
                row, begin, end, self.par, lay.edge_mu, lay.edge_var, self.labels, self.mu, self.q, self.s, lay.strength,
                graph.theta_t, problem.table_at, lay.shape, lay.config, self.slots, self.x, self.count, found[c],
            )  # fmt: skip

        if self.pool is not None:
            self._each(self.pool, look_at, [(c,) for c in range(len(chunks))])
        else:
            for c in range(len(chunks)):
                look_at(c)
        sums = lay.constant + of_vars[:3] + found[:, :3].sum(axis=0)
        return Look(
            bound=float(sums[0]),
            value=float(sums[1]),
            relaxed=float(sums[2]),
            primal2=float(found[:, 3].sum()),
            primal_max=float(found[:, 4].max(initial=0.0)),
            sphere2=float(self.off2.sum()) if self.factor_sphere is None else self.factor_sphere.off2,
            integrality=float(of_vars[3]),
            changed=int(changed),
        )

    def variables(self) -> Floats:
        """mu_v in the problem's layout."""
        return self.expand(self.mu)

    def expand(self, values: Floats) -> Floats:
        """Marginals in the problem's layout from the kernels'."""
        graph = self.problem.graph
        width = np.diff(self.layout.var_at)
        compact = (width == 1) & (graph.card == 2)
        if not compact.any():
            return values.copy()
        out = np.empty(len(graph.theta_v))
        two = np.flatnonzero(compact)
        diff = values[self.layout.var_at[two]]
        out[graph.var_ptr[two]] = 0.5 - 0.5 * diff
        out[graph.var_ptr[two] + 1] = 0.5 + 0.5 * diff
        rest = np.flatnonzero(~compact)
        places = ranges(graph.var_ptr[rest], graph.card[rest])
        out[places] = values[ranges(self.layout.var_at[rest], width[rest])]
        return out

    def compress(self, mu_v: Floats) -> Floats:
        """The inverse of `expand`."""
        graph = self.problem.graph
        width = np.diff(self.layout.var_at)
        compact = (width == 1) & (graph.card == 2)
        if not compact.any():
            return mu_v.copy()
        out = np.empty(len(self.layout.theta))
        two = np.flatnonzero(compact)
        out[self.layout.var_at[two]] = mu_v[graph.var_ptr[two] + 1] - mu_v[graph.var_ptr[two]]
        rest = np.flatnonzero(~compact)
        out[ranges(self.layout.var_at[rest], width[rest])] = mu_v[ranges(graph.var_ptr[rest], graph.card[rest])]
        return out

    def factors(self) -> Floats:
        """mu_f in the problem's layout, from the supports and the closed forms of the last kept iteration."""
        mu_f = np.zeros(self.problem.n_configs)
        for row, batch in zip(self.layout.batch, self.problem.batches, strict=True):
            out = mu_f[batch.configs].reshape(batch.n, batch.n_configs)
            if row[kernel.KIND] in (kernel.PAIR2_COMPACT, kernel.PAIR2):
                self._pair_marginals(row, batch, out)
                continue
            width = row[kernel.SLOT_WIDTH]
            block = slice(row[kernel.SLOT_AT], row[kernel.SLOT_AT] + batch.n * width)
            slots = self.slots[block].reshape(batch.n, width)
            if row[kernel.KIND] == kernel.FOREST:
                slots = (slots >> 16) * batch.shape[1] + ((slots & 0xFFFF) >> 1)
            used = np.arange(width) < self.count[batch.factors][:, None]
            factor, slot = np.nonzero(used)
            np.add.at(out, (factor, slots[factor, slot]), self.x[block].reshape(batch.n, width)[factor, slot])
        return mu_f

    def multipliers(self) -> Floats:
        """lam of every edge, in the layout of q."""
        return self.par[kernel.LAST_L] * (self.par[kernel.LAST_RC] * self._edge_copies() - self.q)

    def edge_states(self, values: Floats) -> Floats:
        """Values in the layout of q as the problem lays out edge states; a compact difference d becomes (-d/2, d/2)."""
        out = np.empty(self.problem.n_edge_states)
        widths = np.diff(self.layout.var_at)
        for row, batch in zip(self.layout.batch, self.problem.batches, strict=True):
            n, at = batch.n, row[kernel.Q_AT]
            mine = values[at : at + n * row[kernel.Q_WIDTH]]
            if row[kernel.KIND] == kernel.PAIR2_COMPACT:
                mine = mine.reshape(2, n).T
            mine = mine.reshape(n, -1)
            target = out[batch.edge_states].reshape(n, -1)
            w = widths[self.problem.scope[batch.edges][: batch.arity]]
            o = 0
            for k in range(batch.arity):
                block = target[:, batch.state_at[k] : batch.state_at[k + 1]]
                block[:] = mine[:, o : o + w[k]]
                if w[k] < batch.shape[k]:
                    block[:, 0] *= -0.5
                    block[:, 1] *= 0.5
                o += w[k]
        return out

    def stationarity(self, lam: Floats) -> float:
        """2-norm of -theta_i + lam_i + sum_a lam_ia over all connected variables."""
        sums = -self.layout.theta
        if self.par[kernel.SPHERE] > 0:
            sums = sums + self.lam_v
        widths = np.diff(self.layout.var_at)
        owner = np.repeat(np.arange(self.problem.n_vars), self.problem.degree)
        for w in range(int(widths.max(initial=0))):
            wide = widths[owner] > w
            at = self.layout.nbr_q[wide].astype(np.int64) + w
            np.add.at(sums, self.layout.var_at[owner[wide]] + w, lam[at])
        half = np.where((widths == 1) & (self.problem.graph.card == 2), 0.5, 1.0) * (self.problem.degree > 0)
        return float(np.sqrt((np.repeat(half, widths) * sums * sums).sum()))

    def sphere_tangent(self) -> float:
        """2-norm of the part of the sphere's multiplier that is tangential to the sphere at mu."""
        if self.par[kernel.SPHERE] == 0:
            return 0.0
        widths = np.diff(self.layout.var_at)
        compact = (widths == 1) & (self.problem.graph.card == 2)
        centre = np.repeat(np.where(compact, 0.0, 0.5), widths)
        weight = np.repeat(np.where(compact, 0.5, 1.0) * (self.problem.degree > 0), widths)
        out = self.mu - centre
        along = float((weight * out * self.lam_v).sum()) / max(float((weight * out * out).sum()), 1e-300)
        rest = self.lam_v - along * out
        return float(np.sqrt((weight * rest * rest).sum()))

    def begin_factor_sphere(self, freeze_after: int) -> None:
        """Put the sphere on the factors, as the authors' published code does."""
        self.pull = np.zeros(self.problem.n_configs)
        self.factor_sphere = FactorSphere(self, freeze_after)

    def _pair_marginals(self, row: Ints, batch: Batch, out: Floats) -> None:
        at, n = row[kernel.Q_AT], batch.n
        if row[kernel.KIND] == kernel.PAIR2_COMPACT:
            p1, p2 = 0.5 + 0.5 * self.s[at : at + n], 0.5 + 0.5 * self.s[at + n : at + 2 * n]
        else:
            block = self.s[at : at + 4 * n].reshape(n, 4)
            p1, p2 = block[:, 1], block[:, 3]
        t00, t01, t10, t11 = (self.problem.graph.theta_t[batch.table_at + t] for t in range(4))
        attract = t00 + t11 - t01 - t10 >= 0
        both = np.where(attract, np.minimum(p1, p2), np.maximum(0.0, p1 + p2 - 1.0))
        out[:, 3] = both
        out[:, 2] = p1 - both
        out[:, 1] = p2 - both
        out[:, 0] = 1.0 - p1 - p2 + both


class FactorSphere:
    """A copy of mu_F on the sphere ||x - 1/2||^2 = n/4 and its multiplier: `sphere="factors"`.

    The factor step sees it as a ridge of weight `sphere_weight` and a pull on every configuration.
    """

    def __init__(self, engine: Engine, freeze_after: int) -> None:
        n = engine.problem.n_configs
        self.radius = math.sqrt(n) / 2
        self.lam = np.zeros(n)
        self.upsilon = np.full(n, 0.5)
        self.freeze_after = freeze_after or 2**62
        self.off2 = 0.0
        engine.count[:] = 0
        self._project(engine, np.repeat(1.0 / np.diff(engine.problem.config_ptr), np.diff(engine.problem.config_ptr)))

    def _project(self, engine: Engine, mu_f: Floats) -> None:
        rho = engine.par[kernel.RHO] * engine.par[kernel.WEIGHT]
        a = mu_f + self.lam / rho - 0.5
        norm = float(np.linalg.norm(a))
        self.upsilon = 0.5 + a * (self.radius / norm if norm > 0 else 1.0)
        engine.pull[:] = rho * self.upsilon - self.lam

    def update(self, engine: Engine) -> None:
        """Close an iteration: multiplier first, then the next projection, both with their own rho."""
        mu_f = engine.factors()
        rest = mu_f - self.upsilon
        self.off2 = float(rest @ rest)
        if engine.k <= self.freeze_after:
            self.lam += engine.par[kernel.LAST_RC] / engine.par[kernel.C] * engine.par[kernel.WEIGHT] * rest
        self._project(engine, mu_f)


def _several(work: Callable[..., Any], parts: list[tuple[Any, ...]]) -> None:
    for part in parts:
        work(*part)


def _cut(values: Floats, size: int) -> list[Floats]:
    return [values[begin : begin + size] for begin in range(0, len(values), size)]
