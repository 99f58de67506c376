"""Learning: features, hinge loss and subgradient, structured SVM against a QP, perturb-and-MAP against exact sums."""

from __future__ import annotations

import itertools
import signal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse, stats

import mapmrf
from binary_models import lattice_pairs
from mapmrf import FactorGraph, MapMRFError, OptionError, Status, UnknownName, learn
from mapmrf.datasets import grid, potts_image
from mapmrf.learn import Example, LinearModel, StochasticDescent, StructuredSVM, hinge_loss, log_likelihood
from mapmrf.learn.training import DEPTH, ITERATIONS, infer, solve_quickly
from refusals import refuses
from strategies import Recipe, any_recipes, brute_force, hard_recipes, soft_recipes, with_weights

SEEDS = st.integers(0, 2**32 - 1)
CHAIN = np.array([[0, 1], [1, 2]])


def labellings(graph: FactorGraph) -> list[np.ndarray]:
    return [np.array(y) for y in itertools.product(*(range(k) for k in graph.card))]


def random_model(recipe: Recipe, seed: int, n_weights: int = 4) -> LinearModel:
    graph = recipe.graph()
    rows = len(graph.theta_v) + len(graph.theta_t)
    matrix = sparse.random_array((rows, n_weights), density=0.5, rng=np.random.default_rng(seed))
    return LinearModel(graph, matrix)


def chain_example(seed: int) -> Example:
    """A chain of three binary variables with two features each, and Potts pairs."""
    random = np.random.default_rng(seed)
    model = LinearModel.pairwise(random.normal(size=(3, 2)), CHAIN, n_states=2, tables=np.eye(2)[None])
    return Example.of(model, random.integers(0, 2, 3))


def grown() -> Example:
    return Example.of(LinearModel.pairwise(np.zeros((3, 3)), CHAIN, n_states=2), [0, 0, 0])


# -- features ---------------------------------------------------------------------------------------------------------


@given(with_weights(st.one_of(soft_recipes(), hard_recipes())), SEEDS)
def test_the_log_potential_is_linear_in_the_weights(recipe: Recipe, seed: int) -> None:
    model, random = random_model(recipe, seed), np.random.default_rng(seed)
    weights, labels = random.normal(size=4), random.integers(0, model.graph.card)
    expected = model.graph.value(labels) + weights @ model.features(labels)
    assert model.at(weights).value(labels) == pytest.approx(expected)
    assert np.array_equal(np.isneginf(model.at(weights).theta_t), np.isneginf(model.graph.theta_t))


def test_pairwise_features_are_those_of_a_graph_crf_or_a_classifier() -> None:
    random = np.random.default_rng(0)
    features, weights = random.normal(size=(3, 2)), random.normal(size=3 * 2 + 9)
    graph = LinearModel.pairwise(features, CHAIN, n_states=3).at(weights)
    unary, table = features @ weights[:6].reshape(3, 2).T, weights[6:].reshape(3, 3)
    same = FactorGraph.from_pairwise(unary, CHAIN, table)
    assert graph.n_tables == 1  # shared by all pairs
    for y in labellings(same):
        assert graph.value(y) == pytest.approx(same.value(y))
    model = LinearModel.pairwise([[1.0], [2.0]], np.zeros((0, 2), dtype=int), n_states=2)
    assert model.at([0.0, 1.0, *np.zeros(4)]).value([1, 1]) == 3.0
    assert model.features([1, 0]).tolist() == [2.0, 1.0, 0, 0, 0, 0]


