"""The best labelling and the best bound so far, kept in the same way by the loop and by methods; what it violates."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from mapmrf.arrays import Floats, Ints, compact, frozen, ranges
from mapmrf.compilation import CompilingStopped
from mapmrf.model.graph import VALUE_CHUNK, FactorGraph
from mapmrf.model.names import Names

if TYPE_CHECKING:
    from mapmrf.kernels.evaluation import Tables

log = logging.getLogger("mapmrf")

KERNEL_FACTORS = 20_000  # number of factors from which labellings are evaluated by a kernel

STRICT = "MAPMRF_STRICT"
"""Environment variable with which a refuted bound is an error, as in the tests, and not only reported."""


class Contradiction(AssertionError):
    """A bound below the value of a labelling: there is a mistake in the code that computed the bound."""


class Bounds:
    """The best upper bound of each source that is still believed."""

    # A bound below the value of a labelling is false. Its source is refuted: none of its bounds counts any longer.

    def __init__(self) -> None:
        self._told: dict[str, float] = {}
        self.least = math.inf
        self.refuted: dict[str, float] = {}  # the false bounds by source
        self.n_withdrawn = 0  # sources that have been withdrawn, refuted or not: `least` may have grown since

    def tell(self, source: str, bound: float) -> None:
        """Keep a bound if it is the best of its source and the source is still believed."""
        if bound < self._told.get(source, math.inf) and source not in self.refuted:
            self._told[source] = bound
            self.least = min(self.least, bound)

    def compare(self, value: float, allowance: Callable[[], float]) -> None:
        """Refute all sources whose bounds are below a value by more than what round-off explains."""
        if not value > self.least:
            return
        lowest = value - allowance()
        false = {source: bound for source, bound in self._told.items() if bound < lowest}
        if false and os.environ.get(STRICT):
            raise Contradiction(f"a labelling has the value {value!r}, above the bounds {false}")
        for source, bound in false.items():
            log.error("%s: the bound %r is below the value %r of a labelling: ignored", source, bound, value)
            self.refuted[source] = bound
            self.withdraw(source)

    @property
    def details(self) -> dict[str, float]:
        return {f"refuted_{source}": bound for source, bound in self.refuted.items()}

    def withdraw(self, *sources: str) -> None:
        for source in sources or tuple(self._told):
            self.n_withdrawn += self._told.pop(source, None) is not None
        self.least = min(self._told.values(), default=math.inf)


class Scale(Protocol):
    """The scale of a model's potentials, whole or in parts."""

    @property
    def unit(self) -> float:
        """The smallest denominator of a relative gap."""

    @property
    def allowance(self) -> float:
        """What round-off explains between a bound and a value."""

    def round_off(self, least: float) -> float:
        """Floating-point error of sums; 0 if it is at most `least`."""


