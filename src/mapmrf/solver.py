"""The one loop: `solve` with its limits, interrupts, trace and report."""

from __future__ import annotations

import dataclasses
import inspect
import logging
import math
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from numpy.typing import ArrayLike

from mapmrf import interrupts
from mapmrf.arrays import Ints
from mapmrf.checkpoints import EVERY, RunCheckpoint, check_resume, origin_of
from mapmrf.compilation.clock import CompileClock
from mapmrf.compilation.stopping import CompileWatch, CompilingStopped, stoppable
from mapmrf.dual_state import DualState
from mapmrf.errors import GraphError, OptionError, OutOfMemory, UnsupportedModel
from mapmrf.feasible import REPAIR_SECONDS, fewest_violated, find_feasible
from mapmrf.footprints import model_bytes
from mapmrf.graph import FactorGraph
from mapmrf.incumbent import Incumbent
from mapmrf.memory import KERNELS, NO_LIMIT, MemoryBudget, MemoryWatch, byte_count, is_lack_of_memory, shown_bytes
from mapmrf.method import Answer, Method, Progress, Start
from mapmrf.options import check_number
from mapmrf.polytope import classify, classify_vertex, relaxed_value, vertex
from mapmrf.problem import Problem
from mapmrf.registry import DEFAULT_METHOD, make_method
from mapmrf.result import GAP_TOLERANCE, Result, Status, TracePoint
from mapmrf.rewriting import Rewriting, rewrite
from mapmrf.saved_run import SavedRun

log = logging.getLogger("mapmrf")

MUCH = 1e9
"""Bytes of a run from which on the log says what it will take."""

NEGLIGIBLE = 1e-9
"""Round-off in a bound, relative to the value, below which it is ignored."""

LEAST_PATIENCE, PATIENCE = 10, 0.25
"""Iterations, and share of those done, that a run has to close a gap exactly once it is within the default one."""

MOST_STEPS = 1000
"""Steps that a run has for that at most: some steps wait for a solver, and count as no iteration."""

ASK = 0.1
"""Seconds between two calls of the callback while kernels are compiled."""

_CUT_SHORT = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.INTERRUPTED)
_UNPROVEN = (Status.CONVERGED, Status.ITERATION_LIMIT)

Initial = ArrayLike | Result | None
Callback = Callable[[TracePoint, Ints], bool | None]


