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


def plain_cost(kind: str, k: int, m: int, truncation: float, values: list[float]) -> float:
    apart = abs(values[k] - values[m])
    return {"potts": float(k != m), "linear": min(apart, truncation), "quadratic": min(apart**2, truncation)}[kind]


def plain_model(
    unary: np.ndarray, weight_of: Any, table_of: Any, neighbours: int
) -> tuple[FactorGraph, list[tuple[tuple[int, int], tuple[int, int]]]]:
    """The same model, table by table through the public constructor."""
    height, width, n_labels = unary.shape
    pairs = plain_pairs(height, width, neighbours)
    scopes: list[tuple[int, ...]] = [(i,) for i in range(height * width)]
    tables: list[np.ndarray] = list(unary.reshape(-1, n_labels))
    for p, q in pairs:
        scopes.append((p[0] * width + p[1], q[0] * width + q[1]))
        tables.append(weight_of(p, q) * table_of)
    return FactorGraph.from_tables([n_labels] * (height * width), scopes, tables), pairs


def assert_same_model(graph: FactorGraph, other: FactorGraph, n_labels: int, *, tol: float = 1e-9) -> None:
    assert graph.n_vars == other.n_vars
    assert graph.n_factors == other.n_factors
    random = np.random.default_rng(0)
    for _ in range(40):
        labels = random.integers(0, n_labels, graph.n_vars)
        assert graph.value(labels) == pytest.approx(other.value(labels), abs=tol)


# -- grids ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("kind", ["potts", "linear", "quadratic"])
def test_a_grid_is_the_model_built_table_by_table(kind: str, neighbours: int) -> None:
    unary = RNG.normal(size=(4, 3, 4))
    values = [0.0, 1.0, 2.5, 7.0]
    options = {} if kind == "potts" else {"truncation": 4.0, "values": values}
    graph = images.grid_model(unary, kind, weight=0.7, neighbours=neighbours, **options)
    table = np.array([[-plain_cost(kind, k, m, 4.0, values) for m in range(4)] for k in range(4)])
    plain, _ = plain_model(unary, lambda p, q: 0.7 / math.dist(p, q), table, neighbours)
    assert_same_model(graph, plain, 4)
    assert graph.n_tables == (1 if neighbours == 4 else 2)


@pytest.mark.parametrize("kind", ["potts", "linear", "quadratic"])
def test_solving_a_tiny_picture_gives_the_best_of_all_labellings(kind: str) -> None:
    unary = RNG.normal(size=(2, 3, 3))
    graph = images.grid_model(unary, kind, weight=0.4, neighbours=8)

    def value(labels: tuple[int, ...]) -> float:
        x = np.reshape(labels, (2, 3))
        total = sum(unary[r, c, x[r, c]] for r in range(2) for c in range(3))
        for p, q in plain_pairs(2, 3, 8):
            total -= 0.4 / math.dist(p, q) * plain_cost(kind, x[p], x[q], math.inf, [0, 1, 2])
        return float(total)

    best = max(every_labelling(6, 3), key=value)
    result = mapmrf.solve(graph, "exhaustive")
    assert result.value == pytest.approx(value(best))
    assert images.to_image(result, (2, 3)).ravel().tolist() == list(best)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 3), st.sampled_from([4, 8]), st.integers(0, 99))
def test_a_grid_of_any_size_is_the_plain_model(
    height: int, width: int, n_labels: int, neighbours: int, seed: int
) -> None:
    unary = np.random.default_rng(seed).normal(size=(height, width, n_labels))
    graph = images.grid_model(unary, weight=1.5, neighbours=neighbours)
    plain, pairs = plain_model(unary, lambda p, q: 1.5 / math.dist(p, q), np.eye(n_labels) - 1, neighbours)
    assert graph.n_factors == len(pairs)
    assert_same_model(graph, plain, n_labels)


def test_a_table_of_ones_own_has_the_earlier_pixel_in_its_rows() -> None:
    table = np.array([[0.0, -3.0], [-0.5, -np.inf]])
    graph = images.grid_model(np.zeros((1, 2, 2)), table, weight=2.0)
    assert graph.value([0, 1]) == -6.0
    assert graph.value([1, 0]) == -1.0
    assert graph.value([1, 1]) == -math.inf


