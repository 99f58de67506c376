"""How sure a labelling is: max-marginals and margins, exact or as intervals."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mapmrf.arrays import Floats, Ints, segment_max
from mapmrf.constraints.as_tables import Rewriting, rewrite
from mapmrf.engines.elimination.bucket_messages import BucketMessages, fitting_tree
from mapmrf.engines.elimination.elimination import Functions
from mapmrf.engines.moves.local_search import ForcedStates
from mapmrf.errors import OptionError, UnsupportedModel, needed
from mapmrf.methods.trws import TRWS
from mapmrf.model.builders import check_labels
from mapmrf.model.graph import FactorGraph
from mapmrf.model.names import Names, locate_variable
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts, pace
from mapmrf.run.method import Method, check_number, follow
from mapmrf.run.registry import DEFAULT_METHOD
from mapmrf.run.result import Result, Status
from mapmrf.run.solve import Evidence, as_graph, check_limits, solve

MEMORY = 1024.0  # default memory for exact max-marginals, in megabytes

Stop = Callable[[], bool]


@dataclass(frozen=True, eq=False)
class MaxMarginals:
    """Largest log potential for each state of each variable, as intervals; the ends coincide where it is exact.

    Attributes
    ----------
    lower, upper : (sum of card,)
        Value of the best known labelling with each state, -inf if there is none, and an upper bound on all such
        labellings; a block of ``card[i]`` per variable.
    var_ptr : (n_vars + 1,)
        Where the block of every variable begins.
    labels : (n_vars,)
        The best known labelling.
    exact
        Whether all intervals are closed, up to round-off.
    names
        Names of variables and states, where the model has them.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> found = mapmrf.max_marginals(graph)
    >>> found.lower.tolist(), found.exact
    ([2.0, 3.0, 2.0, 3.0], True)
    >>> found.margins().tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """

    lower: Floats
    upper: Floats
    var_ptr: Ints
    labels: Ints
    exact: bool
    names: Names | None = None

    @property
    def value(self) -> float:
        """Value of the best known labelling."""
        return float(self.lower.max(initial=-math.inf))

    def of(self, variable: int | str) -> Floats:
        """Lower and upper end for every state of a variable, given by index or name: (card, 2)."""
        i = locate_variable(self.names, np.diff(self.var_ptr), variable)
        mine = slice(int(self.var_ptr[i]), int(self.var_ptr[i + 1]))
        return np.stack([self.lower[mine], self.upper[mine]], axis=1)

    def __getitem__(self, variable: int | str) -> dict[int | str, tuple[float, float]]:
        """Lower and upper end for every state of a variable, both by name where the model has names."""
        ends = [(low, high) for low, high in self.of(variable).tolist()]
        i = locate_variable(self.names, np.diff(self.var_ptr), variable)
        states = range(len(ends)) if self.names is None or self.names.states is None else self.names.states[i]
        return dict(zip(states, ends, strict=True))

    def __repr__(self) -> str:
        rest = "" if len(self.labels) == 0 else f", least certain: {self._shown(1)[0][0]}"
        return f"MaxMarginals({len(self.labels)} variables, {'exact' if self.exact else 'intervals'}{rest})"

    def _repr_html_(self) -> str:
        from mapmrf.plots.display import titled_html

        return titled_html("MaxMarginals", [("label", "margin over the best other state"), *self._shown(12)])

    def _shown(self, count: int) -> list[tuple[str, str]]:
        """The labels of the least certain variables, and their margins."""
        margins = self.margins()
        rows = []
        for i in np.argsort(margins[:, 0], kind="stable")[:count].tolist():
            name = i if self.names is None else self.names.variables[i]
            low, high = margins[i].tolist()
            text = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
            rows.append((f"{name}={list(self[i])[int(self.labels[i])]}", text))
        return rows

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each state of each variable.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.5]], names={"rain": ["no", "yes"]})
        >>> mapmrf.max_marginals(graph).to_pandas().values.tolist()
        [['rain', 'no', 0.0, 0.0], ['rain', 'yes', 1.5, 1.5]]
        """
        variables = range(len(self.labels)) if self.names is None else self.names.variables
        rows = [(name, state, *ends) for i, name in enumerate(variables) for state, ends in self[i].items()]
        return needed("pandas", "frames").DataFrame(rows, columns=["variable", "state", "lower", "upper"])

    def margins(self, labels: ArrayLike | Mapping[Any, Any] | None = None) -> Floats:
        """Margin of each variable's label over its best other state: (n_vars, 2), lower and upper end.

        Above 0, every optimal labelling has this label; inf if there is no other state. By default, `labels` are those
        of the best known labelling; a mapping from variables to states will do.

        Examples
        --------
        >>> import numpy as np, mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
        >>> mapmrf.max_marginals(graph).margins(np.array([0, 1])).tolist()
        [[-1.0, -1.0], [1.0, 1.0]]
        """
        own = self.var_ptr[:-1] + (
            self.labels if labels is None else check_labels(labels, np.diff(self.var_ptr), self.names)
        )
        # Interval of the difference between a state of each variable and the best of its other states.
        ends = []
        for mine, others in ((self.lower, self.upper), (self.upper, self.lower)):
            rest = others.copy()
            rest[own] = -np.inf
            best, chosen = segment_max(rest, self.var_ptr), mine[own]
            none = best == -np.inf
            with np.errstate(invalid="ignore"):
                ends.append(np.where(none, np.where(chosen == -np.inf, 0.0, np.inf), chosen - best))
        low, high = ends
        return np.stack([np.minimum(low, high), high], axis=1)


