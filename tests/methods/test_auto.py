"""Auto: every part alone gives what it promises, and together they prove what can be proven."""

from __future__ import annotations

import gc
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given

import mapmrf
from binary_models import random_cut
from clocks import LIMIT, wait_until
from constraint_models import colouring, differ, ksat
from mapmrf import FactorGraph, Result, Status
from mapmrf.compilation import CompilingPostponed
from mapmrf.datasets import grid
from mapmrf.engines.admm import engine as _admm
from mapmrf.engines.reduction.simplify import Simplified
from mapmrf.methods import auto
from mapmrf.methods.auto.feasibility import FeasibilityPhase, largest_sum
from mapmrf.methods.auto.portfolio import PoolSearch, Portfolio
from mapmrf.methods.auto.relax import Scouts
from mapmrf.methods.auto.scheduler import Race
from mapmrf.methods.auto.settings import SETTINGS
from mapmrf.methods.auto.state import Phase, SharedState
from mapmrf.methods.branch import Branch
from mapmrf.methods.cuts import Cuts
from mapmrf.methods.mplp_c import MPLPC
from mapmrf.methods.wcsp import WCSP
from mapmrf.model.problem import Problem
from mapmrf.run.method import Progress
from pairwise_models import random_grid
from strategies import (
    Recipe,
    any_recipes,
    brute_force,
    hard_recipes,
    random_recipe,
    soft_recipes,
    tree_recipes,
    weighted,
)

TURNS_ALONE = {"relax_iterations": 1, "simplify": False, "elimination_entries": 0}
"""Neither the relaxation nor simplification nor elimination may close a gap: the turns have to."""


def phases(result: Result) -> list[str]:
    """The parts of a run in the order of their first appearance."""
    return list(dict.fromkeys(point.phase for point in result.trace))


# -- the parts ---------------------------------------------------------------------------------------------------------


@given(recipe=soft_recipes() | hard_recipes() | tree_recipes())
def test_the_search_alone_finds_small_optima(recipe: Recipe) -> None:
    graph = recipe.graph()
    problem = Problem.compile(graph)
    search = PoolSearch(problem, 0, 13.0, 2)
    list(search.add(np.zeros(graph.n_vars, dtype=np.int64)))
    assert search.value == pytest.approx(brute_force(graph)[0])  # a pass whose tables all fit is exact


@given(recipe=any_recipes())
def test_a_tiny_model_is_eliminated_at_once(recipe: Recipe) -> None:
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    result = mapmrf.solve(graph, initial=graph.card - 1, max_iterations=1)
    assert (phases(result), result.iterations) == (["eliminate"], 1)
    assert result.value == pytest.approx(optimum) == result.bound
    assert result.status is (Status.INFEASIBLE if optimum == -np.inf else Status.OPTIMAL)
    assert result.kind == (None if optimum == -np.inf else mapmrf.Kind.VALID)


def test_a_tiny_model_is_relaxed_first_where_elimination_is_switched_off() -> None:
    graph = grid(4, 4, coupling=3.0, seed=0)
    result = mapmrf.solve(graph, elimination_entries=0)
    assert phases(result)[0] == "relax"
    assert result.value == pytest.approx(mapmrf.solve(graph).value)


def test_an_easy_model_is_proven_by_the_relaxation_alone() -> None:
    result = mapmrf.solve(grid(20, 20, coupling=0.1, seed=0))
    assert result.method == "auto"
    assert (result.status, phases(result)) == (Status.OPTIMAL, ["relax"])


def test_a_narrow_model_is_eliminated() -> None:
    graph = grid(5, 60, coupling=3.0, seed=0)
    result = mapmrf.solve(graph, "auto")
    assert phases(result)[-1] in ("simplify", "eliminate")
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)


def test_a_sparse_binary_model_is_proven_by_cutting_planes() -> None:
    graph = grid(16, 16, coupling=4.0, seed=2)
    result = mapmrf.solve(graph, "auto", elimination_entries=0)
    assert result.status is Status.OPTIMAL
    assert "cuts" in phases(result)
    assert "branch and cut" not in phases(result)  # the cuts alone close the gap
    assert result.value == pytest.approx(mapmrf.solve(graph, "branch").value)


def test_without_proofs_only_the_search_goes_on() -> None:
    result = mapmrf.solve(grid(30, 30, coupling=4.0, seed=2), "auto", prove=False, max_iterations=60)
    assert result.status is Status.ITERATION_LIMIT
    search = {"annealing", "blocks", "chains", "bp", "lslp", "kicks", "restarts"}
    assert set(phases(result)) <= {"relax", "simplify", "eliminate"} | search
    assert "restarts" in phases(result)


