"""The contract of a method: options, four functions, and what they report to the loop."""

from __future__ import annotations

import dataclasses
import math
import types
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from numbers import Integral, Real
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
from numpy.typing import NDArray

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import FormatError, OptionError
from mapmrf.model.graph import FactorGraph
from mapmrf.model.memory import footprint_of
from mapmrf.model.polytope import FactorMarginals
from mapmrf.model.problem import Problem
from mapmrf.run.incumbent import GAP_TOLERANCE
from mapmrf.run.registry import revive, source_of
from mapmrf.run.result import Status, TracePoint


@dataclass(slots=True)
class Progress:
    """The report of one step of a method to the loop. Labels are candidates: the loop evaluates them itself.

    Attributes
    ----------
    iterations
        Iterations since the start.
    labels : (n_vars,)
        A candidate labelling.
    value
        The method's own value of it; the loop skips evaluation where this is no improvement (None: always evaluate).
    bound
        A valid upper bound, if this step gives one.
    finished
        The status with which the method ends; None while it continues.
    relaxed_value
        ``<theta, mu>`` of the current relaxed point, for the trace.
    phase
        Name of the phase, for the trace.
    extra
        Further figures for the trace, by name.
    refuted
        If bounds reported before have turned out to be false: all that were false, by source. The others are withdrawn
        too, except the one in this report.

    Examples
    --------
    >>> import numpy as np
    >>> progress = Progress(iterations=3, labels=np.array([1, 0]), bound=2.5)
    >>> progress.value is None, progress.finished is None  # the loop evaluates the labels, and the run goes on
    (True, True)
    """

    iterations: int
    labels: Ints | None = None
    value: float | None = None
    bound: float | None = None
    finished: Status | None = None
    relaxed_value: float | None = None
    phase: str = ""
    extra: dict[str, float] = field(default_factory=dict)
    refuted: dict[str, float] | None = None

    def traced(self, best: TracePoint, candidate: float | None, bound: float | None) -> TracePoint:
        """The trace point of this step: a point with the best so far, plus the step's own value and bound."""
        figures = (candidate, bound, self.relaxed_value, self.phase, self.extra)
        return TracePoint(best.time, best.iterations, best.value, best.bound, *figures)


@dataclass(slots=True)
class Answer:
    """The current answer of a method; every field is optional. The loop compares the labels with its incumbent.

    Attributes
    ----------
    labels : (n_vars,)
        A labelling.
    mu_v : (sum of card,)
        The relaxed solution on the variables.
    mu_f : (sum of table sizes over all factors,)
        The same on the factors, or a function that returns it for a few factors at a time.
    bound
        A valid upper bound.
    details
        Figures for the result.
    dual
        Messages or multipliers from which a later run may start.

    Examples
    --------
    >>> Answer(details={"restarts": 4.0}).labels is None
    True
    """

    labels: Ints | None = None
    mu_v: Floats | None = None
    mu_f: FactorMarginals | None = None
    bound: float | None = None
    details: dict[str, float] = field(default_factory=dict)
    dual: DualState | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """A warm start: labels (n_vars,), and mu_v (sum of card,) and dual state of an earlier Result; all may be None.

    `gap_tolerance` is the relative gap that the run regards as closed, for methods with stopping rules of their own.
    `saved` is what `Method.snapshot` returned in a run that is resumed.

    Examples
    --------
    >>> Start().labels is None  # nothing was given: the method chooses its own starting point
    True
    """

    labels: Ints | None = None
    mu_v: Floats | None = None
    dual: DualState | None = None
    gap_tolerance: float = GAP_TOLERANCE
    saved: Snapshot | None = None

    def first_labels(self, graph: FactorGraph) -> Ints:
        """A copy of the labels, or the best state of every variable on its own: (n_vars,)."""
        labels = graph.unary_labels if self.labels is None else self.labels
        return np.array(labels, dtype=np.int64)


