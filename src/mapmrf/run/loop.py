"""The loop of a run with its stopping rule, and a run of a method on a whole model: limits, incumbent and report."""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mapmrf.arrays import Bools, Ints, frozen, segment_max
from mapmrf.compilation import CompilingStopped
from mapmrf.errors import OptionError, OutOfMemory, UnsupportedModel
from mapmrf.model.graph import EXACT, ROUND_OFF, FactorGraph
from mapmrf.model.memory import NO_LIMIT, MemoryBudget, is_lack_of_memory, shown_bytes, surely_fits
from mapmrf.model.polytope import classify, classify_vertex, relaxed_value, vertex
from mapmrf.model.problem import Problem
from mapmrf.run import interrupts
from mapmrf.run.clock import ANSWERING, REPAIR_SECONDS, REPORTING, STEPPING, CallAbandoned, Clock
from mapmrf.run.incumbent import GAP_TOLERANCE, CheckedIncumbent, Incumbent, Scale
from mapmrf.run.method import Answer, Method, Progress, Start, check_number
from mapmrf.run.result import Result, Status, TracePoint

if TYPE_CHECKING:
    from mapmrf.constraints.as_tables import Rewriting
    from mapmrf.run.state import SavedRun

log = logging.getLogger("mapmrf")

_CUT_SHORT = (Status.TIME_LIMIT, Status.MEMORY_LIMIT, Status.INTERRUPTED)

_UNPROVEN = (Status.CONVERGED, Status.ITERATION_LIMIT)

Callback = Callable[[TracePoint, Ints], bool | None]


class GapTolerance(NamedTuple):
    """When a gap is small enough to end a run."""

    # relative, absolute: the relative gap, and the difference of bound and value, either of which is small enough
    relative: float
    absolute: float
    patient: bool  # whether a run that gets there continues for a while in order to close the gap exactly

    @classmethod
    def of(cls, relative: float | None, absolute: float) -> GapTolerance:
        for name, found in (("gap_tolerance", relative), ("abs_gap_tolerance", absolute)):
            if found is not None:
                check_number(name, found)
            if found is not None and math.isnan(found):
                raise OptionError(f"{name} is nan, expected a number")
        if relative is None:
            return cls(GAP_TOLERANCE, absolute, patient=absolute == 0)
        return cls(relative, absolute, patient=False)

    @property
    def of_proofs(self) -> float:
        """The relative gap that methods regard as closed: a wider tolerance ends runs, but proves nothing."""
        return min(self.relative, GAP_TOLERANCE)

    def met_by(self, incumbent: Incumbent) -> bool:
        return incumbent.closed(self.relative, self.absolute)

    def more_iterations(self, done: int) -> int:
        """Iterations in which a run within the default tolerance may still close the gap exactly."""
        return 10 + done // 4 if self.patient else 0