def max_marginals(
    graph: FactorGraph | str | os.PathLike[str],
    method: str | Method = DEFAULT_METHOD,
    *,
    evidence: Evidence = None,
    memory: float = MEMORY,
    refine: int = 0,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = 1,
    initial: Result | None = None,
) -> MaxMarginals:
    """Find the largest log potential for each state of each variable, exactly or as an interval.

    Where the tables of elimination fit into memory, one pass to the roots of the bucket tree and one back give all of
    them. Otherwise the upper ends come from the dual of the linear relaxation, and the lower ends from labellings: the
    best known one with a variable forced into another state, and its neighbours reoptimised.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    method
        The method that finds the labelling to start from where the tables do not fit, and solves refinements.
    evidence
        Observed variables, as for `solve`.
    memory
        Memory for the tables of elimination in megabytes; 0 to compute intervals in any case.
    refine
        Maximum number of intervals to narrow by solving the model with one variable fixed, the most uncertain ones
        first. Used only where the tables do not fit.
    time_limit
        Total time in seconds, after which the intervals known so far are returned; so they are on Ctrl-C.
    seed, threads
        As for `solve`.
    initial
        A Result for this model, to avoid solving it again.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[2, 0], [0, 2]])
    >>> found = mapmrf.max_marginals(graph)
    >>> found.of(1).tolist(), found.exact
    ([[2.0, 2.0], [3.0, 3.0]], True)
    """
    began = time.perf_counter()
    check_limits(time_limit, threads, seed)
    check_number("memory", memory)
    check_number("refine", refine, int)
    for name, number in (("memory", memory), ("refine", refine)):
        if not number >= 0:
            raise OptionError(f"{name} is {number}, expected at least 0")
    model = as_graph(graph, evidence=evidence)
    deadline = math.inf if time_limit is None else began + time_limit
    with interrupts.Interrupts():
        search = _search_for(model, method, (seed, threads, deadline))
        return search.exact(memory * 2**20) or search.intervals(initial, refine)


def _search_for(
    graph: FactorGraph, method: str | Method, limits: tuple[int, int | None, float]
) -> MarginalSearch | ConstrainedMarginalSearch:
    return (MarginalSearch if graph.constraints is None else ConstrainedMarginalSearch)(graph, method, *limits)


