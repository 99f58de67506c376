"""Figures: what is drawn is what the result, the trace or the model holds."""

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mapmrf
from mapmrf import plots
from mapmrf.datasets import grid, potts_image, random_graph
from mapmrf.errors import GraphError, MapMRFError, OptionError
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.model.polytope import Kind, KindFractions, Residuals
from mapmrf.plots import display as trace_curves
from mapmrf.plots import style
from mapmrf.run.result import Result, Status, TracePoint
from refusals import refuses


def result_with(*trace, **fields):
    given = {"value": 0.0, "status": Status.CONVERGED, "method": "lslp", **fields}
    return Result(np.zeros(1, dtype=np.int64), trace=trace, **given)


def drawn(figure):
    """The bytes of the picture: drawing must work, and equal figures are equal."""
    data = io.BytesIO()
    figure.savefig(data, format="png")
    return data.getvalue()


def curves(axes):
    return {line.get_label(): line for line in axes.lines}


def legend(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


# -- convergence -----------------------------------------------------------------------------------------------------


def descent(n=4, **fields):
    return [TracePoint(i / 10, 10 * i, -5.0 + i, bound=9.0 - i, **fields) for i in range(n)]


def test_convergence_draws_what_the_trace_has():
    trace = [TracePoint(i / 10, i, -5.0 + i, bound=9.0 - i, extra={"primal": 0.5**i, "rho": 1.1**i}) for i in range(4)]
    figure = plots.convergence(result_with(*trace, value=-2.0, bound=6.0, iterations=3, runtime=0.4))
    drawn(figure)
    upper, residuals, rho = figure.axes
    assert set(curves(upper)) == {"value", "bound"}
    assert list(curves(upper)["value"].get_ydata()) == [-5.0, -4.0, -3.0, -2.0, -2.0]
    assert list(curves(residuals)["primal"].get_ydata()) == [1.0, 0.5, 0.25, 0.125]
    assert set(curves(rho)) == {"rho"}
    assert (rho.get_xlabel(), rho.get_ylabel(), residuals.get_ylabel()) == ("iterations", "rho", "residual")
    assert len(plots.convergence(result_with(*descent())).axes) == 1  # no empty panel
    _, rho = plots.convergence(result_with(*descent(extra={"rho": 0.5}))).axes
    assert (rho.get_ylabel(), rho.get_yscale()) == ("rho", "linear")


def test_the_axis_is_chosen_or_follows_from_the_trace():
    assert plots.convergence(descent()).axes[-1].get_xlabel() == "iterations"
    (axes,) = plots.convergence(descent(), over="seconds").axes
    assert axes.get_xlabel() == "seconds"
    assert list(curves(axes)["bound"].get_xdata()) == [0.0, 0.1, 0.2, 0.3]
    assert plots.convergence(result_with(*descent(), method="auto")).axes[-1].get_xlabel() == "seconds"
    still = [TracePoint(i / 10, 0, float(i)) for i in range(3)]
    assert plots.convergence(still).axes[-1].get_xlabel() == "seconds"
    refuses(OptionError, "expected 'iterations' or 'seconds'", plots.convergence, descent(), over="hours")


def test_the_end_of_a_run_is_what_the_result_says():
    figure = plots.convergence(result_with(*descent(), value=3.5, bound=4.0, relaxed_value=3.75, iterations=40))
    lines = curves(figure.axes[0])
    assert (lines["value"].get_ydata()[-1], lines["value"].get_xdata()[-1]) == (3.5, 40)
    assert list(lines["relaxed value"].get_ydata()) == [3.75]


def test_phases_are_spans_with_their_names():
    names = ["lp"] * 5 + ["sphere 0"] * 5 + ["sphere 1"] * 10
    trace = [TracePoint(i / 10, i, float(i), phase=name) for i, name in enumerate(names)]
    assert trace_curves.phases(trace, "iterations") == [("lp", 0.0, 4), ("sphere 0", 4, 9), ("sphere 1", 9, 19)]
    (axes,) = plots.convergence(trace).axes
    assert [text.get_text() for text in axes.texts] == ["lp", "sphere 0", "sphere 1"]
    assert len(axes.patches) == 3
    assert len({patch.get_facecolor() for patch in axes.patches}) == 3
    (plain,) = plots.convergence(descent(phase="lp")).axes
    assert not plain.patches
    assert not plain.texts
    (many,) = plots.convergence([TracePoint(i / 10, i, 0.0, phase="abc"[i % 2 :]) for i in range(300)]).axes
    assert len(many.texts) < 40  # short phases do not pile up their names
    drawn(many.figure)


def test_bad_starts_and_runs_without_a_finite_value_are_drawn() -> None:
    trace = [TracePoint(i, i, -1e9 if i == 0 else float(i)) for i in range(101)]
    low, high = plots.convergence(trace).axes[0].get_ylim()
    assert -20 < low < 5
    assert 100 < high < 120
    (axes,) = plots.convergence(result_with(TracePoint(0.1, 1, -np.inf), value=-np.inf)).axes
    assert axes.texts[0].get_text() == "no finite value"


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=1), min_size=1))
def test_the_view_holds_where_every_curve_ends(columns):
    low, high = trace_curves.view(columns)
    assert low < high
    assert all(low < numbers[-1] < high for numbers in columns)


