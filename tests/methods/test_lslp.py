"""LS-LP as a method: bounds, certificates, presets, starts, limits, threads and options."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from elimination_models import frustrated
from mapmrf import LSLP, FactorGraph, Status, UnsupportedModel
from mapmrf.datasets.generate import random_graph
from mapmrf.engines.admm import engine as _admm
from mapmrf.engines.admm import steps, tiled
from mapmrf.methods.lslp import BY_PRESET
from mapmrf.model.polytope import Kind
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from pairwise_models import scaled
from strategies import brute_force, plant, random_recipe, recipes


@functools.cache
def grid(side: int = 12, states: int = 2, seed: int = 0, strength: float = 3.0) -> FactorGraph:
    """A frustrated grid: its LP is not tight, so that the sphere has to do the work."""
    return scaled(frustrated(side, side, states, seed), strength)


@functools.cache
def triples(n: int = 60, states: int = 2) -> FactorGraph:
    return random_graph(n, 2 * n, states=states, arity=3, seed=0)


# -- bounds and certificates ------------------------------------------------------------------------------------------


@given(
    recipe=recipes(),
    sphere=st.sampled_from(["variables", "affine", "off", "factors"]),
    epsilon=st.sampled_from([0.0, 1e-3]),
    variant=st.sampled_from(["tied", "free"]),
    lp_phase=st.booleans(),
)
@settings(max_examples=60)
def test_the_bound_of_every_iterate_is_valid(recipe, sphere, epsilon, variant, lp_phase) -> None:
    """Sphere on or off, converged or not: no bound in the trace lies below the optimum."""
    graph = recipe.graph()
    optimum, _ = brute_force(graph)
    options = {"sphere": sphere, "epsilon": epsilon, "variant": variant, "lp_phase": lp_phase}
    try:
        result = mapmrf.solve(graph, "lslp", check_every=1, max_iterations=60, gap_tolerance=-1.0, **options)
    except UnsupportedModel:
        assert sphere == "factors"
        return
    bounds = [point.bound_now for point in result.trace if point.bound_now is not None]
    assert bounds
    assert min(bounds) >= optimum - 1e-9 * max(1.0, abs(optimum))
    assert result.bound == max(result.value, min(bounds))


def test_a_rest_without_a_sphere_means_that_the_bound_has_settled_too() -> None:
    """By default settings: small residuals come before the multipliers are right, and are not taken for the end."""
    for seed in (45, 49, 50, 53, 54, 127):
        graph = random_recipe(seed, 7, 12).graph()
        expected = mapmrf.solve(graph, "lp").bound
        result = mapmrf.solve(graph, "lslp", sphere="off", gap_tolerance=0.0)
        if result.status is Status.CONVERGED:
            assert result.bound == pytest.approx(expected, abs=1e-4 * max(1.0, abs(expected)))
            assert result.residuals.largest < 1e-4


def test_a_given_optimum_is_certified_as_a_valid_point_too() -> None:
    """The labelling may come from outside, but it is what the result describes."""
    for seed in range(40):
        recipe = random_recipe(seed, 6, 10)
        graph = recipe.graph()
        result = mapmrf.solve(graph, "lslp", initial=brute_force(graph)[1])
        if result.status is Status.OPTIMAL:
            assert result.kind is Kind.VALID
            assert result.relaxed_value == pytest.approx(result.value)


def test_the_sphere_ends_at_an_integer_point_where_the_lp_does_not() -> None:
    for graph in (grid(), grid(6, 3), triples(30)):
        relaxed = mapmrf.solve(graph, "lslp", sphere="off", eta=1.0)
        assert relaxed.kind in (Kind.FRACTIONAL, Kind.UNIFORM, Kind.APPROXIMATE)
        result = mapmrf.solve(graph, "lslp", starts=1)
        assert result.kind is Kind.VALID
        assert result.details["integrality"] < 1e-4
        assert result.value <= relaxed.bound + 1e-6
        assert result.value >= mapmrf.solve(graph, "icm").value


# -- presets and stopping ---------------------------------------------------------------------------------------------


def test_the_papers_preset_has_the_papers_values() -> None:
    method = LSLP(preset="paper")
    assert (method.epsilon, method.tol, method.max_iterations) == (1e-5, 1e-5, 500)
    assert (method.stop, method.read_out, method.variant, method.sphere) == ("paper", "last", "tied", "variables")
    assert (method.rho_unit, method.lp_phase, method.starts, method.check_every) == ("absolute", False, 1, 1)
    assert (method.beliefs, method.climb, method.stops_at_gap) == (0, False, False)


def test_explicit_options_override_a_preset_even_when_they_are_falsy() -> None:
    method = LSLP(preset="paper", epsilon=0.0, lp_phase=False, max_iterations=7)
    assert (method.epsilon, method.lp_phase, method.max_iterations, method.tol) == (0.0, False, 7, 1e-5)
    assert LSLP(lp_phase=False).lp_phase is False
    assert LSLP(epsilon=0.0).epsilon == 0.0


def test_every_option_of_a_preset_exists_and_is_filled_in() -> None:
    for number, preset in enumerate(("default", "paper")):
        method = LSLP(preset=preset)
        assert all(getattr(method, name) == values[number] for name, values in BY_PRESET.items())
    assert LSLP.paper() == LSLP(preset="paper")


@pytest.mark.parametrize("options", [{"rho": 1.0, "tol": 1e-3}, {"rho": 200.0, "eta": 1.0, "tol": 1e-4}], ids=str)
def test_the_papers_stopping_rule_weighs_the_residuals_with_rho(options: dict[str, float]) -> None:
    """The run ends at the first iterate where sqrt(rho/2) times both residuals is below tol, and not before."""
    tol = options["tol"]
    result = mapmrf.solve(grid(6), "lslp", preset="paper", max_iterations=5000, **options)
    assert result.status is Status.CONVERGED
    assert max(result.details["primal_weighted"], result.details["sphere_weighted"]) < tol
    weight = math.sqrt(result.details["rho"] / 2)
    assert result.details["primal_weighted"] == pytest.approx(weight * result.details["primal"])
    extra = [point.extra for point in result.trace]
    weighted = [math.sqrt(now["rho"] / 2) * max(now["primal"], now["sphere"]) for now in extra]
    assert min(weighted[:-1]) >= tol > weighted[-1]
    plain = [max(now["primal"], now["sphere"]) for now in extra]
    assert min(plain[:-1]) < tol, "the plain residuals were below it earlier"


def test_the_papers_rule_can_end_a_run_with_the_sphere_on_the_factors() -> None:
    result = mapmrf.solve(grid(4), "lslp", sphere="factors", lp_phase=False, starts=1, stop="paper", tol=1e-4)
    assert result.status is Status.CONVERGED
    assert result.kind is Kind.VALID


def test_the_papers_run_ignores_the_bound() -> None:
    """A model that the default certifies at once is run to its own end."""
    graph = FactorGraph.from_pairwise([[0.0, 1.0]] * 3, [[0, 1], [1, 2]], [np.eye(2)] * 2)
    quick, full = mapmrf.solve(graph, "lslp"), mapmrf.solve(graph, "lslp", preset="paper", max_iterations=300)
    assert quick.iterations < full.iterations
    assert full.status is Status.OPTIMAL, "the library still sees the closed gap"


def test_a_plain_rest_is_integer_consistent_and_calm() -> None:
    result = mapmrf.solve(grid(8), "lslp", starts=1, lp_phase=False, patience=4)
    assert result.status is Status.CONVERGED
    assert result.residuals.largest < 1e-4
    assert [point.candidate for point in result.trace[-4:]] == [result.trace[-1].candidate] * 4


def test_read_out_best_keeps_the_best_labelling_and_last_the_last() -> None:
    best = mapmrf.solve(grid(), "lslp", lp_phase=False, climb=False, starts=1, check_every=1, max_iterations=300)
    assert best.value == pytest.approx(max(point.candidate for point in best.trace))
    last = mapmrf.solve(grid(), "lslp", lp_phase=False, starts=1, check_every=1, max_iterations=300, read_out="last")
    assert [point.candidate for point in last.trace[:-1]] == [None] * (len(last.trace) - 1)
    assert last.value == pytest.approx(best.trace[-1].candidate)
    assert last.value <= best.value


def test_the_penalty_follows_its_schedule() -> None:
    """rho grows by eta every `update_every` iterations up to its limit, in units of the interaction."""
    options = {"rho": 0.5, "eta": 1.5, "rho_upper": 3.0, "update_every": 3, "check_every": 1, "max_iterations": 30}
    result = mapmrf.solve(grid(5), "lslp", lp_phase=False, climb=False, starts=1, **options)
    unit = result.details["rho_unit"]
    expected = [unit * min(3.0, 0.5 * 1.5 ** ((point.iterations - 1) // 3)) for point in result.trace]
    assert [point.extra["rho"] for point in result.trace] == pytest.approx(expected)
    absolute = mapmrf.solve(grid(5), "lslp", lp_phase=False, starts=1, rho_unit="absolute", **options)
    assert absolute.trace[0].extra["rho"] == 0.5


def test_the_lp_phase_has_its_own_fixed_penalty() -> None:
    result = mapmrf.solve(
        grid(5), "lslp", lp_rho=0.7, lp_iterations=40, beliefs=0, climb=False, starts=1, max_iterations=100
    )
    lp = [point for point in result.trace if point.phase == "lp"]
    assert {point.extra["rho"] for point in lp} == {0.7 * result.details["rho_unit"]}
    assert [point.iterations for point in lp] == [10, 20, 30, 40]
    assert result.trace[-1].phase == "sphere 0"
    assert result.trace[4].extra["rho"] < result.trace[3].extra["rho"], "the sphere phase begins with its own"


# -- starts -----------------------------------------------------------------------------------------------------------


def test_several_starts_are_run_one_after_another_and_the_best_labelling_counts() -> None:
    result = mapmrf.solve(grid(), "lslp", starts=4)
    ends = {point.phase: point.candidate for point in result.trace}
    assert list(ends) == ["lp", "beliefs", "sphere 0", "sphere 1", "sphere 2", "sphere 3", "chains", "vertex"]
    assert result.value >= max(point.candidate for point in result.trace if point.candidate is not None) - 1e-9
    assert len(set(ends.values())) > 2


def test_a_one_hot_start_is_a_labelling_of_the_seed() -> None:
    problem = Problem.compile(grid(5, 3))
    starts = [LSLP(start_from="onehot", lp_phase=False).start(problem, seed, Start()) for seed in (0, 0, 1)]
    points = [state.the_engine.variables() for state in starts]
    assert set(points[0].tolist()) == {0.0, 1.0}
    assert points[0].reshape(-1, 3).sum(axis=1).tolist() == [1.0] * 25
    assert np.array_equal(points[0], points[1]) and not np.array_equal(points[0], points[2])


def test_a_warm_start_begins_where_it_is_told() -> None:
    """The first sphere phase starts at the labels, or at the relaxed solution of a result, with a larger penalty."""
    graph = grid(5)
    problem = Problem.compile(graph)
    labels = np.arange(25) % 2
    method = LSLP(lp_phase=False, warm_rho=8.0)
    state = method.start(problem, 0, Start(labels))
    assert state.the_engine.variables().reshape(-1, 2)[:, 1].tolist() == labels.tolist()
    plain = method.start(problem, 0, Start())
    assert state.the_engine.rho == 8.0 * plain.the_engine.rho
    mu_v = np.tile([0.25, 0.75], 25)
    assert method.start(problem, 0, Start(labels, mu_v)).the_engine.variables() == pytest.approx(mu_v)


# -- limits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 25])
def test_the_iteration_limit_is_exact(limit: int) -> None:
    """Also between two measurements: the last iterate is measured, whatever `check_every` says."""
    result = mapmrf.solve(grid(), "lslp", max_iterations=limit)
    assert result.iterations == result.trace[-1].iterations == limit
    assert result.status is Status.ITERATION_LIMIT
    assert result.trace[-1].bound_now is not None
    assert result.mu_v is not None


@pytest.mark.parametrize("more", [0, 20])
def test_at_the_iteration_limit_the_start_that_came_to_rest_is_reported(more: int) -> None:
    """The limit falls together with the rest of the first of three starts, or soon after: not a fresh start's point."""
    options = {"lp_phase": False, "starts": 3, "alternate_block": 0}
    whole = mapmrf.solve(grid(8), "lslp", **options)
    ends = [max(p.iterations for p in whole.trace if p.phase == f"sphere {number}") for number in range(3)]
    assert ends[0] < whole.options["max_iterations"] / 3  # at rest, not cut off by its share
    cut = mapmrf.solve(grid(8), "lslp", max_iterations=3 * ends[0] + more, **options)
    assert cut.kind is Kind.VALID
    at_rest = [point.candidate for point in cut.trace if point.iterations == ends[0]]
    assert cut.relaxed_value >= at_rest[0] - 1e-2


