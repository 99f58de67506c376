"""The page: whole, self-contained, safe, and alive in a real browser."""

from __future__ import annotations

import html
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mapmrf
from mapmrf.bench.records import TRACE_COLUMNS
from mapmrf.bench.report import build_report
from mapmrf.bench.run_list import MethodConfig, ModelRef, RunList
from mapmrf.bench.worker import Runner
from mapmrf.datasets import grid, random_graph
from mapmrf.datasets.catalogue import COLUMNS


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Three methods on two grids and a model that one of them does not take, and a crash."""
    folder = tmp_path_factory.mktemp("models")
    graphs = {
        "grid a": grid(5, 6, 2.0, seed=1),
        "grid b": grid(6, 6, 2.0, seed=2),
        "mixed": random_graph(40, 60, seed=1),
    }
    models = []
    for number, (name, graph) in enumerate(graphs.items(), start=1):
        path = folder / f"{name}.uai"
        mapmrf.write(graph, path)
        models.append(ModelRef("own", name, str(path), f"M{number}"))
    runs = [
        MethodConfig("icm"),
        MethodConfig("lslp"),
        MethodConfig("lp"),
        MethodConfig("exhaustive"),
        MethodConfig("icm", {"starts": 3}, "icm <3> & more"),
    ]
    runner = Runner()
    found = [runner.record(task) for task in RunList(runs, models, time_limit=3.0).tasks()]
    lost = {**found[0], "key": "lost", "run": "bp", "method": "bp", "outcome": "crash", "message": "code -11 </script>"}
    return [*found, lost]


class Tags(HTMLParser):
    """Counts tags and checks that they are closed in order."""

    VOID = frozenset({"meta", "link", "img", "br", "input"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.attributes |= {key for key, _ in attributes}
        for key, value in attributes:
            if key in ("src", "href") and value and not value.startswith(("#", "data:")):
                self.outside.append(value)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def payload(page: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert text is not None
    assert "<" not in text[1]
    return json.loads(text[1])


def test_the_page_is_well_formed_and_needs_nothing_from_outside(records: list[dict[str, Any]]) -> None:
    page = build_report(records, "A <title>")
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == []
    assert "<!--" not in page.split('id="data"')[0].split("</style>")[1]
    assert "<title>A &lt;title&gt;</title>" in page
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)


def test_the_data_hold_values_losses_and_traces(records: list[dict[str, Any]]) -> None:
    data = payload(build_report(records))
    (only,) = data["sets"]
    assert [model["name"] for model in only["models"]] == ["M1 grid a", "M2 grid b", "M3 mixed"]
    first = only["models"][0]["runs"]
    assert "exhaustive" not in first  # 2^30 labellings are too many
    assert min(run["loss"] for run in first.values()) == 0.0
    assert first["lslp"]["trace"] and len(first["lslp"]["trace"][0]) == len(data["columns"])


def test_models_without_a_place_in_a_picture_have_no_map_and_the_page_says_why(records: list[dict[str, Any]]) -> None:
    """Where another set has maps; without any, there is no section at all."""
    plain = [{**record, "shape": None, "index": "", "key": f"plain {record['key']}"} for record in records]
    for which, reason in {
        "other": "no model is a grid in reading order",
        "seg-2": "superpixels: the files say which ones touch",
        "scene-like": "superpixels",
        "protein": "interactions of proteins",
    }.items():
        others = [{**record, "set": which} for record in plain]
        page = build_report([*records, *others])
        assert reason in page and page.count("<details class=maps>") == 2
        assert 'id="maps"' not in build_report(others) and "#maps" not in build_report(others).split("</nav>")[0]
    huge = [{**record, "set": "huge", "labels": None} for record in records]
    assert "up to 100000 variables only" in build_report([*records, *huge])


def test_sections_without_data_are_not_on_the_page(records: list[dict[str, Any]]) -> None:
    def sections(some: list[dict[str, Any]]) -> set[str]:
        page = build_report(some)
        found = set(re.findall(r'<section id="(\w+)">', page))
        assert found == set(re.findall(r'<a href="#(\w+)">', page))
        return found

    every = {"summary", "profile", "target", "accuracy", "loss", "anytime", "convergence", "maps", "tables"}
    assert sections(records) == {*every, "troubles", "machine"}
    done = [record for record in records if record["outcome"] == "done"]
    assert sections(done) == {*every, "machine"}
    icm = [record for record in done if record["run"] == "icm" and record["model"] == "mixed"]
    assert sections(icm) == every - {"profile", "convergence", "maps"} | {"machine"}
    assert sections([{**record, "trace": []} for record in icm]) == {
        "summary", "target", "accuracy", "loss", "tables", "machine"
    }  # fmt: skip
    assert sections([records[-1]]) == {"tables", "troubles", "machine"}


EVIL = "<script>alert('x')</script><!--data--> \\1 & \" onload=x"


def with_markup(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records whose names are markup: of models, methods, sets and options, messages, versions, phases."""
    evil = []
    for record in records:
        texts = {key: EVIL + value for key, value in record.items() if isinstance(value, str) and key in NAMES}
        trace = [[*row[:-1], EVIL] for row in record.get("trace", [])]
        evil.append({**record, **texts, "trace": trace, "given": {EVIL: EVIL}, "cpu": EVIL, "package": EVIL})
    return evil


