"""A first-order solver for the relaxation of a binary program in spins: cheap, inexact, with valid bounds."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.compilation.jit import compiled, inlined
from mapmrf.engines.program.binary_program import FactorBlocks, ProductForm, SpinCuts, move_blocks, project_blocks
from mapmrf.run import pace

CHECK = 20  # iterations between checks of the step length


class PrimalDual:
    """Restarted primal-dual hybrid gradient with Halpern iteration, on a form in spins with cuts."""

    def __init__(self, form: ProductForm) -> None:
        n, m = len(form.cost) - len(form.first), len(form.first)
        # form, cuts: the program in spins, and the rows in addition to those of its pairs
        self.form, self.cuts = form, SpinCuts.none()
        self.lower, self.upper = np.full(n + m, -1.0), np.ones(n + m)
        # z, y_pair, y_cut: the point and the multipliers, within their bounds after a run
        self.z, self.y_pair, self.y_cut = np.zeros(n + m), np.zeros(2 * m), np.zeros(0)
        self.y_block = np.zeros(len(form.blocks.column))
        self.bound = math.inf  # the upper bound proven by the multipliers after a run, in the unit of the form
        self.n_iterations = 0
        self._pushed = np.zeros(n + m)
        self._sign = np.where(form.cost[n:] > 0, 1.0, -1.0)
        self._weight = 10.0
        degree = np.bincount(np.concatenate([form.first, form.second]), minlength=n)
        self._load = np.concatenate([2.0 * degree, np.full(m, 2.0)])
        inside = np.ones(len(form.blocks.column), dtype=bool)
        inside[form.blocks.ptr[:-1]] = False
        self._load += np.bincount(form.blocks.column[inside], minlength=n + m)
        size = np.diff(form.blocks.ptr)
        self._block_size = np.repeat(size, size)
        self._program = self._arrays()

    @property
    def reduced(self) -> Floats:
        return self.form.cost - self._pushed

    def replace_cuts(self, kept: Bools, new: SpinCuts) -> None:
        self.cuts = self.cuts.only(kept).plus(new)
        self.y_cut = np.concatenate([self.y_cut[kept], np.zeros(new.n)])
        self._program = self._arrays()

    def fix(self, places: Ints, values: Floats) -> None:
        self.lower[places] = self.upper[places] = values
        self.z[places] = values

    def slack(self) -> Floats:
        left: Floats = self.cuts.matrix(len(self.z)) @ self.z
        return self.cuts.upper - left

    def run(self, least: int, most: int, reduction: float, known: float = -math.inf) -> Iterator[None]:
        """Iterate until the step length has decreased by a factor, within limits; in steps of some milliseconds."""
        # A run also ends when its bound decides all spins, given a labelling with the objective `known`.
        now = SpinPoint(self.z, self.y_pair, self.y_cut, self.y_block, self._pushed)
        anchor = SpinPoint(*(part.copy() for part in now))
        done, turn, first, at_anchor, before = 0, 0, math.inf, math.inf, math.inf
        while done < least or (done < most and before > reduction * first):
            length = yield from self._advance(turn, now, anchor)
            done, turn = done + CHECK, turn + CHECK
            if done == CHECK:
                first = at_anchor = before = length
            # Restart if the step length has fallen far below that at the anchor, or below it and grows again, or after
            # a large share of all iterations (Applegate et al. 2021).
            enough = length <= 0.2 * at_anchor or (length <= 0.8 * at_anchor and length > before)
            if turn > CHECK and (enough or turn >= max(0.36 * self.n_iterations, 4 * CHECK)):
                self._weigh(now, anchor)
                bound, cheapest = project(self._program, now)
                if bound - 2 * cheapest < known:  # excludes all other states in any better labelling
                    break
                for part, kept in zip(now, anchor, strict=True):
                    kept[:] = part
                turn, at_anchor = 0, length
            before = length
        if len(self.y_block):  # with rows of factors, a round often ends before its first restart
            self._weigh(now, anchor)
        self.bound, _ = project(self._program, now)

    def _advance(self, turn: int, now: SpinPoint, anchor: SpinPoint) -> Generator[None, None, float]:
        """Run `CHECK` iterations, in one call or several; return the length of the last step."""
        size = len(self.z) + len(self.y_pair) + len(self.cuts.column) + 4 * len(self.y_block)
        at_once = max(1, min(CHECK, pace.PRIMAL_DUAL // size))
        length, end = math.inf, turn + CHECK
        while turn < end:
            n = min(at_once, end - turn)
            length = advance(n, turn, self._weight, self._program, now, anchor)
            turn += n
            self.n_iterations += n
            yield
        return length

    def _weigh(self, now: SpinPoint, anchor: SpinPoint) -> None:
        """Balance primal and dual steps by the distances moved since the anchor."""
        primal = math.sqrt(float(np.sum((now.z - anchor.z) ** 2 / self._program.of_column)))
        pairs = float(np.sum((now.y_pair - anchor.y_pair) ** 2)) / PAIR_STEP
        cuts = float(np.sum((now.y_cut - anchor.y_cut) ** 2 / self._program.of_cut))
        blocks = float(np.sum(self._block_size * (now.y_block - anchor.y_block) ** 2))
        dual = math.sqrt(pairs + cuts + blocks)
        if primal > 1e-9 and dual > 1e-9:
            weight = math.sqrt(self._weight * primal / dual)
            self._weight = min(max(weight, 1e-3), 1e4)

    def _arrays(self) -> SpinProgram:
        form, cuts = self.form, self.cuts
        load = self._load + np.bincount(cuts.column, minlength=len(self.z))
        # one type for all, so that kernels need only one specialisation
        ptr, middle, column = (part.astype(np.int64, copy=False) for part in (cuts.ptr, cuts.middle, cuts.column))
        first, second = (part.astype(np.int64, copy=False) for part in (form.first, form.second))
        return SpinProgram(
            form.cost, self.lower, self.upper, first, second, self._sign, ptr, middle, column, cuts.upper,
            form.blocks, form.n_spins, 1.0 / np.maximum(load, 1.0), 1.0 / cuts.size,
        )  # fmt: skip


# -- Iterations of the primal-dual hybrid gradient on a binary program in spins ---------------------------------------
# Maximise cost z over lower <= z <= upper and rows a z <= upper: spins s, one per variable, then their products d,
# one per pair; all are -1 to 1. Every pair has two rows, sign d + s_i - sign s_j <= 1 and sign d - s_i + sign s_j
# <= 1, where sign is that of its cost. The others are cuts, with entries 1 and -1.
#
# An iteration T takes z to the box after a step along cost - A' y, then y to y >= 0 after a step along A (2 z' - z) -
# upper. The steps are those of Pock and Chambolle (2011), one for each column and row. Iterate k is
# (k + 1) / (k + 2) (2 T(p) - p) + 1 / (k + 2) p_0, Halpern's iteration on the reflection of T, from the anchor p_0
# (Lu and Yang 2024).

PAIR_STEP = 1.0 / 3.0  # step of a pair's row, which has three entries


class SpinProgram(NamedTuple):
    """The program: costs and bounds by column, the pairs, and the cuts.

    Cut r is the sum over ``column[ptr[r]:middle[r]]`` minus that over ``column[middle[r]:ptr[r + 1]]``.
    """

    cost: Floats
    lower: Floats
    upper: Floats
    first: Ints
    second: Ints
    sign: Floats
    ptr: Ints
    middle: Ints
    column: Ints
    cut_upper: Floats
    blocks: FactorBlocks
    n_spins: int
    # step sizes by column and by cut; the former are multiplied by the primal weight, the latter divided by it
    of_column: Floats
    of_cut: Floats


class SpinPoint(NamedTuple):
    z: Floats  # by column
    y_pair: Floats  # by pair, two each
    y_cut: Floats  # by cut
    y_block: Floats  # by entry of a block
    pushed: Floats  # a' y by column


@inlined
def move_pairs(
    share: float, weight: float, program: SpinProgram, y: Floats, y_anchor: Floats, ahead: Floats, push: Floats
) -> float:
    """Take the dual half for the rows of pairs; return the squared length of the step."""
    first, second, sign = program.first, program.second, program.sign
    n, step, total = len(ahead) - len(first), PAIR_STEP / weight, 0.0
    for e in range(len(first)):
        i, j, s = first[e], second[e], sign[e]
        level, tilt = s * ahead[n + e] - 1.0, ahead[i] - s * ahead[j]
        change1 = max(0.0, y[2 * e] + step * (level + tilt)) - y[2 * e]
        change2 = max(0.0, y[2 * e + 1] + step * (level - tilt)) - y[2 * e + 1]
        y[2 * e] = share * (y[2 * e] + 2.0 * change1) + (1.0 - share) * y_anchor[2 * e]
        y[2 * e + 1] = share * (y[2 * e + 1] + 2.0 * change2) + (1.0 - share) * y_anchor[2 * e + 1]
        if change1 != 0.0 or change2 != 0.0:
            total += change1 * change1 + change2 * change2
            push[n + e] += s * (change1 + change2)
            push[i] += change1 - change2
            push[j] -= s * (change1 - change2)
    return total / step


@inlined
def move_cuts(
    share: float, weight: float, program: SpinProgram, y: Floats, y_anchor: Floats, ahead: Floats, push: Floats
) -> float:
    """Take the dual half for the cuts; return the squared length of the step."""
    ptr, middle, column, upper = program.ptr, program.middle, program.column, program.cut_upper
    total = 0.0
    for r in range(len(upper)):
        excess = -upper[r]
        for q in range(ptr[r], middle[r]):
            excess += ahead[column[q]]
        for q in range(middle[r], ptr[r + 1]):
            excess -= ahead[column[q]]
        step = program.of_cut[r] / weight
        change = max(0.0, y[r] + step * excess) - y[r]
        y[r] = share * (y[r] + 2.0 * change) + (1.0 - share) * y_anchor[r]
        if change != 0.0:
            total += change * change / step
            for q in range(ptr[r], middle[r]):
                push[column[q]] += change
            for q in range(middle[r], ptr[r + 1]):
                push[column[q]] -= change
    return total


@compiled
def advance(
    n_iterations: int, turn: int, weight: float, program: SpinProgram, now: SpinPoint, anchor: SpinPoint
) -> float:
    """Run some iterations in place, `turn` after the anchor; return the length of the last step."""
    cost, lower, upper, of_column = program.cost, program.lower, program.upper, program.of_column
    z, pushed, z_anchor, pushed_anchor = now.z, now.pushed, anchor.z, anchor.pushed
    ahead, push, total = np.empty(len(z)), np.empty(len(z)), 0.0  # 2 z' - z, and the change of A' y
    for k in range(turn, turn + n_iterations):
        share = (k + 1.0) / (k + 2.0)
        if k == turn + n_iterations - 1:
            for j in range(len(z)):  # squared length of the primal step
                step = weight * of_column[j]
                moved = z[j] + step * (cost[j] - pushed[j])
                change = min(max(moved, lower[j]), upper[j]) - z[j]
                total += change * change / step
        for j in range(len(z)):
            moved = z[j] + weight * of_column[j] * (cost[j] - pushed[j])
            moved = min(max(moved, lower[j]), upper[j])
            ahead[j] = 2.0 * moved - z[j]
            z[j] = share * ahead[j] + (1.0 - share) * z_anchor[j]
        push[:] = 0.0
        dual = move_pairs(share, weight, program, now.y_pair, anchor.y_pair, ahead, push)
        dual += move_cuts(share, weight, program, now.y_cut, anchor.y_cut, ahead, push)
        dual += move_blocks(share, weight, program.blocks, now.y_block, anchor.y_block, ahead, push)
        for j in range(len(pushed)):
            pushed[j] = share * (pushed[j] + 2.0 * push[j]) + (1.0 - share) * pushed_anchor[j]
        if k == turn + n_iterations - 1:
            total += dual
    return float(total**0.5)


@compiled
def project(program: SpinProgram, now: SpinPoint) -> tuple[float, float]:
    """Project a point onto its bounds, and recompute A' y."""
    # Returns the upper bound that y proves, without the constant, and the smallest reduced cost of a spin that is not
    # fixed.
    z, y_pair, y_cut, y_block, pushed = now
    n, bound, least = len(z) - len(program.first), 0.0, np.inf
    pushed[:] = 0.0
    for e in range(len(program.first)):
        one, two, s = max(0.0, y_pair[2 * e]), max(0.0, y_pair[2 * e + 1]), program.sign[e]
        y_pair[2 * e], y_pair[2 * e + 1] = one, two
        bound += one + two
        pushed[n + e] += s * (one + two)
        pushed[program.first[e]] += one - two
        pushed[program.second[e]] -= s * (one - two)
    for r in range(len(y_cut)):
        y_cut[r] = max(0.0, y_cut[r])
        bound += y_cut[r] * program.cut_upper[r]
        for q in range(program.ptr[r], program.middle[r]):
            pushed[program.column[q]] += y_cut[r]
        for q in range(program.middle[r], program.ptr[r + 1]):
            pushed[program.column[q]] -= y_cut[r]
    bound += project_blocks(program.blocks, y_block, pushed)
    for j in range(len(z)):
        z[j] = min(max(z[j], program.lower[j]), program.upper[j])
        reduced = program.cost[j] - pushed[j]
        bound += max(reduced * program.lower[j], reduced * program.upper[j])
        if j < program.n_spins and program.lower[j] < program.upper[j]:
            least = min(least, abs(reduced))
    return bound, least
