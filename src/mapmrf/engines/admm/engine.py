"""The engine of ADMM on a factor graph: the state of a run, and the loops over it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges, segment_argmax
from mapmrf.engines.admm import factor_steps, variable_steps
from mapmrf.engines.admm import measurement as looks
from mapmrf.engines.admm import penalty as K
from mapmrf.engines.admm.factor_sphere import FactorSphere
from mapmrf.engines.admm.layout import Layout
from mapmrf.polytope import FactorMarginals, dense
from mapmrf.problem import Batch, Problem

VAR_CHUNK = 16384
"""Variables per chunk of a reduction; fixed, so that sums do not depend on the number of threads."""
CHUNK = 16384
"""Factors per piece of work, fixed for the same reason."""
ONE_CALL_BELOW = 6000
"""Factors below which a model of pairs runs many iterations in one call: the calls would cost more than the work."""
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
        self.par = np.zeros(K.PAR_SIZE)
        self.par[[K.RELAX, K.WEIGHT, K.ETA, K.SPHERE]] = 1.0, 1.0, 1.0, sphere
        self.mu = np.zeros(len(layout.theta))
        self.lam_v = np.zeros(len(layout.theta))
        self.q = np.zeros(layout.q_size)
        only_pairs = bool(np.all(layout.batch[:, K.KIND] == K.PAIR2_COMPACT))
        self.s = np.zeros(0 if only_pairs else layout.q_size)
        self.slots = np.zeros(layout.slot_size, dtype=np.int32)
        self.x = np.zeros(layout.slot_size)
        self.pull = np.zeros(0)
        self.factor_sphere: FactorSphere | None = None
        self.count = np.zeros(problem.n_factors if layout.slot_size else 0, dtype=np.int32)
        self.set_blocks(sphere_block)
        self.labels = np.zeros(problem.n_vars, dtype=np.int64)
        self.k = 0
        self.update_every = 1
        self.freeze_after = 2**62
        self.tasks = _tasks(layout.batch)
        self.all_compact = len(layout.theta) == problem.n_vars
        self.only_binary = layout.compact and bool(np.all(problem.graph.card == 2))
        self.threads = problem.threads if problem.n_factors >= PARALLEL_FROM else 1
        self.pool = ThreadPoolExecutor(self.threads - 1) if self.threads > 1 else None
        self.scratch = [_scratch(layout.batch) for _ in range(self.threads)]

    def set_blocks(self, size: int) -> None:
        """Put a sphere of its own on every `size` variables from the next `begin` on; 0 for one sphere over all."""
        self.chunk_size, self.blocks = size or VAR_CHUNK, size > 0
        n_chunks = -(-self.problem.n_vars // self.chunk_size)
        self.norm2, self.off2 = np.zeros(n_chunks), np.zeros(n_chunks)
        self.scale, self.target2 = np.ones(n_chunks), np.zeros(n_chunks)

    def _targets(self, sphere: int) -> Floats:
        """Squared radius of the sphere that each chunk's variables bring."""
        targets = []
        for begin in range(0, self.problem.n_vars, self.chunk_size):
            part = slice(begin, begin + self.chunk_size)
            card = self.problem.graph.card[part]
            share = card / 4.0 if sphere == K.SPHERE_VARIABLES else 1.0 - 1.0 / card
            width = np.diff(self.layout.var_at[begin : begin + self.chunk_size + 1])
            targets.append(float((np.where(width == 1, 0.5, share) * (self.problem.degree[part] > 0)).sum()))
        return np.array(targets)

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start from mu (in the layout of theta); without `multipliers` all lam are 0, else they are kept."""
        if multipliers:
            lists = (self.layout.var_at, self.problem.nbr_ptr, self.layout.nbr_q)
            variable_steps.edge_multipliers(self.par, *lists, self.mu, self.q, self.q)
        else:
            self.q[:] = 0.0
        self._restart(mu, rho)

    def resume(self, mu: Floats, lam: Floats, rho: float) -> None:
        """Start from mu and from multipliers as `multipliers` gives them."""
        self.q[:] = lam
        self._restart(mu, rho)

    def _restart(self, mu: Floats, rho: float) -> None:
        """Start from mu and from the multipliers that q holds."""
        lists = (self.layout.var_at, self.problem.nbr_ptr, self.layout.nbr_q)
        K.set_rho(self.par, rho)
        self.mu[:] = mu
        self._settle_isolated()
        self.par[K.LAST_L], self.par[K.LAST_RC] = 1.0, rho * self.par[K.C]
        variable_steps.restart(self.par, *lists, self.mu, self.q)
        self.lam_v[:] = 0.0
        if self.par[K.SPHERE] > 0:
            self.target2 = self._targets(int(self.par[K.SPHERE]))
            variable_steps.sphere_norms(
                self.chunk_size, self.par, self.layout.var_at, self.problem.nbr_ptr, self.mu, self.lam_v, self.norm2
            )
            variable_steps.sphere_scales(self.norm2, self.target2, self.blocks, self.scale)

    def change_rho(self, rho: float) -> None:
        """Go on with another penalty; the multipliers stay as they are, for q is read with the last iteration's."""
        K.set_rho(self.par, rho)

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

    @property
    def at_centre(self) -> bool:
        """Whether the point to project lies at the centre of (a block's) sphere, where the projection is undefined."""
        if self.factor_sphere is not None:
            return self.factor_sphere.at_centre
        if self.blocks:
            return bool(np.any((self.norm2 == 0.0) & (self.target2 > 0.0)))
        return bool(self.norm2.sum() == 0.0)

    # -- iterations -------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Do n iterations; the last one leaves s for `look`."""
        only_pairs = list(self.tasks) == [K.PAIR2_COMPACT] and self.all_compact
        if only_pairs and self.factor_sphere is None and self.problem.n_factors < ONE_CALL_BELOW:
            self._run_pairs(n)
            return
        for last in [False] * (n - 1) + [True]:
            self._iteration(last or self.factor_sphere is not None)
            if self.factor_sphere is not None:
                self.factor_sphere.update(self)

    def _run_pairs(self, n: int) -> None:
        lay, nbr_ptr = self.layout, self.problem.nbr_ptr
        variable_steps.iterate_pairs(
            n, self.k, self.update_every, self.freeze_after, self.par, self.tasks[K.PAIR2_COMPACT], lay.batch,
            lay.edge_mu, self.q, lay.strength, self.chunk_size, self.blocks, self.target2, self.scale,
            self.norm2, self.off2, lay.var_at, nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.lam_v,
        )  # fmt: skip
        self.k += n

    def _iteration(self, keep: bool) -> None:
        """One iteration: the paper's updates in its order, upsilon and lam_i within the variable step."""
        self.update_mu_f(keep)
        self.update_mu_v()
        K.advance_rho(self.par, self.k, self.update_every)
        if self.par[K.SPHERE] > 0:
            variable_steps.sphere_scales(self.norm2, self.target2, self.blocks, self.scale)
        self.k += 1

    def update_mu_f(self, keep: bool) -> None:
        """Factor step, kind by kind."""
        lay, problem = self.layout, self.problem
        theta, table_at = problem.graph.theta_t, problem.table_at
        pairs = (lay.batch, self.par, lay.edge_mu, self.mu, self.q)
        head = (*pairs, self.s, keep)
        warm = (self.slots, self.x, self.count)
        for kind, tasks in self.tasks.items():
            if kind == K.PAIR2_COMPACT:
                self._share(factor_steps.pair2_compact_step, tasks, *pairs, lay.strength)
            elif kind == K.PAIR2:
                self._share(factor_steps.pair2_step_full, tasks, *head, theta, table_at)
            elif kind == K.TRIPLE2:
                self._share(factor_steps.triple2_step, tasks, *head, theta, table_at, *warm, scratch=(0,))
            elif kind == K.FOREST:
                self._share(factor_steps.forest_step, tasks, *head, theta, table_at, lay.shape, *warm, scratch=(0, 1))
            else:
                rest = (theta, table_at, lay.shape, lay.config, self.pull)
                self._share(factor_steps.dense_step, tasks, *head, *rest, *warm, scratch=(0, 2))

    def update_mu_v(self) -> None:
        """Variable step, chunk by chunk."""
        lay = self.layout
        step = variable_steps.compact_variable_step if self.all_compact else variable_steps.variable_step
        next_b = K.next_sphere_b(self.par, self.k, self.update_every)
        rest = (
            self.chunk_size, self.par, next_b, self.k >= self.freeze_after, self.scale, self.norm2, self.off2,
            lay.var_at, self.problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.lam_v, self.q,
        )  # fmt: skip
        self._all([(step, (first, last, *rest)) for first, last in _spans(len(self.norm2), self.threads)])

    def _share(self, step: Callable[..., Any], tasks: Ints, *rest: Any, scratch: tuple[int, ...] = ()) -> None:
        """Run a kernel on its tasks, a fair share of them per thread, each with its own scratch arrays."""
        parts = [tasks] if self.pool is None else [tasks[t :: self.threads].copy() for t in range(self.threads)]
        calls = []
        for part, mine in zip(parts, self.scratch, strict=True):
            if len(part):
                calls.append((step, (part, *rest, *(mine[which] for which in scratch))))
        self._all(calls)

    def _all(self, calls: list[tuple[Callable[..., Any], tuple[Any, ...]]]) -> None:
        """Make all calls, the first of them on this thread."""
        futures = [self.pool.submit(call, *arguments) for call, arguments in calls[1:]] if self.pool else []
        for call, arguments in calls[: 1 if self.pool else None]:
            call(*arguments)
        for future in futures:
            future.result()

    # -- looking ----------------------------------------------------------------------------------------------------

    def look(self) -> Look:
        """Decode labels, and sum up bound, value, relaxed value and residuals."""
        lay, problem, graph = self.layout, self.problem, self.problem.graph
        n = problem.n_vars
        allowed = problem.feasible_v
        changed = looks.decode(0, n, lay.var_at, graph.card, self.mu, graph.var_ptr, allowed, self.labels)
        of_vars = np.zeros(4)
        looks.look_at_variables(
            0, n, self.par, lay.var_at, graph.card, problem.nbr_ptr, lay.nbr_q, lay.theta, self.mu, self.q, self.labels,
            of_vars,
        )  # fmt: skip
        found = np.concatenate([np.zeros((0, 5)), *self._look_at_factors()])
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

    def _look_at_factors(self) -> list[Floats]:
        """Sums of every task, kind by kind."""
        lay, problem = self.layout, self.problem
        head = (lay.batch, self.par, lay.edge_mu, lay.edge_var, self.labels, self.mu, self.q)
        tables = (self.s, problem.graph.theta_t, problem.table_at, lay.shape, self.slots, self.x, self.count)
        every = []
        for kind, tasks in self.tasks.items():
            found = np.zeros((len(tasks), 5))
            every.append(found)
            compact = kind == K.PAIR2_COMPACT
            calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []
            for span, scratch in zip(_spans(len(tasks), self.threads), self.scratch, strict=True):
                mine = slice(*span)
                if compact:
                    calls.append((looks.look_at_pairs, (tasks[mine], *head, lay.strength, found[mine])))
                else:
                    calls.append((looks.look_at_tables, (tasks[mine], *head, *tables, *scratch[:2], found[mine])))
            self._all(calls)
        return every

    def variables(self) -> Floats:
        """mu_v in the problem's layout."""
        return self.expand(self.mu)

    def expand(self, values: Floats) -> Floats:
        """Marginals in the problem's layout from the kernels'."""
        graph = self.problem.graph
        if self.only_binary:
            mu_v = np.empty(2 * len(values))
            mu_v[::2] = values * -0.5 + 0.5
            mu_v[1::2] = values * 0.5 + 0.5
            return mu_v
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
        if self.only_binary:
            return np.asarray(mu_v[1::2] - mu_v[::2])
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

    def factor_marginals(self, batch: Batch, rows: slice) -> Floats:
        """mu_a of some rows of a batch, from the supports and the closed forms of the last kept iteration."""
        row = self.layout.batch[self.problem.batches.index(batch)]
        if row[K.KIND] in (K.PAIR2_COMPACT, K.PAIR2):
            return self._pair_marginals(row, batch, rows)
        width = row[K.SLOT_WIDTH]
        block = slice(row[K.SLOT_AT], row[K.SLOT_AT] + batch.n * width)
        slots = self.slots[block].reshape(batch.n, width)[rows]
        if row[K.KIND] == K.FOREST:
            slots = (slots >> 16) * batch.shape[1] + ((slots & 0xFFFF) >> 1)
        used = np.arange(width) < self.count[batch.factors][rows, None]
        factor, slot = np.nonzero(used)
        out = np.zeros((len(slots), batch.n_configs))
        out[factor, slots[factor, slot]] = self.x[block].reshape(batch.n, width)[rows][factor, slot]
        return out

    def multipliers(self) -> Floats:
        """Multipliers of every edge, in the layout of q."""
        lam = np.empty_like(self.q)
        lists = (self.layout.var_at, self.problem.nbr_ptr, self.layout.nbr_q)
        variable_steps.edge_multipliers(self.par, *lists, self.mu, self.q, lam)
        return lam

    def marginals_of(self, problem: Problem) -> FactorMarginals:
        """mu_f in the order of the problem that was given: hardening may have sorted the factors otherwise."""
        if self.problem is problem:
            return self.factor_marginals
        place = np.empty(problem.n_factors, dtype=np.int64)
        place[self.problem.order] = np.arange(problem.n_factors)
        same = place[problem.order]
        mine = ranges(self.problem.config_ptr[same], np.diff(problem.config_ptr))
        return dense(self.problem, self.factor_marginals)[mine]

    def begin_factor_sphere(self, freeze_after: int) -> None:
        """Put the sphere on the factors, as the authors' published code does."""
        self.pull = np.zeros(self.problem.n_configs)
        self.factor_sphere = FactorSphere(self, freeze_after)

    def _pair_marginals(self, row: Ints, batch: Batch, rows: slice) -> Floats:
        at, n = row[K.Q_AT], batch.n
        if row[K.KIND] == K.PAIR2_COMPACT:
            p1, p2 = 0.5 + 0.5 * self._compact_pairs(row, batch, rows)
        else:
            p1, p2 = self.s[at : at + 4 * n].reshape(n, 4)[rows, 1::2].T
        t00, t01, t10, t11 = (self.problem.graph.theta_t[batch.table_at[rows] + t] for t in range(4))
        attract = t00 + t11 - t01 - t10 >= 0
        both = np.where(attract, np.minimum(p1, p2), np.maximum(0.0, p1 + p2 - 1.0))
        return np.stack([1.0 - p1 - p2 + both, p2 - both, p1 - both, both], axis=1)

    def _compact_pairs(self, row: Ints, batch: Batch, rows: slice) -> Floats:
        """M mu_a of 2x2 factors of compact variables as differences, (2, n_rows): the factor step from where mu is."""
        found = np.empty((2, rows.stop - rows.start))
        at = row[K.FACTOR_AT] + rows.start
        strength = self.layout.strength[at : at + found.shape[1]]
        looks.pair_marginals(row, rows.start, self.par, self.layout.edge_mu, self.mu, self.q, strength, found)
        return found


