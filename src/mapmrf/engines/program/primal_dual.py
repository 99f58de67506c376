"""A first-order solver for the relaxation of a binary program in spins: cheap, inexact, with valid bounds."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.engines.program.primal_dual_kernels import (
    PAIR_STEP,
    SettledBound,
    SpinPoint,
    SpinProgram,
    SpinScratch,
    SpinSteps,
    advance,
    settle,
)
from mapmrf.engines.program.product_form import ProductForm
from mapmrf.engines.program.spin_form import SpinCuts, SpinForm

CHECK = 20
"""Iterations between checks of the step length."""

STEP_WORK = 3_000_000
"""Program entries processed by the iterations of one call: some 10 ms."""

FIRST_WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 10.0, 1e-3, 1e4
"""Initial primal weight, and its limits."""

SUFFICIENT, NECESSARY, LONGEST = 0.2, 0.8, 0.36
"""Restart conditions: the step length has fallen below the first share of that at the anchor, or below the second and
grows again; or the share of all iterations since the anchor exceeds the third (Applegate et al. 2021)."""


class IterationLimits(NamedTuple):
    """Minimum and maximum number of iterations of a run, and the factor by which the step length must decrease.

    A run also ends when its bound decides all spins, given a labelling with the objective `known`.
    """

    least: int
    most: int
    reduction: float
    known: float = -math.inf


class PrimalDual:
    """Restarted primal-dual hybrid gradient with Halpern iteration, on the spin form with cuts.

    Attributes
    ----------
    form, cuts
        The program in spins, and the rows in addition to those of its pairs.
    z, y_pair, y_cut
        The point and the multipliers, within their bounds after a run.
    bound
        The upper bound proven by the multipliers after a run, in the unit of the form.
    """

    def __init__(self, form: SpinForm | ProductForm) -> None:
        n, m = form.n_before, len(form.first)
        self.form, self.cuts = form, SpinCuts.none()
        self.lower, self.upper = np.full(n + m, -1.0), np.ones(n + m)
        self.z, self.y_pair, self.y_cut = np.zeros(n + m), np.zeros(2 * m), np.zeros(0)
        self.y_block = np.zeros(len(form.blocks.column))
        self.bound = math.inf
        self.n_iterations = 0
        self._pushed = np.zeros(n + m)
        self._sign = np.where(form.cost[n:] > 0, 1.0, -1.0)
        self._weight = FIRST_WEIGHT
        degree = np.bincount(np.concatenate([form.first, form.second]), minlength=n)
        self._load = np.concatenate([2.0 * degree, np.full(m, 2.0)])
        inside = np.ones(len(form.blocks.column), dtype=bool)
        inside[form.blocks.ptr[:-1]] = False
        self._load += np.bincount(form.blocks.column[inside], minlength=n + m)
        size = np.diff(form.blocks.ptr)
        self._block_size = np.repeat(size, size)
        self._program, self._steps = self._arrays()
        room = int(size.max(initial=0))
        self._scratch = SpinScratch(np.zeros(n + m), np.zeros(n + m), np.zeros(room))

    @property
    def reduced(self) -> Floats:
        """Reduced costs of the columns, after a run."""
        return self.form.cost - self._pushed

    def replace_cuts(self, kept: Bools, new: SpinCuts) -> None:
        """Keep some of the cuts, with their multipliers, and add others."""
        self.cuts = self.cuts.only(kept).plus(new)
        self.y_cut = np.concatenate([self.y_cut[kept], np.zeros(new.n)])
        self._program, self._steps = self._arrays()

    def fix(self, places: Ints, values: Floats) -> None:
        """Fix some columns by their bounds."""
        self.lower[places] = self.upper[places] = values
        self.z[places] = values

    def slack(self) -> Floats:
        """Slack of each cut."""
        left: Floats = self.cuts.matrix(len(self.z)) @ self.z
        return self.cuts.upper - left

    def run(self, limits: IterationLimits) -> Iterator[None]:
        """Iterate until the step length has decreased by a factor, within limits; in steps of some milliseconds."""
        now = SpinPoint(self.z, self.y_pair, self.y_cut, self.y_block, self._pushed)
        anchor = SpinPoint(*(part.copy() for part in now))
        done, turn, first, at_anchor, before = 0, 0, math.inf, math.inf, math.inf
        while done < limits.least or (done < limits.most and before > limits.reduction * first):
            length = yield from self._advance(turn, now, anchor)
            done, turn = done + CHECK, turn + CHECK
            if done == CHECK:
                first = at_anchor = before = length
            if self._is_due(turn, length, at_anchor, before):
                self._weigh(now, anchor)
                if self._decides(settle(self._program, now, self._scratch.values), limits.known):
                    break
                for part, kept in zip(now, anchor, strict=True):
                    kept[:] = part
                turn, at_anchor = 0, length
            before = length
        if len(self.y_block):  # with rows of factors, a round often ends before its first restart
            self._weigh(now, anchor)
        self.bound = settle(self._program, now, self._scratch.values).bound

    def _advance(self, turn: int, now: SpinPoint, anchor: SpinPoint) -> Generator[None, None, float]:
        """Run `CHECK` iterations, in one call or several; return the length of the last step."""
        size = len(self.z) + len(self.y_pair) + len(self.cuts.column) + 4 * len(self.y_block)
        at_once = max(1, min(CHECK, STEP_WORK // size))
        length, end = math.inf, turn + CHECK
        while turn < end:
            n = min(at_once, end - turn)
            length = advance(n, turn, self._weight, self._program, self._steps, now, anchor, self._scratch)
            turn += n
            self.n_iterations += n
            yield
        return length

    def _decides(self, proven: SettledBound, known: float) -> bool:
        """Return whether the bound excludes all other states in any labelling better than the known one."""
        return proven.bound - 2 * proven.least < known

    def _is_due(self, turn: int, length: float, at_anchor: float, before: float) -> bool:
        """Return whether a restart is due."""
        if turn <= CHECK:
            return False
        enough = length <= SUFFICIENT * at_anchor or (length <= NECESSARY * at_anchor and length > before)
        return enough or turn >= max(LONGEST * self.n_iterations, 4 * CHECK)

    def _weigh(self, now: SpinPoint, anchor: SpinPoint) -> None:
        """Balance primal and dual steps by the distances moved since the anchor."""
        primal = math.sqrt(float(np.sum((now.z - anchor.z) ** 2 / self._steps.of_column)))
        pairs = float(np.sum((now.y_pair - anchor.y_pair) ** 2)) / PAIR_STEP
        cuts = float(np.sum((now.y_cut - anchor.y_cut) ** 2 / self._steps.of_cut))
        blocks = float(np.sum(self._block_size * (now.y_block - anchor.y_block) ** 2))
        dual = math.sqrt(pairs + cuts + blocks)
        if primal > 1e-9 and dual > 1e-9:
            weight = math.sqrt(self._weight * primal / dual)
            self._weight = min(max(weight, LEAST_WEIGHT), MOST_WEIGHT)

    def _arrays(self) -> tuple[SpinProgram, SpinSteps]:
        form, cuts = self.form, self.cuts
        load = self._load + np.bincount(cuts.column, minlength=len(self.z))
        # one type for all, so that kernels need only one specialisation
        ptr, middle, column = (part.astype(np.int64, copy=False) for part in (cuts.ptr, cuts.middle, cuts.column))
        first, second = (part.astype(np.int64, copy=False) for part in (form.first, form.second))
        program = SpinProgram(
            form.cost, self.lower, self.upper, first, second, self._sign,
            ptr, middle, column, cuts.upper, form.blocks, form.n_spins,
        )  # fmt: skip
        return program, SpinSteps(1.0 / np.maximum(load, 1.0), 1.0 / cuts.size)