def test_costs_are_the_negative_of_log_potentials() -> None:
    costs = RNG.uniform(0, 3, (3, 3, 2))
    costs[1, 1, 0] = np.inf
    table = np.array([[0.0, 2.0], [1.0, 0.0]])
    graph = images.grid_model(costs, table, costs=True)
    assert_same_model(graph, images.grid_model(-costs, -table), 2)
    whole = images.grid_model(np.full((1, 2, 2), 200, dtype=np.uint8), costs=True)
    assert whole.value([0, 0]) == -400.0


def test_given_weights_are_taken_as_they_are_and_pairs_of_weight_zero_left_out() -> None:
    shape = (3, 4)
    offsets = images.neighbour_offsets(2, 8)
    weights = {o: RNG.uniform(0.1, 2, (shape[0] - abs(o[0]), shape[1] - abs(o[1]))) for o in offsets}
    unary = RNG.normal(size=(*shape, 3))
    plain, pairs = plain_model(unary, lambda p, q: given_weight(weights, p, q), np.eye(3) - 1, 8)
    graph = images.grid_model(unary, weight=weights, neighbours=8, levels=None)
    assert_same_model(graph, plain, 3)
    assert graph.n_tables == len(pairs)
    weights[0, 1][:] = 0
    assert images.grid_model(unary, weight=weights, neighbours=8).n_factors == len(pairs) - 9


def given_weight(weights: dict[tuple[int, ...], np.ndarray], p: tuple[int, int], q: tuple[int, int]) -> float:
    offset = (q[0] - p[0], q[1] - p[1])
    return float(weights[offset][p[0], p[1] + min(0, offset[1])])


@pytest.mark.parametrize("channels", [(), (3,)])
@pytest.mark.parametrize("sigma", [None, 0.3])
def test_contrast_weights_follow_their_formula(channels: tuple[int, ...], sigma: float | None) -> None:
    image = RNG.random((4, 5, *channels))
    weights = images.contrast_weights(image, 2.0, neighbours=8, sigma=sigma, floor=0.25)
    pairs = plain_pairs(4, 5, 8)
    apart2 = {(p, q): float(np.sum((image[p] - image[q]) ** 2)) for p, q in pairs}
    sigma2 = np.mean(list(apart2.values())) if sigma is None else sigma**2
    for (p, q), d2 in apart2.items():
        expected = 2.0 / math.dist(p, q) * (0.25 + 0.75 * math.exp(-d2 / (2 * sigma2)))
        assert given_weight(weights, p, q) == pytest.approx(expected)


def test_a_guide_gives_the_contrast_weights_of_itself() -> None:
    image, unary = RNG.random((5, 4, 3)), RNG.normal(size=(5, 4, 2))
    weights = images.contrast_weights(image, 3.0, neighbours=8, sigma=0.5)
    by_guide = images.grid_model(unary, weight=3.0, neighbours=8, guide=image, sigma=0.5)
    assert_same_model(by_guide, images.grid_model(unary, weight=weights, neighbours=8), 2)


def test_a_guide_without_contrast_weighs_all_pairs_alike() -> None:
    graph = images.grid_model(np.zeros((4, 4, 2)), weight=3.0, guide=np.full((4, 4), 7))
    assert graph.n_tables == 1
    assert graph.table(0)[0, 1] == -3.0


def test_rounded_weights_share_tables_and_are_off_by_half_a_step_at_most() -> None:
    image, unary = RNG.random((20, 20, 3)), np.zeros((20, 20, 4))
    exact = images.grid_model(unary, guide=image, levels=None)
    assert exact.n_tables == exact.n_factors
    weight = np.array([-exact.table(a)[0, 1] for a in range(exact.n_factors)])
    for levels in (1, 8, 256):
        rounded = images.grid_model(unary, guide=image, levels=levels)
        assert rounded.n_tables <= levels
        found = np.array([-rounded.table(a)[0, 1] for a in range(rounded.n_factors)])
        span = weight.max() - weight.min()
        assert np.abs(found - weight).max() <= span / (2 * max(1, levels - 1)) + 1e-12


