"""The benchmark in a program: what may be given, and what the records give back."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

import numpy as np
import pytest

import command_line
import mapmrf
from mapmrf import FactorGraph, OptionError
from mapmrf.bench import Records, report, run
from mapmrf.bench.records import unpack_labels
from mapmrf.bench.report import figures
from mapmrf.bench.run_list import MethodConfig
from mapmrf.datasets import grid
from mapmrf.run.method import Answer, Progress
from refusals import refuses


@dataclass(frozen=True)
class LastStates(mapmrf.Method):
    """The last state of every variable."""

    name: ClassVar[str] = "last"
    max_iterations: int = 1
    first: bool = False

    def start(self, problem: Any, seed: int, initial: Any) -> None:
        return None

    def step(self, problem: Any, state: None) -> Progress:
        labels = 0 * problem.graph.card if self.first else problem.graph.card - 1
        return Progress(1, labels=labels, finished=mapmrf.Status.CONVERGED)

    def answer(self, problem: Any, state: None) -> Answer:
        return Answer()


GRAPHS = {"weak": grid(4, 4, coupling=0.5, seed=1), "strong": grid(4, 5, coupling=2.0, seed=2)}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """Methods of all kinds on models of all kinds, with two seeds."""
    folder = tmp_path_factory.mktemp("models")
    mapmrf.write(GRAPHS["weak"], folder / "filed.uai")
    (folder / "mine.py").write_text(MINE)
    methods = {
        "icm": "icm",
        "starts": mapmrf.ICM(starts=5),
        "class": LastStates,
        "object": LastStates(first=True),
        "file": f"{folder / 'mine.py'}:Mine",
        "lslp": mapmrf.LSLP,
    }
    models = [folder / "filed.uai", GRAPHS["weak"], ("strong <b>", GRAPHS["strong"])]
    return run(methods, models, seeds=[0, 1], time_limit=5)


METHOD = """
from dataclasses import dataclass
import mapmrf
from mapmrf.run.method import Answer, Progress

@dataclass(frozen=True)
class Mine(mapmrf.Method):
    name = "mine"
    max_iterations: int = 10**9

    def start(self, problem, seed, initial):
        return [0]

    def step(self, problem, state):
        {step}

    def answer(self, problem, state):
        return Answer()