class Loop:
    """The loop of a run, on one machine or many: its incumbent, its trace, and the rule by which it stops."""

    incumbent: CheckedIncumbent

    def __init__(
        self, method: Method, seed: int, tolerance: GapTolerance, clock: Clock, listeners: Iterable[Callback]
    ) -> None:
        self.method, self.seed, self.tolerance, self.clock = method, seed, tolerance, clock
        self.listeners = list(listeners)
        self.trace: list[TracePoint] = []
        self.iterations = 0
        self.end, self.n_steps = math.inf, 0  # the last iteration within the tolerance, and the steps there
        self.asked = clock.began
        clock.ask = self.ask

    @property
    def elapsed(self) -> float:
        """Seconds since the start, including those before the run was resumed."""
        return time.perf_counter() - self.clock.began

    @property
    def bound(self) -> float | None:
        return self.incumbent.bound if self.incumbent.bound < math.inf else None

    @property
    def scale(self) -> Scale:
        return self.incumbent.scale

    def project(self, labels: Ints) -> Ints:
        """The labels of the original model's variables."""
        return labels

    def ending(self, method: Method, finished: Status | None, done: int, stopped: bool, late: bool) -> Status | None:
        """The stopping rule: the status if the run must end after a step of a method, else None."""
        # `finished` is what the step reports, `done` are the method's own iterations.
        if stopped:
            interrupts.notice()
            return Status.INTERRUPTED
        if finished is not None:
            return finished
        if method.stops_at_gap and self.tolerance.met_by(self.incumbent):
            self.n_steps += 1
            self.end = min(self.end, done + self.tolerance.more_iterations(done))
            most = 1000  # steps within the tolerance: some wait for a solver and are no iteration
            if done >= self.end or self.n_steps >= most or self.incumbent.optimal:
                return Status.WITHIN_TOLERANCE
        if done >= method.max_iterations:
            return Status.ITERATION_LIMIT
        return Status.TIME_LIMIT if late else None

    def verdict(self, status: Status, interrupted: bool = False) -> Status:
        """The final status, judged by the incumbent: a method may claim a proof that round-off does not support."""
        if self.incumbent.optimal:
            return Status.OPTIMAL
        if self.tolerance.met_by(self.incumbent):
            return Status.WITHIN_TOLERANCE
        if self.incumbent.bound == -math.inf:
            return Status.INFEASIBLE
        if status.closes_gap or status is Status.INFEASIBLE:
            return Status.CONVERGED
        return Status.INTERRUPTED if interrupted else status

    def record(self, progress: Progress, source: str) -> bool:
        """Update incumbent and trace from a step of a method; return whether a listener asks to stop."""
        incumbent = self.incumbent
        if progress.refuted is not None:
            incumbent.withdraw(source)
            incumbent.bounds.refuted |= progress.refuted
        self.iterations = progress.iterations
        candidate = None
        if progress.labels is not None:
            labels = self.project(progress.labels)
            # The value on the tables is not used: auxiliary counts may not match what they count.
            claim = progress.value if len(labels) == len(progress.labels) else None
            candidate = incumbent.offer(labels, claim)
        bound = None if progress.bound is None else progress.bound + self.round_off()
        incumbent.tighten(bound, source)
        best = TracePoint(self.elapsed, progress.iterations, incumbent.value, self.bound)
        point = progress.traced(best, candidate, bound)
        self.trace.append(point)
        return self.tell(point)

    def round_off(self) -> float:
        """Floating-point error of a bound, where it is not negligible relative to the value."""
        value = self.incumbent.value
        size = abs(value) if math.isfinite(value) else 0.0
        return self.scale.round_off(1e-9 * max(self.incumbent.scale.unit, size))

    def ask(self) -> None:
        """Call the listeners while a kernel is compiled, about ten times per second."""
        now = time.perf_counter()
        known = "incumbent" in vars(self)  # not while the first labelling is evaluated
        if known and now < self.clock.deadline and now >= self.asked + 0.1:
            self.asked = now
            point = TracePoint(self.elapsed, self.iterations, self.incumbent.value, self.bound)
            if self.trace:
                point = dataclasses.replace(self.trace[-1], time=self.elapsed)
            self.clock.cancelled |= self.tell(point)

    def tell(self, point: TracePoint) -> bool:
        """Call the listeners; return whether one of them asks to stop."""
        return any([bool(listener(point, self.incumbent.labels)) for listener in self.listeners])

    def resume(self, saved: dict[str, Any], labels: Ints, *, continued: bool = True) -> None:
        """Take over what an earlier run has found; `continued` if its method goes on where it was."""
        self.incumbent.offer(labels)
        self.incumbent.tighten(saved["bound"], self.method.name)
        self.clock.began -= saved["spent"]
        self.trace = saved["trace"]
        if continued:
            self.iterations, self.end, self.n_steps = saved["iterations"], saved["end"], saved["n_steps"]


