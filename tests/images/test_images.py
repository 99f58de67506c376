"""Models from pictures: equal to plainly built ones, exact on tiny pictures, and clear about what they refuse."""

from __future__ import annotations

import itertools
import math
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mapmrf
from mapmrf import FactorGraph, GraphError, MapMRFError, OptionError, UnknownName, images
from refusals import refuses

RNG = np.random.default_rng(7)


def every_labelling(n: int, n_labels: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(n_labels), repeat=n))


def plain_pairs(height: int, width: int, neighbours: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """All pairs of neighbouring pixels, the earlier first, found by looking at every two pixels."""
    pixels = list(itertools.product(range(height), range(width)))
    near = []
    for p, q in itertools.combinations(pixels, 2):
        rows, columns = abs(p[0] - q[0]), abs(p[1] - q[1])
        if max(rows, columns) == 1 and (neighbours == 8 or rows + columns == 1):
            near.append((p, q))
    return near


def plain_value(
    x: np.ndarray, unary: np.ndarray, offsets: Any, weight_of: Any, keep: Any = None, table: Any = None
) -> float:
    """Sum over all pixels and pairs, one by one, of Potts pairs or those of a table; only pixels of `keep` count."""
    keep = np.ones(x.shape, dtype=bool) if keep is None else keep
    table = np.eye(unary.shape[-1]) - 1 if table is None else table
    total = sum(float(unary[p][x[p]]) for p in np.ndindex(x.shape) if keep[p])
    for p in np.ndindex(x.shape):
        for offset in offsets:
            q = tuple(a + o for a, o in zip(p, offset, strict=True))
            if all(0 <= a < n for a, n in zip(q, x.shape, strict=True)) and keep[p] and keep[q]:
                total += weight_of(p, q) * table[x[p], x[q]]
    return total


def assert_same_model(graph: FactorGraph, other: FactorGraph, n_labels: int) -> None:
    assert (graph.n_vars, graph.n_factors) == (other.n_vars, other.n_factors)
    random = np.random.default_rng(0)
    for _ in range(40):
        labels = random.integers(0, n_labels, graph.n_vars)
        assert graph.value(labels) == pytest.approx(other.value(labels), abs=1e-9)


# -- grids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", images.neighbours.KINDS)
@settings(max_examples=12, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([4, 8]), st.integers(0, 99))
def test_a_grid_of_any_size_and_kind_is_the_sum_over_pairs(kind, height, width, n_labels, neighbours, seed) -> None:
    random = np.random.default_rng(seed)
    unary, values = random.normal(size=(height, width, n_labels)), np.array([0.0, 1.0, 2.5, 7.0][:n_labels])
    options = {} if kind == "potts" else {"truncation": 4.0, "values": values}
    graph = images.grid_model(unary, kind, weight=0.7, neighbours=neighbours, **options)
    apart = np.abs(np.subtract.outer(values, values))
    table = -1.0 * (apart > 0) if kind == "potts" else -np.minimum(apart ** (1 + (kind == "quadratic")), 4.0)
    assert graph.n_tables <= (1 if neighbours == 4 else 2)
    offsets = images.neighbour_offsets(2, neighbours)
    for _ in range(10):
        x = random.integers(0, n_labels, (height, width))
        expected = plain_value(x, unary, offsets, lambda p, q: 0.7 / math.dist(p, q), table=table)
        assert graph.value(x.ravel()) == pytest.approx(expected, abs=1e-9)


def test_a_table_of_ones_own_has_the_earlier_pixel_in_its_rows() -> None:
    table = np.array([[0.0, -3.0], [-0.5, -np.inf]])
    graph = images.grid_model(np.zeros((1, 2, 2)), table, weight=2.0)
    assert [graph.value(labels) for labels in ([0, 1], [1, 0], [1, 1])] == [-6.0, -1.0, -math.inf]


def test_costs_are_the_negative_of_log_potentials() -> None:
    costs = RNG.uniform(0, 3, (3, 3, 2))
    costs[1, 1, 0] = np.inf
    table = np.array([[0.0, 2.0], [1.0, 0.0]])
    graph = images.grid_model(costs, table, costs=True)
    assert_same_model(graph, images.grid_model(-costs, -table), 2)
    whole = images.grid_model(np.full((1, 2, 2), 200, dtype=np.uint8), costs=True)
    assert whole.value([0, 0]) == -400.0


def test_given_weights_are_taken_as_they_are_and_offsets_of_weight_zero_left_out() -> None:
    offsets, unary = images.neighbour_offsets(2, 8), RNG.normal(size=(3, 4, 3))
    weights = {o: RNG.uniform(0.1, 2, (3 - abs(o[0]), 4 - abs(o[1]))) for o in offsets}
    graph = images.grid_model(unary, weight=weights, neighbours=8)
    for _ in range(20):
        x = RNG.integers(0, 3, (3, 4))
        expected = plain_value(x, unary, offsets, lambda p, q: given_weight(weights, p, q))
        assert graph.value(x.ravel()) == pytest.approx(expected)
    assert graph.n_tables == 1
    assert np.array_equal(graph.weight, np.concatenate([weights[offset].ravel() for offset in offsets]))
    weights[0, 1][:] = 0
    assert images.grid_model(unary, weight=weights, neighbours=8).n_factors == graph.n_factors - 9


def given_weight(weights: dict[tuple[int, ...], np.ndarray], p: tuple[int, int], q: tuple[int, int]) -> float:
    offset = (q[0] - p[0], q[1] - p[1])
    return float(weights[offset][p[0], p[1] + min(0, offset[1])])


@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.parametrize("sigma", [None, 0.3])
def test_contrast_weights_follow_their_formula(channels: tuple[int, ...], sigma: float | None) -> None:
    image = RNG.random((4, 5, *channels))
    axis = -1 if channels else None
    weights = images.contrast_weights(image, 2.0, neighbours=8, sigma=sigma, floor=0.25, channel_axis=axis)
    pairs = plain_pairs(4, 5, 8)
    apart2 = {(p, q): float(np.sum((image[p] - image[q]) ** 2)) for p, q in pairs}
    sigma2 = np.mean(list(apart2.values())) if sigma is None else sigma**2
    for (p, q), d2 in apart2.items():
        expected = 2.0 / math.dist(p, q) * (0.25 + 0.75 * math.exp(-d2 / (2 * sigma2)))
        assert given_weight(weights, p, q) == pytest.approx(expected)


def test_a_guide_without_contrast_gives_equal_weights() -> None:
    graph = images.grid_model(np.zeros((4, 4, 2)), weight=3.0, guide=np.full((4, 4), 7))
    assert graph.n_tables == 1
    assert graph.table(0)[0, 1] == -3.0


def test_pairs_are_listed_offset_by_offset_and_row_by_row() -> None:
    """The order by which a lattice is recognised; pairs of weight 0 stay, so that it is a whole one."""
    weights = {(1, 0): np.array([[1.0, 0.0]]), (0, 1): np.array([[2.0], [3.0]])}
    graph = images.grid_model(np.zeros((2, 2, 3)), weight=weights)
    assert graph.scope.reshape(-1, 2).tolist() == [[0, 1], [2, 3], [0, 2], [1, 3]]
    assert graph.weight is not None
    assert graph.weight.tolist() == [2.0, 3.0, 1.0, 0.0]
    assert graph.scope.dtype == graph.scope_ptr.dtype == graph.table_of.dtype == np.int32


def test_a_pair_of_weight_zero_cannot_forbid_anything() -> None:
    table = np.array([[0.0, -np.inf], [-1.0, 0.0]])
    graph = images.grid_model(np.zeros((1, 3, 2)), table, weight={(0, 1): np.array([[0.0, 2.0]])})
    assert graph.scope.tolist() == [1, 2]
    assert graph.value([0, 1, 0]) == -2.0
    assert graph.value([1, 0, 1]) == -math.inf


def test_a_number_for_every_offset_is_taken_as_it_is() -> None:
    unary = RNG.normal(size=(3, 4, 3))
    by_offset = {(1, 0): 2.0, (0, 1): 0.5, (1, 1): 0.25, (0, 2): 0.125}
    graph = images.grid_model(unary, weight=by_offset)
    assert graph.weight is None
    for _ in range(20):
        x = RNG.integers(0, 3, (3, 4))
        expected = plain_value(x, unary, by_offset, lambda p, q: by_offset[q[0] - p[0], q[1] - p[1]])
        assert graph.value(x.ravel()) == pytest.approx(expected)
    mixed = images.grid_model(unary, weight={(0, 1): 0.5, (1, 0): np.full((2, 4), 2.0)})
    assert_same_model(mixed, images.grid_model(unary, weight={(0, 1): 0.5, (1, 0): 2.0}), 3)
    assert images.grid_model(unary, weight={(0, 1): 0.5, (1, 0): 0}).n_factors == 9
    assert images.grid_model(unary, weight=0).n_factors == 0


@pytest.mark.parametrize(
    ("shape", "neighbours"),
    [((7,), 2), ((4, 5), None), ((4, 5), 8), ((3, 3, 4), None), ((3, 3, 4), 18), ((3, 3, 4), 26)],
)
@pytest.mark.parametrize("with_guide", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_any_number_of_axes_with_mask_spacing_and_guide_is_the_sum_over_pairs(
    shape: tuple[int, ...], neighbours: int | None, with_guide: bool, masked: bool
) -> None:
    rng = np.random.default_rng(3)
    unary, guide = rng.normal(size=(*shape, 3)), rng.random((*shape, 2))
    keep = rng.random(shape) < 0.7 if masked else np.ones(shape, dtype=bool)
    spacing = (3.0, 0.5, 2.0)[: len(shape)]
    longest2 = {None: 1, 2: 1, 8: 2, 18: 2, 26: 3}[neighbours]
    steps = [step for step in itertools.product((-1, 0, 1), repeat=len(shape)) if step > (0,) * len(shape)]
    offsets = [step for step in steps if np.dot(step, step) <= longest2]
    ends = [(p, q) for p in np.ndindex(shape) for q in np.ndindex(shape)]
    near = {tuple(o) for o in offsets}
    apart2 = [
        np.sum((guide[p] - guide[q]) ** 2)
        for p, q in ends
        if tuple(b - a for a, b in zip(p, q, strict=True)) in near and keep[p] and keep[q]
    ]

    def weight_of(p: tuple[int, ...], q: tuple[int, ...]) -> float:
        length = math.dist(np.multiply(p, spacing), np.multiply(q, spacing))
        alike = math.exp(-np.sum((guide[p] - guide[q]) ** 2) / (2 * np.mean(apart2))) if with_guide else 1.0
        return 1.3 / length * alike

    given, seen = np.where(keep[..., None], unary, np.nan), np.where(keep[..., None], guide, np.nan)
    options: dict[str, Any] = {"weight": 1.3, "neighbours": neighbours, "spacing": spacing}
    if masked:
        options["mask"] = keep
    if with_guide:
        options["guide"] = seen
    graph = images.grid_model(given, **options)
    assert graph.n_vars == keep.sum()
    assert graph.n_factors == len(apart2)
    for _ in range(10):
        x = rng.integers(0, 3, shape)
        assert graph.value(x[keep]) == pytest.approx(plain_value(x, unary, offsets, weight_of, keep))
        assert graph.expanded().value(x[keep]) == pytest.approx(graph.value(x[keep]))
    back = images.to_image(x[keep], shape, mask=keep, fill=9)
    assert np.array_equal(back, np.where(keep, x, 9))


def test_weights_of_pairs_outside_of_the_mask_are_zero_and_make_the_same_model() -> None:
    image, unary = RNG.random((6, 5)), RNG.normal(size=(6, 5, 2))
    keep = RNG.random((6, 5)) < 0.6
    image[~keep] = np.nan
    weights = images.contrast_weights(image, 2.0, mask=keep, neighbours=8, spacing=(1.0, 2.0))
    for (rows, columns), array in weights.items():
        for r, c in np.ndindex(array.shape):
            p = (r, c + max(0, -columns))
            assert (array[r, c] > 0) == (keep[p] and keep[p[0] + rows, p[1] + columns])
    by_guide = images.grid_model(unary, weight=2.0, guide=image, mask=keep, neighbours=8, spacing=(1.0, 2.0))
    by_weights = images.grid_model(unary, weight=weights, mask=keep)
    assert by_guide.n_tables == 1
    assert np.array_equal(by_guide.scope, by_weights.scope)
    assert np.array_equal(by_guide.weight, by_weights.weight)


def test_channels_may_be_on_any_axis() -> None:
    image, unary = RNG.random((5, 4, 3)), RNG.normal(size=(5, 4, 2))
    last = images.grid_model(unary, guide=image)
    first = images.grid_model(unary, guide=np.moveaxis(image, -1, 0), channel_axis=0)
    assert np.array_equal(last.weight, first.weight)
    weights = images.contrast_weights(np.moveaxis(image, -1, 1), channel_axis=1)
    assert np.array_equal(weights[0, 1], images.contrast_weights(image, channel_axis=-1)[0, 1])
    volume = images.contrast_weights(image, channel_axis=None)
    assert set(volume) == {(0, 0, 1), (0, 1, 0), (1, 0, 0)}
    with pytest.raises(GraphError, match=r"offset \(0, 0, 1\), expected 2 whole numbers.*is channel_axis missing"):
        images.grid_model(unary, weight=volume)
    with pytest.raises(OptionError, match="neighbours is 8, expected 6, 18 or 26 on 3 axes; is channel_axis missing"):
        images.contrast_weights(image, neighbours=8, channel_axis=None)
    refuses(GraphError, "channels on axis 3", images.contrast_weights, image, channel_axis=3)


@pytest.mark.parametrize("prices", [0.7, [0.0, 1.5, 0.4]])
def test_label_costs_are_paid_once_for_every_label_in_use(prices: Any) -> None:
    unary, keep = RNG.normal(size=(2, 3, 3)), np.array([[True, True, False], [True, True, True]])
    shared: dict[str, Any] = {"weight": 0.3, "mask": keep, "guide": RNG.random((2, 3))}
    graph, plain = images.grid_model(unary, label_costs=prices, **shared), images.grid_model(unary, **shared)
    assert graph.n_vars == 5 + 3
    paid = np.broadcast_to(prices, 3)
    for x in every_labelling(5, 3):
        used = [int(k in x) for k in range(3)]
        expected = plain.value(x) - sum(paid[k] for k in set(x))
        assert graph.value([*x, *used]) == pytest.approx(expected)
        if paid[x[0]] > 0:
            used[x[0]] = 0
            assert graph.value([*x, *used]) == -math.inf
    best = max(every_labelling(5, 3), key=lambda x: plain.value(x) - sum(paid[k] for k in set(x)))
    result = mapmrf.solve(graph.expanded(), "exhaustive")
    assert images.to_image(result, mask=keep, label_costs=True)[keep].tolist() == list(best)


def test_the_callers_arrays_are_neither_changed_nor_locked() -> None:
    unary, guide = RNG.normal(size=(3, 3, 2)), RNG.random((3, 3))
    before = unary.copy()
    graph = images.grid_model(unary, guide=guide, costs=True)
    assert np.array_equal(unary, before)
    assert not np.shares_memory(graph.theta_v, unary)
    unary[0, 0, 0] = guide[0, 0] = 5.0
    assert graph.value([0] * 9) == pytest.approx(-before[..., 0].sum())


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"unary": np.zeros(3)}, GraphError, r"unary has shape \(3,\), expected \(H, W, L\)"),
    ({"unary": np.zeros((0, 2, 2))}, GraphError, "unary has shape"),
    ({"unary": [["a"]]}, GraphError, "unary is not an array of numbers"),
    ({"unary": [[[0.0, np.inf]]]}, GraphError, r"unary at pixel and label \(0, 0, 1\) is inf.*costs=True"),
    ({"unary": [[[0.0, np.nan]]]}, GraphError, "is nan, expected a finite number or -inf"),
    ({"unary": [[[0.0, -np.inf]]], "costs": True}, GraphError, "is -inf, expected a finite number or inf"),
    ({"smoothness": "pots"}, OptionError, "expected one of potts, linear, quadratic"),
    ({"smoothness": np.zeros((3, 3))}, GraphError, r"smoothness has shape \(3, 3\), expected \(2, 2\)"),
    ({"smoothness": np.full((2, 2), np.inf)}, GraphError, r"smoothness at labels \(0, 0\) is inf"),
    ({"smoothness": np.zeros((2, 2)), "truncation": 1}, OptionError, "not to a custom table"),
    ({"truncation": 1.0}, OptionError, "truncation has no meaning for potts"),
    ({"values": [1.0, 2.0]}, OptionError, "values has no meaning for potts"),
    ({"smoothness": "linear", "truncation": -1.0}, OptionError, "truncation is -1.0"),
    ({"smoothness": "linear", "values": [1.0]}, GraphError, r"values have shape \(1,\)"),
    ({"weight": -1.0}, OptionError, "weight is -1.0, expected a finite number of at least 0"),
    ({"weight": math.nan}, OptionError, "weight is nan"),
    ({"weight": {(0, 1): np.ones((3, 1))}, "neighbours": 4}, GraphError, "offsets (0, 1), expected (0, 1), (1, 0)"),
    ({"weight": {(0, -1): 1.0}}, GraphError, r"offset \(0, -1\), expected 2 whole numbers, of which the first"),
    ({"weight": {(0, 0): 1.0}}, GraphError, r"offset \(0, 0\), expected 2 whole numbers, of which the first"),
    ({"weight": {1: 1.0}}, GraphError, "offset 1, expected 2 whole numbers"),
    ({"weight": {(0, 1): -1.0}}, GraphError, r"weight at \(0, 1\) holds -1.0, expected finite numbers"),
    ({"weight": {(0, 1): [[0.0], [0.0], [np.nan]]}}, GraphError, r"weight at \(0, 1\) holds nan"),
    ({"weight": {(0, 1): 1.0}, "spacing": (1, 2)}, OptionError, "guide, sigma and spacing need weight to be a number"),
    ({"weight": {(0, 1): np.ones((3, 2)), (1, 0): 1}}, GraphError, r"\(0, 1\) has shape \(3, 2\), expected \(3, 1\)"),
    ({"weight": {(0, 1): -np.ones((3, 1)), (1, 0): np.ones((2, 2))}}, GraphError, r"weight at \(0, 1\) holds -1"),
    ({"weight": {}, "guide": np.zeros((3, 2))}, OptionError, "guide, sigma and spacing need weight to be a number"),
    ({"neighbours": 6}, OptionError, "neighbours is 6, expected 4 or 8"),
    ({"guide": np.zeros((2, 3))}, GraphError, r"the guide has shape \(2, 3\), expected \(3, 2\) or \(3, 2, C\)"),
    ({"guide": np.full((3, 2), np.nan)}, GraphError, "holds nan"),
    ({"sigma": 1.0}, OptionError, "sigma is given without a guide"),
    ({"guide": np.zeros((3, 2)), "sigma": 0}, OptionError, "sigma is 0, expected a finite number above 0"),
    ({"spacing": (1.0,)}, OptionError, r"spacing is \[1.0\], expected 2 numbers above 0, one for each axis"),
    ({"spacing": (1.0, 0.0)}, OptionError, r"spacing is \[1.0, 0.0\], expected 2 numbers above 0"),
    ({"mask": np.ones((3, 2))}, GraphError, r"mask is float64 of shape \(3, 2\), expected bool of shape \(3, 2\)"),
    ({"mask": np.ones((2, 3), dtype=bool)}, GraphError, r"mask is bool of shape \(2, 3\), expected bool of shape"),
    ({"mask": np.zeros((3, 2), dtype=bool)}, GraphError, "mask has no true pixel"),
    ({"label_costs": [1.0]}, GraphError, r"label_costs have shape \(1,\), expected a number or \(2,\)"),
    ({"label_costs": [1.0, -2.0]}, OptionError, "label_costs of label 1 is -2.0, expected a finite number of at least"),
    ({"guide": np.zeros((3, 2, 3)), "channel_axis": 0}, GraphError, r"expected \(3, 2\) or \(C, 3, 2\)"),
    ({"memory_limit": 100}, MapMRFError, "this model takes .* B, the limit is"),
    ({"memory_limit": 0}, OptionError, "memory_limit is 0"),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused_in_one_line(options: Any, error: type[MapMRFError], text: str) -> None:
    refuses(error, text, images.grid_model, **{"unary": np.zeros((3, 2, 2))} | options)


