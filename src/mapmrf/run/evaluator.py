"""Values of labellings of a large model, computed by a kernel on several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from threading import Lock
from weakref import ReferenceType, WeakKeyDictionary, ref

import numpy as np

from mapmrf.arrays import Floats, Ints, compact, frozen
from mapmrf.model.graph import VALUE_CHUNK, FactorGraph
from mapmrf.run.workers import Workers

Terms = Callable[..., None]
"""A kernel that looks up some terms of a sum."""

_known: WeakKeyDictionary[FactorGraph, ReferenceType[Evaluator]] = WeakKeyDictionary()


class Evaluator:
    """Evaluates labellings of a model, bit for bit as `FactorGraph.value` does.

    Terms are added up in the fixed chunks of `FactorGraph.value`, which are shared among threads. The last labelling
    evaluated is remembered: several parts of a run ask for the same one.

    Parameters
    ----------
    graph
        The model.
    threads
        Number of threads that share the chunks, if there are several.

    Examples
    --------
    >>> import numpy as np
    >>> from mapmrf.datasets import grid
    >>> from mapmrf.run.evaluator import Evaluator
    >>> graph = grid(20, 20, seed=0)
    >>> Evaluator(graph).value(graph.unary_labels) == graph.value(graph.unary_labels)
    True
    """

    def __init__(self, graph: FactorGraph, threads: int = 1) -> None:
        from mapmrf.kernels.evaluation import Tables  # do not load numba for small models

        self.graph, self.threads = graph, threads
        self.tables = Tables(
            graph.card, graph.var_ptr, graph.theta_v,
            graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t,
            frozen(np.zeros(0)) if graph.weight is None else graph.weight,
        )  # fmt: skip
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
        with self._lock:
            if not np.array_equal(labels, self._last):
                legal = self._checked(labels)
                self._value = self._sum(legal)
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

    def _sum(self, labels: Ints) -> float:
        from mapmrf.kernels.evaluation import factor_terms, unary_terms

        total = self.graph.constant
        for terms, n in ((unary_terms, self.graph.n_vars), (factor_terms, self.graph.n_factors)):
            for part in self._chunks(terms, n, labels):
                total += part
        return total if self.graph.constraints is None else total + self.graph.constraints.value(labels)

    def _chunks(self, terms: Terms, n: int, labels: Ints) -> Iterator[float]:
        """The sums of all chunks, in order."""
        n_chunks = -(-n // VALUE_CHUNK)
        with closing(Workers(max(1, min(self.threads, n_chunks)))) as workers:
            calls = [(terms, labels, begin, end, n) for begin, end in workers.spans(n_chunks)]
            for sums in workers.run(self._some_chunks, calls):
                yield from sums

    def _some_chunks(self, terms: Terms, labels: Ints, begin: int, end: int, n: int) -> list[float]:
        buffer: Floats = np.empty(min(VALUE_CHUNK, n))
        sums = []
        for first in range(begin * VALUE_CHUNK, min(n, end * VALUE_CHUNK), VALUE_CHUNK):
            some = buffer[: n - first]
            terms(self.tables, labels, first, some)
            sums.append(float(some.sum()))
        return sums
