"""Unaries of pictures, against formulas written out plainly, and the calls that solve a whole task with them."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import mapmrf
from mapmrf import FactorGraph, GraphError, OptionError, images
from mapmrf.images import solving
from refusals import refuses

RNG = np.random.default_rng(5)
BLOCK = np.zeros((8, 10), dtype=np.int64)
BLOCK[2:6, 3:8] = 1
MARKED = np.full((8, 10), -1)
MARKED[0, 1:9], MARKED[3:5, 4:7] = 0, 1
GREY = 0.2 + 0.6 * BLOCK + np.random.default_rng(1).normal(0, 0.08, BLOCK.shape)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[FactorGraph]:
    """The models that are solved."""
    models: list[FactorGraph] = []

    def spy(graph: FactorGraph, *arguments: Any, **options: Any) -> mapmrf.Result:
        models.append(graph)
        return mapmrf.solve(graph, *arguments, **options)

    monkeypatch.setattr(solving, "solve_model", spy)
    return models


# -- segment ----------------------------------------------------------------------------------------------------------


def test_segment_solves_the_model_of_its_parts(solved: list[FactorGraph]) -> None:
    answer = images.segment(GREY, MARKED, weight=4.0, sigma=0.2, floor=0.1, components=2, neighbours=8)
    unary = images.unary_from_seeds(GREY, MARKED, components=2)
    weights = images.contrast_weights(GREY, 4.0, neighbours=8, sigma=0.2, floor=0.1)
    graph = images.grid_model(unary, weight=weights)
    assert np.array_equal(solved[0].theta_v, graph.theta_v)
    assert np.array_equal(solved[0].weight, graph.weight)
    assert answer.result.value == pytest.approx(graph.value(answer.labels.ravel()))
    assert np.array_equal(answer.image, BLOCK)
    assert np.array_equal(np.asarray(answer), BLOCK)
    assert np.asarray(answer, dtype=float).dtype == np.float64
    assert answer.result.labels.tolist() == BLOCK.ravel().tolist()


@pytest.mark.usefixtures("solved")
def test_marks_may_be_any_numbers_as_in_scikit_image() -> None:
    marks = np.select([MARKED == 0, MARKED == 1], [3, 8], 0)
    answer = images.segment(GREY, marks, unmarked=0)
    assert np.array_equal(answer.image, np.where(BLOCK == 1, 8, 3))
    assert np.array_equal(answer.labels, BLOCK)
    with pytest.raises(GraphError, match=r"every pixel is marked, expected some that are -1: .* give it as unmarked"):
        images.segment(GREY, marks)
    refuses(GraphError, "no pixel is marked: all seeds are 4", images.segment, GREY, np.full(GREY.shape, 4), unmarked=4)


def test_pixels_outside_of_the_mask_stay_unmarked(solved: list[FactorGraph]) -> None:
    keep = np.ones(BLOCK.shape, dtype=bool)
    keep[:, 9] = keep[7] = False
    colour = np.stack([GREY, 1 - GREY, GREY], axis=0)
    colour[:, ~keep] = np.nan
    answer = images.segment(colour, MARKED, mask=keep, channel_axis=0, components=1)
    assert solved[0].n_vars == keep.sum()
    assert np.array_equal(answer.image, np.where(keep, BLOCK, -1))


@pytest.mark.usefixtures("solved")
def test_a_volume_is_segmented_like_a_picture() -> None:
    truth = np.stack([BLOCK] * 4)
    noisy = truth + RNG.normal(0, 0.2, truth.shape)
    seeds = np.full(truth.shape, -1)
    seeds[1] = MARKED
    answer = images.segment(noisy, seeds, spacing=(2.0, 1.0, 1.0), components=1)
    assert np.array_equal(answer.image, truth)


@pytest.mark.usefixtures("solved")
def test_a_number_of_labels_groups_by_colour_and_costs_of_labels_merge_groups() -> None:
    picture = np.repeat([0.0, 1.0, 4.0, 5.0], 6)[None] * np.ones((5, 1)) + RNG.normal(0, 0.1, (5, 24))
    plain = images.segment(picture, 4, weight=1.0)
    assert np.array_equal(plain.image, np.repeat(np.arange(4), 6)[None].repeat(5, axis=0))
    dear = images.segment(picture, 4, weight=1.0, label_costs=1e5)
    assert len(np.unique(dear.image)) == 1
    assert dear.result.labels.size == picture.size + 4


def test_label_costs_give_the_best_of_all_labellings(solved: list[FactorGraph]) -> None:
    picture = np.array([[0.0, 0.1, 0.5, 0.6, 0.9]])
    answer = images.segment(picture, 3, weight=0.2, label_costs=[0.5, 1.5, 0.5], solve="exhaustive")
    plain, priced = solved
    prices = np.array([0.5, 1.5, 0.5])
    best = max(
        itertools.product(range(3), repeat=5), key=lambda x: plain.value(x) - prices[np.unique(np.array(x))].sum()
    )
    assert answer.labels[0].tolist() == list(best)
    assert answer.result.value == pytest.approx(plain.value(best) - prices[np.unique(np.array(best))].sum())
    assert priced.n_vars == 8


def test_markers_whose_colours_say_nothing_are_joined_by_contrast_alone() -> None:
    """Marked are the darkest of a background that brightens to one side, and the brightest of the objects."""
    background = np.linspace(0.0, 0.6, 10)[None].repeat(8, axis=0)
    picture = np.where(BLOCK == 1, background + 0.3, background)
    marks = np.select([picture < 0.1, (picture > 0.75) & (BLOCK == 1)], [1, 2], 0)
    for weight in (0.1, 30.0):
        answer = images.segment(picture, marks, unmarked=0, components=0, weight=weight)
        assert np.array_equal(answer.labels, BLOCK)
    assert not np.array_equal(images.segment(picture, marks, unmarked=0, weight=0.1).labels, BLOCK)


def test_labels_are_given_up_only_where_that_pays() -> None:
    unary = np.array([[[0.0, -9.0, -9.0], [0.0, -9.0, -9.0], [-3.0, -9.0, 0.0], [-9.0, 0.0, -9.0]]])
    graph = images.grid_model(unary, weight=0.1, label_costs=[1.0, 1.0, 4.0])
    start = solving.give_up_labels(graph, np.array([0, 0, 2, 1]), 3)
    assert start.tolist() == [0, 0, 0, 1, 1, 1, 0]
    assert np.isfinite(graph.value(start))


# -- denoise ----------------------------------------------------------------------------------------------------------


def test_denoise_solves_the_model_of_its_formula(solved: list[FactorGraph]) -> None:
    levels = np.array([0.0, 0.5, 2.0])
    picture = RNG.random((2, 3))
    answer = images.denoise(picture, levels, noise=0.4, weight=0.3, truncation=2.0, solve="exhaustive")
    pairs = [((r, c), (r, c + 1)) for r in range(2) for c in range(2)] + [((0, c), (1, c)) for c in range(3)]

    def value(labels: tuple[int, ...]) -> float:
        x = levels[np.reshape(labels, (2, 3))]
        loss = sum(0.3 * min(abs(x[p] - x[q]) / 0.4, 2.0) for p, q in pairs)
        return float(-((x - picture) ** 2).sum() / (2 * 0.4**2) - loss)

    best = max(itertools.product(range(3), repeat=6), key=value)
    assert solved[0].value(best) == pytest.approx(value(best))
    assert answer.result.value == pytest.approx(value(best))
    assert answer.labels.ravel().tolist() == list(best)
    assert np.array_equal(answer.image, levels[answer.labels])


@pytest.mark.usefixtures("solved")
@pytest.mark.parametrize("shape", [(400,), (40, 30), (9, 12, 10)])
def test_denoise_knows_the_noise_and_comes_nearer_to_the_truth(shape: tuple[int, ...]) -> None:
    truth = 50.0 * (np.indices(shape)[0] > shape[0] // 2) + 20.0
    noisy = truth + RNG.normal(0, 5.0, shape)
    answer = images.denoise(noisy, 16, solve={"method": "trws", "time_limit": None})
    assert answer.image.shape == shape
    assert np.abs(answer.image - truth).mean() < 0.6 * np.abs(noisy - truth).mean()


@pytest.mark.usefixtures("solved")
def test_channels_are_denoised_separately() -> None:
    colour = RNG.random((6, 7, 3))
    levels = np.linspace(0, 1, 5)
    together = images.denoise(colour, levels, noise=0.2, solve="trws")
    apart = [images.denoise(colour[..., c], levels, noise=0.2, solve="trws") for c in range(3)]
    assert together.image.shape == together.labels.shape == colour.shape
    assert together.result.value == pytest.approx(sum(answer.result.value for answer in apart), rel=1e-6)
    first = images.denoise(np.moveaxis(colour, -1, 0), levels, noise=0.2, channel_axis=0, solve="trws")
    assert np.array_equal(np.moveaxis(first.image, 0, -1), together.image)


@pytest.mark.usefixtures("solved")
def test_missing_pixels_are_filled_in_and_pixels_outside_of_the_mask_kept() -> None:
    picture = np.where(BLOCK == 1, 9.0, 1.0)
    lost, keep = np.zeros(BLOCK.shape, dtype=bool), np.ones(BLOCK.shape, dtype=bool)
    lost[3, 4] = lost[0, 0] = True
    keep[7, 9] = False
    damaged = picture.copy()
    damaged[lost], damaged[7, 9] = np.nan, 123.0
    answer = images.denoise(damaged, [1.0, 5.0, 9.0], noise=0.5, missing=lost, mask=keep)
    assert answer.image[7, 9] == 123.0
    assert answer.labels[7, 9] == -1
    assert np.array_equal(answer.image[keep], picture[keep])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "bool", "float32", "float64"])
def test_pictures_keep_their_type(dtype: str) -> None:
    most = 200 if dtype == "uint8" else 1
    noisy = (most * (GREY > 0.5)).astype(dtype)
    answer = images.denoise(noisy, 9, noise=0.2)
    assert answer.image.dtype == noisy.dtype
    assert np.array_equal(answer.image, noisy)
    halves = images.denoise(noisy, [0.5, 1.5], noise=0.2).image
    assert halves.dtype == (dtype if dtype.startswith("float") else np.float64)


# -- stereo -----------------------------------------------------------------------------------------------------------


def shifted(by: int) -> tuple[np.ndarray, np.ndarray]:
    right = np.random.default_rng(2).random((16, 30, 3))
    left = np.roll(right, by, axis=1)
    return left, right


def test_stereo_solves_the_model_of_its_parts(solved: list[FactorGraph]) -> None:
    left, right = shifted(4)
    answer = images.stereo(left, right, [0, 2, 4, 6], window=3, weight=0.7, floor=0.2, sigma=0.5, truncation=3.0)
    unary = images.unary_from_stereo(left, right, [0, 2, 4, 6], matching="census", window=3, weight=8.0)
    weights = images.contrast_weights(left, 0.7, sigma=0.5, floor=0.2, channel_axis=-1)
    graph = images.grid_model(unary, "linear", weight=weights, truncation=3.0, values=[0, 2, 4, 6])
    assert np.array_equal(solved[0].theta_v, graph.theta_v)
    assert np.array_equal(solved[0].theta_t, graph.theta_t)
    assert np.array_equal(solved[0].weight, graph.weight)
    assert np.all(answer.image[2:-2, 6:-2] == 4)
    assert np.all(answer.labels[2:-2, 6:-2] == 2)


@pytest.mark.usefixtures("solved")
def test_stereo_leaves_out_what_is_not_in_the_mask() -> None:
    left, right = shifted(3)
    keep = np.ones(left.shape[:2], dtype=bool)
    keep[:, :8] = False
    answer = images.stereo(np.moveaxis(left, -1, 0), np.moveaxis(right, -1, 0), 6, mask=keep, channel_axis=0)
    assert np.all(answer.image[:, :8] == -1)
    assert np.all(answer.image[3:-3, 8:-3] == 3)


def test_labels_from_coarse_to_fine_come_near_the_best_and_keep_the_edges() -> None:
    row, column = np.indices((60, 70))
    truth = np.where((row > 20) & (row < 45) & (column > 15) & (column < 50), 30.0, 4 + row / 10)
    unary = images.unary_from_differences(truth + RNG.normal(0, 1.0, truth.shape), range(40), truncation=9.0)
    for weights in (images.contrast_weights(truth, 0.8, floor=0.5), images.contrast_weights(0 * truth, 0.8)):
        table = images.smoothness_table("linear", 40, truncation=6.0)
        graph = images.grid_model(unary, table, weight=weights)
        start = solving.coarse_to_fine(unary, table, weights, solving.Solving.of(None, "fast"))
        best = mapmrf.solve(graph, "trws", max_iterations=30)
        assert graph.value(start.ravel()) > best.value - 0.02 * abs(best.value)
        assert np.mean(np.abs(start - truth) > 2) < 0.02


# -- what all of them share -------------------------------------------------------------------------------------------


def test_arguments_of_solve_reach_the_solver_and_fast_takes_a_quick_method(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def spy(graph: FactorGraph, **options: Any) -> mapmrf.Result:
        seen.append(options)
        return mapmrf.solve(graph, **options)

    monkeypatch.setattr(solving, "solve_model", spy)
    chosen = {"method": mapmrf.ICM(starts=2), "time_limit": 9.0, "gap_tolerance": 0.5, "threads": 2, "seed": 7}
    left, right = shifted(1)
    calls = {"maxflow": (images.segment, GREY, MARKED), "expansion": (images.segment, GREY, 3)}
    calls |= {"trws": (images.denoise, GREY, 4), "icm": (images.stereo, left, right, 12)}
    for method, (call, *given) in calls.items():
        call(*given, solve=chosen, preset="fast")
        assert 8.0 < seen[-1].pop("time_limit") <= 9.0  # of which the start of `stereo` takes a part
        assert all(seen[-1][name] == value for name, value in chosen.items() if name != "time_limit")
        assert call(*given, preset="fast").result.method == method
        assert call(*given, solve="icm").result.method == "icm"
        assert (seen[-1]["gap_tolerance"], seen[-1]["time_limit"] <= 30) == (1e-4, True)


def test_the_axis_of_channels_is_guessed_as_for_photographs_and_refused_where_it_may_be_either() -> None:
    colour = np.stack([GREY, 1 - GREY, GREY], axis=-1)
    answer = images.segment(colour, 2)
    assert answer.image.shape == GREY.shape
    assert np.array_equal(answer.image, images.segment(np.moveaxis(colour, -1, 0), 2, channel_axis=0).image)
    assert images.segment(colour, 2, channel_axis=None).image.shape == colour.shape
    keep = np.ones(GREY.shape, dtype=bool)
    for five in (np.dstack([GREY] * 5), colour):
        assert images.segment(five, 2, mask=keep).image.shape == GREY.shape
        assert images.segment(five, 2, mask=np.dstack([keep] * five.shape[-1])).image.shape == five.shape
        assert images.denoise(five, 4, missing=~keep | (GREY > 9)).result.labels.size == five.size
    assert set(images.contrast_weights(colour)) == {(0, 1), (1, 0)}
    with pytest.raises(GraphError, match=r"\(3, 8, 10\): give channel_axis=0 if the first axis holds channels, None"):
        images.denoise(np.moveaxis(colour, -1, 0))


REFUSED: list[tuple[Any, dict[str, Any], type[mapmrf.MapMRFError], str]] = [
    (images.segment, {"seeds": 1}, OptionError, "seeds is 1, expected scribbles, or a number of labels from 2 to 80"),
    (images.segment, {"seeds": MARKED[:3]}, GraphError, "the image has shape (8, 10), expected (3, 10) or (3, 10, C)"),
    (images.segment, {"weight": -1.0}, OptionError, "weight is -1.0"),
    (images.segment, {"floor": 2.0}, OptionError, "floor is 2.0"),
    (images.segment, {"mask": np.ones((2, 2), dtype=bool)}, GraphError, r"mask is bool of shape \(2, 2\)"),
    (images.segment, {"spacing": (1.0,)}, OptionError, r"spacing is \[1.0\], expected 2 numbers"),
    (images.segment, {"label_costs": [1.0]}, GraphError, r"label_costs have shape \(1,\)"),
    (images.segment, {"image": np.full(BLOCK.shape, np.nan)}, GraphError, "the image holds nan"),
    (images.segment, {"components": -1}, OptionError, "components is -1, expected at least 0"),
    (images.segment, {"channel_axis": "last"}, OptionError, "channel_axis is 'last', expected the number of an axis"),
    (images.segment, {"preset": "slow"}, OptionError, "preset is 'slow', expected one of default, fast"),
    (images.segment, {"solve": 3}, OptionError, "solve is 3, expected a method, or a dict of arguments of mapmrf"),
    (images.segment, {"solve": {"time_limit": -1.0}}, OptionError, "time_limit is -1.0"),
    (images.segment, {"solve": "cut"}, mapmrf.UnknownName, "cut"),
    (images.denoise, {"values": 1}, OptionError, "values is 1, expected at least 2 grey levels"),
    (images.denoise, {"values": 2.5}, OptionError, "values is 2.5"),
    (images.denoise, {"noise": 0.0}, OptionError, "noise is 0.0, expected a finite number above 0"),
    (images.denoise, {"weight": -1.0}, OptionError, "weight is -1.0"),
    (images.denoise, {"truncation": -1.0}, OptionError, "truncation is -"),
    (
        images.denoise,
        {"missing": np.ones(BLOCK.shape)},
        GraphError,
        "missing is float64 of shape (8, 10), expected",
    ),
    (images.denoise, {"missing": np.ones(BLOCK.shape, dtype=bool)}, GraphError, "no pixel is known"),
    (images.denoise, {"image": [[np.nan, 1.0]]}, GraphError, "the image holds nan"),
    (images.denoise, {"neighbours": 6}, OptionError, "neighbours is 6, expected 4 or 8"),
    (images.denoise, {"spacing": (0.0, 1.0)}, OptionError, "spacing is"),
    (images.stereo, {"right": np.zeros((4, 30, 3))}, GraphError, "the images have shapes"),
    (images.stereo, {"window": 4}, OptionError, "window is 4"),
    (images.stereo, {"disparities": 40}, OptionError, "disparities are 0 to 39"),
    (images.stereo, {"mask": np.ones((2, 2), dtype=bool)}, GraphError, "mask is"),
]
GIVEN: dict[Any, dict[str, Any]] = {
    images.segment: {"image": GREY, "seeds": MARKED},
    images.denoise: {"image": GREY},
    images.stereo: {"left": shifted(1)[0], "right": shifted(1)[1], "disparities": 3},
}


@pytest.mark.parametrize(("call", "options", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused(call: Any, options: Any, error: type[mapmrf.MapMRFError], text: str) -> None:
    refuses(error, text, call, **GIVEN[call] | options)


# -- probabilities and differences ------------------------------------------------------------------------------------


def test_zeros_stay_forbidden_unless_a_floor_is_asked_for() -> None:
    p = np.array([[[0.25, 0.75, 0.0], [1.0, 0.0, 1e-30]]])
    unary = images.unary_from_probabilities(p)
    assert unary[0, 0].tolist() == [math.log(0.25), math.log(0.75), -math.inf]
    assert unary[0, 1, 2] == pytest.approx(math.log(1e-30))
    raised = images.unary_from_probabilities(p, floor=1e-6)
    assert raised.min() == pytest.approx(math.log(1e-6))
    assert raised[0, 0, 1] == unary[0, 0, 1]


def test_probabilities_that_are_none_are_refused() -> None:
    with pytest.raises(GraphError, match=r"probability at \(0, 0, 1\) is -1.5.*already log potentials"):
        images.unary_from_probabilities([[[0.0, -1.5]]])
    refuses(GraphError, "is nan", images.unary_from_probabilities, [[[0.5, np.nan]]])
    with pytest.raises(GraphError, match=r"all classes have probability 0 at pixel \(0, 1\)"):
        images.unary_from_probabilities([[[0.5, 0.5], [0.0, 0.0]]])
    refuses(OptionError, "floor is 0", images.unary_from_probabilities, [[[0.5, 0.5]]], floor=0)


@pytest.mark.parametrize("difference", ["squared", "absolute"])
@pytest.mark.parametrize("truncation", [None, 0.2])
def test_differences_follow_their_formula(difference: str, truncation: float | None) -> None:
    image, values = RNG.random((3, 4, 3)), RNG.random((5, 3))
    unary = images.unary_from_differences(
        image,
        values,
        difference=difference,
        truncation=truncation,
        weight=2.0,  # type: ignore[arg-type]
    )
    for r, c, k in np.ndindex(3, 4, 5):
        power = 2 if difference == "squared" else 1
        apart = sum(abs(image[r, c, i] - values[k, i]) ** power for i in range(3))
        assert unary[r, c, k] == pytest.approx(-2.0 * min(apart, math.inf if truncation is None else truncation))


def test_differences_take_signals_and_volumes_and_refuse_what_does_not_fit() -> None:
    image, values = RNG.random((2, 3, 4, 5)), RNG.random((6, 3))
    first = images.unary_from_differences(image, values, channel_axis=1)
    assert np.array_equal(first, images.unary_from_differences(np.moveaxis(image, 1, -1), values))
    signal = images.unary_from_differences([0.0, 2.0], [0.0, 1.0])
    assert signal.tolist() == [[0.0, -1.0], [-4.0, -1.0]]
    with pytest.raises(GraphError, match=r"\(2, 2, 3\) with values of shape \(4, 2\), expected"):
        images.unary_from_differences(np.zeros((2, 2, 3)), np.zeros((4, 2)))
    refuses(GraphError, "image holds nan", images.unary_from_differences, [[np.nan]], [0.0])
    refuses(OptionError, "difference is 'cubed'", images.unary_from_differences, [[0.0]], [0.0], difference="cubed")
    refuses(OptionError, "truncation is -1", images.unary_from_differences, [[0.0]], [0.0], truncation=-1)
    refuses(OptionError, "weight is -1", images.unary_from_differences, [[0.0]], [0.0], weight=-1)


def test_missing_pixels_have_no_preference_and_take_their_neighbours_label() -> None:
    picture = np.array([[1.0, 0.0, 1.0], [1.0, 0.0, 1.0]])
    missing = picture == 0.0
    unary = images.without_data(images.unary_from_differences(picture, [0.0, 1.0]), missing)
    assert np.all(unary[missing] == 0)
    result = mapmrf.solve(images.grid_model(unary, weight=0.1), "exhaustive")
    assert result.labels.tolist() == [1] * 6
    with pytest.raises(GraphError, match=r"missing is int64 of shape \(2, 3\), expected bool"):
        images.without_data(unary, missing.astype(np.int64))
    refuses(GraphError, r"of shape \(3, 2\), expected bool of shape \(2, 3\)", images.without_data, unary, missing.T)


# -- colour models ----------------------------------------------------------------------------------------------------


def test_kmeans_finds_groups_and_takes_equal_samples() -> None:
    centres = np.array([[0.0, 0.0], [5.0, 9.0], [20.0, 1.0]])
    samples = (centres[:, None] + RNG.normal(0, 0.3, (3, 50, 2))).reshape(-1, 2)
    found = images.kmeans(samples, 3, seed=3)
    assert np.abs(found - centres).max() < 0.3
    of = ((samples[:, None] - found) ** 2).sum(axis=-1).argmin(axis=1)
    for k in range(3):
        assert found[k] == pytest.approx(samples[of == k].mean(axis=0))
    assert np.array_equal(found, images.kmeans(samples, 3, seed=3))
    assert images.kmeans(np.zeros((5, 2)), 3).tolist() == [[0.0, 0.0]] * 3
    refuses(OptionError, "3 groups of 2 samples", images.kmeans, [[0.0], [1.0]], 3)
    refuses(GraphError, r"samples have shape \(2,\)", images.kmeans, [0.0, 1.0], 1)


def test_the_density_of_a_mixture_is_that_of_its_gaussians() -> None:
    means, spread = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 2, 2))
    covariances = spread @ spread.transpose(0, 2, 1) + 0.1 * np.eye(2)
    mixture = images.GaussianMixture(np.array([0.2, 0.3, 0.5]), means, covariances)
    points = RNG.normal(size=(4, 5, 2))
    expected = sum(
        w * multivariate_normal(m, c).pdf(points) for w, m, c in zip(mixture.weights, means, covariances, strict=True)
    )
    assert np.exp(mixture.log_density(points)) == pytest.approx(expected)
    refuses(GraphError, r"samples have shape \(3,\), expected \(..., 2\)", mixture.log_density, [0.0, 1.0, 2.0])


def test_a_fitted_mixture_recovers_what_the_samples_came_from_even_one_colour() -> None:
    low = RNG.multivariate_normal([0, 0], [[1.0, 0.5], [0.5, 1.0]], 3000)
    high = RNG.multivariate_normal([6, 3], [[0.5, 0.0], [0.0, 2.0]], 1000)
    mixture = images.GaussianMixture.fit(np.concatenate([low, high]), 2)
    first = int(mixture.means[0, 0] > 3)
    assert mixture.weights[first] == pytest.approx(0.75, abs=0.03)
    assert mixture.means[first] == pytest.approx([0, 0], abs=0.1)
    assert mixture.means[1 - first] == pytest.approx([6, 3], abs=0.2)
    assert mixture.covariances[first] == pytest.approx(np.array([[1.0, 0.5], [0.5, 1.0]]), abs=0.12)
    mixture = images.GaussianMixture.fit(np.full((10, 3), 0.5), 4)
    assert len(mixture.weights) == 1
    assert np.isfinite(mixture.log_density([0.5, 0.5, 0.5]))


def test_scribbles_separate_two_colours_and_stay_as_they_are_marked() -> None:
    truth = np.zeros((20, 30), dtype=int)
    truth[5:15, 8:22] = 1
    image = np.where(truth[..., None] == 1, [0.8, 0.3, 0.2], [0.2, 0.4, 0.7]) + RNG.normal(0, 0.12, (20, 30, 3))
    seeds = np.full(truth.shape, -1)
    seeds[2, 2:28], seeds[10, 10:20] = 0, 1
    seeds[0, 0] = 1  # a mark is obeyed against all appearance
    unary = images.unary_from_seeds(image, seeds, components=2)
    assert unary[0, 0, 0] == -math.inf
    result = mapmrf.solve(images.grid_model(unary, weight=2.0), "trws")
    labels = images.to_image(result, truth.shape)
    assert labels[0, 0] == 1
    assert np.mean(labels != truth) < 0.02
    assert np.isfinite(images.unary_from_seeds(image, seeds, keep_seeds=False)).all()


def test_a_few_marks_do_not_make_narrow_gaussians() -> None:
    """Equal or few samples fit themselves perfectly; what is likely nearby must stay so."""
    image = np.linspace(0.0, 1.0, 40)[None]
    seeds = np.full(image.shape, -1)
    seeds[0, :3], seeds[0, -1] = 0, 1
    unary = images.unary_from_seeds(image, seeds, keep_seeds=False)
    assert unary.argmax(axis=-1)[0, [0, -1]].tolist() == [0, 1]
    assert unary.min() > -6000
    assert unary.max() < 5


def test_scribbles_outside_of_the_mask_teach_nothing_and_none_is_refused() -> None:
    image, seeds = RNG.random((6, 7, 3)), RNG.integers(-1, 2, (6, 7))
    keep = RNG.random((6, 7)) < 0.7
    inside = images.unary_from_seeds(image[keep][None], seeds[keep][None], components=2)
    image[~keep], seeds[~keep] = np.nan, 5
    unary = images.unary_from_seeds(np.moveaxis(image, -1, 0), seeds, components=2, mask=keep, channel_axis=0)
    assert np.array_equal(unary[keep], inside[0])
    assert np.all(unary[~keep] == 0)
    refuses(GraphError, "no pixel is marked with label 0", images.unary_from_seeds, [[0.0, 1.0]], [[1, -1]])
    refuses(GraphError, "seeds go from -1 to -1", images.unary_from_seeds, [[0.0, 1.0]], [[-1, -1]])
    with pytest.raises(GraphError, match=r"the image has shape \(1, 2\), expected \(1, 1\)"):
        images.unary_from_seeds([[0.0, 1.0]], [[0]])


# -- stereo -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [1, 3])
def test_absolute_matching_follows_its_formula(window: int) -> None:
    left, right = RNG.random((5, 8, 3)), RNG.random((5, 8, 3))
    unary = images.unary_from_stereo(left, right, [0, 2], window=window, truncation=0.4, weight=3.0)
    apart = np.abs(left[:, 2:] - right[:, :-2]).mean(axis=-1)
    reach = window // 2
    padded = np.pad(apart, reach, mode="edge")
    for r, c in np.ndindex(apart.shape):
        cost = padded[r : r + window, c : c + window].mean()
        assert unary[r, c + 2, 1] == pytest.approx(-3.0 * min(cost, 0.4))


def test_census_counts_the_comparisons_that_differ() -> None:
    left, right = RNG.random((6, 7)), RNG.random((6, 7))
    unary = images.unary_from_stereo(left, right, 2, matching="census", window=3)
    one, other = np.pad(left, 1, mode="edge"), np.pad(right, 1, mode="edge")
    for r, c in np.ndindex(6, 6):
        a, b = one[r : r + 3, c + 1 : c + 4], other[r : r + 3, c : c + 3]
        differ = np.sum((a < a[1, 1]) != (b < b[1, 1])) / 8
        assert unary[r, c + 1, 1] == pytest.approx(-differ)


@pytest.mark.parametrize(("matching", "window"), [("absolute", 3), ("census", 5)])
def test_a_shifted_picture_is_found_at_its_disparity(matching: str, window: int) -> None:
    right = RNG.random((20, 40))
    left = np.empty_like(right)
    left[:, 6:] = right[:, :-6]
    left[:, :6] = RNG.random((20, 6))
    unary = images.unary_from_stereo(left, right, 10, matching=matching, window=window)  # type: ignore[arg-type]
    result = mapmrf.solve(images.grid_model(unary, "linear", weight=0.1, truncation=2), "trws")
    assert np.all(images.to_image(result, right.shape)[3:-3, 9:-3] == 6)


def test_outside_of_the_right_picture_the_cost_is_the_mean_of_all_others() -> None:
    left, right = RNG.random((3, 5)), RNG.random((3, 5))
    unary = images.unary_from_stereo(left, right, 3)
    inside = [-unary[:, d:, d] for d in range(3)]
    mean = np.concatenate([part.ravel() for part in inside]).mean()
    assert unary[:, 0, 1:] == pytest.approx(-mean)


def test_stereo_refuses_what_does_not_fit() -> None:
    one = np.zeros((4, 5))
    refuses(GraphError, "the images have shapes", images.unary_from_stereo, one, np.zeros((4, 6)), 2)
    with pytest.raises(OptionError, match="disparities are 0 to 5, expected whole numbers from 0 to 4"):
        images.unary_from_stereo(one, one, 6)
    refuses(OptionError, "disparities are none", images.unary_from_stereo, one, one, 0)
    refuses(OptionError, "matching is 'rank'", images.unary_from_stereo, one, one, 2, matching="rank")
    with pytest.raises(OptionError, match="window is 9, expected an odd number from 3 to 7"):
        images.unary_from_stereo(one, one, 2, matching="census", window=9)
    with pytest.raises(OptionError, match=r"window is 2, expected an odd number from 1$"):
        images.unary_from_stereo(one, one, 2, window=2)
    refuses(OptionError, "truncation is -1", images.unary_from_stereo, one, one, 2, truncation=-1)
    refuses(OptionError, "weight is -1", images.unary_from_stereo, one, one, 2, weight=-1)
