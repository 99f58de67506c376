"""The engine of ADMM: every update against the dense reference and the lines on the page of LS-LP, and its work."""

from __future__ import annotations

import math
import threading
from dataclasses import asdict
from itertools import islice

import numpy as np
import pytest

import mapmrf
from admm_reference import ON_PAGE, DenseADMM, Knobs, compact_shift, ring, seen_by
from constrained_recipes import SUMS, random_constrained
from mapmrf import LSLP, FactorGraph, constraints, datasets
from mapmrf.engines.admm import (
    box,
    factor_qp,
    factor_steps,
    forest_qp,
    measurement,
    penalty,
    steps,
    tiled,
    variable_steps,
)
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.layout import Layout, harden, impossible
from mapmrf.engines.admm.measurement import edge_states_of, kkt_residuals
from mapmrf.engines.admm.steps import rounds_of, work_of
from mapmrf.engines.admm.structs import BATCH, BatchRow, FactorKind, Rounding
from mapmrf.model.polytope import dense
from mapmrf.model.problem import Problem
from mapmrf.run.clock import CallAbandoned, Supervisor, wait_for_all
from mapmrf.run.method import Start
from plain_python import plain
from strategies import Recipe

ITERATIONS = 6
CLOSE = 1e-8


def model(
    seed: int, *, cards: tuple[int, int] = (2, 4), arities: tuple[int, ...] = (2, 2, 2, 3, 4), hard: float = 0.0
) -> Recipe:
    """Six variables, one of them alone, unary potentials, and factors of these arities; one labelling stays legal."""
    random = np.random.default_rng(seed)
    recipe = Recipe(random.integers(cards[0], cards[1] + 1, 6).tolist())
    labels = random.integers(0, recipe.card)
    for i in range(6):
        recipe.add((i,), random.normal(size=recipe.card[i]))
    for arity in arities:
        scope = tuple(random.permutation(5)[:arity].tolist())
        recipe.add(scope, random.normal(size=[recipe.card[i] for i in scope]))
    for scope, table in zip(recipe.scopes, recipe.tables, strict=True):
        struck = random.random(table.shape) < hard
        struck[tuple(labels[list(scope)])] = False
        table[struck] = -np.inf
    return recipe


MODELS = {
    "mixed": model(0),
    "mixed again": model(1, arities=(2, 3, 3, 2, 4)),
    "hard": model(2, hard=0.25),
    "hard pairs": model(3, arities=(2,) * 6, hard=0.3),
    "binary": model(4, cards=(2, 2), arities=(2, 2, 2, 3, 3, 4)),
    "binary hard": model(5, cards=(2, 2), arities=(2, 2, 3, 3), hard=0.2),
    "binary pairs": model(6, cards=(2, 2), arities=(2,) * 7),
    "ternary pairs": model(7, cards=(3, 3), arities=(2,) * 6),
}

