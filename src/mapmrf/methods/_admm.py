"""The engine of ADMM on a factor graph: lays a problem out for the kernels of `kernels.admm` and drives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints, offsets, ranges, segment_argmax
from mapmrf.kernels import admm as kernel
from mapmrf.problem import Batch, Problem

VAR_CHUNK = 16384
"""Variables per chunk of a reduction; fixed, so that sums do not depend on the number of threads."""
PARALLEL_FROM = 100_000
"""Number of factors from which threads pay."""


@dataclass(frozen=True, eq=False)
class Layout:
    """A problem as the kernels want it; see `kernels.admm` for the meaning of the arrays.

    Compact: binary variables are one number each, unary potentials are centred, and the linear parts of 2x2 tables
    are moved into them. That changes no labelling's value and is exact as long as epsilon is 0.
    """

    problem: Problem
    compact: bool
    constant: float
    var_at: Ints
    nbr_q: NDArray[np.uint32]
    theta: Floats
    batch: Ints
    edge_mu: NDArray[np.uint32]
    edge_var: NDArray[np.uint32]
    strength: Floats
    shape: Ints
    config: Ints
    q_size: int
    slot_size: int

    @classmethod
    def build(cls, problem: Problem, compact: bool) -> Layout:
        """Lay a problem out."""
        graph = problem.graph
        width = np.where(compact & (graph.card == 2), 1, graph.card)
        var_at = offsets(width)
        rows, shape, config = _rows(problem, width, compact)
        theta_v, alone = _without_isolated(problem)
        strength, constant = np.zeros(0), graph.constant + alone
        if compact:
            strength, theta_v, moved = _split_pairs(problem, theta_v, rows)
            theta_v, mean = _centre(theta_v, problem)
            constant += moved + mean
        theta = theta_v
        if compact and np.any(graph.card == 2):
            theta = _differences(theta_v, problem, width)
        edge_var, edge_q = _edges(problem, rows, shape)
        plain = bool(np.all(width == 1))
        return cls(
            problem=problem,
            compact=compact,
            constant=constant,
            var_at=var_at,
            nbr_q=edge_q[problem.nbr].astype(np.uint32),
            theta=theta,
            batch=rows,
            edge_mu=edge_var if plain else var_at[edge_var].astype(np.uint32),
            edge_var=edge_var,
            strength=strength,
            shape=shape,
            config=config,
            q_size=int((rows[:, kernel.N] * rows[:, kernel.Q_WIDTH]).sum()),
            slot_size=int((rows[:, kernel.N] * rows[:, kernel.SLOT_WIDTH]).sum()),
        )


def _kind(batch: Batch, compact: bool) -> int:
    if batch.shape == (2, 2) and not batch.hard:
        return kernel.PAIR2_COMPACT if compact else kernel.PAIR2
    if batch.shape == (2, 2, 2):
        return kernel.TRIPLE2
    return kernel.FOREST if batch.arity == 2 else kernel.DENSE


def _rows(problem: Problem, width: Ints, compact: bool) -> tuple[Ints, Ints, Ints]:
    """The descriptor of every batch, its shape (sizes, widths, starts) and, where needed, its configurations."""
    rows = np.zeros((len(problem.batches), kernel.BATCH_COLUMNS), dtype=np.int64)
    shapes: list[Ints] = []
    configs: list[Ints] = []
    q_at = slot_at = 0
    for row, batch in zip(rows, problem.batches, strict=True):
        kind = _kind(batch, compact)
        sizes = np.array(batch.shape)
        widths = width[problem.scope[batch.edges][: batch.arity]]
        slot_width = int(sizes.sum()) - batch.arity + 2 if kind not in (kernel.PAIR2_COMPACT, kernel.PAIR2) else 0
        row[:] = (
            kind,
            batch.n,
            batch.arity,
            q_at,
            widths.sum(),
            batch.factors.start,
            batch.edges.start,
            slot_at,
            slot_width,
            sum(len(part) for part in shapes),
            sum(len(part) for part in configs),
            batch.n_configs,
            sizes.sum(),
        )
        shapes.append(np.concatenate([sizes, widths, batch.state_at[:-1]]))
        if kind == kernel.DENSE:
            configs.append(batch.config.ravel())
        q_at += batch.n * int(widths.sum())
        slot_at += batch.n * slot_width
    none = [np.zeros(0, dtype=np.int64)]
    return rows, np.concatenate(none + shapes), np.concatenate(none + configs)


def _without_isolated(problem: Problem) -> tuple[Floats, float]:
    """Unary potentials with those of variables without factors at 0, and the sum of what these are worth at best."""
    graph = problem.graph
    theta_v = graph.theta_v.copy()
    alone = np.flatnonzero(problem.degree == 0)
    if len(alone) == 0:
        return theta_v, 0.0
    best = np.maximum.reduceat(theta_v, graph.var_ptr[:-1])[alone].sum()
    theta_v[ranges(graph.var_ptr[alone], graph.card[alone])] = 0.0
    return theta_v, float(best)


def _split_pairs(problem: Problem, theta_v: Floats, rows: Ints) -> tuple[Floats, Floats, float]:
    """Couplings of the 2x2 tables; their linear parts go to the variables, their means to the constant."""
    graph = problem.graph
    strength = np.zeros(problem.n_factors)
    constant = 0.0
    for row, batch in zip(rows, problem.batches, strict=True):
        if row[kernel.KIND] != kernel.PAIR2_COMPACT:
            continue
        t00, t01, t10, t11 = (graph.theta_t[batch.table_at + t] for t in range(4))
        strength[batch.factors] = (t00 + t11 - t01 - t10) / 4
        first, second = problem.scope[batch.edges].reshape(-1, 2).T
        linear = np.bincount(first, (t10 + t11 - t00 - t01) / 4, graph.n_vars)
        linear += np.bincount(second, (t01 + t11 - t00 - t10) / 4, graph.n_vars)
        touched = np.flatnonzero(graph.card == 2)
        theta_v[graph.var_ptr[touched]] -= linear[touched]
        theta_v[graph.var_ptr[touched] + 1] += linear[touched]
        constant += float((t00 + t01 + t10 + t11).sum()) / 4
    return strength, theta_v, constant


def _centre(theta_v: Floats, problem: Problem) -> tuple[Floats, float]:
    """Take the mean out of every variable's potentials; returns them and the sum of the means."""
    graph = problem.graph
    if problem.n_vars == 0:
        return theta_v, 0.0
    mean = np.add.reduceat(theta_v, graph.var_ptr[:-1]) / graph.card
    return theta_v - np.repeat(mean, graph.card), float(mean.sum())