def test_no_name_gets_into_the_page_as_markup(records: list[dict[str, Any]]) -> None:
    page = build_report(with_markup(records), EVIL)
    tags = Tags()
    tags.feed(page)
    assert tags.open == [] and tags.outside == []
    assert "<script>alert" not in page and page.count("<script") == 2
    assert "onload" not in tags.attributes
    assert EVIL + "icm" in payload(page)["runs"]
    for text in ("icm <3> & more", "code -11 </script>"):  # a run, and a message
        assert html.escape(EVIL + text) in page
    assert build_report(records, "<!--data-->").count("&lt;!--data--&gt;") == 2


NAMES = ("set", "model", "run", "method", "message", "status", "kind_text", "version")


def test_the_sets_types_and_warnings_are_on_the_page(records: list[dict[str, Any]]) -> None:
    page = build_report(records)
    assert "id='datasets'" in page and "id='own-kinds'" in page
    assert "class=warning" not in page
    odd = {**records[0], "key": "odd", "set": "grids", "model": "grid20x20.f10", "checksum": "differs"}
    page = build_report([*records, odd])
    assert "These files differ from the catalogue" in page and "grid20x20.f10 (not the catalogue&#x27;s)" in page


def test_the_page_shows_maps_of_grids_and_versions_of_packages(records: list[dict[str, Any]]) -> None:
    assert "ortools 9.15" in build_report([*records, {**records[0], "key": "p", "package": "ortools 9.15"}])
    page = build_report(records)
    assert page.count("<details class=maps>") == 2
    assert page.count("src='data:image/png;base64,") == 2 * 2 * 4


def test_infinite_values_make_no_page_fail(records: list[dict[str, Any]]) -> None:
    broken = {
        **records[0],
        "key": "x",
        "run": "infeasible",
        "value": -np.inf,
        "trace": [[0.0, 1, -np.inf] + [None] * 6],
    }
    data = payload(build_report([*records, broken]))
    assert data["sets"][0]["models"][0]["runs"]["infeasible"]["loss"] is None


# -- in a browser -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs pip install 'mapmrf[browser]'")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium, for instance apt install chromium")
    with playwright.sync_playwright() as p:
        started = p.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Any, records: list[dict[str, Any]], folder: Path, **context: Any) -> tuple[Any, list[str]]:
    path = folder / "report.html"
    path.write_text(build_report(records), encoding="utf-8")
    page = browser.new_context(offline=True, **context).new_page()
    complaints: list[str] = []
    page.on(
        "console", lambda message: complaints.append(message.text) if message.type in ("error", "warning") else None
    )
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(path.as_uri())
    return page, complaints


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_opens_and_the_charts_draw(browser, records, tmp_path, scheme, width) -> None:
    page, complaints = opened(browser, records, tmp_path, color_scheme=scheme, viewport={"width": width, "height": 800})
    for chart in ("profile", "target", "accuracy", "anytime", "convergence"):
        assert page.locator(f"#{chart}-chart path.line").count() >= 1, chart
    assert page.locator("#loss-chart circle").count() >= 6
    wide = page.evaluate("document.documentElement.scrollWidth > innerWidth + 1")
    assert not wide, "the page must not scroll sideways"
    assert complaints == []


@pytest.mark.browser
def test_names_that_are_markup_do_nothing_in_a_browser(browser, records, tmp_path) -> None:
    """The charts and their legends are drawn by a script, which must not make markup of names either."""
    page, complaints = opened(browser, with_markup(records), tmp_path)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.locator("#loss-chart circle").first.hover()
    page.locator("#accuracy-chart .legend button").first.click()
    assert "<script>alert" in page.locator("#accuracy-chart .legend").inner_text()
    assert page.locator("script").count() == 2
    assert (dialogs, complaints) == ([], [])


@pytest.mark.browser
def test_tables_sort_both_ways_with_missing_figures_last(browser, records, tmp_path) -> None:
    page, complaints = opened(browser, records, tmp_path)
    table = page.locator("#own-overview")
    place = table.locator("thead th").all_inner_texts().index("mean rank")

    def figures() -> list[float]:
        return [float(text) for text in table.locator(f"tbody td:nth-child({place + 1})").all_inner_texts()]

    button = table.locator("thead button").nth(place)
    button.click()
    assert figures() == sorted(figures())
    button.click()
    assert figures() == sorted(figures(), reverse=True)
    assert table.locator("th[aria-sort=descending]").count() == 1
    assert complaints == []


