"""`mapmrf plot`: the right picture from the files, written whole; one line for everything that is wrong."""

import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

import command_line
import mapmrf
from mapmrf import plots
from mapmrf.cli import plotting
from mapmrf.datasets import grid, random_graph
from mapmrf.formats.solution import write_solution

MAGIC = {"png": b"\x89PNG\r\n\x1a\n", "svg": b"<?xml", "pdf": b"%PDF-"}


def done(*args):
    return command_line.done("plot", *args).strip()


def refused(*args):
    return command_line.refused("plot", *args)


@pytest.fixture(scope="module")
def graph():
    return grid(3, 4, coupling=2.0, seed=1)


@pytest.fixture(scope="module")
def answer(graph):
    return mapmrf.solve(graph, "lslp")


@pytest.fixture
def folder(tmp_path, monkeypatch, graph, answer):
    """A folder with a model, a full and a bare result, a trace, a solution, and a model that is no lattice."""
    monkeypatch.chdir(tmp_path)
    mapmrf.write(graph, "grid.uai.gz")
    mapmrf.write(random_graph(6, 5, seed=1), "other.uai")
    (tmp_path / "full.json").write_text(answer.to_json(trace=True, mu_v=True))
    (tmp_path / "bare.json").write_text(answer.to_json())
    (tmp_path / "icm.json").write_text(mapmrf.solve(graph, "icm").to_json())
    answer.write_trace("run.csv")
    write_solution("grid.MPE", answer.labels)
    write_solution("other.MPE", np.zeros(6, dtype=np.int64))
    return tmp_path


@pytest.fixture
def called(monkeypatch):
    """Which function of `plots` was called, and with what."""
    calls = []

    def spy(name):
        function = getattr(plots, name)

        def call(*args, **options):
            calls.append((name, args, options))
            return function(*args, **options)

        return call

    for name in ("convergence", "compare", "label_map", "factor_graph", "kinds"):
        monkeypatch.setattr(plots, name, spy(name))
    return calls


# -- what is drawn ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("files", "picture", "written"),
    [
        (["full.json"], "convergence", "full-convergence.png"),
        (["run.csv"], "convergence", "run-convergence.png"),
        (["bare.json"], "kinds", "bare-kinds.png"),
        (["run.csv", "full.json"], "compare", "run-compare.png"),
        (["grid.uai.gz"], "factor_graph", "grid-graph.png"),
        (["grid.uai.gz", "grid.MPE"], "label_map", "grid-labels.png"),
        (["full.json", "grid.uai.gz"], "label_map", "full-labels.png"),
        (["other.uai", "other.MPE"], "factor_graph", "other-graph.png"),
        (["grid.MPE", "--shape", "4x3"], "label_map", "grid-labels.png"),
        (["full.json", "--shape", "2x6"], "label_map", "full-labels.png"),
    ],
)
def test_the_kind_follows_from_the_files(folder, called, files, picture, written):
    assert done(*files) == written
    assert [name for name, _, _ in called] == [picture]
    assert (folder / written).read_bytes().startswith(MAGIC["png"])


@pytest.mark.parametrize(
    ("kind", "files", "picture"),
    [
        ("convergence", ["run.csv", "--over", "seconds", "--title", "mine"], "convergence"),
        ("compare", ["full.json"], "compare"),
        ("labels", ["full.json", "grid.uai.gz"], "label_map"),
        ("graph", ["full.json", "grid.uai.gz"], "factor_graph"),
        ("kinds", ["full.json", "grid.uai.gz"], "kinds"),
        ("kinds", ["full.json"], "kinds"),
    ],
)
@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_every_kind_is_written_in_every_form(folder, called, kind, files, picture, suffix):
    assert done(*files, "--kind", kind, "-o", f"out.{suffix}") == f"out.{suffix}"
    assert [name for name, _, _ in called] == [picture]
    data = (folder / f"out.{suffix}").read_bytes()
    assert data.startswith(MAGIC[suffix])
    if suffix == "svg":
        ElementTree.fromstring(data)
        done(*files, "--kind", kind, "-o", "again.svg")
        assert (folder / "again.svg").read_bytes() == data


def test_the_model_gives_shape_labels_and_colours(folder, called, answer):
    done("full.json", "grid.uai.gz")
    _, (labels,), options = called[0]
    assert labels.tolist() == answer.labels.tolist()
    assert (options["shape"], options["n_labels"]) == ((3, 4), 2)
    done("grid.uai.gz", "grid.MPE", "--kind", "graph")
    assert called[1][2]["labels"].tolist() == answer.labels.tolist()


def test_names_of_states_are_in_the_legend(folder, called):
    names = mapmrf.Names(tuple(f"pixel{i}" for i in range(12)), (("sky", "tree"),) * 12)
    edges = [(i, j) for i in range(12) for j in (i + 1, i + 4) if j < 12 and (j - i == 4 or j % 4)]
    model = mapmrf.FactorGraph.from_pairwise(np.zeros((12, 2)), edges, np.eye(2), names=names)
    mapmrf.write(model, "named.cfn")
    done("named.cfn", "grid.MPE")
    assert called[0][2]["names"] == ("sky", "tree")


