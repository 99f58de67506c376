"""`solve_best`: the m best labellings of a model."""

from __future__ import annotations

import math
import os
import time
from dataclasses import asdict, dataclass, replace
from typing import Any

from mapmrf.arrays import Ints
from mapmrf.constraints.as_tables import Rewriting, rewrite
from mapmrf.errors import OptionError, UnsupportedModel
from mapmrf.model.graph import FactorGraph
from mapmrf.questions.best.answers import BestLabellings, answer, common_status
from mapmrf.questions.best.calls import SolveCalls
from mapmrf.questions.best.diverse import DiverseSearch
from mapmrf.questions.best.lawler import LawlerSearch
from mapmrf.questions.best.ranked import rank_by_elimination
from mapmrf.run import interrupts
from mapmrf.run.method import Method
from mapmrf.run.options import check_number
from mapmrf.run.registry import DEFAULT_METHOD, make_method
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import as_graph, check_limits, usable_cores

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
    chosen = make_method(method, options, also=("diverse", "time_limit", "seed", "threads"))
    wanted = _diversity(diverse)
    check_number("m", m, int)
    if m < 1:
        raise OptionError(f"m is {m}, expected at least 1")
    check_limits(time_limit, threads, seed)
    model = as_graph(graph)
    deadline = math.inf if time_limit is None else began + time_limit
    calls = SolveCalls(chosen, seed, usable_cores() if threads is None else threads, deadline, began)
    with interrupts.Interrupts():
        return _assemble(model, m, _rank(model, m, wanted, calls), calls)


def _diversity(diverse: int | Diversity | None) -> Diversity:
    return diverse if isinstance(diverse, Diversity) else Diversity() if diverse is None else Diversity(diverse)


def _rank(graph: FactorGraph, m: int, wanted: Diversity, calls: SolveCalls) -> Ranking:
    """Find the labellings in the way that suits the model."""
    if not wanted.plain:
        return _rank_diverse(graph, m, wanted, calls)
    if graph.constraints is not None:
        return _rank_constrained(graph, m, calls)
    return _rank_by_elimination(graph, m, calls) or _rank_by_partition(graph, m, calls)


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
    return answers, others, ranked.stopped, _template(graph, calls)


def _rank_by_partition(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranking:
    """Parts of the labellings, solved one by one."""
    search = LawlerSearch(graph, m, calls)
    stopped = search.run()
    assert search.template is not None
    return search.answers, search.others, stopped, search.template


def _rank_constrained(graph: FactorGraph, m: int, calls: SolveCalls) -> Ranking:
    """Use tables in place of the constraints if these can be eliminated, or if the method needs them.

    Otherwise labellings are excluded by further constraints, one after another: for a method that supports constraints
    natively, the tables would be much harder.
    """
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
    return _projected(rewriting, found or _rank_by_partition(rewriting.graph, m, calls))


def _projected(rewriting: Rewriting, ranking: Ranking) -> Ranking:
    """Project the labellings of the rewritten model, which has the same labellings in the same order."""
    found, others, stopped, template = ranking
    answers = []
    for lifted, value, bound in found:
        labels = rewriting.project(lifted)
        own = rewriting.original.value(labels)  # round-off may differ
        answers.append((labels, own, own if bound == value else max(bound, own)))
    return sorted(answers, key=lambda answer: -answer[1]), others, stopped, template


def _template(graph: FactorGraph, calls: SolveCalls) -> Result:
    """The figures shared by all results if `solve` is not called."""
    options = asdict(calls.method)  # type: ignore[call-overload]
    bare = Result.of_labels(graph, graph.unary_labels, Status.CONVERGED, calls.method.name)
    return replace(bare, options=options, seed=calls.seed)


def _assemble(graph: FactorGraph, m: int, ranking: Ranking, calls: SolveCalls) -> BestLabellings:
    answers, others, stopped, template = ranking
    if stopped is not None:
        template = replace(template, status=stopped)
    runtime = time.perf_counter() - calls.began
    results = tuple(
        replace(
            answer(graph, labels, value, bound, template),
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