def test_a_start_that_does_not_come_to_rest_leaves_iterations_to_the_next() -> None:
    """On third-order models one sphere over all turns in circles; the small spheres of the second start end valid."""
    graph = random_graph(100, 200, states=2, arity=3, seed=0)
    one = mapmrf.solve(graph, "lslp", lp_phase=False, climb=False, starts=1, max_iterations=3000)
    two = mapmrf.solve(graph, "lslp", lp_phase=False, climb=False, starts=2, max_iterations=3000)
    assert one.kind is not Kind.VALID
    assert two.kind is Kind.VALID
    assert {point.phase for point in two.trace} == {"sphere 0", "sphere 1"}


# -- threads ----------------------------------------------------------------------------------------------------------


MIXED = random_graph(40, 90, states=(2, 3), arity=(2, 4), hard=0.05, seed=5)
"""All kinds of factor step in one model: pairs, forests, triples, dense tables, and hard ones."""
THREADED = {
    "pairs": (lambda: grid(), {}),
    "pairs, full layout": (lambda: grid(), {"epsilon": 1e-4}),
    "forests": (lambda: grid(6, 4), {}),
    "triples": (lambda: triples(), {}),
    "dense": (lambda: triples(30, 3), {"sphere": "affine"}),
    "mixed": (lambda: MIXED, {}),
    "mixed, free": (lambda: MIXED, {"epsilon": 1e-3, "variant": "free"}),
    "factors": (lambda: grid(4), {"sphere": "factors", "lp_phase": False}),
    "blocks": (lambda: grid(), {"sphere_block": 10}),
    "runs": (lambda: grid(24), {}),
    "runs, blocks": (lambda: grid(24), {"sphere_block": 10}),
    "runs, no sphere": (lambda: grid(24), {"sphere": "off"}),
}