@pytest.mark.parametrize(
    "trace",
    [
        (),
        (TracePoint(0.1, 1, -np.inf, bound=np.inf),),
        (TracePoint(0.1, 1, 1.0, extra={"primal": 0.0}),),
        (TracePoint(0.0, 0, 1.0, phase="a", extra={"primal": 2.0}), TracePoint(0.0, 0, 1.0, phase="b")),
    ],
)
def test_convergence_of_short_runs(trace):
    finite = [point.value for point in trace if np.isfinite(point.value)]
    for run, values in ((result_with(*trace), [*finite, 0.0]), (trace, finite)):
        figure = plots.convergence(run)
        lines = curves(figure.axes[0])
        assert ("value" in lines) == bool(values)
        assert not values or list(lines["value"].get_ydata()) == values
        assert drawn(figure).startswith(b"\x89PNG")


@pytest.mark.parametrize("method", ["icm", "trws", "lslp", "branch"])
def test_traces_of_methods_are_drawn(method):
    result = mapmrf.solve(grid(4, 4, coupling=2.0), method)
    figure = plots.convergence(result)
    values = [point.value for point in result.trace if np.isfinite(point.value)]
    np.testing.assert_allclose(curves(figure.axes[0])["value"].get_ydata(), [*values, result.value])
    assert figure.axes[0].get_title(loc="left").startswith(f"{method}: {result.status.value[:4]}")


# -- compare ---------------------------------------------------------------------------------------------------------


def test_compare_draws_value_and_bound_of_every_run():
    proven = result_with(*descent(), value=5.0, bound=5.0, status=Status.OPTIMAL, method="a", runtime=0.5)
    (axes,) = plots.compare([proven, result_with(*descent(), method="b"), result_with(method="b", value=1.0)]).axes
    assert legend(axes) == ["a", "b", "b (2)", "value", "bound"]
    value, bound, other = axes.lines[:3]
    assert list(value.get_ydata()) == [-5.0, -4.0, -3.0, -2.0, 5.0]
    assert list(bound.get_ydata()) == [9.0, 8.0, 7.0, 6.0, 5.0]
    assert value.get_markerfacecolor() == value.get_color()
    assert other.get_markerfacecolor() == "white"
    drawn(axes.figure)


def test_compare_takes_names_and_traces_and_more_runs_than_colours():
    (axes,) = plots.compare({f"run {i}": descent() for i in range(9)}, title="nine").axes
    assert legend(axes)[:9] == [f"run {i}" for i in range(9)]
    looks = {(line.get_color(), line.get_marker()) for line in axes.lines[::2]}
    assert len(looks) == 9
    drawn(axes.figure)


def test_the_axis_of_time_is_logarithmic_if_runs_differ_much() -> None:
    short, long = result_with(runtime=0.01), result_with(runtime=10.0)
    assert plots.compare([short, short]).axes[0].get_xscale() == "linear"
    assert plots.compare([short, long]).axes[0].get_xscale() == "log"
    refuses(OptionError, "no runs", plots.compare, [])


# -- label maps ------------------------------------------------------------------------------------------------------


def pixels(figure):
    return figure.axes[0].images[0].get_array()


