"""The factor and variable steps of ADMM by index arrays, for any model: kernel calls on pieces of its batches.

Constraints are counting factors beside the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.compilation.jit import bare, predispatched
from mapmrf.engines.admm import factor_steps, variable_steps
from mapmrf.engines.admm.layout import Layout
from mapmrf.engines.admm.measurement import (
    Sums,
    measure_compact_pairs,
    measure_tables,
    measure_variables,
    new_sums,
    total,
)
from mapmrf.engines.admm.structs import (
    BATCH,
    Batches,
    BatchRow,
    FactorKind,
    ItemArrays,
    Iterates,
    Rounding,
    Scratch,
    SphereState,
    TableArrays,
)
from mapmrf.engines.admm.variable_steps import item_multiplier, item_value
from mapmrf.engines.constraint_factors.model import CountingFactors
from mapmrf.engines.constraint_factors.projection_kernels import project
from mapmrf.engines.constraint_factors.values import GroupScores, LegalRounding, best_value
from mapmrf.model.graph import ROUND_OFF
from mapmrf.run.clock import check_awaited
from mapmrf.run.pool import Workers

VAR_CHUNK = 16384  # variables per chunk of a reduction; fixed, so that sums do not depend on the number of threads
CHUNK = 16384  # factors per task, fixed for the same reason

TABLE_STEPS: dict[int, Callable[..., None]] = {
    FactorKind.PAIR2: factor_steps.update_pairs,
    FactorKind.TRIPLE2: factor_steps.update_triples,
    FactorKind.FOREST: factor_steps.update_forests,
    FactorKind.DENSE: factor_steps.update_dense,
    FactorKind.RIDGE: factor_steps.update_dense,
}
"""The kernels of all kinds of factors but compact pairs."""


class IndexedSteps:
    """How an engine takes the steps of an iteration, and measures; `TiledSteps` has the same functions.

    A part of a larger model has `cut_tasks`, the factors with variables of other parts, and counts `owned_tasks`.
    `boundary` are the variables of which other parts have copies.
    """

    def __init__(
        self, layout: Layout, workers: Workers, iterates: Iterates, tables: TableArrays, rounding: Rounding
    ) -> None:
        self.layout, self.workers = layout, workers
        self.iterates, self.tables, self.rounding = iterates, tables, rounding
        self.boundary: Ints = np.zeros(0, dtype=np.int64)
        share, rows = layout.share, layout.rows
        self.tasks = cut_tasks([row._replace(end=n) for row, n in zip(rows, share.inside, strict=True)], CHUNK)
        self.cut_tasks = cut_tasks([row._replace(begin=n) for row, n in zip(rows, share.inside, strict=True)], CHUNK)
        self.owned_tasks = cut_tasks([row._replace(end=n) for row, n in zip(rows, share.owned, strict=True)], CHUNK)
        self.all_compact = bool(np.all(layout.width == 1)) and layout.items is None
        self.scratch = [new_scratch(layout.batch) for _ in range(workers.n)]

    @property
    def chunk_size(self) -> int:
        """Number of variables per chunk of a sphere over all variables."""
        return VAR_CHUNK

    def plan(self, sphere: SphereState) -> None:
        """Plan all kernel calls for this sphere; also after an array was replaced."""
        self.sphere = sphere
        inputs = sphere, self.layout.own_variables
        spans = self.workers.spans(len(sphere.norm2))
        if self.all_compact:
            compact = [(*span, *inputs, self.iterates) for span in spans]
            self._variable_calls = KernelCalls(variable_steps.update_compact_variables, compact)
        else:
            any_width = [(*span, *inputs, self.layout.items, self.iterates) for span in spans]
            self._variable_calls = KernelCalls(variable_steps.update_variables, any_width)
        self._factor_calls, self._cut_calls = self._plan_factors(self.tasks), self._plan_factors(self.cut_tasks)
        self._plan_measurement()

    def _plan_factors(self, tasks: dict[int, Batches]) -> list[KernelCalls]:
        """Plan the kernel of every kind of factor and its calls, with an equal share of the work each."""
        threads = range(self.workers.n)
        pairs, tables = (self.layout.pairs, self.iterates), (self.tables, self.iterates)
        plan: list[KernelCalls] = []
        for kind, pieces in tasks.items():
            if kind == FactorKind.PAIR2_COMPACT:
                of_pairs = [(pieces[t :: self.workers.n].copy(), *pairs) for t in threads]
                plan.append(KernelCalls(factor_steps.update_compact_pairs, of_pairs))
                continue
            step = TABLE_STEPS[kind]
            if kind == FactorKind.FOREST and len(self.tables.forms.of):
                step = factor_steps.update_structured
            for part in rounds_of(pieces, self.workers.n):
                of_tables = [(part[t :: self.workers.n].copy(), *tables, self.scratch[t]) for t in threads]
                plan.append(KernelCalls(step, of_tables))
        return plan

    def _plan_measurement(self) -> None:
        """Plan the measurement of every kind of factor; each call writes its own part of the sums."""
        self._sums = new_sums(sum(len(tasks) for tasks in self.owned_tasks.values()))
        pairs = self.layout.pairs, self.iterates, self.rounding
        tables = self.tables, self.iterates, self.rounding
        self._measurement_calls: list[KernelCalls] = []
        at = 0
        for kind, tasks in self.owned_tasks.items():
            found = self._sums[at : at + len(tasks)]
            at += len(tasks)
            spans = [slice(*span) for span in self.workers.spans(len(tasks))]
            if kind == FactorKind.PAIR2_COMPACT:
                of_pairs = [(tasks[mine], *pairs, found[mine]) for mine in spans]
                self._measurement_calls.append(KernelCalls(measure_compact_pairs, of_pairs))
            else:
                shares = zip(spans, self.scratch, strict=True)
                of_tables = [(tasks[mine], *tables, room, found[mine]) for mine, room in shares]
                self._measurement_calls.append(KernelCalls(measure_tables, of_tables))

    # -- one iteration ------------------------------------------------------------------------------------------------

    def iterate(self, n: int) -> bool:
        """Run n iterations in one call if the model is so simple; return whether it is: binary pairs and no threads."""
        if list(self.tasks) != [FactorKind.PAIR2_COMPACT] or self.cut_tasks:
            return False
        if self.workers.n > 1 or not self.all_compact:
            return False
        parts = self.layout.pairs, self.sphere, self.layout.variables, self.iterates
        variable_steps.iterate_pairs(n, self.tasks[FactorKind.PAIR2_COMPACT], *parts)
        return True

    def update_mu_f(self) -> None:
        """Take the factor step."""
        self.update_inside()
        self.update_cut()

    def update_inside(self) -> None:
        """Take the factor step of the factors without variables of another part."""
        self._take(self._factor_calls)

    def update_cut(self) -> None:
        """Take the factor step of all others, once the copies of their variables have arrived."""
        self._take(self._cut_calls)

    def _take(self, plan: list[KernelCalls]) -> None:
        in_rounds = len(plan) > len(FactorKind)
        for calls in plan:
            if in_rounds:
                check_awaited()
            calls.run(self.workers)

    def update_mu_v(self) -> None:
        """Take the variable step."""
        self._variable_calls.run(self.workers)

    def update_boundary(self) -> None:
        """Take the variable step of at least the variables of which other parts have copies."""
        self.update_mu_v()

    def update_interior(self) -> None:
        """Take the variable step of all others."""

    # -- measurement --------------------------------------------------------------------------------------------------

    def measure(self, labels: Ints) -> Floats:
        """Return the sums of a measurement over all factors and variables; `labels` were rounded from mu."""
        return self.measured(self.layout.own_variables.theta)

    def measured(self, theta: Floats) -> Floats:
        """Return these sums for other unary potentials."""
        variables, of_variables = self.layout.own_variables._replace(theta=theta), new_sums()
        measure_variables(variables, self.iterates, self.rounding, of_variables)
        for calls in self._measurement_calls:
            calls.run(self.workers)
        return total(self.layout.constant, of_variables, self._sums)

    def write_multipliers(self, lam: Floats) -> None:
        """Write the multipliers of every edge, in the layout of q, which may be the output itself."""
        layout = self.layout
        variable_steps.write_multipliers(layout.variables, layout.items, self.iterates, lam)


# -- Work of the ADMM threads: pieces of batches, and scratch for each thread -----------------------------------------


class KernelCalls:
    """Repeated calls of a kernel, planned once, since planning takes as long as an iteration on a small model.

    The arguments of all calls are of the same types.
    """

    def __init__(self, kernel: Callable[..., None], arguments: list[tuple[Any, ...]]) -> None:
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


# -- Constraints ------------------------------------------------------------------------------------------------------


class ConstrainedSteps(IndexedSteps):
    """The steps of an engine on a model with constraints."""

    def __init__(self, layout: Layout, *state: Any) -> None:
        super().__init__(layout, *state)
        assert layout.counting is not None
        assert layout.items is not None
        model = layout.counting
        self.counting, self.items = model.factors, layout.items
        self.state = CountingState(
            scores=np.zeros(model.n_items),
            z=np.zeros(model.n_items),
            violation=np.zeros(model.n_factors),
            off=np.where(model.factors.complete, -np.inf, 0.0),
        )
        self.legal = LegalRounding(layout.problem.graph, model)

    def update_mu_f(self) -> None:
        super().update_mu_f()
        update_counting(self.counting, self.items, self.iterates, self.state)

    def measure(self, labels: Ints) -> Floats:
        """Return the sums; `labels` become the rounded ones, or other ones that satisfy all constraints."""
        theta, own = self.layout.own_variables.theta.copy(), new_sums()
        measure_counting(self.counting, self.items, self.iterates, self.state, theta, own)
        sums, counted = self.measured(theta), own[0]
        graph = self.layout.problem.graph
        labels[:] = self.rounding.labels
        value = graph.value(labels)
        legal = self.legal.round(self.layout.expand(self.iterates.mu)) if value == -np.inf else None
        if legal is not None:
            labels[:] = legal
            value = graph.value(labels)
        bound, _, relaxed, primal2, primal_max, integrality = sums.tolist()
        return np.array(
            [
                bound + counted.bound,
                value,
                relaxed + counted.relaxed,
                primal2 + counted.primal2,
                max(primal_max, counted.primal_max),
                max(integrality, counted.integrality),
            ]
        )


class CountingState(NamedTuple):
    """State of counting factors: targets, copies, violations, and zero scores."""

    scores: Floats
    z: Floats
    violation: Floats
    off: Floats


@bare
def update_counting(factors: CountingFactors, items: ItemArrays, iterates: Iterates, state: CountingState) -> None:
    """Take the factor step: z = argmin over the hull of penalty v + rho/2 |t - z|^2, t = c mu + lam / rho."""
    p = iterates.penalty[0]
    rho, c, target_lam, relax = p.rho, p.c, p.target_lam, p.relaxation
    q, scores, z = iterates.q[items.q_at :], state.scores, state.z
    for f in range(len(factors.kind)):
        begin, end = factors.item_ptr[factors.group_ptr[f]], factors.item_ptr[factors.group_ptr[f + 1]]
        for j in range(begin, end):
            lam = item_multiplier(j, items, iterates)
            scores[j] = c * item_value(j, items, iterates.mu) + target_lam * lam
        state.violation[f] = project(f, factors, scores, factors.penalty[f] / rho, z)
        for j in range(begin, end):
            lam = item_multiplier(j, items, iterates)
            q[j] = rho * (relax * z[j] + (1.0 - relax) * c * item_value(j, items, iterates.mu)) - lam


@bare
def measure_counting(
    factors: CountingFactors, items: ItemArrays, iterates: Iterates, state: CountingState, theta: Floats, found: Sums
) -> None:
    """Compute sums over the counting factors; subtract their multipliers from theta, which the variables' sums use.

    This is compensated in `relaxed` of these sums.
    """
    bound = relaxed = primal2 = primal_max = integrality = size = 0.0
    c, scores = iterates.penalty[0].c, state.scores
    for j in range(len(items.at)):
        here, lam = item_value(j, items, iterates.mu), item_multiplier(j, items, iterates)
        scores[j] = lam
        size += abs(lam)
        if items.sign[j] == 0.0:
            theta[items.at[j]] -= lam
            relaxed += lam * here
        else:
            theta[items.at[j]] -= items.sign[j] * lam
            relaxed += lam * (here - 0.5)
            bound -= 0.5 * lam
        off = c * here - state.z[j]
        primal2 += off * off
        primal_max = max(primal_max, abs(off))
        integrality = max(integrality, min(abs(here), abs(1.0 - here)))
    values = GroupScores(scores, state.off)
    for f in range(len(factors.kind)):
        bound += best_value(f, factors, values)
        if state.violation[f] > 0.0:
            relaxed -= factors.penalty[f] * state.violation[f]
    sums = found[0]
    sums.bound, sums.relaxed, sums.primal2 = bound + ROUND_OFF * size, relaxed, primal2
    sums.primal_max, sums.integrality = primal_max, integrality