class Method(ABC):
    """A solution method: a frozen dataclass of options with four functions.

    Concrete methods live in ``mapmrf/methods/<name>.py``, one class each, and declare all their options, among them
    `max_iterations`. Class attributes declare what a method promises; the contract tests check it. `family` is
    the group of methods that it belongs to in the documentation, such as ``message passing``.

    There are two shapes. In a *kernel loop* `step` runs some iterations of a kernel. A *run of phases* derives from
    `Phases`: its steps are those of a generator.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import mapmrf
    >>> from mapmrf.run.method import Answer, Progress
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
    family: ClassVar[str] = ""
    recommended: ClassVar[bool] = False
    """Whether documentation and command line show the method among the few that most users need."""
    gives_bound: ClassVar[bool] = False
    exact: ClassVar[bool] = False
    exact_on_trees: ClassVar[bool] = False
    native_constraints: ClassVar[bool] = False
    """Whether the method handles constraints itself; otherwise it gets them as tables: `constraints.as_tables`."""
    native_automata: ClassVar[bool] = False
    """Whether it also handles constraints that only an automaton describes; otherwise it gets these as tables."""
    measured_as: ClassVar[str | None] = None
    """The method whose memory is needed, if it is not this one."""
    stops_at_gap: ClassVar[bool] = True
    """Whether the loop may end the run as soon as the gap is closed."""

    max_iterations: PositiveInt

    def __post_init__(self) -> None:
        """Check the options: a dataclass calls this when it is made."""
        check_options(self)

    def supports(self, problem: Problem) -> str | None:
        """Return the reason why this method cannot solve the problem, or None if it can."""
        return None

    def footprint(self, graph: FactorGraph) -> float | None:
        """Estimate the memory of a run in bytes, besides the model itself; None if unknown."""
        return footprint_of(self.measured_as or self.name, graph)

    def within(self, graph: FactorGraph, left: float) -> Method:
        """Return the method with options such that a run needs at most this many bytes, where options decide that."""
        return self

    @abstractmethod
    def start(self, problem: Problem, seed: int, initial: Start) -> Any:
        """Return the state of a new run."""

    @abstractmethod
    def step(self, problem: Problem, state: Any) -> Progress:
        """Advance the state in place, for at most some 50 ms."""

    @abstractmethod
    def answer(self, problem: Problem, state: Any) -> Answer:
        """Return the current answer. Must not change the state: the loop may ask after any step and continue."""

    def close(self, problem: Problem, state: Any) -> None:  # noqa: B027
        """Release threads, processes and memory; the loop calls this once, however the run ended."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the method; one from a file such as ``my_file.py:Greedy`` by its file, which a worker imports."""
        path = source_of(type(self))
        if path is None:
            return super().__reduce_ex__(protocol)
        return revive, (path, type(self).__qualname__, dict(vars(self)))

    def snapshot(self, problem: Problem, state: Any) -> Snapshot | None:
        """Return what `start` needs to continue from here to the same answer; None if not supported."""
        return None


def follow(
    method: Method,
    problem: Problem,
    seed: int = 0,
    initial: Start = Start(),
    before: Callable[[Any], object] = id,
) -> Generator[tuple[Progress, Any], None, None]:
    """Run another method to its end: yield the report and the state after every step.

    `before` is called with the state before every step. The state is closed when the generator is, as when a ``for``
    loop over it is left.
    """
    with running(method, problem, seed, initial) as state:
        progress = Progress(0)
        while progress.finished is None and progress.iterations < method.max_iterations:
            before(state)
            progress = method.step(problem, state)
            yield progress, state


@contextmanager
def running(method: Method, problem: Problem, seed: int, initial: Start) -> Iterator[Any]:
    """Start a run of another method and close its state at the end; for methods that use other methods."""
    state = method.start(problem, seed, initial)
    try:
        yield state
    finally:
        method.close(problem, state)


class PhasedRun(ABC):
    """The state of a run of phases: one generator, a `Progress` for every step.

    Attributes
    ----------
    steps
        The generator; closing it runs the ``finally`` clauses of the current phase.

    Examples
    --------
    >>> from mapmrf.run.method import Answer, PhasedRun, Progress
    >>> class Countdown(PhasedRun):
    ...     def run(self):
    ...         try:
    ...             for left in (2, 1, 0):
    ...                 yield Progress(3 - left, phase=f"{left} left")
    ...         finally:
    ...             print("released")
    ...     def answer(self):
    ...         return Answer()
    >>> run = Countdown()
    >>> next(run.steps).phase
    '2 left'
    >>> run.close()
    released
    """

    def __init__(self) -> None:
        self.steps = self.run()

    @abstractmethod
    def run(self) -> Generator[Progress, None, None]:
        """Run all phases, one after another."""

    @abstractmethod
    def answer(self) -> Answer:
        """Return the current answer without changing the run."""

    def close(self) -> None:
        """Release the run's resources: without this, generator and run would keep each other alive."""
        self.steps.close()