@pytest.mark.parametrize("name", THREADED)
def test_two_threads_give_the_same_bits_as_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads set in only on large models; here the limits are lowered so that they really share the work."""
    monkeypatch.setattr(_admm, "PARALLEL_FROM", 1)
    monkeypatch.setattr(steps, "CHUNK", 7)
    monkeypatch.setattr(steps, "VAR_CHUNK", 5)
    monkeypatch.setattr(tiled, "TILE", 50)
    build, options = THREADED[name]
    graph = build()
    engine = LSLP(**options).start(Problem.compile(graph, 2), 0, Start()).the_engine
    assert engine.workers.n == 2
    assert isinstance(engine.steps, tiled.TiledSteps) == name.startswith("runs")
    if isinstance(engine.steps, steps.IndexedSteps):
        assert sum(len(tasks) for tasks in engine.steps.tasks.values()) > 1
    one, two = (mapmrf.solve(graph, "lslp", threads=t, max_iterations=200, **options) for t in (1, 2))
    assert np.array_equal(one.mu_v, two.mu_v)
    assert one.labels.tolist() == two.labels.tolist()
    assert one.details == two.details
    same = [(p.bound_now, p.candidate, p.relaxed_value, p.extra) for p in one.trace]
    assert same == [(p.bound_now, p.candidate, p.relaxed_value, p.extra) for p in two.trace]


def test_small_models_stay_on_one_thread() -> None:
    engine = LSLP().start(Problem.compile(grid(), 2), 0, Start()).the_engine
    assert engine.workers.n == 1


# -- hard constraints -------------------------------------------------------------------------------------------------


def test_an_unfinished_run_on_forbidden_states_reports_finite_figures() -> None:
    """mu of a forbidden state is 0 in the answer: -inf times a small negative number is nobody's value."""
    for seed in range(60):
        recipe = random_recipe(seed, 6, 14, hard=0.3)
        plant(recipe, seed)
        result = mapmrf.solve(recipe.graph(), "lslp", max_iterations=1 + seed % 7, lp_phase=False)
        assert math.isfinite(result.relaxed_value)
        assert np.all(result.mu_v[~np.isfinite(recipe.graph().theta_v)] == 0.0)


# -- options ----------------------------------------------------------------------------------------------------------


def test_a_sphere_on_large_factors_is_refused_with_a_reason() -> None:
    with pytest.raises(UnsupportedModel, match=r"sphere='factors' supports tables of at most 64 entries.*81"):
        mapmrf.solve(grid(3, 9), "lslp", sphere="factors")
    assert mapmrf.solve(grid(3, 8), "lslp", sphere="factors", max_iterations=20).iterations == 20


def test_pairs_of_huge_variables_are_refused_and_not_mangled() -> None:
    """A slot of a forest's support holds 32768 states; one more would not fit."""
    graph = FactorGraph.from_tables([32769, 1], [(0, 1)], [np.zeros((32769, 1))])
    with pytest.raises(UnsupportedModel, match=r"32768 states.*32769"):
        mapmrf.solve(graph, "lslp")
