"""The forms of results and models in notebooks and terminals."""

import io
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.image import imread
from rich.console import Console

import mapmrf
from mapmrf.datasets import grid
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.plots import display, style
from mapmrf.run.result import Result, Status, TracePoint

NASTY = '<script>alert("&")</script>'


class Checked(HTMLParser):
    """Reads HTML strictly: what is opened is closed, in order. Keeps the text and the elements."""

    def __init__(self, page):
        super().__init__()
        self.open, self.seen, self.text = [], [], []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    def rows(self):
        """Text of the cells, row by row of the first table."""
        return dict(zip(self.text, self.text[1:], strict=False))

    def attributes(self, tag):
        return [attributes for found, attributes in self.seen if found == tag]


def run_of(n, **fields):
    trace = tuple(TracePoint(i / 10, i, -5.0 + i, bound=2.0 * n - i, phase="lp") for i in range(n))
    given = {"value": float(n), "status": Status.CONVERGED, "method": "lslp", "bound": 1.5 * n, "trace": trace}
    return Result(np.arange(20), iterations=n, **{**given, **fields})


def printed(shown, encoding="utf-8"):
    """What a terminal of an encoding gets to see."""
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding=encoding, write_through=True) as file:
        Console(width=120, file=file).print(shown)
        return raw.getvalue().decode(encoding)


def named(*variables):
    states = tuple((f"{name}-off", f"{name}-on") for name in variables)
    return FactorGraph.from_tables([2] * len(variables), [], [], names=Names(variables, states))


# -- results ---------------------------------------------------------------------------------------------------------


def test_a_result_shows_what_its_summary_says():
    result = run_of(30)
    page, text = Checked(result._repr_html_()), printed(result)
    for line in result.summary().splitlines():
        name, figures = re.split(r" {2,}", line, maxsplit=1)
        assert page.rows()[name] == figures
        assert name in text
        assert figures in text
    assert page.rows()["labels"] == "0 1 2 3 4 5 6 7 8 9 10 11 ... (20 in all)"
    assert "0 1 2 3 4 5 6 7 8 9 10 11 ... (20 in all)" in text


def test_the_curves_are_steps_of_value_and_bound():
    page = Checked(run_of(30)._repr_html_())
    assert page.attributes("svg")[0]["aria-label"] == "value and bound over iterations"
    bound, value = page.attributes("polyline")
    assert "stroke-dasharray" in bound
    assert "stroke-dasharray" not in value
    corners = [tuple(map(float, corner.split(","))) for corner in value["points"].split()]
    assert (corners[0][0], corners[-1][0]) == (0.0, display.WIDTH)
    rising = [y for _, y in corners]
    assert rising == sorted(rising, reverse=True)
    assert 0 < corners[-1][1] < display.HEIGHT


def test_the_trace_unfolds_with_its_first_and_last_point():
    page = Checked(run_of(100)._repr_html_())
    assert "trace (100 points)" in page.text
    cells = page.text[page.text.index("trace (100 points)") :]
    assert cells[1:7] == ["seconds", "iterations", "value", "bound", "gap", "phase"]
    assert cells[7:11] == ["0", "0", "-5", "200"]
    assert "94" in cells
    assert "sphere" not in cells


@pytest.mark.parametrize(
    "result",
    [
        run_of(0),
        run_of(1),
        run_of(0, value=-math.inf, bound=-math.inf, status=Status.INFEASIBLE),
        Result(np.zeros(0, dtype=np.int64), 0.0, Status.INTERRUPTED, "icm"),
        Result(np.zeros(1, dtype=np.int64), 0.0, Status.CONVERGED, "x", trace=(TracePoint(0, 0, -math.inf),) * 3),
    ],
)
def test_results_without_a_course_have_no_curve(result):
    page = Checked(result._repr_html_())
    assert not page.attributes("svg")
    assert result.status.value in page.text
    assert "course" not in printed(result)


def test_a_wild_start_stays_inside_of_numbers():
    trace = tuple(TracePoint(i, i, -1e300 if i == 0 else float(i)) for i in range(50))
    (value,) = Checked(run_of(3, trace=trace, bound=None, value=50.0)._repr_html_()).attributes("polyline")
    assert "e" not in value["points"]


def test_names_and_options_are_escaped_and_kept_on_their_line() -> None:
    result = mapmrf.solve(named(NASTY, "two\nlines", "x" * 500, "[bold]"), "exhaustive")
    page = Checked(result._repr_html_())
    assert not page.attributes("script")
    answers = page.rows()["assignment"]
    assert answers.startswith(f"{NASTY}={NASTY}-off"[:20])
    assert "two lines=two lines-off" in printed(result)
    assert "[bold]=[bold]-off" in printed(result)
    assert "x" * 200 not in page.rows()["assignment"]
    page = Checked(run_of(2, options={"path": NASTY}, method=NASTY)._repr_html_())
    assert not page.attributes("script")
    assert page.rows()["path"] == repr(NASTY)