class Run(Loop):
    """One run of a method on a whole model, and its report."""

    saving: SavedRun | None = None
    polisher: Method | None = None
    intact = True
    unloaded = False

    def load(self, forms: ModelForms) -> None:
        for method in (self.method, self.polisher):
            if method is not None:
                try:
                    self.clock.attempt(STEPPING, forms.graph_for, method)
                except CallAbandoned:
                    self.unloaded = True

    @property
    def scale(self) -> Scale:
        return self.forms.graph

    def project(self, labels: Ints) -> Ints:
        return labels[: self.graph.n_vars]

    def solve(self, forms: ModelForms, start: Start) -> Result:
        forms.graph.check_sums()
        self.forms, self.graph = forms, forms.graph
        if not self.unloaded:  # otherwise the method's form of the model does not exist yet
            self.fit()
        self.incumbent = CheckedIncumbent(self.graph, Start().first_labels(self.graph), threads=forms.threads)
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
                if self.unloaded:
                    raise CallAbandoned
                problem = self.clock.prepare(forms.problem_for, self.method)
                compile_time = self.elapsed
                for method in (self.method, self.polisher):
                    if method is not None:
                        self.check_support(method)
                status, answer = self.run(self.method, start, running)
                if status not in _CUT_SHORT and self.is_blurred:
                    self.confirm(running)
                if self.polisher is not None and status in _UNPROVEN:
                    status = self.polish(self.polisher, answer, status, running)
            except BaseException as error:
                status = self.cut_short(error)
            if answer.mu_f is None:  # the run is over, and the report needs memory too
                running.close()
            return self.report(problem, answer, status, compile_time + self.clock.compiling.seconds)

    def cut_short(self, error: BaseException) -> Status:
        """The status after an interrupt or an error that compiled code makes of one, an abandoned call, or a labelling
        found before memory ran out; other errors are raised again.
        """
        if isinstance(error, CompilingStopped | CallAbandoned) and self.clock.left <= 0:
            return Status.TIME_LIMIT
        if is_lack_of_memory(error):
            if isinstance(error, OutOfMemory):
                raise error
            if not self.trace and not self.started:
                raise OutOfMemory(f"not enough memory for {self.method.name} on this model") from error
            log.warning("out of memory: %s ends with its best labelling so far", self.method.name)
            return Status.MEMORY_LIMIT
        if not (isinstance(error, KeyboardInterrupt | CompilingStopped | CallAbandoned) or self.clock.signals.raised):
            raise error
        interrupts.notice()
        return Status.INTERRUPTED

    def fit(self) -> None:
        """Refuse a method that needs too much memory before anything is allocated; adapt options that affect it."""
        budget = self.forms.memory
        for method in (self.method, self.polisher):
            if method is None:
                continue
            graph = self.forms.graph_for(method)
            if type(method).footprint is Method.footprint and surely_fits(graph, budget.left):
                continue
            needed = method.footprint(graph) or 0.0
            reason = budget.refusal(needed)
            if reason is not None:
                raise UnsupportedModel(f"{method.name} cannot solve this model: {reason}")
            if needed > 1e9:
                log.info("%s will need about %s of memory", method.name, shown_bytes(needed + budget.besides))
        self.method = self.method.within(self.forms.graph_for(self.method), budget.left)

    def check_support(self, method: Method) -> None:
        reason = self.clock.prepare(lambda method: method.supports(self.forms.problem_for(method)), method)
        if reason is not None:
            form = " with tables in place of its constraints" if self.forms.is_rewritten(method) else ""
            raise UnsupportedModel(f"{method.name} cannot solve this model{form}: {reason}")

    def run(self, method: Method, start: Start, running: ExitStack) -> tuple[Status, Answer]:
        """Run one method; its state is closed when `running` ends, after the report has read the answer."""
        interrupts.check()
        problem = self.forms.problem_for(method)
        if start.labels is not None and self.forms.is_rewritten(method):
            start = Start(self.forms.lift(method, start.labels), saved=start.saved)
        start = dataclasses.replace(start, gap_tolerance=self.tolerance.of_proofs)

        def close(late: Any) -> None:
            if late is not None:
                method.close(problem, late)

        with nullcontext() if self.saving is None or start.saved is None else self.saving.checked():
            state = self.clock.attempt(STEPPING, method.start, problem, self.seed, start, undo=close)
        running.callback(self.clock.close, method, problem, state)
        interrupts.check()
        saving = self.saving if method is self.method else None
        status = self.loop(problem, method, state)
        if status is Status.MEMORY_LIMIT and not self.intact:  # no answer after a step that was cut short
            return status, Answer()
        if saving is not None and status in _CUT_SHORT and self.intact:
            saving.save(self, method.snapshot(problem, state))
        answer = Answer()
        with suppress(CallAbandoned):  # there was no time for it
            if not self.clock.is_lost(state):
                answer = self.clock.attempt_on(state, method, ANSWERING, method.answer, problem)
        return status, answer

    @property
    def is_blurred(self) -> bool:
        """Whether the gap is no wider than the round-off of the largest potentials, but too wide for a proof."""
        incumbent, gap = self.incumbent, self.incumbent.bound - self.incumbent.value
        # Equivalent to gap <= graph.allowance, which sums over all potentials.
        within = math.isfinite(gap) and self.graph.round_off(gap * ROUND_OFF / EXACT) > 0.0
        return within and not incumbent.optimal

    def confirm(self, running: ExitStack) -> None:
        """Run the method once more without potentials that are too low for any labelling better than the incumbent."""
        # Only these may be so large that their round-off prevents a proof.
        relevant = self.forms.relevant(self.incumbent.value)
        if relevant is not None:
            forms, self.forms = self.forms, relevant
            try:
                self.run(dataclasses.replace(self.method), Start(self.incumbent.labels), running)  # type: ignore[type-var]
            finally:
                self.forms = forms

    def polish(self, polisher: Method, answer: Answer, status: Status, running: ExitStack) -> Status:
        """Improve the incumbent by another method; the status is kept unless this one is cut short."""
        if answer.labels is not None:
            self.incumbent.offer(self.project(answer.labels))
        ended, polished = self.run(polisher, Start(self.incumbent.labels), running)
        if polished.labels is not None:
            self.incumbent.offer(self.project(polished.labels))
        return ended if ended in _CUT_SHORT else status

    def loop(self, problem: Problem, method: Method, state: Any) -> Status:
        """Step until the method ends, the gap closes, a limit is hit, or the user or a callback interrupts."""
        before = 0 if method is self.method else self.iterations  # those of the method before the polisher
        if method is not self.method:
            self.end, self.n_steps = math.inf, 0
        while True:
            try:
                self.intact = False
                progress = self.clock.attempt_on(state, method, STEPPING, method.step, problem)
                if method is not self.method:
                    progress = dataclasses.replace(progress, iterations=before + progress.iterations, phase=method.name)
                stopped, finished = self.record(progress, method.name), progress.finished
                del progress  # its labels need memory
                self.intact = True
            except BaseException as error:
                return self.cut_short(error)
            late = self.clock.left <= self.reserve
            ended = self.ending(method, finished, self.iterations - before, stopped or interrupts.requested(), late)
            if ended is not None:
                return ended
            if self.clock.memory.is_over:
                log.warning("%s exceeds the memory limit and ends with its best labelling so far", method.name)
                return Status.MEMORY_LIMIT
            if self.saving is not None and method is self.method and self.saving.due:
                self.saving.save(self, method.snapshot(problem, state))

    @property
    def reserve(self) -> float:
        """Seconds reserved at the end for the search for a feasible labelling, while there is none."""
        if self.incumbent.value > -math.inf or self.clock.limit == math.inf:
            return 0.0
        return min(REPAIR_SECONDS, 0.25 * self.clock.limit)

    # -- the report -----------------------------------------------------------------------------------------------

    def report(self, problem: Problem | None, answer: Answer, status: Status, compile_time: float) -> Result:
        """Recompute every figure from the answer: no method reports its own value."""
        incumbent = self.incumbent
        if answer.labels is not None:
            labels = self.project(answer.labels)
            incumbent.prefer(labels)  # on ties, the method's choice wins over labellings that the loop met on the way
        if answer.bound is not None:
            incumbent.tighten(answer.bound + self.round_off(), self.method.name)
        if incumbent.value == -math.inf and problem is not None:
            status = self.repair(status)
        if not self.trace:  # the time was up before the first step
            self.trace.append(TracePoint(self.elapsed, self.iterations, incumbent.value, self.bound))
        closed = self.tolerance.met_by(incumbent) or incumbent.optimal
        mu_v, mu_f = answer.mu_v, answer.mu_f
        kind = fractions = found = relaxed = None
        if problem is not None and mu_v is None and closed:  # the vertex of an optimal labelling solves the LP too
            mu_v, relaxed = vertex(problem, self.forms.lift(self.method, incumbent.labels)), incumbent.value
            kind, fractions, found = classify_vertex(problem)
        elif problem is not None and mu_v is not None and mu_f is not None:
            with suppress(CompilingStopped, CallAbandoned):  # the time is up: what is not known yet stays unknown
                kind, fractions, found = self.clock.attempt(REPORTING, classify, problem, mu_v, mu_f)
                relaxed = self.clock.attempt(REPORTING, relaxed_value, problem, mu_v, mu_f)

        def believed(point: TracePoint) -> TracePoint:
            """Drop a bound that is below the final value: it was false."""
            false = point.bound is not None and point.bound < incumbent.value
            return dataclasses.replace(point, bound=None, bound_now=None) if false else point

        status = self.verdict(status, interrupts.requested())
        return dataclasses.replace(
            Result.of_labels(self.graph, incumbent.labels, status, self.method.name, incumbent.value),
            bound=self.bound,
            relaxed_value=relaxed,
            kind=kind,
            kind_fractions=fractions,
            residuals=found,
            iterations=self.iterations,
            compile_time=compile_time,
            runtime=self.elapsed,
            trace=tuple(map(believed, self.trace) if incumbent.bounds.n_withdrawn else self.trace),
            options=self.options(),
            seed=self.seed,
            details=answer.details | incumbent.bounds.details,
            mu_v=mu_v if mu_v is None or not self.forms.is_rewritten(self.method) else mu_v[: len(self.graph.theta_v)],
            dual=None if self.method.name in incumbent.bounds.refuted else answer.dual,
        )

    def repair(self, status: Status) -> Status:
        """Look for a labelling of finite value within the remaining time, or for one with few violations."""
        from mapmrf.run.repair import climb, fewest_violated, find_feasible  # most runs need none of it

        incumbent, forms = self.incumbent, self.forms
        try:
            problem = self.clock.attempt(REPORTING, forms.problem_for, None)
            if incumbent.bound > -math.inf:
                seconds = self.repair_seconds if status in _CUT_SHORT else max(REPAIR_SECONDS, self.clock.left)
                lifted = forms.lift(None, incumbent.labels)
                search = self.clock.attempt(REPORTING, partial(find_feasible, problem, lifted, seconds=seconds))
                if search.labels is not None:
                    incumbent.offer(self.project(search.labels))
                    better = self.clock.attempt(REPORTING, climb, problem, search.labels, self.repair_seconds)
                    incumbent.offer(self.project(better))
                elif search.complete:
                    incumbent.tighten(-math.inf, "repair")
            least = int(incumbent.bound == -math.inf)
            if incumbent.shortfall.n_violated > least:
                lifted, seconds = forms.lift(None, incumbent.labels), self.repair_seconds
                found = self.clock.attempt(REPORTING, fewest_violated, problem, lifted, least, seconds)
                incumbent.offer(self.project(found))
        except UnsupportedModel:  # the constraints cannot be written as tables
            return status
        except BaseException as error:
            return self.cut_short(error)
        return status

    @property
    def repair_seconds(self) -> float:
        """Seconds for one of the two searches at the end of a run."""
        limit, left = self.clock.limit, self.clock.left
        return REPAIR_SECONDS / 2 if limit == math.inf else max(0.05, min(REPAIR_SECONDS, left) / 2)

    def options(self) -> dict[str, Any]:
        polish = {} if self.polisher is None else {"polish": self.polisher.name}
        own = {item.name: getattr(self.method, item.name) for item in dataclasses.fields(self.method)}  # type: ignore[arg-type]
        if not {type(value) for value in own.values()} <= {int, float, str, bool, type(None)}:
            own = dataclasses.asdict(self.method)  # type: ignore[call-overload]
        return own | polish