class Incumbent:
    """The best labelling seen, its value, and the best upper bound."""

    # Every labelling that may be better is evaluated here: values reported by others are not trusted. While none is
    # feasible, the best is the one that violates the fewest factors. The bound is inf while there is none.

    scale: Scale

    def __init__(self, graph: FactorGraph, labels: Ints, bound: float = math.inf, threads: int = 1) -> None:
        self.graph, self.scale = graph, graph
        self._evaluator = Evaluator.of(graph, threads) if graph.n_factors >= KERNEL_FACTORS else None
        self.labels: Ints = np.array(labels, dtype=np.int64)
        self.value = math.nan  # not known yet
        self.value = self.evaluate(self.labels)
        self.bound = bound
        self._shortfall: Shortfall | None = None

    def evaluate(self, labels: Ints) -> float:
        if self.value == self.value and np.array_equal(labels, self.labels):  # known, and labels often come again
            return self.value
        if self._evaluator is not None:
            try:
                return self._evaluator.value(labels)
            except CompilingStopped:
                self._evaluator = None
        return self.graph.value(labels)

    def offer(self, labels: Ints, claim: float | None = None) -> float:
        """Keep a copy of the labels if they are the best so far; return their value."""
        # Of labellings that are not feasible, the best is the one that violates the fewest factors. A claimed value is
        # used in place of the true one only where it is no improvement.
        if claim is not None and claim <= self.value and self.value > -math.inf:
            return claim
        value = self.evaluate(labels)
        if value > self.value:
            self._keep(labels, value)
        elif self.value == -math.inf:
            self._offer_infeasible(labels)
        return value

    def prefer(self, labels: Ints) -> None:
        """Keep a copy of the labels if none are better; these win ties."""
        value = self.evaluate(labels)
        if value > self.value or value == self.value > -math.inf:
            self._keep(labels, value)
        elif self.value == -math.inf:
            self._offer_infeasible(labels)

    def _keep(self, labels: Ints, value: float) -> None:
        self.labels, self.value = np.array(labels, dtype=np.int64), value

    def _offer_infeasible(self, labels: Ints) -> None:
        """Keep a copy of the labels if they violate fewer factors, or as many with a larger value of the rest."""
        if np.array_equal(labels, self.labels):
            return
        found = shortfall(self.graph, labels)
        if found.better_than(self.shortfall):
            self._keep(labels, -math.inf)
            self._shortfall = found

    @property
    def shortfall(self) -> Shortfall:
        if self.value > -math.inf:
            return Shortfall(0, self.value)
        if self._shortfall is None:
            self._shortfall = shortfall(self.graph, self.labels)
        return self._shortfall

    def tighten(self, bound: float | None) -> None:
        if bound is not None and bound < self.bound:
            self.bound = bound

    @property
    def gap(self) -> float:
        """Relative gap between bound and value, inf while there is no bound or no finite value."""
        gap = relative_gap(self.value, self.bound, self.scale.unit)
        assert gap is not None
        return gap

    def closed(self, tolerance: float, absolute: float = 0.0) -> bool:
        return self.value > -math.inf and (self.gap <= tolerance or 0 < absolute >= self.bound - self.value)

    @property
    def meets_bound(self) -> bool:
        """Whether the bound meets the value, up to the round-off of sums."""
        roughly = self.closed(1e-6)  # otherwise round-off, which takes a while to compute, does not matter
        return self.closed(0.0) or (roughly and self.closed(0.0, self.scale.allowance))

    @property
    def optimal(self) -> bool:
        """Whether the bound meets the value, up to the round-off of sums, or leaves no room for a better one."""
        if self.meets_bound:
            return True
        known = self.value > -math.inf and self.bound < math.inf
        return known and self.bound - self.value <= self.graph.granularity.slack


class CheckedIncumbent(Incumbent):
    """An incumbent whose bounds have sources, which are refuted by the value of any labelling that they exclude."""

    def __init__(self, graph: FactorGraph, labels: Ints, threads: int = 1) -> None:
        self.bounds = Bounds()
        super().__init__(graph, labels, threads=threads)

    def _keep(self, labels: Ints, value: float) -> None:
        super()._keep(labels, value)
        self._compare()

    def tighten(self, bound: float | None, source: str = "") -> None:
        """Keep an upper bound if it is the best so far, unless its source has been refuted."""
        if bound is not None:
            self.bounds.tell(source, bound)
            self._compare()

    def withdraw(self, *sources: str) -> None:
        self.bounds.withdraw(*sources)
        self.bound = max(self.bounds.least, self.value)

    def _compare(self) -> None:
        self.bounds.compare(self.value, lambda: self.scale.allowance)
        self.bound = max(self.bounds.least, self.value)  # what is missing is round-off


# -- The relative gap between a bound and a value, and when it is small enough ----------------------------------------


GAP_TOLERANCE = 1e-6  # default relative gap at which a run may end


def relative_gap(value: float, bound: float | None, unit: float = 1.0) -> float | None:
    """(bound - value) / max(unit, |value|), never negative; None without a bound, inf while no finite value is known.

    `unit` is `FactorGraph.unit`: 1, or less in a model whose potentials are all small.
    """
    if bound is None:
        return None
    if bound == value:
        return 0.0
    if not math.isfinite(value):
        return math.inf
    return max(0.0, (bound - value) / max(unit, abs(value)))


def is_closed(value: float, bound: float, unit: float, tolerance: float) -> bool:
    """Return whether a labelling is feasible and the relative gap between its value and a bound within a tolerance."""
    gap = relative_gap(value, bound, unit)
    return gap is not None and gap <= tolerance and value > -math.inf


# -- Violations of a labelling of log potential -inf ------------------------------------------------------------------


