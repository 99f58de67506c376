"""BestLabellings: several labellings of one model, in descending order of value."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

from mapmrf.arrays import Ints
from mapmrf.errors import FormatError
from mapmrf.model.graph import FactorGraph
from mapmrf.run.result import Result, Status, relative_gap


@dataclass(frozen=True, eq=False)
class BestLabellings(Sequence[Result]):
    """Labellings in descending order of value: a sequence of Result.

    The `bound` of each Result is an upper bound on all labellings but those before it, and its status says whether it
    is attained: ``optimal`` for the second one proves that only the first is better. With a distance, labellings that
    are too close to those before it are ignored.

    Attributes
    ----------
    results
        The labellings; fewer than requested if there are no more, or if the time was up.
    bound
        Upper bound on the value of all other labellings; -inf if there are none of finite value.
    status
        ``optimal`` if these are proven to be the best, in this order; ``infeasible`` if there is no labelling.
    runtime
        Total seconds.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> best = mapmrf.solve_best(graph, 3)
    >>> [(result.labels.tolist(), result.value) for result in best]
    [([1, 1], 3.0), ([0, 0], 2.0), ([1, 0], 1.0)]
    >>> best.bound, best.status.value
    (0.0, 'optimal')
    """

    results: tuple[Result, ...]
    bound: float
    status: Status
    runtime: float = 0.0

    def __len__(self) -> int:
        return len(self.results)

    @overload
    def __getitem__(self, place: int) -> Result: ...

    @overload
    def __getitem__(self, place: slice) -> tuple[Result, ...]: ...

    def __getitem__(self, place: int | slice) -> Result | tuple[Result, ...]:
        return self.results[place]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __repr__(self) -> str:
        values = ", ".join(f"{result.value:.6f}" for result in self.results[:3])
        more = ", ..." if len(self) > 3 else ""
        return f"BestLabellings({len(self)}: {values}{more}, others at most {self.bound:.6f}, {self.status.value})"

    def summary(self, *, shown: int = 30) -> str:
        """Return a line per labelling, with its first `shown` labels, and the bound on all others.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
        >>> print(mapmrf.solve_best(graph, 2).summary())
          1  3.000000  optimal  1 1
          2  2.000000  optimal  0 0
        all others at most 1.000000
        """
        lines = []
        width = max((len(f"{result.value:.6f}") for result in self), default=0)
        kind = max((len(result.status.value) for result in self), default=0)
        for rank, result in enumerate(self, start=1):
            more = f" ... ({len(result.labels)} in all)" if len(result.labels) > shown else ""
            if result.names is not None:
                named = list(result.assignment.items())[:shown]
                text = " ".join(f"{name}={state}" for name, state in named)
            else:
                text = " ".join(map(str, result.labels[:shown].tolist()))
            lines.append(f"{rank:3d}  {result.value:{width}.6f}  {result.status.value:{kind}}  {text}{more}")
        if not self.results:
            lines.append(f"no labelling: {self.status.meaning}")
        others = "no others are possible" if self.bound == -math.inf else f"all others at most {self.bound:.6f}"
        return "\n".join([*lines, others])

    def to_json(self) -> str:
        """A JSON list of results, as `Result.to_json` writes them.

        Examples
        --------
        >>> import json, mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
        >>> [one["labels"] for one in json.loads(mapmrf.solve_best(graph, 2).to_json())]
        [[1, 1], [0, 0]]
        """
        return "[" + ", ".join(result.to_json() for result in self.results) + "]"

    @classmethod
    def from_json(cls, text: str) -> BestLabellings:
        """Read labellings written by `to_json`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
        >>> again = mapmrf.BestLabellings.from_json(mapmrf.solve_best(graph, 2).to_json())
        >>> again[1].labels.tolist(), again.bound
        ([0, 0], 1.0)
        """
        try:
            results = tuple(Result.from_json(json.dumps(one)) for one in json.loads(text))
            bound = min((float(result.details["others"]) for result in results), default=-math.inf)
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"not labellings written by mapmrf: {' '.join(str(error).split())}") from None
        return cls(results, bound, common_status(results), max((one.runtime for one in results), default=0.0))


def answer(graph: FactorGraph, labels: Ints, value: float, bound: float, template: Result) -> Result:
    """A labelling as a Result, with its bound and the status that follows.

    Method, options, seed and, if nothing is proven, the status are those of a template.
    """
    gap = relative_gap(value, bound, graph.unit)
    assert gap is not None
    status = Status.CONVERGED if template.status.closes_gap else template.status
    if bound - value <= graph.allowance:
        status = Status.OPTIMAL
    elif gap <= 1e-6:
        status = Status.WITHIN_TOLERANCE
    bare = Result.of_labels(graph, labels, status, template.method, value)
    return replace(bare, bound=max(bound, value), options=template.options, seed=template.seed)


def common_status(results: Sequence[Result]) -> Status:
    """The status of several results: the first that is not ``optimal``, if there is one."""
    if not results:
        return Status.INFEASIBLE
    statuses = [result.status for result in results]
    unproven = [status for status in statuses if not status.closes_gap]
    if unproven:
        return unproven[0]
    return Status.WITHIN_TOLERANCE if Status.WITHIN_TOLERANCE in statuses else Status.OPTIMAL