def _scratch(batch: Ints) -> tuple[Floats, Ints, Floats]:
    """Scratch arrays of the factor steps for one thread: numbers, whole numbers, and a square for the dense step."""
    size = int(batch[:, [K.N_STATES, K.SLOT_WIDTH, K.ARITY]].max(initial=0)) + 9
    dense = batch[np.isin(batch[:, K.KIND], (K.DENSE, K.RIDGE))]
    width = int(dense[:, K.SLOT_WIDTH].max(initial=0))
    return np.zeros((9, size)), np.zeros((4, size), dtype=np.int64), np.zeros((width, width))


def _spans(n: int, parts: int) -> list[tuple[int, int]]:
    """Cut n things into neighbouring parts of nearly equal size."""
    return list(pairwise([n * part // parts for part in range(parts + 1)]))


def _tasks(batch: Ints) -> dict[int, Ints]:
    """(batch, begin, end) of every piece of work, by kind; the pieces are fixed, so sums over them are too."""
    tasks: dict[int, list[tuple[int, int, int]]] = {}
    for number, row in enumerate(batch):
        n = int(row[K.N])
        pieces = [(number, begin, min(begin + CHUNK, n)) for begin in range(0, n, CHUNK)]
        tasks.setdefault(int(row[K.KIND]), []).extend(pieces)
    return {kind: np.array(pieces, dtype=np.int64) for kind, pieces in tasks.items()}