class MarginalSearch:
    """One search for max-marginals: how to solve, and the deadline."""

    def __init__(
        self, graph: FactorGraph, method: str | Method, seed: int, threads: int | None, deadline: float
    ) -> None:
        self.graph, self.method, self.seed, self.threads, self.deadline = graph, method, seed, threads, deadline

    def stopped(self) -> bool:
        return interrupts.requested() or time.perf_counter() >= self.deadline

    def left(self, share: float = 1.0) -> float | None:
        """A share of the remaining seconds, None without a limit."""
        return None if self.deadline == math.inf else max(0.0, share * (self.deadline - time.perf_counter()))

    def exact(self, max_bytes: float) -> MaxMarginals | None:
        """Exact max-marginals by elimination; None if its tables do not fit, or the time is up."""
        graph = self.graph
        problem = Problem.compile(graph)
        tree = fitting_tree(problem, max_bytes, self.seed) if max_bytes > 0 else None
        if tree is None:
            return None
        messages = BucketMessages(tree, Functions.of_model(problem, tree))
        while not messages.collected and not self.stopped():
            messages.collect(pace.ADDITIONS)
        while messages.collected and not messages.distributed and not self.stopped():
            messages.distribute(pace.ADDITIONS)
        if not (messages.collected and messages.distributed):
            return None
        found = messages.marginals() + graph.constant
        labels = graph.unary_labels
        if messages.value + graph.constant > -math.inf:
            labels = tree.by_variable(messages.best_labels())
        return MaxMarginals(found, found, graph.var_ptr, labels, exact=True, names=graph.names)

    def intervals(self, initial: Result | None, refine: int) -> MaxMarginals:
        """Intervals from the dual and local search, starting from a labelling of the method."""
        graph = self.graph
        result = initial if initial is not None else self._solve(graph, 0.5)
        problem = Problem.compile(graph, self.threads or 1)
        dual = self._dual(problem)
        bound = math.inf if result.bound is None else result.bound
        upper = np.minimum(dual.upper, bound)
        lower = np.full(len(upper), -np.inf)
        labels = self._force(problem, graph.check_labels(result.labels), lower)
        if labels is not None and dual.labels is not None:
            self._note(dual.labels, lower)
        found = self._found(lower, upper, labels)
        for _ in range(refine):
            if self.stopped() or found.exact or not self._refine(found):
                break
            found = self._found(found.lower, found.upper, found.labels)
        return found

    def _dual(self, problem: Problem) -> StateBounds:
        return state_bounds(problem, self.stopped)

    def _solve(self, graph: FactorGraph, share: float) -> Result:
        limit = self.left(share)
        return solve(graph, self.method, time_limit=limit, seed=self.seed, threads=self.threads)

    def _found(self, lower: Floats, upper: Floats, labels: Ints | None) -> MaxMarginals:
        """Intervals with their lower ends below the upper ones, which round-off might cross."""
        graph = self.graph
        lower = np.minimum(lower, upper)
        with np.errstate(invalid="ignore"):
            closed = (lower == upper) | (upper - lower <= graph.allowance)
        labels = graph.unary_labels if labels is None else labels
        return MaxMarginals(lower, upper, graph.var_ptr, labels, bool(np.all(closed)), graph.names)

    def _note(self, labels: Ints, lower: Floats) -> None:
        """Raise the lower ends of a labelling's states to its value."""
        at = self.graph.var_ptr[:-1] + labels
        lower[at] = np.maximum(lower[at], self.graph.value(labels))

    def _force(self, problem: Problem, labels: Ints, lower: Floats) -> Ints | None:
        """Find lower ends by forcing each state in ever better labellings; return the best, None if none is finite."""
        graph = self.graph
        if graph.value(labels) == -math.inf or graph.n_vars == 0:
            return labels if graph.n_vars == 0 else None
        while True:
            value = graph.value(labels)
            forced = ForcedStates(problem, labels)
            while not forced.finished and not self.stopped():
                forced.advance()
            np.maximum(lower, value + forced.gain, out=lower)
            at = int(np.argmax(forced.gain))
            i = int(np.searchsorted(graph.var_ptr, at, side="right")) - 1
            better = forced.labels_with(i, at - int(graph.var_ptr[i]))
            if self.stopped() or not graph.value(better) > value + graph.allowance:
                return labels
            labels = better

    def _refine(self, found: MaxMarginals) -> bool:
        """Solve the model with the most uncertain state fixed; return False if all are certain."""
        graph, ptr = self.graph, self.graph.var_ptr
        with np.errstate(invalid="ignore"):
            doubt = np.where(found.upper > found.lower, found.upper - found.lower, 0.0)
        doubt[doubt <= graph.allowance] = 0.0
        widest = segment_max(doubt, ptr)
        decided = found.margins()[:, 0] > 0
        if not widest.any():
            return False
        undecided = np.where(decided, 0.0, widest)
        i = int(np.argmax(undecided if undecided.any() else widest))
        k = int(np.argmax(np.where(doubt > 0, found.upper, -np.inf)[ptr[i] : ptr[i + 1]]))
        result = self._solve(graph.condition({i: k}), 0.1)
        if result.bound is not None:
            found.upper[ptr[i] + k] = min(found.upper[ptr[i] + k], result.bound)
        if result.value > -math.inf:
            self._note(result.labels, found.lower)
        return True