"""
DONE = "return Progress(1, labels={labels}, finished=mapmrf.Status.CONVERGED)"
MINE = METHOD.format(step=DONE.format(labels="0 * problem.graph.card"))


def best_of(graph: FactorGraph, labels: Any) -> float:
    """The value of a run that finds these labels: `solve` begins with the best state of every variable."""
    return max(graph.value(labels), graph.value(graph.unary_labels))


def test_all_kinds_of_methods_and_models_are_run(records: Records) -> None:
    assert len(records) == 6 * 3 * 2 and all(record["outcome"] == "done" for record in records)
    assert list(dict.fromkeys(record["model"] for record in records)) == ["filed", "model 2", "strong <b>"]
    values = {(record["model"], record["run"]): record["value"] for record in records if record["seed"] == 0}
    for name, graph in (("filed", GRAPHS["weak"]), ("model 2", GRAPHS["weak"]), ("strong <b>", GRAPHS["strong"])):
        assert values[name, "class"] == pytest.approx(best_of(graph, graph.card - 1))
        assert values[name, "object"] == values[name, "file"] == pytest.approx(best_of(graph, 0 * graph.card))
        assert values[name, "starts"] == pytest.approx(mapmrf.solve(graph, "icm", starts=5).value)
    given = {record["run"]: (record["method"], record["given"]) for record in records}
    assert given["starts"] == ("icm", {"starts": 5}) and given["object"] == ("last", {"first": True})
    assert given["file"] == ("mine.py:Mine", {})
    first = records[0]
    assert GRAPHS["weak"].value(unpack_labels(first["labels"])) == pytest.approx(first["value"])


def test_records_are_a_sequence(records: Records) -> None:
    assert records[0]["run"] == "icm" and len(records[:4]) == 4 and isinstance(records[:4], Records)
    assert len(records[:4] + records[4:6]) == 6
    assert repr(records) == "Records(36 runs of 6 methods on 3 models)"
    assert "<table" in records._repr_html_() and "strong <b>" not in records._repr_html_()
    assert Records()._repr_html_() == "Records(0 runs of 0 methods on 0 models)"


def test_tables_by_name(records: Records) -> None:
    assert records.table().name == "own-overview"
    assert str(records.table("own-logpot")).startswith("Own models: log potential\n")
    frame = records.table("own-logpot").to_pandas()
    assert frame["model"].tolist() == ["filed", "model 2", "strong <b>"]
    assert frame["class"].iloc[2] == pytest.approx(best_of(GRAPHS["strong"], GRAPHS["strong"].card - 1))
    refuses(OptionError, "no table is named 'own-logpt'; known: datasets, own-overview", records.table, "own-logpt")
    refuses(OptionError, "known: none, as there are no records", Records().table)


def test_reports_of_every_kind_and_a_folder_gets_a_file_per_table(records: Records, tmp_path: Path) -> None:
    for name in ("page.html", "tables.md", "tables.tex", "tables.txt"):
        records.report(tmp_path / name)
        assert "lslp" in (tmp_path / name).read_text()
    records.report(f"{tmp_path / 'csv'}/")
    assert {path.stem for path in (tmp_path / "csv").iterdir()} == {table.name for table in records.tables()}
    refuses(OptionError, r"tables.doc: expected a name that ends in \.html", records.report, tmp_path / "tables.doc")


def test_output_is_resumed_and_read_back(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    first = run("icm", GRAPHS, time_limit=5, output=path)
    size = path.stat().st_size
    again = run("icm", GRAPHS, time_limit=5, output=path)
    assert path.stat().st_size == size and [r["key"] for r in first] == [r["key"] for r in again]
    more = run(["icm", LastStates()], GRAPHS, time_limit=5, output=path)
    assert len(more) == 4 and len(Records.read(path)) == 4
    assert run("icm", GRAPHS["weak"], time_limit=5, output=path)[0]["model"] == "model 1"


@pytest.mark.parametrize(
    ("methods", "models", "message"),
    [
        ("icn", GRAPHS, "no method is named 'icn', did you mean 'icm'"),
        ([3], GRAPHS, "methods: found 3, expected a name, a class derived from Method, or an object"),
        ([dict], GRAPHS, "methods: found <class 'dict'>"),
        ([], GRAPHS, "methods: found none"),
        ("icm", [], "models: found none"),
        ("icm", "absent.uai", "absent.uai: no such file"),
        ("icm", [3], "models: found 3, expected a file, a FactorGraph, or a name and a FactorGraph"),
        ("icm", [("a", GRAPHS["weak"]), ("a", GRAPHS["strong"])], "models: two are named 'a'"),
        ([mapmrf.Method], GRAPHS, "Method: Method has no answer, start, step"),
    ],
)
def test_bad_arguments_are_one_line(methods: Any, models: Any, message: str) -> None:
    with pytest.raises(mapmrf.MapMRFError, match=message) as error:
        run(methods, models)
    assert "\n" not in str(error.value)


def test_a_method_of_a_file_goes_by_its_own_name_unless_that_is_one_of_ours(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "taken.py").write_text(MINE.replace('"mine"', '"icm"'))
    assert MethodConfig(f"{tmp_path}/mine.py", {"max_iterations": 3}).name == "mine max_iterations=3"
    assert MethodConfig(f"{tmp_path}/taken.py:Mine").name == "taken.py:Mine"


def test_evidence_holds_for_every_model_and_makes_it_another_one(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    (tmp_path / "seen.evid").write_text("1 3 1")
    (tmp_path / "plan.toml").write_text('methods = ["icm"]\nevidence = { 3 = 0 }')
    mapmrf.write(GRAPHS["weak"], tmp_path / "weak.uai")
    plain = run("icm", [tmp_path / "weak.uai", GRAPHS["strong"]], time_limit=5, output=path)
    seen = run("icm", [tmp_path / "weak.uai", GRAPHS["strong"]], evidence={3: 1}, time_limit=5, output=path)
    assert len({record["key"] for record in (*plain, *seen)}) == 4
    for record, graph in zip(seen, (GRAPHS["weak"], GRAPHS["strong"]), strict=True):
        assert unpack_labels(record["labels"])[3] == 1
        assert record["value"] == pytest.approx(mapmrf.solve(graph, "icm", evidence={3: 1}).value)
    by_file = ["--methods", "icm", "--evidence", tmp_path / "seen.evid"]
    for options, label in ((by_file, 1), (["--plan", tmp_path / "plan.toml"], 0)):
        done = command_line.run("bench", tmp_path / "*.uai", "-t", 5, "-o", path, *options)
        assert "1 runs recorded" in done.stdout
        assert unpack_labels(Records.read(path)[-1]["labels"])[3] == label


def test_an_object_is_run_by_name_where_that_is_the_same() -> None:
    assert MethodConfig.of(mapmrf.ICM(starts=3)) == MethodConfig("icm", {"starts": 3})
    assert MethodConfig.of(mapmrf.LSLP(preset="paper", rho=0.2)).make() == mapmrf.LSLP(preset="paper", rho=0.2)
    mine = MethodConfig.of(LastStates(first=True))
    assert mine.make() == LastStates(first=True) and mine.name == "last first=True" and mine.source


SCRIPT = (
    METHOD.format(step=DONE.format(labels="problem.graph.card - 1"))
    + """