@pytest.mark.browser
def test_hovering_hiding_and_choosing_work(browser: Any, records: list[dict[str, Any]], tmp_path: Path) -> None:
    page, complaints = opened(browser, records, tmp_path)
    page.locator("#loss-chart circle").first.hover()
    assert "best known" in page.locator("#tip").inner_text()
    lines = page.locator("#profile-chart path.line").count()
    page.locator("#profile-chart .legend button").first.click()
    assert page.locator("#profile-chart path.line").count() == lines - 1
    page.locator("#profile-chart .legend button").first.click()
    assert page.locator("#profile-chart path.line").count() == lines
    before = page.locator("#anytime-chart svg").inner_html()
    page.locator("#anytime-model").select_option(index=2)
    assert page.locator("#anytime-chart svg").inner_html() != before
    page.locator("#maps summary").first.click()
    assert page.locator("#maps img.labels").first.is_visible()
    page.locator("#maps-differences").check()
    assert not page.locator("#maps img.labels").first.is_visible()
    assert page.locator("#maps img.differences").first.is_visible()
    assert complaints == []


@pytest.fixture(scope="module")
def wide(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Nine methods of the paper on two of its grids, with figures of the paper beside, and one that has phases."""
    done = next(record for record in records if record["outcome"] == "done")
    row = dict.fromkeys(TRACE_COLUMNS, None)
    trace = [
        list({**row, "time": 0.1 * k + 0.01, "iterations": k, "value": 2000.0 + k, "phase": phase}.values())
        for k, phase in enumerate(["relax", "relax", "search", "prove"])
    ]
    found = []
    for index, model in (("M1", "grid20x20.f10"), ("M2", "grid20x20.f10.wrap")):
        for method in [*COLUMNS, "auto"]:
            about = {"set": "grids", "index": index, "model": model, "run": method, "method": method, "shape": None}
            found.append({**done, **about, "key": model + method, "value": 2500.0 + len(method), "trace": trace})
    return found


@pytest.mark.browser
def test_columns_of_a_run_stand_under_its_name_sort_and_the_papers_can_be_hidden(browser, wide, tmp_path) -> None:
    page, complaints = opened(browser, wide, tmp_path)
    table = page.locator("#grids-logpot")
    page.locator("details:has(#grids-logpot) summary").click()
    head = table.locator("th[data-of=lslp]", has_text="paper")
    place = int(head.get_attribute("data-place"))
    cells = table.locator(f"tbody td:nth-child({place + 1})")
    assert cells.all_inner_texts() == ["2931.803", "2936.703"]
    for expected in (["2931.803", "2936.703"], ["2936.703", "2931.803"]):
        head.locator("button").click()
        assert cells.all_inner_texts() == expected

    def edge(which: str) -> list[float]:
        box = table.locator(which).first.bounding_box()
        return [box["x"], box["x"] + box["width"]]

    assert edge("th.group:text('lslp')")[1] == pytest.approx(edge("th[data-of=lslp]:has-text('difference')")[1], abs=1)
    page.locator("#tables-paper").uncheck()
    assert not cells.first.is_visible()
    assert edge("th.group:text('lslp')") == pytest.approx(edge("th[data-of=lslp]:has-text('ours')"), abs=1)
    page.locator("#tables-paper").check()
    assert cells.first.is_visible()
    assert complaints == []


@pytest.mark.browser
def test_wide_tables_are_printed_in_parts_that_fit_the_sheet(browser, wide, tmp_path) -> None:
    sheet = 703  # A4 less its margins
    page, complaints = opened(browser, wide, tmp_path, viewport={"width": sheet, "height": 1000})
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    whole, parts = page.locator("#grids-logpot"), page.locator("#grids-logpot ~ table.excerpt")
    assert not whole.is_visible() and parts.count() > 1
    names = []
    for part in parts.all():
        assert part.bounding_box()["width"] <= sheet
        assert part.locator("tbody tr").first.locator("td").all_inner_texts()[:2] == ["M1", "grid20x20.f10"]
        cells = part.locator("tbody tr, tfoot tr").evaluate_all("rows => rows.map(row => row.cells.length)")
        above = part.locator("thead tr").first.locator("th").evaluate_all("heads => heads.map(head => head.colSpan)")
        assert set(cells) == {sum(above)}
        names += part.locator("th.group").all_inner_texts()
    assert names == whole.locator("th.group").all_text_contents()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("table.excerpt").count() == 0 and page.locator("table.too-wide").count() == 0
    page.emulate_media(media="screen")
    assert page.pdf(format="A4").startswith(b"%PDF") and complaints == []


@pytest.mark.browser
def test_phases_of_a_method_are_marked_on_its_curve(browser: Any, wide: list[dict[str, Any]], tmp_path: Path) -> None:
    page, complaints = opened(browser, wide, tmp_path)
    assert page.locator("#anytime-chart circle.turn").count() == 3 * 14
    page.locator("#anytime-chart circle.turn").nth(1).dispatch_event("pointermove")
    assert "begins search" in page.locator("#tip").inner_text()
    assert complaints == []
