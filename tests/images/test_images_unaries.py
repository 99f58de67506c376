"""Unaries of pictures: probabilities, differences, colour models and stereo, against formulas written out plainly."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

import mapmrf
from mapmrf import GraphError, OptionError, images
from refusals import refuses

RNG = np.random.default_rng(11)


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
