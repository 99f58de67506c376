"""The bound of a tree of cases.

A case keeps its parent's remaining states, except for those of other cases, and its parent's messages, except for those
that it changes. A labelling is in one of the cases of every node, so the largest bound over all leaves is a bound on
all labellings. If all states of a variable are dropped, nothing in this case is better than the solution.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.certificates.certificate import Certificate
from mapmrf.certificates.dual_check import DualCheck, Outcome
from mapmrf.certificates.leftover import eliminated
from mapmrf.certificates.whole import WholeModel
from mapmrf.model.graph import FactorGraph

QUICK = 8
"""Factor on the number of entries of elimination tables in 64-bit numbers compared with fractions."""


NEAR = 4
"""Leaves are computed in fractions if their bound exceeds the target by at most this multiple of the rounding error."""


class Case(NamedTuple):
    """A node to be checked: the states and messages of its parent, and the best bound above."""

    node: int
    left: Bools
    lam: Floats
    above: Any


class TreeCheck:
    """A certificate with cases.

    All nodes are checked in 64-bit numbers, with potentials rounded up: states dropped by such a bound are dropped by
    the exact one. Leaves that stay open are computed in fractions, if `exact`. Once `stop` is true, cases get the bound
    of their parents.
    """

    def __init__(
        self, graph: FactorGraph, certificate: Certificate, exact: bool, max_entries: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.stop = stop
        self.graph, self.tree, self.exact, self.max_entries = graph, certificate.tree, exact, max_entries
        self.certificate, self.cases = certificate, certificate.tree.cases()
        self.model = WholeModel.build(graph, certificate, False)
        self.lam = certificate.lam if len(certificate.lam) else np.zeros(len(self.model.lam))
        self.whole: WholeModel | None = None

    @property
    def rounding(self) -> Fraction:
        """Largest possible excess of the bound over the exact one."""
        return Fraction(0) if self.exact else self.model.fraction(2 * self.model.slack)

    def above(self, worth: Fraction | None, labels: Ints | None) -> Outcome:
        """The largest bound over all leaves, if labellings up to `worth` need not be considered."""
        target = self.model.target(worth, None if self.exact else labels)
        stack = [Case(0, self.model.allowed, self.lam, None)]
        found = [Outcome(self._settled(target, worth), None, 0, True)]
        relaxation = None
        while stack:
            case = stack.pop()
            if case.above is not None and self.stop():
                found.append(Outcome(self.model.rounded_down(self.model.fraction(case.above)), None, 0, True))
                continue
            lam = self.tree.messages_of(case.node, case.lam)
            check, bound = self.settled(case, lam, target)
            relaxation = check.first if case.node == 0 else relaxation
            if bound is None:
                continue
            for child in self.cases[case.node]:
                stack.append(Case(child, self._restricted(check.left, child), lam, bound))
            if not self.cases[case.node]:
                found.append(self.leaf(case.node, check, bound, (lam, worth)))
        bounds = [outcome.bound for outcome in found if outcome.bound is not None]
        first = None if relaxation is None else self.model.fraction(relaxation)
        n_open = max(outcome.n_open for outcome in found)
        done = n_open > 0 and all(outcome.eliminated or not outcome.n_open for outcome in found)
        return Outcome(max(bounds) if bounds else None, first, n_open, done)

    def settled(self, case: Case, lam: Floats, target: int | None) -> tuple[DualCheck, Any]:
        """The states left of a case and their bound, None if there are none: by the parent's messages, then its own."""
        check = DualCheck(self.model.with_messages(case.lam), target, left=case.left)
        bound = check.settle()
        if bound is not None and lam is not case.lam:
            check = DualCheck(self.model.with_messages(lam), target, left=check.left)
            mine = check.settle()
            bound = None if mine is None else min(bound, mine)
        return check, bound if bound is None or case.above is None else min(bound, case.above)

    def _settled(self, target: int | None, worth: Fraction | None) -> Fraction | None:
        """The bound on everything dropped."""
        if self.exact or target is None or worth is None:
            return worth
        return max(worth, self.model.rounded_down(self.model.fraction(target)))

    def _restricted(self, left: Bools, child: int) -> Bools:
        """The states left of a node, without those of its variable that are not in a case."""
        i = self.tree.variable[self.tree.parent[child]]
        begin, end = self.graph.var_ptr[i], self.graph.var_ptr[i + 1]
        kept = left.copy()
        kept[begin:end] = False
        states = begin + self.tree.states_of(child)
        kept[states] = left[states]
        return kept

    def leaf(self, node: int, check: DualCheck, bound: Any, point: tuple[Floats, Fraction | None]) -> Outcome:
        """The bound of a leaf that stays open: by elimination, and in fractions if necessary."""
        lam, worth = point
        order, n_open = self.tree.order_of(node), int(np.count_nonzero(check.n_left() > 1))
        rest = eliminated(check.model, check.left, order, QUICK * self.max_entries)
        bound = bound if rest is None else min(bound, rest)
        if bound <= self.model.least // 2 or (check.target is not None and bound <= check.target):
            return Outcome(None, None, n_open, rest is not None)
        rounded = self.model.rounded_down(self.model.fraction(bound))
        near = check.target is not None and bound <= check.target + NEAR * self.model.slack
        if not self.exact or not near:
            return Outcome(rounded, None, n_open, rest is not None)
        if self.whole is None:
            self.whole = WholeModel.build(self.graph, self.certificate, True)
        whole = DualCheck(self.whole.with_messages(lam), self.whole.target(worth), left=check.left)
        proven = whole.run(order, self.max_entries).bound
        return Outcome(None if proven is None else min(proven, rounded), None, n_open, rest is not None)
