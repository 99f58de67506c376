"""A first-order solver for the relaxation of a binary pairwise program: cheap, inexact, and its bounds hold."""

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
"""Iterations between two looks at the length of a step."""

STEP_WORK = 3_000_000
"""Entries of the program that the iterations of one call go through: some 10 ms."""

FIRST_WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 10.0, 1e-3, 1e4
"""Primal weight at the start, and its limits."""

SUFFICIENT, NECESSARY, LONGEST = 0.2, 0.8, 0.36
"""Shares of the step's length at the anchor below which there is a restart: at once, or if it grows again; and the
share of all iterations after which there is one anyway (Applegate et al. 2021)."""


class IterationLimits(NamedTuple):
    """Iterations of a run, at least and at most, and the factor by which a step's length is to come down.

    A run also ends when its bound decides all spins, given a labelling with the objective `known`.
    """

    least: int
    most: int
    reduction: float
    known: float = -math.inf


class PrimalDual:
    """The primal-dual hybrid gradient on the spin form with cuts, restarted, with Halpern's iteration.

    Attributes
    ----------
    form, cuts
        The program in spins, and the rows beyond those of its pairs.
    z, y_pair, y_cut
        The point and the multipliers; within their bounds after a run.
    bound
        The upper bound that the multipliers prove after a run, in the unit of the form.
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
        """Fix some columns; of the program's arrays only the bounds change."""
        self.lower[places] = self.upper[places] = values
        self.z[places] = values

    def slack(self) -> Floats:
        """How far each cut is from being tight."""
        left: Floats = self.cuts.matrix(len(self.z)) @ self.z
        return self.cuts.upper - left

    def run(self, limits: IterationLimits) -> Iterator[None]:
        """Iterate until a step's length has come down by a factor, but within limits; in steps of some milliseconds."""
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
        if len(self.y_block):  # with rows of factors a round often ends before its first restart
            self._weigh(now, anchor)
        self.bound = settle(self._program, now, self._scratch.values).bound

    def _advance(self, turn: int, now: SpinPoint, anchor: SpinPoint) -> Generator[None, None, float]:
        """`CHECK` iterations, in one call or several; the length of the last step."""
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
        """Whether no labelling better than one that is known has another state of any variable."""
        return proven.bound - 2 * proven.least < known

    def _is_due(self, turn: int, length: float, at_anchor: float, before: float) -> bool:
        """Whether it is time for a restart."""
        if turn <= CHECK:
            return False
        enough = length <= SUFFICIENT * at_anchor or (length <= NECESSARY * at_anchor and length > before)
        return enough or turn >= max(LONGEST * self.n_iterations, 4 * CHECK)

    def _weigh(self, now: SpinPoint, anchor: SpinPoint) -> None:
        """Balance the primal steps and the dual ones by how far each have come since the anchor."""
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
        # One type for all, so that one specialisation of the kernels serves them.
        ptr, middle, column = (part.astype(np.int64, copy=False) for part in (cuts.ptr, cuts.middle, cuts.column))
        first, second = (part.astype(np.int64, copy=False) for part in (form.first, form.second))
        program = SpinProgram(
            form.cost, self.lower, self.upper, first, second, self._sign,
            ptr, middle, column, cuts.upper, form.blocks, form.n_spins,
        )  # fmt: skip
        return program, SpinSteps(1.0 / np.maximum(load, 1.0), 1.0 / cuts.size)
