import subprocess
import sys

import numpy as np
import pytest

from mapmrf import plots
from mapmrf.errors import GraphError
from mapmrf.result import Result, Status, TracePoint


def result_with(*trace: TracePoint) -> Result:
    return Result(np.zeros(1, dtype=np.int64), 0.0, Status.CONVERGED, "lslp", trace=trace)


def test_label_map_draws_every_label(tmp_path):
    figure = plots.label_map([[0, 1, 2], [2, 2, 4]], n_labels=6, title="labels")
    figure.savefig(tmp_path / "labels.png")
    (axes,) = figure.axes
    assert axes.get_title() == "labels"
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "2", "4"]
    assert (tmp_path / "labels.png").stat().st_size > 0


def test_label_map_of_many_labels_has_no_legend():
    assert plots.label_map(np.arange(30).reshape(5, 6)).axes[0].get_legend() is None


@pytest.mark.parametrize("labels", [[0, 1], [[]]])
def test_label_map_wants_a_picture(labels):
    with pytest.raises(GraphError, match=r"expected \(height, width\)"):
        plots.label_map(labels)


def test_convergence_draws_what_the_trace_has(tmp_path):
    trace = [TracePoint(i / 10, i, -5.0 + i, bound=9.0 - i, primal=0.5**i, rho=1.1**i) for i in range(4)]
    figure = plots.convergence(result_with(*trace))
    figure.savefig(tmp_path / "run.png")
    upper, lower = figure.axes
    assert {line.get_label() for line in upper.lines} == {"value", "bound"}
    assert {line.get_label() for line in lower.lines} == {"primal", "rho"}


@pytest.mark.parametrize(
    "trace",
    [(), (TracePoint(0.1, 1, -np.inf, bound=np.inf),), (TracePoint(0.1, 1, 1.0, primal=0.0),)],
)
def test_convergence_of_short_runs(trace, tmp_path):
    plots.convergence(result_with(*trace)).savefig(tmp_path / "run.png")


def test_missing_matplotlib_is_explained(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match=r"mapmrf\[plots\]"):
        plots.label_map([[0]])


def test_matplotlib_and_its_windows_are_left_alone():
    code = (
        "import sys, mapmrf.plots as plots; before = 'matplotlib' in sys.modules; plots.label_map([[0, 1]]);"
        "print(before, 'matplotlib.pyplot' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "False"]