KNOBS = {
    "plain": Knobs(0.7),
    "free": Knobs(0.7, variant="free"),
    "growing rho": Knobs(0.5, eta=1.3, rho_upper=0.9),
    "rho in steps": Knobs(0.5, eta=1.5, update_every=3),
    "rho above its limit": Knobs(0.9, eta=1.5, rho_upper=0.5),
    "sphere weight": Knobs(0.6, sphere_weight=3.0, eta=1.1),
    "affine": Knobs(0.7, sphere="affine", eta=1.1),
    "off": Knobs(0.4, sphere="off", eta=1.1),
    "blocks": Knobs(0.7, sphere_block=2, eta=1.1),
    "affine blocks": Knobs(0.7, sphere="affine", sphere_block=4),
    "relaxation": Knobs(0.7, relaxation=1.6, eta=1.1),
    "under-relaxation": Knobs(0.7, relaxation=0.7, sphere="off"),
    "frozen": Knobs(0.7, freeze_after=2, eta=1.1),
    "everything": Knobs(
        0.4, eta=1.2, update_every=2, sphere="affine", sphere_weight=0.5, sphere_block=3, relaxation=1.3, freeze_after=4
    ),
}
PERTURBED = {
    "tied": Knobs(0.7, epsilon=0.05),
    "tied, growing rho": Knobs(0.5, epsilon=0.2, eta=1.3, update_every=2),
    "tied, weight": Knobs(0.7, epsilon=0.1, sphere_weight=2.0, freeze_after=3),
    "tied, affine": Knobs(0.7, epsilon=0.1, sphere="affine", sphere_block=2),
    "tied, off": Knobs(0.7, epsilon=0.1, sphere="off", relaxation=1.4),
    "free": Knobs(0.7, epsilon=0.05, variant="free"),
    "free, large rho": Knobs(30.0, epsilon=0.05, variant="free"),
    "free, growing rho": Knobs(0.5, epsilon=0.2, variant="free", eta=1.3, update_every=2),
    "free, weight": Knobs(0.7, epsilon=0.1, variant="free", sphere_weight=2.0, freeze_after=3),
    "free, affine": Knobs(0.7, epsilon=0.1, variant="free", sphere="affine", sphere_block=2),
    "free, off": Knobs(0.7, epsilon=0.1, variant="free", sphere="off", relaxation=1.4),
}


def lattice(height: int, width: int, *, shared: bool = False, shuffled: bool = False, gaps: float = 0.0) -> Recipe:
    """Binary variables on a lattice, one more alone: a table per pair or one for all, in any order, some missing."""
    random = np.random.default_rng([height, width, shared, shuffled])
    place = np.arange(height * width).reshape(height, width)
    across, down = zip(place[:, :-1].flat, place[:, 1:].flat), zip(place[:-1].flat, place[1:].flat)  # noqa: B905
    scopes = [(int(i), int(j)) for i, j in (*across, *down) if random.random() >= gaps]
    if shuffled:
        scopes = [scopes[a][:: random.choice([-1, 1])] for a in random.permutation(len(scopes))]
    recipe, table = Recipe([2] * (height * width + 1)), random.normal(size=(2, 2))
    for i in range(height * width + 1):
        recipe.add((i,), random.normal(size=2))
    for scope in scopes:
        recipe.add(scope, table if shared else random.normal(size=(2, 2)))
    return recipe


LATTICES = {
    "image": lattice(3, 4),
    "one table": lattice(4, 3, shared=True),
    "one row": lattice(1, 9),
    "shuffled": lattice(3, 5, shuffled=True),
    "gaps": lattice(4, 4, shuffled=True, shared=True, gaps=0.4),
}


def engine_of(recipe: Recipe, knobs: Knobs, *, seed: int = 0) -> Engine:
    options = {key: value for key, value in asdict(knobs).items() if value != math.inf}
    method = LSLP(**{"rho_upper": 1e9, **options}, rho_unit="absolute", lp_phase=False, noise=0.3)
    state = method.start(Problem.compile(recipe.graph()), seed, Start())
    return state.the_engine


def assert_follows(recipe: Recipe, knobs: Knobs) -> None:
    """Run engine and reference side by side and compare all they have."""
    engine = engine_of(recipe, knobs)
    reference = DenseADMM(engine.problem, knobs, engine.variables())
    shift = compact_shift(engine, reference)
    reference.lam = [-part for part in shift]
    compact = np.repeat(engine.layout.width < reference.card, reference.card)
    for k in range(ITERATIONS):
        last_lam_v = engine.lam_v.copy()
        engine.run(1)
        reference.step()
        where = f"iteration {k + 1}"
        assert engine.variables() == pytest.approx(reference.mu, abs=CLOSE), where
        lam = [part + more for part, more in zip(reference.lam, shift, strict=True)]
        assert edge_states_of(engine, engine.multipliers()) == pytest.approx(np.concatenate(lam), abs=CLOSE), where
        mine = np.split(dense(engine.problem, engine.factor_marginals), engine.problem.config_ptr[1:-1])
        for m, mu_f, seen in zip(reference.m, mine, seen_by(engine, reference), strict=True):
            assert m @ mu_f == pytest.approx(m @ seen, abs=CLOSE), where
            assert mu_f.min() > -1e-12, where
        if reference.on:
            found_v = engine.layout.expand(engine.lam_v) - np.where(compact, 0.5, 0.0)
            assert found_v == pytest.approx(reference.lam_v, abs=CLOSE), where
            if knobs.freeze_after and k >= knobs.freeze_after:
                assert np.array_equal(engine.lam_v, last_lam_v), where
    assert_measurement(engine, reference, shift)