def _differences(theta_v: Floats, problem: Problem, width: Ints) -> Floats:
    """theta(1) - theta(0) for compact variables, the block itself for the others."""
    graph = problem.graph
    theta = np.empty(int(width.sum()))
    var_at = offsets(width)
    two = np.flatnonzero((graph.card == 2) & (width == 1))
    at = graph.var_ptr[two]
    theta[var_at[two]] = theta_v[at + 1] - theta_v[at]
    rest = np.flatnonzero((graph.card != 2) | (width != 1))
    theta[ranges(var_at[rest], width[rest])] = theta_v[ranges(graph.var_ptr[rest], graph.card[rest])]
    return theta


def _edges(problem: Problem, rows: Ints, shape: Ints) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
    """Variable of every edge in the kernels' order, and where every edge's block of q starts in the problem's order.

    2x2 batches of compact variables are stored in planes (all first variables, then all second ones), the others factor
    by factor.
    """
    edge_var = problem.scope.astype(np.uint32)
    edge_q = np.empty(problem.n_edges, dtype=np.uint32)
    for row, batch in zip(rows, problem.batches, strict=True):
        n, arity = batch.n, batch.arity
        factor = np.arange(n, dtype=np.uint32)[:, None]
        if row[kernel.KIND] == kernel.PAIR2_COMPACT:
            edge_var[batch.edges] = problem.scope[batch.edges].reshape(n, 2).T.ravel()
            edge_q[batch.edges] = (row[kernel.Q_AT] + factor + np.array([0, n], dtype=np.uint32)).ravel()
        else:
            widths = shape[row[kernel.SHAPE_AT] + arity : row[kernel.SHAPE_AT] + 2 * arity]
            start = offsets(widths)[:-1].astype(np.uint32)
            width = np.uint32(row[kernel.Q_WIDTH])
            edge_q[batch.edges] = (row[kernel.Q_AT] + factor * width + start).ravel()
    return edge_var, edge_q


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

    # -- iterations -------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Do n iterations; the last one leaves s for `look`."""
        lay, problem = self.layout, self.problem
        if self.pool is not None:
            for last in [False] * (n - 1) + [True]:
                self._parallel_iteration(self.pool, last)
        else:
            kernel.iterate(
                n, self.k, False, self.update_every, self.freeze_after, self.par, lay.batch, lay.edge_mu, self.q,
                self.s, lay.strength, problem.graph.theta_t, problem.table_at, lay.shape, lay.config, self.slots, self.x,
                self.count, self.chunk_size, self.blocks, self.target2, self.scale, self.norm2, self.off2, lay.var_at,
                problem.graph.card, problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.lam_v,
            )  # fmt: skip
            self.k += n

    def _parallel_iteration(self, pool: ThreadPoolExecutor, keep: bool) -> None:
        lay, problem = self.layout, self.problem
        self._each(pool, lambda row, begin, end: kernel.factor_step(
            row, begin, end, self.par, lay.edge_mu, self.mu, self.q, self.s, keep, lay.strength, problem.graph.theta_t,
            problem.table_at, lay.shape, lay.config, self.slots, self.x, self.count,
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
            sphere2=float(self.off2.sum()),
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


def _several(work: Callable[..., Any], parts: list[tuple[Any, ...]]) -> None:
    for part in parts:
        work(*part)


def _cut(values: Floats, size: int) -> list[Floats]:
    return [values[begin : begin + size] for begin in range(0, len(values), size)]


def interaction_scale(problem: Problem) -> float:
    """Mean size of the interactions: of each table the root mean square of what its main effects leave.

    Multiplying all potentials by a constant multiplies it, so penalties measured in it are scale-free. Without any
    interaction, the spread of the unary potentials; without that, 1.
    """
    total = 0.0
    for batch in problem.batches:
        starts, uses = np.unique(batch.table_at, return_counts=True)
        for part in range(0, len(starts), 4096):
            places = starts[part : part + 4096, None] + np.arange(batch.n_configs)
            sizes = _interaction(problem.graph.theta_t[places].reshape(-1, *batch.shape))
            total += float(sizes @ uses[part : part + 4096])
    if total > 0:
        return total / problem.n_factors
    spread = np.abs(problem.graph.theta_v[np.isfinite(problem.graph.theta_v)])
    return float(spread.mean()) if spread.sum() > 0 else 1.0


def _interaction(tables: Floats) -> Floats:
    """Root mean square interaction of each table; forbidden entries stand at the lowest finite one."""
    axes = tuple(range(1, tables.ndim))
    if not np.isfinite(tables).all():
        low = np.where(np.isfinite(tables), tables, np.inf).min(axis=axes, keepdims=True)
        tables = np.where(np.isfinite(tables), tables, low)
    mean = tables.mean(axis=axes, keepdims=True)
    rest = tables - mean
    for k in axes:
        rest = rest - (tables.mean(axis=tuple(j for j in axes if j != k), keepdims=True) - mean)
    return np.asarray(np.sqrt((rest * rest).mean(axis=axes)))