# -- A model as methods see it: as it is, or with its constraints written as tables -----------------------------------


class ModelForms:
    """The original model `graph`, and the forms of it that methods get."""

    def __init__(self, graph: FactorGraph, threads: int, memory: MemoryBudget = NO_LIMIT) -> None:
        self.graph, self.threads, self.memory = graph, threads, memory
        self._rewritings: dict[bytes, Rewriting] = {}  # by the constraints that are written as tables
        self._problems: dict[bytes, Problem] = {}

    def lost(self, method: Method | None) -> Bools:
        """Return which constraints a method, or the library itself (None), gets as tables."""
        constraints = self.graph.constraints
        if constraints is None or (method is not None and method.native_automata):
            return np.zeros(self.graph.n_constraints, dtype=bool)
        if method is not None and method.native_constraints:
            return constraints.by_automaton
        return np.ones(len(constraints), dtype=bool)

    def is_rewritten(self, method: Method | None) -> bool:
        return self.graph.constraints is not None and bool(self.lost(method).any())

    def rewriting_for(self, method: Method | None) -> Rewriting:
        from mapmrf.constraints.as_tables import rewrite  # models without constraints skip the import

        lost = self.lost(method)
        key = lost.tobytes()
        if key not in self._rewritings:
            self._rewritings[key] = rewrite(self.graph, some=lost)
        return self._rewritings[key]

    def graph_for(self, method: Method | None) -> FactorGraph:
        return self.rewriting_for(method).graph if self.is_rewritten(method) else self.graph

    def problem_for(self, method: Method | None) -> Problem:
        key = b"" if self.graph.constraints is None else self.lost(method).tobytes()
        if key not in self._problems:
            self._problems[key] = Problem.compile(self.graph_for(method), self.threads, self.memory)
        return self._problems[key]

    def lift(self, method: Method | None, labels: Ints) -> Ints:
        return self.rewriting_for(method).lift(labels) if self.is_rewritten(method) else labels

    def relevant(self, value: float) -> ModelForms | None:
        """The model with only what labellings above a value can have; None if that may be everything."""
        graph = relevant_part(self.graph, value)
        return None if graph is None else ModelForms(graph, self.threads, self.memory)


