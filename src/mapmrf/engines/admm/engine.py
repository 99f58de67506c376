"""The ADMM engine on a factor graph: the state of a run, and the loop of the paper's Algorithm 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints, ranges, segment_argmax
from mapmrf.compilation.jit import predispatched
from mapmrf.engines.admm import factor_steps, measurement, variable_steps
from mapmrf.engines.admm import penalty as penalties
from mapmrf.engines.admm.constraint_steps import NO_COUNTS, CountingSteps
from mapmrf.engines.admm.factor_steps import FactorSphere
from mapmrf.engines.admm.layout import Layout, isolated
from mapmrf.engines.admm.measurement import FACTOR_SUMS, N_SUMS, NO_SUMS, FactorSums, Measurement
from mapmrf.engines.admm.penalty import PenaltyOptions, SphereKind, new_penalty, set_rho
from mapmrf.engines.admm.structs import (
    BATCH,
    Batches,
    BatchRow,
    FactorKind,
    FactorState,
    Iterates,
    Rounding,
    Scratch,
    SphereState,
    VariableArrays,
)
from mapmrf.engines.admm.tiled import LatticeSteps
from mapmrf.model.polytope import FactorMarginals, dense
from mapmrf.model.problem import Batch, Problem
from mapmrf.run.calls import check_awaited
from mapmrf.run.pool import Workers

VAR_CHUNK = 16384  # variables per chunk of a reduction; fixed, so that sums do not depend on the number of threads
CHUNK = 16384  # factors per task, fixed for the same reason
PARALLEL_FROM = 100_000  # number of factors from which threads pay off

TABLE_STEPS: dict[int, Callable[..., None]] = {
    FactorKind.TRIPLE2: factor_steps.update_triples,
    FactorKind.FOREST: factor_steps.update_forests,
    FactorKind.DENSE: factor_steps.update_dense,
    FactorKind.RIDGE: factor_steps.update_dense,
}
"""Kernels for the kinds of factors that keep supports."""


class Engine:
    """A run of ADMM.

    `configure` sets the options of a phase, `begin` or `resume` its starting point; then `run` and `measure` are called
    as often as needed. The arrays are those of `mapmrf.engines.admm.structs`.
    """

    def __init__(self, layout: Layout, options: PenaltyOptions | None = None, sphere_block: int = 0) -> None:
        problem = layout.problem
        self.layout, self.problem = layout, problem
        self.mu = np.zeros(len(layout.variables.theta))
        self.lam_v = np.zeros(len(layout.variables.theta))
        n_items = 0 if layout.counting is None else layout.counting.n_items
        self.q = np.zeros(layout.q_size + n_items)
        self.iterates = Iterates(self.mu, self.lam_v, self.q)
        keeps_copies = bool(np.any(layout.batch["kind"] == FactorKind.PAIR2))
        self.factors = FactorState(
            s=np.zeros(layout.q_size if keeps_copies else 0),
            slots=np.zeros(layout.slot_size, dtype=np.int32),
            x=np.zeros(layout.slot_size),
            n_slots=np.zeros(problem.n_factors if layout.slot_size else 0, dtype=np.int32),
            pull=np.zeros(0),
        )
        self.factor_sphere: FactorSphere | None = None
        graph = problem.graph
        self.labels: Ints = np.zeros(problem.n_vars, dtype=np.int64)
        decoded = self.labels if layout.counting is None else self.labels.copy()
        self.rounding = Rounding(graph.card, graph.var_ptr, problem.feasible_v, layout.edge_var, decoded)
        share, rows = layout.share, layout.rows
        self.own_variables = _first(layout.variables, share.n_vars)
        self.tasks = cut_tasks([row._replace(end=n) for row, n in zip(rows, share.inside, strict=True)], CHUNK)
        self.cut_tasks = cut_tasks([row._replace(begin=n) for row, n in zip(rows, share.inside, strict=True)], CHUNK)
        self.owned_tasks = cut_tasks([row._replace(end=n) for row, n in zip(rows, share.owned, strict=True)], CHUNK)
        self.all_compact = len(self.mu) == problem.n_vars
        self.workers = Workers(problem.threads if problem.n_factors >= PARALLEL_FROM else 1)
        self.scratch = [new_scratch(layout.batch) for _ in range(self.workers.n)]
        only_pairs = list(self.tasks) == [FactorKind.PAIR2_COMPACT] and not self.cut_tasks
        self.in_one_call = self.workers.n == 1 and self.all_compact and only_pairs
        self.penalty = new_penalty(PenaltyOptions())
        self.counting: CountingSteps | None = None
        if layout.counting is not None:
            self.counting = CountingSteps(layout, layout.counting, self.penalty, self.iterates)
            self.in_one_call = False
        self.lattice: LatticeSteps | None = None
        if layout.runs is not None:
            self.lattice = LatticeSteps(layout, layout.runs.arrays, self.workers, self.penalty, self.iterates)
        self.configure(options or PenaltyOptions())
        self.block = sphere_block
        n_tasks = sum(len(tasks) for tasks in self.owned_tasks.values())
        self._factor_sums: FactorSums = np.zeros(n_tasks, dtype=FACTOR_SUMS)
        self._plan()

    def close(self) -> None:
        self.workers.close()

    def adopt(self, mu: Floats, labels: Ints) -> None:
        """Store mu and labels in these arrays, which the parts of a model share."""
        self.mu, self.labels = mu, labels
        self.iterates = Iterates(mu, self.lam_v, self.q)
        self.rounding = self.rounding._replace(labels=labels)
        if self.lattice is not None:
            self.lattice.iterates = self.iterates
        self._plan()

    @property
    def idle(self) -> bool:
        """Whether there is nothing to iterate on: no factors and no constraints."""
        return self.problem.n_factors == 0 and self.counting is None

    @property
    def n_copies(self) -> int:
        """Number of rows ``mu_i(k) = copy``: edge states, and items of constraints."""
        return self.problem.n_edge_states + (0 if self.layout.counting is None else self.layout.counting.n_items)

    # -- the start of a phase -----------------------------------------------------------------------------------------

    def configure(self, options: PenaltyOptions) -> None:
        """Set the options of a phase; the multipliers are kept, as they are read with the last iteration's penalty."""
        fresh = new_penalty(options)
        fresh[["last_leak", "last_rho_c"]] = self.penalty[["last_leak", "last_rho_c"]]
        self.penalty[:] = fresh
        self.has_sphere = options.sphere != SphereKind.OFF

    def set_blocks(self, size: int) -> None:
        """Use a separate sphere for every `size` variables from the next `begin` on; 0 for one sphere over all."""
        self.block = size = min(size, len(self.labels))
        chunk_size = size or VAR_CHUNK if self.lattice is None else self.lattice.chunk_size(size)
        n_chunks = -(-self.layout.share.n_vars // chunk_size)
        zeros, ones = np.zeros((3, n_chunks)), np.ones(n_chunks)
        self.sphere = SphereState(chunk_size, size > 0, zeros[0], zeros[1], ones, zeros[2])
        arrays = self.penalty, self.sphere, self.own_variables, self.iterates
        step = variable_steps.update_compact_variables if self.all_compact else variable_steps.update_variables
        self._variable_calls = KernelCalls(step, [(*span, *arrays) for span in self.workers.spans(n_chunks)])
        if self.lattice is not None:
            self.lattice.cut(self.sphere)

    def begin(self, mu: Floats, rho: float, *, multipliers: bool = False) -> None:
        """Start from mu (in the layout of theta); all lam are 0, or kept if `multipliers`."""
        if multipliers:
            self._write_multipliers(self.q)
        else:
            self.q[:] = 0.0
        self._restart(mu, rho)

    def resume(self, mu: Floats, lam: Floats, rho: float) -> None:
        """Start from mu and from multipliers as returned by `multipliers`."""
        self.q[:] = lam
        self._restart(mu, rho)

    def _restart(self, mu: Floats, rho: float) -> None:
        """Start from mu and from the multipliers that q holds."""
        set_rho(self.penalty, rho)
        self.mu[:] = mu
        self._settle_isolated()
        self.penalty[0].last_leak, self.penalty[0].last_rho_c = 1.0, rho * self.penalty[0].c
        self._write_multipliers(self.q)  # q = rho c mu - lam is read as lam = rho c mu - q
        self.lam_v[:] = 0.0
        if self.has_sphere:
            self.sphere.target2[:] = self._targets()
            if self.counting is None:
                variable_steps.sphere_norms(self.penalty, self.sphere, self.own_variables, self.iterates)
            else:
                self.counting.sphere_norms(self.sphere)

    def _targets(self) -> Floats:
        """Return the contribution of each chunk's variables to the squared radius of the sphere."""
        card, size = self.problem.graph.card, self.sphere.chunk_size
        share = card / 4.0 if self.penalty[0].sphere == SphereKind.VARIABLES else 1.0 - 1.0 / card
        share = np.where(self.layout.width == 1, 0.5, share)
        share[isolated(self.problem)] = 0.0
        share = share[: self.layout.share.n_vars]
        return np.array([float(share[begin : begin + size].sum()) for begin in range(0, len(share), size)])

    def _settle_isolated(self) -> None:
        """Set variables without factors to their best state for good."""
        alone = isolated(self.problem)
        if len(alone) == 0:
            return
        graph, var_at = self.problem.graph, self.layout.variables.var_at
        best = segment_argmax(graph.theta_v, graph.var_ptr)[alone]
        width = self.layout.width[alone]
        self.mu[ranges(var_at[alone], width)] = 0.0
        wide = (width > 1) | (graph.card[alone] == 1)
        self.mu[var_at[alone[wide]] + best[wide]] = 1.0
        self.mu[var_at[alone[~wide]]] = 2.0 * best[~wide] - 1.0

    def begin_factor_sphere(self) -> None:
        """Put the sphere on the factors, as in the authors' published code."""
        self.factors = self.factors._replace(pull=np.zeros(self.problem.n_configs))
        self.factor_sphere = FactorSphere(self)
        self._plan_factors()

    # -- the penalty --------------------------------------------------------------------------------------------------

    @property
    def rho(self) -> float:
        """The penalty of the next iteration."""
        return float(self.penalty[0].rho)

    @property
    def last_rho(self) -> float:
        """The penalty of the last iteration."""
        return float(self.penalty[0].last_rho_c / self.penalty[0].c)

    def change_rho(self, rho: float) -> None:
        """Continue with another penalty; the multipliers are unchanged, as q is read with the last iteration's."""
        set_rho(self.penalty, rho)

    @property
    def at_centre(self) -> bool:
        """Whether the point to project is at the centre of a sphere, where the projection is undefined."""
        if self.factor_sphere is not None:
            return self.factor_sphere.at_centre(self)
        norm2, target2 = self.sphere.norm2, self.sphere.target2
        if self.sphere.blocks:
            return bool(np.any((norm2 == 0.0) & (target2 > 0.0)))
        return bool(norm2.sum() == 0.0)

    # -- iterations ---------------------------------------------------------------------------------------------------

    def run(self, n: int) -> None:
        """Run n iterations of the paper's Algorithm 1; the last one leaves s for `measure`.

        A kernel may perform more than one update where that saves a pass over memory: upsilon and lam_i are formed and
        updated in the variable step, and lam_ia is not stored at all. Models of binary pairs run the same loop in one
        call, and those in runs in one pass over memory.
        """
        if self.lattice is not None:
            self.lattice.run(n)
            return
        if self.in_one_call:
            parts = self.layout.pairs, self.sphere, self.layout.variables, self.iterates
            variable_steps.iterate_pairs(n, self.tasks[FactorKind.PAIR2_COMPACT], self.penalty, *parts)
            return
        for left in range(n, 0, -1):
            self.update_upsilon()
            self.update_mu_f(keep=left == 1)
            self.update_mu_v()
            self.update_lam()
            self.update_rho()

    def update_upsilon(self) -> None:
        """Algorithm 1, upsilon = P_S(c mu_v + lam_v / rho): the projection's scale; the variable step applies it."""
        if self.has_sphere:
            sphere = self.sphere
            variable_steps.update_upsilon(sphere.norm2, sphere.target2, sphere.scale, sphere.blocks)
        elif self.factor_sphere is not None:
            self.factor_sphere.update_upsilon(self)

    def update_mu_f(self, keep: bool) -> None:
        """Algorithm 1, mu_a = argmin over the simplex of -theta_a . mu_a + rho/2 sum_i |t_ia - M_ia mu_a|^2.

        The targets are t_ia = c mu_i + lam_ia / rho.
        """
        if self.lattice is not None:
            self.lattice.update_mu_f()
            return
        self.update_inside(keep)
        self.update_cut(keep)
        if self.counting is not None:
            self.counting.update_mu_f()

    def update_inside(self, keep: bool) -> None:
        """Take the factor step of the factors without variables of another part; tiles do that on the way."""
        if self.lattice is not None:
            return
        self._factor_step(self._pair_calls, self._factor_calls, keep)

    def update_cut(self, keep: bool) -> None:
        """Take the factor step of all others, once the copies of their variables have arrived."""
        if self.lattice is not None:
            self.lattice.update_cut()
            return
        self._factor_step(self._cut_pair_calls, self._cut_calls, keep)

    def update_boundary(self) -> None:
        """Take the variable step of at least the variables of which other parts have copies."""
        if self.lattice is not None:
            self.lattice.update_boundary()
        else:
            self.update_mu_v()

    def update_interior(self) -> None:
        """Take the variable step of all others."""
        if self.lattice is not None:
            self.lattice.update_interior()

    def _factor_step(self, pair_calls: KernelCalls, factor_calls: list[KernelCalls], keep: bool) -> None:
        pair_calls.run(self.workers)
        in_rounds = len(factor_calls) > len(TABLE_STEPS) + 1  # more calls than kinds of factors
        for calls in factor_calls:
            if in_rounds:
                check_awaited()
            if calls.kernel is factor_steps.update_pairs:
                self.workers.run(calls.kernel, [(*arguments, keep) for arguments in calls.arguments])
            else:
                calls.run(self.workers)

    def update_mu_v(self) -> None:
        """Algorithm 1, mu_i = [theta_i + c (rho upsilon_i - lam_i + sum_a (rho M_ia mu_a - lam_ia))] / denominator.

        The denominator is epsilon (d_i + 2) + c^2 rho (d_i + 1). The same pass updates the sphere's multiplier,
        lam_i += rho (c mu_i - upsilon_i).
        """
        if self.lattice is not None:
            self.lattice.update_mu_v()
            return
        if self.counting is not None:
            self.counting.update_mu_v(self.sphere)
            return
        self._variable_calls.run(self.workers)

    def update_lam(self) -> None:
        """Algorithm 1, lam_ia += rho (c mu_i - M_ia mu_a): implicit, since lam_ia = rho c mu_i - q is read off q."""
        penalties.update_lam(self.penalty)
        if self.factor_sphere is not None:
            self.factor_sphere.update_lam(self)

    def update_rho(self) -> None:
        """Algorithm 1, rho = min(eta rho, rho_upper)."""
        penalties.update_rho(self.penalty)

    def _plan(self) -> None:
        """Plan all kernel calls, after an array was replaced."""
        self.set_blocks(self.block)
        self._pair_calls, self._cut_pair_calls = self._plan_pairs(self.tasks), self._plan_pairs(self.cut_tasks)
        self._plan_factors()

    def _plan_factors(self) -> None:
        """Plan all calls that involve `factors`."""
        self._factor_calls, self._cut_calls = (
            self._plan_factor_steps(self.tasks),
            self._plan_factor_steps(self.cut_tasks),
        )
        self._measurement_calls = self._plan_measurement()

    def _plan_pairs(self, tasks: dict[int, Batches]) -> KernelCalls:
        """Plan the calls for the compact 2x2 factors, with an equal share of the work each."""
        arrays = self.penalty, self.layout.pairs, self.iterates
        shares = self._shares(tasks.get(FactorKind.PAIR2_COMPACT))
        return KernelCalls(factor_steps.update_compact_pairs, [(mine, *arrays) for mine in shares])

    def _plan_factor_steps(self, tasks: dict[int, Batches]) -> list[KernelCalls]:
        """Plan the kernel of every other kind and its calls; those of `update_pairs` lack their last argument."""
        arrays = self.penalty, self.layout.tables, self.iterates, self.factors
        plan: list[KernelCalls] = []
        for kind, pieces in tasks.items():
            if kind == FactorKind.PAIR2:
                plan.append(KernelCalls(factor_steps.update_pairs, [(mine, *arrays) for mine in self._shares(pieces)]))
            elif kind != FactorKind.PAIR2_COMPACT:
                step = TABLE_STEPS[kind]
                if kind == FactorKind.FOREST and len(self.layout.tables.forms.of):
                    step = factor_steps.update_structured
                for part in rounds_of(pieces, self.workers.n):
                    shares = zip(self._shares(part), self.scratch, strict=True)
                    plan.append(KernelCalls(step, [(mine, *arrays, room) for mine, room in shares]))
        return plan

    def _shares(self, tasks: Batches | None) -> list[Batches]:
        """Return every thread's share of the work on a kind."""
        return [] if tasks is None else [tasks[t :: self.workers.n].copy() for t in range(self.workers.n)]

    # -- measurement --------------------------------------------------------------------------------------------------

    def measure(self) -> Measurement:
        """Decode labels, and sum up bound, value, relaxed value and residuals."""
        changed, variables = self._decode(), self.own_variables
        counted = NO_COUNTS
        if self.counting is not None:
            variables = variables._replace(theta=variables.theta.copy())
            counted = self.counting.measure(variables.theta)
        if self.lattice is not None:
            of_vars, records = NO_SUMS, self.lattice.measure(self.labels)
        else:
            own = self.rounding._replace(labels=self.rounding.labels[: self.layout.share.n_vars])
            of_vars = measurement.measure_variables(self.penalty, variables, self.iterates, own)
            for calls in self._measurement_calls:
                calls.run(self.workers)
            records = self._factor_sums
        found = records.view((np.float64, N_SUMS))  # a column per field
        bound, value, relaxed = (self.layout.constant + np.array(of_vars[:3]) + found[:, :3].sum(axis=0)).tolist()
        if self.counting is not None:
            value = self.counting.round(self.rounding.labels, self.variables(), self.labels)
        return Measurement(
            bound=bound + counted.bound,
            value=value,
            relaxed=relaxed + counted.relaxed,
            primal2=float(found[:, 3].sum()) + counted.primal2,
            primal_max=max(float(found[:, 4].max(initial=0.0)), counted.primal_max),
            sphere2=float(self.sphere.off2.sum()) if self.factor_sphere is None else self.factor_sphere.off2,
            integrality=max(of_vars.integrality, float(found[:, 5].max(initial=0.0)), counted.integrality),
            changed=changed,
        )

    def _decode(self) -> int:
        """Round mu to labels, including copies of other parts' variables; return how many own labels changed."""
        n, var_at, rounding = self.layout.share.n_vars, self.layout.variables.var_at, self.rounding
        own, rest = rounding.labels[:n], slice(n, None)
        changed = measurement.decode(var_at, self.mu, rounding._replace(labels=own))
        if n < len(self.labels):
            copies = rounding._replace(
                card=rounding.card[rest], var_ptr=rounding.var_ptr[rest], labels=self.labels[rest]
            )
            measurement.decode(var_at[rest], self.mu, copies)
        return int(changed)

    def inspect(self) -> Measurement:
        """Measure without storing new labels: `changed` of the next measurement is not affected."""
        before, decoded = self.labels.copy(), self.rounding.labels.copy()
        found = self.measure()
        self.labels[:], self.rounding.labels[:] = before, decoded
        return found

    def _plan_measurement(self) -> list[KernelCalls]:
        """Plan the kernel of every kind and its calls; each writes its own part of `_factor_sums`."""
        pairs = self.penalty, self.layout.pairs, self.iterates, self.rounding
        tables = self.penalty, self.layout.tables, self.iterates, self.factors, self.rounding
        plan: list[KernelCalls] = []
        at = 0
        for kind, tasks in self.owned_tasks.items():
            found = self._factor_sums[at : at + len(tasks)]
            at += len(tasks)
            spans = [slice(*span) for span in self.workers.spans(len(tasks))]
            if kind == FactorKind.PAIR2_COMPACT:
                of_pairs = [(tasks[mine], *pairs, found[mine]) for mine in spans]
                plan.append(KernelCalls(measurement.measure_compact_pairs, of_pairs))
            else:
                shares = zip(spans, self.scratch, strict=True)
                of_tables = [(tasks[mine], *tables, room, found[mine]) for mine, room in shares]
                plan.append(KernelCalls(measurement.measure_tables, of_tables))
        return plan

    def variables(self) -> Floats:
        """Return mu_v in the problem's layout."""
        return self.layout.expand(self.mu)

    def multipliers(self) -> Floats:
        """Return the multipliers of every edge, in the layout of q."""
        lam = np.empty_like(self.q)
        self._write_multipliers(lam)
        return lam

    def _write_multipliers(self, lam: Floats) -> None:
        """Write the multipliers of every edge, in the layout of q, which may be the output itself."""
        if self.lattice is not None:
            self.lattice.multipliers(lam)
        else:
            variable_steps.edge_multipliers(self.penalty, self.layout.variables, self.iterates, lam)
            if self.counting is not None:
                self.counting.multipliers(lam)

    def factor_marginals(self, batch: Batch, rows: slice) -> Floats:
        """Return mu_a of some rows of a batch, from the supports and closed forms of the last kept iteration."""
        row = self.layout.row_of(batch)
        if row.kind in (FactorKind.PAIR2_COMPACT, FactorKind.PAIR2):
            return self._pair_marginals(batch, rows)
        block = slice(row.slot_at, row.slot_at + batch.n * row.slot_width)
        slots = self.factors.slots[block].reshape(batch.n, row.slot_width)[rows]
        if row.kind == FactorKind.FOREST:
            slots = (slots >> 16) * batch.shape[1] + ((slots & 0xFFFF) >> 1)
        used = np.arange(row.slot_width) < self.factors.n_slots[batch.factors][rows, None]
        factor, slot = np.nonzero(used)
        out = np.zeros((len(slots), batch.n_configs))
        out[factor, slots[factor, slot]] = self.factors.x[block].reshape(batch.n, row.slot_width)[rows][factor, slot]
        return out

    def _pair_marginals(self, batch: Batch, rows: slice) -> Floats:
        """Return mu_a of 2x2 factors from its marginals; compact ones take those of the next step at mu."""
        row, n = self.layout.row_of(batch), batch.n
        if row.kind == FactorKind.PAIR2_COMPACT:
            layout, found = self.layout, np.empty((2, rows.stop - rows.start))
            at = np.ascontiguousarray(layout.variables.var_at[batch.scope[rows].T], dtype=np.int64)
            places, coupling = layout.pair_places(batch, rows), layout.couplings(batch, rows)
            measurement.pair_marginals(places, at, coupling, self.penalty, self.iterates, found)
            p1, p2 = 0.5 + 0.5 * found
        else:
            p1, p2 = self.factors.s[row.q_at : row.q_at + 4 * n].reshape(n, 4)[rows, 1::2].T
        t00, t01, t10, t11 = batch.tables(self.problem.graph.theta_t, rows).T
        attract = t00 + t11 - t01 - t10 >= 0
        both = np.where(attract, np.minimum(p1, p2), np.maximum(0.0, p1 + p2 - 1.0))
        return np.stack([1.0 - p1 - p2 + both, p2 - both, p1 - both, both], axis=1)

    def marginals_of(self, problem: Problem) -> FactorMarginals:
        """Return mu_f in the order of the given problem: hardening may have reordered the factors."""
        if self.problem is problem:
            return self.factor_marginals
        place = np.empty(problem.n_factors, dtype=np.int64)
        place[self.problem.order] = np.arange(problem.n_factors)
        same = place[problem.order]
        mine = ranges(self.problem.config_ptr[same], np.diff(problem.config_ptr))
        return dense(self.problem, self.factor_marginals)[mine]


def _first(variables: VariableArrays, n: int) -> VariableArrays:
    return variables._replace(var_at=variables.var_at[: n + 1], nbr_ptr=variables.nbr_ptr[: n + 1])


# -- Work of the ADMM threads: pieces of batches, and scratch for each thread -----------------------------------------


class KernelCalls:
    """Repeated calls of a kernel, planned once, since planning takes as long as an iteration on a small model.

    Attributes
    ----------
    kernel
        The kernel.
    arguments
        The arguments of every call, all of the same types.
    """

    def __init__(self, kernel: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
        self.kernel = kernel
        self.arguments = arguments
        self._call = predispatched(kernel)

    def run(self, workers: Workers) -> None:
        """Make all calls, distributed over the threads."""
        workers.run(self._call, self.arguments)


def new_scratch(batch: Batches) -> Scratch:
    """Allocate scratch for one thread's factor steps."""
    widest = max((int(batch[name].max(initial=0)) for name in ("n_states", "slot_width", "arity")), default=0)
    dense_ones = batch[np.isin(batch["kind"], (FactorKind.DENSE, FactorKind.RIDGE))]
    width = int(dense_ones["slot_width"].max(initial=0))
    return Scratch(np.zeros((9, widest + 9)), np.zeros((4, widest + 9), dtype=np.int64), np.zeros((width, width)))


def cut_tasks(rows: list[BatchRow], size: int) -> dict[int, Batches]:
    """Divide batches into tasks of `size` factors, by kind of factor; they are fixed, so sums over them are too."""
    tasks: dict[int, list[BatchRow]] = {}
    for row in rows:
        pieces = [row._replace(begin=at, end=min(at + size, row.end)) for at in range(row.begin, row.end, size)]
        if pieces:
            tasks.setdefault(row.kind, []).extend(pieces)
    return {kind: np.array(pieces, dtype=BATCH) for kind, pieces in tasks.items()}


# -- Long factor steps in rounds, between which the run can be stopped ------------------------------------------------


ROUND_WORK = 100_000_000
"""Maximum number of operations per round and thread: a tenth of a second when all supports are computed afresh."""


def work_of(tasks: Batches) -> Ints:
    """Return the operations that a factor of each task may take: its support may grow entry by entry up to its states.

    For each entry the whole table is scanned, and a dense subproblem factorises its matrix.
    """
    states = tasks["n_states"]
    dense = np.isin(tasks["kind"], (FactorKind.DENSE, FactorKind.RIDGE))
    found: Ints = states * (tasks["n_configs"] * tasks["arity"] + np.where(dense, states**3 // 6, states))
    return found


def rounds_of(tasks: Batches, threads: int) -> list[Batches]:
    """Divide the tasks of one kind into rounds of bounded work for all threads, splitting large tasks."""
    work = work_of(tasks)
    if np.sum(work * (tasks["end"] - tasks["begin"])) <= ROUND_WORK * threads:
        return [tasks]
    rounds: list[list[np.record]] = [[]]
    left = ROUND_WORK * threads
    for task, each in zip(tasks, work.tolist(), strict=True):
        size = max(1, ROUND_WORK // each)
        for begin in range(task.begin, task.end, size):
            piece = task.copy()
            piece.begin, piece.end = begin, min(begin + size, task.end)
            done = each * (piece.end - piece.begin)
            if rounds[-1] and done > left:
                rounds.append([])
                left = ROUND_WORK * threads
            rounds[-1].append(piece)
            left -= done
    return [np.array(pieces, dtype=BATCH) for pieces in rounds]