def test_label_map_draws_every_label_with_its_name() -> None:
    figure = plots.label_map([[0, 1, 2], [2, 2, 4]], n_labels=6, title="labels")
    drawn(figure)
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "labels"
    assert legend(axes) == ["0", "1", "2", "4"]
    np.testing.assert_allclose(pixels(figure), style.colours([[0, 1, 2], [2, 2, 4]], 6) / 255)
    (axes,) = plots.label_map([[0, 2]], names=["sky", "tree", "road"]).axes
    assert legend(axes) == ["sky", "road"]


def test_label_map_of_a_result_is_row_by_row():
    image = potts_image(6, 8, 3, seed=1)
    result = mapmrf.solve(image.graph, "icm")
    same = plots.label_map(result.labels.reshape(6, 8))
    assert drawn(plots.label_map(result, shape=(6, 8))) == drawn(same)


def test_label_map_of_many_labels_has_a_colour_bar():
    figure = plots.label_map(np.arange(30).reshape(5, 6))
    drawn(figure)
    axes, bar = figure.axes
    assert axes.get_legend() is None
    assert bar.get_ylabel() == "label"
    assert bar.get_ylim() == (-0.5, 29.5)


@pytest.mark.parametrize(
    "grey", [np.array([[0, 255]], dtype=np.uint8), np.array([[0.0, 1.0]]), np.array([[-3.0, 7.0]])]
)
def test_labels_lie_over_an_image(grey):
    bare = plots.label_map([[0, 1]])
    none = plots.label_map([[0, 1]], image=grey, opacity=0.0)
    assert pixels(none).tolist() == [[[0.0] * 3, [1.0] * 3]]
    half = plots.label_map([[0, 1]], image=np.stack([grey] * 3, axis=-1), opacity=0.5)
    np.testing.assert_allclose(pixels(half), (pixels(bare) + pixels(none)) / 2)


@pytest.mark.parametrize("labels", [[0, 1], [[]], [[0.5]], [[-1]]])
def test_label_map_wants_a_picture(labels):
    refuses(GraphError, r"expected \(height, width\)|whole numbers", plots.label_map, labels)


def test_what_does_not_fit_is_refused():
    refuses(GraphError, "3 labels do not fill 2 x 2", plots.label_map, [0, 1, 2], shape=(2, 2))
    refuses(OptionError, "1 names, but there is a label 1", plots.label_map, [[0, 1]], names=["a"])
    refuses(GraphError, r"the image has shape \(2, 2\)", plots.label_map, [[0, 1]], image=[[0, 1], [1, 1]])
    refuses(OptionError, "from 0 to 1", plots.label_map, [[0, 1]], image=[[0, 1]], opacity=2)


# -- lattices --------------------------------------------------------------------------------------------------------


def pairwise(n, edges):
    return FactorGraph.from_pairwise(np.zeros((n, 2)), np.array(edges).reshape(-1, 2), np.zeros((2, 2)))


def lattice_edges(height, width, diagonal=False, wrap=False):
    """Pairs of neighbours, by looking at all pairs."""
    steps = {(0, 1), (1, 0)} | ({(1, 1)} if diagonal else set())
    found = []
    for (i, a), (j, b) in itertools.combinations(enumerate(itertools.product(range(height), range(width))), 2):
        down, right = abs(a[0] - b[0]), abs(a[1] - b[1])
        if wrap:
            down, right = min(down, height - down), min(right, width - right)
        if (down, right) in steps:
            found.append((i, j))
    return found


AT = np.arange(42).reshape(6, 7)
BLOCKS = [(AT[r, c], AT[r, c + 1], AT[r + 1, c], AT[r + 1, c + 1]) for r in range(5) for c in range(6)]
LATTICES = [(shape, pairwise(np.prod(shape), lattice_edges(*shape))) for shape in [(2, 3), (3, 2), (4, 7), (7, 4)]]
LATTICES += [(shape, pairwise(np.prod(shape), lattice_edges(*shape, True))) for shape in [(4, 7), (7, 4), (5, 5)]]
LATTICES += [((6, 7), FactorGraph.from_tables([2] * 42, BLOCKS, [np.zeros(16)] * len(BLOCKS)))]
LATTICES += [((6, 7), pairwise(42, np.delete(lattice_edges(6, 7), slice(0, None, 7), axis=0)))]
OTHERS = {0: [], 5: [], 6: lattice_edges(2, 3, True), 42: lattice_edges(6, 7)[::2], 25: [*lattice_edges(5, 5), (0, 13)]}
OTHERS |= {n: list(itertools.combinations(range(n), 2)) for n in (9, 16)} | {7: [(i, i + 1) for i in range(6)]}
OTHERS[12] = [*((i, i + 1) for i in range(11)), *((i, i + 2) for i in range(10))]
LATTICES += [(None, pairwise(n, edges)) for n, edges in OTHERS.items()]