def test_few_different_weights_are_not_rounded() -> None:
    image = RNG.integers(0, 5, (15, 15))
    graph = images.grid_model(np.zeros((15, 15, 2)), guide=image, levels=5)
    exact = images.grid_model(np.zeros((15, 15, 2)), guide=image, levels=None)
    assert graph.n_tables == exact.n_tables <= 5
    assert np.array_equal(graph.theta_t, exact.theta_t)


def test_a_volume_has_six_or_twenty_six_neighbours() -> None:
    unary = RNG.normal(size=(3, 2, 2, 2))
    pixels = list(itertools.product(range(3), range(2), range(2)))
    for neighbours, longest in ((6, 1), (26, 3)):
        pairs = [
            (i, j)
            for (i, p), (j, q) in itertools.combinations(enumerate(pixels), 2)
            if max(abs(a - b) for a, b in zip(p, q, strict=True)) == 1
            and sum((a - b) ** 2 for a, b in zip(p, q, strict=True)) <= longest
        ]
        tables = [(np.eye(2) - 1) / math.dist(pixels[i], pixels[j]) for i, j in pairs]
        plain = FactorGraph.from_pairwise(unary.reshape(-1, 2), pairs, np.array(tables))
        assert_same_model(images.grid_model(unary, neighbours=neighbours), plain, 2)
    grey = images.grid_model(unary, guide=RNG.random((3, 2, 2)), neighbours=6)
    assert grey.n_factors == 20


def test_the_callers_arrays_are_neither_changed_nor_locked() -> None:
    unary, guide = RNG.normal(size=(3, 3, 2)), RNG.random((3, 3))
    before = unary.copy()
    graph = images.grid_model(unary, guide=guide, costs=True)
    assert np.array_equal(unary, before)
    assert not np.shares_memory(graph.theta_v, unary)
    unary[0, 0, 0] = guide[0, 0] = 5.0
    assert graph.value([0] * 9) == pytest.approx(-before[..., 0].sum())


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"unary": np.zeros((3, 2))}, GraphError, r"unary has shape \(3, 2\), expected \(H, W, L\)"),
    ({"unary": np.zeros((0, 2, 2))}, GraphError, "unary has shape"),
    ({"unary": [["a"]]}, GraphError, "unary is not an array of numbers"),
    ({"unary": [[[0.0, np.inf]]]}, GraphError, r"unary at pixel and label \(0, 0, 1\) is inf.*costs=True"),
    ({"unary": [[[0.0, np.nan]]]}, GraphError, "is nan, expected a finite number or -inf"),
    ({"unary": [[[0.0, -np.inf]]], "costs": True}, GraphError, "is -inf, expected a finite number or inf"),
    ({"smoothness": "pots"}, OptionError, "expected one of potts, linear, quadratic"),
    ({"smoothness": np.zeros((3, 3))}, GraphError, r"smoothness has shape \(3, 3\), expected \(2, 2\)"),
    ({"smoothness": np.full((2, 2), np.inf)}, GraphError, r"smoothness at labels \(0, 0\) is inf"),
    ({"smoothness": np.zeros((2, 2)), "truncation": 1}, OptionError, "not with a table of one's own"),
    ({"truncation": 1.0}, OptionError, "truncation has no meaning for potts"),
    ({"values": [1.0, 2.0]}, OptionError, "values has no meaning for potts"),
    ({"smoothness": "linear", "truncation": -1.0}, OptionError, "truncation is -1.0"),
    ({"smoothness": "linear", "values": [1.0]}, GraphError, r"values have shape \(1,\)"),
    ({"weight": -1.0}, OptionError, "weight is -1.0, expected a finite number of at least 0"),
    ({"weight": math.nan}, OptionError, "weight is nan"),
    ({"weight": {(0, 1): np.ones((3, 1))}}, GraphError, r"offsets \(0, 1\), expected \(0, 1\), \(1, 0\)"),
    ({"weight": {(0, 1): np.ones((3, 2)), (1, 0): 1}}, GraphError, r"\(0, 1\) has shape \(3, 2\), expected \(3, 1\)"),
    ({"weight": {(0, 1): -np.ones((3, 1)), (1, 0): np.ones((2, 2))}}, GraphError, r"weight at \(0, 1\) holds -1"),
    ({"weight": {}, "guide": np.zeros((3, 2))}, OptionError, "guide and sigma need weight to be a number"),
    ({"neighbours": 6}, OptionError, "neighbours is 6, expected 4 or 8"),
    ({"guide": np.zeros((2, 3))}, GraphError, r"the guide has shape \(2, 3\), expected \(3, 2\) or \(3, 2, C\)"),
    ({"guide": np.full((3, 2), np.nan)}, GraphError, "holds nan"),
    ({"sigma": 1.0}, OptionError, "sigma is given without a guide"),
    ({"guide": np.zeros((3, 2)), "sigma": 0}, OptionError, "sigma is 0, expected a finite number above 0"),
    ({"guide": np.eye(3)[:, :2], "levels": 0}, OptionError, "levels is 0, expected at least 1"),
    ({"memory_limit": 100}, MapMRFError, "this model takes .* MB, the limit is"),
    ({"memory_limit": 0}, OptionError, "memory_limit is 0"),
]


