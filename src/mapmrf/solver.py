"""Method, the register, and `solve`: the one loop with its limits, interrupts, trace and report."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import logging
import math
import pkgutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from mapmrf._version import __version__
from mapmrf.arrays import Floats, Ints, segment_argmax
from mapmrf.compiling import CompileClock, true_interrupts
from mapmrf.errors import OptionError, UnknownName, UnsupportedModel
from mapmrf.feasible import find_feasible
from mapmrf.graph import FactorGraph
from mapmrf.polytope import FactorMarginals, classify, integral, relaxed_value
from mapmrf.problem import Problem
from mapmrf.result import Result, Status, TracePoint, relative_gap

log = logging.getLogger("mapmrf")

DEFAULT_METHOD = "auto"
TRUST_FROM = 200_000
"""Factors from which a method's own value of a candidate is believed during the run; the report evaluates it anew."""
GAP_TOLERANCE = 1e-6
"""A labelling counts as optimal when its relative gap to the upper bound is at most this."""

NEGLIGIBLE = 1e-9
"""Round-off in a bound that is not worth a word, relative to the value."""

REPAIR_SECONDS = 1.0
"""How long a run whose time is over may still look for a labelling of finite value, if it has none."""

_CUT_SHORT = (Status.TIME_LIMIT, Status.INTERRUPTED)
_UNPROVEN = (Status.CONVERGED, Status.ITERATION_LIMIT)

Initial = ArrayLike | Result | None
Callback = Callable[[TracePoint, Ints], bool | None]


@dataclass(slots=True)
class Progress:
    """What one step of a method tells the loop. Labels are candidates: the library evaluates them itself.

    Attributes
    ----------
    iterations
        Iterations done since the start.
    labels : (n_vars,)
        A candidate labelling.
    value
        What the method thinks it is worth (None: evaluate it).
    bound
        A valid upper bound, if this step gives one.
    finished
        Set when the method has come to its own end.
    relaxed_value, primal, sphere, rho, phase
        For the trace.

    Examples
    --------
    >>> import numpy as np
    >>> progress = Progress(iterations=3, labels=np.array([1, 0]), bound=2.5)
    >>> progress.value is None, progress.finished is None  # the library evaluates the labels, and the run goes on
    (True, True)
    """

    iterations: int
    labels: Ints | None = None
    value: float | None = None
    bound: float | None = None
    finished: Status | None = None
    relaxed_value: float | None = None
    primal: float | None = None
    sphere: float | None = None
    rho: float | None = None
    phase: str = ""


@dataclass(slots=True)
class Answer:
    """Where a method stands: all parts optional. The loop's best labelling is used beside these labels.

    Attributes
    ----------
    labels : (n_vars,)
        A labelling.
    mu_v : (sum of card,)
        The relaxed solution on the variables.
    mu_f : (sum of table sizes over all factors,)
        The same on the factors; or a function that gives it for some factors at a time.
    bound
        A valid upper bound.
    details
        Figures for the result.

    Examples
    --------
    >>> Answer(details={"restarts": 4.0}).labels is None
    True
    """

    labels: Ints | None = None
    mu_v: Floats | None = None
    mu_f: FactorMarginals | None = None
    bound: float | None = None
    details: dict[str, float] = dataclasses.field(default_factory=dict)


