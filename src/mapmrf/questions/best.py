"""The m best labellings of a model, plain or diverse."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, overload

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.constraints import at_most_k
from mapmrf.constraints.as_tables import rewrite, without_constraints
from mapmrf.errors import FormatError, OptionError, UnsupportedModel, needed
from mapmrf.model.graph import FactorGraph
from mapmrf.questions.ranked import LawlerSearch, SolveCalls, collected_messages, memory_of, rank_by_elimination
from mapmrf.run import interrupts
from mapmrf.run.method import Method, check_number
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result, Status, relative_gap
from mapmrf.run.solve import Evidence, as_graph, check_limits, usable_cores

Ranking = tuple[list[tuple[Ints, float, float]], float, Status | None, Result]
"""Labellings with value and bound, a bound on all others, the reason of an early end, and a template of results."""


@dataclass(frozen=True)
class Diversity:
    """How labellings must differ from those before them.

    Attributes
    ----------
    distance
        Minimum number of variables in which each labelling differs from every one before it.
    penalty
        Penalty for every label in common with an earlier labelling; it only decides which labelling is chosen and is
        not part of its value. Either a distance above 1 or a penalty can be given.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> best = mapmrf.solve_best(graph, 2, diverse=mapmrf.Diversity(distance=2))
    >>> [result.labels.tolist() for result in best]
    [[1, 1], [0, 0]]
    """

    distance: int = 1
    penalty: float = 0.0

    def __post_init__(self) -> None:
        check_number("distance", self.distance, int)
        check_number("penalty", self.penalty)
        if self.distance < 1:
            raise OptionError(f"distance is {self.distance}, expected at least 1")
        if not 0 <= self.penalty < math.inf:
            raise OptionError(f"penalty is {self.penalty}, expected a finite number of at least 0")
        if self.distance > 1 and self.penalty > 0:
            raise OptionError("found a distance and a penalty, expected one of them")

    @property
    def plain(self) -> bool:
        """Whether labellings need only be different."""
        return self.distance == 1 and self.penalty == 0


def solve_best(
    graph: FactorGraph | str | os.PathLike[str],
    m: int,
    method: str | Method = DEFAULT_METHOD,
    *,
    diverse: int | Diversity | None = None,
    evidence: Evidence = None,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = 1,
    **options: Any,
) -> BestLabellings:
    """Find the m best labellings, in descending order of value, and an upper bound on all others.

    With ``auto`` and ``branch``, if the tables of elimination fit into the method's memory, all labellings are read
    from the tables of one or a few eliminations: this is exact. Other models are divided into parts after each
    labelling (Lawler's partition), which are solved as far as their upper bounds require: this is exact if `solve`
    proves its answers.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    m
        Number of labellings.
    method
        The method that solves parts of the model, by name or as an object.
    diverse
        Minimum distance of each labelling from all before it, as a number of variables, or a `Diversity`. With a
        distance, each labelling is the best of the remaining ones: proven if the model with counters can be eliminated,
        otherwise as far as Lagrangian multipliers show.
    evidence
        Observed variables, as for `solve`.
    time_limit
        Total time in seconds, after which the labellings known so far are returned; so they are on Ctrl-C.
    seed, threads
        As for `solve`.
    **options
        Options of the method by name.

    Returns
    -------
    BestLabellings
        A sequence of Result, with an upper bound on all other labellings. It is shorter than m if there are no more
        labellings of finite value.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> best = mapmrf.solve_best(graph, 2)
    >>> best[1].labels.tolist(), best[1].value, best.bound
    ([0, 0], 2.0, 1.0)
    >>> [result.labels.tolist() for result in mapmrf.solve_best(graph, 2, diverse=2)]
    [[1, 1], [0, 0]]
    """
    began = time.perf_counter()
    chosen = make_method(method, options, also=("diverse", "evidence", "time_limit", "seed", "threads"))
    wanted = diverse if isinstance(diverse, Diversity) else Diversity() if diverse is None else Diversity(diverse)
    check_number("m", m, int)
    if m < 1:
        raise OptionError(f"m is {m}, expected at least 1")
    check_limits(time_limit, threads, seed)
    model = as_graph(graph, evidence=evidence)
    deadline = math.inf if time_limit is None else began + time_limit
    calls = SolveCalls(chosen, seed, usable_cores() if threads is None else threads, deadline, began)
    with interrupts.Interrupts():
        if not wanted.plain:
            ranking = _rank_diverse(model, m, wanted, calls)
        elif model.constraints is not None:
            ranking = _rank_constrained(model, m, calls)
        else:
            ranking = _rank_by_elimination(model, m, calls) or _rank_by_partition(model, m, calls)
        return _assemble(model, m, ranking, calls)


def _rank_diverse(graph: FactorGraph, m: int, wanted: Diversity, calls: SolveCalls) -> Ranking:
    """One labelling after another, each at a distance from all before it."""
    search = DiverseSearch(graph, m, calls)
    stopped = search.run(wanted.distance, wanted.penalty)
    assert search.template is not None
    return search.answers, search.others, stopped, search.template


def _rank_by_elimination(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranking | None:
    """All labellings from the messages of elimination; None if these do not fit into memory."""
    ranked = rank_by_elimination(graph, m, calls)
    if ranked is None or not (ranked.labels or ranked.stopped is None):
        return None
    values = sorted(((graph.value(labels), -n) for n, labels in enumerate(ranked.labels)), reverse=True)
    answers = [(ranked.labels[-minus], value, value) for value, minus in values]
    others = min(ranked.others, values[-1][0]) if values else ranked.others
    options = asdict(calls.method)  # type: ignore[call-overload]
    bare = Result.of_labels(graph, graph.unary_labels, Status.CONVERGED, calls.method.name)
    return answers, others, ranked.stopped, replace(bare, options=options, seed=calls.seed)


def _rank_by_partition(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranking:
    search = LawlerSearch(graph, m, calls)
    stopped = search.run()
    assert search.template is not None
    return search.answers, search.others, stopped, search.template


def _rank_constrained(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranking:
    """Use tables in place of the constraints if these can be eliminated, or if the method needs them."""
    # Otherwise labellings are excluded by further constraints, one after another: for a method that supports
    # constraints natively, the tables would be much harder.
    native = calls.method.native_constraints
    try:
        rewriting = rewrite(graph)
    except UnsupportedModel:  # sums of too many values
        if not native:
            raise
        return _rank_diverse(graph, m, Diversity(), calls)
    found = _rank_by_elimination(rewriting.graph, m, calls)
    if found is None and native:
        return _rank_diverse(graph, m, Diversity(), calls)
    ranked, others, stopped, template = found or _rank_by_partition(rewriting.graph, m, calls)
    answers = []  # the rewritten model has the same labellings in the same order
    for lifted, value, bound in ranked:
        labels = rewriting.project(lifted)
        own = rewriting.original.value(labels)  # round-off may differ
        answers.append((labels, own, own if bound == value else max(bound, own)))
    return sorted(answers, key=lambda answer: -answer[1]), others, stopped, template


def _assemble(graph: FactorGraph, m: int, ranking: Ranking, calls: SolveCalls) -> BestLabellings:
    answers, others, stopped, template = ranking
    if stopped is not None:
        template = replace(template, status=stopped)
    runtime = time.perf_counter() - calls.began
    results = tuple(
        replace(
            as_result(graph, labels, value, bound, template),
            runtime=runtime,
            details={"rank": rank, "others": others, "calls": calls.count},
        )
        for rank, (labels, value, bound) in enumerate(answers, start=1)
    )
    if not results and others > -math.inf:
        status = stopped or Status.CONVERGED
    else:
        status = common_status(results)
        if len(results) < m and results and others > -math.inf:
            status = stopped or Status.CONVERGED
    return BestLabellings(results, others, status, runtime)


# -- Diverse labellings: each at a distance from all before it, or with a penalty for every label in common -----------


DOUBLINGS, HALVINGS = 40, 12
"""Steps of the search for the smallest penalty that gives the distance: doubling, then bisection."""


@dataclass
class Further:
    """One more labelling, if any is known, and an upper bound on all candidates for its place."""

    labels: Ints | None
    value: float
    bound: float

    def better(self, labels: Ints, value: float) -> None:
        if value > self.value:
            self.labels, self.value = labels, value


class DiverseSearch:
    """Finds labellings one by one, each the best that differs enough from those before."""

    def __init__(self, graph: FactorGraph, m: int, calls: SolveCalls) -> None:
        self.graph, self.m, self.calls = graph, m, calls
        # Labellings with their values, in the order found, each with an upper bound on all candidates for its place.
        self.answers: list[tuple[Ints, float, float]] = []
        self.others = math.inf  # upper bound on all further labellings
        self.template: Result | None = None  # the result of the first call, for the figures shared by all

    def run(self, distance: int, penalty: float) -> Status | None:
        """Find m labellings, or as many as there are; return the reason if it was cut short."""
        while len(self.answers) < self.m:
            if not self.answers:
                self.template = self.calls.solve(self.graph, self._share)
                further = _further(self.template)
            elif penalty > 0:
                further = self._penalised(penalty)
            else:
                further = self._at_distance(distance)
            self.others = min(self.others, further.bound)
            if further.labels is None:
                return self.calls.stopped
            self.answers.append((further.labels, further.value, self.others))
            stopped = self.calls.stopped
            if stopped is not None and len(self.answers) < self.m:
                return stopped
        return None

    @property
    def _share(self) -> float:
        return 1.0 / (self.m - len(self.answers))

    def _penalised(self, penalty: float) -> Further:
        """The best new labelling minus a penalty for each label that it shares with one before: unary potentials."""
        earlier = [labels for labels, _, _ in self.answers]
        shared = agreement(self.graph, earlier)
        model = replace(self.graph, theta_v=self.graph.theta_v - penalty * shared)
        labels = self.calls.solve(model, self._share).labels
        if _is_one_of(labels, earlier):
            further = DiverseSearch(model, self.m, self.calls)._new(earlier)
            if further is None:
                return Further(None, -math.inf, self.others)
            labels = further
        value = self.graph.value(labels)
        return Further(None if value == -math.inf else labels, value, self.others)

    def _new(self, earlier: list[Ints]) -> Ints | None:
        """The best labelling but the earlier ones, as well as the method can tell."""
        found = self._by_elimination(earlier, 1)
        if found is None and self.calls.method.native_constraints:
            found = self._by_constraints(earlier, 1)
        if found is not None:
            return found.labels
        search = LawlerSearch(without_constraints(self.graph), len(earlier) + 1, self.calls)
        search.run()
        ranked = (labels[: self.graph.n_vars] for labels, _, _ in search.answers)
        return next((labels for labels in ranked if not _is_one_of(labels, earlier)), None)

    def _at_distance(self, distance: int) -> Further:
        """The best labelling at a distance from all before: exact if counters fit, else as far as solving proves."""
        earlier = [labels for labels, _, _ in self.answers]
        if distance > self.graph.n_vars:
            return Further(None, -math.inf, -math.inf)
        found = self._by_elimination(earlier, distance)
        if found is not None:
            return found
        native, n_stated = self.calls.method.native_constraints, len(earlier) * self.graph.n_vars
        if native and self.graph.constraints is not None:
            return self._by_constraints(earlier, distance)
        # With more indicators of distances as constraints, a model without any may be much harder
        if not native or n_stated > 5_000:
            return self._by_multiplier(earlier, distance, 0.0)
        found = self._by_multiplier(earlier, distance, (1 - self._share / 2) * self.calls.left)
        if found.bound - found.value <= self.graph.allowance or self.calls.stopped is not None:
            return found
        other = self._by_constraints(earlier, distance, found.labels)
        if other.labels is not None:
            found.better(other.labels, other.value)
        found.bound = max(found.value, min(found.bound, other.bound))
        return found

    def _by_elimination(self, earlier: list[Ints], distance: int) -> Further | None:
        """With counters of the differences in the tables of elimination; None if these do not fit."""
        # Maximum number of variables that counters add to a model
        if memory_of(self.calls) == 0 or len(earlier) * self.graph.n_vars > 20_000:
            return None
        try:
            tables = without_constraints(self.graph)
        except UnsupportedModel:  # sums of too many values
            return None
        messages = collected_messages(with_counters(tables, earlier, distance), self.calls)
        if messages is None or not messages.collected:
            return None
        if messages.value + self.graph.constant == -math.inf:
            return Further(None, -math.inf, -math.inf)
        labels = messages.tree.by_variable(messages.best_labels())[: self.graph.n_vars]
        return Further(labels, self.graph.value(labels), self.graph.value(labels))

    def _by_constraints(self, earlier: list[Ints], distance: int, initial: Ints | None = None) -> Further:
        """With the distances stated as constraints on the number of labels that an earlier labelling has, too."""
        same = self.graph.n_vars - distance
        apart = [at_most_k(list(enumerate(labels.tolist())), same) for labels in earlier]
        found = _further(self.calls.solve(self.graph.with_constraints(apart), self._share, initial))
        return Further(found.labels, found.value, max(found.value, min(found.bound, self.others)))

    def _by_multiplier(self, earlier: list[Ints], distance: int, spare: float) -> Further:
        """Find the smallest reward that gives the distance, with `spare` seconds left; each reward yields a bound."""
        graph, found = self.graph, Further(None, -math.inf, self.others)
        away = len(earlier) - agreement(graph, earlier)
        low, high, reward = 0.0, math.inf, max(graph.unit, 1e-3 * abs(self.answers[0][1]) / distance)
        for step in range(DOUBLINGS + HALVINGS):
            if self.calls.stopped is not None or self.calls.left < spare:
                break
            if found.bound - found.value <= graph.allowance:
                break
            constant = graph.constant - reward * distance * len(earlier)
            rewarded = replace(graph, theta_v=graph.theta_v + reward * away, constant=constant)
            result = self.calls.solve(rewarded, self._share / 4)
            if result.bound is not None:
                found.bound = min(found.bound, result.bound)
            if min(int(np.count_nonzero(result.labels != labels)) for labels in earlier) >= distance:
                found.better(result.labels, graph.value(result.labels))
                high = reward
            else:
                low = reward
            if high == math.inf and step >= DOUBLINGS:
                break
            reward = 2 * low if high == math.inf else (low + high) / 2
            if high < math.inf and high - low <= 1e-6 * high:
                break
        found.bound = max(found.bound, found.value)
        return found


def _further(result: Result) -> Further:
    bound = math.inf if result.bound is None else result.bound
    if result.value == -math.inf:
        return Further(None, -math.inf, bound)
    return Further(result.labels, result.value, max(bound, result.value))


def _is_one_of(labels: Ints, earlier: list[Ints]) -> bool:
    return any(np.array_equal(labels, known) for known in earlier)


def agreement(graph: FactorGraph, earlier: list[Ints]) -> Floats:
    """Number of labellings that have each state, (n_states,)."""
    shared = np.zeros(len(graph.theta_v))
    for labels in earlier:
        shared[graph.var_ptr[:-1] + labels] += 1.0
    return shared


def with_counters(graph: FactorGraph, earlier: list[Ints], distance: int) -> FactorGraph:
    """Add counters to a model, so that only labellings at a distance from all earlier ones are feasible."""
    # A counter runs along the variables and counts, up to the distance, the labels that differ from an earlier
    # labelling. Labellings may be of the first variables only: the others are then ignored.
    n, size = len(earlier[0]), distance + 1
    scopes: list[tuple[int, ...]] = []
    tables: list[Floats] = []
    steps: dict[tuple[int, int], Floats] = {}
    for number, labels in enumerate(earlier):
        first = graph.n_vars + n * number
        for i in range(n):
            key = int(graph.card[i]), int(labels[i])
            if key not in steps:  # by count before, state, and count after: one more if the state is not the label
                before, state, after = np.ogrid[:size, : key[0], :size]
                counted_on = after == np.minimum(before + (state != key[1]), size - 1)
                steps[key] = np.where(counted_on, 0.0, -np.inf)
            step = steps[key]
            scopes.append((i, first) if i == 0 else (first + i - 1, i, first + i))
            tables.append(step[0] if i == 0 else step)
        scopes.append((first + n - 1,))
        tables.append(np.where(np.arange(size) == distance, 0.0, -np.inf))
    return graph.with_factors(scopes, tables, card=[size] * (n * len(earlier)))


# -- BestLabellings: several labellings of one model, in descending order of value ------------------------------------


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

    def _repr_html_(self) -> str:
        from mapmrf.plots.display import titled_html

        lines = [line.strip().partition("  ") for line in self.summary().splitlines()]
        return titled_html("BestLabellings", [(rank, text) if text else ("", rank) for rank, _, text in lines])

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with value, bound, status and states of each labelling in a row.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.5]], names={"rain": ["no", "yes"]})
        >>> mapmrf.solve_best(graph, 2).to_pandas()[["value", "rain"]].values.tolist()
        [[1.5, 'yes'], [0.0, 'no']]
        """
        rows = [
            {"value": result.value, "bound": result.bound, "status": result.status.value, **result.assignment}
            for result in self
        ]
        return needed("pandas", "frames").DataFrame(rows)

    def to_json(self) -> str:
        """A JSON list of results, as `Result.to_json` writes them."""
        return "[" + ", ".join(result.to_json() for result in self.results) + "]"

    @classmethod
    def from_json(cls, text: str) -> BestLabellings:
        """Read labellings written by `to_json`."""
        try:
            results = tuple(Result.from_json(json.dumps(one)) for one in json.loads(text))
            bound = min((float(result.details["others"]) for result in results), default=-math.inf)
        except FormatError:
            raise
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise FormatError(f"not labellings written by mapmrf: {' '.join(str(error).split())}") from None
        return cls(results, bound, common_status(results), max((one.runtime for one in results), default=0.0))


def as_result(graph: FactorGraph, labels: Ints, value: float, bound: float, template: Result) -> Result:
    """A labelling as a Result, with its bound and the status that follows."""
    # Method, options, seed and, if nothing is proven, the status are those of a template.
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
