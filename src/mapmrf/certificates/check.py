"""The checker: the bound that a certificate proves, in integer arithmetic.

It imports the graph and the readers, and nothing else from the package. `DualCheck` computes the bound of a dual point,
`TreeCheck` that of a tree of cases.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Floats, Ints
from mapmrf.certificates.certificate import Certificate, InvalidCertificate
from mapmrf.certificates.exact_model import FactorGroup, IntegerModel, Integers, eliminated, exact_value, without
from mapmrf.constraints.as_tables import rewrite
from mapmrf.model.graph import FactorGraph

MOST_ENTRIES = 1 << 22  # maximum total number of entries of the elimination tables


@dataclass(frozen=True)
class Verification:
    """The outcome of a check: what a certificate proves.

    Attributes
    ----------
    value
        The value of the solution, exactly; None if it is -inf.
    bound
        The proven bound, exactly; None if it is -inf: no labelling is feasible.
    relaxation
        The bound before any state is dropped.
    n_open
        Number of variables with more than one remaining state; in a tree, the largest number over the leaves.
    eliminated
        Whether these were maximised exactly, in all leaves.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> result = mapmrf.solve(graph, certificate=True)
    >>> found = mapmrf.verify(graph, result.labels, result.certificate)
    >>> found.value, found.bound, found.optimal
    (Fraction(2, 1), Fraction(2, 1), True)
    """

    value: Fraction | None
    bound: Fraction | None
    relaxation: Fraction | None
    n_open: int
    eliminated: bool

    @property
    def gap(self) -> Fraction | None:
        """Difference between bound and value, None if one of them is infinite."""
        return None if self.bound is None or self.value is None else self.bound - self.value

    @property
    def optimal(self) -> bool:
        """Whether the solution is proven optimal, or the model infeasible."""
        return self.bound is None or self.gap == 0

    def relative_gap(self) -> float:
        """The gap relative to the value if that is above 1; inf for an infeasible solution."""
        if self.bound is None:
            return 0.0
        gap = self.gap
        return math.inf if gap is None or self.value is None else float(gap / max(Fraction(1), abs(self.value)))


def verify(
    graph: FactorGraph,
    labels: ArrayLike,
    certificate: Certificate,
    *,
    exact: bool = True,
    max_entries: int = MOST_ENTRIES,
) -> Verification:
    """Check a certificate, and return the bound that it proves.

    Parameters
    ----------
    graph
        The model.
    labels : (n_vars,)
        A labelling, such as the solution.
    certificate
        The certificate.
    exact
        Whether to compute in exact fractions. Otherwise potentials are rounded up to multiples of a power of 2, such
        that all sums fit into 64 bits: this is much faster, and the bound is still valid.
    max_entries
        Maximum number of entries of the elimination tables; beyond that, variables are not eliminated.

    Raises
    ------
    InvalidCertificate
        If it does not fit the model, has an inequality that does not hold, or proves less than it claims.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.certificates import Certificate
    >>> unlike = [[0, 1], [1, 0]]
    >>> graph = mapmrf.FactorGraph.from_tables([2, 2, 2], [(0, 1), (1, 2), (2, 0)], [unlike] * 3)
    >>> mapmrf.verify(graph, [0, 1, 0], Certificate()).bound  # without messages: 1 + 1 + 1
    Fraction(3, 1)
    """
    labels = graph.check_labels(labels)
    if graph.constraints is not None:
        rewriting = rewrite(graph)
        graph, labels = rewriting.graph, rewriting.lift(labels)
    value = exact_value(graph, labels)
    certificate.check_first(graph)
    worth = value
    if len(certificate.first):
        graph, kept = without(graph, certificate.first)
        labels = labels[kept]
        worth = exact_value(graph, labels)
    certificate.check(graph)
    if graph.constant == -math.inf:
        return Verification(None, None, None, 0, False)
    prover = (TreeCheck if certificate.tree.n else PointCheck)(graph, certificate, exact, max_entries)
    found = prover.above(worth, labels)
    if found.bound is not None and certificate.bound < math.inf:
        found = _check_claim(prover, certificate.bound, found)
    return dataclasses.replace(found, value=value)


class PointCheck:
    """A certificate without cases."""

    def __init__(self, graph: FactorGraph, certificate: Certificate, exact: bool, max_entries: int) -> None:
        self.model = IntegerModel.build(graph, certificate, exact)
        self.order, self.max_entries = certificate.order, max_entries

    def above(self, worth: Fraction | None, labels: Ints | None) -> Verification:
        """The bound if labellings up to `worth`, the value of `labels`, need not be considered."""
        return DualCheck(self.model, self.model.target(worth, labels)).run(self.order, self.max_entries)

    @property
    def rounding(self) -> Fraction:
        """Largest possible excess of the bound over the exact one."""
        return self.model.fraction(2 * self.model.slack)


def _check_claim(prover: PointCheck | TreeCheck, bound: float, found: Verification) -> Verification:
    """Raise InvalidCertificate unless the claim is proven: directly, or by ignoring labellings below it."""
    if bound > -math.inf and found.bound is not None:
        claim = Fraction(bound) + prover.rounding
        if found.bound > claim:
            found = min(found, prover.above(claim, None), key=_bound_of)
        if found.bound is None or found.bound <= claim:
            return found
    proven = float(_bound_of(found))
    raise InvalidCertificate(f"the claimed bound is {bound!r}, but the certificate proves {proven!r}")


def _bound_of(found: Verification) -> Fraction | float:
    return -math.inf if found.bound is None else found.bound


# -- The bound of a tree of cases -------------------------------------------------------------------------------------
# A case keeps its parent's remaining states, except for those of other cases, and its parent's messages, except for
# those that it changes. A labelling is in one of the cases of every node, so the largest bound over all leaves is a
# bound on all labellings. If all states of a variable are dropped, nothing in this case is better than the
# solution.

QUICK = 8  # factor on the number of entries of elimination tables in 64-bit numbers compared with fractions


Case = tuple[int, Bools, Floats, Any]  # a node to be checked: the states and messages of its parent, the best bound


class TreeCheck:
    """A certificate with cases."""

    # All nodes are checked in 64-bit numbers, with potentials rounded up: states dropped by such a bound are dropped by
    # the exact one. Leaves that stay open are computed in fractions, if `exact`. Once `stop` is true, cases get the
    # bound of their parents.

    def __init__(
        self, graph: FactorGraph, certificate: Certificate, exact: bool, max_entries: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self.stop = stop
        self.graph, self.tree, self.exact, self.max_entries = graph, certificate.tree, exact, max_entries
        self.certificate, self.cases = certificate, certificate.tree.cases()
        self.model = IntegerModel.build(graph, certificate, False)
        self.lam = certificate.lam if len(certificate.lam) else np.zeros(len(self.model.lam))
        self.exact_model: IntegerModel | None = None

    @property
    def rounding(self) -> Fraction:
        return Fraction(0) if self.exact else self.model.fraction(2 * self.model.slack)

    def above(self, worth: Fraction | None, labels: Ints | None) -> Verification:
        """The largest bound over all leaves, if labellings up to `worth` need not be considered."""
        target = self.model.target(worth, None if self.exact else labels)
        stack: list[Case] = [(0, self.model.allowed, self.lam, None)]
        dropped = worth  # a bound on everything that is dropped
        if not self.exact and target is not None and worth is not None:
            dropped = max(worth, self.model.rounded_down(self.model.fraction(target)))
        found = [Verification(None, dropped, None, 0, True)]
        relaxation = None
        while stack:
            node, left, inherited, above = stack.pop()
            if above is not None and self.stop():
                found.append(Verification(None, self.model.rounded_down(self.model.fraction(above)), None, 0, True))
                continue
            lam = self.tree.messages_of(node, inherited)
            # The states left, and their bound, None if there are none: by the parent's messages, then its own.
            check = DualCheck(self.model.with_messages(inherited), target, left=left)
            bound = check.drop_all()
            if bound is not None and lam is not inherited:
                check = DualCheck(self.model.with_messages(lam), target, left=check.left)
                mine = check.drop_all()
                bound = None if mine is None else min(bound, mine)
            relaxation = check.first if node == 0 else relaxation
            if bound is None:
                continue
            bound = bound if above is None else min(bound, above)
            for child in self.cases[node]:
                # The states left of a node, without those of its variable that are not in a case.
                i = self.tree.variable[self.tree.parent[child]]
                begin, end = self.graph.var_ptr[i], self.graph.var_ptr[i + 1]
                kept = check.left.copy()
                kept[begin:end] = False
                states = begin + self.tree.states_of(child)
                kept[states] = check.left[states]
                stack.append((child, kept, lam, bound))
            if not self.cases[node]:
                found.append(self.leaf(node, check, bound, lam, worth))
        bounds = [outcome.bound for outcome in found if outcome.bound is not None]
        first = None if relaxation is None else self.model.fraction(relaxation)
        n_open = max(outcome.n_open for outcome in found)
        done = n_open > 0 and all(outcome.eliminated or not outcome.n_open for outcome in found)
        return Verification(None, max(bounds) if bounds else None, first, n_open, done)

    def leaf(self, node: int, check: DualCheck, bound: Any, lam: Floats, worth: Fraction | None) -> Verification:
        """The bound of a leaf that stays open: by elimination, and in fractions if necessary."""
        order, n_open = self.tree.order_of(node), int(np.count_nonzero(check.n_left() > 1))
        rest = eliminated(check.model, check.left, order, QUICK * self.max_entries)
        bound = bound if rest is None else min(bound, rest)
        if bound <= self.model.least // 2 or (check.target is not None and bound <= check.target):
            return Verification(None, None, None, n_open, rest is not None)
        rounded = self.model.rounded_down(self.model.fraction(bound))
        # Leaves are computed in fractions if their bound exceeds the target by at most this multiple of the rounding
        # error
        near = check.target is not None and bound <= check.target + 4 * self.model.slack
        if not self.exact or not near:
            return Verification(None, rounded, None, n_open, rest is not None)
        if self.exact_model is None:
            self.exact_model = IntegerModel.build(self.graph, self.certificate, True)
        whole = DualCheck(self.exact_model.with_messages(lam), self.exact_model.target(worth), left=check.left)
        proven = whole.run(order, self.max_entries).bound
        bound = None if proven is None else min(proven, rounded)
        return Verification(None, bound, None, n_open, rest is not None)


# -- The bound of a dual point, in integer arithmetic -----------------------------------------------------------------
# For any messages lam and any multipliers w >= 0 of valid inequalities, the value of a labelling x is at most
#
#     constant + offset + sum_i (theta_i - sum_a lam_ia)(x_i) + sum_a (theta_a + sum_i lam_ia + cut_a)(x_a),
#
# where `cut` and `offset` are those inequalities times their multipliers. The largest entry of every term gives the
# bound of all labellings; the largest entry with a state of a variable, that of all labellings with this state.
# States for which that is at most the value of the solution are dropped. What is left is smaller and has a better
# bound, or is maximised exactly, variable by variable, in the order that the certificate gives.


class DualCheck:
    """The dual point on the remaining states."""

    # Labellings up to `target` need not be considered; it is None if there is no feasible one. `stop` is called between
    # rounds, and true to stop with what is known.

    def __init__(
        self, model: IntegerModel, target: Any, stop: Callable[[], bool] = lambda: False, left: Bools | None = None
    ) -> None:
        self.model, self.target, self.stop = model, target, stop
        self.first: Any = None  # the bound before any state was dropped
        self.left: Bools = model.allowed.copy() if left is None else left & model.allowed  # (n_states,)
        self.reach: Integers = np.zeros(0)  # (n_states,) upper bound on the labellings with each state, after `drop`
        self.ptr = model.graph.var_ptr.astype(np.int64)
        self.belief = model.theta_v.copy()  # (n_states,) without the messages
        for group in model.groups:
            for k in range(len(group.shape)):
                np.subtract.at(self.belief, group.states[k], model.lam[group.edges[k]])
        self.tables: list[Integers] = []  # with the messages and the cycles, (n, n_configs) for each group
        for group in model.groups:
            cube = group.tables.reshape(-1, *group.shape)
            for k in range(len(group.shape)):
                cube = cube + group.broadcast(model.lam[group.edges[k]], k)
            table = cube.reshape(group.tables.shape)
            if group.shape == (2, 2):
                table = table + model.cut[group.factors][:, None] * np.array([0, 1, 1, 0], dtype=model.cut.dtype)
            self.tables.append(table)

    def run(self, order: Ints, max_entries: int) -> Verification:
        """Drop states until no more can be dropped, then maximise over the rest if possible."""
        bound = self.drop_all()
        if bound is None:  # no labelling exceeds the target
            return self.outcome(self.target, 0, False)
        rest = eliminated(self.model, self.left, order, max_entries)
        bound = bound if rest is None else rest
        bound = bound if self.target is None else max(bound, self.target)
        return self.outcome(bound, int(np.count_nonzero(self.n_left() > 1)), rest is not None)

    def drop_all(self) -> Any:
        """Drop states until no more can be dropped; return the bound of the rest, None if nothing remains."""
        bound = self.drop()
        self.first = bound if self.first is None else self.first
        while bound is not None and not self.stop():
            n_left = np.count_nonzero(self.left)
            bound = self.drop()
            if np.count_nonzero(self.left) == n_left:
                break
        return bound

    def outcome(self, bound: Any, n_open: int, done: bool) -> Verification:
        """The bound in fractions, None for -inf; without a value."""
        fraction, first = self.model.fraction, self.first
        relaxation = None if first is None else fraction(first)
        if bound is None or bound <= self.model.least // 2:
            return Verification(None, None, relaxation, n_open, done)
        bound = bound if first is None else min(bound, first)
        return Verification(None, self.model.rounded_down(fraction(bound)), relaxation, n_open, done)

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
            cube = entries.reshape(len(top), *group.shape)
            for k, states in enumerate(group.states):  # add losses by state; states without any entry are out
                best = cube.max(axis=tuple(j + 1 for j in range(len(group.shape)) if j != k))
                none = (best <= least // 2).astype(bool)
                out[states[none]] = True
                np.add.at(loss, states, np.where(none, 0, top[:, None] - best))
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
        left = self.left.astype(np.int64)
        return np.add.reduceat(left, self.ptr[:-1]) if len(self.ptr) > 1 else left

    def possible(self, group: FactorGroup) -> Bools:
        """Which configurations are allowed and consist of remaining states: (n, n_configs)."""
        cube = group.allowed.reshape(-1, *group.shape)
        for k in range(len(group.shape)):
            cube = cube & group.broadcast(self.left[group.states[k]], k)
        return cube.reshape(group.allowed.shape)
