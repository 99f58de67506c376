"""The bound of a dual point, in integer arithmetic.

For any messages lam and any multipliers w >= 0 of valid inequalities, the value of a labelling x is at most

    constant + offset + sum_i (theta_i - sum_a lam_ia)(x_i) + sum_a (theta_a + sum_i lam_ia + cut_a)(x_a),

where `cut` and `offset` are those inequalities times their multipliers. The largest entry of every term gives the bound
of all labellings; the largest entry with a state of a variable, that of all labellings with this state. States for
which that is at most the value of the solution are dropped. What is left is smaller and has a better bound, or is
maximised exactly, variable by variable, in the order that the certificate gives.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints
from mapmrf.certificates.leftover import eliminated
from mapmrf.certificates.whole import FactorGroup, Whole, WholeModel

MOST_ENTRIES = 1 << 22
"""Maximum total number of entries of the elimination tables."""


class Outcome(NamedTuple):
    """The bound that a dual point proves: see `Verification`."""

    bound: Fraction | None
    relaxation: Fraction | None
    n_open: int
    eliminated: bool


class DualCheck:
    """The dual point on the remaining states.

    Attributes
    ----------
    target
        Labellings up to this value need not be considered; None if there is no feasible one.
    left : (n_states,)
        The remaining states.
    belief : (n_states,)
        The unary potentials without the messages.
    reach : (n_states,)
        Upper bound on the labellings with each state, after `drop`.
    first
        The bound before any state was dropped.
    stop
        Called between rounds; true to stop with what is known.
    """

    def __init__(
        self, model: WholeModel, target: Any, stop: Callable[[], bool] = lambda: False, left: Bools | None = None
    ) -> None:
        self.model, self.target, self.stop = model, target, stop
        self.first: Any = None
        self.left: Bools = model.allowed.copy() if left is None else left & model.allowed
        self.reach: Whole = np.zeros(0)
        self.ptr = model.graph.var_ptr.astype(np.int64)
        self.belief = model.theta_v.copy()
        for group in model.groups:
            for k in range(len(group.shape)):
                np.subtract.at(self.belief, group.states[k], model.lam[group.edges[k]])
        self.tables = [_reparametrised(model, group) for group in model.groups]

    def run(self, order: Ints, max_entries: int) -> Outcome:
        """Drop states until no more can be dropped, then maximise over the rest if possible."""
        bound = self.settle()
        if bound is None:  # no labelling exceeds the target
            return self.outcome(self.target, 0, False)
        rest = eliminated(self.model, self.left, order, max_entries)
        bound = bound if rest is None else rest
        bound = bound if self.target is None else max(bound, self.target)
        return self.outcome(bound, int(np.count_nonzero(self.n_left() > 1)), rest is not None)

    def settle(self) -> Any:
        """Drop states until no more can be dropped; return the bound of the rest, None if nothing remains."""
        bound = self.drop()
        self.first = bound if self.first is None else self.first
        while bound is not None and not self.stop():
            n_left = np.count_nonzero(self.left)
            bound = self.drop()
            if np.count_nonzero(self.left) == n_left:
                break
        return bound

    def outcome(self, bound: Any, n_open: int, done: bool) -> Outcome:
        """The bound in fractions; None for -inf."""
        fraction, first = self.model.fraction, self.first
        relaxation = None if first is None else fraction(first)
        if bound is None or bound <= self.model.least // 2:
            return Outcome(None, relaxation, n_open, done)
        bound = bound if first is None else min(bound, first)
        return Outcome(self.model.rounded_down(fraction(bound)), relaxation, n_open, done)

    def drop(self) -> Any:
        """The bound of the remaining states, None if a variable has none; drop those that do not reach the target."""
        model, least, ptr = self.model, self.model.least, self.ptr
        belief = np.where(self.left, self.belief, least)
        bound, out = model.constant + model.offset, ~self.left
        if len(ptr) > 1:
            top = np.maximum.reduceat(belief, ptr[:-1])
            if top.min() <= least // 2:
                return None
            bound += int(top.sum())
            loss = np.repeat(top, np.diff(ptr)) - belief
        for group, table in zip(model.groups, self.tables, strict=True):
            entries = np.where(self.possible(group), table, least)
            top = entries.max(axis=1)
            if top.min() <= least // 2:
                return None
            bound += int(top.sum())
            self.add_losses(group, entries, top, (loss, out))
        if len(ptr) == 1:
            return bound
        self.reach = reach = np.where(out, least, bound - loss)
        # Every labelling has one of the states of each variable.
        bound = min(bound, int(np.maximum.reduceat(reach, ptr[:-1]).min()))
        if bound <= least // 2:
            return None
        self.left = ~out if self.target is None else ~out & (reach > self.target).astype(bool)
        return bound

    def n_left(self) -> Ints:
        """Number of remaining states of every variable."""
        left = self.left.astype(np.int64)
        return np.add.reduceat(left, self.ptr[:-1]) if len(self.ptr) > 1 else left

    def possible(self, group: FactorGroup) -> Bools:
        """Which configurations are allowed and consist of remaining states: (n, n_configs)."""
        cube = group.allowed.reshape(-1, *group.shape)
        for k in range(len(group.shape)):
            cube = cube & group.spread(self.left[group.states[k]], k)
        return cube.reshape(group.allowed.shape)

    def add_losses(self, group: FactorGroup, entries: Whole, top: Whole, sums: tuple[Whole, Bools]) -> None:
        """Add the losses of the factors for each state of their variables; mark states without any entry."""
        loss, out = sums
        cube = entries.reshape(len(top), *group.shape)
        for k in range(len(group.shape)):
            best = cube.max(axis=tuple(j + 1 for j in range(len(group.shape)) if j != k))
            states = group.states[k]
            none = (best <= self.model.least // 2).astype(bool)
            out[states[none]] = True
            np.add.at(loss, states, np.where(none, 0, top[:, None] - best))


def _reparametrised(model: WholeModel, group: FactorGroup) -> Whole:
    """The tables with the messages and the cycles: (n, n_configs)."""
    cube = group.tables.reshape(-1, *group.shape)
    for k in range(len(group.shape)):
        cube = cube + group.spread(model.lam[group.edges[k]], k)
    table = cube.reshape(group.tables.shape)
    if group.shape == (2, 2):
        table = table + model.cut[group.factors][:, None] * np.array([0, 1, 1, 0], dtype=model.cut.dtype)
    return table