@pytest.mark.parametrize(("shape", "graph"), LATTICES, ids=range(len(LATTICES)))
def test_lattices_are_recognised_also_with_diagonals_or_gaps_and_others_are_none(shape, graph):
    assert plots.lattice_shape(graph) == shape


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (5, 5), (2, 5), (3, 3), (3, 7), (7, 3)])
def test_tori_are_recognised_whatever_the_order_of_their_pairs(shape):
    random, edges = np.random.default_rng(3), lattice_edges(*shape, wrap=True)
    mixed = [random.permutation(edges[k]) for k in random.permutation(len(edges))]
    for graph in (pairwise(shape[0] * shape[1], mixed), grid(*shape, wrap=True), grid(*shape)):
        assert plots.lattice_shape(graph) == shape


# -- factor graphs ---------------------------------------------------------------------------------------------------


def marks(axes):
    """Places of the circles and of the squares, in the order in which they are drawn."""
    *squares, circles = [collection for collection in axes.collections if hasattr(collection, "get_sizes")]
    return np.asarray(circles.get_offsets()), np.concatenate([mark.get_offsets() for mark in squares])


def pairs_of(graph):
    return {pair for a in range(graph.n_factors) for pair in itertools.combinations(sorted(graph.scope_of(a)), 2)}


def test_the_factor_graph_has_a_mark_for_everything():
    graph = random_graph(12, 15, seed=3)
    figure = plots.factor_graph(graph, title="random")
    drawn(figure)
    (axes,) = figure.axes
    circles, squares = marks(axes)
    assert (len(circles), len(squares)) == (graph.n_vars, graph.n_factors)
    assert len(axes.collections[0].get_segments()) == graph.n_edges
    assert [text.get_text() for text in axes.texts] == [str(i) for i in range(12)]
    assert axes.get_title(loc="left") == "random"
    result = mapmrf.solve(graph, "icm")
    circles = plots.factor_graph(graph, labels=result).axes[0].collections[-1].get_facecolors()
    np.testing.assert_allclose(circles[:, :3], style.colours(result.labels, int(graph.card.max())) / 255)


def test_models_are_drawn_alike_every_time_and_circles_apart() -> None:
    graph = random_graph(20, 25, seed=1)
    assert drawn(plots.factor_graph(graph)) == drawn(plots.factor_graph(graph))
    graph = random_graph(40, 60, seed=2)
    circles, _ = marks(plots.factor_graph(graph).axes[0])
    apart = np.hypot(*(circles[:, None] - circles[None]).transpose(2, 0, 1))
    np.fill_diagonal(apart, np.inf)
    assert apart.min() > 1.05


def test_a_lattice_is_drawn_as_one():
    (axes,) = plots.factor_graph(grid(3, 4)).axes
    circles, squares = marks(axes)
    assert circles.tolist() == [[2.0 * c, -2.0 * r] for r in range(3) for c in range(4)]
    assert len(squares) == 17
    assert {round(float(x + y)) % 2 for x, y in squares} == {1}


def test_a_torus_leaves_the_picture_on_both_sides():
    (axes,) = plots.factor_graph(grid(4, 5, wrap=True)).axes
    _, squares = marks(axes)
    lines, stubs = (np.array(collection.get_segments()) for collection in axes.collections[:2])
    assert np.count_nonzero((squares[:, 0] > 8) | (squares[:, 1] < -6)) == 9
    assert len(stubs) == 9
    assert np.all((stubs[:, 1, 0] < 0) | (stubs[:, 1, 1] > 0))
    assert len(lines) == 2 * 40 - 9