class Phases(Method):
    """A method that runs in phases: `start` returns a `PhasedRun`, whose generator yields after every step.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import mapmrf
    >>> from mapmrf.run.method import Answer, PhasedRun, Phases, Progress
    >>> class AllThenNone(PhasedRun):
    ...     def __init__(self, problem):
    ...         super().__init__()
    ...         self.card = problem.graph.card
    ...     def run(self):
    ...         yield Progress(1, labels=self.card - 1, phase="all")
    ...         yield Progress(2, labels=0 * self.card, finished=mapmrf.Status.CONVERGED, phase="none")
    ...     def answer(self):
    ...         return Answer()
    >>> @dataclass(frozen=True)
    ... class Extremes(Phases):
    ...     name = "extremes"
    ...     max_iterations: int = 10
    ...     def start(self, problem, seed, initial):
    ...         return AllThenNone(problem)
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> [point.phase for point in mapmrf.solve(graph, Extremes()).trace]
    ['all', 'none']
    """

    @abstractmethod
    def start(self, problem: Problem, seed: int, initial: Start) -> PhasedRun:
        """Return the run, its generator not yet begun."""

    def step(self, problem: Problem, state: PhasedRun) -> Progress:
        """Run the next step of the current phase."""
        return next(state.steps)

    def answer(self, problem: Problem, state: PhasedRun) -> Answer:
        """Return the current answer."""
        return state.answer()

    def close(self, problem: Problem, state: PhasedRun) -> None:
        """End the current phase and release the run's resources."""
        state.close()


# -- Options: their types say what is legal, and errors what was found and what was expected --------------------------


_WANTED: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "None",
}


@dataclasses.dataclass(frozen=True)
class Range:
    """The legal values of a number, as a part of its type: from `low`, or `above` it, to `high`."""

    low: float
    high: float = math.inf
    above: bool = False

    def __contains__(self, value: float) -> bool:  # nan is in no range
        return self.low <= value <= self.high and not (self.above and value == self.low)

    def __str__(self) -> str:
        if self.high < math.inf:
            return f"a number from {self.low} to {self.high}"
        return f"a number above {self.low}" if self.above else f"at least {self.low}"


PositiveInt = Annotated[int, Range(1)]
NonNegativeInt = Annotated[int, Range(0)]
PositiveFloat = Annotated[float, Range(0, above=True)]
NonNegativeFloat = Annotated[float, Range(0)]


def check_options(method: Any) -> None:
    """Raise OptionError for the first option whose value its annotation does not allow."""
    cls = cast(Hashable, type(method))
    values = [getattr(method, name) for name in kinds_of(cls)]
    try:
        _check_values(cls, *values)
    except TypeError:  # a value that cannot be a key
        _check_values.__wrapped__(cls, *values)


@lru_cache(maxsize=256, typed=True)
def _check_values(cls: Any, *values: Any) -> None:
    """Cached, as most runs have the same options: errors are not, so that they are raised every time."""
    for (name, kinds), value in zip(kinds_of(cls).items(), values, strict=True):
        expected = [_expected(value, *kind) for kind in kinds]
        if all(expected):
            raise OptionError(f"{cls.name}: {name} is {value!r}, expected {' or '.join(expected)}")


def check_number(name: str, value: object, kind: type = float) -> None:
    if not _is_a(value, kind):
        raise OptionError(f"{name} is {value!r}, expected {_WANTED[kind]}")


@lru_cache(maxsize=256)
def kinds_of(cls: Hashable) -> dict[str, list[tuple[Any, Any]]]:
    """The alternatives of every option of a method, each a type and the words or the range that limit it.

    Cached, since this takes longer than a small model.
    """
    try:
        hints = get_type_hints(cls, include_extras=True)
    except NameError:  # a class of a notebook or a script may name what only type checkers see
        return {}
    return {item.name: _alternatives(hints[item.name]) for item in dataclasses.fields(cast(Any, cls))}


def _alternatives(hint: Any) -> list[tuple[Any, Any]]:
    if get_origin(hint) in (Union, types.UnionType):
        return [kind for part in get_args(hint) for kind in _alternatives(part)]
    if get_origin(hint) is Annotated:
        return [get_args(hint)]
    return [(Literal, get_args(hint)) if get_origin(hint) is Literal else (hint, None)]