@pytest.mark.parametrize(("options", "error", "text"), REFUSED, ids=range(len(REFUSED)))
def test_what_makes_no_sense_is_refused_in_one_line(options: dict[str, Any], error: type[Exception], text: str) -> None:
    options = {"unary": np.zeros((3, 2, 2)), **options}
    with pytest.raises(error, match=text) as found:
        images.grid_model(**options)
    assert "\n" not in str(found.value)


def test_labels_become_a_picture_only_of_their_own_size() -> None:
    assert images.to_image([0, 1, 2, 3], (2, 2)).tolist() == [[0, 1], [2, 3]]
    with pytest.raises(GraphError, match=r"4 labels for a picture of shape \(3, 2\), expected 6"):
        images.to_image([0, 1, 2, 3], (3, 2))


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
    options: dict[str, Any] = {"weight": 0.8, "neighbours": neighbours, "levels": None}
    if with_guide:
        options["guide"] = RNG.random((6, 7, 3))
    grid = images.grid_model(unary, "linear", **options)
    regions = images.superpixel_model(segments, images.region_sums(unary, segments), "linear", **options)
    assert regions.n_vars == 5
    for labels in every_labelling(5, 3):
        picture = images.label_image(labels, segments)
        assert regions.value(labels) == pytest.approx(grid.value(picture.ravel()))
    best = max(every_labelling(5, 3), key=regions.value)
    assert mapmrf.solve(regions, "exhaustive").value == pytest.approx(regions.value(best))


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
    with pytest.raises(GraphError, match="segments hold -1"):
        images.superpixel_model([[0, -1]], np.zeros((2, 2)))
    with pytest.raises(GraphError, match="whole numbers"):
        images.superpixel_model([[0, 0.5]], np.zeros((2, 2)))
    with pytest.raises(GraphError, match=r"segments have shape \(2,\)"):
        images.superpixel_model([0, 1], np.zeros((2, 2)))
    with pytest.raises(OptionError, match="contrast is 'edges', expected one of borders, regions"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), contrast="edges")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="sigma is given without a guide"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), sigma=1.0)
    with pytest.raises(OptionError, match="sigma is -1"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), guide=[[0, 1]], sigma=-1, contrast="regions")
    with pytest.raises(OptionError, match="weight is -1"):
        images.superpixel_model([[0, 1]], np.zeros((2, 2)), weight=-1)
    with pytest.raises(GraphError, match="expected one for each region, 0 to 1"):
        images.label_image([3], [[0, 1]])
    with pytest.raises(GraphError, match="pixels have shape"):
        images.region_sums(np.zeros((3, 3, 2)), [[0, 1]])


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("neighbours", "levels", "n_weights"), [(4, 256, 1), (8, 256, 1), (4, 16, 16), (4, None, None)]
)
def test_the_model_takes_the_bytes_that_were_estimated(
    neighbours: int, levels: int | None, n_weights: int | None
) -> None:
    guide = None if n_weights == 1 else RNG.random((60, 50))
    graph = images.grid_model(np.zeros((60, 50, 6)), neighbours=neighbours, guide=guide, levels=levels)
    arrays = (graph.card, graph.theta_v, graph.scope_ptr, graph.scope, graph.table_of, graph.table_ptr, graph.theta_t)
    found = sum(array.nbytes for array in arrays)
    estimate = images.estimate_memory((60, 50), 6, neighbours=neighbours, n_weights=n_weights)
    assert estimate.model == pytest.approx(found, rel=0.05)