def test_factors_on_one_scope_and_components_stand_apart() -> None:
    graph = FactorGraph.from_tables([2] * 4, [(0, 1), (1, 0), (1, 3), (2, 3), (0, 2)], [np.zeros(4)] * 5)
    assert plots.lattice_shape(graph) == (2, 2)
    _, squares = marks(plots.factor_graph(graph).axes[0])
    assert len(np.unique(squares.round(6), axis=0)) == 5
    two = pairwise(8, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3)])
    circles, _ = marks(plots.factor_graph(two).axes[0])
    boxes = [(circles[part].min(axis=0), circles[part].max(axis=0)) for part in ([0, 1, 2], [3, 4, 5], [6], [7])]
    for (low, high), (other_low, other_high) in itertools.combinations(boxes, 2):
        assert np.any(low > other_high + 1) or np.any(other_low > high + 1)


def test_names_and_states_are_written():
    names = Names(("Rain $5$", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, -np.inf, 0.0, 0.0]], names=names)
    figure = plots.factor_graph(graph, labels=[0, 1])
    drawn(figure)
    assert [text.get_text() for text in figure.axes[0].texts] == ["Rain \\$5\\$\nno", "Grass\nwet"]
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["variable", "hard factor", "label 0", "label 1"]
    assert [text.get_text() for text in plots.factor_graph(graph).axes[0].texts] == ["Rain \\$5\\$", "Grass"]


def test_large_models_are_drawn_as_primal_graphs():
    graph = random_graph(200, 250, seed=1)
    (axes,) = plots.factor_graph(graph).axes
    assert not axes.texts
    (circles,) = [collection for collection in axes.collections if hasattr(collection, "get_sizes")]
    places = np.asarray(circles.get_offsets())
    ends = {tuple(map(tuple, np.sort(places[list(pair)], axis=0))) for pair in pairs_of(graph)}
    assert {tuple(map(tuple, np.sort(line, axis=0))) for line in axes.collections[0].get_segments()} == ends
    assert axes.get_title(loc="left").startswith("200 variables; lines join")
    torus = grid(30, 30, wrap=True)
    (axes,) = plots.factor_graph(torus, labels=np.zeros(900, dtype=np.int64)).axes
    assert len(axes.collections[0].get_segments()) == 2 * 30 * 29


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (FactorGraph.from_tables([], [], []), "no variables"),
        (random_graph(1200, 1300, seed=1), "1200 variables, too many to draw: expected at most 1000"),
        (grid(110, 100), "expected at most 10000 variables of a lattice"),
        (pairwise(250, list(itertools.combinations(range(250), 2))), "31125 pairs"),
    ],
)
def test_what_cannot_be_seen_is_refused(graph, message):
    refuses(GraphError, message, plots.factor_graph, graph)


@pytest.mark.parametrize("n", [1, 2, 3])
def test_tiny_models_are_drawn(n):
    chain = plots.factor_graph(pairwise(n, [(i, i + 1) for i in range(n - 1)]), labels=[0] * n)
    lone = plots.factor_graph(pairwise(n, []))
    for figure, factors in ((chain, n - 1), (lone, 0)):
        circles, squares = marks(figure.axes[0])
        assert (len(np.unique(circles, axis=0)), len(squares)) == (n, factors)
        assert drawn(figure).startswith(b"\x89PNG")


def test_paths_are_laid_out_straight_and_rings_round() -> None:
    circles, squares = marks(plots.factor_graph(pairwise(10, [(i, i + 1) for i in range(9)])).axes[0])
    steps = np.diff(circles[:, 0])
    assert np.all(steps > 0) or np.all(steps < 0)
    assert np.ptp(circles[:, 1]) < 0.05 * np.ptp(circles[:, 0])
    np.testing.assert_allclose(squares, (circles[1:] + circles[:-1]) / 2, atol=0.25)
    circles, _ = marks(plots.factor_graph(pairwise(12, [(i, (i + 1) % 12) for i in range(12)])).axes[0])
    around = circles - circles.mean(axis=0)
    radius = np.hypot(*around.T)
    assert radius.std() < 0.05 * radius.mean()
    turns = np.diff(np.unwrap(np.arctan2(*around.T)))
    assert np.all(turns > 0) or np.all(turns < 0)


# -- margins ---------------------------------------------------------------------------------------------------------