class Method(ABC):
    """A way to solve a problem: a frozen dataclass of options with three functions.

    Concrete methods live in ``mapmrf/methods/<name>.py``, one class each, and declare all their options, among them
    `max_iterations`. The class attributes say what a method promises; the contract test holds it to them.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import mapmrf
    >>> from mapmrf.solver import Answer, Progress
    >>> @dataclass(frozen=True)
    ... class Constant(mapmrf.Method):
    ...     name = "constant"
    ...     max_iterations: int = 2
    ...     def start(self, problem, seed, initial):
    ...         return [0]
    ...     def step(self, problem, state):
    ...         state[0] += 1
    ...         return Progress(state[0], labels=0 * problem.graph.card + (state[0] - 1))
    ...     def answer(self, problem, state):
    ...         return Answer()
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> mapmrf.solve(graph, Constant())
    Result(constant: value=2.000000, status=iteration_limit)
    """

    name: ClassVar[str]
    title: ClassVar[str]
    gives_bound: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    exact_on_trees: ClassVar[bool] = False

    max_iterations: int

    @property
    def stops_at_gap(self) -> bool:
        """Whether the loop may end the run as soon as the gap is closed."""
        return True

    def supports(self, problem: Problem) -> str | None:
        """Return a reason why this method cannot work on the problem, or None."""
        return None

    @abstractmethod
    def start(self, problem: Problem, seed: int, initial: Start) -> Any:
        """Build the state of a run."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Progress:
        """Work for some milliseconds, in place."""

    @abstractmethod
    def answer(self, problem: Problem, state: Any) -> Answer:
        """Say where the run stands; may be called after any step."""


@dataclass(frozen=True, slots=True)
class Start:
    """A warm start: labels (n_vars,), and mu_v (sum of card,) where an earlier Result had one; both may be None.

    Examples
    --------
    >>> Start().labels is None  # nothing was given: the method begins as it likes
    True
    """

    labels: Ints | None = None
    mu_v: Floats | None = None

    def first_labels(self, graph: FactorGraph) -> Ints:
        """A copy of the labelling, or the best state of every variable alone: (n_vars,).

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [2, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> mapmrf.solver.Start().first_labels(graph).tolist()
        [1, 0]
        """
        labels = segment_argmax(graph.theta_v, graph.var_ptr) if self.labels is None else self.labels
        return np.array(labels, dtype=np.int64)


# -- the register ---------------------------------------------------------------------------------------------------


def method_names() -> list[str]:
    """Names of all methods, without importing them."""
    import mapmrf.methods as package

    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def method_class(name: str) -> type[Method]:
    """The class of a method by its name."""
    module = None if name.startswith("_") else sys.modules.get(f"mapmrf.methods.{name}")
    if module is None:  # looking through the folder takes longer than solving a small model: once is enough
        known = method_names()
        if name not in known:
            raise UnknownName(f"no method is named {name!r}{_nearest(name, known)}; known: {', '.join(known)}")
        module = importlib.import_module(f"mapmrf.methods.{name}")
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Method) and getattr(value, "name", None) == name:
            return value
    raise UnknownName(f"mapmrf.methods.{name} defines no method named {name!r}")


def methods() -> dict[str, type[Method]]:
    """All methods by name.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.methods()["icm"].title
    'iterated conditional modes: single-variable ascent (ogm-ICM)'
    """
    return {name: method_class(name) for name in method_names()}


def make_method(method: str | Method, options: dict[str, Any]) -> Method:
    """Build a method from its name and options, or change options of a given one; misspelt options raise."""
    cls = method_class(method) if isinstance(method, str) else type(method)
    known = [item.name for item in dataclasses.fields(cls)]  # type: ignore[arg-type]
    for key in options:
        if key not in known:
            raise OptionError(f"{cls.name} has no option {key!r}{_nearest(key, known)}; known: {', '.join(known)}")
    if isinstance(method, Method):
        return dataclasses.replace(method, **options)  # type: ignore[type-var]
    return cls(**options)


def _nearest(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f", did you mean {close[0]!r}?" if close else ""


# -- the loop -------------------------------------------------------------------------------------------------------


def solve(
    graph: FactorGraph,
    method: str | Method = DEFAULT_METHOD,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int = 1,
    initial: Initial = None,
    callback: Callback | None = None,
    progress: bool = False,
    gap_tolerance: float = GAP_TOLERANCE,
    polish: str | Method | None = None,
    **options: Any,
) -> Result:
    """Find a labelling of high log potential.

    Parameters
    ----------
    graph
        The model.
    method
        Name of a method, or a method object such as ``LSLP(rho=0.1)``.
    time_limit
        Seconds of wall-clock time; the best labelling so far is returned when it is over.
    seed
        Seed of everything random; same input and seed, same answer.
    threads
        Threads a method may use; the answer does not depend on it.
    initial : (n_vars,) or Result
        A labelling or an earlier Result to start from.
    callback
        Called with every TracePoint and the best labels so far; a true answer ends the run.
    progress
        Show a progress bar on standard error, if that is a terminal.
    gap_tolerance
        Relative gap at which a labelling counts as proven optimal.
    polish
        A method that improves the labelling at the end, such as ``"blocks"``, ``"chains"`` or ``Flips(depth=3)``. It
        starts from the best labelling and has the time that is left; its iterations come on top.
    **options
        Options of the method by name.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> result = mapmrf.solve(graph)
    >>> result.labels.tolist(), result.value, result.status.value
    ([1, 1], 2.0, 'optimal')
    """
    chosen = make_method(method, options)
    check_limits(time_limit, threads, seed)
    run = _Run(chosen, seed, time_limit, gap_tolerance, callback)
    run.polisher = None if polish is None else make_method(polish, {})
    start = _start_from(graph, initial)
    with ExitStack() as stack:
        run.compiling = stack.enter_context(CompileClock())
        if progress:
            from mapmrf.progress import ProgressBar

            bar = stack.enter_context(ProgressBar(chosen.name, chosen.max_iterations, time_limit))
            run.listeners.append(bar.update)
            run.compiling.on_begin = bar.compiling
        return run.solve(graph, start, threads)


class _Run:
    """One run of the loop: the best labelling, the best bound and the trace so far."""

    def __init__(
        self, method: Method, seed: int, time_limit: float | None, gap_tolerance: float, callback: Callback | None
    ) -> None:
        self.method, self.seed, self.gap_tolerance = method, seed, gap_tolerance
        self.began = time.perf_counter()
        self.deadline = math.inf if time_limit is None else self.began + time_limit
        self.listeners: list[Callback] = [] if callback is None else [callback]
        self.compiling = CompileClock()
        self.labels: Ints = np.zeros(0, dtype=np.int64)
        self.value = -math.inf
        self.bound: float | None = None
        self.trace: list[TracePoint] = []
        self.iterations = 0
        self.polisher: Method | None = None

    def solve(self, graph: FactorGraph, start: Start, threads: int) -> Result:
        self.graph = graph
        self.labels = segment_argmax(graph.theta_v, graph.var_ptr)
        self.value = graph.value(self.labels)
        if start.labels is not None:
            self.offer(start.labels, None)
        answer = Answer()
        problem: Problem | None = None
        compile_time = 0.0
        try:
            with true_interrupts():
                problem = Problem.compile(graph, threads)
                compile_time = time.perf_counter() - self.began
                for method in (self.method, self.polisher):
                    reason = None if method is None else method.supports(problem)
                    if method is not None and reason is not None:
                        raise UnsupportedModel(f"{method.name} cannot solve this model: {reason}")
                state = self.method.start(problem, self.seed, start)
                status = self.loop(problem, self.method, state)
                answer = self.method.answer(problem, state)
                if self.polisher is not None and status in _UNPROVEN:
                    status = self.polish(problem, self.polisher, answer, status)
        except KeyboardInterrupt:
            status = Status.INTERRUPTED
        return self.report(problem, answer, status, compile_time + self.compiling.seconds)

    def polish(self, problem: Problem, polisher: Method, answer: Answer, status: Status) -> Status:
        """Improve the best labelling by another method; the method's own status stays unless this one is cut short."""
        if answer.labels is not None:
            self.offer(answer.labels, None)
        state = polisher.start(problem, self.seed, Start(self.labels))
        ended = self.loop(problem, polisher, state, self.iterations)
        labels = polisher.answer(problem, state).labels
        if labels is not None:
            self.offer(labels, None)
        return ended if ended in _CUT_SHORT else status

    def loop(self, problem: Problem, method: Method, state: Any, before: int = 0) -> Status:
        """Step until the method ends, the gap closes, a limit is hit or somebody interrupts.

        `before` are iterations of another method that this one goes on from.
        """
        while True:
            try:
                with true_interrupts():
                    progress = method.step(problem, state)
                if method is not self.method:
                    progress = dataclasses.replace(progress, iterations=before + progress.iterations, phase=method.name)
                stopped = self.record(progress)
            except KeyboardInterrupt:
                return Status.INTERRUPTED
            if stopped:
                return Status.INTERRUPTED
            if progress.finished is not None:
                return progress.finished
            if method.stops_at_gap and self.proven():
                return Status.OPTIMAL
            if self.iterations - before >= method.max_iterations:
                return Status.ITERATION_LIMIT
            if time.perf_counter() >= self.deadline:
                return Status.TIME_LIMIT

    def record(self, progress: Progress) -> bool:
        """Take over what a step found; return whether a listener wants to stop."""
        self.iterations = progress.iterations
        candidate = None
        if progress.labels is not None:
            candidate = self.offer(progress.labels, progress.value)
        bound = None if progress.bound is None else progress.bound + self.round_off()
        if bound is not None and (self.bound is None or bound < self.bound):
            self.bound = bound
        point = TracePoint(
            time=time.perf_counter() - self.began,
            iterations=progress.iterations,
            value=self.value,
            bound=self.bound,
            candidate=candidate,
            bound_now=bound,
            relaxed_value=progress.relaxed_value,
            primal=progress.primal,
            sphere=progress.sphere,
            rho=progress.rho,
            phase=progress.phase,
        )
        self.trace.append(point)
        return any([bool(listener(point, self.labels)) for listener in self.listeners])

    def offer(self, labels: Ints, claimed: float | None) -> float:
        """Keep a labelling if it is the best so far; claims are checked, on huge models only at the end."""
        if claimed is not None and (claimed <= self.value or self.graph.n_factors > TRUST_FROM):
            if claimed > self.value:
                self.labels, self.value = np.array(labels, dtype=np.int64), claimed
            return claimed
        value = self.graph.value(labels)
        if value > self.value:
            self.labels, self.value = np.array(labels, dtype=np.int64), value
        return value

    def round_off(self) -> float:
        """What a bound may be off by in floating point, where that is not small against the value."""
        size = abs(self.value) if math.isfinite(self.value) else 0.0
        return self.graph.round_off(NEGLIGIBLE * max(self.graph.unit, size))

    def proven(self) -> bool:
        return self.within(self.gap_tolerance)

    def within(self, tolerance: float) -> bool:
        """Whether the gap is at most this."""
        gap = relative_gap(self.value, self.bound, self.graph.unit)
        return gap is not None and gap <= tolerance and self.value > -math.inf

    def repair(self, problem: Problem, status: Status) -> Status:
        """Look for a labelling of finite value, within the time that is left."""
        left = max(REPAIR_SECONDS, self.deadline - time.perf_counter())
        try:
            with true_interrupts():
                search = find_feasible(problem, self.labels, seconds=REPAIR_SECONDS if status in _CUT_SHORT else left)
        except KeyboardInterrupt:
            return Status.INTERRUPTED
        if search.labels is not None:
            self.offer(search.labels, None)
        elif search.complete:
            self.bound = -math.inf
            return Status.INFEASIBLE
        return status

    def options(self) -> dict[str, Any]:
        """The method's options, and the polish if there is one."""
        polish = {} if self.polisher is None else {"polish": self.polisher.name}
        return {**dataclasses.asdict(self.method), **polish}  # type: ignore[call-overload]

    def report(self, problem: Problem | None, answer: Answer, status: Status, compile_time: float) -> Result:
        """Recompute every figure from the answer: no method reports its own value."""
        self.value = self.graph.value(self.labels)
        if answer.labels is not None and self.graph.value(answer.labels) >= self.value:
            # Of equals the method's own choice wins over one that the loop met earlier.
            self.labels, self.value = np.array(answer.labels, dtype=np.int64), self.graph.value(answer.labels)
        if answer.bound is not None:
            bound = answer.bound + self.round_off()
            self.bound = bound if self.bound is None else min(bound, self.bound)
        if self.value == -math.inf and problem is not None:
            status = self.repair(problem, status)
        if self.proven():
            status = Status.OPTIMAL
        elif self.bound == -math.inf:
            status = Status.INFEASIBLE
        elif status is Status.OPTIMAL and not self.within(GAP_TOLERANCE):
            status = Status.CONVERGED  # a method may believe in a proof that round-off does not bear out
        mu_v, mu_f = answer.mu_v, answer.mu_f
        if problem is not None and mu_v is None and self.proven():
            mu_v, mu_f = integral(problem, self.labels)  # with the gap closed, the labelling's vertex solves the LP too
        kind = fractions = found = relaxed = None
        if problem is not None and mu_v is not None and mu_f is not None:
            kind, fractions, found = classify(problem, mu_v, mu_f)
            relaxed = relaxed_value(problem, mu_v, mu_f)
        return Result(
            labels=self.labels,
            value=self.value,
            status=status,
            method=self.method.name,
            bound=self.bound,
            relaxed_value=relaxed,
            kind=kind,
            kind_fractions=fractions,
            residuals=found,
            iterations=self.iterations,
            compile_time=compile_time,
            runtime=time.perf_counter() - self.began,
            trace=tuple(self.trace),
            options=self.options(),
            seed=self.seed,
            version=__version__,
            details=answer.details,
            mu_v=mu_v,
            unit=self.graph.unit,
            names=self.graph.names,
        )


def check_limits(time_limit: float | None, threads: int, seed: int) -> None:
    """Raise OptionError for a limit or a seed that cannot be."""
    if time_limit is not None and not time_limit >= 0:
        raise OptionError(f"time_limit is {time_limit}, expected a number of seconds of at least 0")
    if threads < 1:
        raise OptionError(f"threads is {threads}, expected at least 1")
    if seed < 0:
        raise OptionError(f"seed is {seed}, expected a whole number of at least 0")


def _start_from(graph: FactorGraph, initial: Initial) -> Start:
    if initial is None:
        return Start()
    if isinstance(initial, Result):
        mu_v = initial.mu_v if initial.mu_v is not None and initial.mu_v.shape == graph.theta_v.shape else None
        return Start(graph.check_labels(initial.labels), mu_v)
    return Start(graph.check_labels(initial))