print("begins")
graph = mapmrf.FactorGraph.from_tables([2, 2], [(0, 1)], [[0.0, 1.0, 2.0, 5.0]])
for record in mapmrf.bench.run([Mine, "exhaustive"], graph, time_limit=5):
    print(record["run"], record["outcome"], record["value"])
"""
)


def test_a_script_needs_no_guard_and_its_own_classes_are_sent_along(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == "begins\nmine done 5.0\nexhaustive done 5.0\n"


# -- data frames ------------------------------------------------------------------------------------------------------


def test_records_as_a_frame(records: Records) -> None:
    frame = records.to_pandas()
    assert len(frame) == 36 and frame["value"].tolist() == [record["value"] for record in records]
    assert frame[frame["run"] == "starts"]["option starts"].tolist() == [5.0] * 6
    assert not set(frame.columns) & {"trace", "labels", "options"}
    trace = records.to_pandas("trace")
    assert len(trace) == sum(len(record["trace"]) for record in records)
    last = trace[(trace["run"] == "lslp") & (trace["model"] == "filed") & (trace["seed"] == 1)].iloc[-1]
    (record,) = [r for r in records if (r["run"], r["model"], r["seed"]) == ("lslp", "filed", 1)]
    assert last["value"] == record["trace"][-1][2] <= record["value"]
    refuses(OptionError, "of is 'tables', expected one of runs, trace", records.to_pandas, "tables")


def test_records_as_a_dataset(records: Records) -> None:
    partly = Records([*records[:5], {**records[5], "outcome": "crash", "value": None, "set": "other"}])
    data = records.to_xarray()
    assert dict(data.sizes) == {"model": 3, "run": 6, "seed": 2}
    for record in records:
        cell = data.sel(model=record["model"], run=record["run"], seed=record["seed"])
        assert float(cell["value"]) == record["value"] and str(cell["status"].values) == record["status"]
    assert data["set"].values.tolist() == ["own"] * 3
    crashed = partly.to_xarray().sel(model="other/filed", run="class", seed=1)
    assert math.isnan(crashed["value"]) and str(crashed["outcome"].values) == "crash"


def test_a_result_as_a_frame_and_a_dataset() -> None:
    names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
    graph = FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]], names=names)
    result = mapmrf.solve(graph, "lslp", margins=True)
    frame = result.to_pandas()
    assert frame.index.tolist() == ["Rain", "Grass"] and frame["state"].tolist() == ["yes", "wet"]
    assert frame["margin_low"].tolist() == result.margins[:, 0].tolist()  # type: ignore[index]
    assert frame.attrs["value"] == result.value and frame.attrs["status"] == result.status.value
    trace = result.to_pandas("trace")
    assert len(trace) == len(result.trace) and trace["value"].iloc[-1] == result.trace[-1].value
    assert set(result.trace[-1].extra) <= set(trace.columns)
    data = result.to_xarray()
    assert data["label"].sel(variable="Rain") == 1 and data.sizes["point"] == len(result.trace)
    assert all(isinstance(value, str | int | float) for value in data.attrs.values())
    plain = mapmrf.solve(GRAPHS["weak"], "icm").to_pandas()
    assert list(plain.columns) == ["label"] and plain.index.tolist() == list(range(16))
    refuses(OptionError, "of is 'states', expected one of labels, trace", result.to_pandas, "states")


@pytest.mark.parametrize("package", ["pandas", "xarray"])
def test_an_absent_package_is_one_line(package: str, records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    result = mapmrf.Result.of_labels(GRAPHS["weak"], np.zeros(16, dtype=np.int64), mapmrf.Status.CONVERGED, "none")
    for thing in (result, records):
        with pytest.raises(
            ImportError,
            match=rf"^this needs {package}: pip install 'mapmrf\[frames\]' \('.\[frames\]' in a checkout\)$",
        ):
            getattr(thing, f"to_{package}")()


# -- figures ----------------------------------------------------------------------------------------------------------


def test_every_figure_is_svg_and_pdf(records, tmp_path, monkeypatch) -> None:
    names = {name for name, _ in figures(records)}
    pools = {"profile-own", "target-own", "accuracy-own", "loss-own"}
    models = {"filed", "model-2", "strong-b"}
    within = {f"{kind}-own-within-{distance}" for kind in ("profile", "target") for distance in ("0.001", "0.01")}
    curves = {f"anytime-own-{model}" for model in models} | {f"convergence-own-{model}-lslp" for model in models}
    assert names == pools | within | curves
    one = Records(r for r in records if r["model"] == "filed")
    written = one.figures(tmp_path / "figures", ["svg"])
    assert len(written) == len({path.stem for path in written} & names) > len(pools)
    for path in written:
        assert ElementTree.parse(path).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    monkeypatch.setattr(report, "figures", lambda some: itertools.islice(figures(some), 2))
    assert [path.suffix for path in one.figures(tmp_path)] == [".svg", ".pdf"] * 2
    assert all(path.read_bytes().startswith(b"%PDF-") for path in tmp_path.glob("*.pdf"))


def test_figures_are_the_same_every_time_and_names_are_no_markup(records, tmp_path, monkeypatch) -> None:
    some = Records({**r, "run": f"</svg><script>{r['run']}$x$-->", "set": "../up"} for r in records[:2])
    for path in some.figures(tmp_path / "one", ["svg"]):
        assert path.parent == tmp_path / "one"
        ElementTree.parse(path)  # well formed
        assert b"<script" not in path.read_bytes()
    monkeypatch.setattr(report, "figures", lambda some: itertools.islice(figures(some), 3))
    for path in some.figures(tmp_path / "two", ["svg"]):
        assert path.read_bytes() == (tmp_path / "one" / path.name).read_bytes()


def test_figures_show_the_curves(records: Records) -> None:
    drawn = dict(figures(records))
    (axes,) = drawn["anytime-own-filed"].axes
    names = {text.get_text() for text in axes.get_legend().get_texts()}
    assert names == {"icm", "starts", "class", "object", "file", "lslp"}
    assert len(axes.collections) == 6  # a band for each, as there are two seeds
    refuses(OptionError, "formats: found 'doc', expected some of svg, pdf", records.figures, "nowhere", ["doc"])
    assert dict(figures([])) == {}