def assert_measurement(engine: Engine, reference: DenseADMM, shift: list[np.ndarray]) -> None:
    """A measurement's figures are what their names say."""
    found = engine.measure()
    graph = engine.problem.graph
    mu_f = seen_by(engine, reference)
    s = [m @ part for m, part in zip(reference.m, mu_f, strict=True)]
    off = [reference.c * reference.mu[places] - part for places, part in zip(reference.places, s, strict=True)]
    assert found.primal2 == pytest.approx(sum(float(part @ part) for part in off), rel=1e-6, abs=CLOSE)
    assert found.primal_max == pytest.approx(max(np.abs(part).max() for part in off), rel=1e-6, abs=CLOSE)
    if reference.on:
        rest = np.where(reference.degree > 0, reference.c * reference.mu - reference.upsilon, 0.0)
        assert found.sphere2 == pytest.approx(float(rest @ rest), rel=1e-6, abs=CLOSE)
    labels = [int(np.argmax(reference.mu[b:e])) for b, e in zip(reference.ptr[:-1], reference.ptr[1:], strict=True)]
    assert engine.labels.tolist() == labels
    assert found.value == pytest.approx(graph.value(labels), abs=1e-9)
    assert found.bound == pytest.approx(reference.bound() + graph.constant, abs=1e-7)
    used = reference.mu != 0
    relaxed = float(reference.theta[used] @ reference.mu[used]) + graph.constant
    for a, (table, part) in enumerate(zip(reference.tables, mu_f, strict=True)):
        relaxed += float(table[part > 0] @ part[part > 0])
        relaxed += float(shift[a] @ (reference.mu[reference.places[a]] - s[a]))  # what was moved sees mu_i
    assert found.relaxed == pytest.approx(relaxed, abs=1e-6)
    mine = np.where(reference.degree > 0, np.minimum(np.abs(reference.mu), np.abs(1 - reference.mu)), 0.0)
    assert found.integrality == pytest.approx(mine.max(), abs=CLOSE)


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("name", MODELS)
def test_the_updates_are_those_of_the_method(name: str, knobs: str) -> None:
    """Epsilon 0: the compact layout, which must equal the plain one up to a shift of the multipliers."""
    assert_follows(MODELS[name], KNOBS[knobs])


@pytest.mark.parametrize("knobs", PERTURBED)
@pytest.mark.parametrize("name", MODELS)
def test_the_perturbed_updates_are_those_of_the_method(name: str, knobs: str) -> None:
    """Epsilon > 0, tied and free: the full layout."""
    assert_follows(MODELS[name], PERTURBED[knobs])


