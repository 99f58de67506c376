"""The checker: the bound that a certificate proves, in whole numbers alone.

It imports the graph and the readers, and nothing else of the package. For any messages lam and any multipliers w >= 0
of valid inequalities, the value of a labelling x is at most

    constant + offset + sum_i (theta_i - sum_a lam_ia)(x_i) + sum_a (theta_a + sum_i lam_ia + cut_a)(x_a),

where `cut` and `offset` are those inequalities times their multipliers. The largest entry of every term gives the bound
of all labellings; the largest entry with a state of a variable, that of all labellings with this state. States for
which that is at most the value of the solution are dropped. What is left is smaller and has a better bound, or is
maximised exactly, variable by variable, in the order that the certificate gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Bools, Ints
from mapmrf.certificates.certificate import Certificate, InvalidCertificate
from mapmrf.certificates.leftover import eliminated
from mapmrf.certificates.whole import FactorGroup, Whole, WholeModel, exact_value
from mapmrf.graph import FactorGraph

MOST_ENTRIES = 1 << 22
"""Entries that the tables of elimination may have together."""


@dataclass(frozen=True)
class Verification:
    """What a certificate proves.

    Attributes
    ----------
    value
        The value of the solution, exactly; None if it is -inf.
    bound
        The bound that is proven, exactly; None if it is -inf: no labelling is feasible.
    relaxation
        The bound before any state is dropped.
    n_open
        Variables that have more than one state left.
    eliminated
        Whether these were maximised exactly.

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
        """The difference of bound and value, None if one of them is infinite."""
        return None if self.bound is None or self.value is None else self.bound - self.value

    @property
    def optimal(self) -> bool:
        """Whether the solution is proven optimal, or the model infeasible."""
        return self.bound is None or self.gap == 0

    def relative_gap(self) -> float:
        """The gap relative to the value, where that is above 1; inf for a solution that is not feasible.

        Examples
        --------
        >>> Verification(Fraction(4), Fraction(5), Fraction(5), 0, False).relative_gap()
        0.25
        """
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
        A labelling, such as the one that was found.
    certificate
        The certificate.
    exact
        Whether to compute in fractions. Otherwise potentials are rounded up to multiples of a power of 2, at which all
        sums fit into 64 bits: much faster, and the bound is a bound still.
    max_entries
        Entries of the tables of elimination; beyond that the bound stays what it was before.

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
    certificate.check(graph)
    labels = graph.check_labels(labels)
    value = exact_value(graph, labels)
    if graph.constant == -math.inf:
        return Verification(None, None, None, 0, False)
    model = WholeModel.build(graph, certificate, exact)
    target = None if value is None else model.value(labels) + model.slack
    found = DualCheck(model, target).run(certificate.order, max_entries)
    if found.bound is not None and certificate.bound < math.inf:
        found = _check_claim(model, certificate, found, max_entries)
    return Verification(value, *found)


def _check_claim(model: WholeModel, certificate: Certificate, found: Outcome, max_entries: int) -> Outcome:
    """Raise InvalidCertificate unless the claim is proven: as it is, or if states below it are dropped."""
    if certificate.bound > -math.inf and found.bound is not None:
        claim = Fraction(certificate.bound) + model.fraction(2 * model.slack)
        if found.bound > claim:
            target = math.floor(claim * Fraction(2) ** model.shift)
            found = min(found, DualCheck(model, target).run(certificate.order, max_entries), key=_bound_of)
        if found.bound is None or found.bound <= claim:
            return found
    proven = float(_bound_of(found))
    raise InvalidCertificate(
        f"the bound claimed is {certificate.bound!r}, but {proven!r} is what the certificate proves"
    )


def _bound_of(found: Outcome) -> Fraction | float:
    return -math.inf if found.bound is None else found.bound


class Outcome(NamedTuple):
    """What a dual point proves: see `Verification`."""

    bound: Fraction | None
    relaxation: Fraction | None
    n_open: int
    eliminated: bool