@dataclass(frozen=True)
class Violation:
    """A factor whose potential is -inf, a hard constraint that does not hold, or a variable in a forbidden state.

    Attributes
    ----------
    factor
        Index of the factor in the graph; None for a constraint, a unary potential, and the constant.
    variables, states
        The variables and their states, by name where the model has names, else by index.
    constraint
        Index of the constraint in the graph; None for everything else.
    name
        Name of the constraint, if it was given one.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0], [0]], [[0, 1]], [[float("-inf")]])
    >>> mapmrf.solve(graph).violated
    (Violation(factor=0, variables=(0, 1), states=(0, 0)),)
    >>> print(mapmrf.solve(graph).violated[0])
    factor 0 (0=0, 1=0)
    """

    factor: int | None
    variables: tuple[int | str, ...]
    states: tuple[int | str, ...]
    constraint: int | None = None
    name: str = ""

    def __repr__(self) -> str:
        shown = f"Violation(factor={self.factor}, variables={self.variables}, states={self.states}"
        shown += "" if self.constraint is None else f", constraint={self.constraint}"
        return f"{shown}, name={self.name!r})" if self.name else f"{shown})"

    def __str__(self) -> str:
        pairs = ", ".join(f"{name}={state}" for name, state in zip(self.variables, self.states, strict=True))
        if self.constraint is not None:
            return f"constraint {repr(self.name) if self.name else self.constraint} ({pairs})"
        if self.factor is None:
            return pairs or "the constant"
        return f"factor {self.factor} ({pairs})"


class Shortfall(NamedTuple):
    """Measure of an infeasible labelling: its number of violations, and the value of the rest."""

    n_violated: int
    rest: float

    @property
    def value(self) -> float:
        return -math.inf if self.n_violated else self.rest

    def better_than(self, other: Shortfall) -> bool:
        return (self.n_violated, -self.rest) < (other.n_violated, -other.rest)


def _terms(graph: FactorGraph, labels: Ints) -> tuple[Floats, Floats, Floats]:
    """Potentials of the variables and the factors, and values of constraints."""
    of_factors = np.zeros(graph.n_factors)
    if graph.n_factors:
        inside = np.add.reduceat(labels[graph.scope] * graph.stride, graph.scope_ptr[:-1])
        of_factors = graph.theta_t[graph.table_ptr[graph.table_of] + inside]
        if graph.weight is not None:
            of_factors = of_factors * graph.weight
    of_constraints = np.zeros(0) if graph.constraints is None else graph.constraints.values(labels)
    return graph.theta_v[graph.var_ptr[:-1] + labels], of_factors, of_constraints


def shortfall(graph: FactorGraph, labels: Ints) -> Shortfall:
    terms = np.concatenate([*_terms(graph, labels), [graph.constant]])
    bad = np.isneginf(terms)
    return Shortfall(int(np.count_nonzero(bad)), float(terms[~bad].sum()))


def violations(graph: FactorGraph, labels: Ints) -> tuple[Violation, ...]:
    """List the violations of a labelling: the constant, variables, factors, then hard constraints.

    Of a model with evidence, they are those of the model before: the tables that the evidence contradicts.
    """
    before = () if graph.origin is None else tuple(_listed(graph.origin[0], labels))
    return before or tuple(_listed(graph, labels))


def _listed(graph: FactorGraph, labels: Ints) -> Iterator[Violation]:
    if graph.constant == -np.inf:
        yield Violation(None, (), ())
    of_variables, of_factors, of_constraints = _terms(graph, labels)
    bad = np.flatnonzero(np.isneginf(of_variables))
    for name, state in zip(*_named(graph.names, bad, labels), strict=True):
        yield Violation(None, (name,), (state,))
    bad = np.flatnonzero(np.isneginf(of_factors))
    size = graph.arity[bad]
    variables, states = _named(graph.names, graph.scope[ranges(graph.scope_ptr[bad], size)], labels)
    end = 0
    for a, n in zip(bad.tolist(), size.tolist(), strict=True):
        begin, end = end, end + n
        yield Violation(a, tuple(variables[begin:end]), tuple(states[begin:end]))
    for c in np.flatnonzero(np.isneginf(of_constraints)).tolist():
        assert graph.constraints is not None
        variables, states = _named(graph.names, graph.constraints.variables(c), labels)
        yield Violation(None, tuple(variables), tuple(states), constraint=c, name=graph.constraints.names[c])