@pytest.mark.parametrize("knobs", KNOBS)
@pytest.mark.parametrize("name", LATTICES)
def test_the_updates_in_runs_are_those_of_the_method(name: str, knobs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lattices of binary variables in tiles of a few variables: the same iterates from one pass over memory."""
    monkeypatch.setattr(tiled, "LEAST_LENGTH", 1)
    monkeypatch.setattr(tiled, "TILE", 5)
    assert engine_of(LATTICES[name], KNOBS[knobs]).layout.runs is not None
    assert_follows(LATTICES[name], KNOBS[knobs])


def update_by_name(engine: Engine, n: int) -> None:
    """The five updates of Algorithm 1, in its order."""
    for _ in range(n):
        engine.update_upsilon()
        engine.update_mu_f()
        engine.update_mu_v()
        engine.update_lam()
        engine.update_rho()


@pytest.mark.parametrize("name", LATTICES)
def test_named_updates_and_whole_runs_are_the_same_in_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates one by one give the same bits as one pass over memory, kernels with indices the same up to round-off."""
    indexed = engine_of(LATTICES[name], KNOBS["growing rho"])
    assert indexed.layout.runs is None
    monkeypatch.setattr(tiled, "LEAST_LENGTH", 1)
    monkeypatch.setattr(tiled, "TILE", 5)
    whole, named = (engine_of(LATTICES[name], KNOBS["growing rho"]) for _ in range(2))
    indexed.run(8)
    whole.run(8)
    update_by_name(named, 8)
    assert np.array_equal(whole.mu, named.mu) and np.array_equal(whole.q, named.q)
    assert whole.measure() == named.measure()
    assert whole.mu == pytest.approx(indexed.mu, abs=1e-12)
    assert kkt_residuals(whole) == pytest.approx(kkt_residuals(indexed), abs=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, 0.1])
@pytest.mark.parametrize("name", ["mixed", "hard", "binary", "binary pairs"])
def test_a_sphere_on_the_factors_follows_the_reference(name: str, epsilon: float) -> None:
    recipe = MODELS[name]
    small = [a for a, scope in enumerate(recipe.scopes) if len(scope) < 4]
    recipe = Recipe(recipe.card, [recipe.scopes[a] for a in small], [recipe.tables[a] for a in small])
    knobs = Knobs(0.6, epsilon=epsilon, sphere="factors", sphere_weight=3.0, eta=1.2, update_every=2, freeze_after=4)
    engine = engine_of(recipe, knobs)
    reference = DenseADMM(engine.problem, knobs, engine.variables())
    # The linear parts stay in the tables here, but the unary potentials are centred where epsilon is 0.
    if engine.layout.compact:
        mean = np.add.reduceat(reference.theta, reference.ptr[:-1]) / reference.card
        share = mean / np.maximum(1, reference.degree[reference.ptr[:-1]])
        reference.lam = [
            np.concatenate([np.full(reference.card[i], share[i]) for i in scope]) for scope in reference.scopes
        ]
    for _ in range(ITERATIONS):
        engine.run(1)
        reference.step()
        assert dense(engine.problem, engine.factor_marginals) == pytest.approx(
            np.concatenate(reference.mu_f), abs=CLOSE
        )
        assert engine.variables() == pytest.approx(reference.mu, abs=CLOSE)
    off = [mu - upsilon for mu, upsilon in zip(reference.mu_f, reference.upsilon_f, strict=True)]
    assert engine.measure().sphere2 == pytest.approx(sum(float(part @ part) for part in off), abs=CLOSE)


@pytest.mark.parametrize("variant", ["tied", "free"])
def test_one_call_of_many_iterations_equals_many_calls_of_one(variant: str) -> None:
    for name, epsilon in (("mixed", 0.01), ("binary pairs", 0.0), ("binary", 0.0)):
        knobs = Knobs(0.5, epsilon=epsilon, variant=variant, eta=1.05, update_every=2, freeze_after=7)
        one, many, named = (engine_of(MODELS[name], knobs) for _ in range(3))
        one.run(9)
        for _ in range(9):
            many.run(1)
        update_by_name(named, 9)
        found = one.measure()
        for other in (many, named):
            assert np.array_equal(one.mu, other.mu)
            assert np.array_equal(one.q, other.q)
            assert other.measure() == found