def test_labels_become_a_picture_only_of_their_own_size() -> None:
    assert images.to_image([0, 1, 2, 3], (2, 2)).tolist() == [[0, 1], [2, 3]]
    refuses(GraphError, r"4 labels for an image of shape \(3, 2\), expected 6", images.to_image, [0, 1, 2, 3], (3, 2))
    with pytest.raises(GraphError, match="3 labels for the 2 pixels of a mask, expected 2"):
        images.to_image([0, 1, 2], mask=[True, False, True])
    refuses(OptionError, "shape is missing", images.to_image, [0, 1, 2])
    with pytest.raises(GraphError, match=r"5 labels for an image .*, expected 6 and more"):
        images.to_image([0] * 5, (2, 3), label_costs=True)
    assert images.to_image([0, 1, 2, 1], (1, 2), label_costs=True).tolist() == [[0, 1]]


# -- superpixels ------------------------------------------------------------------------------------------------------


def random_segments(height: int, width: int, n: int, seed: int = 0) -> np.ndarray:
    segments = np.random.default_rng(seed).integers(0, n, (height, width))
    segments.flat[:n] = np.arange(n)
    return segments


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("with_guide", [False, True])
def test_superpixels_are_the_grid_with_regions_bound_to_one_label(neighbours: int, with_guide: bool) -> None:
    segments = random_segments(6, 7, 5)
    unary = RNG.normal(size=(6, 7, 3))
    options: dict[str, Any] = {"weight": 0.8, "neighbours": neighbours, "spacing": (1.0, 2.5)}
    if with_guide:
        options["guide"] = RNG.random((6, 7, 3))
    grid = images.grid_model(unary, "linear", **options)
    regions = images.superpixel_model(segments, images.region_sums(unary, segments), "linear", **options)
    assert regions.n_vars == 5
    for labels in every_labelling(5, 3):
        picture = images.label_image(labels, segments)
        assert regions.value(labels) == pytest.approx(grid.value(picture.ravel()))
    best = max(every_labelling(5, 3), key=regions.value)
    assert mapmrf.solve(regions.expanded(), "exhaustive").value == pytest.approx(regions.value(best))