def _named(names: Names | None, scope: Ints, labels: Ints) -> tuple[list[int | str], list[int | str]]:
    variables: list[int | str] = scope.tolist()
    states: list[int | str] = labels[scope].tolist()
    if names is not None and names.states is not None:
        states = [names.states[i][k] for i, k in zip(scope.tolist(), labels[scope].tolist(), strict=True)]
    if names is not None:
        variables = [names.variables[i] for i in scope.tolist()]
    return variables, states


# -- Values of labellings of a large model, computed by a kernel on several threads -----------------------------------


Terms = Callable[..., None]  # a kernel that looks up some terms of a sum

_known: WeakKeyDictionary[FactorGraph, ReferenceType[Evaluator]] = WeakKeyDictionary()


class Evaluator:
    """Evaluates labellings of a model, bit for bit as `FactorGraph.value` does."""

    # Terms are added up in the fixed chunks of `FactorGraph.value`, which are shared among threads. The last labelling
    # evaluated is remembered: several parts of a run ask for the same one.

    def __init__(self, graph: FactorGraph, threads: int = 1) -> None:
        self.graph, self.threads = graph, threads
        self.tables = tables_of(graph)
        self._lock = Lock()
        self._last: Ints = np.zeros(0, dtype=np.uint8)
        self._value = 0.0

    @classmethod
    def of(cls, graph: FactorGraph, threads: int = 1) -> Evaluator:
        """The evaluator of a model: the one already in use, if any."""
        known = _known.get(graph)
        found = None if known is None else known()
        if found is None:
            found = cls(graph, threads)
            _known[graph] = ref(found)
        return found

    def value(self, labels: Ints) -> float:
        """Log potential of a labelling; raises GraphError unless there is a legal label for every variable."""
        from mapmrf.kernels.evaluation import factor_terms, unary_terms

        with self._lock:
            if not np.array_equal(labels, self._last):
                legal = self._checked(labels)
                total = self.graph.constant
                for terms, n in ((unary_terms, self.graph.n_vars), (factor_terms, self.graph.n_factors)):
                    for part in self._chunks(terms, n, legal):
                        total += part
                limits = self.graph.constraints
                self._value = total if limits is None else total + limits.value(legal)
                self._last = compact(legal).copy()
            return self._value

    def _checked(self, labels: Ints) -> Ints:
        from mapmrf.kernels.evaluation import LEGAL, first_illegal

        card = self.graph.card
        if getattr(labels, "dtype", None) == np.int64 and labels.shape == card.shape and labels.flags.c_contiguous:
            labels = frozen(labels.view())
            if first_illegal(card, labels) == LEGAL:
                return labels
        return frozen(self.graph.check_labels(labels))

    def _chunks(self, terms: Terms, n: int, labels: Ints) -> Iterator[float]:
        from mapmrf.run.pool import Workers

        n_chunks = -(-n // VALUE_CHUNK)
        with closing(Workers(max(1, min(self.threads, n_chunks)))) as workers:
            calls = [(terms, labels, begin, end, n) for begin, end in workers.spans(n_chunks)]
            for sums in workers.run(self._some_chunks, calls):
                yield from sums

    def _some_chunks(self, terms: Terms, labels: Ints, begin: int, end: int, n: int) -> list[float]:
        begin, end = begin * VALUE_CHUNK, min(n, end * VALUE_CHUNK)
        return [float(some.sum()) for some in chunks_of_terms(terms, self.tables, labels, begin, end)]


def tables_of(graph: FactorGraph) -> Tables:
    from mapmrf.kernels.evaluation import Tables  # do not load numba for small models

    return Tables(
        graph.card, graph.var_ptr, graph.theta_v,
        graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t,
        frozen(np.zeros(0)) if graph.weight is None else graph.weight,
    )  # fmt: skip


def chunks_of_terms(terms: Terms, tables: Tables, labels: Ints, begin: int, end: int) -> Iterator[Floats]:
    """The terms begin : end of a sum, in one array after another, which share their memory."""
    buffer: Floats = np.empty(min(VALUE_CHUNK, end - begin))
    for first in range(begin, end, VALUE_CHUNK):
        some = buffer[: end - first]
        terms(tables, labels, first, some)
        yield some