def relevant_part(graph: FactorGraph, value: float) -> FactorGraph | None:
    """Forbid potentials and penalties too low for any labelling above a value; None if there are none."""
    if graph.weight is not None and graph.weight.min(initial=0.0) < 0.0:
        return None
    best_v, best_t = segment_max(graph.theta_v, graph.var_ptr), segment_max(graph.theta_t, graph.table_ptr)
    if not (np.isfinite(best_v).all() and np.isfinite(best_t).all() and np.isfinite(graph.constant)):
        return None
    size = abs(graph.constant) + abs(value) + float(np.abs(best_v).sum() + np.abs(best_t) @ graph.uses)
    slack = graph.constant + float(best_v.sum() + best_t @ graph.uses) - value + EXACT * size
    if graph.constraints is not None:
        slack += graph.constraints.highest
    least = np.full(graph.n_tables, np.inf)  # of the weights with which a table is used
    np.minimum.at(least, graph.table_of, 1.0 if graph.weight is None else graph.weight)
    sizes = np.diff(graph.table_ptr)
    low_v = (np.repeat(best_v, graph.card) - graph.theta_v > slack) & (graph.theta_v > -np.inf)
    with np.errstate(invalid="ignore"):  # unused tables
        low_t = np.repeat(least, sizes) * (np.repeat(best_t, sizes) - graph.theta_t) > slack
    low_t &= graph.theta_t > -np.inf
    constraints, n_high = graph.constraints, 0
    if constraints is not None:
        high = (constraints.penalty > slack) & np.isfinite(constraints.penalty)
        constraints, n_high = replace(constraints, penalty=np.where(high, np.inf, constraints.penalty)), int(high.sum())
    if not (n_high or low_v.any() or low_t.any()):
        return None
    theta_v, theta_t = np.where(low_v, -np.inf, graph.theta_v), np.where(low_t, -np.inf, graph.theta_t)
    return replace(graph, theta_v=frozen(theta_v), theta_t=frozen(theta_t), constraints=constraints)