def test_contrast_of_regions_compares_mean_colours() -> None:
    segments = np.array([[0, 0, 1, 1], [0, 0, 2, 2]])
    image = np.array([[1.0, 3.0, 8.0, 8.0], [1.0, 3.0, 2.0, 4.0]])
    graph = images.superpixel_model(segments, np.zeros((3, 2)), guide=image, sigma=3.0, contrast="regions", weight=5.0)
    means = [2.0, 8.0, 3.0]
    lengths = {(0, 1): 1, (0, 2): 1, (1, 2): 2}
    for a in range(graph.n_factors):
        i, j = (int(v) for v in graph.scope_of(a))
        expected = 5.0 * lengths[i, j] * math.exp(-((means[i] - means[j]) ** 2) / 18)
        assert graph.table(a)[0, 1] == pytest.approx(-expected)
    by_default = images.superpixel_model(segments, np.zeros((3, 2)), guide=image, contrast="regions")
    sigma2 = np.mean([36, 1, 25])
    assert by_default.table(0)[0, 1] == pytest.approx(-math.exp(-36 / (2 * sigma2)))


def test_an_empty_region_is_a_variable_of_its_own() -> None:
    graph = images.superpixel_model([[0, 2]], [[1.0, 0.0], [0.0, 5.0], [0.0, 2.0]], weight=9.0)
    assert mapmrf.solve(graph, "trws").labels.tolist() == [1, 1, 1]
    assert graph.n_factors == 1


