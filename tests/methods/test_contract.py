"""The contract: what every registered method promises, whatever the model.

A method that cannot take a model says so in `supports`; nothing else excuses it. The flags of its class
(`gives_bound`, `exact`, `exact_on_trees`) switch on more promises.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, currently_in_test_context, example, given, settings
from hypothesis import strategies as st

import mapmrf
from binary_models import binary_graphs, complete, spins, submodular_recipe
from clocks import LIMIT, Clock, solver_threads, wait_until
from elimination_models import frustrated
from mapmrf import FactorGraph, Method, OptionError, Result, Status, UnsupportedModel
from mapmrf.certificates import verify
from mapmrf.certificates.make import certify
from mapmrf.datasets import potts_image
from mapmrf.model.problem import Problem
from mapmrf.run.clock import wait_for_all
from mapmrf.run.method import Start, running
from mapmrf.run.registry import method_class, method_names
from mapmrf.run.result import GAP_TOLERANCE, TracePoint
from pairwise_models import attractive, random_grid, scaled, structured_graph
from plain_python import plain_kernels
from strategies import (
    Recipe,
    any_recipes,
    brute_force,
    hard_recipes,
    random_recipe,
    recipes,
    soft_recipes,
    submodular,
    tree_recipes,
    with_alike,
    with_submodular,
    with_weights,
)

TOL = 1e-6
NAMES = method_names()
every_method = pytest.mark.parametrize("name", NAMES)


def run(graph: FactorGraph, name: str | Method, **options: Any) -> Result:
    """Solve, and drop the example, or skip the test, where the method says that it cannot take the model."""
    try:
        return mapmrf.solve(graph, name, **options)
    except UnsupportedModel as reason:
        if not currently_in_test_context():
            pytest.skip(str(reason))
        assume(False)
        raise


def near(x: float, y: float, tol: float = TOL) -> bool:
    return x == y or abs(x - y) <= tol * max(1.0, abs(y))


def at_least(x: float, y: float, tol: float = TOL) -> bool:
    """x >= y up to round-off."""
    return x >= y - tol * max(1.0, abs(y)) if math.isfinite(y) else x >= y


def assert_honest(graph: FactorGraph, result: Result, optimum: float) -> None:
    """The promises that hold for every result, however the run ended."""
    assert result.labels.dtype == np.int64
    assert result.labels.shape == (graph.n_vars,)
    assert np.all((result.labels >= 0) & (result.labels < graph.card))
    assert result.value == graph.value(result.labels)
    assert at_least(optimum, result.value)
    assert result.bound is None or result.bound >= result.value
    bounds = [result.bound, *(point.bound for point in result.trace), *(point.bound_now for point in result.trace)]
    assert all(at_least(bound, optimum) for bound in bounds if bound is not None)
    values = [point.value for point in result.trace]
    assert values == sorted(values), "the best value so far must not fall"
    assert all(at_least(optimum, value) for value in values)
    if result.status is Status.OPTIMAL:
        assert near(result.value, optimum)


# -- values and bounds ------------------------------------------------------------------------------------------------


def written_and_read(graph: FactorGraph) -> FactorGraph:
    """The same model as it comes from a file: readers share equal tables, builders do not."""
    with tempfile.TemporaryDirectory() as folder:
        mapmrf.write(graph, Path(folder, "model.LG"))
        return mapmrf.read(Path(folder, "model.LG"))


@every_method
@given(recipe=with_alike(with_submodular(with_weights(recipes()))), unit=st.sampled_from([1.0, 1.0, 1e-12, 1e-6, 1e12]))
@settings(max_examples=15)
def test_labels_are_legal_and_values_and_bounds_are_honest(name: str, recipe: Recipe, unit: float) -> None:
    built = recipe.scaled(unit).graph()
    optimum, _ = brute_force(built)
    allowed = built.allowance
    for graph in (built, written_and_read(built)):
        result = run(graph, name)
        assert_honest(graph, result, optimum)
        bounds = [result.bound, *(point.bound for point in result.trace)]
        assert all(bound >= optimum - allowed for bound in bounds if bound is not None)
        if method_class(name).gives_bound:
            assert result.bound is not None
        if method_class(name).exact:
            assert result.status is Status.OPTIMAL
        if result.status is Status.OPTIMAL:
            assert optimum - result.value <= allowed
            found = verify(graph, result.labels, certify(graph, result.labels))
            assert found.bound is not None and float(found.bound) - result.value <= allowed


@every_method
@given(recipe=with_submodular(with_weights(tree_recipes())), unit=st.sampled_from([1.0, 1e-6, 1e6]))
@settings(max_examples=20)
def test_exact_on_trees_means_what_it_says_in_any_unit(name: str, recipe: Recipe, unit: float) -> None:
    cls = method_class(name)
    if not (cls.exact_on_trees or cls.exact):
        pytest.skip("makes no such promise")
    graph = recipe.scaled(unit).graph()
    result = run(graph, name)
    assert near(result.value / unit, brute_force(graph)[0] / unit)
    if cls.gives_bound:
        assert result.status is Status.OPTIMAL


@every_method
@given(recipe=with_submodular(with_weights(any_recipes() | hard_recipes())))
@example(recipe=Recipe([2, 2], [(0, 1)], [np.full((2, 2), -np.inf)]))
@example(recipe=Recipe([3], [(0,)], [np.full(3, -np.inf)]))
@example(recipe=Recipe([2], [()], [np.array(-np.inf)]))
# three variables that must all differ, with two states: feasible for the relaxation alone
@example(recipe=Recipe([2, 2, 2], [(0, 1), (1, 2), (0, 2)], [np.where(np.eye(2), -np.inf, 0)] * 3))
# each table alone allows something
@example(recipe=Recipe([2, 2], [(0, 1), (0, 1)], [np.where(np.eye(2), -np.inf, 0), np.where(np.eye(2), 0, -np.inf)]))
# equality carries the state of a fixed variable round to a pair that forbids it
@example(
    recipe=Recipe(
        [2, 2, 2],
        [(0,), (0, 1), (1, 2), (0, 2)],
        [np.array([0, -np.inf]), *[np.where(np.eye(2), 0, -np.inf)] * 2, np.where(np.eye(2), -np.inf, 0)],
    )
)
# what LS-LP proves by a search of its own
@example(recipe=random_recipe(34, 6, 8, hard=0.3))
# a variable of one state, which is forbidden
@example(recipe=Recipe([1, 2], [(0,), (0, 1)], [np.array([-np.inf]), np.array([[2.0, 3.0]])]))
# a variable without a state beside others
@example(recipe=Recipe([2, 2, 2], [(1,), (0, 1), (1, 2), (0, 2)], [np.full(2, -np.inf), *[np.eye(2)] * 3]))
def test_infeasible_models_and_only_those_end_as_infeasible(name: str, recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = run(graph, name)
    assert_honest(graph, result, optimum)
    assert (result.status is Status.INFEASIBLE) == (result.value == -math.inf) == (optimum == -math.inf)
    if optimum == -math.inf:
        assert result.bound == -math.inf


@every_method
@given(recipe=with_submodular(with_weights(recipes())), limit=st.sampled_from([1, 2, 7, 30]))
@settings(max_examples=10)
def test_a_run_that_is_cut_short_has_a_labelling_and_a_bound_that_holds(name: str, recipe: Recipe, limit: int) -> None:
    graph = recipe.graph()
    result = run(graph, name, max_iterations=limit)
    assert result.iterations <= limit
    assert_honest(graph, result, brute_force(graph)[0])
    assert result.bound is not None or not method_class(name).gives_bound


PLAIN = {
    "any": random_recipe(7, 6, 9, hard=0.1).graph(),
    "spins": spins(4, seed=1),
    "submodular": submodular(random_recipe(7, 6, 9)).graph(),
    "Potts": potts_image(5, 5, labels=4, seed=0).graph,
    "hard cut": submodular_recipe(np.random.default_rng(0), 7, 0.5, 0.1).graph(),
    "hard spins": random_recipe(12, 6, 14, hard=0.1, max_card=2, max_arity=2).graph(),
    "forms": structured_graph(2, n_vars=4, states=25),
}
SPHERES: list[dict[str, Any]] = [
    *({"sphere": sphere, "lp_phase": False} for sphere in ("affine", "factors", "off")),
    {"sphere_block": 2, "lp_phase": False},
    *({"epsilon": 1e-3, "variant": variant, "lp_phase": False} for variant in ("tied", "free")),
]


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in NAMES), *(("lslp", options) for options in SPHERES)]
)
@pytest.mark.parametrize("model", PLAIN)
def test_kernels_do_the_same_as_plain_python(name: str, options: dict[str, Any], model: str) -> None:
    """So they leave no array that they were given; compiled kernels would not notice."""
    compiled = run(PLAIN[model], name, max_iterations=30, **options)
    with plain_kernels(*(module for key, module in sys.modules.items() if key.startswith("mapmrf."))):
        plain = mapmrf.solve(PLAIN[model], name, max_iterations=30, **options)
    assert plain.labels.tolist() == compiled.labels.tolist()
    assert plain.bound is compiled.bound is None or near(plain.bound, compiled.bound, 1e-9)


# -- what must not change the answer ----------------------------------------------------------------------------------


@every_method
@given(recipe=with_submodular(with_weights(recipes())), seed=st.integers(0, 3))
@settings(max_examples=10)
def test_same_input_and_seed_give_the_same_result_on_one_and_two_threads(name: str, recipe: Recipe, seed: int) -> None:
    graph = recipe.graph()
    first = run(graph, name, seed=seed)
    for threads in (1, 2):
        again = run(recipe.graph(), name, seed=seed, threads=threads)
        assert again.labels.tolist() == first.labels.tolist()
        assert (again.value, again.bound, again.iterations) == (first.value, first.bound, first.iterations)
        assert again.status is first.status


@every_method
def test_a_budget_of_iterations_gives_the_same_run_of_a_larger_model_on_one_and_two_threads(name: str) -> None:
    graph = grid(4, 3) if name in ("auto", "branch", "cuts") else grid_for(name)  # an iteration of theirs is long
    first, *others = (mapmrf.solve(graph, name, max_iterations=7, threads=threads) for threads in (1, 1, 2))
    for other in others:
        assert other.labels.tolist() == first.labels.tolist()
        assert (other.bound, other.iterations, other.status) == (first.bound, first.iterations, first.status)


@every_method
@given(
    recipe=with_submodular(with_weights(soft_recipes(max_vars=5))), shift=st.sampled_from([-64.0, 4.0]), data=st.data()
)
@settings(max_examples=10)
def test_adding_a_constant_to_a_table_shifts_the_value_by_it(
    name: str, recipe: Recipe, shift: float, data: st.DataObject
) -> None:
    assume(recipe.tables)
    a = data.draw(st.integers(0, len(recipe.tables) - 1))
    tables = list(recipe.tables)
    tables[a] = tables[a] + shift
    before = run(recipe.graph(), name)
    after = run(Recipe(recipe.card, recipe.scopes, tables, recipe.weights).graph(), name)
    shift *= 1.0 if recipe.weights is None else recipe.weights[a]
    assert near(after.value, before.value + shift)
    if before.bound is not None:
        assert after.bound is not None
        assert near(after.bound, before.bound + shift, 1e-4)


@every_method
@given(recipe=with_submodular(with_weights(recipes())), seed=st.integers(0, 2**16))
@settings(max_examples=10)
def test_renaming_variables_renames_the_labels_of_an_exact_answer(name: str, recipe: Recipe, seed: int) -> None:
    cls = method_class(name)
    if not cls.exact:
        pytest.skip("only an exact method answers the same from every side")
    new = np.random.default_rng(seed).permutation(len(recipe.card))
    before = run(recipe.graph(), name)
    after = run(recipe.renamed(new).graph(), name)
    assert near(after.value, before.value)
    if is_generic(recipe):
        assert after.labels[new].tolist() == before.labels.tolist()


def is_generic(recipe: Recipe) -> bool:
    """Whether every variable that can vary has a random unary table of its own: then no two labellings tie."""
    own = {scope[0] for scope in recipe.scopes if len(scope) == 1}
    return recipe.weights is None and all(r == 1 or i in own for i, r in enumerate(recipe.card))


@every_method
@given(graph=binary_graphs(), factor=st.sampled_from([1e-9, 1.0, 1e9]))
@settings(max_examples=15)
def test_binary_models_are_enclosed_and_proven_in_any_unit(name: str, graph: FactorGraph, factor: float) -> None:
    if name == "maxflow":
        pytest.skip("takes submodular models only")
    graph = scaled(graph, factor)
    optimum, cls = brute_force(graph)[0], method_class(name)
    result = run(graph, name)
    assert result.bound is not None or not cls.gives_bound
    assert result.bound is None or result.bound >= optimum - 1e-9 * factor
    if result.status is Status.OPTIMAL or cls.exact:
        assert result.status.closes_gap and result.value >= optimum - 1e-5 * factor


@every_method
@given(recipe=with_submodular(with_weights(recipes())), data=st.data())
@settings(max_examples=10)
def test_a_warm_start_is_never_made_worse(name: str, recipe: Recipe, data: st.DataObject) -> None:
    graph = recipe.graph()
    initial = [data.draw(st.integers(0, r - 1)) for r in recipe.card]
    result = run(graph, name, initial=initial)
    assert result.value >= graph.value(initial)
    assert run(graph, name, initial=result).value >= result.value
    best, labels = brute_force(graph)
    assert near(run(graph, name, initial=labels).value, best)


@every_method
def test_input_arrays_are_left_alone(name: str) -> None:
    recipe = random_recipe(5, 5, 9)
    tables = [table.copy() for table in recipe.tables]
    initial = np.zeros(5, dtype=np.int64)
    graph = recipe.graph()
    arrays = {item.name: getattr(graph, item.name) for item in dataclasses.fields(graph)}
    kept = {key: array.copy() for key, array in arrays.items() if isinstance(array, np.ndarray)}
    run(graph, name, initial=initial)
    assert all(np.array_equal(table, copy) for table, copy in zip(recipe.tables, tables, strict=True))
    assert all(np.array_equal(arrays[key], copy) for key, copy in kept.items())
    assert initial.tolist() == [0] * 5 and initial.flags.writeable


# -- models at the edge -----------------------------------------------------------------------------------------------

PAIR = np.array([[5.0, 0.0], [0.0, 0.0]])
EDGE_MODELS = {
    "no variable": Recipe([]),
    "no variable, a constant": Recipe([], [()], [np.array(2.5)]),
    "no factor": Recipe([2, 3]),
    "unary factors only": Recipe([2, 3], [(0,), (1,)], [np.array([1.0, 2.0]), np.array([0.5, -1.0, 3.0])]),
    "one variable": Recipe([4], [(0,), (0,)], [np.array([0.0, 3.0, 1.0, 2.0]), np.array([0.0, -5.0, 1.0, 0.0])]),
    "one state each": Recipe([1, 1, 1], [(0, 1), (0, 1, 2)], [np.array([[1.5]]), np.array([[[0.25]]])]),
    "one state beside two": Recipe([1, 2], [(0, 1), (1,)], [np.array([[1.0, 3.0]]), np.array([1.0, 0.0])]),
    "a pair without coupling": Recipe([2, 2], [(0, 1)], [np.array([0.0, 1.0])[:, None] + np.array([0.5, 0.0])]),
    "a pair and one alone": Recipe([2, 3, 2], [(0, 2), (1,)], [np.array([[0.0, 1.0], [2.0, 0.5]]), np.arange(3.0)]),
    "pairs that are far apart": Recipe(
        [2, 2, 3, 2, 2], [(0, 1), (2,), (3, 4)], [PAIR, np.array([0.0, 1.0, 0.0]), PAIR]
    ),
    "a single pair": Recipe([2, 2], [(0, 1)], [np.array([[0.0, 1.0], [2.0, 0.5]])]),
}


@every_method
@pytest.mark.parametrize("model", EDGE_MODELS)
def test_models_at_the_edge_are_solved(name: str, model: str) -> None:
    graph = EDGE_MODELS[model].graph()
    optimum, _ = brute_force(graph)
    result = run(graph, name)
    assert_honest(graph, result, optimum)
    assert near(result.value, optimum)


# -- limits and interrupts --------------------------------------------------------------------------------------------


@functools.cache
def grid(side: int = 30, states: int = 3) -> FactorGraph:
    """A model on which no method is done in a moment."""
    return random_grid(side, side, states, coupling=3.0)


@functools.cache
def even_grid(side: int = 60) -> FactorGraph:
    """Binary variables that all want to be like their neighbours."""
    return attractive(side, 2, coupling=1.0)


def grid_for(name: str) -> FactorGraph:
    """The largest grid that a method takes."""
    smaller = {"cuts": [grid(12)], "sdp": [even_grid(30)]}  # they would take seconds
    for graph in (*smaller.get(name, ()), grid(), even_grid(), grid(4, 2)):
        if method_class(name)().supports(Problem.compile(graph)) is None:
            return graph
    pytest.skip("takes no grid")


@every_method
@pytest.mark.parametrize("limit", [0.0, LIMIT])
def test_the_time_limit_is_respected(name: str, limit: float, clock: Clock) -> None:
    """No step begins after the limit, which passes at the first point of the trace."""
    graph = grid_for(name)
    result = mapmrf.solve(graph, name, time_limit=limit, callback=clock.pass_limit)
    assert len(result.trace) == 1
    assert result.value == graph.value(result.labels)
    assert result.status in (Status.TIME_LIMIT, Status.CONVERGED, Status.OPTIMAL, Status.ITERATION_LIMIT)


@every_method
def test_the_iteration_limit_is_respected_and_a_callback_can_stop_the_run(name: str) -> None:
    graph = grid_for(name)
    limited = mapmrf.solve(graph, name, max_iterations=1)  # while kernels are compiled, callbacks come without a step
    assert limited.iterations <= 1 and limited.options["max_iterations"] == 1
    seen = []

    def stop(point: TracePoint, labels: np.ndarray) -> bool:
        seen.append((point, graph.value(labels)))
        return True

    result = mapmrf.solve(graph, name, callback=stop)
    assert len(seen) == len(result.trace) == 1
    assert seen[0][0].value == seen[0][1]
    assert result.value >= seen[0][1]
    assert result.status is Status.INTERRUPTED or (result.gap is not None and result.gap <= TOL)


def interrupted_in_step(name: str, n: int, raised: list[bool]) -> Method:
    """The method with a Ctrl-C in its n-th step, if it comes to that."""
    cls = method_class(name)
    steps: list[None] = []

    class Interrupted(cls):  # type: ignore[misc, valid-type]
        def step(self, problem: Any, state: Any) -> Any:
            steps.append(None)
            if len(steps) == n:
                raised.append(True)
                raise KeyboardInterrupt
            return super().step(problem, state)

    return Interrupted()


@every_method
@pytest.mark.parametrize("n", [1, 2])
def test_ctrl_c_gives_the_best_labelling_so_far(name: str, n: int) -> None:
    graph = grid_for(name)
    seen: list[float] = []
    raised: list[bool] = []
    method = interrupted_in_step(name, n, raised)
    result = mapmrf.solve(graph, method, callback=lambda point, labels: seen.append(point.value))
    assert result.value == graph.value(result.labels)
    assert result.value >= max(seen, default=-math.inf)
    assert raised or n > 1
    if raised:
        assert result.status is Status.INTERRUPTED or (result.gap is not None and result.gap <= TOL)


def advanced(point: TracePoint) -> bool:
    """Whether a solver beside the loop has told of several steps, with a finite bound."""
    return point.iterations > 0 and point.value < point.bound < math.inf


def in_phase(phase: str, *, solver: bool = False) -> Callable[[TracePoint], bool]:
    return lambda point: point.phase == phase and (not solver or bool(solver_threads()))


DENSE = complete(60)
AT_WORK = {
    "lp": ("lp", {}, random_grid(120, 120, 3, seed=1), in_phase("", solver=True)),
    "highs": ("cuts", {"solver": "highs", "rounds": 1}, DENSE, in_phase("branch", solver=True)),
    "scip": ("cuts", {"solver": "scip", "rounds": 1}, DENSE, in_phase("branch", solver=True)),
    "planes": ("cuts", {}, DENSE, in_phase("cuts")),
    "toulbar2": ("toulbar2", {}, spins(30, seed=1), advanced),
    "search": ("branch", {"memory": 1, "local_search": 1}, frustrated(40, 40), in_phase("search")),
    "auto": ("auto", {"elimination_entries": 0}, frustrated(40, 40), in_phase("cuts")),
}
"""Methods that have a solver at work or much memory in use: options, a model that takes long, and the moment."""


@pytest.mark.parametrize("ending", ["limit", "callback", "interrupt", "error"])
@pytest.mark.parametrize("work", AT_WORK)
def test_a_run_that_is_stopped_at_work_has_the_best_so_far_and_leaves_nothing(
    work: str, ending: str, clock: Clock
) -> None:
    name, options, graph, is_at_work = AT_WORK[work]
    reason = method_class(name)(**options).supports(Problem.compile(graph))
    if reason is not None:
        pytest.skip(reason)
    seen, threads, children = [], threading.active_count(), child_processes()

    def look(point: TracePoint, labels: np.ndarray) -> bool:
        seen.append(point.value)
        if len(seen) < 3 or not is_at_work(point):
            return False
        clock.pass_limit()
        if ending in ("interrupt", "error"):
            raise {"interrupt": KeyboardInterrupt, "error": ZeroDivisionError}[ending]
        return ending == "callback"

    with pytest.raises(ZeroDivisionError) if ending == "error" else contextlib.nullcontext():
        result = mapmrf.solve(graph, name, time_limit=LIMIT if ending == "limit" else None, callback=look, **options)
        assert result.status is (Status.TIME_LIMIT if ending == "limit" else Status.INTERRUPTED)
        assert graph.value(result.labels) == result.value >= max(seen)
        assert result.bound is not None and result.value <= result.bound < math.inf
    wait_until(lambda: threading.active_count() <= threads and child_processes() <= children)


# -- the lifecycle ----------------------------------------------------------------------------------------------------


def steps_of(method: Method, graph: FactorGraph, n_steps: int, answers: int) -> list[tuple[Any, ...]]:
    """What the first steps of a run report, with so many calls of `answer` after each, and the last answer."""
    problem = Problem.compile(graph)
    rows: list[tuple[Any, ...]] = []
    with running(method, problem, 0, Start()) as state:
        for _ in range(n_steps):
            step = method.step(problem, state)
            for _ in range(answers):
                answer = method.answer(problem, state)
            labels = None if step.labels is None else step.labels.tolist()
            rows.append((step.iterations, labels, step.bound, step.finished, step.phase))
            if step.finished is not None:
                break
        answer = method.answer(problem, state)
        rows.append((answer.labels is None or answer.labels.tolist(), answer.bound, sorted(answer.details)))
    return rows


VARIANTS = [
    ("annealing", {"max_iterations": 80_000, "reads": 2}),  # in the middle of a read
    ("bp", {"damping": 0.0, "decode": "argmax"}),
    ("branch", {"i_bound": 2}),
    ("cuts", {"local_search": 0, "rounds": 1}),
]


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in NAMES), *VARIANTS])
def test_answering_twice_between_steps_changes_nothing(name: str, options: dict[str, Any]) -> None:
    graph = frustrated(7, 7, seed=2) if options else grid_for(name)
    timed = name in ("cuts", "toulbar2", "lp", "auto", "exhaustive")  # how far a step of these comes depends on speed
    if timed and not options:
        graph = random_recipe(7, 8, 12).graph()
    method = method_class(name)(**options)
    plain, asked = (steps_of(method, graph, 400 if timed else 12, answers) for answers in (0, 2))
    assert plain[-1] == asked[-1]
    if not timed:
        assert plain == asked


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("branch", {"i_bound": 1, "sweeps": 0, "join_sweeps": 0, "local_search": 0}),
        ("cuts", {"local_search": 0}),
        ("sdp", {}),
        ("wcsp", {"local_search": 0}),
    ],
)
def test_a_labelling_from_elsewhere_is_taken_over_if_it_is_better(name: str, options: dict[str, Any]) -> None:
    graph = grid(5, 2)
    problem, method = Problem.compile(graph), method_class(name)(**options)
    best, worse = mapmrf.solve(graph, "branch").labels, np.zeros(25, dtype=np.int64)
    with running(method, problem, 0, Start(worse)) as state:
        for labels in (best, worse):
            state.inform(labels)
            found = method.answer(problem, state).labels
            assert found is not None and graph.value(found) == pytest.approx(graph.value(best))
        step = method.step(problem, state)
        assert step.labels is not None and graph.value(step.labels) == pytest.approx(graph.value(best))


@pytest.fixture(autouse=True)
def nothing_goes_on() -> None:
    """Wait for what a run with a limit has given up."""
    wait_for_all()


@every_method
def test_a_run_closed_half_way_leaves_nothing_behind(name: str) -> None:
    """No thread, no process, and no memory: the state is gone without a collection of cycles."""
    problem = Problem.compile(grid_for(name), threads=2)
    method = method_class(name)()
    threads, children = threading.active_count(), child_processes()
    gc.disable()
    try:
        with running(method, problem, 0, Start()) as state:
            method.step(problem, state)
            method.step(problem, state)
        left = weakref.ref(state) if hasattr(state, "__weakref__") else None
        del state
        assert left is None or left() is None
    finally:
        gc.enable()
    assert threading.active_count() <= threads
    assert child_processes() <= children


def child_processes() -> set[int]:
    """Processes whose parent is this one, and that are not finished."""
    children = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            if int(parent) == os.getpid() and state != "Z":
                children.add(int(stat.parent.name))
    return children


@every_method
@pytest.mark.parametrize("ending", ["limit", "interrupt", "error"])
def test_the_loop_closes_a_run_once_however_it_ends(name: str, ending: str) -> None:
    started: list[Any] = []
    closed: list[Any] = []
    cls = method_class(name)

    class Constrained(cls):  # type: ignore[misc, valid-type]
        def start(self, problem: Any, seed: int, initial: Start) -> Any:
            started.append(super().start(problem, seed, initial))
            return started[0]

        def step(self, problem: Any, state: Any) -> Any:
            if ending == "interrupt":
                raise KeyboardInterrupt
            if ending == "error":
                raise ZeroDivisionError
            return super().step(problem, state)

        def close(self, problem: Any, state: Any) -> None:
            closed.append(state)
            super().close(problem, state)

    with pytest.raises(ZeroDivisionError) if ending == "error" else contextlib.nullcontext():
        mapmrf.solve(grid_for(name), Constrained(), time_limit=0 if ending == "limit" else None)
    wait_for_all()  # a start or a step that takes too long is given up, and then closes the run itself
    assert closed == started and (len(closed) == 1 or ending == "limit")  # which may pass while kernels are loaded


# -- the face ---------------------------------------------------------------------------------------------------------


@every_method
def test_options_are_declared_with_defaults_and_frozen(name: str) -> None:
    cls = method_class(name)
    assert cls.name == name
    assert cls.title
    assert "max_iterations" in {item.name for item in dataclasses.fields(cls)}
    method = cls()
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.max_iterations = 3


@every_method
def test_a_misspelt_option_is_refused_and_the_nearest_named(name: str) -> None:
    with pytest.raises(OptionError, match=f"{name} has no option 'max_iteration'.*'max_iterations'"):
        mapmrf.solve(Recipe([2]).graph(), name, max_iteration=3)


@every_method
def test_the_result_survives_json_and_nothing_is_printed_or_left_as_a_file(
    name: str, capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    result = run(PLAIN["Potts" if name == "expansion" else "any"], name)
    assert capfd.readouterr() == ("", "") and list(tmp_path.iterdir()) == []
    again = Result.from_json(result.to_json(trace=True))
    assert again.labels.tolist() == result.labels.tolist()
    assert (again.value, again.bound, again.status, again.method) == (result.value, result.bound, result.status, name)
    assert again.options == dict(result.options)
    assert again.trace == result.trace


def test_the_register_lists_every_method_by_the_name_of_its_file() -> None:
    assert list(mapmrf.methods()) == NAMES
    assert {"exhaustive", "icm", "lp"} <= set(NAMES)
    assert all(issubclass(cls, Method) and cls.name == name for name, cls in mapmrf.methods().items())


# -- the user's gap tolerance -----------------------------------------------------------------------------------------


def small_gap() -> FactorGraph:
    """A frustrated triangle next to a large number: the relaxation leaves a relative gap of 1e-7."""
    pair = 1e-4 * np.array([[0.0, 1.0], [1.0, 0.0]])
    scopes = [(0, 1), (1, 2), (0, 2), (3,), (0,)]
    return FactorGraph.from_tables([2] * 4, scopes, [pair, pair, pair, [0.0, 1000.0], [0.0, 1e-6]])


def solved(method: str, tolerance: float | None, **options: Any) -> Result:
    result = mapmrf.solve(small_gap(), method, gap_tolerance=tolerance, **options)
    assert result.value == pytest.approx(1000.000201, abs=1e-12)
    return result


@pytest.mark.parametrize("method", ["trws", "adsal", "lslp", "ad3"])
def test_the_default_tolerance_is_met(method: str) -> None:
    assert Start().gap_tolerance == GAP_TOLERANCE
    assert solved(method, None).status is Status.WITHIN_TOLERANCE
    assert solved(method, 1e-4).status is Status.WITHIN_TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-9, 0.0, -1.0])
def test_message_passing_converges_instead_of_waiting_for_a_gap_that_is_not_closed(tolerance: float) -> None:
    for method in ("trws", "adsal"):
        result = solved(method, tolerance)
        assert result.status is Status.CONVERGED
        assert result.iterations < 20
        assert result.gap is not None and 1e-9 < result.gap < GAP_TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-9, 0.0, -1.0])
def test_ad3_branches_until_the_gap_is_that_of_the_user(tolerance: float) -> None:
    result = solved("ad3", tolerance, branch_and_bound=True)
    assert result.status is Status.OPTIMAL
    assert result.gap is not None and result.gap < 1e-12
    assert solved("ad3", None, branch_and_bound=True).details.get("nodes") is None


def test_lslp_continues_with_the_sphere() -> None:
    phases = {point.phase for point in solved("lslp", 1e-9, max_iterations=600).trace}
    assert "lp" in phases and any(phase.startswith("sphere") for phase in phases)
    assert {point.phase for point in solved("lslp", None).trace} == {"lp"}
