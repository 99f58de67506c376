"""Every update of LS-LP against the dense reference: upsilon, mu_F, mu_V, multipliers, and the figures of a found."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from admm_reference import DenseADMM, Knobs, seen_by
from mapmrf import LSLP
from mapmrf.engines.admm import tiled
from mapmrf.engines.admm.engine import Engine
from mapmrf.engines.admm.kkt import edge_states_of, kkt_residuals
from mapmrf.model.polytope import dense
from mapmrf.model.problem import Problem
from mapmrf.run.method import Start
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
    "growing rho": Knobs(0.5, eta=1.3, rho_upper=0.9),
    "rho in steps": Knobs(0.5, eta=1.5, update_every=3),
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


def compact_shift(engine: Engine, reference: DenseADMM) -> list[np.ndarray]:
    """What the compact layout moves from the tables into the unary potentials, as a shift of the edges' multipliers.

    Linear parts of the 2x2 tables without -inf, and the means of the unary potentials, a share for each edge.
    """
    if not engine.layout.compact:
        return [np.zeros(len(lam)) for lam in reference.lam]
    mean = np.add.reduceat(reference.theta, reference.ptr[:-1]) / reference.card
    degree = reference.degree[reference.ptr[:-1]]
    shift = []
    for scope, table in zip(reference.scopes, reference.tables, strict=True):
        mine = np.concatenate([np.full(reference.card[i], -mean[i] / degree[i]) for i in scope])
        if len(table) == 4 and len(scope) == 2 and np.isfinite(table).all():
            t00, t01, t10, t11 = table
            first, second = (t10 + t11 - t00 - t01) / 4, (t01 + t11 - t00 - t10) / 4
            mine = mine + np.array([-first, first, -second, second])
        shift.append(mine)
    return shift


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


@pytest.mark.parametrize("name", LATTICES)
def test_named_updates_and_whole_runs_are_the_same_in_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Updates one by one give the same bits as one pass over memory, kernels with indices the same up to round-off."""
    indexed = engine_of(LATTICES[name], KNOBS["growing rho"])
    assert indexed.layout.runs is None
    monkeypatch.setattr(tiled, "LEAST_LENGTH", 1)
    monkeypatch.setattr(tiled, "TILE", 5)
    whole, steps = (engine_of(LATTICES[name], KNOBS["growing rho"]) for _ in range(2))
    indexed.run(8)
    whole.run(8)
    for _ in range(8):
        steps.update_upsilon()
        steps.update_mu_f()
        steps.update_mu_v()
        steps.update_lam()
        steps.update_rho()
    assert np.array_equal(whole.mu, steps.mu) and np.array_equal(whole.q, steps.q)
    assert whole.measure() == steps.measure()
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
        one, many = engine_of(MODELS[name], knobs), engine_of(MODELS[name], knobs)
        one.run(9)
        for _ in range(9):
            many.run(1)
        assert np.array_equal(one.mu, many.mu)
        assert np.array_equal(one.q, many.q)
        assert one.measure() == many.measure()


def test_tied_and_free_differ_only_for_epsilon_above_0() -> None:
    for epsilon, same in ((0.0, True), (0.1, False)):
        runs = [engine_of(MODELS["mixed"], Knobs(0.5, epsilon=epsilon, variant=v)) for v in ("tied", "free")]
        for engine in runs:
            engine.run(5)
        assert np.allclose(runs[0].mu, runs[1].mu, atol=1e-12) == same


def test_a_small_epsilon_is_close_to_none() -> None:
    """The compact and the full layout are two ways to write one run: they agree as epsilon goes to 0."""
    recipe = MODELS["binary"]
    compact, full = (engine_of(recipe, Knobs(0.5, epsilon=epsilon, eta=1.1)) for epsilon in (0.0, 1e-9))
    start = compact.variables()
    shift = compact_shift(compact, DenseADMM(full.problem, Knobs(0.5), start))
    full.begin(start, 0.5)
    full.q += np.concatenate(shift)  # q = rho s - lam, stored factor by factor in this layout
    for _ in range(ITERATIONS):
        compact.run(1)
        full.run(1)
        assert compact.variables() == pytest.approx(full.variables(), abs=1e-6)