class ConstrainedMarginalSearch(MarginalSearch):
    """A search on a model with constraints: with tables in their place where these help, without them elsewhere."""

    def __init__(
        self, graph: FactorGraph, method: str | Method, seed: int, threads: int | None, deadline: float
    ) -> None:
        super().__init__(graph, method, seed, threads, deadline)
        self.rewriting: Rewriting | None = None
        with suppress(UnsupportedModel):  # sums of too many values
            self.rewriting = rewrite(graph)

    def exact(self, max_bytes: float) -> MaxMarginals | None:
        """By elimination of the model with tables, whose first variables are those of the model."""
        if self.rewriting is None:
            return None
        found = MarginalSearch(self.rewriting.graph, *self._how).exact(max_bytes)
        if found is None:
            return None
        mine, graph = slice(0, len(self.graph.theta_v)), self.graph
        labels = self.rewriting.project(found.labels)
        return MaxMarginals(found.lower[mine], found.upper[mine], graph.var_ptr, labels, found.exact, graph.names)

    @property
    def _how(self) -> tuple[str | Method, int, int | None, float]:
        return self.method, self.seed, self.threads, self.deadline

    def _dual(self, problem: Problem) -> StateBounds:
        """From the model with tables, or with an upper bound on its constraints in their place."""
        if self.rewriting is None:
            highest = 0.0 if self.graph.constraints is None else self.graph.constraints.highest
            plain = dataclasses.replace(self.graph, constraints=None, constant=self.graph.constant + highest)
            return state_bounds(Problem.compile(plain, self.threads or 1), self.stopped)._replace(labels=None)
        found = state_bounds(Problem.compile(self.rewriting.graph, self.threads or 1), self.stopped)
        labels = None if found.labels is None else self.rewriting.project(found.labels)
        return StateBounds(found.upper[: len(self.graph.theta_v)], found.bound, labels)

    def _force(self, problem: Problem, labels: Ints, lower: Floats) -> Ints | None:
        """Lower ends by forcing each state in tables, and by climbing with counters where that gives none."""
        graph, ptr = self.graph, self.graph.var_ptr
        if graph.value(labels) == -math.inf:
            return None
        self._note(labels, lower)
        if self.rewriting is not None:
            tables = MarginalSearch(self.rewriting.graph, *self._how)
            wide = np.full(len(tables.graph.theta_v), -np.inf)
            better = tables._force(Problem.compile(tables.graph), self.rewriting.lift(labels), wide)
            np.maximum(lower, wide[: len(lower)], out=lower)
            labels = labels if better is None else self.rewriting.project(better)
        # States of a model with constraints that are forced one by one, by a run each: some milliseconds
        for at in np.flatnonzero(lower == -np.inf)[:2000].tolist():
            if self.stopped():
                break
            i = int(np.searchsorted(ptr, at, side="right")) - 1
            found = solve(graph.condition({i: at - int(ptr[i])}), "icm", initial=labels, threads=self.threads)
            self._note(found.labels, lower)
            labels = found.labels if found.value > graph.value(labels) else labels
        return labels


def with_margins(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    """A result with its margins: exact where elimination fits, otherwise from the dual and local search."""
    with interrupts.Interrupts():
        search = _search_for(graph, result.method, (result.seed, threads, deadline))
        found = search.exact(MEMORY * 2**20) or search.intervals(result, 0)
    return dataclasses.replace(result, margins=found.margins(result.labels))


# -- Upper bounds on the labellings with each state, from the dual of the linear relaxation ---------------------------


class StateBounds(NamedTuple):
    """Upper bounds on the labellings with each state, and the best labelling found on the way, if any."""

    upper: Floats  # (n_states,) no labelling with this state is worth more
    bound: float  # no labelling is worth more
    labels: Ints | None  # (n_vars,) or None: the best decoded labelling


def state_bounds(problem: Problem, stop: Callable[[], bool], iterations: int = 300) -> StateBounds:
    """Lower the dual by TRW-S and read the bound of every state from it."""
    graph = problem.graph
    if graph.n_vars == 0:
        return StateBounds(np.zeros(0), graph.constant, np.zeros(0, dtype=np.int64))
    end = time.perf_counter() + 20.0  # seconds after which no further iterations begin; at least one is done
    with closing(follow(TRWS(max_iterations=iterations), problem)) as steps:
        for step, run in steps:
            passes, infeasible = run.passes, step.finished is Status.INFEASIBLE
            if stop() or time.perf_counter() >= end:
                break
        if infeasible or graph.constant == -np.inf:
            return StateBounds(np.full(problem.n_states, -np.inf), -np.inf, None)
        slack = 2 * graph.round_off(0.0)
        upper = passes.state_bounds() + slack
        bound = float(passes.figures.bound) + slack
        labels = passes.best if passes.figures.value > -np.inf else None
        return StateBounds(np.minimum(upper, bound), bound, labels)
