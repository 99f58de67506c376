"""Result: what `solve` returns, with every figure recomputed by the library."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from mapmrf._version import __version__
from mapmrf.arrays import Floats, Ints
from mapmrf.errors import FormatError, GraphError, OptionError
from mapmrf.model.builders import as_ints
from mapmrf.model.graph import FactorGraph, Names
from mapmrf.model.names import locate_variable
from mapmrf.model.polytope import Kind, KindFractions, Residuals, describe
from mapmrf.run.atomic_files import whole_file
from mapmrf.run.incumbent import GAP_TOLERANCE as GAP_TOLERANCE
from mapmrf.run.incumbent import Violation, violations
from mapmrf.run.incumbent import relative_gap as relative_gap

if TYPE_CHECKING:
    from mapmrf.certificates.certificate import Certificate
    from mapmrf.run.method import DualState


class Status(StrEnum):
    """How a run ended. Not converging is a status, never an exception.

    Examples
    --------
    >>> import mapmrf
    >>> mapmrf.Status("optimal").meaning
    'proven: no labelling is better'
    >>> mapmrf.Status.TIME_LIMIT == "time_limit"
    True
    """

    OPTIMAL = "optimal"
    WITHIN_TOLERANCE = "within_tolerance"
    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration_limit"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"

    @property
    def meaning(self) -> str:
        """A readable explanation."""
        return _MEANINGS[self]

    @property
    def closes_gap(self) -> bool:
        """Whether value and bound meet: exactly (`OPTIMAL`), or within the gap tolerance."""
        return self in (Status.OPTIMAL, Status.WITHIN_TOLERANCE)


_MEANINGS = {
    Status.OPTIMAL: "proven: no labelling is better",
    Status.WITHIN_TOLERANCE: "no labelling is better by more than the gap tolerance",
    Status.CONVERGED: "the method converged by its own stopping rule",
    Status.ITERATION_LIMIT: "stopped at the iteration limit",
    Status.TIME_LIMIT: "stopped at the time limit",
    Status.MEMORY_LIMIT: "stopped for lack of memory",
    Status.INTERRUPTED: "stopped by the user or a callback",
    Status.INFEASIBLE: "every labelling has probability zero (log potential -inf)",
}


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run.

    Attributes
    ----------
    labels : (n_vars,)
        A legal state for every variable: the best labelling seen.
    value
        Log potential of `labels`, evaluated on the given graph.
    relaxed_value
        ``<theta, mu>`` of the final relaxed solution, or None.
    bound
        Upper bound on the optimum, or None.
    kind, kind_fractions, residuals
        Kind of the relaxed solution (valid, uniform, fractional, approximate), fractions of the variables of each kind,
        and violations of L_G.
    status
        How the run ended.
    iterations, compile_time, runtime
        Number of iterations; seconds spent compiling the graph and kernels; total seconds.
    trace
        The run as a list of TracePoint.
    method, options, seed, version
        The origin of the result.
    details
        Extra figures of the method, such as the epsilon-KKT residuals of LS-LP.
    mu_v : (sum of card,)
        The final relaxed solution on the variables, or None; a warm start can use it.
    margins : (n_vars, 2)
        Margin of each variable's label over its best other state: lower and upper end, equal where exact; None unless
        requested, see `max_marginals`.
    dual
        The final messages or multipliers, or None; a warm start can use them. Not part of the JSON.
    certificate
        A dual point that proves a bound, for `verify`; None unless requested, and not part of the JSON.
    unit
        The smallest denominator of a relative gap: 1, or the range of the model's potentials where that is smaller.
    names
        Names of the variables and states, if the model has them; `assignment` is the labelling by name.
    violated
        If no feasible labelling was found, the violations of `labels`: factors, hard constraints, and variables in
        forbidden states. `labels` then have the fewest violations seen. Empty if the value is finite.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> result = mapmrf.solve(graph)
    >>> result
    Result(auto: value=2.000000, gap=0, status=optimal)
    >>> result.labels.tolist(), result.value == graph.value(result.labels), result.bound
    ([1, 1], True, 2.0)
    """

    labels: Ints
    value: float
    status: Status
    method: str
    bound: float | None = None
    relaxed_value: float | None = None
    kind: Kind | None = None
    kind_fractions: KindFractions | None = None
    residuals: Residuals | None = None
    iterations: int = 0
    compile_time: float = 0.0
    runtime: float = 0.0
    trace: tuple[TracePoint, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    version: str = ""
    details: Mapping[str, float] = field(default_factory=dict)
    mu_v: Floats | None = None
    unit: float = 1.0
    names: Names | None = None
    violated: tuple[Violation, ...] = ()
    margins: Floats | None = None
    dual: DualState | None = field(default=None, repr=False)
    certificate: Certificate | None = None

    @classmethod
    def of_labels(
        cls, graph: FactorGraph, labels: Ints, status: Status, method: str, value: float | None = None
    ) -> Result:
        """A result with nothing but labels (n_vars,); add further figures with `dataclasses.replace`.

        The value is computed unless given.
        """
        value = graph.value(labels) if value is None else value
        if value == -math.inf and graph.origin is not None:
            _, observed = graph.origin
            labels = np.where(observed >= 0, observed, labels)
            value = graph.value(labels)
        violated = violations(graph, labels) if value == -math.inf else ()
        return cls(
            labels, value, status, method, version=__version__, unit=graph.unit, names=graph.names, violated=violated
        )

    @property
    def assignment(self) -> dict[int | str, int | str]:
        """The labelling as a dict: variable -> state, by name where the model has names, else by index.

        Examples
        --------
        >>> import mapmrf
        >>> names = mapmrf.Names(("Rain", "Grass"), (("no", "yes"), ("dry", "wet")))
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]], names=names)
        >>> mapmrf.solve(graph).assignment
        {'Rain': 'yes', 'Grass': 'wet'}
        """
        return self._named(len(self.labels))

    def __getitem__(self, variable: int | str) -> int | str:
        """The state of a variable, by name where the model has names."""
        i = self._place(variable)
        k = int(self.labels[i])
        return k if self.names is None or self.names.states is None else self.names.states[i][k]

    def certainty(self, variable: int | str) -> float:
        """Return by how much, at least, the value falls if the variable has another state; 0 if another is as good.

        Raises
        ------
        OptionError
            If the result has no `margins`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> mapmrf.solve(graph, margins=True).certainty(0)
        1.0
        """
        if self.margins is None:
            raise OptionError("the result has no margins: solve with margins=True")
        return max(0.0, float(self.margins[self._place(variable), 0]))

    def _place(self, variable: int | str) -> int:
        return locate_variable(self.names, self.labels, variable)

    def _named(self, count: int) -> dict[int | str, int | str]:
        """The first entries of `assignment`."""
        found: dict[int | str, int | str] = {}
        for i, k in enumerate(self.labels[:count].tolist()):
            if self.names is None:
                found[i] = k
            else:
                name = self.names.variables[i]
                # Of variables that share a name, the name belongs to the one that evidence by this name would fix.
                key = name if self.names.place[name] == i else i
                found[key] = k if self.names.states is None else self.names.states[i][k]
        return found

    @property
    def gap(self) -> float | None:
        """Relative gap (bound - value) / max(unit, |value|), or None without a bound."""
        return relative_gap(self.value, self.bound, self.unit)

    @property
    def improvements(self) -> tuple[TracePoint, ...]:
        """The points of the trace at which value or bound improved, with the `phase` that did it."""
        better, value, bound = [], -math.inf, math.inf
        for point in self.trace:
            now = math.inf if point.bound is None else point.bound
            if point.value > value or now < bound:
                better.append(point)
                value, bound = max(value, point.value), min(bound, now)
        return tuple(better)

    @property
    def found(self) -> TracePoint | None:
        """The first point of the trace with this value: its `phase` found the labelling. None if no step did."""
        return next((point for point in self.trace if point.value == self.value), None)

    @property
    def bounded(self) -> TracePoint | None:
        """The first point of the trace with this bound: its `phase` proved it. None if no step did."""
        return next((point for point in self.trace if point.bound is not None and point.bound == self.bound), None)

    def __repr__(self) -> str:
        gap = "" if self.gap is None else f", gap={self.gap:.2g}"
        violated = f", violated={len(self.violated)}" if self.violated else ""
        return f"Result({self.method}: value={self.value:.6f}{gap}, status={self.status.value}{violated})"

    def summary(self, *, shown: int = 6, relaxed: bool = True) -> str:
        """Return a summary in a few lines, with the first `shown` states if the model has names.

        `relaxed` is whether to describe the relaxed solution, too.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> print(mapmrf.solve(graph).summary())  # doctest: +ELLIPSIS
        log potential  2.000000
        status         optimal: proven: no labelling is better
        upper bound    2.000000  (relative gap 0)
        ...
        """
        lines = [f"log potential  {self.value:.6f}", f"status         {self.status.value}: {self.status.meaning}"]
        if self.violated:
            some = ", ".join(str(violation) for violation in self.violated[: max(shown, 1)])
            more = " ..." if len(self.violated) > max(shown, 1) else ""
            lines.append(f"violated       {len(self.violated)}: {some}{more}")
        if self.bound is not None:
            lines.append(f"upper bound    {self.bound:.6f}  (relative gap {self.gap:.3g})")
        polish = f" + {self.options['polish']}" if "polish" in self.options else ""
        compiling = f", {self.compile_time:.1f} s of them loading or compiling" if self.compile_time > 2.0 else ""
        spent = f"{self.iterations} iteration{'' if self.iterations == 1 else 's'}, {self.runtime:.3f} s{compiling}"
        lines.append(f"method         {self.method}{polish}, {spent}")
        if relaxed and self.kind is not None and self.kind_fractions is not None:
            lines.append(f"relaxed point  {self.kind.value} ({describe(self.kind, self.kind_fractions)})")
        if relaxed and self.relaxed_value is not None:
            lines.append(f"relaxed value  {self.relaxed_value:.6f}")
        if self.names is not None and shown > 0:
            some = " ".join(f"{name}={state}" for name, state in self._named(shown).items())
            more = f" ... ({len(self.labels)} in all)" if len(self.labels) > shown else ""
            lines.append(f"assignment     {some}{more}")
        return "\n".join(lines)

    def to_json(self, *, trace: bool = False, mu_v: bool = False) -> str:
        """One JSON object; trace and relaxed solution only on request. Infinite numbers are written as strings.

        A model with names adds them, and the labelling by name as `assignment`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> import json
        >>> data = json.loads(mapmrf.solve(graph).to_json())
        >>> data["labels"], data["value"], data["gap"], data["status"]
        ([1, 1], 2.0, 0.0, 'optimal')
        """
        data: dict[str, Any] = {}
        for item in fields(self):
            if item.name in ("trace", "mu_v", "dual", "certificate") or (
                item.name == "margins" and self.margins is None
            ):
                continue
            data[item.name] = plain(getattr(self, item.name))
        data["gap"] = plain(self.gap)
        if self.names is not None:
            data["assignment"] = plain(self.assignment)
        if trace:
            data["trace"] = [plain(asdict(point)) for point in self.trace]
        if mu_v:
            data["mu_v"] = plain(self.mu_v)
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read a result written by `to_json`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> again = mapmrf.Result.from_json(mapmrf.solve(graph).to_json())
        >>> again.labels.tolist(), again.status.value
        ([1, 1], 'optimal')
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict):
                raise TypeError("expected an object")
            data.pop("gap", None)
            data.pop("assignment", None)
            # A state may be named "inf": names are left as they are.
            data = {
                key: value if key in ("labels", "names", "violated") else numbers(value) for key, value in data.items()
            }
            data["labels"] = as_ints(data["labels"], "labels")
            if data["labels"].ndim != 1:
                raise ValueError("labels: expected a list of whole numbers")
            data["status"] = Status(data["status"])
            data["kind"] = None if data.get("kind") is None else Kind(data["kind"])
            if data.get("kind_fractions") is not None:
                data["kind_fractions"] = KindFractions(**data["kind_fractions"])
            if data.get("residuals") is not None:
                data["residuals"] = Residuals(**data["residuals"])
            data["trace"] = tuple(point_from(point) for point in data.get("trace", ()))
            data["mu_v"] = None if data.get("mu_v") is None else np.array(data["mu_v"], dtype=np.float64)
            data["violated"] = tuple(
                Violation(**{**one, "variables": tuple(one["variables"]), "states": tuple(one["states"])})
                for one in data.get("violated", ())
            )
            data["margins"] = None if data.get("margins") is None else np.array(data["margins"], dtype=np.float64)
            data["names"] = _names_from(data.get("names"), data["labels"])
            return checked_numbers(cls(**data))
        except KeyError as error:
            raise FormatError(f"not a result written by mapmrf: no {error}") from None
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, GraphError) as error:
            raise FormatError(f"not a result written by mapmrf: {' '.join(str(error).split())}") from None

    def write_trace(self, path: str | Path) -> None:
        """Write the trace as CSV, one row per point.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "run.csv")
        ...     mapmrf.solve(graph).write_trace(path)
        ...     path.read_text().split(",")[:4]
        ['time', 'iterations', 'value', 'bound']
        """
        write_trace(self.trace, path)

    def to_pandas(self, of: Literal["labels", "trace"] = "labels") -> Any:
        """Return a `pandas.DataFrame` with a row per variable, or per point of the trace; `attrs` has the figures.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> frame = mapmrf.solve(graph).to_pandas()
        >>> frame["label"].tolist(), frame.attrs["value"]
        ([1, 1], 2.0)
        """
        from mapmrf.plots.display import result_frame

        return result_frame(self, of)

    def to_xarray(self) -> Any:
        """Return an `xarray.Dataset`: labels by `variable`, the trace by `point`, the figures in `attrs`.

        Examples
        --------
        >>> import mapmrf
        >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
        >>> data = mapmrf.solve(graph, "trws").to_xarray()
        >>> data["label"].values.tolist(), float(data["value"].max())
        ([1, 1], 2.0)
        """
        from mapmrf.plots.display import result_dataset

        return result_dataset(self)

    def _repr_html_(self) -> str:
        from mapmrf.plots.display import result_html

        return result_html(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from mapmrf.plots.display import result_rich

        yield from result_rich(self, ascii_only=options.ascii_only)


def plain(value: Any) -> Any:
    """Convert a field to something that strict JSON can represent."""
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype.kind != "f" or np.isfinite(value).all() else plain(value.tolist())
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Violation):
        further = [key for key in ("constraint", "name") if getattr(value, key) not in (None, "")]
        return {key: plain(getattr(value, key)) for key in ("factor", "variables", "states", *further)}
    if isinstance(value, KindFractions | Residuals | Names):
        return {key: plain(v) for key, v in asdict(value).items()}
    if isinstance(value, Mapping):
        return {str(key): plain(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _names_from(data: Mapping[str, Any] | None, labels: Ints) -> Names | None:
    """Read names written by `plain`; there must be one for every variable and label."""
    if data is None:
        return None
    states = data["states"]
    names = Names(tuple(data["variables"]), None if states is None else tuple(tuple(some) for some in states))
    if len(names.variables) != len(labels):
        raise ValueError(f"{len(names.variables)} names of variables for {len(labels)} labels")
    if names.states is not None and any(k >= len(some) for k, some in zip(labels, names.states, strict=True)):
        raise ValueError("a label has no name among the states")
    return names


def numbers(value: Any) -> Any:
    """Convert the strings that `plain` writes for infinite numbers back, at any depth; integers must fit a float."""
    if isinstance(value, dict):
        return {key: numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [numbers(v) for v in value]
    if isinstance(value, int):
        float(value)  # an OverflowError, now rather than in a plot
    return float(value) if value in ("inf", "-inf", "nan") else value


# -- The trace of a run: a point for every step, and traces as CSV -----------------------------------------------------

FINITE = ("time", "iterations", "compile_time", "runtime", "seed", "unit")  # figures that are finite for every model


@dataclass(frozen=True)
class TracePoint:
    """One row of a trace: the state of a run at one moment.

    `value` and `bound` are the best so far; `candidate` and `bound_now` are those of this step. `extra` holds
    further figures of the method, such as the residuals of LS-LP.

    Examples
    --------
    >>> import mapmrf
    >>> graph = mapmrf.FactorGraph.from_pairwise([[0, 1], [0, 0]], [[0, 1]], [[1, 0], [0, 1]])
    >>> point = mapmrf.solve(graph, "icm").trace[-1]
    >>> point.value, point.bound, point.gap
    (2.0, None, None)
    """

    time: float
    iterations: int
    value: float
    bound: float | None = None
    candidate: float | None = None
    bound_now: float | None = None
    relaxed_value: float | None = None
    phase: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float | None:
        """Relative gap between the best bound and the best value."""
        return relative_gap(self.value, self.bound)

    def figure(self, name: str) -> Any:
        """An attribute or a figure in `extra` by name; None if this point has no such figure."""
        return getattr(self, name, None) if name in _COLUMNS else self.extra.get(name)


_COLUMNS = [item.name for item in fields(TracePoint) if item.name != "extra"]
"""The columns of a trace as CSV; `gap` and the figures in `extra` follow."""

_REQUIRED = {"time", "iterations", "value"}  # columns that every trace must have

Read = TypeVar("Read")


def write_trace(points: Iterable[TracePoint], path: str | Path) -> None:
    """Write a trace as CSV, one row per point; the figures in `extra` become columns."""
    points = list(points)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    extra = list(dict.fromkeys(name for point in points for name in point.extra))
    writer.writerow([*_COLUMNS, "gap", *extra])
    for point in points:
        row = [*(getattr(point, name) for name in _COLUMNS), point.gap, *(point.extra.get(name) for name in extra)]
        writer.writerow(["" if cell is None else cell for cell in row])
    with whole_file(path) as file:
        file.write(text.getvalue().encode())


def read_trace(path: str | Path) -> tuple[TracePoint, ...]:
    """Read a trace written by `Result.write_trace` or `mapmrf solve --trace`.

    Raises
    ------
    FormatError
        If the file cannot be read, or is not a trace.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> import mapmrf
    >>> result = mapmrf.solve(mapmrf.FactorGraph.from_tables([2], [(0,)], [[0.0, 1.0]]), "icm")
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     result.write_trace(pathlib.Path(folder, "run.csv"))
    ...     read_trace(pathlib.Path(folder, "run.csv")) == result.trace
    True
    """
    try:
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = _REQUIRED - set(rows.fieldnames or ())
            if missing:
                raise FormatError(f"{path}: line 1: no column {min(missing)!r}, expected the trace of a run")
            return tuple(_trace_point(row, f"{path}: line {rows.line_num}") for row in rows)
    except OSError as error:
        raise FormatError(f"{path}: cannot read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise FormatError(f"{path}: not a CSV file: {error}") from None


def _trace_point(row: Mapping[str, str | None], place: str) -> TracePoint:
    cells: dict[str, Any] = {"phase": row.get("phase") or "", "extra": {}}
    for name, text in row.items():
        if name in (None, "phase", "gap") or not (text or name in _REQUIRED):
            continue
        try:
            number = int(text or "") if name == "iterations" else float(text or "")
        except (ValueError, TypeError):
            raise FormatError(f"{place}: {name} is {text or ''!r}, expected a number") from None
        (cells if name in _COLUMNS else cells["extra"])[name] = number
    try:
        return checked_numbers(TracePoint(**cells))
    except ValueError as error:
        raise FormatError(f"{place}: {error}") from None


def point_from(data: Mapping[str, Any]) -> TracePoint:
    """A point of a trace from JSON; earlier versions had the figures of `extra` next to the others."""
    cells = {name: cell for name, cell in data.items() if name in _COLUMNS}
    old = {name: cell for name, cell in data.items() if name not in (*_COLUMNS, "extra") and cell is not None}
    return checked_numbers(TracePoint(**cells, extra={**old, **data.get("extra", {})}))


def checked_numbers(found: Read) -> Read:
    """Return an object read from a file; raise unless its numeric fields are numbers, finite where required."""
    for item in fields(found):  # type: ignore[arg-type]
        kind, optional, _ = str(item.type).partition(" | None")
        value = getattr(found, item.name)
        if kind not in ("int", "float") or (optional and value is None):
            continue
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{item.name} is {value!r}, expected a number")
        try:
            size = float(value)
        except OverflowError:
            raise ValueError(f"{item.name} is a number that is too large for a float") from None
        if item.name in FINITE and not math.isfinite(size):
            raise ValueError(f"{item.name} is {value!r}, expected a finite number")
    return found
