"""Segmentation, denoising and stereo in one call: the model that they say they solve, and clear refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

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

    monkeypatch.setattr(solving, "solve", spy)
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
    answer = images.segment(picture, 3, weight=0.2, label_costs=[0.5, 1.5, 0.5], method="exhaustive")
    plain, priced = solved
    prices = np.array([0.5, 1.5, 0.5])
    best = max(
        itertools.product(range(3), repeat=5), key=lambda x: plain.value(x) - prices[np.unique(np.array(x))].sum()
    )
    assert answer.labels[0].tolist() == list(best)
    assert answer.result.value == pytest.approx(plain.value(best) - prices[np.unique(np.array(best))].sum())
    assert priced.n_vars == 8


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
    answer = images.denoise(picture, levels, noise=0.4, weight=0.3, truncation=2.0, method="exhaustive")
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
    answer = images.denoise(noisy, 16, method="trws", time_limit=None)
    assert answer.image.shape == shape
    assert np.abs(answer.image - truth).mean() < 0.6 * np.abs(noisy - truth).mean()


@pytest.mark.usefixtures("solved")
def test_channels_are_denoised_separately() -> None:
    colour = RNG.random((6, 7, 3))
    levels = np.linspace(0, 1, 5)
    together = images.denoise(colour, levels, noise=0.2, channel_axis=-1, method="trws")
    apart = [images.denoise(colour[..., c], levels, noise=0.2, method="trws") for c in range(3)]
    assert together.image.shape == together.labels.shape == colour.shape
    assert together.result.value == pytest.approx(sum(answer.result.value for answer in apart), rel=1e-6)
    first = images.denoise(np.moveaxis(colour, -1, 0), levels, noise=0.2, channel_axis=0, method="trws")
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


# -- what all of them share -------------------------------------------------------------------------------------------


def test_options_reach_the_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def spy(graph: FactorGraph, method: Any, **options: Any) -> mapmrf.Result:
        seen.append({"method": method, **options})
        return mapmrf.solve(graph, method, **options)

    monkeypatch.setattr(solving, "solve", spy)
    method = mapmrf.ICM(starts=2)
    chosen: dict[str, Any] = {"method": method, "time_limit": 9.0, "gap_tolerance": 0.5, "threads": 2, "seed": 7}
    left, right = shifted(1)
    images.segment(GREY, MARKED, **chosen)
    images.denoise(GREY, 4, **chosen)
    images.stereo(left, right, 3, **chosen)
    assert len(seen) == 3
    for options in seen:
        assert {name: options[name] for name in chosen} == chosen


REFUSED: list[tuple[Any, dict[str, Any], type[mapmrf.MapMRFError], str]] = [
    (images.segment, {"seeds": 1}, OptionError, "seeds is 1, expected scribbles, or a number of labels from 2 to 80"),
    (
        images.segment,
        {"seeds": MARKED[:3]},
        GraphError,
        r"the image has shape \(8, 10\), expected \(3, 10\) or \(3, 10, C\)",
    ),
    (images.segment, {"weight": -1.0}, OptionError, "weight is -1.0"),
    (images.segment, {"floor": 2.0}, OptionError, "floor is 2.0"),
    (images.segment, {"mask": np.ones((2, 2), dtype=bool)}, GraphError, r"mask is bool of shape \(2, 2\)"),
    (images.segment, {"spacing": (1.0,)}, OptionError, r"spacing is \[1.0\], expected 2 numbers"),
    (images.segment, {"label_costs": [1.0]}, GraphError, r"label_costs have shape \(1,\)"),
    (images.segment, {"image": np.full(BLOCK.shape, np.nan)}, GraphError, "the image holds nan"),
    (images.segment, {"time_limit": -1.0}, OptionError, "time_limit is -1.0|time limit"),
    (images.segment, {"method": "cut"}, mapmrf.UnknownName, "cut"),
    (images.denoise, {"values": 1}, OptionError, "values is 1, expected at least 2 grey levels"),
    (images.denoise, {"values": 2.5}, OptionError, "values is 2.5"),
    (images.denoise, {"noise": 0.0}, OptionError, "noise is 0.0, expected a finite number above 0"),
    (images.denoise, {"weight": -1.0}, OptionError, "weight is -1.0"),
    (images.denoise, {"truncation": -1.0}, OptionError, "truncation is -"),
    (
        images.denoise,
        {"missing": np.ones(BLOCK.shape)},
        GraphError,
        r"missing is float64 of shape \(8, 10\), expected bool",
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