def test_the_terminal_form_does_without_letters_of_the_wider_world():
    assert "_" in printed(run_of(30), "ascii").split("course")[1]
    assert "FactorGraph" in printed(grid(2, 2), "ascii")
    assert "█" in printed(run_of(30)).split("course")[1]


@given(st.lists(st.floats(allow_nan=False), max_size=200))
def test_bars_are_as_long_as_asked_and_span_all_heights(values):
    finite = sorted(value for value in values if math.isfinite(value))
    bars = display._bars(sorted(values), "0123456789")
    assert len(bars) <= 40
    assert list(bars) == sorted(bars)
    assert (bars[:1] + bars[-1:]) == ("09" if finite and finite[0] < finite[-1] else "")


# -- models ----------------------------------------------------------------------------------------------------------


def test_a_model_shows_its_size():
    graph = FactorGraph.from_tables([2, 3, 2], [(0, 1), (0, 1, 2)], [[0, 0, 0, -np.inf, 0, 0], [0] * 12])
    page = Checked(graph._repr_html_())
    rows = page.rows()
    assert rows["variables"] == "3  (2 to 3 states)"
    assert "1 on 2 variables, 1 on 3 variables" in rows["factors"]
    assert "1 of them forbidden" in rows["entries"]
    assert "compiled" in rows["memory"]
    text = printed(graph)
    assert all(figures in text for figures in (rows["variables"], rows["factors"], rows["memory"]))


def test_any_model_is_shown_and_many_names_are_cut():
    for graph in (FactorGraph.from_tables([], [], []), grid(30, 30), named("A", NASTY)):
        assert not Checked(graph._repr_html_()).attributes("script")
        assert "FactorGraph" in printed(graph)
    rows = Checked(named(*(f"v{i}" for i in range(50)))._repr_html_()).rows()
    assert rows["names"].endswith("v11 ... (50 in all)")


def test_showing_a_model_loads_neither_rich_nor_matplotlib_nor_numba():
    code = (
        "import sys, mapmrf; g = mapmrf.FactorGraph.from_tables([2], [], []); repr(g); g._repr_html_();"
        "print(*(name in sys.modules for name in ('rich', 'matplotlib', 'numba')))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False"] * 3


# -- in a browser ----------------------------------------------------------------------------------------------------


@pytest.mark.browser
@pytest.mark.parametrize("ink", ["rgb(17, 17, 17)", "rgb(221, 221, 221)"])
def test_colours_are_those_of_the_page_and_nothing_is_fetched(tmp_path, ink):
    playwright = pytest.importorskip("playwright.sync_api")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no Chromium")
    shown = "".join(thing._repr_html_() for thing in (run_of(30), grid(4, 4)))
    page_file = tmp_path / "page.html"
    page_file.write_text(f'<!doctype html><meta charset="utf-8"><body style="color:{ink}">{shown}</body>', "utf-8")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        fetched = []
        page.on("request", lambda request: fetched.append(request.url))
        page.goto(page_file.as_uri())
        assert fetched == [page_file.as_uri()]
        style = "cells => cells.map(cell => getComputedStyle(cell).color)"
        assert set(page.eval_on_selector_all("td", style)) == {ink}
        box = page.locator("svg").bounding_box()
        assert (box["width"], round(box["height"])) == (display.WIDTH, round(display.HEIGHT) + 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 1000
        browser.close()


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_a_reader_gets_back_every_pixel(tmp_path):
    picture = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    style.write(tmp_path / "p.png", picture)
    np.testing.assert_array_equal((imread(tmp_path / "p.png") * 255).round().astype(np.uint8), picture)
    assert imread(io.BytesIO(style.encode(picture))).shape == (7, 5, 3)


def test_colours_differ_and_are_cut_at_the_ends():
    shades = style.colours(np.arange(8), 8)
    assert len(np.unique(shades, axis=0)) == 8
    np.testing.assert_array_equal(style.colours([-3.0, 99.0], 8), shades[[0, 7]])
    np.testing.assert_array_equal(style.colours([0], 1), shades[:1])


def test_panels_hold_the_enlarged_pictures_under_their_captions() -> None:
    picture = style.colours(np.arange(40).reshape(4, 10), 40)
    sheet = style.panels({"a": picture, "b": picture}, scale=3, margin=6)
    top = sheet.shape[0] - 6 - 12
    assert sheet.shape[1] == 6 + 30 + 6 + 30 + 6
    np.testing.assert_array_equal(sheet[top : top + 12 : 3, 6:36:3], picture)
    np.testing.assert_array_equal(sheet[top : top + 12 : 3, 42:72:3], picture)
    assert (sheet[top:, [0, 5, 36, 41, 72, 77]] == 255).all()
    picture = style.colours(np.zeros((2, 20)), 2)
    sheet = style.panels({"LS-LP 2": picture, " ": picture}, scale=4, margin=8)
    head = sheet[: sheet.shape[0] - 8 - 8]
    ink = np.flatnonzero((head != 255).any(axis=(0, 2)))
    assert ink.min() >= 8 and ink.max() < 88  # nothing above the second picture
    assert abs((ink.min() + ink.max()) / 2 - 48) < 3  # centred
    assert (head[:8] == 255).all()
