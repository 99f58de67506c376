"""The command that draws: `plot`."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from mapmrf.cli.output import check_outputs
from mapmrf.cli.program import main, read_labels, read_model
from mapmrf.errors import FormatError, OptionError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mapmrf.arrays import Ints
    from mapmrf.curves import Over
    from mapmrf.graph import FactorGraph
    from mapmrf.result import Result, TracePoint

SUFFIXES: dict[str, dict[str, Any]] = {
    ".png": {"dpi": 150},
    ".svg": {"metadata": {"Date": None}},
    ".pdf": {"metadata": {"CreationDate": None}},
}
"""What is written, and with which settings: without a date, so that equal pictures are equal files."""
SOLUTIONS = (".mpe", ".map", ".sol", ".txt")


@dataclass
class Shown:
    """What the files given hold."""

    model: FactorGraph | None = None
    runs: dict[str, Result | tuple[TracePoint, ...]] = field(default_factory=dict)
    labels: Ints | None = None

    @property
    def result(self) -> Result | None:
        """The one result, if there is just one run and it is not a trace alone."""
        from mapmrf.result import Result

        only = next(iter(self.runs.values())) if len(self.runs) == 1 else None
        return only if isinstance(only, Result) else None


@dataclass(frozen=True)
class Wishes:
    """The options, as far as they are given."""

    shape: tuple[int, int] | None = None
    over: Over | None = None
    image: str | None = None
    title: str | None = None


def _shape(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """Read a size such as ``72x96``."""
    if text is None:
        return None
    found = re.fullmatch(r"([1-9]\d*)[xX]([1-9]\d*)", text.strip())
    if found is None:
        raise OptionError(f"--shape: found {text!r}, expected height and width such as 72x96")
    return int(found[1]), int(found[2])


@main.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--kind", "-k", metavar="NAME", help="convergence, compare, labels, graph or kinds.")
@click.option("--output", "-o", metavar="FILE", help="The picture: .png, .svg or .pdf.  [default: FILE-KIND.png]")
@click.option("--shape", callback=_shape, metavar="HxW", help="Height and width of labels or kinds.")
@click.option("--over", type=click.Choice(["iterations", "seconds"]), help="The axis of a convergence.")
@click.option("--image", metavar="FILE", help="A picture to lay the labels over.")
@click.option("--title", metavar="TEXT", help="Text above the picture.")
def plot(
    files: Sequence[str],
    kind: str | None,
    output: str | None,
    shape: tuple[int, int] | None,
    over: str | None,
    image: str | None,
    title: str | None,
) -> None:
    """Draw results, traces and models.

    A FILE is a result (.json), a trace (.csv), a solution (.MPE) or a model. Without --kind, a run is drawn as its
    convergence, several runs are compared, a model is drawn as a graph, and a model with a result or a solution as a
    map of labels if it is a lattice.
    """
    if kind is not None and kind not in KINDS:
        raise OptionError(f"--kind: found {kind!r}, expected one of {', '.join(KINDS)}")
    if output is not None:
        _settings(output)
        check_outputs(output)
    _check_matplotlib()
    from mapmrf.plots._style import literal

    shown = _read(files, shape)
    wishes = Wishes(shape, cast("Over | None", over), image, None if title is None else literal(title))
    kind = kind or _default_kind(shown, wishes)
    _check_wishes(kind, wishes)
    target = output or f"{_stem(files[0])}-{kind}.png"
    check_outputs(target)
    _save(KINDS[kind](shown, wishes), target)
    click.echo(target)


def _settings(output: str) -> dict[str, Any]:
    suffix = Path(output).suffix.lower()
    if suffix not in SUFFIXES:
        raise OptionError(f"{output}: expected a name that ends in {', '.join(SUFFIXES)}")
    return SUFFIXES[suffix]


def _check_matplotlib() -> None:
    """Miss it before a large model is read, not after."""
    from mapmrf.plots._style import NO_MATPLOTLIB

    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ImportError(NO_MATPLOTLIB) from None


def _stem(path: str) -> str:
    """Name of a file without its folder, compression and suffix."""
    from mapmrf.formats.files import compression

    name = Path(path).name
    return Path(name[: len(name) - len(compression(path))]).stem


def _save(figure: Figure, target: str) -> None:
    """Write the picture whole or not at all; equal pictures give equal bytes."""
    import matplotlib

    from mapmrf.formats.files import write_bytes

    data = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "mapmrf"}):
        figure.savefig(data, format=Path(target).suffix.lower().removeprefix("."), **_settings(target))
    write_bytes(target, data.getvalue())


# -- what is given ---------------------------------------------------------------------------------------------------


def _read(files: Sequence[str], shape: tuple[int, int] | None) -> Shown:
    """Read every file as what its name says it is; the model first, as solutions are checked against it."""
    from mapmrf.formats.files import plain_name

    shown = Shown()
    role = {path: _role(plain_name(path)) for path in files}
    if len(role) < len(files):
        raise OptionError("a file is given twice")
    for what in ("model", "solution"):
        several = [path for path in files if role[path] == what]
        if len(several) > 1:
            raise OptionError(f"{several[1]}: a second {what}, expected one at most")
    for path in sorted(files, key=lambda path: role[path] != "model"):
        if role[path] == "model":
            shown.model = read_model(path)
        elif role[path] == "solution":
            shown.labels = _solution(path, shown.model, shape)
        else:
            shown.runs[path] = _run(path, role[path])
    shown.runs = {name: shown.runs[path] for name, path in _short_names(list(shown.runs)).items()}
    if shown.labels is None and shown.result is not None:
        shown.labels = shown.result.labels
    return shown


def _role(name: str) -> str:
    if name.endswith(".json"):
        return "result"
    if name.endswith(".csv"):
        return "trace"
    return "solution" if name.endswith(SOLUTIONS) else "model"


def _run(path: str, role: str) -> Result | tuple[TracePoint, ...]:
    from mapmrf.formats.files import read_bytes
    from mapmrf.result import Result, read_trace

    if role == "trace":
        return read_trace(path)
    try:
        return Result.from_json(read_bytes(path).decode())
    except (FormatError, UnicodeDecodeError) as error:
        text = str(error)
        raise FormatError(text if text.startswith(path) else f"{path}: {text}") from None


def _solution(path: str, model: FactorGraph | None, shape: tuple[int, int] | None) -> Ints:
    """Labels of a solution file, which are checked against the model or, without one, only counted."""
    if model is not None:
        return cast("Ints", read_labels(path, model))
    if shape is None:
        raise OptionError(f"{path}: expected the model of this solution as well, or --shape HxW")
    from mapmrf.formats.solution import read_solution

    return read_solution(path, shape[0] * shape[1])


def _short_names(paths: Sequence[str]) -> dict[str, str]:
    """What the runs are called in a picture: their files without folder and suffix, unless that makes two alike."""
    stems = [_stem(path) for path in paths]
    alike = len(set(stems)) < len(stems)
    return dict(zip(paths if alike else stems, paths, strict=True))


# -- which picture ---------------------------------------------------------------------------------------------------


def _default_kind(shown: Shown, wishes: Wishes) -> str:
    if len(shown.runs) > 1:
        return "compare"
    if shown.model is not None:
        from mapmrf.plots import lattice_shape

        if shown.runs and shown.labels is None:
            return "convergence"  # which then says that it has no use for the model
        pixels = wishes.shape is not None or wishes.image is not None or lattice_shape(shown.model) is not None
        return "labels" if shown.labels is not None and pixels else "graph"
    if wishes.shape is not None or wishes.image is not None:
        return "labels"
    result = shown.result
    return "kinds" if result is not None and not result.trace and result.kind is not None else "convergence"


def _check_wishes(kind: str, wishes: Wishes) -> None:
    """Refuse options that the picture has no use for."""
    used = {"shape": ("labels", "kinds"), "over": ("convergence",), "image": ("labels",)}
    for name, kinds in used.items():
        if getattr(wishes, name) is not None and kind not in kinds:
            raise OptionError(f"--{name} belongs to --kind {' or '.join(kinds)}, found --kind {kind}")


def _convergence(shown: Shown, wishes: Wishes) -> Figure:
    from mapmrf.plots import convergence
    from mapmrf.plots._style import literal
    from mapmrf.result import Result

    if len(shown.runs) != 1 or shown.model is not None:
        raise OptionError("--kind convergence: expected one result or trace, and no model")
    ((name, run),) = shown.runs.items()
    if isinstance(run, Result) and not run.trace:
        raise OptionError(
            f"{name}: the result holds no trace; draw the file that `mapmrf solve --trace FILE.csv` writes"
        )
    title = wishes.title if wishes.title is not None or isinstance(run, Result) else literal(name)
    return convergence(run, over=wishes.over, title=title)


def _compare(shown: Shown, wishes: Wishes) -> Figure:
    from mapmrf.plots import compare

    if not shown.runs or shown.model is not None:
        raise OptionError("--kind compare: expected results or traces, and no model")
    return compare(shown.runs, title=wishes.title or "")


def _labels(shown: Shown, wishes: Wishes) -> Figure:
    from mapmrf.plots import label_map, lattice_shape

    if shown.labels is None:
        raise OptionError("--kind labels: expected one result or solution")
    shape, model = wishes.shape, shown.model
    if model is not None:
        model.check_labels(shown.labels)
        shape = shape or lattice_shape(model)
    if shape is None:
        found = "the model is no lattice" if model is not None else "no model is given"
        raise OptionError(f"--kind labels: {found}, expected --shape HxW")
    return label_map(
        shown.labels,
        shape=shape,
        n_labels=None if model is None else int(model.card.max()),
        names=None if model is None else _state_names(model),
        image=None if wishes.image is None else _image(wishes.image),
        title=wishes.title or "",
    )


def _state_names(model: FactorGraph) -> tuple[str, ...] | None:
    """Names of the states, if they are the same for all variables."""
    states = None if model.names is None else model.names.states
    return states[0] if states and all(some == states[0] for some in states) else None


def _image(path: str) -> Any:
    from matplotlib.image import imread

    try:
        return imread(path)
    except OSError as error:
        raise FormatError(f"{path}: cannot read: {error.strerror or 'not a picture'}") from None
    except (ValueError, SyntaxError) as error:
        raise FormatError(f"{path}: not a picture: {error}") from None


def _graph(shown: Shown, wishes: Wishes) -> Figure:
    from mapmrf.plots import factor_graph

    if shown.model is None or len(shown.runs) > 1 or (shown.runs and shown.labels is None):
        raise OptionError("--kind graph: expected a model, and one result or solution at most")
    return factor_graph(shown.model, labels=shown.labels, title=wishes.title or "")


def _kinds(shown: Shown, wishes: Wishes) -> Figure:
    from mapmrf.plots import kinds

    if shown.result is None:
        raise OptionError("--kind kinds: expected one result, and its model for a map")
    return kinds(shown.result, shown.model, shape=wishes.shape, title=wishes.title)


KINDS: dict[str, Callable[[Shown, Wishes], Figure]] = {
    "convergence": _convergence,
    "compare": _compare,
    "labels": _labels,
    "graph": _graph,
    "kinds": _kinds,
}
"""The pictures by name."""