# -- the lines of numpy on the page of LS-LP --------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, 0.05])
@pytest.mark.parametrize("cards", [(2, 2), (2, 4)], ids=["binary", "mixed"])
def test_the_code_on_the_page_has_the_iterates_of_the_reference(cards: tuple[int, int], epsilon: float) -> None:
    """And so those of the kernels."""
    graph, knobs = ring(1, cards=cards).graph(), Knobs(0.3, eta=1.05, rho_upper=1.5, epsilon=epsilon)
    start = np.repeat(1.0 / graph.card, graph.card)
    start[graph.var_ptr[:-1]] += np.random.default_rng(6).uniform(-0.1, 0.1, graph.n_vars)
    problem = Problem.compile(graph)
    reference = DenseADMM(problem, knobs, start)
    iterates = ON_PAGE["lslp"](graph, start, 0.3, eta=1.05, rho_upper=1.5, epsilon=epsilon)
    for mu_v, lam_v, lam, rho in islice(iterates, 40):
        assert rho == pytest.approx(reference.rho)
        reference.step()
        assert mu_v == pytest.approx(reference.mu, abs=1e-9)
        assert lam_v == pytest.approx(reference.lam_v, abs=1e-9)
        assert np.concatenate([lam[a] for a in problem.order]) == pytest.approx(np.concatenate(reference.lam), abs=1e-9)
    assert rho == 1.5 and np.ptp(mu_v - start) > 0.1, "the iterates have moved"


# -- constraints ------------------------------------------------------------------------------------------------------


def constrained_engine(graph: FactorGraph, compact: bool) -> Engine:
    return Engine(Layout.build(harden(Problem.compile(graph)), compact=compact))


@pytest.mark.parametrize("compact", [True, False])
def test_the_bound_holds_at_any_multipliers(compact: bool) -> None:
    tried = 0
    for seed in range(15):
        recipe = random_constrained(seed, n_vars=4, kinds=SUMS)
        graph, random = recipe.graph(), np.random.default_rng(seed)
        if impossible(Problem.compile(graph)):
            continue
        tried += 1
        engine = constrained_engine(graph, compact)
        for _ in range(5):
            engine.resume(random.random(len(engine.mu)), random.normal(size=len(engine.q)), 0.7)
            assert engine.measure().bound >= recipe.optimum() - 1e-9
    assert tried >= 8


@pytest.mark.parametrize("compact", [True, False])
def test_multipliers_outlast_a_change_of_the_penalty(compact: bool) -> None:
    graph = FactorGraph.from_tables([2, 3, 2], [(0, 1)], [np.arange(6.0).reshape(2, 3)])
    graph = graph.with_constraints([constraints.at_most_one([(0, 1), (1, 2), (2, 1)])])
    engine = constrained_engine(graph, compact)
    engine.begin(engine.layout.compress(np.full(7, 0.4)), 0.5)
    engine.run(7)
    before, bound = engine.multipliers(), engine.measure().bound
    assert len(before) == engine.layout.q_size + engine.layout.counting.n_items
    engine.change_rho(3.0)
    assert np.allclose(engine.multipliers(), before)
    engine.begin(engine.mu.copy(), 2.0, multipliers=True)
    assert np.allclose(engine.multipliers(), before)
    assert engine.measure().bound == pytest.approx(bound)


def test_both_layouts_solve_the_same_relaxation() -> None:
    random = np.random.default_rng(0)
    scopes = [(0, 1), (1, 2), (2, 3), (0, 3)]
    graph = FactorGraph.from_tables([2] * 4, scopes, [random.normal(size=(2, 2)) for _ in scopes])
    graph = graph.with_constraints([constraints.exactly_k(range(4), 2), constraints.xor([0, (1, 0), 2], 1, 0.6)])
    found = []
    for compact in (True, False):
        engine = constrained_engine(graph, compact)
        engine.begin(engine.layout.compress(np.full(8, 0.5)), 0.5)
        engine.run(3000)
        found.append(engine.measure())
        assert found[-1].primal_max < 1e-5
        assert found[-1].relaxed == pytest.approx(found[-1].bound, abs=1e-4)
    assert found[0].bound == pytest.approx(found[1].bound, abs=1e-4)


# -- long factor steps in rounds --------------------------------------------------------------------------------------