def test_a_model_of_many_states_takes_turns() -> None:
    graph = random_grid(12, 12, 5, coupling=2.0, seed=0)
    result = mapmrf.solve(graph, "auto", max_iterations=180)
    assert {"cuts", "branch and cut", "bp", "clusters", "branch", "restarts"} <= set(phases(result))
    assert result.value >= mapmrf.solve(graph, "lslp").value
    assert result.bound is not None and result.bound < mapmrf.solve(graph, "trws").bound


def triples(n: int, degree: int, seed: int) -> FactorGraph:
    """Random triples, whose relaxation is loose."""
    random = np.random.default_rng(seed)
    scopes = [random.choice(n, 3, replace=False) for _ in range(n * degree // 3)]
    return FactorGraph.from_tables([2] * n, scopes, list(random.normal(size=(len(scopes), 2, 2, 2))))


@pytest.mark.parametrize("seed", range(3))
def test_with_a_loose_relaxation_the_search_is_soon_ahead_of_chains_and_beliefs(seed: int) -> None:
    graph = triples(100, 15, seed)
    result = mapmrf.solve(graph, prove=False, max_iterations=60)
    assert phases(result)[:6] == ["relax", "simplify", "eliminate", "chains", "bp", "blocks"]
    scouted = max(point.value for point in result.trace if point.phase in ("chains", "bp"))
    alone = [mapmrf.solve(graph, method).value for method in ("chains", "bp")]
    assert result.value >= scouted >= max(alone) - 1e-9


def test_belief_propagation_goes_before_a_slow_relaxation(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = triples(3000, 15, 0)
    result = mapmrf.solve(graph, max_iterations=12)
    assert [point.phase for point in result.trace[:4]] == ["relax", "relax", "relax", "bp"]
    monkeypatch.setattr(auto, "SETTINGS", replace(SETTINGS, loose_gap=1e9))
    assert phases(mapmrf.solve(graph, max_iterations=12)) == ["relax", "chains"]


def test_chains_lead_on_from_what_belief_propagation_found() -> None:
    random = np.random.default_rng(0)
    edges = random.permuted(np.tile(np.arange(60), (300, 1)), axis=1)[:, :2]
    graph = FactorGraph.from_pairwise(np.zeros((60, 8)), edges, -50.0 * (random.random((300, 8, 8)) < 0.3))
    shared = SharedState(Problem.compile(graph), np.zeros(60, dtype=np.int64))
    scouts = Scouts(shared, 0)
    turns = [phase for phase, _ in itertools.groupby(step.phase for step in scouts.first())]
    assert turns[:2] == ["bp", "chains"]
    assert shared.incumbent.value > scouts.beliefs.value
    assert scouts.chains.value == -math.inf  # these still have their own start before them


def test_a_scout_rests_and_goes_on_later() -> None:
    problem = Problem.compile(grid(20, 20, coupling=3.0, seed=0))
    shared = SharedState(problem, np.zeros(400, dtype=np.int64))
    scouts = Scouts(shared, 0)
    first = list(scouts.beliefs.turn())
    assert first and not scouts.beliefs.over  # it does not converge here
    n_rest = len(list(scouts.beliefs.steps))
    assert scouts.beliefs.over and n_rest > 0
    assert not list(scouts.beliefs.turn())
    alone = mapmrf.solve(problem.graph, "bp")
    assert shared.incumbent.value == pytest.approx(alone.value)


def test_a_scout_without_a_feasible_labelling_has_a_bounded_turn() -> None:
    random = np.random.default_rng(0)
    edges = np.stack(np.triu_indices(12, 1), 1)
    differ = np.where(np.eye(5, dtype=bool), -np.inf, random.normal(size=(len(edges), 5, 5)))
    graph = FactorGraph.from_pairwise(np.zeros((12, 5)), edges, differ)  # no colouring has so few colours
    shared = SharedState(Problem.compile(graph), np.zeros(12, dtype=np.int64))
    assert 0 < len(list(Scouts(shared, 0).beliefs.turn())) <= SETTINGS.lost_steps


# -- turns -------------------------------------------------------------------------------------------------------------


def race(graph: FactorGraph, searchers: list[Phase], provers: list[Phase], threads: int = 1) -> Race:
    problem = Problem.compile(graph, threads)
    shared = SharedState(problem, np.zeros(graph.n_vars, dtype=np.int64))
    portfolio = Portfolio(mapmrf.Auto(), shared, 0)
    portfolio.problem, portfolio.reduced = problem, Simplified(problem, ())
    portfolio.search = PoolSearch(problem, 0, 2.0, 1)
    list(portfolio.search.add(shared.incumbent.labels))
    shared.incumbent.bound = 1000.0
    return Race(portfolio, searchers, provers)


def prover(name: str, *bounds: float) -> Generator[Progress, None, None]:
    """Reports one bound after another, the last one without end."""
    for bound in (*bounds, *itertools.repeat(bounds[-1], 1000)):
        yield Progress(1, bound=bound, phase=name)


def test_every_prover_has_a_short_first_turn_and_idle_ones_fewer_after_it() -> None:
    idle, useful = Phase(prover("idle", 1000.0), 2), Phase(prover("useful", *(1000 * 0.9**k for k in range(200))), 2)
    short = Phase(iter([Progress(1, phase="short")]), 2)  # type: ignore[arg-type]
    steps = race(grid(3, 3, seed=0), [], [idle, useful, short]).run()
    seen = [next(steps).phase for _ in range(80)]
    assert seen[:5] == ["idle", "idle", "useful", "useful", "short"]
    assert seen.count("short") == 1  # it has ended
    assert seen.count("useful") > 3 * seen.count("idle") > 3


def test_a_phase_may_skip_cycles() -> None:
    late, other = Phase(prover("late", 1000.0), 1, first=3, skipped=2), Phase(prover("other", 1000.0), 1, first=1)
    runs = race(grid(3, 3, seed=0), [], [late, other])
    assert [[step.phase for step in runs.cycle()].count("late") for _ in range(3)] == [0, 0, 3]


def test_an_idle_prover_comes_back_for_good() -> None:
    idle, useful = Phase(prover("idle", 1000.0), 1), Phase(prover("useful", *(1000 * 0.99**k for k in range(900))), 1)
    steps = race(grid(3, 3, seed=0), [], [idle, useful]).run()
    seen = [next(steps).phase for _ in range(400)]
    assert seen[200:].count("idle") >= 10


def test_provers_work_with_what_was_known_when_the_cycle_began() -> None:
    graph = grid(3, 3, coupling=2.0, seed=0)
    best = mapmrf.solve(graph).labels
    seen = []

    def finder() -> Generator[Progress, None, None]:
        while True:
            yield Progress(1, labels=best, phase="finder")

    def watcher() -> Generator[Progress, None, None]:
        while True:
            seen.append(graph.value(runs.known.labels))
            yield Progress(1, phase="watcher")

    before = graph.value(np.zeros(9, dtype=np.int64))
    runs = race(graph, [], [Phase(finder(), 1, first=1), Phase(watcher(), 1, first=1)])
    runs.portfolio.search.pool[0][:], runs.portfolio.search.values[0] = 0, before
    for _ in range(3):  # what helped nobody waits for the third cycle
        list(runs.cycle())
    assert seen == [pytest.approx(before), pytest.approx(graph.value(best))]


def test_turns_beside_the_search_are_taken_over_in_order() -> None:
    def search() -> Generator[Progress, None, None]:
        while True:
            runs.shared.iterations += 1
            yield Progress(runs.shared.iterations, phase="search")

    def course(threads: int) -> list[str]:
        nonlocal runs
        provers = [Phase(prover("a", 900.0, 800.0), 3), Phase(prover("b", 700.0), 3)]
        runs = race(grid(3, 3, seed=0), [Phase(search(), 2)], provers, threads)
        steps = [step.phase for _ in range(10) for step in runs.cycle()]
        runs.close()
        return [phase for phase in steps if phase != "proofs"]  # what the loop sees while it waits

    runs: Race
    assert course(1) == course(2) == course(4)


def shorten_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `wcsp` take one step before other phases, so that these have something to do."""
    monkeypatch.setattr("mapmrf.methods.auto.relax.SETTINGS", replace(SETTINGS, trial_steps=1))


def test_a_phase_that_waits_too_long_for_its_kernels_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_the_trial(monkeypatch)

    def restart_regions(search: PoolSearch) -> None:
        raise CompilingPostponed("a kernel")

    monkeypatch.setattr(PoolSearch, "restart_regions", restart_regions)
    options = TURNS_ALONE | {"max_iterations": 80, "prove": True}
    result = mapmrf.solve(random_grid(8, 8, 4, coupling=2.0, seed=1), "auto", time_limit=LIMIT, **options)
    assert "restarts" not in phases(result)
    assert result.status is Status.ITERATION_LIMIT or result.status.closes_gap
    assert {"blocks", "wcsp"} <= set(phases(result))


def test_the_trial_goes_on_where_it_was_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is one run of `wcsp`, before the search and beside it."""
    starts: list[Problem] = []
    start = WCSP.start

    def noted(method: WCSP, problem: Problem, *arguments: Any) -> object:
        starts.append(problem)
        return start(method, problem, *arguments)

    monkeypatch.setattr(WCSP, "start", noted)
    shorten_the_trial(monkeypatch)
    result = mapmrf.solve(random_grid(10, 10, 4, coupling=2.0, seed=1), "auto", elimination_entries=0)
    course = [point.phase for point in result.trace]
    assert result.status is Status.OPTIMAL and len(starts) == 1
    assert course.index("wcsp") < course.index("blocks") < len(course) - 1 - course[::-1].index("wcsp")


def test_a_labelling_that_another_part_found_reaches_the_search() -> None:
    graph = grid(6, 6, coupling=2.0, seed=1)
    problem = Problem.compile(graph)
    best = mapmrf.solve(graph, "branch").labels
    search = PoolSearch(problem, 0, 2.0, 1)
    search.pool, search.values = [np.zeros(36, dtype=np.int64)], [graph.value(np.zeros(36, dtype=np.int64))]
    search.learn(best)
    assert search.value == pytest.approx(graph.value(best))


# -- promises ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("graph", "seen"),
    [
        (grid(14, 14, coupling=4.0, seed=3), {"cuts", "restarts"}),  # both provers and searchers
        (random_grid(10, 10, 4, coupling=2.0, seed=1), {"blocks"}),
        (random_cut(100, 1500, 3, weighted=True), {"annealing", "tabu"}),
        (ksat(150, 639, 3, 1), {"feasible"}),
    ],
    ids=["binary", "states", "dense", "hard"],
)
def test_an_iteration_budget_gives_the_same_run_on_any_number_of_threads(
    graph: FactorGraph, seen: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_the_trial(monkeypatch)

    def course(threads: int) -> list[tuple[object, ...]]:
        result = mapmrf.solve(graph, "auto", max_iterations=45, seed=5, threads=threads, elimination_entries=0)
        assert seen <= set(phases(result))
        rows = [(point.iterations, point.phase, point.value, point.bound) for point in result.trace]
        told = [row for row in rows if row[1] != "proofs"]  # so is called what the loop sees while it waits for others
        return [*dict.fromkeys(told), tuple(result.labels.tolist()), result.status]  # waiting for a solver repeats rows

    assert course(1) == course(2)


def test_the_seed_matters_to_the_search() -> None:
    graph = grid(30, 30, coupling=4.0, seed=2)
    runs = [mapmrf.solve(graph, "auto", prove=False, max_iterations=30, seed=seed) for seed in (0, 1)]
    first, second = ([point.value for point in run.trace] for run in runs)
    assert first != second


def test_the_trace_names_the_part_that_found_each_improvement() -> None:
    result = mapmrf.solve(grid(24, 24, coupling=4.0, seed=2), "auto", prove=False, max_iterations=60)
    improvements = result.improvements
    assert improvements[-1].value == pytest.approx(result.value)
    assert all(point.phase for point in improvements)
    values = [point.value for point in improvements]
    assert values == sorted(values)
    assert len({point.phase for point in improvements}) >= 3


@pytest.mark.parametrize("model", ["binary", "states"])
def test_nothing_of_a_run_is_left_behind(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither threads nor tables: they must not wait for Python to look for cycles."""
    shorten_the_trial(monkeypatch)
    monkeypatch.setattr(_admm, "PARALLEL_FROM", 1)
    monkeypatch.setattr("mapmrf.methods.auto.portfolio.SETTINGS", replace(SETTINGS, program_waits=0))
    graph = grid(24, 24, coupling=4.0, seed=3) if model == "binary" else random_grid(12, 12, 4, coupling=2.0, seed=1)
    made: list[weakref.ref[object]] = []

    def noting(start: Callable[..., object]) -> Callable[..., object]:
        def noted(*arguments: object) -> object:
            state = start(*arguments)
            made.append(weakref.ref(state))
            return state

        return noted

    provers = {"binary": [Cuts], "states": [Cuts, Branch, MPLPC]}[model]
    for method in (mapmrf.Auto, mapmrf.LSLP, *provers):
        monkeypatch.setattr(method, "start", noting(method.start))
    before = threading.active_count()
    gc.disable()
    try:
        mapmrf.solve(graph, "auto", max_iterations=70, threads=2, elimination_entries=0)
    finally:
        gc.enable()
    assert len(made) > len(provers) and [ref() for ref in made] == [None] * len(made)
    wait_until(lambda: threading.active_count() <= before)  # a thread that has been told to end needs a moment


# -- dense binary models ----------------------------------------------------------------------------------------------


def test_a_dense_binary_model_is_searched_by_tabu_and_proven_by_semidefinite_bounds() -> None:
    result = mapmrf.solve(random_cut(60, 700, 0, weighted=True), max_iterations=2000)
    assert result.status == "optimal"
    assert {"tabu", "sdp"} <= set(phases(result))
    assert not {"cuts", "branch", "clusters"} & set(phases(result))


def test_a_sparse_binary_model_is_left_to_cuts() -> None:
    result = mapmrf.solve(grid(14, 14, coupling=4.0, seed=3), max_iterations=40, elimination_entries=0)
    assert not {"tabu", "sdp"} & set(phases(result))


# -- models that forbid something -------------------------------------------------------------------------------------


def test_a_soft_model_has_no_such_phase() -> None:
    graph = mapmrf.datasets.grid(20, 20, coupling=2.0, seed=1)
    assert "feasible" not in phases(mapmrf.solve(graph))


def test_a_feasible_labelling_given_by_the_user_is_enough() -> None:
    graph = colouring(100, 300, 4, 0)
    labels = mapmrf.solve(graph).labels
    assert "feasible" in phases(mapmrf.solve(graph))
    assert "feasible" not in phases(mapmrf.solve(graph, initial=labels))


@pytest.mark.parametrize("seed", range(40))
def test_the_largest_entries_of_all_tables_are_a_bound(seed: int) -> None:
    recipe = weighted(random_recipe(seed, 5, 8, hard=0.2), seed)
    graph = recipe.graph()
    rng = np.random.default_rng(seed)
    for _ in range(50):
        assert graph.value(rng.integers(0, graph.card)) <= largest_sum(graph) + 1e-9


def test_a_proof_of_infeasibility_ends_the_run() -> None:
    result = mapmrf.solve(colouring(100, 487, 4, 0))
    assert (result.status, result.bound) == (Status.INFEASIBLE, -math.inf)
    assert result.trace[-1].phase == "feasible"
    assert result.details["conflicts"] > 0


def test_the_labelling_prefers_what_is_worth_more() -> None:
    """A sparse colouring with strong preferences: the first labelling follows them where it can."""
    rng, graph = np.random.default_rng(0), colouring(80, 60, 4, 0)
    unary = rng.normal(size=(80, 4))
    soft = FactorGraph.from_pairwise(unary, graph.scope.reshape(-1, 2), differ(4))
    shared = SharedState(Problem.compile(soft), soft.unary_labels)
    for _ in FeasibilityPhase(shared, 0).first():
        pass
    assert shared.incumbent.value > 0.5 * unary.max(axis=1).sum()


def test_steps_end_when_another_phase_finds_a_labelling() -> None:
    graph = ksat(300, 1278, 3, 1, planted=True)
    shared = SharedState(Problem.compile(graph), np.zeros(300, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    assert len(list(phase.steps(1))) == 1
    shared.incumbent.offer(np.ones(300, dtype=np.int64))
    assert shared.incumbent.value == 0.0
    assert list(phase.steps(5)) == [] and not phase.is_needed


def test_a_model_with_too_many_forbidden_entries_is_repaired_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mapmrf.run.repair.MOST_CLAUSES", 399)
    graph = colouring(60, 100, 4, 0)
    shared = SharedState(Problem.compile(graph), np.zeros(60, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    steps = list(phase.first())
    assert {step.phase for step in steps} == {"repair", "feasible"} and phase.search is None
    assert shared.incumbent.value == 0.0


def test_states_that_the_search_excludes_are_those_of_no_feasible_labelling() -> None:
    recipe = Recipe([2, 2], [(0,), (0, 1)], [np.array([0.0, -np.inf]), np.array([[-np.inf, 0.0], [0.0, 0.0]])])
    shared = SharedState(Problem.compile(recipe.graph()), np.zeros(2, dtype=np.int64))
    phase = FeasibilityPhase(shared, 0)
    for _ in phase.first():
        pass
    assert phase.excluded().tolist() == [False, True, True, False]
