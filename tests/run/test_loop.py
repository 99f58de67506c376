"""The one loop: options, statuses, limits, interrupts, and a report that believes no method."""

from __future__ import annotations

import itertools
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest

import mapmrf
from clocks import LIMIT, Clock
from constrained_recipes import random_constrained
from mapmrf import (
    ICM,
    FactorGraph,
    GraphError,
    Kind,
    Method,
    OptionError,
    Result,
    Status,
    UnknownName,
    UnsupportedModel,
)
from mapmrf.model.polytope import integral
from mapmrf.model.problem import Problem
from mapmrf.run.loop import relevant_part
from mapmrf.run.method import Answer, Progress, Start
from mapmrf.run.registry import make_method, method_class
from mapmrf.run.repair import find_feasible
from mapmrf.run.result import TracePoint
from refusals import refuses
from strategies import Recipe, weighted


@dataclass(frozen=True)
class Script(Method):
    """A method that plays back a list of steps, the last one for ever; a step may be an exception."""

    name: ClassVar[str] = "script"
    title: ClassVar[str] = "plays back"

    max_iterations: int = 1000
    steps: tuple[Any, ...] = ()
    final: Answer = field(default_factory=Answer)
    refusal: str | None = None
    patient: bool = False

    @property
    def stops_at_gap(self) -> bool:  # type: ignore[override]
        return not self.patient

    def supports(self, problem: Problem) -> str | None:
        return self.refusal

    def start(self, problem: Problem, seed: int, initial: Start) -> list[Any]:
        return [*self.steps]

    def step(self, problem: Problem, state: list[Any]) -> Progress:
        step = state.pop(0) if len(state) > 1 else state[0]
        if isinstance(step, BaseException):
            raise step
        return step

    def answer(self, problem: Problem, state: list[Any]) -> Answer:
        return self.final


def chain() -> FactorGraph:
    """Two variables; [1, 1] is worth 3, [1, 0] 2, [0, 1] 0 and [0, 0] 1."""
    return FactorGraph.from_tables([2, 2], [(0, 1), (0,)], [[[1.0, 0.0], [0.0, 1.0]], [0.0, 2.0]])


def uneven() -> FactorGraph:
    """The same, but [0, 1] is worth less: values have no common step, so that no gap is too narrow for another."""
    return FactorGraph.from_tables([2, 2], [(0, 1), (0,)], [[[1.0, -math.pi], [0.0, 1.0]], [0.0, 2.0]])


def labels(*states: int) -> np.ndarray:
    return np.array(states, dtype=np.int64)


def play(*steps: Any, graph: FactorGraph | None = None, **options: Any) -> Result:
    own = {key: options.pop(key) for key in ("final", "refusal", "patient") if key in options}
    return mapmrf.solve(graph or chain(), Script(steps=steps, **own), **options)


def fixed(*states: int, bound: float | None = None) -> Script:
    """A method that says of a labelling that it is optimal."""
    return Script(steps=(Progress(1, labels=labels(*states), bound=bound, finished=Status.OPTIMAL),), max_iterations=1)


# -- names and options ------------------------------------------------------------------------------------------------


def test_an_unknown_method_or_option_is_refused_and_the_nearest_named() -> None:
    with pytest.raises(UnknownName, match=r"no method is named 'icn', did you mean 'icm'.*known: .*exhaustive"):
        mapmrf.solve(chain(), "icn")
    refuses(UnknownName, "no method is named 'zzzzz'; known:", method_class, "zzzzz")
    with pytest.raises(OptionError, match=r"icm has no option 'start', did you mean 'starts'.*known: max_iterations"):
        mapmrf.solve(chain(), "icm", start=3)
    refuses(OptionError, "icm has no option 'qqq'; known:", mapmrf.solve, chain(), ICM(), qqq=3)


def test_options_can_be_given_by_keyword_or_in_the_method_or_both() -> None:
    assert make_method("icm", {"starts": 3}) == ICM(starts=3)
    assert make_method(ICM(starts=3), {"max_iterations": 7}) == ICM(starts=3, max_iterations=7)
    assert mapmrf.solve(chain(), "icm", starts=3).options["starts"] == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_limit": -1}, "time_limit is -1"),
        ({"time_limit": math.nan}, "time_limit is nan"),
        ({"threads": 0}, "threads is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"abs_gap_tolerance": math.nan}, "abs_gap_tolerance is nan"),
    ],
)
def test_impossible_limits_are_refused(options: dict[str, Any], message: str) -> None:
    refuses(OptionError, message, mapmrf.solve, chain(), "icm", **options)


