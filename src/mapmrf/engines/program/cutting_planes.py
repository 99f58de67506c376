"""Rounds of cutting planes with a first-order solver, for any program in spins.

A nearly optimal point violates most of the relevant cycles, and nearly optimal multipliers prove nearly the bound of
the relaxation. On large models, a round takes a small fraction of the time of the simplex method.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import ClassVar

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints, offsets
from mapmrf.engines.program.binary_program import Compact, ProductForm, Products
from mapmrf.engines.program.odd_cycle_separation import OddCycleSeparation, SeparationEffort
from mapmrf.engines.program.primal_dual import PrimalDual
from mapmrf.engines.program.program import DUAL_TOL, Program, Rows, lagrangian
from mapmrf.engines.program.solvers import PATIENCE, POLL, LPRelaxation, SolverOutcome
from mapmrf.model.problem import Problem


class Planes:
    """A relaxation with the current cuts, its solver and its bound."""

    tail: ClassVar[tuple[int, float]]
    """The rounds end when this many of them left more than this share of the gap."""
    efforts: ClassVar[tuple[SeparationEffort, ...]]
    patience: ClassVar[int]
    """Rounds in a row without new inequalities after which the next effort follows: the point may be inaccurate."""
    cycles_per_spin: ClassVar[int]  # maximum number of cycles that a round adds

    def __init__(self, form: ProductForm, separations: list[OddCycleSeparation]) -> None:
        self.form, self.solver, self.round_off = form, PrimalDual(form), form.round_off
        self._separations = separations  # further ones are tried where those before find nothing
        self.bound = math.inf  # the best upper bound so far, in log potentials
        # n_rounds, n_cuts, n_fixed: number of rounds, of inequalities added so far, and of fixed columns
        self.n_rounds = self.n_cuts = 0
        self.now = math.inf  # the bound of the last round, with the fixed columns
        self._n_quiet = self._n_closing = 0
        self._gaps: list[float] = []

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in short steps, and remove slack ones with zero multiplier."""
        solver, form = self.solver, self.form
        # a row with zero multiplier is removed if it has more slack than this
        kept = (solver.y_cut > 0) | (solver.slack() <= 0.05)
        effort = self.efforts[min(self._n_quiet // self.patience, len(self.efforts) - 1)]
        known, cut, missing = solver.cuts.only(kept), self.cut_values(), form.missing(solver.z, 2 * effort.violation)
        new = missing
        for separation in self._separations:
            yield from separation.run(cut[: len(separation.first)], effort)
            found = separation.best(self.cycles_per_spin * form.n_spins)
            new = missing.plus(form.cycles(found, separation.codes(found))).new(known)
            if new.n:
                break
        self._n_quiet = 0 if new.n else self._n_quiet + 1
        self.n_cuts += new.n
        solver.replace_cuts(kept, new)

    def cut_values(self) -> Floats:
        return self.form.cut_values(self.solver.z)

    def rounded(self) -> Ints:
        """Round the point of the last round to a labelling."""
        return self.form.rounded(self.solver.z)

    @property
    def n_fixed(self) -> int:
        return int(np.count_nonzero(self.solver.lower == self.solver.upper))

    def solve(self, value: float) -> Iterator[None]:
        """Run the iterations of a round, in short steps, given the value of the incumbent."""
        self.n_rounds += 1
        yield from self._run(60, *((300, 0.2) if self._n_quiet == 0 else (600, 0.05)), value)

    def is_closing(self, value: float, tolerance: float) -> bool:
        """Return whether the gap is nearly closed but may still contain a better labelling."""
        return self.now - value <= tolerance and self._n_closing < 4 and self.decided() is None

    def close(self, value: float) -> Iterator[None]:
        """Run more iterations in the same round."""
        self._n_closing += 1
        yield from self._run(60, 1000, 0.01, value)

    def _run(self, least: int, most: int, reduction: float, value: float) -> Iterator[None]:
        """Iterate within limits, then compute the bound and fix columns by it."""
        yield from self.solver.run(least, most, reduction, self.form.objective(value - 2 * self.round_off))
        self.now = self.form.value(self.solver.bound) + self.round_off
        self.bound = min(self.bound, self.now)
        self.fix_by_cost(value)

    def fix_by_cost(self, value: float) -> None:
        """Fix columns whose reduced cost excludes all but one of -1 and 1, given the value of a labelling."""
        solver = self.solver
        price = 2 * self.form.scale * np.abs(solver.reduced)
        free = solver.lower < solver.upper
        places = np.flatnonzero(free & (self.now - price < value - self.round_off))
        solver.fix(places, np.sign(solver.reduced[places]))

    def decided(self) -> Ints | None:
        """Return the only labelling that can be better than the one used for fixing, if all columns are fixed."""
        lower = self.solver.lower[: self.form.n_spins]
        return (lower > 0).astype(np.int64) if np.all(lower == self.solver.upper[: self.form.n_spins]) else None

    def tails_off(self, value: float) -> bool:
        """Return whether the last rounds have closed little of the gap."""
        n, gain = self.tail
        self._gaps.append(self.bound - value)
        return len(self._gaps) > n and not self._gaps[-1] < gain * self._gaps[-1 - n]


# -- Branching over cutting planes: a depth-first tree whose nodes fix spins, with one first-order solver -------------

Packed = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


OpenNode = tuple[float, Packed, Packed]  # its inherited bound, and the columns fixed at 1 and at -1 as bit sets


class PlaneTree:
    """The open nodes of a branch and bound, the next one last.

    Multipliers of one node prove bounds at any other, so that each starts from those of the last; cuts are global.
    """

    def __init__(self, planes: Planes, weight: Floats) -> None:
        self.planes = planes  # the relaxation; its columns have the bounds of the current node
        self.open: list[OpenNode] = []  # open nodes, without the current one
        self._weight = weight
        self.bound_here = planes.bound  # the bound of the current node

    def bound(self, least: float) -> float:
        """Return the bound over all open nodes and the current one, at least `least`."""
        return max(least, self.bound_here, *(bound for bound, _, _ in self.open))

    def is_slow(self, value: float) -> bool:
        """Return whether the last round has closed little of the gap at the current node."""
        before, self.bound_here = self.bound_here, min(self.bound_here, self.planes.now)
        # share of its gap that a round must close, or else its node is branched on
        return before - self.bound_here < 0.1 * (self.bound_here - value)

    def split(self) -> bool:
        """Branch on a fractional spin: replace the current node by two children; False if there is none."""
        solver, n = self.planes.solver, len(self._weight)
        spin = solver.z[:n]
        free = solver.lower[:n] < solver.upper[:n]
        if not free.any():
            return False
        # absolute value from which a spin counts as 1 or -1
        between = free & (np.abs(spin) < 0.999)
        score = np.where(between if between.any() else free, (1.0 - spin**2 + 1e-6) * self._weight, -1.0)
        i = int(np.argmax(np.round(score, 9)))
        plus, minus = solver.lower > 0, solver.upper < 0
        for near in (False, True):  # the closer one is explored next
            up = (spin[i] > 0) == near
            self.open.append((self.bound_here, _with(plus, i, up), _with(minus, i, not up)))
        return True

    def enter(self) -> None:
        self.bound_here, plus, minus = self.open.pop()
        solver = self.planes.solver
        m = len(solver.z)
        up, down = np.unpackbits(plus, count=m) == 1, np.unpackbits(minus, count=m) == 1
        solver.lower[:], solver.upper[:] = np.where(up, 1.0, -1.0), np.where(down, -1.0, 1.0)
        np.clip(solver.z, solver.lower, solver.upper, out=solver.z)

    def leave(self) -> None:
        self.bound_here = -np.inf


def _with(marks: Bools, i: int, mark: bool) -> Packed:
    changed = marks.copy()
    changed[i] |= mark
    return np.packbits(changed)


# -- Cutting planes on the product form: odd cycles of its pairs and splits -------------------------------------------

TREE_PLACES = 10_000
"""Number of configurations of all factors above which branching over products uses the first-order solver."""


class ProductPlanes(Planes):
    tail: ClassVar[tuple[int, float]] = (12, 0.95)
    # Most violated cycles are short: those near a variable are found in a hundredth of the time needed for all of them.
    efforts: ClassVar[tuple[SeparationEffort, ...]] = (
        SeparationEffort(0.15, 0.08, 0.1, 500),
        SeparationEffort(0.05, 0.03, 0.05, 1000),
        SeparationEffort(0.02, 0.005, 0.02, 5000),
        SeparationEffort(2e-3, 1e-3, 2e-3, 20_000),
    )
    patience: ClassVar[int] = 1
    cycles_per_spin: ClassVar[int] = 2

    def __init__(self, form: ProductForm) -> None:
        column, one, other = form.splits
        m = len(form.pairs)
        # Cycles of pairs are cheaper to find, and are most of those that matter.
        separations = [OddCycleSeparation(form.n_spins, one[:m], other[:m], column[:m])]
        if len(column) > m:
            separations.append(OddCycleSeparation(form.n_spins + m, one, other, column))
        super().__init__(form, separations)

    @property
    def is_decisive(self) -> bool:
        """Whether so many spins are fixed that the others should become a separate model."""
        n = self.form.n_spins
        return 2 * int(np.count_nonzero(self.solver.lower[:n] < self.solver.upper[:n])) <= n

    def tails_off(self, value: float) -> bool:
        """Return whether the last rounds have closed little of the gap, no cuts are left, or many spins are fixed."""
        is_open = np.abs(self.solver.z[: self.form.n_spins]) < 0.9
        # a branch and bound would be hopeless; rounds are better then
        is_far = self.form.blocks.ptr[-1] > TREE_PLACES and float(np.mean(is_open)) > 0.1
        slow = super().tails_off(value) and not is_far
        return slow or self._n_quiet > len(self.efforts) or self.is_decisive

    @property
    def weight(self) -> Floats:
        column = self.form.blocks.column
        return np.bincount(column[column < self.form.n_spins], minlength=self.form.n_spins).astype(np.float64)

    def excluded(self) -> Bools:
        """States, two per variable, that are excluded from labellings better than the one used for fixing columns."""
        n = self.form.n_spins
        return np.stack([self.solver.lower[:n] > 0, self.solver.upper[:n] < 0], axis=1).ravel()

    def strengthened(self) -> Products:
        """Return the 0/1 program with the cuts of non-zero multiplier, and with the fixed columns."""
        solver = self.solver
        return Products.of(self.form, solver.cuts.only(solver.y_cut > 0), solver.lower, solver.upper)


# -- Cutting planes on a compact program in spins: odd cycles, and missing rows of pairs ------------------------------


class SpinPlanes(Planes):
    tail: ClassVar[tuple[int, float]] = (8, 0.8)
    efforts: ClassVar[tuple[SeparationEffort, ...]] = (
        SeparationEffort(0.05, 0.03, 0.05),
        SeparationEffort(0.02, 0.005, 0.02),
        SeparationEffort(2e-3, 1e-3, 2e-3),
    )
    patience: ClassVar[int] = 2
    cycles_per_spin: ClassVar[int] = 1

    def __init__(self, compact: Compact) -> None:
        self.compact = compact
        separation = OddCycleSeparation(compact.n, compact.first, compact.second)
        super().__init__(ProductForm.of_pairs(compact), [separation])

    def cut_values(self) -> Floats:
        return self.compact.cut_values(self.compact.of_spins(self.solver.z))

    def strengthened(self) -> Program:
        """Return the compact program with the cuts of non-zero multiplier, and with the fixed variables."""
        solver, program, n = self.solver, self.compact.program, self.compact.n
        rows = program.rows.plus(self.compact.rows_of_spins(solver.cuts.only(solver.y_cut > 0)))
        lower, upper = program.lower.copy(), program.upper.copy()
        lower[:n], upper[:n] = (1 + solver.lower[:n]) / 2, (1 + solver.upper[:n]) / 2
        return dataclasses.replace(program, lower=lower, upper=upper, rows=rows)


# -- Cutting planes on the compact program: rounds of odd-cycle inequalities on its linear relaxation -----------------

TIGHT = 1e-6  # slack above which a row is not tight


class CuttingPlanes:
    """The linear relaxation with the current cuts, its point and its bound; it may continue from the quick rounds."""

    def __init__(self, compact: Compact, seed: int, quick: SpinPlanes | None = None) -> None:
        program = compact.program if quick is None else quick.strengthened()
        self.compact = compact
        lower, upper = program.lower.copy(), program.upper.copy()
        # the program, with the bounds of fixed columns and the rows of the formulation only
        self.program = dataclasses.replace(program, lower=lower, upper=upper, rows=compact.program.rows)
        self.rows = program.rows  # these rows and the cuts in the relaxation
        # The dual tolerance is that of branch and cut; each round starts from the last basis.
        settings = {"dual_feasibility_tolerance": DUAL_TOL, "presolve": "off", "solver": "simplex", "parallel": "off"}
        self.relaxation = LPRelaxation(program, seed, settings)
        self.bound = math.inf if quick is None else quick.bound  # the best upper bound so far, in log potentials
        self.point: Floats = np.zeros(len(program.cost))  # the optimal point of the last relaxation
        self.n_rounds = 0 if quick is None else quick.n_rounds
        self.n_cuts = 0 if quick is None else quick.n_cuts
        self._reduced: Floats = np.zeros(len(program.cost))
        self._now = math.inf
        self._age = np.zeros(self.rows.n - self.program.rows.n, dtype=np.int64)
        self._gaps: list[float] = []
        self._separation = OddCycleSeparation(compact.n, compact.first, compact.second)

    @property
    def n_fixed(self) -> int:
        return int(np.count_nonzero(self.program.lower == self.program.upper))

    def read(self) -> None:
        point, weights = self.relaxation.point(), self.relaxation.weights()
        assert point is not None and weights is not None
        self.point = point
        self._now, self._reduced = lagrangian(self.program, self.rows, weights)
        self.bound = min(self.bound, self._now)
        self.n_rounds += 1

    def fix_by_cost(self, value: float) -> None:
        price = self.program.scale * np.abs(self._reduced)
        places = np.flatnonzero(self._now - price < value - self.program.round_off)
        free = places[self.program.lower[places] < self.program.upper[places]]
        self.program.lower[free] = self.program.upper[free] = (self._reduced[free] > 0).astype(np.float64)
        if len(free):
            self.relaxation.change_bounds(free, self.program.lower[free], self.program.upper[free])

    def decided(self) -> Ints | None:
        lower = self.program.lower[: self.compact.n]
        return lower.astype(np.int64) if np.all(lower == self.program.upper[: self.compact.n]) else None

    def tails_off(self, value: float) -> bool:
        """Return whether the last ten rounds have closed little of the gap."""
        self._gaps.append(self.bound - value)
        return len(self._gaps) > 10 and self._gaps[-1] > 0.9 * self._gaps[-11]

    def separate(self) -> Iterator[None]:
        """Add violated inequalities, in steps of some milliseconds, and remove cuts that are no longer tight."""
        n_needed = self.program.rows.n
        loose = (self.rows.upper - self.rows.matrix @ self.point)[n_needed:] > TIGHT
        self._age = np.where(loose, self._age + 1, 0)
        # rounds after which a cut that is not tight is removed
        old = self._age >= 3
        if old.any():
            self.relaxation.delete(n_needed + np.flatnonzero(old))
            self.rows = self.rows.only(np.concatenate([np.ones(n_needed, dtype=bool), ~old]))
            self._age = self._age[~old]
        # Minimum violation and surcharge per pair of a cycle; the second is tried if the first finds nothing
        for effort in (SeparationEffort(1e-3, 1e-2), SeparationEffort(1e-5, 1e-4)):
            missing = self.compact.missing(self.point, effort.violation)
            yield from self._separation.run(self.compact.cut_values(self.point), effort)
            cycles = self.compact.cycles(self._separation.best(self.compact.n))
            if missing.n or cycles.n:
                self.relaxation.add(missing)
                self.relaxation.add(cycles)
                self.rows = self.rows.plus(missing, cycles)
                self._age = np.concatenate([self._age, np.zeros(missing.n + cycles.n, dtype=np.int64)])
                self.n_cuts += missing.n + cycles.n
                return

    def strengthened(self) -> Program:
        n_needed = self.program.rows.n
        tight = self.rows.upper - self.rows.matrix @ self.point <= TIGHT
        tight[:n_needed] = True
        return dataclasses.replace(self.program, rows=self.rows.only(tight))


# -- The dual solution of the compact program with odd cycles, as messages and multipliers of cycles ------------------

MOST_ROUNDS = 200  # maximum number of rounds of odd-cycle inequalities


CycleDual = tuple[Floats, Ints, Ints, Ints, Floats]
"""Messages by the problem's edges, (n_edge_states,), and the cycles: their offsets; their pairs, as factors of the
problem; which of them are in F; the multipliers."""


def cycle_dual(problem: Problem, value: float, tol: float, stop: Callable[[], bool]) -> CycleDual | None:
    """Compute the dual solution by rounds of odd cycles, until its bound is `value` up to `tol`, or nothing helps."""
    # Nothing is fixed, so that the solution is valid for the whole model. None if the first relaxation was not solved
    # in time.
    compact = Compact.build(problem)
    planes = CuttingPlanes(compact, 0)
    best: tuple[Rows, Floats] | None = None
    try:
        while planes.n_rounds < MOST_ROUNDS and _solved(planes, stop):
            before = planes.bound
            planes.read()
            weights = planes.relaxation.weights()
            if weights is not None and (best is None or planes.bound < before):
                best = planes.rows, np.maximum(weights, 0.0)
            n_cuts = planes.n_cuts
            if planes.bound - value <= tol or any(stop() for _ in planes.separate()):
                break
            if planes.n_cuts == n_cuts or planes.tails_off(value):
                break
    finally:
        planes.relaxation.close(PATIENCE)
    return None if best is None else _dual(problem, compact, *best)


def _solved(planes: CuttingPlanes, stop: Callable[[], bool]) -> bool:
    """Solve the relaxation; False if stopped."""
    if stop():
        return False
    planes.relaxation.start()
    while not planes.relaxation.wait(POLL):
        if stop():
            planes.relaxation.stop()
            planes.relaxation.wait(PATIENCE)
            return False
    return planes.relaxation.report.outcome is SolverOutcome.OPTIMAL


def _dual(problem: Problem, compact: Compact, rows: Rows, weights: Floats) -> CycleDual:
    """Convert row multipliers: rows with one y, those of y = x_i x_j, become messages; rows with several are cycles."""
    matrix, n, scale = rows.matrix, compact.n, compact.program.scale
    owner = np.repeat(np.arange(rows.n), np.diff(matrix.ptr))
    is_y = matrix.indices >= n
    n_y = np.bincount(owner[is_y], minlength=rows.n)
    cycles = np.flatnonzero((n_y > 1) & (weights > 0))
    chosen = np.isin(owner, cycles) & is_y
    pair, odd = matrix.indices[chosen] - n, (matrix.data[chosen] < 0).astype(np.int64)
    # Rows of cycles are halved in the program.
    weight = scale * weights[cycles] / 2
    # a factor for each pair of the program
    ends = np.sort(problem.scope.reshape(-1, 2).astype(np.int64), axis=1)
    code = ends[:, 0] * n + ends[:, 1]
    order = np.argsort(code, kind="stable")
    factor = order[np.searchsorted(code[order], compact.first.astype(np.int64) * n + compact.second)]
    # every table's linear part moves to the variables, minus the contribution of the rows of y = x_i x_j
    lam = np.zeros((problem.n_factors, 2, 2))
    for batch in problem.batches:
        table = batch.tables(problem.graph.theta_t, slice(0, batch.n))
        lam[batch.factors, :, 1] = table[:, :1] - table[:, [2, 1]]
    pair_of = np.zeros(rows.n, dtype=np.int64)
    pair_of[owner[is_y]] = matrix.indices[is_y] - n
    of_x = (n_y == 1)[owner] & ~is_y
    a = factor[pair_of[owner[of_x]]]
    side = (problem.scope[2 * a] != matrix.indices[of_x]).astype(np.int64)
    np.add.at(lam, (a, side, 1), (weights * scale)[owner[of_x]] * matrix.data[of_x])
    # less the linear part of the cycles' contribution to tables where labels differ
    amounts = np.repeat(weight, n_y[cycles]) * (1 - 2 * odd)
    lam[:, :, 1] -= np.bincount(factor[pair], amounts, problem.n_factors)[:, None]
    return lam.ravel(), offsets(n_y[cycles]), factor[pair], odd, weight
