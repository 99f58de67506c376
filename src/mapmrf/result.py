"""Result: what `solve` returns, with every figure recomputed by the library."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np

from mapmrf.arrays import Floats, Ints
from mapmrf.errors import FormatError
from mapmrf.polytope import Kind, KindFractions, Residuals, describe


class Status(StrEnum):
    """How a run ended. Not converging is a status, never an exception."""

    OPTIMAL = "optimal"
    CONVERGED = "converged"
    ITERATION_LIMIT = "iteration_limit"
    TIME_LIMIT = "time_limit"
    INTERRUPTED = "interrupted"
    INFEASIBLE = "infeasible"

    @property
    def meaning(self) -> str:
        """A sentence for people."""
        return _MEANINGS[self]


_MEANINGS = {
    Status.OPTIMAL: "proven optimal within the stated tolerance",
    Status.CONVERGED: "the method came to rest by its own stopping rule",
    Status.ITERATION_LIMIT: "stopped at the iteration limit",
    Status.TIME_LIMIT: "stopped at the time limit",
    Status.INTERRUPTED: "stopped by the user or a callback; the best labelling so far",
    Status.INFEASIBLE: "every labelling has probability zero (log potential -inf)",
}


@dataclass(frozen=True)
class TracePoint:
    """One row of a trace: the state of a run at a moment.

    `value` and `bound` are the best so far; `candidate` and `bound_now` belong to this very moment.
    """

    time: float
    iterations: int
    value: float
    bound: float | None = None
    candidate: float | None = None
    bound_now: float | None = None
    relaxed_value: float | None = None
    primal: float | None = None
    sphere: float | None = None
    rho: float | None = None
    phase: str = ""

    @property
    def gap(self) -> float | None:
        """Relative gap between the best bound and the best value."""
        return relative_gap(self.value, self.bound)


def relative_gap(value: float, bound: float | None, unit: float = 1.0) -> float | None:
    """(bound - value) / max(unit, |value|), never negative; None without a bound, inf while no finite value is known.

    `unit` is `FactorGraph.unit`: 1, or less in a model whose potentials are all small.
    """
    if bound is None:
        return None
    if bound == value:
        return 0.0
    if not math.isfinite(value):
        return math.inf
    return max(0.0, (bound - value) / max(unit, abs(value)))


@dataclass(frozen=True, eq=False)
class Result:
    """The answer of a run.

    Attributes
    ----------
    labels : (n_vars,)
        A legal state for every variable: the best labelling seen.
    value
        Log potential of `labels`, evaluated on the graph that was given.
    relaxed_value
        ``<theta, mu>`` of the relaxed solution where the method stopped, or None.
    bound
        Upper bound on the optimum, or None.
    kind, kind_fractions, residuals
        What the relaxed solution is (valid, uniform, fractional, approximate), per variable, and how far from L_G.
    status
        How the run ended.
    iterations, compile_time, runtime
        Iterations; seconds spent compiling the graph and kernels; seconds in all.
    trace
        The run as a list of TracePoint.
    method, options, seed, version
        What produced this.
    details
        Extra figures of the method, such as the epsilon-KKT residuals of LS-LP.
    mu_v
        The relaxed solution on the variables where the method stopped, or None; a warm start can use it.
    unit
        What gaps are measured in at least: 1, or how far the model's potentials are apart where that is less.
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

    @property
    def gap(self) -> float | None:
        """Relative gap (bound - value) / max(unit, |value|), or None without a bound."""
        return relative_gap(self.value, self.bound, self.unit)

    def __repr__(self) -> str:
        gap = "" if self.gap is None else f", gap={self.gap:.2g}"
        return f"Result({self.method}: value={self.value:.6f}{gap}, status={self.status.value})"

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = [
            f"log potential  {self.value:.6f}",
            f"status         {self.status.value}: {self.status.meaning}",
        ]
        if self.bound is not None:
            lines.append(f"upper bound    {self.bound:.6f}  (relative gap {self.gap:.3g})")
        if self.kind is not None and self.kind_fractions is not None:
            lines.append(f"relaxed point  {self.kind.value} ({describe(self.kind, self.kind_fractions)})")
        if self.relaxed_value is not None:
            lines.append(f"relaxed value  {self.relaxed_value:.6f}")
        lines.append(f"method         {self.method}, {self.iterations} iterations, {self.runtime:.3f} s")
        return "\n".join(lines)

    def to_json(self, *, trace: bool = False) -> str:
        """One JSON object; the trace only on request. Infinite numbers are written as strings."""
        data: dict[str, Any] = {}
        for item in fields(self):
            if item.name in ("trace", "mu_v"):
                continue
            data[item.name] = plain(getattr(self, item.name))
        data["gap"] = plain(self.gap)
        if trace:
            data["trace"] = [plain(asdict(point)) for point in self.trace]
        return json.dumps(data)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Read back what `to_json` wrote."""
        try:
            data = json.loads(text)
            data.pop("gap", None)
            data = {key: value if key == "labels" else numbers(value) for key, value in data.items()}
            data["labels"] = np.array(data["labels"], dtype=np.int64)
            data["status"] = Status(data["status"])
            data["kind"] = None if data.get("kind") is None else Kind(data["kind"])
            if data.get("kind_fractions") is not None:
                data["kind_fractions"] = KindFractions(**data["kind_fractions"])
            if data.get("residuals") is not None:
                data["residuals"] = Residuals(**data["residuals"])
            data["trace"] = tuple(TracePoint(**point) for point in data.get("trace", ()))
            return cls(**data)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise FormatError(f"not a result written by mapmrf: {error}") from None

    def write_trace(self, path: str | Path) -> None:
        """Write the trace as CSV, one row per point."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            columns = [item.name for item in fields(TracePoint)]
            writer.writerow([*columns, "gap"])
            for point in self.trace:
                row = [getattr(point, name) for name in columns]
                writer.writerow(["" if cell is None else cell for cell in [*row, point.gap]])


def plain(value: Any) -> Any:
    """Turn a field into something that strict JSON can hold."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, KindFractions | Residuals):
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


def numbers(value: Any) -> Any:
    """Undo the strings that `plain` makes of infinite numbers, at any depth."""
    if isinstance(value, dict):
        return {key: numbers(v) for key, v in value.items()}
    if isinstance(value, list):
        return [numbers(v) for v in value]
    return float(value) if value in ("inf", "-inf", "nan") else value