def test_labels_lie_over_an_image(folder, called):
    from mapmrf.plots import style

    style.write("photo.png", style.colours(np.arange(12).reshape(3, 4), 12))
    done("full.json", "grid.uai.gz", "--image", "photo.png")
    assert called[0][2]["image"].shape[:2] == (3, 4)


def test_equal_names_of_files_are_told_apart(folder, called):
    (folder / "sub").mkdir()
    (folder / "sub" / "run.csv").write_text((folder / "run.csv").read_text())
    done("run.csv", "sub/run.csv", "icm.json")
    assert list(called[0][1][0]) == ["run.csv", "sub/run.csv", "icm.json"]


def test_dollars_are_no_mathematics(folder):
    (folder / "a$x^$.csv").write_text((folder / "run.csv").read_text())
    done("a$x^$.csv", "--title", "$\\frac$", "-o", "title.png")
    done("a$x^$.csv", "-o", "alone.png")
    done("a$x^$.csv", "run.csv", "-o", "both.png")


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["full.json", "-o", "out.jpg"], "out.jpg: expected a name that ends in .png, .svg, .pdf"),
        (["full.json", "-o", "out"], "out: expected a name that ends in .png"),
        (["full.json", "-o", "none/out.png"], "there is no folder none"),
        (["full.json", "--kind", "pie"], "--kind: found 'pie', expected one of convergence, compare"),
        (["nothing.json"], "nothing.json: cannot read"),
        (["nothing.uai"], "nothing.uai: cannot read"),
        (["nothing.csv"], "nothing.csv: cannot read: No such file or directory"),
        (["bad.json"], "bad.json: not a result written by mapmrf"),
        (["bad.csv"], "bad.csv: line 1: no column 'iterations'"),
        (["worse.csv"], "worse.csv: line 3: value is 'much', expected a number"),
        (["full.json", "full.json"], "given twice"),
        (["grid.uai.gz", "other.uai"], "other.uai: a second model"),
        (["grid.uai.gz", "grid.MPE", "other.MPE"], "a second solution"),
        (["grid.MPE"], "expected the model of this solution as well, or --shape HxW"),
        (["grid.MPE", "--shape", "5x5"], "grid.MPE"),
        (["other.uai", "grid.MPE"], "grid.MPE"),
        (["full.json", "other.uai", "-k", "labels"], "12 labels, expected one for each of the 6 variables"),
        (["other.uai", "other.MPE", "-k", "labels"], "the model is not a lattice, expected --shape HxW"),
        (["full.json", "-k", "labels"], "no model is given, expected --shape HxW"),
        (["full.json", "--shape", "3"], "--shape: found '3', expected height and width such as 72x96"),
        (["full.json", "--shape", "5x5"], "12 labels do not fill 5 x 5"),
        (["full.json", "-k", "kinds", "--over", "seconds"], "--over belongs to --kind convergence"),
        (["grid.uai.gz", "--shape", "3x4"], "--shape belongs to --kind labels or kinds or margins, found --kind graph"),
        (["full.json", "-k", "graph"], "--kind graph: expected a model"),
        (["run.csv", "-k", "kinds"], "--kind kinds: expected one result"),
        (["run.csv", "-k", "labels"], "--kind labels: expected one result or solution"),
        (["run.csv", "grid.uai.gz"], "--kind convergence: expected one result or trace, and no model"),
        (["icm.json"], "icm: the result has no trace"),
        (["icm.json", "-k", "kinds"], "icm has no relaxed solution"),
        (["grid.uai.gz", "-k", "compare"], "--kind compare: expected results or traces"),
        (["full.json", "grid.uai.gz", "--image", "none.png"], "none.png: cannot read"),
        (["full.json", "grid.uai.gz", "--image", "bad.csv"], "bad.csv: "),
    ],
)
def test_what_is_wrong_is_said_in_one_line(folder, args, message):
    (folder / "bad.json").write_text("[1, 2]")
    (folder / "bad.csv").write_text("time,value\n")
    (folder / "worse.csv").write_text("time,iterations,value\n0.1,1,2.5\n0.2,2,much\n")
    before = sorted(path.name for path in folder.iterdir())
    assert message in refused(*args)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_missing_matplotlib_names_the_extra(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert "pip install 'mapmrf[plots]'" in refused("full.json")


def test_every_picture_of_the_library_has_a_kind():
    assert len(plotting.KINDS) == len(set(plots.__all__) - {"lattice_shape"})
    assert all(kind in command_line.done("plot", "--help") for kind in plotting.KINDS)


@pytest.mark.parametrize("name", ["time", "iterations", "value", "bound"])
def test_a_trace_with_a_huge_integer_is_plotted_or_refused(tmp_path, name) -> None:
    path, huge = tmp_path / "run.csv", "1" * 400
    row = {"time": "0.1", "iterations": "1", "value": "0.0", "bound": "1.0"} | {name: huge}
    path.write_text(",".join(row) + "\n0,0,0,1\n" + ",".join(row.values()) + "\n")
    if name in ("time", "iterations"):
        assert f"run.csv: line 3: {name} is " in refused(path, "-o", tmp_path / "run.svg")
    else:  # a float: infinite
        done(path, "-o", tmp_path / "run.svg")