def test_a_method_that_cannot_take_the_model_says_why() -> None:
    refuses(UnsupportedModel, "script cannot solve this model: takes", play, Progress(1), refusal="takes trees only")


# -- how a run ends ---------------------------------------------------------------------------------------------------


BEST = labels(1, 1)
NEAR = [Progress(n, labels=BEST, bound=3.0 + 1e-6) for n in range(1, 100)]
ENDS: dict[str, tuple[Sequence[Any], dict[str, Any], Status, int]] = {
    "a status of the method": (
        [Progress(1), Progress(2, finished=Status.CONVERGED), Progress(3)], {}, Status.CONVERGED, 2,
    ),
    "a closed gap": (
        [Progress(1, bound=5.0), Progress(2, labels=BEST, bound=3.0 + 1e-14), Progress(3)], {}, Status.OPTIMAL, 2,
    ),
    "the default tolerance, some iterations later": (NEAR, {"graph": uneven()}, Status.WITHIN_TOLERANCE, 1 + 10),
    "a gap that closes in the meantime": (
        [*NEAR[:5], Progress(6, bound=3.0), Progress(7)], {"graph": uneven()}, Status.OPTIMAL, 6,
    ),
    "the tolerance, though iterations do not count": (NEAR[:1], {"graph": uneven()}, Status.WITHIN_TOLERANCE, 1),
    "a gap too narrow for values that are whole numbers": (NEAR[:1], {}, Status.OPTIMAL, 1),
    "an absolute tolerance": (
        [Progress(1, labels=BEST, bound=3.4), Progress(2, bound=3.0)],
        {"abs_gap_tolerance": 0.5, "graph": uneven()}, Status.WITHIN_TOLERANCE, 1,
    ),
    "a narrower absolute tolerance": (
        [Progress(1, labels=BEST, bound=3.4), Progress(2, bound=3.0)],
        {"abs_gap_tolerance": 0.3, "graph": uneven()}, Status.OPTIMAL, 2,
    ),
    "the method, outside of the tolerance": (
        [Progress(1, labels=BEST, bound=3.1), Progress(2, finished=Status.CONVERGED)],
        {"graph": uneven()}, Status.CONVERGED, 2,
    ),
    "the tolerance of the user": (
        [Progress(1, labels=BEST, bound=3.1), Progress(2, finished=Status.CONVERGED)],
        {"gap_tolerance": 0.05, "graph": uneven()}, Status.WITHIN_TOLERANCE, 1,
    ),
    "a patient method, after the gap has closed": (
        [Progress(1, labels=BEST, bound=3.0), Progress(2, finished=Status.CONVERGED)],
        {"patient": True}, Status.OPTIMAL, 2,
    ),
    "the limit of iterations": (
        [Progress(4), Progress(8), Progress(12)], {"max_iterations": 8}, Status.ITERATION_LIMIT, 8,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", ENDS)
def test_a_run_is_ended_by(what: str) -> None:
    steps, options, status, iterations = ENDS[what]
    result = play(*steps, **options)
    assert (result.status, result.iterations) == (status, iterations)
    assert status is not Status.OPTIMAL or result.value == 3.0
    assert status.closes_gap == (status in (Status.OPTIMAL, Status.WITHIN_TOLERANCE))
    assert ("better by more than" in result.summary()) == (status is Status.WITHIN_TOLERANCE)


def test_the_tolerance_of_the_user_reaches_the_phases_of_a_method() -> None:
    """A frustrated triangle that leaves a relative gap of 5e-7: below the default tolerance, above that of the user."""
    differ = 5e-7 * (1 - np.eye(2))
    pairs = [(0, 1), (1, 2), (0, 2), (3, 4)]
    graph = FactorGraph.from_tables([2] * 5, pairs, [differ, differ, differ, [[1.0, 0.0], [0.0, 0.5]]])
    phases = [{point.phase for point in mapmrf.solve(graph, "lslp", gap_tolerance=t).trace} for t in (None, 1e-9)]
    assert phases[0] == {"lp"} and "sphere 0" in phases[1]


def test_the_time_limit_ends_the_run(clock: Clock) -> None:
    result = play(Progress(1), time_limit=LIMIT, callback=clock.pass_limit)
    assert (result.status, len(result.trace)) == (Status.TIME_LIMIT, 1)
    assert LIMIT <= result.runtime < 2 * LIMIT


def test_a_true_answer_of_the_callback_ends_the_run() -> None:
    seen: list[int] = []

    def callback(point: TracePoint, best: np.ndarray) -> bool:
        seen.append(point.iterations)
        return point.iterations == 2

    result = play(Progress(1), Progress(2), Progress(3), callback=callback)
    assert (result.status, seen) == (Status.INTERRUPTED, [1, 2])


def test_ctrl_c_keeps_the_best_so_far_and_other_errors_are_not_swallowed() -> None:
    final = Answer(bound=4.0)
    result = play(Progress(1, labels=labels(1, 1)), KeyboardInterrupt(), final=final)
    assert (result.status, result.value, result.bound) == (Status.INTERRUPTED, 3.0, 4.0)

    def callback(point: TracePoint, best: np.ndarray) -> None:
        raise KeyboardInterrupt

    assert play(Progress(1, labels=labels(1, 1)), callback=callback).value == 3.0
    with pytest.raises(ZeroDivisionError):
        play(ZeroDivisionError())


def test_what_violates_is_repaired_or_said_to_be_infeasible() -> None:
    graph = Recipe([2], [(0,)], [np.full(2, -np.inf)]).graph()
    result = play(Progress(1, finished=Status.CONVERGED), graph=graph)
    assert (result.status, result.value, result.bound) == (Status.INFEASIBLE, -math.inf, -math.inf)
    table = np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])
    result = play(Progress(1, finished=Status.CONVERGED), graph=Recipe([2, 2], [(0, 1)], [table]).graph())
    assert (result.labels.tolist(), result.value, result.status) == ([1, 1], 0.0, Status.CONVERGED)