def _expected(value: Any, kind: Any, limits: Any) -> str:
    """What was expected instead of a value that is no such alternative; nothing if it is one."""
    if not _is_a(value, kind):
        return _WANTED[kind]
    if limits is None or value in limits:
        return ""
    return f"one of {', '.join(limits)}" if kind is Literal else str(limits)


def _is_a(value: object, kind: Any) -> bool:
    if type(value) is kind or kind not in _WANTED:  # other types are not checked
        return True
    if kind in (int, float):
        number = Integral if kind is int else Real
        return isinstance(value, number) and not isinstance(value, bool)
    return isinstance(value, kind)


# -- What a method leaves for a later run: its dual point for a warm start, and all of its state for a checkpoint -----


MOST_NUMBERS = 2_000_000  # largest dual state that is kept in a result, in numbers: 16 MB

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class DualState:
    """Messages or multipliers of a run, in the layout of the method that computed them.

    A dual point gives a bound on any model with the same variables, states and scopes, whatever its potentials: a run
    may start from it after the potentials have changed.

    Attributes
    ----------
    layout
        Name of the layout: only a run with the same layout can use the numbers.
    values : (n_numbers,)
        The messages or multipliers.
    card, scope_ptr, scope : (n_vars,), (n_factors + 1,), (n_edges,)
        The structure they belong to: arrays of the `FactorGraph`.
    rho
        The penalty of ADMM in units of the model's interaction; 0 where there is none.
    mu_v : (sum of card,)
        The relaxed solution of ADMM that belongs to the multipliers, or None.

    Examples
    --------
    >>> import mapmrf
    >>> from mapmrf.datasets import grid
    >>> first = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "mplp")
    >>> first.dual
    DualState(mplp: 240 numbers)
    >>> again = mapmrf.solve(grid(6, 6, coupling=2.0, seed=1), "mplp", initial=first)
    >>> again.iterations < first.iterations, abs(again.bound - first.bound) < 1e-3
    (True, True)
    """

    layout: str
    values: Floats
    card: Ints
    scope_ptr: Ints
    scope: Ints
    rho: float = 0.0
    mu_v: Floats | None = None

    @classmethod
    def of(
        cls, problem: Problem, layout: str, values: Floats, *, rho: float = 0.0, mu_v: Floats | None = None
    ) -> DualState | None:
        """The dual state of a run, from its values (n_numbers,) and mu_v (n_states,); None if too large to keep."""
        if len(values) > MOST_NUMBERS:
            return None
        graph = problem.graph
        return cls(_full_name(problem, layout), values, graph.card, graph.scope_ptr, graph.scope, rho, mu_v)

    def __repr__(self) -> str:
        return f"DualState({self.layout.split(':')[0]}: {len(self.values)} numbers)"

    def fits(self, graph: FactorGraph) -> bool:
        """Return whether a model has the structure of this dual state."""
        mine, others = (self.card, self.scope_ptr, self.scope), (graph.card, graph.scope_ptr, graph.scope)
        return all(a is b or np.array_equal(a, b) for a, b in zip(mine, others, strict=True))

    def values_for(self, problem: Problem, layout: str, size: int) -> Floats | None:
        """The numbers, if a run on this problem uses the same layout; else None."""
        same = self.layout == _full_name(problem, layout) and len(self.values) == size
        return self.values if same and self.fits(problem.graph) else None


def _full_name(problem: Problem, layout: str) -> str:
    """A layout together with the problem's order of factors, which depends on forbidden configurations."""
    batches = ",".join(f"{'x'.join(map(str, batch.shape))}{'!' * batch.hard}" for batch in problem.batches)
    order = 0 if problem.sorted_by is None else zlib.crc32(np.ascontiguousarray(problem.sorted_by).tobytes())
    return f"{layout}:{batches}:{order:x}"


class Snapshot(NamedTuple):
    """The state of a method: figures that JSON can hold, and arrays."""

    figures: dict[str, Any]
    arrays: dict[str, Array]


def put_back(target: Array, found: Mapping[str, Array], name: str) -> None:
    """Copy an array from a file into one in memory; raise FormatError unless type and shape are the same."""
    array = found.get(name)
    if array is None or array.shape != target.shape or array.dtype != target.dtype:
        what = "nothing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise FormatError(
            f"the checkpoint's array {name!r}: found {what}, expected {target.dtype} of shape {target.shape}"
        )
    target[...] = array