PEAK = """
import resource, sys
import numpy as np, mapmrf
from mapmrf import images
method, labels, side = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
unary = np.random.default_rng(0).normal(size=(side, side, labels))
mapmrf.solve(images.grid_model(unary[:60, :60], "linear", truncation=2.0), method, max_iterations=1)  # compiles
with open("/proc/self/statm") as file:
    before = int(file.read().split()[1]) * resource.getpagesize()
graph = images.grid_model(unary, "linear", truncation=2.0)
mapmrf.solve(graph, method, max_iterations=1)
with open("/proc/self/status") as file:  # getrusage would tell the peak of the process that started this one
    peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
print(peak - before)
"""
slow = pytest.mark.slow


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read as Linux counts it")
@pytest.mark.parametrize(
    ("method", "labels", "side"),
    [
        ("trws", 12, 400),
        *(pytest.param(m, *size, marks=slow) for m in images.memory.RATES for size in ((2, 700), (5, 600), (16, 300))),
    ],
)
def test_a_solve_takes_the_memory_that_was_estimated(method: str, labels: int, side: int) -> None:
    command = [sys.executable, "-c", PEAK, method, str(labels)]
    subprocess.run([*command, "8"], capture_output=True, check=True)  # the compiler's own memory does not count
    done = subprocess.run([*command, str(side)], capture_output=True, text=True, check=True)
    estimate = images.estimate_memory((side, side), labels, method)
    assert 0.7 < int(done.stdout) / max(estimate.build, estimate.solve) < 1.3


def test_the_limit_of_the_report_of_lslp_is_that_of_the_method() -> None:
    from mapmrf.methods.lslp import MAX_KKT_STATES

    assert images.memory.KKT_STATES == MAX_KKT_STATES


def test_more_labels_neighbours_and_weights_take_more() -> None:
    least = images.estimate_memory((50, 60), 4).total
    for options in ({"neighbours": 8}, {"n_weights": 256}, {"n_weights": None}):
        assert images.estimate_memory((50, 60), 4, **options).total > least  # type: ignore[arg-type]
    assert images.estimate_memory((50, 60), 5).total > least
    for method in ("trws", "lslp", "icm", "blocks"):
        for labels in (2, 4, 20):
            estimate = images.estimate_memory((50, 60), labels, method)
            assert estimate.model < estimate.solve < estimate.total


def test_what_is_too_large_is_refused_before_it_is_built() -> None:
    with pytest.raises(MapMRFError, match=re.escape("100000 x 100000 pixels with 16 labels by trws take")) as found:
        images.estimate_memory((100_000, 100_000), 16)
    assert "this machine has" in str(found.value)
    assert images.estimate_memory((100_000, 100_000), 16, memory_limit=math.inf).total > 1e12
    with pytest.raises(MapMRFError, match="the limit is 1 GB"):
        images.estimate_memory((1000, 1000), 64, memory_limit=1e9)
    with pytest.raises(UnknownName, match="no estimate for the method 'trw', expected one of trws, lslp, icm, blocks"):
        images.estimate_memory((10, 10), 2, "trw")
    with pytest.raises(GraphError, match=r"shape \(10,\) with 2 labels"):
        images.estimate_memory((10,), 2)