# -- the report -------------------------------------------------------------------------------------------------------


def test_claims_are_checked_and_labels_must_be_legal() -> None:
    result = play(Progress(1, labels=labels(0, 0), value=99.0), Progress(2, finished=Status.CONVERGED))
    assert result.value == chain().value(result.labels) == 2.0  # that of the best unary labelling
    assert max(point.value for point in result.trace) == 2.0
    result = play(Progress(1, labels=labels(1, 1), value=3.0, finished=Status.CONVERGED))
    assert (result.value, result.trace[0].value) == (3.0, 3.0)
    refuses(GraphError, "label of variable 1 is 7", play, Progress(1, labels=labels(0, 7)))


def test_the_best_value_and_the_best_bound_are_kept() -> None:
    steps = [
        Progress(1, labels=labels(1, 1), bound=9.0),
        Progress(2, labels=labels(0, 1), bound=8.0),
        Progress(3, labels=labels(0, 0), bound=8.5, finished=Status.CONVERGED),
    ]
    result = play(*steps)
    assert (result.value, result.bound) == (3.0, 8.0)
    assert [point.value for point in result.trace] == [3.0] * 3
    assert [point.bound for point in result.trace] == [9.0, 8.0, 8.0]
    assert [point.candidate for point in result.trace] == [3.0, 0.0, 1.0]
    assert [point.bound_now for point in result.trace] == [9.0, 8.0, 8.5]


def test_the_answer_is_a_copy_and_wins_among_equals() -> None:
    mine = labels(1, 1)
    result = play(Progress(1, labels=mine, finished=Status.CONVERGED))
    mine[:] = 0
    assert result.labels.tolist() == [1, 1]
    graph = Recipe([2, 2], [(0, 1)], [np.zeros((2, 2))]).graph()
    done = Progress(1, finished=Status.CONVERGED)
    assert play(done, graph=graph, final=Answer(labels=labels(0, 1))).labels.tolist() == [0, 1]
    assert play(done, final=Answer(labels=labels(0, 0))).labels.tolist() == [1, 0]  # a worse one does not