ROW = BatchRow(
    kind=FactorKind.DENSE, n=50, begin=0, end=50, arity=3, q_at=0, q_width=9, factor_at=0, edge_at=0, slot_at=0,
    slot_width=7, shape_at=0, config_at=0, n_configs=27, n_states=9, pull_at=0,
)  # fmt: skip
MIXED = datasets.random_graph(40, 60, (2, 4), (2, 4), hard=0.1, seed=3)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("affordable", [1, 7, 50, 1000])
def test_every_factor_is_in_one_round_and_no_round_is_too_long(
    monkeypatch: pytest.MonkeyPatch, threads: int, affordable: int
) -> None:
    tasks = np.array([ROW._replace(end=20), ROW._replace(begin=20), ROW._replace(kind=FactorKind.RIDGE)], dtype=BATCH)
    (each,) = set(work_of(tasks).tolist())
    monkeypatch.setattr(steps, "ROUND_WORK", affordable * each)
    found = rounds_of(tasks, threads)
    covered = [(task.kind, f) for part in found for task in part for f in range(task.begin, task.end)]
    assert covered == [(FactorKind.DENSE, f) for f in range(50)] + [(FactorKind.RIDGE, f) for f in range(50)]
    assert all(sum(part["end"] - part["begin"]) <= affordable * threads for part in found)
    assert len(found) >= 100 // (affordable * threads)


@pytest.mark.parametrize("method", ["ad3", "lslp"])
def test_rounds_do_not_change_the_answer(monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    whole = mapmrf.solve(MIXED, method, max_iterations=40)
    monkeypatch.setattr(steps, "ROUND_WORK", 1)
    cut = mapmrf.solve(MIXED, method, max_iterations=40)
    assert np.array_equal(whole.labels, cut.labels)
    assert (whole.value, whole.bound, whole.relaxed_value) == (cut.value, cut.bound, cut.relaxed_value)


def test_an_iteration_that_nobody_waits_for_ends_between_two_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "ROUND_WORK", 1)
    engine = Engine(Layout.build(Problem.compile(datasets.random_graph(20, 30, 3, 3)), compact=True))
    gave_up, done = threading.Event(), []

    def work() -> None:
        assert gave_up.wait(60)
        try:
            engine.run(1)
        except CallAbandoned:
            done.append("given up")

    with pytest.raises(CallAbandoned):
        Supervisor().call(lambda: 0.0, work)
    gave_up.set()
    wait_for_all()
    assert done == ["given up"]


def test_labels_are_the_first_largest_allowed_state() -> None:
    """Two compact variables, one of three states, one of a single state; forbidden states are passed over."""
    var_at = np.array([0, 1, 2, 5, 6])
    card = np.array([2, 2, 3, 1])
    allowed_at = np.array([0, 2, 4, 7, 8])
    mu = np.array([0.0, 0.4, 0.2, 0.7, 0.7, 1.0])
    none = np.zeros(0, dtype=np.uint32)
    decode = plain(measurement.decode)
    labels = np.array([0, 0, 0, 0])
    assert decode(4, var_at, mu, Rounding(card, allowed_at, np.ones(8, dtype=bool), none, labels)) == 2
    assert labels.tolist() == [0, 1, 1, 0], "ties go to the smaller state"
    allowed = np.array([True, True, True, False, True, False, True, True])
    assert decode(2, var_at, mu, Rounding(card, allowed_at, allowed, none, labels)) == 1, "of the first two"
    assert labels.tolist() == [0, 0, 2, 0]


# -- the code itself --------------------------------------------------------------------------------------------------

MODULES = (box, factor_qp, factor_steps, forest_qp, measurement, penalty, tiled, variable_steps)


def test_every_kernel_is_compiled_cached_and_releases_the_gil() -> None:
    kernels = {value for module in MODULES for value in vars(module).values() if hasattr(value, "py_func")}
    assert len(kernels) > 30
    for kernel in kernels:
        assert kernel.targetoptions["nogil"], kernel.__name__
        assert kernel.targetoptions["error_model"] == "numpy", kernel.__name__
        assert not kernel.targetoptions.get("fastmath"), "inf and nan must mean what they say"