def test_margins_of_a_lattice_are_a_map_of_their_lower_ends():
    graph = grid(3, 4)
    ends = np.stack([np.linspace(-1.0, 10.0, 12), np.full(12, 20.0)], axis=1)
    figure = plots.margins(result_with(margins=ends), graph)
    drawn(figure)
    image = figure.axes[0].images[0].get_array()
    assert image.shape == (3, 4)
    assert image[0, 0] == 0.0
    assert np.all(np.diff(image.ravel()) >= 0)
    assert plots.margins(result_with(margins=ends), shape=(2, 6)).axes[0].images[0].get_array().shape == (2, 6)


def test_margins_without_a_lattice_are_a_curve_with_a_band_where_they_are_intervals():
    ends = np.array([[3.0, 3.0], [np.inf, np.inf], [1.0, 1.0]])
    (axes,) = plots.margins(result_with(margins=ends)).axes
    assert list(axes.lines[0].get_ydata())[:2] == [1.0, 3.0]
    assert not axes.collections
    (axes,) = plots.margins(result_with(margins=np.stack([ends[:, 0], ends[:, 1] + 1.0], axis=1))).axes
    assert axes.collections


def test_margins_must_have_been_asked_for_and_fill_the_map():
    refuses(GraphError, "has no margins", plots.margins, result_with())
    with pytest.raises(GraphError, match="2 margins do not fill 2 x 2 pixels"):
        plots.margins(result_with(margins=np.ones((2, 2))), shape=(2, 2))
    drawn(plots.margins(mapmrf.max_marginals(grid(3, 3)), grid(3, 3)))


# -- kinds -----------------------------------------------------------------------------------------------------------


def relaxed(kind=Kind.FRACTIONAL, **fields):
    fractions = fields.pop("kind_fractions", KindFractions(0.5, 0.25, 0.25))
    return result_with(kind=kind, kind_fractions=fractions, **fields)


@pytest.mark.parametrize("method", ["lp", "ad3"])
def test_kinds_of_the_variables_agree_with_the_library(method):
    rng = np.random.default_rng(5)
    edges = np.array(lattice_edges(6, 6))
    graph = FactorGraph.from_pairwise(rng.normal(size=(36, 3)), edges, rng.normal(size=(len(edges), 3, 3)))
    result = mapmrf.solve(graph, method)
    figure = plots.kinds(result, graph)
    shares = np.bincount(np.ravel(pixels(figure)), minlength=3) / 36
    fractions = result.kind_fractions
    np.testing.assert_allclose(shares, [fractions.valid, fractions.uniform, fractions.fractional])
    assert pixels(figure).shape == (6, 6)


def test_kinds_are_a_map_of_the_marginals():
    graph = grid(2, 2)
    mu_v = np.array([1.0, 0.0, 0.5, 0.5, 0.3, 0.7, 1e-5, 1 - 1e-5])
    figure = plots.kinds(relaxed(mu_v=mu_v), graph)
    assert pixels(figure).ravel().tolist() == [0, 1, 2, 0]  # integer, uniform, fractional, integer
    assert legend(figure.axes[0]) == ["integer  50 %", "uniform  25 %", "fractional  25 %"]
    assert pixels(plots.kinds(relaxed(mu_v=mu_v), graph, shape=(1, 4))).shape == (1, 4)


def test_without_a_lattice_kinds_are_a_bar():
    (axes,) = plots.kinds(relaxed()).axes
    assert [patch.get_width() for patch in axes.patches] == [50.0, 25.0, 25.0]
    chain = pairwise(5, [(i, i + 1) for i in range(4)])
    assert plots.kinds(relaxed(mu_v=np.full(10, 0.5)), chain).axes[0].patches
    assert plots.kinds(relaxed(), grid(2, 2)).axes[0].patches
    few = plots.kinds(relaxed(kind_fractions=KindFractions(1 - 1e-6, 0.0, 1e-6)))
    assert legend(few.axes[0]) == ["integer  100 %", "fractional  <0.01 %"]
    drawn(few)


def test_an_approximate_solution_says_by_how_much():
    figure = plots.kinds(relaxed(Kind.APPROXIMATE, residuals=Residuals(0.125, 0.0, 0.0)))
    assert figure.axes[0].get_title(loc="left") == "lslp: approximate (A+25%U+25%F), violated by 0.12"
    assert plots.kinds(relaxed(), title="mine").axes[0].get_title(loc="left") == "mine"