def test_the_report_names_its_origin_kind_and_relaxed_value() -> None:
    result = mapmrf.solve(chain(), "icm", seed=5)
    assert (result.method, result.seed, result.version) == ("icm", 5, mapmrf.__version__)
    assert 0 <= result.compile_time <= result.runtime
    mu_v, mu_f = integral(Problem.compile(chain()), labels(1, 0))
    result = play(Progress(1, finished=Status.CONVERGED), final=Answer(mu_v=mu_v, mu_f=mu_f))
    assert (result.kind, result.relaxed_value) == (Kind.VALID, 2.0)
    assert result.mu_v is mu_v
    assert play(Progress(1, finished=Status.CONVERGED)).kind is None


# -- starts -----------------------------------------------------------------------------------------------------------


def test_a_given_labelling_is_the_first_candidate_if_it_fits() -> None:
    done = Progress(1, finished=Status.CONVERGED)
    assert play(done, initial=[1, 1]).value == 3.0
    assert play(done, initial=play(done, initial=[1, 1])).value == 3.0
    assert play(done, initial=[0, 0]).value == 2.0  # the best unary labelling is better
    refuses(GraphError, "3 labels, expected one for each of the 2", mapmrf.solve, chain(), "icm", initial=[0, 0, 0])
    refuses(GraphError, "label of variable 0 is 2", mapmrf.solve, chain(), "icm", initial=[2, 0])


def test_progress_is_silent_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    mapmrf.solve(chain(), "icm", progress=True)
    assert capfd.readouterr() == ("", "")


# -- many models ------------------------------------------------------------------------------------------------------


def test_options_and_callback_reach_every_model() -> None:
    seen: list[float] = []
    results = mapmrf.solve_many([chain()] * 3, "icm", starts=2, seed=4, callback=lambda point, best: seen.append(1.0))
    assert [result.options["starts"] for result in results if isinstance(result, Result)] == [2, 2, 2]
    assert len(seen) == 6


def test_ctrl_c_ends_all_runs_and_returns_what_they_have() -> None:
    """The interrupt reaches the thread that waits, as a real one does."""
    calls = itertools.count()

    def press(point: TracePoint, best: np.ndarray) -> None:
        if next(calls) == 0:
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.001)  # lets other threads work

    endless = Script(steps=(Progress(1),), max_iterations=10**9)
    results = mapmrf.solve_many([chain()] * 4, endless, jobs=2, callback=press)
    assert [result.status for result in results if isinstance(result, Result)] == [Status.INTERRUPTED] * 4


# -- polish ------------------------------------------------------------------------------------------------------------


def test_a_polish_starts_from_the_best_labelling_and_its_iterations_come_on_top() -> None:
    first = Progress(7, labels=labels(0, 1), finished=Status.CONVERGED)
    second = Progress(2, labels=labels(1, 1), finished=Status.ITERATION_LIMIT)
    given: list[np.ndarray | None] = []

    class Noting(Script):
        def start(self, problem: Problem, seed: int, initial: Start) -> list[Any]:
            given.append(initial.labels)
            return super().start(problem, seed, initial)

    result = play(first, final=Answer(labels=labels(1, 0)), polish=Noting(steps=(Progress(1), second)))
    assert [start.tolist() for start in given if start is not None] == [[1, 0]]  # the answer of the method counts, too
    assert (result.value, result.status, result.iterations) == (3.0, Status.CONVERGED, 9)
    assert [point.phase for point in result.trace] == ["", "script", "script"]
    assert result.options["polish"] == "script" and "+ script" in result.summary()


def test_a_polish_that_proves_or_is_interrupted_says_so() -> None:
    result = mapmrf.solve(chain(), Script(steps=(Progress(1, finished=Status.CONVERGED),)), polish="exhaustive")
    assert (result.status, result.value, result.bound) == (Status.OPTIMAL, 3.0, 3.0)
    polish = Script(steps=(Progress(1, labels=labels(1, 1)), KeyboardInterrupt()))
    result = play(Progress(1, labels=labels(0, 1), finished=Status.CONVERGED), polish=polish)
    assert (result.status, result.value) == (Status.INTERRUPTED, 3.0)