def test_edge_features_weigh_tables() -> None:
    random = np.random.default_rng(1)
    unary, edge = random.normal(size=(3, 2, 4)), random.normal(size=(2, 3))
    tables = random.normal(size=(2, 2, 2))
    model = LinearModel.pairwise(unary, CHAIN, edge, tables=tables)
    weights = random.normal(size=model.n_weights)
    assert model.n_weights == 4 + 3 * 2
    pairs = np.einsum("em,mb,bkl->ekl", edge, weights[4:].reshape(3, 2), tables)
    same = FactorGraph.from_pairwise(unary @ weights[:4], CHAIN, pairs)
    for y in labellings(same):
        assert model.at(weights).value(y) == pytest.approx(same.value(y))


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: LinearModel.pairwise([[1.0]], [], n_states=None), r"unary has shape \(1, 1\) with n_states=None"),
        (lambda: LinearModel.pairwise(np.zeros((3, 1)), CHAIN, np.zeros((3, 1)), n_states=2),
         "edge_features has shape"),
        (lambda: LinearModel(FactorGraph.from_tables([2], [], []), np.zeros((3, 1))), "matrix has 3 rows"),
        (lambda: chain_example(0).model.at([1.0]), r"weights has shape \(1,\), expected \(5,\)"),
        (lambda: chain_example(0).model.at([1.0, 2, 3, np.nan, 1]), "weight 3 is not finite"),
        (lambda: Example.of(LinearModel(FactorGraph.from_tables([2], [(0,)], [[0.0, -np.inf]]), np.zeros((2, 1))), [1]),
         "the model forbids the true labels"),
        (lambda: Example.of(chain_example(0).model, [0, 0, 0], loss=[1.0, np.inf, 1.0]), "not finite"),
        (lambda: StructuredSVM(0.0), "regularisation is 0.0, expected a number above 0"),
        (lambda: StructuredSVM(epochs=0), "epochs is 0"),
        (lambda: StochasticDescent("svm"), "target is 'svm', expected one of hinge, likelihood"),  # type: ignore[arg-type]
        (lambda: StochasticDescent(step=-1.0), "step -1.0, expected numbers above 0"),
        (lambda: StochasticDescent(samples=0), "samples 0, expected at least 1"),
        (lambda: StructuredSVM().fit([]), "no examples, expected"),
        (lambda: StructuredSVM().fit([chain_example(0), grown()]), r"models of \[5, 10\] weights"),
        (lambda: log_likelihood(chain_example(0), np.zeros(5), samples=0), "samples is 0, expected at least 1"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(call: Any, said: str) -> None:
    refuses(MapMRFError, said, call)


# -- hinge loss -------------------------------------------------------------------------------------------------------


@given(with_weights(soft_recipes(max_vars=5)), SEEDS)
def test_the_hinge_loss_is_the_largest_violation(recipe: Recipe, seed: int) -> None:
    model, random = random_model(recipe, seed), np.random.default_rng(seed)
    rows = [random.random(k) for k in model.graph.card]
    example = Example.of(model, random.integers(0, model.graph.card), rows if seed % 2 else None)
    weights = random.normal(size=4)
    found, graph = hinge_loss(example, weights), model.at(weights)
    worst = max(example.loss(y) + graph.value(y) for y in labellings(graph)) - graph.value(example.truth)
    assert found.exact
    assert found.value == pytest.approx(worst, abs=1e-9)
    assert example.loss(found.labels) + graph.value(found.labels) - graph.value(example.truth) == pytest.approx(worst)


@pytest.mark.parametrize("seed", range(5))
def test_the_subgradient_is_that_of_finite_differences(seed: int) -> None:
    example, random = chain_example(seed), np.random.default_rng(seed + 100)
    weights, h = random.normal(size=5), 1e-6
    gradient = hinge_loss(example, weights).gradient
    for j, unit in enumerate(np.eye(5)):
        up, down = (hinge_loss(example, weights + s * h * unit).value for s in (1, -1))
        assert gradient[j] == pytest.approx((up - down) / (2 * h), abs=1e-4)


def test_inference_that_misses_the_truth_does_not_make_the_loss_negative() -> None:
    edges = lattice_pairs((6, 6), (0, 1))
    random = np.random.default_rng(0)
    example = Example.of(
        LinearModel.pairwise(random.normal(size=(36, 2)), edges, n_states=3), random.integers(0, 3, 36)
    )
    for scale in (0.0, 1.0, 10.0):
        weights = scale * random.normal(size=example.model.n_weights)
        assert hinge_loss(example, weights, ("icm", {"max_iterations": 1})).value >= 0


# -- structured SVM ---------------------------------------------------------------------------------------------------


def svm_by_slsqp(examples: list[Example], regularisation: float) -> tuple[np.ndarray, float]:
    """The quadratic program over weights and slacks, with a row for every labelling, by scipy."""
    n, m = len(examples), examples[0].model.n_weights
    rows, loss = [], []
    for i, example in enumerate(examples):
        graph = example.model.graph
        value = [[example.model.at(unit).value(y) for unit in np.eye(m)] for y in labellings(graph)]
        truth = np.array([example.model.at(unit).value(example.truth) for unit in np.eye(m)])
        for y, features in zip(labellings(graph), np.array(value), strict=True):
            rows.append(np.concatenate([truth - features, np.eye(n)[i]]))
            loss.append(float(np.count_nonzero(y != example.truth)))
    matrix, bound = np.array(rows), np.array(loss)
    found = optimize.minimize(
        lambda x: regularisation / 2 * x[:m] @ x[:m] + x[m:].mean(),
        np.concatenate([np.zeros(m), np.full(n, 3.0)]),
        jac=lambda x: np.concatenate([regularisation * x[:m], np.full(n, 1 / n)]),
        constraints={"type": "ineq", "fun": lambda x: matrix @ x - bound, "jac": lambda x: matrix},
        method="SLSQP",
        options={"ftol": 1e-12, "maxiter": 500},
    )
    assert found.success
    return found.x[:m], float(found.fun)


@pytest.mark.parametrize("averaging", [True, False])
@pytest.mark.parametrize("regularisation", [0.05, 0.5])
def test_frank_wolfe_solves_the_quadratic_program(averaging: bool, regularisation: float) -> None:
    examples = [chain_example(seed) for seed in range(4)]
    weights, optimum = svm_by_slsqp(examples, regularisation)
    tol = 2e-2 if averaging else 1e-7
    training = StructuredSVM(regularisation, epochs=120, tol=tol, averaging=averaging, inference="exhaustive")
    trained = training.fit(examples)
    last = trained.history[-1]
    assert trained.status == "converged"
    assert last.dual - 1e-9 <= optimum <= last.objective + 1e-9
    assert last.gap <= 3 * tol  # of the largest loss, which is 3
    assert last.objective == pytest.approx(optimum, abs=3 * tol + 1e-6)
    assert np.linalg.norm(trained.weights - weights) <= np.sqrt(2 * last.gap / regularisation) + 1e-6


def test_the_gap_falls_and_the_dual_rises() -> None:
    training = StructuredSVM(0.1, epochs=12, tol=-1.0, averaging=False, check_every=2)
    history = training.fit([chain_example(seed) for seed in range(5)]).history
    duals = [point.dual for point in history]
    assert [point.epoch for point in history] == [2, 4, 6, 8, 10, 12]
    assert duals == sorted(duals)
    assert history[-1].gap < 0.2 * history[0].gap or history[-1].gap < 1e-6
    assert all(point.exact and point.gap >= -1e-12 for point in history)


def test_a_fixed_part_of_the_potentials_is_not_learnt() -> None:
    """With the right answer in the fixed part, no weight is needed."""
    example = chain_example(0)
    sure = loss_proof(example, 5.0)
    trained = StructuredSVM(0.1, tol=1e-6).fit([Example.of(sure, example.truth)])
    assert np.allclose(trained.weights, 0.0)
    assert trained.history[-1].objective == pytest.approx(0.0, abs=1e-12)


def loss_proof(example: Example, margin: float) -> LinearModel:
    graph = example.model.graph
    theta_v = np.zeros(len(graph.theta_v))
    theta_v[graph.var_ptr[:-1] + example.truth] = margin
    fixed = FactorGraph.from_pairwise(theta_v.reshape(-1, 2), CHAIN, np.zeros((2, 2)))
    return LinearModel(fixed, example.model.matrix)


def test_the_classifier_is_the_svm_and_serves_scikit_learn() -> None:
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score

    examples = [chain_example(seed) for seed in range(6)]
    models, truths = [each.model for each in examples], [each.truth for each in examples]
    classifier = learn.StructuredClassifier(regularisation=0.3, epochs=4)
    refuses(OptionError, "not fitted, expected a call of `fit`", classifier.predict, models)
    learned = clone(classifier).fit(models, truths)
    weights = StructuredSVM(0.3, epochs=4).fit(examples).weights
    assert learned.trained_.weights.tolist() == weights.tolist() and repr(learned.trained_).startswith("Trained(")
    found = [mapmrf.solve(model.at(weights), "exhaustive").labels for model in models]
    assert [labels.tolist() for labels in learned.predict(models)] == [labels.tolist() for labels in found]
    assert learned.score(models, truths) == np.mean(np.concatenate(found) == np.concatenate(truths))
    assert len(cross_val_score(classifier, models, truths, cv=3)) == 3
    search = GridSearchCV(classifier, {"regularisation": [0.01, 5.0], "averaging": [True]}, cv=2).fit(models, truths)
    assert search.best_estimator_.get_params() == classifier.get_params() | search.best_params_
    refuses(OptionError, "there is no option 'C', expected one of regularisation", classifier.set_params, C=1.0)
    refuses(OptionError, "6 models and the labels of 2", classifier.fit, models, truths[:2])


# -- perturb and MAP --------------------------------------------------------------------------------------------------


def exact_log_likelihood(example: Example, weights: np.ndarray) -> float:
    graph = example.model.at(weights)
    return graph.value(example.truth) - float(np.logaddexp.reduce([graph.value(y) for y in labellings(graph)]))


def test_without_factors_the_estimate_is_unbiased() -> None:
    model = LinearModel.pairwise(np.random.default_rng(0).normal(size=(3, 2)), np.zeros((0, 2), dtype=int), n_states=2)
    example, weights = Example.of(model, [0, 1, 1]), np.random.default_rng(1).normal(size=model.n_weights)
    found = log_likelihood(example, weights, samples=400)
    assert abs(found.value - exact_log_likelihood(example, weights)) < 5 * found.error


@pytest.mark.parametrize("seed", range(2))
def test_on_trees_it_stays_below_the_exact_value_and_follows_it(seed: int) -> None:
    example, random = chain_example(seed), np.random.default_rng(seed)
    tried = [scale * random.normal(size=5) for scale in np.linspace(0.1, 3, 8)]
    found = [log_likelihood(example, weights, samples=80, seed=7) for weights in tried]
    exact = [exact_log_likelihood(example, weights) for weights in tried]
    assert all(each.value <= truth + 5 * each.error for each, truth in zip(found, exact, strict=True))
    assert stats.spearmanr([each.value for each in found], exact).statistic > 0.85


def test_its_gradient_is_that_of_finite_differences_with_the_same_noise() -> None:
    example, weights, h = chain_example(3), np.random.default_rng(5).normal(size=5), 1e-6
    gradient = log_likelihood(example, weights, samples=20, seed=2).gradient
    for j, unit in enumerate(np.eye(5)):
        up, down = (log_likelihood(example, weights + s * h * unit, samples=20, seed=2).value for s in (1, -1))
        assert gradient[j] == pytest.approx((up - down) / (2 * h), abs=1e-4)


# -- training in general ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["hinge", "likelihood"])
def test_stochastic_descent_comes_near_the_optimum_of_its_target(target: Any) -> None:
    examples = [chain_example(seed) for seed in range(4)]
    trained = StochasticDescent(target, 0.1, epochs=100 if target == "hinge" else 25, samples=2).fit(examples)
    assert trained.status == "epoch_limit"
    norm = 0.05 * trained.weights @ trained.weights
    if target == "hinge":
        value = norm + np.mean([hinge_loss(example, trained.weights).value for example in examples])
        assert value == pytest.approx(svm_by_slsqp(examples, 0.1)[1], rel=0.03)
    else:

        def exact(weights: np.ndarray) -> float:
            return 0.05 * weights @ weights - np.mean([exact_log_likelihood(each, weights) for each in examples])

        best, first = optimize.minimize(exact, np.zeros(5)).fun, exact(np.zeros(5))
        assert exact(trained.weights) - best < 0.25 * (first - best)


TRAININGS = [StructuredSVM(0.1, epochs=7, check_every=1, tol=-1.0), StochasticDescent("hinge", epochs=7)]
every_training = pytest.mark.parametrize("training", TRAININGS, ids=lambda each: type(each).__name__)


@every_training
def test_same_seed_same_weights(training: Any) -> None:
    examples = [chain_example(seed) for seed in range(4)]
    assert training.fit(examples).weights.tolist() == training.fit(examples).weights.tolist()


@every_training
def test_a_callback_sees_every_epoch_and_may_stop(training: Any) -> None:
    seen: list[int] = []

    def stop(point: learn.TrainingPoint) -> bool:
        seen.append(point.epoch)
        return len(seen) == 3

    trained = training.fit([chain_example(0), chain_example(1)], stop)
    assert seen == [1, 2, 3] == [point.epoch for point in trained.history]
    assert trained.status == "interrupted"
    assert trained.weights.tolist() == trained.history[-1].weights.tolist()


@every_training
def test_ctrl_c_returns_the_weights_so_far(training: Any) -> None:
    def interrupt(point: learn.TrainingPoint) -> None:
        if point.epoch == 2:
            signal.raise_signal(signal.SIGINT)

    trained = training.fit([chain_example(0), chain_example(1)], interrupt)
    assert trained.status == "interrupted"
    assert len(trained.history) == 2
    assert trained.weights.tolist() == trained.history[-1].weights.tolist()


# -- quick inference --------------------------------------------------------------------------------------------------


def random_grid(seed: int) -> FactorGraph:
    """Frustrated: TRW-S proves nothing."""
    return grid(15, 15, coupling=2.0, seed=seed)


@given(with_weights(any_recipes()))
def test_tiny_models_are_solved_exactly(recipe: Recipe) -> None:
    graph = recipe.graph()
    result = solve_quickly(graph)
    best = brute_force(graph)[0]
    assert result.value == (pytest.approx(best) if np.isfinite(best) else best)
    assert result.status in (Status.OPTIMAL, Status.INFEASIBLE)


def test_quick_inference_proves_tight_relaxations_and_continues() -> None:
    assert solve_quickly(potts_image(40, 40, labels=5).graph).status is Status.OPTIMAL
    graph = random_grid(1)
    first = solve_quickly(graph)
    second = solve_quickly(graph, initial=first)
    assert second.value >= first.value
    assert second.bound < first.bound  # type: ignore[operator]


@pytest.mark.parametrize("seed", range(3))
def test_no_flip_of_one_or_two_variables_improves_the_answer(seed: int) -> None:
    graph = random_grid(seed)
    result = solve_quickly(graph)
    assert mapmrf.solve(graph, mapmrf.Flips(depth=DEPTH), initial=result.labels).value == result.value
    assert result.value >= mapmrf.solve(graph, "trws", max_iterations=ITERATIONS).value
    assert result.bound is not None and result.bound >= result.value


def test_the_work_is_limited_by_iterations_and_not_by_time() -> None:
    """What keeps a call short is no clock: the same call gives the same answer on any machine."""
    results = [solve_quickly(random_grid(0)) for _ in range(2)]
    assert results[0].labels.tolist() == results[1].labels.tolist()
    assert results[0].method == "trws" and results[0].options["max_iterations"] == ITERATIONS
    assert sum(point.phase == "" for point in results[0].trace) <= ITERATIONS


def test_methods_by_name_with_options_and_as_objects() -> None:
    graph = random_grid(2)
    plain = mapmrf.solve(graph, "icm", starts=3, seed=4)
    for inference in (("icm", {"starts": 3}), mapmrf.ICM(starts=3)):
        assert infer(graph, inference, seed=4).labels.tolist() == plain.labels.tolist()
    assert infer(graph).labels.tolist() == solve_quickly(graph).labels.tolist()
    refuses(UnknownName, "no method is named 'quickest'", infer, graph, "quickest")
    refuses(OptionError, "icm has no option 'tricks'", infer, graph, ("icm", {"tricks": 1}))
