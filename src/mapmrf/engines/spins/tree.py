"""Branch and bound over spins: pairs are fixed as equal or opposite, and relaxations bound the nodes."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.engines.spins.relaxation import (
    Steps,
    TightRelaxation,
    bound_in_steps,
    mix,
    random_vectors,
)
from mapmrf.engines.spins.search import CoupledSpins, SpinSearch
from mapmrf.engines.spins.triangles import TriangleSet
from mapmrf.model.graph import EXACT
from mapmrf.run import pace


@dataclass(eq=False)
class SpinNode:
    """A subproblem in which some spins are tied to others."""

    # of, sign: (n,): representative of every spin of the model, and whether the spin equals it (1) or is opposite (-1)
    of: Ints
    sign: Floats
    # vectors, cuts: warm start of the relaxation
    vectors: Floats
    cuts: TriangleSet
    bound: float  # upper bound on the labellings of the node

    def couplings(self, matrix: Floats) -> tuple[Floats, float]:
        n = len(self.vectors)
        tie = np.zeros((len(self.of), n))
        tie[np.arange(len(self.of)), self.of] = self.sign
        merged = tie.T @ matrix @ tie
        constant = 0.5 * math.fsum(np.diag(merged))
        np.fill_diagonal(merged, 0.0)
        return np.ascontiguousarray((merged + merged.T) / 2), constant

    def child(self, i: int, j: int, sign: float) -> SpinNode:
        n = len(self.vectors)
        of, signs = self.of.copy(), self.sign.copy()
        signs[of == j] *= sign
        of[of == j] = i
        of[of > j] -= 1
        vectors = self.vectors.copy()
        joined = vectors[i] + sign * vectors[j]
        size = float(np.sqrt((joined * joined).sum()))
        if size > 0:
            vectors[i] = joined / size
        place = i - (i > j)
        cuts = self.cuts.merged(i, j, sign, n)
        of[self.of == j] = place
        return SpinNode(of, signs, np.delete(vectors, j, axis=0), cuts, self.bound)


class SpinTree:
    def __init__(self, model: CoupledSpins, search: SpinSearch, seed: int, branch_spins: int) -> None:
        # search: keeps the best labelling, and improves roundings of the relaxations
        self.model, self.search, self.branch_spins = model, search, branch_spins
        self.matrix, self.unit = model.matrix(), model.unit()
        self.random = np.random.default_rng(seed)
        self.bound = math.inf  # upper bound on the couplings of every labelling
        # n_nodes, n_cuts: nodes bounded so far, and inequalities of the current one
        self.n_nodes = self.n_cuts = 0
        self.closed = False
        self._open: list[tuple[float, int, SpinNode]] = []
        self._n_pushed = 0
        self._size = float(np.abs(self.matrix).sum())
        self._round_off = 0.25 * EXACT * self._size
        self._root = SpinNode(
            np.arange(model.n), np.ones(model.n), random_vectors(model.n, seed), TriangleSet.empty(), math.inf
        )

    def run(self) -> Steps:
        """Bound and branch until no node is left; yields after every step."""
        self._push(self._root)
        while self._open:
            node = heapq.heappop(self._open)[2]
            if self._is_done(node.bound):
                break
            yield from self._process(node)
            if len(node.of) and not self._is_done(node.bound) and len(node.vectors) > self.branch_spins:
                return
        self._open.clear()
        self.closed = True
        self._set_bound(-math.inf)
        yield

    def _push(self, node: SpinNode) -> None:
        self._n_pushed += 1
        heapq.heappush(self._open, (-node.bound, self._n_pushed, node))

    def _is_done(self, bound: float) -> bool:
        """Return whether a bound proves that nothing below it beats the best labelling."""
        return bound <= self.search.value + self._round_off or self.rounded(bound) <= self.search.value

    def _is_close(self, bound: float) -> bool:
        """Return whether a bound is so close that branching closes the gap sooner than separation."""
        return self.unit == 0.0 and bound - self.search.value <= 1e-8 * self._size

    def rounded(self, bound: float) -> float:
        """Round a bound down to the largest possible value of a labelling."""
        best = self.search.value
        if self.unit == 0.0 or not math.isfinite(bound) or not math.isfinite(best):
            return bound
        steps = math.floor((bound - best) / self.unit + 1e-6)
        return min(bound, best + max(0, steps) * self.unit)

    def _set_bound(self, present: float) -> None:
        """Update the global bound, given that of the current node."""
        waiting = -self._open[0][0] if self._open else -math.inf
        found = max(self.rounded(max(present, waiting)), self.search.value)
        if present == waiting == -math.inf and self.unit == 0.0:
            found += self._round_off
        self.bound = min(self.bound, found)

    def _process(self, node: SpinNode) -> Steps:
        """Bound a node, and branch if the bound does not prune it."""
        self.n_nodes += 1
        matrix, constant = node.couplings(self.matrix)
        n = len(matrix)
        if n <= 11:  # enumerate all labellings
            spins = 1.0 - 2.0 * ((np.arange(2 ** max(0, n - 1))[:, None] >> np.arange(n)) & 1)
            values = 0.5 * np.einsum("ti,ij,tj->t", spins, matrix, spins)
            best = int(np.argmax(values)) if n else 0
            self.search.improve(node.sign * spins[best][node.of] if n else node.sign)
            self._lower(node, float(values[best]) + constant + self._round_off if n else constant)
            return
        relaxation = TightRelaxation(matrix, node.vectors, node.cuts)
        yield from self._bound(node, relaxation, constant)
        self.n_cuts = len(relaxation.cuts)
        if not self._is_done(node.bound) and len(matrix) <= self.branch_spins:
            # an influential spin, and one whose product with it is the most undecided
            strength = relaxation.spins.strength
            i = int(np.argmax(strength))
            score = (1.0 - np.abs(relaxation.gram()[i])) * strength
            score[i] = -1.0
            j = int(np.argmax(score))
            for sign in (1.0, -1.0):
                self._push(node.child(i, j, sign))

    def _bound(self, node: SpinNode, relaxation: TightRelaxation, constant: float) -> Steps:
        """Tighten the relaxation of a node as long as that helps; yields after every step."""
        yield from relaxation.ascend(100 if node.bound == math.inf else 1)  # sweeps before the first separation round
        bound = yield from relaxation.bound()
        self._lower(node, bound + constant)
        if not self._is_close(node.bound):
            self._round(node)
        if self.n_nodes % 10 == 0 or not self._is_close(node.bound):
            yield
        history = [node.bound]
        while not (self._is_done(node.bound) or self._is_close(node.bound)):
            yield from relaxation.separate()
            yield from relaxation.tighten(100)
            bound = yield from relaxation.bound()
            self._lower(node, bound + constant)
            self._round(node)
            history.append(node.bound)
            yield
            lacking = node.bound - self.search.value - 0.99 * self.unit
            # The last 15 rounds have closed less than a tenth of the missing gap
            if len(history) > 15 and history[-16] - node.bound < 0.1 * lacking:
                return

    def _lower(self, node: SpinNode, bound: float) -> None:
        node.bound = min(node.bound, bound)
        self._set_bound(node.bound)

    def _round(self, node: SpinNode) -> None:
        side = node.vectors @ self.random.normal(size=node.vectors.shape[1])
        self.search.improve(node.sign * np.where(side >= 0, 1.0, -1.0)[node.of])


# -- The semidefinite bound without triangle inequalities, for large models -------------------------------------------


class PlainBound:
    """Mixing method on sparse spins, without inequalities, and with bounds and roundings in between."""

    n_nodes = 1
    n_cuts = 0
    closed = False

    def __init__(self, model: CoupledSpins, search: SpinSearch, seed: int) -> None:
        # search: keeps the best labelling, and improves roundings of the vectors
        self.model, self.search = model, search
        self.random = np.random.default_rng(seed)
        self.vectors = random_vectors(model.n, seed)  # (n, rank): a unit vector for every spin
        self.bound = math.inf  # upper bound on the couplings of every labelling

    def run(self) -> Steps:
        """Compute bounds until they stall; yields after every step."""
        model, sweeps = self.model, 30  # sweeps before the first bound; doubled before each further one
        still, strength, pull = np.zeros(model.n), np.zeros(model.n), np.zeros(self.vectors.shape[1])
        some = max(1, pace.SPIN_RELAXATION // (model.work * self.vectors.shape[1]))
        while True:
            for _ in range(0, sweeps, some):
                mix(None, model.couplings, self.vectors, still, strength, pull, min(some, sweeps))
                yield
            before = self.bound
            found = yield from bound_in_steps(model.couplings, strength)
            self.bound = min(before, found)
            yield
            for _ in range(5):  # by a random hyperplane
                side = self.vectors @ self.random.normal(size=self.vectors.shape[1])
                self.search.improve(np.where(side >= 0, 1.0, -1.0))
                yield
            # Relative improvement of the bound below which the run ends
            if before - self.bound < 1e-6 * abs(self.bound):
                return
            sweeps *= 2