def test_superpixels_refuse_what_does_not_fit() -> None:
    with pytest.raises(GraphError, match="segments go up to 2, expected 0 to 1: unary has 2 rows"):
        images.superpixel_model([[1, 2]], np.zeros((2, 2)))
    with pytest.raises(GraphError, match=r"unary has shape \(2,\), expected \(n_segments, L\)"):
        images.superpixel_model([[0, 1]], [0.0, 1.0])
    refuses(GraphError, "segments hold -1", images.superpixel_model, [[0, -1]], np.zeros((2, 2)))
    refuses(GraphError, "whole numbers", images.superpixel_model, [[0, 0.5]], np.zeros((2, 2)))
    refuses(GraphError, r"segments have shape \(\)", images.superpixel_model, 0, np.zeros((2, 2)))
    with pytest.raises(OptionError, match="contrast is 'edges', expected one of borders, regions"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), contrast="edges")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="sigma is given without a guide"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), sigma=1.0)
    with pytest.raises(OptionError, match="sigma is -1"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), guide=[[0, 1]], sigma=-1, contrast="regions")
    refuses(OptionError, "weight is -1", images.superpixel_model, [[0, 1]], np.zeros((2, 2)), weight=-1)
    refuses(GraphError, "expected one for each region, 0 to 1", images.label_image, [3], [[0, 1]])
    refuses(GraphError, "pixels have shape", images.region_sums, np.zeros((3, 3, 2)), [[0, 1]])


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_model_takes_the_bytes_that_were_estimated(neighbours: int, weighted: bool) -> None:
    guide = RNG.random((60, 50)) if weighted else None
    graph = images.grid_model(np.zeros((60, 50, 6)), neighbours=neighbours, guide=guide)
    names = ("card", "theta_v", "scope_ptr", "scope", "table_of", "table_ptr", "theta_t", "weight")
    found = sum(array.nbytes for name in names if (array := getattr(graph, name)) is not None)
    estimate = images.estimate_memory((60, 50), 6, neighbours=neighbours, weighted=weighted)
    assert estimate.model == pytest.approx(found, rel=0.01)