@pytest.mark.parametrize("status", [Status.OPTIMAL, Status.INFEASIBLE, Status.INTERRUPTED, Status.TIME_LIMIT])
def test_what_is_proven_or_cut_short_is_not_polished(status: Status) -> None:
    never = Script(steps=(ZeroDivisionError(),))
    last = KeyboardInterrupt() if status is Status.INTERRUPTED else Progress(1, finished=status)
    play(Progress(0, labels=labels(1, 1)), last, polish=never)


def test_an_impossible_polish_is_refused_before_the_run() -> None:
    never = Script(steps=(ZeroDivisionError(),))
    with pytest.raises(UnknownName, match="no method is named 'block', did you mean 'blocks'"):
        mapmrf.solve(chain(), never, polish="block")
    with pytest.raises(UnsupportedModel, match="script cannot solve this model: too odd"):
        mapmrf.solve(chain(), never, polish=Script(refusal="too odd"))


def test_the_repair_of_a_labelling_keeps_the_time_limit_and_can_be_interrupted(monkeypatch) -> None:
    seen, found = [], find_feasible

    def look(*arguments: Any, seconds: float) -> Any:
        seen.append(seconds)
        return found(*arguments, seconds=1.0)

    monkeypatch.setattr("mapmrf.run.repair.find_feasible", look)
    forbidden = FactorGraph.from_pairwise([[1, 0], [1, 0]], [[0, 1]], [[-np.inf, 0], [0, -np.inf]])
    assert mapmrf.solve(forbidden, fixed(0, 0), time_limit=5.0).value > -np.inf
    assert 1.0 <= seen[0] <= 5.0
    monkeypatch.setattr("mapmrf.run.repair.find_feasible", lambda *_, **__: signal.default_int_handler(2, None))
    result = mapmrf.solve(forbidden, fixed(0, 0))
    assert result.status is Status.INTERRUPTED and result.value == -np.inf


def test_a_proof_that_the_bound_does_not_bear_out_is_no_proof() -> None:
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    assert mapmrf.solve(graph, fixed(0, 0, bound=2.0)).status is Status.CONVERGED
    assert mapmrf.solve(graph, fixed(1, 1, bound=2.0)).status is Status.OPTIMAL


def test_bounds_allow_for_round_off_where_potentials_are_huge() -> None:
    small = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    huge = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1e13, 0], [0, 1]])
    assert small.round_off(1e-9) == 0.0 and small.unit == 1.0
    assert 1e-3 < huge.round_off(1e-9) < 1.0
    assert mapmrf.solve(huge, fixed(1, 1, bound=3.0)).bound == 3.0 + huge.round_off(1e-9)
    assert mapmrf.solve(huge, fixed(0, 0, bound=1e13 + 1)).bound == 1e13 + 1
    tiny = FactorGraph.from_pairwise([[0, 1e-9], [0, 0]], [[0, 1]], [[0, 0], [0, 0]])
    assert tiny.unit == 1e-9


# -- what remains of a model above a value ----------------------------------------------------------------------------


@pytest.mark.parametrize("with_weights", [False, True])
def test_labellings_above_the_value_keep_theirs(with_weights: bool) -> None:
    reduced = 0
    for seed in range(40):
        random, recipe = np.random.default_rng([seed, 7]), random_constrained(seed, n_vars=4)
        if with_weights:
            recipe.recipe = weighted(recipe.recipe, seed)
            assert recipe.recipe.weights is not None
            recipe.recipe.weights = [abs(weight) for weight in recipe.recipe.weights]
        recipe.recipe.tables = [table * 10.0 ** random.uniform(-2, 2) for table in recipe.recipe.tables]
        graph, values = recipe.graph(), [value for _, value in recipe.values() if value > -math.inf]
        known = sorted(values)[len(values) // 2] if values else 0.0
        part = relevant_part(graph, known)
        if part is None:
            continue
        reduced += 1
        for labels, value in recipe.values():
            if value >= known:
                assert part.value(labels) == graph.value(labels)
            assert part.value(labels) in (graph.value(labels), -math.inf)
    assert reduced >= 5


def test_negative_weights_leave_a_model_as_it_is() -> None:
    recipe = random_constrained(3, n_vars=4)
    recipe.recipe.weights = [-1.0] * len(recipe.recipe.tables)
    assert relevant_part(recipe.graph(), -1e9) is None
