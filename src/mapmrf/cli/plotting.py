"""The command that draws: `plot`."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mapmrf.cli import check_outputs, force_option, main, memory_option, read_labels, read_model
from mapmrf.errors import FormatError, OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mapmrf.arrays import Ints
    from mapmrf.model.graph import FactorGraph
    from mapmrf.plots.display import Over
    from mapmrf.run.result import Result, TracePoint

SUFFIXES: dict[str, dict[str, Any]] = {
    ".png": {"dpi": 150},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}
"""File formats and their settings: no date, so that equal pictures are equal files."""
SOLUTIONS = (".mpe", ".map", ".sol", ".txt")


@dataclass
class PlotRequest:
    """The options of a picture, and the content of the files given."""

    shape: tuple[int, int] | None = None
    over: Over | None = None
    image: str | None = None
    title: str | None = None
    model: FactorGraph | None = None
    runs: dict[str, Result | tuple[TracePoint, ...]] = field(default_factory=dict)
    labels: Ints | None = None

    @property
    def result(self) -> Result | None:
        """The result, if there is exactly one run and it is not just a trace."""
        from mapmrf.run.result import Result

        only = next(iter(self.runs.values())) if len(self.runs) == 1 else None
        return only if isinstance(only, Result) else None


def _shape(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", text.strip())
    if found is None:
        raise OptionError(f"--shape: found {text!r}, expected height and width such as 72x96")
    return int(found[1]), int(found[2])


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--kind", "-k", metavar="NAME", help="convergence, compare, labels, graph, network, kinds or margins.")
@click.option("--output", "-o", metavar="FILE", help="Picture to write: .png, .svg or .pdf.  [default: FILE-KIND.png]")
@click.option("--shape", callback=_shape, metavar="HxW", help="Height and width of a map of labels, kinds or margins.")
@click.option("--over", type=click.Choice(["iterations", "seconds"]), help="Horizontal axis of a convergence plot.")
@click.option("--image", metavar="FILE", help="Picture to draw the labels on.")
@click.option("--title", metavar="TEXT", help="Title.")
@memory_option()
@force_option
def plot(
    files: Sequence[str],
    kind: str | None,
    output: str | None,
    shape: tuple[int, int] | None,
    over: str | None,
    image: str | None,
    title: str | None,
) -> None:
    """Plot results, traces and models.

    A FILE is a result (.json), a trace (.csv), a solution (.MPE) or a model. Without --kind, one run is drawn as a
    convergence plot, several runs are compared, a model is drawn as a graph, and a lattice model with a result or a
    solution as a map of labels.
    """
    if kind is not None and kind not in KINDS:
        raise OptionError(f"--kind: found {kind!r}, expected one of {', '.join(KINDS)}")
    if output is not None and Path(output).suffix.lower() not in SUFFIXES:
        raise OptionError(f"{output}: expected a name that ends in {', '.join(SUFFIXES)}")
    check_outputs(output)
    from mapmrf.plots.style import NO_MATPLOTLIB, literal

    try:
        import matplotlib.figure  # before a large model is read
    except ImportError:
        raise ImportError(NO_MATPLOTLIB) from None
    request = PlotRequest(shape, cast("Over | None", over), image, None if title is None else literal(title))
    _read(files, request)
    kind = kind or _default_kind(request)
    used = {"shape": ("labels", "kinds", "margins"), "over": ("convergence",), "image": ("labels",)}
    for name, kinds in used.items():
        if getattr(request, name) is not None and kind not in kinds:
            raise OptionError(f"--{name} belongs to --kind {' or '.join(kinds)}, found --kind {kind}")
    target = output or f"{_stem(files[0])}-{kind}.png"
    check_outputs(target)
    # Write the picture in one piece; equal pictures give equal bytes.
    figure = KINDS[kind](request)
    import matplotlib

    from mapmrf.formats.files import write_bytes

    suffix, data = Path(target).suffix.lower(), io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mapmrf"}):
        figure.savefig(data, format=suffix.removeprefix("."), **SUFFIXES[suffix])
    write_bytes(target, data.getvalue())
    click.echo(target)


def _stem(path: str) -> str:
    from mapmrf.formats.files import compression

    name = Path(path).name
    return Path(name[: len(name) - len(compression(path))]).stem


# -- files -----------------------------------------------------------------------------------------------------------


def _read(files: Sequence[str], request: PlotRequest) -> None:
    """Read every file by its suffix, the model first, since solutions are checked against it."""
    from mapmrf.formats.files import plain_name

    role = {}
    for path in files:
        name = plain_name(path)
        other = "solution" if name.endswith(SOLUTIONS) else "model"
        role[path] = "result" if name.endswith(".json") else "trace" if name.endswith(".csv") else other
    if len(role) < len(files):
        raise OptionError("a file is given twice")
    for what in ("model", "solution"):
        several = [path for path in files if role[path] == what]
        if len(several) > 1:
            raise OptionError(f"{several[1]}: a second {what}, expected at most one")
    runs = {}
    for path in sorted(files, key=lambda path: role[path] != "model"):
        if role[path] == "model":
            request.model = read_model(path)
        elif role[path] == "solution":
            # Checked against the model or, without one, only counted.
            if request.model is None and request.shape is None:
                raise OptionError(f"{path}: expected the model of this solution as well, or --shape HxW")
            model = request.model if request.model is not None else math.prod(request.shape or ())
            request.labels = read_labels(path, model)
        else:
            runs[path] = _run(path, role[path])
    stems = [_stem(path) for path in runs]  # the names of the runs, unless two are equal
    request.runs = dict(zip(runs if len(set(stems)) < len(stems) else stems, runs.values(), strict=True))
    if request.labels is None and request.result is not None:
        request.labels = request.result.labels


def _run(path: str, role: str) -> Result | tuple[TracePoint, ...]:
    from mapmrf.formats.files import read_bytes
    from mapmrf.run.result import Result, read_trace

    if role == "trace":
        return read_trace(path)
    try:
        return Result.from_json(read_bytes(path).decode())
    except (FormatError, UnicodeDecodeError) as error:
        text = str(error)
        raise FormatError(text if text.startswith(path) else f"{path}: {text}") from None


# -- pictures --------------------------------------------------------------------------------------------------------


def _default_kind(request: PlotRequest) -> str:
    from mapmrf.plots import lattice_shape

    if len(request.runs) > 1:
        return "compare"
    on_pixels = request.shape is not None or request.image is not None
    if request.model is not None:
        if request.runs and request.labels is None:
            return "convergence"  # which then refuses the model
        on_pixels = on_pixels or lattice_shape(request.model) is not None
        return "labels" if request.labels is not None and on_pixels else "graph"
    if on_pixels:
        return "labels"
    result = request.result
    return "kinds" if result is not None and not result.trace and result.kind is not None else "convergence"


def _convergence(request: PlotRequest) -> Figure:
    from mapmrf.plots import convergence
    from mapmrf.plots.style import literal
    from mapmrf.run.result import Result

    if len(request.runs) != 1 or request.model is not None:
        raise OptionError("--kind convergence: expected one result or trace, and no model")
    ((name, run),) = request.runs.items()
    if isinstance(run, Result) and not run.trace:
        raise OptionError(f"{name}: the result has no trace; plot the file that `mapmrf solve --trace FILE.csv` writes")
    title = request.title if request.title is not None or isinstance(run, Result) else literal(name)
    return convergence(run, over=request.over, title=title)


def _compare(request: PlotRequest) -> Figure:
    from mapmrf.plots import compare

    if not request.runs or request.model is not None:
        raise OptionError("--kind compare: expected results or traces, and no model")
    return compare(request.runs, title=request.title or "")


def _labels(request: PlotRequest) -> Figure:
    from mapmrf.plots import label_map, lattice_shape

    if request.labels is None:
        raise OptionError("--kind labels: expected one result or solution")
    shape, model, n_labels, names = request.shape, request.model, None, None
    if model is not None:
        model.check_labels(request.labels)
        shape = shape or lattice_shape(model)
        n_labels = int(model.card.max())
        states = None if model.names is None else model.names.states
        names = states[0] if states and all(some == states[0] for some in states) else None
    if shape is None:
        found = "the model is not a lattice" if model is not None else "no model is given"
        raise OptionError(f"--kind labels: {found}, expected --shape HxW")
    image = None if request.image is None else _image(request.image)
    return label_map(
        request.labels, shape=shape, n_labels=n_labels, names=names, image=image, title=request.title or ""
    )


def _image(path: str) -> Any:
    from matplotlib.image import imread

    try:
        return imread(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot read: {error.strerror or 'not a picture'}") from None
    except (ValueError, SyntaxError) as error:
        raise FormatError(f"{path}: not a picture: {error}") from None


def _graph(request: PlotRequest, kind: str) -> Figure:
    """A picture of one model: its factor graph, or its Bayesian network."""
    from mapmrf.plots import bayesian_network, factor_graph

    if request.model is None or len(request.runs) > 1 or (request.runs and request.labels is None):
        raise OptionError(f"--kind {kind}: expected a model, and at most one result or solution")
    draw = factor_graph if kind == "graph" else bayesian_network
    return draw(request.model, labels=request.labels, title=request.title or "")


def _map(request: PlotRequest, kind: str) -> Figure:
    """A picture of one result: the kinds of its states, or its margins."""
    from mapmrf import plots

    if request.result is None:
        raise OptionError(f"--kind {kind}: expected one result, and its model for a map")
    if kind == "kinds":
        return plots.kinds(request.result, request.model, shape=request.shape, title=request.title)
    return plots.margins(request.result, request.model, shape=request.shape, title=request.title or "")


KINDS: dict[str, Callable[[PlotRequest], Figure]] = {
    "convergence": _convergence,
    "compare": _compare,
    "labels": _labels,
    "graph": partial(_graph, kind="graph"),
    "network": partial(_graph, kind="network"),
    "kinds": partial(_map, kind="kinds"),
    "margins": partial(_map, kind="margins"),
}
"""The pictures by name."""