def test_kinds_need_a_relaxed_solution_that_fits():
    refuses(GraphError, "icm has no relaxed solution", plots.kinds, result_with(method="icm"))
    refuses(GraphError, "needs the model", plots.kinds, relaxed(mu_v=np.ones(4)), shape=(2, 2))
    refuses(GraphError, r"needs result\.mu_v", plots.kinds, relaxed(), grid(2, 2), shape=(2, 2))
    refuses(GraphError, "mu_v has 6 entries, expected 8", plots.kinds, relaxed(mu_v=np.ones(6)), grid(2, 2))
    with pytest.raises(GraphError, match="4 variables do not fill 3 x 2"):
        plots.kinds(relaxed(mu_v=np.ones(8)), grid(2, 2), shape=(3, 2))


# -- Bayesian networks and margins by name ---------------------------------------------------------------------------


def asia():
    """A network of five variables, whose factors list the child at any place."""
    names = Names(("asia", "smoke", "tub", "lung", "x"), (("no", "yes"),) * 5)
    cpt = np.log([[0.9, 0.1], [0.3, 0.7]])
    given = np.log([[[0.9, 0.1], [0.2, 0.8]], [[0.4, 0.6], [0.1, 0.9]]])
    scopes = [(0,), (1,), (2, 0), (1, 3), (2, 4, 3)]
    return FactorGraph.from_tables([2] * 5, scopes, [cpt[0], cpt[1], cpt.T, cpt, np.swapaxes(given, 1, 2)], names=names)


def test_a_network_has_arrows_from_parents_to_children_below_them():
    figure = plots.bayesian_network(asia(), labels=[0, 1, 0, 1, 0], title="a network")
    drawn(figure)
    (axes,) = figure.axes
    circles = np.asarray(axes.collections[0].get_offsets())
    found = {(tuple(text.xyann), tuple(text.xy)) for text in axes.texts if text.get_text() == ""}
    assert found == {(tuple(circles[i]), tuple(circles[j])) for i, j in [(0, 2), (1, 3), (2, 4), (3, 4)]}
    assert all(tail[1] > head[1] for tail, head in found)
    assert {text.get_text() for text in axes.texts} >= {"asia\nno", "lung\nyes"}
    refuses(MapMRFError, "not a Bayesian network: factor 0", plots.bayesian_network, grid(3, 3))
    refuses(GraphError, "the model has 169 variables, expected 1 to 150", plots.bayesian_network, grid(13, 13))


def test_margins_are_listed_by_name_the_least_certain_first():
    graph = asia()
    result = mapmrf.solve(graph, margins=True)
    for found in (mapmrf.max_marginals(graph), result):
        figure = plots.margins(found, graph)
        (axes,) = figure.axes
        order = np.argsort(result.margins[:, 0], kind="stable")
        texts = [f"{graph.names.variables[i]} = {('no', 'yes')[result.labels[i]]}" for i in order]
        assert [text.get_text() for text in axes.get_yticklabels()] == texts
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches[5:]], result.margins[order, 0])
    drawn(figure)
    many = Names(tuple(f"v{i}" for i in range(40)), None)
    free = FactorGraph.from_tables(
        [2] * 40, [(i,) for i in range(40)], [[0.0, float(i)] for i in range(40)], names=many
    )
    (axes,) = plots.margins(mapmrf.solve(free, margins=True), free).axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [f"v{i} = {int(i > 0)}" for i in range(30)]
    assert axes.get_title(loc="left") == "the 30 least certain of 40 variables"


# -- matplotlib ------------------------------------------------------------------------------------------------------


def test_missing_matplotlib_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"mapmrf\[plots\]"):
        plots.label_map([[0]])


def test_missing_networkx_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "networkx", None)
    with pytest.raises(ImportError, match=r"networkx: pip install 'mapmrf\[plots\]'"):
        plots.factor_graph(random_graph(5, 6, seed=1))
    plots.factor_graph(grid(3, 3))  # a lattice needs no layout


def test_matplotlib_and_its_windows_are_left_alone():
    code = (
        "import sys, mapmrf.plots as plots; before = 'matplotlib' in sys.modules; plots.label_map([[0, 1]]);"
        "windows = 'matplotlib.pyplot' in sys.modules;"
        "import matplotlib; print(before, windows, dict(matplotlib.rcParams) == dict(matplotlib.rc_params()))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False", "True"]