def solve(
    graph: FactorGraph | str | os.PathLike[str],
    method: str | Method = DEFAULT_METHOD,
    *,
    time_limit: float | None = None,
    seed: int = 0,
    threads: int | None = 1,
    memory_limit: float | str | None = None,
    initial: Initial = None,
    callback: Callback | None = None,
    progress: bool = False,
    gap_tolerance: float | None = None,
    abs_gap_tolerance: float = 0.0,
    polish: str | Method | None = None,
    margins: bool = False,
    checkpoint: str | os.PathLike[str] | None = None,
    every: float = EVERY,
    resume: bool = False,
    certificate: bool = False,
    **options: Any,
) -> Result:
    """Find a labelling of high log potential.

    Parameters
    ----------
    graph
        The model, or a file to read it from.
    method
        Name of a method, or a method object such as ``LSLP(rho=0.1)``.
    time_limit
        Seconds of wall-clock time; the best labelling so far is returned when it is over.
    seed
        Seed of everything random; same input and seed, same answer.
    threads
        Threads a method may use, None for all cores that the process may use; the answer does not depend on it.
    memory_limit
        Bytes that program, model and run may take together, or a text such as ``"2G"``. A method that would take more
        by its estimate is refused, `auto` leaves out what does not fit, and a run that outgrows the limit ends with its
        best labelling. By default what the machine has; ``math.inf`` for no limit.
    initial : (n_vars,) or Result
        A labelling or an earlier Result to start from. Of a Result on a model of the same structure (variables,
        states and scopes; potentials may differ) the method that made it continues from the messages, too.
    callback
        Called with every TracePoint and the best labels so far; a true answer ends the run. While kernels are compiled
        it is called about ten times a second, with the last point at the present time.
    progress
        Show a progress bar on standard error, if that is a terminal.
    gap_tolerance
        Relative gap at which the run ends, with status ``within_tolerance`` unless the gap is closed exactly. The
        default is 1e-6, and a run that gets there goes on for a while in order to close the gap exactly.
    abs_gap_tolerance
        The same for ``bound - value``. A negative tolerance is never met.
    polish
        A method that improves the labelling at the end, such as ``"blocks"``, ``"chains"`` or ``Flips(depth=3)``. It
        starts from the best labelling and has the time that is left; its iterations come on top.
    margins
        Whether to find, within the time that is left, how sure each label is: see `Result.margins` and `max_marginals`.
    checkpoint, every
        A folder in which the state of the run is saved every so many seconds, and when it is cut short.
    resume
        Go on from the checkpoint, if there is one: `lslp` and `trws` to the same answer to the last bit, other methods
        from the best labelling and bound.
    certificate
        Whether to find, within the time that is left, a dual point that proves a bound: see `Result.certificate`,
        `certify` and `verify`.
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
    began = time.perf_counter()  # loading a method takes its time, too
    chosen = make_method(method, options, also=_ARGUMENTS)
    threads = usable_cores() if threads is None else threads
    check_limits(time_limit, threads, seed)
    check_resume(checkpoint, resume)
    if callback is not None and not callable(callback):
        raise OptionError(f"callback is {callback!r}, expected a function of a TracePoint and the labels")
    graph = as_graph(graph)
    polisher = None if polish is None else make_method(polish, {})
    limit = byte_count(memory_limit)
    forms = ModelForms(graph, threads, MemoryBudget.of(limit, model_bytes(graph)))
    for each in (chosen, polisher):
        if each is not None:
            each.load(forms.graph_for(each))
    run = _Run(chosen, seed, GapTolerance.of(gap_tolerance, abs_gap_tolerance), callback)
    run.set_clock(began, time_limit)
    run.polisher = polisher
    run.memory = MemoryWatch(math.inf if limit is None else forms.memory.left + KERNELS)  # loaded on the way
    start = _start_from(graph, initial)
    if checkpoint is not None:
        run.saving = SavedRun(RunCheckpoint(checkpoint, every, origin_of(chosen, seed, threads, graph)), resume)
    with ExitStack() as stack:
        run.signals = stack.enter_context(interrupts.Interrupts())
        run.compiling = stack.enter_context(CompileClock())
        if progress:
            from mapmrf.progress import ProgressBar

            bar = stack.enter_context(ProgressBar(chosen.name, chosen.max_iterations, time_limit))
            run.listeners.append(bar.update)
            run.compiling.on_begin = bar.compiling
        stack.enter_context(stoppable(CompileWatch(run.must_stop, lambda: run.deadline - time.perf_counter())))
        result = run.solve(forms, start)
        result = _with_margins(result, graph, run.deadline, threads) if margins else result
        return _with_certificate(result, graph, run.deadline, threads) if certificate else result


def _with_margins(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    from mapmrf.certainty import with_margins

    return with_margins(result, graph, deadline, threads)


def _with_certificate(result: Result, graph: FactorGraph, deadline: float, threads: int) -> Result:
    from mapmrf.certifying import with_certificate

    return with_certificate(result, graph, deadline, threads)


_ARGUMENTS = tuple(name for name, kind in inspect.signature(solve).parameters.items() if kind.kind is kind.KEYWORD_ONLY)
"""Names of arguments of `solve` that could be misspelt."""


def as_graph(model: object) -> FactorGraph:
    """A model, or the one in a file; anything else raises a GraphError that says what to call.

    Examples
    --------
    >>> from mapmrf.solver import as_graph
    >>> as_graph({"x": 1})
    Traceback (most recent call last):
    ...
    mapmrf.errors.GraphError: the model is a dict, expected a FactorGraph or a file: see FactorGraph.from_tables
    """
    if isinstance(model, FactorGraph):
        return model
    if isinstance(model, str | os.PathLike):
        from mapmrf.formats import read

        return read(model)
    raise GraphError(f"the model is {_article(model)}, expected a FactorGraph or a file: see {_constructor_for(model)}")


def _article(model: object) -> str:
    name = type(model).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"


def _constructor_for(model: object) -> str:
    """What makes a model of something that users have at hand."""
    module = type(model).__module__.split(".")[0]
    if module in ("networkx", "pgmpy"):
        return f"mapmrf.bridges.from_{module}"
    if module == "dimod":
        return "mapmrf.bridges.from_bqm"
    if hasattr(model, "shape"):
        return "FactorGraph.from_pairwise for arrays of potentials, mapmrf.images.grid_model for an image"
    if isinstance(model, list | tuple) and all(isinstance(one, FactorGraph) for one in model):
        return "solve_many for several models"
    return "FactorGraph.from_tables"


class Closable(Protocol):
    """What has a gap: an incumbent, of a model or of its parts."""

    def closed(self, tolerance: float, absolute: float = 0.0) -> bool:
        """Whether the gap is at most one of these."""


class GapTolerance(NamedTuple):
    """When a gap is small enough to end a run.

    Attributes
    ----------
    relative, absolute
        The relative gap, and the difference of bound and value, either of which is small enough.
    patient
        Whether a run that gets there goes on for a while in order to close the gap exactly.
    """

    relative: float
    absolute: float
    patient: bool

    @classmethod
    def of(cls, relative: float | None, absolute: float) -> GapTolerance:
        """The tolerances as the user gave them; None for the default."""
        for name, found in (("gap_tolerance", relative), ("abs_gap_tolerance", absolute)):
            if found is not None:
                check_number(name, found)
            if found is not None and math.isnan(found):
                raise OptionError(f"{name} is nan, expected a number")
        if relative is None:
            return cls(GAP_TOLERANCE, absolute, patient=absolute == 0)
        return cls(relative, absolute, patient=False)

    def met_by(self, incumbent: Closable) -> bool:
        """Whether the gap is small enough."""
        return incumbent.closed(self.relative, self.absolute)

    def more_iterations(self, done: int) -> int:
        """Iterations that a run may go on for after so many."""
        return LEAST_PATIENCE + int(PATIENCE * done) if self.patient else 0


class ModelForms:
    """A model as methods see it: as it is, or with its constraints written as tables.

    Attributes
    ----------
    graph
        The model as it was given.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf import constraints
    >>> graph = mapmrf.FactorGraph.from_tables([2] * 3, [], []).with_constraints([constraints.xor(range(3))])
    >>> ModelForms(graph, threads=1).graph_for(mapmrf.TRBP())
    FactorGraph(n_vars=4, n_factors=2, n_tables=2)
    """

    def __init__(self, graph: FactorGraph, threads: int, memory: MemoryBudget = NO_LIMIT) -> None:
        self.graph, self.threads, self.memory = graph, threads, memory
        self._problems: dict[bool, Problem] = {}

    @cached_property
    def rewriting(self) -> Rewriting:
        """The model with tables in place of its constraints."""
        return rewrite(self.graph)

    def is_rewritten(self, method: Method | None) -> bool:
        """Whether a method, or the library itself (None), gets tables in place of constraints."""
        return self.graph.constraints is not None and (method is None or not method.native_constraints)

    def graph_for(self, method: Method | None) -> FactorGraph:
        """The model that a method gets."""
        return self.rewriting.graph if self.is_rewritten(method) else self.graph

    def problem_for(self, method: Method | None) -> Problem:
        """The same, compiled."""
        rewritten = self.is_rewritten(method)
        if rewritten not in self._problems:
            self._problems[rewritten] = Problem.compile(self.graph_for(method), self.threads, self.memory)
        return self._problems[rewritten]

    def lift(self, method: Method | None, labels: Ints) -> Ints:
        """Labels of the model that a method gets."""
        return self.rewriting.lift(labels) if self.is_rewritten(method) else labels

    def start_for(self, method: Method, start: Start) -> Start:
        """A warm start on the model that a method gets."""
        if start.labels is None or not self.is_rewritten(method):
            return start
        return Start(self.rewriting.lift(start.labels))

    def project(self, labels: Ints) -> Ints:
        """Labels of the model as it was given."""
        return labels[: self.graph.n_vars]


class _Run:
    """One run of the loop: the incumbent and the trace so far."""

    incumbent: Incumbent

    def __init__(self, method: Method, seed: int, tolerance: GapTolerance, callback: Callback | None) -> None:
        self.method, self.seed, self.tolerance = method, seed, tolerance
        self.listeners: list[Callback] = [] if callback is None else [callback]
        self.signals = interrupts.Interrupts()
        self.compiling = CompileClock()
        self.trace: list[TracePoint] = []
        self.iterations = 0
        self.polisher: Method | None = None
        self.saving: SavedRun | None = None
        self.memory = MemoryWatch(math.inf)
        self.end, self.n_steps, self.intact = math.inf, 0, True
        self.thread = threading.get_ident()
        self.cancelled = False
        self.dual: DualState | None = None
        self.set_clock(time.perf_counter(), None)

    def set_clock(self, began: float, time_limit: float | None) -> None:
        """Say when the run began and how many seconds it has."""
        self.began = self.asked = began
        self.deadline = math.inf if time_limit is None else began + time_limit

    def solve(self, forms: ModelForms, start: Start) -> Result:
        """Compile the graph, run the method and the polisher, and report."""
        forms.graph.check_sums()
        self.forms, self.graph = forms, forms.graph
        self.fit()
        self.incumbent = Incumbent(self.graph, Start().first_labels(self.graph), threads=forms.threads)
        self.started = start.labels is not None
        if start.labels is not None:
            self.incumbent.offer(start.labels)
        if self.saving is not None:
            start = self.saving.begin(self, start)
        with ExitStack() as running:
            answer = Answer()
            problem: Problem | None = None
            compile_time = 0.0
            try:
                problem = forms.problem_for(self.method)
                compile_time = time.perf_counter() - self.began
                self.check_support()
                status, answer = self.run(self.method, start, running)
                if self.polisher is not None and status in _UNPROVEN:
                    status = self.polish(self.polisher, answer, status, running)
            except BaseException as error:
                status = self.cut_short(error)
            if answer.mu_f is None:  # nothing is asked of the run any more, and the report takes memory, too
                running.close()
            return self.report(problem, answer, status, compile_time + self.compiling.seconds)

    def cut_short(self, error: BaseException) -> Status:
        """The status after a KeyboardInterrupt, or what compiled code makes of one, or a compilation that was given up.

        Other errors are raised.
        """
        if isinstance(error, CompilingStopped) and time.perf_counter() >= self.deadline:
            return Status.TIME_LIMIT
        if is_lack_of_memory(error):
            return self.out_of_memory(error)
        if not (isinstance(error, KeyboardInterrupt | CompilingStopped) or self.signals.raised):
            raise error
        interrupts.notice()
        return Status.INTERRUPTED

    def out_of_memory(self, error: BaseException) -> Status:
        """The status if a labelling was found before memory was short; otherwise raise OutOfMemory."""
        if isinstance(error, OutOfMemory):
            raise error
        if not self.trace and not self.started:
            raise OutOfMemory(f"not enough memory for {self.method.name} on this model") from error
        log.warning("memory is short: %s ends with its best labelling so far", self.method.name)
        return Status.MEMORY_LIMIT

    def fit(self) -> None:
        """Refuse what takes too much memory before anything is allocated; adapt options that decide how much."""
        budget = self.forms.memory
        for method in (self.method, self.polisher):
            if method is None:
                continue
            needed = method.footprint(self.forms.graph_for(method)) or 0.0
            reason = budget.refusal(needed)
            if reason is not None:
                raise UnsupportedModel(f"{method.name} cannot solve this model: {reason}")
            if needed > MUCH:
                log.info("%s will take about %s of memory", method.name, shown_bytes(needed + budget.besides))
        self.method = self.method.within(self.forms.graph_for(self.method), budget.left)

    def check_support(self) -> None:
        """Raise UnsupportedModel unless the method and the polisher can solve the problem."""
        for method in (self.method, self.polisher):
            reason = None if method is None else method.supports(self.forms.problem_for(method))
            if method is not None and reason is not None:
                raise UnsupportedModel(f"{method.name} cannot solve this model: {reason}")

    def run(self, method: Method, start: Start, running: ExitStack) -> tuple[Status, Answer]:
        """Run one method; its state is closed when `running` ends, after the report has read the answer."""
        interrupts.check()
        problem = self.forms.problem_for(method)
        state = method.start(problem, self.seed, self.forms.start_for(method, start))
        running.callback(method.close, problem, state)
        interrupts.check()
        saving = self.saving if method is self.method else None
        if saving is not None:
            saving.restore(self, problem, state)
        status = self.loop(problem, method, state)
        if status is Status.MEMORY_LIMIT and not self.intact:  # of a step that broke off nothing is asked
            return status, Answer()
        if saving is not None and status in _CUT_SHORT and self.intact:
            saving.save(self, problem, state)
        if method is self.method:
            self.dual = method.dual(problem, state)
        return status, method.answer(problem, state)

    def polish(self, polisher: Method, answer: Answer, status: Status, running: ExitStack) -> Status:
        """Improve the incumbent by another method; the status stays unless this one is cut short."""
        if answer.labels is not None:
            self.incumbent.offer(self.forms.project(answer.labels))
        ended, polished = self.run(polisher, Start(self.incumbent.labels), running)
        if polished.labels is not None:
            self.incumbent.offer(self.forms.project(polished.labels))
        return ended if ended in _CUT_SHORT else status

    def loop(self, problem: Problem, method: Method, state: Any) -> Status:
        """Step until the method ends, the gap closes, a limit is hit, or the user or a callback interrupts."""
        before = 0 if method is self.method else self.iterations  # those of the method that this one polishes after
        if method is not self.method:
            self.end, self.n_steps = math.inf, 0
        while True:
            try:
                self.intact = False
                progress = method.step(problem, state)
                if method is not self.method:
                    progress = dataclasses.replace(progress, iterations=before + progress.iterations, phase=method.name)
                stopped, finished = self.record(progress), progress.finished
                del progress  # its labels take memory
                self.intact = True
            except BaseException as error:
                return self.cut_short(error)
            if stopped or interrupts.requested():
                interrupts.notice()
                return Status.INTERRUPTED
            if finished is not None:
                return finished
            if method.stops_at_gap and self.tolerance.met_by(self.incumbent):
                done, self.n_steps = self.iterations - before, self.n_steps + 1
                self.end = min(self.end, done + self.tolerance.more_iterations(done))
                if done >= self.end or self.n_steps >= MOST_STEPS or self.incumbent.optimal:
                    return Status.WITHIN_TOLERANCE
            if self.iterations - before >= method.max_iterations:
                return Status.ITERATION_LIMIT
            if time.perf_counter() >= self.deadline:
                return Status.TIME_LIMIT
            if self.memory.is_over:
                log.warning("%s has outgrown the memory limit and ends with its best labelling so far", method.name)
                return Status.MEMORY_LIMIT
            if self.saving is not None and method is self.method and self.saving.checkpoint.due:
                self.saving.save(self, problem, state)

    def must_stop(self) -> bool:
        """Whether the run must end at once: asked, from any of its threads, while a kernel is compiled."""
        now = time.perf_counter()
        known = "incumbent" in vars(self)  # not while the first labelling is evaluated
        if known and now < self.deadline and now >= self.asked + ASK and threading.get_ident() == self.thread:
            self.asked = now
            point = TracePoint(now - self.began, self.iterations, self.incumbent.value, self.bound)
            if self.trace:
                point = dataclasses.replace(self.trace[-1], time=now - self.began)
            self.cancelled |= self.tell(point)
        return self.cancelled or now >= self.deadline or interrupts.requested()

    def tell(self, point: TracePoint) -> bool:
        """Call the listeners; whether one of them asks to stop."""
        return any([bool(listener(point, self.incumbent.labels)) for listener in self.listeners])

    def record(self, progress: Progress) -> bool:
        """Update incumbent and trace from a step; return whether a listener asks to stop."""
        incumbent = self.incumbent
        self.iterations = progress.iterations
        candidate = None
        if progress.labels is not None:
            # The value of a labelling of tables is no claim: counts may not fit what they count.
            claim = progress.value if len(progress.labels) == self.graph.n_vars else None
            candidate = incumbent.offer(self.forms.project(progress.labels), claim)
        bound = None if progress.bound is None else progress.bound + self.round_off()
        incumbent.tighten(bound)
        point = TracePoint(
            time=time.perf_counter() - self.began,
            iterations=progress.iterations,
            value=incumbent.value,
            bound=self.bound,
            candidate=candidate,
            bound_now=bound,
            relaxed_value=progress.relaxed_value,
            phase=progress.phase,
            extra=progress.extra,
        )
        self.trace.append(point)
        return self.tell(point)

    @property
    def bound(self) -> float | None:
        """The best bound, None while there is none."""
        return self.incumbent.bound if self.incumbent.bound < math.inf else None

    def round_off(self) -> float:
        """How far a bound may be off in floating point, where that is not negligible."""
        value = self.incumbent.value
        size = abs(value) if math.isfinite(value) else 0.0
        return self.graph.round_off(NEGLIGIBLE * max(self.graph.unit, size))

    # -- the report -----------------------------------------------------------------------------------------------

    def report(self, problem: Problem | None, answer: Answer, status: Status, compile_time: float) -> Result:
        """Recompute every figure from the answer: no method reports its own value."""
        incumbent = self.incumbent
        if answer.labels is not None:
            labels = self.forms.project(answer.labels)
            incumbent.prefer(labels)  # of equals, the method's choice wins over what the loop met on the way
        if answer.bound is not None:
            incumbent.tighten(answer.bound + self.round_off())
        if incumbent.value == -math.inf and problem is not None:
            status = self.repair(status)
        if not self.trace:  # time was over before the first step
            now = time.perf_counter() - self.began
            self.trace.append(TracePoint(now, self.iterations, incumbent.value, self.bound))
        closed = self.tolerance.met_by(incumbent) or incumbent.optimal
        mu_v, mu_f = answer.mu_v, answer.mu_f
        kind = fractions = found = relaxed = None
        if problem is not None and mu_v is None and closed:  # the vertex of an optimal labelling solves the LP too
            mu_v, relaxed = vertex(problem, self.forms.lift(self.method, incumbent.labels)), incumbent.value
            kind, fractions, found = classify_vertex(problem)
        elif problem is not None and mu_v is not None and mu_f is not None:
            with suppress(CompilingStopped):  # time is over, and what is not known yet stays unknown
                kind, fractions, found = classify(problem, mu_v, mu_f)
                relaxed = relaxed_value(problem, mu_v, mu_f)
        return dataclasses.replace(
            Result.of_labels(self.graph, incumbent.labels, self.verdict(status), self.method.name, incumbent.value),
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
            details=answer.details,
            mu_v=mu_v if mu_v is None or not self.forms.is_rewritten(self.method) else mu_v[: len(self.graph.theta_v)],
            dual=self.dual,
        )

    def repair(self, status: Status) -> Status:
        """Look for a labelling of finite value, within the time that is left, or for one that violates little."""
        left = max(REPAIR_SECONDS, self.deadline - time.perf_counter())
        seconds = REPAIR_SECONDS / 2 if status in _CUT_SHORT else left
        incumbent, forms = self.incumbent, self.forms
        try:
            problem = forms.problem_for(None)
            if incumbent.bound > -math.inf:
                search = find_feasible(problem, forms.lift(None, incumbent.labels), seconds=seconds)
                if search.labels is not None:
                    incumbent.offer(forms.project(search.labels))
                elif search.complete:
                    incumbent.tighten(-math.inf)
            least = int(incumbent.bound == -math.inf)
            if incumbent.shortfall.n_violated > least:
                lifted = forms.lift(None, incumbent.labels)
                incumbent.offer(forms.project(fewest_violated(problem, lifted, least, REPAIR_SECONDS / 2)))
        except UnsupportedModel:  # the constraints cannot be written as tables
            return status
        except BaseException as error:
            return self.cut_short(error)
        return status

    def verdict(self, status: Status) -> Status:
        """How the run ended, by the incumbent: a method may believe in a proof that round-off does not bear out."""
        if self.incumbent.optimal:
            return Status.OPTIMAL
        if self.tolerance.met_by(self.incumbent):
            return Status.WITHIN_TOLERANCE
        if self.incumbent.bound == -math.inf:
            return Status.INFEASIBLE
        if status.closes_gap:
            return Status.CONVERGED
        return Status.INTERRUPTED if interrupts.requested() else status

    def options(self) -> dict[str, Any]:
        """The method's options, and the polisher's name if there is one."""
        polish = {} if self.polisher is None else {"polish": self.polisher.name}
        return {**dataclasses.asdict(self.method), **polish}  # type: ignore[call-overload]


def usable_cores() -> int:
    """Cores that this process may use: those of its affinity, where the system has such a thing."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def check_limits(time_limit: float | None, threads: int | None, seed: int) -> None:
    """Raise OptionError for a limit or a seed that cannot be."""
    if time_limit is not None:
        check_number("time_limit", time_limit)
    if threads is not None:
        check_number("threads", threads, int)
    check_number("seed", seed, int)
    if time_limit is not None and not time_limit >= 0:
        raise OptionError(f"time_limit is {time_limit}, expected a number of seconds of at least 0")
    if threads is not None and threads < 1:
        raise OptionError(f"threads is {threads}, expected at least 1")
    if seed < 0:
        raise OptionError(f"seed is {seed}, expected a whole number of at least 0")


def _start_from(graph: FactorGraph, initial: Initial) -> Start:
    if initial is None:
        return Start()
    if isinstance(initial, Result):
        mu_v = initial.mu_v if initial.mu_v is not None and initial.mu_v.shape == graph.theta_v.shape else None
        return Start(graph.check_labels(initial.labels), mu_v, initial.dual)
    return Start(graph.check_labels(initial))
