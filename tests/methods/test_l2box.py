"""l2-Box: the quadratic form without a matrix, the linear solves, and ADMM over box and sphere."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, Status
from mapmrf.datasets import grid
from mapmrf.engines.admm import box
from mapmrf.engines.admm.box import BoxProgram, softened
from mapmrf.methods.l2box import L2Box
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
from plain_python import plain
from strategies import brute_force, random_recipe


def random_pairwise(seed: int, n_vars: int = 6, n_factors: int = 9) -> FactorGraph:
    """A model of pairs of variables with 1 to 4 states, some of the tables shared."""
    return random_recipe(seed, n_vars, n_factors, max_arity=2).graph()


def form(graph: FactorGraph) -> np.ndarray:
    """The quadratic form of a model with its tables as they are, dense."""
    q = np.zeros((len(graph.theta_v), len(graph.theta_v)))
    for a in range(graph.n_factors):
        i, j = graph.scope_of(a)
        mine, other = (slice(graph.var_ptr[v], graph.var_ptr[v + 1]) for v in (i, j))
        q[mine, other] += graph.table(a)
        q[other, mine] += graph.table(a).T
    return q


def program_of(graph: FactorGraph) -> BoxProgram:
    return BoxProgram.build(Problem.compile(graph), 2.0)


def dense_form(program: BoxProgram, n: int) -> np.ndarray:
    """The centred form, column by column from products."""
    columns = []
    for unit in np.eye(n):
        out = np.empty(n)
        plain(box.product)(program.form, unit, out)
        columns.append(out)
    return np.array(columns).T


def record(**values: float) -> box.BoxRecord:
    """The scalars of a run, 0 but for these."""
    made = np.zeros(1, dtype=box.BOX)
    for name, value in values.items():
        made[name] = value
    return made


def arrays(program: BoxProgram, x: np.ndarray, **values: np.ndarray) -> box.BoxArrays:
    """The arrays of a run at x, 0 but for these."""
    n_vars = len(program.form.var_ptr) - 1
    made = box.BoxArrays(x, *np.zeros((8, len(x))), *np.zeros((3, n_vars)), *np.zeros((2, n_vars), int), np.zeros(0))
    return made._replace(**values)


seeds = st.integers(0, 2**32 - 1)


# -- the program ------------------------------------------------------------------------------------------------------


@given(seed=seeds)
@settings(max_examples=30)
def test_the_program_is_worth_what_the_model_is(seed: int) -> None:
    graph = random_pairwise(seed)
    program = program_of(graph)
    random = np.random.default_rng(seed)
    for _ in range(5):
        labels = random.integers(0, graph.card)
        value = plain(box.labels_value)(program.form, labels)
        assert program.constant + program.unit * value == pytest.approx(graph.value(labels))
        x = np.zeros(len(graph.theta_v))
        x[graph.var_ptr[:-1] + labels] = 1.0
        image = np.empty_like(x)
        plain(box.product)(program.form, x, image)
        assert program.form.theta @ x + 0.5 * x @ image == pytest.approx(value)


@given(seed=seeds)
@settings(max_examples=30)
def test_products_are_those_of_the_centred_form(seed: int) -> None:
    graph = random_pairwise(seed)
    n = len(graph.theta_v)
    program = program_of(graph)
    centre = np.zeros((n, n))
    for begin, end in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True):
        centre[begin:end, begin:end] = np.eye(end - begin) - 1 / (end - begin)
    assert dense_form(program, n) == pytest.approx(centre @ form(graph) @ centre / program.unit, abs=1e-9)


def test_tables_that_factors_share_are_stored_once() -> None:
    edges = np.stack([np.arange(99), np.arange(1, 100)], axis=1)
    graph = FactorGraph.from_pairwise(np.zeros((100, 3)), edges, np.eye(3))
    program = program_of(graph)
    assert program.form.entries.size == 9


def test_forbidden_entries_become_a_fine_below_everything_beside_them() -> None:
    graph = FactorGraph.from_pairwise([[0.0, -np.inf], [1.0, 2.0]], [[0, 1]], [[3.0, -np.inf], [-1.0, 0.0]])
    soft = softened(Problem.compile(graph), 2.0).graph
    assert soft.theta_v.tolist() == [0.0, -8.0, 1.0, 2.0]  # the largest spread is 4
    assert soft.theta_t.tolist() == [3.0, -9.0, -1.0, 0.0]
    free = Problem.compile(random_pairwise(1))
    assert softened(free, 2.0) is free


# -- linear algebra ---------------------------------------------------------------------------------------------------


@given(seed=seeds)
@settings(max_examples=20)
def test_the_power_method_comes_close_to_the_curvature_from_below(seed: int) -> None:
    graph = random_pairwise(seed)
    n = len(graph.theta_v)
    program = program_of(graph)
    bend = np.repeat(program.bend(np.random.default_rng(0).normal(size=n)), graph.card)
    q = dense_form(program, n)
    touched = bend > 0
    assert not q[~touched].any()
    scaled = q[np.ix_(touched, touched)] / np.sqrt(np.outer(bend[touched], bend[touched]))
    if len(scaled):
        largest = np.abs(np.linalg.eigvalsh(scaled)).max()
        assert 1.0 - 1e-9 <= largest <= 1.1


@given(seed=seeds)
@settings(max_examples=20)
def test_conjugate_gradients_solve_the_system(seed: int) -> None:
    graph = random_pairwise(seed)
    n = len(graph.theta_v)
    random = np.random.default_rng(seed)
    program = program_of(graph)
    q = dense_form(program, n)
    diagonal = np.full(graph.n_vars, 1.1 * np.abs(np.linalg.eigvalsh(q)).max() + 0.1)
    mass = np.zeros((n, n))
    for begin, end in zip(graph.var_ptr[:-1], graph.var_ptr[1:], strict=True):
        mass[begin:end, begin:end] = 1.0
    system = np.diag(np.repeat(diagonal, graph.card)) + 0.7 * mass - q
    goal, x = random.normal(size=n), random.normal(size=n)
    steps = plain(box.solve_system)(
        record(rho_mass=0.7, cg_tol=1e-10, cg_limit=500),
        program.form,
        arrays(program, x, goal=goal, diagonal=diagonal),
    )
    assert steps >= 0
    assert x == pytest.approx(np.linalg.solve(system, goal), abs=1e-7)


def test_a_form_that_outweighs_the_diagonal_is_noticed() -> None:
    graph = FactorGraph.from_pairwise(np.zeros((2, 2)), [[0, 1]], [[5.0, -5.0], [-5.0, 5.0]])
    program = program_of(graph)
    goal = np.array([0.0, 1.0, 0.0, 1.0])
    made = record(rho_mass=1.0, cg_tol=1e-6, cg_limit=100)
    at = arrays(program, np.zeros(4), goal=goal, diagonal=np.full(2, 0.5))
    assert plain(box.solve_system)(made, program.form, at) < 0


def test_copies_lie_in_the_box_and_on_the_sphere() -> None:
    x = np.random.default_rng(0).normal(size=10)
    made = record(rho_box=2.0, rho_sphere=2.0)
    program = program_of(FactorGraph.from_tables([2] * 5, [], []))
    iterates = arrays(program, x, z_box=np.full(10, 0.3), z_sphere=np.full(10, -0.2))
    plain(box.update_copies)(made, iterates)
    assert iterates.y_box == pytest.approx(np.clip(x + 0.15, 0, 1))
    assert np.linalg.norm(iterates.y_sphere - 0.5) == pytest.approx(math.sqrt(10) / 2)
    out = x - 0.1 - 0.5
    assert iterates.y_sphere - 0.5 == pytest.approx(out / np.linalg.norm(out) * math.sqrt(10) / 2)
    centre = arrays(program, np.full(10, 0.5))
    plain(box.update_copies)(made, centre)  # the projection is undefined there: stays, without a NaN
    assert centre.y_sphere.tolist() == [0.5] * 10


# -- the method -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
def test_small_models_are_solved_nearly(seed: int) -> None:
    graph = random_pairwise(seed, 7, 8)
    optimum, _ = brute_force(graph)
    assert mapmrf.solve(graph, "l2box").value >= optimum - 0.15 * abs(optimum)


def stepped(graph: FactorGraph, **options: Any) -> Any:
    """The state of a run after its last step, or 500 iterations."""
    problem, method = Problem.compile(graph), L2Box(**options)
    state = method.start(problem, 0, Start())
    while method.step(problem, state).finished is None and state.iterations < 500:
        pass
    return state


def test_hard_constraints_are_met_without_the_repair_of_the_library() -> None:
    """A ring of six that must alternate, with a pull to the same state everywhere."""
    edges = [[i, (i + 1) % 6] for i in range(6)]
    graph = FactorGraph.from_pairwise(np.tile([0.0, 0.1], (6, 1)), edges, [[-np.inf, 0.0], [0.0, -np.inf]])
    assert graph.value(stepped(graph).arrays.best) == pytest.approx(0.3)


def test_at_rest_x_is_a_labelling() -> None:
    graph = grid(6, 6, coupling=0.5, seed=3)
    result = mapmrf.solve(graph, "l2box", history=0, max_iterations=3000)
    assert result.status is Status.CONVERGED
    x = result.mu_v
    assert x is not None
    assert np.abs(x - np.round(x)).max() < 1e-2
    assert x.reshape(-1, 2).sum(axis=1) == pytest.approx(1.0, abs=1e-2)


def test_the_history_of_values_ends_a_run_once_the_penalties_outweigh_the_form() -> None:
    graph = grid(8, 8, coupling=1.0, seed=2)
    short, long = mapmrf.solve(graph, "l2box", history=5), mapmrf.solve(graph, "l2box", history=0, tol=0.0)
    assert short.status is Status.CONVERGED
    assert long.status is Status.ITERATION_LIMIT
    assert short.iterations < long.iterations
    box = stepped(graph, history=5).box[0]
    assert box.at_rest and box.shifted == 0.0


def test_penalties_grow_to_their_limit() -> None:
    graph = grid(5, 5, seed=2)
    options = {"history": 0, "tol": 0.0, "rho": 1.0, "growth": 2.0, "update_every": 2, "max_iterations": 9}
    result = mapmrf.solve(graph, "l2box", rho_upper=8.0, **options)
    unit = result.details["rho_unit"]
    assert result.details["rho"] == pytest.approx(8.0 * unit)
    free = mapmrf.solve(graph, "l2box", **options)
    assert free.details["rho"] == pytest.approx(16.0 * unit)


def test_an_indefinite_system_is_mended_on_the_way() -> None:
    graph = grid(8, 8, coupling=2.0, seed=1)
    result = mapmrf.solve(graph, "l2box", curvature=0.0, rho=0.05)
    assert result.details["curvature"] > 0.5
    assert np.isfinite(result.mu_v).all()
    assert result.value > 0.8 * mapmrf.solve(graph, "l2box").value


def test_penalties_may_be_given_in_units_of_the_potentials() -> None:
    graph = grid(7, 7, coupling=2.0, seed=4)
    plain = mapmrf.solve(graph, "l2box")
    unit = plain.details["rho_unit"]
    absolute = mapmrf.solve(graph, "l2box", rho=0.3 * unit, rho_upper=1000 * unit, rho_unit="absolute")
    assert absolute.value == pytest.approx(plain.value, rel=0.05)
    assert absolute.details["rho"] == pytest.approx(plain.details["rho"], rel=0.5)


def test_a_given_labelling_is_where_x_begins_with_higher_penalties() -> None:
    graph = grid(8, 8, coupling=2.0, seed=5)
    good = mapmrf.solve(graph, "branch").labels
    problem = Problem.compile(graph)
    state = L2Box().start(problem, 0, Start(good))
    assert state.arrays.x.reshape(-1, 2).argmax(axis=1).tolist() == good.tolist()
    assert state.box[0].rho_box == pytest.approx(20 * 0.3)
    warm = L2Box(warm_rho=100.0)
    state = warm.start(problem, 0, Start(good))
    warm.step(problem, state)
    assert np.mean(state.arrays.labels == good) > 0.95


def test_seeds_lead_to_different_labellings() -> None:
    graph = grid(16, 16, coupling=3.0, seed=6)
    values = {mapmrf.solve(graph, "l2box", seed=seed, noise=0.1).value for seed in range(4)}
    assert len(values) > 1