BUILD = """
import tracemalloc
import numpy as np
from mapmrf import images
unary, guide = np.zeros((300, 300, 16)), np.random.default_rng(0).random((300, 300))
images.grid_model(unary[:9, :9], guide=guide[:9, :9])
tracemalloc.start()
graph = images.grid_model(unary, guide=guide)
print(*tracemalloc.get_traced_memory())
"""


def test_building_takes_little_more_than_the_model() -> None:
    done = subprocess.run([sys.executable, "-c", BUILD], capture_output=True, text=True, check=True)
    model, peak = map(int, done.stdout.split())
    estimate = images.estimate_memory((300, 300), 16, weighted=True)
    assert model == pytest.approx(estimate.model, rel=0.02)
    assert peak < 1.1 * model
    assert peak < estimate.build


@pytest.mark.parametrize("n_labels", [2, 5])
@pytest.mark.parametrize("method", ["trws", "lslp", "icm", "blocks"])
def test_the_estimate_of_a_picture_is_that_of_its_model(method: str, n_labels: int) -> None:
    """How near that comes to measured peaks is tested with the other models, in tests/model/test_memory.py."""
    graph = images.grid_model(np.zeros((60, 50, n_labels)))
    estimate = images.estimate_memory((60, 50), n_labels, method)
    assert estimate.solve - estimate.model == int(mapmrf.methods()[method]().footprint(graph) or 0)
    assert estimate.total == estimate.program + estimate.unary + max(estimate.build, estimate.solve)
    assert f"{estimate.total / 1e6:.3g} MB in all" in estimate.summary()


def test_what_is_too_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(MapMRFError, match=re.escape("100000 x 100000 pixels with 16 labels by trws take")) as found:
        images.estimate_memory((100_000, 100_000), 16)
    assert "this machine has" in str(found.value)
    assert images.estimate_memory((100_000, 100_000), 16, memory_limit=math.inf).total > 1e12
    refuses(MapMRFError, "the limit is 1 GB", images.estimate_memory, (1000, 1000), 64, memory_limit=1e9)
    with pytest.raises(UnknownName, match=r"no estimate for the method 'trw', expected one of ad3, .*trws"):
        images.estimate_memory((10, 10), 2, "trw")
    refuses(GraphError, r"shape \(\) with 2 labels", images.estimate_memory, (), 2)
