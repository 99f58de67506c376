"""The checker: the bound that a certificate proves, in integer arithmetic.

It imports the graph and the readers, and nothing else from the package. `DualCheck` computes the bound of a dual point,
`TreeCheck` that of a tree of cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from numpy.typing import ArrayLike

from mapmrf.arrays import Ints
from mapmrf.certificates.certificate import Certificate
from mapmrf.certificates.dual_check import MOST_ENTRIES, DualCheck, Outcome
from mapmrf.certificates.invalid import InvalidCertificate
from mapmrf.certificates.reduced import without
from mapmrf.certificates.tree_check import TreeCheck
from mapmrf.certificates.whole import WholeModel, exact_value
from mapmrf.constraints.as_tables import rewrite
from mapmrf.model.graph import FactorGraph


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
        """The gap relative to the value if that is above 1; inf for an infeasible solution.

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
    prover: Prover = _PointCheck(graph, certificate, exact, max_entries)
    if certificate.tree.n:
        prover = TreeCheck(graph, certificate, exact, max_entries)
    found = prover.above(worth, labels)
    if found.bound is not None and certificate.bound < math.inf:
        found = _check_claim(prover, certificate.bound, found)
    return Verification(value, *found)


class Prover(Protocol):
    """Something that proves a bound."""

    def above(self, worth: Fraction | None, labels: Ints | None) -> Outcome:
        """The bound if labellings up to `worth`, the value of `labels`, need not be considered."""

    @property
    def rounding(self) -> Fraction:
        """Largest possible excess of the bound over the exact one."""


class _PointCheck:
    """The bound of a certificate without cases."""

    def __init__(self, graph: FactorGraph, certificate: Certificate, exact: bool, max_entries: int) -> None:
        self.model = WholeModel.build(graph, certificate, exact)
        self.order, self.max_entries = certificate.order, max_entries

    def above(self, worth: Fraction | None, labels: Ints | None) -> Outcome:
        return DualCheck(self.model, self.model.target(worth, labels)).run(self.order, self.max_entries)

    @property
    def rounding(self) -> Fraction:
        return self.model.fraction(2 * self.model.slack)


def _check_claim(prover: Prover, bound: float, found: Outcome) -> Outcome:
    """Raise InvalidCertificate unless the claim is proven: directly, or by ignoring labellings below it."""
    if bound > -math.inf and found.bound is not None:
        claim = Fraction(bound) + prover.rounding
        if found.bound > claim:
            found = min(found, prover.above(claim, None), key=_bound_of)
        if found.bound is None or found.bound <= claim:
            return found
    proven = float(_bound_of(found))
    raise InvalidCertificate(f"the claimed bound is {bound!r}, but the certificate proves {proven!r}")


def _bound_of(found: Outcome) -> Fraction | float:
    return -math.inf if found.bound is None else found.bound