class DualCheck:
    """The dual point on the states that are left.

    Attributes
    ----------
    target
        Labellings worth no more than this need not be looked at; None if there is no feasible one.
    left : (n_states,)
        The states that are left.
    belief : (n_states,)
        The unary potentials without the messages.
    first
        The bound before any state was dropped.
    stop
        Asked between rounds whether to be content with what is known.
    """

    def __init__(self, model: WholeModel, target: Any, stop: Callable[[], bool] = lambda: False) -> None:
        self.model, self.target, self.stop = model, target, stop
        self.first: Any = None
        self.left: Bools = model.allowed.copy()
        self.ptr = model.graph.var_ptr.astype(np.int64)
        self.belief = model.theta_v.copy()
        for group in model.groups:
            for k, size in enumerate(group.shape):
                states, edges = (at[:, k][:, None] + np.arange(size) for at in (group.state_at, group.edge_at))
                np.subtract.at(self.belief, states, model.lam[edges])
        self.tables = [_reparametrised(model, group) for group in model.groups]

    def run(self, order: Ints, max_entries: int) -> Outcome:
        """Drop states until no more can be, then maximise what is left if that is possible."""
        bound = self.drop()
        self.first = bound if self.first is None else self.first
        while bound is not None and not self.stop():
            n_left = np.count_nonzero(self.left)
            bound = self.drop()
            if np.count_nonzero(self.left) == n_left:
                break
        if bound is None:  # no labelling is worth more than the target
            return self.outcome(self.target, 0, False)
        rest = eliminated(self.model, self.left, order, max_entries)
        bound = bound if rest is None else rest
        bound = bound if self.target is None else max(bound, self.target)
        return self.outcome(bound, int(np.count_nonzero(self.n_left() > 1)), rest is not None)

    def outcome(self, bound: Any, n_open: int, done: bool) -> Outcome:
        """The bound in fractions; None for -inf."""
        fraction, first = self.model.fraction, self.first
        relaxation = None if first is None else fraction(first)
        if bound is None or bound <= self.model.least // 2:
            return Outcome(None, relaxation, n_open, done)
        bound = bound if first is None else min(bound, first)
        return Outcome(fraction(self.rounded_down(bound)), relaxation, n_open, done)

    def rounded_down(self, bound: Any) -> Any:
        """The largest number up to a bound that values can be: where numbers are exact, a multiple of what all share.

        Potentials that are whole numbers have whole sums.
        """
        model = self.model
        if model.slack:
            return bound
        shared = math.gcd(int(model.constant), *set(model.theta_v.tolist()))
        for group in model.groups:
            shared = 1 if shared == 1 else math.gcd(shared, *set(group.tables.ravel().tolist()))
        return bound if shared == 0 else bound // shared * shared

    def drop(self) -> Any:
        """The bound of the states left, None if some variable has none; drop those that do not reach the target."""
        model, least, ptr = self.model, self.model.least, self.ptr
        belief = np.where(self.left, self.belief, least)
        bound, out = model.constant + model.offset, ~self.left
        if len(ptr) > 1:
            top = np.maximum.reduceat(belief, ptr[:-1])
            if any(number <= least // 2 for number in top.tolist()):
                return None
            bound += sum(top.tolist())
            loss = np.repeat(top, np.diff(ptr)) - belief
        for group, table in zip(model.groups, self.tables, strict=True):
            entries = np.where(self.possible(group), table, least)
            top = entries.max(axis=1)
            if any(number <= least // 2 for number in top.tolist()):
                return None
            bound += sum(top.tolist())
            self.add_losses(group, entries, top, (loss, out))
        if len(ptr) == 1:
            return bound
        reach = np.where(out, least, bound - loss)
        # Every labelling has one of the states of each variable.
        bound = min(bound, *np.maximum.reduceat(reach, ptr[:-1]).tolist())
        if bound <= least // 2:
            return None
        self.left = ~out if self.target is None else ~out & (reach > self.target).astype(bool)
        return bound

    def n_left(self) -> Ints:
        """How many states every variable has left."""
        return np.array([np.count_nonzero(self.left[a:b]) for a, b in pairwise(self.ptr.tolist())], dtype=np.int64)

    def possible(self, group: FactorGroup) -> Bools:
        """Whether configurations are allowed, and of states that are left: (n, n_configs)."""
        possible = group.allowed
        for k in range(len(group.shape)):
            possible = possible & self.left[group.state_at[:, k][:, None] + group.states(k)]
        return possible

    def add_losses(self, group: FactorGroup, entries: Whole, top: Whole, sums: tuple[Whole, Bools]) -> None:
        """Add what the factors lose with each state of their variables; mark those that they have no entry for."""
        loss, out = sums
        cube = entries.reshape(len(top), *group.shape)
        for k, size in enumerate(group.shape):
            best = cube.max(axis=tuple(j + 1 for j in range(len(group.shape)) if j != k))
            states = group.state_at[:, k][:, None] + np.arange(size)
            none = (best <= self.model.least // 2).astype(bool)
            out[states[none]] = True
            np.add.at(loss, states, np.where(none, 0, top[:, None] - best))


def _reparametrised(model: WholeModel, group: FactorGroup) -> Whole:
    """The tables with the messages and the cycles: (n, n_configs)."""
    table = group.tables
    for k in range(len(group.shape)):
        table = table + model.lam[group.edge_at[:, k][:, None] + group.states(k)]
    if group.shape == (2, 2):
        table = table + model.cut[group.factors][:, None] * np.array([0, 1, 1, 0], dtype=model.cut.dtype)
    return table
