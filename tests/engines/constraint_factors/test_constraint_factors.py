"""Factors of constraints against all 0/1 vectors and the constraints, and projections against linear programs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.optimize import linprog

from constrained_recipes import SUMS, one_kind, random_constraint
from mapmrf import FactorGraph, constraints
from mapmrf.arrays import Floats
from mapmrf.engines.constraint_factors.model import CountingFactors, CountingKind, CountingModel
from mapmrf.engines.constraint_factors.projection_kernels import project, threshold
from mapmrf.engines.constraint_factors.values import GroupScores, LegalRounding, best_value
from plain_python import plain
from strategies import labellings

best_value, project = map(plain, (best_value, project))

KINDS = ("exactly", "at_most", "at_least", "between", "parity", "fan", "cost", "knapsack", "signed")
SOFT = ("at_most", "at_least", "parity", "fan", "cost", "signed")
"""Those that can have a price: a row with one has an upper side only."""
HULLS = [(name, math.inf) for name in KINDS if name != "knapsack"]


def random_factor(rng: np.random.Generator, name: str, penalty: float = math.inf) -> CountingFactors:
    """One factor of groups of one to three items; a few groups are complete where the kind allows it."""
    sizes = rng.choice([1, 1, 1, 2, 3], size=int(rng.integers(2, 6)))
    if name == "fan":
        sizes[-1] = 1
    n, n_groups = int(sizes.sum()), len(sizes)
    complete = np.zeros(n_groups, dtype=bool)
    weight, lower, upper, kind = np.ones(n), -math.inf, math.inf, CountingKind.ROW
    k = int(rng.integers(0, n_groups))
    if name in ("fan", "cost"):
        kind = CountingKind.FAN if name == "fan" else CountingKind.COST
    elif name == "parity":
        kind, lower = CountingKind.PARITY, float(rng.integers(2))
    elif name == "exactly":
        lower = upper = k
    elif name == "at_most":
        upper = k
    elif name == "between":
        lower, upper = k, k + rng.integers(0, 2)
    elif name == "at_least":
        lower = k + 1
        if penalty < math.inf:
            weight, lower, upper = -weight, -math.inf, -(k + 1)
    elif name == "knapsack":
        weight, upper = rng.integers(1, 6, n).astype(float), float(rng.integers(1, 10))
    elif name == "signed":
        weight, upper = np.repeat(rng.choice([-1.0, 1.0], n_groups), sizes), float(rng.integers(-1, 2))
    if name in ("between", "at_most", "knapsack", "parity") and penalty == math.inf:
        complete = rng.random(n_groups) < 0.2
    return CountingFactors(
        np.array([int(kind)]), np.array([float(lower)]), np.array([float(upper)]), np.array([penalty]),
        np.array([0, n_groups]), np.concatenate([[0], np.cumsum(sizes)]), complete, weight,
    )  # fmt: skip


def vectors(factors: CountingFactors) -> tuple[Floats, Floats]:
    """All 0/1 vectors with at most (or exactly) one item of every group, and which of them violate the factor."""
    ptr, n = factors.item_ptr, int(factors.item_ptr[-1])
    choices = []
    for g in range(len(ptr) - 1):
        rows = np.vstack([np.zeros(n), np.eye(n)[ptr[g] : ptr[g + 1]]])
        choices.append(rows[1:] if factors.complete[g] else rows)
    x = np.array([sum(rows) for rows in itertools.product(*choices)]).reshape(-1, n)
    on = np.add.reduceat(x, ptr[:-1], axis=1)
    kind = factors.kind[0]
    if kind == CountingKind.ROW:
        sums = x @ factors.weight
        bad = (sums < factors.lower[0] - 1e-9) | (sums > factors.upper[0] + 1e-9)
    elif kind == CountingKind.PARITY:
        bad = on.sum(axis=1) % 2 != factors.lower[0]
    elif kind == CountingKind.FAN:
        bad = on[:, :-1].any(axis=1) & (on[:, -1] == 0)
    else:
        bad = on.any(axis=1)
    return x, bad.astype(float)


def feasible_cases(name: str, n: int, penalty: float = math.inf) -> list[tuple[np.random.Generator, CountingFactors]]:
    """Random factors that some vector satisfies."""
    found = []
    for seed in range(n):
        rng = np.random.default_rng([seed, KINDS.index(name)])
        factors = random_factor(rng, name, penalty)
        if (vectors(factors)[1] == 0).any():
            found.append((rng, factors))
    assert len(found) > n // 3
    return found


def projected(factors: CountingFactors, scores: Floats, price: float) -> tuple[Floats, float]:
    z = np.full(len(scores), np.nan)
    return z, project(0, factors, scores, price, z)


def random_scores(rng: np.random.Generator, n: int) -> Floats:
    """Scores with many ties, or none, around the box."""
    if rng.random() < 0.5:
        return rng.integers(-2, 5, n) / 2.0
    return rng.normal(0.5, rng.choice([0.3, 1.0, 5.0]), n)


@pytest.mark.parametrize(("name", "price"), [*HULLS, *((name, price) for name in SOFT for price in (0.1, 0.7, 3.0))])
def test_projections_are_the_nearest_points_of_the_hull(name: str, price: float) -> None:
    for rng, factors in feasible_cases(name, 30, price):
        x, bad = vectors(factors)
        if price == math.inf:
            x, bad = x[bad == 0], bad[bad == 0]
        scores = random_scores(rng, x.shape[1])
        z, v = projected(factors, scores, price)
        cost = np.where(bad > 0, price if price < math.inf else 0.0, 0.0)
        inside = linprog(bad, A_eq=np.vstack([x.T, np.ones(len(x))]), b_eq=[*z, 1.0], bounds=(0, None))
        if not inside.success:  # round-off puts it a little outside
            away = linprog(
                np.concatenate([np.zeros(len(x)), np.ones(2 * len(z))]),
                A_eq=np.block([[x.T, np.eye(len(z)), -np.eye(len(z))], [np.ones(len(x)), np.zeros(2 * len(z))]]),
                b_eq=[*z, 1.0],
                bounds=(0, None),
            )
            assert away.fun < 1e-9
        else:
            assert v == pytest.approx(inside.fun, abs=1e-7)
        gain = x @ (scores - z) - cost
        here = z @ (scores - z) - (price * v if price < math.inf else 0.0)
        assert gain.max() <= here + 1e-7


@pytest.mark.parametrize("name", ["knapsack", "between", "exactly"])
def test_rows_are_projected_onto_the_box_with_the_row(name: str) -> None:
    for rng, factors in feasible_cases(name, 30):
        scores = random_scores(rng, len(factors.weight))
        z, _ = projected(factors, scores, math.inf)
        in_group = np.zeros((len(factors.complete), len(z)))
        for g in range(len(in_group)):
            in_group[g, factors.item_ptr[g] : factors.item_ptr[g + 1]] = 1.0
        totals = in_group @ z
        assert z.min() >= 0 and totals.max() <= 1 + 1e-9
        assert np.allclose(totals[factors.complete], 1.0)
        assert factors.lower[0] - 1e-9 <= factors.weight @ z <= factors.upper[0] + 1e-9
        rows = np.vstack([in_group, factors.weight])
        low = np.append(np.where(factors.complete, 1.0, 0.0), factors.lower[0])
        high = np.append(np.ones(len(in_group)), factors.upper[0])
        finite = [(low, -1.0), (high, 1.0)]
        a_ub = np.vstack([sign * rows[np.isfinite(side)] for side, sign in finite])
        b_ub = np.concatenate([sign * side[np.isfinite(side)] for side, sign in finite])
        best = linprog(-(scores - z), A_ub=a_ub, b_ub=b_ub, bounds=(0, None))
        assert -best.fun <= z @ (scores - z) + 1e-7


@pytest.mark.parametrize(("name", "penalty"), [*((name, math.inf) for name in KINDS), *((name, 1.5) for name in SOFT)])
def test_the_best_value_is_that_of_all_vectors(name: str, penalty: float) -> None:
    for rng, factors in feasible_cases(name, 40, penalty):
        x, bad = vectors(factors)
        n = x.shape[1]
        scores = GroupScores(random_scores(rng, n) - 0.5, np.where(factors.complete, -np.inf, 0.0))
        scores.on[rng.random(n) < 0.1] = -np.inf
        loose = ~factors.complete
        scores.off[loose] = np.where(rng.random(loose.sum()) < 0.1, -np.inf, rng.integers(-2, 3, loose.sum()) / 2)
        top = best_value(0, factors, scores)
        on = np.add.reduceat(x, factors.item_ptr[:-1], axis=1)
        with np.errstate(invalid="ignore"):
            values = np.where(x > 0, scores.on, 0.0).sum(axis=1) + np.where(on > 0, 0.0, scores.off).sum(axis=1)
            values -= np.where(bad > 0, penalty, 0.0)
        if name == "knapsack":
            assert top >= values.max() - 1e-9
        else:
            assert top == pytest.approx(values.max())


def test_a_threshold_is_found_among_scores_that_round_off_blurs() -> None:
    scores = 1e15 + np.array([0.375, 0.0, 0.25, 0.25, 0.375, 0.875])
    plain = threshold.py_func  # type: ignore[attr-defined]
    found = plain(0, 6, 1.0, 0.0, np.ones(6), scores)
    assert abs(np.maximum(0.0, scores - found).sum() - 1.0) <= 1.0


# -- counting factors stand for the constraints of a graph ------------------------------------------------------------


NONE = np.zeros(0, dtype=np.int64)


def counted_value(model: CountingModel, labels: np.ndarray) -> float:
    """The value of a labelling under the factors: the best value with all other items and choices forbidden."""
    factors = model.factors
    is_on = labels[model.var] == model.state
    on = np.where(is_on, 0.0, -np.inf)
    any_on = np.logical_or.reduceat(is_on, factors.item_ptr[:-1]) if model.n_items else np.zeros(0, dtype=bool)
    scores = GroupScores(on, np.where(any_on, -np.inf, 0.0))
    return model.constant + sum(best_value(f, factors, scores) for f in range(model.n_factors))


@pytest.mark.parametrize("kind", SUMS)
@pytest.mark.parametrize("soft", [False, True])
def test_factors_have_the_value_of_the_constraint(kind: str, soft: bool) -> None:
    for seed in range(25):
        graph = one_kind(kind, seed, soft, n=1, n_factors=0, hard=0.3 * (seed % 2)).graph()
        assert graph.constraints is not None
        model = CountingModel.of(graph, NONE)
        for labels in labellings(graph):
            if np.isneginf(graph.theta_v[graph.var_ptr[:-1] + labels]).any():
                continue  # such states are left out
            truth, found = graph.constraints.value(labels), counted_value(model, labels)
            if kind == "all_different" and soft:
                assert found >= truth - 1e-9
            else:
                assert found == pytest.approx(truth)


def test_simplexes_leave_out_forbidden_states() -> None:
    graph = FactorGraph.from_tables([3, 2], [(0,)], [[0.0, -math.inf, 1.0]])
    model = CountingModel.of(graph, np.array([0]))
    assert model.state.tolist() == [0, 2] and model.factors.complete.tolist() == [True]


def test_rounding_keeps_hard_constraints() -> None:
    found = 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        card = [3] * 5
        stated = [random_constraint(random, card, SUMS[k], soft=False) for k in random.permutation(len(SUMS))[:3]]
        graph = FactorGraph.from_tables(card, [], []).with_constraints(stated)
        feasible = any(graph.value(labels) == 0 for labels in itertools.product(range(3), repeat=5))
        model = CountingModel.of(graph, NONE)
        if not feasible or model.constant == -math.inf:
            continue
        labels = LegalRounding(graph, model).round(random.random(15))
        if labels is not None:
            found += 1
            assert graph.value(labels) > -math.inf
    assert found >= 20


def test_rounding_prefers_what_it_is_told() -> None:
    graph = FactorGraph.from_tables([2] * 4, [], []).with_constraints([constraints.exactly_k(range(4), 2)])
    rounding = LegalRounding(graph, CountingModel.of(graph, NONE))
    labels = rounding.round(np.array([0.1, 0.9, 0.4, 0.6, 0.2, 0.8, 0.3, 0.7]))
    assert labels is not None and labels.tolist() == [1, 0, 1, 0]
